//! Advice about memory that is paged on demand.

use std::io;
use std::ops::Range;

use rdma_mummy_sys::types::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, ib_uverbs_advise_mr_advice, ibv_sge,
};
use rdma_mummy_sys::verbs;

use super::MemoryRegion;
use crate::error::{Error, ErrorKind};
use crate::ibverbs::check;
use crate::ibverbs::protection_domain::ProtectionDomain;

c_enum! {
    /// What a program knows about memory (`ibv_advise_mr_advice`).
    pub struct MemoryRegionAdvice(u32) {
        /// It will be read: its pages are to be present.
        Prefetch = IBV_ADVISE_MR_ADVICE_PREFETCH.0,
        /// It will be written: its pages are to be present and writable.
        PrefetchWrite = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE.0,
        /// Those of its pages that are present are to be known to the device; no other is to be made so.
        PrefetchNoFault = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT.0,
    }
}

display_as_debug!(MemoryRegionAdvice);

c_flags! {
    /// How advice is followed (`IBV_ADVISE_MR_FLAG_*`).
    pub struct AdviseMemoryRegionFlags(u32) {
        /// Before the call returns.
        Flush = IBV_ADVISE_MR_FLAG_FLUSH.0,
    }
}

impl ProtectionDomain {
    /// Tells the device about parts of regions that are paged on demand, each with the range of its bytes (`ibv_advise_mr`).
    ///
    /// It is safe: pages become present, and nothing else changes.
    ///
    /// # Errors
    ///
    /// A range is not in its region; a region is of another domain, not paged on demand, or not writable though the advice is to
    /// write; part of the memory is not mapped; or the device does not take (such) advice ([`Unsupported`]).
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
        // SAFETY: the domain lives, and the list has so many entries.
        check(unsafe { verbs::ibv_advise_mr(pd, raw, flags.bits(), list, num_sge) }).map_err(failed)
    }
}

/// An entry has a length of 32 bits; a range may be longer.
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
