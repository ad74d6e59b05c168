//! The non-blocking calls on a worker's connections.

use std::io::{self, ErrorKind, IoSlice};
use std::net::Shutdown;

use super::slots::{OpenSlot, WorkerInner};
use super::{Key, Worker};
use crate::pool::Block;
use crate::protocol::CallError;
use crate::session::buffers::{self, Part, RecvBuf, SendRefused, Ticket};
use crate::session::connection::{Connection, Direction, Refused};
use crate::session::readiness::Readiness;
use crate::session::times::moved;
use crate::wire::Kind;

impl Worker {
    /// Reads as [`Stream`](crate::Stream) does, without waiting.
    ///
    /// # Errors
    ///
    /// Those of `read`, and [`NotConnected`](ErrorKind::NotConnected): no connection has this key.
    pub fn read(&mut self, key: Key, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.call()?.take(key, |connection| connection.read(buffer), moved)
    }

    /// Writes as [`Stream`](crate::Stream) does, without waiting.
    ///
    /// # Errors
    ///
    /// Those of `write`, and [`NotConnected`](ErrorKind::NotConnected): no connection has this key.
    pub fn write(&mut self, key: Key, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(key, &[IoSlice::new(bytes)])
    }

    /// Writes from several buffers as [`Stream`](crate::Stream) does, without waiting.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write).
    pub fn write_vectored(&mut self, key: Key, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.call()?.give(key, |connection| connection.write(slices), moved)
    }

    /// [`SeqPacket::send`](crate::SeqPacket::send) without waiting.
    ///
    /// # Errors
    ///
    /// Those of that method, and [`NotConnected`](ErrorKind::NotConnected): no connection has this
    /// key.
    pub fn send(&mut self, key: Key, message: &[u8]) -> io::Result<()> {
        self.send_vectored(key, &[IoSlice::new(message)])
    }

    /// [`SeqPacket::send_vectored`](crate::SeqPacket::send_vectored) without waiting.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send).
    pub fn send_vectored(&mut self, key: Key, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let total = |(): &()| Some(slices.iter().map(|slice| slice.len()).sum());
        self.0.call()?.give(key, |connection| connection.send(slices), total)
    }

    /// [`SeqPacket::send_part`](crate::SeqPacket::send_part) without waiting.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send).
    pub fn send_part(&mut self, key: Key, total: u64, part: &[u8]) -> io::Result<usize> {
        let send = |connection: &mut Connection| connection.send_part(total, &[IoSlice::new(part)]);
        self.0.call()?.give(key, send, |len| Some(*len))
    }

    /// [`SeqPacket::recv`](crate::SeqPacket::recv) without waiting.
    ///
    /// # Errors
    ///
    /// Those of that method, and [`NotConnected`](ErrorKind::NotConnected): no connection has this
    /// key.
    pub fn recv(&mut self, key: Key, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.call()?.take(key, |connection| connection.recv(buffer), |len| Some(*len))
    }

    /// [`SeqPacket::recv_part`](crate::SeqPacket::recv_part) without waiting.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv).
    pub fn recv_part(&mut self, key: Key, buffer: &mut [u8]) -> io::Result<Part> {
        self.0.call()?.take(key, |connection| connection.recv_part(buffer), |part| Some(part.len))
    }

    /// Receives a message, or the bytes in one block of a stream, without a copy and without
    /// waiting.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv), or [`read`](Self::read).
    pub fn recv_buf(&mut self, key: Key) -> io::Result<RecvBuf> {
        let mut call = self.0.call()?;
        let kind = call.open_slot(key)?.connection.info.kind;
        let receive = |connection: &mut Connection| match kind {
            Kind::Stream => connection.recv_chunk(),
            Kind::SeqPacket => connection.recv_buf(),
        };
        // Without bytes it is the end of a stream, or an empty message.
        call.take(key, receive, |bytes| match kind {
            Kind::Stream => moved(&bytes.len()),
            Kind::SeqPacket => Some(bytes.len()),
        })
    }

    /// [`SeqPacket::recv_part_buf`](crate::SeqPacket::recv_part_buf) without waiting.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv), and [`InvalidInput`](ErrorKind::InvalidInput): the connection
    /// is a stream.
    pub fn recv_part_buf(&mut self, key: Key) -> io::Result<(RecvBuf, Part)> {
        let receive = |connection: &mut Connection| match connection.info.kind {
            Kind::Stream => Err(connection.refused(Direction::Read, CallError::WrongKind)),
            Kind::SeqPacket => connection.recv_part_buf(),
        };
        self.0.call()?.take(key, receive, |(_, part)| Some(part.len))
    }

    /// Takes a block of at least `len` bytes from the worker's pool.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](ErrorKind::WouldBlock): the pool is empty.
    /// [`InvalidInput`](ErrorKind::InvalidInput): no block is that large.
    pub fn buffer(&self, len: usize) -> io::Result<Block> {
        buffers::take(&self.pool(), len)
    }

    /// [`Stream::send_buf`](crate::Stream::send_buf) without waiting.
    /// [`Event::Completed`](crate::Event::Completed) returns the block.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send). The error contains the block.
    pub fn send_buf(&mut self, key: Key, block: Block, len: usize) -> Result<Ticket, SendRefused> {
        let mut block = Some(block);
        let sent = |connection: &mut Connection| connection.send_block(&mut block, len);
        let taken = self.0.call().and_then(|mut call| call.give(key, sent, |_| Some(len)));
        match (taken, block) {
            (Ok(ticket), _) => Ok(ticket),
            (Err(error), Some(block)) => Err(SendRefused { error, block }),
            (Err(error), None) => unreachable!("a block that was taken was refused: {error}"),
        }
    }

    /// [`Stream::send_blocks`](crate::Stream::send_blocks) without waiting.
    /// [`Event::Completed`](crate::Event::Completed) returns each block.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send). The blocks then stay in the vector.
    pub fn send_blocks(&mut self, key: Key, blocks: &mut Vec<(Block, usize)>) -> io::Result<Ticket> {
        let mut call = self.0.call()?;
        let is_timed = call.open_slot(key)?.connection.is_timed();
        let bytes = if is_timed { blocks.iter().map(|(_, len)| *len).sum() } else { 0 };
        call.give(key, |connection| connection.send_blocks(blocks), |_| Some(bytes))
    }

    /// Finds whether any written byte depends on this process. After a call that would block, a poll
    /// reports [`Event::Ready`](crate::Event::Ready) without readiness once none does.
    #[cfg(feature = "local")]
    pub(crate) fn try_drain(&mut self, key: Key) -> io::Result<()> {
        let mut call = self.0.call()?;
        let OpenSlot { connection, awaits_drain, .. } = call.open_slot(key)?;
        connection.protocol.flush();
        connection.post();
        let drained = connection.is_drained();
        *awaits_drain |= matches!(drained, Err(Refused::Blocked));
        call.mark_dirty(key.index);
        drained.map_err(into_io_error)
    }

    /// [`Stream::set_cork`](crate::Stream::set_cork) for a connection of the worker. A
    /// [`poll`](Self::poll) that waits does not release held bytes, because it waits for all
    /// connections.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn set_cork(&mut self, key: Key, corked: bool) -> io::Result<()> {
        let mut call = self.0.call()?;
        call.open_slot(key)?.connection.protocol.cork(corked);
        call.mark_dirty(key.index);
        Ok(())
    }

    /// [`Stream::shutdown`](crate::Stream::shutdown) for a connection of the worker.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn shutdown(&mut self, key: Key, how: Shutdown) -> io::Result<()> {
        let mut call = self.0.call()?;
        let connection = &mut call.open_slot(key)?.connection;
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            connection.protocol.shutdown_write();
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            connection.protocol.shutdown_read();
        }
        call.mark_dirty(key.index);
        Ok(())
    }

    /// Sets which readiness of a connection [`Event::Ready`](crate::Event::Ready) reports. The
    /// default is both. A program that leaves arrived bytes for later asks for
    /// [`WRITE`](Readiness::WRITE) alone, because each poll reports them again.
    ///
    /// # Errors
    ///
    /// No connection has this key.
    pub fn set_interest(&mut self, key: Key, interest: Readiness) -> io::Result<()> {
        let mut call = self.0.call()?;
        call.open_slot(key)?.readiness_state.set_interest(interest);
        call.mark_ready(key.index);
        Ok(())
    }
}

impl WorkerInner {
    /// Runs a call that receives. The next poll posts the receives that it freed. `bytes` is as that of
    /// [`Connection::timed`].
    fn take<T>(
        &mut self,
        key: Key,
        call: impl FnOnce(&mut Connection) -> Result<T, Refused>,
        bytes: impl FnOnce(&T) -> Option<usize>,
    ) -> io::Result<T> {
        let taken = self.open_slot(key)?.connection.timed(Direction::Read, call, bytes);
        self.mark_dirty(key.index);
        taken.map_err(into_io_error)
    }

    /// Runs a call that sends. If the send buffer is full, it sends first and tries once more.
    fn give<T>(
        &mut self,
        key: Key,
        mut call: impl FnMut(&mut Connection) -> Result<T, Refused>,
        bytes: impl FnOnce(&T) -> Option<usize>,
    ) -> io::Result<T> {
        let exported = self.exported.get();
        let OpenSlot { connection, readiness_state, posted, .. } = self.open_slot(key)?;
        let give = |connection: &mut Connection| match call(connection) {
            Err(Refused::Blocked) => {
                connection.post();
                call(connection)
            }
            given => given,
        };
        let given = connection.timed(Direction::Write, give, bytes);
        // The peer begins while the program goes on. Over TCP this would be a system call, and where the
        // program waits for the descriptor, the completion would be one more event.
        if given.is_ok() && !connection.is_tcp() && !exported && !std::mem::replace(posted, true) {
            connection.post();
        }
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
