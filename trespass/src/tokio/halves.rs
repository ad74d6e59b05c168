//! The two halves of a connection, for two futures or two tasks.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::seq_packet::SeqPacket;
use super::stream::Stream;
use crate::session::buffers::Part;

/// The half of a [`Stream`] that reads, by [`Stream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a>(pub(super) &'a Stream);

/// The half of a [`Stream`] that writes, by [`Stream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a>(pub(super) &'a Stream);

/// For the calls that take `&self`.
impl AsRef<Stream> for ReadHalf<'_> {
    fn as_ref(&self) -> &Stream {
        self.0
    }
}

/// For the calls that take `&self`.
impl AsRef<Stream> for WriteHalf<'_> {
    fn as_ref(&self) -> &Stream {
        self.0
    }
}

macro_rules! owned_halves {
    ($type:ident, $receiving:ident, $sending:ident, $takes:literal, $gives:literal) => {
        #[doc = $takes]
        ///
        /// The connection is closed when both halves are dropped. A drop of this half alone tells the
        /// peer nothing.
        pub struct $receiving(pub(super) Arc<$type>);

        #[doc = $gives]
        ///
        /// A drop shuts the sending down: the peer reads the end after what was sent. The connection
        /// is closed when both halves are dropped.
        pub struct $sending {
            connection: Arc<$type>,
            shuts_down: bool,
        }

        impl $receiving {
            /// Joins the two halves.
            ///
            /// # Errors
            ///
            /// They are of different connections. The error has them.
            pub fn reunite(self, mut other: $sending) -> Result<$type, ($receiving, $sending)> {
                if !Arc::ptr_eq(&self.0, &other.connection) {
                    return Err((self, other));
                }
                other.shuts_down = false;
                drop(other);
                let Self(connection) = self;
                Ok(Arc::into_inner(connection).expect("a connection has two halves, and one is gone"))
            }
        }

        impl $sending {
            pub(super) fn new(connection: Arc<$type>) -> Self {
                Self { connection, shuts_down: true }
            }
        }

        impl Drop for $sending {
            fn drop(&mut self) {
                if self.shuts_down
                    && let Err(error) = self.connection.shutdown_of_half()
                {
                    tracing::debug!(connection = ?self.connection, %error, "the end is not sent");
                }
            }
        }

        /// For the calls that take `&self`.
        impl AsRef<$type> for $receiving {
            fn as_ref(&self) -> &$type {
                &self.0
            }
        }

        /// For the calls that take `&self`.
        impl AsRef<$type> for $sending {
            fn as_ref(&self) -> &$type {
                &self.connection
            }
        }

        impl fmt::Debug for $receiving {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($receiving)).field(&self.0).finish()
            }
        }

        impl fmt::Debug for $sending {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($sending)).field(&self.connection).finish()
            }
        }
    };
}

owned_halves!(
    Stream,
    OwnedReadHalf,
    OwnedWriteHalf,
    "The half of a [`Stream`] that reads, by [`Stream::into_split`].",
    "The half of a [`Stream`] that writes, by [`Stream::into_split`]."
);
owned_halves!(
    SeqPacket,
    OwnedRecvHalf,
    OwnedSendHalf,
    "The half of a [`SeqPacket`] that receives, by [`SeqPacket::into_split`].",
    "The half of a [`SeqPacket`] that sends, by [`SeqPacket::into_split`]."
);

impl Stream {
    fn shutdown_of_half(&self) -> io::Result<()> {
        self.shutdown_write()
    }
}

impl SeqPacket {
    fn shutdown_of_half(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

macro_rules! reads {
    ($type:ty) => {
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.0.poll_read_shared(context, buffer)
            }
        }
    };
}

reads!(ReadHalf<'_>);
reads!(OwnedReadHalf);

macro_rules! writes {
    ($type:ty, $stream:tt) => {
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.$stream.poll_write_shared(context, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.$stream.poll_write_shared(context, slices)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.$stream.poll_flush_shared(context)
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.$stream.shutdown_write())
            }
        }
    };
}

writes!(WriteHalf<'_>, 0);
writes!(OwnedWriteHalf, connection);

impl OwnedRecvHalf {
    /// Receives a message, as [`SeqPacket::recv`] does.
    ///
    /// # Cancel safety
    ///
    /// As that of [`SeqPacket::recv`].
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::recv`].
    pub async fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.recv_shared(buffer).await
    }

    /// Receives the arrived bytes of a message, or its next part, as [`SeqPacket::recv_part`] does.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv), except for sizes.
    pub async fn recv_part(&mut self, buffer: &mut [u8]) -> io::Result<Part> {
        self.0.recv_part_shared(buffer).await
    }
}

impl OwnedSendHalf {
    /// Sends a message, as [`SeqPacket::send`] does.
    ///
    /// # Cancel safety
    ///
    /// As that of [`SeqPacket::send`].
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::send`].
    pub async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.connection.send_shared(message).await
    }

    /// Sends the next bytes of a message of `total` bytes, as [`SeqPacket::send_part`] does.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::send_part`].
    pub async fn send_part(&mut self, total: u64, part: &[u8]) -> io::Result<usize> {
        self.connection.send_part_shared(total, part).await
    }
}
