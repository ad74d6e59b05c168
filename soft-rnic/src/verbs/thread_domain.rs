//! Verbs of thread domains and parent domains.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::context::context_of;
use super::protection_domain::{enter, pd_of};
use super::{admit, failure, null, number};
use crate::objects::c_object::CObject;
use crate::objects::protection_domain::Pd;
use crate::objects::thread_domain::Td;
use crate::objects::use_ref::CountsUses;

type TdObject = CObject<ibv_td, Arc<Td>>;

/// Sets the operations in the table of a context.
pub(super) fn install(verbs: &mut verbs_context) {
    verbs.alloc_td = Some(alloc_td);
    verbs.dealloc_td = Some(dealloc_td);
    verbs.alloc_parent_domain = Some(alloc_parent_domain);
}

unsafe extern "C" fn alloc_td(context: *mut ibv_context, init: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: `ibv_alloc_td` requires an open context.
    let state = unsafe { context_of(context) };
    admit!(state, AllocTd, null);
    // SAFETY: `ibv_alloc_td` requires valid attributes; null ones were refused before.
    if init.is_null() || unsafe { (*init).comp_mask } != 0 {
        return null(libc::EINVAL);
    }
    match Td::new(&state) {
        Ok(td) => TdObject::create(ibv_td { context }, td),
        Err(error) => null(error),
    }
}

unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: `ibv_dealloc_td` requires a live thread domain.
    let state = unsafe { TdObject::state(td) };
    admit!(state.context(), DeallocTd, failure);
    if state.users().is_used() {
        return number(Err(libc::EBUSY));
    }
    // SAFETY: `create` of the same type made the object, and `ibv_dealloc_td` forbids any later
    // use.
    drop(unsafe { TdObject::destroy(td) });
    0
}

/// Refuses allocators, because queues are in the segment that peers map, where no program can place
/// them. Accepts a context for allocators, which means nothing without them.
unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    use ibv_parent_domain_init_attr_mask as M;
    // SAFETY: `ibv_alloc_parent_domain` requires an open context.
    let state = unsafe { context_of(context) };
    admit!(state, AllocPd, null);
    if attr.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: `ibv_alloc_parent_domain` requires valid attributes.
    let attr = unsafe { attr.read() };
    let allocators = M::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0;
    let known = allocators | M::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT.0;
    if attr.pd.is_null() || attr.comp_mask & !known != 0 {
        return null(libc::EINVAL);
    }
    if attr.comp_mask & allocators != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: `ibv_alloc_parent_domain` requires a live protection domain, and a null or live
    // thread domain.
    let (pd, td) = unsafe {
        let td = (!attr.td.is_null()).then(|| TdObject::state(attr.td));
        (pd_of(attr.pd), td)
    };
    let foreign = |other: &Arc<_>| !Arc::ptr_eq(other, &state);
    if foreign(pd.context()) || td.is_some_and(|td| foreign(td.context())) {
        return null(libc::EINVAL);
    }
    match Pd::extend(pd, td) {
        Ok(parent) => enter(context, parent),
        Err(error) => null(error),
    }
}
