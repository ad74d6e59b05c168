//! A shared receive queue (SRQ), with the blocks that are posted to it.
//!
//! Each posted block has a slot. The slot's index and generation are in the `wr_id` of its receive.
//! Only the completion tells which queue pair took the block, so receives may complete in any
//! order. The generation detects a `wr_id` that the device reports twice.

use std::io;

use sideway::ibverbs::srq::SharedReceiveQueue;

use super::DeviceBlock;
use super::cq_dispatcher::CompletedRequest;
use super::device::RdmaDevice;
use super::wr_id::{self, GENERATIONS, WrId};
use crate::protocol::{Lease, Ledger};
use crate::wire::{Cause, Unavailable};

/// A shared receive queue, and the ledger of how much of it each connection may use.
pub(super) struct SharedRecvQueue<B: DeviceBlock> {
    /// `None` only after the drop has taken it.
    srq: Option<SharedReceiveQueue>,
    slots: Vec<RecvSlot<B>>,
    free: Vec<u32>,
    pub(super) ledger: Ledger,
    /// Blocks that a connection used without a right to them. They are posted again, because other
    /// connections were promised them.
    repost: Vec<B>,
    /// Slots of the receives that are being posted.
    posting: Vec<u32>,
}

struct RecvSlot<B> {
    block: Option<B>,
    generation: u32,
}

impl<B: DeviceBlock> SharedRecvQueue<B> {
    /// Creates a queue for at most `size` receives (fewer if the device's limit is lower). None is
    /// posted yet.
    pub(super) fn new(device: &RdmaDevice, size: u32) -> Result<Self, Unavailable> {
        let size = size.min(device.limits.shared_receives);
        let made = device.domain().create_srq_builder().setup_max_wr(size).setup_max_sge(1).build();
        let srq = made.map_err(|error| device.lacks(Cause::Resources, &error))?;
        Ok(Self {
            srq: Some(srq),
            slots: Vec::new(),
            free: Vec::new(),
            ledger: Ledger::new(size),
            repost: Vec::new(),
            posting: Vec::new(),
        })
    }

    /// The verbs object, for creating queue pairs.
    pub(super) fn srq(&self) -> &SharedReceiveQueue {
        self.srq.as_ref().expect("only its drop takes it")
    }

    /// Posts up to `count` blocks, until `blocks` has no more. Returns how many were posted.
    pub(super) fn post(&mut self, count: u32, mut blocks: impl FnMut() -> Option<B>) -> io::Result<u32> {
        let Self { srq: Some(srq), slots, free, posting, .. } = self else { return Ok(0) };
        let mut list = srq.start_post_recv();
        posting.clear();
        while (posting.len() as u32) < count
            && let Some(block) = blocks()
        {
            let index = free.pop().unwrap_or_else(|| {
                slots.push(RecvSlot { block: None, generation: 0 });
                slots.len() as u32 - 1
            });
            let slot = &mut slots[index as usize];
            slot.generation = (slot.generation + 1) % GENERATIONS;
            let (address, len) = (block.address(), block.bytes().len());
            // Unregistered memory has no key; the device rejects key 0.
            let lkey = block.lkey().unwrap_or(0);
            slot.block = Some(block);
            let id = wr_id::encode(slot.generation, WrId::Receive(index));
            let request = list.construct_wr(id);
            // SAFETY: the block stays in its slot until its completion was polled (`take`) or the
            // queue is destroyed. If the queue cannot be destroyed, the drop leaks the block.
            // Nobody refers to its bytes in the slot, and the memory does not move (`DeviceBlock`).
            unsafe { request.setup_sge(lkey, address as u64, u32::try_from(len).unwrap_or(u32::MAX)) };
            posting.push(index);
        }
        let outcome = list.post();
        if let Some(posted) = outcome.as_ref().err().and_then(|error| error.posted()) {
            // Receives that were certainly not posted free their slots.
            for index in posting.drain(posted.min(posting.len())..) {
                slots[index as usize].block = None;
                free.push(index);
            }
        }
        let posted = posting.len() as u32;
        self.ledger.post(posted);
        outcome.map(|()| posted).map_err(io::Error::other)
    }

    /// Takes the block of a completed receive. `None` if that receive is not outstanding.
    fn take(&mut self, generation: u32, index: u32) -> Option<B> {
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != generation {
            return None;
        }
        let block = slot.block.take()?;
        self.free.push(index);
        Some(block)
    }

    /// Handles a completed receive. `lease` belongs to the queue pair it completed for, or `None`
    /// if that pair is gone. A receive used without a right is kept for reposting and reported as
    /// [`Overdrawn`](CompletedRequest::Overdrawn).
    pub(super) fn taken(
        &mut self,
        generation: u32,
        index: u32,
        lease: Option<&mut Lease>,
    ) -> CompletedRequest<B> {
        let Some(block) = self.take(generation, index) else {
            return CompletedRequest::Received(index, None);
        };
        let had_right = match lease {
            Some(lease) => self.ledger.spend(lease),
            None => {
                self.ledger.lose();
                false
            }
        };
        if had_right {
            return CompletedRequest::Received(index, Some(block));
        }
        self.repost.push(block);
        CompletedRequest::Overdrawn
    }

    /// Posts the blocks again that were used without a right.
    pub(super) fn post_reposts(&mut self) -> io::Result<()> {
        let mut repost = std::mem::take(&mut self.repost);
        if !repost.is_empty() {
            self.post(repost.len() as u32, || repost.pop())?;
        }
        Ok(())
    }
}

impl<B: DeviceBlock> Drop for SharedRecvQueue<B> {
    /// Destroys the queue and frees its blocks. It leaks them if the device refuses. No queue pair
    /// is left that could take a receive.
    fn drop(&mut self) {
        let Some(Err(error)) = self.srq.take().map(SharedReceiveQueue::close) else { return };
        let blocks = self.slots.iter_mut().filter_map(|slot| slot.block.take());
        let lost = blocks.map(std::mem::forget).count();
        tracing::error!(%error, lost, "a shared receive queue stays with the device: its memory is lost");
    }
}
