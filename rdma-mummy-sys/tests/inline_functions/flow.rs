//! Flow steering and counters.

use core::ffi::c_int;

use rdma_mummy_sys::types::*;

use super::fake::*;
use super::word::*;

context_cases! {
    ibv_create_flow(qp: ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow = ibv_create_flow;
    ibv_destroy_flow(flow: ibv_flow) -> c_int = ibv_destroy_flow;
    ibv_create_flow_action_esp(context: ibv_context, esp: *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action
        = create_flow_action_esp;
    ibv_modify_flow_action_esp(action: ibv_flow_action, esp: *mut ibv_flow_action_esp_attr) -> c_int
        = modify_flow_action_esp;
    ibv_destroy_flow_action(action: ibv_flow_action) -> c_int = destroy_flow_action;
    ibv_create_counters(context: ibv_context, attr: *mut ibv_counters_init_attr) -> *mut ibv_counters
        = create_counters;
    ibv_destroy_counters(counters: ibv_counters) -> c_int = destroy_counters;
    ibv_attach_counters_point_flow(
        counters: ibv_counters,
        attr: *mut ibv_counter_attach_attr,
        flow: *mut ibv_flow,
    ) -> c_int = attach_counters_point_flow;
    ibv_read_counters(counters: ibv_counters, values: *mut u64, n: u32, flags: u32) -> c_int = read_counters;
}
