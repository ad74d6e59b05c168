//! Verbs of protection domains.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::context::context_of;
use super::{admit, failure, null, number};
use crate::objects::c_object::CObject;
use crate::objects::protection_domain::Pd;

type PdObject = CObject<ibv_pd, Arc<Pd>>;

/// The protection domain of a pointer.
///
/// # Safety
///
/// - `pd` is live while the reference is used.
#[inline]
pub(crate) unsafe fn pd_of<'a>(pd: *mut ibv_pd) -> &'a Arc<Pd> {
    // SAFETY: every protection domain of this crate is a `PdObject`, and the caller guarantees that
    // it is live.
    unsafe { PdObject::state(pd) }
}

/// Creates the C part.
pub(super) fn enter(context: *mut ibv_context, pd: Arc<Pd>) -> *mut ibv_pd {
    PdObject::create(ibv_pd { context, handle: pd.number() }, pd)
}

pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: `ibv_alloc_pd` requires an open context.
    let state = unsafe { context_of(context) };
    admit!(state, AllocPd, null);
    match Pd::new(&state) {
        Ok(pd) => enter(context, pd),
        Err(error) => null(error),
    }
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: `ibv_dealloc_pd` requires a live protection domain.
    let state = unsafe { pd_of(pd) };
    admit!(state.context(), DeallocPd, failure);
    if let Err(error) = state.deallocate() {
        return number(Err(error));
    }
    // SAFETY: `create` of the same type made the object, and `ibv_dealloc_pd` forbids any later
    // use.
    drop(unsafe { PdObject::destroy(pd) });
    0
}

/// Imports the domain with this number, if the context allocated it or shares the command
/// descriptor of the context that did.
pub(super) unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    // SAFETY: `ibv_import_pd` requires an open context.
    let state = unsafe { context_of(context) };
    admit!(state, ImportPd, null);
    match state.check_process().and_then(|()| state.find_domain(handle).ok_or(libc::ENOENT)) {
        Ok(pd) => enter(context, pd),
        Err(error) => null(error),
    }
}

/// Frees the pointer. The domain stays.
pub(super) unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: `create` of the same type made the object, and `ibv_unimport_pd` forbids any later
    // use.
    drop(unsafe { PdObject::destroy(pd) });
}
