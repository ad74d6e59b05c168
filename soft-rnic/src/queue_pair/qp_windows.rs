//! Memory windows of a queue pair: those bound to it, and invalidations by its peer.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Qp;
use crate::objects::memory_window::Mw;

#[derive(Default)]
pub(super) struct QpWindows(Mutex<BoundWindows>);

#[derive(Default)]
struct BoundWindows {
    /// The windows of type 2, by index. They become invalid with the queue pair.
    bound: HashMap<u32, Weak<Mw>>,
    /// Keys that the peer has invalidated, once for each time, while the message that reports it
    /// was not polled. The program may have bound a key again before that poll; the message does
    /// not concern the new binding.
    unreported: VecDeque<u32>,
}

impl QpWindows {
    fn with<R>(&self, act: impl FnOnce(&mut BoundWindows) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Clears the invalidated keys when the queue pair is reset.
    pub(super) fn forget_unreported(&self) {
        self.with(|state| state.unreported.clear());
    }
}

impl Qp {
    /// Records that a window of type 2 was bound to the queue pair.
    pub(crate) fn note_window(&self, window: &Arc<Mw>) {
        self.windows.with(|BoundWindows { bound, .. }| {
            if bound.insert(window.index(), Arc::downgrade(window)).is_none() && bound.len().is_power_of_two()
            {
                bound.retain(|_, window| window.strong_count() > 0);
            }
        });
    }

    /// Unbinds all windows of a queue pair that is being destroyed.
    pub(super) fn lose_windows(&self) {
        // Release the lock before locking a window.
        let bound = self.windows.with(|state| std::mem::take(&mut state.bound));
        for window in bound.values().filter_map(Weak::upgrade) {
            window.lose(self.number.qpn);
        }
    }

    /// Records that the peer has invalidated a key, which its message will report.
    pub(crate) fn note_invalidated(&self, key: u32) {
        // Each key belongs to a receive that was not polled. The limit stops a peer that never
        // reports them.
        let most = self.max_receives() as usize;
        self.windows.with(|BoundWindows { unreported, .. }| {
            if unreported.len() > most {
                unreported.pop_front();
            }
            unreported.push_back(key);
        });
    }

    /// Whether a key was invalidated for a message that reports it now. Removes the key from the
    /// list.
    pub(crate) fn was_invalidated(&self, key: u32) -> bool {
        self.windows.with(|BoundWindows { unreported, .. }| {
            let place = unreported.iter().position(|one| *one == key);
            place.and_then(|place| unreported.remove(place)).is_some()
        })
    }
}
