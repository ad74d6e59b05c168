//! The numbers of the guests in the own segment, and who has which.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use crate::platform::process::Process;
use crate::shared::hazard::LANES;
use crate::shared::segment::{MAX_LINKS, Segment};

const WORDS: usize = MAX_LINKS.div_ceil(64);

/// One number.
#[derive(Debug, Default)]
struct Seat {
    /// Different for each guest that has the number; 0 while nobody has it.
    serial: AtomicU64,
    process: RwLock<Option<Process>>,
}

/// A number that was given to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) link: u16,
    pub(crate) serial: u64,
}

/// All numbers. Number 0 is this process's own.
#[derive(Debug)]
pub(crate) struct Seats {
    seats: Box<[Seat]>,
    /// Which are taken, so that few words need be looked at.
    taken: [AtomicU64; WORDS],
    free: Mutex<(u64, VecDeque<u16>)>,
}

impl Seats {
    pub(crate) fn new() -> Self {
        Self {
            seats: (0..MAX_LINKS).map(|_| Seat::default()).collect(),
            taken: core::array::from_fn(|_| AtomicU64::new(0)),
            free: Mutex::new((0, (1..MAX_LINKS as u16).collect())),
        }
    }

    /// Gives a guest the number that has rested longest.
    pub(crate) fn take(&self, segment: &Segment, process: Option<Process>) -> Option<Taken> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let link = free.1.pop_front()?;
        free.0 += 1;
        let serial = free.0;
        for lane in 0..LANES {
            // What a former guest left.
            segment.hazard_slot(link, lane)?.clear();
        }
        let seat = &self.seats[usize::from(link)];
        *seat.process.write().unwrap_or_else(PoisonError::into_inner) = process;
        seat.serial.store(serial, Ordering::Release);
        self.taken[usize::from(link) / 64].fetch_or(1 << (link % 64), Ordering::SeqCst);
        Some(Taken { link, serial })
    }

    /// The guest is dead, or never came: nobody waits for its hazards any more.
    pub(crate) fn vacate(&self, taken: Taken) {
        self.taken[usize::from(taken.link) / 64].fetch_and(!(1 << (taken.link % 64)), Ordering::SeqCst);
        self.seats[usize::from(taken.link)].serial.store(0, Ordering::Release);
    }

    /// The number may be given to another, now that nothing is left of the guest.
    pub(crate) fn reuse(&self, link: u16) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).1.push_back(link);
    }

    /// The numbers that are taken.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Taken> {
        self.taken.iter().enumerate().flat_map(move |(word, bits)| {
            let mut left = bits.load(Ordering::SeqCst);
            let places = core::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.checked_sub(1)?;
                Some(word as u16 * 64 + bit as u16)
            });
            places.filter_map(move |link| {
                let serial = self.seats.get(usize::from(link))?.serial.load(Ordering::Acquire);
                (serial != 0).then_some(Taken { link, serial })
            })
        })
    }

    /// Whether the same guest still has the number.
    pub(crate) fn is_taken(&self, taken: Taken) -> bool {
        self.seats[usize::from(taken.link)].serial.load(Ordering::Acquire) == taken.serial
    }

    /// The guest's process, if it can be seen.
    pub(crate) fn process(&self, taken: Taken) -> Option<Process> {
        let seat = &self.seats[usize::from(taken.link)];
        let process = *seat.process.read().unwrap_or_else(PoisonError::into_inner);
        process.filter(|_| self.is_taken(taken))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shared::hazard::Hazard;

    #[test]
    fn numbers_rest_and_come_without_marks() {
        let (seats, segment) = (Seats::new(), Segment::create().expect("memory"));
        let first = seats.take(&segment, None).expect("a number");
        assert_eq!(first.link, 1);
        segment.hazard_slot(1, LANES - 1).expect("a hazard").publish(Hazard::new(1, 1));
        assert_eq!(seats.iter().collect::<Vec<_>>(), [first]);
        seats.vacate(first);
        assert!(!seats.is_taken(first) && seats.iter().next().is_none());
        seats.reuse(first.link);
        for _ in 1..MAX_LINKS - 1 {
            assert_ne!(seats.take(&segment, None).expect("a number").link, 1);
        }
        let again = seats.take(&segment, None).expect("the number that rested");
        assert!(again.link == 1 && again != first && !seats.is_taken(first));
        assert_eq!(segment.hazard_slot(1, LANES - 1).expect("a hazard").get(), None);
        assert_eq!(seats.take(&segment, None), None);
        assert_eq!(seats.iter().count(), MAX_LINKS - 1);
    }
}
