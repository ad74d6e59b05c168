//! A completion is gone once the cursor has moved on.

use sideway::ibverbs::completion::{BasicCompletionQueue, ExtendedCompletionQueue, GenericCompletionQueue};

fn extended(cq: &mut ExtendedCompletionQueue) {
    let mut poller = cq.start_poll().unwrap();
    let first = poller.next().unwrap();
    let second = poller.next().unwrap();
    println!("{} {}", first.wr_id(), second.wr_id());
}

fn basic(cq: &mut BasicCompletionQueue) {
    let mut poller = cq.start_poll().unwrap();
    let first = poller.next().unwrap();
    let second = poller.next().unwrap();
    println!("{} {}", first.wr_id(), second.wr_id());
}

fn generic(cq: &mut GenericCompletionQueue) {
    let mut poller = cq.start_poll().unwrap();
    let first = poller.next().unwrap();
    let second = poller.next().unwrap();
    println!("{} {}", first.wr_id(), second.wr_id());
}

fn main() {}
