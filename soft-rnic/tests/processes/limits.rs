//! Missing permissions and resources: peers of other users, memory that the system forbids to copy,
//! forks, few descriptors, little memory, short files, and very many queue pairs.

use std::process::Command;
use std::ptr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Failed, Trial};
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;
use rustix::process::Signal;

use crate::kit::{QpAddress, TestDevice, TestMemory, Timing, dereg, lib, post_shared, rkey, until};
use crate::role::{self, ChildRole, say, told};
use crate::soak::Resources;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const TIMING: Timing = Timing { timeout: 12, retry_cnt: 3 };
pub(crate) const LEN: usize = 100_000;
/// The length of the longest message.
pub(crate) const LONG: usize = 1 << 31;
/// How much of its end is compared.
pub(crate) const TAIL: usize = 1 << 20;
/// The number of receives that an endpoint posts at first.
pub(crate) const RECEIVES: u64 = 4;
const NOBODY: u32 = 65534;

pub(crate) fn trials() -> Vec<Trial> {
    let role = |name: &'static str, role: &'static str| {
        Trial::test(format!("limits::{name}"), move || role::run(role, &[("SOFT_RNIC_TEST_ALARM", "110")]))
    };
    vec![
        trial_unless("limits::another_user_is_unreachable", not_root, || {
            ["here", "there"].iter().try_for_each(|who| role::run(&format!("foreign {who}"), &[]))
        }),
        trial_unless("limits::memory_of_another_user_namespace_is_asked_for", no_user_namespaces, || {
            role::run("namespace", &[])
        }),
        role("a_forked_child_is_shut_out", "fork"),
        role("a_killed_parent_is_dead_although_its_child_lives", "orphan"),
        role("too_few_descriptors_are_named", "descriptors"),
        role("too_little_memory_is_named", "memory"),
        role("too_short_files_are_named", "files"),
        role("too_few_mappings_are_named", "mappings"),
        role("too_little_locked_memory_is_named", "unlocked"),
        role("a_thread_that_cannot_be_made_is_explained", "spawn"),
        role("an_idle_device_maps_little", "idle"),
        role("a_null_region_is_in_no_core_dump", "dump"),
        role("locked_memory_stays_little", "locked"),
        role("forty_thousand_queue_pairs", "many"),
        role("opening_and_closing_leaves_nothing", "again"),
        role("a_device_that_is_closed_with_objects_is_no_warning", "leaving"),
    ]
}

/// A test that is reported and ignored where it `lacks` something.
pub(crate) fn trial_unless(
    name: impl Into<String>,
    lacks: fn() -> Option<&'static str>,
    test: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let name = name.into();
    Trial::ignorable_test(name.clone(), move || match lacks() {
        Some(reason) => {
            test_harness::report_skip(&name, reason);
            Ok(Completion::ignored_with(reason))
        }
        None => test().map(|()| Completion::Completed),
    })
}

pub(crate) fn not_root() -> Option<&'static str> {
    (!rustix::process::geteuid().is_root()).then_some("only root can change its user and its rights")
}

fn no_user_namespaces() -> Option<&'static str> {
    let usable = Command::new("unshare").args(["-U", "-r", "true"]).status();
    (!usable.is_ok_and(|status| status.success())).then_some("unshare makes no user namespace here")
}

pub(crate) fn play(role: &str, arguments: &[String]) {
    match role {
        "foreign" => foreign(&arguments[0]),
        "partner" => partner(arguments),
        "namespace" => namespace(),
        "fork" => fork(),
        "orphan" => orphan(),
        "descriptors" => descriptors(),
        "memory" => memory(),
        "files" => files(),
        "spawn" => spawn(),
        "mappings" => mappings(),
        "unlocked" => unlocked(),
        "idle" => idle(),
        "dump" => dump(),
        "locked" => locked(),
        "many" => many(),
        "again" => again(),
        "leaving" => leaving(),
        _ => panic!("unknown role {role}"),
    }
}

/// A logger that keeps the messages.
struct CapturedLog(Mutex<Vec<String>>);

static LOG: CapturedLog = CapturedLog(Mutex::new(Vec::new()));

impl log::Log for CapturedLog {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().expect("nobody panics here").push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

pub(crate) fn keep_log() {
    log::set_logger(&LOG).expect("nobody else logs");
    log::set_max_level(log::LevelFilter::Warn);
}

/// Takes the messages logged since the last call.
pub(crate) fn logged() -> Vec<String> {
    std::mem::take(&mut *LOG.0.lock().expect("nobody panics there"))
}

/// One end of a connection.
pub(crate) struct LimitEndpoint {
    device: TestDevice,
    pub(crate) memory: TestMemory,
    pub(crate) mr: *mut ibv_mr,
    pub(crate) cq: crate::kit::TestCq,
    pub(crate) qp: crate::kit::TestQp,
    srq: *mut ibv_srq,
}

impl LimitEndpoint {
    pub(crate) fn new() -> Self {
        Self::on(TestDevice::open())
    }

    fn on(device: TestDevice) -> Self {
        Self::with(device, ptr::null_mut())
    }

    fn with(device: TestDevice, srq: *mut ibv_srq) -> Self {
        let memory = TestMemory::private(LEN);
        let (mr, cq) = (memory.register(device), device.cq(16, ptr::null_mut()));
        let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, srq, 8);
        qp.init();
        let side = Self { device, memory, mr, cq, qp, srq };
        (0..RECEIVES).for_each(|id| side.receive(id));
        side
    }

    /// Posts a receive for all of the memory.
    fn receive(&self, id: u64) {
        let sge = self.memory.sge(self.mr, 0, LEN);
        let posted =
            if self.srq.is_null() { self.qp.receive(id, sge) } else { post_shared(self.srq, id, sge) };
        assert_eq!(posted, 0);
    }

    pub(crate) fn device(&self) -> TestDevice {
        self.device
    }

    pub(crate) fn connect(&self, to: &QpAddress) {
        self.qp.connect(to, TIMING);
    }

    pub(crate) fn address(&self) -> QpAddress {
        // SAFETY: a GID is plain bytes.
        let gid = unsafe { self.device.gid().raw };
        QpAddress { qpn: self.qp.number(), gid, addr: self.memory.base.addr() as u64, rkey: rkey(self.mr) }
    }

    /// Sends, reads or writes all of the memory; returns the status.
    pub(crate) fn run(&self, opcode: ibv_wr_opcode, to: &QpAddress) -> ibv_wc_status {
        assert_eq!(self.qp.post(7, opcode, self.memory.sge(self.mr, 0, LEN), to, ptr::null_mut()), 0);
        until("the request", PATIENCE, || self.cq.poll().filter(|wc| wc.wr_id == 7)).status
    }

    pub(crate) fn close(self) {
        self.take_down().close();
    }

    fn take_down(self) -> TestDevice {
        assert_eq!(self.qp.destroy(), 0);
        if !self.srq.is_null() {
            // SAFETY: no queue pair uses the shared receive queue any more.
            assert_eq!(unsafe { (lib().ibv_destroy_srq)(self.srq) }, 0);
        }
        // A test may have deregistered the region already.
        assert!(self.mr.is_null() || dereg(self.mr) == 0);
        self.cq.destroy();
        self.memory.free();
        self.device
    }
}

pub(crate) fn become_nobody() {
    // SAFETY: the call accesses no memory.
    assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
}

/// The partner role: answers requests, and obeys commands.
fn partner(arguments: &[String]) {
    let role = arguments.first().map(String::as_str);
    if role == Some("nobody") {
        become_nobody();
    }
    let device = TestDevice::open();
    let srq = if role == Some("shared") { device.srq(8) } else { ptr::null_mut() };
    let side = LimitEndpoint::with(device, srq);
    side.memory.fill(0x33);
    say(&side.address().to_string());
    let to: QpAddress = told().expect("a line").parse().expect("an address");
    side.qp.connect(&to, TIMING);
    // SAFETY: the child only makes system calls.
    if role == Some("parent") && unsafe { libc::fork() } == 0 {
        // SAFETY: the child only makes system calls, and outlives its parent by design.
        unsafe {
            libc::close(1);
            libc::sleep(3);
            libc::_exit(0);
        }
    }
    say("ready");
    let mut long: Option<TestMemory> = None;
    while let Some(line) = told() {
        let answer = match line.as_str() {
            "write" => side.run(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &to).0.to_string(),
            "hole" => {
                // SAFETY: the page belongs to `side.memory`, and this process does not access it
                // again.
                let unmapped = unsafe { libc::munmap(side.memory.base.add(10 * 4096).cast(), 4096) };
                if unmapped == 0 { "done" } else { "it stays" }.to_owned()
            }
            "long" => {
                let memory = TestMemory::folded(LONG);
                let mr = memory.register(device);
                long = Some(memory);
                QpAddress { addr: memory.base.addr() as u64, rkey: rkey(mr), ..side.address() }.to_string()
            }
            line if line.starts_with("tail ") => {
                let byte = line[5..].parse().expect("a byte");
                format!("{:?}", long.expect("it was asked for").part_differs(LONG - TAIL, TAIL, byte))
            }
            "receive" => {
                side.receive(9);
                "done".to_owned()
            }
            "poll" => {
                let wc = side.cq.one("a message", PATIENCE);
                format!("{} {} {}", wc.wr_id, wc.status.0, wc.byte_len)
            }
            line if line.starts_with("byte ") => {
                side.memory.byte(line[5..].parse().expect("where")).to_string()
            }
            _ => side.memory.byte(LEN - 1).to_string(),
        };
        say(&answer);
    }
}

/// Connects to a partner.
pub(crate) fn meet(mut partner: ChildRole) -> (LimitEndpoint, ChildRole, QpAddress) {
    let side = LimitEndpoint::new();
    let to: QpAddress = partner.hear().parse().expect("an address");
    partner.tell(&side.address().to_string());
    side.qp.connect(&to, TIMING);
    assert_eq!(partner.hear(), "ready");
    (side, partner, to)
}

fn foreign(who: &str) {
    let partner = ChildRole::start(if who == "there" { "partner nobody" } else { "partner" }, &[]);
    if who == "here" {
        become_nobody();
    }
    let before = Resources::now();
    let (side, mut partner, to) = meet(partner);
    side.memory.fill(0x44);
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &to), ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    partner.tell("look");
    assert_eq!(partner.hear(), "51", "nothing came");
    partner.tell("write");
    assert_eq!(partner.hear(), ibv_wc_status::IBV_WC_RETRY_EXC_ERR.0.to_string());
    assert_eq!(side.memory.differs(0x44), None, "nothing came");
    side.close();
    before.settle().expect("a stranger leaves nothing");
    if who == "here" {
        // The partner belongs to another user, so this process cannot kill it; it ends by itself.
        std::mem::forget(partner);
    }
}

fn namespace() {
    keep_log();
    let mut command = Command::new("unshare");
    command.args(["-U", "-r"]).arg(std::env::current_exe().expect("this program"));
    let (side, mut partner, to) = meet(ChildRole::with(command, "partner", &[]));
    for byte in [0x51, 0x52] {
        side.memory.fill(byte);
        assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &to), ibv_wc_status::IBV_WC_SUCCESS);
        partner.tell("look");
        assert_eq!(partner.hear(), byte.to_string());
    }
    side.memory.fill(0x53);
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_SEND, &to), ibv_wc_status::IBV_WC_SUCCESS);
    partner.tell("look");
    assert_eq!(partner.hear(), 0x53.to_string());
    side.memory.fill(0);
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_READ, &to), ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(side.memory.differs(0x53), None, "what was read");
    partner.tell("write");
    assert_eq!(partner.hear(), "0");
    let lines = logged();
    let slower = lines.iter().filter(|line| line.contains("slower path")).count();
    // A privileged process may copy from a user namespace below its own, but not the reverse.
    assert!(slower <= 1, "{lines:?}");
    assert!(lines.len() == slower, "{lines:?}");
    side.close();
    partner.finish();
}

fn fork() {
    let (side, other) = (LimitEndpoint::new(), LimitEndpoint::new());
    side.qp.connect(&other.address(), TIMING);
    other.qp.connect(&side.address(), TIMING);
    let to = other.address();
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &to), ibv_wc_status::IBV_WC_SUCCESS);
    // SAFETY: this process has threads, but the child uses none of their locks, because its calls
    // fail at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failures = shut_out(&side, &to);
        for failure in &failures {
            eprintln!("in a forked child, {failure}");
        }
        // SAFETY: the child ends here.
        unsafe { libc::_exit(failures.len() as i32) };
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's calls fail with EIO");
    for opcode in [ibv_wr_opcode::IBV_WR_RDMA_WRITE, ibv_wr_opcode::IBV_WR_SEND] {
        assert_eq!(
            side.run(opcode, &to),
            ibv_wc_status::IBV_WC_SUCCESS,
            "the parent's connection still works"
        );
    }
    side.close();
    other.close();
}

/// The calls that do not fail with `EIO` in a forked child.
fn shut_out(side: &LimitEndpoint, to: &QpAddress) -> Vec<String> {
    let mut failures = Vec::new();
    let mut expect = |what: &str, error: i32| {
        if error != libc::EIO {
            failures.push(format!("{what} gives {error}"));
        }
    };
    let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let sge = ibv_sge::default();
    expect("ibv_post_send", side.qp.post(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, sge, to, ptr::null_mut()));
    expect("ibv_post_recv", side.qp.receive(1, sge));
    expect("ibv_modify_qp", side.qp.modify(ibv_qp_state::IBV_QPS_ERR));
    expect("ibv_destroy_qp", side.qp.destroy());
    expect("ibv_dereg_mr", dereg(side.mr));
    let made = side.device.try_qp(ibv_qp_type::IBV_QPT_RC, side.cq, ptr::null_mut(), 1);
    expect("ibv_create_qp", made.err().and_then(|error| error.raw_os_error()).unwrap_or(0));
    // SAFETY: the parent owns the context, and has not closed it.
    unsafe {
        let context = side.device.context;
        let cq = (lib().ibv_create_cq)(context, 1, ptr::null_mut(), ptr::null_mut(), 0);
        expect("ibv_create_cq", if cq.is_null() { errno() } else { 0 });
        let pd = (lib().ibv_alloc_pd)(context);
        expect("ibv_alloc_pd", if pd.is_null() { errno() } else { 0 });
        expect("ibv_destroy_cq", (lib().ibv_destroy_cq)(side.cq.0));
    }
    failures
}

fn orphan() {
    let (side, mut partner, to) = meet(ChildRole::start("partner parent", &[]));
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_SEND, &to), ibv_wc_status::IBV_WC_SUCCESS);
    partner.tell("write");
    assert_eq!(partner.hear(), "0");
    partner.signal(Signal::KILL);
    partner.wait_dead();
    let begin = Instant::now();
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_SEND, &to), ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    assert!(begin.elapsed() < Duration::from_secs(2), "not when the child has ended: {:?}", begin.elapsed());
    side.close();
}

fn set_limit(which: libc::__rlimit_resource_t, most: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is a local.
    unsafe {
        assert_eq!(libc::getrlimit(which, &raw mut limit), 0);
        limit.rlim_cur = most.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(which, &raw const limit), 0);
    }
}

/// A field of `/proc/self/statm` in bytes: 0 is the address space, 1 the resident part.
fn statm(field: usize) -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("a process can see its own");
    let pages: u64 = pages.split(' ').nth(field).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

/// Whether opening the device fails for lack of a resource. If so, checks the error, and that a log
/// line names it.
fn refused(limit: &str, expected: &[i32]) -> bool {
    let made = TestDevice::try_open().and_then(|device| {
        let cq = device.cq(1, ptr::null_mut());
        let made = device.try_qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 1);
        let result = made.map(|qp| assert_eq!(qp.destroy(), 0));
        cq.destroy();
        device.close();
        result
    });
    was_refused(made, limit, expected)
}

/// The same of a null region.
fn null_refused(device: TestDevice, limit: &str, expected: &[i32]) -> bool {
    was_refused(null_region(device).map(|mr| assert_eq!(dereg(mr), 0)), limit, expected)
}

fn was_refused(made: std::io::Result<()>, limit: &str, expected: &[i32]) -> bool {
    is_named(made, &logged(), limit, expected)
}

fn is_named(made: std::io::Result<()>, lines: &[String], limit: &str, expected: &[i32]) -> bool {
    match made {
        Ok(()) => false,
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(0);
            assert!(expected.contains(&number), "{limit}: {error}; {lines:?}");
            let named = lines.iter().any(|line| line.contains(&error.to_string()) || line.contains(limit));
            assert!(named, "{limit}: {error} is not in the log: {lines:?}");
            true
        }
    }
}

fn null_region(device: TestDevice) -> std::io::Result<*mut ibv_mr> {
    // SAFETY: the domain is live.
    let mr = unsafe { verbs::ibv_alloc_null_mr(device.pd) };
    if mr.is_null() { Err(std::io::Error::last_os_error()) } else { Ok(mr) }
}

fn descriptors() {
    keep_log();
    // The provider makes its permanent objects first.
    TestDevice::open().close();
    let before = Resources::now();
    let open = before.descriptors.values().sum::<usize>() as u64;
    let mut enough = false;
    for more in 0..40 {
        set_limit(libc::RLIMIT_NOFILE, open + more);
        let was_refused = refused("file descriptor", &[libc::EMFILE]);
        assert!(!(enough && was_refused), "a limit that sufficed once is too low now");
        enough |= !was_refused;
        assert!(enough || was_refused);
    }
    assert!(enough, "40 descriptors are enough");
    set_limit(libc::RLIMIT_NOFILE, 1024);
    before.settle().expect("what fails leaves nothing");
    // A peer without descriptors cannot attach this process, and goes on once it has some.
    let (side, mut partner, to) = {
        let partner = ChildRole::start("partner", &[]);
        let side = LimitEndpoint::new();
        // Every descriptor number below the limit is in use.
        set_limit(libc::RLIMIT_NOFILE, 1);
        let mut partner = partner;
        let to: QpAddress = partner.hear().parse().expect("an address");
        partner.tell(&side.address().to_string());
        side.qp.connect(&to, TIMING);
        assert_eq!(partner.hear(), "ready");
        (side, partner, to)
    };
    partner.tell("write");
    assert_eq!(partner.hear(), ibv_wc_status::IBV_WC_RETRY_EXC_ERR.0.to_string());
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_SEND, &to), ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    let lines = logged();
    assert!(lines.iter().any(|line| line.contains("descriptor") || line.contains("open files")), "{lines:?}");
    set_limit(libc::RLIMIT_NOFILE, 1024);
    side.close();
    let (side, _partner, to) = meet(ChildRole::start("partner", &[]));
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_SEND, &to), ibv_wc_status::IBV_WC_SUCCESS, "it goes on");
    side.close();
}

fn memory() {
    keep_log();
    TestDevice::open().close();
    let before = Resources::now();
    let used = statm(0);
    for mebibytes in [1, 4, 16] {
        set_limit(libc::RLIMIT_AS, used + (mebibytes << 20));
        assert!(refused("RLIMIT_AS", &[libc::ENOMEM]), "{mebibytes} MiB suffice");
    }
    // An allocator's arena for the service thread takes 64 to 128 MiB.
    set_limit(libc::RLIMIT_AS, used + (256 << 20));
    assert!(!refused("RLIMIT_AS", &[]));
    let device = TestDevice::open();
    assert!(null_refused(device, "RLIMIT_AS", &[libc::ENOMEM]), "256 MiB suffice");
    set_limit(libc::RLIMIT_AS, u64::MAX);
    assert!(!null_refused(device, "RLIMIT_AS", &[]));
    device.close();
    before.settle().expect("what fails leaves nothing");
}

/// The device's memory is files, so that `RLIMIT_FSIZE` applies. The system would end the process
/// with SIGXFSZ.
fn files() {
    keep_log();
    TestDevice::open().close();
    let before = Resources::now();
    set_limit(libc::RLIMIT_FSIZE, 1 << 20);
    assert!(refused("RLIMIT_FSIZE", &[libc::EFBIG]), "1 MiB suffices");
    set_limit(libc::RLIMIT_FSIZE, 31 << 20);
    assert!(!refused("RLIMIT_FSIZE", &[]));
    let (device, _) = crate::soak::open();
    assert!(null_refused(device, "RLIMIT_FSIZE", &[libc::EFBIG]), "31 MiB suffice");
    set_limit(libc::RLIMIT_FSIZE, 32 << 20);
    assert!(!null_refused(device, "RLIMIT_FSIZE", &[]));
    let cq = device.cq(16, ptr::null_mut());
    // The receive queues take more than the first level of the segment.
    let mut made = Vec::new();
    let error = loop {
        match device.try_qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 4096) {
            Ok(qp) => made.push(qp),
            Err(error) => break error,
        }
        assert!(made.len() < 100, "the limit has no effect");
    };
    assert!(!made.is_empty());
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    let lines = logged();
    assert!(lines.iter().any(|line| line.contains("RLIMIT_FSIZE")), "{lines:?}");
    made.into_iter().for_each(|qp| assert_eq!(qp.destroy(), 0));
    cq.destroy();
    device.close();
    before.settle().expect("what fails leaves nothing");
}

/// A null region has 64 mappings, and the process has no room for them.
fn mappings() {
    const PAGE: usize = 4096;
    keep_log();
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit");
    let most: usize = most.trim().parse().expect("a number");
    if most > 1 << 20 {
        test_harness::report_skip(
            "limits::too_few_mappings_are_named",
            format_args!("vm.max_map_count is {most}"),
        );
        return;
    }
    let device = TestDevice::open();
    let before = Resources::now();
    // Every other page is another mapping, because its permissions differ.
    let memory = TestMemory::private(most * PAGE);
    let protect = |page: usize| {
        // SAFETY: the page belongs to `memory`, and nobody accesses it.
        unsafe { libc::mprotect(memory.base.add(page * PAGE).cast(), PAGE, libc::PROT_NONE) }
    };
    let pages = (1..most).step_by(2).take_while(|page| protect(*page) == 0).count();
    assert!(pages > 0 && 2 * pages < most, "{pages} pages");
    let tries = [0, 10, 25].map(|freed| {
        // SAFETY: the pages belong to `memory`, and nobody accesses them.
        let unmapped = unsafe { libc::munmap(memory.base.cast(), (2 * freed + 1) * PAGE) };
        (unmapped, null_region(device).map(|mr| assert_eq!(dereg(mr), 0)), logged())
    });
    // Whatever fails from here on has room for its message.
    memory.free();
    for (unmapped, made, lines) in tries {
        assert_eq!(unmapped, 0);
        assert!(is_named(made, &lines, "vm.max_map_count", &[libc::ENOMEM]), "it was not refused");
    }
    assert!(!null_refused(device, "vm.max_map_count", &[]));
    before.settle().expect("what fails leaves nothing");
    device.close();
}

/// After `mlockall`, every new mapping counts against `RLIMIT_MEMLOCK`. A null region counts one
/// page at a time.
fn unlocked() {
    keep_log();
    let locked = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("a process can see its own");
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("a number");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    // SAFETY: the call accesses no memory.
    if unsafe { libc::geteuid() } == 0 {
        become_nobody();
    }
    let device = TestDevice::open();
    set_limit(libc::RLIMIT_MEMLOCK, 1 << 20);
    // SAFETY: the call changes no memory.
    if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
        let error = std::io::Error::last_os_error();
        test_harness::report_skip(
            "limits::too_little_locked_memory_is_named",
            format_args!("mlockall: {error}"),
        );
        return;
    }
    let mr = null_region(device).expect("1 MiB suffices");
    assert!(locked() < 1 << 20, "{} bytes are locked", locked());
    assert_eq!(dereg(mr), 0);
    set_limit(libc::RLIMIT_MEMLOCK, locked());
    assert!(null_refused(device, "RLIMIT_MEMLOCK", &[libc::ENOMEM]), "a page of it is locked at first");
    device.close();
}

/// The address space has room for the segment, and none for the stack of the service thread.
fn spawn() {
    keep_log();
    let device = TestDevice::open();
    let cq = device.cq(1, ptr::null_mut());
    set_limit(libc::RLIMIT_AS, statm(0) + (1 << 20));
    let made = device.try_qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 1);
    assert_eq!(made.map(|_| ()).map_err(|error| error.raw_os_error()), Err(Some(libc::EAGAIN)));
    let lines = logged();
    assert!(lines.iter().any(|line| line.contains("RLIMIT_AS")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("RLIMIT_NPROC")), "{lines:?}");
    set_limit(libc::RLIMIT_AS, u64::MAX);
    cq.destroy();
    device.close();
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
    let side = LimitEndpoint::new();
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
        test_harness::report_skip("limits::locked_memory_stays_little", format_args!("mlockall: {error}"));
        return;
    }
    let before = statm(1);
    let side = LimitEndpoint::new();
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
    let side = LimitEndpoint::new();
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
        let (side, other) = (LimitEndpoint::new(), LimitEndpoint::new());
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
        let _ = LimitEndpoint::on(device).take_down();
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
