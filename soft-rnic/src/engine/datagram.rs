//! UD datagrams: each request names its receiver, and a datagram is delivered or silently lost.

use std::cell::Cell;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_qp_type, ibv_wc_status, ibv_wr_opcode};

use super::connected::TransferError;
use super::gather::GatherList;
use super::multicast::GROUP;
use super::peer::{LOOKS, PeerQp, accepts_messages, receives_of};
use super::send::{GRH, RecvMeta};
use super::{CopyError, Deferred, Hazards, TransferCtx, WrOutcome};
use crate::node::{PeerProcess, Reachability};
use crate::objects::lid;
use crate::objects::multicast::is_group;
use crate::queue_pair::send_queue::{DatagramDestination, PostedSend};
use crate::queue_pair::transfer_slot_mutex::TransferSlotMutexGuard;
use crate::queue_pair::{Qp, Sending};
use crate::shared::entry::gid_words;

/// The high bit of a request's Q_Key: if set, the Q_Key of the queue pair is used instead
/// (InfiniBand specification 3.5.3).
const CONTROLLED: u32 = 1 << 31;

impl Qp {
    pub(crate) fn execute_datagram(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &PostedSend<'_>,
        deferred: &mut Deferred,
    ) -> WrOutcome {
        let request = posted.request;
        let Some(destination) = self.send_queue.destination(posted) else {
            return WrOutcome::Failed(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
        };
        if destination.pd != self.pd.number()
            || !matches!(request.opcode, ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM)
        {
            return WrOutcome::Failed(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
        }
        if request.length > u64::from(self.port_mtu()) {
            return WrOutcome::Failed(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
        }
        if destination.remote_qpn == GROUP && is_group(destination.route.destination) {
            return self.execute_multicast(sending, destination, posted, deferred);
        }
        let local = self.rnic.node().local_hazard(sending.transfer_slot());
        let mut gather_list = GatherList::default();
        if let Err(status) = self.gather_datagram(sending, posted, &mut gather_list) {
            return WrOutcome::Failed(status);
        }
        let outcome = match self.rnic.node().find_process(destination.remote_qpn) {
            // The connection to that process is being made: the datagram waits for it.
            Reachability::Pending => self.retry_soon(sending),
            Reachability::Ready(process) => {
                if let Some(peer) = self.unicast_receiver(sending, destination, process) {
                    self.send_datagram(
                        sending,
                        destination,
                        posted,
                        &peer,
                        DatagramTarget::Unicast,
                        &gather_list,
                        deferred,
                    )
                } else {
                    WrOutcome::Done
                }
            }
            _ => WrOutcome::Done,
        };
        local.clear();
        outcome
    }

    /// Finds the pieces of a datagram. If this succeeds, the local hazard is set for them.
    pub(super) fn gather_datagram<'a>(
        &'a self,
        sending: &TransferSlotMutexGuard<'_, Sending>,
        posted: &PostedSend<'_>,
        gather_list: &mut GatherList<'a>,
    ) -> Result<(), ibv_wc_status> {
        let local = self.rnic.node().local_hazard(sending.transfer_slot());
        self.gather(posted, false, local, gather_list).inspect_err(|_| local.clear())
    }

    /// The queue pair that a datagram names, if it accepts the datagram.
    fn unicast_receiver(
        &self,
        sending: &Sending,
        destination: &DatagramDestination,
        process: Arc<PeerProcess>,
    ) -> Option<PeerQp> {
        let qpn = destination.remote_qpn;
        let peer = self.datagram_receiver(sending, destination, &process, process.index_of(qpn)?, qpn)?;
        let (route, device, port) = (&destination.route, peer.descriptor.device, peer.descriptor.port);
        let by_gid = !route.has_grh || process.has_gid(device, port, route.destination);
        (by_gid && lid::leads_to(route.dest_lid, device, port)).then_some(peer)
    }

    /// The queue pair with this index, if its state, number, type and Q_Key let it receive this
    /// datagram.
    pub(super) fn datagram_receiver(
        &self,
        sending: &Sending,
        destination: &DatagramDestination,
        process: &Arc<PeerProcess>,
        index: u32,
        qpn: u32,
    ) -> Option<PeerQp> {
        let (snapshot, descriptor) = self.descriptor_of(process, index, LOOKS)?;
        let qkey = match destination.remote_qkey {
            key if key & CONTROLLED != 0 => sending.attributes.qkey,
            key => key,
        };
        let takes = accepts_messages(snapshot.label())
            && descriptor.qpn == qpn
            && u32::from(descriptor.qp_type) == ibv_qp_type::IBV_QPT_UD.0
            && descriptor.qkey == qkey
            && descriptor.pkey_index == sending.attributes.pkey_index
            && descriptor.link_up;
        // A sender needs these words later.
        process.segment().progress(index)?;
        let (slots, receive_pd) = receives_of(process, &descriptor);
        let process = Arc::clone(process);
        let kernel_cannot_copy = Cell::default();
        takes.then_some(PeerQp {
            process,
            index,
            hazard_index: index,
            snapshot,
            descriptor,
            slots,
            established: true,
            comm_est_sent: true,
            longest: u64::MAX,
            receive_pd,
            kernel_cannot_copy,
        })
    }

    #[allow(clippy::too_many_arguments)] // The parts of a datagram.
    pub(super) fn send_datagram(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        destination: &DatagramDestination,
        posted: &PostedSend<'_>,
        peer: &PeerQp,
        to: DatagramTarget,
        gather_list: &GatherList<'_>,
        deferred: &mut Deferred,
    ) -> WrOutcome {
        let ticket = sending.ticket;
        let (_, transfer_slot) = sending.parts();
        let hazards = Hazards {
            local: self.rnic.node().local_hazard(transfer_slot.index()),
            remote: peer.process.hazard_slot(transfer_slot.index()),
        };
        let ctx =
            TransferCtx { rnic: &self.rnic, peer, gather_list, hazards: &hazards, transfer_slot, ticket };
        // The receiver has no packet to inspect, so the sender tells it which of its addresses the
        // datagram was sent to.
        let by = match to {
            DatagramTarget::Unicast => {
                let index = peer.process.gid_index(
                    peer.descriptor.device,
                    peer.descriptor.port,
                    destination.route.destination,
                );
                u64::from(index.unwrap_or_default())
            }
            DatagramTarget::Multicast { entry } => u64::from(entry + 1) << 8,
        };
        let [low, high] = gid_words(destination.route.source);
        let to = u64::from(destination.traffic_class)
            | u64::from(destination.hop_limit) << 8
            | u64::from(destination.flow_label) << 16
            | u64::from(destination.service_level & 0xf) << 36
            | by << 40;
        let has_grh = destination.route.has_grh;
        let meta = RecvMeta { header: GRH, has_grh, has_source: true, source: [low, high, to] };
        let result = self.send_with_meta(meta, posted, ctx, deferred);
        match result {
            Err(TransferError::Local(status)) => WrOutcome::Failed(status),
            Err(TransferError::Copy(CopyError::OwnBadAddress)) => {
                WrOutcome::Failed(ibv_wc_status::IBV_WC_LOC_PROT_ERR)
            }
            Err(TransferError::Copy(CopyError::OwnerPending | CopyError::OwnerBusy)) => {
                self.retry_datagram(sending)
            }
            // For every other error the datagram is lost, and the sender is not told.
            _ => WrOutcome::Done,
        }
    }
}

/// Which address of the receiver a datagram was sent to.
#[derive(Clone, Copy, Debug)]
pub(super) enum DatagramTarget {
    /// The GID that the datagram names.
    Unicast,
    /// A multicast group. `entry` is the entry in the table of memberships of the receiver's
    /// process.
    Multicast { entry: u32 },
}
