//! The receiving end of an extended reliable connection (XRC target).

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use rdma_mummy_sys::types::{
    ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_open_attr,
    ibv_qp_open_attr_mask as Open, ibv_qp_type,
};
use rdma_mummy_sys::verbs;

use super::{
    ModifyQueuePairError, QueuePairAttribute, QueuePairAttributeMask, QueuePairState, QueuePairType,
};
use crate::error::Error;
use crate::ibverbs::check;
use crate::ibverbs::xrc::XrcDomain;

/// The receiving end of an extended reliable connection (`ibv_qp` of type `IBV_QPT_XRC_RECV`).
///
/// It has a state and attributes, but no queues. Incoming messages go to the shared receive queues
/// of its [domain](XrcDomain), and complete in their completion queues. Several handles may refer
/// to it.
pub struct XrcTarget {
    qp: NonNull<ibv_qp>,
    qp_num: u32,
    /// Serialises changes of the state, because libibverbs updates its cached copy in `ibv_qp`
    /// without a lock.
    control: Mutex<()>,
    xrcd: XrcDomain,
}

// SAFETY: nothing can be posted to it, and control verbs run under `control`.
unsafe impl Send for XrcTarget {}
// SAFETY: there is nothing to post to; attributes are behind a lock.
unsafe impl Sync for XrcTarget {}

impl XrcTarget {
    pub(crate) fn create(xrcd: &XrcDomain) -> Result<Self, Error> {
        let context = xrcd.context();
        let mut attr = ibv_qp_init_attr_ex {
            qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
            comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0,
            xrcd: xrcd.as_raw().as_ptr(),
            ..Default::default()
        };
        // SAFETY: `xrcd` keeps the domain open, which belongs to this context; the rest is plain
        // data.
        let qp = unsafe {
            verbs::ibv_create_qp_ex(context.provider().verbs(), context.as_raw().as_ptr(), &raw mut attr)
        };
        // SAFETY: the library made the target just now in this domain, or returned null.
        unsafe { Self::of(qp, xrcd) }
            .map_err(|source| Error::of_device(context, "ibv_create_qp_ex", "XRC queue pairs", source))
    }

    pub(crate) fn open(xrcd: &XrcDomain, qp_num: u32) -> Result<Self, Error> {
        let context = xrcd.context();
        let mut attr = ibv_qp_open_attr {
            comp_mask: Open::IBV_QP_OPEN_ATTR_NUM.0
                | Open::IBV_QP_OPEN_ATTR_XRCD.0
                | Open::IBV_QP_OPEN_ATTR_TYPE.0,
            qp_num,
            xrcd: xrcd.as_raw().as_ptr(),
            qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
            ..Default::default()
        };
        // SAFETY: `xrcd` keeps the domain open, which belongs to this context; the rest is plain
        // data.
        let qp = unsafe { verbs::ibv_open_qp(context.as_raw().as_ptr(), &raw mut attr) };
        // SAFETY: the library opened the target just now in this domain, or returned null.
        unsafe { Self::of(qp, xrcd) }.map_err(|source| {
            Error::of_device(context, "ibv_open_qp", "XRC queue pairs that can be opened here", source)
                .of_queue_pair(qp_num)
                .remedy("the number has to be that of a target of this domain")
        })
    }

    /// # Safety
    ///
    /// `qp` must be null, with the reason in `errno`, or a handle of a target of this domain that
    /// nothing else owns.
    unsafe fn of(qp: *mut ibv_qp, xrcd: &XrcDomain) -> io::Result<Self> {
        let qp = NonNull::new(qp).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the caller guarantees a live queue pair, and every release's struct has this
        // field.
        let qp_num = unsafe { (*qp.as_ptr()).qp_num };
        Ok(Self { qp, qp_num, control: Mutex::new(()), xrcd: xrcd.clone() })
    }

    /// Changes state or attributes (`ibv_modify_qp`).
    ///
    /// # Errors
    ///
    /// [`ModifyQueuePairError`] names the attribute that was wrong or missing, or the address
    /// without a route.
    pub fn modify(&mut self, attr: &QueuePairAttribute) -> Result<(), ModifyQueuePairError> {
        let _control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let mut raw = *attr.raw();
        let verbs = self.xrcd.context().provider().verbs();
        // SAFETY: `self` keeps the queue pair alive, its control is locked, nobody can post to it,
        // and `raw` is an initialised copy.
        let result = unsafe {
            (verbs.ibv_modify_qp)(self.qp.as_ptr(), &raw mut raw, attr.mask().bits() as core::ffi::c_int)
        };
        check(result).map_err(|source| {
            let current = || self.ask(QueuePairAttributeMask::State).map(|(attr, _)| attr.qp_state.0);
            let current = current().map_or(QueuePairState::Unknown, QueuePairState::from_raw);
            ModifyQueuePairError::diagnose(QueuePairType::XrcReceive, current, attr, source)
        })
    }

    fn ask(&self, mask: QueuePairAttributeMask) -> io::Result<(ibv_qp_attr, ibv_qp_init_attr)> {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let verbs = self.xrcd.context().provider().verbs();
        // SAFETY: `self` keeps the queue pair alive, the caller holds the control lock, and both
        // results are local variables.
        let result = unsafe {
            (verbs.ibv_query_qp)(
                self.qp.as_ptr(),
                &raw mut attr,
                mask.bits() as core::ffi::c_int,
                &raw mut init,
            )
        };
        check(result).map(|()| (attr, init))
    }

    /// Reads attributes (`ibv_query_qp`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    pub fn query(&self, mask: QueuePairAttributeMask) -> Result<QueuePairAttribute, Error> {
        let _control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let told =
            self.ask(mask).map_err(|source| Error::os("ibv_query_qp", source).of_queue_pair(self.qp_num))?;
        Ok(QueuePairAttribute::from_parts(told.0, mask))
    }

    /// Queries the target's state (`ibv_query_qp`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    pub fn state(&self) -> Result<QueuePairState, Error> {
        let attr = self.query(QueuePairAttributeMask::State)?;
        Ok(attr.state().unwrap_or(QueuePairState::Unknown))
    }

    /// The queue pair number, by which the initiator addresses it. Completions of its messages
    /// carry the number.
    pub fn qp_number(&self) -> u32 {
        self.qp_num
    }

    /// The XRC domain that it belongs to.
    pub fn xrcd(&self) -> &XrcDomain {
        &self.xrcd
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    pub fn as_raw(&self) -> NonNull<ibv_qp> {
        self.qp
    }
}

impl Drop for XrcTarget {
    fn drop(&mut self) {
        let verbs = self.xrcd.context().provider().verbs();
        // SAFETY: the handle is alive until here, and nothing else owns it.
        if let Err(error) = check(unsafe { (verbs.ibv_destroy_qp)(self.qp.as_ptr()) }) {
            log::error!("ibv_destroy_qp failed for queue pair {:#x}: {error}", self.qp_num);
            // The library still has the pair, so the domain that it depends on must stay alive too.
            std::mem::forget(self.xrcd.clone());
        }
    }
}

impl fmt::Debug for XrcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcTarget")
            .field("qp_num", &format_args!("{:#x}", self.qp_num))
            .finish_non_exhaustive()
    }
}
