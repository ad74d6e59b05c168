//! The calls that tasks await, whatever their runtime.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::error::GetError;
use super::handle::{PooledConnection, Sealed};
use super::pool::{Attempts, ConnectionPool, no_address};
use super::state::Acquired;
use crate::config::Config;

/// Connections whose connects are awaited, and what their runtime does.
pub trait ConnectInTask: Sealed {
    #[doc(hidden)]
    fn connect(config: &Config, addr: SocketAddr) -> impl Future<Output = io::Result<Self>>;

    #[doc(hidden)]
    fn sleep(time: Duration) -> impl Future<Output = ()>;

    /// Runs a future until then at most.
    #[doc(hidden)]
    fn until<T>(deadline: Instant, future: impl Future<Output = T>) -> impl Future<Output = Option<T>>;

    /// Runs what may take long on another thread.
    #[doc(hidden)]
    fn on_thread<T: Send + 'static>(
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> impl Future<Output = io::Result<T>>;
}

impl<C: ConnectInTask> ConnectionPool<C> {
    pub(crate) async fn get_in_task(&self) -> Result<PooledConnection<C>, GetError> {
        let (acquired, mut attempts) = self.acquire();
        let mut granted = match acquired {
            Acquired::Now(granted) => granted,
            Acquired::Later(place) => {
                let wait = poll_fn(|context| place.poll(context.waker()));
                match attempts.deadline {
                    Some(deadline) => C::until(deadline, wait).await.ok_or_else(|| self.exhausted())?,
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
                Err(error) => C::sleep(attempts.failed(self.target.retry, error)?).await,
            }
            // Another task may have returned one by now.
            let found = permit.idle();
            granted = (permit, found);
        }
    }

    pub(super) async fn maintain_in_task(&self) -> Result<(), GetError> {
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
        C::on_thread(move || target.hosts.resolve(host, Instant::now())).await
    }
}
