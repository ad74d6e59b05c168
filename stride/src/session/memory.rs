//! How much memory a client may ask for.

use crate::buffers::BufferLayout;
use crate::plan::{ConnectionType, PlanError, TestPlan};

/// What a server gives a client, unless its user says otherwise.
pub(super) const DEFAULT_LIMIT: u64 = 1 << 30;

/// Bytes of a place in a queue, about: devices differ.
const QUEUE_ENTRY: u64 = 128;

/// Bytes of another piece of a message, in its work request.
const PIECE: u64 = 16;

/// Bytes of when a message was meant to be sent, with room to the next power of two.
const NOTE: u64 = 16;

/// What each queue pair takes besides, about.
const QUEUE_PAIR: u64 = 4096;

/// What each thread but the first takes besides: its histogram, and where its notes are.
const THREAD: u64 = 1 << 20;

/// What a test takes of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryEstimate {
    /// The messages.
    messages: u64,
    /// The queues that they go through.
    queues: u64,
}

impl MemoryEstimate {
    pub(super) fn of(test: &TestPlan) -> Self {
        let largest = test.sizes.largest().saturating_add(test.connection.header());
        if !test.operation.is_of_pairs() {
            // What is sent, and what arrives.
            return Self { messages: largest.saturating_mul(2), queues: 0 };
        }
        let others = u64::from(test.thread_count() - 1);
        // Each has memory and queues of its own; no share is larger than the first.
        let (first, last) = (test.share(0), test.share(test.thread_count() - 1));
        let layout = |share: &TestPlan| BufferLayout::new(largest, share.queue_pairs).length();
        let larger = u64::from(test.queue_pairs % test.thread_count());
        let messages = match larger {
            0 => layout(&first).saturating_mul(others + 1),
            _ => {
                let rest = layout(&last).saturating_mul(others + 1 - larger);
                layout(&first).saturating_mul(larger).saturating_add(rest)
            }
        };
        let receives = 2 * QUEUE_ENTRY * u64::from(first.receive_depth()) * u64::from(first.receive_queues());
        let of_thread = receives.saturating_mul(others + 1).saturating_add(others * THREAD);
        let sends = Self::of_sends(test).saturating_mul(test.queue_pairs.into());
        Self { messages, queues: sends.saturating_add(of_thread) }
    }

    /// What a queue pair takes but for its receives.
    fn of_sends(test: &TestPlan) -> u64 {
        // What is copied into a work request lies in the queue, and so do the places of its pieces; each place has one for its
        // completion, and at a rate what that has to be known of.
        let inline = u64::from(test.inline_size.unwrap_or(0));
        let pieces = u64::from(test.entries().saturating_sub(1)) * PIECE;
        let noted = if test.rate.is_some() { NOTE } else { 0 };
        let send_queue = u64::from(test.depth()).saturating_mul(2 * QUEUE_ENTRY + inline + pieces + noted);
        // An extended connection ends in a queue pair besides.
        let ends = if test.connection == ConnectionType::Xrc { 2 } else { 1 };
        send_queue.saturating_add(ends * QUEUE_PAIR)
    }

    fn sum(self) -> u64 {
        self.messages.saturating_add(self.queues)
    }

    /// Refuses what takes more than this.
    pub(super) fn check(self, limit: u64) -> Result<(), PlanError> {
        let Self { messages, queues } = self;
        if self.sum() > limit { Err(PlanError::MoreThanServed { messages, queues, limit }) } else { Ok(()) }
    }
}

/// Refuses what takes more than a server gives that was itself asked for a test: as much as that one takes is given.
pub(super) fn check_beside(theirs: &TestPlan, ours: &TestPlan) -> Result<(), PlanError> {
    MemoryEstimate::of(theirs).check(MemoryEstimate::of(ours).sum().max(DEFAULT_LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::RunPlan;

    fn test(flags: &str) -> TestPlan {
        let words = format!("stride-perf {flags}");
        RunPlan::new(cli::parse(words.split_whitespace()).unwrap()).unwrap().test
    }

    #[test]
    fn sizes_pairs_and_depths_count() {
        let plain = MemoryEstimate::of(&test("write bw -s 1M"));
        assert_eq!(plain, MemoryEstimate { messages: 2 << 20, queues: 128 * 256 + 4096 });
        assert_eq!(MemoryEstimate::of(&test("write bw -s 1M -q 8")).sum(), 8 * plain.sum());
        assert_eq!(MemoryEstimate::of(&test("write bw -a")).messages, 16 << 20);
        let deep = MemoryEstimate::of(&test("write bw -s 1M -t 4096"));
        assert_eq!((deep.messages, deep.queues), (plain.messages, 4096 * 256 + 4096));
        let inline = MemoryEstimate::of(&test("write bw -s 1M -I 1000"));
        assert_eq!(inline.queues, plain.queues + 128 * 1000);
        let sends = MemoryEstimate::of(&test("send bw -s 1M -r 100"));
        assert_eq!(sends.queues, plain.queues + 100 * 256);
    }

    #[test]
    fn threads_and_what_their_queue_pairs_share_count() {
        let (of, one) = (
            |flags: &str| MemoryEstimate::of(&test(flags)),
            MemoryEstimate::of(&test("send bw -s 1M -r 100")),
        );
        let (sends, receives) = (one.queues - 100 * 256, 100 * 256);
        let own = of("send bw -s 1M -r 100 -q 5");
        assert_eq!(own, MemoryEstimate { messages: 5 * one.messages, queues: 5 * (sends + receives) });
        let shared = of("send bw -s 1M -r 100 -q 5 --use-srq");
        assert_eq!(shared, MemoryEstimate { queues: 5 * sends + receives, ..own });
        let threads = of("send bw -s 1M -r 100 -q 5 --use-srq --threads 2");
        assert_eq!(threads, MemoryEstimate { queues: 5 * sends + 2 * receives + THREAD, ..own });
        assert_eq!(of("send bw -s 1M -r 100 -c XRC").queues, one.queues + QUEUE_PAIR);
        assert_eq!(of("send bw -s 1M -r 100 --sge 3").queues, one.queues + 128 * 2 * PIECE);
    }

    #[test]
    fn what_is_refused_says_how_much_and_what_raises_it() {
        let asked = MemoryEstimate::of(&test("write bw -s 8M -q 100"));
        assert_eq!(asked.check(asked.sum()), Ok(()));
        let text = asked.check(asked.sum() - 1).unwrap_err().to_string();
        for words in [(1600u64 << 20).to_string(), "3686400".to_owned(), "serve --max-memory".to_owned()] {
            assert!(text.contains(&words), "no `{words}` in {text}");
        }
    }

    #[test]
    fn a_server_gives_what_its_own_test_takes() {
        let (small, large) = (test("write bw"), test("write bw -s 512M -q 2 -n 5"));
        assert_eq!(check_beside(&small, &small), Ok(()));
        assert!(matches!(
            check_beside(&large, &small),
            Err(PlanError::MoreThanServed { limit: DEFAULT_LIMIT, .. })
        ));
        assert_eq!(check_beside(&large, &large), Ok(()));
    }

    #[test]
    fn no_number_is_too_large_to_count() {
        let most = TestPlan {
            iterations: u64::MAX,
            tx_depth: u32::MAX,
            inline_size: Some(u32::MAX),
            ..test("send bw -s 1M -q 16384")
        };
        let most =
            TestPlan { sizes: crate::plan::Sizes::One { size: u64::MAX }, rx_depth: Some(u32::MAX), ..most };
        assert_eq!(MemoryEstimate::of(&most).sum(), u64::MAX);
        assert!(MemoryEstimate::of(&most).check(DEFAULT_LIMIT).is_err());
    }
}
