//! The invariants that the simulator can show, each by its name, and with each the proof that the runs met what it is about.

use super::chance::Chance;
use super::end::{Ending, Outcome};
use super::explore;
use super::plan::{Plan, Reader, Shape, Way};
use super::watch::{CREDIT, FIN_ACK, RESET, RFIN, RTS};
use super::world::{Tally, World};
use crate::protocol::{Cause, Keepalive, ProtocolMachine, Setup};
use std::time::Duration;

/// A run of `steps` steps that ends well.
fn run(seed: u64, chance: Chance, plan: Plan, steps: u64) -> World {
    let mut world = World::new(seed, chance, plan);
    world.steps(steps);
    world.settle();
    world.check_credit();
    world
}

/// Both programs write without end and read late, into few receives.
fn crowded(chance: &mut Chance) -> Plan {
    let mut plan = Plan::any(chance).way(Way::Rc).both(|habits| {
        habits.writes = true;
        habits.reader = Reader::Slow;
        habits.largest = if habits.corks { 300 } else { 20_000 };
    });
    plan.limits.iter_mut().for_each(|limits| limits.rx_slots = chance.one_of(&[16, 17, 20]));
    plan.rcvbuf = chance.one_of(&[4 << 10, 16 << 10, 64 << 10]);
    plan.low_water = 64;
    plan.coalesce = chance.one_in(3);
    plan
}

/// Windows that begin small, over receives of which others have most.
#[test]
fn i01_shared_receives_suffice() {
    let sum = explore(60_000, |seed, mut chance| {
        let mut plan = crowded(&mut chance);
        plan.shared = Some(chance.one_of(&[0, 3, 30]));
        plan.limits.iter_mut().for_each(|limits| limits.first_slots = Some(chance.one_of(&[5, 6])));
        run(seed, chance, plan, 4000).bury()
    });
    assert!(
        sum.frames > 1000 && sum.blocked > 0 && sum.kinds[CREDIT as usize] > 0,
        "nothing was scarce: {sum:?}"
    );
}

/// Large blocks, which the peer reads.
fn large(chance: &mut Chance) -> Plan {
    let mut plan = Plan::any(chance).way(Way::Rc).both(|habits| {
        habits.writes = true;
        habits.reader = Reader::Eager;
        habits.zero_copy = 2;
        habits.holds = 3;
        habits.largest = 600_000;
    });
    plan.reads = true;
    plan
}

#[test]
fn i01_no_receiver_not_ready() {
    // The link fails the test at the SEND that finds no receive.
    let sum = explore(60_000, |seed, mut chance| {
        let plan = crowded(&mut chance);
        run(seed, chance, plan, 4000).bury()
    });
    assert!(
        sum.frames > 1000 && sum.blocked > 0 && sum.kinds[CREDIT as usize] > 0,
        "nothing was scarce: {sum:?}"
    );
}

#[test]
fn i02_credits_are_conserved() {
    // The watch checks each header; `check_credit` compares both sides at rest.
    let sum = explore(60_000, |seed, mut chance| {
        let mut plan = Plan::any(&mut chance).way(Way::Rc);
        plan.first_total = u32::MAX - chance.within(0..100) as u32;
        let mut world = World::new(seed, chance, plan);
        world.steps(1500);
        world.settle();
        world.check_credit();
        world.bury()
    });
    assert!(sum.kinds[CREDIT as usize] > 0 && sum.wraps > 10, "no total wrapped: {sum:?}");
}

#[test]
fn i03_data_never_spends_the_reserve() {
    // The watch checks each frame of data against the credit that its sender knows of.
    let sum = explore(60_000, |seed, mut chance| {
        let mut plan = crowded(&mut chance);
        plan.reads = true;
        plan.limits.iter_mut().for_each(|limits| limits.eager_max = 8192);
        run(seed, chance, plan, 2000).bury()
    });
    assert!(sum.reserve > 0, "nothing spent the reserve: {sum:?}");
    assert!(sum.kinds[RTS as usize] > 0 && sum.kinds[RFIN as usize] > 0, "nothing was read: {sum:?}");
}

#[test]
fn i04_a_stream_is_one_stream() {
    let sum = explore(60_000, |seed, mut chance| {
        let plan = Plan::any(&mut chance).shape(Shape::Stream);
        run(seed, chance, plan, 3000).bury()
    });
    assert!(sum.bytes > 1 << 20 && sum.tickets > 0 && sum.kinds[RTS as usize] > 0, "{sum:?}");
    assert!(sum.bare > 0 && sum.bare < sum.frames, "{sum:?}");
}

#[test]
fn i05_messages_keep_their_boundaries() {
    let sum = explore(60_000, |seed, mut chance| {
        let plan = Plan::any(&mut chance).shape(Shape::Messages);
        run(seed, chance, plan, 3000).bury()
    });
    assert!(sum.messages > 500 && sum.tickets > 0, "{sum:?}");
    assert!(sum.coalesced > 0 && sum.kinds[RTS as usize] > 0 && sum.gathered > 0, "{sum:?}");
    assert!(sum.bare > 0 && sum.bare < sum.frames, "{sum:?}");
}

#[test]
fn i06_blocked_writers_resume_when_either_side_reads() {
    let sum = explore(60_000, |seed, mut chance| {
        let mut plan = Plan::any(&mut chance).both(|habits| {
            habits.writes = true;
            habits.reader = Reader::Stopped;
            habits.corks = false;
            habits.largest = 40_000;
        });
        plan.rcvbuf = 16 << 10;
        plan.sndbuf = 16 << 10;
        let mut world = World::new(seed, chance, plan);
        for end in 0..2 {
            // Lent blocks do not count against the send buffer: the writers of this test copy.
            world.plan.habits[end].zero_copy = 0;
        }
        // Both write until neither can, and all is at rest.
        let writable = |world: &World| world.ends.iter().any(|end| end.connection.writable());
        while writable(&world) && world.steps < 200_000 {
            while writable(&world) && world.steps < 200_000 {
                world.steps(20);
            }
            world.rest();
        }
        let stalled = !writable(&world);
        world.check_blocked();
        // Then one of them reads. Its peer's program, which reads nothing, has given a part of a message or a whole one: what it gave
        // arrives, and it can give more.
        let reader = world.chance.within(0..2);
        let given = world.oracles[1 - reader].given();
        world.until_one("the peer of the reader goes on", reader, |world| {
            world.oracles[1 - reader].given() > given + 20
        });
        world.settle();
        assert!(stalled, "seed {seed}: the writers never blocked: {}", world.state());
        world.bury()
    });
    assert!(sum.bytes > 100_000 && sum.messages > 100, "{sum:?}");
}

/// Both ends write until their memory, the least that a connection can be made with, takes no more; only then they read. Whether all
/// arrives, or how they are stuck.
fn full_on_both_sides(seed: u64, mut chance: Chance, purposes: bool) -> (Option<String>, Tally) {
    let mut plan = Plan::any(&mut chance).both(|habits| {
        habits.writes = true;
        habits.reader = Reader::Stopped;
        habits.corks = false;
        // Lent blocks do not count against the send buffer: the memory alone stops who lends.
        habits.zero_copy = habits.zero_copy.clamp(1, 2);
        habits.largest = habits.largest.clamp(20_000, 40_000);
    });
    if chance.one_in(2) {
        // Of what must all be read by the peer nothing goes, and makes room, before that can.
        plan = plan.both(|habits| habits.smallest = 17 << 10);
    }
    plan.rcvbuf = plan.rcvbuf.min(64 << 10);
    plan.sndbuf = plan.sndbuf.min(64 << 10);
    plan.limits.iter_mut().for_each(|limits| limits.eager_max = limits.eager_max.min(16 << 10));
    plan.pool = plan.least_pool();
    plan.purposes = purposes;
    let pieces = plan.way == Way::Rc && chance.one_in(2);
    // A side's own slots are never smaller than what it sends.
    let slot = plan.limits.iter().map(|limits| limits.slot_size).max().unwrap_or(0);
    let mut world = World::new(seed, chance, plan);
    for end in 0..2 {
        if pieces {
            world.ends[end].memory.in_pieces(slot as usize);
        }
    }
    let full = |world: &World| world.ends.iter().all(|end| end.memory.refused() > 100);
    while world.steps < 10_000 && !full(&world) {
        world.steps(20);
    }
    world.rest();
    // What reading makes room for is taken by what is sent.
    world.programs.iter_mut().for_each(|program| program.reader = Some(Reader::Slow));
    world.steps(4000);
    let arrives = world.arrives();
    if arrives {
        world.settle();
        return (None, world.bury());
    }
    (Some(world.state()), world.tally())
}

#[test]
fn i06_both_sides_full_of_what_they_send_go_on() {
    let sum = explore(300_000, |seed, chance| {
        let (stuck, tally) = full_on_both_sides(seed, chance, true);
        assert_eq!(stuck, None, "I6: seed {seed}: both sides wait for memory");
        tally
    });
    assert!(sum.refused > 1000 && sum.bytes > 1 << 20 && sum.kinds[RTS as usize] > 100, "{sum:?}");
    // Where what is sent may take everything, they wait for each other: the runs above are such that they could.
    let stuck =
        (1..=60).filter(|&seed| full_on_both_sides(seed, Chance::new(seed), false).0.is_some()).count();
    assert!(stuck > 5, "{stuck} of 60 runs need the memory that is kept for receiving");
}

#[test]
fn i07_no_second_thread_is_needed() {
    // A driver takes a turn only with a call of its own program. One program only writes, the other only reads, in turns.
    let sum = explore(120_000, |seed, mut chance| {
        let mut plan = Plan::any(&mut chance).both(|habits| {
            habits.writes = true;
            habits.corks = false;
            habits.largest = habits.largest.min(100_000);
        });
        plan.tcp_buffer = plan.tcp_buffer.max(4096);
        let mut world = World::new(seed, chance, plan);
        for _ in 0..20 {
            let reader = world.chance.within(0..2);
            let given = world.oracles[1 - reader].given();
            world.until_one("the reader has what was given, and more is given", reader, |world| {
                let (bytes, messages) = world.oracles[1 - reader].arrived();
                bytes + messages >= given && world.oracles[1 - reader].given() > given
            });
        }
        world.settle();
        world.bury()
    });
    assert!(sum.bytes > 1 << 20 && sum.messages > 100 && sum.kinds[RTS as usize] > 0, "{sum:?}");
}

#[test]
fn i08_readiness_tells_of_every_change() {
    // Programs that act only when readiness says so, as an edge-triggered user does: until they are blocked.
    let sum = explore(40_000, |seed, mut chance| {
        let plan = Plan::any(&mut chance).both(|habits| habits.parts = 0);
        let mut world = World::new(seed, chance, plan);
        for _ in 0..1200 {
            world.steps += 1;
            let end = world.chance.within(0..2);
            world.drive(end);
            world.carry(end);
            let connection = &world.ends[end].connection;
            let (readable, writable) = (connection.readable(), connection.writable());
            if readable {
                world.read(end);
            }
            if writable && world.chance.one_in(3) {
                world.write(end);
            }
            world.check();
        }
        world.finish_by_readiness();
        world.bury()
    });
    assert!(sum.bytes > 100_000 && sum.messages > 100, "{sum:?}");
}

/// What breaks a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The peer is killed; the kernel tells at some time.
    Kill,
    /// The queue pair goes to the error state.
    Break,
    /// Nothing passes any more; keepalive or work under way tells.
    Cut,
    /// The same, and the devices tell nothing: keepalive alone does.
    Mute,
    /// The program aborts.
    Abort,
}

#[test]
fn i09_a_failure_completes_everything_once() {
    let faults = [Fault::Kill, Fault::Break, Fault::Cut, Fault::Mute, Fault::Abort];
    let sum = explore(60_000, |seed, mut chance| {
        let mut plan = Plan::any(&mut chance);
        plan.keepalive = Some(Keepalive { idle: Duration::from_secs(5), timeout: Duration::from_secs(2) });
        plan = plan.both(|habits| habits.zero_copy = 2);
        let way = plan.way;
        let fault = chance.one_of(&faults);
        let fault = if way == Way::Tcp && fault != Fault::Abort { Fault::Kill } else { fault };
        let steps = chance.within(0..700) as u64;
        let closes = chance.one_in(3);
        let mut world = World::new(seed, chance, plan);
        world.steps(steps);
        let end = world.chance.within(0..2);
        if closes {
            world.shut(end);
            let more = world.chance.within(0..60) as u64;
            world.steps(more);
        }
        let began = world.now;
        let tell = strike(&mut world, fault, end);
        world.until_over(tell);
        let took = world.now - began;
        // A probe goes at most two idle times after the last sign of life.
        assert!(took < Duration::from_secs(13), "I9: the failure is seen after {took:?}");
        for end in 0..2 {
            calls_say_so(&mut world, end);
        }
        world.bury()
    });
    assert!(sum.failures > 20 && sum.tickets > 100 && sum.kinds[RESET as usize] > 0, "{sum:?}");
    assert!(sum.parts > 100, "{sum:?}");
}

/// Does `fault`. Gives whether the kernel will tell each end that its peer is gone.
fn strike(world: &mut World, fault: Fault, end: usize) -> bool {
    match fault {
        Fault::Kill => world.kill(end),
        Fault::Break => world.break_queue_pair(end),
        Fault::Cut => world.cut(),
        Fault::Mute => world.fall_mute(),
        Fault::Abort => world.ends[end].connection.abort(),
    }
    !matches!(fault, Fault::Cut | Fault::Mute)
}

/// After a failure no call blocks.
fn calls_say_so(world: &mut World, end: usize) {
    let failed = matches!(world.ends[end].ending, Some(Ending::Failed(_)));
    if world.ends[end].killed || !failed {
        return;
    }
    let mut buffer = [0; 64];
    let write = world.ends[end].write(&[std::io::IoSlice::new(b"more")]);
    assert!(matches!(write, Outcome::Dead(_)), "I9: a write after the failure: {write:?}");
    // What had arrived is given first; then the failure, or the end if that had come before it.
    for _ in 0..10_000 {
        match world.ends[end].take_bytes_left(&mut buffer) {
            Outcome::Done(0) | Outcome::Dead(_) => return,
            Outcome::Done(_) => {}
            other => panic!("I9: a read after the failure: {other:?}"),
        }
    }
}

#[test]
fn i10_buffers_have_one_owner_at_a_time() {
    // Memory knows who has each block; the programs keep received blocks and compare them when they give them back.
    let sum = explore(60_000, |seed, mut chance| {
        let mut plan = large(&mut chance);
        // What the peer does not read is in several frames at a time.
        plan.reads = chance.one_in(2);
        run(seed, chance, plan, 2500).bury()
    });
    assert!(sum.tickets > 100 && sum.kinds[RTS as usize] > 100 && sum.parts > 1000, "{sum:?}");
}

#[test]
fn i11_send_queues_never_overflow() {
    // The link fails the test at the work request that is one too many.
    let sum = explore(60_000, |seed, mut chance| {
        let mut plan = crowded(&mut chance).both(|habits| {
            habits.reader = Reader::Eager;
            habits.largest = 5000;
        });
        plan.send_depth = chance.one_of(&[1, 2, 3, 5, 8]);
        plan.reads = true;
        run(seed, chance, plan, 4000).bury()
    });
    assert!(sum.frames > 1000 && sum.kinds[RTS as usize] > 0, "{sum:?}");
}

#[test]
fn i14_close_is_bounded_and_loses_nothing() {
    let sum = explore(150_000, |seed, mut chance| {
        let plan = Plan::any(&mut chance);
        let steps = chance.within(0..1500) as u64;
        let mut world = World::new(seed, chance, plan);
        world.steps(steps);
        match world.chance.within(0..3) {
            // Both shut down, at their time; each reads the other to its end.
            0 | 1 => {
                let first = world.chance.within(0..2);
                world.shut(first);
                let between = world.chance.within(0..400) as u64;
                world.steps(between);
                world.shut(1 - first);
                world.until_closed();
                assert!(
                    world.oracles.iter().all(|oracle| oracle.has_ended() && oracle.is_complete()),
                    "{}",
                    world.state()
                );
            }
            // One closes while the other does nothing at all: it is over within the linger time.
            _ => {
                let end = world.chance.within(0..2);
                let began = world.now;
                if !world.programs[end].is_between_messages() {
                    return world.bury();
                }
                world.close(end);
                let took = world.now - began;
                let linger = world.plan.setup(end).linger;
                assert!(took <= linger + Duration::from_millis(10), "I14: a close takes {took:?}");
            }
        }
        world.bury()
    });
    assert!(sum.kinds[FIN_ACK as usize] > 20 && sum.bytes > 0 && sum.messages > 0, "{sum:?}");
    assert!(sum.early_fins > 5, "no side ended while its peer had still to read: {sum:?}");
}

#[test]
fn i15_a_dry_pool_only_delays() {
    let sum = explore(60_000, |seed, mut chance| {
        let mut plan = Plan::any(&mut chance).both(|habits| habits.largest = 100_000);
        let receives = plan.limits.map(|limits| (limits.rx_slots * limits.slot_size) as usize);
        plan.pool = plan.least_pool();
        let mut world = World::new(seed, chance, plan);
        for _ in 0..30 {
            let dry = world.chance.one_in(2);
            let end = world.chance.within(0..2);
            world.ends[end].memory.refuse(dry);
            world.steps(100);
        }
        world.ends.iter().for_each(|end| end.memory.refuse(false));
        world.settle();
        assert!(
            world.ends.iter().all(|end| end.ending.is_none()),
            "I15: a dry pool ends a connection: {}",
            world.state()
        );
        for (end, receives) in receives.into_iter().enumerate() {
            let out = world.ends[end].memory.out().0;
            let configured = if world.plan.way == Way::Rc { receives } else { 0 };
            assert!(
                out <= configured,
                "I15: an idle connection has {out} bytes of {configured}: {}",
                world.state()
            );
        }
        world.bury()
    });
    assert!(sum.refused > 100 && sum.bytes > 0 && sum.messages > 0, "{sum:?}");
}

#[test]
fn i16_tcp_and_rdma_do_the_same() {
    let sum = explore(250_000, |seed, mut chance| {
        let plan = Plan::any(&mut chance);
        let script: Vec<usize> = (0..chance.within(1..60)).map(|_| plan.size(0, &mut chance)).collect();
        let mut tally = Tally::default();
        let traces = [Way::Rc, Way::Tcp].map(|way| {
            let mut world = World::new(seed, Chance::new(seed ^ way as u64), plan.clone().way(way));
            let trace = world.perform(&script);
            tally.add(&world.bury());
            trace
        });
        assert_eq!(traces[0], traces[1], "I16: seed {seed}: the same script is seen differently");
        tally
    });
    assert!(sum.bytes > 0 && sum.messages > 100, "{sum:?}");
}

#[test]
fn i17_reads_stay_within_what_was_told() {
    // The watch compares each READ with the ranges of the RTS frames that are not answered, the link with what is exposed.
    let sum = explore(60_000, |seed, mut chance| {
        let mut plan = large(&mut chance);
        plan.stage = 4096;
        run(seed, chance, plan, 2000).bury()
    });
    assert!(sum.kinds[RTS as usize] > 100 && sum.gathered > 10, "{sum:?}");
}

#[test]
fn i20_a_setup_that_cannot_work_is_refused() {
    type Spoil = fn(&mut Setup);
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
        let mut setup = Plan::any(&mut Chance::new(1)).way(Way::Rc).setup(0);
        assert!(ProtocolMachine::<super::memory::SimBlock>::new(&setup).is_ok());
        spoil(&mut setup);
        let refused =
            ProtocolMachine::<super::memory::SimBlock>::new(&setup).err().map(|refused| refused.name);
        assert_eq!(refused, Some(name), "I20");
    }
}

#[test]
fn i18_who_waits_has_nothing_to_do() {
    // A driver sleeps where nothing is due and nothing comes: then it would sleep for ever, and it is right to.
    let sum = explore(20_000, |seed, mut chance| {
        let plan = Plan::any(&mut chance);
        let mut world = run(seed, chance, plan, 500);
        world.hush_others();
        let frames = world.tally().frames;
        assert_eq!(world.next_deadline(), None, "I18: seed {seed}: something is due at rest");
        world.fall_silent(Duration::from_secs(60));
        assert_eq!(world.tally().frames, frames, "I18: seed {seed}: frames without a reason");
        world.bury()
    });
    assert!(sum.bytes > 100_000 && sum.messages > 100, "{sum:?}");
}

#[test]
fn i18_hours_of_silence_cost_probes_and_nothing_else() {
    let sum = explore(20_000, |seed, mut chance| {
        let mut plan = Plan::any(&mut chance).way(Way::Rc);
        plan.keepalive = Some(Keepalive { idle: Duration::from_secs(30), timeout: Duration::from_secs(10) });
        let mut world = run(seed, chance, plan, 500);
        world.hush_others();
        let frames = world.tally().frames;
        let began = world.now;
        while world.now - began < Duration::from_secs(4 * 3600) {
            assert!(world.skip_to_deadline(), "nothing is due: {}", world.state());
            world.rest();
            world.let_pass(Duration::from_secs(1));
        }
        assert_eq!(world.tally().frames, frames, "frames without a reason");
        let probes: u64 = world.ends.iter().map(|end| end.connection.counters().probes).sum();
        assert!((200..2000).contains(&probes), "{probes} probes in four hours");
        world.steps(500);
        world.settle();
        world.cut();
        let cut = world.now;
        world.until_over(false);
        assert!(world.now - cut < Duration::from_secs(71), "a cut is seen after {:?}", world.now - cut);
        let causes: Vec<_> = world.ends.iter().map(|end| end.ending.clone()).collect();
        assert!(
            causes.iter().all(|cause| matches!(
                cause,
                Some(Ending::Failed(Cause::Completion { .. } | Cause::Silent(_)))
            )),
            "{causes:?}"
        );
        world.bury()
    });
    assert!(sum.failures > 0, "{sum:?}");
}

#[test]
fn hours_of_talk_and_silence_break_nothing() {
    let sum = explore(60_000, |seed, mut chance| {
        let mut plan = Plan::any(&mut chance).both(|habits| habits.largest = habits.largest.min(20_000));
        plan.keepalive = Some(Keepalive { idle: Duration::from_secs(30), timeout: Duration::from_secs(10) });
        let mut world = World::new(seed, chance, plan);
        while world.elapsed() < Duration::from_secs(6 * 3600) {
            let (talk, silence) = (world.chance.within(0..400) as u64, world.chance.within(1..1800) as u64);
            world.steps(talk);
            world.fall_silent(Duration::from_secs(silence));
        }
        world.settle();
        world.check_credit();
        assert!(world.ends.iter().all(|end| end.ending.is_none()), "seed {seed}: {}", world.state());
        world.bury()
    });
    assert!(sum.bytes > 0 && sum.messages > 0 && sum.kinds[RTS as usize] > 0, "{sum:?}");
}
