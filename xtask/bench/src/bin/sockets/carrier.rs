//! The carriers of connections, and streams and listeners over each of them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use trespass::{Builder, Policy, Transport};
use xtask_bench::process::HOST;

/// After this time without progress a call fails.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// `std::net`.
    Std,
    /// trespass over TCP.
    Tcp,
    /// trespass over queue pairs.
    Rdma,
}

pub(crate) enum Stream {
    Std(TcpStream),
    Trespass(Box<trespass::Stream>),
}

pub(crate) enum CarrierListener {
    Std(TcpListener),
    Trespass(trespass::Listener),
}

impl Carrier {
    /// The name in arguments and samples.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Std => "std",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Self> {
        let found = [Self::Std, Self::Tcp, Self::Rdma].into_iter().find(|carrier| carrier.name() == name);
        found.with_context(|| format!("not a carrier: {name}"))
    }

    /// trespass's parameters: the defaults, without a fallback that would hide another transport.
    fn builder(self) -> Builder {
        Builder::new().policy(if self == Self::Rdma { Policy::RequireRdma } else { Policy::TcpOnly })
    }

    pub(crate) fn listen(self) -> io::Result<CarrierListener> {
        Ok(match self {
            Self::Std => CarrierListener::Std(TcpListener::bind((HOST, 0))?),
            Self::Tcp | Self::Rdma => CarrierListener::Trespass(self.builder().bind((HOST, 0))?),
        })
    }

    pub(crate) fn connect(self, port: u16) -> Result<Stream> {
        let address = SocketAddr::from((HOST, port));
        let stream = match self {
            Self::Std => Stream::Std(TcpStream::connect(address)?),
            Self::Tcp | Self::Rdma => Stream::Trespass(Box::new(self.builder().connect(address)?)),
        };
        stream.check(self)?;
        stream.set_timeout()?;
        Ok(stream)
    }
}

impl CarrierListener {
    pub(crate) fn port(&self) -> io::Result<u16> {
        Ok(match self {
            Self::Std(listener) => listener.local_addr()?.port(),
            Self::Trespass(listener) => listener.local_addr()?.port(),
        })
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        let stream = match self {
            Self::Std(listener) => Stream::Std(listener.accept()?.0),
            Self::Trespass(listener) => Stream::Trespass(Box::new(listener.accept()?.0)),
        };
        stream.set_timeout()?;
        Ok(stream)
    }
}

impl Stream {
    /// Fails if trespass uses another transport than the measured one.
    fn check(&self, carrier: Carrier) -> Result<()> {
        let Self::Trespass(stream) = self else { return Ok(()) };
        let wanted = if carrier == Carrier::Rdma { Transport::Rdma } else { Transport::Tcp };
        ensure!(stream.transport() == wanted, "uses {} instead of {wanted}", stream.transport());
        Ok(())
    }

    fn set_timeout(&self) -> io::Result<()> {
        match self {
            Self::Std(stream) => stream.set_read_timeout(Some(TIMEOUT)),
            Self::Trespass(stream) => stream.set_read_timeout(Some(TIMEOUT)),
        }
    }

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Std(stream) => stream.set_nonblocking(true),
            Self::Trespass(stream) => stream.set_nonblocking(true),
        }
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn request<const FLUSH: bool>(&mut self) -> Result<()> {
        let mut buffer = [7; crate::REQUEST];
        self.write_all(&buffer)?;
        if FLUSH {
            self.flush()?;
        }
        self.read_exact(&mut buffer)?;
        Ok(())
    }

    /// Answers requests until the peer's end. Returns how many there were.
    pub(crate) fn answer_all(&mut self) -> Result<u64> {
        let (mut buffer, mut filled, mut answered) = ([0; crate::REQUEST], 0, 0);
        loop {
            match self.read(&mut buffer[filled..])? {
                0 if filled == 0 => return Ok(answered),
                0 => bail!("the end came within a request"),
                read => filled += read,
            }
            if filled == buffer.len() {
                self.write_all(&buffer)?;
                (filled, answered) = (0, answered + 1);
            }
        }
    }

    /// Answers one request.
    pub(crate) fn answer_one(&mut self) -> io::Result<()> {
        let mut buffer = [0; crate::REQUEST];
        self.read_exact(&mut buffer)?;
        self.write_all(&buffer)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Std(stream) => stream.read(buffer),
            Self::Trespass(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Std(stream) => stream.write(buffer),
            Self::Trespass(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Std(stream) => stream.flush(),
            Self::Trespass(stream) => stream.flush(),
        }
    }
}
