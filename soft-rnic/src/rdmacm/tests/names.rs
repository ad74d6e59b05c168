//! Name resolution, event names and device lists.

use std::ffi::{CStr, CString};
use std::net::Ipv6Addr;

use super::*;
use crate::verbs::testing::OpenedDevice;

fn info(
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<rdma_addrinfo>,
) -> Result<*mut rdma_addrinfo, c_int> {
    let text = |text: Option<&str>| text.map(|text| CString::new(text).unwrap());
    let (node, service) = (text(node), text(service));
    let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    let mut found = ptr::null_mut();
    // SAFETY: the strings are NUL-terminated, and the hints valid.
    let result = unsafe {
        let hints = hints.as_ref().map_or(ptr::null(), ptr::from_ref);
        (cm().rdma_getaddrinfo)(pointer(&node), pointer(&service), hints, &raw mut found)
    };
    if result == 0 { Ok(found) } else { Err(result) }
}

/// Address information, freed on drop.
struct FreedAddrinfo(*mut rdma_addrinfo);

impl FreedAddrinfo {
    fn get(&self) -> rdma_addrinfo {
        // SAFETY: the entry is valid until the drop.
        unsafe { self.0.read() }
    }
}

impl Drop for FreedAddrinfo {
    fn drop(&mut self) {
        // SAFETY: only the drop frees the list.
        unsafe { (cm().rdma_freeaddrinfo)(self.0) };
    }
}

/// # Panics
///
/// If `at` is null.
fn address(at: *mut sockaddr) -> SocketAddr {
    // SAFETY: the pointer is null, or an address that the library made.
    unsafe { socket_address::read(at) }.expect("an address")
}

#[test]
#[cfg_attr(miri, ignore = "calls the C library")]
fn a_name_becomes_where_to_go() {
    let found = FreedAddrinfo(info(Some("127.0.0.1"), Some("7174"), None).unwrap());
    let info = found.get();
    assert_eq!(address(info.ai_dst_addr), loopback(7174));
    assert_eq!((info.ai_family, info.ai_src_len), (libc::AF_INET, 0));
    assert_eq!(info.ai_port_space as u32, rdma_port_space::RDMA_PS_TCP.0);
    assert_eq!(info.ai_qp_type as u32, ibv_qp_type::IBV_QPT_RC.0);
}

#[test]
#[cfg_attr(miri, ignore = "calls the C library")]
fn hints_say_for_whom_and_from_where() {
    let mut source = c_address(loopback(5));
    let hints = rdma_addrinfo {
        ai_flags: RAI_NUMERICHOST as c_int,
        ai_port_space: rdma_port_space::RDMA_PS_UDP.0 as c_int,
        ai_src_len: size_of::<libc::sockaddr_in>() as u32,
        ai_src_addr: (&raw mut source).cast(),
        ..rdma_addrinfo::default()
    };
    let found = FreedAddrinfo(info(Some("::1"), Some("80"), Some(hints)).unwrap());
    let there = found.get();
    assert_eq!(address(there.ai_dst_addr), (Ipv6Addr::LOCALHOST, 80).into());
    assert_eq!(address(there.ai_src_addr), loopback(5));
    assert_eq!(there.ai_port_space as u32, rdma_port_space::RDMA_PS_UDP.0);
    assert_eq!(there.ai_qp_type as u32, ibv_qp_type::IBV_QPT_UD.0);
}

#[test]
#[cfg_attr(miri, ignore = "calls the C library")]
fn a_passive_side_has_a_source() {
    let hints = rdma_addrinfo {
        ai_flags: RAI_PASSIVE as c_int,
        ai_port_space: rdma_port_space::RDMA_PS_TCP.0 as c_int,
        ..rdma_addrinfo::default()
    };
    let found = FreedAddrinfo(info(None, Some("7471"), Some(hints)).unwrap());
    let there = found.get();
    assert_eq!(address(there.ai_src_addr).port(), 7471);
    assert!(address(there.ai_src_addr).ip().is_unspecified());
    assert_eq!((there.ai_dst_len, there.ai_flags), (0, RAI_PASSIVE as c_int));
}

#[test]
#[cfg_attr(miri, ignore = "calls the C library")]
fn failed_name_lookup_is_reported() {
    assert_eq!(info(None, None, None), Err(-1));
    assert_eq!(errno(), libc::EINVAL);
    let numeric = rdma_addrinfo { ai_flags: RAI_NUMERICHOST as c_int, ..rdma_addrinfo::default() };
    assert_eq!(info(Some("no.number"), None, Some(numeric)), Err(libc::EAI_NONAME));
    // SAFETY: the argument is null, for which `rdma_freeaddrinfo` does nothing.
    unsafe { (cm().rdma_freeaddrinfo)(ptr::null_mut()) };
}

#[test]
#[cfg_attr(miri, ignore = "calls the C library")]
fn hints_alone_are_taken_over() {
    let mut to = c_address(loopback(9));
    let hints = rdma_addrinfo {
        ai_family: libc::AF_INET,
        ai_dst_len: size_of::<libc::sockaddr_in>() as u32,
        ai_dst_addr: (&raw mut to).cast(),
        ..rdma_addrinfo::default()
    };
    let found = FreedAddrinfo(info(None, None, Some(hints)).unwrap());
    assert_eq!(address(found.get().ai_dst_addr), loopback(9));
    assert_eq!(found.get().ai_family, libc::AF_INET);
}

#[test]
fn events_have_names() {
    // SAFETY: the function takes any value.
    let name = |kind| unsafe { CStr::from_ptr((cm().rdma_event_str)(rdma_cm_event_type(kind))) };
    assert_eq!(name(0), c"RDMA_CM_EVENT_ADDR_RESOLVED");
    assert_eq!(name(15), c"RDMA_CM_EVENT_TIMEWAIT_EXIT");
    assert_eq!(name(19), c"RDMA_CM_EVENT_INTERNAL");
    assert_eq!(name(20), c"UNKNOWN EVENT");
}

#[test]
#[cfg_attr(miri, ignore = "the process keeps a device open")]
fn devices_are_open_and_stay_so() {
    let mut count = 0;
    // SAFETY: the list has `count` contexts, and a null pointer at the end.
    unsafe {
        let list = (cm().rdma_get_devices)(&raw mut count);
        assert_ne!(list, ptr::null_mut());
        assert_eq!(count, 2);
        assert!(list.add(2).read().is_null());
        let other = OpenedDevice::new(0);
        assert_eq!((*list.read()).device, (*other.0).device, "libibverbs' own device");
        let first = list.read();
        (cm().rdma_free_devices)(list);
        let mut attr = ibv_device_attr::default();
        assert_eq!((verbs_table().ibv_query_device)(first, &raw mut attr), 0, "still open");
        let again = (cm().rdma_get_devices)(ptr::null_mut());
        assert_eq!(again.read(), first);
        (cm().rdma_free_devices)(again);
    }
}

#[test]
fn unknown_values_have_a_name() {
    // SAFETY: the functions read no memory through their arguments.
    unsafe {
        bad((cm().rsocket)(libc::AF_INET, libc::SOCK_DGRAM, 0), libc::EOPNOTSUPP);
    }
}

/// Starts a lookup in the background.
fn resolve(
    id: *mut rdma_cm_id,
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<rdma_addrinfo>,
) -> c_int {
    let text = |text: Option<&str>| text.map(|text| CString::new(text).unwrap());
    let (node, service) = (text(node), text(service));
    let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    let hints = hints.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the id is live, and the other arguments outlive the call.
    unsafe { cm().rdma_resolve_addrinfo.unwrap()(id, pointer(&node), pointer(&service), hints) }
}

fn query(id: *mut rdma_cm_id) -> Result<FreedAddrinfo, c_int> {
    let mut info = ptr::null_mut();
    // SAFETY: the id is live.
    match unsafe { cm().rdma_query_addrinfo.unwrap()(id, &raw mut info) } {
        0 => Ok(FreedAddrinfo(info)),
        _ => Err(errno()),
    }
}

#[test]
#[cfg_attr(miri, ignore = "calls the C library")]
fn names_are_found_in_the_background() {
    let channel = TestChannel::new();
    let id = channel.id(rdma_port_space::RDMA_PS_TCP);
    assert_eq!(query(id).err(), Some(libc::ENODATA));
    let mut source = c_address(loopback(5));
    let hints = rdma_addrinfo {
        ai_flags: (RAI_NUMERICHOST | RAI_DNS) as c_int,
        ai_src_len: size_of::<libc::sockaddr_in>() as u32,
        ai_src_addr: (&raw mut source).cast(),
        ..rdma_addrinfo::default()
    };
    good(resolve(id, Some("127.0.0.1"), Some("7174"), Some(hints)));
    channel.done(rdma_cm_event_type::RDMA_CM_EVENT_ADDRINFO_RESOLVED);
    // Each query returns a new list.
    for found in [query(id).unwrap(), query(id).unwrap()] {
        assert_eq!(address(found.get().ai_dst_addr), loopback(7174));
        assert_eq!(address(found.get().ai_src_addr), loopback(5));
        assert_eq!(found.get().ai_port_space as u32, rdma_port_space::RDMA_PS_TCP.0);
    }
    let numeric = rdma_addrinfo { ai_flags: RAI_NUMERICHOST as c_int, ..rdma_addrinfo::default() };
    good(resolve(id, Some("no.number"), None, Some(numeric)));
    let failure = channel.expect(rdma_cm_event_type::RDMA_CM_EVENT_ADDRINFO_ERROR);
    assert_eq!(failure.status(), -libc::ENOENT);
    drop(failure);
    assert_eq!(query(id).err(), Some(libc::ENODATA), "the result of an earlier lookup was returned");
    destroy(id);
}

#[test]
#[cfg_attr(miri, ignore = "calls the C library")]
fn a_synchronous_id_waits_for_names() {
    let mut id = ptr::null_mut();
    let tcp = rdma_port_space::RDMA_PS_TCP;
    // SAFETY: a null channel makes a synchronous id.
    good(unsafe { (cm().rdma_create_id)(ptr::null_mut(), &raw mut id, ptr::null_mut(), tcp) });
    good(resolve(id, Some("127.0.0.1"), Some("9"), None));
    assert_eq!(address(query(id).unwrap().get().ai_dst_addr), loopback(9));
    let numeric = rdma_addrinfo { ai_flags: RAI_NUMERICHOST as c_int, ..rdma_addrinfo::default() };
    bad(resolve(id, Some("no.number"), None, Some(numeric)), libc::ENOENT);
    destroy(id);
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn unreachable_name_service_is_not_asked() {
    let channel = TestChannel::new();
    let id = channel.id(rdma_port_space::RDMA_PS_TCP);
    let flags = |flags: u32| rdma_addrinfo { ai_flags: flags as c_int, ..rdma_addrinfo::default() };
    bad(resolve(id, None, None, None), libc::EINVAL);
    bad(resolve(id, None, Some("7"), Some(flags(RAI_SA))), libc::EOPNOTSUPP);
    bad(resolve(id, None, Some("7"), Some(flags(RAI_SA | RAI_DNS))), libc::EINVAL);
    assert!(!channel.is_readable(0));
    destroy(id);
}

/// An id may be destroyed before its lookup finishes.
#[test]
#[cfg_attr(miri, ignore = "calls the C library")]
fn an_id_goes_while_names_are_looked_for() {
    let channel = TestChannel::new();
    for _ in 0..50 {
        let id = channel.id(rdma_port_space::RDMA_PS_TCP);
        good(resolve(id, Some("127.0.0.1"), Some("7"), None));
        destroy(id);
    }
    assert!(!channel.is_readable(50), "a destroyed id got an event");
}
