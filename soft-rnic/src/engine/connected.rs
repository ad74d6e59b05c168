//! Requests of connected queue pairs: SEND, RDMA WRITE, RDMA READ and atomics, to the one peer.

use std::sync::Arc;

use rdma_mummy_sys::types::{
    ibv_access_flags, ibv_placement_type, ibv_qp_state, ibv_qp_type, ibv_selectivity_level, ibv_wc_status,
    ibv_wr_opcode,
};

use super::gather::GatherList;
use super::payload::{Direction, RemotePiece, RemotePlace};
use super::peer::PeerUnavailable;
use super::rpc::{AbandonedRecv, RpcOperation, atomic_by_rpc};
use super::{CopyError, Deferred, Hazards, TransferCtx, WrOutcome};
use crate::faults::Step;
use crate::faults::injected::reach;
use crate::node::PayloadPath;
use crate::platform::copy;
use crate::queue_pair::post::{VALUE_GIVEN, brings_back, is_of_window};
use crate::queue_pair::send_queue::{PostedSend, SendRequest};
use crate::queue_pair::transfer_slot_mutex::TransferSlotMutexGuard;
use crate::queue_pair::{Qp, Sending};
use crate::shared::entry::{domain, notice};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::{Hazard, full_fence};

/// The longest message (`max_msg_sz`).
pub(crate) const MAX_MESSAGE: u64 = 1 << 30;

/// How the responder refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nak {
    /// It may not be done: a key, its bounds or a permission is wrong.
    RemoteAccess,
    /// It makes no sense.
    InvalidRequest,
    /// It cannot be done there.
    RemoteOperation,
    /// It names no shared receive queue that it may name.
    InvalidSrq,
    /// It would invalidate what it may not.
    Invalidation,
}

impl Qp {
    pub(crate) fn execute_connected(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &PostedSend<'_>,
        deferred: &mut Deferred,
    ) -> WrOutcome {
        let request = posted.request;
        if is_of_window(request.opcode) {
            return self.execute_window_request(sending, posted);
        }
        let reads = brings_back(request.opcode);
        if request.length > MAX_MESSAGE {
            return WrOutcome::Failed(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
        }
        if let Some(outcome) = self.check_requester(sending, posted) {
            return outcome;
        }
        let transfer_slot = sending.transfer_slot();
        let local = self.rnic.node().local_hazard(transfer_slot);
        let mut gather_list = GatherList::default();
        if let Err(status) = self.gather(posted, reads, local, &mut gather_list) {
            local.clear();
            return WrOutcome::Failed(status);
        }
        let outcome = match self.connect_peer(sending) {
            Ok(()) if self.qp_type == ibv_qp_type::IBV_QPT_XRC_SEND => {
                self.execute_xrc(sending, posted, &gather_list, deferred)
            }
            Ok(()) => self.execute_on_peer(sending, posted, &gather_list, deferred),
            // An unreliable connection does not know whether anybody listens.
            Err(PeerUnavailable::NoAnswer) if self.qp_type == ibv_qp_type::IBV_QPT_UC => WrOutcome::Done,
            Err(PeerUnavailable::NoAnswer) => self.retry_unacknowledged(sending),
            Err(PeerUnavailable::Unreadable) => self.retry_peer_closed(sending),
            Err(PeerUnavailable::OwnerBusy) => self.retry_abandoned(sending),
            Err(PeerUnavailable::Connecting) => self.retry_soon(sending),
        };
        local.clear();
        if outcome == WrOutcome::Done {
            sending.advance_psn(request.length);
        }
        outcome
    }

    /// What the requester's own limits say.
    fn check_requester(&self, sending: &Sending, posted: &PostedSend<'_>) -> Option<WrOutcome> {
        use ibv_wr_opcode as O;
        let opcode = posted.request.opcode;
        let answered = brings_back(opcode) || matches!(opcode, O::IBV_WR_ATOMIC_WRITE | O::IBV_WR_FLUSH);
        let atomic = answered && !matches!(opcode, O::IBV_WR_RDMA_READ | O::IBV_WR_FLUSH);
        if answered && (sending.attributes.max_rd_atomic == 0 || self.qp_type == ibv_qp_type::IBV_QPT_UC) {
            return Some(WrOutcome::Failed(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR));
        }
        if atomic && self.context.device().traits.no_atomics {
            return Some(WrOutcome::Failed(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR));
        }
        if atomic && posted.request.length != 8 {
            return Some(WrOutcome::Failed(ibv_wc_status::IBV_WC_LOC_LEN_ERR));
        }
        None
    }

    #[inline]
    fn execute_on_peer(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &PostedSend<'_>,
        gather_list: &GatherList<'_>,
        deferred: &mut Deferred,
    ) -> WrOutcome {
        let ticket = sending.ticket;
        let (state, transfer_slot) = sending.parts();
        let peer = state.peer.as_ref().expect("it was just connected");
        let (local, remote) = (
            self.rnic.node().local_hazard(transfer_slot.index()),
            peer.process.hazard_slot(transfer_slot.index()),
        );
        let hazards = Hazards { local, remote };
        let result = self.dispatch(
            posted,
            TransferCtx { rnic: &self.rnic, peer, gather_list, hazards: &hazards, transfer_slot, ticket },
            deferred,
        );
        drop(hazards);
        match result {
            Ok(outcome) if peer.established => outcome,
            Ok(outcome) => {
                self.notify_established(sending, deferred);
                outcome
            }
            Err(error) => self.handle_error(sending, error, deferred),
        }
    }

    #[inline]
    pub(super) fn dispatch(
        self: &Arc<Self>,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
        deferred: &mut Deferred,
    ) -> Result<WrOutcome, TransferError> {
        if posted.request.length > ctx.peer.longest
            && posted.request.opcode != ibv_wr_opcode::IBV_WR_RDMA_READ
        {
            return Err(TransferError::Nak(Nak::InvalidRequest));
        }
        match posted.request.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => self.write(posted, ctx).map(|()| WrOutcome::Done),
            ibv_wr_opcode::IBV_WR_RDMA_READ => self.read(posted, ctx).map(|()| WrOutcome::Done),
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                self.atomic(posted, ctx).map(|()| WrOutcome::Done)
            }
            ibv_wr_opcode::IBV_WR_ATOMIC_WRITE => self.atomic_write(posted, ctx).map(|()| WrOutcome::Done),
            ibv_wr_opcode::IBV_WR_FLUSH => self.flush(posted, ctx).map(|()| WrOutcome::Done),
            _ => self.send(posted, ctx, deferred),
        }
    }

    fn retry_no_receive(&self, sending: &mut Sending) -> WrOutcome {
        if self.qp_type == ibv_qp_type::IBV_QPT_UC {
            return WrOutcome::Done;
        }
        let timer = sending.peer.as_ref().map_or(0, |peer| peer.descriptor.min_rnr_timer);
        self.retry_rnr(sending, timer)
    }

    /// The responder notices the first message before it is ready to send itself.
    #[cold]
    fn notify_established(&self, sending: &mut Sending, deferred: &mut Deferred) {
        let Some(peer) = &mut sending.peer else { return };
        peer.established = true;
        if peer.state() == ibv_qp_state::IBV_QPS_RTR {
            peer.leave_notice(self.number.index as usize, notice::ESTABLISHED, deferred);
        }
    }

    #[cold]
    pub(super) fn handle_error(
        &self,
        sending: &mut Sending,
        error: TransferError,
        deferred: &mut Deferred,
    ) -> WrOutcome {
        let reliable = self.is_reliable();
        match error {
            TransferError::Local(status) => WrOutcome::Failed(status),
            TransferError::Nak(_) | TransferError::Copy(CopyError::BadAddress) if !reliable => {
                WrOutcome::Done
            }
            TransferError::Nak(nak) => {
                let (bits, status) = match nak {
                    Nak::RemoteAccess => (notice::ACCESS_ERROR, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
                    Nak::InvalidRequest => (notice::REQUEST_ERROR, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR),
                    Nak::RemoteOperation | Nak::Invalidation => {
                        (notice::RECEIVE_ERROR, ibv_wc_status::IBV_WC_REM_OP_ERR)
                    }
                    Nak::InvalidSrq => (notice::REQUEST_ERROR, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
                };
                if let Some(peer) = &sending.peer {
                    peer.leave_notice(self.number.index as usize, bits, deferred);
                }
                WrOutcome::Failed(status)
            }
            TransferError::Copy(CopyError::BadAddress) => WrOutcome::Failed(ibv_wc_status::IBV_WC_REM_OP_ERR),
            TransferError::Stale | TransferError::Copy(CopyError::PathLost) => self.retry_soon(sending),
            TransferError::Copy(CopyError::OwnerPending) => self.retry_owner_pending(sending, reliable),
            TransferError::Copy(CopyError::OwnerBusy) => {
                let ticket = sending.ticket;
                if let Some(peer) = &mut sending.peer
                    && let Some(abandoned) =
                        AbandonedRecv::find(&peer.process, self.number.index as usize, ticket)
                {
                    // No message takes a later receive before this one is back.
                    peer.snapshot = GenerationSnapshot::NONE;
                    sending.abandoned = Some(abandoned);
                }
                self.retry_abandoned(sending)
            }
            TransferError::Copy(CopyError::PeerGone) => {
                if let Some(peer) = &sending.peer {
                    peer.process.suspect();
                }
                if reliable { self.retry_unacknowledged(sending) } else { WrOutcome::Done }
            }
            TransferError::NoReceivePosted => self.retry_no_receive(sending),
        }
    }

    /// The payload of an RDMA WRITE with immediate data.
    pub(crate) fn write_before_imm(
        &self,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
    ) -> Result<bool, TransferError> {
        self.write(posted, ctx).map(|()| false)
    }

    fn write(&self, posted: &PostedSend<'_>, ctx: TransferCtx<'_>) -> Result<(), TransferError> {
        let request = posted.request;
        if request.length == 0 {
            return Self::check_peer_accepts(ctx);
        }
        let remote = self.validate_remote(posted, ctx, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)?;
        // SAFETY: the hazards are set, a full fence has followed and all snapshots are current, as `validate_remote` has checked.
        unsafe { self.move_payload(ctx, Direction::Write, &[remote]) }.map_err(TransferError::Copy)
    }

    fn read(&self, posted: &PostedSend<'_>, ctx: TransferCtx<'_>) -> Result<(), TransferError> {
        let peer = ctx.peer;
        let request = posted.request;
        if peer.descriptor.max_dest_rd_atomic == 0 {
            return Err(TransferError::Nak(Nak::InvalidRequest));
        }
        if request.length == 0 {
            return Self::check_peer_accepts(ctx);
        }
        let remote = self.validate_remote(posted, ctx, ibv_access_flags::IBV_ACCESS_REMOTE_READ)?;
        // SAFETY: as in `write`; the local pieces' keys allow writing.
        unsafe { self.move_payload(ctx, Direction::Read, &[remote]) }.map_err(TransferError::Copy)
    }

    fn atomic(&self, posted: &PostedSend<'_>, ctx: TransferCtx<'_>) -> Result<(), TransferError> {
        let peer = ctx.peer;
        let request = posted.request;
        if peer.descriptor.max_dest_rd_atomic == 0 || !request.remote_addr.is_multiple_of(8) {
            return Err(TransferError::Nak(Nak::InvalidRequest));
        }
        let remote = self.validate_remote(posted, ctx, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)?;
        reach(Step::BeforeCopy);
        let swaps = request.opcode == ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        let [first, second] = request.operands;
        let (before, path) = match remote.place {
            RemotePlace::Mapped(at) if at.addr().is_multiple_of(8) => {
                // SAFETY: eight bytes of the region, aligned, the hazards are set, a full fence has followed and the snapshots are current.
                let before = unsafe {
                    if swaps {
                        copy::compare_and_swap(at.cast(), first, second)
                    } else {
                        copy::fetch_and_add(at.cast(), first)
                    }
                };
                (before, ctx.mapped())
            }
            RemotePlace::Mapped(_) => return Err(TransferError::Nak(Nak::InvalidRequest)),
            // The kernel has no such operation: the owner does it, and so all of them are atomic to each other.
            _ => {
                let operation = if swaps { RpcOperation::CompareSwap } else { RpcOperation::FetchAdd };
                let before = atomic_by_rpc(ctx, &remote, operation, request.operands);
                (before.map_err(TransferError::Copy)?, PayloadPath::Call)
            }
        };
        ctx.count(path, 8);
        let mut before = before.to_ne_bytes();
        let from = (&raw mut before).cast::<u8>();
        let mut offset = 0;
        for piece in &ctx.gather_list.pieces {
            // SAFETY: local pieces of eight bytes in all, whose keys allow writing; the hazards are set and a full fence has followed.
            unsafe { copy::copy(piece.at, from.wrapping_add(offset), piece.len.min(8 - offset)) };
            offset += piece.len.min(8 - offset);
        }
        Ok(())
    }

    /// Eight bytes that nobody sees half of.
    fn atomic_write(&self, posted: &PostedSend<'_>, ctx: TransferCtx<'_>) -> Result<(), TransferError> {
        let request = posted.request;
        if ctx.peer.descriptor.max_dest_rd_atomic == 0 || !request.remote_addr.is_multiple_of(8) {
            return Err(TransferError::Nak(Nak::InvalidRequest));
        }
        let remote = self.validate_remote(posted, ctx, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)?;
        reach(Step::BeforeCopy);
        let value = match request.operands {
            [value, VALUE_GIVEN] => value,
            _ => {
                let mut value = [0; 8];
                let mut offset = 0;
                for piece in &ctx.gather_list.pieces {
                    let len = piece.len.min(8 - offset);
                    // SAFETY: local pieces of eight bytes in all; the hazards are set and a full fence has followed.
                    unsafe { copy::copy_unordered(value[offset..].as_mut_ptr(), piece.at, len) };
                    offset += len;
                }
                u64::from_ne_bytes(value)
            }
        };
        let path = match remote.place {
            RemotePlace::Mapped(at) if at.addr().is_multiple_of(8) => {
                // SAFETY: eight bytes of the region, aligned, the hazards are set, a full fence has followed and the snapshots are current.
                unsafe { copy::atomic_store(at.cast(), value) };
                ctx.mapped()
            }
            RemotePlace::Mapped(_) => return Err(TransferError::Nak(Nak::InvalidRequest)),
            _ => {
                let answer = atomic_by_rpc(ctx, &remote, RpcOperation::AtomicWrite, [value, 0]);
                answer.map_err(TransferError::Copy)?;
                PayloadPath::Call
            }
        };
        ctx.count(path, 8);
        Ok(())
    }

    /// What was written before is where everybody sees it: every request that has ended is, so what is left is to check that the
    /// request may be made, and to let nothing pass it. Nothing here outlives the host, so no region allows persistence.
    fn flush(&self, posted: &PostedSend<'_>, ctx: TransferCtx<'_>) -> Result<(), TransferError> {
        let [length, kind] = posted.request.operands;
        let (placement, level) = (kind as u8, (kind >> 8) as u8);
        let global = u32::from(placement) == ibv_placement_type::IBV_FLUSH_GLOBAL.0;
        let persistent = u32::from(placement) & ibv_placement_type::IBV_FLUSH_PERSISTENT.0 != 0;
        let known = [ibv_selectivity_level::IBV_FLUSH_RANGE.0, ibv_selectivity_level::IBV_FLUSH_MR.0];
        if persistent {
            return Err(TransferError::Nak(Nak::RemoteAccess));
        }
        if ctx.peer.descriptor.max_dest_rd_atomic == 0 || !global || !known.contains(&level.into()) {
            return Err(TransferError::Nak(Nak::InvalidRequest));
        }
        let whole = u32::from(level) == ibv_selectivity_level::IBV_FLUSH_MR.0;
        // Of a whole region the address has to be one, the length does not matter.
        let request = SendRequest { length: if whole { 0 } else { length }, ..*posted.request };
        self.validate_remote(
            &PostedSend { request: &request, ..*posted },
            ctx,
            ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL,
        )?;
        full_fence();
        Ok(())
    }

    /// A request without bytes: only whether the peer listens.
    fn check_peer_accepts(ctx: TransferCtx<'_>) -> Result<(), TransferError> {
        let peer = ctx.peer;
        ctx.hazards.remote.publish(Hazard::new(peer.hazard_index, Hazard::NO_REGION));
        if peer.entry().is_current(peer.snapshot) { Ok(()) } else { Err(TransferError::Stale) }
    }

    /// Checks the key that a request names, publishes the hazards and looks again: then the memory may be touched.
    #[inline]
    fn validate_remote(
        &self,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
        needed: ibv_access_flags,
    ) -> Result<RemotePiece, TransferError> {
        let TransferCtx { peer, gather_list, hazards, .. } = ctx;
        let request = posted.request;
        if peer.descriptor.access & needed.0 == 0 {
            return Err(TransferError::Nak(Nak::RemoteAccess));
        }
        if peer.process.is_own() {
            return self.validate_own_remote(posted, ctx, needed);
        }
        let index = request.rkey >> 8;
        let entry = peer.process.segment().region(index).ok_or(TransferError::Nak(Nak::RemoteAccess))?;
        let (snapshot, descriptor) = entry.read().ok_or(TransferError::Nak(Nak::RemoteAccess))?;
        if snapshot.label() != request.rkey as u8
            || !domain::serves(descriptor.pd, peer.descriptor.pd, peer.descriptor.qpn)
            || descriptor.access & needed.0 == 0
            || !descriptor.contains(request.remote_addr, request.length)
        {
            // The descriptor may have been read while it changed.
            let error = if entry.is_current(snapshot) {
                TransferError::Nak(Nak::RemoteAccess)
            } else {
                TransferError::Stale
            };
            return Err(error);
        }
        reach(Step::BeforeMark);
        hazards.remote.set(Hazard::new(peer.hazard_index, index));
        full_fence();
        if !entry.is_current(snapshot) || !peer.entry().is_current(peer.snapshot) {
            return Err(TransferError::Stale);
        }
        if !gather_list.is_current() {
            return Err(TransferError::Local(ibv_wc_status::IBV_WC_LOC_PROT_ERR));
        }
        let writes = needed != ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        let place = self
            .locate(ctx, request.rkey, &descriptor, request.remote_addr, request.length, writes)
            .ok_or(TransferError::Nak(Nak::RemoteAccess))?;
        let len = request.length as usize;
        Ok(RemotePiece { place, len, key: request.rkey, address: request.remote_addr })
    }

    /// The same where the peer is this process. What the segment says does not count here, as peers can write there: keys,
    /// pointers, generations and hazards are the private ones.
    #[inline]
    fn validate_own_remote(
        &self,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
        needed: ibv_access_flags,
    ) -> Result<RemotePiece, TransferError> {
        let TransferCtx { peer, gather_list, hazards, .. } = ctx;
        let request = posted.request;
        let refused = TransferError::Nak(Nak::RemoteAccess);
        let (region, snapshot, descriptor) = self.rnic.regions().read(request.rkey).ok_or(refused)?;
        let good = domain::serves(descriptor.pd, peer.descriptor.pd, peer.descriptor.qpn);
        let allowed = good && descriptor.access & needed.0 != 0;
        let at = descriptor.pointer(request.remote_addr, request.length).filter(|_| allowed);
        let Some(at) = at else {
            return Err(if region.is_current(snapshot) { refused } else { TransferError::Stale });
        };
        reach(Step::BeforeMark);
        // The source may lie in another region than the destination: the hazard stands for both.
        hazards.local.set(Hazard::new(peer.hazard_index, Hazard::ANY_REGION));
        hazards.remote.set(Hazard::new(peer.hazard_index, Hazard::NO_REGION));
        full_fence();
        if !region.is_current(snapshot) || !peer.entry().is_current(peer.snapshot) {
            return Err(TransferError::Stale);
        }
        if !gather_list.is_current() {
            return Err(TransferError::Local(ibv_wc_status::IBV_WC_LOC_PROT_ERR));
        }
        let len = request.length as usize;
        Ok(RemotePiece {
            place: RemotePlace::Mapped(at),
            len,
            key: request.rkey,
            address: request.remote_addr,
        })
    }
}

/// Why a transfer stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferError {
    /// Something changed meanwhile: look again.
    Stale,
    /// There is no receive.
    NoReceivePosted,
    Local(ibv_wc_status),
    Nak(Nak),
    Copy(CopyError),
}
