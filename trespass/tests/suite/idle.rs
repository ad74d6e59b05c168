//! I18: a waiting thread does nothing. The cases count how often the operating system schedules the
//! thread, because every system call requires that. They also measure the processor time of a
//! waiting process.

use std::io::{Read, Write};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use test_harness::{Outcome, cases};
use trespass::{Event, Kind, Transport, Worker};

use super::fixture::{Fixture, LONG, greet};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: i18_a_blocked_reader_sleeps, i18_a_waiting_listener_sleeps, i18_a_waiting_worker_sleeps,
        i18_fifty_idle_connections_use_no_time,
        i18_a_spinning_reader_does_not_sleep_for_prompt_answers, i18_a_spinning_worker_does_not_sleep_for_prompt_answers,
        i18_a_worker_that_spins_sleeps_when_nothing_comes);
}

/// The thread id of the calling thread.
pub(crate) fn own_number() -> u32 {
    std::fs::read_link("/proc/thread-self").unwrap().file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// The number of context switches of a thread, voluntary or not.
pub(crate) fn switches(thread: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    status
        .lines()
        .filter(|line| line.contains("voluntary_ctxt_switches"))
        .map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap())
        .sum()
}

/// Checks that a waiting thread is not scheduled for a while, once it sleeps.
pub(crate) fn sees_it_asleep(thread: u32) {
    let deadline = Instant::now() + LONG;
    loop {
        let before = switches(thread);
        thread::sleep(Duration::from_millis(700));
        let after = switches(thread);
        if before == after {
            return;
        }
        // It may not have fallen asleep yet, but it must do so before the deadline.
        assert!(Instant::now() < deadline, "an idle thread ran {} times in 0.7 s", after - before);
    }
}

/// How often a client slept in a ping-pong of `rounds` rounds, with this spin time.
fn sleeps_of_a_ping_pong(fixture: &Fixture, rounds: u64, spin: Duration) -> (u64, Transport) {
    let (mut client, mut server) = fixture.packets_with(|builder| builder.spin(spin));
    let before = client.stats().sleeps;
    thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..rounds {
                server.recv(&mut [0; 64]).unwrap();
                pause_once(round);
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

/// Pauses longer than a thread that does not spin stays awake on any machine, and shorter than the
/// spin time of one that does.
fn pause_once(round: u64) {
    if round == 1 {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Events that only the operating system reports still end the sleep.
fn i18_a_spinning_reader_does_not_sleep_for_prompt_answers(fixture: &Fixture) -> Outcome {
    const ROUNDS: u64 = 100;
    let (spun, transport) = sleeps_of_a_ping_pong(fixture, ROUNDS, Duration::from_secs(1));
    let (slept, _) = sleeps_of_a_ping_pong(fixture, ROUNDS, Duration::ZERO);
    assert!(slept > 0, "nobody slept without spinning");
    if transport == Transport::Rdma {
        // The other thread may have been preempted for a second, but not repeatedly.
        assert!(spun < ROUNDS / 4, "slept {spun} times of {ROUNDS}");
    } else {
        assert!(spun > 0, "nobody slept over TCP");
    }
    Ok(())
}

/// How often a thread went to sleep.
fn sleeps(thread: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// How often an echoing worker slept in a ping-pong of `rounds` rounds, with this spin time.
fn sleeps_of_an_echo(fixture: &Fixture, rounds: u64, spin: Duration) -> u64 {
    let (send, receive) = mpsc::channel();
    let (config, at) = (fixture.builder().worker_spin(spin).build().unwrap(), fixture.anywhere());
    let serving = thread::spawn(move || {
        let mut worker = Worker::new(&config).unwrap();
        let listener = worker.listen(at, Kind::SeqPacket).unwrap();
        send.send(worker.local_addr(listener).unwrap()).unwrap();
        let (mut events, mut echoed, mut before) = (Vec::new(), 0, 0);
        loop {
            worker.poll(&mut events, Some(LONG)).unwrap();
            assert!(!events.is_empty(), "nothing came");
            for event in events.drain(..) {
                let Event::Ready { key, .. } = event else { continue };
                while let Ok(len) = worker.recv(key, &mut [0; 64]) {
                    worker.send(key, &[0; 64][..len]).unwrap();
                    echoed += 1;
                    if echoed == 1 {
                        before = sleeps(own_number());
                    }
                }
            }
            if echoed == rounds {
                let slept = sleeps(own_number()) - before;
                // Over TCP the next poll sends the last answer.
                worker.poll(&mut events, Some(Duration::ZERO)).unwrap();
                return slept;
            }
        }
    });
    let mut client = fixture.builder().connect_seq_packet(receive.recv().unwrap()).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    for round in 0..rounds {
        pause_once(round);
        client.send(&[0; 64]).unwrap();
        client.recv(&mut [0; 64]).unwrap();
    }
    serving.join().unwrap()
}

/// This holds over TCP as well, where the worker polls the operating system.
fn i18_a_spinning_worker_does_not_sleep_for_prompt_answers(fixture: &Fixture) -> Outcome {
    const ROUNDS: u64 = 100;
    let spun = sleeps_of_an_echo(fixture, ROUNDS, Duration::from_secs(1));
    let slept = sleeps_of_an_echo(fixture, ROUNDS, Duration::ZERO);
    println!("a worker slept {spun} times of {ROUNDS} where it spins, {slept} where not");
    assert!(slept > 0, "nobody slept without spinning");
    assert!(spun < ROUNDS / 4, "slept {spun} times of {ROUNDS}");
    Ok(())
}

fn i18_a_blocked_reader_sleeps(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    greet(&mut client, &mut server);
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            tell.send(own_number()).unwrap();
            server.read_exact(&mut [0; 1]).unwrap();
        });
        sees_it_asleep(told.recv().unwrap());
        client.write_all(b"x").unwrap();
    });
    Ok(())
}

fn i18_a_waiting_listener_sleeps(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        scope.spawn(move || {
            tell.send(own_number()).unwrap();
            listener.accept().unwrap();
        });
        sees_it_asleep(told.recv().unwrap());
        fixture.builder().connect(addr).unwrap();
    });
    Ok(())
}

fn i18_a_waiting_worker_sleeps(fixture: &Fixture) -> Outcome {
    a_waiting_worker_sleeps(fixture, Duration::ZERO)
}

/// Both system events and completions then wake it.
fn i18_a_worker_that_spins_sleeps_when_nothing_comes(fixture: &Fixture) -> Outcome {
    a_waiting_worker_sleeps(fixture, Duration::from_millis(5))
}

fn a_waiting_worker_sleeps(fixture: &Fixture, spin: Duration) -> Outcome {
    let (send, receive) = mpsc::channel();
    let (config, at) = (fixture.builder().worker_spin(spin).build().unwrap(), fixture.anywhere());
    let serving = thread::spawn(move || {
        let mut worker = Worker::new(&config).unwrap();
        let listener = worker.listen(at, Kind::Stream).unwrap();
        send.send((own_number(), worker.local_addr(listener).unwrap())).unwrap();
        let (mut events, mut accepted) = (Vec::new(), 0);
        while accepted < 11 {
            worker.poll(&mut events, None).unwrap();
            for event in events.drain(..) {
                match event {
                    Event::Accepted { .. } => accepted += 1,
                    Event::Ready { key, .. } => worker.close(key),
                    event => panic!("{event:?}"),
                }
            }
        }
    });
    let (thread, addr) = receive.recv().unwrap();
    let clients: Vec<_> = (0..10).map(|_| fixture.builder().connect(addr).unwrap()).collect();
    sees_it_asleep(thread);
    clients.into_iter().for_each(drop);
    sees_it_asleep(thread);
    fixture.builder().connect(addr).unwrap();
    serving.join().unwrap();
    Ok(())
}

/// Processor time of this process, including all its threads and the kernel's work for them.
fn own_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().expect("a time")
}

/// Both ends of fifty idle connections, in two waiting workers. The case measures processor time,
/// so the load of other processes does not matter.
fn i18_fifty_idle_connections_use_no_time(fixture: &Fixture) -> Outcome {
    const CONNECTIONS: usize = 50;
    const WATCHED: Duration = Duration::from_secs(2);
    // Without probes, and with probes a second apart, for which five times the expected cost is
    // allowed.
    for (keepalive, most) in [(None, 5), (Some(Duration::from_secs(1)), 100)] {
        let config = fixture.builder().keepalive(keepalive).build().unwrap();
        let (send, receive) = mpsc::channel();
        let addr = {
            let (config, at) = (config.clone(), fixture.anywhere());
            let (tell, told) = mpsc::channel();
            let tell_end = send.clone();
            thread::spawn(move || {
                let mut worker = Worker::new(&config).unwrap();
                let listener = worker.listen(at, Kind::Stream).unwrap();
                tell.send(worker.local_addr(listener).unwrap()).unwrap();
                wait_for(&mut worker, CONNECTIONS + 1, &tell_end);
            });
            told.recv().unwrap()
        };
        let clients = thread::spawn({
            let config = config.clone();
            move || {
                let mut worker = Worker::new(&config).unwrap();
                for _ in 0..CONNECTIONS {
                    worker.connect(addr, Kind::Stream).unwrap();
                }
                wait_for(&mut worker, CONNECTIONS, &send);
            }
        });
        // Closing this connection ends the server, and the server's end ends the clients.
        let last = config.connect(addr).unwrap();
        (0..2).for_each(|_| receive.recv_timeout(LONG).expect("all are connected"));
        let settled = Instant::now() + LONG;
        loop {
            let before = own_time();
            thread::sleep(Duration::from_millis(300));
            if own_time() - before < Duration::from_millis(1) {
                break;
            }
            assert!(Instant::now() < settled, "it does not come to rest");
        }
        let before = own_time();
        thread::sleep(WATCHED);
        let used = own_time() - before;
        println!(
            "{CONNECTIONS} idle connections, keepalive {keepalive:?}: {used:?} of a processor in {WATCHED:?}"
        );
        assert!(used < Duration::from_millis(most), "{used:?} in {WATCHED:?} with keepalive {keepalive:?}");
        drop(last);
        clients.join().unwrap();
    }
    Ok(())
}

/// Completes a worker's handshakes, reports that, and waits for the end of one connection.
fn wait_for(worker: &mut Worker, connections: usize, told: &mpsc::Sender<()>) {
    let (mut events, mut connected) = (Vec::new(), 0);
    loop {
        worker.poll(&mut events, None).unwrap();
        for event in events.drain(..) {
            match event {
                Event::Accepted { .. } | Event::Connected { .. } => {
                    connected += 1;
                    if connected == connections {
                        told.send(()).unwrap();
                    }
                }
                Event::Ready { readiness, .. } if readiness.readable => return,
                Event::Ready { .. } => (),
                event => panic!("{event:?}"),
            }
        }
    }
}
