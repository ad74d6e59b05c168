//! A provider: one loaded set of libraries, as a value.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::LoadError;
use crate::library::Library;
use crate::{Efadv, Mlx5dv, RdmaCm, Verbs};

/// The environment variable that names another folder to load the libraries from.
pub const LIB_DIR_VARIABLE: &str = "RDMA_MUMMY_LIB_DIR";

/// One set of libraries: libibverbs, and librdmacm and the direct verbs once they are asked for.
///
/// A provider is a small value to copy around; what it points to lives as long as the process. What
/// was made with the functions of one provider may only be given to functions of the same.
#[derive(Clone, Copy)]
pub struct Provider(&'static Inner);

struct Inner {
    name: &'static str,
    verbs: Verbs,
    rdmacm: OnceLock<Result<RdmaCm, LoadError>>,
    mlx5dv: OnceLock<Result<Mlx5dv, LoadError>>,
    efadv: OnceLock<Result<Efadv, LoadError>>,
    /// Where further libraries of this provider come from; `None` for a program's own tables.
    origin: Option<Origin>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Origin {
    System,
    Folder(PathBuf),
}

impl Origin {
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::System => None,
            Self::Folder(folder) => Some(folder),
        }
    }
}

impl Provider {
    /// The default: the folder that `RDMA_MUMMY_LIB_DIR` names, else the system's libraries.
    ///
    /// # Errors
    ///
    /// [`LoadError`] says what was tried. A later call tries again.
    pub fn open() -> Result<Self, LoadError> {
        match std::env::var_os(LIB_DIR_VARIABLE) {
            Some(folder) if !folder.is_empty() => Self::from_folder(Path::new(&folder)),
            _ => Self::system(),
        }
    }

    /// The libraries that the dynamic loader finds by name.
    ///
    /// # Errors
    ///
    /// [`LoadError`] says what was tried.
    pub fn system() -> Result<Self, LoadError> {
        Self::load(Origin::System)
    }

    /// The libraries in a folder.
    ///
    /// # Errors
    ///
    /// [`LoadError`] says what was tried.
    pub fn from_folder(folder: &Path) -> Result<Self, LoadError> {
        Self::load(Origin::Folder(folder.to_owned()))
    }

    /// A provider of the program's own: a software device, or a stand-in for tests.
    ///
    /// The tables are leaked, as those of a loaded library are: make a provider once, not in a loop.
    ///
    /// # Safety
    ///
    /// Every function in the tables does what the C function of the same name does, for as long as the
    /// process lives: what it returns is valid as the manual says, and so are the operations in the structs
    /// that it returns.
    pub unsafe fn from_tables(name: &'static str, verbs: Verbs, rdmacm: Option<RdmaCm>) -> Self {
        // SAFETY: the caller guarantees (`# Safety`) that each function does what the C function of
        // the same name does; without a table there is no function.
        unsafe { Self::from_tables_with_direct(name, verbs, rdmacm, None, None) }
    }

    /// The same, with direct verbs.
    ///
    /// # Safety
    ///
    /// As [`from_tables`](Self::from_tables). The functions that tell whether a device is theirs (`mlx5dv_is_supported`,
    /// `efadv_query_device`) can be asked about any device of `verbs`.
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
    /// [`LoadError`] says what was tried, or that this provider has none.
    pub fn rdmacm(self) -> Result<&'static RdmaCm, &'static LoadError> {
        self.0.rdmacm.get_or_init(|| self.further(RdmaCm::LIBRARY, RdmaCm::load)).as_ref()
    }

    /// The direct verbs of mlx5, loaded by the first call.
    ///
    /// # Errors
    ///
    /// [`LoadError`] says what was tried, or that this provider has none.
    pub fn mlx5dv(self) -> Result<&'static Mlx5dv, &'static LoadError> {
        self.0.mlx5dv.get_or_init(|| self.further(Mlx5dv::LIBRARY, Mlx5dv::load)).as_ref()
    }

    /// The direct verbs of EFA, loaded by the first call.
    ///
    /// # Errors
    ///
    /// [`LoadError`] says what was tried, or that this provider has none.
    pub fn efadv(self) -> Result<&'static Efadv, &'static LoadError> {
        self.0.efadv.get_or_init(|| self.further(Efadv::LIBRARY, Efadv::load)).as_ref()
    }

    /// Each origin is loaded once; only success is remembered.
    fn load(origin: Origin) -> Result<Self, LoadError> {
        static LOADED: Mutex<Option<HashMap<Origin, Provider>>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = loaded.get_or_insert_default();
        if let Some(provider) = loaded.get(&origin) {
            return Ok(*provider);
        }
        let library = Library::open(Verbs::LIBRARY, origin.folder())?;
        let verbs = Verbs::load(&library)?;
        let name = match &origin {
            Origin::System => "system",
            Origin::Folder(folder) => Box::leak(folder.display().to_string().into_boxed_str()),
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

    /// Loads another library of the same origin, which must work on the same libibverbs: two libraries
    /// of one name share what was loaded first, and each keeps its own idea of a context.
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
    /// The same loaded set, not merely the same kind.
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
