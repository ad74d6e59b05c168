//! Streams of a runtime.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::connection::Connection;
use super::halves::{ReadHalf, WriteHalf};
use crate::session::connection::Direction;
use crate::{Block, Completion, FallbackReason, Kind, RecvBuf, SendRefused, Stats, Ticket, Transport};

/// A stream of bytes whose calls are awaited on one thread. It also has the traits of futures-io.
///
/// The runtime sends what calls have written once its tasks wait, so no flush is needed. A drop closes
/// the stream: what was written is sent.
pub struct Stream(pub(crate) Connection);

impl Stream {
    /// Connects with the runtime's parameters.
    ///
    /// # Errors
    ///
    /// Those of [`Config::connect`](crate::Config::connect).
    ///
    /// # Panics
    ///
    /// Outside of [`Runtime::block_on`](super::Runtime::block_on).
    pub async fn connect(addr: SocketAddr) -> io::Result<Self> {
        Connection::connect(addr, Kind::Stream).await.map(Self)
    }

    /// Reads what has arrived. 0 is the end.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).await
    }

    /// Reads so many bytes. A drop loses those that it has read.
    ///
    /// # Errors
    ///
    /// The peer has sent less ([`UnexpectedEof`](io::ErrorKind::UnexpectedEof)), or the connection failed.
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(buffer).await
    }

    /// Receives the bytes of one block without a copy. An empty one is the end.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub async fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        self.0.recv_buf().await
    }

    /// Writes as much as there is room for.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).await
    }

    /// Writes all. After a drop, part of it may have been written.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await
    }

    /// Splits the stream, for two tasks. It is closed when both halves are dropped.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let connection = Rc::new(self.0);
        (ReadHalf(connection.clone()), WriteHalf(connection))
    }
}

common_calls!(Stream);

impl Connection {
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.call(Direction::Read, |worker, key| worker.read(key, buffer)).await
    }

    pub(super) async fn read_exact(&self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read(buffer).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => buffer = &mut buffer[read..],
            }
        }
        Ok(())
    }

    pub(super) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.call(Direction::Write, |worker, key| worker.write(key, bytes)).await
    }

    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write(bytes).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => bytes = &bytes[written..],
            }
        }
        Ok(())
    }

    pub(super) async fn recv_buf(&self) -> io::Result<RecvBuf> {
        self.call(Direction::Read, |worker, key| worker.recv_buf(key)).await
    }

    pub(super) async fn send_buf(&self, block: Block, len: usize) -> Result<Ticket, SendRefused> {
        let mut block = Some(block);
        let sent = self.call(Direction::Write, |worker, key| {
            let own = block.take().ok_or(io::ErrorKind::InvalidInput)?;
            worker.send_buf(key, own, len).map_err(|refused| {
                block = Some(refused.block);
                refused.error
            })
        });
        let sent = sent.await;
        match (sent, block) {
            (Ok(ticket), _) => Ok(ticket),
            (Err(error), Some(block)) => Err(SendRefused { error, block }),
            (Err(error), None) => unreachable!("a refused call returns the block: {error}"),
        }
    }

    pub(crate) fn poll_read(&self, context: &Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_call(Direction::Read, context, |worker, key| worker.read(key, buffer))
    }

    pub(crate) fn poll_write(&self, context: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_call(Direction::Write, context, |worker, key| worker.write(key, bytes))
    }

    fn close(&self) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown(Shutdown::Write))
    }
}

/// The traits of futures-io. A flush has nothing to do, because the runtime sends at once.
macro_rules! futures_io {
    (read $Type:ty) => {
        impl futures_io::AsyncRead for $Type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.0.poll_read(context, buffer)
            }
        }
    };
    (write $Type:ty) => {
        impl futures_io::AsyncWrite for $Type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.0.poll_write(context, bytes)
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            /// Shuts down the writing.
            fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.0.close()
            }
        }
    };
}

futures_io!(read Stream);
futures_io!(write Stream);
futures_io!(read ReadHalf);
futures_io!(write WriteHalf);
