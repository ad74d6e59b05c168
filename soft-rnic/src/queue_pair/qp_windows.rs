//! What a queue pair has to do with memory windows: those that were bound to it, and what its peer has invalidated.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Qp;
use crate::objects::memory_window::Mw;

/// The windows of a queue pair.
#[derive(Default)]
pub(super) struct QpWindows(Mutex<BoundWindows>);

#[derive(Default)]
struct BoundWindows {
    /// Of type 2, by index: they go with the queue pair.
    bound: BTreeMap<u32, Weak<Mw>>,
    /// Keys whose memory the peer has had taken away, once for each time, and whose messages were not polled yet. Such a message
    /// says so; meanwhile the program may have bound the same key anew, which is not what the message is about.
    untold: VecDeque<u32>,
}

impl QpWindows {
    fn with<R>(&self, act: impl FnOnce(&mut BoundWindows) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nothing that was said belongs to the next life.
    pub(super) fn forget_untold(&self) {
        self.with(|state| state.untold.clear());
    }
}

impl Qp {
    /// A window of type 2 was bound to the queue pair.
    pub(crate) fn note_window(&self, window: &Arc<Mw>) {
        self.windows.with(|BoundWindows { bound, .. }| {
            if bound.insert(window.index(), Arc::downgrade(window)).is_none() && bound.len().is_power_of_two()
            {
                bound.retain(|_, window| window.strong_count() > 0);
            }
        });
    }

    /// The queue pair goes: windows that are still bound to it are not any more.
    pub(super) fn lose_windows(&self) {
        // A window is asked without the lock.
        let bound = self.windows.with(|state| std::mem::take(&mut state.bound));
        for window in bound.values().filter_map(Weak::upgrade) {
            window.lose(self.number.qpn);
        }
    }

    /// The peer has had a window's memory taken away, of which a message will tell.
    pub(crate) fn note_invalidated(&self, key: u32) {
        // Each belongs to a receive that was not polled. What a peer never tells of does not pile up.
        let most = self.max_receives() as usize;
        self.windows.with(|BoundWindows { untold, .. }| {
            if untold.len() > most {
                untold.pop_front();
            }
            untold.push_back(key);
        });
    }

    /// A message tells that a key was invalidated; whether that has happened, and no other message has told of it.
    pub(crate) fn was_invalidated(&self, key: u32) -> bool {
        self.windows.with(|BoundWindows { untold, .. }| {
            let place = untold.iter().position(|one| *one == key);
            place.and_then(|place| untold.remove(place)).is_some()
        })
    }
}
