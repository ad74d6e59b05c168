//! I12 and I13: whatever fails, on whichever side, both sides end on the same transport, or with an error, in time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::fake::{ATTEMPT, Air, Broken, FakePath, Faults, terms};
use super::machine::Machine;
use super::world::{Loss, Outcome, World};
use super::{Cause, FallbackReason, HandshakeError, Side, Transport, Unavailable};
use crate::wire::{Hello, Kind, Policy, Probe, Ready, Reject, RejectReason, Role, WireError};

/// One side's part of a case.
#[derive(Clone, Copy, Debug)]
struct Part {
    policy: Policy,
    device: bool,
    faults: Faults,
}

impl Part {
    fn path(self, air: &Rc<RefCell<Air>>) -> Result<FakePath, Unavailable> {
        if self.device {
            return Ok(FakePath::new(air, self.faults));
        }
        Err(Unavailable::new(Cause::NoDevice, ""))
    }

    /// Whether it has an endpoint to tell of.
    fn prepares(self) -> bool {
        self.policy != Policy::TcpOnly && self.device && !self.faults.prepare
    }

    fn connects(self) -> bool {
        self.prepares() && !self.faults.connect
    }

    fn works(self) -> bool {
        self.connects() && self.faults.probe == Broken::Not
    }

    /// What it may name as what went wrong on its side.
    fn causes(self) -> Vec<Cause> {
        let mut causes = Vec::new();
        let mut may = |when, cause| {
            if when {
                causes.push(cause);
            }
        };
        may(self.policy == Policy::TcpOnly, Cause::TcpOnly);
        may(!self.device, Cause::NoDevice);
        may(self.faults.prepare, Cause::Resources);
        may(self.faults.connect, Cause::Connect);
        may(matches!(self.faults.probe, Broken::Fails | Broken::Late), Cause::ProbeFailed);
        causes
    }
}

fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for policy in [Policy::Auto, Policy::RequireRdma, Policy::TcpOnly] {
        for (device, prepare) in [(true, false), (true, true), (false, false)] {
            for connect in [false, true] {
                for probe in [Broken::Not, Broken::Fails, Broken::Lost, Broken::Late] {
                    parts.push(Part { policy, device, faults: Faults { prepare, connect, probe } });
                }
            }
        }
    }
    parts
}

fn losses() -> Vec<Loss> {
    let mut losses = vec![Loss::Nothing];
    for count in 0..=3 {
        for role in [Role::Client, Role::Server] {
            losses.extend([Loss::Ends(role, count), Loss::Dies(role, count)]);
        }
    }
    losses.extend((0..=4).map(Loss::Cut));
    losses
}

fn run(client: Part, server: Part, loss: Loss) -> World {
    let air = Rc::default();
    let mut world = World::new(
        (terms(client.policy), client.path(&air)),
        (terms(server.policy), server.path(&air)),
        &air,
        loss,
    );
    world.run();
    world
}

fn reason(outcome: &Outcome) -> Option<&FallbackReason> {
    outcome.as_ref().ok().and_then(|established| established.path.as_ref().err())
}

/// I12: every combination of failures at prepare, connect and probe of both sides, of policies, and of a peer or a network lost at
/// every step.
#[test]
fn i12_both_sides_end_alike_whatever_fails() {
    let (mut rdma, mut tcp, mut refused) = (0, 0, 0);
    for client in parts() {
        for server in parts() {
            for loss in losses() {
                let mut world = run(client, server, loss);
                check(&mut world, client, server, loss);
                if loss == Loss::Nothing {
                    match world.client.outcome.as_ref().map(|o| o.as_ref().map(|e| e.transport())) {
                        Some(Ok(Transport::Rdma)) => rdma += 1,
                        Some(Ok(Transport::Tcp)) => tcp += 1,
                        _ => refused += 1,
                    }
                }
            }
        }
    }
    // Four pairs of policies may use RDMA, and of all faults only one combination is none.
    assert_eq!(rdma, 4);
    // Neither requires it: two policies each, all faults, less the one that works.
    assert_eq!(tcp, 48 * 48 - 1);
    assert_eq!(rdma + tcp + refused, 72 * 72);
}

fn check(world: &mut World, client: Part, server: Part, loss: Loss) {
    let case = format!("{client:?}\n{server:?}\n{loss:?}");
    for half in [&world.client, &world.server] {
        assert!(half.took <= Duration::from_secs(5), "late: {case}");
        let gone = matches!(loss, Loss::Ends(..) | Loss::Dies(..));
        assert!(half.outcome.is_some() || gone, "no outcome: {case}");
    }
    let outcomes = [&world.client.outcome, &world.server.outcome];
    let transports = outcomes.map(|o| o.as_ref().and_then(|o| o.as_ref().ok()).map(|e| e.transport()));
    if let [Some(here), Some(there)] = transports {
        assert_eq!(here, there, "{case}");
    }
    for (outcome, part, other) in [(outcomes[0], client, server), (outcomes[1], server, client)] {
        if let Some(outcome) = outcome {
            check_reason(outcome, part, other, &case);
        }
    }
    if loss == Loss::Nothing {
        check_undisturbed(outcomes.map(Option::as_ref), client, server, &case);
    }
    let live = usize::from(transports[0] == Some(Transport::Rdma))
        + usize::from(transports[1] == Some(Transport::Rdma));
    assert_eq!(world.air.borrow().live, live, "a path is kept if it is used: {case}");
}

/// What one side reports has happened.
fn check_reason(outcome: &Outcome, own: Part, peer: Part, case: &str) {
    let reason = match outcome {
        Ok(established) => established.path.as_ref().err(),
        Err(HandshakeError::RdmaRequired { by, reason }) => {
            let who = if *by == Side::Local { own } else { peer };
            assert_eq!(who.policy, Policy::RequireRdma, "{case}");
            Some(reason)
        }
        Err(_) => None,
    };
    let Some(reason) = reason else { return };
    let culprit = if reason.side() == Side::Local { own } else { peer };
    // A probe that is lost is missed by both.
    let lost = own.faults.probe == Broken::Lost || peer.faults.probe == Broken::Lost;
    let failed_elsewhere = !own.works() || !peer.works();
    let known = culprit.causes().contains(&reason.cause())
        || (reason.cause() == Cause::ProbeTimedOut && lost && failed_elsewhere);
    assert!(known, "{reason:?}: {case}");
}

fn check_undisturbed(outcomes: [Option<&Outcome>; 2], client: Part, server: Part, case: &str) {
    let [Some(here), Some(there)] = outcomes else { panic!("no outcome: {case}") };
    let required = [client, server].iter().any(|part| part.policy == Policy::RequireRdma);
    let works = client.works() && server.works();
    match (here, there) {
        (Ok(here_), Ok(there_)) => {
            assert!(works || !required, "{case}");
            let expected = if works { Transport::Rdma } else { Transport::Tcp };
            assert_eq!([here_.transport(), there_.transport()], [expected; 2], "{case}");
            let blames_peer = |o| reason(o).is_some_and(|reason| reason.side() == Side::Peer);
            assert!(!(blames_peer(here) && blames_peer(there)), "somebody has to know: {case}");
            assert_eq!(here_.agreed.user_data, b"", "{case}");
        }
        (Err(here), Err(there)) => {
            assert!(required && !works, "{here:?} {there:?}: {case}");
            let clean = |error: &HandshakeError| {
                matches!(
                    error,
                    HandshakeError::RdmaRequired { .. }
                        | HandshakeError::Rejected { reason: RejectReason::RdmaRequired, .. }
                )
            };
            // A client that requires RDMA and has none says nothing at all.
            let unheard = client.policy == Policy::RequireRdma && !client.prepares();
            assert!(clean(here), "{here:?}: {case}");
            assert!(clean(there) || unheard, "{there:?}: {case}");
        }
        _ => panic!("{here:?}\n{there:?}\n{case}"),
    }
}

/// Both can do RDMA, and nothing fails.
const GOOD: Part = Part {
    policy: Policy::Auto,
    device: true,
    faults: Faults { prepare: false, connect: false, probe: Broken::Not },
};

fn good_world() -> World {
    let air = Rc::default();
    World::new(
        (terms(Policy::Auto), GOOD.path(&air)),
        (terms(Policy::Auto), GOOD.path(&air)),
        &air,
        Loss::Nothing,
    )
}

/// I13: what an earlier attempt has left, on TCP or in the data path, changes nothing.
#[test]
fn i13_what_an_earlier_attempt_has_left_is_ignored() {
    let old = ATTEMPT.generation - 1;
    let conn_id = ATTEMPT.conn_id;
    let failure = || Err(Unavailable::new(Cause::Connect, "earlier"));
    let ready = |conn_id, generation, role| Ready { conn_id, generation, role, verdict: failure() }.encode();
    let mut world = good_world();
    world.inject(Role::Client, ready(conn_id, old, Role::Server));
    world.inject(Role::Client, ready(conn_id ^ 1, ATTEMPT.generation, Role::Server));
    world.inject(Role::Client, hello(Role::Server, conn_id, old).encode());
    for role in [Role::Client, Role::Server] {
        let from = super::fake::other(role);
        let stale = |conn_id, generation, role| Probe { conn_id, generation, role }.encode().to_vec();
        let mut air = world.air.borrow_mut();
        air.leave(role, stale(conn_id, old, from));
        air.leave(role, stale(conn_id ^ 1, ATTEMPT.generation, from));
        air.leave(role, stale(conn_id, ATTEMPT.generation, role));
        air.leave(role, b"not a probe at all".to_vec());
    }
    world.run();
    for half in [&world.client, &world.server] {
        let established = half.outcome.as_ref().and_then(|o| o.as_ref().ok()).expect("a connection");
        assert_eq!(established.transport(), Transport::Rdma);
        assert_eq!((established.agreed.attempt.conn_id, established.agreed.attempt.generation), (conn_id, 3));
    }
}

/// A probe of another attempt alone proves nothing.
#[test]
fn i13_an_earlier_probe_proves_nothing() {
    let air: Rc<RefCell<Air>> = Rc::default();
    let lost = Part { faults: Faults { probe: Broken::Lost, ..Faults::default() }, ..GOOD };
    let mut world = World::new(
        (terms(Policy::Auto), lost.path(&air)),
        (terms(Policy::Auto), lost.path(&air)),
        &air,
        Loss::Nothing,
    );
    for role in [Role::Client, Role::Server] {
        let from = super::fake::other(role);
        let stale = Probe { conn_id: ATTEMPT.conn_id, generation: ATTEMPT.generation - 1, role: from };
        air.borrow_mut().leave(role, stale.encode().to_vec());
    }
    world.run();
    for half in [&world.client, &world.server] {
        let reason = reason(half.outcome.as_ref().expect("an outcome")).expect("a reason");
        assert_eq!(reason.cause(), Cause::ProbeTimedOut);
        assert!(half.took < Duration::from_millis(400), "the probe's time limit holds: {:?}", half.took);
    }
}

/// A peer that sends nothing but stale messages is not put up with for ever.
#[test]
fn stale_messages_are_bounded() {
    let mut world = good_world();
    for _ in 0..17 {
        world.inject(Role::Client, hello(Role::Server, 1, 1).encode());
    }
    world.run();
    let outcome = world.client.outcome.expect("an outcome");
    assert!(matches!(outcome, Err(HandshakeError::Malformed(WireError::Unexpected(_)))), "{outcome:?}");
}

fn hello(role: Role, conn_id: u64, generation: u32) -> Hello {
    let terms = terms(Policy::Auto);
    Hello {
        first_slots: None,
        minor: terms.minor,
        features: terms.features,
        conn_id,
        generation,
        role,
        kind: terms.kind,
        policy: terms.policy,
        limits: terms.limits,
        path: Err(Unavailable::new(Cause::NoDevice, "")),
        user_data: Vec::new(),
    }
}

fn plain(terms: super::Terms) -> (super::Terms, Result<FakePath, Unavailable>) {
    (terms, Err(Unavailable::new(Cause::NoDevice, "")))
}

/// Bytes and messages do not mix, and both sides say so.
#[test]
fn another_kind_is_rejected_in_words() {
    let packets = super::Terms { kind: Kind::SeqPacket, ..terms(Policy::Auto) };
    let mut world = World::new(plain(terms(Policy::Auto)), plain(packets), &Rc::default(), Loss::Nothing);
    world.run();
    let Some(Err(client)) = world.client.outcome else { panic!("the client is refused") };
    assert_eq!(
        client.to_string(),
        "the peer (version 1.0) rejected the connection: it wants to carry messages (SeqPacket), and you bytes (Stream); use the same \
         type on both sides"
    );
    let Some(Err(HandshakeError::Kind { own: Kind::SeqPacket, peer: Kind::Stream })) = world.server.outcome
    else {
        panic!("the server says what it has seen")
    };
}

/// Minor versions get along on what both know; what the programs tell each other arrives.
#[test]
fn peers_of_another_minor_version_interoperate() {
    for (client, server) in [(0, 1), (1, 0), (7, 3)] {
        let of = |minor, data: &[u8]| super::Terms { minor, user_data: data.to_vec(), ..terms(Policy::Auto) };
        let air = Rc::default();
        let mut world = World::new(
            (of(client, b"from client"), GOOD.path(&air)),
            (of(server, b"from server"), GOOD.path(&air)),
            &air,
            Loss::Nothing,
        );
        world.run();
        for (half, data) in [(&world.client, b"from server"), (&world.server, b"from client")] {
            let established = half.outcome.as_ref().and_then(|o| o.as_ref().ok()).expect("a connection");
            assert_eq!(established.transport(), Transport::Rdma);
            assert_eq!(established.agreed.minor, client.min(server));
            assert_eq!(established.agreed.user_data, data);
        }
    }
}

/// Without RDMA there are no READs.
#[test]
fn tcp_takes_reads_out_of_what_is_agreed() {
    use crate::wire::Features;
    for (part, has) in [(GOOD, true), (Part { device: false, ..GOOD }, false)] {
        let world = run(part, GOOD, Loss::Nothing);
        for half in [&world.client, &world.server] {
            let agreed = &half.outcome.as_ref().and_then(|o| o.as_ref().ok()).expect("a connection").agreed;
            assert_eq!(agreed.features.has(Features::READ), has);
            assert!(agreed.features.has(Features::COALESCE));
        }
    }
}

/// Peers of another major version read each other's rejections.
#[test]
fn another_major_version_is_rejected_in_words() {
    let mut world = good_world();
    let mut strange = hello(Role::Client, 1, 1).encode();
    strange[5] = 9;
    strange[6] = 4;
    let crc = crate::wire::checksum(&strange);
    strange[12..16].copy_from_slice(&crc.to_le_bytes());
    world.inject(Role::Server, strange);
    world.run();
    let Some(Err(server)) = &world.server.outcome else { panic!("the server refuses") };
    assert!(
        matches!(server, HandshakeError::Malformed(WireError::Version { major: 9, minor: 4 })),
        "{server:?}"
    );
    let Some(Err(HandshakeError::Rejected { reason: RejectReason::Version, text, major: 1, minor: 0 })) =
        &world.client.outcome
    else {
        panic!("the client is told: {:?}", world.client.outcome)
    };
    assert_eq!(text, "it speaks version 1.0 of the protocol, and you 9.4; update the older one");
}

/// A rejection of any major version is read.
#[test]
fn a_rejection_of_another_major_version_is_read() {
    let mut world = good_world();
    let mut reject = Reject::new(RejectReason::Version, (1, 0), "too old".into());
    reject.own = (9, 4);
    let mut bytes = reject.encode();
    bytes[5] = 9;
    let crc = crate::wire::checksum(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    world.inject(Role::Client, bytes);
    world.run();
    let Some(Err(client)) = &world.client.outcome else { panic!("refused") };
    assert_eq!(client.to_string(), "the peer (version 9.4) rejected the connection: too old");
    assert_eq!(client.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// What is left of a path may take a device's time to be taken down; the peer does not wait for that.
#[test]
fn the_peer_hears_before_the_path_is_taken_down() {
    for policy in [Policy::Auto, Policy::RequireRdma] {
        let air = Rc::new(RefCell::new(Air::default()));
        let path = |faults| Ok(FakePath::new(&air, faults));
        let now = Instant::now();
        let mut client = Machine::client(terms(Policy::Auto), ATTEMPT, path(Faults::default()), now);
        let mut server =
            Machine::server(terms(policy), path(Faults { connect: true, ..Faults::default() }), now);
        server.received(client.outgoing(), now);
        assert!(!server.outgoing().is_empty(), "{policy:?}: the client is told");
        assert_eq!(air.borrow().live, 2, "{policy:?}: and only then");
        drop((client, server));
        assert_eq!(air.borrow().live, 0, "{policy:?}");
    }
}
