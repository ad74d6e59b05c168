//! A provider: one loaded set of libraries, as a value.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::environment::secure_var_os;
use crate::error::LoadError;
use crate::library::Library;
use crate::{Efadv, Mlx5dv, RdmaCm, Verbs};

/// The environment variable with the folder to load the libraries from. Secure execution ignores it.
pub const LIB_DIR_VARIABLE: &str = "RDMA_MUMMY_LIB_DIR";

/// One set of libraries: libibverbs, and on first use librdmacm and the direct verbs.
///
/// A provider is a small value to copy; the libraries live as long as the process. An object that
/// one provider's functions created may only be passed to functions of the same provider.
#[derive(Clone, Copy)]
pub struct Provider(&'static Inner);

struct Inner {
    name: &'static str,
    verbs: Verbs,
    rdmacm: OnceLock<Result<RdmaCm, LoadError>>,
    mlx5dv: OnceLock<Result<Mlx5dv, LoadError>>,
    efadv: OnceLock<Result<Efadv, LoadError>>,
    /// The source of the provider's other libraries; `None` for a program's own tables.
    origin: Option<LibraryOrigin>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LibraryOrigin {
    System,
    Folder(PathBuf),
}

impl LibraryOrigin {
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::System => None,
            Self::Folder(folder) => Some(folder),
        }
    }
}

impl Provider {
    /// The default: the libraries in the folder of `RDMA_MUMMY_LIB_DIR`, else the system's.
    ///
    /// [`secure_var_os`] reads the variable, so a program with more rights than its user ignores it.
    ///
    /// # Errors
    ///
    /// [`LoadError`] lists the paths that were tried. A later call tries again.
    pub fn open() -> Result<Self, LoadError> {
        match secure_var_os(LIB_DIR_VARIABLE) {
            Some(folder) if !folder.is_empty() => Self::from_folder(Path::new(&folder)),
            _ => Self::system(),
        }
    }

    /// The libraries in the dynamic loader's search path.
    ///
    /// # Errors
    ///
    /// [`LoadError`] lists the paths that were tried.
    pub fn system() -> Result<Self, LoadError> {
        Self::load(LibraryOrigin::System)
    }

    /// The libraries in a folder.
    ///
    /// # Errors
    ///
    /// [`LoadError`] lists the paths that were tried.
    pub fn from_folder(folder: &Path) -> Result<Self, LoadError> {
        Self::load(LibraryOrigin::Folder(folder.to_owned()))
    }

    /// A provider that the program implements: a software device, or a stand-in for tests.
    ///
    /// The tables are leaked, like those of a loaded library. Therefore create a provider once, not
    /// in a loop.
    ///
    /// # Safety
    ///
    /// Every function in the tables does what the C function of the same name does, as long as the
    /// process lives. The objects that it returns are valid according to the manual, and so are the
    /// operations in their structs.
    pub unsafe fn from_tables(name: &'static str, verbs: Verbs, rdmacm: Option<RdmaCm>) -> Self {
        // SAFETY: the caller guarantees (`# Safety`) that each function in these tables does what
        // the C function of the same name does. The absent tables have no functions.
        unsafe { Self::from_tables_with_direct(name, verbs, rdmacm, None, None) }
    }

    /// Like [`from_tables`](Self::from_tables), with direct verbs.
    ///
    /// # Safety
    ///
    /// As [`from_tables`](Self::from_tables). The functions that tell whether they support a device
    /// (`mlx5dv_is_supported`, `efadv_query_device`) accept any device of `verbs`.
    pub unsafe fn from_tables_with_direct(
        name: &'static str,
        verbs: Verbs,
        rdmacm: Option<RdmaCm>,
        mlx5dv: Option<Mlx5dv>,
        efadv: Option<Efadv>,
    ) -> Self {
        let missing = |library| LoadError::NotProvided { library, provider: name };
        Self(Box::leak(Box::new(Inner {
            name,
            verbs,
            rdmacm: OnceLock::from(rdmacm.ok_or_else(|| missing(RdmaCm::LIBRARY))),
            mlx5dv: OnceLock::from(mlx5dv.ok_or_else(|| missing(Mlx5dv::LIBRARY))),
            efadv: OnceLock::from(efadv.ok_or_else(|| missing(Efadv::LIBRARY))),
            origin: None,
        })))
    }

    /// `system`, the folder, or the name that the program gave.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The functions of libibverbs.
    #[inline]
    pub fn verbs(self) -> &'static Verbs {
        &self.0.verbs
    }

    /// The functions of librdmacm, loaded by the first call.
    ///
    /// # Errors
    ///
    /// [`LoadError`] lists the paths that were tried, or reports that this provider has none.
    pub fn rdmacm(self) -> Result<&'static RdmaCm, &'static LoadError> {
        self.0.rdmacm.get_or_init(|| self.further(RdmaCm::LIBRARY, RdmaCm::load)).as_ref()
    }

    /// The direct verbs of mlx5, loaded by the first call.
    ///
    /// # Errors
    ///
    /// [`LoadError`] lists the paths that were tried, or reports that this provider has none.
    pub fn mlx5dv(self) -> Result<&'static Mlx5dv, &'static LoadError> {
        self.0.mlx5dv.get_or_init(|| self.further(Mlx5dv::LIBRARY, Mlx5dv::load)).as_ref()
    }

    /// The direct verbs of EFA, loaded by the first call.
    ///
    /// # Errors
    ///
    /// [`LoadError`] lists the paths that were tried, or reports that this provider has none.
    pub fn efadv(self) -> Result<&'static Efadv, &'static LoadError> {
        self.0.efadv.get_or_init(|| self.further(Efadv::LIBRARY, Efadv::load)).as_ref()
    }

    /// Loads each origin once; only a success is cached.
    fn load(origin: LibraryOrigin) -> Result<Self, LoadError> {
        static LOADED: Mutex<Option<HashMap<LibraryOrigin, Provider>>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = loaded.get_or_insert_default();
        if let Some(provider) = loaded.get(&origin) {
            return Ok(*provider);
        }
        let library = Library::open(Verbs::LIBRARY, origin.folder())?;
        let verbs = Verbs::load(&library)?;
        let name = match &origin {
            LibraryOrigin::System => "system",
            LibraryOrigin::Folder(folder) => Box::leak(folder.display().to_string().into_boxed_str()),
        };
        let provider = Self(Box::leak(Box::new(Inner {
            name,
            verbs,
            rdmacm: OnceLock::new(),
            mlx5dv: OnceLock::new(),
            efadv: OnceLock::new(),
            origin: Some(origin.clone()),
        })));
        loaded.insert(origin, provider);
        Ok(provider)
    }

    /// Loads another library of the same origin and checks that it uses the same libibverbs. The
    /// dynamic loader may resolve its dependency to a library of the same name that was loaded
    /// earlier, and the two do not share contexts.
    fn further<T>(
        self,
        name: &'static str,
        load: fn(&Library) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        let provider = self.0.name;
        let origin = self.0.origin.as_ref().ok_or(LoadError::NotProvided { library: name, provider })?;
        let library = Library::open(name, origin.folder())?;
        let table = load(&library)?;
        let theirs = library.find_plain(c"ibv_get_device_list").map(|f| f.addr().get());
        if theirs.is_some_and(|theirs| theirs != self.0.verbs.ibv_get_device_list as usize) {
            return Err(LoadError::OtherVerbs { library: name, path: library.path().to_owned() });
        }
        Ok(table)
    }
}

impl PartialEq for Provider {
    /// Equal only for the same loaded set, not for two sets of the same kind.
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.0, other.0)
    }
}

impl Eq for Provider {}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Provider").field(&self.0.name).finish()
    }
}
