//! Sequence words: a [`Generation`] is valid while the words that it guards may be relied on.
//!
//! The owner alone writes a generation and the words. A peer takes a snapshot of the generation,
//! reads the words, publishes a [hazard](super::hazard), and compares the generation with its
//! snapshot. If they are equal, the words belong together, and the owner waits for the hazard before
//! it frees what they describe.

use crate::sync::{Acquire, AtomicU64, PlainAtomicU64, Relaxed, Release, SeqCst, fence};

/// Bit that says that the guarded words are valid.
const VALID: u64 = 1 << 8;
/// One version.
const STEP: u64 = 1 << 9;

/// The word in the segment.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Generation(AtomicU64);

/// A snapshot of a valid generation: a version, and eight bits that the owner attached to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GenerationSnapshot(u64);

impl GenerationSnapshot {
    /// Of no generation: versions begin above it.
    pub(crate) const NONE: Self = Self(0);

    /// As a word, to be told to the owner.
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// A snapshot that a peer tells of. It says nothing until it [`is_current`](Generation::is_current).
    pub(crate) fn from_word(word: u64) -> Self {
        Self(word | VALID)
    }

    /// What the owner attached: a key's tag, a queue pair's state.
    pub(crate) fn label(self) -> u8 {
        self.0 as u8
    }
}

impl Generation {
    /// The value, if it is valid.
    #[inline]
    pub(crate) fn snapshot(&self) -> Option<GenerationSnapshot> {
        let value = self.0.load(Acquire);
        (value & VALID != 0).then_some(GenerationSnapshot(value))
    }

    /// Whether nothing has changed since the [`snapshot`](Self::snapshot). To be called after
    /// [`HazardSlot::publish`](super::hazard::HazardSlot::publish), whose fence orders it behind the hazard and behind the
    /// loads of the guarded words.
    #[inline]
    pub(crate) fn is_current(&self, snapshot: GenerationSnapshot) -> bool {
        self.0.load(Acquire) == snapshot.0
    }
}

/// The owner's end of a generation. The version lives here, not in the segment, where a peer could turn it back.
#[derive(Debug, Default)]
pub(crate) struct GenerationWriter {
    version: u64,
}

/// Versions that were given, to any generation: none comes twice, so a snapshot of an object's former life is never current again, even
/// if its entry has got another writer since.
static VERSIONS: PlainAtomicU64 = PlainAtomicU64::new(0);

impl GenerationWriter {
    /// Invalidates the generation. After this returns, a peer that has not published its hazard yet finds it invalid,
    /// and the hazard of one that has is visible here.
    pub(crate) fn invalidate(&mut self, generation: &Generation) {
        self.version = VERSIONS.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        generation.0.store(self.version, Relaxed);
        fence(SeqCst);
    }

    /// Validates the generation: what was stored before is what it guards. This writer must have invalidated it.
    pub(crate) fn validate(&mut self, generation: &Generation, label: u8) {
        generation.0.store(self.version | VALID | u64::from(label), Release);
    }
}
