//! Multicast groups, by their network addresses.

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
    /// As what a group is joined (`rdma_cm_mc_join_flags`).
    pub struct JoinFlags(u32) {
        /// To send to the group, and to receive what is sent to it.
        FullMember = F::RDMA_MC_JOIN_FLAG_FULLMEMBER.0,
        /// To send to the group only.
        SendOnlyFullMember = F::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0,
    }
}
display_as_debug!(JoinFlags);

/// A multicast group that was joined, and that the library was not asked to leave.
///
/// The library has a membership of its own, which its events lead to, and which it frees when the group is left, whatever becomes of
/// that. So a group is not left before its join is answered; and where the library cannot leave, and events wait that may be
/// the group's, none of them is taken any more.
pub(super) struct Membership {
    group: Address,
    /// What the program gave. The library is given this structure's address, so that its events say which group they are of: programs
    /// may give the same to many.
    context: usize,
    /// An event of it was taken.
    answered: bool,
    /// The program has left it, as far as it knows.
    leaving: bool,
}

impl Membership {
    /// What events of the group have for a context, while it is in this place.
    fn token(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// # Safety
    ///
    /// The identifier lives, and its channel is locked.
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
    /// Joins a multicast group (`rdma_join_multicast`, `rdma_join_multicast_ex`) with an identifier for datagrams that has a device. The event
    /// [`MulticastJoin`](super::EventType::MulticastJoin) or [`MulticastError`](super::EventType::MulticastError) follows, with this
    /// `context`.
    ///
    /// The queue pair is the program's to [attach](crate::ibverbs::queue_pair::QueuePairControl::attach_mcast), with what the event says. The
    /// group is left when the identifier goes, or by [`leave_multicast`](Self::leave_multicast).
    ///
    /// # Errors
    ///
    /// The identifier has no device, is in the group already or still leaving it, or serves no datagrams; or the system cannot join as
    /// asked.
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
        // Boxed: its address is its name.
        let membership =
            Box::new(Membership { group: group.clone(), context, answered: false, leaving: false });
        let mut raw = RawAddress::from(&group);
        let mut attr = rdma_cm_join_mc_attr_ex {
            comp_mask: Mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS.0 | Mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS.0,
            join_flags: flags.raw(),
            addr: raw.as_mut_ptr(),
        };
        // It comes back in the event as the pointer that it went as, and nobody follows it.
        let token = ptr::without_provenance_mut(membership.token());
        // Noted before the event can be there, under the lock.
        let result = self.call_with_device(None, |lib, id| {
            // SAFETY: the identifier lives, has a device, and is called for alone; the address outlives the call.
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

    /// Leaves a multicast group (`rdma_leave_multicast`). Events of it that were not taken are forgotten.
    ///
    /// A join that is not answered cannot be undone: then the group is left when its event comes to the channel and somebody asks for one,
    /// who does not get it, or when the identifier goes. Until then it cannot be joined again.
    ///
    /// # Errors
    ///
    /// The identifier is not in the group.
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
                // Nothing of that name is asked of the library: it compares as many bytes as it likes.
                None => return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)),
                Some(index) if groups[index].answered => groups.swap_remove(index),
                Some(index) => {
                    groups[index].leaving = true;
                    return Ok(());
                }
            }
        };
        // SAFETY: the identifier lives, and its channel is locked.
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
        // One that this crate did not join has what its owner gave.
        let index = groups.iter().position(|known| known.token() == *context)?;
        let known = &mut groups[index];
        (known.answered, *context) = (true, known.context);
        known.leaving.then(|| groups.swap_remove(index))
    }
}
