//! Safe accesses to memory that a device, or a peer through it, may write to at any time.
//!
//! No reference to such bytes is ever made. They are copied by the C library, whose accesses the
//! compiler cannot see, or accessed by atomics. So a concurrent write, by a device or by a software
//! device in this process, changes only the values that are read. Miri cannot run the C library, so
//! under Miri the copies use atomics, byte by byte. A software device moves payload in the same
//! ways.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

mod sealed {
    pub trait Sealed: Copy {
        /// # Safety
        ///
        /// `src` must be valid for reads of a word. No references to it may exist, except atomics.
        /// It needs no alignment.
        unsafe fn load(src: *const u8) -> Self;

        /// # Safety
        ///
        /// `dst` must be valid for writes of a word. No references to it may exist, except atomics.
        /// It needs no alignment.
        unsafe fn store(self, dst: *mut u8);
    }
}
use sealed::Sealed;

/// Integers that a [`Slice`](super::Slice) or a [`RegisteredBuffer`](super::RegisteredBuffer) can be
/// read and written as, in native byte order: `u8`, `u16`, `u32`, `u64`.
///
/// At a multiple of its size, a word is accessed at once: by an acquire load or a release store.
pub trait Word: Sealed {}

macro_rules! word {
    ($($Word:ty, $Atomic:ident;)*) => {$(
        impl Word for $Word {}

        impl Sealed for $Word {
            #[inline]
            unsafe fn load(src: *const u8) -> Self {
                #[cfg(not(miri))]
                if src.addr().is_multiple_of(size_of::<Self>()) {
                    // SAFETY: the caller guarantees that `src` is valid for reads of a word without
                    // references. It is aligned, as checked above.
                    return unsafe { core::sync::atomic::$Atomic::from_ptr(src.cast_mut().cast()) }.load(Acquire);
                }
                let mut bytes = [0; size_of::<Self>()];
                // SAFETY: the caller guarantees that `src` is valid for reads of a word without
                // references.
                unsafe { copy_out(&mut bytes, src) };
                Self::from_ne_bytes(bytes)
            }

            #[inline]
            unsafe fn store(self, dst: *mut u8) {
                #[cfg(not(miri))]
                if dst.addr().is_multiple_of(size_of::<Self>()) {
                    // SAFETY: the caller guarantees that `dst` is valid for writes of a word
                    // without references. It is aligned, as checked above.
                    return unsafe { core::sync::atomic::$Atomic::from_ptr(dst.cast()) }.store(self, Release);
                }
                // SAFETY: the caller guarantees that `dst` is valid for writes of a word without
                // references.
                unsafe { copy_in(dst, &self.to_ne_bytes()) };
            }
        }
    )*};
}

word! {
    u8, AtomicU8;
    u16, AtomicU16;
    u32, AtomicU32;
    u64, AtomicU64;
}

/// Copies the program's bytes into memory that a device can access.
///
/// # Safety
///
/// `dst` must be valid for writes of `src.len()` bytes. No references to them may exist, except
/// atomics.
#[inline]
pub(super) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
    if cfg!(miri) {
        for (at, byte) in src.iter().enumerate() {
            // SAFETY: the caller guarantees (`# Safety`) that `dst` is valid for writes of as many
            // bytes, and that only atomic references to them exist. `at` is below the length.
            unsafe { AtomicU8::from_ptr(dst.add(at)) }.store(*byte, Release);
        }
        return;
    }
    // `memmove` instead of `memcpy`, because the program may have made a slice over the same memory
    // elsewhere.
    //
    // SAFETY: the caller guarantees (`# Safety`) that `dst` is valid for writes of this length, and
    // that only atomic references to these bytes exist. `src` is a slice of this length.
    unsafe { libc::memmove(dst.cast(), src.as_ptr().cast(), src.len()) };
}

/// Copies bytes out of memory that a device can access.
///
/// # Safety
///
/// `src` must be valid for reads of `dst.len()` bytes. No references to them may exist, except
/// atomics.
#[inline]
pub(super) unsafe fn copy_out(dst: &mut [u8], src: *const u8) {
    if cfg!(miri) {
        for (at, byte) in dst.iter_mut().enumerate() {
            // SAFETY: the caller guarantees (`# Safety`) that `src` is valid for reads of as many
            // bytes, and that only atomic references to them exist. `at` is below the length.
            *byte = unsafe { AtomicU8::from_ptr(src.add(at).cast_mut()) }.load(Acquire);
        }
        return;
    }
    // SAFETY: the caller guarantees (`# Safety`) that `src` is valid for reads of this length, and
    // that only atomic references to these bytes exist. `dst` is a slice of this length.
    unsafe { libc::memmove(dst.as_mut_ptr().cast(), src.cast(), dst.len()) };
}

/// Fills memory that a device can access.
///
/// # Safety
///
/// `dst` must be valid for writes of `len` bytes. No references to them may exist, except atomics.
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    if cfg!(miri) {
        for at in 0..len {
            // SAFETY: the caller guarantees (`# Safety`) that `dst` is valid for writes of `len`
            // bytes, and that only atomic references to them exist. `at` is below `len`.
            unsafe { AtomicU8::from_ptr(dst.add(at)) }.store(byte, Relaxed);
        }
        return;
    }
    // SAFETY: the caller guarantees (`# Safety`) that `dst` is valid for writes of `len` bytes, and
    // that only atomic references to them exist.
    unsafe { libc::memset(dst.cast(), byte.into(), len) };
}

/// The accesses of memory that a device can access too.
///
/// The type has a method `range`, whose result is valid for reads and writes of the range while
/// `self` exists, and to whose bytes no reference exists.
macro_rules! impl_accesses {
    ($Memory:ident) => {
        impl $Memory {
            /// Copies bytes in, from `offset` on.
            ///
            /// # Errors
            ///
            /// Fails if the memory is too short; then nothing is copied.
            #[inline]
            pub fn copy_from_slice(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfSlice> {
                let start = self.range(offset, bytes.len())?;
                // SAFETY: `range` checked the length, and nothing refers to its bytes.
                unsafe { bytes::copy_in(start, bytes) };
                Ok(())
            }

            /// Copies bytes out, from `offset` on. If a peer writes at the same time, the result is a
            /// mixture of old and new bytes.
            ///
            /// # Errors
            ///
            /// Fails if the memory is too short; then nothing is copied.
            #[inline]
            pub fn copy_to_slice(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfSlice> {
                let start = self.range(offset, bytes.len())?;
                // SAFETY: `range` checked the length, and nothing refers to its bytes.
                unsafe { bytes::copy_out(bytes, start) };
                Ok(())
            }

            /// Fills the memory with a byte.
            pub fn fill(&mut self, byte: u8) {
                // SAFETY: `self` is the memory, and nothing refers to its bytes.
                unsafe { bytes::fill(self.as_ptr(), byte, self.len()) };
            }

            /// Reads an integer of one, two, four or eight bytes, in native byte order.
            ///
            /// At an address that is a multiple of its size, it is read at once, with acquire
            /// ordering. Then everything that a peer wrote before it is visible too, so that a program
            /// can wait for a peer's write. (Buffers start at a page, and slices that are not split at
            /// a multiple of 64.)
            ///
            /// # Errors
            ///
            /// Fails if the memory is too short.
            #[inline]
            pub fn read<W: Word>(&self, offset: usize) -> Result<W, OutOfSlice> {
                let start = self.range(offset, size_of::<W>())?;
                // SAFETY: `range` checked the length, and nothing refers to its bytes.
                Ok(unsafe { W::load(start) })
            }

            /// Writes an integer, with the same alignment and byte order as [`read`](Self::read).
            ///
            /// # Errors
            ///
            /// Fails if the memory is too short.
            #[inline]
            pub fn write<W: Word>(&mut self, offset: usize, value: W) -> Result<(), OutOfSlice> {
                let start = self.range(offset, size_of::<W>())?;
                // SAFETY: `range` checked the length, and nothing refers to its bytes.
                unsafe { value.store(start) };
                Ok(())
            }
        }
    };
}
pub(super) use impl_accesses;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_words_come_back_at_every_place() {
        let mut memory = [0_u8; 40];
        let start = memory.as_mut_ptr();
        for at in 0..16 {
            let bytes: [u8; 16] = core::array::from_fn(|n| (n + at) as u8 + 1);
            let mut found = [0; 16];
            // SAFETY: the accesses are within the array, to which no reference is used at the time.
            unsafe {
                copy_in(start.add(at), &bytes);
                copy_out(&mut found, start.add(at));
                assert_eq!(found, bytes);
                assert_eq!(<u64 as Sealed>::load(start.add(at)).to_ne_bytes(), bytes[..8]);
                0x0123_4567_89ab_cdef_u64.store(start.add(at));
                assert_eq!(<u64 as Sealed>::load(start.add(at)), 0x0123_4567_89ab_cdef);
                0xabcd_u16.store(start.add(at + 1));
                assert_eq!(<u16 as Sealed>::load(start.add(at + 1)), 0xabcd);
                0xdead_beef_u32.store(start.add(at + 3));
                assert_eq!(<u32 as Sealed>::load(start.add(at + 3)), 0xdead_beef);
                7_u8.store(start.add(at));
                assert_eq!(<u8 as Sealed>::load(start.add(at)), 7);
                fill(start.add(at), 9, 16);
                copy_out(&mut found, start.add(at));
            }
            assert_eq!(found, [9; 16]);
        }
    }

    #[test]
    fn nothing_is_copied_from_nowhere() {
        // SAFETY: the length is 0, so nothing is accessed.
        unsafe {
            copy_in(core::ptr::dangling_mut(), &[]);
            copy_out(&mut [], core::ptr::dangling());
            fill(core::ptr::dangling_mut(), 1, 0);
        }
    }
}
