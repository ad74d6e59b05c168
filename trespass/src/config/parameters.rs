//! The parameters of a configuration and their defaults. Only
//! [`Builder::build`](super::Builder::build) makes one for use.

use std::sync::LazyLock;
use std::time::Duration;

use super::check::check;
use super::environment::DeviceName;
use crate::pool::{HugePages, Pool, PoolConfig};
use crate::protocol::{self, ConnectionSetup, LinkType};
use crate::wire::{Limits, Policy};

const MIB: usize = 1 << 20;

/// A checked configuration, made by [`Builder::build`](super::Builder::build). Any number of
/// connections and listeners can use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    // Frames and messages.
    pub(crate) slot_size: u32,
    /// The program has set the slot size or the number of slots.
    pub(crate) slots_are_chosen: bool,
    pub(crate) rx_slots: u32,
    pub(crate) reserve: u32,
    pub(crate) eager_max: u32,
    pub(crate) max_msg: u64,
    pub(crate) rcvbuf: usize,
    pub(crate) sndbuf: usize,
    pub(crate) coalescing: bool,
    pub(crate) immediate: bool,
    pub(crate) inline: u32,
    // Rendezvous.
    pub(crate) rendezvous: bool,
    pub(crate) max_rts: u16,
    pub(crate) rd_atomic: u8,
    pub(crate) read_piece: u32,
    pub(crate) staged_block: u32,
    pub(crate) registrations: usize,
    // Memory.
    pub(crate) pool_initial: usize,
    pub(crate) pool_prewarm: usize,
    pub(crate) pool_max: usize,
    pub(crate) pool_high_water: u8,
    pub(crate) huge_pages: bool,
    pub(crate) given_pool: Option<Pool>,
    pub(crate) srq: bool,
    pub(crate) srq_size: u32,
    pub(crate) srq_alone: bool,
    // The transport.
    pub(crate) bootstrap: Bootstrap,
    pub(crate) policy: Policy,
    pub(crate) policy_of_environment: bool,
    /// In the program's order; empty for the device with the socket's address.
    pub(crate) devices: Vec<DeviceName>,
    pub(crate) rails_after: u64,
    pub(crate) rail_timeout: Duration,
    pub(crate) rail_backoff: Duration,
    pub(crate) gid_index: Option<u8>,
    pub(crate) path_mtu: Option<u16>,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) hop_limit: u8,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    // Times.
    pub(crate) probe_timeout: Duration,
    pub(crate) handshake_deadline: Duration,
    pub(crate) linger: Duration,
    pub(crate) exit_timeout: Duration,
    pub(crate) keepalive: Option<Duration>,
    pub(crate) control_keepalive: Option<Duration>,
    pub(crate) spin: Duration,
    pub(crate) worker_spin: Duration,
    pub(crate) trace_interval: Option<Duration>,
    // Local addresses, listeners, and the bytes for the peer.
    pub(crate) bind_host: Option<String>,
    pub(crate) bind_interface: Option<String>,
    pub(crate) hostname: Option<String>,
    pub(crate) port: u16,
    pub(crate) backlog: u32,
    pub(crate) bind_patience: Duration,
    pub(crate) reuse_port: bool,
    pub(crate) plain_tcp: bool,
    pub(crate) user_data: Vec<u8>,
}

/// How a connection begins, and how a listener is reached. Both sides must use the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bootstrap {
    /// Over a TCP connection, on which both sides agree on RDMA, and which carries the data if RDMA
    /// does not work.
    #[default]
    Tcp,
    /// Over rdma_cm: iWARP needs it, and InfiniBand or hosts without TCP can use it. The connection
    /// uses RDMA or fails. The ports are not TCP's, and the addresses are those of interfaces with
    /// RDMA devices.
    RdmaCm,
}

/// Bytes of a slot, with own receives and with shared ones.
pub(super) const SLOT: u32 = 8 << 10;
pub(super) const SHARED_SLOT: u32 = 4 << 10;

/// Receives of a connection.
const RX_SLOTS: u32 = 56;

/// The same for a device with expensive frames: fewer and larger slots of the same total size.
const LONG_SLOT: u32 = 16 << 10;
const LONG_RX_SLOTS: u32 = 28;

/// The port of a listener whose address the configuration names, as in Alluxio.
const PORT: u16 = 59999;

/// The upper bound of a handshake's time limit.
pub(super) const LONGEST_HANDSHAKE: Duration = Duration::from_secs(600);

/// Bytes of a frame header, which precedes a slot's payload.
const FRAME_HEADER: u64 = 16;

/// Inline data: a message of 256 bytes with its header.
const INLINE: u32 = 256 + FRAME_HEADER as u32;

/// The default spin time with more than one processor.
const SPIN: Duration = Duration::from_micros(200);

/// Whether the process may use one processor only. Spinning would keep the peer from it.
pub(crate) static ONE_PROCESSOR: LazyLock<bool> =
    LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|count| count.get() == 1));

impl Default for Config {
    fn default() -> Self {
        Self {
            slot_size: SLOT,
            slots_are_chosen: false,
            rx_slots: RX_SLOTS,
            reserve: 2,
            eager_max: 16 << 10,
            max_msg: Limits::MAX_MSG,
            rcvbuf: MIB,
            sndbuf: MIB,
            coalescing: true,
            immediate: true,
            inline: INLINE,
            rendezvous: true,
            max_rts: 16,
            rd_atomic: 16,
            read_piece: 1 << 20,
            staged_block: 256 << 10,
            registrations: 64 * MIB,
            pool_initial: 64 * MIB,
            pool_prewarm: 4 * MIB,
            pool_max: 1024 * MIB,
            pool_high_water: 80,
            huge_pages: false,
            given_pool: None,
            srq: false,
            srq_size: 16 << 10,
            srq_alone: false,
            bootstrap: Bootstrap::Tcp,
            policy: Policy::Auto,
            policy_of_environment: false,
            devices: Vec::new(),
            rails_after: 256 << 10,
            rail_timeout: Duration::from_secs(3),
            rail_backoff: Duration::from_millis(100),
            gid_index: None,
            path_mtu: None,
            traffic_class: 0,
            service_level: 0,
            hop_limit: 64,
            ack_timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            probe_timeout: Duration::from_millis(300),
            handshake_deadline: Duration::from_secs(5),
            linger: Duration::from_secs(10),
            exit_timeout: Duration::from_secs(10),
            keepalive: Some(Duration::from_secs(5)),
            control_keepalive: Some(Duration::from_secs(25)),
            spin: if *ONE_PROCESSOR { Duration::ZERO } else { SPIN },
            worker_spin: Duration::ZERO,
            trace_interval: Some(Duration::from_secs(20)),
            bind_host: None,
            bind_interface: None,
            hostname: None,
            port: PORT,
            backlog: 1024,
            bind_patience: Duration::ZERO,
            reuse_port: false,
            plain_tcp: false,
            user_data: Vec::new(),
        }
    }
}

impl Config {
    /// The minimum of `eager_max`, because the peer does not READ what fits a slot.
    pub(super) fn least_eager_max(&self) -> u64 {
        u64::from(self.slot_size).saturating_sub(FRAME_HEADER).min(self.max_msg)
    }

    /// The configuration for a device that wants long frames. `None` if the program has set a
    /// conflicting parameter.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "TCP has no slots"))]
    pub(crate) fn with_long_frames(&self) -> Option<Self> {
        if self.slots_are_chosen || self.srq || self.given_pool.is_some() {
            return None;
        }
        let mut config = Self { slot_size: LONG_SLOT, rx_slots: LONG_RX_SLOTS, ..self.clone() };
        config.eager_max = config.suitable_eager_max();
        check(&config).is_ok().then_some(config)
    }

    /// `eager_max` raised to a slot's payload and lowered to the maximum message.
    pub(super) fn suitable_eager_max(&self) -> u32 {
        self.least_eager_max().max(self.eager_max.into()).min(self.max_msg) as u32
    }

    /// The configuration of the pool that its connections share, and the minimum for
    /// [`Builder::pool`](super::Builder::pool).
    #[must_use]
    pub fn pool_config(&self) -> PoolConfig {
        let standing = |slots: u32| slots as usize * self.slot_size as usize;
        let one = self.needs();
        // The shared slots are allocated whatever the number of connections.
        let shared = if self.srq { standing(self.srq_size) } else { 0 };
        PoolConfig {
            slot_size: self.slot_size as usize,
            initial: self.pool_initial,
            prewarm: self.pool_prewarm,
            max: self.pool_max,
            huge_pages: if self.huge_pages { HugePages::Wanted } else { HugePages::Never },
            send_slots: ENDS * one.send_slots(),
            receive_slots: ENDS * (one.receive_slots() + shared),
            receive_staged: ENDS * one.receive_staged(),
            receive_margin: ENDS * (one.receive_slots() - standing(self.rx_slots)),
            registrations: self.registrations,
            high_water: self.pool_high_water,
        }
    }

    /// The memory needs of a connection.
    fn needs(&self) -> ConnectionSetup {
        let mut setup = ConnectionSetup::new(protocol::ConnectionKind::Stream, LinkType::Rc);
        (setup.own.slot_size, setup.own.rx_slots) = (self.slot_size, self.rx_slots);
        setup.peer = setup.own;
        (setup.rcvbuf, setup.sndbuf, setup.read_piece) = (self.rcvbuf, self.sndbuf, self.read_piece as usize);
        setup
    }
}

/// Both ends of a connection may be in one process and share a pool.
const ENDS: usize = 2;
