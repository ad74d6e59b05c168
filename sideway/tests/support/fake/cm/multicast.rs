//! Fake multicast groups.

use super::*;

pub(super) unsafe extern "C" fn join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes a live identifier, as C requires.
    let (id, world, _inside, error) = unsafe { begin(id) };
    // SAFETY: the caller passes valid attributes with a valid address, as C requires.
    let group = unsafe { note_address(&world, (*attr).addr) };
    if error != 0 {
        return fail(error);
    }
    let mut key = [0; 8];
    key.copy_from_slice(&group[..8]);
    let membership = {
        let mut state = world.cm.state();
        state.memberships += 1;
        let membership = state.memberships;
        state.ids.get_mut(&id.addr()).unwrap().groups.push((key, membership));
        membership
    };
    world.cm.push(id.cast(), E::RDMA_CM_EVENT_MULTICAST_JOIN, |event| {
        (event.argument, event.qkey) = (Some(context.addr() as u64), 0x1234);
        event.membership = Some(membership);
    });
    0
}

pub(super) unsafe extern "C" fn leave_multicast(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    let id: *mut Id = id.cast();
    // SAFETY: the caller passes a live identifier and a valid address, as C requires.
    let (world, group) = unsafe { (Arc::clone(&(*id).world), note_address(&(*id).world, address)) };
    let mut state = world.cm.state();
    let groups = &mut state.ids.get_mut(&id.addr()).unwrap().groups;
    let Some(index) = groups.iter().position(|(key, _)| *key == group[..8]) else {
        return fail(libc::EADDRNOTAVAIL);
    };
    // The membership's memory is freed, even if the kernel fails. One release also discards pending
    // events.
    groups.swap_remove(index);
    if world.lies.cm_leave == 0 { 0 } else { fail(world.lies.cm_leave) }
}
