//! The end of a worker, whose connections the service thread closes.

use std::io;
use std::mem::{self, ManuallyDrop};
use std::time::Instant;

use mio::event::Event;

use super::slots::{SlotState, WorkerInner};
use crate::session::exit::UnsentBytes;
use crate::session::readiness::Until;
use crate::session::service::{NextTurn, Place, ServiceTask, Task};

/// The token of the worker's set.
const WORKER: usize = 1000;

impl WorkerInner {
    /// Closes all connections. The service thread sends what is left. At the end of the process
    /// nothing is freed, because a thread of the program may still have the descriptor.
    pub(super) fn finish(mut self, at_exit: bool) {
        for index in 0..self.slots.len() as u32 {
            // Closed connections are sending already.
            if !matches!(self.slot(index).state, SlotState::Nothing | SlotState::Closing { .. }) {
                self.close(self.key(index));
            }
        }
        self.work();
        let is_sent = self.closing == 0;
        let dropped = DroppedWorker { worker: ManuallyDrop::new(self), at_exit, unsent: None };
        if !is_sent && let Err(error) = dropped.hand_over() {
            tracing::error!(%error, "what a worker's connections have not sent is lost");
        }
    }

    /// Closes a forked child's copies of descriptors that are no connection's. The parent has all
    /// else.
    pub(super) fn forget_in_child(mut self) {
        mem::forget((mem::take(&mut self.slots), self.worker_cq.clone()));
    }
}

struct DroppedWorker {
    worker: ManuallyDrop<WorkerInner>,
    at_exit: bool,
    unsent: Option<UnsentBytes>,
}

impl DroppedWorker {
    /// Moves the worker to the service thread. Its queue pairs cannot leave their completion queue, so
    /// all of the worker goes.
    fn hand_over(mut self) -> io::Result<()> {
        self.unsent = Some(UnsentBytes::new()?);
        ServiceTask::start(|place| {
            self.worker.poller.register_in(place.registry(), place.token(WORKER))?;
            Ok(self)
        })?
        .detach();
        Ok(())
    }
}

impl Drop for DroppedWorker {
    fn drop(&mut self) {
        if !self.at_exit {
            // SAFETY: nobody uses the worker after this drop.
            unsafe { ManuallyDrop::drop(&mut self.worker) };
        }
    }
}

impl Task for DroppedWorker {
    fn turn(&mut self, _: &Place, _: &[&Event], _: Instant) -> NextTurn {
        let worker = &mut *self.worker;
        if let Err(error) = worker.wait_for_events(Until::Now) {
            tracing::error!(%error, "what a worker's connections have not sent is lost");
            return NextTurn::Never;
        }
        let busy = !worker.dirty.is_empty();
        worker.work();
        // The program has no use for its blocks any more.
        worker.pending_events.clear();
        worker.maybe_ready.clear();
        if worker.closing == 0 {
            return NextTurn::Never;
        }
        if busy || !worker.dirty.is_empty() {
            // The set may have more events.
            return NextTurn::At(Instant::now());
        }
        worker.until(Until::Event).end().into()
    }

    fn failed(&mut self, _: &Place) {}
}
