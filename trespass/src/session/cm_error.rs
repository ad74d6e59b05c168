//! The failures of the connection manager (rdma_cm), each with the kind that `std::net` gives for the like.

use std::io;

/// What the connection manager of RDMA did not do. As text it says what, with which address, and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CmError {
    /// There is none that can be used.
    #[error("there is no connection manager of RDMA: {0}")]
    NotThere(String),
    /// No RDMA device has the address, or leads to it.
    #[error(
        "no RDMA device leads there: {0}; see `rdma link` for the interfaces that have one, and `ip route get`"
    )]
    NoDevice(String),
    /// Somebody else listens at the port.
    #[error(
        "{0}; see who has it (`rdma resource show cm_id`), choose another port, or let `Builder::bind_patience` wait for it"
    )]
    InUse(String),
    /// Nobody listens there, or whoever does has rejected the request without words.
    #[error(
        "{0}; is a program there that listens by rdma_cm (`Bootstrap::RdmaCm`)? One that listens by TCP does not"
    )]
    Refused(String),
    /// The peer's connection manager does not answer.
    #[error("{0}; does the peer's RDMA device reach this one's network?")]
    Unreachable(String),
    /// Something else failed.
    #[error("{0}")]
    Failed(String),
}

impl CmError {
    /// Where [`Builder::build`](crate::Builder::build) refuses it already.
    #[cfg(not(feature = "rdma"))]
    pub(crate) fn built_without() -> Self {
        Self::NotThere("this program was built without RDMA; build it with the feature `rdma`".into())
    }

    /// The kind that `std::net` would give for the like.
    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NotThere(_) => io::ErrorKind::Unsupported,
            Self::NoDevice(_) => io::ErrorKind::AddrNotAvailable,
            Self::InUse(_) => io::ErrorKind::AddrInUse,
            Self::Refused(_) => io::ErrorKind::ConnectionRefused,
            Self::Unreachable(_) => io::ErrorKind::TimedOut,
            Self::Failed(_) => io::ErrorKind::Other,
        }
    }
}

impl From<CmError> for io::Error {
    fn from(error: CmError) -> Self {
        Self::new(error.kind(), error)
    }
}
