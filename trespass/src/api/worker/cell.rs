//! Who uses a worker: its thread, or the end of the process.

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::slots::WorkerInner;
use super::{Event, Key, WorkerWaker};
use crate::config::Config;
use crate::pool::Pool;
use crate::process::{self, CallGate, Process};
use crate::session::exit::{self, CloseAtExit, LiveEntry};
use crate::session::visits::{VisitEnd, Visited, Visits};
use crate::session::wake::WakeHandle;

const _: () = {
    const fn is_send<T: Send>() {}
    // `WorkerCell` is `Sync` only because of this.
    is_send::<WorkerInner>();
};

/// The place of a worker's state, and what needs no call.
pub(super) struct WorkerCell {
    gate: CallGate,
    /// The visits for closed connections, which share the worker's completion queue and cannot leave it.
    visits: Visits<Self>,
    woken: Arc<AtomicBool>,
    wake_handle: Arc<WakeHandle>,
    first_pool: Pool,
    #[cfg(unix)]
    descriptor: std::os::fd::RawFd,
    /// `None` after the owner, or the end of the process, has taken it.
    state: UnsafeCell<Option<WorkerInner>>,
}

// SAFETY: `state` is only reached through a `WorkerCall`, in a visit, and by `take`, whose exclusion
// is described there. All other fields are `Sync`.
unsafe impl Sync for WorkerCell {}

impl WorkerCell {
    /// Takes the state out of its place.
    ///
    /// # Safety
    ///
    /// No other thread reaches `state`, and no call uses its pointer afterwards.
    unsafe fn take(&self) -> Option<WorkerInner> {
        // SAFETY: the caller guarantees that nobody else reaches it.
        unsafe { (*self.state.get()).take() }
    }

    /// Begins a call.
    #[inline]
    fn enter(&self) -> io::Result<WorkerCall<'_>> {
        if self.gate.enter(false).is_err() {
            process::wait_for_end();
            return Err(Process::error("worker"));
        }
        let state = self.state.get();
        // SAFETY: the gate keeps out the end of the process and visits of the service thread. The owner
        // takes the state only in its drop.
        let state =
            NonNull::from(unsafe { (*state).as_mut() }.expect("the owner has it as long as it lives"));
        Ok(WorkerCall { state, cell: self, left: false })
    }
}

impl Visited for WorkerCell {
    fn gate(&self) -> &CallGate {
        &self.gate
    }

    fn visits(&self) -> &Visits<Self> {
        &self.visits
    }

    unsafe fn visit(&self) -> VisitEnd {
        // SAFETY: during the visit no call is in the worker, and the owner's drop is one. The end of the
        // process takes the state in this thread.
        unsafe { (*self.state.get()).as_mut() }.and_then(WorkerInner::send_for_closed).into()
    }
}

impl CloseAtExit for WorkerCell {
    fn close_at_exit(&self) -> bool {
        if !self.gate.is_left_for_ever() {
            self.wake_handle.notify();
            return false;
        }
        // SAFETY: no call is in the worker, and none can enter. What the last one did happens before
        // this, because leaving is a release.
        if let Some(state) = unsafe { self.take() } {
            state.finish(true);
        }
        true
    }
}

/// A call that uses a worker.
pub(super) struct WorkerCall<'a> {
    state: NonNull<WorkerInner>,
    cell: &'a WorkerCell,
    /// The end of the process has the worker.
    left: bool,
}

impl Deref for WorkerCall<'_> {
    type Target = WorkerInner;

    #[inline]
    fn deref(&self) -> &WorkerInner {
        // SAFETY: the pointer comes from `WorkerCell::enter`, which has entered the gate. A worker
        // is used by one thread at a time, because `WorkerOwner` is not `Sync`.
        unsafe { self.state.as_ref() }
    }
}

impl DerefMut for WorkerCall<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut WorkerInner {
        // SAFETY: as `deref` says. The owner gives a mutable call only for its own mutable borrow, so
        // that there is no other reference to the state.
        unsafe { self.state.as_mut() }
    }
}

impl WorkerCall<'_> {
    /// Ends the visits of the service thread, if no closed connection needs them. A visit that finds
    /// none changes nothing.
    pub(super) fn end_visits(&mut self) {
        if self.cell.visits.are_wanted() && !self.has_closed() {
            self.cell.visits.end();
        }
    }

    /// Continues after a sleep. If the end of the process has begun, it takes the worker, and this
    /// call never returns.
    pub(super) fn resume(&mut self) {
        if self.cell.gate.resume().is_err() {
            self.left = true;
            process::leave_to_end();
        }
    }
}

impl Drop for WorkerCall<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.left {
            self.cell.gate.leave(false);
        }
    }
}

/// The owner of a worker, which closes its connections when it is dropped.
pub(super) struct WorkerOwner {
    cell: Arc<WorkerCell>,
    /// `None` where the end of the process does not know of it.
    live: Option<LiveEntry>,
    /// One thread at a time uses it.
    _not_sync: PhantomData<Cell<()>>,
}

impl WorkerOwner {
    pub(super) fn new(config: &Config) -> io::Result<Self> {
        let state = WorkerInner::new(config)?;
        let cell = Arc::new(WorkerCell {
            gate: CallGate::new(),
            visits: Visits::new(),
            woken: state.woken.clone(),
            wake_handle: state.poller.wake_handle().clone(),
            first_pool: state.pool.clone(),
            #[cfg(unix)]
            descriptor: std::os::fd::AsRawFd::as_raw_fd(&state.poller.descriptor()),
            state: UnsafeCell::new(Some(state)),
        });
        let live = exit::add(&cell, config.exit_timeout);
        Ok(Self { cell, live, _not_sync: PhantomData })
    }

    /// Begins a call.
    #[inline]
    pub(super) fn call(&mut self) -> io::Result<WorkerCall<'_>> {
        self.cell.enter()
    }

    /// Closes a connection or a listener. The service thread sends what is left, if the program does not
    /// poll.
    pub(super) fn close(&mut self, key: Key) {
        // A forked child has no connections to close.
        let Ok(mut call) = self.call() else { return };
        call.close(key);
        let leaves_some = call.has_closed();
        drop(call);
        if leaves_some {
            self.cell.visits.request(&Arc::downgrade(&self.cell));
        }
    }

    /// Polls, see [`WorkerCall::poll`].
    pub(super) fn poll(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        let mut call = self.call()?;
        let polled = call.poll(events, timeout);
        call.end_visits();
        polled
    }

    /// Calls a function with the state.
    pub(super) fn look<T>(&self, look: impl FnOnce(&WorkerInner) -> T) -> io::Result<T> {
        self.cell.enter().map(|call| look(&call))
    }

    pub(super) fn waker(&self) -> WorkerWaker {
        WorkerWaker { woken: self.cell.woken.clone(), wake_handle: self.cell.wake_handle.clone() }
    }

    pub(super) fn first_pool(&self) -> &Pool {
        &self.cell.first_pool
    }

    /// The descriptor of the set. The first call fires the waker, because earlier events are unknown to
    /// the program.
    #[cfg(unix)]
    pub(super) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        let is_new = self.look(|state| !state.exported.replace(true));
        if is_new.unwrap_or(false) {
            self.cell.wake_handle.notify();
        }
        // SAFETY: the set stays open as long as this owner lives, because only its drop takes the
        // state, and the end of the process never closes the set.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(self.cell.descriptor) }
    }
}

impl Drop for WorkerOwner {
    /// Closes all connections, and waits for nothing.
    fn drop(&mut self) {
        if !self.cell.gate.is_of_this_process() {
            // A copy of the middle of a visit is in no order.
            if self.cell.gate.is_visited() {
                mem::forget(self.cell.clone());
            } else if let Some(state) =
                // SAFETY: the owner alone can reach a forked child's copy.
                unsafe { self.cell.take() }
            {
                state.forget_in_child();
            }
            mem::forget(self.live.take());
        } else if self.cell.gate.enter(false).is_ok() {
            // SAFETY: the gate keeps out the end of the process and visits of the service thread, and only
            // the owner has calls.
            if let Some(state) = unsafe { self.cell.take() } {
                state.finish(false);
            }
            self.cell.gate.leave(false);
        } else {
            // The end of the process closes it.
            mem::forget((self.cell.clone(), self.live.take()));
        }
    }
}
