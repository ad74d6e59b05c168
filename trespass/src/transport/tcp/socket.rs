//! The system calls of a connection's socket.

use std::io::{self, IoSlice, Read};
use std::net::Shutdown;

use mio::net::TcpStream;
use socket2::SockRef;

/// A write to a peer that is gone is an error, not a signal that ends a C program.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NO_SIGNAL: i32 = libc::MSG_NOSIGNAL;
/// Elsewhere this is an option of the socket, which the standard library sets.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const NO_SIGNAL: i32 = 0;

/// A connected, non-blocking socket.
pub(crate) trait Socket: Read {
    /// `sendmsg`, without SIGPIPE if the peer is gone.
    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    fn shutdown(&mut self, how: Shutdown) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_io(|| SockRef::from(&*self).send_vectored_with_flags(slices, NO_SIGNAL))
    }

    fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        TcpStream::shutdown(self, how)
    }
}
