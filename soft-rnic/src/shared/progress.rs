//! The words of queue pairs and shared receive queues that peers change: how far a receive queue has
//! got, and notices to the owner.
//!
//! Any process that maps the segment may write anything here. So these words decide only which
//! receive a message takes, and readers bound each of them.

use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};

/// Bits by which a peer reports an event of a queue pair to its owner.
pub(crate) mod notice {
    /// A request without permission: raises `IBV_EVENT_QP_ACCESS_ERR`, and the queue pair fails.
    pub(crate) const ACCESS_ERROR: u32 = 1 << 0;
    /// A malformed request: raises `IBV_EVENT_QP_REQ_ERR`, and the queue pair fails.
    pub(crate) const REQUEST_ERROR: u32 = 1 << 1;
    /// A receive completed with an error: the queue pair fails.
    pub(crate) const RECEIVE_ERROR: u32 = 1 << 2;
    /// The first message arrived in the state ready to receive: raises `IBV_EVENT_COMM_EST`.
    pub(crate) const ESTABLISHED: u32 = 1 << 3;
}

/// The changing words of a queue pair, at its index.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct QpProgress {
    /// Written by peers: the slot of the receive queue that the next message takes. Unused with a
    /// shared receive queue.
    cursor: AtomicU32,
    /// The next packet's number. Written by the connected peer, and by the owner when it becomes
    /// ready to receive.
    expected_psn: AtomicU32,
    /// Written by peers: [`notice`] bits.
    notices: AtomicU32,
    unused: [AtomicU32; 13],
}

impl QpProgress {
    /// The slot that the next message takes.
    #[inline]
    pub(crate) fn cursor(&self) -> u32 {
        self.cursor.load(Relaxed)
    }

    /// Peer: moves on after it has taken a slot. Owner: goes back to the first slot.
    #[inline]
    pub(crate) fn set_cursor(&self, cursor: u32) {
        self.cursor.store(cursor, Relaxed);
    }

    /// The next packet's number.
    pub(crate) fn expected_psn(&self) -> u32 {
        self.expected_psn.load(Acquire)
    }

    /// Called by the peer when it releases the connection, and by the owner when it becomes ready
    /// to receive.
    pub(crate) fn set_expected_psn(&self, psn: u32) {
        self.expected_psn.store(psn & 0xff_ffff, Release);
    }

    /// Peer: leaves a notice for the owner.
    pub(crate) fn leave_notice(&self, bits: u32) {
        self.notices.fetch_or(bits, AcqRel);
    }

    /// Owner: takes the notices, leaving none.
    pub(crate) fn take_notices(&self) -> u32 {
        if self.notices.load(Relaxed) == 0 { 0 } else { self.notices.swap(0, AcqRel) }
    }
}

/// The changing words of a shared receive queue, at its index.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct SrqCounters {
    /// Written by peers: a hint where posted slots begin.
    hint: AtomicU32,
    /// Posted receives that nobody has claimed. Each receive is counted before it can be claimed,
    /// and counted out after the claim. So the value is sometimes too high but never too low; each
    /// peer that dies in between leaves it too high by one.
    available: AtomicU32,
    /// The limit word: the owner wants one event when fewer receives are available; see [`limit`].
    limit: AtomicU64,
    unused: [AtomicU64; 6],
}

/// The fields of the limit word: how often the limit was armed, the reached bit, and the limit.
///
/// One compare-and-swap changes armed to reached. So an event is neither doubled nor lost,
/// whichever process dies. The count keeps a peer that slept from reaching a later limit.
mod limit {
    pub(super) const ARMED_SHIFT: u32 = 32;
    pub(super) const REACHED: u64 = 1 << 31;
    pub(super) const VALUE: u64 = REACHED - 1;
}

impl SrqCounters {
    /// Peer: where to start searching for a posted slot.
    pub(crate) fn hint(&self) -> u32 {
        self.hint.load(Relaxed)
    }

    /// Peer: stores the slot that follows the one it took.
    pub(crate) fn set_hint(&self, hint: u32) {
        self.hint.store(hint, Relaxed);
    }

    /// Counts receives. Call it *before* they are posted or given back, because a peer may claim
    /// one at once, and the count must not be too low.
    pub(crate) fn add_available(&self, count: u32) {
        self.available.fetch_add(count, AcqRel);
    }

    /// Owner: uncounts a receive that was counted and then not posted.
    pub(crate) fn take_back_available(&self) {
        self.available.fetch_sub(1, AcqRel);
    }

    /// Whether searching for a posted slot is worthwhile. Only a hint: claims are counted after the
    /// fact.
    pub(crate) fn has_available(&self) -> bool {
        self.available() > 0
    }

    fn available(&self) -> i32 {
        self.available.load(Relaxed) as i32
    }

    /// Counts a claim. True if the caller must tell the owner that the limit was reached.
    pub(crate) fn take_available(&self) -> bool {
        // This and `set_limit` both do a read-modify-write of this word. So the later one in its
        // order sees what the other one did before.
        self.available.fetch_sub(1, AcqRel);
        self.check_limit()
    }

    /// Owner: arms the limit (0 disarms it). True if the limit is already reached; then
    /// [`take_limit_reached`](Self::take_limit_reached) returns true as well.
    pub(crate) fn set_limit(&self, value: u32) -> bool {
        let armed = (self.limit.load(Relaxed) >> limit::ARMED_SHIFT).wrapping_add(1);
        let value = u64::from(value).min(limit::VALUE);
        self.limit.store(armed << limit::ARMED_SHIFT | value, Release);
        self.available.fetch_add(0, AcqRel);
        self.check_limit()
    }

    /// The armed limit; 0 if it was reached or never armed.
    pub(crate) fn limit(&self) -> u32 {
        let word = self.limit.load(Relaxed);
        if word & limit::REACHED == 0 { word as u32 } else { 0 }
    }

    fn check_limit(&self) -> bool {
        let word = self.limit.load(Acquire);
        let armed = word & limit::REACHED == 0 && word & limit::VALUE != 0;
        // Load `available` after the limit, not before, so that receives posted before the limit
        // was armed count.
        armed
            && i64::from(self.available()) < (word & limit::VALUE) as i64
            && self.limit.compare_exchange(word, word | limit::REACHED, AcqRel, Relaxed).is_ok()
    }

    /// Owner: whether the limit was reached since the last call. The owner asks after a peer's
    /// notice, and after each death, because the dead peer may have been about to send one.
    pub(crate) fn take_limit_reached(&self) -> bool {
        let word = self.limit.load(Relaxed);
        word & limit::REACHED != 0
            && self
                .limit
                .compare_exchange(word, word & !(limit::REACHED | limit::VALUE), AcqRel, Relaxed)
                .is_ok()
    }

    /// Owner: clears the counters for another queue.
    pub(crate) fn reset(&self) {
        self.hint.store(0, Relaxed);
        self.available.store(0, Relaxed);
        self.limit.store(0, Relaxed);
    }
}
