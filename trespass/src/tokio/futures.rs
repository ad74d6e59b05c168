//! The traits of futures-io.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{AnyStream, OwnedReadHalf, OwnedWriteHalf, ReadHalf, Stream, WriteHalf};

macro_rules! reads {
    ($type:ty) => {
        /// With the feature `futures`.
        impl futures_io::AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                let mut buffer = ReadBuf::new(buffer);
                AsyncRead::poll_read(self, context, &mut buffer).map_ok(|()| buffer.filled().len())
            }
        }
    };
}

macro_rules! writes {
    ($type:ty) => {
        /// With the feature `futures`.
        impl futures_io::AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                AsyncWrite::poll_write(self, context, bytes)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                AsyncWrite::poll_write_vectored(self, context, slices)
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                AsyncWrite::poll_flush(self, context)
            }

            fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                AsyncWrite::poll_shutdown(self, context)
            }
        }
    };
}

reads!(AnyStream);
writes!(AnyStream);
reads!(Stream);
writes!(Stream);
reads!(ReadHalf<'_>);
writes!(WriteHalf<'_>);
reads!(OwnedReadHalf);
writes!(OwnedWriteHalf);
