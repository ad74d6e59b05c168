//! Shared receive queues: one queue of receives for many queue pairs.
//!
//! A pair with a separate receive queue needs receives for the largest burst of its peer, even if
//! that is rare. Pairs that [share](super::queue_pair::QueuePairBuilder::setup_srq) a queue need
//! receives for the largest burst of all peers together. A receive completes into the receive
//! completion queue of the pair that took it, and the completion has the pair's number.
//! [`QueuePairTable`](super::queue_pair::QueuePairTable) maps it to the program's data.
//!
//! A queue of an [XRC domain](super::xrc) belongs to no pair. It receives messages that peers send
//! to its [number](SharedReceiveQueue::srqn), through any target of the domain, and has a separate
//! completion queue.
//!
//! A queue that runs low can raise one [asynchronous event](super::event):
//! [`SharedReceiveQueueLimitReached`](super::event::AsyncEventType::SharedReceiveQueueLimitReached).
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sideway::ibverbs::AccessFlags;
//! use sideway::ibverbs::device::DeviceList;
//! use sideway::memory::{Buffer, BufferKind};
//!
//! let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! let context = list.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let memory = pd.reg_buffer(Buffer::new(BufferKind::Private, 4096)?, AccessFlags::LocalWrite)?;
//! let mut srq = pd.create_srq_builder().setup_max_wr(64).build()?;
//! let cq = context.create_cq_builder().setup_cqe(64).build_generic()?;
//! let mut builder = pd.create_qp_builder();
//! builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_srq(&srq);
//! let pairs = [builder.build_generic()?, builder.build_generic()?];
//!
//! let mut guard = srq.start_post_recv();
//! for wr_id in 0..16 {
//!     let addr = memory.as_ptr().addr() as u64 + 256 * wr_id;
//!     // SAFETY: the memory outlives the queue, and no reference to it is made.
//!     unsafe { guard.construct_wr(wr_id).setup_sge(memory.lkey(), addr, 256) };
//! }
//! guard.post()?;
//! srq.set_limit(4)?;
//! # drop((pairs, srq));
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_mummy_sys::types::{
    ibv_srq, ibv_srq_attr, ibv_srq_attr_mask as Mask, ibv_srq_init_attr, ibv_srq_init_attr_ex,
    ibv_srq_init_attr_mask as Init, ibv_srq_type,
};
use rdma_mummy_sys::verbs;

use super::completion::{self, CompletionQueue};
use super::device_attr::DeviceCapabilityFlags;
use super::device_context::DeviceContext;
use super::protection_domain::ProtectionDomain;
use super::queue_pair::{NoRoom, PostRecvGuard, ReceiveList};
use super::xrc::XrcDomain;
use super::{Unsupported, check};
use crate::error::{ConsumeError, Error, ErrorKind};

/// A shared receive queue (`ibv_srq`).
///
/// Posting needs `&mut`, so one thread at a time does it. The queue is destroyed
/// (`ibv_destroy_srq`) when this handle and all queue pairs that use it are dropped.
///
/// Dropping a queue pair discards its completions, and with them receives that it took from this
/// queue and that were not polled. The program would never get their memory back. So first move the
/// pair to the error state. Then wait for the event
/// [`QueuePairLastWqeReached`](super::event::AsyncEventType::QueuePairLastWqeReached), which
/// SoftRoCE before Linux 6.12 never sends. Then poll its completion queue until it is empty, and
/// drop the pair.
pub struct SharedReceiveQueue {
    inner: Arc<SrqInner>,
    list: ReceiveList,
}

/// The queue itself, shared by its handle and its queue pairs.
#[derive(Debug)]
pub(crate) struct SrqInner {
    srq: NonNull<ibv_srq>,
    id: SharedReceiveQueueId,
    pd: ProtectionDomain,
    xrc: Option<Xrc>,
    /// Whether the queue was closed.
    destroyed: bool,
}

/// Additional data of a queue in an XRC domain.
#[derive(Clone, Debug)]
struct Xrc {
    number: u32,
    _ends: XrcQueues,
}

/// The XRC domain, and the completion queue for receives.
type XrcQueues = (XrcDomain, completion::Shared);

// SAFETY: posting needs `&mut` to the queue's handle. Other uses (attributes, creating and
// destroying queue pairs) are thread-safe in libibverbs.
unsafe impl Send for SrqInner {}
// SAFETY: nobody posts through `&self`, and other verbs are thread-safe in libibverbs.
unsafe impl Sync for SrqInner {}

/// Identifies a shared receive queue in events. Ids are never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedReceiveQueueId(u64);

impl SharedReceiveQueueId {
    fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The id as the `srq_context` pointer of the C object.
    fn to_context(self) -> *mut c_void {
        core::ptr::without_provenance_mut(self.0 as usize)
    }

    /// The id from a C object's `srq_context`, meaningful only if this crate made the object.
    pub(super) fn of_context(srq_context: *mut c_void) -> Self {
        Self(srq_context.addr() as u64)
    }
}

impl SrqInner {
    pub(crate) fn as_raw(&self) -> NonNull<ibv_srq> {
        self.srq
    }

    pub(crate) fn id(&self) -> SharedReceiveQueueId {
        self.id
    }

    pub(crate) fn context(&self) -> &DeviceContext {
        self.pd.context()
    }

    pub(crate) fn is_xrc(&self) -> bool {
        self.xrc.is_some()
    }

    /// Destroys the queue, unless that has been done. `&mut self` shows that no pair uses it.
    fn destroy(&mut self) -> io::Result<()> {
        if !self.destroyed {
            // SAFETY: the queue is alive. Either its handle and every queue pair that uses it are
            // gone, or the handle calls this as the last owner.
            check(unsafe { (self.context().provider().verbs().ibv_destroy_srq)(self.srq.as_ptr()) })?;
            self.destroyed = true;
        }
        Ok(())
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            log::error!("ibv_destroy_srq failed: {error}");
            // The library still has the queue, so the objects that it depends on must stay alive
            // too.
            std::mem::forget((self.pd.clone(), self.xrc.clone()));
        }
    }
}

/// The capacity of a shared receive queue, and its limit for events (`ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveQueueAttribute {
    /// The maximum number of receives.
    pub max_wr: u32,
    /// The maximum number of scatter/gather entries of a receive.
    pub max_sge: u32,
    /// The queue sends one event when it has fewer receives than this; 0 means never.
    pub srq_limit: u32,
}

/// Describes a shared receive queue. One builder can make any number of them.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueueBuilder {
    pd: ProtectionDomain,
    attr: SharedReceiveQueueAttribute,
    xrc: Option<XrcQueues>,
}

impl SharedReceiveQueueBuilder {
    /// A builder for a queue of 16 receives of one entry.
    pub(super) fn new(pd: &ProtectionDomain) -> Self {
        let attr = SharedReceiveQueueAttribute { max_wr: 16, max_sge: 1, srq_limit: 0 };
        Self { pd: pd.clone(), attr, xrc: None }
    }

    /// Sets the minimum number of receives that the queue can hold.
    pub fn setup_max_wr(&mut self, max_wr: u32) -> &mut Self {
        self.attr.max_wr = max_wr;
        self
    }

    /// Sets the maximum number of scatter/gather entries in a receive.
    pub fn setup_max_sge(&mut self, max_sge: u32) -> &mut Self {
        self.attr.max_sge = max_sge;
        self
    }

    /// Makes it a queue of this XRC domain (`IBV_SRQT_XRC`), whose receives complete into `cq`.
    pub fn setup_xrc(&mut self, xrcd: &XrcDomain, cq: &impl CompletionQueue) -> &mut Self {
        self.xrc = Some((xrcd.clone(), cq.shared()));
        self
    }

    /// Makes the queue (`ibv_create_srq`; for an XRC domain `ibv_create_srq_ex`).
    ///
    /// # Errors
    ///
    /// Fails if the device has no such queues ([`Unsupported`]), or none of this size. Also fails
    /// if an object that it uses belongs to another context.
    ///
    /// # References
    ///
    /// `man ibv_create_srq`, `man ibv_create_srq_ex`, `man ibv_get_srq_num`
    pub fn build(&self) -> Result<SharedReceiveQueue, CreateSharedReceiveQueueError> {
        let id = SharedReceiveQueueId::new();
        let SharedReceiveQueueAttribute { max_wr, max_sge, .. } = self.attr;
        let mut attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let srq = match &self.xrc {
            None => self.create(id, &mut attr),
            Some(ends) => self.create_xrc(id, &mut attr, ends)?,
        };
        let srq = NonNull::new(srq).ok_or_else(|| self.error(io::Error::last_os_error()))?;
        // The objects are stored before the number is queried, so that a queue that cannot be
        // destroyed keeps them.
        let xrc = self.xrc.clone().map(|ends| Xrc { number: 0, _ends: ends });
        let mut inner = SrqInner { srq, id, pd: self.pd.clone(), xrc, destroyed: false };
        if let Some(Xrc { number, .. }) = &mut inner.xrc {
            // SAFETY: the queue was made just now, and `number` is a field of its handle.
            check(unsafe { verbs::ibv_get_srq_num(srq.as_ptr(), number) })
                .map_err(|source| CreateSharedReceiveQueueError::Number { source })?;
        }
        let inner = Arc::new(inner);
        // SAFETY: the domain keeps the context open, and every release's struct has this operation.
        let verb = unsafe { (*self.pd.context().as_raw().as_ptr()).ops.post_srq_recv };
        let verb = verb.ok_or(CreateSharedReceiveQueueError::Incomplete { operation: "post_srq_recv" })?;
        let list = ReceiveList::of_shared(srq, verb, attr.max_wr, attr.max_sge)?;
        Ok(SharedReceiveQueue { inner, list })
    }

    fn create(&self, id: SharedReceiveQueueId, attr: &mut ibv_srq_attr) -> *mut ibv_srq {
        let mut init = ibv_srq_init_attr { srq_context: id.to_context(), attr: *attr };
        let create = self.pd.context().provider().verbs().ibv_create_srq;
        // SAFETY: the builder keeps the domain alive, and the attributes are local variables.
        let srq = unsafe { create(self.pd.as_raw().as_ptr(), &raw mut init) };
        *attr = init.attr;
        srq
    }

    /// Makes a queue of an XRC domain. Checks that all objects belong to one context, because a
    /// library does not.
    fn create_xrc(
        &self,
        id: SharedReceiveQueueId,
        attr: &mut ibv_srq_attr,
        (xrcd, cq): &XrcQueues,
    ) -> Result<*mut ibv_srq, CreateSharedReceiveQueueError> {
        let context = self.pd.context();
        if xrcd.context() != context || cq.0.context() != context {
            return Err(CreateSharedReceiveQueueError::OtherContext);
        }
        let mut init = ibv_srq_init_attr_ex {
            srq_context: id.to_context(),
            attr: *attr,
            comp_mask: Init::IBV_SRQ_INIT_ATTR_TYPE.0
                | Init::IBV_SRQ_INIT_ATTR_PD.0
                | Init::IBV_SRQ_INIT_ATTR_XRCD.0
                | Init::IBV_SRQ_INIT_ATTR_CQ.0,
            srq_type: ibv_srq_type::IBV_SRQT_XRC,
            pd: self.pd.as_raw().as_ptr(),
            xrcd: xrcd.as_raw().as_ptr(),
            cq: cq.0.as_raw().as_ptr(),
            ..ibv_srq_init_attr_ex::default()
        };
        let lib = context.provider().verbs();
        // SAFETY: the borrows keep domains and queue alive, and all belong to this context; the
        // rest is plain data.
        let srq = unsafe { verbs::ibv_create_srq_ex(lib, context.as_raw().as_ptr(), &raw mut init) };
        *attr = init.attr;
        Ok(srq)
    }

    /// Finds out which limit was exceeded, after creation failed.
    #[cold]
    fn error(&self, source: io::Error) -> CreateSharedReceiveQueueError {
        let context = self.pd.context();
        if Unsupported::is_meant_by(&source) {
            let (verb, capability) = match self.xrc {
                None => ("ibv_create_srq", "shared receive queues"),
                Some(_) => ("ibv_create_srq_ex", "shared receive queues of XRC domains"),
            };
            return Unsupported::new(context, verb, capability).into();
        }
        let SharedReceiveQueueAttribute { max_wr, max_sge, .. } = self.attr;
        if let Ok(device) = context.query_device() {
            let asked = [
                ("max_wr", max_wr, "max_srq_wr", device.max_srq_wr()),
                ("max_sge", max_sge, "max_srq_sge", device.max_srq_sge()),
            ];
            for (what, asked, limit_name, limit) in asked {
                if u32::try_from(limit).is_ok_and(|limit| asked > limit) {
                    return CreateSharedReceiveQueueError::LimitExceeded {
                        what,
                        asked,
                        limit_name,
                        limit,
                        source,
                    };
                }
            }
        }
        CreateSharedReceiveQueueError::Ibverbs { max_wr, max_sge, source }
    }
}

impl SharedReceiveQueue {
    /// Starts a list of receives (`ibv_post_srq_recv`).
    #[inline]
    pub fn start_post_recv(&mut self) -> PostRecvGuard<'_> {
        self.list.start()
    }

    /// The id by which events name the queue.
    pub fn id(&self) -> SharedReceiveQueueId {
        self.inner.id
    }

    /// The queue's number in an XRC domain (`ibv_get_srq_num`), if it is in one. Peers pass it to
    /// [`setup_xrc_srqn`](super::queue_pair::WorkRequestHandle::setup_xrc_srqn).
    pub fn srqn(&self) -> Option<u32> {
        self.inner.xrc.as_ref().map(|xrc| xrc.number)
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    pub fn as_raw(&self) -> NonNull<ibv_srq> {
        self.inner.srq
    }

    /// Destroys the queue now (`ibv_destroy_srq`), and returns the error that a drop would only
    /// log.
    ///
    /// # Errors
    ///
    /// Fails if a queue pair still uses it, or if the device does not release it. The queue comes
    /// back with the error: the memory that was posted must not be freed.
    ///
    /// # References
    ///
    /// `man ibv_create_srq`
    pub fn close(mut self) -> Result<(), ConsumeError<Self>> {
        let destroyed = match Arc::get_mut(&mut self.inner) {
            Some(inner) => inner.destroy(),
            None => Err(io::Error::from_raw_os_error(libc::EBUSY)),
        };
        destroyed.map_err(|source| ConsumeError {
            object: self,
            error: Error::os("ibv_destroy_srq", source).remedy("the shared receive queue still exists"),
        })
    }

    pub(super) fn shared(&self) -> Arc<SrqInner> {
        Arc::clone(&self.inner)
    }

    /// Queries the queue's capacity and limit (`ibv_query_srq`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    ///
    /// # References
    ///
    /// `man ibv_query_srq`
    pub fn query(&self) -> Result<SharedReceiveQueueAttribute, Error> {
        let mut attr = ibv_srq_attr::default();
        let query = self.inner.context().provider().verbs().ibv_query_srq;
        // SAFETY: `self` keeps the queue alive, and the attributes are a local variable.
        check(unsafe { query(self.inner.srq.as_ptr(), &raw mut attr) })
            .map_err(|source| Error::os("ibv_query_srq", source))?;
        let ibv_srq_attr { max_wr, max_sge, srq_limit } = attr;
        Ok(SharedReceiveQueueAttribute { max_wr, max_sge, srq_limit })
    }

    /// Requests one event when the queue has fewer receives than this; 0 cancels the request
    /// (`ibv_modify_srq`).
    ///
    /// For another event, call it again after receives have been posted; earlier, the event would
    /// come at once.
    ///
    /// # Errors
    ///
    /// Fails if the limit exceeds the queue's capacity, or if the device has no limit
    /// ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_modify_srq`
    pub fn set_limit(&self, srq_limit: u32) -> Result<(), Error> {
        self.modify(ibv_srq_attr { srq_limit, ..ibv_srq_attr::default() }, Mask::IBV_SRQ_LIMIT)
    }

    /// Resizes the queue (`ibv_modify_srq`). Posted receives stay.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot resize it ([`Unsupported`]), if the device's limit is lower, or
    /// if more receives are posted. If memory for longer lists is missing, the queue has the
    /// requested size, but its lists keep the old one.
    ///
    /// # References
    ///
    /// `man ibv_modify_srq`
    pub fn resize(&mut self, max_wr: u32) -> Result<(), Error> {
        self.modify(ibv_srq_attr { max_wr, ..ibv_srq_attr::default() }, Mask::IBV_SRQ_MAX_WR)?;
        // The device may have granted more. If the query fails, the requested number is certain.
        let (max_wr, max_sge) = match self.query() {
            Ok(attr) => (attr.max_wr, attr.max_sge),
            Err(_) => (max_wr, self.list.max_entries()),
        };
        self.list.resize(max_wr, max_sge).map_err(|NoRoom { places, bytes_each }| {
            Error::not_called(
                "ibv_modify_srq",
                ErrorKind::OutOfMemory,
                "no memory for lists as long as the queue is now",
            )
            .with("places", places)
            .with("bytes_each", bytes_each)
        })
    }

    fn modify(&self, mut attr: ibv_srq_attr, mask: Mask) -> Result<(), Error> {
        let asked = if mask == Mask::IBV_SRQ_LIMIT { attr.srq_limit } else { attr.max_wr };
        let modify = self.inner.context().provider().verbs().ibv_modify_srq;
        // SAFETY: `self` keeps the queue alive, and the attributes are a local variable.
        let result = unsafe { modify(self.inner.srq.as_ptr(), &raw mut attr, mask.0 as c_int) };
        let (what, capability) = match mask {
            Mask::IBV_SRQ_LIMIT => ("srq_limit", "limits of shared receive queues"),
            _ => ("max_wr", "resizing of shared receive queues"),
        };
        check(result).map_err(|source| {
            let resizes = mask == Mask::IBV_SRQ_LIMIT || self.may_be_resized();
            if Unsupported::is_meant_by(&source) || !resizes {
                return Unsupported::new(self.inner.context(), "ibv_modify_srq", capability).into();
            }
            Error::os("ibv_modify_srq", source).with(what, asked).remedy(
                "a limit is at most what the queue holds, and a queue holds at least what is posted and its limit",
            )
        })
    }

    /// Whether the device reports that it can resize queues. Devices that cannot return `EINVAL`.
    #[cold]
    fn may_be_resized(&self) -> bool {
        let device = self.inner.context().query_device();
        device.is_ok_and(|device| device.capability_flags().contains(DeviceCapabilityFlags::SrqResize))
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

/// A shared receive queue could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CreateSharedReceiveQueueError {
    /// The device has none, or not such.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The XRC domain or the completion queue belongs to another open device than the protection
    /// domain.
    #[error(
        "the XRC domain or the completion queue was made from another context than the protection domain"
    )]
    OtherContext,
    /// The library made a queue of an XRC domain and does not tell its number.
    #[error("ibv_get_srq_num failed: {source}")]
    Number {
        /// The error number of `ibv_get_srq_num`.
        source: io::Error,
    },
    /// More than the device has.
    #[error("{what} {asked} was asked for; the device's limit ({limit_name}) is {limit} ({source})")]
    LimitExceeded {
        /// The attribute that exceeds a limit: `max_wr` or `max_sge`.
        what: &'static str,
        /// The value that was asked for.
        asked: u32,
        /// The device attribute.
        limit_name: &'static str,
        /// The value that the device states for the limit.
        limit: i32,
        /// The error number of `ibv_create_srq` or `ibv_create_srq_ex`.
        source: io::Error,
    },
    /// The library made a queue that lacks an operation which every one must have.
    #[error("the device's library made a shared receive queue without `{operation}`")]
    Incomplete {
        /// The C function whose pointer is null.
        operation: &'static str,
    },
    /// There is no memory for receives in the number that the device granted.
    #[error("no memory for {places} places of {bytes_each} bytes, as many as the device granted")]
    TooLarge {
        /// The number of work requests that the device granted.
        places: u64,
        /// The bytes that this crate needs for each work request.
        bytes_each: usize,
    },
    /// The library refused, for a reason other than those above.
    #[error("cannot make a shared receive queue with max_wr {max_wr} and max_sge {max_sge}: {source}")]
    Ibverbs {
        /// How many receives were asked for.
        max_wr: u32,
        /// How many entries each.
        max_sge: u32,
        /// The error number of `ibv_create_srq` or `ibv_create_srq_ex`.
        source: io::Error,
    },
}

debug_as_text!(CreateSharedReceiveQueueError);

impl From<NoRoom> for CreateSharedReceiveQueueError {
    fn from(NoRoom { places, bytes_each }: NoRoom) -> Self {
        Self::TooLarge { places, bytes_each }
    }
}
