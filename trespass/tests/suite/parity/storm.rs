//! Many clients at once: each is served.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_harness::Outcome;

use super::net::{Net, NetListener, Own, Std};
use crate::fixture::{Fixture, read_exactly};
use crate::ready::{again, timespec};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    test_harness::cases!(suite: a_storm_is_served, connects_on_a_busy_machine);
}

/// The outcome of a storm.
#[derive(Debug, PartialEq)]
pub(crate) struct Served {
    accepted: usize,
    answered: usize,
    errors: BTreeMap<String, usize>,
}

fn a_storm_is_served(fixture: &Fixture) -> Outcome {
    let clients = fixture.storm();
    assert_eq!(storm(&Own::new(fixture), clients), storm(&Std, clients), "this crate, and `std::net`");
    Ok(())
}

/// Threads that only count keep every processor busy.
fn connects_on_a_busy_machine(fixture: &Fixture) -> Outcome {
    let clients = fixture.storm().min(120);
    let done = AtomicBool::new(false);
    let [own, std] = thread::scope(|scope| {
        for _ in 0..2 * thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let served = catch_unwind(|| [storm(&Own::new(fixture), clients), storm(&Std, clients)]);
        done.store(true, Ordering::Relaxed);
        served.unwrap_or_else(|panic| resume_unwind(panic))
    });
    assert_eq!(own, std, "this crate, and `std::net`");
    Ok(())
}

/// Raises the limit of open files for both ends, each of which has two descriptors. Root may raise the
/// hard limit, too.
pub(crate) fn raise_limit_of_files(clients: usize) {
    let needed = clients as u64 * 4 + 500;
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.map(|maximum| maximum.max(needed));
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap_or_else(|error| {
        panic!("{clients} clients need {needed} descriptors: raise the hard limit (`ulimit -Hn`): {error}")
    });
}

/// All clients connect at the same moment, ask, and stay until the last one is served.
pub(crate) fn storm<N: Net>(net: &N, clients: usize) -> Served {
    raise_limit_of_files(clients);
    let (listener, addr) = net.listen();
    let (begin, done) = (Barrier::new(clients), AtomicBool::new(false));
    thread::scope(|scope| {
        let ask = || -> Result<N::Stream, String> {
            begin.wait();
            let mut client = net.connect(addr).map_err(|error| format!("connect: {error}"))?;
            client.write_all(b"hi").map_err(|error| format!("write: {error}"))?;
            let mut answer = [0; 2];
            client.read_exact(&mut answer).map_err(|error| format!("read: {error}"))?;
            if &answer == b"hi" { Ok(client) } else { Err(format!("another's answer: {answer:?}")) }
        };
        let small = || thread::Builder::new().stack_size(512 << 10);
        let asking: Vec<_> = (0..clients).map(|_| small().spawn_scoped(scope, ask).unwrap()).collect();
        let serving = scope.spawn(|| serve(&listener, clients, &done));
        let asked: Vec<_> = asking.into_iter().map(|client| client.join().unwrap()).collect();
        done.store(true, Ordering::Release);
        let servers = serving.join().unwrap();
        let mut served = Served { accepted: servers.len(), answered: 0, errors: BTreeMap::new() };
        for outcome in &asked {
            match outcome {
                Ok(_) => served.answered += 1,
                Err(error) => {
                    *served.errors.entry(error.replace(&addr.to_string(), "ADDR")).or_default() += 1
                }
            }
        }
        served
    })
}

/// Answers all clients, or those that come before the last one has given up.
fn serve<L: NetListener<Stream: Read + Write>>(
    listener: &L,
    clients: usize,
    done: &AtomicBool,
) -> Vec<L::Stream> {
    listener.set_nonblocking(true).unwrap();
    let (mut servers, look) = (Vec::new(), timespec(Duration::from_millis(100)));
    while servers.len() < clients && !done.load(Ordering::Acquire) {
        let mut descriptors = [PollFd::new(listener, PollFlags::IN)];
        again(|| Ok(poll(&mut descriptors, Some(&look))?));
        while let Ok(mut server) = listener.accept() {
            let question = read_exactly(&mut server, 2);
            server.write_all(&question).unwrap();
            servers.push(server);
        }
    }
    servers
}
