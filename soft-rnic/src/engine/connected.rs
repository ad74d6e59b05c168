//! Requests of connected queue pairs (RC, UC, XRC): connects, dispatches by opcode, handles errors.
//!
//! Each operation has a file: [`write`](super::write), [`read`](super::read), [`send`](super::send),
//! [`atomic`](super::atomic), [`flush`](super::flush).

use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_qp_state, ibv_qp_type, ibv_wc_status, ibv_wr_opcode};

use super::gather::GatherList;
use super::peer::PeerUnavailable;
use super::rpc::AbandonedRecv;
use super::{CopyError, Deferred, Hazards, TransferCtx, WrOutcome};
use crate::config::MAX_MESSAGE;
use crate::queue_pair::post::{brings_back, is_of_window};
use crate::queue_pair::send_queue::PostedSend;
use crate::queue_pair::transfer_slot_mutex::TransferSlotMutexGuard;
use crate::queue_pair::{Qp, Sending};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::progress::notice;

/// The reason for which the responder refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nak {
    /// The key is wrong, the range is outside the region, or a permission is missing.
    RemoteAccess,
    /// The request is malformed or not supported by the responder.
    InvalidRequest,
    /// The responder could not execute it, for example because a receive names an invalid key.
    RemoteOperation,
    /// It names no shared receive queue of the target's XRC domain.
    InvalidSrq,
    /// It asks to invalidate a key that it may not invalidate.
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
        if request.length > u64::from(MAX_MESSAGE) {
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
            // An unreliable connection does not notice that the peer does not answer.
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

    /// Checks the limits of the requester: `max_rd_atomic`, support for atomics, the length of an
    /// atomic.
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
        let peer = state.peer.as_ref().expect("connect_peer has set it");
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

    /// Tells a responder that is still in RTR that the first message has arrived.
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
            TransferError::Copy(CopyError::OwnBadAddress) => {
                WrOutcome::Failed(ibv_wc_status::IBV_WC_LOC_PROT_ERR)
            }
            TransferError::Nak(_) | TransferError::Copy(CopyError::BadAddress | CopyError::Refused)
                if !reliable =>
            {
                WrOutcome::Done
            }
            TransferError::Copy(CopyError::Refused) => WrOutcome::Failed(ibv_wc_status::IBV_WC_REM_OP_ERR),
            TransferError::Copy(CopyError::BadAddress) => {
                self.handle_error(sending, TransferError::Nak(Nak::RemoteOperation), deferred)
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
            TransferError::Stale | TransferError::Copy(CopyError::PathLost) => self.retry_changed(sending),
            TransferError::Copy(CopyError::OwnerPending) => self.retry_owner_pending(sending, reliable),
            TransferError::Copy(CopyError::OwnerBusy) => {
                let ticket = sending.ticket;
                if let Some(peer) = &mut sending.peer
                    && let Some(abandoned) =
                        AbandonedRecv::find(&peer.process, self.number.index as usize, ticket)
                {
                    // Forces a new look-up of the peer, so that no message takes a later receive
                    // before this one is back.
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
}

/// Why a transfer stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferError {
    /// A descriptor has changed since it was read: the request starts over.
    Stale,
    NoReceivePosted,
    Local(ibv_wc_status),
    Nak(Nak),
    Copy(CopyError),
}

impl From<CopyError> for TransferError {
    fn from(error: CopyError) -> Self {
        Self::Copy(error)
    }
}
