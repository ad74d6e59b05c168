//! Posting work requests.

use core::ffi::{c_int, c_void};

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{qp_ex_op, verbs};

use super::fake::*;
use super::word::*;

struct_cases! {
    QP_CASES, ibv_qp_ex of verbs, shorter by |release| release.qp_ex;
    ibv_wr_start() = wr_start;
    ibv_wr_complete() -> c_int = wr_complete;
    ibv_wr_abort() = wr_abort;
    ibv_wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = wr_atomic_cmp_swp;
    ibv_wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = wr_atomic_fetch_add;
    ibv_wr_atomic_write(rkey: u32, addr: u64, data: *const c_void) = wr_atomic_write;
    ibv_wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) = wr_bind_mw;
    ibv_wr_flush(rkey: u32, addr: u64, len: usize, placement: u8, level: u8) = wr_flush;
    ibv_wr_local_inv(rkey: u32) = wr_local_inv;
    ibv_wr_rdma_read(rkey: u32, addr: u64) = wr_rdma_read;
    ibv_wr_rdma_write(rkey: u32, addr: u64) = wr_rdma_write;
    ibv_wr_rdma_write_imm(rkey: u32, addr: u64, imm: __be32) = wr_rdma_write_imm;
    ibv_wr_send() = wr_send;
    ibv_wr_send_imm(imm: __be32) = wr_send_imm;
    ibv_wr_send_inv(rkey: u32) = wr_send_inv;
    ibv_wr_send_tso(header: *mut c_void, size: u16, mss: u16) = wr_send_tso;
    ibv_wr_set_ud_addr(ah: *mut ibv_ah, qpn: u32, qkey: u32) = wr_set_ud_addr;
    ibv_wr_set_xrc_srqn(srqn: u32) = wr_set_xrc_srqn;
    ibv_wr_set_inline_data(addr: *mut c_void, length: usize) = wr_set_inline_data;
    ibv_wr_set_inline_data_list(n: usize, list: *const ibv_data_buf) = wr_set_inline_data_list;
    ibv_wr_set_sge(lkey: u32, addr: u64, length: u32) = wr_set_sge;
    ibv_wr_set_sge_list(n: usize, list: *const ibv_sge) = wr_set_sge_list;
}

classic_cases! {
    ibv_post_send(qp: ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) = post_send;
    ibv_post_recv(qp: ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) = post_recv;
    ibv_post_srq_recv(srq: ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) = post_srq_recv;
}

tests! {
    fn ibv_post_wq_recv() {
        let fake = Fake::<ibv_wq>::new();
        let operation = recorder!(post_recv(
            wq: *mut ibv_wq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr,
        ) -> c_int);
        set!(fake, ibv_wq, post_recv = Some(operation));
        let (wr, bad) = (AbiWord::sample(1), AbiWord::sample(2));
        // SAFETY: the work queue is live and has the operation, which uses no argument.
        assert_eq!(unsafe { verbs::ibv_post_wq_recv(fake.ptr(), wr, bad) }, RESULT as c_int);
        assert_called("post_recv", &[fake.ptr().word(), wr.word(), bad.word()]);
    }

    fn ibv_post_srq_ops() {
        let op = <*mut ibv_ops_wr>::sample(1);
        let call = |context: &FakeContext, bad: *mut *mut ibv_ops_wr| {
            let srq = ibv_srq::on(context);
            // SAFETY: the queue is live, and `bad` is valid for writing.
            (unsafe { verbs::ibv_post_srq_ops(srq.ptr, op, bad) }, srq.ptr.word())
        };
        for release in RELEASES {
            let context = FakeContext::shorter_by(release.verbs_context);
            let mut bad = core::ptr::null_mut();
            assert!(call(&context, &raw mut bad).0.is_unsupported());
            assert_eq!(bad, op, "the first operation was not posted");

            let operation = recorder!(post_srq_ops(
                srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad: *mut *mut ibv_ops_wr,
            ) -> c_int);
            set!(context.0, verbs_context, post_srq_ops = Some(operation));
            bad = core::ptr::null_mut();
            let (result, srq) = call(&context, &raw mut bad);
            assert_eq!(result, RESULT as c_int);
            assert_called("post_srq_ops", &[srq, op.word(), (&raw mut bad).word()]);
            assert!(bad.is_null(), "left to the operation");
        }
        let context = FakeContext::shorter_by(core::mem::offset_of!(verbs_context, post_srq_ops) + 8);
        let mut bad = core::ptr::null_mut();
        assert!(call(&context, &raw mut bad).0.is_unsupported());
        assert_eq!(bad, op);
    }
}

/// The results of `qp_ex_op!` for `wr_send`, `wr_atomic_write` and `wr_flush`.
fn found(fake: &Fake<ibv_qp_ex>, send_ops: u64) -> [bool; 3] {
    let qp = fake.ptr();
    // SAFETY: the queue pair is live, and long enough for the flags.
    unsafe {
        [
            qp_ex_op!(qp, wr_send, send_ops).is_some(),
            qp_ex_op!(qp, wr_atomic_write, send_ops).is_some(),
            qp_ex_op!(qp, wr_flush, send_ops).is_some(),
        ]
    }
}

#[test]
fn an_operation_is_looked_for_only_where_the_flags_say_it_is() {
    let send = u64::from(ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND.0);
    let flush = u64::from(ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_FLUSH.0);
    let atomic_write = u64::from(ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_WRITE.0);
    let fill = |fake: &Fake<ibv_qp_ex>, late: usize| {
        set!(fake, ibv_qp_ex, wr_send = Some(recorder!(wr_send(qp: *mut ibv_qp_ex))));
        if late >= 1 {
            let operation =
                recorder!(wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, data: *const c_void));
            set!(fake, ibv_qp_ex, wr_atomic_write = Some(operation));
        }
        if late >= 2 {
            let operation = recorder!(wr_flush(
                qp: *mut ibv_qp_ex, rkey: u32, addr: u64, len: usize, placement: u8, level: u8,
            ));
            set!(fake, ibv_qp_ex, wr_flush = Some(operation));
        }
    };
    // A release whose struct ends with `wr_abort`.
    let oldest = Fake::ending_with(core::mem::offset_of!(ibv_qp_ex, wr_abort));
    fill(&oldest, 0);
    assert_eq!(found(&oldest, send), [true, false, false]);
    // rdma-core 44.
    let old = Fake::without_end(8);
    fill(&old, 1);
    assert_eq!(found(&old, send), [true, false, false]);
    assert_eq!(found(&old, send | atomic_write), [true, true, false]);
    let new = Fake::new();
    fill(&new, 2);
    assert_eq!(found(&new, send), [true, false, false]);
    assert_eq!(found(&new, send | atomic_write), [true, true, false]);
    assert_eq!(found(&new, flush), [true, true, true]);
    // A null operation is none, although the flags say that the struct has its field.
    assert_eq!(found(&Fake::new(), send | flush | atomic_write), [false; 3]);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "this ibv_qp_ex has no wr_send")]
fn a_missing_operation_is_named_in_a_debug_build() {
    let fake = Fake::<ibv_qp_ex>::new();
    // SAFETY: none. The rule is broken on purpose, and the debug build's check comes before the
    // call.
    unsafe { verbs::ibv_wr_send(fake.ptr()) };
}
