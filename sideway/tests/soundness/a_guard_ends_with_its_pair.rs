//! A list cannot be built for a pair that was dropped, moved or split.

use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, SendQueue, WorkRequestFlags};

fn dropped(mut qp: GenericQueuePair) {
    let mut guard = qp.start_post_send();
    drop(qp);
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_send();
}

fn moved(mut qp: GenericQueuePair) -> GenericQueuePair {
    let guard = qp.start_post_send();
    let elsewhere = qp;
    guard.post().unwrap();
    elsewhere
}

fn taken_apart(mut qp: GenericQueuePair) {
    let halves = qp.into_split();
    qp.start_post_send().post().unwrap();
    drop(halves);
}

fn split_and_whole(qp: &mut GenericQueuePair) {
    let (send, _) = qp.split();
    qp.start_post_send().post().unwrap();
    send.start_post_send().post().unwrap();
}

fn main() {}
