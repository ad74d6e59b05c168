//! Multicast between processes: each member of a group gets its copy, whenever it joined, and
//! whatever happens to the others.

use std::ptr;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rustix::process::Signal;

use crate::kit::{QpAddress, TestCq, TestDevice, TestMemory, TestQp, Timing, dereg, lib, route};
use crate::role::{self, ChildRole, say, told};

const PATIENCE: Duration = Duration::from_secs(20);
const TIMING: Timing = Timing { timeout: 10, retry_cnt: 2 };
/// The length of the GRH area before a datagram's payload.
const GRH: usize = 40;
const ROOM: usize = 8192;
const RECEIVES: usize = 8;
/// `::ffff:239.1.2.3`
const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];
const TO_ALL: QpAddress = QpAddress { qpn: 0xff_ffff, gid: GROUP, addr: 0, rkey: 0 };

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: &str, what: &'static str, path: &'static str| {
        Trial::test(format!("multicast::{name}_by_{path}"), move || {
            role::run(&format!("sender-to-all {what}"), &[("SOFT_RNIC_PATH", path)])
        })
    };
    ["auto", "vm", "call"]
        .into_iter()
        .flat_map(|path| {
            [
                trial("everybody_gets_a_copy", "all", path),
                trial("newcomers_get_what_is_sent_after_they_have_joined", "newcomers", path),
                trial("the_dead_keep_nobody_from_their_copy", "dead", path),
                trial("the_stopped_keep_nobody_from_their_copy", "stopped", path),
                trial("who_was_stopped_hears_of_newcomers", "asleep", path),
            ]
        })
        .collect()
}

/// A datagram queue pair with memory.
struct UdEndpoint {
    device: TestDevice,
    memory: TestMemory,
    mr: *mut ibv_mr,
    cq: TestCq,
    qp: TestQp,
}

impl UdEndpoint {
    fn new() -> Self {
        let device = TestDevice::open();
        let memory = TestMemory::private(ROOM * RECEIVES);
        let mr = memory.register(device);
        let cq = device.cq(64, ptr::null_mut());
        let qp = device.qp(ibv_qp_type::IBV_QPT_UD, cq, ptr::null_mut(), 16);
        qp.init();
        // SAFETY: a GID is plain bytes.
        let gid = unsafe { device.gid().raw };
        qp.connect(&QpAddress { gid, ..QpAddress::default() }, TIMING);
        Self { device, memory, mr, cq, qp }
    }

    fn receive(&self, id: usize) {
        assert_eq!(self.qp.receive(id as u64, self.memory.sge(self.mr, id * ROOM, ROOM)), 0);
    }

    fn join(&self) {
        let gid = ibv_gid { raw: GROUP };
        // SAFETY: the queue pair is live, and the GID a local.
        assert_eq!(unsafe { (lib().ibv_attach_mcast)(self.qp.0, &raw const gid, 0) }, 0);
    }

    fn leave(&self) {
        let gid = ibv_gid { raw: GROUP };
        // SAFETY: the queue pair is live, and the GID a local.
        assert_eq!(unsafe { (lib().ibv_detach_mcast)(self.qp.0, &raw const gid, 0) }, 0);
    }

    fn close(self) {
        assert_eq!(self.qp.destroy(), 0);
        assert_eq!(dereg(self.mr), 0);
        self.memory.free();
        self.cq.destroy();
        self.device.close();
    }
}

/// The member role: joins the group. For each line (a byte and a length) it waits for that message,
/// and reports it.
pub(crate) fn member() {
    let end = UdEndpoint::new();
    (0..RECEIVES).for_each(|id| end.receive(id));
    end.join();
    say("joined");
    let (mut next, mut last) = (0, None);
    while let Some(line) = told() {
        let mut words = line.split(' ');
        let mut word = || words.next().and_then(|word| word.parse::<usize>().ok()).expect("a number");
        let told = (word(), word());
        loop {
            let wc = end.cq.one("a copy", PATIENCE);
            assert_eq!((wc.status, wc.wr_id), (ibv_wc_status::IBV_WC_SUCCESS, (next % RECEIVES) as u64));
            let at = wc.wr_id as usize * ROOM;
            let is = |(byte, len): (usize, usize)| {
                wc.byte_len as usize == GRH + len
                    && end.memory.part_differs(at + GRH, len, byte as u8).is_none()
            };
            // A message that other members had missed was sent to all again.
            let again = last.is_some_and(|last| last != told && is(last));
            assert!(again || is(told), "{} bytes, which are not the expected message {told:?}", wc.byte_len);
            // The last four bytes of the GRH are the group's address.
            let named: Vec<u8> = (0..4).map(|n| end.memory.byte(at + GRH - 4 + n)).collect();
            assert_eq!(named, GROUP[12..]);
            end.receive(wc.wr_id as usize);
            next += 1;
            if !again {
                break;
            }
        }
        last = Some(told);
        say("heard");
    }
    end.leave();
    end.close();
}

struct MemberRoles(Vec<ChildRole>);

impl MemberRoles {
    fn start(count: usize) -> Self {
        let members: Vec<_> = (0..count).map(|_| ChildRole::start("member", &[])).collect();
        members.iter().for_each(|member| assert_eq!(member.hear(), "joined"));
        Self(members)
    }

    /// Checks that all members get this message. Datagrams are unreliable: a sender skips a member
    /// that answers late for lack of processor time. Therefore this repeats the message while a
    /// member has not reported it.
    fn hear(&mut self, sender: &GroupSender, byte: u8, len: usize) {
        sender.send(byte, len);
        self.0.iter_mut().for_each(|member| member.tell(&format!("{byte} {len}")));
        let begin = Instant::now();
        for member in &self.0 {
            let line = loop {
                match member.hear_within(Duration::from_secs(2)) {
                    Ok(line) => break line,
                    Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
                }
                sender.send(byte, len);
            };
            assert_eq!(line, "heard");
        }
    }
}

struct GroupSender {
    end: UdEndpoint,
    ah: *mut ibv_ah,
}

impl GroupSender {
    fn new() -> Self {
        let end = UdEndpoint::new();
        let mut attr = route(GROUP);
        // SAFETY: the domain is live, and the attributes are locals.
        let ah = unsafe { (lib().ibv_create_ah)(end.device.pd, &raw mut attr) };
        assert!(!ah.is_null(), "ibv_create_ah: {}", std::io::Error::last_os_error());
        Self { end, ah }
    }

    /// Sends a message, and waits for its completion, which needs no action of the members. Returns
    /// the elapsed time.
    fn send(&self, byte: u8, len: usize) -> Duration {
        let begin = Instant::now();
        self.end.memory.fill_part(0, len, byte);
        let sge = self.end.memory.sge(self.end.mr, 0, len);
        assert_eq!(self.end.qp.post(1, ibv_wr_opcode::IBV_WR_SEND, sge, &TO_ALL, self.ah), 0);
        let wc = self.end.cq.one("the send", PATIENCE);
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
        begin.elapsed()
    }

    fn close(self) {
        // SAFETY: the handle is live, and nothing uses it any more.
        assert_eq!(unsafe { (lib().ibv_destroy_ah)(self.ah) }, 0);
        self.end.close();
    }
}

/// Short, long, empty.
const LENGTHS: [usize; 3] = [64, 4000, 0];

pub(crate) fn sender(arguments: &[String]) {
    match arguments[0].as_str() {
        "all" => all(),
        "newcomers" => newcomers(),
        "dead" => dead(),
        "stopped" => stopped(),
        "asleep" => asleep(),
        other => panic!("no such part: {other}"),
    }
}

fn all() {
    let mut members = MemberRoles::start(3);
    let sender = GroupSender::new();
    for (byte, len) in (1..).zip(LENGTHS) {
        members.hear(&sender, byte, len);
    }
    members.0.into_iter().for_each(ChildRole::finish);
    sender.close();
}

/// The sender has looked for members before they join.
fn newcomers() {
    let sender = GroupSender::new();
    sender.send(100, 64);
    let mut members = MemberRoles(Vec::new());
    for (byte, len) in (1..).zip(LENGTHS) {
        members.0.extend(MemberRoles::start(1).0);
        members.hear(&sender, byte, len);
    }
    // One more member joins after the others have left.
    members.0.into_iter().for_each(ChildRole::finish);
    sender.send(101, 64);
    let mut last = MemberRoles::start(1);
    last.hear(&sender, 9, 300);
    last.0.into_iter().for_each(ChildRole::finish);
    sender.close();
}

fn dead() {
    let mut members = MemberRoles::start(3);
    let sender = GroupSender::new();
    members.hear(&sender, 1, 64);
    let victim = members.0.remove(1);
    victim.signal(Signal::KILL);
    for (byte, len) in (2..).zip(LENGTHS) {
        members.hear(&sender, byte, len);
    }
    victim.wait_dead();
    members.0.into_iter().for_each(ChildRole::finish);
    sender.close();
}

fn stopped() {
    let mut members = MemberRoles::start(2);
    let sender = GroupSender::new();
    members.hear(&sender, 1, 64);
    let mut victim = members.0.remove(0);
    victim.signal(Signal::STOP);
    victim.wait_stopped();
    for (byte, len) in (2..).zip([64, 200]) {
        members.hear(&sender, byte, len);
    }
    victim.signal(Signal::CONT);
    // The messages that fit without the stopped process's help have arrived.
    for (byte, len) in (2..).zip([64, 200]) {
        victim.tell(&format!("{byte} {len}"));
        assert_eq!(victim.hear(), "heard");
    }
    victim.finish();
    members.0.into_iter().for_each(ChildRole::finish);
    sender.close();
}

/// A process that joins while a sender is stopped waits for it for a while, and goes on. The sender
/// finds it once it continues.
fn asleep() {
    let mut first = ChildRole::start("sleeping-sender", &[]);
    assert_eq!(first.hear(), "sent");
    first.signal(Signal::STOP);
    first.wait_stopped();
    let mut member = MemberRoles::start(1);
    first.signal(Signal::CONT);
    // The sender's service thread learns of the new member at an unknown time, so this repeats the
    // message.
    let begin = Instant::now();
    let mut sent = 0;
    member.0[0].tell("7 64");
    loop {
        first.tell("send");
        assert_eq!(first.hear(), "sent");
        sent += 1;
        if member.0[0].hear_within(Duration::from_millis(50)).is_ok_and(|line| line == "heard") {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "not heard after {sent} messages");
    }
    first.finish();
    member.0.remove(0).signal(Signal::KILL);
}

/// A sender that sends on command.
pub(crate) fn sleeping_sender() {
    let sender = GroupSender::new();
    sender.send(7, 64);
    say("sent");
    while told().is_some() {
        sender.send(7, 64);
        say("sent");
    }
    sender.close();
}
