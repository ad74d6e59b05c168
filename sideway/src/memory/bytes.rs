//! How safe code reaches memory that a device, or a peer through it, may write to at any time.
//!
//! There is never a reference to such bytes. They are moved by the C library, whose accesses the compiler knows nothing of, or
//! by the processor's atomics; so whoever writes at the same time, a device or a software device in this very process, changes
//! which bytes are found, and nothing else. Miri cannot see into the C library, and gets atomics byte by byte. A software device
//! moves payload in the same ways.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

mod sealed {
    pub trait Sealed: Copy {
        /// # Safety
        ///
        /// `src` is valid for reads of a word, which no reference is to but atomics; it needs no alignment.
        unsafe fn load(src: *const u8) -> Self;

        /// # Safety
        ///
        /// `dst` is valid for writes of a word, which no reference is to but atomics; it needs no alignment.
        unsafe fn store(self, dst: *mut u8);
    }
}
use sealed::Sealed;

/// What a [`Slice`](super::Slice) is read and written as, in the processor's order of bytes: `u8`, `u16`, `u32`, `u64`.
///
/// At a multiple of its size it is one access: a load that acquires, or a store that releases.
pub trait Word: Sealed {}

macro_rules! word {
    ($($Word:ty, $Atomic:ident;)*) => {$(
        impl Word for $Word {}

        impl Sealed for $Word {
            #[inline]
            unsafe fn load(src: *const u8) -> Self {
                #[cfg(not(miri))]
                if src.addr().is_multiple_of(size_of::<Self>()) {
                    // SAFETY: the caller (`copy_out`) guarantees that `src` is valid for reads of a
                    // word, and it is aligned.
                    return unsafe { core::sync::atomic::$Atomic::from_ptr(src.cast_mut().cast()) }.load(Acquire);
                }
                let mut bytes = [0; size_of::<Self>()];
                // SAFETY: the caller (`copy_out`) guarantees that `src` is valid for reads of a
                // word.
                unsafe { copy_out(&mut bytes, src) };
                Self::from_ne_bytes(bytes)
            }

            #[inline]
            unsafe fn store(self, dst: *mut u8) {
                #[cfg(not(miri))]
                if dst.addr().is_multiple_of(size_of::<Self>()) {
                    // SAFETY: the caller (`copy_in`, `fill`) guarantees that `dst` is valid for
                    // writes of a word, and it is aligned.
                    return unsafe { core::sync::atomic::$Atomic::from_ptr(dst.cast()) }.store(self, Release);
                }
                // SAFETY: the caller (`copy_in`, `fill`) guarantees that `dst` is valid for writes
                // of a word.
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

/// Copies bytes of the program's own to where a device reaches.
///
/// # Safety
///
/// `dst` is valid for writes of as many bytes, which no reference is to but atomics.
#[inline]
pub(super) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
    if cfg!(miri) {
        for (at, byte) in src.iter().enumerate() {
            // SAFETY: the caller guarantees (`# Safety`) that `dst` is valid for writes of as many
            // bytes, which no reference is to but atomics.
            unsafe { AtomicU8::from_ptr(dst.add(at)) }.store(*byte, Release);
        }
        return;
    }
    // Not memcpy: nothing says that a program has no slice of bytes, made elsewhere, over the same memory.
    // SAFETY: the caller guarantees (`# Safety`) that `dst` is valid for writes of as many bytes,
    // which no reference is to but atomics, and the reference is to as many bytes.
    unsafe { libc::memmove(dst.cast(), src.as_ptr().cast(), src.len()) };
}

/// Copies bytes from where a device reaches to the program's own.
///
/// # Safety
///
/// `src` is valid for reads of as many bytes, which no reference is to but atomics.
#[inline]
pub(super) unsafe fn copy_out(dst: &mut [u8], src: *const u8) {
    if cfg!(miri) {
        for (at, byte) in dst.iter_mut().enumerate() {
            // SAFETY: the caller guarantees (`# Safety`) that `src` is valid for reads of as many
            // bytes, which no reference is to but atomics.
            *byte = unsafe { AtomicU8::from_ptr(src.add(at).cast_mut()) }.load(Acquire);
        }
        return;
    }
    // SAFETY: the caller guarantees (`# Safety`) that `src` is valid for reads of as many bytes,
    // which no reference is to but atomics, and the reference is to as many bytes.
    unsafe { libc::memmove(dst.as_mut_ptr().cast(), src.cast(), dst.len()) };
}

/// Sets bytes where a device reaches.
///
/// # Safety
///
/// `dst` is valid for writes of `len` bytes, which no reference is to but atomics.
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    if cfg!(miri) {
        for at in 0..len {
            // SAFETY: the caller guarantees (`# Safety`) that `dst` is valid for writes of `len`
            // bytes, which no reference is to but atomics.
            unsafe { AtomicU8::from_ptr(dst.add(at)) }.store(byte, Relaxed);
        }
        return;
    }
    // SAFETY: the caller guarantees (`# Safety`) that `dst` is valid for writes of `len` bytes,
    // which no reference is to but atomics.
    unsafe { libc::memset(dst.cast(), byte.into(), len) };
}

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
            // SAFETY: within the array, to which nobody has a reference meanwhile.
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
        // SAFETY: no bytes.
        unsafe {
            copy_in(core::ptr::dangling_mut(), &[]);
            copy_out(&mut [], core::ptr::dangling());
            fill(core::ptr::dangling_mut(), 1, 0);
        }
    }
}
