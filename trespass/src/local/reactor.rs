//! The reactor: it polls the worker, and wakes the tasks that wait for its events.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use super::runtime::runs;
use super::timers::Timers;
use crate::config::Config;
use crate::session::connection::Direction;
use crate::{Completion, Event, Key, Kind, Readiness, Worker, WorkerWaker};

/// The worker of a runtime, and those that wait for its events.
pub(super) struct Reactor {
    worker: RefCell<Worker>,
    /// By the tag that the events of a source carry.
    sources: RefCell<Slab<Rc<Source>>>,
    timers: Rc<Timers>,
    /// Of the last turn, for their memory.
    events: Cell<Vec<Event>>,
    due: Cell<Vec<Waker>>,
    /// The most clients of a listener that wait to be accepted.
    backlog: usize,
}

/// What events are of: a listener, or a connection from its beginning.
#[derive(Default)]
pub(super) struct Source {
    /// The task that reads or accepts.
    reads: WaitingTask,
    /// The task that writes or connects.
    writes: WaitingTask,
    /// The task that waits for completions. Room to write must not wake it, because the worker reports
    /// that with each poll until a write has used it.
    completes: WaitingTask,
    /// The tasks that wait until no written byte depends on this process.
    drains: RefCell<Vec<Waker>>,
    /// What the worker reports.
    interest: Cell<Readiness>,
    /// How a connect has ended.
    connected: RefCell<Option<io::Result<()>>>,
    /// `None` for a connection.
    accepted: Option<RefCell<Accepted>>,
    completions: RefCell<VecDeque<Completion>>,
}

/// The task that waits for one kind of event.
#[derive(Default)]
struct WaitingTask(Cell<Option<Waker>>);

/// What a listener's program has not accepted yet.
struct Accepted {
    clients: VecDeque<(Key, SocketAddr)>,
    /// Why none can be accepted now.
    error: Option<io::Error>,
    /// The most clients that wait.
    limit: usize,
}

impl Source {
    fn of_connection() -> Self {
        Self { interest: Cell::new(Readiness::BOTH), ..Self::default() }
    }

    fn of_listener(limit: usize) -> Self {
        let accepted = Accepted { clients: VecDeque::new(), error: None, limit };
        Self { accepted: Some(RefCell::new(accepted)), ..Self::default() }
    }

    fn waiting(&self, direction: Direction) -> &WaitingTask {
        match direction {
            Direction::Read => &self.reads,
            Direction::Write => &self.writes,
        }
    }

    pub(super) fn connected(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        match self.connected.take() {
            Some(result) => Poll::Ready(result),
            None => self.writes.pending(context),
        }
    }

    pub(super) fn accepted(&self, context: &Context<'_>) -> Poll<io::Result<(Key, SocketAddr)>> {
        if let Some(accepted) = &self.accepted {
            let accepted = &mut *accepted.borrow_mut();
            let next = accepted.clients.pop_front().map(Ok).or_else(|| accepted.error.take().map(Err));
            if let Some(next) = next {
                return Poll::Ready(next);
            }
        }
        self.reads.pending(context)
    }

    /// Whether blocks have returned that no task has taken.
    pub(super) fn has_completions(&self) -> bool {
        !self.completions.borrow().is_empty()
    }

    pub(super) fn completion(&self, context: &Context<'_>) -> Poll<Completion> {
        let completion = self.completions.borrow_mut().pop_front();
        completion.map_or_else(|| self.completes.pending(context), Poll::Ready)
    }
}

impl WaitingTask {
    /// Has the next event wake the task.
    fn pending<T>(&self, context: &Context<'_>) -> Poll<T> {
        let waker = match self.0.take() {
            Some(known) if known.will_wake(context.waker()) => known,
            _ => context.waker().clone(),
        };
        self.0.set(Some(waker));
        Poll::Pending
    }

    /// Takes the waker of the task. Returns whether one waits.
    fn wake(&self, due: &mut Vec<Waker>) -> bool {
        let waker = self.0.take();
        let found = waker.is_some();
        due.extend(waker);
        found
    }
}

impl Reactor {
    pub(super) fn new(config: &Config) -> io::Result<Self> {
        Ok(Self {
            worker: RefCell::new(Worker::new(config)?),
            sources: RefCell::default(),
            timers: Rc::default(),
            events: Cell::default(),
            due: Cell::default(),
            backlog: config.backlog as usize,
        })
    }

    pub(super) fn waker(&self) -> WorkerWaker {
        self.worker.borrow().waker()
    }

    pub(super) fn timers(&self) -> Rc<Timers> {
        self.timers.clone()
    }

    /// The worker, for a call that does not wait. No task runs meanwhile.
    pub(super) fn worker(&self) -> RefMut<'_, Worker> {
        self.worker.borrow_mut()
    }

    /// Polls the worker, and wakes the tasks whose event or time has come. It sleeps for that time at
    /// most.
    pub(super) fn turn(&self, time: Option<Duration>) -> io::Result<()> {
        let time = time.or_else(|| self.timers.time_left());
        let (mut events, mut due) = (self.events.take(), self.due.take());
        let polled = self.worker.borrow_mut().poll(&mut events, time);
        for event in events.drain(..) {
            self.take_event(event, &mut due);
        }
        self.timers.take_due(&mut due);
        // Nothing is borrowed here, because a waker may be the last owner of its task.
        due.drain(..).for_each(Waker::wake);
        self.events.set(events);
        self.due.set(due);
        polled
    }

    fn take_event(&self, event: Event, due: &mut Vec<Waker>) {
        match event {
            Event::Ready { key, tag, readiness } => self.take_readiness(key, tag, readiness, due),
            Event::Completed { tag, completion, .. } => {
                // Without its source, the connection is closed, and nobody wants the block.
                let Some(source) = self.source(tag) else { return };
                source.completions.borrow_mut().push_back(completion);
                source.completes.wake(due);
            }
            Event::Connected { tag, .. } => {
                let Some(source) = self.source(tag) else { return };
                source.connected.replace(Some(Ok(())));
                source.writes.wake(due);
            }
            Event::Accepted { tag, key, peer, .. } => self.take_client(tag, key, peer, due),
            Event::Failed { tag, error, .. } => {
                let Some(source) = self.source(tag) else { return };
                match &source.accepted {
                    Some(accepted) => accepted.borrow_mut().error = Some(error),
                    None => drop(source.connected.replace(Some(Err(error)))),
                }
                source.reads.wake(due);
                source.writes.wake(due);
            }
        }
    }

    fn take_client(&self, tag: u64, key: Key, peer: SocketAddr, due: &mut Vec<Waker>) {
        let source = self.source(tag);
        let place = source.as_ref().and_then(|source| source.accepted.as_ref()).filter(|accepted| {
            let accepted = accepted.borrow();
            accepted.clients.len() < accepted.limit
        });
        let (Some(source), Some(place)) = (&source, place) else {
            tracing::warn!(%peer, "is reset: the listener was dropped, or its program does not accept");
            return self.worker().close(key);
        };
        // Until the program accepts it, its bytes are no event. It has not ended yet.
        let _ = self.worker().set_interest(key, Readiness::NONE);
        place.borrow_mut().clients.push_back((key, peer));
        source.reads.wake(due);
    }

    /// Wakes those that wait. What nobody waits for is not reported again until somebody does.
    fn take_readiness(&self, key: Key, tag: u64, readiness: Readiness, due: &mut Vec<Waker>) {
        let Some(source) = self.source(tag) else { return };
        if readiness.is_none() {
            // What ends a wait of `Worker::try_drain`.
            due.append(&mut source.drains.borrow_mut());
        }
        let mut interest = source.interest.get();
        if readiness.readable && !source.reads.wake(due) {
            interest.readable = false;
        }
        if readiness.writable && !source.writes.wake(due) {
            interest.writable = false;
        }
        self.set_interest(key, &source, interest);
    }

    fn set_interest(&self, key: Key, source: &Source, interest: Readiness) {
        // The key of a connection that has ended is no longer valid, and has no events.
        if interest != source.interest.get() && self.worker().set_interest(key, interest).is_ok() {
            source.interest.set(interest);
        }
    }

    /// Makes a call in this direction, and waits if it would block.
    pub(super) fn poll_call<T>(
        &self,
        handle: &SourceHandle,
        direction: Direction,
        context: &Context<'_>,
        call: impl FnOnce(&mut Worker, Key) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let SourceHandle { key, source, .. } = handle;
        let outcome = call(&mut self.worker(), *key);
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.check_runs()?;
                let mut interest = source.interest.get();
                match direction {
                    Direction::Read => interest.readable = true,
                    Direction::Write => interest.writable = true,
                }
                self.set_interest(*key, source, interest);
                source.waiting(direction).pending(context)
            }
            done => Poll::Ready(done),
        }
    }

    /// Finds whether any written byte depends on this process, and waits if one does.
    pub(super) fn poll_drain(&self, handle: &SourceHandle, context: &Context<'_>) -> Poll<io::Result<()>> {
        let drained = self.worker().try_drain(handle.key);
        match drained {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.check_runs()?;
                let (waker, drains) = (context.waker(), &handle.source.drains);
                if !drains.borrow().iter().any(|known| known.will_wake(waker)) {
                    let waker = waker.clone();
                    drains.borrow_mut().push(waker);
                }
                Poll::Pending
            }
            done => Poll::Ready(done),
        }
    }

    /// A task that waits where this reactor's runtime does not run would never be woken.
    pub(super) fn check_runs(&self) -> io::Result<()> {
        if runs(self) {
            return Ok(());
        }
        Err(io::Error::other(
            "the runtime of this connection does not run here, so its events wake nobody: \
             await it within `Runtime::block_on` of the runtime that it was made in",
        ))
    }

    fn source(&self, tag: u64) -> Option<Rc<Source>> {
        // A tag of 0 is none.
        let index = usize::try_from(tag.checked_sub(1)?).ok()?;
        self.sources.borrow().get(index).cloned()
    }

    /// Connects, or takes over what the worker has accepted.
    pub(super) fn add_connection(
        &self,
        make: impl FnOnce(&mut Worker) -> io::Result<Key>,
    ) -> io::Result<SourceHandle> {
        self.add(Source::of_connection(), make)
    }

    /// Takes over an accepted client.
    pub(super) fn add_accepted(&self, key: Key) -> io::Result<SourceHandle> {
        self.add_connection(|worker| worker.set_interest(key, Readiness::BOTH).map(|()| key))
    }

    pub(super) fn listen(&self, addr: SocketAddr, kind: Kind) -> io::Result<SourceHandle> {
        self.add(Source::of_listener(self.backlog), |worker| worker.listen(addr, kind))
    }

    fn add(
        &self,
        source: Source,
        make: impl FnOnce(&mut Worker) -> io::Result<Key>,
    ) -> io::Result<SourceHandle> {
        let (mut worker, source) = (self.worker(), Rc::new(source));
        let key = make(&mut worker)?;
        let tag = self.sources.borrow_mut().insert(source.clone()) as u64 + 1;
        worker.set_tag(key, tag)?;
        Ok(SourceHandle { key, tag, source })
    }

    /// Closes what the worker has made, and forgets its source.
    pub(super) fn remove(&self, handle: &SourceHandle) {
        self.worker().close(handle.key);
        drop(self.sources.borrow_mut().try_remove((handle.tag - 1) as usize));
        if let Some(accepted) = &handle.source.accepted {
            accepted.borrow_mut().clients.drain(..).for_each(|(client, _)| self.worker().close(client));
        }
    }
}

/// What the worker has made, and its source.
pub(super) struct SourceHandle {
    pub(super) key: Key,
    /// More than 0.
    tag: u64,
    pub(super) source: Rc<Source>,
}
