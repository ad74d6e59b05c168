//! The arrival ring: the order of messages where receives are not filled in posting order (UD,
//! SRQ).
//!
//! Many queue pairs take receives from a shared receive queue, and many senders fill the receives
//! of a datagram queue pair. A receive that a sender gives back is older than those filled since.
//! Therefore the position of a receive in its queue does not tell when its message arrived. Each
//! sender pushes the number of a finished slot into this ring, which keeps the messages of one
//! sender in order.

use std::io;
use std::sync::Arc;

use super::Spin;
use crate::node::{HeapRange, Node};
use crate::shared::entry::QpDescriptor;
use crate::shared::ring::IndexRing;
use crate::shared::segment::ring_bytes;

/// The owner's end of the ring.
pub(super) struct ArrivalRing {
    node: Arc<Node>,
    range: Option<HeapRange>,
    offset: u64,
    words: u32,
    /// How many numbers were taken in total.
    head: Spin<u32>,
}

impl ArrivalRing {
    /// A ring for a queue of `receives` receives.
    ///
    /// # Errors
    ///
    /// The segment's heap is full.
    pub(super) fn new(node: &Arc<Node>, receives: u32) -> io::Result<Self> {
        let words = receives.max(1).next_power_of_two();
        let range = node.heap().alloc(ring_bytes(words))?;
        let (node, offset) = (Arc::clone(node), range.offset);
        Ok(Self { node, range: Some(range), offset, words, head: Spin::new(0) })
    }

    /// Publishes where peers push.
    pub(super) fn show(&self, descriptor: &mut QpDescriptor) {
        (descriptor.ring_offset, descriptor.ring_words) = (self.offset, self.words);
    }

    fn ring(&self) -> IndexRing<'_> {
        self.node.segment().ring(self.offset, self.words).expect("the range is in the heap")
    }

    /// Takes numbers, the oldest first, until `of_use` accepts one, and returns its result. No
    /// other thread takes or reads numbers during this.
    pub(super) fn take<T>(&self, mut of_use: impl FnMut(u32) -> Option<T>) -> Option<T> {
        let (ring, mut head) = (self.ring(), self.head.lock());
        // Rejected numbers are a peer's mistake. The loop is bounded, so that the peer cannot keep
        // it going.
        for _ in 0..=self.words {
            let made = of_use(ring.pop(&mut head)?);
            if made.is_some() {
                return made;
            }
        }
        None
    }

    /// Announces a slot for a sender that died before it could. False if the ring is full by a
    /// peer's mistake.
    pub(super) fn push(&self, number: u32) -> bool {
        self.ring().push(number)
    }

    /// Adds the numbers that were not taken.
    pub(super) fn pending(&self, numbers: &mut Vec<u32>) {
        numbers.extend(self.ring().pending(*self.head.lock()));
    }

    /// Resets the ring. No peer pushes any more.
    pub(super) fn clear(&self) {
        let mut head = self.head.lock();
        // A ring that was never used has no pages yet, and resetting would allocate them.
        if *head != 0 {
            self.ring().reset();
            *head = 0;
        }
    }
}

impl Drop for ArrivalRing {
    fn drop(&mut self) {
        if let Some(range) = self.range.take() {
            self.node.heap().free(range);
        }
    }
}
