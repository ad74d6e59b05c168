//! Resources that the system or a limit refuses: descriptors, memory, files, mappings and threads.

use std::ptr;

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::captured_log::{keep_log, logged};
use crate::kit::{QpAddress, TestDevice, TestMemory, dereg};
use crate::partner::{TIMING, TestEndpoint, meet};
use crate::rights::become_nobody;
use crate::role::{self, ChildRole};
use crate::soak::Resources;

pub(crate) fn trials() -> Vec<Trial> {
    [
        ("too_few_descriptors_are_named", "descriptors"),
        ("too_little_memory_is_named", "memory"),
        ("too_short_files_are_named", "files"),
        ("too_few_mappings_are_named", "mappings"),
        ("too_little_locked_memory_is_named", "unlocked"),
        ("a_thread_that_cannot_be_made_is_explained", "spawn"),
    ]
    .map(|(name, role)| {
        let role = format!("limits {role}");
        Trial::test(format!("limits::{name}"), move || role::run(&role, &[("SOFT_RNIC_TEST_ALARM", "110")]))
    })
    .into()
}

pub(crate) fn play(case: &str) {
    match case {
        "descriptors" => descriptors(),
        "memory" => memory(),
        "files" => files(),
        "mappings" => mappings(),
        "unlocked" => unlocked(),
        _ => spawn(),
    }
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
pub(crate) fn statm(field: usize) -> u64 {
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

pub(crate) fn null_region(device: TestDevice) -> std::io::Result<*mut ibv_mr> {
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
        let side = TestEndpoint::new();
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
