//! Multicast groups: datagrams for all queue pairs of a group (`ibv_attach_mcast`).
//!
//! A datagram to the GID of a group and to queue pair [`MULTICAST_QP_NUMBER`] reaches each queue
//! pair that [is in the group](QueuePairControl::attach_mcast). It consumes one receive of each,
//! and has the group's GID in its header. On a network with switches the host must join the group
//! as well, through the subnet administrator (InfiniBand) or IGMP (RoCE). The connection manager
//! does that.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use sideway::ibverbs::device::DeviceList;
//! # let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! # let context = list.first()?.open()?;
//! use sideway::ibverbs::address::Gid;
//! use sideway::ibverbs::connect::{ConnectOptions, LocalPath, activate_ud};
//! use sideway::ibverbs::queue_pair::{QueuePair, QueuePairType};
//!
//! let group: Gid = "ff12::1".parse()?;
//! let cq = context.create_cq_builder().build_generic()?;
//! let mut builder = context.alloc_pd()?.create_qp_builder();
//! builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_qp_type(QueuePairType::UnreliableDatagram);
//! let mut qp = builder.build_generic()?;
//!
//! let path = LocalPath::choose(&context, 1, None)?;
//! activate_ud(&mut qp, &path, 0x1111_1111, 0, &ConnectOptions::default())?;
//! let membership = qp.control().attach_mcast(group, 0)?;
//! // Datagrams to the group come in, until:
//! membership.detach()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::net::Ipv6Addr;

use rdma_mummy_sys::types::ibv_gid;

use super::address::Gid;
use super::check;
use super::queue_pair::QueuePairControl;
use crate::error::{ConsumeError, Error, ErrorKind};

/// The queue pair number to which datagrams for any group are sent.
pub const MULTICAST_QP_NUMBER: u32 = 0xff_ffff;

impl Gid {
    /// Whether it names a group: `ff00::/8`, or an IPv4 group's address (RoCE v2).
    pub fn is_multicast(&self) -> bool {
        Ipv6Addr::from(self.raw).is_multicast() || self.to_ipv4_mapped().is_some_and(|ip| ip.is_multicast())
    }
}

impl QueuePairControl {
    /// Adds the queue pair to a group (`ibv_attach_mcast`), until the membership is detached or
    /// dropped.
    ///
    /// `lid` is the group's LID on InfiniBand; on RoCE it is ignored and can be 0.
    ///
    /// # Errors
    ///
    /// Fails with `EINVAL` if the pair is not a datagram pair, or if the GID is not a group's.
    /// Fails with `ENOMEM` if the group has too many members. Also fails if the pair is already in
    /// the group, or if the device has no multicast ([`Unsupported`](crate::ibverbs::Unsupported)).
    ///
    /// # References
    ///
    /// `man ibv_attach_mcast`
    pub fn attach_mcast(&self, gid: Gid, lid: u16) -> Result<MulticastMembership, Error> {
        let qp_num = self.qp_number();
        let mut groups = self.multicast_groups();
        // The library would record the pair only once, and remove it with the first of two
        // memberships.
        if groups.contains(&(gid, lid)) {
            return Err(Error::not_called(
                "ibv_attach_mcast",
                ErrorKind::AlreadyExists,
                "the queue pair is in the group already",
            )
            .of_queue_pair(qp_num)
            .with("gid", gid)
            .with("lid", format_args!("{lid:#x}")));
        }
        let raw = ibv_gid::from(gid);
        let attach = self.context().provider().verbs().ibv_attach_mcast;
        // SAFETY: `self` keeps the queue pair alive, and the GID is a local variable.
        match check(unsafe { attach(self.as_raw().as_ptr(), &raw const raw, lid) }) {
            Ok(()) => {
                groups.push((gid, lid));
                Ok(MulticastMembership { control: self.clone(), gid, lid })
            }
            Err(source) => Err(Error::of_device(self.context(), "ibv_attach_mcast", "multicast", source)
                .of_queue_pair(qp_num)
                .with("gid", gid)
                .with("lid", format_args!("{lid:#x}"))
                .remedy("only datagram queue pairs join, and only multicast addresses are groups")),
        }
    }
}

/// A queue pair's membership in a multicast group. Dropping it removes the pair from the group.
///
/// It keeps the pair alive, because a pair in a group cannot be destroyed.
#[must_use = "dropping it takes the queue pair out of the group"]
pub struct MulticastMembership {
    control: QueuePairControl,
    gid: Gid,
    lid: u16,
}

impl MulticastMembership {
    /// The group's GID.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The group's LID, as it was given.
    pub fn lid(&self) -> u16 {
        self.lid
    }

    /// The control of the queue pair that joined the group.
    pub fn queue_pair(&self) -> &QueuePairControl {
        &self.control
    }

    /// Removes the pair from the group (`ibv_detach_mcast`), and returns the error that a drop
    /// would only log.
    ///
    /// # Errors
    ///
    /// Fails if the device did not remove the pair. It is still in the group and cannot be
    /// destroyed. The membership comes back with the error.
    ///
    /// # References
    ///
    /// `man ibv_attach_mcast`
    pub fn detach(self) -> Result<(), ConsumeError<Self>> {
        let membership = ManuallyDrop::new(self);
        match membership.leave() {
            Ok(()) => {
                // SAFETY: `membership` is `ManuallyDrop`, so its own drop does not run, and this is
                // the only read of the control.
                drop(unsafe { core::ptr::read(&raw const membership.control) });
                Ok(())
            }
            Err(source) => Err(ConsumeError {
                error: Error::os("ibv_detach_mcast", source)
                    .with("gid", membership.gid)
                    .remedy("the queue pair stays in the group"),
                object: ManuallyDrop::into_inner(membership),
            }),
        }
    }

    fn leave(&self) -> io::Result<()> {
        let mut groups = self.control.multicast_groups();
        let raw = ibv_gid::from(self.gid);
        let detach = self.control.context().provider().verbs().ibv_detach_mcast;
        // SAFETY: `self` keeps the queue pair alive, and the GID is a local variable.
        check(unsafe { detach(self.control.as_raw().as_ptr(), &raw const raw, self.lid) })?;
        groups.retain(|group| *group != (self.gid, self.lid));
        Ok(())
    }
}

impl Drop for MulticastMembership {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            let qp_num = self.control.qp_number();
            log::error!(
                "ibv_detach_mcast failed, queue pair {qp_num:#x} stays in group {}: {error}",
                self.gid
            );
        }
    }
}

impl fmt::Debug for MulticastMembership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MulticastMembership")
            .field("queue_pair", &self.control)
            .field("gid", &self.gid)
            .field("lid", &self.lid)
            .finish()
    }
}
