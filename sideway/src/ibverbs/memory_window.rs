//! Memory windows: parts of a memory region under remote keys that come and go by work requests.
//!
//! A region's key is good for as long as the region. A window is *bound* to a part of a region, with permissions of its own, and
//! so has a key that can be taken away again without a call into the kernel: by binding the window anew (type 1), by
//! [invalidating](super::queue_pair::WorkRequestHandle::setup_local_inv) it here, or by
//! [the peer's doing so](super::queue_pair::WorkRequestHandle::setup_send_inv) with the message that says that it is done (type 2).
//!
//! | | type 1 | type 2 |
//! | --- | --- | --- |
//! | is bound by | [`MemoryWindow::bind`] | [`setup_bind_mw`](super::queue_pair::WorkRequestHandle::setup_bind_mw) |
//! | its key | is chosen by the library, another one each time | is chosen by the program, within the low eight bits |
//! | is good for | every queue pair of the domain | the queue pair that it was bound through |
//! | is bound again | at any time | after it was invalidated |
//! | addresses | those of the region | those, or offsets from its beginning ([`ZeroBased`](AccessFlags::ZeroBased)) |
//!
//! Binding is safe, and so is telling a peer the key: what a window lets peers do to memory, whoever registered the memory with
//! [`MemoryWindowBind`](AccessFlags::MemoryWindowBind) has allowed, and for as long as it stays registered. When an
//! invalidation has completed, or [`close`](MemoryWindow::close) has succeeded, no peer touches the memory by that key any more.
//! A region cannot be deregistered while a window is bound to it: close or invalidate windows first.
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
//! let info = MemoryWindowBindInfo::new(memory.region(), memory.as_ptr() as u64, 4096, AccessFlags::RemoteWrite);
//! let mut guard = qp.start_post_send();
//! guard.construct_wr(1, WorkRequestFlags::Signaled).setup_bind_mw(&mut window, rkey, info);
//! guard.post()?;
//! // ... the peer is told `rkey`; later:
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
        /// By a call.
        Type1 = T::IBV_MW_TYPE_1.0,
        /// By a work request.
        Type2 = T::IBV_MW_TYPE_2.0,
    }
}

display_as_debug!(MemoryWindowType);

/// A memory window (`ibv_mw`).
///
/// It keeps its domain; dropping it takes its memory away from peers. What it is bound to is the device's to know: a region
/// with a bound window is not deregistered.
pub struct MemoryWindow {
    mw: NonNull<ibv_mw>,
    window_type: MemoryWindowType,
    /// The key of the last binding, as far as this process knows.
    rkey: u32,
    pd: ProtectionDomain,
}

// SAFETY: a window is a key; its C struct is written with `&mut` only.
unsafe impl Send for MemoryWindow {}
// SAFETY: a window is a key; its C struct is written with `&mut` only.
unsafe impl Sync for MemoryWindow {}

/// A part of a region, and what peers may do to it by a window (`ibv_mw_bind_info`).
#[derive(Clone, Copy)]
pub struct MemoryWindowBindInfo<'region> {
    info: ibv_mw_bind_info,
    region: PhantomData<&'region MemoryRegion>,
}

impl<'region> MemoryWindowBindInfo<'region> {
    /// `length` bytes from `addr` on, an address as the region's work requests have it. `access` may have `RemoteRead`, `RemoteWrite`,
    /// `RemoteAtomic`, and of windows of type 2 `ZeroBased`.
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
    /// A memory window (`ibv_alloc_mw`), bound to nothing.
    ///
    /// # Errors
    ///
    /// The device has none, or none of this type ([`Unsupported`]), or no more of them.
    ///
    /// # References
    ///
    /// `man ibv_alloc_mw`
    pub fn alloc_mw(&self, window_type: MemoryWindowType) -> Result<MemoryWindow, Error> {
        // SAFETY: the domain lives.
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
        // SAFETY: the library returned a window; the field is in every release's struct.
        let rkey = unsafe { (*mw.as_ptr()).rkey };
        Ok(MemoryWindow { mw, window_type, rkey, pd: self.clone() })
    }
}

const BIND: &str = "ibv_bind_mw";

impl MemoryWindow {
    /// The key of the last binding. Whether that has come to be, and was not invalidated since, completions say.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// A key for the next binding of a window of type 2: the last one, with the next value of its low eight bits (`ibv_inc_rkey`).
    pub fn next_rkey(&self) -> u32 {
        verbs::ibv_inc_rkey(self.rkey)
    }

    /// Says which key the window has, where a list that was to bind it was not posted. Libraries find a window by it
    /// (SoftRoCE's kernel refuses one that is wrong).
    pub fn set_rkey(&mut self, rkey: u32) {
        self.rkey = rkey;
    }

    /// How it is bound.
    pub fn window_type(&self) -> MemoryWindowType {
        self.window_type
    }

    /// The domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object. Using it is as unsafe as in C, and it must not be freed.
    pub fn as_raw(&self) -> NonNull<ibv_mw> {
        self.mw
    }

    /// A work request is to bind the window under a new key: what the library reads of it.
    pub(super) fn begin_binding(&mut self, rkey: u32) -> NonNull<ibv_mw> {
        // SAFETY: the window lives, and nobody else reads or writes the struct: `&mut`. The program may set the field.
        unsafe { (*self.mw.as_ptr()).rkey = self.rkey };
        self.rkey = rkey;
        self.mw
    }

    /// Binds a window of type 1 to a part of a region (`ibv_bind_mw`), by a request in this send queue. From then on its key is
    /// [another one](Self::rkey), which is good when the request has completed; what is posted behind it finds it bound. The key
    /// that it had before is good for nothing then.
    ///
    /// A region that does not allow it, or a range beyond it, fails as the request completes
    /// ([`MemoryWindowBindError`](super::completion::WorkCompletionStatus::MemoryWindowBindError)), and the connection with it.
    ///
    /// # Errors
    ///
    /// [`Error`]: the window is of type 2, or of another device or domain than queue or region; the queue is full, or
    /// not ready to send.
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
        // SAFETY: the region is borrowed; the field is in every release's struct.
        let of_region = unsafe { (*info.info.mr).context };
        if queue.control().context() != context || of_region != context.as_raw().as_ptr() {
            return Err(Error::other_context(
                BIND,
                "the memory window was made from another context than the queue pair or the region",
            ));
        }
        // Ends a list whose guard was leaked: its library may hold the lock that the call takes.
        drop(queue.start_post_send());
        let mut bind = ibv_mw_bind { wr_id, send_flags: flags.bind(), bind_info: info.info };
        let qp = queue.control().as_raw();
        // SAFETY: pair, window and region live and are of one context (just looked at); the pair has no list under way, as its
        // queue is borrowed mutably; nobody else reads or writes the window's struct.
        let result = check(unsafe { verbs::ibv_bind_mw(qp.as_ptr(), self.mw.as_ptr(), &raw mut bind) });
        // SAFETY: pair, window and region live and are of one context (just looked at); the pair
        // has no list under way, as its queue is borrowed mutably; nobody else reads or writes the
        // window's struct; the field is in every release's struct.
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

    /// Binds a window of type 1 to nothing, as [`bind`](Self::bind) with a length of 0 does. `region` is any of the domain's: what it
    /// is is not used, but libraries read it (SoftRoCE's crashes without one).
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub fn unbind(
        &mut self,
        queue: &mut impl SendQueue,
        wr_id: u64,
        flags: WorkRequestFlags,
        region: &MemoryRegion,
    ) -> Result<(), Error> {
        self.bind(queue, wr_id, flags, MemoryWindowBindInfo::new(region, 0, 0, AccessFlags::empty()))
    }

    /// Frees the window now (`ibv_dealloc_mw`), and says how that went, which a drop only logs. When it has succeeded, no peer
    /// touches its memory any more.
    ///
    /// # Errors
    ///
    /// A peer does not let go of the memory, on the software device after a while. The window comes back.
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let window = ManuallyDrop::new(self);
        // SAFETY: the window lives, and is taken apart below only if this succeeded.
        match check(unsafe { verbs::ibv_dealloc_mw(window.mw.as_ptr()) }) {
            Ok(()) => {
                // SAFETY: the window's own drop does not run, so this is the only one of the domain's handle.
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
        // SAFETY: the window lives until here.
        if let Err(error) = check(unsafe { verbs::ibv_dealloc_mw(self.mw.as_ptr()) }) {
            log::error!("ibv_dealloc_mw failed for the window with key {:#x}: {error}", self.rkey);
            // The window is still there, so what it depends on has to stay.
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

/// What a window was to be bound to, for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindArguments {
    /// The first address.
    pub addr: u64,
    /// How many bytes; 0 unbinds.
    pub length: u64,
    /// What peers were to be allowed.
    pub access: AccessFlags,
}

impl From<ibv_mw_bind_info> for BindArguments {
    fn from(info: ibv_mw_bind_info) -> Self {
        let access = AccessFlags::from_bits_retain(info.mw_access_flags);
        Self { addr: info.addr, length: info.length, access }
    }
}
