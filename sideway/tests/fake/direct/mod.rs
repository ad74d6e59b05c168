//! Direct verbs tests: the arguments that reach C, the checks before, and the errors.

mod copies;
mod crypto;
mod dc;
mod dmabuf;
mod efa;
mod keys;
mod queues;
mod seam;
mod whose;

use std::sync::atomic::Ordering::Relaxed;

use sideway::ibverbs::address::AddressHandleAttribute;
use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::completion::ExtendedCompletionQueue;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::QueuePairBuilder;
use sideway::sys::types::*;
use sideway::{efa as vendor_efa, mlx5};

use super::support::fake::direct::{DcAddress, QpArguments};
use super::support::fake::keys::OwnRequest;
use super::support::fake::{Fake, Faults};

/// The attribute masks of an extended pair.
const EXTENDED: u32 =
    ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
const DRIVER: u32 = ibv_qp_type::IBV_QPT_DRIVER.0;

/// The objects that a pair needs. The device is dropped last, and checks that nothing was left
/// behind.
struct DirectSetup {
    pd: ProtectionDomain,
    cq: ExtendedCompletionQueue,
    fake: Fake,
}

impl DirectSetup {
    fn lying(about: impl FnOnce(&mut Faults)) -> Self {
        let fake = Fake::lying(about);
        let pd = fake.pd();
        let cq = pd.context().create_cq_builder().build_ex().unwrap();
        Self { pd, cq, fake }
    }

    fn new() -> Self {
        Self::lying(|_| {})
    }

    fn mlx5(&self) -> mlx5::DirectVerbs {
        mlx5::DirectVerbs::of(self.pd.context()).unwrap()
    }

    fn efa(&self) -> vendor_efa::DirectVerbs {
        vendor_efa::DirectVerbs::of(self.pd.context()).unwrap()
    }

    fn description(&self) -> QueuePairBuilder {
        let mut description = self.pd.create_qp_builder();
        description.setup_send_cq(&self.cq).setup_recv_cq(&self.cq).setup_max_inline_data(16);
        description
    }

    fn address(&self) -> AddressHandle {
        handle(self.pd.context())
    }

    fn arguments(&self) -> QpArguments {
        self.fake.world.direct.qp.lock().unwrap().take().expect("a pair was to be made")
    }

    /// The mlx5 requests that were built.
    fn own_requests(&self) -> Vec<OwnRequest> {
        std::mem::take(&mut *self.fake.world.own.requests.lock().unwrap())
    }

    /// The number of posted requests.
    fn posted(&self) -> u64 {
        self.fake.world.posted.load(Relaxed)
    }

    fn addresses(&self) -> Vec<DcAddress> {
        std::mem::take(&mut *self.fake.world.direct.addresses.lock().unwrap())
    }
}

fn handle(context: &DeviceContext) -> AddressHandle {
    let mut attr = AddressHandleAttribute::new();
    attr.setup_port(1);
    context.alloc_pd().unwrap().create_ah(&attr).unwrap()
}
