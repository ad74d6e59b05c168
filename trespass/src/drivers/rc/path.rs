//! What the handshake asks of a queue pair: to be made, to be connected, and to show that data comes through it.

use std::io;
use std::task::Poll;
use std::time::Instant;

use mio::{Registry, Token};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::Gid;
use sideway::ibverbs::completion::WorkCompletionStatus;
use sideway::ibverbs::connect::{ConnectError, ConnectOptions, Endpoint as Reached, LocalPath, connect};
use sideway::ibverbs::port::{LinkLayer, Mtu};
use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, WorkRequestFlags};

use super::DeviceBlock;
use super::device::Place;
use super::pair::{PROBE, Pair, RECEIVE};
use crate::builder::Config;
use crate::handshake::{Agreed, Attempt, Cause, DataPath, Unavailable};
use crate::protocol::Blocks;
use crate::wire::{self, Endpoint, Probe, Role, device_hash};

/// What a queue pair is made and connected with.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    pub(crate) slot_size: u32,
    pub(crate) rx_slots: u32,
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
    made: Option<Made<P::Block>>,
}

struct Made<B: DeviceBlock> {
    pair: Pair<B>,
    attempt: Attempt,
    /// What the peer was told.
    own: Reached,
    /// This side's probe was sent; the pair knows whether it was acknowledged.
    sent: bool,
    /// The peer's probe has come.
    heard: bool,
}

impl<P: Blocks<Block: DeviceBlock>> Path<P> {
    /// Nothing is made yet. The blocks are registered in the domain of the place's device.
    pub(crate) fn new(place: Place, parameters: Parameters, blocks: P) -> Self {
        Self { place, parameters, blocks, made: None }
    }

    pub(super) fn slot_size(&self) -> usize {
        self.parameters.slot_size as usize
    }

    /// As [`Pair::watch`].
    pub(crate) fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<bool> {
        self.made.as_mut().map_or(Ok(false), |made| made.pair.watch(registry, token))
    }

    /// Ends that.
    pub(crate) fn unwatch(&mut self, registry: &Registry) -> io::Result<()> {
        self.made.as_mut().map_or(Ok(()), |made| made.pair.unwatch(registry))
    }

    /// What has proved to work.
    pub(super) fn into_pair(self) -> Option<Pair<P::Block>> {
        self.made.map(|made| made.pair)
    }

    fn mtu(&self) -> Mtu {
        let wanted = self.parameters.path_mtu.and_then(|bytes| Mtu::from_bytes(bytes.into()));
        wanted.map_or(self.place.path.mtu(), |wanted| wanted.min(self.place.path.mtu()))
    }
}

impl<P: Blocks<Block: DeviceBlock>> DataPath for Path<P> {
    fn prepare(&mut self, attempt: Attempt) -> Result<Endpoint, Unavailable> {
        let pair = Pair::new(&self.place.device, self.place.describe(), &self.parameters, 0)?;
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
        self.made = Some(Made { pair, attempt, own, sent: false, heard: false });
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
        let connection = connect(&mut made.pair.qp, &self.place.path, &made.own, &remote, &options)?;
        made.fill(&mut self.blocks, parameters)?;
        tracing::debug!(
            place = %self.place.describe(), qp = made.own.qp_number, peer = peer.qp_num, %connection,
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
    /// Posts a block for every receive slot, before the peer can send anything.
    fn fill(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
        parameters: &Parameters,
    ) -> Result<(), Unavailable> {
        self.pair.fill(blocks, parameters.rx_slots as usize, parameters.slot_size as usize)
    }

    /// Whether both sides' probes have come through.
    fn probe(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
        parameters: &Parameters,
    ) -> Result<bool, Unavailable> {
        if self.attempt.role == Role::Client && !self.sent {
            self.send_probe(blocks)?;
        }
        self.look()?;
        self.fill(blocks, parameters)?;
        if self.heard && !self.sent {
            self.send_probe(blocks)?;
            self.look()?;
        }
        Ok(self.heard && self.sent && self.pair.probes == 0)
    }

    fn send_probe(&mut self, blocks: &mut impl Blocks<Block = B>) -> Result<(), Unavailable> {
        let Attempt { conn_id, generation, role } = self.attempt;
        let bytes = Probe { conn_id, generation, role }.encode();
        let pair = &mut self.pair;
        let inline = bytes.len() <= pair.heads.inline;
        if !inline && !pair.heads.prepare(blocks) {
            return Err(Unavailable::new(Cause::Resources, "the pool has no room for headers now"));
        }
        let mut list = pair.qp.start_post_send();
        let send = list.construct_wr(PROBE, WorkRequestFlags::Signaled).setup_send();
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
        self.sent = true;
        pair.probes = usize::from(!matches!(&posted, Err(error) if error.posted() == Some(0)));
        posted.map_err(|error| failed(&error))
    }

    fn look(&mut self) -> Result<(), Unavailable> {
        let Attempt { conn_id, generation, role } = self.attempt;
        let other = if role == Role::Client { Role::Server } else { Role::Client };
        let expected = Probe { conn_id, generation, role: other };
        let Pair { cq, receives, probes, .. } = &mut self.pair;
        let mut poller = cq.start_poll().map_err(|error| failed(&error))?;
        while let Some(completion) = poller.next() {
            let (id, status) = (completion.wr_id(), completion.status());
            let block = if id & RECEIVE != 0 { receives.complete(id) } else { None };
            *probes -= usize::from(id == PROBE && *probes > 0);
            if status != WorkCompletionStatus::Success {
                let vendor = completion.vendor_err();
                let hint = status.hint().unwrap_or("no more is known");
                let detail = format!("{status}, vendor error {vendor:#x}: {hint}");
                return Err(Unavailable::new(Cause::ProbeFailed, detail));
            }
            let Some(block) = block else { continue };
            let len = (completion.byte_len().unwrap_or(0) as usize).min(block.bytes().len());
            if expected.is(&block.bytes()[..len]) {
                self.heard = true;
            } else {
                tracing::debug!("something else than the probe has come over a queue pair: {len} bytes");
            }
        }
        poller.finish().map_err(|error| failed(&error))
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
