//! Device contexts: finding the operations of one, and what it can be asked.

use core::ffi::c_int;
use core::mem::{offset_of, size_of};
use core::ptr;

use crate::Verbs;
use crate::table::Unsupported;
use crate::types::*;

/// What `ibv_context::abi_compat` holds where the context lies in a `verbs_context`.
const ABI_IS_EXTENDED: usize = usize::MAX;

/// The extended context that `ctx` is the last field of, or null where the library has none.
///
/// The result may begin *inside* the type `verbs_context`, when the library is older: it is an address to
/// count offsets from, not one to read from. [`verbs_get_ctx_op!`](crate::verbs_get_ctx_op) reads from it.
///
/// # Safety
///
/// - `ctx` is a live context of a loaded library.
#[inline]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the context is live, and every release's has this field.
    if unsafe { field!(ctx, ibv_context, abi_compat) }.addr() != ABI_IS_EXTENDED {
        return ptr::null_mut();
    }
    ctx.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// The operation at `offset` of the extended context, if that context is long enough to have it.
///
/// # Safety
///
/// - `ctx` is a live context of a loaded library.
/// - `offset` is that of the field which `of` names.
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
    // SAFETY: the size lies right before the context, in every release that has extended contexts.
    let size = unsafe { field!(extended, verbs_context, sz) };
    // The struct ends where the context does, so its size says where it begins.
    if size < size_of::<verbs_context>() - offset {
        return None;
    }
    // SAFETY: the field lies within the size that the library gave.
    unsafe { crate::field::read(extended, offset, of) }
}

/// `verbs_get_ctx_op!(context, op)`: the operation `op` of the extended context, as an `Option` of the
/// function.
///
/// It is `None` where the library does not have extended contexts, where its `verbs_context` is too short
/// for this operation, and where the driver leaves it empty. Expands to an unsafe call, for an unsafe block:
/// the context must be a live one.
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

/// Functions that do nothing but call an operation of the extended context.
macro_rules! context_functions {
    ($(
        $(#[doc = $doc:literal])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $op:ident of $object:ident$(.$field:ident)?;
    )*) => {$(
        $(#[doc = $doc])*
        ///
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
            // SAFETY: the caller's object is live, so its context is.
            match unsafe { verbs_get_ctx_op!(context, $op) } {
                // SAFETY: the library gave this function for these arguments, which the caller answers for.
                Some(operation) => unsafe { operation($($arg),*) },
                None => $crate::table::Unsupported::unsupported(libc::EOPNOTSUPP),
            }
        }
    )*};
    (@context $object:ident) => { $object };
    (@context $object:ident $field:ident) => {
        // SAFETY: the caller's object is live, and every release's begins with the fields up to this one.
        unsafe { (*$object).$field }
    };
}

context_functions! {
    /// Asks for the current values of the clocks that `values.comp_mask` names.
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        = query_rt_values of context;
}

/// The devices of this machine, as an array that ends with a null pointer.
///
/// # Safety
///
/// - `num_devices` is null or valid for writing.
#[inline]
pub unsafe fn ibv_get_device_list(lib: &Verbs, num_devices: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: the caller guarantees (`# Safety`) that `num_devices` is null or valid for writing.
    unsafe { (lib.ibv_get_device_list)(num_devices) }
}

/// The attributes of a device, with those that came later than [`ibv_device_attr`].
///
/// Where the context has no such operation, or the operation does not work, the classic attributes are
/// asked for and the rest is zero. A library that is older than this crate's `attr` may leave its last
/// fields as they were: zero them before.
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
    // SAFETY: an input that is not null is valid, as the caller says.
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the context is live.
    if let Some(operation) = unsafe { verbs_get_ctx_op!(context, query_device_ex) } {
        // SAFETY: the pointers are valid, and the size is that of `attr`.
        let ret = unsafe { operation(context, input, attr, size_of::<ibv_device_attr_ex>()) };
        if ret != libc::EOPNOTSUPP && ret != libc::ENOSYS {
            return ret;
        }
    }
    // SAFETY: `attr` is valid for writing, the context is live.
    unsafe {
        attr.write_bytes(0, 1);
        (lib.ibv_query_device)(context, &raw mut (*attr).orig_attr)
    }
}

/// The attributes of a port.
///
/// A library without the extended query fills in what it knows, and the rest is zero.
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
    // SAFETY: the context is live.
    match unsafe { verbs_get_ctx_op!(context, query_port) } {
        // SAFETY: the pointers are valid, and the size is that of `port_attr`.
        Some(operation) => unsafe { operation(context, port_num, port_attr, size_of::<ibv_port_attr>()) },
        // SAFETY: the exported function fills the beginning of the struct, which was the whole of it once.
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
        // SAFETY: the caller guarantees (`# Safety`) that `context` is a live context of `lib`;
        // `entry` is valid for writing; the size is that of the entry.
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
        // SAFETY: the caller guarantees (`# Safety`) that `context` is a live context of `lib`;
        // `entries` is valid for writing `max_entries` entries; the size is that of an entry.
        Some(query) => unsafe { query(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) },
        None => {
            crate::table::set_errno(libc::EOPNOTSUPP);
            -(libc::EOPNOTSUPP as isize)
        }
    }
}

/// What completion counters the device has.
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
        // SAFETY: the caller guarantees (`# Safety`) that `context` is a live context of `lib`;
        // `caps` is valid for writing; the size is that of the struct.
        Some(query) => unsafe { query(context, caps, size_of::<ibv_comp_cntr_caps>()) },
        None => Unsupported::unsupported(libc::EOPNOTSUPP),
    }
}

/// Whether `caps`, a set of queue pair types that a device gave, contains `qpt`.
#[inline]
pub const fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> c_int {
    // A type that has no bit, such as a driver's own, is in no set.
    if qpt.0 >= u32::BITS {
        return 0;
    }
    ((caps >> qpt.0) & 1) as c_int
}

/// The UDP source port that RoCE v2 derives from a flow label: one of 0xC000 to 0xFFFF.
#[inline]
pub const fn ibv_flow_label_to_udp_sport(fl: u32) -> u16 {
    /// The low bits of a flow label, which become the port's, and the six above, which are mixed in.
    const LOW: u32 = 0x3fff;
    const HIGH: u32 = 0xf_c000;
    const FIRST_PORT: u16 = 0xc000;
    (((fl & LOW) ^ ((fl & HIGH) >> LOW.count_ones())) as u16) | FIRST_PORT
}
