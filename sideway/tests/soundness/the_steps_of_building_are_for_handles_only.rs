//! A bound gives access to the methods of a supertrait, even one that cannot be named.

use sideway::ibverbs::queue_pair::{PostSendGuard, ScatterGatherEntry};

fn without_a_handle<G: PostSendGuard>(guard: &mut G) {
    let entry = ScatterGatherEntry::new(1, 2, 3);
    guard.append_inline(&[1, 2, 3]);
    // SAFETY: this code must not compile.
    unsafe { guard.append_sge(entry) };
}

fn main() {}
