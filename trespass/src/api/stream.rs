//! A connection that carries a stream of bytes.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::api::common::common;
use crate::api::connect::within;
use crate::config::Builder;
use crate::handshake::{FallbackReason, Transport};
use crate::pool::{Block, Pool};
use crate::session::blocking::CloseOnDrop;
use crate::session::buffers::{Completion, RecvBuf, SendRefused, Ticket};
use crate::session::connection::Connection;
use crate::session::connection::Direction;
use crate::session::readiness::Readiness;
use crate::session::stats::Stats;

/// A stream of bytes, used as [`std::net::TcpStream`] is.
///
/// Written bytes arrive in order, once, or the connection fails. Reads and writes have any size.
/// The sizes of reads say nothing about those of the writes.
///
/// A stream belongs to one thread at a time and can be sent to another. No thread runs behind it:
/// bytes move while one of its calls runs. A call that waits moves the bytes of both directions.
///
/// A blocking write returns when its bytes have been handed to the transport, so a program may then
/// do other work. In non-blocking mode, bytes may remain in this process. Later calls send them,
/// and the [descriptor](#impl-AsFd-for-Stream) becomes readable for that.
///
/// # Dropping
///
/// A drop does not wait for the peer. A thread of this crate sends the written bytes within the
/// linger time (10 s, or [`set_linger`](Self::set_linger)), then resets the connection. On Unix the
/// end of the process waits for dropped connections, 10 s at most for all together. As over TCP, a
/// drop before all received data was read resets the connection.
pub struct Stream(pub(crate) CloseOnDrop);

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

    /// Connects with default parameters, and fails if that takes longer than the timeout: at least
    /// 10 ms, at most 10 minutes. The proof of the data path may take half of it.
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
    pub fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.call(Direction::Read, |connection| connection.peek(buffer))
    }

    pub(crate) fn new(connection: Connection) -> io::Result<Self> {
        CloseOnDrop::new(connection).map(Self)
    }

    /// Receives without a copy, in the blocks where the bytes arrived. An empty result is the end
    /// of the stream.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        self.0.call(Direction::Read, Connection::recv_chunk)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.fill(buffer, Connection::read, |len| len)
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
            let Ok(count) = self.0.connection.read(buffer) else { break };
            read += count;
            full = count == buffer.len();
        }
        self.0.after_change();
        Ok(read)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Sends in pieces, so that the peer receives the first while later ones are copied.
        let piece = self.0.piece(Direction::Write);
        self.write_vectored(&[IoSlice::new(&bytes[..bytes.len().min(piece)])])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.0.call(Direction::Write, |connection| connection.write_now(slices))?;
        self.0.finish_write(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
