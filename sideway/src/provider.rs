//! Provider selection: the system's RDMA libraries or the software device.
//!
//! | `SIDEWAY_PROVIDER` | [`ProviderChoice`] | devices |
//! | --- | --- | --- |
//! | `system` | [`System`](ProviderChoice::System) | rdma-core's; `RDMA_MUMMY_LIB_DIR` selects another folder of libraries |
//! | `soft` | [`Soft`](ProviderChoice::Soft) | `soft0` and further software devices in this process |
//! | `auto` | [`Auto`](ProviderChoice::Auto) | the system's if its library lists any, otherwise the software devices |
//!
//! The software devices need the feature `soft`. Without it, `soft` is an error, and so is `auto`
//! if the system has no device.
//!
//! The first of these determines the provider:
//!
//! 1. the provider that a program passes to
//!    [`DeviceList::from_provider`](crate::ibverbs::device::DeviceList::from_provider), or to
//!    [`set_default_provider`] for all calls without a provider;
//! 2. the environment variable;
//! 3. the program's default: `system` for [`DeviceList::new`], and `auto` for [`DeviceList::auto`]:
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sideway::DeviceList;
//!
//! let devices = DeviceList::auto()?;
//! if let Some(reason) = devices.fallback() {
//!     eprintln!("notice: {reason}; using software devices");
//! }
//! let context = devices.first()?.open()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```
//!
//! A process may use several providers at a time, each with separate device lists and contexts.

use std::ffi::OsStr;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use rdma_mummy_sys::{LoadError, Provider, secure_var_os};

use crate::error::{Error, ErrorKind};
use crate::ibverbs::device::DeviceList;

/// The environment variable that selects the provider: `system`, `soft` or `auto`.
pub const PROVIDER_VARIABLE: &str = "SIDEWAY_PROVIDER";

/// The devices that a program works with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderChoice {
    /// The devices of the system's libraries.
    #[default]
    System,
    /// The software devices in this process; needs the feature `soft`.
    Soft,
    /// The system's devices if it lists any, otherwise the software devices.
    ///
    /// The system is queried each time. A library that exists but cannot be used (too old, or
    /// unable to list devices) is an error, and does not select the software devices. A device
    /// whose ports are down counts as a device.
    Auto,
}

impl ProviderChoice {
    const ALL: [Self; 3] = [Self::System, Self::Soft, Self::Auto];

    /// Its name in the environment variable.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Soft => "soft",
            Self::Auto => "auto",
        }
    }

    /// The choice in `SIDEWAY_PROVIDER`; `None` if it is not set, or empty, or in secure execution
    /// ([`secure_var_os`]).
    ///
    /// # Errors
    ///
    /// Fails if its value is not one of the three names.
    pub fn from_environment() -> Result<Option<Self>, ProviderError> {
        secure_var_os(PROVIDER_VARIABLE).map_or(Ok(None), |value| Self::parse(&value))
    }

    fn parse(value: &OsStr) -> Result<Option<Self>, ProviderError> {
        match Self::ALL.into_iter().find(|choice| value == choice.name()) {
            None if value.is_empty() => Ok(None),
            None => Err(ProviderError::Unknown(value.to_string_lossy().into_owned())),
            found => Ok(found),
        }
    }

    /// Finds the provider.
    ///
    /// # Errors
    ///
    /// Fails if the library cannot be loaded, if this build has no software device, or if the
    /// system cannot list its devices.
    pub fn select(self) -> Result<Selection, ProviderError> {
        match self {
            Self::System => Ok(Selection::plain(Provider::open()?)),
            Self::Soft => asked_for_soft(soft_provider()),
            Self::Auto => auto(Provider::open(), soft_provider()),
        }
    }
}

/// The selected provider and, if [`Auto`](ProviderChoice::Auto) selected the software devices, the
/// reason.
#[derive(Debug)]
pub struct Selection {
    provider: Provider,
    fallback: Option<NoSystemDevice>,
}

impl Selection {
    fn plain(provider: Provider) -> Self {
        Self { provider, fallback: None }
    }

    /// The provider that was selected.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    pub(crate) fn into_fallback(self) -> Option<NoSystemDevice> {
        self.fallback
    }

    /// The reason why [`Auto`](ProviderChoice::Auto) selected the software devices; `None` in other
    /// cases.
    ///
    /// A program should show it to its user, who might otherwise take results of a software device
    /// for those of hardware.
    pub fn fallback(&self) -> Option<&NoSystemDevice> {
        self.fallback.as_ref()
    }
}

/// Why the system has no device.
#[derive(Debug)]
#[non_exhaustive]
pub enum NoSystemDevice {
    /// It has no library to ask.
    NoLibrary(LoadError),
    /// Its kernel has no RDMA subsystem.
    NoKernelSupport(Error),
    /// Its library lists none.
    NoneListed,
}

impl fmt::Display for NoSystemDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the system has no RDMA device (")?;
        match self {
            Self::NoLibrary(error) => write!(f, "{} cannot be loaded", error.library()),
            Self::NoKernelSupport(_) => f.write_str("its kernel has no RDMA subsystem"),
            Self::NoneListed => f.write_str("its library lists none"),
        }?;
        f.write_str(")")
    }
}

/// A provider could not be had.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// A library is missing or cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// `SIDEWAY_PROVIDER` names something that there is not.
    #[error("{PROVIDER_VARIABLE}={0}: there is no such provider; choose `system`, `soft` or `auto`")]
    Unknown(String),
    /// Software devices were asked for, and this build has none.
    #[error(
        "the provider `soft` is not in this build: build it with the feature `soft`, or choose \
         `{PROVIDER_VARIABLE}=system`"
    )]
    NotBuilt,
    /// There is no device to go by: the system has none, and this build has no software one.
    #[error(
        "{0}, and the provider `soft` is not in this build: install rdma-core and load the NIC's driver, or \
         build it with the feature `soft`"
    )]
    NoDevice(NoSystemDevice),
    /// The system's library is there, and fails to list devices.
    #[error(
        "cannot tell whether the system has RDMA devices: {0}; choose \
         `{PROVIDER_VARIABLE}=soft` to go without"
    )]
    List(#[source] Error),
}

debug_as_text!(ProviderError);

impl ProviderError {
    /// The error of the C function `verb` that this one causes.
    pub(crate) fn of_verb(self, verb: &'static str) -> Error {
        Error::caused(verb, self.kind(), self)
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Load(_) => ErrorKind::Library,
            Self::Unknown(_) | Self::NotBuilt => ErrorKind::Configuration,
            Self::NoDevice(_) => ErrorKind::NoDevice,
            Self::List(source) => source.kind(),
        }
    }
}

/// The software devices, if this build has them.
fn soft_provider() -> Option<Provider> {
    #[cfg(feature = "soft")]
    return Some(soft_rnic::provider());
    #[cfg(not(feature = "soft"))]
    None
}

fn asked_for_soft(soft: Option<Provider>) -> Result<Selection, ProviderError> {
    soft.map(Selection::plain).ok_or(ProviderError::NotBuilt)
}

fn auto(system: Result<Provider, LoadError>, soft: Option<Provider>) -> Result<Selection, ProviderError> {
    let reason = match system {
        Ok(system) => match DeviceList::from_provider(system) {
            Ok(list) if !list.is_empty() => return Ok(Selection::plain(system)),
            Ok(_) => NoSystemDevice::NoneListed,
            Err(error) if error.kind() == ErrorKind::NoDevice => NoSystemDevice::NoKernelSupport(error),
            Err(error) => return Err(ProviderError::List(error)),
        },
        Err(missing @ LoadError::NotFound { .. }) => NoSystemDevice::NoLibrary(missing),
        Err(unusable) => return Err(unusable.into()),
    };
    match soft {
        Some(provider) => Ok(Selection { provider, fallback: Some(reason) }),
        None => Err(ProviderError::NoDevice(reason)),
    }
}

static DEFAULT: Mutex<Option<Provider>> = Mutex::new(None);

/// The provider that [`DeviceList::new`](crate::ibverbs::device::DeviceList::new) uses. It is the
/// one set by [`set_default_provider`], otherwise the one selected by `SIDEWAY_PROVIDER`, otherwise
/// the system's.
///
/// # Errors
///
/// Fails as [`ProviderChoice::from_environment`] and [`ProviderChoice::select`] do.
pub fn default_provider() -> Result<Provider, ProviderError> {
    Ok(select_or(ProviderChoice::System)?.provider())
}

/// The default provider, which is `auto` unless a program or the environment chooses.
pub(crate) fn automatic() -> Result<Selection, ProviderError> {
    select_or(ProviderChoice::Auto)
}

fn select_or(choice: ProviderChoice) -> Result<Selection, ProviderError> {
    if let Some(provider) = *DEFAULT.lock().unwrap_or_else(PoisonError::into_inner) {
        return Ok(Selection::plain(provider));
    }
    ProviderChoice::from_environment()?.unwrap_or(choice).select()
}

/// The default provider, for the C function `verb`.
pub(crate) fn default_provider_for(verb: &'static str) -> Result<Provider, Error> {
    default_provider().map_err(|error| error.of_verb(verb))
}

/// The error of `verb` if the software device is configured wrongly, which its error number cannot
/// express.
#[cfg_attr(not(feature = "soft"), allow(unused_variables))]
pub(crate) fn invalid_configuration(verb: &'static str, provider: Provider) -> Option<Error> {
    #[cfg(feature = "soft")]
    if provider == soft_rnic::provider()
        && let Err(reason) = soft_rnic::check_configuration()
    {
        return Some(Error::caused(verb, ErrorKind::Configuration, reason));
    }
    None
}

/// Makes `provider` the default of this process, from now on.
pub fn set_default_provider(provider: Provider) {
    *DEFAULT.lock().unwrap_or_else(PoisonError::into_inner) = Some(provider);
}

#[cfg(test)]
mod tests {
    use std::ffi::{OsStr, c_int};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::ptr;

    use rdma_mummy_sys::Verbs;
    use rdma_mummy_sys::types::ibv_device;

    use super::*;

    /// A list of one null device; the code under test only reads the length.
    unsafe extern "C" fn one_device(num: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: the caller's pointer is valid for the count.
        unsafe { num.write(1) };
        Box::into_raw(Box::new([ptr::null_mut::<ibv_device>(); 2])).cast()
    }

    unsafe extern "C" fn free_one(list: *mut *mut ibv_device) {
        // SAFETY: `one_device` made the list, and it is freed once.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
    }

    unsafe extern "C" fn no_device(num: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: the caller's pointer is valid for the count.
        unsafe { num.write(0) };
        Box::into_raw(Box::new([ptr::null_mut::<ibv_device>(); 2])).cast()
    }

    fn fails(error: c_int) -> *mut *mut ibv_device {
        // SAFETY: the location is this thread's errno.
        unsafe { *libc::__errno_location() = error };
        ptr::null_mut()
    }

    unsafe extern "C" fn no_subsystem(_: *mut c_int) -> *mut *mut ibv_device {
        fails(libc::ENOSYS)
    }

    unsafe extern "C" fn too_many_files(_: *mut c_int) -> *mut *mut ibv_device {
        fails(libc::EMFILE)
    }

    type Lister = unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;

    fn provider(name: &'static str, list: Lister) -> Provider {
        let table =
            || Verbs { ibv_get_device_list: list, ibv_free_device_list: free_one, ..Verbs::unsupported() };
        // SAFETY: the two functions keep their contracts, and all others return errors.
        unsafe { Provider::from_tables(name, table(), None) }
    }

    fn missing_library() -> LoadError {
        Provider::from_folder(Path::new("/nonexistent")).unwrap_err()
    }

    #[test]
    fn names_are_read_and_others_are_refused() {
        for choice in ProviderChoice::ALL {
            assert_eq!(ProviderChoice::parse(OsStr::new(choice.name())).unwrap(), Some(choice));
        }
        assert_eq!(ProviderChoice::parse(OsStr::new("")).unwrap(), None);
        for (value, shown) in [("Soft", "Soft"), ("soft ", "soft "), ("rxe", "rxe")] {
            let error = ProviderChoice::parse(OsStr::new(value)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("SIDEWAY_PROVIDER={shown}: there is no such")), "{error}");
            assert!(error.contains("`system`, `soft` or `auto`"), "{error}");
        }
        assert!(matches!(ProviderChoice::parse(OsStr::from_bytes(b"\xff")), Err(ProviderError::Unknown(_))));
        assert_eq!(ProviderChoice::default(), ProviderChoice::System);
    }

    #[test]
    fn soft_is_the_software_device_or_an_error_that_names_the_feature() {
        let soft = provider("soft", one_device);
        let selection = asked_for_soft(Some(soft)).unwrap();
        assert_eq!(selection.provider(), soft);
        assert!(selection.fallback().is_none());
        let error = asked_for_soft(None).unwrap_err().to_string();
        assert!(error.contains("feature `soft`") && error.contains("SIDEWAY_PROVIDER=system"), "{error}");
    }

    #[test]
    fn this_build_is_asked_for_its_software_device() {
        match (ProviderChoice::Soft.select(), cfg!(feature = "soft")) {
            (Ok(selection), true) => assert_eq!(selection.provider().name(), "soft"),
            (Err(ProviderError::NotBuilt), false) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn auto_is_the_system_where_it_lists_a_device() {
        let system = provider("system", one_device);
        for soft in [None, Some(provider("soft", one_device))] {
            let selection = auto(Ok(system), soft).unwrap();
            assert_eq!(selection.provider(), system);
            assert!(selection.fallback().is_none());
        }
    }

    #[test]
    fn auto_is_soft_where_the_system_has_no_device() {
        let soft = provider("soft", one_device);
        for (system, reason) in [
            (Err(missing_library()), "libibverbs.so.1 cannot be loaded"),
            (Ok(provider("system", no_device)), "its library lists none"),
            (Ok(provider("system", no_subsystem)), "its kernel has no RDMA subsystem"),
        ] {
            let selection = auto(system.clone(), Some(soft)).unwrap();
            assert_eq!(selection.provider(), soft);
            let said = selection.fallback().unwrap().to_string();
            assert!(said.starts_with("the system has no RDMA device") && said.contains(reason), "{said}");

            let error = auto(system, None).unwrap_err();
            assert!(matches!(error, ProviderError::NoDevice(_)), "{error:?}");
            let error = error.to_string();
            assert!(error.contains(reason) && error.contains("feature `soft`"), "{error}");
        }
    }

    #[test]
    fn auto_does_not_hide_a_system_that_is_broken() {
        let soft = provider("soft", one_device);
        let error = auto(Ok(provider("system", too_many_files)), Some(soft)).unwrap_err();
        assert!(matches!(&error, ProviderError::List(source) if source.errno() == Some(libc::EMFILE)));
        let too_old = LoadError::TooOld {
            library: "libibverbs.so.1",
            path: "/old/libibverbs.so.1".into(),
            missing: vec!["ibv_open_device"],
        };
        let error = auto(Err(too_old), Some(soft)).unwrap_err().to_string();
        assert!(error.contains("too old"), "{error}");
    }
}
