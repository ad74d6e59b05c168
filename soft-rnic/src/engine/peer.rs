//! The peer queue pair: finding the connected queue pair, and reading its descriptor.

use std::cell::Cell;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_qp_state, ibv_qp_type};

use super::Deferred;
use crate::node::PeerProcess;
use crate::node::Reachability;
use crate::objects::lid;
use crate::queue_pair::{Qp, Sending};
use crate::shared::entry::{QpDescriptor, QpEntry};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::Hazard;
use crate::shared::progress::QpProgress;
use crate::shared::segment::Slots;

/// A queue pair that a request addresses, with a snapshot of its descriptor.
#[derive(Clone, Debug)]
pub(crate) struct PeerQp {
    pub(crate) process: Arc<PeerProcess>,
    pub(crate) index: u32,
    /// The index that hazards name: `Hazard::ANY_QUEUE_PAIR` if the transfer uses another queue
    /// pair of that process too.
    pub(crate) hazard_index: u32,
    pub(crate) snapshot: GenerationSnapshot,
    pub(crate) descriptor: QpDescriptor,
    /// The slots of its receive queue or shared receive queue, checked. `None` if the descriptor
    /// names no valid range.
    pub(crate) slots: Option<Slots>,
    /// The protection domain of that queue.
    pub(crate) receive_pd: u32,
    /// The longest message that both ends' path MTUs allow.
    pub(crate) longest: u64,
    /// Whether the connection is established at the peer, so that the fast paths may be used.
    pub(crate) established: bool,
    /// Whether the peer was told of the first message. Set for an XRC target too, whose messages go
    /// to other queues and take no fast path.
    pub(crate) comm_est_sent: bool,
    /// The kernel cannot copy to the receive that was looked at last: its memory is mapped here,
    /// accessible to its owner only, or a null region.
    pub(crate) kernel_cannot_copy: Cell<bool>,
}

/// Where a queue pair's messages go, and the protection domain of those receives. A shared queue
/// lives as long as the queue pairs that use it, so that the queue pair's descriptor guards it too.
pub(super) fn receives_of(process: &PeerProcess, descriptor: &QpDescriptor) -> (Option<Slots>, u32) {
    let segment = process.segment();
    let Some(srq) = descriptor.srq.checked_sub(1) else {
        return (segment.slots(&descriptor.slots), descriptor.pd);
    };
    // A sender counts claims there.
    let shared = segment.counters(srq).and_then(|_| segment.shared_queue(srq)?.read());
    shared.map_or((None, 0), |(_, shared)| (segment.slots(&shared.slots), shared.pd))
}

impl PeerQp {
    /// The entry in the peer's segment.
    #[inline]
    pub(crate) fn entry(&self) -> &QpEntry {
        self.process.segment().queue_pair(self.index).expect("the index was found in the table")
    }

    /// The words of the queue pair that senders change.
    #[inline]
    pub(crate) fn progress_words(&self) -> &QpProgress {
        self.process.segment().progress(self.index).expect("whoever made the value has looked")
    }

    /// Leaves a notice for the owner unless another queue pair or connection has taken the index.
    /// The caller holds this transfer slot, and has set no hazard of it at the peer.
    #[cold]
    pub(crate) fn leave_notice(&self, transfer_slot: usize, bits: u32, deferred: &mut Deferred) {
        let (entry, hazard) = (self.entry(), self.process.hazard_slot(transfer_slot));
        hazard.publish(Hazard::new(self.index, Hazard::NO_REGION));
        // The owner may be changing its state, which takes a moment.
        let now = (0..LOOKS).find_map(|_| entry.read().filter(|(snapshot, _)| entry.is_current(*snapshot)));
        let same = |descriptor: &QpDescriptor| {
            (descriptor.qpn, descriptor.connection) == (self.descriptor.qpn, self.descriptor.connection)
        };
        if now.is_some_and(|(_, descriptor)| same(&descriptor)) {
            self.progress_words().leave_notice(bits);
            deferred.notice(&self.process, self.index);
        }
        hazard.clear();
    }

    pub(crate) fn state(&self) -> ibv_qp_state {
        ibv_qp_state(self.snapshot.label().into())
    }
}

/// Why no peer can be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerUnavailable {
    /// The connection to its process is being made.
    Connecting,
    /// No queue pair answers the address.
    NoAnswer,
    /// Its descriptor cannot be read: the owner is changing it, or has withdrawn it for good.
    Unreadable,
    /// Its owner still executes an earlier message, whose receive comes before others.
    OwnerBusy,
}

/// The most looks at a descriptor whose owner is changing its state, which takes a moment.
pub(super) const LOOKS: u32 = 100;

/// Whether a queue pair in this state accepts messages.
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
    /// Ensures that `sending.peer` is the connected queue pair with its current descriptor.
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

    /// The descriptor of a queue pair. For one of this process it comes from the private tables,
    /// because peers can write into the segment.
    pub(super) fn descriptor_of(
        &self,
        process: &PeerProcess,
        index: u32,
        looks: u32,
    ) -> Option<(GenerationSnapshot, QpDescriptor)> {
        let entry = process.segment().queue_pair(index)?;
        let found = (0..looks).find_map(|_| {
            let found = entry.read();
            if found.is_none() {
                core::hint::spin_loop();
            }
            found
        });
        let (snapshot, descriptor) = found?;
        if process.is_own() {
            // The private descriptor may be newer than the snapshot. Then the snapshot is not
            // current, and validation fails.
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
        // Each poll retries, and a descriptor that stays unreadable is probably gone.
        let looks = if sending.closed_since.is_some() { 1 } else { LOOKS };
        let Some((snapshot, descriptor)) = self.descriptor_of(&process, index, looks) else {
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
            && lid::leads_to(attributes.dest_lid, descriptor.device, descriptor.port)
            && descriptor.pkey_index == attributes.pkey_index
            && descriptor.link_up;
        if !listens {
            return Err(PeerUnavailable::NoAnswer);
        }
        // A changed descriptor (of permissions, for example) does not interrupt a running
        // connection. A new connection begins at the agreed sequence number.
        let resumed = was_connected.as_ref().is_some_and(|peer| {
            Arc::ptr_eq(&peer.process, &process)
                && peer.index == index
                && peer.descriptor.connection == descriptor.connection
        });
        // The owner may have one part of the segment longer than the other, and this process may lack
        // the address space for one.
        let segment = process.segment();
        let (Some(progress), Some(_)) =
            (segment.progress(index), segment.completion_queue(descriptor.recv_cq))
        else {
            return Err(PeerUnavailable::Unreadable);
        };
        // An unreliable connection accepts a message with any number (InfiniBand specification,
        // chapter 9, unreliable connections).
        if self.is_reliable() && !resumed && progress.expected_psn() != sending.psn {
            return Err(PeerUnavailable::NoAnswer);
        }
        let was = was_connected.filter(|_| resumed);
        let (established, comm_est_sent) =
            was.map_or((false, false), |peer| (peer.established, peer.comm_est_sent));
        // Every packet except the last must have the receiver's path MTU (InfiniBand specification
        // 9.7.4.1.6). If the two ends disagree, only messages of one packet pass.
        let (own_mtu, peer_mtu) = (attributes.path_mtu, 128 << descriptor.path_mtu.min(5));
        let longest = if own_mtu == peer_mtu { u64::MAX } else { u64::from(own_mtu.min(peer_mtu)) };
        let ((slots, receive_pd), kernel_cannot_copy) =
            (receives_of(&process, &descriptor), Cell::new(false));
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
            receive_pd,
            kernel_cannot_copy,
        });
        Ok(())
    }
}
