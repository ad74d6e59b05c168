//! Device contexts: their extended operations and their queries.

use core::ffi::c_int;
use core::mem::{offset_of, size_of};
use core::ptr;

use crate::Verbs;
use crate::table::Unsupported;
use crate::types::*;

/// The value of `ibv_context::abi_compat` in a context that is part of a `verbs_context`.
const ABI_IS_EXTENDED: usize = usize::MAX;

/// The extended context whose last field is `ctx`, or null if the library has none.
///
/// If the library is older, the struct begins *after* the returned address. The result is a base
/// for offsets, not an address to read from; [`verbs_get_ctx_op!`](crate::verbs_get_ctx_op) reads
/// from it.
///
/// # Safety
///
/// - `ctx` is a live context of a loaded library.
#[inline]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the context is live (`# Safety`), and has this field in every release.
    if unsafe { field!(ctx, ibv_context, abi_compat) }.addr() != ABI_IS_EXTENDED {
        return ptr::null_mut();
    }
    ctx.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// The operation at `offset` of the extended context, if the context is long enough.
///
/// # Safety
///
/// - `ctx` is a live context of a loaded library.
/// - `offset` is the offset of the field that `of` names.
#[doc(hidden)]
#[inline(always)]
pub unsafe fn operation<F: Copy>(
    ctx: *mut ibv_context,
    offset: usize,
    of: fn(&verbs_context) -> &Option<F>,
) -> Option<F> {
    // SAFETY: the caller guarantees (`# Safety`) that `ctx` is a live context of a loaded library;
    // `offset` is that of the field which `of` names.
    let extended = unsafe { verbs_get_ctx(ctx) };
    if extended.is_null() {
        return None;
    }
    // SAFETY: the size lies right before the context in every release with extended contexts.
    let size = unsafe { field!(extended, verbs_context, sz) };
    // The struct ends where the context does, so that its size determines where it begins.
    if size < size_of::<verbs_context>() - offset {
        return None;
    }
    // SAFETY: the field lies within the size that the library reported.
    unsafe { crate::field::read(extended, offset, of) }
}

/// `verbs_get_ctx_op!(context, op)`: the operation `op` of the extended context, as an `Option` of
/// the function.
///
/// It is `None` if the library has no extended contexts, if its `verbs_context` is too short for
/// this operation, or if the driver leaves it empty. It expands to an unsafe call, so it needs an
/// unsafe block: the context must be live.
#[macro_export]
macro_rules! verbs_get_ctx_op {
    ($context:expr, $op:ident) => {
        $crate::verbs::operation(
            $context,
            ::core::mem::offset_of!($crate::types::verbs_context, $op),
            |context: &$crate::types::verbs_context| &context.$op,
        )
    };
}

/// Functions that only call an operation of the extended context.
macro_rules! context_functions {
    ($(
        $(#[doc = $doc:literal])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $op:ident of $object:ident$(.$field:ident)?;
    )*) => {$(
        $(#[doc = $doc])*
        /// Fails with `EOPNOTSUPP` if the context lacks the operation.
        #[doc = concat!("Calls `", stringify!($op), "` of the context.")]
        /// Fails with `EOPNOTSUPP` where there is none.
        ///
        /// # Safety
        ///
        #[doc = concat!("- `", stringify!($object), "` is a live object of a loaded library.")]
        /// - Every other pointer is valid for what the manual page says the function does with it.
        #[inline]
        pub unsafe fn $name($($arg: $ty),*) -> $ret {
            let context = context_functions!(@context $object $($field)?);
            // SAFETY: the object is live (`# Safety`), and with it its context.
            match unsafe { verbs_get_ctx_op!(context, $op) } {
                // SAFETY: the library provides this function for these arguments, which are valid
                // (`# Safety`).
                Some(operation) => unsafe { operation($($arg),*) },
                None => $crate::table::Unsupported::unsupported(libc::EOPNOTSUPP),
            }
        }
    )*};
    (@context $object:ident) => { $object };
    (@context $object:ident $field:ident) => {
        // SAFETY: the object is live (`# Safety`). It has the fields up to this one in every
        // release.
        unsafe { (*$object).$field }
    };
}

context_functions! {
    /// Reads the current values of the clocks that `values.comp_mask` names.
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        = query_rt_values of context;
}

/// The devices of this machine, as an array with a final null pointer.
///
/// # Safety
///
/// - `num_devices` is null or valid for writing.
#[inline]
pub unsafe fn ibv_get_device_list(lib: &Verbs, num_devices: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: the caller guarantees (`# Safety`) that `num_devices` is null or valid for writing.
    unsafe { (lib.ibv_get_device_list)(num_devices) }
}

/// The attributes of a device, including those that are newer than [`ibv_device_attr`].
///
/// If the context lacks the operation, or the operation is not implemented, the classic attributes
/// are queried and the rest is zero. An older library may leave the last fields of `attr`
/// unchanged: zero them before the call.
///
/// # Safety
///
/// - `context` is a live context of `lib`.
/// - `input` is null or points to a valid input.
/// - `attr` is valid for writing.
#[inline]
pub unsafe fn ibv_query_device_ex(
    lib: &Verbs,
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the input is valid, because it is not null (`# Safety`).
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the context is live (`# Safety`).
    if let Some(operation) = unsafe { verbs_get_ctx_op!(context, query_device_ex) } {
        // SAFETY: the pointers are valid (`# Safety`), and the size is the struct's.
        let ret = unsafe { operation(context, input, attr, size_of::<ibv_device_attr_ex>()) };
        if ret != libc::EOPNOTSUPP && ret != libc::ENOSYS {
            return ret;
        }
    }
    // SAFETY: `attr` is valid for writing and the context is live (`# Safety`).
    unsafe {
        attr.write_bytes(0, 1);
        (lib.ibv_query_device)(context, &raw mut (*attr).orig_attr)
    }
}

/// The attributes of a port.
///
/// A library without the extended query fills in the fields that it has, and the rest is zero.
///
/// # Safety
///
/// - `context` is a live context of `lib`.
/// - `port_attr` is valid for writing.
#[inline]
pub unsafe fn ibv_query_port(
    lib: &Verbs,
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the context is live (`# Safety`).
    match unsafe { verbs_get_ctx_op!(context, query_port) } {
        // SAFETY: the pointers are valid (`# Safety`), and the size is the struct's.
        Some(operation) => unsafe { operation(context, port_num, port_attr, size_of::<ibv_port_attr>()) },
        // SAFETY: the pointers are valid (`# Safety`). The exported function fills the beginning of
        // the struct, which was the whole struct in its time.
        None => unsafe {
            port_attr.write_bytes(0, 1);
            (lib.ibv_query_port)(context, port_num, port_attr.cast())
        },
    }
}

/// One entry of a port's GID table, with its type and network device.
///
/// Fails with `EOPNOTSUPP` before rdma-core 32.
///
/// # Safety
///
/// - `context` is a live context of `lib`.
/// - `entry` is valid for writing.
#[inline]
pub unsafe fn ibv_query_gid_ex(
    lib: &Verbs,
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    match lib._ibv_query_gid_ex {
        // SAFETY: the caller guarantees (`# Safety`) that `context` is a live context of `lib`, and
        // `entry` is valid for writing. The size is the entry's.
        Some(query) => unsafe {
            query(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>())
        },
        None => Unsupported::unsupported(libc::EOPNOTSUPP),
    }
}

/// All valid entries of a device's GID tables: their number, or a negative error number.
///
/// Fails with `-EOPNOTSUPP` before rdma-core 32.
///
/// # Safety
///
/// - `context` is a live context of `lib`.
/// - `entries` is valid for writing `max_entries` entries.
#[inline]
pub unsafe fn ibv_query_gid_table(
    lib: &Verbs,
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> isize {
    match lib._ibv_query_gid_table {
        // SAFETY: the caller guarantees (`# Safety`) that `context` is a live context of `lib`, and
        // `entries` is valid for writing `max_entries` entries. One entry has this size.
        Some(query) => unsafe { query(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) },
        None => {
            crate::table::set_errno(libc::EOPNOTSUPP);
            -(libc::EOPNOTSUPP as isize)
        }
    }
}

/// The completion counters that the device supports.
///
/// Fails with `EOPNOTSUPP` before rdma-core 65.
///
/// # Safety
///
/// - `context` is a live context of `lib`.
/// - `caps` is valid for writing.
#[inline]
pub unsafe fn ibv_query_comp_cntr_caps(
    lib: &Verbs,
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
) -> c_int {
    match lib._ibv_query_comp_cntr_caps {
        // SAFETY: the caller guarantees (`# Safety`) that `context` is a live context of `lib`, and
        // `caps` is valid for writing. The size is the struct's.
        Some(query) => unsafe { query(context, caps, size_of::<ibv_comp_cntr_caps>()) },
        None => Unsupported::unsupported(libc::EOPNOTSUPP),
    }
}

/// Whether `caps`, a set of queue pair types from the device, contains `qpt`.
#[inline]
pub const fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> c_int {
    // A type without a bit, such as a driver's own, is in no set.
    if qpt.0 >= u32::BITS {
        return 0;
    }
    ((caps >> qpt.0) & 1) as c_int
}

/// The UDP source port that RoCE v2 derives from a flow label, in 0xC000 to 0xFFFF.
#[inline]
pub const fn ibv_flow_label_to_udp_sport(fl: u32) -> u16 {
    /// The low bits of a flow label, which become the port's; the six bits above are mixed in.
    const LOW: u32 = 0x3fff;
    const HIGH: u32 = 0xf_c000;
    const FIRST_PORT: u16 = 0xc000;
    (((fl & LOW) ^ ((fl & HIGH) >> LOW.count_ones())) as u16) | FIRST_PORT
}
