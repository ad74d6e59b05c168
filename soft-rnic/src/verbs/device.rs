//! Verbs of the device list, and queries of a device that is not open.

use std::ffi::{c_char, c_int};
use std::ptr;

use rdma_mummy_sys::types::*;

use super::null;
use crate::objects::device::Device;
use crate::objects::setup::ProcessSetup;

/// The device of a pointer; `None` if it is not a device of this process.
pub(super) fn device_of(object: *mut ibv_device) -> Option<&'static Device> {
    ProcessSetup::get().ok()?.devices.iter().find(|device| device.object() == object)
}

pub(super) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let setup = match ProcessSetup::get() {
        Ok(setup) => setup,
        Err(error) => {
            log::error!("{error}");
            return null(libc::EINVAL);
        }
    };
    if !count.is_null() {
        // SAFETY: `ibv_get_device_list` requires a null or valid pointer for the count.
        unsafe { count.write(setup.devices.len() as c_int) };
    }
    let list: Box<[_]> = setup.devices.iter().map(Device::object).chain([ptr::null_mut()]).collect();
    Box::into_raw(list).cast()
}

pub(super) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    // The number of devices never changes, so the list has this length.
    let length = ProcessSetup::get().map_or(0, |setup| setup.devices.len()) + 1;
    // SAFETY: `get_device_list` boxed the list with this length.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, length)) });
}

pub(super) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    match device_of(device) {
        // SAFETY: the device lives as long as the process.
        Some(device) => unsafe { (&raw const (*device.object()).name).cast() },
        None => null(libc::EINVAL),
    }
}

pub(super) unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> __be64 {
    device_of(device).map_or(0, |device| device.guid.to_be())
}

pub(super) unsafe extern "C" fn get_device_index(device: *mut ibv_device) -> c_int {
    device_of(device).map_or(-1, |device| device.number.into())
}

pub(super) unsafe extern "C" fn fork_init() -> c_int {
    0
}

/// The device pins no page, so a fork copies pages as it does without a device.
pub(super) unsafe extern "C" fn is_fork_initialized() -> ibv_fork_status {
    ibv_fork_status::IBV_FORK_UNNEEDED
}
