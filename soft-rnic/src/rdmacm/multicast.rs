//! Multicast groups: `rdma_join_multicast`, `rdma_join_multicast_ex` and `rdma_leave_multicast`.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libc::sockaddr;
use rdma_mummy_sys::types::*;

use super::id::{Acknowledged, id_of};
use super::{check, event, finish, lib, socket_address};
use crate::cm::{EventDetails, JoinNumber};

/// An id's membership of a group. Its events name it by its address. Like an id, it lives until its
/// taken events are acknowledged.
pub(super) struct Membership {
    /// The context that the program gave to `rdma_join_multicast`.
    pub(super) context: *mut c_void,
    group: SocketAddr,
    is_send_only: bool,
    number: OnceLock<JoinNumber>,
    /// The group that the queue pair is attached to.
    attached: Mutex<Option<(ibv_gid, u16)>>,
    pub(super) acknowledged: Acknowledged,
}

// SAFETY: the library only hands the program's context pointer back, and never dereferences it.
unsafe impl Send for Membership {}
// SAFETY: the library only hands the program's context pointer back, and never dereferences it.
unsafe impl Sync for Membership {}

/// The membership that an event names.
///
/// # Safety
///
/// - The event was taken, and is not acknowledged.
pub(super) unsafe fn of_uid(uid: u64) -> Arc<Membership> {
    let membership: *const Membership = std::ptr::with_exposed_provenance(uid as usize);
    // SAFETY: the address comes from an `Arc`. `leave` and `destroy_id` keep that `Arc` until the
    // event is acknowledged.
    unsafe {
        Arc::increment_strong_count(membership);
        Arc::from_raw(membership)
    }
}

/// Attaches the id's queue pair to the group, unless the membership is send-only.
///
/// # Safety
///
/// - `id` is live.
pub(super) unsafe fn joined(
    id: *mut rdma_cm_id,
    membership: &Membership,
    details: &EventDetails,
) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `id` is live.
    let qp = unsafe { (*id).qp };
    let EventDetails::Datagram { address, .. } = details else { return Ok(()) };
    if qp.is_null() || membership.is_send_only {
        return Ok(());
    }
    let (group, lid) = (address.ah_attr.grh.dgid, address.ah_attr.dlid);
    // SAFETY: the id's queue pair is live while the id is.
    check(unsafe { (lib().ibv_attach_mcast)(qp, &raw const group, lid) })?;
    *membership.attached.lock().unwrap_or_else(PoisonError::into_inner) = Some((group, lid));
    Ok(())
}

/// # Safety
///
/// - `id` is live, and `group` readable or null.
unsafe fn join(
    id: *mut rdma_cm_id,
    group: *mut sockaddr,
    is_send_only: bool,
    context: *mut c_void,
) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `id` is live, and `group` readable or null.
    unsafe {
        let (state, group) = (id_of(id), socket_address::read(group)?);
        let membership = Arc::new(Membership {
            context,
            group,
            is_send_only,
            number: OnceLock::new(),
            attached: Mutex::new(None),
            acknowledged: Acknowledged::default(),
        });
        let uid = Arc::as_ptr(&membership).expose_provenance() as u64;
        // Push the membership before its first event can arrive.
        state.settings().memberships.push(Arc::clone(&membership));
        match state.manager.join(state.number(), group, uid) {
            Ok(number) => {
                let _ = membership.number.set(number); // It was empty.
            }
            Err(error) => {
                state.settings().memberships.retain(|known| !Arc::ptr_eq(known, &membership));
                return Err(error);
            }
        }
        event::complete(id)
    }
}

pub(super) unsafe extern "C" fn join_multicast(
    id: *mut rdma_cm_id,
    group: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: `rdma_join_multicast` requires that `id` is live, and `group` readable or null.
    finish(unsafe { join(id, group, false, context) })
}

pub(super) unsafe extern "C" fn join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    use rdma_cm_join_mc_attr_mask as Mask;
    use rdma_cm_mc_join_flags as Flags;
    // SAFETY: `rdma_join_multicast_ex` requires valid attributes.
    let rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr } = unsafe { attr.read() };
    if comp_mask >= Mask::RDMA_CM_JOIN_MC_ATTR_RESERVED.0 {
        return finish(Err(libc::ENOTSUP));
    }
    let needed = Mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS.0 | Mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS.0;
    if comp_mask & needed != needed || join_flags >= Flags::RDMA_MC_JOIN_FLAG_RESERVED.0 {
        return finish(Err(libc::EINVAL));
    }
    let is_send_only = join_flags == Flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0;
    // SAFETY: `rdma_join_multicast_ex` requires that `id` is live, and the address readable or
    // null.
    finish(unsafe { join(id, addr, is_send_only, context) })
}

/// # Safety
///
/// - `id` is live, and `group` readable or null.
unsafe fn leave(id: *mut rdma_cm_id, group: *mut sockaddr) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `id` is live, and `group` readable or null.
    let (state, group) = unsafe { (id_of(id), socket_address::read(group)?) };
    let (membership, number) = {
        let mut settings = state.settings();
        let left = settings.memberships.iter().enumerate().find_map(|(place, membership)| {
            let number = membership.number.get().filter(|_| membership.group == group)?;
            Some((place, *number))
        });
        let (place, number) = left.ok_or(libc::EADDRNOTAVAIL)?;
        (settings.memberships.remove(place), number)
    };
    // SAFETY: the caller guarantees that `id` is live.
    let qp = unsafe { (*id).qp };
    let attached = membership.attached.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((group, lid)) = attached.filter(|_| !qp.is_null()) {
        // SAFETY: the id's queue pair is live while the id is.
        let error = unsafe { (lib().ibv_detach_mcast)(qp, &raw const group, lid) };
        if error != 0 {
            log::debug!("the queue pair could not be detached from the multicast group: error {error}");
        }
    }
    let taken = state.manager.leave(number);
    if let Ok(taken) = taken {
        membership.acknowledged.wait(taken);
    } else {
        // Events of the membership may still arrive, so it stays as long as the id.
        state.settings().memberships.push(membership);
    }
    taken.map(drop)
}

pub(super) unsafe extern "C" fn leave_multicast(id: *mut rdma_cm_id, group: *mut sockaddr) -> c_int {
    // SAFETY: `rdma_leave_multicast` requires that `id` is live, and `group` readable or null.
    finish(unsafe { leave(id, group) })
}
