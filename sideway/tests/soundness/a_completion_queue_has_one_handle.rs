//! A second handle of a completion queue would be a second poller. Builders borrow the queue, and
//! the compiler says so.

use std::sync::Arc;

use sideway::ibverbs::completion::{CompletionQueue, ExtendedCompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::queue_pair::QueuePairBuilder;

/// As the builders' methods: the message names this function, whatever features are on.
fn setup_send_cq(_: &impl CompletionQueue) {}

fn cloned(builder: &mut QueuePairBuilder, cq: GenericCompletionQueue) {
    builder.setup_send_cq(cq.clone());
}

fn counted(cq: Arc<ExtendedCompletionQueue>) {
    setup_send_cq(&cq);
}

fn main() {}
