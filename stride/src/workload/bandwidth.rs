//! As many messages as the queues hold, until all are through.

use sideway::ibverbs::queue_pair::SendQueue;

use super::{Completions, Job, Message, Payload, Watch, Writer};
use crate::buffers::Cycle;
use crate::error::Error;
use crate::plan::TestPlan;

/// As many completions as perftest takes at a time.
pub(super) const POLL_BATCH: u32 = 16;

/// The order of messages: which are posted together, which ask for a completion, and where they lie.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    iterations: u64,
    depth: u64,
    list: u32,
    interval: u64,
    cycle: Cycle,
    posted: u64,
    /// The number of the next message that asks for a completion.
    signal: u64,
}

impl Chain {
    /// The order that the plan asks for.
    pub(super) fn new(test: &TestPlan, cycle: Cycle) -> Self {
        let interval = u64::from(test.completion_interval());
        let (iterations, depth) = (test.iterations, u64::from(test.depth()));
        let signal = interval.min(iterations) - 1;
        Self { iterations, depth, list: test.post_list, interval, cycle, posted: 0, signal }
    }

    /// How many messages may have been posted before a list begins, so many being completed.
    #[inline]
    fn end(&self, completed: u64) -> u64 {
        (completed + self.depth + 1).saturating_sub(u64::from(self.list)).min(self.iterations)
    }

    /// Begins a list: each list moves through the same memory, as perftest's chains do.
    #[inline]
    fn begin_list(&mut self) {
        if self.list > 1 {
            self.cycle.restart();
        }
    }

    /// The next message. The last of an interval asks for a completion, and so does the last of all.
    #[inline]
    fn next(&mut self) -> Message {
        let number = self.posted;
        self.posted += 1;
        let signaled = number == self.signal;
        if signaled {
            self.signal = (number + self.interval).min(self.iterations - 1);
        }
        Message { number, signaled, offset: self.cycle.advance() }
    }

    /// How many messages are completed after so many further completions.
    #[inline]
    fn completed(&self, before: u64, completions: u32) -> u64 {
        (before + self.interval * u64::from(completions)).min(self.iterations)
    }
}

/// Posts and completes all messages; how many ticks that took, from before the first post to after the last
/// completion.
#[derive(Debug)]
pub(super) struct Run<'a, 'link> {
    pub(super) chain: Chain,
    pub(super) watch: &'a mut Watch<'link>,
}

impl Job for Run<'_, '_> {
    fn run(
        self,
        mut writer: Writer<'_, impl SendQueue, impl Payload>,
        completions: &mut impl Completions,
    ) -> Result<u64, Error> {
        let Self { mut chain, watch } = self;
        let mut completed = 0;
        let start = watch.now();
        while completed < chain.iterations {
            let end = chain.end(completed);
            while chain.posted < end {
                chain.begin_list();
                writer.post(chain.list, || chain.next())?;
            }
            match completions.poll(POLL_BATCH)? {
                0 => watch.spin()?,
                completions => completed = chain.completed(completed, completions),
            }
        }
        Ok(watch.now().saturating_sub(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::BufferLayout;
    use crate::cli;
    use crate::plan::Plan;

    fn chain(flags: &str) -> Chain {
        let words = format!("stride-perf write bw {flags}");
        let test = Plan::new(cli::parse(words.split_whitespace()).unwrap()).unwrap().test;
        let size = test.sizes.largest();
        Chain::new(&test, BufferLayout::new(size).cycle(size))
    }

    /// Runs a chain against a device that completes everything at once; the messages, list by list.
    fn lists(mut chain: Chain) -> Vec<Vec<Message>> {
        let (mut completed, mut lists) = (0, Vec::new());
        while completed < chain.iterations {
            let mut signaled = 0;
            let end = chain.end(completed);
            while chain.posted < end {
                chain.begin_list();
                let list: Vec<_> = (0..chain.list).map(|_| chain.next()).collect();
                signaled += list.iter().filter(|message| message.signaled).count() as u32;
                lists.push(list);
            }
            assert!(signaled > 0, "stuck at {completed} of {chain:?}");
            assert!(chain.posted - completed <= chain.depth);
            completed = chain.completed(completed, signaled);
        }
        lists
    }

    fn signaled(chain: Chain) -> Vec<u64> {
        let all = lists(chain).into_iter().flatten();
        all.filter(|message| message.signaled).map(|message| message.number).collect()
    }

    #[test]
    fn every_interval_ends_with_a_completion_and_so_does_the_end() {
        assert_eq!(signaled(chain("-s 64 -n 250 -t 128")), [99, 199, 249]);
        assert_eq!(signaled(chain("-s 64 -n 12 -t 4 -Q 3")), [2, 5, 8, 11]);
        assert_eq!(signaled(chain("-s 64K -n 5")), [0, 1, 2, 3, 4]);
        assert_eq!(signaled(chain("-s 64 -n 5")), [4]);
    }

    #[test]
    fn lists_are_whole_and_begin_at_the_same_place() {
        let lists = lists(chain("-s 2 -n 640 -l 64 -t 128"));
        assert_eq!(lists.len(), 10);
        for list in &lists {
            assert_eq!((list.len(), list[0].offset, list[1].offset), (64, 0, 64));
            assert_eq!(list.iter().filter(|message| message.signaled).count(), 1);
            assert!(list[63].signaled);
        }
    }

    #[test]
    fn single_messages_move_on_through_the_page() {
        let offsets: Vec<_> =
            lists(chain("-s 2K -n 5 -t 1")).into_iter().flatten().map(|message| message.offset).collect();
        assert_eq!(offsets, [0, 2048, 0, 2048, 0]);
    }

    #[test]
    fn every_combination_ends() {
        for depth in [1, 2, 3, 7, 128] {
            for interval in [1, 2, 3, 100] {
                for iterations in [5, 6, 7, 100, 101, 1000] {
                    let flags = format!("-s 64 -n {iterations} -t {depth} -Q {interval}");
                    let count = lists(chain(&flags)).into_iter().flatten().count();
                    assert_eq!(count, iterations, "{flags}");
                }
            }
        }
    }
}
