//! One rail: its state, the requests posted to its queue pair, and its health.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::load::RailLoad;
use super::message::RailFrame;
use crate::protocol::Segment;
use crate::wire::Endpoint;

/// The state of a rail's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RailState {
    /// There is none. The client may offer one.
    Down,
    /// The driver makes one.
    Creating,
    /// The client has offered it.
    Offered { until: Instant },
    /// The driver connects it.
    Connecting { peer: Endpoint },
    /// It is connected, and the peer's PROVE has not arrived.
    Proving { until: Instant },
    /// It works.
    Up,
    /// The driver stops it.
    Stopping,
    /// It is stopped, and the peer has not said what has arrived over it.
    Stopped,
}

/// Why a rail went out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RailCause {
    /// This side's device or port.
    Device,
    /// Nothing passed between the two devices: retries ran out, or a request did not complete in
    /// time.
    Path,
    /// The peer said that its end is down, or refused a request.
    Peer,
    /// Nothing has failed. This side ends the sharing of a device.
    Move,
}

/// A request in the send queue, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostedRequest {
    /// The connection's frame of this sequence number.
    Frame {
        seq: u32,
        len: usize,
    },
    Message,
    Read {
        id: u64,
        from: Segment,
    },
    Probe,
}

impl PostedRequest {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Frame { len, .. } => *len,
            Self::Read { from, .. } => from.len as usize,
            Self::Message | Self::Probe => 0,
        }
    }
}

/// SENDs of this generation that the peer's process may not have received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnconfirmedSend {
    /// The connection's frame of this sequence number.
    Frame(u32),
    /// So many messages in a row.
    Messages(u32),
}

impl UnconfirmedSend {
    pub(super) fn count(self) -> u32 {
        match self {
            Self::Frame(_) => 1,
            Self::Messages(count) => count,
        }
    }
}

/// What a request may take until it completes, in parts: after the first a rail is suspected, and
/// after the second it is given up if it was polled in between.
const SUSPECT: (u32, u32) = (8, 10);

/// One rail.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) state: RailState,
    /// The generation of the queue pair, counted from 1.
    pub(super) generation: u32,
    /// The last generation that the client has ended before its offer arrived.
    pub(super) ended: u32,
    /// Requests that have not completed.
    pub(super) posted: VecDeque<PostedRequest>,
    /// SENDs that the peer may not have received; `confirmed` others came before them.
    pub(super) unconfirmed: VecDeque<UnconfirmedSend>,
    pub(super) confirmed: u32,
    /// SENDs received over the queue pair.
    pub(super) received: u32,
    /// What the peer says to have received, if its end is down.
    pub(super) peer_received: Option<u32>,
    /// DOWNs that the peer may not know of. The client's: the last one, and the oldest. The server's:
    /// of its generation, and of the last one whose offer came too late.
    pub(super) downs: [Option<RailFrame>; 2],
    /// Whether the peer was told that this end of the generation is down.
    pub(super) has_told: bool,
    pub(super) load: RailLoad,
    pub(super) backoff: Backoff,
    /// When the client makes the next queue pair.
    pub(super) retry_at: Option<Instant>,
    /// Generations since a path was last proven.
    pub(super) attempts: u32,
    /// The counts of choices when this rail was last chosen.
    pub(super) chosen: [u64; 2],
    /// This side's device, while there is a queue pair.
    pub(super) device: Option<u8>,
    /// The peer's device at the other end.
    pub(super) peer_device: u8,
    /// Since when the rail only waits for a sign that another one works, to move to another device.
    pub(super) leaving: Option<Instant>,
    /// How often it has moved since it last had a device alone.
    pub(super) moves: u32,
    /// A probe is to be posted, because the rail had no requests for a while.
    pub(super) probe_is_due: bool,
    /// When the rail came up, or its last request completed.
    idle_since: Option<Instant>,
    /// When the oldest request was posted, or the last one completed.
    progress: Option<Instant>,
    suspected: Option<Instant>,
}

impl Rail {
    pub(super) fn new(backoff: Duration) -> Self {
        Self {
            state: RailState::Down,
            generation: 0,
            ended: 0,
            posted: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            confirmed: 0,
            received: 0,
            peer_received: None,
            downs: [None; 2],
            has_told: false,
            load: RailLoad::default(),
            backoff: Backoff::new(backoff),
            retry_at: None,
            attempts: 0,
            chosen: [0; 2],
            device: None,
            peer_device: 0,
            leaving: None,
            moves: 0,
            probe_is_due: false,
            idle_since: None,
            progress: None,
            suspected: None,
        }
    }

    /// Begins a generation, whose queue pair the driver is to make.
    pub(super) fn begin(&mut self, generation: u32) {
        self.generation = generation;
        self.state = RailState::Creating;
        self.posted.clear();
        self.unconfirmed.clear();
        (self.confirmed, self.received) = (0, 0);
        (self.peer_received, self.has_told) = (None, false);
        (self.progress, self.suspected, self.retry_at) = (None, None, None);
        (self.probe_is_due, self.idle_since) = (false, None);
        (self.device, self.leaving) = (None, None);
        // It may be another path.
        self.load = RailLoad::default();
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == RailState::Up
    }

    /// The peer's PROVE has arrived.
    pub(super) fn came_up(&mut self, now: Instant) {
        self.backoff.came_up(now);
        self.idle_since = Some(now);
    }

    /// Whether it is stopped, and the peer has not said which of its frames have arrived.
    pub(super) fn awaits_peer(&self) -> bool {
        let is_frame = |send: &UnconfirmedSend| matches!(send, UnconfirmedSend::Frame(_));
        matches!(self.state, RailState::Stopping | RailState::Stopped)
            && self.unconfirmed.iter().any(is_frame)
    }

    /// Whether its queue pair must have receives. The driver posts the first ones when it connects
    /// the pair.
    pub(super) fn has_receives(&self) -> bool {
        matches!(self.state, RailState::Proving { .. } | RailState::Up)
    }

    /// The READs in the send queue.
    pub(super) fn reads(&self) -> usize {
        self.posted.iter().filter(|request| matches!(request, PostedRequest::Read { .. })).count()
    }

    /// Records a message that is posted.
    pub(super) fn post_message(&mut self) {
        match self.unconfirmed.back_mut() {
            Some(UnconfirmedSend::Messages(count)) => *count = count.saturating_add(1),
            _ => self.unconfirmed.push_back(UnconfirmedSend::Messages(1)),
        }
    }

    /// Records a request that is posted. A small one needs no time if others are under way.
    #[inline]
    pub(super) fn post(&mut self, request: PostedRequest, now: impl FnOnce() -> Instant) {
        let (len, is_first) = (request.len(), self.posted.is_empty());
        let starts = self.load.starts_with(len);
        let now = (is_first || starts).then(now);
        if is_first {
            (self.progress, self.suspected) = (now, None);
        }
        self.load.begin(len, now.filter(|_| starts));
        self.posted.push_back(request);
    }

    /// The oldest request has completed. A small one that was alone needs no time: the rail counts as
    /// idle since it was posted.
    #[inline]
    pub(super) fn complete(&mut self, now: impl FnOnce() -> Instant) -> Option<PostedRequest> {
        let request = self.posted.pop_front()?;
        let is_last = self.posted.is_empty();
        if is_last && !self.load.is_measuring() {
            self.load.end_unmeasured(request.len());
            (self.idle_since, self.progress) = (self.progress, None);
        } else {
            let now = now();
            self.load.end(request.len(), now);
            self.idle_since = Some(now);
            self.progress = (!is_last).then_some(now);
        }
        self.suspected = None;
        Some(request)
    }

    /// Whether a request has completed at this time or later.
    pub(super) fn has_completed_since(&self, time: Instant) -> bool {
        self.idle_since.is_some_and(|completed| completed >= time)
    }

    /// When a probe is due, if the rail has no requests.
    pub(super) fn idle_at(&self, idle: Duration) -> Option<Instant> {
        let since = self.idle_since.filter(|_| self.posted.is_empty() && !self.probe_is_due)?;
        Some(since + idle)
    }

    /// When the oldest request is overdue, or must be looked at again.
    pub(super) fn overdue_at(&self, limit: Duration) -> Option<Instant> {
        let progress = self.progress?;
        Some(match self.suspected {
            None => progress + limit * SUSPECT.0 / SUSPECT.1,
            Some(suspected) => {
                (progress + limit).max(suspected + limit * (SUSPECT.1 - SUSPECT.0) / SUSPECT.1)
            }
        })
    }

    /// Whether the oldest request is overdue. The caller has just polled: a program that makes no
    /// calls for a while must not take that for a silent device, so the first look only makes the
    /// rail suspected.
    pub(super) fn is_overdue(&mut self, limit: Duration, now: Instant) -> bool {
        if self.overdue_at(limit).is_none_or(|at| now < at) {
            return false;
        }
        let was_suspected = self.suspected.is_some();
        self.suspected.get_or_insert(now);
        was_suspected
    }

    /// Removes SENDs from the record that the peer has certainly received: all before a frame
    /// that it has, because a queue pair delivers in order.
    pub(super) fn confirm(&mut self, is_received: impl Fn(u32) -> bool) {
        let frame = |(at, send): (usize, &UnconfirmedSend)| match send {
            UnconfirmedSend::Frame(seq) => Some((at, *seq)),
            UnconfirmedSend::Messages(_) => None,
        };
        while let Some((at, seq)) = self.unconfirmed.iter().enumerate().find_map(frame)
            && is_received(seq)
        {
            let confirmed: u32 = self.unconfirmed.drain(..=at).map(UnconfirmedSend::count).sum();
            self.confirmed = self.confirmed.wrapping_add(confirmed);
        }
    }
}
