//! Lanes: how many transfers this process executes at a time, and the locks that they hold meanwhile.

use std::sync::Arc;

use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};

use crate::shared::hazard::LANES;

/// A lock on a line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane(SpinMutex<(), Yield>);

/// The lanes of a process. They are private: no peer can hold or break one.
#[derive(Debug)]
pub(crate) struct Lanes(Box<[Lane]>);

/// The right to execute a transfer in a lane: to publish its hazards, and to use what peers share.
#[derive(Debug)]
pub(crate) struct LaneGuard<'a> {
    lanes: &'a Lanes,
    index: usize,
    _lock: SpinMutexGuard<'a, (), Yield>,
}

impl Lanes {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self((0..LANES).map(|_| Lane::default()).collect()))
    }

    /// Waits for a lane. Any number is one.
    #[inline]
    pub(crate) fn lock(&self, number: usize) -> LaneGuard<'_> {
        let index = number % LANES;
        let lock = self.0[index].0.lock();
        LaneGuard { lanes: self, index, _lock: lock }
    }

    /// The lane, if nobody has it.
    pub(crate) fn try_lock(&self, number: usize) -> Option<LaneGuard<'_>> {
        let index = number % LANES;
        let lock = self.0[index].0.try_lock()?;
        Some(LaneGuard { lanes: self, index, _lock: lock })
    }
}

impl LaneGuard<'_> {
    /// The lane's number, below [`LANES`].
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Whether the lane is one of these.
    pub(crate) fn is_of(&self, lanes: &Lanes) -> bool {
        core::ptr::eq(self.lanes, lanes)
    }
}

/// Waits, without blocking, until each lane has been free once: then nobody still uses what could be found before.
#[derive(Debug)]
pub(crate) struct Quiescence {
    waiting_for: u64,
}

impl Quiescence {
    /// To be made after the thing cannot be found any more.
    pub(crate) fn new() -> Self {
        const { assert!(LANES <= 64) };
        Self { waiting_for: u64::MAX >> (64 - LANES) }
    }

    /// Looks at the lanes that were not free yet. True once all have been.
    pub(crate) fn is_reached(&mut self, lanes: &Lanes) -> bool {
        for index in 0..LANES {
            if self.waiting_for >> index & 1 != 0 && lanes.try_lock(index).is_some() {
                self.waiting_for &= !(1 << index);
            }
        }
        self.waiting_for == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn quiescence_needs_each_lane_once() {
        let lanes = Lanes::new();
        let mut quiescence = Quiescence::new();
        let first = lanes.lock(LANES);
        assert_eq!(first.index(), 0);
        assert!(lanes.try_lock(0).is_none());
        assert!(!quiescence.is_reached(&lanes));
        let second = lanes.lock(1);
        drop(first);
        // The second lane was seen free before: that it is taken again does not matter.
        assert!(quiescence.is_reached(&lanes));
        assert!(second.is_of(&lanes) && !second.is_of(&Lanes::new()));
    }
}
