//! The state machine of the connection manager: ids, their states and timers, and the messages
//! between processes.
//!
//! It does no input or output by itself: its inputs are calls, messages and the time, and its
//! outputs go through a [`Transport`].
//!
//! The states are the kernel's. [`IdState`] has the states of its `cma.c`, which determine the
//! calls that a program may make. [`HandshakeState`] has the states of its `cm.c`, which are the
//! specification's (12.9.5).

mod attributes;
mod connect;
mod datagram;
mod destroy;
mod event_list;
mod events;
mod faults;
mod multicast;
mod receive;
mod resolve;
mod timers;

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::ibv_qp_type;

use super::address_table::AddressTable;
use super::message::CmMad;
use super::ports::PortTable;
use super::slab::Slab;
use super::transport::Transport;
use super::types::{CmPath, CmRoute, Ece, IdNumber, PortSpace};
use crate::status::Identifiers;
use event_list::IdEvents;
pub(super) use events::ChannelNumber;
use events::{ChannelQueue, PendingNotifiers};
use faults::DelayedMads;
use multicast::McastJoin;
use timers::IdTimers;

/// The block number that stands for this process itself.
const HERE: u16 = 0;

/// The path MTU as `ibv_mtu`: 4 KiB, as on every port.
const MTU: u8 = 5;
/// The hop limit of packets that may be routed.
const HOPS: u8 = 64;
/// An exponent: the time is 4.096 us times two to the power of this, the kernel's assumption for
/// RoCE.
const PACKET_LIFE_TIME: u8 = 16;
/// How often a message is repeated, as in the kernel.
const RETRIES: u8 = 15;
/// The most requests that may wait to be taken. In the kernel the administrator sets this limit,
/// 1024 by default. A request that finds no room is repeated by its sender after seconds.
const MAX_BACKLOG: u32 = 1 << 16;
/// The default key of datagrams (`RDMA_UDP_QKEY`).
const UDP_QKEY: u32 = 0x0123_4567;

const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);

/// Reasons of a rejection (12.6.7.2).
mod reason {
    pub(super) const TIMEOUT: u8 = 4;
    pub(super) const INVALID_SERVICE_ID: u8 = 8;
    pub(super) const STALE_CONNECTION: u8 = 10;
    pub(super) const CONSUMER_DEFINED: u8 = 28;
}

/// Statuses of the answer to a datagram request (12.11.2).
mod sidr {
    pub(super) const SUCCESS: u8 = 0;
    pub(super) const UNSUPPORTED: u8 = 1;
    pub(super) const REJECT: u8 = 2;
}

/// The state that determines which calls an id allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdState {
    Idle,
    Bound,
    /// The destination's address is being resolved.
    AddrQuery,
    AddrResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
    /// The device was removed.
    Removed,
}

/// The state of a connection's handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandshakeState {
    /// No connection was requested yet.
    None,
    /// The connection has ended.
    Idle,
    ReqSent,
    ReqReceived,
    RepSent,
    RepReceived,
    Established,
    DreqSent,
    DreqReceived,
    Timewait,
    SidrReqSent,
    SidrReqReceived,
}

/// This end of a connection, and the known properties of the peer.
#[derive(Debug)]
struct CmConnection {
    handshake: HandshakeState,
    /// The peer's block; unknown until the owner of the port is found.
    peer: Option<u16>,
    /// The owner of the port came from the cache. If it proves wrong, it is looked up again.
    remembered: bool,
    /// The peer's number of the connection, or 0.
    remote: u64,
    remote_qp_num: u32,
    remote_psn: u32,
    responder_resources: u8,
    initiator_depth: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    mtu: u8,
    ack_timeout: u8,
    traffic_class: u8,
    /// The message that waits for an answer; below, its remaining repetitions and their interval.
    unanswered: Option<Box<CmMad>>,
    tries: u8,
    interval: Duration,
}

impl CmConnection {
    fn new(handshake: HandshakeState) -> Self {
        Self {
            handshake,
            peer: None,
            remembered: false,
            remote: 0,
            remote_qp_num: 0,
            remote_psn: 0,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            mtu: MTU,
            ack_timeout: PACKET_LIFE_TIME + 1,
            traffic_class: 0,
            unanswered: None,
            tries: 0,
            interval: Duration::ZERO,
        }
    }
}

struct CmId {
    queue: ChannelNumber,
    uid: u64,
    space: PortSpace,
    qp_type: ibv_qp_type,
    state: IdState,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    /// The id is in the port table, under the port of its source.
    has_port: bool,
    path: Option<CmPath>,
    dgid: Option<[u8; 16]>,
    /// The values that `RDMA_OPTION_IB_PATH` has set in place of the defaults.
    set_path: Option<resolve::PathOverride>,
    reuse: bool,
    af_only: Option<bool>,
    tos: Option<u8>,
    ack_timeout: Option<u8>,
    /// How many more requests may wait.
    backlog: u32,
    qp_num: u32,
    srq: bool,
    qkey: Option<u32>,
    psn: u32,
    ece: Ece,
    connection: CmConnection,
    joins: Vec<u64>,
    deadline: Option<Instant>,
    /// The number of taken events; below, the waiting events.
    reported: u32,
    waiting: IdEvents,
}

/// The connection manager of a process.
pub(super) struct CmStateMachine {
    addresses: AddressTable,
    transport: Arc<dyn Transport>,
    scale: f64,
    ids: Slab<CmId>,
    queues: Slab<ChannelQueue>,
    /// The channels with new events.
    pending_notifiers: PendingNotifiers,
    joins: Slab<McastJoin>,
    ports: PortTable,
    /// The ids of received requests, by the sender's block and its number of the connection.
    requests: HashMap<(u16, u64), IdNumber>,
    /// The same ids by the sender's queue pair: block, GID and queue pair number.
    pairs: HashMap<(u16, [u8; 16], u32), IdNumber>,
    timers: IdTimers,
    /// Messages of this process to itself, with their sender's block. They are handled before the
    /// call that sent the first of them returns.
    inbox: VecDeque<(u16, CmMad)>,
    /// The messages that fault rules delay.
    delayed: DelayedMads,
    /// Peers to which a message could not be sent; they are treated as gone.
    lost: Vec<u16>,
    buffer: Vec<u8>,
    psns: u64,
}

impl CmStateMachine {
    pub(super) fn new(addresses: AddressTable, transport: Arc<dyn Transport>, scale: f64, seed: u64) -> Self {
        Self {
            addresses,
            transport,
            scale,
            // A peer may still have a connection of a former manager of this process, which was
            // known by its id's number.
            ids: Slab::starting_at((seed >> 32) as u32),
            queues: Slab::default(),
            pending_notifiers: PendingNotifiers::new(),
            joins: Slab::default(),
            ports: PortTable::default(),
            requests: HashMap::new(),
            pairs: HashMap::new(),
            timers: IdTimers::default(),
            inbox: VecDeque::new(),
            delayed: DelayedMads::default(),
            lost: Vec::new(),
            buffer: Vec::with_capacity(super::message::MESSAGE),
            psns: seed,
        }
    }

    fn id(&self, id: IdNumber) -> Result<&CmId, c_int> {
        self.ids.get(id.0).ok_or(libc::ENOENT)
    }

    fn id_mut(&mut self, id: IdNumber) -> Result<&mut CmId, c_int> {
        self.ids.get_mut(id.0).ok_or(libc::ENOENT)
    }

    /// An id that has a device.
    fn placed(&mut self, id: IdNumber) -> Result<(&mut CmId, CmPath), c_int> {
        let id = self.id_mut(id)?;
        let path = id.path.ok_or(libc::EINVAL)?;
        Ok((id, path))
    }

    fn insert(&mut self, queue: ChannelNumber, uid: u64, space: PortSpace, qp_type: ibv_qp_type) -> IdNumber {
        // A pseudo-random sequence, so that a number does not return soon.
        self.psns = self.psns.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let psn = (self.psns ^ self.psns >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
        let id = CmId {
            queue,
            uid,
            space,
            qp_type,
            state: IdState::Idle,
            source: None,
            destination: None,
            has_port: false,
            path: None,
            dgid: None,
            set_path: None,
            reuse: false,
            af_only: None,
            tos: None,
            ack_timeout: None,
            backlog: 0,
            qp_num: 0,
            srq: false,
            qkey: None,
            psn: psn as u32,
            ece: Ece::default(),
            connection: CmConnection::new(HandshakeState::None),
            joins: Vec::new(),
            deadline: None,
            reported: 0,
            waiting: IdEvents::NONE,
        };
        if let Some(queue) = self.queues.get_mut(queue.0) {
            queue.ids += 1;
        }
        IdNumber(self.ids.insert(id))
    }

    /// See [`ConnectionManager::create`](super::ConnectionManager::create).
    pub(super) fn create(
        &mut self,
        queue: ChannelNumber,
        uid: u64,
        space: PortSpace,
        qp_type: ibv_qp_type,
    ) -> Result<IdNumber, c_int> {
        self.queues.get(queue.0).ok_or(libc::ENOENT)?;
        let qp_type = match space {
            PortSpace::Tcp => ibv_qp_type::IBV_QPT_RC,
            PortSpace::Udp | PortSpace::Ipoib => ibv_qp_type::IBV_QPT_UD,
            PortSpace::Ib => qp_type,
        };
        Ok(self.insert(queue, uid, space, qp_type))
    }

    pub(super) fn set_uid(&mut self, id: IdNumber, uid: u64) -> Result<(), c_int> {
        self.id_mut(id)?.uid = uid;
        Ok(())
    }

    pub(super) fn route(&self, id: IdNumber) -> Result<CmRoute, c_int> {
        let id = self.id(id)?;
        let (traffic_class, packet_life_time) = (id.traffic_class(), id.packet_life_time());
        let resolved = matches!(id.state, IdState::RouteResolved | IdState::Connect | IdState::Disconnect)
            && id.path.is_some();
        Ok(CmRoute {
            source: id.source,
            destination: id.destination,
            path: id.path,
            dgid: id.dgid,
            resolved,
            mtu: id.set_path.map_or(MTU, |path| path.mtu),
            traffic_class,
            hop_limit: HOPS,
            packet_life_time,
        })
    }

    /// Sends a message, unless a fault rule prevents that.
    fn send(&mut self, peer: u16, message: CmMad) {
        if crate::faults::active() {
            return self.send_by_rules(peer, message);
        }
        self.deliver(peer, message);
    }

    fn deliver(&mut self, peer: u16, message: CmMad) {
        if peer == HERE {
            return self.inbox.push_back((HERE, message));
        }
        self.buffer.clear();
        message.encode(&mut self.buffer);
        if let Err(error) = self.transport.send(peer, &self.buffer) {
            log::warn!("a connection message to block {peer} could not be sent: {error}");
            self.lost.push(peer);
        }
    }

    /// Handles this process's messages to itself and its lost peers until none is left. Must follow
    /// every operation that may send.
    fn run_inbox(&mut self, now: Instant) {
        loop {
            if let Some((from, message)) = self.inbox.pop_front() {
                self.receive(from, message, now);
            } else if let Some(peer) = self.lost.pop() {
                self.lose(peer, now);
            } else {
                break;
            }
        }
    }

    /// A time of the kernel, scaled to this device's. A program may give any time; times above a
    /// year are shortened to a year.
    fn scaled(&self, time: Duration) -> Duration {
        time.min(YEAR).mul_f64(self.scale)
    }

    pub(super) fn identifiers(&self) -> Identifiers {
        let mut found = Identifiers::default();
        for (_, id) in self.ids.iter() {
            found.count += 1;
            found.listening += u32::from(id.state == IdState::Listen);
            found.connected += u32::from(id.connection.handshake == HandshakeState::Established);
        }
        found
    }

    /// The numbers of ids, ports, memberships, requests by both of their keys, and timers.
    #[cfg(any(fuzzing, all(test, not(loom))))]
    pub(super) fn counts(&self) -> [usize; 6] {
        let requests = [self.requests.len(), self.pairs.len()];
        [self.ids.len(), self.ports.len(), self.joins.len(), requests[0], requests[1], self.timers.len()]
    }
}

impl CmId {
    fn traffic_class(&self) -> u8 {
        self.set_path.map_or_else(|| self.tos.unwrap_or(0), |path| path.traffic_class)
    }

    fn packet_life_time(&self) -> u8 {
        self.set_path.map_or_else(
            || self.ack_timeout.map_or(PACKET_LIFE_TIME, |timeout| timeout.saturating_sub(1)),
            |path| path.packet_life_time,
        )
    }

    /// Whether the id is for datagrams.
    fn is_datagram(&self) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_UD
    }
}

/// A time of the specification, 4.096 us times two to the power of `exponent`, rounded to
/// milliseconds as in the kernel.
fn milliseconds(exponent: u8) -> Duration {
    Duration::from_millis(1 << exponent.saturating_sub(8).min(31))
}
