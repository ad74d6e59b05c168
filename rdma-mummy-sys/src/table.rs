//! The parts of a generated function table.

use core::ffi::{c_char, c_int};

use crate::types::{__be16, __be64, ibv_rate};

/// Defines the struct of one library's functions. A line has the symbol version, the first release
/// and the prototype.
macro_rules! library_table {
    (
        #[doc = $doc:literal]
        $Table:ident, $library:literal, $failure:expr;
        required { $($rversion:literal $rsince:literal fn $rname:ident($($rargs:tt)*) $(-> $rret:ty)?;)* }
        optional { $($oversion:literal $osince:literal fn $oname:ident($($oargs:tt)*) $(-> $oret:ty)?;)* }
    ) => {
        #[doc = $doc]
        /// A plain field is a function of every release. An `Option` is a later one, and the method
        /// of the same name reports its absence.
        #[derive(Clone, Copy, Debug)]
        pub struct $Table {
            $(pub $rname: unsafe extern "C" fn($($rargs)*) $(-> $rret)?,)*
            $(pub $oname: Option<unsafe extern "C" fn($($oargs)*) $(-> $oret)?>,)*
        }

        impl $Table {
            /// The shared object's name.
            pub const LIBRARY: &'static str = $library;

            /// A table in which every function fails with `EOPNOTSUPP`. A program's own table
            /// starts from it: `Table { function: mine, ..Table::unsupported() }`.
            pub const fn unsupported() -> Self {
                $(
                    #[allow(unused_variables)]
                    unsafe extern "C" fn $rname($($rargs)*) $(-> $rret)? {
                        $crate::table::Unsupported::unsupported($failure)
                    }
                )*
                Self { $($rname,)* $($oname: None,)* }
            }

            /// Looks up every function in an open library.
            #[allow(irrefutable_let_patterns, unused_mut)] // A library may have no required function.
            pub(crate) fn load(library: &$crate::library::Library) -> Result<Self, $crate::LoadError> {
                let mut missing: Vec<&'static str> = Vec::new();
                $(
                    let $rname = library.find(stringify!($rname), $rversion);
                    if $rname.is_none() {
                        missing.push(stringify!($rname));
                    }
                )*
                if let ($(Some($rname),)*) = ($($rname,)*) {
                    // SAFETY: the library exports a function with this name and symbol version. The
                    // header that declares it defines its prototype.
                    return Ok(unsafe { Self {
                        $($rname: core::mem::transmute::<
                            core::ptr::NonNull<core::ffi::c_void>,
                            unsafe extern "C" fn($($rargs)*) $(-> $rret)?,
                        >($rname),)*
                        $($oname: core::mem::transmute::<
                            Option<core::ptr::NonNull<core::ffi::c_void>>,
                            Option<unsafe extern "C" fn($($oargs)*) $(-> $oret)?>,
                        >(library.find(stringify!($oname), $oversion)),)*
                    } });
                }
                Err($crate::LoadError::TooOld { library: $library, path: library.path().to_owned(), missing })
            }

            $(
                /// The function, unless the library is older.
                ///
                /// # Errors
                ///
                /// [`MissingSymbol`](crate::MissingSymbol) names the release that added it.
                pub fn $oname(
                    &self,
                ) -> Result<unsafe extern "C" fn($($oargs)*) $(-> $oret)?, $crate::MissingSymbol> {
                    self.$oname.ok_or($crate::MissingSymbol {
                        library: $library,
                        name: stringify!($oname),
                        version: $oversion,
                        since: $osince,
                    })
                }
            )*
        }
    };
}

/// The return value of an unsupported function.
pub(crate) trait Unsupported {
    /// Sets `errno` to `EOPNOTSUPP`. `failure` is the value that the library's `int` functions
    /// return then.
    fn unsupported(failure: c_int) -> Self;
}

/// Sets this thread's `errno`.
#[inline]
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: the location is this thread's own errno, valid for its life.
    unsafe { *libc::__errno_location() = error };
}

impl Unsupported for () {
    fn unsupported(_: c_int) -> Self {
        set_errno(libc::EOPNOTSUPP);
    }
}

impl Unsupported for c_int {
    fn unsupported(failure: c_int) -> Self {
        set_errno(libc::EOPNOTSUPP);
        failure
    }
}

impl Unsupported for *const c_char {
    fn unsupported(_: c_int) -> Self {
        set_errno(libc::EOPNOTSUPP);
        c"not supported".as_ptr()
    }
}

impl<T> Unsupported for *mut T {
    fn unsupported(_: c_int) -> Self {
        set_errno(libc::EOPNOTSUPP);
        core::ptr::null_mut()
    }
}

macro_rules! unsupported_zero {
    ($($ty:ty => $zero:expr),* $(,)?) => {$(
        impl Unsupported for $ty {
            fn unsupported(_: c_int) -> Self {
                set_errno(libc::EOPNOTSUPP);
                $zero
            }
        }
    )*};
}

unsupported_zero! {
    bool => false, __be16 => 0, u32 => 0, __be64 => 0, i64 => -1, isize => -1, usize => 0,
    ibv_rate => ibv_rate(0),
}
