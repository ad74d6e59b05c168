//! A completion queue's entry: ready bits, the arming, and the count that detects an overrun.

use crate::sync::{
    AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release, SeqCst, fence, fence_after_change,
};

/// Words of ready bits. A queue pair's source number, modulo the number of bits, is its bit: several may share one.
pub(crate) const READY_WORDS: usize = if cfg!(loom) { 1 } else { 64 };

/// What the owner waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Armed {
    No = 0,
    Any = 1,
    Solicited = 2,
}

/// The entry of a completion queue. What is seldom written, what peers write and what the owner writes are apart, so that
/// a line goes to another processor only when there is something new in it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct CqEntry {
    /// Room that the owner grants to peers' completions; [`UNLIMITED`] if there are never more.
    capacity: AtomicU32,
    armed: AtomicU32,
    /// Whether a notification is under way to the owner's service thread.
    fired: AtomicU32,
    overrun: AtomicU32,
    unused: [AtomicU64; 14],
    /// Receive completions that peers have announced, ever; not counted while there is room for any number.
    announced: AtomicU64,
    unused_beside_announced: [AtomicU64; 15],
    /// Those of them that the owner has polled, by the owner.
    polled: AtomicU64,
    unused_beside_polled: [AtomicU64; 15],
    ready: [AtomicU64; READY_WORDS],
}

/// The capacity of a queue that all its sources together cannot fill.
const UNLIMITED: u32 = u32::MAX;

/// Somebody has taken the arming, and has yet to tell the owner. It may be stopped before it does, so whoever comes meanwhile
/// tells as well.
const TAKEN: u32 = 3;

/// What is to be done after an announcement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announced {
    /// The owner sleeps: tell its service thread, and say so by [`CqEntry::told`].
    pub(crate) wake: bool,
    /// The queue has more completions than it has room for: tell the owner.
    pub(crate) overrun: bool,
}

impl CqEntry {
    /// A queue without news, as zeroed memory is.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self {
            announced: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            capacity: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            fired: AtomicU32::new(0),
            overrun: AtomicU32::new(0),
            unused: core::array::from_fn(|_| AtomicU64::new(0)),
            unused_beside_announced: core::array::from_fn(|_| AtomicU64::new(0)),
            unused_beside_polled: core::array::from_fn(|_| AtomicU64::new(0)),
            ready: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Owner: as new.
    pub(crate) fn reset(&self, capacity: Option<u32>) {
        self.announced.store(0, Relaxed);
        self.polled.store(0, Relaxed);
        self.set_capacity(capacity);
        self.armed.store(Armed::No as u32, Relaxed);
        self.fired.store(0, Relaxed);
        self.overrun.store(0, Relaxed);
        for word in &self.ready {
            word.store(0, Relaxed);
        }
    }

    /// Owner: another capacity; `None` if there are never more completions than there is room for: then nobody counts.
    /// Those that came uncounted stay so: counting that begins later is late by as many, for the queue of a program that makes
    /// it too small while it is in use.
    pub(crate) fn set_capacity(&self, capacity: Option<u32>) {
        self.capacity.store(capacity.unwrap_or(UNLIMITED), Relaxed);
    }

    /// Owner: whether completions are counted.
    #[inline]
    pub(crate) fn counts(&self) -> bool {
        self.capacity.load(Relaxed) != UNLIMITED
    }

    /// Peer: a slot of the queue pair with this source number is done.
    ///
    /// Between the slot's state and the look at the bit stands a fence, and between the taking of the bit and the owner's
    /// look at the slot another: a peer that finds the bit set, and leaves it so, has the owner look after it was taken. A second
    /// fence stands between the bit and the look at `armed`. The caller's last change was a read-modify-write, which made the slot
    /// done (or put its number into a ring): it may serve for both.
    #[inline]
    pub(crate) fn announce(&self, source: u32, solicited: bool) -> Announced {
        let bit = source as usize % (READY_WORDS * 64);
        let (word, bit) = (&self.ready[bit / 64], 1 << (bit % 64));
        fence_after_change();
        // Setting it again would take the line from an owner that polls.
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, AcqRel);
        }
        let overrun = self.counts() && self.count();
        fence_after_change();
        Announced { wake: self.disarm(solicited), overrun: overrun && self.overrun.swap(1, Relaxed) == 0 }
    }

    /// Peer: counts a completion; true if it is one too many.
    #[cold]
    fn count(&self) -> bool {
        let announced = self.announced.fetch_add(1, Release).wrapping_add(1);
        // Below zero if the owner has polled completions whose peers have not come here yet, or have died.
        let waiting = announced.wrapping_sub(self.polled.load(Relaxed)) as i64;
        waiting > i64::from(self.capacity.load(Relaxed))
    }

    /// A source is to be asked, though no completion of it is announced: one that was held up may go on. True if the owner
    /// sleeps, and is to be woken.
    pub(crate) fn nudge(&self, source: u32) -> bool {
        self.put_back(source);
        fence(SeqCst);
        self.disarm(true)
    }

    /// Takes the arming, if this completion is one that was waited for. True for the one of several who gets it, and for
    /// those who come before it has [`told`](Self::told).
    #[inline]
    pub(crate) fn disarm(&self, solicited: bool) -> bool {
        let armed = self.armed.load(Relaxed);
        let wanted = armed == Armed::Any as u32 || (armed == Armed::Solicited as u32 && solicited);
        if !wanted {
            return armed == TAKEN;
        }
        match self.armed.compare_exchange(armed, TAKEN, AcqRel, Relaxed) {
            Ok(_) => true,
            Err(other) => other == TAKEN,
        }
    }

    /// The owner was told, or knows. If it has armed the queue anew meanwhile, it stays armed.
    #[inline]
    pub(crate) fn told(&self) {
        let _ = self.armed.compare_exchange(TAKEN, Armed::No as u32, AcqRel, Relaxed);
    }

    /// Owner: wants to know of the next completion. What is polled after this was not missed.
    ///
    /// Who waits for any completion goes on doing so when it asks for solicited ones. If a peer takes the arming at this
    /// moment, its wake-up answers both requests.
    pub(crate) fn arm(&self, armed: Armed) {
        if armed != Armed::Solicited || self.armed.load(Relaxed) != Armed::Any as u32 {
            self.armed.store(armed as u32, Relaxed);
        }
        fence(SeqCst);
    }

    /// Owner: whether nobody has taken the arming. A peer may take it and die before it tells; so when one has
    /// died, a queue that was armed and is not any more is to be taken for fired.
    pub(crate) fn is_armed(&self) -> bool {
        ![Armed::No as u32, TAKEN].contains(&self.armed.load(Relaxed))
    }

    /// Owner: whether any of the first `words` words has a bit.
    #[inline]
    pub(crate) fn has_news(&self, words: usize) -> bool {
        self.ready[..words.min(READY_WORDS)].iter().any(|word| word.load(Relaxed) != 0)
    }

    /// Owner: takes the bits of one word. The sources are to be looked at after this.
    #[inline]
    pub(crate) fn take(&self, word: usize) -> u64 {
        let word = &self.ready[word % READY_WORDS];
        if word.load(Relaxed) == 0 {
            return 0;
        }
        let bits = word.swap(0, AcqRel);
        fence_after_change();
        bits
    }

    /// Owner: puts a bit back, because not all of its queue pairs could be looked at.
    pub(crate) fn put_back(&self, source: u32) {
        let bit = source as usize % (READY_WORDS * 64);
        self.ready[bit / 64].fetch_or(1 << (bit % 64), AcqRel);
    }

    /// Owner: has polled this many. To be called before the program sees them: it may let more come then.
    #[inline]
    pub(crate) fn note_polled(&self, polled: u64) {
        self.polled.store(polled, Relaxed);
    }

    /// Owner: this many that were announced are never polled.
    pub(crate) fn forget(&self, count: u64) {
        self.polled.fetch_add(count, Relaxed);
    }

    /// Owner: how many were announced, ever.
    pub(crate) fn announced(&self) -> u64 {
        self.announced.load(Acquire)
    }

    /// Owner: how many announced completions wait to be polled; 0 if nobody counts.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        let waiting = self.announced.load(Relaxed).wrapping_sub(self.polled.load(Relaxed)) as i64;
        usize::try_from(waiting).unwrap_or(0)
    }

    /// Peer: leaves a note that the owner is to be woken, and then tells it; true if there was none yet. (Who has left one
    /// may have been stopped before it told.) As a peer may die in between, the owner looks for notes whenever one has died.
    pub(crate) fn fire(&self) -> bool {
        self.fired.swap(1, Release) == 0
    }

    /// Owner: takes the note.
    pub(crate) fn take_fired(&self) -> bool {
        self.fired.load(Relaxed) != 0 && self.fired.swap(0, AcqRel) != 0
    }

    /// Owner: whether peers found the queue full.
    pub(crate) fn is_overrun(&self) -> bool {
        self.overrun.load(Acquire) != 0
    }
}
