//! Connects that block no thread of the runtime.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::task::Poll;

use ::tokio::net::{ToSocketAddrs, lookup_host};
use ::tokio::task::spawn_blocking;

use super::descriptor::{Descriptor, Registered};
use crate::api::Connecting;

/// Runs what may take long on a thread for that.
pub(crate) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Connects to the first address that accepts.
pub(super) async fn to_any<T: Send + 'static>(
    addr: impl ToSocketAddrs,
    start: impl Fn(SocketAddr) -> io::Result<Connecting<T>> + Clone + Send + 'static,
) -> io::Result<T> {
    to_first(addr, |addr| to(addr, start.clone())).await
}

/// Connects to each address in turn, until one accepts.
pub(super) async fn to_first<T, F: Future<Output = io::Result<T>>>(
    addr: impl ToSocketAddrs,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no addresses");
    for addr in lookup_host(addr).await? {
        match connect(addr).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to one address.
pub(super) async fn to<T: Send + 'static>(
    addr: SocketAddr,
    start: impl FnOnce(SocketAddr) -> io::Result<Connecting<T>> + Send + 'static,
) -> io::Result<T> {
    let mut connecting = on_blocking_thread(move || start(addr)).await?;
    loop {
        // A step may open the device, register the pool, or make a queue pair.
        let step = move || {
            let polled = connecting.poll();
            Ok((connecting, polled))
        };
        let polled;
        (connecting, polled) = on_blocking_thread(step).await?;
        if let Poll::Ready(connected) = polled {
            return connected;
        }
        connecting = until_it_can_go_on(connecting).await?;
    }
}

/// The descriptor is readable at the deadline, too.
#[cfg(any(target_os = "linux", target_os = "android"))]
async fn until_it_can_go_on<T>(connecting: Connecting<T>) -> io::Result<Connecting<T>> {
    let connecting = Registered::new(InProgress(connecting))?;
    connecting.readable().await?;
    Ok(connecting.into_inner().0)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
async fn until_it_can_go_on<T>(mut connecting: Connecting<T>) -> io::Result<Connecting<T>> {
    let deadline = connecting.deadline().into();
    let connecting = Registered::new(InProgress(connecting))?;
    // After the deadline the next step fails.
    if let Ok(readable) = ::tokio::time::timeout_at(deadline, connecting.readable()).await {
        readable?;
    }
    Ok(connecting.into_inner().0)
}

struct InProgress<T>(Connecting<T>);

impl<T> AsRawFd for InProgress<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

// SAFETY: the descriptor is of the set that a connect has as long as it exists.
unsafe impl<T> Descriptor for InProgress<T> {}
