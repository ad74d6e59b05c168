//! Advice about regions with on-demand paging (`ibv_advise_mr`).

use std::io;
use std::ops::Range;

use rdma_mummy_sys::types::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, ib_uverbs_advise_mr_advice, ibv_sge,
};
use rdma_mummy_sys::verbs;

use super::MemoryRegion;
use crate::error::{Error, ErrorKind};
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::{AccessFlags, check};

c_enum! {
    /// A hint about the next accesses to memory (`ibv_advise_mr_advice`).
    pub struct MemoryRegionAdvice(u32) {
        /// The memory will be read: make its pages present.
        Prefetch = IBV_ADVISE_MR_ADVICE_PREFETCH.0,
        /// The memory will be written: make its pages present and writable.
        PrefetchWrite = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE.0,
        /// Tell the device about the pages that are present, and fault in no others.
        PrefetchNoFault = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT.0,
    }
}

display_as_debug!(MemoryRegionAdvice);

c_flags! {
    /// How the advice is carried out (`IBV_ADVISE_MR_FLAG_*`).
    pub struct AdviseMemoryRegionFlags(u32) {
        /// Finish before the call returns.
        Flush = IBV_ADVISE_MR_FLAG_FLUSH.0,
    }
}

impl ProtectionDomain {
    /// Advises the device about byte ranges of regions with on-demand paging (`ibv_advise_mr`).
    ///
    /// It is safe because pages only become present, and nothing else changes.
    ///
    /// # Errors
    ///
    /// Fails if a range is not in its region, or if a region belongs to another domain or is not
    /// paged on demand. Also fails if the advice is about writes to a region that is not writable.
    /// Also fails if part of the memory is not mapped, or if the device does not support the advice
    /// ([`Unsupported`](crate::ibverbs::Unsupported)).
    ///
    /// # References
    ///
    /// `man ibv_advise_mr`
    pub fn advise_mr(
        &self,
        advice: MemoryRegionAdvice,
        flags: AdviseMemoryRegionFlags,
        ranges: &[(&MemoryRegion, Range<usize>)],
    ) -> Result<(), Error> {
        const VERB: &str = "ibv_advise_mr";
        let mut entries = Vec::with_capacity(ranges.len());
        for (index, (region, range)) in ranges.iter().enumerate() {
            if range.start > range.end || range.end > region.len {
                let (range, region_len) = (range.clone(), region.len);
                return Err(Error::not_called(
                    VERB,
                    ErrorKind::OutOfBounds,
                    "a range of the advice is not in its region",
                )
                .with("index", index)
                .debug("range", range)
                .with("region_len", region_len));
            }
            if !region.access.contains(AccessFlags::OnDemand) {
                // SoftRoCE takes its record for a larger one, and reads beyond it.
                let reason = "advice is about regions on demand only";
                let error = Error::not_called(VERB, ErrorKind::InvalidArgument, reason).with("index", index);
                return Err(error.debug("access", region.access));
            }
            push_entries(&mut entries, region, range);
        }
        let count = entries.len();
        let failed = |source| {
            let what = format!("advice {advice} about memory regions");
            Error::of_device(self.context(), VERB, what, source).with("advice", advice).with("count", count)
        };
        let num_sge = u32::try_from(count).map_err(|_| failed(io::Error::from_raw_os_error(libc::EINVAL)))?;
        let (pd, list) = (self.as_raw().as_ptr(), entries.as_mut_ptr());
        let raw = ib_uverbs_advise_mr_advice(advice.raw());
        // SAFETY: `self` keeps the domain alive, and `list` points to `num_sge` entries.
        check(unsafe { verbs::ibv_advise_mr(pd, raw, flags.bits(), list, num_sge) }).map_err(failed)
    }
}

/// Adds entries for a range. An entry's length has 32 bits, so that a longer range takes several
/// entries.
fn push_entries(entries: &mut Vec<ibv_sge>, region: &MemoryRegion, range: &Range<usize>) {
    const MOST: usize = 1 << 31;
    let mut start = range.start;
    while start < range.end {
        let length = (range.end - start).min(MOST);
        let addr = region.iova().wrapping_add(start as u64);
        entries.push(ibv_sge { addr, length: length as u32, lkey: region.lkey });
        start += length;
    }
}
