//! Loom models of the ring of slot numbers.

use loom::sync::Arc;
use loom::thread;

use super::{CheckedCell, explore, explore_bounded, spawn};
use crate::shared::ring::{IndexRing, RingHeader};
use crate::sync::AtomicU64;

/// A ring of two words.
struct RingModel {
    header: RingHeader,
    words: [AtomicU64; 2],
    /// The memory that stands for the slots whose numbers are pushed.
    memory: [CheckedCell; 3],
}

impl RingModel {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            header: RingHeader::default(),
            words: Default::default(),
            memory: [CheckedCell::new(), CheckedCell::new(), CheckedCell::new()],
        })
    }

    fn ring(&self) -> IndexRing<'_> {
        IndexRing::new(&self.header, &self.words).unwrap()
    }

    fn push(&self, number: u32) {
        self.memory[number as usize].write(1);
        while !self.ring().push(number) {
            thread::yield_now();
        }
    }

    fn pop(&self, head: &mut u32) -> Option<u32> {
        let number = self.ring().pop(head)?;
        assert_eq!(self.memory[number as usize].read(), 1);
        Some(number)
    }

    /// Pops until `count` numbers have come.
    fn take(&self, count: usize) -> Vec<u32> {
        let mut head = 0;
        let mut numbers = Vec::new();
        while numbers.len() < count {
            match self.pop(&mut head) {
                Some(number) => numbers.push(number),
                None => thread::yield_now(),
            }
        }
        assert_eq!(self.ring().pop(&mut head), None);
        numbers
    }
}

/// Three numbers go through two words: the ring is full once, and a lap passes.
#[test]
fn a_ring_keeps_the_order() {
    explore(|yields| {
        let ring = RingModel::new();
        let peer = spawn(&ring, move |ring| (0..3).for_each(|number| ring.push(number)));
        yields.at(0);
        assert_eq!(ring.take(3), [0, 1, 2]);
        peer.join().unwrap();
    });
}

#[test]
fn two_producers_lose_nothing() {
    explore_bounded(3, |yields| {
        let ring = RingModel::new();
        let peers = [0, 1].map(|number| spawn(&ring, move |ring| ring.push(number)));
        yields.at(0);
        let mut numbers = ring.take(2);
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1]);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
    });
}

/// A producer dies after it has written its word and before it moves the tail.
#[test]
fn the_next_producer_helps_the_dead() {
    explore(|yields| {
        let ring = RingModel::new();
        let mortal = spawn(&ring, move |ring| {
            ring.memory[0].write(1);
            ring.ring().push_and_die(0);
        });
        yields.at(0);
        ring.push(1);
        mortal.join().unwrap();
        let mut head = 0;
        let mut numbers: Vec<u32> = std::iter::from_fn(|| ring.pop(&mut head)).collect();
        numbers.sort_unstable();
        // If the dead producer found its word taken, it counts as having died before the push.
        assert!(numbers == [1] || numbers == [0, 1], "{numbers:?}");
    });
}
