//! XRC requests: the target queue pair answers, and the owner of the shared receive queue receives.
//!
//! The target queue pair checks a message: its state, its sequence number, its permissions. The
//! shared receive queue supplies the receive, the completion queue and the protection domain
//! (InfiniBand specification, annex A14). The two may belong to different processes. Hazards
//! protect both, so that each waits for the transfer before it is destroyed.

use std::cell::Cell;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_qp_state, ibv_wr_opcode};

use super::connected::{Nak, TransferError};
use super::gather::GatherList;
use super::peer::{LOOKS, PeerQp, PeerUnavailable, accepts_messages, receives_of};
use super::rpc::AbandonedRecv;
use super::send::RecvMeta;
use super::{CopyError, Deferred, Hazards, TransferCtx, WrOutcome};
use crate::node::Reachability;
use crate::queue_pair::send_queue::PostedSend;
use crate::queue_pair::transfer_slot_mutex::TransferSlotMutexGuard;
use crate::queue_pair::xrc::RECEIVER;
use crate::queue_pair::{Qp, Sending};
use crate::shared::entry::QpDescriptor;
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::Hazard;
use crate::shared::progress::notice;

/// The most shared receive queues that a connection caches.
const REMEMBERED: usize = 64;

impl Qp {
    /// Executes a request on a connection to an XRC target queue pair.
    #[inline(never)]
    pub(super) fn execute_xrc(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &PostedSend<'_>,
        gather_list: &GatherList<'_>,
        deferred: &mut Deferred,
    ) -> WrOutcome {
        if sending
            .abandoned
            .as_ref()
            .is_some_and(|abandoned| abandoned.is_still_there(sending.transfer_slot()))
        {
            return self.retry_abandoned(sending);
        }
        sending.abandoned = None;
        let target = sending.peer.clone().expect("connect_peer has set it");
        let receiver = match self.xrc_receiver(sending, &target, posted.request.to) {
            Ok(receiver) => receiver,
            Err(PeerUnavailable::Connecting) => return self.retry_soon(sending),
            Err(_) => return self.handle_error(sending, TransferError::Nak(Nak::InvalidSrq), deferred),
        };
        let result = self.dispatch_xrc(sending, posted, gather_list, [&target, &receiver], deferred);
        if receiver.process.pending_atomic(sending.transfer_slot()) == Some(sending.ticket) {
            sending.atomic_target = Some(Arc::clone(&receiver.process));
        }
        match result {
            Ok(WrOutcome::Done) => {
                self.notify_target_established(sending, deferred);
                WrOutcome::Done
            }
            Ok(WrOutcome::Failed(status)) => {
                // The receive has ended with an error, and so does the connection. The shared
                // receive queue stays usable.
                target.leave_notice(sending.transfer_slot(), notice::RECEIVE_ERROR, deferred);
                WrOutcome::Failed(status)
            }
            Ok(other) => other,
            Err(TransferError::Copy(CopyError::OwnerBusy)) => {
                sending.abandoned =
                    AbandonedRecv::find(&receiver.process, sending.transfer_slot(), sending.ticket);
                self.retry_abandoned(sending)
            }
            Err(TransferError::Copy(CopyError::PeerGone)) => {
                receiver.process.suspect();
                self.retry_unacknowledged(sending)
            }
            Err(error) => self.handle_error(sending, error, deferred),
        }
    }

    /// Publishes hazards for target and receiver, then executes the operation.
    fn dispatch_xrc(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &PostedSend<'_>,
        gather_list: &GatherList<'_>,
        [target, receiver]: [&PeerQp; 2],
        deferred: &mut Deferred,
    ) -> Result<WrOutcome, TransferError> {
        let ticket = sending.ticket;
        let (_, transfer_slot) = sending.parts();
        let local = self.rnic.node().local_hazard(transfer_slot.index());
        // If both belong to one process they share this hazard, which then covers any queue pair.
        let of_target = Hazards { local, remote: target.process.hazard_slot(transfer_slot.index()) };
        let hazard_index = if Arc::ptr_eq(&target.process, &receiver.process) {
            receiver.hazard_index
        } else {
            target.index
        };
        of_target.remote.publish(Hazard::new(hazard_index, Hazard::NO_REGION));
        if !target.entry().is_current(target.snapshot) {
            return Err(TransferError::Stale);
        }
        let hazards = Hazards { local, remote: receiver.process.hazard_slot(transfer_slot.index()) };
        let ctx = TransferCtx {
            rnic: &self.rnic,
            peer: receiver,
            gather_list,
            hazards: &hazards,
            transfer_slot,
            ticket,
        };
        let takes_receive = matches!(
            posted.request.opcode,
            ibv_wr_opcode::IBV_WR_SEND
                | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
                | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        );
        if !takes_receive {
            return self.dispatch(posted, ctx, deferred);
        }
        if posted.request.length > receiver.longest {
            return Err(TransferError::Nak(Nak::InvalidRequest));
        }
        let source = [u64::from(target.descriptor.qpn), 0, 0];
        self.send_with_meta(
            RecvMeta { has_source: true, source, ..RecvMeta::default() },
            posted,
            ctx,
            deferred,
        )
    }

    /// The shared receive queue with this number, with the permissions of the target.
    ///
    /// # Errors
    ///
    /// `Connecting` while the connection to its process is being made; otherwise the target's XRC
    /// domain has no such queue.
    fn xrc_receiver(
        &self,
        sending: &mut Sending,
        target: &PeerQp,
        srqn: u32,
    ) -> Result<PeerQp, PeerUnavailable> {
        let known = sending.receivers.iter().position(|(number, _)| *number == srqn);
        let found = match known {
            Some(place) => {
                let (_, peer) = &sending.receivers[place];
                if peer.process.alive() && peer.entry().is_current(peer.snapshot) {
                    peer.clone()
                } else {
                    sending.receivers.swap_remove(place);
                    self.find_receiver(sending, srqn)?
                }
            }
            None => self.find_receiver(sending, srqn)?,
        };
        if found.descriptor.xrcd != target.descriptor.xrcd {
            return Err(PeerUnavailable::NoAnswer);
        }
        let QpDescriptor { access, max_dest_rd_atomic, min_rnr_timer, .. } = target.descriptor;
        let descriptor = QpDescriptor { access, max_dest_rd_atomic, min_rnr_timer, ..found.descriptor };
        let together = Arc::ptr_eq(&target.process, &found.process);
        let hazard_index = if together { Hazard::ANY_QUEUE_PAIR } else { found.index };
        Ok(PeerQp { descriptor, longest: target.longest, hazard_index, ..found })
    }

    #[cold]
    fn find_receiver(&self, sending: &mut Sending, srqn: u32) -> Result<PeerQp, PeerUnavailable> {
        let process = match self.rnic.node().find_process(srqn) {
            Reachability::Ready(process) if process.alive() => process,
            Reachability::Pending => return Err(PeerUnavailable::Connecting),
            _ => return Err(PeerUnavailable::NoAnswer),
        };
        let index = process.index_of(srqn).ok_or(PeerUnavailable::NoAnswer)?;
        // A shared receive queue publishes its descriptor as long as it exists, so one without a
        // descriptor is gone.
        let (snapshot, descriptor) =
            self.descriptor_of(&process, index, LOOKS).ok_or(PeerUnavailable::Unreadable)?;
        let good = accepts_messages(snapshot.label())
            && descriptor.qpn == srqn
            && u32::from(descriptor.qp_type) == RECEIVER.0;
        if !good {
            return Err(PeerUnavailable::NoAnswer);
        }
        let (slots, receive_pd) = receives_of(&process, &descriptor);
        let found = PeerQp {
            process,
            index,
            hazard_index: index,
            snapshot,
            descriptor,
            slots,
            receive_pd,
            longest: 0,
            established: false,
            comm_est_sent: false,
            kernel_cannot_copy: Cell::new(false),
        };
        if sending.receivers.len() == REMEMBERED {
            sending.receivers.clear();
        }
        sending.receivers.push((srqn, found.clone()));
        Ok(found)
    }

    /// Tells a target that is still in RTR that the first message has arrived.
    fn notify_target_established(
        &self,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        deferred: &mut Deferred,
    ) {
        let transfer_slot = sending.transfer_slot();
        let Some(target) = sending.peer.as_mut().filter(|target| !target.comm_est_sent) else { return };
        target.comm_est_sent = true;
        if target.state() == ibv_qp_state::IBV_QPS_RTR && target.snapshot != GenerationSnapshot::NONE {
            target.leave_notice(transfer_slot, notice::ESTABLISHED, deferred);
        }
    }
}
