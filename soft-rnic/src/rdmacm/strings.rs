//! `rdma_event_str`.

use std::ffi::c_char;

use rdma_mummy_sys::types::rdma_cm_event_type;

pub(super) unsafe extern "C" fn event_str(event: rdma_cm_event_type) -> *const c_char {
    macro_rules! names {
        ($($name:ident)*) => {
            match event {
                $(rdma_cm_event_type::$name => {
                    const NAME: &str = concat!(stringify!($name), "\0");
                    NAME.as_ptr().cast()
                })*
                _ => c"UNKNOWN EVENT".as_ptr(),
            }
        };
    }
    names! {
        RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ADDR_ERROR RDMA_CM_EVENT_ROUTE_RESOLVED RDMA_CM_EVENT_ROUTE_ERROR
        RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_CONNECT_RESPONSE RDMA_CM_EVENT_CONNECT_ERROR
        RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED RDMA_CM_EVENT_ESTABLISHED RDMA_CM_EVENT_DISCONNECTED
        RDMA_CM_EVENT_DEVICE_REMOVAL RDMA_CM_EVENT_MULTICAST_JOIN RDMA_CM_EVENT_MULTICAST_ERROR
        RDMA_CM_EVENT_ADDR_CHANGE RDMA_CM_EVENT_TIMEWAIT_EXIT RDMA_CM_EVENT_ADDRINFO_RESOLVED
        RDMA_CM_EVENT_ADDRINFO_ERROR RDMA_CM_EVENT_USER RDMA_CM_EVENT_INTERNAL
    }
}
