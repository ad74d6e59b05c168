//! RDMA FLUSH: checks the request; the data are visible already.

use rdma_mummy_sys::types::{ibv_access_flags, ibv_placement_type, ibv_selectivity_level};

use super::TransferCtx;
use super::connected::{Nak, TransferError};
use crate::queue_pair::Qp;
use crate::queue_pair::send_queue::{PostedSend, SendRequest};
use crate::shared::hazard::full_fence;

impl Qp {
    /// Executes a FLUSH. The data of every request that has completed are visible to all processes
    /// already. FLUSH only checks that the request is permitted, and lets no later request pass it.
    /// No memory of this device outlives the host, so no region permits persistence.
    pub(super) fn flush(&self, posted: &PostedSend<'_>, ctx: TransferCtx<'_>) -> Result<(), TransferError> {
        let [length, kind] = posted.request.operands;
        let (placement, level) = (kind as u8, (kind >> 8) as u8);
        let global = u32::from(placement) == ibv_placement_type::IBV_FLUSH_GLOBAL.0;
        let persistent = u32::from(placement) & ibv_placement_type::IBV_FLUSH_PERSISTENT.0 != 0;
        let known = [ibv_selectivity_level::IBV_FLUSH_RANGE.0, ibv_selectivity_level::IBV_FLUSH_MR.0];
        if persistent {
            return Err(TransferError::Nak(Nak::RemoteAccess));
        }
        if ctx.peer.descriptor.max_dest_rd_atomic == 0 || !global || !known.contains(&level.into()) {
            return Err(TransferError::Nak(Nak::InvalidRequest));
        }
        let whole = u32::from(level) == ibv_selectivity_level::IBV_FLUSH_MR.0;
        // A FLUSH of a whole region must name an address within it; its length is ignored.
        let request = SendRequest { length: if whole { 0 } else { length }, ..*posted.request };
        self.validate_remote(
            &PostedSend { request: &request, ..*posted },
            ctx,
            ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL,
        )?;
        full_fence();
        Ok(())
    }
}
