//! A chunk's memory with RDMA: shared memory, registered if the pool has a protection domain.
//!
//! It is shared memory even for a NIC that accepts any memory. It is not present before it is
//! touched, a forked child does not take it from the device, and the pool can be created before its
//! device is known.

use std::ptr::NonNull;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::memory::{Buffer, BufferKind};

use super::config::HugePages;
use super::{Source, chunk::ChunkBytes, classes::RegistrationKind};

/// The domain that chunks are registered in.
pub(super) type PoolDomain = ProtectionDomain;

/// Identifies a domain, which lives while a registration in it exists; never 0.
pub(super) fn identity(domain: &PoolDomain) -> usize {
    domain.as_raw().as_ptr().addr()
}

/// Zeroed memory that begins at a page boundary.
pub(super) struct ChunkMemory(Buffer);

impl ChunkMemory {
    /// `len` is not 0.
    pub(super) fn make(len: usize, huge: HugePages, domain: Option<&PoolDomain>) -> Result<Self, Source> {
        let soft = domain.is_some_and(|domain| domain.context().is_soft());
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

/// A chunk's registration.
#[derive(Debug)]
pub(super) struct ChunkRegion {
    region: MemoryRegion,
    soft: bool,
}

impl ChunkRegion {
    /// Registers the memory. The chunk keeps it as long as the region, and leaks it if the region
    /// cannot be deregistered.
    pub(super) fn register(
        bytes: &ChunkBytes,
        domain: &PoolDomain,
        kind: RegistrationKind,
    ) -> Result<Self, Source> {
        let access = match kind {
            RegistrationKind::Private => AccessFlags::LocalWrite,
            RegistrationKind::PeerReadable => AccessFlags::LocalWrite | AccessFlags::RemoteRead,
        };
        // SAFETY: `Chunk` frees the memory after the region has ended, or never. The device writes
        // only to addresses in requests of this side, whose issuer owns the block until they
        // complete (`Block::as_ptr`), so no reference exists.
        let region = unsafe { domain.reg_mr(bytes.start().as_ptr(), bytes.len(), access) }?;
        Ok(Self { region, soft: domain.context().is_soft() })
    }

    pub(super) fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    pub(super) fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// Whether the device is software.
    pub(super) fn is_soft(&self) -> bool {
        self.soft
    }

    /// Ends the registration; on failure it still exists, and is returned.
    pub(super) fn end(self) -> Result<(), (Self, Source)> {
        let Self { region, soft } = self;
        region.close().map_err(|error| (Self { region: error.object, soft }, error.error.into()))
    }
}
