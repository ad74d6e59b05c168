//! A descriptor that is writable while a write may find room, for programs that wait for `EPOLLOUT`.
//!
//! A set of events is never writable, so this is another descriptor. A refused write makes it
//! not writable. The service thread then watches the socket or the completion queue, and makes the
//! descriptor writable at their next event, because the program may wait for nothing else. It does not
//! look into the connection, so the next write may be refused again. It does not watch the
//! connection's set, which is readable as long as the program leaves bytes unread.
//!
//! `models` runs [`RoomState`] under loom with a modelled system.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

#[cfg(loom)]
use loom::sync::atomic::AtomicBool;
#[cfg(not(loom))]
use std::sync::atomic::AtomicBool;

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry};

use crate::session::service::{NextTurn, Place, ServiceTask, Task};
use crate::session::wake::Signal;

/// The token of the descriptors. No other task uses it.
const SOURCE: usize = 2002;

/// The descriptor, and the service thread's watch.
pub(super) struct RoomDescriptor {
    room: Arc<Room>,
    task: ServiceTask<Watch>,
}

/// The state that the connection's wake-ups share with it.
#[derive(Debug)]
pub(crate) struct Room {
    state: RoomState<Signal>,
    /// The descriptors of the connection that report room. They stay open as long as the task.
    sources: Vec<(RawFd, Interest)>,
}

/// Whether the descriptor shows room, and whether the service thread watches.
#[derive(Debug)]
struct RoomState<S> {
    /// Full while there is no room.
    signal: S,
    /// It may be full.
    is_full: AtomicBool,
    /// The service thread has the sources in its set.
    is_watched: AtomicBool,
}

/// A descriptor that is writable unless it is full.
trait Fillable {
    fn fill(&self) -> io::Result<()>;

    fn clear(&self) -> io::Result<()>;
}

/// What the service thread may have in its set.
trait Watchable {
    /// Adds it. If it can report something already, that is an event.
    fn watch(&self) -> io::Result<()>;

    fn end_watch(&self);
}

impl Fillable for Signal {
    fn fill(&self) -> io::Result<()> {
        Self::fill(self)
    }

    fn clear(&self) -> io::Result<()> {
        Self::clear(self)
    }
}

impl<S: Fillable> RoomState<S> {
    fn new(signal: S) -> Self {
        Self { signal, is_full: AtomicBool::new(false), is_watched: AtomicBool::new(false) }
    }

    /// A write was refused, after the call took all events: a later event may bring room.
    fn is_refused(&self, sources: &impl Watchable) -> io::Result<()> {
        // In this order, so that whoever sees that it is full empties it.
        self.signal.fill()?;
        self.is_full.store(true, Ordering::Release);
        // If the watch is about to end, it shows room after this.
        if !self.is_watched.swap(true, Ordering::AcqRel)
            && let Err(error) = sources.watch()
        {
            self.end_watch(sources);
            self.show()?;
            return Err(error);
        }
        Ok(())
    }

    /// Makes the descriptor writable.
    fn show(&self) -> io::Result<()> {
        let is_full = self.is_full.load(Ordering::Acquire) && self.is_full.swap(false, Ordering::AcqRel);
        if is_full { self.signal.clear() } else { Ok(()) }
    }

    /// An event may bring room. Later ones need another watch.
    fn on_event(&self, sources: &impl Watchable) -> io::Result<()> {
        self.end_watch(sources);
        self.show()
    }

    fn end_watch(&self, sources: &impl Watchable) {
        if self.is_watched.load(Ordering::Acquire) {
            sources.end_watch();
            // A store could be late: then a refusal still sees the watch, and this thread does not see the
            // refusal.
            self.is_watched.swap(false, Ordering::AcqRel);
        }
    }
}

impl RoomDescriptor {
    /// A writable descriptor for a connection with these descriptors, which outlive it.
    pub(super) fn new(sources: Vec<(RawFd, Interest)>) -> io::Result<Self> {
        let room = Arc::new(Room { state: RoomState::new(Signal::new()?), sources });
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
        self.room.state.signal.as_fd()
    }

    /// A write was refused, after the call took all events: a later event may bring room.
    pub(super) fn is_refused(&self) -> io::Result<()> {
        self.room.state.is_refused(&self.room.sources_at(self.task.place()))
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
            self.task.end(|Watch(room), place| room.state.end_watch(&room.sources_at(place)));
        }
    }
}

impl Room {
    /// Makes the descriptor writable.
    pub(super) fn show(&self) -> io::Result<()> {
        self.state.show()
    }

    fn sources_at<'a>(&'a self, place: &'a Place) -> RoomSources<'a> {
        RoomSources { sources: &self.sources, place }
    }
}

/// The sources, and the task's place in the service thread.
struct RoomSources<'a> {
    sources: &'a [(RawFd, Interest)],
    place: &'a Place,
}

impl RoomSources<'_> {
    fn registry(&self) -> &'static Registry {
        self.place.registry()
    }
}

impl Watchable for RoomSources<'_> {
    fn watch(&self) -> io::Result<()> {
        let token = self.place.token(SOURCE);
        self.sources.iter().try_for_each(|(descriptor, interest)| {
            self.registry().register(&mut SourceFd(descriptor), token, *interest)
        })
    }

    fn end_watch(&self) {
        for (descriptor, _) in self.sources {
            if let Err(error) = self.registry().deregister(&mut SourceFd(descriptor)) {
                tracing::debug!(%error, "a descriptor is not in the set of the service thread");
            }
        }
    }
}

/// Shows room at the next event.
struct Watch(Arc<Room>);

impl Task for Watch {
    fn turn(&mut self, place: &Place, events: &[&Event], _: Instant) -> NextTurn {
        let Watch(room) = self;
        if events.iter().any(|event| place.number(event.token()) == SOURCE)
            && let Err(error) = room.state.on_event(&room.sources_at(place))
        {
            tracing::error!(%error, "who waits for room to write is not woken");
        }
        NextTurn::Event
    }

    fn failed(&mut self, _: &Place) {}
}

/// The descriptor in every order that loom finds: `RUSTFLAGS='--cfg loom' cargo test --lib models::`.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// The system: an event descriptor, and a socket in the service thread's set.
    #[derive(Default)]
    struct System {
        state: Mutex<SystemState>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct SystemState {
        /// The descriptor is not writable.
        is_full: bool,
        /// The socket takes a write.
        has_room: bool,
        /// The socket has news that no call has taken.
        has_news: bool,
        is_watched: bool,
        /// The set reports the socket.
        has_event: bool,
        /// Nobody waits for the set any more.
        has_ended: bool,
    }

    impl System {
        fn with<R>(&self, act: impl FnOnce(&mut SystemState) -> R) -> R {
            let result = act(&mut self.state.lock().unwrap());
            self.changed.notify_all();
            result
        }

        fn wait_until(&self, is_so: impl Fn(&SystemState) -> bool) {
            let mut state = self.state.lock().unwrap();
            while !is_so(&state) {
                state = self.changed.wait(state).unwrap();
            }
        }

        /// Something happens to the socket, which may bring room.
        fn happens(&self, brings_room: bool) {
            self.with(|state| {
                state.has_room |= brings_room;
                state.has_news = true;
                state.has_event |= state.is_watched;
            });
        }

        /// Takes the events of the socket, and writes if it has room.
        fn write(&self) -> bool {
            self.with(|state| {
                state.has_news = false;
                std::mem::take(&mut state.has_room)
            })
        }
    }

    impl Fillable for Arc<System> {
        fn fill(&self) -> io::Result<()> {
            self.with(|state| state.is_full = true);
            Ok(())
        }

        fn clear(&self) -> io::Result<()> {
            self.with(|state| state.is_full = false);
            Ok(())
        }
    }

    impl Watchable for Arc<System> {
        fn watch(&self) -> io::Result<()> {
            self.with(|state| {
                state.is_watched = true;
                state.has_event = state.has_news;
            });
            Ok(())
        }

        fn end_watch(&self) {
            self.with(|state| (state.is_watched, state.has_event) = (false, false));
        }
    }

    /// A program that waits for the descriptor until it has written once. loom reports it if it sleeps
    /// for ever.
    fn writes_once(room: &RoomState<Arc<System>>, system: &Arc<System>) {
        while !system.write() {
            room.is_refused(system).unwrap();
            system.wait_until(|state| !state.is_full);
        }
    }

    /// The service thread.
    fn serves(room: &RoomState<Arc<System>>, system: &Arc<System>) {
        loop {
            system.wait_until(|state| state.has_event || state.has_ended);
            if system.with(|state| state.has_ended) {
                return;
            }
            room.on_event(system).unwrap();
        }
    }

    /// Runs the program and the service thread while other things happen.
    fn program_goes_on(happen: fn(&RoomState<Arc<System>>, &Arc<System>)) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let system = Arc::new(System::default());
            let room = Arc::new(RoomState::new(system.clone()));
            let [program, service] = [writes_once, serves].map(|run| {
                let (room, system) = (room.clone(), system.clone());
                thread::spawn(move || run(&room, &system))
            });
            happen(&room, &system);
            program.join().unwrap();
            system.with(|state| state.has_ended = true);
            service.join().unwrap();
        });
    }

    #[test]
    fn a_program_that_waits_for_room_is_woken() {
        program_goes_on(|_, system| {
            // A completion of another kind, for example.
            system.happens(false);
            system.happens(true);
        });
    }

    /// Another thread shows room while the service thread watches, for example because memory is free,
    /// so that a write is refused again.
    #[test]
    fn a_second_refusal_meets_the_end_of_the_watch() {
        program_goes_on(|room, system| {
            room.show().unwrap();
            system.happens(false);
            system.happens(true);
        });
    }
}
