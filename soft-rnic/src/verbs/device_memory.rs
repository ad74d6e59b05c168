//! Verbs of device memory.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::context::context_of;
use super::{admit, failure, memory_region, null, number};
use crate::objects::c_object::CObject;
use crate::objects::device_memory::Dm;
use crate::objects::memory_region::Mr;

type DmObject = CObject<ibv_dm, Arc<Dm>>;

/// Sets the operations in the table of a context.
pub(super) fn install(verbs: &mut verbs_context) {
    verbs.alloc_dm = Some(alloc_dm);
    verbs.free_dm = Some(free_dm);
    verbs.reg_dm_mr = Some(reg_dm_mr);
}

fn enter(context: *mut ibv_context, dm: Arc<Dm>) -> *mut ibv_dm {
    let c = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: ibv_dm_mask::IBV_DM_MASK_HANDLE.0,
        handle: dm.number(),
    };
    DmObject::create(c, dm)
}

unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    // SAFETY: `ibv_alloc_dm` requires an open context.
    let state = unsafe { context_of(context) };
    admit!(state, AllocDm, null);
    if attr.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: `ibv_alloc_dm` requires valid attributes.
    let attr = unsafe { attr.read() };
    if attr.comp_mask != 0 {
        return null(libc::EINVAL);
    }
    match Dm::allocate(&state, attr.length, attr.log_align_req) {
        Ok(dm) => enter(context, dm),
        Err(error) => null(error),
    }
}

unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: `ibv_free_dm` requires live device memory.
    let state = unsafe { DmObject::state(dm) };
    admit!(state.context(), FreeDm, failure);
    let result = state.free();
    if result.is_ok() {
        // SAFETY: `create` of the same type made the object, and `ibv_free_dm` forbids any later
        // use.
        drop(unsafe { DmObject::destroy(dm) });
    }
    number(result)
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    // SAFETY: `ibv_memcpy_to_dm` requires live device memory.
    let state = unsafe { DmObject::state(dm) };
    admit!(state.context(), MemcpyDm, failure);
    // SAFETY: `memcpy_to_dm` requires `length` readable bytes at `from`.
    number(unsafe { state.write(offset, from.cast(), length) })
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    // SAFETY: `ibv_memcpy_from_dm` requires live device memory.
    let state = unsafe { DmObject::state(dm) };
    admit!(state.context(), MemcpyDm, failure);
    // SAFETY: `memcpy_from_dm` requires `length` writable bytes at `to`.
    number(unsafe { state.read(to.cast(), offset, length) })
}

/// The memory and the domain must belong to contexts that share a command descriptor.
unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: `ibv_reg_dm_mr` requires live device memory.
    let state = unsafe { DmObject::state(dm) };
    // SAFETY: `ibv_reg_dm_mr` requires a live protection domain.
    unsafe {
        memory_region::create(pd, ptr::null_mut(), length, |pd| {
            if !Arc::ptr_eq(pd.context(), state.context()) {
                return Err(libc::EINVAL);
            }
            Mr::register_device_memory(pd, state, offset, length, access)
        })
    }
}

/// Imports the device memory with this number, if the context allocated it or shares the command
/// descriptor of the context that did.
pub(super) unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    // SAFETY: `ibv_import_dm` requires an open context.
    let state = unsafe { context_of(context) };
    admit!(state, ImportDm, null);
    match state.check_process().and_then(|()| state.find_device_memory(handle).ok_or(libc::ENOENT)) {
        Ok(dm) => enter(context, dm),
        Err(error) => null(error),
    }
}

/// Frees the pointer. The memory stays.
pub(super) unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: `create` of the same type made the object, and `ibv_unimport_dm` forbids any later
    // use.
    drop(unsafe { DmObject::destroy(dm) });
}
