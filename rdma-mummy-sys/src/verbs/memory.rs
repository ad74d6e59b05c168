//! Memory regions, memory windows and device memory.

use core::ffi::{c_int, c_uint, c_void};

use crate::Verbs;
use crate::table::Unsupported;
use crate::types::*;

/// Whether a registration needs [`Verbs::ibv_reg_mr_iova2`], the only function for optional flags.
const fn is_optional(access: c_int) -> bool {
    access as u32 & IBV_ACCESS_OPTIONAL_RANGE.0 != 0
}

/// Registers memory at its own address.
///
/// With flags of [`IBV_ACCESS_OPTIONAL_RANGE`], it fails with `EOPNOTSUPP` before rdma-core 28.
///
/// # Safety
///
/// - `pd` is a live protection domain of `lib`.
/// - `addr` is valid for `length` bytes, until the region is deregistered, for all accesses that
///   `access` permits to the device.
#[inline]
pub unsafe fn ibv_reg_mr(
    lib: &Verbs,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    if !is_optional(access) {
        // SAFETY: the caller guarantees (`# Safety`) that `pd` is a live protection domain of
        // `lib`; `addr` is valid for `length` bytes, until the region is deregistered, for all that
        // `access` lets the device do.
        return unsafe { (lib.ibv_reg_mr)(pd, addr, length, access) };
    }
    match lib.ibv_reg_mr_iova2 {
        // SAFETY: the caller guarantees (`# Safety`) that `pd` is a live protection domain of
        // `lib`; `addr` is valid for `length` bytes, until the region is deregistered, for all that
        // `access` lets the device do.
        Some(register) => unsafe { register(pd, addr, length, addr.addr() as u64, access as c_uint) },
        None => Unsupported::unsupported(0),
    }
}

/// Registers memory at an address that the caller chooses, and by which peers access it.
///
/// Without flags of [`IBV_ACCESS_OPTIONAL_RANGE`] it works with every library if `iova` is `addr`,
/// else since rdma-core 25. With such flags it works since rdma-core 28. Otherwise it fails with
/// `EOPNOTSUPP`.
///
/// # Safety
///
/// - `pd` is a live protection domain of `lib`.
/// - `addr` is valid for `length` bytes, until the region is deregistered, for all accesses that
///   `access` permits to the device.
#[inline]
pub unsafe fn ibv_reg_mr_iova(
    lib: &Verbs,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    if is_optional(access) {
        return match lib.ibv_reg_mr_iova2 {
            // SAFETY: the caller guarantees (`# Safety`) that `pd` is a live protection domain of
            // `lib`; `addr` is valid for `length` bytes, until the region is deregistered, for all
            // that `access` lets the device do.
            Some(register) => unsafe { register(pd, addr, length, iova, access as c_uint) },
            None => Unsupported::unsupported(0),
        };
    }
    match lib.ibv_reg_mr_iova {
        // SAFETY: the caller guarantees (`# Safety`) that `pd` is a live protection domain of
        // `lib`; `addr` is valid for `length` bytes, until the region is deregistered, for all that
        // `access` lets the device do.
        Some(register) => unsafe { register(pd, addr, length, iova, access) },
        // SAFETY: the caller guarantees (`# Safety`) that `pd` is a live protection domain of
        // `lib`. Until the region is deregistered, `addr` is valid for `length` bytes, for all that
        // `access` lets the device do. Plain registration uses the memory's own address.
        None if iova == addr.addr() as u64 => unsafe { (lib.ibv_reg_mr)(pd, addr, length, access) },
        None => Unsupported::unsupported(0),
    }
}

/// Allocates a memory window.
///
/// Fails with `EOPNOTSUPP` if the device has none.
///
/// # Safety
///
/// - `pd` is a live protection domain.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the domain is live (`# Safety`), and with it its context.
    match unsafe { field!(field!(pd, ibv_pd, context), ibv_context, ops.alloc_mw) } {
        // SAFETY: the caller guarantees (`# Safety`) that `pd` is a live protection domain.
        Some(operation) => unsafe { operation(pd, type_) },
        None => Unsupported::unsupported(0),
    }
}

/// Frees a memory window: 0 or an error number.
///
/// # Safety
///
/// - `mw` is a live memory window, and not used afterwards if this succeeds.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the window is live (`# Safety`), and with it its context.
    match unsafe { field!(field!(mw, ibv_mw, context), ibv_context, ops.dealloc_mw) } {
        // SAFETY: the caller guarantees (`# Safety`) that `mw` is a live memory window, and not
        // used afterwards if this succeeds.
        Some(operation) => unsafe { operation(mw) },
        None => Unsupported::unsupported(libc::EOPNOTSUPP),
    }
}

/// Binds a memory window of type 1 to a range of a region, or unbinds it: 0 or an error number.
///
/// `EINVAL` means that the window has another type, or that an unbinding has a range. `EPERM` means
/// that window and region belong to different protection domains.
///
/// # Safety
///
/// - `qp` and `mw` are live and of one device; `mw_bind` is valid, and its region is null or live.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the request is valid (`# Safety`).
    let info = unsafe { (*mw_bind).bind_info };
    // SAFETY: the window is live (`# Safety`).
    if unsafe { field!(mw, ibv_mw, type_) } != ibv_mw_type::IBV_MW_TYPE_1 {
        return libc::EINVAL;
    }
    if info.mr.is_null() {
        if info.addr != 0 || info.length != 0 {
            return libc::EINVAL;
        }
    // SAFETY: window and region are live (`# Safety`).
    } else if unsafe { field!(mw, ibv_mw, pd) != field!(info.mr, ibv_mr, pd) } {
        return libc::EPERM;
    }
    // SAFETY: the window is live (`# Safety`), and with it its context.
    match unsafe { field!(field!(mw, ibv_mw, context), ibv_context, ops.bind_mw) } {
        // SAFETY: the caller guarantees (`# Safety`) that `qp` and `mw` are live and of one device.
        // `mw_bind` is valid, and its region is null or live.
        Some(operation) => unsafe { operation(qp, mw, mw_bind) },
        None => Unsupported::unsupported(libc::EOPNOTSUPP),
    }
}

/// The next key of a memory window of type 2: the program owns its lowest byte, which is
/// incremented.
#[inline]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    const TAG: u32 = 0xff;
    (rkey & !TAG) | (rkey.wrapping_add(1) & TAG)
}

context_functions! {
    /// Advises the device about ranges of memory regions: 0 or an error number.
    fn ibv_advise_mr(
        pd: *mut ibv_pd,
        advice: ibv_advise_mr_advice,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sge: u32,
    ) -> c_int = advise_mr of pd.context;

    /// Allocates a region that discards data written to it and reads as zero.
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr = alloc_null_mr of pd.context;

    /// Allocates memory on the device.
    fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm
        = alloc_dm of context;

    /// Frees memory on the device: 0 or an error number.
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int = free_dm of dm.context;

    /// Registers memory on the device.
    fn ibv_reg_dm_mr(
        pd: *mut ibv_pd,
        dm: *mut ibv_dm,
        dm_offset: u64,
        length: usize,
        access: c_uint,
    ) -> *mut ibv_mr = reg_dm_mr of pd.context;
}

/// Copies into memory on the device: 0 or an error number.
///
/// # Safety
///
/// - `dm` is live, and its `memcpy_to_dm` is not null.
/// - `host_addr` is readable for `length` bytes.
#[inline]
pub unsafe fn ibv_memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `dm` is live, and its `memcpy_to_dm` is not
    // null; `host_addr` is readable for `length` bytes.
    unsafe { operation!(dm, ibv_dm, memcpy_to_dm)(dm, dm_offset, host_addr, length) }
}

/// Copies out of memory on the device: 0 or an error number.
///
/// # Safety
///
/// - `dm` is live, and its `memcpy_from_dm` is not null.
/// - `host_addr` is writable for `length` bytes.
#[inline]
pub unsafe fn ibv_memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `dm` is live, and its `memcpy_from_dm` is not
    // null; `host_addr` is writable for `length` bytes.
    unsafe { operation!(dm, ibv_dm, memcpy_from_dm)(host_addr, dm, dm_offset, length) }
}
