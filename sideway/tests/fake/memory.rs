//! Tests of memory that is owned with its registration: it is freed after deregistration, or never.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sideway::ibverbs::AccessFlags;
use sideway::memory::{Buffer, BufferKind};

use super::support::counting_allocator::live_bytes_after;
use super::support::fake::Fake;

const LEN: usize = 3 * 4096;

const KINDS: &[BufferKind] =
    if cfg!(miri) { &[BufferKind::Private] } else { &[BufferKind::Private, BufferKind::Shared] };

/// Accesses both ends of memory that must still exist.
fn touch(start: *mut u8) {
    // SAFETY: the caller got the memory back just now; if it were freed, Miri or a fault would show
    // it.
    unsafe {
        start.write_volatile(1);
        start.add(LEN - 1).write_volatile(2);
        assert_eq!((start.read_volatile(), start.add(LEN - 1).read_volatile()), (1, 2));
    }
}

/// Serialises the tests with shared memory, because one test's mapping could reuse the address of
/// another's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether shared memory is mapped at this address.
fn is_mapped(start: *mut u8) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:sideway")).any(|line| {
        let range = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [from, to] = [range.0, range.1].map(|text| usize::from_str_radix(text, 16).unwrap());
        (from..to).contains(&start.addr())
    })
}

#[test]
fn a_registered_buffer_is_all_of_its_buffer() {
    let _alone = alone();
    let fake = Fake::new();
    let pd = fake.pd();
    for &kind in KINDS {
        let buffer = Buffer::new(kind, LEN).unwrap();
        let start = buffer.as_ptr();
        let memory = pd.reg_buffer(buffer, AccessFlags::LocalWrite).unwrap();
        assert_eq!((memory.as_ptr(), memory.len(), memory.buffer().kind()), (start, LEN, kind));
        assert_eq!((memory.region().get_ptr(), memory.region().region_len()), (start, LEN));
        assert_eq!((memory.lkey(), memory.rkey()), (memory.region().lkey(), memory.region().rkey()));
        touch(start);
        let buffer = memory.close().unwrap();
        assert_eq!(buffer.as_ptr(), start);
        touch(start);
    }
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"; 2][..KINDS.len()]);
}

#[test]
fn memory_goes_after_its_registration() {
    let _alone = alone();
    let fake = Fake::new();
    let pd = fake.pd();
    for &kind in KINDS {
        let (live, start) = live_bytes_after(|| {
            let memory = pd.reg_buffer(Buffer::new(kind, LEN).unwrap(), AccessFlags::LocalWrite).unwrap();
            memory.as_ptr()
        });
        assert!(live < LEN as i64, "{kind:?}: {live} bytes are left");
        if kind == BufferKind::Shared {
            assert!(!is_mapped(start));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no getrlimit")]
fn memory_that_cannot_be_registered_is_freed() {
    let _alone = alone();
    let fake = Fake::lying(|lies| lies.reg_mr = libc::ENODEV);
    let pd = fake.pd();
    for &kind in KINDS {
        let buffer = Buffer::new(kind, LEN).unwrap();
        let start = buffer.as_ptr();
        let (live, error) =
            live_bytes_after(|| pd.reg_buffer(buffer, AccessFlags::LocalWrite).unwrap_err().to_string());
        assert!(error.contains(&format!("{LEN} bytes")), "{error}");
        match kind {
            BufferKind::Private => assert!(live <= -(LEN as i64) + 4096, "{live}"),
            _ => assert!(!is_mapped(start)),
        }
    }
}

#[test]
fn a_device_that_is_busy_can_be_asked_again() {
    let _alone = alone();
    for &kind in KINDS {
        let fake = Fake::new();
        let pd = fake.pd();
        let memory = pd.reg_buffer(Buffer::new(kind, LEN).unwrap(), AccessFlags::LocalWrite).unwrap();
        let (start, rkey) = (memory.as_ptr(), memory.rkey());
        fake.world.refused_deregistrations.store(2, Relaxed);
        let error = memory.close().unwrap_err();
        assert!(error.to_string().contains("stays registered"), "{error}");
        assert_eq!(error.error.errno(), Some(libc::EBUSY));
        assert_eq!((error.object.as_ptr(), error.object.rkey()), (start, rkey));
        touch(start);
        let error = error.object.close().unwrap_err();
        touch(start);
        assert_eq!(error.object.close().unwrap().as_ptr(), start);
    }
}

/// Memory that the device did not release is never reused. Otherwise a peer that was stopped in the
/// middle of a transfer could write to its next use.
#[test]
#[cfg_attr(miri, ignore = "leaks what cannot be deregistered")]
fn memory_that_the_device_keeps_is_leaked() {
    let _alone = alone();
    for kind in [BufferKind::Private, BufferKind::Shared] {
        let fake = Fake::new().may_leak();
        let pd = fake.pd();
        fake.world.refused_deregistrations.store(1, Relaxed);
        let mut file = None;
        let (live, start) = live_bytes_after(|| {
            let memory = pd.reg_buffer(Buffer::new(kind, LEN).unwrap(), AccessFlags::LocalWrite).unwrap();
            file = memory.buffer().file().map(|file| std::os::fd::AsRawFd::as_raw_fd(&file));
            memory.as_ptr()
        });
        // Deregistration was tried once, because a second attempt would wait as long again.
        assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"]);
        touch(start);
        match kind {
            BufferKind::Private => assert!(live >= LEN as i64, "{live}"),
            _ => {
                assert!(is_mapped(start));
                // The file is still open for a device that passes it on.
                let link = format!("/proc/self/fd/{}", file.unwrap());
                assert!(std::fs::read_link(link).unwrap().to_string_lossy().contains("memfd:sideway"));
            }
        }
        // The objects that the region depends on stay alive as well.
        drop(pd);
        assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"]);
    }
}
