//! The C object of a queue pair, and the way from a C pointer to the queue pair.

use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_qp, ibv_qp_ex};

use super::Qp;
use super::xrc::OpenedQp;
use crate::objects::c_object::CObject;

/// The C part of a queue pair is always the extended struct, which begins with the classic one.
pub(crate) type QpObject = CObject<ibv_qp_ex, QpState>;

/// What belongs to the C object.
pub(crate) struct QpState {
    pub(crate) qp: Arc<Qp>,
    /// Of a handle that `ibv_open_qp` made.
    pub(crate) opened: Option<Arc<OpenedQp>>,
    /// Made with `send_ops_flags`: it may be posted to with `ibv_wr_*`.
    pub(crate) extended: bool,
}

/// # Safety
///
/// `qp` is a live queue pair of this device.
#[inline]
pub(crate) unsafe fn qp_of_ex<'a>(qp: *mut ibv_qp_ex) -> &'a Arc<Qp> {
    // SAFETY: the caller's queue pair, which `create` made.
    &unsafe { QpObject::state(qp) }.qp
}

/// # Safety
///
/// `qp` is a live queue pair of this device.
#[inline]
pub(crate) unsafe fn qp_of<'a>(qp: *mut ibv_qp) -> &'a Arc<Qp> {
    // SAFETY: the caller's queue pair: the classic struct begins the extended one.
    unsafe { qp_of_ex(qp.cast()) }
}
