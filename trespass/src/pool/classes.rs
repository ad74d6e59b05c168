//! The sizes that blocks come in, and the two kinds of memory that they are carved out of.
//!
//! Slots are for frames: sent, and received into. They are many and short-lived, so each thread keeps some. The staged classes are
//! what a peer READs and is READ into. 64 KiB is the least that a rendezvous pays for, and 1 MiB the piece of a READ, so that
//! a larger class would never be asked for; 256 KiB, in between, is where copying and transfer overlap well. Steps of four waste
//! no more than three quarters of a block, where steps of sixteen would waste almost all.
//!
//! A peer that was told a key can read all that the key is for. So slots, which hold what other peers have sent, lie in memory
//! that no peer can read, and staged blocks lie elsewhere.

/// What memory is made in multiples of: a huge page, and as many blocks of each staged class as fit it without a rest.
pub(super) const CHUNK_UNIT: usize = 2 << 20;

/// The largest chunk of a pool that is not itself huge: what can be registered without holding up connections for long.
pub(super) const LARGE_CHUNK: usize = 16 << 20;

/// An offset in a chunk is a `u32`.
pub(super) const LARGEST_CHUNK: usize = 1 << 30;

pub(super) const SMALLEST_SLOT: usize = 256;
pub(super) const LARGEST_SLOT: usize = 64 << 10;

/// The classes beyond the slots.
const STAGED: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];

/// How many classes there are.
pub(super) const CLASSES: usize = 1 + STAGED.len();

/// The largest block that there is.
pub const LARGEST_BLOCK: usize = 1 << 20;

/// A class, by the order of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(pub(super) u8);

impl Class {
    pub(super) const SLOT: Self = Self(0);
    /// What prewarmed staged memory is carved into.
    pub(super) const MIDDLE: Self = Self(2);

    pub(super) fn size(self, slot_size: usize) -> usize {
        match self.0 {
            0 => slot_size,
            n => STAGED[usize::from(n) - 1],
        }
    }

    /// The staged class that has room for so much.
    pub(super) fn staged(size: usize) -> Option<Self> {
        STAGED.iter().position(|&staged| size <= staged).map(|at| Self(at as u8 + 1))
    }

    pub(super) fn kind(self) -> Kind {
        if self == Self::SLOT { Kind::Slots } else { Kind::Staged }
    }

    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    /// This class, and those that can stand in for it: larger ones of the same kind.
    pub(super) fn and_larger(self) -> impl Iterator<Item = Self> {
        let end = if self == Self::SLOT { 1 } else { CLASSES as u8 };
        (self.0..end).map(Self)
    }
}

/// What a chunk is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The device writes.
    Slots,
    /// The device writes, and a peer may read.
    Staged,
}
