//! Sockets that carry their bytes by RDMA where there is RDMA, and by TCP where there is none.
//!
//! Whoever knows [`std::net`] knows most of this crate: [`Listener`] and [`Stream`] are used as `TcpListener` and `TcpStream` are, and fail
//! with the same kinds of error. Both sides need it: it begins on a TCP connection, tries whether RDMA works
//! between the two, and tells which of them it became.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::thread;
//! use trespass::{Listener, Stream};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut listener = Listener::bind("127.0.0.1:0")?;
//! let addr = listener.local_addr()?;
//!
//! let server = thread::spawn(move || -> std::io::Result<()> {
//!     let (mut stream, peer) = listener.accept()?;
//!     println!("{peer} is here, over {}", stream.transport());
//!     let mut request = String::new();
//!     stream.read_to_string(&mut request)?; // until the client has shut down its half
//!     stream.write_all(request.to_uppercase().as_bytes())
//! }); // dropped, it is closed, once what was written is on its way
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
//! # Messages
//!
//! A [`SeqPacket`] carries messages instead of bytes: each arrives whole, so that no program has to find their ends.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! let mut listener = trespass::Listener::bind("127.0.0.1:0")?;
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
//! // Behind the last message there is no empty one, but the end.
//! assert_eq!(packets.recv(&mut message).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
//! client.join().unwrap()
//! # }
//! ```
//!
//! # Which way it goes
//!
//! [`Stream::transport`] says what carries a connection, and [`Stream::fallback_reason`] why it is not RDMA, if it is not. A
//! [`Builder`] chooses ([`Policy`]), and so can whoever starts the program, by `TRESPASS_TRANSPORT`. Over both ways a program sees the
//! same.
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
//! Where there is no TCP, or shall be none, a connection begins with RDMA's own connection manager: [`Builder::bootstrap`] with
//! [`Bootstrap::RdmaCm`], on both sides. RDMA carries it then, or there is no connection.
//!
//! # Waiting for many things
//!
//! - Calls wait, for ever or as long as [`Stream::set_read_timeout`] and [`Stream::set_write_timeout`] say.
//! - Or they do not ([`Stream::set_nonblocking`]), and the program waits for the [descriptor](Stream#impl-AsFd-for-Stream) with what it has:
//!   `poll`, `epoll`, mio. That the descriptor is *readable* means: make the calls you are interested in until they would
//!   block. It is never writable; a program that waits for room waits for the same.
//! - Or a [`Worker`] does it for many connections on one thread.
//!
//! # Without a copy
//!
//! Blocks of the connection's [`pool`] go out as they are, one or several as one message: [`Stream::buffer`],
//! [`Stream::send_buf`], [`Stream::send_blocks`], and back by [`Stream::completion`]. What arrives can be had where it lies:
//! [`Stream::recv_buf`], and [`SeqPacket::recv_part_buf`] where it is larger than the receive buffer. Memory that is not of the
//! pool becomes a block by [`Pool::adopt`].
//!
//! # What is different from `std::net`
//!
//! - There is no thread behind a connection, and most of the work is not the system's: bytes move while a call runs. A program that
//!   makes no calls for a long time neither sends nor receives; its peer waits.
//! - A connection belongs to one thread at a time, so there is no `try_clone`, and no `Read` for `&Stream`. Whoever reads on one
//!   thread and writes on another has two connections, or a [`Worker`].
//! - When the peer's program is killed, reading fails with [`ConnectionReset`](std::io::ErrorKind::ConnectionReset): the end of a stream is always one
//!   that the peer has meant.
//! - Dropping a connection waits until what was written is on its way, at most 1 s ([`Stream::set_linger`]). Over RDMA large pieces are
//!   read by the peer where they lie, so it waits until the peer has read them: a thread that has both ends shuts down, and reads, before it drops.
//! - A [`Listener`] shakes hands while it accepts: a client is connected when its server has accepted, or waits to accept.
//!
//! # What a peer can do
//!
//! - Whatever it sends is checked before it is believed. One that breaks the protocol loses its connection, and all others go on. One that
//!   does not read stops who writes to it; one that writes without an end fills the receive buffer ([`Builder::rcvbuf`]), and no more.
//! - Nothing is encrypted, and nobody proves who they are: as with plain TCP, the network has to be trusted, or to be made so below.
//! - Over RDMA a peer reads long messages out of this process's pool. The key that it is told for that is the pool's, of a few megabytes at a
//!   time: with the means of an attacker it reads what else waits there to be read, for other peers, too, as long as its connection lives. It
//!   can write nothing, and what was received is never readable. Who serves peers that must not see each other's data
//!   switches that off ([`Builder::rendezvous`]); messages then go in frames.
//!
//! Without the feature `rdma` this is the same crate over TCP alone, with nothing of RDMA in it; both builds understand each other.

mod api;
mod config;
#[cfg(test)]
mod corpus;
mod error;
#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "what queue pairs alone need"))]
mod handshake;
pub mod pool;
#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "what queue pairs alone need"))]
mod protocol;
mod session;
#[cfg(test)]
mod sim;
mod transport;
#[cfg_attr(not(feature = "rdma"), allow(dead_code, unused_imports, reason = "what queue pairs alone need"))]
mod wire;

pub use api::{Event, Incoming, Key, Listener, SeqPacket, Stream, Worker};
pub use config::{Bootstrap, Builder, Config, ConfigError};
pub use error::ConnectError;
pub use handshake::{FallbackReason, HandshakeError, Side, Step, Transport};
pub use pool::{Block, Pool, PoolConfig, PoolError, PoolStats};
pub use session::buffers::{Completion, Part, Progress, RecvBuf, SendRefused, Ticket};
pub use session::readiness::Readiness;
pub use session::stats::Stats;
pub use wire::{Cause, Kind, Policy, RejectReason};

/// What the fuzz targets in `fuzz/` call.
#[cfg(fuzzing)]
pub mod testing {
    pub use crate::handshake::hostile::hostile_handshake;
    pub use crate::handshake::hostile_cm::hostile_exchange;
    pub use crate::protocol::hostile::hostile_frames;
    pub use crate::wire::hostile::hostile_message;
}
