//! Descriptors of a peer's completion channels. A thread that completes a receive of a sleeping
//! program writes to the descriptor, which wakes the program without the peer's service thread.
//!
//! The peer sends the descriptor of a channel when a doorbell has rung for one of its completion
//! queues, and a notice when the channel is destroyed.

use core::num::NonZero;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use crate::platform::fork::ForkSafeFd;
use crate::platform::limits;

/// The most descriptors of peers' channels that this process keeps, and the part of the descriptors
/// that it may have.
const MOST: usize = 1024;
const PART_OF_DESCRIPTORS: usize = 8;

/// How many this process keeps.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// The descriptors that a peer has sent, by the channel's number there.
#[derive(Debug, Default)]
pub(crate) struct PeerChannels(RwLock<HashMap<NonZero<u64>, Arc<ForkSafeFd>>>);

impl PeerChannels {
    /// Keeps a descriptor, unless this process keeps many already or the file is none that can be
    /// written to without a signal.
    pub(crate) fn insert(&self, channel: NonZero<u64>, file: OwnedFd) {
        let most = limits::descriptors().map_or(MOST, |limit| MOST.min(limit / PART_OF_DESCRIPTORS));
        if !is_eventfd(&file) || KEPT.load(Relaxed) >= most {
            return;
        }
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
        file.is_some_and(|file| {
            file.get().and_then(|file| rustix::io::write(file, &1_u64.to_ne_bytes())).is_ok()
        })
    }
}

impl Drop for PeerChannels {
    fn drop(&mut self) {
        let kept = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).len();
        KEPT.fetch_sub(kept, Relaxed);
    }
}

/// Whether the file is an event counter. A write to a pipe may raise SIGPIPE.
fn is_eventfd(file: &OwnedFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
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
        channels.insert(number(3), file.try_clone().expect("a descriptor"));
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
    fn a_file_that_is_no_event_counter_is_not_kept() {
        let channels = PeerChannels::default();
        let (_, writes) = rustix::pipe::pipe().expect("two descriptors");
        channels.insert(number(1), writes);
        assert!(!channels.wake(number(1)));
    }
}
