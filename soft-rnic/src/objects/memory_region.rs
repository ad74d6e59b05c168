//! Registering memory, changing a registration, and ending one.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use rdma_mummy_sys::types::{IBV_ACCESS_OPTIONAL_RANGE, ibv_access_flags};

use super::buffer::Buffer;
use super::context::{Context, CountGuard};
use super::device_memory::Dm;
use super::protection_domain::Pd;
use super::region::{KeyOwner, KeyTag, LocalMrDescriptor};
use super::use_ref::{CountsUses, UseCount, UseRef};
use crate::node::{ExportId, Node, StillInUse};
use crate::platform::errno;
use crate::platform::mappings::Survey;
use crate::platform::memory::{BackingFile, FileMapping};
use crate::platform::nowhere::Nowhere;
use crate::platform::user_memory;
use crate::shared::entry::kind;

pub(super) const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
const REMOTE_READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
const REMOTE_ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
pub(super) const ZERO_BASED: u32 = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
/// Memory windows may be bound to the region.
pub(super) const MW_BIND: u32 = ibv_access_flags::IBV_ACCESS_MW_BIND.0;
pub(super) const ON_DEMAND: u32 = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
const FLUSH_GLOBAL: u32 = ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0;
const KNOWN: u32 = LOCAL_WRITE
    | REMOTE_WRITE
    | REMOTE_READ
    | REMOTE_ATOMIC
    | ZERO_BASED
    | ON_DEMAND
    | MW_BIND
    | FLUSH_GLOBAL
    | ibv_access_flags::IBV_ACCESS_HUGETLB.0;

/// The access flags without those that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`). This one
/// ignores all of them.
pub(crate) fn without_optional(access: u32) -> u32 {
    access & !IBV_ACCESS_OPTIONAL_RANGE.0
}

/// Checks access flags. Optional flags are ignored, unknown ones refused. Remote writes and atomics
/// require local write access.
fn check_access(access: u32) -> Result<u32, c_int> {
    let access = without_optional(access);
    // Memory does not outlive the host, so persistence cannot be promised.
    if access & ibv_access_flags::IBV_ACCESS_FLUSH_PERSISTENT.0 != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let writes = access & (REMOTE_WRITE | REMOTE_ATOMIC) != 0;
    if access & !KNOWN != 0 || (writes && access & LOCAL_WRITE == 0) {
        return Err(libc::EINVAL);
    }
    Ok(access)
}

/// Memory to be registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MrRange {
    pub(crate) base: *mut u8,
    pub(crate) length: usize,
    pub(crate) iova: u64,
}

impl MrRange {
    /// Checks that the range can be the program's memory.
    fn check(self, context: &Context) -> Result<Self, c_int> {
        let ends = |start: u64| start.checked_add(self.length as u64).is_some();
        let start = self.base.addr();
        let page = rustix::param::page_size() as u64 - 1;
        let congruent = start as u64 & page == self.iova & page;
        let within = self.length != 0 && self.length as u64 <= context.rnic().limits().max_mr_size;
        if !within || !ends(start as u64) || !ends(self.iova) || !congruent {
            return Err(libc::EINVAL);
        }
        Ok(self)
    }
}

/// The memory behind a region, which the region keeps alive.
#[allow(dead_code, reason = "kept alive, never read")]
pub(crate) enum MrBacking {
    /// Memory of the program, which the program keeps mapped.
    Program,
    /// Memory that the device has allocated.
    Buffer(Arc<Buffer>),
    /// Device memory.
    Device(UseRef<Dm>),
    /// A file of the program, mapped by the device.
    File(FileMapping, BackingFile),
    /// No memory: a null region.
    Null(Arc<Nowhere>),
    /// All memory of the program, mapped or not: an implicit region.
    AddressSpace,
}

/// A memory region (`ibv_mr`).
pub(crate) struct Mr {
    counted: CountGuard,
    index: u32,
    registration: Mutex<Registration>,
    /// The windows that are bound to it.
    users: UseCount,
    gone: AtomicBool,
}

impl CountsUses for Mr {
    fn users(&self) -> &UseCount {
        &self.users
    }
}

/// Logs that a peer still touches a region, which stays closed and allocated.
fn busy(region: u32, StillInUse { peer_id, pid }: StillInUse) -> c_int {
    let pid = pid.map_or("unknown".to_owned(), |pid| pid.to_string());
    log::error!("memory region {region} stays allocated: process {pid} (peer id {peer_id}) still touches it");
    libc::EBUSY
}

/// A region that a window uses, its registration, and the shareable memory that it lies in.
pub(super) type BoundRegion = (UseRef<Mr>, LocalMrDescriptor, Option<ExportId>);

/// Another thread is changing the registration.
pub(super) struct RegistrationBusy;

/// The part of a region that `ibv_rereg_mr` can change.
struct Registration {
    pd: UseRef<Pd>,
    range: MrRange,
    access: u32,
    backing: MrBacking,
    /// The shareable memory that the range lies in, if any.
    export: Option<ExportUse>,
    key: u32,
    /// Whether it is being deregistered, so that no more windows can be bound.
    closing: bool,
}

/// The use of shareable memory by a region or window. The memory stays shared while this lives.
pub(super) struct ExportUse {
    node: Arc<Node>,
    id: ExportId,
    /// Whether peers may map the memory for writing. The region's descriptor decides which writes
    /// are permitted.
    writable: bool,
}

impl ExportUse {
    /// A use by a window of a region in that memory.
    pub(super) fn of_window(node: &Arc<Node>, id: ExportId, access: u32) -> Self {
        let writable = access & LOCAL_WRITE != 0;
        node.exports().note_access(id, true, writable);
        Self { node: Arc::clone(node), id, writable }
    }

    /// Checks that the memory of a range exists with the access that the flags need, and finds the
    /// shareable memory that it lies in, if any.
    ///
    /// # Errors
    ///
    /// `EFAULT` if part of the range is not mapped, not readable, or not writable although the
    /// flags need that.
    fn find(node: &Arc<Node>, range: &MrRange, access: u32) -> Result<Option<Self>, c_int> {
        let (address, length) = (range.base.addr(), range.length);
        let id = match node.exports().find(address, length) {
            Some(id) => id,
            None => match Self::survey(node, address, length, access)? {
                Some(id) => id,
                None => return Ok(None),
            },
        };
        let writable = access & LOCAL_WRITE != 0;
        node.exports().note_access(id, true, writable);
        Ok(Some(Self { node: Arc::clone(node), id, writable }))
    }

    fn survey(
        node: &Arc<Node>,
        address: usize,
        length: usize,
        access: u32,
    ) -> Result<Option<ExportId>, c_int> {
        let survey = match Survey::of(address, length) {
            Ok(survey) => survey,
            Err(error) => {
                log::debug!("/proc/self/maps cannot be read: {error}");
                user_memory::check_mapped(address, length).map_err(|error| errno::of(&error))?;
                return Ok(None);
            }
        };
        if !survey.readable || (access & LOCAL_WRITE != 0 && !survey.writable) {
            return Err(libc::EFAULT);
        }
        // On-demand paging uses whatever lies at the address at the time of the access. By then
        // that may not be the file.
        let shared = survey.shared.filter(|_| access & ON_DEMAND == 0);
        Ok(shared.and_then(|mapping| node.exports().find_mapped(mapping)))
    }
}

impl Drop for ExportUse {
    fn drop(&mut self) {
        self.node.exports().note_access(self.id, false, self.writable);
    }
}

// SAFETY: the pointer in `range` is only passed on as an address, never dereferenced here.
unsafe impl Send for Registration {}

/// A change of a registration. `None` fields stay.
#[derive(Debug, Default)]
pub(crate) struct RegistrationChange {
    pub(crate) range: Option<MrRange>,
    pub(crate) pd: Option<Arc<Pd>>,
    pub(crate) access: Option<u32>,
}

impl Mr {
    /// Registers memory (`ibv_reg_mr`) and returns the region with its key.
    ///
    /// # Errors
    ///
    /// An errno: `EINVAL` for invalid flags or an invalid range, `EFAULT` if the memory is not
    /// mapped or lacks the access, `ENOMEM` if the limit of regions is reached.
    pub(crate) fn register(
        pd: &Arc<Pd>,
        range: MrRange,
        access: u32,
        backing: MrBacking,
    ) -> Result<(Arc<Self>, u32), c_int> {
        let context = pd.context();
        let access = check_access(access)?;
        let range = match backing {
            MrBacking::Program | MrBacking::Buffer(_) => range.check(context)?,
            MrBacking::Device(_) | MrBacking::File(..) | MrBacking::Null(_) | MrBacking::AddressSpace => {
                range
            }
        };
        let export = match backing {
            MrBacking::Null(_) | MrBacking::AddressSpace => None,
            _ => ExportUse::find(context.rnic().node(), &range, access)?,
        };
        let counted = context.count(|counts| &counts.mr, context.rnic().limits().max_mr)?;
        let index = context.rnic().regions().reserve().ok_or(libc::ENOMEM)?;
        let mut registration =
            Registration { pd: UseRef::new(pd), range, access, backing, export, key: 0, closing: false };
        let key = registration.publish(context, index, KeyTag::Next);
        let registration = Mutex::new(registration);
        let (users, gone) = (UseCount::default(), AtomicBool::new(false));
        let mr = Arc::new(Self { counted, index, registration, users, gone });
        context.rnic().regions().set_owner(index, KeyOwner::Region(Arc::downgrade(&mr)));
        context.enter_region(&mr);
        Ok((mr, key))
    }

    fn registration(&self) -> MutexGuard<'_, Registration> {
        self.registration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Registers a range of device memory. Addresses count from the beginning of the range.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub(crate) fn register_device_memory(
        pd: &Arc<Pd>,
        dm: &Arc<Dm>,
        offset: u64,
        length: usize,
        access: u32,
    ) -> Result<(Arc<Self>, u32), c_int> {
        const ALLOWED: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | ZERO_BASED;
        let access = without_optional(access);
        if access & ZERO_BASED == 0 || access & !ALLOWED != 0 {
            return Err(libc::EINVAL);
        }
        let range = MrRange { base: dm.range(offset, length)?, length, iova: 0 };
        Self::register(pd, range, access, MrBacking::Device(UseRef::new(dm)))
    }

    /// Registers part of a file, which the device maps: a dma-buf, or a memory file that cannot
    /// shrink.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register), and as [`FileMapping::of_program`].
    pub(crate) fn register_file(
        pd: &Arc<Pd>,
        file: RawFd,
        offset: u64,
        range: (usize, u64),
        access: u32,
    ) -> Result<(Arc<Self>, u32), c_int> {
        const ALLOWED: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
        let (length, iova) = range;
        let access = check_access(access)?;
        pd.context().check_process()?;
        let page = rustix::param::page_size() as u64 - 1;
        let ends = iova.checked_add(length as u64).is_some() && length != 0;
        if access & !ALLOWED != 0 || iova & page != offset & page || !ends {
            return Err(libc::EINVAL);
        }
        let skipped = (offset & page) as usize;
        let whole = length.checked_add(skipped).filter(|whole| *whole <= isize::MAX as usize);
        let (whole, writable) = (whole.ok_or(libc::EINVAL)?, access & LOCAL_WRITE != 0);
        let (memory, file) = FileMapping::of_program(file, offset - skipped as u64, whole, writable)
            .map_err(|error| errno::refused("ibv_reg_dmabuf_mr", &error))?;
        // Within the mapping, which begins `skipped` bytes earlier.
        let base = memory.base().as_ptr().wrapping_add(skipped);
        Self::register(pd, MrRange { base, length, iova }, access, MrBacking::File(memory, file))
    }

    /// Registers a null region for the program's own requests: it reads as zeroes and discards
    /// writes.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub(crate) fn register_null(pd: &Arc<Pd>) -> Result<(Arc<Self>, u32), c_int> {
        pd.context().check_process()?;
        let nowhere = Nowhere::acquire().map_err(|error| errno::refused("ibv_alloc_null_mr", &error))?;
        let range = MrRange { base: nowhere.base(), length: 0, iova: 0 };
        Self::register(pd, range, LOCAL_WRITE, MrBacking::Null(nowhere))
    }

    /// Registers the whole address space on demand: an implicit region. The system moves its bytes,
    /// also within this process, and so finds out that an address has no memory.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register). `EOPNOTSUPP` where the system refuses such copies, for
    /// atomics, which it does not have, and for memory windows, whose memory must stay.
    pub(crate) fn register_implicit(pd: &Arc<Pd>, access: u32) -> Result<(Arc<Self>, u32), c_int> {
        const ALLOWED: u32 = ON_DEMAND | LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | FLUSH_GLOBAL;
        let access = check_access(access)?;
        pd.context().check_process()?;
        if access & (REMOTE_ATOMIC | MW_BIND) != 0 || pd.context().rnic().node().own_vm().is_none() {
            return Err(libc::EOPNOTSUPP);
        }
        if access & !ALLOWED != 0 {
            return Err(libc::EINVAL);
        }
        let range = MrRange { base: ptr::null_mut(), length: usize::MAX, iova: 0 };
        Self::register(pd, range, access, MrBacking::AddressSpace)
    }

    /// Whether it can be [changed](Self::change): only memory of the program can.
    pub(crate) fn can_change(&self) -> bool {
        matches!(self.registration().backing, MrBacking::Program | MrBacking::Buffer(_))
    }

    /// The current key.
    pub(crate) fn key(&self) -> u32 {
        self.registration().key
    }

    /// Changes the registration once no transfer touches the memory, and returns the key.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register), with nothing changed. `EBUSY` if a memory window is bound
    /// to the region, or if a peer still touches the memory. In the second case the region stays
    /// closed and must be deregistered.
    pub(crate) fn change(&self, change: RegistrationChange) -> Result<u32, c_int> {
        let context = self.context();
        context.check_process()?;
        let access = change.access.map(check_access).transpose()?;
        let range = change.range.map(|range| range.check(context)).transpose()?;
        let mut registration = self.registration();
        if self.users.is_used() {
            return Err(libc::EBUSY);
        }
        let access = access.unwrap_or(registration.access);
        let export = ExportUse::find(context.rnic().node(), &range.unwrap_or(registration.range), access)?;
        context.rnic().regions().revoke(self.index).map_err(|stuck| busy(self.index, stuck))?;
        if let Some(range) = range {
            registration.range = range;
            registration.backing = MrBacking::Program;
        }
        if let Some(pd) = change.pd {
            registration.pd = UseRef::new(&pd);
        }
        (registration.access, registration.export) = (access, export);
        Ok(registration.publish(context, self.index, KeyTag::Same))
    }

    /// Deregisters the region. Neither peers nor the device touch the memory after this.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a memory window is bound to the region, or if a peer still touches the memory. In
    /// the second case the region is closed, and a later call tries again.
    pub(crate) fn deregister(&self) -> Result<(), c_int> {
        self.context().check_process()?;
        if self.is_gone() {
            return Err(libc::EINVAL);
        }
        {
            let mut registration = self.registration();
            if self.users.is_used() {
                return Err(libc::EBUSY);
            }
            registration.closing = true;
        }
        self.context().rnic().regions().revoke(self.index).map_err(|stuck| busy(self.index, stuck))?;
        self.gone.store(true, Relaxed);
        // An import may keep this object alive, so release its parts now.
        let mut registration = self.registration();
        registration.pd.release();
        (registration.backing, registration.export) = (MrBacking::Program, None);
        self.counted.count_out();
        Ok(())
    }

    /// Lends the region to a window. The registration cannot change until the window ends the use.
    /// `None` if the region no longer has this key.
    ///
    /// # Errors
    ///
    /// Another thread is changing the registration: try again later.
    pub(super) fn lend(self: &Arc<Self>, key: u32) -> Result<Option<BoundRegion>, RegistrationBusy> {
        let registration = match self.registration.try_lock() {
            Ok(registration) => registration,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(RegistrationBusy),
        };
        if registration.closing || registration.key != key {
            return Ok(None);
        }
        let descriptor = self.context().rnic().regions().read(key).map(|(.., descriptor)| descriptor);
        let export = registration.export.as_ref().map(|export| export.id);
        Ok(descriptor.map(|descriptor| (UseRef::new(self), descriptor, export)))
    }

    /// Whether it was deregistered.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// In bytes.
    pub(crate) fn length(&self) -> usize {
        self.registration().range.length
    }
}

impl Drop for Mr {
    /// Gives the index back. The region was revoked before.
    fn drop(&mut self) {
        self.context().rnic().regions().set_owner(self.index, KeyOwner::Nobody);
        self.context().rnic().regions().release(self.index);
    }
}

impl Registration {
    fn publish(&mut self, context: &Arc<Context>, index: u32, tag: KeyTag) -> u32 {
        let MrRange { base, mut length, iova } = self.range;
        let kind = match self.backing {
            MrBacking::Null(_) => kind::NULL,
            MrBacking::AddressSpace => {
                length = 0;
                kind::IMPLICIT
            }
            MrBacking::File(_, BackingFile::DmaBuf) => kind::OWNER_ONLY,
            _ => 0,
        };
        let descriptor = LocalMrDescriptor {
            base,
            iova: if self.access & ZERO_BASED != 0 { 0 } else { iova },
            length: length as u64,
            pd: self.pd.number(),
            access: self.access | kind,
        };
        let export = self.export.as_ref().map(|export| export.id);
        self.key = context.rnic().regions().publish(index, context, descriptor, export, tag);
        self.key
    }
}
