//! Fake events: taken, acknowledged, and written by the program.

use super::*;

pub(super) unsafe extern "C" fn get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: the caller passes a live channel, as C requires.
    let (world, fd) = unsafe { (Arc::clone(&(*channel.cast::<Channel>()).world), (*channel).fd) };
    let _inside = Inside::enter(&world, channel);
    if world.lies.cm_get_event != 0 {
        return fail(world.lies.cm_get_event);
    }
    let mut state = world.cm.state();
    let Some(next) = state.channels.get_mut(&channel.addr()).and_then(|channel| channel.queue.pop_front())
    else {
        return fail(libc::EAGAIN);
    };
    unring(fd);
    let owner: *mut Id = to_pointer(next.id);
    if let Some(membership) = next.membership {
        let lives = state.ids[&next.id].groups.iter().any(|(_, known)| *known == membership);
        world.check(lives, "an event of a multicast group that was left leads to freed memory");
    }
    let is_request = next.kind == E::RDMA_CM_EVENT_CONNECT_REQUEST.0;
    // SAFETY: events of destroyed identifiers are discarded, so this one is alive.
    let (mut c, datagram) = unsafe {
        if next.kind == E::RDMA_CM_EVENT_ADDR_RESOLVED.0 && next.status == 0 {
            state.with_device(owner);
        }
        let datagram = (*owner).c.qp_type == ibv_qp_type::IBV_QPT_UD;
        (rdma_cm_event { id: owner.cast(), ..rdma_cm_event::default() }, datagram)
    };
    if is_request {
        // SAFETY: the listener is alive for the same reason. The new identifier inherits its
        // context.
        let inherited = unsafe { (*owner).c };
        let template = rdma_cm_id { verbs: ptr::null_mut(), ..inherited };
        let new = new_id(&world, &mut state, template);
        state.with_device(new);
        let new_state = state.ids.get_mut(&new.addr()).unwrap();
        (new_state.requested, new_state.peer) = (true, next.from);
        if let Some(from) = next.from.and_then(|from| state.ids.get_mut(&from)) {
            from.peer = Some(new.addr());
        }
        (c.id, c.listen_id) = (new.cast(), owner.cast());
    }
    (c.event, c.status) = (rdma_cm_event_type(next.kind), next.status);
    state.ids.get_mut(&owner.addr()).unwrap().reported += 1;
    let mut data = [0; 256];
    data[..next.data.len()].copy_from_slice(&next.data);
    let made = Box::into_raw(Box::new(Event { c, data, world: Arc::clone(&world) }));
    let length = next.data.len() as u8;
    // SAFETY: the event was made just now.
    unsafe {
        let private_data: *const c_void =
            if next.null_data { ptr::null() } else { (&raw const (*made).data).cast() };
        let v = next.values;
        if let Some(argument) = next.argument {
            // In the field for private data: a number that is not a pointer.
            (*made).c.param.ud.private_data = ptr::without_provenance(argument as usize);
            (*made).c.param.ud.private_data_len = 255;
            (*made).c.param.ud.ah_attr.is_global = 1;
            (*made).c.param.ud.ah_attr.grh.dgid.raw = [0xff; 16];
            ((*made).c.param.ud.qp_num, (*made).c.param.ud.qkey) = (0xff_ffff, next.qkey);
        } else if datagram {
            (*made).c.param.ud.private_data = private_data;
            (*made).c.param.ud.private_data_len = length;
            (*made).c.param.ud.ah_attr.port_num = 1;
            ((*made).c.param.ud.qp_num, (*made).c.param.ud.qkey) = (v.qp_num, next.qkey);
        } else {
            (*made).c.param.conn = rdma_conn_param {
                private_data,
                private_data_len: length,
                responder_resources: v.responder_resources,
                initiator_depth: v.initiator_depth,
                flow_control: v.flow_control,
                retry_count: v.retry_count,
                rnr_retry_count: v.rnr_retry_count,
                srq: v.srq,
                qp_num: v.qp_num,
            };
        }
        state.events.insert(made.expose_provenance(), owner.addr());
        event.write(if world.lies.cm_null_event { ptr::null_mut() } else { made.cast() });
    }
    if world.lies.cm_null_event {
        state.events.remove(&made.addr());
        state.ids.get_mut(&owner.addr()).unwrap().completed += 1;
        // SAFETY: the event was boxed just now, and nobody else refers to it.
        drop(unsafe { Box::from_raw(made) });
    }
    0
}

pub(super) unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    let event: *mut Event = event.cast();
    // SAFETY: the caller passes a live event, as C requires.
    let world = unsafe { Arc::clone(&(*event).world) };
    let mut state = world.cm.state();
    match state.events.remove(&event.addr()) {
        None => world.violation("an event was acknowledged twice"),
        Some(owner) => {
            if let Some(owner) = state.ids.get_mut(&owner) {
                owner.completed += 1;
            }
            world.cm.changed.notify_all();
            // SAFETY: the event was boxed, and the check above ensures that it is acknowledged
            // once.
            drop(unsafe { Box::from_raw(event) });
        }
    }
    drop(state);
    if world.lies.cm_ack == 0 { 0 } else { fail(world.lies.cm_ack) }
}

pub(super) unsafe extern "C" fn write_cm_event(
    id: *mut rdma_cm_id,
    kind: rdma_cm_event_type,
    status: c_int,
    argument: u64,
) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    if error != 0 {
        return fail(error);
    }
    world.cm.push(id.cast(), kind, |event| (event.status, event.argument) = (status, Some(argument)));
    0
}
