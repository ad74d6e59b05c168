//! Messages: invariant I5, parts, and sizes above the buffers.

use std::io::{ErrorKind, IoSlice};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, bytes, cases};
use trespass::{Block, Builder, Completion, Event, Pool, SeqPacket, Ticket, Worker};

use super::CASE_LIMIT;
use super::fixture::{Fixture, LONG, ask_for_streams, below, random};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: i5_messages_keep_their_boundaries, i5_sizes_around_every_border, many_small_messages_at_once,
        a_gathered_message_is_one, a_message_larger_than_the_buffer_stays, a_message_goes_in_parts,
        a_message_above_the_quota_is_refused_without_blocking, a_message_above_the_limit_is_refused,
        the_end_comes_after_the_last_message, messages_are_received_without_a_copy, a_stream_is_not_taken_for_messages,
        a_message_of_any_length_is_received_without_a_copy, several_blocks_are_one_message, memory_of_the_programs_own_goes_without_a_copy,
        a_worker_sends_several_blocks_as_one_message, a_message_may_be_larger_than_any_block,
        a_message_whose_time_is_up_is_gone_on_with, a_message_that_fits_the_buffer_moves_whole_or_not_at_all,
        a_message_of_1_gib_arrives, an_end_within_a_message_of_1_gib_is_a_failure, pipelined_requests_are_answered_in_one_frame,
        long_messages_arrive_where_nobody_reads);
}

/// Both ends send `count` messages of random sizes and verify those that they receive.
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
        // A peer that has received everything may have closed.
        match if got < count { packets.recv(&mut buffer) } else { Err(ErrorKind::WouldBlock.into()) } {
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

fn i5_messages_keep_their_boundaries(fixture: &Fixture) -> Outcome {
    let count = fixture.less(300);
    for seed in 0..3 {
        let (client, server) = fixture.packets();
        let (there, back) = (1_000_000 * seed + 1, 1_000_000 * seed + 500_000);
        thread::scope(|scope| {
            scope.spawn(|| converse(server, back, there, count));
            converse(client, there, back, count);
        });
    }
    Ok(())
}

fn i5_sizes_around_every_border(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
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

fn many_small_messages_at_once(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    let count = fixture.less(20_000) as u32;
    thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0..count {
                client.send(&at.to_le_bytes()[..at as usize % 5]).unwrap();
            }
        });
        let mut buffer = [0; 8];
        for at in 0..count {
            let len = server.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..len], at.to_le_bytes()[..at as usize % 5], "message {at}");
        }
    });
    Ok(())
}

fn a_gathered_message_is_one(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    let (head, body) = ([1; 9], bytes(5, 30_000));
    client.send_vectored(&[IoSlice::new(&head), IoSlice::new(&[]), IoSlice::new(&body)]).unwrap();
    let mut buffer = vec![0; 40_000];
    assert_eq!(server.recv(&mut buffer).unwrap(), 30_009);
    assert!(buffer[..9] == head && buffer[9..30_009] == body);
    Ok(())
}

fn a_message_larger_than_the_buffer_stays(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    client.send(&bytes(1, 1000)).unwrap();
    let error = server.recv(&mut [0; 999]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("1000") && error.to_string().contains("999"), "{error}");
    let mut buffer = [0; 1000];
    assert_eq!(server.recv(&mut buffer).unwrap(), 1000);
    assert_eq!(buffer[..], bytes(1, 1000));
    Ok(())
}

fn a_message_goes_in_parts(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
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

fn a_message_above_the_quota_is_refused_without_blocking(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    client.set_nonblocking(true).unwrap();
    let error = client.send(&vec![0; 2 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("send_part"), "{error}");
    client.send(b"and nothing is broken").unwrap();
    let mut buffer = [0; 64];
    assert_eq!(server.recv(&mut buffer).unwrap(), 21);
    Ok(())
}

fn a_message_above_the_limit_is_refused(fixture: &Fixture) -> Outcome {
    // Longer than a frame, as long as a frame, and as short as an inline request.
    for most in [70_000, 10_000, 2000, 100] {
        let limited = |builder: Builder| builder.max_msg(most).eager_max(most as u32);
        let (mut client, mut server) = fixture.packets_with(limited);
        let len = most as usize;
        let error = client.send(&vec![0; len + 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        client.send(&vec![7; len]).unwrap();
        let mut buffer = vec![0; len + 1];
        assert_eq!(server.recv(&mut buffer).unwrap(), len);
    }
    Ok(())
}

fn the_end_comes_after_the_last_message(fixture: &Fixture) -> Outcome {
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
    // The peer's posted receives accept these messages without a call of the peer.
    let (client, server) = fixture.packets_with(|builder| builder.rx_slots(64));
    say(client, 50);
    hear(server, 50);
    let (client, server) = fixture.packets();
    thread::scope(|scope| {
        scope.spawn(|| say(client, 200));
        hear(server, 200);
    });
    Ok(())
}

fn messages_are_received_without_a_copy(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
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

/// A block of the connection's pool for each piece.
fn filled(pool: &Pool, pieces: &[Vec<u8>]) -> Vec<(Block, usize)> {
    let block = |piece: &Vec<u8>| {
        let mut block = pool.take(piece.len()).unwrap();
        block.bytes_mut()[..piece.len()].copy_from_slice(piece);
        (block, piece.len())
    };
    pieces.iter().map(block).collect()
}

/// Checks the completions of one ticket: each gives the number that follow, the last one zero.
fn count_down(completions: &[Completion], ticket: Ticket, count: usize) {
    let told: Vec<_> = completions.iter().map(|each| (each.ticket, each.sent, each.left)).collect();
    let wanted: Vec<_> = (0..count).rev().map(|left| (ticket, true, left)).collect();
    assert_eq!(told, wanted);
}

fn several_blocks_are_one_message(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    let sizes: [&[usize]; 7] =
        [&[10, 5], &[0, 0, 7], &[8176, 1], &[100, 300_000], &[90_000, 60, 90_000], &[1000; 40], &[0]];
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 1 << 20];
            for (seed, list) in sizes.iter().enumerate() {
                let wanted: Vec<u8> = list.iter().flat_map(|len| bytes(seed as u64, *len)).collect();
                // Every other message goes without a copy.
                if seed % 2 == 0 {
                    let message = server.recv_buf().unwrap();
                    assert!(message.to_vec() == wanted, "message {seed}");
                } else {
                    assert_eq!(server.recv(&mut buffer).unwrap(), wanted.len());
                    assert!(buffer[..wanted.len()] == wanted, "message {seed}");
                }
            }
        });
        for (seed, list) in sizes.iter().enumerate() {
            let pieces: Vec<_> = list.iter().map(|len| bytes(seed as u64, *len)).collect();
            let mut blocks = filled(client.pool(), &pieces);
            let ticket = client.send_blocks(&mut blocks).unwrap();
            assert!(blocks.is_empty());
            let completions: Vec<_> =
                std::iter::from_fn(|| client.next_completion().unwrap()).take(list.len()).collect();
            count_down(&completions, ticket, list.len());
        }
    });
    let mut none = Vec::new();
    assert_eq!(client.send_blocks(&mut none).unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut beyond = filled(client.pool(), &[vec![1]]);
    beyond[0].1 = beyond[0].0.len() + 1;
    assert_eq!(client.send_blocks(&mut beyond).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(beyond.len(), 1, "what is refused stays");
    Ok(())
}

fn a_worker_sends_several_blocks_as_one_message(fixture: &Fixture) -> Outcome {
    let (client, mut server) = fixture.packets();
    let mut worker = Worker::new(&fixture.builder().build().unwrap()).unwrap();
    let key = worker.add_seq_packet(client).unwrap();
    let pieces = [bytes(1, 20), bytes(2, 150_000), bytes(3, 3000)];
    let wanted = pieces.concat();
    let mut blocks = filled(&worker.pool(), &pieces);
    let ticket = worker.send_blocks(key, &mut blocks).unwrap();
    let got = thread::spawn(move || server.recv_buf().unwrap().to_vec());
    let (mut events, mut completions) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + LONG;
    while completions.len() < 3 {
        assert!(Instant::now() < deadline, "{completions:?}");
        worker.poll(&mut events, Some(Duration::from_millis(20))).unwrap();
        completions.extend(events.drain(..).filter_map(|event| match event {
            Event::Completed { completion, .. } => Some(completion),
            _ => None,
        }));
    }
    count_down(&completions, ticket, 3);
    assert!(got.join().unwrap() == wanted);
    Ok(())
}

/// 24 MiB in blocks of 1 MiB, which the peer receives in parts, because its memory for received
/// data is smaller.
fn a_message_may_be_larger_than_any_block(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    let pieces: Vec<_> = (0..24).map(|seed| bytes(seed, 1 << 20)).collect();
    let wanted = pieces.concat();
    let mut blocks = filled(client.pool(), &pieces);
    let mut buffer = vec![0; wanted.len()];
    thread::scope(|scope| {
        scope.spawn(|| {
            let ticket = client.send_blocks(&mut blocks).unwrap();
            let completions: Vec<_> =
                std::iter::from_fn(|| client.next_completion().unwrap()).take(24).collect();
            count_down(&completions, ticket, 24);
        });
        assert_eq!(server.recv(&mut buffer).unwrap(), wanted.len());
    });
    assert!(buffer == wanted);
    Ok(())
}

/// Both ends are corked, and wait only for each other.
fn pipelined_requests_are_answered_in_one_frame(fixture: &Fixture) -> Outcome {
    const TOGETHER: u64 = 10;
    let (mut client, mut server) = fixture.packets();
    let frames = |end: &SeqPacket| end.stats().frames_sent - end.stats().credits_sent;
    for end in [&mut client, &mut server] {
        end.set_cork(true).unwrap();
    }
    for round in 0..20 {
        let (before, began) = ([frames(&client), frames(&server)], Instant::now());
        (0..TOGETHER).for_each(|at| client.send(&bytes(at, 20)).unwrap());
        let mut buffer = [0; 20];
        server = thread::scope(|scope| {
            let answering = scope.spawn(move || {
                let mut buffer = [0; 20];
                for _ in 0..TOGETHER {
                    server.recv(&mut buffer).unwrap();
                    server.send(&buffer).unwrap();
                }
                // This message announces the answers: waiting for it flushes them.
                server.recv(&mut buffer).unwrap();
                server
            });
            for at in 0..TOGETHER {
                client.recv(&mut buffer).unwrap();
                assert!(buffer[..] == bytes(at, 20));
            }
            client.send(b"thanks").unwrap();
            client.set_cork(false).unwrap();
            client.set_cork(true).unwrap();
            answering.join().unwrap()
        });
        let sent = [frames(&client) - before[0], frames(&server) - before[1]];
        // The cork's timeout flushes them, too.
        if began.elapsed() < Duration::from_millis(200) {
            assert_eq!(sent, [2, 1], "round {round}");
            return Ok(());
        }
    }
    panic!("this machine is too busy to tell");
}

/// They are sent in frames, a few at a time.
fn long_messages_arrive_where_nobody_reads(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets_with(|builder| builder.rendezvous(false));
    let sizes = [8000, 8176, 8177, 16_344, 16_345, 70_000, 1 << 20, (3 << 20) + 5];
    let mut buffer = vec![0; 4 << 20];
    thread::scope(|scope| {
        scope.spawn(|| sizes.iter().for_each(|len| client.send(&bytes(*len as u64, *len)).unwrap()));
        for len in sizes {
            assert_eq!(server.recv(&mut buffer).unwrap(), len);
            assert!(buffer[..len] == bytes(len as u64, len), "{len} bytes");
        }
    });
    assert_eq!(client.stats().reads + server.stats().reads, 0);
    Ok(())
}

/// Twice the size of a receive buffer; the receiver keeps no part for long.
fn a_message_of_any_length_is_received_without_a_copy(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    let sent = bytes(77, (2 << 20) + 5);
    thread::scope(|scope| {
        scope.spawn(|| {
            client.send(&sent).unwrap();
            client.send(b"next").unwrap();
        });
        let error = server.recv_buf().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let mut got = Vec::new();
        loop {
            let (bytes, part) = server.recv_part_buf().unwrap();
            assert_eq!((bytes.len(), part.total), (part.len, sent.len() as u64));
            bytes.chunks().for_each(|chunk| got.extend_from_slice(chunk));
            if part.last {
                break;
            }
            if got.len() == part.len {
                let error = server.recv_buf().unwrap_err();
                assert!(error.to_string().contains("under way in parts"), "{error}");
            }
        }
        assert!(got == sent);
        assert_eq!(server.recv_buf().unwrap().to_vec(), b"next");
    });
    Ok(())
}

fn memory_of_the_programs_own_goes_without_a_copy(fixture: &Fixture) -> Outcome {
    // A private pool: no other configuration has this maximum.
    let (mut client, mut server) = fixture.packets_with(|builder| builder.pool_max(79 << 20));
    // One is longer than the most that a peer reads at a time.
    for (round, len) in [100, 200_000, 200_000, 17 << 20].into_iter().enumerate() {
        let sent = bytes(round as u64, len);
        let at = sent.as_ptr();
        let block = client.pool().adopt(sent);
        let mut head = client.buffer(4).unwrap();
        head.bytes_mut()[..4].copy_from_slice(b"head");
        let mut buffer = vec![0; len + 4];
        let completions: Vec<_> = thread::scope(|scope| {
            scope.spawn(|| assert_eq!(server.recv(&mut buffer).unwrap(), len + 4));
            client.send_blocks(&mut vec![(head, 4), (block, len)]).unwrap();
            std::iter::from_fn(|| client.next_completion().unwrap()).take(2).collect()
        });
        assert!(buffer[..4] == *b"head" && buffer[4..] == bytes(round as u64, len));
        let back = completions.into_iter().find_map(|each| each.block.into_vec().ok()).unwrap();
        assert_eq!((back.as_ptr(), back.len()), (at, len), "the same memory");
    }
    let adopted = client.pool().stats().adopted;
    assert_eq!((adopted.made, adopted.registered), (if fixture.is_tcp() { 0 } else { 3 }, 0), "{adopted:?}");
    // Memory that is sent repeatedly is registered once.
    let mut block = client.pool().adopt(bytes(9, 300_000));
    let mut buffer = vec![0; 300_000];
    for _ in 0..5 {
        block = thread::scope(|scope| {
            scope.spawn(|| assert_eq!(server.recv(&mut buffer).unwrap(), 300_000));
            client.send_buf(block, 300_000).unwrap();
            client.next_completion().unwrap().unwrap().block
        });
        assert!(buffer == bytes(9, 300_000));
    }
    let adopted = client.pool().stats().adopted;
    assert_eq!(adopted.made, if fixture.is_tcp() { 0 } else { 4 }, "{adopted:?}");
    assert_eq!(adopted.reused, if fixture.is_tcp() { 0 } else { 4 }, "{adopted:?}");
    Ok(())
}

fn a_stream_is_not_taken_for_messages(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    ask_for_streams(&listener);
    thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let error = fixture.builder().connect_seq_packet(addr).unwrap_err();
            (error, fixture.builder().connect(addr).unwrap())
        });
        let (stream, peer) = listener.accept().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), peer);
        let (error, connected) = connecting.join().unwrap();
        assert_eq!(connected.local_addr().unwrap(), peer);
        assert!(error.to_string().contains("message"), "{error}");
    });
    Ok(())
}

/// Long enough for data that has arrived, and far less than the limit of a case.
const SOON: Duration = Duration::from_millis(200);

/// Neither side makes calls while the other's timeout runs.
fn a_message_whose_time_is_up_is_gone_on_with(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    let (message, mut buffer) = (bytes(21, 6 << 20), vec![0; 6 << 20]);
    assert_eq!((client.sending(), server.receiving()), (None, None));
    client.set_write_timeout(Some(SOON)).unwrap();
    let began = Instant::now();
    assert!(is_over(&client.send(&message).unwrap_err()));
    assert!(began.elapsed() >= SOON);
    let sent = client.sending().expect("some of it went");
    assert!(sent.done > 0 && sent.done < sent.total && sent.total == message.len() as u64, "{sent:?}");
    let error = client.send(b"another").unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("in parts"), "{error}");

    server.set_read_timeout(Some(SOON)).unwrap();
    assert!(is_over(&server.recv(&mut buffer).unwrap_err()));
    let got = server.receiving().expect("some of it came");
    assert!(got.done > 0 && got.done <= sent.done && got.total == sent.total, "{got:?} of {sent:?}");
    let error = server.recv(&mut buffer).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("in parts"), "{error}");
    assert_eq!((client.sending(), server.receiving()), (Some(sent), Some(got)), "nothing has moved since");

    client.set_write_timeout(Some(LONG)).unwrap();
    server.set_read_timeout(Some(LONG)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = sent.done as usize;
            while done < message.len() {
                done += client.send_part(sent.total, &message[done..]).unwrap();
            }
            assert_eq!(client.sending(), None);
            client.send(b"another").unwrap();
        });
        let mut done = got.done as usize;
        loop {
            let part = server.recv_part(&mut buffer[done..]).unwrap();
            done += part.len;
            if part.last {
                break;
            }
        }
        assert_eq!((done, server.receiving()), (message.len(), None));
        assert!(buffer == message, "what came before its time was up lies at the start");
        assert_eq!(server.recv(&mut buffer).unwrap(), 7);
    });
    Ok(())
}

fn a_message_that_fits_the_buffer_moves_whole_or_not_at_all(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    client.set_write_timeout(Some(SOON)).unwrap();
    server.set_read_timeout(Some(SOON)).unwrap();
    let mut buffer = vec![0; 300_000];
    assert!(is_over(&server.recv(&mut buffer).unwrap_err()));
    let mut sent = 0;
    // The operating system's buffers may take some, too.
    while client.send(&bytes(sent, 300_000)).map_err(|error| assert!(is_over(&error), "{error}")).is_ok() {
        sent += 1;
        assert!(sent < 200, "60 MB went to nobody");
    }
    assert!(sent > 0 && client.sending().is_none() && server.receiving().is_none());
    server.set_read_timeout(Some(LONG)).unwrap();
    client.set_write_timeout(Some(LONG)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| client.send(&bytes(sent, 300_000)).unwrap());
        for seed in 0..=sent {
            assert_eq!(server.recv(&mut buffer).unwrap(), 300_000);
            assert!(buffer == bytes(seed, 300_000), "message {seed}");
        }
    });
    Ok(())
}

/// Whether an error is the one that [`std::net`] gives for a timeout.
fn is_over(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The longest possible message. Its bytes repeat after a length that differs from every block's,
/// so that no two blocks are equal.
fn a_message_of_1_gib_arrives(fixture: &Fixture) -> Outcome {
    const PERIOD: usize = 1_048_573;
    let total = fixture.less(1 << 30);
    let pattern = bytes(30, PERIOD);
    let from = |at: usize| &pattern[at % PERIOD..];
    let (mut client, mut server) = fixture.packets();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = 0;
            while sent < total {
                let rest = from(sent);
                sent += client.send_part(total as u64, &rest[..rest.len().min(total - sent)]).unwrap();
            }
            assert_eq!(client.sending().map(|sending| sending.done), None);
        });
        let (mut buffer, mut got) = (vec![0; 1 << 20], 0);
        loop {
            let part = server.recv_part(&mut buffer).unwrap();
            assert_eq!(part.total, total as u64);
            let mut left = &buffer[..part.len];
            while !left.is_empty() {
                let expected = from(got);
                let len = left.len().min(expected.len());
                assert!(left[..len] == expected[..len], "other bytes from {got} on");
                (left, got) = (&left[len..], got + len);
            }
            if part.last {
                break assert_eq!(got, total);
            }
        }
    });
    Ok(())
}

/// Only a few MiB are ever sent, so the zero pages need no memory, and neither does the announced
/// length.
fn an_end_within_a_message_of_1_gib_is_a_failure(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    client.set_write_timeout(Some(SOON)).unwrap();
    assert!(is_over(&client.send(&vec![0; 1 << 30]).unwrap_err()));
    let sent = client.sending().expect("some of it went");
    assert!(sent.done > 0 && sent.done < 64 << 20 && sent.total == 1 << 30, "{sent:?}");
    drop(client);
    let (mut buffer, mut got) = (vec![1; 1 << 20], 0);
    let error = loop {
        match server.recv_part(&mut buffer) {
            Ok(part) => {
                assert!(
                    !part.last
                        && part.total == sent.total
                        && buffer[..part.len].iter().all(|byte| *byte == 0)
                );
                got += part.len as u64;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(got <= sent.done, "{got} bytes of {sent:?}");
    Ok(())
}
