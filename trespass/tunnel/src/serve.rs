//! The serving end: from connecting ends to targets by TCP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::{TcpStream, lookup_host};
use tokio::select;
use tokio::time::timeout;
use trespass::Builder;
use trespass::tokio::{Listener, Stream};

use crate::address::HostPort;
use crate::introduction::{self, Introduction, introduce};
use crate::metrics::{Metrics, RouteMetrics, pause_after};
use crate::relay;
use crate::session::{Ending, Session};
use crate::settings::ServeRoute;
use crate::tasks::Tasks;

/// How long a target may take to accept a connection. The system would wait for minutes.
const TARGET_DEADLINE: Duration = Duration::from_secs(10);

/// A listener for connecting ends.
pub(crate) struct ServeEnd {
    listener: Listener,
    shared: Arc<ServeShared>,
}

/// What all connections of the end share.
struct ServeShared {
    /// The first is that of connections that ask for none.
    targets: Vec<HostPort>,
    metrics: Arc<RouteMetrics>,
}

/// The addresses to listen at would make an open relay.
#[derive(Debug)]
pub(crate) struct OpenRelay(String);

impl std::error::Error for OpenRelay {}

impl std::fmt::Display for OpenRelay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl ServeEnd {
    pub(crate) async fn bind(route: &ServeRoute, builder: Builder, metrics: &Arc<Metrics>) -> Result<Self> {
        let listen = route.listen.as_str();
        let addrs = lookup_host(listen).await.with_context(|| format!("cannot resolve {listen}"))?;
        let addrs: Vec<_> = addrs.collect();
        refuse_open_relay(route, &addrs)?;
        let config = builder.user_data(introduce(None)).build()?;
        let listener = Listener::bind_with(&config, &addrs[..]).await.with_context(|| {
            format!(
                "cannot listen at {listen}: stop the program that does, or choose another address or port"
            )
        })?;
        let addr = listener.local_addr()?;
        let targets: Vec<_> = [&route.to].into_iter().chain(&route.allow).cloned().collect();
        tracing::info!(listen = %addr, ?targets, "connections are carried to targets");
        let metrics = Arc::new(metrics.route("serve", addr.to_string()));
        Ok(Self { listener, shared: Arc::new(ServeShared { targets, metrics }) })
    }

    /// Accepts for ever.
    pub(crate) async fn run(self, tasks: Tasks) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => tasks.spawn(self.shared.clone().serve(stream, peer, tasks.clone())),
                Err(error) => pause_after(&error).await,
            }
        }
    }
}

/// Nobody is authenticated, so that only programs of this host may use the targets.
fn refuse_open_relay(route: &ServeRoute, addrs: &[SocketAddr]) -> Result<(), OpenRelay> {
    let beyond = addrs.iter().find(|addr| !addr.ip().to_canonical().is_loopback());
    match beyond {
        Some(addr) if !route.insecure => Err(OpenRelay(format!(
            "{addr} is reachable from other hosts, and nobody authenticates them: each could use {} and every \
             allowed target. Listen at a loopback address, or add --insecure (`insecure = true` in the file) \
             if the network lets only trusted hosts reach this port",
            route.to
        ))),
        _ => Ok(()),
    }
}

impl ServeShared {
    async fn serve(self: Arc<Self>, stream: Stream, peer: SocketAddr, tasks: Tasks) {
        let mut session = Session::begin(&self.metrics, peer, self.targets[0].to_string());
        session.connected(&stream);
        let ending = select! {
            ending = self.carry(stream, &mut session) => ending,
            () = tasks.cut() => Ending::Stopped,
        };
        session.end(&ending);
    }

    async fn carry(&self, mut stream: Stream, session: &mut Session) -> Ending {
        if let Err(error) = relay::arm_stream(&stream) {
            return Ending::ResetByStream(error);
        }
        let (is_tunnel, target) = match self.target(stream.peer_user_data()) {
            Ok(chosen) => chosen,
            Err(why) => return refuse(stream, Ending::Refused(why)).await,
        };
        session.to = target.to_string();
        let tcp = match connect(target).await {
            Ok(tcp) => tcp,
            Err(why) if is_tunnel => return refuse(stream, Ending::Unreachable(why)).await,
            Err(why) => return Ending::Unreachable(why),
        };
        if is_tunnel && let Err(error) = introduction::accept(&mut stream).await {
            return Ending::ResetByStream(error);
        }
        relay::carry(tcp, stream, false, &session.carried)
            .await
            .map_or_else(Ending::from, |()| Ending::Closed)
    }

    /// Whether the peer is a tunnel, and the target that it may use.
    fn target(&self, introduction: &[u8]) -> Result<(bool, &HostPort), String> {
        match Introduction::read(introduction)? {
            Introduction::Program => Ok((false, &self.targets[0])),
            Introduction::Tunnel(None) => Ok((true, &self.targets[0])),
            Introduction::Tunnel(Some(wanted)) => {
                let allowed = self.targets.iter().find(|target| **target == wanted);
                let allowed = allowed.ok_or_else(|| {
                    format!("{wanted} is no allowed target: add --allow {wanted} at the serving end")
                });
                allowed.map(|target| (true, target))
            }
        }
    }
}

/// Connects to a target, which is resolved each time.
async fn connect(target: &HostPort) -> Result<TcpStream, String> {
    let failed = |why: &dyn std::fmt::Display| Err(format!("cannot connect to the target {target}: {why}"));
    match timeout(TARGET_DEADLINE, TcpStream::connect(target.as_str())).await {
        Ok(Ok(tcp)) => relay::arm_tcp(&tcp).map(|()| tcp).or_else(|error| failed(&error)),
        Ok(Err(error)) => failed(&error),
        Err(_) => failed(&format_args!("no answer within {} s", TARGET_DEADLINE.as_secs())),
    }
}

/// Tells the connecting end why its connection ends.
async fn refuse(mut stream: Stream, ending: Ending) -> Ending {
    if let Ending::Refused(why) | Ending::Unreachable(why) = &ending
        && let Err(error) = introduction::refuse(&mut stream, why).await
    {
        tracing::debug!(%error, "the connecting end is not told why");
    }
    ending
}
