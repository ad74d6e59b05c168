//! A mux for each connection of a pool, least loaded first.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::config::MuxConfig;
use super::handles::{Mux, MuxStream};
use crate::Stream;
use crate::connections::{ConnectionPool, GetError, Pooled, PooledConnection, TakenPlace};

/// Muxes to one service, which calls share.
///
/// The pool of connections says where they go, and how many there are at most. It is used for
/// nothing else. A connection stays until it fails or the last clone of this pool is dropped, and
/// longer while requests on it have handles.
pub struct MuxPool<S: MuxStream + Pooled = Stream> {
    shared: Arc<Muxes<S>>,
}

struct Muxes<S: MuxStream + Pooled> {
    connections: ConnectionPool<S>,
    config: MuxConfig,
    busy: u32,
    open: Mutex<Vec<(Mux<S>, TakenPlace<S>)>>,
    /// One call connects at a time. The others may find what it has made.
    connecting: Connecting,
}

#[derive(Default)]
struct Connecting {
    threads: Mutex<()>,
    #[cfg(all(unix, feature = "tokio"))]
    tasks: ::tokio::sync::Mutex<()>,
}

impl<S: MuxStream + Pooled> MuxPool<S> {
    /// A pool of muxes with these limits. While a mux has fewer requests in flight than `busy`, no
    /// further connection is made.
    pub fn new(connections: ConnectionPool<S>, config: MuxConfig, busy: u32) -> Self {
        let (open, connecting) = (Mutex::default(), Connecting::default());
        Self { shared: Arc::new(Muxes { connections, config, busy, open, connecting }) }
    }

    /// The pool of connections, for its statistics.
    #[must_use]
    pub fn connections(&self) -> &ConnectionPool<S> {
        &self.shared.connections
    }

    /// The requests in flight on each connection.
    #[must_use]
    pub fn loads(&self) -> Vec<u32> {
        self.shared.open().iter().map(|(mux, _)| mux.in_flight()).collect()
    }
}

impl<S: MuxStream + Pooled> Muxes<S> {
    fn open(&self) -> MutexGuard<'_, Vec<(Mux<S>, TakenPlace<S>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mux with the fewest requests in flight. Those that have failed leave the pool.
    fn least_loaded(&self) -> Option<Mux<S>> {
        let mut failed = Vec::new();
        let mut open = self.open();
        let least = loop {
            let Some(at) = (0..open.len()).min_by_key(|at| open[*at].0.in_flight()) else { break None };
            let mux = &open[at].0;
            if mux.in_flight() == 0 {
                S::look(&mux.shared);
            }
            match mux.failure() {
                None => break Some(mux.clone()),
                Some(_) => failed.push(open.swap_remove(at)),
            }
        };
        drop(open);
        // Closing takes system calls.
        drop(failed);
        least
    }

    /// A mux that needs no further connection.
    fn choose(&self) -> Option<Mux<S>> {
        let least = self.least_loaded()?;
        let is_full = self.open().len() >= self.connections.maximum();
        (is_full || least.in_flight() < self.busy).then_some(least)
    }

    /// Adds a connection. If none could be made, a loaded mux serves, too.
    fn add(&self, made: Result<PooledConnection<S>, GetError>) -> Result<Mux<S>, GetError> {
        match made {
            Ok(connection) => {
                let (stream, place) = connection.take_out();
                let mux = Mux::over(stream, &self.config)
                    .map_err(|source| GetError::Connect { attempts: 1, source })?;
                self.open().push((mux.clone(), place));
                Ok(mux)
            }
            Err(error) => self.least_loaded().ok_or(error),
        }
    }
}

/// The call for [`Stream`], which blocks.
impl MuxPool<Stream> {
    /// Hands out the mux with the fewest requests in flight. If all are busy, and the pool may have
    /// more connections, it makes one.
    ///
    /// # Errors
    ///
    /// There is no mux, and no host accepts.
    pub fn get(&self) -> Result<Mux<Stream>, GetError> {
        let shared = &self.shared;
        if let Some(mux) = shared.choose() {
            return Ok(mux);
        }
        let _turn = shared.connecting.threads.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.choose() {
            Some(mux) => Ok(mux),
            None => shared.add(shared.connections.get()),
        }
    }
}

/// The call for a stream of `trespass::tokio`, which is awaited.
#[cfg(all(unix, feature = "tokio"))]
impl MuxPool<crate::tokio::Stream> {
    /// Hands out the mux with the fewest requests in flight. If all are busy, and the pool may have
    /// more connections, it makes one. A mux belongs to the runtime of the call that has made it.
    ///
    /// # Cancel safety
    ///
    /// A drop of the future gives a connect up.
    ///
    /// # Errors
    ///
    /// There is no mux, and no host accepts.
    pub async fn get(&self) -> Result<Mux<crate::tokio::Stream>, GetError> {
        let shared = &self.shared;
        if let Some(mux) = shared.choose() {
            return Ok(mux);
        }
        let _turn = shared.connecting.tasks.lock().await;
        match shared.choose() {
            Some(mux) => Ok(mux),
            None => shared.add(shared.connections.get().await),
        }
    }
}

impl<S: MuxStream + Pooled> Clone for MuxPool<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<S: MuxStream + Pooled> fmt::Debug for MuxPool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = &self.shared.connections;
        f.debug_struct("MuxPool").field("loads", &self.loads()).field("connections", connections).finish()
    }
}
