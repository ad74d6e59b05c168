//! GPU memory that a NIC reaches without a copy through the host (feature `cuda`).
//!
//! Memory is allocated by CUDA's driver, handed on as a *dma-buf* (a descriptor that stands for it), and registered with the NIC
//! by that. NVIDIA's `nvidia-peermem` is not needed; a driver with dma-buf support is (see
//! [`CudaError::NoDmaBuf`]).
//!
//! The driver's library, `libcuda.so.1`, is opened when a device is: a program that was built with this feature starts on a
//! machine without GPU, and [`CudaDevice::open`] says what is missing.
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
//! The processor never reaches this memory: what `copy_from_slice` and its like copy goes through the driver, and a peer that
//! writes at the same time makes a mixture, no more. So all of this is safe.

mod buffer;
mod device;
mod driver;
mod error;
mod region;

pub use buffer::{CudaBuffer, DmaBuf};
pub use device::CudaDevice;
pub use error::CudaError;
pub use region::{CudaRegion, CudaRegionMut};
