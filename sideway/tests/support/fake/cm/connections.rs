//! The life of a fake identifier: addresses, routes, connecting and disconnecting.

use super::*;

pub(super) unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    // SAFETY: the caller passes a valid address, as C requires.
    let bytes = unsafe { note_address(&world, address) };
    if error != 0 {
        return fail(error);
    }
    let mut state = world.cm.state();
    let port = if port_of(&bytes) == 0 { 40_000 } else { port_of(&bytes) };
    state.ids.get_mut(&id.addr()).unwrap().port = port;
    // SAFETY: the identifier is alive, and `begin` excludes other calls for it.
    unsafe {
        (*id).c.route.addr.__bindgen_anon_1.src_storage = sockaddr_storage_of(&bytes, port);
        if bytes[4..8] != [0; 4] {
            state.with_device(id);
        }
    }
    0
}

pub(super) fn sockaddr_storage_of(bytes: &[u8; 32], port: u16) -> sockaddr_storage {
    // SAFETY: all byte values are valid for the struct.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let (to, port) = ((&raw mut storage).cast::<u8>(), port.to_be_bytes());
    // SAFETY: the buffer is a whole `sockaddr_storage`, and the address is not longer.
    unsafe {
        bytes.as_ptr().copy_to_nonoverlapping(to, bytes.len());
        port.as_ptr().copy_to_nonoverlapping(to.add(2), port.len());
    }
    storage
}

pub(super) unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    _timeout: c_int,
) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    // SAFETY: the caller passes valid addresses, as C requires.
    let (source, destination) = unsafe {
        let source = (!source.is_null()).then(|| note_address(&world, source));
        (source, note_address(&world, destination))
    };
    if error != 0 {
        return fail(error);
    }
    // SAFETY: the identifier is alive, and `begin` excludes other calls for it.
    unsafe {
        let source = source.unwrap_or(destination);
        (*id).c.route.addr.__bindgen_anon_1.src_storage = sockaddr_storage_of(&source, 50_000);
        (*id).c.route.addr.__bindgen_anon_2.dst_storage =
            sockaddr_storage_of(&destination, port_of(&destination));
    }
    if !world.lies.cm_silent {
        world.cm.push(id.cast(), E::RDMA_CM_EVENT_ADDR_RESOLVED, |_| {});
    }
    0
}

pub(super) unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, _timeout: c_int) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    let has_device = world.cm.state().ids[&id.addr()].has_device;
    world.check(has_device, "rdma_resolve_route of an identifier without a device crashes");
    if error != 0 {
        return fail(error);
    }
    if !world.lies.cm_silent {
        world.cm.push(id.cast(), E::RDMA_CM_EVENT_ROUTE_RESOLVED, |_| {});
    }
    0
}

pub(super) unsafe extern "C" fn listen(id: *mut rdma_cm_id, _backlog: c_int) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    if error != 0 {
        return fail(error);
    }
    world.cm.state().ids.get_mut(&id.addr()).unwrap().listens = true;
    0
}

/// # Safety
///
/// The parameters must be valid.
pub(super) unsafe fn note_parameters(
    world: &FakeWorld,
    from: *const rdma_conn_param,
) -> (rdma_conn_param_values, Vec<u8>) {
    // SAFETY: the caller keeps the contract of the C function.
    let (p, data) = unsafe {
        let p = *from;
        let length = usize::from(p.private_data_len);
        let data = match p.private_data.is_null() {
            true => Vec::new(),
            false => std::slice::from_raw_parts(p.private_data.cast::<u8>(), length).to_vec(),
        };
        (p, data)
    };
    let values = rdma_conn_param_values {
        qp_num: p.qp_num,
        responder_resources: p.responder_resources,
        initiator_depth: p.initiator_depth,
        flow_control: p.flow_control,
        retry_count: p.retry_count,
        rnr_retry_count: p.rnr_retry_count,
        srq: p.srq,
    };
    world.cm.parameters.lock().unwrap().push((values, data.clone()));
    (values, data)
}

pub(super) unsafe extern "C" fn connect(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    // SAFETY: the caller passes valid parameters, as C requires.
    let (values, data) = unsafe { note_parameters(&world, parameters) };
    let mut state = world.cm.state();
    world.check(state.ids[&id.addr()].has_device, "rdma_connect of an identifier without a device crashes");
    if error != 0 {
        return fail(error);
    }
    // SAFETY: the caller passes a live identifier, as C requires.
    let (port, datagram) = unsafe {
        let to = (*id).c.route.addr.__bindgen_anon_2.dst_sin.sin_port;
        (u16::from_be(to), (*id).c.qp_type == ibv_qp_type::IBV_QPT_UD)
    };
    if world.lies.cm_silent {
        return 0;
    }
    let listener = state.ids.iter().find(|(_, other)| other.listens && other.port == port);
    match listener.map(|(address, _)| *address) {
        None if datagram => state.tell(Some(id.addr()), E::RDMA_CM_EVENT_UNREACHABLE, 1, &[], values),
        None => state.tell(Some(id.addr()), E::RDMA_CM_EVENT_REJECTED, 8, &[], values),
        Some(listener) => state.push(Pending {
            id: listener,
            kind: E::RDMA_CM_EVENT_CONNECT_REQUEST.0,
            data,
            values,
            from: Some(id.addr()),
            ..Pending::default()
        }),
    }
    0
}

pub(super) unsafe extern "C" fn accept(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    // SAFETY: the caller passes valid parameters, as C requires.
    let (values, data) = unsafe { note_parameters(&world, parameters) };
    let mut state = world.cm.state();
    world.check(state.ids[&id.addr()].has_device, "rdma_accept of an identifier without a device crashes");
    if error != 0 {
        return fail(error);
    }
    // SAFETY: the caller passes a live identifier, as C requires.
    let datagram = unsafe { (*id).c.qp_type } == ibv_qp_type::IBV_QPT_UD;
    let mine = state.ids.get_mut(&id.addr()).unwrap();
    if !mine.requested {
        return fail(libc::EINVAL);
    }
    mine.requested = false;
    let peer = mine.peer;
    let kind = if datagram { E::RDMA_CM_EVENT_ESTABLISHED } else { E::RDMA_CM_EVENT_CONNECT_RESPONSE };
    state.tell(peer, kind, 0, &data, values);
    0
}

pub(super) unsafe extern "C" fn establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    let mut state = world.cm.state();
    match (error, state.ids[&id.addr()].peer) {
        (0, None) => fail(libc::EINVAL),
        (0, peer) => {
            state.tell(peer, E::RDMA_CM_EVENT_ESTABLISHED, 0, &[], rdma_conn_param_values::default());
            0
        }
        (error, _) => fail(error),
    }
}

pub(super) unsafe extern "C" fn reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    // SAFETY: the caller's data has this length, as C requires.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length.into()) };
    let mut state = world.cm.state();
    let mine = state.ids.get_mut(&id.addr()).unwrap();
    if error != 0 || !mine.requested {
        return fail(if error == 0 { libc::EINVAL } else { error });
    }
    mine.requested = false;
    let peer = mine.peer.take();
    state.tell(peer, E::RDMA_CM_EVENT_REJECTED, 28, data, rdma_conn_param_values::default());
    0
}

pub(super) unsafe extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    let mut state = world.cm.state();
    // SAFETY: the caller passes a live identifier, as C requires.
    let datagram = unsafe { (*id).c.qp_type } == ibv_qp_type::IBV_QPT_UD;
    let own = state.ids.get_mut(&id.addr()).unwrap();
    if error == 0 && (own.parted || datagram && own.peer.is_some()) {
        return 0;
    }
    let Some(peer) = own.peer.take().filter(|_| error == 0) else {
        return fail(if error == 0 { libc::EINVAL } else { error });
    };
    own.parted = true;
    if let Some(peer) = state.ids.get_mut(&peer) {
        (peer.peer, peer.parted) = (None, true);
    }
    world.cm.disconnects.fetch_add(1, Relaxed);
    if world.lies.cm_no_goodbye {
        return 0;
    }
    for end in [peer, id.addr()] {
        let none = rdma_conn_param_values::default();
        state.tell(Some(end), E::RDMA_CM_EVENT_DISCONNECTED, 0, &[], none);
    }
    0
}

pub(super) unsafe extern "C" fn notify(id: *mut rdma_cm_id, _: ibv_event_type) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (_, _, _inside, error) = unsafe { begin(id) };
    if error == 0 { 0 } else { fail(error) }
}

pub(super) unsafe extern "C" fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (_, world, _inside, error) = unsafe { begin(id) };
    // SAFETY: the caller's value has this length, as C requires.
    let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), length) };
    world.cm.options.lock().unwrap().push((level, name, value.to_vec()));
    if error == 0 { 0 } else { fail(error) }
}

pub(super) unsafe extern "C" fn init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (_, _, _inside, error) = unsafe { begin(id) };
    if error != 0 {
        return fail(error);
    }
    // SAFETY: the caller passes valid pointers, as C requires.
    unsafe {
        (*attr).port_num = 1;
        // Includes bits that only the kernel uses.
        mask.write(
            (ibv_qp_attr_mask::IBV_QP_STATE.0 | ibv_qp_attr_mask::IBV_QP_PORT.0 | 0x01e0_0000) as c_int,
        );
    }
    0
}

pub(super) unsafe extern "C" fn ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (_, _, _inside, error) = unsafe { begin(id) };
    // SAFETY: the caller passes a valid pointer, as C requires.
    unsafe { *ece = ibv_ece { vendor_id: 1, options: 2, comp_mask: 0 } };
    if error == 0 { 0 } else { fail(error) }
}
