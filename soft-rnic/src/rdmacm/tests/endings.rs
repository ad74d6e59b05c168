//! Destroying ids that still have events, and migrating ids.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdma_cm_event_type as CmEventKind;

use super::*;
use crate::verbs::testing::SendPtr;

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn an_id_waits_for_its_events() {
    let channel = TestChannel::new();
    let id = channel.id(rdma_port_space::RDMA_PS_TCP);
    let mut to = c_address(loopback(1));
    // SAFETY: the id is live, the address valid.
    unsafe { good((cm().rdma_resolve_addr)(id, ptr::null_mut(), (&raw mut to).cast(), 2000)) };
    let event = channel.expect(CmEventKind::RDMA_CM_EVENT_ADDR_RESOLVED);
    let (id, acknowledged) = (SendPtr::new(id), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let acknowledged = &acknowledged;
        let ending = scope.spawn(move || {
            // SAFETY: nobody else uses the id.
            good(unsafe { (cm().rdma_destroy_id)(id.get()) });
            assert!(acknowledged.load(Ordering::SeqCst));
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!ending.is_finished());
        acknowledged.store(true, Ordering::SeqCst);
        drop(event);
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn events_that_nobody_took_go_with_the_id() {
    let channel = TestChannel::new();
    let (listener, port) = listener(&channel, rdma_port_space::RDMA_PS_TCP, loopback(0));
    let other = TestChannel::new();
    let ids = [(); 3].map(|()| routed(&other, rdma_port_space::RDMA_PS_TCP, port));
    for id in ids {
        // SAFETY: the id is live.
        good(unsafe { (cm().rdma_connect)(id, &mut rdma_conn_param { qp_num: 1, ..param(b"") }) });
    }
    assert!(channel.is_readable(PATIENCE_MS));
    destroy(listener);
    assert!(!channel.is_readable(0), "the requests end with their listener");
    for _ in ids {
        other.expect(CmEventKind::RDMA_CM_EVENT_REJECTED);
    }
    destroy_all(&ids);
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn an_id_moves_with_its_events() {
    let (from, to) = (TestChannel::new(), TestChannel::new());
    let id = from.id(rdma_port_space::RDMA_PS_TCP);
    let mut address = c_address(loopback(1));
    // SAFETY: the id is live, the address valid.
    unsafe {
        good((cm().rdma_resolve_addr)(id, ptr::null_mut(), (&raw mut address).cast(), 2000));
        assert!(from.is_readable(PATIENCE_MS));
        good((cm().rdma_migrate_id)(id, to.0));
        assert_eq!((*id).channel, to.0);
        assert!(!from.is_readable(0));
        to.done(CmEventKind::RDMA_CM_EVENT_ADDR_RESOLVED);
        // A migration to a null channel makes the id synchronous.
        good((cm().rdma_migrate_id)(id, ptr::null_mut()));
        assert_ne!((*id).channel, to.0);
        bad((cm().rdma_migrate_id)(id, ptr::null_mut()), libc::EINVAL);
        good((cm().rdma_resolve_route)(id, 2000));
        assert_eq!((*(*id).event).event, CmEventKind::RDMA_CM_EVENT_ROUTE_RESOLVED);
        assert_eq!((*id).route.num_paths, 1);
        good((cm().rdma_migrate_id)(id, to.0));
        assert!((*id).event.is_null());
        good((cm().rdma_destroy_id)(id));
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_channel_that_is_not_blocking_says_that_there_is_nothing() {
    let channel = TestChannel::new();
    // SAFETY: the channel is live.
    unsafe {
        let flags = libc::fcntl((*channel.0).fd, libc::F_GETFL);
        assert_eq!(libc::fcntl((*channel.0).fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        let mut event = ptr::null_mut();
        bad((cm().rdma_get_cm_event)(channel.0, &raw mut event), libc::EAGAIN);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn the_other_side_learns_that_an_id_has_gone() {
    let channel = TestChannel::new();
    let [active, passive] = connected(&channel);
    destroy(passive);
    assert_eq!(channel.expect(CmEventKind::RDMA_CM_EVENT_DISCONNECTED).id(), active);
    destroy(active);
}

/// The default protection domain lives while an id uses it.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn ids_of_a_device_share_a_protection_domain() {
    let channel = TestChannel::new();
    let [active, passive] = connected(&channel);
    // SAFETY: the ids are live.
    unsafe { assert_eq!((*active).pd, (*passive).pd) };
    destroy_all(&[active, passive]);
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_forked_child_has_no_part_in_its_parents_ids() {
    let channel = TestChannel::new();
    let [active, passive] = connected(&channel);
    let (cm, mut address) = (cm(), c_address(loopback(0)));
    // SAFETY: all objects are live until the parent destroys them.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            // No panics here, because the forked child has no test harness to unwind into.
            let fails = |result: c_int| result == -1 && errno() == libc::EIO;
            let (mut event, mut id) = (ptr::null_mut(), ptr::null_mut());
            let tcp = rdma_port_space::RDMA_PS_TCP;
            let results = [
                fails((cm.rdma_get_cm_event)(channel.0, &raw mut event)),
                fails((cm.rdma_create_id)(channel.0, &raw mut id, ptr::null_mut(), tcp)),
                fails((cm.rdma_bind_addr)(active, (&raw mut address).cast())),
                fails((cm.rdma_disconnect)(active)),
                fails((cm.rdma_destroy_id)(active)),
            ];
            let wrong = results.iter().position(|is_right| !is_right);
            libc::_exit(wrong.map_or(0, |at| at as c_int + 1));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(
            (libc::WIFEXITED(status), libc::WEXITSTATUS(status)),
            (true, 0),
            "the number of the call that succeeded"
        );
    }
    message(active, passive);
    destroy_all(&[active, passive]);
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_program_writes_events_of_its_own() {
    const ARGUMENT: u64 = 0x5566_7788_aabb_ccdd;
    let channel = TestChannel::new();
    let [active, passive] = connected(&channel);
    let write = cm().rdma_write_cm_event.unwrap();
    let fresh = channel.id(rdma_port_space::RDMA_PS_UDP);
    for (number, id) in [fresh, active, passive].into_iter().enumerate() {
        let status = -(number as c_int) - 7;
        // SAFETY: the ids are live.
        unsafe {
            good(write(id, CmEventKind::RDMA_CM_EVENT_USER, status, ARGUMENT + number as u64));
            let event = channel.expect(CmEventKind::RDMA_CM_EVENT_USER);
            assert_eq!((event.id(), event.status()), (id, status));
            assert_eq!((*event.0).param.arg, ARGUMENT + number as u64);
            for other in [CmEventKind::RDMA_CM_EVENT_INTERNAL, CmEventKind::RDMA_CM_EVENT_ESTABLISHED] {
                bad(write(id, other, 0, 0), libc::EINVAL);
            }
        }
    }
    // An event that was not taken goes with its id.
    // SAFETY: the ids are live.
    good(unsafe { write(fresh, CmEventKind::RDMA_CM_EVENT_USER, 0, 0) });
    destroy(fresh);
    assert!(!channel.is_readable(0));
    destroy_all(&[active, passive]);
}
