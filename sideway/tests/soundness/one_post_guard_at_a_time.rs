//! A queue can build only one list of work requests at a time.

use sideway::ibverbs::queue_pair::{BasicQueuePair, ExtendedQueuePair, GenericQueuePair, QueuePair};

fn basic(qp: &mut BasicQueuePair) {
    let one = qp.start_post_send();
    let two = qp.start_post_send();
    drop((one, two));
}

fn extended(qp: &mut ExtendedQueuePair) {
    let one = qp.start_post_send();
    let two = qp.start_post_send();
    drop((one, two));
}

fn generic(qp: &mut GenericQueuePair) {
    let one = qp.start_post_recv();
    let two = qp.start_post_recv();
    drop((one, two));
}

fn shared(qp: &GenericQueuePair) {
    let _ = qp.start_post_send();
}

fn main() {}
