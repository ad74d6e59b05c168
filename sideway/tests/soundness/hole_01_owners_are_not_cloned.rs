//! Two owners of one object would destroy it twice.

use sideway::ibverbs::completion::{BasicCompletionQueue, ExtendedCompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{BasicQueuePair, ExtendedQueuePair, GenericQueuePair, ReceiveQueue};

fn cloned<T: Clone>() {}

fn main() {
    cloned::<BasicCompletionQueue>();
    cloned::<ExtendedCompletionQueue>();
    cloned::<GenericCompletionQueue>();
    cloned::<BasicQueuePair>();
    cloned::<ExtendedQueuePair>();
    cloned::<GenericQueuePair>();
    cloned::<ReceiveQueue>();
    cloned::<MemoryRegion>();
    cloned::<DeviceList>();
}
