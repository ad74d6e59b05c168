//! A chunk's memory where there is RDMA: shareable, and registered when there is a domain.
//!
//! It is shared memory also for a NIC that would take any: it is not there before it is touched, a forked child does not take it
//! from under the device, and the pool need not know its device when it is made.

use std::ptr::NonNull;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::memory::{Buffer, BufferKind};

use super::config::HugePages;
use super::{Cause, chunk::Bytes, classes::Kind};

/// What chunks are registered with.
pub(super) type Domain = ProtectionDomain;

/// Names a domain, which lives as long as something is registered in it; never 0.
pub(super) fn identity(domain: &Domain) -> usize {
    domain.as_raw().as_ptr().addr()
}

/// Zeroed memory that begins at a page.
pub(super) struct Memory(Buffer);

impl Memory {
    /// `len` is not 0.
    pub(super) fn make(len: usize, huge: HugePages, domain: Option<&Domain>) -> Result<Self, Cause> {
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
pub(super) struct Region {
    region: MemoryRegion,
    soft: bool,
}

impl Region {
    /// The chunk that has the memory keeps it as long as the region, and leaks it if the region cannot be ended.
    pub(super) fn register(bytes: &Bytes, domain: &Domain, kind: Kind) -> Result<Self, Cause> {
        let access = match kind {
            Kind::Private => AccessFlags::LocalWrite,
            Kind::Told => AccessFlags::LocalWrite | AccessFlags::RemoteRead,
        };
        // SAFETY: `Chunk` frees the memory after the region has ended, or never. The device writes only to what a request of this
        // side names, and who makes such a request owns the block meanwhile (`Block::as_ptr`), so nobody has a reference.
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

    /// On failure it is still registered, and comes back.
    pub(super) fn end(self) -> Result<(), (Self, Cause)> {
        let Self { region, soft } = self;
        region.close().map_err(|error| (Self { region: error.object, soft }, error.error.into()))
    }
}
