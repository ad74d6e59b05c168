//! A queue pair that the connection manager (rdma_cm) connects, and the handshake messages that it
//! carries.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use mio::{Registry, Token};

use sideway::ibverbs::queue_pair::{
    PostSendGuard, QueuePair, QueuePairControl, QueuePairState, ScatterGatherEntry, WorkRequestFlags,
};
use sideway::rdmacm::Identifier;

use super::cq_dispatcher::{CompletedRequest, WorkCompletion};
use super::path::{EarlyCompletions, ProvenPath};
use super::queue_pair::{CompletionTarget, QueuePairOwner, RcQueuePair};
use super::resources::pool_exhausted;
use super::wr_id::{self, WrId};
use super::{DeviceBlock, QpParameters, RdmaDevice};
use crate::protocol::{Block, Blocks, Purpose};
use crate::wire::MAX_MESSAGE;
use crate::wire::{Cause, Unavailable};

/// A queue pair that is not yet given to a [`driver`](super::driver::RcDriver). It has a private
/// completion queue, even if a worker owns the connection.
pub(crate) struct CmQueuePair<P: Blocks<Block: DeviceBlock>> {
    pair: QueuePairOwner<P::Block>,
    parameters: QpParameters,
    blocks: P,
    /// Receive completions that the handshake has not taken yet.
    received: VecDeque<WorkCompletion<P::Block>>,
    /// The handshake needs no more messages; later receives belong to the connection.
    handshake_done: bool,
    /// The posted receives of the connection.
    granted: usize,
}

impl<P: Blocks<Block: DeviceBlock>> CmQueuePair<P> {
    /// Creates the queue pair in the RESET state. The memory of `blocks` must be registered in the
    /// device's protection domain.
    pub(crate) fn new(
        device: &Arc<RdmaDevice>,
        origin: &str,
        parameters: QpParameters,
        blocks: P,
    ) -> Result<Self, Unavailable> {
        let handshake_slots = MAX_MESSAGE.div_ceil(parameters.slot_size as usize) as u32;
        let parameters = QpParameters { handshake_slots, ..parameters };
        let pair = QueuePairOwner::new(device, origin, &parameters, None)?;
        Ok(Self { pair, parameters, blocks, received: VecDeque::new(), handshake_done: false, granted: 0 })
    }

    pub(crate) fn control(&self) -> &QueuePairControl {
        self.pair.qp.control()
    }

    pub(crate) fn blocks(&self) -> &P {
        &self.blocks
    }

    pub(crate) fn slot_size(&self) -> usize {
        self.parameters.slot_size as usize
    }

    /// Moves the queue pair to INIT, in which receives can be posted.
    pub(crate) fn prepare(&mut self, id: &Identifier) -> Result<(), Unavailable> {
        id.modify_qp(&mut self.pair.qp, QueuePairState::Init).map_err(|error| unconnected(&error))
    }

    /// Connects the queue pair with the peer's, whose parameters came with the connect request or
    /// its reply.
    pub(crate) fn connect(&mut self, id: &Identifier) -> Result<(), Unavailable> {
        // INIT is repeated, because only now are the access flags for the peer known.
        for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
            let mut attributes = id.get_qp_attr(state).map_err(|error| unconnected(&error))?;
            // With iWARP the device makes the transition itself when the connection is established.
            if attributes.state().is_none() {
                continue;
            }
            // The connection manager does not negotiate these, so set them, if the transport has
            // them.
            let parameters = &self.parameters;
            if attributes.min_rnr_timer().is_some() {
                attributes.setup_min_rnr_timer(parameters.min_rnr_timer);
            }
            if attributes.timeout().is_some() {
                attributes.setup_timeout(parameters.ack_timeout);
            }
            if attributes.retry_cnt().is_some() {
                attributes.setup_retry_cnt(parameters.retry_count);
            }
            if attributes.rnr_retry().is_some() {
                attributes.setup_rnr_retry(parameters.rnr_retry);
            }
            self.pair.qp.modify(&attributes).map_err(|error| unconnected(&error))?;
        }
        tracing::debug!(
            place = self.pair.origin,
            qp = self.pair.qp.qp_number(),
            inline = self.pair.heads.inline,
            "queue pair connected"
        );
        Ok(())
    }

    /// Posts receives for `pieces` messages of the handshake, and those that the connection grants
    /// from the start, because the peer may send frames right after its messages.
    pub(crate) fn post(&mut self, pieces: usize, granted: usize) -> Result<(), Unavailable> {
        self.granted += granted;
        self.pair.fill(&mut self.blocks, pieces + granted, self.parameters.slot_size as usize)
    }

    /// Sends a handshake message in pieces of `piece` bytes, clamped to the slot size.
    pub(crate) fn send(&mut self, message: &[u8], piece: usize) -> Result<(), Unavailable> {
        let RcQueuePair { qp, generation, handshake_messages, probes, .. } = &mut *self.pair;
        let (first, piece) = (handshake_messages.len(), piece.clamp(1, self.parameters.slot_size as usize));
        for bytes in message.chunks(piece) {
            let block = self.blocks.take(self.parameters.slot_size as usize, Purpose::Receive);
            let mut block =
                block.ok_or_else(|| pool_exhausted(&self.blocks, "none for the handshake now"))?;
            block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
            handshake_messages.push(block);
        }
        let mut list = qp.start_post_send();
        for (block, bytes) in handshake_messages[first..].iter().zip(message.chunks(piece)) {
            // Unregistered memory has no key; the device rejects key 0.
            let lkey = block.lkey().unwrap_or(0);
            let entry = ScatterGatherEntry::new(lkey, block.address() as u64, bytes.len() as u32);
            let id = wr_id::encode(*generation, WrId::Probe);
            let send = list.construct_wr(id, WorkRequestFlags::Signaled).setup_send();
            // SAFETY: the block stays in `handshake_messages` until no handshake send is
            // outstanding (`acknowledged`), or is leaked by `forget`. Until then nobody writes to
            // it, and its memory does not move (`DeviceBlock`). The send queue has room for more
            // pieces than a message has.
            unsafe { send.setup_sge_list(&[entry]) };
        }
        // If the error does not tell how many were posted, assume all were.
        let (posted, count) = (list.post(), handshake_messages.len() - first);
        *probes += posted.as_ref().err().map_or(count, |error| error.posted().unwrap_or(count));
        posted.map_err(|error| failed(&error))
    }

    /// Whether every handshake send has completed, so that the peer's device has received it.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.pair.probes == 0
    }

    /// Polls for messages and passes each piece to `hear` until it returns true for the last one.
    /// Later receives are kept for the connection. Fails if a request failed.
    pub(crate) fn poll_messages(&mut self, mut hear: impl FnMut(&[u8]) -> bool) -> Result<(), Unavailable> {
        let (pair, dispatcher) = self.pair.parts();
        let (received, mut failure) = (&mut self.received, None);
        if let CompletionTarget::Own(dispatcher) = dispatcher {
            let reaped = dispatcher.poll(|_, completed| {
                let completed = pair.settle(completed);
                match completed.failure(&pair.qp) {
                    // The first failure tells the cause; the requests flushed after it do not.
                    Some(why) => {
                        failure.get_or_insert(why);
                    }
                    None if matches!(completed.request, CompletedRequest::Received(..)) => {
                        received.push_back(completed)
                    }
                    None => (),
                }
            });
            reaped.map_err(|error| failed(&error))?;
        }
        while !self.handshake_done
            && let Some(WorkCompletion { request, len, .. }) = received.pop_front()
        {
            let CompletedRequest::Received(_, Some(block)) = request else { continue };
            self.handshake_done = hear(&block.bytes()[..len.min(block.bytes().len())]);
        }
        failure.map_or(Ok(()), Err)
    }

    /// See [`QueuePairOwner::watch`].
    pub(crate) fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<bool> {
        self.pair.watch(registry, token)
    }

    /// See [`QueuePairOwner::unwatch`].
    pub(crate) fn unwatch(&mut self, registry: &Registry) -> io::Result<()> {
        self.pair.unwatch(registry)
    }

    /// The working queue pair, with the completions that already belong to the connection.
    pub(super) fn into_proved(self) -> ProvenPath<P::Block> {
        let (first, completed) = (self.granted, self.received.into());
        ProvenPath { pair: self.pair, early: EarlyCompletions { first, completed } }
    }
}

fn unconnected(error: &dyn std::fmt::Display) -> Unavailable {
    Unavailable::new(Cause::Connect, error.to_string())
}

fn failed(error: &dyn std::fmt::Display) -> Unavailable {
    Unavailable::new(Cause::ProbeFailed, error.to_string())
}
