//! Fake regions of other kinds, device memory, and advice.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use sideway::sys::Verbs;
use sideway::sys::types::*;

use super::device::world_of;
use super::{FakeWorld, refuses, set_errno};

/// The advice, the flags, and the entries' addresses, lengths and keys.
pub type Advised = (u32, u32, Vec<(u64, u32, u32)>);

/// The last arguments.
#[derive(Debug, Default)]
pub struct Regions {
    pub advised: Mutex<Option<Advised>>,
    /// For a dma-buf: offset, length, address and access. For device memory: offset, length, 0 and
    /// access.
    pub registered: Mutex<Option<(u64, usize, u64, u32)>>,
}

/// Memory on the device.
#[repr(C)]
struct Dm {
    object: ibv_dm,
    bytes: Mutex<Vec<u8>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn add_to(table: Verbs) -> Verbs {
    Verbs {
        ibv_reg_mr_iova: Some(reg_mr_iova),
        ibv_reg_dmabuf_mr: Some(reg_dmabuf_mr),
        ibv_rereg_mr: rereg_mr,
        ibv_import_dm: Some(import_dm),
        ibv_unimport_dm: Some(unimport_dm),
        ..table
    }
}

pub(super) fn install(verbs: &mut verbs_context) {
    verbs.alloc_null_mr = Some(alloc_null_mr);
    verbs.advise_mr = Some(advise_mr);
    verbs.alloc_dm = Some(alloc_dm);
    verbs.free_dm = Some(free_dm);
    verbs.reg_dm_mr = Some(reg_dm_mr);
}

impl FakeWorld {
    pub(super) fn new_region(&self, pd: *mut ibv_pd, addr: *mut c_void, length: usize) -> *mut ibv_mr {
        if let Some(null) = refuses(self.lies.extras) {
            return null;
        }
        self.born();
        let (lkey, rkey) = (self.number(), self.number());
        // SAFETY: the caller passes a live domain, as C requires.
        let context = unsafe { (*pd).context };
        let mr = Box::into_raw(Box::new(ibv_mr { context, pd, addr, length, handle: 0, lkey, rkey }));
        self.uses(pd, mr);
        mr
    }
}

unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: u64,
    _: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a live domain, as C requires.
    unsafe { world_of((*pd).context) }.new_region(pd, addr, length)
}

unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a live domain, as C requires.
    let world = unsafe { world_of((*pd).context) };
    world.check(fd >= 0, "a descriptor is open");
    *lock(&world.regions.registered) = Some((offset, length, iova, access as u32));
    world.new_region(pd, ptr::without_provenance_mut(offset as usize), length)
}

unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: the caller passes a live domain, as C requires.
    unsafe { world_of((*pd).context) }.new_region(pd, ptr::null_mut(), usize::MAX)
}

unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: c_int,
) -> c_int {
    use ibv_rereg_mr_flags as Flags;
    // SAFETY: the caller passes a live region and domain, as C requires.
    unsafe {
        let world = world_of((*mr).context);
        let (code, errno) = world.lies.rereg_mr;
        if code == 0 || code == ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_DO_FORK_OLD.0 {
            if flags as u32 & Flags::IBV_REREG_MR_CHANGE_PD.0 != 0 {
                world.goes(mr, "memory region");
                world.uses(pd, mr);
                (*mr).pd = pd;
            }
            if flags as u32 & Flags::IBV_REREG_MR_CHANGE_TRANSLATION.0 != 0 {
                ((*mr).addr, (*mr).length) = (addr, length);
            }
            ((*mr).lkey, (*mr).rkey) = (world.number(), world.number());
        }
        set_errno(errno);
        code
    }
}

unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    // SAFETY: the caller passes a live domain, and a list of this many entries.
    let (world, entries) = unsafe {
        let entries = (0..count as usize).map(|n| list.add(n).read());
        (world_of((*pd).context), entries.map(|sge| (sge.addr, sge.length, sge.lkey)).collect())
    };
    *lock(&world.regions.advised) = Some((advice.0, flags, entries));
    world.lies.extras
}

fn new_dm(context: *mut ibv_context, length: usize, handle: u32) -> *mut ibv_dm {
    // SAFETY: the caller passes an open context, as C requires.
    let world = unsafe { world_of(context) };
    if let Some(null) = refuses(world.lies.extras) {
        return null;
    }
    world.born();
    let copies = !world.lies.no_copies;
    let object = ibv_dm {
        context,
        memcpy_to_dm: copies.then_some(memcpy_to_dm),
        memcpy_from_dm: copies.then_some(memcpy_from_dm),
        comp_mask: if copies { ibv_dm_mask::IBV_DM_MASK_HANDLE.0 } else { 0 },
        handle,
    };
    Box::into_raw(Box::new(Dm { object, bytes: Mutex::new(vec![0; length.min(1 << 16)]) })).cast()
}

unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    // SAFETY: the caller passes valid attributes, as C requires.
    new_dm(context, unsafe { (*attr).length }, 5)
}

unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    let dm = new_dm(context, 64, handle);
    if !dm.is_null() {
        // SAFETY: the caller passes an open context, as C requires.
        unsafe { world_of(context) }.is_imported(dm);
    }
    dm
}

/// # Safety
///
/// The memory must be alive, and nothing else may use it.
unsafe fn end_dm(dm: *mut ibv_dm) {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        world_of((*dm).context).goes(dm, "device memory");
        drop(Box::from_raw(dm.cast::<Dm>()));
    }
}

unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the caller passes live memory that nothing else uses, as C requires.
    unsafe {
        let world = world_of((*dm).context);
        world.was_imported(dm, true);
        world.live.fetch_sub(1, Relaxed);
        end_dm(dm);
    }
}

unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the caller passes live memory that nothing else uses, as C requires.
    unsafe {
        let world = world_of((*dm).context);
        if !world.dies("dm") {
            return world.lies.destroy;
        }
        world.was_imported(dm, false);
        end_dm(dm);
    }
    0
}

unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a live domain, as C requires.
    let world = unsafe { world_of((*pd).context) };
    *lock(&world.regions.registered) = Some((offset, length, 0, access));
    let mr = world.new_region(pd, ptr::null_mut(), length);
    if !mr.is_null() {
        world.uses(dm, mr);
    }
    mr
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    // SAFETY: the caller passes live memory and readable bytes, as C requires.
    unsafe {
        let world = world_of((*dm).context);
        let mut bytes = lock(&(*dm.cast::<Dm>()).bytes);
        let range = offset as usize..offset as usize + length;
        world.check(range.end <= bytes.len(), "a copy lies within device memory");
        if world.lies.copies == 0 {
            bytes[range].copy_from_slice(std::slice::from_raw_parts(from.cast(), length));
        }
        world.lies.copies
    }
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    // SAFETY: the caller passes live memory and writable bytes, as C requires.
    unsafe {
        let world = world_of((*dm).context);
        let bytes = lock(&(*dm.cast::<Dm>()).bytes);
        let range = offset as usize..offset as usize + length;
        world.check(range.end <= bytes.len(), "a copy lies within device memory");
        if world.lies.copies == 0 {
            to.cast::<u8>().copy_from_nonoverlapping(bytes[range].as_ptr(), length);
        }
        world.lies.copies
    }
}
