//! The function table of a library: [`library_table!`](crate::library_table) and its parts.

use core::ffi::{c_char, c_int};

use crate::LoadError;
#[cfg(doc)]
use crate::Provider;
use crate::library::Library;
use crate::types::{__be16, __be64, ibv_rate};

/// The functions of one library, which a [`Provider`] loads.
///
/// [`library_table!`](crate::library_table) defines such a table. Loading runs the constructors of
/// the library. As with libibverbs, the libraries in the provider's folder, or in the dynamic loader's
/// search path, are trusted with that. Calls of the functions are unsafe.
pub trait LibraryTable: Copy + Send + Sync + 'static {
    /// The shared object's name, which the dynamic loader looks for: `libmlx5.so.1`. A path is
    /// refused.
    const LIBRARY: &'static str;

    /// Looks up every function in an open library.
    ///
    /// # Errors
    ///
    /// [`LoadError::TooOld`] names the required functions that the library does not export in their
    /// versions.
    fn load(library: &Library) -> Result<Self, LoadError>;
}

/// Defines the table of a library's functions: a struct that is a [`LibraryTable`].
///
/// After a line of documentation come the struct's name, the shared object's name, and the value
/// with which a missing function that returns `int` fails. Each line has the symbol version (see
/// [`Library::find`](crate::Library::find); empty if the library defines none), the first release
/// of the library, and the prototype in the library's header. A library without a `required`
/// function is too old. An `optional` one is a field of type `Option`, and a method that returns it
/// or a [`MissingSymbol`](crate::MissingSymbol).
///
/// ```
/// use std::ffi::c_int;
///
/// rdma_mummy_sys::library_table! {
///     #[doc = "The functions of libacme."]
///     Acme, "libacme.so.1", -1;
///     required { "ACME_1.0" "1" fn acme_reset(port: c_int) -> c_int; }
///     optional { "ACME_1.1" "2" fn acme_blink(port: c_int) -> c_int; }
/// }
///
/// assert_eq!(Acme::LIBRARY, "libacme.so.1");
/// let missing = Acme::unsupported().acme_blink().unwrap_err();
/// assert_eq!((missing.name, missing.since), ("acme_blink", "2"));
/// ```
///
/// A function returns nothing, or one of these types: `c_int`, `u32`, `i64`, `isize`, `usize`, `bool`,
/// `__be16`, `__be64`, `ibv_rate`, `*const c_char`, `*mut T`.
#[macro_export]
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
        #[allow(missing_docs)] // The library's header documents its functions.
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

            $(
                /// The function, unless the library is older.
                ///
                /// # Errors
                ///
                /// `MissingSymbol` of `rdma-mummy-sys` names the release that added it.
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

        impl $crate::LibraryTable for $Table {
            const LIBRARY: &'static str = $library;

            #[allow(irrefutable_let_patterns, unused_mut)] // A library may have no required function.
            fn load(library: &$crate::Library) -> Result<Self, $crate::LoadError> {
                let mut missing = ::std::vec::Vec::<&'static str>::new();
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
                        $($rname: ::core::mem::transmute::<
                            ::core::ptr::NonNull<::core::ffi::c_void>,
                            unsafe extern "C" fn($($rargs)*) $(-> $rret)?,
                        >($rname),)*
                        $($oname: ::core::mem::transmute::<
                            Option<::core::ptr::NonNull<::core::ffi::c_void>>,
                            Option<unsafe extern "C" fn($($oargs)*) $(-> $oret)?>,
                        >(library.find(stringify!($oname), $oversion)),)*
                    } });
                }
                Err($crate::LoadError::TooOld { library: $library, path: library.path().to_owned(), missing })
            }
        }
    };
}

/// The return value of an unsupported function.
#[doc(hidden)]
pub trait Unsupported {
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
