//! The protocol of a mux as a state machine, without input or output, threads or clocks.
//!
//! Bytes of the peer go in by [`Engine::receive`], bytes for the peer come out by
//! [`Engine::next_batch`]. Calls begin requests, take what has arrived, and answer. Wakers of those
//! that wait collect in [`Engine::take_woken`].
//!
//! What a peer can make this side keep is bounded: for each of the requests that it may have at a
//! time, a window of unread bytes in each direction, and a frame in `out`. A request counts until
//! the frame that ends it has left `out`. A peer that reads nothing also bounds what is queued for
//! it: `out` takes no data beyond 128 KiB, and then one-way messages wait.

mod answering;
mod output;
mod received;
mod receiving;
pub(super) mod requesting;
mod sending;
#[cfg(test)]
mod tests;
mod turns;
mod waiting;

use std::collections::{HashMap, VecDeque};
use std::task::Waker;
use std::time::Instant;

use super::frame::{Capacity, Ending, Purpose};
use super::stats::MuxStats;
use received::Inbox;
use receiving::Parser;
use sending::Outbox;
use turns::{Turn, Turns};
use waiting::{WaitList, WaitLists};

pub(super) use answering::{AnswerRoom, Arrival};
pub(super) use received::Taken;
pub(super) use sending::CHUNK;
#[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
pub(super) use waiting::{WaitCause, WaitPlace};

/// A request of this side.
#[derive(Debug)]
struct OwnRequest {
    body: Outbox,
    answers: Inbox,
    one_way: bool,
    /// The batches before the one with its begin.
    batches_before: u64,
    /// The program wants no more. The peer knows, and will end the request.
    is_cancelled: bool,
    /// How the peer has ended it.
    ending: Option<Ending>,
    waker: Option<Waker>,
}

/// A request that the peer has begun, until its end was sent.
#[derive(Debug)]
struct PeerRequest {
    body: Inbox,
    answers: Outbox,
    one_way: bool,
    deadline: Option<Instant>,
    /// The program has it, and has not given it back.
    is_held: bool,
    is_cancelled: bool,
    waker: Option<Waker>,
}

/// One side of a connection.
#[derive(Debug)]
pub(super) struct Engine {
    own: Capacity,
    /// `None` before the peer's hello.
    peer: Option<Capacity>,
    parser: Parser,
    /// Whole frames that no batch has.
    out: Vec<u8>,
    /// Frames of `out` that end requests of the peer.
    unsent_ends: u32,
    /// The same for those that were refused.
    unsent_refusals: u32,
    turns: Turns,
    /// Requests and answers for which the next batch has credit.
    credits: Vec<(Purpose, u64)>,
    own_requests: HashMap<u64, OwnRequest>,
    next_id: u64,
    /// Requests of this side that the peer has not ended.
    in_flight: u32,
    peer_requests: HashMap<u64, PeerRequest>,
    /// The next number that the peer may use.
    next_peer_id: u64,
    /// Requests that the program has not taken.
    arrivals: VecDeque<u64>,
    /// Bytes of one-way messages that are kept until they are sent.
    kept_one_way: usize,
    waiting: WaitLists,
    woken: Vec<Waker>,
    /// Wakers of tasks that have given up, or have left another one.
    unused: Vec<Waker>,
    stats: MuxStats,
}

impl Engine {
    pub(super) fn new(own: Capacity) -> Self {
        Self {
            own,
            peer: None,
            parser: Parser::new(),
            out: own.encode().to_vec(),
            unsent_ends: 0,
            unsent_refusals: 0,
            turns: Turns::default(),
            credits: Vec::new(),
            own_requests: HashMap::new(),
            next_id: 0,
            in_flight: 0,
            peer_requests: HashMap::new(),
            next_peer_id: 0,
            arrivals: VecDeque::new(),
            kept_one_way: 0,
            waiting: WaitLists::default(),
            woken: Vec::new(),
            unused: Vec::new(),
            stats: MuxStats::default(),
        }
    }

    /// Requests of this side that the peer has not ended.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The number of the next request of this side.
    pub(super) fn next_number(&self) -> u64 {
        self.next_id
    }

    pub(super) fn stats(&self) -> MuxStats {
        MuxStats { in_flight: self.in_flight, serving: self.peer_requests.len() as u32, ..self.stats }
    }

    /// The wakers of those for whom something has changed.
    pub(super) fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    /// The wakers that are to be dropped without a lock, because that may run code of the program.
    pub(super) fn take_unused(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.unused)
    }

    /// Wakes all that wait, because the connection has failed or ended.
    pub(super) fn wake_all(&mut self) {
        let own = self.own_requests.values_mut().filter_map(|request| request.waker.take());
        let peers = self.peer_requests.values_mut().filter_map(|request| request.waker.take());
        self.woken.extend(own.chain(peers));
        self.wake_lists();
    }

    /// Wakes a task with the others.
    #[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
    pub(super) fn wake(&mut self, waker: Option<Waker>) {
        self.woken.extend(waker);
    }
}
