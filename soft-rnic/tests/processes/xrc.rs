//! Extended reliable connections (XRC) between three processes: one has the initiator, one the
//! target, one the shared receive queue. They share a file, which names the domain.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::time::Duration;

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::kit::{TestDevice, TestMemory, TestQp, dereg, lib, post_shared, route, until};
use crate::role::{self, ChildRole, say, told};

const PATIENCE: Duration = Duration::from_secs(20);
const ROOM: usize = 8192;

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |path: &'static str| {
        Trial::test(format!("xrc::a_target_leads_to_a_queue_of_another_process_by_{path}"), move || {
            role::run("xrc-sender", &[("SOFT_RNIC_PATH", path)])
        })
    };
    ["auto", "vm", "call"].map(trial).into()
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Opens the XRC domain of a file.
fn open(device: TestDevice, file: &File, oflags: i32) -> Result<*mut ibv_xrcd, i32> {
    use ibv_xrcd_init_attr_mask as M;
    let comp_mask = M::IBV_XRCD_INIT_ATTR_FD.0 | M::IBV_XRCD_INIT_ATTR_OFLAGS.0;
    let mut attr = ibv_xrcd_init_attr { comp_mask, fd: file.as_raw_fd(), oflags };
    // SAFETY: the context is live.
    let xrcd = unsafe { verbs::ibv_open_xrcd(device.context, &raw mut attr) };
    if xrcd.is_null() { Err(errno()) } else { Ok(xrcd) }
}

fn close(xrcd: *mut ibv_xrcd) {
    // SAFETY: the domain is live, and has no objects left.
    assert_eq!(unsafe { verbs::ibv_close_xrcd(xrcd) }, 0, "ibv_close_xrcd");
}

/// Moves the queue pair to RTS, as a target or an initiator.
fn connect(qp: TestQp, device: TestDevice, to: u32, is_target: bool) {
    use ibv_qp_attr_mask as M;
    // SAFETY: a GID is plain bytes.
    let gid = unsafe { device.gid().raw };
    let attr = ibv_qp_attr {
        path_mtu: ibv_mtu::IBV_MTU_1024,
        dest_qp_num: to,
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        min_rnr_timer: 5,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ah_attr: route(gid),
        ..Default::default()
    };
    let (responds, requests) = if is_target {
        (M::IBV_QP_MAX_DEST_RD_ATOMIC.0 | M::IBV_QP_MIN_RNR_TIMER.0, 0)
    } else {
        (0, M::IBV_QP_RETRY_CNT.0 | M::IBV_QP_RNR_RETRY.0 | M::IBV_QP_MAX_QP_RD_ATOMIC.0)
    };
    let path = M::IBV_QP_AV.0 | M::IBV_QP_PATH_MTU.0 | M::IBV_QP_DEST_QPN.0 | M::IBV_QP_RQ_PSN.0;
    qp.init();
    for (qp_state, mask) in [
        (ibv_qp_state::IBV_QPS_RTR, path | responds),
        (ibv_qp_state::IBV_QPS_RTS, M::IBV_QP_TIMEOUT.0 | M::IBV_QP_SQ_PSN.0 | requests),
    ] {
        let mut attr = ibv_qp_attr { qp_state, ..attr };
        // SAFETY: the queue pair is live.
        let result = unsafe { (lib().ibv_modify_qp)(qp.0, &raw mut attr, (mask | M::IBV_QP_STATE.0) as i32) };
        assert_eq!(result, 0, "to {qp_state:?}");
    }
}

fn number() -> u32 {
    told().and_then(|line| line.parse().ok()).expect("a number")
}

/// The target role: makes the domain and a target in it.
pub(crate) fn target(file: &str) {
    let (device, file) = (TestDevice::open(), File::open(file).expect("the file"));
    let xrcd = open(device, &file, libc::O_CREAT | libc::O_EXCL).expect("a domain");
    let mut init = ibv_qp_init_attr_ex {
        qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
        comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0,
        xrcd,
        ..Default::default()
    };
    // SAFETY: the context and the domain are live.
    let qp = TestQp(unsafe { verbs::ibv_create_qp_ex(lib(), device.context, &raw mut init) });
    assert!(!qp.0.is_null(), "errno {}", errno());
    say(&qp.number().to_string());
    connect(qp, device, number(), true);
    say("connected");
    // The sender has now seen the end of the queue's process, which ends the connection.
    assert_eq!(told().as_deref(), Some("end"));
    // The target learns of the failure through its doorbell.
    until("the target's failure", PATIENCE, || (qp.state() == ibv_qp_state::IBV_QPS_ERR).then_some(()));
    assert_eq!(qp.destroy(), 0);
    close(xrcd);
    say("closed");
    device.close();
}

/// The receiver role: opens the existing domain, and makes a shared receive queue in it.
pub(crate) fn receiver(file: &str) {
    let (device, file) = (TestDevice::open(), File::open(file).expect("the file"));
    assert_eq!(open(device, &file, libc::O_CREAT | libc::O_EXCL).err(), Some(libc::EINVAL));
    let xrcd = open(device, &file, 0).expect("the other process's domain");
    let target = number();
    let mut attr = ibv_qp_open_attr {
        comp_mask: 1 | 2 | 8,
        qp_num: target,
        xrcd,
        qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
        ..Default::default()
    };
    // SAFETY: the context and the domain are live.
    assert!(unsafe { verbs::ibv_open_qp(device.context, &raw mut attr) }.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP, "a target of another process");
    let (cq, memory) = (device.cq(16, ptr::null_mut()), TestMemory::private(ROOM));
    let mr = memory.register(device);
    let mut init = ibv_srq_init_attr_ex {
        attr: ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 },
        comp_mask: 1 | 2 | 4 | 8,
        srq_type: ibv_srq_type::IBV_SRQT_XRC,
        pd: device.pd,
        xrcd,
        cq: cq.0,
        ..Default::default()
    };
    let mut srqn = 0;
    // SAFETY: all objects are live.
    let srq = unsafe {
        let srq = verbs::ibv_create_srq_ex(lib(), device.context, &raw mut init);
        assert!(!srq.is_null(), "errno {}", errno());
        assert_eq!(verbs::ibv_get_srq_num(srq, &raw mut srqn), 0);
        srq
    };
    say(&srqn.to_string());
    while let Some(line) = told() {
        let len: usize = line.parse().expect("a length");
        assert_eq!(post_shared(srq, len as u64, memory.sge(mr, 0, ROOM)), 0);
        let wc = cq.one("a message", PATIENCE);
        assert_eq!((wc.status, wc.wr_id), (ibv_wc_status::IBV_WC_SUCCESS, len as u64));
        assert_eq!((wc.byte_len as usize, wc.qp_num), (len, target));
        assert_eq!(memory.part_differs(0, len, len as u8), None);
        say("got it");
    }
}

fn send(qp: TestQp, srqn: u32, sge: ibv_sge) {
    let mut list = [sge];
    let mut wr = ibv_send_wr {
        sg_list: list.as_mut_ptr(),
        num_sge: 1,
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    };
    wr.qp_type.xrc.remote_srqn = srqn;
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair is live, and the request and its entry live during the call.
    assert_eq!(unsafe { verbs::ibv_post_send(qp.0, &raw mut wr, &raw mut bad) }, 0);
}

pub(crate) fn sender() {
    // SAFETY: the name is a C string; nobody else has the returned descriptor.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"xrc".as_ptr(), libc::MFD_CLOEXEC)) };
    let name = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut target = ChildRole::start(&format!("xrc-target {name}"), &[]);
    let number = target.hear();
    let mut receiver = ChildRole::start(&format!("xrc-receiver {name}"), &[]);
    receiver.tell(&number);
    let srqn = receiver.hear().parse().expect("a number");
    let device = TestDevice::open();
    let (cq, memory) = (device.cq(16, ptr::null_mut()), TestMemory::private(ROOM));
    let mr = memory.register(device);
    let qp = device.qp(ibv_qp_type::IBV_QPT_XRC_SEND, cq, ptr::null_mut(), 4);
    target.tell(&qp.number().to_string());
    connect(qp, device, number.parse().expect("a number"), false);
    assert_eq!(target.hear(), "connected");
    for len in [1, 256, 257, 8000] {
        memory.fill(len as u8);
        send(qp, srqn, memory.sge(mr, 0, len));
        // The receive may be posted after the message.
        receiver.tell(&len.to_string());
        assert_eq!(receiver.hear(), "got it");
        assert_eq!(cq.one("a send", PATIENCE).status, ibv_wc_status::IBV_WC_SUCCESS);
    }
    drop(receiver);
    send(qp, srqn, memory.sge(mr, 0, 8));
    let status = cq.one("the end of the queue", PATIENCE).status;
    assert_eq!(status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR, "the queue is gone");
    target.tell("end");
    assert_eq!(target.hear(), "closed");
    // No process has the domain any more.
    assert_eq!(open(device, &file, 0).err(), Some(libc::EAGAIN));
    close(open(device, &file, libc::O_CREAT | libc::O_EXCL).expect("a new domain"));
    target.finish();
    assert_eq!(qp.destroy(), 0);
    assert_eq!(dereg(mr), 0);
    memory.free();
    cq.destroy();
    device.close();
}
