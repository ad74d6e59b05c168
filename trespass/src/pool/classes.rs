//! The sizes that blocks come in, and the two kinds of memory that they are carved out of.
//!
//! Slots are for frames: sent, and received into. They are many and short-lived, so each thread keeps some. The staged classes are
//! what a peer READs and is READ into. 64 KiB is the least that a rendezvous pays for, and 1 MiB the piece of a READ, so that
//! a larger class would never be asked for (who has more to send lends several, or memory of his own); 256 KiB, in between, is where copying and transfer overlap well. Steps of four waste
//! no more than three quarters of a block, where steps of sixteen would waste almost all.
//!
//! A peer that was told a key can read all that the key is for. So what holds what other peers have sent, slots and all that is
//! received into, lies in memory that no peer can read, and staged blocks that are sent from lie elsewhere.
//!
//! What is sent from and what is received into are never of one chunk: each side has its own classes, so that neither can take, or cut
//! up, what the other needs.

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

/// How many sizes of blocks there are.
pub(super) const SIZES: usize = 1 + STAGED.len();

/// How many classes there are: all sizes, for either side.
pub(super) const CLASSES: usize = 2 * SIZES;

/// What has a part of the pool of its own: slots and staged blocks of either side.
pub(super) const GROUPS: usize = 4;

/// The largest block that there is.
pub const LARGEST_BLOCK: usize = 1 << 20;

/// What a block is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockUse {
    /// By the program, or for what it sends.
    Sending,
    /// For what arrives.
    Receiving,
}

/// A class, by the order of sizes: first those that are sent from, then those that are received into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(pub(super) u8);

impl Class {
    /// What prewarmed staged memory is carved into.
    pub(super) const MIDDLE: Self = Self(2);

    #[inline]
    pub(super) fn slot(block_use: BlockUse) -> Self {
        Self(block_use as u8 * SIZES as u8)
    }

    /// Its place among the sizes.
    fn step(self) -> usize {
        usize::from(self.0) % SIZES
    }

    #[inline]
    pub(super) fn block_use(self) -> BlockUse {
        if usize::from(self.0) < SIZES { BlockUse::Sending } else { BlockUse::Receiving }
    }

    #[inline]
    pub(super) fn is_slot(self) -> bool {
        self.step() == 0
    }

    pub(super) fn size(self, slot_size: usize) -> usize {
        match self.step() {
            0 => slot_size,
            n => STAGED[n - 1],
        }
    }

    /// The staged class that has room for so much.
    pub(super) fn staged(size: usize, block_use: BlockUse) -> Option<Self> {
        STAGED
            .iter()
            .position(|&staged| size <= staged)
            .map(|at| Self(Self::slot(block_use).0 + at as u8 + 1))
    }

    pub(super) fn kind(self) -> RegistrationKind {
        if self.is_slot() || self.block_use() == BlockUse::Receiving {
            RegistrationKind::Private
        } else {
            RegistrationKind::PeerReadable
        }
    }

    /// Whose part of the pool it is of.
    pub(super) fn group(self) -> usize {
        2 * self.block_use() as usize + usize::from(!self.is_slot())
    }

    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    /// This class, and those that can stand in for it: larger ones of the same group.
    pub(super) fn and_larger(self) -> impl Iterator<Item = Self> {
        let of_its_side = Self::slot(self.block_use()).0 + SIZES as u8;
        let end = if self.is_slot() { self.0 + 1 } else { of_its_side };
        (self.0..end).map(Self)
    }
}

/// What a chunk is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegistrationKind {
    /// The device writes.
    Private,
    /// The device writes, and a peer may read.
    PeerReadable,
}
