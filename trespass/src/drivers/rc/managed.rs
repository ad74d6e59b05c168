//! A queue pair whose states the connection manager knows, and the messages of the handshake that go over it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use mio::{Registry, Token};

use sideway::ibverbs::completion::WorkCompletionStatus;
use sideway::ibverbs::queue_pair::{
    PostSendGuard, QueuePair, QueuePairControl, QueuePairState, ScatterGatherEntry, WorkRequestFlags,
};
use sideway::rdmacm::Identifier;

use super::pair::{PROBE, Pair, RECEIVE};
use super::{Device, DeviceBlock, Parameters};
use crate::handshake::{Cause, Unavailable};
use crate::protocol::{Block, Blocks, Purpose};
use crate::wire::MAX_MESSAGE;

/// Frames that came before their connection was there, and their lengths.
pub(super) type Early<B> = VecDeque<(B, usize)>;

/// A queue pair on its way to a [`link`](super::link::Rc).
pub(crate) struct Managed<P: Blocks<Block: DeviceBlock>> {
    pair: Pair<P::Block>,
    parameters: Parameters,
    blocks: P,
    /// What came behind the peer's last message.
    early: Early<P::Block>,
}

impl<P: Blocks<Block: DeviceBlock>> Managed<P> {
    /// Makes it, in the reset state. The blocks are registered in the device's domain.
    pub(crate) fn new(
        device: &Arc<Device>,
        whence: String,
        parameters: Parameters,
        blocks: P,
    ) -> Result<Self, Unavailable> {
        let pieces = MAX_MESSAGE.div_ceil(parameters.slot_size as usize) as u32;
        let pair = Pair::new(device, whence, &parameters, pieces)?;
        Ok(Self { pair, parameters, blocks, early: VecDeque::new() })
    }

    pub(crate) fn control(&self) -> &QueuePairControl {
        self.pair.qp.control()
    }

    pub(crate) fn slot_size(&self) -> usize {
        self.parameters.slot_size as usize
    }

    /// Brings it to where receives can be posted.
    pub(crate) fn prepare(&mut self, id: &Identifier) -> Result<(), Unavailable> {
        id.modify_qp(&mut self.pair.qp, QueuePairState::Init).map_err(|error| unconnected(&error))
    }

    /// Connects it with the peer's, which has come with the request, or with the answer to it.
    pub(crate) fn connect(&mut self, id: &Identifier) -> Result<(), Unavailable> {
        // What the peer may do in this side's memory is known now.
        for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
            let mut attributes = id.get_qp_attr(state).map_err(|error| unconnected(&error))?;
            // By iWARP the device does that itself when the connection is made.
            if attributes.state().is_none() {
                continue;
            }
            // What is this side's alone to say, where the transport has it.
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
            place = self.pair.whence,
            qp = self.pair.qp.qp_number(),
            inline = self.pair.heads.inline,
            "queue pair connected"
        );
        Ok(())
    }

    /// Posts receives for so many pieces, and if the peer may go on right behind them, all that the connection grants.
    pub(crate) fn post(&mut self, pieces: usize, all: bool) -> Result<(), Unavailable> {
        let granted = if all { self.parameters.rx_slots as usize } else { 0 };
        self.pair.fill(&mut self.blocks, pieces + granted, self.parameters.slot_size as usize)
    }

    /// Sends a message of the handshake in pieces of so many bytes, which are not more than a slot.
    pub(crate) fn send(&mut self, message: &[u8], piece: usize) -> Result<(), Unavailable> {
        let Pair { qp, said, probes, .. } = &mut self.pair;
        let (first, piece) = (said.len(), piece.clamp(1, self.parameters.slot_size as usize));
        for bytes in message.chunks(piece) {
            let block = self.blocks.take(self.parameters.slot_size as usize, Purpose::Receive);
            let mut block = block.ok_or_else(|| {
                Unavailable::new(Cause::Resources, "the pool has no room for the handshake now")
            })?;
            block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
            said.push(block);
        }
        let mut list = qp.start_post_send();
        for (index, (block, bytes)) in said[first..].iter().zip(message.chunks(piece)).enumerate() {
            // Memory that is not registered has no key: the device refuses 0.
            let lkey = block.lkey().unwrap_or(0);
            let entry = ScatterGatherEntry::new(lkey, block.address() as u64, bytes.len() as u32);
            let send =
                list.construct_wr(PROBE | (first + index) as u64, WorkRequestFlags::Signaled).setup_send();
            // SAFETY: the pair keeps the block in `said` as long as any such request is under way, or forgets it; it stays where it is
            // (`DeviceBlock`), and nobody writes to it. The send queue has room for more pieces than a message has.
            unsafe { send.setup_sge_list(&[entry]) };
        }
        // If the device does not say that some were not posted, all were.
        let (posted, count) = (list.post(), said.len() - first);
        *probes += posted.as_ref().err().map_or(count, |error| error.posted().unwrap_or(count));
        posted.map_err(|error| failed(&error))
    }

    /// Whether the peer's device has all that was sent.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.pair.probes == 0
    }

    /// Looks for what has come. Each piece is shown to `hear`, which says whether it is one of the handshake's; if not it is the first of
    /// the connection's frames, and so are those behind it.
    pub(crate) fn look(&mut self, mut hear: impl FnMut(&[u8]) -> bool) -> Result<(), Unavailable> {
        let Pair { cq, receives, probes, said, .. } = &mut self.pair;
        let mut poller = cq.start_poll().map_err(|error| failed(&error))?;
        while let Some(completion) = poller.next() {
            let (id, status) = (completion.wr_id(), completion.status());
            let block = if id & RECEIVE != 0 { receives.complete(id) } else { None };
            if id & RECEIVE == 0 && id & PROBE != 0 {
                *probes = probes.saturating_sub(1);
                if *probes == 0 {
                    said.clear();
                }
            }
            if status != WorkCompletionStatus::Success {
                let vendor = completion.vendor_err();
                let hint = status.hint().unwrap_or("no more is known");
                let detail = format!("{status}, vendor error {vendor:#x}: {hint}");
                return Err(Unavailable::new(Cause::ProbeFailed, detail));
            }
            let Some(block) = block else { continue };
            let len = (completion.byte_len().unwrap_or(0) as usize).min(block.bytes().len());
            if !self.early.is_empty() || !hear(&block.bytes()[..len]) {
                self.early.push_back((block, len));
            }
        }
        poller.finish().map_err(|error| failed(&error))
    }

    /// As [`Pair::watch`].
    pub(crate) fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<bool> {
        self.pair.watch(registry, token)
    }

    /// Ends that.
    pub(crate) fn unwatch(&mut self, registry: &Registry) -> io::Result<()> {
        self.pair.unwatch(registry)
    }

    pub(super) fn into_pair(self) -> (Pair<P::Block>, Early<P::Block>) {
        (self.pair, self.early)
    }
}

fn unconnected(error: &dyn std::fmt::Display) -> Unavailable {
    Unavailable::new(Cause::Connect, error.to_string())
}

fn failed(error: &dyn std::fmt::Display) -> Unavailable {
    Unavailable::new(Cause::ProbeFailed, error.to_string())
}
