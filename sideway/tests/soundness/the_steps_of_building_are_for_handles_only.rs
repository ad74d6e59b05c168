//! A bound brings the methods of a supertrait with it, even of one that cannot be named.

use sideway::ibverbs::queue_pair::{PostSendGuard, ScatterGatherEntry};

fn without_a_handle<G: PostSendGuard>(guard: &mut G) {
    let entry = ScatterGatherEntry::new(1, 2, 3);
    guard.append_inline(&[1, 2, 3]);
    // SAFETY: it does not compile.
    unsafe { guard.append_sge(entry) };
}

fn main() {}
