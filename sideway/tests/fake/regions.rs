//! Tests of all kinds of regions: errors, lifetimes, and the state after a failed change.

use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

use sideway::ErrorKind;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::memory_region::{
    AdviseMemoryRegionFlags, MemoryKind, MemoryRegion, MemoryRegionAdvice, MemoryRegionChange,
    RegisterMemoryRegionError, ReregisterMemoryRegionError,
};
use sideway::ibverbs::protection_domain::ProtectionDomain;

use super::control::{ERRNOS, assert_fails, assert_says, is_unsupported, lying};
use super::support::fake::{Fake, old_provider};
use crate::support::errors::assert_error;

const ACCESS: AccessFlags = AccessFlags::LocalWrite;

fn region(pd: &ProtectionDomain, len: usize) -> MemoryRegion {
    region_with(pd, len, ACCESS)
}

fn region_with(pd: &ProtectionDomain, len: usize, access: AccessFlags) -> MemoryRegion {
    // SAFETY: the fake device touches no memory, and no reference to it is made.
    unsafe { pd.reg_mr(std::ptr::without_provenance_mut(0x1000), len, access).unwrap() }
}

fn on_demand(pd: &ProtectionDomain, len: usize) -> MemoryRegion {
    region_with(pd, len, ACCESS | AccessFlags::OnDemand)
}

/// Any descriptor; its type does not matter here.
fn file() -> std::fs::File {
    std::fs::File::open("/dev/null").unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "asks the system for its limits")]
fn every_kind_can_fail() {
    for errno in ERRNOS {
        let (_fake, context) = lying(|l| l.extras = errno);
        let pd = context.alloc_pd().unwrap();
        // SAFETY: no bytes are registered.
        let error = unsafe { pd.reg_mr_iova(std::ptr::null_mut(), 0, 0, ACCESS) }.unwrap_err();
        assert_fails!(errno, "ibv_reg_mr_iova", error, RegisterMemoryRegionError::Unsupported);
        let error = pd.reg_dmabuf_mr(file().as_fd(), 0, 1, 0, ACCESS).unwrap_err();
        assert_fails!(errno, "ibv_reg_dmabuf_mr", error, RegisterMemoryRegionError::Unsupported);
        let error = pd.alloc_null_mr().unwrap_err();
        assert_fails!(errno, "ibv_alloc_null_mr", error);
        let error = context.alloc_dm(77, 2).unwrap_err();
        if !is_unsupported(errno) {
            assert_error(&error, ErrorKind::Os, &[("length", &77), ("log_align_req", &2)]);
        }
        assert_fails!(errno, "ibv_alloc_dm", error);
        // SAFETY: the import fails, so nothing is imported.
        let error = unsafe { context.import_dm(3, 1) }.unwrap_err();
        assert_fails!(errno, "ibv_import_dm", error);
        let error = pd
            .advise_mr(
                MemoryRegionAdvice::Prefetch,
                AdviseMemoryRegionFlags::empty(),
                &[(&on_demand(&pd, 9), 0..9)],
            )
            .unwrap_err();
        assert_fails!(errno, "ibv_advise_mr", error);
    }
}

#[test]
fn a_library_that_is_too_old_is_named() {
    let _fake = Fake::new();
    let context = DeviceList::from_provider(old_provider()).unwrap().first().unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let error = pd.reg_dmabuf_mr(file().as_fd(), 0, 1, 0, ACCESS).unwrap_err().to_string();
    assert!(error.contains("ibv_reg_dmabuf_mr") && error.contains("34"), "{error}");
    // SAFETY: the import fails, so nothing is imported.
    let error = unsafe { pd.context().import_dm(1, 1) }.unwrap_err().to_string();
    assert!(error.contains("ibv_import_dm") && error.contains("35"), "{error}");
    // SAFETY: no bytes are registered.
    let error = unsafe { pd.reg_mr_iova(std::ptr::null_mut(), 0, 0x1000, ACCESS) }.unwrap_err();
    assert!(matches!(error, RegisterMemoryRegionError::Unsupported(_)), "{error}");
    // SAFETY: no bytes are registered. Every library supports a region at its own address.
    unsafe { pd.reg_mr_iova(std::ptr::null_mut(), 0, 0, ACCESS) }.unwrap();
}

#[test]
fn a_context_without_extended_verbs_has_none_of_it() {
    let (_fake, context) = lying(|l| l.no_extended_verbs = true);
    let pd = context.alloc_pd().unwrap();
    let error = pd.alloc_null_mr().unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no null memory regions (ibv_alloc_null_mr)");
    let error = context.alloc_dm(1, 0).unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no device memory (ibv_alloc_dm)");
    let error = pd.advise_mr(MemoryRegionAdvice::Prefetch, AdviseMemoryRegionFlags::Flush, &[]).unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no advice Prefetch about memory regions (ibv_advise_mr)");
}

#[test]
fn a_region_knows_its_addresses() {
    let fake = Fake::new();
    let pd = fake.pd();
    let ptr = std::ptr::without_provenance_mut(0x5000);
    // SAFETY: the fake device touches no memory.
    unsafe {
        let mr = pd.reg_mr_iova(ptr, 100, 0x9000, ACCESS).unwrap();
        assert_eq!((mr.get_ptr(), mr.iova(), mr.region_len(), mr.access()), (ptr, 0x9000, 100, ACCESS));
        assert!(matches!(mr.kind(), MemoryKind::Program));
        assert_eq!(pd.reg_mr(ptr, 100, ACCESS).unwrap().iova(), 0x5000);
        assert_eq!(pd.reg_mr(ptr, 100, ACCESS | AccessFlags::ZeroBased).unwrap().iova(), 0);
        let all = pd.reg_mr_implicit(ACCESS).unwrap();
        assert_eq!((all.region_len(), all.access()), (usize::MAX, ACCESS | AccessFlags::OnDemand));
    }
    let mr =
        pd.reg_dmabuf_mr(file().as_fd(), 0x2010, 5000, 0x7010, ACCESS | AccessFlags::RemoteRead).unwrap();
    assert_eq!(*fake.world.regions.registered.lock().unwrap(), Some((0x2010, 5000, 0x7010, 5)));
    assert_eq!((mr.get_ptr(), mr.iova(), mr.region_len()), (std::ptr::null_mut(), 0x7010, 5000));
    assert!(matches!(mr.kind(), MemoryKind::DmaBuf));
}

/// The capability of implicit regions says nothing about remote access, so only the device decides.
#[test]
#[cfg_attr(miri, ignore = "asks the system for its limits")]
fn an_implicit_region_for_local_access_alone_is_refused_to_peers_by_name() {
    let fake = Fake::lying(|l| l.implicit_is_local = true);
    let pd = fake.pd();
    // SAFETY: the fake device touches no memory.
    let (local, remote) = unsafe {
        (pd.reg_mr_implicit(ACCESS), pd.reg_mr_implicit(ACCESS | AccessFlags::RemoteRead).unwrap_err())
    };
    assert_eq!(local.unwrap().region_len(), usize::MAX);
    assert!(matches!(remote, RegisterMemoryRegionError::Unsupported(_)), "{remote}");
    assert!(remote.to_string().contains("RemoteRead"), "{remote}");
}

#[test]
fn device_memory_outlives_its_regions() {
    let fake = Fake::new();
    let context = fake.context();
    let pd = context.alloc_pd().unwrap();
    let dm = context.alloc_dm(256, 3).unwrap();
    assert_eq!((dm.len(), dm.handle(), dm.is_imported()), (256, Some(5), false));
    let mr = pd.reg_dm_mr(&dm, 16, 64, ACCESS).unwrap();
    let zero_based = (ACCESS | AccessFlags::ZeroBased).bits();
    assert_eq!(*fake.world.regions.registered.lock().unwrap(), Some((16, 64, 0, zero_based)));
    assert_eq!((mr.iova(), mr.region_len(), mr.get_ptr()), (0, 64, std::ptr::null_mut()));
    assert!(matches!(mr.kind(), MemoryKind::Device(of) if *of == dm));
    drop((dm, context, pd));
    assert!(fake.world.destroyed.lock().unwrap().is_empty());
    drop(mr);
    let destroyed = fake.world.destroyed.lock().unwrap().clone();
    assert_eq!(destroyed[0], "mr");
    assert!(destroyed.contains(&"dm") && destroyed.last() == Some(&"context"), "{destroyed:?}");
}

#[test]
fn a_closed_region_of_device_memory_gives_it_back() {
    let fake = Fake::new();
    let context = fake.context();
    let dm = context.alloc_dm(256, 0).unwrap();
    let mr = context.alloc_pd().unwrap().reg_dm_mr(&dm, 0, 64, ACCESS).unwrap();
    drop(dm);
    mr.close().unwrap();
    assert!(fake.world.destroyed.lock().unwrap().contains(&"dm"));
}

#[test]
fn ranges_beyond_device_memory_are_refused_without_a_call() {
    let fake = Fake::new();
    let context = fake.context();
    let (pd, dm) = (context.alloc_pd().unwrap(), context.alloc_dm(64, 0).unwrap());
    for (offset, length) in [(0, 65), (64, 1), (u64::MAX, 1), (1, usize::MAX), (u64::MAX, usize::MAX)] {
        let error = pd.reg_dm_mr(&dm, offset, length, ACCESS).unwrap_err();
        assert!(matches!(error, RegisterMemoryRegionError::OutOfBounds { dm_length: 64, .. }), "{error}");
    }
    for (offset, length) in [(0, 65), (64, 1), (u64::MAX, 1), (60, 5)] {
        let mut bytes = vec![1; length];
        let error = dm.memcpy_to_dm(offset, &bytes).unwrap_err();
        assert_error(&error, ErrorKind::OutOfBounds, &[("dm_length", &64)]);
        let error = dm.memcpy_from_dm(&mut bytes, offset).unwrap_err();
        assert_error(&error, ErrorKind::OutOfBounds, &[("length", &length), ("offset", &offset)]);
    }
    let other = fake.context().alloc_dm(64, 0).unwrap();
    let error = pd.reg_dm_mr(&other, 0, 64, ACCESS).unwrap_err();
    assert!(matches!(error, RegisterMemoryRegionError::OtherContext), "{error}");
    dm.memcpy_to_dm(60, &[1, 2, 3, 4]).unwrap();
    let mut bytes = [9; 6];
    dm.memcpy_from_dm(&mut bytes[..5], 59).unwrap();
    assert_eq!(bytes, [0, 1, 2, 3, 4, 9]);
}

#[test]
fn copies_can_fail_or_not_be_there() {
    for errno in ERRNOS {
        let (_fake, context) = lying(|l| l.copies = errno);
        let dm = context.alloc_dm(64, 0).unwrap();
        let error = dm.memcpy_to_dm(0, &[0; 4]).unwrap_err();
        assert_fails!(errno, "ibv_memcpy_to_dm", error);
        let error = dm.memcpy_from_dm(&mut [0; 4], 0).unwrap_err();
        assert_fails!(errno, "ibv_memcpy_from_dm", error);
    }
    let (_fake, context) = lying(|l| l.no_copies = true);
    let dm = context.alloc_dm(64, 0).unwrap();
    assert_eq!(dm.handle(), None);
    assert!(matches!(dm.memcpy_to_dm(0, &[0; 4]), Err(error) if error.unsupported().is_some()));
    assert!(matches!(dm.memcpy_from_dm(&mut [0; 4], 0), Err(error) if error.unsupported().is_some()));
}

#[test]
fn imported_device_memory_is_given_up_not_freed() {
    let fake = Fake::new();
    let context = fake.context();
    // SAFETY: the fake's device memory always has 64 bytes.
    let dm = unsafe { context.import_dm(7, 64) }.unwrap();
    assert_eq!((dm.handle(), dm.len(), dm.is_imported()), (Some(7), 64, true));
    dm.memcpy_to_dm(0, &[1; 64]).unwrap();
    drop(dm);
    assert!(!fake.world.destroyed.lock().unwrap().contains(&"dm"));
}

#[test]
fn a_null_region_ends_before_its_domain() {
    let fake = Fake::new();
    let (first, second) = (fake.pd().alloc_null_mr().unwrap(), fake.pd().alloc_null_mr().unwrap());
    assert_ne!(first.lkey(), second.lkey());
    drop(first);
    second.close().unwrap();
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr", "pd", "context", "mr", "pd", "context"]);
}

#[test]
fn advice_is_split_where_a_range_is_too_long_for_an_entry() {
    let fake = Fake::new();
    let pd = fake.pd();
    let long = on_demand(&pd, 5 << 30);
    let short = on_demand(&pd, 100);
    let flags = AdviseMemoryRegionFlags::Flush;
    let ranges = [(&long, 10..(4 << 30)), (&short, 5..5), (&short, 90..100)];
    pd.advise_mr(MemoryRegionAdvice::PrefetchWrite, flags, &ranges).unwrap();
    let advised = fake.world.regions.advised.lock().unwrap().take().unwrap();
    let half = 1 << 31;
    let expected = vec![
        (0x1000 + 10, half, long.lkey()),
        (0x1000 + 10 + u64::from(half), half - 10, long.lkey()),
        (0x1000 + 90, 10, short.lkey()),
    ];
    assert_eq!(advised, (MemoryRegionAdvice::PrefetchWrite.raw(), 1, expected));
    for range in [0..101, 101..101, 100..101, std::ops::Range { start: 7, end: 6 }] {
        let error = pd.advise_mr(MemoryRegionAdvice::Prefetch, flags, &[(&long, 0..1), (&short, range)]);
        let error = error.unwrap_err();
        assert_error(&error, ErrorKind::OutOfBounds, &[("index", &1), ("region_len", &100)]);
    }
    // SoftRoCE would read beyond its record of such a region.
    let pinned = region(&pd, 100);
    let error = pd.advise_mr(MemoryRegionAdvice::Prefetch, flags, &[(&long, 0..1), (&pinned, 0..1)]);
    let error = error.unwrap_err();
    assert_error(&error, ErrorKind::InvalidArgument, &[("index", &1), ("access", &format!("{ACCESS:?}"))]);
    assert!(fake.world.regions.advised.lock().unwrap().is_none());
}

/// Changes all attributes of a region.
fn change(code: i32, errno: i32) -> (Fake, Result<MemoryRegion, ReregisterMemoryRegionError>) {
    let fake = Fake::lying(|l| l.rereg_mr = (code, errno));
    let pd = fake.pd();
    let mr = region(&pd, 64);
    // Must belong to the same context.
    let other = pd.context().alloc_pd().unwrap();
    let mut change = MemoryRegionChange::new();
    change.setup_translation(std::ptr::without_provenance_mut(0x8000), 128);
    change.setup_pd(&other).setup_access(ACCESS | AccessFlags::RemoteRead);
    // SAFETY: the fake device touches no memory.
    let result = unsafe { mr.rereg_mr(&change) };
    (fake, result)
}

fn assert_changed(region: &MemoryRegion) {
    assert_eq!((region.get_ptr().addr(), region.region_len(), region.iova()), (0x8000, 128, 0x8000));
    assert_eq!(region.access(), ACCESS | AccessFlags::RemoteRead);
    // SAFETY: the caller passes a live region, as C requires.
    let raw = unsafe { region.as_raw().read() };
    assert_eq!((region.lkey(), region.rkey()), (raw.lkey, raw.rkey));
    assert_eq!(raw.pd, region.pd().as_raw().as_ptr());
}

#[test]
fn a_change_is_seen() {
    let (fake, changed) = change(0, 0);
    let changed = changed.unwrap();
    assert_changed(&changed);
    drop(changed);
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["pd", "mr", "pd", "context"]);
}

#[test]
fn a_change_that_fails_says_what_is_left() {
    for code in [-1, -2] {
        let (_fake, result) = change(code, libc::EINVAL);
        let ReregisterMemoryRegionError::Unchanged { region, source } = result.unwrap_err() else { panic!() };
        assert_eq!((region.region_len(), source.raw_os_error()), (64, Some(libc::EINVAL)));
    }
    let (_fake, result) = change(-3, libc::ENOMEM);
    let error = result.unwrap_err();
    assert_says(&error, libc::ENOMEM);
    let ReregisterMemoryRegionError::Changed { region, .. } = error else { panic!("{error}") };
    assert_changed(&region);
    // Unknown codes are treated as the worst case.
    for code in [-4, -5, -6, 1, 77, i32::MIN] {
        let (fake, result) = change(code, libc::EBUSY);
        let error = result.unwrap_err();
        assert_says(&error, libc::EBUSY);
        let ReregisterMemoryRegionError::Unusable { region, .. } = error else { panic!("{error}") };
        assert_ne!(Some(region.pd().as_raw()), region.other_pd().map(ProtectionDomain::as_raw));
        region.close().unwrap();
        assert_eq!(fake.world.destroyed.lock().unwrap()[0], "mr", "before either domain");
    }
    let (_fake, result) = change(-4, libc::EOPNOTSUPP);
    let error = result.unwrap_err();
    assert!(
        error.to_string().starts_with("device fake0 has no change of memory regions (ibv_rereg_mr)"),
        "{error}"
    );
    assert!(matches!(error, ReregisterMemoryRegionError::Unsupported { .. }));
}

#[test]
fn a_change_that_makes_no_sense_is_not_tried() {
    let fake = Fake::lying(|l| l.rereg_mr = (77, libc::EIO));
    let pd = fake.pd();
    // SAFETY: the fake device touches no memory.
    unsafe {
        let error = region(&pd, 64).rereg_mr(&MemoryRegionChange::new()).unwrap_err();
        let ReregisterMemoryRegionError::Unchanged { region, source } = error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::InvalidInput);
        let mut foreign = MemoryRegionChange::new();
        foreign.setup_pd(&fake.context().alloc_pd().unwrap());
        let error = region.rereg_mr(&foreign).unwrap_err();
        assert!(matches!(error, ReregisterMemoryRegionError::OtherContext { .. }), "{error}");
        let mut access = MemoryRegionChange::new();
        access.setup_access(ACCESS);
        let dm = pd.context().alloc_dm(64, 0).unwrap();
        let error = pd.reg_dm_mr(&dm, 0, 64, ACCESS).unwrap().rereg_mr(&access).unwrap_err();
        assert!(matches!(error, ReregisterMemoryRegionError::Unchanged { .. }), "{error}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "leaks what cannot be destroyed")]
fn a_region_that_cannot_be_deregistered_keeps_its_dependencies() {
    let fake = Fake::lying(|l| l.destroy = libc::EBUSY).may_leak();
    let context = fake.context();
    let dm = context.alloc_dm(64, 0).unwrap();
    drop(context.alloc_pd().unwrap().reg_dm_mr(&dm, 0, 64, ACCESS).unwrap());
    drop(dm);
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"]);
    let fake = Fake::lying(|l| l.destroy = libc::EBUSY).may_leak();
    drop(fake.pd().alloc_null_mr().unwrap());
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"]);
}

#[test]
fn borrowed_memory_is_registered_for_a_call() {
    let fake = Fake::new();
    let pd = fake.pd();
    let mut bytes = [7; 64];
    let at = bytes.as_mut_ptr();
    let answer = pd.reg_mr_scoped(&mut bytes, ACCESS, |mr| {
        assert_eq!((mr.get_ptr(), mr.region_len()), (at, 64));
        assert!(fake.world.destroyed.lock().unwrap().is_empty());
        // SAFETY: the write is within the memory, through the region's pointer.
        unsafe { mr.get_ptr().write_volatile(8) };
        42
    });
    assert_eq!((answer.unwrap(), bytes[0], bytes[1]), (42, 8, 7));
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"]);
}

#[test]
fn borrowed_memory_comes_back_from_a_panic() {
    let fake = Fake::new();
    let pd = fake.pd();
    let mut bytes = [7; 64];
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = pd.reg_mr_scoped(&mut bytes, ACCESS, |_| panic!("in the midst of it"));
    }));
    assert!(caught.is_err());
    assert_eq!((*fake.world.destroyed.lock().unwrap()).as_slice(), ["mr"]);
    assert_eq!(bytes, [7; 64]);
}

#[test]
fn a_device_that_is_busy_gives_borrowed_memory_back_in_the_end() {
    let fake = Fake::new();
    fake.world.refused_deregistrations.store(4, Relaxed);
    fake.pd().reg_mr_scoped(&mut [0; 64], ACCESS, |_| ()).unwrap();
    assert_eq!(fake.world.destroyed.lock().unwrap().iter().filter(|what| **what == "mr").count(), 5);
}

#[test]
#[cfg_attr(miri, ignore = "asks the system for its limits")]
fn impossible_registrations_are_refused_without_a_call() {
    let fake = Fake::lying(|l| l.reg_mr = libc::EFAULT);
    let result = fake.pd().reg_mr_scoped(&mut [0; 64], ACCESS, |_| unreachable!());
    assert_says(&result.unwrap_err(), libc::EFAULT);
}

/// No device accepts these permissions, and the error says what they need.
#[test]
#[cfg_attr(miri, ignore = "asks the system for its limits")]
fn remote_writing_without_local_writing_is_explained() {
    let fake = Fake::lying(|l| l.reg_mr = libc::EINVAL);
    let register = |access: AccessFlags| {
        fake.pd().reg_mr_scoped(&mut [0; 64], access, |_| unreachable!()).unwrap_err().to_string()
    };
    for (access, name) in [
        (AccessFlags::RemoteAtomic | AccessFlags::RemoteRead, "RemoteAtomic"),
        (AccessFlags::RemoteWrite, "RemoteWrite"),
    ] {
        let text = register(access);
        let expected = format!("; AccessFlags[{name}] needs LocalWrite in addition");
        assert!(text.ends_with(&expected), "{text}");
        assert!(!register(access | AccessFlags::LocalWrite).contains("in addition"));
    }
    assert!(!register(AccessFlags::RemoteRead).contains("in addition"));
}

/// Borrowed memory that the device does not release can be neither returned nor leaked.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn borrowed_memory_that_the_device_keeps_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    const CHILD: &str = "SIDEWAY_TEST_KEEPS_BORROWED_MEMORY";
    if let Some(errno) = std::env::var_os(CHILD) {
        let errno = errno.to_string_lossy().parse().unwrap();
        let fake = Fake::lying(|l| l.destroy = errno).may_leak();
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `none` is a local variable, which the call only reads.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
        let _ = fake.pd().reg_mr_scoped(&mut [0; 64], ACCESS, |_| ());
        return;
    }
    for errno in [libc::EBUSY, libc::EIO] {
        let name = "fake::regions::borrowed_memory_that_the_device_keeps_ends_the_process";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, errno.to_string())
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("borrowed memory"), "{output:?}");
    }
}
