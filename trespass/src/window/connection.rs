//! A connection whose sides offer windows to each other.

use std::fmt;
use std::io;
use std::net::{Shutdown, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::devices::{AtomicOutcome, Devices, Registered};
use super::error::{KeyError, WindowError};
use super::key::{Access, WindowKey};
use super::memory::OfferedMemory;
use super::message::{self, Identity, Operation, Status, WindowRange, WindowRequest};
use super::offered::{Protection, Window};
use super::owner::WindowTable;
use super::pending::{PendingGet, PendingPut, Transfer};
use super::pieces::{Piece, Pieces};
use super::summary::{WindowStats, WindowSummary};
use super::{Notification, WindowConfig};
use crate::mux::{FoundFirst, Mux, MuxConfig, MuxError, PendingAnswer, Request, Serving};
use crate::pool::{Block, Pool};
use crate::process::PerProcess;
use crate::session::readiness::Until;
use crate::session::times::OperationKind;
use crate::{Stream, Transport};

/// The requests that the peer may have under way.
const MOST_REQUESTS: u32 = 256;

/// Attempts to reach the device that performs the atomic operations of a window. The pauses between
/// them grow by this time.
const ATOMIC_ATTEMPTS: u32 = 20;
const ATOMIC_PAUSE: Duration = Duration::from_millis(2);

/// A connection over which both sides offer windows, and reach those of the other.
///
/// Clones are the same connection. Threads may share it. It closes when the last clone is dropped with
/// all its windows.
#[derive(Clone)]
pub struct Windows(pub(super) Arc<Shared>);

pub(super) struct Shared {
    mux: Mux<Stream>,
    own: Identity,
    peer: OnceLock<Identity>,
    pub(super) devices: Devices,
    pub(super) table: WindowTable,
    /// What the peer has sent that no side with windows sends.
    violation: OnceLock<&'static str>,
    operation_timeout: Option<Duration>,
    pub(super) summary: WindowSummary,
    protection: Option<Protection>,
}

/// The time of one operation.
#[derive(Clone, Copy)]
pub(super) struct OperationTime {
    after: Option<Duration>,
    pub(super) until: Until,
}

impl OperationTime {
    const NONE: Self = Self { after: Some(Duration::ZERO), until: Until::Now };

    pub(super) fn after(after: Option<Duration>) -> Self {
        let deadline = after.and_then(|after| Instant::now().checked_add(after));
        Self { after, until: Until::Event.or(deadline) }
    }

    pub(super) fn is_over(self) -> WindowError {
        WindowError::TimedOut { after: self.after.unwrap_or_default() }
    }
}

/// This process, and its next connection.
fn identity() -> io::Result<Identity> {
    // A forked child counts its connections from the same number as its parent.
    static OWNER: PerProcess<u64> = PerProcess::new();
    static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
    let owner = match OWNER.made() {
        Some(owner) => *owner,
        None => *OWNER.set(getrandom::u64().map_err(io::Error::other)?).unwrap_or_else(|made| made),
    };
    Ok(Identity { owner, connection: CONNECTIONS.fetch_add(1, Ordering::Relaxed) })
}

impl Windows {
    /// Connects with default parameters. The peer accepts a [`Stream`], and calls
    /// [`over`](Self::over).
    ///
    /// # Errors
    ///
    /// Those of [`Stream::connect`] and [`over`](Self::over).
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::over(Stream::connect(addr)?, &WindowConfig::new())
    }

    /// Takes a stream whose ends have read all that the other has written. The peer does the same, and
    /// this waits for it.
    ///
    /// # Errors
    ///
    /// The connection has failed, the peer does something else with it, or does nothing for
    /// [`operation_timeout`](WindowConfig::operation_timeout).
    pub fn over(stream: Stream, config: &WindowConfig) -> io::Result<Self> {
        let own = identity()?;
        let limits = MuxConfig::new().max_requests(MOST_REQUESTS);
        let limits = limits.window(message::WINDOW).max_message(message::MOST_MESSAGE);
        let time = OperationTime::after(config.operation_timeout);
        let summary = WindowSummary::of(&stream);
        let devices = Devices::of(&stream, config.protection != Some(Protection::Process));
        let hello = WindowRequest::hello(own, devices.abilities()).encode(0);
        let shared = Shared {
            mux: Mux::over(stream, &limits)?,
            own,
            peer: OnceLock::new(),
            devices,
            table: WindowTable::default(),
            violation: OnceLock::new(),
            operation_timeout: config.operation_timeout,
            summary,
            protection: config.protection,
        };
        let sent = match config.operation_timeout {
            Some(timeout) => shared.mux.send_one_way_within(hello, timeout),
            None => shared.mux.send_one_way(hello),
        };
        sent.map_err(|error| match error {
            MuxError::DeadlinePassed { .. } => time.is_over(),
            error => error.into(),
        })?;
        // With nothing left to read, a drop is an orderly end.
        shared.wait(time, &mut |in_flight| shared.peer.get().filter(|_| in_flight == 0).copied())?;
        Ok(Self(Arc::new(shared)))
    }

    /// Offers the first `len` bytes of a block to the peer: one of the [pool](Self::pool), or memory of
    /// the program ([`Pool::adopt`]). The key names them to the peer. Blocks that the pool itself gives
    /// out have the bytes of their last owner, which a peer that may read would get.
    ///
    /// Without a `lifetime` it is offered until it is revoked. After its lifetime the peer's operations
    /// fail as if it was. This process performs the operations on a window with a lifetime, because a
    /// device knows none.
    ///
    /// # Errors
    ///
    /// [`Length`](WindowError::Length), [`TooMany`](WindowError::TooMany),
    /// [`Protection`](WindowError::Protection). The block comes back.
    pub fn offer(
        &self,
        block: Block,
        len: usize,
        access: Access,
        lifetime: Option<Duration>,
    ) -> Result<Window, (WindowError, Block)> {
        let key = self.0.offer(block, len, access, lifetime)?;
        Ok(Window::new(self.0.clone(), key))
    }

    /// The pool of the connection.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.0.mux.stream().pool()
    }

    /// Takes a block of at least `len` bytes from the connection's pool, to offer it. It has zeros.
    ///
    /// # Errors
    ///
    /// Those of [`Stream::buffer`].
    pub fn buffer(&self, len: usize) -> io::Result<Block> {
        let mut block = self.0.mux.stream().buffer(len)?;
        // Its last owner's bytes are not for the peer.
        block.bytes_mut().fill(0);
        Ok(block)
    }

    /// The transport of the connection.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.0.mux.stream().transport()
    }

    /// Counters of the operations of this side.
    #[must_use]
    pub fn stats(&self) -> WindowStats {
        self.0.summary.stats()
    }

    /// Copies bytes to an offset of the peer's window.
    ///
    /// When it returns, the owner has them: its [`Window::read`], and each later operation, finds them.
    /// A put of more than 256 KiB is performed in parts, in any order. One of no bytes asks the owner
    /// nothing.
    ///
    /// # Errors
    ///
    /// A [`WindowError`]. A put of several parts may have written some of the bytes. So may one that
    /// ends with [`TimedOut`](WindowError::TimedOut), [`Connection`](WindowError::Connection) or
    /// [`Protocol`](WindowError::Protocol).
    pub fn put(&self, key: &WindowKey, offset: u64, bytes: &[u8]) -> Result<(), WindowError> {
        let put = || self.0.put_at_once(key, offset, bytes);
        self.0.summary.run(OperationKind::Put, bytes.len(), put)
    }

    /// Copies bytes one after the other to several ranges, each an offset and a length. A part has at
    /// most 1024 ranges. In ranges that overlap, bytes of any of them may remain.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put), and [`Pieces`](WindowError::Pieces).
    pub fn put_vectored(
        &self,
        key: &WindowKey,
        ranges: &[(u64, u64)],
        bytes: &[u8],
    ) -> Result<(), WindowError> {
        let pieces = Pieces::of_ranges(ranges, bytes.len())?;
        let put = || self.0.put(key, pieces, bytes, self.0.time());
        self.0.summary.run(OperationKind::Put, bytes.len(), put)
    }

    /// Copies pieces of `len` bytes each to offsets that are `stride` apart.
    ///
    /// # Errors
    ///
    /// Those of [`put_vectored`](Self::put_vectored).
    pub fn put_strided(
        &self,
        key: &WindowKey,
        offset: u64,
        stride: u64,
        len: usize,
        bytes: &[u8],
    ) -> Result<(), WindowError> {
        let pieces = Pieces::of_stride(offset, stride, len, bytes.len())?;
        let put = || self.0.put(key, pieces, bytes, self.0.time());
        self.0.summary.run(OperationKind::Put, bytes.len(), put)
    }

    /// Copies bytes from an offset of the peer's window into a buffer.
    ///
    /// # Errors
    ///
    /// A [`WindowError`]. The buffer may then have some of the bytes.
    pub fn get(&self, key: &WindowKey, offset: u64, into: &mut [u8]) -> Result<(), WindowError> {
        self.get_vectored(key, &[(offset, into.len() as u64)], into)
    }

    /// Copies several ranges, each an offset and a length, one after the other into a buffer.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get), and [`Pieces`](WindowError::Pieces).
    pub fn get_vectored(
        &self,
        key: &WindowKey,
        ranges: &[(u64, u64)],
        into: &mut [u8],
    ) -> Result<(), WindowError> {
        let pieces = Pieces::of_ranges(ranges, into.len())?;
        self.0.summary.run(OperationKind::Get, into.len(), || self.0.get(key, pieces, into))
    }

    /// Copies pieces of `len` bytes each from offsets that are `stride` apart.
    ///
    /// # Errors
    ///
    /// Those of [`get_vectored`](Self::get_vectored).
    pub fn get_strided(
        &self,
        key: &WindowKey,
        offset: u64,
        stride: u64,
        len: usize,
        into: &mut [u8],
    ) -> Result<(), WindowError> {
        let pieces = Pieces::of_stride(offset, stride, len, into.len())?;
        self.0.summary.run(OperationKind::Get, into.len(), || self.0.get(key, pieces, into))
    }

    /// Adds to the 8-byte number at an offset, in the byte order of the owner. Returns what it was.
    ///
    /// It is atomic among all such operations on this memory, and [`Window::fetch_add`].
    ///
    /// # Errors
    ///
    /// A [`WindowError`]. After [`TimedOut`](WindowError::TimedOut),
    /// [`Connection`](WindowError::Connection) and [`Protocol`](WindowError::Protocol) it is not known
    /// whether the number was changed.
    pub fn fetch_add(&self, key: &WindowKey, offset: u64, add: u64) -> Result<u64, WindowError> {
        let atomic = || self.0.atomic(key, Operation::FetchAdd { add }, offset);
        self.0.summary.run(OperationKind::Atomic, 8, atomic)
    }

    /// Replaces the 8-byte number at an offset if it is `expected`. Returns what it was.
    ///
    /// # Errors
    ///
    /// Those of [`fetch_add`](Self::fetch_add).
    pub fn compare_swap(
        &self,
        key: &WindowKey,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, WindowError> {
        let atomic = || self.0.atomic(key, Operation::CompareSwap { expected, new }, offset);
        self.0.summary.run(OperationKind::Atomic, 8, atomic)
    }

    /// Copies bytes to an offset, and then tells the owner's program a number
    /// ([`next_notification`](Self::next_notification)). The owner finds all bytes when it gets the
    /// number. No bytes are a notification alone.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put), and [`Full`](WindowError::Full). After
    /// [`TimedOut`](WindowError::TimedOut), [`Connection`](WindowError::Connection) and
    /// [`Protocol`](WindowError::Protocol) it is not known whether the owner was told.
    pub fn put_notify(
        &self,
        key: &WindowKey,
        offset: u64,
        bytes: &[u8],
        number: u64,
    ) -> Result<(), WindowError> {
        let put = || self.0.put_notify(key, offset, bytes, number);
        self.0.summary.run(OperationKind::Put, bytes.len(), put)
    }

    /// Begins a put of at most 4 MiB, which [`PendingPut::wait`] ends. Several may be under way, and are
    /// performed in any order. The bytes are copied.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put), and [`TooLong`](WindowError::TooLong).
    pub fn start_put(&self, key: &WindowKey, offset: u64, bytes: &[u8]) -> Result<PendingPut, WindowError> {
        PendingPut::begin(self, key, offset, bytes)
    }

    /// Begins a get of at most 4 MiB, which [`PendingGet::wait`] ends. Several may be under way, and are
    /// performed in any order.
    ///
    /// # Errors
    ///
    /// Those of [`get`](Self::get), and [`TooLong`](WindowError::TooLong).
    pub fn start_get(&self, key: &WindowKey, offset: u64, len: usize) -> Result<PendingGet, WindowError> {
        PendingGet::begin(self, key, offset, len)
    }

    /// Waits until the owner has performed, or refused, each operation of this side that was begun
    /// before, by any thread. Those that were given up count, too. A put that a device has failed by
    /// then ends with [`OutcomeUnknown`](WindowError::OutcomeUnknown).
    ///
    /// # Errors
    ///
    /// The connection has failed, or [`TimedOut`](WindowError::TimedOut).
    pub fn flush(&self) -> Result<(), WindowError> {
        let time = self.0.time();
        self.0.devices.flush(&self.0, time)?;
        // The owner's process performs operations again that a device has failed.
        let before = self.0.mux.next_number();
        self.0.serve_until(time, &mut |serving| self.0.mux.flush_or_serve(before, serving))
    }

    /// Waits for the next notification of the peer. It performs the peer's operations while it waits.
    ///
    /// # Errors
    ///
    /// The connection has failed, or the peer has closed it.
    pub fn next_notification(&self) -> Result<Notification, WindowError> {
        self.0.wait(OperationTime::after(None), &mut |_| self.0.table.next_notification())
    }

    /// The same for at most this time.
    ///
    /// # Errors
    ///
    /// Those of [`next_notification`](Self::next_notification), and
    /// [`TimedOut`](WindowError::TimedOut).
    pub fn next_notification_within(&self, time: Duration) -> Result<Notification, WindowError> {
        self.0.wait(OperationTime::after(Some(time)), &mut |_| self.0.table.next_notification())
    }

    /// Sends the peer's program a message of at most 64 KiB, for example a key. When it returns, the
    /// message waits for [`next_message`](Self::next_message) there.
    ///
    /// # Errors
    ///
    /// [`TooLong`](WindowError::TooLong), [`Full`](WindowError::Full),
    /// [`TimedOut`](WindowError::TimedOut), or the connection has failed.
    pub fn send_message(&self, message: &[u8]) -> Result<(), WindowError> {
        if message.len() > message::MOST_TEXT {
            return Err(WindowError::TooLong { len: message.len(), most: message::MOST_TEXT });
        }
        self.0.request(&WindowRequest::message(), message, None, self.0.time()).map(drop)
    }

    /// Waits for the next message of the peer. It performs the peer's operations while it waits.
    ///
    /// # Errors
    ///
    /// The connection has failed, or the peer has closed it.
    pub fn next_message(&self) -> Result<Vec<u8>, WindowError> {
        self.0.wait(OperationTime::after(None), &mut |_| self.0.table.next_message())
    }

    /// The same for at most this time.
    ///
    /// # Errors
    ///
    /// Those of [`next_message`](Self::next_message), and [`TimedOut`](WindowError::TimedOut).
    pub fn next_message_within(&self, time: Duration) -> Result<Vec<u8>, WindowError> {
        self.0.wait(OperationTime::after(Some(time)), &mut |_| self.0.table.next_message())
    }

    /// Performs the peer's operations until the peer closes the connection.
    ///
    /// # Errors
    ///
    /// The connection has failed.
    pub fn serve(&self) -> Result<(), WindowError> {
        match self.0.wait(OperationTime::after(None), &mut |_| None::<()>) {
            Ok(()) | Err(WindowError::Connection(MuxError::Closed)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The same for this time, or until the peer closes the connection. One operation that has arrived
    /// is performed even if there is no time.
    ///
    /// # Errors
    ///
    /// The connection has failed.
    pub fn serve_for(&self, time: Duration) -> Result<(), WindowError> {
        match self.0.serve_within(OperationTime::after(Some(time))) {
            Ok(()) | Err(WindowError::Connection(MuxError::Closed)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Shared {
    fn offer(
        &self,
        block: Block,
        len: usize,
        access: Access,
        lifetime: Option<Duration>,
    ) -> Result<WindowKey, (WindowError, Block)> {
        if !(1..=block.len()).contains(&len) {
            return Err((WindowError::Length { len, block: block.len() }, block));
        }
        let place = match self.table.take_place() {
            Ok(place) => place,
            Err(error) => return Err((error, block)),
        };
        let memory = OfferedMemory::new(block, len);
        let registered = match lifetime {
            None => self.devices.register(&memory, access),
            Some(_) => Registered::default(),
        };
        if let Some(required @ Protection::Domain) = self.protection
            && registered.is_empty()
        {
            self.table.give_place_back(place);
            let why = match lifetime {
                None => "no device of the connection serves windows with this access to the peer",
                Some(_) => "a device knows no lifetime",
            };
            let error = WindowError::Protection { required, got: Protection::Process, why };
            return Err((error, memory.into_block()));
        }
        Ok(self.table.offer(place, memory, registered, access, lifetime, self.own))
    }

    /// Refuses a key of another owner or connection before anything is sent.
    fn check(&self, key: &WindowKey, needed: Access) -> Result<(), WindowError> {
        let Some(peer) = self.peer.get() else { return Err(KeyError::OtherOwner.into()) };
        if key.owner != peer.owner {
            return Err(KeyError::OtherOwner.into());
        }
        if key.connection != peer.connection {
            let (offered, used) = (key.connection, peer.connection);
            return Err(KeyError::OtherConnection { offered, used }.into());
        }
        if !key.access.contains(needed) {
            return Err(WindowError::Access { offered: key.access, needed });
        }
        if self.devices.is_revoked(key) {
            let WindowKey { region, generation, .. } = *key;
            return Err(WindowError::Revoked { region, generation });
        }
        Ok(())
    }

    pub(super) fn time(&self) -> OperationTime {
        OperationTime::after(self.operation_timeout)
    }

    /// A put of one range. A short one costs little more than the verb, over a path that is open.
    fn put_at_once(&self, key: &WindowKey, offset: u64, bytes: &[u8]) -> Result<(), WindowError> {
        self.check(key, Access::WRITE)?;
        let pieces = Pieces::of_one(offset, bytes.len());
        pieces.check(key)?;
        if !bytes.is_empty()
            && let Some(posted) = self.devices.put_at_once(self, key, offset, bytes)?
        {
            let Some(ticket) = posted else { return Ok(()) };
            let mut transfer = Transfer::new(key, Operation::Put, self.time());
            transfer.add(&pieces, ticket);
            while transfer.end(self)?.is_some() {}
            return Ok(());
        }
        self.put(key, pieces, bytes, self.time())
    }

    pub(super) fn put(
        &self,
        key: &WindowKey,
        pieces: Pieces<'_>,
        bytes: &[u8],
        time: OperationTime,
    ) -> Result<(), WindowError> {
        let mut transfer = self.transfer(key, Operation::Put, &pieces, time)?;
        self.put_pieces(&mut transfer, pieces, bytes).inspect_err(|_| self.give_up())
    }

    fn put_pieces(
        &self,
        transfer: &mut Transfer,
        mut pieces: Pieces<'_>,
        bytes: &[u8],
    ) -> Result<(), WindowError> {
        loop {
            let next = if transfer.has_room() { pieces.next() } else { None };
            if let Some(piece) = next {
                let bytes = &bytes[piece.bytes.clone()];
                transfer.begin(self, piece, bytes)?;
            } else if transfer.end(self)?.is_none() {
                return Ok(());
            }
        }
    }

    /// This side waits no more for a put, which the owner's process may perform.
    pub(super) fn give_up(&self) {
        self.devices.given_up(self.mux.next_number());
    }

    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "all operations keep their order"))]
    pub(super) fn has_answers_before(&self, before: u64) -> bool {
        self.mux.has_answers_before(before)
    }

    pub(super) fn get(
        &self,
        key: &WindowKey,
        pieces: Pieces<'_>,
        into: &mut [u8],
    ) -> Result<(), WindowError> {
        let mut pieces = pieces;
        let mut transfer = self.transfer(key, Operation::Get, &pieces, self.time())?;
        loop {
            let next = if transfer.has_room() { pieces.next() } else { None };
            if let Some(piece) = next {
                transfer.begin(self, piece, &[])?;
            } else if let Some(answered) = transfer.end(self)? {
                answered.copy(into);
            } else {
                return Ok(());
            }
        }
    }

    /// Begins an operation that may be performed with this key.
    pub(super) fn transfer(
        &self,
        key: &WindowKey,
        operation: Operation,
        pieces: &Pieces<'_>,
        time: OperationTime,
    ) -> Result<Transfer, WindowError> {
        self.check_range(key, operation, pieces)?;
        Ok(Transfer::new(key, operation, time))
    }

    /// Whether an operation may be performed with this key.
    pub(super) fn check_range(
        &self,
        key: &WindowKey,
        operation: Operation,
        pieces: &Pieces<'_>,
    ) -> Result<(), WindowError> {
        self.check(key, operation.needs())?;
        pieces.check(key)
    }

    fn atomic(&self, key: &WindowKey, operation: Operation, offset: u64) -> Result<u64, WindowError> {
        self.check(key, Access::ATOMIC)?;
        if !key.contains(offset, 8) {
            return Err(WindowError::Range { offset, len: 8, window: key.len() });
        }
        let range = WindowRange { offset, len: 8 };
        if key.atomics == 0 {
            return self.single(key, operation, range, &[], self.time());
        }
        if !key.base.wrapping_add(offset).is_multiple_of(8) {
            return Err(WindowError::Misaligned { offset });
        }
        self.atomic_of_device(key, operation, range)
    }

    fn atomic_of_device(
        &self,
        key: &WindowKey,
        operation: Operation,
        range: WindowRange,
    ) -> Result<u64, WindowError> {
        // Most need no clock.
        let mut begun = None;
        for attempt in 0..ATOMIC_ATTEMPTS {
            let time = || begun.unwrap_or_else(|| self.time());
            if let AtomicOutcome::Found(number) =
                self.devices.atomic(self, key, operation, range.offset, time)?
            {
                return Ok(number);
            }
            let time = *begun.get_or_insert_with(|| self.time());
            match self.single(key, operation, range, &[], time) {
                // The window exists, and the reason may pass.
                Err(WindowError::AtomicsOfDevice) => {}
                other => return other,
            }
            self.serve_within(OperationTime::after(Some(ATOMIC_PAUSE * attempt)))?;
        }
        Err(WindowError::NoPath)
    }

    fn put_notify(&self, key: &WindowKey, offset: u64, bytes: &[u8], number: u64) -> Result<(), WindowError> {
        self.check(key, Access::WRITE)?;
        let ranges = [(offset, bytes.len() as u64)];
        Pieces::of_ranges(&ranges, bytes.len())?.check(key)?;
        // The last message notifies, once the others were performed.
        let (before, last) = bytes.split_at(bytes.len().saturating_sub(message::MOST_BYTES));
        let first = [(offset, before.len() as u64)];
        let time = self.time();
        self.put(key, Pieces::of_ranges(&first, before.len())?, before, time)?;
        let range = WindowRange { offset: offset + before.len() as u64, len: last.len() as u64 };
        self.single(key, Operation::PutNotify { number }, range, last, time).map(drop)
    }

    /// Performs an operation of one message.
    fn single(
        &self,
        key: &WindowKey,
        operation: Operation,
        range: WindowRange,
        bytes: &[u8],
        time: OperationTime,
    ) -> Result<u64, WindowError> {
        let piece = Piece { ranges: vec![range], bytes: 0..bytes.len() };
        self.devices.settle(self, time)?;
        let done = self.request(&piece.request(key, operation), bytes, Some(key), time);
        done.inspect_err(|_| self.give_up())
    }

    /// Sends a request, and waits for its answer. Returns what an atomic operation has found.
    fn request(
        &self,
        request: &WindowRequest,
        bytes: &[u8],
        key: Option<&WindowKey>,
        time: OperationTime,
    ) -> Result<u64, WindowError> {
        let answer = self.exchange(request, bytes, time)?;
        self.result(Status::decode(&answer)?.0, key, request)
    }

    /// The number of a request that was performed, or why it was not.
    pub(super) fn result(
        &self,
        status: Status,
        key: Option<&WindowKey>,
        request: &WindowRequest,
    ) -> Result<u64, WindowError> {
        if let (Status::Revoked, Some(key)) = (status, key) {
            self.devices.note_revoked(key);
        }
        status.result(key, request)
    }

    /// The same, with the answer itself.
    pub(super) fn exchange(
        &self,
        request: &WindowRequest,
        bytes: &[u8],
        time: OperationTime,
    ) -> Result<Vec<u8>, WindowError> {
        let mut message = request.encode(bytes.len());
        message.extend_from_slice(bytes);
        let pending = self.begin(message, time)?;
        self.answer(pending, time)
    }

    /// Performs a request of the peer that has arrived.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "all operations look for them"))]
    pub(super) fn serve_what_has_arrived(&self) -> Result<(), WindowError> {
        self.serve_within(OperationTime::NONE)
    }

    /// Performs requests of the peer for this time.
    pub(super) fn serve_within(&self, time: OperationTime) -> Result<(), WindowError> {
        match self.wait(time, &mut |_| None::<()>) {
            Ok(()) | Err(WindowError::TimedOut { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn begin(&self, message: Vec<u8>, time: OperationTime) -> Result<PendingAnswer, WindowError> {
        let mut bytes = Some(message.into());
        self.serve_until(time, &mut |serving| self.mux.request_or_serve(&mut bytes, serving))
    }

    pub(super) fn answer(&self, pending: PendingAnswer, time: OperationTime) -> Result<Vec<u8>, WindowError> {
        let mut pending = pending;
        let wrong = |what| WindowError::Protocol { what };
        self.serve_until(time, &mut |serving| self.mux.answer_or_serve(&mut pending, serving)).map_err(
            |error| match error {
                WindowError::Connection(MuxError::TooLong { .. }) => wrong("an answer longer than any"),
                WindowError::Connection(MuxError::Unanswered | MuxError::Refused) => {
                    wrong("an operation without an answer")
                }
                error => error,
            },
        )
    }

    fn wait<T>(&self, time: OperationTime, look: &mut dyn FnMut(u32) -> Option<T>) -> Result<T, WindowError> {
        self.serve_until(time, &mut |serving| self.mux.wait_or_serve(serving, look))
    }

    /// Performs the peer's requests until a call finds what it waits for.
    fn serve_until<T>(
        &self,
        time: OperationTime,
        call: &mut dyn FnMut(Serving) -> Result<FoundFirst<T>, MuxError>,
    ) -> Result<T, WindowError> {
        let mut serving = Serving { until: time.until, takes_requests: true };
        loop {
            let found = call(serving).map_err(|error| match self.violation.get() {
                Some(what) => WindowError::Protocol { what },
                None => error.into(),
            });
            match found? {
                FoundFirst::Own(found) => return Ok(found),
                FoundFirst::TimeOver => return Err(time.is_over()),
                FoundFirst::Request(request, bytes) => self.serve(request, &bytes)?,
            }
            // A peer that goes on asking does not keep a call beyond its time.
            serving.takes_requests = !time.until.is_over();
        }
    }

    /// Performs a request of the peer. One that no side sends ends the connection.
    fn serve(&self, request: Request, bytes: &[u8]) -> Result<(), WindowError> {
        let performed = match self.violation.get() {
            Some(what) => Err(WindowError::Protocol { what }),
            None => self.perform(request, bytes),
        };
        if let Err(WindowError::Protocol { what }) = performed
            && self.violation.set(what).is_ok()
        {
            // If it fails, so has the connection.
            let _ = self.mux.stream().shutdown(Shutdown::Both);
        }
        performed
    }

    fn perform(&self, request: Request, bytes: &[u8]) -> Result<(), WindowError> {
        let (asked, bytes) = WindowRequest::decode(bytes)?;
        if let Operation::Hello { version, devices, identity } = asked.operation {
            if version != message::VERSION {
                return Err(WindowError::Protocol { what: "another version of windows" });
            }
            self.devices.set_peer(devices);
            return self.peer.set(identity).map_err(|_| WindowError::Protocol { what: "a second hello" });
        }
        if self.peer.get().is_none() {
            return Err(WindowError::Protocol { what: "a request before the hello" });
        }
        if request.is_cancelled() {
            // Its requester may have gone on, to an operation that this one must not undo.
            return Ok(());
        }
        let mut answer = vec![0; message::ANSWER];
        let status = match asked.operation {
            Operation::Message => self.table.keep_message(bytes),
            Operation::Open { .. } | Operation::Close { .. } => {
                let (status, end) = self.devices.serve(asked.operation, bytes);
                answer.extend(end);
                status
            }
            _ => self.table.perform(&asked, bytes, &mut answer, Instant::now()),
        };
        answer[..message::ANSWER].copy_from_slice(&status.encode());
        let notifies = matches!(asked.operation, Operation::PutNotify { .. } | Operation::Message);
        if notifies && matches!(status, Status::Done { .. }) {
            self.mux.wake_all();
        }
        // The next call finds why an answer could not be given, if it does not find what it waits for.
        let _ = request.answer(answer);
        Ok(())
    }
}

impl fmt::Debug for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Windows({:?})", self.0.mux.stream())
    }
}

#[cfg(all(test, unix, not(miri), not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_another_owner() {
        let parent = identity().unwrap();
        assert_eq!(identity().unwrap().owner, parent.owner);
        let is_other = || identity().is_ok_and(|child| child.owner != parent.owner);
        assert!(crate::process::passes_in_child(is_other));
    }
}
