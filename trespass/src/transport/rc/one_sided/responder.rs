//! The owner's end: memory that the peer's device may reach, and the queue pair that reaches it.

use std::sync::Arc;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::device_attr::AtomicCapability;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, QueuePair, QueuePairAttribute, QueuePairState, SendOperationFlags,
};

use super::super::device::{DevicePort, RdmaDevice};
use super::super::path::{connect_to, endpoint_of};
use super::super::queue_pair::build_with_inline;
use super::{OneSidedEnd, OneSidedPorts};
use crate::wire::{Cause, Unavailable};

/// Memory that a device serves to the peer.
pub(crate) type WindowRegion = MemoryRegion;

/// A protection domain for the windows of one connection with one device.
pub(crate) struct WindowDomain {
    domain: ProtectionDomain,
    /// No request of a responder completes. A queue pair needs one all the same.
    cq: GenericCompletionQueue,
    port: DevicePort,
    has_atomics: bool,
}

impl WindowDomain {
    pub(crate) fn new(ports: &OneSidedPorts, device: usize) -> Result<Self, Unavailable> {
        let port = ports.ports[device].clone();
        let RdmaDevice { limits, .. } = &*port.device;
        let lacks = |error: &(dyn std::error::Error + 'static)| port.device.lacks(Cause::Resources, error);
        let context = port.device.context();
        let attributes = context.query_device().map_err(|error| lacks(&error))?;
        let domain = context.alloc_pd().map_err(|error| lacks(&error))?;
        let cq = context.create_cq_builder().setup_cqe(1).build_generic().map_err(|error| lacks(&error))?;
        let has_atomics = attributes.atomic_cap() != AtomicCapability::None && limits.reads_in > 0;
        Ok(Self { domain, cq, has_atomics, port })
    }

    /// Whether the device performs atomic operations.
    pub(crate) fn has_atomics(&self) -> bool {
        self.has_atomics
    }

    /// Registers memory for the peer's device, which knows the first byte by the address `iova`.
    ///
    /// # Safety
    ///
    /// The memory stays allocated until the region was [closed](WindowRegion::close). No reference
    /// to it is used until then, if the peer may write; if it may only read, none that may write.
    pub(crate) unsafe fn register(
        &self,
        start: *mut u8,
        len: usize,
        iova: u64,
        access: WindowAccess,
    ) -> Result<WindowRegion, Unavailable> {
        // SAFETY: the caller keeps the memory, and references away from it, until the region is closed.
        let region = unsafe { self.domain.reg_mr_iova(start, len, iova, access.flags()) };
        region.map_err(|error| self.port.device.lacks(Cause::LockedMemory, &error))
    }

    /// Makes a queue pair that serves one of the peer's. Returns what the peer is told of it.
    pub(crate) fn respond(
        &self,
        ports: &OneSidedPorts,
        peer: &OneSidedEnd,
    ) -> Result<(Responder, OneSidedEnd), Unavailable> {
        let device = &self.port.device;
        let mut builder = self.domain.create_qp_builder();
        builder.setup_send_cq(&self.cq).setup_recv_cq(&self.cq).setup_max_send_wr(1).setup_max_recv_wr(1);
        builder.setup_max_recv_sge(1).setup_send_ops_flags(SendOperationFlags::Write);
        let mut qp =
            build_with_inline(&mut builder, 1, 0).map_err(|error| device.lacks_queue_pair(&error))?;
        let (own, endpoint) = endpoint_of(&qp, &self.port, &ports.parameters)?;
        let reads = device.limits.reads_in.min(peer.reads);
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteRead | AccessFlags::RemoteWrite;
        let access = if self.has_atomics { access | AccessFlags::RemoteAtomic } else { access };
        let ends = (&own, &peer.endpoint);
        connect_to(&mut qp, &self.port, &ports.parameters, ends, (0, reads), access)?;
        let responder = Responder { qp, peer: peer.endpoint.qp_num, _device: Arc::clone(device) };
        Ok((responder, OneSidedEnd { endpoint, reads }))
    }
}

/// What a peer's device may do to memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowAccess {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) atomic: bool,
}

impl WindowAccess {
    /// Whether the device may do nothing.
    pub(crate) fn is_none(self) -> bool {
        !self.read && !self.write && !self.atomic
    }

    /// The device writes only to memory that this process may write, too.
    fn flags(self) -> AccessFlags {
        [
            (self.read, AccessFlags::RemoteRead),
            (self.write, AccessFlags::RemoteWrite | AccessFlags::LocalWrite),
            (self.atomic, AccessFlags::RemoteAtomic | AccessFlags::LocalWrite),
        ]
        .into_iter()
        .filter(|(allowed, _)| *allowed)
        .fold(AccessFlags::empty(), |flags, (_, more)| flags | more)
    }
}

/// The queue pair that serves the peer's. A drop destroys it, and with it all that the peer's device
/// can reach.
pub(crate) struct Responder {
    qp: GenericQueuePair,
    peer: u32,
    _device: Arc<RdmaDevice>,
}

impl Responder {
    /// The number of the queue pair that it serves.
    pub(crate) fn peer(&self) -> u32 {
        self.peer
    }

    /// Moves it to the RESET state, in which it serves nothing. It fails while the device performs a
    /// request of the peer.
    pub(crate) fn stop(&mut self) -> Result<(), Unavailable> {
        let mut reset = QueuePairAttribute::new();
        reset.setup_state(QueuePairState::Reset);
        self.qp.modify(&reset).map_err(|error| Unavailable::new(Cause::Connect, error.to_string()))
    }
}
