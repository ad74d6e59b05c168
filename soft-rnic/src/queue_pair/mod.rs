//! Queue pairs and shared receive queues. (Stand-ins, until the real ones are merged.)

use std::collections::VecDeque;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use rdma_mummy_sys::types::{ibv_qp, ibv_srq};

use crate::node::Link;
use crate::objects::acks::Acks;
use crate::objects::completion::Cqe;

#[derive(Default)]
pub(crate) struct Qp {
    pub(crate) handle: AtomicPtr<ibv_qp>,
    pub(crate) acks: Acks,
    /// Receive completions that are waiting to be polled.
    pub(crate) received: Mutex<VecDeque<Cqe>>,
    pub(crate) progressed: AtomicUsize,
}

impl Qp {
    /// The C object.
    pub(crate) fn handle(&self) -> *mut ibv_qp {
        self.handle.load(Relaxed)
    }

    /// Of asynchronous events.
    pub(crate) fn acks(&self) -> &Acks {
        &self.acks
    }

    /// Hands out at most `room` receive completions; true if there are more. Called under the poll lock of the
    /// completion queue and the lock of its sources: it may push to completion queues, not attach to or detach from one.
    pub(crate) fn poll_receives(&self, room: usize, sink: &mut impl FnMut(Cqe)) -> bool {
        let mut received = self.received.lock().expect("no panic holds it");
        let count = received.len().min(room);
        received.drain(..count).for_each(sink);
        !received.is_empty()
    }

    /// Executes what waits in the send queue.
    pub(crate) fn progress(&self) {
        self.progressed.fetch_add(1, Relaxed);
    }

    pub(crate) fn noticed(&self) {}

    pub(crate) fn timer(&self) {}

    pub(crate) fn link_gone(&self, _link: u16) {}

    pub(crate) fn peer_lost(&self, _link: &Arc<Link>) {}
}

#[derive(Default)]
pub(crate) struct Srq {
    pub(crate) handle: AtomicPtr<ibv_srq>,
    pub(crate) acks: Acks,
}

impl Srq {
    /// The C object.
    pub(crate) fn handle(&self) -> *mut ibv_srq {
        self.handle.load(Relaxed)
    }

    /// Of asynchronous events.
    pub(crate) fn acks(&self) -> &Acks {
        &self.acks
    }

    pub(crate) fn limit_reached(&self) {}

    pub(crate) fn link_gone(&self, _link: u16) {}
}
