//! The fast path of RDMA WRITE, RDMA READ and SEND on an established connection.
//!
//! It takes three cases:
//!
//! - a WRITE of one piece to memory that is mapped here or that one system call reaches,
//! - a READ of one piece from memory that is mapped here,
//! - a SEND of one piece that fits into the slot of the receive.
//!
//! It performs the steps of the general path (`write.rs`, `read.rs`, `send.rs`) in the same order.
//! In every other case (a wrong key, a changed generation, no receive) it returns before it has
//! touched anything, and the general path finds the outcome.

use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_access_flags, ibv_send_flags, ibv_wc_flags, ibv_wc_status, ibv_wr_opcode};

use super::payload::Direction;
use super::peer::PeerQp;
use super::send::sges_are_valid;
use super::validate::revalidate;
use super::{Deferred, Hazards};
use crate::faults::Step;
use crate::faults::injected::reach;
use crate::node::{ExportId, PayloadPath, TransferSlotGuard, VmError};
use crate::objects::region::RegionSlot;
use crate::platform::{copy, vm};
use crate::queue_pair::send_queue::{PayloadKind, PostedSend};
use crate::queue_pair::transfer_slot_mutex::TransferSlotMutexGuard;
use crate::queue_pair::{Qp, Sending};
use crate::shared::entry::{MrDescriptor, MrEntry, kind};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::Hazard;
use crate::shared::slot::{Delivery, EAGER};

/// The access flag that the peer's region needs for this direction.
#[inline(always)]
fn needed(direction: Direction) -> u32 {
    match direction {
        Direction::Write => ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        Direction::Read => ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
    }
}

/// The only piece of a message on this side, with the generation to compare again. Inline data have
/// none.
struct FastPiece<'a> {
    at: *const u8,
    len: usize,
    /// Whether an RDMA READ may write to it.
    writable: bool,
    region: Option<(&'a RegionSlot, GenerationSnapshot, u32)>,
}

impl FastPiece<'_> {
    #[inline]
    fn is_current(&self) -> bool {
        self.region.is_none_or(|(region, snapshot, _)| region.is_current(snapshot))
    }

    /// Copies the piece to `there`, or from there for a READ.
    ///
    /// # Safety
    ///
    /// `self.len` bytes of both sides may be touched. The destination may be written: `there` for a
    /// WRITE, this piece for a READ (`writable`).
    #[inline(always)]
    unsafe fn copy(&self, direction: Direction, there: *mut u8) {
        let (to, from) = match direction {
            Direction::Write => (there, self.at),
            Direction::Read => (self.at.cast_mut(), there.cast_const()),
        };
        // SAFETY: the contract of `copy`: both sides may be touched for the length of the piece,
        // and the destination may be written.
        unsafe { copy::copy(to, from, self.len) }
    }
}

impl Qp {
    /// Executes a request if the fast path applies, and returns whether it did. If it returns
    /// false, nothing irreversible has happened. Do not call it while fault rules are active,
    /// because they need the general path. `alone`: no request is posted behind this one that a
    /// batch could move with it.
    #[inline(always)]
    pub(super) fn execute_fast(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &PostedSend<'_>,
        alone: bool,
        deferred: &mut Deferred,
    ) -> bool {
        let request = posted.request;
        let (state, transfer_slot) = sending.parts();
        let Some(peer) = &state.peer else { return false };
        if !peer.established
            || !peer.process.alive()
            || request.length > peer.longest.min(vm::MAX_BYTES as u64)
        {
            return false;
        }
        let Some(piece) = self.single_piece(posted) else { return false };
        let done = match request.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => {
                self.fast_write_or_read(Direction::Write, posted, &piece, peer, transfer_slot, alone)
            }
            ibv_wr_opcode::IBV_WR_RDMA_READ => {
                let may = piece.writable && self.may_read(state, peer);
                may && self.fast_write_or_read(Direction::Read, posted, &piece, peer, transfer_slot, false)
            }
            ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => {
                self.fast_send(posted, &piece, peer, transfer_slot, deferred)
            }
            _ => false,
        };
        if done {
            state.advance_psn(request.length);
        }
        done
    }

    #[inline]
    fn single_piece(&self, posted: &PostedSend<'_>) -> Option<FastPiece<'_>> {
        let request = posted.request;
        if request.payload == PayloadKind::Inline {
            let (at, len) = (posted.inline, request.length as usize);
            return Some(FastPiece { at, len, writable: false, region: None });
        }
        let [entry] = posted.entries else { return None };
        let (region, snapshot, descriptor) = self.rnic.regions().read(entry.lkey)?;
        let at =
            descriptor.pointer(entry.addr, request.length).filter(|_| descriptor.pd == self.pd.number())?;
        let writable = descriptor.access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 != 0;
        let region = Some((region, snapshot, entry.lkey >> 8));
        Some(FastPiece { at, len: request.length as usize, writable, region })
    }

    /// The hazards of a transfer slot, not yet set.
    #[inline(always)]
    pub(super) fn hazards<'a>(
        &'a self,
        peer: &'a PeerQp,
        transfer_slot: &TransferSlotGuard<'_>,
    ) -> Hazards<'a> {
        Hazards {
            local: self.rnic.node().local_hazard(transfer_slot.index()),
            remote: peer.process.hazard_slot(transfer_slot.index()),
        }
    }

    /// Sets the hazards of a transfer that uses `region` of the peer, or none.
    #[inline(always)]
    fn set_hazards<'a>(
        &'a self,
        peer: &'a PeerQp,
        source: &FastPiece<'_>,
        remote_region: u32,
        transfer_slot: &TransferSlotGuard<'_>,
    ) -> Hazards<'a> {
        let hazards = self.hazards(peer, transfer_slot);
        if let Some((_, _, index)) = source.region {
            hazards.local.set(Hazard::new(self.number.index, index));
        }
        hazards.remote.set(Hazard::new(peer.index, remote_region));
        hazards
    }

    #[inline(always)]
    fn fast_write_or_read(
        &self,
        direction: Direction,
        posted: &PostedSend<'_>,
        piece: &FastPiece<'_>,
        peer: &PeerQp,
        transfer_slot: &TransferSlotGuard<'_>,
        alone: bool,
    ) -> bool {
        if piece.len == 0 || peer.descriptor.access & needed(direction) == 0 {
            return false;
        }
        if peer.process.is_own() {
            self.fast_copy_own_process(direction, posted, piece, peer, transfer_slot)
        } else {
            self.fast_copy_mapped(direction, posted, piece, peer, transfer_slot, alone)
        }
    }

    /// Copies within this process, by its private tables.
    #[inline]
    fn fast_copy_own_process(
        &self,
        direction: Direction,
        posted: &PostedSend<'_>,
        piece: &FastPiece<'_>,
        peer: &PeerQp,
        transfer_slot: &TransferSlotGuard<'_>,
    ) -> bool {
        let request = posted.request;
        let Some((region, snapshot, descriptor)) = self.rnic.regions().read(request.rkey) else {
            return false;
        };
        let Some(there) = descriptor.pointer(request.remote_addr, request.length) else { return false };
        if descriptor.pd != peer.descriptor.pd || descriptor.access & needed(direction) == 0 {
            return false;
        }
        reach(Step::BeforeMark);
        let hazards = self.set_hazards(peer, piece, Hazard::NO_REGION, transfer_slot);
        // The source may lie in another region than the destination: the hazard covers both.
        hazards.local.set(Hazard::new(peer.index, Hazard::ANY_REGION));
        if revalidate(peer, || region.is_current(snapshot), || piece.is_current()).is_err() {
            return false;
        }
        reach(Step::BeforeCopy);
        // SAFETY: the hazards are set and `revalidate` has compared all snapshots, so both sides
        // may be touched. Each lies within its region, or in the send queue if it is inline.
        unsafe { piece.copy(direction, there) };
        peer.process.counters().add(transfer_slot, PayloadPath::Own, piece.len);
        true
    }

    /// Copies to or from memory of the peer.
    #[inline(always)]
    fn fast_copy_mapped(
        &self,
        direction: Direction,
        posted: &PostedSend<'_>,
        piece: &FastPiece<'_>,
        peer: &PeerQp,
        transfer_slot: &TransferSlotGuard<'_>,
        alone: bool,
    ) -> bool {
        let request = posted.request;
        let index = request.rkey >> 8;
        let Some(entry) = peer.process.segment().region(index) else { return false };
        let Some((snapshot, descriptor)) = entry.read() else { return false };
        if snapshot.label() != request.rkey as u8
            || descriptor.pd != peer.descriptor.pd
            || descriptor.access & needed(direction) == 0
            || !descriptor.contains(request.remote_addr, request.length)
        {
            return false;
        }
        let (address, length) = (request.remote_addr, request.length);
        let shared = if descriptor.export == 0 {
            None
        } else {
            mapped_pointer(peer, transfer_slot, &descriptor, address, length, direction)
        };
        let Some(there) = shared else {
            let there = descriptor.address.wrapping_add(address.wrapping_sub(descriptor.iova));
            let by_kernel = alone && descriptor.access & kind::OWNER_ONLY == 0;
            return by_kernel
                && self.fast_write_by_kernel(piece, peer, transfer_slot, (entry, snapshot, index), there);
        };
        reach(Step::BeforeMark);
        let _hazards = self.set_hazards(peer, piece, index, transfer_slot);
        if revalidate(peer, || entry.is_current(snapshot), || piece.is_current()).is_err() {
            return false;
        }
        reach(Step::BeforeCopy);
        // SAFETY: the hazards are set and `revalidate` has compared all snapshots, so both sides
        // may be touched. Each lies within its region, and the transfer slot keeps the peer's
        // memory mapped.
        unsafe { piece.copy(direction, there) };
        peer.process.counters().add(transfer_slot, PayloadPath::Direct, piece.len);
        true
    }

    /// Writes to memory that only the kernel reaches, as `batch.rs` does for several messages. Body
    /// and tail are two ranges, which the kernel copies in order. Where it does not, the general
    /// path makes two calls.
    #[inline(always)]
    fn fast_write_by_kernel(
        &self,
        source: &FastPiece<'_>,
        peer: &PeerQp,
        transfer_slot: &TransferSlotGuard<'_>,
        (entry, snapshot, index): (&MrEntry, GenerationSnapshot, u32),
        there: u64,
    ) -> bool {
        let Some(vm) = peer.process.vm().filter(|_| vm::ORDERED) else { return false };
        let tail = copy::tail_len(there as usize, source.len);
        let body = source.len - tail;
        let local = [vm::local(source.at, body), vm::local(source.at.wrapping_add(body), tail)];
        let remote = [vm::remote(there, source.len)];
        reach(Step::BeforeMark);
        let hazards = self.set_hazards(peer, source, index, transfer_slot);
        if revalidate(peer, || entry.is_current(snapshot), || source.is_current()).is_err() {
            return false;
        }
        reach(Step::BeforeCopy);
        // SAFETY: the hazards are set and `revalidate` has compared all snapshots, so the source
        // may be read. The remote range lies in the peer's region.
        let moved = unsafe { vm.write(&local, &remote) };
        drop(hazards);
        peer.process.counters().add_call(transfer_slot);
        let done = moved == Ok(source.len);
        if done {
            peer.process.counters().add(transfer_slot, PayloadPath::Vm, source.len);
        } else if let Err(VmError::Forbidden(error)) = moved {
            peer.process.disable_vm(error);
        }
        done
    }

    /// Copies into the slot of a receive queue that has no other sender. It does not claim the
    /// slot: until the single step that finishes it, the owner may take it back.
    #[inline]
    fn fast_send(
        self: &Arc<Self>,
        posted: &PostedSend<'_>,
        piece: &FastPiece<'_>,
        peer: &PeerQp,
        transfer_slot: &TransferSlotGuard<'_>,
        deferred: &mut Deferred,
    ) -> bool {
        let Some(slots) = peer.slots.as_ref().filter(|_| peer.descriptor.srq == 0) else { return false };
        if piece.len > EAGER {
            return false;
        }
        reach(Step::BeforeMark);
        let _hazards = self.set_hazards(peer, piece, Hazard::NO_REGION, transfer_slot);
        if revalidate(peer, || true, || piece.is_current()).is_err() {
            return false;
        }
        reach(Step::BeforeClaim);
        let index = peer.progress_words().cursor();
        let Some(slot) = peer.process.segment().slot(slots, index) else { return false };
        let Some(posted_state) = slot.header.posted_state() else { return false };
        let room = slot.header.room();
        let offer = || peer.process.segment().offer(slots, index);
        if piece.len > room.bytes as usize
            || !sges_are_valid(peer, &slot.header.first, offer, room, piece.len)
        {
            return false;
        }
        reach(Step::BeforeCopy);
        // SAFETY: the source may be read, because the hazard is set, a full fence has followed and
        // its snapshot is current. It is at most as long as the eager bytes. The owner reads those
        // only once the slot is done. Nobody else writes them: the queue pair has one sender, and
        // its owner waits for the hazard before it accepts another.
        unsafe { copy::copy_unordered(slot.eager.as_ptr(), piece.at, piece.len) };
        reach(Step::BeforeFinish);
        let request = posted.request;
        let with_imm = request.opcode == ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
        let delivery = Delivery {
            status: ibv_wc_status::IBV_WC_SUCCESS.0 as u8,
            opcode: 0, // `IBV_WC_RECV`, as an offset from it.
            wc_flags: if with_imm { ibv_wc_flags::IBV_WC_WITH_IMM.0 as u8 } else { 0 },
            eager: true,
            byte_len: piece.len as u32,
            imm_data: request.imm_data,
            src_qp: self.number.qpn,
            queue_pair: peer.index,
        };
        if !slot.header.fulfil(posted_state, peer.process.number(), &delivery) {
            return false;
        }
        let next = slots.next(index);
        peer.progress_words().set_cursor(next);
        if let Some(slot) = peer.process.segment().slot(slots, next) {
            // The owner read these bytes last and does not touch them before the next message
            // arrives.
            copy::fetch_to_write(slot.eager.as_ptr(), piece.len.div_ceil(copy::LINE));
        }
        let path = if peer.process.is_own() { PayloadPath::Own } else { PayloadPath::Slot };
        peer.process.counters().add(transfer_slot, path, piece.len);
        reach(Step::BeforeAnnounce);
        self.announce_completion(peer, request.has(ibv_send_flags::IBV_SEND_SOLICITED), deferred);
        true
    }
}

/// The pointer to a range of a peer's region that is mapped here. `None` if it is not.
#[inline]
pub(super) fn mapped_pointer(
    peer: &PeerQp,
    transfer_slot: &TransferSlotGuard<'_>,
    descriptor: &MrDescriptor,
    address: u64,
    length: u64,
    direction: Direction,
) -> Option<*mut u8> {
    let export = ExportId { index: descriptor.export.checked_sub(1)?, epoch: descriptor.export_epoch };
    let there = descriptor.address.wrapping_add(address.wrapping_sub(descriptor.iova));
    let place = peer
        .process
        .mapped_memory(transfer_slot, export, direction == Direction::Write)?
        .at(there, length)?;
    Some(place.as_ptr())
}
