//! The made-up library `libacme`: its functions, in Rust, over the software device.
//!
//! A vendor's library drives a device. This one gives the work to soft-rnic's functions, and keeps
//! for each pair what soft-rnic does not know. Of the two software devices, `soft0` is Acme's.

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use acme_direct::{ACME_CAP_SIGNAL, ACME_QP_SIGNAL, Acme, acme_device_attr, acme_qp_ex, acme_qp_init_attr};
use sideway::Provider;
use sideway::sys::types::{
    ibv_context, ibv_qp, ibv_qp_create_send_ops_flags as Operations, ibv_qp_ex, ibv_qp_init_attr_ex,
    ibv_qp_type,
};
use sideway::sys::{Verbs, verbs};

/// The highest pace in Mbit/s.
pub(crate) const MAX_PACE: u32 = 100_000;

/// What the library keeps for a pair. A C library would store it behind its `ibv_qp_ex`.
#[repr(C)]
struct AcmePair {
    /// First, so that a pointer to it is one to the whole.
    acme: acme_qp_ex,
    qp: *mut ibv_qp_ex,
    pace_mbps: u32,
    serial: u64,
}

/// A pair's data, made by `Box::into_raw`.
struct Kept(*mut AcmePair);

// SAFETY: the data is read by the thread that posts to the pair, or under the lock of `PAIRS`, and is
// never written.
unsafe impl Send for Kept {}

/// The pairs, by the address of their `ibv_qp`.
static PAIRS: Mutex<Option<HashMap<usize, Kept>>> = Mutex::new(None);

fn with_pairs<R>(call: impl FnOnce(&mut HashMap<usize, Kept>) -> R) -> R {
    call(PAIRS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// The serial number of a pair, which no later pair has. (Addresses are used again.)
pub(crate) fn serial(qp: *mut ibv_qp) -> Option<u64> {
    // SAFETY: data in the table is alive.
    with_pairs(|pairs| pairs.get(&qp.addr()).map(|pair| unsafe { (*pair.0).serial }))
}

/// Whether the library keeps the data of the pair with this serial number.
pub(crate) fn is_kept(serial: u64) -> bool {
    // SAFETY: data in the table is alive.
    with_pairs(|pairs| pairs.values().any(|pair| unsafe { (*pair.0).serial } == serial))
}

fn soft() -> &'static Verbs {
    sideway::soft::provider().verbs()
}

fn fail(error: c_int) -> c_int {
    // SAFETY: the location is this thread's errno.
    unsafe { *libc::__errno_location() = error };
    error
}

/// Whether the device of an open context is Acme's.
///
/// # Safety
///
/// The context is open.
unsafe fn is_acmes(context: *mut ibv_context) -> bool {
    // SAFETY: the caller guarantees an open context, whose device has a name.
    let name = unsafe { CStr::from_ptr((soft().ibv_get_device_name)((*context).device)) };
    name == c"soft0"
}

unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    attr: *mut acme_device_attr,
    size: u32,
) -> c_int {
    // SAFETY: the caller passes an open context.
    if !unsafe { is_acmes(context) } {
        return fail(libc::EOPNOTSUPP);
    }
    if (size as usize) < size_of::<acme_device_attr>() {
        return fail(libc::EINVAL);
    }
    let answer = acme_device_attr { max_pace_mbps: MAX_PACE, caps: ACME_CAP_SIGNAL };
    // SAFETY: the caller's struct is as long as it says.
    unsafe { attr.write(answer) };
    0
}

unsafe extern "C" fn create_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    own: *mut acme_qp_init_attr,
    size: u32,
) -> *mut ibv_qp {
    if (size as usize) < size_of::<acme_qp_init_attr>() {
        fail(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: the caller's structs are initialised, and the second is as long as it says.
    let (mut inside, acme_qp_init_attr { pace_mbps, flags }) = unsafe { (*attr, *own) };
    if pace_mbps > MAX_PACE || flags & !ACME_QP_SIGNAL != 0 {
        fail(libc::EINVAL);
        return ptr::null_mut();
    }
    let mut acme = acme_qp_ex::default();
    if flags & ACME_QP_SIGNAL != 0 {
        if inside.qp_type != ibv_qp_type::IBV_QPT_RC {
            fail(libc::EOPNOTSUPP);
            return ptr::null_mut();
        }
        // A signal is an inline WRITE.
        inside.send_ops_flags |= u64::from(Operations::IBV_QP_EX_WITH_RDMA_WRITE.0);
        inside.cap.max_inline_data = inside.cap.max_inline_data.max(8);
        acme.wr_signal = Some(write_signal);
    }
    // SAFETY: the caller passes an open context of soft-rnic, and valid attributes of it.
    let qp = unsafe { verbs::ibv_create_qp_ex(soft(), context, &raw mut inside) };
    if qp.is_null() {
        return qp;
    }
    // SAFETY: the caller's struct is valid.
    unsafe { (*attr).cap = inside.cap };
    let to_ex = soft().ibv_qp_to_qp_ex().expect("soft-rnic has extended pairs");
    static MADE: AtomicU64 = AtomicU64::new(0);
    let serial = MADE.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the pair was made just now, as an extended one.
    let pair = AcmePair { acme, qp: unsafe { to_ex(qp) }, pace_mbps, serial };
    with_pairs(|pairs| pairs.insert(qp.addr(), Kept(Box::into_raw(Box::new(pair)))));
    qp
}

/// Replaces `ibv_destroy_qp` of libibverbs.
unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // Before the pair is destroyed, because then another thread may make one at the same address.
    let kept = with_pairs(|pairs| pairs.remove(&qp.addr()));
    // SAFETY: the caller passes a pair that it will not use any more.
    let result = unsafe { (soft().ibv_destroy_qp)(qp) };
    match kept {
        Some(kept) if result != 0 => drop(with_pairs(|pairs| pairs.insert(qp.addr(), kept))),
        // SAFETY: `create_qp` made the box, and the table had it once.
        Some(Kept(pair)) => drop(unsafe { Box::from_raw(pair) }),
        None => {}
    }
    result
}

unsafe extern "C" fn qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut acme_qp_ex {
    // An `ibv_qp_ex` begins with its `ibv_qp`.
    with_pairs(|pairs| pairs.get(&qp.addr()).map_or(ptr::null_mut(), |pair| pair.0.cast()))
}

unsafe extern "C" fn query_qp_pace(qp: *mut ibv_qp, pace_mbps: *mut u32) -> c_int {
    // SAFETY: data in the table is alive.
    match with_pairs(|pairs| pairs.get(&qp.addr()).map(|pair| unsafe { (*pair.0).pace_mbps })) {
        Some(pace) => {
            // SAFETY: the caller's pointer is valid for the result.
            unsafe { pace_mbps.write(pace) };
            0
        }
        None => fail(libc::EINVAL),
    }
}

unsafe extern "C" fn write_signal(qp: *mut acme_qp_ex, rkey: u32, remote_addr: u64, value: u64) {
    // SAFETY: `qp` is the first field of a `AcmePair`, which lives as long as the pair.
    let qp = unsafe { (*qp.cast::<AcmePair>()).qp };
    let mut bytes = value.to_ne_bytes();
    // SAFETY: the caller has opened a list. The pair was made with WRITE and 8 bytes of inline data,
    // which are copied.
    unsafe {
        verbs::ibv_wr_rdma_write(qp, rkey, remote_addr);
        verbs::ibv_wr_set_inline_data(qp, bytes.as_mut_ptr().cast(), bytes.len());
    }
}

/// The library as of its release 2.
pub(crate) fn table() -> Acme {
    Acme {
        acme_query_device: query_device,
        acme_create_qp: create_qp,
        acme_qp_ex_from_ibv_qp_ex: qp_ex_from_ibv_qp_ex,
        acme_query_qp_pace: Some(query_qp_pace),
    }
}

/// The software devices, with this library.
pub(crate) fn provider(library: Acme) -> Provider {
    let verbs = Verbs { ibv_destroy_qp: destroy_qp, ..*soft() };
    // SAFETY: the functions are soft-rnic's, and one that calls soft-rnic's.
    let soft = unsafe { Provider::from_tables("soft, with Acme", verbs, None) };
    // SAFETY: the functions above keep the contracts of the header, and work on soft-rnic's objects.
    unsafe { soft.with_library(library) }
}
