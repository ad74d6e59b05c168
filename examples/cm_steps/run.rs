//! Connections that are made together, step by step.
//!
//! As in C, one thread goes through the steps, another takes the events, and others do the work.

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

/// What a run is about.
#[derive(Clone, Copy, Debug)]
pub struct StepOptions {
    /// How many connections.
    pub connections: u32,
    /// How many threads do the work.
    pub threads: u32,
    /// How long an address or a route may take to be found.
    pub timeout: Duration,
    /// How often to look for an address or a route again.
    pub retries: u32,
    /// Connections without queue pairs: the number that the first pretends to have.
    pub pretended: Option<u32>,
}

/// Where a client's connections go.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The address to bind to.
    pub source: Option<SocketAddr>,
    /// The server.
    pub server: SocketAddr,
}

/// What a side does.
#[derive(Clone, Copy)]
pub(super) struct RunHandlers {
    /// Where it connects to; `None` of a server.
    pub(super) route: Option<Route>,
    /// Something that is to be done for a connection.
    pub(super) work: fn(&StepRun<'_>, StepJob) -> Result<(), Failure>,
    /// Something has happened to one.
    pub(super) event: fn(&StepRun<'_>, &Event) -> Result<(), Failure>,
}

/// A connection, perhaps not yet.
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

    /// Its identifier.
    pub(super) fn with_id<T>(
        &self,
        work: impl FnOnce(&Identifier) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match &*self.id() {
            Some(id) => work(id),
            None => Err(Failure::work("a connection has no identifier")),
        }
    }

    /// Does a step, and takes its time.
    pub(super) fn timed<T>(&self, step: CmStep, work: impl FnOnce() -> T) -> T {
        self.times.start(step);
        let result = work();
        self.times.end(step);
        result
    }
}

/// What all runs have in common.
pub struct RunContext {
    /// Where events come from.
    pub channel: EventChannel,
    verbs: OnceLock<(ProtectionDomain, GenericCompletionQueue)>,
    opening: Mutex<()>,
}

impl RunContext {
    /// With nothing made of a device yet.
    pub fn new(channel: EventChannel) -> Self {
        Self { channel, verbs: OnceLock::new(), opening: Mutex::new(()) }
    }

    /// What all connections share of the device, made with the first of them.
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

    /// A queue pair of an identifier's device.
    pub(super) fn create_qp(&self, id: &Identifier) -> Result<BasicQueuePair, Failure> {
        let (pd, cq) = self.verbs(id)?;
        let mut builder = pd.create_qp_builder();
        builder.setup_max_send_wr(1).setup_max_recv_wr(1).setup_max_send_sge(1).setup_max_recv_sge(1);
        Ok(builder.setup_sq_sig_all(true).setup_send_cq(cq).setup_recv_cq(cq).build()?)
    }
}

/// What the connections share that are made together.
pub struct StepRun<'shared> {
    /// What it is about.
    pub options: StepOptions,
    pub(super) context: &'shared RunContext,
    pub(super) handlers: RunHandlers,
    pub(super) connections: Vec<PendingConnection>,
    /// Of all connections together.
    pub(super) times: Times,
    /// How many connections are done with a step.
    completed: [AtomicU32; CmStep::COUNT],
    pub(super) requests: AtomicUsize,
    pub(super) hung_up: AtomicU32,
    next_pretended: AtomicU32,
    jobs: JobQueue,
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl<'shared> StepRun<'shared> {
    /// So many connections, of which there is nothing yet.
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

    /// Goes through the steps, beside the threads that take the events and do the work.
    ///
    /// # Errors
    ///
    /// What fails first in any of them.
    pub(super) fn go(&self, steps: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        // What a thread needs to begin is no part of any step.
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
            // It counts to one, which always fits.
            let _ = rustix::io::write(&end, &1u64.to_ne_bytes());
        });
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    /// Takes the events of all connections, until it is told to end.
    fn handle_events(&self, end: &OwnedFd) -> Result<(), Failure> {
        let channel = &self.context.channel;
        loop {
            // An event stays where it was put: it is as large as two cache lines.
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

    /// Remembers the first failure.
    #[inline]
    fn note(&self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            self.failed.store(true, Ordering::Relaxed);
        }
    }

    /// Gives the threads something to do.
    pub fn push(&self, job: StepJob) {
        self.jobs.push(job);
    }

    /// A connection is done with a step; how many are.
    pub fn done(&self, step: CmStep) -> u32 {
        self.completed[step as usize].fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Gives way until all are done with a step.
    ///
    /// # Errors
    ///
    /// Something fails.
    pub(super) fn wait_for(&self, step: CmStep) -> Result<(), Failure> {
        while !self.all_completed(step) {
            if self.failed.load(Ordering::Relaxed) {
                // What it was is remembered already.
                return Err(Failure::Finished);
            }
            // A thread leads on: it is looked after again and again, as C does.
            thread::yield_now();
        }
        Ok(())
    }

    /// Takes events until all are done with a step, where no other thread does.
    ///
    /// # Errors
    ///
    /// Something fails.
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

    /// What the peer is told of a connection's queue pair, or of one that is only pretended.
    pub(super) fn parameter(&self, connection: &PendingConnection, retries: u8) -> ConnectionParameter {
        let mut parameter = ConnectionParameter::new();
        parameter.setup_retry_count(retries).setup_rnr_retry_count(0);
        match &*connection.qp() {
            Some(qp) => parameter.setup_queue_pair(qp.control()),
            None => parameter.setup_qp_number(self.next_pretended.fetch_add(1, Ordering::Relaxed)),
        };
        parameter
    }

    /// Brings a connection's queue pair to a state; the two halves of it are steps of their own.
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
        // They are as large as three cache lines, and stay where they are written.
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

/// Something to do for a connection of this number.
#[derive(Clone, Copy, Debug)]
pub struct StepJob {
    /// What.
    pub task: StepTask,
    /// For which connection.
    pub connection: usize,
}

/// What the threads do.
#[derive(Clone, Copy, Debug)]
pub enum StepTask {
    /// Looks for the address.
    ResolveAddr,
    /// Looks for the route.
    ResolveRoute,
    /// Makes a queue pair.
    CreateQp,
    /// Brings it to `Init`.
    Init,
    /// The peer has accepted.
    Establish,
    /// The peer wants to connect.
    Accept,
    /// Hangs up.
    Disconnect,
    /// The peer has hung up.
    HangUp,
}

/// What is to be done, in order.
#[derive(Default)]
struct JobQueue {
    waiting: Mutex<QueuedJobs>,
    more: Condvar,
}

#[derive(Default)]
struct QueuedJobs {
    jobs: VecDeque<StepJob>,
    /// Who sleeps, and has not been woken.
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
        // Whoever is woken is not woken again.
        waiting.sleepers -= u32::from(somebody_sleeps);
        drop(waiting);
        // That is a system call even where nobody sleeps.
        if somebody_sleeps {
            self.more.notify_one();
        }
    }

    /// Sleeps until there is something; `None` at the end.
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
