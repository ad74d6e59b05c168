//! The library reads window and region when the list is posted, so both must live until then.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::memory_window::{MemoryWindow, MemoryWindowBindInfo};
use sideway::ibverbs::queue_pair::{BasicQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};

fn bind(qp: &mut BasicQueuePair, mut window: MemoryWindow, region: MemoryRegion) {
    let info = MemoryWindowBindInfo::new(&region, 0, 64, AccessFlags::RemoteWrite);
    let mut guard = qp.start_post_send();
    let rkey = window.next_rkey();
    guard.construct_wr(1, WorkRequestFlags::empty()).setup_bind_mw(&mut window, rkey, info);
    drop(window);
    drop(region);
    guard.post().unwrap();
}

fn main() {}
