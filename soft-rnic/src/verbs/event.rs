//! Verbs of asynchronous events.

use std::ffi::c_int;

use rdma_mummy_sys::types::*;

use super::completion_queue::cq_of;
use super::context::context_of;
use super::{minus_one, queue_pair};
use crate::platform::errno;

pub(super) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: `ibv_get_async_event` requires an open context.
    let state = unsafe { context_of(context) };
    if let Err(error) = state.check_process() {
        return minus_one(error);
    }
    // A failed device has no events after the last one, which reported the failure.
    if state.has_failed() && state.events().is_empty() {
        return minus_one(libc::EIO);
    }
    match state.events().take() {
        Ok(taken) => {
            // SAFETY: `ibv_get_async_event` requires a valid result pointer.
            unsafe { event.write(taken) };
            0
        }
        Err(error) => minus_one(errno::of(&error)),
    }
}

pub(super) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    use ibv_event_type as E;
    // SAFETY: `ibv_ack_async_event` requires an event that the program got. So its type says which
    // union field is set, and the object lives until this call.
    unsafe {
        let ibv_async_event { element, event_type } = event.read();
        match event_type {
            E::IBV_EVENT_CQ_ERR => cq_of(element.cq).async_acks().acknowledge(1),
            E::IBV_EVENT_QP_FATAL
            | E::IBV_EVENT_QP_REQ_ERR
            | E::IBV_EVENT_QP_ACCESS_ERR
            | E::IBV_EVENT_COMM_EST
            | E::IBV_EVENT_SQ_DRAINED
            | E::IBV_EVENT_PATH_MIG
            | E::IBV_EVENT_PATH_MIG_ERR
            | E::IBV_EVENT_QP_LAST_WQE_REACHED => queue_pair::qp_acks(element.qp).acknowledge(1),
            E::IBV_EVENT_SRQ_ERR | E::IBV_EVENT_SRQ_LIMIT_REACHED => {
                queue_pair::srq_acks(element.srq).acknowledge(1);
            }
            _ => {}
        }
    }
}
