//! I18: who waits does nothing. What is counted is how often the system had to run the thread, not time: a thread that made a
//! system call was run.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases};
use trespass::{Kind, Transport, Worker};

use super::rig::{LONG, Rig, greet};

pub(crate) fn add(suite: &mut test_harness::Suite<Rig>) {
    cases!(suite: i18_a_blocked_reader_sleeps, i18_a_waiting_listener_sleeps, i18_a_waiting_worker_sleeps,
        i18_who_spins_does_not_sleep_for_what_comes_soon);
}

/// The number of the thread that asks.
fn own_number() -> u32 {
    std::fs::read_link("/proc/thread-self").unwrap().file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// How often the system switched away from a thread, of its own will or not.
fn switches(thread: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    status
        .lines()
        .filter(|line| line.contains("voluntary_ctxt_switches"))
        .map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap())
        .sum()
}

/// Sees that a thread which waits is not run for a while, once it sleeps.
fn sees_it_asleep(thread: u32) {
    let deadline = Instant::now() + LONG;
    loop {
        let before = switches(thread);
        thread::sleep(Duration::from_millis(700));
        let after = switches(thread);
        if before == after {
            return;
        }
        // It may not have fallen asleep yet; but it must, once.
        assert!(Instant::now() < deadline, "an idle thread ran {} times in 0.7 s", after - before);
    }
}

/// How often a client slept in a ping-pong of so many rounds, where a call that waits spins so long.
fn sleeps_of_a_ping_pong(rig: &Rig, rounds: u64, spin: Duration) -> (u64, Transport) {
    let (mut client, mut server) = rig.packets_with(|builder| builder.spin(spin));
    let before = client.stats().sleeps;
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..rounds {
                server.recv(&mut [0; 64]).unwrap();
                server.send(&[0; 64]).unwrap();
            }
        });
        for _ in 0..rounds {
            client.send(&[0; 64]).unwrap();
            client.recv(&mut [0; 64]).unwrap();
        }
    });
    (client.stats().sleeps - before, client.transport())
}

/// What the system alone can say is slept for all the same.
fn i18_who_spins_does_not_sleep_for_what_comes_soon(rig: &Rig) -> Outcome {
    const ROUNDS: u64 = 100;
    let (spun, transport) = sleeps_of_a_ping_pong(rig, ROUNDS, Duration::from_secs(1));
    let (slept, _) = sleeps_of_a_ping_pong(rig, ROUNDS, Duration::ZERO);
    assert!(slept > 0, "nobody slept without spinning");
    if transport == Transport::Rdma {
        // The other thread may have been kept from running for a second, but not again and again.
        assert!(spun < ROUNDS / 4, "slept {spun} times of {ROUNDS}");
    } else {
        assert!(spun > 0, "nobody slept over TCP");
    }
    Ok(())
}

fn i18_a_blocked_reader_sleeps(rig: &Rig) -> Outcome {
    let (mut client, mut server) = rig.streams();
    greet(&mut client, &mut server);
    thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        scope.spawn(move || {
            tell.send(own_number()).unwrap();
            server.read_exact(&mut [0; 1]).unwrap();
        });
        sees_it_asleep(told.recv().unwrap());
        client.write_all(b"x").unwrap();
    });
    Ok(())
}

fn i18_a_waiting_listener_sleeps(rig: &Rig) -> Outcome {
    let (mut listener, addr) = rig.listener();
    thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        scope.spawn(move || {
            tell.send(own_number()).unwrap();
            listener.accept().unwrap();
        });
        sees_it_asleep(told.recv().unwrap());
        rig.builder().connect(addr).unwrap();
    });
    Ok(())
}

fn i18_a_waiting_worker_sleeps(rig: &Rig) -> Outcome {
    let (send, receive) = std::sync::mpsc::channel();
    let (config, at) = (rig.builder().build().unwrap(), rig.anywhere());
    let serving = thread::spawn(move || {
        let mut worker = Worker::new(&config).unwrap();
        let listener = worker.listen(at, Kind::Stream).unwrap();
        send.send((own_number(), worker.local_addr(listener).unwrap())).unwrap();
        let (mut events, mut accepted) = (Vec::new(), 0);
        while accepted < 11 {
            worker.poll(&mut events, None).unwrap();
            for event in events.drain(..) {
                match event {
                    trespass::Event::Accepted { .. } => accepted += 1,
                    trespass::Event::Ready { key, .. } => worker.close(key),
                    event => panic!("{event:?}"),
                }
            }
        }
    });
    let (thread, addr) = receive.recv().unwrap();
    let clients: Vec<_> = (0..10).map(|_| rig.builder().connect(addr).unwrap()).collect();
    sees_it_asleep(thread);
    clients.into_iter().for_each(drop);
    sees_it_asleep(thread);
    rig.builder().connect(addr).unwrap();
    serving.join().unwrap();
    Ok(())
}
