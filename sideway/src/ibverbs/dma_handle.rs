//! DMA handles: hints that the device gives to the bus when it accesses memory.
//!
//! On PCIe these are processing hints (TPH): the processor that will use the data, and the kind of
//! memory. Incoming data can then go into that processor's cache. A handle affects the regions that
//! are [registered](super::memory_region::MemoryRegionBuilder::setup_dma_handle) with it.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sideway::ErrorKind;
//! use sideway::ibverbs::device::DeviceList;
//! use sideway::ibverbs::dma_handle::DmaHandleAttribute;
//!
//! # let list = DeviceList::from_provider(sideway::soft::provider())?;
//! let context = list.first()?.open()?;
//! match context.alloc_dmah(DmaHandleAttribute::new().setup_cpu_id(3)) {
//!     Ok(handle) => println!("{handle:?}"),
//!     // The software device has no bus.
//!     Err(error) if error.kind() == ErrorKind::Unsupported => println!("{error}"),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{
    ibv_dmah, ibv_dmah_init_attr, ibv_dmah_init_attr_mask as Mask, ibv_tph_mem_type as Memory,
};

use super::device_context::DeviceContext;
use super::{Unsupported, check};
use crate::error::Error;

const WHAT: &str = "DMA handles";

c_enum! {
    /// The kind of memory that the hints describe (`ibv_tph_mem_type`).
    pub struct TphMemoryType(u8) {
        /// Volatile memory.
        Volatile = Memory::IBV_TPH_MEM_TYPE_VM.0,
        /// Persistent memory.
        Persistent = Memory::IBV_TPH_MEM_TYPE_PM.0,
    }
}

display_as_debug!(TphMemoryType);

/// The attributes of a DMA handle (`ibv_dmah_init_attr`). The device chooses those that are not
/// set.
#[derive(Clone, Copy, Debug, Default)]
pub struct DmaHandleAttribute(ibv_dmah_init_attr);

impl DmaHandleAttribute {
    /// Attributes of which none is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the processor that will use the data, by the system's number.
    pub fn setup_cpu_id(&mut self, cpu_id: u32) -> &mut Self {
        self.0.comp_mask |= Mask::IBV_DMAH_INIT_ATTR_MASK_CPU_ID.0;
        self.0.cpu_id = cpu_id;
        self
    }

    /// Sets the processing hint of the bus (`ph`): 0 to 3.
    pub fn setup_processing_hint(&mut self, ph: u8) -> &mut Self {
        self.0.comp_mask |= Mask::IBV_DMAH_INIT_ATTR_MASK_PH.0;
        self.0.ph = ph;
        self
    }

    /// Sets the kind of memory.
    pub fn setup_tph_mem_type(&mut self, tph_mem_type: TphMemoryType) -> &mut Self {
        self.0.comp_mask |= Mask::IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE.0;
        self.0.tph_mem_type = tph_mem_type.raw();
        self
    }
}

/// A DMA handle (`ibv_dmah`).
///
/// Clones refer to the same handle. It is freed (`ibv_dealloc_dmah`) when the last clone and the
/// last region registered with it are dropped.
#[derive(Clone)]
pub struct DmaHandle(Arc<Inner>);

struct Inner {
    dmah: NonNull<ibv_dmah>,
    context: DeviceContext,
}

// SAFETY: the handle is immutable, and the only verbs that use it, registrations, are thread-safe
// in libibverbs.
unsafe impl Send for Inner {}
// SAFETY: the handle is immutable, and the only verbs that use it, registrations, are thread-safe
// in libibverbs.
unsafe impl Sync for Inner {}

impl DeviceContext {
    /// Allocates a DMA handle (`ibv_alloc_dmah`).
    ///
    /// # Errors
    ///
    /// Fails if the device has none, or if the library is older than rdma-core 59
    /// ([`Unsupported`]). Also fails if the device rejects the attributes.
    ///
    /// # References
    ///
    /// `man ibv_alloc_dmah`
    pub fn alloc_dmah(&self, attribute: &DmaHandleAttribute) -> Result<DmaHandle, Error> {
        let alloc = self.provider().verbs().ibv_alloc_dmah();
        let alloc = alloc.map_err(|symbol| Unsupported::missing(self, WHAT, symbol))?;
        let mut attr = attribute.0;
        // SAFETY: the context is kept open, and the attributes are initialised.
        let dmah = unsafe { alloc(self.as_raw().as_ptr(), &raw mut attr) };
        match NonNull::new(dmah) {
            Some(dmah) => Ok(DmaHandle(Arc::new(Inner { dmah, context: self.clone() }))),
            None => Err(Error::of_device(self, "ibv_alloc_dmah", WHAT, io::Error::last_os_error())
                .debug("attribute", *attribute)),
        }
    }
}

impl DmaHandle {
    /// The device context in which it was made.
    pub fn context(&self) -> &DeviceContext {
        &self.0.context
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// free it.
    pub fn as_raw(&self) -> NonNull<ibv_dmah> {
        self.0.dmah
    }
}

impl fmt::Debug for DmaHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaHandle").field("context", &self.0.context).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let ended = match self.context.provider().verbs().ibv_dealloc_dmah() {
            // SAFETY: the handle is alive until here. Every region registered with it held this
            // `Inner` and is gone.
            Ok(dealloc) => check(unsafe { dealloc(self.dmah.as_ptr()) }),
            Err(symbol) => Err(io::Error::other(symbol)),
        };
        if let Err(error) = ended {
            log::error!("ibv_dealloc_dmah failed: {error}");
            // The library still has the handle, so the context that it depends on must stay alive
            // too.
            std::mem::forget(self.context.clone());
        }
    }
}
