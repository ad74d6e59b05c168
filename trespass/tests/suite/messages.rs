//! Messages: I5, parts, sizes above the buffers.

use std::io::{ErrorKind, IoSlice};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases};
use trespass::SeqPacket;

use super::CASE_LIMIT;
use super::rig::{Rig, below, bytes, random};

pub(crate) fn add(suite: &mut test_harness::Suite<Rig>) {
    cases!(suite: i5_messages_keep_their_boundaries, i5_sizes_around_every_border, many_small_messages_at_once,
        a_gathered_message_is_one, a_message_larger_than_the_buffer_stays, a_message_goes_in_parts,
        a_message_above_the_quota_is_refused_without_blocking, a_message_above_the_limit_is_refused,
        the_end_comes_after_the_last_message, messages_are_received_without_a_copy, a_stream_is_not_taken_for_messages);
}

/// Both ends send so many messages of random sizes and check what they get.
fn converse(mut packets: SeqPacket, out: u64, into: u64, count: usize) {
    let size = |seed: u64, at: usize| {
        let mut random = random(seed * 1_000_003 + at as u64);
        let most = [40, 300, 9000, 70_000, 400_000][below(&mut random, 5)];
        below(&mut random, most)
    };
    let mut buffer = vec![0; 400_000];
    let (mut sent, mut got) = (0, 0);
    let mut next = None;
    packets.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + CASE_LIMIT / 2;
    while sent < count || got < count {
        assert!(Instant::now() < deadline, "{sent} sent and {got} received of {count}");
        let mut moved = false;
        if sent < count {
            let message = next.get_or_insert_with(|| bytes(out + sent as u64, size(out, sent)));
            match packets.send(message) {
                Ok(()) => (sent, moved, next) = (sent + 1, true, None),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
        match packets.recv(&mut buffer) {
            Ok(len) => {
                assert!(
                    buffer[..len] == bytes(into + got as u64, size(into, got)),
                    "message {got} of {len} bytes"
                );
                (got, moved) = (got + 1, true);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        if !moved {
            thread::sleep(Duration::from_micros(100));
        }
    }
    packets.set_nonblocking(false).unwrap();
    packets.shutdown(Shutdown::Write).unwrap();
    assert_eq!(packets.recv(&mut buffer).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

fn i5_messages_keep_their_boundaries(rig: &Rig) -> Outcome {
    for seed in 0..3 {
        let (client, server) = rig.packets();
        let (there, back) = (1_000_000 * seed + 1, 1_000_000 * seed + 500_000);
        thread::scope(|scope| {
            scope.spawn(|| converse(server, back, there, 300));
            converse(client, there, back, 300);
        });
    }
    Ok(())
}

fn i5_sizes_around_every_border(rig: &Rig) -> Outcome {
    let (mut client, mut server) = rig.packets();
    let borders = [64, 256, 8192 - 16, 8192, 64 * 1024, 256 * 1024 - 16, 256 * 1024, 1 << 20, 3 << 20];
    let sizes: Vec<usize> =
        [0, 1].into_iter().chain(borders.into_iter().flat_map(|border| border - 1..=border + 1)).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for len in &sizes {
                client.send(&bytes(*len as u64, *len)).unwrap();
            }
        });
        let mut buffer = vec![0; 4 << 20];
        for len in &sizes {
            assert_eq!(server.recv(&mut buffer).unwrap(), *len);
            assert!(buffer[..*len] == bytes(*len as u64, *len), "a message of {len} bytes");
        }
    });
    Ok(())
}

fn many_small_messages_at_once(rig: &Rig) -> Outcome {
    let (mut client, mut server) = rig.packets();
    thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0..20_000_u32 {
                client.send(&at.to_le_bytes()[..at as usize % 5]).unwrap();
            }
        });
        let mut buffer = [0; 8];
        for at in 0..20_000_u32 {
            let len = server.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..len], at.to_le_bytes()[..at as usize % 5], "message {at}");
        }
    });
    Ok(())
}

fn a_gathered_message_is_one(rig: &Rig) -> Outcome {
    let (mut client, mut server) = rig.packets();
    let (head, body) = ([1; 9], bytes(5, 30_000));
    client.send_vectored(&[IoSlice::new(&head), IoSlice::new(&[]), IoSlice::new(&body)]).unwrap();
    let mut buffer = vec![0; 40_000];
    assert_eq!(server.recv(&mut buffer).unwrap(), 30_009);
    assert!(buffer[..9] == head && buffer[9..30_009] == body);
    Ok(())
}

fn a_message_larger_than_the_buffer_stays(rig: &Rig) -> Outcome {
    let (mut client, mut server) = rig.packets();
    client.send(&bytes(1, 1000)).unwrap();
    let error = server.recv(&mut [0; 999]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("1000") && error.to_string().contains("999"), "{error}");
    let mut buffer = [0; 1000];
    assert_eq!(server.recv(&mut buffer).unwrap(), 1000);
    assert_eq!(buffer[..], bytes(1, 1000));
    Ok(())
}

fn a_message_goes_in_parts(rig: &Rig) -> Outcome {
    let (mut client, mut server) = rig.packets();
    let message = bytes(9, 5 << 20);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = 0;
            while sent < message.len() {
                let end = message.len().min(sent + 300_001);
                sent += client.send_part(message.len() as u64, &message[sent..end]).unwrap();
            }
            client.send(b"next").unwrap();
        });
        let (mut buffer, mut got) = (vec![0; 200_003], Vec::new());
        loop {
            let part = server.recv_part(&mut buffer).unwrap();
            got.extend_from_slice(&buffer[..part.len]);
            if part.last {
                break;
            }
        }
        assert!(got == message);
        assert_eq!(server.recv(&mut buffer).unwrap(), 4);
    });
    Ok(())
}

fn a_message_above_the_quota_is_refused_without_blocking(rig: &Rig) -> Outcome {
    let (mut client, mut server) = rig.packets();
    client.set_nonblocking(true).unwrap();
    let error = client.send(&vec![0; 2 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("send_part"), "{error}");
    client.send(b"and nothing is broken").unwrap();
    let mut buffer = [0; 64];
    assert_eq!(server.recv(&mut buffer).unwrap(), 21);
    Ok(())
}

fn a_message_above_the_limit_is_refused(rig: &Rig) -> Outcome {
    let (mut client, mut server) = rig.packets_with(|builder| builder.max_msg(10_000).eager_max(10_000));
    let error = client.send(&[0; 10_001]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    client.send(&[7; 10_000]).unwrap();
    let mut buffer = [0; 10_000];
    assert_eq!(server.recv(&mut buffer).unwrap(), 10_000);
    Ok(())
}

fn the_end_comes_after_the_last_message(rig: &Rig) -> Outcome {
    fn say(mut client: SeqPacket, count: u8) {
        (0..count).for_each(|at| client.send(&[at; 3000]).unwrap());
    }
    fn hear(mut server: SeqPacket, count: u8) {
        let mut buffer = [0; 3000];
        for at in 0..count {
            assert_eq!(server.recv(&mut buffer).unwrap(), 3000);
            assert_eq!(buffer, [at; 3000]);
        }
        assert_eq!(server.recv(&mut buffer).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
    // What the other end has posted receives for needs no call of it.
    let (client, server) = rig.packets();
    say(client, 50);
    hear(server, 50);
    let (client, server) = rig.packets();
    thread::scope(|scope| {
        scope.spawn(|| say(client, 200));
        hear(server, 200);
    });
    Ok(())
}

fn messages_are_received_without_a_copy(rig: &Rig) -> Outcome {
    let (mut client, mut server) = rig.packets();
    let messages: Vec<Vec<u8>> = [1, 100, 8176, 50_000, 600_000].map(|len| bytes(len as u64, len)).into();
    thread::scope(|scope| {
        scope.spawn(|| {
            for message in &messages {
                let mut buffer = client.buffer(message.len().min(60_000)).unwrap();
                if message.len() <= 60_000 {
                    buffer.bytes_mut()[..message.len()].copy_from_slice(message);
                    client.send_buf(buffer, message.len()).unwrap();
                } else {
                    client.send(message).unwrap();
                }
            }
        });
        let got: Vec<_> = messages.iter().map(|_| server.recv_buf().unwrap()).collect();
        for (message, got) in messages.iter().zip(&got) {
            assert_eq!(got.len(), message.len());
            assert!(got.chunks().flatten().eq(message.iter()));
        }
    });
    Ok(())
}

fn a_stream_is_not_taken_for_messages(rig: &Rig) -> Outcome {
    let (mut listener, addr) = rig.listener();
    thread::scope(|scope| {
        let connecting = scope.spawn(|| rig.builder().connect_seq_packet(addr).unwrap_err());
        let connects = scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            rig.builder().connect(addr).unwrap()
        });
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), peer);
        assert_eq!(connects.join().unwrap().local_addr().unwrap(), peer);
        let error = connecting.join().unwrap();
        assert!(error.to_string().contains("message"), "{error}");
    });
    Ok(())
}
