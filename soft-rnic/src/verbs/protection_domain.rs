//! Protection domains.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::context::context_of;
use super::{admit, failure, null, number};
use crate::objects::c_object::CObject;
use crate::objects::protection_domain::Pd;

type PdObject = CObject<ibv_pd, Arc<Pd>>;

/// The domain of a pointer.
///
/// # Safety
///
/// - `pd` is live while the reference is used.
#[inline]
pub(crate) unsafe fn pd_of<'a>(pd: *mut ibv_pd) -> &'a Arc<Pd> {
    // SAFETY: every domain of this crate is such an object.
    unsafe { PdObject::state(pd) }
}

/// Makes the C part.
pub(super) fn enter(context: *mut ibv_context, pd: Arc<Pd>) -> *mut ibv_pd {
    PdObject::create(ibv_pd { context, handle: pd.number() }, pd)
}

pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's context is open.
    let state = unsafe { context_of(context) };
    admit!(state, AllocPd, null);
    match Pd::new(&state) {
        Ok(pd) => enter(context, pd),
        Err(error) => null(error),
    }
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's domain is live.
    let state = unsafe { pd_of(pd) };
    admit!(state.context(), DeallocPd, failure);
    if let Err(error) = state.deallocate() {
        return number(Err(error));
    }
    // SAFETY: no one uses the object after `ibv_dealloc_pd`, by the contract of that function, and
    // it came from `create` of the same type.
    drop(unsafe { PdObject::destroy(pd) });
    0
}

/// The domain of this number that was allocated in the context, or in one that shares its command descriptor.
pub(super) unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    // SAFETY: the caller's context is open.
    let state = unsafe { context_of(context) };
    admit!(state, ImportPd, null);
    match state.check_process().and_then(|()| state.find_domain(handle).ok_or(libc::ENOENT)) {
        Ok(pd) => enter(context, pd),
        Err(error) => null(error),
    }
}

/// The pointer goes, the domain stays.
pub(super) unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: no one uses the object after `ibv_unimport_pd`, by the contract of that function, and
    // it came from `create` of the same type.
    drop(unsafe { PdObject::destroy(pd) });
}
