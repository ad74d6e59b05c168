//! Notices that the peer is dead although no request is outstanding, by the TCP connection that
//! exchanged the addresses.
//!
//! ```text
//! server$ cargo run --example liveness -- server 192.0.2.1:7471
//! client$ cargo run --example liveness -- client 192.0.2.1:7471
//! ```
//!
//! The client sends a number each second. The server only receives, so that its queue pair never
//! notices a dead client. Kill the client (`kill -9`), and the server ends with the reason.
//!
//! - Both sides keep the TCP connection, and a thread of each reads it. The system ends the read
//!   when the peer's process ends, for whatever reason. TCP's keepalive ends it when the peer's
//!   host or the network is gone, after [`NOTICED_WITHIN`].
//! - The thread then closes the completion channel ([`ChannelCloser`]), which ends the sleep of the
//!   thread that waits for completions.
//! - A peer that ends in order sends a byte first, when all its requests have completed.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use rdma_examples::devices::{self, DeviceArg};
use rdma_examples::pingpong::report;
use rdma_examples::program::{self, Failure, note, say};
use rustix::net::sockopt;
use sideway::ErrorKind;
use sideway::ibverbs::completion::{
    ChannelCloser, CompletionChannel, GenericCompletionQueue, Notify, WorkCompletionStatus,
};
use sideway::ibverbs::connect::{ConnectOptions, LocalPath, TcpPeer, over_tcp};
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};

/// Sends numbers to a server, and notices on both sides that the other is dead.
#[derive(Parser)]
struct Arguments {
    /// What this side does.
    role: Role,

    /// The server's TCP address: HOST:PORT.
    address: String,

    #[command(flatten)]
    device: DeviceArg,

    /// How many numbers the client sends.
    #[arg(short = 'n', long, default_value_t = 10)]
    numbers: u32,

    /// The milliseconds between two numbers.
    #[arg(short, long, default_value_t = 1000)]
    interval: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    Server,
    Client,
}

/// The receives that the server keeps posted.
const RECEIVES: u32 = 16;
/// The time limit for each step of the exchange of addresses.
const STEP: Duration = Duration::from_secs(20);
/// The silence after which TCP probes the peer, and the time between probes.
const PROBE: Duration = Duration::from_secs(5);
/// The number of probes without an answer after which the connection ends.
const PROBES: u32 = 3;
/// The time in which a peer is noticed whose host is gone.
const NOTICED_WITHIN: Duration = Duration::from_secs(PROBE.as_secs() * (PROBES as u64 + 1));
/// The byte of a peer that ends in order.
const GOODBYE: u8 = b'.';

fn main() -> ExitCode {
    program::run(|| {
        let arguments = program::arguments()?;
        match &arguments {
            Arguments { role: Role::Server, .. } => serve(&arguments),
            Arguments { role: Role::Client, .. } => send(&arguments),
        }
    })
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let listener = TcpListener::bind(&arguments.address)?;
    say(format_args!("listening at {}", listener.local_addr()?))?;
    let (tcp, client) = listener.accept()?;
    let (mut side, watcher) = WatchedConnection::connect(tcp, &arguments.device)?;
    say(format_args!("connected to {client}; a host that is gone is noticed within {NOTICED_WITHIN:?}"))?;
    let mut received = 0;
    let mut show = |number: Option<u32>| {
        received += 1;
        say(format_args!("number {} has come", number.unwrap_or_default()))
    };
    // No request is outstanding here except receives, which never fail because the peer is gone.
    loop {
        let is_open = side.sleep(None)?.is_some();
        // Also after the end, for what came before it.
        side.poll(&mut show)?;
        if !is_open {
            break;
        }
    }
    match joined(watcher)? {
        PeerEnd::Goodbye => say(format_args!("the client has ended in order, after {received} numbers")),
        PeerEnd::Gone(reason) => {
            Err(Failure::work(format_args!("the client is gone after {received} numbers: {reason}")))
        }
    }
}

fn send(arguments: &Arguments) -> Result<(), Failure> {
    let address = &arguments.address;
    let failed = |reason| Failure::setup(format_args!("cannot connect to {address}: {reason}"));
    let tcp = devices::connect_any(address.to_socket_addrs()?, STEP).map_err(failed)?;
    let mut goodbye = tcp.try_clone()?;
    let (mut side, watcher) = WatchedConnection::connect(tcp, &arguments.device)?;
    let mut acknowledged = 0;
    'numbers: for number in 0..arguments.numbers {
        let mut sends = side.qp.start_post_send();
        sends.construct_wr(number.into(), WorkRequestFlags::Signaled).setup_send_imm(number);
        sends.post().map_err(Failure::work)?;
        let next = Instant::now() + Duration::from_millis(arguments.interval);
        while acknowledged <= number || Instant::now() < next {
            side.poll(|_| {
                acknowledged += 1;
                Ok(())
            })?;
            // With a request outstanding, the queue pair notices a dead server by itself, too.
            let until = if acknowledged <= number { None } else { Some(next) };
            if side.sleep(until)?.is_none() {
                break 'numbers;
            }
        }
    }
    if acknowledged == arguments.numbers {
        goodbye.write_all(&[GOODBYE]).map_err(Failure::work)?;
        return say(format_args!("the server has all {acknowledged} numbers"));
    }
    match joined(watcher)? {
        PeerEnd::Goodbye => Err(Failure::work("the server has ended before it had all numbers")),
        PeerEnd::Gone(reason) => {
            Err(Failure::work(format_args!("the server is gone after {acknowledged} numbers: {reason}")))
        }
    }
}

/// One side of the connection.
struct WatchedConnection {
    qp: GenericQueuePair,
    cq: GenericCompletionQueue,
    channel: CompletionChannel,
}

impl WatchedConnection {
    /// Connects a queue pair to that of the peer at the other end of `tcp`, and starts to watch the
    /// peer.
    fn connect(mut tcp: TcpStream, device: &DeviceArg) -> Result<(Self, JoinHandle<PeerEnd>), Failure> {
        watch_host(&tcp)?;
        tcp.set_read_timeout(Some(STEP))?;
        let context = device.open()?;
        let mut channel = context.create_comp_channel()?;
        let mut builder = context.create_cq_builder();
        let cq = builder.setup_cqe(2 * RECEIVES).setup_comp_channel(&channel).build_generic()?;
        let pd = context.alloc_pd()?;
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_recv_wr(RECEIVES);
        let mut qp = builder.build_generic()?;
        let path = LocalPath::choose(&context, 1, None)?;
        note(format_args!("{}, port {}: {}", context.name(), path.port_num(), path.reason()));

        let peer: TcpPeer<()> = over_tcp(&mut tcp, &mut qp, &path, &ConnectOptions::default(), &())?;
        note(format_args!("connected: {}", peer.connection));
        let mut side = Self {
            qp,
            cq,
            channel: {
                channel.set_ack_batch(RECEIVES);
                channel
            },
        };
        side.receive(RECEIVES)?;
        // Arms the queue: without it, no completion ends a sleep.
        side.poll(|_| Ok(()))?;
        tcp.set_read_timeout(None)?;
        let closer = side.channel.closer()?;
        Ok((side, thread::spawn(move || watch(tcp, &closer))))
    }

    /// Posts receives without a buffer: each takes a number, which comes as immediate data.
    fn receive(&mut self, count: u32) -> Result<(), Failure> {
        let mut receives = self.qp.start_post_recv();
        for number in 0..count {
            receives.construct_wr(number.into());
        }
        receives.post().map_err(Failure::work)
    }

    /// Arms the queue, and calls `each` for all completions with the number that came, if any.
    fn poll(&mut self, mut each: impl FnMut(Option<u32>) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut received = 0;
        let mut poller = self.cq.arm(Notify::Any).map_err(Failure::work)?;
        while let Some(wc) = poller.next() {
            if wc.status() != WorkCompletionStatus::Success {
                return Err(report::failed(&wc, Some(self.qp.control())));
            }
            received += u32::from(wc.imm_data().is_some());
            each(wc.imm_data())?;
        }
        poller.finish().map_err(Failure::work)?;
        self.receive(received)
    }

    /// Sleeps until a completion may have come, or until this time. `None` if the peer has ended.
    fn sleep(&mut self, until: Option<Instant>) -> Result<Option<()>, Failure> {
        let woken = match until {
            None => self.channel.wait().map(drop),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                self.channel.wait_timeout(left).map(drop)
            }
        };
        match woken {
            Ok(()) => Ok(Some(())),
            Err(error) if error.kind() == ErrorKind::Closed => Ok(None),
            Err(error) => Err(Failure::work(error)),
        }
    }
}

/// How the peer has ended.
enum PeerEnd {
    /// In order: all that it sent has arrived.
    Goodbye,
    /// Without a goodbye, for this reason.
    Gone(String),
}

/// Waits until the peer ends, and then ends the waits for completions.
fn watch(mut tcp: TcpStream, closer: &ChannelCloser) -> PeerEnd {
    let mut said = [0];
    let end = match tcp.read(&mut said) {
        Ok(1) if said[0] == GOODBYE => PeerEnd::Goodbye,
        Ok(0) => PeerEnd::Gone("its process has ended".to_owned()),
        Ok(_) => PeerEnd::Gone("it sent something other than a goodbye".to_owned()),
        Err(error) => PeerEnd::Gone(format!("its TCP connection has ended: {error}")),
    };
    closer.close();
    end
}

/// Has the system probe the peer's host while the TCP connection is silent.
fn watch_host(tcp: &TcpStream) -> Result<(), Failure> {
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, PROBE)?;
    sockopt::set_tcp_keepintvl(tcp, PROBE)?;
    sockopt::set_tcp_keepcnt(tcp, PROBES)?;
    Ok(())
}

fn joined(watcher: JoinHandle<PeerEnd>) -> Result<PeerEnd, Failure> {
    watcher.join().map_err(|_| Failure::work("the thread that watches the peer has panicked"))
}
