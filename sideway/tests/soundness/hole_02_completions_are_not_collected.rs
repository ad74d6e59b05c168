//! A completion is read at the queue's cursor, so only one exists at a time.

use sideway::ibverbs::completion::ExtendedCompletionQueue;

fn collect(cq: &mut ExtendedCompletionQueue) {
    let poller = cq.start_poll().unwrap();
    let all: Vec<_> = poller.collect();
    println!("{}", all.len());
}

fn main() {}
