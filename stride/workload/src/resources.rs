//! The objects that a side creates on its device.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{
    CompletionChannel, CreateCompletionQueueError, GenericCompletionQueue, WorkCompletionFields,
    WorkCompletionOperationType,
};
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, GenericQueuePair, QueuePairType, SendOperationFlags,
};
use sideway::ibverbs::srq::SharedReceiveQueue;

use super::channel::{CompletionQueues, GenericCompletionQueues};
use super::completion::TypedCompletionQueue;
use stride_base::device::{DeviceError, LocalDevice};
use stride_base::error::Error;
use stride_base::plan::{
    ConnectionType, Measure, PostingCalls, TestOperation, TestPlan, default_inline_size,
};

/// Creates a completion queue for sends, and one for receives if the test has any. Their events go
/// to the channel, if given.
pub(super) fn completion_queues(
    device: &LocalDevice,
    test: &TestPlan,
    channel: Option<&CompletionChannel>,
) -> Result<GenericCompletionQueues, Error> {
    let of_all = |each: u32| each.saturating_mul(test.queue_pairs);
    let mut builder = device.context.create_cq_builder();
    builder.setup_cqe(of_all(test.depth())).setup_poll_batch(test.poll_batch());
    if test.device_clock {
        builder.setup_wc_flags(WorkCompletionFields::STANDARD | WorkCompletionFields::CompletionTimestamp);
    }
    if let Some(channel) = channel {
        builder.setup_comp_channel(channel).setup_comp_vector(test.queues.vector.unwrap_or(0));
    }
    let first = match device.calls {
        // Only extended queues have timestamps.
        _ if test.device_clock => builder.build_ex().map_err(|error| no_timestamps(device, &error))?.into(),
        PostingCalls::Classic => builder.build()?.into(),
        PostingCalls::Extended => builder.build_generic()?,
    };
    let receives = test.operation.takes_receives();
    builder.setup_cqe(test.receive_depth().saturating_mul(test.receive_queues()));
    let (opcode, received) = opcodes(test.operation);
    let mix = match test.operation {
        TestOperation::Mix(mix) => Some(mix),
        _ => None,
    };
    // The second queue gets the flavour of the first.
    Ok(match first {
        GenericCompletionQueue::Basic(queue) => GenericCompletionQueues::Basic(CompletionQueues {
            sent: TypedCompletionQueue::new(queue, opcode, mix),
            received: match receives {
                true => Some(TypedCompletionQueue::new(builder.build()?, received, None)),
                false => None,
            },
        }),
        GenericCompletionQueue::Extended(queue) => GenericCompletionQueues::Extended(CompletionQueues {
            sent: TypedCompletionQueue::new(queue, opcode, mix),
            received: match receives {
                true => Some(TypedCompletionQueue::new(builder.build_ex()?, received, None)),
                false => None,
            },
        }),
    })
}

fn no_timestamps(device: &LocalDevice, error: &CreateCompletionQueueError) -> DeviceError {
    DeviceError::NoTimestamps { device: device.limits.device.clone(), reason: error.to_string() }
}

/// The opcodes of completions on both sides.
fn opcodes(operation: TestOperation) -> (WorkCompletionOperationType, WorkCompletionOperationType) {
    use WorkCompletionOperationType as W;
    match operation {
        TestOperation::Write => (W::RdmaWrite, W::Receive),
        TestOperation::WriteImm => (W::RdmaWrite, W::ReceiveWithImmediate),
        TestOperation::Read => (W::RdmaRead, W::Receive),
        // The number tells a read from a write.
        TestOperation::Mix(_) => (W::RdmaWrite, W::Receive),
        TestOperation::FetchAdd => (W::FetchAndAdd, W::Receive),
        TestOperation::CompareSwap => (W::CompareAndSwap, W::Receive),
        TestOperation::Send | TestOperation::SendImm | TestOperation::Messages(_) | TestOperation::Tcp => {
            (W::Send, W::Receive)
        }
    }
}

/// Creates the shared receive queue, if the queue pairs use one.
pub(super) fn shared_queue(
    pd: &ProtectionDomain,
    test: &TestPlan,
) -> Result<Option<SharedReceiveQueue>, Error> {
    match test.queues.use_srq {
        true => Ok(Some(pd.create_srq_builder().setup_max_wr(test.receive_depth()).build()?)),
        false => Ok(None),
    }
}

pub(super) fn queue_pair(
    device: &LocalDevice,
    pd: &ProtectionDomain,
    (ends, srq): (&GenericCompletionQueues, Option<&SharedReceiveQueue>),
    test: &TestPlan,
    inline_size: u32,
) -> Result<GenericQueuePair, Error> {
    let depth = test.depth();
    let mut builder = pd.create_qp_builder();
    builder
        .setup_qp_type(match test.connection {
            ConnectionType::Rc => QueuePairType::ReliableConnection,
            ConnectionType::Uc => QueuePairType::UnreliableConnection,
            ConnectionType::Ud => QueuePairType::UnreliableDatagram,
            ConnectionType::Xrc => QueuePairType::XrcSend,
        })
        .setup_max_send_wr(depth)
        .setup_max_send_sge(test.entries())
        .setup_max_recv_wr(test.receive_depth().max(1))
        .setup_max_inline_data(inline_size)
        .setup_send_ops_flags(send_operations(test.operation));
    if let Some(srq) = srq {
        builder.setup_srq(srq);
    }
    match ends {
        GenericCompletionQueues::Basic(CompletionQueues { sent, received }) => builder
            .setup_send_cq(&sent.queue)
            .setup_recv_cq(received.as_ref().map_or(&sent.queue, |received| &received.queue)),
        GenericCompletionQueues::Extended(CompletionQueues { sent, received }) => builder
            .setup_send_cq(&sent.queue)
            .setup_recv_cq(received.as_ref().map_or(&sent.queue, |received| &received.queue)),
    };
    let built = match device.calls {
        PostingCalls::Classic => builder.build().map(Into::into),
        PostingCalls::Extended => builder.build_generic(),
    };
    built.map_err(|error| match error {
        // Devices report their inline limit only by refusing.
        CreateQueuePairError::Ibverbs { source, .. } if inline_size > 0 => {
            let (given, device) = (inline_size, device.limits.device.clone());
            DeviceError::QueuePairRefused { given, depth, device, reason: source.to_string() }.into()
        }
        error => error.into(),
    })
}

fn send_operations(operation: TestOperation) -> SendOperationFlags {
    match operation {
        TestOperation::Write => SendOperationFlags::Write,
        TestOperation::WriteImm => SendOperationFlags::WriteWithImmediate,
        TestOperation::Send | TestOperation::Messages(_) | TestOperation::Tcp => SendOperationFlags::Send,
        TestOperation::SendImm => SendOperationFlags::SendWithImmediate,
        TestOperation::Read => SendOperationFlags::Read,
        TestOperation::Mix(_) => SendOperationFlags::Read | SendOperationFlags::Write,
        TestOperation::FetchAdd => SendOperationFlags::AtomicFetchAndAdd,
        TestOperation::CompareSwap => SendOperationFlags::AtomicCompareAndSwap,
    }
}

/// The access rights of the memory, including relaxed ordering.
pub(super) fn access(test: &TestPlan, is_relaxed: bool) -> AccessFlags {
    let relaxed = if is_relaxed { AccessFlags::RelaxedOrdering } else { AccessFlags::empty() };
    AccessFlags::LocalWrite
        | relaxed
        | match test.operation {
            TestOperation::Write | TestOperation::WriteImm => AccessFlags::RemoteWrite,
            TestOperation::Read => AccessFlags::RemoteRead,
            TestOperation::Mix(_) => AccessFlags::RemoteRead | AccessFlags::RemoteWrite,
            TestOperation::FetchAdd | TestOperation::CompareSwap => AccessFlags::RemoteAtomic,
            TestOperation::Send
            | TestOperation::SendImm
            | TestOperation::Messages(_)
            | TestOperation::Tcp => AccessFlags::empty(),
        }
}

pub(super) fn inline_size(device: &LocalDevice, test: &TestPlan) -> u32 {
    if test.operation.fetches() {
        return 0;
    }
    let default = match test.measure {
        Measure::Latency(_) if test.entries() == 1 => {
            default_inline_size(test.operation, test.connection, device.vendor_id)
        }
        _ => 0,
    };
    test.inline_size.unwrap_or(default)
}
