//! The parameters of a run, chosen by its seed within the limits of a test.

use super::monitor::HEADER;
use super::rng::SimRng;
use crate::protocol::{self, ConnectionKind, ConnectionSetup, Keepalive, Limits};

/// The transport between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransportKind {
    Rc,
    Tcp,
}

/// A byte stream, or messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KindUnderTest {
    Stream,
    Messages,
}

/// A program's way of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadPolicy {
    /// At every turn.
    Eager,
    /// Rarely.
    Slow,
    /// Not at all, until the simulation makes it.
    Stopped,
}

/// The behaviour of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) writes: bool,
    pub(super) reader: ReadPolicy,
    /// Lends blocks instead of copying, once in this many sends; 0 = never.
    pub(super) zero_copy: usize,
    /// Takes received blocks instead of copying, and holds them, once in this many receives; 0 =
    /// never.
    pub(super) holds: usize,
    /// Sends and receives messages in parts, once in this many; 0 = never.
    pub(super) parts: usize,
    /// Corks and uncorks.
    pub(super) corks: bool,
    pub(super) smallest: usize,
    pub(super) largest: usize,
}

/// All parameters of a run.
#[derive(Clone, Debug)]
pub(super) struct SimPlan {
    pub(super) transport_kind: TransportKind,
    pub(super) shape: KindUnderTest,
    /// The limits that each end announced to the other.
    pub(super) limits: [Limits; 2],
    /// With a shared receive queue: the number of receives beyond those guaranteed to each
    /// connection.
    pub(super) shared: Option<u32>,
    /// Whether both sides support READ, COALESCED, and headers in immediate data.
    pub(super) reads: bool,
    pub(super) coalesce: bool,
    pub(super) immediate: bool,
    pub(super) rcvbuf: usize,
    pub(super) sndbuf: usize,
    pub(super) low_water: usize,
    pub(super) stage: usize,
    pub(super) send_depth: usize,
    /// The most lent blocks in a frame.
    pub(super) gather: usize,
    /// Peers cannot read blocks up to this size.
    pub(super) private: usize,
    /// The device cannot reach one block in `apart`; 0: it reaches all.
    pub(super) apart: u64,
    /// The bytes of memory of each end.
    pub(super) pool: usize,
    /// Sends leave the memory that receiving needs.
    pub(super) purposes: bool,
    /// The first value of the cumulative totals of each direction.
    pub(super) first_total: u32,
    pub(super) keepalive: Option<Keepalive>,
    pub(super) tcp_buffer: usize,
    pub(super) workload: [Workload; 2],
}

impl SimPlan {
    /// A random plan.
    pub(super) fn any(rng: &mut SimRng) -> Self {
        let mut limits = [any_limits(rng), any_limits(rng)];
        let shared = rng.one_of(&[None, None, Some(0), Some(20), Some(200)]);
        if shared.is_some() {
            limits.iter_mut().for_each(|limits| limits.first_slots = limits.first_slots.or(Some(5)));
        }
        let workload = [Workload::any(rng), Workload::any(rng)];
        let is_large = workload.iter().any(|workload| workload.largest > 1 << 20);
        let transport_kind =
            rng.one_of(&[TransportKind::Rc, TransportKind::Rc, TransportKind::Rc, TransportKind::Tcp]);
        Self {
            transport_kind,
            shape: rng.one_of(&[KindUnderTest::Stream, KindUnderTest::Messages]),
            limits,
            shared,
            reads: transport_kind == TransportKind::Rc && !rng.one_in(4),
            coalesce: !rng.one_in(4),
            immediate: !rng.one_in(4),
            rcvbuf: rng.one_of(&[16 << 10, 64 << 10, 256 << 10, 1 << 20]),
            sndbuf: rng.one_of(&[16 << 10, 64 << 10, 256 << 10, 1 << 20]),
            low_water: rng.one_of(&[1, 2, 8]),
            stage: rng.one_of(&[4096, 16_384, 262_144]),
            send_depth: rng.one_of(&[24, 40, 82]),
            gather: rng.one_of(&[1, 2, 7]),
            private: rng.one_of(&[0, 512]),
            pool: 64 << 20,
            purposes: true,
            // Most runs pass the wrap early; others never reach it.
            first_total: rng.one_of(&[0, u32::MAX - 70, u32::MAX - 200, i32::MAX as u32 - 90]),
            keepalive: None,
            // A pipe of few bytes would need more steps for megabytes than a run has.
            tcp_buffer: rng.one_of(&[100, 700, 4096, 65_536]).max(if is_large { 4096 } else { 0 }),
            apart: rng.one_of(&[0, 0, 3]),
            workload,
        }
    }

    pub(super) fn transport_kind(mut self, transport_kind: TransportKind) -> Self {
        self.transport_kind = transport_kind;
        self.reads &= transport_kind == TransportKind::Rc;
        self
    }

    pub(super) fn shape(mut self, shape: KindUnderTest) -> Self {
        self.shape = shape;
        self
    }

    /// Changes both programs' workloads.
    pub(super) fn both(mut self, change: impl Fn(&mut Workload)) -> Self {
        self.workload.iter_mut().for_each(change);
        self
    }

    /// The setup of the connection of `end`.
    pub(super) fn setup(&self, end: usize) -> ConnectionSetup {
        let kind = match self.shape {
            KindUnderTest::Stream => ConnectionKind::Stream,
            KindUnderTest::Messages => ConnectionKind::SeqPacket,
        };
        let link = match self.transport_kind {
            TransportKind::Rc => protocol::LinkType::Rc,
            TransportKind::Tcp => protocol::LinkType::Tcp,
        };
        ConnectionSetup {
            own: self.limits[end],
            peer: self.limits[1 - end],
            read: self.reads,
            coalesce: self.coalesce,
            immediate: self.immediate,
            rcvbuf: self.rcvbuf.max(2 * self.limits[end].slot_size as usize),
            sndbuf: self.sndbuf.max(2 * self.limits[1 - end].slot_size as usize),
            low_water: self.low_water,
            stage: self.stage,
            read_piece: self.stage,
            gather: self.gather,
            // The same rule as in the handshake (`Agreed::setup`).
            keepalive: self.keepalive.filter(|_| self.transport_kind == TransportKind::Rc),
            ..ConnectionSetup::new(kind, link)
        }
    }

    /// The bytes of memory at `end` that are reserved for receiving.
    pub(super) fn kept(&self, end: usize) -> usize {
        if !self.purposes {
            return 0;
        }
        match self.transport_kind {
            TransportKind::Rc => self.setup(end).receive_slots(),
            TransportKind::Tcp => self.setup(end).receive_staged(),
        }
    }

    /// The least memory with which the builder makes a connection: enough to receive, and to send a
    /// whole message.
    pub(super) fn least_pool(&self) -> usize {
        (0..2).map(|end| self.kept(end).max(1) + self.setup(end).send_slots()).max().unwrap_or(0)
    }

    /// A random size for `end` to send. Often it is a size at which the protocol changes its
    /// method, or one off.
    pub(super) fn size(&self, end: usize, rng: &mut SimRng) -> usize {
        let largest = self.workload[end].largest;
        let slot = self.limits[1 - end].slot_size as usize;
        let eager = self.limits.iter().map(|limits| limits.eager_max as usize).min().unwrap_or(0);
        let payload = slot - HEADER;
        let stage = self.stage;
        let borders = [
            1,
            8,
            48,
            220,
            payload - 8,
            payload,
            slot,
            2 * payload - 8,
            2 * payload,
            eager,
            stage,
            stage + payload,
        ];
        let size = match rng.within(0..10) {
            0..=3 => rng.within(1..65),
            4..=6 => rng.one_of(&borders) + rng.within(0..3) - 1,
            7..=8 => rng.within(1..65_536),
            _ => rng.within(1..largest + 1),
        };
        size.clamp(self.workload[end].smallest, largest)
    }
}

fn any_limits(rng: &mut SimRng) -> Limits {
    let slot_size = rng.one_of(&[512, 1024, 4096, 8192]);
    Limits {
        slot_size,
        rx_slots: rng.one_of(&[16, 17, 24, 64]),
        first_slots: rng.one_of(&[None, None, Some(5), Some(9)]),
        eager_max: rng.one_of(&[slot_size, 4 * slot_size, 65_536]),
        rd_atomic: rng.one_of(&[1, 2, 16]),
        max_rts: rng.one_of(&[1, 2, 16]),
        ..Limits::default()
    }
}

impl Workload {
    fn any(rng: &mut SimRng) -> Self {
        Self {
            writes: !rng.one_in(6),
            reader: rng.one_of(&[ReadPolicy::Eager, ReadPolicy::Eager, ReadPolicy::Slow]),
            zero_copy: rng.one_of(&[0, 1, 2, 5]),
            holds: rng.one_of(&[0, 2, 5]),
            parts: rng.one_of(&[0, 2, 5]),
            corks: rng.one_in(3),
            smallest: 0,
            largest: rng.one_of(&[300, 20_000, 300_000, 4 << 20]),
        }
    }
}
