//! The executor: the sender's thread executes each posted request whole, under its transfer slot.
//!
//! One file for each operation: [`write`], [`read`], [`send`], [`atomic`], [`flush`], `memory_window`.
//! The general path runs from [`connected`] (RC, UC), `xrc`, [`datagram`] (UD) or `multicast` to the
//! file of the operation. Two shortcuts come first: `fast_path` for the frequent cases, `batch` for
//! several requests that one system call moves. [`retry`] holds timeouts and RNR, [`payload`] moves
//! bytes, [`rpc`] asks the owner of memory to move them where nothing else reaches it.
//!
//! Every transfer reads the descriptors of what it touches, sets hazards, compares the generations
//! again (`validate`), touches, and clears the hazards. [`Hazards`] clears them in every case.

mod atomic;
mod batch;
pub(crate) mod connected;
pub(crate) mod datagram;
mod fast_path;
mod fault_injection;
mod flush;
pub(crate) mod gather;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) mod hostile;
mod memory_window;
pub(crate) mod multicast;
pub(crate) mod payload;
pub(crate) mod peer;
mod read;
pub(crate) mod retry;
pub(crate) mod rpc;
pub(crate) mod send;
mod validate;
mod write;
mod xrc;

use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_event_type, ibv_qp_state, ibv_qp_type, ibv_send_flags, ibv_wc_status};

use crate::faults;
use crate::node::VmError;
use crate::node::{Doorbell, PayloadPath, PeerProcess, TransferSlotGuard};
use crate::objects::completion::Cqe;
use crate::objects::rnic::Rnic;
use crate::queue_pair::send_queue::PostedSend;
use crate::queue_pair::transfer_slot_mutex::TransferSlotMutexGuard;
use crate::queue_pair::{Qp, Sending, wc_opcode};
use crate::shared::hazard::HazardSlot;
use gather::GatherList;
use peer::PeerQp;
use retry::RetryWait;

/// The result of an attempt to execute a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrOutcome {
    Done,
    /// It has failed and is not retried.
    Failed(ibv_wc_status),
    /// It must be retried, no later than the deadline of the wait.
    Retry(RetryWait),
}

/// Why a payload could not be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyError {
    /// The peer process has exited.
    PeerGone,
    /// The peer has no memory at that address.
    BadAddress,
    /// The owner was asked and has refused, for example because it has withdrawn the memory; or the
    /// system has another reason.
    Refused,
    /// This process has no memory at an address of the request, which names an implicit region.
    OwnBadAddress,
    /// This path does not work any more, for example because the kernel now forbids it.
    PathLost,
    /// The owner was asked and has not answered yet.
    OwnerPending,
    /// The owner has begun the call and takes longer than a sender waits.
    OwnerBusy,
}

impl From<VmError> for CopyError {
    fn from(error: VmError) -> Self {
        match error {
            VmError::Gone => Self::PeerGone,
            VmError::Fault => Self::BadAddress,
            VmError::Failed(_) => Self::Refused,
            VmError::Forbidden(_) => Self::PathLost,
        }
    }
}

/// The context of one transfer.
#[derive(Clone, Copy)]
pub(crate) struct TransferCtx<'a> {
    pub(crate) rnic: &'a Rnic,
    pub(crate) peer: &'a PeerQp,
    pub(crate) gather_list: &'a GatherList<'a>,
    pub(crate) hazards: &'a Hazards<'a>,
    pub(crate) transfer_slot: &'a TransferSlotGuard<'a>,
    /// Identifies the request to an owner that is asked to execute it.
    pub(crate) ticket: u64,
}

impl TransferCtx<'_> {
    /// Counts a message that was moved.
    #[inline]
    pub(crate) fn count(&self, path: PayloadPath, bytes: usize) {
        self.peer.process.counters().add(self.transfer_slot, path, bytes);
    }

    /// The path for memory that is mapped here.
    #[inline]
    pub(crate) fn mapped(&self) -> PayloadPath {
        if self.peer.process.is_own() { PayloadPath::Own } else { PayloadPath::Direct }
    }
}

/// The published hazards of one transfer, which are cleared on drop.
pub(crate) struct Hazards<'a> {
    pub(crate) local: &'a HazardSlot,
    pub(crate) remote: &'a HazardSlot,
}

impl Drop for Hazards<'_> {
    #[inline]
    fn drop(&mut self) {
        self.remote.clear();
        self.local.clear();
    }
}

/// Work to do after the transfer slot is released.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// Doorbells of this process.
    own: arrayvec::ArrayVec<Doorbell, 8>,
    /// Whether this queue pair has failed.
    failed: bool,
    drained: bool,
}

impl Deferred {
    #[inline]
    fn is_empty(&self) -> bool {
        !self.failed && !self.drained && self.own.is_empty()
    }

    /// Tells the owner that its queue pair has a notice.
    pub(crate) fn notice(&mut self, process: &PeerProcess, queue_pair: u32) {
        self.ring(process, Doorbell::Qp(queue_pair));
    }

    /// Rings a peer's doorbell at once. A doorbell of this process waits until no transfer slot is
    /// held.
    pub(crate) fn ring(&mut self, process: &PeerProcess, doorbell: Doorbell) {
        if !process.is_own() {
            process.ring(doorbell);
        } else if !self.own.contains(&doorbell) && self.own.try_push(doorbell).is_err() {
            // The list is full, so the service thread answers this one.
            process.ring(doorbell);
        }
    }
}

impl Qp {
    /// Executes requests, at most `budget` of them, as far as they can proceed now.
    pub(crate) fn run(self: &Arc<Self>, budget: u32) {
        self.run_in(self.sending.lock(), budget);
    }

    /// Like [`run`](Self::run), but returns false if another thread executes already. The service
    /// thread uses it, because it must not wait for a thread that waits for the service thread of
    /// another process.
    pub(crate) fn run_unless_busy(self: &Arc<Self>, budget: u32) -> bool {
        self.sending.try_lock().map(|sending| self.run_in(sending, budget)).is_some()
    }

    fn run_in(self: &Arc<Self>, mut sending: TransferSlotMutexGuard<'_, Sending>, budget: u32) {
        let mut deferred = Deferred::default();
        self.execute_requests(&mut sending, budget, &mut deferred);
        drop(sending);
        if !deferred.is_empty() {
            self.run_deferred(deferred);
        }
    }

    #[cold]
    fn run_deferred(self: &Arc<Self>, deferred: Deferred) {
        if deferred.failed {
            self.fail();
        }
        if deferred.drained {
            self.raise(ibv_event_type::IBV_EVENT_SQ_DRAINED);
        }
        for doorbell in deferred.own {
            self.rnic.answer(doorbell);
        }
    }

    fn execute_requests(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        budget: u32,
        deferred: &mut Deferred,
    ) {
        // SAFETY: the guard `sending` holds the transfer slot mutex, and every executor of this
        // send queue holds it.
        let mut queue = unsafe { self.send_queue.executor() };
        for _ in 0..budget {
            let Some(mut posted) = queue.peek(0) else { break };
            let state = self.state();
            let plainly = state == ibv_qp_state::IBV_QPS_RTS && !faults::active();
            let outcome = match state {
                _ if plainly && self.execute_fast(sending, &posted, queue.peek(1).is_none(), deferred) => {
                    WrOutcome::Done
                }
                ibv_qp_state::IBV_QPS_RTS if !plainly => self.execute(sending, &posted, deferred),
                ibv_qp_state::IBV_QPS_RTS => match self.execute_batch(sending, &queue, budget, deferred) {
                    0 => self.execute_plainly(sending, &posted, deferred),
                    moved => {
                        for _ in 1..moved {
                            self.complete(&posted, ibv_wc_status::IBV_WC_SUCCESS);
                            queue.step();
                            sending.end_request(self.number.index as usize);
                            posted = queue.peek(0).expect("the batch has moved this request");
                        }
                        WrOutcome::Done
                    }
                },
                // In SQD, a request that had begun is finished.
                ibv_qp_state::IBV_QPS_SQD if sending.wait.is_some() => {
                    self.execute(sending, &posted, deferred)
                }
                ibv_qp_state::IBV_QPS_ERR if self.is_silent() => return,
                ibv_qp_state::IBV_QPS_ERR | ibv_qp_state::IBV_QPS_SQE => {
                    WrOutcome::Failed(ibv_wc_status::IBV_WC_WR_FLUSH_ERR)
                }
                // The device is gone, so nothing is executed any more.
                ibv_qp_state::IBV_QPS_RESET => return,
                _ => break,
            };
            let status = match outcome {
                WrOutcome::Retry(wait) => {
                    self.schedule_retry(wait);
                    return;
                }
                WrOutcome::Done => ibv_wc_status::IBV_WC_SUCCESS,
                WrOutcome::Failed(status) => status,
            };
            self.complete(&posted, status);
            queue.step();
            sending.end_request(self.number.index as usize);
            if !matches!(status, ibv_wc_status::IBV_WC_SUCCESS | ibv_wc_status::IBV_WC_WR_FLUSH_ERR) {
                self.set_send_failed();
                deferred.failed = self.state() == ibv_qp_state::IBV_QPS_ERR;
            }
        }
        if self.state() == ibv_qp_state::IBV_QPS_SQD {
            // Requests that have not begun wait until the queue pair returns to RTS.
            deferred.drained = self.is_draining();
        } else if queue.peek(0).is_some() {
            self.schedule_progress();
        }
    }

    #[inline]
    fn execute(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &PostedSend<'_>,
        deferred: &mut Deferred,
    ) -> WrOutcome {
        if faults::active() {
            self.execute_with_faults(sending, posted, deferred)
        } else {
            self.execute_plainly(sending, posted, deferred)
        }
    }

    #[inline(never)]
    fn execute_plainly(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &PostedSend<'_>,
        deferred: &mut Deferred,
    ) -> WrOutcome {
        if self.qp_type == ibv_qp_type::IBV_QPT_UD {
            self.execute_datagram(sending, posted, deferred)
        } else {
            self.execute_connected(sending, posted, deferred)
        }
    }

    /// Reports the completion of a request if it was signaled or has failed.
    fn complete(&self, posted: &PostedSend<'_>, status: ibv_wc_status) {
        let request = posted.request;
        let failed = status != ibv_wc_status::IBV_WC_SUCCESS;
        if !failed && !self.sq_sig_all && !request.has(ibv_send_flags::IBV_SEND_SIGNALED) {
            return;
        }
        let opcode = wc_opcode(request.opcode);
        let byte_len = if failed { 0 } else { request.length as u32 };
        let cqe = Cqe {
            wr_id: request.wr_id,
            status: status.0,
            opcode: opcode.0,
            byte_len,
            qp_num: self.number.qpn,
            ..Cqe::default()
        };
        self.send_cq.push(cqe, failed);
    }
}
