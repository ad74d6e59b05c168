//! Sequence words: a [`Generation`] is valid while the words that it guards may be relied on.
//!
//! The owner alone writes a generation and the words. A peer takes a snapshot of the generation,
//! reads the words, publishes a [hazard](super::hazard), and compares the generation with its
//! snapshot. If they are equal, the words belong together, and the owner waits for the hazard
//! before it frees what they describe.

use crate::sync::{Acquire, AtomicU64, PlainAtomicU64, Relaxed, Release, SeqCst, fence};

/// The guarded words are valid.
const VALID: u64 = 1 << 8;
/// The distance between two versions.
const STEP: u64 = 1 << 9;

/// The sequence word, in the segment.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Generation(AtomicU64);

/// A valid generation as a peer saw it: a version, and a label of eight bits that the owner
/// attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GenerationSnapshot(u64);

impl GenerationSnapshot {
    /// A snapshot of no generation: all versions are above it.
    pub(crate) const NONE: Self = Self(0);

    /// The snapshot as a word, to send to the owner.
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// A snapshot that a peer sent. It proves nothing until it
    /// [`is_current`](Generation::is_current).
    pub(crate) fn from_word(word: u64) -> Self {
        Self(word | VALID)
    }

    /// The label that the owner attached: a key's tag or a queue pair's state.
    pub(crate) fn label(self) -> u8 {
        self.0 as u8
    }
}

impl Generation {
    /// A snapshot, if the guarded words are valid.
    #[inline]
    pub(crate) fn snapshot(&self) -> Option<GenerationSnapshot> {
        let value = self.0.load(Acquire);
        (value & VALID != 0).then_some(GenerationSnapshot(value))
    }

    /// Whether nothing has changed since the [`snapshot`](Self::snapshot). Call this after
    /// [`HazardSlot::publish`](super::hazard::HazardSlot::publish), whose fence orders this load
    /// after the hazard and after the loads of the guarded words.
    #[inline]
    pub(crate) fn is_current(&self, snapshot: GenerationSnapshot) -> bool {
        self.0.load(Acquire) == snapshot.0
    }
}

/// The owner's private state of a generation. The version is kept here because a peer could turn it
/// back in the segment.
#[derive(Debug, Default)]
pub(crate) struct GenerationWriter {
    version: u64,
}

/// The last version given to any generation of this process. No version is given twice, so a
/// snapshot of an object's former life never becomes current again, even if another writer has
/// taken over the entry.
static VERSIONS: PlainAtomicU64 = PlainAtomicU64::new(0);

impl GenerationWriter {
    /// Invalidates the generation. After this returns, a peer that has not published its hazard yet
    /// finds the generation invalid. The hazard of every other peer is visible to the caller.
    pub(crate) fn invalidate(&mut self, generation: &Generation) {
        self.version = VERSIONS.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        generation.0.store(self.version, Relaxed);
        fence(SeqCst);
    }

    /// Validates the generation, which then guards all that was stored before. This writer must
    /// have invalidated it.
    pub(crate) fn validate(&mut self, generation: &Generation, label: u8) {
        generation.0.store(self.version | VALID | u64::from(label), Release);
    }
}
