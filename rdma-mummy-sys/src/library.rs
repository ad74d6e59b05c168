//! Opens a shared object and looks up its symbols.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Dl, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Attempt, LoadError};

/// An open shared object, from which a [`LibraryTable`](crate::LibraryTable) takes its functions. It
/// is never closed, because its functions are in tables that live as long as the process.
pub struct Library {
    handle: *mut c_void,
    path: PathBuf,
    /// Whether the object defines symbol versions.
    versioned: bool,
}

impl Library {
    /// Opens `name` in `folder`, or in the dynamic loader's search path.
    pub(crate) fn open(name: &'static str, folder: Option<&Path>) -> Result<Self, LoadError> {
        let path = folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
        // SAFETY: loading runs the constructors of rdma-core's library and of its dependencies, as
        // it does in any program that links to it.
        match unsafe { Dl::open(Some(&path), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => {
                let mut library = Self { handle: library.into_raw(), path, versioned: false };
                library.versioned = library.defines_versions();
                Ok(library)
            }
            Err(error) => Err(LoadError::NotFound {
                library: name,
                tried: vec![Attempt { path, reason: reason(&error) }],
            }),
        }
    }

    /// The path or name that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The function `name` in its default version. The lookup ignores the version if it is empty,
    /// or if neither the object nor its dependencies define versions.
    ///
    /// If a versioned object lacks this version, the result is `None`: an older function of the
    /// same name may have another prototype.
    pub fn find(&self, name: &str, version: &str) -> Option<NonNull<c_void>> {
        let name = CString::new(name).ok()?;
        if self.versioned && !version.is_empty() {
            return self.find_version(&name, &CString::new(version).ok()?);
        }
        self.find_plain(&name)
    }

    /// The address of `name` in this object or its dependencies, whatever its version.
    pub(crate) fn find_plain(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open (never closed), the name ends with a NUL.
        NonNull::new(unsafe { libc::dlsym(self.handle, name.as_ptr()) })
    }

    #[cfg(target_env = "gnu")]
    fn find_version(&self, name: &CStr, version: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open (never closed), both strings end with a NUL.
        NonNull::new(unsafe { libc::dlvsym(self.handle, name.as_ptr(), version.as_ptr()) })
    }

    #[cfg(not(target_env = "gnu"))]
    fn find_version(&self, name: &CStr, _: &CStr) -> Option<NonNull<c_void>> {
        self.find_plain(name)
    }

    /// Looks for functions that have existed, in these versions, since the first release of each
    /// library.
    #[cfg(target_env = "gnu")]
    fn defines_versions(&self) -> bool {
        const ANCHORS: [(&CStr, &CStr); 4] = [
            (c"ibv_get_device_list", c"IBVERBS_1.1"),
            (c"rdma_create_id", c"RDMACM_1.0"),
            (c"mlx5dv_init_obj", c"MLX5_1.2"),
            (c"efadv_create_driver_qp", c"EFA_1.0"),
        ];
        ANCHORS.iter().any(|(name, version)| self.find_version(name, version).is_some())
    }

    #[cfg(not(target_env = "gnu"))]
    fn defines_versions(&self) -> bool {
        false
    }
}

/// The loader's error text, which libloading keeps as the error's source.
fn reason(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { source } => source.to_string(),
        other => other.to_string(),
    }
}
