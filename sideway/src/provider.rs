//! Which provider a program gets when it does not name one.

use std::sync::{Mutex, PoisonError};

use rdma_mummy_sys::{LoadError, Provider};

/// The environment variable that names the default provider: `system` is the only name today.
pub const PROVIDER_VARIABLE: &str = "SIDEWAY_PROVIDER";

/// The default provider could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// A library is missing or cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// `SIDEWAY_PROVIDER` names something that this build does not have.
    #[error("{PROVIDER_VARIABLE}={0}: there is no such provider; this build has `system`")]
    Unknown(String),
}

static DEFAULT: Mutex<Option<Provider>> = Mutex::new(None);

/// The provider that [`DeviceList::new`](crate::ibverbs::device::DeviceList::new) uses: the one that
/// [`set_default_provider`] set, else the one that `SIDEWAY_PROVIDER` names, else the system's libraries
/// (or those in the folder that `RDMA_MUMMY_LIB_DIR` names).
///
/// # Errors
///
/// The library cannot be loaded, or the environment names no provider of this build.
pub fn default_provider() -> Result<Provider, ProviderError> {
    if let Some(provider) = *DEFAULT.lock().unwrap_or_else(PoisonError::into_inner) {
        return Ok(provider);
    }
    match std::env::var(PROVIDER_VARIABLE) {
        Ok(name) if !matches!(name.as_str(), "" | "system") => Err(ProviderError::Unknown(name)),
        _ => Ok(Provider::open()?),
    }
}

/// Makes `provider` the default of this process, from now on.
pub fn set_default_provider(provider: Provider) {
    *DEFAULT.lock().unwrap_or_else(PoisonError::into_inner) = Some(provider);
}
