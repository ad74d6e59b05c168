//! Memory windows: bind, local invalidate, and SEND with invalidate.
//!
//! Whose memory is taken away closes the window at once, and waits until nobody touches it: the request stays at the front
//! meanwhile, and is looked at again like one that nobody has acknowledged.

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
    /// Takes the memory of the window with this key away from peers; whether there was any. A memory region's key is not for that:
    /// only those are whose regions requests register (`man ibv_post_send`: there are none in user space).
    fn invalidate(&self, by: WindowRequester, key: u32) -> Result<bool, WindowError> {
        self.regions().window(key).ok_or(WindowError::Refused)?.invalidate(by, key)
    }
}

impl Qp {
    pub(crate) fn requester(&self, remote: bool) -> WindowRequester {
        WindowRequester { pd: self.pd.number(), qpn: self.number.qpn, remote }
    }

    /// Executes a request about a window of this process.
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
        // By its serial number: the one with that index may be another by now.
        let window = self.rnic.regions().window(request.rkey);
        let window =
            window.filter(|window| window.serial() == request.imm_data).ok_or(WindowError::Refused)?;
        window.bind(self.requester(false), &bind)?;
        if window.is_of_type_2() {
            self.note_window(&window);
        }
        Ok(())
    }

    /// The message takes the window of a key away that the peer has told of, before its receive is complete.
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
        // All bytes are there: hazards of this very transfer keep nobody waiting.
        ctx.hazards.local.set(Hazard::new(self.number.index, Hazard::NO_REGION));
        ctx.hazards.remote.set(Hazard::new(ctx.peer.index, Hazard::NO_REGION));
        let result = if ctx.peer.process.is_own() {
            let peer = self.rnic.queue_pairs().get(ctx.peer.index).ok_or(TransferError::Stale)?;
            peer.invalidate_for_peer(key)
        } else {
            invalidate_by_rpc(ctx, key).map_err(TransferError::Copy)?
        };
        result.map_err(|stays| match stays {
            WindowError::Busy => TransferError::Copy(CopyError::OwnerPending),
            WindowError::Refused => TransferError::Nak(Nak::Invalidation),
        })
    }

    /// The peer takes a window's memory away, of which its message will tell.
    pub(super) fn invalidate_for_peer(&self, key: u32) -> Result<(), WindowError> {
        if self.rnic.invalidate(self.requester(true), key)? {
            self.note_invalidated(key);
        }
        Ok(())
    }

    /// What a receive's completion says was invalidated is so, whatever its sender says. What was invalidated for this message is
    /// left alone: if the key is good again, the program has bound it anew.
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
