//! Descriptors of a peer's completion channels. A thread that completes a receive of a sleeping
//! program writes to the descriptor, which wakes the program without the peer's service thread.
//!
//! The peer names the descriptor of a channel when a doorbell has rung for one of its completion
//! queues. This process takes it by [`event_counter`](crate::platform::event_counter), or goes on
//! ringing. When the channel is destroyed, the peer sends a notice.

use core::num::NonZero;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::platform::fork::ForkSafeFd;
use crate::platform::limits;

/// The most descriptors of peers' channels that this process keeps, and the part of the descriptors
/// that it may have.
const MOST: usize = 1024;
const PART_OF_DESCRIPTORS: usize = 8;

/// How many this process keeps.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// The descriptors of a peer's channels, by the channel's number there.
#[derive(Debug, Default)]
pub(crate) struct PeerChannels(RwLock<HashMap<NonZero<u64>, Arc<ForkSafeFd>>>);

impl PeerChannels {
    /// Keeps the descriptor that `take` returns, unless this process keeps many already.
    pub(crate) fn insert(&self, channel: NonZero<u64>, take: impl FnOnce() -> Option<OwnedFd>) {
        let most = limits::descriptors().map_or(MOST, |limit| MOST.min(limit / PART_OF_DESCRIPTORS));
        if KEPT.load(Relaxed) >= most {
            return;
        }
        let Some(file) = take() else { return };
        if let Ok(file) = ForkSafeFd::open(|| Ok(file)) {
            let mut files = self.0.write().unwrap_or_else(PoisonError::into_inner);
            if files.insert(channel, Arc::new(file)).is_none() {
                KEPT.fetch_add(1, Relaxed);
            }
        }
    }

    /// The channel is destroyed.
    pub(crate) fn remove(&self, channel: NonZero<u64>) {
        if self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&channel).is_some() {
            KEPT.fetch_sub(1, Relaxed);
        }
    }

    /// Makes the descriptor of this channel readable. False if that is the service thread's to do.
    pub(crate) fn wake(&self, channel: NonZero<u64>) -> bool {
        let file = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&channel).cloned();
        file.is_some_and(|file| file.get().and_then(add_token).is_ok())
    }
}

impl Drop for PeerChannels {
    fn drop(&mut self) {
        let kept = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).len();
        KEPT.fetch_sub(kept, Relaxed);
    }
}

/// Adds to a counter, unless it is full. A well-behaved peer's is not, and a write to it would wait.
fn add_token(file: BorrowedFd<'_>) -> rustix::io::Result<()> {
    const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut room = [PollFd::new(&file, PollFlags::OUT)];
    if poll(&mut room, Some(&NO_WAIT))? == 0 {
        return Err(rustix::io::Errno::AGAIN);
    }
    rustix::io::write(file, &1_u64.to_ne_bytes()).map(drop)
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn number(number: u64) -> NonZero<u64> {
        NonZero::new(number).expect("not zero")
    }

    #[test]
    fn a_kept_channel_is_written_to() {
        let channels = PeerChannels::default();
        let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).expect("a descriptor");
        channels.insert(number(3), || file.try_clone().ok());
        assert!(channels.wake(number(3)) && channels.wake(number(3)) && !channels.wake(number(4)));
        let mut count = [0; 8];
        for _ in 0..2 {
            assert_eq!(rustix::io::read(&file, &mut count), Ok(8));
            assert_eq!(u64::from_ne_bytes(count), 1);
        }
        channels.remove(number(3));
        assert!(!channels.wake(number(3)));
    }

    #[test]
    fn a_full_counter_is_not_waited_for() {
        let channels = PeerChannels::default();
        let file = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
        rustix::io::write(&file, &(u64::MAX - 1).to_ne_bytes()).expect("the largest count");
        channels.insert(number(1), || file.try_clone().ok());
        assert!(!channels.wake(number(1)));
    }
}
