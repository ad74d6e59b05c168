//! XRC requests: the target queue pair answers, the shared receive queue's owner receives.
//!
//! A message is checked as the target says (its state, its sequence, its permissions) and uses the queue's receives, completion
//! queue and protection domain (InfiniBand specification, annex A14). Both may be of different processes. The hazards stand for
//! both: either of them is waited for when it goes.

use std::cell::Cell;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_qp_state, ibv_wr_opcode};

use super::connected::{Nak, TransferError};
use super::gather::GatherList;
use super::peer::{PeerQp, PeerUnavailable, accepts_messages};
use super::rpc::AbandonedRecv;
use super::send::RecvMeta;
use super::{CopyError, Deferred, Hazards, TransferCtx, WrOutcome};
use crate::node::Reachability;
use crate::queue_pair::send_queue::PostedSend;
use crate::queue_pair::transfer_slot_mutex::TransferSlotMutexGuard;
use crate::queue_pair::xrc::RECEIVER;
use crate::queue_pair::{Qp, Sending};
use crate::shared::entry::{QpDescriptor, notice};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::Hazard;

/// Queues that a connection remembers.
const REMEMBERED: usize = 64;

impl Qp {
    /// Executes a request whose target answers.
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
        let target = sending.peer.clone().expect("it was just connected");
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
                // The receive has ended with an error, and so does the connection; the queue goes on.
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

    /// Publishes hazards on both and does what the request says.
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
        // Where both are of one process this is the same hazard, which says "any queue pair" from now on.
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
        self.send_with_meta(RecvMeta { header: 0, has_source: true, source }, posted, ctx, deferred)
    }

    /// What receives for the queue of this number, with the target's say in what may be done. `Pending`: the way there is being
    /// made; otherwise there is no such queue in the target's domain.
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
        // It says what it is from its beginning to its end: one that does not is gone.
        let (snapshot, descriptor) =
            self.descriptor_of(&process, index).ok_or(PeerUnavailable::Unreadable)?;
        let good = accepts_messages(snapshot.label())
            && descriptor.qpn == srqn
            && u32::from(descriptor.qp_type) == RECEIVER.0;
        if !good {
            return Err(PeerUnavailable::NoAnswer);
        }
        let found = PeerQp {
            process,
            index,
            hazard_index: index,
            snapshot,
            descriptor,
            slots: None,
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

    /// The target notices the first message before it is ready to send itself.
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
