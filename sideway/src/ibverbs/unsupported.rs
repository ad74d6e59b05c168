//! The common error for features that a device or its library lacks.

use std::borrow::Cow;
use std::io;

use rdma_mummy_sys::MissingSymbol;

use super::device_context::DeviceContext;

/// The device, or the library that drives it, does not support the request.
///
/// It is one of the errors of every operation that a device may lack, so that a program can tell
/// "never" from "not now" in the same way everywhere. Libraries report it by `EOPNOTSUPP` or
/// `ENOSYS`, by a null operation, or by a missing symbol.
#[derive(Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// The C function that was called, or would have been.
    pub verb: &'static str,
    /// The missing capability, in words.
    pub capability: Cow<'static, str>,
    /// The device's name; empty if the library lacks the capability for every device.
    pub device: String,
    /// The symbol that is missing in an old library, if that is the reason.
    pub missing: Option<Box<MissingSymbol>>,
}

impl Unsupported {
    /// The device's library reported it at the C function `verb`, or has no such operation. The text
    /// says that the device has no `capability`.
    #[cold]
    pub fn new(
        context: &DeviceContext,
        verb: &'static str,
        capability: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::of(context.name(), verb, capability)
    }

    /// As [`new`](Self::new), for a device that is not open.
    #[cold]
    pub fn of(device: String, verb: &'static str, capability: impl Into<Cow<'static, str>>) -> Self {
        Self { verb, capability: capability.into(), device, missing: None }
    }

    /// The device's library lacks the function that the capability needs.
    #[cold]
    pub fn missing(
        context: &DeviceContext,
        capability: impl Into<Cow<'static, str>>,
        symbol: MissingSymbol,
    ) -> Self {
        Self::missing_of(context.name(), capability, symbol)
    }

    /// As [`missing`](Self::missing), for a device that is not open.
    #[cold]
    pub fn missing_of(
        device: String,
        capability: impl Into<Cow<'static, str>>,
        symbol: MissingSymbol,
    ) -> Self {
        Self { missing: Some(Box::new(symbol)), ..Self::of(device, symbol.name, capability) }
    }

    /// The library lacks the function, for every device.
    #[cold]
    pub(crate) fn of_library(capability: &'static str, symbol: MissingSymbol) -> Self {
        let (verb, capability) = (symbol.name, capability.into());
        Self { verb, capability, device: String::new(), missing: Some(Box::new(symbol)) }
    }

    /// The library rejected the call, for every device.
    #[cold]
    pub(crate) fn of_call(verb: &'static str, capability: &'static str) -> Self {
        Self { verb, capability: capability.into(), device: String::new(), missing: None }
    }

    /// Whether a verb's error number means that the verb, or the requested feature, is not
    /// supported: `EOPNOTSUPP` or `ENOSYS`.
    pub fn is_meant_by(error: &io::Error) -> bool {
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

debug_as_text!(Unsupported);
