//! The copy speed of the processors without any protocol: no frames, credits or calls. Each command
//! prints `SIZE COUNT GB/s RATE`, with the rate in messages per microsecond.
//!
//!     copies one SIZE COUNT
//!
//! is the least that a sender of blocks must do. One process copies COUNT times SIZE bytes from two
//! blocks in turn to two others. It uses two blocks because a block must not be refilled while it
//! is being sent. A benchmark that overwrites its one block before it is read touches half as much
//! memory.
//!
//!     copies two SIZE COUNT
//!
//! is the least that a copying interface must do. Bytes of one process's private memory reach
//! another's with one copy by each process. It runs once with each of the [methods](METHODS) of
//! using a shared ring, and prints the best result. Both processes busy-poll.
//!
//!     copies three SIZE COUNT
//!
//! is the same, but the bytes reach memory of the other process before its program asks for them.
//! Therefore that process copies them once more.

use std::hint::{black_box, spin_loop};
use std::io;
use std::process::ExitCode;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// How a process writes to the ring, and the ring's geometry.
#[derive(Clone, Copy)]
struct CopyMethod {
    past_caches: bool,
    piece: usize,
    places: usize,
}

/// Small rings stay in the caches; large ones let the two processes run further apart. With stores
/// past the caches the writer need not fetch the ring's lines back from the reader.
const METHODS: [CopyMethod; 6] = [
    CopyMethod { past_caches: false, piece: 16 << 10, places: 4 },
    CopyMethod { past_caches: false, piece: 16 << 10, places: 16 },
    CopyMethod { past_caches: false, piece: 64 << 10, places: 4 },
    CopyMethod { past_caches: true, piece: 16 << 10, places: 16 },
    CopyMethod { past_caches: true, piece: 64 << 10, places: 4 },
    CopyMethod { past_caches: true, piece: 256 << 10, places: 4 },
];
/// The offset of the second counter. Each counter has its own cache line, in front of the ring.
const GOT: usize = 128;
const RING: usize = 4096;
/// The time after which the other process is considered dead.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [what, size, count] = &words[..] else { bail!("usage: copies one|two|three SIZE COUNT") };
    let size: usize = size.parse().context("SIZE is a number of bytes")?;
    let count: usize = count.parse().context("COUNT is a number")?;
    ensure!(
        size.is_power_of_two() && (1 << 14..=1 << 24).contains(&size),
        "SIZE is a power of two from 16 KiB to 16 MiB"
    );
    let took = match what.as_str() {
        "one" => copy_in_one_process(size, count)?,
        "two" => copy_between_processes(size, count, false)?,
        "three" => copy_between_processes(size, count, true)?,
        _ => bail!("copies one, two or three"),
    };
    let rate = count as f64 / took / 1e6;
    println!("{size} {count} {:.3} {rate:.6}", rate * size as f64 / 1e3);
    Ok(ExitCode::SUCCESS)
}

/// Anonymous memory, with every page touched.
struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    /// With `shared`, child processes share the memory.
    fn new(len: usize, shared: bool) -> Result<Self> {
        let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(null_mut(), len, protection, flags, -1, 0) };
        ensure!(start != libc::MAP_FAILED, "cannot map {len} bytes: {}", io::Error::last_os_error());
        // SAFETY: the mapping is this long, and nothing else uses it yet. Without a write every
        // page would be the kernel's page of zeros.
        unsafe { start.cast::<u8>().write_bytes(1, len) };
        // The counters start at 0. SAFETY: every mapping here has at least one page, and nothing
        // else uses it yet.
        unsafe { start.cast::<u8>().write_bytes(0, len.min(RING)) };
        Ok(Self { start: start.cast(), len })
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.len, "{offset} + {len} of {}", self.len);
        self.start.wrapping_add(offset)
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the first page, aligned, and accessed only as an atomic by both processes
        // while the mapping exists.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// The seconds that one process needs, after a warm-up.
fn copy_in_one_process(size: usize, count: usize) -> Result<f64> {
    let (from, to) = (Mapping::new(2 * size, true)?, Mapping::new(2 * size, true)?);
    let copy = |count: usize| {
        let start = Instant::now();
        for number in 0..count {
            let at = number % 2 * size;
            // SAFETY: the ranges are in two mappings that only this function uses.
            unsafe { copy_nonoverlapping(from.at(at, size), to.at(at, size), size) };
            black_box(to.start);
        }
        start.elapsed().as_secs_f64()
    };
    copy(count / 10);
    Ok(copy(count))
}

/// The seconds that two processes need with the fastest method. With `again` the reader copies the
/// bytes once more.
fn copy_between_processes(size: usize, count: usize, again: bool) -> Result<f64> {
    let mut best = f64::INFINITY;
    for method in METHODS {
        best = best.min(run(CopyMethod { piece: method.piece.min(size), ..method }, size, count, again)?);
    }
    Ok(best)
}

/// The seconds for one method.
fn run(method: CopyMethod, size: usize, count: usize, again: bool) -> Result<f64> {
    let shared = Mapping::new(RING + method.piece * method.places, true)?;
    let own = Mapping::new(size.max(RING), false)?;
    let between = again.then(|| Mapping::new(method.piece, false)).transpose()?;
    let pieces = (size / method.piece * count) as u64;
    // SAFETY: this process has one thread, so that no lock is held in the child.
    let child = unsafe { libc::fork() };
    ensure!(child >= 0, "cannot start the other process: {}", io::Error::last_os_error());
    if child == 0 {
        let taken = read_pieces(method, &shared, between.as_ref(), &own, size, pieces);
        // SAFETY: the child ends here and skips the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!taken)) };
    }
    let start = Instant::now();
    let given = write_pieces(method, &shared, &own, size, pieces);
    let took = start.elapsed().as_secs_f64();
    let mut status = 0;
    // SAFETY: the child belongs to this process, and is waited for once.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ensure!(
        given && waited == child && status == 0,
        "the other process did not read all bytes: status {status}"
    );
    Ok(took)
}

/// Copies into the ring, and waits until the reader has taken all of it.
fn write_pieces(method: CopyMethod, shared: &Mapping, own: &Mapping, size: usize, pieces: u64) -> bool {
    let (sent, got) = (shared.counter(0), shared.counter(GOT));
    for number in 0..pieces {
        if !wait(|| got.load(Acquire) + method.places as u64 > number) {
            return false;
        }
        let (to, from) = places(method, shared, own, size, number);
        if method.past_caches {
            // SAFETY: the counter says that the reader has taken the previous bytes. Both ranges
            // have this length and do not overlap.
            unsafe { copy_past_caches(to, from, method.piece) };
        } else {
            // SAFETY: the counter says that the reader has taken the previous bytes. Both ranges
            // have this length and do not overlap.
            unsafe { copy_nonoverlapping(from, to, method.piece) };
        }
        sent.store(number + 1, Release);
    }
    wait(|| got.load(Acquire) == pieces)
}

/// Copies out of the ring, through the intermediate memory if any.
fn read_pieces(
    method: CopyMethod,
    shared: &Mapping,
    between: Option<&Mapping>,
    own: &Mapping,
    size: usize,
    pieces: u64,
) -> bool {
    let (sent, got) = (shared.counter(0), shared.counter(GOT));
    for number in 0..pieces {
        if !wait(|| sent.load(Acquire) > number) {
            return false;
        }
        let (from, to) = places(method, shared, own, size, number);
        let first = between.map_or(to, |between| between.at(0, method.piece));
        // SAFETY: the counter says that the writer has filled the range and does not touch it. Both
        // ranges have this length and do not overlap.
        unsafe { copy_nonoverlapping(from, first, method.piece) };
        got.store(number + 1, Release);
        if between.is_some() {
            // SAFETY: only this process uses both ranges. They have this length and do not overlap.
            unsafe { copy_nonoverlapping(first, to, method.piece) };
        }
    }
    true
}

/// The position of a piece in the ring and in the process's private memory.
fn places(
    method: CopyMethod,
    shared: &Mapping,
    own: &Mapping,
    size: usize,
    number: u64,
) -> (*mut u8, *mut u8) {
    let number = number as usize;
    let ring = shared.at(RING + number % method.places * method.piece, method.piece);
    (ring, own.at(number * method.piece % size, method.piece))
}

/// Polls until the condition is true; false after the time limit.
fn wait(done: impl Fn() -> bool) -> bool {
    let mut since = None;
    loop {
        for _ in 0..10_000 {
            if done() {
                return true;
            }
            spin_loop();
        }
        if since.get_or_insert_with(Instant::now).elapsed() > WAIT_LIMIT {
            return false;
        }
    }
}

/// # Safety
///
/// - Both ranges have `len` bytes, a multiple of 64, and do not overlap.
/// - No other process writes to either of them during the call.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_past_caches(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    for at in (0..len).step_by(16) {
        // SAFETY: the accesses stay within the ranges (`# Safety`). The ring's pieces begin at
        // multiples of 16, as the instruction requires.
        unsafe {
            let bytes = _mm_loadu_si128(from.wrapping_add(at).cast::<__m128i>());
            _mm_stream_si128(to.wrapping_add(at).cast::<__m128i>(), bytes);
        }
    }
    // SAFETY: every x86-64 processor has this instruction.
    unsafe { _mm_sfence() };
}

/// # Safety
///
/// - Both ranges have `len` bytes, a multiple of 64, and do not overlap.
/// - No other process writes to either of them during the call.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_past_caches(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: both ranges have `len` bytes and do not overlap (`# Safety`).
    unsafe { copy_nonoverlapping(from, to, len) };
}
