//! Fake completion queues, classic and extended.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sideway::sys::types::*;

use super::device::world_of;
use super::events::use_channel;
use super::{FakeWorld, refuses};

/// A queue. Every queue is an extended one, which starts with a classic one.
#[repr(C)]
pub(super) struct Cq {
    ex: ibv_cq_ex,
    world: Arc<FakeWorld>,
    state: Mutex<State>,
    pub(super) efa: efadv_cq,
}

pub(super) struct State {
    pending: VecDeque<ibv_wc>,
    current: Option<ibv_wc>,
    pub(super) open: bool,
    at_end: bool,
    users: u32,
    pub(super) unacknowledged: u32,
}

/// The capacity of every queue, regardless of the request.
const CAPACITY: usize = 4096;

impl Cq {
    /// # Safety
    ///
    /// The queue must be alive.
    pub(super) unsafe fn of<'a>(cq: *mut ibv_cq) -> (&'a FakeWorld, MutexGuard<'a, State>) {
        // SAFETY: every queue of this provider is a `Cq`. Only fields that callers never access are
        // borrowed.
        unsafe {
            let cq: *mut Self = cq.cast();
            (&*(*cq).world, (*cq).state.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }
}

impl State {
    pub(super) fn push(&mut self, wc: ibv_wc) {
        if self.pending.len() < CAPACITY {
            self.pending.push_back(wc);
        }
    }

    /// Whether the cursor of an open poll is on a completion.
    #[cfg(all(feature = "mlx5", feature = "efa"))]
    pub(super) fn is_on_one(&self) -> bool {
        self.open && self.current.is_some()
    }

    pub(super) fn add_user(&mut self) {
        self.users += 1;
    }

    pub(super) fn remove_user(&mut self) {
        self.users -= 1;
    }
}

/// # Safety
///
/// The channel must be null or alive.
unsafe fn new_cq(
    context: *mut ibv_context,
    world: Arc<FakeWorld>,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
) -> *mut Cq {
    world.born();
    // SAFETY: the caller guarantees (`# Safety`) that the channel lives, if there is one.
    unsafe { use_channel(channel, 1) };
    let ex = ibv_cq_ex { context, channel, cq_context, cqe: cqe as c_int, ..ibv_cq_ex::default() };
    let pending = VecDeque::with_capacity(CAPACITY);
    let state =
        Mutex::new(State { pending, current: None, open: false, at_end: false, users: 0, unacknowledged: 0 });
    Box::into_raw(Box::new(Cq { ex, world, state, efa: efadv_cq::default() }))
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    // SAFETY: the caller passes an open context, as C requires.
    let world = unsafe { world_of(context) };
    let made = refuses(world.lies.create_cq);
    // SAFETY: the caller passes a live channel or null, as C requires.
    made.unwrap_or_else(|| unsafe { new_cq(context, world, cqe as u32, cq_context, channel).cast() })
}

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller passes an open context and valid attributes, as C requires.
    let (world, attr) = unsafe { (world_of(context), *attr) };
    if let Some(null) = refuses(world.lies.create_cq_ex) {
        return null;
    }
    // SAFETY: the caller passes a live channel or null, as C requires.
    let cq = unsafe { new_cq(context, Arc::clone(&world), attr.cqe, attr.cq_context, attr.channel) };
    // SAFETY: the queue was made just now, so nobody else uses it.
    let ex = unsafe { &raw mut (*cq).ex };
    macro_rules! set {
        ($($member:ident),*) => {
            // SAFETY: the queue was made just now, so nobody else uses it.
            $(if world.has(stringify!($member)) { unsafe { (*ex).$member = Some($member) }; })*
        };
    }
    set!(start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_wc_flags);
    // Like drivers, it has readers only for the requested fields.
    use ibv_create_cq_wc_flags as F;
    let asked = |flag: ibv_create_cq_wc_flags| attr.wc_flags & u64::from(flag.0) != 0;
    macro_rules! set_asked {
        ($($flag:ident => $member:ident),*) => {$(if asked(F::$flag) { set!($member); })*};
    }
    set_asked!(
        IBV_WC_EX_WITH_BYTE_LEN => read_byte_len,
        IBV_WC_EX_WITH_IMM => read_imm_data,
        IBV_WC_EX_WITH_QP_NUM => read_qp_num,
        IBV_WC_EX_WITH_SRC_QP => read_src_qp,
        IBV_WC_EX_WITH_SLID => read_slid,
        IBV_WC_EX_WITH_SL => read_sl,
        IBV_WC_EX_WITH_DLID_PATH_BITS => read_dlid_path_bits,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP => read_completion_ts,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK => read_completion_wallclock_ns,
        IBV_WC_EX_WITH_CVLAN => read_cvlan,
        IBV_WC_EX_WITH_FLOW_TAG => read_flow_tag,
        IBV_WC_EX_WITH_TM_INFO => read_tm_info
    );
    ex
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller passes a live queue, as C requires.
    let (world, state) = unsafe { Cq::of(cq) };
    world.check(state.users == 0, "a completion queue was destroyed before its queue pairs");
    world.check(!state.open, "a completion queue was destroyed while a poll was open");
    world.check(state.unacknowledged == 0, "a completion queue was destroyed with events not acknowledged");
    drop(state);
    if !world.dies("cq") {
        return world.lies.destroy;
    }
    // SAFETY: the queue was boxed, and its owner destroys it once; its channel is alive.
    unsafe {
        use_channel((*cq).channel, -1);
        drop(Box::from_raw(cq.cast::<Cq>()));
    }
    0
}

fn take(world: &FakeWorld, state: &mut State) -> Option<ibv_wc> {
    let mut wc = state.pending.pop_front()?;
    if let Some([status, opcode, flags]) = world.lies.completion {
        wc.status = ibv_wc_status(status);
        wc.opcode = ibv_wc_opcode(opcode);
        wc.wc_flags = flags;
    }
    Some(wc)
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller passes a live queue, as C requires.
    let (world, mut state) = unsafe { Cq::of(cq) };
    world.check(!state.open, "ibv_poll_cq while an extended poll is open");
    if let Some(result) = world.lies.poll_cq {
        return result;
    }
    let call = world.polls.fetch_add(1, Relaxed);
    if let Some((from, result)) = world.lies.poll_cq_from.filter(|(from, _)| call >= *from) {
        world.check(call == from, "ibv_poll_cq after a failure that was not told");
        return result;
    }
    let mut count = 0;
    while count < room {
        let Some(completion) = take(world, &mut state) else { break };
        // SAFETY: the caller's array has this many elements, as C requires.
        unsafe { wc.add(count as usize).write(completion) };
        count += 1;
    }
    count
}

/// Moves the cursor, and writes the completion into the struct's fields.
unsafe fn advance(cq: *mut ibv_cq_ex, world: &FakeWorld, state: &mut State) -> c_int {
    state.current = take(world, state);
    let Some(wc) = state.current else { return libc::ENOENT };
    // SAFETY: the caller passes a live queue, and libraries may write these fields.
    unsafe {
        (*cq).wr_id = wc.wr_id;
        (*cq).status = wc.status;
    }
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller passes a live queue, as C requires.
    let (world, mut state) = unsafe { Cq::of(cq.cast()) };
    world.check(!state.open, "ibv_start_poll while a poll is open");
    let result = match world.lies.start_poll {
        Some(result) => result,
        // SAFETY: the caller passes a live queue, as C requires.
        None => unsafe { advance(cq, world, &mut state) },
    };
    state.open = result == 0;
    state.at_end = false;
    result
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller passes a live queue, as C requires.
    let (world, mut state) = unsafe { Cq::of(cq.cast()) };
    world.check(state.open, "ibv_next_poll without an open poll");
    world.check(!state.at_end, "ibv_next_poll behind the end");
    let call = world.next_polls.fetch_add(1, Relaxed);
    let result = match world.lies.next_poll {
        Some((from, result)) if call >= from => {
            state.current = None;
            result
        }
        // SAFETY: the caller passes a live queue, as C requires.
        _ => unsafe { advance(cq, world, &mut state) },
    };
    state.at_end = result != 0;
    result
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller passes a live queue, as C requires.
    let (world, mut state) = unsafe { Cq::of(cq.cast()) };
    world.check(state.open, "ibv_end_poll without an open poll");
    if world.lies.softroce_bug && state.at_end {
        // The consumer index is one too high: the next completion is lost, and reads as zero.
        state.pending.push_back(ibv_wc::default());
    }
    state.open = false;
    state.current = None;
}

macro_rules! readers {
    ($($name:ident -> $ty:ty { |$wc:ident| $value:expr })*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: the caller passes a live queue, as C requires.
            let (world, state) = unsafe { Cq::of(cq.cast()) };
            world.check(state.open, concat!("ibv_wc_", stringify!($name), " without an open poll"));
            world.check(state.current.is_some(), concat!("ibv_wc_", stringify!($name), " without a completion"));
            let $wc = state.current.unwrap_or_default();
            $value
        }
    )*};
}

readers! {
    read_opcode -> ibv_wc_opcode { |wc| wc.opcode }
    read_vendor_err -> u32 { |wc| wc.vendor_err }
    read_wc_flags -> c_uint { |wc| wc.wc_flags }
    read_byte_len -> u32 { |wc| wc.byte_len }
    // SAFETY: both members of the union are 32 bits for which all values are valid.
    read_imm_data -> __be32 { |wc| unsafe { wc.__bindgen_anon_1.imm_data } }
    read_qp_num -> u32 { |wc| wc.qp_num }
    read_src_qp -> u32 { |wc| wc.src_qp }
    read_slid -> u32 { |wc| u32::from(wc.slid) }
    read_sl -> u8 { |wc| wc.sl }
    read_dlid_path_bits -> u8 { |wc| wc.dlid_path_bits }
    read_completion_ts -> u64 { |wc| wc.wr_id + 1000 }
    read_completion_wallclock_ns -> u64 { |wc| wc.wr_id + 2000 }
    read_cvlan -> u16 { |wc| wc.wr_id as u16 + 3000 }
    read_flow_tag -> u32 { |wc| wc.wr_id as u32 + 4000 }
}

unsafe extern "C" fn read_tm_info(cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: the caller passes a live queue and a valid pointer, as C requires.
    unsafe {
        let (world, state) = Cq::of(cq.cast());
        world.check(state.current.is_some(), "ibv_wc_read_tm_info without a completion");
        info.write(ibv_wc_tm_info { tag: u64::MAX, priv_: 5000 });
    }
}
