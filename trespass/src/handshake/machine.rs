//! The state machine of one side of a TCP handshake, without I/O: it takes messages and the time,
//! and returns messages and a result.
//!
//! Start with [`HandshakeMachine::client`] or [`HandshakeMachine::server`]. For each event call
//! [`HandshakeMachine::received`], [`HandshakeMachine::closed`], [`HandshakeMachine::tick`] or
//! [`HandshakeMachine::expire`].
//! After each call send [`HandshakeMachine::outgoing`] and check [`HandshakeMachine::take_result`].
//! If the result is an error, the pending bytes are the rejection for the peer.

use std::task::Poll;
use std::time::Instant;

use super::error::{HandshakeError, HandshakeStep};
use super::fallback::{self, FallbackReason, Side, Verdict};
use super::proof_clock::{ProofClock, ProofTime};
use super::{Agreed, Attempt, DataPath, Established, Terms};
use crate::wire::{
    Cause, Endpoint, Features, HandshakeMessage, Hello, MAJOR, MINOR, Policy, Probe, Ready, Reject,
    RejectReason, Role, Unavailable, WireError, foreign,
};

/// Messages of earlier attempts that are ignored before the peer counts as broken.
const MAX_STALE: u32 = 16;

/// Pending bytes above which questions are not answered, because the peer does not read.
const MAX_ANSWERS: usize = 1024;

/// One side of a handshake.
pub(super) struct HandshakeMachine<D> {
    terms: Terms,
    attempt: Attempt,
    path: Result<D, Unavailable>,
    /// The path that was given up. It is dropped after the peer is told, because a device may delay
    /// that.
    spent: Option<D>,
    /// This side's endpoint, once the path is prepared.
    endpoint: Option<Endpoint>,
    step: HandshakeStep,
    agreed: Option<Agreed>,
    peer_policy: Policy,
    own_verdict: Option<Verdict>,
    peer_verdict: Option<Verdict>,
    outgoing: Vec<u8>,
    started: Instant,
    /// Runs while the data path is probed.
    proof: Option<ProofClock>,
    /// The client has asked on the TCP connection: this side, or the peer.
    announced: bool,
    stale: u32,
    result: Option<Result<Established<D>, HandshakeError>>,
    over: bool,
}

impl<D: DataPath> HandshakeMachine<D> {
    /// Starts as the client, with its HELLO in `outgoing`.
    pub(super) fn client(terms: Terms, attempt: Attempt, path: Result<D, Unavailable>, now: Instant) -> Self {
        let mut machine = Self::new(terms, Attempt { role: Role::Client, ..attempt }, path, now);
        machine.prepare();
        match (&machine.path, machine.terms.policy) {
            (Err(why), Policy::RequireRdma) => {
                let reason = why.clone().on(Side::Local);
                machine.finish(Err(HandshakeError::RdmaRequired { by: Side::Local, reason }));
            }
            _ => machine.send_hello(),
        }
        machine
    }

    /// Starts as the server, which makes nothing before HELLO arrives.
    pub(super) fn server(terms: Terms, path: Result<D, Unavailable>, now: Instant) -> Self {
        Self::new(terms, Attempt { conn_id: 0, generation: 0, role: Role::Server }, path, now)
    }

    fn new(terms: Terms, attempt: Attempt, path: Result<D, Unavailable>, now: Instant) -> Self {
        let path = match terms.policy {
            Policy::TcpOnly => match path {
                Err(why) if why.cause == Cause::TcpOnly => Err(why),
                _ => Err(Unavailable::new(Cause::TcpOnly, "")),
            },
            _ => path,
        };
        Self {
            terms,
            attempt,
            path,
            spent: None,
            endpoint: None,
            step: HandshakeStep::Hello,
            agreed: None,
            peer_policy: Policy::Auto,
            own_verdict: None,
            peer_verdict: None,
            outgoing: Vec::new(),
            started: now,
            proof: None,
            announced: false,
            stale: 0,
            result: None,
            over: false,
        }
    }

    /// The data path, also one that was given up.
    pub(super) fn path(&mut self) -> Option<&mut D> {
        self.path.as_mut().ok().or(self.spent.as_mut())
    }

    /// Whether there is a data path, also one that was given up.
    pub(super) fn has_path(&self) -> bool {
        self.path.is_ok() || self.spent.is_some()
    }

    /// Whether there is a data path that was not given up.
    pub(super) fn uses_path(&self) -> bool {
        self.path.is_ok()
    }

    /// Drops a path that was given up. The peer was told.
    pub(super) fn drop_spent_path(&mut self) {
        self.spent = None;
    }

    /// Whether to wait for completions of the data path. A message on the TCP connection follows the
    /// peer's probe, so that a side that waits for it alone wakes up once and finds both: the client's
    /// question, and the server's READY. It waits for completions, too, if the message has come before
    /// the probe, or does not come soon.
    pub(super) fn awaits_path(&self) -> bool {
        let expects = match self.attempt.role {
            Role::Client => true,
            Role::Server => self.client_announces() && !self.announced,
        };
        let has_come = self.peer_verdict.is_some() || !expects;
        let is_late = has_come || self.proof.as_ref().is_some_and(ProofClock::is_slow);
        self.step == HandshakeStep::Probe && !self.over && is_late
    }

    /// Whether the client asks right after its probe.
    fn client_announces(&self) -> bool {
        let both = Features::ATTEND.with(Features::ANNOUNCE);
        self.agreed.as_ref().is_some_and(|agreed| agreed.features.has(both))
    }

    /// The step that is waited for.
    pub(super) fn step(&self) -> HandshakeStep {
        self.step
    }

    /// Whether this side has sent READY. From then on the peer may be established.
    pub(super) fn has_sent_ready(&self) -> bool {
        self.step == HandshakeStep::Ready
    }

    /// When [`Self::tick`] and [`Self::expire`] must be called at the latest. Call `tick` often while
    /// the data path is probed.
    pub(super) fn deadline(&self) -> Instant {
        let end = self.started + self.terms.deadline;
        self.proof.as_ref().map_or(end, |proof| proof.next_turn().min(end))
    }

    /// The pending bytes for the peer.
    pub(super) fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// The result, once.
    pub(super) fn take_result(&mut self) -> Option<Result<Established<D>, HandshakeError>> {
        self.result.take()
    }

    /// When the peer was last heard during the proof of the data path, which is bounded.
    pub(super) fn heard_at(&self) -> Option<Instant> {
        self.proof.as_ref().map(ProofClock::heard_at)
    }

    /// Counts the time limit from now on, because the peer has waited for this side.
    pub(super) fn restart(&mut self, now: Instant) {
        self.started = now;
    }

    /// Whether the handshake has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Handles a complete, unchecked message.
    pub(super) fn received(&mut self, bytes: &[u8], now: Instant) {
        if self.over {
            return;
        }
        let outcome = match HandshakeMessage::decode(bytes) {
            Ok(HandshakeMessage::Hello(hello)) => self.hello(hello, now),
            Ok(HandshakeMessage::Ready(ready)) => self.ready(ready),
            Ok(HandshakeMessage::Reject(reject)) => {
                return self.finish(Err(reject.into()));
            }
            Ok(HandshakeMessage::CmPrefix(_)) => {
                Err(WireError::Unexpected("a CM_PREFIX on the TCP connection").into())
            }
            Ok(HandshakeMessage::Probe(probe)) => self.attend(&probe, now),
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(()) => self.settle(),
            Err(error) => self.reject(error),
        }
    }

    /// Handles bytes that are not a message.
    pub(super) fn malformed(&mut self, error: WireError) {
        if !self.over {
            self.reject(error.into());
        }
    }

    /// Handles the peer's end of the TCP connection.
    pub(super) fn closed(&mut self) {
        if !self.over {
            self.finish(Err(HandshakeError::Closed { step: self.step }));
        }
    }

    /// Handles an error of TCP, possibly before the last message was sent.
    pub(super) fn failed(&mut self, source: std::io::Error) {
        if !self.has_failed() {
            self.finish(Err(HandshakeError::Io { step: self.step, source }));
        }
    }

    /// Puts back a result that was taken while bytes were still pending.
    pub(super) fn put_back(&mut self, established: Established<D>) {
        self.result = Some(Ok(established));
    }

    fn has_failed(&self) -> bool {
        matches!(self.result, Some(Err(_)))
    }

    /// Ends a handshake whose time is up. Call it after all that has arrived was handled, because this
    /// side may be late, and the peer may have its result.
    pub(super) fn expire(&mut self, now: Instant) {
        if !self.has_failed() && self.is_late(now) {
            self.reject(HandshakeError::TimedOut { step: self.step, after: self.terms.deadline });
        }
    }

    fn is_late(&self, now: Instant) -> bool {
        now >= self.started + self.terms.deadline
    }

    /// Checks the data path. A side whose time is up does not commit, because the peer would count the
    /// connection as established.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.has_failed() || self.is_late(now) {
            return;
        }
        if let Some(verdict) = self.try_probe(now) {
            self.send_ready(verdict.map_err(|why| why.on(Side::Local)));
            self.settle();
        }
    }

    // Records a failure of the data path, and gives it up at once.

    fn give_up(&mut self, why: Unavailable) {
        if let Ok(path) = std::mem::replace(&mut self.path, Err(why)) {
            self.spent = Some(path);
        }
    }

    fn prepare(&mut self) {
        let attempt = self.attempt;
        match self.path.as_mut().map(|path| path.prepare(attempt)) {
            Ok(Ok(endpoint)) => self.endpoint = Some(endpoint),
            Ok(Err(why)) => self.give_up(why),
            Err(_) => {}
        }
    }

    fn connect(&mut self, peer: &Endpoint, agreed: &Agreed) -> Result<(), Unavailable> {
        let result = match &mut self.path {
            Ok(path) => path.connect(peer, agreed),
            Err(why) => Err(why.clone()),
        };
        if let Err(why) = &result {
            self.give_up(why.clone());
        }
        result
    }

    fn try_probe(&mut self, now: Instant) -> Option<Result<(), Unavailable>> {
        let answers = self.peer_verdict.is_none() && self.asks_on_tcp();
        let announces = self.attempt.role == Role::Client && !self.announced && self.client_announces();
        let (proof, path) = (self.proof.as_mut()?, self.path.as_mut().ok()?);
        let verdict = match path.probe(now) {
            Poll::Ready(verdict) => verdict,
            Poll::Pending => {
                let cause = match proof.turn(now, answers) {
                    ProofTime::Left => {
                        if answers && (announces || proof.asks(now)) {
                            self.announced |= announces;
                            self.send_probe(self.attempt.role);
                        }
                        return None;
                    }
                    ProofTime::Passed => path.cause_of_silence(),
                    ProofTime::PeerIsBusy => Cause::PeerBusy,
                    ProofTime::ThisIsBusy => Cause::MachineBusy,
                };
                let waited = if matches!(cause, Cause::PeerBusy | Cause::MachineBusy) {
                    now - self.started
                } else {
                    self.terms.probe_timeout
                };
                Err(Unavailable::new(cause, format!("within {waited:?}")))
            }
        };
        if let Err(why) = &verdict {
            self.give_up(why.clone());
        }
        Some(verdict)
    }

    /// Whether both sides answer PROBEs on the TCP connection.
    fn asks_on_tcp(&self) -> bool {
        self.agreed.as_ref().is_some_and(|agreed| agreed.features.has(Features::ATTEND))
    }

    /// Asks whether the peer attends, in this side's role, or answers in the peer's.
    fn send_probe(&mut self, role: Role) {
        let Attempt { conn_id, generation, .. } = self.attempt;
        self.outgoing.extend_from_slice(&Probe { conn_id, generation, role }.encode());
    }

    /// Handles a PROBE on the TCP connection. An answer always precedes this side's READY, and so the
    /// end of the peer's handshake.
    fn attend(&mut self, probe: &Probe, now: Instant) -> Result<(), HandshakeError> {
        if self.is_other_attempt(probe.conn_id, probe.generation) {
            return self.ignore();
        }
        if !self.asks_on_tcp() || self.peer_verdict.is_some() {
            return Err(WireError::Unexpected("a PROBE on the TCP connection").into());
        }
        if let Some(proof) = &mut self.proof {
            proof.heard(now);
        }
        let is_question = probe.role != self.attempt.role;
        if is_question && self.attempt.role == Role::Server {
            self.announced = true;
            // READY is an answer, too, if the client's probe has arrived.
            self.tick(now);
        }
        if is_question && self.own_verdict.is_none() && self.outgoing.len() < MAX_ANSWERS {
            self.send_probe(probe.role);
        }
        Ok(())
    }

    fn send_hello(&mut self) {
        let path = match (self.endpoint, &self.path) {
            (Some(endpoint), Ok(_)) => Ok(endpoint),
            (_, Err(why)) => Err(why.clone()),
            // The peer has no endpoint, so none was prepared.
            (None, Ok(_)) => Err(Unavailable::new(Cause::PeerGaveUp, "")),
        };
        let hello = Hello {
            minor: self.terms.minor,
            features: self.terms.features,
            conn_id: self.attempt.conn_id,
            generation: self.attempt.generation,
            role: self.attempt.role,
            kind: self.terms.kind,
            policy: self.terms.policy,
            limits: self.terms.limits,
            first_slots: self.terms.first_slots,
            devices: self.terms.devices,
            path,
            user_data: self.terms.user_data.clone(),
        };
        self.outgoing.extend_from_slice(&hello.encode());
    }

    fn hello(&mut self, mut hello: Hello, now: Instant) -> Result<(), HandshakeError> {
        if self.is_other_attempt(hello.conn_id, hello.generation) {
            return self.ignore();
        }
        if self.agreed.is_some() {
            return Err(WireError::Unexpected("a second HELLO").into());
        }
        check_role(self.attempt.role, hello.role)?;
        self.terms.agree_on_kind(hello.kind)?;
        self.attempt =
            Attempt { conn_id: hello.conn_id, generation: hello.generation, role: self.attempt.role };
        self.peer_policy = hello.policy;
        let user_data = std::mem::take(&mut hello.user_data);
        let agreed = Agreed::new(self.attempt, &self.terms, &hello, user_data);
        let verdict = match hello.path {
            Ok(endpoint) => self.connect_path(&endpoint, &agreed).map_err(|why| why.on(Side::Local)),
            Err(why) => Err(fallback::without_peer_endpoint(&self.path, why)),
        };
        self.agreed = Some(agreed);
        self.after_hello(verdict, now)
    }

    /// Connects the endpoint with the peer's.
    fn connect_path(&mut self, peer: &Endpoint, agreed: &Agreed) -> Result<(), Unavailable> {
        if self.attempt.role == Role::Server {
            self.prepare();
        }
        if let (Some(own), Ok(_)) = (self.endpoint, &self.path)
            && own.link_layer != peer.link_layer
        {
            let detail = format!("{:?} here, {:?} there", own.link_layer, peer.link_layer);
            self.give_up(Unavailable::new(Cause::LinkLayer, detail));
        }
        self.connect(peer, agreed)
    }

    fn after_hello(&mut self, verdict: Verdict, now: Instant) -> Result<(), HandshakeError> {
        let server = self.attempt.role == Role::Server;
        match verdict {
            Ok(()) => {
                self.step = HandshakeStep::Probe;
                // The rest is for telling the peer.
                let end = (self.started + self.terms.deadline / 4 * 3).max(now + self.terms.probe_timeout);
                self.proof = Some(ProofClock::new(self.terms.probe_timeout, end, now));
                if server {
                    self.send_hello();
                }
            }
            Err(reason) => {
                self.require(&reason)?;
                if server {
                    self.send_hello();
                }
                self.send_ready(Err(reason));
            }
        }
        Ok(())
    }

    fn send_ready(&mut self, verdict: Verdict) {
        self.proof = None;
        self.step = HandshakeStep::Ready;
        let told = match &verdict {
            Ok(()) => Ok(()),
            Err(reason) if reason.side() == Side::Peer => Err(Unavailable::new(Cause::PeerGaveUp, "")),
            Err(reason) => Err(Unavailable::new(reason.cause(), reason.detail())),
        };
        let Attempt { conn_id, generation, role } = self.attempt;
        self.outgoing.extend_from_slice(&Ready { conn_id, generation, role, verdict: told }.encode());
        self.own_verdict = Some(verdict);
    }

    fn ready(&mut self, ready: Ready) -> Result<(), HandshakeError> {
        if self.is_other_attempt(ready.conn_id, ready.generation) {
            return self.ignore();
        }
        if self.agreed.is_none() {
            return Err(WireError::Unexpected("READY before HELLO").into());
        }
        if self.peer_verdict.is_some() {
            return Err(WireError::Unexpected("a second READY").into());
        }
        check_role(self.attempt.role, ready.role)?;
        let verdict = ready.verdict.map_err(|why| why.on(Side::Peer));
        if let (Err(reason), None) = (&verdict, &self.own_verdict) {
            // The path has failed, so no probe is needed.
            self.send_ready(Err(reason.clone()));
        }
        self.peer_verdict = Some(verdict);
        Ok(())
    }

    // The end.

    /// Ends the handshake when both verdicts are known.
    fn settle(&mut self) {
        if self.own_verdict.is_none() || self.peer_verdict.is_none() {
            return;
        }
        let (Some(own), Some(peer)) = (self.own_verdict.take(), self.peer_verdict.take()) else { return };
        let Some(mut agreed) = self.agreed.take() else { return };
        let path = std::mem::replace(&mut self.path, Err(Unavailable::unspecified()));
        let path = fallback::decide(own, peer, path, &mut self.spent);
        // Both sides know both policies and both verdicts, so no message is needed.
        let result = match path {
            Ok(path) => Ok(Established { agreed, path: Ok(path) }),
            Err(reason) => {
                agreed.features = agreed.features.without(Features::READ);
                self.require(&reason).map(|()| Established { agreed, path: Err(reason) })
            }
        };
        self.finish(result);
    }

    /// Fails if either side requires RDMA.
    fn require(&self, reason: &FallbackReason) -> Result<(), HandshakeError> {
        match fallback::required_by(self.terms.policy, self.peer_policy) {
            Some(by) => Err(HandshakeError::RdmaRequired { by, reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Fails, and tells the peer. After READY the peer may count the connection as established, and would
    /// take a message for data. It learns of the failure by the end of the TCP connection.
    fn reject(&mut self, error: HandshakeError) {
        match (&error, self.attempt.role) {
            _ if self.has_sent_ready() => {}
            (HandshakeError::OtherProtocol(first), Role::Server) => {
                self.outgoing.extend_from_slice(foreign::answer(*first));
            }
            _ => self.outgoing.extend(rejection(&error).iter().flat_map(Reject::encode)),
        }
        self.finish(Err(error));
    }

    /// Ends the handshake of a client that loses its place before the commit, and tells it that the
    /// listener is busy.
    pub(super) fn turn_away(&mut self, text: String) {
        if !self.over {
            self.outgoing.extend(Reject::new(RejectReason::Busy, (0, 0), text).encode());
            self.give_up(Unavailable::unspecified());
            self.proof = None;
            self.over = true;
        }
    }

    fn finish(&mut self, result: Result<Established<D>, HandshakeError>) {
        if result.is_err() {
            self.give_up(Unavailable::unspecified());
        }
        self.proof = None;
        self.over = true;
        self.result = Some(result);
    }

    // Messages of other attempts.

    /// Whether a message belongs to another attempt. A server does not know the attempt before
    /// HELLO.
    fn is_other_attempt(&self, conn_id: u64, generation: u32) -> bool {
        let known = self.attempt.role == Role::Client || self.agreed.is_some();
        known && (conn_id, generation) != (self.attempt.conn_id, self.attempt.generation)
    }

    fn ignore(&mut self) -> Result<(), HandshakeError> {
        self.stale += 1;
        if self.stale > MAX_STALE {
            return Err(WireError::Unexpected("messages of another attempt, again and again,").into());
        }
        Ok(())
    }
}

pub(super) fn check_role(own: Role, peer: Role) -> Result<(), HandshakeError> {
    match (own, peer) {
        (Role::Client, Role::Client) => Err(HandshakeError::Role("client")),
        (Role::Server, Role::Server) => Err(HandshakeError::Role("listener")),
        _ => Ok(()),
    }
}

/// The rejection for the peer. `None` if it does not speak this protocol or cannot receive.
pub(super) fn rejection(error: &HandshakeError) -> Option<Reject> {
    let mut seen = (0, 0);
    let (reason, text) = match error {
        HandshakeError::OtherProtocol(_)
        | HandshakeError::Rejected { .. }
        | HandshakeError::Closed { .. }
        | HandshakeError::Io { .. } => return None,
        &HandshakeError::Version { major, minor } => {
            seen = (major, minor);
            let text = format!(
                "it speaks version {MAJOR}.{MINOR} of the protocol, and you {major}.{minor}; update the older one"
            );
            (RejectReason::Version, text)
        }
        HandshakeError::Malformed(text) => {
            (RejectReason::Malformed, format!("what you sent cannot be: {text}"))
        }
        HandshakeError::Kind { own, peer } => {
            let text = format!("it wants to carry {own}, and you {peer}; use the same type on both sides");
            (RejectReason::Kind, text)
        }
        HandshakeError::Role(role) => (RejectReason::Role, format!("it is a {role} too")),
        HandshakeError::RdmaRequired { by, reason } => {
            let who = match by {
                Side::Local => "it requires RDMA",
                Side::Peer => "you require RDMA",
            };
            (RejectReason::RdmaRequired, format!("{who}, and there is none: {}", reason.as_peer_message()))
        }
        HandshakeError::TimedOut { step, after } => {
            (RejectReason::TimedOut, format!("{step} did not come within {after:?}"))
        }
    };
    Some(Reject::new(reason, seen, text))
}
