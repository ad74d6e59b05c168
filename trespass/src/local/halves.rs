//! Halves of connections, for two tasks of one runtime.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;

use super::connection::Connection;
use crate::RecvBuf;

/// The reading half of a [`Stream`](super::Stream). A drop alone does not end the connection.
pub struct ReadHalf(pub(super) Rc<Connection>);

/// The writing half of a [`Stream`](super::Stream). A drop shuts down the writing.
pub struct WriteHalf(pub(super) Rc<Connection>);

/// The receiving half of a [`SeqPacket`](super::SeqPacket). A drop alone does not end the connection.
pub struct RecvHalf(pub(super) Rc<Connection>);

/// The sending half of a [`SeqPacket`](super::SeqPacket). A drop shuts down the sending.
pub struct SendHalf(pub(super) Rc<Connection>);

impl ReadHalf {
    /// [`Stream::read`](super::Stream::read).
    ///
    /// # Errors
    ///
    /// Those of that method.
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).await
    }

    /// [`Stream::read_exact`](super::Stream::read_exact).
    ///
    /// # Errors
    ///
    /// Those of that method.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(buffer).await
    }

    /// [`Stream::recv_buf`](super::Stream::recv_buf).
    ///
    /// # Errors
    ///
    /// Those of that method.
    pub async fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        self.0.recv_buf().await
    }
}

impl WriteHalf {
    /// [`Stream::write`](super::Stream::write).
    ///
    /// # Errors
    ///
    /// Those of that method.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).await
    }

    /// [`Stream::write_all`](super::Stream::write_all).
    ///
    /// # Errors
    ///
    /// Those of that method.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await
    }
}

impl RecvHalf {
    /// [`SeqPacket::recv`](super::SeqPacket::recv).
    ///
    /// # Errors
    ///
    /// Those of that method.
    pub async fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.recv(buffer).await
    }

    /// [`SeqPacket::recv_buf`](super::SeqPacket::recv_buf).
    ///
    /// # Errors
    ///
    /// Those of that method.
    pub async fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        self.0.recv_buf().await
    }
}

impl SendHalf {
    /// [`SeqPacket::send`](super::SeqPacket::send).
    ///
    /// # Errors
    ///
    /// Those of that method.
    pub async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.send(message).await
    }
}

macro_rules! writing_half {
    ($($Half:ident),*) => {$(
        impl Drop for $Half {
            fn drop(&mut self) {
                // A connection that has failed has nothing to shut down.
                let _ = self.0.shutdown(Shutdown::Write);
            }
        }
    )*};
}

writing_half!(WriteHalf, SendHalf);

macro_rules! debug {
    ($($Half:ident),*) => {$(
        impl fmt::Debug for $Half {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.describe(stringify!($Half), f)
            }
        }
    )*};
}

debug!(ReadHalf, WriteHalf, RecvHalf, SendHalf);
