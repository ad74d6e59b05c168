//! The inline functions of `rdma/rdma_cma.h` and `rdma/rdma_verbs.h`, by their C names.
//!
//! Like the functions of librdmacm they return 0 or more on success, or -1 with `errno`. A function
//! that needs exported functions of libibverbs takes its table first.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::ptr;

use crate::Verbs;
use crate::field::address;
use crate::table::set_errno;
use crate::types::*;
use crate::verbs::{
    ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_reg_mr, ibv_req_notify_cq,
};

/// The local address, which is part of `id`.
///
/// # Safety
///
/// - `id` is live; the result is valid as long as `id` lives.
#[inline]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut libc::sockaddr {
    address(id, offset_of!(rdma_cm_id, route.addr.__bindgen_anon_1), |id| &id.route.addr.__bindgen_anon_1)
        .cast()
}

/// The peer's address, which is part of `id`.
///
/// # Safety
///
/// - `id` is live; the result is valid as long as `id` lives.
#[inline]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut libc::sockaddr {
    address(id, offset_of!(rdma_cm_id, route.addr.__bindgen_anon_2), |id| &id.route.addr.__bindgen_anon_2)
        .cast()
}

/// Converts an error number of libibverbs to librdmacm's form: -1, with `errno` set.
#[inline]
pub fn rdma_seterrno(ret: c_int) -> c_int {
    if ret == 0 {
        return 0;
    }
    set_errno(ret);
    -1
}

/// Functions that register memory in the protection domain of an identifier.
macro_rules! register_functions {
    ($($(#[doc = $doc:literal])* fn $name:ident = $($flag:ident)|+;)*) => {$(
        $(#[doc = $doc])*
        /// # Safety
        ///
        /// - `id` is live, with a protection domain of `lib`.
        /// - `addr` is valid for `length` bytes until the region is deregistered, for the accesses
        ///   that the flags permit to the device.
        #[inline]
        pub unsafe fn $name(
            lib: &Verbs,
            id: *mut rdma_cm_id,
            addr: *mut c_void,
            length: usize,
        ) -> *mut ibv_mr {
            let access = $(ibv_access_flags::$flag.0)|+;
            // SAFETY: the caller guarantees (`# Safety`) that `id` is live, with a protection
            // domain of `lib`; `addr` is valid for `length` bytes until the region is deregistered,
            // for what the device may do there.
            unsafe { ibv_reg_mr(lib, field!(id, rdma_cm_id, pd), addr, length, access as c_int) }
        }
    )*};
}

register_functions! {
    /// Registers memory for messages.
    fn rdma_reg_msgs = IBV_ACCESS_LOCAL_WRITE;

    /// Registers memory that the peer may read.
    fn rdma_reg_read = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;

    /// Registers memory that the peer may write.
    fn rdma_reg_write = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
}

/// Deregisters memory.
///
/// # Safety
///
/// - `mr` is a live region of `lib`, and not used afterwards if this succeeds.
#[inline]
pub unsafe fn rdma_dereg_mr(lib: &Verbs, mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `mr` is a live region of `lib`, and not used
    // afterwards if this succeeds.
    rdma_seterrno(unsafe { (lib.ibv_dereg_mr)(mr) })
}

/// A scatter/gather entry; its length is cut to 32 bits as in C.
fn piece(addr: *mut c_void, length: usize, lkey: u32) -> ibv_sge {
    ibv_sge { addr: addr.addr() as u64, length: length as u32, lkey }
}

/// The key of a region, or 0 without one, because inline data needs no key.
///
/// # Safety
///
/// - `mr` is null or live.
unsafe fn lkey(mr: *mut ibv_mr) -> u32 {
    // SAFETY: the region is live, because it is not null (`# Safety`).
    if mr.is_null() { 0 } else { unsafe { field!(mr, ibv_mr, lkey) } }
}

/// A send request without a destination, completely initialised.
fn request(
    opcode: ibv_wr_opcode,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
) -> ibv_send_wr {
    // SAFETY: the struct has integers, null pointers and unions of both, for which zero is a valid
    // value.
    let empty: ibv_send_wr = unsafe { core::mem::zeroed() };
    ibv_send_wr {
        wr_id: context.addr() as u64,
        sg_list: sgl,
        num_sge: nsge,
        opcode,
        send_flags: flags as u32,
        ..empty
    }
}

/// The same request with the memory of the peer that it reads or writes.
fn with_remote(mut wr: ibv_send_wr, remote_addr: u64, rkey: u32) -> ibv_send_wr {
    // In place, so that the other members' bytes stay initialised.
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    wr
}

/// Posts one send request.
///
/// # Safety
///
/// - `id` is live with a queue pair, and the request is valid for it.
unsafe fn post_one(id: *mut rdma_cm_id, mut wr: ibv_send_wr) -> c_int {
    let mut bad = ptr::null_mut();
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live with a queue pair, and the
    // request is valid for it; the request lives until the call returns, which is long enough.
    rdma_seterrno(unsafe { ibv_post_send(field!(id, rdma_cm_id, qp), &raw mut wr, &raw mut bad) })
}

/// Posts one receive request, to the shared receive queue if `id` has one.
///
/// # Safety
///
/// - `id` is live with a queue that has the operation to post.
/// - The entries are valid, and nothing else accesses their memory until the request is complete.
#[inline]
pub unsafe fn rdma_post_recvv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
) -> c_int {
    let mut wr =
        ibv_recv_wr { wr_id: context.addr() as u64, next: ptr::null_mut(), sg_list: sgl, num_sge: nsge };
    let mut bad = ptr::null_mut();
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live with a queue that has the
    // operation to post; the pieces are valid, and untouched by others until the request is complete;
    // the request lives until the calls return, which is long enough.
    rdma_seterrno(unsafe {
        let srq = field!(id, rdma_cm_id, srq);
        if srq.is_null() {
            ibv_post_recv(field!(id, rdma_cm_id, qp), &raw mut wr, &raw mut bad)
        } else {
            ibv_post_srq_recv(srq, &raw mut wr, &raw mut bad)
        }
    })
}

/// Posts a request that sends a message from several memory ranges.
///
/// # Safety
///
/// - `id` is live with a queue pair that has the operation to post.
/// - The entries are valid, and nothing changes their memory until the request is complete.
#[inline]
pub unsafe fn rdma_post_sendv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live with a queue pair that has the
    // operation to post; the pieces are valid, and unchanged until the request is complete.
    unsafe { post_one(id, request(ibv_wr_opcode::IBV_WR_SEND, context, sgl, nsge, flags)) }
}

/// Posts a request that reads the peer's memory into several memory ranges.
///
/// # Safety
///
/// - `id` is live with a queue pair that has the operation to post.
/// - The entries are valid, and nothing else accesses their memory until the request is complete.
#[inline]
pub unsafe fn rdma_post_readv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let wr = request(ibv_wr_opcode::IBV_WR_RDMA_READ, context, sgl, nsge, flags);
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live with a queue pair that has the
    // operation to post; the pieces are valid, and untouched by others until the request is complete.
    unsafe { post_one(id, with_remote(wr, remote_addr, rkey)) }
}

/// Posts a request that writes several memory ranges to the peer's memory.
///
/// # Safety
///
/// - `id` is live with a queue pair that has the operation to post.
/// - The entries are valid, and nothing changes their memory until the request is complete.
#[inline]
pub unsafe fn rdma_post_writev(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let wr = request(ibv_wr_opcode::IBV_WR_RDMA_WRITE, context, sgl, nsge, flags);
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live with a queue pair that has the
    // operation to post; the pieces are valid, and unchanged until the request is complete.
    unsafe { post_one(id, with_remote(wr, remote_addr, rkey)) }
}

/// Posts one receive request for a range of a region.
///
/// # Safety
///
/// - `id` is live with a queue that has the operation to post.
/// - `mr` is live and contains the range, and nothing else accesses it until the request is
///   complete.
#[inline]
pub unsafe fn rdma_post_recv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
) -> c_int {
    // SAFETY: the region is live (`# Safety`).
    let (start, size) = unsafe { (field!(mr, ibv_mr, addr).addr(), field!(mr, ibv_mr, length)) };
    let before = addr.addr().checked_sub(start);
    debug_assert!(
        before.is_some_and(|before| before <= size && length <= size - before),
        "the piece lies outside the region"
    );
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live with a queue that has the
    // operation to post; `mr` is live, and the piece lies within it and is untouched by others until
    // the request is complete.
    unsafe {
        let mut piece = piece(addr, length, lkey(mr));
        rdma_post_recvv(id, context, &raw mut piece, 1)
    }
}

/// Posts a request that sends one memory range.
///
/// # Safety
///
/// - `id` is live with a queue pair that has the operation to post.
/// - `mr` is live and contains the range, or null with `IBV_SEND_INLINE`; nothing changes the range
///   until the request is complete.
#[inline]
pub unsafe fn rdma_post_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live with a queue pair that has the
    // operation to post; `mr` is live and contains the piece, or null with `IBV_SEND_INLINE`; the
    // piece is unchanged until the request is complete.
    unsafe {
        let mut piece = piece(addr, length, lkey(mr));
        rdma_post_sendv(id, context, &raw mut piece, 1, flags)
    }
}

/// Posts a request that reads the peer's memory into one memory range.
///
/// # Safety
///
/// - `id` is live with a queue pair that has the operation to post.
/// - `mr` is live and contains the range, and nothing else accesses it until the request is
///   complete.
#[inline]
#[allow(clippy::too_many_arguments)] // C's own.
pub unsafe fn rdma_post_read(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live with a queue pair that has the
    // operation to post; `mr` is live and contains the piece, which is untouched by others until the
    // request is complete.
    unsafe {
        let mut piece = piece(addr, length, field!(mr, ibv_mr, lkey));
        rdma_post_readv(id, context, &raw mut piece, 1, flags, remote_addr, rkey)
    }
}

/// Posts a request that writes one memory range to the peer's memory.
///
/// # Safety
///
/// - `id` is live with a queue pair that has the operation to post.
/// - `mr` is live and contains the range, or null with `IBV_SEND_INLINE`; nothing changes the range
///   until the request is complete.
#[inline]
#[allow(clippy::too_many_arguments)] // C's own.
pub unsafe fn rdma_post_write(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live with a queue pair that has the
    // operation to post; `mr` is live and contains the piece, or null with `IBV_SEND_INLINE`; the
    // piece is unchanged until the request is complete.
    unsafe {
        let mut piece = piece(addr, length, lkey(mr));
        rdma_post_writev(id, context, &raw mut piece, 1, flags, remote_addr, rkey)
    }
}

/// Posts a request that sends one memory range as a datagram, with librdmacm's queue key.
///
/// # Safety
///
/// - `id` is live with a queue pair that has the operation to post.
/// - `mr` is live and contains the range, or null with `IBV_SEND_INLINE`; nothing changes the range
///   until the request is complete.
/// - `ah` is live.
#[inline]
#[allow(clippy::too_many_arguments)] // C's own.
pub unsafe fn rdma_post_ud_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    ah: *mut ibv_ah,
    remote_qpn: u32,
) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live with a queue pair that has the
    // operation to post; `mr` is live and contains the piece, or null with `IBV_SEND_INLINE`; the
    // piece is unchanged until the request is complete; `ah` is live.
    unsafe {
        let mut piece = piece(addr, length, lkey(mr));
        let mut wr = request(ibv_wr_opcode::IBV_WR_SEND, context, &raw mut piece, 1, flags);
        wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey: RDMA_UDP_QKEY };
        post_one(id, wr)
    }
}

/// Waits for a completion: polls, arms the queue, polls again, and sleeps on the channel.
///
/// Returns the number of completions (1), or -1 and `errno`.
///
/// # Safety
///
/// - `cq` and `channel` are live, of `lib`, and belong together; the queue has the operations to
///   poll and to arm.
/// - `wc` is valid for writing.
unsafe fn wait(lib: &Verbs, cq: *mut ibv_cq, channel: *mut ibv_comp_channel, wc: *mut ibv_wc) -> c_int {
    loop {
        // SAFETY: the caller guarantees (`# Safety`) that `cq` and `channel` are live, of `lib`,
        // and belong together; the queue has the operations to poll and to arm; `wc` is valid for
        // writing.
        let mut polled = unsafe { ibv_poll_cq(cq, 1, wc) };
        if polled == 0 {
            // SAFETY: the caller guarantees (`# Safety`) that `cq` and `channel` are live, of
            // `lib`, and belong together; the queue has the operations to poll and to arm; `wc` is
            // valid for writing.
            let armed = unsafe { ibv_req_notify_cq(cq, 0) };
            if armed != 0 {
                return rdma_seterrno(armed);
            }
            // What came before the queue was armed gives no event.
            // SAFETY: the caller guarantees (`# Safety`) that `cq` and `channel` are live, of
            // `lib`, and belong together; the queue has the operations to poll and to arm; `wc` is
            // valid for writing.
            polled = unsafe { ibv_poll_cq(cq, 1, wc) };
        }
        if polled != 0 {
            return if polled < 0 { rdma_seterrno(polled) } else { polled };
        }
        let (mut whose, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is live (`# Safety`), the other pointers are to local variables.
        let got = unsafe { (lib.ibv_get_cq_event)(channel, &raw mut whose, &raw mut context) };
        if got != 0 {
            return got;
        }
        debug_assert_eq!(whose, cq, "the channel belongs to another completion queue");
        // SAFETY: the library has just returned one event of this queue.
        unsafe { (lib.ibv_ack_cq_events)(whose, 1) };
    }
}

/// Waits for a completion of the send queue: 1, or -1 and `errno`.
///
/// # Safety
///
/// - `id` is live, with a send completion queue and channel of `lib`, which nobody else polls.
/// - `wc` is valid for writing.
#[inline]
pub unsafe fn rdma_get_send_comp(lib: &Verbs, id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live, with a send completion queue
    // and channel of `lib`, which nobody else polls; `wc` is valid for writing.
    unsafe { wait(lib, field!(id, rdma_cm_id, send_cq), field!(id, rdma_cm_id, send_cq_channel), wc) }
}

/// Waits for a completion of the receive queue: 1, or -1 and `errno`.
///
/// # Safety
///
/// - `id` is live, with a receive completion queue and channel of `lib`, which nobody else polls.
/// - `wc` is valid for writing.
#[inline]
pub unsafe fn rdma_get_recv_comp(lib: &Verbs, id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `id` is live, with a receive completion queue
    // and channel of `lib`, which nobody else polls; `wc` is valid for writing.
    unsafe { wait(lib, field!(id, rdma_cm_id, recv_cq), field!(id, rdma_cm_id, recv_cq_channel), wc) }
}
