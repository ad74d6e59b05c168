//! UD multicast: a copy for each queue pair of the group, in every process of the fabric.
//!
//! To a receiver, its copy is like any other datagram (InfiniBand specification, chapter 10,
//! unreliable datagram multicast). Its Q_Key is checked and a receive is consumed. A member without
//! a posted receive gets no copy. The outcome of one copy does not affect the others.

use std::sync::Arc;

use rdma_mummy_sys::types::ibv_qp_create_flags;

use super::datagram::DatagramTarget;
use super::gather::GatherList;
use super::peer::PeerQp;
use super::{Deferred, WrOutcome};
use crate::node::PeerProcess;
use crate::queue_pair::send_queue::{DatagramDestination, PostedSend};
use crate::queue_pair::transfer_slot_mutex::TransferSlotMutexGuard;
use crate::queue_pair::{Qp, Sending};
use crate::shared::entry::{MembershipDescriptor, gid_words};
use crate::shared::hazard::full_fence;

/// The queue pair number of every group (InfiniBand specification, chapter 4, addressing).
pub(crate) const GROUP: u32 = 0xff_ffff;

/// A member that gets a copy: the process, and the entry in its table of memberships.
#[derive(Clone, Debug)]
pub(crate) struct GroupMember {
    process: Arc<PeerProcess>,
    entry: u32,
}

impl Qp {
    /// The members of `group` in one process.
    fn members_of(&self, process: &Arc<PeerProcess>, group: [u64; 2]) -> Vec<GroupMember> {
        let count = if process.is_own() { self.rnic.groups().count() } else { process.segment().members() };
        let of =
            |entry: &u32| self.membership(process, *entry).is_some_and(|descriptor| descriptor.gid == group);
        (0..count).filter(of).map(|entry| GroupMember { process: Arc::clone(process), entry }).collect()
    }

    /// One consistent entry of the table of memberships. For this process it comes from the private
    /// table, because peers can write into the segment.
    fn membership(&self, process: &PeerProcess, entry: u32) -> Option<MembershipDescriptor> {
        if process.is_own() {
            return self.rnic.groups().descriptor(entry);
        }
        let entry = process.segment().member(entry)?;
        let (snapshot, descriptor) = entry.read()?;
        full_fence();
        entry.is_current(snapshot).then_some(descriptor)
    }

    pub(super) fn execute_multicast(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        destination: &DatagramDestination,
        posted: &PostedSend<'_>,
        deferred: &mut Deferred,
    ) -> WrOutcome {
        if sending.members.is_none() {
            // Check the request before looking for members, because an invalid one must fail even
            // without members.
            if let Err(status) = self.gather_datagram(sending, posted, &mut GatherList::default()) {
                return WrOutcome::Failed(status);
            }
            self.rnic.node().local_hazard(sending.transfer_slot()).clear();
            let Some(processes) = self.rnic.node().all_processes() else { return self.retry_soon(sending) };
            let group = gid_words(destination.route.destination);
            sending.members =
                Some(processes.iter().flat_map(|process| self.members_of(process, group)).collect());
        }
        while let Some(member) = sending.members.as_ref().and_then(|members| members.last().cloned()) {
            let outcome = self.send_copy(sending, destination, posted, &member, deferred);
            if let WrOutcome::Retry(_) = outcome {
                return outcome;
            }
            // The next copy is a separate message and must not inherit the state of this one.
            sending.end_request(self.number.index as usize);
            if let (WrOutcome::Done, Some(members)) = (outcome, &mut sending.members) {
                members.pop();
            } else {
                sending.members = None;
                return outcome;
            }
        }
        sending.members = None;
        WrOutcome::Done
    }

    fn send_copy(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        destination: &DatagramDestination,
        posted: &PostedSend<'_>,
        member: &GroupMember,
        deferred: &mut Deferred,
    ) -> WrOutcome {
        let Some(peer) = self.member_peer(sending, destination, member) else { return WrOutcome::Done };
        let mut gather_list = GatherList::default();
        let local = self.rnic.node().local_hazard(sending.transfer_slot());
        let outcome = match self.gather_datagram(sending, posted, &mut gather_list) {
            Ok(()) => {
                let to = DatagramTarget::Multicast { entry: member.entry };
                self.send_datagram(sending, destination, posted, &peer, to, &gather_list, deferred)
            }
            Err(status) => WrOutcome::Failed(status),
        };
        local.clear();
        outcome
    }

    /// The queue pair of a membership, if it is still in the group and accepts the datagram.
    fn member_peer(
        &self,
        sending: &Sending,
        destination: &DatagramDestination,
        member: &GroupMember,
    ) -> Option<PeerQp> {
        let GroupMember { process, entry } = member;
        let descriptor = self.membership(process, *entry).filter(|_| process.alive())?;
        let itself = process.is_own() && descriptor.index == self.number.index;
        let blocked = self.create_flags & ibv_qp_create_flags::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB.0 != 0;
        let in_group = descriptor.gid == gid_words(destination.route.destination) && !(itself && blocked);
        // The peer wrote this number, so check that it belongs to that process.
        if !in_group || process.index_of(descriptor.qpn) != Some(descriptor.index) {
            return None;
        }
        self.datagram_receiver(sending, destination, process, descriptor.index, descriptor.qpn)
    }
}
