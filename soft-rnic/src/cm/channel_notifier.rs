//! The notifier of an event channel: one eventfd token for each event.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::platform::tokens::Tokens;

/// The tokens of a channel, each of which stands for an event. A token is *promised* under the
/// state machine's lock, along with the event, and given after the unlock. So no reader wakes only
/// to wait for the lock.
///
/// The given tokens and the open promises together are as many as the events. The exception is a
/// reader that has taken its token and not yet its event: it is waiting for the state machine's
/// lock.
#[derive(Debug)]
pub(super) struct ChannelNotifier {
    tokens: Tokens,
    promised: AtomicUsize,
    /// Held while promises are kept, so that each token is either already given (and can be taken
    /// back) or still promised.
    giving: Mutex<()>,
}

impl ChannelNotifier {
    /// # Errors
    ///
    /// If the process has no descriptor left.
    pub(super) fn create() -> io::Result<Self> {
        Ok(Self { tokens: Tokens::create()?, promised: AtomicUsize::new(0), giving: Mutex::default() })
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.tokens.descriptor()
    }

    /// Takes a token; see [`Tokens::take`].
    pub(super) fn take(&self) -> io::Result<()> {
        self.tokens.take()
    }

    /// Announces one more event. The caller must call [`deliver`](Self::deliver) once the state
    /// machine is unlocked.
    pub(super) fn promise(&self) {
        self.promised.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps all open promises, whichever thread made them.
    pub(super) fn deliver(&self) {
        let _giving = self.giving.lock().unwrap_or_else(PoisonError::into_inner);
        // This includes the promises of other threads, which then find nothing left to give.
        let promised = self.promised.swap(0, Ordering::AcqRel);
        if promised > 0 {
            self.tokens.give(promised as u64);
        }
    }

    /// Removes the tokens of events that were dropped; the caller holds the state machine's lock.
    /// Never waits for long, because a thread that gives tokens waits for nothing.
    pub(super) fn take_back(&self, events: usize) {
        let _giving = self.giving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = events;
        let take = |promised: usize| Some(promised.saturating_sub(events));
        if let Ok(promised) = self.promised.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) {
            left -= promised.min(events);
        }
        self.tokens.take_back(left);
    }
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use std::sync::{Arc, Barrier, MutexGuard};
    use std::thread::JoinHandle;

    use super::*;

    const THREADS: usize = 3;
    const ROUNDS: usize = 5000;

    /// A channel as the state machine uses it, with a counter in place of its events.
    struct TestChannel {
        notifier: ChannelNotifier,
        events: Mutex<usize>,
    }

    impl TestChannel {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                notifier: ChannelNotifier::create().expect("a descriptor"),
                events: Mutex::default(),
            })
        }

        fn events(&self) -> MutexGuard<'_, usize> {
            self.events.lock().expect("no panic")
        }

        /// Adds two events and takes one back, many times.
        fn play(&self) {
            for _ in 0..ROUNDS {
                for _ in 0..2 {
                    let mut events = self.events();
                    *events += 1;
                    self.notifier.promise();
                    drop(events);
                    self.notifier.deliver();
                }
                let mut events = self.events();
                // A concurrent reader may have taken both.
                let gone = (*events).min(1);
                *events -= gone;
                self.notifier.take_back(gone);
            }
        }

        /// Threads that start at the same time.
        fn players(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
            let together = Arc::new(Barrier::new(THREADS));
            let start = || {
                let (channel, together) = (Arc::clone(self), Arc::clone(&together));
                std::thread::spawn(move || {
                    together.wait();
                    channel.play();
                })
            };
            (0..THREADS).map(|_| start()).collect()
        }

        /// The number of available tokens.
        fn drain(&self) -> usize {
            let descriptor = self.notifier.descriptor();
            // SAFETY: the descriptor is open as long as the notifier lives.
            assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
            core::iter::from_fn(|| self.notifier.take().ok()).count()
        }
    }

    #[test]
    fn there_are_as_many_tokens_as_events_whoever_is_faster() {
        let channel = TestChannel::new();
        channel.players().into_iter().for_each(|player| player.join().expect("no panic"));
        assert_eq!(*channel.events(), THREADS * ROUNDS);
        assert_eq!(channel.drain(), THREADS * ROUNDS);
    }

    #[test]
    fn a_reader_hears_of_every_event() {
        let channel = TestChannel::new();
        let players = channel.players();
        let reader = {
            let channel = Arc::clone(&channel);
            std::thread::spawn(move || {
                let mut taken = 0;
                while taken < THREADS * ROUNDS / 2 {
                    channel.notifier.take().expect("a token");
                    // The event may have been dropped while its token was on the way. Other events
                    // have separate tokens.
                    let mut events = channel.events();
                    let got = (*events).min(1);
                    *events -= got;
                    taken += got;
                }
            })
        };
        players.into_iter().for_each(|player| player.join().expect("no panic"));
        reader.join().expect("no panic");
        let (events, tokens) = (*channel.events(), channel.drain());
        assert!(tokens >= events, "{tokens} tokens of {events} events");
    }
}
