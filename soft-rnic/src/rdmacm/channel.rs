//! Event channels.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::types::rdma_event_channel;

use crate::cm::{CmEventChannel, ConnectionManager};
use crate::objects::c_object::CObject;
use crate::platform::errno;

/// What belongs to an event channel.
pub(super) struct ChannelState {
    pub(super) manager: Arc<ConnectionManager>,
    pub(super) channel: Arc<CmEventChannel>,
}

type ChannelObject = CObject<rdma_event_channel, ChannelState>;

/// # Safety
///
/// - `channel` is live for as long as the reference is used.
pub(super) unsafe fn channel_of<'a>(channel: *mut rdma_event_channel) -> &'a ChannelState {
    // SAFETY: `channel` is live for as long as the reference is used, by the contract of
    // `channel_of`; every channel comes from `create`.
    unsafe { ChannelObject::state(channel) }
}

/// A new channel, which lives until [`destroy_event_channel`].
pub(super) fn create() -> Result<*mut rdma_event_channel, c_int> {
    let refused = |error| errno::refused("rdma_create_event_channel", &error);
    let manager = ConnectionManager::acquire().map_err(refused)?;
    let channel = manager.channel().map_err(refused)?;
    let fd = channel.descriptor();
    Ok(ChannelObject::create(rdma_event_channel { fd }, ChannelState { manager, channel }))
}

pub(super) unsafe extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    create().unwrap_or_else(|error| {
        errno::set(error);
        ptr::null_mut()
    })
}

pub(super) unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the caller's channel is live, and not used after this.
    drop(unsafe { ChannelObject::destroy(channel) });
}
