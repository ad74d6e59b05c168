//! A region of borrowed memory ends with its call, and a region after a failed change is unusable.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::{MemoryRegion, MemoryRegionChange, ReregisterMemoryRegionError};
use sideway::ibverbs::protection_domain::ProtectionDomain;

fn kept<'a>(pd: &ProtectionDomain, bytes: &mut [u8]) -> &'a MemoryRegion {
    pd.reg_mr_scoped(bytes, AccessFlags::LocalWrite, |region| region).unwrap()
}

fn looked_at(pd: &ProtectionDomain, bytes: &mut [u8]) {
    pd.reg_mr_scoped(bytes, AccessFlags::LocalWrite, |_| bytes[0]).unwrap();
}

fn closed(pd: &ProtectionDomain, bytes: &mut [u8]) {
    pd.reg_mr_scoped(bytes, AccessFlags::LocalWrite, |region| region.close()).unwrap();
}

fn used_after_all(region: MemoryRegion, change: &MemoryRegionChange) -> u32 {
    match unsafe { region.rereg_mr(change) } {
        Err(ReregisterMemoryRegionError::Unusable { region, .. }) => region.lkey(),
        _ => 0,
    }
}

fn changed_safely(region: MemoryRegion, change: &MemoryRegionChange) {
    region.rereg_mr(change).unwrap();
}

fn main() {}
