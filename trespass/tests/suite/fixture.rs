//! Listeners and connections of one transport, and what cases send over them.

use std::any::Any;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sideway::rdmacm;
use trespass::{Bootstrap, Builder, Listener, Policy, SeqPacket, Stream, Transport};

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// What carries the cases' connections.
#[allow(dead_code, reason = "each test program has one of them")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// TCP alone.
    Tcp,
    /// Queue pairs of the software device; one frame without a receive would end its connection.
    Soft,
    /// The same, whose receives are shared.
    SoftShared,
    /// Queue pairs of the system's devices.
    System,
    /// The same two, for connections that begin with the connection manager.
    SoftByCm,
    SystemByCm,
}

/// Makes connections of one transport.
#[derive(Clone, Debug)]
pub(crate) struct Fixture {
    target: Target,
    /// Where listeners are: the address says which device it is.
    host: IpAddr,
}

impl Fixture {
    pub(crate) fn new(target: Target, host: IpAddr) -> Self {
        Self { target, host }
    }

    /// A port that is free, at the fixture's address.
    pub(crate) fn anywhere(&self) -> SocketAddr {
        SocketAddr::new(self.host, 0)
    }

    /// What the connections of this fixture are made with.
    pub(crate) fn builder(&self) -> Builder {
        // A busy machine may take its time, and there is nothing to fall back to.
        let patient = || {
            let patient = Builder::new().rnr_retry(0).handshake_deadline(LONG);
            patient.probe_timeout(Duration::from_secs(20))
        };
        match self.target {
            Target::Tcp => Builder::new().policy(Policy::TcpOnly),
            Target::Soft | Target::System => patient().policy(Policy::RequireRdma),
            Target::SoftShared => {
                patient().policy(Policy::RequireRdma).srq(true).__srq_alone(true).srq_size(1024)
            }
            Target::SoftByCm | Target::SystemByCm => patient().bootstrap(Bootstrap::RdmaCm),
        }
    }

    /// How much of so many a case does: in a guest whose processor is emulated, each byte of which costs seconds elsewhere, an eighth.
    pub(crate) fn less(&self, count: usize) -> usize {
        let emulated = std::env::var_os("SOFTROCE_EMULATED").is_some();
        if !(emulated && matches!(self.target, Target::System | Target::SystemByCm)) {
            return count;
        }
        let less = count.div_ceil(8);
        eprintln!("in an emulated guest: {less} instead of {count}");
        less
    }

    pub(crate) fn shares_receives(&self) -> bool {
        self.target == Target::SoftShared
    }

    /// Whether connections begin with the connection manager.
    pub(crate) fn is_by_cm(&self) -> bool {
        matches!(self.target, Target::SoftByCm | Target::SystemByCm)
    }

    /// Whether the devices are this process's own.
    pub(crate) fn is_soft(&self) -> bool {
        matches!(self.target, Target::Soft | Target::SoftShared | Target::SoftByCm)
    }

    /// An address at which somebody listens who is none of this crate's, as long as the second value lives.
    pub(crate) fn taken(&self) -> (SocketAddr, Box<dyn Any>) {
        if self.is_by_cm() {
            let listener = rdmacm::Listener::bind(self.anywhere(), 8).unwrap();
            let addr = listener.local_addr().and_then(|addr| addr.ip()).unwrap();
            return (addr, Box::new(listener));
        }
        let listener = TcpListener::bind(self.anywhere()).unwrap();
        (listener.local_addr().unwrap(), Box::new(listener))
    }

    /// An address of the fixture's at which nobody listens.
    pub(crate) fn nobody(&self) -> SocketAddr {
        self.taken().0
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.target == Target::Tcp
    }

    pub(crate) fn listener(&self) -> (Listener, SocketAddr) {
        let listener = self.builder().bind(self.anywhere()).unwrap();
        let addr = listener.local_addr().unwrap();
        (listener, addr)
    }

    /// The connecting and the accepted end of a connection; no call on them waits for ever.
    pub(crate) fn streams(&self) -> (Stream, Stream) {
        self.streams_of(self.builder(), self.builder())
    }

    /// The same, each end with a configuration of its own.
    pub(crate) fn streams_of(&self, client: Builder, server: Builder) -> (Stream, Stream) {
        let mut listener = server.bind(self.anywhere()).unwrap();
        let addr = listener.local_addr().unwrap();
        let (client, server) =
            accept_while(|| client.connect(addr).unwrap(), move || listener.accept().unwrap().0);
        for stream in [&client, &server] {
            self.check(stream.transport());
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream.set_write_timeout(Some(LONG)).unwrap();
        }
        (client, server)
    }

    /// The same for messages.
    pub(crate) fn packets(&self) -> (SeqPacket, SeqPacket) {
        self.packets_with(|builder| builder)
    }

    pub(crate) fn packets_with(&self, set: impl Fn(Builder) -> Builder) -> (SeqPacket, SeqPacket) {
        let listener = set(self.builder()).bind(self.anywhere()).unwrap();
        let addr = listener.local_addr().unwrap();
        let (client, server) = accept_while(
            || set(self.builder()).connect_seq_packet(addr).unwrap(),
            move || {
                let mut listener = listener;
                listener.accept_seq_packet().unwrap().0
            },
        );
        for packets in [&client, &server] {
            self.check(packets.transport());
            packets.set_read_timeout(Some(LONG)).unwrap();
            packets.set_write_timeout(Some(LONG)).unwrap();
        }
        (client, server)
    }

    fn check(&self, transport: Transport) {
        match self.target {
            Target::Tcp => assert_eq!(transport, Transport::Tcp),
            _ => assert_eq!(transport, Transport::Rdma),
        }
    }
}

/// Connects here while another thread accepts.
fn accept_while<C, S: Send + 'static>(
    connect: impl FnOnce() -> C,
    accept: impl FnOnce() -> S + Send + 'static,
) -> (C, S) {
    let accepting = thread::spawn(accept);
    let client = connect();
    (client, accepting.join().unwrap())
}

/// A generator that gives the same for the same seed, whatever version of whatever library.
pub(crate) fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// A number below `bound`.
pub(crate) fn below(random: &mut ChaCha8Rng, bound: usize) -> usize {
    (random.next_u64() % bound as u64) as usize
}

/// Sends `to_peer` and receives as many bytes as the peer sends; both threads end.
pub(crate) fn read_exactly(stream: &mut Stream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// A byte to the peer and one back: both know then that the other has come so far.
pub(crate) fn greet(one: &mut Stream, other: &mut Stream) {
    one.write_all(b"?").unwrap();
    assert_eq!(read_exactly(other, 1), b"?");
    other.write_all(b"!").unwrap();
    assert_eq!(read_exactly(one, 1), b"!");
}
