//! `ibv_advise_mr`: makes memory that is paged on demand present before it is needed.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_mummy_sys::types::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, ib_uverbs_advise_mr_advice, ibv_access_flags, ibv_sge,
};

use super::protection_domain::Pd;
use crate::platform::{errno, user_memory};

/// How the program will use the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// It will be read.
    Read,
    /// It will be written.
    Write,
    /// Use resident pages, and make no others resident. The device uses resident pages anyway, so
    /// this does nothing.
    Present,
}

impl Advice {
    pub(crate) fn from_number(advice: ib_uverbs_advise_mr_advice) -> Option<Self> {
        match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => Some(Self::Read),
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Some(Self::Write),
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Some(Self::Present),
            _ => None,
        }
    }
}

/// Makes a range of a region resident before it returns.
///
/// # Errors
///
/// As `man ibv_advise_mr`: `ENOENT` for an unknown key, `EPERM` for another domain or missing write
/// access. `EINVAL` if the memory is not paged on demand, `EFAULT` if the range exceeds the region
/// or is not mapped.
pub(crate) fn prefetch(pd: &Arc<Pd>, advice: Advice, range: ibv_sge) -> Result<(), c_int> {
    const ON_DEMAND: u32 = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
    const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    let (region, pass, descriptor) = pd.context().rnic().regions().read(range.lkey).ok_or(libc::ENOENT)?;
    if !region.is_current(pass) {
        return Err(libc::ENOENT);
    }
    if descriptor.pd != pd.number() || (advice == Advice::Write && descriptor.access & LOCAL_WRITE == 0) {
        return Err(libc::EPERM);
    }
    if descriptor.access & ON_DEMAND == 0 {
        return Err(libc::EINVAL);
    }
    let length = u64::from(range.length);
    let at = descriptor
        .pointer(range.addr, length)
        .or_else(|| descriptor.implicit_pointer(range.addr, length))
        .ok_or(libc::EFAULT)?;
    match advice {
        Advice::Present => Ok(()),
        Advice::Read | Advice::Write => {
            user_memory::populate(at, range.length as usize, advice == Advice::Write)
                .map_err(|error| errno::of(&error))
        }
    }
}
