//! Verbs of memory regions and of memory to register.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::protection_domain::pd_of;
use super::{admit, failure, null, number};
use crate::faults::Call;
use crate::objects::buffer::Buffer;
use crate::objects::c_object::CObject;
use crate::objects::memory_region::{Mr, MrBacking, MrRange, RegistrationChange};
use crate::objects::prefetch::{Advice, prefetch};
use crate::objects::protection_domain::Pd;
use crate::platform::errno;

type MrObject = CObject<ibv_mr, Arc<Mr>>;
/// C does not know the contents of an `ibv_buf`.
type BufferObject = CObject<(), Arc<Buffer>>;

/// Registers a range, or the whole address space.
///
/// # Safety
///
/// - `pd` is live.
/// - The device may use the range, as the flags say, until it is deregistered.
unsafe fn register(pd: *mut ibv_pd, range: MrRange, access: u32, buffer: Option<Arc<Buffer>>) -> *mut ibv_mr {
    const ON_DEMAND: u32 = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
    let (addr, length): (*mut c_void, _) = (range.base.cast(), range.length);
    let everything = addr.is_null() && length == usize::MAX && range.iova == 0 && buffer.is_none();
    let backing = buffer.map_or(MrBacking::Program, MrBacking::Buffer);
    let register = |state: &Arc<Pd>| {
        if everything && access & ON_DEMAND != 0 {
            Mr::register_implicit(state, access)
        } else {
            Mr::register(state, range, access, backing)
        }
    };
    // SAFETY: the caller guarantees that `pd` is live.
    unsafe { create(pd, addr, length, register) }
}

/// Creates a region with its C part.
///
/// # Safety
///
/// - `pd` is live.
pub(super) unsafe fn create(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    register: impl FnOnce(&Arc<Pd>) -> Result<(Arc<Mr>, u32), c_int>,
) -> *mut ibv_mr {
    // SAFETY: the caller guarantees that `pd` is live.
    let state = unsafe { pd_of(pd) };
    admit!(state.context(), RegMr, null);
    match register(state) {
        Ok((mr, key)) => {
            // SAFETY: the caller guarantees that `pd` is live. The library alone writes the field.
            let context = unsafe { (*pd).context };
            let c = ibv_mr { context, pd, addr, length, handle: mr.index(), lkey: key, rkey: key };
            MrObject::create(c, mr)
        }
        Err(error) => null(error),
    }
}

fn own_address(addr: *mut c_void, length: usize) -> MrRange {
    MrRange { base: addr.cast(), length, iova: addr.addr() as u64 }
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: `ibv_reg_mr` requires a live `pd` and a range that the device may use, as the flags
    // say, until it is deregistered.
    unsafe { register(pd, own_address(addr, length), access as u32, None) }
}

pub(super) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: `ibv_reg_mr_iova` requires a live `pd` and a range that the device may use, as the
    // flags say, until it is deregistered.
    unsafe { register(pd, MrRange { base: addr.cast(), length, iova }, access as u32, None) }
}

pub(super) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: `ibv_reg_mr_iova2` requires a live `pd` and a range that the device may use, as the
    // flags say, until it is deregistered.
    unsafe { register(pd, MrRange { base: addr.cast(), length, iova }, access, None) }
}

/// Registers memory of the program, memory from [`alloc_buf`], or part of a file. The device has no
/// direct memory access handles (`ibv_dmah`).
pub(super) unsafe extern "C" fn reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    use ibv_mr_init_attr_mask as M;
    // SAFETY: `ibv_reg_mr_ex` requires valid attributes.
    let attr = unsafe { attr.read() };
    let has = |mask: M| attr.comp_mask & u64::from(mask.0) != 0;
    let file = M::IBV_REG_MR_MASK_FD.0 | M::IBV_REG_MR_MASK_FD_OFFSET.0 | M::IBV_REG_MR_MASK_IOVA.0;
    if attr.comp_mask == u64::from(file) {
        let (offset, iova) = (attr.fd_offset, attr.iova);
        // SAFETY: `ibv_reg_mr_ex` requires a live protection domain.
        return unsafe { reg_dmabuf_mr(pd, offset, attr.length, iova, attr.fd, attr.access) };
    }
    let known = M::IBV_REG_MR_MASK_ADDR.0 | M::IBV_REG_MR_MASK_BUF.0 | file;
    if attr.comp_mask & !u64::from(known) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    if has(M::IBV_REG_MR_MASK_FD) || has(M::IBV_REG_MR_MASK_FD_OFFSET) {
        return null(libc::EINVAL);
    }
    if !has(M::IBV_REG_MR_MASK_ADDR) {
        return null(libc::EINVAL);
    }
    let mut range = own_address(attr.addr, attr.length);
    if has(M::IBV_REG_MR_MASK_IOVA) {
        range.iova = attr.iova;
    }
    let buffer = has(M::IBV_REG_MR_MASK_BUF).then(|| {
        // SAFETY: the mask says that `buf` is set, and `ibv_reg_mr_ex` requires it to be live.
        Arc::clone(unsafe { BufferObject::state(attr.buf.cast()) })
    });
    if buffer.as_ref().is_some_and(|buffer| !buffer.contains(attr.addr.addr(), attr.length)) {
        return null(libc::EINVAL);
    }
    // SAFETY: `ibv_reg_mr_ex` requires a live `pd` and a range that the device may use, as the
    // flags say, until it is deregistered.
    unsafe { register(pd, range, attr.access as u32, buffer) }
}

pub(super) unsafe extern "C" fn reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    use ibv_mr_init_attr_mask as M;
    let mut attr = ibv_mr_init_attr {
        length,
        access,
        comp_mask: u64::from(M::IBV_REG_MR_MASK_ADDR.0 | M::IBV_REG_MR_MASK_BUF.0),
        addr,
        buf,
        ..ibv_mr_init_attr::default()
    };
    // SAFETY: `ibv_reg_buf_mr` requires a live `pd` and a live buffer, which is what the attributes
    // name.
    unsafe { reg_mr_ex(pd, &raw mut attr) }
}

pub(super) unsafe extern "C" fn alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    // SAFETY: `ibv_alloc_buf` requires a live protection domain.
    let pd = unsafe { pd_of(pd) };
    admit!(pd.context(), AllocBuf, null);
    if let Err(error) = pd.context().check_process() {
        return null(error);
    }
    match Buffer::allocate(pd, size) {
        Ok(buffer) => {
            let base = buffer.base();
            // SAFETY: `ibv_alloc_buf` requires a valid pointer for the handle.
            unsafe { buf.write(BufferObject::create((), buffer).cast()) };
            base.as_ptr().cast()
        }
        Err(error) => null(errno::refused("ibv_alloc_buf", &error)),
    }
}

/// The address of a file's region is its offset, as in libibverbs.
pub(super) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let addr = ptr::without_provenance_mut(offset as usize);
    // SAFETY: `ibv_reg_dmabuf_mr` requires a live protection domain.
    unsafe {
        create(pd, addr, length, |state| Mr::register_file(state, fd, offset, (length, iova), access as u32))
    }
}

/// Creates a null region, of unlimited length and with a local key only.
pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: `ibv_alloc_null_mr` requires a live protection domain.
    let mr = unsafe { create(pd, ptr::null_mut(), usize::MAX, Mr::register_null) };
    if !mr.is_null() {
        // SAFETY: `create` has just made it.
        unsafe { (*mr).rkey = 0 };
    }
    mr
}

pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    // SAFETY: `ibv_advise_mr` requires a live protection domain.
    let state = unsafe { pd_of(pd) };
    admit!(state.context(), AdviseMr, failure);
    let Some(advice) = Advice::from_number(advice) else { return failure(libc::EOPNOTSUPP) };
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH.0 != 0 || count == 0 || list.is_null() {
        return failure(libc::EINVAL);
    }
    // SAFETY: `ibv_advise_mr` requires a list of `num_sge` entries.
    let entry = |n: u32| unsafe { list.add(n as usize).read() };
    number(
        state
            .context()
            .check_process()
            .and_then(|()| (0..count).try_for_each(|n| prefetch(state, advice, entry(n)))),
    )
}

/// Frees the handle. Regions of the memory keep it until they are deregistered.
pub(super) unsafe extern "C" fn free_buf(buf: *mut ibv_buf) {
    // SAFETY: `create` of the same type made the object, and `ibv_free_buf` forbids any later use.
    drop(unsafe { BufferObject::destroy(buf.cast()) });
}

pub(super) unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    use ibv_rereg_mr_err_code as Code;
    use ibv_rereg_mr_flags as Flags;
    let has = |flag: Flags| flags as u32 & flag.0 != 0;
    let translation = has(Flags::IBV_REREG_MR_CHANGE_TRANSLATION);
    let unknown = flags as u32 & !Flags::IBV_REREG_MR_FLAGS_SUPPORTED.0 != 0;
    let empty = translation && (length == 0 || addr.is_null());
    if unknown || empty || (access != 0 && !has(Flags::IBV_REREG_MR_CHANGE_ACCESS)) {
        errno::set(libc::EINVAL);
        return Code::IBV_REREG_MR_ERR_INPUT.0;
    }
    let wants_pd = has(Flags::IBV_REREG_MR_CHANGE_PD);
    let failed = |error| {
        errno::set(error);
        Code::IBV_REREG_MR_ERR_CMD.0
    };
    if flags == 0 || (wants_pd && pd.is_null()) {
        return failed(libc::EINVAL);
    }
    let change = RegistrationChange {
        range: translation.then(|| own_address(addr, length)),
        // SAFETY: `ibv_rereg_mr` requires a live new protection domain if the flags name one.
        pd: wants_pd.then(|| Arc::clone(unsafe { pd_of(pd) })),
        access: has(Flags::IBV_REREG_MR_CHANGE_ACCESS).then_some(access as u32),
    };
    // SAFETY: `ibv_rereg_mr` requires a live region.
    let state = unsafe { MrObject::state(mr) };
    if !state.can_change() {
        errno::set(libc::EINVAL);
        return Code::IBV_REREG_MR_ERR_INPUT.0;
    }
    match state.context().admit(Call::ReregMr).and_then(|()| state.change(change)) {
        Ok(key) => {
            // SAFETY: `ibv_rereg_mr` requires a live region. The library alone writes these fields.
            unsafe {
                if translation {
                    (*mr).addr = addr;
                    (*mr).length = length;
                }
                if wants_pd {
                    (*mr).pd = pd;
                }
                (*mr).lkey = key;
                (*mr).rkey = key;
            }
            0
        }
        Err(error) => failed(error),
    }
}

/// Imports the region with this index, if the context of the domain registered it or shares the
/// command descriptor of the context that did. Its address is not set (`man ibv_import_mr`).
pub(super) unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: `ibv_import_mr` requires a live protection domain.
    let (state, context) = unsafe { (pd_of(pd).context(), (*pd).context) };
    admit!(state, ImportMr, null);
    let mr = match state.check_process().and_then(|()| state.find_region(handle).ok_or(libc::ENOENT)) {
        Ok(mr) => mr,
        Err(error) => return null(error),
    };
    let (length, key) = (mr.length(), mr.key());
    let c = ibv_mr { context, pd, addr: ptr::null_mut(), length, handle, lkey: key, rkey: key };
    MrObject::create(c, mr)
}

/// Frees the pointer. The region stays.
pub(super) unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: `create` of the same type made the object, and `ibv_unimport_mr` forbids any later
    // use.
    drop(unsafe { MrObject::destroy(mr) });
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: `ibv_dereg_mr` requires a live region.
    let state = unsafe { MrObject::state(mr) };
    admit!(state.context(), DeregMr, failure);
    let result = state.deregister();
    if result.is_ok() {
        // SAFETY: `create` made the object, and `ibv_dereg_mr` forbids any later use. No peer
        // touches the memory any more.
        drop(unsafe { MrObject::destroy(mr) });
    }
    number(result)
}
