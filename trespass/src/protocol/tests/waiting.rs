//! Frames that arrive while a call waits for them.

use super::*;

impl TestPeer {
    /// Takes a frame off the link for a call that waits with room for `room` bytes. Returns the
    /// bytes that the call then has.
    fn deliver_for(&mut self, room: usize) -> Option<Vec<u8>> {
        let mut buffer = vec![0; room];
        let mut sink = CallBuffer::new(&mut buffer);
        self.feed_for(&mut sink).unwrap();
        let len = sink.taken()?;
        buffer.truncate(len);
        Some(buffer)
    }

    fn feed_for(&mut self, sink: &mut CallBuffer<'_>) -> Result<(), ProtocolError> {
        let frame = self.wire.pop_front().expect("a frame is on its way");
        let mut block = VecBlocks::new(1).take(self.slot, Purpose::Receive).unwrap();
        block.bytes_mut()[..frame.len()].copy_from_slice(&frame);
        self.receives -= 1;
        self.connection.received_for(block, frame.len(), None, sink).map(drop)
    }
}

/// Frames of `a`'s are on their way to `b`.
fn sent(kind: ConnectionKind, messages: &[&[u8]]) -> PeerPair {
    let mut pair = PeerPair::new(&setup(kind));
    for message in messages {
        match kind {
            ConnectionKind::Stream => assert_eq!(pair.a.write(message), Ok(message.len())),
            ConnectionKind::SeqPacket => pair.a.send(message).unwrap(),
        }
        while pair.a.transmit(&mut pair.b, pair.now, true) {}
    }
    pair
}

#[test]
fn a_message_goes_to_the_call_that_waits_for_it() {
    let mut pair = sent(ConnectionKind::SeqPacket, &[b"first", b"", b"second"]);
    assert_eq!(pair.b.deliver_for(5).as_deref(), Some(&b"first"[..]));
    assert_eq!(pair.b.deliver_for(5).as_deref(), Some(&b""[..]));
    assert_eq!(pair.b.recv(), None, "they have been taken");
    assert_eq!(pair.b.connection.slots_wanted(), 2, "their receives are free");
    assert_eq!(pair.b.connection.receive_charges(), (0, 0));
    assert!(pair.b.deliver());
    assert_eq!(pair.b.recv().as_deref(), Some(&b"second"[..]));
}

#[test]
fn one_call_takes_one_message() {
    let mut pair = sent(ConnectionKind::SeqPacket, &[b"first", b"second"]);
    let mut buffer = [0; 10];
    let mut sink = CallBuffer::new(&mut buffer);
    pair.b.feed_for(&mut sink).unwrap();
    pair.b.feed_for(&mut sink).unwrap();
    assert_eq!(sink.taken(), Some(5));
    assert_eq!(&buffer[..5], b"first");
    assert_eq!(pair.b.recv().as_deref(), Some(&b"second"[..]));
}

#[test]
fn frames_behind_queued_data_are_queued() {
    for kind in [ConnectionKind::SeqPacket, ConnectionKind::Stream] {
        let mut pair = sent(kind, &[b"first", b"second"]);
        assert!(pair.b.deliver());
        assert_eq!(pair.b.deliver_for(100), None);
        let all = if kind == ConnectionKind::Stream {
            pair.b.read_all()
        } else {
            [pair.b.recv().unwrap(), pair.b.recv().unwrap()].concat()
        };
        assert_eq!(all, b"firstsecond");
    }
}

#[test]
fn a_message_larger_than_the_waiting_buffer_stays_queued() {
    let mut pair = sent(ConnectionKind::SeqPacket, &[b"message"]);
    assert_eq!(pair.b.deliver_for(6), None);
    let refused = pair.b.connection.recv(&mut [0; 6]);
    assert!(matches!(refused, Err(CallError::BufferTooSmall { len: 7, room: 6 })), "{refused:?}");
    assert_eq!(pair.b.recv().as_deref(), Some(&b"message"[..]));

    let mut pair = sent(ConnectionKind::Stream, &[b"bytes"]);
    assert_eq!(pair.b.deliver_for(4), None);
    assert_eq!(pair.b.read_all(), b"bytes");
}

#[test]
fn bytes_of_a_stream_go_to_the_call_that_waits_for_as_many() {
    let mut pair = sent(ConnectionKind::Stream, &[b"bytes"]);
    assert_eq!(pair.b.deliver_for(100).as_deref(), Some(&b"bytes"[..]));
    assert_eq!(pair.b.read_all(), b"");
}

#[test]
fn a_part_of_a_message_is_no_message() {
    let long = bytes(9_000, 1);
    let mut pair = sent(ConnectionKind::SeqPacket, &[&long]);
    assert!(pair.b.wire.len() > 1, "it takes several frames");
    while !pair.b.wire.is_empty() {
        assert_eq!(pair.b.deliver_for(10_000), None);
    }
    assert_eq!(pair.b.recv(), Some(long));
}

#[test]
fn messages_that_share_a_frame_are_taken_one_by_one() {
    let mut pair = sent(ConnectionKind::SeqPacket, &[]);
    pair.a.connection.cork(true);
    pair.a.send(b"first").unwrap();
    pair.a.send(b"second").unwrap();
    pair.a.connection.cork(false);
    while pair.a.transmit(&mut pair.b, pair.now, true) {}
    assert_eq!(pair.b.wire.len(), 1);
    assert_eq!(pair.b.deliver_for(100), None);
    assert_eq!(pair.b.recv().as_deref(), Some(&b"first"[..]));
    assert_eq!(pair.b.recv().as_deref(), Some(&b"second"[..]));
}

#[test]
fn a_closed_reader_gets_no_more_data() {
    let mut pair = sent(ConnectionKind::SeqPacket, &[b"late"]);
    pair.b.connection.shutdown_read();
    assert_eq!(pair.b.deliver_for(100), None);
}

#[test]
fn frames_after_fin_are_refused_while_a_call_waits() {
    let mut pair = sent(ConnectionKind::SeqPacket, &[b"message"]);
    let mut after = pair.b.wire[0].clone();
    pair.a.connection.shutdown_write();
    while pair.a.transmit(&mut pair.b, pair.now, true) {}
    assert!(pair.b.deliver() && pair.b.deliver());
    // As the third frame of `a`'s, whose number is behind its kind, its flags and its count.
    after[4..8].copy_from_slice(&2u32.to_le_bytes());
    pair.b.wire.push_back(after);
    let mut buffer = [0; 100];
    let mut sink = CallBuffer::new(&mut buffer);
    let refused = pair.b.feed_for(&mut sink);
    assert!(matches!(refused, Err(ProtocolError::AfterFin { .. })), "{refused:?}");
    assert_eq!(sink.taken(), None);
}
