//! Random calls of two engines, and random bytes of a peer.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// One act of a random run.
#[derive(Clone, Debug)]
enum Act {
    Ask { len: usize, one_way: bool },
    Answer { which: usize, parts: Vec<usize>, drops: bool },
    Take { which: usize },
    Cancel { which: usize },
    Move { most: usize },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let len = prop_oneof![0..200_usize, 10_000..40_000_usize];
    let act = prop_oneof![
        3 => (len.clone(), prop::bool::weighted(0.2)).prop_map(|(len, one_way)| Act::Ask { len, one_way }),
        3 => (any::<usize>(), prop::collection::vec(len, 0..3), prop::bool::weighted(0.2))
            .prop_map(|(which, parts, drops)| Act::Answer { which, parts, drops }),
        3 => any::<usize>().prop_map(|which| Act::Take { which }),
        1 => any::<usize>().prop_map(|which| Act::Cancel { which }),
        6 => prop_oneof![1..60_usize, 1000..50_000_usize].prop_map(|most| Act::Move { most }),
    ];
    prop::collection::vec(act, 1..120)
}

/// A run of two engines, and what each request should find.
#[derive(Default)]
struct Run {
    /// The requests without an end, with the answers that were taken whole and in part.
    asked: BTreeMap<u64, (Vec<u8>, bool)>,
    /// Requests that the server has, with what has arrived and the answers to send.
    held: BTreeMap<u64, (Vec<u8>, Option<Vec<usize>>)>,
    lens: BTreeMap<u64, (usize, bool)>,
    /// Both sides wait for whole messages.
    is_whole: bool,
}

fn pick<K: Copy + Ord, V>(map: &BTreeMap<K, V>, which: usize) -> Option<K> {
    map.keys().nth(which % map.len().max(1)).copied()
}

impl Run {
    fn act(&mut self, pair: &mut Pair, act: &Act) {
        match act {
            Act::Ask { len, one_way } => {
                let sent = bytes(*len, *len as u8);
                if let Some(id) = pair.client.request(sent.into(), None, *one_way) {
                    self.lens.insert(id, (*len, *one_way));
                    if !one_way {
                        self.asked.insert(id, (Vec::new(), false));
                    }
                }
            }
            Act::Answer { which, parts, drops } => {
                if let Some(arrival) = pair.server.next_arrival() {
                    let answers = (!drops && !arrival.one_way).then(|| parts.clone());
                    self.held.insert(arrival.id, (Vec::new(), answers));
                }
                if let Some(id) = pick(&self.held, *which) {
                    self.serve(pair, id);
                }
            }
            Act::Take { which } => {
                if let Some(id) = pick(&self.asked, *which) {
                    self.take(pair, id);
                }
            }
            Act::Cancel { which } => {
                if let Some(id) = pick(&self.asked, *which) {
                    pair.client.cancel(id);
                    self.asked.remove(&id);
                }
            }
            Act::Move { most } => {
                pair.step(*most);
            }
        }
    }

    /// Takes what has arrived, and sends the answers that there is room for.
    fn serve(&mut self, pair: &mut Pair, id: u64) {
        if self.is_whole && !pair.server.must_take_body(id) {
            return;
        }
        let (body, answers) = self.held.get_mut(&id).unwrap();
        let (len, one_way) = self.lens[&id];
        let taken = pair.server.take_body(id, body);
        let expected = bytes(len, len as u8);
        assert_eq!(*body, expected[..body.len()], "request {id}");
        match taken {
            Some(Taken::Part | Taken::Nothing) => return,
            Some(Taken::Message) => assert_eq!(body.len(), len),
            Some(Taken::End) | None => (),
        }
        let Some(parts) = answers else {
            pair.server.release(id);
            self.held.remove(&id);
            return;
        };
        assert!(!one_way);
        while pair.server.answer_room(id) == AnswerRoom::Room
            && let Some(part) = parts.pop()
        {
            pair.server.answer(id, bytes(part, part as u8).into(), false);
        }
        let room = pair.server.answer_room(id);
        if room == AnswerRoom::Cancelled || room == AnswerRoom::Room && parts.is_empty() {
            pair.server.end_answers(id);
            self.held.remove(&id);
        }
    }

    fn take(&mut self, pair: &mut Pair, id: u64) {
        if self.is_whole && !pair.client.must_take_answer(id) {
            return;
        }
        let (answer, in_part) = self.asked.get_mut(&id).unwrap();
        match pair.client.take_answer(id, answer) {
            Found::Nothing => (),
            Found::Part => *in_part = true,
            Found::Message => {
                let len = answer.len();
                assert_eq!(*answer, bytes(len, len as u8), "an answer to {id}");
                (*answer, *in_part) = (Vec::new(), false);
            }
            Found::End(ending) => {
                assert!(ending == Ending::Unanswered || ending == Ending::Done && answer.is_empty());
                self.asked.remove(&id);
            }
        }
    }

    /// Goes on until nothing is under way.
    fn finish(&mut self, pair: &mut Pair) {
        for _ in 0..1000 {
            let moved = pair.step(10_000);
            while let Some(arrival) = pair.server.next_arrival() {
                self.held.insert(arrival.id, (Vec::new(), (!arrival.one_way).then(|| vec![50, 20_000])));
            }
            Vec::from_iter(self.held.keys().copied()).into_iter().for_each(|id| self.serve(pair, id));
            Vec::from_iter(self.asked.keys().copied()).into_iter().for_each(|id| self.take(pair, id));
            if !moved && self.held.is_empty() && self.asked.is_empty() {
                return;
            }
        }
        panic!("{} requests have no end", self.asked.len());
    }
}

proptest! {
    #[test]
    fn everything_arrives_once_and_in_order(
        acts in acts(),
        window in prop_oneof![Just(8192), 4096..4200_u64, 4096..70_000_u64],
        is_whole in any::<bool>(),
    ) {
        let capacity = Capacity { window, ..CAPACITY };
        let mut pair = Pair::new(capacity, capacity);
        let mut run = Run { is_whole, ..Run::default() };
        for act in &acts {
            run.act(&mut pair, act);
        }
        run.finish(&mut pair);
        pair.assert_at_rest();
    }

    #[test]
    fn any_bytes_give_an_error_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..600), cut in 1..64_usize) {
        let mut engine = Engine::new(CAPACITY);
        for piece in bytes.chunks(cut) {
            if engine.receive(piece, Instant::now()).is_err() {
                break;
            }
        }
    }

    #[test]
    fn frames_that_are_almost_right_do_no_harm(
        frames in prop::collection::vec((1..8_u8, 0..8_u8, 0..5_u64, 0..9000_u32, 0..40_usize), 0..60),
        asked in 0..4_usize,
    ) {
        let mut engine = Engine::new(CAPACITY);
        let now = Instant::now();
        engine.receive(&CAPACITY.encode(), now).unwrap();
        for _ in 0..asked {
            engine.request(bytes(9000, 3).into(), None, false);
        }
        engine.next_batch(&mut Vec::new());
        let mut batch = Vec::new();
        for (kind, flags, id, value, len) in frames {
            let mut header = [0; HEADER];
            header[0] = kind;
            header[1] = flags;
            header[4..8].copy_from_slice(&value.to_le_bytes());
            header[8] = len as u8;
            header[12] = id as u8;
            let frame = [&header[..], &bytes(len, 1)].concat();
            if engine.receive(&frame, now).is_err() {
                break;
            }
            if value % 3 == 0 && let Some(arrival) = engine.next_arrival() {
                engine.take_body(arrival.id, &mut Vec::new());
                engine.answer(arrival.id, bytes(9000, 1).into(), value % 2 == 0);
            }
            if value % 5 == 0 {
                batch.clear();
                engine.next_batch(&mut batch);
            }
            let kept: usize = engine.own_requests.values().map(|request| request.answers.waiting())
                .chain(engine.peer_requests.values().map(|request| request.body.waiting())).sum();
            assert!(kept <= 12 * 8192 && engine.peer_requests.len() <= 8 && engine.arrivals.len() <= 8);
            assert!(engine.out.len() <= (8 + 8) * (HEADER + CHUNK) + 200 * HEADER);
        }
    }
}
