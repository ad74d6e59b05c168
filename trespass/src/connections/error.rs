//! Why a pool lends no connection.

use std::io;
use std::time::Duration;

/// Why a pool lends no connection. It converts into an [`io::Error`] of its [kind](Self::kind).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// All connections were in use until the timeout.
    #[error(
        "all {maximum} connections of the pool were in use for {timeout:?}: return them earlier, or raise \
         `ConnectionPoolBuilder::maximum` or `timeout`"
    )]
    Exhausted {
        /// The connections that the pool may have.
        maximum: usize,
        /// How long the call has waited.
        timeout: Duration,
    },
    /// No host accepted.
    #[error("no host of the pool accepted, in {attempts} attempts; the last error: {source}")]
    Connect {
        /// How often all hosts were tried.
        attempts: u32,
        /// The error of the last address.
        source: io::Error,
    },
}

debug_as_text!(GetError);

impl GetError {
    /// [`TimedOut`](io::ErrorKind::TimedOut) if all connections were in use, otherwise the kind of the
    /// last connect's error.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Exhausted { .. } => io::ErrorKind::TimedOut,
            Self::Connect { source, .. } => source.kind(),
        }
    }
}

impl From<GetError> for io::Error {
    fn from(error: GetError) -> Self {
        Self::new(error.kind(), error)
    }
}
