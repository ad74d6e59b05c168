//! Runtimes, and connections of one transport.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use trespass::local::{Listener, Runtime, SeqPacket, Stream, spawn_local, timeout};
use trespass::{Bootstrap, Builder, Policy, Transport};

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
    carrier: Carrier,
    probes: bool,
}

impl Fixture {
    pub(crate) fn new(carrier: Carrier) -> Self {
        Self { carrier, probes: true }
    }

    /// The same, for connections that send nothing while they are idle.
    pub(crate) fn without_probes(self) -> Self {
        Self { probes: false, ..self }
    }

    pub(crate) fn runtime(&self) -> Runtime {
        Runtime::new(&self.builder().build().unwrap()).unwrap()
    }

    /// Runs a future to its end in a new runtime. It fails if that takes too long.
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let runtime = self.runtime();
        runtime.block_on(async { timeout(LONG, future).await }).unwrap().expect("a case ends in time")
    }

    pub(crate) fn builder(&self) -> Builder {
        let mut builder = Builder::new();
        if !self.probes {
            builder = builder.keepalive(None).control_keepalive(None);
        }
        let patient =
            |builder: Builder| builder.handshake_deadline(LONG).probe_timeout(Duration::from_secs(20));
        match self.carrier {
            Carrier::Tcp => builder.policy(Policy::TcpOnly),
            Carrier::Soft => patient(builder).policy(Policy::RequireRdma),
            Carrier::SoftByCm => patient(builder).bootstrap(Bootstrap::RdmaCm),
        }
    }

    pub(crate) fn is_by_cm(&self) -> bool {
        self.carrier == Carrier::SoftByCm
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.carrier == Carrier::Tcp
    }

    pub(crate) fn transport(&self) -> Transport {
        if self.carrier == Carrier::Tcp { Transport::Tcp } else { Transport::Rdma }
    }

    pub(crate) async fn listener(&self) -> (Listener, SocketAddr) {
        let listener = Listener::bind(anywhere()).unwrap();
        let addr = listener.local_addr().unwrap();
        (listener, addr)
    }

    /// The connecting and the accepted end of a stream.
    pub(crate) async fn streams(&self) -> (Stream, Stream) {
        let (mut listener, addr) = self.listener().await;
        let connecting = spawn_local(async move { Stream::connect(addr).await.unwrap() });
        let (server, _) = listener.accept().await.unwrap();
        let client = connecting.await;
        assert_eq!(client.transport().unwrap(), self.transport());
        assert_eq!(server.transport().unwrap(), self.transport());
        (client, server)
    }

    /// The connecting and the accepted end of a connection for messages.
    pub(crate) async fn packets(&self) -> (SeqPacket, SeqPacket) {
        let mut listener = Listener::bind_seq_packet(anywhere()).unwrap();
        let addr = listener.local_addr().unwrap();
        let connecting = spawn_local(async move { SeqPacket::connect(addr).await.unwrap() });
        let (server, _) = listener.accept().await.unwrap();
        (connecting.await, server)
    }
}

pub(crate) fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}
