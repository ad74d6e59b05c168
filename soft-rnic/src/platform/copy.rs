//! Payload copies: the one place where this process moves the bytes of a message.
//!
//! Other threads and other processes may read and write payload at any time, and programs do poll for its last byte. So it
//! is reached by raw pointers only, moved by the C library, and ends with an *ordered tail*: up to eight bytes, naturally
//! aligned, that one release store makes visible after everything before. `docs/soft-rnic-ordering.md` says why that is
//! enough.
//!
//! A race on payload is the program's own affair, as it is with hardware: it gets some mixture of the bytes. Nothing
//! here depends on what they are. Miri cannot see into the C library; it gets atomics byte by byte, and as it lets
//! nobody make an atomic of what a plain shared reference points to, its tests register memory by mutable pointers.
//!
//! The atomics are the processor's, also under loom: payload is no part of its models.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// How many bytes the ordered tail of a message has that ends `len` bytes after the address `dst`: the largest of
/// 1, 2, 4 and 8 that the message has room for and its end is a multiple of; 0 for no message.
///
/// `process_vm_*` transfers split here as well: the tail is a part of its own, behind the body.
#[inline]
pub(crate) fn tail_len(dst: usize, len: usize) -> usize {
    let end = dst.wrapping_add(len);
    // The lowest bit of the end that is set, or of 8; and the highest bit of the length that is set, or of 8.
    let aligned = 1 << (end | 8).trailing_zeros();
    let fits = 1 << (len.clamp(1, 8)).ilog2();
    if len == 0 { 0 } else { usize::min(aligned, fits) }
}

/// Copies a message, or the last part of one that is not empty: the body, then the ordered tail.
///
/// Whoever sees the last byte sees everything that this thread wrote before, so also the parts that
/// [`copy_unordered`] has copied. A message of 1, 2, 4 or 8 bytes at a multiple of its size is a single store. The two
/// ranges may overlap.
///
/// # Safety
///
/// - `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes, until this returns. They need no
///   alignment, and may be any pointer if `len` is 0.
/// - No reference to any of these bytes is used meanwhile, but for atomics. Accesses by raw pointers, other threads and
///   other processes may go on.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    if len >= WORD && dst.addr().wrapping_add(len).is_multiple_of(WORD) {
        // What nearly every message is.
        // SAFETY: `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes,
        // until this returns. They need no alignment, and may be any pointer if `len` is 0; No
        // reference to any of these bytes is used meanwhile, but for atomics. Accesses by raw
        // pointers, other threads and other processes may go on, by the contract of `copy`, of
        // whose bytes the tail is the last; it is aligned, as was just seen.
        return unsafe { copy_with_tail::<u64>(dst, src, len - WORD) };
    }
    let tail = tail_len(dst.addr(), len);
    debug_assert!(tail < WORD, "that was seen above");
    let body = len - tail;
    // SAFETY: `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes, until
    // this returns. They need no alignment, and may be any pointer if `len` is 0; No reference to
    // any of these bytes is used meanwhile, but for atomics. Accesses by raw pointers, other
    // threads and other processes may go on, by the contract of `copy`, of whose bytes the tail is
    // the last; `tail_len` has seen to its alignment.
    unsafe {
        match tail {
            4 => copy_with_tail::<u32>(dst, src, body),
            2 => copy_with_tail::<u16>(dst, src, body),
            1 => copy_with_tail::<u8>(dst, src, body),
            _ => {}
        }
    }
}

/// # Safety
///
/// As for [`copy`], with `body` bytes and a word; the word's place, `dst + body`, is a multiple of its size.
#[inline(always)]
unsafe fn copy_with_tail<W: TailWord>(dst: *mut u8, src: *const u8, body: usize) {
    // SAFETY: `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes, until
    // this returns. They need no alignment, and may be any pointer if `len` is 0; No reference to
    // any of these bytes is used meanwhile, but for atomics. Accesses by raw pointers, other
    // threads and other processes may go on, by the contract of `copy`, which `copy_with_tail`
    // shares.
    unsafe {
        // The tail is read first: where the ranges overlap, the body may be about to replace it.
        let tail = W::load(src.add(body));
        move_bytes(dst, src, body);
        tail.store(dst.add(body), body == 0);
    }
}

/// Copies bytes in any order: a part of a message that is not the last, or what a completion will tell of. The ranges may
/// overlap.
///
/// # Safety
///
/// As for [`copy`].
#[inline]
pub(crate) unsafe fn copy_unordered(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes, until
    // this returns. They need no alignment, and may be any pointer if `len` is 0; No reference to
    // any of these bytes is used meanwhile, but for atomics. Accesses by raw pointers, other
    // threads and other processes may go on, by the contract of `copy`, which `copy_unordered`
    // shares.
    unsafe { move_bytes(dst, src, len) }
}

/// Bytes of a line of the caches.
pub(crate) const LINE: usize = 64;

/// From so many bytes on a message that another processor is about to read is [streamed](copy_streamed).
pub(crate) const STREAMED: usize = 1024;

/// Copies bytes past the caches, for another processor that reads them next, in any order; they are there before whatever is stored
/// afterwards. Where the ranges overlap, what comes is some mixture.
///
/// What the other has read before lies in its caches, and to write there again costs a message between the processors for each line, one
/// after the other: 28 ns each on some, 2 GB/s. Stores that go past the caches need no answer.
///
/// # Safety
///
/// As for [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn copy_streamed(dst: *mut u8, src: *const u8, len: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    let head = dst.align_offset(LINE).min(len);
    let rest = (len - head) % LINE;
    // As long as all of a line is stored at once, nothing of it has to be read.
    // SAFETY: all of it is within the two ranges, by the caller's promise; a line of the destination begins at a multiple of its size.
    unsafe {
        move_bytes(dst, src, head);
        for line in (head..len - rest).step_by(LINE) {
            for at in (line..line + LINE).step_by(size_of::<__m128i>()) {
                _mm_stream_si128(dst.add(at).cast(), _mm_loadu_si128(src.add(at).cast()));
            }
        }
        move_bytes(dst.add(len - rest), src.add(len - rest), rest);
        // Unlike other stores these are not ordered by themselves.
        _mm_sfence();
    }
}

/// Copies bytes for another processor that reads them next.
///
/// # Safety
///
/// As for [`copy`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn copy_streamed(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes, until
    // this returns. They need no alignment, and may be any pointer if `len` is 0; No reference to
    // any of these bytes is used meanwhile, but for atomics. Accesses by raw pointers, other
    // threads and other processes may go on, by the contract of `copy`, which `copy_streamed`
    // shares.
    unsafe { move_bytes(dst, src, len) }
}

/// Has this processor's caches get so many lines of memory, for reading them soon. A hint, which changes nothing.
#[inline]
pub(crate) fn fetch_to_read(at: *const u8, lines: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..lines {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: an instruction that faults nowhere, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line * LINE).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (at, lines);
}

/// Has this processor's caches get so many lines of memory that another one has used, for writing to them later: else the writes would wait
/// for each. A hint, which changes nothing.
#[inline]
pub(crate) fn fetch_to_write(at: *const u8, lines: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..lines {
        let at = at.wrapping_add(line * LINE);
        // SAFETY: an instruction that faults nowhere, whatever the address; processors that do not have it do nothing.
        unsafe { core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (at, lines);
}

/// Adds to a word of payload, for `IBV_WR_ATOMIC_FETCH_AND_ADD`; gives back what was there.
///
/// # Safety
///
/// - `target` is a multiple of 8 and valid for reads and writes of 8 bytes, until this returns.
/// - No reference to any of these bytes is used meanwhile, but for atomics.
#[inline]
pub(crate) unsafe fn fetch_and_add(target: *mut u64, add: u64) -> u64 {
    // SAFETY: `target` is a multiple of 8 and valid for reads and writes of 8 bytes, until this
    // returns; No reference to any of these bytes is used meanwhile, but for atomics, by the
    // contract of `fetch_and_add`.
    unsafe { AtomicU64::from_ptr(target) }.fetch_add(add, AcqRel)
}

/// Puts `swap` in the place of `compare`, for `IBV_WR_ATOMIC_CMP_AND_SWP`; gives back what was there.
///
/// # Safety
///
/// As for [`fetch_and_add`].
#[inline]
pub(crate) unsafe fn compare_and_swap(target: *mut u64, compare: u64, swap: u64) -> u64 {
    // SAFETY: `target` is a multiple of 8 and valid for reads and writes of 8 bytes, until this
    // returns; No reference to any of these bytes is used meanwhile, but for atomics, by the
    // contract of `fetch_and_add`, which `compare_and_swap` shares.
    match unsafe { AtomicU64::from_ptr(target) }.compare_exchange(compare, swap, AcqRel, Acquire) {
        Ok(there) | Err(there) => there,
    }
}

/// Stores eight bytes at once, behind everything that was stored before.
///
/// # Safety
///
/// `target` is valid for writes, aligned, and for as long as this takes nobody accesses it other than by copies of this
/// module, other atomics, or another process.
pub(crate) unsafe fn atomic_store(target: *mut u64, value: u64) {
    // SAFETY: `target` is valid for writes, aligned, and for as long as this takes nobody accesses
    // it other than by copies of this module, other atomics, or another process, by the contract of
    // `atomic_store`.
    unsafe { AtomicU64::from_ptr(target) }.store(value, Release);
}

/// What a tail can be.
trait TailWord: Sized {
    /// # Safety
    ///
    /// Valid for reads of a word, as [`copy`] asks. One access if it is aligned.
    unsafe fn load(src: *const u8) -> Self;

    /// Behind everything else. `alone` if the message is this word and no more.
    ///
    /// # Safety
    ///
    /// Aligned, and valid for writes of a word, as [`copy`] asks.
    unsafe fn store(self, dst: *mut u8, alone: bool);
}

macro_rules! word {
    ($TailWord:ty, $Atomic:ty) => {
        #[cfg(not(miri))]
        impl TailWord for $TailWord {
            #[inline(always)]
            unsafe fn load(src: *const u8) -> Self {
                // SAFETY: Valid for reads of a word, as [`copy`] asks. One access if it is aligned,
                // by the contract of the C function `load`; the processor's atomics read read-only
                // memory as well.
                unsafe {
                    if src.addr().is_multiple_of(size_of::<Self>()) {
                        return <$Atomic>::from_ptr(src.cast_mut().cast()).load(Relaxed);
                    }
                    let mut word: Self = 0;
                    libc::memcpy((&raw mut word).cast(), src.cast(), size_of::<Self>());
                    word
                }
            }

            #[inline(always)]
            unsafe fn store(self, dst: *mut u8, _alone: bool) {
                // SAFETY: aligned, and valid for writes of a word, as [`copy`] asks, by the
                // contract of the C function `store`.
                unsafe { <$Atomic>::from_ptr(dst.cast()).store(self, Release) };
            }
        }

        // Miri knows no access of one size that races with one of another. So a message that is a single word is
        // stored as that word, every other one byte by byte.
        #[cfg(miri)]
        impl TailWord for $TailWord {
            unsafe fn load(src: *const u8) -> Self {
                // SAFETY: valid for reads of a word, by the contract of `copy`.
                let byte = |at| unsafe { AtomicU8::from_ptr(src.add(at).cast_mut()).load(Relaxed) };
                Self::from_ne_bytes(core::array::from_fn(byte))
            }

            unsafe fn store(self, dst: *mut u8, alone: bool) {
                // SAFETY: aligned, and valid for writes of a word, as [`copy`] asks, by the
                // contract of the C function `store`.
                unsafe {
                    if alone {
                        return <$Atomic>::from_ptr(dst.cast()).store(self, Release);
                    }
                    for (at, byte) in self.to_ne_bytes().into_iter().enumerate() {
                        AtomicU8::from_ptr(dst.add(at)).store(byte, Release);
                    }
                }
            }
        }
    };
}

word!(u8, AtomicU8);
word!(u16, AtomicU16);
word!(u32, AtomicU32);
word!(u64, AtomicU64);

/// # Safety
///
/// As for [`copy`].
#[cfg(not(miri))]
#[inline]
unsafe fn move_bytes(dst: *mut u8, src: *const u8, len: usize) {
    // Of a destination before the source, it is more than there is of memory: there pieces may overlap.
    let ahead = dst.addr().wrapping_sub(src.addr());
    // SAFETY: `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes, until
    // this returns. They need no alignment, and may be any pointer if `len` is 0; No reference to
    // any of these bytes is used meanwhile, but for atomics. Accesses by raw pointers, other
    // threads and other processes may go on, by the contract of `copy`, which `move_bytes` shares.
    unsafe {
        if len > SHORT && (1..NEAR).contains(&(ahead % PAGE)) && ahead >= len {
            move_in_pieces(dst, src, len);
        } else {
            // Not memcpy: a work request may name overlapping ranges, and in glibc the two are the same code.
            libc::memmove(dst.cast(), src.cast(), len);
        }
    }
}

/// What the C library takes for short, whichever vectors it uses.
#[cfg(not(miri))]
const SHORT: usize = 2048;
/// Within how many bytes behind the source, counted within a page, the instruction is slow by which it copies what is long (`rep movsb`), on AMD's
/// Zen 3 and 4 many times. It was seen up to 15.
#[cfg(not(miri))]
const NEAR: usize = 64;
#[cfg(not(miri))]
const PAGE: usize = 4096;

/// Copies by what the C library has for short copies.
///
/// # Safety
///
/// As for [`copy`], and the destination does not begin within the source.
#[cfg(not(miri))]
#[inline(never)]
unsafe fn move_in_pieces(dst: *mut u8, src: *const u8, len: usize) {
    for at in (0..len).step_by(SHORT) {
        // SAFETY: `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes,
        // until this returns. They need no alignment, and may be any pointer if `len` is 0; No
        // reference to any of these bytes is used meanwhile, but for atomics. Accesses by raw
        // pointers, other threads and other processes may go on, by the contract of `copy`, which
        // `move_in_pieces` shares, of a part of the ranges.
        unsafe { libc::memmove(dst.add(at).cast(), src.add(at).cast(), SHORT.min(len - at)) };
    }
}

/// # Safety
///
/// As for [`copy`].
#[cfg(miri)]
unsafe fn move_bytes(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes, until
    // this returns. They need no alignment, and may be any pointer if `len` is 0; No reference to
    // any of these bytes is used meanwhile, but for atomics. Accesses by raw pointers, other
    // threads and other processes may go on, by the contract of `copy`, which `move_bytes` shares.
    let byte = |at| unsafe { AtomicU8::from_ptr(src.add(at).cast_mut()).load(Relaxed) };
    // By way of a buffer, because the ranges may overlap.
    let bytes: Vec<u8> = (0..len).map(byte).collect();
    for (at, byte) in bytes.into_iter().enumerate() {
        // SAFETY: `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes,
        // until this returns. They need no alignment, and may be any pointer if `len` is 0; No
        // reference to any of these bytes is used meanwhile, but for atomics. Accesses by raw
        // pointers, other threads and other processes may go on, by the contract of `copy`, which
        // `move_bytes` shares.
        unsafe { AtomicU8::from_ptr(dst.add(at)).store(byte, Relaxed) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What `copy` has to do, one byte after the other.
    fn model(memory: &mut [u8], dst: usize, src: usize, len: usize) {
        memory.copy_within(src..src + len, dst);
    }

    #[test]
    #[cfg(not(miri))]
    fn overlapping_forward_copy_is_whole() {
        const LEN: usize = 3 * PAGE;
        for ahead in [0, 1, 8, 63, 64, SHORT, PAGE + 8, LEN - 1, LEN, LEN + 8, LEN + PAGE + 1] {
            for len in [SHORT, SHORT + 1, 2 * SHORT, PAGE + 8, LEN] {
                // Forwards and backwards, so that ranges overlap either way.
                for (dst, src) in [(ahead, 0), (0, ahead)] {
                    let mut memory: Vec<u8> = (0..2 * LEN + 2 * PAGE).map(|at| (at / 3) as u8).collect();
                    let mut wanted = memory.clone();
                    model(&mut wanted, dst, src, len);
                    let start = memory.as_mut_ptr();
                    // SAFETY: both ranges are within the vector, which nobody else uses.
                    unsafe { copy_unordered(start.add(dst), start.add(src), len) };
                    assert!(memory == wanted, "{len} bytes from {src} to {dst}");
                }
            }
        }
    }

    #[test]
    fn streamed_copy_writes_every_byte_and_no_other() {
        let mut from: Vec<u8> = (0..400u16).map(|n| n as u8 | 1).collect();
        let starts = if cfg!(miri) { 0..3 } else { 0..70 };
        for (at, len) in starts.flat_map(|at| [0, 1, 63, 64, 65, 128, 300].map(|len| (at, len))) {
            let mut to = vec![0; 400];
            // SAFETY: both have more bytes than that.
            unsafe { copy_streamed(to[at..].as_mut_ptr(), from[7..].as_mut_ptr(), len) };
            let expected: Vec<u8> = [&vec![0; at][..], &from[7..7 + len], &vec![0; 400 - at - len]].concat();
            assert_eq!(to, expected, "{len} bytes at {at}");
        }
    }

    #[test]
    fn a_tail_is_aligned_fits_and_is_as_long_as_it_can_be() {
        for dst in 0..32 {
            for len in 0..40 {
                let tail = tail_len(dst, len);
                let can_be = |tail: &usize| *tail <= len && (dst + len).is_multiple_of(*tail);
                assert_eq!(tail, [8, 4, 2, 1].into_iter().find(can_be).unwrap_or(0), "{len} at {dst}");
            }
        }
        assert_eq!(tail_len(usize::MAX - 7, 8), 8, "the last word of the address space");
    }

    #[test]
    fn every_alignment_and_overlap_is_copied_as_a_whole() {
        const SIZE: usize = 96;
        for len in (0..48).step_by(if cfg!(miri) { 7 } else { 1 }) {
            for dst in (0..SIZE - 48).step_by(if cfg!(miri) { 17 } else { 1 }) {
                for src in (0..SIZE - 48).step_by(if cfg!(miri) { 11 } else { 1 }) {
                    let mut memory: [u8; SIZE] = core::array::from_fn(|at| at as u8 ^ 0x5a);
                    let mut expected = memory;
                    model(&mut expected, dst, src, len);
                    let base = memory.as_mut_ptr();
                    // SAFETY: both ranges lie in `memory`, to which there is no other reference.
                    unsafe { copy(base.add(dst), base.add(src), len) };
                    assert_eq!(memory, expected, "{len} bytes from {src} to {dst}");
                }
            }
        }
    }

    #[test]
    fn unordered_copies_are_whole_as_well() {
        let mut source: [u8; 64] = core::array::from_fn(|at| at as u8 + 1);
        for len in (0..=64).step_by(if cfg!(miri) { 16 } else { 1 }) {
            let mut memory = [0u8; 64];
            // SAFETY: both arrays have 64 bytes.
            unsafe { copy_unordered(memory.as_mut_ptr(), source.as_mut_ptr(), len) };
            assert_eq!(memory[..len], source[..len]);
            assert!(memory[len..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn nothing_is_copied_from_nowhere() {
        let nowhere = core::ptr::null_mut::<u8>();
        // SAFETY: no bytes.
        unsafe { copy(nowhere, nowhere, 0) };
    }

    #[test]
    fn atomics_give_back_what_was_there() {
        let mut word = u64::MAX;
        let target = &raw mut word;
        // SAFETY: `word` is aligned and nobody else's.
        unsafe {
            assert_eq!(fetch_and_add(target, 3), u64::MAX);
            assert_eq!(compare_and_swap(target, 1, 9), 2, "not the same: nothing is stored");
            assert_eq!(compare_and_swap(target, 2, 9), 2);
            assert_eq!(fetch_and_add(target, 0), 9);
        }
    }

    /// Under Miri, which delays stores as a weak processor does, and as a check that this processor agrees.
    #[test]
    fn the_last_byte_brings_the_rest() {
        const PIECE: usize = 24;
        const LEN: usize = PIECE + 21;
        let rounds = if cfg!(miri) { 3 } else { 1000 };
        let mut seen = 0;
        for _ in 0..rounds {
            let mut message = [7u8; LEN];
            let memory = [const { AtomicU8::new(0) }; LEN];
            let (src, dst) = (message.as_mut_ptr(), memory.as_ptr().cast_mut().cast::<u8>());
            std::thread::scope(|scope| {
                let poller = scope.spawn(|| {
                    let last = || memory[LEN - 1].load(Acquire) != 0;
                    let came = (0..100_000).any(|_| {
                        std::thread::yield_now();
                        last()
                    });
                    came && memory.iter().all(|byte| byte.load(Relaxed) == 7)
                });
                // In two pieces.
                // SAFETY: both arrays have `LEN` bytes, and the one that is shared is atomics.
                unsafe {
                    copy_unordered(dst, src, PIECE);
                    copy(dst.add(PIECE), src.add(PIECE), LEN - PIECE);
                }
                seen += usize::from(poller.join().expect("the poller"));
            });
        }
        assert_eq!(seen, rounds, "a message was not seen, or in part only");
    }
}
