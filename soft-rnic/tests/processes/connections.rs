//! Connections between two processes, one of which is stopped, killed, or exits at each step. The
//! tests check which events the other process gets, and that nothing remains.
//!
//! A *side* obeys commands: the `active` side connects, the `passive` side listens.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use rdma_mummy_sys::types::rdma_cm_event_type as Kind;
use rustix::process::Signal;

use crate::cm::{CmChannel, CmCounts, Event, Id, PATIENCE, good_way, warm_up};
use crate::role::{ChildRole, fabric, say, told};

const PORT: u16 = 7471;
/// The time to wait for an event that must not come.
const SHORT: Duration = Duration::from_millis(150);
/// Reject reasons.
const INVALID_SERVICE_ID: i32 = 8;
const CONSUMER_DEFINED: i32 = 28;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("connections::a_whole_life_between_two_processes", whole_life),
        Trial::test("connections::a_rejection_comes_before_the_end_of_who_rejects", reject_and_die),
        Trial::test("connections::a_process_that_ends_disconnects", end_by_itself),
        Trial::test("connections::nobody_listens", nobody_listens),
        Trial::test("connections::a_forked_child_is_shut_out_and_its_parent_goes_on", forks),
        Trial::test("connections::a_port_that_moves_is_found", moving_port),
    ];
    for step in ConnStep::ALL {
        for victim in [ConnRole::Active, ConnRole::Passive] {
            let (name, of) = (step.name(), victim.name());
            trials
                .push(Trial::test(format!("connections::{of}_killed_{name}"), move || killed(step, victim)));
            trials.push(Trial::test(format!("connections::{of}_stopped_{name}"), move || {
                stopped(step, victim)
            }));
        }
    }
    trials
}

/// The progress of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ConnStep {
    /// The passive side listens, and the active side has resolved the route.
    Resolved,
    /// The passive program has the request.
    Requested,
    /// The passive program has accepted; the active program has not taken the event yet.
    Accepted,
    Established,
    /// The active program has disconnected, and the passive program has the event.
    Disconnected,
}

impl ConnStep {
    const ALL: [Self; 5] =
        [Self::Resolved, Self::Requested, Self::Accepted, Self::Established, Self::Disconnected];

    fn name(self) -> &'static str {
        match self {
            Self::Resolved => "before_it_is_asked",
            Self::Requested => "when_it_was_asked",
            Self::Accepted => "when_it_was_answered",
            Self::Established => "when_they_are_connected",
            Self::Disconnected => "when_they_part",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnRole {
    Active,
    Passive,
}

impl ConnRole {
    fn name(self) -> &'static str {
        if self == Self::Active { "active" } else { "passive" }
    }
}

/// The role of a side.
pub(crate) fn side() {
    warm_up();
    let before = CmCounts::now();
    let channel = CmChannel::new();
    let (mut listener, mut id): (Option<Id>, Option<Id>) = (None, None);
    let report = |event: Option<Event>| match event {
        Some(Event { kind, status, data, .. }) => {
            let text = String::from_utf8_lossy(&data).trim_end_matches('\0').to_owned();
            say(&format!("event {} {status} {text}", kind.0));
        }
        None => say("nothing"),
    };
    let done = |result: Result<(), i32>| match result {
        Ok(()) => say("done"),
        Err(error) => say(&format!("error {error}")),
    };
    while let Some(line) = told() {
        let mut words = line.split(' ');
        let (word, argument) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let has = || id.expect("an id");
        match word {
            "listen" => {
                let new = channel.id();
                new.listen(PORT, 8);
                listener = Some(new);
                say("done");
            }
            "resolve" => {
                let new = channel.id();
                good_way(channel, new, PORT);
                new.make_qp().expect("a queue pair");
                id = Some(new);
                say("done");
            }
            "request" => {
                let event = channel.expect(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
                event.id.make_qp().expect("a queue pair");
                id = Some(event.id);
                report(Some(event));
            }
            "connect" => done(has().connect(argument.as_bytes())),
            "accept" => done(has().accept(argument.as_bytes())),
            "reject" => done(has().reject(argument.as_bytes())),
            "disconnect" => done(has().disconnect()),
            "event" => report(channel.event(PATIENCE)),
            "none" => report(channel.event(SHORT)),
            "count" => {
                let all = soft_rnic::statistics().expect("a device is open").identifiers;
                say(&format!("count {} {} {}", all.count, all.listening, all.connected));
            }
            "fork" => say(&format!("forked {}", forked(channel, has()))),
            "destroy" => {
                id.take().expect("an id").destroy();
                say("done");
            }
            "judge" => {
                let request = channel.expect(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
                request.id.reject(argument.as_bytes()).expect("the request can be rejected");
                // SAFETY: the call ends this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            "exit" => std::process::exit(0),
            "end" => {
                id.take().into_iter().chain(listener.take()).for_each(Id::destroy);
                channel.destroy();
                // The other end's process is dead by now.
                before.expect_no_more();
                say("clean");
                return;
            }
            other => panic!("{other}?"),
        }
    }
}

/// The two sides of a connection.
struct ConnPair {
    active: ChildRole,
    passive: ChildRole,
}

fn start(fabric: &str) -> ChildRole {
    // With this time scale, ids that nobody answers end within the test.
    ChildRole::start("cm-side", &[("SOFT_RNIC_FABRIC", fabric), ("SOFT_RNIC_TIME_SCALE", "1")])
}

/// Sends a command to a side, and checks its answer.
#[track_caller]
fn order(role: &mut ChildRole, line: &str, answer: &str) {
    role.tell(line);
    let said = role.hear();
    assert!(said.starts_with(answer), "{line}: {said:?}, not {answer:?}");
}

/// Has a side wait for an event with this status and private data.
#[track_caller]
fn expect(role: &mut ChildRole, kind: Kind, status: i32, data: &str) {
    role.tell("event");
    let said = role.hear();
    assert_eq!(
        said.trim_end(),
        format!("event {} {status} {data}", kind.0).trim_end(),
        "{kind:?} was wanted"
    );
}

impl ConnPair {
    fn new() -> Self {
        let fabric = fabric();
        Self { active: start(&fabric), passive: start(&fabric) }
    }

    fn side(&mut self, side: ConnRole) -> &mut ChildRole {
        if side == ConnRole::Active { &mut self.active } else { &mut self.passive }
    }

    /// Advances a new connection to this step.
    fn bring_to(&mut self, step: ConnStep) {
        order(&mut self.passive, "listen", "done");
        order(&mut self.active, "resolve", "done");
        self.go_on(ConnStep::Resolved, step);
    }

    fn go_on(&mut self, from: ConnStep, to: ConnStep) {
        let steps = |step| from < step && step <= to;
        if steps(ConnStep::Requested) {
            order(&mut self.active, "connect hello", "done");
            order(&mut self.passive, "request", "event 4 0 hello");
        }
        if steps(ConnStep::Accepted) {
            order(&mut self.passive, "accept welcome", "done");
        }
        if steps(ConnStep::Established) {
            expect(&mut self.active, Kind::RDMA_CM_EVENT_ESTABLISHED, 0, "welcome");
            expect(&mut self.passive, Kind::RDMA_CM_EVENT_ESTABLISHED, 0, "");
        }
        if steps(ConnStep::Disconnected) {
            order(&mut self.active, "disconnect", "done");
            expect(&mut self.passive, Kind::RDMA_CM_EVENT_DISCONNECTED, 0, "");
        }
    }

    /// Destroys both sides after both have disconnected.
    fn end(mut self) {
        order(&mut self.passive, "disconnect", "done");
        expect(&mut self.active, Kind::RDMA_CM_EVENT_DISCONNECTED, 0, "");
        for side in [ConnRole::Active, ConnRole::Passive] {
            order(self.side(side), "destroy", "done");
        }
        self.active.finish();
        order(&mut self.passive, "end", "clean");
        self.passive.finish();
    }
}

fn whole_life() -> Result<(), Failed> {
    let mut pair = ConnPair::new();
    pair.bring_to(ConnStep::Disconnected);
    pair.end();
    Ok(())
}

fn killed(step: ConnStep, victim: ConnRole) -> Result<(), Failed> {
    let mut pair = ConnPair::new();
    pair.bring_to(step);
    pair.side(victim).signal(Signal::KILL);
    pair.side(victim).wait_dead();
    let survivor = pair.side(if victim == ConnRole::Active { ConnRole::Passive } else { ConnRole::Active });
    match (step, victim) {
        (ConnStep::Resolved, ConnRole::Active) => order(survivor, "none", "nothing"),
        (ConnStep::Resolved, ConnRole::Passive) => {
            order(survivor, "connect hello", "done");
            expect(survivor, Kind::RDMA_CM_EVENT_REJECTED, INVALID_SERVICE_ID, "");
        }
        (ConnStep::Requested, ConnRole::Active) => {
            // As with the real kernel, a request has no events before it is accepted. The end is
            // known already, or comes after the answer.
            survivor.tell("accept welcome");
            let said = survivor.hear();
            if said.starts_with("done") {
                expect(survivor, Kind::RDMA_CM_EVENT_REJECTED, CONSUMER_DEFINED, "");
            } else {
                assert!(said.starts_with("error"), "accepted the request of a dead process: {said}");
            }
        }
        (ConnStep::Requested, ConnRole::Passive) => {
            expect(survivor, Kind::RDMA_CM_EVENT_REJECTED, CONSUMER_DEFINED, "");
        }
        (ConnStep::Accepted, ConnRole::Active) => {
            expect(survivor, Kind::RDMA_CM_EVENT_REJECTED, CONSUMER_DEFINED, "");
        }
        (ConnStep::Accepted, ConnRole::Passive) => {
            // The response had arrived. If the end is not known when the program takes the event,
            // the connection is established and then disconnects. Otherwise establishing fails,
            // and, as in librdmacm, no other event follows.
            survivor.tell("event");
            let said = survivor.hear();
            if said.starts_with("event 9 0 welcome") {
                expect(survivor, Kind::RDMA_CM_EVENT_DISCONNECTED, 0, "");
            } else {
                assert!(said.starts_with("event 6 -"), "neither established nor an error: {said}");
            }
            order(survivor, "none", "nothing");
        }
        (ConnStep::Established, _) => expect(survivor, Kind::RDMA_CM_EVENT_DISCONNECTED, 0, ""),
        (ConnStep::Disconnected, ConnRole::Active) => {
            survivor.tell("disconnect");
            let _ = survivor.hear();
        }
        (ConnStep::Disconnected, ConnRole::Passive) => {
            expect(survivor, Kind::RDMA_CM_EVENT_DISCONNECTED, 0, "");
        }
    }
    order(survivor, "end", "clean");
    Ok(())
}

fn stopped(step: ConnStep, victim: ConnRole) -> Result<(), Failed> {
    let mut pair = ConnPair::new();
    pair.bring_to(step);
    pair.side(victim).signal(Signal::STOP);
    pair.side(victim).wait_stopped();
    let other = pair.side(if victim == ConnRole::Active { ConnRole::Passive } else { ConnRole::Active });
    // The next call of the other side neither waits nor fails, and causes no event before the
    // stopped side continues.
    let next = match (step, victim) {
        (ConnStep::Resolved, ConnRole::Active) | (ConnStep::Accepted, _) => None,
        (ConnStep::Resolved, ConnRole::Passive) => Some("connect hello"),
        (ConnStep::Requested, ConnRole::Active) => Some("accept welcome"),
        (ConnStep::Requested, ConnRole::Passive) => None,
        (ConnStep::Established, _) => Some("disconnect"),
        (ConnStep::Disconnected, ConnRole::Active) => Some("disconnect"),
        (ConnStep::Disconnected, ConnRole::Passive) => None,
    };
    if let Some(next) = next {
        order(other, next, "done");
    }
    let answered = step == ConnStep::Accepted && victim == ConnRole::Passive;
    if !answered {
        order(other, "none", "nothing");
    }
    pair.side(victim).signal(Signal::CONT);
    match (step, victim) {
        (ConnStep::Resolved, ConnRole::Passive) => {
            order(&mut pair.passive, "request", "event 4 0 hello");
            pair.go_on(ConnStep::Requested, ConnStep::Disconnected);
        }
        (ConnStep::Requested, ConnRole::Active) => pair.go_on(ConnStep::Accepted, ConnStep::Disconnected),
        (ConnStep::Established, _) => {
            let (first, second) = if victim == ConnRole::Passive {
                (&mut pair.passive, &mut pair.active)
            } else {
                (&mut pair.active, &mut pair.passive)
            };
            expect(first, Kind::RDMA_CM_EVENT_DISCONNECTED, 0, "");
            order(first, "disconnect", "done");
            expect(second, Kind::RDMA_CM_EVENT_DISCONNECTED, 0, "");
            for role in [first, second] {
                order(role, "destroy", "done");
            }
            pair.active.finish();
            order(&mut pair.passive, "end", "clean");
            return Ok(());
        }
        (ConnStep::Disconnected, ConnRole::Active) => {
            expect(&mut pair.active, Kind::RDMA_CM_EVENT_DISCONNECTED, 0, "");
            order(&mut pair.active, "destroy", "done");
            pair.active.finish();
            order(&mut pair.passive, "end", "clean");
            return Ok(());
        }
        _ => pair.go_on(step, ConnStep::Disconnected),
    }
    pair.end();
    Ok(())
}

fn reject_and_die() -> Result<(), Failed> {
    for _ in 0..5 {
        let mut pair = ConnPair::new();
        pair.bring_to(ConnStep::Resolved);
        pair.passive.tell("judge not-today");
        // This pair has not connected before.
        order(&mut pair.active, "connect hello", "done");
        expect(&mut pair.active, Kind::RDMA_CM_EVENT_REJECTED, CONSUMER_DEFINED, "not-today");
        pair.passive.wait_dead();
        order(&mut pair.active, "end", "clean");
    }
    Ok(())
}

/// The exit of a process destroys its ids.
fn end_by_itself() -> Result<(), Failed> {
    for victim in [ConnRole::Active, ConnRole::Passive] {
        let mut pair = ConnPair::new();
        pair.bring_to(ConnStep::Established);
        pair.side(victim).tell("exit");
        pair.side(victim).wait_dead();
        let survivor =
            pair.side(if victim == ConnRole::Active { ConnRole::Passive } else { ConnRole::Active });
        expect(survivor, Kind::RDMA_CM_EVENT_DISCONNECTED, 0, "");
        order(survivor, "end", "clean");
    }
    Ok(())
}

/// Forks. In the child, every use of the parent's ids must fail with `EIO`; returns `out` if it
/// does.
fn forked(channel: CmChannel, id: Id) -> String {
    // SAFETY: this process has threads, but the child uses none of their locks, because its calls
    // fail at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let results = [channel.try_id().map(drop), id.connect(b"child"), id.disconnect(), id.try_destroy()];
        let wrong = results.iter().position(|result| *result != Err(libc::EIO));
        // SAFETY: the child ends here, and touches nothing of the parent.
        unsafe { libc::_exit(wrong.map_or(0, |at| at as i32 + 1)) };
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if status == 0 { "out".into() } else { format!("status {status:#x}") }
}

/// A forked child cannot use the connection at any step. Its exit does not disturb its parent or
/// the other side.
fn forks() -> Result<(), Failed> {
    for side in [ConnRole::Active, ConnRole::Passive] {
        let mut pair = ConnPair::new();
        pair.bring_to(ConnStep::Requested);
        order(pair.side(side), "fork", "forked out");
        pair.go_on(ConnStep::Requested, ConnStep::Accepted);
        order(pair.side(side), "fork", "forked out");
        pair.go_on(ConnStep::Accepted, ConnStep::Established);
        order(pair.side(side), "fork", "forked out");
        for (side, count) in [(ConnRole::Active, "count 1 0 1"), (ConnRole::Passive, "count 2 1 1")] {
            order(pair.side(side), "none", "nothing");
            order(pair.side(side), "count", count);
        }
        pair.go_on(ConnStep::Established, ConnStep::Disconnected);
        pair.end();
    }
    Ok(())
}

fn nobody_listens() -> Result<(), Failed> {
    let mut active = start(&fabric());
    for _ in 0..3 {
        order(&mut active, "resolve", "done");
        order(&mut active, "connect hello", "done");
        expect(&mut active, Kind::RDMA_CM_EVENT_REJECTED, INVALID_SERVICE_ID, "");
        order(&mut active, "destroy", "done");
    }
    order(&mut active, "end", "clean");
    Ok(())
}

/// Several processes listen at the same port, one after another; an active side that has found the
/// first also finds the next.
fn moving_port() -> Result<(), Failed> {
    let fabric = fabric();
    let mut active = start(&fabric);
    for kill in [true, false, true] {
        let mut passive = start(&fabric);
        order(&mut passive, "listen", "done");
        order(&mut active, "resolve", "done");
        order(&mut active, "connect hello", "done");
        order(&mut passive, "request", "event 4 0 hello");
        order(&mut passive, "reject no", "done");
        expect(&mut active, Kind::RDMA_CM_EVENT_REJECTED, CONSUMER_DEFINED, "no");
        order(&mut active, "destroy", "done");
        if kill {
            passive.signal(Signal::KILL);
            passive.wait_dead();
        } else {
            passive.finish();
        }
    }
    order(&mut active, "end", "clean");
    Ok(())
}
