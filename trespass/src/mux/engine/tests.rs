//! Two engines that exchange bytes, and one whose peer is hostile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};
use std::time::Instant;

use super::super::error::ProtocolViolation;
use super::super::frame::{Capacity, Ending, HEADER, LAST, MESSAGE_END, MuxHeader, ONE_WAY, Purpose};
use super::super::payload::MuxBytes;
use super::answering::AnswerRoom;
use super::requesting::Found;
use super::sending::QUEUED;
use super::waiting::{WaitCause, WaitPlace};
use super::{CHUNK, Engine, Taken};

mod random;

const CAPACITY: Capacity = Capacity { requests: 8, window: 8192 };
const WIDE: Capacity = Capacity { window: 4 << 20, requests: 16 };

/// Two engines with the bytes between them.
struct Pair {
    client: Engine,
    server: Engine,
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    now: Instant,
}

impl Pair {
    fn new(client: Capacity, server: Capacity) -> Self {
        let (client, server) = (Engine::new(client), Engine::new(server));
        let mut pair =
            Self { client, server, to_server: Vec::new(), to_client: Vec::new(), now: Instant::now() };
        pair.settle();
        pair
    }

    fn default() -> Self {
        Self::new(CAPACITY, CAPACITY)
    }

    /// Moves at most `most` bytes of a batch in each direction. Returns whether any moved.
    fn step(&mut self, most: usize) -> bool {
        let mut batch = Vec::new();
        if self.to_server.is_empty() {
            self.client.next_batch(&mut batch);
            self.to_server.append(&mut batch);
        }
        if self.to_client.is_empty() {
            self.server.next_batch(&mut batch);
            self.to_client.append(&mut batch);
        }
        let bytes: Vec<u8> = self.to_server.drain(..most.min(self.to_server.len())).collect();
        self.server.receive(&bytes, self.now).unwrap();
        let moved = !bytes.is_empty();
        let bytes: Vec<u8> = self.to_client.drain(..most.min(self.to_client.len())).collect();
        self.client.receive(&bytes, self.now).unwrap();
        moved || !bytes.is_empty()
    }

    fn settle(&mut self) {
        while self.step(usize::MAX) {}
    }

    fn ask(&mut self, bytes: &[u8]) -> u64 {
        self.client.request(bytes.into(), None, false).expect("the peer accepts one more")
    }

    /// Takes the next request whole.
    fn arrived(&mut self) -> (u64, Vec<u8>) {
        let id = self.server.next_arrival().expect("a request has arrived").id;
        let mut body = Vec::new();
        loop {
            match self.server.take_body(id, &mut body).expect("it is not cancelled") {
                Taken::Message => return (id, body),
                Taken::Part => (),
                taken => assert!(self.step(usize::MAX), "{taken:?} after {} bytes", body.len()),
            }
            self.settle();
        }
    }

    /// Takes the next answer whole, or how the answers ended.
    fn answer(&mut self, id: u64) -> Result<Vec<u8>, Ending> {
        let mut answer = Vec::new();
        loop {
            match self.client.take_answer(id, &mut answer) {
                Found::Message => return Ok(answer),
                Found::End(ending) => return Err(ending),
                Found::Part => (),
                Found::Nothing => assert!(self.step(usize::MAX), "it waits after {} bytes", answer.len()),
            }
            self.settle();
        }
    }

    /// Takes the one-way messages of the server, which differ by their first byte.
    fn assert_server_is_heard(&mut self, sent: u8) {
        for seed in 0..sent {
            self.settle();
            let id = self.client.next_arrival().expect("a message has arrived").id;
            let mut body = Vec::new();
            while self.client.take_body(id, &mut body) != Some(Taken::Message) {
                self.settle();
            }
            assert_eq!(body[0], seed);
            self.client.release(id);
        }
        self.settle();
        assert_eq!(self.server.in_flight(), 0);
    }

    fn assert_at_rest(&mut self) {
        self.settle();
        for engine in [&self.client, &self.server] {
            assert_eq!((engine.in_flight(), engine.own_requests.len()), (0, 0));
            assert_eq!((engine.peer_requests.len(), engine.arrivals.len()), (0, 0));
            assert!(!engine.has_output() && engine.turns.is_empty());
        }
    }
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn answers_come_in_any_order() {
    let mut pair = Pair::default();
    let ids = [pair.ask(b"one"), pair.ask(b"two"), pair.ask(b"three")];
    pair.settle();
    let arrived = [pair.arrived(), pair.arrived(), pair.arrived()];
    assert_eq!(arrived.each_ref().map(|(_, body)| &body[..]), [&b"one"[..], b"two", b"three"]);
    for (id, body) in arrived.iter().rev() {
        pair.server.answer(*id, body.into(), true);
        pair.settle();
    }
    assert_eq!(ids.map(|id| pair.answer(id).unwrap()), arrived.map(|(_, body)| body));
    assert_eq!(ids.map(|id| pair.answer(id)), [Err(Ending::Done), Err(Ending::Done), Err(Ending::Done)]);
    pair.assert_at_rest();
}

#[test]
fn a_whole_request_passes_one_that_has_no_end() {
    let mut pair = Pair::default();
    let begin = MuxHeader::data(Purpose::Request, 0, 0, 3).encode();
    let whole = MuxHeader::data(Purpose::Request, LAST | MESSAGE_END, 1, 0).encode();
    let end = MuxHeader::data(Purpose::RequestData, LAST | MESSAGE_END, 0, 2).encode();
    let now = pair.now;
    pair.server.receive(&[&begin[..], b"abc", &whole[..], &end[..], b"d"].concat(), now).unwrap();
    assert_eq!(pair.server.next_whole_arrival().map(|arrival| arrival.id), Some(1));
    assert!(pair.server.next_whole_arrival().is_none(), "a byte is missing");
    pair.server.receive(b"e", now).unwrap();
    assert_eq!(pair.server.next_whole_arrival().map(|arrival| arrival.id), Some(0));
    let mut body = Vec::new();
    assert_eq!(pair.server.take_body(0, &mut body), Some(Taken::Message));
    assert_eq!(body, b"abcde");
}

#[test]
fn small_requests_share_a_batch() {
    let mut pair = Pair::default();
    let before = pair.client.stats();
    for seed in 0..8 {
        pair.ask(&bytes(100, seed));
    }
    pair.settle();
    let after = pair.client.stats();
    assert_eq!((after.frames_sent - before.frames_sent, after.batches - before.batches), (8, 1));
}

#[test]
fn a_small_request_passes_a_large_one() {
    let mut pair = Pair::new(CAPACITY, Capacity { window: 1 << 20, ..CAPACITY });
    let large = pair.ask(&bytes(1 << 20, 1));
    pair.step(CHUNK);
    let small = pair.ask(b"small");
    for _ in 0..20 {
        pair.step(CHUNK);
    }
    let mut body = Vec::new();
    let (first, second) = (pair.server.next_arrival().unwrap().id, pair.server.next_arrival().unwrap().id);
    assert_eq!((first, second), (large, small));
    assert_eq!(pair.server.take_body(second, &mut body), Some(Taken::Message), "the small one is whole");
    pair.server.answer(second, (&body).into(), true);
    pair.step(CHUNK);
    assert_eq!(pair.answer(small).unwrap(), b"small");
    body.clear();
    assert_eq!(pair.server.take_body(first, &mut body), Some(Taken::Part), "the large one is under way");
}

#[test]
fn large_messages_take_turns() {
    let mut pair = Pair::new(CAPACITY, Capacity { window: 1 << 20, ..CAPACITY });
    let ids = [pair.ask(&bytes(100 * CHUNK, 1)), pair.ask(&bytes(3 * CHUNK, 2))];
    while !pair.server.peer_requests.get(&ids[1]).is_some_and(|request| request.body.has_ended()) {
        assert!(pair.step(CHUNK));
    }
    let first = pair.client.own_requests[&ids[0]].body.sent();
    assert!((3 * CHUNK..=12 * CHUNK).contains(&first), "{first}");
}

#[test]
fn credit_for_a_peer_that_reads_nothing_is_one_frame() {
    let mut pair = Pair::default();
    let id = pair.ask(&bytes(100_000, 3));
    pair.step(usize::MAX);
    let arrival = pair.server.next_arrival().unwrap();
    assert_eq!(arrival.id, id);
    // The server's batches are not taken, and its program takes every byte as it comes.
    let (mut body, mut batch) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        pair.client.next_batch(&mut batch);
        pair.server.receive(&std::mem::take(&mut batch), pair.now).unwrap();
        while matches!(pair.server.take_body(id, &mut body), Some(Taken::Part)) {}
    }
    assert!(body.len() < 8192, "it sends no more than its window: {}", body.len());
    assert!(pair.server.credits.len() == 1 && pair.server.has_output());
    pair.server.next_batch(&mut batch);
    assert_eq!(batch.len(), HEADER, "one frame of credit");
    pair.client.receive(&batch, pair.now).unwrap();
    while pair.server.take_body(id, &mut body) != Some(Taken::Message) {
        assert!(pair.step(usize::MAX));
    }
    assert_eq!(body, bytes(100_000, 3));
}

#[test]
fn messages_of_a_few_turns_end_one_after_another() {
    let mut pair = Pair::new(CAPACITY, WIDE);
    let ids = Vec::from_iter((0..4).map(|seed| pair.ask(&bytes(16 * CHUNK, seed))));
    for pair_of_ids in ids.windows(2) {
        let [first, second] = [pair_of_ids[0], pair_of_ids[1]];
        while !pair.server.peer_requests.get(&first).is_some_and(|request| request.body.has_ended()) {
            assert!(pair.step(CHUNK));
        }
        let next = pair.client.own_requests[&second].body.sent();
        assert!(next <= 10 * CHUNK, "most of the next one is sent: {next}");
    }
}

#[test]
fn a_message_of_few_chunks_waits_for_a_share_of_the_long_ones() {
    let mut pair = Pair::new(CAPACITY, WIDE);
    let ids = Vec::from_iter((0..12).map(|seed| pair.ask(&bytes(200 * CHUNK, seed))));
    // All have had their first turn.
    while pair.client.own_requests[&ids[11]].body.sent() < 4 * CHUNK {
        assert!(pair.step(CHUNK));
    }
    let short = pair.ask(&bytes(3 * CHUNK, 99));
    let mut steps = 0;
    while !pair.server.peer_requests.get(&short).is_some_and(|request| request.body.has_ended()) {
        assert!(pair.step(CHUNK));
        steps += 1;
    }
    // A batch is under way, and each of two has two of its chunks.
    assert!(steps <= 28, "{steps} chunks went before its end");
    let later = ids.iter().filter(|id| pair.client.own_requests[id].body.sent() > 4 * CHUNK);
    assert!(later.count() > 0, "the long ones go on, too");
}

#[test]
fn a_whole_message_stays_in_one_piece_while_the_window_has_room() {
    for (window, stays) in [(1 << 20, true), (4 * CHUNK as u64, false)] {
        let mut pair = Pair::new(CAPACITY, Capacity { window, ..CAPACITY });
        let id = pair.ask(&bytes(3 * CHUNK + 1, 7));
        while pair.server.peer_requests.get(&id).is_none_or(|request| request.body.waiting() <= 2 * CHUNK) {
            assert!(pair.step(100));
        }
        assert_ne!(pair.server.must_take_body(id), stays, "half of a window of {window} is full");
        pair.settle();
        assert!(pair.server.must_take_body(id), "all has arrived, or needs the room");
        let arrived = pair.arrived();
        assert_eq!(arrived, (id, bytes(3 * CHUNK + 1, 7)));
        pair.server.answer(id, bytes(3 * CHUNK, 8).into(), true);
        assert!(!pair.client.must_take_answer(id));
        pair.settle();
        assert!(pair.client.must_take_answer(id));
        assert_eq!(pair.answer(id).unwrap(), bytes(3 * CHUNK, 8));
    }
}

#[test]
fn each_batch_has_a_chunk_of_a_message_in_its_first_turn_and_of_one_in_a_later() {
    let mut pair = Pair::new(CAPACITY, Capacity { requests: 40, ..WIDE });
    let later = pair.ask(&bytes(200 * CHUNK, 1));
    while pair.client.own_requests[&later].body.sent() < 5 * CHUNK {
        assert!(pair.step(CHUNK));
    }
    let first = pair.ask(&bytes(3 * CHUNK, 2));
    while pair.client.queued() < QUEUED {
        pair.ask(&bytes(CHUNK, 3));
    }
    let had = pair.client.own_requests[&later].body.sent();
    pair.client.next_batch(&mut Vec::new());
    assert_eq!(pair.client.own_requests[&later].body.sent(), had + CHUNK);
    assert_eq!(pair.client.own_requests[&first].body.sent(), CHUNK);
}

#[test]
fn credit_lists_a_message_once() {
    let mut pair = Pair::default();
    let id = pair.ask(&bytes(100_000, 1));
    pair.settle();
    for _ in 0..100 {
        let frame = MuxHeader::control(Purpose::RequestCredit, id, 1).encode();
        pair.client.receive(&frame, pair.now).unwrap();
    }
    assert_eq!(pair.client.turns.len(), 1);
}

#[test]
fn the_end_of_an_answer_wakes_its_sender() {
    let mut pair = Pair::default();
    let id = pair.ask(b"?");
    pair.settle();
    let to = pair.arrived().0;
    pair.server.answer(to, bytes(10_000, 1).into(), false);
    pair.server.wake_at_change(to, Waker::noop());
    pair.settle();
    let is_full = pair.server.answer_room(to) == AnswerRoom::Full;
    assert!(is_full && pair.server.take_woken().is_empty(), "its end waits for credit");
    assert_eq!(pair.answer(id).unwrap(), bytes(10_000, 1));
    assert_eq!((pair.server.answer_room(to), pair.server.take_woken().len()), (AnswerRoom::Room, 1));
}

#[test]
fn each_answer_has_a_first_turn() {
    let mut pair = Pair::new(WIDE, WIDE);
    let id = pair.ask(b"?");
    pair.settle();
    let to = pair.arrived().0;
    for seed in 0..2 {
        pair.server.answer(to, bytes(20 * CHUNK, seed).into(), false);
        assert!(!pair.server.turns.has_later(), "answer {seed}");
        assert!(pair.answer(id).unwrap() == bytes(20 * CHUNK, seed));
    }
}

#[test]
fn a_message_that_waits_behind_answers_is_woken_when_they_are_sent() {
    let mut pair = Pair::new(Capacity { requests: 16, window: 1 << 20 }, WIDE);
    (0..16).for_each(|_| _ = pair.ask(b"?"));
    pair.settle();
    while pair.server.has_queue_room() {
        let to = pair.server.next_arrival().unwrap().id;
        pair.server.answer(to, bytes(CHUNK, 1).into(), true);
    }
    let mut place = WaitPlace::default();
    pair.server.wait(WaitCause::Room { one_way: true }, &mut place, Waker::noop());
    pair.server.next_batch(&mut Vec::new());
    assert!(pair.server.has_queue_room() && pair.server.take_woken().len() == 1);
}

#[test]
fn the_last_waker_of_a_wait_is_woken() {
    struct Wakes(AtomicU32);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut pair = Pair::default();
    let [former, last] = [(); 2].map(|()| Arc::new(Wakes(AtomicU32::new(0))));
    let mut place = WaitPlace::default();
    for wakes in [&former, &last] {
        pair.server.wait(WaitCause::Arrival, &mut place, &wakes.clone().into());
    }
    pair.ask(b"?");
    pair.settle();
    pair.server.take_woken().into_iter().for_each(Waker::wake);
    assert_eq!([&former, &last].map(|wakes| wakes.0.load(Ordering::Relaxed)), [0, 1]);
}

#[test]
fn the_end_of_the_connection_wakes_those_that_wait_on_both_sides_of_a_request() {
    let mut pair = Pair::default();
    let id = pair.ask(b"?");
    pair.settle();
    let to = pair.arrived().0;
    pair.client.wake_at_answer(id, Waker::noop());
    pair.server.wake_at_change(to, Waker::noop());
    for engine in [&mut pair.client, &mut pair.server] {
        let mut place = WaitPlace::default();
        engine.wait(WaitCause::Arrival, &mut place, Waker::noop());
        engine.take_woken();
        engine.wake_all();
        assert_eq!(engine.take_woken().len(), 2);
    }
}

#[test]
fn a_wait_whose_cause_changes_is_in_one_list() {
    let (mut pair, mut place) = (Pair::default(), WaitPlace::default());
    let cause = WaitCause::Room { one_way: true };
    pair.client.wait(cause, &mut place, Waker::noop());
    (0..8).for_each(|_| _ = pair.ask(b"?"));
    pair.client.wait(cause, &mut place, Waker::noop());
    assert_eq!(pair.client.waiters(), 1);
    assert!(pair.client.stop_waiting(&mut place).is_some());
    assert_eq!(pair.client.waiters(), 0);
}

#[test]
fn a_reader_that_stops_holds_up_its_answers_alone() {
    let mut pair = Pair::default();
    let (slow, quick) = (pair.ask(b"slow"), pair.ask(b"quick"));
    pair.settle();
    let (to_slow, to_quick) = (pair.arrived().0, pair.arrived().0);
    let mut sent = 0;
    while pair.server.answer_room(to_slow) == AnswerRoom::Room {
        pair.server.answer(to_slow, bytes(1000, sent).into(), false);
        pair.settle();
        sent += 1;
        assert!(sent < 20, "nothing holds the answers back");
    }
    let unread = pair.client.own_requests[&slow].answers.waiting();
    assert!(unread <= 8192, "{unread}");
    pair.server.answer(to_quick, bytes(50_000, 9).into(), true);
    assert_eq!(pair.answer(quick).unwrap(), bytes(50_000, 9));
    for seed in 0..sent {
        assert_eq!(pair.answer(slow).unwrap(), bytes(1000, seed));
    }
    pair.settle();
    assert_eq!(pair.server.answer_room(to_slow), AnswerRoom::Room);
    pair.server.end_answers(to_slow);
    assert_eq!(pair.answer(slow), Err(Ending::Done));
    assert_eq!(pair.answer(quick), Err(Ending::Done));
    pair.assert_at_rest();
}

#[test]
fn empty_messages_take_room_of_the_window() {
    let mut pair = Pair::default();
    let id = pair.ask(b"");
    pair.settle();
    let to = pair.arrived().0;
    let mut sent = 0;
    while pair.server.answer_room(to) == AnswerRoom::Room {
        pair.server.answer(to, b"".into(), false);
        sent += 1;
        assert!(sent <= 8192 / HEADER + 1, "nothing holds the answers back");
    }
    for _ in 0..sent {
        assert_eq!(pair.answer(id).unwrap(), b"");
    }
}

#[test]
fn late_frames_of_a_cancelled_request_are_ignored() {
    let mut pair = Pair::default();
    let (cancelled, other) = (pair.ask(b"cancelled"), pair.ask(b"other"));
    pair.settle();
    let (to_cancelled, to_other) = (pair.arrived().0, pair.arrived().0);
    pair.server.answer(to_cancelled, bytes(100_000, 1).into(), true);
    pair.step(50);
    pair.client.cancel(cancelled);
    pair.server.answer(to_other, b"answer".into(), true);
    assert_eq!(pair.answer(other).unwrap(), b"answer");
    assert_eq!(pair.answer(other), Err(Ending::Done));
    pair.assert_at_rest();
    assert_eq!(pair.client.stats().cancelled, 1);
}

#[test]
fn a_cancelled_request_counts_until_the_peer_gives_it_up() {
    let mut pair = Pair::default();
    let ids = Vec::from_iter((0..8).map(|_| pair.ask(b"?")));
    assert!(!pair.client.can_request());
    pair.settle();
    let held = pair.server.next_arrival().unwrap().id;
    ids.into_iter().for_each(|id| pair.client.cancel(id));
    pair.settle();
    assert!(pair.server.next_arrival().is_none(), "those that nobody has taken are gone");
    assert_eq!(pair.client.in_flight(), 1, "the program has one");
    assert_eq!(pair.server.answer_room(held), AnswerRoom::Cancelled);
    assert_eq!(pair.server.take_body(held, &mut Vec::new()), None);
    pair.server.answer(held, b"too late".into(), true);
    assert_eq!(pair.server.queued(), HEADER, "the answer is not sent");
    pair.assert_at_rest();
}

#[test]
fn each_end_of_a_cancelled_request_says_that_it_is_cancelled() {
    let ends: [fn(&mut Engine, u64); 3] =
        [Engine::release, Engine::end_answers, |engine, id| engine.answer(id, b"too late".into(), true)];
    for end in ends {
        let mut pair = Pair::default();
        let id = pair.ask(b"?");
        pair.settle();
        assert_eq!(pair.arrived().0, id);
        pair.client.cancel(id);
        pair.settle();
        end(&mut pair.server, id);
        let mut batch = Vec::new();
        pair.server.next_batch(&mut batch);
        assert_eq!(batch, MuxHeader::close(id, Ending::Cancelled).encode());
    }
}

#[test]
fn a_cancel_drops_what_is_kept_on_both_sides() {
    let mut pair = Pair::default();
    let (asked, kept) = (pair.ask(b"?"), pair.ask(&bytes(100_000, 1)));
    pair.settle();
    assert_eq!([asked, kept], [(); 2].map(|()| pair.server.next_arrival().unwrap().id));
    pair.server.answer(asked, bytes(100_000, 2).into(), false);
    pair.settle();
    assert!(!pair.server.is_sent() && !pair.client.is_sent());
    assert!(pair.server.peer_requests[&kept].body.waiting() > 0);
    for id in [asked, kept] {
        pair.client.wake_at_answer(id, Waker::noop());
        pair.server.wake_at_change(id, Waker::noop());
        pair.client.cancel(id);
        assert_eq!(pair.client.own_requests[&id].answers.waiting(), 0);
        assert_eq!(pair.client.take_answer(id, &mut Vec::new()), Found::End(Ending::Cancelled));
    }
    pair.settle();
    assert!(pair.server.is_sent() && pair.client.is_sent(), "nothing of them is kept");
    assert_eq!(pair.server.peer_requests[&kept].body.waiting(), 0);
    assert_eq!(pair.server.take_woken().len(), 2, "those that serve them are woken");
    for id in [asked, kept] {
        pair.server.release(id);
    }
    pair.assert_at_rest();
    assert_eq!(pair.client.take_woken().len(), 0, "nobody waits for a cancelled request");
}

#[test]
fn a_cancelled_request_sends_no_more_of_its_bytes() {
    let mut pair = Pair::new(CAPACITY, WIDE);
    let id = pair.ask(&bytes(100 * CHUNK, 1));
    pair.step(usize::MAX);
    pair.client.cancel(id);
    let mut batch = Vec::new();
    pair.client.next_batch(&mut batch);
    assert_eq!(batch, MuxHeader::control(Purpose::Cancel, id, 0).encode());
}

#[test]
fn a_peer_that_ends_a_request_early_gets_no_more_of_it() {
    for one_way in [false, true] {
        let mut pair = Pair::default();
        let id = pair.client.request(bytes(1 << 20, 1).into(), None, one_way).unwrap();
        pair.settle();
        assert_eq!(pair.server.next_arrival().unwrap().id, id);
        pair.client.wake_at_answer(id, Waker::noop());
        pair.server.release(id);
        let mut batch = Vec::new();
        pair.server.next_batch(&mut batch);
        pair.client.receive(&batch, pair.now).unwrap();
        assert_eq!((pair.client.take_woken().len(), pair.client.kept_one_way), (1, 0));
        assert!(pair.client.is_sent() && pair.client.has_queue_room(), "one-way: {one_way}");
        if !one_way {
            assert_eq!(pair.answer(id), Err(Ending::Unanswered));
        }
        pair.assert_at_rest();
    }
}

/// Answers messages of `len` bytes, of which each step moves `most`. The reader takes what has
/// arrived after every `pause` steps, and nothing after `stop`. Returns the bytes that have arrived,
/// headers included, and that nobody has taken.
fn unread_bytes(len: usize, most: usize, pause: usize, stop: usize) -> usize {
    let mut pair = Pair::default();
    let id = pair.ask(b"?");
    pair.settle();
    let to = pair.arrived().0;
    let before = pair.client.stats().bytes_received as usize;
    let (mut taken, mut answer) = (0, Vec::new());
    for step in 0.. {
        while pair.server.answer_room(to) == AnswerRoom::Room {
            pair.server.answer(to, bytes(len, 1).into(), false);
        }
        let moved = pair.step(most);
        if step >= stop {
            if !moved {
                break;
            }
        } else if step % pause == 0 {
            let found = pair.client.take_answer(id, &mut answer);
            taken += answer.len() + if found == Found::Message { HEADER } else { 0 };
            answer.clear();
        }
    }
    pair.client.stats().bytes_received as usize - before - taken
}

/// Also while a frame has arrived in part, and for messages that have no bytes.
#[test]
fn unread_bytes_of_a_peer_fit_the_window() {
    for (len, most) in [(0, 1000), (50, 700), (3000, 500)] {
        for (pause, stop) in [1, 3].into_iter().flat_map(|pause| (1..100).map(move |stop| (pause, stop))) {
            let unread = unread_bytes(len, most, pause, stop);
            // The headers of the frames before a message's last are not kept.
            assert!(
                unread <= 8192 + 4 * HEADER,
                "{unread} bytes, {len} each, taken at each {pause} of {stop} steps"
            );
        }
    }
}

#[test]
fn a_message_that_is_taken_slowly_takes_no_memory_that_grows() {
    let mut pair = Pair::default();
    let id = pair.ask(b"?");
    pair.settle();
    let to = pair.arrived().0;
    let mut answer = Vec::new();
    for seed in 0..200 {
        // One or two are always left.
        pair.server.answer(to, bytes(1000, seed).into(), false);
        pair.settle();
        if seed > 0 {
            assert_eq!(pair.client.take_answer(id, &mut answer), Found::Message);
            assert_eq!(std::mem::take(&mut answer), bytes(1000, seed - 1));
        }
    }
    let room = pair.client.own_requests[&id].answers.room();
    assert!(room <= 2 * 8192, "{room} bytes");
}

#[test]
fn a_header_alone_takes_the_memory_of_a_chunk() {
    let capacity = Capacity { window: 1 << 30, ..CAPACITY };
    let mut engine = Engine::new(capacity);
    engine.receive(&capacity.encode(), Instant::now()).unwrap();
    let header = MuxHeader::data(Purpose::Request, LAST | MESSAGE_END, 0, 1 << 29);
    engine.receive(&header.encode(), Instant::now()).unwrap();
    engine.receive(b"one byte", Instant::now()).unwrap();
    let room = engine.peer_requests[&0].body.room();
    assert!(room <= CHUNK, "{room} bytes");
}

#[test]
fn a_message_that_has_ended_gets_no_credit() {
    let mut pair = Pair::default();
    let id = pair.ask(&bytes(7000, 1));
    pair.settle();
    let other = pair.ask(&bytes(7000, 2));
    pair.step(4000);
    // Its credit is announced, and then it ends.
    assert_eq!(pair.server.next_arrival().unwrap().id, id);
    assert_eq!(pair.server.next_arrival().unwrap().id, other);
    let mut body = Vec::new();
    assert_eq!(pair.server.take_body(id, &mut body), Some(Taken::Message));
    assert!(!pair.server.has_output(), "it has ended before");
    assert_eq!(pair.server.take_body(other, &mut Vec::new()), Some(Taken::Part));
    assert!(pair.server.has_output());
    let rest = std::mem::take(&mut pair.to_server);
    pair.server.receive(&rest, pair.now).unwrap();
    let mut batch = Vec::new();
    pair.server.next_batch(&mut batch);
    assert_eq!(batch, b"");
}

#[test]
fn requests_behind_a_full_queue_arrive_in_order() {
    let capacity = Capacity { requests: 40, window: 1 << 20 };
    let mut pair = Pair::new(capacity, capacity);
    let ids = Vec::from_iter((0..40).map(|seed| pair.ask(&bytes(CHUNK - 100, seed))));
    assert!(pair.client.queued() < QUEUED + CHUNK + 40 * HEADER);
    for (seed, id) in ids.into_iter().enumerate() {
        pair.settle();
        assert!(pair.arrived() == (id, bytes(CHUNK - 100, seed as u8)), "request {id}");
    }
}

#[test]
fn a_request_cancelled_in_the_midst_of_its_bytes() {
    let mut pair = Pair::default();
    let id = pair.ask(&bytes(100_000, 1));
    pair.settle();
    assert_eq!(pair.server.next_arrival().unwrap().id, id);
    pair.client.cancel(id);
    pair.settle();
    pair.server.release(id);
    pair.assert_at_rest();
}

#[test]
fn an_answer_before_the_end_of_the_request() {
    let mut pair = Pair::default();
    let id = pair.ask(&bytes(100_000, 1));
    pair.step(3000);
    let to = pair.server.next_arrival().unwrap().id;
    pair.server.answer(to, b"enough".into(), true);
    assert_eq!(pair.answer(id).unwrap(), b"enough");
    assert_eq!(pair.answer(id), Err(Ending::Done));
    pair.assert_at_rest();
}

#[test]
fn one_way_messages_end_when_they_are_taken() {
    let mut pair = Pair::default();
    for seed in 0..8 {
        pair.client.request(bytes(20_000, seed).into(), None, true).unwrap();
    }
    assert!(!pair.client.can_request());
    for seed in 0..8 {
        pair.settle();
        let (id, body) = pair.arrived();
        assert_eq!(body, bytes(20_000, seed));
        assert_eq!(pair.client.in_flight(), 8 - u32::from(seed));
        pair.server.release(id);
        pair.settle();
    }
    pair.assert_at_rest();
}

#[test]
fn a_peer_that_reads_nothing_bounds_what_is_queued() {
    let generous = Capacity { requests: 1 << 20, window: 1 << 30 };
    let mut pair = Pair::new(generous, Capacity { requests: 256, window: 1 << 20 });
    let ids = Vec::from_iter((0..200).map(|_| pair.ask(b"?")));
    pair.settle();
    let most = QUEUED + CHUNK + 300 * HEADER;
    for seed in 0..200 {
        let id = pair.server.next_arrival().unwrap().id;
        pair.server.answer(id, bytes(CHUNK, seed).into(), true);
        assert!(pair.server.queued() <= most, "{} bytes after {seed} answers", pair.server.queued());
    }
    let mut sent = 0;
    while pair.server.has_queue_room() {
        pair.server.request(bytes(CHUNK, sent).into(), None, true).unwrap();
        sent += 1;
        assert!(sent < 100 && pair.server.queued() <= most);
    }
    for (seed, id) in ids.into_iter().enumerate() {
        assert!(pair.answer(id).unwrap() == bytes(CHUNK, seed as u8), "answer {seed}");
        assert_eq!(pair.answer(id), Err(Ending::Done));
    }
    assert!(pair.server.has_queue_room());
    pair.assert_server_is_heard(sent);
}

#[test]
fn one_way_messages_wait_while_others_are_kept() {
    let mut pair = Pair::new(CAPACITY, CAPACITY);
    let mut sent = 0;
    while pair.server.has_queue_room() {
        pair.server.request(bytes(1 << 20, sent).into(), None, true).unwrap();
        sent += 1;
        assert!(sent <= 4, "{sent} MiB are kept");
    }
    // A write that makes no room wakes nobody.
    let mut place = WaitPlace::default();
    pair.server.wait(WaitCause::Room { one_way: true }, &mut place, Waker::noop());
    pair.settle();
    assert_eq!((pair.server.waiters(), pair.server.take_woken().len()), (1, 0));
    pair.assert_server_is_heard(sent);
    assert_eq!((pair.server.waiters(), pair.server.take_woken().len()), (0, 1));
    assert_eq!(pair.server.kept_one_way, 0);
}

#[test]
fn waits_that_are_given_up_leave_no_waker() {
    let mut pair = Pair::default();
    let ids = Vec::from_iter((0..8).map(|_| pair.client.request(b"?".into(), None, true).unwrap()));
    let causes = [WaitCause::Room { one_way: false }, WaitCause::Arrival, WaitCause::Sent];
    for _ in 0..100 {
        for cause in causes {
            let mut place = WaitPlace::default();
            pair.client.wait(cause, &mut place, Waker::noop());
            pair.client.wait(cause, &mut place, Waker::noop());
            assert!(place.is_taken() && pair.client.stop_waiting(&mut place).is_some());
        }
    }
    assert_eq!(pair.client.waiters(), 0);
    let mut places = causes.map(|cause| {
        let mut place = WaitPlace::default();
        pair.client.wait(cause, &mut place, Waker::noop());
        place
    });
    // All are written, which is not what anyone waits for.
    pair.settle();
    assert_eq!((pair.client.waiters(), pair.client.take_woken().len()), (3, 0));
    for id in ids {
        assert_eq!(pair.arrived().0, id);
        pair.server.release(id);
    }
    let mut ends = Vec::new();
    pair.server.next_batch(&mut ends);
    pair.client.receive(&ends, pair.now).unwrap();
    assert_eq!((pair.client.waiters(), pair.client.take_woken().len()), (1, 2), "no request arrives");
    places.iter_mut().for_each(|place| drop(pair.client.stop_waiting(place)));
    assert_eq!(pair.client.waiters(), 0);
}

#[test]
fn a_dropped_request_is_reported() {
    let mut pair = Pair::default();
    let id = pair.ask(b"?");
    pair.settle();
    let to = pair.arrived().0;
    pair.server.answer(to, b"one".into(), false);
    pair.server.release(to);
    assert_eq!(pair.answer(id).unwrap(), b"one");
    assert_eq!(pair.answer(id), Err(Ending::Unanswered));
    pair.assert_at_rest();
}

#[test]
fn deadlines_travel_with_their_requests() {
    let mut pair = Pair::default();
    let time = std::time::Duration::from_millis(1500);
    pair.client.request(b"?".into(), Some(time), false).unwrap();
    pair.settle();
    assert_eq!(pair.server.next_arrival().unwrap().deadline, Some(pair.now + time));
}

/// The bytes of a peer that is no engine.
struct Hostile(Vec<u8>);

impl Hostile {
    fn new() -> Self {
        Self(CAPACITY.encode().to_vec())
    }

    fn frame(mut self, purpose: Purpose, flags: u8, id: u64, data: &[u8]) -> Self {
        let header = MuxHeader { flags, len: data.len() as u32, ..MuxHeader::control(purpose, id, 0) };
        self.0.extend(header.encode());
        self.0.extend(data);
        self
    }

    fn credit(mut self, purpose: Purpose, id: u64, value: u32) -> Self {
        self.0.extend(MuxHeader::control(purpose, id, value).encode());
        self
    }

    /// The error of an engine that has sent one request.
    fn refused(&self) -> ProtocolViolation {
        let mut engine = Engine::new(CAPACITY);
        engine.receive(&CAPACITY.encode(), Instant::now()).unwrap();
        engine.request(b"?".into(), None, false).unwrap();
        engine.next_batch(&mut Vec::new());
        engine.receive(&self.0[CAPACITY.encode().len()..], Instant::now()).unwrap_err()
    }
}

#[test]
fn peers_that_break_the_protocol_are_refused() {
    const WHOLE: u8 = LAST | MESSAGE_END;
    let begin = Hostile::new;
    let state = |hostile: Hostile| assert!(matches!(hostile.refused(), ProtocolViolation::State { .. }));
    state(begin().frame(Purpose::Request, WHOLE, 1, b"the number 0 is missing"));
    state(begin().frame(Purpose::Request, WHOLE, 0, b"").frame(Purpose::Request, WHOLE, 0, b"again"));
    state(begin().frame(Purpose::RequestData, WHOLE, 0, b"without its begin"));
    state(begin().frame(Purpose::Request, WHOLE, 0, b"").frame(Purpose::RequestData, WHOLE, 0, b"after it"));
    state(begin().frame(Purpose::Cancel, 0, 0, b""));
    state(begin().frame(Purpose::Answer, WHOLE, 1, b"to nobody"));
    state(begin().frame(Purpose::Answer, WHOLE, 0, b"").frame(Purpose::Answer, WHOLE, 0, b"twice"));
    state(begin().frame(Purpose::Answer, WHOLE, 0, b"").frame(Purpose::Close, 0, 0, b""));
    state(begin().frame(Purpose::Answer, 0, 0, b"a part").frame(Purpose::Answer, LAST, 0, b""));
    state(begin().frame(Purpose::Answer, LAST, 0, b"without its end"));
    state(begin().frame(Purpose::Close, 0, 7, b""));
    state(begin().frame(Purpose::Answer, 0, 0, b"a part").frame(Purpose::Close, 0, 0, b""));
    let beyond = begin().frame(Purpose::Answer, WHOLE, 0, &[0; 8192]).refused();
    assert!(matches!(beyond, ProtocolViolation::Window { id: 0, cost: 8212, left: 8192 }), "{beyond}");
    let beyond = begin().credit(Purpose::RequestCredit, 0, 1 << 30).refused();
    assert!(matches!(beyond, ProtocolViolation::Credit { id: 0 }), "{beyond}");
    let mut hostile = begin();
    for id in 0..17 {
        hostile = hostile.frame(Purpose::Request, ONE_WAY, id, b"");
    }
    assert!(matches!(hostile.refused(), ProtocolViolation::Flood { refused: 9 }));
}

#[test]
fn a_message_without_an_answer_gets_none() {
    let mut engine = Engine::new(CAPACITY);
    engine.receive(&CAPACITY.encode(), Instant::now()).unwrap();
    engine.request(b"?".into(), None, true).unwrap();
    engine.next_batch(&mut Vec::new());
    let answer = Hostile(Vec::new()).frame(Purpose::Answer, LAST | MESSAGE_END, 0, b"!");
    assert!(matches!(engine.receive(&answer.0, Instant::now()), Err(ProtocolViolation::State { .. })));
}

#[test]
fn bytes_of_a_request_behind_its_cancellation_are_ignored() {
    let mut engine = Engine::new(CAPACITY);
    let begun = Hostile::new().frame(Purpose::Request, 0, 0, b"a part");
    engine.receive(&begun.0, Instant::now()).unwrap();
    assert_eq!(engine.next_arrival().unwrap().id, 0);
    let rest = Hostile(Vec::new()).frame(Purpose::Cancel, 0, 0, b"");
    let rest = rest.frame(Purpose::RequestData, LAST | MESSAGE_END, 0, b"the rest");
    engine.receive(&rest.0, Instant::now()).unwrap();
    assert_eq!(engine.take_body(0, &mut Vec::new()), None);
    engine.release(0);
    assert_eq!(engine.stats().serving, 0);
}

#[test]
fn requests_beyond_the_limit_are_refused_one_by_one() {
    let mut engine = Engine::new(CAPACITY);
    let mut hostile = Hostile::new();
    for id in 0..16 {
        hostile = hostile.frame(Purpose::Request, LAST | MESSAGE_END, id, b"?");
    }
    engine.receive(&hostile.0, Instant::now()).unwrap();
    assert_eq!((engine.stats().serving, engine.stats().refused), (8, 8));
    // Ends that the peer cannot know of make no room.
    (0..8).for_each(|id| engine.release(id));
    let more = Hostile(Vec::new()).frame(Purpose::Request, LAST | MESSAGE_END, 16, b"?");
    assert!(matches!(engine.receive(&more.0, Instant::now()), Err(ProtocolViolation::Flood { .. })));
}

/// Sends frames of a body with a few bytes each, as far as the window goes.
#[test]
fn a_whole_message_is_taken_when_headers_have_used_the_window() {
    for (purpose, len) in [(Purpose::RequestData, 1), (Purpose::Answer, 1), (Purpose::Answer, 20)] {
        let mut engine = Engine::new(CAPACITY);
        let mut frames = Hostile::new();
        if purpose == Purpose::RequestData {
            frames = frames.frame(Purpose::Request, 0, 0, b"");
        }
        engine.receive(&frames.0, Instant::now()).unwrap();
        if purpose == Purpose::RequestData {
            engine.next_arrival().unwrap();
        } else {
            engine.request(b"?".into(), None, false).unwrap();
            engine.next_batch(&mut Vec::new());
        }
        let mut credit = CAPACITY.window as usize - HEADER;
        while credit >= HEADER + len {
            let frame = Hostile(Vec::new()).frame(purpose, 0, 0, &bytes(len, 1));
            engine.receive(&frame.0, Instant::now()).unwrap();
            credit -= HEADER + len;
        }
        let must_take = match purpose {
            Purpose::RequestData => engine.must_take_body(0),
            _ => engine.must_take_answer(0),
        };
        assert!(must_take, "frames of {len} bytes: the peer may send no more");
    }
}

#[test]
fn an_announced_message_takes_no_more_room_than_its_window() {
    let mut engine = Engine::new(Capacity { requests: 8, window: 4096 });
    let mut frames = Hostile::new();
    for id in 0..8 {
        frames = frames.frame(Purpose::Request, 0, id, b"?");
    }
    engine.receive(&frames.0, Instant::now()).unwrap();
    let room: usize = engine.peer_requests.values().map(|request| request.body.room()).sum();
    assert!(room <= 8 * 4096, "{room} bytes for 8 of a peer");
}

#[test]
fn messages_that_are_given_up_leave_no_turns() {
    let answer: Arc<[u8]> = bytes(1 << 19, 1).into();
    const MANY: Capacity = Capacity { window: 1 << 20, requests: 64 };
    let mut pair = Pair::new(MANY, MANY);
    let mut batch = Vec::new();
    let mut ask = |pair: &mut Pair, gives_up: bool| {
        let id = pair.ask(b"?");
        pair.client.next_batch(&mut batch);
        pair.server.receive(&std::mem::take(&mut batch), pair.now).unwrap();
        assert_eq!(pair.server.next_arrival().unwrap().id, id);
        pair.server.answer(id, MuxBytes::Shared(answer.clone()), true);
        if gives_up {
            pair.client.cancel(id);
            pair.client.next_batch(&mut batch);
            pair.server.receive(&std::mem::take(&mut batch), pair.now).unwrap();
        }
    };
    // The answers to these go before the others.
    (0..MANY.requests / 2).for_each(|_| ask(&mut pair, false));
    for _ in 0..8 {
        (0..MANY.requests / 2).for_each(|_| ask(&mut pair, true));
        let mut read = Vec::new();
        pair.server.next_batch(&mut read);
        pair.client.receive(&read, pair.now).unwrap();
        let turns = pair.server.turns.len();
        assert!(turns <= 3 * MANY.requests as usize, "{turns} turns for {} requests", MANY.requests);
    }
}

#[test]
fn requests_end_after_their_begin_is_sent() {
    let mut engine = Engine::new(CAPACITY);
    engine.receive(&Hostile::new().0, Instant::now()).unwrap();
    engine.next_batch(&mut Vec::new());
    for id in 0..2 {
        assert_eq!(engine.request(b"?".into(), None, false), Some(id));
    }
    let end = |purpose| Hostile(Vec::new()).frame(purpose, 0, 1, b"").0;
    let ended = |engine: &mut Engine, purpose| engine.receive(&end(purpose), Instant::now());
    for purpose in [Purpose::Close, Purpose::Answer, Purpose::RequestCredit] {
        let error = ended(&mut engine, purpose).unwrap_err();
        assert!(matches!(error, ProtocolViolation::State { id: 1, .. }), "{error}");
    }
    engine.next_batch(&mut Vec::new());
    ended(&mut engine, Purpose::Close).unwrap();
    assert_eq!(engine.take_answer(1, &mut Vec::new()), Found::End(Ending::Done));
}
