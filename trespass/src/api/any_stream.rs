//! A stream of this crate or of plain TCP, for services whose peers move one after the other.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::api::stream::Stream;
use crate::config::{Builder, Config};
use crate::error::ConnectError;
use crate::handshake::{HandshakeError, HandshakeStep, Transport};
use crate::session::connect::no_address;
use crate::wire::Policy;

/// A stream to a peer that uses this crate, or to one that uses plain TCP.
///
/// A service cannot change all its peers at once. A server that has moved takes both kinds of clients
/// ([`Builder::plain_tcp`], [`Listener::accept_any`](crate::Listener::accept_any)); a client that has
/// moved connects to both kinds of servers ([`Config::connect_any`]).
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::TcpStream;
/// use trespass::{AnyStream, Builder, Transport};
///
/// # fn main() -> std::io::Result<()> {
/// let listener = Builder::new().plain_tcp(true).bind("127.0.0.1:0")?;
/// let addr = listener.local_addr()?;
/// let old_client = std::thread::spawn(move || -> std::io::Result<String> {
///     let mut stream = TcpStream::connect(addr)?;
///     stream.write_all(b"hello")?;
///     let mut answer = String::new();
///     stream.read_to_string(&mut answer)?;
///     Ok(answer)
/// });
///
/// let (mut stream, _) = listener.accept_any()?;
/// assert_eq!(stream.transport(), Transport::PlainTcp);
/// let mut request = [0; 5];
/// stream.read_exact(&mut request)?;
/// stream.write_all(&request.to_ascii_uppercase())?;
/// drop(stream);
/// assert_eq!(old_client.join().unwrap()?, "HELLO");
/// # Ok(())
/// # }
/// ```
///
/// Without encryption and authentication, plain TCP is what it is: take it only from networks where it
/// was taken before.
#[derive(Debug)]
pub enum AnyStream {
    /// The peer uses this crate.
    Trespass(Stream),
    /// The peer uses plain TCP.
    Plain(TcpStream),
}

impl AnyStream {
    /// The transport. For a peer without this crate it is [`Transport::PlainTcp`].
    pub fn transport(&self) -> Transport {
        match self {
            Self::Trespass(stream) => stream.transport(),
            Self::Plain(_) => Transport::PlainTcp,
        }
    }
}

/// Methods that both have.
macro_rules! of_both {
    ($($(#[$doc:meta])* fn $name:ident(&self $(, $argument:ident: $Type:ty)?) -> $Result:ty;)*) => {
        /// The calls of both streams. Their documentation is that of [`Stream`] and of [`TcpStream`].
        impl AnyStream {
            $($(#[$doc])*
            pub fn $name(&self $(, $argument: $Type)?) -> io::Result<$Result> {
                match self {
                    Self::Trespass(stream) => stream.$name($($argument)?),
                    Self::Plain(stream) => stream.$name($($argument)?),
                }
            })*
        }
    };
}

of_both! {
    /// The peer's address.
    ///
    /// # Errors
    ///
    /// The plain connection has ended.
    fn peer_addr(&self) -> SocketAddr;
    /// The own address.
    ///
    /// # Errors
    ///
    /// The plain connection has ended.
    fn local_addr(&self) -> SocketAddr;
    /// Closes one direction or both.
    ///
    /// # Errors
    ///
    /// The plain connection has ended.
    fn shutdown(&self, how: Shutdown) -> ();
    /// Sets whether calls return [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting.
    ///
    /// # Errors
    ///
    /// None for a live connection.
    fn set_nonblocking(&self, nonblocking: bool) -> ();
    /// Sets how long reads wait; `None` for ever.
    ///
    /// # Errors
    ///
    /// A timeout of zero is refused.
    fn set_read_timeout(&self, timeout: Option<Duration>) -> ();
    /// Sets how long writes wait; `None` for ever.
    ///
    /// # Errors
    ///
    /// A timeout of zero is refused.
    fn set_write_timeout(&self, timeout: Option<Duration>) -> ();
    /// Takes the error of the connection that no call has reported.
    ///
    /// # Errors
    ///
    /// The state of the connection cannot be queried.
    fn take_error(&self) -> Option<io::Error>;
}

impl Read for &AnyStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            AnyStream::Trespass(stream) => (&*stream).read(buffer),
            AnyStream::Plain(stream) => (&*stream).read(buffer),
        }
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            AnyStream::Trespass(stream) => (&*stream).read_vectored(buffers),
            AnyStream::Plain(stream) => (&*stream).read_vectored(buffers),
        }
    }
}

impl Write for &AnyStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            AnyStream::Trespass(stream) => (&*stream).write(bytes),
            AnyStream::Plain(stream) => (&*stream).write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            AnyStream::Trespass(stream) => (&*stream).write_vectored(slices),
            AnyStream::Plain(stream) => (&*stream).write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            AnyStream::Trespass(stream) => (&*stream).flush(),
            AnyStream::Plain(stream) => (&*stream).flush(),
        }
    }
}

impl Read for AnyStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for AnyStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

/// The descriptor to wait for. Its [meaning](Stream#impl-AsFd-for-Stream) differs: of a plain stream it
/// is the socket.
#[cfg(unix)]
impl std::os::fd::AsFd for AnyStream {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Trespass(stream) => stream.as_fd(),
            Self::Plain(stream) => stream.as_fd(),
        }
    }
}

#[cfg(unix)]
impl std::os::fd::AsRawFd for AnyStream {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsFd::as_fd(self).as_raw_fd()
    }
}

impl From<Stream> for AnyStream {
    fn from(stream: Stream) -> Self {
        Self::Trespass(stream)
    }
}

impl From<TcpStream> for AnyStream {
    fn from(stream: TcpStream) -> Self {
        Self::Plain(stream)
    }
}

impl Builder {
    /// Connects to either kind of server: [`build`](Self::build), then [`Config::connect_any`].
    ///
    /// # Errors
    ///
    /// Those of both.
    pub fn connect_any(self, addr: impl ToSocketAddrs) -> io::Result<AnyStream> {
        self.build()?.connect_any(addr)
    }
}

impl Config {
    /// Connects a stream to the first address that accepts, also where the server uses plain TCP.
    ///
    /// The first bytes that a server gets are the handshake's. If it answers in another protocol,
    /// closes, or does not answer within [`Builder::handshake_deadline`], this connects again, and sends
    /// nothing. With [`Policy::RequireRdma`] it does not.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect).
    pub fn connect_any(&self, addr: impl ToSocketAddrs) -> io::Result<AnyStream> {
        let mut last = None;
        for address in addr.to_socket_addrs().map_err(ConnectError::Resolve)? {
            match self.connect(address) {
                Ok(stream) => return Ok(AnyStream::Trespass(stream)),
                Err(error) if self.may_connect_plain(address, &error) => match self.connect_tcp(address) {
                    Ok(stream) => return Ok(AnyStream::Plain(stream)),
                    Err(error) => last = Some(error.into()),
                },
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(no_address))
    }

    /// Whether to connect again by plain TCP after a failed connect, which is logged.
    pub(crate) fn may_connect_plain(&self, peer: SocketAddr, error: &io::Error) -> bool {
        let may = self.policy != Policy::RequireRdma && may_be_plain(error);
        if may {
            tracing::info!(%peer, %error, "connects again by plain TCP");
        }
        may
    }
}

/// Whether a server of plain TCP may have caused the error. One that sends back what it gets seems
/// to be a client.
fn may_be_plain(error: &io::Error) -> bool {
    use HandshakeStep::Hello;
    let Some(ConnectError::Handshake { source, .. }) = error.get_ref().and_then(|error| error.downcast_ref())
    else {
        return false;
    };
    matches!(
        source,
        HandshakeError::OtherProtocol(_)
            | HandshakeError::Role(_)
            | HandshakeError::TimedOut { step: Hello, .. }
            | HandshakeError::Closed { step: Hello }
            | HandshakeError::Io { step: Hello, .. }
    )
}
