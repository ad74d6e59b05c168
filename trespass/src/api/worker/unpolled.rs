//! Closed connections of a worker that its program does not poll.

use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mio::event::Event;

use super::cell::WorkerCell;
use crate::session::service::{NextTurn, Place, ServiceTask, Task};

/// The pause before the first turn, in which most programs poll.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The pause after a turn in which something has moved, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// Sends in turns what closed connections have left. Those that share the worker's completion queue
/// cannot leave it, so that the task visits the worker while no call is in it.
pub(super) struct UnpolledWorker {
    cell: Weak<WorkerCell>,
    /// `None` before the first turn.
    pause: Option<Duration>,
}

impl UnpolledWorker {
    pub(super) fn start(cell: &Arc<WorkerCell>) -> io::Result<()> {
        let cell = Arc::downgrade(cell);
        ServiceTask::start(|_| Ok(Self { cell, pause: None })).map(ServiceTask::detach)
    }
}

impl Task for UnpolledWorker {
    fn turn(&mut self, _: &Place, _: &[&Event], now: Instant) -> NextTurn {
        let pause = match self.pause {
            None => FIRST_PAUSE,
            Some(pause) => {
                // A dropped worker finishes its connections by itself.
                let Some(cell) = self.cell.upgrade() else { return NextTurn::Never };
                match cell.send_for_closed() {
                    None => return NextTurn::Never,
                    Some(true) => PAUSES[0],
                    Some(false) => (2 * pause).min(PAUSES[1]),
                }
            }
        };
        self.pause = Some(pause);
        NextTurn::At(now + pause)
    }

    fn failed(&mut self, _: &Place) {
        if let Some(cell) = self.cell.upgrade() {
            cell.lose_task();
        }
    }
}
