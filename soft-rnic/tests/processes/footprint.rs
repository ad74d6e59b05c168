//! What devices take of a process, and what they leave: mappings, resident memory, core dumps, and
//! objects that the program has not destroyed.

use std::ptr;
use std::time::Instant;

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;

use crate::captured_log::{keep_log, logged};
use crate::kit::{QpAddress, TestDevice, dereg, lib};
use crate::limits::{null_region, statm};
use crate::partner::{PATIENCE, TIMING, TestEndpoint, meet};
use crate::role::{self, ChildRole};
use crate::soak::Resources;

pub(crate) fn trials() -> Vec<Trial> {
    [
        ("an_idle_device_maps_little", "idle"),
        ("a_null_region_is_in_no_core_dump", "dump"),
        ("locked_memory_stays_little", "locked"),
        ("forty_thousand_queue_pairs", "many"),
        ("opening_and_closing_leaves_nothing", "again"),
        ("a_device_that_is_closed_with_objects_is_no_warning", "leaving"),
    ]
    .map(|(name, role)| {
        let role = format!("footprint {role}");
        Trial::test(format!("footprint::{name}"), move || {
            role::run(&role, &[("SOFT_RNIC_TEST_ALARM", "110")])
        })
    })
    .into()
}

pub(crate) fn play(case: &str) {
    match case {
        "idle" => idle(),
        "dump" => dump(),
        "locked" => locked(),
        "many" => many(),
        "again" => again(),
        _ => leaving(),
    }
}

/// The bytes of the device's mappings, and how many of them core dumps contain.
fn mapped() -> (u64, usize) {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("a process can see its own");
    let (mut bytes, mut dumped, mut of_device) = (0, 0, false);
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if !first.ends_with(':') {
            of_device = line.contains("memfd:soft-rnic");
        } else if of_device && first == "Size:" {
            bytes += words.next().and_then(|size| size.parse::<u64>().ok()).expect("a size") << 10;
        } else if of_device && first == "VmFlags:" {
            dumped += usize::from(!words.any(|flag| flag == "dd"));
        }
    }
    (bytes, dumped)
}

fn idle() {
    let side = TestEndpoint::new();
    let (own, dumped) = mapped();
    assert!((1..=64 << 20).contains(&own), "{own} bytes");
    assert_eq!(dumped, 0, "mappings that a core dump contains");
    // A peer's segment is no different, and neither is what is added later.
    let (other, _partner, to) = meet(ChildRole::start("partner", &[]));
    assert_eq!(other.run(ibv_wr_opcode::IBV_WR_SEND, &to), ibv_wc_status::IBV_WC_SUCCESS);
    let qp = side.device.qp(ibv_qp_type::IBV_QPT_RC, side.cq, ptr::null_mut(), 60_000);
    let (all, dumped) = mapped();
    assert!(all > 2 * own, "{all} bytes");
    assert_eq!(dumped, 0, "mappings that a core dump contains");
    assert_eq!(qp.destroy(), 0);
    other.close();
    side.close();
}

/// The bytes of this process's mappings that a core dump may contain.
fn dumped() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("a process can see its own");
    let (mut bytes, mut size) = (0, 0);
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("Size:") => {
                size = words.next().and_then(|size| size.parse::<u64>().ok()).expect("a size") << 10;
            }
            Some("VmFlags:") if !words.any(|flag| flag == "dd") => bytes += size,
            _ => {}
        }
    }
    bytes
}

fn dump() {
    let device = TestDevice::open();
    let (before, used) = (dumped(), statm(0));
    let mr = null_region(device).expect("address space");
    assert!(statm(0) - used >= 4 << 30, "the null region is mapped");
    let more = dumped().saturating_sub(before);
    assert!(more < 32 << 20, "a core dump contains {more} bytes more");
    assert_eq!(dereg(mr), 0);
    device.close();
}

fn locked() {
    // SAFETY: the call changes no memory.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        let error = std::io::Error::last_os_error();
        test_harness::report_skip("footprint::locked_memory_stays_little", format_args!("mlockall: {error}"));
        return;
    }
    let before = statm(1);
    let side = TestEndpoint::new();
    let mr = null_region(side.device).expect("address space");
    let after = statm(1);
    assert!(after - before < 200 << 20, "{} bytes became resident", after - before);
    // The sink is one file, whose pages are resident once, however often they are mapped.
    // SAFETY: the call changes no memory.
    assert_eq!(unsafe { libc::mlockall(libc::MCL_CURRENT) }, 0, "{}", std::io::Error::last_os_error());
    let memory = proportional();
    assert!(memory < 300 << 20, "{memory} bytes are in memory");
    assert_eq!(dereg(mr), 0);
    side.close();
}

/// The memory of this process, in bytes: a page that is mapped repeatedly counts once.
fn proportional() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps_rollup").expect("a process can see its own");
    let line = maps.lines().find_map(|line| line.strip_prefix("Pss:")).expect("a number");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn many() {
    const MANY: usize = 40_000;
    let before = Resources::now();
    let side = TestEndpoint::new();
    let begin = Instant::now();
    let make = |_| {
        let qp = side.device.qp(ibv_qp_type::IBV_QPT_RC, side.cq, ptr::null_mut(), 2);
        qp.init();
        qp
    };
    let qps: Vec<_> = (0..MANY).map(make).collect();
    let made = begin.elapsed();
    let mut numbers: Vec<u32> = qps.iter().map(|qp| qp.number()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), MANY, "two queue pairs have the same number");
    // Use queue pairs from every block of numbers.
    for (first, second) in [(0, MANY - 1), (16_000, 33_000), (16_400, 100), (20_000, 39_000)] {
        let (a, b) = (qps[first], qps[second]);
        let address = |qp: crate::kit::TestQp| QpAddress { qpn: qp.number(), ..side.address() };
        a.connect(&address(b), TIMING);
        b.connect(&address(a), TIMING);
        assert_eq!(b.receive(1, side.memory.sge(side.mr, 4096, 64)), 0);
        side.memory.fill_part(0, 64, first as u8);
        let sge = side.memory.sge(side.mr, 0, 64);
        assert_eq!(a.post(2, ibv_wr_opcode::IBV_WR_SEND, sge, &address(b), ptr::null_mut()), 0);
        let mut ids = [(); 2].map(|()| side.cq.one("a message among many", PATIENCE).wr_id);
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
        assert_eq!(side.memory.part_differs(4096, 64, first as u8), None);
    }
    let begin = Instant::now();
    qps.into_iter().for_each(|qp| assert_eq!(qp.destroy(), 0));
    println!("{MANY} queue pairs: made in {made:?}, destroyed in {:?}", begin.elapsed());
    side.close();
    before.settle().expect("nothing is left of them");
}

fn again() {
    let before = Resources::now();
    for _ in 0..60 {
        let (side, other) = (TestEndpoint::new(), TestEndpoint::new());
        side.qp.connect(&other.address(), TIMING);
        other.qp.connect(&side.address(), TIMING);
        assert_eq!(side.run(ibv_wr_opcode::IBV_WR_SEND, &other.address()), ibv_wc_status::IBV_WC_SUCCESS);
        side.close();
        other.close();
    }
    before.settle().expect("a closed device leaves nothing");
    // Repeat this with the device open.
    let (device, level) = crate::soak::open();
    // A page of each would be more than the device keeps.
    for _ in 0..300 {
        let _ = TestEndpoint::on(device).take_down();
    }
    level.settle().expect("what is destroyed leaves nothing");
    device.close();
    before.settle().expect("a closed device leaves nothing");
}

/// Programs that pass leave objects when they close the device, so that a warning would mislead.
fn leaving() {
    keep_log();
    let device = TestDevice::open();
    // SAFETY: the context was opened above, and nothing uses it or its domain any more.
    assert_eq!(unsafe { (lib().ibv_close_device)(device.context) }, 0);
    assert_eq!(logged(), [""; 0]);
}
