//! Memory windows: parts of a memory region under remote keys that work requests grant and revoke.
//!
//! A region's key is valid as long as the region. A window is *bound* to a part of a region, with
//! separate permissions. Its key can be revoked without a call into the kernel. A window of type 1
//! is bound again. A window of type 2 is
//! [invalidated](super::queue_pair::WorkRequestHandle::setup_local_inv) here, or by [the
//! peer](super::queue_pair::WorkRequestHandle::setup_send_inv) with the message that reports the
//! end of its work.
//!
//! | | type 1 | type 2 |
//! | --- | --- | --- |
//! | bound by | [`MemoryWindow::bind`] | [`setup_bind_mw`](super::queue_pair::WorkRequestHandle::setup_bind_mw) |
//! | key chosen by | the library, a new one each time | the program, within the low eight bits |
//! | valid for | every queue pair of the domain | the queue pair that it was bound through |
//! | bound again | at any time | after it was invalidated |
//! | addresses | the region's | the region's, or offsets from the window's start ([`ZeroBased`](AccessFlags::ZeroBased)) |
//!
//! Binding is safe, and so is sending the key to a peer. The code that registered the memory with
//! [`MemoryWindowBind`](AccessFlags::MemoryWindowBind) has allowed everything that a window lets
//! peers do, for as long as the memory stays registered. When an invalidation has completed, or
//! [`close`](MemoryWindow::close) has succeeded, no peer can access the memory by that key any
//! more. A region cannot be deregistered while a window is bound to it: close or invalidate windows
//! first.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! # use sideway::ibverbs::completion::CompletionQueue;
//! # use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
//! use sideway::ibverbs::AccessFlags;
//! use sideway::ibverbs::memory_window::{MemoryWindowBindInfo, MemoryWindowType};
//! use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, SendOperationFlags, WorkRequestFlags};
//! # use sideway::memory::{Buffer, BufferKind};
//! # let devices = sideway::ibverbs::device::DeviceList::from_provider(sideway::soft::provider())?;
//! # let context = devices.first()?.open()?;
//! # let pd = context.alloc_pd()?;
//! # let mut cq = context.create_cq_builder().setup_cqe(16).build_generic()?;
//! # let memory = pd.reg_buffer(
//! #     Buffer::new(BufferKind::Private, 8192)?,
//! #     AccessFlags::LocalWrite | AccessFlags::MemoryWindowBind,
//! # )?;
//! let operations = SendOperationFlags::Send | SendOperationFlags::of_windows();
//! let mut qp = pd
//!     .create_qp_builder()
//!     .setup_send_cq(&cq)
//!     .setup_recv_cq(&cq)
//!     .setup_send_ops_flags(operations)
//!     .build_generic()?;
//! # let path = LocalPath::choose(&context, 1, None)?;
//! # let endpoint = Endpoint::new(&qp, &path, 1);
//! # connect(&mut qp, &path, &endpoint, &endpoint, &ConnectOptions::default())?;
//! let mut window = pd.alloc_mw(MemoryWindowType::Type2)?;
//! let rkey = window.next_rkey();
//! let addr = memory.as_ptr() as u64;
//! let info = MemoryWindowBindInfo::new(memory.region(), addr, 4096, AccessFlags::RemoteWrite);
//! let mut guard = qp.start_post_send();
//! guard.construct_wr(1, WorkRequestFlags::Signaled).setup_bind_mw(&mut window, rkey, info);
//! guard.post()?;
//! // ... send `rkey` to the peer; later:
//! let mut guard = qp.start_post_send();
//! guard.construct_wr(2, WorkRequestFlags::Signaled).setup_local_inv(rkey);
//! guard.post()?;
//! # let mut done = Vec::new();
//! # while done.len() < 2 {
//! #     let mut poller = cq.start_poll()?;
//! #     while let Some(wc) = poller.next() {
//! #         done.push((wc.wr_id(), wc.status()));
//! #     }
//! # }
//! # use sideway::ibverbs::completion::WorkCompletionStatus;
//! # assert_eq!(done, [(1, WorkCompletionStatus::Success), (2, WorkCompletionStatus::Success)]);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type as T};
use rdma_mummy_sys::verbs;

use super::memory_region::MemoryRegion;
use super::protection_domain::ProtectionDomain;
use super::queue_pair::{SendQueue, WorkRequestFlags};
use super::{AccessFlags, check};
use crate::error::{ConsumeError, Error, ErrorKind};

c_enum! {
    /// How a memory window is bound (`ibv_mw_type`); see [the table](self).
    pub struct MemoryWindowType(u32) {
        /// Bound by a call.
        Type1 = T::IBV_MW_TYPE_1.0,
        /// Bound by a work request.
        Type2 = T::IBV_MW_TYPE_2.0,
    }
}

display_as_debug!(MemoryWindowType);

/// A memory window (`ibv_mw`).
///
/// It keeps its domain alive. Dropping it revokes the peers' access to its memory. Only the device
/// knows what it is bound to: a region with a bound window cannot be deregistered.
pub struct MemoryWindow {
    mw: NonNull<ibv_mw>,
    window_type: MemoryWindowType,
    /// The key of the last binding that this process requested.
    rkey: u32,
    pd: ProtectionDomain,
}

// SAFETY: the C struct is written through `&mut self` only, and verbs that use it are thread-safe
// in libibverbs.
unsafe impl Send for MemoryWindow {}
// SAFETY: `&self` only reads plain values.
unsafe impl Sync for MemoryWindow {}

/// A part of a region and the peers' permissions through a window (`ibv_mw_bind_info`).
#[derive(Clone, Copy)]
pub struct MemoryWindowBindInfo<'region> {
    info: ibv_mw_bind_info,
    region: PhantomData<&'region MemoryRegion>,
}

impl<'region> MemoryWindowBindInfo<'region> {
    /// `length` bytes from `addr` on, an address as work requests use it for the region. `access`
    /// may contain `RemoteRead`, `RemoteWrite`, `RemoteAtomic` and, for windows of type 2,
    /// `ZeroBased`.
    pub fn new(region: &'region MemoryRegion, addr: u64, length: u64, access: AccessFlags) -> Self {
        let mr = region.as_raw().as_ptr();
        let info = ibv_mw_bind_info { mr, addr, length, mw_access_flags: access.bits() };
        Self { info, region: PhantomData }
    }

    pub(super) fn raw(&self) -> ibv_mw_bind_info {
        self.info
    }
}

impl fmt::Debug for MemoryWindowBindInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindowBindInfo")
            .field("addr", &format_args!("{:#x}", self.info.addr))
            .field("length", &self.info.length)
            .field("access", &AccessFlags::from_bits_retain(self.info.mw_access_flags))
            .finish()
    }
}

impl ProtectionDomain {
    /// Allocates a memory window that is not bound (`ibv_alloc_mw`).
    ///
    /// # Errors
    ///
    /// Fails if the device has no windows, or none of this type
    /// ([`Unsupported`](crate::ibverbs::Unsupported)), or no more of them.
    ///
    /// # References
    ///
    /// `man ibv_alloc_mw`
    pub fn alloc_mw(&self, window_type: MemoryWindowType) -> Result<MemoryWindow, Error> {
        // SAFETY: `self` keeps the domain alive.
        let mw = unsafe { verbs::ibv_alloc_mw(self.as_raw().as_ptr(), T(window_type.raw())) };
        let Some(mw) = NonNull::new(mw) else {
            return Err(Error::of_device(
                self.context(),
                "ibv_alloc_mw",
                format!("memory windows ({window_type})"),
                io::Error::last_os_error(),
            )
            .with("window_type", window_type));
        };
        // SAFETY: the library returned a live window, and every release's struct has this field.
        let rkey = unsafe { (*mw.as_ptr()).rkey };
        Ok(MemoryWindow { mw, window_type, rkey, pd: self.clone() })
    }
}

const BIND: &str = "ibv_bind_mw";

impl MemoryWindow {
    /// The key of the last binding. Completions tell whether that binding succeeded, and whether it
    /// was invalidated since.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// A key for the next binding of a window of type 2: the last key with its low eight bits
    /// incremented (`ibv_inc_rkey`).
    pub fn next_rkey(&self) -> u32 {
        verbs::ibv_inc_rkey(self.rkey)
    }

    /// Corrects the window's key after a list that contained a binding was not posted. Libraries
    /// find a window by its key, and SoftRoCE's kernel driver rejects a wrong one.
    pub fn set_rkey(&mut self, rkey: u32) {
        self.rkey = rkey;
    }

    /// The type, which determines how it is bound.
    pub fn window_type(&self) -> MemoryWindowType {
        self.window_type
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// free it.
    pub fn as_raw(&self) -> NonNull<ibv_mw> {
        self.mw
    }

    /// Prepares a binding by a work request: stores the new key, and returns the struct that the
    /// library reads.
    pub(super) fn begin_binding(&mut self, rkey: u32) -> NonNull<ibv_mw> {
        // SAFETY: `self` keeps the window alive, and `&mut self` excludes other accesses to the
        // struct. Programs may write this field.
        unsafe { (*self.mw.as_ptr()).rkey = self.rkey };
        self.rkey = rkey;
        self.mw
    }

    /// Binds a window of type 1 to a part of a region (`ibv_bind_mw`), by a request in this send
    /// queue.
    ///
    /// The window then has [another key](Self::rkey), which is valid once the request has
    /// completed. Requests posted after it find the window bound. The previous key is invalid from
    /// then on.
    ///
    /// If the region does not allow binding, or is too short, the request completes with
    /// [`MemoryWindowBindError`](super::completion::WorkCompletionStatus::MemoryWindowBindError),
    /// and the connection fails.
    ///
    /// # Errors
    ///
    /// Fails if the window is of type 2, or belongs to another device or domain than the queue or
    /// the region. Also fails if the queue is full or not ready to send.
    ///
    /// # References
    ///
    /// `man ibv_bind_mw`
    pub fn bind(
        &mut self,
        queue: &mut impl SendQueue,
        wr_id: u64,
        flags: WorkRequestFlags,
        info: MemoryWindowBindInfo<'_>,
    ) -> Result<(), Error> {
        if self.window_type != MemoryWindowType::Type1 {
            return Err(Error::not_called(
                BIND,
                ErrorKind::InvalidArgument,
                "a memory window of this type is bound by a work request (`setup_bind_mw`)",
            )
            .with("window_type", self.window_type));
        }
        let context = self.pd.context();
        // SAFETY: the borrow keeps the region alive, and every release's struct has this field.
        let of_region = unsafe { (*info.info.mr).context };
        if queue.control().context() != context || of_region != context.as_raw().as_ptr() {
            return Err(Error::other_context(
                BIND,
                "the memory window was made from another context than the queue pair or the region",
            ));
        }
        // Ends a list whose guard was leaked, because its library may hold the lock that the call
        // takes.
        drop(queue.start_post_send());
        let mut bind = ibv_mw_bind { wr_id, send_flags: flags.bind(), bind_info: info.info };
        let qp = queue.control().as_raw();
        // SAFETY: pair, window and region are alive and belong to one context, as checked above. No
        // list of the pair is open, because its queue is borrowed mutably. `&mut self` excludes
        // other accesses to the window's struct.
        let result = check(unsafe { verbs::ibv_bind_mw(qp.as_ptr(), self.mw.as_ptr(), &raw mut bind) });
        // SAFETY: the window is alive and not shared, for the same reasons; every release's struct
        // has this field.
        self.rkey = unsafe { (*self.mw.as_ptr()).rkey };
        result.map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM) => Error::os(BIND, source)
                .of_kind(ErrorKind::OtherDomain)
                .reason("the memory window belongs to another protection domain than the region"),
            Some(libc::ENOMEM | libc::ENOSPC) => {
                Error::os(BIND, source).of_kind(ErrorKind::QueueFull).reason("the send queue is full")
            }
            _ => Error::of_device(self.pd.context(), BIND, "binding of memory windows", source)
                .debug("info", BindArguments::from(info.info)),
        })
    }

    /// Unbinds a window of type 1, as [`bind`](Self::bind) with a length of 0. `region` may be any
    /// region of the domain. It has no effect, but libraries read it (SoftRoCE's library crashes
    /// without one).
    ///
    /// # Errors
    ///
    /// Fails as [`bind`](Self::bind) does.
    pub fn unbind(
        &mut self,
        queue: &mut impl SendQueue,
        wr_id: u64,
        flags: WorkRequestFlags,
        region: &MemoryRegion,
    ) -> Result<(), Error> {
        self.bind(queue, wr_id, flags, MemoryWindowBindInfo::new(region, 0, 0, AccessFlags::empty()))
    }

    /// Frees the window now (`ibv_dealloc_mw`), and returns the error that a drop would only log.
    /// After success, no peer can access its memory any more.
    ///
    /// # Errors
    ///
    /// Fails if a peer does not release the memory; the software device waits for a while first.
    /// The window comes back.
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let window = ManuallyDrop::new(self);
        // SAFETY: `window` owns the C object, and is taken apart below only if this call succeeded.
        match check(unsafe { verbs::ibv_dealloc_mw(window.mw.as_ptr()) }) {
            Ok(()) => {
                // SAFETY: `window` is `ManuallyDrop`, so its own drop does not run, and this is the
                // only read of the domain.
                drop(unsafe { ptr::read(&raw const window.pd) });
                Ok(())
            }
            Err(source) => Err(ConsumeError {
                object: ManuallyDrop::into_inner(window),
                error: Error::os("ibv_dealloc_mw", source).remedy("the memory window still exists"),
            }),
        }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: `self` owned the window until here, and nothing uses it after the drop.
        if let Err(error) = check(unsafe { verbs::ibv_dealloc_mw(self.mw.as_ptr()) }) {
            log::error!("ibv_dealloc_mw failed for the window with key {:#x}: {error}", self.rkey);
            // The library still has the window, so the domain that it depends on must stay alive
            // too.
            std::mem::forget(self.pd.clone());
        }
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("window_type", &self.window_type)
            .field("rkey", &format_args!("{:#x}", self.rkey))
            .finish_non_exhaustive()
    }
}

/// The arguments of a failed binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindArguments {
    /// The first address.
    pub addr: u64,
    /// The length in bytes; 0 unbinds.
    pub length: u64,
    /// The permissions for peers.
    pub access: AccessFlags,
}

impl From<ibv_mw_bind_info> for BindArguments {
    fn from(info: ibv_mw_bind_info) -> Self {
        let access = AccessFlags::from_bits_retain(info.mw_access_flags);
        Self { addr: info.addr, length: info.length, access }
    }
}
