//! A descriptor that is writable while a write may find room, for programs that wait for `EPOLLOUT`.
//!
//! A set of events is never writable, so this is another descriptor. A refused write makes it
//! not writable. The service thread then watches the socket or the completion queue, and makes the
//! descriptor writable at their next event, because the program may wait for nothing else. It does not
//! look into the connection, so the next write may be refused again. It does not watch the
//! connection's set, which is readable as long as the program leaves bytes unread.

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

/// The token of the descriptors. No other task uses it.
const SOURCE: usize = 1002;

/// The descriptor, and the service thread's watch.
pub(super) struct RoomDescriptor {
    room: Arc<Room>,
    task: ServiceTask<Watch>,
}

/// The state that the connection's wake-ups share with it.
#[derive(Debug)]
pub(crate) struct Room {
    /// Full while there is no room.
    signal: Signal,
    /// It may be full.
    is_full: AtomicBool,
    /// The descriptors of the connection that report room. They stay open as long as the task.
    sources: Vec<(RawFd, Interest)>,
    /// The service thread has them in its set.
    is_watched: AtomicBool,
}

impl RoomDescriptor {
    /// A writable descriptor for a connection with these descriptors, which outlive it.
    pub(super) fn new(sources: Vec<(RawFd, Interest)>) -> io::Result<Self> {
        let signal = Signal::new()?;
        let (is_full, is_watched) = (AtomicBool::new(false), AtomicBool::new(false));
        let room = Arc::new(Room { signal, is_full, sources, is_watched });
        let task = ServiceTask::start(|_| Ok(Watch(room.clone())))?;
        Ok(Self { room, task })
    }

    pub(super) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Ends the watch. The descriptor stays open as long as the result.
    pub(super) fn end(self) -> Arc<Room> {
        self.room.clone()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.room.signal.as_fd()
    }

    /// A write was refused, after the call took all events: a later event may bring room.
    pub(super) fn is_refused(&self) -> io::Result<()> {
        // In this order, so that whoever sees that it is full empties it.
        self.room.signal.fill()?;
        self.room.is_full.store(true, Ordering::Release);
        // If the watch is about to end, it shows room after this.
        if !self.room.is_watched.swap(true, Ordering::AcqRel) {
            let place = self.task.place();
            if let Err(error) = self.room.watch(place) {
                self.room.end_watch(place.registry());
                self.room.show()?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// A call has found room, or the connection has failed.
    pub(super) fn has_room(&self) -> io::Result<()> {
        self.room.show()
    }
}

impl Drop for RoomDescriptor {
    fn drop(&mut self) {
        // A forked child shares all of it with the parent.
        if self.task.is_of_this_process() {
            self.task.end(|watch, place| watch.0.end_watch(place.registry()));
        }
    }
}

impl Room {
    /// Makes the descriptor writable.
    pub(super) fn show(&self) -> io::Result<()> {
        let is_full = self.is_full.load(Ordering::Acquire) && self.is_full.swap(false, Ordering::AcqRel);
        if is_full { self.signal.clear() } else { Ok(()) }
    }

    fn watch(&self, place: &Place) -> io::Result<()> {
        self.sources.iter().try_for_each(|(descriptor, interest)| {
            place.registry().register(&mut SourceFd(descriptor), place.token(SOURCE), *interest)
        })
    }

    fn end_watch(&self, registry: &Registry) {
        if self.is_watched.load(Ordering::Acquire) {
            for (descriptor, _) in &self.sources {
                if let Err(error) = registry.deregister(&mut SourceFd(descriptor)) {
                    tracing::debug!(%error, "a descriptor is not in the set of the service thread");
                }
            }
            self.is_watched.store(false, Ordering::Release);
        }
    }
}

/// Shows room at the next event.
struct Watch(Arc<Room>);

impl Task for Watch {
    fn turn(&mut self, place: &Place, events: &[&Event], _: Instant) -> NextTurn {
        if events.iter().any(|event| place.number(event.token()) == SOURCE) {
            self.0.end_watch(place.registry());
            if let Err(error) = self.0.show() {
                tracing::error!(%error, "who waits for room to write is not woken");
            }
        }
        NextTurn::Event
    }

    fn failed(&mut self, _: &Place) {}
}
