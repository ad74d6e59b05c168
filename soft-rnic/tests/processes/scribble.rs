//! A peer writes garbage to all that it can write of another process's segment, without an end. The
//! victim's requests to itself and to the peer complete all the same, in deferred mode too, where
//! they are outstanding while it writes. Its sleep on a completion channel ends.

use std::time::Duration;

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;

use crate::kit::{QpAddress, TestCq, TestDevice, TestMemory, TestQp, Timing, event, rkey, until};
use crate::role::{self, ChildRole, say, told};

/// How long a request may take: many times its acknowledgement timeouts and all other bounds,
/// because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(20);
const TIMING: Timing = Timing { timeout: 12, retry_cnt: 2 };
const LEN: usize = 4096;
/// Queue pairs to the peer, one for each round.
const ROUNDS: usize = 24;
const OPCODES: [ibv_wr_opcode; 3] = [
    ibv_wr_opcode::IBV_WR_RDMA_READ,
    ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
    ibv_wr_opcode::IBV_WR_RDMA_WRITE,
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for mode in ["inline", "deferred"] {
        for path in ["auto", "call"] {
            for wait in ["polls", "sleeps"] {
                let name = format!("scribble::every_request_completes_{mode}_{path}_{wait}");
                trials.push(Trial::test(name, move || {
                    let variables =
                        [("SOFT_RNIC_MODE", mode), ("SOFT_RNIC_PATH", path), ("SOFT_RNIC_REVOKE_MS", "20")];
                    role::run(&format!("scribbled {wait}"), &variables)
                }));
            }
        }
    }
    trials
}

/// The process whose segment is written to. It posts while the scribbler writes.
pub(crate) fn victim(arguments: &[String]) {
    let sleeps = arguments == ["sleeps"];
    let device = TestDevice::open();
    let channel = device.channel();
    let memory = TestMemory::shareable(device, LEN);
    let mr = memory.register(device);
    let here = |qp: TestQp| QpAddress {
        qpn: qp.number(),
        gid: device.gid_bytes(),
        addr: memory.base.addr() as u64,
        rkey: rkey(mr),
    };
    let pair = || {
        let cq = device.cq(64, channel);
        let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, std::ptr::null_mut(), 8);
        qp.init();
        (cq, qp)
    };
    let mut peer = ChildRole::start("scribbler", &[]);
    let pairs: Vec<_> = (0..ROUNDS).map(|_| pair()).collect();
    let own: Vec<_> = (0..ROUNDS).map(|_| [pair(), pair()]).collect();
    for (_, qp) in &pairs {
        peer.tell(&here(*qp).to_string());
        qp.connect(&peer.hear().parse().expect("an address"), TIMING);
    }
    for [(_, first), (_, second)] in &own {
        first.connect(&here(*second), TIMING);
        second.connect(&here(*first), TIMING);
    }
    peer.tell("scribble");
    let there: QpAddress = peer.hear().parse().expect("the address of the memory");
    for ((cq, qp), [(own_cq, own_qp), _]) in pairs.iter().zip(&own) {
        for (cq, qp, to) in [(*cq, *qp, there), (*own_cq, *own_qp, here(*own_qp))] {
            if sleeps {
                cq.arm(false);
            }
            let posted = (0..OPCODES.len())
                .filter(|at| {
                    qp.post(*at as u64, OPCODES[*at], memory.sge(mr, 0, 8), &to, std::ptr::null_mut()) == 0
                })
                .count();
            assert_eq!(posted, OPCODES.len(), "a queue pair in RTS takes requests");
            completes(cq, posted, sleeps.then_some(channel));
        }
    }
    // The rest is not taken down: garbage in a hazard keeps memory busy.
    std::process::exit(0);
}

/// Each of the requests completes, whatever its status.
fn completes(cq: TestCq, posted: usize, channel: Option<*mut ibv_comp_channel>) {
    let mut seen = vec![0; posted];
    while seen.iter().sum::<i32>() < posted as i32 {
        let wc = match channel {
            None => cq.one("a completion", PATIENCE),
            // A queue has no completion at first, and is armed before it is polled again.
            Some(channel) => loop {
                if let Some(wc) = cq.poll() {
                    break wc;
                }
                assert!(event(channel, PATIENCE), "no event within {PATIENCE:?}");
                cq.arm(false);
            },
        };
        seen[wc.wr_id as usize] += 1;
    }
    assert!(seen.iter().all(|count| *count == 1), "each once: {seen:?}");
}

/// The peer that writes.
pub(crate) fn scribbler() {
    let before = shared_mappings();
    let device = TestDevice::open();
    let memory = TestMemory::shareable(device, LEN);
    let mr = memory.register(device);
    let cq = device.cq(256, std::ptr::null_mut());
    let mut last = String::new();
    while let Some(line) = told().filter(|line| line != "scribble") {
        let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, std::ptr::null_mut(), 4);
        qp.init();
        let peer: QpAddress = line.parse().expect("an address");
        qp.connect(&peer, TIMING);
        let (addr, rkey) = (memory.base.addr() as u64, rkey(mr));
        last = QpAddress { qpn: qp.number(), gid: device.gid_bytes(), addr, rkey }.to_string();
        say(&last);
        // Once this has completed, the victim's segment is mapped here.
        assert_eq!(
            qp.post(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, memory.sge(mr, 0, 8), &peer, std::ptr::null_mut()),
            0
        );
        // The victim may reach RTR later than this.
        let _ = until("a completion", PATIENCE, || cq.poll());
    }
    let pages: Vec<*mut u64> = shared_mappings()
        .into_iter()
        .filter(|mapping| !before.contains(mapping))
        .flat_map(resident)
        .collect();
    assert!(!pages.is_empty(), "the segments are mapped here");
    say(&last);
    scribble(&pages);
}

/// The writable shared mappings of this device's files: where they begin, and their lengths.
fn shared_mappings() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let lines = maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("/memfd:soft-rnic"));
    lines
        .map(|line| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
            let [start, end] =
                [range.0, range.1].map(|number| usize::from_str_radix(number, 16).expect("an address"));
            (start, end - start)
        })
        .collect()
}

/// The pages of a mapping that exist, so that writing takes no more memory.
fn resident((start, len): (usize, usize)) -> Vec<*mut u64> {
    const PAGE: usize = 4096;
    let mut there = vec![0_u8; len.div_ceil(PAGE)];
    // SAFETY: the mapping lives until the process ends, and the vector has a byte for each page.
    let result =
        unsafe { libc::mincore(std::ptr::with_exposed_provenance_mut(start), len, there.as_mut_ptr()) };
    assert_eq!(result, 0, "mincore: {}", std::io::Error::last_os_error());
    let pages = there.iter().enumerate().filter(|(_, page)| **page & 1 != 0);
    pages.map(|(page, _)| std::ptr::with_exposed_provenance_mut(start + page * PAGE)).collect()
}

fn scribble(pages: &[*mut u64]) -> ! {
    const WORDS: usize = 512;
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    loop {
        let (page, value, all) = (pages[next() as usize % pages.len()], next(), next() % 64 == 0);
        let constant = [0, 1, u64::MAX, value][value as usize >> 8 & 3];
        let [from, to] = if all { [0, WORDS] } else { [value as usize % WORDS; 2] };
        for at in from..to.max(from + 1) {
            // SAFETY: the word lies in a page of a mapping that lives until the process ends. No
            // reference to it exists in this test. The device's own threads use atomics there.
            unsafe { page.add(at).write_volatile(constant) };
        }
    }
}
