//! Many requests at a time on one connection, with answers in any order.
//!
//! A [`Mux`] carries bytes: requests with answers, messages without, and any number of answers to
//! one request. It is no RPC framework: what the bytes mean is the program's. Both sides of a
//! connection take a [`Stream`](crate::Stream), and either may ask.
//!
//! ```
//! use std::time::Duration;
//! use trespass::mux::{Mux, MuxConfig};
//! use trespass::{Listener, Stream};
//!
//! # fn main() -> std::io::Result<()> {
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let addr = listener.local_addr()?;
//! let server = std::thread::spawn(move || -> std::io::Result<()> {
//!     let (stream, _) = listener.accept()?;
//!     let mux = Mux::over(stream, &MuxConfig::new().max_requests(64))?;
//!     while let Some(mut request) = mux.next_request()? {
//!         let bytes = request.bytes()?;
//!         request.answer(bytes.to_ascii_uppercase())?;
//!     }
//!     Ok(())
//! });
//!
//! let mux = Mux::over(Stream::connect(addr)?, &MuxConfig::new())?;
//! let one = mux.request(b"one")?;
//! let two = mux.request_within(b"two", Duration::from_secs(10))?;
//! assert_eq!(two.wait()?, b"TWO");
//! assert_eq!(one.wait()?, b"ONE");
//!
//! drop(mux);
//! server.join().unwrap()
//! # }
//! ```
//!
//! With the features `tokio` and `local`, a mux takes the streams of `trespass::tokio` and
//! `trespass::local`, and its calls are awaited. The names in brackets are tests, of
//! `trespass/tests/suite`, of `async-tests`, or unit tests.
//!
//! # Requests and answers
//!
//! - [`Mux::request`] returns a [`PendingAnswer`], so that one thread has many in flight
//!   (`muxed::many_requests_are_in_flight`). Answers arrive in any order
//!   (`muxed::answers_come_in_any_order`). Threads and tasks share a mux by clones
//!   (`muxed::threads_share_a_mux`, `muxed::tasks_share_a_mux`).
//! - [`Mux::next_request`] returns a [`Request`] of the peer, when its first bytes are there. Any
//!   thread may answer it, later. A dropped one is an error at the peer
//!   (`muxed::a_dropped_request_of_the_peer_is_reported`).
//! - [`Request::answers`] sends several answers, which [`PendingAnswer::next_answer`] returns one
//!   by one (`muxed::a_slow_reader_of_answers_holds_up_nobody`).
//! - [`Mux::send_one_way`] sends a message without an answer. [`Mux::drain`] waits until the peer
//!   has taken all (`muxed::one_way_messages_are_taken_before_a_drop`).
//! - A dropped [`PendingAnswer`] cancels its request, also while bytes of it are under way
//!   (`muxed::a_dropped_request_is_cancelled`, `muxed::an_answer_is_cancelled_under_way`). So does
//!   a deadline, which the peer knows (`muxed::a_request_ends_at_its_deadline`).
//!
//! # Sharing the connection
//!
//! Messages above 16 KiB go in chunks. Smaller ones go before the next chunk
//! (`muxed::small_requests_pass_a_large_one`). Long messages end one after another, and none waits
//! for more than 1 MiB of each of the others
//! (`mux::engine::tests::messages_of_a_few_turns_end_one_after_another`,
//! `mux::engine::tests::a_message_of_few_chunks_waits_for_a_share_of_the_long_ones`).
//!
//! A request and its answers have a [window](MuxConfig::window) each: bytes that the receiving
//! program has not taken. So a program that leaves an answer unread holds up that answer alone. It
//! also bounds what a peer can make this side keep
//! (`mux::engine::tests::random::frames_that_are_almost_right_do_no_harm`,
//! `mux::engine::tests::an_announced_message_takes_no_more_room_than_its_window`,
//! `mux::engine::tests::messages_that_are_given_up_leave_no_turns`).
//!
//! A peer accepts a [number of requests](MuxConfig::max_requests) at a time. A call waits while it
//! has as many (`muxed::the_peer_accepts_no_more_than_it_says`). A cancelled one counts until the
//! peer's program has dropped it.
//!
//! If a peer reads nothing, 128 KiB of short messages are queued for it, and longer ones or more are
//! kept as they are (`mux::engine::tests::a_peer_that_reads_nothing_bounds_what_is_queued`). A
//! message without an answer waits while 4 MiB of them are kept
//! (`mux::engine::tests::one_way_messages_wait_while_others_are_kept`).
//!
//! Frames that are queued while a write is under way share the next write. A program that queues
//! several in a row shares one by [`Mux::set_cork`] (`muxed::requests_share_writes`). What a call
//! waits for is sent (`muxed::a_corked_mux_sends_what_a_call_waits_for`).
//! [`Mux::stats`] counts both.
//!
//! # When bytes move
//!
//! For threads, no thread of the mux moves bytes: a call that waits does that, for all others, too.
//! A call that only sends does not wait, and leaves what the connection does not take to the next
//! call. [`Mux::drain`] waits until all is sent. Tasks have a task of the mux that moves bytes at
//! any time. Calls fail when its runtime ends
//! (`mux_runtimes::calls_fail_when_the_runtime_of_the_mux_ends`).
//!
//! A mux of `trespass::local` stays on the thread of its runtime. Its calls take locks that no
//! other thread can hold, so none waits for another core. While the runtime does not run, no bytes
//! move, and the last drop closes nothing yet. A call that would wait then fails, and gives its
//! request up (`mux_runtimes::calls_in_another_runtime_do_not_wait`).
//!
//! The connection is closed when the last handle is dropped: of a [`Mux`], its requests and its
//! answers. What a corked mux has queued is sent (`muxed::the_last_drop_sends_what_was_corked`).
//! Messages that wait for the peer's credit or room are lost. A peer that goes on sending does not
//! keep the connection (`muxed::a_flood_does_not_outlast_the_last_handle`).
//!
//! # Several connections
//!
//! A [`MuxPool`] has a mux for each connection of a pool. It hands out the least loaded one, and
//! connects once all are loaded beyond a number (`muxed::a_pool_hands_out_the_least_loaded_mux`).
//! Calls meanwhile share a busy one
//! (`mux::pool::tests::calls_share_a_busy_mux_while_another_connects`). A failed one leaves the pool
//! (`muxed::a_pool_replaces_failed_muxes_and_passes_full_ones`). So does an idle one whose runtime
//! of `trespass::local` does not run
//! (`mux_runtimes::a_pool_leaves_the_muxes_of_another_runtime`).
//!
//! # Bad peers
//!
//! Bytes that no mux sends end the connection with a [`ProtocolViolation`]
//! (`muxed::peers_that_speak_something_else`). When a connection ends, all that wait for it get the
//! error (`muxed::requests_fail_with_their_connection`).

#[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
mod awaited;
mod config;
mod core;
#[cfg_attr(
    not(any(all(unix, feature = "tokio"), feature = "local")),
    allow(dead_code, reason = "what tasks alone need")
)]
mod engine;
mod error;
mod frame;
mod handles;
#[cfg(feature = "local")]
mod local;
mod payload;
mod pool;
mod serving;
mod stats;
#[cfg(all(unix, feature = "tokio"))]
mod tasks;
mod threads;
#[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
mod turn;

#[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
pub use awaited::AwaitedStream;
pub use config::MuxConfig;
pub use core::Arrived;
pub use error::{MuxError, ProtocolViolation};
pub use handles::{Answers, Mux, MuxStream, PendingAnswer, Request};
pub use payload::MuxBytes;
pub use pool::MuxPool;
pub(crate) use serving::{FoundFirst, Serving};
pub use stats::MuxStats;
