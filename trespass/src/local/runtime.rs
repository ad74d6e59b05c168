//! The runtime: an executor, and the reactor that wakes its tasks.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use async_executor::{LocalExecutor, Task};

use super::reactor::Reactor;
use crate::WorkerWaker;
use crate::config::Config;

/// An executor of tasks on one thread, with a worker for their connections.
///
/// A drop drops the tasks, and closes the connections as the drop of a [`Worker`](crate::Worker) does.
/// What is left of a connection then fails its calls.
pub struct Runtime {
    // Dropped first, because tasks have connections of the reactor.
    executor: Rc<LocalExecutor<'static>>,
    reactor: Rc<Reactor>,
    wake_up: Arc<WakeUp>,
}

/// What tasks of this thread use.
#[derive(Clone)]
pub(super) struct Current {
    executor: Rc<LocalExecutor<'static>>,
    reactor: Rc<Reactor>,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// The runtime of this thread.
#[track_caller]
pub(super) fn current() -> Current {
    let current = CURRENT.with_borrow(Clone::clone);
    current.unwrap_or_else(|| panic!("no runtime runs on this thread: call this within `Runtime::block_on`"))
}

/// Whether the runtime of this reactor runs on this thread now.
pub(super) fn runs(reactor: &Reactor) -> bool {
    // A thread that ends runs no runtime.
    let running = CURRENT.try_with(|current| {
        current.borrow().as_ref().is_some_and(|current| ptr::eq(&*current.reactor, reactor))
    });
    running.unwrap_or(false)
}

impl Current {
    pub(super) fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    pub(super) fn timers(&self) -> Rc<super::timers::Timers> {
        self.reactor.timers()
    }
}

/// Makes a runtime the one of this thread while it exists.
struct Entered;

impl Entered {
    fn new(runtime: &Runtime) -> io::Result<Self> {
        CURRENT.with_borrow_mut(|current| match current {
            Some(_) => Err(io::Error::other(
                "a runtime runs on this thread already: `block_on` within a task would hold up all others",
            )),
            none => {
                *none =
                    Some(Current { executor: runtime.executor.clone(), reactor: runtime.reactor.clone() });
                Ok(Self)
            }
        })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let left = CURRENT.with_borrow_mut(Option::take);
        drop(left);
    }
}

impl Runtime {
    /// Makes a runtime for this thread, whose connections have these parameters.
    ///
    /// # Errors
    ///
    /// Those of [`Worker::new`](crate::Worker::new).
    pub fn new(config: &Config) -> io::Result<Self> {
        let reactor = Rc::new(Reactor::new(config)?);
        let wake_up = Arc::new(WakeUp {
            thread: thread::current().id(),
            is_due: AtomicBool::new(false),
            worker: reactor.waker(),
        });
        Ok(Self { executor: Rc::new(LocalExecutor::new()), reactor, wake_up })
    }

    /// Runs a future, and the tasks that it spawns, until it is done. Further tasks stay, and go on with
    /// the next call.
    ///
    /// # Errors
    ///
    /// The system cannot wait, or a runtime runs on this thread already.
    ///
    /// # Panics
    ///
    /// With the panic of a task.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> io::Result<T> {
        let _entered = Entered::new(self)?;
        let waker = Waker::from(Arc::clone(&self.wake_up));
        let mut context = Context::from_waker(&waker);
        let mut running = pin!(self.executor.run(future));
        loop {
            self.wake_up.is_due.store(false, Ordering::Relaxed);
            if let Poll::Ready(value) = running.as_mut().poll(&mut context) {
                return Ok(value);
            }
            let is_due = self.wake_up.is_due.load(Ordering::Relaxed);
            self.reactor.turn(is_due.then_some(Duration::ZERO))?;
        }
    }

    /// Spawns a task. It runs during [`block_on`](Self::block_on).
    pub fn spawn_local<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        JoinHandle(Some(self.executor.spawn(future)))
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("thread", &self.wake_up.thread).finish_non_exhaustive()
    }
}

/// Wakes the executor. Its clones may be on any thread.
struct WakeUp {
    thread: ThreadId,
    /// A task of this thread is ready, so that the thread must not sleep.
    is_due: AtomicBool,
    worker: WorkerWaker,
}

impl Wake for WakeUp {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if thread::current().id() == self.thread {
            self.is_due.store(true, Ordering::Relaxed);
        } else {
            self.worker.wake();
        }
    }
}

/// Spawns a task of this thread's runtime.
///
/// # Panics
///
/// Outside of [`Runtime::block_on`].
#[track_caller]
pub fn spawn_local<T: 'static>(future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    JoinHandle(Some(current().executor.spawn(future)))
}

/// A spawned task. Awaiting it returns its result. A drop leaves the task alone, which goes on.
///
/// It is awaited in the runtime that it was spawned in. Once that runtime is dropped, so is the task,
/// and awaiting it panics.
#[derive(Debug)]
pub struct JoinHandle<T>(Option<Task<T>>);

impl<T> JoinHandle<T> {
    /// Whether the task is done.
    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(Task::is_finished)
    }

    /// Drops the task's future. Returns the result if it was done before.
    pub async fn cancel(mut self) -> Option<T> {
        match self.0.take() {
            Some(task) => task.cancel().await,
            None => None,
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let task = self.0.as_mut().expect("only a drop and `cancel` take it");
        Pin::new(task).poll(context)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}
