//! A dropped worker, whose connections the service thread closes.

use std::io;
use std::mem;
use std::time::Instant;

use mio::event::Event;

use super::{SlotState, Worker};
use crate::session::exit::UnsentBytes;
use crate::session::readiness::Until;
use crate::session::service::{NextTurn, Place, ServiceTask, Task};

/// The token of the worker's set.
const WORKER: usize = 1000;

impl Drop for Worker {
    /// Closes all connections, and does not wait for their peers. Queue pairs that drain may take
    /// half a second.
    fn drop(&mut self) {
        if self.is_handed_over {
            return;
        }
        if !self.process.is_current() {
            // A forked child shares all of it with the parent.
            mem::forget((mem::take(&mut self.slots), self.worker_cq.clone()));
            return;
        }
        for index in 0..self.slots.len() as u32 {
            // Closed connections are sending already.
            if !matches!(self.slot(index).state, SlotState::Nothing | SlotState::Closing { .. }) {
                self.close(self.key(index));
            }
        }
        self.work();
        if self.closing > 0
            && let Err(error) = self.hand_over()
        {
            tracing::error!(%error, "what a worker's connections have not sent is lost");
        }
    }
}

impl Worker {
    /// Moves the worker out of its place, which is being dropped, to the service thread. Its queue
    /// pairs cannot leave their completion queue, so all of the worker goes.
    pub(super) fn hand_over(&mut self) -> io::Result<()> {
        let unsent = UnsentBytes::new()?;
        let empty = Worker::new(&self.config)?;
        let mut worker = mem::replace(self, empty);
        worker.is_handed_over = true;
        ServiceTask::start(|place| {
            worker.poller.register_in(place.registry(), place.token(WORKER))?;
            Ok(DroppedWorker { worker, _unsent: unsent })
        })?
        .detach();
        Ok(())
    }
}

struct DroppedWorker {
    worker: Worker,
    _unsent: UnsentBytes,
}

impl Task for DroppedWorker {
    fn turn(&mut self, _: &Place, _: &[&Event], _: Instant) -> NextTurn {
        let worker = &mut self.worker;
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
