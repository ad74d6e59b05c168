//! Extended reliable connections (`-c XRC`): each queue pair only sends, to a target of the peer,
//! and each of its requests names the peer's shared receive queue.

use sideway::ibverbs::completion::CompletionQueue;
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, connect_xrc_target};
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::XrcTarget;
use sideway::ibverbs::srq::{CreateSharedReceiveQueueError, SharedReceiveQueue};
use sideway::ibverbs::xrc::{XrcDomain, XrcDomainFlags};

use super::channel::{CompletionQueues, GenericCompletionQueues};
use stride_base::control::XrcTargetInfo;
use stride_base::device::LocalDevice;
use stride_base::error::XrcError;
use stride_base::plan::TestPlan;

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
