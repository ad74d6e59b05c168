//! Calls that revoke memory: after one has returned success, nobody accesses the memory. While a
//! peer still may, the call returns `EBUSY`.
//!
//! A sender is stopped or killed in the middle of a transfer. Then the owner revokes the memory,
//! maps fresh memory there, fills it, and checks whether a byte changes once the sender continues.

use std::fmt;
use std::ptr;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;
use rustix::process::Signal;

use crate::kit::{
    QpAddress, TestCq, TestDevice, TestMemory, TestQp, Timing, dereg, event, lib, post_shared, rkey, until,
};
use crate::role::{self, ChildRole, say, told};

/// The time that a call waits, in milliseconds; and the time that it may take on a busy machine.
const BOUND: &str = "80";
const SLACK: Duration = Duration::from_secs(15);

/// The length of a message in bytes: more than fits a slot, and more than one call copies.
const LEN: usize = 100_000;
const RECEIVES: u64 = 7;
/// The number of messages before the interrupted one.
const WARM: u64 = 3;
const TIMING: Timing = Timing { timeout: 13, retry_cnt: 3 };

/// The data paths.
const PATHS: [&str; 3] = ["direct", "vm", "call"];
/// The call that revokes memory, and the operation that it interrupts.
const CALLS: [(&str, &str); 12] = [
    ("dereg", "write"),
    ("dereg", "send"),
    ("rereg", "write"),
    ("destroy-qp", "write"),
    ("destroy-qp", "send"),
    ("reset", "write"),
    ("reset", "send"),
    ("destroy-srq", "send"),
    ("flush", "send"),
    // These revoke a window, through which the sender writes.
    ("dealloc-mw", "write"),
    ("invalidate", "write"),
    ("rebind", "write"),
];
/// The calls that are requests: they complete only once nobody can access the memory, and have more
/// time.
const REQUESTS: [&str; 2] = ["invalidate", "rebind"];
const TIME: &str = "8000";

fn bound_of(call: &str) -> &'static str {
    if REQUESTS.contains(&call) { TIME } else { BOUND }
}

/// The step at which the sender is interrupted, and its fate.
const FATES: [(&str, SenderFate); 9] = [
    ("before_mark", SenderFate::Continues),
    ("before_mark", SenderFate::Dies),
    ("before_copy", SenderFate::Continues),
    ("before_copy", SenderFate::IsKilled),
    ("before_copy", SenderFate::Dies),
    ("mid_copy", SenderFate::Continues),
    ("mid_copy", SenderFate::Dies),
    ("claimed", SenderFate::Continues),
    ("before_finish", SenderFate::Continues),
];
/// Steps that only a message with a receive has.
const OF_RECEIVES: [&str; 2] = ["claimed", "before_finish"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SenderFate {
    /// Stopped, and continued after the call.
    Continues,
    /// Stopped, and killed after the call has failed.
    IsKilled,
    /// Killed before the call.
    Dies,
}

impl fmt::Display for SenderFate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl FromStr for SenderFate {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Continues, Self::IsKilled, Self::Dies]
            .into_iter()
            .find(|fate| fate.to_string() == text)
            .ok_or(())
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (call, operation) in CALLS {
        for path in PATHS {
            let name = format!("revocation::{call}_during_{operation}_by_{path}");
            trials.push(Trial::test(name, move || {
                let setting = if path == "direct" { "auto" } else { path };
                let fates =
                    FATES.iter().filter(|(step, _)| operation == "send" || !OF_RECEIVES.contains(step));
                fates.into_iter().try_for_each(|(step, fate)| {
                    let role = format!("revoke {path} {call} {operation} {step} {fate}");
                    role::run(&role, &[("SOFT_RNIC_PATH", setting), ("SOFT_RNIC_REVOKE_MS", bound_of(call))])
                })
            }));
        }
        if call != "flush" {
            let name = format!("revocation::{call}_during_{operation}_of_one_without_descriptors");
            trials.push(Trial::test(name, move || {
                ["direct", "vm"].iter().try_for_each(|path| {
                    let setting = if *path == "direct" { "auto" } else { path };
                    let role =
                        |time: Duration| format!("without {path} {call} {operation} {}", time.as_millis());
                    role::run_within(Duration::from_secs(1), role, |_| {
                        vec![
                            ("SOFT_RNIC_PATH", setting.into()),
                            ("SOFT_RNIC_REVOKE_MS", bound_of(call).into()),
                        ]
                    })
                })
            }));
        }
        let name = format!("revocation::{call}_during_{operation}_by_a_thread");
        trials.push(Trial::test(name, move || {
            ["before_mark", "before_copy", "mid_copy"].iter().try_for_each(|step| {
                let role = |time: Duration| format!("threads {call} {operation} {step} {}", time.as_millis());
                role::run_within(Duration::from_millis(400), role, |time| {
                    let pause = format!("pause={step}:{}ms", time.as_millis());
                    vec![("SOFT_RNIC_FAULTS", pause), ("SOFT_RNIC_REVOKE_MS", bound_of(call).into())]
                })
            })
        }));
    }
    trials
}

struct MemoryOwner {
    memory: TestMemory,
    other: TestMemory,
    mr: *mut ibv_mr,
    cq: TestCq,
    srq: *mut ibv_srq,
    qp: Option<TestQp>,
    receives: bool,
    /// The window through which the sender writes, or null.
    window: *mut ibv_mw,
    /// The region that the window is bound to in the end.
    other_mr: *mut ibv_mr,
    /// The request is posted.
    posted: bool,
    /// The time to wait for the request.
    patience: Duration,
}

/// A window of the type that the call revokes; null if it revokes none.
fn window(device: TestDevice, call: &str) -> *mut ibv_mw {
    let kind = match call {
        "dealloc-mw" | "rebind" => ibv_mw_type::IBV_MW_TYPE_1,
        "invalidate" => ibv_mw_type::IBV_MW_TYPE_2,
        _ => return ptr::null_mut(),
    };
    // SAFETY: the domain is live.
    let window = unsafe { verbs::ibv_alloc_mw(device.pd, kind) };
    assert!(!window.is_null(), "ibv_alloc_mw: {}", std::io::Error::last_os_error());
    window
}

impl MemoryOwner {
    fn new(device: TestDevice, call: &str, operation: &str, shareable: bool) -> Self {
        let memory = if shareable { TestMemory::shareable(device, LEN) } else { TestMemory::private(LEN) };
        let (mr, cq) = (memory.register(device), device.cq(64, ptr::null_mut()));
        let srq = if call == "destroy-srq" { device.srq(16) } else { ptr::null_mut() };
        let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, srq, 16);
        qp.init();
        let receives = operation == "send";
        for id in 0..if receives { RECEIVES } else { 0 } {
            let sge = memory.sge(mr, 0, LEN);
            let result = if srq.is_null() { qp.receive(id, sge) } else { post_shared(srq, id, sge) };
            assert_eq!(result, 0, "a receive can be posted");
        }
        let (other, window) = (TestMemory::private(LEN), window(device, call));
        let other_mr = if window.is_null() { ptr::null_mut() } else { other.register(device) };
        let (qp, posted, patience) = (Some(qp), false, Duration::from_millis(150));
        Self { memory, other, mr, cq, srq, qp, receives, window, other_mr, posted, patience }
    }

    /// The remote key that the sender uses. A window's is its next key, which it gets when it is
    /// bound.
    fn key(&self) -> u32 {
        if self.window.is_null() {
            return rkey(self.mr);
        }
        // SAFETY: the window is live.
        verbs::ibv_inc_rkey(unsafe { (*self.window).rkey })
    }

    /// Connects, and binds the window if one exists.
    fn connect(&self, peer: &QpAddress) {
        self.qp().connect(peer, TIMING);
        if !self.window.is_null() {
            self.bind(self.mr, self.memory, self.key());
            assert_eq!(self.cq.one("a binding", SLACK).status, ibv_wc_status::IBV_WC_SUCCESS);
        }
    }

    /// Posts a request that binds the window to a whole region.
    fn bind(&self, mr: *mut ibv_mr, memory: TestMemory, rkey: u32) {
        let bind_info = ibv_mw_bind_info {
            mr,
            addr: memory.base.addr() as u64,
            length: memory.len as u64,
            mw_access_flags: ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        };
        let send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let qp = self.qp().0;
        // SAFETY: the queue pair, the window and the region are live, and the request lives during
        // the call.
        let result = unsafe {
            if (*self.window).type_ == ibv_mw_type::IBV_MW_TYPE_1 {
                let mut bind = ibv_mw_bind { wr_id: 0, send_flags, bind_info };
                verbs::ibv_bind_mw(qp, self.window, &raw mut bind)
            } else {
                let opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
                let mut wr = ibv_send_wr { opcode, send_flags, ..Default::default() };
                let mw = self.window;
                wr.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info };
                verbs::ibv_post_send(qp, &raw mut wr, &mut ptr::null_mut())
            }
        };
        assert_eq!(result, 0, "the window can be bound");
    }

    fn invalidate(&self) {
        let opcode = ibv_wr_opcode::IBV_WR_LOCAL_INV;
        let send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let mut wr = ibv_send_wr { opcode, send_flags, ..Default::default() };
        wr.__bindgen_anon_1.invalidate_rkey = self.key();
        // SAFETY: the queue pair is live, and the request lives during the call.
        let result = unsafe { verbs::ibv_post_send(self.qp().0, &raw mut wr, &mut ptr::null_mut()) };
        assert_eq!(result, 0, "the window can be invalidated");
    }

    /// Posts the request once. Returns 0 if it has completed and the region is deregistered, and
    /// `EBUSY` before that.
    fn request(&mut self, call: &str) -> i32 {
        if !std::mem::replace(&mut self.posted, true) {
            match call {
                "invalidate" => self.invalidate(),
                _ => self.bind(self.other_mr, self.other, 0),
            }
        }
        let begin = Instant::now();
        while begin.elapsed() < self.patience {
            if let Some(wc) = self.cq.poll() {
                assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
                return dereg(self.mr);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        libc::EBUSY
    }

    fn dealloc_window(&mut self) -> i32 {
        // SAFETY: the window is live. If this succeeds, nobody uses it any more.
        let result = unsafe { verbs::ibv_dealloc_mw(self.window) };
        if result == 0 {
            self.window = ptr::null_mut();
        }
        result
    }

    fn qp(&self) -> TestQp {
        self.qp.expect("the queue pair is not destroyed yet")
    }

    fn address(&self, device: TestDevice) -> QpAddress {
        // SAFETY: a GID is plain bytes.
        let gid = unsafe { device.gid().raw };
        QpAddress { qpn: self.qp().number(), gid, addr: self.memory.base.addr() as u64, rkey: self.key() }
    }

    /// Takes the messages before the interrupted one.
    fn take_warm(&self) {
        for id in 0..if self.receives { WARM } else { 0 } {
            let wc = self.cq.one("a message", SLACK);
            assert_eq!((wc.wr_id, wc.status), (id, ibv_wc_status::IBV_WC_SUCCESS));
        }
    }

    /// Makes the call; returns 0, or an error number.
    fn call(&mut self, call: &str) -> i32 {
        match call {
            "dereg" => dereg(self.mr),
            "rereg" => {
                let flags = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION.0 as i32;
                let to = self.other;
                // SAFETY: the region is live, and so is the new memory.
                let result = unsafe {
                    (lib().ibv_rereg_mr)(self.mr, flags, ptr::null_mut(), to.base.cast(), to.len, 0)
                };
                if result == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(result) }
            }
            "dealloc-mw" => match self.dealloc_window() {
                0 => dereg(self.mr),
                error => error,
            },
            "invalidate" | "rebind" => self.request(call),
            "reset" => self.qp().modify(ibv_qp_state::IBV_QPS_RESET),
            "destroy-qp" => self.destroy_qp(),
            "destroy-srq" => match self.destroy_qp() {
                // SAFETY: the queue is live. If this succeeds, nobody uses it any more.
                0 => unsafe { (lib().ibv_destroy_srq)(self.srq) },
                error => error,
            },
            _ => self.flush(),
        }
    }

    fn destroy_qp(&mut self) -> i32 {
        let result = self.qp.map_or(0, TestQp::destroy);
        if result == 0 {
            self.qp = None;
        }
        result
    }

    /// Flushes the receives: `EBUSY` while the oldest one does not complete, 0 once all have.
    fn flush(&mut self) -> i32 {
        assert_eq!(self.qp().modify(ibv_qp_state::IBV_QPS_ERR), 0);
        let begin = Instant::now();
        let mut next = WARM;
        while next < RECEIVES {
            match self.cq.poll() {
                Some(wc) => {
                    assert_eq!(wc.wr_id, next, "receives are flushed in order");
                    // The interrupted message may have completed.
                    let whole = wc.status == ibv_wc_status::IBV_WC_SUCCESS && next == WARM;
                    assert!(whole || wc.status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR, "{:?}", wc.status);
                    next += 1;
                }
                None if begin.elapsed() > self.patience => {
                    assert_eq!(next, WARM, "a receive was flushed before an earlier one that is in use");
                    return libc::EBUSY;
                }
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        0
    }

    /// Makes the call, and checks that it returns in time.
    fn call_in_time(&mut self, call: &str) -> i32 {
        let begin = Instant::now();
        let result = self.call(call);
        assert!(begin.elapsed() < SLACK, "{call} took {:?}", begin.elapsed());
        result
    }

    fn give_up(mut self, device: TestDevice, call: &str) {
        assert_eq!(self.destroy_qp(), 0, "the queue pair can be destroyed");
        if !self.srq.is_null() && call != "destroy-srq" {
            // SAFETY: no queue pair uses the shared receive queue any more.
            assert_eq!(unsafe { (lib().ibv_destroy_srq)(self.srq) }, 0);
        }
        if !self.window.is_null() {
            assert_eq!(self.dealloc_window(), 0, "the window goes");
        }
        if !self.other_mr.is_null() {
            assert_eq!(dereg(self.other_mr), 0, "the other region can be deregistered");
        } else if call != "dereg" {
            assert_eq!(dereg(self.mr), 0, "the region goes");
        }
        self.cq.destroy();
        self.memory.free();
        self.other.free();
        device.close();
    }
}

/// The owner role: owns the memory, and starts the sender.
pub(crate) fn owner(arguments: &[String]) {
    let [path, call, operation, step, fate] = arguments else { panic!("five arguments") };
    let fate: SenderFate = fate.parse().expect("a fate");
    let device = TestDevice::open();
    let mut owner = MemoryOwner::new(device, call, operation, path == "direct");
    let crash = format!("{}={step}", if fate == SenderFate::Dies { "crash" } else { "stop" });
    let mut sender = ChildRole::start("sender", &[("SOFT_RNIC_TEST_CRASH", &crash)]);
    sender.tell(&format!("{path} {operation} {}", owner.address(device)));
    let address: QpAddress = sender.hear().parse().expect("an address");
    owner.connect(&address);
    sender.tell("go");
    assert_eq!(sender.hear(), "warm");
    owner.take_warm();
    owner.memory.fill(0);
    sender.tell("fire");
    if fate == SenderFate::Dies {
        sender.wait_dead()
    } else {
        sender.wait_stopped()
    }

    // A sender that has only claimed a receive has not looked up its memory yet.
    let named = step != "before_mark" && !(step == "claimed" && ["dereg", "rereg"].contains(&call.as_str()));
    let marked = named && fate != SenderFate::Dies;
    if marked {
        for _ in 0..2 {
            assert_eq!(owner.call_in_time(call), libc::EBUSY, "a stopped sender may still access the memory");
        }
        let signal = if fate == SenderFate::Continues { Signal::CONT } else { Signal::KILL };
        sender.signal(signal);
    }
    if fate == SenderFate::Continues && marked {
        until(call, SLACK, || (owner.call_in_time(call) == 0).then_some(()));
    } else {
        if fate == SenderFate::IsKilled {
            // A killed process is dead only after a while.
            sender.wait_dead();
        }
        owner.patience = SLACK - Duration::from_secs(1);
        assert_eq!(owner.call_in_time(call), 0, "nobody can access the memory");
    }
    owner.memory.map_anew();
    owner.memory.fill(0xa5);
    if fate == SenderFate::Continues {
        sender.signal(Signal::CONT);
        let status = sender.hear();
        assert!(marked || status != "0", "a send to revoked memory ended with {status}");
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(owner.memory.differs(0xa5), None, "the memory was touched after {call} had returned");
        sender.finish();
    } else {
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(owner.memory.differs(0xa5), None, "the memory was touched after {call} had returned");
        drop(sender);
    }
    owner.give_up(device, call);
}

/// The sender closes all its descriptors during a copy, and lives. Therefore the end of its
/// connection must not count as its death.
pub(crate) fn owner_of_one_without(arguments: &[String]) {
    let [path, call, operation, time] = arguments else { panic!("four arguments") };
    let device = TestDevice::open();
    let mut owner = MemoryOwner::new(device, call, operation, path == "direct");
    let pause = format!("pause=mid_copy:{time}ms");
    let mut sender = ChildRole::start("sender", &[("SOFT_RNIC_TEST_CRASH", &pause), (CLOSES, "1")]);
    sender.tell(&format!("{path} {operation} {}", owner.address(device)));
    let address: QpAddress = sender.hear().parse().expect("an address");
    owner.connect(&address);
    sender.tell("go");
    assert_eq!(sender.hear(), "warm");
    owner.take_warm();
    owner.memory.fill(0);
    let held_up = PausedThread::now(time);
    sender.tell("fire");
    assert_eq!(sender.hear(), "closed");
    for _ in 0..2 {
        held_up.check(owner.call_in_time(call) == libc::EBUSY, "the sender lives, and is copying");
    }
    until(call, held_up.time + SLACK, || (owner.call_in_time(call) == 0).then_some(()));
    owner.memory.map_anew();
    owner.memory.fill(0xa5);
    sender.hear();
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(owner.memory.differs(0xa5), None, "the memory was touched after {call} had returned");
    sender.finish();
    owner.give_up(device, call);
}

/// Set if the sender shall close its descriptors.
const CLOSES: &str = "SOFT_RNIC_TEST_CLOSES";

/// A pause of a thread in the middle of a transfer. The pause begins when the thread gets there.
struct PausedThread {
    since: Instant,
    time: Duration,
}

impl PausedThread {
    /// The pause begins later than this call, so it lasts at least until `time` after now.
    fn now(time: &str) -> Self {
        let milliseconds = time.parse().expect("a number");
        Self { since: Instant::now(), time: Duration::from_millis(milliseconds) }
    }

    /// Checks a condition that must hold during the pause. If it fails, but the pause may be over
    /// by now, the test is inconclusive.
    #[track_caller]
    fn check(&self, holds: bool, what: &str) {
        if !holds && self.since.elapsed() >= self.time {
            role::end_too_late();
        }
        assert!(holds, "{what}");
    }
}

/// A logger that notices the pause of a thread of this process.
struct PauseLog;

static IS_HELD_UP: AtomicBool = AtomicBool::new(false);

impl log::Log for PauseLog {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.args().to_string().starts_with("a fault rule holds this thread up") {
            IS_HELD_UP.store(true, Ordering::Release);
        }
    }

    fn flush(&self) {}
}

fn listen_for_held_up() {
    log::set_logger(&PauseLog).expect("nobody else logs");
    log::set_max_level(log::LevelFilter::Debug);
}

fn wait_until_held_up() {
    until("a thread is paused", SLACK, || IS_HELD_UP.load(Ordering::Acquire).then_some(()));
}

/// Closes all descriptors except the standard ones once a thread pauses, and reports it.
fn close_soon() {
    listen_for_held_up();
    std::thread::spawn(|| {
        wait_until_held_up();
        // SAFETY: the test examines how the device copes with this; this thread owns no
        // descriptors.
        assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
        say("closed");
    });
}

fn opcode(operation: &str) -> ibv_wr_opcode {
    if operation == "send" { ibv_wr_opcode::IBV_WR_SEND } else { ibv_wr_opcode::IBV_WR_RDMA_WRITE }
}

/// The sender role: sends some messages, and one more, during which it is interrupted.
pub(crate) fn sender() {
    let line = told().expect("a line");
    let [path, operation, address] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("three words") };
    let to: QpAddress = address.parse().expect("an address");
    let device = TestDevice::open();
    let memory = TestMemory::private(LEN);
    memory.fill(0x5a);
    let (mr, cq) = (memory.register(device), device.cq(16, ptr::null_mut()));
    let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 16);
    qp.init();
    // SAFETY: a GID is plain bytes.
    let gid = unsafe { device.gid().raw };
    say(&QpAddress { qpn: qp.number(), gid, ..QpAddress::default() }.to_string());
    assert_eq!(told().as_deref(), Some("go"));
    qp.connect(&to, TIMING);
    let send = |id| {
        assert_eq!(qp.post(id, opcode(operation), memory.sge(mr, 0, LEN), &to, ptr::null_mut()), 0);
        cq.one("a completion", SLACK).status.0
    };
    for id in 0..WARM {
        assert_eq!(send(id), 0, "nobody interrupts yet");
        if path == "direct" {
            // The memory is mapped in the background.
            until("the mapping", SLACK, maps_peer);
        }
    }
    say("warm");
    assert_eq!(told().as_deref(), Some("fire"));
    role::arm_crash();
    if std::env::var_os(CLOSES).is_some() {
        close_soon();
    }
    say(&send(WARM).to_string());
    assert_eq!(told(), None);
}

/// Whether this process maps a peer's memory.
fn maps_peer() -> Option<()> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process can read its own");
    maps.contains("soft-rnic buffer").then_some(())
}

/// The same within one process: a thread pauses in the middle of a transfer.
pub(crate) fn threads(arguments: &[String]) {
    let [call, operation, step, time] = arguments else { panic!("four arguments") };
    listen_for_held_up();
    let device = TestDevice::open();
    let mut owner = MemoryOwner::new(device, call, operation, false);
    let channel = device.channel();
    let source = TestMemory::private(LEN);
    source.fill(0x5a);
    let (mr, cq) = (source.register(device), device.cq(16, channel));
    let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 16);
    qp.init();
    let to = owner.address(device);
    let from = QpAddress { qpn: qp.number(), ..to };
    owner.connect(&from);
    qp.connect(&to, TIMING);
    cq.arm(false);
    // SAFETY: any thread may call the verbs, and the objects live until the thread has ended.
    struct SendPtr<T>(T);
    // SAFETY: any thread may call the verbs, and the objects live until the thread has ended.
    unsafe impl<T> Send for SendPtr<T> {}
    let what = SendPtr((qp, source.sge(mr, 0, LEN), to, opcode(operation)));
    let held_up = PausedThread::now(time);
    let thread = std::thread::spawn(move || {
        let SendPtr((qp, sge, to, opcode)) = { what };
        assert_eq!(qp.post(WARM, opcode, sge, &to, ptr::null_mut()), 0);
    });
    wait_until_held_up();
    if owner.receives && call == "flush" {
        // No messages came before the paused one.
        flush_own(&owner, step, &held_up);
    } else if step != "before_mark" {
        let busy = owner.call_in_time(call) == libc::EBUSY;
        held_up.check(busy, "a thread may still access the memory");
        until(call, held_up.time + SLACK, || (owner.call_in_time(call) == 0).then_some(()));
    } else {
        owner.patience = SLACK - Duration::from_secs(1);
        assert_eq!(owner.call_in_time(call), 0, "nobody can access the memory");
        held_up.check(!thread.is_finished(), "the thread is still paused");
    }
    owner.memory.map_anew();
    owner.memory.fill(0xa5);
    thread.join().expect("the thread ends");
    assert!(event(channel, SLACK), "the request completes");
    let _ = cq.one("a completion", SLACK);
    assert_eq!(owner.memory.differs(0xa5), None, "the memory was touched after {call} had returned");
    assert_eq!(qp.destroy(), 0);
    assert_eq!(dereg(mr), 0);
    cq.destroy();
    // SAFETY: the channel's completion queue is destroyed.
    assert_eq!(unsafe { (lib().ibv_destroy_comp_channel)(channel) }, 0);
    owner.give_up(device, call);
}

fn flush_own(owner: &MemoryOwner, step: &str, held_up: &PausedThread) {
    assert_eq!(owner.qp().modify(ibv_qp_state::IBV_QPS_ERR), 0);
    if step != "before_mark" {
        std::thread::sleep(Duration::from_millis(50));
        held_up.check(owner.cq.poll().is_none(), "a receive in use was flushed");
    }
    for id in 0..RECEIVES {
        assert_eq!(owner.cq.one("a flushed receive", held_up.time + SLACK).wr_id, id);
    }
}
