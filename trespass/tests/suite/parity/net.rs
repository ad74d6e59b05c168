//! The interface of `std::net` that this crate shares.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use trespass::{Builder, Listener, Policy, Stream, Transport};

use crate::fixture::{Fixture, LONG};

/// A result of which two are compared.
pub(crate) type Seen<T> = Result<T, ErrorKind>;

/// The result without the text of an error, which differs.
pub(crate) fn seen<T>(outcome: io::Result<T>) -> Seen<T> {
    outcome.map_err(|error| error.kind())
}

/// Sockets of one kind.
pub(crate) trait Net: Clone + Send + Sync + 'static {
    type Listener: NetListener<Stream = Self::Stream>;
    type Stream: NetStream;

    /// The word for it in the task of a child process.
    const NAME: &'static str;

    /// A free port at the host's address.
    fn anywhere(&self) -> SocketAddr;

    fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<Self::Listener>;

    /// No call on the stream waits for ever.
    fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<Self::Stream>;

    fn listen(&self) -> (Self::Listener, SocketAddr) {
        let listener = self.bind(self.anywhere()).unwrap();
        let addr = listener.local_addr().unwrap();
        (listener, addr)
    }

    /// The connecting and the accepted end of a connection.
    fn pair(&self) -> (Self::Stream, Self::Stream) {
        let (listener, addr) = self.listen();
        let client = self.connect(addr).unwrap();
        (client, listener.accept().unwrap())
    }
}

pub(crate) trait NetListener: AsFd + Send + Sync + 'static {
    type Stream;

    /// No call on the stream waits for ever.
    fn accept(&self) -> io::Result<Self::Stream>;
    fn local_addr(&self) -> io::Result<SocketAddr>;
    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()>;
}

pub(crate) trait NetStream: Read + Write + AsFd + Send + Sync + Sized + 'static {
    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()>;
    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    fn set_nodelay(&self, nodelay: bool) -> io::Result<()>;
    fn nodelay(&self) -> io::Result<bool>;
    fn peek(&self, buffer: &mut [u8]) -> io::Result<usize>;
    fn take_error(&self) -> io::Result<Option<io::Error>>;
    fn local_addr(&self) -> io::Result<SocketAddr>;
    fn peer_addr(&self) -> io::Result<SocketAddr>;

    /// Has a drop reset the connection.
    fn reset_at_drop(&self);

    /// The stream by reference, for several threads.
    fn shared(&self) -> impl Read + Write + '_;

    /// The descriptor to wait for `EPOLLOUT`.
    fn writable_fd(&self) -> BorrowedFd<'_>;

    fn patient(self) -> Self {
        self.set_read_timeout(Some(LONG)).unwrap();
        self.set_write_timeout(Some(LONG)).unwrap();
        self
    }
}

/// The methods that have the same name and signature.
macro_rules! net_stream {
    ($type:ident { $($rest:item)* }) => {
        impl NetStream for $type {
            fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                $type::set_nonblocking(self, nonblocking)
            }

            fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                $type::set_read_timeout(self, timeout)
            }

            fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                $type::set_write_timeout(self, timeout)
            }

            fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                $type::shutdown(self, how)
            }

            fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
                $type::set_nodelay(self, nodelay)
            }

            fn nodelay(&self) -> io::Result<bool> {
                $type::nodelay(self)
            }

            fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
                $type::peek(self, buffer)
            }

            fn take_error(&self) -> io::Result<Option<io::Error>> {
                $type::take_error(self)
            }

            fn local_addr(&self) -> io::Result<SocketAddr> {
                $type::local_addr(self)
            }

            fn peer_addr(&self) -> io::Result<SocketAddr> {
                $type::peer_addr(self)
            }

            fn shared(&self) -> impl Read + Write + '_ {
                self
            }

            $($rest)*
        }
    };
}

macro_rules! net_listener {
    ($type:ident, $stream:ident) => {
        impl NetListener for $type {
            type Stream = $stream;

            fn accept(&self) -> io::Result<$stream> {
                $type::accept(self).map(|(stream, _)| stream.patient())
            }

            fn local_addr(&self) -> io::Result<SocketAddr> {
                $type::local_addr(self)
            }

            fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                $type::set_nonblocking(self, nonblocking)
            }
        }
    };
}

/// `std::net`.
#[derive(Clone, Debug)]
pub(crate) struct Std;

impl Net for Std {
    type Listener = TcpListener;
    type Stream = TcpStream;

    const NAME: &'static str = "std";

    fn anywhere(&self) -> SocketAddr {
        ([127, 0, 0, 1], 0).into()
    }

    fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::bind(addr)
    }

    fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<TcpStream> {
        TcpStream::connect(addr).map(NetStream::patient)
    }
}

net_listener!(TcpListener, TcpStream);
net_stream!(TcpStream {
    fn reset_at_drop(&self) {
        socket2::SockRef::from(self).set_linger(Some(Duration::ZERO)).unwrap();
    }

    fn writable_fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
});

/// This crate, over one transport.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    anywhere: SocketAddr,
    builder: Builder,
    /// The transport of each connection, if the case depends on it.
    expected: Option<Transport>,
}

impl Own {
    pub(crate) fn new(fixture: &Fixture) -> Self {
        let expected = if fixture.is_tcp() { Transport::Tcp } else { Transport::Rdma };
        Self { anywhere: fixture.anywhere(), builder: fixture.builder(), expected: Some(expected) }
    }

    /// With changed parameters.
    pub(crate) fn with(mut self, change: impl FnOnce(Builder) -> Builder) -> Self {
        self.builder = change(self.builder);
        self
    }

    /// Takes either transport, unless the fixture's is TCP.
    pub(crate) fn with_fallback(mut self) -> Self {
        if self.expected.take() == Some(Transport::Rdma) {
            self.builder = self.builder.policy(Policy::Auto);
        }
        self
    }

    /// Falls back to TCP each time.
    #[cfg(feature = "rdma")]
    pub(crate) fn falling_back(self) -> Self {
        Self { expected: Some(Transport::Tcp), ..self.with_fallback() }
    }
}

impl Net for Own {
    type Listener = Listener;
    type Stream = Stream;

    const NAME: &'static str = "own";

    fn anywhere(&self) -> SocketAddr {
        self.anywhere
    }

    fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
        self.builder.clone().bind(addr)
    }

    fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<Stream> {
        let stream = self.builder.clone().connect(addr)?;
        if let Some(expected) = self.expected {
            assert_eq!(stream.transport(), expected, "{:?}", stream.fallback_reason());
        }
        Ok(stream.patient())
    }
}

net_listener!(Listener, Stream);
net_stream!(Stream {
    fn reset_at_drop(&self) {
        self.set_linger(Some(Duration::ZERO)).unwrap();
    }

    fn writable_fd(&self) -> BorrowedFd<'_> {
        Stream::writable_fd(self).unwrap()
    }
});
