//! The dispatcher of a completion queue: it passes each completion to the queue pair it belongs to.
//! A queue pair has a private [`CqDispatcher`], or shares its worker's ([`WorkerCq`]).
//!
//! A worker's dispatcher finds the owner of a completion by the queue pair number. The device
//! reuses the number of a destroyed pair, and requests may complete after their owner has gone.
//! Therefore:
//!
//! - Each `wr_id` contains the generation of its queue pair ([`wr_id`]), so that late completions
//!   of an earlier pair are dropped.
//! - When the owner of a pair goes, the pair is *drained*: it is moved to the error state, and its
//!   completions are taken as they arrive. Only then is it destroyed, together with its blocks.
//!
//! The lock of a worker's completion queue is uncontended, because a worker has one thread. It
//! exists because connections may move to other threads, and each holds a reference to the
//! completion queue. It is taken once for each poll, when a pair is created or dropped, and when
//! shared receives are granted.

mod worker_cq;

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use sideway::ibverbs::completion::{
    CompletionChannel, GenericCompletionQueue, GenericWorkCompletion, Notify, WorkCompletionStatus,
};
use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePair, QueuePairTable};

use super::draining::{Draining, drain};
use super::path::QpParameters;
use super::queue_pair::RcQueuePair;
use super::shared_recv_queue::SharedRecvQueue;
use super::wr_id::{self, WrId};
use super::{DeviceBlock, RdmaDevice};
use crate::protocol::Lease;
use crate::wire::{Cause, Unavailable};

pub(crate) use self::worker_cq::{CqSlot, WorkerCq};

/// The initial capacity of a worker's completion queue. It grows with the number of connections.
const FIRST_ROOM: u32 = 1024;
/// The generation of a queue pair with a private completion queue.
const SOLE_GENERATION: u32 = 0;

pub(super) enum CompletedRequest<B> {
    /// A send, a send of the handshake, or a receive from the pair's private receive queue.
    Own(WrId),
    /// A receive that is already out of its queue: its count (or slot index) and its block. `None`
    /// if it was not outstanding.
    Received(u32, Option<B>),
    /// A shared receive that was promised to another connection.
    Overdrawn,
}

/// A completed work request.
pub(crate) struct WorkCompletion<B> {
    pub(super) request: CompletedRequest<B>,
    pub(super) status: WorkCompletionStatus,
    pub(super) vendor: u32,
    /// The number of bytes received; 0 for a send.
    pub(super) len: usize,
    /// The immediate data of a received message.
    pub(super) immediate: Option<u32>,
}

impl<B> WorkCompletion<B> {
    #[inline(always)]
    fn of(completion: &GenericWorkCompletion<'_>, wr_id: WrId, request: CompletedRequest<B>) -> Self {
        let status = completion.status();
        let is_receive = matches!(wr_id, WrId::Receive(_));
        Self {
            request,
            immediate: if is_receive { completion.imm_data() } else { None },
            status,
            vendor: if status == WorkCompletionStatus::Success { 0 } else { completion.vendor_err() },
            len: if is_receive { completion.byte_len().unwrap_or(0) as usize } else { 0 },
        }
    }

    /// Whether it is one of a receive.
    #[inline]
    pub(super) fn is_frame(&self) -> bool {
        !matches!(self.request, CompletedRequest::Own(WrId::Send(_) | WrId::Probe))
    }

    /// The error of a failed request of this queue pair, as the reason why the path is not usable.
    pub(super) fn failure(&self, qp: &GenericQueuePair) -> Option<Unavailable> {
        let Self { status, vendor, .. } = self;
        (*status != WorkCompletionStatus::Success).then(|| {
            let hint = qp.control().hint(*status).unwrap_or(NO_HINT.into());
            let detail = format!("{status}, vendor error {vendor:#x}: {hint}");
            Unavailable::new(Cause::ProbeFailed, detail)
        })
    }
}

/// What an error says of a status without a hint.
pub(super) const NO_HINT: &str = "no more is known";

/// A completion queue and its channel, with the queue pairs that complete into it and their shared
/// receive queue.
pub(super) struct CqDispatcher<B: DeviceBlock> {
    queue_pairs: QueuePairs<B>,
    /// `None` if the queue pairs have private receive queues, or if no queue pair is left.
    shared_recv_queue: Option<SharedRecvQueue<B>>,
    cq: GenericCompletionQueue,
    channel: CompletionChannel,
    device: Arc<RdmaDevice>,
    /// The completion queue is armed: the next completion makes an event, or has made it already.
    armed: bool,
    /// The channel may have an event to read.
    may_have_event: bool,
    /// The completion queue has failed and is not used any more.
    broken: bool,
}

enum QueuePairs<B: DeviceBlock> {
    /// A single queue pair, to which every completion belongs.
    One(Lease),
    ManyQueuePairs(ManyQueuePairs<B>),
}

struct ManyQueuePairs<B: DeviceBlock> {
    pairs: QueuePairTable<QueuePairEntry<B>>,
    /// The numbers of queue pairs without an owner, each with the time when it is given up.
    draining: Vec<(u32, Instant)>,
    generation: u32,
    /// The capacity of the completion queue; `used` is the part that the queue pairs may need at
    /// one time.
    room: u32,
    used: u32,
    /// The channel is registered with the worker's poll.
    registered: bool,
}

struct QueuePairEntry<B: DeviceBlock> {
    generation: u32,
    /// The maximum number of completions of this pair that may be in the queue at one time.
    needs: u32,
    lease: Lease,
    owner: EntryOwner<B>,
}

enum EntryOwner<B: DeviceBlock> {
    CqSlot(u32),
    Draining(Box<RcQueuePair<B>>),
}

impl<B: DeviceBlock> CqDispatcher<B> {
    fn new(device: &Arc<RdmaDevice>, room: u32, queue_pairs: QueuePairs<B>) -> Result<Self, Unavailable> {
        let lacks = Cause::Resources;
        let channel = device.context().create_comp_channel();
        let channel = channel.map_err(|error| device.lacks(lacks, &error))?;
        let mut builder = device.context().create_cq_builder();
        builder.setup_cqe(room).setup_comp_channel(&channel);
        let cq = builder.build_generic().map_err(|error| device.lacks(lacks, &error))?;
        let device = Arc::clone(device);
        let shared_recv_queue = None;
        Ok(Self {
            queue_pairs,
            shared_recv_queue,
            cq,
            channel,
            device,
            armed: false,
            may_have_event: true,
            broken: false,
        })
    }

    /// The dispatcher of a single queue pair.
    pub(super) fn of_one(device: &Arc<RdmaDevice>, parameters: &QpParameters) -> Result<Self, Unavailable> {
        let room = RcQueuePair::<B>::completions(parameters, false);
        let mut dispatcher = Self::new(device, room, QueuePairs::One(Lease::default()))?;
        if parameters.shares_alone {
            dispatcher.shared_recv_queue = Some(SharedRecvQueue::new(device, parameters.rx_slots)?);
        }
        Ok(dispatcher)
    }

    fn of_many(device: &Arc<RdmaDevice>) -> Result<Self, Unavailable> {
        let room = FIRST_ROOM.min(device.limits.completions);
        let (pairs, draining) = (QueuePairTable::new(), Vec::new());
        let many = ManyQueuePairs { pairs, draining, generation: 0, room, used: 0, registered: false };
        Self::new(device, room, QueuePairs::ManyQueuePairs(many))
    }

    pub(super) fn cq(&self) -> &GenericCompletionQueue {
        &self.cq
    }

    pub(super) fn shared_recv_queue(&self) -> Option<&SharedRecvQueue<B>> {
        self.shared_recv_queue.as_ref()
    }

    /// The lease of a queue pair on the shared receives, with their queue. `None` if nothing is
    /// shared.
    fn lease(&mut self, pair: u32) -> Option<(&mut Lease, &mut SharedRecvQueue<B>)> {
        let lease = match &mut self.queue_pairs {
            QueuePairs::One(lease) => lease,
            QueuePairs::ManyQueuePairs(many) => &mut many.pairs.get_mut(pair)?.lease,
        };
        Some((lease, self.shared_recv_queue.as_mut()?))
    }

    /// Reserves `first` shared receives for a queue pair. If they do not fit, fails with the size
    /// of the shared queue.
    pub(super) fn reserve_receives(&mut self, pair: u32, first: u32) -> Result<(), u32> {
        let Some((lease, shared_recv_queue)) = self.lease(pair) else { return Ok(()) };
        if shared_recv_queue.ledger.admit(lease, first) {
            Ok(())
        } else {
            Err(shared_recv_queue.ledger.size())
        }
    }

    /// The number of shared receives that a queue pair may use.
    pub(super) fn receives_held(&mut self, pair: u32) -> u32 {
        self.lease(pair).map_or(0, |(lease, _)| lease.held())
    }

    /// Grants a queue pair up to `wanted` more shared receives, limited by the ledger and the
    /// blocks available. Returns how many.
    pub(super) fn grant_receives(
        &mut self,
        pair: u32,
        wanted: u32,
        blocks: impl FnMut() -> Option<B>,
    ) -> io::Result<u32> {
        let Some((lease, shared_recv_queue)) = self.lease(pair) else { return Ok(0) };
        let mut count = shared_recv_queue.ledger.allows(lease, wanted);
        let missing = shared_recv_queue.ledger.missing(count);
        if missing > 0 {
            let posted = shared_recv_queue.post(missing, blocks)?;
            count = count.saturating_sub(missing - posted);
        }
        shared_recv_queue.ledger.grant(lease, count);
        Ok(count)
    }

    /// Registers the completion channel under `token`.
    pub(super) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.channel.as_fd().as_raw_fd()), token, Interest::READABLE)
    }

    pub(super) fn deregister(&self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut SourceFd(&self.channel.as_fd().as_raw_fd()))
    }

    /// The descriptor of the completion channel.
    pub(super) fn descriptor(&self) -> RawFd {
        self.channel.as_fd().as_raw_fd()
    }

    /// The completion channel was reported readable.
    pub(super) fn on_event(&mut self) {
        self.may_have_event = true;
    }

    /// Reads the channel's event, if it may have one: a queue makes one each time it is armed. Returns
    /// whether the completion queue must be armed.
    pub(super) fn take_events(&mut self) -> io::Result<bool> {
        if std::mem::replace(&mut self.may_have_event, false) && self.armed {
            self.armed = self.channel.try_next().map_err(io::Error::other)?.is_none();
        }
        Ok(!self.armed)
    }

    /// A completion was polled: reads its event, if the completion queue was armed.
    pub(super) fn end_request(&mut self) -> io::Result<()> {
        self.may_have_event |= self.armed;
        self.take_events().map(drop)
    }

    /// Arms the completion queue, so that the next completion makes an event. Returns whether it
    /// was unarmed before: if so, poll again, because a completion may have arrived just before.
    pub(super) fn arm(&mut self) -> io::Result<bool> {
        if std::mem::replace(&mut self.armed, true) {
            return Ok(false);
        }
        self.cq.arm(Notify::Any).map(drop).map_err(io::Error::other)?;
        Ok(true)
    }

    /// Polls all completions and passes each to `each`, with the slot of its owner. Returns whether
    /// any arrived.
    #[inline]
    pub(super) fn poll(&mut self, mut each: impl FnMut(u32, WorkCompletion<B>)) -> io::Result<bool> {
        self.poll_until(|slot, completed| {
            each(slot, completed);
            false
        })
    }

    /// Polls completions until `each` returns true for one. Completions without an owning slot are
    /// handled here.
    #[inline]
    pub(super) fn poll_until(
        &mut self,
        mut each: impl FnMut(u32, WorkCompletion<B>) -> bool,
    ) -> io::Result<bool> {
        let Self { cq, queue_pairs, shared_recv_queue, .. } = self;
        let mut poller = cq.start_poll().map_err(io::Error::other)?;
        let mut any = false;
        while let Some(completion) = poller.next() {
            any = true;
            let (generation, wr_id) = wr_id::decode(completion.wr_id());
            let mut found = queue_pairs.find(|| completion.qp_num().unwrap_or(0));
            let request = match (wr_id, shared_recv_queue.as_mut()) {
                (WrId::Receive(place), Some(shared_recv_queue)) => {
                    shared_recv_queue.taken(generation, place, found.as_mut().map(|found| &mut *found.lease))
                }
                _ => CompletedRequest::Own(wr_id),
            };
            // A shared receive has the generation of its slot, not of its queue pair, and was
            // checked above.
            let is_its = |found: &CompletionSource<'_, B>| {
                found.generation == generation || !matches!(request, CompletedRequest::Own(_))
            };
            let Some(found) = found.filter(is_its) else {
                tracing::debug!(generation, "a completion of a queue pair that is gone");
                continue;
            };
            let completed = WorkCompletion::of(&completion, wr_id, request);
            let enough = match found.owner {
                None => each(0, completed),
                Some(EntryOwner::CqSlot(slot)) => each(*slot, completed),
                Some(EntryOwner::Draining(pair)) => {
                    pair.complete_flushed(completed, drop);
                    false
                }
            };
            if enough {
                break;
            }
        }
        poller.finish().map_err(io::Error::other)?;
        if any && let Some(shared_recv_queue) = shared_recv_queue {
            shared_recv_queue.post_reposts()?;
        }
        Ok(any)
    }

    /// Polls completions like [`poll_until`](Self::poll_until), and asks an empty queue up to `polls`
    /// times.
    #[inline(never)]
    pub(super) fn poll_often(
        &mut self,
        polls: u32,
        each: &mut dyn FnMut(u32, WorkCompletion<B>) -> bool,
    ) -> io::Result<bool> {
        for _ in 0..polls {
            if self.poll_until(&mut *each)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether each completion belongs to a single queue pair and its receive queue.
    #[inline]
    pub(super) fn is_sole(&self) -> bool {
        self.shared_recv_queue.is_none() && matches!(self.queue_pairs, QueuePairs::One(_))
    }

    /// Polls completions like [`poll_until`](Self::poll_until) if it [is sole](Self::is_sole),
    /// without the lookup of the owner. It asks an empty queue up to `polls` times, in a loop of few
    /// instructions, because a completion that arrives within a round waits for the next one.
    #[inline]
    pub(super) fn poll_sole(
        &mut self,
        polls: u32,
        mut each: impl FnMut(WorkCompletion<B>) -> bool,
    ) -> io::Result<bool> {
        for _ in 0..polls {
            let mut poller = self.cq.start_poll().map_err(io::Error::other)?;
            let mut any = false;
            while let Some(completion) = poller.next() {
                any = true;
                let (generation, wr_id) = wr_id::decode(completion.wr_id());
                if generation != SOLE_GENERATION {
                    tracing::debug!(generation, "a completion of a queue pair that is gone");
                } else if each(WorkCompletion::of(&completion, wr_id, CompletedRequest::Own(wr_id))) {
                    break;
                }
            }
            poller.finish().map_err(io::Error::other)?;
            if any {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the device's events about draining pairs. This must precede the poll for their last
    /// completions: see [`RcQueuePair::is_free`].
    fn read_device_events(&mut self) {
        let QueuePairs::ManyQueuePairs(ManyQueuePairs { pairs, draining, .. }) = &mut self.queue_pairs else {
            return;
        };
        for (number, _) in draining {
            if let Some(QueuePairEntry { owner: EntryOwner::Draining(pair), .. }) = pairs.get_mut(*number) {
                pair.check_last_wqe();
            }
        }
    }

    /// Has the draining pairs destroyed whose requests have all completed, and gives up those whose
    /// time is over. After the last pair goes the shared receive queue.
    fn destroy_drained(&mut self, now: Instant) {
        let Self {
            queue_pairs: QueuePairs::ManyQueuePairs(ManyQueuePairs { pairs, draining, used, .. }),
            shared_recv_queue,
            ..
        } = self
        else {
            return;
        };
        draining.retain(|(number, until)| {
            let Some(QueuePairEntry { owner: EntryOwner::Draining(pair), .. }) = pairs.get_mut(*number)
            else {
                return false;
            };
            if !pair.is_free() {
                if now < *until {
                    return true;
                }
                pair.give_up();
            }
            if let Some(QueuePairEntry { needs, lease, owner, .. }) = pairs.remove(*number) {
                *used -= needs;
                shared_recv_queue
                    .iter_mut()
                    .for_each(|shared_recv_queue| shared_recv_queue.ledger.leave(lease));
                if let EntryOwner::Draining(pair) = owner {
                    drain(pair);
                }
            }
            false
        });
        if pairs.is_empty() {
            shared_recv_queue.take().into_iter().for_each(drain);
        }
    }
}

/// The queue pair to which a completion belongs.
struct CompletionSource<'a, B: DeviceBlock> {
    lease: &'a mut Lease,
    generation: u32,
    /// `None` if it is the only queue pair of this completion queue.
    owner: Option<&'a mut EntryOwner<B>>,
}

impl<B: DeviceBlock> QueuePairs<B> {
    /// Finds a queue pair. `pair` yields its number, and is called only if several pairs share the
    /// queue.
    #[inline]
    fn find(&mut self, pair: impl FnOnce() -> u32) -> Option<CompletionSource<'_, B>> {
        match self {
            Self::One(lease) => Some(CompletionSource { lease, generation: SOLE_GENERATION, owner: None }),
            Self::ManyQueuePairs(many) => {
                let QueuePairEntry { lease, generation, owner, .. } = many.pairs.get_mut(pair())?;
                Some(CompletionSource { lease, generation: *generation, owner: Some(owner) })
            }
        }
    }
}

/// A pair that has drained.
impl<B: DeviceBlock> Draining for Box<RcQueuePair<B>> {
    fn poll(&mut self, _: Instant) -> bool {
        true
    }
}

/// A queue whose pairs were destroyed before.
impl<B: DeviceBlock> Draining for SharedRecvQueue<B> {
    fn poll(&mut self, _: Instant) -> bool {
        true
    }
}

/// The pairs of a worker that has gone. All other pairs are gone already, because their owners refer
/// to this dispatcher.
impl<B: DeviceBlock> Draining for CqDispatcher<B> {
    fn poll(&mut self, now: Instant) -> bool {
        self.read_device_events();
        if let Err(error) = self.poll(|_, _| ()) {
            tracing::debug!(%error, "what is left on a completion queue cannot be polled");
        }
        self.destroy_drained(now);
        match &self.queue_pairs {
            QueuePairs::One(_) => true,
            QueuePairs::ManyQueuePairs(many) => many.draining.is_empty(),
        }
    }
}

impl<B: DeviceBlock> CqDispatcher<B> {
    /// Whether the dispatcher has no queue pairs and cannot serve new ones of `device`, so that it
    /// can be replaced.
    fn is_stale(&self, device: &Arc<RdmaDevice>) -> bool {
        let is_empty = matches!(&self.queue_pairs, QueuePairs::ManyQueuePairs(many) if many.pairs.is_empty());
        is_empty && (self.broken || !Arc::ptr_eq(&self.device, device))
    }

    /// Makes room for `more` completions, resizing the completion queue if necessary. Returns
    /// whether they fit.
    fn grow_for(&mut self, more: u32) -> bool {
        let QueuePairs::ManyQueuePairs(many) = &mut self.queue_pairs else { return false };
        let shared =
            self.shared_recv_queue.as_ref().map_or(0, |shared_recv_queue| shared_recv_queue.ledger.size());
        let wanted = many.used.saturating_add(more).saturating_add(shared);
        let most = self.device.limits.completions;
        if wanted <= many.room {
            return true;
        }
        if wanted > most {
            return false;
        }
        let room = many.room.saturating_mul(2).clamp(wanted, most);
        match self.cq.resize(room) {
            Ok(()) => {
                many.room = room;
                true
            }
            Err(error) => {
                tracing::info!(%error, "a worker's completion queue stays as it is, and its next connections have their own");
                false
            }
        }
    }
}
