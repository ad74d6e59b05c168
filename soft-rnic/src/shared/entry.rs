//! Table entries of a segment: descriptors of memory regions, queue pairs and shared receive
//! queues.
//!
//! An entry holds a *descriptor* of its object: plain values that the owner writes while the
//! entry's generation is invalid. Entries lie in the part of the segment that peers cannot write.

use super::generation::{Generation, GenerationSnapshot, GenerationWriter};
use crate::sync::{AtomicU64, Relaxed};

/// A descriptor that is stored as `WORDS` words of an entry.
pub(crate) trait DescriptorWords<const WORDS: usize>: Sized {
    fn to_words(&self) -> [u64; WORDS];
    fn from_words(words: [u64; WORDS]) -> Self;
}

/// The words that a generation guards.
#[derive(Debug)]
#[repr(C)]
struct GenerationGuarded<const WORDS: usize> {
    generation: Generation,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> GenerationGuarded<WORDS> {
    fn publish(&self, writer: &mut GenerationWriter, label: u8, descriptor: &impl DescriptorWords<WORDS>) {
        writer.invalidate(&self.generation);
        for (word, value) in self.words.iter().zip(descriptor.to_words()) {
            word.store(value, Relaxed);
        }
        writer.validate(&self.generation, label);
    }

    fn read<C: DescriptorWords<WORDS>>(&self) -> Option<(GenerationSnapshot, C)> {
        let snapshot = self.generation.snapshot()?;
        Some((snapshot, C::from_words(core::array::from_fn(|word| self.words[word].load(Relaxed)))))
    }

    #[cfg(all(test, loom))]
    fn new() -> Self {
        Self { generation: Generation::default(), words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

/// A GID as two words of an entry, in the byte order of the host.
pub(crate) fn gid_words(gid: [u8; 16]) -> [u64; 2] {
    let (low, high) = gid.split_at(8);
    [low, high].map(|half| u64::from_ne_bytes(half.try_into().expect("half a GID is eight bytes")))
}

/// The GID in two words of an entry.
pub(crate) fn gid_of(words: [u64; 2]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&words[0].to_ne_bytes());
    gid[8..].copy_from_slice(&words[1].to_ne_bytes());
    gid
}

/// Defines an entry that holds a descriptor, with `publish`, `withdraw`, `read` and `is_current`.
macro_rules! descriptor_entry {
    ($Entry:ident, $Descriptor:ident, $words:literal) => {
        impl $Entry {
            /// Owner: invalidates the generation, writes the descriptor, validates the generation.
            /// Where transfers may still use the former descriptor, the owner must wait for their
            /// hazards afterwards.
            pub(crate) fn publish(&self, writer: &mut GenerationWriter, label: u8, descriptor: &$Descriptor) {
                self.guarded.publish(writer, label, descriptor);
            }

            /// Owner: invalidates the generation, so that no new transfer uses the descriptor.
            pub(crate) fn withdraw(&self, writer: &mut GenerationWriter) {
                writer.invalidate(&self.guarded.generation);
            }

            /// Peer: reads the descriptor. Its words belong together only if the snapshot is still
            /// [current](Self::is_current) after the peer has published a hazard.
            #[inline]
            pub(crate) fn read(&self) -> Option<(GenerationSnapshot, $Descriptor)> {
                self.guarded.read::<$Descriptor>()
            }

            /// Peer: whether the descriptor has not changed since the snapshot.
            #[allow(dead_code, reason = "a shared queue lives as long as those that use it")]
            #[inline]
            pub(crate) fn is_current(&self, snapshot: GenerationSnapshot) -> bool {
                self.guarded.generation.is_current(snapshot)
            }
        }
    };
}

/// A memory region, at its key's index. The generation's label is the key's tag.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct MrEntry {
    guarded: GenerationGuarded<5>,
    unused: [AtomicU64; 2],
}

/// The word of a region's descriptor that says which queue pairs may use it: a protection domain,
/// or a memory window's scope.
///
/// A window's word differs from every domain's number. So no transfer accepts a window's key for
/// local memory. Most transfers only compare the word with a domain, and only a transfer with a
/// window's key takes the slow path.
pub(crate) mod domain {
    /// Bit of a memory window, which serves remote access only.
    pub(crate) const WINDOW: u32 = 1 << 31;
    /// Bit of a type 2 window: the bits below hold the number of the one queue pair that may use
    /// it. Without this bit they hold a domain.
    pub(crate) const OF_QUEUE_PAIR: u32 = 1 << 30;
    /// Numbers of protection domains are below this.
    pub(crate) const END: u32 = OF_QUEUE_PAIR;

    /// Whether a descriptor allows requests that arrive at this queue pair, which belongs to domain
    /// `pd`.
    #[inline]
    pub(crate) fn serves(descriptor: u32, pd: u32, qpn: u32) -> bool {
        descriptor == pd
            || (descriptor & WINDOW != 0
                && descriptor == window(pd, (descriptor & OF_QUEUE_PAIR != 0).then_some(qpn)))
    }

    /// The word of a window: for one queue pair if `qpn` is given, for the whole domain otherwise.
    pub(crate) fn window(pd: u32, qpn: Option<u32>) -> u32 {
        WINDOW | qpn.map_or(pd, |qpn| OF_QUEUE_PAIR | qpn)
    }
}

/// The public part of a memory region or memory window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MrDescriptor {
    /// The first address by which peers name the region.
    pub(crate) iova: u64,
    pub(crate) length: u64,
    /// The address of `iova` in the owner's address space.
    pub(crate) address: u64,
    /// A protection domain, or a window's word; see [`domain`].
    pub(crate) pd: u32,
    /// `ibv_access_flags`, and the bits of [`kind`].
    pub(crate) access: u32,
    /// The number of the exported memory that contains the region, plus one; 0 if it lies in none.
    pub(crate) export: u32,
    /// How often the number in `export` has been given to other memory.
    pub(crate) export_epoch: u32,
}

/// Bits of a descriptor's `access` beyond `ibv_access_flags`. Registration drops the flags of
/// `IBV_ACCESS_OPTIONAL_RANGE`, so their bits are free.
pub(crate) mod kind {
    /// A null region: it has no memory, and its length is ignored.
    pub(crate) const NULL: u32 = 1 << 31;
    /// Only the owner can access the memory: the system copies neither to it nor from it for other
    /// processes.
    pub(crate) const OWNER_ONLY: u32 = 1 << 30;
    /// The whole address space, of which any part may be unmapped at any time. Even the owner lets
    /// the system copy, which reports an address without memory.
    pub(crate) const IMPLICIT: u32 = 1 << 29;
}

impl MrDescriptor {
    /// Whether the region is a null region.
    pub(crate) fn is_null(&self) -> bool {
        self.access & kind::NULL != 0
    }

    /// Whether the range lies within the region. The node knows where the region begins in its
    /// exported memory.
    pub(crate) fn contains(&self, address: u64, length: u64) -> bool {
        address
            .checked_sub(self.iova)
            .is_some_and(|offset| offset <= self.length && length <= self.length - offset)
    }
}

impl DescriptorWords<5> for MrDescriptor {
    fn to_words(&self) -> [u64; 5] {
        let low_high = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            self.iova,
            self.length,
            self.address,
            low_high(self.pd, self.access),
            low_high(self.export, self.export_epoch),
        ]
    }

    fn from_words([iova, length, address, pd_access, export]: [u64; 5]) -> Self {
        Self {
            iova,
            length,
            address,
            pd: pd_access as u32,
            access: (pd_access >> 32) as u32,
            export: export as u32,
            export_epoch: (export >> 32) as u32,
        }
    }
}

descriptor_entry!(MrEntry, MrDescriptor, 5);

/// The place of a receive queue in the segment. A peer checks it before use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotsDescriptor {
    /// Where the slots lie in the shared part, a multiple of [`UNIT`](Self::UNIT).
    pub(crate) offset: u64,
    /// Where the offers lie in the owner's part, a multiple of [`UNIT`](Self::UNIT).
    pub(crate) offers: u64,
    pub(crate) count: u32,
    /// Scatter entries of an offer.
    pub(crate) entries: u32,
}

impl SlotsDescriptor {
    pub(crate) const UNIT: u64 = 64;

    fn to_words(self) -> [u64; 2] {
        let units = |offset: u64| u64::from((offset / Self::UNIT) as u32);
        [units(self.offset) | units(self.offers) << 32, u64::from(self.count) | u64::from(self.entries) << 32]
    }

    fn from_words([place, shape]: [u64; 2]) -> Self {
        Self {
            offset: u64::from(place as u32) * Self::UNIT,
            offers: (place >> 32) * Self::UNIT,
            count: shape as u32,
            entries: (shape >> 32) as u32,
        }
    }
}

/// A queue pair, at its index.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct QpEntry {
    guarded: GenerationGuarded<15>,
}

/// The public part of a queue pair. The generation's label is its state (`ibv_qp_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QpDescriptor {
    pub(crate) qpn: u32,
    /// The only queue pair from which a connected queue pair accepts requests.
    pub(crate) dest_qpn: u32,
    pub(crate) pd: u32,
    /// `ibv_access_flags` of the queue pair.
    pub(crate) access: u32,
    pub(crate) qp_type: u8,
    pub(crate) device: u8,
    pub(crate) port: u8,
    /// The index of its P_Key, in a table that all ports share.
    pub(crate) pkey_index: u8,
    pub(crate) path_mtu: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) qkey: u32,
    pub(crate) slots: SlotsDescriptor,
    /// The shared receive queue's index plus one; 0 if the queue pair has a private receive queue.
    pub(crate) srq: u32,
    /// Words of the ring of slot numbers, a [`super::ring::IndexRing`]. 0 if messages fill one slot
    /// after the other, so that the queue pair needs no ring.
    pub(crate) ring_words: u32,
    pub(crate) ring_offset: u64,
    pub(crate) recv_cq: u32,
    /// The source number of this queue pair in `recv_cq`.
    pub(crate) source: u32,
    /// How often the queue pair has become ready to receive: each number is another connection.
    pub(crate) connection: u32,
    /// Whether the port is up.
    pub(crate) link_up: bool,
    /// The GID that peers must address; below, the GID of the peer that this queue pair answers.
    pub(crate) local_gid: [u64; 2],
    pub(crate) remote_gid: [u64; 2],
    /// The XRC domain, for XRC target queue pairs and for queue pairs that receive through a shared
    /// queue of that domain.
    pub(crate) xrcd: [u64; 2],
}

impl DescriptorWords<15> for QpDescriptor {
    fn to_words(&self) -> [u64; 15] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let small = u64::from_le_bytes([
            self.qp_type,
            self.device,
            self.port,
            self.path_mtu,
            self.min_rnr_timer,
            self.max_dest_rd_atomic,
            u8::from(self.link_up),
            self.pkey_index,
        ]);
        let [slots, shape] = self.slots.to_words();
        [
            pair(self.qpn, self.dest_qpn),
            pair(self.pd, self.access),
            small,
            pair(self.qkey, self.srq),
            slots,
            shape,
            self.ring_offset,
            pair(self.ring_words, self.recv_cq),
            pair(self.source, self.connection),
            self.local_gid[0],
            self.local_gid[1],
            self.remote_gid[0],
            self.remote_gid[1],
            self.xrcd[0],
            self.xrcd[1],
        ]
    }

    fn from_words(words: [u64; 15]) -> Self {
        let low = |word: usize| words[word] as u32;
        let high = |word: usize| (words[word] >> 32) as u32;
        let [qp_type, device, port, path_mtu, min_rnr_timer, max_dest_rd_atomic, link_up, pkey_index] =
            words[2].to_le_bytes();
        Self {
            qpn: low(0),
            dest_qpn: high(0),
            pd: low(1),
            access: high(1),
            qp_type,
            device,
            port,
            pkey_index,
            path_mtu,
            min_rnr_timer,
            max_dest_rd_atomic,
            link_up: link_up != 0,
            qkey: low(3),
            srq: high(3),
            slots: SlotsDescriptor::from_words([words[4], words[5]]),
            ring_offset: words[6],
            ring_words: low(7),
            recv_cq: high(7),
            source: low(8),
            connection: high(8),
            local_gid: [words[9], words[10]],
            remote_gid: [words[11], words[12]],
            xrcd: [words[13], words[14]],
        }
    }
}

descriptor_entry!(QpEntry, QpDescriptor, 15);

/// A queue pair's membership in a multicast group.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct MembershipEntry {
    guarded: GenerationGuarded<3>,
}

/// The public part of a membership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MembershipDescriptor {
    /// The GID of the group.
    pub(crate) gid: [u64; 2],
    /// The index of the queue pair.
    pub(crate) index: u32,
    pub(crate) qpn: u32,
}

impl DescriptorWords<3> for MembershipDescriptor {
    fn to_words(&self) -> [u64; 3] {
        [self.gid[0], self.gid[1], u64::from(self.index) | u64::from(self.qpn) << 32]
    }

    fn from_words([low, high, queue_pair]: [u64; 3]) -> Self {
        Self { gid: [low, high], index: queue_pair as u32, qpn: (queue_pair >> 32) as u32 }
    }
}

descriptor_entry!(MembershipEntry, MembershipDescriptor, 3);

/// A shared receive queue, at its index.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct SrqEntry {
    guarded: GenerationGuarded<3>,
}

/// The public part of a shared receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SrqDescriptor {
    pub(crate) pd: u32,
    pub(crate) slots: SlotsDescriptor,
}

#[cfg(all(test, loom))]
impl SrqEntry {
    /// An entry without a queue, all zero like a new segment.
    pub(crate) fn new() -> Self {
        Self { guarded: GenerationGuarded::new() }
    }
}

impl DescriptorWords<3> for SrqDescriptor {
    fn to_words(&self) -> [u64; 3] {
        let [slots, shape] = self.slots.to_words();
        [u64::from(self.pd), slots, shape]
    }

    fn from_words([pd, slots, shape]: [u64; 3]) -> Self {
        Self { pd: pd as u32, slots: SlotsDescriptor::from_words([slots, shape]) }
    }
}

descriptor_entry!(SrqEntry, SrqDescriptor, 3);
