//! Invalidation of memory window keys, locally and by a message of the peer (`man ibv_post_send`,
//! `man ibv_wr_post`; IBTA chapter 10, memory invalidation).

use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_wc_flags as WcFlags;
use rdma_mummy_sys::types::ibv_wc_opcode as WcOpcode;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use super::windows::{
    BINDS, ONE, TWO, WRITE, bind_two, bound_one, bound_two, is_refused, local, nodes, through, writes,
};
use crate::kit::{
    BindRange, Buf, EVERYTHING, Flavour, Mw, Node, Outcome, RemoteAddr, Suite, TestDevice, Wc, Wr, next_key,
    pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_window_of_type_1_is_not_invalidated,
    );
    both!(suite:
        a_window_is_invalidated,
        an_unknown_key_is_not_invalidated,
        a_regions_key_is_not_invalidated,
        a_message_invalidates_a_window,
        a_long_message_invalidates_a_window,
        a_window_is_bound_again_and_again,
        a_message_that_invalidates_nothing_fails,
        a_message_does_not_invalidate_a_region,
        a_send_after_an_invalidation_sees_it,
        a_fenced_invalidation_waits_for_a_read,
        requests_about_windows_are_flushed,
    );
}

/// The key that a message invalidated. SoftRoCE passes on the kernel's value of the flag, which
/// libibverbs gives another meaning.
fn invalidated(dut: &TestDevice, wc: &Wc) -> Option<u32> {
    const OF_KERNEL: u32 = 1 << 2;
    dut.expects(wc.invalidated, (wc.flags & OF_KERNEL != 0).then(|| wc.imm.to_be()))
}

/// IBTA o10-37.2.26: only windows of type 2 are invalidated.
fn a_window_of_type_1_is_not_invalidated(dut: &TestDevice) -> Outcome {
    let (_a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let mw = bound_one(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    assert_eq!(b.fails(Wr::local_inv(1, mw.rkey())), local(dut, Status::IBV_WC_LOC_QP_OP_ERR));
    Ok(())
}

/// `IBV_WR_LOCAL_INV`; after it the window can be bound again.
fn a_window_is_invalidated(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mr = b.pd.reg(&Buf::new(4096), EVERYTHING | BINDS).unwrap();
    let mw = bound_two(&b, &BindRange::of(&mr, 0, 4096, WRITE));
    let old = RemoteAddr { addr: mr.addr(0), rkey: mw.rkey() };
    a.done(Wr::write(1, old).sge(a.mr.at(0, 64)));
    assert_eq!(b.done(Wr::local_inv(2, mw.rkey())).opcode, WcOpcode::IBV_WC_LOCAL_INV);
    assert_eq!(mr.dereg(), 0);
    bind_two(&b, &mw, &BindRange::of(&b.mr, 0, 4096, WRITE));
    writes(&a, &b, through(&mw, &b, 0), 0, 20);
    assert_eq!(a.fails(Wr::write(3, old).sge(a.mr.at(0, 64))), Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn an_unknown_key_is_not_invalidated(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    let unknown = next_key(next_key(mw.rkey()));
    assert_eq!(b.fails(Wr::local_inv(1, unknown)), local(dut, Status::IBV_WC_LOC_QP_OP_ERR));
    Ok(())
}

/// Only regions that a work request registered can be invalidated (IBTA chapter 10, memory
/// invalidation), and `ibv_reg_mr` is a call.
fn a_regions_key_is_not_invalidated(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_a, b) = nodes(dut, TWO, flavour)?;
    assert_eq!(b.fails(Wr::local_inv(1, b.mr.rkey())), local(dut, Status::IBV_WC_LOC_QP_OP_ERR));
    Ok(())
}

/// `IBV_WR_SEND_WITH_INV`: the completion has the key, and the flag `IBV_WC_WITH_INV`.
fn a_message_invalidates_a_window(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    let key = through(&mw, &b, 0);
    writes(&a, &b, key, 0, 21);
    b.recv(3, 8192, 64);
    a.mr.buf.set(0, &pattern(22, 48));
    assert_eq!(a.done(Wr::send_inv(1, key.rkey).sge(a.mr.at(0, 48))).opcode, WcOpcode::IBV_WC_SEND);
    let wc = b.recv_cq.ok();
    assert_eq!((wc.id, wc.len, wc.opcode), (3, 48, WcOpcode::IBV_WC_RECV));
    assert!(!wc.has(WcFlags::IBV_WC_WITH_IMM), "{wc:?}");
    assert_eq!(invalidated(dut, &wc), Some(key.rkey));
    assert_eq!(b.mr.buf.get(8192, 48), pattern(22, 48));
    is_refused(&a, &b, key, 0);
    Ok(())
}

fn a_long_message_invalidates_a_window(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    let key = through(&mw, &b, 0);
    // The message is scattered to two entries.
    let list = [b.mr.at(8192, 3000), b.mr.at(16384, 3000)];
    b.qp.recv(crate::kit::Recv::new(3).list(&list));
    a.mr.buf.set(0, &pattern(23, 5000));
    a.done(Wr::send_inv(1, key.rkey).sge(a.mr.at(0, 5000)));
    let wc = b.recv_cq.ok();
    assert_eq!((wc.id, wc.len, invalidated(dut, &wc)), (3, 5000, Some(key.rkey)));
    assert_eq!(b.mr.buf.get(16384, 2000), pattern(23, 5000)[3000..]);
    is_refused(&a, &b, key, 0);
    Ok(())
}

fn a_window_is_bound_again_and_again(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = Mw::new(&b.pd, TWO).unwrap();
    // More rounds than the window has keys.
    for round in 0..300_usize {
        let offset = round % 8 * 512;
        bind_two(&b, &mw, &BindRange::of(&b.mr, offset, 64, WRITE));
        writes(&a, &b, through(&mw, &b, offset), offset, round as u8);
        if round % 2 == 0 {
            b.recv(4, 32768, 8);
            a.done(Wr::send_inv(1, mw.rkey()));
            assert_eq!(invalidated(dut, &b.recv_cq.ok()), Some(mw.rkey()));
        } else {
            b.done(Wr::local_inv(2, mw.rkey()));
        }
    }
    Ok(())
}

/// The receive ends with an error, and the responder's pair fails.
fn invalidation_fails(a: &Node, b: &Node, key: u32) {
    b.recv(3, 8192, 64);
    a.post(Wr::send_inv(1, key).sge(a.mr.at(0, 48)));
    let wc = b.recv_cq.one();
    assert_eq!(wc.id, 3);
    assert_eq!(wc.status, Status::IBV_WC_REM_INV_REQ_ERR);
    assert!(b.qp.reaches(State::IBV_QPS_ERR));
    // The message itself may have been acknowledged before the failure.
    assert_eq!(a.send_cq.one().id, 1);
}

fn a_message_that_invalidates_nothing_fails(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    invalidation_fails(&a, &b, next_key(mw.rkey()));
    Ok(())
}

fn a_message_does_not_invalidate_a_region(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    invalidation_fails(&a, &b, b.mr.rkey());
    Ok(())
}

/// A request sees the invalidation that was posted before it.
fn a_send_after_an_invalidation_sees_it(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    let key = through(&mw, &b, 0);
    a.recv(5, 1024, 64);
    b.qp.post(&[Wr::local_inv(1, mw.rkey()).quiet(), Wr::send(2).sge(b.mr.at(8192, 64))]).unwrap();
    assert_eq!(a.recv_cq.ok().id, 5);
    assert_eq!(b.send_cq.ok().id, 2);
    is_refused(&a, &b, key, 0);
    Ok(())
}

/// `man ibv_post_send`, `IBV_SEND_FENCE`.
fn a_fenced_invalidation_waits_for_a_read(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    a.mr.buf.set(0, &pattern(25, 4096));
    b.qp.post(&[Wr::read(1, a.mr.remote(0)).sge(b.mr.at(8192, 4096)), Wr::local_inv(2, mw.rkey()).fenced()])
        .unwrap();
    assert_eq!((b.send_cq.ok().id, b.send_cq.ok().id), (1, 2));
    assert_eq!(b.mr.buf.get(8192, 4096), pattern(25, 4096));
    Ok(())
}

fn requests_about_windows_are_flushed(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    b.go(State::IBV_QPS_ERR);
    let other = Mw::new(&b.pd, TWO).unwrap();
    let part = BindRange::of(&b.mr, 0, 4096, WRITE);
    let requests = [Wr::local_inv(1, mw.rkey()), Wr::bind(2, &other, next_key(other.rkey()), &part)];
    b.qp.post(&requests).unwrap();
    for id in [1, 2] {
        let wc = b.send_cq.one();
        assert_eq!((wc.id, wc.status), (id, Status::IBV_WC_WR_FLUSH_ERR));
    }
    Ok(())
}
