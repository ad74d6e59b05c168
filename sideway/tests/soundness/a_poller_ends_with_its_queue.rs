//! A queue cannot be polled after it was dropped or moved.

use sideway::ibverbs::completion::ExtendedCompletionQueue;

fn dropped(mut cq: ExtendedCompletionQueue) {
    let mut poller = cq.start_poll().unwrap();
    drop(cq);
    poller.next();
}

fn moved(mut cq: ExtendedCompletionQueue) -> ExtendedCompletionQueue {
    let mut poller = cq.start_poll().unwrap();
    let elsewhere = cq;
    poller.next();
    elsewhere
}

fn main() {}
