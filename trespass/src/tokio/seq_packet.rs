//! Messages for tasks.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ::tokio::net::ToSocketAddrs;

use super::common::common;
use super::connect;
use super::descriptor::{Connected, Descriptor};
use super::halves::{OwnedRecvHalf, OwnedSendHalf};
use super::looks::Looks;
use crate::config::{Builder, Config};
use crate::handshake::{FallbackReason, Transport};
use crate::pool::{Block, Pool};
use crate::session::buffers::{Completion, Part, Progress, RecvBuf, SendRefused, Ticket};
use crate::session::caller::Caller;
use crate::session::caller::ConnectionOwner;
use crate::session::connection::Direction;
use crate::session::readiness::Readiness;
use crate::session::stats::Stats;
use crate::session::tasks::WaitingTasks;

/// Messages with boundaries, as a [`SeqPacket`](crate::SeqPacket) carries them.
///
/// One task may send while another receives: by [`into_split`](Self::into_split).
///
/// # Messages larger than the buffers
///
/// A message that fits the send buffer ([`Builder::sndbuf`](crate::Builder::sndbuf)) is sent whole,
/// and one that fits the receive buffer ([`Builder::rcvbuf`](crate::Builder::rcvbuf)) is received
/// whole. Others go in parts. A future that is dropped between two parts leaves the message begun:
/// [`sending`](Self::sending) and [`receiving`](Self::receiving) tell how far, and
/// [`send_part`](Self::send_part) and [`recv_part`](Self::recv_part) continue.
pub struct SeqPacket {
    io: Connected<Socket>,
}

/// A connection in non-blocking mode.
pub(super) struct Socket(pub(super) crate::SeqPacket);

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

// SAFETY: the descriptor is of the set that a connection in non-blocking mode has, which stays until
// the connection is dropped or given to a worker, and both consume it.
unsafe impl Descriptor for Socket {}

common!(SeqPacket, Socket, crate::SeqPacket);

impl SeqPacket {
    /// Connects with default parameters. Names are resolved as `tokio::net::lookup_host` does.
    ///
    /// # Cancel safety
    ///
    /// A drop of the future gives the connect up.
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::connect`](crate::SeqPacket::connect).
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(&Builder::new().build()?, addr).await
    }

    /// Connects with the parameters of a configuration.
    ///
    /// # Cancel safety
    ///
    /// A drop of the future gives the connect up.
    ///
    /// # Errors
    ///
    /// Those of [`Config::connect_seq_packet`].
    pub async fn connect_with(config: &Config, addr: impl ToSocketAddrs) -> io::Result<Self> {
        let config = Arc::new(config.clone());
        Self::from_blocking(connect::to_any(addr, move |addr| config.start_connect_seq_packet(addr)).await?)
    }

    /// Sends a message.
    ///
    /// # Cancel safety
    ///
    /// A message that fits the send buffer is sent, or nothing of it is. A larger one may be begun.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput): the message is larger than the agreed limit;
    /// nothing was sent. Otherwise those of a write.
    pub async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.send_shared(message).await
    }

    /// Sends one message from several buffers, which together fit the send buffer.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: the message is sent, or nothing of it is.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput): the message is larger than the send buffer or the
    /// agreed limit; nothing was sent. Otherwise those of a write.
    pub async fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.io.call(Direction::Write, |socket| socket.0.0.send_shared(slices)).await
    }

    /// Sends the next bytes of a message of `total` bytes. Returns how many were taken.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: bytes that it has not reported were not taken.
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::send_part`](crate::SeqPacket::send_part).
    pub async fn send_part(&mut self, total: u64, part: &[u8]) -> io::Result<usize> {
        self.send_part_shared(total, part).await
    }

    /// The progress of a message that is sent in parts. `None` means that the next byte begins a
    /// message.
    #[must_use]
    pub fn sending(&self) -> Option<Progress> {
        self.io.get().0.sending()
    }

    /// The progress of a message that is received in parts.
    #[must_use]
    pub fn receiving(&self) -> Option<Progress> {
        self.io.get().0.receiving()
    }

    /// Receives a message and returns its length.
    ///
    /// # Cancel safety
    ///
    /// A message that fits the receive buffer is received, or stays whole. A larger one may be begun.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput): the buffer is too small. The message stays
    /// queued, and the error gives its length. [`UnexpectedEof`](io::ErrorKind::UnexpectedEof): the
    /// peer has closed its end. Otherwise those of a read.
    pub async fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv_shared(buffer).await
    }

    /// Receives the arrived bytes of a message, or its next part.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv), except for sizes.
    pub async fn recv_part(&mut self, buffer: &mut [u8]) -> io::Result<Part> {
        self.recv_part_shared(buffer).await
    }

    /// Receives a message without a copy, in the blocks where it arrived. The message fits the receive
    /// buffer.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::recv_buf`](crate::SeqPacket::recv_buf) in non-blocking mode.
    pub async fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        self.io.call_mut(Direction::Read, |socket| socket.0.recv_buf()).await
    }

    /// Receives the next part of a message without a copy, in the block where it arrived.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// Those of [`recv_part`](Self::recv_part).
    pub async fn recv_part_buf(&mut self) -> io::Result<(RecvBuf, Part)> {
        self.io.call_mut(Direction::Read, |socket| socket.0.recv_part_buf()).await
    }

    /// Sends the end behind all messages. The peer's receives then fail with
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::shutdown`](crate::SeqPacket::shutdown).
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.io.get().0.shutdown(how)
    }

    /// Splits the connection in two halves, for two tasks. A drop of the sending half shuts the sending
    /// down.
    #[must_use]
    pub fn into_split(self) -> (OwnedRecvHalf, OwnedSendHalf) {
        let packets = Arc::new(self);
        (OwnedRecvHalf(packets.clone()), OwnedSendHalf::new(packets))
    }

    pub(super) async fn send_shared(&self, message: &[u8]) -> io::Result<()> {
        let socket = self.io.get();
        if message.len() <= socket.0.0.shared()?.connection.sndbuf() {
            return self
                .io
                .call(Direction::Write, |socket| socket.0.0.send_shared(&[IoSlice::new(message)]))
                .await;
        }
        let mut rest = message;
        while !rest.is_empty() {
            let sent = self.send_part_shared(message.len() as u64, rest).await?;
            rest = &rest[sent..];
        }
        Ok(())
    }

    pub(super) async fn send_part_shared(&self, total: u64, part: &[u8]) -> io::Result<usize> {
        self.io.call(Direction::Write, |socket| socket.0.0.send_part_shared(total, part)).await
    }

    pub(super) async fn recv_shared(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let call = |socket: &Socket, tries_again| {
            let receive = |caller: &mut Caller<'_>| caller.of_task(tries_again).recv_or_begin(buffer);
            socket.0.0.shared_transfer(Direction::Read, receive, |len| *len)
        };
        if let Some(len) = self.io.read(call).await? {
            return Ok(len);
        }
        let mut got = 0;
        loop {
            let part = self.recv_part_shared(&mut buffer[got..]).await?;
            got += part.len;
            if part.last {
                return Ok(got);
            }
        }
    }

    pub(super) async fn recv_part_shared(&self, buffer: &mut [u8]) -> io::Result<Part> {
        self.io.call(Direction::Read, |socket| socket.0.0.recv_part_shared(buffer)).await
    }
}
