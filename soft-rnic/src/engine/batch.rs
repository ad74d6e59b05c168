//! Batches: one system call moves consecutive RDMA READs, or consecutive RDMA WRITEs and SENDs.
//!
//! The hazards and the comparison of generations cover all messages of a batch. The kernel reports
//! how many bytes it has moved, range after range, so the messages within those bytes are done. The
//! general path executes the first message that is not done and finds its outcome.
//!
//! Before the copy, the SENDs claim their receives one after the other. After it, they finish those
//! receives in the same order. Receives of messages that were not moved go back, the latest first,
//! so that the next message takes the earliest. No WRITE follows a SEND in a batch, because a peer
//! that sees the bytes of the WRITE may take the SEND for complete.

use std::sync::Arc;

use arrayvec::ArrayVec;
use rdma_mummy_sys::types::{ibv_access_flags, ibv_qp_type, ibv_wc_status, ibv_wr_opcode};

use super::payload::Direction;
use super::peer::PeerQp;
use super::send::{ClaimedRecv, RecvMeta, RecvSges, map_for, unclaim_receive};
use super::validate::revalidate;
use super::{Deferred, Hazards};
use crate::node::{PayloadPath, TransferSlotGuard};
use crate::objects::region::RegionSlot;
use crate::platform::copy;
use crate::platform::vm::{self, Vm, VmError};
use crate::queue_pair::send_queue::{PayloadKind, PostedSend, SendQueueConsumer};
use crate::queue_pair::transfer_slot_mutex::TransferSlotMutexGuard;
use crate::queue_pair::{Qp, Sending};
use crate::shared::entry::{MrEntry, kind};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::Hazard;
use crate::shared::segment::MAX_SGE;
use crate::shared::slot::EAGER;

/// The most messages that one call moves.
const MAX_MESSAGES: usize = 64;
/// The most ranges of one call, on either side.
const BATCH_RANGES: usize = 256;

const _: () = assert!(BATCH_RANGES <= vm::MAX_RANGES);

/// The messages that one system call moves.
struct WrBatch<'a> {
    direction: Direction,
    local: ArrayVec<libc::iovec, BATCH_RANGES>,
    remote: ArrayVec<libc::iovec, BATCH_RANGES>,
    /// Where each message ends, in bytes from the beginning of the first.
    ends: ArrayVec<usize, MAX_MESSAGES>,
    sources: ArrayVec<(&'a RegionSlot, GenerationSnapshot), MAX_MESSAGES>,
    targets: ArrayVec<(&'a MrEntry, GenerationSnapshot), MAX_MESSAGES>,
    /// The receives of the SENDs. SENDs come last in a batch.
    claimed: ArrayVec<ClaimedRecv<'a>, MAX_MESSAGES>,
    /// Whether a claimed receive was given back, so that a waiting flush must be resumed.
    gave_back: bool,
    /// The regions that the two hazards will name.
    local_region: u32,
    remote_region: u32,
}

impl<'a> WrBatch<'a> {
    /// Adds a region of the peer whose generation must be compared again. `None` if the batch has
    /// no room for another region.
    fn name(&mut self, index: u32, entry: &'a MrEntry, snapshot: GenerationSnapshot) -> Option<()> {
        let known =
            self.targets.last().is_some_and(|(last, seen)| core::ptr::eq(*last, entry) && *seen == snapshot);
        if !known {
            self.targets.try_push((entry, snapshot)).ok()?;
        }
        self.remote_region = merge_region(self.remote_region, index);
        Some(())
    }

    /// Adds a range at the peer, which may extend the last one. On this side, the ordered tail of a
    /// WRITE becomes a separate range behind the body.
    fn add_target(&mut self, there: u64, len: usize) {
        match self.remote.last_mut() {
            Some(last) if last.iov_base.addr().wrapping_add(last.iov_len) as u64 == there => {
                last.iov_len += len
            }
            _ => self.remote.push(vm::remote(there, len)),
        }
        let Some(last) = self.local.last_mut().filter(|_| self.direction == Direction::Write) else { return };
        let tail = copy::tail_len(there as usize, len);
        // If the last local piece is shorter than the tail, it needs no split: it comes last
        // anyway.
        if let Some(body) = last.iov_len.checked_sub(tail).filter(|body| *body > 0) {
            last.iov_len = body;
            let at = last.iov_base.cast::<u8>().wrapping_add(body);
            self.local.push(vm::local(at, tail));
        }
    }

    fn is_current(&self) -> bool {
        self.sources.iter().all(|(region, snapshot)| region.is_current(*snapshot))
            && self.targets.iter().all(|(entry, snapshot)| entry.is_current(*snapshot))
    }
}

fn is_send(opcode: ibv_wr_opcode) -> bool {
    matches!(opcode, ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM)
}

/// Whether the kernel may move such a message. A program that polls for the last byte of a WRITE
/// relies on the order within a call. The bytes of a SEND need no order, because its completion
/// announces them (docs/internals/soft-rnic-ordering.md).
fn is_batchable(opcode: ibv_wr_opcode, peer: &PeerQp) -> bool {
    if is_send(opcode) {
        !peer.kernel_cannot_copy.get()
    } else {
        opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE && vm::ORDERED
    }
}

/// The region for a hazard that must cover `index` too: the region itself if it is the only one,
/// otherwise any region.
fn merge_region(hazard_index: u32, index: u32) -> u32 {
    if hazard_index == Hazard::NO_REGION || hazard_index == index { index } else { Hazard::ANY_REGION }
}

impl Qp {
    /// Moves requests at the front of the queue with one system call, at most `budget` of them, and
    /// returns how many are done. If it returns 0, nothing irreversible has happened, and the
    /// general path may execute the first request.
    #[inline(never)]
    pub(super) fn execute_batch(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        queue: &SendQueueConsumer<'_>,
        budget: u32,
        deferred: &mut Deferred,
    ) -> usize {
        let (state, transfer_slot) = sending.parts();
        let Some(peer) = &state.peer else { return 0 };
        if peer.process.is_own() || !peer.established || !peer.process.alive() {
            return 0;
        }
        let Some(first) = queue.peek(0) else { return 0 };
        let direction = match first.request.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_READ if self.may_read(state, peer) => Direction::Read,
            opcode if is_batchable(opcode, peer) => Direction::Write,
            _ => return 0,
        };
        let Some(vm) = peer.process.vm() else { return 0 };
        let hazards = self.hazards(peer, transfer_slot);
        let mut batch = WrBatch {
            direction,
            local: ArrayVec::new(),
            remote: ArrayVec::new(),
            ends: ArrayVec::new(),
            sources: ArrayVec::new(),
            targets: ArrayVec::new(),
            claimed: ArrayVec::new(),
            gave_back: false,
            local_region: Hazard::NO_REGION,
            remote_region: Hazard::NO_REGION,
        };
        for distance in 0..budget.min(MAX_MESSAGES as u32) {
            let Some(posted) = queue.peek(distance) else { break };
            if self.add_message(&mut batch, &posted, peer, transfer_slot, &hazards, deferred).is_none() {
                break;
            }
        }
        let moved = self.copy_batch(&batch, peer, transfer_slot, vm, &hazards);
        let done = self.finish_batch(&mut batch, queue, moved, peer, deferred);
        drop((batch, hazards));
        let lengths = (0..done as u32).filter_map(|distance| Some(queue.peek(distance)?.request.length));
        for length in lengths.clone() {
            peer.process.counters().add(transfer_slot, PayloadPath::Vm, length as usize);
        }
        lengths.for_each(|length| state.advance_psn(length));
        done
    }

    pub(super) fn may_read(&self, state: &Sending, peer: &PeerQp) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_RC
            && state.attributes.max_rd_atomic != 0
            && peer.descriptor.max_dest_rd_atomic != 0
    }

    /// Adds a message. `None` if another path must execute it, or if the batch is full.
    fn add_message<'a>(
        self: &'a Arc<Self>,
        batch: &mut WrBatch<'a>,
        posted: &PostedSend<'_>,
        peer: &'a PeerQp,
        transfer_slot: &TransferSlotGuard<'_>,
        hazards: &Hazards<'_>,
        deferred: &mut Deferred,
    ) -> Option<()> {
        let length = posted.request.length;
        let opcode = posted.request.opcode;
        let fits = match batch.direction {
            Direction::Read => opcode == ibv_wr_opcode::IBV_WR_RDMA_READ,
            Direction::Write if is_send(opcode) => length > EAGER as u64 && is_batchable(opcode, peer),
            Direction::Write => is_batchable(opcode, peer) && batch.claimed.is_empty(),
        };
        if !fits {
            return None;
        }
        if length == 0
            || length > vm::MAX_BYTES as u64
            || (batch.direction == Direction::Write && length > peer.longest)
        {
            return None;
        }
        // Each entry becomes one range (inline data do too), and the ordered tail may split one.
        if batch.local.remaining_capacity() < posted.entries.len() + 2
            || batch.remote.remaining_capacity() < MAX_SGE
        {
            return None;
        }
        let (locals, remotes) = (batch.local.len(), batch.remote.len());
        let added = self.add_local(batch, posted).and_then(|()| {
            if is_send(opcode) {
                self.add_receive(batch, posted, peer, transfer_slot, hazards, deferred)
            } else {
                self.add_remote(batch, posted, peer, transfer_slot)
            }
        });
        if added.is_none() {
            batch.local.truncate(locals);
            batch.remote.truncate(remotes);
            return None;
        }
        batch.ends.push(batch.ends.last().unwrap_or(&0) + length as usize);
        Some(())
    }

    /// Adds the ranges at the peer that an RDMA operation names.
    fn add_remote<'a>(
        &'a self,
        batch: &mut WrBatch<'a>,
        posted: &PostedSend<'_>,
        peer: &'a PeerQp,
        transfer_slot: &TransferSlotGuard<'_>,
    ) -> Option<()> {
        let request = posted.request;
        let length = request.length;
        let needed = match batch.direction {
            Direction::Write => ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
            Direction::Read => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        };
        let index = request.rkey >> 8;
        let entry = peer.process.segment().region(index)?;
        let (snapshot, descriptor) = entry.read()?;
        let good = snapshot.label() == request.rkey as u8
            && descriptor.pd == peer.descriptor.pd
            && peer.descriptor.access & descriptor.access & needed.0 != 0
            && descriptor.access & kind::OWNER_ONLY == 0
            && descriptor.contains(request.remote_addr, length);
        let writes = batch.direction == Direction::Write;
        // The fast path or the general path copies to memory that is mapped here.
        if !good || map_for(peer, transfer_slot, &descriptor, request.remote_addr, length, writes).is_some() {
            return None;
        }
        batch.name(index, entry, snapshot)?;
        let there = descriptor.address.wrapping_add(request.remote_addr.wrapping_sub(descriptor.iova));
        batch.add_target(there, length as usize);
        Some(())
    }

    /// Claims the next receive and adds the ranges of its entries.
    fn add_receive<'a>(
        &'a self,
        batch: &mut WrBatch<'a>,
        posted: &PostedSend<'_>,
        peer: &'a PeerQp,
        transfer_slot: &TransferSlotGuard<'_>,
        hazards: &Hazards<'_>,
        deferred: &mut Deferred,
    ) -> Option<()> {
        if batch.claimed.is_empty() {
            // A receive may be claimed only under a hazard.
            hazards.remote.publish(Hazard::new(peer.index, Hazard::NO_REGION));
            if !peer.entry().is_current(peer.snapshot) {
                return None;
            }
        }
        let claimed = self.claim_receive(peer, deferred).ok()?;
        let length = posted.request.length as usize;
        let mut entries = RecvSges::default();
        let checked = entries.check(peer, &claimed, length).ok();
        let added = checked.and_then(|()| {
            for entry in &entries.pieces {
                let (address, length) = (entry.address, entry.length.into());
                if entry.descriptor.access & (kind::NULL | kind::OWNER_ONLY) != 0
                    || map_for(peer, transfer_slot, &entry.descriptor, address, length, true).is_some()
                {
                    peer.kernel_cannot_copy.set(true);
                    return None;
                }
                let index = entry.lkey >> 8;
                batch.name(index, peer.process.segment().region(index)?, entry.snapshot)?;
                let there =
                    entry.descriptor.address.wrapping_add(address.wrapping_sub(entry.descriptor.iova));
                // The completion orders the bytes of a SEND, so it needs no separate tail.
                batch.remote.push(vm::remote(there, entry.length as usize));
            }
            Some(())
        });
        if added.is_none() {
            unclaim_receive(peer, &claimed);
            batch.gave_back = true;
            return None;
        }
        batch.claimed.push(claimed);
        Some(())
    }

    /// Adds the pieces on this side.
    fn add_local<'a>(&'a self, batch: &mut WrBatch<'a>, posted: &PostedSend<'_>) -> Option<()> {
        let own_need = match batch.direction {
            Direction::Write => 0,
            Direction::Read => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
        };
        let mut add = |at: *const u8, len: usize| batch.local.push(vm::local(at, len));
        if posted.request.payload == PayloadKind::Inline {
            add(posted.inline, posted.request.length as usize);
        } else {
            for local in posted.entries.iter().filter(|entry| entry.length > 0) {
                let found =
                    self.rnic.regions().read(local.lkey).and_then(|(region, snapshot, descriptor)| {
                        let allowed =
                            descriptor.pd == self.pd.number() && descriptor.access & own_need == own_need;
                        let at = descriptor.pointer(local.addr, local.length.into()).filter(|_| allowed)?;
                        Some((region, snapshot, at))
                    });
                let known =
                    batch.sources.last().map(|(region, snapshot)| (core::ptr::from_ref(*region), *snapshot));
                let added = found.is_some_and(|(region, snapshot, at)| {
                    add(at, local.length as usize);
                    known == Some((region, snapshot)) || batch.sources.try_push((region, snapshot)).is_ok()
                });
                if !added {
                    return None;
                }
                batch.local_region = merge_region(batch.local_region, local.lkey >> 8);
            }
        }
        Some(())
    }

    /// Moves the bytes and returns how many messages are moved whole.
    fn copy_batch(
        &self,
        batch: &WrBatch<'_>,
        peer: &PeerQp,
        transfer_slot: &TransferSlotGuard<'_>,
        vm: Vm,
        hazards: &Hazards<'_>,
    ) -> usize {
        if batch.ends.is_empty() {
            return 0;
        }
        if batch.local_region != Hazard::NO_REGION {
            hazards.local.set(Hazard::new(self.number.index, batch.local_region));
        }
        hazards.remote.set(Hazard::new(peer.index, batch.remote_region));
        if revalidate(peer, || true, || batch.is_current()).is_err() {
            return 0;
        }
        // SAFETY: the hazards are set and `revalidate` has compared all snapshots, so the local
        // ranges may be touched. Only READs write them, and `add_local` has checked that their keys
        // allow it. The remote ranges lie within regions of the peer (`add_remote`, `add_receive`).
        let moved = unsafe {
            match batch.direction {
                Direction::Write => vm.write(&batch.local, &batch.remote),
                Direction::Read => vm.read(&batch.local, &batch.remote),
            }
        };
        peer.process.counters().add_call(transfer_slot);
        match moved {
            Ok(bytes) => batch.ends.iter().take_while(|end| **end <= bytes).count(),
            Err(VmError::Forbidden(error)) => {
                peer.process.disable_vm(error);
                0
            }
            // The general path repeats the message and finds which error it is.
            Err(_) => 0,
        }
    }

    /// Finishes the receives of the messages that were moved, in order, and gives the others back.
    /// Returns how many messages are done.
    fn finish_batch(
        self: &Arc<Self>,
        batch: &mut WrBatch<'_>,
        queue: &SendQueueConsumer<'_>,
        moved: usize,
        peer: &PeerQp,
        deferred: &mut Deferred,
    ) -> usize {
        let writes = batch.ends.len() - batch.claimed.len();
        let finish = |(distance, claimed): (usize, &ClaimedRecv<'_>)| {
            let Some(posted) = queue.peek(distance as u32) else { return false };
            let success = ibv_wc_status::IBV_WC_SUCCESS;
            self.complete_receive(RecvMeta::default(), &posted, peer, claimed, false, success, deferred)
                .is_ok()
        };
        let finished = (writes..moved).zip(&batch.claimed).map(finish).take_while(|done| *done).count();
        for claimed in batch.claimed.drain(finished..).rev() {
            unclaim_receive(peer, &claimed);
            batch.gave_back = true;
        }
        if batch.gave_back {
            self.resume_flush(peer, deferred);
        }
        moved.min(writes) + finished
    }
}
