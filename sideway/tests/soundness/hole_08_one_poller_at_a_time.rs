//! Libraries hold a lock while a poll is open, so a second poll would deadlock.

use sideway::ibverbs::completion::{BasicCompletionQueue, ExtendedCompletionQueue, GenericCompletionQueue};

fn extended(cq: &mut ExtendedCompletionQueue) {
    let one = cq.start_poll();
    let two = cq.start_poll();
    drop((one, two));
}

fn basic(cq: &mut BasicCompletionQueue) {
    let one = cq.start_poll();
    let two = cq.start_poll();
    drop((one, two));
}

fn generic(cq: &mut GenericCompletionQueue) {
    let one = cq.start_poll();
    let two = cq.start_poll();
    drop((one, two));
}

fn shared(cq: &ExtendedCompletionQueue) {
    let _ = cq.start_poll();
}

fn main() {}
