//! Importing a device by its command descriptor. The modules of domains, regions and device memory
//! import those.
//!
//! Contexts with the same command descriptor are one context with several C parts. They share
//! objects, limits and events, and the context ends with the last of them. A descriptor from
//! another process is refused, because the memory that the other process registers cannot be local
//! memory of this one.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::context::{self, context_of};
use super::null;
use crate::faults::Call;
use crate::objects::rnic::Rnic;
use crate::platform::{command, errno};

pub(super) unsafe extern "C" fn import_device(descriptor: c_int) -> *mut ibv_context {
    let identity = match command::identify(descriptor) {
        Ok(identity) => identity,
        Err(error) => return null(errno::of(&error)),
    };
    let open = Rnic::current().map(|rnic| rnic.contexts()).unwrap_or_default();
    let Some(state) = open.into_iter().find(|context| context.command().identity() == identity) else {
        log::warn!(
            "descriptor {descriptor} is of a device that another process has opened, or that was closed: its memory \
             cannot be shared by importing it"
        );
        return null(libc::EOPNOTSUPP);
    };
    if let Err(error) = state.check_process().and_then(|()| state.admit(Call::ImportDevice)) {
        return null(error);
    }
    state.open_again();
    let handle = context::enter(&state, descriptor);
    debug_assert!({
        // SAFETY: `enter` has just made the C part.
        let again = unsafe { context_of(handle) };
        Arc::ptr_eq(&again, &state)
    });
    handle
}
