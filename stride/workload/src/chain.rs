//! The order in which a queue pair's messages are posted.

use super::post::PostItem;
use stride_base::buffers::Cycle;
use stride_base::plan::TestPlan;

/// The order of messages: which of them share a doorbell, which are signaled, and where they lie.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) iterations: u64,
    depth: u64,
    pub(super) list: u32,
    interval: u64,
    cycle: Cycle,
    pub(super) posted: u64,
    /// The number of the next signaled message.
    signal: u64,
}

impl Chain {
    /// The order that the plan describes.
    pub(super) fn new(test: &TestPlan, cycle: Cycle) -> Self {
        let interval = u64::from(test.completion_interval());
        let (iterations, depth) = (test.most_messages(), u64::from(test.depth()));
        let signal = interval.min(iterations) - 1;
        Self { iterations, depth, list: test.post_list, interval, cycle, posted: 0, signal }
    }

    /// Ends the chain early, with the message whose completion covers all posted ones.
    pub(super) fn stop(&mut self) {
        self.iterations = self.posted.next_multiple_of(self.interval);
    }

    /// The number of messages that may have been posted before a list begins, with `completed`
    /// messages so far.
    #[inline]
    pub(super) fn end(&self, completed: u64) -> u64 {
        (completed + self.depth + 1).saturating_sub(u64::from(self.list)).min(self.iterations)
    }

    /// Whether all lists are alike: each consists of whole intervals.
    pub(super) fn repeats(&self) -> bool {
        self.list > 1
            && u64::from(self.list).is_multiple_of(self.interval)
            && self.iterations.is_multiple_of(self.list.into())
    }

    /// Messages per completion.
    pub(super) fn interval(&self) -> u64 {
        self.interval
    }

    /// Counts a list that was posted again.
    #[inline]
    pub(super) fn pass_list(&mut self) {
        self.posted += u64::from(self.list);
    }

    /// Begins a list. Each list passes through the same memory, like perftest's.
    #[inline]
    pub(super) fn begin_list(&mut self) {
        if self.list > 1 {
            self.cycle.restart();
        }
    }

    /// The next message. The last message of an interval is signaled, and so is the very last one.
    #[inline]
    pub(super) fn next(&mut self) -> PostItem {
        let number = self.posted;
        self.posted += 1;
        let signaled = number == self.signal;
        if signaled {
            self.signal = (number + self.interval).min(self.iterations - 1);
        }
        PostItem { number, signaled, offset: self.cycle.advance() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stride_base::buffers::BufferLayout;
    use stride_base::cli;
    use stride_base::plan::RunPlan;

    fn chain(flags: &str) -> Chain {
        let words = format!("stride-perf write bw {flags}");
        let test = RunPlan::new(cli::parse(words.split_whitespace()).unwrap()).unwrap().test;
        let size = test.sizes.largest();
        Chain::new(&test, BufferLayout::new(size, 1).cycle(size))
    }

    /// Runs a chain against a device that completes everything at once; returns the messages list
    /// by list.
    fn lists(mut chain: Chain) -> Vec<Vec<PostItem>> {
        let (mut completed, mut lists) = (0, Vec::new());
        while completed < chain.iterations {
            let mut signaled = None;
            let end = chain.end(completed);
            while chain.posted < end {
                chain.begin_list();
                let list: Vec<_> = (0..chain.list).map(|_| chain.next()).collect();
                signaled = list.iter().rfind(|message| message.signaled).or(signaled.as_ref()).copied();
                lists.push(list);
            }
            assert!(chain.posted - completed <= chain.depth);
            completed = signaled.unwrap_or_else(|| panic!("stuck at {completed} of {chain:?}")).number + 1;
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
    fn lists_that_repeat_are_all_alike() {
        for flags in ["-s 2 -n 640 -l 64 -t 128", "-s 2K -n 64 -l 8 -Q 4 -t 16", "-s 64 -D 1 -l 8"] {
            let mut chain = chain(flags);
            assert!(chain.repeats(), "{flags}");
            let mut list = || {
                chain.begin_list();
                let begin = chain.posted;
                let relative = |message: PostItem| PostItem { number: message.number - begin, ..message };
                (0..chain.list).map(|_| relative(chain.next())).collect::<Vec<_>>()
            };
            let first = list();
            assert!((0..4).all(|_| list() == first), "{flags}");
        }
        assert!(!chain("-s 64 -n 250 -t 128").repeats());
    }

    #[test]
    fn a_chain_that_is_stopped_ends_with_a_completion() {
        for flags in ["-s 64 -D 1 -t 128 -Q 7", "-s 64 -D 1", "-s 64K -D 1", "-s 64 -D 1 -l 8 -Q 4"] {
            for stop_at in [0, 1, 5, 64, 65, 130] {
                let mut chain = chain(flags);
                let (mut completed, mut last) = (0, None);
                while completed < chain.iterations {
                    let end = chain.end(completed);
                    while chain.posted < end {
                        for _ in 0..chain.list {
                            last = Some(chain.next()).filter(|message| message.signaled).or(last);
                        }
                        if chain.posted >= stop_at && chain.iterations > 1000 {
                            break;
                        }
                    }
                    if chain.posted >= stop_at && chain.iterations > 1000 {
                        chain.stop();
                    }
                    completed = last.map_or(completed, |message: PostItem| message.number + 1);
                }
                assert_eq!(chain.posted, completed, "{flags} {stop_at}");
            }
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
