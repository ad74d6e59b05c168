//! Descriptors in tokio's set, and the tasks that wait for them.

use std::future::{Future as _, poll_fn};
use std::io;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::sync::Notify;
use ::tokio::sync::futures::Notified;
use ::tokio::task::{self, coop, yield_now};
use atomic_waker::AtomicWaker;

use super::looks::Looks;
use crate::session::connection::Direction;
use crate::session::readiness::Readiness;
use crate::session::tasks::WakeTasks;

/// What has a descriptor that becomes readable.
///
/// # Safety
///
/// The descriptor is open, and always the same, as long as the value exists, wherever it is moved.
pub(super) unsafe trait Descriptor: AsRawFd {}

/// A value in the set of the runtime that made it.
pub(super) struct Registered<T: Descriptor>(AsyncFd<T>);

impl<T: Descriptor> Registered<T> {
    /// Adds the descriptor to the runtime's set.
    ///
    /// # Panics
    ///
    /// The caller is in no runtime that has I/O.
    pub(super) fn new(value: T) -> io::Result<Self> {
        // SAFETY: the descriptor stays open and the same, by the contract of `Descriptor`.
        let descriptor = unsafe { AsyncFd::register_with_interest(value, Interest::READABLE) }?;
        Ok(Self(descriptor))
    }

    pub(super) fn get(&self) -> &T {
        self.0.get_ref()
    }

    pub(super) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// Takes the descriptor out of the set.
    pub(super) fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// Waits until the descriptor is readable.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }
}

/// A connection or a listener in the set of a runtime.
///
/// An event may concern the task that reads and the one that writes, and tokio keeps one waker for it:
/// that of [`Tasks`], which wakes both. Calls wake the tasks for what they leave. The two kinds of
/// connections that a listener accepts are such directions, too.
pub(super) struct Connected<T: Descriptor> {
    registered: Registered<T>,
    tasks: Arc<Tasks>,
    waker: Waker,
    looks: Looks,
}

/// The tasks of both directions.
#[derive(Default)]
pub(super) struct Tasks {
    read: Waiting,
    write: Waiting,
}

/// The tasks of one direction.
struct Waiting {
    /// The task that polls a stream.
    waker: AtomicWaker,
    /// Those of calls that any number may make.
    others: Notify,
    /// The polling task may find something, although tokio keeps no event: the other direction has
    /// taken it.
    may_try: AtomicBool,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { waker: AtomicWaker::new(), others: Notify::new(), may_try: AtomicBool::new(true) }
    }
}

impl Waiting {
    /// The polling task has made a call. There may be more to find, of which nothing tells.
    fn called(&self) {
        self.may_try.store(true, Ordering::Release);
        self.others.notify_waiters();
    }

    fn wake(&self) {
        self.may_try.store(true, Ordering::Release);
        self.waker.wake();
        self.others.notify_waiters();
    }
}

impl Tasks {
    fn of(&self, direction: Direction) -> &Waiting {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }
}

impl WakeTasks for Tasks {
    fn wake(&self, readiness: Readiness) {
        if readiness.readable {
            self.read.wake();
        }
        if readiness.writable {
            self.write.wake();
        }
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        WakeTasks::wake(&**self, Readiness::BOTH);
    }
}

impl<T: Descriptor> Connected<T> {
    /// Adds the connection to the runtime's set.
    ///
    /// # Panics
    ///
    /// The caller is in no runtime that has I/O.
    pub(super) fn new(value: T, looks: Looks) -> io::Result<Self> {
        let tasks = Arc::new(Tasks::default());
        Ok(Self { registered: Registered::new(value)?, waker: tasks.clone().into(), tasks, looks })
    }

    pub(super) fn tasks(&self) -> Arc<dyn WakeTasks> {
        self.tasks.clone()
    }

    pub(super) fn get(&self) -> &T {
        self.registered.get()
    }

    pub(super) fn get_mut(&mut self) -> &mut T {
        self.registered.get_mut()
    }

    pub(super) fn into_inner(self) -> T {
        self.registered.into_inner()
    }

    /// Whether the next call of a read is a look. Outside of a task none is: the runtime wakes whom it
    /// has let wait while it holds their list, and a waker that reads at once must not add to that.
    fn looks(&self) -> bool {
        self.looks.take() && task::try_id().is_some()
    }

    /// Makes a non-blocking call for the one task that polls a direction. If it would block, wakes the
    /// task at the next event.
    pub(super) fn poll_call<R>(
        &self,
        context: &mut Context<'_>,
        direction: Direction,
        mut call: impl FnMut(&T) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        // A task that always finds something lets others run.
        let budget = ready!(coop::poll_proceed(context));
        let waiting = self.tasks.of(direction);
        waiting.waker.register(context.waker());
        loop {
            // If nothing is ready, this keeps the waker of both.
            let ready = self.registered.0.poll_read_ready(&mut Context::from_waker(&self.waker))?;
            let may_try = waiting.may_try.swap(false, Ordering::AcqRel);
            if ready.is_pending() && !may_try {
                return Poll::Pending;
            }
            match call(self.get()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match ready {
                    Poll::Ready(mut event) => event.clear_ready(),
                    // tokio has the waker, and uses it at once if the task has run for too long.
                    Poll::Pending => return Poll::Pending,
                },
                done => {
                    budget.made_progress();
                    waiting.called();
                    return Poll::Ready(done);
                }
            }
        }
    }

    /// The same for a read. The second argument of `call` is whether it is made again without an event.
    pub(super) fn poll_read<R>(
        &self,
        context: &mut Context<'_>,
        mut call: impl FnMut(&T, bool) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        if self.looks() {
            let budget = ready!(coop::poll_proceed(context));
            let waiting = &self.tasks.read;
            match call(self.get(), true) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.looks.found_nothing();
                    waiting.may_try.store(true, Ordering::Release);
                    // Wakes the task when the others have run.
                    let _ = pin!(yield_now()).poll(context);
                    return Poll::Pending;
                }
                done => {
                    budget.made_progress();
                    waiting.called();
                    self.looks.found();
                    return Poll::Ready(done);
                }
            }
        }
        let done = ready!(self.poll_call(context, Direction::Read, |socket| call(socket, false)));
        self.looks.found();
        Poll::Ready(done)
    }

    /// Makes a non-blocking call once. What it leaves may be what others wait for.
    pub(super) fn try_call<R>(
        &self,
        direction: Direction,
        call: impl FnOnce(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let done = call(self.get());
        if done.is_ok() {
            self.tasks.of(direction).wake();
        }
        done
    }

    /// Makes a non-blocking call, again at each event while it would block. Any number of tasks may do
    /// that.
    pub(super) async fn call<R>(
        &self,
        direction: Direction,
        mut call: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            let mut told = pin!(self.tasks.of(direction).others.notified());
            told.as_mut().enable();
            coop::consume_budget().await;
            match self.try_call(direction, &mut call) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
                done => return done,
            }
            self.told_or_event(told).await?;
        }
    }

    /// The same for a read. The second argument of `call` is whether it is made again without an event.
    pub(super) async fn read<R>(&self, mut call: impl FnMut(&T, bool) -> io::Result<R>) -> io::Result<R> {
        while self.looks() {
            coop::consume_budget().await;
            match self.try_call(Direction::Read, |socket| call(socket, true)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.looks.found_nothing();
                    yield_now().await;
                }
                done => {
                    self.looks.found();
                    return done;
                }
            }
        }
        let done = self.call(Direction::Read, |socket| call(socket, false)).await;
        self.looks.found();
        done
    }

    /// The same for a call through `&mut`.
    pub(super) async fn call_mut<R>(
        &mut self,
        direction: Direction,
        mut call: impl FnMut(&mut T) -> io::Result<R>,
    ) -> io::Result<R> {
        let tasks = self.tasks.clone();
        loop {
            let mut told = pin!(tasks.of(direction).others.notified());
            told.as_mut().enable();
            coop::consume_budget().await;
            match call(self.get_mut()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
                done => {
                    // The call may have taken the event that a poll of the stream waits for.
                    tasks.of(direction).may_try.store(true, Ordering::Release);
                    return done;
                }
            }
            self.told_or_event(told).await?;
        }
    }

    /// Waits until the task is told, or an event comes that tokio keeps. That is for all tasks.
    async fn told_or_event(&self, mut told: Pin<&mut Notified<'_>>) -> io::Result<()> {
        poll_fn(|context| {
            if told.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let event = self.registered.0.poll_read_ready(&mut Context::from_waker(&self.waker));
            ready!(event)?.clear_ready();
            WakeTasks::wake(&*self.tasks, Readiness::BOTH);
            Poll::Ready(Ok(()))
        })
        .await
    }
}
