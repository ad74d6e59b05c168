//! Fake devices, contexts, domains and regions.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sideway::sys::Verbs;
use sideway::sys::types::*;

use super::{
    FakeWorld, completion, events, extras, objects, posting, provided, queue_pair, refuses, regions, world,
    xrc,
};

pub(super) fn table() -> Verbs {
    provided::add_to(regions::add_to(objects::add_to(extras::add_to(Verbs {
        ibv_get_device_list: get_device_list,
        ibv_free_device_list: free_device_list,
        ibv_get_device_name: get_device_name,
        ibv_get_device_guid: get_device_guid,
        ibv_open_device: open_device,
        ibv_close_device: close_device,
        ibv_query_device: query_device,
        ibv_query_port: query_port,
        ibv_query_gid: query_gid,
        _ibv_query_gid_ex: Some(query_gid_ex),
        _ibv_query_gid_table: Some(query_gid_table),
        ibv_alloc_pd: alloc_pd,
        ibv_dealloc_pd: dealloc_pd,
        ibv_reg_mr: reg_mr,
        ibv_reg_mr_iova2: Some(reg_mr_iova2),
        ibv_dereg_mr: dereg_mr,
        ibv_create_cq: completion::create_cq,
        ibv_destroy_cq: completion::destroy_cq,
        ibv_resize_cq: events::resize_cq,
        ibv_create_comp_channel: events::create_comp_channel,
        ibv_destroy_comp_channel: events::destroy_comp_channel,
        ibv_get_cq_event: events::get_cq_event,
        ibv_ack_cq_events: events::ack_cq_events,
        ibv_get_async_event: events::get_async_event,
        ibv_ack_async_event: events::ack_async_event,
        ibv_create_qp: queue_pair::create_qp,
        ibv_destroy_qp: queue_pair::destroy_qp,
        ibv_modify_qp: queue_pair::modify_qp,
        ibv_query_qp: queue_pair::query_qp,
        ibv_qp_to_qp_ex: Some(queue_pair::qp_to_qp_ex),
        ..Verbs::unsupported()
    }))))
}

#[repr(C)]
struct Context {
    verbs: verbs_context,
    world: Arc<FakeWorld>,
    device: *mut ibv_device,
}

/// The world of a context.
///
/// # Safety
///
/// The context must be open.
pub(super) unsafe fn world_of(context: *mut ibv_context) -> Arc<FakeWorld> {
    let offset = offset_of!(Context, verbs) + offset_of!(verbs_context, context);
    // SAFETY: every context of this provider is inside a `Context`.
    unsafe { Arc::clone(&(*context.byte_sub(offset).cast::<Context>()).world) }
}

fn new_device() -> *mut ibv_device {
    let mut device = ibv_device { transport_type: ibv_transport_type(4711), ..ibv_device::default() };
    device.node_type = ibv_node_type(4712);
    for (to, from) in device.name.iter_mut().zip(b"fake0") {
        *to = *from as c_char;
    }
    Box::into_raw(Box::new(device))
}

/// The list is a boxed array of the devices and a null pointer.
unsafe extern "C" fn get_device_list(num: *mut c_int) -> *mut *mut ibv_device {
    let world = world();
    if let Some(null) = refuses(world.lies.get_device_list) {
        return null;
    }
    let count = world.lies.device_count.unwrap_or(1);
    // SAFETY: the caller passes a valid pointer for the count, as C requires.
    unsafe { num.write(count) };
    let there = usize::try_from(count).unwrap_or(0);
    let mut list: Vec<_> = (0..there).map(|_| new_device()).collect();
    list.push(ptr::null_mut());
    world.born();
    Box::into_raw(list.into_boxed_slice()).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    world().live.fetch_sub(1, Relaxed);
    let mut len = 0;
    // SAFETY: the list ends with a null pointer, and was boxed with that length; its devices are
    // boxed too.
    unsafe {
        while !(*list.add(len)).is_null() {
            drop(Box::from_raw(*list.add(len)));
            len += 1;
        }
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(list, len + 1)));
    }
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller passes a live device, as C requires.
    unsafe { (&raw const (*device).name).cast() }
}

unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> __be64 {
    if device.is_null() { 0 } else { 0x0002_c903_00a1_b2c3_u64.to_be() }
}

pub(super) unsafe extern "C" fn open_device(_: *mut ibv_device) -> *mut ibv_context {
    let world = world();
    if let Some(null) = refuses(world.lies.open_device) {
        return null;
    }
    let mut verbs = verbs_context { sz: size_of::<verbs_context>(), ..verbs_context::default() };
    verbs.query_device_ex = Some(query_device_ex);
    verbs.query_port = Some(query_port_ex);
    verbs.create_cq_ex = Some(completion::create_cq_ex);
    verbs.create_qp_ex = Some(queue_pair::create_qp_ex);
    verbs.modify_cq = world.has("modify_cq").then_some(events::modify_cq as _);
    verbs.query_rt_values = world.has("query_rt_values").then_some(events::query_rt_values as _);
    verbs.context.async_fd = world.lies.async_fd.unwrap_or_else(events::async_fd);
    extras::install(&mut verbs);
    regions::install(&mut verbs);
    xrc::install(&mut verbs);
    if !world.lies.no_extended_verbs {
        verbs.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    }
    let device = new_device();
    verbs.context.device = device;
    let ops = &mut verbs.context.ops;
    ops.poll_cq = world.has("poll_cq").then_some(completion::poll_cq as _);
    ops.post_send = world.has("post_send").then_some(posting::post_send as _);
    ops.req_notify_cq = world.has("req_notify_cq").then_some(events::req_notify_cq as _);
    ops.post_srq_recv = world.has("post_srq_recv").then_some(objects::post_srq_recv as _);
    ops.post_recv = world.has("post_recv").then_some(posting::post_recv as _);
    world.born();
    let context = Box::into_raw(Box::new(Context { verbs, world, device }));
    // SAFETY: the context was made just now, and the pointer is valid for all of it.
    unsafe { &raw mut (*context).verbs.context }
}

pub(super) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller passes an open context, as C requires.
    let world = unsafe { world_of(context) };
    world.check(!world.cm.owns(context), "a context that librdmacm opened was closed");
    if !world.dies("context") {
        return world.lies.destroy;
    }
    let offset = offset_of!(Context, verbs) + offset_of!(verbs_context, context);
    // SAFETY: every context of this provider is inside a boxed `Context`, and its owner closes it
    // once.
    unsafe {
        let context = Box::from_raw(context.byte_sub(offset).cast::<Context>());
        drop(Box::from_raw(context.device));
    }
    0
}

unsafe extern "C" fn query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller passes an open context and a valid pointer, as C requires.
    unsafe {
        let lies = &world_of(context).lies;
        if lies.garbage_attributes {
            attr.write_bytes(0xff, 1);
        } else {
            (*attr).max_cqe = 1 << 20;
            (*attr).max_qp_wr = 1 << 14;
            (*attr).max_sge = 32;
            (*attr).max_srq_wr = 1 << 14;
            (*attr).device_cap_flags = ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0
                | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
            (*attr).max_srq_sge = 32;
            (*attr).phys_port_cnt = 1;
        }
        (*attr).vendor_id = lies.vendor_id;
        lies.query_device
    }
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    _: usize,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe {
        if let Some([khz, mask, _]) = world_of(context).lies.clock {
            (*attr).hca_core_clock = khz;
            (*attr).completion_timestamp_mask = mask;
        }
        // Atomic writes.
        (*attr).device_cap_flags_ex = 1 << 40;
        query_device(context, &raw mut (*attr).orig_attr)
    }
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the classic struct is the beginning of this one, and only fields up to `link_layer`
    // are written.
    unsafe { fill_port(context, port, attr.cast()) }
}

unsafe extern "C" fn query_port_ex(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    _: usize,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe { fill_port(context, port, attr) }
}

unsafe fn fill_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the caller passes an open context, and a pointer that is valid up to `link_layer`.
    unsafe {
        let lies = &world_of(context).lies;
        if port != 1 {
            return libc::EINVAL;
        }
        let (state, mtu, byte) = match lies.garbage_attributes {
            true => (0xdead, 0xbeef, 0xee),
            false => (4, 3, 0),
        };
        (*attr).state = ibv_port_state(state);
        (*attr).max_mtu = ibv_mtu(mtu);
        (*attr).active_mtu = ibv_mtu(mtu);
        (*attr).phys_state = byte;
        (*attr).active_width = byte;
        (*attr).active_speed = byte;
        (*attr).link_layer = if lies.garbage_attributes { byte } else { 2 };
        (*attr).gid_tbl_len = lies.gid_tbl_len.unwrap_or(4);
        lies.query_port
    }
}

const GID: ibv_gid = ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xac, 0x1e, 0x08, 0x18] };

unsafe extern "C" fn query_gid(_: *mut ibv_context, _: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    // SAFETY: the caller passes a valid pointer, as C requires.
    unsafe { gid.write(if index == 1 { GID } else { ibv_gid::default() }) };
    if index < 4 { 0 } else { -1 }
}

fn entry(index: u32) -> ibv_gid_entry {
    ibv_gid_entry { gid: GID, gid_index: index, port_num: 1, gid_type: 2, ndev_ifindex: 1 }
}

unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    _: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    _: u32,
    _: usize,
) -> c_int {
    // SAFETY: the caller passes an open context and a valid pointer, as C requires.
    unsafe {
        let world = world_of(context);
        to.write(entry(index));
        if world.lies.garbage_attributes {
            (*to).gid_type = 4711;
        }
        if index == 0 && world.lies.first_gid_entry_result != 0 {
            return world.lies.first_gid_entry_result;
        }
        world.lies.gid_entry_result
    }
}

unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    _: u32,
    _: usize,
) -> isize {
    // SAFETY: the caller passes an open context, and an array of this many entries.
    unsafe {
        let lies = &world_of(context).lies;
        if let Some(result) = lies.gid_table_result {
            return result;
        }
        if room > 0 {
            entries.write(entry(lies.gid_index.unwrap_or(1)));
        }
    }
    room.min(1) as isize
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller passes an open context, as C requires.
    let world = unsafe { world_of(context) };
    if let Some(null) = refuses(world.lies.alloc_pd) {
        return null;
    }
    world.born();
    Box::into_raw(Box::new(ibv_pd { context, handle: 0 }))
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller passes a live domain, as C requires.
    let world = unsafe { world_of((*pd).context) };
    if !world.dies("pd") {
        return world.lies.destroy;
    }
    world.goes(pd, "protection domain");
    world.was_imported(pd, false);
    // SAFETY: the domain was boxed, and its owner destroys it once.
    drop(unsafe { Box::from_raw(pd) });
    0
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a live domain, as C requires.
    let (context, world) = unsafe { ((*pd).context, world_of((*pd).context)) };
    let remote = access & (ibv_access_flags::IBV_ACCESS_REMOTE_READ.0 as c_int) != 0;
    let refused = world.lies.implicit_is_local && length == usize::MAX && remote;
    if let Some(null) = refuses(if refused { libc::EOPNOTSUPP } else { world.lies.reg_mr }) {
        return null;
    }
    world.born();
    let (lkey, rkey) = (world.number(), world.number());
    Box::into_raw(Box::new(ibv_mr { context, pd, addr, length, handle: 0, lkey, rkey }))
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: u64,
    access: std::ffi::c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe { reg_mr(pd, addr, length, access as c_int) }
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller passes a live region, as C requires.
    let world = unsafe { world_of((*mr).context) };
    if world.refused_deregistrations.fetch_sub(1, Relaxed) > 0 {
        world.destroyed.lock().unwrap().push("mr");
        return libc::EBUSY;
    }
    if !world.dies("mr") {
        return world.lies.destroy;
    }
    world.was_imported(mr, false);
    world.goes(mr, "memory region");
    // SAFETY: the region was boxed, and its owner destroys it once.
    drop(unsafe { Box::from_raw(mr) });
    0
}
