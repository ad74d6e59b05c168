//! The C object of a queue pair, and the path from a C pointer to the queue pair.

use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_qp, ibv_qp_ex};

use super::Qp;
use super::xrc::OpenedQp;
use crate::objects::c_object::CObject;

/// The C part is always the extended struct, which begins with the classic one.
pub(crate) type QpObject = CObject<ibv_qp_ex, QpState>;

/// The private state of the C object.
pub(crate) struct QpState {
    pub(crate) qp: Arc<Qp>,
    /// Set for a handle that `ibv_open_qp` made.
    pub(crate) opened: Option<Arc<OpenedQp>>,
    /// Whether it was created with `send_ops_flags`, so that `ibv_wr_*` may post to it.
    pub(crate) extended: bool,
}

/// The queue pair of an extended pointer.
///
/// # Safety
///
/// `qp` is a live queue pair of this device.
#[inline]
pub(crate) unsafe fn qp_of_ex<'a>(qp: *mut ibv_qp_ex) -> &'a Arc<Qp> {
    // SAFETY: the caller guarantees a live queue pair of this device, which `QpObject::create`
    // made.
    &unsafe { QpObject::state(qp) }.qp
}

/// The queue pair of a classic pointer.
///
/// # Safety
///
/// `qp` is a live queue pair of this device.
#[inline]
pub(crate) unsafe fn qp_of<'a>(qp: *mut ibv_qp) -> &'a Arc<Qp> {
    // SAFETY: the caller guarantees a live queue pair of this device. Its struct is extended, and
    // begins with the classic one.
    unsafe { qp_of_ex(qp.cast()) }
}
