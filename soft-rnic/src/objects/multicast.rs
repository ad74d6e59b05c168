//! Multicast groups: the memberships of this process's queue pairs.
//!
//! A group consists of its GID only. The table of memberships in the segment lists the queue pairs
//! of each group, and senders read it there. This module keeps what the owner needs to change the
//! table, and to find a datagram's group from the entry that it came by.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rdma_mummy_sys::types::ibv_qp_type;

use super::table::RESTING;
use crate::config::Limits;
use crate::node::Node;
use crate::queue_pair::Qp;
use crate::shared::entry::gid_words;
use crate::shared::entry::{MembershipDescriptor, MembershipEntry};
use crate::shared::generation::GenerationWriter;
use crate::shared::segment::MAX_MEMBERS;
use crate::sync::Release;

/// Whether a GID names a group: `ff00::/8` (InfiniBand specification, chapter 4, addressing), or an
/// IPv4 group (annex A17, RoCE v2).
pub(crate) fn is_group(gid: [u8; 16]) -> bool {
    let address = Ipv6Addr::from(gid);
    address.is_multicast() || address.to_ipv4_mapped().is_some_and(|address| address.is_multicast())
}

/// The memberships of this process, in the order of the segment's table.
pub(crate) struct MulticastGroups {
    node: Arc<Node>,
    slots: RwLock<MembershipTable>,
}

#[derive(Default)]
struct MembershipTable {
    slots: Vec<MembershipSlot>,
    /// Indices of ended memberships, which rest because datagrams that came by them may not have
    /// been polled yet.
    free: VecDeque<u32>,
}

struct MembershipSlot {
    /// Kept after the membership has ended.
    gid: [u8; 16],
    writer: GenerationWriter,
    member: Option<GroupMembership>,
}

/// A queue pair in a group, with the LIDs that it attached by. RoCE has no LIDs, but each is
/// attached and detached separately.
struct GroupMembership {
    queue_pair: u32,
    qpn: u32,
    lids: Vec<u16>,
}

impl MembershipTable {
    fn members(&self) -> impl Iterator<Item = (&MembershipSlot, &GroupMembership)> {
        self.slots.iter().filter_map(|slot| Some((slot, slot.member.as_ref()?)))
    }

    fn find(&self, queue_pair: u32, gid: [u8; 16]) -> Option<usize> {
        let is_it = |member: &GroupMembership| member.queue_pair == queue_pair;
        self.slots.iter().position(|slot| slot.gid == gid && slot.member.as_ref().is_some_and(is_it))
    }

    /// Whether the limits permit another member of a group.
    fn has_room(&self, gid: [u8; 16], limits: &Limits) -> bool {
        let in_group = self.members().filter(|(slot, _)| slot.gid == gid).count();
        let mut groups: Vec<_> = self.members().map(|(slot, _)| slot.gid).collect();
        groups.sort_unstable();
        groups.dedup();
        in_group < limits.max_mcast_qp_attach as usize
            && self.members().count() < limits.max_total_mcast_qp_attach as usize
            && (in_group > 0 || groups.len() < limits.max_mcast_grp as usize)
    }

    /// Takes an index with a slot for it; `None` if the table is full.
    fn reserve(&mut self, gid: [u8; 16]) -> Option<usize> {
        if self.slots.len() < MAX_MEMBERS && self.free.len() < RESTING {
            self.slots.push(MembershipSlot { gid, writer: GenerationWriter::default(), member: None });
            return Some(self.slots.len() - 1);
        }
        let index = self.free.pop_front()? as usize;
        self.slots[index].gid = gid;
        Some(index)
    }
}

impl MulticastGroups {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self { node, slots: RwLock::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, MembershipTable> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, MembershipTable> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, index: usize) -> &MembershipEntry {
        self.node.segment().member(index as u32).expect("the segment has an entry for every slot")
    }

    /// Adds a queue pair to a group (`ibv_attach_mcast`). A queue pair that is in it already still
    /// gets one copy of each message (`man ibv_attach_mcast`). When this returns, every process of
    /// the fabric knows that this process has members.
    ///
    /// # Errors
    ///
    /// An errno: `EINVAL` if the queue pair does not receive datagrams or the GID is not a group's,
    /// `ENOMEM` if a limit of members is reached.
    pub(crate) fn attach(&self, qp: &Qp, gid: [u8; 16], lid: u16, limits: &Limits) -> Result<(), c_int> {
        if qp.qp_type != ibv_qp_type::IBV_QPT_UD || !is_group(gid) {
            return Err(libc::EINVAL);
        }
        self.enter(qp, gid, lid, limits)?;
        self.node.announce();
        Ok(())
    }

    fn enter(&self, qp: &Qp, gid: [u8; 16], lid: u16, limits: &Limits) -> Result<(), c_int> {
        let mut slots = self.write();
        if let Some(index) = slots.find(qp.number.index, gid) {
            let lids = slots.slots[index].member.as_mut().map(|member| &mut member.lids);
            lids.into_iter().filter(|lids| !lids.contains(&lid)).for_each(|lids| lids.push(lid));
            return Ok(());
        }
        if !slots.has_room(gid, limits) {
            return Err(libc::ENOMEM);
        }
        let index = slots.reserve(gid).ok_or(libc::ENOMEM)?;
        if !self.node.segment().ensure_member(index as u32) {
            slots.free.push_back(index as u32);
            return Err(libc::ENOMEM);
        }
        let descriptor =
            MembershipDescriptor { gid: gid_words(gid), index: qp.number.index, qpn: qp.number.qpn };
        let end = slots.slots.len() as u32;
        let slot = &mut slots.slots[index];
        slot.member =
            Some(GroupMembership { queue_pair: qp.number.index, qpn: qp.number.qpn, lids: vec![lid] });
        self.entry(index).publish(&mut slot.writer, 0, &descriptor);
        self.node.segment().owner_header().members.store(end, Release);
        Ok(())
    }

    /// Removes a queue pair from a group.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not a member.
    pub(crate) fn detach(&self, qp: &Qp, gid: [u8; 16], lid: u16) -> Result<(), c_int> {
        let mut slots = self.write();
        let index = slots.find(qp.number.index, gid).ok_or(libc::EINVAL)?;
        let slot = &mut slots.slots[index];
        let lids = slot.member.as_mut().map(|member| &mut member.lids).ok_or(libc::EINVAL)?;
        let place = lids.iter().position(|of| *of == lid).ok_or(libc::EINVAL)?;
        lids.swap_remove(place);
        if lids.is_empty() {
            self.end(&mut slots, index);
        }
        Ok(())
    }

    fn end(&self, slots: &mut MembershipTable, index: usize) {
        let slot = &mut slots.slots[index];
        self.entry(index).withdraw(&mut slot.writer);
        slot.member = None;
        slots.free.push_back(index as u32);
    }

    /// Whether a queue pair is in any group.
    pub(crate) fn has(&self, queue_pair: u32) -> bool {
        self.read().members().any(|(_, member)| member.queue_pair == queue_pair)
    }

    /// Removes a destroyed queue pair from all groups.
    pub(crate) fn forget(&self, queue_pair: u32) {
        let mut slots = self.write();
        let is_it = |slot: &MembershipSlot| {
            slot.member.as_ref().is_some_and(|member| member.queue_pair == queue_pair)
        };
        while let Some(index) = slots.slots.iter().position(is_it) {
            self.end(&mut slots, index);
        }
    }

    /// How many entries of the table were ever used.
    pub(crate) fn count(&self) -> u32 {
        self.read().slots.len() as u32
    }

    /// The membership in an entry of the table; `None` if it has ended.
    pub(crate) fn descriptor(&self, index: u32) -> Option<MembershipDescriptor> {
        let slots = self.read();
        let slot = slots.slots.get(index as usize)?;
        let GroupMembership { queue_pair, qpn, .. } = slot.member.as_ref()?;
        Some(MembershipDescriptor { gid: gid_words(slot.gid), index: *queue_pair, qpn: *qpn })
    }

    /// The current or last group of an entry of the table.
    pub(crate) fn gid(&self, index: u32) -> Option<[u8; 16]> {
        self.read().slots.get(index as usize).map(|slot| slot.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_gids_are_told_from_host_gids() {
        let is = |text: &str| is_group(text.parse::<Ipv6Addr>().expect("an address").octets());
        for group in ["ff12::1", "ff00::", "::ffff:224.0.0.1", "::ffff:239.255.255.255"] {
            assert!(is(group), "{group}");
        }
        for host in ["fe80::1", "::", "::ffff:127.0.0.1", "::ffff:240.0.0.1", "::224.0.0.1", "fdff::1"] {
            assert!(!is(host), "{host}");
        }
    }
}
