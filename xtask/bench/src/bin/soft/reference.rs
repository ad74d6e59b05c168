//! The references that the device is compared with; they need no device.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Pins this thread to the `number`th of the processors that the process could use at its start.
pub(crate) fn pin(number: usize) -> Result<()> {
    static ALLOWED: std::sync::OnceLock<Vec<usize>> = std::sync::OnceLock::new();
    let allowed = ALLOWED.get_or_init(|| {
        let set = std::env::var("BENCH_CPUS").unwrap_or_default();
        let mut allowed: Vec<usize> = set.split(',').filter_map(|cpu| cpu.parse().ok()).collect();
        if allowed.is_empty() {
            let set = sched_getaffinity(None::<Pid>).unwrap_or_else(|_| CpuSet::new());
            allowed = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
        }
        allowed
    });
    let cpu = *allowed.get(number % allowed.len().max(1)).context("no processor")?;
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None::<Pid>, &set)?;
    // Child processes may use the original set of processors.
    if number == 0 {
        let list: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        // SAFETY: the process has only one thread so far.
        unsafe { std::env::set_var("BENCH_CPUS", list.join(",")) };
    }
    Ok(())
}

/// Source and target of a copy.
pub(crate) struct CopyBuffers(Vec<u8>, std::cell::RefCell<Vec<u8>>);

impl CopyBuffers {
    pub(crate) fn new() -> Self {
        Self(vec![1; 1 << 20], std::cell::RefCell::new(vec![2; 1 << 20]))
    }

    /// The nanoseconds for a copy, which is not inlined.
    pub(crate) fn copies(&self, bytes: usize, count: u64) -> f64 {
        let mut to = self.1.borrow_mut();
        let start = Instant::now();
        for _ in 0..count {
            copy(black_box(&mut to[..bytes]), black_box(&self.0[..bytes]));
        }
        start.elapsed().as_nanos() as f64 / count as f64
    }
}

#[inline(never)]
fn copy(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

/// The nanoseconds for a cache line to travel from one processor to another.
pub(crate) fn cache_line(count: u64) -> Result<f64> {
    #[repr(align(128))]
    struct CacheLine(AtomicU64);
    let line = CacheLine(AtomicU64::new(0));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<()> {
            pin(1)?;
            for number in 0..count {
                while line.0.load(Acquire) != 2 * number + 1 {
                    spin_loop();
                }
                line.0.store(2 * number + 2, Release);
            }
            Ok(())
        });
        let start = Instant::now();
        for number in 0..count {
            line.0.store(2 * number + 1, Release);
            let mut spins = 0_u32;
            while line.0.load(Acquire) != 2 * number + 2 {
                spins += 1;
                ensure!(spins < 1 << 30, "the other thread does not answer");
                spin_loop();
            }
        }
        let took = start.elapsed().as_nanos() as f64 / count as f64 / 2.0;
        other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(took)
    })
}

/// The memory of the second process.
#[derive(Clone, Copy)]
pub(crate) struct PeerMemory {
    pub(crate) pid: i32,
    pub(crate) address: u64,
}

impl PeerMemory {
    /// The system call that the device makes for a write, with the same lists: the body, and the
    /// last 8 bytes after it, to one range.
    pub(crate) fn writes(self, from: *mut u8, bytes: usize, count: u64) -> Result<f64> {
        let (body, there) = (bytes - 8, self.address as usize);
        let range = |at: *mut u8, iov_len| libc::iovec { iov_base: at.cast(), iov_len };
        let local = [range(from, body), range(from.wrapping_add(body), 8)];
        let to = std::ptr::without_provenance_mut::<u8>(there);
        let remote = [range(to, bytes)];
        let start = Instant::now();
        for _ in 0..count {
            // SAFETY: the local ranges are in the caller's memory, to which nothing writes. The
            // remote ones are the second half of the other process's memory, which is reserved for
            // this.
            let copied =
                unsafe { libc::process_vm_writev(self.pid, local.as_ptr(), 2, remote.as_ptr(), 1, 0) };
            ensure!(copied == bytes as isize, "process_vm_writev: {}", std::io::Error::last_os_error());
        }
        Ok(start.elapsed().as_nanos() as f64 / count as f64)
    }
}
