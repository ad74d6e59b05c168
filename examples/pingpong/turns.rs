//! The order of turns, the number of posted receives, and the idle timeout.

use std::time::{Duration, Instant};

use sideway::ibverbs::completion::{CompletionChannel, GenericCompletionQueue, GenericPoller, Notify};

use crate::program::Failure;

/// Counts the exchanges.
///
/// A side sends when it has received the previous message and its own last send has completed.
/// Message `n` of either side arrives at turn `n`. The client's first message follows no received
/// one.
#[derive(Clone, Debug)]
pub struct Turns {
    iters: u32,
    opens: bool,
    posted: u32,
    sent: u32,
    received: u32,
}

impl Turns {
    /// Starts with no exchanges; `opens` is true for the client, which sends first.
    pub fn new(iters: u32, opens: bool) -> Self {
        Self { iters, opens, posted: 0, sent: 0, received: 0 }
    }

    /// Whether all messages were sent and received.
    pub fn is_over(&self) -> bool {
        self.sent >= self.iters && self.received >= self.iters
    }

    /// Records a received message.
    pub fn received(&mut self) {
        self.received += 1;
    }

    /// Records a completed send.
    pub fn sent(&mut self) {
        self.sent += 1;
    }

    /// Returns the turn whose message to send now, namely the last received one; `None` if it is
    /// not this side's turn.
    pub fn take_turn(&mut self) -> Option<u32> {
        let allowed = self.received + u32::from(self.opens);
        if self.posted == self.iters || self.sent < self.posted || self.posted >= allowed {
            return None;
        }
        self.posted += 1;
        Some(self.latest())
    }

    /// The turn of the last received message. The client's first message counts as turn -1, which
    /// uses the other buffer than turn 0.
    pub fn latest(&self) -> u32 {
        self.received.wrapping_sub(1)
    }
}

/// Counts the posted receives, and refills the queue in batches.
///
/// As in the C program, the queue is refilled when it is almost empty.
#[derive(Clone, Debug)]
pub struct ReceiveRefill {
    depth: u32,
    /// The number of posted receives at which the queue is refilled.
    reserve: u32,
    outstanding: u32,
    next: u32,
}

impl ReceiveRefill {
    /// Starts with no posted receives.
    pub fn new(depth: u32) -> Self {
        Self::shared(depth, 1)
    }

    /// The same for a queue that `pairs` queue pairs share.
    pub fn shared(depth: u32, pairs: u32) -> Self {
        Self { depth, reserve: pairs, outstanding: 0, next: 0 }
    }

    /// The turns for which to post receives now; empty most of the time.
    pub fn refill(&mut self) -> impl Iterator<Item = u32> + use<> {
        let first = self.next;
        let count = if self.outstanding <= self.reserve { self.depth - self.outstanding } else { 0 };
        self.outstanding += count;
        self.next = first.wrapping_add(count);
        (0..count).map(move |n| first.wrapping_add(n))
    }

    /// Records a completed receive.
    pub fn taken(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }
}

/// Limits the polling of an empty completion queue, because a dead peer causes no completion.
#[derive(Clone, Debug)]
pub struct IdleTimeout {
    limit: Option<Duration>,
    polls: u32,
    since: Option<Instant>,
}

impl IdleTimeout {
    /// The number of polls between two readings of the clock.
    const POLLS: u32 = 1024;

    /// `None` never expires.
    pub fn new(limit: Option<Duration>) -> Self {
        Self { limit, polls: 0, since: None }
    }

    /// Records a completion, which restarts the timeout.
    #[inline]
    pub fn completed(&mut self) {
        self.polls = 0;
        self.since = None;
    }

    /// Records a poll without completion.
    ///
    /// # Errors
    ///
    /// The timeout has expired.
    #[inline]
    pub fn poll_was_empty(&mut self) -> Result<(), Failure> {
        self.polls += 1;
        if self.polls == Self::POLLS { self.check_clock() } else { Ok(()) }
    }

    #[cold]
    fn check_clock(&mut self) -> Result<(), Failure> {
        self.polls = 0;
        // The peer may need this processor.
        std::thread::yield_now();
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        match self.limit {
            Some(limit) if waited >= limit => Err(Self::lost(limit)),
            _ => Ok(()),
        }
    }

    /// Sleeps until a completion queue of the channel has a completion. All of them must be armed.
    ///
    /// # Errors
    ///
    /// The timeout expires, or the device is gone.
    pub fn sleep(&self, channel: &mut CompletionChannel) -> Result<(), Failure> {
        match self.limit {
            None => channel.wait().map(drop).map_err(Failure::work),
            Some(limit) => match channel.wait_timeout(limit).map_err(Failure::work)? {
                Some(_) => Ok(()),
                None => Err(Self::lost(limit)),
            },
        }
    }

    #[cold]
    fn lost(limit: Duration) -> Failure {
        Failure::work(format_args!(
            "nothing completed for {} s: the peer is gone, or too slow (see --timeout)",
            limit.as_secs()
        ))
    }
}

/// Starts to poll; arms the queue first if the program sleeps when the queue is empty.
///
/// # Errors
///
/// The device failed.
pub fn start_poll(cq: &mut GenericCompletionQueue, sleeps: bool) -> Result<GenericPoller<'_>, Failure> {
    if sleeps { cq.arm(Notify::Any).map_err(Failure::work) } else { cq.start_poll().map_err(Failure::work) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_opens_and_both_take_turns() {
        let (mut client, mut server) = (Turns::new(2, true), Turns::new(2, false));
        assert_eq!(server.take_turn(), None);
        assert_eq!(client.take_turn(), Some(u32::MAX));
        assert_eq!(client.take_turn(), None);
        server.received();
        client.sent();
        assert_eq!(client.take_turn(), None);
        assert_eq!(server.take_turn(), Some(0));
        client.received();
        assert_eq!(client.take_turn(), Some(0));
        // The client's second message may arrive before the server's first send has completed.
        server.received();
        assert_eq!(server.take_turn(), None);
        server.sent();
        assert_eq!(server.take_turn(), Some(1));
        server.sent();
        assert!(server.is_over() && !client.is_over());
        client.sent();
        client.received();
        assert!(client.is_over());
        assert_eq!(client.take_turn(), None);
    }

    #[test]
    fn the_outgoing_buffer_differs_from_the_next_incoming() {
        for opens in [true, false] {
            let mut turns = Turns::new(10, opens);
            for turn in 0..10 {
                if !opens {
                    turns.received();
                }
                let out = turns.take_turn().unwrap();
                let next_in = if opens { turn } else { turn + 1 };
                assert_ne!(out % 2, next_in % 2);
                turns.sent();
                if opens {
                    turns.received();
                }
            }
            assert!(turns.is_over());
        }
    }

    #[test]
    fn receives_are_posted_when_almost_all_are_taken() {
        let mut receives = ReceiveRefill::new(3);
        assert_eq!(receives.refill().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(receives.refill().count(), 0);
        receives.taken();
        assert_eq!(receives.refill().count(), 0);
        receives.taken();
        assert_eq!(receives.refill().collect::<Vec<_>>(), [3, 4]);
        let mut single = ReceiveRefill::new(1);
        assert_eq!(single.refill().collect::<Vec<_>>(), [0]);
        assert_eq!(single.refill().count(), 0);
        single.taken();
        assert_eq!(single.refill().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn the_idle_timeout_expires_unless_something_completes() {
        let polls = |mut idle: IdleTimeout| {
            (0..3 * IdleTimeout::POLLS).try_for_each(|_| idle.poll_was_empty()).is_ok()
        };
        assert!(!polls(IdleTimeout::new(Some(Duration::ZERO))));
        assert!(polls(IdleTimeout::new(None)));
        let mut idle = IdleTimeout::new(Some(Duration::ZERO));
        for _ in 0..3 * IdleTimeout::POLLS {
            idle.completed();
            idle.poll_was_empty().unwrap();
        }
    }
}
