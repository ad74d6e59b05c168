//! A fuzz harness for the segment: arbitrary contents, and every accessor called with arbitrary
//! arguments.
//!
//! Then the executor sends requests to a peer that has this segment (`engine/hostile.rs`).
//!
//! The properties: no access outside the segment, no panic, and no endless loop. The harness
//! asserts the first for every pointer and slice that an accessor returns. Miri and the fuzzer's
//! sanitizer check it too, because the harness reads all of it.
//!
//! The input is a list of 16-byte steps, little-endian: an action and a kind (8 bits each), an
//! index (16), a number (32), a word (64). `soft-rnic/fuzz` feeds it from libFuzzer. The tests here
//! feed its corpus and seeded random bytes.

use core::ptr::{self, NonNull};

use super::completion::{Armed, Fired, READY_WORDS};
use super::entry::{QpDescriptor, QpEntry, SlotsDescriptor, SrqEntry};
use super::generation::GenerationWriter;
use super::hazard::{Hazard, HazardSlot};
use super::part::{Part, PartLayout};
use super::progress::{QpProgress, SrqCounters, notice};
use super::segment::{
    COMPLETION_QUEUES, COUNTERS, MAX_SGE, MEMBERS, OWNED, PROGRESS, QUEUE_PAIRS, REGIONS, RecvSlot, SHARED,
    SHARED_QUEUES, Segment, ring_bytes,
};
use super::slot::{Delivery, EAGER, RecvCapacity};
use crate::engine::hostile::{HostilePeer, HostileSends, send_into};
use crate::platform::copy;

/// The largest number of steps of one input.
const STEPS: usize = 256;
/// Queue pairs of the segment to which the executor sends.
const TARGETS: usize = if cfg!(miri) { 1 } else { 9 };
/// How many words of a ring are read, because an input may describe a ring that fills the heap.
const RING_WORDS: usize = 64;

/// One step of an input.
#[derive(Clone, Copy, Debug)]
struct HostileInput {
    what: u8,
    kind: u8,
    index: u16,
    number: u32,
    word: u64,
}

impl HostileInput {
    fn all(data: &[u8]) -> impl Iterator<Item = Self> + Clone {
        data.as_chunks::<16>().0.iter().take(STEPS).map(|bytes| {
            let all = u128::from_le_bytes(*bytes);
            Self {
                what: all as u8,
                kind: (all >> 8) as u8,
                index: (all >> 16) as u16,
                number: (all >> 32) as u32,
                word: (all >> 64) as u64,
            }
        })
    }

    /// The parameters for the executor.
    fn hostile_peer(self) -> HostilePeer {
        let Self { kind, index, number, word, .. } = self;
        HostilePeer { slots: self.slots(), kind, index, number, word }
    }

    /// The descriptor of slots in the heap or at an arbitrary place.
    fn slots(self) -> SlotsDescriptor {
        // What the words of a descriptor can express.
        let anywhere = (self.word % (SlotsDescriptor::UNIT << 32)) / 64 * 64;
        let inside = |layout: &PartLayout| {
            let heap = layout.heap(0);
            heap.start as u64 + self.word % heap.len() as u64 / 64 * 64
        };
        SlotsDescriptor {
            offset: if self.kind & 1 == 0 { inside(&SHARED) } else { anywhere },
            offers: if self.kind & 2 == 0 { inside(&OWNED) } else { anywhere },
            count: self.number,
            entries: if self.kind & 2 == 0 { u32::from(self.index) % 40 } else { self.number >> 8 },
        }
    }
}

/// Runs one input. Panics if an access leaves the segment.
#[cfg(fuzzing)]
pub fn hostile_segment(data: &[u8]) {
    run(data);
}

fn run(data: &[u8]) -> HostileSends {
    let segment = Segment::create().expect("memory for a segment");
    let mut hostile = Hostile { segment: &segment, writer: GenerationWriter::default() };
    for step in HostileInput::all(data) {
        hostile.step(step);
    }
    let hostile_peers: Vec<_> =
        HostileInput::all(data).take(TARGETS).map(HostileInput::hostile_peer).collect();
    // While the executor sends, the peer goes on to write the rest of the input.
    let mut rest = HostileInput::all(data).skip(TARGETS).cycle();
    send_into(segment, &hostile_peers, |segment| {
        if let Some(step) = rest.next() {
            Hostile { segment, writer: GenerationWriter::default() }.step(step);
        }
    })
}

struct Hostile<'a> {
    segment: &'a Segment,
    writer: GenerationWriter,
}

impl Hostile<'_> {
    fn step(&mut self, step: HostileInput) {
        match step.what % 12 {
            0 => self.write(step, 1),
            1 => self.write(step, 64),
            2 => self.publish(step),
            3 => self.region(step),
            4 => self.queue_pair(step),
            5 => self.completion_queue(step),
            6 => self.shared_queue(step),
            7 => Self::publish_hazard(step),
            8 => self.slot(&step.slots(), step),
            9 => self.ring(
                step.slots().offset,
                1u32.checked_shl(u32::from(step.index) % 33).unwrap_or(0),
                step,
            ),
            10 => self.ring(step.word, step.number, step),
            _ => self.heap(step),
        }
    }

    /// Asserts that a range lies in the shared part and is aligned.
    fn inside<T>(&self, first: *const T, count: usize) {
        Self::inside_part(self.segment.shared(), first, count);
    }

    /// The same for the owner's part.
    fn inside_owned<T>(&self, first: *const T, count: usize) {
        Self::inside_part(self.segment.owned(), first, count);
    }

    fn inside_part<T>(part: &Part, first: *const T, count: usize) {
        assert!(part.contains(first.addr(), count * size_of::<T>()), "not in the part");
        assert!(first.is_aligned());
    }

    /// Writes a word `times` times, at the place that the kind selects.
    fn write(&self, step: HostileInput, times: usize) {
        let near = usize::from(step.index) * 8;
        let (owned, shared) = (self.segment.owned(), self.segment.shared());
        let (part, at): (&Part, _) = match step.kind % 16 {
            0 => (owned, near % 4096),
            1 => (owned, REGIONS.at + near),
            2 => (owned, QUEUE_PAIRS.at + near),
            3 => (shared, COMPLETION_QUEUES.at + near),
            4 => (owned, SHARED_QUEUES.at + near),
            5 => (shared, PROGRESS.at + 4096 + near),
            6 => (shared, SHARED.heap + near),
            7 => (owned, MEMBERS.at + near),
            8 => (owned, OWNED.heap + near),
            9 => (shared, near % 4096),
            10 => (shared, PROGRESS.at + near),
            11 => (shared, COUNTERS.at + near),
            kind if kind % 2 == 0 => (owned, step.number as usize),
            _ => (shared, step.number as usize),
        };
        let length = if ptr::eq(part, owned) { OWNED.length(1) } else { SHARED.length(1) };
        let at = at % (length - times * 8) / 8 * 8;
        let base = part.level(0).expect("a segment has this level");
        for time in 0..times {
            // SAFETY: `at` was reduced to a multiple of 8 below `length - times * 8`, so each word
            // lies in level 0 and is aligned. Only this thread uses the segment.
            unsafe { base.add(at + time * 8).cast::<u64>().write(step.word) };
        }
    }

    /// Publishes a queue pair and a shared queue with arbitrary but readable descriptors.
    fn publish(&mut self, step: HostileInput) {
        let slots = step.slots();
        let descriptor = QpDescriptor {
            slots,
            srq: step.number,
            ring_words: 1 << (step.index % 32),
            ring_offset: slots.offset,
            recv_cq: step.number,
            source: step.number,
            ..QpDescriptor::default()
        };
        let index = u32::from(step.index) % 4;
        if let Some(entry) = self.segment.queue_pair(index) {
            entry.publish(&mut self.writer, step.kind, &descriptor);
            assert_eq!(
                entry.read().map(|(snapshot, descriptor)| (snapshot.label(), descriptor)),
                Some((step.kind, descriptor))
            );
        }
        if let Some(entry) = self.segment.shared_queue(index) {
            entry.publish(
                &mut self.writer,
                step.kind,
                &super::entry::SrqDescriptor { pd: step.number, slots },
            );
        }
    }

    fn region(&mut self, step: HostileInput) {
        let index = if step.kind & 1 == 0 { u32::from(step.index) } else { step.number };
        let Some(entry) = self.segment.region(index) else { return };
        self.inside_owned(entry, 1);
        let Some((snapshot, descriptor)) = entry.read() else { return };
        assert!(entry.is_current(snapshot));
        if descriptor.contains(step.word, step.number.into()) {
            let offset = step.word - descriptor.iova;
            assert!(offset.checked_add(step.number.into()).is_some_and(|end| end <= descriptor.length));
        }
        entry.withdraw(&mut self.writer);
        assert!(!entry.is_current(snapshot) && entry.read().is_none());
    }

    fn queue_pair(&mut self, step: HostileInput) {
        let index = if step.kind & 1 == 0 { u32::from(step.index) % 4 } else { step.number };
        let Some(entry) = self.segment.queue_pair(index) else { return };
        self.inside_owned::<QpEntry>(entry, 1);
        let progress = self.segment.progress(index).expect("the tables have the same number of entries");
        self.inside::<QpProgress>(progress, 1);
        progress.set_expected_psn(progress.expected_psn().wrapping_add(1));
        assert!(progress.expected_psn() < 1 << 24);
        progress.leave_notice(notice::ESTABLISHED);
        assert_ne!(progress.take_notices(), 0);
        let Some((snapshot, descriptor)) = entry.read() else { return };
        let cursor = progress.cursor();
        self.slot(&descriptor.slots, HostileInput { number: cursor, ..step });
        progress.set_cursor(cursor.wrapping_add(1));
        self.ring(descriptor.ring_offset, descriptor.ring_words, step);
        self.completion_queue(HostileInput { kind: 1, number: descriptor.recv_cq, ..step });
        if let Some(srq) = descriptor.srq.checked_sub(1) {
            self.shared_queue(HostileInput { kind: 1, number: srq, ..step });
        }
        // The accesses to the slots cannot have changed the generation, which lies in the other part.
        assert!(entry.is_current(snapshot));
    }

    fn completion_queue(&self, step: HostileInput) {
        let index = if step.kind & 1 == 0 { u32::from(step.index) % 4 } else { step.number };
        let Some(entry) = self.segment.completion_queue(index) else { return };
        self.inside(entry, 1);
        entry.announce(step.number, step.word & 1 != 0);
        entry.put_back(step.number);
        assert!(entry.has_news(usize::MAX));
        entry.take(step.index.into());
        for word in 0..READY_WORDS {
            entry.take(word);
        }
        entry.note_polled(step.word);
        entry.set_capacity(Some(step.number));
        entry.arm(if step.word & 2 != 0 { Armed::Any } else { Armed::Solicited });
        entry.disarm(true);
        let _ = (entry.is_armed(), entry.is_overrun());
        if let Fired::First(note) = entry.fire() {
            entry.woken(note);
        }
        assert!(entry.is_fired() && (entry.take_noted() || entry.take_woken()) && !entry.is_fired());
        if step.word & 4 != 0 {
            entry.reset(Some(step.number));
            assert!(!entry.has_news(usize::MAX));
        }
    }

    fn shared_queue(&self, step: HostileInput) {
        let index = if step.kind & 1 == 0 { u32::from(step.index) % 4 } else { step.number };
        let Some(entry) = self.segment.shared_queue(index) else { return };
        self.inside_owned::<SrqEntry>(entry, 1);
        let counters = self.segment.counters(index).expect("the tables have the same number of entries");
        self.inside::<SrqCounters>(counters, 1);
        counters.add_available(step.number);
        counters.has_available();
        counters.take_available();
        counters.set_limit(step.word as u32);
        counters.limit();
        counters.take_limit_reached();
        assert!(!counters.take_limit_reached(), "an event is taken once");
        if let Some((_, descriptor)) = entry.read() {
            self.slot(&descriptor.slots, HostileInput { number: counters.hint(), ..step });
            counters.set_hint(step.number);
        }
        if step.word & 8 != 0 {
            counters.reset();
        }
    }

    fn publish_hazard(step: HostileInput) {
        let cell = HazardSlot::holding(step.word);
        if let Some(hazard) = cell.get() {
            let _ = (hazard.touches_region(step.number), hazard.uses_queue_pair(step.number));
        }
        let hazard = Hazard::new(step.number, step.word as u32);
        cell.publish(hazard);
        assert_eq!(cell.get(), Some(hazard));
        assert!(
            hazard.uses_queue_pair(step.number & 0xff_ffff)
                && hazard.touches_region(step.word as u32 & 0xff_ffff)
        );
        cell.clear();
        assert_eq!(cell.get(), None);
    }

    fn slot(&self, descriptor: &SlotsDescriptor, step: HostileInput) {
        let index = if step.kind & 4 == 0 {
            step.number.checked_rem(descriptor.count).unwrap_or(0)
        } else {
            step.number
        };
        let Some(slots) = self.segment.slots(descriptor) else { return };
        let (slot, offer) = (self.segment.slot(&slots, index), self.segment.offer(&slots, index));
        // The segment may not have the level.
        let (Some(slot), Some(offer)) = (slot, offer) else { return };
        let RecvSlot { header, eager, source } = slot;
        assert!(index < descriptor.count && offer.entries.len() <= MAX_SGE);
        self.inside(header, 1);
        self.inside_owned(offer.header, 1);
        self.inside_owned(offer.entries.as_ptr(), offer.entries.len());
        self.inside(source, 1);
        self.inside(eager.as_ptr(), EAGER);
        for (layout, offset) in [(&SHARED, descriptor.offset), (&OWNED, descriptor.offers)] {
            assert!(layout.in_heap(offset, 1).is_some(), "slots and offers lie behind the tables");
        }
        let mut sum = 0;
        for entry in offer.entries.iter().chain([&header.first]) {
            let (address, length, lkey) = entry.load();
            sum ^= address ^ u64::from(length ^ lkey);
        }
        let mut bytes = [sum as u8; EAGER];
        self.touch(eager, &mut bytes);
        let _ = (header.holder(), header.delivery(), header.room());
        if let Some(claim) = header.claim(step.index) {
            assert!(header.take_back() || header.unclaim(claim), "a claimed slot is not taken back");
        }
        if let Some(claim) = header.claim(step.index) {
            // Only what the owner makes is an offer.
            offer.header.withdraw();
            assert_eq!(offer.header.read(claim), None);
            assert!(header.unclaim(claim));
        }
        if let Some(claim) = header.claim(step.index) {
            assert!(header.finish(claim, &Delivery { byte_len: step.number, ..Delivery::default() }));
            assert_eq!(header.delivery().byte_len, step.number);
        }
        if let Some(posted_state) = header.posted_state() {
            assert!(header.fulfil(
                posted_state,
                step.index,
                &Delivery { byte_len: step.number, ..Delivery::default() }
            ));
            assert!(
                header.is_done() && !header.fulfil(posted_state, step.index, &Delivery::default()),
                "once"
            );
        }
        header.recover(step.index);
        header.take_back();
        header.free();
        header.post(step.number, RecvCapacity { bytes: step.number, entries: step.number });
        assert!(header.take_back());
    }

    /// Copies bytes of the heap out and back in.
    fn touch(&self, at: NonNull<u8>, bytes: &mut [u8]) {
        // SAFETY: the caller has asserted, with `inside`, that the whole range lies in the segment.
        // Only this thread uses the segment.
        unsafe {
            copy::copy_unordered(bytes.as_mut_ptr(), at.as_ptr(), bytes.len());
            copy::copy(at.as_ptr(), bytes.as_mut_ptr(), bytes.len());
        }
    }

    fn ring(&self, offset: u64, words: u32, step: HostileInput) {
        let Some(ring) = self.segment.ring(offset, words) else { return };
        assert!(words.is_power_of_two());
        let begin = self.segment.heap(offset, ring_bytes(words)).expect("a ring lies in the heap");
        self.inside(begin.as_ptr(), ring_bytes(words));
        let mut head = step.word as u32;
        assert!(
            ring.pending(head).take(if cfg!(miri) { 1 } else { RING_WORDS + 1 }).count() <= words as usize
        );
        // Miri checks every word of a ring each time a reference to it is passed on.
        let rounds = if cfg!(miri) && words > 256 { 1 } else { RING_WORDS as u32 };
        for number in 0..rounds {
            ring.push(number);
            ring.pop(&mut head);
        }
        if words as usize <= RING_WORDS {
            ring.reset();
            head = 0;
            assert!((0..words).all(|number| ring.push(number)) && !ring.push(words), "full");
            assert!(
                (0..words).all(|number| ring.pop(&mut head) == Some(number)) && ring.pop(&mut head).is_none()
            );
        }
    }

    fn heap(&self, step: HostileInput) {
        let offset = step.slots().offset;
        let length = if step.kind & 4 == 0 { usize::from(step.index) % 512 } else { step.number as usize };
        let Some(at) = self.segment.heap(offset, length) else { return };
        self.inside(at.as_ptr(), length);
        self.touch(at, &mut vec![0; length.min(512)]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Pseudo-random numbers (SplitMix64).
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = self.0;
            word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ word >> 31
        }

        fn bytes(&mut self, count: usize) -> Vec<u8> {
            (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect()
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes; the random input covers the same with less")]
    fn the_corpus_reaches_nothing_outside() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/hostile_segment");
        let (mut count, mut sent) = (0, HostileSends::default());
        for file in std::fs::read_dir(corpus).expect("the corpus is in the repository") {
            sent += run(&std::fs::read(file.expect("a file").path()).expect("a file that can be read"));
            count += 1;
        }
        assert!(count >= 8 && sent.requests > 20, "only {count} inputs and {sent:?}");
    }

    #[test]
    fn random_input_reaches_nothing_outside() {
        let inputs = if cfg!(miri) { 1 } else { 200 };
        let mut sent = HostileSends::default();
        for seed in 0..inputs {
            sent += run(&Random(seed).bytes(16 * if cfg!(miri) { 64 } else { STEPS }));
        }
        assert!(sent.requests > inputs as usize && (cfg!(miri) || sent.done > 0), "only {sent:?}");
    }

    /// Calls the accessors of each table with garbage in every entry (only in the first entries of
    /// large tables).
    #[test]
    fn garbage_everywhere_is_survived() {
        let segment = Segment::create().expect("memory for a segment");
        let mut random = Random(1);
        let owned =
            [0, REGIONS.at, QUEUE_PAIRS.at, SHARED_QUEUES.at, MEMBERS.at, OWNED.heap, OWNED.length(1)];
        let shared = [0, PROGRESS.at, COMPLETION_QUEUES.at, COUNTERS.at, SHARED.heap, SHARED.length(1)];
        for (part, bounds) in [(segment.owned(), &owned[..]), (segment.shared(), &shared[..])] {
            let base = part.level(0).expect("a segment has this level");
            for pair in bounds.windows(2) {
                let garbage = random.bytes((pair[1] - pair[0]).min(1 << if cfg!(miri) { 10 } else { 16 }));
                let count = garbage.len().min(pair[1] - pair[0]);
                // SAFETY: the loop keeps the range within level 0, and no reference to the segment
                // exists yet.
                unsafe { base.as_ptr().add(pair[0]).copy_from_nonoverlapping(garbage.as_ptr(), count) };
            }
        }
        let mut hostile = Hostile { segment: &segment, writer: GenerationWriter::default() };
        for index in 0..if cfg!(miri) { 2 } else { 1000 } {
            for what in 3..12 {
                let word = random.next();
                let kind = (word >> 8) as u8;
                hostile.step(HostileInput { what, kind: kind & !1, index, number: index.into(), word });
                hostile.step(HostileInput {
                    what,
                    kind,
                    index: word as u16,
                    number: (word >> 32) as u32,
                    word,
                });
            }
        }
        assert!(segment.region(u32::MAX).is_none());
    }
}
