//! The RDMA data path of a handshake: it makes a queue pair, connects it, and probes that data
//! comes through.

use std::io;
use std::task::Poll;
use std::time::Instant;

use mio::{Registry, Token};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::Gid;
use sideway::ibverbs::connect::{ConnectError, ConnectOptions, Endpoint as QpEndpoint, LocalPath, connect};
use sideway::ibverbs::port::{LinkLayer, Mtu};
use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, WorkRequestFlags};

use super::DeviceBlock;
use super::cq_dispatcher::{CompletedRequest, CqSlot, WorkCompletion};
use super::device::DevicePort;
use super::queue_pair::QueuePairOwner;
use super::wr_id::{self, WrId};
use crate::config::Config;
use crate::handshake::{Agreed, Attempt, DataPath};
use crate::protocol::Blocks;
use crate::wire::{self, Endpoint, Probe, Role, device_hash};
use crate::wire::{Cause, Unavailable};

/// What a queue pair is made and connected with.
#[derive(Clone, Debug)]
pub(crate) struct QpParameters {
    pub(crate) slot_size: u32,
    pub(crate) rx_slots: u32,
    /// Receives beside those, for a handshake that goes over the queue pair.
    pub(crate) handshake_slots: u32,
    /// Receives of the queue that a worker's connections share, if they do.
    pub(crate) shared_receives: Option<u32>,
    /// One that shares with nobody has such a queue all the same.
    pub(crate) shares_alone: bool,
    /// READs under way at a time.
    pub(crate) reads: u8,
    pub(crate) inline: u32,
    /// Bytes.
    pub(crate) path_mtu: Option<u16>,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) hop_limit: u8,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
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
        }
    }
}

/// A queue pair on its way to a [`driver`](super::driver::RcDriver).
pub(crate) struct RcPath<P: Blocks<Block: DeviceBlock>> {
    port: DevicePort,
    parameters: QpParameters,
    blocks: P,
    /// Where it is to complete, if a worker makes it.
    slot: Option<CqSlot<P::Block>>,
    prepared: Option<PreparedPair<P::Block>>,
}

struct PreparedPair<B: DeviceBlock> {
    pair: QueuePairOwner<B>,
    probe: PathProbe,
    /// What the peer was told.
    own: QpEndpoint,
    /// What has come of the connection itself: the peer may know before this side that the path works.
    early: Vec<WorkCompletion<B>>,
    /// Receives that the peer knows of when it begins.
    first: usize,
}

/// A pair that works, and what there is of its connection.
pub(super) struct ProvenPath<B: DeviceBlock> {
    pub(super) pair: QueuePairOwner<B>,
    pub(super) early: EarlyCompletions<B>,
}

/// What there is of a connection when its handshake is done.
pub(super) struct EarlyCompletions<B> {
    /// Receives that were granted.
    pub(super) first: usize,
    /// What has completed since, and is out of the pair's queues.
    pub(super) completed: Vec<WorkCompletion<B>>,
}

/// How far the path is tried.
struct PathProbe {
    attempt: Attempt,
    /// This side's probe was sent; the pair knows whether it was acknowledged.
    sent: bool,
    /// The peer's probe has come.
    received: bool,
    /// It does not work.
    failed: Option<Unavailable>,
}

impl<P: Blocks<Block: DeviceBlock>> RcPath<P> {
    /// Nothing is made yet. The blocks are registered in the domain of the place's device.
    pub(crate) fn new(port: DevicePort, parameters: QpParameters, blocks: P) -> Self {
        Self { port, parameters, blocks, slot: None, prepared: None }
    }

    /// The same, to complete where a worker hears of it, if there is room.
    pub(crate) fn at(self, slot: Option<CqSlot<P::Block>>) -> Self {
        Self { slot, ..self }
    }

    /// Where its blocks come from.
    pub(crate) fn blocks(&self) -> &P {
        &self.blocks
    }

    pub(super) fn slot_size(&self) -> usize {
        self.parameters.slot_size as usize
    }

    /// As [`QueuePairOwner::watch`].
    pub(crate) fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<bool> {
        self.prepared.as_mut().map_or(Ok(false), |prepared| prepared.pair.watch(registry, token))
    }

    /// As [`QueuePairOwner::unwatch`].
    pub(crate) fn unwatch(&mut self, registry: &Registry) -> io::Result<()> {
        self.prepared.as_mut().map_or(Ok(()), |prepared| prepared.pair.unwatch(registry))
    }

    /// Something has completed, and a worker hands it on.
    pub(crate) fn completed(&mut self, completed: WorkCompletion<P::Block>) {
        if let Some(prepared) = &mut self.prepared {
            prepared.completed(completed);
        }
    }

    /// The worker's completion queue is of no use any more.
    pub(crate) fn completion_queue_failed(&mut self, error: &io::Error) {
        if let Some(PreparedPair { probe, pair, .. }) = &mut self.prepared
            && pair.own_dispatcher().is_none()
        {
            probe.failed = Some(failed(error));
        }
    }

    /// What has proved to work, and what has come of the connection meanwhile.
    pub(super) fn into_proved(self) -> Option<ProvenPath<P::Block>> {
        self.prepared.map(|PreparedPair { pair, early, first, .. }| ProvenPath {
            pair,
            early: EarlyCompletions { completed: early, first },
        })
    }

    /// Whether something of the connection itself has come.
    #[cfg(test)]
    pub(super) fn has_early(&self) -> bool {
        self.prepared.as_ref().is_some_and(|prepared| !prepared.early.is_empty())
    }

    fn mtu(&self) -> Mtu {
        let wanted = self.parameters.path_mtu.and_then(|bytes| Mtu::from_bytes(bytes.into()));
        wanted.map_or(self.port.path.mtu(), |wanted| wanted.min(self.port.path.mtu()))
    }
}

impl<P: Blocks<Block: DeviceBlock>> DataPath for RcPath<P> {
    fn prepare(&mut self, attempt: Attempt) -> Result<Endpoint, Unavailable> {
        let DevicePort { device, .. } = &self.port;
        let pair = QueuePairOwner::new(device, &self.port.describe(), &self.parameters, self.slot.as_ref())?;
        let random =
            getrandom::u32().map_err(|error| Unavailable::new(Cause::Resources, error.to_string()))?;
        let own = QpEndpoint::new(&pair.qp, &self.port.path, random);
        let path = &self.port.path;
        let endpoint = Endpoint {
            qp_num: own.qp_number,
            psn: own.packet_seq_num,
            gid: path.gid().unwrap_or(Gid::ZERO).raw,
            lid: path.lid(),
            mtu: self.mtu().raw().clamp(1, 5) as u8,
            link_layer: link_layer(path),
            service_level: self.parameters.service_level,
            traffic_class: self.parameters.traffic_class,
            device: device_hash(self.port.device.name()),
        };
        let probe = PathProbe { attempt, sent: false, received: false, failed: None };
        self.prepared = Some(PreparedPair { pair, probe, own, early: Vec::new(), first: 0 });
        Ok(endpoint)
    }

    fn connect(&mut self, peer: &Endpoint, agreed: &Agreed) -> Result<(), Unavailable> {
        let (mtu, parameters) = (self.mtu(), &self.parameters);
        let prepared =
            self.prepared.as_mut().ok_or_else(|| Unavailable::new(Cause::Connect, "nothing was prepared"))?;
        let gid = Gid { raw: peer.gid };
        let remote = QpEndpoint {
            qp_number: peer.qp_num,
            packet_seq_num: peer.psn,
            lid: peer.lid,
            gid: (gid != Gid::ZERO).then_some(gid),
            mtu: 128 << peer.mtu,
            ethernet: peer.link_layer == wire::LinkLayer::Ethernet,
        };
        let options = ConnectOptions {
            // WRITE for the empty ones that ask whether this side is there: no memory is registered for them.
            access_flags: AccessFlags::LocalWrite | AccessFlags::RemoteRead | AccessFlags::RemoteWrite,
            mtu: Some(Mtu::from_bytes(remote.mtu).map_or(mtu, |theirs| mtu.min(theirs))),
            max_read_atomic: agreed.own.rd_atomic_out.min(agreed.peer.rd_atomic_in).min(parameters.reads),
            max_dest_read_atomic: agreed.own.rd_atomic_in.min(agreed.peer.rd_atomic_out),
            timeout: parameters.ack_timeout,
            retry_cnt: parameters.retry_count,
            rnr_retry: parameters.rnr_retry,
            min_rnr_timer: parameters.min_rnr_timer,
            service_level: parameters.service_level,
            traffic_class: parameters.traffic_class,
            hop_limit: parameters.hop_limit,
            ..ConnectOptions::default()
        };
        // From now on it may take what others share with it.
        prepared.reserve_first(agreed.first_slots.0)?;
        let connection = connect(&mut prepared.pair.qp, &self.port.path, &prepared.own, &remote, &options)?;
        prepared.fill(&mut self.blocks, parameters)?;
        tracing::debug!(
            port = prepared.pair.origin, qp = prepared.own.qp_number, peer = peer.qp_num, %connection,
            inline = prepared.pair.heads.inline, "queue pair connected"
        );
        Ok(())
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
    /// Sees that there is room for the receives that the peer will know of.
    fn reserve_first(&mut self, first: u32) -> Result<(), Unavailable> {
        self.first = first as usize;
        self.pair.reserve_receives(first).map_err(|size| {
            let words = format!(
                "the shared receive queue of {size} has no room for another connection's {first} receives; raise srq_size"
            );
            Unavailable::new(Cause::Resources, words)
        })
    }

    /// Posts a block for every receive that the peer will know of, before it can send anything.
    fn fill(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
        parameters: &QpParameters,
    ) -> Result<(), Unavailable> {
        self.pair.fill(blocks, self.first, parameters.slot_size as usize)
    }

    /// Whether both sides' probes have come through.
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
            return Err(Unavailable::new(Cause::Resources, "the pool has no room for headers now"));
        }
        let mut list = pair.qp.start_post_send();
        let id = wr_id::encode(pair.generation, WrId::Probe);
        let send = list.construct_wr(id, WorkRequestFlags::Signaled).setup_send();
        if inline {
            send.setup_inline_data(&bytes);
        } else {
            // SAFETY: the probe is the first request of the queue pair, so no request under way has this place.
            let head = unsafe { pair.heads.write(0, &bytes) };
            // SAFETY: the pair keeps the heads, and nobody writes to them, until `probes` have completed. The send queue is empty.
            unsafe { send.setup_sge_list(&[head]) };
        }
        // If the device does not say that it was not posted, it was.
        let posted = list.post();
        self.probe.sent = true;
        pair.probes = usize::from(!matches!(&posted, Err(error) if error.posted() == Some(0)));
        posted.map_err(|error| failed(&error))
    }

    /// Takes what has completed, unless a worker does. Fails if the path has.
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
            self.probe.record(completed);
        } else if self.early.len() <= self.first {
            // One that sends more than it was granted fills no memory, and ends its connection by the first that is too many.
            self.early.push(completed);
        }
    }
}

impl PathProbe {
    fn record<B: DeviceBlock>(&mut self, completed: WorkCompletion<B>) {
        if let Some(failure) = completed.failure() {
            // The first says why; what is flushed behind it does not.
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
