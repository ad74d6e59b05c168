//! Listeners and connections of one transport, and the data that cases send over them.

use std::any::Any;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sideway::rdmacm;
use trespass::{Bootstrap, Builder, Listener, Policy, SeqPacket, Stream, Transport};

/// A limit far above the duration of any working call.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The transport of a case's connections.
#[allow(dead_code, reason = "each test program has one of them")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// TCP without RDMA.
    Tcp,
    /// Queue pairs of the software device; one frame without a receive would end its connection.
    Soft,
    /// The same, with shared receive queues.
    SoftShared,
    /// Queue pairs between several software devices.
    SoftRails,
    /// Queue pairs of the system's devices.
    System,
    /// The two above, for connections that start with the connection manager.
    SoftByCm,
    SystemByCm,
}

/// Makes connections of one transport.
#[derive(Clone, Debug)]
pub(crate) struct Fixture {
    target: Target,
    /// The listeners' address, which determines the device.
    host: IpAddr,
    /// The system's devices.
    devices: Vec<(String, IpAddr)>,
    /// Connections name the device, and so use no other.
    is_on_one_device: bool,
}

impl Fixture {
    pub(crate) fn new(target: Target, host: IpAddr) -> Self {
        Self { target, host, devices: Vec::new(), is_on_one_device: false }
    }

    /// Over these devices of the system, one of which has the host's address.
    pub(crate) fn over(self, devices: Vec<(String, IpAddr)>) -> Self {
        Self { devices, ..self }
    }

    /// The same transport for connections that use one device.
    pub(crate) fn on_one_device(&self) -> Self {
        Self { is_on_one_device: true, ..self.clone() }
    }

    /// This one, and if its connections may use several devices, also the one for a single device.
    pub(crate) fn with_and_without_rails(&self) -> Vec<Self> {
        let single = self.has_rails().then(|| self.on_one_device());
        [self.clone()].into_iter().chain(single).collect()
    }

    /// The same transport at another address of the host.
    pub(crate) fn at(&self, host: IpAddr) -> Self {
        Self { host, ..self.clone() }
    }

    /// A free port at the device's address.
    pub(crate) fn anywhere(&self) -> SocketAddr {
        SocketAddr::new(self.host, 0)
    }

    /// The builder of all connections over this transport.
    pub(crate) fn builder(&self) -> Builder {
        // Timeouts are generous for busy machines, and a fallback to TCP is not allowed.
        let builder = self.with_default_times();
        let patient = |builder: Builder| {
            let builder = builder.rnr_retry(0).handshake_deadline(LONG);
            builder.probe_timeout(Duration::from_secs(20))
        };
        match self.target {
            Target::Tcp => builder,
            Target::SoftByCm | Target::SystemByCm => patient(builder),
            Target::Soft | Target::SoftShared | Target::SoftRails | Target::System => {
                patient(builder).policy(Policy::RequireRdma)
            }
        }
    }

    /// A builder that chooses the transport alone. Connections that use RDMA may fall back to TCP.
    pub(crate) fn with_default_times(&self) -> Builder {
        let builder = Builder::new();
        match self.target {
            Target::Tcp => builder.policy(Policy::TcpOnly),
            Target::SoftRails if self.is_on_one_device => builder.devices(["soft0"]),
            Target::System if self.is_on_one_device => {
                let own = self.devices.iter().filter(|(_, address)| *address == self.host);
                builder.devices(own.map(|(name, _)| name))
            }
            Target::Soft | Target::System => builder,
            Target::SoftRails => builder.rails_after(0),
            Target::SoftShared => builder.srq(true).__srq_alone(true).srq_size(1024),
            Target::SoftByCm | Target::SystemByCm => builder.bootstrap(Bootstrap::RdmaCm),
        }
    }

    /// Scales the work of a case: an eighth of `count` in a guest with an emulated processor, where
    /// each byte costs far more.
    pub(crate) fn less(&self, count: usize) -> usize {
        if !(test_harness::is_emulated() && matches!(self.target, Target::System | Target::SystemByCm)) {
            return count;
        }
        let less = count.div_ceil(8);
        eprintln!("in an emulated guest: {less} instead of {count}");
        less
    }

    /// Clients of a storm. Connections with shared receives have a whole queue of them each.
    pub(crate) fn storm(&self) -> usize {
        match self.target {
            Target::SoftShared => 160,
            Target::SystemByCm => self.less(160),
            Target::SoftRails => 100,
            Target::Tcp | Target::Soft | Target::SoftByCm | Target::System if test_harness::is_emulated() => {
                200
            }
            Target::Tcp | Target::Soft | Target::SoftByCm | Target::System => 1000,
        }
    }

    pub(crate) fn shares_receives(&self) -> bool {
        self.target == Target::SoftShared
    }

    /// Whether connections may have several queue pairs.
    pub(crate) fn has_rails(&self) -> bool {
        let has_several = self.target == Target::SoftRails || self.devices.len() > 1;
        has_several && !self.is_on_one_device
    }

    /// Whether connections start with the connection manager.
    pub(crate) fn is_by_cm(&self) -> bool {
        matches!(self.target, Target::SoftByCm | Target::SystemByCm)
    }

    /// Whether the devices are software devices of this process.
    pub(crate) fn is_soft(&self) -> bool {
        matches!(self.target, Target::Soft | Target::SoftShared | Target::SoftRails | Target::SoftByCm)
    }

    /// An address where a foreign listener listens while the second value lives.
    pub(crate) fn taken(&self) -> (SocketAddr, Box<dyn Any>) {
        if self.is_by_cm() {
            let listener = rdmacm::Listener::bind(self.anywhere(), 8).unwrap();
            let addr = listener.local_addr().and_then(|addr| addr.ip()).unwrap();
            return (addr, Box::new(listener));
        }
        let listener = TcpListener::bind(self.anywhere()).unwrap();
        (listener.local_addr().unwrap(), Box::new(listener))
    }

    /// An address at which nothing listens.
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

    /// The same with a separate configuration for each end.
    pub(crate) fn streams_of(&self, client: Builder, server: Builder) -> (Stream, Stream) {
        let listener = server.bind(self.anywhere()).unwrap();
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

    /// The connecting and the accepted end of a message connection.
    pub(crate) fn packets(&self) -> (SeqPacket, SeqPacket) {
        self.packets_with(|builder| builder)
    }

    pub(crate) fn packets_with(&self, set: impl Fn(Builder) -> Builder) -> (SeqPacket, SeqPacket) {
        let listener = set(self.builder()).bind(self.anywhere()).unwrap();
        let addr = listener.local_addr().unwrap();
        let (client, server) = accept_while(
            || set(self.builder()).connect_seq_packet(addr).unwrap(),
            move || listener.accept_seq_packet().unwrap().0,
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

/// Tells the listener that its program accepts streams, before anybody comes.
pub(crate) fn ask_for_streams(listener: &Listener) {
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
    listener.set_nonblocking(false).unwrap();
}

/// Runs `connect` while another thread accepts.
fn accept_while<C, S: Send + 'static>(
    connect: impl FnOnce() -> C,
    accept: impl FnOnce() -> S + Send + 'static,
) -> (C, S) {
    let accepting = thread::spawn(accept);
    let client = connect();
    (client, accepting.join().unwrap())
}

/// A generator whose numbers depend on the seed alone, not on a library's version.
pub(crate) fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

pub(crate) fn below(random: &mut ChaCha8Rng, bound: usize) -> usize {
    (random.next_u64() % bound as u64) as usize
}

/// Sends `to_peer` and receives as many bytes as the peer sends; both threads end.
pub(crate) fn read_exactly(stream: &mut impl Read, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// A byte to the peer and one back, so that both know that the other has come this far.
pub(crate) fn greet(one: &mut Stream, other: &mut Stream) {
    one.write_all(b"?").unwrap();
    assert_eq!(read_exactly(other, 1), b"?");
    other.write_all(b"!").unwrap();
    assert_eq!(read_exactly(one, 1), b"!");
}
