//! Checks that every inline function of the C headers exists in Rust.
//!
//! `src/bindings/inlines.txt` is generated from the headers, so that an inline function of a new
//! release fails this test until it is written.

/// The generated list: a header and a name in each line.
const LISTED: &str = include_str!("../src/bindings/inlines.txt");

/// C names that the header hides behind a macro, or that begin with an underscore, with their names
/// here.
const RENAMED: [(&str, &str); 9] = [
    ("__ibv_get_device_list", "ibv_get_device_list"),
    ("___ibv_query_port", "ibv_query_port"),
    ("__ibv_reg_mr", "ibv_reg_mr"),
    ("__ibv_reg_mr_iova", "ibv_reg_mr_iova"),
    ("_mlx5dv_create_flow", "mlx5dv_create_flow"),
    ("_devx_set", "devx_set"),
    ("_devx_get", "devx_get"),
    ("_devx_set64", "devx_set64"),
    ("_devx_get64", "devx_get64"),
];

/// The path of a function: only functions are callable and have size zero.
fn path_of<F: Copy>(_: F) -> &'static str {
    assert_eq!(size_of::<F>(), 0, "{} is not a function", std::any::type_name::<F>());
    std::any::type_name::<F>()
}

/// Names each function twice: as a path for the compiler, and as text.
macro_rules! functions {
    ($($header:literal in $module:ident { $($name:ident)* })*) => {
        vec![$($(($header, stringify!($name), path_of(rdma_mummy_sys::$module::$name)),)*)*]
    };
}

fn written() -> Vec<(&'static str, &'static str, &'static str)> {
    functions! {
        "infiniband/verbs.h" in verbs {
            ibv_wr_atomic_cmp_swp ibv_wr_atomic_fetch_add ibv_wr_bind_mw ibv_wr_local_inv ibv_wr_rdma_read
            ibv_wr_rdma_write ibv_wr_flush ibv_wr_rdma_write_imm ibv_wr_send ibv_wr_send_imm ibv_wr_send_inv
            ibv_wr_send_tso ibv_wr_set_ud_addr ibv_wr_set_xrc_srqn ibv_wr_set_inline_data
            ibv_wr_set_inline_data_list ibv_wr_set_sge ibv_wr_set_sge_list ibv_wr_start ibv_wr_complete
            ibv_wr_abort ibv_wr_atomic_write ibv_cq_ex_to_cq ibv_start_poll ibv_next_poll ibv_end_poll
            ibv_wc_read_opcode ibv_wc_read_vendor_err ibv_wc_read_byte_len ibv_wc_read_imm_data
            ibv_wc_read_invalidated_rkey ibv_wc_read_qp_num ibv_wc_read_src_qp ibv_wc_read_wc_flags
            ibv_wc_read_slid ibv_wc_read_sl ibv_wc_read_dlid_path_bits ibv_wc_read_completion_ts
            ibv_wc_read_completion_wallclock_ns ibv_wc_read_cvlan ibv_wc_read_flow_tag ibv_wc_read_tm_info
            ibv_post_wq_recv verbs_get_ctx ibv_get_device_list ibv_query_port ibv_query_gid_ex
            ibv_query_gid_table ibv_create_flow ibv_destroy_flow ibv_create_flow_action_esp
            ibv_modify_flow_action_esp ibv_destroy_flow_action ibv_open_xrcd ibv_close_xrcd ibv_reg_mr
            ibv_reg_mr_iova ibv_alloc_mw ibv_dealloc_mw ibv_inc_rkey ibv_bind_mw ibv_advise_mr ibv_alloc_dm
            ibv_free_dm ibv_memcpy_to_dm ibv_memcpy_from_dm ibv_alloc_null_mr ibv_reg_dm_mr ibv_create_cq_ex
            ibv_poll_cq ibv_req_notify_cq ibv_modify_cq ibv_query_comp_cntr_caps ibv_create_srq_ex
            ibv_get_srq_num ibv_post_srq_recv ibv_post_srq_ops ibv_create_qp_ex ibv_alloc_td ibv_dealloc_td
            ibv_alloc_parent_domain ibv_query_rt_values_ex ibv_query_device_ex ibv_open_qp
            ibv_modify_qp_rate_limit ibv_create_wq ibv_modify_wq ibv_destroy_wq ibv_create_rwq_ind_table
            ibv_destroy_rwq_ind_table ibv_post_send ibv_post_recv ibv_is_qpt_supported ibv_create_counters
            ibv_destroy_counters ibv_attach_counters_point_flow ibv_read_counters
            ibv_flow_label_to_udp_sport
        }
        "infiniband/mlx5dv.h" in mlx5dv {
            mlx5dv_wr_set_dc_addr mlx5dv_wr_set_dc_addr_stream mlx5dv_wr_mr_interleaved mlx5dv_wr_mr_list
            mlx5dv_wr_mkey_configure mlx5dv_wr_set_mkey_access_flags mlx5dv_wr_set_mkey_layout_list
            mlx5dv_wr_set_mkey_layout_interleaved mlx5dv_wr_set_mkey_sig_block mlx5dv_wr_set_mkey_crypto
            mlx5dv_wr_memcpy mlx5dv_mkey_check mlx5dv_wr_raw_wqe mlx5dv_create_flow mlx5dv_ts_to_ns
            mlx5dv_query_port mlx5dv_get_export_sizes devx_set devx_get devx_set64 devx_get64
        }
        "infiniband/efadv.h" in efadv {
            efadv_wr_set_processing_hints efadv_wc_read_sgid efadv_wc_is_unsolicited
        }
        "rdma/rdma_cma.h" in rdmacm {
            rdma_get_local_addr rdma_get_peer_addr
        }
        "rdma/rdma_verbs.h" in rdmacm {
            rdma_seterrno rdma_reg_msgs rdma_reg_read rdma_reg_write rdma_dereg_mr rdma_post_recvv
            rdma_post_sendv rdma_post_readv rdma_post_writev rdma_post_recv rdma_post_send rdma_post_read
            rdma_post_write rdma_post_ud_send rdma_get_send_comp rdma_get_recv_comp
        }
    }
}

/// Header and Rust name of every line of the list.
fn listed() -> Vec<(&'static str, &'static str)> {
    let rename = |name| RENAMED.iter().find(|(c, _)| *c == name).map_or(name, |(_, rust)| *rust);
    let lines = LISTED.lines().map(|line| line.split_once(' ').expect("header and name"));
    lines.map(|(header, name)| (header, rename(name))).collect()
}

#[test]
fn every_inline_function_is_written() {
    let written: Vec<_> = written().iter().map(|(header, name, _)| (*header, *name)).collect();
    let missing: Vec<_> = listed().into_iter().filter(|line| !written.contains(line)).collect();
    assert!(missing.is_empty(), "not written in Rust: {missing:?}");
    assert!(written.len() >= 130, "the list is no longer read: {} lines", written.len());
}

#[test]
fn nothing_else_is_claimed() {
    let listed = listed();
    for (header, name, path) in written() {
        assert!(listed.contains(&(header, name)), "{header} has no inline function {name}");
        assert!(path.ends_with(&format!("::{name}")), "{name} is {path}");
    }
}
