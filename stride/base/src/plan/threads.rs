//! The number of threads that share a test's queue pairs, and the choice of parameters that the
//! user left open.

use super::{Measure, PathOptionsError, PlanError, Sizes, TestPlan};
use crate::cli::{CommonArgs, CountOrAuto};

/// The most threads of a test; their histograms alone take a hundred megabytes.
pub const MOST_THREADS: u32 = 256;

/// Bytes in flight that keep a fast link busy during a round trip.
const BYTES_UNDER_WAY: u64 = 4 << 20;

/// The parameters that the user left open, to be chosen when the device is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenChoices {
    /// The number of threads.
    pub threads: bool,
    /// The number of messages in flight.
    pub depth: bool,
    /// The number of queue pairs, which equals that of threads.
    pub queue_pairs: bool,
}

/// The facts that choices depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChoiceInputs {
    /// Processors that this side may use.
    pub processors: u32,
    /// Whether processors copy the bytes, as with a software device.
    pub is_software: bool,
    /// Whether the other side runs on the same processors.
    pub has_peer: bool,
    /// Devices or ports, each of which has a thread.
    pub devices: u32,
    /// The device's limit on work requests of a queue.
    pub max_qp_wr: u32,
    /// The device's limit on entries of a completion queue.
    pub max_cqe: u32,
}

impl OpenChoices {
    /// The parameters that the command line leaves open.
    pub fn new(args: &CommonArgs) -> Self {
        let threads = args.threads == Some(CountOrAuto::Auto);
        let depth = args.run.tx_depth == Some(CountOrAuto::Auto);
        Self { threads, depth, queue_pairs: threads && args.qp.is_none() }
    }

    /// Chooses the open parameters; returns the test, and notes for the user.
    pub fn settle(self, mut test: TestPlan, circumstances: ChoiceInputs) -> (TestPlan, Vec<String>) {
        let (mut notes, size) = (Vec::new(), test_size(&test));
        if self.threads {
            let threads = test.auto_threads(size, circumstances).max(circumstances.devices);
            let threads = if self.queue_pairs { threads } else { threads.min(test.queue_pairs) };
            test.threads = Some(threads);
            if self.queue_pairs {
                test.queue_pairs = threads;
            }
            let ChoiceInputs { processors, .. } = circumstances;
            notes.push(format!(
                "--threads auto: {threads}, for messages of {size} bytes and {processors} processors"
            ));
        }
        if self.depth {
            test.tx_depth = test.auto_depth(size, circumstances);
            notes.push(format!("-t auto: {}, for messages of {size} bytes", test.tx_depth));
        }
        (test, notes)
    }
}

/// The size that a choice for all sizes is based on: the smallest, which needs the most messages.
fn test_size(test: &TestPlan) -> u64 {
    match test.sizes {
        Sizes::One { size } | Sizes::Again { size, .. } => size,
        sizes @ (Sizes::PowersOfTwo { .. } | Sizes::Sweep(_) | Sizes::Grid { .. }) => {
            sizes.iter().next().unwrap_or(1)
        }
    }
}

impl TestPlan {
    /// The number of threads of a side.
    pub fn thread_count(&self) -> u32 {
        self.threads.unwrap_or(1).max(1)
    }

    /// The test with one thread's share of the queue pairs; shares differ by at most one.
    pub fn share(&self, thread: u32) -> Self {
        let (threads, pairs) = (self.thread_count(), self.queue_pairs);
        let queue_pairs = pairs / threads + u32::from(thread < pairs % threads);
        Self { queue_pairs, ..self.clone() }
    }

    /// The most queue pairs of a thread.
    pub fn largest_share(&self) -> u32 {
        self.queue_pairs.div_ceil(self.thread_count())
    }

    /// Checks that each device or port has a thread, and each thread a queue pair.
    pub(super) fn validate_devices(&self, devices: u32) -> Result<(), PlanError> {
        if self.path_options.rdma_cm && devices > 1 {
            let flag = format!("-d, of {devices} devices or ports,");
            return Err(PathOptionsError::ManagerOfOne { flag }.into());
        }
        for (flag, given) in [("--threads", self.thread_count()), ("-q", self.queue_pairs)] {
            if (1..devices).contains(&given) {
                return Err(PlanError::DevicesAbove { devices, flag, given });
            }
        }
        Ok(())
    }

    pub(super) fn validate_threads(&self) -> Result<(), PlanError> {
        match (self.threads, self.queue_pairs) {
            (Some(given), _) if given > MOST_THREADS => Err(PlanError::TooManyThreads { given }),
            (Some(threads), queue_pairs) if threads > queue_pairs => {
                Err(PlanError::ThreadsAboveQueuePairs { threads, queue_pairs })
            }
            (Some(threads @ 2..), _) if self.path_options.rdma_cm => {
                Err(PathOptionsError::ManagerOfOne { flag: format!("--threads {threads}") }.into())
            }
            _ => Ok(()),
        }
    }

    /// The processor's posting rate limits small messages, and the link limits large ones, unless
    /// processors copy them.
    fn auto_threads(&self, size: u64, circumstances: ChoiceInputs) -> u32 {
        let ChoiceInputs { processors, is_software, has_peer, .. } = circumstances;
        let usable = if has_peer && self.both_sides_work() { processors / 2 } else { processors };
        let wanted = match (self.measure, size) {
            (Measure::Latency(_) | Measure::Echo(_), _) => 1,
            // rdma_cm connects the queue pairs of one thread only.
            _ if self.path_options.rdma_cm => 1,
            _ if is_software => u32::MAX,
            (_, ..=4096) => 8,
            (_, ..=32768) => 4,
            (_, ..=262_144) => 2,
            _ => 1,
        };
        wanted.min(usable).clamp(1, MOST_THREADS)
    }

    /// The number of messages that keeps a link busy: a power of two, and at least one list.
    fn auto_depth(&self, size: u64, ChoiceInputs { max_qp_wr, max_cqe, .. }: ChoiceInputs) -> u32 {
        match self.measure {
            Measure::Bandwidth => {
                let messages = (BYTES_UNDER_WAY / size.max(1)).clamp(8, 1024) as u32;
                let messages = messages.min(max_qp_wr).min(max_cqe / self.largest_share()).max(1);
                // The largest power of two up to that number.
                let depth = 1 << messages.ilog2();
                depth.max(self.post_list)
            }
            measure => measure.default_tx_depth(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::RunPlan;

    const HERE: ChoiceInputs = ChoiceInputs {
        processors: 16,
        is_software: false,
        has_peer: false,
        devices: 1,
        max_qp_wr: 16384,
        max_cqe: 1 << 20,
    };

    fn plan(flags: &str) -> Result<RunPlan, PlanError> {
        let words = format!("stride-perf {flags}");
        RunPlan::new(cli::parse(words.split_whitespace()).unwrap())
    }

    fn settled(flags: &str, circumstances: ChoiceInputs) -> (TestPlan, Vec<String>) {
        let plan = plan(flags).unwrap();
        plan.local.choices.settle(plan.test, circumstances)
    }

    #[test]
    fn queue_pairs_are_shared_out() {
        let test = plan("write bw --threads 3 -q 8").unwrap().test;
        let shares: Vec<_> = (0..3).map(|thread| test.share(thread).queue_pairs).collect();
        assert_eq!((shares, test.largest_share()), (vec![3, 3, 2], 3));
        let test = plan("write bw --threads 4").unwrap().test;
        assert_eq!((test.queue_pairs, test.share(3).queue_pairs, test.thread_count()), (4, 1, 4));
        let test = plan("write bw").unwrap().test;
        assert_eq!((test.threads, test.share(0)), (None, test.clone()));
    }

    #[test]
    fn threads_want_a_queue_pair_each() {
        let refused = |flags: &str| plan(flags).unwrap_err().to_string();
        assert_eq!(
            refused("write bw --threads 4 -q 2"),
            "--threads 4 is above the queue pairs that they share, -q 2: give --threads 2 or less, or -q 4 or more"
        );
        assert!(refused("write bw --threads 0").starts_with("--threads 0 is below"));
        assert!(refused("write bw --threads 257").contains("the most threads of a test, 256"));
        assert!(refused("write lat --threads 2 -q 3").contains("a latency test, 2, one for each thread"));
        assert_eq!(plan("write lat --threads 2").unwrap().test.queue_pairs, 2);
    }

    #[test]
    fn threads_are_chosen_by_size_and_processors() {
        let threads = |flags: &str, circumstances| {
            let (test, notes) = settled(&format!("{flags} --threads auto"), circumstances);
            assert!(notes.len() == 1 && notes[0].starts_with("--threads auto: "), "{notes:?}");
            assert_eq!(test.validate(), Ok(()));
            test.threads.unwrap()
        };
        assert_eq!(
            [64, 4096, 8192, 65536, 1 << 20].map(|size| threads(&format!("write bw -s {size}"), HERE)),
            [8, 8, 4, 2, 1]
        );
        assert_eq!(threads("write bw -s 64", ChoiceInputs { processors: 2, ..HERE }), 2);
        assert_eq!(threads("write bw -s 1M", ChoiceInputs { is_software: true, ..HERE }), 16);
        assert_eq!(threads("send bw -s 1M", ChoiceInputs { is_software: true, has_peer: true, ..HERE }), 8);
        assert_eq!(threads("write bw -s 1M", ChoiceInputs { devices: 3, ..HERE }), 3);
        assert_eq!(threads("send bw", ChoiceInputs { processors: 1, has_peer: true, ..HERE }), 1);
        assert_eq!(
            (threads("write lat", HERE), threads("write bw -a", HERE), threads("write bw -s 64 -q 3", HERE)),
            (1, 8, 3)
        );
    }

    #[test]
    fn the_depth_is_chosen_by_size() {
        let depth = |flags: &str| {
            let (test, notes) = settled(&format!("{flags} -t auto"), HERE);
            assert_eq!(
                notes,
                [format!("-t auto: {}, for messages of {} bytes", test.tx_depth, test_size(&test))]
            );
            assert_eq!(test.validate(), Ok(()));
            test.tx_depth
        };
        let sizes =
            ["64", "4K", "12345", "64K", "1M", "8M"].map(|size| depth(&format!("write bw -s {size}")));
        assert_eq!(sizes, [1024, 1024, 256, 64, 8, 8]);
        assert_eq!(
            (depth("write bw -a"), depth("write lat"), depth("write bw -s 1M -l 64 -n 640")),
            (1024, 1, 64)
        );
        assert_eq!(depth("write bw -l 256 -n 2560"), 256);
        let few = ChoiceInputs { max_qp_wr: 100, max_cqe: 160, ..HERE };
        assert_eq!(settled("write bw -s 64 -t auto", few).0.tx_depth, 64);
        assert_eq!(settled("write bw -s 64 -t auto -q 10", few).0.tx_depth, 16);
        // Given parameters are kept.
        let (test, notes) = settled("write bw -t 7", HERE);
        assert_eq!((test.tx_depth, notes.len()), (7, 0));
    }
}
