//! Shared setup for tests of the device.

use std::ffi::c_int;
use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Verbs, verbs};

use crate::Config;

/// The table of functions, with two devices of two ports in a fabric without other processes. The
/// time limits are the defaults, because deregistering waits for the transfers of all tests, which
/// a busy machine may delay.
pub(crate) fn table() -> &'static Verbs {
    let mut config = Config { devices: 2, ports: 2, ..Config::default() };
    config.fabric = format!("unit-tests-{}", std::process::id());
    crate::provider_with(config).expect("all tests of a process use this configuration").verbs()
}

/// The `errno` of this thread.
pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A pointer that goes to another thread.
#[derive(Clone, Copy)]
pub(crate) struct SendPtr<T>(*mut T);

// SAFETY: the receiving thread must justify each use of the pointer.
unsafe impl<T> Send for SendPtr<T> {}

impl<T> SendPtr<T> {
    pub(crate) fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}

/// An open device, closed on drop.
pub(crate) struct OpenedDevice(pub(crate) *mut ibv_context);

impl OpenedDevice {
    pub(crate) fn new(device: usize) -> Self {
        let lib = table();
        let mut count = 0;
        // SAFETY: the list has as many devices as its length says, and is freed once.
        unsafe {
            let list = verbs::ibv_get_device_list(lib, &raw mut count);
            assert!(device < count as usize);
            let context = (lib.ibv_open_device)(*list.add(device));
            (lib.ibv_free_device_list)(list);
            assert_ne!(context, ptr::null_mut());
            Self(context)
        }
    }

    pub(crate) fn pd(&self) -> *mut ibv_pd {
        // SAFETY: the context is open.
        let pd = unsafe { (table().ibv_alloc_pd)(self.0) };
        assert_ne!(pd, ptr::null_mut());
        pd
    }

    pub(crate) fn cq(&self, cqe: c_int, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
        // SAFETY: the context is open, and the channel null or live.
        let cq = unsafe { (table().ibv_create_cq)(self.0, cqe, ptr::null_mut(), channel, 0) };
        assert_ne!(cq, ptr::null_mut());
        cq
    }
}

impl Drop for OpenedDevice {
    fn drop(&mut self) {
        // SAFETY: `new` opened it, and it is closed once.
        assert_eq!(unsafe { (table().ibv_close_device)(self.0) }, 0);
    }
}
