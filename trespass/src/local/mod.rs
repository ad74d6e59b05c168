//! Thread per core: an executor whose tasks have the connections of a [`Worker`](crate::Worker).
//!
//! A [`Runtime`] runs on one thread. Its tasks and connections never move to another one, so no
//! call on a connection takes a lock or waits for another core. A server has a runtime for each
//! core, and all listen on one port ([`Builder::reuse_port`](crate::Builder::reuse_port)).
//!
//! ```
//! use trespass::local::{Listener, Runtime, Stream, spawn_local};
//!
//! # fn main() -> std::io::Result<()> {
//! let runtime = Runtime::new(&trespass::Builder::new().build()?)?;
//! runtime.block_on(async {
//!     let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap())?;
//!     let addr = listener.local_addr()?;
//!     let server = spawn_local(async move {
//!         let (mut stream, _) = listener.accept().await?;
//!         let mut request = [0; 5];
//!         stream.read_exact(&mut request).await?;
//!         stream.write_all(&request.to_ascii_uppercase()).await
//!     });
//!
//!     let mut stream = Stream::connect(addr).await?;
//!     stream.write_all(b"hello").await?;
//!     let mut answer = [0; 5];
//!     stream.read_exact(&mut answer).await?;
//!     assert_eq!(&answer, b"HELLO");
//!     server.await
//! })?
//! # }
//! ```
//!
//! A server makes a runtime on each of its threads, and binds the same address in each:
//!
//! ```no_run
//! use trespass::Builder;
//! use trespass::local::{Listener, Runtime};
//!
//! # fn main() -> std::io::Result<()> {
//! let config = Builder::new().reuse_port(true).build()?;
//! let threads = std::thread::available_parallelism()?.get();
//! std::thread::scope(|scope| {
//!     for _ in 0..threads {
//!         scope.spawn(|| -> std::io::Result<()> {
//!             Runtime::new(&config)?.block_on(async {
//!                 let mut listener = Listener::bind("0.0.0.0:7000".parse().unwrap())?;
//!                 loop {
//!                     let (stream, _) = listener.accept().await?;
//!                     # drop(stream); // ... spawn a task ...
//!                 }
//!             })?
//!         });
//!     }
//! });
//! # Ok(())
//! # }
//! ```
//!
//! A client borrows its connections from a pool ([`connections`](crate::connections)), which resolves
//! names, too. Many requests share a connection by a mux ([`mux`](crate::mux)). Both take locks,
//! which no other thread can hold, because a pool and a mux of this module stay on their thread.
//!
//! The threads share nothing of this crate. Data that they share needs a lock, or a channel to the
//! thread that owns it.
//!
//! # What wakes a task
//!
//! - Its connection ([`Stream`], [`SeqPacket`]), or a client of its [`Listener`]. The thread of the
//!   runtime polls the completion queue that all connections share, and runs the tasks after that.
//! - A time: [`sleep`], [`timeout`].
//! - Another task, or another thread, by anything that has a [`Waker`](std::task::Waker): a channel
//!   of `async-channel` or `tokio::sync`, for example. A wake-up by another thread ends the
//!   runtime's sleep by one system call, and one by the runtime's own thread makes none.
//!
//! Connections and times wake tasks of the runtime that they were made in. A call that would wait
//! fails elsewhere, because the runtime that runs there does not poll this one's worker.
//!
//! # Dropped futures
//!
//! A future of a read, a receive or an accept that is dropped before its end has taken nothing, and
//! one of a write or a send has given nothing, so all may be dropped. `write_all` and `read_exact`
//! are the exceptions, because they consist of several calls.
//!
//! # What runs where
//!
//! A task that computes holds up all connections of its runtime, as in any event loop. Connects,
//! closes and handshakes do not block, but names must be resolved elsewhere: calls take a
//! [`SocketAddr`](std::net::SocketAddr). A pool of connections resolves its names on a thread.

#[macro_use]
mod connection;
mod halves;
mod listener;
mod on_thread;
mod reactor;
mod runtime;
mod seq_packet;
mod stream;
mod timers;

pub use halves::{ReadHalf, RecvHalf, SendHalf, WriteHalf};
pub use listener::Listener;
pub(crate) use on_thread::on_thread;
pub use runtime::{JoinHandle, Runtime, spawn_local};
pub use seq_packet::SeqPacket;
pub use stream::Stream;
pub use timers::{Sleep, TimedOut, sleep, sleep_until, timeout};
