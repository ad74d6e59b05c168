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
    /// The device's name.
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
        Self { verb, capability: capability.into(), device: context.name(), missing: None }
    }

    /// The library lacks the function.
    #[cold]
    pub(crate) fn missing(
        context: &DeviceContext,
        capability: impl Into<Cow<'static, str>>,
        symbol: MissingSymbol,
    ) -> Self {
        Self { missing: Some(Box::new(symbol)), ..Self::new(context, symbol.name, capability) }
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
            None => write!(f, "device {device} has no {capability} ({verb})"),
            Some(symbol) => write!(f, "device {device} has no {capability} here: {symbol}"),
        }
    }
}

impl std::error::Error for Unsupported {}
