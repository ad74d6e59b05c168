//! Memory that the peer of a connection may read and write: one-sided operations.
//!
//! Each side of a [`Windows`] may offer memory to the other, as a [`Window`]. Its [`WindowKey`] names
//! it to the peer, which reaches it by [`Windows::put`], [`Windows::get`] and atomic operations. RDMA
//! devices perform them by RDMA WRITE, READ and atomics. Where none can, the owner's process does.
//!
//! ```
//! use trespass::window::{Access, WindowConfig, WindowKey, Windows};
//! use trespass::Listener;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let addr = listener.local_addr()?;
//! let (give, take) = std::sync::mpsc::channel();
//! let owner = std::thread::spawn(move || -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
//!     let windows = Windows::over(listener.accept()?.0, &WindowConfig::new())?;
//!     let block = windows.buffer(4096)?;
//!     let window = windows.offer(block, 4096, Access::ALL, None).map_err(|(error, _)| error)?;
//!     // Any channel may carry a key.
//!     give.send(window.key().to_bytes())?;
//!     let told = windows.next_notification()?;
//!     let mut greeting = [0; 5];
//!     window.read(0, &mut greeting)?;
//!     assert_eq!(&greeting, b"hello");
//!     Ok(told.number)
//! });
//!
//! let windows = Windows::connect(addr)?;
//! let key = WindowKey::from_bytes(&take.recv()?)?;
//! windows.put_notify(&key, 0, b"hello", 7)?;
//! assert_eq!(owner.join().unwrap()?, 7);
//! # Ok(())
//! # }
//! ```
//!
//! The names in brackets are tests of `trespass/tests/suite`, or unit tests of this module.
//!
//! # How operations are performed
//!
//! [`Window::protection`] says who performs the operations on a window:
//!
//! - [`Protection::Domain`]: the devices of the connection, by `ibv_post_send` on a queue pair for
//!   these operations alone. The owner's program makes no calls for them
//!   (`window_devices::devices_operate_while_the_owner_makes_no_calls`). The first operation opens the
//!   path by a message, which the owner's process answers.
//! - [`Protection::Process`]: the owner's process, by messages of a [mux](crate::mux). So it is over
//!   TCP, with rdma_cm, and for windows with a lifetime.
//!
//! The owner's process performs messages during each call of its program on this [`Windows`] that
//! waits: operations, [`Windows::next_notification`], [`Windows::next_message`] and [`Windows::serve`]
//! (`windows::both_sides_operate_at_once`). An owner that makes none of these runs
//! [`Windows::serve`] in a thread (`windows::threads_share_a_connection`).
//!
//! [`Windows::put_block`] and [`Windows::get_block`] let the device read and write a block in place
//! (`window_devices::blocks_go_there_and_come_back`). The other operations copy the program's bytes.
//!
//! When a device or a path fails, the owner first destroys the queue pair that served it. Then its
//! process performs what had not ended, and later operations, until a path opens again
//! (`faults::windows::failed_operations_are_performed_once_and_in_order`). Atomic operations that were
//! under way fail with [`WindowError::OutcomeUnknown`]
//! (`faults::windows::atomics_lose_no_count_or_are_unknown`). A put may be performed twice before it
//! returns, so an owner that polls memory and overwrites it may see a value again.
//!
//! # Order and completion
//!
//! - When an operation returns, the owner's memory has its effect, and each later operation finds it
//!   (`windows::bytes_go_there_and_back`).
//! - Operations of several threads are performed in any order. With [`Protection::Process`], those of
//!   up to 256 KiB in one range exclude each other (`windows::threads_share_a_connection`). A device
//!   promises that for no bytes but those of one atomic operation.
//! - [`Windows::start_put`] and [`Windows::start_get`] begin operations that are under way together, in
//!   any order. [`Windows::flush`] waits for all of them
//!   (`windows::operations_are_under_way_together`).
//! - [`Windows::put_notify`] notifies the owner's program after the bytes
//!   (`windows::notifications_come_after_their_bytes`).
//! - One device of the owner, or its processor, performs all atomic operations on a window, so that
//!   they are atomic among each other (`windows::atomics_lose_no_count`). The key names it. With
//!   [`Protection::Domain`] the owner's own [`Window::fetch_add`] fails with
//!   [`WindowError::AtomicsOfDevice`]. While the device cannot be reached, atomic operations fail with
//!   [`WindowError::NoPath`].
//!
//! # Keys and files
//!
//! [`Windows::send_message`] sends a key, or a few other bytes, over the same connection
//! (`windows::messages_carry_keys`). [`WindowReader`] reads a window like a file, some parts ahead,
//! into blocks of the pool (`windows::a_reader_reads_ahead`). The example `window_files` serves the
//! files of a folder.
//!
//! # What a peer can reach
//!
//! - A peer reaches the bytes of a window by the operations that it was offered for, and no others
//!   (`window::owner::tests::only_what_was_offered_is_allowed`,
//!   `windows::other_operations_and_ranges_are_refused`).
//! - A key serves one connection. A key of another process or an earlier connection is refused before
//!   anything is sent (`windows::a_key_of_another_connection_is_refused`). This finds mistakes: the
//!   peer says itself which process it is.
//! - A device that operates for the peer reaches the windows that were offered over this connection,
//!   within their bounds and their access, and nothing else: they are in a protection domain that has
//!   only them (`window_devices::a_queue_pair_reaches_what_was_offered_over_its_connection`).
//!   [`WindowConfig::protection`] requires one or the other
//!   (`window_devices::a_protection_can_be_required`).
//! - After [`Window::revoke`] no operation reaches the memory, and no call of the peer is waited for.
//!   Each window has addresses that no other window of the connection had. So a late packet reaches no
//!   later window, also if the device gives it the same rkey
//!   (`window_devices::windows_take_each_others_place`). A key of a revoked window fails with
//!   [`WindowError::Revoked`], also when another window has the memory or the place in the table
//!   (`windows::a_revoked_window_is_reached_no_more`,
//!   `window::owner::tests::a_key_reaches_its_own_window_or_none`).
//! - The memory of a window belongs to the window until it is revoked or dropped, also when the
//!   connection fails (`windows::a_failed_connection_returns_its_memory`).
//! - A peer that breaks the protocol ends the connection
//!   (`hostile_windows::a_peer_that_breaks_the_protocol_is_served_no_more`).
//!
//! # Time and memory
//!
//! An operation fails after [`WindowConfig::operation_timeout`]. It has copied the program's bytes, or
//! the connection keeps its block as long as a device may access that. Whether it was performed is not
//! known
//! (`windows::an_owner_that_makes_no_calls_is_not_waited_for`). If several threads of the owner
//! perform operations, it may even be performed after a later one.
//!
//! A call performs an operation of the peer once that has wholly arrived, and none after its time
//! (`hostile_windows::a_request_without_an_end_holds_up_nobody`,
//! `hostile_windows::a_flood_of_requests_ends_no_time`).
//! A peer may have 256 operations under way. It can make this side keep 69 MiB of them, 64 MiB of
//! answers that it does not take, 4096 notifications, and 1 MiB of messages.

mod blocks;
mod connection;
#[cfg(all(feature = "rdma", any(target_os = "linux", target_os = "android")))]
mod devices;
#[cfg(not(all(feature = "rdma", any(target_os = "linux", target_os = "android"))))]
#[path = "no_devices.rs"]
#[allow(dead_code, reason = "no device performs an operation")]
mod devices;
mod error;
mod key;
mod memory;
mod message;
mod offered;
mod owner;
mod pending;
mod pieces;
mod reader;
mod summary;

use std::time::Duration;

pub use blocks::PendingBlock;
pub use connection::Windows;
pub use error::{KeyError, WindowError};
pub use key::{Access, WindowKey};
pub use offered::{Protection, Window};
pub use pending::{PendingGet, PendingPut};
pub use reader::{ReaderConfig, ReaderStats, WindowReader};
pub use summary::WindowStats;

/// The peer's [`put_notify`](Windows::put_notify), after its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notification {
    /// The [number](WindowKey::region) of the window.
    pub region: u32,
    /// The [generation](WindowKey::generation) of the window.
    pub generation: u32,
    /// The peer's number.
    pub number: u64,
}

/// The limits of a [`Windows`].
#[derive(Clone, Debug)]
#[must_use]
pub struct WindowConfig {
    operation_timeout: Option<Duration>,
    protection: Option<Protection>,
}

impl WindowConfig {
    /// The default limits.
    pub fn new() -> Self {
        Self { operation_timeout: Some(Duration::from_secs(30)), protection: None }
    }

    /// How the windows of this side must be protected. [`Protection::Process`] keeps devices away from
    /// windows of both sides. With [`Protection::Domain`], an offer that no device can serve fails.
    /// Default: devices serve the windows that they can, and this process the others.
    pub fn protection(mut self, required: Protection) -> Self {
        self.protection = Some(required);
        self
    }

    /// How long an operation may take. `None` waits without limit. Default: 30 s.
    pub fn operation_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.operation_timeout = timeout;
        self
    }
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self::new()
    }
}
