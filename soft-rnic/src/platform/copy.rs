//! Payload copies: the one place where this process moves the bytes of a message.
//!
//! Other threads and processes may read and write payload at any time, and programs do poll for its
//! last byte. This module therefore reaches payload only by raw pointers, moves it with the C
//! library, and ends with an *ordered tail*: up to eight bytes, naturally aligned, which one
//! release store makes visible after everything before.
//! `docs/internals/soft-rnic-ordering.md` explains why that is enough.
//!
//! A race on payload is the program's responsibility, as it is with hardware: the program gets some
//! mixture of the bytes. Nothing here depends on their values. Miri cannot see into the C library,
//! so under Miri each byte or word is an atomic. Miri also forbids an atomic on memory behind a plain
//! shared reference, so its tests register memory by mutable pointers.
//!
//! The atomics are the processor's, also under loom: payload is no part of its models.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// The number of bytes in the ordered tail of a message that ends `len` bytes after the address
/// `dst`: the largest of 1, 2, 4 and 8 that fits into the message and divides its end address; 0
/// for an empty message.
///
/// `process_vm_*` transfers split at the same place: the body goes first, then the tail as a
/// separate part.
#[inline]
pub(crate) fn tail_len(dst: usize, len: usize) -> usize {
    let end = dst.wrapping_add(len);
    // The lowest set bit of the end address, at most 8; and the highest set bit of the length, at
    // most 8.
    let aligned = 1 << (end | 8).trailing_zeros();
    let fits = 1 << (len.clamp(1, 8)).ilog2();
    if len == 0 { 0 } else { usize::min(aligned, fits) }
}

/// Copies a message, or its last part (which is not empty): the body, then the ordered tail.
///
/// A reader that sees the last byte sees everything that this thread wrote before, including the
/// parts that [`copy_unordered`] copied. A message of 1, 2, 4 or 8 bytes at a multiple of its size
/// is a single store. The two ranges may overlap.
///
/// # Safety
///
/// - `src` is valid for reads of `len` bytes and `dst` for writes of `len` bytes until this
///   returns. They need no alignment, and may be any pointer if `len` is 0.
/// - No reference to any of these bytes is used until this returns, except for atomics. Accesses by
///   raw pointers, other threads and other processes may go on.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    if len >= WORD && dst.addr().wrapping_add(len).is_multiple_of(WORD) {
        // The common case: the tail is a whole word. SAFETY: the caller of `copy` guarantees both
        // ranges; the tail is their last word, and the condition above checked its alignment.
        return unsafe { copy_with_tail::<u64>(dst, src, len - WORD) };
    }
    let tail = tail_len(dst.addr(), len);
    debug_assert!(tail < WORD, "that was seen above");
    let body = len - tail;
    // SAFETY: the caller of `copy` guarantees both ranges; the tail is their last part, and
    // `tail_len` chose it so that it is aligned.
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
/// The conditions of [`copy`] for `body` bytes and a word; the word's address, `dst + body`, is a
/// multiple of its size.
#[inline(always)]
unsafe fn copy_with_tail<W: TailWord>(dst: *mut u8, src: *const u8, body: usize) {
    // SAFETY: the caller guarantees both ranges for the body and the word, and the word's
    // alignment.
    unsafe {
        // The tail is read first, because the body may overwrite it where the ranges overlap.
        let tail = W::load(src.add(body));
        move_bytes(dst, src, body);
        tail.store(dst.add(body), body == 0);
    }
}

/// Copies bytes in any order: a part of a message that is not the last, or bytes that a completion
/// announces. The ranges may overlap.
///
/// # Safety
///
/// The conditions of [`copy`].
#[inline]
pub(crate) unsafe fn copy_unordered(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `move_bytes` has the conditions of `copy`, which the caller guarantees.
    unsafe { move_bytes(dst, src, len) }
}

/// Bytes in a cache line.
pub(crate) const LINE: usize = 64;

/// Messages of at least this many bytes are [streamed](copy_streamed) if another processor is about
/// to read them.
pub(crate) const STREAMED: usize = 1024;

/// Copies bytes past the caches, in any order, for another processor that reads them next. Later
/// stores become visible only after the copied bytes. Where the ranges overlap, the result is some
/// mixture of the bytes.
///
/// The destination's old bytes lie in the other processor's caches, and an ordinary store waits for
/// each line to move between the processors: 28 ns a line on some, which is 2 GB/s. Streaming
/// stores need no such answer.
///
/// # Safety
///
/// The conditions of [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn copy_streamed(dst: *mut u8, src: *const u8, len: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    let head = dst.align_offset(LINE).min(len);
    let rest = (len - head) % LINE;
    // A store of the whole line spares the processor from reading it first. SAFETY: the caller
    // guarantees both ranges, and every access lies within them; the loop starts at a destination
    // that is a multiple of a line's size.
    unsafe {
        move_bytes(dst, src, head);
        for line in (head..len - rest).step_by(LINE) {
            for at in (line..line + LINE).step_by(size_of::<__m128i>()) {
                _mm_stream_si128(dst.add(at).cast(), _mm_loadu_si128(src.add(at).cast()));
            }
        }
        move_bytes(dst.add(len - rest), src.add(len - rest), rest);
        // Streaming stores are not ordered by themselves, unlike other stores.
        _mm_sfence();
    }
}

/// Copies bytes for another processor that reads them next.
///
/// # Safety
///
/// The conditions of [`copy`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn copy_streamed(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: `move_bytes` has the conditions of `copy`, which the caller guarantees.
    unsafe { move_bytes(dst, src, len) }
}

/// Prefetches `lines` cache lines for reading. A hint without any other effect.
#[inline]
pub(crate) fn fetch_to_read(at: *const u8, lines: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..lines {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line * LINE).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (at, lines);
}

/// Prefetches `lines` cache lines that another processor has used, for writing; without it each
/// write waits for its line. A hint without any other effect.
#[inline]
pub(crate) fn fetch_to_write(at: *const u8, lines: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..lines {
        let at = at.wrapping_add(line * LINE);
        // SAFETY: `prefetchw` never faults, whatever the address, and processors without the
        // feature ignore it.
        unsafe { core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (at, lines);
}

/// Adds to a word of payload for `IBV_WR_ATOMIC_FETCH_AND_ADD` and returns its old value.
///
/// # Safety
///
/// - `target` is a multiple of 8 and valid for reads and writes of 8 bytes until this returns.
/// - No reference to any of these bytes is used until this returns, except for atomics.
#[inline]
pub(crate) unsafe fn fetch_and_add(target: *mut u64, add: u64) -> u64 {
    // SAFETY: the caller guarantees an aligned, valid word that is reached by atomics only.
    unsafe { AtomicU64::from_ptr(target) }.fetch_add(add, AcqRel)
}

/// Replaces `compare` with `swap` for `IBV_WR_ATOMIC_CMP_AND_SWP` and returns the old value.
///
/// # Safety
///
/// The conditions of [`fetch_and_add`].
#[inline]
pub(crate) unsafe fn compare_and_swap(target: *mut u64, compare: u64, swap: u64) -> u64 {
    // SAFETY: the caller guarantees an aligned, valid word that is reached by atomics only.
    match unsafe { AtomicU64::from_ptr(target) }.compare_exchange(compare, swap, AcqRel, Acquire) {
        Ok(there) | Err(there) => there,
    }
}

/// Stores eight bytes at once, after everything that this thread stored before.
///
/// # Safety
///
/// `target` is aligned and valid for writes. Until this returns, all other accesses are copies of
/// this module, other atomics, or accesses by another process.
pub(crate) unsafe fn atomic_store(target: *mut u64, value: u64) {
    // SAFETY: the caller guarantees an aligned, valid word whose other accesses are atomics or this
    // module's copies.
    unsafe { AtomicU64::from_ptr(target) }.store(value, Release);
}

/// An integer type that can be the ordered tail.
trait TailWord: Sized {
    /// # Safety
    ///
    /// `src` is valid for reads of a word, under the conditions of [`copy`]. An aligned word is
    /// read in one access.
    unsafe fn load(src: *const u8) -> Self;

    /// Stores the word after everything else. `alone` means that the message is this word and no
    /// more.
    ///
    /// # Safety
    ///
    /// `dst` is aligned and valid for writes of a word, under the conditions of [`copy`].
    unsafe fn store(self, dst: *mut u8, alone: bool);
}

macro_rules! word {
    ($TailWord:ty, $Atomic:ty) => {
        #[cfg(not(miri))]
        impl TailWord for $TailWord {
            #[inline(always)]
            unsafe fn load(src: *const u8) -> Self {
                // SAFETY: the caller guarantees a readable word; the processor's atomics read
                // read-only memory as well.
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
                // SAFETY: the caller guarantees an aligned, writable word that is reached by
                // atomics and raw copies only.
                unsafe { <$Atomic>::from_ptr(dst.cast()).store(self, Release) };
            }
        }

        // Miri rejects a race between accesses of different sizes. A message that is a single word
        // is therefore stored as that word, and every other one byte by byte.
        #[cfg(miri)]
        impl TailWord for $TailWord {
            unsafe fn load(src: *const u8) -> Self {
                // SAFETY: the caller guarantees a readable word, and `at` lies within it.
                let byte = |at| unsafe { AtomicU8::from_ptr(src.add(at).cast_mut()).load(Relaxed) };
                Self::from_ne_bytes(core::array::from_fn(byte))
            }

            unsafe fn store(self, dst: *mut u8, alone: bool) {
                // SAFETY: the caller guarantees an aligned, writable word, and `at` lies within it.
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
/// The conditions of [`copy`].
#[cfg(not(miri))]
#[inline]
unsafe fn move_bytes(dst: *mut u8, src: *const u8, len: usize) {
    // If the destination lies before the source, this wraps to a huge number; pieces may overlap in
    // that direction.
    let ahead = dst.addr().wrapping_sub(src.addr());
    // SAFETY: the caller guarantees both ranges for `len` bytes.
    unsafe {
        if len > SHORT && (1..NEAR).contains(&(ahead % PAGE)) && ahead >= len {
            move_in_pieces(dst, src, len);
        } else {
            // memmove instead of memcpy, because a work request may name overlapping ranges; glibc
            // uses the same code for both.
            libc::memmove(dst.cast(), src.cast(), len);
        }
    }
}

/// The most bytes that the C library copies with its code for short copies, whichever vectors it
/// uses.
#[cfg(not(miri))]
const SHORT: usize = 2048;
/// Distance behind the source, within a page, at which long copies (`rep movsb`) are slow: AMD's
/// Zen 3 and 4 then take many times as long. The effect was seen for distances up to 15 bytes.
#[cfg(not(miri))]
const NEAR: usize = 64;
#[cfg(not(miri))]
const PAGE: usize = 4096;

/// Copies in pieces that the C library's code for short copies handles.
///
/// # Safety
///
/// The conditions of [`copy`], and the destination does not begin within the source.
#[cfg(not(miri))]
#[inline(never)]
unsafe fn move_in_pieces(dst: *mut u8, src: *const u8, len: usize) {
    for at in (0..len).step_by(SHORT) {
        // SAFETY: the caller guarantees both ranges, and each piece lies within them.
        unsafe { libc::memmove(dst.add(at).cast(), src.add(at).cast(), SHORT.min(len - at)) };
    }
}

/// Moves words where both ranges are aligned, because Miri takes as long for a byte as for a word.
///
/// # Safety
///
/// The conditions of [`copy`].
#[cfg(miri)]
unsafe fn move_bytes(dst: *mut u8, src: *const u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    let are_aligned = dst.addr().is_multiple_of(WORD) && src.addr().is_multiple_of(WORD);
    let words = if are_aligned { len / WORD } else { 0 };
    // Through buffers, because the ranges may overlap. SAFETY: the caller guarantees `len` readable
    // and `len` writable bytes, and each access lies within them; a word's address is a multiple of
    // its size.
    unsafe {
        let word = |at| AtomicU64::from_ptr(src.cast::<u64>().add(at).cast_mut()).load(Relaxed);
        let byte = |at| AtomicU8::from_ptr(src.add(at).cast_mut()).load(Relaxed);
        let moved: Vec<u64> = (0..words).map(word).collect();
        let rest: Vec<u8> = (words * WORD..len).map(byte).collect();
        for (at, word) in moved.into_iter().enumerate() {
            AtomicU64::from_ptr(dst.cast::<u64>().add(at)).store(word, Relaxed);
        }
        for (at, byte) in (words * WORD..).zip(rest) {
            AtomicU8::from_ptr(dst.add(at)).store(byte, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The expected result of `copy`, computed one byte after the other.
    fn model(memory: &mut [u8], dst: usize, src: usize, len: usize) {
        memory.copy_within(src..src + len, dst);
    }

    #[test]
    #[cfg(not(miri))]
    fn overlapping_forward_copy_is_whole() {
        const LEN: usize = 3 * PAGE;
        for ahead in [0, 1, 8, 63, 64, SHORT, PAGE + 8, LEN - 1, LEN, LEN + 8, LEN + PAGE + 1] {
            for len in [SHORT, SHORT + 1, 2 * SHORT, PAGE + 8, LEN] {
                // Both directions, so that the ranges overlap either way.
                for (dst, src) in [(ahead, 0), (0, ahead)] {
                    let mut memory: Vec<u8> = (0..2 * LEN + 2 * PAGE).map(|at| (at / 3) as u8).collect();
                    let mut wanted = memory.clone();
                    model(&mut wanted, dst, src, len);
                    let start = memory.as_mut_ptr();
                    // SAFETY: both ranges lie within the vector, which no other code uses.
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
            // SAFETY: both vectors are longer than `at + len` and `7 + len`.
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
                    // SAFETY: both ranges lie in `memory`, which no other reference reaches.
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
            // SAFETY: both arrays have 64 bytes, and no other code uses them.
            unsafe { copy_unordered(memory.as_mut_ptr(), source.as_mut_ptr(), len) };
            assert_eq!(memory[..len], source[..len]);
            assert!(memory[len..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn nothing_is_copied_from_nowhere() {
        let nowhere = core::ptr::null_mut::<u8>();
        // SAFETY: a copy of no bytes accepts any pointer.
        unsafe { copy(nowhere, nowhere, 0) };
    }

    #[test]
    fn atomics_give_back_what_was_there() {
        let mut word = u64::MAX;
        let target = &raw mut word;
        // SAFETY: `word` is aligned, and only this thread uses it.
        unsafe {
            assert_eq!(fetch_and_add(target, 3), u64::MAX);
            assert_eq!(compare_and_swap(target, 1, 9), 2, "not the same: nothing is stored");
            assert_eq!(compare_and_swap(target, 2, 9), 2);
            assert_eq!(fetch_and_add(target, 0), 9);
        }
    }

    /// Runs under Miri, which delays stores as a weakly ordered processor does, and natively, as a
    /// check of this processor.
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
                // The copy has two pieces. SAFETY: both arrays have `LEN` bytes, and the shared one
                // consists of atomics.
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
