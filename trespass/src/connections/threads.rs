//! Calls that block.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use super::error::GetError;
use super::handle::{self, Configured, PooledConnection, Sealed};
use super::pool::{Attempts, ConnectionPool, no_address};
use super::state::{Acquired, Granted, Place};
use crate::config::Config;
use crate::{SeqPacket, Stream};

/// Connections whose connects block.
pub trait Connect: Sealed {
    #[doc(hidden)]
    fn connect(config: &Config, addr: SocketAddr) -> io::Result<Self>;
}

impl Sealed for Stream {
    fn is_at_rest(&self) -> bool {
        handle::is_at_rest(&self.0)
    }

    fn restore(&self) -> bool {
        handle::restore(&self.0, true)
    }
}

impl Configured for Stream {}

impl Connect for Stream {
    fn connect(config: &Config, addr: SocketAddr) -> io::Result<Self> {
        config.connect(addr)
    }
}

impl Sealed for SeqPacket {
    fn is_at_rest(&self) -> bool {
        handle::is_at_rest(&self.0)
    }

    fn restore(&self) -> bool {
        handle::restore(&self.0, true)
    }
}

impl Configured for SeqPacket {}

impl Connect for SeqPacket {
    fn connect(config: &Config, addr: SocketAddr) -> io::Result<Self> {
        config.connect_seq_packet(addr)
    }
}

/// Wakes a thread that waits for its turn.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a permit.
fn wait<C>(place: &Place<C>, deadline: Option<Instant>) -> Option<Granted<C>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(granted) = place.poll(&waker) {
            return Some(granted);
        }
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            Some(left) if left.is_zero() => return None,
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
}

/// The calls for [`Stream`] and [`SeqPacket`], which block.
impl<C: Connect> ConnectionPool<C> {
    /// Lends a connection that is open, or makes one. [The module](super#what-get-does) says how.
    ///
    /// # Errors
    ///
    /// All connections are in use, or no host accepts.
    pub fn get(&self) -> Result<PooledConnection<C>, GetError> {
        let (acquired, mut attempts) = self.acquire();
        let mut granted = match acquired {
            Acquired::Now(granted) => granted,
            Acquired::Later(place) => wait(&place, attempts.deadline).ok_or_else(|| self.exhausted())?,
        };
        loop {
            let permit = match self.reuse(granted) {
                Ok(connection) => return Ok(connection),
                Err(permit) => permit,
            };
            match self.connect() {
                Ok(connection) => return Ok(Self::lend_new(permit, connection)),
                Err(error) => thread::sleep(attempts.failed(self.target.retry, error)?),
            }
            // Another call may have returned one by now.
            let found = permit.idle();
            granted = (permit, found);
        }
    }

    /// Closes connections that were idle for too long or are not fit for use, and connects up to the
    /// minimum. It makes one attempt.
    ///
    /// # Errors
    ///
    /// No host accepts.
    pub fn maintain(&self) -> Result<(), GetError> {
        self.shared.expire(Instant::now());
        self.shared.retain(C::is_at_rest);
        while let Some(permit) = self.shared.acquire_missing() {
            let connection = self.connect().map_err(Attempts::only)?;
            permit.count_made();
            permit.put_back(connection, Instant::now());
        }
        Ok(())
    }

    /// Connects to the first address that accepts, of the first host that has one.
    fn connect(&self) -> io::Result<C> {
        let mut last = no_address();
        for host in self.target.hosts.order() {
            let addresses = match self.target.hosts.resolve(host, Instant::now()) {
                Ok(addresses) => addresses,
                Err(error) => {
                    last = self.failed(error);
                    continue;
                }
            };
            for addr in addresses {
                match C::connect(&self.target.config, addr) {
                    Ok(connection) => return Ok(self.accepted(host, connection)),
                    Err(error) => last = self.failed(error),
                }
            }
        }
        Err(last)
    }
}
