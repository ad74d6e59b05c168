//! RDMA READ.
//!
//! This is the general path. A READ of one piece on an established connection first tries the
//! [fast path](super::fast_path), and consecutive READs over the kernel's copy go as a
//! [batch](super::batch).

use rdma_mummy_sys::types::ibv_access_flags;

use super::TransferCtx;
use super::connected::{Nak, TransferError};
use super::payload::Direction;
use crate::queue_pair::Qp;
use crate::queue_pair::send_queue::PostedSend;

impl Qp {
    pub(super) fn read(&self, posted: &PostedSend<'_>, ctx: TransferCtx<'_>) -> Result<(), TransferError> {
        let peer = ctx.peer;
        let request = posted.request;
        if peer.descriptor.max_dest_rd_atomic == 0 {
            return Err(TransferError::Nak(Nak::InvalidRequest));
        }
        if request.length == 0 {
            return Self::check_peer_accepts(ctx);
        }
        let remote = self.validate_remote(posted, ctx, ibv_access_flags::IBV_ACCESS_REMOTE_READ)?;
        // SAFETY: `validate_remote` has set the hazards and compared all snapshots. `gather` has
        // checked that the keys of the local pieces allow writing.
        unsafe { self.move_payload(ctx, Direction::Read, &[remote]) }.map_err(TransferError::from)
    }
}
