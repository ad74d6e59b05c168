//! Completion sources: the order in which a poll asks queue pairs, and fairness.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::Cqe;
use super::sources::{CompletionSource, CompletionSources, SourceCursor, SourcePoll};
use crate::shared::completion::{CqEntry, Fired, READY_WORDS};

#[derive(Default)]
struct TestSource(Mutex<VecDeque<u64>>);

impl CompletionSource for TestSource {
    fn poll_receives(self: &Arc<Self>, room: usize, sink: &mut impl FnMut(Cqe)) -> SourcePoll {
        let mut waiting = self.0.lock().unwrap();
        let count = waiting.len().min(room);
        waiting.drain(..count).for_each(|wr_id| sink(Cqe { wr_id, ..Cqe::default() }));
        SourcePoll { more: !waiting.is_empty(), next: None }
    }

    fn waiting(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

struct SourcesFixture {
    entry: CqEntry,
    sources: CompletionSources<TestSource>,
    cursor: SourceCursor,
    receivers: Vec<Arc<TestSource>>,
}

impl SourcesFixture {
    fn new(count: usize) -> Self {
        let (entry, sources) = (CqEntry::new(), CompletionSources::default());
        entry.reset(Some(1 << 16));
        let receivers: Vec<_> = (0..count).map(|_| Arc::new(TestSource::default())).collect();
        for (number, receiver) in receivers.iter().enumerate() {
            assert_eq!(sources.attach(receiver), number as u32);
        }
        Self { entry, sources, cursor: SourceCursor::default(), receivers }
    }

    fn arrive(&self, source: usize, wr_id: u64) {
        self.receivers[source].0.lock().unwrap().push_back(wr_id);
        self.entry.announce(source as u32, false);
    }

    fn take(&mut self, room: usize) -> Vec<u64> {
        let mut taken = Vec::new();
        let count =
            self.sources.take(&self.entry, true, &mut self.cursor, room, &mut |cqe| taken.push(cqe.wr_id));
        assert_eq!(count, taken.len());
        taken
    }
}

#[test]
fn source_without_ready_bit_is_not_polled() {
    let mut bench = SourcesFixture::new(2);
    bench.receivers[1].0.lock().unwrap().push_back(7);
    assert!(!bench.sources.have_news(&bench.entry));
    assert_eq!(bench.take(4), []);
    bench.entry.announce(1, false);
    assert!(bench.sources.have_news(&bench.entry));
    assert_eq!(bench.take(4), [7]);
    assert_eq!((bench.take(4), bench.entry.waiting()), (vec![], 0));
}

#[test]
fn completions_without_room_wait_for_the_next_poll() {
    let mut bench = SourcesFixture::new(1);
    (0..5).for_each(|number| bench.arrive(0, number));
    assert_eq!(bench.take(2), [0, 1]);
    assert_eq!(bench.entry.waiting(), 3);
    assert!(bench.sources.have_news(&bench.entry));
    assert_eq!(bench.take(2), [2, 3]);
    assert_eq!(bench.take(2), [4]);
    assert!(!bench.sources.have_news(&bench.entry));
}

#[test]
fn no_source_starves_another() {
    // With one word of ready bits, and with three.
    for others in [1, 70, 130] {
        let mut bench = SourcesFixture::new(others + 1);
        for number in 0..8 {
            bench.arrive(0, number);
        }
        bench.arrive(others, 100);
        let mut polls = 0;
        // The first source always has more completions than a poll takes.
        while !bench.take(2).contains(&100) {
            polls += 1;
            (0..2).for_each(|number| bench.arrive(0, number));
            assert!(polls < 8, "source {others} is never polled");
        }
    }
}

#[test]
fn many_sources_share_a_bit() {
    let bits = READY_WORDS * 64;
    let mut bench = SourcesFixture::new(if cfg!(miri) { 8 } else { bits + 8 });
    let last = bench.receivers.len() - 1;
    bench.arrive(last, 1);
    bench.arrive(last % bits, 2);
    let mut taken = bench.take(4);
    taken.sort_unstable();
    assert_eq!(taken, [1, 2]);
}

#[test]
fn detached_source_is_not_polled_and_its_number_is_reused() {
    let mut bench = SourcesFixture::new(3);
    bench.arrive(1, 5);
    bench.sources.detach(1);
    bench.sources.detach(1);
    assert_eq!(bench.take(4), []);
    let new = Arc::new(TestSource::default());
    assert_eq!(bench.sources.attach(&new), 1);
    assert_eq!(bench.sources.attach(&Arc::new(TestSource::default())), 3);
    assert_eq!(Arc::strong_count(&bench.receivers[1]), 1);
}

/// A peer was stopped between a note and its mark, and goes on when another queue has the entry.
#[test]
fn a_mark_of_a_former_queue_marks_no_note() {
    let entry = CqEntry::new();
    entry.reset(None);
    let Fired::First(late) = entry.fire() else { panic!("the first note") };
    entry.reset(None);
    assert!(!entry.is_fired());
    assert!(matches!(entry.fire(), Fired::First(note) if note != late));
    entry.woken(late);
    assert_eq!(entry.fire(), Fired::Again);
}
