//! Tests of every safe function on a fake device. It returns errors and wrong values, and checks
//! that its caller keeps the rules of the C interface. The tests need no RDMA device, and run under
//! Miri: `cargo +nightly miri test -p sideway --test main fake::`.

mod allocations;
mod cm_errors;
mod cm_events;
mod cm_races;
mod cm_synchronous;
mod control;
#[cfg(all(feature = "mlx5", feature = "efa"))]
mod direct;
mod discipline;
mod events;
mod extras;
mod leaks;
mod lifetimes;
mod making;
mod memory;
mod objects;
mod poll;
mod pool;
mod post;
mod prepared;
mod provided;
mod regions;
mod transport;
mod xrc;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::CompletionQueueBuilder;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePairBuilder, WorkRequestFlags};

use crate::support;
use crate::support::fake::Fake;
use crate::support::flavour::{CqFlavour, QpFlavour};

const SIGNALED: WorkRequestFlags = WorkRequestFlags::Signaled;

/// One of everything.
struct FakeSetup<Q, C> {
    qp: Q,
    cq: C,
    mr: MemoryRegion,
    pd: ProtectionDomain,
    context: DeviceContext,
    memory: Box<[u8; 64]>,
}

impl<Q: QpFlavour, C: CqFlavour> FakeSetup<Q, C> {
    fn new(fake: &Fake) -> Self {
        Self::with(fake, |cq| cq, |qp| qp)
    }

    fn with(
        fake: &Fake,
        cq_builder: impl FnOnce(&mut CompletionQueueBuilder) -> &mut CompletionQueueBuilder,
        qp_builder: impl FnOnce(&mut QueuePairBuilder) -> &mut QueuePairBuilder,
    ) -> Self {
        let context = fake.context();
        let pd = context.alloc_pd().unwrap();
        let mut builder = context.create_cq_builder();
        cq_builder(&mut builder);
        let cq = C::make(&builder).unwrap();
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_inline_data(16).setup_max_send_sge(2);
        builder.setup_max_recv_sge(2);
        qp_builder(&mut builder);
        let qp = Q::make(&builder).unwrap();
        let mut memory = Box::new([0u8; 64]);
        // SAFETY: the memory lives as long as the region (both are fields), and is not accessed.
        let mr = unsafe { pd.reg_mr(memory.as_mut_ptr(), memory.len(), AccessFlags::LocalWrite).unwrap() };
        Self { qp, cq, mr, pd, context, memory }
    }

    /// Posts WRITEs with these numbers in one list.
    fn write(&mut self, wr_ids: impl IntoIterator<Item = u64>) {
        let mut guard = self.qp.start_post_send();
        for wr_id in wr_ids {
            let handle = guard.construct_wr(wr_id, SIGNALED).setup_write(1, 2);
            // SAFETY: the fake device touches no memory.
            unsafe { handle.setup_sge(self.mr.lkey(), self.mr.get_ptr() as _, 8) };
        }
        guard.post().unwrap();
    }

    /// Polls all completions. Returns their numbers.
    fn poll(&mut self) -> Vec<u64> {
        let mut found = Vec::new();
        self.cq.poll(&mut |wc| found.push(wc.wr_id)).unwrap();
        found
    }
}
