//! Requests of extended reliable connections: answered by the target, done to what the shared receive queue stands for.
//!
//! A message is checked as the target says (its state, its sequence, its permissions) and uses the queue's receives, completion
//! queue and protection domain (InfiniBand specification, annex A14). Both may be of different processes. The hazards stand for
//! both: either of them is waited for when it goes.

use std::cell::Cell;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_qp_state, ibv_wr_opcode};

use super::call::Left;
use super::connected::{Refused, Stop};
use super::deliver::Envelope;
use super::gather::Gathered;
use super::peer::{NoPeer, Peer, receives};
use super::{After, Broken, Hazards, Outcome, Way};
use crate::node::Reachability;
use crate::queue_pair::send_queue::Posted;
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
    pub(super) fn transfer_by_number(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &Posted<'_>,
        gathered: &Gathered<'_>,
        after: &mut After,
    ) -> Outcome {
        if sending.left.as_ref().is_some_and(|left| left.is_still_there(sending.transfer_slot())) {
            return self.left_behind(sending);
        }
        sending.left = None;
        let target = sending.peer.clone().expect("it was just connected");
        let receiver = match self.receiver_of(sending, &target, posted.request.to) {
            Ok(receiver) => receiver,
            Err(NoPeer::Pending) => return self.soon(sending),
            Err(_) => return self.stopped(sending, Stop::Refused(Refused::Number), after),
        };
        let result = self.attempt_between(sending, posted, gathered, [&target, &receiver], after);
        if receiver.process.pending_atomic(sending.transfer_slot()) == Some(sending.ticket) {
            sending.atomic_target = Some(Arc::clone(&receiver.process));
        }
        match result {
            Ok(Outcome::Done) => {
                self.tell_target(sending, after);
                Outcome::Done
            }
            Ok(Outcome::Failed(status)) => {
                // The receive has ended with an error, and so does the connection; the queue goes on.
                target.leave_notice(sending.transfer_slot(), notice::RECEIVE_ERROR, after);
                Outcome::Failed(status)
            }
            Ok(other) => other,
            Err(Stop::Broken(Broken::Begun)) => {
                sending.left = Left::find(&receiver.process, sending.transfer_slot(), sending.ticket);
                self.left_behind(sending)
            }
            Err(Stop::Broken(Broken::Gone)) => {
                receiver.process.suspect();
                self.no_answer(sending)
            }
            Err(stop) => self.stopped(sending, stop, after),
        }
    }

    /// Publishes hazards on both and does what the request says.
    fn attempt_between(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &Posted<'_>,
        gathered: &Gathered<'_>,
        [target, receiver]: [&Peer; 2],
        after: &mut After,
    ) -> Result<Outcome, Stop> {
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
            return Err(Stop::Changed);
        }
        let hazards = Hazards { local, remote: receiver.process.hazard_slot(transfer_slot.index()) };
        let way =
            Way { rnic: &self.rnic, peer: receiver, gathered, hazards: &hazards, transfer_slot, ticket };
        let takes_receive = matches!(
            posted.request.opcode,
            ibv_wr_opcode::IBV_WR_SEND
                | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
                | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        );
        if !takes_receive {
            return self.attempt(posted, way, after);
        }
        if posted.request.length > receiver.longest {
            return Err(Stop::Refused(Refused::Invalid));
        }
        let source = [u64::from(target.descriptor.qpn), 0, 0];
        self.deliver_in(Envelope { header: 0, told: true, source }, posted, way, after)
    }

    /// What receives for the queue of this number, with the target's say in what may be done. `Pending`: the way there is being
    /// made; otherwise there is no such queue in the target's domain.
    fn receiver_of(&self, sending: &mut Sending, target: &Peer, srqn: u32) -> Result<Peer, NoPeer> {
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
            return Err(NoPeer::Silent);
        }
        let QpDescriptor { access, max_dest_rd_atomic, min_rnr_timer, .. } = target.descriptor;
        let descriptor = QpDescriptor { access, max_dest_rd_atomic, min_rnr_timer, ..found.descriptor };
        let together = Arc::ptr_eq(&target.process, &found.process);
        let hazard_index = if together { Hazard::ANY_QUEUE_PAIR } else { found.index };
        Ok(Peer { descriptor, longest: target.longest, hazard_index, ..found })
    }

    #[cold]
    fn find_receiver(&self, sending: &mut Sending, srqn: u32) -> Result<Peer, NoPeer> {
        let process = match self.rnic.node().find_process(srqn) {
            Reachability::Ready(process) if process.alive() => process,
            Reachability::Pending => return Err(NoPeer::Pending),
            _ => return Err(NoPeer::Silent),
        };
        let index = process.index_of(srqn).ok_or(NoPeer::Silent)?;
        // It says what it is from its beginning to its end: one that does not is gone.
        let (snapshot, descriptor) = self.descriptor_of(&process, index).ok_or(NoPeer::Closed)?;
        let good = receives(snapshot.label())
            && descriptor.qpn == srqn
            && u32::from(descriptor.qp_type) == RECEIVER.0;
        if !good {
            return Err(NoPeer::Silent);
        }
        let found = Peer {
            process,
            index,
            hazard_index: index,
            snapshot,
            descriptor,
            slots: None,
            longest: 0,
            established: false,
            told: false,
            receives_apart: Cell::new(false),
        };
        if sending.receivers.len() == REMEMBERED {
            sending.receivers.clear();
        }
        sending.receivers.push((srqn, found.clone()));
        Ok(found)
    }

    /// The target notices the first message before it is ready to send itself.
    fn tell_target(&self, sending: &mut TransferSlotMutexGuard<'_, Sending>, after: &mut After) {
        let transfer_slot = sending.transfer_slot();
        let Some(target) = sending.peer.as_mut().filter(|target| !target.told) else { return };
        target.told = true;
        if target.state() == ibv_qp_state::IBV_QPS_RTR && target.snapshot != GenerationSnapshot::NONE {
            target.leave_notice(transfer_slot, notice::ESTABLISHED, after);
        }
    }
}
