//! A stream of bytes for tasks.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use ::tokio::net::ToSocketAddrs;

use super::common::common;
use super::connect;
use super::descriptor::{Connected, Descriptor};
use super::halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use super::looks::Looks;
use crate::config::{Builder, Config};
use crate::handshake::{FallbackReason, Transport};
use crate::pool::{Block, Pool};
use crate::session::buffers::{Completion, RecvBuf, SendRefused, Ticket};
use crate::session::caller::Caller;
use crate::session::caller::ConnectionOwner;
use crate::session::connection::Direction;
use crate::session::readiness::Readiness;
use crate::session::stats::Stats;
use crate::session::tasks::WaitingTasks;
use crate::session::times::moved;

/// A stream of bytes, used as `tokio::net::TcpStream` is.
///
/// One task may read while another writes: by [`split`](Self::split), [`into_split`](Self::into_split),
/// or `tokio::io::split`.
///
/// `AsyncRead` and `AsyncWrite` are cancel safe as those of `TcpStream` are: a read that is dropped has
/// taken nothing, and a write nothing that it did not report. A flush hands over what the device
/// takes, leaves the rest to a thread of this crate, and does not wait for the peer; where a sandbox
/// forbids membarrier(2) it waits until the device has taken all. A shutdown sends the end behind all
/// written bytes.
///
/// # Dropping
///
/// As that of a [`Stream`](crate::Stream): the written bytes are still sent within the linger time, and
/// the drop waits for nothing.
pub struct Stream {
    io: Connected<Socket>,
}

/// A connection in non-blocking mode.
pub(super) struct Socket(pub(super) crate::Stream);

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

// SAFETY: the descriptor is of the set that a connection in non-blocking mode has, which stays until
// the connection is dropped or given to a worker, and both consume it.
unsafe impl Descriptor for Socket {}

common!(Stream, Socket, crate::Stream);

impl Stream {
    /// Connects with default parameters. Names are resolved as `tokio::net::lookup_host` does.
    ///
    /// # Cancel safety
    ///
    /// A drop of the future gives the connect up.
    ///
    /// # Errors
    ///
    /// Those of [`Stream::connect`](crate::Stream::connect).
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
    /// Those of [`Config::connect`].
    pub async fn connect_with(config: &Config, addr: impl ToSocketAddrs) -> io::Result<Self> {
        let config = Arc::new(config.clone());
        Self::from_blocking(connect::to_any(addr, move |addr| config.start_connect(addr)).await?)
    }

    /// Receives bytes and leaves them to be received again.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.io.call(Direction::Read, |socket| socket.0.peek(buffer)).await
    }

    /// Reads what has arrived, and fails with [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing has.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.io.try_call(Direction::Read, |socket| (&socket.0).read(buffer))
    }

    /// Writes what there is room for, and fails with [`WouldBlock`](io::ErrorKind::WouldBlock) if there
    /// is none.
    ///
    /// # Errors
    ///
    /// Those of a write.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.io.try_call(Direction::Write, |socket| (&socket.0).write(bytes))
    }

    /// Receives without a copy, in the blocks where the bytes arrived. An empty result is the end of
    /// the stream.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub async fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        self.io.call_mut(Direction::Read, |socket| socket.0.recv_buf()).await
    }

    /// Splits the stream in two halves, for two futures of one task.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// Splits the stream in two halves, for two tasks. A drop of the writing half shuts the writing
    /// down.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let stream = Arc::new(self);
        (OwnedReadHalf(stream.clone()), OwnedWriteHalf::new(stream))
    }

    pub(crate) fn poll_read_shared(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let free = buffer.initialize_unfilled();
        let call = |socket: &Socket, tries_again| {
            let read = |caller: &mut Caller<'_>| caller.of_task(tries_again).read(free);
            socket.0.0.shared_transfer(Direction::Read, read, moved)
        };
        let count = ready!(self.io.poll_read(context, call))?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_write_shared(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io.poll_call(context, Direction::Write, |socket| (&socket.0).write_vectored(slices))
    }

    pub(super) fn poll_flush_shared(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_call(context, Direction::Write, |socket| (&socket.0).flush())
    }

    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        self.io.get().0.shutdown(Shutdown::Write)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_read_shared(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_shared(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_shared(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_shared(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown_write())
    }
}
