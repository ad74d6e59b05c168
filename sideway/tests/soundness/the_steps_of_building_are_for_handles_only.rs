//! A bound brings the methods of a supertrait with it, even of one that cannot be named.

use sideway::ibverbs::queue_pair::{PostSendGuard, WorkRequestFlags};

fn out_of_order<G: PostSendGuard>(guard: &mut G) {
    guard.begin(1, WorkRequestFlags::Signaled);
    guard.send();
    guard.send();
}

fn main() {}
