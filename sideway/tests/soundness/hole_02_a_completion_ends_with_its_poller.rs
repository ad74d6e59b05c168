//! A completion is gone once the poll has ended.

use sideway::ibverbs::completion::ExtendedCompletionQueue;

fn outlive(cq: &mut ExtendedCompletionQueue) {
    let kept = {
        let mut poller = cq.start_poll().unwrap();
        poller.next().unwrap()
    };
    println!("{}", kept.wr_id());
}

fn finish(cq: &mut ExtendedCompletionQueue) {
    let mut poller = cq.start_poll().unwrap();
    let kept = poller.next().unwrap();
    poller.finish().unwrap();
    println!("{}", kept.wr_id());
}

fn main() {}
