//! A connection's parameters: what both sides agreed on, and what this side chose for itself.

use std::time::Duration;

use super::block::DEVICES_MAX;
use super::credit::{CreditWindow, FIRST_SLOTS_MIN, RESERVE};
use super::failure::InvalidSetup;
use super::frame::HEADER_LEN;

/// The largest payload of a frame on a TCP stream; with its header it fills a block of 256 KiB.
pub(crate) const TCP_FRAME_MAX: usize = 256 * 1024 - HEADER_LEN;
/// The smallest slot that can be agreed, in bytes.
pub(crate) const SLOT_MIN: u32 = 512;
/// The largest slot that can be agreed, in bytes.
pub(crate) const SLOT_MAX: u32 = 1024 * 1024;
/// The fewest receives of a connection.
pub(crate) const RX_SLOTS_MIN: u32 = 16;
/// The most receives of a connection.
pub(crate) const RX_SLOTS_MAX: u32 = 32768;

/// The most lent blocks in one frame.
pub(crate) const GATHER_MAX: usize = 7;

/// The type of data: bytes or messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    /// A stream of bytes.
    Stream,
    /// Messages with boundaries.
    SeqPacket,
}

/// The transport of the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkType {
    /// A reliable connected queue pair: a frame is a SEND and uses one posted receive, hence
    /// credits.
    Rc,
    /// A TCP stream: frames follow each other, and its window paces them, hence no credits.
    Tcp,
}

/// The limits that one side announced in its HELLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Size of a receive slot in bytes, header included.
    pub(crate) slot_size: u32,
    /// The most receives that it posts.
    pub(crate) rx_slots: u32,
    /// Receives that are granted from the start, if that is not all of them.
    pub(crate) first_slots: Option<u32>,
    /// The largest message that is always sent by DATA. If READ is agreed, a longer one, or bytes of a
    /// stream, are sent so if they fit the free receives.
    pub(crate) eager_max: u32,
    /// The largest message.
    pub(crate) max_msg: u64,
    /// READs that it can have outstanding, or serve, at once. The smaller value of both sides
    /// counts.
    pub(crate) rd_atomic: u32,
    /// Sources that may be announced and not read. The smaller value of both sides counts.
    pub(crate) max_rts: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            slot_size: 8192,
            rx_slots: 64,
            first_slots: None,
            eager_max: 64 * 1024,
            max_msg: 1 << 30,
            rd_atomic: 16,
            max_rts: 16,
        }
    }
}

impl Limits {
    /// The receives that are granted, at first and at most.
    pub(crate) fn window(&self) -> CreditWindow {
        CreditWindow { first: self.first_slots.unwrap_or(self.rx_slots), most: self.rx_slots }
    }
}

/// The intervals of keepalive probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keepalive {
    /// The silence before a probe.
    pub(crate) idle: Duration,
    /// The time that a probe may take before the peer counts as dead.
    pub(crate) timeout: Duration,
}

/// All parameters of a connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionSetup {
    /// The type of data, the same on both sides.
    pub(crate) kind: ConnectionKind,
    /// The transport of the frames.
    pub(crate) link: LinkType,
    /// This side's limits.
    pub(crate) own: Limits,
    /// The peer's limits.
    pub(crate) peer: Limits,
    /// Both sides support reading large data (RTS, READ, RFIN). Never on TCP.
    pub(crate) read: bool,
    /// Both sides support COALESCED.
    pub(crate) coalesce: bool,
    /// Both sides support the header in immediate data. TCP has none.
    pub(crate) immediate: bool,
    /// Both sides support the number of received frames in control frames. A TCP socket needs none,
    /// because its kernel outlives the process.
    pub(crate) acknowledge: bool,
    /// Memory that may hold received data, unread or with the program, before receiving stops.
    pub(crate) rcvbuf: usize,
    /// Bytes of the program that may be copied, and not sent or not READ yet.
    pub(crate) sndbuf: usize,
    /// Frames in flight from which on small writes are gathered instead of sent at once.
    pub(crate) low_water: usize,
    /// The largest block for staged data.
    pub(crate) stage: usize,
    /// The most bytes of a READ.
    pub(crate) read_piece: usize,
    /// Lent blocks that a frame may have beside its header: what the device takes in one request.
    pub(crate) gather: usize,
    /// The device's domain, with the same number as in the blocks' registrations
    /// ([`Block::is_reachable`](super::Block::is_reachable)).
    pub(crate) domain: usize,
    /// Frames hold copies only, so that a driver may keep and repeat them. A lent block is a source,
    /// or is copied.
    pub(crate) copies: bool,
    /// The devices of this side and of the peer: an RTS has a key for each device of its sender.
    pub(crate) own_devices: usize,
    pub(crate) peer_devices: usize,
    /// How long a close may take.
    pub(crate) linger: Duration,
    /// Probes, if any. Never on TCP, where the kernel's do it.
    pub(crate) keepalive: Option<Keepalive>,
}

impl ConnectionSetup {
    /// The start values, for a link without READ.
    pub(crate) fn new(kind: ConnectionKind, link: LinkType) -> Self {
        ConnectionSetup {
            kind,
            link,
            own: Limits::default(),
            peer: Limits::default(),
            read: false,
            coalesce: true,
            immediate: true,
            acknowledge: true,
            rcvbuf: 1 << 20,
            sndbuf: 1 << 20,
            low_water: 8,
            stage: 256 * 1024,
            read_piece: 256 * 1024,
            gather: GATHER_MAX,
            domain: 0,
            copies: false,
            own_devices: 1,
            peer_devices: 1,
            linger: Duration::from_secs(1),
            keepalive: None,
        }
    }

    /// Refuses what cannot work. What came from the peer is checked like the rest.
    pub(crate) fn check(&self) -> Result<(), InvalidSetup> {
        let range = |name, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(InvalidSetup { name, value, least, most })
            }
        };
        for limits in [&self.own, &self.peer] {
            range("slot_size", limits.slot_size.into(), SLOT_MIN.into(), SLOT_MAX.into())?;
            range("rx_slots", limits.rx_slots.into(), RX_SLOTS_MIN.into(), RX_SLOTS_MAX.into())?;
            let (first, most) = (limits.window().first, limits.rx_slots);
            range("first_slots", first.into(), FIRST_SLOTS_MIN.into(), most.into())?;
            range("max_msg", limits.max_msg, 1, 1 << 40)?;
            if self.read {
                range("rd_atomic", limits.rd_atomic.into(), 1, 1 << 16)?;
                range("max_rts", limits.max_rts.into(), 1, 1024)?;
            }
        }
        range("rcvbuf", self.rcvbuf as u64, u64::from(self.own.slot_size) * 2, 1 << 40)?;
        range("sndbuf", self.sndbuf as u64, u64::from(self.peer.slot_size) * 2, 1 << 40)?;
        range("low_water", self.low_water as u64, 1, 1 << 16)?;
        range("stage", self.stage as u64, 4096, 16 << 20)?;
        range("read_piece", self.read_piece as u64, 4096, 16 << 20)?;
        range("gather", self.gather as u64, 1, GATHER_MAX as u64)?;
        range("own_devices", self.own_devices as u64, 1, DEVICES_MAX as u64)?;
        range("peer_devices", self.peer_devices as u64, 1, DEVICES_MAX as u64)?;
        range("read", u64::from(self.read), 0, u64::from(self.link == LinkType::Rc))?;
        Ok(())
    }

    /// Bytes of slots that receiving may use at a time over a queue pair.
    ///
    /// Posted receives use at most `rx_slots` slots, and kept frames at most `2 * rcvbuf` bytes. A
    /// new receive is posted for each kept frame while less than `rcvbuf` is kept. For a message
    /// that is taken whole (at most `rcvbuf` long) the limit is twice that, because its frames may
    /// be half empty. The last frame may exceed the limit by a slot.
    ///
    /// READs begin within the same limits, and use single slots if no larger block is free. The
    /// last READ may exceed the limit by a piece.
    ///
    /// One more slot is for what must be sent before the peer sends again. This may be the head of
    /// a frame without inline data, a lent block out of the device's reach, or an RTS of many
    /// ranges.
    pub(crate) fn receive_slots(&self) -> usize {
        (self.own.rx_slots as usize + 2) * self.own.slot_size as usize + 2 * self.rcvbuf + self.read_piece
    }

    /// Bytes of larger blocks that receiving may use at a time over TCP, where a frame lies in one
    /// block: the kept ones, as over a queue pair, a frame that is arriving, and one to spare.
    pub(crate) fn receive_staged(&self) -> usize {
        2 * self.rcvbuf + 2 * (TCP_FRAME_MAX + HEADER_LEN)
    }

    /// Bytes of slots that sending needs at least: a message that is sent in one call is copied as
    /// a whole, into slots if no larger block is free.
    pub(crate) fn send_slots(&self) -> usize {
        let slot = self.peer.slot_size as usize;
        (self.sndbuf.div_ceil(slot - HEADER_LEN) + 1) * slot
    }

    /// The largest payload of a frame to the peer.
    pub(crate) fn send_payload(&self) -> usize {
        match self.link {
            LinkType::Rc => self.peer.slot_size as usize - HEADER_LEN,
            LinkType::Tcp => TCP_FRAME_MAX,
        }
    }

    /// The largest payload of a frame whose header is in immediate data: a whole slot.
    pub(crate) fn send_bare(&self) -> usize {
        if self.link == LinkType::Rc && self.immediate {
            self.peer.slot_size as usize
        } else {
            self.send_payload()
        }
    }

    /// The largest payload of a frame from the peer.
    pub(crate) fn receive_payload(&self) -> usize {
        match self.link {
            LinkType::Rc => self.own.slot_size as usize - HEADER_LEN,
            LinkType::Tcp => TCP_FRAME_MAX,
        }
    }

    /// The largest message in either direction.
    pub(crate) fn max_msg(&self) -> u64 {
        self.own.max_msg.min(self.peer.max_msg)
    }

    /// READs that this side may have outstanding.
    pub(crate) fn reads(&self) -> usize {
        self.own.rd_atomic.min(self.peer.rd_atomic) as usize
    }

    /// Sources that either side may have announced and not yet released.
    pub(crate) fn max_rts(&self) -> usize {
        self.own.max_rts.min(self.peer.max_rts) as usize
    }
}

const _: () = assert!(RX_SLOTS_MIN > 2 * RESERVE);
