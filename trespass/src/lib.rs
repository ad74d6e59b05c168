//! Sockets that use RDMA where it works, and TCP where it does not.
//!
//! The API is that of [`std::net`]: [`Listener`] and [`Stream`] are used as `TcpListener` and
//! `TcpStream` are, and fail with the same kinds of error. Both sides use this crate. A connection
//! begins over TCP, tries RDMA between the two hosts, and reports which transport it uses.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::thread;
//! use trespass::{Listener, Stream};
//!
//! # fn main() -> std::io::Result<()> {
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let addr = listener.local_addr()?;
//!
//! let server = thread::spawn(move || -> std::io::Result<()> {
//!     let (mut stream, peer) = listener.accept()?;
//!     println!("{peer} connected over {}", stream.transport());
//!     let mut request = String::new();
//!     stream.read_to_string(&mut request)?; // until the client shuts down its write half
//!     stream.write_all(request.to_uppercase().as_bytes())
//! }); // the written bytes of the dropped stream are still sent
//!
//! let mut stream = Stream::connect(addr)?;
//! stream.write_all(b"hello")?;
//! stream.shutdown(std::net::Shutdown::Write)?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer)?;
//! assert_eq!(answer, "HELLO");
//! server.join().unwrap()
//! # }
//! ```
//!
//! Without a NIC, a software device in the program itself carries the connections of a host:
//!
//! ```text
//! trespass = { version = "0.1", features = ["soft"] }              # in Cargo.toml
//! SIDEWAY_PROVIDER=soft TRESPASS_LOG=info cargo run                # says which transport each has
//! ```
//!
//! # Messages
//!
//! A [`SeqPacket`] carries messages instead of bytes. Each arrives whole, so no program has to find
//! its end.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! let listener = trespass::Listener::bind("127.0.0.1:0")?;
//! let addr = listener.local_addr()?;
//! let client = std::thread::spawn(move || -> std::io::Result<()> {
//!     let mut packets = trespass::SeqPacket::connect(addr)?;
//!     packets.send(b"one")?;
//!     packets.send(b"two")
//! });
//!
//! let (mut packets, _) = listener.accept_seq_packet()?;
//! let mut message = [0; 1024];
//! assert_eq!(packets.recv(&mut message)?, 3);
//! assert_eq!(&message[..3], b"one");
//! assert_eq!(packets.recv(&mut message)?, 3);
//! assert_eq!(&message[..3], b"two");
//! // The end is an error, because a length of 0 is an empty message.
//! assert_eq!(packets.recv(&mut message).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
//! client.join().unwrap()
//! # }
//! ```
//!
//! # The transport
//!
//! [`Stream::transport`] returns the transport, and [`Stream::fallback_reason`] why it is not RDMA.
//! A program chooses with [`Builder::policy`]. The person who starts it can override that with
//! `TRESPASS_TRANSPORT`. The API behaves the same over both transports.
//!
//! ```no_run
//! use trespass::{Builder, Policy};
//!
//! # fn main() -> std::io::Result<()> {
//! let stream = Builder::new().policy(Policy::RequireRdma).connect("server.example:7000")?;
//! # let _ = stream;
//! # Ok(())
//! # }
//! ```
//!
//! Without TCP, a connection begins with rdma_cm: set [`Builder::bootstrap`] to
//! [`Bootstrap::RdmaCm`] on both sides. Such a connection uses RDMA or fails.
//!
//! # Waiting for several connections
//!
//! - A blocking call waits without limit, or as long as [`Stream::set_read_timeout`] and
//!   [`Stream::set_write_timeout`] allow.
//! - A non-blocking program ([`Stream::set_nonblocking`]) waits for the
//!   [descriptor](Stream#impl-AsFd-for-Stream) with `poll`, `epoll` or mio. When it is *readable*,
//!   make the calls of interest; while they leave something, it is readable again. For space, wait
//!   for it in the same way, or for `EPOLLOUT` with [`Stream::writable_fd`].
//! - [`Stream::start_connect`] begins a connect and does not block
//!   (`connecting::i8_one_thread_makes_many_connections_at_once`).
//! - A [`Worker`] serves many connections on one thread.
//!
//! # Zero copy
//!
//! [`Stream::buffer`] takes a block of the connection's [`pool`]. [`Stream::send_buf`] and
//! [`Stream::send_blocks`] send blocks in place, and [`Stream::completion`] returns them.
//! [`Stream::recv_buf`] receives in place, and so does [`SeqPacket::recv_part_buf`] for messages
//! larger than the receive buffer. [`Pool::adopt`] makes a block of other memory.
//!
//! # Differences from `std::net`
//!
//! There are five. The names in brackets are tests in `tests/suite`. The cases of `parity` there run
//! over `std::net`, too, and compare.
//!
//! 1. The kernel does little of the work: the bytes of an open connection move while a call runs.
//!    While a program makes no calls it neither sends nor receives, and its peer waits
//!    (`streams::a_peer_that_does_not_read_stops_the_writer`). One thread of the process, named
//!    `trespass`, connects a listener's clients, closes connections, and sends the bytes of
//!    [`Builder::control_keepalive`]. It sleeps while nothing is due
//!    (`accepting::i18_the_service_thread_sleeps_while_clients_wait`).
//! 2. The descriptor to wait for becomes readable for space, too, and is never writable (`ready`):
//!    [`writable_fd`](Stream::writable_fd) is another descriptor, for `EPOLLOUT` (`writable`). There
//!    is no `try_clone`: threads share a reference or an `Arc`, or
//!    [split](Stream::split) the stream (`threads`).
//! 3. When the peer's process is killed, reading fails with
//!    [`ConnectionReset`](std::io::ErrorKind::ConnectionReset). An end of stream is always one that
//!    the peer sent (`death::i9_a_killed_peer_ends_every_call`). A reset connection therefore fails
//!    each further read, too.
//! 4. Over RDMA the peer's side holds flushed bytes of a stream, and sent messages, while they fit its
//!    free receives: at least 200,000 bytes by default, 24,000 above 64 connections, if its program
//!    has kept up (`death::an_answer_outlives_the_process_that_wrote_it`,
//!    `death::a_message_outlives_the_process_that_sent_it`). Further bytes, messages that do not fit,
//!    and what [`send_buf`](Stream::send_buf) sends without a copy are read from this side's memory.
//!    They need this process until [`drain`](Stream::drain) returns. A dropped connection sends for
//!    10 s at most
//!    ([`Stream::set_linger`], `close::i14_close_waits_no_longer_than_it_lingers`). So do all that are
//!    open, also those of a [`Worker`], when `main` returns or [`exit`](std::process::exit) is called
//!    (`parity::processes::the_end_of_a_process_sends_what_it_wrote`). `_exit`, `abort`, exec, a
//!    signal or a crash lose what is not sent.
//! 5. After a fork, listeners, connections and workers belong to the parent: calls of the child fail,
//!    and its drop disturbs nothing (`tests/fork.rs`).
//!
//! # What a peer can do
//!
//! - Every byte of a peer is checked before it is used. A peer that breaks the protocol loses its
//!   connection, and the others continue. A peer that does not read blocks the program that writes
//!   to it. A peer that never stops writing fills the receive buffer ([`Builder::rcvbuf`]) and no
//!   more.
//! - Nothing is encrypted, and nobody is authenticated. As with plain TCP, the network must be
//!   trusted or protected at a lower layer.
//! - Over RDMA a peer reads long messages from this process's pool. The key that it gets for that
//!   covers a few megabytes of the pool. With a modified program it can read other data there that
//!   waits to be read, for other peers too, while its connection exists. It cannot write, and
//!   received data is never readable. A server whose peers must not see each other's data disables
//!   [`Builder::rendezvous`]; messages then go in frames.
//!
//! The feature `soft` builds a software device into the program, which `SIDEWAY_PROVIDER=soft`
//! chooses. Without the feature `rdma`, the crate works over TCP alone and depends on nothing of
//! RDMA. Both builds interoperate.

#[macro_use]
mod debug_as_text;

mod api;
mod config;
#[cfg(test)]
mod corpus;
mod error;
#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "what queue pairs alone need"))]
mod handshake;
pub mod pool;
mod process;
#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "what queue pairs alone need"))]
mod protocol;
mod session;
#[cfg(test)]
mod sim;
mod transport;
#[cfg_attr(not(feature = "rdma"), allow(dead_code, unused_imports, reason = "what queue pairs alone need"))]
mod wire;

pub use api::{
    Connecting, Event, Incoming, IntoIncoming, Key, Listener, ReadHalf, RecvHalf, SendHalf, SeqPacket,
    Stream, Worker, WorkerWaker, WriteHalf,
};
pub use config::{Bootstrap, Builder, Config, ConfigError};
pub use error::ConnectError;
pub use handshake::{FallbackReason, HandshakeError, HandshakeStep, Side, Transport};
pub use pool::{Block, Pool, PoolConfig, PoolError, PoolStats};
pub use session::buffers::{Completion, Part, Progress, RecvBuf, SendRefused, Ticket};
pub use session::readiness::Readiness;
pub use session::stats::Stats;
pub use wire::{Cause, Kind, Policy, RejectReason};

/// Entry points for the fuzz targets in `fuzz/`.
#[cfg(fuzzing)]
pub mod testing {
    pub use crate::handshake::hostile::hostile_handshake;
    pub use crate::handshake::hostile_cm::hostile_exchange;
    pub use crate::protocol::hostile::hostile_frames;
    pub use crate::wire::hostile::hostile_message;
}
