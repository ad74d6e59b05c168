//! Pools of connections, with calls that block.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases, skip};
use trespass::connections::{ConnectionPool, ConnectionPoolBuilder, GetError, PooledConnection};
use trespass::{Builder, Listener, Pool, SeqPacket, Stream};

use super::close::{held, held_at_rest};
use super::fixture::{Fixture, LONG, read_exactly};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_connection_is_reused, a_returned_connection_has_the_settings_of_a_new_one,
        calls_wait_in_order, an_exhausted_pool_fails_after_its_timeout, hosts_are_tried_in_turn,
        the_addresses_of_a_name_are_tried, a_server_restarts, connections_that_died_idle_are_not_lent,
        unfit_connections_are_closed_on_return, messages_are_lent_too, idle_connections_expire,
        the_minimum_is_kept, threads_share_a_pool, handles_outlive_their_pool,
        a_connect_outlives_its_pool, pools_leave_nothing_behind, limits_are_checked);
}

/// A server that sends each request of four bytes back.
struct EchoServer {
    addr: SocketAddr,
    ends: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
    streams: Arc<Mutex<Vec<Arc<Stream>>>>,
}

impl EchoServer {
    fn start(fixture: &Fixture) -> Self {
        Self::start_at(fixture, fixture.anywhere())
    }

    fn start_at(fixture: &Fixture, addr: SocketAddr) -> Self {
        Self::start_with(fixture.builder(), addr)
    }

    fn start_with(builder: Builder, addr: SocketAddr) -> Self {
        let listener = builder.bind_patience(LONG).bind(addr).unwrap();
        let addr = listener.local_addr().unwrap();
        let (ends, streams) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<_>>>::default());
        let accepting = {
            let (ends, streams) = (ends.clone(), streams.clone());
            thread::spawn(move || accept_until(&listener, &ends, &streams))
        };
        Self { addr, ends, accepting: Some(accepting), streams }
    }

    /// Sends four bytes to all clients, which nobody has asked for.
    fn send_to_all(&self) {
        for stream in self.streams.lock().unwrap().iter() {
            (&**stream).write_all(b"junk").unwrap();
            stream.drain(Instant::now() + LONG).unwrap();
        }
    }

    /// The connections that clients have made.
    fn accepted(&self) -> usize {
        self.streams.lock().unwrap().len()
    }

    fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(accepting) = self.accepting.take() {
            accepting.join().unwrap();
        }
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.end();
    }
}

fn accept_until(listener: &Listener, ends: &AtomicBool, streams: &Mutex<Vec<Arc<Stream>>>) {
    listener.set_accept_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut serving = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_read_timeout(Some(LONG)).unwrap();
                stream.set_write_timeout(Some(LONG)).unwrap();
                let stream = Arc::new(stream);
                streams.lock().unwrap().push(stream.clone());
                serving.push(thread::spawn(move || echo(&stream)));
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => (),
            Err(error) => panic!("the server cannot accept: {error}"),
        }
    }
    for stream in streams.lock().unwrap().drain(..) {
        stream.shutdown(std::net::Shutdown::Both).unwrap();
        // A client that is gone already has nothing to wait for.
        let _ = stream.drain(Instant::now() + LONG);
    }
    serving.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Serves until the client ends or fails.
fn echo(mut stream: &Stream) {
    let mut request = [0; 4];
    while stream.read_exact(&mut request).is_ok() && stream.write_all(&request).is_ok() {}
}

fn builder(fixture: &Fixture, host: impl ToString) -> ConnectionPoolBuilder<Stream> {
    ConnectionPool::builder(host)
        .config(fixture.builder().build().unwrap())
        .timeout(LONG)
        .retries(0)
        .retry_pause(Duration::from_millis(5))
}

fn pool(fixture: &Fixture, server: &EchoServer) -> ConnectionPool<Stream> {
    builder(fixture, server.addr).build().unwrap()
}

fn ask(stream: &mut PooledConnection<Stream>) -> io::Result<()> {
    stream.set_read_timeout(Some(LONG))?;
    stream.write_all(b"ping")?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"ping");
    Ok(())
}

/// Waits until a condition holds; the limit is far above any working case.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < limit, "{what} has not happened");
        thread::sleep(Duration::from_millis(1));
    }
}

fn check<C>(pool: &ConnectionPool<C>) {
    let stats = pool.stats();
    assert_eq!(stats.made, stats.open as u64 + stats.evicted, "{stats:?}");
    assert!(stats.idle <= stats.open, "{stats:?}");
}

fn a_connection_is_reused(fixture: &Fixture) -> Outcome {
    let server = EchoServer::start(fixture);
    let pool = pool(fixture, &server);
    assert_eq!(pool.stats(), Default::default(), "it connects when it is used");
    for _ in 0..5 {
        ask(&mut pool.get().unwrap()).unwrap();
    }
    let stats = pool.stats();
    assert_eq!((stats.made, stats.reused, stats.open, stats.idle), (1, 4, 1, 1), "{stats:?}");
    assert_eq!((stats.failed, stats.evicted, stats.waiting), (0, 0, 0), "{stats:?}");
    assert_eq!(server.accepted(), 1);
    Ok(())
}

fn a_returned_connection_has_the_settings_of_a_new_one(fixture: &Fixture) -> Outcome {
    let server = EchoServer::start(fixture);
    let pool = pool(fixture, &server);
    let mut stream = pool.get().unwrap();
    ask(&mut stream).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream.set_linger(Some(Duration::ZERO)).unwrap();
    stream.set_cork(true).unwrap();
    drop(stream);
    let mut stream = pool.get().unwrap();
    assert_eq!(stream.read_timeout().unwrap(), None);
    assert_eq!(stream.write_timeout().unwrap(), None);
    // In non-blocking mode or corked, it would fail.
    ask(&mut stream).unwrap();
    assert_eq!(pool.stats().made, 1);
    Ok(())
}

fn calls_wait_in_order(fixture: &Fixture) -> Outcome {
    const CALLS: usize = 6;
    let server = EchoServer::start(fixture);
    let pool = builder(fixture, server.addr).maximum(1).build().unwrap();
    let held = pool.get().unwrap();
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for call in 0..CALLS {
            let (pool, order) = (&pool, &order);
            scope.spawn(move || {
                let mut stream = pool.get().unwrap();
                order.lock().unwrap().push(call);
                ask(&mut stream).unwrap();
            });
            until("the call waits", || pool.stats().waiting == call + 1);
        }
        assert!(order.lock().unwrap().is_empty());
        drop(held);
    });
    assert_eq!(order.into_inner().unwrap(), Vec::from_iter(0..CALLS));
    let stats = pool.stats();
    assert_eq!((stats.made, stats.reused, stats.waiting), (1, CALLS as u64, 0), "{stats:?}");
    Ok(())
}

fn an_exhausted_pool_fails_after_its_timeout(fixture: &Fixture) -> Outcome {
    let server = EchoServer::start(fixture);
    let timeout = Duration::from_millis(30);
    let pool = builder(fixture, server.addr).maximum(2).timeout(timeout).build().unwrap();
    let (one, mut two) = (pool.get().unwrap(), pool.get().unwrap());
    let begin = Instant::now();
    let error = pool.get().unwrap_err();
    assert!(begin.elapsed() >= timeout);
    assert!(matches!(error, GetError::Exhausted { maximum: 2, timeout: waited } if waited == timeout));
    let error = io::Error::from(error);
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("all 2 connections of the pool were in use for 30ms"), "{error}");
    assert_eq!(pool.stats().waiting, 0, "the call has left the queue");
    drop(one);
    ask(&mut pool.get().unwrap()).unwrap();
    ask(&mut two).unwrap();
    Ok(())
}

fn hosts_are_tried_in_turn(fixture: &Fixture) -> Outcome {
    let (first, second) = (fixture.nobody(), fixture.nobody());
    let server = EchoServer::start(fixture);
    let pool = builder(fixture, first).host(second).host(server.addr).build().unwrap();
    let mut one = pool.get().unwrap();
    ask(&mut one).unwrap();
    assert_eq!(one.peer_addr().unwrap(), server.addr);
    assert_eq!(pool.stats().failed, 2);
    let _two = pool.get().unwrap();
    assert_eq!(pool.stats().failed, 2, "the host that accepted last is tried first");
    server.stop();
    let error = pool.get().unwrap_err();
    assert!(matches!(error, GetError::Connect { attempts: 1, .. }), "{error}");
    assert_eq!(pool.stats().failed, 5);
    // The place of the failed call is free again.
    let other = EchoServer::start_at(fixture, second);
    let mut three = pool.get().unwrap();
    ask(&mut three).unwrap();
    assert_eq!(three.peer_addr().unwrap(), other.addr);
    check(&pool);
    Ok(())
}

fn the_addresses_of_a_name_are_tried(fixture: &Fixture) -> Outcome {
    let server = EchoServer::start(fixture);
    if fixture.is_by_cm() || !server.addr.ip().is_loopback() {
        skip!("a name of this host also has addresses that no device has");
    }
    let pool = builder(fixture, format!("localhost:{}", server.addr.port())).build().unwrap();
    ask(&mut pool.get().unwrap()).unwrap();
    let nameless = builder(fixture, "a host without a port").retries(2).build().unwrap();
    let error = nameless.get().unwrap_err();
    assert!(matches!(error, GetError::Connect { attempts: 3, .. }), "{error}");
    assert_eq!(nameless.stats().failed, 3);
    Ok(())
}

fn a_server_restarts(fixture: &Fixture) -> Outcome {
    let server = EchoServer::start(fixture);
    let addr = server.addr;
    let pool = builder(fixture, addr).retries(u32::MAX).build().unwrap();
    ask(&mut pool.get().unwrap()).unwrap();
    server.stop();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(&mut pool.get().unwrap()).unwrap());
        until("a connect fails", || pool.stats().failed > 0);
        let _server = EchoServer::start_at(fixture, addr);
        waiting.join().unwrap();
    });
    let stats = pool.stats();
    assert_eq!((stats.made, stats.evicted, stats.reused), (2, 1, 0), "{stats:?}");
    Ok(())
}

fn connections_that_died_idle_are_not_lent(fixture: &Fixture) -> Outcome {
    let server = EchoServer::start(fixture);
    let pool = builder(fixture, server.addr).build().unwrap();
    let lend_two = || {
        let mut two = [pool.get().unwrap(), pool.get().unwrap()];
        two.iter_mut().for_each(|stream| ask(stream).unwrap());
    };
    lend_two();
    // Bytes that nobody asked for.
    server.send_to_all();
    ask(&mut pool.get().unwrap()).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.made, stats.evicted, stats.idle), (3, 2, 1), "{stats:?}");
    // Ends, which `maintain` finds as well.
    let addr = server.addr;
    server.stop();
    pool.maintain().unwrap();
    assert_eq!((pool.stats().idle, pool.stats().evicted), (0, 3));
    let _server = EchoServer::start_at(fixture, addr);
    lend_two();
    check(&pool);
    Ok(())
}

fn unfit_connections_are_closed_on_return(fixture: &Fixture) -> Outcome {
    let server = EchoServer::start(fixture);
    let pool = pool(fixture, &server);
    let mut evicted = 0;
    let mut closes = |what: &str, spoil: &dyn Fn(PooledConnection<Stream>)| {
        let mut stream = pool.get().unwrap();
        ask(&mut stream).unwrap();
        spoil(stream);
        evicted += 1;
        let stats = pool.stats();
        assert_eq!((stats.evicted, stats.idle, stats.open), (evicted, 0, 0), "{what}: {stats:?}");
    };
    closes("discarded", &PooledConnection::discard);
    closes("marked", &|mut stream| stream.mark_broken());
    closes("shut down", &|stream| stream.shutdown(std::net::Shutdown::Write).unwrap());
    closes("unread bytes", &|mut stream| {
        stream.write_all(b"more").unwrap();
        assert!(stream.peek(&mut [0]).unwrap() > 0);
    });
    closes("a lent block", &|mut stream| {
        let block = stream.buffer(4).unwrap();
        stream.send_buf(block, 4).unwrap();
        read_exactly(&mut *stream, 4);
    });
    closes("a panic", &|stream| {
        let panicked = thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let _stream = stream;
                std::panic::resume_unwind(Box::new("without a message"));
            });
            thread.join()
        });
        assert!(panicked.is_err());
    });
    let mut stream = pool.get().unwrap();
    stream.mark_broken();
    ask(&mut stream).unwrap();
    stream.mark_usable();
    drop(stream);
    assert_eq!(pool.stats().idle, 1);
    Ok(())
}

fn messages_are_lent_too(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let config = fixture.builder().build().unwrap();
    let pool = ConnectionPool::<SeqPacket>::builder(addr).config(config).retries(0).build().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                let (mut packets, _) = listener.accept_seq_packet().unwrap();
                packets.set_read_timeout(Some(LONG)).unwrap();
                let mut message = [0; 100];
                while let Ok(len) = packets.recv(&mut message) {
                    packets.send(&message[..len]).unwrap();
                }
            }
        });
        for _ in 0..3 {
            let mut packets = pool.get().unwrap();
            packets.set_read_timeout(Some(LONG)).unwrap();
            packets.send(b"a message").unwrap();
            assert_eq!(packets.recv(&mut [0; 100]).unwrap(), 9);
        }
        assert_eq!((pool.stats().made, pool.stats().reused), (1, 2));
        // A message that was begun.
        let mut packets = pool.get().unwrap();
        assert!(packets.send_part(10, b"half").unwrap() > 0);
        drop(packets);
        assert_eq!((pool.stats().open, pool.stats().evicted), (0, 1));
        drop(pool.get().unwrap());
        drop(pool);
    });
    Ok(())
}

fn idle_connections_expire(fixture: &Fixture) -> Outcome {
    let server = EchoServer::start(fixture);
    let pool = builder(fixture, server.addr).idle_timeout(Some(Duration::ZERO)).build().unwrap();
    for made in 1..=3 {
        ask(&mut pool.get().unwrap()).unwrap();
        let stats = pool.stats();
        assert_eq!((stats.made, stats.evicted, stats.reused), (made, made - 1, 0), "{stats:?}");
    }
    pool.maintain().unwrap();
    assert_eq!(pool.stats().open, 0);
    Ok(())
}

fn the_minimum_is_kept(fixture: &Fixture) -> Outcome {
    let server = EchoServer::start(fixture);
    let builder = builder(fixture, server.addr).minimum(3).idle_timeout(Some(Duration::ZERO));
    let pool = builder.build().unwrap();
    pool.maintain().unwrap();
    assert_eq!((pool.stats().open, pool.stats().idle, pool.stats().made), (3, 3, 3));
    let mut handles: Vec<_> = (0..5).map(|_| pool.get().unwrap()).collect();
    handles.iter_mut().for_each(|stream| ask(stream).unwrap());
    assert_eq!((pool.stats().open, pool.stats().reused), (5, 3));
    drop(handles);
    pool.maintain().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.open, stats.idle, stats.evicted), (3, 3, 2), "{stats:?}");
    server.stop();
    let error = pool.maintain().unwrap_err();
    assert!(matches!(error, GetError::Connect { attempts: 1, .. }), "{error}");
    assert_eq!(pool.stats().open, 0, "those that have ended are closed");
    check(&pool);
    Ok(())
}

fn threads_share_a_pool(fixture: &Fixture) -> Outcome {
    const THREADS: usize = 8;
    let requests = fixture.less(40);
    let server = EchoServer::start(fixture);
    let pool = builder(fixture, server.addr).maximum(3).build().unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let pool = pool.clone();
            scope.spawn(move || {
                for request in 0..requests {
                    let mut stream = pool.get().unwrap();
                    ask(&mut stream).unwrap();
                    assert!(pool.stats().open <= 3);
                    check(&pool);
                    match (thread + request) % 9 {
                        0 => stream.discard(),
                        1 => pool.maintain().unwrap(),
                        _ => (),
                    }
                }
            });
        }
    });
    let stats = pool.stats();
    assert_eq!(stats.made + stats.reused, (THREADS * requests) as u64, "{stats:?}");
    assert_eq!((stats.open, stats.waiting, stats.failed), (stats.idle, 0, 0), "{stats:?}");
    assert!(stats.evicted > 0 && stats.reused > 0, "{stats:?}");
    check(&pool);
    Ok(())
}

fn handles_outlive_their_pool(fixture: &Fixture) -> Outcome {
    let server = EchoServer::start(fixture);
    let pool = pool(fixture, &server);
    let (mut one, mut two, three) = (pool.get().unwrap(), pool.get().unwrap(), pool.get().unwrap());
    drop(three);
    drop(pool);
    let open =
        || server.streams.lock().unwrap().iter().filter(|stream| Arc::strong_count(stream) == 2).count();
    until("the idle connection ends", || open() == 2);
    ask(&mut one).unwrap();
    ask(&mut two).unwrap();
    drop(one);
    two.discard();
    until("the others end", || open() == 0);
    Ok(())
}

fn a_connect_outlives_its_pool(fixture: &Fixture) -> Outcome {
    let addr = fixture.nobody();
    let pool = builder(fixture, addr).retries(u32::MAX).build().unwrap();
    thread::scope(|scope| {
        let of_thread = pool.clone();
        let connecting = scope.spawn(move || {
            let mut stream = of_thread.get().unwrap();
            drop(of_thread);
            ask(&mut stream).unwrap();
        });
        until("a connect fails", || pool.stats().failed > 0);
        drop(pool);
        let _server = EchoServer::start_at(fixture, addr);
        connecting.join().unwrap();
    });
    Ok(())
}

/// Descriptors that the process keeps for later sleeps, at most. A leak in each pool is more.
const KEPT: usize = 16;

fn pools_leave_nothing_behind(fixture: &Fixture) -> Outcome {
    // The first connections open devices and start threads, which stay.
    use_a_pool(fixture);
    use_a_pool(fixture);
    let before = held_at_rest();
    (0..2 * KEPT).for_each(|_| use_a_pool(fixture));
    // With the connection manager, a few of the pools of memory stay registered in some runs. The cause is
    // not known: it is no connection, because the queue pairs and the identifiers are gone.
    if fixture.is_by_cm() {
        println!("memory regions are not compared over rdma_cm: in some runs a few stay registered");
    }
    let kept = |what| match what {
        "descriptors" => KEPT,
        "regions" if fixture.is_by_cm() => usize::MAX / 2,
        _ => 0,
    };
    let left = || before.into_iter().zip(held()).find(|((what, then), (_, now))| *now > then + kept(*what));
    let limit = Instant::now() + LONG;
    while left().is_some() && Instant::now() < limit {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(left(), None, "of {before:?}, and after more pools {:?}", held());
    Ok(())
}

/// Ends connections in all ways. The pool of memory is new, because one that stays keeps the memory of
/// the most that were open at a time.
fn use_a_pool(fixture: &Fixture) {
    let memory = Pool::new(&fixture.builder().build().unwrap().pool_config()).unwrap();
    let server = EchoServer::start_with(fixture.builder().pool(memory.clone()), fixture.anywhere());
    let config = fixture.builder().pool(memory).build().unwrap();
    let pool =
        builder(fixture, server.addr).config(config).host(fixture.nobody()).maximum(4).build().unwrap();
    let mut handles: Vec<_> = (0..4).map(|_| pool.get().unwrap()).collect();
    handles.iter_mut().for_each(|stream| ask(stream).unwrap());
    let (discarded, outlives) = (handles.pop().unwrap(), handles.pop().unwrap());
    discarded.discard();
    drop(handles);
    server.stop();
    // Every idle one has ended, and nobody accepts.
    pool.get().unwrap_err();
    assert_eq!((pool.stats().open, pool.stats().made), (1, 4));
    drop(pool);
    drop(outlives);
}

fn limits_are_checked(fixture: &Fixture) -> Outcome {
    let error = builder(fixture, "127.0.0.1:1").maximum(0).build().unwrap_err();
    assert_eq!(error.parameter(), "maximum");
    let error = builder(fixture, "127.0.0.1:1").maximum(2).minimum(3).build().unwrap_err();
    assert_eq!((error.value(), error.bound()), ("2", "at least 3"));
    Ok(())
}
