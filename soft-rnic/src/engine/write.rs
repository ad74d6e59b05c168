//! RDMA WRITE, with and without immediate data.
//!
//! This is the general path. A WRITE of one piece on an established connection first tries the
//! [fast path](super::fast_path), and consecutive WRITEs over the kernel's copy go as a
//! [batch](super::batch). The receive that immediate data consumes is claimed in [`send`](super::send).

use rdma_mummy_sys::types::ibv_access_flags;

use super::TransferCtx;
use super::connected::TransferError;
use super::payload::Direction;
use crate::queue_pair::Qp;
use crate::queue_pair::send_queue::PostedSend;

impl Qp {
    pub(super) fn write(&self, posted: &PostedSend<'_>, ctx: TransferCtx<'_>) -> Result<(), TransferError> {
        let request = posted.request;
        if request.length == 0 {
            return Self::check_peer_accepts(ctx);
        }
        let remote = self.validate_remote(posted, ctx, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)?;
        // SAFETY: `validate_remote` has set the hazards and compared all snapshots.
        unsafe { self.move_payload(ctx, Direction::Write, &[remote]) }.map_err(TransferError::from)
    }

    /// Moves the payload of an RDMA WRITE with immediate data.
    pub(crate) fn write_before_imm(
        &self,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
    ) -> Result<bool, TransferError> {
        self.write(posted, ctx).map(|()| false)
    }
}
