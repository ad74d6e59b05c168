//! A connection that carries a stream of bytes.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::api::common::common;
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
/// What is written arrives in order, once, or the connection fails. Reads and writes may be of any size, and the pieces in which
/// bytes arrive say nothing about those in which they were written.
///
/// A stream belongs to one thread at a time; it can be sent to another. It has no thread of its own: bytes move while one of its
/// calls runs, and a call that waits moves those of both directions.
///
/// A write that may wait returns when what it took is on its way, so that nothing is left behind in a program that goes
/// on to other things. In non-blocking mode bytes may stay in this process; they go on with the next calls, for which the
/// [descriptor](#impl-AsFd-for-Stream) becomes readable.
///
/// # Dropping
///
/// What was written still goes out, for which dropping waits at most as long as it lingers (1 s, or
/// [`set_linger`](Self::set_linger)). Then the connection is reset.
pub struct Stream(pub(crate) CloseOnDrop);

common!(Stream);

impl Stream {
    /// Connects, with everything at its start value.
    ///
    /// # Errors
    ///
    /// As [`std::net::TcpStream::connect`], and: there is no program of this protocol at the other end, or what the environment says is
    /// refused ([`Builder`]).
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().connect(addr)
    }

    pub(crate) fn new(connection: Connection) -> io::Result<Self> {
        CloseOnDrop::new(connection).map(Self)
    }

    /// Takes what has arrived in the blocks in which it lies, without a copy. An empty one is the end.
    ///
    /// # Errors
    ///
    /// As a read.
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
        // The rest takes what is here, and waits for nothing.
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
        // The peer has the first pieces while the next are copied.
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
