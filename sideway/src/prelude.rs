//! What most programs use: `use sideway::prelude::*;`.
//!
//! It has names of [the root](crate) and of [`ibverbs::connect`](crate::ibverbs::connect), and the
//! traits by which queue pairs and completion queues are used.

pub use crate::ibverbs::AccessFlags;
pub use crate::ibverbs::completion::{
    CompletionChannel, CompletionQueue, GenericCompletionQueue, Notify, WorkCompletionStatus,
};
pub use crate::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
pub use crate::ibverbs::device::DeviceList;
pub use crate::ibverbs::device_context::DeviceContext;
pub use crate::ibverbs::memory_region::MemoryRegion;
pub use crate::ibverbs::protection_domain::ProtectionDomain;
pub use crate::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairType, SendQueue, WorkRequestFlags,
};
pub use crate::memory::{Buffer, BufferKind, Pool, PoolCompletion, RegisteredBuffer, RemoteMemory, Slice};
