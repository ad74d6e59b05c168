//! A logger that prints the device's messages on standard error, because a C program installs no
//! Rust logger.

use core::ffi::c_int;
use std::io::Write;
use std::sync::Once;

use log::{LevelFilter, Log, Metadata, Record};
use rdma_mummy_sys::types::ibv_device;

/// The least severe message to print: `off`, `error`, `warn` (the default), `info`, `debug` or `trace`.
const VARIABLE: &str = "SOFT_RNIC_LOG";

struct StandardError;

impl Log for StandardError {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true // The level is the facade's own matter.
    }

    fn log(&self, record: &Record<'_>) {
        let level = record.level().as_str().to_lowercase();
        // A failure is ignored: a program may have closed its standard error.
        let _ = writeln!(std::io::stderr(), "soft-rnic: {level}: {}", record.args());
    }

    fn flush(&self) {}
}

/// Starts printing messages. The function that a program calls first in either library calls this.
pub(crate) fn begin() {
    static STARTED: Once = Once::new();
    STARTED.call_once(start);
}

/// `ibv_get_device_list(num_devices)`, the first function of libibverbs that a program calls.
///
/// # Safety
///
/// The conditions of the table's entry.
pub(super) unsafe extern "C" fn get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    begin();
    // SAFETY: the caller meets the conditions of the table's entry.
    unsafe { (soft_rnic::verbs::table().ibv_get_device_list)(num_devices) }
}

fn start() {
    let wanted = rdma_mummy_sys::secure_var_os(VARIABLE).unwrap_or_default();
    let wanted = wanted.to_str().unwrap_or_default();
    let level = match wanted {
        "" => Ok(LevelFilter::Warn),
        wanted => wanted.parse(),
    };
    if log::set_logger(&StandardError).is_ok() {
        log::set_max_level(level.as_ref().map_or(LevelFilter::Warn, |level| *level));
    }
    if level.is_err() {
        log::warn!("{VARIABLE}={wanted} is none of off, error, warn, info, debug, trace: taking warn");
    }
}
