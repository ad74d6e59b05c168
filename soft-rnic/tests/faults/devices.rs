//! Fault rules for ports and devices.

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;
use soft_rnic::faults;

use crate::bench::*;

use ibv_wc_status as S;

/// Enough retries that no request fails while a port is down briefly.
const PATIENT: EndpointOptions =
    EndpointOptions { qp_type: ibv_qp_type::IBV_QPT_RC, device: 0, shared: false, timeout: 24, rnr_retry: 3 };

#[test]
fn a_port_goes_down_and_comes_up() {
    let _turn = turn();
    let (a, b) = pair();
    a.write(&b, 1, 8);
    assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
    rules("port_down nth=1");
    a.write(&b, 2, 8);
    assert_eq!(a.event(), ibv_event_type::IBV_EVENT_PORT_ERR);
    assert_eq!(b.event(), ibv_event_type::IBV_EVENT_PORT_ERR);
    assert_eq!(a.port().state, ibv_port_state::IBV_PORT_DOWN);
    assert_eq!(a.next(), (2, S::IBV_WC_RETRY_EXC_ERR));
    faults::port_up(0, 1).unwrap();
    assert_eq!(b.event(), ibv_event_type::IBV_EVENT_PORT_ACTIVE);
    assert_eq!(b.port().state, ibv_port_state::IBV_PORT_ACTIVE);
}

#[test]
fn a_port_that_is_down_for_a_moment_loses_nothing() {
    let _turn = turn();
    let (a, b) = pair_with(PATIENT);
    rules("port_down=20ms nth=1");
    a.write_bytes(b"all of it");
    a.write(&b, 1, 9);
    assert!(a.poll().unwrap().is_none());
    assert_eq!(a.event(), ibv_event_type::IBV_EVENT_PORT_ERR);
    assert_eq!(a.event(), ibv_event_type::IBV_EVENT_PORT_ACTIVE);
    assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
    assert_eq!(b.bytes(9), b"all of it");
}

#[test]
fn a_port_comes_up_where_there_is_no_queue_pair() {
    let _turn = turn();
    rules("port_down=20ms call=open_device first=1");
    let side = open(0).unwrap();
    assert_eq!(event_of(side), ibv_event_type::IBV_EVENT_PORT_ERR);
    assert_eq!(event_of(side), ibv_event_type::IBV_EVENT_PORT_ACTIVE);
    assert_eq!(fired(), [1]);
    // SAFETY: the context is open, and has no objects.
    assert_eq!(unsafe { (table().ibv_close_device)(side) }, 0);
}

#[test]
fn a_device_fails_as_it_is_opened() {
    let _turn = turn();
    rules("device_fatal call=open_device device=soft1");
    let (sound, failed) = (open(0).unwrap(), open(1).unwrap());
    assert_eq!(event_of(failed), ibv_event_type::IBV_EVENT_DEVICE_FATAL);
    // SAFETY: both contexts are open, and have no objects left.
    unsafe {
        assert!((table().ibv_alloc_pd)(failed).is_null() && errno() == libc::EIO);
        let pd = (table().ibv_alloc_pd)(sound);
        assert!(!pd.is_null());
        assert_eq!((table().ibv_dealloc_pd)(pd), 0);
        assert_eq!((table().ibv_close_device)(sound), 0);
        assert_eq!((table().ibv_close_device)(failed), 0);
    }
}

#[test]
fn nobody_reaches_a_port_that_is_down() {
    let _turn = turn();
    let options = EndpointOptions { device: 1, ..EndpointOptions::default() };
    let (a, b) = pair_with(options);
    a.write(&b, 1, 8);
    assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
    faults::port_down(1, 1).unwrap();
    assert_eq!(faults::port_down(1, 9).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    a.write(&b, 2, 8);
    assert_eq!(a.next(), (2, S::IBV_WC_RETRY_EXC_ERR));
    // Clearing the faults also ends a fault that no rule caused.
    faults::clear();
    assert_eq!(a.port().state, ibv_port_state::IBV_PORT_ACTIVE);
}

#[test]
fn every_call_of_a_device_that_failed_is_refused() {
    let _turn = turn();
    let ((mut a, mut b), (c, d)) =
        (pair_with(EndpointOptions { device: 1, ..EndpointOptions::default() }), pair());
    (a.lost, b.lost) = (true, true);
    rules(&format!("device_fatal qpn={} nth=2", a.qpn()));
    a.write(&b, 1, 8);
    assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
    a.write(&b, 2, 8);
    assert_eq!(a.event(), ibv_event_type::IBV_EVENT_DEVICE_FATAL);
    assert_eq!(b.event(), ibv_event_type::IBV_EVENT_DEVICE_FATAL);
    for side in [&a, &b] {
        assert_eq!(side.poll().unwrap_err(), libc::EIO);
        assert_eq!(side.post(&b, 3, ibv_wr_opcode::IBV_WR_SEND, 8), Err(libc::EIO));
        assert_eq!(side.receive(1), Err(libc::EIO));
        assert_eq!(side.modify(ibv_qp_attr::default(), ibv_qp_attr_mask::IBV_QP_STATE), libc::EIO);
        assert_eq!(side.destroy(), [libc::EIO; 4]);
        let lib = table();
        // SAFETY: the objects are live.
        unsafe {
            assert!((lib.ibv_alloc_pd)(side.context).is_null() && errno() == libc::EIO);
            let mut attr = ibv_device_attr::default();
            assert_eq!((lib.ibv_query_device)(side.context, &raw mut attr), libc::EIO);
            assert_eq!(verbs::ibv_req_notify_cq(side.cq, 0), libc::EIO);
            let mut event = ibv_async_event { element: Default::default(), event_type: ibv_event_type(0) };
            assert_eq!((lib.ibv_get_async_event)(side.context, &raw mut event), -1);
            assert_eq!(errno(), libc::EIO);
        }
    }
    assert_eq!(open(1).unwrap_err(), libc::EIO);
    // The other device still works.
    c.write(&d, 1, 8);
    assert_eq!(c.next(), (1, S::IBV_WC_SUCCESS));
    // Clearing replugs the device: old contexts stay failed, new ones work.
    faults::clear();
    assert_eq!(a.poll().unwrap_err(), libc::EIO);
    let (e, f) = pair_with(EndpointOptions { device: 1, ..EndpointOptions::default() });
    e.write(&f, 1, 8);
    assert_eq!(e.next(), (1, S::IBV_WC_SUCCESS));
}

/// This includes threads that wait on a channel without a queue, and calls made after the failure.
#[test]
fn whoever_waits_for_a_channel_hears_that_the_device_is_gone() {
    let _turn = turn();
    let context = open(1).unwrap();
    let lib = table();
    // SAFETY: the context is open.
    let channel = unsafe { (lib.ibv_create_comp_channel)(context) };
    let address = channel.expose_provenance();
    let ask = move || {
        let (mut cq, mut cookie) = (std::ptr::null_mut(), std::ptr::null_mut());
        let channel = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: the channel lives until the end of this test.
        let result = unsafe { (table().ibv_get_cq_event)(channel, &raw mut cq, &raw mut cookie) };
        (result, errno())
    };
    let waiter = std::thread::spawn(ask);
    faults::device_fatal(1).unwrap();
    assert_eq!(waiter.join().unwrap(), (-1, libc::EIO));
    assert_eq!(ask(), (-1, libc::EIO));
    faults::clear();
    // SAFETY: the context is open, and nobody uses it or its channel afterwards.
    assert_eq!(unsafe { (lib.ibv_close_device)(context) }, 0);
}

/// A device in a connection manager's list stays open while the list exists, even if another call
/// lists devices.
#[test]
fn a_device_that_was_listed_stays_open_when_it_is_gone() {
    let _turn = turn();
    let (lib, cm) = (table(), soft_rnic::rdmacm::table());
    // SAFETY: a list has the contexts of both devices, which stay open until it is freed.
    unsafe {
        let list = (cm.rdma_get_devices)(std::ptr::null_mut());
        let context = list.add(1).read();
        let descriptor = (*context).async_fd;
        faults::device_fatal(1).unwrap();
        let mut count = 0;
        let later = (cm.rdma_get_devices)(&raw mut count);
        assert_eq!((count, later.read()), (1, list.read()), "one device is left");
        assert_ne!(libc::fcntl(descriptor, libc::F_GETFD), -1, "the context was closed while a list held it");
        let mut attr = ibv_device_attr::default();
        assert_eq!((lib.ibv_query_device)(context, &raw mut attr), libc::EIO);
        (cm.rdma_free_devices)(list);
        (cm.rdma_free_devices)(later);
        assert_eq!(libc::fcntl(descriptor, libc::F_GETFD), -1, "the context is closed with its last list");
        faults::clear();
        let again = (cm.rdma_get_devices)(&raw mut count);
        assert_eq!(count, 2);
        (cm.rdma_free_devices)(again);
    }
}
