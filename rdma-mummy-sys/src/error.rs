//! The errors of loading a library and of functions that it lacks.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

/// A path that was tried, and the dynamic loader's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The name or path that was given to the loader.
    pub path: PathBuf,
    /// The loader's error text.
    pub reason: String,
}

/// A library could not be used.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The library does not exist, or the loader refused it.
    NotFound {
        /// The shared object's name.
        library: &'static str,
        /// The paths that were tried, in this order.
        tried: Vec<Attempt>,
    },
    /// The library lacks functions that every supported release has.
    TooOld {
        /// The shared object's name.
        library: &'static str,
        /// The path of the loaded library.
        path: PathBuf,
        /// The functions it does not export.
        missing: Vec<&'static str>,
    },
    /// The library uses another libibverbs than the one that this provider loaded.
    OtherVerbs {
        /// The shared object's name.
        library: &'static str,
        /// The path of the loaded library.
        path: PathBuf,
    },
    /// The program's own tables do not include this library.
    NotProvided {
        /// The shared object's name.
        library: &'static str,
        /// The provider's name.
        provider: &'static str,
    },
    /// A table has a path, or nothing, in the place of its library's name.
    NotAName {
        /// The string that the table has.
        library: &'static str,
    },
}

impl LoadError {
    /// The shared object that the error is about.
    pub fn library(&self) -> &'static str {
        match self {
            Self::NotFound { library, .. }
            | Self::TooOld { library, .. }
            | Self::OtherVerbs { library, .. }
            | Self::NotProvided { library, .. }
            | Self::NotAName { library } => library,
        }
    }
}

/// Whether musl's C library is linked statically, so that `dlopen` always fails.
const IS_STATIC: bool = cfg!(all(target_env = "musl", target_feature = "crt-static"));

/// The distribution's package of one of rdma-core's libraries, for the remedy in the error text;
/// `None` for other libraries.
fn package(library: &str) -> Option<&'static str> {
    match library {
        "libibverbs.so.1" => {
            Some("libibverbs1 and ibverbs-providers on Debian and Ubuntu, libibverbs on Fedora and RHEL")
        }
        "librdmacm.so.1" => Some("librdmacm1 on Debian and Ubuntu, librdmacm on Fedora and RHEL"),
        "libmlx5.so.1" | "libefa.so.1" => {
            Some("ibverbs-providers on Debian and Ubuntu, libibverbs on Fedora and RHEL")
        }
        _ => None,
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { library, tried } => {
                write!(f, "cannot load {library} (")?;
                for (n, attempt) in tried.iter().enumerate() {
                    let separator = if n == 0 { "" } else { "; " };
                    write!(f, "{separator}tried {}: {}", attempt.path.display(), attempt.reason)?;
                }
                if IS_STATIC {
                    return write!(
                        f,
                        "): a statically linked program cannot load it; build with \
                         -C target-feature=-crt-static, or for a gnu target"
                    );
                }
                match package(library) {
                    Some(package) => write!(f, "): install rdma-core's package ({package})")?,
                    None => f.write_str("): install its vendor's package")?,
                }
                write!(f, ", or name the library's folder in {}", crate::LIB_DIR_VARIABLE)
            }
            Self::TooOld { library, path, missing } => write!(
                f,
                "{} is too old to be used as {library}: it does not export {}; install a newer {}",
                path.display(),
                missing.join(", "),
                if package(library).is_some() { "rdma-core" } else { "one" }
            ),
            Self::OtherVerbs { library, path } => write!(
                f,
                "{} ({library}) uses another libibverbs than this provider: load only one libibverbs in a \
                 process that uses {library}, or put the folder of both first in LD_LIBRARY_PATH",
                path.display()
            ),
            Self::NotProvided { library, provider } => {
                write!(
                    f,
                    "the provider `{provider}` has no {library}; the system's provider (`Provider::system`) loads it"
                )
            }
            Self::NotAName { library } => write!(
                f,
                "`{library}` is not the name of a shared object: give the file's name to the table, and its \
                 folder to `Provider::from_folder` or {}",
                crate::LIB_DIR_VARIABLE
            ),
        }
    }
}

impl Error for LoadError {}

/// The text, because a `main` that returns an error prints its `Debug`, and so do `unwrap` and
/// `expect`.
impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The loaded library lacks a function, because it is older than the function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MissingSymbol {
    /// The shared object's name.
    pub library: &'static str,
    /// The name of the C function that the library does not export.
    pub name: &'static str,
    /// The symbol version of the function; empty for a function without one.
    pub version: &'static str,
    /// The release of rdma-core that added it; empty if unknown.
    pub since: &'static str,
}

impl fmt::Display for MissingSymbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not export `{}`", self.library, self.name)?;
        if !self.since.is_empty() {
            write!(f, " (added in {}, rdma-core {})", self.version, self.since)?;
        }
        Ok(())
    }
}

impl Error for MissingSymbol {}

/// The text, because a `main` that returns an error prints its `Debug`, and so do `unwrap` and
/// `expect`.
impl fmt::Debug for MissingSymbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
