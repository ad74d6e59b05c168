//! Requests of connected queue pairs: SEND, RDMA WRITE, RDMA READ and atomics, to the one peer.

use std::sync::Arc;

use rdma_mummy_sys::types::{
    ibv_access_flags, ibv_placement_type, ibv_qp_state, ibv_qp_type, ibv_selectivity_level, ibv_wc_status,
    ibv_wr_opcode,
};

use super::call::{Left, Operation, atomic_by_asking};
use super::gather::Gathered;
use super::peer::NoPeer;
use super::transfer::{Direction, Place, Remote};
use super::{After, Broken, Hazards, Outcome, Way};
use crate::faults::Step;
use crate::faults::injected::reach;
use crate::node::PayloadPath;
use crate::platform::copy;
use crate::queue_pair::post::{VALUE_GIVEN, brings_back, is_of_window};
use crate::queue_pair::send_queue::{Posted, Request};
use crate::queue_pair::transfer_slot_mutex::TransferSlotMutexGuard;
use crate::queue_pair::{Qp, Sending};
use crate::shared::entry::{domain, notice};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::{Hazard, full_fence};

/// The longest message (`max_msg_sz`).
pub(crate) const MAX_MESSAGE: u64 = 1 << 30;

/// How the responder refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It may not be done: a key, its bounds or a permission is wrong.
    Access,
    /// It makes no sense.
    Invalid,
    /// It cannot be done there.
    Operation,
    /// It names no shared receive queue that it may name.
    Number,
    /// It would invalidate what it may not.
    Invalidation,
}

impl Qp {
    pub(crate) fn execute_connected(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &Posted<'_>,
        after: &mut After,
    ) -> Outcome {
        let request = posted.request;
        if is_of_window(request.opcode) {
            return self.execute_of_window(sending, posted);
        }
        let reads = brings_back(request.opcode);
        if request.length > MAX_MESSAGE {
            return Outcome::Failed(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
        }
        if let Some(outcome) = self.check_requester(sending, posted) {
            return outcome;
        }
        let transfer_slot = sending.transfer_slot();
        let local = self.rnic.node().local_hazard(transfer_slot);
        let mut gathered = Gathered::default();
        if let Err(status) = self.gather(posted, reads, local, &mut gathered) {
            local.clear();
            return Outcome::Failed(status);
        }
        let outcome = match self.connect_peer(sending) {
            Ok(()) if self.qp_type == ibv_qp_type::IBV_QPT_XRC_SEND => {
                self.transfer_by_number(sending, posted, &gathered, after)
            }
            Ok(()) => self.transfer(sending, posted, &gathered, after),
            // An unreliable connection does not know whether anybody listens.
            Err(NoPeer::Silent) if self.qp_type == ibv_qp_type::IBV_QPT_UC => Outcome::Done,
            Err(NoPeer::Silent) => self.no_answer(sending),
            Err(NoPeer::Closed) => self.closed(sending),
            Err(NoPeer::Busy) => self.left_behind(sending),
            Err(NoPeer::Pending) => self.soon(sending),
        };
        local.clear();
        if outcome == Outcome::Done {
            sending.advance_psn(request.length);
        }
        outcome
    }

    /// What the requester's own limits say.
    fn check_requester(&self, sending: &Sending, posted: &Posted<'_>) -> Option<Outcome> {
        use ibv_wr_opcode as O;
        let opcode = posted.request.opcode;
        let answered = brings_back(opcode) || matches!(opcode, O::IBV_WR_ATOMIC_WRITE | O::IBV_WR_FLUSH);
        let atomic = answered && !matches!(opcode, O::IBV_WR_RDMA_READ | O::IBV_WR_FLUSH);
        if answered && (sending.attributes.max_rd_atomic == 0 || self.qp_type == ibv_qp_type::IBV_QPT_UC) {
            return Some(Outcome::Failed(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR));
        }
        if atomic && self.context.device().traits.no_atomics {
            return Some(Outcome::Failed(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR));
        }
        if atomic && posted.request.length != 8 {
            return Some(Outcome::Failed(ibv_wc_status::IBV_WC_LOC_LEN_ERR));
        }
        None
    }

    #[inline]
    fn transfer(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &Posted<'_>,
        gathered: &Gathered<'_>,
        after: &mut After,
    ) -> Outcome {
        let ticket = sending.ticket;
        let (state, transfer_slot) = sending.parts();
        let peer = state.peer.as_ref().expect("it was just connected");
        let (local, remote) = (
            self.rnic.node().local_hazard(transfer_slot.index()),
            peer.process.hazard_slot(transfer_slot.index()),
        );
        let hazards = Hazards { local, remote };
        let result = self.attempt(
            posted,
            Way { rnic: &self.rnic, peer, gathered, hazards: &hazards, transfer_slot, ticket },
            after,
        );
        drop(hazards);
        match result {
            Ok(outcome) if peer.established => outcome,
            Ok(outcome) => {
                self.tell_established(sending, after);
                outcome
            }
            Err(stop) => self.stopped(sending, stop, after),
        }
    }

    #[inline]
    pub(super) fn attempt(
        self: &Arc<Self>,
        posted: &Posted<'_>,
        way: Way<'_>,
        after: &mut After,
    ) -> Result<Outcome, Stop> {
        if posted.request.length > way.peer.longest
            && posted.request.opcode != ibv_wr_opcode::IBV_WR_RDMA_READ
        {
            return Err(Stop::Refused(Refused::Invalid));
        }
        match posted.request.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => self.write(posted, way).map(|()| Outcome::Done),
            ibv_wr_opcode::IBV_WR_RDMA_READ => self.read(posted, way).map(|()| Outcome::Done),
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                self.atomic(posted, way).map(|()| Outcome::Done)
            }
            ibv_wr_opcode::IBV_WR_ATOMIC_WRITE => self.atomic_write(posted, way).map(|()| Outcome::Done),
            ibv_wr_opcode::IBV_WR_FLUSH => self.flush(posted, way).map(|()| Outcome::Done),
            _ => self.deliver(posted, way, after),
        }
    }

    fn no_receive(&self, sending: &mut Sending) -> Outcome {
        if self.qp_type == ibv_qp_type::IBV_QPT_UC {
            return Outcome::Done;
        }
        let timer = sending.peer.as_ref().map_or(0, |peer| peer.descriptor.min_rnr_timer);
        self.receiver_not_ready(sending, timer)
    }

    /// The responder notices the first message before it is ready to send itself.
    #[cold]
    fn tell_established(&self, sending: &mut Sending, after: &mut After) {
        let Some(peer) = &mut sending.peer else { return };
        peer.established = true;
        if peer.state() == ibv_qp_state::IBV_QPS_RTR {
            peer.leave_notice(self.number.index as usize, notice::ESTABLISHED, after);
        }
    }

    #[cold]
    pub(super) fn stopped(&self, sending: &mut Sending, stop: Stop, after: &mut After) -> Outcome {
        let reliable = self.is_reliable();
        match stop {
            Stop::Local(status) => Outcome::Failed(status),
            Stop::Refused(_) | Stop::Broken(Broken::Address) if !reliable => Outcome::Done,
            Stop::Refused(refused) => {
                let (bits, status) = match refused {
                    Refused::Access => (notice::ACCESS_ERROR, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
                    Refused::Invalid => (notice::REQUEST_ERROR, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR),
                    Refused::Operation | Refused::Invalidation => {
                        (notice::RECEIVE_ERROR, ibv_wc_status::IBV_WC_REM_OP_ERR)
                    }
                    Refused::Number => (notice::REQUEST_ERROR, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
                };
                if let Some(peer) = &sending.peer {
                    peer.leave_notice(self.number.index as usize, bits, after);
                }
                Outcome::Failed(status)
            }
            Stop::Broken(Broken::Address) => Outcome::Failed(ibv_wc_status::IBV_WC_REM_OP_ERR),
            Stop::Changed | Stop::Broken(Broken::Path) => self.soon(sending),
            Stop::Broken(Broken::Late) => self.late(sending, reliable),
            Stop::Broken(Broken::Begun) => {
                let ticket = sending.ticket;
                if let Some(peer) = &mut sending.peer
                    && let Some(left) = Left::find(&peer.process, self.number.index as usize, ticket)
                {
                    // No message takes a later receive before this one is back.
                    peer.snapshot = GenerationSnapshot::NONE;
                    sending.left = Some(left);
                }
                self.left_behind(sending)
            }
            Stop::Broken(Broken::Gone) => {
                if let Some(peer) = &sending.peer {
                    peer.process.suspect();
                }
                if reliable { self.no_answer(sending) } else { Outcome::Done }
            }
            Stop::NoReceive => self.no_receive(sending),
        }
    }

    /// The payload of an RDMA WRITE with immediate data.
    pub(crate) fn write_for(&self, posted: &Posted<'_>, way: Way<'_>) -> Result<bool, Stop> {
        self.write(posted, way).map(|()| false)
    }

    fn write(&self, posted: &Posted<'_>, way: Way<'_>) -> Result<(), Stop> {
        let request = posted.request;
        if request.length == 0 {
            return Self::nothing(way);
        }
        let remote = self.remote(posted, way, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)?;
        // SAFETY: the hazards are set, a full fence has followed and all snapshots are current, as `remote` has checked.
        unsafe { self.carry(way, Direction::Write, &[remote]) }.map_err(Stop::Broken)
    }

    fn read(&self, posted: &Posted<'_>, way: Way<'_>) -> Result<(), Stop> {
        let peer = way.peer;
        let request = posted.request;
        if peer.descriptor.max_dest_rd_atomic == 0 {
            return Err(Stop::Refused(Refused::Invalid));
        }
        if request.length == 0 {
            return Self::nothing(way);
        }
        let remote = self.remote(posted, way, ibv_access_flags::IBV_ACCESS_REMOTE_READ)?;
        // SAFETY: as in `write`; the local pieces' keys allow writing.
        unsafe { self.carry(way, Direction::Read, &[remote]) }.map_err(Stop::Broken)
    }

    fn atomic(&self, posted: &Posted<'_>, way: Way<'_>) -> Result<(), Stop> {
        let peer = way.peer;
        let request = posted.request;
        if peer.descriptor.max_dest_rd_atomic == 0 || !request.remote_addr.is_multiple_of(8) {
            return Err(Stop::Refused(Refused::Invalid));
        }
        let remote = self.remote(posted, way, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)?;
        reach(Step::BeforeCopy);
        let swaps = request.opcode == ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        let [first, second] = request.operands;
        let (before, path) = match remote.place {
            Place::Here(at) if at.addr().is_multiple_of(8) => {
                // SAFETY: eight bytes of the region, aligned, the hazards are set, a full fence has followed and the snapshots are current.
                let before = unsafe {
                    if swaps {
                        copy::compare_and_swap(at.cast(), first, second)
                    } else {
                        copy::fetch_and_add(at.cast(), first)
                    }
                };
                (before, way.mapped())
            }
            Place::Here(_) => return Err(Stop::Refused(Refused::Invalid)),
            // The kernel has no such operation: the owner does it, and so all of them are atomic to each other.
            _ => {
                let operation = if swaps { Operation::CompareSwap } else { Operation::FetchAdd };
                let before = atomic_by_asking(way, &remote, operation, request.operands);
                (before.map_err(Stop::Broken)?, PayloadPath::Call)
            }
        };
        way.count(path, 8);
        let mut before = before.to_ne_bytes();
        let from = (&raw mut before).cast::<u8>();
        let mut offset = 0;
        for piece in &way.gathered.pieces {
            // SAFETY: local pieces of eight bytes in all, whose keys allow writing; the hazards are set and a full fence has followed.
            unsafe { copy::copy(piece.at, from.wrapping_add(offset), piece.len.min(8 - offset)) };
            offset += piece.len.min(8 - offset);
        }
        Ok(())
    }

    /// Eight bytes that nobody sees half of.
    fn atomic_write(&self, posted: &Posted<'_>, way: Way<'_>) -> Result<(), Stop> {
        let request = posted.request;
        if way.peer.descriptor.max_dest_rd_atomic == 0 || !request.remote_addr.is_multiple_of(8) {
            return Err(Stop::Refused(Refused::Invalid));
        }
        let remote = self.remote(posted, way, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)?;
        reach(Step::BeforeCopy);
        let value = match request.operands {
            [value, VALUE_GIVEN] => value,
            _ => {
                let mut value = [0; 8];
                let mut offset = 0;
                for piece in &way.gathered.pieces {
                    let len = piece.len.min(8 - offset);
                    // SAFETY: local pieces of eight bytes in all; the hazards are set and a full fence has followed.
                    unsafe { copy::copy_unordered(value[offset..].as_mut_ptr(), piece.at, len) };
                    offset += len;
                }
                u64::from_ne_bytes(value)
            }
        };
        let path = match remote.place {
            Place::Here(at) if at.addr().is_multiple_of(8) => {
                // SAFETY: eight bytes of the region, aligned, the hazards are set, a full fence has followed and the snapshots are current.
                unsafe { copy::atomic_store(at.cast(), value) };
                way.mapped()
            }
            Place::Here(_) => return Err(Stop::Refused(Refused::Invalid)),
            _ => {
                let asked = atomic_by_asking(way, &remote, Operation::AtomicWrite, [value, 0]);
                asked.map_err(Stop::Broken)?;
                PayloadPath::Call
            }
        };
        way.count(path, 8);
        Ok(())
    }

    /// What was written before is where everybody sees it: every request that has ended is, so what is left is to check that the
    /// request may be made, and to let nothing pass it. Nothing here outlives the host, so no region allows persistence.
    fn flush(&self, posted: &Posted<'_>, way: Way<'_>) -> Result<(), Stop> {
        let [length, kind] = posted.request.operands;
        let (placement, level) = (kind as u8, (kind >> 8) as u8);
        let global = u32::from(placement) == ibv_placement_type::IBV_FLUSH_GLOBAL.0;
        let persistent = u32::from(placement) & ibv_placement_type::IBV_FLUSH_PERSISTENT.0 != 0;
        let known = [ibv_selectivity_level::IBV_FLUSH_RANGE.0, ibv_selectivity_level::IBV_FLUSH_MR.0];
        if persistent {
            return Err(Stop::Refused(Refused::Access));
        }
        if way.peer.descriptor.max_dest_rd_atomic == 0 || !global || !known.contains(&level.into()) {
            return Err(Stop::Refused(Refused::Invalid));
        }
        let whole = u32::from(level) == ibv_selectivity_level::IBV_FLUSH_MR.0;
        // Of a whole region the address has to be one, the length does not matter.
        let request = Request { length: if whole { 0 } else { length }, ..*posted.request };
        self.remote(
            &Posted { request: &request, ..*posted },
            way,
            ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL,
        )?;
        full_fence();
        Ok(())
    }

    /// A request without bytes: only whether the peer listens.
    fn nothing(way: Way<'_>) -> Result<(), Stop> {
        let peer = way.peer;
        way.hazards.remote.publish(Hazard::new(peer.hazard_index, Hazard::NO_REGION));
        if peer.entry().is_current(peer.snapshot) { Ok(()) } else { Err(Stop::Changed) }
    }

    /// Checks the key that a request names, publishes the hazards and looks again: then the memory may be touched.
    #[inline]
    fn remote(&self, posted: &Posted<'_>, way: Way<'_>, needed: ibv_access_flags) -> Result<Remote, Stop> {
        let Way { peer, gathered, hazards, .. } = way;
        let request = posted.request;
        if peer.descriptor.access & needed.0 == 0 {
            return Err(Stop::Refused(Refused::Access));
        }
        if peer.process.is_own() {
            return self.own_remote(posted, way, needed);
        }
        let index = request.rkey >> 8;
        let entry = peer.process.segment().region(index).ok_or(Stop::Refused(Refused::Access))?;
        let (snapshot, descriptor) = entry.read().ok_or(Stop::Refused(Refused::Access))?;
        if snapshot.label() != request.rkey as u8
            || !domain::serves(descriptor.pd, peer.descriptor.pd, peer.descriptor.qpn)
            || descriptor.access & needed.0 == 0
            || !descriptor.contains(request.remote_addr, request.length)
        {
            // The descriptor may have been read while it changed.
            let stop =
                if entry.is_current(snapshot) { Stop::Refused(Refused::Access) } else { Stop::Changed };
            return Err(stop);
        }
        reach(Step::BeforeMark);
        hazards.remote.set(Hazard::new(peer.hazard_index, index));
        full_fence();
        if !entry.is_current(snapshot) || !peer.entry().is_current(peer.snapshot) {
            return Err(Stop::Changed);
        }
        if !gathered.is_current() {
            return Err(Stop::Local(ibv_wc_status::IBV_WC_LOC_PROT_ERR));
        }
        let writes = needed != ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        let place = self
            .place(way, request.rkey, &descriptor, request.remote_addr, request.length, writes)
            .ok_or(Stop::Refused(Refused::Access))?;
        let len = request.length as usize;
        Ok(Remote { place, len, key: request.rkey, address: request.remote_addr })
    }

    /// The same where the peer is this process. What the segment says does not count here, as peers can write there: keys,
    /// pointers, generations and hazards are the private ones.
    #[inline]
    fn own_remote(
        &self,
        posted: &Posted<'_>,
        way: Way<'_>,
        needed: ibv_access_flags,
    ) -> Result<Remote, Stop> {
        let Way { peer, gathered, hazards, .. } = way;
        let request = posted.request;
        let refused = Stop::Refused(Refused::Access);
        let (region, snapshot, descriptor) = self.rnic.regions().read(request.rkey).ok_or(refused)?;
        let good = domain::serves(descriptor.pd, peer.descriptor.pd, peer.descriptor.qpn);
        let allowed = good && descriptor.access & needed.0 != 0;
        let at = descriptor.pointer(request.remote_addr, request.length).filter(|_| allowed);
        let Some(at) = at else {
            return Err(if region.is_current(snapshot) { refused } else { Stop::Changed });
        };
        reach(Step::BeforeMark);
        // The source may lie in another region than the destination: the hazard stands for both.
        hazards.local.set(Hazard::new(peer.hazard_index, Hazard::ANY_REGION));
        hazards.remote.set(Hazard::new(peer.hazard_index, Hazard::NO_REGION));
        full_fence();
        if !region.is_current(snapshot) || !peer.entry().is_current(peer.snapshot) {
            return Err(Stop::Changed);
        }
        if !gathered.is_current() {
            return Err(Stop::Local(ibv_wc_status::IBV_WC_LOC_PROT_ERR));
        }
        let len = request.length as usize;
        Ok(Remote { place: Place::Here(at), len, key: request.rkey, address: request.remote_addr })
    }
}

/// Why a transfer stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Something changed meanwhile: look again.
    Changed,
    /// There is no receive.
    NoReceive,
    Local(ibv_wc_status),
    Refused(Refused),
    Broken(Broken),
}
