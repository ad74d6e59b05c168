//! A connection that carries messages with boundaries.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::api::common::common;
use crate::api::connect::within;
use crate::config::Builder;
use crate::handshake::{FallbackReason, Transport};
use crate::pool::{Block, Pool};
use crate::session::buffers::{Completion, Part, Progress, RecvBuf, SendRefused, Ticket};
use crate::session::caller::{Caller, ConnectionCell, ConnectionOwner};
use crate::session::connection::Connection;
use crate::session::connection::Direction;
use crate::session::readiness::Readiness;
use crate::session::stats::Stats;

/// Messages with boundaries: each arrives whole, in order, once, or the connection fails.
///
/// A message has 0 bytes to 1 GiB, or to [`Builder::max_msg`](crate::Builder::max_msg) of either
/// side. After the peer's last message, receiving fails with
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof), because a length of 0 is an empty message.
///
/// Everything else is as for a [`Stream`](crate::Stream).
///
/// # Messages larger than the buffers
///
/// A blocking call sends and receives messages of any size. A non-blocking call transfers a whole
/// message or nothing, so it refuses a message larger than the send or receive buffer. Use
/// [`send_part`](Self::send_part) and [`recv_part`](Self::recv_part) for these: they transfer a
/// message in parts.
///
/// Without a copy, [`send_blocks`](Self::send_blocks) sends a message of any size from several
/// blocks, and [`recv_part_buf`](Self::recv_part_buf) receives it block by block.
///
/// # Timeouts within a message
///
/// A message that fits the buffer is sent or received whole or not at all, so the call can be
/// repeated after a timeout. A larger message is transferred in parts, and each part restarts the
/// timeout. After a timeout, [`sending`](Self::sending) and [`receiving`](Self::receiving) return
/// how much was transferred. Continue with `send_part` and `recv_part`: until the message is
/// complete, other calls that send or receive are refused. The received bytes are at the start of
/// `recv`'s buffer.
///
/// ```no_run
/// # let (mut packets, message) = (trespass::SeqPacket::connect("10.0.0.1:7000")?, vec![0; 1 << 30]);
/// packets.set_write_timeout(Some(std::time::Duration::from_secs(1)))?;
/// if let Err(error) = packets.send(&message) {
///     // Without progress nothing of the message was sent.
///     let Some(progress) = packets.sending() else { return Err(error) };
///     let mut done = progress.done as usize;
///     while done < message.len() {
///         done += packets.send_part(progress.total, &message[done..])?;
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// A connection that ends within a message fails: a reset tells the peer, which discards the
/// partial message.
pub struct SeqPacket(pub(crate) ConnectionOwner);

common!(SeqPacket);

impl SeqPacket {
    /// Connects with default parameters.
    ///
    /// # Errors
    ///
    /// Those of [`Stream::connect`](crate::Stream::connect).
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().connect_seq_packet(addr)
    }

    /// Connects with default parameters, and fails if that takes longer than the timeout, as
    /// [`Stream::connect_timeout`](crate::Stream::connect_timeout) does.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect). A timeout of zero is refused.
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        within(timeout)?.connect_seq_packet(addr)
    }

    pub(crate) fn new(connection: Connection) -> io::Result<Self> {
        ConnectionOwner::new(connection).map(Self)
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput): the message is larger than the agreed limit,
    /// or than a non-blocking call can send; nothing was sent. Otherwise those of
    /// [`TcpStream`](std::net::TcpStream)'s `write`.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.send_vectored(&[IoSlice::new(message)])
    }

    /// Sends one message from several buffers.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send).
    pub fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let send = |caller: &mut Caller<'_>| caller.send_vectored(slices);
        self.0.transfer(Direction::Write, send, |()| Some(total_len(slices)))
    }

    /// Sends the next bytes of a message of `total` bytes. Returns how many were taken. The message
    /// is sent when all were; until then no other message can be sent.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send), or `part` is longer than the rest of the message.
    pub fn send_part(&mut self, total: u64, part: &[u8]) -> io::Result<usize> {
        self.0.transfer(Direction::Write, |caller| caller.send_part(total, part), |len| Some(*len))
    }

    /// The progress of a message that [`send_part`](Self::send_part) or a timed-out
    /// [`send`](Self::send) has begun. `None` means that the next byte begins a message.
    #[must_use]
    pub fn sending(&self) -> Option<Progress> {
        self.0.shared().ok()?.connection.protocol.sending().map(Progress::of)
    }

    /// The progress of a message that [`recv_part`](Self::recv_part) or a timed-out
    /// [`recv`](Self::recv) has begun.
    #[must_use]
    pub fn receiving(&self) -> Option<Progress> {
        self.0.shared().ok()?.connection.protocol.receiving().map(Progress::of)
    }

    /// Receives a message and returns its length.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput): the buffer is too small, or the message is
    /// too large for a non-blocking call. The message stays queued, and the error gives its length.
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof): the peer has closed its end. Otherwise
    /// those of [`TcpStream`](std::net::TcpStream)'s `read`.
    pub fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.transfer(Direction::Read, |caller| caller.recv(buffer), |len| Some(*len))
    }

    /// Receives the arrived bytes of a message, or its next part.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv), except for sizes.
    pub fn recv_part(&mut self, buffer: &mut [u8]) -> io::Result<Part> {
        self.0.transfer(Direction::Read, |caller| caller.recv_part(buffer), |part| Some(part.len))
    }

    /// Receives a message without a copy, in the blocks where it arrived.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv).
    pub fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        let receive = |caller: &mut Caller<'_>| caller.call(Direction::Read, Connection::recv_buf);
        self.0.transfer(Direction::Read, receive, |message| Some(message.len()))
    }

    /// Receives the next part of a message without a copy, in the block where it arrived. A message
    /// of any length can be received, even one longer than the receive buffer, if the program drops
    /// the earlier parts.
    ///
    /// # Errors
    ///
    /// Those of [`recv_part`](Self::recv_part).
    pub fn recv_part_buf(&mut self) -> io::Result<(RecvBuf, Part)> {
        let receive = |caller: &mut Caller<'_>| caller.call(Direction::Read, Connection::recv_part_buf);
        self.0.transfer(Direction::Read, receive, |(_, part)| Some(part.len))
    }
}

fn total_len(slices: &[IoSlice<'_>]) -> usize {
    slices.iter().map(|slice| slice.len()).sum()
}

/// The calls through `&`.
impl ConnectionCell {
    pub(crate) fn send_shared(&self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let send = |caller: &mut Caller<'_>| caller.send_vectored(slices);
        self.shared_transfer(Direction::Write, send, |()| Some(total_len(slices)))
    }

    pub(crate) fn send_part_shared(&self, total: u64, part: &[u8]) -> io::Result<usize> {
        self.shared_transfer(Direction::Write, |caller| caller.send_part(total, part), |len| Some(*len))
    }

    pub(crate) fn recv_part_shared(&self, buffer: &mut [u8]) -> io::Result<Part> {
        self.shared_transfer(Direction::Read, |caller| caller.recv_part(buffer), |part| Some(part.len))
    }
}

impl Caller<'_> {
    fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let total = total_len(slices);
        if total > self.connection.longest_whole {
            return self.send_long(total, slices);
        }
        self.send_whole(slices)
    }

    #[inline(always)]
    fn send_whole(&mut self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.call(Direction::Write, |connection| connection.send_now(slices))?;
        self.finish_write(())
    }

    #[inline(never)]
    fn send_long(&mut self, total: usize, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let piece = self.piece(Direction::Write);
        let lends = self.connection.would_lend(total);
        match slices {
            [bytes] if piece < usize::MAX && !lends => {
                let mut done = 0;
                self.call(Direction::Write, |connection| connection.send_in_bursts(bytes, &mut done))?;
                self.finish_write(())
            }
            _ if !self.timeouts().is_nonblocking() && total > piece.min(self.connection.sndbuf()) => {
                self.send_in_parts(total as u64, piece, slices)
            }
            _ => self.send_whole(slices),
        }
    }

    /// Sends in pieces, so that the peer receives the first while later ones are copied.
    fn send_in_parts(&mut self, total: u64, piece: usize, slices: &[IoSlice<'_>]) -> io::Result<()> {
        for slice in slices {
            let mut rest = &slice[..];
            while !rest.is_empty() {
                let sent = self.send_part(total, &rest[..rest.len().min(piece)])?;
                rest = &rest[sent..];
            }
        }
        Ok(())
    }

    fn send_part(&mut self, total: u64, part: &[u8]) -> io::Result<usize> {
        let taken =
            self.call(Direction::Write, |connection| connection.send_part(total, &[IoSlice::new(part)]))?;
        self.finish_write(taken)
    }

    /// Receives the arrived bytes of a message, or its next part.
    pub(crate) fn recv_part(&mut self, buffer: &mut [u8]) -> io::Result<Part> {
        self.call(Direction::Read, |connection| connection.recv_part(buffer))
    }

    /// Receives a message that fits the receive buffer. `None` means that it must be received in parts.
    #[cfg(all(unix, feature = "tokio"))]
    pub(crate) fn recv_or_begin(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.call(Direction::Read, |connection| connection.recv_or_begin(buffer, usize::MAX))
    }

    pub(super) fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.timeouts().is_nonblocking() {
            return self.call(Direction::Read, |connection| connection.recv(buffer));
        }
        // What has arrived is copied while the rest comes, unless the call takes all or nothing.
        let in_parts = self.piece(Direction::Read) < usize::MAX;
        let piece = if in_parts { self.connection.longest_whole } else { usize::MAX };
        let attempt =
            |connection: &mut Connection, buffer: &mut [u8]| connection.recv_or_begin(buffer, piece);
        match self.fill(buffer, attempt, Some)? {
            Some(len) => Ok(len),
            None => self.recv_in_parts(buffer),
        }
    }

    /// Receives a message that fits the caller's buffer but not the receive buffer.
    fn recv_in_parts(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        loop {
            let part = self.recv_part(&mut buffer[got..])?;
            got += part.len;
            if part.last {
                return Ok(got);
            }
        }
    }
}
