//! Remote procedure calls to the owner of memory that neither a mapping nor the kernel reaches.
//!
//! The segment of every peer process has a cell for each transfer slot of this process: a request,
//! and room for bytes in transit. The sender fills it in, rings a doorbell, and waits briefly for
//! the owner's service thread. That thread checks the request against its private tables.
//!
//! If an owner does not begin in time, the request is retried like one that is not acknowledged. A
//! request that the owner has begun stays in the cell, so that nothing (above all no atomic) is
//! executed twice. The sender does not wait long for that either: its request stays outstanding. If
//! it claimed a receive, the owner keeps that receive until the call has ended.

use core::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::{ibv_access_flags, ibv_qp_type};

use super::gather::GatherList;
use super::payload::{Direction, LocalPiece, RemotePiece, RemotePlace};
use super::{CopyError, TransferCtx};
use crate::node::{CALL_CELL, CALL_HEADER, CALL_PAYLOAD, Doorbell, PeerProcess, is_service_thread};
use crate::objects::memory_window::WindowError;
use crate::objects::rnic::Rnic;
use crate::platform::copy;
use crate::shared::entry::domain;
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::{Hazard, TRANSFER_SLOTS};
use crate::shared::rpc::{CallPhase, CallState};
use crate::shared::segment::Segment;
use crate::shared::slot::Claim;
use crate::sync::{AtomicU32, AtomicU64, Relaxed};

/// The most bytes in transit at a time.
const ROOM: usize = CALL_PAYLOAD;
/// How long a sender waits within one attempt.
const ATTEMPT_WAIT: Duration = Duration::from_millis(20);
/// The same for requests with a single attempt, because a busy machine delays a thread for longer
/// than `ATTEMPT_WAIT`.
const SINGLE_ATTEMPT_WAIT: Duration = Duration::from_millis(100);

/// A request in the owner's segment.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RpcCell {
    state: CallState,
    operation: AtomicU32,
    key: AtomicU32,
    status: AtomicU32,
    queue_pair: AtomicU32,
    /// A receive that was left to the owner: its slot in the queue pair's receive queue, ...
    slot: AtomicU32,
    snapshot: AtomicU64,
    address: AtomicU64,
    length: AtomicU64,
    operands: [AtomicU64; 2],
    /// Distinguishes one request from the next.
    ticket: AtomicU64,
    value: AtomicU64,
    /// ... the sender's claim of it, ...
    claim: AtomicU64,
    /// ... and the index of its shared receive queue plus one, or 0.
    shared_queue: AtomicU64,
    unused: [AtomicU64; 4],
}

// The cell has no padding: every byte belongs to an atomic.
#[cfg(not(loom))]
const _: () = assert!(size_of::<RpcCell>() == 6 * 4 + 13 * 8 && size_of::<RpcCell>() <= CALL_HEADER);

/// What the owner is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RpcOperation {
    /// Copy bytes from the cell to the memory; more of the message follow.
    WritePart = 1,
    /// Copy the last bytes of a message from the cell to the memory.
    WriteLast = 2,
    /// Copy bytes from the memory to the cell.
    Read = 3,
    CompareSwap = 4,
    FetchAdd = 5,
    /// Store eight bytes at once.
    AtomicWrite = 6,
    /// Invalidate a memory window.
    Invalidate = 7,
}

impl RpcOperation {
    fn from_number(number: u32) -> Option<Self> {
        use RpcOperation as O;
        [O::WritePart, O::WriteLast, O::Read, O::CompareSwap, O::FetchAdd, O::AtomicWrite, O::Invalidate]
            .into_iter()
            .find(|operation| *operation as u32 == number)
    }

    /// Whether it must not be executed twice.
    fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd | Self::AtomicWrite)
    }

    /// The access that the region must allow. A write may be that of a SEND to a receive.
    fn needs(self) -> u32 {
        let write = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let needed = match self {
            Self::Read => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
            Self::CompareSwap | Self::FetchAdd => write | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC,
            Self::AtomicWrite => write | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
            Self::WritePart | Self::WriteLast | Self::Invalidate => write,
        };
        needed.0
    }
}

/// A request: a part of a piece of the peer's memory.
#[derive(Clone, Copy, Debug)]
struct RpcRequest {
    operation: RpcOperation,
    offset: usize,
    length: usize,
    operands: [u64; 2],
}

/// Values of the answer's status.
const DONE: u32 = 1;
const REFUSED: u32 = 2;

/// The value of the answer to a copy if the memory is missing; otherwise it is 0.
const NO_MEMORY: u64 = 1;

/// Values of the answer to [`RpcOperation::Invalidate`].
const INVALIDATED: u64 = 0;
const STILL_TOUCHED: u64 = 1;
const NOT_INVALIDATED: u64 = 2;

/// The cell of a transfer slot, and its room for payload. `None` if `area` is not inside the
/// segment.
fn rpc_cell(segment: &Segment, area: u64, transfer_slot: usize) -> Option<(&RpcCell, NonNull<u8>)> {
    if transfer_slot >= TRANSFER_SLOTS {
        return None;
    }
    let offset = area.checked_add((transfer_slot * CALL_CELL) as u64)?;
    let place = segment.heap(offset, CALL_CELL)?;
    if !place.cast::<RpcCell>().is_aligned() {
        return None;
    }
    // SAFETY: the place is inside the segment's mapping and aligned (checked above), and an
    // `RpcCell` consists of atomics.
    let cell = unsafe { place.cast::<RpcCell>().as_ref() };
    // SAFETY: the room follows the cell, inside the area that was checked above.
    Some((cell, unsafe { place.add(CALL_HEADER) }))
}

/// Asks the owner for one operation and waits for the answer. If the same ticket and address were
/// asked before, only waits.
fn call_owner(
    ctx: TransferCtx<'_>,
    remote: &RemotePiece,
    request: RpcRequest,
    bytes: &mut dyn FnMut(NonNull<u8>) -> Result<(), CopyError>,
) -> Result<u64, CopyError> {
    let process = &ctx.peer.process;
    let (cell, room) = rpc_cell(process.segment(), process.call_area(), ctx.transfer_slot.index())
        .ok_or(CopyError::PeerGone)?;
    let address = remote.address.wrapping_add(request.offset as u64);
    let same = cell.ticket.load(Relaxed) == ctx.ticket && cell.address.load(Relaxed) == address;
    match cell.state.phase() {
        // An earlier attempt has waited for it already.
        CallPhase::Begun if same => return Err(CopyError::OwnerBusy),
        CallPhase::Asked | CallPhase::Answered if same => {}
        // An earlier request of this transfer slot, whose sender has gone on to something else.
        CallPhase::Asked | CallPhase::Begun | CallPhase::Left => return Err(CopyError::OwnerPending),
        // An atomic operation is done, and its sender has not seen the answer yet. It must not be
        // executed again.
        _ if process.pending_atomic(ctx.transfer_slot.index()).is_some_and(|ticket| ticket != ctx.ticket) => {
            return Err(CopyError::OwnerPending);
        }
        _ => {
            if matches!(request.operation, RpcOperation::WritePart | RpcOperation::WriteLast) {
                bytes(room)?;
            }
            process.set_pending_atomic(
                ctx.transfer_slot.index(),
                request.operation.is_atomic().then_some(ctx.ticket),
            );
            cell.operation.store(request.operation as u32, Relaxed);
            cell.queue_pair.store(ctx.peer.index, Relaxed);
            cell.snapshot.store(ctx.peer.snapshot.to_word(), Relaxed);
            cell.key.store(remote.key, Relaxed);
            cell.address.store(address, Relaxed);
            cell.length.store(request.length as u64, Relaxed);
            cell.ticket.store(ctx.ticket, Relaxed);
            for (word, value) in cell.operands.iter().zip(request.operands) {
                word.store(value, Relaxed);
            }
            cell.state.ask();
            process.ring(Doorbell::Call { transfer_slot: ctx.transfer_slot.index() as u16 });
        }
    }
    wait_for_answer(ctx, cell)?;
    let (status, value) = (cell.status.load(Relaxed), cell.value.load(Relaxed));
    let brings = status == DONE && request.operation == RpcOperation::Read && value != NO_MEMORY;
    let came = if brings { bytes(room) } else { Ok(()) };
    cell.state.end();
    process.set_pending_atomic(ctx.transfer_slot.index(), None);
    came?;
    if status == DONE { Ok(value) } else { Err(CopyError::Refused) }
}

/// Waits for the answer. Withdraws a request that the owner has not begun in time, because it must
/// not be executed once somebody else has its receive. A request that has begun cannot be
/// withdrawn.
fn wait_for_answer(ctx: TransferCtx<'_>, cell: &RpcCell) -> Result<(), CopyError> {
    let begin = Instant::now();
    // A datagram is not retried.
    let once = u32::from(ctx.peer.descriptor.qp_type) == ibv_qp_type::IBV_QPT_UD.0 && !is_service_thread();
    let limit = if once { SINGLE_ATTEMPT_WAIT } else { ATTEMPT_WAIT };
    let (mut spins, mut areas) = (0_u32, Vec::new());
    loop {
        let phase = cell.state.phase();
        if phase == CallPhase::Answered {
            return Ok(());
        }
        let waited = begin.elapsed();
        if !ctx.peer.process.alive() {
            return Err(CopyError::PeerGone);
        }
        if waited > limit && phase == CallPhase::Asked && cell.state.withdraw() {
            ctx.peer.process.set_pending_atomic(ctx.transfer_slot.index(), None);
            return Err(CopyError::OwnerPending);
        }
        if waited > 2 * limit {
            return Err(CopyError::OwnerBusy);
        }
        if is_service_thread() {
            // The owner's service thread may be waiting for this one.
            ctx.rnic.serve_all_calls(&mut areas);
        }
        spins = spins.saturating_add(1);
        if spins < 100 { core::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

/// Leaves the receive of the request to the owner, which still executes it. Returns false if the
/// call has ended.
#[cold]
pub(crate) fn abandon_to_owner(ctx: TransferCtx<'_>, slot: u32, claim: Claim) -> bool {
    let process = &ctx.peer.process;
    let Some((cell, _)) = rpc_cell(process.segment(), process.call_area(), ctx.transfer_slot.index()) else {
        return false;
    };
    cell.slot.store(slot, Relaxed);
    cell.claim.store(claim.to_word(), Relaxed);
    cell.shared_queue.store(ctx.peer.descriptor.srq.into(), Relaxed);
    let left = cell.state.leave();
    if !left && cell.state.phase() == CallPhase::Answered {
        // That answer was for this receive; the next attempt may have another.
        cell.state.end();
    }
    left
}

/// A receive that was left to its owner.
#[derive(Clone, Debug)]
pub(crate) struct AbandonedRecv {
    process: Arc<PeerProcess>,
    ticket: u64,
    since: Instant,
}

impl AbandonedRecv {
    /// The receive that was left in this transfer slot for the request `ticket`, if any.
    pub(crate) fn find(process: &Arc<PeerProcess>, transfer_slot: usize, ticket: u64) -> Option<Self> {
        let left = Self { process: Arc::clone(process), ticket, since: Instant::now() };
        left.is_there(process, transfer_slot).then_some(left)
    }

    /// Whether `process` is the owner and still holds the receive.
    pub(crate) fn is_there(&self, process: &Arc<PeerProcess>, transfer_slot: usize) -> bool {
        let cell = rpc_cell(process.segment(), process.call_area(), transfer_slot % TRANSFER_SLOTS);
        Arc::ptr_eq(&self.process, process)
            && process.alive()
            && cell.is_some_and(|(cell, _)| {
                cell.state.phase() == CallPhase::Left && cell.ticket.load(Relaxed) == self.ticket
            })
    }

    /// Whether the owner still holds the receive.
    pub(crate) fn is_still_there(&self, transfer_slot: usize) -> bool {
        self.is_there(&self.process, transfer_slot)
    }

    /// The time since it was left.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }
}

/// Moves a message by calls to the owner, part by part.
///
/// # Safety
///
/// The gathered pieces may be touched, and written if the direction is `Read`.
pub(crate) unsafe fn copy_by_rpc(
    ctx: TransferCtx<'_>,
    direction: Direction,
    remotes: &[RemotePiece],
) -> Result<(), CopyError> {
    let total = ctx.gather_list.length();
    let mut done = 0;
    for remote in remotes {
        if matches!(remote.place, RemotePlace::Null) {
            done += remote.len.min(total - done);
            continue;
        }
        let mut offset = 0;
        while offset < remote.len && done < total {
            let length = ROOM.min(remote.len - offset).min(total - done);
            let operation = match direction {
                Direction::Read => RpcOperation::Read,
                Direction::Write if done + length == total => RpcOperation::WriteLast,
                Direction::Write => RpcOperation::WritePart,
            };
            let request = RpcRequest { operation, offset, length, operands: [0; 2] };
            let mut bytes = |room: NonNull<u8>| {
                // SAFETY: the caller guarantees that the gathered pieces may be touched. The room
                // has `length` bytes and belongs to this transfer slot.
                unsafe { copy_part(direction, ctx.gather_list, done, room, length) }
            };
            if call_owner(ctx, remote, request, &mut bytes)? == NO_MEMORY {
                return Err(CopyError::BadAddress);
            }
            offset += length;
            done += length;
        }
    }
    Ok(())
}

/// Executes an atomic operation by a call to the owner, and returns the previous value.
pub(crate) fn atomic_by_rpc(
    ctx: TransferCtx<'_>,
    remote: &RemotePiece,
    operation: RpcOperation,
    operands: [u64; 2],
) -> Result<u64, CopyError> {
    call_owner(ctx, remote, RpcRequest { operation, offset: 0, length: 8, operands }, &mut |_| Ok(()))
}

/// Asks the owner to invalidate one of its windows.
pub(crate) fn invalidate_by_rpc(
    ctx: TransferCtx<'_>,
    key: u32,
) -> Result<Result<(), WindowError>, CopyError> {
    // No part of a message has this address, so the call cannot be mistaken for one of them.
    let nowhere = RemotePiece { place: RemotePlace::ByOwner, len: 0, key, address: u64::MAX };
    let request = RpcRequest { operation: RpcOperation::Invalidate, offset: 0, length: 0, operands: [0; 2] };
    match call_owner(ctx, &nowhere, request, &mut |_| Ok(())) {
        Ok(INVALIDATED) => Ok(Ok(())),
        Ok(STILL_TOUCHED) => Ok(Err(WindowError::Busy)),
        Ok(_) => Ok(Err(WindowError::Refused)),
        // The queue pair has changed.
        Err(CopyError::Refused) => Err(CopyError::PathLost),
        Err(broken) => Err(broken),
    }
}

/// Copies one part between the pieces and the room.
///
/// # Errors
///
/// `OwnBadAddress` if a piece has no memory.
///
/// # Safety
///
/// `length` bytes of the pieces from byte `skip` on may be touched, and `room` has `length` bytes.
unsafe fn copy_part(
    direction: Direction,
    gather_list: &GatherList<'_>,
    mut skip: usize,
    room: NonNull<u8>,
    length: usize,
) -> Result<(), CopyError> {
    let mut done = 0;
    for piece in &gather_list.pieces {
        let from = skip.min(piece.len);
        skip -= from;
        let len = (piece.len - from).min(length - done);
        let there = room.as_ptr().wrapping_add(done);
        let here = LocalPiece { at: piece.at.wrapping_add(from), len };
        // SAFETY: the caller guarantees that `len` bytes of both may be touched.
        unsafe {
            match direction {
                Direction::Write => here.read(gather_list.by_system, there)?,
                Direction::Read => here.write(gather_list.by_system, there)?,
            }
        }
        done += len;
    }
    Ok(())
}

impl Rnic {
    /// Serves the calls of all peers. `areas` is scratch space for a caller that repeats this.
    fn serve_all_calls(&self, areas: &mut Vec<(u16, u64)>) {
        self.node().call_areas(areas);
        for (peer_id, area) in areas {
            // Look at all cells, because the doorbell that names one is still in the socket.
            for transfer_slot in 0..TRANSFER_SLOTS {
                self.serve_cell(*peer_id, *area, transfer_slot);
            }
        }
    }

    /// Serves the call of one peer, on the service thread only. Trusts nothing in the cell.
    pub(crate) fn serve_call(&self, peer_id: u16, transfer_slot: u16) {
        if let Some(area) = self.node().call_area_of(peer_id) {
            self.serve_cell(peer_id, area, transfer_slot.into());
        }
    }

    fn serve_cell(&self, peer_id: u16, area: u64, transfer_slot: usize) {
        let Some((cell, room)) = rpc_cell(self.node().segment(), area, transfer_slot) else { return };
        if cell.state.begin() {
            let answer = self.execute_rpc(cell, room);
            self.finish_rpc(peer_id, cell, answer);
        }
    }

    fn finish_rpc(&self, peer_id: u16, cell: &RpcCell, answer: Option<u64>) {
        cell.status.store(if answer.is_some() { DONE } else { REFUSED }, Relaxed);
        cell.value.store(answer.unwrap_or(0), Relaxed);
        if cell.state.answer() {
            return;
        }
        if let Some(claim) = Claim::from_word(cell.claim.load(Relaxed), peer_id) {
            let slot = cell.slot.load(Relaxed);
            match u32::try_from(cell.shared_queue.load(Relaxed)).unwrap_or(0).checked_sub(1) {
                Some(srq) => {
                    self.shared_queues().get(srq).into_iter().for_each(|srq| srq.repost_slot(slot, claim));
                }
                None => {
                    let queue_pair = self.queue_pairs().get(cell.queue_pair.load(Relaxed));
                    queue_pair.into_iter().for_each(|queue_pair| queue_pair.repost_slot(slot, claim));
                }
            }
        }
        cell.state.end();
    }

    fn execute_rpc(&self, cell: &RpcCell, room: NonNull<u8>) -> Option<u64> {
        let operation = RpcOperation::from_number(cell.operation.load(Relaxed))?;
        let (key, address) = (cell.key.load(Relaxed), cell.address.load(Relaxed));
        let operands: [u64; 2] = core::array::from_fn(|word| cell.operands[word].load(Relaxed));
        let length = usize::try_from(cell.length.load(Relaxed)).ok().filter(|length| *length <= ROOM)?;
        let queue_pair = cell.queue_pair.load(Relaxed);
        let through = GenerationSnapshot::from_word(cell.snapshot.load(Relaxed));
        let entry = self.node().segment().queue_pair(queue_pair)?;
        if operation == RpcOperation::Invalidate {
            let queue_pair = self.queue_pairs().get(queue_pair).filter(|_| entry.is_current(through))?;
            return Some(match queue_pair.invalidate_for_peer(key) {
                Ok(()) => INVALIDATED,
                Err(WindowError::Busy) => STILL_TOUCHED,
                Err(WindowError::Refused) => NOT_INVALIDATED,
            });
        }
        let (region, snapshot, descriptor) = self.regions().read(key)?;
        // The sender has checked this too, but any process can write to the cell.
        let receiver = self.queue_pairs().get(queue_pair)?;
        if !domain::serves(descriptor.pd, receiver.domain_of_receives(), receiver.number.qpn) {
            return None;
        }
        let hazard = self.node().service_hazard();
        // The sender may have given up and cleared its hazard. This hazard protects the copy.
        hazard.publish(Hazard::new(queue_pair, key >> 8));
        let holds = region.is_current(snapshot) && entry.is_current(through);
        let implicit = descriptor.implicit_pointer(address, length as u64);
        let at = descriptor.pointer(address, length as u64).or(implicit).filter(|_| holds);
        let allowed = descriptor.access & operation.needs() == operation.needs();
        let answer = at.filter(|_| allowed).and_then(|at| {
            if implicit.is_some() {
                // SAFETY: a range of an implicit region of this process that is valid under a
                // published hazard, and the room.
                return unsafe { self.execute_implicitly(operation, at, room, length) };
            }
            if operation.is_atomic() && (length != 8 || !at.addr().is_multiple_of(8)) {
                return None;
            }
            // SAFETY: `length` bytes of a region of this process that is valid under a published
            // hazard, and of the room. The eight bytes of an atomic are aligned.
            Some(unsafe {
                match operation {
                    RpcOperation::WritePart => copy::copy_unordered(at, room.as_ptr(), length),
                    RpcOperation::WriteLast => copy::copy(at, room.as_ptr(), length),
                    RpcOperation::Read => copy::copy_unordered(room.as_ptr(), at, length),
                    RpcOperation::CompareSwap => {
                        return Some(copy::compare_and_swap(at.cast(), operands[0], operands[1]));
                    }
                    RpcOperation::FetchAdd => return Some(copy::fetch_and_add(at.cast(), operands[0])),
                    RpcOperation::AtomicWrite => copy::atomic_store(at.cast(), operands[0]),
                    RpcOperation::Invalidate => return None,
                }
                0
            })
        });
        hazard.clear();
        answer
    }

    /// Copies to or from an implicit region, which takes part in no atomic.
    ///
    /// # Safety
    ///
    /// The program has offered `length` bytes at `at`, and the room has as many.
    #[cold]
    unsafe fn execute_implicitly(
        &self,
        operation: RpcOperation,
        at: *mut u8,
        room: NonNull<u8>,
        length: usize,
    ) -> Option<u64> {
        let (vm, room) = (self.node().own_vm()?, room.as_ptr());
        // SAFETY: the caller guarantees both ranges.
        let copied = unsafe {
            match operation {
                RpcOperation::WritePart | RpcOperation::WriteLast => vm.write_own(at, room, length),
                RpcOperation::Read => vm.read_own(room, at, length),
                _ => return None,
            }
        };
        Some(copied.map_or(NO_MEMORY, |()| 0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
