//! The numbers that the device announces by default: it has as many objects, and not one more.
//!
//! The conformance suite does the same, with data, on a device whose limits are lowered. Only here a
//! limit above what the device can have would be noticed.

use std::ptr;
use std::time::Instant;

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::kit::{ALL, QpAddress, TestCq, TestDevice, TestMemory, TestQp, dereg, lib, rkey, route, until};
use crate::partner::{PATIENCE, TIMING};
use crate::rights::trial_unless;
use crate::role;

/// Roles that take seconds.
const KINDS: [&str; 8] = [
    "domains",
    "handles",
    "shared_queues",
    "windows",
    "groups",
    "completion_queues",
    "completions",
    "queue_pairs",
];
/// A role that takes a minute. It runs with `SOFT_RNIC_SOAK`.
const LONG_KIND: &str = "regions";

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |kind: &&'static str, lacks: fn() -> Option<&'static str>| {
        let role = format!("announced {kind}");
        trial_unless(format!("announced::{kind}"), lacks, move || {
            role::run(&role, &[("SOFT_RNIC_TEST_ALARM", "600")])
        })
    };
    let short = KINDS.iter().map(|kind| trial(kind, || None));
    short.chain([trial(&LONG_KIND, not_asked_for)]).collect()
}

fn not_asked_for() -> Option<&'static str> {
    std::env::var_os("SOFT_RNIC_SOAK").is_none().then_some("it takes a minute, and SOFT_RNIC_SOAK is not set")
}

pub(crate) fn play(kind: &str) {
    let device = TestDevice::open();
    let mut limits = ibv_device_attr::default();
    // SAFETY: the context is live, and the structure is a writable local.
    assert_eq!(unsafe { (lib().ibv_query_device)(device.context, &raw mut limits) }, 0);
    match kind {
        "domains" => domains(device, limits.max_pd - 1),
        "handles" => handles(device, limits.max_ah),
        "shared_queues" => shared_queues(device, limits.max_srq),
        "windows" => windows(device, limits.max_mw),
        "groups" => groups(device, limits.max_mcast_grp),
        "regions" => regions(device, limits.max_mr),
        "completion_queues" => completion_queues(device, limits.max_cq),
        "completions" => completions(device, limits.max_cqe),
        "queue_pairs" => queue_pairs(device, limits.max_qp),
        other => panic!("no such kind: {other}"),
    }
    device.close();
}

fn pair(device: TestDevice, cq: TestCq, depth: u32) -> TestQp {
    device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), depth)
}

fn address(device: TestDevice, qp: TestQp, memory: TestMemory, mr: *mut ibv_mr) -> QpAddress {
    let addr = memory.base.addr() as u64;
    QpAddress { qpn: qp.number(), gid: device.gid_bytes(), addr, rkey: rkey(mr) }
}

/// Connects two queue pairs, or one to itself, and writes from one to the other.
fn writes(device: TestDevice, cq: TestCq, one: TestQp, other: TestQp) {
    let memory = TestMemory::private(8192);
    let mr = memory.register(device);
    let [here, there] = [one, other].map(|qp| address(device, qp, memory, mr));
    one.init();
    one.connect(&there, TIMING);
    if one.number() != other.number() {
        other.init();
        other.connect(&here, TIMING);
    }
    memory.fill_part(4096, 64, 0x5a);
    let from = memory.sge(mr, 4096, 64);
    assert_eq!(one.post(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, from, &there, ptr::null_mut()), 0);
    assert_eq!(cq.one("a write", PATIENCE).status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(memory.part_differs(0, 64, 0x5a), None);
    assert_eq!(dereg(mr), 0);
    memory.free();
}

/// Makes as many objects as are announced, and expects the refusal of one more. Gives the first and
/// the last to `use_both`, and then destroys all.
fn all<T>(
    announced: i32,
    make: impl Fn() -> *mut T,
    use_both: impl FnOnce(*mut T, *mut T),
    destroy: impl Fn(*mut T) -> i32,
) {
    let begin = Instant::now();
    let made: Vec<*mut T> = (0..announced).map(|_| make()).collect();
    let error = std::io::Error::last_os_error();
    let missing = made.iter().position(|object| object.is_null());
    assert_eq!(missing, None, "of {announced}: {error}");
    assert!(make().is_null(), "one above {announced}");
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
    use_both(made[0], made[made.len() - 1]);
    let took = begin.elapsed();
    made.into_iter().for_each(|object| assert_eq!(destroy(object), 0));
    println!("{announced} made in {took:?}, destroyed in {:?}", begin.elapsed() - took);
}

fn domains(device: TestDevice, announced: i32) {
    all(
        announced,
        // SAFETY: the context is live.
        || unsafe { (lib().ibv_alloc_pd)(device.context) },
        |_, last| {
            let (cq, within) = (device.cq(1, ptr::null_mut()), TestDevice { pd: last, ..device });
            let qp = pair(within, cq, 1);
            writes(within, cq, qp, qp);
            assert_eq!(qp.destroy(), 0);
            cq.destroy();
        },
        // SAFETY: the domain is live, and has no objects.
        |pd| unsafe { (lib().ibv_dealloc_pd)(pd) },
    );
}

fn handles(device: TestDevice, announced: i32) {
    let attr = route(device.gid_bytes());
    all(
        announced,
        // SAFETY: the domain is live, and the attributes are a local.
        || unsafe { (lib().ibv_create_ah)(device.pd, (&raw const attr).cast_mut()) },
        |_, _| {},
        // SAFETY: the handle is live.
        |ah| unsafe { (lib().ibv_destroy_ah)(ah) },
    );
}

fn shared_queues(device: TestDevice, announced: i32) {
    let make = || {
        let attr = ibv_srq_attr { max_wr: 1, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { attr, ..Default::default() };
        // SAFETY: the domain is live.
        unsafe { (lib().ibv_create_srq)(device.pd, &raw mut init) }
    };
    // SAFETY: the queue is live.
    all(announced, make, |_, _| {}, |srq| unsafe { (lib().ibv_destroy_srq)(srq) });
}

fn windows(device: TestDevice, announced: i32) {
    all(
        announced,
        // SAFETY: the domain is live.
        || unsafe { verbs::ibv_alloc_mw(device.pd, ibv_mw_type::IBV_MW_TYPE_1) },
        |_, _| {},
        // SAFETY: the window is live.
        |window| unsafe { verbs::ibv_dealloc_mw(window) },
    );
}

fn groups(device: TestDevice, announced: i32) {
    let cq = device.cq(4, ptr::null_mut());
    let qp = device.qp(ibv_qp_type::IBV_QPT_UD, cq, ptr::null_mut(), 1);
    let join = |number: i32, attach: bool| {
        let mut gid = ibv_gid { raw: [0xff; 16] };
        // SAFETY: a GID is sixteen bytes, whichever field of the union was written.
        unsafe { gid.raw[12..].copy_from_slice(&number.to_be_bytes()) };
        let call = if attach { lib().ibv_attach_mcast } else { lib().ibv_detach_mcast };
        // SAFETY: the queue pair is live, and the GID is a local.
        unsafe { call(qp.0, &raw const gid, 0) }
    };
    (0..announced).for_each(|number| assert_eq!(join(number, true), 0, "group {number} of {announced}"));
    assert_eq!(join(announced, true), libc::ENOMEM, "one above {announced}");
    (0..announced).for_each(|number| assert_eq!(join(number, false), 0));
    assert_eq!(qp.destroy(), 0);
    cq.destroy();
}

fn regions(device: TestDevice, announced: i32) {
    let memory = TestMemory::private(4096);
    all(
        announced,
        // SAFETY: the domain and the memory are live.
        || unsafe { verbs::ibv_reg_mr(lib(), device.pd, memory.base.cast(), 4096, ALL) },
        |_, _| {},
        dereg,
    );
    memory.free();
}

fn completion_queues(device: TestDevice, announced: i32) {
    all(
        announced,
        // SAFETY: the context is live.
        || unsafe { (lib().ibv_create_cq)(device.context, 1, ptr::null_mut(), ptr::null_mut(), 0) },
        |first, last| {
            for cq in [first, last].map(TestCq) {
                let qp = pair(device, cq, 1);
                writes(device, cq, qp, qp);
                assert_eq!(qp.destroy(), 0);
            }
        },
        // SAFETY: the queue is live, and no queue pair uses it.
        |cq| unsafe { (lib().ibv_destroy_cq)(cq) },
    );
}

/// Queue pairs enough to fill the queue, each with as many requests as it holds.
fn completions(device: TestDevice, announced: i32) {
    const DEPTH: i32 = 1 << 16;
    // SAFETY: the context is live.
    let create =
        |cqe| unsafe { (lib().ibv_create_cq)(device.context, cqe, ptr::null_mut(), ptr::null_mut(), 0) };
    assert!(create(announced + 1).is_null(), "one above {announced}");
    let cq = TestCq(create(announced));
    assert!(!cq.0.is_null(), "{announced}: {}", std::io::Error::last_os_error());
    let memory = TestMemory::private(4096);
    let mr = memory.register(device);
    let pairs: Vec<TestQp> = (0..announced / DEPTH).map(|_| pair(device, cq, DEPTH as u32)).collect();
    for qp in &pairs {
        let to = address(device, *qp, memory, mr);
        qp.init();
        qp.connect(&to, TIMING);
        for id in 0..DEPTH as u64 {
            let from = memory.sge(mr, 64, 8);
            assert_eq!(qp.post(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, from, &to, ptr::null_mut()), 0);
        }
    }
    for _ in 0..announced {
        let completion = until("a completion", PATIENCE, || cq.poll());
        assert_eq!(completion.status, ibv_wc_status::IBV_WC_SUCCESS);
    }
    assert!(cq.poll().is_none());
    pairs.into_iter().for_each(|qp| assert_eq!(qp.destroy(), 0));
    cq.destroy();
    assert_eq!(dereg(mr), 0);
    memory.free();
}

fn queue_pairs(device: TestDevice, announced: i32) {
    let cq = device.cq(4, ptr::null_mut());
    all(
        announced,
        || device.try_qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 1).map_or(ptr::null_mut(), |qp| qp.0),
        |first, last| writes(device, cq, TestQp(first), TestQp(last)),
        |qp| TestQp(qp).destroy(),
    );
    cq.destroy();
}
