//! Event descriptors of the process (eventfd), each of which a few sets share.
//!
//! The kernel allows few paths from one descriptor through nested sets: 10 at the greatest depth, 100
//! through three sets. It refuses a further set with `EINVAL`. Therefore no descriptor is in the sets
//! of all connections.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};

use crate::process::PerProcess;

/// The descriptors of one kind.
pub(crate) struct Eventfds {
    all: PerProcess<Mutex<Vec<Weak<OwnedFd>>>>,
    /// The count at the beginning: 0 is not readable.
    count: u32,
    /// The sets that share one.
    sets: usize,
}

impl Eventfds {
    pub(crate) const fn new(count: u32, sets: usize) -> Self {
        Self { all: PerProcess::new(), count, sets }
    }

    fn all(&self) -> MutexGuard<'static, Vec<Weak<OwnedFd>>> {
        self.all.get().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor for one set. It stays open until all sets that share it have dropped it.
    pub(crate) fn take(&self) -> io::Result<Arc<OwnedFd>> {
        let mut all = self.all();
        all.retain(|known| known.strong_count() > 0);
        let few = all.iter().filter(|known| known.strong_count() < self.sets);
        if let Some(known) = few.map(Weak::upgrade).find_map(|known| known) {
            return Ok(known);
        }
        let new = Arc::new(eventfd(self.count, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        all.push(Arc::downgrade(&new));
        Ok(new)
    }

    /// Makes an event in all sets that wait for edges.
    #[cfg(feature = "rdma")]
    pub(crate) fn raise_all(&self) {
        for known in self.all().iter().filter_map(Weak::upgrade) {
            match rustix::io::write(&*known, &1_u64.to_ne_bytes()) {
                // A full one has an event, too.
                Ok(_) | Err(rustix::io::Errno::AGAIN) => (),
                Err(error) => tracing::error!(%error, "who waits for a device cannot be woken"),
            }
        }
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn few_sets_share_a_descriptor() {
        static KIND: Eventfds = Eventfds::new(0, 3);
        let taken: Vec<_> = (0..7).map(|_| KIND.take().unwrap()).collect();
        let shared = |with: &Arc<OwnedFd>| taken.iter().filter(|other| Arc::ptr_eq(with, other)).count();
        assert_eq!(taken.iter().map(shared).collect::<Vec<_>>(), [3, 3, 3, 3, 3, 3, 1]);
        drop(taken);
        let again = KIND.take().unwrap();
        assert_eq!(KIND.all().len(), 1);
        drop(again);
    }
}
