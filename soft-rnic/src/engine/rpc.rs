//! Remote procedure calls to the owner of memory, where neither a mapping nor the kernel reaches it.
//!
//! Every peer process has, in its segment, a cell for each transfer slot of this process: a request, and room for bytes in transit.
//! The sender fills it in, rings, and waits a moment for the owner's service thread, which checks the request against its
//! own, private tables. An owner that does not begin in time is tried again like one that does not acknowledge; what it has
//! begun stays in the cell, so that nothing (no atomic, above all) is done twice. Nobody waits long for that, either: what is
//! sent stays outstanding, and if a receive was claimed for it, that is the owner's until it has come to its end.

use core::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::{ibv_access_flags, ibv_qp_type};

use super::payload::{Direction, LocalPiece, RemotePiece, RemotePlace};
use super::{CopyError, TransferCtx};
use crate::node::{CALL_CELL, CALL_HEADER, CALL_PAYLOAD, Doorbell, PeerProcess, is_service_thread};
use crate::objects::memory_window::WindowError;
use crate::objects::rnic::Rnic;
use crate::platform::copy;
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::{Hazard, TRANSFER_SLOTS};
use crate::shared::rpc::{CallPhase, CallState};
use crate::shared::segment::Segment;
use crate::shared::slot::Claim;
use crate::sync::{AtomicU32, AtomicU64, Relaxed};

/// Bytes in transit at a time.
const ROOM: usize = CALL_PAYLOAD;
/// How long a sender waits within one attempt.
const PATIENCE: Duration = Duration::from_millis(20);
/// The same for what has one attempt only: a busy machine keeps a thread waiting for longer than that.
const PATIENCE_ONCE: Duration = Duration::from_millis(100);

/// A request in the owner's segment.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RpcCell {
    state: CallState,
    operation: AtomicU32,
    key: AtomicU32,
    status: AtomicU32,
    queue_pair: AtomicU32,
    /// What is left to the owner: a slot of the queue pair's receive queue, ...
    slot: AtomicU32,
    snapshot: AtomicU64,
    address: AtomicU64,
    length: AtomicU64,
    operands: [AtomicU64; 2],
    /// Tells one request from the next.
    ticket: AtomicU64,
    value: AtomicU64,
    /// ... its claim, ...
    claim: AtomicU64,
    /// ... and the shared receive queue's index plus one, if it is of one.
    shared_queue: AtomicU64,
    unused: [AtomicU64; 4],
}

// Every byte is an atomic's.
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
    /// Take the memory of a window away from peers.
    Invalidate = 7,
}

impl RpcOperation {
    fn from_number(number: u32) -> Option<Self> {
        use RpcOperation as O;
        [O::WritePart, O::WriteLast, O::Read, O::CompareSwap, O::FetchAdd, O::AtomicWrite, O::Invalidate]
            .into_iter()
            .find(|operation| *operation as u32 == number)
    }

    /// Whether it must not be done twice.
    fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd | Self::AtomicWrite)
    }

    fn needs(self) -> u32 {
        match self {
            Self::Read => 0,
            _ => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
        }
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

/// Answers.
const DONE: u32 = 1;
const REFUSED: u32 = 2;

/// Values of the answer to [`RpcOperation::Invalidate`].
const INVALIDATED: u64 = 0;
const STILL_TOUCHED: u64 = 1;
const NOT_INVALIDATED: u64 = 2;

/// The cell of a transfer slot, and its room. `area` is checked against the segment.
fn rpc_cell(segment: &Segment, area: u64, transfer_slot: usize) -> Option<(&RpcCell, NonNull<u8>)> {
    if transfer_slot >= TRANSFER_SLOTS {
        return None;
    }
    let offset = area.checked_add((transfer_slot * CALL_CELL) as u64)?;
    let place = segment.heap(offset, CALL_CELL)?;
    if !place.cast::<RpcCell>().is_aligned() {
        return None;
    }
    // SAFETY: inside of the segment's mapping and aligned, as was checked; a `RpcCell` is atomics.
    let cell = unsafe { place.cast::<RpcCell>().as_ref() };
    // SAFETY: inside of the segment's mapping and aligned, as was checked; a `RpcCell` is atomics:
    // the room follows the cell.
    Some((cell, unsafe { place.add(CALL_HEADER) }))
}

/// Asks for one thing and waits for it. What was asked before with the same ticket for the same place is waited for, not
/// asked again.
fn call_owner(
    ctx: TransferCtx<'_>,
    remote: &RemotePiece,
    request: RpcRequest,
    bytes: &mut dyn FnMut(NonNull<u8>),
) -> Result<u64, CopyError> {
    let process = &ctx.peer.process;
    let (cell, room) = rpc_cell(process.segment(), process.call_area(), ctx.transfer_slot.index())
        .ok_or(CopyError::PeerGone)?;
    let address = remote.address.wrapping_add(request.offset as u64);
    let same = cell.ticket.load(Relaxed) == ctx.ticket && cell.address.load(Relaxed) == address;
    match cell.state.phase() {
        // It was waited for before.
        CallPhase::Begun if same => return Err(CopyError::OwnerBusy),
        CallPhase::Asked | CallPhase::Answered if same => {}
        // An earlier request of this transfer slot, whose sender does something else meanwhile.
        CallPhase::Asked | CallPhase::Begun | CallPhase::Left => return Err(CopyError::OwnerPending),
        // An atomic operation that was done, and whose sender has yet to hear of it: it must not be done again.
        _ if process.pending_atomic(ctx.transfer_slot.index()).is_some_and(|ticket| ticket != ctx.ticket) => {
            return Err(CopyError::OwnerPending);
        }
        _ => {
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
            if matches!(request.operation, RpcOperation::WritePart | RpcOperation::WriteLast) {
                bytes(room);
            }
            cell.state.ask();
            process.ring(Doorbell::Call { transfer_slot: ctx.transfer_slot.index() as u16 });
        }
    }
    wait_for_answer(ctx, cell)?;
    let (status, value) = (cell.status.load(Relaxed), cell.value.load(Relaxed));
    if status == DONE && request.operation == RpcOperation::Read {
        bytes(room);
    }
    cell.state.end();
    process.set_pending_atomic(ctx.transfer_slot.index(), None);
    if status == DONE { Ok(value) } else { Err(CopyError::BadAddress) }
}

/// Waits for the answer. A request that the owner has not begun in time is taken back: it must not be carried out once the
/// receive that it was for is somebody else's. One that it has begun cannot be.
fn wait_for_answer(ctx: TransferCtx<'_>, cell: &RpcCell) -> Result<(), CopyError> {
    let begin = Instant::now();
    // A datagram is not tried again.
    let once = u32::from(ctx.peer.descriptor.qp_type) == ibv_qp_type::IBV_QPT_UD.0 && !is_service_thread();
    let patience = if once { PATIENCE_ONCE } else { PATIENCE };
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
        if waited > patience && phase == CallPhase::Asked && cell.state.withdraw() {
            ctx.peer.process.set_pending_atomic(ctx.transfer_slot.index(), None);
            return Err(CopyError::OwnerPending);
        }
        if waited > 2 * patience {
            return Err(CopyError::OwnerBusy);
        }
        if is_service_thread() {
            // The owner's service thread may wait for this one just as well.
            ctx.rnic.serve_all_calls(&mut areas);
        }
        spins = spins.saturating_add(1);
        if spins < 100 { core::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

/// Leaves the receive that the request was for to the owner, who is at it. False if it has come to its end.
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
        // Of this receive: the next attempt may have another.
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
    /// What was left in this transfer slot for a request, if anything was.
    pub(crate) fn find(process: &Arc<PeerProcess>, transfer_slot: usize, ticket: u64) -> Option<Self> {
        let left = Self { process: Arc::clone(process), ticket, since: Instant::now() };
        left.is_there(process, transfer_slot).then_some(left)
    }

    /// Whether the owner, if it is this one, still has it.
    pub(crate) fn is_there(&self, process: &Arc<PeerProcess>, transfer_slot: usize) -> bool {
        let cell = rpc_cell(process.segment(), process.call_area(), transfer_slot % TRANSFER_SLOTS);
        Arc::ptr_eq(&self.process, process)
            && process.alive()
            && cell.is_some_and(|(cell, _)| {
                cell.state.phase() == CallPhase::Left && cell.ticket.load(Relaxed) == self.ticket
            })
    }

    /// Whether whoever it was left to still has it.
    pub(crate) fn is_still_there(&self, transfer_slot: usize) -> bool {
        self.is_there(&self.process, transfer_slot)
    }

    /// For how long.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }
}

/// Moves a message by asking, part by part.
///
/// # Safety
///
/// The gathered pieces may be touched: written, if the direction is `Read`.
pub(crate) unsafe fn copy_by_rpc(
    ctx: TransferCtx<'_>,
    direction: Direction,
    remotes: &[RemotePiece],
) -> Result<(), CopyError> {
    let pieces = &ctx.gather_list.pieces;
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
                // SAFETY: the gathered pieces are the caller's to touch; the room has `length` bytes and is this transfer slot's.
                unsafe { copy_part(direction, pieces, done, room, length) };
            };
            call_owner(ctx, remote, request, &mut bytes)?;
            offset += length;
            done += length;
        }
    }
    Ok(())
}

/// Does an atomic operation by asking; what was there before.
pub(crate) fn atomic_by_rpc(
    ctx: TransferCtx<'_>,
    remote: &RemotePiece,
    operation: RpcOperation,
    operands: [u64; 2],
) -> Result<u64, CopyError> {
    call_owner(ctx, remote, RpcRequest { operation, offset: 0, length: 8, operands }, &mut |_| {})
}

/// Has the owner take the memory of one of its windows away from peers.
pub(crate) fn invalidate_by_rpc(
    ctx: TransferCtx<'_>,
    key: u32,
) -> Result<Result<(), WindowError>, CopyError> {
    // An address that no part of the message has.
    let nowhere = RemotePiece { place: RemotePlace::ByOwner, len: 0, key, address: u64::MAX };
    let request = RpcRequest { operation: RpcOperation::Invalidate, offset: 0, length: 0, operands: [0; 2] };
    match call_owner(ctx, &nowhere, request, &mut |_| {}) {
        Ok(INVALIDATED) => Ok(Ok(())),
        Ok(STILL_TOUCHED) => Ok(Err(WindowError::Busy)),
        Ok(_) => Ok(Err(WindowError::Refused)),
        // The queue pair has changed.
        Err(CopyError::BadAddress) => Err(CopyError::PathLost),
        Err(broken) => Err(broken),
    }
}

/// # Safety
///
/// `length` bytes from `skip` on are within the pieces, which may be touched; `room` has as many.
unsafe fn copy_part(
    direction: Direction,
    pieces: &[LocalPiece],
    mut skip: usize,
    room: NonNull<u8>,
    length: usize,
) {
    let mut done = 0;
    for piece in pieces {
        let from = skip.min(piece.len);
        skip -= from;
        let len = (piece.len - from).min(length - done);
        let (here, there) = (piece.at.wrapping_add(from), room.as_ptr().wrapping_add(done));
        // SAFETY: `len` bytes of both, by the caller's promise.
        unsafe {
            match direction {
                Direction::Write => copy::copy_unordered(there, here, len),
                Direction::Read => copy::copy_unordered(here, there, len),
            }
        }
        done += len;
    }
}

impl Rnic {
    /// Does what peers have asked for. `areas` is room to remember where that is, for one who does so again and again.
    fn serve_all_calls(&self, areas: &mut Vec<(u16, u64)>) {
        self.node().call_areas(areas);
        for (peer_id, area) in areas {
            // All of them: which was rung for waits in the socket.
            for transfer_slot in 0..TRANSFER_SLOTS {
                self.serve_cell(*peer_id, *area, transfer_slot);
            }
        }
    }

    /// Does what a peer has asked for. Nothing of it is trusted; only the service thread comes here.
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
        let hazard = self.node().service_hazard();
        // The sender may have given up meanwhile and cleared its own hazard: this one stands for the copy.
        hazard.publish(Hazard::new(queue_pair, key >> 8));
        let holds = region.is_current(snapshot) && entry.is_current(through);
        let at = descriptor.pointer(address, length as u64).filter(|_| holds);
        let allowed = descriptor.access & operation.needs() == operation.needs();
        let answer = at.filter(|_| allowed).and_then(|at| {
            if operation.is_atomic() && (length != 8 || !at.addr().is_multiple_of(8)) {
                return None;
            }
            // SAFETY: `length` bytes of a region of this process that holds under a published hazard, and of the room; an
            // atomic's eight bytes are aligned.
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
}

#[cfg(all(test, not(loom)))]
mod tests;
