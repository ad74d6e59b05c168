//! Fake XRC domains, their shared receive queues, and targets. Their dependencies are checked.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sideway::sys::types::*;

use super::completion::Cq;
use super::device::world_of;
use super::objects::{Srq, new_srq};
use super::queue_pair::new_target;
use super::{FakeWorld, refuses, set_errno};

/// The existing objects.
#[derive(Debug, Default)]
pub struct Xrc {
    /// The queue numbers of requests, in order.
    pub asked_for: Mutex<Vec<u32>>,
    /// The handles of targets: handle, number and domain.
    targets: Mutex<Vec<(usize, u32, usize)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeWorld {
    /// Records a request of an extended reliable connection.
    pub(super) fn goes_to_queue(&self, number: u32) {
        lock(&self.xrc.asked_for).push(number);
    }

    /// Records a new handle of a target.
    pub(super) fn is_target(&self, qp: *mut ibv_qp, number: u32, xrcd: *mut ibv_xrcd) {
        self.uses(xrcd, qp);
        lock(&self.xrc.targets).push((qp.addr(), number, xrcd.addr()));
    }

    /// Removes a queue pair that is destroyed, if it is such a handle.
    pub(super) fn is_no_target(&self, qp: *mut ibv_qp) {
        lock(&self.xrc.targets).retain(|(handle, ..)| *handle != qp.addr());
    }
}

pub(super) fn install(verbs: &mut verbs_context) {
    verbs.open_xrcd = Some(open_xrcd);
    verbs.close_xrcd = Some(close_xrcd);
    verbs.create_srq_ex = Some(create_srq_ex);
    verbs.get_srq_num = Some(get_srq_num);
    verbs.open_qp = Some(open_qp);
}

unsafe extern "C" fn open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    use ibv_xrcd_init_attr_mask as M;
    // SAFETY: the caller passes an open context and valid attributes, as C requires.
    let (world, attr) = unsafe { (world_of(context), *attr) };
    let both = M::IBV_XRCD_INIT_ATTR_FD.0 | M::IBV_XRCD_INIT_ATTR_OFLAGS.0;
    world.check(attr.comp_mask == both, "a domain is opened by a descriptor and flags");
    if let Some(null) = refuses(world.lies.xrc) {
        return null;
    }
    world.born();
    Box::into_raw(Box::new(ibv_xrcd { context }))
}

unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller passes an open domain, as C requires.
    let world = unsafe { world_of((*xrcd).context) };
    if !world.dies("xrcd") {
        return world.lies.destroy;
    }
    world.goes(xrcd, "XRC domain");
    // SAFETY: the domain was boxed, and its owner destroys it once.
    drop(unsafe { Box::from_raw(xrcd) });
    0
}

unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    use ibv_srq_init_attr_mask as M;
    // SAFETY: the caller passes an open context and valid attributes, as C requires.
    unsafe {
        let world = world_of(context);
        let parts = M::IBV_SRQ_INIT_ATTR_PD.0 | M::IBV_SRQ_INIT_ATTR_XRCD.0 | M::IBV_SRQ_INIT_ATTR_CQ.0;
        world.check(
            (*init).comp_mask == M::IBV_SRQ_INIT_ATTR_TYPE.0 | parts
                && (*init).srq_type == ibv_srq_type::IBV_SRQT_XRC,
            "a queue that is made with more than a domain is one of an XRC domain, with all of its parts",
        );
        let (pd, xrcd, cq) = ((*init).pd, (*init).xrcd, (*init).cq);
        world.check(
            [(*pd).context, (*xrcd).context, (*cq).context].iter().all(|of| *of == context),
            "the parts of a queue are of its context",
        );
        // The extended attributes start with the classic ones.
        let srq = new_srq(&world, pd, &mut *init.cast());
        if !srq.is_null() {
            world.uses(xrcd, srq);
            Cq::of(cq).1.add_user();
            (*srq).completes_at = cq;
            (*srq).number = world.number();
        }
        srq.cast()
    }
}

unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the caller passes a live queue and a valid pointer, as C requires.
    unsafe {
        let world = world_of((*srq).context);
        if world.lies.srq_number == 0 {
            number.write((*srq.cast::<Srq>()).number);
        }
        world.lies.srq_number
    }
}

unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    use ibv_qp_open_attr_mask as M;
    // SAFETY: the caller passes an open context and valid attributes, as C requires.
    let (world, attr) = unsafe { (world_of(context), *attr) };
    let all = M::IBV_QP_OPEN_ATTR_NUM.0 | M::IBV_QP_OPEN_ATTR_XRCD.0 | M::IBV_QP_OPEN_ATTR_TYPE.0;
    world.check(
        attr.comp_mask == all && attr.qp_type == ibv_qp_type::IBV_QPT_XRC_RECV,
        "a target is opened by its number, its domain and its type",
    );
    if let Some(null) = refuses(world.lies.xrc) {
        return null;
    }
    let of_domain =
        |(_, number, xrcd): &(usize, u32, usize)| (*number, *xrcd) == (attr.qp_num, attr.xrcd.addr());
    if !lock(&world.xrc.targets).iter().any(of_domain) {
        set_errno(libc::ENOENT);
        return std::ptr::null_mut();
    }
    // SAFETY: the caller passes an open domain, as C requires.
    unsafe { new_target(world, context, attr.xrcd, Some(attr.qp_num)) }
}
