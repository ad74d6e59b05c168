//! The messages on the connection between an attached peer and the owner of the segment.
//!
//! A packet is decoded as a whole or rejected. No value in it is trusted before it was checked.

use core::num::NonZero;

use arrayvec::ArrayVec;

use super::numbers::LAST_BLOCK;
use crate::shared::segment::{LAYOUT_VERSION, MAX_PEERS};
use crate::status::{self, STATUS_VERSION, Statistics};

/// First word of the first packet in each direction.
const MAGIC: u64 = u64::from_le_bytes(*b"softrnic");
/// The longest packet of an attached peer, and one more byte that reveals a packet that is too
/// long.
pub(crate) const REQUEST: usize = CM_MESSAGE_HEADER + CM_MESSAGE + 1;
/// The longest message of a connection manager.
pub(crate) const CM_MESSAGE: usize = 1024;
/// Bytes in front of a connection manager's message.
pub(crate) const CM_MESSAGE_HEADER: usize = 3;
/// The most GIDs in a welcome.
pub(crate) const MAX_GIDS: usize = 1024;
const PORT_GID: usize = 18;
/// The longest packet of an owner.
pub(crate) const REPLY: usize = 80 + MAX_GIDS * PORT_GID;

/// A random identity of a process, unique wherever it runs.
pub(crate) type ProcessId = [u8; 16];

/// A GID of one port of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortGid {
    pub(crate) device: u8,
    pub(crate) port: u8,
    pub(crate) gid: [u8; 16],
}

/// What the owner of a segment must look at. Indices are the owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbell {
    /// An armed completion queue has completions.
    Cq(u32),
    /// A queue pair has notices.
    Qp(u32),
    /// A shared receive queue has reached its limit.
    Srq(u32),
    /// The cell of this transfer slot contains a call.
    Call { transfer_slot: u16 },
}

/// The name of exported memory, as in a region's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ExportId {
    pub(crate) index: u32,
    pub(crate) epoch: u32,
}

/// A packet from an attached peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerRequest<'a> {
    Hello {
        version: u64,
        process: ProcessId,
    },
    Doorbell(Doorbell),
    MapExport {
        export: ExportId,
        write: bool,
    },
    /// The peer leaves, and accesses nothing any more.
    Goodbye,
    /// Sent instead of a hello: asks for the statistics of this process.
    Status {
        version: u64,
    },
    /// A message of the peer's connection manager, which wants its answers at this block.
    CmMessage {
        from: u16,
        message: &'a [u8],
    },
    /// The peer has dropped CM messages that did not fit. Treat the former owner of this block as
    /// another process.
    CmReset {
        from: u16,
    },
}

/// The place of exported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExportRange {
    /// Its address in the owner's address space.
    pub(crate) base: u64,
    pub(crate) len: u64,
    /// Its offset in the file that is sent with it.
    pub(crate) offset: u64,
}

/// A packet from the owner of the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The owner accepts; sent with the segment's file.
    Welcome(Welcome),
    /// The owner has another layout version.
    OtherVersion { version: u64 },
    /// Answers a request for memory; sent with the memory's file.
    Export { export: ExportId, writable: bool, range: ExportRange },
    /// The owner does not provide the memory.
    NoExport { export: ExportId },
    /// The memory was removed: unmap it.
    ExportGone { export: ExportId },
    /// A completion channel, after a doorbell for one of its queues: its descriptor in the owner, and
    /// the id of that event counter.
    Channel { channel: NonZero<u64>, descriptor: i32, id: u64 },
    /// The channel was destroyed: close the descriptor.
    ChannelGone { channel: NonZero<u64> },
    /// Answers a request for the statistics.
    Status { process: ProcessId, statistics: Box<Statistics> },
    /// Sent to each process that connects to a port: the block of the port's owner.
    Block { block: u16 },
}

/// The owner's acceptance of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) process: ProcessId,
    /// The attached peer's number in the segment.
    pub(crate) peer_id: u16,
    /// How many blocks the owner had taken before the one that the peer connected to.
    pub(crate) ordinal: u8,
    /// Offset in the segment of the peer's call cells.
    pub(crate) call_area: u64,
    /// Where to probe copying by the system: an offset in the segment; below, the same place's
    /// address in the owner.
    pub(crate) probe: u64,
    pub(crate) probe_address: u64,
    /// The address of the owner's identity page, with which each copy by the system begins.
    pub(crate) identity_page: u64,
    pub(crate) gids: Vec<PortGid>,
}

/// The undecoded rest of a packet.
pub(crate) struct PacketReader<'a>(&'a [u8]);

impl<'a> PacketReader<'a> {
    pub(crate) fn new(packet: &'a [u8]) -> Self {
        Self(packet)
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// The whole rest, unless it is empty or longer than `most` bytes.
    fn rest(&mut self, most: usize) -> Option<&'a [u8]> {
        let rest = core::mem::take(&mut self.0);
        (1..=most).contains(&rest.len()).then_some(rest)
    }

    fn flag(&mut self) -> Option<bool> {
        self.u8().map(|byte| byte != 0)
    }

    fn export(&mut self) -> Option<ExportId> {
        Some(ExportId { index: self.u32()?, epoch: self.u32()? })
    }

    fn channel(&mut self) -> Option<NonZero<u64>> {
        NonZero::new(self.u64()?)
    }

    fn block(&mut self) -> Option<u16> {
        self.u16().filter(|block| (1..=LAST_BLOCK).contains(block))
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

fn words(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    core::iter::once(&kind).chain(parts.iter().copied().flatten()).copied().collect()
}

fn export_words(kind: u8, export: ExportId, parts: &[&[u8]]) -> Vec<u8> {
    let mut packet = words(kind, &[&export.index.to_le_bytes(), &export.epoch.to_le_bytes()]);
    packet.extend(parts.iter().copied().flatten());
    packet
}

/// A [`PeerRequest::CmMessage`], encoded without an allocation; `None` if the message is empty or too
/// long.
pub(crate) fn cm_message_packet(
    from: u16,
    message: &[u8],
) -> Option<ArrayVec<u8, { CM_MESSAGE_HEADER + CM_MESSAGE }>> {
    let mut packet = ArrayVec::new();
    packet.push(9);
    packet.try_extend_from_slice(&from.to_le_bytes()).ok()?;
    packet.try_extend_from_slice(message).ok()?;
    (!message.is_empty()).then_some(packet)
}

impl Doorbell {
    /// The encoded packet, without an allocation, because doorbells are rung on fast paths.
    pub(crate) fn encode(self) -> [u8; 5] {
        let (kind, index) = match self {
            Self::Cq(index) => (2, index),
            Self::Qp(index) => (3, index),
            Self::Srq(index) => (4, index),
            Self::Call { transfer_slot } => (5, u32::from(transfer_slot)),
        };
        let [a, b, c, d] = index.to_le_bytes();
        [kind, a, b, c, d]
    }
}

impl<'a> PeerRequest<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { version, process } => {
                words(1, &[&MAGIC.to_le_bytes(), &version.to_le_bytes(), process])
            }
            Self::Doorbell(doorbell) => doorbell.encode().to_vec(),
            Self::MapExport { export, write } => export_words(6, *export, &[&[u8::from(*write)]]),
            Self::Status { version } => words(7, &[&MAGIC.to_le_bytes(), &version.to_le_bytes()]),
            Self::Goodbye => words(8, &[]),
            Self::CmMessage { from, message } => words(9, &[&from.to_le_bytes(), message]),
            Self::CmReset { from } => words(10, &[&from.to_le_bytes()]),
        }
    }

    pub(crate) fn decode(packet: &'a [u8]) -> Option<Self> {
        let mut packet = PacketReader::new(packet);
        let request = match packet.u8()? {
            1 => {
                (packet.u64()? == MAGIC).then_some(())?;
                Self::Hello { version: packet.u64()?, process: packet.bytes()? }
            }
            2 => Self::Doorbell(Doorbell::Cq(packet.u32()?)),
            3 => Self::Doorbell(Doorbell::Qp(packet.u32()?)),
            4 => Self::Doorbell(Doorbell::Srq(packet.u32()?)),
            5 => Self::Doorbell(Doorbell::Call { transfer_slot: u16::try_from(packet.u32()?).ok()? }),
            6 => Self::MapExport { export: packet.export()?, write: packet.flag()? },
            7 => {
                (packet.u64()? == MAGIC).then_some(())?;
                Self::Status { version: packet.u64()? }
            }
            8 => Self::Goodbye,
            9 => Self::CmMessage { from: packet.block()?, message: packet.rest(CM_MESSAGE)? },
            10 => Self::CmReset { from: packet.block()? },
            _ => return None,
        };
        packet.end()?;
        Some(request)
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome(welcome) => welcome.encode(),
            Self::OtherVersion { version } => words(2, &[&MAGIC.to_le_bytes(), &version.to_le_bytes()]),
            Self::Export { export, writable, range } => export_words(
                3,
                *export,
                &[
                    &[u8::from(*writable)],
                    &range.base.to_le_bytes(),
                    &range.len.to_le_bytes(),
                    &range.offset.to_le_bytes(),
                ],
            ),
            Self::NoExport { export } => export_words(4, *export, &[]),
            Self::ExportGone { export } => export_words(5, *export, &[]),
            Self::Status { process, statistics } => words(
                6,
                &[&MAGIC.to_le_bytes(), &STATUS_VERSION.to_le_bytes(), process, &status::encode(statistics)],
            ),
            Self::Channel { channel, descriptor, id } => {
                words(8, &[&channel.get().to_le_bytes(), &descriptor.to_le_bytes(), &id.to_le_bytes()])
            }
            Self::ChannelGone { channel } => words(9, &[&channel.get().to_le_bytes()]),
            Self::Block { block } => {
                words(7, &[&MAGIC.to_le_bytes(), &LAYOUT_VERSION.to_le_bytes(), &block.to_le_bytes()])
            }
        }
    }

    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let mut packet = PacketReader::new(packet);
        let reply = match packet.u8()? {
            1 => Self::Welcome(Welcome::decode(&mut packet)?),
            2 => {
                (packet.u64()? == MAGIC).then_some(())?;
                Self::OtherVersion { version: packet.u64()? }
            }
            3 => Self::Export {
                export: packet.export()?,
                writable: packet.flag()?,
                range: ExportRange { base: packet.u64()?, len: packet.u64()?, offset: packet.u64()? },
            },
            4 => Self::NoExport { export: packet.export()? },
            5 => Self::ExportGone { export: packet.export()? },
            6 => {
                (packet.u64()? == MAGIC && packet.u64()? == STATUS_VERSION).then_some(())?;
                let process = packet.bytes()?;
                Self::Status { process, statistics: Box::new(status::decode(&mut packet)?) }
            }
            7 => {
                (packet.u64()? == MAGIC && packet.u64()? == LAYOUT_VERSION).then_some(())?;
                Self::Block { block: packet.block()? }
            }
            8 => Self::Channel {
                channel: packet.channel()?,
                descriptor: packet.bytes().map(i32::from_le_bytes)?,
                id: packet.u64()?,
            },
            9 => Self::ChannelGone { channel: packet.channel()? },
            _ => return None,
        };
        packet.end()?;
        Some(reply)
    }
}

impl Welcome {
    fn encode(&self) -> Vec<u8> {
        let count = self.gids.len().min(MAX_GIDS) as u16;
        let mut packet = words(
            1,
            &[
                &MAGIC.to_le_bytes(),
                &LAYOUT_VERSION.to_le_bytes(),
                &self.process,
                &self.peer_id.to_le_bytes(),
                &[self.ordinal],
                &self.call_area.to_le_bytes(),
                &self.probe.to_le_bytes(),
                &self.probe_address.to_le_bytes(),
                &self.identity_page.to_le_bytes(),
                &count.to_le_bytes(),
            ],
        );
        for PortGid { device, port, gid } in self.gids.iter().take(MAX_GIDS) {
            packet.extend([*device, *port]);
            packet.extend(gid);
        }
        packet
    }

    fn decode(packet: &mut PacketReader<'_>) -> Option<Self> {
        (packet.u64()? == MAGIC && packet.u64()? == LAYOUT_VERSION).then_some(())?;
        let process = packet.bytes()?;
        let peer_id = packet.u16().filter(|peer_id| (1..MAX_PEERS).contains(&usize::from(*peer_id)))?;
        let ordinal = packet.u8()?;
        let (call_area, probe) = (packet.u64()?, packet.u64()?);
        let (probe_address, identity_page) = (packet.u64()?, packet.u64()?);
        let count = packet.u16().filter(|count| usize::from(*count) <= MAX_GIDS)?;
        let gids = (0..count)
            .map(|_| Some(PortGid { device: packet.u8()?, port: packet.u8()?, gid: packet.bytes()? }))
            .collect::<Option<Vec<_>>>()?;
        Some(Self { process, peer_id, ordinal, call_area, probe, probe_address, identity_page, gids })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn replies() -> Vec<Reply> {
        let export = ExportId { index: 7, epoch: u32::MAX };
        let gid = PortGid { device: 1, port: 2, gid: [9; 16] };
        let welcome = |gids| Welcome {
            process: [3; 16],
            peer_id: 1,
            ordinal: 7,
            call_area: 1 << 40,
            probe: 12,
            probe_address: u64::MAX,
            identity_page: 4096,
            gids,
        };
        vec![
            Reply::Welcome(welcome(vec![])),
            Reply::Welcome(welcome(vec![gid; MAX_GIDS])),
            Reply::OtherVersion { version: 9 },
            Reply::Export { export, writable: true, range: ExportRange { base: 1, len: 2, offset: 3 } },
            Reply::NoExport { export },
            Reply::ExportGone { export },
            Reply::Status { process: [4; 16], statistics: Box::default() },
            Reply::Block { block: LAST_BLOCK },
            Reply::Channel { channel: NonZero::<u64>::MAX, descriptor: -7, id: 1 << 40 },
            Reply::ChannelGone { channel: NonZero::<u64>::MIN },
        ]
    }

    fn requests() -> Vec<PeerRequest<'static>> {
        vec![
            PeerRequest::Hello { version: 5, process: [8; 16] },
            PeerRequest::Doorbell(Doorbell::Cq(u32::MAX)),
            PeerRequest::Doorbell(Doorbell::Qp(2)),
            PeerRequest::Doorbell(Doorbell::Srq(3)),
            PeerRequest::Doorbell(Doorbell::Call { transfer_slot: 63 }),
            PeerRequest::MapExport { export: ExportId { index: 4, epoch: 5 }, write: true },
            PeerRequest::Status { version: STATUS_VERSION },
            PeerRequest::Goodbye,
            PeerRequest::CmMessage { from: 1, message: &[7; CM_MESSAGE] },
            PeerRequest::CmReset { from: LAST_BLOCK },
        ]
    }

    #[test]
    fn messages_decode_as_they_were_encoded() {
        for request in requests() {
            let packet = request.encode();
            assert!(packet.len() < REQUEST);
            assert_eq!(PeerRequest::decode(&packet), Some(request));
        }
        for message in [&b"x"[..], &[5; CM_MESSAGE]] {
            let packet = cm_message_packet(3, message).expect("short enough");
            assert_eq!(packet[..], PeerRequest::CmMessage { from: 3, message }.encode());
        }
        assert!(cm_message_packet(3, &[]).is_none() && cm_message_packet(3, &[0; CM_MESSAGE + 1]).is_none());
        for reply in replies() {
            let packet = reply.encode();
            assert!(packet.len() < REPLY, "{}", packet.len());
            assert_eq!(Reply::decode(&packet), Some(reply));
        }
    }

    #[test]
    fn nobody_has_a_block_that_there_is_not() {
        for from in [0, LAST_BLOCK + 1, u16::MAX] {
            assert_eq!(PeerRequest::decode(&PeerRequest::CmMessage { from, message: b"x" }.encode()), None);
            assert_eq!(PeerRequest::decode(&PeerRequest::CmReset { from }.encode()), None);
            assert_eq!(Reply::decode(&Reply::Block { block: from }.encode()), None);
        }
    }

    #[test]
    fn truncated_or_overlong_message_is_refused() {
        // The node does not check the contents of a CM message, so that it cannot detect a
        // truncated one.
        for mut packet in requests().iter().map(PeerRequest::encode) {
            let is_letter = packet[0] == 9;
            for len in 0..if is_letter { CM_MESSAGE_HEADER + 1 } else { packet.len() } {
                assert_eq!(PeerRequest::decode(&packet[..len]), None);
            }
            packet.push(0);
            assert_eq!(PeerRequest::decode(&packet), None);
        }
        for mut packet in replies().iter().map(Reply::encode).filter(|packet| packet.len() < 200) {
            for len in 0..packet.len() {
                assert_eq!(Reply::decode(&packet[..len]), None);
            }
            packet.push(0);
            assert_eq!(Reply::decode(&packet), None);
        }
    }
}
