//! A fork: the listener stays the parent's, whatever the child does with its copy.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use sideway::soft;
use trespass::{Builder, Listener, Policy, Stats, Stream, Worker};

use crate::proxy::Proxy;

/// Runs `child` in a forked process, which it ends with success if it returns `true`.
fn fork(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child only calls `child` and `_exit`. Other threads of this process, which do not
    // exist there, are the service thread and the test harness, which both sleep.
    let id = unsafe { libc::fork() };
    assert!(id >= 0, "{}", std::io::Error::last_os_error());
    if id == 0 {
        let code = if child() { 0 } else { 1 };
        // SAFETY: ends the child at once, without the parent's handlers.
        unsafe { libc::_exit(code) };
    }
    id
}

fn wait_for(id: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the process is a child of this one, and `status` lives for the call.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    status
}

fn says_hello(listener: &Listener) {
    says_hello_by(Policy::TcpOnly, listener);
}

fn says_hello_by(policy: Policy, listener: &Listener) {
    let addr = listener.local_addr().unwrap();
    let client = thread::spawn(move || Builder::new().policy(policy).connect(addr).unwrap());
    let (server, _): (Stream, _) = listener.accept().unwrap();
    assert_eq!(server.peer_addr().unwrap(), client.join().unwrap().local_addr().unwrap());
}

#[test]
fn a_listener_stays_the_parents() {
    alone!(a_listener_stays_the_parents);
    let listener = Builder::new().policy(Policy::TcpOnly).bind("127.0.0.1:0").unwrap();
    says_hello(&listener);
    let mut copy = Some(listener);
    let child = {
        let copy = &mut copy;
        fork(move || {
            let Some(listener) = copy.take() else { return false };
            let error = listener.accept().unwrap_err();
            drop(listener);
            error.to_string().contains("make another one in the child")
        })
    };
    assert_eq!(wait_for(child), 0, "the child's call did not fail as documented");
    says_hello(copy.as_ref().unwrap());
}

fn soft_device() {
    let mut config = soft::Config::from_env().unwrap();
    config.fabric = format!("trespass-{}", std::process::id());
    sideway::set_default_provider(soft::provider_with(config).unwrap());
}

/// The child's calls fail, and its drop tells the peer nothing.
#[test]
fn a_connection_stays_the_parents() {
    alone!(a_connection_stays_the_parents);
    soft_device();
    for policy in [Policy::TcpOnly, Policy::RequireRdma] {
        let builder = || Builder::new().policy(policy).probe_timeout(Duration::from_secs(3));
        let listener = builder().bind("127.0.0.1:0").unwrap();
        let mut client = builder().connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"before").unwrap();
        let mut copy = Some(client);
        let child = {
            let copy = &mut copy;
            fork(move || {
                let Some(client) = copy.take() else { return false };
                let (mut reading, mut writing) = client.split();
                let of_halves = [reading.read(&mut [0]).unwrap_err(), writing.write(b"x").unwrap_err()];
                let Ok(mut client) = reading.reunite(writing) else { return false };
                let errors = [
                    client.write(b"of the child").unwrap_err(),
                    client.read(&mut [0]).unwrap_err(),
                    client.shutdown(Shutdown::Both).unwrap_err(),
                    client.readiness().unwrap_err(),
                    client.peek(&mut [0]).unwrap_err(),
                    client.flush().unwrap_err(),
                    client.drain(Instant::now()).unwrap_err(),
                    client.set_cork(true).unwrap_err(),
                    client.writable_fd().unwrap_err(),
                    Worker::new(&Builder::new().build().unwrap()).unwrap().add(client).unwrap_err(),
                ];
                let mut all = errors.iter().chain(&of_halves);
                all.all(|error| error.to_string().contains("make another one in the child"))
            })
        };
        assert_eq!(wait_for(child), 0, "{policy:?}: the child's call did not fail as documented");
        let mut client = copy.unwrap();
        for _ in 0..3 {
            client.write_all(b"after").unwrap();
        }
        drop(client);
        let mut got = String::new();
        server.read_to_string(&mut got).unwrap();
        assert_eq!(got, "beforeafterafterafter", "{policy:?}");
    }
}

/// A child sends no bytes on the control connection, whose copy it has closed or still has. The
/// parent goes on sending them.
#[test]
fn the_control_connection_stays_the_parents() {
    alone!(the_control_connection_stays_the_parents);
    soft_device();
    let (interval, earliest) = (Duration::from_millis(100), Duration::from_millis(75));
    let limit = 20 * interval;
    let builder = || {
        let builder = Builder::new().policy(Policy::RequireRdma).probe_timeout(Duration::from_secs(3));
        builder.control_keepalive(Some(interval))
    };
    let listener = builder().bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::new(listener.local_addr().unwrap(), limit);
    let began = Instant::now();
    let mut copy = Some(builder().connect(proxy.addr).unwrap());
    let (mut server, _) = listener.accept().unwrap();
    let of_the_handshake = proxy.carried();
    for drops in [false, true] {
        let child = {
            let copy = &mut copy;
            fork(move || {
                if drops {
                    drop(copy.take());
                }
                // This starts the child's own service thread.
                says_hello(&Builder::new().policy(Policy::TcpOnly).bind("127.0.0.1:0").unwrap());
                thread::sleep(10 * interval);
                true
            })
        };
        assert_eq!(wait_for(child), 0);
    }
    thread::sleep(limit);
    for (now, then) in proxy.carried().into_iter().zip(of_the_handshake) {
        let most = began.elapsed().as_millis() / earliest.as_millis() + 1;
        assert!((1..=most).contains(&u128::from(now - then)), "{now} - {then}, and at most {most}");
    }
    assert_eq!(proxy.ended(), 0);
    let mut client = copy.unwrap();
    client.write_all(b"after").unwrap();
    drop(client);
    let mut got = String::new();
    server.read_to_string(&mut got).unwrap();
    assert_eq!(got, "after");
}

/// The same for a connect in progress, whose set of descriptors the child shares.
#[test]
fn a_connect_in_progress_stays_the_parents() {
    alone!(a_connect_in_progress_stays_the_parents);
    soft_device();
    for policy in [Policy::TcpOnly, Policy::RequireRdma] {
        let builder = || Builder::new().policy(policy).probe_timeout(Duration::from_secs(3));
        let listener = builder().bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        // The first poll sends this side's HELLO, and has made a queue pair for it.
        let in_progress = (0..50).find_map(|_| {
            let mut connecting = builder().start_connect(addr).unwrap();
            match connecting.poll() {
                Poll::Pending => Some(connecting),
                // The listener was as fast as this thread.
                Poll::Ready(connected) => {
                    drop((connected.unwrap(), listener.accept().unwrap()));
                    None
                }
            }
        });
        let mut copy = Some(in_progress.expect("a connect that is not complete at once"));
        let child = {
            let copy = &mut copy;
            fork(move || {
                let Some(mut connecting) = copy.take() else { return false };
                let Poll::Ready(Err(error)) = connecting.poll() else { return false };
                drop(connecting);
                error.to_string().contains("make another one in the child")
            })
        };
        assert_eq!(wait_for(child), 0, "{policy:?}: the child's call did not fail as documented");
        let mut client = copy.unwrap().wait().unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"after").unwrap();
        drop(client);
        let mut got = String::new();
        server.read_to_string(&mut got).unwrap();
        assert_eq!(got, "after", "{policy:?}");
    }
}

/// Forks while threads of the parent have turns of the connection. No call of a child waits for a
/// turn that nobody ends, and the end of a child waits for nothing.
#[test]
fn a_connection_in_use_stays_the_parents() {
    alone!(a_connection_in_use_stays_the_parents);
    soft_device();
    for policy in [Policy::TcpOnly, Policy::RequireRdma] {
        fork_while_in_use(policy);
    }
}

fn fork_while_in_use(policy: Policy) {
    let builder = || Builder::new().policy(policy).probe_timeout(Duration::from_secs(3));
    let listener = builder().bind("127.0.0.1:0").unwrap();
    let client = builder().connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let writes = AtomicBool::new(true);
    let written = thread::scope(|scope| {
        let reading = scope.spawn(|| std::io::copy(&mut server, &mut std::io::sink()).unwrap());
        let writing = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut count = 0;
                while writes.load(Ordering::Relaxed) {
                    count += (&client).write(&[1; 100]).unwrap() as u64;
                }
                count
            })
        });
        let mut outcomes = Vec::new();
        for _ in 0..30 {
            // SAFETY: as in `fork`; the other threads hold no lock that the child takes, which is what
            // this test shows.
            let id = unsafe { libc::fork() };
            assert!(id >= 0);
            if id == 0 {
                // SAFETY: ends the child if one of its calls waits.
                unsafe { libc::alarm(10) };
                let failed = client.shutdown(Shutdown::Both).is_err()
                    && (&client).write(b"of the child").is_err()
                    && client.stats() == Stats::default();
                // SAFETY: ends the child as a C program would, with its handlers.
                unsafe { libc::exit(i32::from(!failed)) };
            }
            outcomes.push(wait_for(id));
        }
        // The threads end before this one can fail.
        writes.store(false, Ordering::Relaxed);
        let written: u64 = writing.into_iter().map(|thread| thread.join().unwrap()).sum();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(reading.join().unwrap(), written);
        assert_eq!(outcomes, [0; 30], "{policy:?}: a child's call did not fail, or it waited");
        written
    });
    assert!(written > 0);
}

/// Each child of a forking server has a listener with the parent's socket, or one on its port.
#[test]
fn children_serve_one_port() {
    alone!(children_serve_one_port);
    const CLIENTS: u8 = 12;
    let builder = || Builder::new().policy(Policy::TcpOnly).reuse_port(true);
    // This connection starts the parent's service thread before it forks.
    says_hello(&builder().bind("127.0.0.1:0").unwrap());
    for inherited in [true, false] {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = if inherited {
            socket.local_addr().unwrap()
        } else {
            builder().bind("127.0.0.1:0").unwrap().local_addr().unwrap()
        };
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let children = [(); 2].map(|()| {
            fork(|| {
                let config = builder().build().unwrap();
                let listener = if inherited {
                    config.listen_with(socket.try_clone().unwrap()).unwrap()
                } else {
                    config.bind(addr).unwrap()
                };
                there.write_all(b"!").unwrap();
                loop {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    stream.write_all(&byte).unwrap();
                }
            })
        });
        here.read_exact(&mut [0; 2]).unwrap();
        for client in 0..CLIENTS {
            let mut stream = builder().connect(addr).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream.write_all(&[client]).unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [client], "inherited: {inherited}");
        }
        for child in children {
            // SAFETY: the process is a child of this one that has not been waited for.
            assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
            wait_for(child);
        }
    }
}

/// A worker's connections are the parent's, too.
#[test]
fn a_worker_stays_the_parents() {
    alone!(a_worker_stays_the_parents);
    soft_device();
    let listener = Builder::new().bind("127.0.0.1:0").unwrap();
    let client = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let mut worker = Worker::new(&Builder::new().build().unwrap()).unwrap();
    let key = worker.add(client).unwrap();
    let mut copy = Some(worker);
    let child = {
        let copy = &mut copy;
        fork(move || {
            let Some(mut worker) = copy.take() else { return false };
            let polled = worker.poll(&mut Vec::new(), Some(Duration::ZERO)).unwrap_err();
            let written = worker.write(key, b"of the child").unwrap_err();
            drop(worker);
            [polled, written].iter().all(|error| error.to_string().contains("make another one in the child"))
        })
    };
    assert_eq!(wait_for(child), 0, "the child's call did not fail as documented");
    let mut worker = copy.unwrap();
    assert_eq!(worker.write(key, b"after").unwrap(), 5);
    worker.close(key);
    let mut got = String::new();
    thread::scope(|scope| {
        scope.spawn(move || drop(worker));
        server.read_to_string(&mut got).unwrap();
    });
    assert_eq!(got, "after");
}

/// Nobody listens any more when both have dropped it, although the child lives.
#[test]
fn a_child_lets_go_of_the_port() {
    alone!(a_child_lets_go_of_the_port);
    let listener = Builder::new().policy(Policy::TcpOnly).bind("127.0.0.1:0").unwrap();
    says_hello(&listener);
    let addr = listener.local_addr().unwrap();
    let (mut here, mut there) = UnixStream::pair().unwrap();
    // If the service thread is in a turn, the child cannot take the socket from it.
    thread::sleep(Duration::from_millis(200));
    let mut copy = Some(listener);
    let child = {
        let copy = &mut copy;
        fork(move || {
            drop(copy.take());
            there.write_all(b"!").is_ok() && there.read(&mut [0]).is_ok()
        })
    };
    here.read_exact(&mut [0]).unwrap();
    drop(copy);
    assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    here.write_all(b"!").unwrap();
    assert_eq!(wait_for(child), 0);
}

/// The child has neither the service thread of the parent nor its device. It starts and opens new ones.
#[test]
fn a_child_may_listen() {
    alone!(a_child_may_listen);
    soft_device();
    for policy in [Policy::TcpOnly, Policy::RequireRdma] {
        let listener = Builder::new().policy(policy).bind("127.0.0.1:0").unwrap();
        says_hello_by(policy, &listener);
        let child = fork(|| {
            let own = Builder::new().policy(policy).bind("127.0.0.1:0").unwrap();
            says_hello_by(policy, &own);
            true
        });
        assert_eq!(wait_for(child), 0, "{policy:?}");
        says_hello_by(policy, &listener);
    }
}

/// The peer of a child's connection gets the bytes that the child wrote before its exit.
#[test]
fn the_exit_of_a_child_sends_what_it_wrote() {
    alone!(the_exit_of_a_child_sends_what_it_wrote);
    soft_device();
    let sent = test_harness::bytes(16, 700_000);
    for policy in [Policy::TcpOnly, Policy::RequireRdma] {
        let builder = || Builder::new().policy(policy).probe_timeout(Duration::from_secs(3));
        // The parent has connections, too, and their function for the end of the process.
        let listener = builder().bind("127.0.0.1:0").unwrap();
        says_hello_by(policy, &listener);
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let child = fork(|| {
            let own = builder().bind("127.0.0.1:0").unwrap();
            there.write_all(&own.local_addr().unwrap().port().to_le_bytes()).unwrap();
            let (mut stream, _) = own.accept().unwrap();
            stream.write_all(&sent).unwrap();
            std::mem::forget(stream);
            // SAFETY: ends the child as a C program would, with its handlers.
            unsafe { libc::exit(0) };
        });
        let mut port = [0; 2];
        here.read_exact(&mut port).unwrap();
        let mut client = builder().connect(("127.0.0.1", u16::from_le_bytes(port))).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        thread::sleep(Duration::from_millis(300));
        let mut got = Vec::new();
        let end = client.read_to_end(&mut got);
        assert!(got == sent && end.is_ok(), "{policy:?}: {} bytes, then {end:?}", got.len());
        assert_eq!(wait_for(child), 0, "{policy:?}");
        says_hello_by(policy, &listener);
    }
}
