//! Extended reliable connections: initiators send messages to shared receive queues, which a number
//! names (`man ibv_wr_post`; IBTA annex A14, extended reliable connected transport service).
//! SoftRoCE does not support them, so that each case skips by the capability.

use std::time::Duration;

use libc::O_CREAT;
use rdma_mummy_sys::types::ibv_device_cap_flags as DeviceCap;
use rdma_mummy_sys::types::ibv_event_type as EventType;
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_qp_type as Type;
use rdma_mummy_sys::types::ibv_srq_type as SrqType;
use rdma_mummy_sys::types::ibv_wc_flags as WcFlags;
use rdma_mummy_sys::types::ibv_wc_opcode as Opcode;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::kit::{
    Buf, Cq, Device, EVERYTHING, Flavour, Inode, Mr, NodeOptions, Outcome, Pd, Qp, QpChange, QpInit, Recv,
    Skip, Srq, SrqInit, Suite, TestDevice, TestTarget, WAIT_LIMIT, Wc, Wr, Xrcd, ah_attr, pattern,
    poll_until,
};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        a_send_takes_a_receive_of_the_queue,
        immediate_data_comes_along,
        a_write_with_immediate_data_takes_a_receive,
        long_messages_come_whole,
        the_number_says_which_queue,
        the_completion_says_which_connection,
        queue_and_pair_meet_by_the_file,
        reads_writes_and_atomics_use_the_queues_domain,
        memory_of_another_domain_is_refused,
        a_wrong_number_fails_the_connection,
        a_queue_of_another_domain_fails_the_connection,
        a_destroyed_queue_fails_the_connection,
        an_empty_queue_means_not_ready,
        a_late_receive_is_found,
        a_message_too_long_fails_its_connection_only,
        the_limit_is_announced,
        a_queue_goes_while_connections_live,
        memory_that_is_paged_on_demand_takes_part,
    );
}

/// A context of a device that supports all of this.
pub(super) fn device(dut: &TestDevice) -> Result<Device, Skip> {
    let device = dut.open();
    if device.query().unwrap().device_cap_flags & DeviceCap::IBV_DEVICE_XRC.0 == 0 {
        skip!("{} has no extended reliable connections", dut.name);
    }
    Ok(device)
}

/// A shared receive queue with its completion queue and memory.
pub(super) struct XrcReceiver {
    pub(super) srq: Srq,
    pub(super) number: u32,
    pub(super) cq: Cq,
    pub(super) mr: Mr,
}

impl XrcReceiver {
    pub(super) fn new(device: &Device, xrcd: &Xrcd, flavour: Flavour) -> Self {
        Self::with_region(device, xrcd, flavour, EVERYTHING)
    }

    /// Registers its memory with these access flags.
    fn with_region(device: &Device, xrcd: &Xrcd, flavour: Flavour, access: u32) -> Self {
        let (pd, cq) = (device.pd(), Cq::of(device, 64, flavour, None));
        let srq = Srq::extended(device, init(&pd, xrcd, &cq)).unwrap();
        let mr = pd.reg(&Buf::new(1 << 16), access).unwrap();
        Self { number: srq.number().unwrap(), srq, cq, mr }
    }

    pub(super) fn recv(&self, id: u64, offset: usize, len: usize) {
        self.srq.recv(&[Recv::new(id).sge(self.mr.at(offset, len))]).unwrap();
    }
}

pub(super) fn init<'a>(pd: &'a Pd, xrcd: &'a Xrcd, cq: &'a Cq) -> SrqInit<'a> {
    let srq_type = Some(SrqType::IBV_SRQT_XRC);
    SrqInit { srq_type, pd: Some(pd), xrcd: Some(xrcd), cq: Some(cq), max_wr: 16, max_sge: 2, comp_mask: 0 }
}

/// Both ends of a connection, with the initiator's completion queue and memory.
pub(super) struct XrcConnection {
    pub(super) initiator: Qp,
    pub(super) target: Qp,
    cq: Cq,
    pub(super) mr: Mr,
    device: Device,
    options: NodeOptions,
}

impl XrcConnection {
    /// Connects an initiator of one context to a target in a domain.
    pub(super) fn new(device: &Device, target: Qp, options: &NodeOptions) -> Self {
        let (pd, cq) = (device.pd(), Cq::of(device, 64, options.flavour, None));
        let init = QpInit {
            qp_type: Type::IBV_QPT_XRC_SEND,
            recv_cq: None,
            cap: rdma_mummy_sys::types::ibv_qp_cap { max_recv_wr: 0, max_recv_sge: 0, ..options.cap },
            flavour: options.flavour,
            ..QpInit::new(Type::IBV_QPT_XRC_SEND, &cq, &cq)
        };
        let initiator = Qp::new(&pd, &init).unwrap();
        let mr = pd.reg(&Buf::new(1 << 16), options.region).unwrap();
        Self { initiator, target, cq, mr, device: device.clone(), options: options.clone() }
    }

    fn connect(self) -> Self {
        for (qp, to) in [(&self.target, self.initiator.num()), (&self.initiator, self.target.num())] {
            for change in [self.to_init(), self.to_rtr(qp, to), self.to_rts(qp)] {
                assert_eq!(qp.modify(change), 0, "{:?}", change.attr.qp_state);
            }
        }
        self
    }

    pub(super) fn to_init(&self) -> QpChange {
        QpChange::to(State::IBV_QPS_INIT)
            .with(Mask::IBV_QP_PKEY_INDEX, |_| {})
            .with(Mask::IBV_QP_PORT, |attr| attr.port_num = 1)
            .with(Mask::IBV_QP_ACCESS_FLAGS, |attr| attr.qp_access_flags = EVERYTHING)
    }

    pub(super) fn to_rtr(&self, qp: &Qp, to: u32) -> QpChange {
        let gid = self.device.find_gid().unwrap().0;
        let change = QpChange::to(State::IBV_QPS_RTR)
            .with(Mask::IBV_QP_AV, |attr| attr.ah_attr = ah_attr(&self.device, gid))
            .with(Mask::IBV_QP_PATH_MTU, |attr| attr.path_mtu = self.options.mtu)
            .with(Mask::IBV_QP_DEST_QPN, |attr| attr.dest_qp_num = to)
            .with(Mask::IBV_QP_RQ_PSN, |attr| attr.rq_psn = self.options.psn);
        if qp.address() == self.initiator.address() {
            return change;
        }
        change
            .with(Mask::IBV_QP_MAX_DEST_RD_ATOMIC, |attr| attr.max_dest_rd_atomic = 4)
            .with(Mask::IBV_QP_MIN_RNR_TIMER, |attr| attr.min_rnr_timer = self.options.min_rnr_timer)
    }

    pub(super) fn to_rts(&self, qp: &Qp) -> QpChange {
        let change = QpChange::to(State::IBV_QPS_RTS)
            .with(Mask::IBV_QP_TIMEOUT, |attr| attr.timeout = self.options.timeout)
            .with(Mask::IBV_QP_SQ_PSN, |attr| attr.sq_psn = self.options.psn);
        if qp.address() != self.initiator.address() {
            return change;
        }
        change
            .with(Mask::IBV_QP_RETRY_CNT, |attr| attr.retry_cnt = self.options.retry_cnt)
            .with(Mask::IBV_QP_RNR_RETRY, |attr| attr.rnr_retry = self.options.rnr_retry)
            .with(Mask::IBV_QP_MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic = 4)
    }

    fn post(&self, request: Wr, receiver: &XrcReceiver) {
        self.initiator.post(&[request.srqn(receiver.number)]).unwrap();
    }

    /// Posts one request and waits for its success.
    pub(super) fn done(&self, request: Wr, receiver: &XrcReceiver) -> Wc {
        self.post(request, receiver);
        self.cq.ok()
    }

    /// Posts one request and waits for its failure. Both ends fail unless only the initiator
    /// detects the error.
    pub(super) fn fails(&self, request: Wr, number: u32, both: bool) -> Status {
        self.initiator.post(&[request.srqn(number)]).unwrap();
        let wc = self.cq.one();
        assert_eq!(wc.qp_num, self.initiator.num());
        assert!(self.initiator.reaches(State::IBV_QPS_ERR), "the initiator has failed");
        if both {
            assert!(self.target.reaches(State::IBV_QPS_ERR), "the target has failed");
        }
        wc.status
    }
}

/// A receiver and a connection to its domain, on one device, each with its own context.
pub(super) fn connected(
    dut: &TestDevice,
    options: &NodeOptions,
) -> Result<(Xrcd, XrcReceiver, XrcConnection), Skip> {
    let (own, other) = (device(dut)?, device(dut)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let receiver = XrcReceiver::with_region(&own, &xrcd, options.flavour, options.region);
    let connection = XrcConnection::new(&other, Qp::target(&xrcd).unwrap(), options).connect();
    Ok((xrcd, receiver, connection))
}

pub(super) fn options(flavour: Flavour) -> NodeOptions {
    NodeOptions::new(Type::IBV_QPT_XRC_SEND, flavour)
}

fn a_send_takes_a_receive_of_the_queue(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(dut, &options(flavour))?;
    connection.mr.buf.set(0, &pattern(1, 64));
    receiver.recv(7, 100, 80);
    connection.done(Wr::send(8).sge(connection.mr.at(0, 64)), &receiver);
    let wc = receiver.cq.ok();
    assert_eq!((wc.id, wc.len, wc.opcode), (7, 64, Opcode::IBV_WC_RECV));
    assert_eq!(wc.qp_num, connection.target.num(), "the target is the pair that it came by");
    assert!(!wc.has(WcFlags::IBV_WC_WITH_IMM) && !wc.has(WcFlags::IBV_WC_GRH));
    assert_eq!(receiver.mr.buf.get(100, 64), pattern(1, 64));
    Ok(())
}

fn immediate_data_comes_along(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(dut, &options(flavour))?;
    receiver.recv(1, 0, 64);
    connection.done(Wr::send_imm(2, 0x0102_0304).sge(connection.mr.at(0, 8)), &receiver);
    let wc = receiver.cq.ok();
    assert_eq!((wc.id, wc.len, wc.imm), (1, 8, 0x0102_0304));
    assert!(wc.has(WcFlags::IBV_WC_WITH_IMM));
    Ok(())
}

fn a_write_with_immediate_data_takes_a_receive(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(dut, &options(flavour))?;
    connection.mr.buf.set(0, &pattern(2, 32));
    receiver.recv(1, 0, 64);
    let write = Wr::write_imm(2, receiver.mr.remote(4096), 9).sge(connection.mr.at(0, 32));
    connection.done(write, &receiver);
    let wc = receiver.cq.ok();
    assert_eq!((wc.id, wc.imm, wc.opcode), (1, 9, Opcode::IBV_WC_RECV_RDMA_WITH_IMM));
    assert_eq!(wc.qp_num, connection.target.num());
    assert_eq!(receiver.mr.buf.get(4096, 32), pattern(2, 32));
    Ok(())
}

fn long_messages_come_whole(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(dut, &options(flavour))?;
    for (id, len) in [0, 1, 256, 257, 5000, 60_000].into_iter().enumerate() {
        connection.mr.buf.set(0, &pattern(id as u8, len));
        receiver.recv(id as u64, 0, 1 << 16);
        connection.done(Wr::send(1).sge(connection.mr.at(0, len)), &receiver);
        let wc = receiver.cq.ok();
        assert_eq!((wc.id, wc.len as usize), (id as u64, len));
        assert_eq!(receiver.mr.buf.get(0, len), pattern(id as u8, len));
    }
    Ok(())
}

/// IBTA annex A14: each request names the queue, so that one connection reaches every queue of the
/// domain.
fn the_number_says_which_queue(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (own, other) = (device(dut)?, device(dut)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let receivers: Vec<_> = (0..3).map(|_| XrcReceiver::new(&own, &xrcd, flavour)).collect();
    let connection = XrcConnection::new(&other, Qp::target(&xrcd).unwrap(), &options(flavour)).connect();
    for (n, receiver) in receivers.iter().enumerate() {
        receiver.recv(n as u64, 0, 64);
        receiver.recv(10 + n as u64, 0, 64);
    }
    for n in [2, 0, 1, 1, 0, 2] {
        connection.done(Wr::send_imm(9, n as u32).sge(connection.mr.at(0, 8)), &receivers[n]);
    }
    for (n, receiver) in receivers.iter().enumerate() {
        let found: Vec<_> = receiver.cq.wait(2).iter().map(|wc| (wc.id, wc.imm)).collect();
        assert_eq!(found, [(n as u64, n as u32), (10 + n as u64, n as u32)]);
        assert!(receiver.cq.is_empty());
    }
    Ok(())
}

fn the_completion_says_which_connection(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (own, other) = (device(dut)?, device(dut)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let receiver = XrcReceiver::new(&own, &xrcd, flavour);
    let connections =
        [(); 2].map(|()| XrcConnection::new(&other, Qp::target(&xrcd).unwrap(), &options(flavour)).connect());
    for round in 0..10 {
        let connection = &connections[round % 2];
        receiver.recv(round as u64, 0, 64);
        connection.done(Wr::send(1).sge(connection.mr.at(0, 8)), &receiver);
        let wc = receiver.cq.ok();
        assert_eq!((wc.id, wc.qp_num), (round as u64, connection.target.num()));
    }
    Ok(())
}

/// Target and queue belong to two contexts, which share the domain.
fn queue_and_pair_meet_by_the_file(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (first, second, third, file) = (device(dut)?, device(dut)?, device(dut)?, Inode::new());
    let made = Xrcd::open(&first, file.fd(), O_CREAT).unwrap();
    let opened = Xrcd::open(&second, file.again().fd(), 0).unwrap();
    let receiver = XrcReceiver::new(&second, &opened, flavour);
    let connection = XrcConnection::new(&third, Qp::target(&made).unwrap(), &options(flavour)).connect();
    receiver.recv(1, 0, 64);
    connection.done(Wr::send(2).sge(connection.mr.at(0, 8)), &receiver);
    assert_eq!(receiver.cq.ok().qp_num, connection.target.num());
    Ok(())
}

/// IBTA annex A14: a request uses the protection domain of the queue that it names. The table of
/// opcodes in `man ibv_post_send` lists all of these for XRC pairs.
fn reads_writes_and_atomics_use_the_queues_domain(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(dut, &options(flavour))?;
    let (own, remote) = (&connection.mr, &receiver.mr);
    own.buf.set(0, &pattern(3, 5000));
    connection.done(Wr::write(1, remote.remote(0)).sge(own.at(0, 5000)), &receiver);
    assert_eq!(remote.buf.get(0, 5000), pattern(3, 5000));
    connection.done(Wr::read(2, remote.remote(1000)).sge(own.at(8192, 100)), &receiver);
    assert_eq!(own.buf.get(8192, 100), pattern(3, 5000)[1000..1100]);
    remote.buf.set_u64(8192, 5);
    connection.done(Wr::fetch_add(3, remote.remote(8192), 3).sge(own.at(0, 8)), &receiver);
    assert_eq!((own.buf.get_u64(0), remote.buf.get_u64(8192)), (5, 8));
    connection.done(Wr::cmp_swp(4, remote.remote(8192), 8, 20).sge(own.at(0, 8)), &receiver);
    assert_eq!((own.buf.get_u64(0), remote.buf.get_u64(8192)), (8, 20));
    // None of these operations takes a receive.
    assert!(receiver.cq.is_empty());
    Ok(())
}

fn memory_of_another_domain_is_refused(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (own, other) = (device(dut)?, device(dut)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let [named, owner] = [(); 2].map(|()| XrcReceiver::new(&own, &xrcd, flavour));
    let connection = XrcConnection::new(&other, Qp::target(&xrcd).unwrap(), &options(flavour)).connect();
    let write = Wr::write(1, owner.mr.remote(0)).sge(connection.mr.at(0, 8));
    assert_eq!(connection.fails(write, named.number, true), Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

/// IBTA annex A14: an XRC header with an unknown queue number is an access violation, and the
/// target fails.
fn a_wrong_number_fails_the_connection(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(dut, &options(flavour))?;
    receiver.recv(1, 0, 64);
    let nobody = receiver.number ^ 0x1000;
    let status = connection.fails(Wr::send(2).sge(connection.mr.at(0, 8)), nobody, true);
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    assert!(receiver.cq.is_empty());
    Ok(())
}

/// IBTA annex A14: so is a queue outside the target's domain.
fn a_queue_of_another_domain_fails_the_connection(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (own, other) = (device(dut)?, device(dut)?);
    let [here, there] = [(); 2].map(|()| Xrcd::private(&own).unwrap());
    let receiver = XrcReceiver::new(&own, &there, flavour);
    let connection = XrcConnection::new(&other, Qp::target(&here).unwrap(), &options(flavour)).connect();
    receiver.recv(1, 0, 64);
    let status = connection.fails(Wr::send(2).sge(connection.mr.at(0, 8)), receiver.number, true);
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    assert!(receiver.cq.is_empty());
    Ok(())
}

fn a_destroyed_queue_fails_the_connection(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(dut, &options(flavour))?;
    receiver.recv(1, 0, 64);
    connection.done(Wr::send(2).sge(connection.mr.at(0, 8)), &receiver);
    assert_eq!(receiver.srq.destroy(), 0);
    let status = connection.fails(Wr::send(3).sge(connection.mr.at(0, 8)), receiver.number, true);
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn an_empty_queue_means_not_ready(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) =
        connected(dut, &options(flavour).set(|options| options.rnr_retry = 1))?;
    let status = connection.fails(Wr::send(1).sge(connection.mr.at(0, 8)), receiver.number, false);
    assert_eq!(status, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert_eq!(connection.target.state(), State::IBV_QPS_RTS, "to be not ready is no error of the target");
    Ok(())
}

fn a_late_receive_is_found(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(dut, &options(flavour))?;
    connection.post(Wr::send(1).sge(connection.mr.at(0, 8)), &receiver);
    std::thread::sleep(Duration::from_millis(20));
    assert!(connection.cq.is_empty());
    receiver.recv(2, 0, 64);
    assert_eq!((receiver.cq.ok().id, connection.cq.ok().id), (2, 1));
    Ok(())
}

/// IBTA annex A14 and chapter 9, responder's error behaviour: the receive ends with an error, and
/// so does the connection. The shared queue continues.
fn a_message_too_long_fails_its_connection_only(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (own, other) = (device(dut)?, device(dut)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let receiver = XrcReceiver::new(&own, &xrcd, flavour);
    let [bad, good] =
        [(); 2].map(|()| XrcConnection::new(&other, Qp::target(&xrcd).unwrap(), &options(flavour)).connect());
    receiver.recv(1, 0, 16);
    receiver.recv(2, 0, 64);
    let status = bad.fails(Wr::send(3).sge(bad.mr.at(0, 64)), receiver.number, true);
    assert_eq!(status, Status::IBV_WC_REM_INV_REQ_ERR);
    let wc = receiver.cq.one();
    assert_eq!((wc.id, wc.status, wc.qp_num), (1, Status::IBV_WC_LOC_LEN_ERR, bad.target.num()));
    good.done(Wr::send(4).sge(good.mr.at(0, 64)), &receiver);
    let wc = receiver.cq.ok();
    assert_eq!((wc.id, wc.qp_num), (2, good.target.num()));
    assert_eq!(good.target.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn the_limit_is_announced(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (own, other) = (device(dut)?, device(dut)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let receiver = XrcReceiver::new(&own, &xrcd, flavour);
    let connection = XrcConnection::new(&other, Qp::target(&xrcd).unwrap(), &options(flavour)).connect();
    (0..4).for_each(|id| receiver.recv(id, 0, 64));
    assert_eq!(receiver.srq.set_limit(3), 0);
    for _ in 0..2 {
        connection.done(Wr::send(1).sge(connection.mr.at(0, 8)), &receiver);
    }
    let about = loop {
        let event = own.event(WAIT_LIMIT).expect("an event");
        // A device may also report that the connection is established.
        if event.kind() != EventType::IBV_EVENT_COMM_EST {
            break (event.kind(), event.element());
        }
    };
    assert_eq!(about, (EventType::IBV_EVENT_SRQ_LIMIT_REACHED, receiver.srq.address()));
    Ok(())
}

/// `man ibv_create_srq_ex`: destroying fails while a pair is associated with a queue; a target is
/// associated with a domain.
fn a_queue_goes_while_connections_live(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (xrcd, receiver, connection) = connected(dut, &options(flavour))?;
    receiver.recv(1, 0, 64);
    assert_eq!(receiver.srq.destroy(), 0);
    let next = XrcReceiver::new(xrcd.device(), &xrcd, flavour);
    next.recv(2, 0, 64);
    connection.done(Wr::send(3).sge(connection.mr.at(0, 8)), &next);
    assert!(poll_until(WAIT_LIMIT, || next.cq.poll(1).first().map(|wc| assert_eq!(wc.id, 2))).is_some());
    Ok(())
}

/// `man ibv_query_device_ex`: `xrc_odp_caps` are the operations that work on memory that is paged
/// on demand.
fn memory_that_is_paged_on_demand_takes_part(dut: &TestDevice, flavour: Flavour) -> Outcome {
    use rdma_mummy_sys::types::ibv_odp_transport_cap_bits as Bits;
    let caps = device(dut)?.query_ex(None).unwrap().xrc_odp_caps;
    let all = Bits::IBV_ODP_SUPPORT_SEND
        | Bits::IBV_ODP_SUPPORT_RECV
        | Bits::IBV_ODP_SUPPORT_SRQ_RECV
        | Bits::IBV_ODP_SUPPORT_WRITE
        | Bits::IBV_ODP_SUPPORT_READ
        | Bits::IBV_ODP_SUPPORT_ATOMIC;
    if dut.target == TestTarget::System && caps & all.0 != all.0 {
        skip!("{} pages for the operations {caps:#x} of extended reliable connections only", dut.name);
    }
    assert_eq!(caps & all.0, all.0, "the software device pins nothing");
    let on_demand = EVERYTHING | rdma_mummy_sys::types::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
    let opts = options(flavour).set(|options| options.region = on_demand);
    let (_xrcd, receiver, connection) = connected(dut, &opts)?;
    for len in [8, 300, 20_000] {
        connection.mr.buf.set(0, &pattern(len as u8, len));
        receiver.recv(1, 0, len);
        connection.done(Wr::send(2).sge(connection.mr.at(0, len)), &receiver);
        assert_eq!(receiver.cq.ok().len as usize, len);
        assert_eq!(receiver.mr.buf.get(0, len), pattern(len as u8, len));
        connection.done(Wr::write(3, receiver.mr.remote(24_000)).sge(connection.mr.at(0, len)), &receiver);
        connection
            .done(Wr::read(4, receiver.mr.remote(24_000)).sge(connection.mr.at(32_000, len)), &receiver);
        assert_eq!(connection.mr.buf.get(32_000, len), pattern(len as u8, len));
    }
    receiver.mr.buf.set_u64(0, 5);
    connection.done(Wr::fetch_add(5, receiver.mr.remote(0), 7).sge(connection.mr.at(8, 8)), &receiver);
    assert_eq!((receiver.mr.buf.get_u64(0), connection.mr.buf.get_u64(8)), (12, 5));
    Ok(())
}
