//! Checks a test against the limits of a device.

use super::{ConnectionType, PathOptionsError, PlanError, SizeSweep, Sizes, TestOperation, TestPlan};

/// The limits of a device and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The device's name.
    pub device: String,
    /// The port's number, from 1.
    pub port: u8,
    /// The number of queue pairs.
    pub max_qp: u32,
    /// Work requests in a queue.
    pub max_qp_wr: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Length of a message in bytes.
    pub max_msg_sz: u32,
    /// The port's MTU in bytes.
    pub mtu: u32,
    /// Reads and atomic operations that a queue pair answers at a time.
    pub max_qp_rd_atom: u8,
    /// Reads and atomic operations that a queue pair has outstanding at a time.
    pub max_qp_init_rd_atom: u8,
    /// Whether the device supports atomic operations.
    pub has_atomics: bool,
    /// Partition keys of the port.
    pub pkeys: u32,
    /// Whether the device supports extended reliable connections.
    pub has_xrc: bool,
    /// Scatter-gather entries of a work request.
    pub max_sge: u32,
    /// Scatter-gather entries of a READ.
    pub max_sge_rd: u32,
    /// Completion vectors.
    pub num_comp_vectors: u32,
    /// The number of shared receive queues.
    pub max_srq: u32,
    /// Receives in a shared receive queue.
    pub max_srq_wr: u32,
}

/// A value that a device limits: the flag, its value, the resulting count, the limit and its
/// attribute.
struct Limited {
    flag: &'static str,
    given: u32,
    count: u64,
    limit: u32,
    name: &'static str,
}

impl TestPlan {
    /// Checks that this device can run the test.
    pub fn check(&self, limits: &DeviceLimits) -> Result<(), PlanError> {
        let device = || limits.device.clone();
        if self.operation.is_atomic() && !limits.has_atomics {
            return Err(PlanError::NoAtomics { device: device() });
        }
        self.path_options.check(limits)?;
        self.check_queues(limits)?;
        for Limited { flag, given, count, limit, name } in self.limited(limits) {
            if count > u64::from(limit) {
                let most = match self.largest_share() {
                    pairs @ 2.. if count > u64::from(given) => limit / pairs,
                    _ => limit,
                };
                return Err(PlanError::AboveDevice {
                    flag,
                    given,
                    count,
                    name,
                    device: device(),
                    limit,
                    most,
                });
            }
        }
        self.check_sizes(limits)
    }

    fn limited(&self, limits: &DeviceLimits) -> [Limited; 7] {
        let pairs = self.queue_pairs;
        let largest = self.share(0);
        let (send, receive) = (self.depth(), largest.receive_depth());
        let DeviceLimits { max_qp, max_qp_wr, max_cqe, max_qp_init_rd_atom, .. } = *limits;
        // Each thread has a completion queue, and a shared receive queue if its queue pairs share
        // one.
        let of_all = |given: u32| u64::from(given) * u64::from(self.largest_share());
        let received = u64::from(receive) * u64::from(largest.receive_queues());
        let (receives, receives_name) = self.receive_limit(limits);
        let shared = if self.shares_receives() { self.thread_count() } else { 0 };
        let outstanding = u32::from(self.outstanding.unwrap_or(0));
        [
            Limited { flag: "-q", given: pairs, count: pairs.into(), limit: max_qp, name: "max_qp" },
            Limited {
                flag: "--threads",
                given: shared,
                count: shared.into(),
                limit: limits.max_srq,
                name: "max_srq",
            },
            Limited { flag: "-t", given: send, count: send.into(), limit: max_qp_wr, name: "max_qp_wr" },
            Limited {
                flag: "-r",
                given: receive,
                count: receive.into(),
                limit: receives,
                name: receives_name,
            },
            Limited { flag: "-t", given: send, count: of_all(send), limit: max_cqe, name: "max_cqe" },
            Limited { flag: "-r", given: receive, count: received, limit: max_cqe, name: "max_cqe" },
            Limited {
                flag: "-o",
                given: outstanding,
                count: outstanding.into(),
                limit: max_qp_init_rd_atom.into(),
                name: "max_qp_init_rd_atom",
            },
        ]
    }

    fn check_sizes(&self, limits: &DeviceLimits) -> Result<(), PlanError> {
        let (flag, given) = match self.sizes {
            Sizes::One { size } | Sizes::Again { size, .. } => ("-s", size),
            Sizes::PowersOfTwo { .. } | Sizes::Sweep(_) | Sizes::Grid { .. } => {
                ("--max-msg-size", self.sizes.largest())
            }
        };
        let (device, port) = (limits.device.clone(), limits.port);
        if self.connection == ConnectionType::Ud {
            match self.path_options.mtu {
                Some(mtu) if given > u64::from(mtu) => {
                    return Err(PathOptionsError::SizeAboveMtu { flag, given, mtu }.into());
                }
                None if given > u64::from(limits.mtu) => {
                    return Err(PlanError::SizeAboveMtu { flag, given, device, port, limit: limits.mtu });
                }
                _ => {}
            }
        }
        if given > u64::from(limits.max_msg_sz) {
            let limit = limits.max_msg_sz;
            return Err(PlanError::SizeAbovePort { flag, given, device, port, limit });
        }
        Ok(())
    }

    /// Adapts parameters that the user did not give to this device: datagrams have sizes up to the
    /// MTU, as in perftest.
    pub fn fitted(&self, limits: &DeviceLimits, any_size: bool) -> Self {
        let mtu = u64::from(self.path_options.mtu(limits.mtu));
        let sizes = match self.sizes {
            sizes if !any_size || self.connection != ConnectionType::Ud => sizes,
            Sizes::One { size } => Sizes::One { size: size.min(mtu) },
            Sizes::Again { size, count } => Sizes::Again { size: size.min(mtu), count },
            Sizes::PowersOfTwo { max } => Sizes::PowersOfTwo { max: max.min(mtu) },
            Sizes::Sweep(sweep) => {
                Sizes::Sweep(SizeSweep { max: sweep.max.min(mtu.max(sweep.min)), ..sweep })
            }
            Sizes::Grid { max } => Sizes::Grid { max: max.min(mtu) },
        };
        let (most, _) = self.receive_limit(limits);
        let rx_depth = match self.rx_depth {
            None if self.share(0).receive_depth() > most => Some(most),
            asked => asked,
        };
        Self { sizes, rx_depth, ..self.clone() }
    }

    /// Reads and atomic operations that a queue pair has outstanding at a peer that answers
    /// `answered` at a time: the largest possible number, unless the user gave one.
    pub fn outstanding(&self, limits: &DeviceLimits, answered: u8) -> u8 {
        match self.operation {
            operation if !operation.fetches() => 1,
            _ => self.outstanding.unwrap_or(limits.max_qp_init_rd_atom).min(answered).max(1),
        }
    }

    /// Reads and atomic operations of the peer that a queue pair answers at a time.
    pub fn answered(&self, limits: &DeviceLimits) -> u8 {
        match self.operation {
            TestOperation::Read
            | TestOperation::Mix(_)
            | TestOperation::FetchAdd
            | TestOperation::CompareSwap => limits.max_qp_rd_atom.max(1),
            _ => 1,
        }
    }
}
