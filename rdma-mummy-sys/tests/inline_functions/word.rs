//! Arguments and results as numbers, so that one recorder type can hold those of every function.

use core::ffi::c_int;
use core::fmt::Debug;

use rdma_mummy_sys::types::*;

/// A type that a C function takes or returns.
pub(crate) trait AbiWord: Copy {
    /// The n-th example, different for each n.
    fn sample(n: u64) -> Self;

    /// The value as a number.
    fn word(self) -> u64;
}

/// The return value of a function that is not supported.
pub(crate) trait ErrorReturn: AbiWord + Debug {
    /// Whether the value means "not supported", including `errno` if it counts.
    fn is_unsupported(self) -> bool;
}

impl AbiWord for () {
    fn sample(_: u64) -> Self {}

    fn word(self) -> u64 {
        0
    }
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl AbiWord for $ty {
            fn sample(n: u64) -> Self {
                n as $ty
            }

            fn word(self) -> u64 {
                self as u64
            }
        }
    )*};
}

integers! { u8 u16 u32 u64 usize i32 isize }

impl AbiWord for bool {
    fn sample(n: u64) -> Self {
        n % 2 == 1
    }

    fn word(self) -> u64 {
        u64::from(self)
    }
}

macro_rules! newtypes {
    ($($ty:ident)*) => {$(
        impl AbiWord for $ty {
            fn sample(n: u64) -> Self {
                $ty(n as u32)
            }

            fn word(self) -> u64 {
                u64::from(self.0)
            }
        }
    )*};
}

newtypes! { ib_uverbs_advise_mr_advice ibv_mw_type ibv_wc_opcode }

/// Addresses far from all allocations, which nothing may read.
fn address(n: u64) -> usize {
    n as usize * 0x1000
}

impl<T> AbiWord for *mut T {
    fn sample(n: u64) -> Self {
        core::ptr::without_provenance_mut(address(n))
    }

    fn word(self) -> u64 {
        self.addr() as u64
    }
}

impl<T> AbiWord for *const T {
    fn sample(n: u64) -> Self {
        core::ptr::without_provenance(address(n))
    }

    fn word(self) -> u64 {
        self.addr() as u64
    }
}

impl ErrorReturn for c_int {
    fn is_unsupported(self) -> bool {
        self == libc::EOPNOTSUPP
    }
}

impl<T> ErrorReturn for *mut T {
    fn is_unsupported(self) -> bool {
        self.is_null() && errno() == libc::EOPNOTSUPP
    }
}

/// This thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: the location is this thread's `errno`.
    unsafe { *libc::__errno_location() }
}

/// Sets this thread's `errno` to a value that no function under test leaves.
pub(crate) fn clear_errno() {
    // SAFETY: the location is this thread's `errno`.
    unsafe { *libc::__errno_location() = 0 };
}
