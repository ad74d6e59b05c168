//! Fake name resolution, and the list of devices.

use super::*;

pub(super) unsafe extern "C" fn resolve_addrinfo(
    id: *mut rdma_cm_id,
    _: *const c_char,
    _: *const c_char,
    _: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    if error != 0 {
        return fail(error);
    }
    world.cm.push(id.cast(), E::RDMA_CM_EVENT_ADDRINFO_RESOLVED, |_| {});
    0
}

pub(super) unsafe extern "C" fn query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (_, world, _inside, error) = unsafe { begin(id) };
    if error != 0 {
        return fail(error);
    }
    // SAFETY: the caller passes a valid pointer, as C requires.
    unsafe { info.write(new_addrinfo(&world, ptr::null())) };
    0
}

/// Two entries: one with all fields set, one empty.
pub(super) fn new_addrinfo(world: &FakeWorld, hints: *const rdma_addrinfo) -> *mut rdma_addrinfo {
    world.born();
    let mut first = rdma_addrinfo { ai_family: 4242, ai_port_space: 77, ..rdma_addrinfo::default() };
    if !hints.is_null() {
        // SAFETY: the caller passes valid hints, as C requires.
        unsafe { (first.ai_flags, first.ai_dst_len) = ((*hints).ai_flags, (*hints).ai_dst_len) };
    }
    first.ai_src_len = 16;
    let mut address = [0u8; 16];
    address[..8].copy_from_slice(&[2, 0, 0x12, 0x67, 192, 0, 2, 1]);
    first.ai_src_addr = Box::into_raw(Box::new(address)).cast();
    first.ai_dst_len = 0;
    first.ai_dst_canonname = c"peer.example".as_ptr().cast_mut();
    (first.ai_connect, first.ai_connect_len) = (c"data".as_ptr().cast_mut().cast(), 4);
    first.ai_next = Box::into_raw(Box::new(rdma_addrinfo::default()));
    Box::into_raw(Box::new(first))
}

pub(super) unsafe extern "C" fn getaddrinfo(
    _: *const c_char,
    _: *const c_char,
    hints: *const rdma_addrinfo,
    found: *mut *mut rdma_addrinfo,
) -> c_int {
    let world = world();
    let (result, errno) = world.lies.cm_getaddrinfo;
    if result != 0 {
        set_errno(errno);
        return result;
    }
    // SAFETY: the caller passes valid hints or null, as C requires.
    if let Some(hints) = unsafe { hints.as_ref() } {
        for (address, length) in
            [(hints.ai_src_addr, hints.ai_src_len), (hints.ai_dst_addr, hints.ai_dst_len)]
        {
            let is_whole = address.is_null() || length as usize >= size_of::<libc::sockaddr_in6>();
            world
                .check(is_whole, "librdmacm reads an address of IPv6 wherever the hints' family is not IPv4");
        }
    }
    // SAFETY: the caller passes a valid pointer, as C requires.
    unsafe { found.write(new_addrinfo(&world, hints)) };
    0
}

pub(super) unsafe extern "C" fn freeaddrinfo(list: *mut rdma_addrinfo) {
    world().live.fetch_sub(1, Relaxed);
    // SAFETY: the list was made by `new_addrinfo`, and is freed once.
    unsafe {
        let first = Box::from_raw(list);
        drop(Box::from_raw(first.ai_src_addr.cast::<[u8; 16]>()));
        drop(Box::from_raw(first.ai_next));
    }
}

pub(super) unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let world = world();
    if world.lies.cm_devices != 0 {
        set_errno(world.lies.cm_devices);
        return ptr::null_mut();
    }
    let context = world.cm.state().take_device();
    world.born();
    let mut list = vec![context];
    if world.lies.cm_two_devices {
        // SAFETY: the fake accepts any device pointer.
        list.push(unsafe { super::super::device::open_device(ptr::null_mut()) });
    }
    // SAFETY: the caller passes a valid pointer, as C requires.
    unsafe { count.write(list.len() as c_int) };
    list.resize(3, ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

pub(super) unsafe extern "C" fn free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the list was made by the function above, and its context is open.
    let (world, list) = unsafe {
        (super::super::device::world_of(*list), Box::from_raw(list.cast::<[*mut ibv_context; 3]>()))
    };
    world.live.fetch_sub(1, Relaxed);
    world.check(world.cm.owns(list[0]), "a list of devices was freed twice");
    let closing = world.cm.state().put_device();
    if !list[1].is_null() {
        world.check(
            closing.is_none(),
            "librdmacm compares a device that it has freed with the rest of the list",
        );
        close(Some(list[1].addr()));
    }
    close(closing);
}
