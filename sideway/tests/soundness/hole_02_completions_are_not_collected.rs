//! A completion is read from the queue's cursor: there is one at a time.

use sideway::ibverbs::completion::ExtendedCompletionQueue;

fn collect(cq: &mut ExtendedCompletionQueue) {
    let poller = cq.start_poll().unwrap();
    let all: Vec<_> = poller.collect();
    println!("{}", all.len());
}

fn main() {}
