//! Memory for messages: allocated, registered and freed in the right order.
//!
//! A [`Buffer`] is zeroed, page-aligned memory. [`reg_buffer`] makes it a [`RegisteredBuffer`],
//! which ends the registration before it frees the memory. It never frees memory that the device
//! did not release:
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
//! A device, or a peer through it, may write to registered memory at any time, so nothing here
//! makes a reference to it. A program uses the pointer in unsafe code, or takes slices of a pool.
//!
//! # Slices
//!
//! A [`Pool`] is registered memory divided into slices. A [`Slice`] is taken, filled and posted,
//! and comes back with its completion. None of that needs `unsafe`, because the pool's memory
//! outlives all accesses of a device, and is copied in and out without references. ([`Pool`] gives
//! the reasons.)
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
//! use sideway::ibverbs::device::DeviceList;
//! use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, WorkRequestFlags};
//!
//! // Two queue pairs, connected to each other.
//! let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! let context = list.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let mut cq = context.create_cq_builder().build_generic()?;
//!
//! let mut builder = pd.create_qp_builder();
//! builder.setup_send_cq(&cq).setup_recv_cq(&cq);
//! let (mut alice, mut bob) = (builder.build_generic()?, builder.build_generic()?);
//!
//! let path = LocalPath::choose(&context, 1, None)?;
//! let (here, there) = (Endpoint::new(&alice, &path, 1), Endpoint::new(&bob, &path, 2));
//! connect(&mut alice, &path, &here, &there, &ConnectOptions::default())?;
//! connect(&mut bob, &path, &there, &here, &ConnectOptions::default())?;
//!
//!
//! // 64 slices of 4 KiB. The program chooses the request numbers, here 1 and 2.
//! let pool = pd.create_pool_builder().setup_slices(4096, 64).build()?;
//! let mut receives = pool.attach_recv(bob.start_post_recv())?;
//! receives.construct_wr(1).setup_slice(pool.take().ok_or("no slice is free")?);
//! receives.post()?;
//!
//! let mut message = pool.take_len(5).ok_or("no slice is free")?;
//! message.copy_from_slice(0, b"hello")?;
//! let mut sends = pool.attach(alice.start_post_send())?;
//! sends.construct_wr(2, WorkRequestFlags::Signaled).setup_send().setup_slice(message);
//! sends.post()?;
//!
//! let mut open = 2;
//! while open > 0 {
//!     let mut poller = cq.start_poll()?;
//!     while let Some(wc) = poller.next() {
//!
//!         let returned = pool.reclaim(&wc).ok_or("it was posted with a slice of the pool")?;
//!         println!("request {}: {}", returned.wr_id, wc.status());
//!         if let Some(len) = returned.byte_len {
//!             let mut text = vec![0; len as usize];
//!             returned.slice.copy_to_slice(0, &mut text)?;
//!             assert_eq!(text, b"hello");
//!         }
//!
//!         open -= 1;
//!         // The slice goes back to the pool here.
//!     }
//! }
//! assert_eq!(pool.free(), 64);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```
//!
//! The completion of a request that failed or was flushed returns its slices as well. Slices of a
//! list that is dropped, and slices that a failed `post` did not pass to the device, return at
//! once. Slices whose requests will never complete, because their queue pair is gone, are reclaimed
//! with [`Pool::abandon`].
//!
//! A pool belongs to one thread, so that it needs no lock and no atomic operation. Each thread
//! makes a separate pool ([`PoolBuilder`] can be sent to threads).
//!
//! # Choosing the kind of memory
//!
//! All kinds work with a NIC. A software device (soft-rnic) moves a message between two processes
//! in one copy at memory speed, if the sender can map the receiver's memory. That needs
//! [`BufferKind::Shared`]; other memory is copied through the kernel. [`BufferKind::for_device`]
//! chooses accordingly.
//!
//! [`BufferKind::HugePages`] saves translation entries in the NIC and in the CPU.
//! [`Buffer::on_node`] puts memory near a device. A GPU's memory is in the module `cuda` (feature
//! `cuda`).
//!
//! [`reg_buffer`]: crate::ibverbs::protection_domain::ProtectionDomain::reg_buffer

mod buffer;
mod bytes;
#[cfg(feature = "cuda")]
pub mod cuda;
mod node;
pub(crate) mod pool;
mod registered;
mod remote;

pub use buffer::{Buffer, BufferKind};
pub use bytes::Word;
pub use pool::{OutOfSlice, Pool, PoolBuilder, PoolCompletion, PoolRequestError, Returned, Slice, Slices};
pub use registered::RegisteredBuffer;
pub use remote::{OutOfRemoteMemory, RemoteMemory, RemotePlace};
