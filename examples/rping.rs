//! Reads and writes the memory of a peer that the connection manager connected to. Either side can
//! be rdma-core's `rping`.
//!
//! ```text
//! $ cargo run --example rping -- -s -v                            # on one side
//! $ cargo run --example rping -- -c -a 127.0.0.1 -v -V -C 3       # on the other
//! ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_`abcdefghijklmnopqr
//! ...
//! ```
//!
//! The client sends the address of its text, and the server reads the text and confirms it. Then
//! the client sends the address of a second buffer. The server writes the same text there and
//! confirms it.
//!
//! [`Listener`] and [`Connector`] open the connections. Each side sleeps until a request completes
//! or the peer disconnects, because both have a descriptor. The program needs no `unsafe`: all
//! buffers are slices of pools, including those that the peer may access.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use rdma_examples::devices;
use rdma_examples::pingpong::{RECEIVE, SEND, report};
use rdma_examples::program::{self, Failure, note, say};
use rdma_examples::rping_data::{RemoteBuffer, read_text, text};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use sideway::Provider;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{CompletionChannel, GenericCompletionQueue, Notify, WorkCompletionStatus};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};
use sideway::memory::{Pool, Slice};
use sideway::rdmacm::{
    Connection, ConnectionParameter, ConnectionRequest, Connector, EventChannel, EventType, Identifier,
    Listener, PortSpace,
};

/// Reads and writes the memory of a peer, connected by the connection manager. Either side can be
/// rdma-core's rping.
#[derive(Clone, Parser)]
struct Arguments {
    /// Be the server: listen for clients, and read and write their memory.
    #[arg(short, long, required_unless_present = "client", conflicts_with = "client")]
    server: bool,

    /// Be the client: connect to a server, and let it read and write memory.
    #[arg(short, long, requires = "address")]
    client: bool,

    /// The address to listen at, or the server's name or address.
    #[arg(short, long)]
    address: Option<String>,

    /// The client's own address.
    #[arg(short = 'I', long, value_name = "ADDRESS", conflicts_with = "server")]
    source: Option<IpAddr>,

    /// The server's port.
    #[arg(short, long, default_value_t = 7174)]
    port: u16,

    /// The number of pings; 0 never ends.
    #[arg(short = 'C', long, default_value_t = 0)]
    count: u64,

    /// The size of a ping, in bytes; a server refuses longer pings.
    #[arg(short = 'S', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(26..=65535))]
    size: u32,

    /// Print the sent and the received text.
    #[arg(short, long)]
    verbose: bool,

    /// Check the returned text.
    #[arg(short = 'V', long)]
    validate: bool,

    /// Serve many clients, also at the same time, until killed.
    #[arg(short = 'P', long, conflicts_with = "client")]
    persistent: bool,

    /// Print each step.
    #[arg(short, long)]
    debug: bool,

    /// Create queue pairs without the connection manager; always the case.
    #[arg(short)]
    q: bool,
}

/// The time limit for resolving an address or a route.
const RESOLUTION: Duration = Duration::from_secs(2);

/// The depth of the send queue, as in the C program.
const DEPTH: u32 = 16;

/// The `wr_id` of reads and writes in the peer's memory.
const IN_PEER: u64 = 3;

fn main() -> ExitCode {
    program::run(|| {
        let arguments: Arguments = program::arguments()?;
        let provider = devices::provider()?;
        if arguments.server { serve(&arguments, provider) } else { ping(&arguments, provider) }
    })
}

fn serve(arguments: &Arguments, provider: Provider) -> Result<(), Failure> {
    let address = match &arguments.address {
        Some(name) => devices::resolve(name, arguments.port)?,
        None => SocketAddr::from((Ipv4Addr::UNSPECIFIED, arguments.port)),
    };
    let id = identifier(provider)?;
    id.bind_addr(address)?;
    let listener = Listener::with_id(id, 3)?;
    arguments.debug_note(format_args!("listening at {address}"));
    if !arguments.persistent {
        return serve_one(arguments, listener.get_request().map_err(Failure::work)?);
    }
    loop {
        let request = listener.get_request().map_err(Failure::work)?;
        let arguments = arguments.clone();
        thread::spawn(move || match serve_one(&arguments, request) {
            Ok(()) | Err(Failure::Finished) => {}
            Err(Failure::Setup(reason) | Failure::Work(reason)) => note(format_args!("error: {reason}")),
        });
    }
}

fn serve_one(arguments: &Arguments, request: ConnectionRequest) -> Result<(), Failure> {
    arguments.debug_note(format_args!("wants to connect: {:?}", request.id()));
    let mut qp = PingQp::new(&request.get_device_context()?)?;
    request.prepare(&mut qp.inner)?;
    qp.receive()?;
    let connection = request.accept(&mut qp.inner, &ConnectionParameter::new()).map_err(Failure::work)?;
    arguments.debug_note("connected");
    let mut buffer = PingBuffer::new(&qp, arguments.size)?;
    while let Some(again) = qp.answer(arguments, &connection, buffer)? {
        buffer = again;
    }
    note("server DISCONNECT EVENT...");
    // Answers the client's disconnect. The client may have exited already.
    let _ = connection.id().disconnect();
    Ok(())
}

fn ping(arguments: &Arguments, provider: Provider) -> Result<(), Failure> {
    let name = arguments.address.as_deref().unwrap_or_default();
    let server = devices::resolve(name, arguments.port)?;
    let source = arguments.source.map(|source| (source, 0).into());
    let connector = Connector::with_id(identifier(provider)?, source, server, RESOLUTION)?;
    arguments.debug_note(format_args!("{server} is resolved: {:?}", connector.id()));
    let mut qp = PingQp::new(&connector.get_device_context()?)?;
    connector.prepare(&mut qp.inner)?;
    qp.receive()?;
    // Created before the connection, because the server may use the buffers as soon as it is
    // connected.
    let (mut source, sink) = (PingBuffer::new(&qp, arguments.size)?, PingBuffer::new(&qp, arguments.size)?);
    let connection = connector.connect(&mut qp.inner, &ConnectionParameter::new()).map_err(Failure::work)?;
    arguments.debug_note("connected");
    let pings = if arguments.count == 0 { u64::MAX } else { arguments.count };
    for number in 0..pings {
        let sent = text(number, arguments.size as usize);
        source.slice.copy_from_slice(0, &sent)?;
        for buffer in [&source, &sink] {
            qp.send(buffer.remote(arguments.size))?;
            match qp.wait(&connection, &buffer.pool)? {
                PeerAction::Received(_) => {}
                PeerAction::HungUp => {
                    return Err(Failure::work(format_args!("the server hung up in ping {number}")));
                }
                PeerAction::InPeer(_) => return Err(unexpected("a read or write")),
            }
        }
        let came_back = read_text(&sink.slice)?;
        if arguments.validate && came_back[..] != sent[..sent.len() - 1] {
            return Err(Failure::work(format_args!("data mismatch! in ping {number}")));
        }
        if arguments.verbose {
            say(format_args!("ping data: {}", String::from_utf8_lossy(&came_back)))?;
        }
    }
    connection.disconnect().map_err(Failure::work)?;
    note("client DISCONNECT EVENT...");
    Ok(())
}

fn identifier(provider: Provider) -> Result<Identifier, Failure> {
    Ok(EventChannel::from_provider(provider)?.create_id(PortSpace::Tcp)?)
}

impl Arguments {
    fn debug_note(&self, line: impl std::fmt::Display) {
        if self.debug {
            note(line);
        }
    }
}

/// A buffer that the peer may read and write.
struct PingBuffer {
    pool: Pool,
    slice: Slice,
}

impl PingBuffer {
    fn new(qp: &PingQp, size: u32) -> Result<Self, Failure> {
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteRead | AccessFlags::RemoteWrite;
        let mut builder = qp.inner.control().pd().create_pool_builder();
        let pool = builder.setup_access(access).setup_slices(size as usize, 1).build()?;
        let slice = pool.take().ok_or_else(|| Failure::setup("a new pool is empty"))?;
        Ok(Self { pool, slice })
    }

    /// Its address, which is sent to the peer.
    fn remote(&self, size: u32) -> RemoteBuffer {
        RemoteBuffer { addr: self.slice.addr(), rkey: self.pool.rkey(), size }
    }
}

/// The event that ended a wait.
enum PeerAction {
    Received(RemoteBuffer),
    InPeer(Slice),
    HungUp,
}

/// A queue pair with its completion queue and message buffers.
struct PingQp {
    inner: GenericQueuePair,
    cq: GenericCompletionQueue,
    channel: CompletionChannel,
    messages: Pool,
}

impl PingQp {
    fn new(context: &DeviceContext) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq =
            context.create_cq_builder().setup_cqe(DEPTH * 2).setup_comp_channel(&channel).build_generic()?;
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_send_wr(DEPTH).setup_max_recv_wr(2);
        let messages = pd.create_pool_builder().setup_slices(RemoteBuffer::BYTES, DEPTH as usize).build()?;
        Ok(Self { inner: builder.build_generic()?, cq, channel, messages })
    }

    fn take(&self) -> Result<Slice, Failure> {
        self.messages.take().ok_or_else(|| Failure::work("no slice is free"))
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let slice = self.take()?;
        let mut list = self.messages.attach_recv(self.inner.start_post_recv())?;
        list.construct_wr(RECEIVE).setup_slice(slice);
        list.post().map_err(Failure::work)
    }

    fn send(&mut self, remote: RemoteBuffer) -> Result<(), Failure> {
        let mut slice = self.take()?;
        slice.copy_from_slice(0, &remote.to_bytes())?;
        let mut list = self.messages.attach(self.inner.start_post_send())?;
        list.construct_wr(SEND, WorkRequestFlags::Signaled).setup_send().setup_slice(slice);
        list.post().map_err(Failure::work)
    }

    /// Answers one ping: reads the client's text, and writes it to the client's second buffer.
    /// `None` if the client has disconnected.
    fn answer(
        &mut self,
        arguments: &Arguments,
        connection: &Connection,
        buffer: PingBuffer,
    ) -> Result<Option<PingBuffer>, Failure> {
        let PingBuffer { pool, mut slice } = buffer;
        let source = match self.wait(connection, &pool)? {
            PeerAction::Received(remote) => remote,
            PeerAction::HungUp => return Ok(None),
            PeerAction::InPeer(_) => return Err(unexpected("a read or write")),
        };
        if source.size > arguments.size {
            return Err(Failure::work(format_args!(
                "the client's pings have {} bytes; the limit is {} (-S)",
                source.size, arguments.size
            )));
        }
        slice.set_len(source.size as usize)?;
        let mut list = pool.attach(self.inner.start_post_send())?;
        let read = list.construct_wr(IN_PEER, WorkRequestFlags::Signaled);
        read.setup_read(source.rkey, source.addr).setup_slice(slice);
        list.post().map_err(Failure::work)?;
        let mut slice = self.wait_in_peer(connection, &pool)?;
        let text = read_text(&slice)?;
        if arguments.verbose {
            say(format_args!("server ping data: {}", String::from_utf8_lossy(&text)))?;
        }
        self.send(RemoteBuffer::default())?;

        let PeerAction::Received(sink) = self.wait(connection, &pool)? else {
            return Err(unexpected("the end of the connection"));
        };
        // Including the final zero byte, if the text has one.
        slice.set_len((text.len() + 1).min(source.size as usize).min(sink.size as usize))?;
        let mut list = pool.attach(self.inner.start_post_send())?;
        let write = list.construct_wr(IN_PEER, WorkRequestFlags::Signaled);
        write.setup_write(sink.rkey, sink.addr).setup_slice(slice);
        list.post().map_err(Failure::work)?;
        let slice = self.wait_in_peer(connection, &pool)?;
        self.send(RemoteBuffer::default())?;
        Ok(Some(PingBuffer { pool, slice }))
    }

    fn wait_in_peer(&mut self, connection: &Connection, pool: &Pool) -> Result<Slice, Failure> {
        match self.wait(connection, pool)? {
            PeerAction::InPeer(slice) => Ok(slice),
            PeerAction::Received(_) => Err(unexpected("a message")),
            PeerAction::HungUp => Err(unexpected("the end of the connection")),
        }
    }

    /// Sleeps until a message arrives, a read or write completes, or the peer disconnects.
    fn wait(&mut self, connection: &Connection, buffer: &Pool) -> Result<PeerAction, Failure> {
        let events = connection.id().event_channel();
        loop {
            // This arms the queue, so that later completions cause an event.
            if let Some(done) = self.poll(buffer)? {
                if let PeerAction::Received(_) = done {
                    self.receive()?;
                }
                return Ok(done);
            }
            let mut ready = [PollFd::new(&self.channel, PollFlags::IN), PollFd::new(&events, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(Failure::work(format_args!("poll failed: {error}"))),
            }
            self.channel.try_next().map_err(Failure::work)?;
            while let Some(event) = events.try_get_cm_event().map_err(Failure::work)? {
                match (event.event_type(), event.error()) {
                    (EventType::Disconnected, _) => return Ok(PeerAction::HungUp),
                    (_, Some(error)) => return Err(Failure::work(error)),
                    (_, None) => {}
                }
            }
        }
    }

    /// Takes completions until one ends the wait; `None` if none does.
    fn poll(&mut self, buffer: &Pool) -> Result<Option<PeerAction>, Failure> {
        let mut poller = self.cq.arm(Notify::Any).map_err(Failure::work)?;
        while let Some(wc) = poller.next() {
            if wc.status() != WorkCompletionStatus::Success {
                return Err(report::failed(&wc, Some(self.inner.control())));
            }
            if let Some(returned) = buffer.reclaim(&wc) {
                return Ok(Some(PeerAction::InPeer(returned.slice)));
            }
            let returned = self.messages.reclaim(&wc).ok_or_else(|| report::unknown(wc.wr_id()))?;
            if returned.wr_id == RECEIVE {
                let mut bytes = [0; RemoteBuffer::BYTES];
                if returned.byte_len != Some(RemoteBuffer::BYTES as u32) {
                    return Err(Failure::work(format_args!(
                        "received a message of {:?} bytes",
                        returned.byte_len
                    )));
                }
                returned.slice.copy_to_slice(0, &mut bytes)?;
                return Ok(Some(PeerAction::Received(RemoteBuffer::from_bytes(bytes))));
            }
        }
        poller.finish().map_err(Failure::work)?;
        Ok(None)
    }
}

fn unexpected(what: &str) -> Failure {
    Failure::work(format_args!("unexpected during a ping: {what}"))
}
