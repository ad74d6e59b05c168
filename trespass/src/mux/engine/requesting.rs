//! Requests of this side.

use std::task::Waker;
use std::time::Duration;

use super::super::frame::{Ending, LAST, MESSAGE_END, MuxHeader, ONE_WAY, Purpose};
use super::super::payload::MuxBytes;
use super::received::{Inbox, Taken};
use super::sending::{CHUNK, Outbox, QUEUED, write_frame};
use super::{Engine, OwnRequest, Turn, WaitList};

/// What a caller finds that waits for an answer.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Found {
    /// It must wait.
    Nothing,
    Part,
    Message,
    End(Ending),
}

impl Engine {
    /// Whether the peer accepts another request.
    pub(in super::super) fn can_request(&self) -> bool {
        self.peer.is_some_and(|peer| self.in_flight < peer.requests)
    }

    /// Whether the peer has as many requests as it accepts.
    pub(in super::super) fn is_full(&self) -> bool {
        self.peer.is_some_and(|peer| self.in_flight >= peer.requests)
    }

    /// Begins a request, if [`can_request`](Self::can_request). Returns its number.
    pub(in super::super) fn request(
        &mut self,
        bytes: MuxBytes<'_>,
        time: Option<Duration>,
        one_way: bool,
    ) -> Option<u64> {
        let window = self.peer.filter(|_| self.can_request())?.window;
        let id = self.next_id;
        self.next_id += 1;
        self.in_flight += 1;
        self.stats.requests += 1;
        let mut body = Outbox::new(window);
        let mut header = MuxHeader::control(Purpose::Request, id, time.map_or(0, milliseconds));
        header.flags = if one_way { ONE_WAY } else { 0 };
        self.stats.frames_sent += 1;
        let is_long = bytes.len() > CHUNK || bytes.len() as u64 + header.cost() > window;
        if is_long || self.out.len() >= QUEUED {
            // The numbers arrive in order, although the bytes take their turn.
            body.spend(&header);
            write_frame(header, &[], &mut self.out);
            header.purpose = Purpose::RequestData;
            header.value = 0;
        }
        header.flags |= LAST | MESSAGE_END;
        self.push_body(&mut body, header, bytes);
        if one_way {
            self.kept_one_way += body.kept();
        }
        let answers = Inbox::new(self.own.window);
        let request = OwnRequest {
            body,
            answers,
            one_way,
            batches_before: self.stats.batches,
            is_cancelled: false,
            ending: None,
            waker: None,
        };
        self.own_requests.insert(id, request);
        Some(id)
    }

    fn push_body(&mut self, body: &mut Outbox, header: MuxHeader, bytes: MuxBytes<'_>) {
        body.push(header, bytes, &mut self.out);
        self.turns.add(Turn::Request(header.id), body);
    }

    /// Takes what has arrived of the next answer. The end removes the request, so that it is found
    /// once.
    pub(in super::super) fn take_answer(&mut self, id: u64, into: &mut Vec<u8>) -> Found {
        let Some(request) = self.own_requests.get_mut(&id).filter(|request| !request.is_cancelled) else {
            return Found::End(Ending::Cancelled);
        };
        let taken = request.answers.take(into);
        if request.answers.announces_credit(self.own.window) {
            self.credits.push((Purpose::AnswerCredit, id));
        }
        match taken {
            Taken::Part => Found::Part,
            Taken::Message => Found::Message,
            Taken::Nothing | Taken::End => {
                match self.own_requests.get(&id).and_then(|request| request.ending) {
                    None => Found::Nothing,
                    Some(ending) => {
                        self.remove_own(id);
                        Found::End(ending)
                    }
                }
            }
        }
    }

    /// Whether [`take_answer`](Self::take_answer) would find anything.
    pub(in super::super) fn has_answer(&self, id: u64) -> bool {
        self.own_requests.get(&id).is_none_or(|request| request.ending.is_some() || request.answers.has_any())
    }

    /// Whether the peer has answered or ended all requests before this number. One that was given up
    /// counts until the peer has ended it.
    pub(in super::super) fn has_answers_before(&self, id: u64) -> bool {
        let is_open = |(at, request): (&u64, &OwnRequest)| {
            *at < id && request.ending.is_none() && (request.is_cancelled || !request.answers.has_any())
        };
        !self.own_requests.iter().any(is_open)
    }

    /// The same for one that waits for a whole answer.
    pub(in super::super) fn must_take_answer(&self, id: u64) -> bool {
        self.own_requests.get(&id).is_none_or(|request| {
            request.is_cancelled || request.ending.is_some() || request.answers.must_be_taken(self.own.window)
        })
    }

    /// Wakes a task when something of the answers arrives.
    pub(in super::super) fn wake_at_answer(&mut self, id: u64, waker: &Waker) {
        if let Some(request) = self.own_requests.get_mut(&id) {
            self.unused.extend(request.waker.replace(waker.clone()));
        }
    }

    /// Gives a request up. What still comes of it is ignored.
    pub(in super::super) fn cancel(&mut self, id: u64) {
        let Some(request) = self.own_requests.get_mut(&id) else { return };
        if request.ending.is_some() {
            return self.remove_own(id);
        }
        if !std::mem::replace(&mut request.is_cancelled, true) {
            self.kept_one_way -= request.drop_body();
            request.answers.discard();
            self.unused.extend(request.waker.take());
            self.stats.cancelled += 1;
            self.control(MuxHeader::control(Purpose::Cancel, id, 0));
        }
    }

    fn remove_own(&mut self, id: u64) {
        if let Some(request) = self.own_requests.remove(&id) {
            self.unused.extend(request.waker);
            self.forget_turns();
        }
    }

    /// The peer has ended a request.
    pub(super) fn end_own(&mut self, id: u64, ending: Ending) {
        let Some(request) = self.own_requests.get_mut(&id) else { return };
        request.ending = Some(ending);
        self.kept_one_way -= request.drop_body();
        self.in_flight -= 1;
        self.woken.extend(request.waker.take());
        if request.is_cancelled || request.one_way {
            self.remove_own(id);
        }
        self.wake_list(WaitList::Slot);
        self.wake_senders();
    }
}

impl OwnRequest {
    /// Sends no more of it. Returns the bytes that a one-way message has kept.
    fn drop_body(&mut self) -> usize {
        let kept = if self.one_way { self.body.kept() } else { 0 };
        self.body.clear();
        kept
    }
}

/// The milliseconds of a time, at least 1.
fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1)
}
