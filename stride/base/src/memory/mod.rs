//! Registered memory of each kind: the host's, directly or by a dma-buf, the RDMA device's, and a
//! GPU's.
//!
//! The processor reaches the host's memory by raw pointers ([`buffers`]), and the others by copies.

mod scatter;
mod udmabuf;

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::device_memory::DeviceMemory;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::memory::cuda::{CudaDevice, CudaError, CudaRegion};
use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};

pub use scatter::avoid as avoid_scatter;

use crate::buffers::{self, AllocationError, BufferLayout, Flag};
use crate::device::LocalDevice;
use crate::error::Error;
use crate::plan::{LatencyDefinition, Measure, TestOperation, TestPlan};

/// Alignment of memory on the device to a cache line, as a logarithm.
const CACHE_LINE_BITS: u32 = 6;

/// The source of the messages' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Host memory, registered by its address.
    Host(BufferKind),
    /// Host memory, registered by a dma-buf.
    DmaBuf,
    /// Memory on the RDMA device (`ibv_alloc_dm`).
    Device,
    /// Memory of the GPU with this number.
    Cuda(u32),
}

impl MemoryKind {
    /// The default kind for a device.
    pub fn for_device(context: &DeviceContext) -> Self {
        Self::Host(BufferKind::for_device(context))
    }

    /// Checks that a test which waits for bytes in memory uses memory that the processor can read.
    ///
    /// # Errors
    ///
    /// The test waits, and the processor cannot read the memory.
    pub fn check(self, test: &TestPlan) -> Result<(), UnseenError> {
        let ping_pong = Measure::Latency(LatencyDefinition::PingPong);
        match self {
            Self::Device | Self::Cuda(_)
                if (test.operation, test.measure) == (TestOperation::Write, ping_pong) =>
            {
                Err(UnseenError { kind: self })
            }
            _ => Ok(()),
        }
    }
}

/// The test waits for bytes that the processor cannot see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} and --latency pingpong of write do not go together, as the processor does not see the last byte arrive there: give \
     --latency completion, or add --imm"
)]
pub struct UnseenError {
    /// The kind of memory.
    pub kind: MemoryKind,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(BufferKind::Shared) => f.write_str("shared"),
            Self::Host(BufferKind::HugePages { page_size }) => {
                write!(f, "huge pages of {} KiB", page_size >> 10)
            }
            Self::Host(_) => f.write_str("malloc"),
            Self::DmaBuf => f.write_str("dma-buf"),
            Self::Device => f.write_str("device memory (--dm)"),
            Self::Cuda(ordinal) => write!(f, "memory of CUDA device {ordinal} (--use-cuda)"),
        }
    }
}

/// Memory of this kind cannot be allocated, registered or copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The device has no memory, or too little.
    #[error(
        "--dm: {device} has no {length} bytes of memory of its own (max_dm_size is {limit}): {source}; leave --dm out"
    )]
    Device {
        /// The device's name.
        device: String,
        /// The requested length in bytes.
        length: u64,
        /// The device's limit in bytes.
        limit: u64,
        /// The library's error.
        source: sideway::Error,
    },
    /// The GPU has too little memory, or no GPU has this number.
    #[error("--use-cuda {ordinal}: {source}")]
    Cuda {
        /// The GPU's number.
        ordinal: u32,
        /// The driver's error.
        source: CudaError,
    },
    /// The NIC cannot reach the GPU's memory.
    #[error("--use-cuda {ordinal}: {source}")]
    RegisterCuda {
        /// The GPU's number.
        ordinal: u32,
        /// The error of the registration.
        source: sideway::ibverbs::memory_region::RegisterMemoryRegionError,
    },
    /// The kernel makes no dma-buf of this memory.
    #[error(
        "--buffer dma-buf: cannot make a dma-buf of {length} bytes: {call}: {source}; load the kernel's udmabuf (and raise its \
         size_limit_mb), or give another --buffer"
    )]
    DmaBuf {
        /// The requested length in bytes.
        length: u64,
        /// The system call that failed.
        call: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The library would copy small messages to an address that the processor cannot reach.
    #[error(
        "{kind} of {device}: its library would copy small messages to the processor's memory: set MLX5_SCATTER_TO_CQE=0 in the \
         environment"
    )]
    Scatters {
        /// The kind of memory.
        kind: MemoryKind,
        /// The device's name.
        device: String,
    },
    /// Memory of the device cannot be copied.
    #[error("--dm: {0}")]
    CopyDevice(#[from] sideway::Error),
    /// Memory of the GPU cannot be copied.
    #[error("--use-cuda: {0}")]
    CopyCuda(#[from] CudaError),
    /// The host memory has no file from which to make a dma-buf.
    #[error("--buffer dma-buf: shared memory without a file; give another --buffer")]
    NoFile,
}

/// Memory that the device, and a peer with its key, can reach.
#[derive(Debug)]
pub enum TestMemory {
    /// Host memory, registered by its address.
    Host(RegisteredBuffer),
    /// Host memory, registered by a dma-buf.
    // Fields drop in order: the registration goes before its memory, here and below.
    DmaBuf(MemoryRegion, Buffer),
    /// Memory on the device, and a byte of host memory that stands in for bytes that the processor
    /// would write or wait for.
    Device(MemoryRegion, DeviceMemory, Buffer),
    /// GPU memory, and the same stand-in.
    Cuda(Mutex<CudaRegion>, Buffer),
}

/// Devices copy whole words of this many bytes to and from their memory.
const DEVICE_WORD: u64 = 4;

/// The words of device memory that a range lies in: where they begin, and their bytes.
fn device_words(memory: &DeviceMemory, offset: u64, length: u64) -> Result<(u64, Vec<u8>), MemoryError> {
    let start = offset - offset % DEVICE_WORD;
    let end = (offset + length).next_multiple_of(DEVICE_WORD);
    let mut bytes = vec![0; (end - start) as usize];
    memory.memcpy_from_dm(&mut bytes, start)?;
    Ok((start, bytes))
}

impl TestMemory {
    /// Allocates and registers memory for the layout.
    ///
    /// # Errors
    ///
    /// The system has no such memory, or the device cannot reach it.
    pub fn new(
        device: &LocalDevice,
        layout: BufferLayout,
        pd: &ProtectionDomain,
        access: AccessFlags,
    ) -> Result<Self, Error> {
        scatter::check(device.buffer, &device.limits.device, device.vendor_id)?;
        match device.buffer {
            MemoryKind::Host(kind) => Ok(Self::Host(pd.reg_buffer(layout.allocate(kind)?, access)?)),
            MemoryKind::DmaBuf => Self::dma_buf(layout, pd, access),
            MemoryKind::Device => Self::device(layout, pd, access),
            MemoryKind::Cuda(ordinal) => Self::cuda(ordinal, layout, pd, access),
        }
    }

    fn dma_buf(layout: BufferLayout, pd: &ProtectionDomain, access: AccessFlags) -> Result<Self, Error> {
        let buffer = layout.allocate(BufferKind::Shared)?;
        let file = buffer.file().ok_or(MemoryError::NoFile)?;
        let made;
        let file = match pd.context().is_soft() {
            // A software device accepts the memory file itself.
            true => file,
            false => {
                made = udmabuf::of(file, buffer.len())?;
                made.as_fd()
            }
        };
        let address = buffer.as_ptr().addr() as u64;
        let region = pd.reg_dmabuf_mr(file, 0, buffer.len(), address, access)?;
        Ok(Self::DmaBuf(region, buffer))
    }

    fn device(layout: BufferLayout, pd: &ProtectionDomain, access: AccessFlags) -> Result<Self, Error> {
        let (context, length) = (pd.context(), layout.length().next_multiple_of(DEVICE_WORD));
        let allocated = context.alloc_dm(usize::try_from(length).unwrap_or(usize::MAX), CACHE_LINE_BITS);
        let memory = allocated.map_err(|source| MemoryError::Device {
            device: context.name(),
            length,
            limit: context.query_device().map_or(0, |attr| attr.max_dm_size()),
            source,
        })?;
        let region = pd.reg_dm_mr(&memory, 0, memory.len(), access)?;
        Ok(Self::Device(region, memory, stand_in()?))
    }

    fn cuda(
        ordinal: u32,
        layout: BufferLayout,
        pd: &ProtectionDomain,
        access: AccessFlags,
    ) -> Result<Self, Error> {
        let length = usize::try_from(layout.length()).unwrap_or(usize::MAX);
        let allocated = CudaDevice::open(ordinal).and_then(|device| device.allocate(length));
        let buffer = allocated.map_err(|source| MemoryError::Cuda { ordinal, source })?;
        let region = buffer.register(pd, access);
        let region = region.map_err(|source| MemoryError::RegisterCuda { ordinal, source })?;
        Ok(Self::Cuda(Mutex::new(region), stand_in()?))
    }

    /// The local key for this side's requests.
    pub fn lkey(&self) -> u32 {
        match self {
            Self::Host(memory) => memory.lkey(),
            Self::DmaBuf(region, _) | Self::Device(region, ..) => region.lkey(),
            Self::Cuda(region, _) => locked(region).lkey(),
        }
    }

    /// The remote key for the peer's requests.
    pub fn rkey(&self) -> u32 {
        match self {
            Self::Host(memory) => memory.rkey(),
            Self::DmaBuf(region, _) | Self::Device(region, ..) => region.rkey(),
            Self::Cuda(region, _) => locked(region).rkey(),
        }
    }

    /// The address that requests use for the first byte.
    pub fn address(&self) -> u64 {
        match self {
            Self::Host(memory) => memory.as_ptr().addr() as u64,
            Self::DmaBuf(region, _) | Self::Device(region, ..) => region.iova(),
            Self::Cuda(region, _) => locked(region).addr(),
        }
    }

    /// Whether the processor can write the last byte of a message and see it arrive.
    pub fn is_seen(&self) -> bool {
        matches!(self, Self::Host(_) | Self::DmaBuf(..))
    }

    /// The byte at an offset; if the processor cannot reach it, a stand-in that belongs to no
    /// message.
    ///
    /// # Panics
    ///
    /// If the offset is outside.
    pub fn flag(&self, offset: u64) -> Flag<'_> {
        match self {
            Self::Host(memory) => Flag::new(memory.buffer(), offset),
            Self::DmaBuf(_, buffer) => Flag::new(buffer, offset),
            Self::Device(.., stand_in) | Self::Cuda(_, stand_in) => Flag::new(stand_in, 0),
        }
    }

    /// Fills a range; `byte` gives each byte for its distance from `offset`.
    ///
    /// # Errors
    ///
    /// Copying to the memory failed.
    ///
    /// # Panics
    ///
    /// If the range exceeds the memory.
    pub fn fill(&self, offset: u64, length: u64, mut byte: impl FnMut(u64) -> u8) -> Result<(), MemoryError> {
        match self {
            Self::Host(memory) => buffers::fill(memory.buffer(), offset, length, byte),
            Self::DmaBuf(_, buffer) => buffers::fill(buffer, offset, length, byte),
            Self::Device(_, memory, _) => {
                let (start, mut bytes) = device_words(memory, offset, length)?;
                let range = &mut bytes[(offset - start) as usize..][..length as usize];
                range.iter_mut().zip((0..).map(byte)).for_each(|(to, byte)| *to = byte);
                memory.memcpy_to_dm(start, &bytes)?;
            }
            Self::Cuda(region, _) => {
                let bytes: Vec<_> = (0..length).map(&mut byte).collect();
                locked(region).buffer_mut().copy_from_slice(offset as usize, &bytes)?;
            }
        }
        Ok(())
    }

    /// Returns the first byte of a range that differs from `byte`: its distance from `offset`, and
    /// its value.
    ///
    /// # Errors
    ///
    /// Copying from the memory failed.
    ///
    /// # Panics
    ///
    /// If the range exceeds the memory.
    pub fn first_difference(
        &self,
        offset: u64,
        length: u64,
        byte: impl FnMut(u64) -> u8,
    ) -> Result<Option<(u64, u8)>, MemoryError> {
        let copy = || vec![0; length as usize];
        let bytes = match self {
            Self::Host(memory) => {
                return Ok(buffers::first_difference(memory.buffer(), offset, length, byte));
            }
            Self::DmaBuf(_, buffer) => return Ok(buffers::first_difference(buffer, offset, length, byte)),
            Self::Device(_, memory, _) => {
                let (start, bytes) = device_words(memory, offset, length)?;
                bytes[(offset - start) as usize..][..length as usize].to_vec()
            }
            Self::Cuda(region, _) => {
                let mut bytes = copy();
                locked(region).buffer().copy_to_slice(offset as usize, &mut bytes)?;
                bytes
            }
        };
        let expected = (0..length).map(byte);
        Ok((0..)
            .zip(bytes)
            .zip(expected)
            .find(|((_, found), expected)| found != expected)
            .map(|(found, _)| found))
    }
}

/// A byte of host memory.
fn stand_in() -> Result<Buffer, AllocationError> {
    BufferLayout::new(1, 1).allocate(BufferKind::Private)
}

fn locked(region: &Mutex<CudaRegion>) -> MutexGuard<'_, CudaRegion> {
    region.lock().unwrap_or_else(PoisonError::into_inner)
}
