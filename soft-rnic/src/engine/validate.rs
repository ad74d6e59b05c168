//! Validation of a transfer: checks the responder's key and compares the snapshots.
//!
//! Every transfer keeps the same order: take snapshots and read descriptors, set the hazards, then
//! [`revalidate`]. That is a full fence, after which each snapshot is compared with its generation.
//! Only then may the memory be touched.

use rdma_mummy_sys::types::{ibv_access_flags, ibv_wc_status};

use super::TransferCtx;
use super::connected::{Nak, TransferError};
use super::payload::{RemotePiece, RemotePlace};
use super::peer::PeerQp;
use crate::faults::Step;
use crate::faults::injected::reach;
use crate::queue_pair::Qp;
use crate::queue_pair::send_queue::PostedSend;
use crate::shared::entry::domain;
use crate::shared::hazard::{Hazard, full_fence};

/// The second half of validation, after the hazards were set: a full fence, then the comparison of
/// all snapshots with their generations. The remote region and the peer queue pair come before the
/// local regions.
///
/// # Errors
///
/// `Stale` if the remote region or the queue pair has changed, a local protection error if a local
/// region has.
#[inline(always)]
pub(super) fn revalidate(
    peer: &PeerQp,
    remote_is_current: impl FnOnce() -> bool,
    local_is_current: impl FnOnce() -> bool,
) -> Result<(), TransferError> {
    full_fence();
    if !remote_is_current() || !peer.entry().is_current(peer.snapshot) {
        return Err(TransferError::Stale);
    }
    if !local_is_current() {
        return Err(TransferError::Local(ibv_wc_status::IBV_WC_LOC_PROT_ERR));
    }
    Ok(())
}

impl Qp {
    /// Validates a request without payload: only the peer queue pair is compared.
    pub(super) fn check_peer_accepts(ctx: TransferCtx<'_>) -> Result<(), TransferError> {
        let peer = ctx.peer;
        ctx.hazards.remote.set(Hazard::new(peer.hazard_index, Hazard::NO_REGION));
        revalidate(peer, || true, || true)
    }

    /// Checks the key that a request names, publishes the hazards and compares the snapshots. After
    /// that the memory may be touched.
    #[inline]
    pub(super) fn validate_remote(
        &self,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
        needed: ibv_access_flags,
    ) -> Result<RemotePiece, TransferError> {
        let TransferCtx { peer, gather_list, hazards, .. } = ctx;
        let request = posted.request;
        if peer.descriptor.access & needed.0 == 0 {
            return Err(TransferError::Nak(Nak::RemoteAccess));
        }
        if peer.process.is_own() {
            return self.validate_own_remote(posted, ctx, needed);
        }
        let index = request.rkey >> 8;
        let entry = peer.process.segment().region(index).ok_or(TransferError::Nak(Nak::RemoteAccess))?;
        let (snapshot, descriptor) = entry.read().ok_or(TransferError::Nak(Nak::RemoteAccess))?;
        if snapshot.label() != request.rkey as u8
            || !domain::serves(descriptor.pd, peer.descriptor.pd, peer.descriptor.qpn)
            || descriptor.access & needed.0 == 0
            || !descriptor.contains(request.remote_addr, request.length)
        {
            // The descriptor may have been read while its owner changed it.
            let error = if entry.is_current(snapshot) {
                TransferError::Nak(Nak::RemoteAccess)
            } else {
                TransferError::Stale
            };
            return Err(error);
        }
        reach(Step::BeforeMark);
        hazards.remote.set(Hazard::new(peer.hazard_index, index));
        revalidate(peer, || entry.is_current(snapshot), || gather_list.is_current())?;
        let writes = needed != ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        let place = self
            .locate(ctx, request.rkey, &descriptor, request.remote_addr, request.length, writes)
            .ok_or(TransferError::Nak(Nak::RemoteAccess))?;
        let len = request.length as usize;
        Ok(RemotePiece { place, len, key: request.rkey, address: request.remote_addr })
    }

    /// Like [`validate_remote`](Self::validate_remote), if the peer is this process. Keys,
    /// pointers, generations and hazards come from the private tables, because peers can write into
    /// the segment.
    #[inline]
    fn validate_own_remote(
        &self,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
        needed: ibv_access_flags,
    ) -> Result<RemotePiece, TransferError> {
        let TransferCtx { peer, gather_list, hazards, .. } = ctx;
        let request = posted.request;
        let refused = TransferError::Nak(Nak::RemoteAccess);
        let (region, snapshot, descriptor) = self.rnic.regions().read(request.rkey).ok_or(refused)?;
        let good = domain::serves(descriptor.pd, peer.descriptor.pd, peer.descriptor.qpn);
        let allowed = good && descriptor.access & needed.0 != 0;
        let place = RemotePlace::own(&descriptor, request.remote_addr, request.length).filter(|_| allowed);
        let Some(place) = place else {
            return Err(if region.is_current(snapshot) { refused } else { TransferError::Stale });
        };
        reach(Step::BeforeMark);
        // The source may lie in another region than the destination: the hazard covers both.
        hazards.local.set(Hazard::new(peer.hazard_index, Hazard::ANY_REGION));
        hazards.remote.set(Hazard::new(peer.hazard_index, Hazard::NO_REGION));
        revalidate(peer, || region.is_current(snapshot), || gather_list.is_current())?;
        let len = request.length as usize;
        Ok(RemotePiece { place, len, key: request.rkey, address: request.remote_addr })
    }
}
