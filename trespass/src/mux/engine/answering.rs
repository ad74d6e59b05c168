//! Requests of the peer.

use std::task::Waker;
use std::time::Instant;

use super::super::frame::{Ending, LAST, MESSAGE_END, MuxHeader, Purpose};
use super::super::payload::MuxBytes;
use super::sending::write_frame;
use super::{Engine, PeerRequest, Taken, Turn};

/// A request that has arrived.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Arrival {
    pub(in super::super) id: u64,
    pub(in super::super) one_way: bool,
    pub(in super::super) deadline: Option<Instant>,
}

/// What a caller finds that wants to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum AnswerRoom {
    /// The next answer is taken.
    Room,
    /// The one before is not sent.
    Full,
    /// The requester wants none.
    Cancelled,
}

impl Engine {
    /// Takes the request that has waited longest.
    pub(in super::super) fn next_arrival(&mut self) -> Option<Arrival> {
        let id = self.arrivals.pop_front()?;
        Some(self.hold(id))
    }

    /// The same among those that have wholly arrived.
    pub(in super::super) fn next_whole_arrival(&mut self) -> Option<Arrival> {
        let is_whole = |id: &u64| self.peer_requests.get(id).is_some_and(|request| request.body.is_whole());
        let place = self.arrivals.iter().position(is_whole)?;
        let id = self.arrivals.remove(place)?;
        Some(self.hold(id))
    }

    fn hold(&mut self, id: u64) -> Arrival {
        let request = self.peer_requests.get_mut(&id).expect("a request that is removed arrives no more");
        request.is_held = true;
        Arrival { id, one_way: request.one_way, deadline: request.deadline }
    }

    /// Takes what has arrived of a request. `None` means that it was cancelled.
    pub(in super::super) fn take_body(&mut self, id: u64, into: &mut Vec<u8>) -> Option<Taken> {
        let request = self.peer_requests.get_mut(&id).filter(|request| !request.is_cancelled)?;
        let taken = request.body.take(into);
        if request.body.announces_credit(self.own.window) {
            self.credits.push((Purpose::RequestCredit, id));
        }
        Some(taken)
    }

    /// Whether [`take_body`](Self::take_body) would help one that waits for the whole request.
    pub(in super::super) fn must_take_body(&self, id: u64) -> bool {
        self.peer_requests
            .get(&id)
            .is_none_or(|request| request.is_cancelled || request.body.must_be_taken(self.own.window))
    }

    /// Whether the requester has given a request up.
    pub(in super::super) fn is_cancelled(&self, id: u64) -> bool {
        self.answer_room(id) == AnswerRoom::Cancelled
    }

    /// Whether the next answer is taken.
    pub(in super::super) fn answer_room(&self, id: u64) -> AnswerRoom {
        match self.peer_requests.get(&id) {
            Some(request) if request.is_cancelled => AnswerRoom::Cancelled,
            Some(request) if request.answers.is_empty() => AnswerRoom::Room,
            Some(_) => AnswerRoom::Full,
            None => AnswerRoom::Cancelled,
        }
    }

    /// Wakes a task when something of a request changes.
    pub(in super::super) fn wake_at_change(&mut self, id: u64, waker: &Waker) {
        if let Some(request) = self.peer_requests.get_mut(&id) {
            self.unused.extend(request.waker.replace(waker.clone()));
        }
    }

    /// Sends an answer, if there [is room](Self::answer_room). The last one gives the request back.
    pub(in super::super) fn answer(&mut self, id: u64, bytes: MuxBytes<'_>, is_last: bool) {
        let Some(request) = self.peer_requests.get_mut(&id).filter(|request| !request.is_cancelled) else {
            return self.release(id);
        };
        self.stats.answers += 1;
        request.is_held = !is_last;
        let flags = if is_last { LAST | MESSAGE_END } else { MESSAGE_END };
        request.answers.push(MuxHeader::data(Purpose::Answer, flags, id, 0), bytes, &mut self.out);
        if request.answers.is_empty() {
            self.stats.frames_sent += 1;
            if is_last {
                self.remove_peers(id);
            }
        } else {
            self.turns.add(Turn::Answer(id), &mut request.answers);
        }
    }

    /// Ends the answers, if there [is room](Self::answer_room), and gives the request back.
    pub(in super::super) fn end_answers(&mut self, id: u64) {
        match self.peer_requests.get(&id) {
            Some(request) if !request.is_cancelled => {
                self.control(MuxHeader::data(Purpose::Answer, LAST, id, 0));
                self.remove_peers(id);
            }
            _ => self.release(id),
        }
    }

    /// Gives a request back that has no further answer. A one-way message is done then.
    pub(in super::super) fn release(&mut self, id: u64) {
        let Some(request) = self.peer_requests.get(&id) else { return };
        let ending = match request {
            PeerRequest { is_cancelled: true, .. } => Ending::Cancelled,
            PeerRequest { one_way: true, .. } => Ending::Done,
            _ => Ending::Unanswered,
        };
        self.control(MuxHeader::close(id, ending));
        self.remove_peers(id);
    }

    /// The peer wants no more of a request.
    pub(super) fn cancelled(&mut self, id: u64) {
        let Some(request) = self.peer_requests.get_mut(&id) else { return };
        request.is_cancelled = true;
        request.answers.clear();
        request.body.discard();
        self.woken.extend(request.waker.take());
        if let Some(place) = self.arrivals.iter().position(|arrival| *arrival == id) {
            self.arrivals.remove(place);
            self.release(id);
        } else if !request.is_held {
            self.release(id);
        }
    }

    /// The frame that ends a request is in `out`, or in a batch.
    pub(super) fn remove_peers(&mut self, id: u64) {
        if let Some(request) = self.peer_requests.remove(&id) {
            self.unsent_ends += 1;
            self.unused.extend(request.waker);
            self.forget_turns();
        }
    }

    /// Queues a frame without data.
    pub(super) fn control(&mut self, header: MuxHeader) {
        self.stats.frames_sent += 1;
        write_frame(header, &[], &mut self.out);
    }
}
