//! High-water notifications: a callback runs when a pool is nearly exhausted, and when it has
//! recovered.

use std::sync::Arc;
use std::task::Waker;

use super::chunk::Chunk;
use super::core::PoolCore;

/// A crossing of the pool's high-water mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HighWater {
    /// Whether usage reached the mark; otherwise it fell to a tenth of the maximum below the mark.
    pub above: bool,
    /// Bytes in use.
    pub in_use: usize,
    /// The most bytes that the pool uses.
    pub max: usize,
    /// The number of earlier events: if threads report two at the same time, the greater one is
    /// later.
    pub turn: u64,
}

/// A callback.
pub(super) type Watcher = Arc<dyn Fn(HighWater) + Send + Sync>;

/// The marks, and the current side of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WaterMarks {
    max: usize,
    high: usize,
    low: usize,
    above: bool,
    turn: u64,
}

impl WaterMarks {
    pub(super) fn new(max: usize, per_cent: u8) -> Self {
        let hundredth = |n: usize| (max as u128 * n as u128 / 100) as usize;
        let per_cent = usize::from(per_cent);
        Self {
            max,
            high: hundredth(per_cent).max(1),
            low: hundredth(per_cent.saturating_sub(10)),
            above: false,
            turn: 0,
        }
    }

    /// The event to report, if any. The lower mark itself counts as below, so that a mark of at
    /// most 10 % is left when nothing is in use.
    pub(super) fn cross(&mut self, in_use: usize) -> Option<HighWater> {
        let above = if self.above { in_use > self.low } else { in_use >= self.high };
        if above == self.above {
            return None;
        }
        let crossing = HighWater { above, in_use, max: self.max, turn: self.turn };
        (self.above, self.turn) = (above, self.turn + 1);
        Some(crossing)
    }
}

/// Work that follows a change of the shared part after its lock was released.
#[must_use]
#[derive(Default)]
pub(super) struct DeferredEffects {
    pub(super) wakers: Vec<Waker>,
    pub(super) crossing: Option<HighWater>,
    pub(super) watchers: Vec<Watcher>,
    pub(super) chunks: Vec<Arc<Chunk>>,
    pub(super) self_ref: Option<Arc<PoolCore>>,
}

impl DeferredEffects {
    pub(super) fn run(self) {
        let Self { wakers, crossing, watchers, chunks, self_ref } = self;
        wakers.into_iter().for_each(Waker::wake);
        if let Some(crossing) = crossing {
            watchers.iter().for_each(|watcher| watcher(crossing));
        }
        // Ends registrations, and frees memory.
        drop((chunks, self_ref));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crossing_is_reported_once() {
        let mut marks = WaterMarks::new(1000, 80);
        let mut cross = |in_use| marks.cross(in_use).map(|crossing| (crossing.above, crossing.turn));
        assert_eq!(cross(799), None);
        assert_eq!(cross(800), Some((true, 0)));
        for in_use in [799, 1000, 701, 800] {
            assert_eq!(cross(in_use), None, "{in_use}");
        }
        assert_eq!(cross(700), Some((false, 1)));
        assert_eq!(cross(799), None);
        assert_eq!(cross(1000), Some((true, 2)));
    }

    #[test]
    fn a_low_mark_is_left_when_nothing_is_in_use() {
        let mut marks = WaterMarks::new(1000, 1);
        assert!(marks.cross(10).unwrap().above);
        assert_eq!(marks.cross(1), None);
        assert!(!marks.cross(0).unwrap().above);
    }
}
