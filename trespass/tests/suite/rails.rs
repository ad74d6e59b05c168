//! Connections over several software devices, some of which fail. One of them is left alone, so that
//! programs notice nothing: all data arrives once and in order, and every lent block returns.

use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use sideway::soft::{self, faults};
use test_harness::{Outcome, RunOptions, Suite, cases};
use trespass::{Builder, SeqPacket, Stats, Stream};

use super::faults::{all_have_acted, expect_all, nothing_is_left, packets, rules, streams};
use super::fixture::{Fixture, LONG, Target, greet};
use super::traffic::{self, TrafficPlan, WaitLimits, both};

/// The limit of a case, many times its usual duration.
const CASE_LIMIT: Duration = Duration::from_secs(300);

/// Each failure makes an event. The nap is for requests that a device never completes.
const WATCHFUL: WaitLimits = WaitLimits { limit: LONG, nap: Duration::from_millis(20) };

pub(crate) fn run(part: &'static str) -> ExitCode {
    let mut config = soft::Config::from_env().expect("a valid environment");
    config.time_scale = 0.01;
    config.devices = 3;
    sideway::set_default_provider(soft::provider_with(config).expect("no device is listed yet"));
    let mut suite = Suite::<Fixture>::default().of_part(part);
    cases!(suite: further_rails_join, failures_of_single_requests_are_not_visible, hung_requests_are_given_up,
        ports_that_flap_are_not_visible, a_thousand_failures_lose_nothing, without_a_rail_the_connection_fails,
        sources_that_the_peer_may_still_read_are_kept, one_device_is_one_rail,
        a_program_that_computes_repeats_its_frames, a_silent_device_of_an_idle_connection_is_given_up, sets_take_many_connections);
    let fixture = Ok(Fixture::new(Target::SoftRails, Ipv4Addr::LOCALHOST.into()));
    suite.run(
        &test_harness::arguments(),
        &fixture,
        RunOptions { required: true, limit: CASE_LIMIT, advice: "" },
    )
}

/// Failed rails come back after milliseconds, and retries run out in milliseconds.
fn builder(fixture: &Fixture) -> Builder {
    fixture
        .builder()
        .ack_timeout(14)
        .rnr_retry(0)
        .pool_max(512 << 20)
        .pool_initial(16 << 20)
        .rail_timeout(Duration::from_millis(300))
        .__rail_backoff(Duration::from_millis(2))
}

fn plans(seed: u64, count: usize) -> [TrafficPlan; 2] {
    [0, 1].map(|side| TrafficPlan { seed: 2 * seed + side, count, most: 400_000 })
}

/// Sends messages, then bytes, both ways under rules. Returns the sum of the connections' counters.
fn carries_all(fixture: &Fixture, text: &str, seed: u64, count: usize) -> Stats {
    let builder = builder(fixture);
    let mut packets = packets(fixture, &builder);
    until_all_join(&mut packets, SeqPacket::stats, |[client, server]| {
        client.send(b"one").unwrap();
        assert_eq!(server.recv(&mut [0; 8]).unwrap(), 3);
        server.send(b"two").unwrap();
        assert_eq!(client.recv(&mut [0; 8]).unwrap(), 3);
    });
    let pool = packets[0].pool().clone();
    rules(text, seed);
    let messages =
        both(packets, plans(seed, count), |end, out, into| traffic::messages(end, out, into, WATCHFUL));
    expect_all(&messages, text);
    assert!(messages.iter().all(|end| end.got == count), "{text}: {messages:?}");
    let mut sum: Stats = messages.iter().map(|end| end.stats).sum();
    drop(messages);
    faults::clear();
    let mut streams = streams(fixture, &builder);
    until_all_join(&mut streams, Stream::stats, greet_both);
    rules(text, seed + 500);
    let bytes =
        both(streams, plans(seed + 1000, count), |end, out, into| traffic::bytes(end, out, into, WATCHFUL));
    expect_all(&bytes, text);
    sum += bytes.iter().map(|end| end.stats).sum();
    drop(bytes);
    let acted = faults::report().iter().filter(|rule| rule.fired > 0).count();
    faults::clear();
    nothing_is_left(&pool);
    println!(
        "{text}: {acted} of the rules acted on the stream, {} rails joined, {} failed, {} requests again",
        sum.rails_joined, sum.rails_failed, sum.repeated
    );
    sum
}

fn greet_both([client, server]: &mut [Stream; 2]) {
    greet(client, server);
    greet(server, client);
}

/// Exchanges data until both ends have all three rails.
fn until_all_join<E>(ends: &mut [E; 2], stats: fn(&E) -> Stats, exchange: impl Fn(&mut [E; 2])) {
    let deadline = Instant::now() + LONG;
    while ends.iter().any(|end| stats(end).rails_joined < 2) {
        assert!(Instant::now() < deadline, "{:?}", [stats(&ends[0]), stats(&ends[1])]);
        exchange(ends);
    }
}

/// The kernel limits how many nested sets may have one descriptor.
fn sets_take_many_connections(fixture: &Fixture) -> Outcome {
    faults::clear();
    let config = || builder(fixture).rails_after(u64::MAX);
    let set = || epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let [inner, outer] = [set(), set()];
    let (number, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ET);
    epoll::add(&outer, &inner, number, flags).unwrap();
    let ends: Vec<_> = (0..120).flat_map(|_| streams(fixture, &config())).collect();
    for end in &ends {
        epoll::add(&inner, end, number, flags).unwrap();
        epoll::add(&inner, end.writable_fd().unwrap(), number, flags).unwrap();
    }
    Ok(())
}

/// Each device carries requests.
fn further_rails_join(fixture: &Fixture) -> Outcome {
    faults::clear();
    // Requests of each device are delayed, so that each rule acts only if its device is used.
    let text = "delay=10us device=soft0; delay=10us device=soft1; delay=10us device=soft2";
    let stats = carries_all(fixture, text, 1, 60);
    assert_eq!((stats.rails_failed, stats.repeated), (0, 0));
    let mut streams = streams(fixture, &builder(fixture));
    until_all_join(&mut streams, Stream::stats, greet_both);
    rules(text, 1);
    (0..200).for_each(|_| greet_both(&mut streams));
    all_have_acted();
    faults::clear();
    Ok(())
}

/// Each fails the queue pair of a device in the midst of the traffic. A request that completes as
/// flushed is not among them, because the device would execute those behind it.
const FATAL: &[&str] = &[
    "drop opcode=send,send_with_imm device=soft1 nth=30",
    "drop opcode=rdma_read device=soft1 nth=3",
    "status=loc_qp_op_err opcode=send,send_with_imm device=soft2 nth=20",
    "status=rem_op_err opcode=rdma_read device=soft2 nth=2",
    "status=retry_exc_err opcode=send,send_with_imm device=soft0 nth=50",
    "status=fatal_err opcode=send,send_with_imm device=soft0 nth=50",
    "status=general_err opcode=rdma_read device=soft0 nth=4",
    "qp_fatal opcode=send,send_with_imm device=soft0 nth=50",
    "qp_fatal opcode=rdma_read device=soft1 nth=2",
    "qp_fatal device=soft1 nth=20; qp_fatal device=soft2 nth=30",
    // Both fail within the first one's repetition.
    "qp_fatal device=soft0 nth=60; qp_fatal device=soft1 nth=61",
];

fn failures_of_single_requests_are_not_visible(fixture: &Fixture) -> Outcome {
    faults::clear();
    for (seed, text) in FATAL.iter().enumerate() {
        let stats = carries_all(fixture, text, 10 + seed as u64, 90);
        assert!(stats.rails_failed > 0, "{text}: {stats:?}");
    }
    Ok(())
}

fn hung_requests_are_given_up(fixture: &Fixture) -> Outcome {
    faults::clear();
    for (seed, text) in [
        "hang opcode=send,send_with_imm device=soft1 nth=30",
        "hang=silent opcode=send,send_with_imm device=soft1 nth=30",
        "hang=silent opcode=rdma_read device=soft2 nth=3",
        "hang device=soft0 nth=60",
    ]
    .iter()
    .enumerate()
    {
        let stats = carries_all(fixture, text, 50 + seed as u64, 90);
        assert!(stats.rails_failed > 0 && stats.repeated > 0, "{text}: {stats:?}");
    }
    Ok(())
}

fn ports_that_flap_are_not_visible(fixture: &Fixture) -> Outcome {
    faults::clear();
    for (seed, text) in [
        "port_flap=1ms..20ms:5ms..30ms device=soft1 nth=1; port_flap=1ms..20ms:5ms..30ms device=soft2 nth=1",
        "port_flap=1ms..20ms:5ms..30ms device=soft0 nth=1; port_flap=1ms..20ms:5ms..30ms device=soft2 nth=1",
    ]
    .iter()
    .enumerate()
    {
        carries_all(fixture, text, 70 + seed as u64, 90);
    }
    Ok(())
}

/// Queue pairs of two of three devices fail at random, until a thousand have.
fn a_thousand_failures_lose_nothing(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (mut failed, mut seed) = (0, 100);
    while failed < 1000 {
        let kept = seed % 3;
        let others: Vec<_> = (0..3).filter(|device| *device != kept).collect();
        let text = format!(
            "qp_fatal chance=0.03 device=soft{}; qp_fatal chance=0.03 device=soft{}",
            others[0], others[1]
        );
        failed += carries_all(fixture, &text, seed, 120).rails_failed;
        seed += 1;
    }
    println!("{failed} rails failed in {} runs", seed - 100);
    Ok(())
}

fn without_a_rail_the_connection_fails(fixture: &Fixture) -> Outcome {
    faults::clear();
    let [mut client, mut server] = streams(fixture, &builder(fixture));
    for _ in 0..20 {
        greet(&mut client, &mut server);
        greet(&mut server, &mut client);
    }
    rules("qp_fatal", 1);
    let deadline = Instant::now() + LONG;
    let error = loop {
        assert!(Instant::now() < deadline, "nobody was told");
        let sent = client.write_all(&[1; 1000]);
        if let Err(error) = sent {
            break error;
        }
    };
    assert!(traffic::is_failure(&error), "{error}");
    faults::clear();
    Ok(())
}

/// A rail fails within a write, and the program makes no other call for a while. The peer waits.
fn a_program_that_computes_repeats_its_frames(fixture: &Fixture) -> Outcome {
    faults::clear();
    let mut slowest = Duration::ZERO;
    for seed in 0..6 {
        let mut ends = streams(fixture, &builder(fixture));
        until_all_join(&mut ends, Stream::stats, greet_both);
        let [mut client, mut server] = ends;
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let begin = thread::scope(|scope| {
            let waits = scope.spawn(|| {
                server.read_exact(&mut [0; 1000]).unwrap();
                Instant::now()
            });
            thread::sleep(Duration::from_millis(5));
            rules("qp_fatal opcode=send,send_with_imm nth=1", seed);
            let begin = Instant::now();
            client.write_all(&[1; 1000]).unwrap();
            thread::sleep(Duration::from_millis(500));
            waits.join().unwrap() - begin
        });
        slowest = slowest.max(begin);
        faults::clear();
    }
    println!("the peer had the bytes after {slowest:?} at most");
    assert!(slowest < Duration::from_millis(400), "{slowest:?}");
    Ok(())
}

/// The keepalive is shorter than the time after which a rail is given up.
fn a_silent_device_of_an_idle_connection_is_given_up(fixture: &Fixture) -> Outcome {
    faults::clear();
    let builder = builder(fixture);
    let builder = builder.keepalive(Some(Duration::from_millis(200))).rail_timeout(Duration::from_secs(3));
    let mut ends = streams(fixture, &builder);
    until_all_join(&mut ends, Stream::stats, greet_both);
    rules("hang=silent opcode=rdma_write device=soft0", 1);
    let (begin, deadline) = (Instant::now(), Instant::now() + LONG);
    while ends.iter().all(|end| end.stats().rails_failed == 0) {
        assert!(Instant::now() < deadline, "{:?}", [ends[0].stats(), ends[1].stats()]);
        for end in &mut ends {
            end.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            assert_eq!(end.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
    }
    println!("given up after {:?}", begin.elapsed());
    ends.iter().for_each(|end| end.set_read_timeout(None).unwrap());
    greet_both(&mut ends);
    faults::clear();
    Ok(())
}

/// The devices do not stop the queue pairs, so that the peer could still read a lent block.
fn sources_that_the_peer_may_still_read_are_kept(fixture: &Fixture) -> Outcome {
    faults::clear();
    let mut ends = streams(fixture, &builder(fixture));
    until_all_join(&mut ends, Stream::stats, greet_both);
    let [mut client, server] = ends;
    let mut block = client.buffer(300_000).unwrap();
    block.bytes_mut()[..300_000].fill(7);
    let place = block.as_ptr();
    rules("hang opcode=rdma_read; errno=EIO call=modify_qp", 1);
    let ticket = client.send_buf(block, 300_000).map_err(|refused| refused.error).unwrap();
    drop(server);
    let back = client.next_completion().unwrap().expect("a lent block");
    assert_eq!((back.ticket, back.sent), (ticket, false));
    assert!(back.block.bytes()[..300_000] == [7; 300_000]);
    assert_ne!(back.block.as_ptr(), place, "the peer may still read it there");
    faults::clear();
    Ok(())
}

fn one_device_is_one_rail(fixture: &Fixture) -> Outcome {
    faults::clear();
    let one = || builder(fixture).device("soft1");
    for (client, server) in [(one(), builder(fixture)), (builder(fixture), one())] {
        let (mut client, mut server) = fixture.streams_of(client, server);
        for _ in 0..20 {
            greet(&mut client, &mut server);
            greet(&mut server, &mut client);
        }
        assert_eq!((client.stats().rails_joined, server.stats().rails_joined), (0, 0));
    }
    Ok(())
}
