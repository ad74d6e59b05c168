//! GPU memory that a NIC accesses without a copy through the host (feature `cuda`).
//!
//! The CUDA driver allocates the memory and exports it as a *dma-buf*, a descriptor through which
//! the NIC registers it. This needs a driver with dma-buf support (see [`CudaError::NoDmaBuf`]),
//! but not NVIDIA's `nvidia-peermem`.
//!
//! The driver's library, `libcuda.so.1`, is loaded when a device is opened. So a program with this
//! feature starts on a machine without a GPU, and [`CudaDevice::open`] reports what is missing.
//!
//! ```no_run
//! use sideway::ibverbs::AccessFlags;
//! use sideway::ibverbs::device::DeviceList;
//! use sideway::memory::cuda::CudaDevice;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = DeviceList::new()?.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let gpu = CudaDevice::open(0)?;
//! let mut buffer = gpu.allocate(1 << 20)?;
//! buffer.copy_from_slice(0, b"for the peer")?;
//! let region = buffer.register(&pd, AccessFlags::LocalWrite | AccessFlags::RemoteRead)?;
//! println!("{} bytes at {:#x}, rkey {:#x}", region.buffer().len(), region.addr(), region.rkey());
//! # Ok(())
//! # }
//! ```
//!
//! All of this is safe, because the CPU never accesses this memory. `copy_from_slice` and similar
//! functions copy through the driver. If a peer writes at the same time, the result is a mixture of
//! old and new bytes.

mod buffer;
mod device;
mod driver;
mod error;
mod region;

pub use buffer::{CudaBuffer, DmaBuf};
pub use device::CudaDevice;
pub use error::CudaError;
pub use region::{CudaRegion, CudaRegionMut};
