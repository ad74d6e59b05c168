//! What a generated function table is made of.

use core::ffi::{c_char, c_int};

use crate::types::{__be16, __be64, ibv_rate};

/// Makes the struct of one library's functions. A line is: symbol version,
/// first release, prototype.
macro_rules! library_table {
    (
        #[doc = $doc:literal]
        $Table:ident, $library:literal, $failure:expr;
        required { $($rversion:literal $rsince:literal fn $rname:ident($($rargs:tt)*) $(-> $rret:ty)?;)* }
        optional { $($oversion:literal $osince:literal fn $oname:ident($($oargs:tt)*) $(-> $oret:ty)?;)* }
    ) => {
        #[doc = $doc]
        ///
        /// A plain field is a function that every release has; an `Option` is one
        /// that came later, and the method of the same name says what is missing.
        #[derive(Clone, Copy, Debug)]
        pub struct $Table {
            $(pub $rname: unsafe extern "C" fn($($rargs)*) $(-> $rret)?,)*
            $(pub $oname: Option<unsafe extern "C" fn($($oargs)*) $(-> $oret)?>,)*
        }

        impl $Table {
            /// The shared object's name.
            pub const LIBRARY: &'static str = $library;

            /// A table in which every function fails with `EOPNOTSUPP`: the base of
            /// a table that a program brings, as in
            /// `Table { function: mine, ..Table::unsupported() }`.
            pub const fn unsupported() -> Self {
                $(
                    #[allow(unused_variables)]
                    unsafe extern "C" fn $rname($($rargs)*) $(-> $rret)? {
                        $crate::table::Unsupported::unsupported($failure)
                    }
                )*
                Self { $($rname,)* $($oname: None,)* }
            }

            /// Looks every function up in an open library.
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
                    // SAFETY: the library exports a function of this name and symbol version; the C
                    // header that declares it gave its prototype.
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
                /// The function, if the library has it.
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

/// What a function returns that does nothing but refuse.
pub(crate) trait Unsupported {
    /// Sets `errno` to `EOPNOTSUPP`; `failure` is what the library's `int` functions return for that.
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
