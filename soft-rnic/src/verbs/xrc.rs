//! Verbs of extended reliable connections: domains, numbers of shared receive queues, handles of
//! targets.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use rdma_mummy_sys::types::*;

use super::context::context_of;
use super::queue_pair::{enter_opened, receiver_of};
use super::{admit, failure, null, number};
use crate::node::Reachability;
use crate::objects::c_object::CObject;
use crate::objects::xrc_domain::Xrcd;
use crate::queue_pair::Qp;

type XrcdObject = CObject<ibv_xrcd, Arc<Xrcd>>;

/// How long `ibv_open_qp` looks for another process that has a queue pair with this number.
const WAY: Duration = Duration::from_millis(100);

/// The XRC domain of a pointer.
///
/// # Safety
///
/// - `xrcd` is live while the reference is used.
pub(super) unsafe fn xrcd_of<'a>(xrcd: *mut ibv_xrcd) -> &'a Arc<Xrcd> {
    // SAFETY: every XRC domain of this crate is an `XrcdObject`, and the caller guarantees that it
    // is live.
    unsafe { XrcdObject::state(xrcd) }
}

/// Sets the operations in the table of a context.
pub(super) fn install(verbs: &mut verbs_context) {
    verbs.open_xrcd = Some(open_xrcd);
    verbs.close_xrcd = Some(close_xrcd);
    verbs.get_srq_num = Some(get_srq_num);
    verbs.open_qp = Some(open_qp);
}

unsafe extern "C" fn open_xrcd(context: *mut ibv_context, init: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    use ibv_xrcd_init_attr_mask as M;
    // SAFETY: `ibv_open_xrcd` requires an open context.
    let state = unsafe { context_of(context) };
    admit!(state, OpenXrcd, null);
    if init.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: `ibv_open_xrcd` requires valid attributes.
    let ibv_xrcd_init_attr { comp_mask, fd, oflags } = unsafe { init.read() };
    if comp_mask != M::IBV_XRCD_INIT_ATTR_FD.0 | M::IBV_XRCD_INIT_ATTR_OFLAGS.0 {
        return null(libc::EINVAL);
    }
    match Xrcd::open(&state, fd, oflags) {
        Ok(xrcd) => XrcdObject::create(ibv_xrcd { context }, xrcd),
        Err(error) => null(error),
    }
}

unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: `ibv_close_xrcd` requires a live XRC domain.
    let state = unsafe { xrcd_of(xrcd) };
    admit!(state.context(), CloseXrcd, failure);
    if let Err(error) = state.close() {
        return number(Err(error));
    }
    // SAFETY: `create` of the same type made the object, and `ibv_close_xrcd` forbids any later
    // use.
    drop(unsafe { XrcdObject::destroy(xrcd) });
    0
}

/// Returns the number of the receiver behind an XRC shared receive queue. A basic queue has none.
unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    // SAFETY: `ibv_get_srq_num` requires a live shared receive queue.
    let Some(receiver) = (unsafe { receiver_of(srq) }) else { return number(Err(libc::EINVAL)) };
    // SAFETY: `ibv_get_srq_num` requires a valid result pointer.
    unsafe { srq_num.write(receiver.number.qpn) };
    0
}

/// Opens targets of this process only: a target of another process can be neither changed nor kept
/// alive from here.
unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    use ibv_qp_open_attr_mask as M;
    // SAFETY: `ibv_open_qp` requires an open context.
    let state = unsafe { context_of(context) };
    admit!(state, OpenQp, null);
    if let Err(error) = state.check_process() {
        return null(error);
    }
    // SAFETY: `ibv_open_qp` requires valid attributes.
    let attr = unsafe { attr.read() };
    let needed = M::IBV_QP_OPEN_ATTR_NUM.0 | M::IBV_QP_OPEN_ATTR_XRCD.0 | M::IBV_QP_OPEN_ATTR_TYPE.0;
    let context_given = attr.comp_mask & M::IBV_QP_OPEN_ATTR_CONTEXT.0 != 0;
    let known = needed | M::IBV_QP_OPEN_ATTR_CONTEXT.0;
    if attr.comp_mask & needed != needed
        || attr.comp_mask & !known != 0
        || attr.xrcd.is_null()
        || attr.qp_type != ibv_qp_type::IBV_QPT_XRC_RECV
    {
        return null(libc::EINVAL);
    }
    // SAFETY: `ibv_open_qp` requires a live XRC domain.
    let xrcd = unsafe { xrcd_of(attr.xrcd) };
    let opened =
        find(xrcd, attr.qp_num).and_then(|target| target.open_again(&state, xrcd).ok_or(libc::EINVAL));
    match opened {
        Ok(opened) => {
            let qp_context = if context_given { attr.qp_context } else { core::ptr::null_mut() };
            enter_opened(context, qp_context, opened)
        }
        Err(error) => null(error),
    }
}

/// The target with this number in an XRC domain.
fn find(xrcd: &Arc<Xrcd>, qp_num: u32) -> Result<Arc<Qp>, c_int> {
    let rnic = xrcd.context().rnic();
    if let Some(index) = rnic.node().own_index(qp_num) {
        let is_it = |qp: &Arc<Qp>| {
            qp.number.qpn == qp_num
                && qp.qp_type == ibv_qp_type::IBV_QPT_XRC_RECV
                && qp.xrcd.as_ref().is_some_and(|of| of.id() == xrcd.id())
        };
        return rnic.queue_pairs().get(index).filter(is_it).ok_or(libc::EINVAL);
    }
    // The lookup only selects the error: whether the number belongs to a process at all.
    match rnic.node().wait_for_process(qp_num, WAY) {
        Reachability::Ready(_) => Err(libc::EOPNOTSUPP),
        _ => Err(libc::EINVAL),
    }
}
