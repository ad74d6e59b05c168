//! A receive queue, from its owner's side: posted receives, their slots, finished messages.
//!
//! The queue of one queue pair and a shared receive queue have the same structure, and differ only
//! in who claims slots. The owner relies on its private copy of addresses, lengths and `wr_id`,
//! which is here. The slots in the segment have a copy for peers.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_recv_wr, ibv_sge};

use crate::node::{HeapRange, Node, OfferRange};
use crate::shared::entry::SlotsDescriptor;
use crate::shared::segment::{RecvSlot, SLOT, Slots, offer_stride};
use crate::shared::slot::{Claim, Delivery, Holder, RecvCapacity, SlotHeader};
use crate::sync::Relaxed;

/// A posted receive.
#[derive(Clone, Copy, Debug, Default)]
struct PostedRecv {
    wr_id: u64,
    entries: u32,
    bytes: u64,
    /// Whether it is posted and not consumed. The slot cannot tell, because any process that maps
    /// the segment can write to it.
    outstanding: bool,
}

#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    node: Arc<Node>,
    range: Option<HeapRange>,
    offers: Option<OfferRange>,
    descriptor: SlotsDescriptor,
    slots: Slots,
    max_wr: u32,
    max_sge: usize,
    posted: Box<[PostedRecv]>,
    entries: Box<[ibv_sge]>,
    /// How many receives are posted and not consumed.
    outstanding: u32,
    /// Where the oldest outstanding receive may be. `tail` is where the next one goes.
    head: u32,
    tail: u32,
    lap: u32,
    /// How many slots were ever posted. The pages of other slots are not touched.
    used: u32,
}

/// A receive that a message has filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishedRecv {
    pub(crate) slot: u32,
    pub(crate) wr_id: u64,
    pub(crate) room: u64,
    pub(crate) delivery: Delivery,
}

impl ReceiveQueue {
    /// A queue for `max_wr` receives, each with up to `max_sge` entries.
    ///
    /// # Errors
    ///
    /// The segment is full.
    pub(crate) fn new(node: Arc<Node>, max_wr: u32, max_sge: u32) -> io::Result<Self> {
        let count = max_wr.max(1);
        let offers = node.offers().alloc(count as usize * offer_stride(max_sge))?;
        let range = match node.heap().alloc(count as usize * SLOT) {
            Ok(range) => range,
            Err(error) => {
                node.offers().free(offers);
                return Err(error);
            }
        };
        let descriptor =
            SlotsDescriptor { offset: range.offset, offers: offers.offset, count, entries: max_sge };
        let slots = node.segment().slots(&descriptor).expect("both ranges are in the segment");
        Ok(Self {
            node,
            range: Some(range),
            offers: Some(offers),
            descriptor,
            slots,
            max_wr,
            max_sge: max_sge as usize,
            posted: vec![PostedRecv::default(); count as usize].into(),
            entries: vec![ibv_sge::default(); count as usize * max_sge as usize].into(),
            outstanding: 0,
            head: 0,
            tail: 0,
            lap: 0,
            used: 0,
        })
    }

    /// Where the slots are, for peers.
    pub(crate) fn descriptor(&self) -> SlotsDescriptor {
        self.descriptor
    }

    #[inline]
    fn slot(&self, index: u32) -> RecvSlot<'_> {
        self.node.segment().slot(&self.slots, index).expect("callers pass the index of a slot")
    }

    #[inline]
    fn next(&self, index: u32) -> u32 {
        self.slots.next(index)
    }

    /// The slot that the next message fills, if messages fill the slots in order.
    #[inline]
    pub(crate) fn next_message(&self) -> NonNull<SlotHeader> {
        NonNull::from(self.slot(self.head).header)
    }

    /// Posts one receive.
    ///
    /// # Errors
    ///
    /// An errno: `ENOMEM` if the queue is full, `EINVAL` for too many entries.
    ///
    /// # Safety
    ///
    /// `wr` is a valid request with `num_sge` valid entries.
    pub(crate) unsafe fn post(&mut self, wr: *const ibv_recv_wr) -> Result<(), i32> {
        // SAFETY: the caller guarantees a valid request.
        let (wr_id, list, count) = unsafe { ((*wr).wr_id, (*wr).sg_list, (*wr).num_sge) };
        let count = usize::try_from(count).ok().filter(|count| *count <= self.max_sge).ok_or(libc::EINVAL)?;
        if self.outstanding >= self.max_wr {
            return Err(libc::ENOMEM);
        }
        let index = self.free_slot().ok_or(libc::ENOMEM)?;
        let first = index as usize * self.max_sge;
        let mut bytes = 0;
        let segment = self.node.segment();
        let slot = segment.slot(&self.slots, index).expect("a free slot's index");
        let offer = segment.offer(&self.slots, index).expect("a free slot's index");
        offer.header.begin();
        for number in 0..count {
            // SAFETY: the caller guarantees a valid request with `num_sge` valid entries.
            let entry = unsafe { list.add(number).read() };
            bytes += u64::from(entry.length);
            self.entries[first + number] = entry;
            offer.entries[number].store(entry.addr, entry.length, entry.lkey);
            if number == 0 {
                slot.header.first.store(entry.addr, entry.length, entry.lkey);
            }
        }
        self.posted[index as usize] = PostedRecv { wr_id, entries: count as u32, bytes, outstanding: true };
        self.lap = self.lap.wrapping_add(1);
        let room = RecvCapacity { bytes: bytes.min(u64::from(u32::MAX)) as u32, entries: count as u32 };
        offer.header.make(self.lap, room);
        slot.header.post(self.lap, room);
        self.used = self.used.max(index + 1);
        self.tail = self.next(index);
        self.outstanding += 1;
        Ok(())
    }

    /// The next free slot. It is the one at the tail, unless a peer that was stopped still holds
    /// that one.
    fn free_slot(&self) -> Option<u32> {
        let mut index = self.tail;
        for _ in 0..self.descriptor.count {
            if !self.is_outstanding(index) && self.slot(index).header.holder() == Holder::Free {
                return Some(index);
            }
            index = self.next(index);
        }
        None
    }

    /// The oldest receive, if it is finished, of a queue whose receives are filled in order. It
    /// stays until [`consume`](Self::consume).
    #[inline]
    pub(crate) fn oldest(&self) -> Option<FinishedRecv> {
        self.at(self.head)
    }

    /// The finished receive in a slot, if any, of a queue where senders announce the slot's number.
    pub(crate) fn at(&self, index: u32) -> Option<FinishedRecv> {
        let there =
            self.is_outstanding(index) && matches!(self.slot(index).header.holder(), Holder::Done { .. });
        there.then(|| self.received(index))
    }

    /// Whether a receive is posted in a slot and not consumed. False for a slot that there is not.
    #[inline]
    fn is_outstanding(&self, slot: u32) -> bool {
        self.posted.get(slot as usize).is_some_and(|posted| posted.outstanding)
    }

    fn received(&self, slot: u32) -> FinishedRecv {
        let posted = self.posted[slot as usize];
        let delivery = self.slot(slot).header.delivery();
        FinishedRecv { slot, wr_id: posted.wr_id, room: posted.bytes, delivery }
    }

    /// The entries of a posted receive, from private memory.
    pub(crate) fn entries(&self, slot: u32) -> &[ibv_sge] {
        let first = slot as usize * self.max_sge;
        &self.entries[first..first + self.posted[slot as usize].entries as usize]
    }

    /// The source that the sender of a datagram has written.
    pub(crate) fn source(&self, slot: u32) -> [u64; 3] {
        core::array::from_fn(|word| self.slot(slot).source[word].load(Relaxed))
    }

    /// The bytes that arrived in the slot itself.
    pub(crate) fn eager(&self, slot: u32) -> *const u8 {
        self.slot(slot).eager.as_ptr()
    }

    /// Frees the slot of a finished receive that was reported.
    pub(crate) fn consume(&mut self, slot: u32) {
        self.posted[slot as usize].outstanding = false;
        self.withdraw_offer(slot);
        self.slot(slot).header.free();
        self.outstanding = self.outstanding.saturating_sub(1);
        if slot == self.head {
            self.head = self.next(slot);
        }
    }

    #[inline]
    fn withdraw_offer(&self, slot: u32) {
        let offer = self.node.segment().offer(&self.slots, slot);
        offer.expect("callers pass the index of a slot").header.withdraw();
    }

    /// Takes back the oldest receive. `None` if it is claimed or finished, or if the queue is
    /// empty.
    pub(crate) fn take_back(&mut self) -> Option<u64> {
        for _ in 0..self.descriptor.count {
            if self.outstanding == 0 {
                return None;
            }
            match self.slot(self.head).header.holder() {
                _ if !self.is_outstanding(self.head) => self.head = self.next(self.head),
                // A process has freed the slot that may not.
                Holder::Free => {
                    let wr_id = self.posted[self.head as usize].wr_id;
                    self.consume(self.head);
                    return Some(wr_id);
                }
                Holder::Posted if self.slot(self.head).header.take_back() => {
                    let wr_id = self.posted[self.head as usize].wr_id;
                    self.consume(self.head);
                    return Some(wr_id);
                }
                _ => return None,
            }
        }
        None
    }

    /// How many receives are unclaimed, and how many are finished and not reported.
    pub(crate) fn count(&self) -> (u32, u32) {
        let (mut posted, mut done) = (0, 0);
        for index in (0..self.used).filter(|index| self.is_outstanding(*index)) {
            match self.slot(index).header.holder() {
                Holder::Posted => posted += 1,
                Holder::Done { .. } => done += 1,
                Holder::Free | Holder::Claimed { .. } => {}
            }
        }
        (posted, done)
    }

    /// Discards everything. No peer may hold a slot.
    pub(crate) fn clear(&mut self) {
        for index in 0..self.used {
            self.posted[index as usize].outstanding = false;
            self.withdraw_offer(index);
            self.slot(index).header.free();
        }
        (self.outstanding, self.head, self.tail) = (0, 0, 0);
    }

    /// Posts a slot again whose claim a peer has left to its owner, after calling `offering`. False
    /// if the claim is void because the queue was cleared since.
    pub(crate) fn repost_slot(&mut self, slot: u32, claim: Claim, offering: impl FnOnce()) -> bool {
        if !self.is_outstanding(slot) || !self.slot(slot).header.is_held(claim) {
            return false;
        }
        offering();
        self.slot(slot).header.unclaim(claim)
    }

    /// Posts the slots again that a dead peer held, the oldest first, after calling `recovering`
    /// for each. `keep` returns whether a finished slot was announced and stays. Returns true if
    /// the peer held any slot.
    pub(crate) fn recover(
        &mut self,
        peer_id: u16,
        keep: impl Fn(u32) -> bool,
        mut recovering: impl FnMut(u32),
    ) -> bool {
        let mut left = false;
        let from_head = (self.head..self.used).chain(0..self.head.min(self.used));
        for index in from_head.filter(|index| self.posted[*index as usize].outstanding) {
            let header = self.slot(index).header;
            let recover = match header.holder() {
                Holder::Claimed { peer_id: holder } if holder == peer_id => true,
                Holder::Done { peer_id: holder } if holder == peer_id => !keep(index),
                _ => continue,
            };
            left = true;
            if recover {
                recovering(index);
                header.recover(peer_id);
            }
        }
        left
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        // Another queue may get the place.
        (0..self.used).for_each(|slot| self.withdraw_offer(slot));
        if let Some(range) = self.range.take() {
            self.node.heap().free(range);
        }
        if let Some(offers) = self.offers.take() {
            self.node.offers().free(offers);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::node::{NodeIdentity, NodeSettings};

    fn queue(max_wr: u32) -> ReceiveQueue {
        let node = Node::start(NodeSettings::default(), NodeIdentity::default()).expect("a node");
        ReceiveQueue::new(node, max_wr, 1).expect("a queue")
    }

    fn post(queue: &mut ReceiveQueue, wr_id: u64) {
        let wr = ibv_recv_wr { wr_id, ..ibv_recv_wr::default() };
        // SAFETY: a request without entries.
        assert_eq!(unsafe { queue.post(&raw const wr) }, Ok(()));
    }

    fn oldest(queue: &mut ReceiveQueue) -> Option<u64> {
        let received = queue.oldest()?;
        queue.consume(received.slot);
        Some(received.wr_id)
    }

    #[test]
    fn claims_of_a_dead_peer_come_back_oldest_first() {
        let mut queue = queue(4);
        (0..4).for_each(|number| post(&mut queue, number));
        let claim =
            |queue: &ReceiveQueue, slot: u32| queue.slot(slot).header.claim(1).expect("it was posted");
        for slot in 0..2 {
            let claim = claim(&queue, slot);
            assert!(queue.slot(slot).header.finish(claim, &Delivery::default()));
            assert_eq!(oldest(&mut queue), Some(slot.into()));
        }
        // The ring wraps: the oldest are 2 and 3, the later ones 0 and 1.
        (4..6).for_each(|number| post(&mut queue, number));
        let first = claim(&queue, 2);
        assert!(queue.slot(2).header.finish(first, &Delivery::default()));
        for slot in [3, 0, 1] {
            claim(&queue, slot);
        }
        let mut recovered = Vec::new();
        assert!(queue.recover(1, |_| true, |slot| recovered.push(slot)));
        assert_eq!(recovered, [3, 0, 1]);
        assert_eq!(oldest(&mut queue), Some(2));
        assert_eq!(std::iter::from_fn(|| queue.take_back()).collect::<Vec<_>>(), [3, 4, 5]);
    }

    #[test]
    fn out_of_order_completions_are_all_found() {
        let mut queue = queue(4);
        (0..4).for_each(|number| post(&mut queue, number));
        for slot in [2, 1] {
            let header = queue.slot(slot).header;
            let claim = header.claim(1).expect("it was posted");
            assert_eq!(queue.at(slot).map(|received| received.wr_id), None);
            assert!(header.finish(claim, &Delivery::default()));
            assert_eq!(queue.at(slot).map(|received| received.wr_id), Some(slot.into()));
            queue.consume(slot);
        }
        // The queue has room behind an outstanding receive, and a free slot in between does not end
        // the search.
        post(&mut queue, 4);
        assert_eq!(std::iter::from_fn(|| queue.take_back()).collect::<Vec<_>>(), [0, 4, 3]);
        assert_eq!(queue.outstanding, 0);
    }
}
