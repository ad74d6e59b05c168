//! Batches of frames for the peer.

use super::super::frame::{MuxHeader, Purpose};
use super::received::Inbox;
use super::sending::QUEUED;
use super::turns::Turn;
use super::{CHUNK, Engine};

/// The bytes after which a batch takes no further turn.
const BATCH: usize = 128 << 10;
/// Those of messages in their first turn, while others wait.
const FIRST_SHARE: usize = 32 << 10;
/// Turns of messages that were given up, which are kept.
const SPARE_TURNS: usize = 32;
/// The bytes of unsent one-way messages, outside `out`, after which further ones wait.
const KEPT_ONE_WAY: usize = 4 << 20;

impl Engine {
    /// Whether [`next_batch`](Self::next_batch) would have anything.
    pub(in super::super) fn has_output(&self) -> bool {
        !self.out.is_empty() || self.peer.is_some() && !(self.turns.is_empty() && self.credits.is_empty())
    }

    /// Whether all messages are in batches, and the peer's program has taken those without an
    /// answer.
    pub(in super::super) fn is_sent(&self) -> bool {
        self.out.is_empty()
            && self.own_requests.values().all(|request| request.body.is_empty() && !request.one_way)
            && self.peer_requests.values().all(|request| request.answers.is_empty())
    }

    /// Whether a one-way message need not wait until others are sent.
    pub(in super::super) fn has_queue_room(&self) -> bool {
        self.out.len() < QUEUED && self.kept_one_way < KEPT_ONE_WAY
    }

    /// The bytes of queued frames.
    pub(in super::super) fn queued(&self) -> usize {
        self.out.len()
    }

    /// Fills an empty batch: queued frames first, then chunks of long messages, at least one of
    /// those in their first turn and one of the others. Ask for the next batch when this one is
    /// sent, so that requests which come before then share it.
    pub(in super::super) fn next_batch(&mut self, batch: &mut Vec<u8>) {
        debug_assert!(batch.is_empty());
        self.give_credits();
        std::mem::swap(batch, &mut self.out);
        let begin = batch.len();
        let first = if self.turns.has_later() { BATCH.min(begin + FIRST_SHARE) } else { BATCH };
        self.take_turns(true, first.max(begin + 1), batch);
        self.take_turns(false, BATCH.max(batch.len() + 1), batch);
        self.take_turns(true, BATCH, batch);
        // The peer may have read the batch before this is called again.
        (self.unsent_ends, self.unsent_refusals) = (0, 0);
        if !batch.is_empty() {
            self.stats.batches += 1;
            self.stats.bytes_sent += batch.len() as u64;
        }
        self.wake_senders();
    }

    /// Queues the credit for what programs have taken since the last batch. A peer that reads nothing
    /// gets none, so that frames of it do not collect.
    fn give_credits(&mut self) {
        for (purpose, id) in std::mem::take(&mut self.credits) {
            let inbox = match purpose {
                Purpose::AnswerCredit => self.own_requests.get_mut(&id).map(|request| &mut request.answers),
                _ => self.peer_requests.get_mut(&id).map(|request| &mut request.body),
            };
            if let Some(credit) = inbox.and_then(Inbox::give_credit) {
                self.control(MuxHeader::control(purpose, id, credit));
            }
        }
    }

    /// Forgets the turns of messages that were given up, once most of all are. Otherwise they collect
    /// behind a message that waits for a peer that reads little.
    pub(super) fn forget_turns(&mut self) {
        let (own, peers) = (&mut self.own_requests, &mut self.peer_requests);
        if self.turns.len() <= 2 * (own.len() + peers.len()) + SPARE_TURNS {
            return;
        }
        self.turns.retain(|turn| {
            let outbox = match turn {
                Turn::Request(id) => own.get_mut(id).map(|request| &mut request.body),
                Turn::Answer(id) => peers.get_mut(id).map(|request| &mut request.answers),
            };
            outbox.is_some_and(|outbox| {
                outbox.is_listed = outbox.can_send();
                outbox.is_listed
            })
        });
    }

    /// Sends chunks until a batch has `limit` bytes.
    fn take_turns(&mut self, are_first: bool, limit: usize, batch: &mut Vec<u8>) {
        while batch.len() < limit
            && let Some(turn) = self.turns.next(are_first)
        {
            self.take_turn(turn, limit, batch);
        }
    }

    /// Sends chunks of a message in its turn. If there is more to send, it goes on later.
    fn take_turn(&mut self, turn: Turn, limit: usize, batch: &mut Vec<u8>) {
        let (outbox, waker, id, purpose, one_way) = match turn {
            Turn::Request(id) => match self.own_requests.get_mut(&id) {
                Some(request) => (&mut request.body, None, id, Purpose::RequestData, request.one_way),
                None => return,
            },
            Turn::Answer(id) => match self.peer_requests.get_mut(&id) {
                Some(request) => (&mut request.answers, Some(&mut request.waker), id, Purpose::Answer, false),
                None => return,
            },
        };
        outbox.is_listed = false;
        let kept = outbox.kept();
        while batch.len() < limit && outbox.can_send() && outbox.turn.goes_on() {
            self.stats.frames_sent += 1;
            if let Some(is_last) = outbox.send_chunk(purpose, id, batch) {
                if one_way {
                    self.kept_one_way -= kept;
                }
                self.woken.extend(waker.and_then(Option::take));
                if is_last && matches!(turn, Turn::Answer(_)) {
                    self.remove_peers(id);
                }
                return;
            }
        }
        self.turns.add(turn, outbox);
    }
}

const _: () = assert!(CHUNK < BATCH);
