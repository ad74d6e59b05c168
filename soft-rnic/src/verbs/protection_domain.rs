//! Protection domains.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::context::context_of;
use super::{admit, failure, null, number};
use crate::objects::held::Used;
use crate::objects::object::Object;
use crate::objects::protection_domain::Pd;

type PdObject = Object<ibv_pd, Arc<Pd>>;

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

pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's context is open.
    let state = unsafe { context_of(context) };
    admit!(state, AllocPd, null);
    match Pd::new(&state) {
        Ok(pd) => PdObject::create(ibv_pd { context, handle: pd.number() }, pd),
        Err(error) => null(error),
    }
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's domain is live.
    let state = unsafe { pd_of(pd) };
    admit!(state.context(), DeallocPd, failure);
    if state.users().is_used() {
        return number(Err(libc::EBUSY));
    }
    // SAFETY: the caller gives it up.
    drop(unsafe { PdObject::destroy(pd) });
    0
}
