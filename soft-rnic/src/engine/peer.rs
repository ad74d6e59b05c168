//! The peer queue pair: finding the connected queue pair, and reading its descriptor.

use std::cell::Cell;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_qp_state, ibv_qp_type};

use super::Deferred;
use crate::node::PeerProcess;
use crate::node::Reachability;
use crate::queue_pair::{Qp, Sending};
use crate::shared::entry::{QpDescriptor, QpEntry};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::Hazard;
use crate::shared::segment::Slots;

/// A queue pair that answers.
#[derive(Clone, Debug)]
pub(crate) struct PeerQp {
    pub(crate) process: Arc<PeerProcess>,
    pub(crate) index: u32,
    /// The index that hazards name: `Hazard::ANY_QUEUE_PAIR` where others of that process are on the way as well.
    pub(crate) hazard_index: u32,
    pub(crate) snapshot: GenerationSnapshot,
    pub(crate) descriptor: QpDescriptor,
    /// Those of the descriptor: its own receive queue's.
    pub(crate) slots: Option<Slots>,
    /// The longest message that both ends' path MTUs allow.
    pub(crate) longest: u64,
    /// It has been told that the connection is there, and messages may go the short ways.
    pub(crate) established: bool,
    /// It has been comm_est_sent, but messages go by way of it to others: none goes a short way.
    pub(crate) comm_est_sent: bool,
    /// The receive that was looked at last lies where the system does not copy to: its memory is mapped here, is the owner's alone, or
    /// is none.
    pub(crate) kernel_cannot_copy: Cell<bool>,
}

impl PeerQp {
    /// The entry in the peer's segment.
    #[inline]
    pub(crate) fn entry(&self) -> &QpEntry {
        self.process.segment().queue_pair(self.index).expect("the index was found in the table")
    }

    /// Leaves a notice for the owner, if the queue pair is still what it was: its index may be another's by now. The caller
    /// has this transfer slot, and no hazard there.
    #[cold]
    pub(crate) fn leave_notice(&self, transfer_slot: usize, bits: u32, deferred: &mut Deferred) {
        let (entry, hazard) = (self.entry(), self.process.hazard_slot(transfer_slot));
        hazard.publish(Hazard::new(self.index, Hazard::NO_REGION));
        // It may be about to change its state, which takes a moment.
        let now = (0..100).find_map(|_| entry.read().filter(|(snapshot, _)| entry.is_current(*snapshot)));
        let same = |descriptor: &QpDescriptor| {
            (descriptor.qpn, descriptor.connection) == (self.descriptor.qpn, self.descriptor.connection)
        };
        if now.is_some_and(|(_, descriptor)| same(&descriptor)) {
            entry.leave_notice(bits);
            deferred.notice(&self.process, self.index);
        }
        hazard.clear();
    }

    pub(crate) fn state(&self) -> ibv_qp_state {
        ibv_qp_state(self.snapshot.label().into())
    }
}

/// Why there is no peer to send to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerUnavailable {
    /// The way to it is being made.
    Connecting,
    /// Nobody answers.
    NoAnswer,
    /// It does not say what it is, for a moment or for good.
    Unreadable,
    /// Its owner is at a message, whose receive comes before others.
    OwnerBusy,
}

/// States in which a queue pair takes messages.
pub(crate) fn accepts_messages(state: u8) -> bool {
    [
        ibv_qp_state::IBV_QPS_RTR,
        ibv_qp_state::IBV_QPS_RTS,
        ibv_qp_state::IBV_QPS_SQD,
        ibv_qp_state::IBV_QPS_SQE,
    ]
    .contains(&ibv_qp_state(state.into()))
}

impl Qp {
    /// Sees to it that `sending.peer` is the connected queue pair as it is now.
    #[inline]
    pub(crate) fn connect_peer(&self, sending: &mut Sending) -> Result<(), PeerUnavailable> {
        if let Some(peer) = &sending.peer
            && peer.process.alive()
            && peer.entry().is_current(peer.snapshot)
        {
            return Ok(());
        }
        self.find_peer(sending)
    }

    /// What a queue pair says of itself. One of this process is asked itself: peers can write into the segment.
    pub(super) fn descriptor_of(
        &self,
        process: &PeerProcess,
        index: u32,
    ) -> Option<(GenerationSnapshot, QpDescriptor)> {
        let entry = process.segment().queue_pair(index)?;
        // It may be about to change its state, which takes a moment.
        let found = (0..100).find_map(|_| {
            let found = entry.read();
            if found.is_none() {
                core::hint::spin_loop();
            }
            found
        });
        let (snapshot, descriptor) = found?;
        if process.is_own() {
            // Of a later state than the snapshot, if of another: then the snapshot is not current.
            return Some((snapshot, self.rnic.queue_pairs().get(index)?.descriptor()));
        }
        Some((snapshot, descriptor))
    }

    #[cold]
    fn find_peer(&self, sending: &mut Sending) -> Result<(), PeerUnavailable> {
        let attributes = &sending.attributes;
        let was_connected = sending.peer.clone();
        let process = match self.rnic.node().find_process(attributes.dest_qpn) {
            Reachability::Ready(process) if process.alive() => process,
            Reachability::Pending => return Err(PeerUnavailable::Connecting),
            _ => return Err(PeerUnavailable::NoAnswer),
        };
        let index = process.index_of(attributes.dest_qpn);
        let Some(index) = index else { return Err(PeerUnavailable::NoAnswer) };
        if self.qp_type != ibv_qp_type::IBV_QPT_XRC_SEND
            && let Some(abandoned) = &sending.abandoned
        {
            if abandoned.is_there(&process, self.number.index as usize) {
                return Err(PeerUnavailable::OwnerBusy);
            }
            sending.abandoned = None;
        }
        let Some((snapshot, descriptor)) = self.descriptor_of(&process, index) else {
            return Err(PeerUnavailable::Unreadable);
        };
        sending.closed_since = None;
        let attributes = &sending.attributes;
        let listens = accepts_messages(snapshot.label())
            && descriptor.qpn == attributes.dest_qpn
            && descriptor.dest_qpn == self.number.qpn
            && u32::from(descriptor.qp_type) == self.answered_by().0
            && descriptor.local_gid == attributes.remote_gid
            && descriptor.remote_gid == attributes.local_gid
            && descriptor.link_up;
        if !listens {
            return Err(PeerUnavailable::NoAnswer);
        }
        // A changed descriptor (of permissions, say) leaves a running connection as it is; a new one begins at the agreed number.
        let resumed = was_connected.as_ref().is_some_and(|peer| {
            Arc::ptr_eq(&peer.process, &process)
                && peer.index == index
                && peer.descriptor.connection == descriptor.connection
        });
        let entry = process.segment().queue_pair(index).expect("it was just read");
        // An unreliable connection takes up a message with any number (InfiniBand specification, chapter 9, unreliable connections).
        if self.is_reliable() && !resumed && entry.expected_psn() != sending.psn {
            return Err(PeerUnavailable::NoAnswer);
        }
        let was = was_connected.filter(|_| resumed);
        let (established, comm_est_sent) =
            was.map_or((false, false), |peer| (peer.established, peer.comm_est_sent));
        // A packet that is not the last must be of the receiver's path MTU (InfiniBand specification 9.7.4.1.6): where
        // the ends disagree, only messages of one packet pass.
        let (own_mtu, peer_mtu) = (attributes.path_mtu, 128 << descriptor.path_mtu.min(5));
        let longest = if own_mtu == peer_mtu { u64::MAX } else { u64::from(own_mtu.min(peer_mtu)) };
        let (slots, kernel_cannot_copy) = (descriptor.slots.check(), Cell::new(false));
        sending.peer = Some(PeerQp {
            longest,
            process,
            index,
            hazard_index: index,
            snapshot,
            descriptor,
            slots,
            established,
            comm_est_sent,
            kernel_cannot_copy,
        });
        Ok(())
    }
}
