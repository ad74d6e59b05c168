//! Memory that the device allocates for a program. Peers can map it and copy to and from it
//! directly.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::protection_domain::Pd;
use super::use_ref::UseRef;
use crate::node::ExportId;
use crate::platform::memory::FileMapping;
use crate::shared::segment::PAGE;

/// An allocated buffer. It can be shared and cannot shrink.
#[derive(Debug)]
pub(crate) struct Buffer {
    pd: UseRef<Pd>,
    memory: Arc<FileMapping>,
    export: ExportId,
}

impl Buffer {
    /// Allocates a buffer.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the size is zero, otherwise the system's error if it has no memory left.
    pub(crate) fn allocate(pd: &Arc<Pd>, size: usize) -> io::Result<Arc<Self>> {
        let size =
            size.checked_next_multiple_of(PAGE).filter(|size| *size != 0 && *size <= isize::MAX as usize);
        let memory =
            Arc::new(FileMapping::create(c"soft-rnic buffer", size.ok_or(io::ErrorKind::InvalidInput)?)?);
        let export = pd.context().rnic().node().exports().add(Arc::clone(&memory))?;
        Ok(Arc::new(Self { pd: UseRef::new(pd), memory, export }))
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    /// Whether the whole range lies in it.
    pub(crate) fn contains(&self, address: usize, length: usize) -> bool {
        address
            .checked_sub(self.base().as_ptr().addr())
            .is_some_and(|offset| offset <= self.memory.len() && length <= self.memory.len() - offset)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pd.context().rnic().node().exports().remove(self.export);
    }
}
