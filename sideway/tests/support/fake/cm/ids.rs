//! Fake channels and identifiers: creation, migration and destruction.

use super::*;

pub(super) unsafe extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    let world = world();
    if world.lies.cm_channel != 0 {
        set_errno(world.lies.cm_channel);
        return ptr::null_mut();
    }
    world.born();
    let fd = world.lies.cm_channel_fd.unwrap_or_else(new_descriptor);
    let channel =
        Box::into_raw(Box::new(Channel { c: rdma_event_channel { fd }, world: Arc::clone(&world) }));
    world.cm.state().channels.insert(channel.expose_provenance(), ChannelState::default());
    channel.cast()
}

pub(super) unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    let channel: *mut Channel = channel.cast();
    // SAFETY: the caller passes a live channel, as C requires.
    let (world, fd) = unsafe { (Arc::clone(&(*channel).world), (*channel).c.fd) };
    {
        let mut state = world.cm.state();
        // SAFETY: all listed identifiers are alive.
        let left = state.ids.keys().any(|id| unsafe { (*to_pointer::<Id>(*id)).c.channel == channel.cast() });
        world.check(!left || world.lies.destroy != 0, "a channel was destroyed before its identifiers");
        world.check(state.channels.remove(&channel.addr()).is_some(), "a channel was destroyed twice");
    }
    world.destroyed.lock().unwrap().push("event channel");
    world.live.fetch_sub(1, Relaxed);
    // SAFETY: the channel was boxed, and its owner destroys it once.
    unsafe {
        drop(Box::from_raw(channel));
        libc::close(fd);
    }
}

pub(super) fn new_id(world: &Arc<FakeWorld>, state: &mut State, c: rdma_cm_id) -> *mut Id {
    world.born();
    let id = Box::into_raw(Box::new(Id { c, world: Arc::clone(world) }));
    state.ids.insert(id.expose_provenance(), IdState::default());
    id
}

pub(super) unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    // SAFETY: the caller passes a live channel, as C requires.
    let world = unsafe { Arc::clone(&(*channel.cast::<Channel>()).world) };
    let _inside = Inside::enter(&world, channel);
    if world.lies.cm_create != 0 {
        return fail(world.lies.cm_create);
    }
    let datagram = ps == rdma_port_space::RDMA_PS_UDP || ps == rdma_port_space::RDMA_PS_IPOIB;
    let qp_type = if datagram { ibv_qp_type::IBV_QPT_UD } else { ibv_qp_type::IBV_QPT_RC };
    let c = rdma_cm_id { channel, context, ps, qp_type, ..rdma_cm_id::default() };
    let made = new_id(&world, &mut world.cm.state(), c);
    // SAFETY: the caller passes a valid pointer, as C requires.
    unsafe { id.write(made.cast()) };
    0
}

pub(super) unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    let id: *mut Id = id.cast();
    let address = id.addr();
    // SAFETY: the caller passes a live identifier, as C requires.
    let (world, channel) = unsafe { (Arc::clone(&(*id).world), (*id).c.channel) };
    if !world.dies("cm id") {
        return fail(world.lies.destroy);
    }
    let mut state = world.cm.state();
    // Events that were not taken are discarded.
    let mut forgotten = Vec::new();
    if let Some(channel) = state.channels.get_mut(&channel.addr()) {
        forgotten = take_events(&mut channel.queue, address);
    }
    let none = rdma_conn_param_values::default();
    for request in forgotten.into_iter().filter(|event| event.kind == E::RDMA_CM_EVENT_CONNECT_REQUEST.0) {
        state.tell(request.from, E::RDMA_CM_EVENT_REJECTED, 28, &[], none);
    }
    let waits = |state: &mut State| state.ids.get(&address).is_some_and(|id| id.completed < id.reported);
    let (mut state, late) = world
        .cm
        .changed
        .wait_timeout_while(state, Duration::from_secs(10), waits)
        .unwrap_or_else(PoisonError::into_inner);
    world.check(!late.timed_out(), "an identifier was destroyed with an event that nobody acknowledges");
    let Some(gone) = state.ids.remove(&address) else {
        world.violation("an identifier was destroyed twice");
        return 0;
    };
    world.check(gone.groups.is_empty(), "an identifier was destroyed in a multicast group");
    if let Some(peer) = gone.peer {
        let kind = if gone.requested { E::RDMA_CM_EVENT_REJECTED } else { E::RDMA_CM_EVENT_DISCONNECTED };
        state.tell(Some(peer), kind, if gone.requested { 28 } else { 0 }, &[], none);
        if let Some(peer) = state.ids.get_mut(&peer) {
            (peer.peer, peer.parted) = (None, true);
        }
    }
    let closing = gone.has_device.then(|| state.put_device()).flatten();
    drop(state);
    close(closing);
    // SAFETY: the identifier was boxed, and its owner destroys it once.
    drop(unsafe { Box::from_raw(id) });
    0
}

/// Removes the events of an identifier from a queue.
pub(super) fn take_events(queue: &mut VecDeque<Pending>, id: usize) -> Vec<Pending> {
    let (taken, left): (Vec<_>, Vec<_>) = std::mem::take(queue).into_iter().partition(|event| event.id == id);
    queue.extend(left);
    taken
}

pub(super) unsafe extern "C" fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, inside, error) = unsafe { begin(id) };
    let _there = Inside::enter(&world, channel);
    if error != 0 {
        return fail(error);
    }
    let mut state = world.cm.state();
    let mine = &state.ids[&id.addr()];
    // The library would wait here, while it holds two locks.
    world
        .check(mine.completed == mine.reported, "an identifier moves with an event that is not acknowledged");
    let moves = take_events(&mut state.channels.get_mut(&inside.1).unwrap().queue, id.addr());
    // SAFETY: the identifier is alive, and `begin` excludes other calls for it.
    unsafe { (*id).c.channel = channel };
    moves.into_iter().for_each(|event| state.push(event));
    0
}
