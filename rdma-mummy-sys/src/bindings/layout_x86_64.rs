// By `cargo xtask bindings` of rdma-core 65.0-1.1, bindgen 0.73.2, libclang 18.1.1. Do not edit.

//! Sizes, alignments and offsets of every struct on x86_64.

use super::types::*;
const _: () = assert!(size_of::<mlx5_wqe_ctrl_seg>() == 16);
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ib_uverbs_flow_action_esp_keymat_aes_gcm",
    ][::core::mem::size_of::<ib_uverbs_flow_action_esp_keymat_aes_gcm>() - 56usize];
    [
        "Alignment of ib_uverbs_flow_action_esp_keymat_aes_gcm",
    ][::core::mem::align_of::<ib_uverbs_flow_action_esp_keymat_aes_gcm>() - 8usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_keymat_aes_gcm::iv",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp_keymat_aes_gcm, iv) - 0usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_keymat_aes_gcm::iv_algo",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp_keymat_aes_gcm, iv_algo)
        - 8usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_keymat_aes_gcm::salt",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp_keymat_aes_gcm, salt) - 12usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_keymat_aes_gcm::icv_len",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp_keymat_aes_gcm, icv_len)
        - 16usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_keymat_aes_gcm::key_len",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp_keymat_aes_gcm, key_len)
        - 20usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_keymat_aes_gcm::aes_key",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp_keymat_aes_gcm, aes_key)
        - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ib_uverbs_flow_action_esp_replay_bmp",
    ][::core::mem::size_of::<ib_uverbs_flow_action_esp_replay_bmp>() - 4usize];
    [
        "Alignment of ib_uverbs_flow_action_esp_replay_bmp",
    ][::core::mem::align_of::<ib_uverbs_flow_action_esp_replay_bmp>() - 4usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_replay_bmp::size",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp_replay_bmp, size) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ib_uverbs_flow_action_esp_encap__bindgen_ty_1",
    ][::core::mem::size_of::<ib_uverbs_flow_action_esp_encap__bindgen_ty_1>() - 8usize];
    [
        "Alignment of ib_uverbs_flow_action_esp_encap__bindgen_ty_1",
    ][::core::mem::align_of::<ib_uverbs_flow_action_esp_encap__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_encap__bindgen_ty_1::val_ptr",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp_encap__bindgen_ty_1, val_ptr)
        - 0usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_encap__bindgen_ty_1::val_ptr_data_u64",
    ][::core::mem::offset_of!(
        ib_uverbs_flow_action_esp_encap__bindgen_ty_1, val_ptr_data_u64
    ) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ib_uverbs_flow_action_esp_encap__bindgen_ty_2",
    ][::core::mem::size_of::<ib_uverbs_flow_action_esp_encap__bindgen_ty_2>() - 8usize];
    [
        "Alignment of ib_uverbs_flow_action_esp_encap__bindgen_ty_2",
    ][::core::mem::align_of::<ib_uverbs_flow_action_esp_encap__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_encap__bindgen_ty_2::next_ptr",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp_encap__bindgen_ty_2, next_ptr)
        - 0usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_encap__bindgen_ty_2::next_ptr_data_u64",
    ][::core::mem::offset_of!(
        ib_uverbs_flow_action_esp_encap__bindgen_ty_2, next_ptr_data_u64
    ) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ib_uverbs_flow_action_esp_encap",
    ][::core::mem::size_of::<ib_uverbs_flow_action_esp_encap>() - 24usize];
    [
        "Alignment of ib_uverbs_flow_action_esp_encap",
    ][::core::mem::align_of::<ib_uverbs_flow_action_esp_encap>() - 8usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_encap::len",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp_encap, len) - 16usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp_encap::type_",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp_encap, type_) - 18usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ib_uverbs_flow_action_esp",
    ][::core::mem::size_of::<ib_uverbs_flow_action_esp>() - 24usize];
    [
        "Alignment of ib_uverbs_flow_action_esp",
    ][::core::mem::align_of::<ib_uverbs_flow_action_esp>() - 8usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp::spi",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp, spi) - 0usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp::seq",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp, seq) - 4usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp::tfc_pad",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp, tfc_pad) - 8usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp::flags",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp, flags) - 12usize];
    [
        "Offset of field: ib_uverbs_flow_action_esp::hard_limit_pkts",
    ][::core::mem::offset_of!(ib_uverbs_flow_action_esp, hard_limit_pkts) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_gid__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_gid__bindgen_ty_1>() - 16usize];
    [
        "Alignment of ibv_gid__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_gid__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ibv_gid__bindgen_ty_1::subnet_prefix",
    ][::core::mem::offset_of!(ibv_gid__bindgen_ty_1, subnet_prefix) - 0usize];
    [
        "Offset of field: ibv_gid__bindgen_ty_1::interface_id",
    ][::core::mem::offset_of!(ibv_gid__bindgen_ty_1, interface_id) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_gid"][::core::mem::size_of::<ibv_gid>() - 16usize];
    ["Alignment of ibv_gid"][::core::mem::align_of::<ibv_gid>() - 8usize];
    ["Offset of field: ibv_gid::raw"][::core::mem::offset_of!(ibv_gid, raw) - 0usize];
    [
        "Offset of field: ibv_gid::global",
    ][::core::mem::offset_of!(ibv_gid, global) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_gid_entry"][::core::mem::size_of::<ibv_gid_entry>() - 32usize];
    ["Alignment of ibv_gid_entry"][::core::mem::align_of::<ibv_gid_entry>() - 8usize];
    [
        "Offset of field: ibv_gid_entry::gid",
    ][::core::mem::offset_of!(ibv_gid_entry, gid) - 0usize];
    [
        "Offset of field: ibv_gid_entry::gid_index",
    ][::core::mem::offset_of!(ibv_gid_entry, gid_index) - 16usize];
    [
        "Offset of field: ibv_gid_entry::port_num",
    ][::core::mem::offset_of!(ibv_gid_entry, port_num) - 20usize];
    [
        "Offset of field: ibv_gid_entry::gid_type",
    ][::core::mem::offset_of!(ibv_gid_entry, gid_type) - 24usize];
    [
        "Offset of field: ibv_gid_entry::ndev_ifindex",
    ][::core::mem::offset_of!(ibv_gid_entry, ndev_ifindex) - 28usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_alloc_dm_attr"][::core::mem::size_of::<ibv_alloc_dm_attr>() - 16usize];
    [
        "Alignment of ibv_alloc_dm_attr",
    ][::core::mem::align_of::<ibv_alloc_dm_attr>() - 8usize];
    [
        "Offset of field: ibv_alloc_dm_attr::length",
    ][::core::mem::offset_of!(ibv_alloc_dm_attr, length) - 0usize];
    [
        "Offset of field: ibv_alloc_dm_attr::log_align_req",
    ][::core::mem::offset_of!(ibv_alloc_dm_attr, log_align_req) - 8usize];
    [
        "Offset of field: ibv_alloc_dm_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_alloc_dm_attr, comp_mask) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_dm"][::core::mem::size_of::<ibv_dm>() - 32usize];
    ["Alignment of ibv_dm"][::core::mem::align_of::<ibv_dm>() - 8usize];
    [
        "Offset of field: ibv_dm::context",
    ][::core::mem::offset_of!(ibv_dm, context) - 0usize];
    [
        "Offset of field: ibv_dm::memcpy_to_dm",
    ][::core::mem::offset_of!(ibv_dm, memcpy_to_dm) - 8usize];
    [
        "Offset of field: ibv_dm::memcpy_from_dm",
    ][::core::mem::offset_of!(ibv_dm, memcpy_from_dm) - 16usize];
    [
        "Offset of field: ibv_dm::comp_mask",
    ][::core::mem::offset_of!(ibv_dm, comp_mask) - 24usize];
    [
        "Offset of field: ibv_dm::handle",
    ][::core::mem::offset_of!(ibv_dm, handle) - 28usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_device_attr"][::core::mem::size_of::<ibv_device_attr>() - 232usize];
    [
        "Alignment of ibv_device_attr",
    ][::core::mem::align_of::<ibv_device_attr>() - 8usize];
    [
        "Offset of field: ibv_device_attr::fw_ver",
    ][::core::mem::offset_of!(ibv_device_attr, fw_ver) - 0usize];
    [
        "Offset of field: ibv_device_attr::node_guid",
    ][::core::mem::offset_of!(ibv_device_attr, node_guid) - 64usize];
    [
        "Offset of field: ibv_device_attr::sys_image_guid",
    ][::core::mem::offset_of!(ibv_device_attr, sys_image_guid) - 72usize];
    [
        "Offset of field: ibv_device_attr::max_mr_size",
    ][::core::mem::offset_of!(ibv_device_attr, max_mr_size) - 80usize];
    [
        "Offset of field: ibv_device_attr::page_size_cap",
    ][::core::mem::offset_of!(ibv_device_attr, page_size_cap) - 88usize];
    [
        "Offset of field: ibv_device_attr::vendor_id",
    ][::core::mem::offset_of!(ibv_device_attr, vendor_id) - 96usize];
    [
        "Offset of field: ibv_device_attr::vendor_part_id",
    ][::core::mem::offset_of!(ibv_device_attr, vendor_part_id) - 100usize];
    [
        "Offset of field: ibv_device_attr::hw_ver",
    ][::core::mem::offset_of!(ibv_device_attr, hw_ver) - 104usize];
    [
        "Offset of field: ibv_device_attr::max_qp",
    ][::core::mem::offset_of!(ibv_device_attr, max_qp) - 108usize];
    [
        "Offset of field: ibv_device_attr::max_qp_wr",
    ][::core::mem::offset_of!(ibv_device_attr, max_qp_wr) - 112usize];
    [
        "Offset of field: ibv_device_attr::device_cap_flags",
    ][::core::mem::offset_of!(ibv_device_attr, device_cap_flags) - 116usize];
    [
        "Offset of field: ibv_device_attr::max_sge",
    ][::core::mem::offset_of!(ibv_device_attr, max_sge) - 120usize];
    [
        "Offset of field: ibv_device_attr::max_sge_rd",
    ][::core::mem::offset_of!(ibv_device_attr, max_sge_rd) - 124usize];
    [
        "Offset of field: ibv_device_attr::max_cq",
    ][::core::mem::offset_of!(ibv_device_attr, max_cq) - 128usize];
    [
        "Offset of field: ibv_device_attr::max_cqe",
    ][::core::mem::offset_of!(ibv_device_attr, max_cqe) - 132usize];
    [
        "Offset of field: ibv_device_attr::max_mr",
    ][::core::mem::offset_of!(ibv_device_attr, max_mr) - 136usize];
    [
        "Offset of field: ibv_device_attr::max_pd",
    ][::core::mem::offset_of!(ibv_device_attr, max_pd) - 140usize];
    [
        "Offset of field: ibv_device_attr::max_qp_rd_atom",
    ][::core::mem::offset_of!(ibv_device_attr, max_qp_rd_atom) - 144usize];
    [
        "Offset of field: ibv_device_attr::max_ee_rd_atom",
    ][::core::mem::offset_of!(ibv_device_attr, max_ee_rd_atom) - 148usize];
    [
        "Offset of field: ibv_device_attr::max_res_rd_atom",
    ][::core::mem::offset_of!(ibv_device_attr, max_res_rd_atom) - 152usize];
    [
        "Offset of field: ibv_device_attr::max_qp_init_rd_atom",
    ][::core::mem::offset_of!(ibv_device_attr, max_qp_init_rd_atom) - 156usize];
    [
        "Offset of field: ibv_device_attr::max_ee_init_rd_atom",
    ][::core::mem::offset_of!(ibv_device_attr, max_ee_init_rd_atom) - 160usize];
    [
        "Offset of field: ibv_device_attr::atomic_cap",
    ][::core::mem::offset_of!(ibv_device_attr, atomic_cap) - 164usize];
    [
        "Offset of field: ibv_device_attr::max_ee",
    ][::core::mem::offset_of!(ibv_device_attr, max_ee) - 168usize];
    [
        "Offset of field: ibv_device_attr::max_rdd",
    ][::core::mem::offset_of!(ibv_device_attr, max_rdd) - 172usize];
    [
        "Offset of field: ibv_device_attr::max_mw",
    ][::core::mem::offset_of!(ibv_device_attr, max_mw) - 176usize];
    [
        "Offset of field: ibv_device_attr::max_raw_ipv6_qp",
    ][::core::mem::offset_of!(ibv_device_attr, max_raw_ipv6_qp) - 180usize];
    [
        "Offset of field: ibv_device_attr::max_raw_ethy_qp",
    ][::core::mem::offset_of!(ibv_device_attr, max_raw_ethy_qp) - 184usize];
    [
        "Offset of field: ibv_device_attr::max_mcast_grp",
    ][::core::mem::offset_of!(ibv_device_attr, max_mcast_grp) - 188usize];
    [
        "Offset of field: ibv_device_attr::max_mcast_qp_attach",
    ][::core::mem::offset_of!(ibv_device_attr, max_mcast_qp_attach) - 192usize];
    [
        "Offset of field: ibv_device_attr::max_total_mcast_qp_attach",
    ][::core::mem::offset_of!(ibv_device_attr, max_total_mcast_qp_attach) - 196usize];
    [
        "Offset of field: ibv_device_attr::max_ah",
    ][::core::mem::offset_of!(ibv_device_attr, max_ah) - 200usize];
    [
        "Offset of field: ibv_device_attr::max_fmr",
    ][::core::mem::offset_of!(ibv_device_attr, max_fmr) - 204usize];
    [
        "Offset of field: ibv_device_attr::max_map_per_fmr",
    ][::core::mem::offset_of!(ibv_device_attr, max_map_per_fmr) - 208usize];
    [
        "Offset of field: ibv_device_attr::max_srq",
    ][::core::mem::offset_of!(ibv_device_attr, max_srq) - 212usize];
    [
        "Offset of field: ibv_device_attr::max_srq_wr",
    ][::core::mem::offset_of!(ibv_device_attr, max_srq_wr) - 216usize];
    [
        "Offset of field: ibv_device_attr::max_srq_sge",
    ][::core::mem::offset_of!(ibv_device_attr, max_srq_sge) - 220usize];
    [
        "Offset of field: ibv_device_attr::max_pkeys",
    ][::core::mem::offset_of!(ibv_device_attr, max_pkeys) - 224usize];
    [
        "Offset of field: ibv_device_attr::local_ca_ack_delay",
    ][::core::mem::offset_of!(ibv_device_attr, local_ca_ack_delay) - 226usize];
    [
        "Offset of field: ibv_device_attr::phys_port_cnt",
    ][::core::mem::offset_of!(ibv_device_attr, phys_port_cnt) - 227usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_query_device_ex_input",
    ][::core::mem::size_of::<ibv_query_device_ex_input>() - 4usize];
    [
        "Alignment of ibv_query_device_ex_input",
    ][::core::mem::align_of::<ibv_query_device_ex_input>() - 4usize];
    [
        "Offset of field: ibv_query_device_ex_input::comp_mask",
    ][::core::mem::offset_of!(ibv_query_device_ex_input, comp_mask) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_odp_caps__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_odp_caps__bindgen_ty_1>() - 12usize];
    [
        "Alignment of ibv_odp_caps__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_odp_caps__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: ibv_odp_caps__bindgen_ty_1::rc_odp_caps",
    ][::core::mem::offset_of!(ibv_odp_caps__bindgen_ty_1, rc_odp_caps) - 0usize];
    [
        "Offset of field: ibv_odp_caps__bindgen_ty_1::uc_odp_caps",
    ][::core::mem::offset_of!(ibv_odp_caps__bindgen_ty_1, uc_odp_caps) - 4usize];
    [
        "Offset of field: ibv_odp_caps__bindgen_ty_1::ud_odp_caps",
    ][::core::mem::offset_of!(ibv_odp_caps__bindgen_ty_1, ud_odp_caps) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_odp_caps"][::core::mem::size_of::<ibv_odp_caps>() - 24usize];
    ["Alignment of ibv_odp_caps"][::core::mem::align_of::<ibv_odp_caps>() - 8usize];
    [
        "Offset of field: ibv_odp_caps::general_caps",
    ][::core::mem::offset_of!(ibv_odp_caps, general_caps) - 0usize];
    [
        "Offset of field: ibv_odp_caps::per_transport_caps",
    ][::core::mem::offset_of!(ibv_odp_caps, per_transport_caps) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_tso_caps"][::core::mem::size_of::<ibv_tso_caps>() - 8usize];
    ["Alignment of ibv_tso_caps"][::core::mem::align_of::<ibv_tso_caps>() - 4usize];
    [
        "Offset of field: ibv_tso_caps::max_tso",
    ][::core::mem::offset_of!(ibv_tso_caps, max_tso) - 0usize];
    [
        "Offset of field: ibv_tso_caps::supported_qpts",
    ][::core::mem::offset_of!(ibv_tso_caps, supported_qpts) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_rss_caps"][::core::mem::size_of::<ibv_rss_caps>() - 32usize];
    ["Alignment of ibv_rss_caps"][::core::mem::align_of::<ibv_rss_caps>() - 8usize];
    [
        "Offset of field: ibv_rss_caps::supported_qpts",
    ][::core::mem::offset_of!(ibv_rss_caps, supported_qpts) - 0usize];
    [
        "Offset of field: ibv_rss_caps::max_rwq_indirection_tables",
    ][::core::mem::offset_of!(ibv_rss_caps, max_rwq_indirection_tables) - 4usize];
    [
        "Offset of field: ibv_rss_caps::max_rwq_indirection_table_size",
    ][::core::mem::offset_of!(ibv_rss_caps, max_rwq_indirection_table_size) - 8usize];
    [
        "Offset of field: ibv_rss_caps::rx_hash_fields_mask",
    ][::core::mem::offset_of!(ibv_rss_caps, rx_hash_fields_mask) - 16usize];
    [
        "Offset of field: ibv_rss_caps::rx_hash_function",
    ][::core::mem::offset_of!(ibv_rss_caps, rx_hash_function) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_packet_pacing_caps",
    ][::core::mem::size_of::<ibv_packet_pacing_caps>() - 12usize];
    [
        "Alignment of ibv_packet_pacing_caps",
    ][::core::mem::align_of::<ibv_packet_pacing_caps>() - 4usize];
    [
        "Offset of field: ibv_packet_pacing_caps::qp_rate_limit_min",
    ][::core::mem::offset_of!(ibv_packet_pacing_caps, qp_rate_limit_min) - 0usize];
    [
        "Offset of field: ibv_packet_pacing_caps::qp_rate_limit_max",
    ][::core::mem::offset_of!(ibv_packet_pacing_caps, qp_rate_limit_max) - 4usize];
    [
        "Offset of field: ibv_packet_pacing_caps::supported_qpts",
    ][::core::mem::offset_of!(ibv_packet_pacing_caps, supported_qpts) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_tm_caps"][::core::mem::size_of::<ibv_tm_caps>() - 20usize];
    ["Alignment of ibv_tm_caps"][::core::mem::align_of::<ibv_tm_caps>() - 4usize];
    [
        "Offset of field: ibv_tm_caps::max_rndv_hdr_size",
    ][::core::mem::offset_of!(ibv_tm_caps, max_rndv_hdr_size) - 0usize];
    [
        "Offset of field: ibv_tm_caps::max_num_tags",
    ][::core::mem::offset_of!(ibv_tm_caps, max_num_tags) - 4usize];
    [
        "Offset of field: ibv_tm_caps::flags",
    ][::core::mem::offset_of!(ibv_tm_caps, flags) - 8usize];
    [
        "Offset of field: ibv_tm_caps::max_ops",
    ][::core::mem::offset_of!(ibv_tm_caps, max_ops) - 12usize];
    [
        "Offset of field: ibv_tm_caps::max_sge",
    ][::core::mem::offset_of!(ibv_tm_caps, max_sge) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_cq_moderation_caps",
    ][::core::mem::size_of::<ibv_cq_moderation_caps>() - 4usize];
    [
        "Alignment of ibv_cq_moderation_caps",
    ][::core::mem::align_of::<ibv_cq_moderation_caps>() - 2usize];
    [
        "Offset of field: ibv_cq_moderation_caps::max_cq_count",
    ][::core::mem::offset_of!(ibv_cq_moderation_caps, max_cq_count) - 0usize];
    [
        "Offset of field: ibv_cq_moderation_caps::max_cq_period",
    ][::core::mem::offset_of!(ibv_cq_moderation_caps, max_cq_period) - 2usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_pci_atomic_caps",
    ][::core::mem::size_of::<ibv_pci_atomic_caps>() - 6usize];
    [
        "Alignment of ibv_pci_atomic_caps",
    ][::core::mem::align_of::<ibv_pci_atomic_caps>() - 2usize];
    [
        "Offset of field: ibv_pci_atomic_caps::fetch_add",
    ][::core::mem::offset_of!(ibv_pci_atomic_caps, fetch_add) - 0usize];
    [
        "Offset of field: ibv_pci_atomic_caps::swap",
    ][::core::mem::offset_of!(ibv_pci_atomic_caps, swap) - 2usize];
    [
        "Offset of field: ibv_pci_atomic_caps::compare_swap",
    ][::core::mem::offset_of!(ibv_pci_atomic_caps, compare_swap) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_device_attr_ex",
    ][::core::mem::size_of::<ibv_device_attr_ex>() - 400usize];
    [
        "Alignment of ibv_device_attr_ex",
    ][::core::mem::align_of::<ibv_device_attr_ex>() - 8usize];
    [
        "Offset of field: ibv_device_attr_ex::orig_attr",
    ][::core::mem::offset_of!(ibv_device_attr_ex, orig_attr) - 0usize];
    [
        "Offset of field: ibv_device_attr_ex::comp_mask",
    ][::core::mem::offset_of!(ibv_device_attr_ex, comp_mask) - 232usize];
    [
        "Offset of field: ibv_device_attr_ex::odp_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, odp_caps) - 240usize];
    [
        "Offset of field: ibv_device_attr_ex::completion_timestamp_mask",
    ][::core::mem::offset_of!(ibv_device_attr_ex, completion_timestamp_mask) - 264usize];
    [
        "Offset of field: ibv_device_attr_ex::hca_core_clock",
    ][::core::mem::offset_of!(ibv_device_attr_ex, hca_core_clock) - 272usize];
    [
        "Offset of field: ibv_device_attr_ex::device_cap_flags_ex",
    ][::core::mem::offset_of!(ibv_device_attr_ex, device_cap_flags_ex) - 280usize];
    [
        "Offset of field: ibv_device_attr_ex::tso_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, tso_caps) - 288usize];
    [
        "Offset of field: ibv_device_attr_ex::rss_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, rss_caps) - 296usize];
    [
        "Offset of field: ibv_device_attr_ex::max_wq_type_rq",
    ][::core::mem::offset_of!(ibv_device_attr_ex, max_wq_type_rq) - 328usize];
    [
        "Offset of field: ibv_device_attr_ex::packet_pacing_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, packet_pacing_caps) - 332usize];
    [
        "Offset of field: ibv_device_attr_ex::raw_packet_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, raw_packet_caps) - 344usize];
    [
        "Offset of field: ibv_device_attr_ex::tm_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, tm_caps) - 348usize];
    [
        "Offset of field: ibv_device_attr_ex::cq_mod_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, cq_mod_caps) - 368usize];
    [
        "Offset of field: ibv_device_attr_ex::max_dm_size",
    ][::core::mem::offset_of!(ibv_device_attr_ex, max_dm_size) - 376usize];
    [
        "Offset of field: ibv_device_attr_ex::pci_atomic_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, pci_atomic_caps) - 384usize];
    [
        "Offset of field: ibv_device_attr_ex::xrc_odp_caps",
    ][::core::mem::offset_of!(ibv_device_attr_ex, xrc_odp_caps) - 392usize];
    [
        "Offset of field: ibv_device_attr_ex::phys_port_cnt_ex",
    ][::core::mem::offset_of!(ibv_device_attr_ex, phys_port_cnt_ex) - 396usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_port_attr"][::core::mem::size_of::<ibv_port_attr>() - 56usize];
    ["Alignment of ibv_port_attr"][::core::mem::align_of::<ibv_port_attr>() - 4usize];
    [
        "Offset of field: ibv_port_attr::state",
    ][::core::mem::offset_of!(ibv_port_attr, state) - 0usize];
    [
        "Offset of field: ibv_port_attr::max_mtu",
    ][::core::mem::offset_of!(ibv_port_attr, max_mtu) - 4usize];
    [
        "Offset of field: ibv_port_attr::active_mtu",
    ][::core::mem::offset_of!(ibv_port_attr, active_mtu) - 8usize];
    [
        "Offset of field: ibv_port_attr::gid_tbl_len",
    ][::core::mem::offset_of!(ibv_port_attr, gid_tbl_len) - 12usize];
    [
        "Offset of field: ibv_port_attr::port_cap_flags",
    ][::core::mem::offset_of!(ibv_port_attr, port_cap_flags) - 16usize];
    [
        "Offset of field: ibv_port_attr::max_msg_sz",
    ][::core::mem::offset_of!(ibv_port_attr, max_msg_sz) - 20usize];
    [
        "Offset of field: ibv_port_attr::bad_pkey_cntr",
    ][::core::mem::offset_of!(ibv_port_attr, bad_pkey_cntr) - 24usize];
    [
        "Offset of field: ibv_port_attr::qkey_viol_cntr",
    ][::core::mem::offset_of!(ibv_port_attr, qkey_viol_cntr) - 28usize];
    [
        "Offset of field: ibv_port_attr::pkey_tbl_len",
    ][::core::mem::offset_of!(ibv_port_attr, pkey_tbl_len) - 32usize];
    [
        "Offset of field: ibv_port_attr::lid",
    ][::core::mem::offset_of!(ibv_port_attr, lid) - 34usize];
    [
        "Offset of field: ibv_port_attr::sm_lid",
    ][::core::mem::offset_of!(ibv_port_attr, sm_lid) - 36usize];
    [
        "Offset of field: ibv_port_attr::lmc",
    ][::core::mem::offset_of!(ibv_port_attr, lmc) - 38usize];
    [
        "Offset of field: ibv_port_attr::max_vl_num",
    ][::core::mem::offset_of!(ibv_port_attr, max_vl_num) - 39usize];
    [
        "Offset of field: ibv_port_attr::sm_sl",
    ][::core::mem::offset_of!(ibv_port_attr, sm_sl) - 40usize];
    [
        "Offset of field: ibv_port_attr::subnet_timeout",
    ][::core::mem::offset_of!(ibv_port_attr, subnet_timeout) - 41usize];
    [
        "Offset of field: ibv_port_attr::init_type_reply",
    ][::core::mem::offset_of!(ibv_port_attr, init_type_reply) - 42usize];
    [
        "Offset of field: ibv_port_attr::active_width",
    ][::core::mem::offset_of!(ibv_port_attr, active_width) - 43usize];
    [
        "Offset of field: ibv_port_attr::active_speed",
    ][::core::mem::offset_of!(ibv_port_attr, active_speed) - 44usize];
    [
        "Offset of field: ibv_port_attr::phys_state",
    ][::core::mem::offset_of!(ibv_port_attr, phys_state) - 45usize];
    [
        "Offset of field: ibv_port_attr::link_layer",
    ][::core::mem::offset_of!(ibv_port_attr, link_layer) - 46usize];
    [
        "Offset of field: ibv_port_attr::flags",
    ][::core::mem::offset_of!(ibv_port_attr, flags) - 47usize];
    [
        "Offset of field: ibv_port_attr::port_cap_flags2",
    ][::core::mem::offset_of!(ibv_port_attr, port_cap_flags2) - 48usize];
    [
        "Offset of field: ibv_port_attr::active_speed_ex",
    ][::core::mem::offset_of!(ibv_port_attr, active_speed_ex) - 52usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_async_event__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_async_event__bindgen_ty_1>() - 8usize];
    [
        "Alignment of ibv_async_event__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_async_event__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ibv_async_event__bindgen_ty_1::cq",
    ][::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, cq) - 0usize];
    [
        "Offset of field: ibv_async_event__bindgen_ty_1::qp",
    ][::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, qp) - 0usize];
    [
        "Offset of field: ibv_async_event__bindgen_ty_1::srq",
    ][::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, srq) - 0usize];
    [
        "Offset of field: ibv_async_event__bindgen_ty_1::wq",
    ][::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, wq) - 0usize];
    [
        "Offset of field: ibv_async_event__bindgen_ty_1::port_num",
    ][::core::mem::offset_of!(ibv_async_event__bindgen_ty_1, port_num) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_async_event"][::core::mem::size_of::<ibv_async_event>() - 16usize];
    [
        "Alignment of ibv_async_event",
    ][::core::mem::align_of::<ibv_async_event>() - 8usize];
    [
        "Offset of field: ibv_async_event::element",
    ][::core::mem::offset_of!(ibv_async_event, element) - 0usize];
    [
        "Offset of field: ibv_async_event::event_type",
    ][::core::mem::offset_of!(ibv_async_event, event_type) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_wc__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_wc__bindgen_ty_1>() - 4usize];
    [
        "Alignment of ibv_wc__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_wc__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: ibv_wc__bindgen_ty_1::imm_data",
    ][::core::mem::offset_of!(ibv_wc__bindgen_ty_1, imm_data) - 0usize];
    [
        "Offset of field: ibv_wc__bindgen_ty_1::invalidated_rkey",
    ][::core::mem::offset_of!(ibv_wc__bindgen_ty_1, invalidated_rkey) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wc"][::core::mem::size_of::<ibv_wc>() - 48usize];
    ["Alignment of ibv_wc"][::core::mem::align_of::<ibv_wc>() - 8usize];
    ["Offset of field: ibv_wc::wr_id"][::core::mem::offset_of!(ibv_wc, wr_id) - 0usize];
    [
        "Offset of field: ibv_wc::status",
    ][::core::mem::offset_of!(ibv_wc, status) - 8usize];
    [
        "Offset of field: ibv_wc::opcode",
    ][::core::mem::offset_of!(ibv_wc, opcode) - 12usize];
    [
        "Offset of field: ibv_wc::vendor_err",
    ][::core::mem::offset_of!(ibv_wc, vendor_err) - 16usize];
    [
        "Offset of field: ibv_wc::byte_len",
    ][::core::mem::offset_of!(ibv_wc, byte_len) - 20usize];
    [
        "Offset of field: ibv_wc::qp_num",
    ][::core::mem::offset_of!(ibv_wc, qp_num) - 28usize];
    [
        "Offset of field: ibv_wc::src_qp",
    ][::core::mem::offset_of!(ibv_wc, src_qp) - 32usize];
    [
        "Offset of field: ibv_wc::wc_flags",
    ][::core::mem::offset_of!(ibv_wc, wc_flags) - 36usize];
    [
        "Offset of field: ibv_wc::pkey_index",
    ][::core::mem::offset_of!(ibv_wc, pkey_index) - 40usize];
    ["Offset of field: ibv_wc::slid"][::core::mem::offset_of!(ibv_wc, slid) - 42usize];
    ["Offset of field: ibv_wc::sl"][::core::mem::offset_of!(ibv_wc, sl) - 44usize];
    [
        "Offset of field: ibv_wc::dlid_path_bits",
    ][::core::mem::offset_of!(ibv_wc, dlid_path_bits) - 45usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mw_bind_info"][::core::mem::size_of::<ibv_mw_bind_info>() - 32usize];
    [
        "Alignment of ibv_mw_bind_info",
    ][::core::mem::align_of::<ibv_mw_bind_info>() - 8usize];
    [
        "Offset of field: ibv_mw_bind_info::mr",
    ][::core::mem::offset_of!(ibv_mw_bind_info, mr) - 0usize];
    [
        "Offset of field: ibv_mw_bind_info::addr",
    ][::core::mem::offset_of!(ibv_mw_bind_info, addr) - 8usize];
    [
        "Offset of field: ibv_mw_bind_info::length",
    ][::core::mem::offset_of!(ibv_mw_bind_info, length) - 16usize];
    [
        "Offset of field: ibv_mw_bind_info::mw_access_flags",
    ][::core::mem::offset_of!(ibv_mw_bind_info, mw_access_flags) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_dmah"][::core::mem::size_of::<ibv_dmah>() - 8usize];
    ["Alignment of ibv_dmah"][::core::mem::align_of::<ibv_dmah>() - 8usize];
    [
        "Offset of field: ibv_dmah::context",
    ][::core::mem::offset_of!(ibv_dmah, context) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_pd"][::core::mem::size_of::<ibv_pd>() - 16usize];
    ["Alignment of ibv_pd"][::core::mem::align_of::<ibv_pd>() - 8usize];
    [
        "Offset of field: ibv_pd::context",
    ][::core::mem::offset_of!(ibv_pd, context) - 0usize];
    [
        "Offset of field: ibv_pd::handle",
    ][::core::mem::offset_of!(ibv_pd, handle) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_td_init_attr"][::core::mem::size_of::<ibv_td_init_attr>() - 4usize];
    [
        "Alignment of ibv_td_init_attr",
    ][::core::mem::align_of::<ibv_td_init_attr>() - 4usize];
    [
        "Offset of field: ibv_td_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_td_init_attr, comp_mask) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_td"][::core::mem::size_of::<ibv_td>() - 8usize];
    ["Alignment of ibv_td"][::core::mem::align_of::<ibv_td>() - 8usize];
    [
        "Offset of field: ibv_td::context",
    ][::core::mem::offset_of!(ibv_td, context) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_xrcd_init_attr",
    ][::core::mem::size_of::<ibv_xrcd_init_attr>() - 12usize];
    [
        "Alignment of ibv_xrcd_init_attr",
    ][::core::mem::align_of::<ibv_xrcd_init_attr>() - 4usize];
    [
        "Offset of field: ibv_xrcd_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_xrcd_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: ibv_xrcd_init_attr::fd",
    ][::core::mem::offset_of!(ibv_xrcd_init_attr, fd) - 4usize];
    [
        "Offset of field: ibv_xrcd_init_attr::oflags",
    ][::core::mem::offset_of!(ibv_xrcd_init_attr, oflags) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_xrcd"][::core::mem::size_of::<ibv_xrcd>() - 8usize];
    ["Alignment of ibv_xrcd"][::core::mem::align_of::<ibv_xrcd>() - 8usize];
    [
        "Offset of field: ibv_xrcd::context",
    ][::core::mem::offset_of!(ibv_xrcd, context) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mr"][::core::mem::size_of::<ibv_mr>() - 48usize];
    ["Alignment of ibv_mr"][::core::mem::align_of::<ibv_mr>() - 8usize];
    [
        "Offset of field: ibv_mr::context",
    ][::core::mem::offset_of!(ibv_mr, context) - 0usize];
    ["Offset of field: ibv_mr::pd"][::core::mem::offset_of!(ibv_mr, pd) - 8usize];
    ["Offset of field: ibv_mr::addr"][::core::mem::offset_of!(ibv_mr, addr) - 16usize];
    [
        "Offset of field: ibv_mr::length",
    ][::core::mem::offset_of!(ibv_mr, length) - 24usize];
    [
        "Offset of field: ibv_mr::handle",
    ][::core::mem::offset_of!(ibv_mr, handle) - 32usize];
    ["Offset of field: ibv_mr::lkey"][::core::mem::offset_of!(ibv_mr, lkey) - 36usize];
    ["Offset of field: ibv_mr::rkey"][::core::mem::offset_of!(ibv_mr, rkey) - 40usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mr_init_attr"][::core::mem::size_of::<ibv_mr_init_attr>() - 72usize];
    [
        "Alignment of ibv_mr_init_attr",
    ][::core::mem::align_of::<ibv_mr_init_attr>() - 8usize];
    [
        "Offset of field: ibv_mr_init_attr::length",
    ][::core::mem::offset_of!(ibv_mr_init_attr, length) - 0usize];
    [
        "Offset of field: ibv_mr_init_attr::access",
    ][::core::mem::offset_of!(ibv_mr_init_attr, access) - 8usize];
    [
        "Offset of field: ibv_mr_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_mr_init_attr, comp_mask) - 16usize];
    [
        "Offset of field: ibv_mr_init_attr::iova",
    ][::core::mem::offset_of!(ibv_mr_init_attr, iova) - 24usize];
    [
        "Offset of field: ibv_mr_init_attr::addr",
    ][::core::mem::offset_of!(ibv_mr_init_attr, addr) - 32usize];
    [
        "Offset of field: ibv_mr_init_attr::fd",
    ][::core::mem::offset_of!(ibv_mr_init_attr, fd) - 40usize];
    [
        "Offset of field: ibv_mr_init_attr::fd_offset",
    ][::core::mem::offset_of!(ibv_mr_init_attr, fd_offset) - 48usize];
    [
        "Offset of field: ibv_mr_init_attr::dmah",
    ][::core::mem::offset_of!(ibv_mr_init_attr, dmah) - 56usize];
    [
        "Offset of field: ibv_mr_init_attr::buf",
    ][::core::mem::offset_of!(ibv_mr_init_attr, buf) - 64usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mw"][::core::mem::size_of::<ibv_mw>() - 32usize];
    ["Alignment of ibv_mw"][::core::mem::align_of::<ibv_mw>() - 8usize];
    [
        "Offset of field: ibv_mw::context",
    ][::core::mem::offset_of!(ibv_mw, context) - 0usize];
    ["Offset of field: ibv_mw::pd"][::core::mem::offset_of!(ibv_mw, pd) - 8usize];
    ["Offset of field: ibv_mw::rkey"][::core::mem::offset_of!(ibv_mw, rkey) - 16usize];
    [
        "Offset of field: ibv_mw::handle",
    ][::core::mem::offset_of!(ibv_mw, handle) - 20usize];
    ["Offset of field: ibv_mw::type_"][::core::mem::offset_of!(ibv_mw, type_) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_global_route"][::core::mem::size_of::<ibv_global_route>() - 24usize];
    [
        "Alignment of ibv_global_route",
    ][::core::mem::align_of::<ibv_global_route>() - 8usize];
    [
        "Offset of field: ibv_global_route::dgid",
    ][::core::mem::offset_of!(ibv_global_route, dgid) - 0usize];
    [
        "Offset of field: ibv_global_route::flow_label",
    ][::core::mem::offset_of!(ibv_global_route, flow_label) - 16usize];
    [
        "Offset of field: ibv_global_route::sgid_index",
    ][::core::mem::offset_of!(ibv_global_route, sgid_index) - 20usize];
    [
        "Offset of field: ibv_global_route::hop_limit",
    ][::core::mem::offset_of!(ibv_global_route, hop_limit) - 21usize];
    [
        "Offset of field: ibv_global_route::traffic_class",
    ][::core::mem::offset_of!(ibv_global_route, traffic_class) - 22usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_grh"][::core::mem::size_of::<ibv_grh>() - 40usize];
    ["Alignment of ibv_grh"][::core::mem::align_of::<ibv_grh>() - 8usize];
    [
        "Offset of field: ibv_grh::version_tclass_flow",
    ][::core::mem::offset_of!(ibv_grh, version_tclass_flow) - 0usize];
    [
        "Offset of field: ibv_grh::paylen",
    ][::core::mem::offset_of!(ibv_grh, paylen) - 4usize];
    [
        "Offset of field: ibv_grh::next_hdr",
    ][::core::mem::offset_of!(ibv_grh, next_hdr) - 6usize];
    [
        "Offset of field: ibv_grh::hop_limit",
    ][::core::mem::offset_of!(ibv_grh, hop_limit) - 7usize];
    ["Offset of field: ibv_grh::sgid"][::core::mem::offset_of!(ibv_grh, sgid) - 8usize];
    ["Offset of field: ibv_grh::dgid"][::core::mem::offset_of!(ibv_grh, dgid) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ah_attr"][::core::mem::size_of::<ibv_ah_attr>() - 32usize];
    ["Alignment of ibv_ah_attr"][::core::mem::align_of::<ibv_ah_attr>() - 8usize];
    [
        "Offset of field: ibv_ah_attr::grh",
    ][::core::mem::offset_of!(ibv_ah_attr, grh) - 0usize];
    [
        "Offset of field: ibv_ah_attr::dlid",
    ][::core::mem::offset_of!(ibv_ah_attr, dlid) - 24usize];
    [
        "Offset of field: ibv_ah_attr::sl",
    ][::core::mem::offset_of!(ibv_ah_attr, sl) - 26usize];
    [
        "Offset of field: ibv_ah_attr::src_path_bits",
    ][::core::mem::offset_of!(ibv_ah_attr, src_path_bits) - 27usize];
    [
        "Offset of field: ibv_ah_attr::static_rate",
    ][::core::mem::offset_of!(ibv_ah_attr, static_rate) - 28usize];
    [
        "Offset of field: ibv_ah_attr::is_global",
    ][::core::mem::offset_of!(ibv_ah_attr, is_global) - 29usize];
    [
        "Offset of field: ibv_ah_attr::port_num",
    ][::core::mem::offset_of!(ibv_ah_attr, port_num) - 30usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_srq_attr"][::core::mem::size_of::<ibv_srq_attr>() - 12usize];
    ["Alignment of ibv_srq_attr"][::core::mem::align_of::<ibv_srq_attr>() - 4usize];
    [
        "Offset of field: ibv_srq_attr::max_wr",
    ][::core::mem::offset_of!(ibv_srq_attr, max_wr) - 0usize];
    [
        "Offset of field: ibv_srq_attr::max_sge",
    ][::core::mem::offset_of!(ibv_srq_attr, max_sge) - 4usize];
    [
        "Offset of field: ibv_srq_attr::srq_limit",
    ][::core::mem::offset_of!(ibv_srq_attr, srq_limit) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_srq_init_attr"][::core::mem::size_of::<ibv_srq_init_attr>() - 24usize];
    [
        "Alignment of ibv_srq_init_attr",
    ][::core::mem::align_of::<ibv_srq_init_attr>() - 8usize];
    [
        "Offset of field: ibv_srq_init_attr::srq_context",
    ][::core::mem::offset_of!(ibv_srq_init_attr, srq_context) - 0usize];
    [
        "Offset of field: ibv_srq_init_attr::attr",
    ][::core::mem::offset_of!(ibv_srq_init_attr, attr) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_tm_cap"][::core::mem::size_of::<ibv_tm_cap>() - 8usize];
    ["Alignment of ibv_tm_cap"][::core::mem::align_of::<ibv_tm_cap>() - 4usize];
    [
        "Offset of field: ibv_tm_cap::max_num_tags",
    ][::core::mem::offset_of!(ibv_tm_cap, max_num_tags) - 0usize];
    [
        "Offset of field: ibv_tm_cap::max_ops",
    ][::core::mem::offset_of!(ibv_tm_cap, max_ops) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_srq_init_attr_ex",
    ][::core::mem::size_of::<ibv_srq_init_attr_ex>() - 64usize];
    [
        "Alignment of ibv_srq_init_attr_ex",
    ][::core::mem::align_of::<ibv_srq_init_attr_ex>() - 8usize];
    [
        "Offset of field: ibv_srq_init_attr_ex::srq_context",
    ][::core::mem::offset_of!(ibv_srq_init_attr_ex, srq_context) - 0usize];
    [
        "Offset of field: ibv_srq_init_attr_ex::attr",
    ][::core::mem::offset_of!(ibv_srq_init_attr_ex, attr) - 8usize];
    [
        "Offset of field: ibv_srq_init_attr_ex::comp_mask",
    ][::core::mem::offset_of!(ibv_srq_init_attr_ex, comp_mask) - 20usize];
    [
        "Offset of field: ibv_srq_init_attr_ex::srq_type",
    ][::core::mem::offset_of!(ibv_srq_init_attr_ex, srq_type) - 24usize];
    [
        "Offset of field: ibv_srq_init_attr_ex::pd",
    ][::core::mem::offset_of!(ibv_srq_init_attr_ex, pd) - 32usize];
    [
        "Offset of field: ibv_srq_init_attr_ex::xrcd",
    ][::core::mem::offset_of!(ibv_srq_init_attr_ex, xrcd) - 40usize];
    [
        "Offset of field: ibv_srq_init_attr_ex::cq",
    ][::core::mem::offset_of!(ibv_srq_init_attr_ex, cq) - 48usize];
    [
        "Offset of field: ibv_srq_init_attr_ex::tm_cap",
    ][::core::mem::offset_of!(ibv_srq_init_attr_ex, tm_cap) - 56usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wq_init_attr"][::core::mem::size_of::<ibv_wq_init_attr>() - 48usize];
    [
        "Alignment of ibv_wq_init_attr",
    ][::core::mem::align_of::<ibv_wq_init_attr>() - 8usize];
    [
        "Offset of field: ibv_wq_init_attr::wq_context",
    ][::core::mem::offset_of!(ibv_wq_init_attr, wq_context) - 0usize];
    [
        "Offset of field: ibv_wq_init_attr::wq_type",
    ][::core::mem::offset_of!(ibv_wq_init_attr, wq_type) - 8usize];
    [
        "Offset of field: ibv_wq_init_attr::max_wr",
    ][::core::mem::offset_of!(ibv_wq_init_attr, max_wr) - 12usize];
    [
        "Offset of field: ibv_wq_init_attr::max_sge",
    ][::core::mem::offset_of!(ibv_wq_init_attr, max_sge) - 16usize];
    [
        "Offset of field: ibv_wq_init_attr::pd",
    ][::core::mem::offset_of!(ibv_wq_init_attr, pd) - 24usize];
    [
        "Offset of field: ibv_wq_init_attr::cq",
    ][::core::mem::offset_of!(ibv_wq_init_attr, cq) - 32usize];
    [
        "Offset of field: ibv_wq_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_wq_init_attr, comp_mask) - 40usize];
    [
        "Offset of field: ibv_wq_init_attr::create_flags",
    ][::core::mem::offset_of!(ibv_wq_init_attr, create_flags) - 44usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wq_attr"][::core::mem::size_of::<ibv_wq_attr>() - 20usize];
    ["Alignment of ibv_wq_attr"][::core::mem::align_of::<ibv_wq_attr>() - 4usize];
    [
        "Offset of field: ibv_wq_attr::attr_mask",
    ][::core::mem::offset_of!(ibv_wq_attr, attr_mask) - 0usize];
    [
        "Offset of field: ibv_wq_attr::wq_state",
    ][::core::mem::offset_of!(ibv_wq_attr, wq_state) - 4usize];
    [
        "Offset of field: ibv_wq_attr::curr_wq_state",
    ][::core::mem::offset_of!(ibv_wq_attr, curr_wq_state) - 8usize];
    [
        "Offset of field: ibv_wq_attr::flags",
    ][::core::mem::offset_of!(ibv_wq_attr, flags) - 12usize];
    [
        "Offset of field: ibv_wq_attr::flags_mask",
    ][::core::mem::offset_of!(ibv_wq_attr, flags_mask) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_rwq_ind_table"][::core::mem::size_of::<ibv_rwq_ind_table>() - 24usize];
    [
        "Alignment of ibv_rwq_ind_table",
    ][::core::mem::align_of::<ibv_rwq_ind_table>() - 8usize];
    [
        "Offset of field: ibv_rwq_ind_table::context",
    ][::core::mem::offset_of!(ibv_rwq_ind_table, context) - 0usize];
    [
        "Offset of field: ibv_rwq_ind_table::ind_tbl_handle",
    ][::core::mem::offset_of!(ibv_rwq_ind_table, ind_tbl_handle) - 8usize];
    [
        "Offset of field: ibv_rwq_ind_table::ind_tbl_num",
    ][::core::mem::offset_of!(ibv_rwq_ind_table, ind_tbl_num) - 12usize];
    [
        "Offset of field: ibv_rwq_ind_table::comp_mask",
    ][::core::mem::offset_of!(ibv_rwq_ind_table, comp_mask) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_rwq_ind_table_init_attr",
    ][::core::mem::size_of::<ibv_rwq_ind_table_init_attr>() - 24usize];
    [
        "Alignment of ibv_rwq_ind_table_init_attr",
    ][::core::mem::align_of::<ibv_rwq_ind_table_init_attr>() - 8usize];
    [
        "Offset of field: ibv_rwq_ind_table_init_attr::log_ind_tbl_size",
    ][::core::mem::offset_of!(ibv_rwq_ind_table_init_attr, log_ind_tbl_size) - 0usize];
    [
        "Offset of field: ibv_rwq_ind_table_init_attr::ind_tbl",
    ][::core::mem::offset_of!(ibv_rwq_ind_table_init_attr, ind_tbl) - 8usize];
    [
        "Offset of field: ibv_rwq_ind_table_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_rwq_ind_table_init_attr, comp_mask) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_cap"][::core::mem::size_of::<ibv_qp_cap>() - 20usize];
    ["Alignment of ibv_qp_cap"][::core::mem::align_of::<ibv_qp_cap>() - 4usize];
    [
        "Offset of field: ibv_qp_cap::max_send_wr",
    ][::core::mem::offset_of!(ibv_qp_cap, max_send_wr) - 0usize];
    [
        "Offset of field: ibv_qp_cap::max_recv_wr",
    ][::core::mem::offset_of!(ibv_qp_cap, max_recv_wr) - 4usize];
    [
        "Offset of field: ibv_qp_cap::max_send_sge",
    ][::core::mem::offset_of!(ibv_qp_cap, max_send_sge) - 8usize];
    [
        "Offset of field: ibv_qp_cap::max_recv_sge",
    ][::core::mem::offset_of!(ibv_qp_cap, max_recv_sge) - 12usize];
    [
        "Offset of field: ibv_qp_cap::max_inline_data",
    ][::core::mem::offset_of!(ibv_qp_cap, max_inline_data) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_init_attr"][::core::mem::size_of::<ibv_qp_init_attr>() - 64usize];
    [
        "Alignment of ibv_qp_init_attr",
    ][::core::mem::align_of::<ibv_qp_init_attr>() - 8usize];
    [
        "Offset of field: ibv_qp_init_attr::qp_context",
    ][::core::mem::offset_of!(ibv_qp_init_attr, qp_context) - 0usize];
    [
        "Offset of field: ibv_qp_init_attr::send_cq",
    ][::core::mem::offset_of!(ibv_qp_init_attr, send_cq) - 8usize];
    [
        "Offset of field: ibv_qp_init_attr::recv_cq",
    ][::core::mem::offset_of!(ibv_qp_init_attr, recv_cq) - 16usize];
    [
        "Offset of field: ibv_qp_init_attr::srq",
    ][::core::mem::offset_of!(ibv_qp_init_attr, srq) - 24usize];
    [
        "Offset of field: ibv_qp_init_attr::cap",
    ][::core::mem::offset_of!(ibv_qp_init_attr, cap) - 32usize];
    [
        "Offset of field: ibv_qp_init_attr::qp_type",
    ][::core::mem::offset_of!(ibv_qp_init_attr, qp_type) - 52usize];
    [
        "Offset of field: ibv_qp_init_attr::sq_sig_all",
    ][::core::mem::offset_of!(ibv_qp_init_attr, sq_sig_all) - 56usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_rx_hash_conf"][::core::mem::size_of::<ibv_rx_hash_conf>() - 24usize];
    [
        "Alignment of ibv_rx_hash_conf",
    ][::core::mem::align_of::<ibv_rx_hash_conf>() - 8usize];
    [
        "Offset of field: ibv_rx_hash_conf::rx_hash_function",
    ][::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_function) - 0usize];
    [
        "Offset of field: ibv_rx_hash_conf::rx_hash_key_len",
    ][::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_key_len) - 1usize];
    [
        "Offset of field: ibv_rx_hash_conf::rx_hash_key",
    ][::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_key) - 8usize];
    [
        "Offset of field: ibv_rx_hash_conf::rx_hash_fields_mask",
    ][::core::mem::offset_of!(ibv_rx_hash_conf, rx_hash_fields_mask) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_qp_init_attr_ex",
    ][::core::mem::size_of::<ibv_qp_init_attr_ex>() - 136usize];
    [
        "Alignment of ibv_qp_init_attr_ex",
    ][::core::mem::align_of::<ibv_qp_init_attr_ex>() - 8usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::qp_context",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, qp_context) - 0usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::send_cq",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, send_cq) - 8usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::recv_cq",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, recv_cq) - 16usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::srq",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, srq) - 24usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::cap",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, cap) - 32usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::qp_type",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, qp_type) - 52usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::sq_sig_all",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, sq_sig_all) - 56usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::comp_mask",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, comp_mask) - 60usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::pd",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, pd) - 64usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::xrcd",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, xrcd) - 72usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::create_flags",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, create_flags) - 80usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::max_tso_header",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, max_tso_header) - 84usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::rwq_ind_tbl",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, rwq_ind_tbl) - 88usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::rx_hash_conf",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, rx_hash_conf) - 96usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::source_qpn",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, source_qpn) - 120usize];
    [
        "Offset of field: ibv_qp_init_attr_ex::send_ops_flags",
    ][::core::mem::offset_of!(ibv_qp_init_attr_ex, send_ops_flags) - 128usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_open_attr"][::core::mem::size_of::<ibv_qp_open_attr>() - 32usize];
    [
        "Alignment of ibv_qp_open_attr",
    ][::core::mem::align_of::<ibv_qp_open_attr>() - 8usize];
    [
        "Offset of field: ibv_qp_open_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_qp_open_attr, comp_mask) - 0usize];
    [
        "Offset of field: ibv_qp_open_attr::qp_num",
    ][::core::mem::offset_of!(ibv_qp_open_attr, qp_num) - 4usize];
    [
        "Offset of field: ibv_qp_open_attr::xrcd",
    ][::core::mem::offset_of!(ibv_qp_open_attr, xrcd) - 8usize];
    [
        "Offset of field: ibv_qp_open_attr::qp_context",
    ][::core::mem::offset_of!(ibv_qp_open_attr, qp_context) - 16usize];
    [
        "Offset of field: ibv_qp_open_attr::qp_type",
    ][::core::mem::offset_of!(ibv_qp_open_attr, qp_type) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_attr"][::core::mem::size_of::<ibv_qp_attr>() - 144usize];
    ["Alignment of ibv_qp_attr"][::core::mem::align_of::<ibv_qp_attr>() - 8usize];
    [
        "Offset of field: ibv_qp_attr::qp_state",
    ][::core::mem::offset_of!(ibv_qp_attr, qp_state) - 0usize];
    [
        "Offset of field: ibv_qp_attr::cur_qp_state",
    ][::core::mem::offset_of!(ibv_qp_attr, cur_qp_state) - 4usize];
    [
        "Offset of field: ibv_qp_attr::path_mtu",
    ][::core::mem::offset_of!(ibv_qp_attr, path_mtu) - 8usize];
    [
        "Offset of field: ibv_qp_attr::path_mig_state",
    ][::core::mem::offset_of!(ibv_qp_attr, path_mig_state) - 12usize];
    [
        "Offset of field: ibv_qp_attr::qkey",
    ][::core::mem::offset_of!(ibv_qp_attr, qkey) - 16usize];
    [
        "Offset of field: ibv_qp_attr::rq_psn",
    ][::core::mem::offset_of!(ibv_qp_attr, rq_psn) - 20usize];
    [
        "Offset of field: ibv_qp_attr::sq_psn",
    ][::core::mem::offset_of!(ibv_qp_attr, sq_psn) - 24usize];
    [
        "Offset of field: ibv_qp_attr::dest_qp_num",
    ][::core::mem::offset_of!(ibv_qp_attr, dest_qp_num) - 28usize];
    [
        "Offset of field: ibv_qp_attr::qp_access_flags",
    ][::core::mem::offset_of!(ibv_qp_attr, qp_access_flags) - 32usize];
    [
        "Offset of field: ibv_qp_attr::cap",
    ][::core::mem::offset_of!(ibv_qp_attr, cap) - 36usize];
    [
        "Offset of field: ibv_qp_attr::ah_attr",
    ][::core::mem::offset_of!(ibv_qp_attr, ah_attr) - 56usize];
    [
        "Offset of field: ibv_qp_attr::alt_ah_attr",
    ][::core::mem::offset_of!(ibv_qp_attr, alt_ah_attr) - 88usize];
    [
        "Offset of field: ibv_qp_attr::pkey_index",
    ][::core::mem::offset_of!(ibv_qp_attr, pkey_index) - 120usize];
    [
        "Offset of field: ibv_qp_attr::alt_pkey_index",
    ][::core::mem::offset_of!(ibv_qp_attr, alt_pkey_index) - 122usize];
    [
        "Offset of field: ibv_qp_attr::en_sqd_async_notify",
    ][::core::mem::offset_of!(ibv_qp_attr, en_sqd_async_notify) - 124usize];
    [
        "Offset of field: ibv_qp_attr::sq_draining",
    ][::core::mem::offset_of!(ibv_qp_attr, sq_draining) - 125usize];
    [
        "Offset of field: ibv_qp_attr::max_rd_atomic",
    ][::core::mem::offset_of!(ibv_qp_attr, max_rd_atomic) - 126usize];
    [
        "Offset of field: ibv_qp_attr::max_dest_rd_atomic",
    ][::core::mem::offset_of!(ibv_qp_attr, max_dest_rd_atomic) - 127usize];
    [
        "Offset of field: ibv_qp_attr::min_rnr_timer",
    ][::core::mem::offset_of!(ibv_qp_attr, min_rnr_timer) - 128usize];
    [
        "Offset of field: ibv_qp_attr::port_num",
    ][::core::mem::offset_of!(ibv_qp_attr, port_num) - 129usize];
    [
        "Offset of field: ibv_qp_attr::timeout",
    ][::core::mem::offset_of!(ibv_qp_attr, timeout) - 130usize];
    [
        "Offset of field: ibv_qp_attr::retry_cnt",
    ][::core::mem::offset_of!(ibv_qp_attr, retry_cnt) - 131usize];
    [
        "Offset of field: ibv_qp_attr::rnr_retry",
    ][::core::mem::offset_of!(ibv_qp_attr, rnr_retry) - 132usize];
    [
        "Offset of field: ibv_qp_attr::alt_port_num",
    ][::core::mem::offset_of!(ibv_qp_attr, alt_port_num) - 133usize];
    [
        "Offset of field: ibv_qp_attr::alt_timeout",
    ][::core::mem::offset_of!(ibv_qp_attr, alt_timeout) - 134usize];
    [
        "Offset of field: ibv_qp_attr::rate_limit",
    ][::core::mem::offset_of!(ibv_qp_attr, rate_limit) - 136usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_qp_rate_limit_attr",
    ][::core::mem::size_of::<ibv_qp_rate_limit_attr>() - 16usize];
    [
        "Alignment of ibv_qp_rate_limit_attr",
    ][::core::mem::align_of::<ibv_qp_rate_limit_attr>() - 4usize];
    [
        "Offset of field: ibv_qp_rate_limit_attr::rate_limit",
    ][::core::mem::offset_of!(ibv_qp_rate_limit_attr, rate_limit) - 0usize];
    [
        "Offset of field: ibv_qp_rate_limit_attr::max_burst_sz",
    ][::core::mem::offset_of!(ibv_qp_rate_limit_attr, max_burst_sz) - 4usize];
    [
        "Offset of field: ibv_qp_rate_limit_attr::typical_pkt_sz",
    ][::core::mem::offset_of!(ibv_qp_rate_limit_attr, typical_pkt_sz) - 8usize];
    [
        "Offset of field: ibv_qp_rate_limit_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_qp_rate_limit_attr, comp_mask) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_data_buf"][::core::mem::size_of::<ibv_data_buf>() - 16usize];
    ["Alignment of ibv_data_buf"][::core::mem::align_of::<ibv_data_buf>() - 8usize];
    [
        "Offset of field: ibv_data_buf::addr",
    ][::core::mem::offset_of!(ibv_data_buf, addr) - 0usize];
    [
        "Offset of field: ibv_data_buf::length",
    ][::core::mem::offset_of!(ibv_data_buf, length) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_sge"][::core::mem::size_of::<ibv_sge>() - 16usize];
    ["Alignment of ibv_sge"][::core::mem::align_of::<ibv_sge>() - 8usize];
    ["Offset of field: ibv_sge::addr"][::core::mem::offset_of!(ibv_sge, addr) - 0usize];
    [
        "Offset of field: ibv_sge::length",
    ][::core::mem::offset_of!(ibv_sge, length) - 8usize];
    ["Offset of field: ibv_sge::lkey"][::core::mem::offset_of!(ibv_sge, lkey) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_fd_arr"][::core::mem::size_of::<ibv_fd_arr>() - 16usize];
    ["Alignment of ibv_fd_arr"][::core::mem::align_of::<ibv_fd_arr>() - 8usize];
    [
        "Offset of field: ibv_fd_arr::arr",
    ][::core::mem::offset_of!(ibv_fd_arr, arr) - 0usize];
    [
        "Offset of field: ibv_fd_arr::count",
    ][::core::mem::offset_of!(ibv_fd_arr, count) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_1>() - 4usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_1::imm_data",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_1, imm_data) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_1::invalidate_rkey",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_1, invalidate_rkey) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_2__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_1>() - 16usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_2__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_1::remote_addr",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_1, remote_addr)
        - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_1::rkey",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_1, rkey) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_2__bindgen_ty_2",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_2>() - 32usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_2__bindgen_ty_2",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::remote_addr",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, remote_addr)
        - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::compare_add",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, compare_add)
        - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::swap",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, swap) - 16usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_2::rkey",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, rkey) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_2__bindgen_ty_3",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_3>() - 16usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_2__bindgen_ty_3",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_2__bindgen_ty_3>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_3::ah",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3, ah) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_3::remote_qpn",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3, remote_qpn)
        - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2__bindgen_ty_3::remote_qkey",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3, remote_qkey)
        - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_2",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_2>() - 32usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_2",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2::rdma",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2, rdma) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2::atomic",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2, atomic) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_2::ud",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_2, ud) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_3__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_3__bindgen_ty_1>() - 4usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_3__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_3__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_3__bindgen_ty_1::remote_srqn",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_3__bindgen_ty_1, remote_srqn)
        - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_3",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_3>() - 4usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_3",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_3>() - 4usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_3::xrc",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_3, xrc) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_4__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_1>() - 48usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_4__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_1::mw",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1, mw) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_1::rkey",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1, rkey) - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_1::bind_info",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1, bind_info)
        - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_4__bindgen_ty_2",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_2>() - 16usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_4__bindgen_ty_2",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_4__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_2::hdr",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2, hdr) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_2::hdr_sz",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2, hdr_sz) - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4__bindgen_ty_2::mss",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2, mss) - 10usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_send_wr__bindgen_ty_4",
    ][::core::mem::size_of::<ibv_send_wr__bindgen_ty_4>() - 48usize];
    [
        "Alignment of ibv_send_wr__bindgen_ty_4",
    ][::core::mem::align_of::<ibv_send_wr__bindgen_ty_4>() - 8usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4::bind_mw",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4, bind_mw) - 0usize];
    [
        "Offset of field: ibv_send_wr__bindgen_ty_4::tso",
    ][::core::mem::offset_of!(ibv_send_wr__bindgen_ty_4, tso) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_send_wr"][::core::mem::size_of::<ibv_send_wr>() - 128usize];
    ["Alignment of ibv_send_wr"][::core::mem::align_of::<ibv_send_wr>() - 8usize];
    [
        "Offset of field: ibv_send_wr::wr_id",
    ][::core::mem::offset_of!(ibv_send_wr, wr_id) - 0usize];
    [
        "Offset of field: ibv_send_wr::next",
    ][::core::mem::offset_of!(ibv_send_wr, next) - 8usize];
    [
        "Offset of field: ibv_send_wr::sg_list",
    ][::core::mem::offset_of!(ibv_send_wr, sg_list) - 16usize];
    [
        "Offset of field: ibv_send_wr::num_sge",
    ][::core::mem::offset_of!(ibv_send_wr, num_sge) - 24usize];
    [
        "Offset of field: ibv_send_wr::opcode",
    ][::core::mem::offset_of!(ibv_send_wr, opcode) - 28usize];
    [
        "Offset of field: ibv_send_wr::send_flags",
    ][::core::mem::offset_of!(ibv_send_wr, send_flags) - 32usize];
    [
        "Offset of field: ibv_send_wr::wr",
    ][::core::mem::offset_of!(ibv_send_wr, wr) - 40usize];
    [
        "Offset of field: ibv_send_wr::qp_type",
    ][::core::mem::offset_of!(ibv_send_wr, qp_type) - 72usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_recv_wr"][::core::mem::size_of::<ibv_recv_wr>() - 32usize];
    ["Alignment of ibv_recv_wr"][::core::mem::align_of::<ibv_recv_wr>() - 8usize];
    [
        "Offset of field: ibv_recv_wr::wr_id",
    ][::core::mem::offset_of!(ibv_recv_wr, wr_id) - 0usize];
    [
        "Offset of field: ibv_recv_wr::next",
    ][::core::mem::offset_of!(ibv_recv_wr, next) - 8usize];
    [
        "Offset of field: ibv_recv_wr::sg_list",
    ][::core::mem::offset_of!(ibv_recv_wr, sg_list) - 16usize];
    [
        "Offset of field: ibv_recv_wr::num_sge",
    ][::core::mem::offset_of!(ibv_recv_wr, num_sge) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_ops_wr__bindgen_ty_1__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_ops_wr__bindgen_ty_1__bindgen_ty_1>() - 40usize];
    [
        "Alignment of ibv_ops_wr__bindgen_ty_1__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_ops_wr__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1::recv_wr_id",
    ][::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1__bindgen_ty_1, recv_wr_id)
        - 0usize];
    [
        "Offset of field: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1::sg_list",
    ][::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1__bindgen_ty_1, sg_list) - 8usize];
    [
        "Offset of field: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1::num_sge",
    ][::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1__bindgen_ty_1, num_sge)
        - 16usize];
    [
        "Offset of field: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1::tag",
    ][::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1__bindgen_ty_1, tag) - 24usize];
    [
        "Offset of field: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1::mask",
    ][::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1__bindgen_ty_1, mask) - 32usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_ops_wr__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_ops_wr__bindgen_ty_1>() - 48usize];
    [
        "Alignment of ibv_ops_wr__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_ops_wr__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ibv_ops_wr__bindgen_ty_1::unexpected_cnt",
    ][::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1, unexpected_cnt) - 0usize];
    [
        "Offset of field: ibv_ops_wr__bindgen_ty_1::handle",
    ][::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1, handle) - 4usize];
    [
        "Offset of field: ibv_ops_wr__bindgen_ty_1::add",
    ][::core::mem::offset_of!(ibv_ops_wr__bindgen_ty_1, add) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ops_wr"][::core::mem::size_of::<ibv_ops_wr>() - 72usize];
    ["Alignment of ibv_ops_wr"][::core::mem::align_of::<ibv_ops_wr>() - 8usize];
    [
        "Offset of field: ibv_ops_wr::wr_id",
    ][::core::mem::offset_of!(ibv_ops_wr, wr_id) - 0usize];
    [
        "Offset of field: ibv_ops_wr::next",
    ][::core::mem::offset_of!(ibv_ops_wr, next) - 8usize];
    [
        "Offset of field: ibv_ops_wr::opcode",
    ][::core::mem::offset_of!(ibv_ops_wr, opcode) - 16usize];
    [
        "Offset of field: ibv_ops_wr::flags",
    ][::core::mem::offset_of!(ibv_ops_wr, flags) - 20usize];
    [
        "Offset of field: ibv_ops_wr::tm",
    ][::core::mem::offset_of!(ibv_ops_wr, tm) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_mw_bind"][::core::mem::size_of::<ibv_mw_bind>() - 48usize];
    ["Alignment of ibv_mw_bind"][::core::mem::align_of::<ibv_mw_bind>() - 8usize];
    [
        "Offset of field: ibv_mw_bind::wr_id",
    ][::core::mem::offset_of!(ibv_mw_bind, wr_id) - 0usize];
    [
        "Offset of field: ibv_mw_bind::send_flags",
    ][::core::mem::offset_of!(ibv_mw_bind, send_flags) - 8usize];
    [
        "Offset of field: ibv_mw_bind::bind_info",
    ][::core::mem::offset_of!(ibv_mw_bind, bind_info) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_srq"][::core::mem::size_of::<ibv_srq>() - 128usize];
    ["Alignment of ibv_srq"][::core::mem::align_of::<ibv_srq>() - 8usize];
    [
        "Offset of field: ibv_srq::context",
    ][::core::mem::offset_of!(ibv_srq, context) - 0usize];
    [
        "Offset of field: ibv_srq::srq_context",
    ][::core::mem::offset_of!(ibv_srq, srq_context) - 8usize];
    ["Offset of field: ibv_srq::pd"][::core::mem::offset_of!(ibv_srq, pd) - 16usize];
    [
        "Offset of field: ibv_srq::handle",
    ][::core::mem::offset_of!(ibv_srq, handle) - 24usize];
    [
        "Offset of field: ibv_srq::mutex",
    ][::core::mem::offset_of!(ibv_srq, mutex) - 32usize];
    ["Offset of field: ibv_srq::cond"][::core::mem::offset_of!(ibv_srq, cond) - 72usize];
    [
        "Offset of field: ibv_srq::events_completed",
    ][::core::mem::offset_of!(ibv_srq, events_completed) - 120usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wq"][::core::mem::size_of::<ibv_wq>() - 152usize];
    ["Alignment of ibv_wq"][::core::mem::align_of::<ibv_wq>() - 8usize];
    [
        "Offset of field: ibv_wq::context",
    ][::core::mem::offset_of!(ibv_wq, context) - 0usize];
    [
        "Offset of field: ibv_wq::wq_context",
    ][::core::mem::offset_of!(ibv_wq, wq_context) - 8usize];
    ["Offset of field: ibv_wq::pd"][::core::mem::offset_of!(ibv_wq, pd) - 16usize];
    ["Offset of field: ibv_wq::cq"][::core::mem::offset_of!(ibv_wq, cq) - 24usize];
    [
        "Offset of field: ibv_wq::wq_num",
    ][::core::mem::offset_of!(ibv_wq, wq_num) - 32usize];
    [
        "Offset of field: ibv_wq::handle",
    ][::core::mem::offset_of!(ibv_wq, handle) - 36usize];
    ["Offset of field: ibv_wq::state"][::core::mem::offset_of!(ibv_wq, state) - 40usize];
    [
        "Offset of field: ibv_wq::wq_type",
    ][::core::mem::offset_of!(ibv_wq, wq_type) - 44usize];
    [
        "Offset of field: ibv_wq::post_recv",
    ][::core::mem::offset_of!(ibv_wq, post_recv) - 48usize];
    ["Offset of field: ibv_wq::mutex"][::core::mem::offset_of!(ibv_wq, mutex) - 56usize];
    ["Offset of field: ibv_wq::cond"][::core::mem::offset_of!(ibv_wq, cond) - 96usize];
    [
        "Offset of field: ibv_wq::events_completed",
    ][::core::mem::offset_of!(ibv_wq, events_completed) - 144usize];
    [
        "Offset of field: ibv_wq::comp_mask",
    ][::core::mem::offset_of!(ibv_wq, comp_mask) - 148usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp"][::core::mem::size_of::<ibv_qp>() - 160usize];
    ["Alignment of ibv_qp"][::core::mem::align_of::<ibv_qp>() - 8usize];
    [
        "Offset of field: ibv_qp::context",
    ][::core::mem::offset_of!(ibv_qp, context) - 0usize];
    [
        "Offset of field: ibv_qp::qp_context",
    ][::core::mem::offset_of!(ibv_qp, qp_context) - 8usize];
    ["Offset of field: ibv_qp::pd"][::core::mem::offset_of!(ibv_qp, pd) - 16usize];
    [
        "Offset of field: ibv_qp::send_cq",
    ][::core::mem::offset_of!(ibv_qp, send_cq) - 24usize];
    [
        "Offset of field: ibv_qp::recv_cq",
    ][::core::mem::offset_of!(ibv_qp, recv_cq) - 32usize];
    ["Offset of field: ibv_qp::srq"][::core::mem::offset_of!(ibv_qp, srq) - 40usize];
    [
        "Offset of field: ibv_qp::handle",
    ][::core::mem::offset_of!(ibv_qp, handle) - 48usize];
    [
        "Offset of field: ibv_qp::qp_num",
    ][::core::mem::offset_of!(ibv_qp, qp_num) - 52usize];
    ["Offset of field: ibv_qp::state"][::core::mem::offset_of!(ibv_qp, state) - 56usize];
    [
        "Offset of field: ibv_qp::qp_type",
    ][::core::mem::offset_of!(ibv_qp, qp_type) - 60usize];
    ["Offset of field: ibv_qp::mutex"][::core::mem::offset_of!(ibv_qp, mutex) - 64usize];
    ["Offset of field: ibv_qp::cond"][::core::mem::offset_of!(ibv_qp, cond) - 104usize];
    [
        "Offset of field: ibv_qp::events_completed",
    ][::core::mem::offset_of!(ibv_qp, events_completed) - 152usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_qp_ex"][::core::mem::size_of::<ibv_qp_ex>() - 360usize];
    ["Alignment of ibv_qp_ex"][::core::mem::align_of::<ibv_qp_ex>() - 8usize];
    [
        "Offset of field: ibv_qp_ex::qp_base",
    ][::core::mem::offset_of!(ibv_qp_ex, qp_base) - 0usize];
    [
        "Offset of field: ibv_qp_ex::comp_mask",
    ][::core::mem::offset_of!(ibv_qp_ex, comp_mask) - 160usize];
    [
        "Offset of field: ibv_qp_ex::wr_id",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_id) - 168usize];
    [
        "Offset of field: ibv_qp_ex::wr_flags",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_flags) - 176usize];
    [
        "Offset of field: ibv_qp_ex::wr_atomic_cmp_swp",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_atomic_cmp_swp) - 184usize];
    [
        "Offset of field: ibv_qp_ex::wr_atomic_fetch_add",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_atomic_fetch_add) - 192usize];
    [
        "Offset of field: ibv_qp_ex::wr_bind_mw",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_bind_mw) - 200usize];
    [
        "Offset of field: ibv_qp_ex::wr_local_inv",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_local_inv) - 208usize];
    [
        "Offset of field: ibv_qp_ex::wr_rdma_read",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_rdma_read) - 216usize];
    [
        "Offset of field: ibv_qp_ex::wr_rdma_write",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_rdma_write) - 224usize];
    [
        "Offset of field: ibv_qp_ex::wr_rdma_write_imm",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_rdma_write_imm) - 232usize];
    [
        "Offset of field: ibv_qp_ex::wr_send",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_send) - 240usize];
    [
        "Offset of field: ibv_qp_ex::wr_send_imm",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_send_imm) - 248usize];
    [
        "Offset of field: ibv_qp_ex::wr_send_inv",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_send_inv) - 256usize];
    [
        "Offset of field: ibv_qp_ex::wr_send_tso",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_send_tso) - 264usize];
    [
        "Offset of field: ibv_qp_ex::wr_set_ud_addr",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_set_ud_addr) - 272usize];
    [
        "Offset of field: ibv_qp_ex::wr_set_xrc_srqn",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_set_xrc_srqn) - 280usize];
    [
        "Offset of field: ibv_qp_ex::wr_set_inline_data",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_set_inline_data) - 288usize];
    [
        "Offset of field: ibv_qp_ex::wr_set_inline_data_list",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_set_inline_data_list) - 296usize];
    [
        "Offset of field: ibv_qp_ex::wr_set_sge",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_set_sge) - 304usize];
    [
        "Offset of field: ibv_qp_ex::wr_set_sge_list",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_set_sge_list) - 312usize];
    [
        "Offset of field: ibv_qp_ex::wr_start",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_start) - 320usize];
    [
        "Offset of field: ibv_qp_ex::wr_complete",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_complete) - 328usize];
    [
        "Offset of field: ibv_qp_ex::wr_abort",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_abort) - 336usize];
    [
        "Offset of field: ibv_qp_ex::wr_atomic_write",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_atomic_write) - 344usize];
    [
        "Offset of field: ibv_qp_ex::wr_flush",
    ][::core::mem::offset_of!(ibv_qp_ex, wr_flush) - 352usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ece"][::core::mem::size_of::<ibv_ece>() - 12usize];
    ["Alignment of ibv_ece"][::core::mem::align_of::<ibv_ece>() - 4usize];
    [
        "Offset of field: ibv_ece::vendor_id",
    ][::core::mem::offset_of!(ibv_ece, vendor_id) - 0usize];
    [
        "Offset of field: ibv_ece::options",
    ][::core::mem::offset_of!(ibv_ece, options) - 4usize];
    [
        "Offset of field: ibv_ece::comp_mask",
    ][::core::mem::offset_of!(ibv_ece, comp_mask) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_comp_channel"][::core::mem::size_of::<ibv_comp_channel>() - 16usize];
    [
        "Alignment of ibv_comp_channel",
    ][::core::mem::align_of::<ibv_comp_channel>() - 8usize];
    [
        "Offset of field: ibv_comp_channel::context",
    ][::core::mem::offset_of!(ibv_comp_channel, context) - 0usize];
    [
        "Offset of field: ibv_comp_channel::fd",
    ][::core::mem::offset_of!(ibv_comp_channel, fd) - 8usize];
    [
        "Offset of field: ibv_comp_channel::refcnt",
    ][::core::mem::offset_of!(ibv_comp_channel, refcnt) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_cq"][::core::mem::size_of::<ibv_cq>() - 128usize];
    ["Alignment of ibv_cq"][::core::mem::align_of::<ibv_cq>() - 8usize];
    [
        "Offset of field: ibv_cq::context",
    ][::core::mem::offset_of!(ibv_cq, context) - 0usize];
    [
        "Offset of field: ibv_cq::channel",
    ][::core::mem::offset_of!(ibv_cq, channel) - 8usize];
    [
        "Offset of field: ibv_cq::cq_context",
    ][::core::mem::offset_of!(ibv_cq, cq_context) - 16usize];
    [
        "Offset of field: ibv_cq::handle",
    ][::core::mem::offset_of!(ibv_cq, handle) - 24usize];
    ["Offset of field: ibv_cq::cqe"][::core::mem::offset_of!(ibv_cq, cqe) - 28usize];
    ["Offset of field: ibv_cq::mutex"][::core::mem::offset_of!(ibv_cq, mutex) - 32usize];
    ["Offset of field: ibv_cq::cond"][::core::mem::offset_of!(ibv_cq, cond) - 72usize];
    [
        "Offset of field: ibv_cq::comp_events_completed",
    ][::core::mem::offset_of!(ibv_cq, comp_events_completed) - 120usize];
    [
        "Offset of field: ibv_cq::async_events_completed",
    ][::core::mem::offset_of!(ibv_cq, async_events_completed) - 124usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_poll_cq_attr"][::core::mem::size_of::<ibv_poll_cq_attr>() - 4usize];
    [
        "Alignment of ibv_poll_cq_attr",
    ][::core::mem::align_of::<ibv_poll_cq_attr>() - 4usize];
    [
        "Offset of field: ibv_poll_cq_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_poll_cq_attr, comp_mask) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_wc_tm_info"][::core::mem::size_of::<ibv_wc_tm_info>() - 16usize];
    ["Alignment of ibv_wc_tm_info"][::core::mem::align_of::<ibv_wc_tm_info>() - 8usize];
    [
        "Offset of field: ibv_wc_tm_info::tag",
    ][::core::mem::offset_of!(ibv_wc_tm_info, tag) - 0usize];
    [
        "Offset of field: ibv_wc_tm_info::priv_",
    ][::core::mem::offset_of!(ibv_wc_tm_info, priv_) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_cq_ex"][::core::mem::size_of::<ibv_cq_ex>() - 288usize];
    ["Alignment of ibv_cq_ex"][::core::mem::align_of::<ibv_cq_ex>() - 8usize];
    [
        "Offset of field: ibv_cq_ex::context",
    ][::core::mem::offset_of!(ibv_cq_ex, context) - 0usize];
    [
        "Offset of field: ibv_cq_ex::channel",
    ][::core::mem::offset_of!(ibv_cq_ex, channel) - 8usize];
    [
        "Offset of field: ibv_cq_ex::cq_context",
    ][::core::mem::offset_of!(ibv_cq_ex, cq_context) - 16usize];
    [
        "Offset of field: ibv_cq_ex::handle",
    ][::core::mem::offset_of!(ibv_cq_ex, handle) - 24usize];
    [
        "Offset of field: ibv_cq_ex::cqe",
    ][::core::mem::offset_of!(ibv_cq_ex, cqe) - 28usize];
    [
        "Offset of field: ibv_cq_ex::mutex",
    ][::core::mem::offset_of!(ibv_cq_ex, mutex) - 32usize];
    [
        "Offset of field: ibv_cq_ex::cond",
    ][::core::mem::offset_of!(ibv_cq_ex, cond) - 72usize];
    [
        "Offset of field: ibv_cq_ex::comp_events_completed",
    ][::core::mem::offset_of!(ibv_cq_ex, comp_events_completed) - 120usize];
    [
        "Offset of field: ibv_cq_ex::async_events_completed",
    ][::core::mem::offset_of!(ibv_cq_ex, async_events_completed) - 124usize];
    [
        "Offset of field: ibv_cq_ex::comp_mask",
    ][::core::mem::offset_of!(ibv_cq_ex, comp_mask) - 128usize];
    [
        "Offset of field: ibv_cq_ex::status",
    ][::core::mem::offset_of!(ibv_cq_ex, status) - 132usize];
    [
        "Offset of field: ibv_cq_ex::wr_id",
    ][::core::mem::offset_of!(ibv_cq_ex, wr_id) - 136usize];
    [
        "Offset of field: ibv_cq_ex::start_poll",
    ][::core::mem::offset_of!(ibv_cq_ex, start_poll) - 144usize];
    [
        "Offset of field: ibv_cq_ex::next_poll",
    ][::core::mem::offset_of!(ibv_cq_ex, next_poll) - 152usize];
    [
        "Offset of field: ibv_cq_ex::end_poll",
    ][::core::mem::offset_of!(ibv_cq_ex, end_poll) - 160usize];
    [
        "Offset of field: ibv_cq_ex::read_opcode",
    ][::core::mem::offset_of!(ibv_cq_ex, read_opcode) - 168usize];
    [
        "Offset of field: ibv_cq_ex::read_vendor_err",
    ][::core::mem::offset_of!(ibv_cq_ex, read_vendor_err) - 176usize];
    [
        "Offset of field: ibv_cq_ex::read_byte_len",
    ][::core::mem::offset_of!(ibv_cq_ex, read_byte_len) - 184usize];
    [
        "Offset of field: ibv_cq_ex::read_imm_data",
    ][::core::mem::offset_of!(ibv_cq_ex, read_imm_data) - 192usize];
    [
        "Offset of field: ibv_cq_ex::read_qp_num",
    ][::core::mem::offset_of!(ibv_cq_ex, read_qp_num) - 200usize];
    [
        "Offset of field: ibv_cq_ex::read_src_qp",
    ][::core::mem::offset_of!(ibv_cq_ex, read_src_qp) - 208usize];
    [
        "Offset of field: ibv_cq_ex::read_wc_flags",
    ][::core::mem::offset_of!(ibv_cq_ex, read_wc_flags) - 216usize];
    [
        "Offset of field: ibv_cq_ex::read_slid",
    ][::core::mem::offset_of!(ibv_cq_ex, read_slid) - 224usize];
    [
        "Offset of field: ibv_cq_ex::read_sl",
    ][::core::mem::offset_of!(ibv_cq_ex, read_sl) - 232usize];
    [
        "Offset of field: ibv_cq_ex::read_dlid_path_bits",
    ][::core::mem::offset_of!(ibv_cq_ex, read_dlid_path_bits) - 240usize];
    [
        "Offset of field: ibv_cq_ex::read_completion_ts",
    ][::core::mem::offset_of!(ibv_cq_ex, read_completion_ts) - 248usize];
    [
        "Offset of field: ibv_cq_ex::read_cvlan",
    ][::core::mem::offset_of!(ibv_cq_ex, read_cvlan) - 256usize];
    [
        "Offset of field: ibv_cq_ex::read_flow_tag",
    ][::core::mem::offset_of!(ibv_cq_ex, read_flow_tag) - 264usize];
    [
        "Offset of field: ibv_cq_ex::read_tm_info",
    ][::core::mem::offset_of!(ibv_cq_ex, read_tm_info) - 272usize];
    [
        "Offset of field: ibv_cq_ex::read_completion_wallclock_ns",
    ][::core::mem::offset_of!(ibv_cq_ex, read_completion_wallclock_ns) - 280usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_moderate_cq"][::core::mem::size_of::<ibv_moderate_cq>() - 4usize];
    [
        "Alignment of ibv_moderate_cq",
    ][::core::mem::align_of::<ibv_moderate_cq>() - 2usize];
    [
        "Offset of field: ibv_moderate_cq::cq_count",
    ][::core::mem::offset_of!(ibv_moderate_cq, cq_count) - 0usize];
    [
        "Offset of field: ibv_moderate_cq::cq_period",
    ][::core::mem::offset_of!(ibv_moderate_cq, cq_period) - 2usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_modify_cq_attr",
    ][::core::mem::size_of::<ibv_modify_cq_attr>() - 8usize];
    [
        "Alignment of ibv_modify_cq_attr",
    ][::core::mem::align_of::<ibv_modify_cq_attr>() - 4usize];
    [
        "Offset of field: ibv_modify_cq_attr::attr_mask",
    ][::core::mem::offset_of!(ibv_modify_cq_attr, attr_mask) - 0usize];
    [
        "Offset of field: ibv_modify_cq_attr::moderate",
    ][::core::mem::offset_of!(ibv_modify_cq_attr, moderate) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_ah"][::core::mem::size_of::<ibv_ah>() - 24usize];
    ["Alignment of ibv_ah"][::core::mem::align_of::<ibv_ah>() - 8usize];
    [
        "Offset of field: ibv_ah::context",
    ][::core::mem::offset_of!(ibv_ah, context) - 0usize];
    ["Offset of field: ibv_ah::pd"][::core::mem::offset_of!(ibv_ah, pd) - 8usize];
    [
        "Offset of field: ibv_ah::handle",
    ][::core::mem::offset_of!(ibv_ah, handle) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_eth_filter",
    ][::core::mem::size_of::<ibv_flow_eth_filter>() - 16usize];
    [
        "Alignment of ibv_flow_eth_filter",
    ][::core::mem::align_of::<ibv_flow_eth_filter>() - 2usize];
    [
        "Offset of field: ibv_flow_eth_filter::dst_mac",
    ][::core::mem::offset_of!(ibv_flow_eth_filter, dst_mac) - 0usize];
    [
        "Offset of field: ibv_flow_eth_filter::src_mac",
    ][::core::mem::offset_of!(ibv_flow_eth_filter, src_mac) - 6usize];
    [
        "Offset of field: ibv_flow_eth_filter::ether_type",
    ][::core::mem::offset_of!(ibv_flow_eth_filter, ether_type) - 12usize];
    [
        "Offset of field: ibv_flow_eth_filter::vlan_tag",
    ][::core::mem::offset_of!(ibv_flow_eth_filter, vlan_tag) - 14usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_eth"][::core::mem::size_of::<ibv_flow_spec_eth>() - 40usize];
    [
        "Alignment of ibv_flow_spec_eth",
    ][::core::mem::align_of::<ibv_flow_spec_eth>() - 4usize];
    [
        "Offset of field: ibv_flow_spec_eth::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_eth, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_eth::size",
    ][::core::mem::offset_of!(ibv_flow_spec_eth, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_eth::val",
    ][::core::mem::offset_of!(ibv_flow_spec_eth, val) - 6usize];
    [
        "Offset of field: ibv_flow_spec_eth::mask",
    ][::core::mem::offset_of!(ibv_flow_spec_eth, mask) - 22usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_ipv4_filter",
    ][::core::mem::size_of::<ibv_flow_ipv4_filter>() - 8usize];
    [
        "Alignment of ibv_flow_ipv4_filter",
    ][::core::mem::align_of::<ibv_flow_ipv4_filter>() - 4usize];
    [
        "Offset of field: ibv_flow_ipv4_filter::src_ip",
    ][::core::mem::offset_of!(ibv_flow_ipv4_filter, src_ip) - 0usize];
    [
        "Offset of field: ibv_flow_ipv4_filter::dst_ip",
    ][::core::mem::offset_of!(ibv_flow_ipv4_filter, dst_ip) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec_ipv4",
    ][::core::mem::size_of::<ibv_flow_spec_ipv4>() - 24usize];
    [
        "Alignment of ibv_flow_spec_ipv4",
    ][::core::mem::align_of::<ibv_flow_spec_ipv4>() - 4usize];
    [
        "Offset of field: ibv_flow_spec_ipv4::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv4, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_ipv4::size",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv4, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_ipv4::val",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv4, val) - 8usize];
    [
        "Offset of field: ibv_flow_spec_ipv4::mask",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv4, mask) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_ipv4_ext_filter",
    ][::core::mem::size_of::<ibv_flow_ipv4_ext_filter>() - 12usize];
    [
        "Alignment of ibv_flow_ipv4_ext_filter",
    ][::core::mem::align_of::<ibv_flow_ipv4_ext_filter>() - 4usize];
    [
        "Offset of field: ibv_flow_ipv4_ext_filter::src_ip",
    ][::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, src_ip) - 0usize];
    [
        "Offset of field: ibv_flow_ipv4_ext_filter::dst_ip",
    ][::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, dst_ip) - 4usize];
    [
        "Offset of field: ibv_flow_ipv4_ext_filter::proto",
    ][::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, proto) - 8usize];
    [
        "Offset of field: ibv_flow_ipv4_ext_filter::tos",
    ][::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, tos) - 9usize];
    [
        "Offset of field: ibv_flow_ipv4_ext_filter::ttl",
    ][::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, ttl) - 10usize];
    [
        "Offset of field: ibv_flow_ipv4_ext_filter::flags",
    ][::core::mem::offset_of!(ibv_flow_ipv4_ext_filter, flags) - 11usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec_ipv4_ext",
    ][::core::mem::size_of::<ibv_flow_spec_ipv4_ext>() - 32usize];
    [
        "Alignment of ibv_flow_spec_ipv4_ext",
    ][::core::mem::align_of::<ibv_flow_spec_ipv4_ext>() - 4usize];
    [
        "Offset of field: ibv_flow_spec_ipv4_ext::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv4_ext, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_ipv4_ext::size",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv4_ext, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_ipv4_ext::val",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv4_ext, val) - 8usize];
    [
        "Offset of field: ibv_flow_spec_ipv4_ext::mask",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv4_ext, mask) - 20usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_ipv6_filter",
    ][::core::mem::size_of::<ibv_flow_ipv6_filter>() - 40usize];
    [
        "Alignment of ibv_flow_ipv6_filter",
    ][::core::mem::align_of::<ibv_flow_ipv6_filter>() - 4usize];
    [
        "Offset of field: ibv_flow_ipv6_filter::src_ip",
    ][::core::mem::offset_of!(ibv_flow_ipv6_filter, src_ip) - 0usize];
    [
        "Offset of field: ibv_flow_ipv6_filter::dst_ip",
    ][::core::mem::offset_of!(ibv_flow_ipv6_filter, dst_ip) - 16usize];
    [
        "Offset of field: ibv_flow_ipv6_filter::flow_label",
    ][::core::mem::offset_of!(ibv_flow_ipv6_filter, flow_label) - 32usize];
    [
        "Offset of field: ibv_flow_ipv6_filter::next_hdr",
    ][::core::mem::offset_of!(ibv_flow_ipv6_filter, next_hdr) - 36usize];
    [
        "Offset of field: ibv_flow_ipv6_filter::traffic_class",
    ][::core::mem::offset_of!(ibv_flow_ipv6_filter, traffic_class) - 37usize];
    [
        "Offset of field: ibv_flow_ipv6_filter::hop_limit",
    ][::core::mem::offset_of!(ibv_flow_ipv6_filter, hop_limit) - 38usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec_ipv6",
    ][::core::mem::size_of::<ibv_flow_spec_ipv6>() - 88usize];
    [
        "Alignment of ibv_flow_spec_ipv6",
    ][::core::mem::align_of::<ibv_flow_spec_ipv6>() - 4usize];
    [
        "Offset of field: ibv_flow_spec_ipv6::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv6, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_ipv6::size",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv6, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_ipv6::val",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv6, val) - 8usize];
    [
        "Offset of field: ibv_flow_spec_ipv6::mask",
    ][::core::mem::offset_of!(ibv_flow_spec_ipv6, mask) - 48usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_esp_filter",
    ][::core::mem::size_of::<ibv_flow_esp_filter>() - 8usize];
    [
        "Alignment of ibv_flow_esp_filter",
    ][::core::mem::align_of::<ibv_flow_esp_filter>() - 4usize];
    [
        "Offset of field: ibv_flow_esp_filter::spi",
    ][::core::mem::offset_of!(ibv_flow_esp_filter, spi) - 0usize];
    [
        "Offset of field: ibv_flow_esp_filter::seq",
    ][::core::mem::offset_of!(ibv_flow_esp_filter, seq) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_esp"][::core::mem::size_of::<ibv_flow_spec_esp>() - 24usize];
    [
        "Alignment of ibv_flow_spec_esp",
    ][::core::mem::align_of::<ibv_flow_spec_esp>() - 4usize];
    [
        "Offset of field: ibv_flow_spec_esp::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_esp, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_esp::size",
    ][::core::mem::offset_of!(ibv_flow_spec_esp, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_esp::val",
    ][::core::mem::offset_of!(ibv_flow_spec_esp, val) - 8usize];
    [
        "Offset of field: ibv_flow_spec_esp::mask",
    ][::core::mem::offset_of!(ibv_flow_spec_esp, mask) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_tcp_udp_filter",
    ][::core::mem::size_of::<ibv_flow_tcp_udp_filter>() - 4usize];
    [
        "Alignment of ibv_flow_tcp_udp_filter",
    ][::core::mem::align_of::<ibv_flow_tcp_udp_filter>() - 2usize];
    [
        "Offset of field: ibv_flow_tcp_udp_filter::dst_port",
    ][::core::mem::offset_of!(ibv_flow_tcp_udp_filter, dst_port) - 0usize];
    [
        "Offset of field: ibv_flow_tcp_udp_filter::src_port",
    ][::core::mem::offset_of!(ibv_flow_tcp_udp_filter, src_port) - 2usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec_tcp_udp",
    ][::core::mem::size_of::<ibv_flow_spec_tcp_udp>() - 16usize];
    [
        "Alignment of ibv_flow_spec_tcp_udp",
    ][::core::mem::align_of::<ibv_flow_spec_tcp_udp>() - 4usize];
    [
        "Offset of field: ibv_flow_spec_tcp_udp::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_tcp_udp, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_tcp_udp::size",
    ][::core::mem::offset_of!(ibv_flow_spec_tcp_udp, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_tcp_udp::val",
    ][::core::mem::offset_of!(ibv_flow_spec_tcp_udp, val) - 6usize];
    [
        "Offset of field: ibv_flow_spec_tcp_udp::mask",
    ][::core::mem::offset_of!(ibv_flow_spec_tcp_udp, mask) - 10usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_gre_filter",
    ][::core::mem::size_of::<ibv_flow_gre_filter>() - 8usize];
    [
        "Alignment of ibv_flow_gre_filter",
    ][::core::mem::align_of::<ibv_flow_gre_filter>() - 4usize];
    [
        "Offset of field: ibv_flow_gre_filter::c_ks_res0_ver",
    ][::core::mem::offset_of!(ibv_flow_gre_filter, c_ks_res0_ver) - 0usize];
    [
        "Offset of field: ibv_flow_gre_filter::protocol",
    ][::core::mem::offset_of!(ibv_flow_gre_filter, protocol) - 2usize];
    [
        "Offset of field: ibv_flow_gre_filter::key",
    ][::core::mem::offset_of!(ibv_flow_gre_filter, key) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec_gre"][::core::mem::size_of::<ibv_flow_spec_gre>() - 24usize];
    [
        "Alignment of ibv_flow_spec_gre",
    ][::core::mem::align_of::<ibv_flow_spec_gre>() - 4usize];
    [
        "Offset of field: ibv_flow_spec_gre::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_gre, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_gre::size",
    ][::core::mem::offset_of!(ibv_flow_spec_gre, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_gre::val",
    ][::core::mem::offset_of!(ibv_flow_spec_gre, val) - 8usize];
    [
        "Offset of field: ibv_flow_spec_gre::mask",
    ][::core::mem::offset_of!(ibv_flow_spec_gre, mask) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_mpls_filter",
    ][::core::mem::size_of::<ibv_flow_mpls_filter>() - 4usize];
    [
        "Alignment of ibv_flow_mpls_filter",
    ][::core::mem::align_of::<ibv_flow_mpls_filter>() - 4usize];
    [
        "Offset of field: ibv_flow_mpls_filter::label",
    ][::core::mem::offset_of!(ibv_flow_mpls_filter, label) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec_mpls",
    ][::core::mem::size_of::<ibv_flow_spec_mpls>() - 16usize];
    [
        "Alignment of ibv_flow_spec_mpls",
    ][::core::mem::align_of::<ibv_flow_spec_mpls>() - 4usize];
    [
        "Offset of field: ibv_flow_spec_mpls::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_mpls, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_mpls::size",
    ][::core::mem::offset_of!(ibv_flow_spec_mpls, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_mpls::val",
    ][::core::mem::offset_of!(ibv_flow_spec_mpls, val) - 8usize];
    [
        "Offset of field: ibv_flow_spec_mpls::mask",
    ][::core::mem::offset_of!(ibv_flow_spec_mpls, mask) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_tunnel_filter",
    ][::core::mem::size_of::<ibv_flow_tunnel_filter>() - 4usize];
    [
        "Alignment of ibv_flow_tunnel_filter",
    ][::core::mem::align_of::<ibv_flow_tunnel_filter>() - 4usize];
    [
        "Offset of field: ibv_flow_tunnel_filter::tunnel_id",
    ][::core::mem::offset_of!(ibv_flow_tunnel_filter, tunnel_id) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec_tunnel",
    ][::core::mem::size_of::<ibv_flow_spec_tunnel>() - 16usize];
    [
        "Alignment of ibv_flow_spec_tunnel",
    ][::core::mem::align_of::<ibv_flow_spec_tunnel>() - 4usize];
    [
        "Offset of field: ibv_flow_spec_tunnel::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_tunnel, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_tunnel::size",
    ][::core::mem::offset_of!(ibv_flow_spec_tunnel, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_tunnel::val",
    ][::core::mem::offset_of!(ibv_flow_spec_tunnel, val) - 8usize];
    [
        "Offset of field: ibv_flow_spec_tunnel::mask",
    ][::core::mem::offset_of!(ibv_flow_spec_tunnel, mask) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec_action_tag",
    ][::core::mem::size_of::<ibv_flow_spec_action_tag>() - 12usize];
    [
        "Alignment of ibv_flow_spec_action_tag",
    ][::core::mem::align_of::<ibv_flow_spec_action_tag>() - 4usize];
    [
        "Offset of field: ibv_flow_spec_action_tag::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_action_tag, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_action_tag::size",
    ][::core::mem::offset_of!(ibv_flow_spec_action_tag, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_action_tag::tag_id",
    ][::core::mem::offset_of!(ibv_flow_spec_action_tag, tag_id) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec_action_drop",
    ][::core::mem::size_of::<ibv_flow_spec_action_drop>() - 8usize];
    [
        "Alignment of ibv_flow_spec_action_drop",
    ][::core::mem::align_of::<ibv_flow_spec_action_drop>() - 4usize];
    [
        "Offset of field: ibv_flow_spec_action_drop::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_action_drop, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_action_drop::size",
    ][::core::mem::offset_of!(ibv_flow_spec_action_drop, size) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec_action_handle",
    ][::core::mem::size_of::<ibv_flow_spec_action_handle>() - 16usize];
    [
        "Alignment of ibv_flow_spec_action_handle",
    ][::core::mem::align_of::<ibv_flow_spec_action_handle>() - 8usize];
    [
        "Offset of field: ibv_flow_spec_action_handle::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_action_handle, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_action_handle::size",
    ][::core::mem::offset_of!(ibv_flow_spec_action_handle, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_action_handle::action",
    ][::core::mem::offset_of!(ibv_flow_spec_action_handle, action) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec_counter_action",
    ][::core::mem::size_of::<ibv_flow_spec_counter_action>() - 16usize];
    [
        "Alignment of ibv_flow_spec_counter_action",
    ][::core::mem::align_of::<ibv_flow_spec_counter_action>() - 8usize];
    [
        "Offset of field: ibv_flow_spec_counter_action::type_",
    ][::core::mem::offset_of!(ibv_flow_spec_counter_action, type_) - 0usize];
    [
        "Offset of field: ibv_flow_spec_counter_action::size",
    ][::core::mem::offset_of!(ibv_flow_spec_counter_action, size) - 4usize];
    [
        "Offset of field: ibv_flow_spec_counter_action::counters",
    ][::core::mem::offset_of!(ibv_flow_spec_counter_action, counters) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec__bindgen_ty_1__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_flow_spec__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    [
        "Alignment of ibv_flow_spec__bindgen_ty_1__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_flow_spec__bindgen_ty_1__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1__bindgen_ty_1::type_",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1__bindgen_ty_1, type_)
        - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1__bindgen_ty_1::size",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1__bindgen_ty_1, size) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_spec__bindgen_ty_1",
    ][::core::mem::size_of::<ibv_flow_spec__bindgen_ty_1>() - 88usize];
    [
        "Alignment of ibv_flow_spec__bindgen_ty_1",
    ][::core::mem::align_of::<ibv_flow_spec__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::hdr",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, hdr) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::eth",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, eth) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::ipv4",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, ipv4) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::tcp_udp",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, tcp_udp) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::ipv4_ext",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, ipv4_ext) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::ipv6",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, ipv6) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::esp",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, esp) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::tunnel",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, tunnel) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::gre",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, gre) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::mpls",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, mpls) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::flow_tag",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, flow_tag) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::drop",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, drop) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::handle",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, handle) - 0usize];
    [
        "Offset of field: ibv_flow_spec__bindgen_ty_1::flow_count",
    ][::core::mem::offset_of!(ibv_flow_spec__bindgen_ty_1, flow_count) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_spec"][::core::mem::size_of::<ibv_flow_spec>() - 88usize];
    ["Alignment of ibv_flow_spec"][::core::mem::align_of::<ibv_flow_spec>() - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_attr"][::core::mem::size_of::<ibv_flow_attr>() - 20usize];
    ["Alignment of ibv_flow_attr"][::core::mem::align_of::<ibv_flow_attr>() - 4usize];
    [
        "Offset of field: ibv_flow_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_flow_attr, comp_mask) - 0usize];
    [
        "Offset of field: ibv_flow_attr::type_",
    ][::core::mem::offset_of!(ibv_flow_attr, type_) - 4usize];
    [
        "Offset of field: ibv_flow_attr::size",
    ][::core::mem::offset_of!(ibv_flow_attr, size) - 8usize];
    [
        "Offset of field: ibv_flow_attr::priority",
    ][::core::mem::offset_of!(ibv_flow_attr, priority) - 10usize];
    [
        "Offset of field: ibv_flow_attr::num_of_specs",
    ][::core::mem::offset_of!(ibv_flow_attr, num_of_specs) - 12usize];
    [
        "Offset of field: ibv_flow_attr::port",
    ][::core::mem::offset_of!(ibv_flow_attr, port) - 13usize];
    [
        "Offset of field: ibv_flow_attr::flags",
    ][::core::mem::offset_of!(ibv_flow_attr, flags) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow"][::core::mem::size_of::<ibv_flow>() - 24usize];
    ["Alignment of ibv_flow"][::core::mem::align_of::<ibv_flow>() - 8usize];
    [
        "Offset of field: ibv_flow::comp_mask",
    ][::core::mem::offset_of!(ibv_flow, comp_mask) - 0usize];
    [
        "Offset of field: ibv_flow::context",
    ][::core::mem::offset_of!(ibv_flow, context) - 8usize];
    [
        "Offset of field: ibv_flow::handle",
    ][::core::mem::offset_of!(ibv_flow, handle) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_flow_action"][::core::mem::size_of::<ibv_flow_action>() - 8usize];
    [
        "Alignment of ibv_flow_action",
    ][::core::mem::align_of::<ibv_flow_action>() - 8usize];
    [
        "Offset of field: ibv_flow_action::context",
    ][::core::mem::offset_of!(ibv_flow_action, context) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_flow_action_esp_attr",
    ][::core::mem::size_of::<ibv_flow_action_esp_attr>() - 56usize];
    [
        "Alignment of ibv_flow_action_esp_attr",
    ][::core::mem::align_of::<ibv_flow_action_esp_attr>() - 8usize];
    [
        "Offset of field: ibv_flow_action_esp_attr::esp_attr",
    ][::core::mem::offset_of!(ibv_flow_action_esp_attr, esp_attr) - 0usize];
    [
        "Offset of field: ibv_flow_action_esp_attr::keymat_proto",
    ][::core::mem::offset_of!(ibv_flow_action_esp_attr, keymat_proto) - 8usize];
    [
        "Offset of field: ibv_flow_action_esp_attr::keymat_len",
    ][::core::mem::offset_of!(ibv_flow_action_esp_attr, keymat_len) - 12usize];
    [
        "Offset of field: ibv_flow_action_esp_attr::keymat_ptr",
    ][::core::mem::offset_of!(ibv_flow_action_esp_attr, keymat_ptr) - 16usize];
    [
        "Offset of field: ibv_flow_action_esp_attr::replay_proto",
    ][::core::mem::offset_of!(ibv_flow_action_esp_attr, replay_proto) - 24usize];
    [
        "Offset of field: ibv_flow_action_esp_attr::replay_len",
    ][::core::mem::offset_of!(ibv_flow_action_esp_attr, replay_len) - 28usize];
    [
        "Offset of field: ibv_flow_action_esp_attr::replay_ptr",
    ][::core::mem::offset_of!(ibv_flow_action_esp_attr, replay_ptr) - 32usize];
    [
        "Offset of field: ibv_flow_action_esp_attr::esp_encap",
    ][::core::mem::offset_of!(ibv_flow_action_esp_attr, esp_encap) - 40usize];
    [
        "Offset of field: ibv_flow_action_esp_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_flow_action_esp_attr, comp_mask) - 48usize];
    [
        "Offset of field: ibv_flow_action_esp_attr::esn",
    ][::core::mem::offset_of!(ibv_flow_action_esp_attr, esn) - 52usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _ibv_device_ops"][::core::mem::size_of::<_ibv_device_ops>() - 16usize];
    [
        "Alignment of _ibv_device_ops",
    ][::core::mem::align_of::<_ibv_device_ops>() - 8usize];
    [
        "Offset of field: _ibv_device_ops::_dummy1",
    ][::core::mem::offset_of!(_ibv_device_ops, _dummy1) - 0usize];
    [
        "Offset of field: _ibv_device_ops::_dummy2",
    ][::core::mem::offset_of!(_ibv_device_ops, _dummy2) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_device"][::core::mem::size_of::<ibv_device>() - 664usize];
    ["Alignment of ibv_device"][::core::mem::align_of::<ibv_device>() - 8usize];
    [
        "Offset of field: ibv_device::_ops",
    ][::core::mem::offset_of!(ibv_device, _ops) - 0usize];
    [
        "Offset of field: ibv_device::node_type",
    ][::core::mem::offset_of!(ibv_device, node_type) - 16usize];
    [
        "Offset of field: ibv_device::transport_type",
    ][::core::mem::offset_of!(ibv_device, transport_type) - 20usize];
    [
        "Offset of field: ibv_device::name",
    ][::core::mem::offset_of!(ibv_device, name) - 24usize];
    [
        "Offset of field: ibv_device::dev_name",
    ][::core::mem::offset_of!(ibv_device, dev_name) - 88usize];
    [
        "Offset of field: ibv_device::dev_path",
    ][::core::mem::offset_of!(ibv_device, dev_path) - 152usize];
    [
        "Offset of field: ibv_device::ibdev_path",
    ][::core::mem::offset_of!(ibv_device, ibdev_path) - 408usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_context_ops"][::core::mem::size_of::<ibv_context_ops>() - 256usize];
    [
        "Alignment of ibv_context_ops",
    ][::core::mem::align_of::<ibv_context_ops>() - 8usize];
    [
        "Offset of field: ibv_context_ops::_compat_query_device",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_query_device) - 0usize];
    [
        "Offset of field: ibv_context_ops::_compat_query_port",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_query_port) - 8usize];
    [
        "Offset of field: ibv_context_ops::_compat_alloc_pd",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_alloc_pd) - 16usize];
    [
        "Offset of field: ibv_context_ops::_compat_dealloc_pd",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_dealloc_pd) - 24usize];
    [
        "Offset of field: ibv_context_ops::_compat_reg_mr",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_reg_mr) - 32usize];
    [
        "Offset of field: ibv_context_ops::_compat_rereg_mr",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_rereg_mr) - 40usize];
    [
        "Offset of field: ibv_context_ops::_compat_dereg_mr",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_dereg_mr) - 48usize];
    [
        "Offset of field: ibv_context_ops::alloc_mw",
    ][::core::mem::offset_of!(ibv_context_ops, alloc_mw) - 56usize];
    [
        "Offset of field: ibv_context_ops::bind_mw",
    ][::core::mem::offset_of!(ibv_context_ops, bind_mw) - 64usize];
    [
        "Offset of field: ibv_context_ops::dealloc_mw",
    ][::core::mem::offset_of!(ibv_context_ops, dealloc_mw) - 72usize];
    [
        "Offset of field: ibv_context_ops::_compat_create_cq",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_create_cq) - 80usize];
    [
        "Offset of field: ibv_context_ops::poll_cq",
    ][::core::mem::offset_of!(ibv_context_ops, poll_cq) - 88usize];
    [
        "Offset of field: ibv_context_ops::req_notify_cq",
    ][::core::mem::offset_of!(ibv_context_ops, req_notify_cq) - 96usize];
    [
        "Offset of field: ibv_context_ops::_compat_cq_event",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_cq_event) - 104usize];
    [
        "Offset of field: ibv_context_ops::_compat_resize_cq",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_resize_cq) - 112usize];
    [
        "Offset of field: ibv_context_ops::_compat_destroy_cq",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_destroy_cq) - 120usize];
    [
        "Offset of field: ibv_context_ops::_compat_create_srq",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_create_srq) - 128usize];
    [
        "Offset of field: ibv_context_ops::_compat_modify_srq",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_modify_srq) - 136usize];
    [
        "Offset of field: ibv_context_ops::_compat_query_srq",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_query_srq) - 144usize];
    [
        "Offset of field: ibv_context_ops::_compat_destroy_srq",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_destroy_srq) - 152usize];
    [
        "Offset of field: ibv_context_ops::post_srq_recv",
    ][::core::mem::offset_of!(ibv_context_ops, post_srq_recv) - 160usize];
    [
        "Offset of field: ibv_context_ops::_compat_create_qp",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_create_qp) - 168usize];
    [
        "Offset of field: ibv_context_ops::_compat_query_qp",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_query_qp) - 176usize];
    [
        "Offset of field: ibv_context_ops::_compat_modify_qp",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_modify_qp) - 184usize];
    [
        "Offset of field: ibv_context_ops::_compat_destroy_qp",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_destroy_qp) - 192usize];
    [
        "Offset of field: ibv_context_ops::post_send",
    ][::core::mem::offset_of!(ibv_context_ops, post_send) - 200usize];
    [
        "Offset of field: ibv_context_ops::post_recv",
    ][::core::mem::offset_of!(ibv_context_ops, post_recv) - 208usize];
    [
        "Offset of field: ibv_context_ops::_compat_create_ah",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_create_ah) - 216usize];
    [
        "Offset of field: ibv_context_ops::_compat_destroy_ah",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_destroy_ah) - 224usize];
    [
        "Offset of field: ibv_context_ops::_compat_attach_mcast",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_attach_mcast) - 232usize];
    [
        "Offset of field: ibv_context_ops::_compat_detach_mcast",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_detach_mcast) - 240usize];
    [
        "Offset of field: ibv_context_ops::_compat_async_event",
    ][::core::mem::offset_of!(ibv_context_ops, _compat_async_event) - 248usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_context"][::core::mem::size_of::<ibv_context>() - 328usize];
    ["Alignment of ibv_context"][::core::mem::align_of::<ibv_context>() - 8usize];
    [
        "Offset of field: ibv_context::device",
    ][::core::mem::offset_of!(ibv_context, device) - 0usize];
    [
        "Offset of field: ibv_context::ops",
    ][::core::mem::offset_of!(ibv_context, ops) - 8usize];
    [
        "Offset of field: ibv_context::cmd_fd",
    ][::core::mem::offset_of!(ibv_context, cmd_fd) - 264usize];
    [
        "Offset of field: ibv_context::async_fd",
    ][::core::mem::offset_of!(ibv_context, async_fd) - 268usize];
    [
        "Offset of field: ibv_context::num_comp_vectors",
    ][::core::mem::offset_of!(ibv_context, num_comp_vectors) - 272usize];
    [
        "Offset of field: ibv_context::mutex",
    ][::core::mem::offset_of!(ibv_context, mutex) - 280usize];
    [
        "Offset of field: ibv_context::abi_compat",
    ][::core::mem::offset_of!(ibv_context, abi_compat) - 320usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_cq_init_attr_ex",
    ][::core::mem::size_of::<ibv_cq_init_attr_ex>() - 56usize];
    [
        "Alignment of ibv_cq_init_attr_ex",
    ][::core::mem::align_of::<ibv_cq_init_attr_ex>() - 8usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::cqe",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, cqe) - 0usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::cq_context",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, cq_context) - 8usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::channel",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, channel) - 16usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::comp_vector",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, comp_vector) - 24usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::wc_flags",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, wc_flags) - 32usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::comp_mask",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, comp_mask) - 40usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::flags",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, flags) - 44usize];
    [
        "Offset of field: ibv_cq_init_attr_ex::parent_domain",
    ][::core::mem::offset_of!(ibv_cq_init_attr_ex, parent_domain) - 48usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_comp_cntr_caps",
    ][::core::mem::size_of::<ibv_comp_cntr_caps>() - 16usize];
    [
        "Alignment of ibv_comp_cntr_caps",
    ][::core::mem::align_of::<ibv_comp_cntr_caps>() - 8usize];
    [
        "Offset of field: ibv_comp_cntr_caps::max_value",
    ][::core::mem::offset_of!(ibv_comp_cntr_caps, max_value) - 0usize];
    [
        "Offset of field: ibv_comp_cntr_caps::max_counters",
    ][::core::mem::offset_of!(ibv_comp_cntr_caps, max_counters) - 8usize];
    [
        "Offset of field: ibv_comp_cntr_caps::supported_qp_attach_ops",
    ][::core::mem::offset_of!(ibv_comp_cntr_caps, supported_qp_attach_ops) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_comp_cntr"][::core::mem::size_of::<ibv_comp_cntr>() - 16usize];
    ["Alignment of ibv_comp_cntr"][::core::mem::align_of::<ibv_comp_cntr>() - 8usize];
    [
        "Offset of field: ibv_comp_cntr::context",
    ][::core::mem::offset_of!(ibv_comp_cntr, context) - 0usize];
    [
        "Offset of field: ibv_comp_cntr::handle",
    ][::core::mem::offset_of!(ibv_comp_cntr, handle) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_comp_cntr_init_attr",
    ][::core::mem::size_of::<ibv_comp_cntr_init_attr>() - 12usize];
    [
        "Alignment of ibv_comp_cntr_init_attr",
    ][::core::mem::align_of::<ibv_comp_cntr_init_attr>() - 4usize];
    [
        "Offset of field: ibv_comp_cntr_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_comp_cntr_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: ibv_comp_cntr_init_attr::type_",
    ][::core::mem::offset_of!(ibv_comp_cntr_init_attr, type_) - 4usize];
    [
        "Offset of field: ibv_comp_cntr_init_attr::flags",
    ][::core::mem::offset_of!(ibv_comp_cntr_init_attr, flags) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_qp_attach_comp_cntr_attr",
    ][::core::mem::size_of::<ibv_qp_attach_comp_cntr_attr>() - 8usize];
    [
        "Alignment of ibv_qp_attach_comp_cntr_attr",
    ][::core::mem::align_of::<ibv_qp_attach_comp_cntr_attr>() - 4usize];
    [
        "Offset of field: ibv_qp_attach_comp_cntr_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_qp_attach_comp_cntr_attr, comp_mask) - 0usize];
    [
        "Offset of field: ibv_qp_attach_comp_cntr_attr::op_mask",
    ][::core::mem::offset_of!(ibv_qp_attach_comp_cntr_attr, op_mask) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_parent_domain_init_attr",
    ][::core::mem::size_of::<ibv_parent_domain_init_attr>() - 48usize];
    [
        "Alignment of ibv_parent_domain_init_attr",
    ][::core::mem::align_of::<ibv_parent_domain_init_attr>() - 8usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::pd",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, pd) - 0usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::td",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, td) - 8usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, comp_mask) - 16usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::alloc",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, alloc) - 24usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::free",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, free) - 32usize];
    [
        "Offset of field: ibv_parent_domain_init_attr::pd_context",
    ][::core::mem::offset_of!(ibv_parent_domain_init_attr, pd_context) - 40usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_dmah_init_attr",
    ][::core::mem::size_of::<ibv_dmah_init_attr>() - 12usize];
    [
        "Alignment of ibv_dmah_init_attr",
    ][::core::mem::align_of::<ibv_dmah_init_attr>() - 4usize];
    [
        "Offset of field: ibv_dmah_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_dmah_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: ibv_dmah_init_attr::cpu_id",
    ][::core::mem::offset_of!(ibv_dmah_init_attr, cpu_id) - 4usize];
    [
        "Offset of field: ibv_dmah_init_attr::ph",
    ][::core::mem::offset_of!(ibv_dmah_init_attr, ph) - 8usize];
    [
        "Offset of field: ibv_dmah_init_attr::tph_mem_type",
    ][::core::mem::offset_of!(ibv_dmah_init_attr, tph_mem_type) - 9usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_counters_init_attr",
    ][::core::mem::size_of::<ibv_counters_init_attr>() - 4usize];
    [
        "Alignment of ibv_counters_init_attr",
    ][::core::mem::align_of::<ibv_counters_init_attr>() - 4usize];
    [
        "Offset of field: ibv_counters_init_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_counters_init_attr, comp_mask) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_counters"][::core::mem::size_of::<ibv_counters>() - 8usize];
    ["Alignment of ibv_counters"][::core::mem::align_of::<ibv_counters>() - 8usize];
    [
        "Offset of field: ibv_counters::context",
    ][::core::mem::offset_of!(ibv_counters, context) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_counter_attach_attr",
    ][::core::mem::size_of::<ibv_counter_attach_attr>() - 12usize];
    [
        "Alignment of ibv_counter_attach_attr",
    ][::core::mem::align_of::<ibv_counter_attach_attr>() - 4usize];
    [
        "Offset of field: ibv_counter_attach_attr::counter_desc",
    ][::core::mem::offset_of!(ibv_counter_attach_attr, counter_desc) - 0usize];
    [
        "Offset of field: ibv_counter_attach_attr::index",
    ][::core::mem::offset_of!(ibv_counter_attach_attr, index) - 4usize];
    [
        "Offset of field: ibv_counter_attach_attr::comp_mask",
    ][::core::mem::offset_of!(ibv_counter_attach_attr, comp_mask) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_values_ex"][::core::mem::size_of::<ibv_values_ex>() - 24usize];
    ["Alignment of ibv_values_ex"][::core::mem::align_of::<ibv_values_ex>() - 8usize];
    [
        "Offset of field: ibv_values_ex::comp_mask",
    ][::core::mem::offset_of!(ibv_values_ex, comp_mask) - 0usize];
    [
        "Offset of field: ibv_values_ex::raw_clock",
    ][::core::mem::offset_of!(ibv_values_ex, raw_clock) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of verbs_context"][::core::mem::size_of::<verbs_context>() - 696usize];
    ["Alignment of verbs_context"][::core::mem::align_of::<verbs_context>() - 8usize];
    [
        "Offset of field: verbs_context::free_buf",
    ][::core::mem::offset_of!(verbs_context, free_buf) - 0usize];
    [
        "Offset of field: verbs_context::alloc_buf",
    ][::core::mem::offset_of!(verbs_context, alloc_buf) - 8usize];
    [
        "Offset of field: verbs_context::dm_export_dmabuf_fd",
    ][::core::mem::offset_of!(verbs_context, dm_export_dmabuf_fd) - 16usize];
    [
        "Offset of field: verbs_context::reg_mr_ex",
    ][::core::mem::offset_of!(verbs_context, reg_mr_ex) - 24usize];
    [
        "Offset of field: verbs_context::dealloc_dmah",
    ][::core::mem::offset_of!(verbs_context, dealloc_dmah) - 32usize];
    [
        "Offset of field: verbs_context::alloc_dmah",
    ][::core::mem::offset_of!(verbs_context, alloc_dmah) - 40usize];
    [
        "Offset of field: verbs_context::query_port",
    ][::core::mem::offset_of!(verbs_context, query_port) - 48usize];
    [
        "Offset of field: verbs_context::advise_mr",
    ][::core::mem::offset_of!(verbs_context, advise_mr) - 56usize];
    [
        "Offset of field: verbs_context::alloc_null_mr",
    ][::core::mem::offset_of!(verbs_context, alloc_null_mr) - 64usize];
    [
        "Offset of field: verbs_context::read_counters",
    ][::core::mem::offset_of!(verbs_context, read_counters) - 72usize];
    [
        "Offset of field: verbs_context::attach_counters_point_flow",
    ][::core::mem::offset_of!(verbs_context, attach_counters_point_flow) - 80usize];
    [
        "Offset of field: verbs_context::create_counters",
    ][::core::mem::offset_of!(verbs_context, create_counters) - 88usize];
    [
        "Offset of field: verbs_context::destroy_counters",
    ][::core::mem::offset_of!(verbs_context, destroy_counters) - 96usize];
    [
        "Offset of field: verbs_context::reg_dm_mr",
    ][::core::mem::offset_of!(verbs_context, reg_dm_mr) - 104usize];
    [
        "Offset of field: verbs_context::alloc_dm",
    ][::core::mem::offset_of!(verbs_context, alloc_dm) - 112usize];
    [
        "Offset of field: verbs_context::free_dm",
    ][::core::mem::offset_of!(verbs_context, free_dm) - 120usize];
    [
        "Offset of field: verbs_context::modify_flow_action_esp",
    ][::core::mem::offset_of!(verbs_context, modify_flow_action_esp) - 128usize];
    [
        "Offset of field: verbs_context::destroy_flow_action",
    ][::core::mem::offset_of!(verbs_context, destroy_flow_action) - 136usize];
    [
        "Offset of field: verbs_context::create_flow_action_esp",
    ][::core::mem::offset_of!(verbs_context, create_flow_action_esp) - 144usize];
    [
        "Offset of field: verbs_context::modify_qp_rate_limit",
    ][::core::mem::offset_of!(verbs_context, modify_qp_rate_limit) - 152usize];
    [
        "Offset of field: verbs_context::alloc_parent_domain",
    ][::core::mem::offset_of!(verbs_context, alloc_parent_domain) - 160usize];
    [
        "Offset of field: verbs_context::dealloc_td",
    ][::core::mem::offset_of!(verbs_context, dealloc_td) - 168usize];
    [
        "Offset of field: verbs_context::alloc_td",
    ][::core::mem::offset_of!(verbs_context, alloc_td) - 176usize];
    [
        "Offset of field: verbs_context::modify_cq",
    ][::core::mem::offset_of!(verbs_context, modify_cq) - 184usize];
    [
        "Offset of field: verbs_context::post_srq_ops",
    ][::core::mem::offset_of!(verbs_context, post_srq_ops) - 192usize];
    [
        "Offset of field: verbs_context::destroy_rwq_ind_table",
    ][::core::mem::offset_of!(verbs_context, destroy_rwq_ind_table) - 200usize];
    [
        "Offset of field: verbs_context::create_rwq_ind_table",
    ][::core::mem::offset_of!(verbs_context, create_rwq_ind_table) - 208usize];
    [
        "Offset of field: verbs_context::destroy_wq",
    ][::core::mem::offset_of!(verbs_context, destroy_wq) - 216usize];
    [
        "Offset of field: verbs_context::modify_wq",
    ][::core::mem::offset_of!(verbs_context, modify_wq) - 224usize];
    [
        "Offset of field: verbs_context::create_wq",
    ][::core::mem::offset_of!(verbs_context, create_wq) - 232usize];
    [
        "Offset of field: verbs_context::query_rt_values",
    ][::core::mem::offset_of!(verbs_context, query_rt_values) - 240usize];
    [
        "Offset of field: verbs_context::create_cq_ex",
    ][::core::mem::offset_of!(verbs_context, create_cq_ex) - 248usize];
    [
        "Offset of field: verbs_context::priv_",
    ][::core::mem::offset_of!(verbs_context, priv_) - 256usize];
    [
        "Offset of field: verbs_context::query_device_ex",
    ][::core::mem::offset_of!(verbs_context, query_device_ex) - 264usize];
    [
        "Offset of field: verbs_context::ibv_destroy_flow",
    ][::core::mem::offset_of!(verbs_context, ibv_destroy_flow) - 272usize];
    [
        "Offset of field: verbs_context::ABI_placeholder2",
    ][::core::mem::offset_of!(verbs_context, ABI_placeholder2) - 280usize];
    [
        "Offset of field: verbs_context::ibv_create_flow",
    ][::core::mem::offset_of!(verbs_context, ibv_create_flow) - 288usize];
    [
        "Offset of field: verbs_context::ABI_placeholder1",
    ][::core::mem::offset_of!(verbs_context, ABI_placeholder1) - 296usize];
    [
        "Offset of field: verbs_context::open_qp",
    ][::core::mem::offset_of!(verbs_context, open_qp) - 304usize];
    [
        "Offset of field: verbs_context::create_qp_ex",
    ][::core::mem::offset_of!(verbs_context, create_qp_ex) - 312usize];
    [
        "Offset of field: verbs_context::get_srq_num",
    ][::core::mem::offset_of!(verbs_context, get_srq_num) - 320usize];
    [
        "Offset of field: verbs_context::create_srq_ex",
    ][::core::mem::offset_of!(verbs_context, create_srq_ex) - 328usize];
    [
        "Offset of field: verbs_context::open_xrcd",
    ][::core::mem::offset_of!(verbs_context, open_xrcd) - 336usize];
    [
        "Offset of field: verbs_context::close_xrcd",
    ][::core::mem::offset_of!(verbs_context, close_xrcd) - 344usize];
    [
        "Offset of field: verbs_context::_ABI_placeholder3",
    ][::core::mem::offset_of!(verbs_context, _ABI_placeholder3) - 352usize];
    [
        "Offset of field: verbs_context::sz",
    ][::core::mem::offset_of!(verbs_context, sz) - 360usize];
    [
        "Offset of field: verbs_context::context",
    ][::core::mem::offset_of!(verbs_context, context) - 368usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_tmh"][::core::mem::size_of::<ibv_tmh>() - 16usize];
    ["Alignment of ibv_tmh"][::core::mem::align_of::<ibv_tmh>() - 8usize];
    [
        "Offset of field: ibv_tmh::opcode",
    ][::core::mem::offset_of!(ibv_tmh, opcode) - 0usize];
    [
        "Offset of field: ibv_tmh::reserved",
    ][::core::mem::offset_of!(ibv_tmh, reserved) - 1usize];
    [
        "Offset of field: ibv_tmh::app_ctx",
    ][::core::mem::offset_of!(ibv_tmh, app_ctx) - 4usize];
    ["Offset of field: ibv_tmh::tag"][::core::mem::offset_of!(ibv_tmh, tag) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_rvh"][::core::mem::size_of::<ibv_rvh>() - 16usize];
    ["Alignment of ibv_rvh"][::core::mem::align_of::<ibv_rvh>() - 8usize];
    ["Offset of field: ibv_rvh::va"][::core::mem::offset_of!(ibv_rvh, va) - 0usize];
    ["Offset of field: ibv_rvh::rkey"][::core::mem::offset_of!(ibv_rvh, rkey) - 8usize];
    ["Offset of field: ibv_rvh::len"][::core::mem::offset_of!(ibv_rvh, len) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_ib_uapi_devx_async_cmd_hdr",
    ][::core::mem::size_of::<mlx5_ib_uapi_devx_async_cmd_hdr>() - 8usize];
    [
        "Alignment of mlx5_ib_uapi_devx_async_cmd_hdr",
    ][::core::mem::align_of::<mlx5_ib_uapi_devx_async_cmd_hdr>() - 8usize];
    [
        "Offset of field: mlx5_ib_uapi_devx_async_cmd_hdr::wr_id",
    ][::core::mem::offset_of!(mlx5_ib_uapi_devx_async_cmd_hdr, wr_id) - 0usize];
    [
        "Offset of field: mlx5_ib_uapi_devx_async_cmd_hdr::out_data",
    ][::core::mem::offset_of!(mlx5_ib_uapi_devx_async_cmd_hdr, out_data) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_ib_uapi_devx_async_event_hdr",
    ][::core::mem::size_of::<mlx5_ib_uapi_devx_async_event_hdr>() - 8usize];
    [
        "Alignment of mlx5_ib_uapi_devx_async_event_hdr",
    ][::core::mem::align_of::<mlx5_ib_uapi_devx_async_event_hdr>() - 8usize];
    [
        "Offset of field: mlx5_ib_uapi_devx_async_event_hdr::cookie",
    ][::core::mem::offset_of!(mlx5_ib_uapi_devx_async_event_hdr, cookie) - 0usize];
    [
        "Offset of field: mlx5_ib_uapi_devx_async_event_hdr::out_data",
    ][::core::mem::offset_of!(mlx5_ib_uapi_devx_async_event_hdr, out_data) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5_ib_uapi_reg"][::core::mem::size_of::<mlx5_ib_uapi_reg>() - 8usize];
    [
        "Alignment of mlx5_ib_uapi_reg",
    ][::core::mem::align_of::<mlx5_ib_uapi_reg>() - 4usize];
    [
        "Offset of field: mlx5_ib_uapi_reg::value",
    ][::core::mem::offset_of!(mlx5_ib_uapi_reg, value) - 0usize];
    [
        "Offset of field: mlx5_ib_uapi_reg::mask",
    ][::core::mem::offset_of!(mlx5_ib_uapi_reg, mask) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_ib_uapi_query_port",
    ][::core::mem::size_of::<mlx5_ib_uapi_query_port>() - 40usize];
    [
        "Alignment of mlx5_ib_uapi_query_port",
    ][::core::mem::align_of::<mlx5_ib_uapi_query_port>() - 8usize];
    [
        "Offset of field: mlx5_ib_uapi_query_port::flags",
    ][::core::mem::offset_of!(mlx5_ib_uapi_query_port, flags) - 0usize];
    [
        "Offset of field: mlx5_ib_uapi_query_port::vport",
    ][::core::mem::offset_of!(mlx5_ib_uapi_query_port, vport) - 8usize];
    [
        "Offset of field: mlx5_ib_uapi_query_port::vport_vhca_id",
    ][::core::mem::offset_of!(mlx5_ib_uapi_query_port, vport_vhca_id) - 10usize];
    [
        "Offset of field: mlx5_ib_uapi_query_port::esw_owner_vhca_id",
    ][::core::mem::offset_of!(mlx5_ib_uapi_query_port, esw_owner_vhca_id) - 12usize];
    [
        "Offset of field: mlx5_ib_uapi_query_port::rsvd0",
    ][::core::mem::offset_of!(mlx5_ib_uapi_query_port, rsvd0) - 14usize];
    [
        "Offset of field: mlx5_ib_uapi_query_port::vport_steering_icm_rx",
    ][::core::mem::offset_of!(mlx5_ib_uapi_query_port, vport_steering_icm_rx) - 16usize];
    [
        "Offset of field: mlx5_ib_uapi_query_port::vport_steering_icm_tx",
    ][::core::mem::offset_of!(mlx5_ib_uapi_query_port, vport_steering_icm_tx) - 24usize];
    [
        "Offset of field: mlx5_ib_uapi_query_port::reg_c0",
    ][::core::mem::offset_of!(mlx5_ib_uapi_query_port, reg_c0) - 32usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_cqe_comp_caps",
    ][::core::mem::size_of::<mlx5dv_cqe_comp_caps>() - 8usize];
    [
        "Alignment of mlx5dv_cqe_comp_caps",
    ][::core::mem::align_of::<mlx5dv_cqe_comp_caps>() - 4usize];
    [
        "Offset of field: mlx5dv_cqe_comp_caps::max_num",
    ][::core::mem::offset_of!(mlx5dv_cqe_comp_caps, max_num) - 0usize];
    [
        "Offset of field: mlx5dv_cqe_comp_caps::supported_format",
    ][::core::mem::offset_of!(mlx5dv_cqe_comp_caps, supported_format) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_sw_parsing_caps",
    ][::core::mem::size_of::<mlx5dv_sw_parsing_caps>() - 8usize];
    [
        "Alignment of mlx5dv_sw_parsing_caps",
    ][::core::mem::align_of::<mlx5dv_sw_parsing_caps>() - 4usize];
    [
        "Offset of field: mlx5dv_sw_parsing_caps::sw_parsing_offloads",
    ][::core::mem::offset_of!(mlx5dv_sw_parsing_caps, sw_parsing_offloads) - 0usize];
    [
        "Offset of field: mlx5dv_sw_parsing_caps::supported_qpts",
    ][::core::mem::offset_of!(mlx5dv_sw_parsing_caps, supported_qpts) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_striding_rq_caps",
    ][::core::mem::size_of::<mlx5dv_striding_rq_caps>() - 20usize];
    [
        "Alignment of mlx5dv_striding_rq_caps",
    ][::core::mem::align_of::<mlx5dv_striding_rq_caps>() - 4usize];
    [
        "Offset of field: mlx5dv_striding_rq_caps::min_single_stride_log_num_of_bytes",
    ][::core::mem::offset_of!(
        mlx5dv_striding_rq_caps, min_single_stride_log_num_of_bytes
    ) - 0usize];
    [
        "Offset of field: mlx5dv_striding_rq_caps::max_single_stride_log_num_of_bytes",
    ][::core::mem::offset_of!(
        mlx5dv_striding_rq_caps, max_single_stride_log_num_of_bytes
    ) - 4usize];
    [
        "Offset of field: mlx5dv_striding_rq_caps::min_single_wqe_log_num_of_strides",
    ][::core::mem::offset_of!(mlx5dv_striding_rq_caps, min_single_wqe_log_num_of_strides)
        - 8usize];
    [
        "Offset of field: mlx5dv_striding_rq_caps::max_single_wqe_log_num_of_strides",
    ][::core::mem::offset_of!(mlx5dv_striding_rq_caps, max_single_wqe_log_num_of_strides)
        - 12usize];
    [
        "Offset of field: mlx5dv_striding_rq_caps::supported_qpts",
    ][::core::mem::offset_of!(mlx5dv_striding_rq_caps, supported_qpts) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_dci_streams_caps",
    ][::core::mem::size_of::<mlx5dv_dci_streams_caps>() - 2usize];
    [
        "Alignment of mlx5dv_dci_streams_caps",
    ][::core::mem::align_of::<mlx5dv_dci_streams_caps>() - 1usize];
    [
        "Offset of field: mlx5dv_dci_streams_caps::max_log_num_concurent",
    ][::core::mem::offset_of!(mlx5dv_dci_streams_caps, max_log_num_concurent) - 0usize];
    [
        "Offset of field: mlx5dv_dci_streams_caps::max_log_num_errored",
    ][::core::mem::offset_of!(mlx5dv_dci_streams_caps, max_log_num_errored) - 1usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_sig_caps"][::core::mem::size_of::<mlx5dv_sig_caps>() - 16usize];
    [
        "Alignment of mlx5dv_sig_caps",
    ][::core::mem::align_of::<mlx5dv_sig_caps>() - 8usize];
    [
        "Offset of field: mlx5dv_sig_caps::block_size",
    ][::core::mem::offset_of!(mlx5dv_sig_caps, block_size) - 0usize];
    [
        "Offset of field: mlx5dv_sig_caps::block_prot",
    ][::core::mem::offset_of!(mlx5dv_sig_caps, block_prot) - 8usize];
    [
        "Offset of field: mlx5dv_sig_caps::t10dif_bg",
    ][::core::mem::offset_of!(mlx5dv_sig_caps, t10dif_bg) - 12usize];
    [
        "Offset of field: mlx5dv_sig_caps::crc_type",
    ][::core::mem::offset_of!(mlx5dv_sig_caps, crc_type) - 14usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_crypto_caps",
    ][::core::mem::size_of::<mlx5dv_crypto_caps>() - 12usize];
    [
        "Alignment of mlx5dv_crypto_caps",
    ][::core::mem::align_of::<mlx5dv_crypto_caps>() - 4usize];
    [
        "Offset of field: mlx5dv_crypto_caps::failed_selftests",
    ][::core::mem::offset_of!(mlx5dv_crypto_caps, failed_selftests) - 0usize];
    [
        "Offset of field: mlx5dv_crypto_caps::crypto_engines",
    ][::core::mem::offset_of!(mlx5dv_crypto_caps, crypto_engines) - 2usize];
    [
        "Offset of field: mlx5dv_crypto_caps::wrapped_import_method",
    ][::core::mem::offset_of!(mlx5dv_crypto_caps, wrapped_import_method) - 3usize];
    [
        "Offset of field: mlx5dv_crypto_caps::log_max_num_deks",
    ][::core::mem::offset_of!(mlx5dv_crypto_caps, log_max_num_deks) - 4usize];
    [
        "Offset of field: mlx5dv_crypto_caps::flags",
    ][::core::mem::offset_of!(mlx5dv_crypto_caps, flags) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_ooo_recv_wrs_caps",
    ][::core::mem::size_of::<mlx5dv_ooo_recv_wrs_caps>() - 20usize];
    [
        "Alignment of mlx5dv_ooo_recv_wrs_caps",
    ][::core::mem::align_of::<mlx5dv_ooo_recv_wrs_caps>() - 4usize];
    [
        "Offset of field: mlx5dv_ooo_recv_wrs_caps::max_rc",
    ][::core::mem::offset_of!(mlx5dv_ooo_recv_wrs_caps, max_rc) - 0usize];
    [
        "Offset of field: mlx5dv_ooo_recv_wrs_caps::max_xrc",
    ][::core::mem::offset_of!(mlx5dv_ooo_recv_wrs_caps, max_xrc) - 4usize];
    [
        "Offset of field: mlx5dv_ooo_recv_wrs_caps::max_dct",
    ][::core::mem::offset_of!(mlx5dv_ooo_recv_wrs_caps, max_dct) - 8usize];
    [
        "Offset of field: mlx5dv_ooo_recv_wrs_caps::max_ud",
    ][::core::mem::offset_of!(mlx5dv_ooo_recv_wrs_caps, max_ud) - 12usize];
    [
        "Offset of field: mlx5dv_ooo_recv_wrs_caps::max_uc",
    ][::core::mem::offset_of!(mlx5dv_ooo_recv_wrs_caps, max_uc) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_context"][::core::mem::size_of::<mlx5dv_context>() - 200usize];
    ["Alignment of mlx5dv_context"][::core::mem::align_of::<mlx5dv_context>() - 8usize];
    [
        "Offset of field: mlx5dv_context::version",
    ][::core::mem::offset_of!(mlx5dv_context, version) - 0usize];
    [
        "Offset of field: mlx5dv_context::flags",
    ][::core::mem::offset_of!(mlx5dv_context, flags) - 8usize];
    [
        "Offset of field: mlx5dv_context::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_context, comp_mask) - 16usize];
    [
        "Offset of field: mlx5dv_context::cqe_comp_caps",
    ][::core::mem::offset_of!(mlx5dv_context, cqe_comp_caps) - 24usize];
    [
        "Offset of field: mlx5dv_context::sw_parsing_caps",
    ][::core::mem::offset_of!(mlx5dv_context, sw_parsing_caps) - 32usize];
    [
        "Offset of field: mlx5dv_context::striding_rq_caps",
    ][::core::mem::offset_of!(mlx5dv_context, striding_rq_caps) - 40usize];
    [
        "Offset of field: mlx5dv_context::tunnel_offloads_caps",
    ][::core::mem::offset_of!(mlx5dv_context, tunnel_offloads_caps) - 60usize];
    [
        "Offset of field: mlx5dv_context::max_dynamic_bfregs",
    ][::core::mem::offset_of!(mlx5dv_context, max_dynamic_bfregs) - 64usize];
    [
        "Offset of field: mlx5dv_context::max_clock_info_update_nsec",
    ][::core::mem::offset_of!(mlx5dv_context, max_clock_info_update_nsec) - 72usize];
    [
        "Offset of field: mlx5dv_context::flow_action_flags",
    ][::core::mem::offset_of!(mlx5dv_context, flow_action_flags) - 80usize];
    [
        "Offset of field: mlx5dv_context::dc_odp_caps",
    ][::core::mem::offset_of!(mlx5dv_context, dc_odp_caps) - 84usize];
    [
        "Offset of field: mlx5dv_context::hca_core_clock",
    ][::core::mem::offset_of!(mlx5dv_context, hca_core_clock) - 88usize];
    [
        "Offset of field: mlx5dv_context::num_lag_ports",
    ][::core::mem::offset_of!(mlx5dv_context, num_lag_ports) - 96usize];
    [
        "Offset of field: mlx5dv_context::sig_caps",
    ][::core::mem::offset_of!(mlx5dv_context, sig_caps) - 104usize];
    [
        "Offset of field: mlx5dv_context::dci_streams_caps",
    ][::core::mem::offset_of!(mlx5dv_context, dci_streams_caps) - 120usize];
    [
        "Offset of field: mlx5dv_context::max_wr_memcpy_length",
    ][::core::mem::offset_of!(mlx5dv_context, max_wr_memcpy_length) - 128usize];
    [
        "Offset of field: mlx5dv_context::crypto_caps",
    ][::core::mem::offset_of!(mlx5dv_context, crypto_caps) - 136usize];
    [
        "Offset of field: mlx5dv_context::max_dc_rd_atom",
    ][::core::mem::offset_of!(mlx5dv_context, max_dc_rd_atom) - 152usize];
    [
        "Offset of field: mlx5dv_context::max_dc_init_rd_atom",
    ][::core::mem::offset_of!(mlx5dv_context, max_dc_init_rd_atom) - 160usize];
    [
        "Offset of field: mlx5dv_context::reg_c0",
    ][::core::mem::offset_of!(mlx5dv_context, reg_c0) - 168usize];
    [
        "Offset of field: mlx5dv_context::ooo_recv_wrs_caps",
    ][::core::mem::offset_of!(mlx5dv_context, ooo_recv_wrs_caps) - 176usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_cq_init_attr",
    ][::core::mem::size_of::<mlx5dv_cq_init_attr>() - 24usize];
    [
        "Alignment of mlx5dv_cq_init_attr",
    ][::core::mem::align_of::<mlx5dv_cq_init_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_cq_init_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_cq_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: mlx5dv_cq_init_attr::cqe_comp_res_format",
    ][::core::mem::offset_of!(mlx5dv_cq_init_attr, cqe_comp_res_format) - 8usize];
    [
        "Offset of field: mlx5dv_cq_init_attr::flags",
    ][::core::mem::offset_of!(mlx5dv_cq_init_attr, flags) - 12usize];
    [
        "Offset of field: mlx5dv_cq_init_attr::cqe_size",
    ][::core::mem::offset_of!(mlx5dv_cq_init_attr, cqe_size) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_mkey_init_attr",
    ][::core::mem::size_of::<mlx5dv_mkey_init_attr>() - 16usize];
    [
        "Alignment of mlx5dv_mkey_init_attr",
    ][::core::mem::align_of::<mlx5dv_mkey_init_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_mkey_init_attr::pd",
    ][::core::mem::offset_of!(mlx5dv_mkey_init_attr, pd) - 0usize];
    [
        "Offset of field: mlx5dv_mkey_init_attr::create_flags",
    ][::core::mem::offset_of!(mlx5dv_mkey_init_attr, create_flags) - 8usize];
    [
        "Offset of field: mlx5dv_mkey_init_attr::max_entries",
    ][::core::mem::offset_of!(mlx5dv_mkey_init_attr, max_entries) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_mkey"][::core::mem::size_of::<mlx5dv_mkey>() - 8usize];
    ["Alignment of mlx5dv_mkey"][::core::mem::align_of::<mlx5dv_mkey>() - 4usize];
    [
        "Offset of field: mlx5dv_mkey::lkey",
    ][::core::mem::offset_of!(mlx5dv_mkey, lkey) - 0usize];
    [
        "Offset of field: mlx5dv_mkey::rkey",
    ][::core::mem::offset_of!(mlx5dv_mkey, rkey) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_dci_streams",
    ][::core::mem::size_of::<mlx5dv_dci_streams>() - 2usize];
    [
        "Alignment of mlx5dv_dci_streams",
    ][::core::mem::align_of::<mlx5dv_dci_streams>() - 1usize];
    [
        "Offset of field: mlx5dv_dci_streams::log_num_concurent",
    ][::core::mem::offset_of!(mlx5dv_dci_streams, log_num_concurent) - 0usize];
    [
        "Offset of field: mlx5dv_dci_streams::log_num_errored",
    ][::core::mem::offset_of!(mlx5dv_dci_streams, log_num_errored) - 1usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_dc_init_attr__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5dv_dc_init_attr__bindgen_ty_1>() - 8usize];
    [
        "Alignment of mlx5dv_dc_init_attr__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5dv_dc_init_attr__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: mlx5dv_dc_init_attr__bindgen_ty_1::dct_access_key",
    ][::core::mem::offset_of!(mlx5dv_dc_init_attr__bindgen_ty_1, dct_access_key)
        - 0usize];
    [
        "Offset of field: mlx5dv_dc_init_attr__bindgen_ty_1::dci_streams",
    ][::core::mem::offset_of!(mlx5dv_dc_init_attr__bindgen_ty_1, dci_streams) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_dc_init_attr",
    ][::core::mem::size_of::<mlx5dv_dc_init_attr>() - 16usize];
    [
        "Alignment of mlx5dv_dc_init_attr",
    ][::core::mem::align_of::<mlx5dv_dc_init_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_dc_init_attr::dc_type",
    ][::core::mem::offset_of!(mlx5dv_dc_init_attr, dc_type) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_qp_init_attr",
    ][::core::mem::size_of::<mlx5dv_qp_init_attr>() - 40usize];
    [
        "Alignment of mlx5dv_qp_init_attr",
    ][::core::mem::align_of::<mlx5dv_qp_init_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_qp_init_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_qp_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: mlx5dv_qp_init_attr::create_flags",
    ][::core::mem::offset_of!(mlx5dv_qp_init_attr, create_flags) - 8usize];
    [
        "Offset of field: mlx5dv_qp_init_attr::dc_init_attr",
    ][::core::mem::offset_of!(mlx5dv_qp_init_attr, dc_init_attr) - 16usize];
    [
        "Offset of field: mlx5dv_qp_init_attr::send_ops_flags",
    ][::core::mem::offset_of!(mlx5dv_qp_init_attr, send_ops_flags) - 32usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_mr_interleaved",
    ][::core::mem::size_of::<mlx5dv_mr_interleaved>() - 24usize];
    [
        "Alignment of mlx5dv_mr_interleaved",
    ][::core::mem::align_of::<mlx5dv_mr_interleaved>() - 8usize];
    [
        "Offset of field: mlx5dv_mr_interleaved::addr",
    ][::core::mem::offset_of!(mlx5dv_mr_interleaved, addr) - 0usize];
    [
        "Offset of field: mlx5dv_mr_interleaved::bytes_count",
    ][::core::mem::offset_of!(mlx5dv_mr_interleaved, bytes_count) - 8usize];
    [
        "Offset of field: mlx5dv_mr_interleaved::bytes_skip",
    ][::core::mem::offset_of!(mlx5dv_mr_interleaved, bytes_skip) - 12usize];
    [
        "Offset of field: mlx5dv_mr_interleaved::lkey",
    ][::core::mem::offset_of!(mlx5dv_mr_interleaved, lkey) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_sig_t10dif"][::core::mem::size_of::<mlx5dv_sig_t10dif>() - 16usize];
    [
        "Alignment of mlx5dv_sig_t10dif",
    ][::core::mem::align_of::<mlx5dv_sig_t10dif>() - 4usize];
    [
        "Offset of field: mlx5dv_sig_t10dif::bg_type",
    ][::core::mem::offset_of!(mlx5dv_sig_t10dif, bg_type) - 0usize];
    [
        "Offset of field: mlx5dv_sig_t10dif::bg",
    ][::core::mem::offset_of!(mlx5dv_sig_t10dif, bg) - 4usize];
    [
        "Offset of field: mlx5dv_sig_t10dif::app_tag",
    ][::core::mem::offset_of!(mlx5dv_sig_t10dif, app_tag) - 6usize];
    [
        "Offset of field: mlx5dv_sig_t10dif::ref_tag",
    ][::core::mem::offset_of!(mlx5dv_sig_t10dif, ref_tag) - 8usize];
    [
        "Offset of field: mlx5dv_sig_t10dif::flags",
    ][::core::mem::offset_of!(mlx5dv_sig_t10dif, flags) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_sig_crc"][::core::mem::size_of::<mlx5dv_sig_crc>() - 16usize];
    ["Alignment of mlx5dv_sig_crc"][::core::mem::align_of::<mlx5dv_sig_crc>() - 8usize];
    [
        "Offset of field: mlx5dv_sig_crc::type_",
    ][::core::mem::offset_of!(mlx5dv_sig_crc, type_) - 0usize];
    [
        "Offset of field: mlx5dv_sig_crc::seed",
    ][::core::mem::offset_of!(mlx5dv_sig_crc, seed) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_sig_block_domain__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5dv_sig_block_domain__bindgen_ty_1>() - 8usize];
    [
        "Alignment of mlx5dv_sig_block_domain__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5dv_sig_block_domain__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: mlx5dv_sig_block_domain__bindgen_ty_1::dif",
    ][::core::mem::offset_of!(mlx5dv_sig_block_domain__bindgen_ty_1, dif) - 0usize];
    [
        "Offset of field: mlx5dv_sig_block_domain__bindgen_ty_1::crc",
    ][::core::mem::offset_of!(mlx5dv_sig_block_domain__bindgen_ty_1, crc) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_sig_block_domain",
    ][::core::mem::size_of::<mlx5dv_sig_block_domain>() - 32usize];
    [
        "Alignment of mlx5dv_sig_block_domain",
    ][::core::mem::align_of::<mlx5dv_sig_block_domain>() - 8usize];
    [
        "Offset of field: mlx5dv_sig_block_domain::sig_type",
    ][::core::mem::offset_of!(mlx5dv_sig_block_domain, sig_type) - 0usize];
    [
        "Offset of field: mlx5dv_sig_block_domain::sig",
    ][::core::mem::offset_of!(mlx5dv_sig_block_domain, sig) - 8usize];
    [
        "Offset of field: mlx5dv_sig_block_domain::block_size",
    ][::core::mem::offset_of!(mlx5dv_sig_block_domain, block_size) - 16usize];
    [
        "Offset of field: mlx5dv_sig_block_domain::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_sig_block_domain, comp_mask) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_sig_block_attr",
    ][::core::mem::size_of::<mlx5dv_sig_block_attr>() - 32usize];
    [
        "Alignment of mlx5dv_sig_block_attr",
    ][::core::mem::align_of::<mlx5dv_sig_block_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_sig_block_attr::mem",
    ][::core::mem::offset_of!(mlx5dv_sig_block_attr, mem) - 0usize];
    [
        "Offset of field: mlx5dv_sig_block_attr::wire",
    ][::core::mem::offset_of!(mlx5dv_sig_block_attr, wire) - 8usize];
    [
        "Offset of field: mlx5dv_sig_block_attr::flags",
    ][::core::mem::offset_of!(mlx5dv_sig_block_attr, flags) - 16usize];
    [
        "Offset of field: mlx5dv_sig_block_attr::check_mask",
    ][::core::mem::offset_of!(mlx5dv_sig_block_attr, check_mask) - 20usize];
    [
        "Offset of field: mlx5dv_sig_block_attr::copy_mask",
    ][::core::mem::offset_of!(mlx5dv_sig_block_attr, copy_mask) - 21usize];
    [
        "Offset of field: mlx5dv_sig_block_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_sig_block_attr, comp_mask) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_crypto_attr",
    ][::core::mem::size_of::<mlx5dv_crypto_attr>() - 56usize];
    [
        "Alignment of mlx5dv_crypto_attr",
    ][::core::mem::align_of::<mlx5dv_crypto_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_crypto_attr::crypto_standard",
    ][::core::mem::offset_of!(mlx5dv_crypto_attr, crypto_standard) - 0usize];
    [
        "Offset of field: mlx5dv_crypto_attr::encrypt_on_tx",
    ][::core::mem::offset_of!(mlx5dv_crypto_attr, encrypt_on_tx) - 4usize];
    [
        "Offset of field: mlx5dv_crypto_attr::signature_crypto_order",
    ][::core::mem::offset_of!(mlx5dv_crypto_attr, signature_crypto_order) - 8usize];
    [
        "Offset of field: mlx5dv_crypto_attr::data_unit_size",
    ][::core::mem::offset_of!(mlx5dv_crypto_attr, data_unit_size) - 12usize];
    [
        "Offset of field: mlx5dv_crypto_attr::initial_tweak",
    ][::core::mem::offset_of!(mlx5dv_crypto_attr, initial_tweak) - 16usize];
    [
        "Offset of field: mlx5dv_crypto_attr::dek",
    ][::core::mem::offset_of!(mlx5dv_crypto_attr, dek) - 32usize];
    [
        "Offset of field: mlx5dv_crypto_attr::keytag",
    ][::core::mem::offset_of!(mlx5dv_crypto_attr, keytag) - 40usize];
    [
        "Offset of field: mlx5dv_crypto_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_crypto_attr, comp_mask) - 48usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_mkey_conf_attr",
    ][::core::mem::size_of::<mlx5dv_mkey_conf_attr>() - 16usize];
    [
        "Alignment of mlx5dv_mkey_conf_attr",
    ][::core::mem::align_of::<mlx5dv_mkey_conf_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_mkey_conf_attr::conf_flags",
    ][::core::mem::offset_of!(mlx5dv_mkey_conf_attr, conf_flags) - 0usize];
    [
        "Offset of field: mlx5dv_mkey_conf_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_mkey_conf_attr, comp_mask) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_qp_ex"][::core::mem::size_of::<mlx5dv_qp_ex>() - 104usize];
    ["Alignment of mlx5dv_qp_ex"][::core::mem::align_of::<mlx5dv_qp_ex>() - 8usize];
    [
        "Offset of field: mlx5dv_qp_ex::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, comp_mask) - 0usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_set_dc_addr",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_set_dc_addr) - 8usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_mr_interleaved",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_mr_interleaved) - 16usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_mr_list",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_mr_list) - 24usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_mkey_configure",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_mkey_configure) - 32usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_set_mkey_access_flags",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_set_mkey_access_flags) - 40usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_set_mkey_layout_list",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_set_mkey_layout_list) - 48usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_set_mkey_layout_interleaved",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_set_mkey_layout_interleaved) - 56usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_set_mkey_sig_block",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_set_mkey_sig_block) - 64usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_raw_wqe",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_raw_wqe) - 72usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_set_dc_addr_stream",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_set_dc_addr_stream) - 80usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_memcpy",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_memcpy) - 88usize];
    [
        "Offset of field: mlx5dv_qp_ex::wr_set_mkey_crypto",
    ][::core::mem::offset_of!(mlx5dv_qp_ex, wr_set_mkey_crypto) - 96usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_sig_err"][::core::mem::size_of::<mlx5dv_sig_err>() - 24usize];
    ["Alignment of mlx5dv_sig_err"][::core::mem::align_of::<mlx5dv_sig_err>() - 8usize];
    [
        "Offset of field: mlx5dv_sig_err::actual_value",
    ][::core::mem::offset_of!(mlx5dv_sig_err, actual_value) - 0usize];
    [
        "Offset of field: mlx5dv_sig_err::expected_value",
    ][::core::mem::offset_of!(mlx5dv_sig_err, expected_value) - 8usize];
    [
        "Offset of field: mlx5dv_sig_err::offset",
    ][::core::mem::offset_of!(mlx5dv_sig_err, offset) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_mkey_err__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5dv_mkey_err__bindgen_ty_1>() - 24usize];
    [
        "Alignment of mlx5dv_mkey_err__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5dv_mkey_err__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: mlx5dv_mkey_err__bindgen_ty_1::sig",
    ][::core::mem::offset_of!(mlx5dv_mkey_err__bindgen_ty_1, sig) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_mkey_err"][::core::mem::size_of::<mlx5dv_mkey_err>() - 32usize];
    [
        "Alignment of mlx5dv_mkey_err",
    ][::core::mem::align_of::<mlx5dv_mkey_err>() - 8usize];
    [
        "Offset of field: mlx5dv_mkey_err::err_type",
    ][::core::mem::offset_of!(mlx5dv_mkey_err, err_type) - 0usize];
    [
        "Offset of field: mlx5dv_mkey_err::err",
    ][::core::mem::offset_of!(mlx5dv_mkey_err, err) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_crypto_login_attr",
    ][::core::mem::size_of::<mlx5dv_crypto_login_attr>() - 64usize];
    [
        "Alignment of mlx5dv_crypto_login_attr",
    ][::core::mem::align_of::<mlx5dv_crypto_login_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_crypto_login_attr::credential_id",
    ][::core::mem::offset_of!(mlx5dv_crypto_login_attr, credential_id) - 0usize];
    [
        "Offset of field: mlx5dv_crypto_login_attr::import_kek_id",
    ][::core::mem::offset_of!(mlx5dv_crypto_login_attr, import_kek_id) - 4usize];
    [
        "Offset of field: mlx5dv_crypto_login_attr::credential",
    ][::core::mem::offset_of!(mlx5dv_crypto_login_attr, credential) - 8usize];
    [
        "Offset of field: mlx5dv_crypto_login_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_crypto_login_attr, comp_mask) - 56usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_crypto_login_attr_ex",
    ][::core::mem::size_of::<mlx5dv_crypto_login_attr_ex>() - 32usize];
    [
        "Alignment of mlx5dv_crypto_login_attr_ex",
    ][::core::mem::align_of::<mlx5dv_crypto_login_attr_ex>() - 8usize];
    [
        "Offset of field: mlx5dv_crypto_login_attr_ex::credential_id",
    ][::core::mem::offset_of!(mlx5dv_crypto_login_attr_ex, credential_id) - 0usize];
    [
        "Offset of field: mlx5dv_crypto_login_attr_ex::import_kek_id",
    ][::core::mem::offset_of!(mlx5dv_crypto_login_attr_ex, import_kek_id) - 4usize];
    [
        "Offset of field: mlx5dv_crypto_login_attr_ex::credential",
    ][::core::mem::offset_of!(mlx5dv_crypto_login_attr_ex, credential) - 8usize];
    [
        "Offset of field: mlx5dv_crypto_login_attr_ex::credential_len",
    ][::core::mem::offset_of!(mlx5dv_crypto_login_attr_ex, credential_len) - 16usize];
    [
        "Offset of field: mlx5dv_crypto_login_attr_ex::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_crypto_login_attr_ex, comp_mask) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_crypto_login_query_attr",
    ][::core::mem::size_of::<mlx5dv_crypto_login_query_attr>() - 16usize];
    [
        "Alignment of mlx5dv_crypto_login_query_attr",
    ][::core::mem::align_of::<mlx5dv_crypto_login_query_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_crypto_login_query_attr::state",
    ][::core::mem::offset_of!(mlx5dv_crypto_login_query_attr, state) - 0usize];
    [
        "Offset of field: mlx5dv_crypto_login_query_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_crypto_login_query_attr, comp_mask) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_dek_init_attr",
    ][::core::mem::size_of::<mlx5dv_dek_init_attr>() - 176usize];
    [
        "Alignment of mlx5dv_dek_init_attr",
    ][::core::mem::align_of::<mlx5dv_dek_init_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_dek_init_attr::key_size",
    ][::core::mem::offset_of!(mlx5dv_dek_init_attr, key_size) - 0usize];
    [
        "Offset of field: mlx5dv_dek_init_attr::has_keytag",
    ][::core::mem::offset_of!(mlx5dv_dek_init_attr, has_keytag) - 4usize];
    [
        "Offset of field: mlx5dv_dek_init_attr::key_purpose",
    ][::core::mem::offset_of!(mlx5dv_dek_init_attr, key_purpose) - 8usize];
    [
        "Offset of field: mlx5dv_dek_init_attr::pd",
    ][::core::mem::offset_of!(mlx5dv_dek_init_attr, pd) - 16usize];
    [
        "Offset of field: mlx5dv_dek_init_attr::opaque",
    ][::core::mem::offset_of!(mlx5dv_dek_init_attr, opaque) - 24usize];
    [
        "Offset of field: mlx5dv_dek_init_attr::key",
    ][::core::mem::offset_of!(mlx5dv_dek_init_attr, key) - 32usize];
    [
        "Offset of field: mlx5dv_dek_init_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_dek_init_attr, comp_mask) - 160usize];
    [
        "Offset of field: mlx5dv_dek_init_attr::crypto_login",
    ][::core::mem::offset_of!(mlx5dv_dek_init_attr, crypto_login) - 168usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_dek_attr"][::core::mem::size_of::<mlx5dv_dek_attr>() - 24usize];
    [
        "Alignment of mlx5dv_dek_attr",
    ][::core::mem::align_of::<mlx5dv_dek_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_dek_attr::state",
    ][::core::mem::offset_of!(mlx5dv_dek_attr, state) - 0usize];
    [
        "Offset of field: mlx5dv_dek_attr::opaque",
    ][::core::mem::offset_of!(mlx5dv_dek_attr, opaque) - 4usize];
    [
        "Offset of field: mlx5dv_dek_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_dek_attr, comp_mask) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_flow_action_esp",
    ][::core::mem::size_of::<mlx5dv_flow_action_esp>() - 16usize];
    [
        "Alignment of mlx5dv_flow_action_esp",
    ][::core::mem::align_of::<mlx5dv_flow_action_esp>() - 8usize];
    [
        "Offset of field: mlx5dv_flow_action_esp::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_flow_action_esp, comp_mask) - 0usize];
    [
        "Offset of field: mlx5dv_flow_action_esp::action_flags",
    ][::core::mem::offset_of!(mlx5dv_flow_action_esp, action_flags) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_flow_match_parameters",
    ][::core::mem::size_of::<mlx5dv_flow_match_parameters>() - 8usize];
    [
        "Alignment of mlx5dv_flow_match_parameters",
    ][::core::mem::align_of::<mlx5dv_flow_match_parameters>() - 8usize];
    [
        "Offset of field: mlx5dv_flow_match_parameters::match_sz",
    ][::core::mem::offset_of!(mlx5dv_flow_match_parameters, match_sz) - 0usize];
    [
        "Offset of field: mlx5dv_flow_match_parameters::match_buf",
    ][::core::mem::offset_of!(mlx5dv_flow_match_parameters, match_buf) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_flow_matcher_attr",
    ][::core::mem::size_of::<mlx5dv_flow_matcher_attr>() - 40usize];
    [
        "Alignment of mlx5dv_flow_matcher_attr",
    ][::core::mem::align_of::<mlx5dv_flow_matcher_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_flow_matcher_attr::type_",
    ][::core::mem::offset_of!(mlx5dv_flow_matcher_attr, type_) - 0usize];
    [
        "Offset of field: mlx5dv_flow_matcher_attr::flags",
    ][::core::mem::offset_of!(mlx5dv_flow_matcher_attr, flags) - 4usize];
    [
        "Offset of field: mlx5dv_flow_matcher_attr::priority",
    ][::core::mem::offset_of!(mlx5dv_flow_matcher_attr, priority) - 8usize];
    [
        "Offset of field: mlx5dv_flow_matcher_attr::match_criteria_enable",
    ][::core::mem::offset_of!(mlx5dv_flow_matcher_attr, match_criteria_enable)
        - 10usize];
    [
        "Offset of field: mlx5dv_flow_matcher_attr::match_mask",
    ][::core::mem::offset_of!(mlx5dv_flow_matcher_attr, match_mask) - 16usize];
    [
        "Offset of field: mlx5dv_flow_matcher_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_flow_matcher_attr, comp_mask) - 24usize];
    [
        "Offset of field: mlx5dv_flow_matcher_attr::ft_type",
    ][::core::mem::offset_of!(mlx5dv_flow_matcher_attr, ft_type) - 32usize];
    [
        "Offset of field: mlx5dv_flow_matcher_attr::ib_port",
    ][::core::mem::offset_of!(mlx5dv_flow_matcher_attr, ib_port) - 36usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_steering_anchor_attr",
    ][::core::mem::size_of::<mlx5dv_steering_anchor_attr>() - 16usize];
    [
        "Alignment of mlx5dv_steering_anchor_attr",
    ][::core::mem::align_of::<mlx5dv_steering_anchor_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_steering_anchor_attr::ft_type",
    ][::core::mem::offset_of!(mlx5dv_steering_anchor_attr, ft_type) - 0usize];
    [
        "Offset of field: mlx5dv_steering_anchor_attr::priority",
    ][::core::mem::offset_of!(mlx5dv_steering_anchor_attr, priority) - 4usize];
    [
        "Offset of field: mlx5dv_steering_anchor_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_steering_anchor_attr, comp_mask) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_steering_anchor",
    ][::core::mem::size_of::<mlx5dv_steering_anchor>() - 4usize];
    [
        "Alignment of mlx5dv_steering_anchor",
    ][::core::mem::align_of::<mlx5dv_steering_anchor>() - 4usize];
    [
        "Offset of field: mlx5dv_steering_anchor::id",
    ][::core::mem::offset_of!(mlx5dv_steering_anchor, id) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_flow_action_attr__bindgen_ty_1__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5dv_flow_action_attr__bindgen_ty_1__bindgen_ty_1>()
        - 16usize];
    [
        "Alignment of mlx5dv_flow_action_attr__bindgen_ty_1__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5dv_flow_action_attr__bindgen_ty_1__bindgen_ty_1>()
        - 8usize];
    [
        "Offset of field: mlx5dv_flow_action_attr__bindgen_ty_1__bindgen_ty_1::obj",
    ][::core::mem::offset_of!(mlx5dv_flow_action_attr__bindgen_ty_1__bindgen_ty_1, obj)
        - 0usize];
    [
        "Offset of field: mlx5dv_flow_action_attr__bindgen_ty_1__bindgen_ty_1::offset",
    ][::core::mem::offset_of!(
        mlx5dv_flow_action_attr__bindgen_ty_1__bindgen_ty_1, offset
    ) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_flow_action_attr__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5dv_flow_action_attr__bindgen_ty_1>() - 16usize];
    [
        "Alignment of mlx5dv_flow_action_attr__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5dv_flow_action_attr__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: mlx5dv_flow_action_attr__bindgen_ty_1::qp",
    ][::core::mem::offset_of!(mlx5dv_flow_action_attr__bindgen_ty_1, qp) - 0usize];
    [
        "Offset of field: mlx5dv_flow_action_attr__bindgen_ty_1::counter",
    ][::core::mem::offset_of!(mlx5dv_flow_action_attr__bindgen_ty_1, counter) - 0usize];
    [
        "Offset of field: mlx5dv_flow_action_attr__bindgen_ty_1::action",
    ][::core::mem::offset_of!(mlx5dv_flow_action_attr__bindgen_ty_1, action) - 0usize];
    [
        "Offset of field: mlx5dv_flow_action_attr__bindgen_ty_1::tag_value",
    ][::core::mem::offset_of!(mlx5dv_flow_action_attr__bindgen_ty_1, tag_value)
        - 0usize];
    [
        "Offset of field: mlx5dv_flow_action_attr__bindgen_ty_1::obj",
    ][::core::mem::offset_of!(mlx5dv_flow_action_attr__bindgen_ty_1, obj) - 0usize];
    [
        "Offset of field: mlx5dv_flow_action_attr__bindgen_ty_1::bulk_obj",
    ][::core::mem::offset_of!(mlx5dv_flow_action_attr__bindgen_ty_1, bulk_obj) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_flow_action_attr",
    ][::core::mem::size_of::<mlx5dv_flow_action_attr>() - 24usize];
    [
        "Alignment of mlx5dv_flow_action_attr",
    ][::core::mem::align_of::<mlx5dv_flow_action_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_flow_action_attr::type_",
    ][::core::mem::offset_of!(mlx5dv_flow_action_attr, type_) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_qp__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5dv_qp__bindgen_ty_1>() - 16usize];
    [
        "Alignment of mlx5dv_qp__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5dv_qp__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: mlx5dv_qp__bindgen_ty_1::buf",
    ][::core::mem::offset_of!(mlx5dv_qp__bindgen_ty_1, buf) - 0usize];
    [
        "Offset of field: mlx5dv_qp__bindgen_ty_1::wqe_cnt",
    ][::core::mem::offset_of!(mlx5dv_qp__bindgen_ty_1, wqe_cnt) - 8usize];
    [
        "Offset of field: mlx5dv_qp__bindgen_ty_1::stride",
    ][::core::mem::offset_of!(mlx5dv_qp__bindgen_ty_1, stride) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_qp__bindgen_ty_2",
    ][::core::mem::size_of::<mlx5dv_qp__bindgen_ty_2>() - 16usize];
    [
        "Alignment of mlx5dv_qp__bindgen_ty_2",
    ][::core::mem::align_of::<mlx5dv_qp__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: mlx5dv_qp__bindgen_ty_2::buf",
    ][::core::mem::offset_of!(mlx5dv_qp__bindgen_ty_2, buf) - 0usize];
    [
        "Offset of field: mlx5dv_qp__bindgen_ty_2::wqe_cnt",
    ][::core::mem::offset_of!(mlx5dv_qp__bindgen_ty_2, wqe_cnt) - 8usize];
    [
        "Offset of field: mlx5dv_qp__bindgen_ty_2::stride",
    ][::core::mem::offset_of!(mlx5dv_qp__bindgen_ty_2, stride) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_qp__bindgen_ty_3",
    ][::core::mem::size_of::<mlx5dv_qp__bindgen_ty_3>() - 16usize];
    [
        "Alignment of mlx5dv_qp__bindgen_ty_3",
    ][::core::mem::align_of::<mlx5dv_qp__bindgen_ty_3>() - 8usize];
    [
        "Offset of field: mlx5dv_qp__bindgen_ty_3::reg",
    ][::core::mem::offset_of!(mlx5dv_qp__bindgen_ty_3, reg) - 0usize];
    [
        "Offset of field: mlx5dv_qp__bindgen_ty_3::size",
    ][::core::mem::offset_of!(mlx5dv_qp__bindgen_ty_3, size) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_qp"][::core::mem::size_of::<mlx5dv_qp>() - 96usize];
    ["Alignment of mlx5dv_qp"][::core::mem::align_of::<mlx5dv_qp>() - 8usize];
    [
        "Offset of field: mlx5dv_qp::dbrec",
    ][::core::mem::offset_of!(mlx5dv_qp, dbrec) - 0usize];
    ["Offset of field: mlx5dv_qp::sq"][::core::mem::offset_of!(mlx5dv_qp, sq) - 8usize];
    ["Offset of field: mlx5dv_qp::rq"][::core::mem::offset_of!(mlx5dv_qp, rq) - 24usize];
    ["Offset of field: mlx5dv_qp::bf"][::core::mem::offset_of!(mlx5dv_qp, bf) - 40usize];
    [
        "Offset of field: mlx5dv_qp::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_qp, comp_mask) - 56usize];
    [
        "Offset of field: mlx5dv_qp::uar_mmap_offset",
    ][::core::mem::offset_of!(mlx5dv_qp, uar_mmap_offset) - 64usize];
    [
        "Offset of field: mlx5dv_qp::tirn",
    ][::core::mem::offset_of!(mlx5dv_qp, tirn) - 72usize];
    [
        "Offset of field: mlx5dv_qp::tisn",
    ][::core::mem::offset_of!(mlx5dv_qp, tisn) - 76usize];
    [
        "Offset of field: mlx5dv_qp::rqn",
    ][::core::mem::offset_of!(mlx5dv_qp, rqn) - 80usize];
    [
        "Offset of field: mlx5dv_qp::sqn",
    ][::core::mem::offset_of!(mlx5dv_qp, sqn) - 84usize];
    [
        "Offset of field: mlx5dv_qp::tir_icm_addr",
    ][::core::mem::offset_of!(mlx5dv_qp, tir_icm_addr) - 88usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_cq"][::core::mem::size_of::<mlx5dv_cq>() - 48usize];
    ["Alignment of mlx5dv_cq"][::core::mem::align_of::<mlx5dv_cq>() - 8usize];
    [
        "Offset of field: mlx5dv_cq::buf",
    ][::core::mem::offset_of!(mlx5dv_cq, buf) - 0usize];
    [
        "Offset of field: mlx5dv_cq::dbrec",
    ][::core::mem::offset_of!(mlx5dv_cq, dbrec) - 8usize];
    [
        "Offset of field: mlx5dv_cq::cqe_cnt",
    ][::core::mem::offset_of!(mlx5dv_cq, cqe_cnt) - 16usize];
    [
        "Offset of field: mlx5dv_cq::cqe_size",
    ][::core::mem::offset_of!(mlx5dv_cq, cqe_size) - 20usize];
    [
        "Offset of field: mlx5dv_cq::cq_uar",
    ][::core::mem::offset_of!(mlx5dv_cq, cq_uar) - 24usize];
    [
        "Offset of field: mlx5dv_cq::cqn",
    ][::core::mem::offset_of!(mlx5dv_cq, cqn) - 32usize];
    [
        "Offset of field: mlx5dv_cq::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_cq, comp_mask) - 40usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_srq"][::core::mem::size_of::<mlx5dv_srq>() - 48usize];
    ["Alignment of mlx5dv_srq"][::core::mem::align_of::<mlx5dv_srq>() - 8usize];
    [
        "Offset of field: mlx5dv_srq::buf",
    ][::core::mem::offset_of!(mlx5dv_srq, buf) - 0usize];
    [
        "Offset of field: mlx5dv_srq::dbrec",
    ][::core::mem::offset_of!(mlx5dv_srq, dbrec) - 8usize];
    [
        "Offset of field: mlx5dv_srq::stride",
    ][::core::mem::offset_of!(mlx5dv_srq, stride) - 16usize];
    [
        "Offset of field: mlx5dv_srq::head",
    ][::core::mem::offset_of!(mlx5dv_srq, head) - 20usize];
    [
        "Offset of field: mlx5dv_srq::tail",
    ][::core::mem::offset_of!(mlx5dv_srq, tail) - 24usize];
    [
        "Offset of field: mlx5dv_srq::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_srq, comp_mask) - 32usize];
    [
        "Offset of field: mlx5dv_srq::srqn",
    ][::core::mem::offset_of!(mlx5dv_srq, srqn) - 40usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_rwq"][::core::mem::size_of::<mlx5dv_rwq>() - 32usize];
    ["Alignment of mlx5dv_rwq"][::core::mem::align_of::<mlx5dv_rwq>() - 8usize];
    [
        "Offset of field: mlx5dv_rwq::buf",
    ][::core::mem::offset_of!(mlx5dv_rwq, buf) - 0usize];
    [
        "Offset of field: mlx5dv_rwq::dbrec",
    ][::core::mem::offset_of!(mlx5dv_rwq, dbrec) - 8usize];
    [
        "Offset of field: mlx5dv_rwq::wqe_cnt",
    ][::core::mem::offset_of!(mlx5dv_rwq, wqe_cnt) - 16usize];
    [
        "Offset of field: mlx5dv_rwq::stride",
    ][::core::mem::offset_of!(mlx5dv_rwq, stride) - 20usize];
    [
        "Offset of field: mlx5dv_rwq::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_rwq, comp_mask) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_alloc_dm_attr",
    ][::core::mem::size_of::<mlx5dv_alloc_dm_attr>() - 16usize];
    [
        "Alignment of mlx5dv_alloc_dm_attr",
    ][::core::mem::align_of::<mlx5dv_alloc_dm_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_alloc_dm_attr::type_",
    ][::core::mem::offset_of!(mlx5dv_alloc_dm_attr, type_) - 0usize];
    [
        "Offset of field: mlx5dv_alloc_dm_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_alloc_dm_attr, comp_mask) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_dm"][::core::mem::size_of::<mlx5dv_dm>() - 32usize];
    ["Alignment of mlx5dv_dm"][::core::mem::align_of::<mlx5dv_dm>() - 8usize];
    [
        "Offset of field: mlx5dv_dm::buf",
    ][::core::mem::offset_of!(mlx5dv_dm, buf) - 0usize];
    [
        "Offset of field: mlx5dv_dm::length",
    ][::core::mem::offset_of!(mlx5dv_dm, length) - 8usize];
    [
        "Offset of field: mlx5dv_dm::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_dm, comp_mask) - 16usize];
    [
        "Offset of field: mlx5dv_dm::remote_va",
    ][::core::mem::offset_of!(mlx5dv_dm, remote_va) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_ah"][::core::mem::size_of::<mlx5dv_ah>() - 16usize];
    ["Alignment of mlx5dv_ah"][::core::mem::align_of::<mlx5dv_ah>() - 8usize];
    ["Offset of field: mlx5dv_ah::av"][::core::mem::offset_of!(mlx5dv_ah, av) - 0usize];
    [
        "Offset of field: mlx5dv_ah::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_ah, comp_mask) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_pd"][::core::mem::size_of::<mlx5dv_pd>() - 16usize];
    ["Alignment of mlx5dv_pd"][::core::mem::align_of::<mlx5dv_pd>() - 8usize];
    [
        "Offset of field: mlx5dv_pd::pdn",
    ][::core::mem::offset_of!(mlx5dv_pd, pdn) - 0usize];
    [
        "Offset of field: mlx5dv_pd::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_pd, comp_mask) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_devx"][::core::mem::size_of::<mlx5dv_devx>() - 4usize];
    ["Alignment of mlx5dv_devx"][::core::mem::align_of::<mlx5dv_devx>() - 4usize];
    [
        "Offset of field: mlx5dv_devx::handle",
    ][::core::mem::offset_of!(mlx5dv_devx, handle) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_obj__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5dv_obj__bindgen_ty_1>() - 16usize];
    [
        "Alignment of mlx5dv_obj__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5dv_obj__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_1::in_",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_1, in_) - 0usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_1::out",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_1, out) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_obj__bindgen_ty_2",
    ][::core::mem::size_of::<mlx5dv_obj__bindgen_ty_2>() - 16usize];
    [
        "Alignment of mlx5dv_obj__bindgen_ty_2",
    ][::core::mem::align_of::<mlx5dv_obj__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_2::in_",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_2, in_) - 0usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_2::out",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_2, out) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_obj__bindgen_ty_3",
    ][::core::mem::size_of::<mlx5dv_obj__bindgen_ty_3>() - 16usize];
    [
        "Alignment of mlx5dv_obj__bindgen_ty_3",
    ][::core::mem::align_of::<mlx5dv_obj__bindgen_ty_3>() - 8usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_3::in_",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_3, in_) - 0usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_3::out",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_3, out) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_obj__bindgen_ty_4",
    ][::core::mem::size_of::<mlx5dv_obj__bindgen_ty_4>() - 16usize];
    [
        "Alignment of mlx5dv_obj__bindgen_ty_4",
    ][::core::mem::align_of::<mlx5dv_obj__bindgen_ty_4>() - 8usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_4::in_",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_4, in_) - 0usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_4::out",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_4, out) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_obj__bindgen_ty_5",
    ][::core::mem::size_of::<mlx5dv_obj__bindgen_ty_5>() - 16usize];
    [
        "Alignment of mlx5dv_obj__bindgen_ty_5",
    ][::core::mem::align_of::<mlx5dv_obj__bindgen_ty_5>() - 8usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_5::in_",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_5, in_) - 0usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_5::out",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_5, out) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_obj__bindgen_ty_6",
    ][::core::mem::size_of::<mlx5dv_obj__bindgen_ty_6>() - 16usize];
    [
        "Alignment of mlx5dv_obj__bindgen_ty_6",
    ][::core::mem::align_of::<mlx5dv_obj__bindgen_ty_6>() - 8usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_6::in_",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_6, in_) - 0usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_6::out",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_6, out) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_obj__bindgen_ty_7",
    ][::core::mem::size_of::<mlx5dv_obj__bindgen_ty_7>() - 16usize];
    [
        "Alignment of mlx5dv_obj__bindgen_ty_7",
    ][::core::mem::align_of::<mlx5dv_obj__bindgen_ty_7>() - 8usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_7::in_",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_7, in_) - 0usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_7::out",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_7, out) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_obj__bindgen_ty_8",
    ][::core::mem::size_of::<mlx5dv_obj__bindgen_ty_8>() - 16usize];
    [
        "Alignment of mlx5dv_obj__bindgen_ty_8",
    ][::core::mem::align_of::<mlx5dv_obj__bindgen_ty_8>() - 8usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_8::in_",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_8, in_) - 0usize];
    [
        "Offset of field: mlx5dv_obj__bindgen_ty_8::out",
    ][::core::mem::offset_of!(mlx5dv_obj__bindgen_ty_8, out) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_obj"][::core::mem::size_of::<mlx5dv_obj>() - 128usize];
    ["Alignment of mlx5dv_obj"][::core::mem::align_of::<mlx5dv_obj>() - 8usize];
    [
        "Offset of field: mlx5dv_obj::qp",
    ][::core::mem::offset_of!(mlx5dv_obj, qp) - 0usize];
    [
        "Offset of field: mlx5dv_obj::cq",
    ][::core::mem::offset_of!(mlx5dv_obj, cq) - 16usize];
    [
        "Offset of field: mlx5dv_obj::srq",
    ][::core::mem::offset_of!(mlx5dv_obj, srq) - 32usize];
    [
        "Offset of field: mlx5dv_obj::rwq",
    ][::core::mem::offset_of!(mlx5dv_obj, rwq) - 48usize];
    [
        "Offset of field: mlx5dv_obj::dm",
    ][::core::mem::offset_of!(mlx5dv_obj, dm) - 64usize];
    [
        "Offset of field: mlx5dv_obj::ah",
    ][::core::mem::offset_of!(mlx5dv_obj, ah) - 80usize];
    [
        "Offset of field: mlx5dv_obj::pd",
    ][::core::mem::offset_of!(mlx5dv_obj, pd) - 96usize];
    [
        "Offset of field: mlx5dv_obj::devx",
    ][::core::mem::offset_of!(mlx5dv_obj, devx) - 112usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_striding_rq_init_attr",
    ][::core::mem::size_of::<mlx5dv_striding_rq_init_attr>() - 12usize];
    [
        "Alignment of mlx5dv_striding_rq_init_attr",
    ][::core::mem::align_of::<mlx5dv_striding_rq_init_attr>() - 4usize];
    [
        "Offset of field: mlx5dv_striding_rq_init_attr::single_stride_log_num_of_bytes",
    ][::core::mem::offset_of!(
        mlx5dv_striding_rq_init_attr, single_stride_log_num_of_bytes
    ) - 0usize];
    [
        "Offset of field: mlx5dv_striding_rq_init_attr::single_wqe_log_num_of_strides",
    ][::core::mem::offset_of!(
        mlx5dv_striding_rq_init_attr, single_wqe_log_num_of_strides
    ) - 4usize];
    [
        "Offset of field: mlx5dv_striding_rq_init_attr::two_byte_shift_en",
    ][::core::mem::offset_of!(mlx5dv_striding_rq_init_attr, two_byte_shift_en) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_wq_init_attr",
    ][::core::mem::size_of::<mlx5dv_wq_init_attr>() - 24usize];
    [
        "Alignment of mlx5dv_wq_init_attr",
    ][::core::mem::align_of::<mlx5dv_wq_init_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_wq_init_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_wq_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: mlx5dv_wq_init_attr::striding_rq_attrs",
    ][::core::mem::offset_of!(mlx5dv_wq_init_attr, striding_rq_attrs) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5_err_cqe"][::core::mem::size_of::<mlx5_err_cqe>() - 64usize];
    ["Alignment of mlx5_err_cqe"][::core::mem::align_of::<mlx5_err_cqe>() - 4usize];
    [
        "Offset of field: mlx5_err_cqe::rsvd0",
    ][::core::mem::offset_of!(mlx5_err_cqe, rsvd0) - 0usize];
    [
        "Offset of field: mlx5_err_cqe::srqn",
    ][::core::mem::offset_of!(mlx5_err_cqe, srqn) - 32usize];
    [
        "Offset of field: mlx5_err_cqe::rsvd1",
    ][::core::mem::offset_of!(mlx5_err_cqe, rsvd1) - 36usize];
    [
        "Offset of field: mlx5_err_cqe::vendor_err_synd",
    ][::core::mem::offset_of!(mlx5_err_cqe, vendor_err_synd) - 54usize];
    [
        "Offset of field: mlx5_err_cqe::syndrome",
    ][::core::mem::offset_of!(mlx5_err_cqe, syndrome) - 55usize];
    [
        "Offset of field: mlx5_err_cqe::s_wqe_opcode_qpn",
    ][::core::mem::offset_of!(mlx5_err_cqe, s_wqe_opcode_qpn) - 56usize];
    [
        "Offset of field: mlx5_err_cqe::wqe_counter",
    ][::core::mem::offset_of!(mlx5_err_cqe, wqe_counter) - 60usize];
    [
        "Offset of field: mlx5_err_cqe::signature",
    ][::core::mem::offset_of!(mlx5_err_cqe, signature) - 62usize];
    [
        "Offset of field: mlx5_err_cqe::op_own",
    ][::core::mem::offset_of!(mlx5_err_cqe, op_own) - 63usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5_tm_cqe"][::core::mem::size_of::<mlx5_tm_cqe>() - 20usize];
    ["Alignment of mlx5_tm_cqe"][::core::mem::align_of::<mlx5_tm_cqe>() - 4usize];
    [
        "Offset of field: mlx5_tm_cqe::success",
    ][::core::mem::offset_of!(mlx5_tm_cqe, success) - 0usize];
    [
        "Offset of field: mlx5_tm_cqe::hw_phase_cnt",
    ][::core::mem::offset_of!(mlx5_tm_cqe, hw_phase_cnt) - 4usize];
    [
        "Offset of field: mlx5_tm_cqe::rsvd0",
    ][::core::mem::offset_of!(mlx5_tm_cqe, rsvd0) - 6usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_cqe64__bindgen_ty_1__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5_cqe64__bindgen_ty_1__bindgen_ty_1>() - 32usize];
    [
        "Alignment of mlx5_cqe64__bindgen_ty_1__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5_cqe64__bindgen_ty_1__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1__bindgen_ty_1::rsvd0",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1__bindgen_ty_1, rsvd0) - 0usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1__bindgen_ty_1::wqe_id",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1__bindgen_ty_1, wqe_id) - 2usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1__bindgen_ty_1::rsvd4",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1__bindgen_ty_1, rsvd4) - 4usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1__bindgen_ty_1::ml_path",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1__bindgen_ty_1, ml_path)
        - 17usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1__bindgen_ty_1::rsvd20",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1__bindgen_ty_1, rsvd20) - 18usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1__bindgen_ty_1::slid",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1__bindgen_ty_1, slid) - 22usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1__bindgen_ty_1::flags_rqpn",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1__bindgen_ty_1, flags_rqpn)
        - 24usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1__bindgen_ty_1::hds_ip_ext",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1__bindgen_ty_1, hds_ip_ext)
        - 28usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1__bindgen_ty_1::l4_hdr_type_etc",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1__bindgen_ty_1, l4_hdr_type_etc)
        - 29usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1__bindgen_ty_1::vlan_info",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1__bindgen_ty_1, vlan_info)
        - 30usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_cqe64__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5_cqe64__bindgen_ty_1>() - 32usize];
    [
        "Alignment of mlx5_cqe64__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5_cqe64__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1::tm_cqe",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1, tm_cqe) - 0usize];
    [
        "Offset of field: mlx5_cqe64__bindgen_ty_1::tmh",
    ][::core::mem::offset_of!(mlx5_cqe64__bindgen_ty_1, tmh) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5_cqe64"][::core::mem::size_of::<mlx5_cqe64>() - 64usize];
    ["Alignment of mlx5_cqe64"][::core::mem::align_of::<mlx5_cqe64>() - 8usize];
    [
        "Offset of field: mlx5_cqe64::srqn_uidx",
    ][::core::mem::offset_of!(mlx5_cqe64, srqn_uidx) - 32usize];
    [
        "Offset of field: mlx5_cqe64::imm_inval_pkey",
    ][::core::mem::offset_of!(mlx5_cqe64, imm_inval_pkey) - 36usize];
    [
        "Offset of field: mlx5_cqe64::app",
    ][::core::mem::offset_of!(mlx5_cqe64, app) - 40usize];
    [
        "Offset of field: mlx5_cqe64::app_op",
    ][::core::mem::offset_of!(mlx5_cqe64, app_op) - 41usize];
    [
        "Offset of field: mlx5_cqe64::app_info",
    ][::core::mem::offset_of!(mlx5_cqe64, app_info) - 42usize];
    [
        "Offset of field: mlx5_cqe64::byte_cnt",
    ][::core::mem::offset_of!(mlx5_cqe64, byte_cnt) - 44usize];
    [
        "Offset of field: mlx5_cqe64::timestamp",
    ][::core::mem::offset_of!(mlx5_cqe64, timestamp) - 48usize];
    [
        "Offset of field: mlx5_cqe64::sop_drop_qpn",
    ][::core::mem::offset_of!(mlx5_cqe64, sop_drop_qpn) - 56usize];
    [
        "Offset of field: mlx5_cqe64::wqe_counter",
    ][::core::mem::offset_of!(mlx5_cqe64, wqe_counter) - 60usize];
    [
        "Offset of field: mlx5_cqe64::signature",
    ][::core::mem::offset_of!(mlx5_cqe64, signature) - 62usize];
    [
        "Offset of field: mlx5_cqe64::op_own",
    ][::core::mem::offset_of!(mlx5_cqe64, op_own) - 63usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_srq_next_seg",
    ][::core::mem::size_of::<mlx5_wqe_srq_next_seg>() - 16usize];
    [
        "Alignment of mlx5_wqe_srq_next_seg",
    ][::core::mem::align_of::<mlx5_wqe_srq_next_seg>() - 2usize];
    [
        "Offset of field: mlx5_wqe_srq_next_seg::rsvd0",
    ][::core::mem::offset_of!(mlx5_wqe_srq_next_seg, rsvd0) - 0usize];
    [
        "Offset of field: mlx5_wqe_srq_next_seg::next_wqe_index",
    ][::core::mem::offset_of!(mlx5_wqe_srq_next_seg, next_wqe_index) - 2usize];
    [
        "Offset of field: mlx5_wqe_srq_next_seg::signature",
    ][::core::mem::offset_of!(mlx5_wqe_srq_next_seg, signature) - 4usize];
    [
        "Offset of field: mlx5_wqe_srq_next_seg::rsvd1",
    ][::core::mem::offset_of!(mlx5_wqe_srq_next_seg, rsvd1) - 5usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5_wqe_data_seg"][::core::mem::size_of::<mlx5_wqe_data_seg>() - 16usize];
    [
        "Alignment of mlx5_wqe_data_seg",
    ][::core::mem::align_of::<mlx5_wqe_data_seg>() - 8usize];
    [
        "Offset of field: mlx5_wqe_data_seg::byte_count",
    ][::core::mem::offset_of!(mlx5_wqe_data_seg, byte_count) - 0usize];
    [
        "Offset of field: mlx5_wqe_data_seg::lkey",
    ][::core::mem::offset_of!(mlx5_wqe_data_seg, lkey) - 4usize];
    [
        "Offset of field: mlx5_wqe_data_seg::addr",
    ][::core::mem::offset_of!(mlx5_wqe_data_seg, addr) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5_mprq_wqe"][::core::mem::size_of::<mlx5_mprq_wqe>() - 32usize];
    ["Alignment of mlx5_mprq_wqe"][::core::mem::align_of::<mlx5_mprq_wqe>() - 8usize];
    [
        "Offset of field: mlx5_mprq_wqe::nseg",
    ][::core::mem::offset_of!(mlx5_mprq_wqe, nseg) - 0usize];
    [
        "Offset of field: mlx5_mprq_wqe::dseg",
    ][::core::mem::offset_of!(mlx5_mprq_wqe, dseg) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_av__bindgen_ty_1__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5_wqe_av__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    [
        "Alignment of mlx5_wqe_av__bindgen_ty_1__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5_wqe_av__bindgen_ty_1__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: mlx5_wqe_av__bindgen_ty_1__bindgen_ty_1::qkey",
    ][::core::mem::offset_of!(mlx5_wqe_av__bindgen_ty_1__bindgen_ty_1, qkey) - 0usize];
    [
        "Offset of field: mlx5_wqe_av__bindgen_ty_1__bindgen_ty_1::reserved",
    ][::core::mem::offset_of!(mlx5_wqe_av__bindgen_ty_1__bindgen_ty_1, reserved)
        - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_av__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5_wqe_av__bindgen_ty_1>() - 8usize];
    [
        "Alignment of mlx5_wqe_av__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5_wqe_av__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: mlx5_wqe_av__bindgen_ty_1::qkey",
    ][::core::mem::offset_of!(mlx5_wqe_av__bindgen_ty_1, qkey) - 0usize];
    [
        "Offset of field: mlx5_wqe_av__bindgen_ty_1::dc_key",
    ][::core::mem::offset_of!(mlx5_wqe_av__bindgen_ty_1, dc_key) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5_wqe_av"][::core::mem::size_of::<mlx5_wqe_av>() - 48usize];
    ["Alignment of mlx5_wqe_av"][::core::mem::align_of::<mlx5_wqe_av>() - 8usize];
    [
        "Offset of field: mlx5_wqe_av::key",
    ][::core::mem::offset_of!(mlx5_wqe_av, key) - 0usize];
    [
        "Offset of field: mlx5_wqe_av::dqp_dct",
    ][::core::mem::offset_of!(mlx5_wqe_av, dqp_dct) - 8usize];
    [
        "Offset of field: mlx5_wqe_av::stat_rate_sl",
    ][::core::mem::offset_of!(mlx5_wqe_av, stat_rate_sl) - 12usize];
    [
        "Offset of field: mlx5_wqe_av::fl_mlid",
    ][::core::mem::offset_of!(mlx5_wqe_av, fl_mlid) - 13usize];
    [
        "Offset of field: mlx5_wqe_av::rlid",
    ][::core::mem::offset_of!(mlx5_wqe_av, rlid) - 14usize];
    [
        "Offset of field: mlx5_wqe_av::reserved0",
    ][::core::mem::offset_of!(mlx5_wqe_av, reserved0) - 16usize];
    [
        "Offset of field: mlx5_wqe_av::rmac",
    ][::core::mem::offset_of!(mlx5_wqe_av, rmac) - 20usize];
    [
        "Offset of field: mlx5_wqe_av::tclass",
    ][::core::mem::offset_of!(mlx5_wqe_av, tclass) - 26usize];
    [
        "Offset of field: mlx5_wqe_av::hop_limit",
    ][::core::mem::offset_of!(mlx5_wqe_av, hop_limit) - 27usize];
    [
        "Offset of field: mlx5_wqe_av::grh_gid_fl",
    ][::core::mem::offset_of!(mlx5_wqe_av, grh_gid_fl) - 28usize];
    [
        "Offset of field: mlx5_wqe_av::rgid",
    ][::core::mem::offset_of!(mlx5_wqe_av, rgid) - 32usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_datagram_seg",
    ][::core::mem::size_of::<mlx5_wqe_datagram_seg>() - 48usize];
    [
        "Alignment of mlx5_wqe_datagram_seg",
    ][::core::mem::align_of::<mlx5_wqe_datagram_seg>() - 8usize];
    [
        "Offset of field: mlx5_wqe_datagram_seg::av",
    ][::core::mem::offset_of!(mlx5_wqe_datagram_seg, av) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_raddr_seg",
    ][::core::mem::size_of::<mlx5_wqe_raddr_seg>() - 16usize];
    [
        "Alignment of mlx5_wqe_raddr_seg",
    ][::core::mem::align_of::<mlx5_wqe_raddr_seg>() - 8usize];
    [
        "Offset of field: mlx5_wqe_raddr_seg::raddr",
    ][::core::mem::offset_of!(mlx5_wqe_raddr_seg, raddr) - 0usize];
    [
        "Offset of field: mlx5_wqe_raddr_seg::rkey",
    ][::core::mem::offset_of!(mlx5_wqe_raddr_seg, rkey) - 8usize];
    [
        "Offset of field: mlx5_wqe_raddr_seg::reserved",
    ][::core::mem::offset_of!(mlx5_wqe_raddr_seg, reserved) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_atomic_seg",
    ][::core::mem::size_of::<mlx5_wqe_atomic_seg>() - 16usize];
    [
        "Alignment of mlx5_wqe_atomic_seg",
    ][::core::mem::align_of::<mlx5_wqe_atomic_seg>() - 8usize];
    [
        "Offset of field: mlx5_wqe_atomic_seg::swap_add",
    ][::core::mem::offset_of!(mlx5_wqe_atomic_seg, swap_add) - 0usize];
    [
        "Offset of field: mlx5_wqe_atomic_seg::compare",
    ][::core::mem::offset_of!(mlx5_wqe_atomic_seg, compare) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_inl_data_seg",
    ][::core::mem::size_of::<mlx5_wqe_inl_data_seg>() - 4usize];
    [
        "Alignment of mlx5_wqe_inl_data_seg",
    ][::core::mem::align_of::<mlx5_wqe_inl_data_seg>() - 4usize];
    [
        "Offset of field: mlx5_wqe_inl_data_seg::byte_count",
    ][::core::mem::offset_of!(mlx5_wqe_inl_data_seg, byte_count) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5_wqe_eth_seg"][::core::mem::size_of::<mlx5_wqe_eth_seg>() - 32usize];
    [
        "Alignment of mlx5_wqe_eth_seg",
    ][::core::mem::align_of::<mlx5_wqe_eth_seg>() - 4usize];
    [
        "Offset of field: mlx5_wqe_eth_seg::rsvd0",
    ][::core::mem::offset_of!(mlx5_wqe_eth_seg, rsvd0) - 0usize];
    [
        "Offset of field: mlx5_wqe_eth_seg::cs_flags",
    ][::core::mem::offset_of!(mlx5_wqe_eth_seg, cs_flags) - 4usize];
    [
        "Offset of field: mlx5_wqe_eth_seg::rsvd1",
    ][::core::mem::offset_of!(mlx5_wqe_eth_seg, rsvd1) - 5usize];
    [
        "Offset of field: mlx5_wqe_eth_seg::mss",
    ][::core::mem::offset_of!(mlx5_wqe_eth_seg, mss) - 6usize];
    [
        "Offset of field: mlx5_wqe_eth_seg::rsvd2",
    ][::core::mem::offset_of!(mlx5_wqe_eth_seg, rsvd2) - 8usize];
    [
        "Offset of field: mlx5_wqe_eth_seg::inline_hdr_sz",
    ][::core::mem::offset_of!(mlx5_wqe_eth_seg, inline_hdr_sz) - 12usize];
    [
        "Offset of field: mlx5_wqe_eth_seg::inline_hdr_start",
    ][::core::mem::offset_of!(mlx5_wqe_eth_seg, inline_hdr_start) - 14usize];
    [
        "Offset of field: mlx5_wqe_eth_seg::inline_hdr",
    ][::core::mem::offset_of!(mlx5_wqe_eth_seg, inline_hdr) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5_wqe_tm_seg"][::core::mem::size_of::<mlx5_wqe_tm_seg>() - 32usize];
    [
        "Alignment of mlx5_wqe_tm_seg",
    ][::core::mem::align_of::<mlx5_wqe_tm_seg>() - 8usize];
    [
        "Offset of field: mlx5_wqe_tm_seg::opcode",
    ][::core::mem::offset_of!(mlx5_wqe_tm_seg, opcode) - 0usize];
    [
        "Offset of field: mlx5_wqe_tm_seg::flags",
    ][::core::mem::offset_of!(mlx5_wqe_tm_seg, flags) - 1usize];
    [
        "Offset of field: mlx5_wqe_tm_seg::index",
    ][::core::mem::offset_of!(mlx5_wqe_tm_seg, index) - 2usize];
    [
        "Offset of field: mlx5_wqe_tm_seg::rsvd0",
    ][::core::mem::offset_of!(mlx5_wqe_tm_seg, rsvd0) - 4usize];
    [
        "Offset of field: mlx5_wqe_tm_seg::sw_cnt",
    ][::core::mem::offset_of!(mlx5_wqe_tm_seg, sw_cnt) - 6usize];
    [
        "Offset of field: mlx5_wqe_tm_seg::rsvd1",
    ][::core::mem::offset_of!(mlx5_wqe_tm_seg, rsvd1) - 8usize];
    [
        "Offset of field: mlx5_wqe_tm_seg::append_tag",
    ][::core::mem::offset_of!(mlx5_wqe_tm_seg, append_tag) - 16usize];
    [
        "Offset of field: mlx5_wqe_tm_seg::append_mask",
    ][::core::mem::offset_of!(mlx5_wqe_tm_seg, append_mask) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_umr_ctrl_seg__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5_wqe_umr_ctrl_seg__bindgen_ty_1>() - 2usize];
    [
        "Alignment of mlx5_wqe_umr_ctrl_seg__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5_wqe_umr_ctrl_seg__bindgen_ty_1>() - 2usize];
    [
        "Offset of field: mlx5_wqe_umr_ctrl_seg__bindgen_ty_1::translation_offset",
    ][::core::mem::offset_of!(mlx5_wqe_umr_ctrl_seg__bindgen_ty_1, translation_offset)
        - 0usize];
    [
        "Offset of field: mlx5_wqe_umr_ctrl_seg__bindgen_ty_1::bsf_octowords",
    ][::core::mem::offset_of!(mlx5_wqe_umr_ctrl_seg__bindgen_ty_1, bsf_octowords)
        - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_umr_ctrl_seg",
    ][::core::mem::size_of::<mlx5_wqe_umr_ctrl_seg>() - 48usize];
    [
        "Alignment of mlx5_wqe_umr_ctrl_seg",
    ][::core::mem::align_of::<mlx5_wqe_umr_ctrl_seg>() - 8usize];
    [
        "Offset of field: mlx5_wqe_umr_ctrl_seg::flags",
    ][::core::mem::offset_of!(mlx5_wqe_umr_ctrl_seg, flags) - 0usize];
    [
        "Offset of field: mlx5_wqe_umr_ctrl_seg::rsvd0",
    ][::core::mem::offset_of!(mlx5_wqe_umr_ctrl_seg, rsvd0) - 1usize];
    [
        "Offset of field: mlx5_wqe_umr_ctrl_seg::klm_octowords",
    ][::core::mem::offset_of!(mlx5_wqe_umr_ctrl_seg, klm_octowords) - 4usize];
    [
        "Offset of field: mlx5_wqe_umr_ctrl_seg::mkey_mask",
    ][::core::mem::offset_of!(mlx5_wqe_umr_ctrl_seg, mkey_mask) - 8usize];
    [
        "Offset of field: mlx5_wqe_umr_ctrl_seg::rsvd1",
    ][::core::mem::offset_of!(mlx5_wqe_umr_ctrl_seg, rsvd1) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_umr_klm_seg",
    ][::core::mem::size_of::<mlx5_wqe_umr_klm_seg>() - 16usize];
    [
        "Alignment of mlx5_wqe_umr_klm_seg",
    ][::core::mem::align_of::<mlx5_wqe_umr_klm_seg>() - 8usize];
    [
        "Offset of field: mlx5_wqe_umr_klm_seg::byte_count",
    ][::core::mem::offset_of!(mlx5_wqe_umr_klm_seg, byte_count) - 0usize];
    [
        "Offset of field: mlx5_wqe_umr_klm_seg::mkey",
    ][::core::mem::offset_of!(mlx5_wqe_umr_klm_seg, mkey) - 4usize];
    [
        "Offset of field: mlx5_wqe_umr_klm_seg::address",
    ][::core::mem::offset_of!(mlx5_wqe_umr_klm_seg, address) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_umr_inline_seg",
    ][::core::mem::size_of::<mlx5_wqe_umr_inline_seg>() - 16usize];
    [
        "Alignment of mlx5_wqe_umr_inline_seg",
    ][::core::mem::align_of::<mlx5_wqe_umr_inline_seg>() - 8usize];
    [
        "Offset of field: mlx5_wqe_umr_inline_seg::klm",
    ][::core::mem::offset_of!(mlx5_wqe_umr_inline_seg, klm) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_umr_repeat_ent_seg",
    ][::core::mem::size_of::<mlx5_wqe_umr_repeat_ent_seg>() - 16usize];
    [
        "Alignment of mlx5_wqe_umr_repeat_ent_seg",
    ][::core::mem::align_of::<mlx5_wqe_umr_repeat_ent_seg>() - 8usize];
    [
        "Offset of field: mlx5_wqe_umr_repeat_ent_seg::stride",
    ][::core::mem::offset_of!(mlx5_wqe_umr_repeat_ent_seg, stride) - 0usize];
    [
        "Offset of field: mlx5_wqe_umr_repeat_ent_seg::byte_count",
    ][::core::mem::offset_of!(mlx5_wqe_umr_repeat_ent_seg, byte_count) - 2usize];
    [
        "Offset of field: mlx5_wqe_umr_repeat_ent_seg::memkey",
    ][::core::mem::offset_of!(mlx5_wqe_umr_repeat_ent_seg, memkey) - 4usize];
    [
        "Offset of field: mlx5_wqe_umr_repeat_ent_seg::va",
    ][::core::mem::offset_of!(mlx5_wqe_umr_repeat_ent_seg, va) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_umr_repeat_block_seg",
    ][::core::mem::size_of::<mlx5_wqe_umr_repeat_block_seg>() - 16usize];
    [
        "Alignment of mlx5_wqe_umr_repeat_block_seg",
    ][::core::mem::align_of::<mlx5_wqe_umr_repeat_block_seg>() - 8usize];
    [
        "Offset of field: mlx5_wqe_umr_repeat_block_seg::byte_count",
    ][::core::mem::offset_of!(mlx5_wqe_umr_repeat_block_seg, byte_count) - 0usize];
    [
        "Offset of field: mlx5_wqe_umr_repeat_block_seg::op",
    ][::core::mem::offset_of!(mlx5_wqe_umr_repeat_block_seg, op) - 4usize];
    [
        "Offset of field: mlx5_wqe_umr_repeat_block_seg::repeat_count",
    ][::core::mem::offset_of!(mlx5_wqe_umr_repeat_block_seg, repeat_count) - 8usize];
    [
        "Offset of field: mlx5_wqe_umr_repeat_block_seg::reserved",
    ][::core::mem::offset_of!(mlx5_wqe_umr_repeat_block_seg, reserved) - 12usize];
    [
        "Offset of field: mlx5_wqe_umr_repeat_block_seg::num_ent",
    ][::core::mem::offset_of!(mlx5_wqe_umr_repeat_block_seg, num_ent) - 14usize];
    [
        "Offset of field: mlx5_wqe_umr_repeat_block_seg::entries",
    ][::core::mem::offset_of!(mlx5_wqe_umr_repeat_block_seg, entries) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5_wqe_mkey_context_seg",
    ][::core::mem::size_of::<mlx5_wqe_mkey_context_seg>() - 64usize];
    [
        "Alignment of mlx5_wqe_mkey_context_seg",
    ][::core::mem::align_of::<mlx5_wqe_mkey_context_seg>() - 8usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::free",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, free) - 0usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::reserved1",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, reserved1) - 1usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::access_flags",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, access_flags) - 2usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::sf",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, sf) - 3usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::qpn_mkey",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, qpn_mkey) - 4usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::reserved2",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, reserved2) - 8usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::flags_pd",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, flags_pd) - 12usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::start_addr",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, start_addr) - 16usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::len",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, len) - 24usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::bsf_octword_size",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, bsf_octword_size) - 32usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::reserved3",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, reserved3) - 36usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::translations_octword_size",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, translations_octword_size)
        - 52usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::reserved4",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, reserved4) - 56usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::log_page_size",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, log_page_size) - 59usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::reserved",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, reserved) - 60usize];
    [
        "Offset of field: mlx5_wqe_mkey_context_seg::inseg",
    ][::core::mem::offset_of!(mlx5_wqe_mkey_context_seg, inseg) - 64usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_ctx_allocators",
    ][::core::mem::size_of::<mlx5dv_ctx_allocators>() - 24usize];
    [
        "Alignment of mlx5dv_ctx_allocators",
    ][::core::mem::align_of::<mlx5dv_ctx_allocators>() - 8usize];
    [
        "Offset of field: mlx5dv_ctx_allocators::alloc",
    ][::core::mem::offset_of!(mlx5dv_ctx_allocators, alloc) - 0usize];
    [
        "Offset of field: mlx5dv_ctx_allocators::free",
    ][::core::mem::offset_of!(mlx5dv_ctx_allocators, free) - 8usize];
    [
        "Offset of field: mlx5dv_ctx_allocators::data",
    ][::core::mem::offset_of!(mlx5dv_ctx_allocators, data) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_clock_info"][::core::mem::size_of::<mlx5dv_clock_info>() - 40usize];
    [
        "Alignment of mlx5dv_clock_info",
    ][::core::mem::align_of::<mlx5dv_clock_info>() - 8usize];
    [
        "Offset of field: mlx5dv_clock_info::nsec",
    ][::core::mem::offset_of!(mlx5dv_clock_info, nsec) - 0usize];
    [
        "Offset of field: mlx5dv_clock_info::last_cycles",
    ][::core::mem::offset_of!(mlx5dv_clock_info, last_cycles) - 8usize];
    [
        "Offset of field: mlx5dv_clock_info::frac",
    ][::core::mem::offset_of!(mlx5dv_clock_info, frac) - 16usize];
    [
        "Offset of field: mlx5dv_clock_info::mult",
    ][::core::mem::offset_of!(mlx5dv_clock_info, mult) - 24usize];
    [
        "Offset of field: mlx5dv_clock_info::shift",
    ][::core::mem::offset_of!(mlx5dv_clock_info, shift) - 28usize];
    [
        "Offset of field: mlx5dv_clock_info::mask",
    ][::core::mem::offset_of!(mlx5dv_clock_info, mask) - 32usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_context_attr",
    ][::core::mem::size_of::<mlx5dv_context_attr>() - 24usize];
    [
        "Alignment of mlx5dv_context_attr",
    ][::core::mem::align_of::<mlx5dv_context_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_context_attr::flags",
    ][::core::mem::offset_of!(mlx5dv_context_attr, flags) - 0usize];
    [
        "Offset of field: mlx5dv_context_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_context_attr, comp_mask) - 8usize];
    [
        "Offset of field: mlx5dv_context_attr::fds",
    ][::core::mem::offset_of!(mlx5dv_context_attr, fds) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_vfio_context_attr",
    ][::core::mem::size_of::<mlx5dv_vfio_context_attr>() - 24usize];
    [
        "Alignment of mlx5dv_vfio_context_attr",
    ][::core::mem::align_of::<mlx5dv_vfio_context_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_vfio_context_attr::pci_name",
    ][::core::mem::offset_of!(mlx5dv_vfio_context_attr, pci_name) - 0usize];
    [
        "Offset of field: mlx5dv_vfio_context_attr::flags",
    ][::core::mem::offset_of!(mlx5dv_vfio_context_attr, flags) - 8usize];
    [
        "Offset of field: mlx5dv_vfio_context_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_vfio_context_attr, comp_mask) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_devx_umem"][::core::mem::size_of::<mlx5dv_devx_umem>() - 4usize];
    [
        "Alignment of mlx5dv_devx_umem",
    ][::core::mem::align_of::<mlx5dv_devx_umem>() - 4usize];
    [
        "Offset of field: mlx5dv_devx_umem::umem_id",
    ][::core::mem::offset_of!(mlx5dv_devx_umem, umem_id) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_devx_umem_in",
    ][::core::mem::size_of::<mlx5dv_devx_umem_in>() - 48usize];
    [
        "Alignment of mlx5dv_devx_umem_in",
    ][::core::mem::align_of::<mlx5dv_devx_umem_in>() - 8usize];
    [
        "Offset of field: mlx5dv_devx_umem_in::addr",
    ][::core::mem::offset_of!(mlx5dv_devx_umem_in, addr) - 0usize];
    [
        "Offset of field: mlx5dv_devx_umem_in::size",
    ][::core::mem::offset_of!(mlx5dv_devx_umem_in, size) - 8usize];
    [
        "Offset of field: mlx5dv_devx_umem_in::access",
    ][::core::mem::offset_of!(mlx5dv_devx_umem_in, access) - 16usize];
    [
        "Offset of field: mlx5dv_devx_umem_in::pgsz_bitmap",
    ][::core::mem::offset_of!(mlx5dv_devx_umem_in, pgsz_bitmap) - 24usize];
    [
        "Offset of field: mlx5dv_devx_umem_in::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_devx_umem_in, comp_mask) - 32usize];
    [
        "Offset of field: mlx5dv_devx_umem_in::dmabuf_fd",
    ][::core::mem::offset_of!(mlx5dv_devx_umem_in, dmabuf_fd) - 40usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_devx_uar"][::core::mem::size_of::<mlx5dv_devx_uar>() - 40usize];
    [
        "Alignment of mlx5dv_devx_uar",
    ][::core::mem::align_of::<mlx5dv_devx_uar>() - 8usize];
    [
        "Offset of field: mlx5dv_devx_uar::reg_addr",
    ][::core::mem::offset_of!(mlx5dv_devx_uar, reg_addr) - 0usize];
    [
        "Offset of field: mlx5dv_devx_uar::base_addr",
    ][::core::mem::offset_of!(mlx5dv_devx_uar, base_addr) - 8usize];
    [
        "Offset of field: mlx5dv_devx_uar::page_id",
    ][::core::mem::offset_of!(mlx5dv_devx_uar, page_id) - 16usize];
    [
        "Offset of field: mlx5dv_devx_uar::mmap_off",
    ][::core::mem::offset_of!(mlx5dv_devx_uar, mmap_off) - 24usize];
    [
        "Offset of field: mlx5dv_devx_uar::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_devx_uar, comp_mask) - 32usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_var"][::core::mem::size_of::<mlx5dv_var>() - 24usize];
    ["Alignment of mlx5dv_var"][::core::mem::align_of::<mlx5dv_var>() - 8usize];
    [
        "Offset of field: mlx5dv_var::page_id",
    ][::core::mem::offset_of!(mlx5dv_var, page_id) - 0usize];
    [
        "Offset of field: mlx5dv_var::length",
    ][::core::mem::offset_of!(mlx5dv_var, length) - 4usize];
    [
        "Offset of field: mlx5dv_var::mmap_off",
    ][::core::mem::offset_of!(mlx5dv_var, mmap_off) - 8usize];
    [
        "Offset of field: mlx5dv_var::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_var, comp_mask) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_export_sizes",
    ][::core::mem::size_of::<mlx5dv_export_sizes>() - 12usize];
    [
        "Alignment of mlx5dv_export_sizes",
    ][::core::mem::align_of::<mlx5dv_export_sizes>() - 4usize];
    [
        "Offset of field: mlx5dv_export_sizes::var_attrs_size",
    ][::core::mem::offset_of!(mlx5dv_export_sizes, var_attrs_size) - 0usize];
    [
        "Offset of field: mlx5dv_export_sizes::devx_umem_attrs_size",
    ][::core::mem::offset_of!(mlx5dv_export_sizes, devx_umem_attrs_size) - 4usize];
    [
        "Offset of field: mlx5dv_export_sizes::devx_obj_attrs_size",
    ][::core::mem::offset_of!(mlx5dv_export_sizes, devx_obj_attrs_size) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_devx_cmd_comp",
    ][::core::mem::size_of::<mlx5dv_devx_cmd_comp>() - 4usize];
    [
        "Alignment of mlx5dv_devx_cmd_comp",
    ][::core::mem::align_of::<mlx5dv_devx_cmd_comp>() - 4usize];
    [
        "Offset of field: mlx5dv_devx_cmd_comp::fd",
    ][::core::mem::offset_of!(mlx5dv_devx_cmd_comp, fd) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_devx_event_channel",
    ][::core::mem::size_of::<mlx5dv_devx_event_channel>() - 4usize];
    [
        "Alignment of mlx5dv_devx_event_channel",
    ][::core::mem::align_of::<mlx5dv_devx_event_channel>() - 4usize];
    [
        "Offset of field: mlx5dv_devx_event_channel::fd",
    ][::core::mem::offset_of!(mlx5dv_devx_event_channel, fd) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_dr_flow_meter_attr",
    ][::core::mem::size_of::<mlx5dv_dr_flow_meter_attr>() - 32usize];
    [
        "Alignment of mlx5dv_dr_flow_meter_attr",
    ][::core::mem::align_of::<mlx5dv_dr_flow_meter_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_dr_flow_meter_attr::next_table",
    ][::core::mem::offset_of!(mlx5dv_dr_flow_meter_attr, next_table) - 0usize];
    [
        "Offset of field: mlx5dv_dr_flow_meter_attr::active",
    ][::core::mem::offset_of!(mlx5dv_dr_flow_meter_attr, active) - 8usize];
    [
        "Offset of field: mlx5dv_dr_flow_meter_attr::reg_c_index",
    ][::core::mem::offset_of!(mlx5dv_dr_flow_meter_attr, reg_c_index) - 9usize];
    [
        "Offset of field: mlx5dv_dr_flow_meter_attr::flow_meter_parameter_sz",
    ][::core::mem::offset_of!(mlx5dv_dr_flow_meter_attr, flow_meter_parameter_sz)
        - 16usize];
    [
        "Offset of field: mlx5dv_dr_flow_meter_attr::flow_meter_parameter",
    ][::core::mem::offset_of!(mlx5dv_dr_flow_meter_attr, flow_meter_parameter)
        - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_dr_flow_sampler_attr",
    ][::core::mem::size_of::<mlx5dv_dr_flow_sampler_attr>() - 40usize];
    [
        "Alignment of mlx5dv_dr_flow_sampler_attr",
    ][::core::mem::align_of::<mlx5dv_dr_flow_sampler_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_dr_flow_sampler_attr::sample_ratio",
    ][::core::mem::offset_of!(mlx5dv_dr_flow_sampler_attr, sample_ratio) - 0usize];
    [
        "Offset of field: mlx5dv_dr_flow_sampler_attr::default_next_table",
    ][::core::mem::offset_of!(mlx5dv_dr_flow_sampler_attr, default_next_table) - 8usize];
    [
        "Offset of field: mlx5dv_dr_flow_sampler_attr::num_sample_actions",
    ][::core::mem::offset_of!(mlx5dv_dr_flow_sampler_attr, num_sample_actions)
        - 16usize];
    [
        "Offset of field: mlx5dv_dr_flow_sampler_attr::sample_actions",
    ][::core::mem::offset_of!(mlx5dv_dr_flow_sampler_attr, sample_actions) - 24usize];
    [
        "Offset of field: mlx5dv_dr_flow_sampler_attr::action",
    ][::core::mem::offset_of!(mlx5dv_dr_flow_sampler_attr, action) - 32usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_dr_matcher_layout",
    ][::core::mem::size_of::<mlx5dv_dr_matcher_layout>() - 8usize];
    [
        "Alignment of mlx5dv_dr_matcher_layout",
    ][::core::mem::align_of::<mlx5dv_dr_matcher_layout>() - 4usize];
    [
        "Offset of field: mlx5dv_dr_matcher_layout::flags",
    ][::core::mem::offset_of!(mlx5dv_dr_matcher_layout, flags) - 0usize];
    [
        "Offset of field: mlx5dv_dr_matcher_layout::log_num_of_rules_hint",
    ][::core::mem::offset_of!(mlx5dv_dr_matcher_layout, log_num_of_rules_hint) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_dr_action_dest_reformat",
    ][::core::mem::size_of::<mlx5dv_dr_action_dest_reformat>() - 16usize];
    [
        "Alignment of mlx5dv_dr_action_dest_reformat",
    ][::core::mem::align_of::<mlx5dv_dr_action_dest_reformat>() - 8usize];
    [
        "Offset of field: mlx5dv_dr_action_dest_reformat::reformat",
    ][::core::mem::offset_of!(mlx5dv_dr_action_dest_reformat, reformat) - 0usize];
    [
        "Offset of field: mlx5dv_dr_action_dest_reformat::dest",
    ][::core::mem::offset_of!(mlx5dv_dr_action_dest_reformat, dest) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_dr_action_dest_attr__bindgen_ty_1",
    ][::core::mem::size_of::<mlx5dv_dr_action_dest_attr__bindgen_ty_1>() - 8usize];
    [
        "Alignment of mlx5dv_dr_action_dest_attr__bindgen_ty_1",
    ][::core::mem::align_of::<mlx5dv_dr_action_dest_attr__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: mlx5dv_dr_action_dest_attr__bindgen_ty_1::dest",
    ][::core::mem::offset_of!(mlx5dv_dr_action_dest_attr__bindgen_ty_1, dest) - 0usize];
    [
        "Offset of field: mlx5dv_dr_action_dest_attr__bindgen_ty_1::dest_reformat",
    ][::core::mem::offset_of!(mlx5dv_dr_action_dest_attr__bindgen_ty_1, dest_reformat)
        - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_dr_action_dest_attr",
    ][::core::mem::size_of::<mlx5dv_dr_action_dest_attr>() - 16usize];
    [
        "Alignment of mlx5dv_dr_action_dest_attr",
    ][::core::mem::align_of::<mlx5dv_dr_action_dest_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_dr_action_dest_attr::type_",
    ][::core::mem::offset_of!(mlx5dv_dr_action_dest_attr, type_) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_pp"][::core::mem::size_of::<mlx5dv_pp>() - 2usize];
    ["Alignment of mlx5dv_pp"][::core::mem::align_of::<mlx5dv_pp>() - 2usize];
    [
        "Offset of field: mlx5dv_pp::index",
    ][::core::mem::offset_of!(mlx5dv_pp, index) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_sched_attr"][::core::mem::size_of::<mlx5dv_sched_attr>() - 32usize];
    [
        "Alignment of mlx5dv_sched_attr",
    ][::core::mem::align_of::<mlx5dv_sched_attr>() - 8usize];
    [
        "Offset of field: mlx5dv_sched_attr::parent",
    ][::core::mem::offset_of!(mlx5dv_sched_attr, parent) - 0usize];
    [
        "Offset of field: mlx5dv_sched_attr::flags",
    ][::core::mem::offset_of!(mlx5dv_sched_attr, flags) - 8usize];
    [
        "Offset of field: mlx5dv_sched_attr::bw_share",
    ][::core::mem::offset_of!(mlx5dv_sched_attr, bw_share) - 12usize];
    [
        "Offset of field: mlx5dv_sched_attr::max_avg_bw",
    ][::core::mem::offset_of!(mlx5dv_sched_attr, max_avg_bw) - 16usize];
    [
        "Offset of field: mlx5dv_sched_attr::comp_mask",
    ][::core::mem::offset_of!(mlx5dv_sched_attr, comp_mask) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of mlx5dv_devx_msi_vector",
    ][::core::mem::size_of::<mlx5dv_devx_msi_vector>() - 8usize];
    [
        "Alignment of mlx5dv_devx_msi_vector",
    ][::core::mem::align_of::<mlx5dv_devx_msi_vector>() - 4usize];
    [
        "Offset of field: mlx5dv_devx_msi_vector::vector",
    ][::core::mem::offset_of!(mlx5dv_devx_msi_vector, vector) - 0usize];
    [
        "Offset of field: mlx5dv_devx_msi_vector::fd",
    ][::core::mem::offset_of!(mlx5dv_devx_msi_vector, fd) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mlx5dv_devx_eq"][::core::mem::size_of::<mlx5dv_devx_eq>() - 8usize];
    ["Alignment of mlx5dv_devx_eq"][::core::mem::align_of::<mlx5dv_devx_eq>() - 8usize];
    [
        "Offset of field: mlx5dv_devx_eq::vaddr",
    ][::core::mem::offset_of!(mlx5dv_devx_eq, vaddr) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_device_attr"][::core::mem::size_of::<efadv_device_attr>() - 32usize];
    [
        "Alignment of efadv_device_attr",
    ][::core::mem::align_of::<efadv_device_attr>() - 8usize];
    [
        "Offset of field: efadv_device_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_device_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_device_attr::max_sq_wr",
    ][::core::mem::offset_of!(efadv_device_attr, max_sq_wr) - 8usize];
    [
        "Offset of field: efadv_device_attr::max_rq_wr",
    ][::core::mem::offset_of!(efadv_device_attr, max_rq_wr) - 12usize];
    [
        "Offset of field: efadv_device_attr::max_sq_sge",
    ][::core::mem::offset_of!(efadv_device_attr, max_sq_sge) - 16usize];
    [
        "Offset of field: efadv_device_attr::max_rq_sge",
    ][::core::mem::offset_of!(efadv_device_attr, max_rq_sge) - 18usize];
    [
        "Offset of field: efadv_device_attr::inline_buf_size",
    ][::core::mem::offset_of!(efadv_device_attr, inline_buf_size) - 20usize];
    [
        "Offset of field: efadv_device_attr::inline_buf_size_ex",
    ][::core::mem::offset_of!(efadv_device_attr, inline_buf_size_ex) - 22usize];
    [
        "Offset of field: efadv_device_attr::device_caps",
    ][::core::mem::offset_of!(efadv_device_attr, device_caps) - 24usize];
    [
        "Offset of field: efadv_device_attr::max_rdma_size",
    ][::core::mem::offset_of!(efadv_device_attr, max_rdma_size) - 28usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_ah_attr"][::core::mem::size_of::<efadv_ah_attr>() - 16usize];
    ["Alignment of efadv_ah_attr"][::core::mem::align_of::<efadv_ah_attr>() - 8usize];
    [
        "Offset of field: efadv_ah_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_ah_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_ah_attr::ahn",
    ][::core::mem::offset_of!(efadv_ah_attr, ahn) - 8usize];
    [
        "Offset of field: efadv_ah_attr::reserved",
    ][::core::mem::offset_of!(efadv_ah_attr, reserved) - 10usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of efadv_sq_depth_attr",
    ][::core::mem::size_of::<efadv_sq_depth_attr>() - 24usize];
    [
        "Alignment of efadv_sq_depth_attr",
    ][::core::mem::align_of::<efadv_sq_depth_attr>() - 8usize];
    [
        "Offset of field: efadv_sq_depth_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_sq_depth_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_sq_depth_attr::flags",
    ][::core::mem::offset_of!(efadv_sq_depth_attr, flags) - 8usize];
    [
        "Offset of field: efadv_sq_depth_attr::max_send_sge",
    ][::core::mem::offset_of!(efadv_sq_depth_attr, max_send_sge) - 12usize];
    [
        "Offset of field: efadv_sq_depth_attr::max_rdma_sge",
    ][::core::mem::offset_of!(efadv_sq_depth_attr, max_rdma_sge) - 16usize];
    [
        "Offset of field: efadv_sq_depth_attr::max_inline_data",
    ][::core::mem::offset_of!(efadv_sq_depth_attr, max_inline_data) - 20usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of efadv_rq_depth_attr",
    ][::core::mem::size_of::<efadv_rq_depth_attr>() - 16usize];
    [
        "Alignment of efadv_rq_depth_attr",
    ][::core::mem::align_of::<efadv_rq_depth_attr>() - 8usize];
    [
        "Offset of field: efadv_rq_depth_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_rq_depth_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_rq_depth_attr::max_recv_sge",
    ][::core::mem::offset_of!(efadv_rq_depth_attr, max_recv_sge) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of efadv_qp_init_attr",
    ][::core::mem::size_of::<efadv_qp_init_attr>() - 24usize];
    [
        "Alignment of efadv_qp_init_attr",
    ][::core::mem::align_of::<efadv_qp_init_attr>() - 8usize];
    [
        "Offset of field: efadv_qp_init_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_qp_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_qp_init_attr::driver_qp_type",
    ][::core::mem::offset_of!(efadv_qp_init_attr, driver_qp_type) - 8usize];
    [
        "Offset of field: efadv_qp_init_attr::flags",
    ][::core::mem::offset_of!(efadv_qp_init_attr, flags) - 12usize];
    [
        "Offset of field: efadv_qp_init_attr::sl",
    ][::core::mem::offset_of!(efadv_qp_init_attr, sl) - 14usize];
    [
        "Offset of field: efadv_qp_init_attr::reserved",
    ][::core::mem::offset_of!(efadv_qp_init_attr, reserved) - 15usize];
    [
        "Offset of field: efadv_qp_init_attr::wr_flags",
    ][::core::mem::offset_of!(efadv_qp_init_attr, wr_flags) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_wq_attr"][::core::mem::size_of::<efadv_wq_attr>() - 40usize];
    ["Alignment of efadv_wq_attr"][::core::mem::align_of::<efadv_wq_attr>() - 8usize];
    [
        "Offset of field: efadv_wq_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_wq_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_wq_attr::buffer",
    ][::core::mem::offset_of!(efadv_wq_attr, buffer) - 8usize];
    [
        "Offset of field: efadv_wq_attr::entry_size",
    ][::core::mem::offset_of!(efadv_wq_attr, entry_size) - 16usize];
    [
        "Offset of field: efadv_wq_attr::num_entries",
    ][::core::mem::offset_of!(efadv_wq_attr, num_entries) - 20usize];
    [
        "Offset of field: efadv_wq_attr::doorbell",
    ][::core::mem::offset_of!(efadv_wq_attr, doorbell) - 24usize];
    [
        "Offset of field: efadv_wq_attr::max_batch",
    ][::core::mem::offset_of!(efadv_wq_attr, max_batch) - 32usize];
    [
        "Offset of field: efadv_wq_attr::caps",
    ][::core::mem::offset_of!(efadv_wq_attr, caps) - 36usize];
    [
        "Offset of field: efadv_wq_attr::reserved",
    ][::core::mem::offset_of!(efadv_wq_attr, reserved) - 38usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_qp"][::core::mem::size_of::<efadv_qp>() - 16usize];
    ["Alignment of efadv_qp"][::core::mem::align_of::<efadv_qp>() - 8usize];
    [
        "Offset of field: efadv_qp::comp_mask",
    ][::core::mem::offset_of!(efadv_qp, comp_mask) - 0usize];
    [
        "Offset of field: efadv_qp::wr_set_processing_hints",
    ][::core::mem::offset_of!(efadv_qp, wr_set_processing_hints) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of efadv_cq_init_attr__bindgen_ty_1",
    ][::core::mem::size_of::<efadv_cq_init_attr__bindgen_ty_1>() - 32usize];
    [
        "Alignment of efadv_cq_init_attr__bindgen_ty_1",
    ][::core::mem::align_of::<efadv_cq_init_attr__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: efadv_cq_init_attr__bindgen_ty_1::buffer",
    ][::core::mem::offset_of!(efadv_cq_init_attr__bindgen_ty_1, buffer) - 0usize];
    [
        "Offset of field: efadv_cq_init_attr__bindgen_ty_1::length",
    ][::core::mem::offset_of!(efadv_cq_init_attr__bindgen_ty_1, length) - 8usize];
    [
        "Offset of field: efadv_cq_init_attr__bindgen_ty_1::offset",
    ][::core::mem::offset_of!(efadv_cq_init_attr__bindgen_ty_1, offset) - 16usize];
    [
        "Offset of field: efadv_cq_init_attr__bindgen_ty_1::fd",
    ][::core::mem::offset_of!(efadv_cq_init_attr__bindgen_ty_1, fd) - 24usize];
    [
        "Offset of field: efadv_cq_init_attr__bindgen_ty_1::reserved",
    ][::core::mem::offset_of!(efadv_cq_init_attr__bindgen_ty_1, reserved) - 28usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of efadv_cq_init_attr",
    ][::core::mem::size_of::<efadv_cq_init_attr>() - 56usize];
    [
        "Alignment of efadv_cq_init_attr",
    ][::core::mem::align_of::<efadv_cq_init_attr>() - 8usize];
    [
        "Offset of field: efadv_cq_init_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_cq_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_cq_init_attr::wc_flags",
    ][::core::mem::offset_of!(efadv_cq_init_attr, wc_flags) - 8usize];
    [
        "Offset of field: efadv_cq_init_attr::flags",
    ][::core::mem::offset_of!(efadv_cq_init_attr, flags) - 16usize];
    [
        "Offset of field: efadv_cq_init_attr::ext_mem_dmabuf",
    ][::core::mem::offset_of!(efadv_cq_init_attr, ext_mem_dmabuf) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_cq_attr"][::core::mem::size_of::<efadv_cq_attr>() - 32usize];
    ["Alignment of efadv_cq_attr"][::core::mem::align_of::<efadv_cq_attr>() - 8usize];
    [
        "Offset of field: efadv_cq_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_cq_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_cq_attr::buffer",
    ][::core::mem::offset_of!(efadv_cq_attr, buffer) - 8usize];
    [
        "Offset of field: efadv_cq_attr::entry_size",
    ][::core::mem::offset_of!(efadv_cq_attr, entry_size) - 16usize];
    [
        "Offset of field: efadv_cq_attr::num_entries",
    ][::core::mem::offset_of!(efadv_cq_attr, num_entries) - 20usize];
    [
        "Offset of field: efadv_cq_attr::doorbell",
    ][::core::mem::offset_of!(efadv_cq_attr, doorbell) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_cq"][::core::mem::size_of::<efadv_cq>() - 24usize];
    ["Alignment of efadv_cq"][::core::mem::align_of::<efadv_cq>() - 8usize];
    [
        "Offset of field: efadv_cq::comp_mask",
    ][::core::mem::offset_of!(efadv_cq, comp_mask) - 0usize];
    [
        "Offset of field: efadv_cq::wc_read_sgid",
    ][::core::mem::offset_of!(efadv_cq, wc_read_sgid) - 8usize];
    [
        "Offset of field: efadv_cq::wc_is_unsolicited",
    ][::core::mem::offset_of!(efadv_cq, wc_is_unsolicited) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of efadv_memory_location__bindgen_ty_1",
    ][::core::mem::size_of::<efadv_memory_location__bindgen_ty_1>() - 16usize];
    [
        "Alignment of efadv_memory_location__bindgen_ty_1",
    ][::core::mem::align_of::<efadv_memory_location__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: efadv_memory_location__bindgen_ty_1::offset",
    ][::core::mem::offset_of!(efadv_memory_location__bindgen_ty_1, offset) - 0usize];
    [
        "Offset of field: efadv_memory_location__bindgen_ty_1::fd",
    ][::core::mem::offset_of!(efadv_memory_location__bindgen_ty_1, fd) - 8usize];
    [
        "Offset of field: efadv_memory_location__bindgen_ty_1::reserved",
    ][::core::mem::offset_of!(efadv_memory_location__bindgen_ty_1, reserved) - 12usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of efadv_memory_location",
    ][::core::mem::size_of::<efadv_memory_location>() - 32usize];
    [
        "Alignment of efadv_memory_location",
    ][::core::mem::align_of::<efadv_memory_location>() - 8usize];
    [
        "Offset of field: efadv_memory_location::ptr",
    ][::core::mem::offset_of!(efadv_memory_location, ptr) - 0usize];
    [
        "Offset of field: efadv_memory_location::dmabuf",
    ][::core::mem::offset_of!(efadv_memory_location, dmabuf) - 8usize];
    [
        "Offset of field: efadv_memory_location::type_",
    ][::core::mem::offset_of!(efadv_memory_location, type_) - 24usize];
    [
        "Offset of field: efadv_memory_location::reserved",
    ][::core::mem::offset_of!(efadv_memory_location, reserved) - 25usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of efadv_comp_cntr_init_attr",
    ][::core::mem::size_of::<efadv_comp_cntr_init_attr>() - 80usize];
    [
        "Alignment of efadv_comp_cntr_init_attr",
    ][::core::mem::align_of::<efadv_comp_cntr_init_attr>() - 8usize];
    [
        "Offset of field: efadv_comp_cntr_init_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_comp_cntr_init_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_comp_cntr_init_attr::flags",
    ][::core::mem::offset_of!(efadv_comp_cntr_init_attr, flags) - 8usize];
    [
        "Offset of field: efadv_comp_cntr_init_attr::reserved",
    ][::core::mem::offset_of!(efadv_comp_cntr_init_attr, reserved) - 12usize];
    [
        "Offset of field: efadv_comp_cntr_init_attr::comp_cntr_ext_mem",
    ][::core::mem::offset_of!(efadv_comp_cntr_init_attr, comp_cntr_ext_mem) - 16usize];
    [
        "Offset of field: efadv_comp_cntr_init_attr::err_cntr_ext_mem",
    ][::core::mem::offset_of!(efadv_comp_cntr_init_attr, err_cntr_ext_mem) - 48usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of efadv_mr_attr"][::core::mem::size_of::<efadv_mr_attr>() - 16usize];
    ["Alignment of efadv_mr_attr"][::core::mem::align_of::<efadv_mr_attr>() - 8usize];
    [
        "Offset of field: efadv_mr_attr::comp_mask",
    ][::core::mem::offset_of!(efadv_mr_attr, comp_mask) - 0usize];
    [
        "Offset of field: efadv_mr_attr::ic_id_validity",
    ][::core::mem::offset_of!(efadv_mr_attr, ic_id_validity) - 8usize];
    [
        "Offset of field: efadv_mr_attr::recv_ic_id",
    ][::core::mem::offset_of!(efadv_mr_attr, recv_ic_id) - 10usize];
    [
        "Offset of field: efadv_mr_attr::rdma_read_ic_id",
    ][::core::mem::offset_of!(efadv_mr_attr, rdma_read_ic_id) - 12usize];
    [
        "Offset of field: efadv_mr_attr::rdma_recv_ic_id",
    ][::core::mem::offset_of!(efadv_mr_attr, rdma_recv_ic_id) - 14usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_sa_path_rec"][::core::mem::size_of::<ibv_sa_path_rec>() - 64usize];
    [
        "Alignment of ibv_sa_path_rec",
    ][::core::mem::align_of::<ibv_sa_path_rec>() - 8usize];
    [
        "Offset of field: ibv_sa_path_rec::dgid",
    ][::core::mem::offset_of!(ibv_sa_path_rec, dgid) - 0usize];
    [
        "Offset of field: ibv_sa_path_rec::sgid",
    ][::core::mem::offset_of!(ibv_sa_path_rec, sgid) - 16usize];
    [
        "Offset of field: ibv_sa_path_rec::dlid",
    ][::core::mem::offset_of!(ibv_sa_path_rec, dlid) - 32usize];
    [
        "Offset of field: ibv_sa_path_rec::slid",
    ][::core::mem::offset_of!(ibv_sa_path_rec, slid) - 34usize];
    [
        "Offset of field: ibv_sa_path_rec::raw_traffic",
    ][::core::mem::offset_of!(ibv_sa_path_rec, raw_traffic) - 36usize];
    [
        "Offset of field: ibv_sa_path_rec::flow_label",
    ][::core::mem::offset_of!(ibv_sa_path_rec, flow_label) - 40usize];
    [
        "Offset of field: ibv_sa_path_rec::hop_limit",
    ][::core::mem::offset_of!(ibv_sa_path_rec, hop_limit) - 44usize];
    [
        "Offset of field: ibv_sa_path_rec::traffic_class",
    ][::core::mem::offset_of!(ibv_sa_path_rec, traffic_class) - 45usize];
    [
        "Offset of field: ibv_sa_path_rec::reversible",
    ][::core::mem::offset_of!(ibv_sa_path_rec, reversible) - 48usize];
    [
        "Offset of field: ibv_sa_path_rec::numb_path",
    ][::core::mem::offset_of!(ibv_sa_path_rec, numb_path) - 52usize];
    [
        "Offset of field: ibv_sa_path_rec::pkey",
    ][::core::mem::offset_of!(ibv_sa_path_rec, pkey) - 54usize];
    [
        "Offset of field: ibv_sa_path_rec::sl",
    ][::core::mem::offset_of!(ibv_sa_path_rec, sl) - 56usize];
    [
        "Offset of field: ibv_sa_path_rec::mtu_selector",
    ][::core::mem::offset_of!(ibv_sa_path_rec, mtu_selector) - 57usize];
    [
        "Offset of field: ibv_sa_path_rec::mtu",
    ][::core::mem::offset_of!(ibv_sa_path_rec, mtu) - 58usize];
    [
        "Offset of field: ibv_sa_path_rec::rate_selector",
    ][::core::mem::offset_of!(ibv_sa_path_rec, rate_selector) - 59usize];
    [
        "Offset of field: ibv_sa_path_rec::rate",
    ][::core::mem::offset_of!(ibv_sa_path_rec, rate) - 60usize];
    [
        "Offset of field: ibv_sa_path_rec::packet_life_time_selector",
    ][::core::mem::offset_of!(ibv_sa_path_rec, packet_life_time_selector) - 61usize];
    [
        "Offset of field: ibv_sa_path_rec::packet_life_time",
    ][::core::mem::offset_of!(ibv_sa_path_rec, packet_life_time) - 62usize];
    [
        "Offset of field: ibv_sa_path_rec::preference",
    ][::core::mem::offset_of!(ibv_sa_path_rec, preference) - 63usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_sa_mcmember_rec",
    ][::core::mem::size_of::<ibv_sa_mcmember_rec>() - 64usize];
    [
        "Alignment of ibv_sa_mcmember_rec",
    ][::core::mem::align_of::<ibv_sa_mcmember_rec>() - 8usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::mgid",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, mgid) - 0usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::port_gid",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, port_gid) - 16usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::qkey",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, qkey) - 32usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::mlid",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, mlid) - 36usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::mtu_selector",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, mtu_selector) - 38usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::mtu",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, mtu) - 39usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::traffic_class",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, traffic_class) - 40usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::pkey",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, pkey) - 42usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::rate_selector",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, rate_selector) - 44usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::rate",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, rate) - 45usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::packet_life_time_selector",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, packet_life_time_selector) - 46usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::packet_life_time",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, packet_life_time) - 47usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::sl",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, sl) - 48usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::flow_label",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, flow_label) - 52usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::hop_limit",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, hop_limit) - 56usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::scope",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, scope) - 57usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::join_state",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, join_state) - 58usize];
    [
        "Offset of field: ibv_sa_mcmember_rec::proxy_join",
    ][::core::mem::offset_of!(ibv_sa_mcmember_rec, proxy_join) - 60usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of ibv_sa_service_rec",
    ][::core::mem::size_of::<ibv_sa_service_rec>() - 176usize];
    [
        "Alignment of ibv_sa_service_rec",
    ][::core::mem::align_of::<ibv_sa_service_rec>() - 8usize];
    [
        "Offset of field: ibv_sa_service_rec::id",
    ][::core::mem::offset_of!(ibv_sa_service_rec, id) - 0usize];
    [
        "Offset of field: ibv_sa_service_rec::gid",
    ][::core::mem::offset_of!(ibv_sa_service_rec, gid) - 8usize];
    [
        "Offset of field: ibv_sa_service_rec::pkey",
    ][::core::mem::offset_of!(ibv_sa_service_rec, pkey) - 24usize];
    [
        "Offset of field: ibv_sa_service_rec::lease",
    ][::core::mem::offset_of!(ibv_sa_service_rec, lease) - 28usize];
    [
        "Offset of field: ibv_sa_service_rec::key",
    ][::core::mem::offset_of!(ibv_sa_service_rec, key) - 32usize];
    [
        "Offset of field: ibv_sa_service_rec::name",
    ][::core::mem::offset_of!(ibv_sa_service_rec, name) - 48usize];
    [
        "Offset of field: ibv_sa_service_rec::data8",
    ][::core::mem::offset_of!(ibv_sa_service_rec, data8) - 112usize];
    [
        "Offset of field: ibv_sa_service_rec::data16",
    ][::core::mem::offset_of!(ibv_sa_service_rec, data16) - 128usize];
    [
        "Offset of field: ibv_sa_service_rec::data32",
    ][::core::mem::offset_of!(ibv_sa_service_rec, data32) - 144usize];
    [
        "Offset of field: ibv_sa_service_rec::data64",
    ][::core::mem::offset_of!(ibv_sa_service_rec, data64) - 160usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_path_record"][::core::mem::size_of::<ibv_path_record>() - 64usize];
    [
        "Alignment of ibv_path_record",
    ][::core::mem::align_of::<ibv_path_record>() - 8usize];
    [
        "Offset of field: ibv_path_record::service_id",
    ][::core::mem::offset_of!(ibv_path_record, service_id) - 0usize];
    [
        "Offset of field: ibv_path_record::dgid",
    ][::core::mem::offset_of!(ibv_path_record, dgid) - 8usize];
    [
        "Offset of field: ibv_path_record::sgid",
    ][::core::mem::offset_of!(ibv_path_record, sgid) - 24usize];
    [
        "Offset of field: ibv_path_record::dlid",
    ][::core::mem::offset_of!(ibv_path_record, dlid) - 40usize];
    [
        "Offset of field: ibv_path_record::slid",
    ][::core::mem::offset_of!(ibv_path_record, slid) - 42usize];
    [
        "Offset of field: ibv_path_record::flowlabel_hoplimit",
    ][::core::mem::offset_of!(ibv_path_record, flowlabel_hoplimit) - 44usize];
    [
        "Offset of field: ibv_path_record::tclass",
    ][::core::mem::offset_of!(ibv_path_record, tclass) - 48usize];
    [
        "Offset of field: ibv_path_record::reversible_numpath",
    ][::core::mem::offset_of!(ibv_path_record, reversible_numpath) - 49usize];
    [
        "Offset of field: ibv_path_record::pkey",
    ][::core::mem::offset_of!(ibv_path_record, pkey) - 50usize];
    [
        "Offset of field: ibv_path_record::qosclass_sl",
    ][::core::mem::offset_of!(ibv_path_record, qosclass_sl) - 52usize];
    [
        "Offset of field: ibv_path_record::mtu",
    ][::core::mem::offset_of!(ibv_path_record, mtu) - 54usize];
    [
        "Offset of field: ibv_path_record::rate",
    ][::core::mem::offset_of!(ibv_path_record, rate) - 55usize];
    [
        "Offset of field: ibv_path_record::packetlifetime",
    ][::core::mem::offset_of!(ibv_path_record, packetlifetime) - 56usize];
    [
        "Offset of field: ibv_path_record::preference",
    ][::core::mem::offset_of!(ibv_path_record, preference) - 57usize];
    [
        "Offset of field: ibv_path_record::reserved",
    ][::core::mem::offset_of!(ibv_path_record, reserved) - 58usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ibv_path_data"][::core::mem::size_of::<ibv_path_data>() - 72usize];
    ["Alignment of ibv_path_data"][::core::mem::align_of::<ibv_path_data>() - 8usize];
    [
        "Offset of field: ibv_path_data::flags",
    ][::core::mem::offset_of!(ibv_path_data, flags) - 0usize];
    [
        "Offset of field: ibv_path_data::reserved",
    ][::core::mem::offset_of!(ibv_path_data, reserved) - 4usize];
    [
        "Offset of field: ibv_path_data::path",
    ][::core::mem::offset_of!(ibv_path_data, path) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of rdma_ib_addr"][::core::mem::size_of::<rdma_ib_addr>() - 40usize];
    ["Alignment of rdma_ib_addr"][::core::mem::align_of::<rdma_ib_addr>() - 8usize];
    [
        "Offset of field: rdma_ib_addr::sgid",
    ][::core::mem::offset_of!(rdma_ib_addr, sgid) - 0usize];
    [
        "Offset of field: rdma_ib_addr::dgid",
    ][::core::mem::offset_of!(rdma_ib_addr, dgid) - 16usize];
    [
        "Offset of field: rdma_ib_addr::pkey",
    ][::core::mem::offset_of!(rdma_ib_addr, pkey) - 32usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of rdma_addr__bindgen_ty_1",
    ][::core::mem::size_of::<rdma_addr__bindgen_ty_1>() - 128usize];
    [
        "Alignment of rdma_addr__bindgen_ty_1",
    ][::core::mem::align_of::<rdma_addr__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: rdma_addr__bindgen_ty_1::src_addr",
    ][::core::mem::offset_of!(rdma_addr__bindgen_ty_1, src_addr) - 0usize];
    [
        "Offset of field: rdma_addr__bindgen_ty_1::src_sin",
    ][::core::mem::offset_of!(rdma_addr__bindgen_ty_1, src_sin) - 0usize];
    [
        "Offset of field: rdma_addr__bindgen_ty_1::src_sin6",
    ][::core::mem::offset_of!(rdma_addr__bindgen_ty_1, src_sin6) - 0usize];
    [
        "Offset of field: rdma_addr__bindgen_ty_1::src_storage",
    ][::core::mem::offset_of!(rdma_addr__bindgen_ty_1, src_storage) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of rdma_addr__bindgen_ty_2",
    ][::core::mem::size_of::<rdma_addr__bindgen_ty_2>() - 128usize];
    [
        "Alignment of rdma_addr__bindgen_ty_2",
    ][::core::mem::align_of::<rdma_addr__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: rdma_addr__bindgen_ty_2::dst_addr",
    ][::core::mem::offset_of!(rdma_addr__bindgen_ty_2, dst_addr) - 0usize];
    [
        "Offset of field: rdma_addr__bindgen_ty_2::dst_sin",
    ][::core::mem::offset_of!(rdma_addr__bindgen_ty_2, dst_sin) - 0usize];
    [
        "Offset of field: rdma_addr__bindgen_ty_2::dst_sin6",
    ][::core::mem::offset_of!(rdma_addr__bindgen_ty_2, dst_sin6) - 0usize];
    [
        "Offset of field: rdma_addr__bindgen_ty_2::dst_storage",
    ][::core::mem::offset_of!(rdma_addr__bindgen_ty_2, dst_storage) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of rdma_addr__bindgen_ty_3",
    ][::core::mem::size_of::<rdma_addr__bindgen_ty_3>() - 40usize];
    [
        "Alignment of rdma_addr__bindgen_ty_3",
    ][::core::mem::align_of::<rdma_addr__bindgen_ty_3>() - 8usize];
    [
        "Offset of field: rdma_addr__bindgen_ty_3::ibaddr",
    ][::core::mem::offset_of!(rdma_addr__bindgen_ty_3, ibaddr) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of rdma_addr"][::core::mem::size_of::<rdma_addr>() - 296usize];
    ["Alignment of rdma_addr"][::core::mem::align_of::<rdma_addr>() - 8usize];
    [
        "Offset of field: rdma_addr::addr",
    ][::core::mem::offset_of!(rdma_addr, addr) - 256usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of rdma_route"][::core::mem::size_of::<rdma_route>() - 312usize];
    ["Alignment of rdma_route"][::core::mem::align_of::<rdma_route>() - 8usize];
    [
        "Offset of field: rdma_route::addr",
    ][::core::mem::offset_of!(rdma_route, addr) - 0usize];
    [
        "Offset of field: rdma_route::path_rec",
    ][::core::mem::offset_of!(rdma_route, path_rec) - 296usize];
    [
        "Offset of field: rdma_route::num_paths",
    ][::core::mem::offset_of!(rdma_route, num_paths) - 304usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of rdma_event_channel",
    ][::core::mem::size_of::<rdma_event_channel>() - 4usize];
    [
        "Alignment of rdma_event_channel",
    ][::core::mem::align_of::<rdma_event_channel>() - 4usize];
    [
        "Offset of field: rdma_event_channel::fd",
    ][::core::mem::offset_of!(rdma_event_channel, fd) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of rdma_cm_id"][::core::mem::size_of::<rdma_cm_id>() - 416usize];
    ["Alignment of rdma_cm_id"][::core::mem::align_of::<rdma_cm_id>() - 8usize];
    [
        "Offset of field: rdma_cm_id::verbs",
    ][::core::mem::offset_of!(rdma_cm_id, verbs) - 0usize];
    [
        "Offset of field: rdma_cm_id::channel",
    ][::core::mem::offset_of!(rdma_cm_id, channel) - 8usize];
    [
        "Offset of field: rdma_cm_id::context",
    ][::core::mem::offset_of!(rdma_cm_id, context) - 16usize];
    [
        "Offset of field: rdma_cm_id::qp",
    ][::core::mem::offset_of!(rdma_cm_id, qp) - 24usize];
    [
        "Offset of field: rdma_cm_id::route",
    ][::core::mem::offset_of!(rdma_cm_id, route) - 32usize];
    [
        "Offset of field: rdma_cm_id::ps",
    ][::core::mem::offset_of!(rdma_cm_id, ps) - 344usize];
    [
        "Offset of field: rdma_cm_id::port_num",
    ][::core::mem::offset_of!(rdma_cm_id, port_num) - 348usize];
    [
        "Offset of field: rdma_cm_id::event",
    ][::core::mem::offset_of!(rdma_cm_id, event) - 352usize];
    [
        "Offset of field: rdma_cm_id::send_cq_channel",
    ][::core::mem::offset_of!(rdma_cm_id, send_cq_channel) - 360usize];
    [
        "Offset of field: rdma_cm_id::send_cq",
    ][::core::mem::offset_of!(rdma_cm_id, send_cq) - 368usize];
    [
        "Offset of field: rdma_cm_id::recv_cq_channel",
    ][::core::mem::offset_of!(rdma_cm_id, recv_cq_channel) - 376usize];
    [
        "Offset of field: rdma_cm_id::recv_cq",
    ][::core::mem::offset_of!(rdma_cm_id, recv_cq) - 384usize];
    [
        "Offset of field: rdma_cm_id::srq",
    ][::core::mem::offset_of!(rdma_cm_id, srq) - 392usize];
    [
        "Offset of field: rdma_cm_id::pd",
    ][::core::mem::offset_of!(rdma_cm_id, pd) - 400usize];
    [
        "Offset of field: rdma_cm_id::qp_type",
    ][::core::mem::offset_of!(rdma_cm_id, qp_type) - 408usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of rdma_conn_param"][::core::mem::size_of::<rdma_conn_param>() - 24usize];
    [
        "Alignment of rdma_conn_param",
    ][::core::mem::align_of::<rdma_conn_param>() - 8usize];
    [
        "Offset of field: rdma_conn_param::private_data",
    ][::core::mem::offset_of!(rdma_conn_param, private_data) - 0usize];
    [
        "Offset of field: rdma_conn_param::private_data_len",
    ][::core::mem::offset_of!(rdma_conn_param, private_data_len) - 8usize];
    [
        "Offset of field: rdma_conn_param::responder_resources",
    ][::core::mem::offset_of!(rdma_conn_param, responder_resources) - 9usize];
    [
        "Offset of field: rdma_conn_param::initiator_depth",
    ][::core::mem::offset_of!(rdma_conn_param, initiator_depth) - 10usize];
    [
        "Offset of field: rdma_conn_param::flow_control",
    ][::core::mem::offset_of!(rdma_conn_param, flow_control) - 11usize];
    [
        "Offset of field: rdma_conn_param::retry_count",
    ][::core::mem::offset_of!(rdma_conn_param, retry_count) - 12usize];
    [
        "Offset of field: rdma_conn_param::rnr_retry_count",
    ][::core::mem::offset_of!(rdma_conn_param, rnr_retry_count) - 13usize];
    [
        "Offset of field: rdma_conn_param::srq",
    ][::core::mem::offset_of!(rdma_conn_param, srq) - 14usize];
    [
        "Offset of field: rdma_conn_param::qp_num",
    ][::core::mem::offset_of!(rdma_conn_param, qp_num) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of rdma_ud_param"][::core::mem::size_of::<rdma_ud_param>() - 56usize];
    ["Alignment of rdma_ud_param"][::core::mem::align_of::<rdma_ud_param>() - 8usize];
    [
        "Offset of field: rdma_ud_param::private_data",
    ][::core::mem::offset_of!(rdma_ud_param, private_data) - 0usize];
    [
        "Offset of field: rdma_ud_param::private_data_len",
    ][::core::mem::offset_of!(rdma_ud_param, private_data_len) - 8usize];
    [
        "Offset of field: rdma_ud_param::ah_attr",
    ][::core::mem::offset_of!(rdma_ud_param, ah_attr) - 16usize];
    [
        "Offset of field: rdma_ud_param::qp_num",
    ][::core::mem::offset_of!(rdma_ud_param, qp_num) - 48usize];
    [
        "Offset of field: rdma_ud_param::qkey",
    ][::core::mem::offset_of!(rdma_ud_param, qkey) - 52usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of rdma_cm_event__bindgen_ty_1",
    ][::core::mem::size_of::<rdma_cm_event__bindgen_ty_1>() - 56usize];
    [
        "Alignment of rdma_cm_event__bindgen_ty_1",
    ][::core::mem::align_of::<rdma_cm_event__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: rdma_cm_event__bindgen_ty_1::conn",
    ][::core::mem::offset_of!(rdma_cm_event__bindgen_ty_1, conn) - 0usize];
    [
        "Offset of field: rdma_cm_event__bindgen_ty_1::ud",
    ][::core::mem::offset_of!(rdma_cm_event__bindgen_ty_1, ud) - 0usize];
    [
        "Offset of field: rdma_cm_event__bindgen_ty_1::arg",
    ][::core::mem::offset_of!(rdma_cm_event__bindgen_ty_1, arg) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of rdma_cm_event"][::core::mem::size_of::<rdma_cm_event>() - 80usize];
    ["Alignment of rdma_cm_event"][::core::mem::align_of::<rdma_cm_event>() - 8usize];
    [
        "Offset of field: rdma_cm_event::id",
    ][::core::mem::offset_of!(rdma_cm_event, id) - 0usize];
    [
        "Offset of field: rdma_cm_event::listen_id",
    ][::core::mem::offset_of!(rdma_cm_event, listen_id) - 8usize];
    [
        "Offset of field: rdma_cm_event::event",
    ][::core::mem::offset_of!(rdma_cm_event, event) - 16usize];
    [
        "Offset of field: rdma_cm_event::status",
    ][::core::mem::offset_of!(rdma_cm_event, status) - 20usize];
    [
        "Offset of field: rdma_cm_event::param",
    ][::core::mem::offset_of!(rdma_cm_event, param) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of rdma_addrinfo"][::core::mem::size_of::<rdma_addrinfo>() - 96usize];
    ["Alignment of rdma_addrinfo"][::core::mem::align_of::<rdma_addrinfo>() - 8usize];
    [
        "Offset of field: rdma_addrinfo::ai_flags",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_flags) - 0usize];
    [
        "Offset of field: rdma_addrinfo::ai_family",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_family) - 4usize];
    [
        "Offset of field: rdma_addrinfo::ai_qp_type",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_qp_type) - 8usize];
    [
        "Offset of field: rdma_addrinfo::ai_port_space",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_port_space) - 12usize];
    [
        "Offset of field: rdma_addrinfo::ai_src_len",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_src_len) - 16usize];
    [
        "Offset of field: rdma_addrinfo::ai_dst_len",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_dst_len) - 20usize];
    [
        "Offset of field: rdma_addrinfo::ai_src_addr",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_src_addr) - 24usize];
    [
        "Offset of field: rdma_addrinfo::ai_dst_addr",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_dst_addr) - 32usize];
    [
        "Offset of field: rdma_addrinfo::ai_src_canonname",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_src_canonname) - 40usize];
    [
        "Offset of field: rdma_addrinfo::ai_dst_canonname",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_dst_canonname) - 48usize];
    [
        "Offset of field: rdma_addrinfo::ai_route_len",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_route_len) - 56usize];
    [
        "Offset of field: rdma_addrinfo::ai_route",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_route) - 64usize];
    [
        "Offset of field: rdma_addrinfo::ai_connect_len",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_connect_len) - 72usize];
    [
        "Offset of field: rdma_addrinfo::ai_connect",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_connect) - 80usize];
    [
        "Offset of field: rdma_addrinfo::ai_next",
    ][::core::mem::offset_of!(rdma_addrinfo, ai_next) - 88usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of rdma_cm_join_mc_attr_ex",
    ][::core::mem::size_of::<rdma_cm_join_mc_attr_ex>() - 16usize];
    [
        "Alignment of rdma_cm_join_mc_attr_ex",
    ][::core::mem::align_of::<rdma_cm_join_mc_attr_ex>() - 8usize];
    [
        "Offset of field: rdma_cm_join_mc_attr_ex::comp_mask",
    ][::core::mem::offset_of!(rdma_cm_join_mc_attr_ex, comp_mask) - 0usize];
    [
        "Offset of field: rdma_cm_join_mc_attr_ex::join_flags",
    ][::core::mem::offset_of!(rdma_cm_join_mc_attr_ex, join_flags) - 4usize];
    [
        "Offset of field: rdma_cm_join_mc_attr_ex::addr",
    ][::core::mem::offset_of!(rdma_cm_join_mc_attr_ex, addr) - 8usize];
};
