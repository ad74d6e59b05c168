//! Connections for tasks of [tokio](https://docs.rs/tokio), on Unix.
//!
//! The types are used as those of `tokio::net` are. Their peers may be programs of any kind: blocking
//! ones, and those with a [`Worker`](crate::Worker).
//!
//! ```
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use trespass::tokio::{Listener, Stream};
//!
//! async fn greet() -> std::io::Result<()> {
//!     let listener = Listener::bind("127.0.0.1:0").await?;
//!     let addr = listener.local_addr()?;
//!     let server = tokio::spawn(async move {
//!         let (mut stream, peer) = listener.accept().await?;
//!         println!("{peer} connected over {}", stream.transport());
//!         let mut request = [0; 5];
//!         stream.read_exact(&mut request).await?;
//!         stream.write_all(&request).await
//!     });
//!
//!     let mut stream = Stream::connect(addr).await?;
//!     stream.write_all(b"hello").await?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer).await?; // until the server drops its end
//!     assert_eq!(answer, "hello");
//!     server.await?
//! }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(greet())?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The feature `futures` adds the traits of futures-io. The names in brackets are tests in
//! `async-tests`.
//!
//! # What runs where
//!
//! Bytes move in the tasks that read and write. A thread of this crate sends what the peer has had no
//! room for (`streams::written_bytes_arrive_while_the_task_does_something_else`), as after a blocking
//! call. The runtime wakes a task when its connection has an event. Nothing polls while tasks wait
//! (`idle::waiting_tasks_use_no_processor`). Before a task waits, it looks again a few times when the
//! other tasks have run, while reads of other connections find something: their messages then take no
//! system call (`looks::tasks_that_answer_each_other_seldom_wait`). A future that `block_on` polls
//! itself makes no looks, so spawn it.
//!
//! No call waits for a peer on a thread of the runtime. Names are resolved, and connects do their
//! steps, on tokio's blocking threads, because a step may open the device, register the pool or make a
//! queue pair. Between the steps they wait for events
//! (`connecting::a_silent_server_stops_no_other_task`). The drop of a connection waits for nothing
//! (`closing::a_drop_waits_for_nothing`). A pool that grows registers memory in the task that needs it:
//! [`PoolConfig`](crate::PoolConfig) can register it at the start.
//!
//! # Wakers
//!
//! A call may find what another task waits for, for example a write that finds received bytes. It wakes
//! that task when it has left the connection, so that the waker may call the connection
//! (`wakers::a_waker_reads_in_the_call_that_wakes_it`). The thread of this crate wakes tasks, too
//! (`wakers::a_waker_writes_when_the_service_thread_wakes_it`). A waker that blocks stops its other
//! work.
//!
//! # Cancellation
//!
//! Each method says whether it is cancel safe: whether dropping its future before it is ready loses
//! nothing (`cancelling::dropped_reads_take_nothing`,
//! `cancelling::dropped_writes_take_nothing_unreported`). Memory that the device may still use belongs
//! to the connection, never to a future (`cancelling::dropped_sends_of_blocks_leak_none`).
//!
//! # Peers that use plain TCP
//!
//! [`Listener::accept_any`] and [`AnyStream::connect`] are for services whose peers move to this crate
//! one after the other (`plain::a_task_serves_both_kinds_of_clients`,
//! `plain::a_task_connects_to_both_kinds_of_servers`).
//!
//! # HTTP
//!
//! hyper serves and asks over a stream that `hyper_util::rt::TokioIo::new` wraps
//! (`libraries::hyper_serves_http`). Await `SendRequest::ready` before each request, because hyper
//! refuses one while its connection still ends the answer before. The pooled client of hyper-util
//! needs a connector, with its trait `Connection` on a type of the program
//! (`libraries::the_pooled_client_of_hyper_reuses_connections` has both).
//!
//! axum 0.8 accepts from any type with its trait `Listener`. A program implements that for a type of
//! its own:
//!
//! ```
//! use std::io;
//! use std::net::SocketAddr;
//! use std::time::Duration;
//! use trespass::tokio::{Listener, Stream};
//!
//! # // The trait of axum 0.8: this crate does not depend on axum.
//! # mod axum {
//! #     pub mod serve {
//! #         use tokio::io::{AsyncRead, AsyncWrite};
//! #         pub trait Listener: Send + 'static {
//! #             type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;
//! #             type Addr: Send;
//! #             fn accept(&mut self) -> impl Future<Output = (Self::Io, Self::Addr)> + Send;
//! #             fn local_addr(&self) -> tokio::io::Result<Self::Addr>;
//! #         }
//! #     }
//! # }
//! struct RdmaListener(Listener);
//!
//! impl axum::serve::Listener for RdmaListener {
//!     type Io = Stream;
//!     type Addr = SocketAddr;
//!
//!     async fn accept(&mut self) -> (Stream, SocketAddr) {
//!         loop {
//!             match self.0.accept().await {
//!                 Ok(accepted) => return accepted,
//!                 Err(error) => {
//!                     // For example without free descriptors. A later call may succeed.
//!                     eprintln!("no client is accepted: {error}");
//!                     tokio::time::sleep(Duration::from_secs(1)).await;
//!                 }
//!             }
//!         }
//!     }
//!
//!     fn local_addr(&self) -> io::Result<SocketAddr> {
//!         self.0.local_addr()
//!     }
//! }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! #     let mut listener = RdmaListener(Listener::bind("127.0.0.1:0").await?);
//! #     let addr = axum::serve::Listener::local_addr(&listener)?;
//! #     let client = tokio::spawn(Stream::connect(addr));
//! #     let (_stream, peer) = axum::serve::Listener::accept(&mut listener).await;
//! #     assert_eq!(client.await??.local_addr()?, peer);
//! #     io::Result::Ok(())
//! # })?;
//! # Ok::<(), io::Error>(())
//! ```
//!
//! Then `axum::serve(RdmaListener(listener), router)` serves as over TCP.
//!
//! - **Clients of plain TCP**, such as `curl` or a health check, need
//!   [`Builder::plain_tcp`](crate::Builder::plain_tcp), [`Listener::accept_any`] in place of `accept`,
//!   and `type Io = AnyStream`.
//! - **A handler learns the transport** from a type of the program, to which
//!   `into_make_service_with_connect_info` refers. It implements
//!   `Connected<IncomingStream<'_, RdmaListener>>`, and `IncomingStream::io` is the stream.
//! - **A graceful shutdown** answers the requests of open connections
//!   (`libraries::hyper_ends_a_long_answer_before_it_shuts_down`). It drops the listener, which resets
//!   the clients in the backlog. Answers that are written when `main` returns are still sent
//!   ([`Builder::exit_timeout`](crate::Builder::exit_timeout)).
//!
//! # Runtimes
//!
//! A value belongs to the runtime in which it was made, which needs I/O (`enable_io`), and elsewhere
//! than on Linux time (`enable_time`).

mod any_stream;
mod common;
mod connect;
mod descriptor;
#[cfg(feature = "futures")]
mod futures;
mod halves;
mod listener;
mod looks;
mod seq_packet;
mod stream;

pub use any_stream::AnyStream;
pub(crate) use connect::on_blocking_thread;
pub use halves::{OwnedReadHalf, OwnedRecvHalf, OwnedSendHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
pub use listener::Listener;
pub use seq_packet::SeqPacket;
pub use stream::Stream;
