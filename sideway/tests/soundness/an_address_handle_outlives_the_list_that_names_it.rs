//! A list cannot be posted after an address handle in it was dropped.

use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, SendQueue, WorkRequestFlags};

fn dropped(qp: &mut GenericQueuePair, ah: AddressHandle) {
    let mut guard = qp.start_post_send();
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_ud_address(&ah, 2, 3).setup_send();
    drop(ah);
    guard.post().unwrap();
}

fn dropped_through_a_reference(qp: &mut GenericQueuePair, ah: AddressHandle) {
    let mut guard = qp.start_post_send();
    {
        let inner = &mut guard;
        inner.construct_wr(1, WorkRequestFlags::Signaled).setup_ud_address(&ah, 2, 3).setup_send();
    }
    drop(ah);
    guard.post().unwrap();
}

fn dropped_whatever_the_flavour<S: SendQueue>(queue: &mut S, ah: AddressHandle) {
    let mut guard = queue.start_post_send();
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_ud_address(&ah, 2, 3).setup_send();
    drop(ah);
    guard.post().unwrap();
}

fn one_sided(qp: &mut GenericQueuePair, ah: &AddressHandle) {
    let mut guard = qp.start_post_send();
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_ud_address(ah, 2, 3).setup_read(4, 5);
    guard.post().unwrap();
}

fn main() {}
