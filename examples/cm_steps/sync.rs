//! Synchronises client and server before each step, by bytes over TCP as in rdma-core's program.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::program::Failure;

use super::steps::CmStep;

/// The TCP connection to the other side.
#[derive(Debug)]
pub struct Sync(TcpStream);

impl Sync {
    /// Connects to a server; `None` if nothing listens there, because the server is of an earlier
    /// release.
    ///
    /// # Errors
    ///
    /// The connection fails for another reason.
    pub fn connect(server: SocketAddr) -> Result<Option<Self>, Failure> {
        match TcpStream::connect(server) {
            Ok(stream) => Self::new(stream).map(Some),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(None),
            Err(error) => Err(Failure::setup(format_args!("cannot connect to {server} by TCP: {error}"))),
        }
    }

    /// Accepts a client that has connected already.
    ///
    /// # Errors
    ///
    /// The client is gone again.
    pub fn accept(listener: &TcpListener) -> Result<Self, Failure> {
        Self::new(listener.accept()?.0)
    }

    fn new(stream: TcpStream) -> Result<Self, Failure> {
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// For the client: announces that it is ready for the step after `after`, and waits for the
    /// server.
    ///
    /// # Errors
    ///
    /// The server is gone, or at another step.
    pub fn propose(&mut self, after: Option<CmStep>) -> Result<(), Failure> {
        self.0.write_all(&[number(after)]).map_err(lost)?;
        self.expect(after)
    }

    /// For the server: waits for the client's announcement, and answers it.
    ///
    /// # Errors
    ///
    /// The client is gone, or at another step.
    pub fn agree(&mut self, after: Option<CmStep>) -> Result<(), Failure> {
        self.expect(after)?;
        self.0.write_all(&[number(after)]).map_err(lost)
    }

    fn expect(&mut self, after: Option<CmStep>) -> Result<(), Failure> {
        let mut byte = [0];
        self.0.read_exact(&mut byte).map_err(lost)?;
        if byte == [number(after)] {
            return Ok(());
        }
        Err(Failure::work(format_args!(
            "the other side is after step {}, this one after step {}: it may be of another release",
            byte[0],
            number(after)
        )))
    }
}

fn number(after: Option<CmStep>) -> u8 {
    after.map_or(0, |step| step as u8)
}

fn lost(error: io::Error) -> Failure {
    Failure::work(format_args!("the other side is gone: {error}"))
}
