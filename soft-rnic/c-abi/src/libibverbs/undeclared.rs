//! Functions that rdma-core exports for its providers but does not declare to programs.

use core::ffi::{c_int, c_void};

/// `ibv_dontfork_range(base, size)`: announces that a device may write to a range.
///
/// It does nothing. The software device accesses memory by its address in the process that
/// registered it, and it pins no page, so that a fork takes none away.
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_dofork_range(base, size)`: the reverse of [`ibv_dontfork_range`].
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_register_driver(name, init)`: how providers older than rdma-core registered themselves. The
/// call is ignored.
#[unsafe(no_mangle)]
extern "C" fn ibv_register_driver(_name: *const core::ffi::c_char, _init: *mut c_void) {}
