//! Identity and limits of a device.

use std::fs;
use std::path::Path;

use sideway::ibverbs::device::{Device, TransportType};
use sideway::ibverbs::device_attr::{AtomicCapability, DeviceAttr};

use super::{OutputLines, flags};

/// The lines that are always printed.
pub(super) fn identity(lines: &mut OutputLines, device: &Device<'_>, attr: &DeviceAttr) {
    let name = device.name();
    lines.line(&format!("hca_id:\t{name}"));
    let transport = device.transport_type();
    lines.field(1, "transport", format_args!("{} ({})", transport_name(transport), transport.raw()));
    let firmware = attr.fw_ver();
    if !firmware.is_empty() {
        lines.field(1, "fw_ver", firmware);
    }
    lines.field(1, "node_guid", attr.node_guid());
    lines.field(1, "sys_image_guid", attr.sys_image_guid());
    lines.field(1, "vendor_id", format_args!("0x{:04x}", attr.vendor_id()));
    // The C program prints a signed number.
    lines.field(1, "vendor_part_id", attr.vendor_part_id().cast_signed());
    lines.field(1, "hw_ver", format_args!("0x{:X}", attr.hw_ver()));
    if let Some(board) = board_id(&name) {
        lines.field(1, "board_id", board);
    }
    lines.field(1, "phys_port_cnt", attr.phys_port_cnt());
}

/// The vendor's name of the board; not every driver has one.
fn board_id(device: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new("/sys/class/infiniband").join(device).join("board_id")).ok()?;
    let text = text.trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}

fn transport_name(transport: TransportType) -> &'static str {
    match transport {
        TransportType::InfiniBand => "InfiniBand",
        TransportType::Iwarp => "iWARP",
        TransportType::Usnic => "usNIC",
        TransportType::UsnicUdp => "usNIC UDP",
        TransportType::Unspecified => "unspecified",
        _ => "invalid transport",
    }
}

/// All limits of the device.
pub(super) fn limits(lines: &mut OutputLines, attr: &DeviceAttr) {
    lines.field(1, "max_mr_size", format_args!("{:#x}", attr.max_mr_size()));
    lines.field(1, "page_size_cap", format_args!("{:#x}", attr.page_size_cap()));
    lines.field(1, "max_qp", attr.max_qp());
    lines.field(1, "max_qp_wr", attr.max_qp_wr());
    let cap_flags = attr.raw().orig_attr.device_cap_flags;
    lines.field(1, "device_cap_flags", format_args!("0x{cap_flags:08x}"));
    flags::all(lines, cap_flags, flags::DEVICE);
    lines.field(1, "max_sge", attr.max_sge());
    lines.field(1, "max_sge_rd", attr.max_sge_rd());
    lines.field(1, "max_cq", attr.max_cq());
    lines.field(1, "max_cqe", attr.max_cqe());
    lines.field(1, "max_mr", attr.max_mr());
    lines.field(1, "max_pd", attr.max_pd());
    lines.field(1, "max_qp_rd_atom", attr.max_qp_rd_atom());
    lines.field(1, "max_ee_rd_atom", attr.max_ee_rd_atom());
    lines.field(1, "max_res_rd_atom", attr.max_res_rd_atom());
    lines.field(1, "max_qp_init_rd_atom", attr.max_qp_init_rd_atom());
    lines.field(1, "max_ee_init_rd_atom", attr.max_ee_init_rd_atom());
    let atomic = attr.atomic_cap();
    lines.field(1, "atomic_cap", format_args!("{} ({})", atomic_name(atomic), atomic.raw()));
    lines.field(1, "max_ee", attr.max_ee());
    lines.field(1, "max_rdd", attr.max_rdd());
    lines.field(1, "max_mw", attr.max_mw());
    lines.field(1, "max_raw_ipv6_qp", attr.max_raw_ipv6_qp());
    lines.field(1, "max_raw_ethy_qp", attr.max_raw_ethy_qp());
    lines.field(1, "max_mcast_grp", attr.max_mcast_grp());
    lines.field(1, "max_mcast_qp_attach", attr.max_mcast_qp_attach());
    lines.field(1, "max_total_mcast_qp_attach", attr.max_total_mcast_qp_attach());
    lines.field(1, "max_ah", attr.max_ah());
    lines.field(1, "max_fmr", attr.max_fmr());
    if attr.max_fmr() != 0 {
        lines.field(1, "max_map_per_fmr", attr.max_map_per_fmr());
    }
    lines.field(1, "max_srq", attr.max_srq());
    if attr.max_srq() != 0 {
        lines.field(1, "max_srq_wr", attr.max_srq_wr());
        lines.field(1, "max_srq_sge", attr.max_srq_sge());
    }
    lines.field(1, "max_pkeys", attr.max_pkeys());
    lines.field(1, "local_ca_ack_delay", attr.local_ca_ack_delay());
}

fn atomic_name(atomic: AtomicCapability) -> &'static str {
    match atomic {
        AtomicCapability::None => "ATOMIC_NONE",
        AtomicCapability::Hca => "ATOMIC_HCA",
        AtomicCapability::Glob => "ATOMIC_GLOB",
        _ => "invalid atomic capability",
    }
}
