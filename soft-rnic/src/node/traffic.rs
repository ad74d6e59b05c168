//! How much payload has gone to a peer, and by which path.

use core::sync::atomic::Ordering::Relaxed;

use super::lane::LaneGuard;
use crate::shared::mark::LANES;
use crate::status::{Moved, Traffic};
use crate::sync::PlainAtomicU64 as AtomicU64;

/// The path of a message: that of its slowest piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To this process itself.
    Own,
    /// In the receive's slot, which lies in the peer's segment.
    Slot,
    Direct,
    Vm,
    Call,
}

const ROUTES: usize = 5;

/// Messages and bytes by [`Route`], of one lane.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cells([[AtomicU64; 2]; ROUTES]);

/// The counters of a link. A lane has its own, so whoever holds it adds by a load and a store.
#[derive(Debug)]
pub(crate) struct Counters(Box<[Cells]>);

impl Default for Counters {
    fn default() -> Self {
        Self((0..LANES).map(|_| Cells::default()).collect())
    }
}

impl Counters {
    /// Counts a message of so many bytes.
    #[inline]
    pub(crate) fn add(&self, lane: &LaneGuard<'_>, route: Route, bytes: usize) {
        let [messages, moved] = &self.0[lane.index()].0[route as usize];
        messages.store(messages.load(Relaxed).wrapping_add(1), Relaxed);
        moved.store(moved.load(Relaxed).wrapping_add(bytes as u64), Relaxed);
    }

    /// All lanes together, while others may go on counting.
    pub(crate) fn sum(&self) -> Traffic {
        let of = |route: Route| {
            let sum = |which: usize| {
                let cells = self.0.iter().map(|lane| lane.0[route as usize][which].load(Relaxed));
                cells.fold(0, u64::wrapping_add)
            };
            Moved { messages: sum(0), bytes: sum(1) }
        };
        Traffic {
            own: of(Route::Own),
            slot: of(Route::Slot),
            direct: of(Route::Direct),
            vm: of(Route::Vm),
            call: of(Route::Call),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::lane::Lanes;
    use super::*;

    #[test]
    fn lanes_add_up_route_by_route() {
        let (lanes, counters) = (Lanes::new(), Counters::default());
        counters.add(&lanes.lock(0), Route::Vm, 100);
        counters.add(&lanes.lock(1), Route::Vm, 11);
        counters.add(&lanes.lock(LANES - 1), Route::Own, 0);
        let expected = Traffic {
            vm: Moved { messages: 2, bytes: 111 },
            own: Moved { messages: 1, bytes: 0 },
            ..Traffic::default()
        };
        assert_eq!(counters.sum(), expected);
    }
}
