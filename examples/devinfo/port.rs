//! The ports of a device.

use std::net::Ipv6Addr;

use sideway::ibverbs::address::{GidEntry, GidType};
use sideway::ibverbs::device::TransportType;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::port::{LinkLayer, Mtu, PhysicalState, PortAttr, PortState};

use super::OutputLines;
use crate::program::Failure;

/// The lines about one port.
pub(super) fn all(
    lines: &mut OutputLines,
    context: &DeviceContext,
    transport: TransportType,
    number: u8,
    verbose: bool,
) -> Result<(), Failure> {
    let attr = context.query_port(number)?;
    lines.line(&format!("\t\tport:\t{number}"));
    state(lines, &attr);
    if verbose {
        limits(lines, &attr);
        if transport == TransportType::InfiniBand {
            let state = attr.phys_state();
            lines.field(3, "phys_state", format_args!("{} ({})", physical_state_name(state), state.raw()));
        }
        for entry in context.query_gid_table()? {
            if entry.port_num() == u32::from(number) {
                gid(lines, &entry, attr.link_layer());
            }
        }
    }
    lines.line("");
    Ok(())
}

/// The lines that are always printed.
fn state(lines: &mut OutputLines, attr: &PortAttr) {
    let state = attr.port_state();
    lines.field(3, "state", format_args!("{} ({})", state_name(state), state.raw()));
    for (label, mtu) in [("max_mtu", attr.max_mtu()), ("active_mtu", attr.active_mtu())] {
        lines.field(3, label, format_args!("{} ({})", mtu_name(mtu), mtu.raw()));
    }
    lines.field(3, "sm_lid", attr.sm_lid());
    lines.field(3, "port_lid", attr.lid());
    lines.field(3, "port_lmc", format_args!("0x{:02x}", attr.lmc()));
    let link_layer = match attr.link_layer() {
        LinkLayer::Unspecified => "Unspecified",
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        _ => "Unknown",
    };
    lines.field(3, "link_layer", link_layer);
}

fn limits(lines: &mut OutputLines, attr: &PortAttr) {
    let raw = attr.raw();
    lines.field(3, "max_msg_sz", format_args!("{:#x}", attr.max_msg_sz()));
    lines.field(3, "port_cap_flags", format_args!("0x{:08x}", attr.port_cap_flags()));
    lines.field(3, "port_cap_flags2", format_args!("0x{:04x}", raw.port_cap_flags2));
    lines.field(3, "max_vl_num", format_args!("{} ({})", virtual_lanes(raw.max_vl_num), raw.max_vl_num));
    lines.field(3, "bad_pkey_cntr", format_args!("{:#x}", raw.bad_pkey_cntr));
    lines.field(3, "qkey_viol_cntr", format_args!("{:#x}", raw.qkey_viol_cntr));
    lines.field(3, "sm_sl", raw.sm_sl);
    lines.field(3, "pkey_tbl_len", attr.pkey_tbl_len());
    lines.field(3, "gid_tbl_len", attr.gid_tbl_len());
    lines.field(3, "subnet_timeout", raw.subnet_timeout);
    lines.field(3, "init_type_reply", raw.init_type_reply);
    let width = attr.active_width();
    let lanes = width.lanes().map_or_else(|| "invalid width".to_owned(), |lanes| lanes.to_string());
    lines.field(3, "active_width", format_args!("{lanes}X ({})", width.raw()));
    let speed = attr.active_speed();
    let gbps = speed.gbps().map_or_else(|| "invalid speed".to_owned(), |gbps| format!("{gbps:.1} Gbps"));
    lines.field(3, "active_speed", format_args!("{gbps} ({})", speed.raw()));
}

/// RoCE version 2 GIDs are printed as IP addresses, others with all digits; unknown types are left
/// out.
fn gid(lines: &mut OutputLines, entry: &GidEntry, link_layer: LinkLayer) {
    // The C program takes a GID without an interface identifier for an empty entry.
    if entry.gid().raw[8..] == [0; 8] {
        return;
    }
    let (text, name) = match entry.gid_type() {
        GidType::RoceV2 => (Ipv6Addr::from(entry.gid()).to_string(), "RoCE v2"),
        GidType::RoceV1 | GidType::InfiniBand => (entry.gid().to_string(), "RoCE v1"),
        _ => return,
    };
    let name = if link_layer == LinkLayer::Ethernet { format!(", {name}") } else { String::new() };
    lines.field(3, &format!("GID[{:3}]", entry.gid_index()), format_args!("{text}{name}"));
}

fn state_name(state: PortState) -> &'static str {
    match state {
        PortState::Down => "PORT_DOWN",
        PortState::Initialize => "PORT_INIT",
        PortState::Armed => "PORT_ARMED",
        PortState::Active => "PORT_ACTIVE",
        _ => "invalid state",
    }
}

fn mtu_name(mtu: Mtu) -> String {
    mtu.bytes().map_or_else(|| "invalid MTU".to_owned(), |bytes| bytes.to_string())
}

/// The number of virtual lanes of a port, from its code.
fn virtual_lanes(code: u8) -> &'static str {
    match code {
        1 => "1",
        2 => "2",
        3 => "4",
        4 => "8",
        5 => "15",
        _ => "invalid value",
    }
}

/// The C program's names, with its spelling.
fn physical_state_name(state: PhysicalState) -> &'static str {
    match state {
        PhysicalState::Sleep => "SLEEP",
        PhysicalState::Polling => "POLLING",
        PhysicalState::Disabled => "DISABLED",
        PhysicalState::PortConfigurationTraining => "PORT_CONFIGURATION TRAINNING",
        PhysicalState::LinkUp => "LINK_UP",
        PhysicalState::LinkErrorRecovery => "LINK_ERROR_RECOVERY",
        PhysicalState::PhyTest => "PHY TEST",
        _ => "invalid physical state",
    }
}
