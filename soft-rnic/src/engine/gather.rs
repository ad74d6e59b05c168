//! The requester's own memory: checking keys and finding pointers.

use rdma_mummy_sys::types::{ibv_access_flags, ibv_sge, ibv_wc_status};

use super::transfer::{Local, Locals};
use crate::objects::region::Region;
use crate::queue_pair::Qp;
use crate::queue_pair::send_queue::{Payload, Posted};
use crate::shared::gate::Pass;
use crate::shared::mark::{Mark, MarkCell};

/// Pieces whose keys were good when they were looked up, and the gates to look at again.
#[derive(Default)]
pub(crate) struct Gathered<'a> {
    pub(crate) pieces: Locals,
    gates: arrayvec::ArrayVec<(&'a Region, Pass), { crate::shared::segment::MAX_SGE }>,
}

impl Gathered<'_> {
    /// Pieces of a message whose keys somebody else looks at.
    pub(super) fn of(pieces: Locals) -> Self {
        Self { pieces, ..Self::default() }
    }

    /// Whether all keys are still good; to be asked when the mark is settled.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.gates.iter().all(|(region, pass)| region.holds(*pass))
    }

    /// Bytes in all.
    pub(crate) fn length(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len).sum()
    }
}

impl Qp {
    /// Finds a request's pieces, and sets (without settling) the local mark for them.
    #[inline]
    pub(crate) fn gather<'a>(
        &'a self,
        posted: &Posted<'_>,
        writes: bool,
        mark: &MarkCell,
        gathered: &mut Gathered<'a>,
    ) -> Result<(), ibv_wc_status> {
        if posted.request.payload == Payload::Inline {
            let len = posted.request.length as usize;
            if len > 0 {
                gathered.pieces.push(Local { at: posted.inline.cast_mut(), len });
            }
            return Ok(());
        }
        self.gather_entries(posted.entries, self.pd.number(), u64::MAX, writes, mark, gathered)
    }

    /// The same for a list of entries of a domain, as far as `limit` bytes fill them.
    #[inline]
    pub(crate) fn gather_entries<'a>(
        &'a self,
        entries: &[ibv_sge],
        pd: u32,
        limit: u64,
        writes: bool,
        mark: &MarkCell,
        gathered: &mut Gathered<'a>,
    ) -> Result<(), ibv_wc_status> {
        let mut marked = Mark::NO_REGION;
        let mut left = limit;
        for entry in entries.iter().filter(|entry| entry.length > 0) {
            let length = u64::from(entry.length).min(left);
            if length == 0 {
                break;
            }
            left -= length;
            let found = self.rnic.regions().read(entry.lkey);
            let (region, pass, card) = found.ok_or(ibv_wc_status::IBV_WC_LOC_PROT_ERR)?;
            let may_write = card.access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 != 0;
            let at = card.pointer(entry.addr, length).or_else(|| card.null_pointer(length, writes));
            let (Some(at), true) = (at, card.pd == pd && (may_write || !writes)) else {
                return Err(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
            };
            let index = entry.lkey >> 8;
            marked = if marked == Mark::NO_REGION || marked == index { index } else { Mark::ANY_REGION };
            gathered.pieces.push(Local { at, len: length as usize });
            gathered.gates.push((region, pass));
        }
        if marked != Mark::NO_REGION {
            mark.set(Mark::new(self.number.index, marked));
        }
        Ok(())
    }
}
