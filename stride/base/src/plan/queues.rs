//! Options of queues and of waiting for completions.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ConnectionType, DeviceLimits, LatencyDefinition, Measure, TestOperation, TestPlan};
use crate::cli::QueueArgs;

/// perftest's number of completions per poll.
const DEFAULT_POLL_BATCH: u32 = 16;

/// The most completions per poll; more exceed every cache.
const MOST_POLLED: u32 = 1 << 16;

/// The most scatter-gather entries for which this program has room.
pub const MOST_ENTRIES: u32 = 64;

/// The queue options that the user gave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// Whether threads sleep until a completion event arrives.
    pub events: bool,
    /// Whether all queue pairs of a thread share a receive queue.
    pub use_srq: bool,
    /// Scatter-gather entries of a request, if the user gave a number.
    pub sge: Option<u32>,
    /// Completions per poll, if the user gave a number.
    pub cqe_poll: Option<u32>,
    /// The completion vector, if the user gave one.
    pub vector: Option<u32>,
}

/// Queue options that are invalid or conflict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The test waits for a message in memory, which raises no event.
    #[error(
        "-e and --latency pingpong of write do not go together, as what arrives in memory makes no event: give --latency \
         completion, or add --imm"
    )]
    NoEvent,
    /// A completion vector matters only with events.
    #[error("-X {given} without -e, which has completions make events: add -e, or leave -X out")]
    VectorWithoutEvents {
        /// The vector that the user gave.
        given: u32,
    },
    /// The device has fewer completion vectors.
    #[error(
        "-X {given} is none of the {count} completion vectors of {device} (num_comp_vectors), which count from 0: {}",
        match count.checked_sub(1) {
            Some(last) => format!("give -X {last} or less"),
            None => "leave -X out".to_owned(),
        }
    )]
    NoVector {
        /// The vector that the user gave.
        given: u32,
        /// The device's name.
        device: String,
        /// The device's number of vectors.
        count: u32,
    },
    /// The operation consumes no receives.
    #[error("--use-srq with {operation}, which takes no receives: leave --use-srq out{}", if *operation == TestOperation::Write {", or add --imm"} else {""})]
    NoReceives {
        /// The operation of the test.
        operation: TestOperation,
    },
    /// With shared receives, the position of a message is not known, so it cannot be validated.
    #[error(
        "{flag}, -q {queue_pairs} and --data-validation do not go together with {operation}, as messages of all queue pairs          come to the same memory in any order: leave one of them out"
    )]
    AnyOrder {
        /// The flag that shares receives.
        flag: &'static str,
        /// The number of queue pairs.
        queue_pairs: u32,
        /// The operation of the test.
        operation: TestOperation,
    },
    /// The device does not support shared receive queues.
    #[error(
        "{device} has no shared receive queues (max_srq): leave --use-srq out, or choose another device with -d"
    )]
    NoSharedQueues {
        /// The device's name.
        device: String,
    },
    /// The device does not support extended reliable connections.
    #[error(
        "-c XRC: {device} has no extended reliable connections (IBV_DEVICE_XRC): give -c RC, or choose another device with -d"
    )]
    NoExtendedConnections {
        /// The device's name.
        device: String,
    },
    /// The number of entries exceeds this program's limit.
    #[error(
        "--sge {given} is above the entries that this program has room for, {MOST_ENTRIES}: give --sge {MOST_ENTRIES} or less"
    )]
    EntriesTooMany {
        /// The number that the user gave.
        given: u32,
    },
    /// The number of entries exceeds the device's limit.
    #[error("--sge {given} is above {name} of {device}, {limit}: give --sge {limit} or less")]
    EntriesAboveDevice {
        /// The number that the user gave.
        given: u32,
        /// The attribute with the limit.
        name: &'static str,
        /// The device's name.
        device: String,
        /// The device's limit.
        limit: u32,
    },
    /// An atomic operation has exactly one entry.
    #[error("--sge {given} with {operation}, of which each is of one number in one place: leave --sge out")]
    EntriesOfAtomics {
        /// The number that the user gave.
        given: u32,
        /// The operation of the test.
        operation: TestOperation,
    },
    /// An inline message has no entries.
    #[error(
        "--sge {given} and -I {inline_size} do not go together, as a message is copied or is in entries: leave one of them out"
    )]
    EntriesInline {
        /// The number of entries that the user gave.
        given: u32,
        /// The inline size in bytes.
        inline_size: u32,
    },
    /// A latency test has one completion at a time.
    #[error(
        "--cqe-poll {given} is above the limit of a latency test, 1: leave --cqe-poll out, or measure bw"
    )]
    PolledInLatency {
        /// The number that the user gave.
        given: u32,
    },
    /// The number of completions exceeds this program's limit.
    #[error(
        "--cqe-poll {given} is above what this program takes at a time, {MOST_POLLED}: give --cqe-poll {MOST_POLLED} or less"
    )]
    PolledTooMany {
        /// The number that the user gave.
        given: u32,
    },
}

impl From<&QueueArgs> for Queues {
    fn from(args: &QueueArgs) -> Self {
        let QueueArgs { events, use_srq, sge, cqe_poll, vector } = *args;
        Self { events, use_srq, sge, cqe_poll, vector }
    }
}

impl Queues {
    /// Counts that must not be 0, with their flags.
    pub(super) fn counts(&self) -> [(&'static str, Option<u32>); 2] {
        [("--cqe-poll", self.cqe_poll), ("--sge", self.sge)]
    }
}

impl TestPlan {
    /// Completions per poll.
    pub fn poll_batch(&self) -> u32 {
        match self.takes_one_at_a_time() {
            true => 1,
            false => self.queues.cqe_poll.unwrap_or(DEFAULT_POLL_BATCH),
        }
    }

    /// Whether at most one completion is outstanding, because at most one message is in flight.
    fn takes_one_at_a_time(&self) -> bool {
        self.measure != Measure::Bandwidth && self.rate.is_none()
    }

    /// Checks the options against each other and the test.
    pub(super) fn validate_queues(&self) -> Result<(), QueueError> {
        let ping_pong = Measure::Latency(LatencyDefinition::PingPong);
        if self.queues.events && (self.operation, self.measure) == (TestOperation::Write, ping_pong) {
            return Err(QueueError::NoEvent);
        }
        if let (false, Some(given)) = (self.queues.events, self.queues.vector) {
            return Err(QueueError::VectorWithoutEvents { given });
        }
        self.validate_sharing()?;
        self.validate_entries()?;
        match (self.takes_one_at_a_time(), self.queues.cqe_poll) {
            (_, Some(given)) if given > MOST_POLLED => Err(QueueError::PolledTooMany { given }),
            (false, _) | (_, None | Some(1)) => Ok(()),
            (true, Some(given)) => Err(QueueError::PolledInLatency { given }),
        }
    }

    /// Scatter-gather entries of a request.
    pub fn entries(&self) -> u32 {
        self.queues.sge.unwrap_or(1)
    }

    fn validate_entries(&self) -> Result<(), QueueError> {
        match (self.entries(), self.inline_size.unwrap_or(0)) {
            (..=1, _) => Ok(()),
            (given, _) if given > MOST_ENTRIES => Err(QueueError::EntriesTooMany { given }),
            (given, _) if self.operation.is_atomic() => {
                Err(QueueError::EntriesOfAtomics { given, operation: self.operation })
            }
            (_, 0) => Ok(()),
            (given, inline_size) => Err(QueueError::EntriesInline { given, inline_size }),
        }
    }

    fn check_entries(&self, limits: &DeviceLimits) -> Result<(), QueueError> {
        let (reads, others) = ((limits.max_sge_rd, "max_sge_rd"), (limits.max_sge, "max_sge"));
        let (limit, name) = match self.operation {
            TestOperation::Read => reads,
            TestOperation::Mix(_) => reads.min(others),
            _ => others,
        };
        let given = self.entries();
        if given <= limit.max(1) {
            return Ok(());
        }
        Err(QueueError::EntriesAboveDevice { given, name, device: limits.device.clone(), limit })
    }

    /// Whether all queue pairs of a thread share a receive queue. The target of an extended
    /// connection always uses a shared one.
    pub fn shares_receives(&self) -> bool {
        self.queues.use_srq || self.connection == ConnectionType::Xrc
    }

    fn validate_sharing(&self) -> Result<(), QueueError> {
        let Self { operation, data_validation, .. } = *self;
        let queue_pairs = self.largest_share();
        if self.queues.use_srq && !operation.takes_receives() {
            return Err(QueueError::NoReceives { operation });
        }
        let is_placed =
            !matches!(operation, TestOperation::Send | TestOperation::SendImm) || queue_pairs == 1;
        if self.shares_receives() && data_validation && !is_placed {
            let flag = if self.queues.use_srq { "--use-srq" } else { "-c XRC" };
            return Err(QueueError::AnyOrder { flag, queue_pairs, operation });
        }
        Ok(())
    }

    /// Checks the options against the device's limits.
    pub(super) fn check_queues(&self, limits: &DeviceLimits) -> Result<(), QueueError> {
        self.check_entries(limits)?;
        let (device, count) = (|| limits.device.clone(), limits.num_comp_vectors);
        if let Some(given) = self.queues.vector.filter(|vector| *vector >= count) {
            return Err(QueueError::NoVector { given, device: device(), count });
        }
        if self.connection == ConnectionType::Xrc && !limits.has_xrc {
            return Err(QueueError::NoExtendedConnections { device: device() });
        }
        match self.shares_receives() && limits.max_srq == 0 {
            true => Err(QueueError::NoSharedQueues { device: device() }),
            false => Ok(()),
        }
    }

    /// The number of receive queues of a thread.
    pub fn receive_queues(&self) -> u32 {
        if self.shares_receives() { 1 } else { self.queue_pairs }
    }

    /// The number of messages that arrive at each of them.
    pub fn messages_received(&self) -> u64 {
        let senders = if self.shares_receives() { self.queue_pairs } else { 1 };
        self.most_messages().saturating_mul(senders.into())
    }

    /// The device's limit on the receives of a queue, and the attribute's name.
    pub(super) fn receive_limit(&self, limits: &DeviceLimits) -> (u32, &'static str) {
        match self.shares_receives() {
            true => (limits.max_srq_wr, "max_srq_wr"),
            false => (limits.max_qp_wr, "max_qp_wr"),
        }
    }

    /// The options' names, with their flags, and their values, for the comparison of both sides.
    pub(super) fn queue_rows(&self) -> [(&'static str, String); 5] {
        let value = |given: Option<u32>| given.map_or("the default".to_owned(), |given| given.to_string());
        [
            ("events (-e)", self.queues.events.to_string()),
            ("completion vector (-X)", value(self.queues.vector)),
            ("shared receive queue (--use-srq)", self.queues.use_srq.to_string()),
            ("entries of a request (--sge)", value(self.queues.sge)),
            ("completions at a time (--cqe-poll)", value(self.queues.cqe_poll)),
        ]
    }
}

impl fmt::Display for Queues {
    /// The options that were given, each after a comma.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.use_srq {
            f.write_str(", shared receive queue")?;
        }
        if let Some(count) = self.sge {
            write!(f, ", {count} entries")?;
        }
        if let Some(count) = self.cqe_poll {
            write!(f, ", {count} completions at a time")?;
        }
        if self.events {
            f.write_str(", by events")?;
        }
        self.vector.map_or(Ok(()), |vector| write!(f, " of completion vector {vector}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::{PlanError, RunPlan};

    fn plan(line: &str) -> Result<TestPlan, PlanError> {
        let words = ["stride-perf"].into_iter().chain(line.split_whitespace());
        RunPlan::new(cli::parse(words).unwrap()).map(|plan| plan.test)
    }

    #[test]
    fn completions_are_taken_as_perftest_does_unless_asked_for() {
        assert_eq!(plan("send bw").unwrap().poll_batch(), 16);
        assert_eq!(plan("send bw --cqe_poll 3").unwrap().poll_batch(), 3);
        assert_eq!(plan("send lat").unwrap().poll_batch(), 1);
        assert_eq!(plan("send lat --rate 5 --cqe-poll 7").unwrap().poll_batch(), 7);
        let refused = |line: &str| plan(line).expect_err(line).to_string();
        assert!(refused("write bw --cqe-poll 0").starts_with("--cqe-poll 0 is below"));
        assert!(refused("write bw --cqe-poll 65537").contains("this program takes at a time, 65536"));
        assert!(refused("write lat --cqe-poll 2").contains("the limit of a latency test, 1"));
    }

    #[test]
    fn a_shared_queue_has_the_receives_of_all() {
        let test = plan("send bw -q 8 -n 100 --use-srq").unwrap();
        assert_eq!((test.receive_depth(), test.receive_queues(), test.messages_received()), (512, 1, 800));
        assert_eq!(plan("send bw -q 2 -n 100 --use-srq").unwrap().receive_depth(), 200);
        assert_eq!(plan("send bw -q 2 -n 100").unwrap().receive_depth(), 100);
        let limits = crate::plan::tests::limits();
        let refused = |limits: &DeviceLimits| test.check(limits).unwrap_err().to_string();
        assert!(
            refused(&DeviceLimits { max_srq: 0, ..limits.clone() })
                .contains("mlx5_0 has no shared receive queues")
        );
        assert_eq!(
            refused(&DeviceLimits { max_srq_wr: 500, ..limits.clone() }),
            "-r 512 is above max_srq_wr of mlx5_0, 500: give -r 500 or less"
        );
        // Each thread has a shared receive queue.
        let threads = plan("send bw -q 8 -n 100 --use-srq --threads 4").unwrap();
        let text = threads.check(&DeviceLimits { max_srq: 3, ..limits.clone() }).unwrap_err().to_string();
        assert_eq!(text, "--threads 4 is above max_srq of mlx5_0, 3: give --threads 3 or less");
        assert_eq!((threads.share(0).receive_depth(), threads.share(0).messages_received()), (200, 200));
        assert!(threads.check(&DeviceLimits { max_srq_wr: 200, ..limits.clone() }).is_ok());
        // The completion queue holds the receives of all queue pairs, which equal those of the
        // shared queue.
        assert!(test.check(&DeviceLimits { max_cqe: 1024, ..limits }).is_ok());
    }

    #[test]
    fn an_extended_connection_has_one_receive_queue() {
        let test = plan("send bw -c XRC -q 8 -n 100").unwrap();
        assert!(test.connection.is_reliable());
        assert_eq!((test.receive_depth(), test.receive_queues()), (512, 1));
        assert_eq!(plan("write bw -c xrc").unwrap().receive_depth(), 0);
        let limits = DeviceLimits { has_xrc: false, ..crate::plan::tests::limits() };
        let text = test.check(&limits).unwrap_err().to_string();
        assert!(text.starts_with("-c XRC: mlx5_0 has no extended reliable connections"), "{text}");
    }

    #[test]
    fn a_request_has_as_many_entries_as_the_device_takes() {
        let test = |line: &str| plan(line).unwrap();
        let limits = crate::plan::tests::limits();
        let refused = |line: &str| test(line).check(&limits).expect_err(line).to_string();
        assert_eq!((test("send bw").entries(), test("send bw --sge 30").entries()), (1, 30));
        assert!(
            test("send bw --sge 30").check(&limits).is_ok()
                && test("read bw --sge 20").check(&limits).is_ok()
        );
        assert_eq!(
            refused("write bw --sge 31"),
            "--sge 31 is above max_sge of mlx5_0, 30: give --sge 30 or less"
        );
        assert!(refused("read lat --sge 21").contains("max_sge_rd of mlx5_0, 20"));
    }

    #[test]
    fn tests_without_events_refuse_the_events_flag() {
        for line in
            ["write lat -e --imm", "write lat -e --latency completion", "send lat --events", "write bw -e"]
        {
            assert!(plan(line).unwrap().queues.events, "{line}");
        }
        let error = plan("write lat -e").unwrap_err();
        assert_eq!(error, PlanError::Queues(QueueError::NoEvent));
        assert!(plan("read bw -e").unwrap().to_string().ends_with(", by events"));
    }

    #[test]
    fn events_are_of_a_vector_that_the_device_has() {
        let test = plan("read bw -e -X 1").unwrap();
        assert!(test.to_string().ends_with(", by events of completion vector 1"), "{test}");
        let limits = crate::plan::tests::limits();
        assert!(test.check(&DeviceLimits { num_comp_vectors: 2, ..limits.clone() }).is_ok());
        assert_eq!(
            test.check(&DeviceLimits { num_comp_vectors: 1, ..limits }).unwrap_err().to_string(),
            "-X 1 is none of the 1 completion vectors of mlx5_0 (num_comp_vectors), which count from 0: give -X 0 or less"
        );
        let error = plan("read bw --vector 0").unwrap_err().to_string();
        assert!(error.starts_with("-X 0 without -e"), "{error}");
    }
}
