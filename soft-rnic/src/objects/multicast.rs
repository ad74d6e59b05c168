//! Multicast groups: which queue pairs of this process are in which.
//!
//! A group is nothing but its GID. That a queue pair is in one stands in the table of memberships of the segment, where
//! senders look; here is what the owner needs to change that, and to tell a datagram's group from the entry that it came by.

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

/// Whether a GID names a group: `ff00::/8` (InfiniBand specification, chapter 4, addressing), or an IPv4 one (annex A17, RoCE v2).
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
    /// The number of one that has ended rests, as what came by it may not have been polled.
    free: VecDeque<u32>,
}

struct MembershipSlot {
    /// Stays when the membership has ended.
    gid: [u8; 16],
    writer: GenerationWriter,
    member: Option<GroupMembership>,
}

/// A queue pair is in the group, by these LIDs: they mean nothing where there are none, but each is attached and detached by
/// itself.
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

    /// Whether there may be another member of a group.
    fn has_room(&self, gid: [u8; 16], limits: &Limits) -> bool {
        let in_group = self.members().filter(|(slot, _)| slot.gid == gid).count();
        let mut groups: Vec<_> = self.members().map(|(slot, _)| slot.gid).collect();
        groups.sort_unstable();
        groups.dedup();
        in_group < limits.max_mcast_qp_attach as usize
            && self.members().count() < limits.max_total_mcast_qp_attach as usize
            && (in_group > 0 || groups.len() < limits.max_mcast_grp as usize)
    }

    /// A number, and a slot for it.
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
        self.node.segment().member(index as u32).expect("there are no more slots than entries")
    }

    /// Takes a queue pair into a group. One that is in it stays in it, and gets one copy of each message all the same
    /// (`man ibv_attach_mcast`). Every process of the fabric knows of the first member of this one when this returns.
    ///
    /// # Errors
    ///
    /// An errno: `EINVAL` if it takes no datagrams, or the GID is no group's; `ENOMEM` if there are too many members.
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
        let descriptor =
            MembershipDescriptor { gid: gid_words(gid), index: qp.number.index, qpn: qp.number.qpn };
        let end = slots.slots.len() as u32;
        let slot = &mut slots.slots[index];
        slot.member =
            Some(GroupMembership { queue_pair: qp.number.index, qpn: qp.number.qpn, lids: vec![lid] });
        self.entry(index).publish(&mut slot.writer, 0, &descriptor);
        self.node.segment().header().members.store(end, Release);
        Ok(())
    }

    /// Takes a queue pair out of a group.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is not in it.
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

    /// The queue pair is gone, wherever it was.
    pub(crate) fn forget(&self, queue_pair: u32) {
        let mut slots = self.write();
        let is_it = |slot: &MembershipSlot| {
            slot.member.as_ref().is_some_and(|member| member.queue_pair == queue_pair)
        };
        while let Some(index) = slots.slots.iter().position(is_it) {
            self.end(&mut slots, index);
        }
    }

    /// How many entries of the table may be used.
    pub(crate) fn count(&self) -> u32 {
        self.read().slots.len() as u32
    }

    /// What an entry of the table says.
    pub(crate) fn descriptor(&self, index: u32) -> Option<MembershipDescriptor> {
        let slots = self.read();
        let slot = slots.slots.get(index as usize)?;
        let GroupMembership { queue_pair, qpn, .. } = slot.member.as_ref()?;
        Some(MembershipDescriptor { gid: gid_words(slot.gid), index: *queue_pair, qpn: *qpn })
    }

    /// The group that an entry of the table is, or was, about.
    pub(crate) fn gid(&self, index: u32) -> Option<[u8; 16]> {
        self.read().slots.get(index as usize).map(|slot| slot.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_told_from_hosts() {
        let is = |text: &str| is_group(text.parse::<Ipv6Addr>().expect("an address").octets());
        for group in ["ff12::1", "ff00::", "::ffff:224.0.0.1", "::ffff:239.255.255.255"] {
            assert!(is(group), "{group}");
        }
        for host in ["fe80::1", "::", "::ffff:127.0.0.1", "::ffff:240.0.0.1", "::224.0.0.1", "fdff::1"] {
            assert!(!is(host), "{host}");
        }
    }
}
