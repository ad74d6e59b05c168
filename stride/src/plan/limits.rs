//! What a device can do, against what a test asks for.

use super::{PlanError, Sizes, TestPlan};

/// What a device and its port can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The device's name.
    pub device: String,
    /// The port's number.
    pub port: u8,
    /// Work requests in a queue.
    pub max_qp_wr: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Bytes of a message.
    pub max_msg_sz: u32,
}

impl TestPlan {
    /// Refuses what this device cannot run.
    pub fn check(&self, limits: &DeviceLimits) -> Result<(), PlanError> {
        let (given, device) = (self.depth(), limits.device.clone());
        if given > limits.max_qp_wr {
            return Err(PlanError::DepthAboveQueuePair { given, device, limit: limits.max_qp_wr });
        }
        if given > limits.max_cqe {
            return Err(PlanError::DepthAboveCompletionQueue { given, device, limit: limits.max_cqe });
        }
        let (flag, given) = match self.sizes {
            Sizes::One { size } => ("-s", size),
            Sizes::PowersOfTwo { .. } | Sizes::Grid { .. } => ("--max-msg-size", self.sizes.largest()),
        };
        if given > u64::from(limits.max_msg_sz) {
            let (port, limit) = (limits.port, limits.max_msg_sz);
            return Err(PlanError::SizeAbovePort { flag, given, device, port, limit });
        }
        Ok(())
    }
}
