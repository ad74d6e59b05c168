//! XRC: initiator and target queue pairs, and the receiver behind a shared receive queue.
//!
//! A target has no receives. A request names a shared receive queue by its number, and that queue
//! may belong to another process than the target. Therefore the number is a queue pair number: an
//! internal queue pair, the receiver, stands behind each XRC shared receive queue. It takes
//! receives from the queue and completes them at the completion queue that the creator named.
//! Hazards of peers name it, and its number leads to its process like that of any other queue pair.

use std::io;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use rdma_mummy_sys::types::{
    ibv_access_flags, ibv_event_type, ibv_qp, ibv_qp_cap, ibv_qp_state, ibv_qp_type,
};

use super::{Qp, QpInit, Srq};
use crate::faults::{Opcode, RequestFacts};
use crate::objects::acks::Acks;
use crate::objects::completion::Cq;
use crate::objects::context::Context;
use crate::objects::event::{AsyncEvent, EventElement};
use crate::objects::use_ref::UseRef;
use crate::objects::xrc_domain::Xrcd;
use crate::shared::entry::SlotsDescriptor;

/// The type of the internal receiver behind an XRC shared receive queue. No program can create one.
pub(crate) const RECEIVER: ibv_qp_type = ibv_qp_type(0x7f);

/// All remote access: the target's permissions decide what a peer may do.
const ANYTHING: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;

/// The handles of an XRC target in addition to its creator's.
#[derive(Default)]
pub(super) struct OpenedHandles {
    others: Vec<Arc<OpenedQp>>,
    /// Whether the creator has destroyed its handle.
    left: bool,
    /// Whether the last handle is being destroyed.
    ending: bool,
}

/// A handle that `ibv_open_qp` made.
pub(crate) struct OpenedQp {
    qp: Arc<Qp>,
    context: Arc<Context>,
    xrcd: UseRef<Xrcd>,
    handle: AtomicPtr<ibv_qp>,
    acks: Acks,
}

impl OpenedQp {
    pub(crate) fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// The program's pointer to it.
    pub(crate) fn handle(&self) -> *mut ibv_qp {
        self.handle.load(Ordering::Relaxed)
    }

    pub(crate) fn set_handle(&self, handle: *mut ibv_qp) {
        self.handle.store(handle, Ordering::Relaxed);
    }

    /// The acknowledgements of its asynchronous events.
    pub(crate) fn acks(&self) -> &Acks {
        &self.acks
    }

    /// The context that it was opened in.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Qp {
    /// Creates the receiver of a shared receive queue in an XRC domain. It completes at `cq`.
    ///
    /// # Errors
    ///
    /// No memory or no free number is left.
    pub(crate) fn receive_for(srq: &Arc<Srq>, cq: &Arc<Cq>, xrcd: &Arc<Xrcd>) -> io::Result<Arc<Self>> {
        let context = srq.context();
        let made = Self::create(
            context.rnic(),
            QpInit {
                context: Arc::clone(context),
                pd: Arc::clone(srq.domain()),
                send_cq: Arc::clone(cq),
                recv_cq: Arc::clone(cq),
                srq: Some(Arc::clone(srq)),
                xrcd: Some(Arc::clone(xrcd)),
                qp_type: RECEIVER,
                caps: ibv_qp_cap::default(),
                sq_sig_all: false,
                create_flags: 0,
            },
        )?;
        made.change_state(ibv_qp_state::IBV_QPS_RTR, |_| true);
        made.publish(|descriptor| {
            descriptor.qpn = made.number.qpn;
            descriptor.pd = made.pd.number();
            descriptor.access = ANYTHING;
            descriptor.qp_type = RECEIVER.0 as u8;
            descriptor.device = context.device().number;
            descriptor.recv_cq = made.recv_cq.index();
            descriptor.source = made.source();
            descriptor.link_up = true;
            descriptor.xrcd = xrcd.id();
            made.receiving.show(descriptor, SlotsDescriptor::default());
        });
        Ok(made)
    }

    /// Whether it is the internal receiver of an XRC shared receive queue.
    pub(crate) fn receives_for_others(&self) -> bool {
        self.qp_type == RECEIVER
    }

    /// Whether it is an XRC target, which takes messages for shared receive queues.
    pub(super) fn is_target(&self) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_XRC_RECV
    }

    /// Whether it is an end of an XRC connection, which has no receives.
    pub(super) fn is_xrc(&self) -> bool {
        matches!(self.qp_type, ibv_qp_type::IBV_QPT_XRC_SEND | ibv_qp_type::IBV_QPT_XRC_RECV)
    }

    /// The type of the queue pair at the other end.
    pub(crate) fn answered_by(&self) -> ibv_qp_type {
        if self.qp_type == ibv_qp_type::IBV_QPT_XRC_SEND {
            ibv_qp_type::IBV_QPT_XRC_RECV
        } else {
            self.qp_type
        }
    }

    /// The queue pair of this process by which a message arrived; `None` if it belongs to another
    /// process.
    pub(super) fn pair_of(self: &Arc<Self>, qpn: u32) -> Option<Arc<Self>> {
        if qpn == self.number.qpn {
            return Some(Arc::clone(self));
        }
        let index = self.rnic.node().own_index(qpn)?;
        self.rnic.queue_pairs().get(index).filter(|pair| pair.number.qpn == qpn)
    }

    /// The facts of a message that fault rules match against. `through` is the number of the queue
    /// pair by which it arrived.
    pub(super) fn seen_by(&self, opcode: Opcode, size: u64, through: u32) -> RequestFacts {
        let seen = self.seen(opcode, size);
        if through == self.number.qpn {
            return seen;
        }
        RequestFacts { qpn: through, qp_type: ibv_qp_type::IBV_QPT_XRC_RECV, ..seen }
    }

    fn opened(&self) -> MutexGuard<'_, OpenedHandles> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes `ibv_open_qp`: makes another handle, in a context that has the domain open. `None`
    /// if the last handle is being destroyed.
    pub(crate) fn open_again(
        self: &Arc<Self>,
        context: &Arc<Context>,
        xrcd: &Arc<Xrcd>,
    ) -> Option<Arc<OpenedQp>> {
        let mut opened = self.opened();
        if opened.ending {
            return None;
        }
        let other = Arc::new(OpenedQp {
            qp: Arc::clone(self),
            context: Arc::clone(context),
            xrcd: UseRef::new(xrcd),
            handle: AtomicPtr::default(),
            acks: Acks::default(),
        });
        opened.others.push(Arc::clone(&other));
        Some(other)
    }

    /// Gives a handle up: the creator's if `other` is `None`. The last one destroys the queue pair.
    ///
    /// # Errors
    ///
    /// As [`destroy`](Self::destroy).
    pub(crate) fn close(self: &Arc<Self>, other: Option<&Arc<OpenedQp>>) -> Result<(), i32> {
        self.context.check_process()?;
        let last = {
            let mut opened = self.opened();
            opened.ending = match other {
                None => opened.others.is_empty(),
                Some(_) => opened.left && opened.others.len() == 1,
            };
            opened.ending
        };
        if last {
            // Without the lock, because a thread that raises an event takes it, and `destroy` may
            // wait for that thread.
            self.destroy().inspect_err(|_| self.opened().ending = false)?;
        }
        let mut opened = self.opened();
        match other {
            None => opened.left = true,
            Some(other) => {
                opened.others.retain(|one| !Arc::ptr_eq(one, other));
                other.xrcd.release();
            }
        }
        Ok(())
    }

    /// Raises an event for every other handle too.
    pub(super) fn raise_elsewhere(&self, kind: ibv_event_type) {
        for other in &self.opened().others {
            other.context.raise(AsyncEvent { kind, element: EventElement::Opened(Arc::clone(other)) });
        }
    }
}
