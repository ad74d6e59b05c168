//! Shared receive queues.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use rdma_mummy_sys::types::{ibv_event_type, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask};
use spin::mutex::SpinMutexGuard;

use super::Spin;
use super::receive_queue::ReceiveQueue;
use crate::objects::acks::Acks;
use crate::objects::context::{Context, CountGuard};
use crate::objects::event::{AsyncEvent, EventElement};
use crate::objects::protection_domain::Pd;
use crate::objects::rnic::Rnic;
use crate::objects::use_ref::{CountsUses, UseCount, UseRef};
use crate::shared::entry::{SrqDescriptor, SrqEntry};
use crate::shared::generation::GenerationWriter;
use crate::shared::progress::SrqCounters;
use crate::shared::slot::Claim;

/// A shared receive queue (`ibv_srq`).
pub(crate) struct Srq {
    rnic: Arc<Rnic>,
    context: Arc<Context>,
    pd: UseRef<Pd>,
    index: u32,
    max_wr: u32,
    max_sge: u32,
    queue: Spin<ReceiveQueue>,
    writer: Spin<GenerationWriter>,
    users: UseCount,
    handle: AtomicPtr<ibv_srq>,
    acks: Acks,
    counted: CountGuard,
}

impl Drop for Srq {
    /// Releases the index only now, because every holder of a reference uses the entry of that
    /// index.
    fn drop(&mut self) {
        self.rnic.shared_queues().release(self.index);
    }
}

impl CountsUses for Srq {
    fn users(&self) -> &UseCount {
        &self.users
    }
}

impl Srq {
    /// Creates a queue and enters it into the tables.
    ///
    /// # Errors
    ///
    /// No memory or no free index is left.
    pub(crate) fn create(
        rnic: &Arc<Rnic>,
        context: &Arc<Context>,
        pd: &Arc<Pd>,
        max_wr: u32,
        max_sge: u32,
    ) -> io::Result<Arc<Self>> {
        let counted = context.count(|counts| &counts.srq, rnic.limits().max_srq);
        let counted = counted.map_err(io::Error::from_raw_os_error)?;
        let queue = ReceiveQueue::new(Arc::clone(rnic.node()), max_wr, max_sge)?;
        let index =
            rnic.shared_queues().reserve().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        if !rnic.node().segment().ensure_shared_queue(index) {
            rnic.shared_queues().release(index);
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let descriptor = SrqDescriptor { pd: pd.number(), slots: queue.descriptor() };
        let made = Arc::new(Self {
            rnic: Arc::clone(rnic),
            context: Arc::clone(context),
            pd: UseRef::new(pd),
            index,
            max_wr,
            max_sge,
            queue: Spin::new(queue),
            writer: Spin::default(),
            users: UseCount::default(),
            handle: AtomicPtr::default(),
            acks: Acks::default(),
            counted,
        });
        made.counters().reset();
        made.entry().publish(&mut made.writer.lock(), 0, &descriptor);
        rnic.shared_queues().put(index, Arc::clone(&made));
        Ok(made)
    }

    /// Removes the queue from all tables. No queue pair uses it, so no peer touches it.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a queue pair uses it.
    pub(crate) fn destroy(&self) -> Result<(), i32> {
        self.context.check_process()?;
        if self.users.is_used() {
            return Err(libc::EBUSY);
        }
        self.entry().withdraw(&mut self.writer.lock());
        self.queue.lock().clear();
        self.rnic.shared_queues().take(self.index);
        self.pd.release();
        self.counted.count_out();
        Ok(())
    }

    fn entry(&self) -> &SrqEntry {
        self.rnic.node().segment().shared_queue(self.index).expect("the segment has an entry for every index")
    }

    /// The words that peers change.
    fn counters(&self) -> &SrqCounters {
        self.rnic.node().segment().counters(self.index).expect("the segment has counters for every index")
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn max_wr(&self) -> u32 {
        self.max_wr
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    pub(crate) fn domain(&self) -> &Arc<Pd> {
        self.pd.get()
    }

    pub(super) fn queue(&self) -> SpinMutexGuard<'_, ReceiveQueue, spin::Yield> {
        self.queue.lock()
    }

    /// The program's pointer to it.
    pub(crate) fn handle(&self) -> *mut ibv_srq {
        self.handle.load(Ordering::Relaxed)
    }

    pub(crate) fn set_handle(&self, handle: *mut ibv_srq) {
        self.handle.store(handle, Ordering::Relaxed);
    }

    /// The acknowledgements of its asynchronous events.
    pub(crate) fn acks(&self) -> &Acks {
        &self.acks
    }

    /// Executes `ibv_post_srq_recv`.
    ///
    /// # Errors
    ///
    /// An errno, with the request that was refused.
    ///
    /// # Safety
    ///
    /// `wr` is a valid list of requests.
    pub(crate) unsafe fn post(&self, mut wr: *mut ibv_recv_wr) -> Result<(), (i32, *mut ibv_recv_wr)> {
        self.context.check_process().map_err(|error| (error, wr))?;
        let mut queue = self.queue.lock();
        while !wr.is_null() {
            // Counted before it is posted, because a count that lags behind could trigger the limit
            // event.
            self.counters().add_available(1);
            // SAFETY: the caller guarantees a valid list of requests.
            if let Err(error) = unsafe { queue.post(wr) } {
                self.counters().take_back_available();
                return Err((error, wr));
            }
            // SAFETY: the caller guarantees a valid list of requests.
            wr = unsafe { (*wr).next };
        }
        Ok(())
    }

    /// Executes `ibv_modify_srq`. Only the limit can be changed (the device does not report
    /// `IBV_DEVICE_SRQ_RESIZE`).
    ///
    /// # Errors
    ///
    /// `EINVAL` for a new size, or a limit above the size.
    pub(crate) fn modify(self: &Arc<Self>, attr: &ibv_srq_attr, mask: u32) -> Result<(), i32> {
        self.context.check_process()?;
        let (size, limit) = (ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0, ibv_srq_attr_mask::IBV_SRQ_LIMIT.0);
        if mask & !(size | limit) != 0 || mask & size != 0 {
            return Err(libc::EINVAL);
        }
        if mask & limit != 0 {
            if attr.srq_limit > self.max_wr {
                return Err(libc::EINVAL);
            }
            if self.counters().set_limit(attr.srq_limit) {
                self.limit_reached();
            }
        }
        Ok(())
    }

    /// Executes `ibv_query_srq`.
    ///
    /// # Errors
    ///
    /// `EIO` in a forked child.
    pub(crate) fn query(&self, attr: &mut ibv_srq_attr) -> Result<(), i32> {
        self.context.check_process()?;
        attr.max_wr = self.max_wr;
        attr.max_sge = self.max_sge;
        attr.srq_limit = self.counters().limit();
        Ok(())
    }

    /// A peer has reported that fewer receives are left than the limit.
    pub(crate) fn limit_reached(self: &Arc<Self>) {
        if self.counters().take_limit_reached() {
            self.raise_limit();
        }
    }

    /// Raises the event "SRQ limit reached".
    pub(crate) fn raise_limit(self: &Arc<Self>) {
        self.context.raise(AsyncEvent {
            kind: ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED,
            element: EventElement::Srq(Arc::clone(self)),
        });
    }

    /// Posts a receive again that a peer has left to its owner.
    pub(crate) fn repost_slot(&self, slot: u32, claim: Claim) {
        let counters = self.counters();
        self.queue.lock().repost_slot(slot, claim, || {
            counters.add_available(1);
            counters.set_hint(slot);
        });
    }

    /// Recovers the slots of a dead peer: posts those again that it had claimed, or had finished
    /// without announcing them.
    pub(crate) fn peer_detached(&self, peer_id: u16) {
        let mut announced = Vec::new();
        for queue_pair in self.rnic.queue_pairs().all() {
            queue_pair.pending_shared(&mut announced);
        }
        let counters = self.counters();
        self.queue.lock().recover(peer_id, |slot| announced.contains(&slot), |_| counters.add_available(1));
    }
}
