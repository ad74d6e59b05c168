//! Polling completion queues, classic and extended.

use core::ffi::{c_int, c_uint};
use core::mem::offset_of;

use crate::types::*;

/// Whether an extended completion queue that was created with `wc_flags` has the field at `offset`.
///
/// The last readers were added one by one, each with a flag, in the order of the flags.
#[doc(hidden)]
#[inline(always)]
pub const fn cq_ex_has(offset: usize, wc_flags: u64) -> bool {
    use ibv_create_cq_wc_flags as Flags;
    let flag = if offset < offset_of!(ibv_cq_ex, read_completion_ts) {
        return true;
    } else if offset < offset_of!(ibv_cq_ex, read_cvlan) {
        Flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    } else if offset < offset_of!(ibv_cq_ex, read_flow_tag) {
        Flags::IBV_WC_EX_WITH_CVLAN
    } else if offset < offset_of!(ibv_cq_ex, read_tm_info) {
        Flags::IBV_WC_EX_WITH_FLOW_TAG
    } else if offset < offset_of!(ibv_cq_ex, read_completion_wallclock_ns) {
        Flags::IBV_WC_EX_WITH_TM_INFO
    } else {
        Flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
    };
    wc_flags >= flag.0 as u64
}

/// `cq_ex_op!(cq, op, wc_flags)`: the operation `op` of an extended completion queue, as an
/// `Option` of the function.
///
/// `wc_flags` (a `u64`) are the flags that the queue was created with. The library's struct is
/// known to be long enough for these, and for the fields as old as the struct. Any other field is
/// `None` and not read. For an operation as old as the struct the test vanishes at compile time.
///
/// It expands to an unsafe call, so it needs an unsafe block: `cq` must be a live extended
/// completion queue, created with these flags.
#[macro_export]
macro_rules! cq_ex_op {
    ($cq:expr, $op:ident, $wc_flags:expr) => {
        if $crate::verbs::cq_ex_has(::core::mem::offset_of!($crate::types::ibv_cq_ex, $op), $wc_flags) {
            $crate::field::read(
                $cq,
                ::core::mem::offset_of!($crate::types::ibv_cq_ex, $op),
                |cq: &$crate::types::ibv_cq_ex| &cq.$op,
            )
        } else {
            None
        }
    };
}

/// Functions that only call an operation of an extended completion queue.
macro_rules! cq_functions {
    ($(
        $(#[doc = $doc:literal])*
        #[when = $when:literal]
        fn $name:ident($cq:ident: *mut ibv_cq_ex $(, $arg:ident: $ty:ty)* $(,)?) $(-> $ret:ty)? = $op:ident;
    )*) => {$(
        $(#[doc = $doc])*
        ///
        /// # Safety
        ///
        /// - `cq` is a live extended completion queue, and no other thread is polling it.
        #[doc = concat!("- ", $when)]
        #[doc = concat!("  So `", stringify!($op), "` is there and not null.")]
        /// - Every other pointer is valid for what the manual page says the function does with it.
        #[inline]
        pub unsafe fn $name($cq: *mut ibv_cq_ex $(, $arg: $ty)*) $(-> $ret)? {
            // SAFETY: the caller guarantees (`# Safety`) that `cq` is a live extended completion
            // queue, and no other thread polls it. The operation exists and is not null. Every
            // other pointer is valid for the function.
            unsafe { operation!($cq, ibv_cq_ex, $op)($cq $(, $arg)*) }
        }
    )*};
}

cq_functions! {
    /// Starts to poll: 0 with a completion to read, `ENOENT` for an empty queue, else an error
    /// number.
    ///
    /// Only 0 opens the poll, which [`ibv_end_poll`] must close.
    #[when = "It has no open poll."]
    fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int = start_poll;

    /// Advances to the next completion: 0, `ENOENT` for an empty queue, else an error number.
    #[when = "It has an open poll."]
    fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int = next_poll;

    /// Closes the poll.
    #[when = "It has an open poll."]
    fn ibv_end_poll(cq: *mut ibv_cq_ex) = end_poll;

    /// The operation of the completed request.
    #[when = "It has a completion to read, a successful one."]
    fn ibv_wc_read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode = read_opcode;

    /// The vendor's error code.
    #[when = "It has a completion to read."]
    fn ibv_wc_read_vendor_err(cq: *mut ibv_cq_ex) -> u32 = read_vendor_err;

    /// The number of bytes that were received or read.
    #[when = "It was created with `IBV_WC_EX_WITH_BYTE_LEN` and has a completion to read."]
    fn ibv_wc_read_byte_len(cq: *mut ibv_cq_ex) -> u32 = read_byte_len;

    /// The immediate data that came with the message, in network byte order.
    #[when = "It was created with `IBV_WC_EX_WITH_IMM` and has a completion to read."]
    fn ibv_wc_read_imm_data(cq: *mut ibv_cq_ex) -> __be32 = read_imm_data;

    /// The key that the message invalidated; it shares its field with the immediate data.
    #[when = "It was created with `IBV_WC_EX_WITH_IMM` and has a completion to read."]
    fn ibv_wc_read_invalidated_rkey(cq: *mut ibv_cq_ex) -> u32 = read_imm_data;

    /// The local queue pair's number.
    #[when = "It was created with `IBV_WC_EX_WITH_QP_NUM` and has a completion to read."]
    fn ibv_wc_read_qp_num(cq: *mut ibv_cq_ex) -> u32 = read_qp_num;

    /// The number of the queue pair that sent a datagram.
    #[when = "It was created with `IBV_WC_EX_WITH_SRC_QP` and has a completion to read."]
    fn ibv_wc_read_src_qp(cq: *mut ibv_cq_ex) -> u32 = read_src_qp;

    /// The kinds of further data in the completion, as `ibv_wc_flags`.
    #[when = "It has a completion to read."]
    fn ibv_wc_read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint = read_wc_flags;

    /// The sender's LID of a datagram.
    #[when = "It was created with `IBV_WC_EX_WITH_SLID` and has a completion to read."]
    fn ibv_wc_read_slid(cq: *mut ibv_cq_ex) -> u32 = read_slid;

    /// The service level of a datagram.
    #[when = "It was created with `IBV_WC_EX_WITH_SL` and has a completion to read."]
    fn ibv_wc_read_sl(cq: *mut ibv_cq_ex) -> u8 = read_sl;

    /// The low bits of the port's LID to which a datagram was sent.
    #[when = "It was created with `IBV_WC_EX_WITH_DLID_PATH_BITS` and has a completion to read."]
    fn ibv_wc_read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 = read_dlid_path_bits;

    /// The time of completion, in ticks of the device's clock.
    #[when = "It was created with `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP` and has a completion to read."]
    fn ibv_wc_read_completion_ts(cq: *mut ibv_cq_ex) -> u64 = read_completion_ts;

    /// The time of completion, in nanoseconds of the wall clock.
    #[when = "It was created with `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK` and has a completion."]
    fn ibv_wc_read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 = read_completion_wallclock_ns;

    /// The VLAN tag that was removed from a packet.
    #[when = "It was created with `IBV_WC_EX_WITH_CVLAN` and has a completion to read."]
    fn ibv_wc_read_cvlan(cq: *mut ibv_cq_ex) -> u16 = read_cvlan;

    /// The tag that a flow rule assigned to a packet.
    #[when = "It was created with `IBV_WC_EX_WITH_FLOW_TAG` and has a completion to read."]
    fn ibv_wc_read_flow_tag(cq: *mut ibv_cq_ex) -> u32 = read_flow_tag;

    /// The tag with which a message was matched.
    #[when = "It was created with `IBV_WC_EX_WITH_TM_INFO` and has a completion to read."]
    fn ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) = read_tm_info;
}

/// The same completion queue, for functions that take a classic one.
#[inline]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// Takes up to `num_entries` completions: their number, or a negative number on error.
///
/// # Safety
///
/// - `cq` is live, has no open poll, and its context has `poll_cq`.
/// - `wc` is valid for writing `num_entries` completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `cq` is live, has no open poll, and its
    // context has `poll_cq`; `wc` is valid for writing `num_entries` completions.
    unsafe { operation!(field!(cq, ibv_cq, context), ibv_context, ops.poll_cq)(cq, num_entries, wc) }
}

/// Requests an event for the next completion, or for the next solicited one.
///
/// Returns 0 or an error number.
///
/// # Safety
///
/// - `cq` is live, and its context has `req_notify_cq`.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `cq` is live, and its context has
    // `req_notify_cq`.
    unsafe { operation!(field!(cq, ibv_cq, context), ibv_context, ops.req_notify_cq)(cq, solicited_only) }
}
