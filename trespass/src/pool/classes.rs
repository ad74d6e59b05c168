//! Size classes of blocks, and the two kinds of memory that they are carved out of.
//!
//! Slots hold frames, for sending and receiving. They are many and short-lived, so each thread
//! caches some. The staged classes hold data that a peer READs, and data that READs fetch. 64 KiB
//! is the smallest size for which a rendezvous pays off. 1 MiB is the piece of a READ, so no larger
//! class would be used: a larger message consists of several blocks, or of adopted memory. 256 KiB,
//! in between, lets copying and transfer overlap well. Steps of four waste at most three quarters
//! of a block, where steps of sixteen would waste almost all.
//!
//! A peer that was told a key can read everything that the key covers. Memory that holds other
//! peers' data, which is slots and all receive blocks, therefore lies where no peer can read it,
//! and staged blocks for sending lie elsewhere.
//!
//! Send and receive blocks never share a chunk: each side has separate classes, so that neither can
//! take, or carve up, the memory that the other needs.

/// The unit of memory: a huge page, which holds a whole number of blocks of each staged class.
pub(super) const CHUNK_UNIT: usize = 2 << 20;

/// The largest chunk of a pool of ordinary size, so that its registration does not delay
/// connections for long.
pub(super) const LARGE_CHUNK: usize = 16 << 20;

/// An offset in a chunk is a `u32`.
pub(super) const LARGEST_CHUNK: usize = 1 << 30;

pub(super) const SMALLEST_SLOT: usize = 256;
pub(super) const LARGEST_SLOT: usize = 64 << 10;

/// The classes beyond the slots.
pub(super) const STAGED: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];

/// The number of block sizes.
pub(super) const SIZES: usize = 1 + STAGED.len();

/// The number of classes: all sizes, for either side.
pub(super) const CLASSES: usize = 2 * SIZES;

/// The groups that have a reserved part of the pool: slots and staged blocks of either side.
pub(super) const GROUPS: usize = 4;

/// The largest block in bytes.
pub const LARGEST_BLOCK: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockUse {
    /// By the program, or for sent data.
    Sending,
    /// For received data.
    Receiving,
}

/// A class, in the order of sizes: first those for sending, then those for receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(pub(super) u8);

impl Class {
    /// The class into which prewarmed staged memory is carved.
    pub(super) const MIDDLE: Self = Self(2);

    #[inline]
    pub(super) fn slot(block_use: BlockUse) -> Self {
        Self(block_use as u8 * SIZES as u8)
    }

    /// Its index among the sizes.
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

    /// The smallest staged class with room for `size` bytes.
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

    /// The group that it belongs to.
    pub(super) fn group(self) -> usize {
        2 * self.block_use() as usize + usize::from(!self.is_slot())
    }

    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    /// This class, and the larger ones of the same group, which can replace it.
    pub(super) fn and_larger(self) -> impl Iterator<Item = Self> {
        let of_its_side = Self::slot(self.block_use()).0 + SIZES as u8;
        let end = if self.is_slot() { self.0 + 1 } else { of_its_side };
        (self.0..end).map(Self)
    }
}

/// The access rights of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegistrationKind {
    /// The device writes.
    Private,
    /// The device writes, and a peer may read.
    PeerReadable,
}
