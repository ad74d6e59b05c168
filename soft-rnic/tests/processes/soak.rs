//! Two processes under load are killed and stopped at random moments: no hang, no wrong data, no
//! leak.
//!
//! A *worker* meets a partner, round after round. A round has connected queue pairs with receive
//! queues and with a shared one, datagrams, writes and reads; all data is checked. This process
//! connects two workers, and stops and continues one of them, or kills it and starts another. The
//! survivor must notice, free everything, and go on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ptr;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use rdma_mummy_sys::types::*;
use rustix::process::Signal;

use crate::kit::{
    QpAddress, TestCq, TestDevice, TestMemory, TestQp, Timing, dereg, lib, post_shared, rkey, route,
};
use crate::role::{ChildRole, fabric, say};

/// The number of moments, and the random seed. `SOFT_RNIC_SOAK` and `SOFT_RNIC_SEED` override them.
const MOMENTS: u32 = 60;
const PATIENCE: Duration = Duration::from_secs(10);
/// Eight attempts of 34 ms: longer than any stop.
const TIMING: Timing = Timing { timeout: 13, retry_cnt: 7 };
const DEPTH: u64 = 8;
const ROOM: usize = 48 << 10;
const GRH: usize = 40;
/// The kinds of traffic, with a queue pair for each.
const KINDS: usize = 3;
const OWN: usize = 0;
const SHARED: usize = 1;
const DATAGRAM: usize = 2;

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test("soak::killed_and_stopped_at_random_moments", soak)]
}

/// A pseudorandom number generator.
pub(crate) struct SeededRandom(pub(crate) u64);

impl SeededRandom {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().filter(|text| !text.is_empty()).map(|text| text.parse().expect("a number"))
}

/// The two workers.
struct WorkerPair {
    fabric: String,
    chance: SeededRandom,
    workers: [ChildRole; 2],
}

impl WorkerPair {
    fn worker(fabric: &str, chance: &mut SeededRandom) -> ChildRole {
        let path = ["auto", "vm", "call"][chance.below(3) as usize];
        let shareable = ["private", "shareable"][chance.below(2) as usize];
        let seed = chance.next().to_string();
        let variables = [
            ("SOFT_RNIC_PATH", path),
            ("SOFT_RNIC_FABRIC", fabric),
            ("SOFT_RNIC_REVOKE_MS", "1000"),
            ("SOFT_RNIC_TEST_ALARM", "600"),
        ];
        ChildRole::start(&format!("worker {shareable} {seed}"), &variables)
    }

    /// Has both workers meet in a new round.
    fn meet(&mut self) -> Result<(), Failed> {
        for worker in &mut self.workers {
            worker.tell("meet");
        }
        let addresses = [self.expect(0, "address")?, self.expect(1, "address")?];
        for side in 0..2 {
            self.workers[side].tell(&addresses[1 - side]);
        }
        for side in 0..2 {
            self.expect(side, "connected")?;
        }
        for worker in &mut self.workers {
            worker.tell("run");
        }
        Ok(())
    }

    /// Waits for a line of a worker that begins with `beginning`; returns the rest of it.
    fn expect(&mut self, side: usize, beginning: &str) -> Result<String, Failed> {
        let line = self.workers[side].hear_within(PATIENCE);
        let line = line.map_err(|error| format!("worker {side} does not say {beginning:?}: {error}"))?;
        match line.strip_prefix(beginning) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => Err(format!("worker {side} says {line:?}, not {beginning:?}").into()),
        }
    }

    /// Fails if a worker has ended, because a worker that finds an error ends by itself.
    fn check_alive(&mut self) -> Result<(), Failed> {
        for (side, worker) in self.workers.iter_mut().enumerate() {
            if let Some(status) = worker.child.try_wait()? {
                return Err(format!("worker {side} has ended by itself: {status}").into());
            }
        }
        Ok(())
    }

    /// Kills a worker. The other must notice by itself.
    fn kill(&mut self, side: usize) -> Result<String, Failed> {
        self.check_alive()?;
        self.workers[side].signal(Signal::KILL);
        self.workers[side].wait_dead();
        let report = self.expect(1 - side, "lost")?;
        self.workers[side] = Self::worker(&self.fabric, &mut self.chance);
        Ok(report)
    }

    /// Stops a worker for a while, which may be longer than the other waits for an answer.
    fn stop(&mut self, side: usize) -> Result<(), Failed> {
        self.check_alive()?;
        let time = self.chance.below(30);
        self.workers[side].signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(time));
        self.workers[side].signal(Signal::CONT);
        Ok(())
    }

    /// Ends a round in which no worker died.
    fn part(&mut self) -> Result<(), Failed> {
        for worker in &mut self.workers {
            worker.tell("hold");
        }
        for side in 0..2 {
            self.expect(side, "held")?;
        }
        for worker in &mut self.workers {
            worker.tell("part");
        }
        for side in 0..2 {
            self.expect(side, "parted")?;
        }
        Ok(())
    }
}

fn soak() -> Result<(), Failed> {
    let seed = number("SOFT_RNIC_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let moments = number("SOFT_RNIC_SOAK").map_or(MOMENTS, |moments| moments as u32);
    println!("soak: {moments} moments, SOFT_RNIC_SEED={seed}");
    let fabric = fabric();
    let mut chance = SeededRandom(seed);
    let workers = [(); 2].map(|()| WorkerPair::worker(&fabric, &mut chance));
    let mut pair = WorkerPair { fabric: fabric.clone(), chance, workers };
    let begin = Instant::now();
    let (mut kills, mut stops) = (0, 0);
    for moment in 0..moments {
        let blame = |error: Failed| {
            let why = error.message().unwrap_or("?");
            Failed::from(format!("moment {moment}, SOFT_RNIC_SEED={seed}: {why}"))
        };
        if moment == 0 {
            pair.meet().map_err(blame)?;
        }
        std::thread::sleep(Duration::from_micros(pair.chance.below(40_000)));
        let side = pair.chance.below(2) as usize;
        match pair.chance.below(10) {
            0..6 => {
                pair.stop(side).map_err(blame)?;
                stops += 1;
            }
            6 => {
                // Stop it, and kill it before it continues.
                pair.check_alive().map_err(blame)?;
                pair.workers[side].signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(pair.chance.below(10)));
                pair.kill(side).and_then(|_| pair.meet()).map_err(blame)?;
                kills += 1;
            }
            7..9 => {
                pair.kill(side).and_then(|_| pair.meet()).map_err(blame)?;
                kills += 1;
            }
            _ => pair.part().and_then(|()| pair.meet()).map_err(blame)?,
        }
    }
    pair.part()?;
    for worker in &mut pair.workers {
        worker.tell("end");
    }
    for side in 0..2 {
        let report = pair.expect(side, "ended")?;
        println!("soak: worker {side}: {report}");
    }
    let left = std::fs::read_to_string("/proc/net/unix")?;
    if left.contains(&format!("@soft-rnic/{fabric}/")) {
        return Err("a process that closed its device still has sockets".into());
    }
    let [first, second] = pair.workers;
    first.finish();
    second.finish();
    println!("soak: {kills} killed, {stops} stopped and continued in {:?}", begin.elapsed());
    Ok(())
}

/// Freed memory that the device keeps for later queues: 1 MiB.
const KEPT_PAGES: u64 = 256;

/// The resources of a process that could leak.
#[derive(Clone, Debug)]
pub(crate) struct Resources {
    pub(crate) descriptors: BTreeMap<String, usize>,
    pub(crate) threads: usize,
    pub(crate) mappings: usize,
    pub(crate) heap_pages: u64,
}

impl Resources {
    pub(crate) fn now() -> Self {
        let count = |folder| std::fs::read_dir(folder).expect("a process can see its own").count();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("a process can see its own");
        // A file is mapped in as many pieces as it has levels.
        let files = maps.lines().filter(|line| line.contains("soft-rnic"));
        let files: BTreeSet<_> = files.filter_map(|line| line.split_ascii_whitespace().nth(4)).collect();
        let mappings = files.len();
        Self {
            descriptors: descriptors(),
            threads: count("/proc/self/task"),
            mappings,
            heap_pages: heap_pages(),
        }
    }

    /// Whether no resource exceeds its earlier count. Fewer are fine: a reader of this process's
    /// status may have been connected, of any fabric, or a thread may have been about to end.
    pub(crate) fn are_no_more_than(&self, then: &Self) -> bool {
        let had = |kind| then.descriptors.get(kind).copied().unwrap_or(0);
        self.descriptors.iter().all(|(kind, count)| *count <= had(kind))
            && self.threads <= then.threads
            && self.mappings <= then.mappings
            && self.heap_pages <= then.heap_pages.max(KEPT_PAGES)
    }

    /// Waits until the resources are back at this level, because a peer's end is noticed a little
    /// later.
    pub(crate) fn settle(&self) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let now = Self::now();
            if now.are_no_more_than(self) {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE / 2 {
                return Err(format!("{now:?} is left, not {self:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The open descriptors by kind, without the folder that is read for this. A descriptor that closes
/// during the count is left out.
fn descriptors() -> BTreeMap<String, usize> {
    let own = format!("/proc/{}/fd", std::process::id());
    let mut kinds = BTreeMap::new();
    for file in std::fs::read_dir("/proc/self/fd").expect("a process can see its own").flatten() {
        let Ok(target) = std::fs::read_link(file.path()) else { continue };
        let target = target.to_string_lossy();
        if target != own {
            // The names of sockets and pipes contain numbers: `socket:[4711]`.
            let kind = target.trim_end_matches(']').trim_end_matches(|c: char| c.is_ascii_digit());
            let kind = kind.strip_suffix(":[").unwrap_or(&target);
            *kinds.entry(kind.to_owned()).or_default() += 1;
        }
    }
    kinds
}

/// The number of populated pages in the heap of this process's segment.
fn heap_pages() -> u64 {
    (0..).map_while(heap_pages_of).sum()
}

/// The same in one level; `None` if the segment does not have that level.
fn heap_pages_of(level: u32) -> Option<u64> {
    use std::os::fd::AsRawFd;
    /// As in `shared/segment.rs`: the header and the hazards; the tables of level 0; both tables and
    /// heap of level 0.
    const FIXED: i64 = 4096 + (4 << 20);
    const TABLES: i64 = 126_976;
    const LEVEL: i64 = 16 << 20;
    let file = std::fs::File::open(own_segment()?).ok()?;
    let before = level.checked_sub(1).map_or(0, |scale| LEVEL << scale);
    let tables = TABLES << level.saturating_sub(1);
    let (mut at, end) = (FIXED + before + tables, FIXED + (LEVEL << level));
    if file.metadata().expect("an open file").len() < end as u64 {
        return None;
    }
    let mut pages = 0;
    loop {
        // SAFETY: the file is open, and the call accesses no memory.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA) };
        if data < 0 || data >= end {
            return Some(pages);
        }
        // SAFETY: the file is open, and the call accesses no memory.
        at = unsafe { libc::lseek(file.as_raw_fd(), data, libc::SEEK_HOLE) };
        pages += (at.min(end) - data) as u64 / 4096;
    }
}

/// The path of the shared part of this process's segment. Peers' segments are mapped, but only this
/// one is an open file.
fn own_segment() -> Option<std::path::PathBuf> {
    let files = std::fs::read_dir("/proc/self/fd").expect("a process can see its own");
    files.filter_map(|file| Some(file.ok()?.path())).find(|path| {
        let target = std::fs::read_link(path).map(|link| link.to_string_lossy().into_owned());
        target.is_ok_and(|target| target.starts_with("/memfd:soft-rnic ("))
    })
}

/// The value of a message's bytes, from its kind, number and sender.
fn byte(kind: usize, sequence: u64) -> u8 {
    (sequence.wrapping_mul(0x9d) as u8) ^ (kind as u8 * 85)
}

fn message_len(kind: usize, sequence: u64) -> usize {
    let mut chance = SeededRandom(sequence << 2 | kind as u64);
    let most = if kind == DATAGRAM { 4000 } else { [200, 5000, ROOM as u64 - 64][chance.below(3) as usize] };
    16 + chance.below(most) as usize
}

/// One round with a partner.
struct SoakRound {
    device: TestDevice,
    cq: TestCq,
    srq: *mut ibv_srq,
    qps: [TestQp; KINDS],
    ah: *mut ibv_ah,
    /// In this order: receives of each kind, messages of each kind, the part that the partner
    /// reads, the part that it writes, and the part that this side has read.
    memory: TestMemory,
    mr: *mut ibv_mr,
    partner: [QpAddress; KINDS],
    next_sent: [u64; KINDS],
    unsent: HashMap<u64, u32>,
    next_received: [u64; KINDS],
    failed: bool,
    writes: u64,
}

const PER_KIND: usize = DEPTH as usize * ROOM;
const SENT_AT: usize = KINDS * PER_KIND;
const READ_AT: usize = 2 * SENT_AT;
const WRITTEN_AT: usize = READ_AT + ROOM;
const COPIED_AT: usize = WRITTEN_AT + ROOM;
const ALL: usize = COPIED_AT + ROOM;
/// The value of the bytes that the partner reads.
const CONSTANT: u8 = 0x77;
const READ_ID: u64 = 1 << 40;
const WRITE_ID: u64 = 1 << 41;

impl SoakRound {
    fn new(device: TestDevice, shareable: bool) -> Self {
        let memory = if shareable { TestMemory::shareable(device, ALL) } else { TestMemory::private(ALL) };
        let (mr, cq) = (memory.register(device), device.cq(256, ptr::null_mut()));
        let srq = device.srq(DEPTH as u32);
        let rc = ibv_qp_type::IBV_QPT_RC;
        let depth = DEPTH as u32 * 2 + 2;
        let qps = [
            device.qp(rc, cq, ptr::null_mut(), depth),
            device.qp(rc, cq, srq, depth),
            device.qp(ibv_qp_type::IBV_QPT_UD, cq, ptr::null_mut(), depth),
        ];
        memory.fill_part(READ_AT, ROOM, CONSTANT);
        let round = Self {
            device,
            cq,
            srq,
            qps,
            ah: ptr::null_mut(),
            memory,
            mr,
            partner: Default::default(),
            next_sent: [0; KINDS],
            unsent: HashMap::new(),
            next_received: [0; KINDS],
            failed: false,
            writes: 0,
        };
        for (kind, qp) in qps.iter().enumerate() {
            qp.init();
            (0..DEPTH).for_each(|index| round.receive(kind, index));
        }
        round
    }

    fn receive(&self, kind: usize, index: u64) {
        let sge = self.memory.sge(self.mr, kind * PER_KIND + index as usize * ROOM, ROOM);
        let result = match kind {
            SHARED => post_shared(self.srq, index, sge),
            _ => self.qps[kind].receive(index, sge),
        };
        assert!(result == 0 || self.failed, "a receive of kind {kind} cannot be posted: {result}");
    }

    fn addresses(&self) -> String {
        // SAFETY: a GID is plain bytes.
        let gid = unsafe { self.device.gid().raw };
        let addr = self.memory.base.addr() as u64 + READ_AT as u64;
        let address =
            |qp: &TestQp| QpAddress { qpn: qp.number(), gid, addr, rkey: rkey(self.mr) }.to_string();
        self.qps.iter().map(address).collect::<Vec<_>>().join(" ")
    }

    fn connect(&mut self, partner: &str) {
        for ((to, word), qp) in self.partner.iter_mut().zip(partner.split(' ')).zip(self.qps) {
            *to = word.parse().expect("an address");
            qp.connect(to, TIMING);
        }
        let mut attr = route(self.partner[DATAGRAM].gid);
        // SAFETY: the domain and the attributes are live.
        self.ah = unsafe { (lib().ibv_create_ah)(self.device.pd, &raw mut attr) };
    }

    /// Sends the next message of a kind if the send queue has room.
    fn send(&mut self, kind: usize) {
        let sequence = self.next_sent[kind];
        let busy = self.unsent.keys().filter(|id| **id as usize % KINDS == kind && **id < READ_ID).count();
        if busy as u64 >= DEPTH || self.failed {
            return;
        }
        let at = SENT_AT + kind * PER_KIND + (sequence % DEPTH) as usize * ROOM;
        let len = message_len(kind, sequence);
        self.memory.fill_part(at, len, byte(kind, sequence));
        for (place, there) in sequence.to_le_bytes().iter().enumerate() {
            self.memory.set(at + place, *there);
        }
        let id = sequence * KINDS as u64 + kind as u64;
        let opcode = ibv_wr_opcode::IBV_WR_SEND;
        self.post(kind, id, opcode, self.memory.sge(self.mr, at, len), self.partner[kind]);
        self.next_sent[kind] += 1;
    }

    fn post(&mut self, kind: usize, id: u64, opcode: ibv_wr_opcode, sge: ibv_sge, to: QpAddress) {
        assert_eq!(self.qps[kind].post(id, opcode, sge, &to, self.ah), 0, "a request can be posted");
        *self.unsent.entry(id).or_default() += 1;
    }

    /// Reads from and writes to the partner's memory.
    fn one_sided(&mut self) {
        if self.failed {
            return;
        }
        let to = self.partner[OWN];
        if !self.unsent.contains_key(&READ_ID) {
            let sge = self.memory.sge(self.mr, COPIED_AT, ROOM);
            self.post(OWN, READ_ID, ibv_wr_opcode::IBV_WR_RDMA_READ, sge, to);
        }
        if !self.unsent.contains_key(&WRITE_ID) {
            let sge = self.memory.sge(self.mr, READ_AT, 1000);
            let to = QpAddress { addr: to.addr + ROOM as u64, ..to };
            self.post(SHARED, WRITE_ID, ibv_wr_opcode::IBV_WR_RDMA_WRITE, sge, to);
        }
    }

    /// Handles the pending completions; returns `false` if there were none.
    fn poll(&mut self) -> bool {
        let Some(wc) = self.cq.poll() else { return false };
        let ok = wc.status == ibv_wc_status::IBV_WC_SUCCESS;
        let kind =
            self.qps.iter().position(|qp| qp.number() == wc.qp_num).expect("a queue pair of this round");
        let mine = wc.wr_id >= READ_ID || !ok || wc.opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 == 0;
        if !ok {
            // A failed completion does not tell the kind of its request. It ends the round.
            let expected = [ibv_wc_status::IBV_WC_RETRY_EXC_ERR, ibv_wc_status::IBV_WC_WR_FLUSH_ERR];
            assert!(expected.contains(&wc.status), "request {} of kind {kind}: {:?}", wc.wr_id, wc.status);
            self.failed = true;
        } else if mine {
            let left = self.unsent.get_mut(&wc.wr_id).expect("a posted request");
            *left -= 1;
            if *left == 0 {
                self.unsent.remove(&wc.wr_id);
            }
            if wc.wr_id == READ_ID {
                self.check(COPIED_AT, ROOM, CONSTANT, "what was read");
            }
            self.writes += u64::from(wc.wr_id >= READ_ID);
        } else {
            self.take(kind, &wc);
        }
        true
    }

    fn check(&self, at: usize, len: usize, expected: u8, what: &str) {
        let differs = self.memory.part_differs(at, len, expected);
        assert_eq!(differs, None, "a byte of {what}, {len} bytes long, is not {expected}");
    }

    /// Checks a received message.
    fn take(&mut self, kind: usize, wc: &ibv_wc) {
        let header = if kind == DATAGRAM { GRH } else { 0 };
        let at = kind * PER_KIND + wc.wr_id as usize * ROOM + header;
        let sequence = u64::from_le_bytes(core::array::from_fn(|place| self.memory.byte(at + place)));
        let len = message_len(kind, sequence);
        let next = self.next_received[kind];
        // Datagrams may be lost; other messages arrive once and in order.
        let in_turn = if kind == DATAGRAM { sequence >= next } else { sequence == next };
        assert!(in_turn, "message {sequence} of kind {kind} came instead of {next}, to receive {}", wc.wr_id);
        assert_eq!(wc.byte_len as usize, len + header, "message {sequence} of kind {kind} is whole");
        self.check(at + 8, len - 8, byte(kind, sequence), &format!("message {sequence} of kind {kind}"));
        self.next_received[kind] = sequence + 1;
        self.receive(kind, wc.wr_id);
    }

    /// Waits until all posted requests have completed.
    fn drain(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        while !self.unsent.is_empty() && !self.failed {
            if !self.poll() {
                std::thread::yield_now();
            }
            if begin.elapsed() > PATIENCE / 2 {
                return Err(format!("requests do not come to their end: {:?}", self.unsent));
            }
        }
        Ok(())
    }

    /// Destroys everything. A dead or stopped peer delays no call for long.
    fn close(self) {
        let written = (0..1000)
            .map(|at| self.memory.byte(WRITTEN_AT + at))
            .find(|there| ![0, CONSTANT].contains(there));
        assert_eq!(written, None, "a written byte");
        assert_eq!(
            self.memory.part_differs(WRITTEN_AT + 1000, ROOM - 1000, 0),
            None,
            "a byte behind the written part"
        );
        let begin = Instant::now();
        for qp in self.qps {
            while qp.destroy() != 0 {
                assert!(begin.elapsed() < PATIENCE / 2, "ibv_destroy_qp does not end");
            }
        }
        // SAFETY: no queue pair uses the queue, and no request uses the handle.
        unsafe {
            assert_eq!((lib().ibv_destroy_srq)(self.srq), 0, "ibv_destroy_srq");
            assert_eq!((lib().ibv_destroy_ah)(self.ah), 0, "ibv_destroy_ah");
        }
        while dereg(self.mr) != 0 {
            assert!(begin.elapsed() < PATIENCE / 2, "ibv_dereg_mr does not end");
        }
        self.cq.destroy();
        self.memory.free();
    }
}

/// Opens a device; also returns the resources of a process without peers.
pub(crate) fn open() -> (TestDevice, Resources) {
    let device = TestDevice::open();
    // The first queue pair makes objects that stay until the device is closed.
    let cq = device.cq(1, ptr::null_mut());
    let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 1);
    assert_eq!(qp.destroy(), 0);
    cq.destroy();
    (device, Resources::now())
}

/// The worker role: goes from round to round on command.
pub(crate) fn worker(arguments: &[String]) {
    let [shareable, seed] = arguments else { panic!("two arguments") };
    let (shareable, mut chance) = (shareable == "shareable", SeededRandom(seed.parse().expect("a number")));
    let lines = lines();
    let next = || lines.recv_timeout(Duration::from_secs(60)).expect("a line");
    let bare = Resources::now();
    let (mut device, mut level) = open();
    let (mut rounds, mut messages, mut lost) = (0_u64, 0_u64, 0_u64);
    while next() == "meet" {
        let mut round = SoakRound::new(device, shareable);
        say(&format!("address {}", round.addresses()));
        round.connect(&next());
        say("connected");
        assert_eq!(next(), "run");
        let parted = loop {
            for _ in 0..64 {
                match chance.below(8) {
                    0..6 => round.send(chance.below(KINDS as u64) as usize),
                    6 => round.one_sided(),
                    _ => {}
                }
                while round.poll() {}
            }
            if round.failed {
                break false;
            }
            if let Ok(line) = lines.try_recv() {
                assert_eq!(line, "hold");
                round.drain().expect("requests come to their end");
                say("held");
                // The partner may have requests that need this side's receives.
                while lines.try_recv().is_err() {
                    round.poll();
                    std::thread::yield_now();
                }
                break true;
            }
            std::thread::yield_now();
        };
        messages += round.next_received.iter().sum::<u64>() + round.writes;
        lost += u64::from(!parted);
        rounds += 1;
        round.close();
        if rounds % 8 == 0 {
            device.close();
            bare.settle().expect("a closed device leaves nothing");
            (device, level) = open();
        } else if !parted {
            level.settle().expect("a dead peer leaves nothing");
        }
        say(if parted { "parted" } else { "lost" });
    }
    device.close();
    bare.settle().expect("a closed device leaves nothing");
    say(&format!("ended {rounds} rounds, {lost} lost, {messages} messages"));
    let _ = lines.recv_timeout(Duration::from_secs(60));
}

/// The lines that the parent sends to this process.
fn lines() -> std::sync::mpsc::Receiver<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Some(line) = crate::role::told() {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}
