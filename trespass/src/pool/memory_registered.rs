//! A chunk's memory with RDMA: shared memory, registered in each protection domain of the pool.
//!
//! It is shared memory even for a NIC that accepts any memory. It is not present before it is
//! touched, a forked child does not take it from the device, and the pool can be created before its
//! device is known.

use std::ptr::NonNull;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::memory::{Buffer, BufferKind};

use super::config::HugePages;
pub(crate) use super::domain_set::{DomainSet, MOST_DEVICES};
use super::{Source, chunk::ChunkBytes, classes::RegistrationKind};

/// Zeroed memory that begins at a page boundary.
pub(super) struct ChunkMemory(Buffer);

impl ChunkMemory {
    /// `len` is not 0.
    pub(super) fn make(len: usize, huge: HugePages, domains: Option<&DomainSet>) -> Result<Self, Source> {
        let soft = domains.is_some_and(DomainSet::is_soft);
        if huge == HugePages::Required || huge == HugePages::Wanted && !soft {
            match Buffer::new(BufferKind::HUGE_2_MIB, len) {
                Ok(buffer) => return Ok(Self(buffer)),
                Err(error) if huge == HugePages::Required => return Err(error.into()),
                Err(error) => tracing::debug!("the pool takes ordinary pages: {error}"),
            }
        }
        Ok(Self(Buffer::new(BufferKind::Shared, len)?))
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        NonNull::new(self.0.as_ptr()).expect("no buffer is at address 0")
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A chunk's memory regions.
#[derive(Debug)]
pub(super) struct ChunkRegion {
    /// By device; `None` if the device had failed before, or if the region has ended.
    regions: Vec<Option<MemoryRegion>>,
    domains: DomainSet,
}

impl ChunkRegion {
    /// Registers the memory with each device that works, or with none. The chunk keeps it as long
    /// as the regions, and leaks it if one cannot be deregistered. With an error come the regions
    /// that were made and could not be ended.
    pub(super) fn register(
        bytes: &ChunkBytes,
        domains: &DomainSet,
        kind: RegistrationKind,
    ) -> Result<Self, (Option<Self>, Source)> {
        let access = match kind {
            RegistrationKind::Private => AccessFlags::LocalWrite,
            RegistrationKind::PeerReadable => AccessFlags::LocalWrite | AccessFlags::RemoteRead,
        };
        let mut made = Self { regions: Vec::new(), domains: domains.clone() };
        for (device, domain) in domains.domains().iter().enumerate() {
            if domains.has_failed(device) {
                made.regions.push(None);
                continue;
            }
            // SAFETY: `Chunk` frees the memory after each region has ended, or never. The device
            // writes only to addresses in requests of this side, whose issuer owns the block until
            // they complete (`Block::as_ptr`), so no reference exists.
            match unsafe { domain.reg_mr(bytes.start().as_ptr(), bytes.len(), access) } {
                Ok(region) => made.regions.push(Some(region)),
                Err(error) => {
                    let refusal = domains.refusal(device, error);
                    let left = made.end().err().map(|cause| {
                        tracing::error!("{} bytes of a pool stay registered: {cause}", bytes.len());
                        made
                    });
                    return Err((left, refusal));
                }
            }
        }
        if made.count() == 0 { Err((None, DomainSet::no_device_works())) } else { Ok(made) }
    }

    /// The number of regions.
    pub(super) fn count(&self) -> usize {
        self.regions.iter().flatten().count()
    }

    /// The local and the remote key for a device.
    pub(super) fn keys(&self, device: usize) -> Option<(u32, u32)> {
        self.regions.get(device)?.as_ref().map(|region| (region.lkey(), region.rkey()))
    }

    /// Whether all devices are software.
    pub(super) fn is_soft(&self) -> bool {
        self.domains.is_soft()
    }

    /// Whether a device that has failed has a region, which it may not end.
    pub(super) fn has_failed_device(&self) -> bool {
        (0..self.regions.len())
            .any(|device| self.regions[device].is_some() && self.domains.has_failed(device))
    }

    /// Ends the regions; on failure, those that could not be ended still exist.
    pub(super) fn end(&mut self) -> Result<(), Source> {
        let mut refusal = None;
        for (device, place) in self.regions.iter_mut().enumerate() {
            if let Some(Err(error)) = place.take().map(MemoryRegion::close) {
                *place = Some(error.object);
                refusal.get_or_insert_with(|| self.domains.refusal(device, error.error));
            }
        }
        refusal.map_or(Ok(()), Err)
    }
}
