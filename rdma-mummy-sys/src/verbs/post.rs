//! Posting work requests: `ibv_wr_*` on extended queue pairs, `ibv_post_*` on all kinds of queues.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;

use crate::types::*;

/// Whether an extended queue pair that was created with `send_ops` has the field at `offset`.
///
/// Only the two last fields are newer than the struct.
#[doc(hidden)]
#[inline(always)]
pub const fn qp_ex_has(offset: usize, send_ops: u64) -> bool {
    const FLUSH: u64 = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_FLUSH.0 as u64;
    const ATOMIC_WRITE: u64 = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_WRITE.0 as u64;
    if offset < offset_of!(ibv_qp_ex, wr_atomic_write) {
        true
    } else if offset < offset_of!(ibv_qp_ex, wr_flush) {
        send_ops & (ATOMIC_WRITE | FLUSH) != 0
    } else {
        send_ops & FLUSH != 0
    }
}

/// `qp_ex_op!(qp, op, send_ops)`: the operation `op` of an extended queue pair, as an `Option` of
/// the function.
///
/// `send_ops` (a `u64`) are the `send_ops_flags` that the queue pair was created with. The
/// library's struct is known to be long enough for these, and for the fields as old as the struct.
/// Any other field is `None` and not read. For an operation as old as the struct the test vanishes
/// at compile time.
///
/// It expands to an unsafe call, so it needs an unsafe block: `qp` must be a live extended queue
/// pair, created with these flags.
#[macro_export]
macro_rules! qp_ex_op {
    ($qp:expr, $op:ident, $send_ops:expr) => {
        if $crate::verbs::qp_ex_has(::core::mem::offset_of!($crate::types::ibv_qp_ex, $op), $send_ops) {
            $crate::field::read(
                $qp,
                ::core::mem::offset_of!($crate::types::ibv_qp_ex, $op),
                |qp: &$crate::types::ibv_qp_ex| &qp.$op,
            )
        } else {
            None
        }
    };
}

/// Functions that only call an operation of an extended queue pair.
macro_rules! wr_functions {
    ($(
        $(#[doc = $doc:literal])*
        #[when = $when:literal]
        fn $name:ident($qp:ident: *mut ibv_qp_ex $(, $arg:ident: $ty:ty)* $(,)?) $(-> $ret:ty)? = $op:ident;
    )*) => {$(
        $(#[doc = $doc])*
        ///
        /// # Safety
        ///
        /// - `qp` is a live extended queue pair, and no other thread is posting to it.
        #[doc = concat!("- ", $when)]
        #[doc = concat!("  So `", stringify!($op), "` is there and not null.")]
        /// - Every other pointer is valid for what the manual page says the function does with it.
        #[inline]
        pub unsafe fn $name($qp: *mut ibv_qp_ex $(, $arg: $ty)*) $(-> $ret)? {
            // SAFETY: the caller guarantees (`# Safety`) that `qp` is a live extended queue pair,
            // and no other thread posts to it. The operation exists and is not null. Every other
            // pointer is valid for the function.
            unsafe { operation!($qp, ibv_qp_ex, $op)($qp $(, $arg)*) }
        }
    )*};
}

wr_functions! {
    /// Opens a batch of work requests, which [`ibv_wr_complete`] or [`ibv_wr_abort`] closes.
    #[when = "`send_ops_flags` were given when it was created, and it has no open batch."]
    fn ibv_wr_start(qp: *mut ibv_qp_ex) = wr_start;

    /// Posts the open batch. According to the manual nothing was posted after an error; SoftRoCE
    /// may have queued the batch anyway.
    #[when = "It has an open batch, every request of which has its setters called."]
    fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int = wr_complete;

    /// Discards the open batch.
    #[when = "It has an open batch."]
    fn ibv_wr_abort(qp: *mut ibv_qp_ex) = wr_abort;

    /// Begins a request that compares and swaps eight bytes of the peer's memory.
    #[when = "It was created with `IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP` and has an open batch."]
    fn ibv_wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64)
        = wr_atomic_cmp_swp;

    /// Begins a request that adds to eight bytes of the peer's memory.
    #[when = "It was created with `IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD` and has an open batch."]
    fn ibv_wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64)
        = wr_atomic_fetch_add;

    /// Begins a request that writes eight bytes of the peer's memory atomically.
    #[when = "It was created with `IBV_QP_EX_WITH_ATOMIC_WRITE` and has an open batch."]
    fn ibv_wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void)
        = wr_atomic_write;

    /// Begins a request that binds a memory window of type 2.
    #[when = "It was created with `IBV_QP_EX_WITH_BIND_MW` and has an open batch."]
    fn ibv_wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info)
        = wr_bind_mw;

    /// Begins a request that makes earlier writes visible or persistent in the peer's memory.
    #[when = "It was created with `IBV_QP_EX_WITH_FLUSH` and has an open batch."]
    fn ibv_wr_flush(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, len: usize, type_: u8, level: u8)
        = wr_flush;

    /// Begins a request that invalidates a local key.
    #[when = "It was created with `IBV_QP_EX_WITH_LOCAL_INV` and has an open batch."]
    fn ibv_wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) = wr_local_inv;

    /// Begins a request that reads the peer's memory.
    #[when = "It was created with `IBV_QP_EX_WITH_RDMA_READ` and has an open batch."]
    fn ibv_wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) = wr_rdma_read;

    /// Begins a request that writes the peer's memory.
    #[when = "It was created with `IBV_QP_EX_WITH_RDMA_WRITE` and has an open batch."]
    fn ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) = wr_rdma_write;

    /// Begins a request that writes the peer's memory and consumes one of its receive requests.
    #[when = "It was created with `IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM` and has an open batch."]
    fn ibv_wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32)
        = wr_rdma_write_imm;

    /// Begins a request that sends a message.
    #[when = "It was created with `IBV_QP_EX_WITH_SEND` and has an open batch."]
    fn ibv_wr_send(qp: *mut ibv_qp_ex) = wr_send;

    /// Begins a request that sends a message with immediate data, in network byte order.
    #[when = "It was created with `IBV_QP_EX_WITH_SEND_WITH_IMM` and has an open batch."]
    fn ibv_wr_send_imm(qp: *mut ibv_qp_ex, imm_data: __be32) = wr_send_imm;

    /// Begins a request that sends a message and invalidates a key of the peer.
    #[when = "It was created with `IBV_QP_EX_WITH_SEND_WITH_INV` and has an open batch."]
    fn ibv_wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) = wr_send_inv;

    /// Begins a request that sends a message in segments, each with this header.
    #[when = "It was created with `IBV_QP_EX_WITH_TSO` and has an open batch."]
    fn ibv_wr_send_tso(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) = wr_send_tso;

    /// Sets the destination of the last request, on a datagram queue pair.
    #[when = "It is of type UD and has an open batch with a request in it."]
    fn ibv_wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32)
        = wr_set_ud_addr;

    /// Sets the shared receive queue that the last request is for.
    #[when = "It is of type XRC and has an open batch with a request in it."]
    fn ibv_wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) = wr_set_xrc_srqn;

    /// Copies the data of the last request.
    #[when = "It has an open batch with a request in it, and `addr` is readable for `length` bytes."]
    fn ibv_wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) = wr_set_inline_data;

    /// Copies the data of the last request from several buffers.
    #[when = "It has an open batch with a request in it, and all `num_buf` buffers are readable."]
    fn ibv_wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf)
        = wr_set_inline_data_list;

    /// Sets the buffer of the last request.
    #[when = "It has an open batch with a request in it. The buffer is untouched until that is complete."]
    fn ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) = wr_set_sge;

    /// Sets the buffers of the last request.
    #[when = "It has an open batch with a request in it. The buffers are untouched until that is complete."]
    fn ibv_wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) = wr_set_sge_list;
}

/// Functions that call a classic operation of the object's context.
macro_rules! post_functions {
    ($(
        $(#[doc = $doc:literal])*
        fn $name:ident($object:ident: *mut $Object:ident $(, $arg:ident: $ty:ty)* $(,)?) = $op:ident;
    )*) => {$(
        $(#[doc = $doc])*
        ///
        /// Returns 0, or an error number and the first request that was not posted.
        ///
        /// # Safety
        ///
        #[doc = concat!("- `", stringify!($object), "` is live, and its context has `", stringify!($op), "`.")]
        /// - The list of requests and all they point to are valid; the buffers stay untouched by
        ///   others until the requests are complete.
        /// - The last argument is valid for writing.
        #[inline]
        pub unsafe fn $name($object: *mut $Object $(, $arg: $ty)*) -> c_int {
            // SAFETY: the caller guarantees (`# Safety`) that the object is live and its context
            // has the operation. The requests are valid, and nothing else touches their buffers
            // until they complete. The last argument is valid for writing.
            unsafe { operation!(field!($object, $Object, context), ibv_context, ops.$op)($object $(, $arg)*) }
        }
    )*};
}

post_functions! {
    /// Posts a list of work requests to a send queue.
    fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) = post_send;

    /// Posts a list of work requests to a receive queue.
    fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) = post_recv;

    /// Posts a list of work requests to a shared receive queue.
    fn ibv_post_srq_recv(srq: *mut ibv_srq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr)
        = post_srq_recv;
}

/// Posts a list of work requests to a receive work queue.
///
/// Returns 0, or an error number and the first request that was not posted.
///
/// # Safety
///
/// - `wq` is live, and its `post_recv` is not null.
/// - The list of requests and all they point to are valid; nothing else accesses the buffers until
///   the requests are complete.
/// - `bad_recv_wr` is valid for writing.
#[inline]
pub unsafe fn ibv_post_wq_recv(
    wq: *mut ibv_wq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `wq` is live, and its `post_recv` is not
    // null. The requests are valid, and nothing else touches their buffers until they complete.
    // `bad_recv_wr` is valid for writing.
    unsafe { operation!(wq, ibv_wq, post_recv)(wq, recv_wr, bad_recv_wr) }
}

/// Posts a list of tag matching operations to a shared receive queue.
///
/// Returns 0, or an error number and the first operation that was not posted; `EOPNOTSUPP` if the
/// context lacks the operation.
///
/// # Safety
///
/// - `srq` is live.
/// - The list and all it points to are valid.
/// - `bad_op` is valid for writing.
#[inline]
pub unsafe fn ibv_post_srq_ops(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: the queue is live (`# Safety`), and with it its context.
    match unsafe { verbs_get_ctx_op!(field!(srq, ibv_srq, context), post_srq_ops) } {
        // SAFETY: the caller guarantees (`# Safety`) that `srq` is live; the list and all it points
        // to are valid; `bad_op` is valid for writing.
        Some(operation) => unsafe { operation(srq, op, bad_op) },
        None => {
            // SAFETY: the caller guarantees (`# Safety`) that `bad_op` is valid for writing.
            unsafe { bad_op.write(op) };
            crate::table::Unsupported::unsupported(libc::EOPNOTSUPP)
        }
    }
}
