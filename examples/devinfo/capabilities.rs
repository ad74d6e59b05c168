//! Optional features. The C program has the same irregular tabs and blank lines.

use sideway::ibverbs::device_attr::DeviceAttr;
use sideway::sys::types::ibv_device_attr_ex;

use super::{OutputLines, flags};

/// All features, in the order of the C program.
pub(super) fn all(lines: &mut OutputLines, attr: &DeviceAttr) {
    let raw = attr.raw();
    on_demand_paging(lines, raw);
    match attr.completion_timestamp_mask() {
        0 => lines.line("\tcompletion_timestamp_mask not supported"),
        mask => lines.line(&format!("\tcompletion timestamp_mask:\t\t\t0x{mask:016x}")),
    }
    match attr.hca_core_clock() {
        0 => lines.line("\tcore clock not supported"),
        clock => lines.field(1, "hca_core_clock", format_args!("{clock}kHZ")),
    }
    if raw.raw_packet_caps != 0 {
        lines.line("\traw packet caps:");
        flags::known(lines, raw.raw_packet_caps, flags::RAW_PACKET);
    }
    lines.field(1, "device_cap_flags_ex", format_args!("0x{:X}", raw.device_cap_flags_ex));
    flags::all(lines, raw.device_cap_flags_ex & 0xffff_ffff_0000_0000, flags::DEVICE_EX);
    segmentation_offload(lines, raw);
    receive_side_scaling(lines, raw);
    lines.field(1, "max_wq_type_rq", raw.max_wq_type_rq);
    packet_pacing(lines, raw);
    tag_matching(lines, raw);
    moderation(lines, raw);
    if raw.max_dm_size != 0 {
        lines.line(&format!("\tmaximum available device memory:\t{}Bytes\n", raw.max_dm_size));
    }
}

fn on_demand_paging(lines: &mut OutputLines, raw: &ibv_device_attr_ex) {
    lines.line("\tgeneral_odp_caps:");
    flags::all(lines, raw.odp_caps.general_caps, flags::ON_DEMAND);
    let transports = &raw.odp_caps.per_transport_caps;
    for (name, value) in [
        ("rc", transports.rc_odp_caps),
        ("uc", transports.uc_odp_caps),
        ("ud", transports.ud_odp_caps),
        ("xrc", raw.xrc_odp_caps),
    ] {
        lines.line(&format!("\t{name}_odp_caps:"));
        if value == 0 {
            lines.line("\t\t\t\t\tNO SUPPORT");
        }
        flags::all(lines, value, flags::ON_DEMAND_TRANSPORT);
    }
}

fn segmentation_offload(lines: &mut OutputLines, raw: &ibv_device_attr_ex) {
    let caps = &raw.tso_caps;
    lines.line("\ttso_caps:");
    lines.line(&format!("\t\tmax_tso:\t\t\t{}", caps.max_tso.cast_signed()));
    if caps.max_tso != 0 {
        lines.line("\t\tsupported_qp:");
        flags::all(lines, caps.supported_qpts, flags::QP_TYPES);
    }
}

fn receive_side_scaling(lines: &mut OutputLines, raw: &ibv_device_attr_ex) {
    let caps = &raw.rss_caps;
    lines.line("\trss_caps:");
    lines.line(&format!("\t\tmax_rwq_indirection_tables:\t\t\t{}", caps.max_rwq_indirection_tables));
    lines.line(&format!("\t\tmax_rwq_indirection_table_size:\t\t\t{}", caps.max_rwq_indirection_table_size));
    lines.line(&format!("\t\trx_hash_function:\t\t\t\t{:#x}", caps.rx_hash_function));
    lines.line(&format!("\t\trx_hash_fields_mask:\t\t\t\t0x{:X}", caps.rx_hash_fields_mask));
    if caps.supported_qpts != 0 {
        lines.line("\t\tsupported_qp:");
        flags::all(lines, caps.supported_qpts, flags::QP_TYPES);
    }
}

fn packet_pacing(lines: &mut OutputLines, raw: &ibv_device_attr_ex) {
    let caps = &raw.packet_pacing_caps;
    lines.line("\tpacket_pacing_caps:");
    lines.line(&format!("\t\tqp_rate_limit_min:\t{}kbps", caps.qp_rate_limit_min));
    lines.line(&format!("\t\tqp_rate_limit_max:\t{}kbps", caps.qp_rate_limit_max));
    if caps.qp_rate_limit_max != 0 {
        lines.line("\t\tsupported_qp:");
        flags::all(lines, caps.supported_qpts, flags::PACED_QP_TYPES);
    }
}

fn tag_matching(lines: &mut OutputLines, raw: &ibv_device_attr_ex) {
    let caps = &raw.tm_caps;
    if caps.max_num_tags == 0 {
        return lines.line("\ttag matching not supported");
    }
    lines.field(1, "max_rndv_hdr_size", caps.max_rndv_hdr_size);
    lines.field(1, "max_num_tags", caps.max_num_tags);
    lines.field(1, "max_ops", caps.max_ops);
    lines.field(1, "max_sge", caps.max_sge);
    lines.line("\tflags:");
    flags::known(lines, caps.flags, flags::TAG_MATCHING);
}

fn moderation(lines: &mut OutputLines, raw: &ibv_device_attr_ex) {
    let caps = &raw.cq_mod_caps;
    if caps.max_cq_count != 0 && caps.max_cq_period != 0 {
        lines.line("\n\tcq moderation caps:");
        lines.line(&format!("\t\tmax_cq_count:\t{}", caps.max_cq_count));
        lines.line(&format!("\t\tmax_cq_period:\t{} us\n", caps.max_cq_period));
    }
}
