//! The resource that a failed call of a device lacked.

use std::error::Error;
use std::{io, iter};

use crate::pool::PoolError;
use crate::wire::{Cause, Unavailable};

/// The reason that a call failed: the limit of the process that the error number names, or
/// `otherwise`.
pub(super) fn lacking(device: &str, otherwise: Cause, error: &(dyn Error + 'static)) -> Unavailable {
    match errno(error) {
        Some(libc::EMFILE | libc::ENFILE) => {
            let limit = limit_of(rustix::process::Resource::Nofile);
            Unavailable::new(Cause::Descriptors, format!("{device}: {error}; it may have {limit}"))
        }
        _ => Unavailable::new(otherwise, format!("{device}: {error}")),
    }
}

/// The reason that a pool cannot be used for a device.
pub(crate) fn of_pool(error: &PoolError) -> Unavailable {
    match error {
        // A device that pins memory reports the limit of the process in this way.
        PoolError::Register { bytes, source } if errno(&**source) == Some(libc::ENOMEM) => {
            let limit = limit_of(rustix::process::Resource::Memlock);
            let words = format!("{bytes} bytes more are needed, and the limit is {limit} bytes");
            Unavailable::new(Cause::LockedMemory, words)
        }
        _ => Unavailable::new(Cause::Resources, error.to_string()),
    }
}

/// The error number among the sources of an error.
fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut sources = iter::successors(Some(error), |error| (*error).source());
    sources.find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())
}

fn limit_of(resource: rustix::process::Resource) -> String {
    let limit = rustix::process::getrlimit(resource).current;
    limit.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string())
}
