//! Pools of connections that tasks await.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinHandle, JoinSet};
use trespass::connections::{ConnectionPool, ConnectionPoolBuilder, GetError, PooledConnection};
use trespass::tokio::{Listener, SeqPacket, Stream};

use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_connection_is_reused, tasks_wait_in_order, a_dropped_wait_loses_nothing,
        a_dropped_connect_frees_its_place, an_exhausted_pool_fails_after_its_timeout,
        a_server_restarts_at_another_host, connections_that_died_idle_are_not_lent,
        a_task_dropped_within_a_request, messages_are_lent_too, the_minimum_is_kept,
        tasks_share_a_pool, pools_leave_no_descriptors);
}

/// A server that sends each request of four bytes back, until the task is aborted.
struct EchoServer {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl EchoServer {
    async fn start(fixture: &Fixture) -> Self {
        let (listener, addr) = fixture.listener().await;
        Self { addr, task: tokio::spawn(serve(listener)) }
    }

    /// Ends the server and its connections.
    async fn stop(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

async fn serve(listener: Listener) {
    let mut clients = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        clients.spawn(async move {
            let mut request = [0; 4];
            while stream.read_exact(&mut request).await.is_ok() {
                if stream.write_all(&request).await.is_err() || &request == b"quit" {
                    break;
                }
            }
        });
    }
}

fn builder(fixture: &Fixture, host: SocketAddr) -> ConnectionPoolBuilder<Stream> {
    ConnectionPool::builder(host)
        .config(fixture.config())
        .timeout(LONG)
        .retries(0)
        .retry_pause(Duration::from_millis(5))
}

async fn ask(stream: &mut PooledConnection<Stream>) {
    stream.write_all(b"ping").await.unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"ping");
}

/// Lets other tasks run until a condition holds; a case has a limit.
async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Polls a future once.
async fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    let mut future = Some(future);
    poll_fn(|context| Poll::Ready(future.take().expect("it is polled once").poll(context))).await
}

fn check<C>(pool: &ConnectionPool<C>) {
    let stats = pool.stats();
    assert_eq!(stats.made, stats.open as u64 + stats.evicted, "{stats:?}");
}

fn a_connection_is_reused(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start(fixture).await;
        let pool = builder(fixture, server.addr).build().unwrap();
        for _ in 0..5 {
            ask(&mut pool.get().await.unwrap()).await;
        }
        let stats = pool.stats();
        assert_eq!((stats.made, stats.reused, stats.open, stats.idle), (1, 4, 1, 1), "{stats:?}");
        server.stop().await;
    });
    Ok(())
}

fn tasks_wait_in_order(fixture: &Fixture) -> Outcome {
    const CALLS: usize = 6;
    fixture.run(async {
        let server = EchoServer::start(fixture).await;
        let pool = builder(fixture, server.addr).maximum(1).build().unwrap();
        let held = pool.get().await.unwrap();
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for call in 0..CALLS {
            let (waits, sender) = (pool.clone(), sender.clone());
            tasks.spawn(async move {
                let mut stream = waits.get().await.unwrap();
                sender.send(call).unwrap();
                ask(&mut stream).await;
            });
            until(|| pool.stats().waiting == call + 1).await;
        }
        assert!(order.try_recv().is_err());
        drop(held);
        for call in 0..CALLS {
            assert_eq!(order.recv().await, Some(call));
        }
        tasks.join_all().await;
        assert_eq!(pool.stats().made, 1);
        server.stop().await;
    });
    Ok(())
}

fn a_dropped_wait_loses_nothing(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start(fixture).await;
        let pool = builder(fixture, server.addr).maximum(1).build().unwrap();
        let held = pool.get().await.unwrap();
        let mut third = pin!(pool.get());
        {
            let mut first = pin!(pool.get());
            let mut second = Box::pin(pool.get());
            assert!(poll_once(first.as_mut()).await.is_pending());
            assert!(poll_once(second.as_mut()).await.is_pending());
            assert!(poll_once(third.as_mut()).await.is_pending());
            assert_eq!(pool.stats().waiting, 3);
            drop(second);
            assert_eq!(pool.stats().waiting, 2);
            // The first is granted the connection, and dropped before it looks.
            drop(held);
            assert_eq!((pool.stats().waiting, pool.stats().idle), (1, 0));
        }
        let Poll::Ready(stream) = poll_once(third.as_mut()).await else { panic!("the grant is lost") };
        ask(&mut stream.unwrap()).await;
        let stats = pool.stats();
        assert_eq!((stats.made, stats.evicted, stats.open), (1, 0, 1), "{stats:?}");
        server.stop().await;
    });
    Ok(())
}

fn a_dropped_connect_frees_its_place(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start(fixture).await;
        let pool = builder(fixture, server.addr).maximum(1).build().unwrap();
        for micros in (0..3000).step_by(250) {
            // It may be done by then.
            if let Ok(stream) = tokio::time::timeout(Duration::from_micros(micros), pool.get()).await {
                stream.unwrap().discard();
            }
        }
        ask(&mut pool.get().await.unwrap()).await;
        assert_eq!((pool.stats().open, pool.stats().waiting), (1, 0));
        check(&pool);
        server.stop().await;
    });
    Ok(())
}

fn an_exhausted_pool_fails_after_its_timeout(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start(fixture).await;
        let timeout = Duration::from_millis(30);
        let pool = builder(fixture, server.addr).maximum(1).timeout(timeout).build().unwrap();
        let held = pool.get().await.unwrap();
        let begin = Instant::now();
        let error = pool.get().await.unwrap_err();
        assert!(begin.elapsed() >= timeout);
        assert!(matches!(error, GetError::Exhausted { maximum: 1, .. }), "{error}");
        assert_eq!(pool.stats().waiting, 0);
        drop(held);
        ask(&mut pool.get().await.unwrap()).await;
        server.stop().await;
    });
    Ok(())
}

fn a_server_restarts_at_another_host(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (first, second) = (EchoServer::start(fixture).await, fixture.listener().await);
        let (listener, addr) = second;
        drop(listener);
        let pool = builder(fixture, first.addr).host(addr).retries(u32::MAX).build().unwrap();
        ask(&mut pool.get().await.unwrap()).await;
        first.stop().await;
        // Until the end of the idle connection has come.
        until_closed(&pool).await;
        let waits = pool.clone();
        let waiting = tokio::spawn(async move { ask(&mut waits.get().await.unwrap()).await });
        until(|| pool.stats().failed >= 2).await;
        let listener = Listener::bind_with(&fixture.config(), addr).await.unwrap();
        let task = tokio::spawn(serve(listener));
        waiting.await.unwrap();
        assert_eq!(pool.stats().made, 2);
        task.abort();
    });
    Ok(())
}

/// Closes idle connections as they end, until all have.
async fn until_closed(pool: &ConnectionPool<Stream>) {
    while pool.stats().open > 0 {
        pool.maintain().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn connections_that_died_idle_are_not_lent(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start(fixture).await;
        let pool = builder(fixture, server.addr).build().unwrap();
        let mut stream = pool.get().await.unwrap();
        stream.write_all(b"quit").await.unwrap();
        stream.read_exact(&mut [0; 4]).await.unwrap();
        drop(stream);
        until_closed(&pool).await;
        ask(&mut pool.get().await.unwrap()).await;
        // An answer that nobody awaits.
        let mut stream = pool.get().await.unwrap();
        stream.write_all(b"late").await.unwrap();
        stream.readable().await.unwrap();
        drop(stream);
        ask(&mut pool.get().await.unwrap()).await;
        let stats = pool.stats();
        assert_eq!((stats.made, stats.evicted, stats.reused), (3, 2, 1), "{stats:?}");
        server.stop().await;
    });
    Ok(())
}

/// The answer to a request is never the next task's.
fn a_task_dropped_within_a_request(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start(fixture).await;
        let pool = builder(fixture, server.addr).build().unwrap();
        {
            let mut request = pin!(async {
                let mut stream = pool.get().await.unwrap();
                stream.mark_broken();
                stream.write_all(b"late").await.unwrap();
                std::future::pending::<()>().await;
                stream.mark_usable();
            });
            while pool.stats().made == 0 || pool.stats().idle > 0 {
                assert!(poll_once(request.as_mut()).await.is_pending());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(poll_once(request.as_mut()).await.is_pending());
        }
        assert_eq!((pool.stats().open, pool.stats().evicted), (0, 1));
        ask(&mut pool.get().await.unwrap()).await;
        server.stop().await;
    });
    Ok(())
}

fn messages_are_lent_too(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        let pool = ConnectionPool::<SeqPacket>::builder(addr).config(fixture.config()).build().unwrap();
        let server = tokio::spawn(async move {
            let (mut packets, _) = listener.accept_seq_packet().await.unwrap();
            let mut message = [0; 100];
            loop {
                match packets.recv(&mut message).await {
                    Ok(len) => packets.send(&message[..len]).await.unwrap(),
                    Err(error) => break error.kind(),
                }
            }
        });
        for _ in 0..3 {
            let mut packets = pool.get().await.unwrap();
            packets.send(b"a message").await.unwrap();
            assert_eq!(packets.recv(&mut [0; 100]).await.unwrap(), 9);
        }
        assert_eq!((pool.stats().made, pool.stats().reused), (1, 2));
        drop(pool);
        assert_eq!(server.await.unwrap(), ErrorKind::UnexpectedEof);
    });
    Ok(())
}

fn the_minimum_is_kept(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start(fixture).await;
        let builder = builder(fixture, server.addr).minimum(2).idle_timeout(Some(Duration::ZERO));
        let pool = builder.build().unwrap();
        pool.maintain().await.unwrap();
        let mut handles = Vec::new();
        for _ in 0..4 {
            handles.push(pool.get().await.unwrap());
        }
        assert_eq!((pool.stats().open, pool.stats().reused), (4, 2));
        drop(handles);
        pool.maintain().await.unwrap();
        let stats = pool.stats();
        assert_eq!((stats.open, stats.idle, stats.evicted), (2, 2, 2), "{stats:?}");
        server.stop().await;
    });
    Ok(())
}

fn tasks_share_a_pool(fixture: &Fixture) -> Outcome {
    const TASKS: usize = 20;
    const REQUESTS: usize = 20;
    fixture.run(async {
        let server = EchoServer::start(fixture).await;
        let pool = builder(fixture, server.addr).maximum(3).build().unwrap();
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let pool = pool.clone();
            tasks.spawn(async move {
                for request in 0..REQUESTS {
                    let mut stream = pool.get().await.unwrap();
                    ask(&mut stream).await;
                    assert!(pool.stats().open <= 3);
                    check(&pool);
                    if (task + request) % 9 == 0 {
                        stream.discard();
                    }
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let stats = pool.stats();
        assert_eq!(stats.made + stats.reused, (TASKS * REQUESTS) as u64, "{stats:?}");
        assert_eq!((stats.open, stats.waiting), (stats.idle, 0), "{stats:?}");
        server.stop().await;
    });
    Ok(())
}

/// Descriptors that the process keeps for later sleeps, at most. A leak in each pool is more.
const KEPT: usize = 16;

fn pools_leave_no_descriptors(fixture: &Fixture) -> Outcome {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let use_pools = |pools: usize| {
        fixture.run(async {
            let server = EchoServer::start(fixture).await;
            for _ in 0..pools {
                let pool = builder(fixture, server.addr).build().unwrap();
                let (one, two) = tokio::join!(pool.get(), pool.get());
                let outlives = one.unwrap();
                two.unwrap().discard();
                ask(&mut pool.get().await.unwrap()).await;
                drop(pool);
                drop(outlives);
            }
            server.stop().await;
        });
    };
    // The first connections open devices and start threads, which stay.
    use_pools(3);
    let before = count();
    use_pools(2 * KEPT);
    // Connections close behind a drop.
    let limit = Instant::now() + LONG;
    while count() > before + KEPT && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(count() <= before + KEPT, "{before} before, {} after", count());
    Ok(())
}
