//! The facts of a connection that do not change.

use std::fmt;
use std::net::SocketAddr;

use crate::handshake::{FallbackReason, Transport};
use crate::transport::TransportDriver;
use crate::wire::Kind;

/// The ends, the kind and the transport of a connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) kind: Kind,
    /// Why the connection uses TCP instead of RDMA.
    pub(crate) fallback: Option<FallbackReason>,
}

impl ConnectionInfo {
    pub(crate) fn transport(&self) -> Transport {
        if self.fallback.is_some() { Transport::Tcp } else { Transport::Rdma }
    }

    /// Logs one line for each new connection.
    pub(super) fn log_setup(&self, driver: &TransportDriver) {
        match &self.fallback {
            Some(reason) => tracing::info!(connection = %self, %reason, "no RDMA"),
            // The description queries the queue pair, so make it only if it is logged.
            None if tracing::enabled!(tracing::Level::INFO) => {
                let by = driver.describe().unwrap_or_default();
                tracing::info!(connection = %self, "RDMA activated: {by}");
            }
            None => (),
        }
    }
}

impl fmt::Display for ConnectionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} - {}", self.transport(), self.local, self.peer)
    }
}
