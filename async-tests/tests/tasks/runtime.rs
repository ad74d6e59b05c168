//! What the cases of both programs use of the runtime: here that of tokio.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use trespass::connections::{ConnectionPool, ConnectionPoolBuilder};
use trespass::tokio::Listener;

use super::fixture::{Fixture, LONG};

pub(crate) use tokio::task::yield_now;
pub(crate) use tokio::time::{sleep, timeout};
pub(crate) use trespass::tokio::Stream;

/// A spawned task. If it panics, so does the task that awaits it.
pub(crate) struct SpawnedTask<T>(JoinHandle<T>);

impl<T> SpawnedTask<T> {
    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Future for SpawnedTask<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(context).map(Result::unwrap)
    }
}

pub(crate) fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> SpawnedTask<T> {
    SpawnedTask(tokio::spawn(future))
}

pub(crate) async fn connect(fixture: &Fixture, addr: SocketAddr) -> Stream {
    Stream::connect_with(&fixture.config(), addr).await.unwrap()
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
pub(crate) async fn listener_at(fixture: &Fixture, addr: SocketAddr) -> Listener {
    let config = fixture.builder().bind_patience(LONG).build().unwrap();
    Listener::bind_with(&config, addr).await.unwrap()
}

pub(crate) fn pool_builder(fixture: &Fixture, addr: SocketAddr) -> ConnectionPoolBuilder<Stream> {
    ConnectionPool::builder(addr).config(fixture.config())
}

pub(crate) fn pool(fixture: &Fixture, addr: SocketAddr, maximum: usize) -> ConnectionPool<Stream> {
    pool_builder(fixture, addr).maximum(maximum).build().unwrap()
}
