//! What the handshake asks of a queue pair: to be made, to be connected, and to show that data comes through it.

use std::io;
use std::task::Poll;
use std::time::Instant;

use mio::{Registry, Token};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::Gid;
use sideway::ibverbs::connect::{ConnectError, ConnectOptions, Endpoint as Reached, LocalPath, connect};
use sideway::ibverbs::port::{LinkLayer, Mtu};
use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, WorkRequestFlags};

use super::DeviceBlock;
use super::device::Place;
use super::hub::{Completed, Seat, What};
use super::number::{self, Request};
use super::pair::Kept;
use crate::builder::Config;
use crate::handshake::{Agreed, Attempt, Cause, DataPath, Unavailable};
use crate::protocol::Blocks;
use crate::wire::{self, Endpoint, Probe, Role, device_hash};

/// What a queue pair is made and connected with.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
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

impl Parameters {
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

/// A queue pair on its way to a [`link`](super::link::Rc).
pub(crate) struct Path<P: Blocks<Block: DeviceBlock>> {
    place: Place,
    parameters: Parameters,
    blocks: P,
    /// Where it is to complete, if a worker makes it.
    seat: Option<Seat<P::Block>>,
    made: Option<Made<P::Block>>,
}

struct Made<B: DeviceBlock> {
    pair: Kept<B>,
    trial: Trial,
    /// What the peer was told.
    own: Reached,
    /// What has come of the connection itself: the peer may know before this side that the path works.
    early: Vec<Completed<B>>,
    /// Receives that the peer knows of when it begins.
    first: usize,
}

/// A pair that works, and what there is of its connection.
pub(super) struct Proved<B: DeviceBlock> {
    pub(super) pair: Kept<B>,
    pub(super) early: Early<B>,
}

/// What there is of a connection when its handshake is done.
pub(super) struct Early<B> {
    /// Receives that were granted.
    pub(super) first: usize,
    /// What has completed since, and is out of the pair's queues.
    pub(super) completed: Vec<Completed<B>>,
}

/// How far the path is tried.
struct Trial {
    attempt: Attempt,
    /// This side's probe was sent; the pair knows whether it was acknowledged.
    sent: bool,
    /// The peer's probe has come.
    heard: bool,
    /// It does not work.
    failed: Option<Unavailable>,
}

impl<P: Blocks<Block: DeviceBlock>> Path<P> {
    /// Nothing is made yet. The blocks are registered in the domain of the place's device.
    pub(crate) fn new(place: Place, parameters: Parameters, blocks: P) -> Self {
        Self { place, parameters, blocks, seat: None, made: None }
    }

    /// The same, to complete where a worker hears of it, if there is room.
    pub(crate) fn at(self, seat: Option<Seat<P::Block>>) -> Self {
        Self { seat, ..self }
    }

    /// Where its blocks come from.
    pub(crate) fn blocks(&self) -> &P {
        &self.blocks
    }

    pub(super) fn slot_size(&self) -> usize {
        self.parameters.slot_size as usize
    }

    /// As [`Kept::watch`].
    pub(crate) fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<bool> {
        self.made.as_mut().map_or(Ok(false), |made| made.pair.watch(registry, token))
    }

    /// As [`Kept::unwatch`].
    pub(crate) fn unwatch(&mut self, registry: &Registry) -> io::Result<()> {
        self.made.as_mut().map_or(Ok(()), |made| made.pair.unwatch(registry))
    }

    /// Something has completed, and a worker hands it on.
    pub(crate) fn completed(&mut self, completed: Completed<P::Block>) {
        if let Some(made) = &mut self.made {
            made.completed(completed);
        }
    }

    /// The worker's completion queue is of no use any more.
    pub(crate) fn cut_off(&mut self, error: &io::Error) {
        if let Some(Made { trial, pair, .. }) = &mut self.made
            && pair.own_hub().is_none()
        {
            trial.failed = Some(failed(error));
        }
    }

    /// What has proved to work, and what has come of the connection meanwhile.
    pub(super) fn into_proved(self) -> Option<Proved<P::Block>> {
        self.made
            .map(|Made { pair, early, first, .. }| Proved { pair, early: Early { completed: early, first } })
    }

    /// Whether something of the connection itself has come.
    #[cfg(test)]
    pub(super) fn has_early(&self) -> bool {
        self.made.as_ref().is_some_and(|made| !made.early.is_empty())
    }

    fn mtu(&self) -> Mtu {
        let wanted = self.parameters.path_mtu.and_then(|bytes| Mtu::from_bytes(bytes.into()));
        wanted.map_or(self.place.path.mtu(), |wanted| wanted.min(self.place.path.mtu()))
    }
}

impl<P: Blocks<Block: DeviceBlock>> DataPath for Path<P> {
    fn prepare(&mut self, attempt: Attempt) -> Result<Endpoint, Unavailable> {
        let Place { device, .. } = &self.place;
        let pair = Kept::new(device, &self.place.describe(), &self.parameters, self.seat.as_ref())?;
        let random =
            getrandom::u32().map_err(|error| Unavailable::new(Cause::Resources, error.to_string()))?;
        let own = Reached::new(&pair.qp, &self.place.path, random);
        let path = &self.place.path;
        let told = Endpoint {
            qp_num: own.qp_number,
            psn: own.packet_seq_num,
            gid: path.gid().unwrap_or(Gid::ZERO).raw,
            lid: path.lid(),
            mtu: self.mtu().raw().clamp(1, 5) as u8,
            link_layer: link_layer(path),
            service_level: self.parameters.service_level,
            traffic_class: self.parameters.traffic_class,
            device: device_hash(self.place.device.name()),
        };
        let trial = Trial { attempt, sent: false, heard: false, failed: None };
        self.made = Some(Made { pair, trial, own, early: Vec::new(), first: 0 });
        Ok(told)
    }

    fn connect(&mut self, peer: &Endpoint, agreed: &Agreed) -> Result<(), Unavailable> {
        let (mtu, parameters) = (self.mtu(), &self.parameters);
        let made =
            self.made.as_mut().ok_or_else(|| Unavailable::new(Cause::Connect, "nothing was prepared"))?;
        let gid = Gid { raw: peer.gid };
        let remote = Reached {
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
        made.begin_with(agreed.first_slots.0)?;
        let connection = connect(&mut made.pair.qp, &self.place.path, &made.own, &remote, &options)?;
        made.fill(&mut self.blocks, parameters)?;
        tracing::debug!(
            place = made.pair.whence, qp = made.own.qp_number, peer = peer.qp_num, %connection,
            inline = made.pair.heads.inline, "queue pair connected"
        );
        Ok(())
    }

    fn probe(&mut self, _: Instant) -> Poll<Result<(), Unavailable>> {
        let Some(made) = self.made.as_mut() else {
            return Poll::Ready(Err(Unavailable::new(Cause::ProbeFailed, "nothing was prepared")));
        };
        match made.probe(&mut self.blocks, &self.parameters) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<B: DeviceBlock> Made<B> {
    /// Sees that there is room for the receives that the peer will know of.
    fn begin_with(&mut self, first: u32) -> Result<(), Unavailable> {
        self.first = first as usize;
        self.pair.admit(first).map_err(|size| {
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
        parameters: &Parameters,
    ) -> Result<(), Unavailable> {
        self.pair.fill(blocks, self.first, parameters.slot_size as usize)
    }

    /// Whether both sides' probes have come through.
    fn probe(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
        parameters: &Parameters,
    ) -> Result<bool, Unavailable> {
        if self.trial.attempt.role == Role::Client && !self.trial.sent {
            self.send_probe(blocks)?;
        }
        self.look()?;
        self.fill(blocks, parameters)?;
        if self.trial.heard && !self.trial.sent {
            self.send_probe(blocks)?;
            self.look()?;
        }
        Ok(self.is_proved())
    }

    fn is_proved(&self) -> bool {
        self.trial.heard && self.trial.sent && self.pair.probes == 0
    }

    fn send_probe(&mut self, blocks: &mut impl Blocks<Block = B>) -> Result<(), Unavailable> {
        let Attempt { conn_id, generation, role } = self.trial.attempt;
        let bytes = Probe { conn_id, generation, role }.encode();
        let pair = &mut *self.pair;
        let inline = bytes.len() <= pair.heads.inline;
        if !inline && !pair.heads.prepare(blocks) {
            return Err(Unavailable::new(Cause::Resources, "the pool has no room for headers now"));
        }
        let mut list = pair.qp.start_post_send();
        let id = number::number(pair.generation, Request::Probe);
        let send = list.construct_wr(id, WorkRequestFlags::Signaled).setup_send();
        if inline {
            send.setup_inline_data(&bytes);
        } else {
            // SAFETY: nothing else is under way.
            let head = unsafe { pair.heads.write(0, &bytes) };
            // SAFETY: the pair keeps the heads, and nobody writes to them, until `probes` have completed. The send queue is empty.
            unsafe { send.setup_sge_list(&[head]) };
        }
        // If the device does not say that it was not posted, it was.
        let posted = list.post();
        self.trial.sent = true;
        pair.probes = usize::from(!matches!(&posted, Err(error) if error.posted() == Some(0)));
        posted.map_err(|error| failed(&error))
    }

    /// Takes what has completed, unless a worker does. Fails if the path has.
    fn look(&mut self) -> Result<(), Unavailable> {
        let mut come = Vec::new();
        if let Some(hub) = self.pair.own_hub() {
            hub.reap(|_, completed| come.push(completed)).map_err(|error| failed(&error))?;
        }
        come.into_iter().for_each(|completed| self.completed(completed));
        self.trial.failed.take().map_or(Ok(()), Err)
    }

    fn completed(&mut self, completed: Completed<B>) {
        let is_proved = self.is_proved();
        let completed = self.pair.settle(completed);
        if !is_proved {
            self.trial.heed(completed);
        } else if self.early.len() <= self.first {
            // One that sends more than it was granted fills no memory, and ends its connection by the first that is too many.
            self.early.push(completed);
        }
    }
}

impl Trial {
    fn heed<B: DeviceBlock>(&mut self, completed: Completed<B>) {
        if let Some(failure) = completed.failure() {
            // The first says why; what is flushed behind it does not.
            self.failed.get_or_insert(failure);
            return;
        }
        let Completed { what: What::Received(_, Some(block)), len, .. } = completed else { return };
        let Attempt { conn_id, generation, role } = self.attempt;
        let other = if role == Role::Client { Role::Server } else { Role::Client };
        let len = len.min(block.bytes().len());
        if (Probe { conn_id, generation, role: other }).is(&block.bytes()[..len]) {
            self.heard = true;
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
