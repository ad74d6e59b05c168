//! Queue pairs that drain in the service thread, because no thread of the program waits for them.

use std::time::{Duration, Instant};

use mio::event::Event;

use crate::session::service::{NextTurn, Place, ServiceTask, Task};
use crate::transport::rc::{Drainer, Draining};

/// The pause between two polls, because the thread also serves others.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

pub(super) static HAND_OVER: Drainer = hand_over;

/// Drains queue pairs, unless the thread cannot be started.
fn hand_over(draining: Box<dyn Draining>) -> Result<(), Box<dyn Draining>> {
    let mut draining = Some(draining);
    match ServiceTask::start(|_| Ok(Drain(draining.take()))) {
        Ok(task) => task.detach(),
        Err(error) => tracing::debug!(%error, "this thread waits until queue pairs are drained"),
    }
    draining.map_or(Ok(()), Err)
}

/// `None` only after a panic.
struct Drain(Option<Box<dyn Draining>>);

impl Task for Drain {
    fn turn(&mut self, _: &Place, _: &[&Event], now: Instant) -> NextTurn {
        let is_free = self.0.as_mut().is_none_or(|draining| draining.poll(now));
        if is_free { NextTurn::Never } else { NextTurn::At(now + POLL_INTERVAL) }
    }

    fn failed(&mut self, _: &Place) {
        // The device may still access their memory.
        std::mem::forget(self.0.take());
    }
}
