//! Flags that choose the memory of the messages.

use clap::{Args, ValueEnum};
use sideway::memory::BufferKind;

use super::heading;
use crate::memory::MemoryKind;

/// The flags about memory, at most one of which may be given.
#[derive(Clone, Debug, Default, Args)]
#[group(id = "memory", multiple = false)]
pub struct MemoryArgs {
    /// Host memory of the messages [default: shared over a software device, else malloc]
    #[arg(help_heading = heading::DEVICE, long, value_name = "KIND")]
    pub buffer: Option<BufferArg>,

    /// Same as --buffer huge
    #[arg(help_heading = heading::DEVICE, long, alias = "use_hugepages")]
    pub use_hugepages: bool,

    /// Use memory on the RDMA device (ibv_alloc_dm)
    #[arg(help_heading = heading::DEVICE, long)]
    pub dm: bool,

    /// Use memory of this GPU; the first is 0
    #[arg(
        help_heading = heading::DEVICE,
        long,
        alias = "use_cuda",
        value_name = "GPU",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0"
    )]
    pub use_cuda: Option<u32>,
}

/// The kinds of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BufferArg {
    /// A memfd, which the peer's process can map; software devices are fastest with it
    Shared,
    /// malloc, like perftest
    Malloc,
    /// Huge pages of 2 MiB, which the administrator must reserve
    Huge,
    /// Memory registered by a dma-buf
    DmaBuf,
}

impl MemoryArgs {
    /// The kind of memory that the user chose, if any.
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
