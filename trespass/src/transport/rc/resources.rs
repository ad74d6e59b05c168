//! Why a call of a device failed.

use std::error::Error;
use std::{io, iter};

use rustix::process::{Resource, getrlimit};

use crate::pool::PoolError;
use crate::protocol::Blocks;
use crate::wire::{Cause, Unavailable};

/// The reason that a call of this device failed: what its error number names, or `otherwise`.
pub(super) fn lacking(device: &str, otherwise: Cause, error: &(dyn Error + 'static)) -> Unavailable {
    let Unavailable { cause, detail } = reason(otherwise, error);
    Unavailable::new(cause, format!("{device}: {detail}"))
}

/// The reason that no device could be listed, opened or queried. The error names the device.
pub(super) fn no_device(error: &(dyn Error + 'static)) -> Unavailable {
    reason(Cause::DeviceFailed, error)
}

fn reason(otherwise: Cause, error: &(dyn Error + 'static)) -> Unavailable {
    let cause = match errno(error) {
        Some(libc::EMFILE | libc::ENFILE) => {
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            let words = format!("{error}; a connection takes up to 4, and the limit is {limit}");
            return Unavailable::new(Cause::Descriptors, words);
        }
        Some(libc::EIO | libc::ENODEV | libc::ENXIO | libc::EACCES | libc::EPERM) => Cause::DeviceFailed,
        Some(libc::ENOMEM | libc::EAGAIN | libc::ENOSPC) if otherwise == Cause::DeviceFailed => {
            Cause::Resources
        }
        _ => otherwise,
    };
    Unavailable::new(cause, error.to_string())
}

/// The reason that a pool cannot be used for a device.
pub(crate) fn of_pool(error: &PoolError) -> Unavailable {
    // A device that pins memory reports the limit of the process in this way.
    if let PoolError::Register { bytes, source } = error
        && errno(&**source) == Some(libc::ENOMEM)
        && getrlimit(Resource::Memlock).current.is_some()
    {
        return locked_memory(&format!("{bytes} bytes more are needed"));
    }
    Unavailable::new(Cause::Resources, error.to_string())
}

/// The reason that a device registers no more memory.
pub(crate) fn locked_memory(need: &str) -> Unavailable {
    let limit = match getrlimit(Resource::Memlock).current {
        Some(limit) => format!("the limit is {limit} bytes"),
        None => "the process has no limit, but the device may".to_owned(),
    };
    Unavailable::new(Cause::LockedMemory, format!("{need}, and {limit}"))
}

/// The reason that a pool has no block for a connection.
pub(super) fn pool_exhausted(blocks: &impl Blocks, need: &str) -> Unavailable {
    let limit = blocks.most().map(|most| format!(", and pool_max is {most} bytes"));
    Unavailable::new(Cause::PoolExhausted, format!("{need}{}", limit.unwrap_or_default()))
}

/// The error number among the sources of an error.
fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut sources = iter::successors(Some(error), |error| (*error).source());
    sources.find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())
}
