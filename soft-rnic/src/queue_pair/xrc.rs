//! Extended reliable connections: initiators, targets, and what receives for a shared queue.
//!
//! A target takes no receive. A request names the shared receive queue that it is for by its number, and the queue may belong to
//! another process than the target. So the number is one of a queue pair's: behind each XRC queue stands a queue pair that nobody
//! sees. It takes its receives from the queue, completes them where the queue's creator said, and is what peers' hazards name while they
//! are at it; its number leads to the process as that of any queue pair does.

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
use crate::objects::event::{Event, EventElement};
use crate::objects::use_ref::UseRef;
use crate::objects::xrc_domain::Xrcd;
use crate::shared::entry::SlotsDescriptor;

/// The type of what receives for a shared queue. No program can ask for it.
pub(crate) const RECEIVER: ibv_qp_type = ibv_qp_type(0x7f);

/// Everything that a target may let peers do: it is the target that says what they may.
const ANYTHING: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;

/// Who has a target open beside the one who made it.
#[derive(Default)]
pub(super) struct OpenedHandles {
    others: Vec<Arc<OpenedQp>>,
    /// The one who made it has destroyed its own handle.
    left: bool,
    /// The last handle is being destroyed.
    ending: bool,
}

/// A handle of a target that was opened again.
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

    /// The C object.
    pub(crate) fn handle(&self) -> *mut ibv_qp {
        self.handle.load(Ordering::Relaxed)
    }

    pub(crate) fn set_handle(&self, handle: *mut ibv_qp) {
        self.handle.store(handle, Ordering::Relaxed);
    }

    /// Of asynchronous events.
    pub(crate) fn acks(&self) -> &Acks {
        &self.acks
    }

    /// The context that it was opened in.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Qp {
    /// What receives for a shared queue of an XRC domain, and completes at `cq`.
    ///
    /// # Errors
    ///
    /// There is no number or no memory for it.
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

    /// Whether it is what receives for a shared queue.
    pub(crate) fn receives_for_others(&self) -> bool {
        self.qp_type == RECEIVER
    }

    /// Whether it takes messages for shared queues, which are told to its number.
    pub(super) fn is_target(&self) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_XRC_RECV
    }

    /// An end of an extended reliable connection: it has no receives of its own.
    pub(super) fn is_xrc(&self) -> bool {
        matches!(self.qp_type, ibv_qp_type::IBV_QPT_XRC_SEND | ibv_qp_type::IBV_QPT_XRC_RECV)
    }

    /// The type that the other end has.
    pub(crate) fn answered_by(&self) -> ibv_qp_type {
        if self.qp_type == ibv_qp_type::IBV_QPT_XRC_SEND {
            ibv_qp_type::IBV_QPT_XRC_RECV
        } else {
            self.qp_type
        }
    }

    /// The queue pair of this process that a message came by; `None` if it is of another.
    pub(super) fn pair_of(self: &Arc<Self>, qpn: u32) -> Option<Arc<Self>> {
        if qpn == self.number.qpn {
            return Some(Arc::clone(self));
        }
        let index = self.rnic.node().own_index(qpn)?;
        self.rnic.queue_pairs().get(index).filter(|pair| pair.number.qpn == qpn)
    }

    /// What rules of faults see of a message that came by a queue pair.
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

    /// `ibv_open_qp`: another handle, in a context that has the domain open; `None` if the last one is about to go.
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

    /// One handle is given up, the maker's if `other` is none. The last takes the queue pair along.
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
            // Without the lock: who raises an event takes it, and may be waited for.
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

    /// Who has it open elsewhere hears of it as well.
    pub(super) fn raise_elsewhere(&self, kind: ibv_event_type) {
        for other in &self.opened().others {
            other.context.raise(Event { kind, element: EventElement::Opened(Arc::clone(other)) });
        }
    }
}
