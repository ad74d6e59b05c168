//! Posting: refused requests, and the reported errors.

use libc::{EINVAL, ENOMEM, ENOSPC};
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_wc_status as Status;
use rdma_mummy_sys::types::ibv_wr_opcode as Opcode;

use crate::kit::{Flavour, NodeOptions, Outcome, Recv, Suite, TestDevice, Wr, pair, pattern};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        a_full_send_queue_refuses_and_recovers,
        a_full_receive_queue_refuses_and_recovers,
    );
    cases!(suite:
        a_list_that_does_not_fit_is_posted_up_to_there,
        a_bad_request_in_a_list_is_named,
        a_bad_receive_in_a_list_is_named,
        too_many_entries_of_a_send_are_refused,
        too_many_entries_of_a_receive_are_refused,
        too_much_inline_data_is_refused,
        inline_data_of_a_read_is_refused,
        an_unknown_operation_is_refused,
        an_extended_batch_that_does_not_fit_is_refused,
        an_extended_batch_with_too_much_inline_data_is_refused,
        an_empty_list_is_fine,
        completions_give_places_back,
        unsignaled_requests_give_their_places_back_late,
    );
}

fn small(flavour: Flavour) -> NodeOptions {
    NodeOptions::rc(flavour).set(|options| (options.cap.max_send_wr, options.cap.max_recv_wr) = (4, 4))
}

/// `man ibv_post_send` names no error numbers. Every provider returns `ENOMEM`, and SoftRoCE
/// `ENOSPC` in a batch.
fn is_full(error: i32) -> bool {
    [ENOMEM, ENOSPC].contains(&error)
}

/// The peer posts no receive, so that nothing completes while the queue fills.
fn a_full_send_queue_refuses_and_recovers(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &small(flavour));
    let room = a.qp.granted().max_send_wr as u64;
    let mut posted = 0;
    let error = loop {
        match a.qp.post(&[Wr::send(posted).sge(a.mr.at(0, 8))]) {
            Ok(()) => posted += 1,
            Err((error, _)) => break error,
        }
        assert!(posted < 10_000, "the queue never fills");
    };
    assert!(is_full(error), "{error}");
    assert!(posted >= room, "{posted} of {room}");
    for id in 0..posted {
        while b.qp.recv_list(&[Recv::new(id).sge(b.mr.at(0, 64))]).is_err() {
            b.recv_cq.ok();
        }
    }
    let ids: Vec<_> = a.send_cq.wait(posted as usize).iter().map(|wc| wc.id).collect();
    assert_eq!(ids, (0..posted).collect::<Vec<_>>());
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

fn a_full_receive_queue_refuses_and_recovers(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &small(flavour));
    let room = b.qp.granted().max_recv_wr as u64;
    let mut posted = 0;
    let error = loop {
        match b.qp.recv_list(&[Recv::new(posted).sge(b.mr.at(0, 64))]) {
            Ok(()) => posted += 1,
            Err((error, index)) => {
                assert_eq!(index, 0);
                break error;
            }
        }
        assert!(posted < 10_000, "the queue never fills");
    };
    assert!(is_full(error) && posted >= room, "{error}, {posted} of {room}");
    a.done(Wr::send(1).sge(a.mr.at(0, 8)));
    assert_eq!(b.recv_cq.ok().id, 0);
    b.recv(posted, 0, 64);
    Ok(())
}

fn a_list_that_does_not_fit_is_posted_up_to_there(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &small(Flavour::Classic));
    let requests: Vec<_> = (0..2000).map(|id| Wr::send(id).sge(a.mr.at(0, 8))).collect();
    let (error, index) = a.qp.post(&requests).unwrap_err();
    assert!(is_full(error) && index >= a.qp.granted().max_send_wr as usize, "{error} at {index}");
    for _ in 0..index {
        while b.qp.recv_list(&[Recv::new(0).sge(b.mr.at(0, 64))]).is_err() {
            b.recv_cq.ok();
        }
    }
    let ids: Vec<_> = a.send_cq.wait(index).iter().map(|wc| wc.id).collect();
    assert_eq!(ids, (0..index as u64).collect::<Vec<_>>());
    assert!(a.send_cq.is_empty());
    Ok(())
}

/// `man ibv_post_send`: the requests before the refused one are posted, and those after it are not.
fn a_bad_request_in_a_list_is_named(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    a.mr.buf.set(0, &pattern(1, 64));
    let entries = a.qp.granted().max_send_sge as usize + 1;
    let good = |id: u64| Wr::write(id, b.mr.remote(id as usize * 8)).sge(a.mr.at(id as usize * 8, 8));
    let bad = Wr::write(2, b.mr.remote(16)).list(&vec![a.mr.at(0, 1); entries]);
    let (error, index) = a.qp.post(&[good(0), good(1), bad, good(3)]).unwrap_err();
    assert!([EINVAL, ENOMEM].contains(&error), "{error}");
    assert_eq!(index, 2);
    assert_eq!(a.send_cq.wait(2).iter().map(|wc| wc.id).collect::<Vec<_>>(), [0, 1]);
    a.done(good(4));
    assert_eq!(b.mr.buf.get(0, 16), pattern(1, 64)[..16]);
    assert_eq!(b.mr.buf.get(16, 16), [0; 16]);
    Ok(())
}

fn a_bad_receive_in_a_list_is_named(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let entries = b.qp.granted().max_recv_sge as usize + 1;
    let good = |id| Recv::new(id).sge(b.mr.at(0, 64));
    let bad = Recv::new(2).list(&vec![b.mr.at(0, 1); entries]);
    let (error, index) = b.qp.recv_list(&[good(0), good(1), bad, good(3)]).unwrap_err();
    assert!([EINVAL, ENOMEM].contains(&error) && index == 2, "{error} at {index}");
    b.recv(4, 0, 64);
    for _ in 0..3 {
        a.done(Wr::send(1).sge(a.mr.at(0, 8)));
    }
    assert_eq!(b.recv_cq.wait(3).iter().map(|wc| wc.id).collect::<Vec<_>>(), [0, 1, 4]);
    Ok(())
}

fn too_many_entries_of_a_send_are_refused(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let most = a.qp.granted().max_send_sge as usize;
    for entries in [most + 1, most + 100] {
        let (error, index) = a.qp.post(&[Wr::send(1).list(&vec![a.mr.at(0, 1); entries])]).unwrap_err();
        assert!([EINVAL, ENOMEM].contains(&error) && index == 0, "{error} at {index}");
    }
    a.done(Wr::write(1, b.mr.remote(0)).list(&vec![a.mr.at(0, 1); most]));
    Ok(())
}

fn too_many_entries_of_a_receive_are_refused(dut: &TestDevice) -> Outcome {
    let (_a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let most = b.qp.granted().max_recv_sge as usize;
    for entries in [most + 1, most + 100] {
        let refused = b.qp.recv_list(&[Recv::new(1).list(&vec![b.mr.at(0, 1); entries])]).unwrap_err();
        assert!([EINVAL, ENOMEM].contains(&refused.0) && refused.1 == 0, "{refused:?}");
    }
    b.qp.recv(Recv::new(2).list(&vec![b.mr.at(0, 1); most]));
    Ok(())
}

fn too_much_inline_data_is_refused(dut: &TestDevice) -> Outcome {
    let (a, b) =
        pair(dut, &NodeOptions::rc(Flavour::Classic).set(|options| options.cap.max_inline_data = 16));
    let most = a.qp.granted().max_inline_data as usize;
    for len in [most + 1, most + 4096] {
        let (error, index) = a.qp.post(&[Wr::write(1, b.mr.remote(0)).inline(&vec![1; len])]).unwrap_err();
        assert!([EINVAL, ENOMEM].contains(&error) && index == 0, "{error} at {index}");
    }
    a.done(Wr::write(2, b.mr.remote(0)).inline(&vec![1; most]));
    Ok(())
}

/// `man ibv_post_send`: inline data is allowed for sends and writes only.
fn inline_data_of_a_read_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce("posts it, and writes what it reads into its own queue")?;
    let (a, b) =
        pair(dut, &NodeOptions::rc(Flavour::Classic).set(|options| options.cap.max_inline_data = 16));
    for wr in [Wr::read(1, b.mr.remote(0)), Wr::fetch_add(1, b.mr.remote(0), 1)] {
        assert_eq!(a.qp.post(&[wr.inline(&[0; 8])]), Err((EINVAL, 0)));
    }
    Ok(())
}

fn an_unknown_operation_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce("posts operations that it does not know")?;
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    for number in [77, 1000] {
        let (error, index) = a.qp.post(&[Wr::new(1, Opcode(number)).sge(a.mr.at(0, 8))]).unwrap_err();
        assert_eq!((error, index), (EINVAL, 0), "operation {number}");
    }
    a.done(Wr::write(2, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

/// `man ibv_wr_post`: if `ibv_wr_complete` fails, no request of the batch is posted.
fn an_extended_batch_that_does_not_fit_is_refused(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &small(Flavour::Extended));
    let requests: Vec<_> = (0..2000).map(|id| Wr::write(id, b.mr.remote(0)).sge(a.mr.at(0, 8))).collect();
    a.mr.buf.set(0, &[1; 8]);
    let (error, _) = a.qp.post(&requests).unwrap_err();
    assert!(is_full(error), "{error}");
    assert!(a.send_cq.is_empty());
    assert_eq!(b.mr.buf.get(0, 8), [0; 8]);
    a.done(Wr::write(5000, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

fn an_extended_batch_with_too_much_inline_data_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce("queues nothing more after a batch with too much inline data")?;
    let (a, b) =
        pair(dut, &NodeOptions::rc(Flavour::Extended).set(|options| options.cap.max_inline_data = 16));
    let most = a.qp.granted().max_inline_data as usize;
    let good = Wr::write(1, b.mr.remote(0)).inline(&[1; 8]);
    let bad = Wr::write(2, b.mr.remote(0)).inline(&vec![1; most + 1]);
    let (error, _) = a.qp.post(&[good, bad]).unwrap_err();
    assert!([EINVAL, ENOMEM].contains(&error), "{error}");
    assert!(a.send_cq.is_empty());
    assert_eq!(b.mr.buf.get(0, 8), [0; 8]);
    a.done(Wr::write(3, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

fn an_empty_list_is_fine(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    a.done(Wr::write(1, b.mr.remote(0)).list(&[]));
    a.done(Wr::write(2, b.mr.remote(0)).list(&[a.mr.at(0, 0), a.mr.at(8, 0)]));
    assert_eq!(a.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn completions_give_places_back(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &small(Flavour::Classic));
    let room = a.qp.granted().max_send_wr as u64;
    for round in 0..20 {
        for id in 0..room {
            a.post(Wr::write(round * room + id, b.mr.remote(0)).sge(a.mr.at(0, 8)));
        }
        let completions = a.send_cq.wait(room as usize);
        assert!(completions.iter().all(|wc| wc.status == Status::IBV_WC_SUCCESS));
    }
    Ok(())
}

/// IBTA 10.7.3.1, completion control: the completion of a signaled request frees the unsignaled
/// ones before it.
fn unsignaled_requests_give_their_places_back_late(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &small(Flavour::Classic));
    for round in 0..50 {
        for id in 0..3 {
            a.post(Wr::write(id, b.mr.remote(0)).sge(a.mr.at(0, 8)).quiet());
        }
        assert_eq!(a.done(Wr::write(round, b.mr.remote(0)).sge(a.mr.at(0, 8))).id, round);
    }
    Ok(())
}
