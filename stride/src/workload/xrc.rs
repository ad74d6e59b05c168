//! Extended reliable connections (`-c XRC`): each queue pair only sends, to a target of the peer's; each of its requests names
//! the peer's one shared receive queue.

use serde::{Deserialize, Serialize};
use sideway::ibverbs::completion::CompletionQueue;
use sideway::ibverbs::connect::{ConnectError, ConnectOptions, Endpoint, connect_xrc_target};
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::XrcTarget;
use sideway::ibverbs::srq::{CreateSharedReceiveQueueError, SharedReceiveQueue};
use sideway::ibverbs::xrc::{XrcDomain, XrcDomainFlags};

use super::channel::{Ends, GenericEnds};
use crate::device::LocalDevice;
use crate::plan::TestPlan;

/// What the peer needs to know of one of this side's targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Where it is.
    pub endpoint: Endpoint,
    /// The number of the shared receive queue.
    pub srqn: u32,
}

/// The device makes no end of an extended connection.
#[derive(Debug, thiserror::Error)]
#[error("-c XRC: {0}; give -c RC")]
pub enum XrcError {
    /// No domain, or no target.
    Verb(#[from] sideway::Error),
    /// No shared receive queue.
    Queue(#[from] CreateSharedReceiveQueueError),
    /// A shared receive queue that peers cannot name.
    #[error("-c XRC: the shared receive queue has no number; give -c RC")]
    NoNumber,
    /// A target did not get to where it answers.
    Connect(#[from] ConnectError),
}

/// The receiving ends of a side, as many as it has queue pairs.
#[derive(Debug)]
pub(super) struct Receivers {
    targets: Vec<(XrcTarget, Target)>,
}

/// The receiving ends, and the queue that all of them fill.
pub(super) fn receivers(
    device: &LocalDevice,
    pd: &ProtectionDomain,
    ends: &GenericEnds,
    test: &TestPlan,
    packet_seq_num: u32,
) -> Result<(Receivers, SharedReceiveQueue), XrcError> {
    let domain = device.context.open_xrcd(None, XrcDomainFlags::Create)?;
    let srq = match ends {
        GenericEnds::Basic(Ends { sent, received }) => {
            queue(pd, &domain, received.as_ref().map_or(&sent.queue, |received| &received.queue), test)
        }
        GenericEnds::Extended(Ends { sent, received }) => {
            queue(pd, &domain, received.as_ref().map_or(&sent.queue, |received| &received.queue), test)
        }
    }?;
    let srqn = srq.srqn().ok_or(XrcError::NoNumber)?;
    let target = |_| {
        let target = domain.create_target()?;
        let endpoint = Endpoint::of_xrc_target(&target, &device.path, packet_seq_num);
        Ok((target, Target { endpoint, srqn }))
    };
    let targets = (0..test.queue_pairs).map(target).collect::<Result<_, XrcError>>()?;
    Ok((Receivers { targets }, srq))
}

fn queue(
    pd: &ProtectionDomain,
    domain: &XrcDomain,
    completions: &impl CompletionQueue,
    test: &TestPlan,
) -> Result<SharedReceiveQueue, CreateSharedReceiveQueueError> {
    pd.create_srq_builder().setup_max_wr(test.receive_depth().max(1)).setup_xrc(domain, completions).build()
}

impl Receivers {
    /// What the peer needs to know of the target of this number.
    pub(super) fn target(&self, number: usize) -> Option<Target> {
        self.targets.get(number).map(|(_, target)| target.clone())
    }

    /// Has the target of this number answer one of the peer's queue pairs.
    pub(super) fn connect(
        &mut self,
        number: usize,
        device: &LocalDevice,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<(), XrcError> {
        if let Some((target, Target { endpoint, .. })) = self.targets.get_mut(number) {
            connect_xrc_target(target, &device.path, endpoint, remote, options)?;
        }
        Ok(())
    }
}
