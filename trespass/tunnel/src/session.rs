//! One connection: what is counted and logged of it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use prometheus_client::metrics::gauge::Gauge;
use trespass::Transport;
use trespass::tokio::Stream;

use crate::metrics::RouteMetrics;
use crate::relay::{Broken, ByteCount, Carried};

/// How a connection ended.
pub(crate) enum Ending {
    /// Both directions, one after the other.
    Closed,
    /// The program at this end, or its network, failed.
    ResetByTcp(io::Error),
    /// The other end, or the network to it, failed.
    ResetByStream(io::Error),
    /// The other end has no target for it, or this end refused it.
    Refused(String),
    /// The other end, or the target, cannot be reached.
    Unreachable(String),
    /// This program ends.
    Stopped,
}

impl Ending {
    /// The value of the metrics' label.
    fn label(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::ResetByTcp(_) => "reset_by_tcp",
            Self::ResetByStream(_) => "reset_by_stream",
            Self::Refused(_) => "refused",
            Self::Unreachable(_) => "unreachable",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by both sides"),
            Self::ResetByTcp(error) => write!(f, "reset, because the TCP side failed: {error}"),
            Self::ResetByStream(error) => write!(f, "reset, because the tunnel failed: {error}"),
            Self::Refused(why) => write!(f, "reset, because it was refused: {why}"),
            Self::Unreachable(why) => write!(f, "reset: {why}"),
            Self::Stopped => f.write_str("reset, because this program ends"),
        }
    }
}

impl From<Broken> for Ending {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Tcp(error) => Self::ResetByTcp(error),
            Broken::Stream(error) => Self::ResetByStream(error),
            Broken::Refused(why) => Self::Refused(why),
        }
    }
}

/// The record of an open connection.
pub(crate) struct Session {
    metrics: Arc<RouteMetrics>,
    open: Gauge,
    peer: SocketAddr,
    began: Instant,
    /// Where it goes to.
    pub(crate) to: String,
    transport: Option<Transport>,
    pub(crate) carried: Carried,
}

impl Session {
    pub(crate) fn begin(metrics: &Arc<RouteMetrics>, peer: SocketAddr, to: String) -> Self {
        let open = metrics.open();
        open.inc();
        let carried =
            Carried { up: ByteCount::new(metrics.bytes("out")), down: ByteCount::new(metrics.bytes("in")) };
        Self { metrics: metrics.clone(), open, peer, began: Instant::now(), to, transport: None, carried }
    }

    /// Records that both ends are connected.
    pub(crate) fn connected(&mut self, stream: &Stream) {
        let transport = stream.transport();
        self.metrics.count_connection(if transport == Transport::Rdma { "rdma" } else { "tcp" });
        self.transport = Some(transport);
        let device = stream.device().unwrap_or("none");
        match stream.fallback_reason() {
            Some(why) => tracing::debug!(peer = %self.peer, %transport, %why, "connected"),
            None => tracing::debug!(peer = %self.peer, %transport, device, "connected"),
        }
    }

    /// Logs and counts how it ended.
    pub(crate) fn end(self, ending: &Ending) {
        self.metrics.count_end(ending.label());
        let transport = self.transport.map_or("none".into(), |transport| transport.to_string());
        let (out, in_) = (self.carried.up.get(), self.carried.down.get());
        let seconds = format!("{:.3}", self.began.elapsed().as_secs_f64());
        let (peer, to) = (self.peer, &self.to);
        match ending {
            Ending::Refused(_) | Ending::Unreachable(_) => {
                tracing::warn!(%peer, to, transport, out, "in" = in_, %seconds, "connection {ending}");
            }
            _ => tracing::info!(%peer, to, transport, out, "in" = in_, %seconds, "connection {ending}"),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.open.dec();
    }
}
