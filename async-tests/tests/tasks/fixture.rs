//! Runtimes, connections of one transport, and the data that cases send.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::runtime;
use trespass::tokio::{Listener, SeqPacket, Stream};
use trespass::{Bootstrap, Builder, Config, Policy, Transport};

/// A limit far above the duration of any working call.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The transport of a case's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Tcp,
    /// Queue pairs of the software device.
    Soft,
    /// The same, for connections that begin with the connection manager.
    SoftByCm,
}

/// Makes runtimes, and connections of one transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixture {
    target: Carrier,
    threads: usize,
    probes: bool,
}

impl Fixture {
    pub(crate) fn new(target: Carrier, threads: usize) -> Self {
        Self { target, threads, probes: true }
    }

    /// The same, for connections that send nothing while they are idle.
    pub(crate) fn without_probes(self) -> Self {
        Self { probes: false, ..self }
    }

    /// Runs a future to its end in a new runtime. It fails if that takes too long.
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut builder = match self.threads {
            1 => runtime::Builder::new_current_thread(),
            _ => runtime::Builder::new_multi_thread(),
        };
        let runtime = builder.worker_threads(self.threads).enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(LONG, future).await.expect("a case ends in time") })
    }

    pub(crate) fn builder(&self) -> Builder {
        let mut builder = Builder::new();
        if !self.probes {
            builder = builder.keepalive(None).control_keepalive(None);
        }
        let patient =
            |builder: Builder| builder.handshake_deadline(LONG).probe_timeout(Duration::from_secs(20));
        match self.target {
            Carrier::Tcp => builder.policy(Policy::TcpOnly),
            Carrier::Soft => patient(builder).policy(Policy::RequireRdma),
            Carrier::SoftByCm => patient(builder).bootstrap(Bootstrap::RdmaCm),
        }
    }

    pub(crate) fn config(&self) -> Config {
        self.builder().build().unwrap()
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.target == Carrier::Tcp
    }

    pub(crate) fn is_one_thread(&self) -> bool {
        self.threads == 1
    }

    pub(crate) fn is_by_cm(&self) -> bool {
        self.target == Carrier::SoftByCm
    }

    pub(crate) async fn listener(&self) -> (Listener, SocketAddr) {
        let listener = Listener::bind_with(&self.config(), "127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        (listener, addr)
    }

    /// The connecting and the accepted end of a stream.
    pub(crate) async fn streams(&self) -> (Stream, Stream) {
        self.streams_with(self.builder()).await
    }

    /// The same with parameters for both ends.
    pub(crate) async fn streams_with(&self, builder: Builder) -> (Stream, Stream) {
        let config = builder.build().unwrap();
        let listener = Listener::bind_with(&config, "127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (client, server) = tokio::join!(Stream::connect_with(&config, addr), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap().0);
        self.check(client.transport());
        self.check(server.transport());
        (client, server)
    }

    /// The connecting and the accepted end of a connection for messages.
    pub(crate) async fn packets(&self) -> (SeqPacket, SeqPacket) {
        let (listener, addr) = self.listener().await;
        let config = self.config();
        let (client, server) =
            tokio::join!(SeqPacket::connect_with(&config, addr), listener.accept_seq_packet());
        let (client, server) = (client.unwrap(), server.unwrap().0);
        self.check(client.transport());
        (client, server)
    }

    fn check(&self, transport: Transport) {
        assert_eq!(transport, if self.is_tcp() { Transport::Tcp } else { Transport::Rdma });
    }
}
