//! Endpoints, and other synchronous ids.

use std::ffi::CString;

use super::*;
use crate::verbs::testing::SendPtr;

/// Address information for this port from `rdma_getaddrinfo`, to be freed by `rdma_freeaddrinfo`.
fn info(port: u16, is_passive: bool) -> *mut rdma_addrinfo {
    let hints = rdma_addrinfo {
        ai_flags: if is_passive { RAI_PASSIVE as c_int } else { 0 },
        ai_port_space: rdma_port_space::RDMA_PS_TCP.0 as c_int,
        ..rdma_addrinfo::default()
    };
    let service = CString::new(port.to_string()).unwrap();
    let mut found = ptr::null_mut();
    // SAFETY: the strings are NUL-terminated, and the pointers valid.
    good(unsafe {
        (cm().rdma_getaddrinfo)(c"127.0.0.1".as_ptr(), service.as_ptr(), &raw const hints, &raw mut found)
    });
    found
}

fn endpoint(port: u16, is_passive: bool) -> *mut rdma_cm_id {
    let (info, mut id) = (info(port, is_passive), ptr::null_mut());
    let mut attr = qp_attr(ibv_qp_type::IBV_QPT_RC);
    // SAFETY: `rdma_getaddrinfo` returned a valid list, which is freed once.
    unsafe {
        good((cm().rdma_create_ep)(&raw mut id, info, ptr::null_mut(), &raw mut attr));
        (cm().rdma_freeaddrinfo)(info);
    }
    id
}

/// As the programs `rdma_client` and `rdma_server` do.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn two_endpoints_meet() {
    let listener = endpoint(0, true);
    // SAFETY: the ids are live, and each is used by one thread at a time.
    unsafe {
        good((cm().rdma_listen)(listener, 0));
        let port = u16::from_be((cm().rdma_get_src_port)(listener));
        let listener = SendPtr::new(listener);
        std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                let mut id = ptr::null_mut();
                good((cm().rdma_get_request)(listener.get(), &raw mut id));
                assert!(!(*id).qp.is_null(), "made with the listener's attributes");
                assert_ne!((*id).channel, (*listener.get()).channel);
                good((cm().rdma_accept)(id, ptr::null_mut()));
                SendPtr::new(id)
            });
            let active = endpoint(port, false);
            good((cm().rdma_connect)(active, ptr::null_mut()));
            assert_eq!((*(*active).event).event, rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED);
            let passive = serving.join().unwrap().get();
            message(active, passive);
            message(passive, active);
            let leaving = SendPtr::new(passive);
            let other = scope.spawn(move || good((cm().rdma_disconnect)(leaving.get())));
            good((cm().rdma_disconnect)(active));
            other.join().unwrap();
            (cm().rdma_destroy_ep)(active);
            (cm().rdma_destroy_ep)(passive);
        });
        (cm().rdma_destroy_ep)(listener.get());
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_synchronous_call_says_what_its_event_says() {
    let active = endpoint(1, false);
    // SAFETY: the id is live.
    unsafe {
        bad((cm().rdma_connect)(active, ptr::null_mut()), libc::ECONNREFUSED);
        assert_eq!((*(*active).event).status, 8);
        (cm().rdma_destroy_ep)(active);
        let info = info(1, true);
        let mut nowhere = c_address((Ipv4Addr::new(192, 0, 2, 1), 0).into());
        let source = (*info).ai_src_addr;
        (*info).ai_src_addr = (&raw mut nowhere).cast();
        let mut id = ptr::null_mut();
        let result = (cm().rdma_create_ep)(&raw mut id, info, ptr::null_mut(), ptr::null_mut());
        bad(result, libc::EADDRNOTAVAIL);
        (*info).ai_src_addr = source;
        (cm().rdma_freeaddrinfo)(info);
    }
}
