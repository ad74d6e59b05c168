//! Implicit regions: the whole address space on demand, of which any address may have no memory.

use rdma_mummy_sys::types::{
    IBV_ADVISE_MR_ADVICE_PREFETCH as PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE as PREFETCH_WRITE,
    ibv_access_flags as Access, ibv_qp_create_send_ops_flags as SendOps, ibv_qp_state as State,
    ibv_wc_status as Status,
};

use super::regions::{implicit_is_announced, on_demand};
use crate::kit::{
    Cq, EVERYTHING, Flavour, Hole, Node, NodeOptions, Outcome, QKEY, Recv, Sge, Skip, SpecialMr, Suite,
    TestDevice, WAIT_LIMIT, Wr, pair, pattern, poll_until,
};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        an_implicit_region_takes_part_in_messages,
        an_implicit_region_takes_part_in_lists,
    );
    cases!(suite:
        an_implicit_region_takes_part_in_datagrams,
        an_implicit_region_takes_the_result_of_an_atomic,
        a_request_from_an_address_without_memory_fails_here,
        the_result_at_an_address_without_memory_fails_here,
        a_request_to_an_address_without_memory_fails_there,
        a_receive_at_an_address_without_memory_fails,
        receives_behind_one_without_memory_are_flushed,
        the_responder_without_memory_is_in_error,
        a_sender_without_memory_leaves_the_receive,
        an_unreliable_sender_without_memory_fails,
        a_datagram_to_an_address_without_memory_fails_its_receive,
        an_atomic_write_needs_memory_that_stays_or_arrives,
        memory_that_comes_later_is_reached,
        memory_for_reading_alone_is_not_written,
        an_implicit_region_ends_with_its_address_space,
        an_implicit_region_belongs_to_its_domain,
        an_implicit_region_cannot_be_changed,
        an_implicit_region_is_prefetched,
    );
}

const ON_DEMAND: u32 = Access::IBV_ACCESS_ON_DEMAND.0;
/// What an implicit region of every device that has them permits.
const ACCESS: u32 = ON_DEMAND
    | Access::IBV_ACCESS_LOCAL_WRITE.0
    | Access::IBV_ACCESS_REMOTE_WRITE.0
    | Access::IBV_ACCESS_REMOTE_READ.0;
/// Bytes that go inline to the receiver, that the kernel copies, and that take several packets.
const LENGTHS: [usize; 3] = [8, 300, 30_000];

/// How a responder refuses a request whose memory it lacks.
const REFUSED: [Status; 2] = [Status::IBV_WC_REM_OP_ERR, Status::IBV_WC_REM_ACCESS_ERR];

/// A connected pair, each side with its implicit region.
struct ImplicitPair {
    a: Node,
    b: Node,
    ours: SpecialMr,
    theirs: SpecialMr,
}

impl ImplicitPair {
    fn new(dut: &TestDevice, options: &NodeOptions) -> Result<Self, Skip> {
        on_demand(dut)?;
        if !implicit_is_announced(&dut.open()) {
            skip!("{} has no implicit regions", dut.name);
        }
        let (a, b) = pair(dut, options);
        let (ours, theirs) = (a.pd.reg_everything(ACCESS), b.pd.reg_everything(ACCESS));
        let (Ok(ours), Ok(theirs)) = (ours, theirs) else {
            skip!("{} has implicit regions for local access alone", dut.name);
        };
        Ok(Self { a, b, ours, theirs })
    }

    fn rc(dut: &TestDevice) -> Result<Self, Skip> {
        Self::new(dut, &NodeOptions::rc(Flavour::Classic))
    }
}

fn an_implicit_region_takes_part_in_messages(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let ImplicitPair { a, b, ours, theirs } = ImplicitPair::new(dut, &NodeOptions::rc(flavour))?;
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let seed = n as u8;
        let (here, there) = (a.mr.addr(3), b.mr.addr(5));
        a.mr.buf.set(3, &pattern(seed, len));
        // Each side by an implicit region, and by an ordinary one.
        for (local, remote) in [
            (ours.at(here, len as u32), theirs.remote(there)),
            (ours.at(here, len as u32), b.mr.remote(5)),
            (a.mr.at(3, len), theirs.remote(there)),
        ] {
            b.mr.buf.set(5, &vec![0; len]);
            a.done(Wr::write(1, remote).sge(local));
            assert_eq!(b.mr.buf.get(5, len), pattern(seed, len));
            b.mr.buf.set(5, &pattern(seed + 100, len));
            a.done(Wr::read(2, remote).sge(local));
            assert_eq!(a.mr.buf.get(3, len), pattern(seed + 100, len));
            a.mr.buf.set(3, &pattern(seed, len));
        }
        for (local, receive) in [
            (ours.at(here, len as u32), theirs.at(there, 1 << 15)),
            (ours.at(here, len as u32), b.mr.at(5, 1 << 15)),
            (a.mr.at(3, len), theirs.at(there, 1 << 15)),
        ] {
            b.mr.buf.set(5, &vec![0; len]);
            b.qp.recv(Recv::new(3).sge(receive));
            a.done(Wr::send(4).sge(local));
            assert_eq!(b.recv_cq.ok().len as usize, len);
            assert_eq!(b.mr.buf.get(5, len), pattern(seed, len));
        }
    }
    Ok(())
}

fn an_implicit_region_takes_part_in_lists(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let ImplicitPair { a, b, ours, theirs } = ImplicitPair::new(dut, &NodeOptions::rc(flavour))?;
    for part in [3, 100, 9000] {
        let bytes = pattern(part as u8, 3 * part as usize);
        let all = |from: u64| [from, from + 10_000, from + 20_000];
        let [first, second, third] = all(a.mr.addr(0));
        for (n, at) in [0, 10_000, 20_000].into_iter().enumerate() {
            a.mr.buf.set(at, &bytes[n * part as usize..][..part as usize]);
        }
        let list = [ours.at(first, part), a.mr.at(10_000, part as usize), ours.at(third, part)];
        assert_eq!(second, a.mr.addr(10_000));
        a.done(Wr::write(1, theirs.remote(b.mr.addr(1))).list(&list));
        assert_eq!(b.mr.buf.get(1, bytes.len()), bytes);
        let [first, _, third] = all(b.mr.addr(1));
        b.mr.buf.set(0, &[0; 40_000]);
        b.qp.recv(Recv::new(2).list(&[
            theirs.at(first, part),
            b.mr.at(10_001, part as usize),
            theirs.at(third, part),
        ]));
        a.done(Wr::send(3).list(&list));
        assert_eq!(b.recv_cq.ok().len, 3 * part);
        for (n, at) in [1, 10_001, 20_001].into_iter().enumerate() {
            assert_eq!(b.mr.buf.get(at, part as usize), bytes[n * part as usize..][..part as usize]);
        }
    }
    Ok(())
}

fn an_implicit_region_takes_part_in_datagrams(dut: &TestDevice) -> Outcome {
    let ImplicitPair { a, b, ours, theirs } = ImplicitPair::new(dut, &NodeOptions::ud(Flavour::Classic))?;
    for len in [8, 1000] {
        a.mr.buf.set(0, &pattern(len as u8, len));
        b.qp.recv(Recv::new(1).sge(theirs.at(b.mr.addr(0), 2000)));
        a.done(Wr::send(2).sge(ours.at(a.mr.addr(0), len as u32)).to(&a.ah(&b), b.qp.num(), QKEY));
        assert_eq!(b.recv_cq.ok().len as usize, len + 40);
        assert_eq!(b.mr.buf.get(40, len), pattern(len as u8, len));
    }
    Ok(())
}

fn an_implicit_region_takes_the_result_of_an_atomic(dut: &TestDevice) -> Outcome {
    let ImplicitPair { a, b, ours, .. } = ImplicitPair::rc(dut)?;
    b.mr.buf.set(0, &7_u64.to_ne_bytes());
    a.done(Wr::fetch_add(1, b.mr.remote(0), 5).sge(ours.at(a.mr.addr(8), 8)));
    assert_eq!((a.mr.buf.get_u64(8), b.mr.buf.get_u64(0)), (7, 12));
    Ok(())
}

/// A page that cannot be accessed, one that no process can map, and one of the kernel's half.
fn addresses_without_memory(hole: &Hole) -> [u64; 3] {
    [hole.addr(), 4096, 0xffff_8000_0000_0000]
}

fn a_request_from_an_address_without_memory_fails_here(dut: &TestDevice) -> Outcome {
    let hole = Hole::new();
    for nowhere in addresses_without_memory(&hole) {
        for len in [8, 300, 4000] {
            for write in [true, false] {
                let ImplicitPair { a, b, ours, theirs } = ImplicitPair::rc(dut)?;
                b.qp.recv(Recv::new(1).sge(b.mr.at(0, 4096)));
                // The first entry names memory.
                let list = [ours.at(a.mr.addr(0), 8), ours.at(nowhere, len)];
                let wr = if write { Wr::write(2, theirs.remote(b.mr.addr(0))) } else { Wr::send(2) };
                assert_eq!(a.fails(wr.list(&list)), Status::IBV_WC_LOC_PROT_ERR, "{len} at {nowhere:#x}");
                assert!(b.recv_cq.is_empty(), "nothing arrives");
            }
        }
    }
    Ok(())
}

fn the_result_at_an_address_without_memory_fails_here(dut: &TestDevice) -> Outcome {
    let hole = Hole::new();
    for nowhere in addresses_without_memory(&hole) {
        for (implicit, len) in [(true, 8), (true, 4000), (false, 8), (false, 4000)] {
            let ImplicitPair { a, b, ours, theirs } = ImplicitPair::rc(dut)?;
            let from = if implicit { theirs.remote(b.mr.addr(0)) } else { b.mr.remote(0) };
            let read = Wr::read(1, from).sge(ours.at(nowhere, len));
            assert_eq!(a.fails(read), Status::IBV_WC_LOC_PROT_ERR, "{len} at {nowhere:#x}");
        }
        let ImplicitPair { a, b, ours, .. } = ImplicitPair::rc(dut)?;
        let add = Wr::fetch_add(1, b.mr.remote(0), 5).sge(ours.at(nowhere, 8));
        assert_eq!(a.fails(add), Status::IBV_WC_LOC_PROT_ERR, "{nowhere:#x}");
    }
    Ok(())
}

fn a_request_to_an_address_without_memory_fails_there(dut: &TestDevice) -> Outcome {
    let hole = Hole::new();
    for nowhere in addresses_without_memory(&hole) {
        for (implicit, len) in [(true, 8), (true, 4000), (false, 8), (false, 4000)] {
            for write in [true, false] {
                let ImplicitPair { a, b: _b, ours, theirs } = ImplicitPair::rc(dut)?;
                let local = if implicit { ours.at(a.mr.addr(0), len) } else { a.mr.at(0, len as usize) };
                let remote = theirs.remote(nowhere);
                let wr = if write { Wr::write(1, remote) } else { Wr::read(1, remote) };
                let status = a.fails(wr.sge(local));
                assert!(REFUSED.contains(&status), "{status:?}, {len} at {nowhere:#x}");
            }
        }
    }
    Ok(())
}

/// As for a receive whose key is wrong.
fn a_receive_at_an_address_without_memory_fails(dut: &TestDevice) -> Outcome {
    let hole = Hole::new();
    for nowhere in addresses_without_memory(&hole) {
        for len in LENGTHS {
            let ImplicitPair { a, b, theirs, .. } = ImplicitPair::rc(dut)?;
            b.qp.recv(Recv::new(1).list(&[b.mr.at(0, 4), theirs.at(nowhere, 1 << 15)]));
            a.post(Wr::send(2).sge(a.mr.at(0, len)));
            let received = b.recv_cq.one();
            assert_eq!((received.id, received.status), (1, Status::IBV_WC_LOC_PROT_ERR), "{len} bytes");
            assert_eq!(a.send_cq.one().status, Status::IBV_WC_REM_OP_ERR, "{len} bytes");
        }
    }
    Ok(())
}

/// No message arrives behind one that is lost.
fn receives_behind_one_without_memory_are_flushed(dut: &TestDevice) -> Outcome {
    let hole = Hole::new();
    for len in LENGTHS {
        let ImplicitPair { a, b, theirs, .. } = ImplicitPair::rc(dut)?;
        b.qp.recv(Recv::new(0).sge(theirs.at(hole.addr(), 1 << 15)));
        (1..3).for_each(|id| b.qp.recv(Recv::new(id).sge(b.mr.at(0, 1 << 15))));
        (0..3).for_each(|id| a.post(Wr::send(id).sge(a.mr.at(0, len))));
        let statuses = |node_cq: &Cq| node_cq.wait(3).into_iter().map(|wc| wc.status).collect::<Vec<_>>();
        let flushed = Status::IBV_WC_WR_FLUSH_ERR;
        assert_eq!(statuses(&a.send_cq), [Status::IBV_WC_REM_OP_ERR, flushed, flushed], "{len} bytes");
        assert_eq!(statuses(&b.recv_cq), [Status::IBV_WC_LOC_PROT_ERR, flushed, flushed], "{len} bytes");
    }
    Ok(())
}

/// The responder of a refused request is in error, as after a wrong key.
fn the_responder_without_memory_is_in_error(dut: &TestDevice) -> Outcome {
    let hole = Hole::new();
    for write in [true, false] {
        let ImplicitPair { a, b, theirs, .. } = ImplicitPair::rc(dut)?;
        let remote = theirs.remote(hole.addr());
        let wr = if write { Wr::write(1, remote) } else { Wr::read(1, remote) };
        let status = a.fails(wr.sge(a.mr.at(0, 300)));
        assert!(REFUSED.contains(&status), "{status:?}");
        let failed = || (b.qp.state() == State::IBV_QPS_ERR).then_some(());
        assert!(poll_until(WAIT_LIMIT, failed).is_some(), "{:?}", b.qp.state());
    }
    Ok(())
}

/// The receiver is not at fault, also if the sender has a mapping, but not its memory.
fn a_sender_without_memory_leaves_the_receive(dut: &TestDevice) -> Outcome {
    let (hole, beyond) = (Hole::new(), Hole::beyond_a_file());
    for (nowhere, len) in [(&hole, 8), (&hole, 300), (&hole, 4000), (&beyond, 8), (&beyond, 4000)] {
        let ImplicitPair { a, b, ours, theirs } = ImplicitPair::rc(dut)?;
        b.qp.recv(Recv::new(1).sge(theirs.at(b.mr.addr(0), 4096)));
        assert_eq!(a.fails(Wr::send(2).sge(ours.at(nowhere.addr(), len))), Status::IBV_WC_LOC_PROT_ERR);
        assert!(b.recv_cq.is_empty());
        assert_eq!(b.qp.state(), State::IBV_QPS_RTS);
    }
    Ok(())
}

fn an_unreliable_sender_without_memory_fails(dut: &TestDevice) -> Outcome {
    let hole = Hole::new();
    for nowhere in addresses_without_memory(&hole) {
        let options = NodeOptions::uc(Flavour::Classic);
        let ImplicitPair { a, b, ours, theirs } = ImplicitPair::new(dut, &options)?;
        a.post(Wr::write(1, theirs.remote(b.mr.addr(0))).sge(ours.at(nowhere, 300)));
        assert_eq!(a.send_cq.one().status, Status::IBV_WC_LOC_PROT_ERR, "{nowhere:#x}");
    }
    Ok(())
}

fn a_datagram_to_an_address_without_memory_fails_its_receive(dut: &TestDevice) -> Outcome {
    let options = NodeOptions::ud(Flavour::Classic);
    let hole = Hole::new();
    for len in [8, 1000] {
        let ImplicitPair { a, b, theirs, .. } = ImplicitPair::new(dut, &options)?;
        b.qp.recv(Recv::new(1).sge(theirs.at(hole.addr(), 2000)));
        a.done(Wr::send(2).sge(a.mr.at(0, len)).to(&a.ah(&b), b.qp.num(), QKEY));
        assert_eq!(b.recv_cq.one().status, Status::IBV_WC_LOC_PROT_ERR, "{len} bytes");
    }
    Ok(())
}

/// A device that does not announce ATOMIC WRITE for memory on demand may refuse it.
fn an_atomic_write_needs_memory_that_stays_or_arrives(dut: &TestDevice) -> Outcome {
    let options = NodeOptions::rc(Flavour::Extended)
        .set(|options| options.more_ops = SendOps::IBV_QP_EX_WITH_ATOMIC_WRITE);
    let ImplicitPair { a, b, theirs, .. } = ImplicitPair::new(dut, &options)?;
    a.post(Wr::atomic_write(1, theirs.remote(b.mr.addr(8)), 77));
    let status = a.send_cq.one().status;
    let arrived = b.mr.buf.get_u64(8) == 77;
    assert_eq!(arrived, status == Status::IBV_WC_SUCCESS, "{status:?}");
    assert!(arrived || REFUSED.contains(&status), "{status:?}");
    Ok(())
}

/// The registration is about addresses, whatever they map.
fn memory_that_comes_later_is_reached(dut: &TestDevice) -> Outcome {
    let ImplicitPair { a, b, ours, theirs } = ImplicitPair::rc(dut)?;
    let hole = Hole::new();
    hole.fill();
    hole.set(&pattern(1, 4000));
    a.done(Wr::write(1, theirs.remote(b.mr.addr(0))).sge(ours.at(hole.addr(), 4000)));
    assert_eq!(b.mr.buf.get(0, 4000), pattern(1, 4000));
    a.mr.buf.set(0, &pattern(2, 4000));
    a.done(Wr::write(2, theirs.remote(hole.addr())).sge(ours.at(a.mr.addr(0), 4000)));
    assert_eq!(hole.get(4000), pattern(2, 4000));
    hole.empty();
    let again = a.fails(Wr::write(3, theirs.remote(b.mr.addr(0))).sge(ours.at(hole.addr(), 4000)));
    assert_eq!(again, Status::IBV_WC_LOC_PROT_ERR);
    Ok(())
}

fn memory_for_reading_alone_is_not_written(dut: &TestDevice) -> Outcome {
    let hole = Hole::new();
    hole.fill();
    hole.set(&[9; 100]);
    hole.protect();
    let ImplicitPair { a, b, ours, theirs } = ImplicitPair::rc(dut)?;
    a.done(Wr::write(1, theirs.remote(b.mr.addr(0))).sge(ours.at(hole.addr(), 100)));
    assert_eq!(b.mr.buf.get(0, 100), [9; 100]);
    let read = Wr::read(2, b.mr.remote(100)).sge(ours.at(hole.addr(), 100));
    assert_eq!(a.fails(read), Status::IBV_WC_LOC_PROT_ERR);
    let ImplicitPair { a, b: _b, theirs, .. } = ImplicitPair::rc(dut)?;
    let status = a.fails(Wr::write(3, theirs.remote(hole.addr())).sge(a.mr.at(0, 100)));
    assert!(REFUSED.contains(&status), "{status:?}");
    assert_eq!(hole.get(100), [9; 100]);
    Ok(())
}

fn an_implicit_region_ends_with_its_address_space(dut: &TestDevice) -> Outcome {
    for (local, remote) in [(u64::MAX - 3, 0), (0, u64::MAX - 3)] {
        let ImplicitPair { a, b, ours, theirs } = ImplicitPair::rc(dut)?;
        let here = if local == 0 { a.mr.addr(0) } else { local };
        let there = if remote == 0 { b.mr.addr(0) } else { remote };
        let status = a.fails(Wr::write(1, theirs.remote(there)).sge(ours.at(here, 8)));
        assert_eq!(status == Status::IBV_WC_LOC_PROT_ERR, local != 0, "{status:?}");
    }
    Ok(())
}

fn an_implicit_region_belongs_to_its_domain(dut: &TestDevice) -> Outcome {
    let ImplicitPair { a, b, ours, .. } = ImplicitPair::rc(dut)?;
    let other = a.device.pd().reg_everything(ACCESS).unwrap();
    a.done(Wr::write(1, b.mr.remote(0)).sge(ours.at(a.mr.addr(0), 8)));
    let status = a.fails(Wr::write(2, b.mr.remote(0)).sge(other.at(a.mr.addr(0), 8)));
    assert_eq!(status, Status::IBV_WC_LOC_PROT_ERR);
    let ImplicitPair { a, b, ours, .. } = ImplicitPair::rc(dut)?;
    let key = ours.fields().lkey;
    assert_eq!(ours.dereg(), 0);
    let after = Sge { addr: a.mr.addr(0), length: 8, lkey: key };
    assert_eq!(a.fails(Wr::write(3, b.mr.remote(0)).sge(after)), Status::IBV_WC_LOC_PROT_ERR);
    Ok(())
}

fn an_implicit_region_cannot_be_changed(dut: &TestDevice) -> Outcome {
    let ImplicitPair { a, b, ours, .. } = ImplicitPair::rc(dut)?;
    assert_ne!(ours.rereg_access(EVERYTHING), 0);
    a.done(Wr::write(1, b.mr.remote(0)).sge(ours.at(a.mr.addr(0), 8)));
    Ok(())
}

fn an_implicit_region_is_prefetched(dut: &TestDevice) -> Outcome {
    let ImplicitPair { a, ours, .. } = ImplicitPair::rc(dut)?;
    for advice in [PREFETCH, PREFETCH_WRITE] {
        assert_eq!(a.pd.advise(advice, 1, &[ours.at(a.mr.addr(0), 10_000)]), 0, "{advice:?}");
        assert_ne!(a.pd.advise(advice, 1, &[ours.at(4096, 10)]), 0, "{advice:?}");
    }
    Ok(())
}
