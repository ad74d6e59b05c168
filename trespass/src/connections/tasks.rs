//! Calls that tasks of tokio await.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::awaited::ConnectInTask;
use super::error::GetError;
use super::handle::{self, Configured, PooledConnection, Sealed};
use super::pool::ConnectionPool;
use crate::config::Config;
use crate::tokio::{SeqPacket, Stream, on_blocking_thread};

macro_rules! in_tasks {
    ($type:ident) => {
        impl Sealed for $type {
            fn is_at_rest(&self) -> bool {
                handle::is_at_rest(self.owner())
            }

            fn restore(&self) -> bool {
                handle::restore(self.owner(), false)
            }
        }

        impl Configured for $type {}

        impl ConnectInTask for $type {
            async fn connect(config: &Config, addr: SocketAddr) -> io::Result<Self> {
                Self::connect_with(config, addr).await
            }

            async fn sleep(time: Duration) {
                tokio::time::sleep(time).await;
            }

            async fn until<T>(deadline: Instant, future: impl Future<Output = T>) -> Option<T> {
                tokio::time::timeout_at(deadline.into(), future).await.ok()
            }

            async fn on_thread<T: Send + 'static>(
                work: impl FnOnce() -> io::Result<T> + Send + 'static,
            ) -> io::Result<T> {
                on_blocking_thread(work).await
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
