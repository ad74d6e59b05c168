//! Extended posting and polling between queue pairs of one process. The messages are small, so that
//! Miri can run the tests.

use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::verbs::bench::*;
use crate::verbs::testing::{SendPtr, table};

/// All fields that a completion can have.
const FIELDS: u64 = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SRC_QP.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;

/// An extended completion queue, and two queue pairs with extended posting that use it.
struct Extended {
    cq: *mut ibv_cq_ex,
    pair: [*mut ibv_qp; 2],
    ex: [*mut ibv_qp_ex; 2],
}

impl Extended {
    fn new(bench: &VerbsFixture, qp_type: ibv_qp_type) -> Self {
        use ibv_qp_create_send_ops_flags as Op;
        let operations = match qp_type {
            ibv_qp_type::IBV_QPT_UD => Op::IBV_QP_EX_WITH_SEND,
            _ => {
                Op::IBV_QP_EX_WITH_SEND
                    | Op::IBV_QP_EX_WITH_SEND_WITH_IMM
                    | Op::IBV_QP_EX_WITH_RDMA_WRITE
                    | Op::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
                    | Op::IBV_QP_EX_WITH_RDMA_READ
                    | Op::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                    | Op::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
            }
        };
        let mut attr = ibv_cq_init_attr_ex { cqe: 16, wc_flags: FIELDS, ..ibv_cq_init_attr_ex::default() };
        // SAFETY: the context is open.
        let cq = unsafe { verbs::ibv_create_cq_ex(bench.opened.0, &raw mut attr) };
        assert!(!cq.is_null());
        let pair = [(); 2].map(|()| {
            let mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0
                | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
            let mut init = ibv_qp_init_attr_ex {
                send_cq: cq.cast(),
                recv_cq: cq.cast(),
                cap: CAPACITIES,
                qp_type,
                pd: bench.pd,
                comp_mask: mask,
                send_ops_flags: operations.0.into(),
                ..ibv_qp_init_attr_ex::default()
            };
            // SAFETY: all objects are live.
            let qp = unsafe { verbs::ibv_create_qp_ex(table(), bench.opened.0, &raw mut init) };
            assert!(!qp.is_null());
            qp
        });
        bench.connect(pair);
        // SAFETY: the queue pairs are live, and were created with extended operations.
        let ex = pair.map(|qp| unsafe { (table().ibv_qp_to_qp_ex.expect("the table has it"))(qp) });
        Self { cq, pair, ex }
    }

    /// Posts a list of requests. Each closure sets the operation and the payload of one.
    fn post(&self, requests: &[&dyn Fn(*mut ibv_qp_ex)]) -> i32 {
        let [one, _] = self.ex;
        // SAFETY: the queue pair is live, and no other thread opens a list.
        unsafe {
            verbs::ibv_wr_start(one);
            for (number, request) in requests.iter().enumerate() {
                (*one).wr_id = 10 + number as u64;
                (*one).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
                request(one);
            }
            verbs::ibv_wr_complete(one)
        }
    }

    /// Polls all completions field by field: `wr_id`, status, opcode, length, immediate data.
    fn poll(&self) -> Vec<(u64, ibv_wc_status, ibv_wc_opcode, u32, u32)> {
        let mut all = Vec::new();
        let mut attr = ibv_poll_cq_attr::default();
        // SAFETY: the queue is live, only this thread polls it, and it was created with these
        // fields.
        unsafe {
            if verbs::ibv_start_poll(self.cq, &raw mut attr) != 0 {
                return all;
            }
            loop {
                let imm = verbs::ibv_wc_read_imm_data(self.cq);
                let has_imm = verbs::ibv_wc_read_wc_flags(self.cq) & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
                assert_ne!(verbs::ibv_wc_read_completion_ts(self.cq), 0);
                assert!(self.pair.map(number).contains(&verbs::ibv_wc_read_qp_num(self.cq)));
                verbs::ibv_wc_read_src_qp(self.cq);
                all.push((
                    (*self.cq).wr_id,
                    (*self.cq).status,
                    verbs::ibv_wc_read_opcode(self.cq),
                    verbs::ibv_wc_read_byte_len(self.cq),
                    if has_imm { u32::from_be(imm) } else { 0 },
                ));
                if verbs::ibv_next_poll(self.cq) != 0 {
                    break;
                }
            }
            verbs::ibv_end_poll(self.cq);
        }
        all.sort_by_key(|completion| completion.0);
        all
    }

    fn end(self) {
        self.pair.into_iter().for_each(destroy);
        // SAFETY: no queue pair uses the queue any more.
        assert_eq!(unsafe { (table().ibv_destroy_cq)(self.cq.cast()) }, 0);
    }
}

#[test]
fn lists_of_every_operation_are_posted_and_polled() {
    use ibv_wc_opcode as C;
    let bench = VerbsFixture::new(4);
    let extended = Extended::new(&bench, ibv_qp_type::IBV_QPT_RC);
    // SAFETY: the region is live.
    let key = unsafe { (*bench.mr).lkey };
    let (here, there) = (bench.at(0), bench.at(1024));
    (1..=3).for_each(|number| assert_eq!(bench.receive(extended.pair[1], number, 64), 0));
    bench.set(0, 3);
    bench.set(1, 4);
    let mut bytes = [5_u8; 8];
    let inline = (&raw mut bytes).cast();
    let list = [bench.sge(0, 8), bench.sge(8, 8)];
    // SAFETY: each is called while the list is open.
    let posted = unsafe {
        extended.post(&[
            &|qp| {
                verbs::ibv_wr_send(qp);
                verbs::ibv_wr_set_sge_list(qp, 2, list.as_ptr());
            },
            &|qp| {
                verbs::ibv_wr_send_imm(qp, 6_u32.to_be());
                verbs::ibv_wr_set_inline_data(qp, inline, 8);
            },
            &|qp| {
                verbs::ibv_wr_rdma_write_imm(qp, key, there, 7_u32.to_be());
                verbs::ibv_wr_set_sge(qp, key, here, 16);
            },
            &|qp| {
                verbs::ibv_wr_rdma_write(qp, key, there + 64);
                let parts = [4, 4].map(|length| ibv_data_buf { addr: inline, length });
                verbs::ibv_wr_set_inline_data_list(qp, 2, parts.as_ptr());
            },
        ])
    };
    assert_eq!(posted, 0);
    let ok = |(wr_id, opcode, length, imm)| (wr_id, SUCCESS, opcode, length, imm);
    let completions = extended.poll();
    assert_eq!(
        completions[..3],
        [(1, C::IBV_WC_RECV, 16, 0), (2, C::IBV_WC_RECV, 8, 6), (3, C::IBV_WC_RECV_RDMA_WITH_IMM, 16, 7)]
            .map(ok)
    );
    let opcodes: Vec<_> = completions[3..].iter().map(|completion| (completion.0, completion.2)).collect();
    let write = C::IBV_WC_RDMA_WRITE;
    assert_eq!(opcodes, [(10, C::IBV_WC_SEND), (11, C::IBV_WC_SEND), (12, write), (13, write)]);
    assert_eq!([128, 129, 136].map(|at| bench.get(at)), [3, 4, 0x0505_0505_0505_0505]);
    // SAFETY: each is called while the list is open.
    let posted = unsafe {
        extended.post(&[
            &|qp| {
                verbs::ibv_wr_atomic_fetch_add(qp, key, there, 10);
                verbs::ibv_wr_set_sge(qp, key, here, 8);
            },
            &|qp| {
                verbs::ibv_wr_atomic_cmp_swp(qp, key, there, 13, 99);
                verbs::ibv_wr_set_sge(qp, key, here + 8, 8);
            },
            &|qp| {
                verbs::ibv_wr_rdma_read(qp, key, there);
                verbs::ibv_wr_set_sge(qp, key, here + 16, 8);
            },
        ])
    };
    assert_eq!((posted, extended.poll().len()), (0, 3));
    assert_eq!([0, 1, 2].map(|at| bench.get(at)), [3, 13, 99]);
    extended.end();
}

#[test]
fn invalid_or_aborted_lists_post_nothing() {
    let bench = VerbsFixture::new(4);
    let extended = Extended::new(&bench, ibv_qp_type::IBV_QPT_RC);
    let send = |qp| {
        // SAFETY: called while the list is open.
        unsafe { verbs::ibv_wr_send(qp) };
    };
    assert_ne!(extended.post(&[&send as &dyn Fn(*mut ibv_qp_ex); 5]), 0, "more than fit");
    let mut bytes = [0_u8; 64];
    let inline = (&raw mut bytes).cast();
    let long = |qp| {
        send(qp);
        // SAFETY: called while the list is open.
        unsafe { verbs::ibv_wr_set_inline_data(qp, inline, 64) };
    };
    assert_ne!(extended.post(&[&long]), 0, "more than may be inline");
    let [one, other] = extended.ex;
    // SAFETY: both queue pairs are live, and no other thread posts.
    unsafe {
        verbs::ibv_wr_start(one);
        send(one);
        verbs::ibv_wr_abort(one);
    }
    assert_eq!(extended.poll(), []);
    assert_eq!(bench.receive(extended.pair[1], 1, 8), 0);
    assert_eq!(extended.post(&[&send]), 0);
    assert_eq!(extended.poll().len(), 2);
    assert_ne!(other, ptr::null_mut());
    extended.end();
}

#[test]
fn datagrams_are_addressed_by_a_setter() {
    let bench = VerbsFixture::new(4);
    let extended = Extended::new(&bench, ibv_qp_type::IBV_QPT_UD);
    let mut attr = bench.ah_attr();
    // SAFETY: the domain is live.
    let ah = unsafe { (table().ibv_create_ah)(bench.pd, &raw mut attr) };
    let to = number(extended.pair[1]);
    assert_eq!(bench.receive(extended.pair[1], 1, 64), 0);
    let list = [bench.sge(0, 8)];
    let posted = extended.post(&[&|qp| {
        // SAFETY: called while the list is open; the handle is live.
        unsafe {
            verbs::ibv_wr_send(qp);
            verbs::ibv_wr_set_ud_addr(qp, ah, to, QKEY);
            verbs::ibv_wr_set_sge_list(qp, 1, list.as_ptr());
        }
    }]);
    assert_eq!(posted, 0);
    assert_eq!(
        extended.poll().iter().map(|wc| (wc.0, wc.1)).collect::<Vec<_>>(),
        [(1, SUCCESS), (10, SUCCESS)]
    );
    extended.end();
    // SAFETY: no request uses the handle any more.
    assert_eq!(unsafe { (table().ibv_destroy_ah)(ah) }, 0);
}

#[test]
fn list_left_open_is_dropped_by_the_next_call() {
    let bench = VerbsFixture::new(16);
    let extended = Extended::new(&bench, ibv_qp_type::IBV_QPT_RC);
    let [one, other] = extended.pair;
    let [ex, _] = extended.ex;
    let open = || {
        // SAFETY: the queue pair is live.
        unsafe {
            verbs::ibv_wr_start(ex);
            (*ex).wr_id = 1;
            verbs::ibv_wr_send(ex);
        }
    };
    open();
    assert_eq!(modify(one, in_state(ibv_qp_state::IBV_QPS_RESET)), 0);
    // SAFETY: the queue pair is live. The call must report that its list was dropped.
    unsafe {
        verbs::ibv_wr_send(ex);
        assert_eq!(verbs::ibv_wr_complete(ex), libc::EINVAL);
        verbs::ibv_wr_abort(ex);
    }
    // After a reset the queue pair works as a new one.
    assert_eq!(modify(other, in_state(ibv_qp_state::IBV_QPS_RESET)), 0);
    bench.connect(extended.pair);
    assert_eq!(bench.receive(other, 7, 64), 0);
    open();
    // A new list, or a single posted request, also drops the open list.
    // SAFETY: the queue pair is live and its list open; the region is live.
    let send = |ex: *mut ibv_qp_ex| unsafe {
        verbs::ibv_wr_send(ex);
        let sge = bench.sge(0, 8);
        verbs::ibv_wr_set_sge(ex, sge.lkey, sge.addr, sge.length);
    };
    assert_eq!(extended.post(&[&send]), 0);
    let results: Vec<_> = extended.poll().iter().map(|wc| (wc.0, wc.1)).collect();
    assert_eq!(results, [(7, SUCCESS), (10, SUCCESS)]);
    open();
    assert_eq!(bench.receive(other, 8, 64), 0);
    assert_eq!(bench.send(one, 9, 8, |_| {}), 0);
    assert_eq!(extended.poll().iter().map(|wc| wc.0).collect::<Vec<_>>(), [8, 9]);
    open();
    extended.end();
}

#[test]
fn wait_for_another_threads_list_is_limited() {
    let bench = VerbsFixture::new(16);
    let extended = Extended::new(&bench, ibv_qp_type::IBV_QPT_RC);
    let ex = SendPtr::new(extended.ex[0]);
    let (opened, opened_rx) = std::sync::mpsc::channel();
    let (refused_tx, refused) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // SAFETY: the queue pair is live, and this thread opens the list.
            unsafe { verbs::ibv_wr_start(ex.get()) };
            opened.send(()).expect("the main thread waits for it");
            refused.recv().expect("the call returns");
            // SAFETY: the queue pair is live, and this thread has opened the list.
            unsafe { verbs::ibv_wr_abort(ex.get()) };
        });
        opened_rx.recv().expect("a list");
        assert_eq!(modify(extended.pair[0], in_state(ibv_qp_state::IBV_QPS_RESET)), libc::EBUSY);
        refused_tx.send(()).expect("it waits");
    });
    assert_eq!(modify(extended.pair[0], in_state(ibv_qp_state::IBV_QPS_RESET)), 0);
    extended.end();
}
