//! A slice that was posted belongs to the device.

use sideway::ibverbs::queue_pair::{BasicPostSendGuard, PooledPostSendGuard, PostSendGuard, WorkRequestFlags};
use sideway::memory::Slice;

fn used_after(list: &mut PooledPostSendGuard<'_, BasicPostSendGuard<'_>>, mut slice: Slice) {
    list.construct_wr(1, WorkRequestFlags::Signaled).setup_send().setup_slice(slice);
    slice.fill(1);
}

fn posted_twice(list: &mut PooledPostSendGuard<'_, BasicPostSendGuard<'_>>, slice: Slice) {
    list.construct_wr(1, WorkRequestFlags::Signaled).setup_send().setup_slice(slice);
    list.construct_wr(2, WorkRequestFlags::Signaled).setup_send().setup_slice(slice);
}

fn copied(slice: &Slice) -> Slice {
    slice.clone()
}

fn posted_without_a_pool(mut list: BasicPostSendGuard<'_>, slice: Slice) {
    list.construct_wr(1, WorkRequestFlags::Signaled).setup_send().setup_slice(slice);
}

fn main() {}
