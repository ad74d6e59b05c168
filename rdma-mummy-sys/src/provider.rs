//! A provider: one loaded set of libraries, as a value.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::environment::secure_var_os;
use crate::error::LoadError;
use crate::library::Library;
use crate::{Efadv, LibraryTable, Mlx5dv, RdmaCm, Verbs};

/// The environment variable with the folder to load the libraries from. Secure execution ignores it.
pub const LIB_DIR_VARIABLE: &str = "RDMA_MUMMY_LIB_DIR";

/// One set of libraries: libibverbs, and on first use librdmacm and the vendors' libraries.
///
/// A provider is a small value to copy; the libraries live as long as the process. An object that
/// one provider's functions created may only be passed to functions of the same provider.
#[derive(Clone, Copy)]
pub struct Provider(&'static Inner);

struct Inner {
    name: &'static str,
    verbs: Verbs,
    rdmacm: OnceLock<Result<RdmaCm, LoadError>>,
    vendors: Mutex<VendorTables>,
    /// The source of the provider's other libraries; `None` for a program's own tables.
    origin: Option<LibraryOrigin>,
}

/// The tables of vendors' libraries, each a leaked `Result<T, LoadError>` under the id of its `T`.
type VendorTables = HashMap<TypeId, &'static (dyn Any + Send + Sync)>;

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
        let mut vendors = VendorTables::new();
        if let Some(mlx5dv) = mlx5dv {
            vendors.insert(TypeId::of::<Mlx5dv>(), keep(Ok(mlx5dv)));
        }
        if let Some(efadv) = efadv {
            vendors.insert(TypeId::of::<Efadv>(), keep(Ok(efadv)));
        }
        let missing = LoadError::NotProvided { library: RdmaCm::LIBRARY, provider: name };
        Self(Box::leak(Box::new(Inner {
            name,
            verbs,
            rdmacm: OnceLock::from(rdmacm.ok_or(missing)),
            vendors: Mutex::new(vendors),
            origin: None,
        })))
    }

    /// A provider with everything that this one has, and with a vendor's library that the program
    /// brings: a stand-in for tests. A context belongs to the provider that opened it.
    ///
    /// The tables are leaked, as those of [`from_tables`](Self::from_tables).
    ///
    /// # Safety
    ///
    /// As [`from_tables`](Self::from_tables). The functions accept the objects of this provider's
    /// [`verbs`](Self::verbs).
    pub unsafe fn with_library<T: LibraryTable>(self, table: T) -> Self {
        let Inner { name, verbs, rdmacm, vendors, origin } = self.0;
        let mut vendors = vendors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        vendors.insert(TypeId::of::<T>(), keep(Ok(table)));
        Self(Box::leak(Box::new(Inner {
            name,
            verbs: *verbs,
            rdmacm: rdmacm.clone(),
            vendors: Mutex::new(vendors),
            origin: origin.clone(),
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

    /// The functions of a vendor's library, loaded by the first call. The library must use the same
    /// libibverbs as this provider.
    ///
    /// # Errors
    ///
    /// [`LoadError`] lists the paths that were tried, or reports that this provider has none.
    pub fn library<T: LibraryTable>(self) -> Result<&'static T, &'static LoadError> {
        let vendors = || self.0.vendors.lock().unwrap_or_else(PoisonError::into_inner);
        let found = vendors().get(&TypeId::of::<T>()).copied();
        let table = found.unwrap_or_else(|| {
            // Without the lock, because `T::load` may ask this provider for another library. If
            // another thread was faster, its table is the provider's.
            let table = self.further(T::LIBRARY, T::load);
            *vendors().entry(TypeId::of::<T>()).or_insert_with(|| keep(table))
        });
        match table.downcast_ref::<Result<T, LoadError>>() {
            Some(table) => table.as_ref(),
            None => unreachable!("each table is kept under the id of its type"),
        }
    }

    /// The direct verbs of mlx5, loaded by the first call.
    ///
    /// # Errors
    ///
    /// [`LoadError`] lists the paths that were tried, or reports that this provider has none.
    pub fn mlx5dv(self) -> Result<&'static Mlx5dv, &'static LoadError> {
        self.library()
    }

    /// The direct verbs of EFA, loaded by the first call.
    ///
    /// # Errors
    ///
    /// [`LoadError`] lists the paths that were tried, or reports that this provider has none.
    pub fn efadv(self) -> Result<&'static Efadv, &'static LoadError> {
        self.library()
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
            vendors: Mutex::default(),
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

/// Keeps a table, or why there is none.
fn keep<T: LibraryTable>(table: Result<T, LoadError>) -> &'static (dyn Any + Send + Sync) {
    Box::leak(Box::new(table))
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
