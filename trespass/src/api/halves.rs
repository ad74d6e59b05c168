//! The two halves of a connection, for two threads.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use crate::api::seq_packet::SeqPacket;
use crate::api::stream::Stream;
use crate::session::buffers::{Part, RecvBuf};
use crate::session::caller::Caller;
use crate::session::connection::{Connection, Direction};
use crate::session::times::moved;

macro_rules! halves {
    ($type:ident, $receiving:ident, $sending:ident, $takes:literal, $gives:literal) => {
        #[doc = $takes]
        ///
        /// The connection is closed when both halves are dropped. A drop of this half alone tells the
        /// peer nothing.
        pub struct $receiving(Arc<$type>);

        #[doc = $gives]
        ///
        /// A drop shuts the sending down: the peer reads the end after what was sent. The connection
        /// is closed when both halves are dropped.
        pub struct $sending {
            connection: Arc<$type>,
            shuts_down: bool,
        }

        impl $type {
            /// Splits the connection in two halves, which two threads can use at the same time. Their
            /// calls take turns by a lock. A call that waits does not keep the other half out.
            #[must_use]
            pub fn split(self) -> ($receiving, $sending) {
                let connection = Arc::new(self);
                ($receiving(connection.clone()), $sending { connection, shuts_down: true })
            }
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

        impl Drop for $sending {
            fn drop(&mut self) {
                if self.shuts_down
                    && let Err(error) = self.connection.shutdown(Shutdown::Write)
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

halves!(
    Stream,
    ReadHalf,
    WriteHalf,
    "The half of a [`Stream`] that reads.",
    "The half of a [`Stream`] that writes."
);
halves!(
    SeqPacket,
    RecvHalf,
    SendHalf,
    "The half of a [`SeqPacket`] that receives.",
    "The half of a [`SeqPacket`] that sends."
);

impl ReadHalf {
    /// Receives without a copy, as [`Stream::recv_buf`] does.
    ///
    /// # Errors
    ///
    /// Those of a read.
    pub fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        let receive = |caller: &mut Caller<'_>| caller.recv_chunk();
        self.0.0.shared_transfer(Direction::Read, receive, |bytes| moved(&bytes.len()))
    }
}

impl Read for ReadHalf {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self.0).read_vectored(buffers)
    }
}

impl Write for WriteHalf {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.connection).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self.connection).write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.connection).flush()
    }
}

impl RecvHalf {
    /// Receives a message, as [`SeqPacket::recv`] does.
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::recv`].
    pub fn recv(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.0.shared_transfer(Direction::Read, |caller| caller.recv(buffer), |len| Some(*len))
    }

    /// Receives the arrived bytes of a message, or its next part, as [`SeqPacket::recv_part`] does.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv), except for sizes.
    pub fn recv_part(&mut self, buffer: &mut [u8]) -> io::Result<Part> {
        self.0.0.recv_part_shared(buffer)
    }

    /// Receives a message without a copy, as [`SeqPacket::recv_buf`] does.
    ///
    /// # Errors
    ///
    /// Those of [`recv`](Self::recv).
    pub fn recv_buf(&mut self) -> io::Result<RecvBuf> {
        let receive = |caller: &mut Caller<'_>| caller.call(Direction::Read, Connection::recv_buf);
        self.0.0.shared_transfer(Direction::Read, receive, |message| Some(message.len()))
    }
}

impl SendHalf {
    /// Sends a message, as [`SeqPacket::send`] does.
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::send`].
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.send_vectored(&[IoSlice::new(message)])
    }

    /// Sends one message from several buffers.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send).
    pub fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.connection.0.send_shared(slices)
    }

    /// Sends the next bytes of a message of `total` bytes, as [`SeqPacket::send_part`] does.
    ///
    /// # Errors
    ///
    /// Those of [`SeqPacket::send_part`].
    pub fn send_part(&mut self, total: u64, part: &[u8]) -> io::Result<usize> {
        self.connection.0.send_part_shared(total, part)
    }
}
