//! What a device, or the library that drives it, does not have.

use std::borrow::Cow;
use std::io;

use rdma_mummy_sys::MissingSymbol;

use super::device_context::DeviceContext;

/// The device, or the library that drives it, does not have what was asked for.
///
/// It is one of the errors of every operation that a device may lack, so that a program can tell "never" from
/// "not now" in the same way everywhere. Libraries say it by `EOPNOTSUPP` or `ENOSYS`, by a null operation, or by
/// a symbol that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The C function that was called, or would have been.
    pub verb: &'static str,
    /// What there is not.
    pub capability: Cow<'static, str>,
    /// The device's name; empty where it is the library alone that lacks it.
    pub device: String,
    /// The symbol that the library is too old to have, if that is why.
    pub missing: Option<Box<MissingSymbol>>,
}

impl Unsupported {
    /// The device's library said so, or has no operation for it.
    #[cold]
    pub(crate) fn new(
        context: &DeviceContext,
        verb: &'static str,
        capability: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::of(context.name(), verb, capability)
    }

    /// The same of a device that is not open.
    #[cold]
    pub(crate) fn of(device: String, verb: &'static str, capability: impl Into<Cow<'static, str>>) -> Self {
        Self { verb, capability: capability.into(), device, missing: None }
    }

    /// The library lacks the function.
    #[cold]
    pub(crate) fn missing(
        context: &DeviceContext,
        capability: impl Into<Cow<'static, str>>,
        symbol: MissingSymbol,
    ) -> Self {
        Self::missing_of(context.name(), capability, symbol)
    }

    /// The same of a device that is not open.
    #[cold]
    pub(crate) fn missing_of(
        device: String,
        capability: impl Into<Cow<'static, str>>,
        symbol: MissingSymbol,
    ) -> Self {
        Self { missing: Some(Box::new(symbol)), ..Self::of(device, symbol.name, capability) }
    }

    /// The library lacks the function, whichever device it would be called for.
    #[cold]
    pub(crate) fn of_library(capability: &'static str, symbol: MissingSymbol) -> Self {
        let (verb, capability) = (symbol.name, capability.into());
        Self { verb, capability, device: String::new(), missing: Some(Box::new(symbol)) }
    }

    /// The library refused, whichever device it was called for.
    #[cold]
    pub(crate) fn of_call(verb: &'static str, capability: &'static str) -> Self {
        Self { verb, capability: capability.into(), device: String::new(), missing: None }
    }

    /// Whether an error number of a verb means that it, or what it was asked for, is not there.
    pub(crate) fn is_meant_by(error: &io::Error) -> bool {
        // `ENOTSUP` is the same number as `EOPNOTSUPP` on Linux.
        matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS))
    }
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { verb, capability, device, missing } = self;
        match missing {
            None if device.is_empty() => write!(f, "the system has no {capability} ({verb})"),
            None => write!(f, "device {device} has no {capability} ({verb})"),
            Some(symbol) if device.is_empty() => write!(f, "the library has no {capability}: {symbol}"),
            Some(symbol) => write!(f, "device {device} has no {capability} here: {symbol}"),
        }
    }
}

impl std::error::Error for Unsupported {}
