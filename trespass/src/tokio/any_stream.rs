//! A stream of this crate or of plain TCP, for tasks.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use ::tokio::net::{TcpStream, ToSocketAddrs};

use super::connect;
use super::stream::Stream;
use crate::config::{Builder, Config};
use crate::handshake::Transport;

/// A stream to a peer that uses this crate, or to one that uses plain TCP, as the blocking
/// [`AnyStream`](crate::AnyStream) is.
///
/// ```
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use trespass::tokio::{AnyStream, Listener};
/// use trespass::{Builder, Transport};
///
/// async fn greet() -> std::io::Result<()> {
///     let config = Builder::new().plain_tcp(true).build()?;
///     let listener = Listener::bind_with(&config, "127.0.0.1:0").await?;
///     let mut old_client = tokio::net::TcpStream::connect(listener.local_addr()?).await?;
///     old_client.write_all(b"hello").await?;
///
///     let (mut stream, _) = listener.accept_any().await?;
///     assert_eq!(stream.transport(), Transport::PlainTcp);
///     assert!(matches!(stream, AnyStream::Plain(_)));
///     let mut request = [0; 5];
///     stream.read_exact(&mut request).await?;
///     assert_eq!(&request, b"hello");
///     Ok(())
/// }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(greet())?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// `tokio::io::split` makes halves for two tasks. A read or write that is dropped before it is ready
/// has moved no bytes, with both kinds of peers.
#[derive(Debug)]
pub enum AnyStream {
    /// The peer uses this crate.
    Trespass(Stream),
    /// The peer uses plain TCP.
    Plain(TcpStream),
}

impl AnyStream {
    /// Connects with default parameters, also where the server uses plain TCP.
    ///
    /// # Cancel safety
    ///
    /// A drop of the future gives the connect up.
    ///
    /// # Errors
    ///
    /// Those of [`connect_with`](Self::connect_with), or an environment variable has an invalid value.
    #[doc(alias = "connect_any")]
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(&Builder::new().build()?, addr).await
    }

    /// Connects to the first address that accepts, also where the server uses plain TCP, as
    /// [`Config::connect_any`] does.
    ///
    /// # Cancel safety
    ///
    /// A drop of the future gives the connect up.
    ///
    /// # Errors
    ///
    /// Those of [`Config::connect_any`].
    #[doc(alias = "connect_any")]
    pub async fn connect_with(config: &Config, addr: impl ToSocketAddrs) -> io::Result<Self> {
        let config = &Arc::new(config.clone());
        connect::to_first(addr, |addr| async move {
            let starting = config.clone();
            match connect::to(addr, move |addr| starting.start_connect(addr)).await {
                Ok(stream) => Ok(Self::Trespass(Stream::from_blocking(stream)?)),
                Err(error) if config.may_connect_plain(addr, &error) => plain(addr, config.clone()).await,
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Takes a stream that was made without a runtime.
    ///
    /// # Errors
    ///
    /// The system has no free descriptors.
    ///
    /// # Panics
    ///
    /// The caller is in no runtime that has I/O.
    pub fn from_blocking(stream: crate::AnyStream) -> io::Result<Self> {
        match stream {
            crate::AnyStream::Trespass(stream) => Stream::from_blocking(stream).map(Self::Trespass),
            crate::AnyStream::Plain(stream) => {
                stream.set_nonblocking(true)?;
                TcpStream::from_std(stream).map(Self::Plain)
            }
        }
    }

    /// Gives the stream back, in blocking mode.
    ///
    /// # Errors
    ///
    /// None for a live connection, on the process that made it.
    pub fn into_blocking(self) -> io::Result<crate::AnyStream> {
        match self {
            Self::Trespass(stream) => stream.into_blocking().map(crate::AnyStream::Trespass),
            Self::Plain(stream) => {
                let stream = stream.into_std()?;
                stream.set_nonblocking(false)?;
                Ok(crate::AnyStream::Plain(stream))
            }
        }
    }

    /// The transport. For a peer without this crate it is [`Transport::PlainTcp`].
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self {
            Self::Trespass(stream) => stream.transport(),
            Self::Plain(_) => Transport::PlainTcp,
        }
    }

    /// The peer's address.
    ///
    /// # Errors
    ///
    /// The plain connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Trespass(stream) => stream.peer_addr(),
            Self::Plain(stream) => stream.peer_addr(),
        }
    }

    /// The own address.
    ///
    /// # Errors
    ///
    /// The plain connection has ended.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Trespass(stream) => stream.local_addr(),
            Self::Plain(stream) => stream.local_addr(),
        }
    }
}

/// The server has just taken a connection, so that a thread connects in no time. It needs no timer of
/// the runtime.
async fn plain(address: SocketAddr, config: Arc<Config>) -> io::Result<AnyStream> {
    let connect = move || config.connect_tcp(address).map_err(io::Error::from);
    AnyStream::from_blocking(connect::on_blocking_thread(connect).await?.into())
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

impl AsyncRead for AnyStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Trespass(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for AnyStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Trespass(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Trespass(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Trespass(stream) => Pin::new(stream).poll_flush(context),
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Trespass(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
