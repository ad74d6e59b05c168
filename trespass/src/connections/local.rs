//! Calls that tasks of `trespass::local` await.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::awaited::ConnectInTask;
use super::error::GetError;
use super::handle::{PooledConnection, Sealed};
use super::pool::ConnectionPool;
use crate::config::Config;
use crate::local::{self, SeqPacket, Stream};

macro_rules! in_runtime {
    ($type:ident) => {
        impl Sealed for $type {
            fn is_at_rest(&self) -> bool {
                self.0.is_at_rest()
            }

            /// The connections of a worker have no settings.
            fn restore(&self) -> bool {
                self.0.is_at_rest()
            }
        }

        impl ConnectInTask for $type {
            async fn connect(_: &Config, addr: SocketAddr) -> io::Result<Self> {
                Self::connect(addr).await
            }

            async fn sleep(time: Duration) {
                local::sleep(time).await;
            }

            async fn until<T>(deadline: Instant, future: impl Future<Output = T>) -> Option<T> {
                local::timeout(deadline.saturating_duration_since(Instant::now()), future).await.ok()
            }

            async fn on_thread<T: Send + 'static>(
                work: impl FnOnce() -> io::Result<T> + Send + 'static,
            ) -> io::Result<T> {
                local::on_thread(work).await
            }
        }

        /// The calls for connections of `trespass::local`. The connections have the parameters of the
        /// runtime that runs on this thread.
        impl ConnectionPool<$type> {
            /// Lends a connection that is open, or makes one. [The module](super#what-get-does) says
            /// how. A name is resolved on another thread.
            ///
            /// # Cancel safety
            ///
            /// A drop of the future loses nothing: it leaves the queue, passes a connection that it
            /// was granted to the next call, and gives a connect up.
            ///
            /// # Errors
            ///
            /// All connections are in use, or no host accepts.
            ///
            /// # Panics
            ///
            /// Outside of [`Runtime::block_on`](crate::local::Runtime::block_on).
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
            ///
            /// # Panics
            ///
            /// Outside of [`Runtime::block_on`](crate::local::Runtime::block_on).
            pub async fn maintain(&self) -> Result<(), GetError> {
                self.maintain_in_task().await
            }
        }
    };
}

in_runtime!(Stream);
in_runtime!(SeqPacket);
