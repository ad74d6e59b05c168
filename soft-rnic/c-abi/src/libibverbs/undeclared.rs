//! Functions that rdma-core exports for its providers' sake, without declaring them to programs.

use core::ffi::{c_int, c_void};

/// `ibv_dontfork_range(base, size)`: says that a device may write to a range.
///
/// There is nothing to do: the software device finds memory by its address in the process that registered it,
/// and no page of it is pinned, so that a fork takes none away.
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_dofork_range(base, size)`: the reverse of [`ibv_dontfork_range`].
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_register_driver(name, init)`: how a provider of before rdma-core announced itself. Accepted and forgotten.
#[unsafe(no_mangle)]
extern "C" fn ibv_register_driver(_name: *const core::ffi::c_char, _init: *mut c_void) {}
