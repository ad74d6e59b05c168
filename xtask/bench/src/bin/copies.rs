//! How fast processors copy, where there is nothing else to do: no frames, no credits, no calls. All print `SIZE COUNT GB/s RATE`, the
//! rate in messages a microsecond.
//!
//!     copies one SIZE COUNT
//!
//! is what a sender of blocks has to do at least: COUNT times SIZE bytes, from two blocks in turn to two others, by one process. A block that
//! is on its way is not filled meanwhile, so there are two; a benchmark that has one, and writes over what nobody has read, has half as
//! much in its caches.
//!
//!     copies two SIZE COUNT
//!
//! is what an interface that copies has to do at least: bytes of one process's own memory come into another's by one copy of each. It is done
//! once for each [way](WAYS) of using a ring that both have, and the best is printed. Both are always at it, and look for each other
//! without a pause.
//!
//!     copies three SIZE COUNT
//!
//! is the same where bytes come into memory of the other process before its program asks for them, so that it has to copy them once more.

use std::hint::{black_box, spin_loop};
use std::io;
use std::process::ExitCode;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// How one side puts bytes into the ring, and of what the ring consists.
#[derive(Clone, Copy)]
struct CopyMethod {
    past_caches: bool,
    piece: usize,
    places: usize,
}

/// Small rings stay in the caches, large ones let the sides run apart; past the caches the ring's lines need not be asked back from the
/// reader.
const METHODS: [CopyMethod; 6] = [
    CopyMethod { past_caches: false, piece: 16 << 10, places: 4 },
    CopyMethod { past_caches: false, piece: 16 << 10, places: 16 },
    CopyMethod { past_caches: false, piece: 64 << 10, places: 4 },
    CopyMethod { past_caches: true, piece: 16 << 10, places: 16 },
    CopyMethod { past_caches: true, piece: 64 << 10, places: 4 },
    CopyMethod { past_caches: true, piece: 256 << 10, places: 4 },
];
/// The two counters are in lines of their own, in front of the ring.
const GOT: usize = 128;
const RING: usize = 4096;
/// Whoever waits longer for the other side waits for nobody.
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

/// Memory that a process has from the system, all of it touched.
struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    /// `shared`: children have the same.
    fn new(len: usize, shared: bool) -> Result<Self> {
        let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, of no file, at an address of the system's choice.
        let start = unsafe { libc::mmap(null_mut(), len, protection, flags, -1, 0) };
        ensure!(start != libc::MAP_FAILED, "no memory of {len} bytes: {}", io::Error::last_os_error());
        // SAFETY: the mapping is this long, and nobody else has it yet. Written: else all of it would be the system's page of zeros.
        unsafe { start.cast::<u8>().write_bytes(1, len) };
        // The counters begin at 0.
        // SAFETY: every mapping here is a page long at least.
        unsafe { start.cast::<u8>().write_bytes(0, len.min(RING)) };
        Ok(Self { start: start.cast(), len })
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.len, "{offset} + {len} of {}", self.len);
        self.start.wrapping_add(offset)
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the page in front, aligned, and only used as what it is, by both processes, as long as the mapping is there.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing of it is used any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// How many seconds one process takes, after a part that does not count.
fn copy_in_one_process(size: usize, count: usize) -> Result<f64> {
    let (from, to) = (Mapping::new(2 * size, true)?, Mapping::new(2 * size, true)?);
    let copy = |count: usize| {
        let start = Instant::now();
        for number in 0..count {
            let at = number % 2 * size;
            // SAFETY: two mappings, of which nobody else has anything.
            unsafe { copy_nonoverlapping(from.at(at, size), to.at(at, size), size) };
            black_box(to.start);
        }
        start.elapsed().as_secs_f64()
    };
    copy(count / 10);
    Ok(copy(count))
}

/// How many seconds two processes take, the best way. `again`: what has come is copied once more.
fn copy_between_processes(size: usize, count: usize, again: bool) -> Result<f64> {
    let mut best = f64::INFINITY;
    for method in METHODS {
        best = best.min(run(CopyMethod { piece: method.piece.min(size), ..method }, size, count, again)?);
    }
    Ok(best)
}

/// How many seconds it takes.
fn run(method: CopyMethod, size: usize, count: usize, again: bool) -> Result<f64> {
    let shared = Mapping::new(RING + method.piece * method.places, true)?;
    let own = Mapping::new(size.max(RING), false)?;
    let between = again.then(|| Mapping::new(method.piece, false)).transpose()?;
    let pieces = (size / method.piece * count) as u64;
    // SAFETY: this process has one thread, so the child has all that it may need.
    let child = unsafe { libc::fork() };
    ensure!(child >= 0, "no other process: {}", io::Error::last_os_error());
    if child == 0 {
        let taken = read_pieces(method, &shared, between.as_ref(), &own, size, pieces);
        // SAFETY: the child ends here, without what its parent would do at its own end.
        unsafe { libc::_exit(i32::from(!taken)) };
    }
    let start = Instant::now();
    let given = write_pieces(method, &shared, &own, size, pieces);
    let took = start.elapsed().as_secs_f64();
    let mut status = 0;
    // SAFETY: the child is this process's, and waited for once.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ensure!(given && waited == child && status == 0, "the other process did not take all: status {status}");
    Ok(took)
}

/// Copies into the ring, and waits until all of it was taken.
fn write_pieces(method: CopyMethod, shared: &Mapping, own: &Mapping, size: usize, pieces: u64) -> bool {
    let (sent, got) = (shared.counter(0), shared.counter(GOT));
    for number in 0..pieces {
        if !wait(|| got.load(Acquire) + method.places as u64 > number) {
            return false;
        }
        let (to, from) = places(method, shared, own, size, number);
        if method.past_caches {
            // SAFETY: the other process has taken what was there; both ranges are this long and do not overlap.
            unsafe { copy_past_caches(to, from, method.piece) };
        } else {
            // SAFETY: as above.
            unsafe { copy_nonoverlapping(from, to, method.piece) };
        }
        sent.store(number + 1, Release);
    }
    wait(|| got.load(Acquire) == pieces)
}

/// Copies out of the ring, and through what is between, if there is something.
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
        // SAFETY: the other process has filled it and waits; both ranges are this long and do not overlap.
        unsafe { copy_nonoverlapping(from, first, method.piece) };
        got.store(number + 1, Release);
        if between.is_some() {
            // SAFETY: both are this process's alone, this long, and do not overlap.
            unsafe { copy_nonoverlapping(first, to, method.piece) };
        }
    }
    true
}

/// Where a piece is in the ring, and in a process's own memory.
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

/// Whether it comes true in time.
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
/// Both ranges are so long, a multiple of 64, do not overlap, and nobody writes to the first nor to the second.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_past_caches(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    for at in (0..len).step_by(16) {
        // SAFETY: within the ranges; the ring's pieces begin at multiples of 16.
        unsafe {
            let bytes = _mm_loadu_si128(from.wrapping_add(at).cast::<__m128i>());
            _mm_stream_si128(to.wrapping_add(at).cast::<__m128i>(), bytes);
        }
    }
    // SAFETY: every processor of this architecture has it.
    unsafe { _mm_sfence() };
}

/// # Safety
///
/// As the other one's.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_past_caches(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_nonoverlapping(from, to, len) };
}
