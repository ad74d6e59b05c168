//! Connections that are opened together, step by step.
//!
//! As in the C program, one thread performs the steps, another handles the events, and worker
//! threads do the work of each connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Barrier, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{BasicQueuePair, QueuePair, QueuePairAttribute, QueuePairState};
use sideway::rdmacm::{ConnectionParameter, Event, EventChannel, Identifier};

use super::steps::{CmStep, Times};
use crate::program::Failure;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct StepOptions {
    /// The number of connections.
    pub connections: u32,
    /// The number of worker threads.
    pub threads: u32,
    /// The time limit for resolving an address or a route.
    pub timeout: Duration,
    /// The number of retries of a failed resolution.
    pub retries: u32,
    /// For connections without queue pairs: the queue pair number that the first one reports to the
    /// peer.
    pub pretended: Option<u32>,
}

/// The source and destination of a client's connections.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The address to bind to.
    pub source: Option<SocketAddr>,
    /// The server's address.
    pub server: SocketAddr,
}

/// The behaviour of one side.
#[derive(Clone, Copy)]
pub(super) struct RunHandlers {
    /// The destination; `None` for a server.
    pub(super) route: Option<Route>,
    /// Runs a job on a worker thread.
    pub(super) work: fn(&StepRun<'_>, StepJob) -> Result<(), Failure>,
    /// Handles an event.
    pub(super) event: fn(&StepRun<'_>, &Event) -> Result<(), Failure>,
}

/// A connection in any state.
#[derive(Default)]
pub struct PendingConnection {
    id: Mutex<Option<Identifier>>,
    qp: Mutex<Option<BasicQueuePair>>,
    pub(super) times: Times,
    pub(super) attempts: AtomicU32,
}

impl PendingConnection {
    pub(super) fn id(&self) -> MutexGuard<'_, Option<Identifier>> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn qp(&self) -> MutexGuard<'_, Option<BasicQueuePair>> {
        self.qp.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with its identifier.
    pub(super) fn with_id<T>(
        &self,
        work: impl FnOnce(&Identifier) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match &*self.id() {
            Some(id) => work(id),
            None => Err(Failure::work("a connection has no identifier")),
        }
    }

    /// Performs a step and records its time.
    pub(super) fn timed<T>(&self, step: CmStep, work: impl FnOnce() -> T) -> T {
        self.times.start(step);
        let result = work();
        self.times.end(step);
        result
    }
}

/// The objects that all runs share.
pub struct RunContext {
    /// The event channel.
    pub channel: EventChannel,
    verbs: OnceLock<(ProtectionDomain, GenericCompletionQueue)>,
    opening: Mutex<()>,
}

impl RunContext {
    /// A context without verbs objects.
    pub fn new(channel: EventChannel) -> Self {
        Self { channel, verbs: OnceLock::new(), opening: Mutex::new(()) }
    }

    /// The protection domain and completion queue of all connections, created on first use.
    pub(super) fn verbs(
        &self,
        id: &Identifier,
    ) -> Result<&(ProtectionDomain, GenericCompletionQueue), Failure> {
        if let Some(verbs) = self.verbs.get() {
            return Ok(verbs);
        }
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(verbs) = self.verbs.get() {
            return Ok(verbs);
        }
        let context = id.get_device_context()?;
        let verbs = (context.alloc_pd()?, context.create_cq_builder().setup_cqe(1).build_generic()?);
        Ok(self.verbs.get_or_init(|| verbs))
    }

    /// Creates a queue pair on the identifier's device.
    pub(super) fn create_qp(&self, id: &Identifier) -> Result<BasicQueuePair, Failure> {
        let (pd, cq) = self.verbs(id)?;
        let mut builder = pd.create_qp_builder();
        builder.setup_max_send_wr(1).setup_max_recv_wr(1).setup_max_send_sge(1).setup_max_recv_sge(1);
        Ok(builder.setup_sq_sig_all(true).setup_send_cq(cq).setup_recv_cq(cq).build()?)
    }
}

/// A run: connections that perform each step together.
pub struct StepRun<'shared> {
    /// Its parameters.
    pub options: StepOptions,
    pub(super) context: &'shared RunContext,
    pub(super) handlers: RunHandlers,
    pub(super) connections: Vec<PendingConnection>,
    /// The times of all connections together.
    pub(super) times: Times,
    /// The number of connections that have completed each step.
    completed: [AtomicU32; CmStep::COUNT],
    pub(super) requests: AtomicUsize,
    pub(super) hung_up: AtomicU32,
    next_pretended: AtomicU32,
    jobs: JobQueue,
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl<'shared> StepRun<'shared> {
    /// A run with unconnected connections.
    pub(super) fn new(options: StepOptions, handlers: RunHandlers, context: &'shared RunContext) -> Self {
        Self {
            options,
            context,
            handlers,
            connections: (0..options.connections).map(|_| PendingConnection::default()).collect(),
            times: Times::default(),
            completed: Default::default(),
            requests: AtomicUsize::new(0),
            hung_up: AtomicU32::new(0),
            next_pretended: AtomicU32::new(options.pretended.unwrap_or_default()),
            jobs: JobQueue::default(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Performs the steps, while other threads handle the events and run the jobs.
    ///
    /// # Errors
    ///
    /// The first failure in any of the threads.
    pub(super) fn go(&self, steps: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        // Starting the threads must not count as part of a step.
        let started = Barrier::new(self.options.threads as usize + 2);
        thread::scope(|scope| {
            for _ in 0..self.options.threads {
                scope.spawn(|| {
                    started.wait();
                    while let Some(job) = self.jobs.take() {
                        self.note((self.handlers.work)(self, job));
                    }
                });
            }
            scope.spawn(|| {
                started.wait();
                self.note(self.handle_events(&end));
            });
            started.wait();
            let result = steps();
            self.note(result);
            self.jobs.end();
            // The counter becomes 1, which always succeeds.
            let _ = rustix::io::write(&end, &1u64.to_ne_bytes());
        });
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    /// Handles the events of all connections until `end` is readable.
    fn handle_events(&self, end: &OwnedFd) -> Result<(), Failure> {
        let channel = &self.context.channel;
        loop {
            // The event is handled in place, because it is as large as two cache lines.
            match channel.try_get_cm_event() {
                Ok(Some(event)) => {
                    (self.handlers.event)(self, &event)?;
                    continue;
                }
                Ok(None) => {}
                Err(error) => return Err(Failure::work(error)),
            }
            let mut ready = [PollFd::new(channel, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) if !ready[1].revents().is_empty() => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(Failure::work(error)),
            }
        }
    }

    /// Keeps the first failure.
    #[inline]
    fn note(&self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Queues a job for the worker threads.
    pub fn push(&self, job: StepJob) {
        self.jobs.push(job);
    }

    /// Records that a connection has completed a step. Returns the number of connections that have.
    pub fn done(&self, step: CmStep) -> u32 {
        self.completed[step as usize].fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Yields the processor until all connections have completed a step.
    ///
    /// # Errors
    ///
    /// Any operation fails.
    pub(super) fn wait_for(&self, step: CmStep) -> Result<(), Failure> {
        while !self.all_completed(step) {
            if self.failed.load(Ordering::Relaxed) {
                // `failure` has the reason already.
                return Err(Failure::Finished);
            }
            // A worker completes the step; like the C program, this thread polls for it.
            thread::yield_now();
        }
        Ok(())
    }

    /// Handles events on this thread until all connections have completed a step.
    ///
    /// # Errors
    ///
    /// Any operation fails.
    pub(super) fn handle_events_until(&self, step: CmStep) -> Result<(), Failure> {
        while !self.all_completed(step) {
            let event = self.context.channel.get_cm_event().map_err(Failure::work)?;
            (self.handlers.event)(self, &event)?;
        }
        Ok(())
    }

    fn all_completed(&self, step: CmStep) -> bool {
        self.completed[step as usize].load(Ordering::Acquire) >= self.options.connections
    }

    /// The parameters that announce a connection's queue pair, or a queue pair number without one.
    pub(super) fn parameter(&self, connection: &PendingConnection, retries: u8) -> ConnectionParameter {
        let mut parameter = ConnectionParameter::new();
        parameter.setup_retry_count(retries).setup_rnr_retry_count(0);
        match &*connection.qp() {
            Some(qp) => parameter.setup_queue_pair(qp.control()),
            None => parameter.setup_qp_number(self.next_pretended.fetch_add(1, Ordering::Relaxed)),
        };
        parameter
    }

    /// Changes the state of a connection's queue pair. Querying the attributes and applying them
    /// count as separate steps.
    pub(super) fn modify(
        &self,
        connection: &PendingConnection,
        state: QueuePairState,
    ) -> Result<(), Failure> {
        let (attr, modify) = match state {
            QueuePairState::Init => (CmStep::InitQpAttr, CmStep::InitQp),
            QueuePairState::ReadyToReceive => (CmStep::RtrQpAttr, CmStep::RtrQp),
            _ => (CmStep::RtsQpAttr, CmStep::RtsQp),
        };
        // The attributes are written in place, because they are as large as three cache lines.
        let mut attributes = QueuePairAttribute::new();
        connection.with_id(|id| Ok(connection.timed(attr, || id.init_qp_attr(state, &mut attributes))?))?;
        connection.timed(modify, || match &mut *connection.qp() {
            Some(qp) => qp.modify(&attributes).map_err(Failure::work),
            None => Ok(()),
        })?;
        self.done(modify);
        Ok(())
    }
}

/// A job for one connection.
#[derive(Clone, Copy, Debug)]
pub struct StepJob {
    /// The kind of job.
    pub task: StepTask,
    /// The number of the connection.
    pub connection: usize,
}

/// The kinds of jobs.
#[derive(Clone, Copy, Debug)]
pub enum StepTask {
    /// Resolves the address.
    ResolveAddr,
    /// Resolves the route, once the address is resolved.
    ResolveRoute,
    /// Creates a queue pair.
    CreateQp,
    /// Changes its state to `Init`.
    Init,
    /// Establishes the connection after the peer's accept.
    Establish,
    /// Accepts the peer's request.
    Accept,
    /// Ends the connection before the peer does.
    Disconnect,
    /// Disconnects after the peer did.
    HangUp,
}

/// The jobs that wait for a worker.
#[derive(Default)]
struct JobQueue {
    waiting: Mutex<QueuedJobs>,
    more: Condvar,
}

#[derive(Default)]
struct QueuedJobs {
    jobs: VecDeque<StepJob>,
    /// The number of sleeping workers that no job has woken yet.
    sleepers: u32,
    ended: bool,
}

impl JobQueue {
    fn waiting(&self) -> MutexGuard<'_, QueuedJobs> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: StepJob) {
        let mut waiting = self.waiting();
        waiting.jobs.push_back(job);
        let somebody_sleeps = waiting.sleepers > 0;
        // This worker is woken now, so that the next job wakes another one.
        waiting.sleepers -= u32::from(somebody_sleeps);
        drop(waiting);
        // A notification is a system call even if no worker sleeps.
        if somebody_sleeps {
            self.more.notify_one();
        }
    }

    /// Waits for a job; `None` at the end.
    fn take(&self) -> Option<StepJob> {
        let mut waiting = self.waiting();
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            if waiting.ended {
                return None;
            }
            waiting.sleepers += 1;
            waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self) {
        self.waiting().ended = true;
        self.more.notify_all();
    }
}
