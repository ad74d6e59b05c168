//! No check without cost could keep memory alive and unobserved until the device is done with it.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};

fn register(pd: &ProtectionDomain, memory: &mut [u8]) {
    let _ = pd.reg_mr(memory.as_mut_ptr(), memory.len(), AccessFlags::LocalWrite);
}

fn send(qp: &mut GenericQueuePair, mr: &MemoryRegion) {
    let mut guard = qp.start_post_send();
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_send().setup_sge(mr.lkey(), mr.get_ptr() as _, 8);
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_send().setup_sge_list(&[]);
}

fn receive(qp: &mut GenericQueuePair, mr: &MemoryRegion) {
    let mut guard = qp.start_post_recv();
    guard.construct_wr(1).setup_sge(mr.lkey(), mr.get_ptr() as _, 8);
    guard.construct_wr(1).setup_sge_list(&[]);
}

fn main() {}
