//! Memory for messages: allocated, registered and freed in the right order.
//!
//! A [`Buffer`] is zeroed memory that begins at a page. [`reg_buffer`] makes it a [`RegisteredBuffer`], which ends
//! the registration before it frees the memory, and never frees what the device did not let go of:
//!
//! ```no_run
//! use sideway::ibverbs::AccessFlags;
//! use sideway::ibverbs::device::DeviceList;
//! use sideway::memory::{Buffer, BufferKind};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = DeviceList::new()?.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let buffer = Buffer::new(BufferKind::for_device(&context), 1 << 20)?;
//! let memory = pd.reg_buffer(buffer, AccessFlags::LocalWrite | AccessFlags::RemoteWrite)?;
//! println!("{} bytes at {:p}, rkey {:#x}", memory.len(), memory.as_ptr(), memory.rkey());
//! # Ok(())
//! # }
//! ```
//!
//! A device, or a peer through it, may write to registered memory at any time, so nothing here makes a reference
//! to it. What a program does with the pointer is up to its own unsafe code.
//!
//! # Which kind
//!
//! A NIC does not care where memory comes from. A software device (soft-rnic) that moves a message between two
//! processes copies it once and at memory speed if the receiver's memory can be mapped by the sender, which needs
//! [`BufferKind::Shared`]; everything else goes through the kernel. [`BufferKind::for_device`] chooses so.
//!
//! [`reg_buffer`]: crate::ibverbs::protection_domain::ProtectionDomain::reg_buffer

mod buffer;
mod bytes;
#[cfg(feature = "cuda")]
pub mod cuda;
mod node;
pub(crate) mod pool;
mod registered;

pub use buffer::{AllocateBufferError, Buffer, BufferKind};
pub use bytes::Word;
pub use node::AllocateOnNodeError;
pub use pool::{
    BuildPoolError, OutOfSlice, Pool, PoolBuilder, PoolCompletion, Returned, Slice, Slices, SplitSliceError,
};
pub use registered::{DeregisterBufferError, RegisteredBuffer};
