//! Table entries of a segment: descriptors of memory regions, queue pairs and shared receive
//! queues.
//!
//! An entry holds a *descriptor* of its object: plain values that the owner writes while the
//! entry's generation is invalid.

use super::generation::{Generation, GenerationSnapshot, GenerationWriter};
use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};

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

/// Bits of a descriptor's `access` beyond `ibv_access_flags`, whose highest is
/// `IBV_ACCESS_OPTIONAL_RANGE`.
pub(crate) mod kind {
    /// A null region: it has no memory, and its length is ignored.
    pub(crate) const NULL: u32 = 1 << 31;
    /// Only the owner can access the memory: the system copies neither to it nor from it for other
    /// processes.
    pub(crate) const OWNER_ONLY: u32 = 1 << 30;
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

/// The place of a receive queue's slots in the segment. A peer checks it before use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotsDescriptor {
    pub(crate) offset: u64,
    pub(crate) count: u32,
    /// Bytes from one slot to the next.
    pub(crate) stride: u32,
}

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

/// A queue pair, at its index.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct QpEntry {
    guarded: GenerationGuarded<15>,
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
            0,
        ]);
        [
            pair(self.qpn, self.dest_qpn),
            pair(self.pd, self.access),
            small,
            pair(self.qkey, self.srq),
            self.slots.offset,
            pair(self.slots.count, self.slots.stride),
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
        let [qp_type, device, port, path_mtu, min_rnr_timer, max_dest_rd_atomic, link_up, _] =
            words[2].to_le_bytes();
        Self {
            qpn: low(0),
            dest_qpn: high(0),
            pd: low(1),
            access: high(1),
            qp_type,
            device,
            port,
            path_mtu,
            min_rnr_timer,
            max_dest_rd_atomic,
            link_up: link_up != 0,
            qkey: low(3),
            srq: high(3),
            slots: SlotsDescriptor { offset: words[4], count: low(5), stride: high(5) },
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

impl QpEntry {
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
#[repr(C, align(64))]
pub(crate) struct SrqEntry {
    guarded: GenerationGuarded<3>,
    /// Written by peers: a hint where posted slots begin.
    hint: AtomicU32,
    /// Posted receives that nobody has claimed. Each receive is counted before it can be claimed,
    /// and counted out after the claim. So the value is sometimes too high but never too low; each
    /// peer that dies in between leaves it too high by one.
    available: AtomicU32,
    /// The limit word: the owner wants one event when fewer receives are available; see [`limit`].
    limit: AtomicU64,
    unused: [AtomicU64; 2],
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

/// The public part of a shared receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SrqDescriptor {
    pub(crate) pd: u32,
    pub(crate) slots: SlotsDescriptor,
}

impl DescriptorWords<3> for SrqDescriptor {
    fn to_words(&self) -> [u64; 3] {
        [
            u64::from(self.pd),
            self.slots.offset,
            u64::from(self.slots.count) | u64::from(self.slots.stride) << 32,
        ]
    }

    fn from_words([pd, offset, shape]: [u64; 3]) -> Self {
        let slots = SlotsDescriptor { offset, count: shape as u32, stride: (shape >> 32) as u32 };
        Self { pd: pd as u32, slots }
    }
}

descriptor_entry!(SrqEntry, SrqDescriptor, 3);

impl SrqEntry {
    /// An entry without a queue, all zero like a new segment.
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        let [hint, available] = core::array::from_fn(|_| AtomicU32::new(0));
        Self {
            guarded: GenerationGuarded::new(),
            hint,
            available,
            limit: AtomicU64::new(0),
            unused: Default::default(),
        }
    }

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
