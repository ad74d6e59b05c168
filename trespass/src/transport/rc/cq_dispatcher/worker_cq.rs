//! The completion queue of a worker, with its lock.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use sideway::ibverbs::queue_pair::QueuePair;

use super::{CqDispatcher, EntryOwner, QueuePairEntry, QueuePairs, WorkCompletion};
use crate::protocol::Lease;
use crate::transport::rc::draining::drain;
use crate::transport::rc::path::QpParameters;
use crate::transport::rc::queue_pair::{DRAIN, RcQueuePair};
use crate::transport::rc::shared_recv_queue::SharedRecvQueue;
use crate::transport::rc::wr_id::GENERATIONS;
use crate::transport::rc::{DeviceBlock, RdmaDevice};
use crate::wire::Unavailable;

/// The pause between two polls for draining pairs in a worker, whose thread also serves
/// connections.
const WORKER_DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The completion queue that a worker's queue pairs share. It is created with the first of them.
pub(crate) struct WorkerCq<B: DeviceBlock>(Arc<WorkerCqCell<B>>);

struct WorkerCqCell<B: DeviceBlock>(Mutex<Option<CqDispatcher<B>>>);

impl<B: DeviceBlock> Drop for WorkerCqCell<B> {
    fn drop(&mut self) {
        let dispatcher = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        dispatcher.take().into_iter().for_each(drain);
    }
}

impl<B: DeviceBlock> Default for WorkerCq<B> {
    fn default() -> Self {
        Self(Arc::new(WorkerCqCell(Mutex::new(None))))
    }
}

impl<B: DeviceBlock> Clone for WorkerCq<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// The place to which the completions of a queue pair go: a worker's completion queue, and an index
/// that identifies the connection in that worker.
pub(crate) struct CqSlot<B: DeviceBlock> {
    pub(in crate::transport::rc) worker_cq: WorkerCq<B>,
    pub(in crate::transport::rc) index: u32,
}

impl<B: DeviceBlock> Clone for CqSlot<B> {
    fn clone(&self) -> Self {
        Self { worker_cq: self.worker_cq.clone(), index: self.index }
    }
}

impl<B: DeviceBlock> WorkerCq<B> {
    fn lock(&self) -> MutexGuard<'_, Option<CqDispatcher<B>>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a poll is cheap, and may find something: connections use the completion queue, and none
    /// of their queue pairs drains.
    pub(crate) fn is_worth_a_look(&self) -> bool {
        self.lock().as_ref().is_some_and(|dispatcher| match &dispatcher.queue_pairs {
            QueuePairs::ManyQueuePairs(many) => {
                !dispatcher.broken && many.draining.is_empty() && !many.pairs.is_empty()
            }
            QueuePairs::One(_) => false,
        })
    }

    /// The slot for the connection that the worker knows by this index.
    pub(crate) fn slot(&self, index: u32) -> CqSlot<B> {
        CqSlot { worker_cq: self.clone(), index }
    }

    /// Registers the completion channel under `token`, once the completion queue exists. If that
    /// fails, the completion queue is unusable for all its queue pairs.
    pub(crate) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        let mut dispatcher = self.lock();
        let Some(dispatcher) = dispatcher.as_mut() else { return Ok(()) };
        if let QueuePairs::ManyQueuePairs(many) = &mut dispatcher.queue_pairs
            && !std::mem::replace(&mut many.registered, true)
        {
            dispatcher.register(registry, token).inspect_err(|_| dispatcher.broken = true)?;
        }
        Ok(())
    }

    /// The completion channel was reported readable.
    pub(crate) fn on_event(&self) {
        if let Some(dispatcher) = self.lock().as_mut() {
            dispatcher.on_event();
        }
    }

    /// Polls all completions and passes each to `each`, with the slot of its owner; then destroys
    /// drained pairs. Returns whether any completion arrived. An error is returned only once; after
    /// it the completion queue is unusable for all its queue pairs.
    pub(crate) fn poll(&self, each: impl FnMut(u32, WorkCompletion<B>)) -> io::Result<bool> {
        let mut dispatcher = self.lock();
        let Some(dispatcher) = dispatcher.as_mut() else { return Ok(false) };
        let has_buried =
            matches!(&dispatcher.queue_pairs, QueuePairs::ManyQueuePairs(many) if !many.draining.is_empty());
        if has_buried {
            dispatcher.read_device_events();
        }
        let reaped = if dispatcher.broken {
            Ok(false)
        } else {
            dispatcher.take_events().and_then(|_| dispatcher.poll(each))
        };
        dispatcher.broken |= reaped.is_err();
        if has_buried {
            dispatcher.destroy_drained(Instant::now());
        }
        reaped
    }

    /// Arms the completion queue. Returns whether it was unarmed before: if so, poll again, because
    /// a completion may have arrived just before. Errors are the same as in [`poll`](Self::poll).
    pub(crate) fn arm(&self) -> io::Result<bool> {
        let mut dispatcher = self.lock();
        let Some(dispatcher) = dispatcher.as_mut().filter(|dispatcher| !dispatcher.broken) else {
            return Ok(false);
        };
        let armed = dispatcher.arm();
        dispatcher.broken |= armed.is_err();
        armed
    }

    /// The time of the next poll while queue pairs drain; `None` if none does.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match &self.lock().as_ref()?.queue_pairs {
            QueuePairs::ManyQueuePairs(many) if !many.draining.is_empty() => {
                Some(Instant::now() + WORKER_DRAIN_POLL_INTERVAL)
            }
            _ => None,
        }
    }

    /// Creates a queue pair in this completion queue. `None` if the queue has no room, has failed,
    /// or belongs to another device; the pair then needs a private completion queue.
    pub(in crate::transport::rc) fn create_pair(
        &self,
        device: &Arc<RdmaDevice>,
        origin: &str,
        parameters: &QpParameters,
        slot: u32,
    ) -> Result<Option<Box<RcQueuePair<B>>>, Unavailable> {
        let mut dispatcher = self.lock();
        let dispatcher = match &mut *dispatcher {
            Some(dispatcher) if !dispatcher.is_stale(device) => dispatcher,
            place => place.insert(CqDispatcher::of_many(device)?),
        };
        let needs = RcQueuePair::<B>::completions(parameters, parameters.shared_receives.is_some());
        if dispatcher.broken || !Arc::ptr_eq(&dispatcher.device, device) {
            return Ok(None);
        }
        if let (None, Some(size)) = (&dispatcher.shared_recv_queue, parameters.shared_receives) {
            dispatcher.shared_recv_queue = Some(SharedRecvQueue::new(device, size)?);
        }
        if !dispatcher.grow_for(needs) {
            return Ok(None);
        }
        let CqDispatcher { cq, shared_recv_queue, queue_pairs: QueuePairs::ManyQueuePairs(many), .. } =
            dispatcher
        else {
            return Ok(None);
        };
        many.generation = (many.generation + 1) % GENERATIONS;
        let generation = many.generation;
        let pair = RcQueuePair::new(device, origin, parameters, cq, shared_recv_queue.as_ref(), generation)?;
        let (lease, owner) = (Lease::default(), EntryOwner::CqSlot(slot));
        many.pairs.insert(pair.qp.qp_number(), QueuePairEntry { generation, needs, lease, owner });
        many.used += needs;
        Ok(Some(Box::new(pair)))
    }

    /// Takes over a queue pair whose owner goes, stops it, and destroys it when its requests have
    /// completed.
    pub(in crate::transport::rc) fn start_draining(&self, mut pair: Box<RcQueuePair<B>>) {
        pair.stop();
        let number = pair.qp.qp_number();
        let mut dispatcher = self.lock();
        let Some(CqDispatcher { queue_pairs: QueuePairs::ManyQueuePairs(many), .. }) = dispatcher.as_mut()
        else {
            debug_assert!(false, "a pair drains where it was made");
            return pair.give_up();
        };
        match many.pairs.get_mut(number) {
            Some(entry) => entry.owner = EntryOwner::Draining(pair),
            None => return pair.give_up(),
        }
        many.draining.push((number, Instant::now() + DRAIN));
    }

    /// See [`CqDispatcher::reserve_receives`].
    pub(in crate::transport::rc) fn reserve_receives(&self, pair: u32, first: u32) -> Result<(), u32> {
        self.lock().as_mut().map_or(Ok(()), |dispatcher| dispatcher.reserve_receives(pair, first))
    }

    /// See [`CqDispatcher::receives_held`].
    pub(in crate::transport::rc) fn receives_held(&self, pair: u32) -> u32 {
        self.lock().as_mut().map_or(0, |dispatcher| dispatcher.receives_held(pair))
    }

    /// See [`CqDispatcher::grant_receives`].
    pub(in crate::transport::rc) fn grant_receives(
        &self,
        pair: u32,
        wanted: u32,
        blocks: impl FnMut() -> Option<B>,
    ) -> io::Result<u32> {
        self.lock().as_mut().map_or(Ok(0), |dispatcher| dispatcher.grant_receives(pair, wanted, blocks))
    }

    /// The numbers of shared receives that are posted, that are promised, and that are possible.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> Option<[u32; 3]> {
        let dispatcher = self.lock();
        let ledger = &dispatcher.as_ref()?.shared_recv_queue.as_ref()?.ledger;
        let (posted, promised) = ledger.totals();
        Some([posted, promised, ledger.size()])
    }

    /// The number of queue pairs, and how many of them are draining.
    #[cfg(test)]
    pub(crate) fn pairs(&self) -> (usize, usize) {
        match self.lock().as_ref().map(|dispatcher| &dispatcher.queue_pairs) {
            Some(QueuePairs::ManyQueuePairs(many)) => (many.pairs.len(), many.draining.len()),
            _ => (0, 0),
        }
    }
}
