//! The estimate of the memory that a client's test needs.

use crate::buffers::BufferLayout;
use crate::plan::{ConnectionType, PlanError, TestPlan};

/// The memory that a server grants a client by default, in bytes.
pub(super) const DEFAULT_LIMIT: u64 = 1 << 30;

/// Approximate bytes of a queue entry; devices differ.
const QUEUE_ENTRY: u64 = 128;

/// Bytes of an additional scatter-gather entry in a work request.
const PIECE: u64 = 16;

/// Bytes for the scheduled time of a message, rounded up to a power of two.
const NOTE: u64 = 16;

/// Approximate further bytes of a queue pair.
const QUEUE_PAIR: u64 = 4096;

/// Approximate further bytes of each thread but the first, for its histogram and sample times.
const THREAD: u64 = 1 << 20;

/// The memory that a test needs on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryEstimate {
    /// Bytes for messages.
    messages: u64,
    /// Bytes for queues.
    queues: u64,
}

impl MemoryEstimate {
    pub(super) fn of(test: &TestPlan) -> Self {
        let largest = test.sizes.largest().saturating_add(test.connection.header());
        if !test.operation.is_of_pairs() {
            // Sent and received messages.
            return Self { messages: largest.saturating_mul(2), queues: 0 };
        }
        let others = u64::from(test.thread_count() - 1);
        // Each thread has its queues and memory; no share is larger than the first.
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

    /// Bytes of a queue pair without its receives.
    fn of_sends(test: &TestPlan) -> u64 {
        // Inline data and scatter-gather entries lie in the send queue. Each request has an entry
        // in the completion queue, and with a rate also a scheduled time.
        let inline = u64::from(test.inline_size.unwrap_or(0));
        let pieces = u64::from(test.entries().saturating_sub(1)) * PIECE;
        let noted = if test.rate.is_some() { NOTE } else { 0 };
        let send_queue = u64::from(test.depth()).saturating_mul(2 * QUEUE_ENTRY + inline + pieces + noted);
        // An extended connection has a second queue pair as its target.
        let ends = if test.connection == ConnectionType::Xrc { 2 } else { 1 };
        send_queue.saturating_add(ends * QUEUE_PAIR)
    }

    fn sum(self) -> u64 {
        self.messages.saturating_add(self.queues)
    }

    /// Refuses a test that needs more than `limit` bytes.
    pub(super) fn check(self, limit: u64) -> Result<(), PlanError> {
        let Self { messages, queues } = self;
        if self.sum() > limit { Err(PlanError::MoreThanServed { messages, queues, limit }) } else { Ok(()) }
    }
}

/// Refuses a test that needs more than the server's default and more than the test on the server's
/// command line.
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
    fn a_refusal_names_the_amount_and_the_limit() {
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
