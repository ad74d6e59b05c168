//! Posting with `ibv_wr_start`, `ibv_wr_*`, `ibv_wr_set_*` and `ibv_wr_complete`.
//!
//! `ibv_wr_start` takes the queue pair's posting lock, and `ibv_wr_complete` or `ibv_wr_abort`
//! releases it, as the manual page describes for threads. `ibv_wr_complete` reports an error of any
//! call in between, and then posts nothing.
//!
//! If a thread has left a list open, its next operation on the queue pair drops that list.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rdma_mummy_sys::types::{
    ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_create_send_ops_flags, ibv_qp_ex, ibv_qp_type,
    ibv_send_flags, ibv_sge, ibv_wr_opcode,
};
use spin::mutex::SpinMutexGuard;

use super::c_object::qp_of_ex;
use super::post::{VALUE_GIVEN, bind_fields, brings_back, destination, is_of_window, type_has};
use super::send_queue::{PostErrno, SendQueueProducer, SendRequestHeader};
use super::{Qp, Spin};

/// A list of requests that is being built.
#[derive(Debug, Default)]
pub(crate) struct WrListBuilder {
    tail: u32,
    /// The first error, or 0.
    error: PostErrno,
}

/// The right to post: the lock of the list.
pub(super) type PostingGuard<'a> = SpinMutexGuard<'a, WrListBuilder, spin::Yield>;

/// Identifies the thread that a list is open to; never 0.
#[inline]
fn this_thread() -> usize {
    // SAFETY: `pthread_self` has no preconditions. (A Rust thread-local is slower in a shared
    // library.)
    unsafe { libc::pthread_self() as usize }
}

impl Qp {
    /// Waits for the right to post. Drops a list that this thread has left open.
    #[inline]
    pub(super) fn posting(&self) -> PostingGuard<'_> {
        match self.builder.try_lock() {
            Some(posting) => posting,
            None => self.wait_to_post(),
        }
    }

    #[cold]
    fn wait_to_post(&self) -> PostingGuard<'_> {
        self.drop_own_list();
        self.builder.lock()
    }

    /// The same, but waits for another thread's list no longer than `Config::revoke`.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the list stays open.
    pub(super) fn stop_posting(&self) -> Result<PostingGuard<'_>, PostErrno> {
        self.drop_own_list();
        let begin = Instant::now();
        loop {
            if let Some(posting) = self.builder.try_lock() {
                return Ok(posting);
            }
            if begin.elapsed() > self.rnic.config().revoke {
                log::error!(
                    "queue pair {:#x} cannot be reset or destroyed: a thread has called ibv_wr_start and neither \
                     ibv_wr_complete nor ibv_wr_abort",
                    self.number.qpn
                );
                return Err(libc::EBUSY);
            }
            std::thread::yield_now();
        }
    }

    fn drop_own_list(&self) {
        if self.list.load(Relaxed) != this_thread() {
            return;
        }
        log::warn!(
            "queue pair {:#x}: drops a list of requests that was begun with ibv_wr_start and neither completed nor aborted",
            self.number.qpn
        );
        // SAFETY: this thread has opened the list, so it holds the lock, and nothing else on it
        // uses the builder now.
        unsafe {
            (*self.builder.as_mut_ptr()).error = libc::EINVAL;
            close(&self.list, &self.builder);
        }
    }
}

/// Closes an open list.
///
/// # Safety
///
/// The caller holds the lock for that list, and does not use the builder afterwards.
unsafe fn close(list: &core::sync::atomic::AtomicUsize, builder: &Spin<WrListBuilder>) {
    list.store(0, Relaxed);
    // SAFETY: the caller guarantees that it holds the lock and does not use the builder any more.
    unsafe { builder.force_unlock() };
}

/// The operations that a queue pair of this type supports (`ibv_qp_create_send_ops_flags`).
pub(crate) fn operations_of(qp_type: ibv_qp_type) -> u64 {
    use ibv_qp_create_send_ops_flags as F;
    let datagram = F::IBV_QP_EX_WITH_SEND | F::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let unreliable = datagram
        | F::IBV_QP_EX_WITH_RDMA_WRITE
        | F::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | F::IBV_QP_EX_WITH_SEND_WITH_INV
        | F::IBV_QP_EX_WITH_BIND_MW
        | F::IBV_QP_EX_WITH_LOCAL_INV;
    let reliable = unreliable
        | F::IBV_QP_EX_WITH_RDMA_READ
        | F::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | F::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | F::IBV_QP_EX_WITH_ATOMIC_WRITE
        | F::IBV_QP_EX_WITH_FLUSH;
    // Consistent with `type_has`.
    let by_number = datagram
        | F::IBV_QP_EX_WITH_RDMA_WRITE
        | F::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | F::IBV_QP_EX_WITH_RDMA_READ
        | F::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | F::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    let operations = match qp_type {
        ibv_qp_type::IBV_QPT_RC => reliable,
        ibv_qp_type::IBV_QPT_XRC_SEND => by_number,
        ibv_qp_type::IBV_QPT_UC => unreliable,
        ibv_qp_type::IBV_QPT_XRC_RECV => return 0,
        _ => datagram,
    };
    operations.0.into()
}

/// Sets the functions of the operations that the program asked for.
pub(crate) fn install(ex: &mut ibv_qp_ex, operations: u64) {
    use ibv_qp_create_send_ops_flags as F;
    let has = |flag: F| operations & u64::from(flag.0) != 0;
    macro_rules! when {
        ($($flag:ident => $field:ident = $function:path),* $(,)?) => {$(
            if has(F::$flag) {
                ex.$field = Some($function);
            }
        )*};
    }
    when!(
        IBV_QP_EX_WITH_RDMA_WRITE => wr_rdma_write = rdma_write,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM => wr_rdma_write_imm = rdma_write_imm,
        IBV_QP_EX_WITH_SEND => wr_send = send,
        IBV_QP_EX_WITH_SEND_WITH_IMM => wr_send_imm = send_imm,
        IBV_QP_EX_WITH_RDMA_READ => wr_rdma_read = rdma_read,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP => wr_atomic_cmp_swp = atomic_cmp_swp,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD => wr_atomic_fetch_add = atomic_fetch_add,
        IBV_QP_EX_WITH_SEND_WITH_INV => wr_send_inv = send_inv,
        IBV_QP_EX_WITH_LOCAL_INV => wr_local_inv = local_inv,
        IBV_QP_EX_WITH_BIND_MW => wr_bind_mw = bind_mw,
        IBV_QP_EX_WITH_ATOMIC_WRITE => wr_atomic_write = atomic_write,
        IBV_QP_EX_WITH_FLUSH => wr_flush = flush,
    );
    ex.wr_set_sge = Some(set_sge);
    ex.wr_set_sge_list = Some(set_sge_list);
    ex.wr_set_inline_data = Some(set_inline_data);
    ex.wr_set_inline_data_list = Some(set_inline_data_list);
    ex.wr_set_ud_addr = Some(set_ud_addr);
    ex.wr_set_xrc_srqn = Some(set_xrc_srqn);
    ex.wr_start = Some(start);
    ex.wr_complete = Some(complete);
    ex.wr_abort = Some(abort);
}

/// Runs one step on the open list. Does nothing if an earlier step has failed.
///
/// # Safety
///
/// `qp` is a queue pair of this device whose list this thread has opened.
#[inline(always)]
unsafe fn build(
    qp: *mut ibv_qp_ex,
    step: impl FnOnce(&Arc<Qp>, &mut SendQueueProducer<'_>) -> Result<(), PostErrno>,
) {
    // SAFETY: the caller guarantees that this thread has opened the list of `qp`. `start` took the
    // lock, and it is still held, so builder and poster are this thread's.
    unsafe {
        let qp = qp_of_ex(qp);
        let builder = &mut *qp.builder.as_mut_ptr();
        if builder.error != 0 {
            return;
        }
        let mut poster = qp.send_queue.poster(qp.caps.max_send_wr).resume(builder.tail);
        match step(qp, &mut poster) {
            Ok(()) => builder.tail = poster.tail(),
            Err(error) => builder.error = error,
        }
    }
}

/// Appends a request.
///
/// # Safety
///
/// As [`build`].
#[inline(always)]
unsafe fn append(
    qp: *mut ibv_qp_ex,
    opcode: ibv_wr_opcode,
    [imm_data, rkey]: [u32; 2],
    remote_addr: u64,
    operands: Option<[u64; 2]>,
) {
    // SAFETY: the caller guarantees that this thread has opened the list of `qp`. The fields are
    // the program's, which accesses them only between calls.
    unsafe {
        let (wr_id, send_flags) = ((*qp).wr_id, (*qp).wr_flags);
        build(qp, |qp, poster| {
            if !type_has(qp.qp_type, opcode) {
                return Err(libc::EINVAL);
            }
            // The setter decides whether data are inline.
            let send_flags = send_flags & !ibv_send_flags::IBV_SEND_INLINE.0;
            let request =
                poster.add(SendRequestHeader { wr_id, opcode, send_flags, imm_data, rkey, remote_addr })?;
            if let Some(operands) = operands {
                request.operands = operands;
            }
            Ok(())
        });
    }
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: `ibv_wr_start` requires a live queue pair of this device.
    let qp = unsafe { qp_of_ex(qp) };
    let forked = qp.rnic.node().is_forked();
    if forked {
        // SAFETY: the thread that held the lock at the time of the fork does not exist here. The
        // requests that follow are refused.
        unsafe { qp.builder.force_unlock() };
    }
    let mut builder = qp.posting();
    // SAFETY: this thread holds the builder's lock.
    builder.tail = unsafe { qp.send_queue.poster(qp.caps.max_send_wr) }.tail();
    builder.error = if forked { libc::EIO } else { qp.check_state().err().unwrap_or(0) };
    // `complete` or `abort` unlocks it.
    SpinMutexGuard::leak(builder);
    qp.list.store(this_thread(), Relaxed);
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: `ibv_wr_complete` requires a live queue pair whose list this thread has opened. If
    // the list is still open, this thread holds the lock.
    unsafe {
        let qp = qp_of_ex(qp);
        if qp.list.load(Relaxed) == 0 {
            return libc::EINVAL;
        }
        let WrListBuilder { tail, error } = *qp.builder.as_mut_ptr();
        if error == 0 {
            qp.send_queue.poster(qp.caps.max_send_wr).resume(tail).commit();
        }
        close(&qp.list, &qp.builder);
        if error == 0 {
            qp.posted();
        }
        error
    }
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: `ibv_wr_abort` requires a live queue pair whose list this thread has opened. If the
    // list is still open, this thread holds the lock. Requests that were added and not committed
    // are discarded.
    unsafe {
        let qp = qp_of_ex(qp);
        if qp.list.load(Relaxed) != 0 {
            close(&qp.list, &qp.builder);
        }
    }
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe { append(qp, ibv_wr_opcode::IBV_WR_SEND, [0, 0], 0, None) };
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe { append(qp, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, [imm_data, 0], 0, None) };
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe { append(qp, ibv_wr_opcode::IBV_WR_RDMA_WRITE, [0, rkey], remote_addr, None) };
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: u32) {
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe { append(qp, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, [imm_data, rkey], remote_addr, None) };
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe { append(qp, ibv_wr_opcode::IBV_WR_RDMA_READ, [0, rkey], remote_addr, None) };
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe {
        append(qp, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, [0, rkey], remote_addr, Some([compare, swap]))
    };
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe { append(qp, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, [0, rkey], remote_addr, Some([add, 0])) };
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe { append(qp, ibv_wr_opcode::IBV_WR_SEND_WITH_INV, [invalidate_rkey, 0], 0, None) };
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe { append(qp, ibv_wr_opcode::IBV_WR_LOCAL_INV, [invalidate_rkey, 0], 0, None) };
}

unsafe extern "C" fn bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: as `ibv_wr_bind_mw` requires, the list is open on this thread, the window is null or
    // live, and the description is valid with a live region.
    unsafe {
        match bind_fields(mw, rkey, &*info) {
            Ok((keys, address, operands)) => {
                append(qp, ibv_wr_opcode::IBV_WR_BIND_MW, keys, address, Some(operands));
            }
            Err(error) => build(qp, |_, _| Err(error)),
        }
    }
}

/// Reads the value at once, because the request has no other payload.
unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, value: *const c_void) {
    const OPCODE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_ATOMIC_WRITE;
    // SAFETY: as `ibv_wr_atomic_write` requires, the list is open on this thread and `value` has
    // eight readable bytes.
    unsafe {
        let value = value.cast::<u64>().read_unaligned();
        append(qp, OPCODE, [0, rkey], remote_addr, Some([value, VALUE_GIVEN]));
        build(qp, |_, poster| {
            poster.last_added().ok_or(libc::EINVAL)?.length = 8;
            Ok(())
        });
    }
}

unsafe extern "C" fn flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    placement: u8,
    level: u8,
) {
    let operands = [len as u64, u64::from(placement) | u64::from(level) << 8];
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe { append(qp, ibv_wr_opcode::IBV_WR_FLUSH, [0, rkey], remote_addr, Some(operands)) };
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: as `ibv_wr_set_ud_addr` requires, the list is open on this thread and the address
    // handle is live.
    unsafe {
        build(qp, |_, poster| {
            let destination = destination(ah, remote_qpn, remote_qkey).ok_or(libc::EINVAL)?;
            poster.set_destination(destination)
        });
    }
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe {
        build(qp, |qp, poster| {
            let request = poster.last_added().filter(|_| qp.qp_type == ibv_qp_type::IBV_QPT_XRC_SEND);
            request.ok_or(libc::EINVAL)?.to = remote_srqn;
            Ok(())
        });
    }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as `ibv_wr_*` requires, `qp` is live and `ibv_wr_start` has opened its list on this
    // thread.
    unsafe {
        build(qp, |_, poster| {
            poster.last_added().ok_or(libc::EINVAL)?;
            poster.set_entry(ibv_sge { addr, length, lkey })
        });
    }
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: as `ibv_wr_set_sge_list` requires, the list is open on this thread and the entries
    // are valid.
    unsafe {
        build(qp, |_, poster| {
            poster.last_added().ok_or(libc::EINVAL)?;
            poster.set_entries(sg_list, num_sge)
        });
    }
}

/// Whether inline data can be given to a request.
fn check_inline(poster: &mut SendQueueProducer<'_>) -> Result<(), PostErrno> {
    let takes =
        |opcode| !brings_back(opcode) && !is_of_window(opcode) && opcode != ibv_wr_opcode::IBV_WR_FLUSH;
    poster.last_added().filter(|request| takes(request.opcode)).map(|_| ()).ok_or(libc::EINVAL)
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: as `ibv_wr_set_inline_data` requires, the list is open on this thread and the data
    // are readable.
    unsafe {
        build(qp, |_, poster| {
            check_inline(poster)?;
            poster.append_inline(addr.cast(), length)
        });
    }
}

unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf) {
    // SAFETY: as `ibv_wr_set_inline_data_list` requires, the list is open on this thread and the
    // data are readable.
    unsafe {
        build(qp, |_, poster| {
            check_inline(poster)?;
            (0..num_buf).try_for_each(|index| {
                let buffer = buf_list.add(index).read();
                poster.append_inline(buffer.addr.cast(), buffer.length)
            })
        });
    }
}
