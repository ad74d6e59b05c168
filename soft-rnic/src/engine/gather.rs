//! The gather list of a request: checks local keys and finds pointers.

use rdma_mummy_sys::types::{ibv_access_flags, ibv_sge, ibv_wc_status};

use super::payload::{LocalPiece, LocalPieces};
use crate::objects::region::RegionSlot;
use crate::queue_pair::Qp;
use crate::queue_pair::send_queue::{PayloadKind, PostedSend};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::{Hazard, HazardSlot};

/// Pieces whose keys were valid when they were looked up, and the generations to compare again.
#[derive(Default)]
pub(crate) struct GatherList<'a> {
    pub(crate) pieces: LocalPieces,
    generations:
        arrayvec::ArrayVec<(&'a RegionSlot, GenerationSnapshot), { crate::shared::segment::MAX_SGE }>,
}

impl GatherList<'_> {
    /// Pieces whose keys another list checks.
    pub(super) fn of(pieces: LocalPieces) -> Self {
        Self { pieces, ..Self::default() }
    }

    /// Whether all keys are still valid. Call it after the hazard was set and a full fence has
    /// followed.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.generations.iter().all(|(region, snapshot)| region.is_current(*snapshot))
    }

    /// The sum of the lengths of all pieces.
    pub(crate) fn length(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len).sum()
    }
}

impl Qp {
    /// Finds the pieces of a request and sets the local hazard for them, without a fence.
    #[inline]
    pub(crate) fn gather<'a>(
        &'a self,
        posted: &PostedSend<'_>,
        writes: bool,
        hazard: &HazardSlot,
        gather_list: &mut GatherList<'a>,
    ) -> Result<(), ibv_wc_status> {
        if posted.request.payload == PayloadKind::Inline {
            let len = posted.request.length as usize;
            if len > 0 {
                gather_list.pieces.push(LocalPiece { at: posted.inline.cast_mut(), len });
            }
            return Ok(());
        }
        self.gather_entries(posted.entries, self.pd.number(), u64::MAX, writes, hazard, gather_list)
    }

    /// Finds the pieces of a list of entries of the protection domain `pd`, up to `limit` bytes.
    /// Sets the local hazard for them, without a fence.
    #[inline]
    pub(crate) fn gather_entries<'a>(
        &'a self,
        entries: &[ibv_sge],
        pd: u32,
        limit: u64,
        writes: bool,
        hazard: &HazardSlot,
        gather_list: &mut GatherList<'a>,
    ) -> Result<(), ibv_wc_status> {
        let mut hazard_index = Hazard::NO_REGION;
        let mut left = limit;
        for entry in entries.iter().filter(|entry| entry.length > 0) {
            let length = u64::from(entry.length).min(left);
            if length == 0 {
                break;
            }
            left -= length;
            let found = self.rnic.regions().read(entry.lkey);
            let (region, snapshot, descriptor) = found.ok_or(ibv_wc_status::IBV_WC_LOC_PROT_ERR)?;
            let may_write = descriptor.access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 != 0;
            let at =
                descriptor.pointer(entry.addr, length).or_else(|| descriptor.null_pointer(length, writes));
            let (Some(at), true) = (at, descriptor.pd == pd && (may_write || !writes)) else {
                return Err(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
            };
            let index = entry.lkey >> 8;
            hazard_index = if hazard_index == Hazard::NO_REGION || hazard_index == index {
                index
            } else {
                Hazard::ANY_REGION
            };
            gather_list.pieces.push(LocalPiece { at, len: length as usize });
            gather_list.generations.push((region, snapshot));
        }
        if hazard_index != Hazard::NO_REGION {
            hazard.set(Hazard::new(self.number.index, hazard_index));
        }
        Ok(())
    }
}
