//! A mux for each connection of a pool, least loaded first.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

#[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
use super::awaited::InTask;
use super::config::MuxConfig;
use super::handles::{Mux, MuxStream};
use crate::Stream;
#[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
use crate::connections::ConnectInTask;
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
    /// One call connects at a time. The others share a busy mux meanwhile, or wait for the first.
    connecting: Connecting,
}

#[derive(Default)]
struct Connecting {
    threads: Mutex<()>,
    #[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
    tasks: super::turn::ConnectTurn,
}

impl<S: MuxStream + Pooled> MuxPool<S> {
    /// A pool of muxes with these limits. While a mux has fewer requests in flight than `busy`, and
    /// than its peer accepts, no further connection is made.
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

    /// The mux with the fewest requests in flight, if possible one on which a request need not wait.
    /// Those that have failed leave the pool.
    fn least_loaded(&self) -> Option<Mux<S>> {
        loop {
            let mut open = self.open();
            // They hold places, also with requests in flight.
            let failed = Vec::from_iter(open.extract_if(.., |(mux, _)| mux.failure().is_some()));
            let least = open.iter().map(|(mux, _)| mux).min_by_key(|mux| mux.load()).cloned();
            drop(open);
            // Closing takes system calls. A look does, too, and may wake tasks, which call the pool.
            drop(failed);
            let mux = least?;
            if mux.in_flight() == 0 {
                S::look(&mux.shared);
            }
            if mux.failure().is_none() {
                return Some(mux);
            }
        }
    }

    /// A mux that needs no further connection.
    fn choose(&self) -> Option<Mux<S>> {
        let least = self.least_loaded()?;
        let (waits, in_flight) = least.load();
        let is_busy = waits || in_flight >= self.busy;
        (!is_busy || self.open().len() >= self.connections.maximum()).then_some(least)
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
    /// more connections, it makes one, unless another call just does.
    ///
    /// # Errors
    ///
    /// There is no mux, and no host accepts.
    pub fn get(&self) -> Result<Mux<Stream>, GetError> {
        let shared = &self.shared;
        if let Some(mux) = shared.choose() {
            return Ok(mux);
        }
        let _turn = match shared.connecting.threads.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => match shared.least_loaded() {
                Some(mux) => return Ok(mux),
                None => shared.connecting.threads.lock().unwrap_or_else(PoisonError::into_inner),
            },
        };
        match shared.choose() {
            Some(mux) => Ok(mux),
            None => shared.add(shared.connections.get()),
        }
    }
}

#[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
impl<S: InTask + ConnectInTask> MuxPool<S> {
    async fn get_in_task(&self) -> Result<Mux<S>, GetError> {
        let shared = &self.shared;
        if let Some(mux) = shared.choose() {
            return Ok(mux);
        }
        let _turn = match shared.connecting.tasks.try_take() {
            Some(turn) => turn,
            None => match shared.least_loaded() {
                Some(mux) => return Ok(mux),
                None => shared.connecting.tasks.take().await,
            },
        };
        match shared.choose() {
            Some(mux) => Ok(mux),
            None => shared.add(shared.connections.get_in_task().await),
        }
    }
}

/// The call for a stream of `trespass::tokio`, which is awaited.
#[cfg(all(unix, feature = "tokio"))]
impl MuxPool<crate::tokio::Stream> {
    /// Hands out the mux with the fewest requests in flight. If all are busy, and the pool may have
    /// more connections, it makes one, unless another call just does. A mux belongs to the runtime
    /// of the call that has made it.
    ///
    /// # Cancel safety
    ///
    /// A drop of the future gives a connect up.
    ///
    /// # Errors
    ///
    /// There is no mux, and no host accepts.
    pub async fn get(&self) -> Result<Mux<crate::tokio::Stream>, GetError> {
        self.get_in_task().await
    }
}

/// The call for a stream of `trespass::local`, which is awaited.
#[cfg(feature = "local")]
impl MuxPool<crate::local::Stream> {
    /// Hands out the mux with the fewest requests in flight. If all are busy, and the pool may have
    /// more connections, it makes one, unless another call just does. A mux belongs to the runtime
    /// of the call that has made it. An idle one of another runtime leaves the pool. Use a pool in
    /// one runtime: a call may wait for one that connects in another, which goes on only there.
    ///
    /// # Cancel safety
    ///
    /// A drop of the future gives a connect up.
    ///
    /// # Errors
    ///
    /// There is no mux, and no host accepts.
    ///
    /// # Panics
    ///
    /// Outside of [`Runtime::block_on`](crate::local::Runtime::block_on), if it connects.
    pub async fn get(&self) -> Result<Mux<crate::local::Stream>, GetError> {
        self.get_in_task().await
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::Listener;

    #[test]
    fn calls_share_a_busy_mux_while_another_connects() {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let accepting = thread::spawn(move || {
            [0; 2].map(|_| Mux::over(listener.accept().unwrap().0, &MuxConfig::new()).unwrap())
        });
        let connections = ConnectionPool::<Stream>::builder(addr).maximum(2).build().unwrap();
        let pool = MuxPool::new(connections, MuxConfig::new(), 1);
        let first = pool.get().unwrap();
        let pending = first.request(b"?").unwrap();
        let connecting = pool.shared.connecting.threads.lock().unwrap();
        let (tell, told) = mpsc::channel();
        let calling = thread::spawn({
            let pool = pool.clone();
            move || tell.send(pool.get().unwrap().in_flight()).unwrap()
        });
        let found = told.recv_timeout(Duration::from_secs(20));
        assert_eq!(found, Ok(1), "the busy one, without a wait");
        calling.join().unwrap();
        drop(connecting);
        assert_eq!(pool.get().unwrap().in_flight(), 0);
        drop((pending, accepting.join().unwrap()));
    }

    /// A waker, which may run code of the program.
    #[test]
    #[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
    fn a_waker_calls_the_pool_that_wakes_it() {
        use std::sync::atomic::{AtomicU32, Ordering};
        use std::time::Instant;

        use super::super::engine::{WaitCause, WaitPlace};

        struct Calling(MuxPool<Stream>, AtomicU32, AtomicU32);

        impl std::task::Wake for Calling {
            fn wake(self: Arc<Self>) {
                let is_free = self.0.shared.open.try_lock().is_ok();
                if is_free { &self.1 } else { &self.2 }.fetch_add(1, Ordering::Relaxed);
            }
        }

        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let accepting = thread::spawn(move || {
            [0; 2].map(|_| drop(Mux::over(listener.accept().unwrap().0, &MuxConfig::new()).unwrap()))
        });
        let connections = ConnectionPool::<Stream>::builder(addr).maximum(1).build().unwrap();
        let pool = MuxPool::new(connections, MuxConfig::new(), 1);
        let mux = pool.get().unwrap();
        let calling = Arc::new(Calling(pool.clone(), AtomicU32::new(0), AtomicU32::new(0)));
        let mut place = WaitPlace::default();
        mux.shared.core.with(|state| {
            state.engine.wait(WaitCause::Arrival, &mut place, &calling.clone().into());
        });
        // The second connection shows that the first has ended.
        let limit = Instant::now() + Duration::from_secs(20);
        while mux.failure().is_none() {
            assert!(Instant::now() < limit, "{mux:?}");
            drop(pool.get().unwrap());
        }
        accepting.join().unwrap();
        assert_eq!((calling.1.load(Ordering::Relaxed), calling.2.load(Ordering::Relaxed)), (1, 0));
    }
}
