//! A zero-cost wrapper of modern RDMA verbs.
//!
//! `sideway` is for programs that use RDMA hardware directly. Its control path is convenient, and
//! its data path is as close to `ibv_wr_*` and `ibv_start_poll` as in C. The device's library
//! (rdma-core's libibverbs) is loaded at run time. So a program starts on a machine without it, and
//! reports what is missing.
//!
//! ```no_run
//! use sideway::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let devices = DeviceList::auto()?;
//! let context = devices.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let mut cq = context.create_cq_builder().setup_cqe(128).build_generic()?;
//! let mut builder = pd.create_qp_builder();
//! let mut qp = builder.setup_send_cq(&cq).setup_recv_cq(&cq).build_generic()?;
//!
//! let mut buffer = vec![0u8; 4096];
//! // SAFETY: `buffer` outlives the region, and nothing looks at it while the device may write.
//! let mr = unsafe { pd.reg_mr(buffer.as_mut_ptr(), buffer.len(), AccessFlags::LocalWrite)? };
//! // ... exchange keys, connect (see `ibverbs::connect`) ...
//! # let (rkey, remote_addr) = (0, 0);
//! let mut guard = qp.start_post_send();
//! let write = guard.construct_wr(233, WorkRequestFlags::Signaled).setup_write(rkey, remote_addr);
//! // SAFETY: the region covers these bytes and lives until the completion has been polled.
//! unsafe { write.setup_sge(mr.lkey(), mr.get_ptr() as _, 4096) };
//! guard.post()?;
//!
//! let mut poller = cq.start_poll()?;
//! while let Some(wc) = poller.next() {
//!     println!("wr_id: {}, status: {}, opcode: {}", wc.wr_id(), wc.status(), wc.opcode());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The [`guide`] starts with a program that runs on any Linux machine, and has a chapter for each
//! further topic. A table lists the counterpart of every C verb.
//!
//! # Installation
//!
//! Use `cargo add sideway --path CLONE/sideway`, or `--git URL`. Do not use the bare name, which
//! belongs to another project on the public registry.
//!
//! # Without a NIC
//!
//! With the feature `soft`, the same program runs over `soft0`, a software device in this process.
//! It needs no NIC, root, kernel module or rdma-core. [`provider`] describes how a program chooses
//! it.
//!
//! # Direct verbs
//!
//! Vendor-specific extensions are in modules, each behind a feature:
//!
//! - `mlx5`: dynamically connected transport, memory keys over many regions, copies by the device,
//!   dma-buf through the data-direct engine, and compressed completions;
//! - `efa`: scalable reliable datagrams.
//!
//! A missing library or device is an error that names it. Without the features, none of this is
//! compiled. Other crates add further vendors by [`direct`].
//!
//! # Safety
//!
//! No sequence of safe calls is undefined behaviour, whatever the device returns. Registering
//! memory ([`reg_mr`](ibverbs::protection_domain::ProtectionDomain::reg_mr)) and giving a raw
//! address to the device (`setup_sge`) are `unsafe`. The reason is that keeping the memory alive
//! and unobserved until the device is done with it cannot be ensured at no cost. A
//! [pool](memory#slices) ensures it at little cost: its slices are posted, and come back with their
//! completions, without `unsafe`.
//!
//! # Handles
//!
//! A handle owns its object and keeps alive the objects that this one depends on. Handles can be
//! dropped in any order and moved between threads. Polling and posting need `&mut`, so that the
//! compiler ensures one poller and one list of work requests at a time for each queue.
//!
//! # Limits
//!
//! This crate spawns no threads, and allocates nothing when it posts or polls. The feature `tokio`
//! lets tasks await the events of its channels.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

#[macro_use]
mod newtype;
pub mod direct;
#[cfg(feature = "efa")]
pub mod efa;
pub mod error;
pub mod guide;
pub mod ibverbs;
mod limits;
pub mod memory;
#[cfg(feature = "mlx5")]
pub mod mlx5;
pub mod prelude;
pub mod provider;
pub mod rdmacm;
#[cfg(feature = "tokio")]
pub mod tokio;
pub mod topology;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

pub use error::{ConsumeError, Error, ErrorKind};
pub use ibverbs::AccessFlags;
pub use ibverbs::completion::{CompletionChannel, CompletionQueue, GenericCompletionQueue};
pub use ibverbs::device::DeviceList;
pub use ibverbs::device_context::DeviceContext;
pub use ibverbs::memory_region::MemoryRegion;
pub use ibverbs::protection_domain::ProtectionDomain;
pub use ibverbs::queue_pair::{GenericQueuePair, QueuePair};
pub use memory::{Buffer, Pool, RegisteredBuffer, RemoteMemory, Slice};
pub use provider::{
    PROVIDER_VARIABLE, ProviderChoice, ProviderError, default_provider, set_default_provider,
};
pub use rdma_mummy_sys as sys;
pub use rdma_mummy_sys::Provider;
#[cfg(feature = "soft")]
pub use soft_rnic as soft;
