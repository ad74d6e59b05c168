//! A work request is finished before the next one starts, and has one operation and one buffer.

use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};

fn two_requests(qp: &mut GenericQueuePair) {
    let mut guard = qp.start_post_send();
    let one = guard.construct_wr(1, WorkRequestFlags::Signaled);
    let two = guard.construct_wr(2, WorkRequestFlags::Signaled);
    one.setup_send();
    two.setup_send();
}

fn two_operations(qp: &mut GenericQueuePair) {
    let mut guard = qp.start_post_send();
    let request = guard.construct_wr(1, WorkRequestFlags::Signaled);
    request.setup_send();
    request.setup_read(1, 2);
}

fn two_buffers(qp: &mut GenericQueuePair) {
    let mut guard = qp.start_post_send();
    let buffer = guard.construct_wr(1, WorkRequestFlags::Signaled).setup_send();
    buffer.setup_inline_data(&[1]);
    buffer.setup_inline_data(&[2]);
}

fn posted_with_an_open_request(qp: &mut GenericQueuePair) {
    let mut guard = qp.start_post_send();
    let request = guard.construct_wr(1, WorkRequestFlags::Signaled);
    guard.post().unwrap();
    request.setup_send();
}

fn main() {}
