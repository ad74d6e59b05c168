//! Directed runs of a connection over several rails, and a peer that lies about them.

use std::io::IoSlice;
use std::time::Duration;

use super::fabric::Disturbance;
use super::{Plan, Run};
use crate::protocol::{Block, ConnectionKind, Purpose};
use crate::rails::{RailState, Rails};
use crate::sim::memory::SimBlock;
use crate::sim::rng::SimRng;

/// The server's queue pair of the handshake.
const SERVER: usize = 1;

/// A directed step: everything that can move, moves.
fn settle(run: &mut Run, rng: &mut SimRng, time: Duration) {
    let until = run.now + time;
    while run.now < until {
        // A turn may poll only a part.
        let mut idle = 0;
        while idle < 8 {
            for end in 0..2 {
                run.ends[end].turn(&mut run.fabric, run.now, rng);
            }
            idle += 1;
            while run.fabric.step(run.now, rng) {
                idle = 0;
            }
        }
        run.now += Duration::from_millis(10);
    }
}

fn idle_plan(rng: &mut SimRng) -> Plan {
    let mut plan = Plan {
        kind: ConnectionKind::Stream,
        rails: 2,
        count: [60_000; 2],
        disturbed: 0,
        backoff: Duration::from_millis(100),
        spares_one: true,
        join_after: 0,
        ..Plan::random(rng)
    };
    for setup in &mut plan.setup {
        setup.limits.rx_slots = 16;
        setup.limits.first_slots = Some(5);
        setup.limits.slot_size = 1024;
    }
    plan
}

/// rail 1 of an idle connection goes out often, and then rail 0. DOWNs of old generations
/// must not be repeated all at once.
#[test]
fn flaps_of_an_idle_connection() {
    let mut rng = SimRng::new(1);
    let plan = idle_plan(&mut rng);
    let mut run = Run::new(1, plan);
    settle(&mut run, &mut rng, Duration::from_millis(500));
    let mut flaps = 0;
    while flaps < 40 {
        let up = |run: &Run| (0..2).all(|end| run.ends[end].rails.state(1) == RailState::Up);
        if up(&run) {
            flaps += 1;
            run.fabric.disturb(1, Disturbance::Fails(flaps % 2));
        }
        settle(&mut run, &mut rng, Duration::from_millis(200));
    }
    while !(0..2).all(|end| run.ends[end].rails.state(1) == RailState::Up) {
        settle(&mut run, &mut rng, Duration::from_millis(200));
    }
    run.fabric.disturb(0, Disturbance::Fails(0));
    settle(&mut run, &mut rng, Duration::from_millis(500));
    assert!(run.ends.iter().all(|end| end.failed.is_none()));
}

fn all_up(run: &Run) -> bool {
    (0..2).all(|end| (0..2).all(|rail| run.ends[end].rails.state(rail) == RailState::Up))
}

/// The server's devices of both rails.
fn devices(run: &Run) -> [Option<usize>; 2] {
    [0, 1].map(|rail| run.ends[1].rails.device(rail))
}

/// a port of the server goes down. Its rail comes back over the server's other device, and moves back
/// when the port is active again.
#[test]
fn a_rail_leaves_a_device_that_it_shares() {
    let mut rng = SimRng::new(7);
    let plan = idle_plan(&mut rng);
    let mut run = Run::new(7, plan);
    settle(&mut run, &mut rng, Duration::from_secs(2));
    assert_eq!((all_up(&run), devices(&run)), (true, [Some(0), Some(1)]));
    let far = run.now + Duration::from_secs(1000);
    run.lower_port(1, 1, far);
    settle(&mut run, &mut rng, Duration::from_secs(60));
    assert_eq!((all_up(&run), devices(&run)), (true, [Some(0), Some(0)]));
    assert_eq!(run.ends[1].rails.counters().moves, 0, "no other device is active");
    run.ports_down.clear();
    run.tell_ports(1);
    settle(&mut run, &mut rng, Duration::from_secs(2));
    assert_eq!(run.ends[1].rails.counters().moves, 1);
    // Chance may refuse the first queue pair.
    settle(&mut run, &mut rng, Duration::from_secs(10));
    assert_eq!((all_up(&run), devices(&run)), (true, [Some(0), Some(1)]));
    assert!(run.ends.iter().all(|end| end.failed.is_none()));
}

/// no rail leaves a device that it shares while the other one does not answer.
#[test]
fn a_rail_stays_while_no_other_answers() {
    let mut rng = SimRng::new(8);
    let plan = idle_plan(&mut rng);
    let mut run = Run::new(8, plan);
    settle(&mut run, &mut rng, Duration::from_secs(2));
    let far = run.now + Duration::from_secs(1000);
    run.lower_port(1, 1, far);
    settle(&mut run, &mut rng, Duration::from_secs(60));
    assert_eq!((all_up(&run), devices(&run)), (true, [Some(0), Some(0)]));
    run.fabric.disturb(0, Disturbance::Cut(far));
    run.ports_down.clear();
    run.tell_ports(1);
    settle(&mut run, &mut rng, Duration::from_secs(10));
    assert!(run.ends.iter().all(|end| end.failed.is_none() && end.rails.up() == 1));
    assert_eq!(run.ends[1].rails.counters().moves, 0, "rail 1 was the only one");
}

/// a device over which no rail comes up is tried ever less often.
#[test]
fn moves_that_do_not_help_become_rare() {
    let mut rng = SimRng::new(9);
    let plan = idle_plan(&mut rng);
    let mut run = Run::new(9, plan);
    run.ends[1].refused_device = Some(1);
    settle(&mut run, &mut rng, Duration::from_secs(5));
    assert_eq!((all_up(&run), devices(&run)), (true, [Some(0), Some(0)]));
    settle(&mut run, &mut rng, Duration::from_secs(600));
    let moves = run.ends[1].rails.counters().moves;
    assert!((2..8).contains(&moves), "{moves} moves in ten minutes");
    assert!(run.ends.iter().all(|end| end.failed.is_none()));
}

/// a port of the client goes down. The client offers nothing until it is active again, and then soon.
#[test]
fn a_port_of_the_client_is_waited_for() {
    let mut rng = SimRng::new(10);
    let plan = idle_plan(&mut rng);
    let mut run = Run::new(10, plan);
    settle(&mut run, &mut rng, Duration::from_secs(2));
    let far = run.now + Duration::from_secs(1000);
    run.lower_port(0, 1, far);
    let generation = run.ends[0].rails.generation(1);
    settle(&mut run, &mut rng, Duration::from_secs(60));
    assert_eq!(run.ends[0].rails.generation(1), generation, "the port is down");
    run.ports_down.clear();
    run.tell_ports(0);
    settle(&mut run, &mut rng, Duration::from_secs(2));
    assert_eq!((all_up(&run), devices(&run)), (true, [Some(0), Some(1)]));
    assert_eq!(run.ends[1].rails.counters().moves, 0);
}

/// a server that makes no calls gets an OFFER and a DOWN, for which it has receives.
#[test]
fn a_silent_server_is_offered_one_rail() {
    let mut rng = SimRng::new(12);
    let plan = Plan { rails: 4, ..idle_plan(&mut rng) };
    let mut run = Run::new(12, plan);
    let (before, until) = (run.fabric.receives(SERVER), run.now + Duration::from_secs(20));
    while run.now < until {
        run.ends[0].turn(&mut run.fabric, run.now, &mut rng);
        while run.fabric.step(run.now, &mut rng) {}
        run.now += Duration::from_millis(10);
    }
    let taken = before - run.fabric.receives(SERVER);
    assert_eq!(taken, 2);
    assert!(taken < Rails::<SimBlock>::FIRST_RECEIVES);
    settle(&mut run, &mut rng, Duration::from_secs(60));
    let states: Vec<_> = (0..4).map(|rail| run.ends[1].rails.state(rail)).collect();
    assert_eq!(states, [RailState::Up; 4]);
}

/// a port of the server that goes down and up all the time does not make its rail come and go as often.
#[test]
fn a_port_that_flaps_moves_few_rails() {
    let mut rng = SimRng::new(11);
    let plan = idle_plan(&mut rng);
    let mut run = Run::new(11, plan);
    settle(&mut run, &mut rng, Duration::from_secs(2));
    for _ in 0..100 {
        run.lower_port(1, 1, run.now);
        settle(&mut run, &mut rng, Duration::from_millis(500));
        run.raise_ports();
        settle(&mut run, &mut rng, Duration::from_millis(500));
    }
    let joined = run.ends[1].rails.counters().joined;
    assert!(joined < 20, "joined {joined} times in 100 failures");
    assert!(run.ends.iter().all(|end| end.failed.is_none()));
}

/// a wire of an idle connection is cut, which the probe of that rail finds. The other rail works.
#[test]
fn a_probe_finds_an_idle_rail_that_is_cut() {
    for seed in 1..20 {
        let mut rng = SimRng::new(seed);
        let plan = idle_plan(&mut rng);
        let mut run = Run::new(seed, plan);
        settle(&mut run, &mut rng, Duration::from_millis(500));
        // Both rails are up, and nothing but probes moves. One wire is cut for good.
        if run.ends.iter().any(|end| end.rails.up() < 2) {
            continue;
        }
        let far = run.now + Duration::from_secs(1000);
        run.fabric.disturb((seed % 2) as usize, Disturbance::Cut(far));
        settle(&mut run, &mut rng, Duration::from_secs(15));
        let up: Vec<_> = run.ends.iter().map(|end| end.rails.up()).collect();
        let failed = [&run.ends[0].failed, &run.ends[1].failed];
        assert!(failed.iter().all(|failed| failed.is_none()), "seed {seed}: {failed:?}, rails up {up:?}");
        assert_eq!(up, [1, 1], "seed {seed}");
    }
}

/// a ping-pong with a small window. Frames that the peer's program has answered must not
/// keep their memory for ever.
#[test]
fn memory_of_answered_frames() {
    for (window, part) in [(None, 0), (Some(5), 0), (None, 14 << 10), (Some(5), 14 << 10)] {
        // Twice what one connection needs to send (`send_slots`).
        let mut rng = SimRng::new(3);
        let mut plan = Plan { send_memory: (part > 0).then_some(part), ..idle_plan(&mut rng) };
        for setup in &mut plan.setup {
            setup.limits.rx_slots = 32;
            setup.limits.first_slots = window;
            (setup.sndbuf, setup.rcvbuf) = (4096, 4096);
        }
        let mut run = Run::new(3, plan);
        settle(&mut run, &mut rng, Duration::from_millis(500));
        let idle = [run.ends[0].memory.out().0, run.ends[1].memory.out().0];
        let mut buffer = [0; 512];
        for round in 0..200 {
            for end in 0..2 {
                let side = &mut run.ends[end];
                let written = side.protocol.write(&[IoSlice::new(&[7; 300])], &mut side.memory);
                assert!(matches!(written, Ok(300)), "round {round}: {written:?}");
                settle(&mut run, &mut rng, Duration::from_millis(10));
                let side = &mut run.ends[1 - end];
                assert!(matches!(side.protocol.read(&mut buffer), Ok(300)), "round {round}");
            }
        }
        settle(&mut run, &mut rng, Duration::from_millis(500));
        let after = [run.ends[0].memory.out().0, run.ends[1].memory.out().0];
        eprintln!("window {window:?}: {idle:?} bytes before, {after:?} after");
    }
}

/// Hands bytes to an end as if they had come over a rail.
fn inject(run: &mut Run, end: usize, rail: usize, bytes: &[u8]) {
    let now = run.now;
    let side = &mut run.ends[end];
    let mut block = side.memory.block(1024, Purpose::Receive).expect("memory");
    block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    let (mut spare, sink) = (Vec::new(), &mut crate::protocol::CallBuffer::default());
    side.rails.received(rail, block, bytes.len(), None, &mut side.protocol, sink, &mut spare, || now);
}

fn words(head: [u8; 4], words: [u32; 3]) -> Vec<u8> {
    head.into_iter().chain(words.into_iter().flat_map(u32::to_le_bytes)).collect()
}

/// any messages and acknowledgements fail the connection at worst.
#[test]
fn hostile_messages_never_panic() {
    let mut ends = [0; 3];
    for seed in 1..400 {
        let mut rng = SimRng::new(seed);
        let mut plan = Plan::random(&mut rng);
        (plan.disturbed, plan.join_after) = (0, 0);
        plan.count = [60_000, 60_000];
        plan.kind = ConnectionKind::Stream;
        let mut run = Run::new(seed, plan);
        for _ in 0..rng.within(10..2000) {
            run.step(&mut rng);
        }
        let end = rng.within(0..2);
        run.ends[end].is_lied_to = true;
        for _ in 0..400 {
            if run.ends[end].failed.is_some() || run.ends[end].closed {
                ends[0] += 1;
                break;
            }
            let rail = rng.within(0..plan.rails);
            let about = rng.within(0..plan.rails);
            let side = &run.ends[end];
            let (next, expected) = (side.protocol.next_number(), side.protocol.expected());
            let generation = side.rails.generation(about);
            let generation = rng.one_of(&[
                generation,
                generation,
                generation,
                generation + 1,
                generation.wrapping_sub(1),
                7,
                u32::MAX,
            ]);
            let over = [rail, about][rng.within(0..2)];
            if !matches!(
                run.ends[end].rails.state(over),
                RailState::Up | RailState::Proving { .. } | RailState::Stopping
            ) {
                run.ends[end].turn(&mut run.fabric, run.now, &mut rng);
                run.now += Duration::from_millis(rng.within(0..40) as u64);
                continue;
            }
            match rng.within(0..8) {
                0 | 1 => {
                    let most = rng.one_of(&[3, 60]);
                    let said = rng.within(0..most) as u32;
                    inject(&mut run, end, over, &words([12, 5, about as u8, 0], [generation, said, 0]));
                }
                2 if end == 0 => {
                    inject(&mut run, end, over, &words([12, 3, about as u8, 0], [generation, 0, 0]))
                }
                2 | 3 if rng.one_in(2) => {
                    let endpoint = [0_u8; 40];
                    let mut bytes =
                        words([12, if end == 0 { 2 } else { 1 }, about as u8, 0], [generation, 1, 40]);
                    let mut payload = endpoint;
                    payload[0] = 1;
                    payload[26] = 5;
                    payload[27] = 2;
                    bytes.extend(payload);
                    inject(&mut run, end, over, &bytes);
                }
                4 => inject(&mut run, end, over, &words([12, 4, over as u8, 0], [generation, 0, 0])),
                5 | 6 => {
                    let total = next.wrapping_add(rng.within(0..17) as u32);
                    let acknowledged = next.wrapping_sub(rng.within(0..40) as u32);
                    let seq = expected.wrapping_add(if rng.one_in(30) { 1 } else { 0 });
                    inject(&mut run, end, over, &words([2, 0, 0, 0], [seq, total, acknowledged]));
                }
                _ => {
                    run.write(end, &mut rng);
                    if rng.one_in(3) {
                        run.fabric.disturb(over, Disturbance::Fails(end));
                    }
                }
            }
            run.ends[end].turn(&mut run.fabric, run.now, &mut rng);
            if rng.one_in(4) {
                run.now += Duration::from_millis(rng.within(0..200) as u64);
            }
        }
        ends[1] += 1;
        ends[2] += run.ends[end].rails.counters().frames_repeated;
    }
    eprintln!("ended, all, frames again: {ends:?}");
}

/// a client that says again and again that a coming generation is down, or offers one.
#[test]
fn hostile_messages_take_bounded_memory() {
    let mut rng = SimRng::new(1);
    let plan = idle_plan(&mut rng);
    let mut run = Run::new(1, plan);
    run.ends[1].is_lied_to = true;
    let len = |run: &Run| format!("{:?}", run.ends[1].rails).len();
    let before = len(&run);
    for generation in 1..5000 {
        inject(&mut run, 1, 0, &words([12, 5, 1, 0], [generation, 0, 0]));
    }
    assert!(len(&run) < before + 20_000, "{before} bytes of state before, {} after", len(&run));
}

/// a FIN that overtakes data over another rail does not make the data delivered.
#[test]
fn data_behind_its_fin_is_not_delivered() {
    let mut rng = SimRng::new(5);
    let plan = idle_plan(&mut rng);
    let mut run = Run::new(5, plan);
    settle(&mut run, &mut rng, Duration::from_millis(500));
    run.fabric.disturb(0, Disturbance::Cut(run.now + Duration::from_secs(1000)));
    let side = &mut run.ends[0];
    assert!(matches!(side.protocol.write(&[IoSlice::new(&[7; 300])], &mut side.memory), Ok(300)));
    side.turn(&mut run.fabric, run.now, &mut rng);
    side.protocol.shutdown_write();
    settle(&mut run, &mut rng, Duration::from_millis(100));
    assert_eq!(run.ends[1].protocol.counters().bytes_received, 0, "the wire of rail 0 is cut");
    assert!(!run.ends[0].protocol.is_delivered(), "300 bytes are not delivered");
    run.ends[0].protocol.failed(crate::protocol::FailureCause::PeerGone);
    assert!(run.ends[0].protocol.left_undelivered(), "300 bytes were never delivered");
}

/// 300 bytes are on their way over rail 0, whose wire is cut, and a RESET overtakes them over rail 1.
fn reset_overtakes_data(cut: Duration) -> (Run, SimRng) {
    let mut rng = SimRng::new(6);
    let plan = idle_plan(&mut rng);
    let mut run = Run::new(6, plan);
    settle(&mut run, &mut rng, Duration::from_millis(500));
    run.fabric.disturb(0, Disturbance::Cut(run.now + cut));
    // The rail that was used less goes first among equal ones.
    for _ in 0..2 {
        let side = &mut run.ends[0];
        assert!(matches!(side.protocol.write(&[IoSlice::new(&[7; 300])], &mut side.memory), Ok(300)));
        side.turn(&mut run.fabric, run.now, &mut rng);
    }
    let number = run.ends[0].protocol.next_number();
    assert_ne!(run.ends[1].protocol.expected(), number, "nothing has arrived");
    inject(&mut run, 1, 1, &words([11, 0, 0, 0], [number, 0, 0]));
    assert!(run.ends[1].protocol.failure().is_none(), "data before the RESET is on its way");
    settle(&mut run, &mut rng, Duration::from_millis(50));
    (run, rng)
}

/// data that was sent before a RESET arrives before it, although the RESET came over another rail.
#[test]
fn a_reset_waits_for_the_data_before_it() {
    let (run, _) = reset_overtakes_data(Duration::from_millis(20));
    assert_eq!(run.ends[1].protocol.counters().bytes_received, 600);
    assert!(matches!(run.ends[1].failed, Some(crate::protocol::FailureCause::PeerReset)));
}

/// it does not wait for ever.
#[test]
fn a_reset_ends_the_connection_soon() {
    let (mut run, mut rng) = reset_overtakes_data(Duration::from_secs(1000));
    assert!(run.ends[1].failed.is_none());
    settle(&mut run, &mut rng, Duration::from_millis(100));
    assert!(matches!(run.ends[1].failed, Some(crate::protocol::FailureCause::PeerReset)));
}

/// long and short requests take turns. The long ones, which are measured, try each rail at times.
#[test]
fn each_rail_gets_long_requests_at_times() {
    let mut rng = SimRng::new(12);
    let plan = idle_plan(&mut rng);
    let mut run = Run::new(12, plan);
    settle(&mut run, &mut rng, Duration::from_secs(2));
    let rails = &mut run.ends[0].rails;
    let mut tried = [0; 2];
    for _ in 0..256 {
        tried[rails.choose(256 << 10, true, |_| true).expect("a rail")] += 1;
        rails.choose(64, false, |_| true).expect("a rail");
    }
    assert!(tried.iter().all(|count| *count >= 2), "{tried:?}");
}
