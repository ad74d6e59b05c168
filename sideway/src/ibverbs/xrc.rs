//! XRC domains: one connection reaches every shared receive queue of a process, or of several
//! processes.
//!
//! With reliable connections, each process of a host needs a connection to each process of every
//! other host. An *extended reliable connection* goes from an **initiator** to a **target**. Each
//! request on it names the shared receive queue that it is for
//! ([`setup_xrc_srqn`](super::queue_pair::WorkRequestHandle::setup_xrc_srqn)). The target and the
//! queues that it can reach belong to the same domain. Processes share a domain by a file: all that
//! open it with the same inode get the same domain.
//!
//! - The initiator is a queue pair of type [`XrcSend`](super::queue_pair::QueuePairType::XrcSend),
//!   used like other pairs, except that it receives nothing.
//! - The target is an [`XrcTarget`], which has no queues.
//! - The shared receive queues are made with
//!   [`setup_xrc`](super::srq::SharedReceiveQueueBuilder::setup_xrc). Messages complete in the
//!   queue's completion queue, and the completion has the target's number.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect, connect_xrc_target};
//! use sideway::ibverbs::device::DeviceList;
//! use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, QueuePairType, WorkRequestFlags};
//! use sideway::ibverbs::xrc::XrcDomainFlags;
//!
//! let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! let context = list.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq_builder().setup_cqe(16).build_generic()?;
//!
//! let domain = context.open_xrcd(None, XrcDomainFlags::Create)?;
//! let mut srq = pd.create_srq_builder().setup_xrc(&domain, &cq).build()?;
//! let mut target = domain.create_target()?;
//! let mut builder = pd.create_qp_builder();
//! builder.setup_qp_type(QueuePairType::XrcSend).setup_send_cq(&cq).setup_max_inline_data(8);
//! let mut initiator = builder.build_generic()?;
//!
//! let path = LocalPath::choose(&context, 1, None)?;
//! let here = Endpoint::new(&initiator, &path, 1);
//! let there = Endpoint::of_xrc_target(&target, &path, 2);
//! let options = ConnectOptions::default();
//! connect_xrc_target(&mut target, &path, &there, &here, &options)?;
//! connect(&mut initiator, &path, &here, &there, &options)?;
//!
//! let mut receives = srq.start_post_recv();
//! receives.construct_wr(1);
//! receives.post()?;
//! let mut guard = initiator.start_post_send();
//! let queue = srq.srqn().ok_or("a queue of an XRC domain has a number")?;
//! guard.construct_wr(2, WorkRequestFlags::Signaled).setup_xrc_srqn(queue).setup_send();
//! guard.post()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_xrcd, ibv_xrcd_init_attr, ibv_xrcd_init_attr_mask as Mask};
use rdma_mummy_sys::verbs;

use super::check;
use super::device_context::DeviceContext;
use super::queue_pair::XrcTarget;
use crate::error::Error;

c_flags! {
    /// Options for opening a domain (`oflags` of `ibv_xrcd_init_attr`).
    pub struct XrcDomainFlags(u32) {
        /// Make the domain if it does not exist (`O_CREAT`).
        Create = libc::O_CREAT as u32,
        /// With `Create`: fail if the domain exists (`O_EXCL`).
        Exclusive = libc::O_EXCL as u32,
    }
}

/// An XRC domain (`ibv_xrcd`).
///
/// Clones refer to the same domain. It is closed (`ibv_close_xrcd`) when the last handle, and the
/// last target and shared receive queue made with it, are dropped. A domain that is open elsewhere
/// too exists until the last of its owners has closed it.
#[derive(Clone)]
pub struct XrcDomain(Arc<Inner>);

struct Inner {
    xrcd: NonNull<ibv_xrcd>,
    context: DeviceContext,
}

// SAFETY: a domain is only used to make other objects, which is thread-safe in libibverbs.
unsafe impl Send for Inner {}
// SAFETY: a domain is only used to make other objects, which is thread-safe in libibverbs.
unsafe impl Sync for Inner {}

impl DeviceContext {
    /// Opens the XRC domain of a file or, with `None`, a private domain (`ibv_open_xrcd`).
    ///
    /// The file's type and contents do not matter: processes that open the same inode get the same
    /// domain. The descriptor may be closed afterwards. The domain exists while any process keeps
    /// it open, independent of the file.
    ///
    /// # Errors
    ///
    /// Fails if the device has no XRC ([`Unsupported`](crate::ibverbs::Unsupported)). Fails with
    /// [`ErrorKind::Os`](crate::ErrorKind::Os) if the file has no domain and `Create` is not set,
    /// or if the file has a domain and `Exclusive` is set.
    ///
    /// # References
    ///
    /// `man ibv_open_xrcd`
    pub fn open_xrcd(&self, file: Option<BorrowedFd<'_>>, flags: XrcDomainFlags) -> Result<XrcDomain, Error> {
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: Mask::IBV_XRCD_INIT_ATTR_FD.0 | Mask::IBV_XRCD_INIT_ATTR_OFLAGS.0,
            fd: file.map_or(-1, |file| file.as_raw_fd()),
            oflags: flags.bits() as c_int,
        };
        // SAFETY: `self` keeps the context open, the attributes are initialised, and the
        // descriptor, if any, is open.
        let xrcd = unsafe { verbs::ibv_open_xrcd(self.as_raw().as_ptr(), &raw mut attr) };
        match NonNull::new(xrcd) {
            Some(xrcd) => Ok(XrcDomain(Arc::new(Inner { xrcd, context: self.clone() }))),
            None => Err(Error::of_device(self, "ibv_open_xrcd", "XRC domains", io::Error::last_os_error())
                .with("fd", attr.fd)
                .debug("flags", flags)
                .remedy(
                    "a domain that does not exist takes `Create`; one that exists does not take `Exclusive`",
                )),
        }
    }
}

impl XrcDomain {
    /// Makes the receiving end of an extended reliable connection (`ibv_create_qp_ex` with
    /// `IBV_QPT_XRC_RECV`). It is connected by
    /// [`connect_xrc_target`](super::connect::connect_xrc_target).
    ///
    /// # Errors
    ///
    /// Fails if the device does not support them ([`Unsupported`](crate::ibverbs::Unsupported)), or
    /// has no more of them.
    ///
    /// # References
    ///
    /// `man ibv_create_qp_ex`
    pub fn create_target(&self) -> Result<XrcTarget, Error> {
        XrcTarget::create(self)
    }

    /// Opens an existing target of the domain by its number (`ibv_open_qp`). The target lives while
    /// any handle keeps it open, and all handles get its events.
    ///
    /// # Errors
    ///
    /// Fails if the device does not support it ([`Unsupported`](crate::ibverbs::Unsupported)), or
    /// if the domain has no such target.
    ///
    /// # References
    ///
    /// `man ibv_open_qp`
    pub fn open_target(&self, qp_number: u32) -> Result<XrcTarget, Error> {
        XrcTarget::open(self, qp_number)
    }

    /// The device context in which it was opened.
    pub fn context(&self) -> &DeviceContext {
        &self.0.context
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// close it.
    pub fn as_raw(&self) -> NonNull<ibv_xrcd> {
        self.0.xrcd
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the domain is open until here, and everything made with it is gone.
        let result = unsafe { verbs::ibv_close_xrcd(self.xrcd.as_ptr()) };
        if let Err(error) = check(result) {
            log::error!("ibv_close_xrcd failed: {error}");
            // The library still has the domain, so the objects that it depends on must stay alive
            // too.
            std::mem::forget(self.context.clone());
        }
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcDomain").field("context", &self.0.context).finish_non_exhaustive()
    }
}
