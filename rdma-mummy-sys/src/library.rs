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
        // The loader takes a name with a slash as a path, and an empty one as the program itself.
        if name.is_empty() || name.contains('/') {
            return Err(LoadError::NotAName { library: name });
        }
        let path = folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
        // SAFETY: loading runs the constructors of the library and of its dependencies, as in any
        // program that links to it. The name is not a path (checked above), so the library comes from
        // the folder that the program or its environment names, or from the loader's search path. The
        // libraries there are trusted, as those that a program links to are.
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

    /// The function `name` with this symbol version, in the object or its dependencies. The lookup
    /// ignores the version if it is empty, or if the object defines no versions.
    ///
    /// If an object that defines versions has the function in others only, the result is `None`: a
    /// function of the same name may have another prototype there. With musl, whose loader ignores
    /// versions, the lookup ignores them, too.
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

    /// Whether the object has a table of version definitions. (`dlvsym` alone does not tell: of an
    /// object without definitions it finds the functions only if the object's dependencies have none
    /// either.)
    #[cfg(target_env = "gnu")]
    fn defines_versions(&self) -> bool {
        let mut map: *const LinkMap = core::ptr::null();
        // SAFETY: the handle is open (never closed). For this request the result is the address of
        // the object's entry in the loader's list.
        let result = unsafe { libc::dlinfo(self.handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) };
        if result != 0 || map.is_null() {
            return false;
        }
        // SAFETY: the entry and the dynamic section are as alive as the object. They begin with these
        // fields (`man dlinfo`, `link.h`), and the section ends with `DT_NULL`. Only the loader writes
        // to them, before `dlopen` returns.
        unsafe {
            let mut entry = (*map).dynamic;
            while (*entry).tag != DT_NULL && (*entry).tag != DT_VERDEF {
                entry = entry.add(1);
            }
            (*entry).tag == DT_VERDEF
        }
    }

    #[cfg(not(target_env = "gnu"))]
    fn defines_versions(&self) -> bool {
        false
    }
}

/// The beginning of the C struct `link_map`.
#[cfg(target_env = "gnu")]
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const core::ffi::c_char,
    dynamic: *const DynamicEntry,
}

/// An entry of an object's dynamic section (`ElfW(Dyn)`).
#[cfg(target_env = "gnu")]
#[repr(C)]
struct DynamicEntry {
    tag: isize,
    value: usize,
}

/// The last entry's tag.
#[cfg(target_env = "gnu")]
const DT_NULL: isize = 0;

/// The tag of the table of version definitions.
#[cfg(target_env = "gnu")]
const DT_VERDEF: isize = 0x6fff_fffc;

/// The loader's error text, which libloading keeps as the error's source.
fn reason(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { source } => source.to_string(),
        other => other.to_string(),
    }
}
