//! The state machine of a connection's rails.

mod devices;
mod joining;
pub(super) mod moving;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::message::{RailFrame, RailMessage};
use super::order::EarlyFrames;
use super::rail::{Rail, RailCause, RailState};
use super::sent::SentFrames;
use crate::protocol::{Block, ProtocolMachine, Segment};
use crate::wire::Role;

/// What both sides and this side's program chose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RailsSetup {
    pub(crate) role: Role,
    /// The rails, with the one that the handshake has proven: 2 to [`DEVICES_MAX`].
    ///
    /// [`DEVICES_MAX`]: crate::protocol::DEVICES_MAX
    pub(crate) rails: usize,
    /// This side's devices, not fewer than rails.
    pub(crate) own_devices: usize,
    /// An index of a device in a message must be below this.
    pub(crate) peer_devices: usize,
    /// The READs that a queue pair may have outstanding.
    pub(crate) reads: usize,
    /// The bytes that pass before the client adds rails.
    pub(crate) join_after: u64,
    /// How long a request may take.
    pub(crate) request_timeout: Duration,
    /// How long the proof of a path may take.
    pub(crate) probe_timeout: Duration,
    /// How long a rail stays out after its first failure.
    pub(crate) backoff: Duration,
    /// How long a rail may be without requests before a probe shows whether it works. The connection
    /// has no probes.
    pub(crate) keepalive: Option<Duration>,
}

/// What the driver is to do for a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RailCommand {
    /// Make a queue pair, and report it by [`Rails::created`].
    Create { rail: usize, offer: Option<PeerOffer> },
    /// Connect it, post its receives, and report that by [`Rails::connected`].
    Connect { rail: usize, peer: crate::wire::Endpoint },
    /// Move the queue pair to the error state, hand in what has completed until then, and what has
    /// not; report that by [`Rails::stopped`], and destroy it.
    Stop { rail: usize },
}

/// The client's end of a rail, for which the server chooses a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerOffer {
    pub(crate) attempt: u32,
    pub(crate) endpoint: crate::wire::Endpoint,
}

/// What happened to the rails of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RailCounters {
    /// Rails that came up after the first, again or for the first time.
    pub(crate) joined: u64,
    /// Rails that went out, by cause.
    pub(crate) device_failures: u64,
    pub(crate) path_failures: u64,
    pub(crate) peer_failures: u64,
    /// Rails that this side has stopped so that they get another device. They are no failures.
    pub(crate) moves: u64,
    /// Frames and READs that were posted again over another rail.
    pub(crate) frames_repeated: u64,
    pub(crate) reads_repeated: u64,
}

/// The rails of a connection.
#[derive(Debug)]
pub(crate) struct Rails<B> {
    setup: RailsSetup,
    rails: Vec<Rail>,
    sent: SentFrames<B>,
    early: EarlyFrames<B>,
    /// How long a RESET among these may wait.
    reset_by: Option<Instant>,
    /// The peer's process has all frames before this one. Some of them may still be in a send queue,
    /// or wait to be repeated.
    confirmed: u32,
    confirmed_is_posted: bool,
    /// READs whose rail has failed, each with its block if that has returned.
    reads_again: VecDeque<(u64, Segment, Option<B>)>,
    /// Messages to send, and the rail for those that must go over a certain one.
    messages: VecDeque<(Option<usize>, RailFrame)>,
    commands: VecDeque<RailCommand>,
    /// Whether a rail shares its device of this side with one that came up before.
    is_sharing: bool,
    /// A bit for each device of this side whose port is active.
    active: u8,
    /// The time of the last `tick`.
    ticked: Instant,
    has_begun_joining: bool,
    /// Whether each queue pair has [`extra_receives`](Self::extra_receives). Before, it has
    /// [`FIRST_RECEIVES`](Self::FIRST_RECEIVES).
    has_all_receives: bool,
    /// The client: whether the server has answered an offer, and so has all receives.
    peer_has_answered: bool,
    /// The connection ends, so that no rail is added.
    is_finishing: bool,
    /// The number of times that a rail was chosen, for short requests and for those that are measured.
    choices: [u64; 2],
    /// The rail of small frames, and how many more go over it before it is chosen again.
    small: usize,
    small_left: u32,
    counters: RailCounters,
    /// The cause of the last failure.
    last_cause: Option<RailCause>,
}

impl RailCounters {
    /// Rails that went out.
    pub(crate) fn failures(&self) -> u64 {
        self.device_failures + self.path_failures + self.peer_failures
    }
}

impl<B: Block> Rails<B> {
    /// Begins with one rail, which the handshake has proven. `first` is the sequence number of the
    /// first frame.
    pub(crate) fn new(setup: RailsSetup, first: u32, now: Instant) -> Self {
        let mut rails: Vec<_> = (0..setup.rails).map(|_| Rail::new(setup.backoff)).collect();
        rails[0].begin(1);
        (rails[0].state, rails[0].device) = (RailState::Up, Some(0));
        rails[0].came_up(now);
        Self {
            setup,
            rails,
            sent: SentFrames::new(first),
            early: EarlyFrames::new(),
            reset_by: None,
            confirmed: first,
            confirmed_is_posted: false,
            reads_again: VecDeque::new(),
            messages: VecDeque::new(),
            commands: VecDeque::new(),
            is_sharing: false,
            active: u8::MAX,
            ticked: now,
            has_begun_joining: false,
            has_all_receives: false,
            peer_has_answered: false,
            is_finishing: false,
            choices: [0; 2],
            small: 0,
            small_left: moving::SMALL_IN_A_ROW,
            counters: RailCounters::default(),
            last_cause: None,
        }
    }

    pub(crate) fn state(&self, rail: usize) -> RailState {
        self.rails[rail].state
    }

    /// The generation of a rail's queue pair.
    #[cfg(test)]
    pub(crate) fn generation(&self, rail: usize) -> u32 {
        self.rails[rail].generation
    }

    /// Whether the rail's queue pair has worked. A driver asks before it reports the end of it.
    pub(crate) fn has_come_up(&self, rail: usize) -> bool {
        self.rails[rail].backoff.up_since().is_some()
    }

    /// The peer's device at the other end of a rail, whose keys READs over the rail use.
    pub(crate) fn peer_device(&self, rail: usize) -> usize {
        self.rails[rail].peer_device.into()
    }

    pub(crate) fn counters(&self) -> RailCounters {
        self.counters
    }

    /// The rails that work.
    pub(crate) fn up(&self) -> usize {
        self.rails.iter().filter(|rail| rail.is_up()).count()
    }

    /// Whether no rail works, and none is about to: the connection cannot go on.
    pub(crate) fn is_cut(&self) -> bool {
        let may_work = |rail: &Rail| matches!(rail.state, RailState::Up | RailState::Proving { .. });
        !self.rails.iter().any(may_work)
    }

    /// The cause of the last failure of a rail.
    pub(crate) fn last_cause(&self) -> Option<RailCause> {
        self.last_cause
    }

    /// Receives beside those of the connection that each queue pair needs: for PROVE, and for
    /// messages about each rail. The peer may have three of these on the way: DOWN, which another
    /// rail delays, then OFFER and DOWN of the next generation. Each further one needs an answer.
    /// After the failure of another rail both DOWNs may come again.
    pub(crate) const fn extra_receives(rails: usize) -> usize {
        5 * rails + 1
    }

    /// The same before the first rail is added. Until the server has answered, the client offers one
    /// rail at a time. An OFFER and a DOWN may be on the way, while one receive is not yet replaced.
    pub(crate) const FIRST_RECEIVES: usize = 3;

    /// The receives that each queue pair must have posted before the connection grants `more`
    /// receives to the peer.
    ///
    /// A frame may come over any rail, so each has a receive for every frame that the peer may
    /// still send.
    pub(crate) fn receives_wanted(&self, protocol: &ProtocolMachine<B>, more: usize) -> usize {
        let extra = match self.has_all_receives {
            true => Self::extra_receives(self.rails.len()),
            false => Self::FIRST_RECEIVES,
        };
        self.receives_granted(protocol) + more + extra
    }

    fn receives_granted(&self, protocol: &ProtocolMachine<B>) -> usize {
        (protocol.receives_outstanding() as usize).saturating_sub(self.early.len())
    }

    /// The receives that each queue pair must have before a rail is added, if it has fewer now. The
    /// driver posts them, and reports that by [`all_receives_posted`](Self::all_receives_posted).
    pub(crate) fn receives_to_add_rails(&self, protocol: &ProtocolMachine<B>) -> Option<usize> {
        let all = self.receives_granted(protocol) + Self::extra_receives(self.rails.len());
        (!self.has_all_receives).then_some(all)
    }

    pub(crate) fn all_receives_posted(&mut self) {
        self.has_all_receives = true;
    }

    /// Whether a rail's queue pair must have those receives.
    pub(crate) fn has_receives(&self, rail: usize) -> bool {
        self.rails[rail].has_receives()
    }

    /// What the driver is to do next.
    pub(crate) fn take_command(&mut self) -> Option<RailCommand> {
        self.commands.pop_front()
    }

    /// Whether the driver is to do something.
    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Whether nothing waits to be posted.
    pub(crate) fn is_quiet(&self) -> bool {
        self.messages.is_empty()
            && !self.sent.is_due()
            && self.reads_again.is_empty()
            && !self.rails.iter().any(|rail| rail.probe_is_due)
            && self.commands.is_empty()
    }

    /// Whether frames of a stopped rail wait for the peer's DOWN, before which nothing can be posted.
    pub(crate) fn awaits_peer(&self) -> bool {
        self.rails.iter().any(Rail::awaits_peer)
    }

    /// Adds no more rails if the connection ends.
    pub(crate) fn set_finishing(&mut self, is_finishing: bool) {
        self.is_finishing = is_finishing;
    }

    /// Takes a rail out. The driver is told to stop it.
    pub(crate) fn fail(&mut self, rail: usize, cause: RailCause) {
        if matches!(self.rails[rail].state, RailState::Down | RailState::Stopping | RailState::Stopped) {
            return;
        }
        match cause {
            RailCause::Device => self.counters.device_failures += 1,
            RailCause::Path => self.counters.path_failures += 1,
            RailCause::Peer => self.counters.peer_failures += 1,
            RailCause::Move => self.counters.moves += 1,
        }
        self.last_cause = Some(cause);
        self.rails[rail].state = RailState::Stopping;
        self.note_sharing();
        self.rails[rail].probe_is_due = false;
        self.commands.retain(|command| {
            !matches!(command,
            RailCommand::Create { rail: at, .. } | RailCommand::Connect { rail: at, .. } if *at == rail)
        });
        self.commands.push_back(RailCommand::Stop { rail });
    }

    /// Takes a rail out whose port is down. The last one stays, because its port may come back before
    /// its retries run out.
    fn leave(&mut self, rail: usize) {
        if self.up() > 1 || !self.rails[rail].is_up() {
            self.fail(rail, RailCause::Device);
        }
    }

    /// Handles the passing of time. The driver has polled all rails before. Returns whether there may be
    /// something to send or to do.
    pub(crate) fn tick(&mut self, protocol: &mut ProtocolMachine<B>, now: Instant) -> bool {
        self.ticked = now;
        self.end_by_reset(protocol, now);
        let mut is_due = false;
        for at in 0..self.rails.len() {
            let rail = &mut self.rails[at];
            let is_posted = matches!(rail.state, RailState::Up | RailState::Proving { .. });
            if is_posted && rail.is_overdue(self.setup.request_timeout, now) {
                self.fail(at, RailCause::Path);
                continue;
            }
            if rail.is_up()
                && self.setup.keepalive.is_some_and(|idle| rail.idle_at(idle).is_some_and(|at| now >= at))
            {
                (rail.probe_is_due, is_due) = (true, true);
            }
            match self.rails[at].state {
                RailState::Proving { until } | RailState::Offered { until } if now >= until => {
                    self.fail(at, RailCause::Path);
                }
                RailState::Down if self.offer_deadline(at).is_some_and(|offer_at| now >= offer_at) => {
                    self.begin_offer(at);
                }
                RailState::Up => is_due |= self.consider_moving(at, now),
                _ => {}
            }
        }
        is_due || self.has_commands()
    }

    /// When [`tick`](Self::tick) must run.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let of_rail = |(at, rail): (usize, &Rail)| match rail.state {
            RailState::Up => {
                let probe = self.setup.keepalive.and_then(|idle| rail.idle_at(idle));
                let overdue = rail.overdue_at(self.setup.request_timeout);
                [probe, overdue, self.moving_deadline(at)].into_iter().flatten().min()
            }
            RailState::Proving { until } => {
                rail.overdue_at(self.setup.request_timeout).map_or(Some(until), |at| Some(at.min(until)))
            }
            RailState::Offered { until } => Some(until),
            RailState::Down => self.offer_deadline(at),
            _ => None,
        };
        self.rails.iter().enumerate().filter_map(of_rail).chain(self.reset_by).min()
    }

    /// Only as many READs as the working rails take are given out, and shorter ones to several.
    fn limit_reads(&self, protocol: &mut ProtocolMachine<B>) {
        protocol.set_max_reads(self.setup.reads * self.up().max(1));
        protocol.divide_reads(self.up() > 1);
    }

    fn say(&mut self, over: Option<usize>, rail: usize, message: RailMessage) {
        let generation = self.rails[rail].generation;
        self.messages.push_back((over, RailFrame { rail: rail as u8, generation, message }));
    }

    /// Queues a message, in place of the same one and of an older one about its rail, so that a peer
    /// cannot make this side queue many.
    fn replace_message(&mut self, frame: RailFrame, is_older: impl Fn(&RailFrame) -> bool) {
        self.messages.retain(|(_, queued)| {
            let is_older = queued.rail == frame.rail && is_older(queued);
            *queued != frame && !is_older
        });
        self.messages.push_back((None, frame));
    }

    /// Tells the peer that a generation of a rail is down here. It is told again after each failure of
    /// a rail, until its next message about this rail shows that it knows.
    fn say_down(&mut self, at: usize, generation: u32, received: u32) {
        let frame = RailFrame { rail: at as u8, generation, message: RailMessage::Down { received } };
        let rail = &mut self.rails[at];
        let own = rail.generation;
        match self.setup.role {
            Role::Client => {
                rail.downs[1] = rail.downs[1].or(rail.downs[0]);
                rail.downs[0] = Some(frame);
            }
            Role::Server => rail.downs[usize::from(generation != rail.generation)] = Some(frame),
        }
        // The client's older one still counts.
        let is_server = self.setup.role == Role::Server;
        self.replace_message(frame, |queued| {
            is_server && matches!(queued.message, RailMessage::Down { .. }) && queued.generation != own
        });
    }
}
