//! Rules for messages of trespass.

use trespass::Policy;

use super::{
    Api, LARGEST_BLOCK, LocalOptions, Measure, PlanError, RunPlan, SideRole, SizeSweep, Sizes, TestOperation,
    TestPlan,
};
use crate::cli::{CountOrAuto, RunArgs};

/// Messages that a connection may have lent at a time.
const LENT_LIMIT: u32 = 1024;

/// Requests that each side of a mux accepts at a time.
pub const MOST_REQUESTS: u32 = 1024;

/// The longest message of trespass in bytes.
pub const LONGEST: u64 = 1 << 30;

impl TestPlan {
    /// Checks that a connection of trespass can run the test.
    pub(super) fn validate_messages(&self, api: Api) -> Result<(), PlanError> {
        let limit = if api == Api::Pool { LARGEST_BLOCK } else { LONGEST };
        let given = match self.sizes {
            Sizes::One { size } | Sizes::Again { size, .. } => size,
            Sizes::PowersOfTwo { max } | Sizes::Grid { max } | Sizes::Sweep(SizeSweep { max, .. }) => max,
        };
        if given > limit {
            let flag = if matches!(self.sizes, Sizes::One { .. }) { "-s" } else { "--max-msg-size" };
            return Err(PlanError::MessageTooLong { flag, given, limit });
        }
        let most_in_flight = match self.measure {
            Measure::Echo(echo) => echo.in_flight.largest(),
            measure if api == Api::Mux => return Err(PlanError::MuxOfGrid { measure }),
            _ => 0,
        };
        if api == Api::Mux && most_in_flight > MOST_REQUESTS {
            return Err(PlanError::TooManyRequests { given: most_in_flight, limit: MOST_REQUESTS });
        }
        if api == Api::Pool && self.tx_depth > LENT_LIMIT {
            return Err(PlanError::TooManyBlocks { given: self.tx_depth, limit: LENT_LIMIT });
        }
        Ok(())
    }
}

/// Checks that the delay of answers applies, and warns a side that gives none.
pub(super) fn delay_warning(given: u32, plan: &RunPlan) -> Result<Option<String>, PlanError> {
    if plan.test.operation != TestOperation::Messages(Api::Mux) {
        return Err(PlanError::DelayOfMux { given });
    }
    let is_client = matches!(plan.role, SideRole::Client(_));
    Ok(is_client.then(|| format!("--delay-us {given} has no effect on a client: give it to the server")))
}

/// Tests that a cork does not affect, because it holds nothing back there.
pub(super) fn uncorked(test: &TestPlan) -> Option<&'static str> {
    match (test.operation, test.measure) {
        (TestOperation::Messages(Api::Pool), _) => Some("--api pool: its blocks are frames of their own"),
        (_, Measure::Latency(_)) => {
            Some("latency: each side waits for the other, and nobody holds back then")
        }
        (_, Measure::Echo(_)) => Some("grid: with several in flight both sides cork anyway"),
        (_, Measure::Bandwidth) => None,
    }
}

/// Warnings about flags without effect.
pub(super) fn warnings(
    args: &RunArgs,
    test: &TestPlan,
    local: &LocalOptions,
) -> Result<Vec<String>, PlanError> {
    if let (Some(given), None) = (local.ib_port, &local.device) {
        return Err(PlanError::PortWithoutDevice { given });
    }
    let mut warnings = Vec::new();
    let streams = !matches!(test.measure, Measure::Echo(_));
    if let (TestOperation::Messages(Api::Copy), Some(depth), true) =
        (test.operation, CountOrAuto::given(args.tx_depth), streams)
    {
        warnings.push(format!(
            "-t {depth} has no effect on --api copy: the connection's buffers say how many messages are under way"
        ));
    }
    if let (TestOperation::Messages(Api::Pool), Measure::Latency(_), Some(depth @ 2..)) =
        (test.operation, test.measure, CountOrAuto::given(args.tx_depth))
    {
        warnings.push(format!("-t {depth} has no effect on latency: there is one message under way"));
    }
    if local.transport == Policy::TcpOnly && (local.device.is_some() || local.gid_index.is_some()) {
        warnings.push("-d and -x have no effect with --transport tcp: leave them out".to_owned());
    }
    if local.transport == Policy::TcpOnly && local.poll {
        warnings.push("--poll has no effect with --transport tcp: leave it out".to_owned());
    }
    Ok(warnings)
}
