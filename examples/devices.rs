//! Finding devices.

use sideway::ibverbs::device::{Device, DeviceList, FindDeviceError};

/// The device of this name, or the first there is.
///
/// # Errors
///
/// There is no device at all, or none of this name.
pub fn one<'list>(devices: &'list DeviceList, name: Option<&str>) -> Result<Device<'list>, FindDeviceError> {
    match name {
        Some(name) => devices.find(name),
        None => devices.first(),
    }
}

/// The device of this name, or all there are, of which there is at least one.
///
/// # Errors
///
/// As [`one`].
pub fn all<'list>(
    devices: &'list DeviceList,
    name: Option<&str>,
) -> Result<Vec<Device<'list>>, FindDeviceError> {
    match name {
        Some(name) => Ok(vec![devices.find(name)?]),
        None if devices.is_empty() => Err(FindDeviceError::NoDevice),
        None => Ok(devices.iter().collect()),
    }
}
