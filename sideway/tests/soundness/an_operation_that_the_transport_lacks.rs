//! Queue pairs of one transport have its operations alone.

use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::queue_pair::transport::{Rc, TypedQueuePair, Uc, Ud};
use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, WorkRequestFlags};

fn unreliable(qp: &mut TypedQueuePair<Uc>) {
    let mut guard = qp.start_post_send();
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_read(1, 2);
    guard.construct_wr(2, WorkRequestFlags::Signaled).setup_atomic_fetch_add(1, 2, 3);
    let _ = guard.post();
}

fn datagrams(qp: &mut TypedQueuePair<Ud>) {
    let mut guard = qp.start_post_send();
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_write(1, 2);
    guard.construct_wr(2, WorkRequestFlags::Signaled).setup_send();
    let _ = guard.post();
}

fn reliable(qp: &mut TypedQueuePair<Rc>, ah: &AddressHandle) {
    let mut guard = qp.start_post_send();
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_ud_address(ah, 1, 2);
    let _ = guard.post();
}

fn main() {}
