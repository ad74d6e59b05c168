//! What a completion does to a connection, and the failures that a device reports.

use sideway::ibverbs::completion::WorkCompletionStatus;
use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePair};

use super::DeviceBlock;
use super::cq_dispatcher::{CompletedRequest, NO_HINT, WorkCompletion};
use super::queue_pair::RcQueuePair;
use super::wr_id::WrId;
use crate::protocol::frame::Immediate;
use crate::protocol::{CallBuffer, CompletedTransmit, FailureCause, ProtocolMachine};

/// Handles a completion. A received frame may go directly to the waiting call, by `sink`.
#[inline(always)]
pub(super) fn take_completion<B: DeviceBlock>(
    pair: &mut RcQueuePair<B>,
    spare_blocks: &mut Vec<B>,
    broken: &mut bool,
    protocol: &mut ProtocolMachine<B>,
    completed: WorkCompletion<B>,
    sink: &mut CallBuffer<'_>,
) {
    let is_good = completed.status == WorkCompletionStatus::Success;
    if !is_good {
        fail_completion(&pair.qp, broken, protocol, &completed);
    }
    let WorkCompletion { request: completed, len, immediate, .. } = completed;
    let (block, number) = match completed {
        CompletedRequest::Own(WrId::Receive(count)) => (pair.receives.complete(count), count),
        CompletedRequest::Received(number, block) => (block, number),
        CompletedRequest::Overdrawn => return protocol.overdrawn(),
        CompletedRequest::Own(WrId::Probe) => return fail_stray(broken, protocol, "the probe", 0),
        CompletedRequest::Own(WrId::Send(count)) if !pair.has_sent(count) => {
            return fail_stray(broken, protocol, "the send", count.into());
        }
        CompletedRequest::Own(WrId::Send(count)) => {
            loop {
                // READs have separate completions. If a later request completes before a READ, the
                // READ may have brought nothing and the device may still write to its block. The
                // block therefore stays in `sends` until the queue pair is drained.
                if is_good && pair.passes_over_a_read(count) {
                    return fail_stray(broken, protocol, "what was posted after a READ", count.into());
                }
                let Some(done) = pair.sent(count) else { break };
                // A failed completion of a READ belongs to this READ, which has brought nothing.
                if is_good || !matches!(done, CompletedTransmit::Read { .. }) {
                    protocol.done(done);
                }
            }
            return;
        }
    };
    match block {
        // On an error the connection has already failed above, so the block is just dropped.
        Some(block) if is_good => {
            if let Ok(Some(block)) = protocol.received_for(block, len, immediate.map(Immediate), sink) {
                spare_blocks.push(block);
            }
        }
        Some(_) => (),
        None => fail_stray(broken, protocol, "the receive", number.into()),
    }
}

/// [`take_completion`] where a few instructions do not matter.
#[inline(never)]
pub(super) fn take_any_completion<B: DeviceBlock>(
    pair: &mut RcQueuePair<B>,
    spare_blocks: &mut Vec<B>,
    broken: &mut bool,
    protocol: &mut ProtocolMachine<B>,
    completed: WorkCompletion<B>,
    sink: &mut CallBuffer<'_>,
) {
    take_completion(pair, spare_blocks, broken, protocol, completed, sink);
}

/// Fails the connection because a request has failed.
#[cold]
pub(super) fn fail_completion<B: DeviceBlock>(
    qp: &GenericQueuePair,
    broken: &mut bool,
    protocol: &mut ProtocolMachine<B>,
    completed: &WorkCompletion<B>,
) {
    *broken = true;
    let WorkCompletion { status, vendor, .. } = *completed;
    let what = if completed.is_frame() { "receiving" } else { "sending" };
    // The first failure tells the cause; the requests flushed after it do not.
    let hint = qp.control().hint(status).unwrap_or(NO_HINT.into());
    protocol.failed(FailureCause::Completion { what, status: status.raw(), vendor, hint });
}

/// Fails the connection because the device or its library returned an error.
#[cold]
pub(super) fn fail_transport<B: DeviceBlock>(
    broken: &mut bool,
    protocol: &mut ProtocolMachine<B>,
    what: &'static str,
    error: &dyn std::error::Error,
) {
    tracing::warn!(%error, "{what} failed");
    protocol.failed(FailureCause::Device { what, error: error.to_string() });
    *broken = true;
}

/// Fails the connection because the device reported a completion for a request that is not
/// outstanding. None of its later reports can be trusted.
#[cold]
fn fail_stray<B: DeviceBlock>(
    broken: &mut bool,
    protocol: &mut ProtocolMachine<B>,
    what: &'static str,
    id: u64,
) {
    tracing::error!(id, "{what} is not under way, and the device says that it has completed");
    protocol.failed(FailureCause::StrayCompletion { what, id });
    *broken = true;
}
