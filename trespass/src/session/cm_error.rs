//! The errors of rdma_cm, each with the kind that `std::net` uses.

use std::io;

/// An error of rdma_cm. Its text says what failed, with which address, and what to do.
#[derive(thiserror::Error)]
pub(crate) enum CmError {
    /// rdma_cm is not usable.
    #[error("there is no connection manager of RDMA: {0}")]
    NotThere(String),
    /// No RDMA device has the address or a route to it.
    #[error(
        "no RDMA device leads there: {0}; see `rdma link` for the interfaces that have one, and `ip route get`"
    )]
    NoDevice(String),
    /// Another listener uses the port.
    #[error(
        "{0}; see who has it (`rdma resource show cm_id`), choose another port, or let `Builder::bind_patience` wait for it"
    )]
    InUse(String),
    /// Nobody listens there, or the listener rejected the request without a text.
    #[error(
        "{0}; is a program there that listens by rdma_cm (`Bootstrap::RdmaCm`)? One that listens by TCP does not"
    )]
    Refused(String),
    /// The peer's connection manager does not answer.
    #[error("{0}; does the peer's RDMA device reach this one's network?")]
    Unreachable(String),
    /// Another error.
    #[error("{text}")]
    Failed {
        /// The kind that `std::net` uses for it.
        kind: io::ErrorKind,
        /// The error of the library.
        text: String,
    },
}

debug_as_text!(CmError);

impl CmError {
    /// For builds without RDMA, where [`Builder::build`](crate::Builder::build) has refused it
    /// already.
    #[cfg(not(feature = "rdma"))]
    pub(crate) fn built_without() -> Self {
        Self::NotThere("this program was built without RDMA; build it with the feature `rdma`".into())
    }

    /// Another error, whose kind its error number tells. A device that fails or is removed is a
    /// network that is down.
    #[cfg(feature = "rdma")]
    pub(crate) fn failed(error: &sideway::Error) -> Self {
        let is_gone = error.kind() == sideway::ErrorKind::DeviceGone;
        let kind = match error.errno() {
            Some(libc::EIO | libc::ENODEV | libc::ENXIO) => io::ErrorKind::NetworkDown,
            _ if is_gone => io::ErrorKind::NetworkDown,
            _ => error.os_error().map_or(io::ErrorKind::Other, io::Error::kind),
        };
        Self::Failed { kind, text: error.to_string() }
    }

    /// The kind that `std::net` uses for such an error.
    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NotThere(_) => io::ErrorKind::Unsupported,
            Self::NoDevice(_) => io::ErrorKind::AddrNotAvailable,
            Self::InUse(_) => io::ErrorKind::AddrInUse,
            Self::Refused(_) => io::ErrorKind::ConnectionRefused,
            Self::Unreachable(_) => io::ErrorKind::TimedOut,
            Self::Failed { kind, .. } => *kind,
        }
    }
}

impl From<CmError> for io::Error {
    fn from(error: CmError) -> Self {
        Self::new(error.kind(), error)
    }
}
