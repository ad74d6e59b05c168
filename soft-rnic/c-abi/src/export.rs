//! A macro that exports a table's functions under their C names.

use core::ffi::c_int;

use rdma_mummy_sys::types::ibv_fork_status;

/// Defines a C function for each entry of a table, with the prefix before its name. A required
/// entry is called directly; an optional entry that the table lacks, and a refused one, fail with
/// `EOPNOTSUPP`. The value before the arrow is what the function then returns if it returns an
/// `int`.
macro_rules! exports {
    (
        $table:path, $prefix:literal;
        required { $(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)* }
        optional { $($failure:expr => fn $oname:ident($($oarg:ident: $oty:ty),*) $(-> $oret:ty)?;)* }
        refused { $($rfailure:expr => fn $rname:ident($($rarg:ident: $rty:ty),*) $(-> $rret:ty)?;)* }
    ) => {
        $(
            #[unsafe(export_name = concat!($prefix, stringify!($name)))]
            unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller meets the C function's conditions, and the table's entry has
                // the same ones.
                unsafe { ($table.$name)($($arg),*) }
            }
        )*
        $(
            #[unsafe(export_name = concat!($prefix, stringify!($oname)))]
            unsafe extern "C" fn $oname($($oarg: $oty),*) $(-> $oret)? {
                match $table.$oname {
                    // SAFETY: the caller keeps what the library asks for this function, and the
                    // table's asks for no more.
                    Some(function) => unsafe { function($($oarg),*) },
                    None => $crate::export::FailureValue::refuse($failure),
                }
            }
        )*
        $(
            #[unsafe(export_name = concat!($prefix, stringify!($rname)))]
            extern "C" fn $rname($(_: $rty),*) $(-> $rret)? {
                $crate::export::FailureValue::refuse($rfailure)
            }
        )*
    };
}

/// The return value of a function that always fails.
pub(crate) trait FailureValue {
    /// Sets `errno` to `EOPNOTSUPP`; an `int` function returns `failure`.
    fn refuse(failure: c_int) -> Self;
}

impl FailureValue for () {
    fn refuse(_: c_int) {
        set_errno(libc::EOPNOTSUPP);
    }
}

impl FailureValue for c_int {
    fn refuse(failure: c_int) -> Self {
        set_errno(libc::EOPNOTSUPP);
        failure
    }
}

impl FailureValue for isize {
    fn refuse(_: c_int) -> Self {
        set_errno(libc::EOPNOTSUPP);
        -(libc::EOPNOTSUPP as isize)
    }
}

impl FailureValue for ibv_fork_status {
    fn refuse(_: c_int) -> Self {
        set_errno(libc::EOPNOTSUPP);
        Self::IBV_FORK_DISABLED
    }
}

impl<T> FailureValue for *mut T {
    fn refuse(_: c_int) -> Self {
        set_errno(libc::EOPNOTSUPP);
        core::ptr::null_mut()
    }
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: the location is the calling thread's `errno`, valid while the thread lives.
    unsafe { *libc::__errno_location() = error };
}
