//! Pools of connections on one thread.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases, skip};
use trespass::connections::{ConnectionPool, ConnectionPoolBuilder, GetError, PooledConnection};
use trespass::local::{JoinHandle, Listener, SeqPacket, Stream, sleep, spawn_local, timeout};

use super::fixture::{Fixture, LONG, anywhere};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_connection_is_reused, tasks_wait_in_order, a_dropped_wait_loses_nothing,
        a_dropped_connect_frees_its_place, an_exhausted_pool_fails_after_its_timeout,
        a_server_restarts_at_another_host, connections_that_died_idle_are_not_lent,
        lent_blocks_close_their_connection, messages_are_lent_too, names_are_resolved, the_minimum_is_kept,
        tasks_share_a_pool, connections_return_to_the_runtime_that_runs, pools_leave_no_descriptors);
}

/// A server that sends each request of four bytes back, until it is stopped.
struct EchoServer {
    addr: SocketAddr,
    task: JoinHandle<()>,
    clients: Clients,
}

/// The tasks of the clients.
type Clients = Rc<RefCell<Vec<JoinHandle<()>>>>;

impl EchoServer {
    fn start() -> Self {
        Self::at(anywhere())
    }

    fn at(addr: SocketAddr) -> Self {
        let listener = Listener::bind(addr).unwrap();
        let (addr, clients) = (listener.local_addr().unwrap(), Clients::default());
        Self { addr, task: spawn_local(serve(listener, clients.clone())), clients }
    }

    /// Ends the server and its connections.
    async fn stop(self) {
        assert!(self.task.cancel().await.is_none());
        for client in self.clients.take() {
            client.cancel().await;
        }
    }
}

async fn serve(mut listener: Listener, clients: Clients) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        clients.borrow_mut().push(spawn_local(async move {
            let mut request = [0; 4];
            while stream.read_exact(&mut request).await.is_ok() {
                if stream.write_all(&request).await.is_err() || &request == b"quit" {
                    break;
                }
            }
        }));
    }
}

fn builder(host: SocketAddr) -> ConnectionPoolBuilder<Stream> {
    ConnectionPool::builder(host).timeout(LONG).retry_pause(Duration::from_millis(1))
}

async fn ask(stream: &mut PooledConnection<Stream>) {
    stream.write_all(b"ping").await.unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"ping");
}

/// Waits for a condition.
async fn until(is_met: impl Fn() -> bool) {
    while !is_met() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Polls a future once.
async fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    let mut future = Some(future);
    poll_fn(|context| Poll::Ready(future.take().expect("it is polled once").poll(context))).await
}

fn check<C>(pool: &ConnectionPool<C>) {
    let stats = pool.stats();
    assert_eq!(stats.made, stats.open as u64 + stats.evicted, "{stats:?}");
}

fn a_connection_is_reused(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start();
        let pool = builder(server.addr).build().unwrap();
        for _ in 0..5 {
            ask(&mut pool.get().await.unwrap()).await;
        }
        let stats = pool.stats();
        assert_eq!((stats.made, stats.reused, stats.open, stats.idle), (1, 4, 1, 1), "{stats:?}");
        assert_eq!(pool.get().await.unwrap().transport().unwrap(), fixture.transport());
        server.stop().await;
    });
    Ok(())
}

fn tasks_wait_in_order(fixture: &Fixture) -> Outcome {
    const CALLS: usize = 6;
    fixture.run(async {
        let server = EchoServer::start();
        let pool = builder(server.addr).maximum(1).build().unwrap();
        let held = pool.get().await.unwrap();
        let order = Rc::new(RefCell::new(Vec::new()));
        let mut tasks = Vec::new();
        for call in 0..CALLS {
            let (waits, order) = (pool.clone(), order.clone());
            tasks.push(spawn_local(async move {
                let mut stream = waits.get().await.unwrap();
                order.borrow_mut().push(call);
                ask(&mut stream).await;
            }));
            until(|| pool.stats().waiting == call + 1).await;
        }
        assert!(order.borrow().is_empty());
        drop(held);
        for task in tasks {
            task.await;
        }
        assert!(order.borrow().iter().copied().eq(0..CALLS), "{order:?}");
        assert_eq!(pool.stats().made, 1);
        server.stop().await;
    });
    Ok(())
}

fn a_dropped_wait_loses_nothing(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start();
        let pool = builder(server.addr).maximum(1).build().unwrap();
        let held = pool.get().await.unwrap();
        let mut third = pin!(pool.get());
        {
            let mut first = pin!(pool.get());
            let mut second = Box::pin(pool.get());
            assert!(poll_once(first.as_mut()).await.is_pending());
            assert!(poll_once(second.as_mut()).await.is_pending());
            assert!(poll_once(third.as_mut()).await.is_pending());
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
        let server = EchoServer::start();
        let pool = builder(server.addr).maximum(1).build().unwrap();
        for micros in (0..3000).step_by(250) {
            // It may be done by then.
            if let Ok(stream) = timeout(Duration::from_micros(micros), pool.get()).await {
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
        let server = EchoServer::start();
        let limit = Duration::from_millis(30);
        let pool = builder(server.addr).maximum(1).timeout(limit).build().unwrap();
        let held = pool.get().await.unwrap();
        let begin = Instant::now();
        let error = pool.get().await.unwrap_err();
        assert!(begin.elapsed() >= limit);
        assert!(matches!(error, GetError::Exhausted { maximum: 1, .. }), "{error}");
        assert_eq!(pool.stats().waiting, 0);
        drop(held);
        ask(&mut pool.get().await.unwrap()).await;
        server.stop().await;
    });
    Ok(())
}

/// Closes idle connections as they end, until all have.
async fn until_closed(pool: &ConnectionPool<Stream>) {
    while pool.stats().open > 0 {
        pool.maintain().await.unwrap();
        sleep(Duration::from_millis(1)).await;
    }
}

fn a_server_restarts_at_another_host(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let first = EchoServer::start();
        let addr = Listener::bind(anywhere()).unwrap().local_addr().unwrap();
        let pool = builder(first.addr).host(addr).retries(u32::MAX).build().unwrap();
        ask(&mut pool.get().await.unwrap()).await;
        first.stop().await;
        until_closed(&pool).await;
        let waits = pool.clone();
        let waiting = spawn_local(async move { ask(&mut waits.get().await.unwrap()).await });
        until(|| pool.stats().failed >= 2).await;
        let second = EchoServer::at(addr);
        waiting.await;
        assert_eq!(pool.stats().made, 2);
        second.stop().await;
    });
    Ok(())
}

fn connections_that_died_idle_are_not_lent(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start();
        let pool = builder(server.addr).build().unwrap();
        let mut stream = pool.get().await.unwrap();
        stream.write_all(b"quit").await.unwrap();
        stream.read_exact(&mut [0; 4]).await.unwrap();
        drop(stream);
        until_closed(&pool).await;
        ask(&mut pool.get().await.unwrap()).await;
        // An answer that nobody awaits.
        let mut stream = pool.get().await.unwrap();
        stream.write_all(b"late").await.unwrap();
        stream.read(&mut [0]).await.unwrap();
        drop(stream);
        ask(&mut pool.get().await.unwrap()).await;
        let stats = pool.stats();
        assert_eq!((stats.made, stats.evicted, stats.reused), (3, 2, 1), "{stats:?}");
        server.stop().await;
    });
    Ok(())
}

fn lent_blocks_close_their_connection(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start();
        let pool = builder(server.addr).build().unwrap();
        let mut stream = pool.get().await.unwrap();
        let mut block = stream.buffer(4).unwrap();
        block.bytes_mut()[..4].copy_from_slice(b"ping");
        stream.send_buf(block, 4).await.unwrap();
        stream.read_exact(&mut [0; 4]).await.unwrap();
        // Nobody has taken the completion, which would be the next borrower's.
        drop(stream);
        let stats = pool.stats();
        assert_eq!((stats.open, stats.evicted), (0, 1), "{stats:?}");
        server.stop().await;
    });
    Ok(())
}

fn messages_are_lent_too(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let mut listener = Listener::bind_seq_packet(anywhere()).unwrap();
        let addr = listener.local_addr().unwrap();
        let pool = ConnectionPool::<SeqPacket>::builder(addr).build().unwrap();
        let server = spawn_local(async move {
            let (mut packets, _) = listener.accept().await.unwrap();
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
        assert_eq!(server.await, ErrorKind::UnexpectedEof);
    });
    Ok(())
}

/// A thread asks the system, while other tasks go on.
fn names_are_resolved(fixture: &Fixture) -> Outcome {
    if fixture.is_by_cm() {
        skip!("a name of this host also has addresses that no device has");
    }
    fixture.run(async {
        let server = EchoServer::start();
        let host = format!("localhost:{}", server.addr.port());
        let pool = ConnectionPool::<Stream>::builder(host).timeout(LONG).build().unwrap();
        ask(&mut pool.get().await.unwrap()).await;
        let nowhere = ConnectionPool::<Stream>::builder("no such name:1").retries(0).build().unwrap();
        let error = nowhere.get().await.unwrap_err();
        assert!(matches!(error, GetError::Connect { attempts: 1, .. }), "{error}");
        // The answer of a thread finds nobody.
        let dropped = ConnectionPool::<Stream>::builder("no such name:2").build().unwrap();
        let mut waiting = Box::pin(dropped.get());
        assert!(poll_once(waiting.as_mut()).await.is_pending());
        drop(waiting);
        ask(&mut pool.get().await.unwrap()).await;
        server.stop().await;
    });
    Ok(())
}

fn the_minimum_is_kept(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let server = EchoServer::start();
        let pool = builder(server.addr).minimum(2).idle_timeout(Some(Duration::ZERO)).build().unwrap();
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
        let server = EchoServer::start();
        let pool = builder(server.addr).maximum(3).build().unwrap();
        let mut tasks = Vec::new();
        for task in 0..TASKS {
            let pool = pool.clone();
            tasks.push(spawn_local(async move {
                for request in 0..REQUESTS {
                    let mut stream = pool.get().await.unwrap();
                    ask(&mut stream).await;
                    assert!(pool.stats().open <= 3);
                    check(&pool);
                    if (task + request) % 9 == 0 {
                        stream.discard();
                    }
                }
            }));
        }
        for task in tasks {
            task.await;
        }
        let stats = pool.stats();
        assert_eq!(stats.made + stats.reused, (TASKS * REQUESTS) as u64, "{stats:?}");
        assert_eq!((stats.open, stats.waiting), (stats.idle, 0), "{stats:?}");
        server.stop().await;
    });
    Ok(())
}

/// A connection of a runtime that does not run is closed, and none of it is lent in another.
fn connections_return_to_the_runtime_that_runs(fixture: &Fixture) -> Outcome {
    let runtime = fixture.runtime();
    let (pool, held) = runtime
        .block_on(async {
            let server = EchoServer::start();
            let pool = builder(server.addr).build().unwrap();
            let [mut idle, held] = [pool.get().await.unwrap(), pool.get().await.unwrap()];
            ask(&mut idle).await;
            drop(server);
            (pool, held)
        })
        .unwrap();
    assert_eq!((pool.stats().open, pool.stats().idle), (2, 1));
    drop(held);
    assert_eq!((pool.stats().open, pool.stats().evicted), (1, 1), "it returned outside of its runtime");
    fixture.run(async {
        let server = EchoServer::start();
        let other = builder(server.addr).build().unwrap();
        ask(&mut other.get().await.unwrap()).await;
        pool.maintain().await.unwrap();
        server.stop().await;
    });
    assert_eq!((pool.stats().open, pool.stats().evicted), (0, 2), "another runtime would lend it");
    drop(runtime);
    drop(pool);
    Ok(())
}

/// Descriptors that the process keeps for later sleeps, at most. A leak in each pool is more.
const KEPT: usize = 16;

fn pools_leave_no_descriptors(fixture: &Fixture) -> Outcome {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let use_pools = |pools: usize| {
        fixture.run(async {
            let server = EchoServer::start();
            for _ in 0..pools {
                let pool = builder(server.addr).build().unwrap();
                let (one, two) = (pool.get().await.unwrap(), pool.get().await.unwrap());
                two.discard();
                ask(&mut pool.get().await.unwrap()).await;
                let mut dropped = Box::pin(pool.get());
                let _ = poll_once(dropped.as_mut()).await;
                drop(dropped);
                check(&pool);
                drop(pool);
                drop(one);
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
