//! Direct verbs of Amazon's Elastic Fabric Adapter (feature `efa`).
//!
//! It adds to libibverbs:
//!
//! - **Scalable reliable datagrams** (SRD): [queue pairs](SrdBuilder) without connections, whose
//!   messages arrive reliably and in any order, with RDMA if the device supports it.
//! - [**Completion queues**](DirectVerbs::create_cq_builder) that report the GID of an unknown
//!   sender.
//! - EFA's attributes of the [device](DirectVerbs::query_device), of an [address
//!   handle](DirectVerbs::query_ah) and of a [memory region](DirectVerbs::query_mr).
//!
//! [`DirectVerbs::of`] is the entry point. It fails for a device that is not EFA's, and names the
//! library if that is missing.
//!
//! ```no_run
//! use sideway::efa::DirectVerbs;
//! use sideway::ibverbs::address_handle::AddressHandle;
//! use sideway::ibverbs::completion::GenericCompletionQueue;
//! use sideway::ibverbs::protection_domain::ProtectionDomain;
//! use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, WorkRequestFlags};
//!
//! # fn send(
//! #     pd: &ProtectionDomain, cq: &GenericCompletionQueue, peer: &AddressHandle, number: u32,
//! #     key: u32, rkey: u32, remote: u64,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let efa = DirectVerbs::of(pd.context())?;
//! let mut description = pd.create_qp_builder();
//! description.setup_send_cq(cq).setup_recv_cq(cq).setup_max_send_wr(64);
//! let mut qp = efa.create_srd_builder(&description).build()?;
//! // ... INIT, RTR, RTS, like a datagram pair ...
//!
//! let mut guard = qp.start_post_send();
//! let request = guard.construct_wr(1, WorkRequestFlags::Signaled);
//! request.setup_srd_address(peer, number, key).setup_write(rkey, remote);
//! guard.post()?;
//! # Ok(()) }
//! ```
//!
//! **Not run on hardware**: see [`direct`](crate::direct).
//!
//! # References
//!
//! `man efadv`, and the pages of each function.

mod completion;
mod device;
mod objects;
mod posting;
mod queue_pair;

pub use completion::{CompletionFields, CompletionQueueBuilder, CompletionReader};
pub use device::{Capabilities, DeviceAttributes, DirectVerbs};
pub use objects::InterconnectIds;
pub use posting::SrdHandle;
pub use queue_pair::{SrdBuilder, SrdFlags};
