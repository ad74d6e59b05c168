//! A connection that carries messages with boundaries.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::api::common::common;
use crate::config::Builder;
use crate::handshake::{FallbackReason, Transport};
use crate::pool::{Block, Pool};
use crate::session::blocking::CloseOnDrop;
use crate::session::buffers::{Completion, Part, Progress, RecvBuf, SendRefused, Ticket};
use crate::session::connection::Connection;
use crate::session::connection::Direction;
use crate::session::readiness::Readiness;
use crate::session::stats::Stats;

/// Messages with boundaries: each arrives whole, in order, once, or the connection fails.
///
/// A message may have 0 bytes to 1 GiB, or what [`Builder::max_msg`](crate::Builder::max_msg) says on either side. When the peer has closed its end, and all its messages
/// were received, calls to receive fail with [`UnexpectedEof`](io::ErrorKind::UnexpectedEof): a length of 0 is an empty message.
///
/// Everything else is as of a [`Stream`](crate::Stream).
///
/// # Messages larger than the buffers
///
/// A call that may wait sends and receives messages of any size. In non-blocking mode a call does all or nothing, which it cannot
/// do for a message that is larger than the send or receive buffer: it says so, and [`send_part`](Self::send_part) and
/// [`recv_part`](Self::recv_part) go through such a message piece by piece.
///
/// Without a copy a message of any size goes out from several blocks ([`send_blocks`](Self::send_blocks)), and comes in block by block
/// ([`recv_part_buf`](Self::recv_part_buf)).
///
/// # When time is up in the middle of a message
///
/// A message that fits the buffer is sent and received whole or not at all: after a call whose time was up it can be called again. A larger one
/// goes piece by piece, and the time counts anew from each piece that moved. When it is up, what has moved stays so:
/// [`sending`](Self::sending) and [`receiving`](Self::receiving) tell how far the message has come. It is to be gone on with from there, by `send_part` and `recv_part`;
/// until its end other calls that send, or receive, are refused. What `recv` has received of it lies at the start of its buffer.
///
/// ```no_run
/// # let (mut packets, message) = (trespass::SeqPacket::connect("10.0.0.1:7000")?, vec![0; 1 << 30]);
/// packets.set_write_timeout(Some(std::time::Duration::from_secs(1)))?;
/// if let Err(error) = packets.send(&message) {
///     // Not within a message: nothing of it was sent.
///     let Some(progress) = packets.sending() else { return Err(error) };
///     let mut done = progress.done as usize;
///     while done < message.len() {
///         done += packets.send_part(progress.total, &message[done..])?;
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// A connection that ends within a message fails: the peer is told by a reset, and never takes what it has for the message.
pub struct SeqPacket(pub(crate) CloseOnDrop);

common!(SeqPacket);

impl SeqPacket {
    /// Connects, with everything at its start value.
    ///
    /// # Errors
    ///
    /// As [`Stream::connect`](crate::Stream::connect).
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().connect_seq_packet(addr)
    }

    pub(crate) fn new(connection: Connection) -> io::Result<Self> {
        CloseOnDrop::new(connection).map(Self)
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput): the message is larger than both sides take, or than can be sent without
    /// waiting; nothing was sent. Otherwise as [`TcpStream`](std::net::TcpStream)'s `write`.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.send_vectored(&[IoSlice::new(message)])
    }

    /// Sends one message that lies in several places.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let piece = self.0.piece(Direction::Write);
        if !self.0.timeouts.is_nonblocking() && total > piece.min(self.0.connection.sndbuf()) {
            return self.send_in_parts(total as u64, piece, slices);
        }
        self.0.call(Direction::Write, |connection| connection.send_now(slices))?;
        self.0.finish_write(())
    }

    /// The peer has the first pieces while the next are copied.
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

    /// Sends the next bytes of a message of `total` bytes. How many were taken; the message is sent when all were. Until then no
    /// other one can be.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and it is more than is left of the message.
    pub fn send_part(&mut self, total: u64, part: &[u8]) -> io::Result<usize> {
        let taken =
            self.0.call(Direction::Write, |connection| connection.send_part(total, &[IoSlice::new(part)]))?;
        self.0.finish_write(taken)
    }

    /// How far the message has come that is being sent in parts, or by a [`send`](Self::send) whose time was up in the middle of it. `None`:
    /// the next byte begins a message.
    #[must_use]
    pub fn sending(&self) -> Option<Progress> {
        self.0.connection.protocol.sending().map(Progress::of)
    }

    /// How far the message has come that is being received in parts, or by a [`recv`](Self::recv) whose time was up in the middle of it.
    #[must_use]
    pub fn receiving(&self) -> Option<Progress> {
        self.0.connection.protocol.receiving().map(Progress::of)
    }

    /// Receives a message, and says how long it is.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput): the buffer is too small, or the message is too large to be received
    /// without waiting; it stays where it is, and the error says how long it is. [`UnexpectedEof`](io::ErrorKind::UnexpectedEof): the
    /// peer has sent its last. Otherwise as [`TcpStream`](std::net::TcpStream)'s `read`.
    pub fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.timeouts.is_nonblocking() {
            return self.0.call(Direction::Read, |connection| connection.recv(buffer));
        }
        let piece = self.0.piece(Direction::Read);
        let attempt =
            |connection: &mut Connection, buffer: &mut [u8]| connection.recv_or_begin(buffer, piece);
        match self.0.fill(buffer, attempt, Some)? {
            Some(len) => Ok(len),
            None => self.recv_in_parts(buffer),
        }
    }

    /// The message fits the program's buffer, and is longer than the receive buffer, or the first of it is here.
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

    /// Receives what is there of a message, or the next part of it.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv), but for the sizes.
    pub fn recv_part(&mut self, buffer: &mut [u8]) -> io::Result<Part> {
        self.0.call(Direction::Read, |connection| connection.recv_part(buffer))
    }

    /// Takes a message in the blocks in which it lies, without a copy.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        self.0.call(Direction::Read, Connection::recv_buf)
    }

    /// Takes the next part of a message in the block in which it lies, without a copy: so a message of any length can be had that way,
    /// also one that is longer than the receive buffer, as long as what was taken of it is dropped again.
    ///
    /// # Errors
    ///
    /// As [`recv_part`](Self::recv_part).
    pub fn recv_part_buf(&mut self) -> io::Result<(RecvBuf, Part)> {
        self.0.call(Direction::Read, Connection::recv_part_buf)
    }
}
