//! A receiver sleeps on its completion channel, and senders wake it: the first time through its
//! service thread, and then through the channel's descriptor, which they have taken.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::time::Duration;

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rustix::event::{Timespec, epoll};
use rustix::process::Signal;

use crate::kit::{QpAddress, TestCq, TestDevice, TestMemory, TestQp, Timing, dereg, lib, rkey, until};
use crate::rights::{no_descriptors_of_others, trial_unless};
use crate::role::{self, ChildRole, say, told};

const PATIENCE: Duration = Duration::from_secs(20);
const TIMING: Timing = Timing { timeout: 17, retry_cnt: 3 };
const ROUNDS: u64 = 1000;
const GENERATIONS: u64 = 12;
/// The receives of a queue pair.
const RECEIVES: u32 = 4;
const LEN: usize = 64;

pub(crate) fn trials() -> Vec<Trial> {
    let cases = [
        ("each_round_wakes", "rounds"),
        ("a_request_without_reading_brings_a_new_event", "again"),
        ("own_and_foreign_completions_wake", "mixed"),
        ("two_queues_of_a_channel_are_fed_by_two_processes", "two"),
        ("two_senders_to_a_queue_lose_nothing", "shared"),
        ("a_stopped_sender_keeps_no_other_from_waking", "stopped"),
        ("a_channel_is_given_and_given_back", "generations"),
    ];
    let trial = |(name, case): (&str, &'static str)| {
        let run = move || role::run(&format!("wakes {case}"), &[]);
        trial_unless(format!("wakes::{name}"), no_descriptors_of_others, run)
    };
    cases.map(trial).into()
}

pub(crate) fn play(case: &str) {
    match case {
        "rounds" => rounds(),
        "again" => again(),
        "mixed" => mixed(),
        "two" => two(),
        "shared" => shared(),
        "stopped" => stopped(),
        _ => generations(),
    }
}

/// A completion channel, watched as an edge-triggered program watches it.
struct Sleep {
    channel: *mut ibv_comp_channel,
    edges: std::os::fd::OwnedFd,
}

impl Sleep {
    fn new(device: TestDevice) -> Self {
        let channel = device.channel();
        let edges = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor");
        // SAFETY: the channel is live, and so is its descriptor.
        let file = unsafe { BorrowedFd::borrow_raw((*channel).fd) };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&edges, file, epoll::EventData::new_u64(0), flags).expect("the descriptor can be watched");
        Self { channel, edges }
    }

    /// Whether somebody writes to the descriptor within this time, or has done so since the last
    /// call.
    fn edge(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).expect("a short time");
        let mut found = [epoll::Event { flags: epoll::EventFlags::IN, data: epoll::EventData::new_u64(0) }];
        epoll::wait(&self.edges, &mut found, Some(&time)).expect("no signal comes") == 1
    }

    fn is_readable(&self, time: Duration) -> bool {
        // SAFETY: the channel is live.
        let mut file = libc::pollfd { fd: unsafe { (*self.channel).fd }, events: libc::POLLIN, revents: 0 };
        // SAFETY: the array has one entry.
        unsafe { libc::poll(&raw mut file, 1, time.as_millis() as c_int) == 1 }
    }

    /// Takes an event in blocking mode, when the descriptor is readable. A wait without an end
    /// raises the role's alarm.
    fn event(&self) -> *mut ibv_cq {
        assert!(self.is_readable(PATIENCE), "nobody wakes the receiver");
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is live, and the acknowledged queue belongs to it.
        unsafe {
            assert_eq!((lib().ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context), 0);
            (lib().ibv_ack_cq_events)(cq, 1);
        }
        cq
    }

    /// Takes events until the descriptor is not readable. Returns how many.
    fn drain(&self) -> u64 {
        let mut count = 0;
        while self.is_readable(Duration::ZERO) {
            self.event();
            count += 1;
        }
        count
    }

    fn destroy(self) {
        // SAFETY: the channel has no queue.
        assert_eq!(unsafe { (lib().ibv_destroy_comp_channel)(self.channel) }, 0);
    }
}

/// The receiving side: its memory, and the senders' processes.
struct SleepingReceiver {
    device: TestDevice,
    memory: TestMemory,
    mr: *mut ibv_mr,
    sleep: Sleep,
}

impl SleepingReceiver {
    fn new() -> Self {
        let device = TestDevice::open();
        let memory = TestMemory::shareable(device, LEN);
        Self { device, memory, mr: memory.register(device), sleep: Sleep::new(device) }
    }

    fn cq(&self) -> TestCq {
        self.device.cq(64, self.sleep.channel)
    }

    /// A queue pair with receives.
    fn unconnected(&self, cq: TestCq) -> TestQp {
        let qp = self.device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), RECEIVES);
        qp.init();
        (0..RECEIVES).for_each(|_| self.post(qp));
        qp
    }

    /// A queue pair with receives, connected to a sender.
    fn qp(&self, cq: TestCq, sender: &mut ChildRole) -> TestQp {
        let qp = self.unconnected(cq);
        sender.tell(&format!("qp {}", self.address(qp)));
        qp.connect(&sender.hear().parse().expect("an address"), TIMING);
        qp
    }

    fn address(&self, qp: TestQp) -> QpAddress {
        let addr = self.memory.base.addr() as u64;
        QpAddress { qpn: qp.number(), gid: self.device.gid_bytes(), addr, rkey: rkey(self.mr) }
    }

    fn post(&self, qp: TestQp) {
        let id = qp.0.expose_provenance() as u64;
        assert_eq!(qp.receive(id, self.memory.sge(self.mr, 0, LEN)), 0);
    }

    /// Polls all completions, and posts their receives again. Returns how many.
    fn poll(&self, cq: TestCq) -> u64 {
        let mut count = 0;
        while let Some(wc) = cq.poll() {
            assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
            if wc.opcode == ibv_wc_opcode::IBV_WC_RECV {
                self.post(TestQp(ptr::with_exposed_provenance_mut(wc.wr_id as usize)));
            }
            count += 1;
        }
        count
    }

    /// Sleeps until this many completions are polled. The queue is armed, and was empty since.
    fn sleep_for(&self, cq: TestCq, expected: u64) {
        let mut polled = 0;
        while polled < expected {
            assert_eq!(self.sleep.event(), cq.0);
            cq.arm(false);
            polled += self.poll(cq);
        }
        assert_eq!(polled, expected);
    }

    fn arm(&self, cq: TestCq) {
        cq.arm(false);
        assert_eq!(self.poll(cq), 0, "nobody has sent");
    }

    /// Destroys what is left when the queue pairs are gone.
    fn close(self, queues: &[TestCq]) {
        queues.iter().for_each(|cq| cq.destroy());
        self.sleep.destroy();
        assert_eq!(dereg(self.mr), 0);
        self.memory.free();
        self.device.close();
    }
}

fn start() -> ChildRole {
    ChildRole::start("wakes-sender", &[])
}

fn send(senders: &mut [&mut ChildRole]) {
    senders.iter_mut().for_each(|sender| sender.tell("go"));
}

fn sent(senders: &[&mut ChildRole]) {
    senders.iter().for_each(|sender| assert_eq!(sender.hear(), "0", "the request succeeds"));
}

/// The sender keeps no descriptor of the receiver's channels, or this many.
fn keeps(sender: &mut ChildRole, expected: usize) {
    until(&format!("the sender keeps {expected} channels"), PATIENCE, || {
        sender.tell("channels");
        (sender.hear() == expected.to_string()).then_some(())
    });
}

fn rounds() {
    let (receiver, mut sender) = (SleepingReceiver::new(), start());
    let cq = receiver.cq();
    let qp = receiver.qp(cq, &mut sender);
    for round in 0..ROUNDS {
        receiver.arm(cq);
        send(&mut [&mut sender]);
        receiver.sleep_for(cq, 1);
        sent(&[&mut sender]);
        if round == 0 {
            keeps(&mut sender, 1);
        }
    }
    receiver.sleep.drain();
    sender.finish();
    assert_eq!(qp.destroy(), 0);
    receiver.close(&[cq]);
}

fn again() {
    let (receiver, mut sender) = (SleepingReceiver::new(), start());
    let cq = receiver.cq();
    let qp = receiver.qp(cq, &mut sender);
    let mut events = 0;
    for round in 0..ROUNDS {
        receiver.arm(cq);
        send(&mut [&mut sender]);
        assert!(receiver.sleep.edge(PATIENCE), "no new event in round {round}");
        sent(&[&mut sender]);
        until("the message", PATIENCE, || (receiver.poll(cq) == 1).then_some(()));
        if round == 0 {
            keeps(&mut sender, 1);
        }
        // Reads every third event only then.
        if round % 3 == 2 {
            events += receiver.sleep.drain();
        }
    }
    events += receiver.sleep.drain();
    assert!(events >= ROUNDS, "{events} events for {ROUNDS} requests");
    sender.finish();
    assert_eq!(qp.destroy(), 0);
    receiver.close(&[cq]);
}

fn mixed() {
    let (receiver, mut sender) = (SleepingReceiver::new(), start());
    let cq = receiver.cq();
    let qp = receiver.qp(cq, &mut sender);
    let own = [(); 2].map(|()| receiver.unconnected(cq));
    own[0].connect(&receiver.address(own[1]), TIMING);
    own[1].connect(&receiver.address(own[0]), TIMING);
    let to = receiver.address(own[1]);
    for _ in 0..ROUNDS {
        receiver.arm(cq);
        send(&mut [&mut sender]);
        let sge = receiver.memory.sge(receiver.mr, 0, 8);
        assert_eq!(own[0].post(0, ibv_wr_opcode::IBV_WR_RDMA_WRITE, sge, &to, ptr::null_mut()), 0);
        receiver.sleep_for(cq, 2);
        sent(&[&mut sender]);
    }
    keeps(&mut sender, 1);
    assert!(receiver.sleep.drain() <= ROUNDS, "more events than requests");
    sender.finish();
    own.into_iter().chain([qp]).for_each(|qp| assert_eq!(qp.destroy(), 0));
    receiver.close(&[cq]);
}

fn two() {
    let (receiver, mut senders) = (SleepingReceiver::new(), [start(), start()]);
    let queues = [(); 2].map(|()| receiver.cq());
    let qps = [0, 1].map(|at| receiver.qp(queues[at], &mut senders[at]));
    let [first, second] = &mut senders;
    for _ in 0..ROUNDS {
        queues.iter().for_each(|cq| receiver.arm(*cq));
        send(&mut [first, second]);
        let mut polled = [0, 0];
        while polled != [1, 1] {
            let event = receiver.sleep.event();
            let at = queues.iter().position(|cq| cq.0 == event).expect("a queue of this channel");
            queues[at].arm(false);
            polled[at] += receiver.poll(queues[at]);
            assert!(polled.iter().all(|count| *count <= 1));
        }
        sent(&[first, second]);
    }
    receiver.sleep.drain();
    senders.iter_mut().for_each(|sender| keeps(sender, 1));
    senders.into_iter().for_each(ChildRole::finish);
    qps.into_iter().for_each(|qp| assert_eq!(qp.destroy(), 0));
    receiver.close(&queues);
}

fn shared() {
    let (receiver, mut senders) = (SleepingReceiver::new(), [start(), start()]);
    let cq = receiver.cq();
    let qps = [0, 1].map(|at| receiver.qp(cq, &mut senders[at]));
    let [first, second] = &mut senders;
    for _ in 0..ROUNDS {
        receiver.arm(cq);
        send(&mut [first, second]);
        receiver.sleep_for(cq, 2);
        sent(&[first, second]);
    }
    receiver.sleep.drain();
    senders.into_iter().for_each(ChildRole::finish);
    qps.into_iter().for_each(|qp| assert_eq!(qp.destroy(), 0));
    receiver.close(&[cq]);
}

fn stopped() {
    let receiver = SleepingReceiver::new();
    let stops = [("SOFT_RNIC_TEST_CRASH", "stop=before_doorbell nth=1")];
    let (mut stopped, mut other) = (ChildRole::start("wakes-sender", &stops), start());
    let cq = receiver.cq();
    let qps = [&mut stopped, &mut other].map(|sender| receiver.qp(cq, sender));
    let round = |sender: &mut ChildRole| {
        receiver.arm(cq);
        send(&mut [sender]);
        receiver.sleep_for(cq, 1);
        sent(&[sender]);
    };
    for sender in [&mut stopped, &mut other] {
        round(sender);
        keeps(sender, 1);
    }
    stopped.tell("stop");
    receiver.arm(cq);
    send(&mut [&mut stopped]);
    stopped.wait_stopped();
    assert!(!receiver.sleep.is_readable(Duration::from_millis(20)), "it is stopped before it wakes anybody");
    send(&mut [&mut other]);
    receiver.sleep_for(cq, 2);
    for _ in 0..ROUNDS {
        sent(&[&mut other]);
        receiver.arm(cq);
        send(&mut [&mut other]);
        receiver.sleep_for(cq, 1);
    }
    sent(&[&mut other]);
    stopped.signal(Signal::CONT);
    sent(&[&mut stopped]);
    for _ in 0..ROUNDS {
        round(&mut stopped);
        round(&mut other);
    }
    receiver.sleep.drain();
    [stopped, other].into_iter().for_each(ChildRole::finish);
    qps.into_iter().for_each(|qp| assert_eq!(qp.destroy(), 0));
    receiver.close(&[cq]);
}

fn generations() {
    let (mut receiver, mut sender) = (SleepingReceiver::new(), start());
    // Keeps the connection between the processes.
    let idle_cq = receiver.device.cq(8, ptr::null_mut());
    let idle = receiver.qp(idle_cq, &mut sender);
    keeps(&mut sender, 0);
    for _ in 0..GENERATIONS {
        let cq = receiver.cq();
        let qp = receiver.qp(cq, &mut sender);
        for _ in 0..4 {
            receiver.arm(cq);
            send(&mut [&mut sender]);
            receiver.sleep_for(cq, 1);
            sent(&[&mut sender]);
            keeps(&mut sender, 1);
        }
        assert_eq!(qp.destroy(), 0);
        cq.destroy();
        let next = Sleep::new(receiver.device);
        std::mem::replace(&mut receiver.sleep, next).destroy();
        keeps(&mut sender, 0);
    }
    sender.finish();
    assert_eq!(idle.destroy(), 0);
    receiver.close(&[idle_cq]);
}

/// The event counters of this process: those of receivers' channels, because a sender has no
/// channel.
fn event_counters() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").expect("a process can see its own");
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    links.filter(|link| link.as_os_str() == "anon_inode:[eventfd]").count()
}

/// The sender role: makes queue pairs, sends a message through the latest, and counts descriptors.
pub(crate) fn sender() {
    let device = TestDevice::open();
    let memory = TestMemory::private(LEN);
    let (mr, cq) = (memory.register(device), device.cq(16, ptr::null_mut()));
    let before = event_counters();
    let mut latest = None;
    while let Some(line) = told() {
        match line.as_str() {
            "go" => {
                let (qp, to): &(TestQp, QpAddress) = latest.as_ref().expect("a queue pair");
                let sge = memory.sge(mr, 0, LEN);
                assert_eq!(qp.post(0, ibv_wr_opcode::IBV_WR_SEND, sge, to, ptr::null_mut()), 0);
                say(&cq.one("a completion", PATIENCE).status.0.to_string());
            }
            "stop" => role::arm_crash(),
            "channels" => say(&(event_counters() - before).to_string()),
            line => {
                let to: QpAddress = line.trim_start_matches("qp ").parse().expect("an address");
                let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 4);
                qp.init();
                qp.connect(&to, TIMING);
                say(&QpAddress { qpn: qp.number(), gid: device.gid_bytes(), ..to }.to_string());
                latest = Some((qp, to));
            }
        }
    }
}
