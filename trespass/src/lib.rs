//! Sockets that use RDMA where it works, and TCP where it does not.
//!
//! The API is that of [`std::net`]: [`Listener`] and [`Stream`] are used as `TcpListener` and
//! `TcpStream` are (`sockets::the_documented_difference_is_what_it_takes`), and fail with the same
//! kinds of error (`parity::connecting::errors_of_the_system`, `parity::ends::the_peer_closes`).
//! Both sides use this crate. A connection begins over TCP, tries RDMA between the two hosts, and
//! reports which transport it uses (`faults::a_port_that_goes_down_is_waited_for`).
//!
//! The names in brackets are tests: of `tests/suite`, of `tests`, of `async-tests`, of the examples, or
//! unit tests.
//! The cases of `parity` run over `std::net`, too, and compare.
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
//! Without a NIC, a software device in the program itself carries the connections of a host
//! (`sockets::hello_becomes_rdma_by_itself_and_says_by_what`):
//!
//! ```text
//! cargo add trespass --path CLONE/trespass --features soft         # CLONE is where your clone is
//! SIDEWAY_PROVIDER=soft TRESPASS_LOG=info cargo run                # says which transport each has
//! ```
//!
//! # Messages
//!
//! A [`SeqPacket`] carries messages instead of bytes. Each arrives whole, so no program has to find
//! its end (`messages::i5_messages_keep_their_boundaries`).
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
//! A program chooses with [`Builder::policy`]
//! (`faults::calls_that_fail_leave_no_connection_or_one_over_tcp`). The person who starts it can
//! override that with `TRESPASS_TRANSPORT`
//! (`config::tests::the_environment_goes_before_the_program`). The API behaves the same over both
//! transports (`sim::invariants::i16_tcp_and_rdma_do_the_same`).
//!
//! Over RDMA a connection uses several NICs of both hosts ([`Builder::devices`]), and goes on over the
//! others when one fails (`rails::further_rails_join`, `rails::a_thousand_failures_lose_nothing`).
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
//! Peers may move to this crate one after the other: an [`AnyStream`] is a [`Stream`], or the plain TCP
//! stream of a peer without this crate (`plain::a_server_takes_both_kinds_of_clients`).
//!
//! Without TCP, a connection begins with rdma_cm: set [`Builder::bootstrap`] to
//! [`Bootstrap::RdmaCm`] on both sides (`sockets::both_begin_by_rdma_cm_where_they_are_told_to`).
//! Such a connection uses RDMA or fails (`strangers::device_failures_are_reported`).
//!
//! # Waiting for several connections
//!
//! - A blocking call waits without limit (`parity::ends::a_silent_peer_is_waited_for`), or as long
//!   as [`Stream::set_read_timeout`] and [`Stream::set_write_timeout`] allow
//!   (`streams::a_read_waits_no_longer_than_its_timeout`,
//!   `streams::a_write_waits_no_longer_than_its_timeout`).
//! - A non-blocking program ([`Stream::set_nonblocking`]) waits for the
//!   [descriptor](Stream#impl-AsFd-for-Stream) with `poll`, `epoll` or mio (`ready::i8_poll`,
//!   `ready::i8_edge_triggered_epoll`, `ready::i8_mio`). When it is *readable*, make the calls of
//!   interest; while they leave something, it is readable again
//!   (`ready::i8_data_already_received_is_shown`). For space, wait for it in the same way
//!   (`ready::i8_room_to_write_is_shown_after_a_refused_write`), or for `EPOLLOUT` with
//!   [`Stream::writable_fd`] (`writable::i8_epollout_without_a_call_between`).
//! - [`Stream::start_connect`] begins a connect and does not block
//!   (`connecting::i8_one_thread_makes_many_connections_at_once`).
//! - A [`Worker`] serves many connections on one thread
//!   (`single::i7_a_worker_serves_many_connections`).
//! - Tasks of tokio await theirs, by the module `tokio` with the feature of that name
//!   (`libraries::hyper_serves_http`). With the feature `futures` they have the traits of futures-io, too
//!   (`libraries::the_traits_of_futures_io`).
//! - Tasks on a thread per core are spawned by the module `local` with the feature of that name, on an
//!   executor whose connections a worker has (`cases::many_connections_of_one_thread`).
//! - With the feature `compio`, [`Block`] and [`RecvBuf`] have the traits of compio-buf, by which
//!   a runtime of completions writes them
//!   (`completion_buffers::received_bytes_are_written_where_they_arrived`). A runtime reads into
//!   a vector, which [`Pool::adopt`] makes a block
//!   (`completion_buffers::bytes_that_were_read_are_sent_where_they_are`).
//!
//! A client that makes many short requests borrows its connections from a pool, the module
//! [`connections`] (`pooled::threads_share_a_pool`). One connection carries many requests at a
//! time by the module [`mux`] (`muxed::many_requests_are_in_flight`).
//!
//! # Zero copy
//!
//! [`Stream::buffer`] takes a block of the connection's [`pool`]. [`Stream::send_buf`] and
//! [`Stream::send_blocks`] send blocks in place (`streams::buffers_of_the_pool_go_without_a_copy`,
//! `streams::several_buffers_go_in_a_row`). Over several NICs, blocks that fit a frame are copied, so
//! that they can be sent again over another one. [`Stream::completion`] returns the blocks
//! (`death::i9_every_ticket_completes_once`). [`Stream::recv_buf`] receives in place
//! (`streams::received_blocks_can_be_kept`), and so does [`SeqPacket::recv_part_buf`] for messages
//! larger than the receive buffer (`messages::a_message_of_any_length_is_received_without_a_copy`).
//! [`Pool::adopt`] makes a block of other memory
//! (`messages::memory_of_the_programs_own_goes_without_a_copy`).
//!
//! # Memory that a peer reads and writes
//!
//! A side offers memory to its peer as a window, the module [`window`]. The peer puts, gets, adds and
//! swaps by its key (`windows::bytes_go_there_and_back`), until it is revoked
//! (`windows::a_revoked_window_is_reached_no_more`). RDMA devices do it without the owner's program
//! (`window_devices::devices_operate_while_the_owner_makes_no_calls`).
//!
//! # Differences from `std::net`
//!
//! There are five, each with its reason.
//!
//! 1. **Bytes of an open connection move while a call runs**, because the kernel does little of the
//!    work. While a program makes no calls, a peer that has filled the buffers waits
//!    (`streams::a_peer_that_does_not_read_stops_the_writer`), and so do the unsent bytes of a
//!    non-blocking program. What a blocking call has left is sent up to 100 ms after the peer has room
//!    for it (`parity::late_readers::the_writer_makes_no_more_calls`,
//!    `unsent::the_last_message_is_the_last_call`). A [`Worker`] makes its
//!    handshakes in [`Worker::poll`] alone, because only its thread polls the completion queue that
//!    its connections share. A client of its listener waits for that poll, at most for the client's
//!    [`Builder::handshake_deadline`] (`single::a_workers_clients_connect_while_it_polls`).
//!
//!    Two threads of the process do the rest. `trespass` connects a listener's clients, closes
//!    connections, sends what blocking calls have left, wakes programs that wait for a descriptor, and
//!    sends the bytes of [`Builder::control_keepalive`]. It sleeps while nothing is due
//!    (`accepting::i18_the_service_thread_sleeps_while_clients_wait`,
//!    `unsent::i18_the_service_thread_sleeps_once_all_is_sent`,
//!    `idle::i18_fifty_idle_connections_use_no_time`). `trespass-free` destroys queue pairs,
//!    because a device may wait in that call
//!    (`faults::processes::a_peer_that_stops_in_the_midst_of_a_message_delays_nobody`). A shared
//!    library with this code stays loaded
//!    (`both_builds::a_library_that_has_made_a_connection_stays_loaded`).
//! 2. **The descriptor to wait for is a set of events**, because bytes may wait in this process
//!    while the socket is empty. It may be readable without cause, for example when it is new,
//!    until a call would block (`writable::descriptors_of_a_connection`,
//!    `ready::nothing_to_do_is_not_shown`). It becomes readable for space, too
//!    (`ready::i8_room_to_write_is_shown_after_a_refused_write`). It is never writable, because a
//!    set is not: [`writable_fd`](Stream::writable_fd) is another descriptor, for `EPOLLOUT`
//!    (`writable::i8_epollout_without_a_call_between`). There is no `try_clone`, because a copied
//!    descriptor would not have the connection's memory. Threads share a reference or an `Arc`
//!    (`threads::both_ways_at_once`, `threads::many_writers_share_a_stream`), or
//!    [split](Stream::split) the stream (`threads::halves_are_dropped_and_joined`).
//! 3. **A killed process sends no end of stream**, because the end is a frame of this crate, which
//!    no kernel sends. The peer's reads fail with
//!    [`ConnectionReset`](std::io::ErrorKind::ConnectionReset), and so does each further read
//!    (`death::i9_a_killed_peer_ends_every_call`,
//!    `death::a_message_outlives_the_process_that_sent_it`). Therefore an end is always one that
//!    the peer sent.
//! 4. **Written bytes may need the process**, because they are in its memory and not in the
//!    kernel's. Over RDMA the peer's side holds flushed bytes of a stream, and sent messages, while
//!    they fit its free receives: at least 200,000 bytes by default, if its program has kept up
//!    (`death::an_answer_outlives_the_process_that_wrote_it`,
//!    `death::a_message_outlives_the_process_that_sent_it`). What the device has not sent yet ends
//!    with a killed process: SoftRoCE sends 128 packets before it waits for the peer's device.
//!    Above 64 connections the peer has fewer receives at first ([`Builder::rx_slots`]). Further
//!    bytes, messages that do not fit, and what [`send_buf`](Stream::send_buf) sends without a copy
//!    are read from this side's memory. They need this process until [`drain`](Stream::drain)
//!    returns (`death::i14_drained_bytes_outlive_a_killed_process`). A dropped connection sends for
//!    10 s at most ([`Stream::set_linger`], `close::i14_close_waits_no_longer_than_it_lingers`). So
//!    do all that are open, also those of a [`Worker`], when `main` returns or
//!    [`exit`](std::process::exit) is called ([`Builder::exit_timeout`],
//!    `parity::processes::the_end_of_a_process_sends_what_it_wrote`,
//!    `death::i14_the_end_of_a_process_sends_what_its_worker_wrote`,
//!    `death::i14_the_end_of_a_process_waits_no_longer_than_it_was_told`). `_exit`, `quick_exit`,
//!    `abort`, exec, a signal or a crash lose what is not sent.
//! 5. **After a fork, listeners, connections and workers belong to the parent**, because their
//!    threads and registered memory do not exist in the child. There a call that accepts, reads,
//!    writes, shuts down or polls fails, and a drop disturbs nothing
//!    (`fork::a_listener_stays_the_parents`, `fork::a_connection_stays_the_parents`,
//!    `fork::a_worker_stays_the_parents`, `parity::processes::a_forked_child_drops_its_copies`).
//!    Each child of a forking server listens itself (`fork::children_serve_one_port`). A busy child
//!    keeps the clients that it took, because its own thread has connected them, and no other
//!    process can take them over.
//!
//! # What a peer can do
//!
//! - Every byte of a peer is checked before it is used
//!   (`protocol::hostile::tests::changed_frames_do_no_harm`,
//!   `handshake::hostile::tests::changed_handshakes_do_no_harm`). A peer that breaks the protocol
//!   loses its connection, and the others continue
//!   (`hostile::garbage_in_a_connection_ends_that_connection`,
//!   `transport::rc::tests::ends::an_invalid_frame_ends_only_its_connection`). A peer that does not
//!   read blocks the program that writes to it
//!   (`streams::a_peer_that_does_not_read_stops_the_writer`). A peer that never stops writing fills
//!   the receive buffer ([`Builder::rcvbuf`]) and no more
//!   (`protocol::tests::flow::memory_of_a_stalled_reader_is_bounded`).
//! - Nothing is encrypted, and nobody is authenticated. As with plain TCP, the network must be
//!   trusted or protected at a lower layer.
//! - Over RDMA a peer reads long messages from this process's pool. The key that it gets for that
//!   covers a few megabytes of the pool. With a modified program it can read other data there that
//!   waits to be read, for other peers too, while its connection exists. It cannot write, and
//!   received data is never readable (`pool_device::no_peer_reads_a_slot`). A server whose peers
//!   must not see each other's data disables [`Builder::rendezvous`]; messages then go in frames
//!   (`messages::long_messages_arrive_where_nobody_reads`).
//!
//! The feature `soft` builds a software device into the program, which `SIDEWAY_PROVIDER=soft`
//! chooses. Without the feature `rdma`, the crate works over TCP alone and depends on nothing of
//! RDMA (`tree::without_the_feature_rdma_nothing_of_rdma_is_there`). Both builds interoperate
//! (`both_builds::one_with_rdma_connects_to_one_without`,
//! `both_builds::one_without_rdma_connects_to_one_with_it`).

#[macro_use]
mod debug_as_text;

mod api;
#[cfg(feature = "compio")]
mod compio;
mod config;
pub mod connections;
#[cfg(test)]
mod corpus;
mod error;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod eventfds;
#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "what queue pairs alone need"))]
mod handshake;
#[cfg(feature = "local")]
pub mod local;
pub mod mux;
pub mod pool;
mod process;
#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "what queue pairs alone need"))]
mod protocol;
#[cfg(any(feature = "rdma", test))]
#[cfg_attr(not(feature = "rdma"), allow(dead_code, unused_imports, reason = "the simulator uses a part"))]
mod rails;
mod session;
#[cfg(test)]
mod sim;
#[cfg(all(unix, feature = "tokio"))]
pub mod tokio;
mod transport;
pub mod window;
#[cfg_attr(not(feature = "rdma"), allow(dead_code, unused_imports, reason = "what queue pairs alone need"))]
mod wire;

pub use api::{
    AnyStream, Connecting, Event, Incoming, IntoIncoming, Key, Listener, ReadHalf, RecvHalf, SendHalf,
    SeqPacket, Stream, Worker, WorkerWaker, WriteHalf,
};
pub use config::{Bootstrap, Builder, Config, ConfigError};
pub use error::{ConnectError, LocalAddressError};
pub use handshake::{FallbackReason, HandshakeError, HandshakeStep, Side, Transport};
pub use pool::{Block, Pool, PoolConfig, PoolError, PoolStats};
pub use session::buffers::{Completion, Part, Progress, RecvBuf, SendRefused, Ticket};
pub use session::readiness::Readiness;
pub use session::stats::Stats;
pub use session::times::OperationCounts;
pub use wire::{Cause, Kind, Policy, RejectReason};

/// Entry points for the fuzz targets in `fuzz/`.
#[cfg(fuzzing)]
pub mod testing {
    pub use crate::handshake::hostile::hostile_handshake;
    pub use crate::handshake::hostile_cm::hostile_exchange;
    pub use crate::protocol::hostile::hostile_frames;
    pub use crate::wire::hostile::hostile_message;
}
