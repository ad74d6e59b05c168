//! Who uses an open connection: a call of the program, one of several threads, or the end of the
//! process.
//!
//! A call through `&mut` takes no lock. It marks the connection as in use, because the end of the
//! process takes the connections that nobody uses, to send what they have accepted
//! ([`exit`](super::exit)). Calls through `&` take turns by a lock. The one that must wait first
//! sleeps for events without the lock. The others wait until it wakes them, and wake it when they
//! have found what it may wait for.

use std::cell::UnsafeCell;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
#[cfg(unix)]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use mio::Token;

use crate::pool::Pool;
use crate::process::{self, CallGate, Process};
use crate::session::closing;
use crate::session::connection::{Connection, Direction};
use crate::session::connection_info::ConnectionInfo;
use crate::session::exit::{self, CloseAtExit, LiveEntry};
use crate::session::readiness::{Poller, ReadinessState, Until};
#[cfg(any(target_os = "linux", target_os = "android"))]
use crate::session::room::RoomDescriptor;
use crate::session::sleep::EventWait;
use crate::session::tasks::{DueTasks, WaitingTasks};
use crate::session::timeouts::Timeouts;
use crate::session::turns::{Turn, TurnGuard, Turns};
use crate::session::visits::{self, VisitEnd, Visited, Visits};
use crate::session::wake::WakeHandle;

const _: () = {
    const fn is_send<T: Send>() {}
    const fn is_sync<T: Sync>() {}
    // `ConnectionCell` is `Sync` only because of these.
    is_send::<OpenConnection>();
    is_sync::<(ConnectionInfo, Pool, Timeouts, CallGate, Turns, Arc<WakeHandle>, Waker)>();
};

/// The token of the one connection in its set.
const CONNECTION: Token = Token(0);

/// Whether calls cannot sleep for descriptors that are in no set.
const ALWAYS_IN_A_SET: bool = cfg!(not(any(target_os = "linux", target_os = "android")));

/// An open connection, with what its calls need.
pub(crate) struct OpenConnection {
    pub(crate) connection: Connection,
    /// The set that the program waits for. `None` before it asks for the descriptor, and while a call
    /// sleeps in it.
    pub(crate) poller: Option<Box<Poller>>,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    room: Option<RoomDescriptor>,
    pub(crate) readiness_state: ReadinessState,
    /// The tasks that wait for it. `None` outside of a runtime.
    pub(crate) tasks: Option<WaitingTasks>,
    /// A call has left bytes behind that it could not send. They may be sent since.
    pub(crate) left_unsent: bool,
}

impl OpenConnection {
    /// Closes the connection, and never waits for the peer. Returns what the program's descriptors
    /// belong to.
    fn close(self, linger: Duration) -> impl Sized {
        // The watch uses descriptors of the connection.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let room = self.room.map(RoomDescriptor::end);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let room = ();
        (room, closing::close(self.connection, self.poller, linger))
    }
}

/// The place of an open connection, and what needs no turn.
pub(crate) struct ConnectionCell {
    pub(crate) info: ConnectionInfo,
    pub(crate) peer_user_data: Vec<u8>,
    pub(crate) pool: Pool,
    pub(crate) device: Option<String>,
    pub(crate) timeouts: Timeouts,
    default_linger: Duration,
    linger: Mutex<Duration>,
    gate: CallGate,
    visits: Visits<Self>,
    /// This cell.
    own: Weak<Self>,
    turns: Turns,
    /// The socket, for a forked child.
    socket: Option<process::Descriptor>,
    wake_handle: Arc<WakeHandle>,
    task_waker: Waker,
    /// Whether the program has the set's descriptor.
    exported: AtomicBool,
    #[cfg(unix)]
    descriptor: OnceLock<std::os::fd::RawFd>,
    /// The transport's descriptor that reports arrivals.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    transport: Option<std::os::fd::RawFd>,
    /// The descriptor that is writable while there is room.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    room: OnceLock<std::os::fd::RawFd>,
    /// `None` after the owner, or the end of the process, has taken it.
    open: UnsafeCell<Option<OpenConnection>>,
}

// SAFETY: `open` is only reached through a `Caller`, of a call or a visit, and by `take`, whose
// exclusion is described there. All other fields are `Sync`.
unsafe impl Sync for ConnectionCell {}

// As for `TcpStream`: a call that panics leaves the connection as the system would.
impl UnwindSafe for ConnectionCell {}
impl RefUnwindSafe for ConnectionCell {}

impl ConnectionCell {
    fn new(connection: Connection) -> io::Result<Arc<Self>> {
        let mut connection = connection;
        connection.time_calls();
        let wake_handle = WakeHandle::new();
        connection.returns.set_wake_handle(&wake_handle);
        let cell = Arc::new_cyclic(|own| Self {
            info: connection.info.clone(),
            peer_user_data: connection.peer_user_data.clone(),
            pool: connection.pool.clone(),
            device: connection.device().map(str::to_owned),
            timeouts: Timeouts::default(),
            default_linger: connection.linger(),
            linger: Mutex::new(connection.linger()),
            gate: CallGate::timed(connection.is_timed()),
            visits: Visits::new(),
            own: own.clone(),
            turns: Turns::new(),
            socket: connection.socket(),
            task_waker: wake_handle.clone().into(),
            wake_handle,
            exported: AtomicBool::new(false),
            #[cfg(unix)]
            descriptor: OnceLock::new(),
            #[cfg(any(target_os = "linux", target_os = "android"))]
            transport: connection.room_sources().first().map(|(descriptor, _)| *descriptor),
            #[cfg(any(target_os = "linux", target_os = "android"))]
            room: OnceLock::new(),
            open: UnsafeCell::new(Some(OpenConnection {
                connection,
                poller: None,
                #[cfg(any(target_os = "linux", target_os = "android"))]
                room: None,
                readiness_state: ReadinessState::default(),
                tasks: None,
                left_unsent: false,
            })),
        });
        if ALWAYS_IN_A_SET {
            cell.make_set()?;
        }
        Ok(cell)
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) {
        *self.linger.lock().unwrap_or_else(PoisonError::into_inner) = linger.unwrap_or(self.default_linger);
    }

    fn linger(&self) -> Duration {
        *self.linger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptor of the set, which the first call makes. That call fires the waker, because
    /// earlier events are unknown to the program.
    #[cfg(unix)]
    pub(crate) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        if !self.exported.load(Ordering::Relaxed)
            && let Err(error) = self.export()
        {
            tracing::error!(connection = %self.info, %error, "arrivals may not be shown: no set of events");
        }
        let descriptor = self.descriptor.get().expect("an export gives it a value");
        // SAFETY: the set, or the transport's descriptor, stays open as long as the owner of this cell
        // lives: only the owner takes the connection with its set, and the end of the process closes
        // neither.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(*descriptor) }
    }

    /// The descriptor that is writable while there is room, which the first call makes.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn room_descriptor(&self) -> io::Result<std::os::fd::BorrowedFd<'_>> {
        let descriptor = match self.room.get() {
            Some(room) => *room,
            None => {
                if !self.exported.load(Ordering::Relaxed) {
                    self.export()?;
                }
                self.shared()?.make_room()?
            }
        };
        // SAFETY: the descriptor stays open as long as the set does, as `descriptor` says.
        Ok(unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) })
    }

    /// Makes the set, and notes that the program has it. Without a set the program gets the descriptor
    /// of the transport, which does not show what calls have left.
    #[cfg(unix)]
    fn export(&self) -> io::Result<()> {
        let made = self.make_set();
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if made.is_err()
            && let Some(transport) = self.transport
        {
            let _ = self.descriptor.set(transport);
        }
        self.exported.store(true, Ordering::Relaxed);
        self.wake_handle.notify();
        made
    }

    /// Makes the set with the connection's descriptors, unless there is one.
    pub(crate) fn make_set(&self) -> io::Result<()> {
        self.shared()?.make_set()
    }

    /// Takes a turn of the connection for a call through `&`.
    #[inline]
    fn shared(&self) -> io::Result<Caller<'_>> {
        if !self.gate.is_of_this_process() {
            // A forked child may have a copy of the locked lock.
            return Err(Process::error("connection"));
        }
        let turn = self.turns.next();
        if let Err(error) = self.gate.enter(turn.has_sleeper()) {
            drop(turn);
            process::wait_for_end();
            return Err(error);
        }
        Ok(Caller {
            open: self.open(),
            cell: self,
            turn: ManuallyDrop::new(Some(turn)),
            ending: Ending::Leaves,
            tries_again: false,
        })
    }

    /// Runs a call of the program through `&` that moves bytes, and records it as
    /// [`ConnectionOwner::transfer`] does.
    pub(crate) fn shared_transfer<T>(
        &self,
        direction: Direction,
        call: impl FnOnce(&mut Caller<'_>) -> io::Result<T>,
        bytes: impl FnOnce(&T) -> Option<usize>,
    ) -> io::Result<T> {
        let began = self.gate.is_timed().then(Instant::now);
        self.shared()?.record(direction, began, call, bytes)
    }

    /// The interval of the summary, if calls are timed.
    pub(crate) fn timed_interval(&self) -> Option<Duration> {
        self.shared().ok().and_then(|caller| caller.connection.timed_interval())
    }

    /// The connection, which a caller has entered.
    fn open(&self) -> NonNull<OpenConnection> {
        let open = self.open.get();
        // SAFETY: a caller has entered the gate, which keeps out the end of the process. The owner
        // takes the connection only in its last call.
        NonNull::from(unsafe { (*open).as_mut() }.expect(OPEN))
    }

    /// Takes the connection out of its place.
    ///
    /// # Safety
    ///
    /// No other thread reaches `open`, and no caller uses its pointer afterwards.
    unsafe fn take(&self) -> Option<OpenConnection> {
        // SAFETY: the caller guarantees that nobody else reaches it.
        unsafe { (*self.open.get()).take() }
    }
}

impl Visited for ConnectionCell {
    fn gate(&self) -> &CallGate {
        &self.gate
    }

    fn visits(&self) -> &Visits<Self> {
        &self.visits
    }

    unsafe fn visit(&self) -> VisitEnd {
        // SAFETY: during the visit no call is in the connection, and those that take it are calls, or
        // run in this thread.
        let Some(open) = (unsafe { (*self.open.get()).as_mut() }) else { return None.into() };
        let (open, turn) = (NonNull::from(open), ManuallyDrop::new(None));
        let mut caller = Caller { open, cell: self, turn, ending: Ending::Nothing, tries_again: false };
        VisitEnd { moved: caller.send_left(), due: caller.take_due() }
    }
}

impl CloseAtExit for ConnectionCell {
    fn close_at_exit(&self) -> bool {
        if !self.gate.is_left_for_ever() {
            self.wake_handle.notify();
            return false;
        }
        // SAFETY: no call is in the connection, and none can enter. What the last one did happens
        // before this, because leaving is a release.
        if let Some(open) = unsafe { self.take() } {
            // A thread of the program may still have the descriptor.
            mem::forget(open.close(self.linger()));
        }
        true
    }
}

/// Only the owner's last call takes the connection.
const OPEN: &str = "the owner has its connection as long as it lives";

/// A call that uses a connection.
pub(crate) struct Caller<'a> {
    open: NonNull<OpenConnection>,
    cell: &'a ConnectionCell,
    /// The turn of a call through `&`, which its drop takes.
    turn: ManuallyDrop<Option<TurnGuard<'a>>>,
    ending: Ending,
    /// If it would block, it requests no event, because its task tries again.
    tries_again: bool,
}

/// What a call does at its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It leaves the gate.
    Leaves,
    /// The same. Then it wakes tasks.
    LeavesAndWakes,
    /// It leaves the gate. The service thread did not visit while it slept.
    LeavesAfterSleep,
    /// The connection is not the call's: it is a visit, or the end of the process has the connection.
    Nothing,
}

impl Deref for Caller<'_> {
    type Target = OpenConnection;

    #[inline]
    fn deref(&self) -> &OpenConnection {
        // SAFETY: the pointer comes from `ConnectionCell::open`. A caller has entered the gate, and
        // it has the turn, or was made from `&mut`, or is a visit, so that no other call is in the
        // connection.
        unsafe { self.open.as_ref() }
    }
}

impl DerefMut for Caller<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut OpenConnection {
        // SAFETY: the pointer comes from `ConnectionCell::open`. A caller has entered the gate, and
        // no other call is in the connection, as `deref` says.
        unsafe { self.open.as_mut() }
    }
}

impl Caller<'_> {
    /// Whether the task tries again without being woken. If so, a call that would block requests no
    /// event.
    #[cfg_attr(not(all(unix, feature = "tokio")), allow(dead_code, reason = "tasks are those of tokio"))]
    pub(crate) fn of_task(&mut self, tries_again: bool) -> &mut Self {
        self.tries_again = tries_again;
        self
    }

    /// Runs a call that has begun at this time, and records it if there is one.
    #[inline]
    fn record<T>(
        &mut self,
        direction: Direction,
        began: Option<Instant>,
        call: impl FnOnce(&mut Self) -> io::Result<T>,
        bytes: impl FnOnce(&T) -> Option<usize>,
    ) -> io::Result<T> {
        let outcome = call(self);
        if let (Some(began), Ok(value)) = (began, &outcome)
            && let Some(bytes) = bytes(value)
        {
            self.connection.record_call(direction, began, bytes);
        }
        outcome
    }

    pub(super) fn tries_again(&self) -> bool {
        self.tries_again
    }

    pub(crate) fn timeouts(&self) -> &Timeouts {
        &self.cell.timeouts
    }

    /// Bytes to move at a time, so that the peer works on one piece while this side copies the
    /// next. A call with a timeout moves all or nothing.
    pub(crate) fn piece(&self, direction: Direction) -> usize {
        let whole = self.timeouts().is_nonblocking() || self.timeouts().get(direction).is_some();
        self.connection.piece.filter(|_| !whole).unwrap_or(usize::MAX)
    }

    /// Makes the set with the connection's descriptors, unless there is one.
    fn make_set(&mut self) -> io::Result<()> {
        #[cfg(unix)]
        if self.cell.descriptor.get().is_some() {
            return Ok(());
        }
        let poller = Box::new(Poller::of(1, self.cell.wake_handle.clone())?);
        if let Err(error) = self.connection.register_at(poller.registry(), CONNECTION) {
            // One of two may be registered, and could not be registered again.
            let _ = self.connection.deregister_from(poller.registry());
            return Err(error);
        }
        #[cfg(unix)]
        let _ = self.cell.descriptor.set(std::os::fd::AsRawFd::as_raw_fd(&poller.descriptor()));
        self.poller = Some(poller);
        Ok(())
    }

    /// Makes the descriptor that shows room, unless there is one.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn make_room(&mut self) -> io::Result<std::os::fd::RawFd> {
        use std::os::fd::AsRawFd;

        if let Some(room) = self.cell.room.get() {
            return Ok(*room);
        }
        let room = RoomDescriptor::new(self.connection.room_sources())?;
        let descriptor = room.descriptor().as_raw_fd();
        self.cell.wake_handle.show_room_by(Some(room.room().clone()));
        self.room = Some(room);
        self.readiness_state.show_no_room();
        let _ = self.cell.room.set(descriptor); // Under the turn's lock there is one call.
        Ok(descriptor)
    }

    /// Makes the descriptor that shows room match what calls can do.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn publish_room(&mut self, refused: bool) {
        let Some(room) = &self.room else { return };
        let shown = match refused {
            true => room.is_refused(),
            false if self.connection.readiness().writable => room.has_room(),
            false => Ok(()),
        };
        if let Err(error) = shown {
            tracing::error!(connection = %self.connection.info, %error, "its room is not shown");
        }
    }

    /// Another descriptor shows no room here.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn publish_room(&mut self, _: bool) {}

    /// Whether the program may wait for the descriptor.
    #[inline]
    pub(crate) fn is_exported(&self) -> bool {
        self.cell.exported.load(Ordering::Relaxed)
    }

    /// Wakes the program for what this call has left.
    pub(crate) fn ring(&mut self) {
        let open = &mut **self;
        let Some(poller) = &mut open.poller else { return self.cell.wake_handle.notify() };
        // With its events taken, the set can be woken for less.
        if let Err(error) = poller.wait(Until::Now, |event| open.connection.on_event(event.into())) {
            tracing::debug!(connection = %open.connection.info, %error, "its events are not known");
        }
        self.cell.wake_handle.notify_again();
    }

    /// Whether another call wants a turn.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.cell.turns.is_wanted() || self.turn.as_ref().is_some_and(|turn| turn.has_waiting())
    }

    /// Whether other threads may call, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.turn.is_some()
    }

    /// Sleeps until an event, another call's turn or the deadline. Returns whether there was an
    /// event, or a turn.
    pub(crate) fn sleep(&mut self, until: Until) -> io::Result<bool> {
        let awake = !self.may_sleep();
        let open = &mut **self;
        let until = if awake { Until::Now } else { until.or(open.connection.next_deadline()) };
        let happened = match self.another_sleeps() {
            false => self.sleep_first(until)?,
            true => self.wait_for_turn(until),
        };
        Ok(happened || awake)
    }

    /// Whether nothing is left to do before an event, which wakes the program.
    pub(super) fn may_sleep(&mut self) -> bool {
        let cell = self.cell;
        self.connection.may_sleep(&cell.task_waker)
    }

    /// Whether nothing is left to do, and every event from now on will wake the program.
    pub(super) fn is_armed(&mut self) -> bool {
        let cell = self.cell;
        self.connection.is_armed(&cell.task_waker)
    }

    /// Takes the events that have come.
    pub(super) fn take_events(&mut self) -> io::Result<()> {
        self.sleep_first(Until::Now).map(drop)
    }

    /// Sleeps in the set, or for the descriptors. Others may have turns until it has slept.
    fn sleep_first(&mut self, until: Until) -> io::Result<bool> {
        let waits = !matches!(until, Until::Now);
        if waits {
            // This call sends what is left.
            self.cell.visits.end();
            self.ending = Ending::LeavesAfterSleep;
        }
        let is_woken = waits && (self.is_shared() || self.connection.may_be_woken());
        let woken = is_woken.then_some(&self.cell.wake_handle);
        let open = &mut **self;
        let mut wait = EventWait::of(open.poller.take(), &mut open.connection, woken);
        let slept = match self.turn.take_if(|_| waits) {
            None => wait.sleep(until),
            Some(turn) => {
                let found = self.connection.findings();
                let (turn, slept) = self.cell.turns.sleep(turn, found, until.end(), || wait.sleep(until));
                *self.turn = Some(turn);
                // Other calls have used the connection since.
                self.open = self.cell.open();
                slept
            }
        };
        let open = &mut **self;
        let (poller, happened) = wait.take_events(&mut open.connection);
        if poller.is_some() {
            open.poller = poller;
            open.readiness_state.events_taken();
        }
        if waits {
            self.resume();
        }
        slept.map(|()| happened)
    }

    /// Waits while another call sleeps, until it or a third has had a turn. Returns
    /// whether that was before the deadline.
    fn wait_for_turn(&mut self, until: Until) -> bool {
        let Some(turn) = self.turn.take_if(|_| !matches!(until, Until::Now)) else { return false };
        let found = self.connection.findings();
        let notify = || self.cell.wake_handle.notify();
        let (turn, in_time) = self.cell.turns.wait(turn, found, until.timeout(), notify);
        *self.turn = Some(turn);
        // A call that waits for its turn does not keep out the end of the process.
        self.resume();
        self.open = self.cell.open();
        in_time
    }

    /// Continues after others may have had a turn. If the end of the process has begun, it takes the
    /// connection, and this call never returns.
    fn resume(&mut self) {
        let sleeps = self.another_sleeps();
        if self.cell.gate.enter(sleeps).is_ok() {
            return;
        }
        *self.turn = None;
        self.ending = Ending::Nothing;
        process::leave_to_end();
    }

    pub(super) fn another_sleeps(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.has_sleeper())
    }

    /// Wakes the call that sleeps, because this one has changed what it may do.
    pub(crate) fn wake_sleeper(&mut self) {
        if self.turn.as_mut().is_some_and(|turn| turn.wake_sleeper()) {
            self.cell.wake_handle.notify();
        }
    }

    /// Has all calls that wait try again, for what the connection itself does not show.
    pub(crate) fn wake_all(&mut self) {
        if let Some(turn) = self.turn.as_mut() {
            self.cell.turns.wake_all(turn, || self.cell.wake_handle.notify());
        }
    }

    /// Leaves unsent bytes to later calls, and to the service thread while there are none.
    pub(super) fn leave_unsent(&mut self) {
        if !visits::are_possible() {
            return;
        }
        self.left_unsent = true;
        // A call that sleeps sends them, and looks at its end.
        if !self.another_sleeps() {
            self.cell.visits.request(&self.cell.own);
        }
    }

    pub(super) fn leave_if_unsent(&mut self) {
        if self.connection.is_sent_or_failed().is_ok() {
            self.left_unsent = false;
        } else {
            self.leave_unsent();
        }
    }

    /// Has the end of this call wake the tasks that it has found something for.
    pub(crate) fn wake_at_end(&mut self) {
        if self.ending == Ending::Leaves && self.tasks.as_ref().is_some_and(WaitingTasks::has_due) {
            self.ending = Ending::LeavesAndWakes;
        }
    }

    fn take_due(&mut self) -> Option<DueTasks> {
        self.tasks.as_mut().and_then(WaitingTasks::take_due)
    }

    /// Ends a call through `&`, or one that has slept or wakes tasks.
    #[cold]
    fn end(&mut self) {
        if self.ending == Ending::Nothing {
            return;
        }
        let due = self.take_due();
        self.leave();
        // A waker is code of the program. It may call the connection, which is free.
        if let Some(due) = due {
            due.wake();
        }
    }

    /// Leaves the gate, and the turn.
    fn leave(&mut self) {
        if self.ending == Ending::LeavesAfterSleep && (self.left_unsent || self.connection.has_unposted()) {
            self.leave_if_unsent();
        }
        let Some(mut turn) = self.turn.take() else { return self.cell.gate.leave(false) };
        self.wake_others(&mut turn);
        // The lock is held until the gate is left.
        self.cell.gate.leave(turn.has_sleeper());
    }

    /// Lets the calls that wait try again, if this one has found what they may wait for.
    fn wake_others(&mut self, turn: &mut Turn) {
        if !turn.has_others() {
            return;
        }
        let notify = || self.cell.wake_handle.notify();
        if thread::panicking() {
            // If it is this call that panics, the others see what is left of the connection.
            return self.cell.turns.wake_all(turn, notify);
        }
        let connection = &mut self.connection;
        // What this call has made possible is reported by no event.
        connection.progress();
        let (found, deadline) = (connection.findings(), connection.next_deadline());
        self.cell.turns.end(turn, found, deadline, notify);
    }
}

impl Drop for Caller<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.turn.is_none() && self.ending == Ending::Leaves {
            self.cell.gate.leave(false);
        } else {
            self.end();
        }
    }
}

/// The owner of an open connection, which closes it when it is dropped.
pub(crate) struct ConnectionOwner {
    cell: Arc<ConnectionCell>,
    /// `None` where the end of the process does not know of it.
    live: Option<LiveEntry>,
}

impl ConnectionOwner {
    pub(crate) fn new(connection: Connection) -> io::Result<Self> {
        let exit_timeout = connection.exit_timeout();
        let cell = ConnectionCell::new(connection)?;
        let live = exit::add(&cell, exit_timeout);
        Ok(Self { cell, live })
    }

    /// Begins a call. No other can be in the connection.
    #[inline]
    pub(crate) fn exclusive(&mut self) -> io::Result<Caller<'_>> {
        if let Err(error) = self.cell.gate.enter(false) {
            process::wait_for_end();
            return Err(error);
        }
        Ok(self.entered())
    }

    /// The call that has entered the gate.
    #[inline(always)]
    fn entered(&mut self) -> Caller<'_> {
        let turn = ManuallyDrop::new(None);
        let (open, cell) = (self.cell.open(), &*self.cell);
        Caller { open, cell, turn, ending: Ending::Leaves, tries_again: false }
    }

    /// Runs a call of the program that moves bytes. If calls are timed, it records what `bytes` returns
    /// for the result of this one. `None` is a call that has moved nothing.
    #[inline(always)]
    pub(crate) fn transfer<T>(
        &mut self,
        direction: Direction,
        call: impl FnOnce(&mut Caller<'_>) -> io::Result<T>,
        bytes: impl FnOnce(&T) -> Option<usize>,
    ) -> io::Result<T> {
        match self.cell.gate.enters_at_once() {
            true => call(&mut self.entered()),
            false => self.transfer_late(direction, call, bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn transfer_late<T>(
        &mut self,
        direction: Direction,
        call: impl FnOnce(&mut Caller<'_>) -> io::Result<T>,
        bytes: impl FnOnce(&T) -> Option<usize>,
    ) -> io::Result<T> {
        let began = self.cell.gate.is_timed().then(Instant::now);
        self.exclusive()?.record(direction, began, call, bytes)
    }

    /// Whether calls are timed.
    pub(crate) fn is_timed(&self) -> bool {
        self.cell.gate.is_timed()
    }

    /// Begins a call while other threads may call, too: waits for its turn.
    pub(crate) fn shared(&self) -> io::Result<Caller<'_>> {
        self.cell.shared()
    }

    /// Sets the tasks that wait for the connection. Without, the set of events shows what is left.
    #[cfg(all(unix, feature = "tokio"))]
    pub(crate) fn set_tasks(&self, tasks: Option<WaitingTasks>) -> io::Result<()> {
        let shows = tasks.is_none();
        // The drop of a waker is code of the program. It runs after this turn.
        let _before = mem::replace(&mut self.shared()?.tasks, tasks);
        if shows {
            self.cell.wake_handle.notify();
        }
        Ok(())
    }

    /// Takes the connection for a worker: deregisters it from its poller, so that the worker's can
    /// report its events.
    pub(crate) fn into_connection(self) -> io::Result<Connection> {
        self.cell.gate.enter(false)?;
        // SAFETY: the gate keeps out the end of the process, and only the owner has calls.
        let open = unsafe { self.cell.take() }.expect(OPEN);
        self.cell.gate.leave(false);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            self.cell.wake_handle.show_room_by(None);
            drop(open.room);
        }
        let OpenConnection { mut connection, poller, .. } = open;
        if let Some(poller) = poller {
            connection.deregister(&poller)?;
        }
        connection.set_linger(self.cell.linger());
        Ok(connection)
    }
}

impl Deref for ConnectionOwner {
    type Target = ConnectionCell;

    fn deref(&self) -> &ConnectionCell {
        &self.cell
    }
}

impl Drop for ConnectionOwner {
    fn drop(&mut self) {
        if !self.cell.gate.is_of_this_process() {
            if self.cell.gate.is_visited() {
                // A copy of the middle of a visit is in no order.
                mem::forget(self.cell.clone());
            } else if let Some(open) =
                // SAFETY: the owner alone can reach a forked child's copy.
                unsafe { self.cell.take() }
            {
                mem::forget(open.connection);
            }
            // All but the socket is shared with the parent, and stays.
            if let Some(socket) = self.cell.socket {
                process::close_copy(socket);
            }
            mem::forget(self.live.take());
        } else if self.cell.gate.enter(false).is_ok() {
            // SAFETY: the gate keeps out the end of the process, and only the owner has calls.
            if let Some(open) = unsafe { self.cell.take() } {
                #[cfg(any(target_os = "linux", target_os = "android"))]
                self.cell.wake_handle.show_room_by(None);
                drop(open.close(self.cell.linger()));
            }
            self.cell.gate.leave(false);
        } else {
            // The end of the process closes it.
            mem::forget((self.cell.clone(), self.live.take()));
        }
    }
}
