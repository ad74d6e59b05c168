//! Calls that tasks of tokio await.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use super::error::GetError;
use super::handle::{Owner, PooledConnection, Sealed};
use super::pool::{Attempts, ConnectionPool, no_address};
use super::state::Acquired;
use crate::config::Config;
use crate::tokio::{SeqPacket, Stream, on_blocking_thread};

/// Connections whose connects are awaited.
pub trait ConnectInTask: Sealed {
    #[doc(hidden)]
    fn connect(config: &Config, addr: SocketAddr) -> impl Future<Output = io::Result<Self>> + Send;
}

impl<C: ConnectInTask> ConnectionPool<C> {
    async fn get_in_task(&self) -> Result<PooledConnection<C>, GetError> {
        let (acquired, mut attempts) = self.acquire();
        let mut granted = match acquired {
            Acquired::Now(granted) => granted,
            Acquired::Later(place) => {
                let wait = poll_fn(|context| place.poll(context.waker()));
                match attempts.deadline {
                    Some(deadline) => {
                        tokio::time::timeout_at(deadline.into(), wait).await.map_err(|_| self.exhausted())?
                    }
                    None => wait.await,
                }
            }
        };
        loop {
            let permit = match self.reuse(granted) {
                Ok(connection) => return Ok(connection),
                Err(permit) => permit,
            };
            match self.connect_in_task().await {
                Ok(connection) => return Ok(Self::lend_new(permit, connection)),
                Err(error) => tokio::time::sleep(attempts.failed(self.target.retry, error)?).await,
            }
            // Another task may have returned one by now.
            let found = permit.idle();
            granted = (permit, found);
        }
    }

    async fn maintain_in_task(&self) -> Result<(), GetError> {
        self.shared.expire(Instant::now());
        self.shared.retain(C::is_at_rest);
        while let Some(permit) = self.shared.acquire_missing() {
            let connection = self.connect_in_task().await.map_err(Attempts::only)?;
            permit.count_made();
            permit.put_back(connection, Instant::now());
        }
        Ok(())
    }

    /// Connects to the first address that accepts, of the first host that has one.
    async fn connect_in_task(&self) -> io::Result<C> {
        let mut last = no_address();
        for host in self.target.hosts.order() {
            let addresses = match self.resolve_in_task(host).await {
                Ok(addresses) => addresses,
                Err(error) => {
                    last = self.failed(error);
                    continue;
                }
            };
            for addr in addresses {
                match C::connect(&self.target.config, addr).await {
                    Ok(connection) => return Ok(self.accepted(host, connection)),
                    Err(error) => last = self.failed(error),
                }
            }
        }
        Err(last)
    }

    async fn resolve_in_task(&self, host: usize) -> io::Result<Vec<SocketAddr>> {
        if let Some(known) = self.target.hosts.known(host, Instant::now()) {
            return Ok(known);
        }
        let target = self.target.clone();
        on_blocking_thread(move || target.hosts.resolve(host, Instant::now())).await
    }
}

macro_rules! in_tasks {
    ($type:ident) => {
        impl Sealed for $type {
            const BLOCKS: bool = false;

            fn owner(&self) -> Owner<'_> {
                Owner(self.owner())
            }
        }

        impl ConnectInTask for $type {
            fn connect(config: &Config, addr: SocketAddr) -> impl Future<Output = io::Result<Self>> + Send {
                Self::connect_with(config, addr)
            }
        }

        /// The calls for connections of `trespass::tokio`. A pool belongs to the runtime of its first
        /// connection, which needs I/O and time.
        impl ConnectionPool<$type> {
            /// Lends a connection that is open, or makes one. [The module](super#what-get-does) says
            /// how.
            ///
            /// # Cancel safety
            ///
            /// A drop of the future loses nothing: it leaves the queue, passes a connection that it
            /// was granted to the next call, and gives a connect up.
            ///
            /// # Errors
            ///
            /// All connections are in use, or no host accepts.
            pub async fn get(&self) -> Result<PooledConnection<$type>, GetError> {
                self.get_in_task().await
            }

            /// Closes connections that were idle for too long or are not fit for use, and connects up
            /// to the minimum. It makes one attempt.
            ///
            /// # Cancel safety
            ///
            /// A drop of the future gives a connect up.
            ///
            /// # Errors
            ///
            /// No host accepts.
            pub async fn maintain(&self) -> Result<(), GetError> {
                self.maintain_in_task().await
            }
        }
    };
}

in_tasks!(Stream);
in_tasks!(SeqPacket);
