//! Connections for messages of a runtime.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;

use super::connection::Connection;
use super::halves::{RecvHalf, SendHalf};
use crate::session::connection::Direction;
use crate::{Block, Completion, FallbackReason, Kind, RecvBuf, SendRefused, Stats, Ticket, Transport};

/// A connection for messages whose calls are awaited on one thread.
///
/// The runtime sends messages once its tasks wait. A drop closes the connection: what was sent arrives.
pub struct SeqPacket(pub(crate) Connection);

impl SeqPacket {
    /// Connects with the runtime's parameters.
    ///
    /// # Errors
    ///
    /// Those of [`Config::connect_seq_packet`](crate::Config::connect_seq_packet).
    ///
    /// # Panics
    ///
    /// Outside of [`Runtime::block_on`](super::Runtime::block_on).
    pub async fn connect(addr: SocketAddr) -> io::Result<Self> {
        Connection::connect(addr, Kind::SeqPacket).await.map(Self)
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::send`](crate::SeqPacket::send).
    pub async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.send(message).await
    }

    /// Receives a message, and returns its length.
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::recv`](crate::SeqPacket::recv). The end is
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    pub async fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.recv(buffer).await
    }

    /// Receives a message without a copy.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv).
    pub async fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        self.0.recv_buf().await
    }

    /// Splits the connection, for two tasks. It is closed when both halves are dropped.
    pub fn into_split(self) -> (RecvHalf, SendHalf) {
        let connection = Rc::new(self.0);
        (RecvHalf(connection.clone()), SendHalf(connection))
    }
}

common_calls!(SeqPacket);

impl Connection {
    pub(super) async fn send(&self, message: &[u8]) -> io::Result<()> {
        self.call(Direction::Write, |worker, key| worker.send(key, message)).await
    }

    pub(super) async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.call(Direction::Read, |worker, key| worker.recv(key, buffer)).await
    }
}
