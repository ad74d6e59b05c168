//! Operations that RDMA devices perform on windows, without the owner's process.
//!
//! The owner registers a window in a protection domain that has the windows of this connection alone
//! ([`serving`]). The peer opens a [`path`] to a device of the owner by a message, and posts its
//! operations there, as long as a [`channel`] lives. Whatever no device performs, the owner's process
//! does.
//!
//! # Why no operation reaches another window
//!
//! A device may give a new window the rkey of a former one, whose late packets would then reach it. So
//! the owner registers each window at addresses that no other window of the connection ever had
//! (`ibv_reg_mr_iova`). A late packet names an address outside of the new window, and is refused.
//!
//! # Why no late packet undoes a later operation
//!
//! The peer performs nothing after a failure of a queue pair, also not by messages, before the owner
//! has answered that it has destroyed the queue pair that served it. Then it performs again what had
//! not ended. `docs/internals/window-model.md` has a model of both.

mod channel;
mod path;
mod repeats;
mod serving;

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub(super) use self::channel::DeviceTicket;
use self::channel::{AT_ONCE, AtOnce, Channel};
use self::path::{DevicePath, TURN};
use self::repeats::{Repeat, Repeats};
use self::serving::Serving;
pub(super) use self::serving::{Registered, RegisteredKeys};
use super::connection::{OperationTime, Shared};
use super::error::WindowError;
use super::key::{Access, WindowKey};
use super::memory::OfferedMemory;
use super::message::{self, Operation, Status};
use super::pieces::Piece;
use crate::Stream;
use crate::pool::{Block, Pool};
use crate::process::Process;
use crate::transport::rc::one_sided::{OneSidedOperation, OneSidedPorts, OneSidedRequest, ShortRequest};

/// The devices of the owner that a connection may use, one after the other.
const MOST_PATHS: usize = 16;
/// The most ranges of one operation. The owner performs others by one message.
const MOST_RANGES: usize = 32;
/// Shorter pieces go over the first path.
const SHORT: usize = 64 << 10;

/// What the devices of this side do for a connection with windows.
pub(super) struct Devices {
    /// A forked child leaves all of it to its parent.
    process: Process,
    /// `None` if no device takes part.
    inner: ManuallyDrop<Option<DevicesOfSide>>,
}

struct DevicesOfSide {
    ports: OneSidedPorts,
    pool: Pool,
    /// The [`Pool::domain_id`] of the pool.
    domain: usize,
    serving: Serving,
    paths: [OnceLock<Arc<DevicePath>>; MOST_PATHS],
    /// What the peer's devices can do as requesters.
    peer: AtomicU32,
    /// The last generation of each region that the owner is known to have revoked. A key that it has
    /// revoked would end the queue pair.
    revoked: Mutex<HashMap<u32, u32>>,
    /// Whether there are any.
    has_revoked: AtomicBool,
    /// The peer may still perform a put before this number, which this side has given up. 0: none.
    given_up: AtomicU64,
    repeats: Arc<Repeats>,
}

/// A path with its queue pair, and the key of the window there.
type ChosenPath<'a> = (&'a Arc<DevicePath>, Arc<Channel>, u32);

/// An operation for a device, or why there is none.
pub(super) enum Begun {
    UnderWay(DeviceTicket),
    /// The owner's process is to perform it.
    ByProcess,
}

impl Devices {
    /// Those of the connection, unless the process is to perform all operations.
    pub(super) fn of(stream: &Stream, are_wanted: bool) -> Self {
        let ports = stream.0.shared().ok().and_then(|caller| caller.connection.one_sided_ports());
        let inner = ports.filter(|_| are_wanted).map(|ports| DevicesOfSide {
            serving: Serving::new(ports.clone()),
            ports,
            pool: stream.pool().clone(),
            domain: stream.pool().domain_id(),
            paths: std::array::from_fn(|_| OnceLock::new()),
            peer: AtomicU32::new(0),
            revoked: Mutex::default(),
            given_up: AtomicU64::new(0),
            repeats: Arc::default(),
            has_revoked: AtomicBool::new(false),
        });
        Self { process: Process::current(), inner: ManuallyDrop::new(inner) }
    }

    fn inner(&self) -> Option<&DevicesOfSide> {
        self.inner.as_ref().filter(|_| self.process.is_current())
    }

    /// What they can do as requesters.
    pub(super) fn abilities(&self) -> u32 {
        let reads = |inner: &DevicesOfSide| if inner.ports.can_read() { message::READS } else { 0 };
        self.inner().map_or(0, |inner| message::WRITES | reads(inner))
    }

    pub(super) fn set_peer(&self, abilities: u32) {
        if let Some(inner) = self.inner() {
            inner.peer.store(abilities, Ordering::Release);
        }
    }

    /// Registers a window that the peer's device may reach. Empty if only the process serves it.
    pub(super) fn register(&self, memory: &OfferedMemory, access: Access) -> Registered {
        let Some(inner) = self.inner() else { return Registered::default() };
        let peer = inner.peer.load(Ordering::Acquire);
        let needs_reads = access.contains(Access::READ) || access.contains(Access::ATOMIC);
        if peer & message::WRITES == 0 || (needs_reads && peer & message::READS == 0) {
            return Registered::default();
        }
        inner.serving.register(memory, access)
    }

    /// Ends the registration of a window that the table does not have any more. The memory comes back
    /// once no device reaches it.
    pub(super) fn end(&self, memory: OfferedMemory, registered: Registered) -> Result<Block, WindowError> {
        if registered.is_empty() {
            return Ok(memory.into_block());
        }
        match self.inner() {
            Some(inner) => inner.serving.end(memory, registered),
            None => {
                // It belongs to the parent of this process.
                std::mem::forget((memory, registered));
                Err(WindowError::StillRegistered)
            }
        }
    }

    /// Serves a message of the peer about paths.
    pub(super) fn serve(&self, asked: Operation, bytes: &[u8]) -> (Status, Vec<u8>) {
        let Some(inner) = self.inner() else { return (Status::NoPath, vec![]) };
        match asked {
            Operation::Open { device } => inner.serving.open(device, bytes),
            Operation::Close { device, queue_pair } => (inner.serving.close(device, queue_pair), vec![]),
            _ => (Status::NoPath, vec![]),
        }
    }

    /// Whether the owner is known to have revoked a window.
    #[inline]
    pub(super) fn is_revoked(&self, key: &WindowKey) -> bool {
        self.inner().is_some_and(|inner| {
            inner.has_revoked.load(Ordering::Relaxed)
                && inner.revoked().get(&key.region).is_some_and(|last| key.generation <= *last)
        })
    }

    /// The owner's process has answered that it has revoked a window.
    pub(super) fn note_revoked(&self, key: &WindowKey) {
        if let Some(inner) = self.inner() {
            let mut revoked = inner.revoked();
            let last = revoked.entry(key.region).or_default();
            *last = key.generation.max(*last);
            inner.has_revoked.store(true, Ordering::Relaxed);
        }
    }

    /// The owner's process may perform a put before this number later than operations that follow.
    pub(super) fn given_up(&self, before: u64) {
        if let Some(inner) = self.inner() {
            inner.given_up.fetch_max(before, Ordering::Relaxed);
        }
    }

    /// Waits until no put of a device that was given up, or whose end is unknown, can change the owner's
    /// memory after one that is performed in another way.
    pub(super) fn settle(&self, shared: &Shared, time: OperationTime) -> Result<(), WindowError> {
        let Some(inner) = self.inner() else { return Ok(()) };
        for path in inner.paths() {
            path.channels()
                .iter()
                .try_for_each(|channel| channel.settle(time, inner.ports.request_timeout()))?;
            if path.has_failed() {
                path.confirm_closed(shared, time)?;
            }
        }
        Ok(())
    }

    /// Begins a piece of an operation. A put sends `bytes`.
    pub(super) fn begin(
        &self,
        shared: &Shared,
        key: &WindowKey,
        operation: Operation,
        piece: &Piece,
        bytes: &[u8],
        time: OperationTime,
    ) -> Result<Begun, WindowError> {
        let Some(inner) = self.inner().filter(|_| !key.devices.is_empty()) else {
            return Ok(Begun::ByProcess);
        };
        if piece.ranges.len() > MOST_RANGES {
            return Ok(Begun::ByProcess);
        }
        let operation = match operation {
            Operation::Put => OneSidedOperation::Write,
            Operation::Get => OneSidedOperation::Read,
            _ => return Ok(Begun::ByProcess),
        };
        if operation == OneSidedOperation::Write {
            if inner.must_follow_messages(shared) {
                return Ok(Begun::ByProcess);
            }
            if key.devices.len() > 1 {
                self.settle(shared, time)?;
            }
        }
        let len = piece.bytes.len();
        let Some(mut block) = inner.pool.take(len) else { return Ok(Begun::ByProcess) };
        if operation == OneSidedOperation::Write {
            block.bytes_mut()[..len].copy_from_slice(bytes);
        }
        let remote = |range: &message::WindowRange| (key.base + range.offset, range.len as u32);
        let ranges: Vec<_> = piece.ranges.iter().map(remote).collect();
        let posted = inner.post(shared, key, operation, &ranges, block, time)?;
        Ok(posted.map_or(Begun::ByProcess, Begun::UnderWay))
    }

    /// Begins an operation of a whole block. The block comes back if no device performs it.
    pub(super) fn begin_block(
        &self,
        shared: &Shared,
        key: &WindowKey,
        operation: Operation,
        (offset, len): (u64, usize),
        block: Block,
        time: impl Fn() -> OperationTime,
    ) -> Result<Result<DeviceTicket, Block>, (WindowError, Block)> {
        let inner = self.inner().filter(|_| !key.devices.is_empty());
        let (Some(inner), Ok(len)) = (inner, u32::try_from(len)) else { return Ok(Err(block)) };
        let operation = match operation {
            Operation::Put => OneSidedOperation::Write,
            _ => OneSidedOperation::Read,
        };
        if operation == OneSidedOperation::Write {
            if inner.must_follow_messages(shared) {
                return Ok(Err(block));
            }
            if key.devices.len() > 1
                && let Err(error) = self.settle(shared, time())
            {
                return Err((error, block));
            }
        }
        block.lend(inner.domain);
        let ranges = [(key.base + offset, len)];
        let block = match inner.post_at_once(key, operation, &ranges, block) {
            Ok(ticket) => return Ok(Ok(ticket)),
            Err(block) => block,
        };
        inner.post_block(shared, key, operation, &ranges, block, time())
    }

    /// Performs an atomic operation on the window's device.
    pub(super) fn atomic(
        &self,
        shared: &Shared,
        key: &WindowKey,
        operation: Operation,
        offset: u64,
        time: impl Fn() -> OperationTime,
    ) -> Result<AtomicOutcome, WindowError> {
        let operation = match operation {
            Operation::FetchAdd { add } => OneSidedOperation::FetchAdd { add },
            Operation::CompareSwap { expected, new } => OneSidedOperation::CompareSwap { expected, new },
            _ => return Err(WindowError::AtomicsOfDevice),
        };
        let Some(inner) = self.inner() else { return Err(WindowError::NoPath) };
        let index = key.devices.iter().position(|device| device.device == key.atomics);
        let index = index.ok_or(WindowError::NoPath)?;
        match inner.at_once(shared, key, index, operation, offset, &[]) {
            AtOnce::Done { found, looks } => {
                inner.look(shared, looks);
                Ok(AtomicOutcome::Found(found))
            }
            AtOnce::UnderWay(ticket) => inner.end_atomic(ticket, time()),
            AtOnce::NotPosted => {
                self.settle(shared, time())?;
                inner.atomic(shared, key, index, operation, offset, time())
            }
        }
    }

    /// Performs a short put at once. Returns false if that was not possible.
    pub(super) fn put_at_once(
        &self,
        shared: &Shared,
        key: &WindowKey,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Option<Option<DeviceTicket>>, WindowError> {
        let Some(inner) = self.inner().filter(|_| key.devices.len() == 1 && bytes.len() <= AT_ONCE) else {
            return Ok(None);
        };
        match inner.at_once(shared, key, 0, OneSidedOperation::Write, offset, bytes) {
            AtOnce::Done { looks, .. } => {
                inner.look(shared, looks);
                Ok(Some(None))
            }
            AtOnce::UnderWay(ticket) => Ok(Some(Some(ticket))),
            AtOnce::NotPosted => Ok(None),
        }
    }

    /// Waits until all operations of devices that were begun before have ended. None of them changes
    /// the owner's memory after that.
    pub(super) fn flush(&self, shared: &Shared, time: OperationTime) -> Result<(), WindowError> {
        let Some(inner) = self.inner() else { return Ok(()) };
        let timeout = inner.ports.request_timeout();
        inner.repeats.begin_flush();
        for path in inner.paths() {
            for channel in path.channels() {
                channel.drain(time, timeout)?;
            }
            if path.has_failed() {
                path.confirm_closed(shared, time)?;
            }
        }
        while inner.repeats.are_under_way() {
            if time.until.is_over() {
                return Err(time.is_over());
            }
            shared.serve_within(OperationTime::after(Some(TURN)))?;
        }
        Ok(())
    }

    /// Takes the block of an operation that a device has performed by now.
    pub(super) fn end_at_once(&self, shared: &Shared, ticket: &mut DeviceTicket) -> Option<Block> {
        let inner = self.inner()?;
        let (block, looks) = ticket.end_at_once()?;
        inner.look(shared, looks);
        Some(block)
    }

    /// Waits for an operation. One that the device has failed may be performed by the owner's process. A
    /// put is that only after the owner has destroyed the queue pair that served it.
    pub(super) fn end_ticket(
        &self,
        shared: &Shared,
        ticket: &mut DeviceTicket,
        time: OperationTime,
    ) -> Result<TicketEnd, WindowError> {
        let Some(inner) = self.inner() else { return Err(WindowError::NoPath) };
        let (outcome, is_performed) = ticket.wait(time, inner.ports.request_timeout())?;
        if is_performed {
            inner.look(shared, ticket.looks());
            return Ok(TicketEnd::Done(outcome));
        }
        if !ticket.is_put() {
            return Ok(TicketEnd::Failed(outcome, None));
        }
        ticket.path().confirm_closed(shared, time)?;
        match ticket.repeat() {
            Some(repeat) => Ok(TicketEnd::Failed(outcome, Some(repeat))),
            None => Ok(TicketEnd::Unknown(outcome)),
        }
    }
}

/// What became of an operation, with its block. There is none if the device may still access it.
pub(super) enum TicketEnd {
    Done(Option<Block>),
    /// The owner's process may perform it. A put holds the mark until its messages were sent.
    Failed(Option<Block>, Option<Repeat>),
    /// It may have been performed, and must not be performed again.
    Unknown(Option<Block>),
}

/// What became of an atomic operation.
pub(super) enum AtomicOutcome {
    Found(u64),
    /// It was not performed: the owner's device has refused it, or there is no path now. The owner's
    /// process knows whether the window exists.
    Refused,
}

impl DevicesOfSide {
    fn revoked(&self) -> MutexGuard<'_, HashMap<u32, u32>> {
        self.revoked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn paths(&self) -> impl Iterator<Item = &Arc<DevicePath>> {
        self.paths.iter().map_while(OnceLock::get)
    }

    /// Whether a put that was given up may be performed after one that a device performs now. It is
    /// performed before the next message.
    fn must_follow_messages(&self, shared: &Shared) -> bool {
        let before = self.given_up.load(Ordering::Relaxed);
        if before == 0 {
            return false;
        }
        if !shared.has_answers_before(before) {
            return true;
        }
        // Another one may have been given up.
        let _ = self.given_up.compare_exchange(before, 0, Ordering::Relaxed, Ordering::Relaxed);
        false
    }

    /// The path to a device of the owner; `None` if there were too many.
    fn path(&self, key: &WindowKey, index: usize) -> Option<(&Arc<DevicePath>, u32)> {
        let key = key.devices.get(index)?;
        let of = |place: &'_ OnceLock<Arc<DevicePath>>| {
            let local = index % self.ports.count();
            let path =
                place.get_or_init(|| Arc::new(DevicePath::new(key.device, local, Arc::clone(&self.repeats))));
            path.device() == key.device
        };
        let place = self.paths.iter().find(|place| of(place))?;
        Some((place.get()?, key.rkey))
    }

    /// The first path that is open, or can be opened; for longer pieces the one with least work.
    fn choose(
        &self,
        shared: &Shared,
        key: &WindowKey,
        len: u64,
        time: OperationTime,
    ) -> Result<Option<ChosenPath<'_>>, WindowError> {
        let mut best: Option<(u64, ChosenPath<'_>)> = None;
        for index in 0..key.devices.len() {
            let Some((path, rkey)) = self.path(key, index) else { continue };
            let Some(channel) = path.channel(shared, self, time)? else { continue };
            if len < SHORT as u64 || key.devices.len() == 1 {
                return Ok(Some((path, channel, rkey)));
            }
            let load = channel.load();
            if best.as_ref().is_none_or(|(least, _)| load < *least) {
                best = Some((load, (path, channel, rkey)));
            }
        }
        Ok(best.map(|(_, path)| path))
    }

    fn post(
        &self,
        shared: &Shared,
        key: &WindowKey,
        operation: OneSidedOperation,
        ranges: &[(u64, u32)],
        block: Block,
        time: OperationTime,
    ) -> Result<Option<DeviceTicket>, WindowError> {
        match self.post_block(shared, key, operation, ranges, block, time) {
            Ok(posted) => Ok(posted.ok()),
            Err((error, _)) => Err(error),
        }
    }

    /// Posts an operation of one range over the only path, if that is open and has room.
    fn post_at_once(
        &self,
        key: &WindowKey,
        operation: OneSidedOperation,
        ranges: &[(u64, u32); 1],
        block: Block,
    ) -> Result<DeviceTicket, Block> {
        let Some((path, rkey)) = self.path(key, 0).filter(|_| key.devices.len() == 1) else {
            return Err(block);
        };
        let request = OneSidedRequest { operation, rkey, ranges };
        let mut block = Some(block);
        let posted = path.with_open(|channel| {
            block.take().map(|block| channel.post_at_once(path, &request, ranges[0].1.into(), block))
        });
        match (posted.flatten(), block) {
            (Some(posted), _) => posted,
            (None, Some(block)) => Err(block),
            (None, None) => unreachable!("a call takes the block and returns it"),
        }
    }

    fn post_block(
        &self,
        shared: &Shared,
        key: &WindowKey,
        operation: OneSidedOperation,
        ranges: &[(u64, u32)],
        block: Block,
        time: OperationTime,
    ) -> Result<Result<DeviceTicket, Block>, (WindowError, Block)> {
        let len = ranges.iter().map(|(_, len)| u64::from(*len)).sum();
        let chosen = match self.choose(shared, key, len, time) {
            Ok(Some(chosen)) => chosen,
            Ok(None) => return Ok(Err(block)),
            Err(error) => return Err((error, block)),
        };
        let (path, channel, rkey) = chosen;
        let request = OneSidedRequest { operation, rkey, ranges };
        channel.post(path, &request, len, block, time, self.ports.request_timeout())
    }

    /// If it is time to look, performs what the peer has asked for.
    #[inline]
    fn look(&self, shared: &Shared, looks: bool) {
        if looks {
            // If the connection has failed, the next message tells.
            let _ = shared.serve_what_has_arrived();
        }
    }

    /// Posts a short operation over a path that is open.
    #[inline]
    fn at_once(
        &self,
        shared: &Shared,
        key: &WindowKey,
        index: usize,
        operation: OneSidedOperation,
        offset: u64,
        bytes: &[u8],
    ) -> AtOnce {
        let Some((path, rkey)) = self.path(key, index) else { return AtOnce::NotPosted };
        // Over one path alone, operations keep their order.
        let is_late = || key.devices.len() > 1 && self.paths().any(|path| path.must_settle());
        if self.must_follow_messages(shared) || is_late() {
            return AtOnce::NotPosted;
        }
        let address = key.base + offset;
        let request = ShortRequest { operation, rkey, address, bytes };
        path.with_open(|channel| channel.perform_at_once(path, &self.pool, request))
            .unwrap_or(AtOnce::NotPosted)
    }

    fn atomic(
        &self,
        shared: &Shared,
        key: &WindowKey,
        index: usize,
        operation: OneSidedOperation,
        offset: u64,
        time: OperationTime,
    ) -> Result<AtomicOutcome, WindowError> {
        let (path, rkey) = self.path(key, index).ok_or(WindowError::NoPath)?;
        let Some(channel) = path.channel(shared, self, time)? else { return Ok(AtomicOutcome::Refused) };
        let Some(block) = self.pool.take(size_of::<u64>()) else { return Err(WindowError::NoPath) };
        let ranges = [(key.base + offset, size_of::<u64>() as u32)];
        let request = OneSidedRequest { operation, rkey, ranges: &ranges };
        let timeout = self.ports.request_timeout();
        let posted = channel.post(path, &request, 8, block, time, timeout).map_err(|(error, _)| error)?;
        match posted {
            Ok(ticket) => self.end_atomic(ticket, time),
            Err(_) => Ok(AtomicOutcome::Refused),
        }
    }

    fn end_atomic(&self, ticket: DeviceTicket, time: OperationTime) -> Result<AtomicOutcome, WindowError> {
        let mut ticket = ticket;
        let (block, is_performed) = ticket.wait(time, self.ports.request_timeout())?;
        match block.filter(|_| is_performed) {
            Some(block) => {
                let found = block.bytes().first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                Ok(AtomicOutcome::Found(found))
            }
            None if ticket.was_refused() => Ok(AtomicOutcome::Refused),
            None => Err(WindowError::OutcomeUnknown),
        }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: this is the drop, so that nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}
