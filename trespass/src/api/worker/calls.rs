//! The non-blocking calls on a worker's connections.

use std::io::{self, ErrorKind, IoSlice};
use std::net::Shutdown;

use super::{Key, Worker};
use crate::pool::Block;
use crate::protocol::CallError;
use crate::session::buffers::{self, Part, RecvBuf, SendRefused, Ticket};
use crate::session::connection::Direction;
use crate::session::connection::{Connection, Refused};
use crate::session::readiness::Readiness;
use crate::wire::Kind;

impl Worker {
    /// As [`Stream`](crate::Stream)'s `read`, without waiting.
    ///
    /// # Errors
    ///
    /// As `read`, and [`NotConnected`](ErrorKind::NotConnected): there is no such connection.
    pub fn read(&mut self, key: Key, buffer: &mut [u8]) -> io::Result<usize> {
        self.take(key, |connection| connection.read(buffer))
    }

    /// As [`Stream`](crate::Stream)'s `write`, without waiting.
    ///
    /// # Errors
    ///
    /// As `write`, and [`NotConnected`](ErrorKind::NotConnected): there is no such connection.
    pub fn write(&mut self, key: Key, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(key, &[IoSlice::new(bytes)])
    }

    /// As [`Stream`](crate::Stream)'s `write_vectored`, without waiting.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_vectored(&mut self, key: Key, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.give(key, |connection| connection.write(slices))
    }

    /// As [`SeqPacket::send`](crate::SeqPacket::send), without waiting.
    ///
    /// # Errors
    ///
    /// As it, and [`NotConnected`](ErrorKind::NotConnected): there is no such connection.
    pub fn send(&mut self, key: Key, message: &[u8]) -> io::Result<()> {
        self.send_vectored(key, &[IoSlice::new(message)])
    }

    /// As [`SeqPacket::send_vectored`](crate::SeqPacket::send_vectored), without waiting.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_vectored(&mut self, key: Key, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.give(key, |connection| connection.send(slices))
    }

    /// As [`SeqPacket::send_part`](crate::SeqPacket::send_part), without waiting.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_part(&mut self, key: Key, total: u64, part: &[u8]) -> io::Result<usize> {
        self.give(key, |connection| connection.send_part(total, &[IoSlice::new(part)]))
    }

    /// As [`SeqPacket::recv`](crate::SeqPacket::recv), without waiting.
    ///
    /// # Errors
    ///
    /// As it, and [`NotConnected`](ErrorKind::NotConnected): there is no such connection.
    pub fn recv(&mut self, key: Key, buffer: &mut [u8]) -> io::Result<usize> {
        self.take(key, |connection| connection.recv(buffer))
    }

    /// As [`SeqPacket::recv_part`](crate::SeqPacket::recv_part), without waiting.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn recv_part(&mut self, key: Key, buffer: &mut [u8]) -> io::Result<Part> {
        self.take(key, |connection| connection.recv_part(buffer))
    }

    /// Takes a message, or what lies in one block of a stream, without a copy and without waiting.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv), or [`read`](Self::read).
    pub fn recv_buf(&mut self, key: Key) -> io::Result<RecvBuf> {
        self.take(key, |connection| match connection.info.kind {
            Kind::Stream => connection.recv_chunk(),
            Kind::SeqPacket => connection.recv_buf(),
        })
    }

    /// As [`SeqPacket::recv_part_buf`](crate::SeqPacket::recv_part_buf), without waiting.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv), and [`InvalidInput`](ErrorKind::InvalidInput): the connection is a stream.
    pub fn recv_part_buf(&mut self, key: Key) -> io::Result<(RecvBuf, Part)> {
        self.take(key, |connection| match connection.info.kind {
            Kind::Stream => Err(connection.refused(Direction::Read, CallError::WrongKind)),
            Kind::SeqPacket => connection.recv_part_buf(),
        })
    }

    /// A block of the worker's pool, of at least so many bytes.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](ErrorKind::WouldBlock): the pool has none now. [`InvalidInput`](ErrorKind::InvalidInput): no block is that
    /// large.
    pub fn buffer(&self, len: usize) -> io::Result<Block> {
        buffers::take(&self.pool, len)
    }

    /// As [`Stream::send_buf`](crate::Stream::send_buf), without waiting. The block comes back by
    /// [`Event::Completed`](crate::Event::Completed).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); the block comes back with the error.
    pub fn send_buf(&mut self, key: Key, block: Block, len: usize) -> Result<Ticket, SendRefused> {
        let mut block = Some(block);
        let taken = self.give(key, |connection| connection.send_block(&mut block, len));
        match (taken, block) {
            (Ok(ticket), _) => Ok(ticket),
            (Err(error), Some(block)) => Err(SendRefused { error, block }),
            (Err(error), None) => unreachable!("a block that was taken was refused: {error}"),
        }
    }

    /// As [`Stream::send_blocks`](crate::Stream::send_blocks), without waiting. Each block comes back by
    /// [`Event::Completed`](crate::Event::Completed).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); the blocks are still in the vector then.
    pub fn send_blocks(&mut self, key: Key, blocks: &mut Vec<(Block, usize)>) -> io::Result<Ticket> {
        self.give(key, |connection| connection.send_blocks(blocks))
    }

    /// As [`Stream::set_cork`](crate::Stream::set_cork), but that a [`poll`](Self::poll) that waits lets nothing go: it is for all connections.
    ///
    /// # Errors
    ///
    /// There is no such connection.
    pub fn set_cork(&mut self, key: Key, corked: bool) -> io::Result<()> {
        self.open_connection(key)?.0.protocol.cork(corked);
        self.mark_dirty(key.index);
        Ok(())
    }

    /// As [`Stream::shutdown`](crate::Stream::shutdown).
    ///
    /// # Errors
    ///
    /// There is no such connection.
    pub fn shutdown(&mut self, key: Key, how: Shutdown) -> io::Result<()> {
        let (connection, _) = self.open_connection(key)?;
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            connection.protocol.shutdown_write();
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            connection.protocol.shutdown_read();
        }
        self.mark_dirty(key.index);
        Ok(())
    }

    /// What of a connection is to be told. At first it is both.
    ///
    /// # Errors
    ///
    /// There is no such connection.
    pub fn set_interest(&mut self, key: Key, interest: Readiness) -> io::Result<()> {
        self.open_connection(key)?.1.set_interest(interest);
        self.mark_ready(key.index);
        Ok(())
    }

    /// A call that takes from a connection. What that makes room for goes with the next poll.
    fn take<T>(
        &mut self,
        key: Key,
        call: impl FnOnce(&mut Connection) -> Result<T, Refused>,
    ) -> io::Result<T> {
        let (connection, _) = self.open_connection(key)?;
        let taken = call(connection);
        self.mark_dirty(key.index);
        taken.map_err(into_io_error)
    }

    /// A call that gives to a connection. If there is no room, sending what it has may make some.
    fn give<T>(
        &mut self,
        key: Key,
        mut call: impl FnMut(&mut Connection) -> Result<T, Refused>,
    ) -> io::Result<T> {
        let (connection, readiness_state) = self.open_connection(key)?;
        let given = match call(connection) {
            Err(Refused::Blocked) => {
                connection.post();
                call(connection)
            }
            given => given,
        };
        readiness_state.set_write_refused(matches!(given, Err(Refused::Blocked)));
        self.mark_dirty(key.index);
        given.map_err(into_io_error)
    }
}

fn into_io_error(refused: Refused) -> io::Error {
    match refused {
        Refused::Blocked => ErrorKind::WouldBlock.into(),
        Refused::Failed(error) => error,
    }
}
