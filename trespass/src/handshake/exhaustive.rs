//! I12 and I13: after any fault, on either side, both sides end on the same transport or with an
//! error, before the deadline.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::fake::{ATTEMPT, FakeNetwork, FakePath, PathFaults, ProbeFault, terms};
use super::machine::HandshakeMachine;
use super::simulation::{HandshakeResult, HandshakeSimulation, NetworkFault};
use super::{FallbackReason, HandshakeError, Side, Terms, Transport};
use crate::wire::{Cause, Unavailable};
use crate::wire::{Features, Hello, Kind, Policy, Probe, Ready, Reject, RejectReason, Role};

/// One side's part of a case.
#[derive(Clone, Copy, Debug)]
struct CaseRange {
    policy: Policy,
    device: bool,
    faults: PathFaults,
}

impl CaseRange {
    fn path(self, network: &Rc<RefCell<FakeNetwork>>) -> Result<FakePath, Unavailable> {
        if self.device {
            return Ok(FakePath::new(network, self.faults));
        }
        Err(Unavailable::new(Cause::NoDevice, ""))
    }

    /// Whether it has an endpoint to send.
    fn prepares(self) -> bool {
        self.policy != Policy::TcpOnly && self.device && !self.faults.prepare
    }

    fn connects(self) -> bool {
        self.prepares() && !self.faults.connect
    }

    fn works(self) -> bool {
        self.connects() && self.faults.probe == ProbeFault::Not
    }

    /// The causes that it may report for its own side.
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
        may(matches!(self.faults.probe, ProbeFault::Fails | ProbeFault::Late), Cause::ProbeFailed);
        causes
    }
}

fn parts() -> Vec<CaseRange> {
    let mut parts = Vec::new();
    for policy in [Policy::Auto, Policy::RequireRdma, Policy::TcpOnly] {
        for (device, prepare) in [(true, false), (true, true), (false, false)] {
            for connect in [false, true] {
                for probe in [ProbeFault::Not, ProbeFault::Fails, ProbeFault::Lost, ProbeFault::Late] {
                    parts.push(CaseRange { policy, device, faults: PathFaults { prepare, connect, probe } });
                }
            }
        }
    }
    parts
}

fn losses() -> Vec<NetworkFault> {
    let mut losses = vec![NetworkFault::Nothing];
    for count in 0..=3 {
        for role in [Role::Client, Role::Server] {
            losses.extend([NetworkFault::Ends(role, count), NetworkFault::Dies(role, count)]);
        }
    }
    losses.extend((0..=4).map(NetworkFault::Cut));
    losses
}

fn run(client: CaseRange, server: CaseRange, fault: NetworkFault) -> HandshakeSimulation {
    let network = Rc::default();
    let mut simulation = HandshakeSimulation::new(
        (terms(client.policy), client.path(&network)),
        (terms(server.policy), server.path(&network)),
        &network,
        fault,
    );
    simulation.run();
    simulation
}

fn reason(outcome: &HandshakeResult) -> Option<&FallbackReason> {
    outcome.as_ref().ok().and_then(|established| established.path.as_ref().err())
}

/// I12: every combination of failures at prepare, connect and probe of both sides, of policies, and
/// of a peer or a network lost at every step.
#[test]
fn i12_both_sides_end_alike_after_any_fault() {
    let (mut rdma, mut tcp, mut refused) = (0, 0, 0);
    for client in parts() {
        for server in parts() {
            for fault in losses() {
                let mut simulation = run(client, server, fault);
                check(&mut simulation, client, server, fault);
                if fault == NetworkFault::Nothing {
                    match simulation.client.outcome.as_ref().map(|o| o.as_ref().map(|e| e.transport())) {
                        Some(Ok(Transport::Rdma)) => rdma += 1,
                        Some(Ok(Transport::Tcp)) => tcp += 1,
                        _ => refused += 1,
                    }
                }
            }
        }
    }
    // Four pairs of policies allow RDMA, and only the combination without faults succeeds.
    assert_eq!(rdma, 4);
    // Neither side requires RDMA: two policies each, and all fault combinations except the one that
    // works.
    assert_eq!(tcp, 48 * 48 - 1);
    assert_eq!(rdma + tcp + refused, 72 * 72);
}

fn check(simulation: &mut HandshakeSimulation, client: CaseRange, server: CaseRange, fault: NetworkFault) {
    let case = format!("{client:?}\n{server:?}\n{fault:?}");
    for half in [&simulation.client, &simulation.server] {
        assert!(half.took <= Duration::from_secs(5), "late: {case}");
        let gone = matches!(fault, NetworkFault::Ends(..) | NetworkFault::Dies(..));
        assert!(half.outcome.is_some() || gone, "no outcome: {case}");
    }
    let outcomes = [&simulation.client.outcome, &simulation.server.outcome];
    let transports = outcomes.map(|o| o.as_ref().and_then(|o| o.as_ref().ok()).map(|e| e.transport()));
    if let [Some(here), Some(there)] = transports {
        assert_eq!(here, there, "{case}");
    }
    for (outcome, part, other) in [(outcomes[0], client, server), (outcomes[1], server, client)] {
        if let Some(outcome) = outcome {
            check_reason(outcome, part, other, &case);
        }
    }
    if fault == NetworkFault::Nothing {
        check_undisturbed(outcomes.map(Option::as_ref), client, server, &case);
    }
    let live = usize::from(transports[0] == Some(Transport::Rdma))
        + usize::from(transports[1] == Some(Transport::Rdma));
    assert_eq!(simulation.network.borrow().live, live, "a path is kept if it is used: {case}");
}

/// A reported reason must have occurred.
fn check_reason(outcome: &HandshakeResult, own: CaseRange, peer: CaseRange, case: &str) {
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
    // Both sides miss a lost probe.
    let lost = own.faults.probe == ProbeFault::Lost || peer.faults.probe == ProbeFault::Lost;
    let failed_elsewhere = !own.works() || !peer.works();
    let known = culprit.causes().contains(&reason.cause())
        || (reason.cause() == Cause::ProbeTimedOut && lost && failed_elsewhere);
    assert!(known, "{reason:?}: {case}");
}

fn check_undisturbed(
    outcomes: [Option<&HandshakeResult>; 2],
    client: CaseRange,
    server: CaseRange,
    case: &str,
) {
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
            // A client that requires RDMA and has none sends nothing.
            let unheard = client.policy == Policy::RequireRdma && !client.prepares();
            assert!(clean(here), "{here:?}: {case}");
            assert!(clean(there) || unheard, "{there:?}: {case}");
        }
        _ => panic!("{here:?}\n{there:?}\n{case}"),
    }
}

/// RDMA works on both sides, and nothing fails.
const GOOD: CaseRange = CaseRange {
    policy: Policy::Auto,
    device: true,
    faults: PathFaults { prepare: false, connect: false, probe: ProbeFault::Not },
};

fn good_simulation() -> HandshakeSimulation {
    let network = Rc::default();
    HandshakeSimulation::new(
        (terms(Policy::Auto), GOOD.path(&network)),
        (terms(Policy::Auto), GOOD.path(&network)),
        &network,
        NetworkFault::Nothing,
    )
}

/// I13: messages of an earlier attempt, on TCP or on the data path, change nothing.
#[test]
fn i13_what_an_earlier_attempt_has_left_is_ignored() {
    let old = ATTEMPT.generation - 1;
    let conn_id = ATTEMPT.conn_id;
    let failure = || Err(Unavailable::new(Cause::Connect, "earlier"));
    let ready = |conn_id, generation, role| Ready { conn_id, generation, role, verdict: failure() }.encode();
    let mut simulation = good_simulation();
    simulation.inject(Role::Client, ready(conn_id, old, Role::Server));
    simulation.inject(Role::Client, ready(conn_id ^ 1, ATTEMPT.generation, Role::Server));
    simulation.inject(Role::Client, hello(Role::Server, conn_id, old).encode());
    for role in [Role::Client, Role::Server] {
        let from = super::fake::other(role);
        let stale = |conn_id, generation, role| Probe { conn_id, generation, role }.encode().to_vec();
        let mut network = simulation.network.borrow_mut();
        network.leave(role, stale(conn_id, old, from));
        network.leave(role, stale(conn_id ^ 1, ATTEMPT.generation, from));
        network.leave(role, stale(conn_id, ATTEMPT.generation, role));
        network.leave(role, b"not a probe at all".to_vec());
    }
    simulation.run();
    for half in [&simulation.client, &simulation.server] {
        let established = half.outcome.as_ref().and_then(|o| o.as_ref().ok()).expect("a connection");
        assert_eq!(established.transport(), Transport::Rdma);
        assert_eq!((established.agreed.attempt.conn_id, established.agreed.attempt.generation), (conn_id, 3));
    }
}

/// A probe of another attempt proves nothing.
#[test]
fn i13_an_earlier_probe_proves_nothing() {
    let network: Rc<RefCell<FakeNetwork>> = Rc::default();
    let lost = CaseRange { faults: PathFaults { probe: ProbeFault::Lost, ..PathFaults::default() }, ..GOOD };
    let mut simulation = HandshakeSimulation::new(
        (terms(Policy::Auto), lost.path(&network)),
        (terms(Policy::Auto), lost.path(&network)),
        &network,
        NetworkFault::Nothing,
    );
    for role in [Role::Client, Role::Server] {
        let from = super::fake::other(role);
        let stale = Probe { conn_id: ATTEMPT.conn_id, generation: ATTEMPT.generation - 1, role: from };
        network.borrow_mut().leave(role, stale.encode().to_vec());
    }
    simulation.run();
    for half in [&simulation.client, &simulation.server] {
        let reason = reason(half.outcome.as_ref().expect("an outcome")).expect("a reason");
        assert_eq!(reason.cause(), Cause::ProbeTimedOut);
        assert!(half.took < Duration::from_millis(400), "the probe's time limit holds: {:?}", half.took);
    }
}

/// A busy side is waited for: either side pauses after each of its messages.
#[test]
fn a_busy_side_gets_rdma_all_the_same() {
    for role in [Role::Client, Role::Server] {
        for after in 0..=2 {
            let fault = NetworkFault::Pauses(role, after, Duration::from_secs(2));
            let simulation = run(GOOD, GOOD, fault);
            for half in [&simulation.client, &simulation.server] {
                let established = half.outcome.as_ref().and_then(|outcome| outcome.as_ref().ok());
                let transport = established.map(|established| established.transport());
                assert_eq!(transport, Some(Transport::Rdma), "{fault:?}");
            }
        }
    }
}

/// A side that stays busy is told apart from a path that carries nothing. A peer that cannot say
/// that it attends is waited for as long as the path.
#[test]
fn a_side_that_stays_busy_is_told_so() {
    let busy = NetworkFault::Pauses(Role::Server, 1, Duration::from_millis(4500));
    let reason_of = |features: Features| {
        let network = Rc::default();
        let terms = || Terms { features, ..terms(Policy::Auto) };
        let mut simulation = HandshakeSimulation::new(
            (terms(), GOOD.path(&network)),
            (terms(), GOOD.path(&network)),
            &network,
            busy,
        );
        simulation.run();
        let told = reason(simulation.client.outcome.as_ref().expect("an outcome")).expect("a reason").clone();
        (told.side(), told.cause())
    };
    let all = terms(Policy::Auto).features;
    assert_eq!(reason_of(all), (Side::Local, Cause::PeerBusy));
    assert_eq!(reason_of(all.without(Features::ATTEND)), (Side::Local, Cause::ProbeTimedOut));
}

/// A peer that sends only stale messages is disconnected.
#[test]
fn stale_messages_are_bounded() {
    let mut simulation = good_simulation();
    for _ in 0..17 {
        simulation.inject(Role::Client, hello(Role::Server, 1, 1).encode());
    }
    simulation.run();
    let outcome = simulation.client.outcome.expect("an outcome");
    assert!(
        matches!(&outcome, Err(HandshakeError::Malformed(text)) if text.ends_with("came where it must not")),
        "{outcome:?}"
    );
}

fn hello(role: Role, conn_id: u64, generation: u32) -> Hello {
    let terms = terms(Policy::Auto);
    Hello {
        first_slots: None,
        devices: None,
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

fn plain(terms: Terms) -> (Terms, Result<FakePath, Unavailable>) {
    (terms, Err(Unavailable::new(Cause::NoDevice, "")))
}

/// A stream and messages do not connect, and both sides report it.
#[test]
fn another_kind_is_rejected_in_words() {
    let packets = Terms { kind: Kind::SeqPacket, ..terms(Policy::Auto) };
    let mut simulation = HandshakeSimulation::new(
        plain(terms(Policy::Auto)),
        plain(packets),
        &Rc::default(),
        NetworkFault::Nothing,
    );
    simulation.run();
    let Some(Err(client)) = simulation.client.outcome else { panic!("the client is refused") };
    assert_eq!(
        client.to_string(),
        "the peer (version 1.0) rejected the connection: it wants to carry messages (SeqPacket), and you bytes (Stream); use the same \
         type on both sides"
    );
    let Some(Err(HandshakeError::Kind { own: Kind::SeqPacket, peer: Kind::Stream })) =
        simulation.server.outcome
    else {
        panic!("the server says what it has seen")
    };
}

/// Different minor versions use what both know, and the user data arrives.
#[test]
fn peers_of_another_minor_version_interoperate() {
    for (client, server) in [(0, 1), (1, 0), (7, 3)] {
        let of = |minor, data: &[u8]| Terms { minor, user_data: data.to_vec(), ..terms(Policy::Auto) };
        let network = Rc::default();
        let mut simulation = HandshakeSimulation::new(
            (of(client, b"from client"), GOOD.path(&network)),
            (of(server, b"from server"), GOOD.path(&network)),
            &network,
            NetworkFault::Nothing,
        );
        simulation.run();
        for (half, data) in [(&simulation.client, b"from server"), (&simulation.server, b"from client")] {
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
    for (part, has) in [(GOOD, true), (CaseRange { device: false, ..GOOD }, false)] {
        let simulation = run(part, GOOD, NetworkFault::Nothing);
        for half in [&simulation.client, &simulation.server] {
            let agreed = &half.outcome.as_ref().and_then(|o| o.as_ref().ok()).expect("a connection").agreed;
            assert_eq!(agreed.features.has(Features::READ), has);
            assert!(agreed.features.has(Features::COALESCE));
        }
    }
}

/// Peers of another major version can read a rejection.
#[test]
fn another_major_version_is_rejected_in_words() {
    let mut simulation = good_simulation();
    let mut strange = hello(Role::Client, 1, 1).encode();
    strange[5] = 9;
    strange[6] = 4;
    let crc = crate::wire::checksum(&strange);
    strange[12..16].copy_from_slice(&crc.to_le_bytes());
    simulation.inject(Role::Server, strange);
    simulation.run();
    let Some(Err(server)) = &simulation.server.outcome else { panic!("the server refuses") };
    assert!(matches!(server, HandshakeError::Version { major: 9, minor: 4 }), "{server:?}");
    let Some(Err(HandshakeError::Rejected { reason: RejectReason::Version, text, major: 1, minor: 0 })) =
        &simulation.client.outcome
    else {
        panic!("the client is told: {:?}", simulation.client.outcome)
    };
    assert_eq!(text, "it speaks version 1.0 of the protocol, and you 9.4; update the older one");
}

/// A rejection of any major version can be read.
#[test]
fn a_rejection_of_another_major_version_is_read() {
    let mut simulation = good_simulation();
    let mut reject = Reject::new(RejectReason::Version, (1, 0), "too old".into());
    reject.own = (9, 4);
    let mut bytes = reject.encode();
    bytes[5] = 9;
    let crc = crate::wire::checksum(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    simulation.inject(Role::Client, bytes);
    simulation.run();
    let Some(Err(client)) = &simulation.client.outcome else { panic!("refused") };
    assert_eq!(client.to_string(), "the peer (version 9.4) rejected the connection: too old");
    assert_eq!(client.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// The peer is told before a failed path is destroyed, because a device may take long for that.
#[test]
fn the_peer_hears_before_the_path_is_taken_down() {
    for policy in [Policy::Auto, Policy::RequireRdma] {
        let network = Rc::new(RefCell::new(FakeNetwork::default()));
        let path = |faults| Ok(FakePath::new(&network, faults));
        let now = Instant::now();
        let mut client =
            HandshakeMachine::client(terms(Policy::Auto), ATTEMPT, path(PathFaults::default()), now);
        let mut server = HandshakeMachine::server(
            terms(policy),
            path(PathFaults { connect: true, ..PathFaults::default() }),
            now,
        );
        server.received(client.outgoing(), now);
        assert!(!server.outgoing().is_empty(), "{policy:?}: the client is told");
        assert_eq!(network.borrow().live, 2, "{policy:?}: and only then");
        drop((client, server));
        assert_eq!(network.borrow().live, 0, "{policy:?}");
    }
}
