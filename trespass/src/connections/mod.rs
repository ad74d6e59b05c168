//! A pool of connections to one service, which calls borrow one after the other.
//!
//! A connection takes several round trips, and over RDMA a queue pair, so a client that makes many
//! short requests keeps its connections. [`ConnectionPool::get`] lends one that is open, or makes one.
//! A drop of the [`PooledConnection`] returns it.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::time::Duration;
//! use trespass::connections::ConnectionPool;
//! use trespass::{Listener, Stream};
//!
//! # fn main() -> std::io::Result<()> {
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let addr = listener.local_addr()?;
//! let server = std::thread::spawn(move || -> std::io::Result<()> {
//!     let (mut stream, _) = listener.accept()?;
//!     let mut request = [0; 4];
//!     while stream.read_exact(&mut request).is_ok() {
//!         stream.write_all(&request)?;
//!     }
//!     Ok(())
//! });
//!
//! let pool = ConnectionPool::<Stream>::builder(addr).maximum(16).build()?;
//! for _ in 0..3 {
//!     let mut stream = pool.get()?;
//!     stream.set_read_timeout(Some(Duration::from_secs(10)))?;
//!     stream.write_all(b"ping")?;
//!     let mut answer = [0; 4];
//!     stream.read_exact(&mut answer)?;
//!     assert_eq!(&answer, b"ping");
//! } // the drop returns the connection
//! let stats = pool.stats();
//! assert_eq!((stats.made, stats.reused, stats.idle), (1, 2, 1));
//!
//! drop(pool); // closes it
//! server.join().unwrap()
//! # }
//! ```
//!
//! With the features `tokio` and `local`, the same type lends the connections of `trespass::tokio` and
//! `trespass::local`, and `get` is awaited. The names in brackets are tests, of `trespass/tests/suite`
//! and of `async-tests`.
//!
//! # What `get` does
//!
//! 1. If [`maximum`](ConnectionPoolBuilder::maximum) connections are in use, it waits for its turn, in
//!    order of arrival (`pooled::calls_wait_in_order`, `pooled::tasks_wait_in_order`), up to the
//!    [`timeout`](ConnectionPoolBuilder::timeout)
//!    (`pooled::an_exhausted_pool_fails_after_its_timeout`).
//! 2. It takes the idle connection that was used last. It looks at the connection first, and closes it
//!    if it has failed or ended, or has bytes that nobody read
//!    (`pooled::connections_that_died_idle_are_not_lent`).
//! 3. Without an idle one it connects: to the host that accepted last, then to the others in turn, and
//!    to each address of a host (`pooled::hosts_are_tried_in_turn`).
//! 4. If no host accepts, it tries again, after a pause of 1.0 to 1.2 times
//!    [`retry_pause`](ConnectionPoolBuilder::retry_pause) (`pooled::a_server_restarts`).
//!
//! Requests that share connections, many at a time on each, are the work of
//! [`MuxPool`](crate::mux::MuxPool), which takes its connections from a pool.
//!
//! # What a returned connection must be
//!
//! Return a connection between two requests, never within one: the answer would be the next call's. A
//! return closes the connection if the pool sees that it is not as a new one: if it has failed, if a
//! direction is shut down, if bytes are unread, if a message is sent or received in part, or if blocks
//! are lent (`pooled::unfit_connections_are_closed_on_return`). So does the return by a thread that
//! panics. The pool cannot see a request without an answer, so call
//! [`PooledConnection::mark_broken`] after a call that failed or timed out. A task that may be dropped
//! within a request calls it before, and [`PooledConnection::mark_usable`] afterwards
//! (`pooled::a_task_dropped_within_a_request`).
//!
//! A returned connection gets the defaults of a new one again: its timeouts, its linger time, its mode,
//! and no cork.
//!
//! # When it works
//!
//! A pool has no thread. `get` closes the connections that were idle for too long
//! (`pooled::idle_connections_expire`). [`ConnectionPool::maintain`] does that, too, looks at all idle
//! connections, and connects up to [`minimum`](ConnectionPoolBuilder::minimum)
//! (`pooled::the_minimum_is_kept`). Call it at the start, and from a timer of the program.
//!
//! A pool of `trespass::local` stays on its thread. Its connections are those of a runtime, and have
//! that runtime's parameters. While the runtime does not run, a return closes the connection
//! (`pooled::connections_return_to_the_runtime_that_runs`).
//!
//! A service that speaks first needs a minimum of 0, because its greeting is unread bytes.
//!
//! The last clone of a pool closes the idle connections. Handles do not keep the pool: their
//! connections stay open until they are dropped (`pooled::handles_outlive_their_pool`).

#[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
mod awaited;
mod builder;
mod error;
mod handle;
mod hosts;
#[cfg(feature = "local")]
mod local;
mod pool;
mod retry;
mod state;
#[cfg(all(unix, feature = "tokio"))]
mod tasks;
mod threads;

#[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
pub(crate) use awaited::ConnectInTask;
pub use builder::ConnectionPoolBuilder;
pub use error::GetError;
pub(crate) use handle::TakenPlace;
pub use handle::{Pooled, PooledConnection};
pub use pool::ConnectionPool;
pub use state::ConnectionPoolStats;
