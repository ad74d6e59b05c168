//! Tests of a peer that violates the protocol: a typed error, a failed connection, a RESET, no
//! memory kept.

use proptest::prelude::*;

use super::frame::{COALESCED, FIRST, FrameType, Header, Immediate, LAST, encode_segment, segment_len};
use super::*;

const NONE: Header = Header { kind: FrameType::Data, flags: 0, count: 0, seq: 0, credit_total: 64, len: 0 };

/// A range of an RTS.
fn segment(addr: u64, len: u32) -> Vec<u8> {
    encode_segment(&Segment { addr, len, rkeys: RemoteKeys::one(1) })[..segment_len(1)].to_vec()
}

/// A peer that can send anything; it numbers its frames and sets their length unless told
/// otherwise.
struct HostilePeer {
    side: TestPeer,
    seq: u32,
}

impl HostilePeer {
    fn to(kind: ConnectionKind) -> Self {
        HostilePeer { side: TestPeer::new(&setup(kind), 0), seq: 0 }
    }

    fn say(&mut self, header: Header, payload: &[u8]) -> Result<(), ProtocolError> {
        let len = if header.len == 0 { payload.len() as u32 } else { header.len };
        let header = Header { seq: header.seq.wrapping_add(self.seq), len, ..header };
        self.seq += 1;
        self.side.receives -= 1;
        let result = self.side.feed(&[&header.encode(), payload].concat());
        self.side.post();
        result
    }

    fn data(&mut self, flags: u8, payload: &[u8]) -> Result<(), ProtocolError> {
        self.say(Header { flags, ..NONE }, payload)
    }

    fn rts(&mut self, flags: u8, total: Option<u64>, bytes: u32) -> Result<(), ProtocolError> {
        let mut payload = Vec::new();
        payload.extend(total.map(u64::to_le_bytes).into_iter().flatten());
        payload.extend(u64::from(bytes).to_le_bytes());
        payload.extend(segment(4096, bytes));
        self.say(Header { kind: FrameType::Rts, flags, count: 1, ..NONE }, &payload)
    }

    fn bare(&mut self, kind: FrameType) -> Result<(), ProtocolError> {
        self.say(Header { kind, ..NONE }, &[])
    }
}

/// The error that `lie` causes. Afterwards the connection has failed, reports that to both sides,
/// and receives nothing more.
fn caught(
    kind: ConnectionKind,
    lie: impl FnOnce(&mut HostilePeer) -> Result<(), ProtocolError>,
) -> ProtocolError {
    let mut liar = HostilePeer::to(kind);
    let error = lie(&mut liar).unwrap_err();
    let connection = &mut liar.side.connection;
    assert_eq!(connection.failure(), Some(&FailureCause::Protocol(error)));
    assert_eq!(connection.slots_wanted(), 0);
    let mut reset = None;
    while let Some(transmit) = connection.transmit(Instant::now(), &mut liar.side.blocks, 16) {
        assert!(reset.is_none(), "only a RESET follows");
        let TransmitItem::Send(frame) = transmit else { panic!("{transmit:?}") };
        reset = frame.parts().next().map(|head| head[0]);
    }
    assert_eq!(reset, Some(FrameType::Reset as u8));
    assert_eq!(liar.data(0, b"more"), Ok(()), "ignored");
    error
}

#[test]
fn lengths_and_numbers() {
    use ConnectionKind::Stream;
    use ProtocolError as E;
    assert_eq!(caught(Stream, |liar| liar.side.feed(&[1; 15])), E::ShortFrame { len: 15 });
    let said = |len| move |liar: &mut HostilePeer| liar.say(Header { len, ..NONE }, b"abc");
    assert!(matches!(caught(Stream, said(2)), E::Length { said: 2, came: 3, .. }));
    assert!(matches!(caught(Stream, said(u32::MAX)), E::Length { came: 3, .. }));
    let long = |liar: &mut HostilePeer| liar.data(0, &[0; 8193]);
    assert_eq!(caught(Stream, long), E::FrameTooLong { len: 8193, most: 8192 });
    let with_header = |liar: &mut HostilePeer| {
        let frame = [&Header { len: 8177, ..NONE }.encode()[..], &[0; 8177]].concat();
        let mut block = VecBlocks::new(1).take(frame.len(), Purpose::Receive).unwrap();
        block.bytes_mut().copy_from_slice(&frame);
        liar.side.connection.received(block, frame.len()).map(drop)
    };
    assert_eq!(caught(Stream, with_header), E::FrameTooLong { len: 8177, most: 8176 });
    let skips = |liar: &mut HostilePeer| liar.say(Header { seq: 1, ..NONE }, b"x");
    assert_eq!(caught(Stream, skips), E::Sequence { expected: 0, came: 1 });
    let again = |liar: &mut HostilePeer| {
        liar.data(0, b"x")?;
        liar.say(Header { seq: u32::MAX, ..NONE }, b"x")
    };
    assert_eq!(caught(Stream, again), E::Sequence { expected: 1, came: 0 });
    assert_eq!(caught(Stream, |liar| liar.data(0, b"")), E::Empty);
    assert!(matches!(caught(Stream, |liar| liar.data(16, b"x")), E::Flags { flags: 16, .. }));
    let batch = |liar: &mut HostilePeer| liar.say(Header { flags: COALESCED, count: 1, ..NONE }, &[0; 8]);
    assert!(matches!(caught(Stream, batch), E::Flags { flags: COALESCED, .. }));
}

#[test]
fn grants() {
    use ProtocolError as E;
    let grants = |credit_total| move |liar: &mut HostilePeer| liar.say(Header { credit_total, ..NONE }, b"x");
    for total in [63, 65, 0, u32::MAX] {
        let error = caught(ConnectionKind::Stream, grants(total));
        assert_eq!(error, E::Grant { total, granted: 64, sent: 0, most: 64 });
    }
    let overdraws = |liar: &mut HostilePeer| {
        for _ in 0..64 {
            liar.data(0, b"x")?;
        }
        liar.side.receives += 1;
        liar.data(0, b"x")
    };
    assert_eq!(caught(ConnectionKind::Stream, overdraws), E::Overdrawn { granted: 64 });
}

#[test]
fn messages() {
    use ConnectionKind::SeqPacket;
    use ProtocolError as E;
    let total = |total: u64, rest: &[u8]| [&total.to_le_bytes(), rest].concat();
    assert_eq!(caught(SeqPacket, |liar| liar.data(0, b"x")), E::NotBegun);
    assert_eq!(caught(SeqPacket, |liar| liar.data(LAST, b"x")), E::NotBegun);
    assert!(matches!(caught(SeqPacket, |liar| liar.data(FIRST, b"x")), E::Length { said: 8, came: 1, .. }));
    let most = 1 << 30;
    let huge = |liar: &mut HostilePeer| liar.data(FIRST, &total(most + 1, b"x"));
    assert_eq!(caught(SeqPacket, huge), E::MessageTooLong { total: most + 1, most });
    let within = |flags| {
        move |liar: &mut HostilePeer| {
            liar.data(FIRST, &total(10, b"12345"))?;
            liar.data(flags, &total(10, b"12345"))
        }
    };
    assert_eq!(caught(SeqPacket, within(FIRST)), E::BeganWithin { got: 5, total: 10 });
    assert_eq!(caught(SeqPacket, within(FIRST | LAST)), E::BeganWithin { got: 5, total: 10 });
    let batch_within = |liar: &mut HostilePeer| {
        liar.data(FIRST, &total(10, b"12345"))?;
        liar.say(Header { flags: COALESCED, count: 1, ..NONE }, &[0; 8])
    };
    assert_eq!(caught(SeqPacket, batch_within), E::BeganWithin { got: 5, total: 10 });
    let ends = |flags, rest: &'static [u8]| {
        move |liar: &mut HostilePeer| {
            liar.data(FIRST, &total(10, b"12345"))?;
            liar.data(flags, rest)
        }
    };
    assert_eq!(caught(SeqPacket, ends(LAST, b"1234")), E::MessageLength { total: 10, got: 9 });
    assert_eq!(caught(SeqPacket, ends(LAST, b"123456")), E::MessageLength { total: 10, got: 11 });
    assert_eq!(caught(SeqPacket, ends(0, b"12345")), E::MessageLength { total: 10, got: 10 });
    assert_eq!(caught(SeqPacket, ends(0, b"")), E::Empty);
    let end_within = |liar: &mut HostilePeer| {
        liar.data(FIRST, &total(10, b"12345"))?;
        liar.bare(FrameType::Fin)
    };
    assert_eq!(caught(SeqPacket, end_within), E::BeganWithin { got: 5, total: 10 });
    let batch = |liar: &mut HostilePeer| liar.say(Header { flags: COALESCED, count: 2, ..NONE }, &[0; 8]);
    assert!(matches!(caught(SeqPacket, batch), E::Batch { count: 2, at: 8, .. }));
}

#[test]
fn sources() {
    use ConnectionKind::{SeqPacket, Stream};
    use ProtocolError as E;
    let many = |liar: &mut HostilePeer| (0..17).try_for_each(|_| liar.rts(0, None, 100_000));
    assert_eq!(caught(Stream, many), E::TooManySources { most: 16 });
    let large = |liar: &mut HostilePeer| liar.rts(0, None, (16 << 20) + 1);
    assert!(matches!(caught(Stream, large), E::SourceTooLong { .. }));
    let beyond = |liar: &mut HostilePeer| liar.rts(FIRST, Some(99_999), 100_000);
    assert_eq!(caught(SeqPacket, beyond), E::MessageLength { total: 99_999, got: 100_000 });
    let rfin =
        |len| move |liar: &mut HostilePeer| liar.say(Header { kind: FrameType::Rfin, len, ..NONE }, &[]);
    for total in [1, u32::MAX] {
        assert_eq!(caught(Stream, rfin(total)), E::ReadTotal { total, told: 0, read: 0 });
    }
    let not_told = |liar: &mut HostilePeer| {
        liar.side.lend(&bytes(100_000, 1));
        liar.side.connection.transmit(Instant::now(), &mut liar.side.blocks, 1).unwrap();
        rfin(2)(liar)
    };
    assert_eq!(caught(Stream, not_told), E::ReadTotal { total: 2, told: 1, read: 0 });
}

/// RTS with several ranges: the total must equal the sum of the ranges, and no range may be empty
/// or exceed the address space.
#[test]
fn sources_of_several_ranges() {
    use ProtocolError as E;
    let rts = |count: u16, bytes: u64, ranges: &[(u64, u32)]| {
        let mut payload = bytes.to_le_bytes().to_vec();
        ranges.iter().for_each(|&(addr, len)| payload.extend(segment(addr, len)));
        move |liar: &mut HostilePeer| liar.say(Header { kind: FrameType::Rts, count, ..NONE }, &payload)
    };
    let refused = |lie| caught(ConnectionKind::Stream, lie);
    assert!(matches!(refused(rts(0, 0, &[])), E::Count { count: 0, .. }));
    assert!(matches!(refused(rts(17, 17, &[(4096, 1); 17])), E::Count { count: 17, .. }));
    assert!(matches!(refused(rts(3, 2, &[(4096, 1); 2])), E::Length { said: 56, came: 40, .. }));
    assert!(matches!(refused(rts(1, 2, &[(4096, 1); 2])), E::Length { said: 24, came: 40, .. }));
    assert!(matches!(refused(rts(2, 3, &[(4096, 1); 2])), E::Source { bytes: 3, segments: 2, sum: 2 }));
    assert!(matches!(refused(rts(2, 1, &[(4096, 1), (4096, 0)])), E::Source { .. }));
    // As 32-bit numbers their sum would be 0.
    let halves = rts(2, 0, &[(4096, 1 << 31); 2]);
    assert!(matches!(refused(halves), E::Source { bytes: 0, sum: 0x1_0000_0000, .. }));
    let most = rts(16, 16 * u64::from(u32::MAX), &[(4096, u32::MAX); 16]);
    assert!(matches!(caught(ConnectionKind::Stream, most), E::SourceTooLong { .. }));
    let wraps = rts(2, 20, &[(4096, 10), (u64::MAX - 5, 10)]);
    assert!(matches!(caught(ConnectionKind::Stream, wraps), E::Source { .. }));
}

/// Ranges of one byte each cannot exhaust a victim's memory, because each READ takes a block, and
/// blocks are counted.
#[test]
fn ranges_of_one_byte_are_read_within_the_quota() {
    let mut liar = HostilePeer::to(ConnectionKind::Stream);
    let mut payload = 16_u64.to_le_bytes().to_vec();
    (0..16).for_each(|_| payload.extend(segment(4096, 1)));
    for _ in 0..16 {
        liar.say(Header { kind: FrameType::Rts, count: 16, ..NONE }, &payload).unwrap();
    }
    let side = &mut liar.side;
    let mut reads = 0;
    loop {
        let Some(transmit) = side.connection.transmit(Instant::now(), &mut side.blocks, 100) else { break };
        if let TransmitItem::Read(read) = transmit {
            reads += 1;
            side.connection.done(CompletedTransmit::Read { id: read.id, block: read.into });
        }
        assert!(side.connection.receive_charges().0 <= (1 << 20) + 8192);
    }
    assert_eq!(reads, 256);
    assert!(matches!(
        liar.say(Header { kind: FrameType::Rts, count: 16, ..NONE }, &payload[..40]),
        Err(ProtocolError::Length { .. })
    ));
}

#[test]
fn the_end() {
    use ConnectionKind::Stream;
    use FrameType::{Data, Fin, FinAck, Rts};
    use ProtocolError as E;
    let after = |kind: FrameType| {
        move |liar: &mut HostilePeer| {
            liar.bare(Fin)?;
            match kind {
                Data => liar.data(0, b"x"),
                Rts => liar.rts(0, None, 1),
                kind => liar.bare(kind),
            }
        }
    };
    for kind in [Data, Rts, Fin] {
        assert_eq!(caught(Stream, after(kind)), E::AfterFin { kind });
    }
    assert_eq!(caught(Stream, after(FinAck)), E::StrayFinAck);
    assert_eq!(caught(Stream, |liar| liar.bare(FinAck)), E::StrayFinAck);
    let early = |liar: &mut HostilePeer| {
        liar.side.lend(&bytes(100_000, 1));
        liar.side.connection.shutdown_write();
        while liar.side.connection.transmit(Instant::now(), &mut liar.side.blocks, 1).is_some() {}
        liar.bare(FinAck)
    };
    assert_eq!(caught(Stream, early), E::StrayFinAck, "who acknowledges the end has read all before it");
    for kind in [Fin, FinAck, Data, Rts] {
        let after_all = |liar: &mut HostilePeer| {
            liar.side.connection.shutdown_write();
            while liar.side.connection.transmit(Instant::now(), &mut liar.side.blocks, 1).is_some() {}
            liar.bare(FinAck)?;
            liar.bare(Fin)?;
            liar.bare(FrameType::Credit).expect("credits are granted until all is acknowledged");
            match kind {
                Data => liar.data(0, b"x"),
                Rts => liar.rts(0, None, 1),
                kind => liar.bare(kind),
            }
        };
        let expected = if kind == FinAck { E::StrayFinAck } else { E::AfterFin { kind } };
        assert_eq!(caught(Stream, after_all), expected);
    }
}

/// It cannot have received frames that were not sent, nor take back what it has said.
#[test]
fn impossible_acknowledgements() {
    let acknowledges = |kind: FrameType, totals: &'static [u32]| {
        move |liar: &mut HostilePeer| {
            liar.side.lend(&bytes(10, 1));
            liar.side.lend(&bytes(10, 2));
            while liar.side.connection.transmit(Instant::now(), &mut liar.side.blocks, 1).is_some() {}
            let mut send = |kind, len| liar.say(Header { kind, len, ..NONE }, &[]);
            let (last, before) = totals.split_last().expect("one at least");
            before.iter().for_each(|total| send(FrameType::Credit, *total).expect("possible"));
            send(kind, *last)
        }
    };
    for kind in [FrameType::Credit, FrameType::Fin] {
        let cases: [(&[u32], u64); 4] = [(&[3], 0), (&[u32::MAX], 0), (&[2, 1], 2), (&[1, 1, 0], 1)];
        for (totals, before) in cases {
            let total = totals[totals.len() - 1];
            let expected = ProtocolError::ReceivedTotal { total, sent: 2, before };
            assert_eq!(caught(ConnectionKind::Stream, acknowledges(kind, totals)), expected);
        }
    }
}

#[test]
fn features_that_were_not_negotiated_are_refused() {
    let mut setup = ConnectionSetup::new(ConnectionKind::SeqPacket, LinkType::Tcp);
    let refuse = |setup: &ConnectionSetup, kind: FrameType, count: u16, credit_total: u32| {
        let mut side = TestPeer::new(setup, 0);
        let payload = if kind == FrameType::Rts { 24 } else { 0 };
        let len = if kind == FrameType::Rfin { 1 } else { payload };
        let header = Header { kind, flags: 0, count, seq: 0, credit_total, len };
        let mut frame = header.encode().to_vec();
        frame.resize(16 + payload as usize, 1);
        side.feed(&frame).unwrap_err()
    };
    for (kind, count) in [(FrameType::Credit, 0), (FrameType::Rts, 1), (FrameType::Rfin, 0)] {
        assert_eq!(refuse(&setup, kind, count, 0), ProtocolError::NotAgreed { kind });
    }
    let granted = refuse(&setup, FrameType::Fin, 0, 1);
    assert!(matches!(granted, ProtocolError::Grant { total: 1, .. }));
    setup.link = LinkType::Rc;
    let rts = refuse(&setup, FrameType::Rts, 1, 64);
    assert_eq!(rts, ProtocolError::NotAgreed { kind: FrameType::Rts });
    setup.coalesce = false;
    let mut side = TestPeer::new(&setup, 0);
    let header = Header { flags: COALESCED, count: 1, len: 8, ..NONE };
    let error = side.feed(&[&header.encode()[..], &[0; 8]].concat()).unwrap_err();
    assert_eq!(error, ProtocolError::Flags { kind: FrameType::Data, flags: COALESCED });
}

/// Immediate data is checked like a header, and is ignored unless it was agreed.
#[test]
fn immediate_data_is_checked_like_a_header() {
    let took = |immediate: bool, bits: u32, len: usize| {
        let setup = ConnectionSetup { immediate, ..setup(ConnectionKind::SeqPacket) };
        let mut side = TestPeer::new(&setup, 0);
        let block = side.blocks.take(1 << 16, Purpose::Receive).unwrap();
        let result = side.connection.received_bare(block, len, Immediate(bits)).map(drop);
        assert_eq!(side.connection.failure(), result.err().map(FailureCause::Protocol).as_ref());
        result
    };
    let whole = u32::from(FIRST | LAST) << 29 | 64;
    assert_eq!(took(true, whole, 5), Ok(()));
    assert_eq!(took(false, whole, 5), Err(ProtocolError::Immediate { immediate: whole }));
    assert_eq!(took(true, whole | 3 << 16, 5), Err(ProtocolError::Sequence { expected: 0, came: 3 }));
    let twice = took(true, whole | 0x1fff << 16, 5);
    assert_eq!(twice, Err(ProtocolError::Sequence { expected: 0, came: 0x1fff }));
    assert!(matches!(took(true, whole + 1, 5), Err(ProtocolError::Grant { total: 65, .. })));
    assert!(matches!(took(true, whole - 1, 5), Err(ProtocolError::Grant { total: 0x1003f, .. })));
    assert!(matches!(took(true, whole, 1 << 16), Err(ProtocolError::FrameTooLong { len: 0x10000, .. })));
    assert_eq!(took(true, 64, 5), Err(ProtocolError::NotBegun));
    let short = took(true, u32::from(FIRST) << 29 | 64, 5);
    assert_eq!(short, Err(ProtocolError::Length { kind: FrameType::Data, said: 8, came: 5 }));
}

#[test]
fn frame_len_is_checked_before_memory_is_taken() {
    let connection =
        ProtocolMachine::<VecBlock>::new(&ConnectionSetup::new(ConnectionKind::Stream, LinkType::Tcp))
            .unwrap();
    let most = setup::TCP_FRAME_MAX;
    let header = |len| Header { len, credit_total: 0, ..NONE }.encode();
    assert_eq!(connection.frame_len(&header(most as u32)), Ok(most + 16));
    let error = connection.frame_len(&header(u32::MAX)).unwrap_err();
    assert_eq!(error, ProtocolError::FrameTooLong { len: u32::MAX as usize, most });
}

#[test]
fn impossible_setups_are_refused() {
    let refuse = |change: &dyn Fn(&mut ConnectionSetup)| {
        let mut setup = setup(ConnectionKind::Stream);
        change(&mut setup);
        ProtocolMachine::<VecBlock>::new(&setup).err().map(|error| error.name)
    };
    assert_eq!(refuse(&|_| {}), None);
    assert_eq!(refuse(&|setup| setup.peer.slot_size = 511), Some("slot_size"));
    assert_eq!(refuse(&|setup| setup.own.rx_slots = 15), Some("rx_slots"));
    assert_eq!(refuse(&|setup| setup.peer.rx_slots = u32::MAX), Some("rx_slots"));
    assert_eq!(refuse(&|setup| setup.peer.max_rts = 0), Some("max_rts"));
    assert_eq!(refuse(&|setup| setup.rcvbuf = 0), Some("rcvbuf"));
    assert_eq!(refuse(&|setup| setup.link = LinkType::Tcp), Some("read"));
}

/// Frames that are almost valid, so that they pass many checks.
fn frames() -> impl Strategy<Value = Vec<(u8, u8, u16, u32, Vec<u8>)>> {
    let kind = prop_oneof![4 => Just(1u8), 2 => Just(3u8), 2 => 1u8..13];
    let flags = prop_oneof![6 => 0u8..4, 2 => Just(COALESCED), 1 => any::<u8>()];
    let total = prop_oneof![3 => Just(64u32), 1 => any::<u32>()];
    let small = proptest::collection::vec(prop_oneof![4 => Just(0u8), 1 => any::<u8>()], 0..64);
    proptest::collection::vec((kind, flags, 0u16..3, total, small), 1..40)
}

proptest! {
    /// Any frames in any order cause no panic, and memory stays bounded.
    #[test]
    fn any_frames(frames in frames(), seq_packet in any::<bool>()) {
        let kind = if seq_packet { ConnectionKind::SeqPacket } else { ConnectionKind::Stream };
        let mut side = TestPeer::new(&setup(kind), 0);
        for (seq, (kind, flags, count, credit_total, payload)) in (0..).zip(frames) {
            let mut frame = Header { flags, count, seq, credit_total, len: payload.len() as u32, ..NONE }.encode();
            frame[0] = kind;
            let _ = side.feed(&[&frame, &payload[..]].concat());
            side.post();
            while side.connection.transmit(Instant::now(), &mut side.blocks, 100).is_some() {}
            prop_assert!(side.connection.receive_charges().0 <= (1 << 20) + 64 * 8192);
            let mut buffer = [0; 40];
            let _ = side.connection.recv(&mut buffer);
            let _ = side.connection.recv_part(&mut buffer[..7]);
            let _ = side.connection.read(&mut buffer[..9]);
        }
    }
}
