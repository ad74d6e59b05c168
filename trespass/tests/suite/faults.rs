//! Random traffic over a device that injects every fault that rules can express
//! (`docs/soft-rnic-faults.md`).
//!
//! Programs do not notice the faults that the device repairs: all data arrives once and in order,
//! and every lent block returns. Faults beyond repair end the connection on both sides, in bounded
//! time and with a descriptive error. Data that arrived before that is a prefix of the data sent,
//! and every block returns all the same. In either case nothing leaks, and the next connection
//! works.
//!
//! `flip` is not among the rules, because the network's checksums guarantee that bytes arrive
//! unchanged. The fuzz target `frames` covers corrupted frames.

mod processes;
mod resets;
mod windows;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use sideway::soft::{self, faults};
use test_harness::{Outcome, RunOptions, Suite, cases};
use trespass::{Builder, Listener, Policy, Pool, SeqPacket, Stream, Transport};

use super::fixture::{Fixture, LONG, Target, greet};
use super::parity::net::{Own, Std};
use super::parity::storm::storm;
use super::traffic::{self, TrafficPlan, TrafficResult, WaitLimits, both, is_failure};

/// The limit of a case, many times its usual duration.
const CASE_LIMIT: Duration = Duration::from_secs(300);

/// Every fault that the device repairs wakes the waiting thread, so no periodic call is needed.
const PATIENT: WaitLimits = WaitLimits { limit: LONG, nap: LONG };

/// The tests must make calls to detect a silent device.
const WATCHFUL: WaitLimits = WaitLimits { limit: LONG, nap: Duration::from_millis(20) };

/// Selects the part of a child process.
const CHILD: &str = "TRESPASS_FAULTS_CHILD";

/// The rules that the child process runs under.
const RULES: &str = "TRESPASS_FAULTS_RULES";

/// The seed of the child's data.
const OF_CHILD: u64 = 40;

pub(crate) fn run(part: &'static str) -> ExitCode {
    let mut config = soft::Config::from_env().expect("a valid environment");
    // A hundredth of all timers, so that retries run out in milliseconds.
    config.time_scale = 0.01;
    let order = std::env::var(CHILD).ok();
    if order.as_ref().is_some_and(|order| order.starts_with("drop")) {
        config.revoke = processes::REVOKE;
    }
    sideway::set_default_provider(soft::provider_with(config).expect("no device is listed yet"));
    if let Some(order) = order {
        child(&order);
        return ExitCode::SUCCESS;
    }
    let mut suite = Suite::<Fixture>::default().of_part(part);
    processes::add(&mut suite);
    resets::add(&mut suite);
    windows::add(&mut suite);
    // The last cases leave queue pairs with a failed device.
    cases!(suite: recovered_faults_are_not_visible, all_at_once, unrecoverable_faults_end_the_connection,
        a_port_that_goes_down_is_waited_for, silence_is_noticed, idle_programs_are_not_taken_for_dead, calls_that_fail_leave_no_connection_or_one_over_tcp, a_poor_device_is_used_or_not,
        a_connection_that_loses_rdma_is_reset_and_the_next_one_uses_tcp, whoever_asks_first_hears_of_a_reset,
        a_storm_is_served_where_nothing_passes, a_device_that_fails_ends_what_it_carries);
    windows::add_last(&mut suite);
    let fixture = Ok(Fixture::new(Target::Soft, Ipv4Addr::LOCALHOST.into()));
    suite.run(
        &test_harness::arguments(),
        &fixture,
        RunOptions { required: true, limit: CASE_LIMIT, advice: "" },
    )
}

/// The default configuration, with timeouts that a busy machine does not exceed, and a private
/// pool.
fn builder(fixture: &Fixture) -> Builder {
    // 43 ms between two retransmissions.
    fixture.builder().ack_timeout(20).rnr_retry(7).pool_max(83 << 20).pool_initial(16 << 20)
}

fn plans(seed: u64) -> [TrafficPlan; 2] {
    [0, 1].map(|side| TrafficPlan { seed: 2 * seed + side, count: 90, most: 400_000 })
}

/// Both ends of a connection, established before any rule is set.
fn connected<E: Send + 'static>(
    fixture: &Fixture,
    builder: &Builder,
    connect: fn(Builder, SocketAddr) -> E,
    accept: fn(&mut Listener) -> E,
) -> [E; 2] {
    let mut listener = builder.clone().bind(fixture.anywhere()).unwrap();
    listener.set_accept_timeout(Some(LONG)).unwrap();
    let addr = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || accept(&mut listener));
    let client = connect(builder.clone(), addr);
    [client, accepting.join().unwrap()]
}

pub(crate) fn packets(fixture: &Fixture, builder: &Builder) -> [SeqPacket; 2] {
    connected(
        fixture,
        builder,
        |builder, addr| builder.connect_seq_packet(addr).unwrap(),
        |listener| listener.accept_seq_packet().unwrap().0,
    )
}

pub(crate) fn streams(fixture: &Fixture, builder: &Builder) -> [Stream; 2] {
    connected(
        fixture,
        builder,
        |builder, addr| builder.connect(addr).unwrap(),
        |listener| listener.accept().unwrap().0,
    )
}

pub(crate) fn rules(text: &str, seed: u64) {
    faults::set(faults::parse(text).expect("valid rules"), seed).expect("rules");
}

/// Checks that every rule has acted, because otherwise the case shows nothing.
pub(crate) fn all_have_acted() {
    for report in faults::report() {
        assert!(report.fired > 0, "{} has never acted, of {} matches", report.rule, report.matched);
    }
}

/// The numbers of queue pairs and completion queues.
fn in_use() -> [u32; 2] {
    let statistics = soft::statistics().expect("a device was used");
    [statistics.queue_pairs.iter().map(|some| some.count).sum(), statistics.completion_queues]
}

/// Waits until the device has no queue pair and no completion queue.
fn nothing_is_open(text: &str) {
    let deadline = Instant::now() + LONG;
    while in_use() != [0; 2] {
        assert!(Instant::now() < deadline, "{text}: {:?}", in_use());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that the connections that used this pool left nothing behind.
pub(crate) fn nothing_is_left(pool: &Pool) {
    // The service thread may still have a connection.
    let deadline = Instant::now() + LONG;
    while (in_use(), pool.stats().in_use) != ([0; 2], 0) {
        assert!(Instant::now() < deadline, "{:?}, {:?}", in_use(), pool.stats());
        thread::sleep(Duration::from_millis(1));
        pool.flush();
    }
}

pub(crate) fn expect_all<E>([here, there]: &[TrafficResult<E>; 2], rules: &str) {
    for (end, which) in [(here, "client"), (there, "server")] {
        if let Some(error) = &end.error {
            panic!("{rules}: the {which} was told: {error}");
        }
    }
}

fn expect_failure<E>(ends: &[TrafficResult<E>; 2], rules: &str) {
    let errors: Vec<_> = ends.iter().filter_map(|end| end.error.as_ref()).collect();
    assert!(!errors.is_empty(), "{rules}: nobody was told");
    for error in errors {
        assert!(is_failure(error), "{rules}: {:?}, {error}", error.kind());
    }
    // The end whose messages were cut off gets an error in any case.
    assert!(ends.iter().any(|end| end.got < 90 || end.error.is_some()));
}

const MENDED: &[&str] = &[
    "drop=1 chance=0.05",
    "drop=3 opcode=send,send_with_imm chance=0.02",
    "drop=2 opcode=rdma_read every=3",
    "delay=10us..3ms chance=0.1",
    "delay=20ms every=50; delay=1ms every=7",
    "hold=1:5ms chance=0.1",
    "rnr=1 chance=0.05",
    "rnr=4 opcode=send,send_with_imm every=40",
    "split=200us chance=0.2",
    "pause=before_mark:3ms nth=20; pause=before_claim:3ms nth=40; pause=claimed:3ms nth=60",
    "pause=before_copy:3ms nth=10; pause=mid_copy:3ms size=4096.. nth=1",
    "pause=before_finish:3ms nth=20; pause=before_announce:3ms nth=40; pause=before_doorbell:3ms nth=60",
];

/// Sends messages and bytes at once under rules whose faults the device repairs.
fn is_mended(fixture: &Fixture, text: &str, seed: u64) {
    let builder = builder(fixture);
    let (packets, streams) = (packets(fixture, &builder), streams(fixture, &builder));
    let pool = streams[0].pool().clone();
    rules(text, seed);
    let (messages, bytes) = thread::scope(|scope| {
        let bytes = scope.spawn(|| {
            both(streams, plans(seed + 1000), |end, out, into| traffic::bytes(end, out, into, PATIENT))
        });
        let messages =
            both(packets, plans(seed), |end, out, into| traffic::messages(end, out, into, PATIENT));
        (messages, bytes.join().expect("the stream's threads have failed"))
    });
    all_have_acted();
    faults::clear();
    expect_all(&messages, text);
    expect_all(&bytes, text);
    assert!(messages.iter().all(|end| end.got == 90 && end.lent == 30), "{messages:?}");
    drop((messages, bytes));
    nothing_is_left(&pool);
}

fn recovered_faults_are_not_visible(fixture: &Fixture) -> Outcome {
    faults::clear();
    for (seed, text) in MENDED.iter().enumerate() {
        is_mended(fixture, text, seed as u64);
    }
    Ok(())
}

fn all_at_once(fixture: &Fixture) -> Outcome {
    faults::clear();
    for seed in 20..24 {
        is_mended(
            fixture,
            "drop=1 chance=0.03; delay=10us..2ms chance=0.1; rnr=1 chance=0.03; hold=1:2ms chance=0.05; split=100us chance=0.05",
            seed,
        );
    }
    Ok(())
}

/// Faults beyond repair, in the midst of the traffic.
const FATAL: &[&str] = &[
    "drop opcode=send,send_with_imm nth=60",
    "drop opcode=rdma_read nth=3",
    "rnr opcode=send,send_with_imm nth=60",
    "status=loc_len_err opcode=send,send_with_imm nth=50",
    "status=loc_qp_op_err opcode=send,send_with_imm nth=50",
    "status=loc_prot_err opcode=send,send_with_imm nth=50",
    "status=wr_flush_err opcode=send,send_with_imm nth=50",
    "status=rem_inv_req_err opcode=send,send_with_imm nth=50",
    "status=rem_access_err opcode=rdma_read nth=2",
    "status=rem_op_err opcode=rdma_read nth=2",
    "status=retry_exc_err opcode=send,send_with_imm nth=50",
    "status=rnr_retry_exc_err opcode=send,send_with_imm nth=50",
    "status=rem_abort_err opcode=send,send_with_imm nth=50",
    "status=fatal_err opcode=send,send_with_imm nth=50",
    "status=general_err opcode=send,send_with_imm nth=50",
    "status=loc_prot_err opcode=recv nth=50",
    "status=wr_flush_err opcode=recv nth=50",
    // The request completes successfully although nothing was sent: a frame is missing.
    "status=success opcode=send,send_with_imm nth=50",
    "qp_fatal opcode=send,send_with_imm nth=50",
    "qp_fatal opcode=rdma_read nth=2",
    "errno=EIO call=req_notify_cq nth=5",
];

/// A completion queue that stops reporting: the requests that the device holds are lost.
const LOSING: &[&str] = &["cq_overrun opcode=send,send_with_imm nth=50", "cq_overrun opcode=recv nth=50"];

/// A peer's silence is noticed within 200 ms to 300 ms, and retries run out in 3 ms.
fn fragile(fixture: &Fixture) -> Builder {
    builder(fixture).ack_timeout(14).rnr_retry(3).keepalive(Some(Duration::from_millis(100)))
}

/// Sends messages under rules that end the connection.
fn ends_messages(fixture: &Fixture, builder: &Builder, text: &str) -> Pool {
    let packets = packets(fixture, builder);
    let pool = packets[0].pool().clone();
    rules(text, 1);
    let messages = both(packets, plans(5), |end, out, into| traffic::messages(end, out, into, WATCHFUL));
    all_have_acted();
    faults::clear();
    expect_failure(&messages, text);
    pool
}

/// The same with bytes.
fn ends_both(fixture: &Fixture, builder: &Builder, text: &str) -> Pool {
    let pool = ends_messages(fixture, builder, text);
    let streams = streams(fixture, builder);
    rules(text, 1);
    let bytes = both(streams, plans(6), |end, out, into| traffic::bytes(end, out, into, WATCHFUL));
    all_have_acted();
    faults::clear();
    expect_failure(&bytes, text);
    pool
}

fn unrecoverable_faults_end_the_connection(fixture: &Fixture) -> Outcome {
    faults::clear();
    let builder = fragile(fixture);
    for text in FATAL {
        let pool = ends_both(fixture, &builder, text);
        nothing_is_left(&pool);
        let [mut client, mut server] = streams(fixture, &builder);
        greet(&mut client, &mut server);
    }
    let builder = fragile(fixture).pool_max(84 << 20);
    for text in LOSING {
        ends_both(fixture, &builder, text);
        nothing_is_open(text);
        let [mut client, mut server] = streams(fixture, &builder);
        greet(&mut client, &mut server);
    }
    Ok(())
}

fn a_port_that_goes_down_is_waited_for(fixture: &Fixture) -> Outcome {
    faults::clear();
    // 43 ms between two retransmissions, of which eight are made.
    is_mended(fixture, "port_down=20ms nth=200", 30);
    let pool = ends_both(fixture, &fragile(fixture), "port_down nth=100");
    nothing_is_left(&pool);
    // While the port is down, a client that accepts TCP gets it.
    faults::port_down(0, 1).expect("soft0");
    let wants = builder(fixture).policy(Policy::Auto);
    let [mut client, mut server] = streams(fixture, &wants);
    assert_eq!(client.transport(), Transport::Tcp);
    greet(&mut client, &mut server);
    faults::port_up(0, 1).expect("soft0");
    let [mut client, mut server] = streams(fixture, &wants);
    assert_eq!(client.transport(), Transport::Rdma, "{:?}", client.fallback_reason());
    greet(&mut client, &mut server);
    Ok(())
}

/// Both ends wait, and keepalive probes get no answer.
fn silence_is_noticed(fixture: &Fixture) -> Outcome {
    faults::clear();
    let [client, server] = streams(fixture, &fragile(fixture));
    rules("delay=60s opcode=rdma_write", 1);
    let waits = |mut end: Stream| {
        end.set_read_timeout(Some(LONG)).unwrap();
        end.read(&mut [0; 8]).expect_err("nobody says anything").kind()
    };
    let kinds = thread::scope(|scope| {
        let there = scope.spawn(|| waits(server));
        [waits(client), there.join().unwrap()]
    });
    all_have_acted();
    // The end that notices first tells the other.
    for kind in kinds {
        assert!(matches!(kind, ErrorKind::TimedOut | ErrorKind::ConnectionReset), "{kind:?}");
    }
    assert!(kinds.contains(&ErrorKind::TimedOut), "{kinds:?}");
    faults::clear();
    Ok(())
}

/// An answer that arrived while the program was busy is not late.
fn idle_programs_are_not_taken_for_dead(fixture: &Fixture) -> Outcome {
    faults::clear();
    let [mut client, mut server] =
        streams(fixture, &builder(fixture).keepalive(Some(Duration::from_millis(200))));
    greet(&mut client, &mut server);
    rules("delay=20ms opcode=rdma_write", 1);
    client.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    for _ in 0..3 {
        let (posts, until) = (client.stats().posts, Instant::now() + LONG);
        while client.stats().posts == posts {
            assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
            assert!(Instant::now() < until, "nobody asks whether the other is there");
        }
        thread::sleep(Duration::from_millis(500));
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    faults::clear();
    greet(&mut server, &mut client);
    Ok(())
}

/// The verbs that each connection calls; a child process shows those that run once per process. If
/// creating a queue pair fails once, trespass retries with less inline data.
const CALLS: &[&str] = &[
    "errno=ENOMEM call=create_comp_channel",
    "errno=ENOMEM call=create_cq",
    "errno=ENOMEM call=create_cq nth=2",
    "errno=ENOMEM call=create_qp",
    "errno=EINVAL call=modify_qp nth=1",
    "errno=EINVAL call=modify_qp nth=2",
    "errno=EINVAL call=modify_qp nth=3",
    "errno=EINVAL call=modify_qp nth=5",
];

const CALLS_OF_A_PROCESS: &[&str] = &[
    "errno=EIO call=open_device",
    "errno=EIO call=query_device",
    "errno=EIO call=query_port",
    "errno=EIO call=query_gid",
    "errno=ENOMEM call=alloc_pd",
    "errno=ENOMEM call=reg_mr",
];

fn calls_that_fail_leave_no_connection_or_one_over_tcp(fixture: &Fixture) -> Outcome {
    faults::clear();
    let (wants, requires) = (builder(fixture).policy(Policy::Auto), builder(fixture));
    let [mut client, mut server] = streams(fixture, &wants);
    greet(&mut client, &mut server);
    let pool = client.pool().clone();
    drop((client, server));
    for text in CALLS {
        rules(text, 1);
        let [mut client, mut server] = streams(fixture, &wants);
        assert_eq!([client.transport(), server.transport()], [Transport::Tcp; 2], "{text}");
        assert!(client.fallback_reason().is_some() && server.fallback_reason().is_some(), "{text}");
        greet(&mut client, &mut server);
        drop((client, server));
        all_have_acted();
        nothing_is_left(&pool);
        rules(text, 1);
        let listener = requires.clone().bind(fixture.anywhere()).unwrap();
        listener.set_accept_timeout(Some(Duration::from_millis(500))).unwrap();
        let addr = listener.local_addr().unwrap();
        let accepting = thread::spawn(move || listener.accept().map(|(stream, _)| stream.transport()));
        let error = requires.clone().connect(addr).expect_err("there is no RDMA, and it is required");
        assert!(!error.to_string().is_empty(), "{text}: {error}");
        let error = accepting.join().unwrap().expect_err("no client was accepted");
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{text}: {error}");
        faults::clear();
        nothing_is_left(&pool);
    }
    for text in CALLS_OF_A_PROCESS {
        let mut child = start(&format!("calls {text}"), None);
        assert!(child.wait().unwrap().success(), "{text}");
    }
    Ok(())
}

/// Limits to lower, and whether trespass uses the device all the same.
const POOR: &[(&str, bool)] = &[
    ("max_inline_data=0", true),
    ("max_qp_rd_atom=1", true),
    ("no_atomics", true),
    ("max_sge=1", false),
    ("max_qp_wr=32", false),
    ("max_cqe=64", false),
    ("no_gids", false),
];

fn a_poor_device_is_used_or_not(_: &Fixture) -> Outcome {
    faults::clear();
    for (text, used) in POOR {
        let mut child = start(if *used { "poor used" } else { "poor unused" }, Some(text));
        assert!(child.wait().unwrap().success(), "{text}");
    }
    Ok(())
}

fn whoever_asks_first_hears_of_a_reset(fixture: &Fixture) -> Outcome {
    type Ask = fn(&mut Stream) -> std::io::Error;
    let asks: [(&str, Ask); 3] = [
        ("drain", |stream| stream.drain(Instant::now() + LONG).unwrap_err()),
        ("write", |stream| {
            // The bytes of a write that fails on its way were taken.
            let until = Instant::now() + LONG;
            loop {
                assert!(Instant::now() < until, "no write fails");
                if let Err(error) = stream.write(b"more") {
                    break error;
                }
            }
        }),
        ("take_error", |stream| {
            let until = Instant::now() + LONG;
            loop {
                assert!(Instant::now() < until, "no failure is seen");
                if let Some(error) = stream.take_error().unwrap() {
                    break error;
                }
                thread::sleep(Duration::from_millis(1));
            }
        }),
    ];
    for (name, ask) in asks {
        faults::clear();
        let [mut client, mut server] = streams(fixture, &builder(fixture));
        greet(&mut client, &mut server);
        rules("drop", 1);
        client.write_all(b"lost").unwrap();
        let error = ask(&mut client);
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{name}: {error}");
        assert_eq!(client.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe, "{name}");
        assert!(client.take_error().unwrap().is_none(), "{name}");
    }
    faults::clear();
    Ok(())
}

fn a_connection_that_loses_rdma_is_reset_and_the_next_one_uses_tcp(fixture: &Fixture) -> Outcome {
    faults::clear();
    let builder = || builder(fixture).policy(Policy::Auto).probe_timeout(Duration::from_millis(200));
    let listener = builder().bind(fixture.anywhere()).unwrap();
    listener.set_accept_timeout(Some(LONG)).unwrap();
    let addr = listener.local_addr().unwrap();
    let connect = || builder().connect(addr).unwrap();
    let (mut client, mut server) = (connect(), listener.accept().unwrap().0);
    greet(&mut client, &mut server);
    assert_eq!(client.transport(), Transport::Rdma);
    rules("drop", 1);
    client.write_all(b"lost").unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    let error = client.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(error.to_string().contains("does not acknowledge"), "the error explains the status: {error}");
    let (mut client, mut server) = (connect(), listener.accept().unwrap().0);
    greet(&mut client, &mut server);
    assert_eq!(client.transport(), Transport::Tcp);
    all_have_acted();
    faults::clear();
    Ok(())
}

/// Each client falls back to TCP.
fn a_storm_is_served_where_nothing_passes(fixture: &Fixture) -> Outcome {
    faults::clear();
    rules("drop", 1);
    let short = Duration::from_millis(200);
    let own = Own::new(fixture).with(|builder| builder.probe_timeout(short)).falling_back();
    assert_eq!(storm(&own, fixture.storm()), storm(&Std, fixture.storm()), "this crate, and `std::net`");
    all_have_acted();
    faults::clear();
    Ok(())
}

/// Among the last cases, because the requests that the failed device holds are lost.
fn a_device_that_fails_ends_what_it_carries(fixture: &Fixture) -> Outcome {
    faults::clear();
    let listener = builder(fixture).bind(fixture.anywhere()).unwrap();
    listener.set_accept_timeout(Some(LONG)).unwrap();
    let addr = listener.local_addr().unwrap();
    ends_messages(fixture, &fragile(fixture), "device_fatal opcode=send,send_with_imm nth=50");
    // New connections reopen the device and register memory with it, also for a peer that used it
    // before.
    let [mut client, mut server] = streams(fixture, &fragile(fixture));
    greet(&mut client, &mut server);
    let (mut client, mut server) = thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap().0);
        (builder(fixture).connect(addr).unwrap(), accepting.join().unwrap())
    });
    greet(&mut client, &mut server);
    Ok(())
}

// The child processes.

/// Starts this program for a part, with rules that its device is created with.
fn start(part: &str, rules: Option<&str>) -> Child {
    command(part, rules).spawn().unwrap()
}

fn command(part: &str, rules: Option<&str>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(CHILD, part).env_remove("SOFT_RNIC_FAULTS").env_remove(RULES);
    if let Some(rules) = rules {
        let is_trait = part.starts_with("poor");
        command.env(if is_trait { "SOFT_RNIC_FAULTS" } else { RULES }, rules);
    }
    command
}

fn child(part: &str) {
    let fixture = Fixture::new(Target::Soft, Ipv4Addr::LOCALHOST.into());
    let wants = builder(&fixture).policy(Policy::Auto);
    match part.split_once(' ').expect("a part, and what of it") {
        ("calls", text) => {
            rules(text, 1);
            let [mut client, mut server] = streams(&fixture, &wants);
            assert_eq!([client.transport(), server.transport()], [Transport::Tcp; 2], "{text}");
            greet(&mut client, &mut server);
            all_have_acted();
            faults::clear();
            // A probe's result is cached for a second.
            let until = Instant::now() + LONG;
            loop {
                let [mut client, mut server] = streams(&fixture, &wants);
                greet(&mut client, &mut server);
                if client.transport() == Transport::Rdma {
                    break;
                }
                assert!(Instant::now() < until, "{text}: {:?}", client.fallback_reason());
                thread::sleep(Duration::from_millis(100));
            }
        }
        ("poor", used) => {
            let [mut client, mut server] = streams(&fixture, &wants);
            let expected = if used == "used" { Transport::Rdma } else { Transport::Tcp };
            assert_eq!(client.transport(), expected, "{:?}", client.fallback_reason());
            let sent: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
            thread::scope(|scope| {
                scope.spawn(|| client.write_all(&sent).unwrap());
                let mut got = vec![0; sent.len()];
                server.read_exact(&mut got).unwrap();
                assert!(got == sent);
            });
        }
        ("drop", way) => {
            let builder = builder(&fixture).linger(Duration::ZERO);
            processes::drop_beside_a_stopped_peer(&fixture, &builder, way);
        }
        ("talk", addr) => {
            let addr: SocketAddr = addr.parse().expect("an address");
            let end = builder(&fixture).keepalive(None).connect_seq_packet(addr).unwrap();
            rules(&std::env::var(RULES).expect("rules"), 1);
            let [to_server, to_client] = plans(OF_CHILD);
            let ended = traffic::messages(end, to_server, to_client, PATIENT);
            assert!(ended.error.is_none() && ended.got == 90, "{ended:?}");
            all_have_acted();
        }
        (part, _) => panic!("a child with the part {part:?}"),
    }
}
