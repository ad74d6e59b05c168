//! The functions of libibverbs, over the software device.

use rdma_mummy_sys::Verbs;

/// What libibverbs exports, here.
pub const fn table() -> Verbs {
    Verbs { ..Verbs::unsupported() }
}
