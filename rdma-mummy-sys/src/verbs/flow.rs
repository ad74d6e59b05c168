//! Flow steering and the counters of flows.

use core::ffi::c_int;

use crate::types::*;

context_functions! {
    /// Steers the packets that `flow` describes to a queue pair.
    fn ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow
        = ibv_create_flow of qp.context;

    /// Ends the steering of packets: 0 or an error number.
    fn ibv_destroy_flow(flow_id: *mut ibv_flow) -> c_int = ibv_destroy_flow of flow_id.context;

    /// Creates an action that encrypts or decrypts the packets of a flow (ESP).
    fn ibv_create_flow_action_esp(
        ctx: *mut ibv_context,
        esp: *mut ibv_flow_action_esp_attr,
    ) -> *mut ibv_flow_action = create_flow_action_esp of ctx;

    /// Changes an encryption action: 0 or an error number.
    fn ibv_modify_flow_action_esp(action: *mut ibv_flow_action, esp: *mut ibv_flow_action_esp_attr) -> c_int
        = modify_flow_action_esp of action.context;

    /// Destroys an action: 0 or an error number.
    fn ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int = destroy_flow_action of action.context;

    /// Creates a set of counters for the packets of flows: null and `errno` if it fails.
    fn ibv_create_counters(
        context: *mut ibv_context,
        init_attr: *mut ibv_counters_init_attr,
    ) -> *mut ibv_counters = create_counters of context;

    /// Destroys a set of counters: 0 or an error number.
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int = destroy_counters of counters.context;

    /// Lets a counter of the set count the packets of a flow: 0 or an error number.
    fn ibv_attach_counters_point_flow(
        counters: *mut ibv_counters,
        attr: *mut ibv_counter_attach_attr,
        flow: *mut ibv_flow,
    ) -> c_int = attach_counters_point_flow of counters.context;

    /// Reads the counters of a set: 0 or an error number.
    fn ibv_read_counters(
        counters: *mut ibv_counters,
        counters_value: *mut u64,
        ncounters: u32,
        flags: u32,
    ) -> c_int = read_counters of counters.context;
}
