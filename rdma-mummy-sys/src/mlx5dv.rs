//! The inline functions of `infiniband/mlx5dv.h`, by their C names.
//!
//! The rules of [`verbs`](crate::verbs) about parameters, failures and older libraries apply here
//! too: [`mlx5dv_qp_ex`] has an operation if the queue pair was created with its flag.

use core::ffi::{c_int, c_void};
use core::mem::size_of;

use crate::Mlx5dv;
use crate::table::{Unsupported, set_errno};
use crate::types::*;

/// Functions that only call an operation of an mlx5 queue pair.
macro_rules! mlx5_wr_functions {
    ($(
        $(#[doc = $doc:literal])*
        #[when = $when:literal]
        fn $name:ident($mqp:ident: *mut mlx5dv_qp_ex $(, $arg:ident: $ty:ty)* $(,)?) = $op:ident;
    )*) => {$(
        $(#[doc = $doc])*
        /// # Safety
        ///
        /// - `mqp` belongs to a live extended queue pair of an mlx5 device. It has an open batch of
        ///   work requests, and no other thread is posting to it.
        #[doc = concat!("- ", $when)]
        #[doc = concat!("  So `", stringify!($op), "` is there and not null.")]
        /// - Every other pointer is valid for what the manual page says the function does with it.
        #[inline]
        pub unsafe fn $name($mqp: *mut mlx5dv_qp_ex $(, $arg: $ty)*) {
            // SAFETY: the caller guarantees (`# Safety`) that the extended queue pair is live and
            // has an open batch, and no other thread posts to it. The operation exists and is not
            // null. Every other pointer is valid for the function.
            unsafe { operation!($mqp, mlx5dv_qp_ex, $op)($mqp $(, $arg)*) }
        }
    )*};
}

mlx5_wr_functions! {
    /// Sets the destination of the last request, on a DC initiator.
    #[when = "It is a DC initiator."]
    fn mlx5dv_wr_set_dc_addr(mqp: *mut mlx5dv_qp_ex, ah: *mut ibv_ah, remote_dctn: u32, remote_dc_key: u64)
        = wr_set_dc_addr;

    /// Sets the destination and the stream of the last request, on a DC initiator.
    #[when = "It is a DC initiator that was created with streams."]
    fn mlx5dv_wr_set_dc_addr_stream(
        mqp: *mut mlx5dv_qp_ex,
        ah: *mut ibv_ah,
        remote_dctn: u32,
        remote_dc_key: u64,
        stream_id: u16,
    ) = wr_set_dc_addr_stream;

    /// Begins a request that makes interleaved memory accessible through one key.
    #[when = "It was created with `MLX5DV_QP_EX_WITH_MR_INTERLEAVED`."]
    fn mlx5dv_wr_mr_interleaved(
        mqp: *mut mlx5dv_qp_ex,
        mkey: *mut mlx5dv_mkey,
        access_flags: u32,
        repeat_count: u32,
        num_interleaved: u16,
        data: *mut mlx5dv_mr_interleaved,
    ) = wr_mr_interleaved;

    /// Begins a request that makes a list of memory ranges accessible through one key.
    #[when = "It was created with `MLX5DV_QP_EX_WITH_MR_LIST`."]
    fn mlx5dv_wr_mr_list(
        mqp: *mut mlx5dv_qp_ex,
        mkey: *mut mlx5dv_mkey,
        access_flags: u32,
        num_sges: u16,
        sge: *mut ibv_sge,
    ) = wr_mr_list;

    /// Begins a request that configures a key with the setters that follow.
    #[when = "It was created with `MLX5DV_QP_EX_WITH_MKEY_CONFIGURE`."]
    fn mlx5dv_wr_mkey_configure(
        mqp: *mut mlx5dv_qp_ex,
        mkey: *mut mlx5dv_mkey,
        num_setters: u8,
        attr: *mut mlx5dv_mkey_conf_attr,
    ) = wr_mkey_configure;

    /// Sets the access flags of the key that is being configured.
    #[when = "It was created with `MLX5DV_QP_EX_WITH_MKEY_CONFIGURE`."]
    fn mlx5dv_wr_set_mkey_access_flags(mqp: *mut mlx5dv_qp_ex, access_flags: u32) = wr_set_mkey_access_flags;

    /// Sets a list of memory ranges as the layout of the key that is being configured.
    #[when = "It was created with `MLX5DV_QP_EX_WITH_MKEY_CONFIGURE`."]
    fn mlx5dv_wr_set_mkey_layout_list(mqp: *mut mlx5dv_qp_ex, num_sges: u16, sge: *const ibv_sge)
        = wr_set_mkey_layout_list;

    /// Sets interleaved memory as the layout of the key that is being configured.
    #[when = "It was created with `MLX5DV_QP_EX_WITH_MKEY_CONFIGURE`."]
    fn mlx5dv_wr_set_mkey_layout_interleaved(
        mqp: *mut mlx5dv_qp_ex,
        repeat_count: u32,
        num_interleaved: u16,
        data: *const mlx5dv_mr_interleaved,
    ) = wr_set_mkey_layout_interleaved;

    /// Sets the signature blocks of the key that is being configured.
    #[when = "It was created with `MLX5DV_QP_EX_WITH_MKEY_CONFIGURE`."]
    fn mlx5dv_wr_set_mkey_sig_block(mqp: *mut mlx5dv_qp_ex, attr: *const mlx5dv_sig_block_attr)
        = wr_set_mkey_sig_block;

    /// Sets the encryption of the key that is being configured.
    #[when = "It was created with `MLX5DV_QP_EX_WITH_MKEY_CONFIGURE`, the key with `MLX5DV_MKEY_INIT_ATTR_FLAGS_CRYPTO`."]
    fn mlx5dv_wr_set_mkey_crypto(mqp: *mut mlx5dv_qp_ex, attr: *const mlx5dv_crypto_attr)
        = wr_set_mkey_crypto;

    /// Begins a request that lets the device copy memory.
    #[when = "It was created with `MLX5DV_QP_EX_WITH_MEMCPY`."]
    fn mlx5dv_wr_memcpy(
        mqp: *mut mlx5dv_qp_ex,
        dest_lkey: u32,
        dest_addr: u64,
        src_lkey: u32,
        src_addr: u64,
        length: usize,
    ) = wr_memcpy;

    /// Posts a request in the device's own format.
    #[when = "It was created with `MLX5DV_QP_EX_WITH_RAW_WQE`."]
    fn mlx5dv_wr_raw_wqe(mqp: *mut mlx5dv_qp_ex, wqe: *const c_void) = wr_raw_wqe;
}

/// Checks whether a signature error was found through a key: 0 or an error number.
///
/// Fails with `EOPNOTSUPP` before rdma-core 36.
///
/// # Safety
///
/// - `mkey` is a live key of `lib`.
/// - `err_info` is valid for writing.
#[inline]
pub unsafe fn mlx5dv_mkey_check(
    lib: &Mlx5dv,
    mkey: *mut mlx5dv_mkey,
    err_info: *mut mlx5dv_mkey_err,
) -> c_int {
    match lib._mlx5dv_mkey_check {
        // SAFETY: the caller guarantees (`# Safety`) that `mkey` is a live key of `lib`, and
        // `err_info` is valid for writing. The size is the struct's.
        Some(check) => unsafe { check(mkey, err_info, size_of::<mlx5dv_mkey_err>()) },
        None => Unsupported::unsupported(libc::EOPNOTSUPP),
    }
}

/// Applies these actions to matching packets.
///
/// Fails with `EOPNOTSUPP` before rdma-core 63, whose actions have another size.
///
/// # Safety
///
/// - `matcher` is a live matcher of `lib`, `match_value` is valid for it.
/// - `actions_attr` points to `num_actions` valid actions.
#[inline]
pub unsafe fn mlx5dv_create_flow(
    lib: &Mlx5dv,
    matcher: *mut mlx5dv_flow_matcher,
    match_value: *mut mlx5dv_flow_match_parameters,
    num_actions: usize,
    actions_attr: *mut mlx5dv_flow_action_attr,
) -> *mut ibv_flow {
    match lib.__mlx5dv_create_flow {
        // SAFETY: the caller guarantees (`# Safety`) that `matcher` is a live matcher of `lib`, and
        // `match_value` is valid for it. `actions_attr` points to `num_actions` valid actions, and
        // one action has this size.
        Some(create) => unsafe {
            create(matcher, match_value, num_actions, actions_attr, size_of::<mlx5dv_flow_action_attr>())
        },
        None => Unsupported::unsupported(0),
    }
}

/// Queries the device-specific attributes of a port: 0 or an error number.
///
/// Fails with `EOPNOTSUPP` before rdma-core 35.
///
/// # Safety
///
/// - `context` is a live context of an mlx5 device, of the libibverbs that `lib` works on.
/// - `info` is valid for reading and writing.
#[inline]
pub unsafe fn mlx5dv_query_port(
    lib: &Mlx5dv,
    context: *mut ibv_context,
    port_num: u32,
    info: *mut mlx5dv_port,
) -> c_int {
    match lib._mlx5dv_query_port {
        // SAFETY: the caller guarantees (`# Safety`) that `context` is a live context of an mlx5
        // device, of the libibverbs that `lib` works on. `info` is valid for reading and writing,
        // and the size is the struct's.
        Some(query) => unsafe { query(context, port_num, info, size_of::<mlx5dv_port>()) },
        None => Unsupported::unsupported(libc::EOPNOTSUPP),
    }
}

/// The export size of each kind of object, in bytes.
///
/// Before rdma-core 63, which added the export, all sizes are zero and `errno` is `EOPNOTSUPP`.
///
/// # Safety
///
/// - `sizes` is valid for writing.
#[inline]
pub unsafe fn mlx5dv_get_export_sizes(lib: &Mlx5dv, sizes: *mut mlx5dv_export_sizes) {
    match lib._mlx5dv_get_export_sizes {
        // SAFETY: the caller guarantees (`# Safety`) that `sizes` is valid for writing.
        Some(get) => unsafe { get(sizes, size_of::<mlx5dv_export_sizes>()) },
        None => {
            // SAFETY: the caller guarantees (`# Safety`) that `sizes` is valid for writing.
            unsafe { sizes.write_bytes(0, 1) };
            set_errno(libc::EOPNOTSUPP);
        }
    }
}

/// Converts a timestamp of the device to nanoseconds of the wall clock.
///
/// The result is right as long as the clock information is not older than
/// `mlx5dv_context::max_clock_info_update_nsec`.
///
/// # Safety
///
/// - `clock_info` is valid for reading.
#[inline]
pub unsafe fn mlx5dv_ts_to_ns(clock_info: *mut mlx5dv_clock_info, device_timestamp: u64) -> u64 {
    // SAFETY: the caller guarantees (`# Safety`) that `clock_info` is valid for reading.
    let clock = unsafe { clock_info.read() };
    let mult = u64::from(clock.mult);
    let after = device_timestamp.wrapping_sub(clock.last_cycles) & clock.mask;
    // A distance of more than half the counter's range means that the timestamp is older than the
    // clock information.
    if after > clock.mask / 2 {
        let before = clock.last_cycles.wrapping_sub(device_timestamp) & clock.mask;
        let elapsed = before.wrapping_mul(mult).wrapping_sub(clock.frac).wrapping_shr(clock.shift);
        clock.nsec.wrapping_sub(elapsed)
    } else {
        let elapsed = after.wrapping_mul(mult).wrapping_add(clock.frac).wrapping_shr(clock.shift);
        clock.nsec.wrapping_add(elapsed)
    }
}

/// The shift and the mask, within its word, of a field of at most 32 bits.
const fn place(bit_off: usize, bit_sz: usize) -> (u32, u32) {
    debug_assert!(bit_sz >= 1 && (bit_off % 32) + bit_sz <= 32, "a field must lie within one word");
    (32 - bit_sz as u32 - (bit_off as u32 & 31), u32::MAX >> (32 - bit_sz as u32))
}

/// Sets a field of a device command: `bit_sz` bits at `bit_off` (`_devx_set` in C).
///
/// # Safety
///
/// - The field lies within one 32-bit word, which is valid for reading and writing.
#[inline]
pub unsafe fn devx_set(p: *mut c_void, value: u32, bit_off: usize, bit_sz: usize) {
    let (shift, mask) = place(bit_off, bit_sz);
    // SAFETY: the caller guarantees (`# Safety`) that the word of the field is valid for reading
    // and writing. The accesses are unaligned.
    unsafe {
        let word = p.cast::<u32>().add(bit_off / 32);
        let others = u32::from_be(word.read_unaligned()) & !(mask << shift);
        word.write_unaligned((others | ((value & mask) << shift)).to_be());
    }
}

/// Reads a field of a device command: `bit_sz` bits at `bit_off` (`_devx_get` in C).
///
/// # Safety
///
/// - The field lies within one 32-bit word, which is valid for reading.
#[inline]
pub unsafe fn devx_get(p: *const c_void, bit_off: usize, bit_sz: usize) -> u32 {
    let (shift, mask) = place(bit_off, bit_sz);
    // SAFETY: the caller guarantees (`# Safety`) that the word of the field is valid for reading.
    // The access is unaligned.
    let word = unsafe { p.cast::<u32>().add(bit_off / 32).read_unaligned() };
    (u32::from_be(word) >> shift) & mask
}

/// Sets a field of 64 bits at `bit_off` (`_devx_set64` in C).
///
/// # Safety
///
/// - The 64-bit word that `bit_off` lies in is valid for writing.
#[inline]
pub unsafe fn devx_set64(p: *mut c_void, v: u64, bit_off: usize) {
    // SAFETY: the caller guarantees (`# Safety`) that the 64-bit word is valid for writing. The
    // access is unaligned.
    unsafe { p.cast::<u64>().add(bit_off / 64).write_unaligned(v.to_be()) }
}

/// Reads a field of 64 bits at `bit_off` (`_devx_get64` in C).
///
/// # Safety
///
/// - The 64-bit word that `bit_off` lies in is valid for reading.
#[inline]
pub unsafe fn devx_get64(p: *const c_void, bit_off: usize) -> u64 {
    // SAFETY: the caller guarantees (`# Safety`) that the 64-bit word is valid for reading. The
    // access is unaligned.
    u64::from_be(unsafe { p.cast::<u64>().add(bit_off / 64).read_unaligned() })
}
