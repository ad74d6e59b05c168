//! The invariants that the simulator checks, each with a test named after it. Each test also proves
//! that its runs met the critical situation.

use super::endpoint::{CallOutcome, EndReason};
use super::explore;
use super::monitor::{CREDIT, FIN_ACK, RESET, RFIN, RTS};
use super::plan::{KindUnderTest, ReadPolicy, SimPlan, TransportKind};
use super::rng::SimRng;
use super::simulation::{RunStatistics, Simulation};
use crate::protocol::{ConnectionSetup, FailureCause, Keepalive, ProtocolMachine};
use std::time::Duration;

/// Runs `steps` steps, and then lets everything arrive.
fn run(seed: u64, rng: SimRng, plan: SimPlan, steps: u64) -> Simulation {
    let mut simulation = Simulation::new(seed, rng, plan);
    simulation.steps(steps);
    simulation.settle();
    simulation.check_credit();
    simulation
}

/// Both programs write without end and read late, into few receives.
fn crowded(rng: &mut SimRng) -> SimPlan {
    let mut plan = SimPlan::any(rng).transport_kind(TransportKind::Rc).both(|workload| {
        workload.writes = true;
        workload.reader = ReadPolicy::Slow;
        workload.largest = if workload.corks { 300 } else { 20_000 };
    });
    plan.limits.iter_mut().for_each(|limits| limits.rx_slots = rng.one_of(&[16, 17, 20]));
    plan.rcvbuf = rng.one_of(&[4 << 10, 16 << 10, 64 << 10]);
    plan.low_water = 64;
    plan.coalesce = rng.one_in(3);
    plan
}

/// The windows begin small, and other connections hold most of the receives.
#[test]
fn i01_shared_receives_suffice() {
    let sum = explore(60_000, |seed, mut rng| {
        let mut plan = crowded(&mut rng);
        plan.shared = Some(rng.one_of(&[0, 3, 30]));
        plan.limits.iter_mut().for_each(|limits| limits.first_slots = Some(rng.one_of(&[5, 6])));
        run(seed, rng, plan, 4000).finish_and_check()
    });
    assert!(
        sum.frames > 1000 && sum.blocked > 0 && sum.kinds[CREDIT as usize] > 0,
        "nothing was scarce: {sum:?}"
    );
}

/// Large blocks, which the peer fetches by READ.
fn large(rng: &mut SimRng) -> SimPlan {
    let mut plan = SimPlan::any(rng).transport_kind(TransportKind::Rc).both(|workload| {
        workload.writes = true;
        workload.reader = ReadPolicy::Eager;
        workload.zero_copy = 2;
        workload.holds = 3;
        workload.largest = 600_000;
    });
    plan.reads = true;
    plan
}

#[test]
fn i01_no_receiver_not_ready() {
    // The link fails the test at a SEND that finds no receive.
    let sum = explore(60_000, |seed, mut rng| {
        let plan = crowded(&mut rng);
        run(seed, rng, plan, 4000).finish_and_check()
    });
    assert!(
        sum.frames > 1000 && sum.blocked > 0 && sum.kinds[CREDIT as usize] > 0,
        "nothing was scarce: {sum:?}"
    );
}

#[test]
fn i02_credits_are_conserved() {
    // The wire monitor checks each header, and `check_credit` compares both sides at rest.
    let sum = explore(60_000, |seed, mut rng| {
        let mut plan = SimPlan::any(&mut rng).transport_kind(TransportKind::Rc);
        plan.first_total = u32::MAX - rng.within(0..100) as u32;
        let mut simulation = Simulation::new(seed, rng, plan);
        simulation.steps(1500);
        simulation.settle();
        simulation.check_credit();
        simulation.finish_and_check()
    });
    assert!(sum.kinds[CREDIT as usize] > 0 && sum.wraps > 10, "no total wrapped: {sum:?}");
}

#[test]
fn i03_data_never_spends_the_reserve() {
    // The wire monitor checks each data frame against the credit that its sender knows of.
    let sum = explore(60_000, |seed, mut rng| {
        let mut plan = crowded(&mut rng);
        plan.reads = true;
        plan.limits.iter_mut().for_each(|limits| limits.eager_max = 8192);
        run(seed, rng, plan, 2000).finish_and_check()
    });
    assert!(sum.reserve > 0, "nothing spent the reserve: {sum:?}");
    assert!(sum.kinds[RTS as usize] > 0 && sum.kinds[RFIN as usize] > 0, "nothing was read: {sum:?}");
}

#[test]
fn i04_a_stream_arrives_once_in_order() {
    let sum = explore(60_000, |seed, mut rng| {
        let plan = SimPlan::any(&mut rng).shape(KindUnderTest::Stream);
        run(seed, rng, plan, 3000).finish_and_check()
    });
    assert!(sum.bytes > 1 << 20 && sum.tickets > 0 && sum.kinds[RTS as usize] > 0, "{sum:?}");
    assert!(sum.bare > 0 && sum.bare < sum.frames, "{sum:?}");
}

#[test]
fn i05_messages_keep_their_boundaries() {
    let sum = explore(60_000, |seed, mut rng| {
        let plan = SimPlan::any(&mut rng).shape(KindUnderTest::Messages);
        run(seed, rng, plan, 3000).finish_and_check()
    });
    assert!(sum.messages > 500 && sum.tickets > 0, "{sum:?}");
    assert!(sum.coalesced > 0 && sum.kinds[RTS as usize] > 0 && sum.gathered > 0, "{sum:?}");
    assert!(sum.bare > 0 && sum.bare < sum.frames, "{sum:?}");
}

#[test]
fn i06_blocked_writers_resume_when_either_side_reads() {
    let sum = explore(60_000, |seed, mut rng| {
        let mut plan = SimPlan::any(&mut rng).both(|workload| {
            workload.writes = true;
            workload.reader = ReadPolicy::Stopped;
            workload.corks = false;
            workload.largest = 40_000;
        });
        plan.rcvbuf = 16 << 10;
        plan.sndbuf = 16 << 10;
        let mut simulation = Simulation::new(seed, rng, plan);
        for end in 0..2 {
            // Lent blocks do not count against the send buffer, so the writers of this test copy.
            simulation.plan.workload[end].zero_copy = 0;
        }
        // Both write until neither can, and nothing is in flight.
        let writable = |simulation: &Simulation| simulation.ends.iter().any(|end| end.connection.writable());
        while writable(&simulation) && simulation.steps < 200_000 {
            while writable(&simulation) && simulation.steps < 200_000 {
                simulation.steps(20);
            }
            simulation.rest();
        }
        let stalled = !writable(&simulation);
        simulation.check_blocked();
        // Then one side reads. Its peer's program does not read. What that program has given
        // arrives, even a partial message, and it can give more.
        let reader = simulation.rng.within(0..2);
        let given = simulation.oracles[1 - reader].given();
        simulation.until_one("the peer of the reader resumes", reader, |simulation| {
            simulation.oracles[1 - reader].given() > given + 20
        });
        simulation.settle();
        assert!(stalled, "seed {seed}: the writers never blocked: {}", simulation.state());
        simulation.finish_and_check()
    });
    assert!(sum.bytes > 100_000 && sum.messages > 100, "{sum:?}");
}

/// Both ends have the least memory for a connection, and write until it is full. Only then do they
/// read. Returns `None` if all data arrives, or else the stuck state.
fn full_on_both_sides(seed: u64, mut rng: SimRng, purposes: bool) -> (Option<String>, RunStatistics) {
    let mut plan = SimPlan::any(&mut rng).both(|workload| {
        workload.writes = true;
        workload.reader = ReadPolicy::Stopped;
        workload.corks = false;
        // Lent blocks do not count against the send buffer, so only memory stops a program that
        // lends.
        workload.zero_copy = workload.zero_copy.clamp(1, 2);
        workload.largest = workload.largest.clamp(20_000, 40_000);
    });
    if rng.one_in(2) {
        // Messages that the peer must fetch whole by READ free no memory before the READ.
        plan = plan.both(|workload| workload.smallest = 17 << 10);
    }
    plan.rcvbuf = plan.rcvbuf.min(64 << 10);
    plan.sndbuf = plan.sndbuf.min(64 << 10);
    plan.limits.iter_mut().for_each(|limits| limits.eager_max = limits.eager_max.min(16 << 10));
    plan.pool = plan.least_pool();
    plan.purposes = purposes;
    let pieces = plan.transport_kind == TransportKind::Rc && rng.one_in(2);
    // A side's own slots are never smaller than the frames that it sends.
    let slot = plan.limits.iter().map(|limits| limits.slot_size).max().unwrap_or(0);
    let mut simulation = Simulation::new(seed, rng, plan);
    for end in 0..2 {
        if pieces {
            simulation.ends[end].memory.in_pieces(slot as usize);
        }
    }
    let full = |simulation: &Simulation| simulation.ends.iter().all(|end| end.memory.refused() > 100);
    while simulation.steps < 10_000 && !full(&simulation) {
        simulation.steps(20);
    }
    simulation.rest();
    // The sends take the memory that the reads free.
    simulation.programs.iter_mut().for_each(|program| program.reader = Some(ReadPolicy::Slow));
    simulation.steps(4000);
    let arrives = simulation.arrives();
    if arrives {
        simulation.settle();
        return (None, simulation.finish_and_check());
    }
    (Some(simulation.state()), simulation.tally())
}

#[test]
fn i06_both_sides_full_of_what_they_send_go_on() {
    let sum = explore(300_000, |seed, rng| {
        let (stuck, tally) = full_on_both_sides(seed, rng, true);
        assert_eq!(stuck, None, "I6: seed {seed}: both sides wait for memory");
        tally
    });
    assert!(sum.refused > 1000 && sum.bytes > 1 << 20 && sum.kinds[RTS as usize] > 100, "{sum:?}");
    // Without the memory reserved for receiving, the two sides wait for each other. This shows that
    // the runs above meet the situation.
    let stuck =
        (1..=60).filter(|&seed| full_on_both_sides(seed, SimRng::new(seed), false).0.is_some()).count();
    assert!(stuck > 5, "{stuck} of 60 runs need the memory that is kept for receiving");
}

#[test]
fn i07_no_second_thread_is_needed() {
    // Each driver takes a turn only with a call of its program. One program only writes, the other
    // only reads, in turns.
    let sum = explore(120_000, |seed, mut rng| {
        let mut plan = SimPlan::any(&mut rng).both(|workload| {
            workload.writes = true;
            workload.corks = false;
            workload.largest = workload.largest.min(100_000);
        });
        plan.tcp_buffer = plan.tcp_buffer.max(4096);
        let mut simulation = Simulation::new(seed, rng, plan);
        for _ in 0..20 {
            let reader = simulation.rng.within(0..2);
            let given = simulation.oracles[1 - reader].given();
            simulation.until_one("the reader has all given data, and more is given", reader, |simulation| {
                let (bytes, messages) = simulation.oracles[1 - reader].arrived();
                bytes + messages >= given && simulation.oracles[1 - reader].given() > given
            });
        }
        simulation.settle();
        simulation.finish_and_check()
    });
    assert!(sum.bytes > 1 << 20 && sum.messages > 100 && sum.kinds[RTS as usize] > 0, "{sum:?}");
}

#[test]
fn i08_readiness_tells_of_every_change() {
    // These programs act only on readiness, like an edge-triggered program: until a call blocks.
    let sum = explore(40_000, |seed, mut rng| {
        let plan = SimPlan::any(&mut rng).both(|workload| workload.parts = 0);
        let mut simulation = Simulation::new(seed, rng, plan);
        for _ in 0..1200 {
            simulation.steps += 1;
            let end = simulation.rng.within(0..2);
            simulation.drive(end);
            simulation.carry(end);
            let connection = &simulation.ends[end].connection;
            let (readable, writable) = (connection.readable(), connection.writable());
            if readable {
                simulation.read(end);
            }
            if writable && simulation.rng.one_in(3) {
                simulation.write(end);
            }
            simulation.check();
        }
        simulation.finish_by_readiness();
        simulation.finish_and_check()
    });
    assert!(sum.bytes > 100_000 && sum.messages > 100, "{sum:?}");
}

/// The fault that breaks a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InjectedFault {
    /// The peer is killed, and the kernel reports it at some time.
    Kill,
    /// The queue pair goes to the error state.
    Break,
    /// The link is cut. Keepalive or outstanding work detects it.
    Cut,
    /// The link is cut, and the devices report nothing, so only keepalive detects it.
    Mute,
    /// The program aborts.
    Abort,
}

#[test]
fn i09_a_failure_completes_everything_once() {
    let faults = [
        InjectedFault::Kill,
        InjectedFault::Break,
        InjectedFault::Cut,
        InjectedFault::Mute,
        InjectedFault::Abort,
    ];
    let sum = explore(60_000, |seed, mut rng| {
        let mut plan = SimPlan::any(&mut rng);
        plan.keepalive = Some(Keepalive { idle: Duration::from_secs(5), timeout: Duration::from_secs(2) });
        plan = plan.both(|workload| workload.zero_copy = 2);
        let transport_kind = plan.transport_kind;
        let fault = rng.one_of(&faults);
        let fault = if transport_kind == TransportKind::Tcp && fault != InjectedFault::Abort {
            InjectedFault::Kill
        } else {
            fault
        };
        let steps = rng.within(0..700) as u64;
        let closes = rng.one_in(3);
        let mut simulation = Simulation::new(seed, rng, plan);
        simulation.steps(steps);
        let end = simulation.rng.within(0..2);
        if closes {
            simulation.shut(end);
            let more = simulation.rng.within(0..60) as u64;
            simulation.steps(more);
        }
        let began = simulation.now;
        let tell = inject_fault(&mut simulation, fault, end);
        simulation.until_over(tell);
        let took = simulation.now - began;
        // A probe is sent at most two idle times after the last sign of life.
        assert!(took < Duration::from_secs(13), "I9: the failure is seen after {took:?}");
        for end in 0..2 {
            calls_say_so(&mut simulation, end);
        }
        simulation.finish_and_check()
    });
    assert!(sum.failures > 20 && sum.tickets > 100 && sum.kinds[RESET as usize] > 0, "{sum:?}");
    assert!(sum.parts > 100, "{sum:?}");
}

/// Injects `fault`. Returns whether the kernel will report to each end that its peer is gone.
fn inject_fault(simulation: &mut Simulation, fault: InjectedFault, end: usize) -> bool {
    match fault {
        InjectedFault::Kill => simulation.kill(end),
        InjectedFault::Break => simulation.break_queue_pair(end),
        InjectedFault::Cut => simulation.cut(),
        InjectedFault::Mute => simulation.cut_silently(),
        InjectedFault::Abort => simulation.ends[end].connection.abort(),
    }
    !matches!(fault, InjectedFault::Cut | InjectedFault::Mute)
}

/// After a failure no call blocks.
fn calls_say_so(simulation: &mut Simulation, end: usize) {
    let failed = matches!(simulation.ends[end].ending, Some(EndReason::Failed(_)));
    if simulation.ends[end].killed || !failed {
        return;
    }
    let mut buffer = [0; 64];
    let write = simulation.ends[end].write(&[std::io::IoSlice::new(b"more")]);
    assert!(matches!(write, CallOutcome::Dead(_)), "I9: a write after the failure: {write:?}");
    // The reader gets the bytes that had arrived, then the failure, or the stream's end if that had
    // come before it.
    for _ in 0..10_000 {
        match simulation.ends[end].take_bytes_left(&mut buffer) {
            CallOutcome::Done(0) | CallOutcome::Dead(_) => return,
            CallOutcome::Done(_) => {}
            other => panic!("I9: a read after the failure: {other:?}"),
        }
    }
}

#[test]
fn i10_buffers_have_one_owner_at_a_time() {
    // Memory tracks the owner of each block. The programs keep received blocks, and compare them
    // when they give them back.
    let sum = explore(100_000, |seed, mut rng| {
        let mut plan = large(&mut rng);
        // A block that the peer does not fetch by READ is in several frames at a time.
        plan.reads = rng.one_in(2);
        run(seed, rng, plan, 2500).finish_and_check()
    });
    assert!(sum.tickets > 100 && sum.kinds[RTS as usize] > 100 && sum.parts > 1000, "{sum:?}");
}

#[test]
fn i11_send_queues_never_overflow() {
    // The link fails the test at a work request that exceeds the queue.
    let sum = explore(60_000, |seed, mut rng| {
        let mut plan = crowded(&mut rng).both(|workload| {
            workload.reader = ReadPolicy::Eager;
            workload.largest = 5000;
        });
        plan.send_depth = rng.one_of(&[1, 2, 3, 5, 8]);
        plan.reads = true;
        run(seed, rng, plan, 4000).finish_and_check()
    });
    assert!(sum.frames > 1000 && sum.kinds[RTS as usize] > 0, "{sum:?}");
}

#[test]
fn i14_close_is_bounded_and_loses_nothing() {
    let sum = explore(150_000, |seed, mut rng| {
        let plan = SimPlan::any(&mut rng);
        let steps = rng.within(0..1500) as u64;
        let mut simulation = Simulation::new(seed, rng, plan);
        simulation.steps(steps);
        match simulation.rng.within(0..3) {
            // Both sides shut down, at different times, and each reads the other's stream to its
            // end.
            0 | 1 => {
                let first = simulation.rng.within(0..2);
                simulation.shut(first);
                let between = simulation.rng.within(0..400) as u64;
                simulation.steps(between);
                simulation.shut(1 - first);
                simulation.until_closed();
                assert!(
                    simulation.oracles.iter().all(|oracle| oracle.has_ended() && oracle.is_complete()),
                    "{}",
                    simulation.state()
                );
            }
            // One side closes while the other does nothing. The close finishes within the linger
            // time.
            _ => {
                let end = simulation.rng.within(0..2);
                let began = simulation.now;
                if !simulation.programs[end].is_between_messages() {
                    return simulation.finish_and_check();
                }
                simulation.close(end);
                let took = simulation.now - began;
                let linger = simulation.plan.setup(end).linger;
                assert!(took <= linger + Duration::from_millis(10), "I14: a close takes {took:?}");
            }
        }
        simulation.finish_and_check()
    });
    assert!(sum.kinds[FIN_ACK as usize] > 20 && sum.bytes > 0 && sum.messages > 0, "{sum:?}");
    assert!(sum.early_fins > 5, "no side sent FIN before its peer had read all: {sum:?}");
}

#[test]
fn i15_a_dry_pool_only_delays() {
    let sum = explore(60_000, |seed, mut rng| {
        let mut plan = SimPlan::any(&mut rng).both(|workload| workload.largest = 100_000);
        let receives = plan.limits.map(|limits| (limits.rx_slots * limits.slot_size) as usize);
        plan.pool = plan.least_pool();
        let mut simulation = Simulation::new(seed, rng, plan);
        for _ in 0..30 {
            let dry = simulation.rng.one_in(2);
            let end = simulation.rng.within(0..2);
            simulation.ends[end].memory.refuse(dry);
            simulation.steps(100);
        }
        simulation.ends.iter().for_each(|end| end.memory.refuse(false));
        simulation.settle();
        assert!(
            simulation.ends.iter().all(|end| end.ending.is_none()),
            "I15: an exhausted pool ended a connection: {}",
            simulation.state()
        );
        for (end, receives) in receives.into_iter().enumerate() {
            let out = simulation.ends[end].memory.out().0;
            let configured = if simulation.plan.transport_kind == TransportKind::Rc { receives } else { 0 };
            assert!(
                out <= configured,
                "I15: an idle connection has {out} bytes of {configured}: {}",
                simulation.state()
            );
        }
        simulation.finish_and_check()
    });
    assert!(sum.refused > 100 && sum.bytes > 0 && sum.messages > 0, "{sum:?}");
}

#[test]
fn i16_tcp_and_rdma_do_the_same() {
    let sum = explore(250_000, |seed, mut rng| {
        let plan = SimPlan::any(&mut rng);
        let script: Vec<usize> = (0..rng.within(1..60)).map(|_| plan.size(0, &mut rng)).collect();
        let mut tally = RunStatistics::default();
        let traces = [TransportKind::Rc, TransportKind::Tcp].map(|transport_kind| {
            let mut simulation = Simulation::new(
                seed,
                SimRng::new(seed ^ transport_kind as u64),
                plan.clone().transport_kind(transport_kind),
            );
            let trace = simulation.perform(&script);
            tally.add(&simulation.finish_and_check());
            trace
        });
        assert_eq!(traces[0], traces[1], "I16: seed {seed}: the same script is seen differently");
        tally
    });
    assert!(sum.bytes > 0 && sum.messages > 100, "{sum:?}");
}

#[test]
fn i17_reads_stay_within_what_was_told() {
    // The wire monitor compares each READ with the ranges of the unanswered RTS frames, and the
    // link compares it with the exposed ranges.
    let sum = explore(60_000, |seed, mut rng| {
        let mut plan = large(&mut rng);
        plan.stage = 4096;
        run(seed, rng, plan, 2000).finish_and_check()
    });
    assert!(sum.kinds[RTS as usize] > 100 && sum.gathered > 10, "{sum:?}");
}

#[test]
fn i20_a_setup_that_cannot_work_is_refused() {
    type Spoil = fn(&mut ConnectionSetup);
    let spoilt: [(&str, Spoil); 10] = [
        ("slot_size", |setup| setup.own.slot_size = 511),
        ("slot_size", |setup| setup.peer.slot_size = u32::MAX),
        ("rx_slots", |setup| setup.own.rx_slots = 15),
        ("rx_slots", |setup| setup.peer.rx_slots = 0),
        ("max_msg", |setup| setup.own.max_msg = 0),
        ("rcvbuf", |setup| setup.rcvbuf = 100),
        ("sndbuf", |setup| setup.sndbuf = 0),
        ("stage", |setup| setup.stage = 0),
        ("gather", |setup| setup.gather = 0),
        ("gather", |setup| setup.gather = 8),
    ];
    for (name, spoil) in spoilt {
        let mut setup = SimPlan::any(&mut SimRng::new(1)).transport_kind(TransportKind::Rc).setup(0);
        assert!(ProtocolMachine::<super::memory::SimBlock>::new(&setup).is_ok());
        spoil(&mut setup);
        let refused =
            ProtocolMachine::<super::memory::SimBlock>::new(&setup).err().map(|refused| refused.name);
        assert_eq!(refused, Some(name), "I20");
    }
}

#[test]
fn i18_waiting_sides_have_nothing_to_do() {
    // A driver sleeps if no timer is due and nothing arrives. Here it would sleep for ever, which
    // is correct.
    let sum = explore(20_000, |seed, mut rng| {
        let plan = SimPlan::any(&mut rng);
        let mut simulation = run(seed, rng, plan, 500);
        simulation.pause_others();
        let frames = simulation.tally().frames;
        assert_eq!(simulation.next_deadline(), None, "I18: seed {seed}: something is due at rest");
        simulation.idle_for(Duration::from_secs(60));
        assert_eq!(simulation.tally().frames, frames, "I18: seed {seed}: frames without a reason");
        simulation.finish_and_check()
    });
    assert!(sum.bytes > 100_000 && sum.messages > 100, "{sum:?}");
}

#[test]
fn i18_hours_of_silence_cost_probes_and_nothing_else() {
    let sum = explore(20_000, |seed, mut rng| {
        let mut plan = SimPlan::any(&mut rng).transport_kind(TransportKind::Rc);
        plan.keepalive = Some(Keepalive { idle: Duration::from_secs(30), timeout: Duration::from_secs(10) });
        let mut simulation = run(seed, rng, plan, 500);
        simulation.pause_others();
        let frames = simulation.tally().frames;
        let began = simulation.now;
        while simulation.now - began < Duration::from_secs(4 * 3600) {
            assert!(simulation.skip_to_deadline(), "nothing is due: {}", simulation.state());
            simulation.rest();
            simulation.advance_time(Duration::from_secs(1));
        }
        assert_eq!(simulation.tally().frames, frames, "frames without a reason");
        let probes: u64 = simulation.ends.iter().map(|end| end.connection.counters().probes).sum();
        assert!((200..2000).contains(&probes), "{probes} probes in four hours");
        simulation.steps(500);
        simulation.settle();
        simulation.cut();
        let cut = simulation.now;
        simulation.until_over(false);
        assert!(
            simulation.now - cut < Duration::from_secs(71),
            "a cut is seen after {:?}",
            simulation.now - cut
        );
        let causes: Vec<_> = simulation.ends.iter().map(|end| end.ending.clone()).collect();
        assert!(
            causes.iter().all(|cause| matches!(
                cause,
                Some(EndReason::Failed(FailureCause::Completion { .. } | FailureCause::Silent(_)))
            )),
            "{causes:?}"
        );
        simulation.finish_and_check()
    });
    assert!(sum.failures > 0, "{sum:?}");
}

#[test]
fn hours_of_talk_and_silence_break_nothing() {
    let sum = explore(60_000, |seed, mut rng| {
        let mut plan =
            SimPlan::any(&mut rng).both(|workload| workload.largest = workload.largest.min(20_000));
        plan.keepalive = Some(Keepalive { idle: Duration::from_secs(30), timeout: Duration::from_secs(10) });
        let mut simulation = Simulation::new(seed, rng, plan);
        while simulation.elapsed() < Duration::from_secs(6 * 3600) {
            let (talk, silence) =
                (simulation.rng.within(0..400) as u64, simulation.rng.within(1..1800) as u64);
            simulation.steps(talk);
            simulation.idle_for(Duration::from_secs(silence));
        }
        simulation.settle();
        simulation.check_credit();
        assert!(
            simulation.ends.iter().all(|end| end.ending.is_none()),
            "seed {seed}: {}",
            simulation.state()
        );
        simulation.finish_and_check()
    });
    assert!(sum.bytes > 0 && sum.messages > 0 && sum.kinds[RTS as usize] > 0, "{sum:?}");
}
