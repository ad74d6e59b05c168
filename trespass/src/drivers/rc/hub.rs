//! Where completions come from: a [`Hub`] for one queue pair, or one for all of a worker's, at its [`Desk`].
//!
//! A worker's hub finds whose a completion is by the queue pair's number. Numbers come back when their pair is gone, and what was
//! posted may complete when its owner has gone. So
//!
//! - the numbers of work requests have the pair's generation ([`number`]): what an earlier pair has left is dropped;
//! - a pair whose owner goes is *buried*: it is stopped, its completions are taken as they come, and only then it is destroyed, with
//!   what it holds.
//!
//! A worker has one thread, so nobody ever waits for the lock of its desk. It is taken once for all that has completed, where pairs come
//! and go, and where one that shares is given receives; it is there because connections may be given to other threads, and with them what
//! leads to the desk.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use sideway::ibverbs::completion::{
    CompletionChannel, GenericCompletionQueue, GenericWorkCompletion, Notify, WorkCompletionStatus,
};
use sideway::ibverbs::queue_pair::{QueuePair, QueuePairTable};

use super::number::{self, GENERATIONS, Request};
use super::pair::{DRAIN, Pair};
use super::path::Parameters;
use super::shelf::Shelf;
use super::{Device, DeviceBlock};
use crate::handshake::{Cause, Unavailable};
use crate::protocol::Lease;

/// Completions that a worker's queue has room for at first. It grows with the connections.
const FIRST_ROOM: u32 = 1024;
/// The generation of a pair that has its hub for itself.
const ONLY: u32 = 0;
/// How long to wait between two looks at what is buried: what is to come takes microseconds, or fails.
pub(super) const NAP: Duration = Duration::from_micros(50);
/// The same, of a thread that has other things to do.
const LONG_NAP: Duration = Duration::from_millis(1);

/// What has completed.
pub(super) enum What<B> {
    /// A send, or the probe, or a receive of the pair's own.
    Own(Request),
    /// A receive that is out of its queue: its number there, and its block if it was under way.
    Received(u32, Option<B>),
    /// One of those that were promised to others.
    Overdrawn,
}

/// A work request that has completed.
pub(crate) struct Completed<B> {
    pub(super) what: What<B>,
    pub(super) status: WorkCompletionStatus,
    pub(super) vendor: u32,
    /// Bytes received.
    pub(super) len: usize,
    /// The immediate data that came with them.
    pub(super) immediate: Option<u32>,
}

impl<B> Completed<B> {
    #[inline(always)]
    fn of(completion: &GenericWorkCompletion<'_>, request: Request, what: What<B>) -> Self {
        let status = completion.status();
        let is_receive = matches!(request, Request::Receive(_));
        Self {
            what,
            immediate: if is_receive { completion.imm_data() } else { None },
            status,
            vendor: if status == WorkCompletionStatus::Success { 0 } else { completion.vendor_err() },
            len: if is_receive { completion.byte_len().unwrap_or(0) as usize } else { 0 },
        }
    }

    /// What is wrong, if it has not come to a good end, while a path is tried.
    pub(super) fn failure(&self) -> Option<Unavailable> {
        let Self { status, vendor, .. } = self;
        (*status != WorkCompletionStatus::Success).then(|| {
            let hint = status.hint().unwrap_or("no more is known");
            let detail = format!("{status}, vendor error {vendor:#x}: {hint}");
            Unavailable::new(Cause::ProbeFailed, detail)
        })
    }
}

/// A completion queue with its channel, the pairs that complete into it, and what they share.
pub(super) struct Hub<B: DeviceBlock> {
    members: Members<B>,
    /// The receives that they share, if they do, and as long as there is one that does.
    shelf: Option<Shelf<B>>,
    cq: GenericCompletionQueue,
    channel: CompletionChannel,
    device: Arc<Device>,
    /// The queue makes an event with the next completion, or has made it.
    armed: bool,
    /// The channel may have an event.
    may_have_event: bool,
    /// The queue is of no use any more.
    broken: bool,
}

enum Members<B: DeviceBlock> {
    /// Whatever completes is its.
    One(Lease),
    Many(Many<B>),
}

struct Many<B: DeviceBlock> {
    pairs: QueuePairTable<Member<B>>,
    /// Those without an owner, and until when they may take to give everything back.
    buried: Vec<(u32, Instant)>,
    generation: u32,
    /// Completions that there is room for, and that may come at a time.
    room: u32,
    used: u32,
    /// The channel is in the worker's set.
    registered: bool,
}

struct Member<B: DeviceBlock> {
    generation: u32,
    /// Completions that may come of it at a time.
    needs: u32,
    lease: Lease,
    owner: Owner<B>,
}

enum Owner<B: DeviceBlock> {
    Seat(u32),
    Nobody(Box<Pair<B>>),
}

impl<B: DeviceBlock> Hub<B> {
    fn new(device: &Arc<Device>, room: u32, members: Members<B>) -> Result<Self, Unavailable> {
        let refused = |error: &dyn std::fmt::Display| {
            Unavailable::new(Cause::Resources, format!("{}: {error}", device.name()))
        };
        let channel = device.context().create_comp_channel().map_err(|error| refused(&error))?;
        let mut builder = device.context().create_cq_builder();
        builder.setup_cqe(room).setup_comp_channel(&channel);
        let cq = builder.build_generic().map_err(|error| refused(&error))?;
        let device = Arc::clone(device);
        let shelf = None;
        Ok(Self { members, shelf, cq, channel, device, armed: false, may_have_event: true, broken: false })
    }

    /// For a pair of its own.
    pub(super) fn of_one(device: &Arc<Device>, parameters: &Parameters) -> Result<Self, Unavailable> {
        let room = Pair::<B>::completions(parameters, false);
        let mut hub = Self::new(device, room, Members::One(Lease::default()))?;
        if parameters.shares_alone {
            hub.shelf = Some(Shelf::new(device, parameters.rx_slots)?);
        }
        Ok(hub)
    }

    fn of_many(device: &Arc<Device>) -> Result<Self, Unavailable> {
        let room = FIRST_ROOM.min(device.most.completions);
        let (pairs, buried) = (QueuePairTable::new(), Vec::new());
        let many = Many { pairs, buried, generation: 0, room, used: 0, registered: false };
        Self::new(device, room, Members::Many(many))
    }

    pub(super) fn cq(&self) -> &GenericCompletionQueue {
        &self.cq
    }

    pub(super) fn shelf(&self) -> Option<&Shelf<B>> {
        self.shelf.as_ref()
    }

    /// What a pair may use of the receives that are shared.
    fn lease(&mut self, pair: u32) -> Option<(&mut Lease, &mut Shelf<B>)> {
        let lease = match &mut self.members {
            Members::One(lease) => lease,
            Members::Many(many) => &mut many.pairs.get_mut(pair)?.lease,
        };
        Some((lease, self.shelf.as_mut()?))
    }

    /// Makes a pair certain of so many shared receives. Else how many there can be in all.
    pub(super) fn admit(&mut self, pair: u32, first: u32) -> Result<(), u32> {
        let Some((lease, shelf)) = self.lease(pair) else { return Ok(()) };
        if shelf.ledger.admit(lease, first) { Ok(()) } else { Err(shelf.ledger.size()) }
    }

    /// Shared receives that a pair may use.
    pub(super) fn held(&mut self, pair: u32) -> u32 {
        self.lease(pair).map_or(0, |(lease, _)| lease.held())
    }

    /// Gives a pair so many more shared receives, as far as there is room for it, and blocks. How many.
    pub(super) fn share(
        &mut self,
        pair: u32,
        wanted: u32,
        blocks: impl FnMut() -> Option<B>,
    ) -> io::Result<u32> {
        let Some((lease, shelf)) = self.lease(pair) else { return Ok(0) };
        let mut count = shelf.ledger.allows(lease, wanted);
        let missing = shelf.ledger.missing(count);
        if missing > 0 {
            let posted = shelf.post(missing, blocks)?;
            count = count.saturating_sub(missing - posted);
        }
        shelf.ledger.grant(lease, count);
        Ok(count)
    }

    /// Has the system report completions under that key.
    pub(super) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.channel.as_fd().as_raw_fd()), token, Interest::READABLE)
    }

    pub(super) fn deregister(&self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut SourceFd(&self.channel.as_fd().as_raw_fd()))
    }

    /// The system has reported something.
    pub(super) fn on_event(&mut self) {
        self.may_have_event = true;
    }

    /// Takes the channel's events, if there may be any. Whether the queue is to be armed.
    pub(super) fn take_events(&mut self) -> io::Result<bool> {
        if std::mem::replace(&mut self.may_have_event, false) {
            while self.channel.try_next().map_err(io::Error::other)?.is_some() {
                self.armed = false;
            }
        }
        Ok(!self.armed)
    }

    /// Has the next completion make an event. Whether that was not so already: then one may have come just before.
    pub(super) fn arm(&mut self) -> io::Result<bool> {
        if std::mem::replace(&mut self.armed, true) {
            return Ok(false);
        }
        self.cq.arm(Notify::Any).map(drop).map_err(io::Error::other)?;
        Ok(true)
    }

    /// Takes what has completed, and gives each to the seat whose it is. Whether anything had.
    #[inline]
    pub(super) fn reap(&mut self, mut each: impl FnMut(u32, Completed<B>)) -> io::Result<bool> {
        self.reap_until(|seat, completed| {
            each(seat, completed);
            false
        })
    }

    /// The same, up to the first for which that is true, if it is one of a seat's.
    #[inline]
    pub(super) fn reap_until(&mut self, mut each: impl FnMut(u32, Completed<B>) -> bool) -> io::Result<bool> {
        let Self { cq, members, shelf, .. } = self;
        let mut poller = cq.start_poll().map_err(io::Error::other)?;
        let mut any = false;
        while let Some(completion) = poller.next() {
            any = true;
            let (generation, request) = number::parse(completion.wr_id());
            let mut found = members.find(|| completion.qp_num().unwrap_or(0));
            let what = match (request, shelf.as_mut()) {
                (Request::Receive(place), Some(shelf)) => {
                    shelf.taken(generation, place, found.as_mut().map(|found| &mut *found.lease))
                }
                _ => What::Own(request),
            };
            // The generation of a shared receive is its place's.
            let is_its =
                |found: &Found<'_, B>| found.generation == generation || !matches!(what, What::Own(_));
            let Some(found) = found.filter(is_its) else {
                tracing::debug!(generation, "a completion of a queue pair that is gone");
                continue;
            };
            let completed = Completed::of(&completion, request, what);
            let enough = match found.owner {
                None => each(0, completed),
                Some(Owner::Seat(seat)) => each(*seat, completed),
                Some(Owner::Nobody(pair)) => {
                    pair.take_back(completed, drop);
                    false
                }
            };
            if enough {
                break;
            }
        }
        poller.finish().map_err(io::Error::other)?;
        if any && let Some(shelf) = shelf {
            shelf.post_again()?;
        }
        Ok(any)
    }

    /// The same of a pair's own hub. Where nothing is shared, nobody is asked whose a completion is.
    #[inline]
    pub(super) fn reap_own(&mut self, mut each: impl FnMut(Completed<B>) -> bool) -> io::Result<bool> {
        if self.shelf.is_some() || !matches!(self.members, Members::One(_)) {
            return self.reap_until(|_, completed| each(completed));
        }
        let mut poller = self.cq.start_poll().map_err(io::Error::other)?;
        let mut any = false;
        while let Some(completion) = poller.next() {
            any = true;
            let (generation, request) = number::parse(completion.wr_id());
            if generation != ONLY {
                tracing::debug!(generation, "a completion of a queue pair that is gone");
            } else if each(Completed::of(&completion, request, What::Own(request))) {
                break;
            }
        }
        poller.finish().map_err(io::Error::other)?;
        Ok(any)
    }

    /// Takes note of what the device says of buried pairs, before it is seen whether anything of them is left.
    fn listen(&mut self) {
        let Members::Many(Many { pairs, buried, .. }) = &mut self.members else { return };
        for (number, _) in buried {
            if let Some(Member { owner: Owner::Nobody(pair), .. }) = pairs.get_mut(*number) {
                pair.hear();
            }
        }
    }

    /// Destroys what is buried and has given everything back, and gives up what will not. What nobody shares any more goes with the last.
    fn clear(&mut self, now: Instant) {
        let Self { members: Members::Many(Many { pairs, buried, used, .. }), shelf, .. } = self else {
            return;
        };
        buried.retain(|(number, until)| {
            let Some(Member { owner: Owner::Nobody(pair), .. }) = pairs.get_mut(*number) else {
                return false;
            };
            if !pair.is_free() {
                if now < *until {
                    return true;
                }
                pair.give_up();
            }
            if let Some(Member { needs, lease, .. }) = pairs.remove(*number) {
                *used -= needs;
                shelf.iter_mut().for_each(|shelf| shelf.ledger.leave(lease));
            }
            false
        });
        if pairs.is_empty() {
            *shelf = None;
        }
    }
}

/// What a completion's queue pair is.
struct Found<'a, B: DeviceBlock> {
    lease: &'a mut Lease,
    generation: u32,
    /// Nobody else completes here.
    owner: Option<&'a mut Owner<B>>,
}

impl<B: DeviceBlock> Members<B> {
    /// The pair with this number, which is asked for only if there are several.
    #[inline]
    fn find(&mut self, pair: impl FnOnce() -> u32) -> Option<Found<'_, B>> {
        match self {
            Self::One(lease) => Some(Found { lease, generation: ONLY, owner: None }),
            Self::Many(many) => {
                let Member { lease, generation, owner, .. } = many.pairs.get_mut(pair())?;
                Some(Found { lease, generation: *generation, owner: Some(owner) })
            }
        }
    }
}

impl<B: DeviceBlock> Drop for Hub<B> {
    /// Whoever had a pair here has gone. What is buried is taken back first.
    fn drop(&mut self) {
        while let Members::Many(Many { buried, .. }) = &self.members
            && !buried.is_empty()
        {
            self.listen();
            if let Err(error) = self.reap(|_, _| ()) {
                tracing::debug!(%error, "what is left on a completion queue cannot be polled");
            }
            self.clear(Instant::now());
            std::thread::sleep(NAP);
        }
    }
}

/// Where the pairs of a worker complete: nowhere, until there is one.
pub(crate) struct Desk<B: DeviceBlock>(Arc<Mutex<Option<Hub<B>>>>);

impl<B: DeviceBlock> Default for Desk<B> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<B: DeviceBlock> Clone for Desk<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Where the completions of a pair go: to what a worker has under this index.
pub(crate) struct Seat<B: DeviceBlock> {
    pub(super) desk: Desk<B>,
    pub(super) index: u32,
}

impl<B: DeviceBlock> Desk<B> {
    fn lock(&self) -> MutexGuard<'_, Option<Hub<B>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For what has this index.
    pub(crate) fn seat(&self, index: u32) -> Seat<B> {
        Seat { desk: self.clone(), index }
    }

    /// Has the system report completions under that key, from when there can be any. With an error it is of no use to any of its pairs.
    pub(crate) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        let mut hub = self.lock();
        let Some(hub) = hub.as_mut() else { return Ok(()) };
        if let Members::Many(many) = &mut hub.members
            && !std::mem::replace(&mut many.registered, true)
        {
            hub.register(registry, token).inspect_err(|_| hub.broken = true)?;
        }
        Ok(())
    }

    /// The system has reported something.
    pub(crate) fn on_event(&self) {
        if let Some(hub) = self.lock().as_mut() {
            hub.on_event();
        }
    }

    /// Gives whatever has completed to the seat whose it is, until there is nothing more; and sees to what is buried. Whether anything
    /// had completed. With an error it is of no use to any of its pairs any more; that is said once.
    pub(crate) fn reap(&self, each: impl FnMut(u32, Completed<B>)) -> io::Result<bool> {
        let mut hub = self.lock();
        let Some(hub) = hub.as_mut() else { return Ok(false) };
        let has_buried = matches!(&hub.members, Members::Many(many) if !many.buried.is_empty());
        if has_buried {
            hub.listen();
        }
        let reaped = if hub.broken { Ok(false) } else { hub.take_events().and_then(|_| hub.reap(each)) };
        hub.broken |= reaped.is_err();
        if has_buried {
            hub.clear(Instant::now());
        }
        reaped
    }

    /// Has the next completion be reported. Whether that was not so already: then one may have come just before. Errors are as
    /// [`reap`](Self::reap)'s.
    pub(crate) fn arm(&self) -> io::Result<bool> {
        let mut hub = self.lock();
        let Some(hub) = hub.as_mut().filter(|hub| !hub.broken) else { return Ok(false) };
        let armed = hub.arm();
        hub.broken |= armed.is_err();
        armed
    }

    /// When to reap in any case.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match &self.lock().as_ref()?.members {
            Members::Many(many) if !many.buried.is_empty() => Some(Instant::now() + LONG_NAP),
            _ => None,
        }
    }

    /// Makes a pair that completes here. `None`: it has to have a queue of its own, as there is no room, or this one is another device's.
    pub(super) fn make(
        &self,
        device: &Arc<Device>,
        whence: &str,
        parameters: &Parameters,
        seat: u32,
    ) -> Result<Option<Box<Pair<B>>>, Unavailable> {
        let mut hub = self.lock();
        let hub = match &mut *hub {
            Some(hub) if !hub.is_of_the_past(device) => hub,
            place => place.insert(Hub::of_many(device)?),
        };
        let needs = Pair::<B>::completions(parameters, parameters.shared_receives.is_some());
        if hub.broken || !Arc::ptr_eq(&hub.device, device) {
            return Ok(None);
        }
        if let (None, Some(size)) = (&hub.shelf, parameters.shared_receives) {
            hub.shelf = Some(Shelf::new(device, size)?);
        }
        if !hub.make_room(needs) {
            return Ok(None);
        }
        let Hub { cq, shelf, members: Members::Many(many), .. } = hub else { return Ok(None) };
        many.generation = (many.generation + 1) % GENERATIONS;
        let generation = many.generation;
        let pair = Pair::new(device, whence, parameters, cq, shelf.as_ref(), generation)?;
        let (lease, owner) = (Lease::default(), Owner::Seat(seat));
        many.pairs.insert(pair.qp.qp_number(), Member { generation, needs, lease, owner });
        many.used += needs;
        Ok(Some(Box::new(pair)))
    }

    /// Takes a pair whose owner goes.
    pub(super) fn bury(&self, mut pair: Box<Pair<B>>) {
        pair.stop();
        let number = pair.qp.qp_number();
        let mut hub = self.lock();
        let Some(Hub { members: Members::Many(many), .. }) = hub.as_mut() else {
            debug_assert!(false, "a pair is buried where it was made");
            return pair.give_up();
        };
        match many.pairs.get_mut(number) {
            Some(member) => member.owner = Owner::Nobody(pair),
            None => return pair.give_up(),
        }
        many.buried.push((number, Instant::now() + DRAIN));
    }

    /// As [`Hub::admit`].
    pub(super) fn admit(&self, pair: u32, first: u32) -> Result<(), u32> {
        self.lock().as_mut().map_or(Ok(()), |hub| hub.admit(pair, first))
    }

    /// As [`Hub::held`].
    pub(super) fn held(&self, pair: u32) -> u32 {
        self.lock().as_mut().map_or(0, |hub| hub.held(pair))
    }

    /// As [`Hub::share`].
    pub(super) fn share(&self, pair: u32, wanted: u32, blocks: impl FnMut() -> Option<B>) -> io::Result<u32> {
        self.lock().as_mut().map_or(Ok(0), |hub| hub.share(pair, wanted, blocks))
    }

    /// Of shared receives: how many are posted, how many are promised, and how many there can be.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> Option<[u32; 3]> {
        let hub = self.lock();
        let ledger = &hub.as_ref()?.shelf.as_ref()?.ledger;
        let (posted, promised) = ledger.totals();
        Some([posted, promised, ledger.size()])
    }

    /// Pairs that are there, and those of them that are buried.
    #[cfg(test)]
    pub(crate) fn pairs(&self) -> (usize, usize) {
        match self.lock().as_ref().map(|hub| &hub.members) {
            Some(Members::Many(many)) => (many.pairs.len(), many.buried.len()),
            _ => (0, 0),
        }
    }
}

impl<B: DeviceBlock> Hub<B> {
    /// Whether it is empty, and of no use to pairs of this device.
    fn is_of_the_past(&self, device: &Arc<Device>) -> bool {
        let is_empty = matches!(&self.members, Members::Many(many) if many.pairs.is_empty());
        is_empty && (self.broken || !Arc::ptr_eq(&self.device, device))
    }

    /// Sees that so many more completions may come at a time.
    fn make_room(&mut self, more: u32) -> bool {
        let Members::Many(many) = &mut self.members else { return false };
        let shared = self.shelf.as_ref().map_or(0, |shelf| shelf.ledger.size());
        let wanted = many.used.saturating_add(more).saturating_add(shared);
        let most = self.device.most.completions;
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
