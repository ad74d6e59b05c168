//! The connecting end: from TCP clients to a serving end.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use trespass::tokio::Stream;
use trespass::{Builder, Config};

use crate::introduction::{Introduction, introduce};
use crate::metrics::{Metrics, RouteMetrics, pause_after};
use crate::relay;
use crate::session::{Ending, Session};
use crate::settings::ConnectRoute;
use crate::tasks::Tasks;

/// A listener for TCP clients.
pub(crate) struct ConnectEnd {
    listener: TcpListener,
    shared: Arc<ConnectShared>,
}

/// What all connections of the end share.
struct ConnectShared {
    to: String,
    config: Config,
    metrics: Arc<RouteMetrics>,
}

impl ConnectEnd {
    pub(crate) async fn bind(route: &ConnectRoute, builder: Builder, metrics: &Arc<Metrics>) -> Result<Self> {
        let listen = route.listen.as_str();
        let listener = TcpListener::bind(listen).await.with_context(|| {
            format!(
                "cannot listen at {listen}: stop the program that does, or choose another address or port"
            )
        })?;
        let addr = listener.local_addr()?;
        tracing::info!(listen = %addr, to = %route.to, "TCP clients are carried");
        if !addr.ip().to_canonical().is_loopback() {
            tracing::warn!(listen = %addr, "other hosts can connect, and nobody authenticates them");
        }
        let config = builder.user_data(introduce(route.target.as_ref())).build()?;
        let metrics = Arc::new(metrics.route("connect", addr.to_string()));
        let to = route.to.to_string();
        Ok(Self { listener, shared: Arc::new(ConnectShared { to, config, metrics }) })
    }

    /// Accepts for ever.
    pub(crate) async fn run(self, tasks: Tasks) {
        loop {
            match self.listener.accept().await {
                Ok((client, peer)) => tasks.spawn(self.shared.clone().serve(client, peer, tasks.clone())),
                Err(error) => pause_after(&error).await,
            }
        }
    }
}

impl ConnectShared {
    async fn serve(self: Arc<Self>, client: TcpStream, peer: SocketAddr, tasks: Tasks) {
        let mut session = Session::begin(&self.metrics, peer, self.to.clone());
        let ending = select! {
            ending = self.carry(client, &mut session) => ending,
            () = tasks.cut() => Ending::Stopped,
        };
        session.end(&ending);
    }

    async fn carry(&self, client: TcpStream, session: &mut Session) -> Ending {
        if let Err(error) = relay::arm_tcp(&client) {
            return Ending::ResetByTcp(error);
        }
        let stream = match Stream::connect_with(&self.config, self.to.as_str()).await {
            Ok(stream) => stream,
            Err(error) => return Ending::Unreachable(format!("cannot connect to {}: {error}", self.to)),
        };
        session.connected(&stream);
        if let Err(error) = relay::arm_stream(&stream) {
            return Ending::ResetByStream(error);
        }
        let is_tunnel = match Introduction::read(stream.peer_user_data()) {
            Ok(Introduction::Tunnel(_)) => true,
            Ok(Introduction::Program) => false,
            Err(why) => return Ending::Refused(why),
        };
        relay::carry(client, stream, is_tunnel, &session.carried)
            .await
            .map_or_else(Ending::from, |()| Ending::Closed)
    }
}
