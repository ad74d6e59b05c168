//! Thread domains, and the parent domains that have them.

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

/// The operations of a context.
pub(super) fn install(verbs: &mut verbs_context) {
    verbs.alloc_td = Some(alloc_td);
    verbs.dealloc_td = Some(dealloc_td);
    verbs.alloc_parent_domain = Some(alloc_parent_domain);
}

unsafe extern "C" fn alloc_td(context: *mut ibv_context, init: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: the caller's context is open.
    let state = unsafe { context_of(context) };
    admit!(state, AllocTd, null);
    // SAFETY: the caller gives valid attributes.
    if init.is_null() || unsafe { (*init).comp_mask } != 0 {
        return null(libc::EINVAL);
    }
    match Td::new(&state) {
        Ok(td) => TdObject::create(ibv_td { context }, td),
        Err(error) => null(error),
    }
}

unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller's domain is live.
    let state = unsafe { TdObject::state(td) };
    admit!(state.context(), DeallocTd, failure);
    if state.users().is_used() {
        return number(Err(libc::EBUSY));
    }
    // SAFETY: no one uses the object after `ibv_dealloc_td`, by the contract of that function, and
    // it came from `create` of the same type.
    drop(unsafe { TdObject::destroy(td) });
    0
}

/// Allocators are refused: queues lie in the segment that peers map, where no program can put them. A context for
/// allocators is accepted, as it means nothing without them.
unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    use ibv_parent_domain_init_attr_mask as M;
    // SAFETY: the caller's context is open.
    let state = unsafe { context_of(context) };
    admit!(state, AllocPd, null);
    if attr.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's attributes are valid.
    let attr = unsafe { attr.read() };
    let allocators = M::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0;
    let known = allocators | M::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT.0;
    if attr.pd.is_null() || attr.comp_mask & !known != 0 {
        return null(libc::EINVAL);
    }
    if attr.comp_mask & allocators != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's domains are live.
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
