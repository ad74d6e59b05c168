//! The RDMA data path of a handshake: it creates a queue pair, connects it, and proves with probes
//! that data passes through it.

use std::io;
use std::task::Poll;
use std::time::{Duration, Instant};

use mio::{Registry, Token};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::Gid;
use sideway::ibverbs::connect::{ConnectError, ConnectOptions, Endpoint as QpEndpoint, LocalPath, connect};
use sideway::ibverbs::port::{LinkLayer, Mtu};
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};

use super::DeviceBlock;
use super::cq_dispatcher::{CompletedRequest, CqSlot, WorkCompletion};
use super::device::DevicePort;
use super::queue_pair::QueuePairOwner;
use super::rails_driver::{ChannelSet, RailsPlan};
use super::resources::pool_exhausted;
use super::wr_id::{self, WrId};
use crate::config::Config;
use crate::handshake::{Agreed, Attempt, DataPath};
use crate::protocol::Blocks;
use crate::rails::{Rails, RailsSetup};
use crate::wire::{self, Endpoint, Features, Probe, Role, device_hash};
use crate::wire::{Cause, Unavailable};

/// The parameters with which a queue pair is created and connected.
#[derive(Clone, Debug)]
pub(crate) struct QpParameters {
    pub(crate) slot_size: u32,
    pub(crate) rx_slots: u32,
    /// Additional receives for a handshake over the queue pair itself.
    pub(crate) handshake_slots: u32,
    /// The size of the receive queue that a worker's connections share; `None` if they do not share
    /// one.
    pub(crate) shared_receives: Option<u32>,
    /// Whether a connection outside a worker uses a shared receive queue too.
    pub(crate) shares_alone: bool,
    /// READs outstanding at one time.
    pub(crate) reads: u8,
    pub(crate) inline: u32,
    /// In bytes; `None` for the port's MTU.
    pub(crate) path_mtu: Option<u16>,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) hop_limit: u8,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    /// How long a request may take before its queue pair is given up.
    pub(crate) request_timeout: Duration,
}

impl QpParameters {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            slot_size: config.slot_size,
            rx_slots: config.rx_slots,
            handshake_slots: 0,
            shared_receives: config.srq.then_some(config.srq_size),
            shares_alone: config.srq && config.srq_alone,
            reads: config.rd_atomic,
            inline: config.inline,
            path_mtu: config.path_mtu,
            traffic_class: config.traffic_class,
            service_level: config.service_level,
            hop_limit: config.hop_limit,
            ack_timeout: config.ack_timeout,
            retry_count: config.retry_count,
            rnr_retry: config.rnr_retry,
            min_rnr_timer: config.min_rnr_timer,
            request_timeout: config.rail_timeout,
        }
    }
}

/// A queue pair that is not yet given to a [`driver`](super::driver::RcDriver), with all that is
/// needed to create it.
pub(crate) struct RcPath<P: Blocks<Block: DeviceBlock>> {
    port: DevicePort,
    parameters: QpParameters,
    blocks: P,
    /// The worker's completion queue to use, if a worker owns the connection.
    slot: Option<CqSlot<P::Block>>,
    prepared: Option<PreparedPair<P::Block>>,
    /// What this side offers for further rails.
    rails: Option<RailsOffer>,
    /// The set of descriptors of the rails' completion channels, which must not fail later.
    channels: Option<ChannelSet>,
}

/// What one side chose for the rails of a connection.
#[derive(Clone, Debug)]
pub(crate) struct RailsOffer {
    /// The ports, the handshake's first.
    pub(crate) ports: Vec<DevicePort>,
    /// Bytes that pass before further rails are added.
    pub(crate) join_after: u64,
    /// How long a request may take.
    pub(crate) request_timeout: Duration,
    pub(crate) probe_timeout: Duration,
    pub(crate) backoff: Duration,
    pub(crate) keepalive: Option<Duration>,
}

struct PreparedPair<B: DeviceBlock> {
    pair: QueuePairOwner<B>,
    probe: PathProbe,
    /// The parameters that the peer received: queue pair number, PSN and address.
    own: QpEndpoint,
    /// Completions that belong to the connection. The peer may start to send first, because it may
    /// learn earlier that the path works.
    early: Vec<WorkCompletion<B>>,
    /// The number of receives that the peer may use from the start.
    first: usize,
    /// Further receives, for messages about rails.
    extra: usize,
}

/// A queue pair that works, with the completions that already belong to its connection.
pub(super) struct ProvenPath<B: DeviceBlock> {
    pub(super) pair: QueuePairOwner<B>,
    pub(super) early: EarlyCompletions<B>,
}

/// The state of a connection's receives at the end of its handshake.
pub(super) struct EarlyCompletions<B> {
    /// The number of receives granted in the handshake.
    pub(super) first: usize,
    /// Completions since the path was proved. Their blocks are already out of the queue pair's
    /// records.
    pub(super) completed: Vec<WorkCompletion<B>>,
}

/// The progress of the probe.
struct PathProbe {
    attempt: Attempt,
    /// This side has sent its probe. The queue pair knows whether it was acknowledged.
    sent: bool,
    /// The peer's probe has arrived.
    received: bool,
    /// Why the path does not work.
    failed: Option<Unavailable>,
}

impl<P: Blocks<Block: DeviceBlock>> RcPath<P> {
    /// Creates nothing yet. The memory of `blocks` must be registered in the protection domain of
    /// the port's device.
    pub(crate) fn new(port: DevicePort, parameters: QpParameters, blocks: P) -> Self {
        Self { port, parameters, blocks, slot: None, prepared: None, rails: None, channels: None }
    }

    /// Uses the completion queue of a worker, if it has room.
    pub(crate) fn at(self, slot: Option<CqSlot<P::Block>>) -> Self {
        Self { slot, ..self }
    }

    /// Offers further rails.
    pub(crate) fn with_rails(mut self, offer: RailsOffer) -> Self {
        self.parameters.handshake_slots = Rails::<P::Block>::extra_receives(offer.ports.len()) as u32;
        Self { rails: Some(offer), ..self }
    }

    /// What the rails need that both sides have agreed on, if they have.
    pub(crate) fn take_rails(&mut self, agreed: &Agreed) -> Option<RailsPlan> {
        let offer = self.rails.take().filter(|_| agreed.features.has(Features::RAILS))?;
        let channels = self.channels.take()?;
        let most = offer.request_timeout;
        let setup = RailsSetup {
            role: agreed.attempt.role,
            rails: rails_of(agreed),
            own_devices: offer.ports.len(),
            peer_devices: agreed.devices.1.into(),
            reads: agreed_reads(agreed, &self.parameters).0.into(),
            join_after: offer.join_after,
            // A rail is silent for one time before the probe, and may be for two more.
            request_timeout: offer.keepalive.map_or(most, |idle| most.min(2 * idle)),
            probe_timeout: offer.probe_timeout,
            backoff: offer.backoff,
            keepalive: offer.keepalive,
        };
        Some(RailsPlan { ports: offer.ports, setup, channels })
    }

    pub(super) fn parameters(&self) -> &QpParameters {
        &self.parameters
    }

    pub(super) fn port(&self) -> &DevicePort {
        &self.port
    }

    pub(crate) fn blocks(&self) -> &P {
        &self.blocks
    }

    pub(super) fn slot_size(&self) -> usize {
        self.parameters.slot_size as usize
    }

    /// See [`QueuePairOwner::watch`].
    pub(crate) fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<bool> {
        self.prepared.as_mut().map_or(Ok(false), |prepared| prepared.pair.watch(registry, token))
    }

    /// See [`QueuePairOwner::unwatch`].
    pub(crate) fn unwatch(&mut self, registry: &Registry) -> io::Result<()> {
        self.prepared.as_mut().map_or(Ok(()), |prepared| prepared.pair.unwatch(registry))
    }

    /// Handles a completion of this queue pair, which a worker has polled.
    pub(crate) fn completed(&mut self, completed: WorkCompletion<P::Block>) {
        if let Some(prepared) = &mut self.prepared {
            prepared.completed(completed);
        }
    }

    /// Fails the path because the worker's completion queue has failed.
    pub(crate) fn completion_queue_failed(&mut self, error: &io::Error) {
        if let Some(PreparedPair { probe, pair, .. }) = &mut self.prepared
            && pair.own_dispatcher().is_none()
        {
            probe.failed = Some(failed(error));
        }
    }

    /// The queue pair, with the completions that already belong to the connection. `None` if no
    /// queue pair was created.
    pub(super) fn into_proved(self) -> Option<ProvenPath<P::Block>> {
        self.prepared.map(|PreparedPair { pair, early, first, .. }| ProvenPath {
            pair,
            early: EarlyCompletions { completed: early, first },
        })
    }

    /// Whether a completion of the connection itself has arrived.
    #[cfg(test)]
    pub(super) fn has_early(&self) -> bool {
        self.prepared.as_ref().is_some_and(|prepared| !prepared.early.is_empty())
    }
}

/// The rails of a connection: one for each device of the side that has fewer.
fn rails_of(agreed: &Agreed) -> usize {
    agreed.devices.0.min(agreed.devices.1).into()
}

/// The READs of a connection, outgoing and incoming, that both sides agreed on.
pub(super) fn agreed_reads(agreed: &Agreed, parameters: &QpParameters) -> (u8, u8) {
    (
        agreed.own.rd_atomic_out.min(agreed.peer.rd_atomic_in).min(parameters.reads),
        agreed.own.rd_atomic_in.min(agreed.peer.rd_atomic_out),
    )
}

fn mtu_of(port: &DevicePort, parameters: &QpParameters) -> Mtu {
    let wanted = parameters.path_mtu.and_then(|bytes| Mtu::from_bytes(bytes.into()));
    wanted.map_or(port.path.mtu(), |wanted| wanted.min(port.path.mtu()))
}

/// The parameters of a new queue pair, which has a random first PSN, and what the peer is told of
/// it.
pub(super) fn endpoint_of(
    qp: &GenericQueuePair,
    port: &DevicePort,
    parameters: &QpParameters,
) -> Result<(QpEndpoint, Endpoint), Unavailable> {
    let random = getrandom::u32().map_err(|error| Unavailable::new(Cause::Resources, error.to_string()))?;
    let own = QpEndpoint::new(qp, &port.path, random);
    let path = &port.path;
    let endpoint = Endpoint {
        qp_num: own.qp_number,
        psn: own.packet_seq_num,
        gid: path.gid().unwrap_or(Gid::ZERO).raw,
        lid: path.lid(),
        mtu: mtu_of(port, parameters).raw().clamp(1, 5) as u8,
        link_layer: link_layer(path),
        service_level: parameters.service_level,
        traffic_class: parameters.traffic_class,
        device: device_hash(port.device.name()),
    };
    Ok((own, endpoint))
}

/// What the peer may do over the queue pair of a connection. It has REMOTE_WRITE for its empty
/// WRITEs, which check that this side is alive. No memory of a connection is registered for remote
/// writes.
pub(super) const OF_CONNECTION: AccessFlags =
    AccessFlags::LocalWrite.union(AccessFlags::RemoteRead).union(AccessFlags::RemoteWrite);

/// Connects a queue pair to the peer's. `access_flags` are what the peer may do over it. `reads`: see
/// [`agreed_reads`].
pub(super) fn connect_to(
    qp: &mut GenericQueuePair,
    port: &DevicePort,
    parameters: &QpParameters,
    (own, peer): (&QpEndpoint, &Endpoint),
    reads: (u8, u8),
    access_flags: AccessFlags,
) -> Result<(), Unavailable> {
    let gid = Gid { raw: peer.gid };
    let remote = QpEndpoint {
        qp_number: peer.qp_num,
        packet_seq_num: peer.psn,
        lid: peer.lid,
        gid: (gid != Gid::ZERO).then_some(gid),
        mtu: 128 << peer.mtu,
        ethernet: peer.link_layer == wire::LinkLayer::Ethernet,
    };
    let mtu = mtu_of(port, parameters);
    let options = ConnectOptions {
        access_flags,
        mtu: Some(Mtu::from_bytes(remote.mtu).map_or(mtu, |theirs| mtu.min(theirs))),
        max_read_atomic: reads.0,
        max_dest_read_atomic: reads.1,
        timeout: parameters.ack_timeout,
        retry_cnt: parameters.retry_count,
        rnr_retry: parameters.rnr_retry,
        min_rnr_timer: parameters.min_rnr_timer,
        service_level: parameters.service_level,
        traffic_class: parameters.traffic_class,
        hop_limit: parameters.hop_limit,
        ..ConnectOptions::default()
    };
    let connection = connect(qp, &port.path, own, &remote, &options)?;
    tracing::debug!(
        port = port.describe(), qp = own.qp_number, peer = peer.qp_num, %connection,
        inline = qp.control().capability().max_inline_data, "queue pair connected"
    );
    Ok(())
}

impl<P: Blocks<Block: DeviceBlock>> DataPath for RcPath<P> {
    fn prepare(&mut self, attempt: Attempt) -> Result<Endpoint, Unavailable> {
        let DevicePort { device, .. } = &self.port;
        if self.rails.is_some() {
            self.channels = Some(ChannelSet::new().map_err(|error| device.lacks(Cause::Resources, &error))?);
        }
        let pair = QueuePairOwner::new(device, &self.port.describe(), &self.parameters, self.slot.as_ref())?;
        let (own, endpoint) = endpoint_of(&pair.qp, &self.port, &self.parameters)?;
        let probe = PathProbe { attempt, sent: false, received: false, failed: None };
        self.prepared = Some(PreparedPair { pair, probe, own, early: Vec::new(), first: 0, extra: 0 });
        Ok(endpoint)
    }

    fn connect(&mut self, peer: &Endpoint, agreed: &Agreed) -> Result<(), Unavailable> {
        let parameters = &self.parameters;
        let prepared =
            self.prepared.as_mut().ok_or_else(|| Unavailable::new(Cause::Connect, "nothing was prepared"))?;
        let PreparedPair { pair, own, .. } = prepared;
        // From now on the queue pair may take shared receives.
        prepared.first = agreed.first_slots.0 as usize;
        if agreed.features.has(Features::RAILS) {
            prepared.extra = Rails::<P::Block>::FIRST_RECEIVES;
        }
        reserve_first(pair, agreed.first_slots.0)?;
        let reads = agreed_reads(agreed, parameters);
        connect_to(&mut pair.qp, &self.port, parameters, (own, peer), reads, OF_CONNECTION)?;
        prepared.fill(&mut self.blocks, parameters)
    }

    fn cause_of_silence(&self) -> Cause {
        if self.port.device.is_soft { Cause::SoftProbeTimedOut } else { Cause::ProbeTimedOut }
    }

    fn probe(&mut self, _: Instant) -> Poll<Result<(), Unavailable>> {
        let Some(prepared) = self.prepared.as_mut() else {
            return Poll::Ready(Err(Unavailable::new(Cause::ProbeFailed, "nothing was prepared")));
        };
        match prepared.probe(&mut self.blocks, &self.parameters) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<B: DeviceBlock> PreparedPair<B> {
    /// Posts a block for each receive that the peer may use from the start. This must precede the
    /// peer's first send.
    fn fill(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
        parameters: &QpParameters,
    ) -> Result<(), Unavailable> {
        self.pair.fill(blocks, self.first + self.extra, parameters.slot_size as usize)
    }

    /// Advances the probe. Returns whether the probes of both sides have passed.
    fn probe(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
        parameters: &QpParameters,
    ) -> Result<bool, Unavailable> {
        if self.probe.attempt.role == Role::Client && !self.probe.sent {
            self.send_probe(blocks)?;
        }
        self.poll_completions()?;
        self.fill(blocks, parameters)?;
        if self.probe.received && !self.probe.sent {
            self.send_probe(blocks)?;
            self.poll_completions()?;
        }
        Ok(self.is_proved())
    }

    fn is_proved(&self) -> bool {
        self.probe.received && self.probe.sent && self.pair.probes == 0
    }

    fn send_probe(&mut self, blocks: &mut impl Blocks<Block = B>) -> Result<(), Unavailable> {
        let Attempt { conn_id, generation, role } = self.probe.attempt;
        let bytes = Probe { conn_id, generation, role }.encode();
        let pair = &mut *self.pair;
        let inline = bytes.len() <= pair.heads.inline;
        if !inline && !pair.heads.prepare(blocks) {
            return Err(pool_exhausted(blocks, "none for headers now"));
        }
        let mut list = pair.qp.start_post_send();
        let id = wr_id::encode(pair.generation, WrId::Probe);
        let send = list.construct_wr(id, WorkRequestFlags::Signaled).setup_send();
        if inline {
            send.setup_inline_data(&bytes);
        } else {
            // SAFETY: the probe is the first request of the queue pair, so no outstanding request
            // uses this buffer.
            let head = unsafe { pair.heads.write(0, &bytes) };
            // SAFETY: the queue pair keeps `heads` alive until `probes` have completed, and nobody
            // writes to the buffer until then. The send queue is empty, so it has room.
            unsafe { send.setup_sge_list(&[head]) };
        }
        // If the error does not tell that nothing was posted, assume that the probe was.
        let posted = list.post();
        self.probe.sent = true;
        pair.probes = usize::from(!matches!(&posted, Err(error) if error.posted() == Some(0)));
        posted.map_err(|error| failed(&error))
    }

    /// Polls the private completion queue, if the queue pair has one. Fails if the probe has
    /// failed.
    fn poll_completions(&mut self) -> Result<(), Unavailable> {
        let mut received = Vec::new();
        if let Some(dispatcher) = self.pair.own_dispatcher() {
            dispatcher.poll(|_, completed| received.push(completed)).map_err(|error| failed(&error))?;
        }
        received.into_iter().for_each(|completed| self.completed(completed));
        self.probe.failed.take().map_or(Ok(()), Err)
    }

    fn completed(&mut self, completed: WorkCompletion<B>) {
        let is_proved = self.is_proved();
        let completed = self.pair.settle(completed);
        if !is_proved {
            self.probe.record(&self.pair.qp, completed);
        } else if self.early.len() <= self.first + self.extra {
            // The list is bounded. The first completion beyond the grant is kept, and it ends the
            // connection of a peer that sends more than it may.
            self.early.push(completed);
        }
    }
}

/// Reserves the receives that the peer may use from the start. Fails if the shared receive queue
/// has no room for them.
fn reserve_first<B: DeviceBlock>(pair: &mut QueuePairOwner<B>, first: u32) -> Result<(), Unavailable> {
    pair.reserve_receives(first).map_err(|size| {
        let words = format!(
            "the shared receive queue of {size} has no room for another connection's {first} receives; raise srq_size"
        );
        Unavailable::new(Cause::Resources, words)
    })
}

impl PathProbe {
    fn record<B: DeviceBlock>(&mut self, qp: &GenericQueuePair, completed: WorkCompletion<B>) {
        if let Some(failure) = completed.failure(qp) {
            // The first failure tells the cause; the requests flushed after it do not.
            self.failed.get_or_insert(failure);
            return;
        }
        let WorkCompletion { request: CompletedRequest::Received(_, Some(block)), len, .. } = completed
        else {
            return;
        };
        let Attempt { conn_id, generation, role } = self.attempt;
        let other = if role == Role::Client { Role::Server } else { Role::Client };
        let len = len.min(block.bytes().len());
        if (Probe { conn_id, generation, role: other }).is(&block.bytes()[..len]) {
            self.received = true;
        } else {
            tracing::debug!("something else than the probe has come over a queue pair: {len} bytes");
        }
    }
}

fn failed(error: &dyn std::fmt::Display) -> Unavailable {
    Unavailable::new(Cause::ProbeFailed, error.to_string())
}

fn link_layer(path: &LocalPath) -> wire::LinkLayer {
    if path.link_layer() == LinkLayer::Ethernet {
        wire::LinkLayer::Ethernet
    } else {
        wire::LinkLayer::InfiniBand
    }
}

impl From<ConnectError> for Unavailable {
    fn from(error: ConnectError) -> Self {
        let cause = match &error {
            ConnectError::OtherLinkLayer { .. } => Cause::LinkLayer,
            ConnectError::NoGid { .. } => Cause::NoGid,
            _ => Cause::Connect,
        };
        Self::new(cause, error.to_string())
    }
}
