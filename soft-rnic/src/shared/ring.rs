//! A ring of slot numbers with several producers: the order in which messages arrived.
//!
//! A ring has one consumer, the owner, and any number of producers: a connected queue pair has one
//! peer, a datagram queue pair has many. Each word contains its number's lap, so that writing the
//! word alone publishes the number. If a producer dies after it has written a word and before it
//! moves the tail, the next producer moves it. A producer that slept for a lap writes nothing.
//!
//! The owner trusts only its private counter: a wrong tail or head from a peer never makes it read
//! a word twice.

use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};

/// The counters of a ring.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct RingHeader {
    /// Written by producers: how many numbers have been pushed, or one less.
    tail: AtomicU32,
    /// Written by the consumer: how many numbers have been popped.
    head: AtomicU32,
    unused: [AtomicU64; 7],
}

/// A ring whose length in words is a power of two. A word holds a number, and above it the lap
/// (counted from 1) in which it was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexRing<'a> {
    header: &'a RingHeader,
    words: &'a [AtomicU64],
}

/// How often a producer looks for the end of the ring before it concludes that another process
/// moves the end at will.
///
/// Each failed look means another producer's success: it wrote a number, or moved the tail past
/// one. Between two successes a producer delivers a whole message, which takes longer than ten
/// looks. A look lasts some nanoseconds, so a producer that is preempted during a look loses that
/// look alone.
///
/// So this number of failures requires hundreds of processors that all send to one datagram queue
/// pair (all others have one producer), or a process that writes where it must not. In that case
/// the filled receive is never reported. The harm falls on the owner of the memory, whom that
/// process can harm in any way.
const TRIES: usize = 64;

impl<'a> IndexRing<'a> {
    /// `None` unless the number of words is a power of two.
    pub(crate) fn new(header: &'a RingHeader, words: &'a [AtomicU64]) -> Option<Self> {
        words.len().is_power_of_two().then_some(Self { header, words })
    }

    fn word(&self, counter: u32) -> &'a AtomicU64 {
        &self.words[counter as usize & (self.words.len() - 1)]
    }

    /// The lap that a word contains before the number of this counter is written, and after.
    fn laps(&self, counter: u32) -> (u64, u64) {
        let bits = self.words.len().trailing_zeros();
        let mask = u64::from(u32::MAX) >> bits;
        let lap = u64::from(counter) >> bits;
        (lap, (lap + 1) & mask)
    }

    /// Owner: empties the ring. No producer may use it at that time.
    pub(crate) fn reset(&self) {
        self.header.tail.store(0, Relaxed);
        self.header.head.store(0, Relaxed);
        for word in self.words {
            word.store(0, Relaxed);
        }
    }

    /// Producer: appends a number. False if the ring is full, or after [`TRIES`] failures.
    pub(crate) fn push(&self, number: u32) -> bool {
        for _ in 0..TRIES {
            let tail = self.header.tail.load(Acquire);
            let (empty, full) = self.laps(tail);
            let word = self.word(tail);
            let there = word.load(Relaxed);
            if there >> 32 == full {
                // Another producer has written this word but has not moved the tail yet.
                let _ = self.header.tail.compare_exchange(tail, tail.wrapping_add(1), AcqRel, Relaxed);
                continue;
            }
            if tail.wrapping_sub(self.header.head.load(Acquire)) as usize >= self.words.len() {
                // Either the ring is full, or this producer slept while others pushed.
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

    /// Pushes a number and stops before the tail moves, as a producer that dies there.
    #[cfg(all(test, loom))]
    pub(crate) fn push_and_die(&self, number: u32) {
        let tail = self.header.tail.load(Acquire);
        let (empty, full) = self.laps(tail);
        let new = full << 32 | u64::from(number);
        let _ = self.word(tail).compare_exchange(empty << 32, new, AcqRel, Relaxed);
    }

    /// Consumer: takes the oldest number. The consumer passes its private count, which no peer can
    /// change; this function stores the new count in the ring for the producers.
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
