//! Extended reliable connections (`-c XRC`): each queue pair only sends, to a target of the peer,
//! and each of its requests names the peer's shared receive queue.

use serde::{Deserialize, Serialize};
use sideway::ibverbs::completion::CompletionQueue;
use sideway::ibverbs::connect::{ConnectError, ConnectOptions, Endpoint, connect_xrc_target};
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{CreateXrcTargetError, XrcTarget};
use sideway::ibverbs::srq::{CreateSharedReceiveQueueError, SharedReceiveQueue};
use sideway::ibverbs::xrc::{OpenXrcDomainError, XrcDomain, XrcDomainFlags};

use super::channel::{CompletionQueues, GenericCompletionQueues};
use crate::device::LocalDevice;
use crate::plan::TestPlan;

/// The information that the peer needs about one of this side's targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XrcTargetInfo {
    /// The target's address.
    pub endpoint: Endpoint,
    /// The number of the shared receive queue.
    pub srqn: u32,
}

/// The device cannot create the receiving end of an extended connection.
#[derive(Debug, thiserror::Error)]
#[error("-c XRC: {0}; give -c RC")]
pub enum XrcError {
    /// The device opens no XRC domain.
    Domain(#[from] OpenXrcDomainError),
    /// The device creates no target queue pair.
    Target(#[from] CreateXrcTargetError),
    /// The device creates no shared receive queue.
    Queue(#[from] CreateSharedReceiveQueueError),
    /// The shared receive queue has no number that peers can name.
    #[error("-c XRC: the shared receive queue has no number; give -c RC")]
    NoNumber,
    /// A target could not be connected.
    Connect(#[from] ConnectError),
}

/// The receiving ends of a side, one for each of its queue pairs.
#[derive(Debug)]
pub(super) struct XrcReceivers {
    targets: Vec<(XrcTarget, XrcTargetInfo)>,
}

/// Creates the receiving ends, and the queue that they share.
pub(super) fn receivers(
    device: &LocalDevice,
    pd: &ProtectionDomain,
    ends: &GenericCompletionQueues,
    test: &TestPlan,
    packet_seq_num: u32,
) -> Result<(XrcReceivers, SharedReceiveQueue), XrcError> {
    let domain = device.context.open_xrcd(None, XrcDomainFlags::Create)?;
    let srq = match ends {
        GenericCompletionQueues::Basic(CompletionQueues { sent, received }) => {
            queue(pd, &domain, received.as_ref().map_or(&sent.queue, |received| &received.queue), test)
        }
        GenericCompletionQueues::Extended(CompletionQueues { sent, received }) => {
            queue(pd, &domain, received.as_ref().map_or(&sent.queue, |received| &received.queue), test)
        }
    }?;
    let srqn = srq.srqn().ok_or(XrcError::NoNumber)?;
    let target = |_| {
        let target = domain.create_target()?;
        let endpoint = Endpoint::of_xrc_target(&target, &device.path, packet_seq_num);
        Ok((target, XrcTargetInfo { endpoint, srqn }))
    };
    let targets = (0..test.queue_pairs).map(target).collect::<Result<_, XrcError>>()?;
    Ok((XrcReceivers { targets }, srq))
}

fn queue(
    pd: &ProtectionDomain,
    domain: &XrcDomain,
    completions: &impl CompletionQueue,
    test: &TestPlan,
) -> Result<SharedReceiveQueue, CreateSharedReceiveQueueError> {
    pd.create_srq_builder().setup_max_wr(test.receive_depth().max(1)).setup_xrc(domain, completions).build()
}

impl XrcReceivers {
    /// The information that the peer needs about the target with this number.
    pub(super) fn target(&self, number: usize) -> Option<XrcTargetInfo> {
        self.targets.get(number).map(|(_, target)| target.clone())
    }

    /// Connects the target with this number to one of the peer's queue pairs.
    pub(super) fn connect(
        &mut self,
        number: usize,
        device: &LocalDevice,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<(), XrcError> {
        if let Some((target, XrcTargetInfo { endpoint, .. })) = self.targets.get_mut(number) {
            connect_xrc_target(target, &device.path, endpoint, remote, options)?;
        }
        Ok(())
    }
}
