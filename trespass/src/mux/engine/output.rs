//! Batches of frames for the peer.

use super::super::frame::Purpose;
use super::sending::QUEUED;
use super::{CHUNK, Engine, Turn};

/// The bytes after which a batch takes no further turn.
const BATCH: usize = 128 << 10;
/// The bytes of unsent one-way messages, outside `out`, after which further ones wait.
const KEPT_ONE_WAY: usize = 4 << 20;

impl Engine {
    /// Whether [`next_batch`](Self::next_batch) would have anything.
    pub(in super::super) fn has_output(&self) -> bool {
        !self.out.is_empty() || self.peer.is_some() && !self.turns.is_empty()
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

    /// Fills an empty batch: queued frames first, then chunks of long messages in turn, at least
    /// one. Ask for the next batch when this one is sent, so that requests share it meanwhile.
    pub(in super::super) fn next_batch(&mut self, batch: &mut Vec<u8>) {
        debug_assert!(batch.is_empty());
        std::mem::swap(batch, &mut self.out);
        let first = batch.len();
        while let Some(turn) = self.turns.pop_front() {
            self.take_turn(turn, batch);
            if batch.len() >= BATCH && batch.len() > first {
                break;
            }
        }
        // The peer may have read the batch before this is called again.
        (self.unsent_ends, self.unsent_refusals) = (0, 0);
        if !batch.is_empty() {
            self.stats.batches += 1;
            self.stats.bytes_sent += batch.len() as u64;
        }
        self.wake_senders();
    }

    /// Sends a chunk. If there is more to send, its turn comes again.
    fn take_turn(&mut self, turn: Turn, batch: &mut Vec<u8>) {
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
        if !outbox.can_send() {
            return;
        }
        self.stats.frames_sent += 1;
        let kept = outbox.kept();
        let is_last = outbox.send_chunk(purpose, id, batch);
        if one_way && is_last.is_some() {
            self.kept_one_way -= kept;
        }
        if outbox.can_send() {
            outbox.is_listed = true;
            self.turns.push_back(turn);
        }
        if let (Some(is_last), Some(waker)) = (is_last, waker) {
            self.woken.extend(waker.take());
            if is_last {
                self.remove_peers(id);
            }
        }
    }
}

const _: () = assert!(CHUNK < BATCH);
