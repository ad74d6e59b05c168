//! The handle that ends a worker's poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[expect(unused_imports, reason = "the documentation names it")]
use super::Worker;
use crate::session::wake::WakeHandle;

/// Ends a worker's [`poll`](Worker::poll) from any thread, for example after a message was left for it
/// in a channel.
#[derive(Clone, Debug)]
pub struct WorkerWaker {
    pub(super) woken: Arc<AtomicBool>,
    pub(super) wake_handle: Arc<WakeHandle>,
}

impl WorkerWaker {
    /// Has the poll in progress, or the next one, return at once, if only without events. Several
    /// calls before it are one. Without a worker it does nothing.
    pub fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.wake_handle.notify();
        }
    }
}
