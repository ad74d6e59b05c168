//! Checks of what an error carries.

use std::fmt::Display;

use sideway::{Error, ErrorKind};

/// The error is of this kind, and names these arguments with these values.
#[track_caller]
pub fn assert_error(error: &Error, kind: ErrorKind, arguments: &[(&str, &dyn Display)]) {
    assert_eq!(error.kind(), kind, "{error}");
    for (name, value) in arguments {
        assert_eq!(error.argument(name), Some(&*value.to_string()), "{name}: {error}");
    }
}

/// The error says that this device failed or was removed.
#[track_caller]
pub fn assert_device_gone(error: &Error, device: &str) {
    assert_error(error, ErrorKind::DeviceGone, &[]);
    assert_eq!(error.object(), Some(&*format!("device {device}")), "{error}");
}
