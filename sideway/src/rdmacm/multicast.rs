//! Multicast groups, joined by network address (`rdma_join_multicast`).

use std::io;
use std::ptr;

use rdma_mummy_sys::RdmaCm;
use rdma_mummy_sys::types::{
    rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_cm_join_mc_attr_mask as Mask, rdma_cm_mc_join_flags as F,
};

use super::address::{Address, RawAddress, perhaps};
use super::event::EventContents;
use super::identifier::{CallError, Identifier};
use crate::error::{Error, ErrorKind};
use crate::ibverbs::check;

const JOIN: &str = "rdma_join_multicast_ex";

c_enum! {
    /// The type of membership in a group (`rdma_cm_mc_join_flags`).
    pub struct JoinFlags(u32) {
        /// Send to the group, and receive from it.
        FullMember = F::RDMA_MC_JOIN_FLAG_FULLMEMBER.0,
        /// Send to the group only.
        SendOnlyFullMember = F::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0,
    }
}
display_as_debug!(JoinFlags);

/// A multicast group that was joined, and that the library was not asked to leave.
///
/// The library has a membership object too. Its events point to that object, and leaving the group
/// frees it, even if leaving fails. So a group is not left before its join is answered. If the
/// library cannot leave, and pending events may belong to the group, none of them is taken any
/// more.
pub(super) struct Membership {
    group: Address,
    /// The program's context. The library gets the address of this structure instead, so that
    /// events identify the group, because programs may use one context for many groups.
    context: usize,
    /// Whether an event of the group was taken.
    answered: bool,
    /// Whether the program has left the group, while the join is not answered yet.
    leaving: bool,
}

impl Membership {
    /// The context that the library gets for the group: the address of this structure, which must
    /// not move.
    fn token(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// # Safety
    ///
    /// The identifier must be alive, and its channel locked.
    pub(super) unsafe fn leave(&self, lib: &RdmaCm, id: *mut rdma_cm_id) -> io::Result<()> {
        let mut raw = RawAddress::from(&self.group);
        // Events are acknowledged under the lock, so this does not wait for one.
        // SAFETY: the caller guarantees (`# Safety`) that the identifier lives, and its channel is
        // locked; the address outlives the call.
        let left = check(unsafe { (lib.rdma_leave_multicast)(id, raw.as_mut_ptr()) });
        left.inspect_err(|error| log::warn!("rdma_leave_multicast failed for {}: {error}", self.group))
    }
}

impl Identifier {
    /// Joins a multicast group (`rdma_join_multicast`, `rdma_join_multicast_ex`). The identifier
    /// must be for datagrams and have a device. The event
    /// [`MulticastJoin`](super::EventType::MulticastJoin) or
    /// [`MulticastError`](super::EventType::MulticastError) follows, with this `context`.
    ///
    /// The program must [attach](crate::ibverbs::queue_pair::QueuePairControl::attach_mcast) the
    /// queue pair, with the event's data. The group is left when the identifier is dropped, or by
    /// [`leave_multicast`](Self::leave_multicast).
    ///
    /// # Errors
    ///
    /// Fails if the identifier has no device, is in the group already, is still leaving it, or is
    /// not for datagrams. Also fails if the system does not support the requested membership.
    ///
    /// # References
    ///
    /// `man rdma_join_multicast`, `man rdma_join_multicast_ex`
    pub fn join_multicast(
        &self,
        group: impl Into<Address>,
        flags: JoinFlags,
        context: usize,
    ) -> Result<(), Error> {
        let group = group.into();
        match self.0.further().get_or_insert_default().groups.iter().find(|known| known.group == group) {
            Some(known) if known.leaving => {
                return Err(Error::not_called(
                    JOIN,
                    ErrorKind::InvalidState,
                    "the identifier still leaves the multicast group, whose join is not answered",
                )
                .with("group", group)
                .remedy("take events from its channel, and try again"));
            }
            Some(_) => {
                return Err(Error::not_called(
                    JOIN,
                    ErrorKind::AlreadyExists,
                    "the identifier is in the multicast group already",
                )
                .with("group", group));
            }
            None => {}
        }
        // Boxed, because its address identifies it.
        let membership =
            Box::new(Membership { group: group.clone(), context, answered: false, leaving: false });
        let mut raw = RawAddress::from(&group);
        let mut attr = rdma_cm_join_mc_attr_ex {
            comp_mask: Mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS.0 | Mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS.0,
            join_flags: flags.raw(),
            addr: raw.as_mut_ptr(),
        };
        // The event returns the pointer unchanged, and nobody dereferences it.
        let token = ptr::without_provenance_mut(membership.token());
        // Recorded under the lock, before the event can come.
        let result = self.call_with_device(None, |lib, id| {
            // SAFETY: `call_with_device` passes a live identifier with a device, under its
            // channel's lock; the address outlives the call.
            let result = unsafe { (lib.rdma_join_multicast_ex)(id, &raw mut attr, token) };
            if result == 0 {
                self.0.further().get_or_insert_default().groups.push(membership);
            }
            result
        });
        result.map_err(|error| match error {
            CallError::NoDevice(lacking) => lacking.error(JOIN),
            CallError::Rdmacm(source) => {
                Error::of_system(JOIN, "such membership of multicast groups", source)
                    .with("group", group)
                    .with("flags", flags)
                    .with("local", perhaps(&self.local_addr()))
                    .with("state", self.state())
            }
        })
    }

    /// Leaves a multicast group (`rdma_leave_multicast`). Its pending events are discarded.
    ///
    /// A join that is not answered cannot be undone. Then the group is left when its event arrives
    /// and a thread takes events from the channel (which skips this event), or when the identifier
    /// is dropped. Until then it cannot be joined again.
    ///
    /// # Errors
    ///
    /// Fails if the identifier is not in the group.
    ///
    /// # References
    ///
    /// `man rdma_leave_multicast`
    pub fn leave_multicast(&self, group: impl Into<Address>) -> Result<(), Error> {
        let group = group.into();
        self.leave(&group).map_err(|source| {
            Error::os("rdma_leave_multicast", source)
                .with("group", group)
                .with("local", perhaps(&self.local_addr()))
        })
    }

    fn leave(&self, group: &Address) -> io::Result<()> {
        let channel = self.0.channel();
        let _lock = channel.lock();
        let left = {
            let mut further = self.0.further();
            let groups = &mut further.get_or_insert_default().groups;
            let known = groups.iter().position(|known| known.group == *group && !known.leaving);
            match known {
                // The library is not asked about unknown groups, because it may compare more bytes
                // than the address has.
                None => return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)),
                Some(index) if groups[index].answered => groups.swap_remove(index),
                Some(index) => {
                    groups[index].leaving = true;
                    return Ok(());
                }
            }
        };
        // SAFETY: the channel is the identifier's own, and it is locked.
        unsafe { channel.leave(self, &left) }
    }

    /// The multicast groups that were joined and not left.
    pub fn multicast_groups(&self) -> Vec<Address> {
        let further = self.0.further();
        let groups = further.iter().flat_map(|further| &further.groups);
        groups.filter(|known| !known.leaving).map(|known| known.group.clone()).collect()
    }

    /// An event of a multicast group was taken: what the program has for its context; or the membership, if the program has left the
    /// group in the meantime. The event is not the program's then.
    pub(super) fn note_answer(&self, contents: &mut EventContents) -> Option<Box<Membership>> {
        let context = contents.multicast_context()?;
        let mut further = self.0.further();
        let groups = &mut further.as_mut()?.groups;
        // A group that this crate did not join has another owner's context.
        let index = groups.iter().position(|known| known.token() == *context)?;
        let known = &mut groups[index];
        (known.answered, *context) = (true, known.context);
        known.leaving.then(|| groups.swap_remove(index))
    }
}
