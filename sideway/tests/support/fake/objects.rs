//! Fake address handles and shared receive queues.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sideway::sys::Verbs;
use sideway::sys::types::*;

use super::completion::Cq;
use super::device::world_of;
use super::{FakeWorld, refuses};

/// The existing objects.
#[derive(Debug, Default)]
pub struct Objects {
    /// The addresses of the live address handles.
    handles: Mutex<Vec<usize>>,
    /// The destination of the last datagram: queue pair number and Q_Key.
    pub last_datagram: Mutex<Option<(u32, u32)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeWorld {
    /// Records a datagram that is given to the device.
    pub(super) fn goes_to(&self, ah: usize, remote_qpn: u32, remote_qkey: u32) {
        self.check(
            lock(&self.objects.handles).contains(&ah),
            "a datagram goes by an address handle that lives",
        );
        *lock(&self.objects.last_datagram) = Some((remote_qpn, remote_qkey));
    }
}

pub(super) fn add_to(table: Verbs) -> Verbs {
    Verbs {
        ibv_create_ah: create_ah,
        ibv_init_ah_from_wc: init_ah_from_wc,
        ibv_destroy_ah: destroy_ah,
        ibv_create_srq: create_srq,
        ibv_modify_srq: modify_srq,
        ibv_query_srq: query_srq,
        ibv_destroy_srq: destroy_srq,
        ..table
    }
}

unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller passes a live domain and valid attributes, as C requires.
    let (context, world, port) = unsafe { ((*pd).context, world_of((*pd).context), (*attr).port_num) };
    if let Some(null) = refuses(world.lies.create_ah) {
        return null;
    }
    world.born();
    let ah = Box::into_raw(Box::new(ibv_ah { context, pd, handle: u32::from(port) }));
    world.uses(pd, ah);
    lock(&world.objects.handles).push(ah.addr());
    ah
}

unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller passes an open context and valid pointers, as C requires.
    unsafe {
        let world = world_of(context);
        *attr = ibv_ah_attr { port_num: port, dlid: (*wc).slid, sl: (*wc).sl, ..ibv_ah_attr::default() };
        if (*wc).wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0 {
            (*attr).is_global = 1;
            (*attr).grh.dgid = (*grh).sgid;
        }
        world.lies.create_ah
    }
}

unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller passes a live handle, as C requires.
    let world = unsafe { world_of((*ah).context) };
    if !world.dies("ah") {
        return world.lies.destroy;
    }
    world.goes(ah, "address handle");
    let mut handles = lock(&world.objects.handles);
    let place = handles.iter().position(|of| *of == ah.addr());
    world.check(place.is_some(), "an address handle is destroyed once");
    if let Some(place) = place {
        handles.swap_remove(place);
    }
    // SAFETY: the handle was boxed, and its owner destroys it once.
    drop(unsafe { Box::from_raw(ah) });
    0
}

/// A shared receive queue.
#[repr(C)]
pub(super) struct Srq {
    srq: ibv_srq,
    attr: Mutex<ibv_srq_attr>,
    /// In an XRC domain: the completion queue for its receives, and its number.
    pub(super) completes_at: *mut ibv_cq,
    pub(super) number: u32,
}

unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the caller passes a live domain and valid attributes, as C requires.
    unsafe {
        let world = world_of((*pd).context);
        new_srq(&world, pd, &mut *init).cast()
    }
}

/// # Safety
///
/// The domain must be alive.
pub(super) unsafe fn new_srq(world: &FakeWorld, pd: *mut ibv_pd, init: &mut ibv_srq_init_attr) -> *mut Srq {
    if let Some(null) = refuses(world.lies.create_srq) {
        return null;
    }
    if let Some(granted) = world.lies.granted {
        init.attr.max_wr = granted;
        init.attr.max_sge = granted;
    }
    world.born();
    // SAFETY: the caller passes a live domain.
    let (context, srq_context) = (unsafe { (*pd).context }, init.srq_context);
    world.check(!srq_context.is_null(), "a shared receive queue has a number");
    let srq = ibv_srq { context, srq_context, pd, ..ibv_srq::default() };
    let attr = Mutex::new(init.attr);
    let srq = Box::into_raw(Box::new(Srq { srq, attr, completes_at: ptr::null_mut(), number: 0 }));
    world.uses(pd, srq);
    srq
}

/// # Safety
///
/// The queue must be alive.
unsafe fn attributes<'a>(srq: *mut ibv_srq) -> MutexGuard<'a, ibv_srq_attr> {
    // SAFETY: every queue of this provider is an `Srq`, and the caller passes a live one.
    lock(unsafe { &(*srq.cast::<Srq>()).attr })
}

unsafe extern "C" fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: the caller passes a live queue and valid attributes, as C requires.
    unsafe {
        let world = world_of((*srq).context);
        let mask = ibv_srq_attr_mask(mask as u32);
        world.check(
            mask == ibv_srq_attr_mask::IBV_SRQ_LIMIT || mask == ibv_srq_attr_mask::IBV_SRQ_MAX_WR,
            "one attribute is modified at a time",
        );
        if world.lies.modify_srq != 0 {
            return world.lies.modify_srq;
        }
        match mask {
            ibv_srq_attr_mask::IBV_SRQ_LIMIT => attributes(srq).srq_limit = (*attr).srq_limit,
            _ => attributes(srq).max_wr = (*attr).max_wr,
        }
    }
    0
}

unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller passes a live queue and a valid pointer, as C requires.
    unsafe {
        attr.write(*attributes(srq));
        world_of((*srq).context).lies.modify_srq
    }
}

unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller passes a live queue, as C requires.
    let world = unsafe { world_of((*srq).context) };
    if !world.dies("srq") {
        return world.lies.destroy;
    }
    world.goes(srq, "shared receive queue");
    // SAFETY: the queue was boxed, and its owner destroys it once; its completion queue is still
    // alive.
    unsafe {
        let srq = Box::from_raw(srq.cast::<Srq>());
        if !srq.completes_at.is_null() {
            Cq::of(srq.completes_at).1.remove_user();
        }
    }
    0
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue, as C requires.
    let (world, cap) = unsafe { (world_of((*srq).context), *attributes(srq)) };
    world.check(!first.is_null(), "ibv_post_srq_recv without a request");
    let (mut request, mut count) = (first, 0);
    while !request.is_null() {
        if let Some((result, _)) = world.lies.post_recv {
            // SAFETY: the caller passes a valid pointer for the result, as C requires.
            unsafe { bad.write(request) };
            return result;
        }
        // SAFETY: the caller passes a valid list, as C requires.
        let wr = unsafe { *request };
        world.check(wr.num_sge >= 0 && wr.num_sge as u32 <= cap.max_sge, "too many entries");
        for n in 0..wr.num_sge as usize {
            // SAFETY: the request has `num_sge` entries, as C requires.
            let _ = unsafe { wr.sg_list.add(n).read() };
        }
        count += 1;
        request = wr.next;
    }
    world.check(count <= cap.max_wr, "more receives than the queue holds");
    world.received.fetch_add(u64::from(count), Relaxed);
    0
}
