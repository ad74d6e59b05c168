//! Thread domains, parent domains and XRC domains.

use core::ffi::{c_int, c_void};

use crate::types::*;

/// The return value of a parent domain's allocator that leaves an allocation to the driver.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

context_functions! {
    /// Allocates a thread domain, whose objects are used by one thread at a time.
    fn ibv_alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td
        = alloc_td of context;

    /// Frees a thread domain: 0 or an error number.
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int = dealloc_td of td.context;

    /// Allocates a protection domain from another one, with a thread domain or with allocators of
    /// the program.
    fn ibv_alloc_parent_domain(
        context: *mut ibv_context,
        attr: *mut ibv_parent_domain_init_attr,
    ) -> *mut ibv_pd = alloc_parent_domain of context;

    /// Opens an XRC domain.
    fn ibv_open_xrcd(context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd
        = open_xrcd of context;

    /// Closes an XRC domain: 0 or an error number.
    fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int = close_xrcd of xrcd.context;
}
