//! The frames on the wire: a header of 16 bytes, little endian, and a payload. The format is
//! frozen; tests compare the bytes.
//!
//! ```text
//! 0 type u8 | 1 flags u8 | 2 count u16 | 4 seq u32 | 8 credit_total u32 | 12 len u32 | 16 payload
//! ```
//! Over a queue pair the header of a data frame may travel in the SEND's [immediate
//! data](Immediate) instead.
//!
//! `seq` counts the frames of a direction from 0. `credit_total` is the number of receives ever
//! granted (0 on TCP). `len` is the payload's length, except in RFIN, which has no payload and
//! carries the number of sources that were read.

use super::block::{DEVICES_MAX, RemoteKeys, Segment};
use super::failure::ProtocolError;

/// Length of a header in bytes.
pub(crate) const HEADER_LEN: usize = 16;
/// The most ranges in an RTS.
pub(crate) const SEGMENTS_MAX: usize = 16;
/// The most bytes that one RTS may announce.
pub(crate) const SOURCE_MAX: u64 = 16 << 20;
/// The longest range in an RTS, in bytes.
pub(crate) const SEGMENT_LEN_MAX: usize = segment_len(DEVICES_MAX);

/// Length of a range in an RTS, in bytes, if its sender has that many devices.
pub(crate) const fn segment_len(devices: usize) -> usize {
    12 + 4 * devices
}

/// First frame of a message.
pub(crate) const FIRST: u8 = 1;
/// Last frame of a message.
pub(crate) const LAST: u8 = 2;
/// `count` whole messages in one frame.
pub(crate) const COALESCED: u8 = 4;
/// On DATA and RTS: the sender has more data than its credits allow.
pub(crate) const BLOCKED: u8 = 8;

/// The types. 5 (RNACK), 6 (PUT_NOTIFY), 7 (PING) and 8 (PONG) are reserved and never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameType {
    /// Data of the program.
    Data = 1,
    /// The header's credits, without a payload.
    Credit = 2,
    /// Announces ranges from which to READ the next data of the program.
    Rts = 3,
    /// The number of sources that were read.
    Rfin = 4,
    /// The end of the program's data.
    Fin = 9,
    /// FIN and everything before it have been received.
    FinAck = 10,
    /// The connection is aborted.
    Reset = 11,
}

impl FrameType {
    fn from_wire(kind: u8) -> Option<Self> {
        Some(match kind {
            1 => FrameType::Data,
            2 => FrameType::Credit,
            3 => FrameType::Rts,
            4 => FrameType::Rfin,
            9 => FrameType::Fin,
            10 => FrameType::FinAck,
            11 => FrameType::Reset,
            _ => return None,
        })
    }

    /// Whether it carries or announces data of the program; other frames may use the reserve.
    pub(crate) fn is_data(self) -> bool {
        matches!(self, FrameType::Data | FrameType::Rts)
    }

    /// Whether it may carry the number of frames received.
    pub(crate) fn acknowledges(self) -> bool {
        matches!(self, FrameType::Credit | FrameType::Fin | FrameType::FinAck)
    }

    fn flags_allowed(self) -> u8 {
        match self {
            FrameType::Data => FIRST | LAST | COALESCED | BLOCKED,
            FrameType::Rts => FIRST | LAST | BLOCKED,
            _ => 0,
        }
    }
}

/// A frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: FrameType,
    pub(crate) flags: u8,
    /// Messages in a COALESCED frame, ranges in an RTS, else 0.
    pub(crate) count: u16,
    pub(crate) seq: u32,
    pub(crate) credit_total: u32,
    pub(crate) len: u32,
}

impl Header {
    /// Encodes the header.
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.count.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.credit_total.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Reads the header at the start of `frame` and checks everything that does not depend on the
    /// connection. The presence of the payload is not checked yet.
    pub(crate) fn decode(frame: &[u8]) -> Result<Self, ProtocolError> {
        let Some(bytes) = frame.first_chunk::<HEADER_LEN>() else {
            return Err(ProtocolError::ShortFrame { len: frame.len() });
        };
        let kind = FrameType::from_wire(bytes[0]).ok_or(ProtocolError::UnknownType { kind: bytes[0] })?;
        let header = Header {
            kind,
            flags: bytes[1],
            count: u16::from_le_bytes([bytes[2], bytes[3]]),
            seq: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            credit_total: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            len: u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
        };
        header.check()?;
        Ok(header)
    }

    /// Length of the payload that belongs to the header.
    pub(crate) fn payload_len(&self) -> usize {
        if self.kind.is_data() { self.len as usize } else { 0 }
    }

    fn check(&self) -> Result<(), ProtocolError> {
        let Header { kind, flags, count, len, .. } = *self;
        let coalesced = flags & COALESCED != 0;
        if flags & !kind.flags_allowed() != 0 || (coalesced && flags & (FIRST | LAST) != 0) {
            return Err(ProtocolError::Flags { kind, flags });
        }
        let counted = match kind {
            FrameType::Data if coalesced => count > 0,
            FrameType::Rts => (1..=SEGMENTS_MAX).contains(&usize::from(count)),
            _ => count == 0,
        };
        if !counted {
            return Err(ProtocolError::Count { kind, count });
        }
        if kind == FrameType::Reset && len != 0 {
            return Err(ProtocolError::Length { kind, said: len, came: 0 });
        }
        Ok(())
    }
}

/// A compressed header in the 32 bits of a SEND's immediate data, if both sides support it. A DATA
/// frame that is not COALESCED is then sent without its 16 bytes, so that 1,024 bytes of payload
/// fit into one packet if the path MTU is 1,024.
///
/// ```text
/// 0..16 credit_total's low bits | 16..29 seq's low bits | 29 FIRST | 30 LAST | 31 BLOCKED
/// ```
/// The receiver knows the rest: `len` is the length received. A total grows by at most
/// [`RX_SLOTS_MAX`](super::setup::RX_SLOTS_MAX) from one frame to the next, so 16 bits determine
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Immediate(pub(crate) u32);

/// Bits of `seq` in an [`Immediate`].
const SEQ_BITS: u32 = 13;
const SEQ_MASK: u32 = (1 << SEQ_BITS) - 1;

impl Immediate {
    /// The compressed form of a frame's header; `None` if the header must be sent.
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        let header = frame.first_chunk::<HEADER_LEN>()?;
        let [kind, flags, _, _, s0, s1, _, _, c0, c1, ..] = *header;
        if kind != FrameType::Data as u8 || flags & COALESCED != 0 {
            return None;
        }
        let credits = u32::from(u16::from_le_bytes([c0, c1]));
        let seq = u32::from(u16::from_le_bytes([s0, s1])) & SEQ_MASK;
        let flags = u32::from(flags & (FIRST | LAST)) << 29 | u32::from(flags & BLOCKED) << 28;
        Some(Self(credits | seq << 16 | flags))
    }

    /// Restores the header of a frame with `len` bytes of payload: its number is `expected` or
    /// close to it, and its credits are at least `granted`.
    pub(crate) fn header(self, expected: u32, granted: u32, len: usize) -> Header {
        let Self(bits) = self;
        let ahead = (bits >> 16).wrapping_sub(expected) & SEQ_MASK;
        let more = (bits as u16).wrapping_sub(granted as u16);
        Header {
            kind: FrameType::Data,
            flags: (bits >> 29) as u8 & (FIRST | LAST) | (bits >> 28) as u8 & BLOCKED,
            count: 0,
            seq: expected.wrapping_add(ahead),
            credit_total: granted.wrapping_add(more.into()),
            len: u32::try_from(len).unwrap_or(u32::MAX),
        }
    }
}

/// A frame, or the start of one, that needs no block: the header and at most 48 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    bytes: [u8; Head::MAX],
    len: u8,
}

impl Head {
    /// The most bytes, so that a device with 64 bytes of inline data needs no registered memory for
    /// it.
    pub(crate) const MAX: usize = 64;

    pub(crate) fn new(header: &Header) -> Self {
        Head::of(&header.encode())
    }

    /// Copies these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut head = Head { bytes: [0; Head::MAX], len: 0 };
        head.push(bytes);
        head
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The part after the first `bytes` bytes.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "TCP has no immediate data"))]
    pub(crate) fn behind(&self, bytes: usize) -> Self {
        Head::of(&self.bytes()[bytes..])
    }
}

/// Encodes a range of an RTS, with a key for each of the sender's devices. Only the first
/// [`segment_len`] bytes count.
pub(crate) fn encode_segment(segment: &Segment) -> [u8; SEGMENT_LEN_MAX] {
    let mut bytes = [0; SEGMENT_LEN_MAX];
    bytes[0..8].copy_from_slice(&segment.addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&segment.len.to_le_bytes());
    for (place, key) in bytes[12..].as_chunks_mut::<4>().0.iter_mut().zip(segment.rkeys.0) {
        *place = key.to_le_bytes();
    }
    bytes
}

/// Decodes an RTS of a peer with that many devices, after its `total` if it has one: the number of
/// bytes and their ranges. It checks the length, that no range is empty or wraps, and that the
/// ranges add up to the number of bytes.
pub(crate) fn decode_source(
    count: u16,
    payload: &[u8],
    devices: usize,
) -> Result<(u64, impl Iterator<Item = Segment> + '_), ProtocolError> {
    let segment_len = segment_len(devices);
    let wanted = 8 + usize::from(count) * segment_len;
    let Some((bytes, ranges)) = payload.split_first_chunk::<8>().filter(|_| payload.len() == wanted) else {
        return Err(ProtocolError::Length { kind: FrameType::Rts, said: wanted as u32, came: payload.len() });
    };
    let bytes = u64::from_le_bytes(*bytes);
    let segments = ranges.chunks_exact(segment_len).map(decode_segment);
    let sum = segments.clone().map(|segment| u64::from(segment.len)).sum();
    let possible = |s: Segment| s.len > 0 && s.addr.checked_add(u64::from(s.len)).is_some();
    if sum != bytes || !segments.clone().all(possible) {
        return Err(ProtocolError::Source { bytes, segments: count, sum });
    }
    if bytes > SOURCE_MAX {
        return Err(ProtocolError::SourceTooLong { bytes, most: SOURCE_MAX });
    }
    Ok((bytes, segments))
}

fn decode_segment(bytes: &[u8]) -> Segment {
    let (addr, rest) = bytes.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    let (words, _) = rest.as_chunks::<4>();
    let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
    let len = words.next().unwrap_or(0);
    let mut rkeys = RemoteKeys::default();
    rkeys.0.iter_mut().zip(words).for_each(|(place, key)| *place = key);
    Segment { addr: u64::from_le_bytes(*addr), len, rkeys }
}

/// Takes the `total u64` at the start of a FIRST frame without LAST.
pub(crate) fn split_total(kind: FrameType, payload: &[u8]) -> Result<(u64, &[u8]), ProtocolError> {
    match payload.split_first_chunk::<8>() {
        Some((total, rest)) => Ok((u64::from_le_bytes(*total), rest)),
        None => Err(ProtocolError::Length { kind, said: 8, came: payload.len() }),
    }
}

/// The space that a message of `len` bytes takes in a COALESCED frame: its length as u32, its
/// bytes, and zeros up to a multiple of 8.
pub(crate) fn batched_len(len: usize) -> usize {
    (4 + len).next_multiple_of(8)
}

/// The message at `at` of a COALESCED payload: its range, and the start of the next one.
pub(crate) fn batched_message(payload: &[u8], at: usize) -> Option<(std::ops::Range<usize>, usize)> {
    let len = payload.get(at..)?.first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let next = at.checked_add(len.checked_add(4)?.checked_next_multiple_of(8)?)?;
    (next <= payload.len()).then_some((at + 4..at + 4 + len, next))
}

/// Checks that `payload` consists of exactly `count` messages.
pub(crate) fn check_batch(count: u16, payload: &[u8]) -> Result<(), ProtocolError> {
    let mut at = 0;
    for _ in 0..count {
        let Some((_, next)) = batched_message(payload, at) else {
            let len = payload.get(at..).and_then(|rest| rest.first_chunk::<4>());
            let len = len.map_or(0, |len| u32::from_le_bytes(*len) as usize);
            return Err(ProtocolError::Batch { count, at, len, end: payload.len() });
        };
        at = next;
    }
    if at != payload.len() {
        return Err(ProtocolError::Batch { count, at, len: 0, end: payload.len() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes on the wire. A change here changes the protocol's major version.
    #[test]
    fn golden_bytes() {
        let header = Header {
            kind: FrameType::Data,
            flags: FIRST | LAST | BLOCKED,
            count: 0,
            seq: 0x0403_0201,
            credit_total: 0x4433_2211,
            len: 0x1234,
        };
        assert_eq!(header.encode(), [1, 0x0b, 0, 0, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x34, 0x12, 0, 0]);
        for (kind, wire) in [
            (FrameType::Data, 1),
            (FrameType::Credit, 2),
            (FrameType::Rts, 3),
            (FrameType::Rfin, 4),
            (FrameType::Fin, 9),
            (FrameType::FinAck, 10),
            (FrameType::Reset, 11),
        ] {
            assert_eq!(kind as u8, wire);
            assert_eq!(FrameType::from_wire(wire), Some(kind));
        }
        assert_eq!([FIRST, LAST, COALESCED, BLOCKED], [1, 2, 4, 8]);
        let batch = Header { flags: COALESCED, count: 0x0203, ..header };
        assert_eq!(batch.encode()[..4], [1, 4, 3, 2]);
        let segment = Segment {
            addr: 0x0807_0605_0403_0201,
            len: 0x0d0c_0b0a,
            rkeys: RemoteKeys([0x1514_1312, 0x2524_2322, 0, 0, 0, 0, 0, 0]),
        };
        let bytes =
            [1, 2, 3, 4, 5, 6, 7, 8, 0x0a, 0x0b, 0x0c, 0x0d, 0x12, 0x13, 0x14, 0x15, 0x22, 0x23, 0x24, 0x25];
        assert_eq!((segment_len(1), segment_len(2)), (16, 20));
        assert_eq!(encode_segment(&segment)[..segment_len(2)], bytes);
    }

    /// The bits of the immediate data, and the header restored from them.
    #[test]
    fn golden_immediate() {
        let header = Header {
            kind: FrameType::Data,
            flags: FIRST | LAST,
            count: 0,
            seq: 0x1234_5678,
            credit_total: 0x8765_4321,
            len: 5,
        };
        let of = |header: &Header| Immediate::of(&header.encode());
        assert_eq!(of(&header), Some(Immediate(0x7678_4321)));
        assert_eq!(of(&Header { flags: BLOCKED, ..header }), Some(Immediate(0x9678_4321)));
        assert_eq!(of(&Header { flags: 0, ..header }), Some(Immediate(0x1678_4321)));
        assert_eq!(of(&Header { flags: COALESCED, count: 1, ..header }), None);
        for kind in [FrameType::Credit, FrameType::Rts, FrameType::Rfin, FrameType::Fin, FrameType::Reset] {
            assert_eq!(of(&Header { kind, ..header }), None);
        }
        assert_eq!(Immediate::of(&header.encode()[..15]), None);
    }

    #[test]
    fn a_header_is_restored_from_immediate_data() {
        let header = |seq, credit_total| Header {
            kind: FrameType::Data,
            flags: FIRST | BLOCKED,
            count: 0,
            seq,
            credit_total,
            len: 77,
        };
        for (seq, granted) in
            [(0, 0), (u32::MAX, u32::MAX), (0x1fff, 0xffff), (0x2000, 0x1_0000), (7, 1 << 31)]
        {
            for more in [0, 1, 0x7fff, 0x8000] {
                let sent = header(seq, granted.wrapping_add(more));
                let immediate = Immediate::of(&sent.encode()).expect("it is DATA");
                assert_eq!(immediate.header(seq, granted, 77), sent);
                // A frame that was lost, or came twice, differs from the next one.
                for other in [seq.wrapping_add(1), seq.wrapping_sub(1)] {
                    assert_ne!(immediate.header(other, granted, 77).seq, other);
                }
            }
        }
    }

    #[test]
    fn reserved_types_flags_and_counts_are_refused() {
        let good = Header { kind: FrameType::Data, flags: 0, count: 0, seq: 0, credit_total: 0, len: 0 };
        let wire = |kind: u8, flags: u8, count: u16, len: u32| {
            let mut bytes = Header { flags, count, len, ..good }.encode();
            bytes[0] = kind;
            Header::decode(&bytes)
        };
        for kind in [0, 5, 6, 7, 8, 12, 255] {
            assert_eq!(wire(kind, 0, 0, 0), Err(ProtocolError::UnknownType { kind }));
        }
        for flags in [16, 128, COALESCED | FIRST, COALESCED | LAST] {
            assert!(matches!(wire(1, flags, 1, 0), Err(ProtocolError::Flags { .. })), "{flags}");
        }
        assert!(matches!(wire(2, FIRST, 0, 0), Err(ProtocolError::Flags { .. })));
        assert!(matches!(wire(3, COALESCED, 1, 24), Err(ProtocolError::Flags { .. })));
        assert!(matches!(wire(1, COALESCED, 0, 0), Err(ProtocolError::Count { .. })));
        assert!(matches!(wire(1, 0, 1, 0), Err(ProtocolError::Count { .. })));
        assert!(matches!(wire(3, 0, 0, 8), Err(ProtocolError::Count { .. })));
        assert!(matches!(wire(3, 0, 17, 8), Err(ProtocolError::Count { .. })));
        assert!(matches!(wire(11, 0, 0, 1), Err(ProtocolError::Length { .. })));
        assert_eq!(Header::decode(&[1; 15]), Err(ProtocolError::ShortFrame { len: 15 }));
        for kind in [2, 4, 9, 10] {
            assert_eq!(wire(kind, 0, 0, u32::MAX).unwrap().payload_len(), 0);
        }
        assert!(matches!(wire(2, BLOCKED, 0, 0), Err(ProtocolError::Flags { .. })));
    }

    #[test]
    fn a_source_must_add_up() {
        let payload_of = |devices, bytes: u64, segments: &[Segment]| {
            let mut out = bytes.to_le_bytes().to_vec();
            let len = segment_len(devices);
            segments.iter().for_each(|segment| out.extend(&encode_segment(segment)[..len]));
            out
        };
        let payload = |bytes, segments: &[Segment]| payload_of(1, bytes, segments);
        let segment = Segment { addr: 4096, len: 100, rkeys: RemoteKeys::one(1) };
        let two = Segment { rkeys: RemoteKeys([1, 2, 0, 0, 0, 0, 0, 0]), ..segment };
        let of_two = payload_of(2, 200, &[two, two]);
        let (bytes, segments) = decode_source(2, &of_two, 2).unwrap();
        assert_eq!((bytes, segments.collect::<Vec<_>>()), (200, vec![two, two]));
        assert!(matches!(decode_source(2, &of_two, 1).err().unwrap(), ProtocolError::Length { .. }));
        let good = payload(200, &[segment, segment]);
        let (bytes, segments) = decode_source(2, &good, 1).unwrap();
        assert_eq!((bytes, segments.collect::<Vec<_>>()), (200, vec![segment, segment]));
        let refused = |count, bytes: &[u8]| decode_source(count, bytes, 1).err().unwrap();
        assert!(matches!(refused(1, &good), ProtocolError::Length { .. }));
        assert!(matches!(refused(3, &good), ProtocolError::Length { .. }));
        assert!(matches!(refused(1, &[1, 2, 3]), ProtocolError::Length { .. }));
        assert!(matches!(refused(1, &payload(99, &[segment])), ProtocolError::Source { .. }));
        let empty = Segment { len: 0, ..segment };
        assert!(matches!(refused(2, &payload(100, &[segment, empty])), ProtocolError::Source { .. }));
        let wraps = Segment { addr: u64::MAX - 98, ..segment };
        assert!(matches!(refused(1, &payload(100, &[wraps])), ProtocolError::Source { .. }));
        let large = Segment { len: (16 << 20) + 1, ..segment };
        let too_long = refused(1, &payload((16 << 20) + 1, &[large]));
        assert!(matches!(too_long, ProtocolError::SourceTooLong { .. }));
    }

    #[test]
    fn a_batch_must_be_exactly_its_messages() {
        let batch = [2, 0, 0, 0, b'h', b'i', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        check_batch(2, &batch).unwrap();
        assert_eq!(batched_message(&batch, 0), Some((4..6, 8)));
        assert_eq!(batched_message(&batch, 8), Some((12..12, 16)));
        assert!(matches!(check_batch(1, &batch), Err(ProtocolError::Batch { at: 8, .. })));
        assert!(matches!(check_batch(3, &batch), Err(ProtocolError::Batch { at: 16, .. })));
        assert!(matches!(check_batch(1, &batch[..7]), Err(ProtocolError::Batch { at: 0, len: 2, .. })));
        let huge = [255; 8];
        assert!(matches!(check_batch(1, &huge), Err(ProtocolError::Batch { .. })));
    }

    proptest! {
        #[test]
        fn decoding_anything_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..120), count in 0u16..20) {
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(&header.encode()[..], &bytes[..HEADER_LEN]);
            }
            let _ = decode_source(count, &bytes, 1).map(|(_, segments)| segments.count());
            let _ = split_total(FrameType::Data, &bytes);
            if check_batch(count, &bytes).is_ok() {
                let mut at = 0;
                for _ in 0..count {
                    at = batched_message(&bytes, at).unwrap().1;
                }
                prop_assert_eq!(at, bytes.len());
            }
        }
    }
}
