//! A zero-cost wrapper of modern RDMA verbs.
//!
//! `sideway` is for programs that drive RDMA hardware themselves: it keeps the
//! control path pleasant and the data path as close to `ibv_wr_*` and
//! `ibv_start_poll` as C is. The library that talks to the device
//! (rdma-core's libibverbs) is loaded at run time, so that a program starts on
//! a machine without it and says what is missing.
//!
//! ```no_run
//! use sideway::ibverbs::device::DeviceList;
//! use sideway::ibverbs::queue_pair::{QueuePair, PostSendGuard, WorkRequestFlags};
//! use sideway::ibverbs::AccessFlags;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let devices = DeviceList::new()?;
//! let context = devices.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let mut cq = context.create_cq_builder().setup_cqe(128).build_generic()?;
//! let mut qp = pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic()?;
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
//! The [`guide`] begins with a program that runs on any Linux machine, has a chapter for each thing that comes after it, and
//! a table that leads from every verb of C to its place here.
//!
//! # Add it
//!
//! `cargo add sideway --path CLONE/sideway`, or `--git URL`; never the bare name, which belongs to another
//! project on the public registry.
//!
//! # Without a NIC
//!
//! With the feature `soft`, the same program runs over `soft0`, a software device in this process that needs
//! neither NIC, root, kernel module nor rdma-core: [`provider`] says how it is chosen.
//!
//! # Direct verbs
//!
//! What a vendor's own library adds is in plug-ins, each behind a feature: `mlx5` (dynamically connected transport, memory
//! keys over many regions, copies by the device, dma-buf through the data-direct engine, compressed completions) and `efa` (scalable reliable datagrams). A library or a device that
//! is not there says so. Without these features nothing of them is compiled.
//!
//! # What is safe
//!
//! No sequence of safe calls is undefined behaviour, whatever the device returns. Registering
//! memory ([`reg_mr`](ibverbs::protection_domain::ProtectionDomain::reg_mr)) and giving a raw
//! address to the device (`setup_sge`) are `unsafe`, because nothing at no cost could keep the
//! memory alive and unobserved until the device is done with it. At little cost a [pool](memory#slices)
//! does: its slices are posted, and come back with their completions, without `unsafe`.
//!
//! # Handles
//!
//! A handle owns what it stands for and keeps alive what that depends on; handles can be dropped
//! in any order and moved between threads. Completion queues and queue pairs are driven through
//! `&mut`, so that there is one poller a queue and one list of work requests being built at a
//! time, with no check at run time.
//!
//! # What it does not do
//!
//! It spawns no thread, allocates nothing to post or to poll, and has no async in it.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

#[macro_use]
mod newtype;
#[cfg(any(feature = "mlx5", feature = "efa"))]
pub mod direct;
#[cfg(feature = "efa")]
pub mod efa;
pub mod error;
pub mod guide;
pub mod ibverbs;
pub mod memory;
#[cfg(feature = "mlx5")]
pub mod mlx5;
pub mod provider;
pub mod rdmacm;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

pub use error::{ConsumeError, Error, ErrorKind};
pub use provider::{
    PROVIDER_VARIABLE, ProviderChoice, ProviderError, default_provider, set_default_provider,
};
pub use rdma_mummy_sys as sys;
pub use rdma_mummy_sys::Provider;
#[cfg(feature = "soft")]
pub use soft_rnic as soft;
