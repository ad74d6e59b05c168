//! Optional features of the fake provider: provider memory, DMA handles, dma-bufs, write order and
//! Ethernet addresses.

use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use sideway::sys::Verbs;
use sideway::sys::types::*;

use super::device::world_of;
use super::{FakeWorld, refuses, set_errno};

/// The last arguments.
#[derive(Debug, Default)]
pub struct Provided {
    /// The mask, processor, hint and memory type.
    pub dma_handle: Mutex<Option<(u32, u32, u8, u8)>>,
    pub registered: Mutex<Option<Registered>>,
}

/// Length, access, mask, address in requests, address, offset in the descriptor.
pub type Registered = (usize, i32, u64, u64, usize, u64);

/// A DMA handle.
struct Handle {
    context: *mut ibv_context,
}

/// The provider's memory.
struct Memory {
    pd: *mut ibv_pd,
    bytes: Box<[u8]>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn add_to(table: Verbs) -> Verbs {
    Verbs {
        ibv_alloc_dmah: Some(alloc_dmah),
        ibv_dealloc_dmah: Some(dealloc_dmah),
        ibv_alloc_buf: Some(alloc_buf),
        ibv_free_buf: Some(free_buf),
        ibv_reg_buf_mr: Some(reg_buf_mr),
        ibv_reg_mr_ex: Some(reg_mr_ex),
        ibv_dm_export_dmabuf_fd: Some(dm_export_dmabuf_fd),
        ibv_export_buf_dmabuf_fd: Some(export_buf_dmabuf_fd),
        ibv_query_qp_data_in_order: Some(query_qp_data_in_order),
        ibv_resolve_eth_l2_from_gid: resolve_eth_l2_from_gid,
        ..table
    }
}

unsafe extern "C" fn alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah {
    // SAFETY: the caller passes an open context and valid attributes, as C requires.
    let (world, attr) = unsafe { (world_of(context), attr.read()) };
    if let Some(null) = refuses(world.lies.extras) {
        return null;
    }
    *lock(&world.provided.dma_handle) = Some((attr.comp_mask, attr.cpu_id, attr.ph, attr.tph_mem_type));
    world.born();
    Box::into_raw(Box::new(Handle { context })).cast()
}

unsafe extern "C" fn dealloc_dmah(dmah: *mut ibv_dmah) -> c_int {
    let handle: *mut Handle = dmah.cast();
    // SAFETY: the caller passes a live handle, as C requires.
    let world = unsafe { world_of((*handle).context) };
    if !world.dies("dmah") {
        return world.lies.destroy;
    }
    world.goes(dmah, "DMA handle");
    // SAFETY: the object was boxed, and its owner destroys it once.
    drop(unsafe { Box::from_raw(handle) });
    0
}

unsafe extern "C" fn alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    // SAFETY: the caller passes a live domain, as C requires.
    let world = unsafe { world_of((*pd).context) };
    if let Some(null) = refuses(world.lies.extras) {
        return null;
    }
    let mut memory = Box::new(Memory { pd, bytes: vec![0; size].into() });
    let start = memory.bytes.as_mut_ptr();
    world.born();
    let memory: *mut ibv_buf = Box::into_raw(memory).cast();
    world.uses(pd, memory);
    // SAFETY: the caller passes a valid pointer for the handle, as C requires.
    unsafe { buf.write(memory) };
    start.cast()
}

unsafe extern "C" fn free_buf(buf: *mut ibv_buf) {
    let memory: *mut Memory = buf.cast();
    // SAFETY: the caller passes live memory, which keeps its domain alive.
    let world = unsafe { world_of((*(*memory).pd).context) };
    world.destroyed.lock().unwrap().push("buf");
    world.live.fetch_sub(1, Relaxed);
    world.goes(buf, "provider's buffer");
    // SAFETY: the object was boxed, and its owner destroys it once.
    drop(unsafe { Box::from_raw(memory) });
}

unsafe extern "C" fn reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    use ibv_mr_init_attr_mask as M;
    let comp_mask = u64::from(M::IBV_REG_MR_MASK_ADDR.0 | M::IBV_REG_MR_MASK_BUF.0);
    let mut attr = ibv_mr_init_attr { length, access, comp_mask, addr, buf, ..Default::default() };
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe { reg_mr_ex(pd, &raw mut attr) }
}

unsafe extern "C" fn reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    use ibv_mr_init_attr_mask as M;
    // SAFETY: the caller passes a live domain and valid attributes, as C requires.
    let (world, attr) = unsafe { (world_of((*pd).context), attr.read()) };
    let has = |mask: M| attr.comp_mask & u64::from(mask.0) != 0;
    if let Some(null) = refuses(world.lies.register) {
        return null;
    }
    let mr = world.new_region(pd, attr.addr, attr.length);
    world.check(has(M::IBV_REG_MR_MASK_ADDR) != has(M::IBV_REG_MR_MASK_FD), "a region is of one memory");
    if has(M::IBV_REG_MR_MASK_BUF) {
        // SAFETY: the mask says that a buffer is set, and it is alive.
        let memory = unsafe { &*attr.buf.cast::<Memory>() };
        let offset = attr.addr.addr().wrapping_sub(memory.bytes.as_ptr().addr());
        let within = offset.checked_add(attr.length).is_some_and(|end| end <= memory.bytes.len());
        world.check(within && memory.pd == pd, "a region of a buffer lies in it, and in its domain");
        world.uses(attr.buf, mr);
    }
    if has(M::IBV_REG_MR_MASK_DMAH) {
        // SAFETY: the mask says that a DMA handle is set, and it is alive.
        let of = unsafe { (*attr.dmah.cast::<Handle>()).context };
        // SAFETY: the caller passes a live domain, as C requires.
        world.check(of == unsafe { (*pd).context }, "a DMA handle is of the region's context");
        world.uses(attr.dmah, mr);
    }
    *lock(&world.provided.registered) =
        Some((attr.length, attr.access, attr.comp_mask, attr.iova, attr.addr.addr(), attr.fd_offset));
    mr
}

/// Any descriptor, or -1 with `errno`.
fn descriptor(world: &FakeWorld) -> c_int {
    if world.lies.extras != 0 {
        set_errno(world.lies.extras);
        return -1;
    }
    std::fs::File::open("/dev/null").unwrap().into_raw_fd()
}

unsafe extern "C" fn dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the caller passes live memory, as C requires.
    let world = unsafe { world_of((*dm).context) };
    descriptor(&world)
}

unsafe extern "C" fn export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    // SAFETY: the caller passes live memory, which keeps its domain alive.
    let world = unsafe { world_of((*(*buf.cast::<Memory>()).pd).context) };
    match world.lies.export_buf {
        0 => descriptor(&world),
        error => {
            set_errno(error);
            -1
        }
    }
}

/// The guarantees depend on the arguments.
unsafe extern "C" fn query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int {
    // SAFETY: the caller passes a live pair, as C requires.
    let world = unsafe { world_of((*qp).context) };
    match world.lies.data_in_order {
        Some([with_flags, without]) => [without, with_flags][usize::from(flags != 0)],
        None => (flags << 8 | op.0 << 4) as c_int,
    }
}

unsafe extern "C" fn resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut u8,
    vlan: *mut u16,
) -> c_int {
    // SAFETY: the caller passes an open context and valid attributes, as C requires.
    let (world, attr) = unsafe { (world_of(context), attr.read()) };
    if world.lies.extras != 0 {
        return -world.lies.extras;
    }
    // SAFETY: all union members are plain bytes.
    let gid = unsafe { attr.grh.dgid.raw };
    // SAFETY: the caller passes valid pointers for both results, as C requires.
    unsafe {
        ptr::copy_nonoverlapping(gid[10..].as_ptr(), mac, 6);
        vlan.write(u16::from_be_bytes([gid[0], gid[1]]));
    }
    0
}
