//! Extended reliable connections: domains, shared receive queues with a number, initiators and targets (`man ibv_open_xrcd`,
//! `man ibv_create_srq_ex`, `man ibv_get_srq_num`, `man ibv_open_qp`; IBTA annex A14, extended reliable connected transport
//! service). No SoftRoCE has them, so each case here skips by the capability.

use std::time::Duration;

use libc::{EBADF, EBUSY, EINVAL, O_CREAT, O_EXCL};
use rdma_mummy_sys::types::ibv_device_cap_flags as DeviceCap;
use rdma_mummy_sys::types::ibv_event_type as EventType;
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_qp_type as Type;
use rdma_mummy_sys::types::ibv_srq_type as SrqType;
use rdma_mummy_sys::types::ibv_wc_flags as WcFlags;
use rdma_mummy_sys::types::ibv_wc_opcode as Opcode;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::harness::{Outcome, Rig, Skip, Suite};
use crate::kit::{
    Buf, Change, Cq, Device, EVERYTHING, Flavour, Inode, Mr, Node, Options, PATIENCE, Pd, Qp, QpInit, Recv,
    Srq, SrqInit, Wc, Wr, Xrcd, ah_attr, pattern, until,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_domain_of_no_file_is_made,
        a_file_has_one_domain,
        a_domain_that_is_not_there_is_not_opened,
        an_exclusive_domain_is_made_once,
        the_last_reference_ends_a_domain,
        a_bad_descriptor_is_refused,
        a_domain_without_its_attributes_is_refused,
        a_domain_in_use_is_busy,
        a_queue_has_a_number,
        a_queue_without_its_parts_is_refused,
        a_queue_tells_and_changes_its_attributes,
        a_queue_keeps_its_completion_queue_and_domains_busy,
        a_basic_queue_is_made_by_the_extended_call,
        a_pair_without_its_domain_is_refused,
        an_initiator_goes_its_way,
        a_target_goes_its_way,
        no_pair_takes_receives,
        an_opened_pair_is_the_same_pair,
        an_opened_pair_outlives_the_first_handle,
        a_pair_that_is_not_there_is_not_opened,
    );
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
    );
}

/// A context of a device that has all of this.
fn device(rig: &Rig) -> Result<Device, Skip> {
    let device = rig.open();
    if device.query().unwrap().device_cap_flags & DeviceCap::IBV_DEVICE_XRC.0 == 0 {
        skip!("{} has no extended reliable connections", rig.name);
    }
    Ok(device)
}

/// A shared receive queue with what belongs to it.
struct Receiver {
    srq: Srq,
    number: u32,
    cq: Cq,
    mr: Mr,
}

impl Receiver {
    fn new(device: &Device, xrcd: &Xrcd, flavour: Flavour) -> Self {
        let (pd, cq) = (device.pd(), Cq::of(device, 64, flavour, None));
        let srq = Srq::extended(device, init(&pd, xrcd, &cq)).unwrap();
        let mr = pd.reg(&Buf::new(1 << 16), EVERYTHING).unwrap();
        Self { number: srq.number().unwrap(), srq, cq, mr }
    }

    fn recv(&self, id: u64, offset: usize, len: usize) {
        self.srq.recv(&[Recv::new(id).sge(self.mr.at(offset, len))]).unwrap();
    }
}

fn init<'a>(pd: &'a Pd, xrcd: &'a Xrcd, cq: &'a Cq) -> SrqInit<'a> {
    let srq_type = Some(SrqType::IBV_SRQT_XRC);
    SrqInit { srq_type, pd: Some(pd), xrcd: Some(xrcd), cq: Some(cq), max_wr: 16, max_sge: 2, comp_mask: 0 }
}

/// Two ends of a connection; the initiator's queue and memory.
struct Connection {
    initiator: Qp,
    target: Qp,
    cq: Cq,
    mr: Mr,
    device: Device,
    options: Options,
}

impl Connection {
    /// From an initiator of one context to a target in a domain.
    fn new(device: &Device, target: Qp, options: &Options) -> Self {
        let (pd, cq) = (device.pd(), Cq::of(device, 64, options.flavour, None));
        let init = QpInit {
            qp_type: Type::IBV_QPT_XRC_SEND,
            recv_cq: None,
            cap: rdma_mummy_sys::types::ibv_qp_cap { max_recv_wr: 0, max_recv_sge: 0, ..options.cap },
            flavour: options.flavour,
            ..QpInit::new(Type::IBV_QPT_XRC_SEND, &cq, &cq)
        };
        let initiator = Qp::new(&pd, &init).unwrap();
        let mr = pd.reg(&Buf::new(1 << 16), EVERYTHING).unwrap();
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

    fn to_init(&self) -> Change {
        Change::to(State::IBV_QPS_INIT)
            .with(Mask::IBV_QP_PKEY_INDEX, |_| {})
            .with(Mask::IBV_QP_PORT, |attr| attr.port_num = 1)
            .with(Mask::IBV_QP_ACCESS_FLAGS, |attr| attr.qp_access_flags = EVERYTHING)
    }

    fn to_rtr(&self, qp: &Qp, to: u32) -> Change {
        let gid = self.device.find_gid().unwrap().0;
        let change = Change::to(State::IBV_QPS_RTR)
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

    fn to_rts(&self, qp: &Qp) -> Change {
        let change = Change::to(State::IBV_QPS_RTS)
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

    fn post(&self, request: Wr, receiver: &Receiver) {
        self.initiator.post(&[request.srqn(receiver.number)]).unwrap();
    }

    /// Posts one request and waits for its success.
    fn done(&self, request: Wr, receiver: &Receiver) -> Wc {
        self.post(request, receiver);
        self.cq.ok()
    }

    /// Posts one request and waits for its failure, with which both ends fail unless only the initiator knows of it.
    fn fails(&self, request: Wr, number: u32, both: bool) -> Status {
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

/// A receiver and a connection to its domain, on one device with a context each.
fn connected(rig: &Rig, options: &Options) -> Result<(Xrcd, Receiver, Connection), Skip> {
    let (own, other) = (device(rig)?, device(rig)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let receiver = Receiver::new(&own, &xrcd, options.flavour);
    let connection = Connection::new(&other, Qp::target(&xrcd).unwrap(), options).connect();
    Ok((xrcd, receiver, connection))
}

fn options(flavour: Flavour) -> Options {
    Options::new(Type::IBV_QPT_XRC_SEND, flavour)
}

fn a_domain_of_no_file_is_made(rig: &Rig) -> Outcome {
    let device = device(rig)?;
    let (first, second) = (Xrcd::private(&device).unwrap(), Xrcd::private(&device).unwrap());
    // Nobody else can have one of these, so it is no contradiction to want it exclusively.
    let third = Xrcd::open(&device, -1, O_CREAT | O_EXCL).unwrap();
    assert_eq!((first.close(), second.close(), third.close()), (0, 0, 0));
    Ok(())
}

/// `man ibv_open_xrcd`: "associated with the inode", whichever descriptor leads to it, and in whichever context.
fn a_file_has_one_domain(rig: &Rig) -> Outcome {
    let (device, other, file) = (device(rig)?, rig.open(), Inode::new());
    let made = Xrcd::open(&device, file.fd(), O_CREAT).unwrap();
    let again = file.again();
    let opened = Xrcd::open(&other, again.fd(), 0).unwrap();
    // It is there, so the flag has no effect.
    let third = Xrcd::open(&other, again.fd(), O_CREAT).unwrap();
    assert_eq!((made.close(), opened.close(), third.close()), (0, 0, 0));
    Ok(())
}

fn a_domain_that_is_not_there_is_not_opened(rig: &Rig) -> Outcome {
    let (device, file, other) = (device(rig)?, Inode::new(), Inode::new());
    assert!(Xrcd::open(&device, file.fd(), 0).is_err());
    let _made = Xrcd::open(&device, other.fd(), O_CREAT).unwrap();
    assert!(Xrcd::open(&device, file.fd(), 0).is_err(), "another file's is another domain");
    Ok(())
}

fn an_exclusive_domain_is_made_once(rig: &Rig) -> Outcome {
    let (device, file) = (device(rig)?, Inode::new());
    let made = Xrcd::open(&device, file.fd(), O_CREAT | O_EXCL).unwrap();
    assert!(Xrcd::open(&device, file.fd(), O_CREAT | O_EXCL).is_err());
    assert!(Xrcd::open(&rig.open(), file.again().fd(), O_CREAT | O_EXCL).is_err());
    assert_eq!(made.close(), 0);
    Xrcd::open(&device, file.fd(), O_CREAT | O_EXCL).unwrap();
    Ok(())
}

fn the_last_reference_ends_a_domain(rig: &Rig) -> Outcome {
    let (device, file) = (device(rig)?, Inode::new());
    let first = Xrcd::open(&device, file.fd(), O_CREAT).unwrap();
    let second = Xrcd::open(&device, file.fd(), 0).unwrap();
    assert_eq!(first.close(), 0);
    // The second reference keeps it, and so does this one.
    let third = Xrcd::open(&device, file.fd(), 0).unwrap();
    assert_eq!((second.close(), third.close()), (0, 0));
    assert!(Xrcd::open(&device, file.fd(), 0).is_err());
    Ok(())
}

fn a_bad_descriptor_is_refused(rig: &Rig) -> Outcome {
    assert_eq!(Xrcd::open(&device(rig)?, 1 << 20, O_CREAT).err(), Some(EBADF));
    Ok(())
}

/// `man ibv_open_xrcd`: the mask says which fields are valid, and both are needed.
fn a_domain_without_its_attributes_is_refused(rig: &Rig) -> Outcome {
    let device = device(rig)?;
    for mask in [0, 1, 2] {
        assert_eq!(Xrcd::with(&device, mask, -1, O_CREAT).err(), Some(EINVAL), "mask {mask}");
    }
    Ok(())
}

/// `man ibv_open_xrcd`: "may fail if any other resource is still associated with the XRCD being closed".
fn a_domain_in_use_is_busy(rig: &Rig) -> Outcome {
    let device = device(rig)?;
    let xrcd = Xrcd::private(&device).unwrap();
    let target = Qp::target(&xrcd).unwrap();
    assert_eq!(xrcd.close(), EBUSY);
    let receiver = Receiver::new(&device, &xrcd, Flavour::Classic);
    assert_eq!(target.destroy(), 0);
    assert_eq!(xrcd.close(), EBUSY);
    assert_eq!(receiver.srq.destroy(), 0);
    assert_eq!(xrcd.close(), 0);
    Ok(())
}

fn a_queue_has_a_number(rig: &Rig) -> Outcome {
    let device = device(rig)?;
    let xrcd = Xrcd::private(&device).unwrap();
    let [first, second] = [(); 2].map(|()| Receiver::new(&device, &xrcd, Flavour::Classic));
    assert_ne!(first.number, second.number);
    assert!(first.number < 1 << 24 && second.number < 1 << 24, "they travel in 24 bits");
    Ok(())
}

/// `man ibv_create_srq_ex`: a queue of this type has a domain of each kind and a completion queue.
fn a_queue_without_its_parts_is_refused(rig: &Rig) -> Outcome {
    let device = device(rig)?;
    let (pd, cq, xrcd) = (device.pd(), device.cq(16), Xrcd::private(&device).unwrap());
    let whole = init(&pd, &xrcd, &cq);
    let refused = |init: SrqInit<'_>, what: &str| {
        let made = Srq::extended(&device, init);
        assert!(made.is_err(), "without {what}");
    };
    refused(SrqInit { pd: None, ..whole }, "a protection domain");
    refused(SrqInit { xrcd: None, ..whole }, "an XRC domain");
    refused(SrqInit { cq: None, ..whole }, "a completion queue");
    refused(SrqInit { comp_mask: 1 << 31, ..whole }, "knowing the mask");
    Srq::extended(&device, whole).unwrap();
    Ok(())
}

fn a_queue_tells_and_changes_its_attributes(rig: &Rig) -> Outcome {
    let device = device(rig)?;
    let receiver = Receiver::new(&device, &Xrcd::private(&device).unwrap(), Flavour::Classic);
    let granted = receiver.srq.granted();
    assert!(granted.max_wr >= 16 && granted.max_sge >= 2, "{granted:?}");
    // A limit that is reached already is announced at once, and gone.
    (0..4).for_each(|id| receiver.recv(id, 0, 64));
    assert_eq!(receiver.srq.set_limit(3), 0);
    let told = receiver.srq.query().unwrap();
    assert_eq!((told.max_wr, told.max_sge, told.srq_limit), (granted.max_wr, granted.max_sge, 3));
    assert_eq!(receiver.srq.set_limit(granted.max_wr + 1), EINVAL);
    Ok(())
}

fn a_queue_keeps_its_completion_queue_and_domains_busy(rig: &Rig) -> Outcome {
    let device = device(rig)?;
    let (pd, cq, xrcd) = (device.pd(), device.cq(16), Xrcd::private(&device).unwrap());
    let srq = Srq::extended(&device, init(&pd, &xrcd, &cq)).unwrap();
    assert_eq!((cq.destroy(), pd.dealloc(), xrcd.close()), (EBUSY, EBUSY, EBUSY));
    assert_eq!(srq.destroy(), 0);
    assert_eq!((cq.destroy(), pd.dealloc(), xrcd.close()), (0, 0, 0));
    Ok(())
}

/// `man ibv_create_srq_ex`: "supporting both basic and xrc modes"; a basic queue belongs to pairs.
fn a_basic_queue_is_made_by_the_extended_call(rig: &Rig) -> Outcome {
    let device = device(rig)?;
    let pd = device.pd();
    let basic = SrqInit { pd: Some(&pd), max_wr: 4, max_sge: 1, ..SrqInit::default() };
    let typed = SrqInit { srq_type: Some(SrqType::IBV_SRQT_BASIC), ..basic };
    for init in [basic, typed] {
        let srq = Srq::extended(&device, init).unwrap();
        let options = Options::rc(Flavour::Classic);
        let b = Node::with_queues(&device, &options, Some((&pd, &srq)), None);
        let a = Node::new(&device, &options);
        a.connect(&b.peer());
        b.connect(&a.peer());
        srq.recv(&[Recv::new(5).sge(b.mr.at(0, 64))]).unwrap();
        a.done(Wr::send(6).sge(a.mr.at(0, 64)));
        assert_eq!(b.recv_cq.ok().id, 5);
    }
    Ok(())
}

/// `man ibv_create_qp_ex`: the protection domain is the initiator's, the XRC domain the target's.
fn a_pair_without_its_domain_is_refused(rig: &Rig) -> Outcome {
    let device = device(rig)?;
    let cq = device.cq(16);
    let initiator = QpInit::new(Type::IBV_QPT_XRC_SEND, &cq, &cq);
    assert!(Qp::make(&device, None, &initiator).is_err(), "an initiator without a protection domain");
    let target = QpInit { send_cq: None, recv_cq: None, ..QpInit::new(Type::IBV_QPT_XRC_RECV, &cq, &cq) };
    assert!(Qp::make(&device, None, &target).is_err(), "a target without an XRC domain");
    Ok(())
}

/// IBTA 11.2.5.2 with annex A14: an initiator has what a requester needs, and nothing of a responder.
fn an_initiator_goes_its_way(rig: &Rig) -> Outcome {
    let device = device(rig)?;
    let xrcd = Xrcd::private(&device).unwrap();
    let connection = Connection::new(&device, Qp::target(&xrcd).unwrap(), &options(Flavour::Classic));
    let qp = &connection.initiator;
    let to_rtr = connection.to_rtr(qp, connection.target.num());
    let to_rts = connection.to_rts(qp);
    goes(qp, [connection.to_init(), to_rtr, to_rts]);
    assert_eq!(qp.modify(Change::to(State::IBV_QPS_RESET)), 0);
    assert_eq!(qp.modify(connection.to_init()), 0);
    let responders = to_rtr.with(Mask::IBV_QP_MIN_RNR_TIMER, |attr| attr.min_rnr_timer = 1);
    assert_eq!(qp.modify(responders), EINVAL, "the timer is the responder's");
    Ok(())
}

/// Likewise: a target has what a responder needs.
fn a_target_goes_its_way(rig: &Rig) -> Outcome {
    let device = device(rig)?;
    let xrcd = Xrcd::private(&device).unwrap();
    let connection = Connection::new(&device, Qp::target(&xrcd).unwrap(), &options(Flavour::Classic));
    let qp = &connection.target;
    let to_rtr = connection.to_rtr(qp, connection.initiator.num());
    let to_rts = connection.to_rts(qp);
    goes(qp, [connection.to_init(), to_rtr, to_rts]);
    let told = qp.query(Mask::IBV_QP_STATE.0 | Mask::IBV_QP_DEST_QPN.0).unwrap();
    assert_eq!(told.0.dest_qp_num, connection.initiator.num());
    assert_eq!(qp.modify(Change::to(State::IBV_QPS_RESET)), 0);
    for change in [connection.to_init(), to_rtr] {
        assert_eq!(qp.modify(change), 0);
    }
    let requesters = to_rts.with(Mask::IBV_QP_RETRY_CNT, |attr| attr.retry_cnt = 1);
    assert_eq!(qp.modify(requesters), EINVAL, "the count is the requester's");
    Ok(())
}

/// Each step is refused without any one of its attributes, and taken with all of them.
fn goes(qp: &Qp, steps: [Change; 3]) {
    for step in steps {
        for bit in (0..32).map(|bit| 1 << bit).filter(|bit| step.mask & bit != 0) {
            if bit != Mask::IBV_QP_STATE.0 {
                let without = step.without(rdma_mummy_sys::types::ibv_qp_attr_mask(bit));
                assert_eq!(qp.modify(without), EINVAL, "{:?} without {bit:#x}", step.attr.qp_state);
            }
        }
        assert_eq!(qp.modify(step), 0, "{:?}", step.attr.qp_state);
        assert_eq!(qp.state(), step.attr.qp_state);
    }
}

/// Receives come from shared queues alone.
fn no_pair_takes_receives(rig: &Rig) -> Outcome {
    let (_xrcd, receiver, connection) = connected(rig, &options(Flavour::Classic))?;
    for qp in [&connection.initiator, &connection.target] {
        let posted = qp.recv_list(&[Recv::new(1).sge(receiver.mr.at(0, 64))]);
        assert!(posted.is_err(), "an XRC pair has no receive queue");
    }
    Ok(())
}

/// `man ibv_open_qp`: an existing pair is opened, by number and type, within its domain.
fn an_opened_pair_is_the_same_pair(rig: &Rig) -> Outcome {
    let (xrcd, receiver, connection) = connected(rig, &options(Flavour::Classic))?;
    let opened = Qp::open(&xrcd, connection.target.num(), Type::IBV_QPT_XRC_RECV).unwrap();
    assert_eq!(opened.num(), connection.target.num());
    assert_eq!(opened.state(), State::IBV_QPS_RTS);
    assert_eq!(opened.modify(Change::to(State::IBV_QPS_ERR)), 0);
    assert_eq!(connection.target.state(), State::IBV_QPS_ERR);
    receiver.recv(1, 0, 64);
    assert_eq!(opened.destroy(), 0);
    Ok(())
}

/// `man ibv_open_qp`: destroying "closes the opened QP and destroys the underlying QP if it has no other references".
fn an_opened_pair_outlives_the_first_handle(rig: &Rig) -> Outcome {
    let opts = options(Flavour::Classic).impatient();
    let (xrcd, receiver, connection) = connected(rig, &opts)?;
    let opened = Qp::open(&xrcd, connection.target.num(), Type::IBV_QPT_XRC_RECV).unwrap();
    assert_eq!(connection.target.destroy(), 0);
    assert_eq!(opened.state(), State::IBV_QPS_RTS);
    receiver.recv(1, 0, 64);
    connection.done(Wr::send(2).sge(connection.mr.at(0, 16)), &receiver);
    assert_eq!(receiver.cq.ok().qp_num, opened.num());
    assert_eq!(opened.destroy(), 0);
    let status = connection.fails(Wr::send(3).sge(connection.mr.at(0, 16)), receiver.number, false);
    assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR, "nobody answers");
    Ok(())
}

/// `man ibv_open_qp`: it fails for a pair "that does not exist within the xrcd with the specified qp_num and qp_type".
fn a_pair_that_is_not_there_is_not_opened(rig: &Rig) -> Outcome {
    let (xrcd, _receiver, connection) = connected(rig, &options(Flavour::Classic))?;
    let (target, recv) = (connection.target.num(), Type::IBV_QPT_XRC_RECV);
    assert!(Qp::open(&xrcd, connection.initiator.num(), recv).is_err(), "an initiator");
    assert!(Qp::open(&xrcd, target ^ 0x3f_0000, recv).is_err(), "nobody's number");
    assert!(Qp::open(&xrcd, target, Type::IBV_QPT_RC).is_err(), "another type");
    let elsewhere = Xrcd::private(&device(rig)?).unwrap();
    assert!(Qp::open(&elsewhere, target, recv).is_err(), "another domain");
    assert_eq!(connection.target.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn a_send_takes_a_receive_of_the_queue(rig: &Rig, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(rig, &options(flavour))?;
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

fn immediate_data_comes_along(rig: &Rig, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(rig, &options(flavour))?;
    receiver.recv(1, 0, 64);
    connection.done(Wr::send_imm(2, 0x0102_0304).sge(connection.mr.at(0, 8)), &receiver);
    let wc = receiver.cq.ok();
    assert_eq!((wc.id, wc.len, wc.imm), (1, 8, 0x0102_0304));
    assert!(wc.has(WcFlags::IBV_WC_WITH_IMM));
    Ok(())
}

fn a_write_with_immediate_data_takes_a_receive(rig: &Rig, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(rig, &options(flavour))?;
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

fn long_messages_come_whole(rig: &Rig, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(rig, &options(flavour))?;
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

/// IBTA annex A14: each request names the queue, so one connection reaches every queue of the domain.
fn the_number_says_which_queue(rig: &Rig, flavour: Flavour) -> Outcome {
    let (own, other) = (device(rig)?, device(rig)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let receivers: Vec<_> = (0..3).map(|_| Receiver::new(&own, &xrcd, flavour)).collect();
    let connection = Connection::new(&other, Qp::target(&xrcd).unwrap(), &options(flavour)).connect();
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

fn the_completion_says_which_connection(rig: &Rig, flavour: Flavour) -> Outcome {
    let (own, other) = (device(rig)?, device(rig)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let receiver = Receiver::new(&own, &xrcd, flavour);
    let connections =
        [(); 2].map(|()| Connection::new(&other, Qp::target(&xrcd).unwrap(), &options(flavour)).connect());
    for round in 0..10 {
        let connection = &connections[round % 2];
        receiver.recv(round as u64, 0, 64);
        connection.done(Wr::send(1).sge(connection.mr.at(0, 8)), &receiver);
        let wc = receiver.cq.ok();
        assert_eq!((wc.id, wc.qp_num), (round as u64, connection.target.num()));
    }
    Ok(())
}

/// Target and queue are of two contexts, which have the domain in common.
fn queue_and_pair_meet_by_the_file(rig: &Rig, flavour: Flavour) -> Outcome {
    let (first, second, third, file) = (device(rig)?, device(rig)?, device(rig)?, Inode::new());
    let made = Xrcd::open(&first, file.fd(), O_CREAT).unwrap();
    let opened = Xrcd::open(&second, file.again().fd(), 0).unwrap();
    let receiver = Receiver::new(&second, &opened, flavour);
    let connection = Connection::new(&third, Qp::target(&made).unwrap(), &options(flavour)).connect();
    receiver.recv(1, 0, 64);
    connection.done(Wr::send(2).sge(connection.mr.at(0, 8)), &receiver);
    assert_eq!(receiver.cq.ok().qp_num, connection.target.num());
    Ok(())
}

/// IBTA annex A14: the protection domain of a request is that of the queue which it names. The table of opcodes of `man
/// ibv_post_send` has all of these for XRC pairs.
fn reads_writes_and_atomics_use_the_queues_domain(rig: &Rig, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(rig, &options(flavour))?;
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
    // None of them takes a receive.
    assert!(receiver.cq.is_empty());
    Ok(())
}

fn memory_of_another_domain_is_refused(rig: &Rig, flavour: Flavour) -> Outcome {
    let (own, other) = (device(rig)?, device(rig)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let [named, owner] = [(); 2].map(|()| Receiver::new(&own, &xrcd, flavour));
    let connection = Connection::new(&other, Qp::target(&xrcd).unwrap(), &options(flavour)).connect();
    let write = Wr::write(1, owner.mr.remote(0)).sge(connection.mr.at(0, 8));
    assert_eq!(connection.fails(write, named.number, true), Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

/// IBTA annex A14: an XRC header that names no queue is answered as a violation of access, and the target fails.
fn a_wrong_number_fails_the_connection(rig: &Rig, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(rig, &options(flavour))?;
    receiver.recv(1, 0, 64);
    let nobody = receiver.number ^ 0x1000;
    let status = connection.fails(Wr::send(2).sge(connection.mr.at(0, 8)), nobody, true);
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    assert!(receiver.cq.is_empty());
    Ok(())
}

/// Likewise a queue that is not of the target's domain.
fn a_queue_of_another_domain_fails_the_connection(rig: &Rig, flavour: Flavour) -> Outcome {
    let (own, other) = (device(rig)?, device(rig)?);
    let [here, there] = [(); 2].map(|()| Xrcd::private(&own).unwrap());
    let receiver = Receiver::new(&own, &there, flavour);
    let connection = Connection::new(&other, Qp::target(&here).unwrap(), &options(flavour)).connect();
    receiver.recv(1, 0, 64);
    let status = connection.fails(Wr::send(2).sge(connection.mr.at(0, 8)), receiver.number, true);
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    assert!(receiver.cq.is_empty());
    Ok(())
}

fn a_destroyed_queue_fails_the_connection(rig: &Rig, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(rig, &options(flavour))?;
    receiver.recv(1, 0, 64);
    connection.done(Wr::send(2).sge(connection.mr.at(0, 8)), &receiver);
    assert_eq!(receiver.srq.destroy(), 0);
    let status = connection.fails(Wr::send(3).sge(connection.mr.at(0, 8)), receiver.number, true);
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn an_empty_queue_means_not_ready(rig: &Rig, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) =
        connected(rig, &options(flavour).set(|options| options.rnr_retry = 1))?;
    let status = connection.fails(Wr::send(1).sge(connection.mr.at(0, 8)), receiver.number, false);
    assert_eq!(status, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert_eq!(connection.target.state(), State::IBV_QPS_RTS, "to be not ready is no error of the target");
    Ok(())
}

fn a_late_receive_is_found(rig: &Rig, flavour: Flavour) -> Outcome {
    let (_xrcd, receiver, connection) = connected(rig, &options(flavour))?;
    connection.post(Wr::send(1).sge(connection.mr.at(0, 8)), &receiver);
    std::thread::sleep(Duration::from_millis(20));
    assert!(connection.cq.is_empty());
    receiver.recv(2, 0, 64);
    assert_eq!((receiver.cq.ok().id, connection.cq.ok().id), (2, 1));
    Ok(())
}

/// IBTA annex A14 and chapter 9, responder's error behaviour: the receive ends with an error, and so does the connection; the
/// shared queue goes on.
fn a_message_too_long_fails_its_connection_only(rig: &Rig, flavour: Flavour) -> Outcome {
    let (own, other) = (device(rig)?, device(rig)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let receiver = Receiver::new(&own, &xrcd, flavour);
    let [bad, good] =
        [(); 2].map(|()| Connection::new(&other, Qp::target(&xrcd).unwrap(), &options(flavour)).connect());
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

fn the_limit_is_announced(rig: &Rig, flavour: Flavour) -> Outcome {
    let (own, other) = (device(rig)?, device(rig)?);
    let xrcd = Xrcd::private(&own).unwrap();
    let receiver = Receiver::new(&own, &xrcd, flavour);
    let connection = Connection::new(&other, Qp::target(&xrcd).unwrap(), &options(flavour)).connect();
    (0..4).for_each(|id| receiver.recv(id, 0, 64));
    assert_eq!(receiver.srq.set_limit(3), 0);
    for _ in 0..2 {
        connection.done(Wr::send(1).sge(connection.mr.at(0, 8)), &receiver);
    }
    let about = loop {
        let event = own.event(PATIENCE).expect("an event");
        // That the connection is there may be told, too.
        if event.kind() != EventType::IBV_EVENT_COMM_EST {
            break (event.kind(), event.element());
        }
    };
    assert_eq!(about, (EventType::IBV_EVENT_SRQ_LIMIT_REACHED, receiver.srq.address()));
    Ok(())
}

/// `man ibv_create_srq_ex`: destroying fails while a pair is associated with a queue; a target is associated with a domain.
fn a_queue_goes_while_connections_live(rig: &Rig, flavour: Flavour) -> Outcome {
    let (xrcd, receiver, connection) = connected(rig, &options(flavour))?;
    receiver.recv(1, 0, 64);
    assert_eq!(receiver.srq.destroy(), 0);
    let next = Receiver::new(xrcd.device(), &xrcd, flavour);
    next.recv(2, 0, 64);
    connection.done(Wr::send(3).sge(connection.mr.at(0, 8)), &next);
    assert!(until(PATIENCE, || next.cq.poll(1).first().map(|wc| assert_eq!(wc.id, 2))).is_some());
    Ok(())
}
