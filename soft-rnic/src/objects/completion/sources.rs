//! Receive completions: the queue pairs whose receives complete at a completion queue.
//!
//! A source's ready bit is set after it has news, and cleared before it is polled. Sources whose
//! numbers agree modulo the number of bits share a bit. A poll continues where the last one
//! stopped, so that no source starves another.
//!
//! If no ready bit is set, the poll looks at the slot where the next message will arrive for the
//! source that had the last one. A message is in its slot before its ready bit is set, so a poller
//! in a conversation with one peer need not wait for the bit.

use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};

use spin::Yield;
use spin::mutex::SpinMutex;

use super::Cqe;
use crate::platform::copy;
use crate::queue_pair::Qp;
use crate::shared::completion::{CqEntry, READY_WORDS};
use crate::shared::segment::EAGER_AT;
use crate::shared::slot::SlotHeader;

const BITS: usize = READY_WORDS * 64;

/// An object that supplies receive completions.
pub(super) trait CompletionSource {
    /// Hands at most `room` receive completions to `sink`.
    fn poll_receives(self: &Arc<Self>, room: usize, sink: &mut impl FnMut(Cqe)) -> SourcePoll;

    /// How many completions wait in it.
    fn waiting(&self) -> usize;
}

/// The result of polling a source.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SourcePoll {
    /// Whether it has more completions.
    pub(crate) more: bool,
    /// The slot in the segment of this process where its next message will arrive, if that is
    /// known.
    pub(crate) next: Option<NonNull<SlotHeader>>,
}

impl CompletionSource for Qp {
    #[inline]
    fn poll_receives(self: &Arc<Self>, room: usize, sink: &mut impl FnMut(Cqe)) -> SourcePoll {
        Self::poll_receives(self, room, sink)
    }

    fn waiting(&self) -> usize {
        self.receives_waiting()
    }
}

/// The sources of a completion queue.
pub(super) struct CompletionSources<S> {
    /// How many words of ready bits the sources use.
    words: AtomicUsize,
    /// Bits of the cursor's word that were taken and not served yet.
    left: AtomicU64,
    /// How many announced completions will never be polled.
    forgotten: AtomicU64,
    /// The slot where the next message of the source `last` will arrive. Null if that source is
    /// gone or unknown.
    watched: AtomicPtr<SlotHeader>,
    slots: SpinMutex<SourceTable<S>, Yield>,
}

struct SourceTable<S> {
    sources: Vec<Option<Arc<S>>>,
    free: VecDeque<u32>,
    /// The source that had the last message, whose slot is watched.
    last: u32,
}

impl<S> Default for CompletionSources<S> {
    fn default() -> Self {
        let slots = SourceTable { sources: Vec::new(), free: VecDeque::new(), last: 0 };
        Self {
            words: AtomicUsize::new(0),
            left: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            watched: AtomicPtr::new(ptr::null_mut()),
            slots: SpinMutex::new(slots),
        }
    }
}

/// The position where the last poll stopped. It belongs to the poller.
#[derive(Debug, Default)]
pub(super) struct SourceCursor {
    word: usize,
    /// The total number of receive completions that were polled.
    polled: u64,
}

impl<S: CompletionSource> CompletionSources<S> {
    pub(super) fn attach(&self, source: &Arc<S>) -> u32 {
        let mut slots = self.slots.lock();
        let slots = &mut *slots;
        let number = slots.free.pop_front().unwrap_or_else(|| {
            slots.sources.push(None);
            slots.sources.len() as u32 - 1
        });
        slots.sources[number as usize] = Some(Arc::clone(source));
        self.words.store(slots.sources.len().div_ceil(64).min(READY_WORDS), Relaxed);
        number
    }

    pub(super) fn detach(&self, source: u32) {
        let mut slots = self.slots.lock();
        let removed = slots.sources.get_mut(source as usize).and_then(Option::take);
        if removed.is_some() {
            slots.free.push_back(source);
        }
        if slots.last == source {
            self.watched.store(ptr::null_mut(), Relaxed);
        }
        drop(slots);
        // Dropped after the lock is released, because this may be the last reference to a queue
        // pair.
        drop(removed);
    }

    /// A queue pair has discarded announced completions. If a poll stores its count at the same
    /// time, the next poll adds these.
    pub(super) fn forget(&self, entry: &CqEntry, count: u64) {
        self.forgotten.fetch_add(count, Relaxed);
        entry.forget(count);
    }

    /// Whether a source may have completions.
    #[inline]
    pub(super) fn have_news(&self, entry: &CqEntry) -> bool {
        self.left.load(Relaxed) != 0 || self.is_watched_done() || entry.has_news(self.words.load(Relaxed))
    }

    #[inline]
    fn is_watched_done(&self) -> bool {
        let watched = NonNull::new(self.watched.load(Relaxed));
        // SAFETY: a slot in the heap of this process's segment, which the completion queue keeps
        // mapped. If the slot's queue pair has gone, other data may lie there. Then the result is
        // only a hint to look for news. All data in the heap are accessed by atomics or raw
        // pointers.
        let done = watched.is_some_and(|header| unsafe { header.as_ref() }.is_done());
        if let (true, Some(header)) = (done, watched) {
            // Fetch the eager bytes early, because they are still in the cache of the processor
            // that wrote them.
            copy::fetch_to_read(header.as_ptr().cast::<u8>().wrapping_add(EAGER_AT), 2);
        }
        done
    }

    /// How many completions wait in all sources.
    pub(super) fn waiting(&self) -> usize {
        let sources: Vec<Arc<S>> = self.slots.lock().sources.iter().flatten().cloned().collect();
        sources.iter().map(|source| source.waiting()).sum()
    }

    /// Takes up to `room` completions and returns how many. `counts`: whether completions are
    /// counted. The caller holds the poll lock.
    #[inline(never)]
    pub(super) fn take(
        &self,
        entry: &CqEntry,
        counts: bool,
        cursor: &mut SourceCursor,
        room: usize,
        sink: &mut impl FnMut(Cqe),
    ) -> usize {
        if !self.have_news(entry) {
            return 0;
        }
        let mut slots = self.slots.lock();
        let words = self.words.load(Relaxed);
        let mut bits = self.left.load(Relaxed);
        let mut taken = 0;
        let announced = if counts { entry.announced() } else { 0 };
        if bits == 0 && !entry.has_news(words) {
            let last = slots.last;
            taken = slots.ask(self, entry, last, room, sink);
        }
        for _ in 0..=words {
            while bits != 0 && taken < room {
                let bit = cursor.word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                taken += slots.serve(self, entry, bit, room - taken, sink);
            }
            if taken == room || bits != 0 {
                break;
            }
            cursor.word = (cursor.word + 1) % words.max(1);
            bits = entry.take(cursor.word);
        }
        self.left.store(bits, Relaxed);
        if !counts {
            return taken;
        }
        cursor.polled = cursor.polled.wrapping_add(taken as u64);
        let mut polled = cursor.polled.wrapping_add(self.forgotten.load(Relaxed));
        let empty = taken < room && bits == 0 && !entry.has_news(words);
        if empty && announced.wrapping_sub(polled) as i64 > 0 {
            // All sources are empty, so announced completions that are missing went with a queue
            // pair or its peer.
            cursor.polled = cursor.polled.wrapping_add(announced.wrapping_sub(polled));
            polled = announced;
        }
        entry.note_polled(polled);
        taken
    }
}

impl<S: CompletionSource> SourceTable<S> {
    /// Polls the sources that share a ready bit.
    fn serve(
        &mut self,
        of: &CompletionSources<S>,
        entry: &CqEntry,
        bit: usize,
        room: usize,
        sink: &mut impl FnMut(Cqe),
    ) -> usize {
        let mut taken = 0;
        for number in (bit..self.sources.len()).step_by(BITS) {
            taken += self.ask(of, entry, number as u32, room - taken, sink);
        }
        taken
    }

    /// Polls a source. If it has more, its bit is set again, to be served after the others.
    #[inline]
    fn ask(
        &mut self,
        of: &CompletionSources<S>,
        entry: &CqEntry,
        number: u32,
        room: usize,
        sink: &mut impl FnMut(Cqe),
    ) -> usize {
        let Some(Some(source)) = self.sources.get(number as usize) else { return 0 };
        let mut taken = 0;
        let polled = source.poll_receives(room, &mut |cqe| {
            taken += 1;
            sink(cqe);
        });
        if polled.more {
            entry.put_back(number);
        }
        if taken > 0 {
            self.last = number;
            of.watched.store(polled.next.map_or(ptr::null_mut(), NonNull::as_ptr), Relaxed);
        }
        taken
    }
}
