//! What has come to a queue pair whose receives are not filled one after the other, in the order in which it came.
//!
//! A shared receive queue is filled for many queue pairs, one of datagrams by many senders; and a receive that a sender gives back is an
//! earlier one than those that were filled meanwhile. So the place of a receive in its queue says nothing of when its message came: each
//! sender tells, when it has finished a slot, by pushing its number into a ring. One sender's messages stay in order.

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
    /// How many numbers were taken, ever.
    head: Spin<u32>,
}

impl ArrivalRing {
    /// For a receive queue of so many receives.
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

    /// Tells peers where to push.
    pub(super) fn show(&self, descriptor: &mut QpDescriptor) {
        (descriptor.ring_offset, descriptor.ring_words) = (self.offset, self.words);
    }

    fn ring(&self) -> IndexRing<'_> {
        self.node.segment().ring(self.offset, self.words).expect("the range lies in the heap")
    }

    /// Takes numbers, the oldest first, until one is of use; what is made of it. Meanwhile nobody else takes or looks at any.
    pub(super) fn take<T>(&self, mut of_use: impl FnMut(u32) -> Option<T>) -> Option<T> {
        let (ring, mut head) = (self.ring(), self.head.lock());
        // Others are a peer's mistake: there is an end to them.
        for _ in 0..=self.words {
            let made = of_use(ring.pop(&mut head)?);
            if made.is_some() {
                return made;
            }
        }
        None
    }

    /// Says for a sender what it has not said before it died; false if there is no room, by a peer's mistake.
    pub(super) fn push(&self, number: u32) -> bool {
        self.ring().push(number)
    }

    /// Adds the numbers that have not been taken.
    pub(super) fn pending(&self, numbers: &mut Vec<u32>) {
        numbers.extend(self.ring().pending(*self.head.lock()));
    }

    /// As new. No peer pushes any more.
    pub(super) fn clear(&self) {
        let mut head = self.head.lock();
        // A ring that was never used is no memory yet.
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
