//! A prepared list borrows its queue, and the objects that its requests refer to.

use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::queue_pair::{BasicQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};

fn the_pair_is_gone(mut qp: BasicQueuePair) {
    let mut list = unsafe { qp.start_post_send().prepare().unwrap() };
    drop(qp);
    list.post().unwrap();
}

fn another_list(qp: &mut BasicQueuePair) {
    let mut list = unsafe { qp.start_post_send().prepare().unwrap() };
    qp.start_post_send().post().unwrap();
    list.post().unwrap();
}

fn the_address_is_gone(qp: &mut BasicQueuePair, ah: AddressHandle) {
    let mut guard = qp.start_post_send();
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_ud_address(&ah, 2, 3).setup_send();
    let mut list = unsafe { guard.prepare().unwrap() };
    drop(ah);
    list.post().unwrap();
}

fn preparing_is_unsafe(qp: &mut BasicQueuePair) {
    let _ = qp.start_post_send().prepare();
}

fn main() {}
