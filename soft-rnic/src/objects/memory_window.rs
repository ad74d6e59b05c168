//! Memory windows: parts of regions with their own remote keys, which requests bind and invalidate.
//!
//! A window has an index in the table of [regions](super::region). While it is bound it has a
//! descriptor there: the part of its region, with the window's permissions, for remote access only
//! ([`domain`]).
//!
//! Generations and hazards protect a window as they protect a region. A thread that rebinds,
//! invalidates or deallocates a window invalidates the generation, and continues only when no
//! hazard is left. A region with bound windows can be neither changed nor deregistered, so the
//! memory of a window always belongs to a region.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_mummy_sys::types::{ibv_access_flags, ibv_mw, ibv_mw_type};

use super::c_object::CObject;
use super::context::{Context, CountGuard};
use super::memory_region::{
    BoundRegion, ExportUse, LOCAL_WRITE, MW_BIND, Mr, ON_DEMAND, RegistrationBusy, ZERO_BASED,
    without_optional,
};
use super::protection_domain::Pd;
use super::region::{KeyOwner, KeyTag, LocalMrDescriptor, index_of};
use super::use_ref::UseRef;
use crate::shared::entry::{domain, kind};

const WRITES: u32 =
    ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
/// The access flags that have an effect on a window.
const KNOWN: u32 = WRITES | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0 | ZERO_BASED;
/// The flags of a region that programs pass for its window, too. They have no effect on a window,
/// and neither SoftRoCE nor mlx5 refuses them.
const IGNORED: u32 = LOCAL_WRITE | MW_BIND | ON_DEMAND;

/// A memory window (`ibv_mw`).
pub(crate) struct Mw {
    counted: CountGuard,
    index: u32,
    /// Unique among the windows of this process until the counter wraps.
    serial: u32,
    /// Whether it is of type 2. A posted request binds such a window once, to one queue pair, with
    /// a key that the program chooses. It must be invalidated before the next bind.
    chosen: bool,
    pd: UseRef<Pd>,
    state: Mutex<WindowState>,
}

pub(crate) type MwObject = CObject<ibv_mw, Arc<Mw>>;

/// The window of a pointer.
///
/// # Safety
///
/// - `mw` is a live window of this device.
pub(crate) unsafe fn mw_of<'a>(mw: *mut ibv_mw) -> &'a Arc<Mw> {
    // SAFETY: the caller guarantees that `mw` is a live window of this device.
    unsafe { MwObject::state(mw) }
}

#[derive(Default)]
struct WindowState {
    /// The current key, whether the window is bound or not.
    key: u32,
    bound: Option<WindowBinding>,
    /// Whether it is being deallocated.
    ending: bool,
}

/// The region that a window is bound to.
struct WindowBinding {
    _region: UseRef<Mr>,
    _export: Option<ExportUse>,
    /// For type 2: the number of the queue pair that it is bound to.
    qpn: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BindRequest {
    /// The key that the window gets.
    pub(crate) key: u32,
    /// The key of the region.
    pub(crate) lkey: u32,
    pub(crate) address: u64,
    /// 0 unbinds a window of type 1.
    pub(crate) length: u64,
    pub(crate) access: u32,
}

/// The queue pair that asks for a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowRequester {
    pub(crate) pd: u32,
    pub(crate) qpn: u32,
    /// Whether a peer's message asked for it.
    pub(crate) remote: bool,
}

/// Why a window was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowError {
    /// A peer still touches the memory, although no new transfer can begin: try again later.
    Busy,
    /// The request is invalid.
    Refused,
}

impl From<RegistrationBusy> for WindowError {
    fn from(_: RegistrationBusy) -> Self {
        Self::Busy
    }
}

impl Mw {
    /// Allocates a window (`ibv_alloc_mw`) and returns it with its key.
    ///
    /// # Errors
    ///
    /// An errno: `EINVAL` for an unknown type, `ENOMEM` if the limit of windows, or of windows and
    /// regions together, is reached.
    pub(crate) fn allocate(pd: &Arc<Pd>, mw_type: ibv_mw_type) -> Result<(Arc<Self>, u32), c_int> {
        let context = pd.context();
        context.check_process()?;
        let chosen = match mw_type {
            ibv_mw_type::IBV_MW_TYPE_1 => false,
            ibv_mw_type::IBV_MW_TYPE_2 => true,
            _ => return Err(libc::EINVAL),
        };
        let counted = context.count(|counts| &counts.mw, context.rnic().limits().max_mw)?;
        let regions = context.rnic().regions();
        let index = regions.reserve().ok_or(libc::ENOMEM)?;
        let key = regions.new_key(index);
        let state = Mutex::new(WindowState { key, ..WindowState::default() });
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Relaxed);
        let mw = Arc::new(Self { counted, index, serial, chosen, pd: UseRef::new(pd), state });
        regions.set_owner(index, KeyOwner::Window(Arc::downgrade(&mw)));
        Ok((mw, key))
    }

    fn state(&self) -> MutexGuard<'_, WindowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Distinguishes this window from a later one with the same index.
    pub(crate) fn serial(&self) -> u32 {
        self.serial
    }

    /// Whether the program chooses the keys of the window.
    pub(crate) fn is_of_type_2(&self) -> bool {
        self.chosen
    }

    /// Deallocates the window. No peer touches its memory after this.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a peer still touches the memory. The window is closed, and a later call tries
    /// again.
    pub(crate) fn deallocate(&self) -> Result<(), c_int> {
        self.context().check_process()?;
        self.state().ending = true;
        // Without the lock, because threads that hold transfer slots take it.
        self.context().rnic().regions().revoke(self.index).map_err(|stuck| {
            let pid = stuck.pid.map_or("unknown".to_owned(), |pid| pid.to_string());
            log::error!(
                "memory window {} stays allocated: process {pid} still touches its memory",
                self.index
            );
            libc::EBUSY
        })?;
        self.state().bound = None;
        self.pd.release();
        self.counted.count_out();
        Ok(())
    }

    /// Binds the window, or unbinds it if the length is 0.
    ///
    /// # Errors
    ///
    /// As [`WindowError`].
    pub(crate) fn bind(&self, by: WindowRequester, bind: &BindRequest) -> Result<(), WindowError> {
        let bind = &BindRequest { access: without_optional(bind.access) & !IGNORED, ..*bind };
        let mut state = self.state();
        // The rules of `man ibv_bind_mw`, `man ibv_post_send` and IBTA chapter 10, memory windows.
        let possible = !state.ending
            && by.pd == self.pd.number()
            && index_of(bind.key) == self.index
            && bind.access & !KNOWN == 0
            && if self.chosen {
                state.bound.is_none() && bind.length != 0
            } else {
                bind.access & ZERO_BASED == 0
            };
        if !possible {
            return Err(WindowError::Refused);
        }
        let regions = self.context().rnic().regions();
        let found = if bind.length == 0 { None } else { Some(self.find(by, bind)?) };
        if state.bound.is_some() {
            if !regions.try_revoke(self.index) {
                return Err(WindowError::Busy);
            }
            state.bound = None;
        }
        state.key = bind.key;
        if let Some((region, descriptor, id)) = found {
            let export =
                id.map(|id| ExportUse::of_window(self.context().rnic().node(), id, descriptor.access));
            regions.publish(self.index, self.context(), descriptor, id, KeyTag::Chosen(bind.key as u8));
            state.bound = Some(WindowBinding { _region: region, _export: export, qpn: by.qpn });
        }
        Ok(())
    }

    /// Checks a request and finds the part of a region for it.
    fn find(&self, by: WindowRequester, bind: &BindRequest) -> Result<BoundRegion, WindowError> {
        let region = self.context().rnic().regions().memory_region(bind.lkey).ok_or(WindowError::Refused)?;
        let (region, whole, export) = region.lend(bind.lkey)?.ok_or(WindowError::Refused)?;
        let writes = bind.access & WRITES != 0;
        let allowed = whole.pd == by.pd
            && whole.access & MW_BIND != 0
            && whole.access & ZERO_BASED == 0
            // A null region has no bounds, so a window cannot be part of it. An implicit region
            // cannot be registered for windows.
            && whole.access & kind::NULL == 0
            && (!writes || whole.access & LOCAL_WRITE != 0);
        let base =
            whole.pointer(bind.address, bind.length).filter(|_| allowed).ok_or(WindowError::Refused)?;
        let descriptor = LocalMrDescriptor {
            base,
            iova: if bind.access & ZERO_BASED != 0 { 0 } else { bind.address },
            length: bind.length,
            pd: domain::window(by.pd, self.chosen.then_some(by.qpn)),
            // The owner may have to move bytes for peers, which it does as for a receive: that
            // needs `LOCAL_WRITE`. The window inherits how the region's memory can be reached.
            access: bind.access | whole.access & kind::OWNER_ONLY | if writes { LOCAL_WRITE } else { 0 },
        };
        Ok((region, descriptor, export))
    }

    /// Invalidates the window on request, and returns whether it was bound. An unbound window stays
    /// as it is, because a peer that missed the answer may ask twice.
    ///
    /// # Errors
    ///
    /// As [`WindowError`].
    pub(crate) fn invalidate(&self, by: WindowRequester, key: u32) -> Result<bool, WindowError> {
        let mut state = self.state();
        let possible = self.chosen && !state.ending && state.key == key && by.pd == self.pd.number();
        let bound_elsewhere = state.bound.as_ref().is_some_and(|bound| by.remote && bound.qpn != by.qpn);
        if !possible || bound_elsewhere {
            return Err(WindowError::Refused);
        }
        if state.bound.is_some() && !self.context().rnic().regions().try_revoke(self.index) {
            return Err(WindowError::Busy);
        }
        Ok(state.bound.take().is_some())
    }

    /// Unbinds the window after its queue pair `qpn` has gone, because no transfer can touch the
    /// memory any more.
    pub(crate) fn lose(&self, qpn: u32) {
        let mut state = self.state();
        if self.chosen && state.bound.as_ref().is_some_and(|bound| bound.qpn == qpn) {
            self.context().rnic().regions().close(self.index);
            state.bound = None;
        }
    }
}

impl Drop for Mw {
    /// Gives the index back. The window was revoked before.
    fn drop(&mut self) {
        let regions = self.context().rnic().regions();
        regions.set_owner(self.index, KeyOwner::Nobody);
        regions.release(self.index);
    }
}
