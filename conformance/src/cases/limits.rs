//! The announced limits of sizes (`man ibv_query_device`, `man ibv_query_port`): the greatest value
//! works, with data. Other modules test that one more is refused, where a test here does not.
//! Numbers of objects are reached by [`counts`](super::counts).

use libc::{EINVAL, ENOMEM, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_access_flags as Access;

use crate::kit::{
    Buf, Dm, EVERYTHING, Flavour, Node, NodeOptions, Outcome, Qp, QpInit, Recv, SoftRoce, Srq, Suite,
    TestDevice, Wr, pair, pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        the_longest_message_arrives_whole,
        the_most_entries_are_gathered_and_scattered,
        the_most_requests_are_queued,
        the_most_receives_are_queued_in_a_shared_queue,
        the_most_inline_data_arrive,
        the_most_reads_are_outstanding,
        the_largest_device_memory_is_reached,
    );
}

fn rc() -> NodeOptions {
    NodeOptions::rc(Flavour::Classic)
}

/// Why SoftRoCE skips the longest queues.
const QUEUES: &str = "announces queues for which the kernel may have no memory";

/// `man ibv_query_port`: `max_msg_sz` is the "maximum message size".
fn the_longest_message_arrives_whole(dut: &TestDevice) -> Outcome {
    const END: usize = 100_000;
    dut.not_since(SoftRoce::New, "takes minutes for the two gibibytes that it announces")?;
    let (a, b) = pair(dut, &rc());
    let len = a.device.port().unwrap().max_msg_sz as usize;
    let [from, to] = [&a, &b].map(|node| node.pd.reg(&Buf::folded(len), EVERYTHING).unwrap());
    let fill = |seed| from.buf.set(len - END, &pattern(seed, END));
    fill(1);
    a.done(Wr::write(1, to.remote(0)).sge(from.at(0, len)));
    assert_eq!(to.buf.get(len - END, END), pattern(1, END));
    fill(2);
    b.qp.recv(Recv::new(2).sge(to.at(0, len)));
    a.done(Wr::send(2).sge(from.at(0, len)));
    assert_eq!(b.recv_cq.ok().len as usize, len);
    assert_eq!(to.buf.get(len - END, END), pattern(2, END));
    fill(3);
    a.done(Wr::read(3, to.remote(0)).sge(from.at(0, len)));
    assert_eq!(from.buf.get(len - END, END), pattern(2, END));
    Ok(())
}

/// `man ibv_query_device`: `max_sge` and `max_sge_rd` are the most scatter/gather entries of a
/// request, and of an RDMA READ.
fn the_most_entries_are_gathered_and_scattered(dut: &TestDevice) -> Outcome {
    let attr = dut.open().query().unwrap();
    let (most, most_rd) = (attr.max_sge as usize, attr.max_sge_rd as usize);
    let (a, b) = pair(
        dut,
        &rc().set(|options| {
            (options.cap.max_send_sge, options.cap.max_recv_sge) = (most as u32, most as u32);
        }),
    );
    // Gaps of eight bytes divide the entries on one side.
    let list = |node: &Node, count| (0..count).map(|n| node.mr.at(n * 48, 40)).collect::<Vec<_>>();
    let bytes =
        |node: &Node, count: usize| (0..count).flat_map(|n| node.mr.buf.get(n * 48, 40)).collect::<Vec<_>>();
    a.mr.buf.set(0, &pattern(1, most * 48));
    b.qp.recv(Recv::new(1).list(&list(&b, most)));
    a.done(Wr::send(1).list(&list(&a, most)));
    assert_eq!(b.recv_cq.ok().len as usize, most * 40);
    assert_eq!(bytes(&b, most), bytes(&a, most));
    b.mr.buf.set(0, &pattern(2, most_rd * 40));
    a.done(Wr::read(2, b.mr.remote(0)).list(&list(&a, most_rd)));
    assert_eq!(bytes(&a, most_rd), pattern(2, most_rd * 40));
    let granted = a.qp.granted().max_send_sge as usize;
    assert!(a.qp.post(&[Wr::write(3, b.mr.remote(0)).list(&list(&a, granted + 1))]).is_err());
    let granted = b.qp.granted().max_recv_sge as usize;
    assert!(b.qp.recv_list(&[Recv::new(3).list(&list(&b, granted + 1))]).is_err());
    Ok(())
}

/// `man ibv_query_device`: `max_qp_wr` is the most outstanding requests of a queue.
fn the_most_requests_are_queued(dut: &TestDevice) -> Outcome {
    dut.not_softroce(QUEUES)?;
    let most = dut.open().query().unwrap().max_qp_wr as usize;
    let (a, b) = pair(
        dut,
        &rc().set(|options| {
            (options.cap.max_send_wr, options.cap.max_recv_wr) = (most as u32, most as u32);
            options.cqe = most as i32;
        }),
    );
    let receives: Vec<_> = (0..most).map(|id| Recv::new(id as u64).sge(b.mr.at(id % 1024 * 8, 8))).collect();
    b.qp.recv_list(&receives).unwrap();
    let room = b.qp.granted().max_recv_wr as usize - most;
    let more: Vec<_> = (0..=room as u64).map(Recv::new).collect();
    assert_eq!(b.qp.recv_list(&more), Err((ENOMEM, room)), "one more than the queue has room for");
    a.mr.buf.set(0, &pattern(7, 8192));
    let sends: Vec<_> = (0..most).map(|id| Wr::send(id as u64).sge(a.mr.at(id % 1024 * 8, 8))).collect();
    a.qp.post(&sends).unwrap();
    for id in 0..most as u64 {
        assert_eq!(a.send_cq.ok().id, id);
        assert_eq!(b.recv_cq.ok().id, id);
    }
    assert_eq!(b.mr.buf.get(0, 8192), pattern(7, 8192));
    Ok(())
}

/// `man ibv_query_device`: `max_srq_wr` and `max_srq_sge` are the most requests of a shared receive
/// queue, and the most entries of one.
fn the_most_receives_are_queued_in_a_shared_queue(dut: &TestDevice) -> Outcome {
    dut.not_softroce(QUEUES)?;
    let (device, other) = (dut.open(), dut.open());
    let attr = device.query().unwrap();
    let (most, entries) = (attr.max_srq_wr as usize, attr.max_srq_sge as usize);
    let pd = device.pd();
    let srq = Srq::new(&pd, most as u32, entries as u32).unwrap();
    let options = rc().set(|options| options.cqe = most as i32);
    let b = Node::with_queues(&device, &options, Some((&pd, &srq)), None);
    let a = Node::new(&other, &options);
    a.connect(&b.peer());
    b.connect(&a.peer());
    let list: Vec<_> = (0..entries).map(|n| b.mr.at(n * 16, 8)).collect();
    for id in 0..most as u64 {
        srq.recv(&[Recv::new(id).list(&list)]).unwrap();
    }
    let room = srq.granted().max_wr as usize - most;
    let more: Vec<_> = (0..=room as u64).map(Recv::new).collect();
    assert_eq!(srq.recv(&more), Err((ENOMEM, room)), "one more than the queue has room for");
    for id in 0..most as u64 {
        a.mr.buf.set(0, &pattern(id as u8, entries * 8));
        a.done(Wr::send(id).sge(a.mr.at(0, entries * 8)));
        assert_eq!(b.recv_cq.ok().id, id);
    }
    let scattered: Vec<_> = (0..entries).flat_map(|n| b.mr.buf.get(n * 16, 8)).collect();
    assert_eq!(scattered, pattern((most - 1) as u8, entries * 8));
    Ok(())
}

/// `man ibv_create_qp`: the greatest `max_inline_data` is not announced, but found by trying.
fn the_most_inline_data_arrive(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let with = |bytes: u32| rc().set(|options| options.cap.max_inline_data = bytes);
    let (pd, cq) = (device.pd(), device.cq(64));
    let is_made = |bytes: u32| {
        let options = with(bytes);
        Qp::new(&pd, &QpInit { cap: options.cap, ..QpInit::new(options.qp_type, &cq, &cq) }).is_ok()
    };
    let (mut most, mut beyond) = (0_u32, 1 << 20);
    while beyond - most > 1 {
        let middle = most.midpoint(beyond);
        *if is_made(middle) { &mut most } else { &mut beyond } = middle;
    }
    let (a, b) = pair(dut, &with(most));
    let granted = a.qp.granted().max_inline_data as usize;
    assert!(granted >= most as usize);
    a.done(Wr::write(1, b.mr.remote(0)).inline(&pattern(3, granted)));
    assert_eq!(b.mr.buf.get(0, granted), pattern(3, granted));
    let error = a.qp.post(&[Wr::write(2, b.mr.remote(0)).inline(&pattern(4, granted + 1))]).unwrap_err().0;
    assert!([EINVAL, ENOMEM].contains(&error), "{error}");
    Ok(())
}

/// `man ibv_query_device`: `max_qp_rd_atom` and `max_qp_init_rd_atom` are the most outstanding RDMA
/// READs and atomics of a pair as target and as initiator.
fn the_most_reads_are_outstanding(dut: &TestDevice) -> Outcome {
    let attr = dut.open().query().unwrap();
    let most = |count: i32| count.min(255) as u8;
    let (a, b) = pair(
        dut,
        &rc().set(|options| {
            (options.rd_atomic, options.dest_rd_atomic) =
                (most(attr.max_qp_init_rd_atom), most(attr.max_qp_rd_atom));
            options.cap.max_send_wr = 600;
            options.cqe = 600;
        }),
    );
    let count = 2 * usize::from(a.options.rd_atomic);
    b.mr.buf.set(0, &pattern(9, count * 64));
    let reads: Vec<_> =
        (0..count).map(|n| Wr::read(n as u64, b.mr.remote(n * 64)).sge(a.mr.at(n * 64, 64))).collect();
    a.qp.post(&reads).unwrap();
    (0..count).for_each(|n| assert_eq!(a.send_cq.ok().id, n as u64));
    assert_eq!(a.mr.buf.get(0, count * 64), pattern(9, count * 64));
    Ok(())
}

/// `man ibv_alloc_dm`: "the maximum amount of allocated memory is provided by the max_dm_size
/// attribute".
fn the_largest_device_memory_is_reached(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &rc());
    let most = b.device.query_ex(None).map_or(0, |attr| attr.max_dm_size) as usize;
    let dm = match Dm::new(&b.device, most, 0) {
        Ok(dm) => dm,
        Err(EOPNOTSUPP) => skip!("{} has no device memory", dut.name),
        Err(error) => panic!("error {error}"),
    };
    assert!(Dm::new(&b.device, 1, 0).is_err(), "it is all in use");
    let region = b.pd.reg_dm(&dm, 0, most, EVERYTHING | Access::IBV_ACCESS_ZERO_BASED.0).unwrap();
    a.mr.buf.set(0, &pattern(5, 4096));
    a.done(Wr::write(1, region.remote(most as u64 - 4096)).sge(a.mr.at(0, 4096)));
    assert_eq!(dm.read(most as u64 - 4096, 4096).unwrap(), pattern(5, 4096));
    Ok(())
}
