//! A side's memory is released when the device has deregistered it, and not before: over a made-up
//! device.

#[path = "../../sideway/tests/support/fake/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "this program uses a part")]
mod fake;

use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use fake::Fake;
use sideway::memory::BufferKind;
use stride::cli;
use stride::device::LocalDevice;
use stride::memory::MemoryKind;
use stride::plan::{LocalOptions, RunPlan, TestPlan};
use stride::workload::UnconnectedSide;

fn device() -> LocalDevice {
    let options =
        LocalOptions { buffer: Some(MemoryKind::Host(BufferKind::Shared)), ..LocalOptions::default() };
    LocalDevice::open(fake::provider(), &options).unwrap()
}

fn test() -> TestPlan {
    let words = "stride-perf write bw -s 64 -n 5".split_whitespace();
    RunPlan::new(cli::parse(words).unwrap()).unwrap().test
}

/// The number of sides whose memory is mapped.
fn mapped() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:sideway")).count()
}

/// A single test, because it counts the mappings of the whole process.
#[test]
fn the_memory_of_a_side_goes_when_the_device_lets_go_of_it() {
    let test = test();
    for connected in [false, true] {
        for refusals in [0, 1] {
            let fake = Fake::new().may_leak();
            let before = mapped();
            let device = device();
            let side = UnconnectedSide::new(&device, &test).unwrap();
            assert_eq!(mapped(), before + 1);
            fake.world.refused_deregistrations.store(refusals, Relaxed);
            if connected {
                let remotes = side.resources();
                drop(side.connect(&remotes, &test, test.queue_pairs, None).unwrap());
            } else {
                drop(side);
            }
            // Memory that a peer may still write to stays mapped, at the same address.
            assert_eq!(mapped(), before + usize::from(refusals == 1), "{connected}, {refusals} refusals");
            let destroyed = fake.world.destroyed.lock().unwrap().clone();
            let at = |what| destroyed.iter().position(|gone| *gone == what).unwrap();
            assert!(at("qp") < at("mr"), "{destroyed:?}");
        }
    }
}
