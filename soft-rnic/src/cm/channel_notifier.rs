//! The notifier of an event channel: one eventfd token for each event.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::platform::tokens::Tokens;

/// A channel's tokens, of which each stands for an event. They are *promised* under the state machine's lock, along with the event, and
/// given when it is unlocked: so nobody is woken only to wait for the lock.
///
/// Tokens that are given, and promises that are not kept yet, are as many as events, but for readers that have a token and not
/// their event yet: those are at the state machine's lock.
#[derive(Debug)]
pub(super) struct ChannelNotifier {
    tokens: Tokens,
    promised: AtomicUsize,
    /// Held while promises are kept, so that a token is either there to be taken back, or still a promise.
    giving: Mutex<()>,
}

impl ChannelNotifier {
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub(super) fn create() -> io::Result<Self> {
        Ok(Self { tokens: Tokens::create()?, promised: AtomicUsize::new(0), giving: Mutex::default() })
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.tokens.descriptor()
    }

    /// As [`Tokens::take`].
    pub(super) fn take(&self) -> io::Result<()> {
        self.tokens.take()
    }

    /// There is one event more. Whoever calls this calls [`deliver`](Self::deliver) once the state machine is unlocked.
    pub(super) fn promise(&self) {
        self.promised.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps all promises, whoever made them.
    pub(super) fn deliver(&self) {
        let _giving = self.giving.lock().unwrap_or_else(PoisonError::into_inner);
        // What another thread has promised too: it finds nothing left to give.
        let promised = self.promised.swap(0, Ordering::AcqRel);
        if promised > 0 {
            self.tokens.give(promised as u64);
        }
    }

    /// So many events have gone; the state machine is locked. Never waits for long: nobody who gives waits for anything.
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

    /// A channel as the state machine has it, of which the events are only counted.
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

        /// Of two events, one is taken back.
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
                // Where there is a reader, it may have had both.
                let gone = (*events).min(1);
                *events -= gone;
                self.notifier.take_back(gone);
            }
        }

        /// Threads that play at once.
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

        /// Tokens that are there.
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
                    // It may have gone while its token was on the way: another has its own.
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
