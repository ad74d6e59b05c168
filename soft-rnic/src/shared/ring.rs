//! A ring of slot numbers: which slots of a shared receive queue hold this queue pair's messages, in order.
//!
//! One producer (the connected peer) and one consumer (the owner). The words follow the header in the segment; both
//! sides mask their indices, so that a wrong counter reads a wrong number, never another place.

use crate::sync::{Acquire, AtomicU32, Relaxed, Release};

/// The counters of a ring.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct RingHeader {
    /// By the producer: how many numbers have been pushed.
    tail: AtomicU32,
    /// By the consumer: how many have been popped.
    head: AtomicU32,
}

/// A ring of a power of two of words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexRing<'a> {
    header: &'a RingHeader,
    words: &'a [AtomicU32],
}

impl<'a> IndexRing<'a> {
    /// `None` unless the number of words is a power of two.
    pub(crate) fn new(header: &'a RingHeader, words: &'a [AtomicU32]) -> Option<Self> {
        words.len().is_power_of_two().then_some(Self { header, words })
    }

    fn word(&self, counter: u32) -> &'a AtomicU32 {
        &self.words[counter as usize & (self.words.len() - 1)]
    }

    /// Producer: false if the ring is full.
    pub(crate) fn push(&self, number: u32) -> bool {
        let tail = self.header.tail.load(Relaxed);
        if tail.wrapping_sub(self.header.head.load(Acquire)) as usize >= self.words.len() {
            return false;
        }
        self.word(tail).store(number, Relaxed);
        self.header.tail.store(tail.wrapping_add(1), Release);
        true
    }

    /// Consumer: the oldest number. The consumer passes its own count, which no peer can change, and stores
    /// the new one here for the producer to see.
    pub(crate) fn pop(&self, head: &mut u32) -> Option<u32> {
        if self.header.tail.load(Acquire) == *head {
            return None;
        }
        let number = self.word(*head).load(Relaxed);
        *head = head.wrapping_add(1);
        self.header.head.store(*head, Release);
        Some(number)
    }

    /// Consumer: the numbers that have been pushed and not popped.
    pub(crate) fn pending(&self, head: u32) -> impl Iterator<Item = u32> {
        let count = self.header.tail.load(Acquire).wrapping_sub(head).min(self.words.len() as u32);
        (0..count).map(move |step| self.word(head.wrapping_add(step)).load(Relaxed))
    }
}
