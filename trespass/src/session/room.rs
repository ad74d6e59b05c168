//! A descriptor that is writable while a write may find room, for programs that wait for `EPOLLOUT`.
//!
//! A set of events is never writable, so this is a descriptor of its own. A refused write makes it
//! not writable. The event that brings room comes to the connection's set, and the service thread
//! then makes the descriptor writable again, because the program may wait for nothing else. It does
//! not look into the connection, so the next write may be refused again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry};

use crate::session::service::{NextTurn, Place, ServiceTask, Task};
use crate::session::wake::Signal;

/// The token of the set. No other task uses it.
const SET: usize = 1001;

/// The descriptor, and the service thread's watch over the connection's set.
pub(super) struct RoomDescriptor {
    room: Arc<Room>,
    task: ServiceTask<Watch>,
    /// It may be full.
    is_full: bool,
}

struct Room {
    /// Full while there is no room.
    signal: Signal,
    /// The connection's set, which stays open as long as the task.
    set: RawFd,
    /// The service thread has the set in its own.
    is_watched: AtomicBool,
}

impl RoomDescriptor {
    /// A writable descriptor for a connection's set, which outlives it.
    pub(super) fn new(set: RawFd) -> io::Result<Self> {
        let room = Arc::new(Room { signal: Signal::new()?, set, is_watched: AtomicBool::new(false) });
        let task = ServiceTask::start(|_| Ok(Watch(room.clone())))?;
        Ok(Self { room, task, is_full: false })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.room.signal.as_fd()
    }

    /// A write was refused, after the call took the events of the set: a later event may bring room.
    pub(super) fn is_refused(&mut self) -> io::Result<()> {
        self.is_full = true;
        self.room.signal.fill()?;
        let place = self.task.place();
        // If the watch is about to end, it makes the descriptor writable after this.
        if !self.room.is_watched.swap(true, Ordering::AcqRel) {
            place.registry().register(&mut SourceFd(&self.room.set), place.token(SET), Interest::READABLE)?;
        }
        Ok(())
    }

    /// A call has found room, or the connection has failed.
    pub(super) fn has_room(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.is_full, false) { self.room.signal.clear() } else { Ok(()) }
    }
}

impl Drop for RoomDescriptor {
    fn drop(&mut self) {
        // A forked child shares all of it with the parent.
        if self.task.is_of_this_process() {
            self.task.end(|watch, place| watch.0.end(place.registry()));
        }
    }
}

impl Room {
    /// Ends the watch.
    fn end(&self, registry: &Registry) {
        if self.is_watched.load(Ordering::Acquire) {
            if let Err(error) = registry.deregister(&mut SourceFd(&self.set)) {
                tracing::debug!(%error, "a set stays in that of the service thread");
            }
            self.is_watched.store(false, Ordering::Release);
        }
    }
}

/// Makes the descriptor writable at the next event of the set.
struct Watch(Arc<Room>);

impl Task for Watch {
    fn turn(&mut self, place: &Place, events: &[&Event], _: Instant) -> NextTurn {
        if events.iter().any(|event| place.number(event.token()) == SET) {
            self.0.end(place.registry());
            if let Err(error) = self.0.signal.clear() {
                tracing::error!(%error, "who waits for room to write is not woken");
            }
        }
        NextTurn::Event
    }

    fn failed(&mut self, _: &Place) {}
}
