//! The connection manager itself: ids, their states and timers, and what they say to each other. It does no input or output
//! of its own: what comes in are calls, messages and the time, and what goes out goes by a [`Transport`].
//!
//! The states are the kernel's: [`State`] those of its `cma.c`, which programs see as what a call may do, [`Handshake`] those of
//! its `cm.c`, which are the specification's (12.9.5).

mod attributes;
mod connect;
mod datagram;
mod destroy;
mod events;
mod faults;
mod line;
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

use super::fabric::Fabric;
use super::message::Message;
use super::ports::Ports;
use super::slab::Slab;
use super::transport::Transport;
use super::types::{Ece, IdNumber, Path, PortSpace, Route};
use crate::status::Identifiers;
pub(super) use events::QueueNumber;
use events::{Bells, Queue};
use faults::Delayed;
use line::Own;
use multicast::Join;
use timers::Timers;

/// The process itself, where blocks tell processes apart.
const HERE: u16 = 0;

/// The longest path: 4 KiB messages, as every port has.
const MTU: u8 = 5;
/// Hops of a packet that may leave the network, and of one that may not.
const HOPS: u8 = 64;
/// 4.096 us times two to the power of this, as the kernel assumes of RoCE.
const PACKET_LIFE_TIME: u8 = 16;
/// How often a message is sent again, as the kernel does.
const RETRIES: u8 = 15;
/// How many requests wait to be taken, at most. (The kernel's limit is its administrator's, 1024 by itself; what finds no room comes
/// again after seconds.)
const MAX_BACKLOG: u32 = 1 << 16;
/// The key of datagrams (`RDMA_UDP_QKEY`).
const UDP_QKEY: u32 = 0x0123_4567;

const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);

/// Reasons of a rejection (12.6.7.2).
mod reason {
    pub(super) const TIMEOUT: u8 = 4;
    pub(super) const INVALID_SERVICE_ID: u8 = 8;
    pub(super) const STALE_CONNECTION: u8 = 10;
    pub(super) const CONSUMER_DEFINED: u8 = 28;
}

/// Statuses of an answer to who asks for datagrams (12.11.2).
mod sidr {
    pub(super) const SUCCESS: u8 = 0;
    pub(super) const UNSUPPORTED: u8 = 1;
    pub(super) const REJECT: u8 = 2;
}

/// What calls an id allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Bound,
    /// Nobody has answered for the destination yet.
    AddrQuery,
    AddrResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
    /// Its device is gone.
    Removed,
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handshake {
    /// There has been none.
    None,
    /// It is over.
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

/// An id's side of a connection, and what it knows of the other.
#[derive(Debug)]
struct Connection {
    handshake: Handshake,
    /// The other side's process; unknown as long as it is not known who has the port.
    peer: Option<u16>,
    /// Who has the port was said from memory: if it is not true, it is asked for again.
    remembered: bool,
    /// The other side's number of the connection, or 0.
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
    /// What is sent again if nobody answers, how often still, and after what time.
    unanswered: Option<Box<Message>>,
    tries: u8,
    interval: Duration,
}

impl Connection {
    fn new(handshake: Handshake) -> Self {
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

/// An id.
struct Id {
    queue: QueueNumber,
    uid: u64,
    space: PortSpace,
    qp_type: ibv_qp_type,
    state: State,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    /// It is entered under the port of its source.
    has_port: bool,
    path: Option<Path>,
    dgid: Option<[u8; 16]>,
    /// What `RDMA_OPTION_IB_PATH` said, where that is not what there is anyway.
    set_path: Option<resolve::SetPath>,
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
    connection: Connection,
    joins: Vec<u64>,
    deadline: Option<Instant>,
    /// Events that were taken, and those that wait.
    reported: u32,
    waiting: Own,
}

/// The connection manager of a process.
pub(super) struct Switch {
    fabric: Fabric,
    transport: Arc<dyn Transport>,
    scale: f64,
    ids: Slab<Id>,
    queues: Slab<Queue>,
    /// Of channels that have new events.
    bells: Bells,
    joins: Slab<Join>,
    ports: Ports,
    /// The ids of requests by who asked: his process, and his number.
    requests: HashMap<(u16, u64), IdNumber>,
    /// The same by his queue pair: his process, his address, and its number.
    pairs: HashMap<(u16, [u8; 16], u32), IdNumber>,
    timers: Timers,
    /// To this process itself, and who says so. They are heard before the call that sent the first of them returns.
    inbox: VecDeque<(u16, Message)>,
    /// What fault rules hold back.
    delayed: Delayed,
    /// Processes that could not be told something: as good as gone.
    lost: Vec<u16>,
    buffer: Vec<u8>,
    psns: u64,
}

impl Switch {
    pub(super) fn new(fabric: Fabric, transport: Arc<dyn Transport>, scale: f64, seed: u64) -> Self {
        Self {
            fabric,
            transport,
            scale,
            ids: Slab::default(),
            queues: Slab::default(),
            bells: Bells::new(),
            joins: Slab::default(),
            ports: Ports::default(),
            requests: HashMap::new(),
            pairs: HashMap::new(),
            timers: Timers::default(),
            inbox: VecDeque::new(),
            delayed: Delayed::default(),
            lost: Vec::new(),
            buffer: Vec::with_capacity(super::message::MESSAGE),
            psns: seed,
        }
    }

    fn id(&self, id: IdNumber) -> Result<&Id, c_int> {
        self.ids.get(id.0).ok_or(libc::ENOENT)
    }

    fn id_mut(&mut self, id: IdNumber) -> Result<&mut Id, c_int> {
        self.ids.get_mut(id.0).ok_or(libc::ENOENT)
    }

    /// An id with a device.
    fn placed(&mut self, id: IdNumber) -> Result<(&mut Id, Path), c_int> {
        let id = self.id_mut(id)?;
        let path = id.path.ok_or(libc::EINVAL)?;
        Ok((id, path))
    }

    fn insert(&mut self, queue: QueueNumber, uid: u64, space: PortSpace, qp_type: ibv_qp_type) -> IdNumber {
        // Anything that is not soon the same again.
        self.psns = self.psns.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let psn = (self.psns ^ self.psns >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
        let id = Id {
            queue,
            uid,
            space,
            qp_type,
            state: State::Idle,
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
            connection: Connection::new(Handshake::None),
            joins: Vec::new(),
            deadline: None,
            reported: 0,
            waiting: Own::NONE,
        };
        if let Some(queue) = self.queues.get_mut(queue.0) {
            queue.ids += 1;
        }
        IdNumber(self.ids.insert(id))
    }

    /// As [`Manager::create`](super::Manager::create).
    pub(super) fn create(
        &mut self,
        queue: QueueNumber,
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

    pub(super) fn route(&self, id: IdNumber) -> Result<Route, c_int> {
        let id = self.id(id)?;
        let (traffic_class, packet_life_time) = (id.traffic_class(), id.packet_life_time());
        let resolved = matches!(id.state, State::RouteResolved | State::Connect | State::Disconnect)
            && id.path.is_some();
        Ok(Route {
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

    /// Sends a message, unless a fault rule is against it.
    fn send(&mut self, peer: u16, message: Message) {
        if crate::faults::active() {
            return self.send_by_rules(peer, message);
        }
        self.deliver(peer, message);
    }

    fn deliver(&mut self, peer: u16, message: Message) {
        if peer == HERE {
            return self.inbox.push_back((HERE, message));
        }
        self.buffer.clear();
        message.encode(&mut self.buffer);
        if let Err(error) = self.transport.send(peer, &self.buffer) {
            log::warn!("the process with block {peer} cannot be told of connections: {error}");
            self.lost.push(peer);
        }
    }

    /// Hears what this process has said to itself, until it is silent. To be called after everything that may send.
    fn full_fence(&mut self, now: Instant) {
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

    /// A time of the kernel's, in this device's. A program may say any time; none is meant to be longer than a year.
    fn scaled(&self, time: Duration) -> Duration {
        time.min(YEAR).mul_f64(self.scale)
    }

    pub(super) fn identifiers(&self) -> Identifiers {
        let mut found = Identifiers::default();
        for (_, id) in self.ids.iter() {
            found.count += 1;
            found.listening += u32::from(id.state == State::Listen);
            found.connected += u32::from(id.connection.handshake == Handshake::Established);
        }
        found
    }

    /// What there is: ids, ports, memberships, requests by both of their names, timers.
    #[cfg(any(fuzzing, all(test, not(loom))))]
    pub(super) fn counts(&self) -> [usize; 6] {
        let requests = [self.requests.len(), self.pairs.len()];
        [self.ids.len(), self.ports.len(), self.joins.len(), requests[0], requests[1], self.timers.len()]
    }
}

impl Id {
    fn traffic_class(&self) -> u8 {
        self.set_path.map_or_else(|| self.tos.unwrap_or(0), |path| path.traffic_class)
    }

    fn packet_life_time(&self) -> u8 {
        self.set_path.map_or_else(
            || self.ack_timeout.map_or(PACKET_LIFE_TIME, |timeout| timeout.saturating_sub(1)),
            |path| path.packet_life_time,
        )
    }

    /// Whether it is about datagrams.
    fn is_datagram(&self) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_UD
    }
}

/// The specification's times, 4.096 us times two to the power of an exponent, as the kernel rounds them: to milliseconds.
fn milliseconds(exponent: u8) -> Duration {
    Duration::from_millis(1 << exponent.saturating_sub(8).min(31))
}
