//! Where the memory of the messages comes from, as the user wrote it.

use clap::{Args, ValueEnum};
use sideway::memory::BufferKind;

use crate::memory::MemoryKind;

/// The flags about memory, of which one is given at most.
#[derive(Clone, Debug, Default, Args)]
#[group(id = "memory", multiple = false)]
pub struct MemoryArgs {
    /// Memory of the messages [default: shared over a software device, else malloc]
    #[arg(long, value_name = "KIND")]
    pub buffer: Option<BufferArg>,

    /// The same as --buffer huge
    #[arg(long, alias = "use_hugepages")]
    pub use_hugepages: bool,

    /// Memory of the messages is the RDMA device's own (ibv_alloc_dm)
    #[arg(long)]
    pub dm: bool,

    /// Memory of the messages is that of this GPU, the first is 0
    #[arg(
        long,
        alias = "use_cuda",
        value_name = "GPU",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0"
    )]
    pub use_cuda: Option<u32>,
}

/// The host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BufferArg {
    /// Can be mapped by the peer's process (a memfd): what software devices are fastest with
    Shared,
    /// The allocator's, as perftest has it
    Malloc,
    /// Huge pages of 2 MiB, which the system has set aside
    Huge,
    /// Registered by a dma-buf that stands for it
    DmaBuf,
}

impl MemoryArgs {
    /// What was asked for.
    pub fn kind(&self) -> Option<MemoryKind> {
        match (self.use_cuda, self.dm, self.use_hugepages) {
            (Some(ordinal), ..) => Some(MemoryKind::Cuda(ordinal)),
            (_, true, _) => Some(MemoryKind::Device),
            (.., true) => Some(BufferArg::Huge.into()),
            _ => self.buffer.map(MemoryKind::from),
        }
    }
}

impl From<BufferArg> for MemoryKind {
    fn from(arg: BufferArg) -> Self {
        match arg {
            BufferArg::Shared => Self::Host(BufferKind::Shared),
            BufferArg::Malloc => Self::Host(BufferKind::Private),
            BufferArg::Huge => Self::Host(BufferKind::HUGE_2_MIB),
            BufferArg::DmaBuf => Self::DmaBuf,
        }
    }
}
