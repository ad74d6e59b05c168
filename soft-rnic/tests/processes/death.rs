//! A process dies at any instruction. The tests check its messages, the receives that it had
//! claimed, and its peers that wait.

use std::ptr;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rustix::process::Signal;

use crate::kit::{
    QpAddress, TestCq, TestDevice, TestMemory, TestQp, Timing, dereg, event, lib, post_shared, rkey, route,
    until,
};
use crate::role::{self, ChildRole, say, told};

const PATIENCE: Duration = Duration::from_secs(20);
const TIMING: Timing = Timing { timeout: 10, retry_cnt: 2 };
const RECEIVES: u64 = 6;
/// The size of a receive in bytes.
const ROOM: usize = 40_960;
/// The length of the GRH area before a datagram's payload.
const GRH: usize = 40;

const STEPS: [&str; 8] = [
    "before_mark",
    "before_claim",
    "claimed",
    "before_copy",
    "mid_copy",
    "before_finish",
    "before_announce",
    "before_doorbell",
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for queue in ["rc", "srq", "ud"] {
        for (size, path) in [("small", "auto"), ("large", "vm"), ("large", "call")] {
            let name = format!("death::of_a_sender_to_{queue}_{size}_by_{path}");
            trials.push(Trial::test(name, move || {
                // A message within the slot is not copied in parts.
                let steps = STEPS.iter().filter(|step| size == "large" || **step != "mid_copy");
                steps.into_iter().try_for_each(|step| {
                    ["any", "solicited"].iter().try_for_each(|armed| {
                        role::run(
                            &format!("death {queue} {size} {step} {armed}"),
                            &[("SOFT_RNIC_PATH", path)],
                        )
                    })
                })
            }));
        }
    }
    for path in ["auto", "call"] {
        for operation in ["write", "read", "send", "add"] {
            let name = format!("death::of_a_responder_to_{operation}_by_{path}");
            trials.push(Trial::test(name, move || {
                // 4 ms and 67 ms: shorter and longer than a new lookup of the process takes.
                [("10", "7"), ("14", "2"), ("14", "0")].iter().try_for_each(|(timeout, retries)| {
                    ["poll", "event", "cold"].iter().try_for_each(|how| {
                        let role = format!("requester {operation} {timeout} {retries} {how}");
                        role::run(&role, &[("SOFT_RNIC_PATH", path)])
                    })
                })
            }));
        }
    }
    trials.push(Trial::test("death::a_stopped_responder_is_not_written_to_later", || {
        ["write", "send"].iter().try_for_each(|operation| {
            role::run(&format!("requester {operation} 10 2 stop"), &[("SOFT_RNIC_PATH", "call")])
        })
    }));
    trials.push(Trial::test("death::a_stopped_sender_takes_no_wake_up_along", || role::run("sleeper", &[])));
    trials.push(Trial::test("death::of_many_peers_fills_no_queue", || role::run("deaths", &[])));
    trials
}

/// The number of this process's sockets: it drops by one when the end of a peer is noticed.
fn sockets() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").expect("a process can see its own");
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

fn byte_of(sequence: u64) -> u8 {
    (sequence as u8).wrapping_mul(7).wrapping_add(1)
}

fn length(queue: &str, size: &str) -> usize {
    match (queue, size) {
        (_, "small") => 64,
        ("ud", _) => 4000,
        _ => 40_000,
    }
}

fn gid(device: TestDevice) -> [u8; 16] {
    // SAFETY: a GID is plain bytes.
    unsafe { device.gid().raw }
}

/// A receiver that outlives a sender.
struct SurvivingReceiver {
    device: TestDevice,
    queue: String,
    len: usize,
    memory: TestMemory,
    mr: *mut ibv_mr,
    channel: *mut ibv_comp_channel,
    cq: TestCq,
    srq: *mut ibv_srq,
    qp: TestQp,
}

impl SurvivingReceiver {
    fn new(queue: &str, size: &str) -> Self {
        let device = TestDevice::open();
        let memory = TestMemory::private(ROOM * RECEIVES as usize);
        let (mr, channel) = (memory.register(device), device.channel());
        let cq = device.cq(64, channel);
        let srq = if queue == "srq" { device.srq(RECEIVES as u32) } else { ptr::null_mut() };
        let qp_type = if queue == "ud" { ibv_qp_type::IBV_QPT_UD } else { ibv_qp_type::IBV_QPT_RC };
        let qp = device.qp(qp_type, cq, srq, RECEIVES as u32);
        qp.init();
        for id in 0..RECEIVES {
            let sge = memory.sge(mr, id as usize * ROOM, ROOM);
            let result = if srq.is_null() { qp.receive(id, sge) } else { post_shared(srq, id, sge) };
            assert_eq!(result, 0, "a receive can be posted");
        }
        Self { device, queue: queue.to_owned(), len: length(queue, size), memory, mr, channel, cq, srq, qp }
    }

    /// Starts a sender of `count` messages numbered from `first`, and connects to it.
    fn sender(&self, first: u64, count: u64, crash: &str) -> ChildRole {
        let mut sender = ChildRole::start("death-sender", &[("SOFT_RNIC_TEST_CRASH", crash)]);
        let address = QpAddress { qpn: self.qp.number(), gid: gid(self.device), ..QpAddress::default() };
        sender.tell(&format!("{} {} {first} {count} {address}", self.queue, self.len));
        let address: QpAddress = sender.hear().parse().expect("an address");
        if self.queue != "ud" || self.qp.state() == ibv_qp_state::IBV_QPS_INIT {
            self.qp.connect(&address, TIMING);
        }
        sender
    }

    /// Checks that a message arrived whole.
    fn check(&self, wc: &ibv_wc, sequence: u64) {
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS, "{:?}", wc.status);
        let header = if self.queue == "ud" { GRH } else { 0 };
        assert_eq!(wc.byte_len as usize, header + self.len, "a message is whole");
        let begin = wc.wr_id as usize * ROOM + header;
        for at in [begin, begin + 1, begin + self.len / 2, begin + self.len - 1] {
            assert_eq!(self.memory.byte(at), byte_of(sequence), "byte {at} of message {sequence}");
        }
    }

    /// Flushes the receives that are left after a sender's death; all of them complete, in order.
    fn flush(&self, taken: &[u64]) {
        assert_eq!(self.qp.modify(ibv_qp_state::IBV_QPS_ERR), 0);
        for id in (0..RECEIVES).filter(|id| !taken.contains(id)) {
            let wc = self.cq.one("a flushed receive", PATIENCE);
            assert_eq!((wc.wr_id, wc.status), (id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR));
        }
    }

    /// Checks that another sender can use all remaining receives.
    fn go_on(&mut self, taken: &mut Vec<u64>) {
        if self.queue == "srq" {
            assert_eq!(self.qp.destroy(), 0);
            self.qp = self.device.qp(ibv_qp_type::IBV_QPT_RC, self.cq, self.srq, 1);
            self.qp.init();
        }
        let left = RECEIVES - taken.len() as u64;
        let mut sender = self.sender(100, left, "");
        sender.tell("go");
        for sequence in 100..100 + left {
            let wc = self.cq.one("a message of another sender", PATIENCE);
            self.check(&wc, sequence);
            assert!(!taken.contains(&wc.wr_id), "receive {} is used twice", wc.wr_id);
            taken.push(wc.wr_id);
            assert_eq!(sender.hear(), "0", "its request has succeeded");
        }
        sender.finish();
        assert!(self.cq.poll().is_none(), "every receive is used");
    }

    fn close(self) {
        assert_eq!(self.qp.destroy(), 0, "the queue pair can be destroyed");
        if !self.srq.is_null() {
            // SAFETY: no queue pair uses the shared receive queue any more.
            assert_eq!(unsafe { (lib().ibv_destroy_srq)(self.srq) }, 0);
        }
        assert_eq!(dereg(self.mr), 0);
        self.cq.destroy();
        // SAFETY: the channel's completion queue is destroyed.
        assert_eq!(unsafe { (lib().ibv_destroy_comp_channel)(self.channel) }, 0);
        self.memory.free();
        self.device.close();
    }
}

pub(crate) fn receiver(arguments: &[String]) {
    let [queue, size, step, armed] = arguments else { panic!("four arguments") };
    let mut receiver = SurvivingReceiver::new(queue, size);
    let before = sockets();
    let mut sender = receiver.sender(0, 2, &format!("crash={step}"));
    sender.tell("go");
    let first = receiver.cq.one("the first message", PATIENCE);
    receiver.check(&first, 0);
    let mut taken = vec![first.wr_id];
    assert_eq!(sender.hear(), "0", "the first request has succeeded");
    receiver.cq.arm(armed == "solicited");
    sender.tell("go");
    sender.wait_dead();

    let whole = match step.as_str() {
        "before_announce" => queue != "srq",
        step => step == "before_doorbell",
    };
    if whole {
        assert!(
            event(receiver.channel, PATIENCE),
            "the receiver wakes, although the sender died before waking it"
        );
        let wc = receiver.cq.one("the message that was complete", PATIENCE);
        receiver.check(&wc, 1);
        taken.push(wc.wr_id);
    }
    until("the death is noticed", PATIENCE, || (sockets() <= before).then_some(()));
    assert!(receiver.cq.poll().is_none(), "a partial message completed");
    if queue == "rc" {
        receiver.flush(&taken)
    } else {
        receiver.go_on(&mut taken)
    }
    receiver.close();
}

/// The sender role: sends the first message at once, and the others after a line `go`.
pub(crate) fn sender() {
    let line = told().expect("a line");
    let [queue, len, first, count, address] = line.split(' ').collect::<Vec<_>>()[..] else {
        panic!("five words")
    };
    let to: QpAddress = address.parse().expect("an address");
    let (len, first, count) =
        (len.parse().unwrap(), first.parse::<u64>().unwrap(), count.parse::<u64>().unwrap());
    let device = TestDevice::open();
    let memory = TestMemory::private(ROOM);
    let (mr, cq) = (memory.register(device), device.cq(16, ptr::null_mut()));
    let qp_type = if queue == "ud" { ibv_qp_type::IBV_QPT_UD } else { ibv_qp_type::IBV_QPT_RC };
    let qp = device.qp(qp_type, cq, ptr::null_mut(), 16);
    qp.init();
    let mut attr = route(to.gid);
    // SAFETY: the domain and the attributes are live.
    let ah = unsafe { (lib().ibv_create_ah)(device.pd, &raw mut attr) };
    say(&QpAddress { qpn: qp.number(), gid: gid(device), ..QpAddress::default() }.to_string());
    assert_eq!(told().as_deref(), Some("go"));
    qp.connect(&to, TIMING);
    for sequence in first..first + count {
        if sequence == 1 {
            assert_eq!(told().as_deref(), Some("go"));
            role::arm_crash();
        }
        memory.fill(byte_of(sequence));
        assert_eq!(qp.post_solicited(sequence, memory.sge(mr, 0, len), &to, ah), 0);
        say(&cq.one("a completion", PATIENCE).status.0.to_string());
    }
    assert_eq!(told(), None);
}

/// The responder role: answers until it is killed.
pub(crate) fn responder() {
    let device = TestDevice::open();
    let memory = TestMemory::private(ROOM);
    let (mr, cq) = (memory.register(device), device.cq(64, ptr::null_mut()));
    let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 32);
    qp.init();
    for id in 0..32 {
        assert_eq!(qp.receive(id, memory.sge(mr, 0, ROOM)), 0);
    }
    let own =
        QpAddress { qpn: qp.number(), gid: gid(device), addr: memory.base.addr() as u64, rkey: rkey(mr) };
    say(&own.to_string());
    let to: QpAddress = told().expect("a line").parse().expect("an address");
    qp.connect(&to, TIMING);
    say("ready");
    while let Some(byte) = told() {
        let byte = byte.parse().expect("a byte");
        std::thread::sleep(Duration::from_millis(30));
        let differs =
            memory.differs(byte).map_or("same".to_owned(), |(at, there)| format!("{there} at {at}"));
        say(&differs);
    }
}

/// The requester role: sends requests to a responder that dies.
pub(crate) fn requester(arguments: &[String]) {
    let [operation, timeout, retry_cnt, how] = arguments else { panic!("four arguments") };
    let timing = Timing { timeout: timeout.parse().unwrap(), retry_cnt: retry_cnt.parse().unwrap() };
    let opcode = match operation.as_str() {
        "write" => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        "read" => ibv_wr_opcode::IBV_WR_RDMA_READ,
        "add" => ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
        _ => ibv_wr_opcode::IBV_WR_SEND,
    };
    let len = if operation == "add" { 8 } else { ROOM };
    let mut responder = ChildRole::start("responder", &[]);
    let to: QpAddress = responder.hear().parse().expect("an address");
    let device = TestDevice::open();
    let memory = TestMemory::private(ROOM);
    memory.fill(0x11);
    let (mr, channel) = (memory.register(device), device.channel());
    let cq = device.cq(64, channel);
    let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 32);
    qp.init();
    responder.tell(&QpAddress { qpn: qp.number(), gid: gid(device), ..QpAddress::default() }.to_string());
    qp.connect(&to, timing);
    assert_eq!(responder.hear(), "ready");
    if how != "cold" {
        assert_eq!(qp.post(100, opcode, memory.sge(mr, 0, len), &to, ptr::null_mut()), 0);
        let wc = cq.one("the request", PATIENCE);
        assert_eq!((wc.wr_id, wc.status), (100, ibv_wc_status::IBV_WC_SUCCESS));
    }
    if how == "stop" {
        memory.fill(0x22);
        responder.signal(Signal::STOP);
        responder.wait_stopped();
    } else {
        responder.signal(Signal::KILL);
        responder.wait_dead();
    }
    cq.arm(false);
    let begin = Instant::now();
    let mut posted = 0;
    for id in 0..8 {
        posted += u64::from(qp.post(id, opcode, memory.sge(mr, 0, len), &to, ptr::null_mut()) == 0);
    }
    assert_eq!(posted, 8, "requests can be posted, also in the error state");
    if how == "event" {
        assert!(event(channel, PATIENCE), "the timer runs although nobody polls");
    }
    for id in 0..8 {
        let wc = cq.one("a request of a dead peer", PATIENCE);
        let expected =
            if id == 0 { ibv_wc_status::IBV_WC_RETRY_EXC_ERR } else { ibv_wc_status::IBV_WC_WR_FLUSH_ERR };
        assert_eq!((wc.wr_id, wc.status), (id, expected));
    }
    // The extra time allows for a busy machine, and for a new lookup of the peer.
    assert!(begin.elapsed() < timing.total() * 2 + Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(begin.elapsed() * 2 > timing.total(), "tried again: {:?}", begin.elapsed());
    assert_eq!(qp.state(), ibv_qp_state::IBV_QPS_ERR);
    assert!(cq.poll().is_none());
    if how == "stop" {
        responder.signal(Signal::CONT);
        responder.tell("17");
        assert_eq!(responder.hear(), "same", "a failed request was executed later");
    }
    assert_eq!(qp.destroy(), 0);
    assert_eq!(dereg(mr), 0);
    cq.destroy();
    // SAFETY: the channel's completion queue is destroyed.
    assert_eq!(unsafe { (lib().ibv_destroy_comp_channel)(channel) }, 0);
    memory.free();
    device.close();
}

/// One sender is stopped just before it wakes the receiver, so another sender must wake it.
pub(crate) fn sleeper() {
    let mut receiver = SurvivingReceiver::new("srq", "small");
    let mut stopped = receiver.sender(0, 2, "stop=before_doorbell");
    let first = receiver.qp;
    receiver.qp = receiver.device.qp(ibv_qp_type::IBV_QPT_RC, receiver.cq, receiver.srq, 1);
    receiver.qp.init();
    let mut other = receiver.sender(100, 1, "");
    stopped.tell("go");
    receiver.check(&receiver.cq.one("the first message", PATIENCE), 0);
    assert_eq!(stopped.hear(), "0");
    receiver.cq.arm(false);
    stopped.tell("go");
    stopped.wait_stopped();
    assert!(
        !event(receiver.channel, Duration::from_millis(20)),
        "the sender is stopped before it wakes anybody"
    );
    other.tell("go");
    assert_eq!(other.hear(), "0");
    assert!(event(receiver.channel, PATIENCE), "the other sender wakes the receiver");
    receiver.check(&receiver.cq.one("a message", PATIENCE), 1);
    receiver.check(&receiver.cq.one("a message", PATIENCE), 100);
    stopped.signal(Signal::CONT);
    assert_eq!(stopped.hear(), "0");
    stopped.finish();
    other.finish();
    assert_eq!(first.destroy(), 0);
    receiver.close();
}

/// More peers die than a completion queue has entries, while messages of other peers lie in a
/// shared receive queue that is destroyed.
pub(crate) fn many_deaths() {
    let mut receiver = SurvivingReceiver::new("srq", "small");
    let small = receiver.device.cq(4, ptr::null_mut());
    let idle = receiver.device.qp(ibv_qp_type::IBV_QPT_RC, small, ptr::null_mut(), 4);
    for round in 0..8 {
        let mut sender = receiver.sender(0, 2, "crash=claimed");
        sender.tell("go");
        assert_eq!(sender.hear(), "0");
        sender.tell("go");
        sender.wait_dead();
        // Nobody polls, so the message goes with the queue pair, and its receive becomes free.
        until("the queue pair can be destroyed", PATIENCE, || (receiver.qp.destroy() == 0).then_some(()));
        receiver.qp = receiver.device.qp(ibv_qp_type::IBV_QPT_RC, receiver.cq, receiver.srq, 1);
        receiver.qp.init();
        let sge = receiver.memory.sge(receiver.mr, 0, ROOM);
        let post = || (post_shared(receiver.srq, 0, sge) == 0).then_some(());
        until(&format!("a receive is free in round {round}"), PATIENCE, post);
    }
    std::thread::sleep(Duration::from_millis(30));
    // SAFETY: the context is live, and has this field.
    let fd = unsafe { (*receiver.device.context).async_fd };
    let mut file = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry.
    assert_eq!(unsafe { libc::poll(&raw mut file, 1, 0) }, 0, "no queue is overrun, nothing has failed");
    assert!(small.poll().is_none() && receiver.cq.poll().is_none());
    assert_eq!(idle.destroy(), 0);
    small.destroy();
    receiver.close();
}
