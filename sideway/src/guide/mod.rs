#![doc = include_str!("guide.md")]

/// Choosing a provider: the system's devices, or software devices.
#[doc = include_str!("providers.md")]
pub mod providers {}

/// Connecting two processes.
#[doc = include_str!("connecting.md")]
pub mod connecting {}

/// The connection manager: servers and clients, by IP address and port.
#[doc = include_str!("connections.md")]
pub mod connections {}

/// Posting lists of work requests.
#[doc = include_str!("posting.md")]
pub mod posting {}

/// Polling completions, and sleeping until some arrive.
#[doc = include_str!("polling.md")]
pub mod polling {}

/// Datagrams: one queue pair, many peers.
#[doc = include_str!("datagrams.md")]
pub mod datagrams {}

/// Shared receive queues: one queue of buffers, many queue pairs; and extended reliable
/// connections.
#[doc = include_str!("sharing.md")]
pub mod sharing {}

/// Memory: registration, and the reasons for `unsafe`.
#[doc = include_str!("memory.md")]
pub mod memory {}

/// Errors: the three kinds, and how to handle each.
#[doc = include_str!("errors.md")]
pub mod errors {}

/// Liveness: what notices a dead peer, and when.
#[doc = include_str!("liveness.md")]
pub mod liveness {}

/// Threads: sharing objects, and using both halves of a queue pair at once.
#[doc = include_str!("threads.md")]
pub mod threads {}

/// Timestamps: the time at which a message completed.
#[doc = include_str!("time.md")]
pub mod time {}

/// Testing error paths, without a NIC and without mocks.
#[doc = include_str!("testing.md")]
pub mod testing {}

/// The raw bindings, for functions that this crate does not wrap.
#[doc = include_str!("below.md")]
pub mod below {}

/// Migrating from other crates, and from C.
#[doc = include_str!("../../../docs/migrating.md")]
pub mod migrating {}
