//! The parameters of a configuration and their start values. Only
//! [`Builder::build`](super::Builder::build) makes one for use.

use std::sync::LazyLock;
use std::time::Duration;

use super::check::check;
use super::environment::DeviceName;
use crate::pool::{HugePages, Pool, PoolConfig};
use crate::protocol::{self, ConnectionSetup, LinkType};
use crate::wire::{Limits, Policy};

const MIB: usize = 1 << 20;

/// What [`Builder::build`](super::Builder::build) has found to be consistent. It can be used for any number of connections and listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    // Frames and messages.
    pub(crate) slot_size: u32,
    /// The program has chosen that, or how many there are.
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
    // Which way.
    pub(crate) bootstrap: Bootstrap,
    pub(crate) policy: Policy,
    pub(crate) policy_of_environment: bool,
    pub(crate) device: Option<DeviceName>,
    pub(crate) gid_index: Option<u8>,
    pub(crate) path_mtu: Option<u16>,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) hop_limit: u8,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    // Time.
    pub(crate) probe_timeout: Duration,
    pub(crate) handshake_deadline: Duration,
    pub(crate) linger: Duration,
    pub(crate) keepalive: Option<Duration>,
    pub(crate) spin: Duration,
    pub(crate) worker_spin: Duration,
    pub(crate) trace_interval: Option<Duration>,
    // Listening, and what the peer is told.
    pub(crate) backlog: u32,
    pub(crate) bind_patience: Duration,
    pub(crate) user_data: Vec<u8>,
}

/// How a connection begins, and a listener is reached. Both sides must begin alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bootstrap {
    /// With a TCP connection, over which both sides try RDMA, and which carries the bytes where that does not work.
    #[default]
    Tcp,
    /// With the connection manager of RDMA (rdma_cm): for iWARP, which knows no other way, for InfiniBand, and for whoever wants no TCP.
    /// RDMA carries the bytes, or there is no connection. Its ports are not those of TCP, its addresses are those of the interfaces that
    /// RDMA devices have.
    RdmaCm,
}

/// Bytes of a slot, where connections have their own and where they share.
pub(super) const SLOT: u32 = 8 << 10;
pub(super) const SHARED_SLOT: u32 = 4 << 10;

/// Receives of a connection.
const RX_SLOTS: u32 = 56;

/// The same over a device whose frames are the better the fewer they are: as much memory.
const LONG_SLOT: u32 = 16 << 10;
const LONG_RX_SLOTS: u32 = 28;

/// Bytes of a frame's header, in front of what fits into a slot.
const FRAME_HEADER: u64 = 16;

/// What is given to the device with the request: a message of 256 bytes, with its header.
const INLINE: u32 = 256 + FRAME_HEADER as u32;

/// How long a thread looks for completions, where others can bring them meanwhile.
const SPIN: Duration = Duration::from_micros(200);

/// Whether this process may use one processor only: whoever looks for what others are to bring keeps it from them.
static ONE_PROCESSOR: LazyLock<bool> =
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
            device: None,
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
            linger: Duration::from_secs(1),
            keepalive: Some(Duration::from_secs(5)),
            spin: if *ONE_PROCESSOR { Duration::ZERO } else { SPIN },
            worker_spin: Duration::ZERO,
            trace_interval: Some(Duration::from_secs(20)),
            backlog: 1024,
            bind_patience: Duration::ZERO,
            user_data: Vec::new(),
        }
    }
}

impl Config {
    /// What fits into a slot is never read by the peer.
    pub(super) fn least_eager_max(&self) -> u64 {
        u64::from(self.slot_size).saturating_sub(FRAME_HEADER).min(self.max_msg)
    }

    /// The same over a device that wants long frames, if that is another: the program has chosen nothing that does not go together with it.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "TCP has no slots"))]
    pub(crate) fn with_long_frames(&self) -> Option<Self> {
        if self.slots_are_chosen || self.srq || self.given_pool.is_some() {
            return None;
        }
        let mut config = Self { slot_size: LONG_SLOT, rx_slots: LONG_RX_SLOTS, ..self.clone() };
        config.eager_max = config.suitable_eager_max();
        check(&config).is_ok().then_some(config)
    }

    /// What fits into a slot is never read by the peer; a message is no longer than it may be.
    pub(super) fn suitable_eager_max(&self) -> u32 {
        self.least_eager_max().max(self.eager_max.into()).min(self.max_msg) as u32
    }

    /// The pool that its connections share: what a pool that is made for them ([`Builder::pool`](super::Builder::pool)) must have at least.
    #[must_use]
    pub fn pool_config(&self) -> PoolConfig {
        let standing = |slots: u32| slots as usize * self.slot_size as usize;
        let one = self.needs();
        // Slots that connections share are there however many connections there are.
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

    /// What a connection needs memory for.
    fn needs(&self) -> ConnectionSetup {
        let mut setup = ConnectionSetup::new(protocol::ConnectionKind::Stream, LinkType::Rc);
        (setup.own.slot_size, setup.own.rx_slots) = (self.slot_size, self.rx_slots);
        setup.peer = setup.own;
        (setup.rcvbuf, setup.sndbuf, setup.read_piece) = (self.rcvbuf, self.sndbuf, self.read_piece as usize);
        setup
    }
}

/// Both ends of a connection may be in one process, and share its pool.
const ENDS: usize = 2;
