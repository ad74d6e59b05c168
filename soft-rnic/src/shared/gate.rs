//! A version that guards other words: open while they may be relied on, closed while they change.
//!
//! The owner alone writes a gate and what it guards. A peer reads the gate, the guarded words, publishes a
//! [mark](super::mark), and reads the gate again: the same open value says that the words belong together, and
//! that the owner will wait for the mark before it lets go of what they describe.

use crate::sync::{Acquire, AtomicU64, PlainAtomicU64, Relaxed, Release, SeqCst, fence};

/// Bit that says that the guarded words are valid.
const OPEN: u64 = 1 << 8;
/// One version.
const STEP: u64 = 1 << 9;

/// The word in the segment.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Gate(AtomicU64);

/// An open gate's value: a version, and eight bits that the owner attached to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass(u64);

impl Pass {
    /// Of no gate: versions begin above it.
    pub(crate) const NONE: Self = Self(0);

    /// As a word, to be told to the owner.
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// A pass that a peer tells of. It says nothing until it [`holds`](Gate::holds).
    pub(crate) fn from_word(word: u64) -> Self {
        Self(word | OPEN)
    }

    /// What the owner attached: a key's tag, a queue pair's state.
    pub(crate) fn label(self) -> u8 {
        self.0 as u8
    }
}

impl Gate {
    /// The value, if the gate is open.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Pass> {
        let value = self.0.load(Acquire);
        (value & OPEN != 0).then_some(Pass(value))
    }

    /// Whether nothing has changed since [`enter`](Self::enter). To be called after
    /// [`MarkCell::publish`](super::mark::MarkCell::publish), whose fence orders it behind the mark and behind the
    /// loads of the guarded words.
    #[inline]
    pub(crate) fn holds(&self, pass: Pass) -> bool {
        self.0.load(Acquire) == pass.0
    }
}

/// The owner's end of a gate. The version lives here, not in the segment, where a peer could turn it back.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    version: u64,
}

/// Versions that were given, to any gate: none comes twice, so a pass of an object's former life opens nothing, even
/// if its entry has got another keeper since.
static VERSIONS: PlainAtomicU64 = PlainAtomicU64::new(0);

impl Keeper {
    /// Closes the gate. After this returns, a peer that has not published its mark yet will find it closed,
    /// and the mark of one that has is visible here.
    pub(crate) fn close(&mut self, gate: &Gate) {
        self.version = VERSIONS.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        gate.0.store(self.version, Relaxed);
        fence(SeqCst);
    }

    /// Opens the gate: what was stored before is what it guards. The gate must have been closed by this keeper.
    pub(crate) fn open(&mut self, gate: &Gate, label: u8) {
        gate.0.store(self.version | OPEN | u64::from(label), Release);
    }
}
