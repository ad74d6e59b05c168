//! What this crate leaves out, by name: work queues and receive-side scaling, actions of flows
//! (IPsec) and tag matching, beside raw packet queue pairs and segmentation offload, which the
//! [queue pair builder](super::queue_pair::QueuePairBuilder) refuses.
//!
//! All but tag matching are about Ethernet frames, for which there are better crates (DPDK's,
//! AF_XDP's). Asking for one is an [`Unsupported`] with the verb's name, as on a device that lacks
//! it; the raw functions are in [`rdma_mummy_sys::verbs`].

use std::convert::Infallible;

use super::Unsupported;
use super::device_context::DeviceContext;
use super::srq::SharedReceiveQueue;

/// What is said of it.
pub(crate) const RAW_PACKET: &str = "raw packet queue pairs in this crate";
/// What is said of it.
pub(crate) const SEGMENTATION_OFFLOAD: &str = "segmentation offload in this crate";

impl DeviceContext {
    /// A work queue (`ibv_create_wq`), which this crate does not wrap.
    ///
    /// # Errors
    ///
    /// Always: [`Unsupported`].
    ///
    /// # References
    ///
    /// `man ibv_create_wq`
    pub fn create_wq(&self) -> Result<Infallible, Unsupported> {
        Err(Unsupported::new(self, "ibv_create_wq", "work queues in this crate"))
    }

    /// A table that spreads packets over work queues (`ibv_create_rwq_ind_table`), which this crate
    /// does not wrap.
    ///
    /// # Errors
    ///
    /// Always: [`Unsupported`].
    ///
    /// # References
    ///
    /// `man ibv_create_rwq_ind_table`
    pub fn create_rwq_ind_table(&self) -> Result<Infallible, Unsupported> {
        Err(Unsupported::new(self, "ibv_create_rwq_ind_table", "receive-side scaling in this crate"))
    }

    /// An action that encrypts or decrypts a flow (`ibv_create_flow_action_esp`), which this crate
    /// does not wrap.
    ///
    /// # Errors
    ///
    /// Always: [`Unsupported`].
    ///
    /// # References
    ///
    /// `man ibv_create_flow_action_esp`
    pub fn create_flow_action_esp(&self) -> Result<Infallible, Unsupported> {
        Err(Unsupported::new(self, "ibv_create_flow_action_esp", "actions of flows in this crate"))
    }
}

impl SharedReceiveQueue {
    /// Receives that take messages by their tag (`ibv_post_srq_ops`), which this crate does not
    /// wrap.
    ///
    /// # Errors
    ///
    /// Always: [`Unsupported`].
    ///
    /// # References
    ///
    /// `man ibv_post_srq_ops`
    pub fn post_srq_ops(&mut self) -> Result<Infallible, Unsupported> {
        Err(Unsupported::new(self.pd().context(), "ibv_post_srq_ops", "tag matching in this crate"))
    }
}
