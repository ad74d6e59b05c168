//! What the cases of both programs use of the runtime: here that of `trespass::local`.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::task::Poll;
use std::time::{Duration, Instant};

use trespass::connections::{ConnectionPool, ConnectionPoolBuilder};
use trespass::local::{JoinHandle, Listener, spawn_local};

use super::fixture::{Fixture, LONG};

pub(crate) use trespass::local::{Stream, sleep, timeout};

pub(crate) type SpawnedTask<T> = JoinHandle<T>;

pub(crate) fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> SpawnedTask<T> {
    spawn_local(future)
}

/// Lets the other tasks run.
pub(crate) async fn yield_now() {
    let mut is_first = true;
    poll_fn(|context| {
        if std::mem::take(&mut is_first) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

/// The connection has the parameters of the runtime.
pub(crate) async fn connect(_: &Fixture, addr: SocketAddr) -> Stream {
    Stream::connect(addr).await.unwrap()
}

pub(crate) async fn accept(listener: &mut Listener) -> Stream {
    listener.accept().await.unwrap().0
}

pub(crate) async fn write_all(stream: &mut Stream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
}

pub(crate) async fn read_to_end(stream: &mut Stream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer).await.unwrap() {
            0 => return bytes,
            count => bytes.extend(&buffer[..count]),
        }
    }
}

/// A listener where another one has listened.
pub(crate) async fn listener_at(_: &Fixture, addr: SocketAddr) -> Listener {
    let limit = Instant::now() + LONG;
    loop {
        match Listener::bind(addr) {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < limit, "{error}"),
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// The connections have the parameters of the runtime.
pub(crate) fn pool_builder(_: &Fixture, addr: SocketAddr) -> ConnectionPoolBuilder<Stream> {
    ConnectionPool::builder(addr)
}

pub(crate) fn pool(fixture: &Fixture, addr: SocketAddr, maximum: usize) -> ConnectionPool<Stream> {
    pool_builder(fixture, addr).maximum(maximum).build().unwrap()
}
