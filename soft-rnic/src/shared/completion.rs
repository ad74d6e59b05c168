//! The shared entry of a completion queue: ready bits, the arming, and the count that detects an
//! overrun.

use core::num::NonZero;

use crate::sync::{
    AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release, SeqCst, fence, fence_after_change,
};

/// Words of ready bits. A queue pair's bit is its source number modulo the number of bits, so that
/// several queue pairs may share a bit.
pub(crate) const READY_WORDS: usize = if cfg!(loom) { 1 } else { 64 };

/// Which completions the owner wants a notification for, as in `ibv_req_notify_cq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Armed {
    No = 0,
    Any = 1,
    Solicited = 2,
}

/// The entry of a completion queue.
///
/// Fields that are rarely written, fields that peers write, and fields that the owner writes lie in
/// separate cache lines. So a line moves to another processor only when it has new content.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct CqEntry {
    /// How many unpolled completions the queue has room for; [`UNLIMITED`] if its sources cannot
    /// fill it.
    capacity: AtomicU32,
    armed: AtomicU32,
    /// The note of a peer that wakes the owner; see [`NOTED`].
    fired: AtomicU32,
    overrun: AtomicU32,
    /// The number of the completion channel whose descriptor peers may write to; 0 if they must
    /// ring the doorbell.
    channel: AtomicU64,
    unused: [AtomicU64; 13],
    /// Receive completions that peers have announced since the reset. Not counted while the
    /// capacity is [`UNLIMITED`].
    announced: AtomicU64,
    unused_beside_announced: [AtomicU64; 15],
    /// Announced completions that the owner has polled. Only the owner writes this.
    polled: AtomicU64,
    unused_beside_polled: [AtomicU64; 15],
    ready: [AtomicU64; READY_WORDS],
}

/// The capacity of a queue that all its sources together cannot fill.
const UNLIMITED: u32 = u32::MAX;

/// A peer has taken the arming and has not told the owner yet. That peer may be stopped before it
/// does, so every peer that arrives in this state tells the owner too.
const TAKEN: u32 = 3;

/// Bits of [`CqEntry::fired`]: a peer is about to wake the owner; it has written to the descriptor of
/// the owner's channel. The bits above count the notes that the owner has taken, so that a peer that
/// was stopped does not mark a later peer's note.
const NOTED: u32 = 1;
const WOKEN: u32 = 2;
const NOTE: u32 = NOTED | WOKEN;

/// The next value of [`CqEntry::fired`] without a note.
fn without_note(fired: u32) -> u32 {
    (fired | NOTE).wrapping_add(1)
}

/// How often the owner tries to take a note. A peer changes its note once, from `NOTED` to `WOKEN`;
/// only a peer that writes nonsense changes it more often.
const MOST_TRIES: usize = 8;

/// A note that this peer has left, for [`CqEntry::woken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerNote(u32);

/// What a peer finds that has to wake the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fired {
    /// This peer is the first.
    First(PeerNote),
    /// Another peer is about to wake the owner, but may be stopped before it does.
    Again,
    /// The descriptor of the owner's channel is readable for this queue, and the owner looks for
    /// completions after it has read there.
    Woken,
}

/// The follow-up work after an announcement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announced {
    /// The owner sleeps: call [`CqEntry::fire`].
    pub(crate) wake: bool,
    /// The queue has overflowed: notify the owner. Set for one announcement only.
    pub(crate) overrun: bool,
}

impl CqEntry {
    /// A queue without completions, all zero like a new segment.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self {
            announced: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            capacity: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            fired: AtomicU32::new(0),
            overrun: AtomicU32::new(0),
            channel: AtomicU64::new(0),
            unused: core::array::from_fn(|_| AtomicU64::new(0)),
            unused_beside_announced: core::array::from_fn(|_| AtomicU64::new(0)),
            unused_beside_polled: core::array::from_fn(|_| AtomicU64::new(0)),
            ready: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Owner: empties the queue and disarms it.
    pub(crate) fn reset(&self, capacity: Option<u32>) {
        self.announced.store(0, Relaxed);
        self.polled.store(0, Relaxed);
        self.set_capacity(capacity);
        self.armed.store(Armed::No as u32, Relaxed);
        // A peer of the former queue may still mark its note.
        self.fired.store(without_note(self.fired.load(Relaxed)), Relaxed);
        self.overrun.store(0, Relaxed);
        self.channel.store(0, Relaxed);
        for word in &self.ready {
            word.store(0, Relaxed);
        }
    }

    /// Owner: changes the capacity; `None` if the completions can never exceed it, so that nobody
    /// counts them.
    ///
    /// Completions that arrived uncounted stay uncounted. If the program makes a queue too small
    /// while it is in use, the count is too low by their number.
    pub(crate) fn set_capacity(&self, capacity: Option<u32>) {
        self.capacity.store(capacity.unwrap_or(UNLIMITED), Relaxed);
    }

    /// Peer: whether completions are counted.
    #[inline]
    fn counts(&self) -> bool {
        self.capacity.load(Relaxed) != UNLIMITED
    }

    /// Peer: announces that a slot of the queue pair with this source number is done.
    ///
    /// A fence stands between the change of the slot's state and the load of the ready bit. Another
    /// fence stands in the owner, between taking the bit and looking at the slot. So when a peer
    /// finds the bit set and leaves it, the owner has yet to take the bit, and looks at the slot
    /// afterwards.
    ///
    /// A second fence of the peer stands between the bit and the load of `armed`. The caller's last
    /// change was a read-modify-write, which made the slot done or put its number into a ring.
    /// Where a read-modify-write is a full fence, no further instruction is needed.
    #[inline]
    pub(crate) fn announce(&self, source: u32, solicited: bool) -> Announced {
        let bit = source as usize % (READY_WORDS * 64);
        let (word, bit) = (&self.ready[bit / 64], 1 << (bit % 64));
        fence_after_change();
        // Setting a set bit would take the cache line from an owner that polls.
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, AcqRel);
        }
        let overrun = self.counts() && self.count();
        fence_after_change();
        Announced { wake: self.disarm(solicited), overrun: overrun && self.overrun.swap(1, Relaxed) == 0 }
    }

    /// Peer: counts a completion; true if the queue has no room for it.
    #[cold]
    fn count(&self) -> bool {
        let announced = self.announced.fetch_add(1, Release).wrapping_add(1);
        // Negative if the owner has already polled completions that their peers have not counted,
        // because they are slow or dead.
        let waiting = announced.wrapping_sub(self.polled.load(Relaxed)) as i64;
        waiting > i64::from(self.capacity.load(Relaxed))
    }

    /// Asks the owner to look at a source that has no new completion, because a completion that was
    /// held back may now proceed. True if the owner sleeps and must be woken.
    pub(crate) fn nudge(&self, source: u32) -> bool {
        self.put_back(source);
        fence(SeqCst);
        self.disarm(true)
    }

    /// Takes the arming if it covers this completion. True for the peer that takes it, and for each
    /// later peer until [`told`](Self::told) is called.
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

    /// Records that the owner was notified. If the owner has armed the queue again since, it stays
    /// armed.
    #[inline]
    pub(crate) fn told(&self) {
        let _ = self.armed.compare_exchange(TAKEN, Armed::No as u32, AcqRel, Relaxed);
    }

    /// Owner: requests a notification for the next completion. If the owner polls after this, it
    /// misses none.
    ///
    /// An owner that waits for any completion keeps doing so when it asks for solicited ones. If a
    /// peer takes the arming at this moment, its wake-up answers both requests.
    pub(crate) fn arm(&self, armed: Armed) {
        if armed != Armed::Solicited || self.armed.load(Relaxed) != Armed::Any as u32 {
            // Whoever takes the arming sees what the owner noted privately before.
            self.armed.store(armed as u32, Release);
        }
        fence(SeqCst);
    }

    /// Owner: whether the queue is armed and no peer has taken the arming.
    ///
    /// A peer may take the arming and die before it tells the owner. So after a death, the owner
    /// treats a queue that was armed and is armed no longer as fired.
    pub(crate) fn is_armed(&self) -> bool {
        ![Armed::No as u32, TAKEN].contains(&self.armed.load(Relaxed))
    }

    /// Owner: whether any of the first `words` words has a bit set.
    #[inline]
    pub(crate) fn has_news(&self, words: usize) -> bool {
        self.ready[..words.min(READY_WORDS)].iter().any(|word| word.load(Relaxed) != 0)
    }

    /// Owner: takes the bits of one word. The owner looks at the sources after this call.
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

    /// Owner: sets a bit again, because it could not look at all queue pairs that share it.
    pub(crate) fn put_back(&self, source: u32) {
        let bit = source as usize % (READY_WORDS * 64);
        self.ready[bit / 64].fetch_or(1 << (bit % 64), AcqRel);
    }

    /// Owner: stores how many completions it has polled. Call it before the program sees them,
    /// because the program may then let more completions come.
    #[inline]
    pub(crate) fn note_polled(&self, polled: u64) {
        self.polled.store(polled, Relaxed);
    }

    /// Owner: counts `count` announced completions as polled, because they never will be.
    pub(crate) fn forget(&self, count: u64) {
        self.polled.fetch_add(count, Relaxed);
    }

    /// Owner: the number of completions announced since the reset.
    pub(crate) fn announced(&self) -> u64 {
        self.announced.load(Acquire)
    }

    /// Owner: how many announced completions wait to be polled; 0 if completions are not counted.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        let waiting = self.announced.load(Relaxed).wrapping_sub(self.polled.load(Relaxed)) as i64;
        usize::try_from(waiting).unwrap_or(0)
    }

    /// Owner: sets the number of the channel whose descriptor wakes the program; `None` if only the
    /// service thread may. Peers see it after the next [`arm`](Self::arm).
    pub(crate) fn set_channel(&self, number: Option<NonZero<u64>>) {
        self.channel.store(number.map_or(0, NonZero::get), Relaxed);
    }

    /// Peer that has taken the arming: the channel of the owner.
    pub(crate) fn channel(&self) -> Option<NonZero<u64>> {
        NonZero::new(self.channel.load(Relaxed))
    }

    /// Peer: leaves a note that the owner must be woken. The first peer wakes it through its channel
    /// and calls [`woken`](Self::woken), or rings the service thread. A later one rings, too, unless
    /// the owner is awake. Who rings calls [`told`](Self::told).
    ///
    /// A peer may be stopped or die between the note and the ring, so the owner looks for notes
    /// after each death.
    pub(crate) fn fire(&self) -> Fired {
        // Changing a marked note would take the cache line from other peers.
        if self.fired.load(Acquire) & WOKEN != 0 {
            return Fired::Woken;
        }
        let before = self.fired.fetch_or(NOTED, AcqRel);
        match before & NOTE {
            0 => Fired::First(PeerNote(before | NOTED)),
            NOTED => Fired::Again,
            _ => Fired::Woken,
        }
    }

    /// Peer: has written to the descriptor of the owner's channel.
    pub(crate) fn woken(&self, note: PeerNote) {
        let _ = self.fired.compare_exchange(note.0, note.0 | WOKEN, Release, Relaxed);
    }

    /// Owner: whether a peer has left a note.
    #[inline]
    pub(crate) fn is_fired(&self) -> bool {
        self.fired.load(Relaxed) & NOTE != 0
    }

    /// Owner: takes the note of a peer that has written to the channel.
    pub(crate) fn take_woken(&self) -> bool {
        self.take_note(|note| note & WOKEN != 0)
    }

    /// Owner: takes the note of a peer that has not marked it. That peer may still write to the
    /// channel.
    pub(crate) fn take_noted(&self) -> bool {
        self.take_note(|note| note == NOTED)
    }

    fn take_note(&self, is_wanted: impl Fn(u32) -> bool) -> bool {
        let mut found = self.fired.load(Relaxed);
        for _ in 0..MOST_TRIES {
            if !is_wanted(found & NOTE) {
                return false;
            }
            match self.fired.compare_exchange(found, without_note(found), AcqRel, Relaxed) {
                Ok(_) => {
                    // Before the program looks for the completions of peers that found `WOKEN`.
                    fence_after_change();
                    return true;
                }
                Err(other) => found = other,
            }
        }
        false
    }

    /// Owner: whether a peer found the queue full.
    pub(crate) fn is_overrun(&self) -> bool {
        self.overrun.load(Acquire) != 0
    }
}
