//! Memory windows: bind, local invalidate, and SEND with invalidate.
//!
//! A process that invalidates or rebinds a window closes it at once and waits until no transfer
//! touches its memory. Until then the request stays at the front of the queue and is retried like
//! an unacknowledged one.

use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_wc_status, ibv_wr_opcode};

use super::connected::{Nak, TransferError};
use super::rpc::invalidate_by_rpc;
use super::{CopyError, TransferCtx, WrOutcome};
use crate::objects::memory_window::{BindRequest, WindowError, WindowRequester};
use crate::objects::rnic::Rnic;
use crate::queue_pair::send_queue::{PostedSend, SendRequest};
use crate::queue_pair::{Qp, Sending};
use crate::shared::hazard::Hazard;

impl Rnic {
    /// Invalidates the window with this key, and returns whether it was bound. The key of a memory
    /// region is refused: only regions that requests register can be invalidated, and user space
    /// has none (`man ibv_post_send`).
    fn invalidate(&self, by: WindowRequester, key: u32) -> Result<bool, WindowError> {
        self.regions().window(key).ok_or(WindowError::Refused)?.invalidate(by, key)
    }
}

impl Qp {
    pub(crate) fn requester(&self, remote: bool) -> WindowRequester {
        WindowRequester { pd: self.pd.number(), qpn: self.number.qpn, remote }
    }

    /// Executes a bind or a local invalidate.
    #[cold]
    pub(super) fn execute_window_request(
        self: &Arc<Self>,
        sending: &mut Sending,
        posted: &PostedSend<'_>,
    ) -> WrOutcome {
        let binds = posted.request.opcode == ibv_wr_opcode::IBV_WR_BIND_MW;
        let failed =
            if binds { ibv_wc_status::IBV_WC_MW_BIND_ERR } else { ibv_wc_status::IBV_WC_LOC_QP_OP_ERR };
        let result = if binds {
            self.bind(posted.request)
        } else {
            self.rnic.invalidate(self.requester(false), posted.request.imm_data).map(drop)
        };
        match result {
            Ok(()) => WrOutcome::Done,
            Err(WindowError::Refused) => WrOutcome::Failed(failed),
            Err(WindowError::Busy) => self.retry_until_unused(sending, failed),
        }
    }

    fn bind(self: &Arc<Self>, request: &SendRequest) -> Result<(), WindowError> {
        let [length, lkey_access] = request.operands;
        let bind = BindRequest {
            key: request.rkey,
            lkey: (lkey_access >> 32) as u32,
            address: request.remote_addr,
            length,
            access: lkey_access as u32,
        };
        // The serial number identifies the window, because a new window may have its index by now.
        let window = self.rnic.regions().window(request.rkey);
        let window =
            window.filter(|window| window.serial() == request.imm_data).ok_or(WindowError::Refused)?;
        window.bind(self.requester(false), &bind)?;
        if window.is_of_type_2() {
            self.note_window(&window);
        }
        Ok(())
    }

    /// Invalidates the window that a SEND with invalidate names, before its receive completes.
    pub(super) fn invalidate_at_peer(
        &self,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
    ) -> Result<(), TransferError> {
        let request = posted.request;
        if request.opcode != ibv_wr_opcode::IBV_WR_SEND_WITH_INV {
            return Ok(());
        }
        let key = request.imm_data;
        // All bytes are delivered, so this transfer drops its regions from the hazards. Otherwise
        // the invalidation would wait for this transfer.
        ctx.hazards.local.set(Hazard::new(self.number.index, Hazard::NO_REGION));
        ctx.hazards.remote.set(Hazard::new(ctx.peer.index, Hazard::NO_REGION));
        let result = if ctx.peer.process.is_own() {
            let peer = self.rnic.queue_pairs().get(ctx.peer.index).ok_or(TransferError::Stale)?;
            peer.invalidate_for_peer(key)
        } else {
            invalidate_by_rpc(ctx, key)?
        };
        result.map_err(|stays| match stays {
            WindowError::Busy => TransferError::Copy(CopyError::OwnerPending),
            WindowError::Refused => TransferError::Nak(Nak::Invalidation),
        })
    }

    /// Invalidates a window on behalf of a peer's SEND, whose completion will report it.
    pub(super) fn invalidate_for_peer(&self, key: u32) -> Result<(), WindowError> {
        if self.rnic.invalidate(self.requester(true), key)? {
            self.note_invalidated(key);
        }
        Ok(())
    }

    /// Ensures that the key which a receive's completion reports as invalidated is invalid, because
    /// the sender is not trusted. A key that was invalidated for this message stays untouched: if
    /// it is valid again, the program has rebound the window.
    #[cold]
    pub(crate) fn confirm_invalidated(&self, key: u32, status: ibv_wc_status) -> ibv_wc_status {
        if self.was_invalidated(key) || self.rnic.regions().read(key).is_none() {
            return status;
        }
        match self.rnic.invalidate(self.requester(true), key) {
            Ok(_) => status,
            Err(_) => ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
        }
    }
}
