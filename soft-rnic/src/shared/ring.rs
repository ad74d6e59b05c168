//! A multi-producer ring of slot numbers: the order in which messages arrived.
//!
//! Any number of producers (a connected queue pair has one peer, a datagram queue pair has many) and one consumer, the
//! owner. A word says which lap's number it holds, so that the word itself is what is published: a producer that has
//! written one and died before it moved the tail is helped by the next, and one that slept for a lap writes nothing.
//! The owner believes no counter but its own: a wrong tail or head of a peer's makes it read no word twice.

use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};

/// The counters of a ring.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct RingHeader {
    /// By the producers: how many numbers have been pushed, or one less.
    tail: AtomicU32,
    /// By the consumer: how many have been popped.
    head: AtomicU32,
    unused: [AtomicU64; 7],
}

/// A ring of a power of two of words. A word is a number, and above it the lap (counted from 1) that it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexRing<'a> {
    header: &'a RingHeader,
    words: &'a [AtomicU64],
}

/// How often a producer looks for the end of the ring before it believes that somebody moves it about.
///
/// Each look in vain is another producer's success: a number was written, or the tail moved behind one. Between two successes of its own
/// a producer delivers a whole message, which takes longer than ten looks; and a look lasts some nanoseconds, so that being put to sleep in
/// it costs one. That many in vain take hundreds of processors that all send to one queue pair of datagrams (any other has one producer), or somebody
/// who writes where he should not. Then the receive that was filled is never told of: the harm is to the memory's owner, whom that process can
/// harm as it likes.
const TRIES: usize = 64;

impl<'a> IndexRing<'a> {
    /// `None` unless the number of words is a power of two.
    pub(crate) fn new(header: &'a RingHeader, words: &'a [AtomicU64]) -> Option<Self> {
        words.len().is_power_of_two().then_some(Self { header, words })
    }

    fn word(&self, counter: u32) -> &'a AtomicU64 {
        &self.words[counter as usize & (self.words.len() - 1)]
    }

    /// What a word says of its lap before the number of this counter is written, and after.
    fn laps(&self, counter: u32) -> (u64, u64) {
        let bits = self.words.len().trailing_zeros();
        let mask = u64::from(u32::MAX) >> bits;
        let lap = u64::from(counter) >> bits;
        (lap, (lap + 1) & mask)
    }

    /// Owner: as new. No producer is there.
    pub(crate) fn reset(&self) {
        self.header.tail.store(0, Relaxed);
        self.header.head.store(0, Relaxed);
        for word in self.words {
            word.store(0, Relaxed);
        }
    }

    /// Producer: false if the ring is full.
    pub(crate) fn push(&self, number: u32) -> bool {
        for _ in 0..TRIES {
            let tail = self.header.tail.load(Acquire);
            let (empty, full) = self.laps(tail);
            let word = self.word(tail);
            let there = word.load(Relaxed);
            if there >> 32 == full {
                // Another producer's number is there already, who has not come to move the tail.
                let _ = self.header.tail.compare_exchange(tail, tail.wrapping_add(1), AcqRel, Relaxed);
                continue;
            }
            if tail.wrapping_sub(self.header.head.load(Acquire)) as usize >= self.words.len() {
                // Full, or this producer slept and the ring has gone on.
                if self.header.tail.load(Relaxed) == tail {
                    return false;
                }
                continue;
            }
            let new = full << 32 | u64::from(number);
            if there >> 32 == empty && word.compare_exchange(there, new, AcqRel, Relaxed).is_ok() {
                let _ = self.header.tail.compare_exchange(tail, tail.wrapping_add(1), AcqRel, Relaxed);
                return true;
            }
        }
        false
    }

    /// What a producer leaves that dies in the midst of a push.
    #[cfg(all(test, loom))]
    pub(crate) fn push_and_die(&self, number: u32) {
        let tail = self.header.tail.load(Acquire);
        let (empty, full) = self.laps(tail);
        let new = full << 32 | u64::from(number);
        let _ = self.word(tail).compare_exchange(empty << 32, new, AcqRel, Relaxed);
    }

    /// Consumer: the oldest number. The consumer passes its own count, which no peer can change, and stores
    /// the new one here for the producers to see.
    pub(crate) fn pop(&self, head: &mut u32) -> Option<u32> {
        let word = self.word(*head).load(Acquire);
        if word >> 32 != self.laps(*head).1 {
            return None;
        }
        *head = head.wrapping_add(1);
        self.header.head.store(*head, Release);
        Some(word as u32)
    }

    /// Consumer: the numbers that have been pushed and not popped.
    pub(crate) fn pending(&self, head: u32) -> impl Iterator<Item = u32> {
        (0..self.words.len() as u32).map_while(move |step| {
            let counter = head.wrapping_add(step);
            let word = self.word(counter).load(Acquire);
            (word >> 32 == self.laps(counter).1).then_some(word as u32)
        })
    }
}
