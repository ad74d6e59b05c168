//! How much memory a client may ask for.

use crate::buffers::BufferLayout;
use crate::plan::{PlanError, TestPlan};

/// What a server gives a client, unless its user says otherwise.
pub(super) const DEFAULT_LIMIT: u64 = 1 << 30;

/// Bytes of a place in a queue, about: devices differ.
const QUEUE_ENTRY: u64 = 128;

/// What each queue pair takes besides, about.
const QUEUE_PAIR: u64 = 4096;

/// What a test takes of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// The messages.
    messages: u64,
    /// The queues that they go through.
    queues: u64,
}

impl Memory {
    pub(super) fn of(test: &TestPlan) -> Self {
        let largest = test.sizes.largest().saturating_add(test.connection.header());
        if !test.operation.is_of_pairs() {
            // What is sent, and what arrives.
            return Self { messages: largest.saturating_mul(2), queues: 0 };
        }
        let pairs = u64::from(test.queue_pairs);
        let (sends, receives) = (u64::from(test.depth()), u64::from(test.receive_depth()));
        // What is copied into a work request lies in the queue; each place has one for its completion.
        let inline = u64::from(test.inline_size.unwrap_or(0));
        let send_queue = sends.saturating_mul(2 * QUEUE_ENTRY + inline);
        let of_pair = send_queue.saturating_add(2 * QUEUE_ENTRY * receives).saturating_add(QUEUE_PAIR);
        Self {
            messages: BufferLayout::new(largest, test.queue_pairs).length(),
            queues: of_pair.saturating_mul(pairs),
        }
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
    Memory::of(theirs).check(Memory::of(ours).sum().max(DEFAULT_LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::Plan;

    fn test(flags: &str) -> TestPlan {
        let words = format!("stride-perf {flags}");
        Plan::new(cli::parse(words.split_whitespace()).unwrap()).unwrap().test
    }

    #[test]
    fn sizes_pairs_and_depths_count() {
        let plain = Memory::of(&test("write bw -s 1M"));
        assert_eq!(plain, Memory { messages: 2 << 20, queues: 128 * 256 + 4096 });
        assert_eq!(Memory::of(&test("write bw -s 1M -q 8")).sum(), 8 * plain.sum());
        assert_eq!(Memory::of(&test("write bw -a")).messages, 16 << 20);
        let deep = Memory::of(&test("write bw -s 1M -t 4096"));
        assert_eq!((deep.messages, deep.queues), (plain.messages, 4096 * 256 + 4096));
        let inline = Memory::of(&test("write bw -s 1M -I 1000"));
        assert_eq!(inline.queues, plain.queues + 128 * 1000);
        let sends = Memory::of(&test("send bw -s 1M -r 100"));
        assert_eq!(sends.queues, plain.queues + 100 * 256);
    }

    #[test]
    fn what_is_refused_says_how_much_and_what_raises_it() {
        let asked = Memory::of(&test("write bw -s 8M -q 100"));
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
        assert_eq!(Memory::of(&most).sum(), u64::MAX);
        assert!(Memory::of(&most).check(DEFAULT_LIMIT).is_err());
    }
}
