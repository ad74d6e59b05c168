//! The queue pairs whose receives complete here.
//!
//! A source's ready bit is set when it has news, and taken before it is asked. Sources whose numbers agree modulo the
//! number of bits share one. A poll goes on where the last one stopped, so that no source starves another.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use spin::Yield;
use spin::mutex::SpinMutex;

use super::Cqe;
use crate::queue_pair::Qp;
use crate::shared::completion::{CqEntry, READY_WORDS};

const BITS: usize = READY_WORDS * 64;

/// What receives complete at.
pub(super) trait Source {
    /// Hands out at most `room` receive completions; true if there are more.
    fn poll_receives(self: &Arc<Self>, room: usize, sink: &mut impl FnMut(Cqe)) -> bool;
}

impl Source for Qp {
    #[inline]
    fn poll_receives(self: &Arc<Self>, room: usize, sink: &mut impl FnMut(Cqe)) -> bool {
        Self::poll_receives(self, room, sink)
    }
}

/// The sources of a completion queue.
pub(super) struct Sources<S> {
    /// Words of ready bits that sources have.
    words: AtomicUsize,
    /// Bits that were taken and not served yet, of the cursor's word.
    left: AtomicU64,
    /// Completions that were announced and that nobody will poll.
    forgotten: AtomicU64,
    slots: SpinMutex<Slots<S>, Yield>,
}

struct Slots<S> {
    sources: Vec<Option<Arc<S>>>,
    free: VecDeque<u32>,
}

impl<S> Default for Sources<S> {
    fn default() -> Self {
        let slots = Slots { sources: Vec::new(), free: VecDeque::new() };
        Self {
            words: AtomicUsize::new(0),
            left: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            slots: SpinMutex::new(slots),
        }
    }
}

/// Where the last poll stopped; the poller's.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    word: usize,
    /// Receive completions that were polled, ever.
    polled: u64,
}

impl<S: Source> Sources<S> {
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
        drop(slots);
        // The last reference to a queue pair must not go under the lock.
        drop(removed);
    }

    /// A queue pair has dropped completions that were announced. A poll that stores its own count at this moment
    /// adds them the next time.
    pub(super) fn forget(&self, entry: &CqEntry, count: u64) {
        self.forgotten.fetch_add(count, Relaxed);
        entry.forget(count);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.words.load(Relaxed) == 0
    }

    /// Whether a source may have completions.
    #[inline]
    pub(super) fn have_news(&self, entry: &CqEntry) -> bool {
        self.left.load(Relaxed) != 0 || entry.has_news(self.words.load(Relaxed))
    }

    /// Takes up to `room` completions; how many. Under the poll lock.
    pub(super) fn take(
        &self,
        entry: &CqEntry,
        cursor: &mut Cursor,
        room: usize,
        sink: &mut impl FnMut(Cqe),
    ) -> usize {
        if !self.have_news(entry) {
            return 0;
        }
        let slots = self.slots.lock();
        let words = self.words.load(Relaxed);
        let mut bits = self.left.load(Relaxed);
        let mut taken = 0;
        let announced = entry.announced();
        for _ in 0..=words {
            while bits != 0 && taken < room {
                let bit = cursor.word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                taken += slots.serve(entry, bit, room - taken, sink);
            }
            if taken == room || bits != 0 {
                break;
            }
            cursor.word = (cursor.word + 1) % words.max(1);
            bits = entry.take(cursor.word);
        }
        self.left.store(bits, Relaxed);
        cursor.polled = cursor.polled.wrapping_add(taken as u64);
        let mut polled = cursor.polled.wrapping_add(self.forgotten.load(Relaxed));
        if taken < room && bits == 0 && announced.wrapping_sub(polled) as i64 > 0 {
            // All sources are empty: what was announced and is not there has gone with a queue pair or its peer.
            cursor.polled = cursor.polled.wrapping_add(announced.wrapping_sub(polled));
            polled = announced;
        }
        entry.note_polled(polled);
        taken
    }
}

impl<S: Source> Slots<S> {
    /// Asks the sources of a bit. One that has more gets the bit back, behind the others' turn.
    fn serve(&self, entry: &CqEntry, bit: usize, room: usize, sink: &mut impl FnMut(Cqe)) -> usize {
        let mut taken = 0;
        for number in (bit..self.sources.len()).step_by(BITS) {
            let Some(source) = &self.sources[number] else { continue };
            let more = source.poll_receives(room - taken, &mut |cqe| {
                taken += 1;
                sink(cqe);
            });
            if more {
                entry.put_back(number as u32);
            }
        }
        taken
    }
}
