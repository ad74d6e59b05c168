//! A connection that carries a stream of bytes.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::api::common::common;
use crate::api::connect::within;
use crate::config::Builder;
use crate::handshake::{FallbackReason, Transport};
use crate::pool::{Block, Pool};
use crate::session::buffers::{Completion, RecvBuf, SendRefused, Ticket};
use crate::session::caller::{Caller, ConnectionOwner};
use crate::session::connection::Connection;
use crate::session::connection::Direction;
use crate::session::readiness::Readiness;
use crate::session::stats::Stats;
use crate::session::times::moved;

/// A stream of bytes, used as [`std::net::TcpStream`] is.
///
/// Written bytes arrive in order, once, or the connection fails. Reads and writes have any size.
/// The sizes of reads say nothing about those of the writes.
///
/// Bytes move while one of its calls runs. A call that waits moves the bytes of both directions.
/// Threads may share a stream: `&Stream` reads and writes, and [`split`](Self::split) makes two
/// halves.
///
/// A blocking write returns when its bytes are in the send buffer
/// ([`Builder::sndbuf`](crate::Builder::sndbuf)), and has sent those that the peer has room for. If
/// the peer's program is busy, a thread of this crate sends the others while the program makes no
/// calls. A full buffer makes a write wait. In non-blocking mode later calls send what is left, and
/// the [descriptor](#impl-AsFd-for-Stream) becomes readable for that.
///
/// # Dropping
///
/// A drop does not wait for the peer. A thread of this crate sends the written bytes within the
/// linger time (10 s, or [`set_linger`](Self::set_linger)), then resets the connection. On Unix a
/// return from `main` and [`exit`](std::process::exit) close the streams that were not dropped,
/// too, and wait until all is sent, 10 s at most for all together
/// ([`exit_timeout`](crate::Builder::exit_timeout)). As over TCP, a drop before all received data
/// was read resets the connection.
pub struct Stream(pub(crate) ConnectionOwner);

common!(Stream);

impl Stream {
    /// Connects with default parameters.
    ///
    /// # Errors
    ///
    /// Those of [`std::net::TcpStream::connect`], and: the listener is no trespass program, or an
    /// environment variable has an invalid value ([`Builder`]).
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().connect(addr)
    }

    /// Connects with default parameters, and fails if that takes longer than the timeout. A shorter
    /// one than 10 ms counts as 10 ms, and a longer one than 10 minutes as 10 minutes. The proof of
    /// the data path may take half of it.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect). A timeout of zero is refused.
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        within(timeout)?.connect(addr)
    }

    /// Receives bytes and leaves them to be received again.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.shared()?.call(Direction::Read, |connection| connection.peek(buffer))
    }

    pub(crate) fn new(connection: Connection) -> io::Result<Self> {
        ConnectionOwner::new(connection).map(Self)
    }

    /// Receives without a copy, in the blocks where the bytes arrived. An empty result is the end
    /// of the stream.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        let receive = |caller: &mut Caller<'_>| caller.recv_chunk();
        self.0.transfer(Direction::Read, receive, |bytes| moved(&bytes.len()))
    }
}

/// The calls of both `Stream` and `&Stream`.
impl Caller<'_> {
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fill(buffer, Connection::read, |len| len)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Some(first) = buffers.iter().position(|buffer| !buffer.is_empty()) else { return Ok(0) };
        let (first, more) = buffers[first..].split_at_mut(1);
        let mut read = self.read(&mut first[0])?;
        let mut full = read == first[0].len();
        // Later buffers take only what has arrived already.
        for buffer in more {
            if !full {
                break;
            }
            let Ok(count) = self.connection.read(buffer) else { break };
            read += count;
            full = count == buffer.len();
        }
        self.after_change();
        Ok(read)
    }

    pub(super) fn recv_chunk(&mut self) -> io::Result<RecvBuf> {
        self.call(Direction::Read, Connection::recv_chunk)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Sends in pieces, so that the peer receives the first while later ones are copied.
        let piece = self.piece(Direction::Write);
        self.write_vectored(&[IoSlice::new(&bytes[..bytes.len().min(piece)])])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.call(Direction::Write, |connection| connection.write_now(slices))?;
        self.finish_write(written)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.transfer(Direction::Read, |caller| caller.read(buffer), moved)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.transfer(Direction::Read, |caller| caller.read_vectored(buffers), moved)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.transfer(Direction::Write, |caller| caller.write(bytes), moved)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.transfer(Direction::Write, |caller| caller.write_vectored(slices), moved)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.exclusive()?.flush()
    }
}

/// Threads may use a stream at the same time, for example one that reads and one that writes. Their
/// calls take turns by a lock, and one that waits does not keep the others out.
impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.shared_transfer(Direction::Read, |caller| caller.read(buffer), moved)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.shared_transfer(Direction::Read, |caller| caller.read_vectored(buffers), moved)
    }
}

/// As for [reading](#impl-Read-for-%26Stream).
impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.shared_transfer(Direction::Write, |caller| caller.write(bytes), moved)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.shared_transfer(Direction::Write, |caller| caller.write_vectored(slices), moved)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.shared()?.flush()
    }
}
