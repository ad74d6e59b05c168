//! Fake queue pairs: creation, modification, queries and destruction.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sideway::sys::types::*;

use super::completion::Cq;
use super::device::world_of;
use super::posting::{self, List};
use super::{FakeWorld, refuses};

/// A queue pair. Every pair is an extended one, which starts with a classic one.
#[repr(C)]
pub(super) struct Qp {
    pub(super) ex: ibv_qp_ex,
    world: Arc<FakeWorld>,
    cap: ibv_qp_cap,
    state: Mutex<u32>,
    list: Mutex<List>,
    /// The driver-specific type, if any.
    pub(super) driver: Driver,
    pub(super) dv: mlx5dv_qp_ex,
}

/// The driver-specific types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Driver {
    #[default]
    None,
    DcInitiator,
    DcTarget,
    Srd,
}

/// The parts of a pair that posting needs.
pub(super) struct View<'a> {
    pub(super) world: &'a FakeWorld,
    pub(super) cap: ibv_qp_cap,
    pub(super) list: MutexGuard<'a, List>,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) number: u32,
    pub(super) driver: Driver,
}

impl Qp {
    /// # Safety
    ///
    /// The pair must be alive.
    pub(super) unsafe fn of<'a>(qp: *mut ibv_qp) -> View<'a> {
        // SAFETY: every pair of this provider is a `Qp`. Only fields that callers never access are
        // borrowed.
        unsafe {
            let this: *mut Self = qp.cast();
            View {
                world: &(*this).world,
                cap: (*this).cap,
                list: (*this).list.lock().unwrap_or_else(PoisonError::into_inner),
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                number: (*qp).qp_num,
                driver: (*this).driver,
            }
        }
    }
}

/// # Safety
///
/// Domain and queues must be alive.
pub(super) unsafe fn new_qp(world: Arc<FakeWorld>, pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> *mut Qp {
    world.born();
    if let Some(granted) = world.lies.granted {
        attr.cap = ibv_qp_cap {
            max_send_wr: granted,
            max_recv_wr: granted,
            max_send_sge: granted,
            max_recv_sge: granted,
            max_inline_data: granted,
        };
    }
    let mut ex = ibv_qp_ex::default();
    // SAFETY: the caller passes a live domain and live queues, as C requires.
    unsafe {
        ex.qp_base.context = (*pd).context;
        Cq::of(attr.send_cq).1.add_user();
        Cq::of(attr.recv_cq).1.add_user();
    }
    ex.qp_base.pd = pd;
    ex.qp_base.send_cq = attr.send_cq;
    ex.qp_base.recv_cq = attr.recv_cq;
    ex.qp_base.qp_type = attr.qp_type;
    ex.qp_base.srq = attr.srq;
    ex.qp_base.qp_num = world.number();
    let (state, list) = (Mutex::new(0), Mutex::new(List::new()));
    let (srq, cap) = (attr.srq, attr.cap);
    let (driver, dv) = (Driver::None, mlx5dv_qp_ex::default());
    let qp = Box::into_raw(Box::new(Qp { ex, world, cap, state, list, driver, dv }));
    if !srq.is_null() {
        // SAFETY: the pair was made just now, so nobody else uses it.
        unsafe { (*qp).world.uses(srq, qp) };
    }
    qp
}

/// A handle of a target: an existing one by its number, or a new one.
///
/// # Safety
///
/// Context and domain must be open.
pub(super) unsafe fn new_target(
    world: Arc<FakeWorld>,
    context: *mut ibv_context,
    xrcd: *mut ibv_xrcd,
    number: Option<u32>,
) -> *mut ibv_qp {
    world.born();
    let mut ex = ibv_qp_ex::default();
    ex.qp_base.context = context;
    ex.qp_base.qp_type = ibv_qp_type::IBV_QPT_XRC_RECV;
    let number = number.unwrap_or_else(|| world.number());
    ex.qp_base.qp_num = number;
    let (state, list, cap) = (Mutex::new(0), Mutex::new(List::new()), ibv_qp_cap::default());
    let qp =
        Qp { ex, world: Arc::clone(&world), cap, state, list, driver: Driver::None, dv: Default::default() };
    let qp = Box::into_raw(Box::new(qp)).cast();
    world.is_target(qp, number, xrcd);
    qp
}

pub(super) unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller passes a live domain, and live queues in the attributes.
    unsafe {
        let world = world_of((*pd).context);
        refuses(world.lies.create_qp).unwrap_or_else(|| new_qp(world, pd, &mut *attr).cast())
    }
}

pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller passes an open context and valid attributes, which start with the classic
    // ones.
    unsafe {
        let world = world_of(context);
        if let Some(null) = refuses(world.lies.create_qp_ex) {
            return null;
        }
        if (*attr).qp_type == ibv_qp_type::IBV_QPT_XRC_RECV {
            let by_domain = (*attr).comp_mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0;
            let alone = (*attr).send_cq.is_null() && (*attr).recv_cq.is_null() && (*attr).srq.is_null();
            world.check(by_domain && alone, "a target has an XRC domain and no queues");
            return new_target(world, context, (*attr).xrcd, None);
        }
        let qp = new_qp(Arc::clone(&world), (*attr).pd, &mut *attr.cast());
        posting::install(&raw mut (*qp).ex, (*attr).send_ops_flags, &world);
        qp.cast()
    }
}

pub(super) unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller passes a live pair, as C requires.
    let has = unsafe { Qp::of(qp) }.world.has("qp_ex");
    if has { qp.cast() } else { ptr::null_mut() }
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller passes a live pair, and its queues outlive it.
    let View { world, list, send_cq, recv_cq, .. } = unsafe { Qp::of(qp) };
    world.check(!list.is_open(), "a queue pair was destroyed while a list was open");
    drop(list);
    if !world.dies("qp") {
        return world.lies.destroy;
    }
    world.leaves_no_group(qp);
    world.is_no_target(qp);
    // SAFETY: the pair was boxed, and its owner destroys it once. Its queues are alive; a target
    // has no queues.
    unsafe {
        for cq in [send_cq, recv_cq].into_iter().filter(|cq| !cq.is_null()) {
            Cq::of(cq).1.remove_user();
        }
        drop(Box::from_raw(qp.cast::<Qp>()));
    }
    0
}

pub(super) unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller passes a live pair and valid attributes, as C requires.
    unsafe {
        let this: *mut Qp = qp.cast();
        let world: &FakeWorld = &(*this).world;
        let lies = &world.lies;
        if lies.modify_qp == 0 && mask as u32 & ibv_qp_attr_mask::IBV_QP_STATE.0 != 0 {
            *(*this).state.lock().unwrap() = (*attr).qp_state.0;
            // Like mlx5's target, it gets its number only now.
            if (*this).driver == Driver::DcTarget && (*attr).qp_state == ibv_qp_state::IBV_QPS_RTR {
                (*qp).qp_num = world.number();
            }
        }
        lies.modify_qp
    }
}

pub(super) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes a live pair and valid pointers, as C requires.
    unsafe {
        let this: *mut Qp = qp.cast();
        let world: &FakeWorld = &(*this).world;
        let lies = &world.lies;
        let state = *(*this).state.lock().unwrap();
        (*attr).qp_state = ibv_qp_state(lies.queried_state.unwrap_or(state));
        (*init).cap = (*this).cap;
        (*init).qp_type = (*qp).qp_type;
        lies.query_qp
    }
}
