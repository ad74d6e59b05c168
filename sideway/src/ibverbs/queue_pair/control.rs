//! The control side of a queue pair: attributes, state and destruction.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_mummy_sys::types::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_rate_limit_attr, ibv_srq,
};
use rdma_mummy_sys::verbs;

use super::modify::ModifyQueuePairError;
use super::{
    QueuePairAttribute, QueuePairAttributeMask, QueuePairCapability, QueuePairInitAttribute, QueuePairState,
    QueuePairType,
};
use crate::direct::KeptByObject;
use crate::error::Error;
use crate::ibverbs::address::Gid;
use crate::ibverbs::check;
use crate::ibverbs::completion::{CompletionQueue, CqInner, WorkCompletionStatus};
use crate::ibverbs::completion_counter::{AttachedCounters, CompletionCounter};
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::srq::{SharedReceiveQueueId, SrqInner};

/// The control side of a queue pair: its attributes and its state.
///
/// Clones refer to the same pair and keep it alive. Any thread can query them while others post and
/// poll. The pair is destroyed (`ibv_destroy_qp`) when both halves and all clones are dropped.
#[derive(Clone)]
pub struct QueuePairControl(pub(super) Arc<Inner>);

/// The queue pair and the objects that it depends on.
pub(super) struct Inner {
    qp: NonNull<ibv_qp>,
    qp_num: u32,
    qp_type: QueuePairType,
    cap: QueuePairCapability,
    /// Serialises changes of the state, because libibverbs updates its cached copy in `ibv_qp`
    /// without a lock.
    control: Mutex<()>,
    /// The multicast groups of the pair, as GID and LID.
    groups: Mutex<Vec<(Gid, u16)>>,
    /// The completion counters attached to the pair, which must be dropped after the pair itself.
    counting: AttachedCounters,
    uses: Dependencies,
}

/// The objects that a queue pair uses and keeps alive.
#[derive(Clone)]
pub(super) struct Dependencies {
    pub(super) pd: ProtectionDomain,
    pub(super) send_cq: Arc<CqInner>,
    pub(super) recv_cq: Arc<CqInner>,
    pub(super) srq: Option<Arc<SrqInner>>,
    /// What a vendor's pair uses; not read, only dropped after the pair.
    pub(super) _kept: Option<KeptByObject>,
}

impl Dependencies {
    pub(super) fn raw_srq(&self) -> *mut ibv_srq {
        self.srq.as_ref().map_or(ptr::null_mut(), |srq| srq.as_raw().as_ptr())
    }
}

// SAFETY: posting needs `&mut` to one of the halves, and control verbs run under `control`.
unsafe impl Send for Inner {}
// SAFETY: posting needs `&mut` to one of the halves, and control verbs run under `control`.
unsafe impl Sync for Inner {}

impl Inner {
    /// # Safety
    ///
    /// `qp` was made just now of these objects, with this type and capability, and nothing else
    /// owns it.
    pub(super) unsafe fn new(
        qp: NonNull<ibv_qp>,
        qp_type: QueuePairType,
        cap: QueuePairCapability,
        uses: Dependencies,
    ) -> Self {
        // SAFETY: the caller guarantees a live queue pair, and every release's struct has this
        // field.
        let qp_num = unsafe { (*qp.as_ptr()).qp_num };
        Self {
            qp,
            qp_num,
            qp_type,
            cap,
            control: Mutex::new(()),
            groups: Mutex::default(),
            counting: AttachedCounters::default(),
            uses,
        }
    }

    pub(super) fn capability(&self) -> QueuePairCapability {
        self.cap
    }

    pub(super) fn qp_type(&self) -> QueuePairType {
        self.qp_type
    }

    pub(super) fn context(&self) -> &DeviceContext {
        self.uses.pd.context()
    }

    fn query(&self, mask: QueuePairAttributeMask) -> io::Result<(ibv_qp_attr, ibv_qp_init_attr)> {
        let mut attr = ibv_qp_attr::default();
        let mut init = ibv_qp_init_attr::default();
        // SAFETY: `self` keeps the queue pair alive, the caller holds the control lock, and both
        // results are local variables.
        let result = unsafe {
            (self.uses.pd.context().provider().verbs().ibv_query_qp)(
                self.qp.as_ptr(),
                &raw mut attr,
                mask.bits() as core::ffi::c_int,
                &raw mut init,
            )
        };
        check(result).map(|()| (attr, init))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the queue pair is alive until here. Both halves and every control held this
        // object and are gone.
        let result = unsafe { (self.uses.pd.context().provider().verbs().ibv_destroy_qp)(self.qp.as_ptr()) };
        if let Err(error) = check(result) {
            log::error!("ibv_destroy_qp failed for queue pair {:#x}: {error}", self.qp_num);
            // The library still has the pair, so the objects that it depends on must stay alive
            // too.
            std::mem::forget(self.uses.clone());
            std::mem::forget(std::mem::take(&mut self.counting));
        }
    }
}

impl QueuePairControl {
    /// Changes state or attributes (`ibv_modify_qp`) while other code may own the pair's halves. If
    /// none does, [`QueuePair::modify`](super::QueuePair::modify) does the same safely.
    ///
    /// # Safety
    ///
    /// Until this returns, nobody may post to the pair or build a list of work requests for it. A
    /// library may exchange the pair's operations when its state changes (mlx5 does), or wait for
    /// the lock that an open list holds (hns).
    ///
    /// # Errors
    ///
    /// [`ModifyQueuePairError`] names the attribute that was wrong or missing, or the address
    /// without a route.
    ///
    /// # References
    ///
    /// `man ibv_modify_qp`
    pub unsafe fn modify(&self, attr: &QueuePairAttribute) -> Result<(), ModifyQueuePairError> {
        if let Some(asked) = attr.capability().filter(|asked| !self.0.cap.fits(asked)) {
            return Err(ModifyQueuePairError::CapabilityShrinks { granted: self.0.cap, asked });
        }
        let _control = self.0.control.lock().unwrap_or_else(PoisonError::into_inner);
        let mut raw = *attr.raw();
        // SAFETY: `self` keeps the queue pair alive and its control is locked. The caller
        // guarantees that nobody posts. `raw` is an initialised copy.
        let result = unsafe {
            (self.0.uses.pd.context().provider().verbs().ibv_modify_qp)(
                self.0.qp.as_ptr(),
                &raw mut raw,
                attr.mask().bits() as core::ffi::c_int,
            )
        };
        check(result).map_err(|source| {
            if let Some(lacking) = ModifyQueuePairError::lacking(self.context(), attr, &source) {
                return lacking.into();
            }
            let current = || self.0.query(QueuePairAttributeMask::State).map(|(attr, _)| attr.qp_state.0);
            let current = current().map_or(QueuePairState::Unknown, QueuePairState::from_raw);
            ModifyQueuePairError::diagnose(self.0.qp_type, current, attr, source)
        })
    }

    /// Limits the rate at which the pair sends (`ibv_modify_qp_rate_limit`). The pair may be
    /// sending at the same time.
    ///
    /// # Errors
    ///
    /// Fails if the device has no packet pacing ([`Unsupported`](crate::ibverbs::Unsupported)), or
    /// does not support this limit.
    ///
    /// # References
    ///
    /// `man ibv_modify_qp_rate_limit`
    pub fn modify_rate_limit(&self, limit: &RateLimit) -> Result<(), Error> {
        let _control = self.lock();
        let mut attr = ibv_qp_rate_limit_attr {
            rate_limit: limit.rate,
            max_burst_sz: limit.max_burst_size,
            typical_pkt_sz: limit.typical_packet_size,
            comp_mask: 0,
        };
        // SAFETY: `self` keeps the queue pair alive, its control is locked, and the attributes are
        // initialised.
        let result = unsafe { verbs::ibv_modify_qp_rate_limit(self.0.qp.as_ptr(), &raw mut attr) };
        check(result).map_err(|source| {
            let (verb, what) = ("ibv_modify_qp_rate_limit", "rate limits (packet pacing)");
            Error::of_device(self.context(), verb, what, source).debug("limit", limit)
        })
    }

    /// Reads attributes (`ibv_query_qp`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    ///
    /// # References
    ///
    /// `man ibv_query_qp`
    pub fn query(
        &self,
        mask: QueuePairAttributeMask,
    ) -> Result<(QueuePairAttribute, QueuePairInitAttribute), Error> {
        let _control = self.0.control.lock().unwrap_or_else(PoisonError::into_inner);
        match self.0.query(mask) {
            Ok((attr, init)) => {
                Ok((QueuePairAttribute::from_parts(attr, mask), QueuePairInitAttribute::new(&init)))
            }
            Err(source) => Err(Error::os("ibv_query_qp", source).of_queue_pair(self.0.qp_num)),
        }
    }

    /// Queries the pair's state (`ibv_query_qp`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    pub fn state(&self) -> Result<QueuePairState, Error> {
        let (attr, _) = self.query(QueuePairAttributeMask::State)?;
        Ok(attr.state().unwrap_or(QueuePairState::Unknown))
    }

    /// The usual cause of a completion of this pair with `status`, and what to check; `None` for
    /// success and for unknown values.
    ///
    /// Over a software device it looks why the peer does not acknowledge
    /// ([`TransportRetryCounterExceeded`](WorkCompletionStatus::TransportRetryCounterExceeded)): it
    /// compares user, fabric and network namespace, and sees whether the peer's process is stopped or
    /// gone. That takes some system calls. Otherwise it is [`WorkCompletionStatus::hint`].
    pub fn hint(&self, status: WorkCompletionStatus) -> Option<Cow<'static, str>> {
        let is_soft = self.0.uses.pd.context().is_soft();
        if status != WorkCompletionStatus::TransportRetryCounterExceeded || !is_soft {
            return status.hint().map(Cow::Borrowed);
        }
        Some(unanswered(self.qp_number()))
    }

    /// Locks the control side: until the guard is dropped, no other thread changes or queries
    /// attributes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the pair's list of multicast groups: until the guard is dropped, no other thread joins
    /// or leaves one.
    pub(crate) fn multicast_groups(&self) -> MutexGuard<'_, Vec<(Gid, u16)>> {
        self.0.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a completion counter alive as long as the pair.
    pub(crate) fn keep_counter(&self, counter: &CompletionCounter) {
        self.0.counting.keep(counter);
    }

    /// The queue pair number, by which peers address it.
    pub fn qp_number(&self) -> u32 {
        self.0.qp_num
    }

    /// The transport type.
    pub fn qp_type(&self) -> QueuePairType {
        self.0.qp_type
    }

    /// The queue sizes that the device granted.
    pub fn capability(&self) -> QueuePairCapability {
        self.0.cap
    }

    /// The shared receive queue from which it takes its receives, if any.
    pub fn srq(&self) -> Option<SharedReceiveQueueId> {
        self.0.uses.srq.as_ref().map(|srq| srq.id())
    }

    /// Whether both queues complete into this one.
    pub(super) fn completes_into(&self, cq: &impl CompletionQueue) -> bool {
        [&self.0.uses.send_cq, &self.0.uses.recv_cq].iter().all(|own| own.as_raw() == cq.as_raw())
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.uses.pd
    }

    /// The device context in which it was made.
    pub fn context(&self) -> &DeviceContext {
        self.0.uses.pd.context()
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    pub fn as_raw(&self) -> NonNull<ibv_qp> {
        self.0.qp
    }
}

impl fmt::Debug for QueuePairControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qp_num", &format_args!("{:#x}", self.qp_num))
            .field("qp_type", &self.qp_type)
            .finish_non_exhaustive()
    }
}

/// A limit of the send rate (`ibv_qp_rate_limit_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// The maximum rate in kb/s; 0 means no limit.
    pub rate: u32,
    /// The maximum burst in bytes; 0 leaves it to the device.
    pub max_burst_size: u32,
    /// The typical packet size in bytes; 0 if it is not known.
    pub typical_packet_size: u16,
}

// C passes the mask as an `int`.
const _: () = assert!(size_of::<ibv_qp_attr_mask>() == size_of::<core::ffi::c_int>());

/// Why a pair of a software device gets no acknowledgement. The device is in this process, or in a
/// libibverbs, which says no more.
#[cold]
fn unanswered(qp_num: u32) -> Cow<'static, str> {
    #[cfg(feature = "soft")]
    if let Some(found) = soft_rnic::status::unanswered(qp_num) {
        return Cow::Owned(format!("the peer does not acknowledge: {found}"));
    }
    let _ = qp_num;
    Cow::Borrowed(
        "the peer does not acknowledge: over a software device its process is stopped or has ended, or it has another \
         user, another fabric (SOFT_RNIC_FABRIC) or another network namespace; compare `soft-rnic status \
         --all-fabrics` on both sides",
    )
}
