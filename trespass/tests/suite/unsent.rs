//! What blocking calls leave behind while the peer's program is busy: the service thread sends it, or
//! the next call that waits does (`parity::late_readers` has the cases of streams).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::membarrier_query;
use test_harness::{Outcome, bytes, cases};
use trespass::{SeqPacket, Stream};

use super::accepting::service_thread;
use super::death::ChildPeer;
use super::fixture::{Fixture, LONG, read_exactly};
use super::idle::{sees_it_asleep, switches};
use super::ready::{again, timespec};
use super::streams::fill_without_waiting;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: small_messages_wait_for_no_reader, the_last_message_is_the_last_call,
        a_flush_of_a_full_connection_waits_for_nobody, lent_blocks_wait_for_no_reader, the_last_lent_block_is_the_last_call, uncorked_bytes_wait_for_no_reader, a_dropped_half_ends_behind_its_bytes,
        a_failed_connection_is_left_alone, a_read_that_times_out_leaves_what_is_queued,
        a_read_during_a_panic_leaves_what_is_queued, a_refused_flush_is_told_of_visits,
        visits_are_no_sleeps, writes_wait_where_a_sandbox_forbids_visits, i18_the_service_thread_sleeps_once_all_is_sent,
        i18_visits_to_a_peer_that_does_not_read_are_few);
}

/// More messages than any receive queue has entries.
const MESSAGES: u64 = 1000;

/// How late the peer reads.
const LATE: Duration = Duration::from_millis(200);

fn send_messages(packets: &mut SeqPacket) {
    for number in 0..MESSAGES {
        packets.send(&number.to_be_bytes()).unwrap();
    }
}

fn receive_messages(packets: &mut SeqPacket) {
    for number in 0..MESSAGES {
        let mut message = [0; 16];
        assert_eq!(packets.recv(&mut message).unwrap(), 8);
        assert_eq!(message[..8], number.to_be_bytes());
    }
}

fn small_messages_wait_for_no_reader(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    send_messages(&mut client);
    send_messages(&mut server);
    receive_messages(&mut server);
    receive_messages(&mut client);
    Ok(())
}

fn the_last_message_is_the_last_call(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.packets();
    send_messages(&mut client);
    for _ in 0..2 {
        thread::sleep(LATE);
        let begun = Instant::now();
        receive_messages(&mut server);
        println!("{MESSAGES} messages, read {LATE:?} late, arrive within {:?}", begun.elapsed());
        send_messages(&mut client);
    }
    Ok(())
}

fn lent_blocks_wait_for_no_reader(fixture: &Fixture) -> Outcome {
    const BLOCKS: usize = 300;
    let (mut client, mut server) = fixture.streams();
    for number in 0..BLOCKS {
        let block = client.pool().adopt(bytes(number as u64, 10));
        client.send_buf(block, 10).unwrap();
    }
    thread::sleep(LATE);
    for number in 0..BLOCKS {
        assert_eq!(read_exactly(&mut server, 10), bytes(number as u64, 10));
    }
    Ok(())
}

/// The connection takes no more, and one thread has both ends.
fn a_flush_of_a_full_connection_waits_for_nobody(fixture: &Fixture) -> Outcome {
    let (mut client, mut server) = fixture.streams();
    client.set_nonblocking(true).unwrap();
    let len = fill_without_waiting(&mut client);
    client.set_nonblocking(false).unwrap();
    client.set_write_timeout(None).unwrap();
    client.flush().unwrap();
    read_exactly(&mut server, len);
    Ok(())
}

/// The last block is the first that the transport does not take at once.
fn the_last_lent_block_is_the_last_call(fixture: &Fixture) -> Outcome {
    const LEN: usize = 64 << 10;
    // More than the kernel takes.
    let builder = || fixture.builder().sndbuf(64 << 20);
    let (mut client, mut server) = fixture.streams_of(builder(), builder());
    let mut blocks = 0;
    loop {
        client.set_nonblocking(false).unwrap();
        let block = client.pool().adopt(bytes(blocks, LEN));
        client.send_buf(block, LEN).unwrap();
        blocks += 1;
        client.set_nonblocking(true).unwrap();
        match client.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            flushed => flushed.unwrap(),
        }
    }
    for number in 0..blocks {
        assert!(read_exactly(&mut server, LEN) == bytes(number, LEN));
    }
    Ok(())
}

fn uncorked_bytes_wait_for_no_reader(fixture: &Fixture) -> Outcome {
    const LEN: usize = 900_000;
    let (mut client, mut server) = fixture.streams();
    let data = bytes(1, LEN);
    client.set_cork(true).unwrap();
    data.chunks(1000).for_each(|piece| client.write_all(piece).unwrap());
    client.set_cork(false).unwrap();
    thread::sleep(LATE);
    assert!(read_exactly(&mut server, LEN) == data);
    Ok(())
}

/// The other half makes no call.
fn a_dropped_half_ends_behind_its_bytes(fixture: &Fixture) -> Outcome {
    let (client, mut server) = fixture.streams();
    let (_reading, mut writing) = client.split();
    let data = bytes(2, 10_000);
    data.chunks(10).for_each(|piece| writing.write_all(piece).unwrap());
    drop(writing);
    thread::sleep(LATE);
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert!(got == data);
    Ok(())
}

fn write_in_pieces(stream: &mut Stream) -> Vec<u8> {
    let data = bytes(3, 10_000);
    data.chunks(10).for_each(|piece| stream.write_all(piece).unwrap());
    data
}

/// A stream whose peer has not read what it wrote in small pieces.
fn with_unread(fixture: &Fixture) -> (Stream, Stream, Vec<u8>) {
    let (mut client, server) = fixture.streams();
    let data = write_in_pieces(&mut client);
    (client, server, data)
}

fn a_failed_connection_is_left_alone(fixture: &Fixture) -> Outcome {
    let (mut client, server, _) = with_unread(fixture);
    drop(server); // resets, because it has not read
    sees_it_asleep(service_thread());
    client.set_write_timeout(Some(LONG)).unwrap();
    while client.write(&[0; 10]).is_ok() {}
    Ok(())
}

/// Writes in small pieces without waiting.
fn with_queued(fixture: &Fixture) -> (Stream, Stream, Vec<u8>) {
    let (mut client, server) = fixture.streams();
    client.set_nonblocking(true).unwrap();
    let data = write_in_pieces(&mut client);
    client.set_nonblocking(false).unwrap();
    (client, server, data)
}

/// Another call than the one that read has queued them.
fn a_read_that_times_out_leaves_what_is_queued(fixture: &Fixture) -> Outcome {
    let (mut client, mut server, data) = with_queued(fixture);
    client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert!(client.read(&mut [0]).is_err());
    assert!(read_exactly(&mut server, data.len()) == data);
    Ok(())
}

/// Reads when it is dropped.
struct ReadsAtDrop<'a>(&'a mut Stream);

impl Drop for ReadsAtDrop<'_> {
    fn drop(&mut self) {
        assert!(thread::panicking());
        let _ = self.0.read(&mut [0]); // nothing comes
    }
}

fn a_read_during_a_panic_leaves_what_is_queued(fixture: &Fixture) -> Outcome {
    let (mut client, mut server, data) = with_unread(fixture);
    client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    // The owner of the stream lives on.
    let reads = ReadsAtDrop(&mut client);
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _reads = reads;
        resume_unwind(Box::new("without a report"));
    }));
    assert!(panicked.is_err());
    assert!(read_exactly(&mut server, data.len()) == data);
    Ok(())
}

/// Sleeps until the descriptor of a stream in non-blocking mode is readable.
fn wait(client: &impl AsFd) {
    let ready = again(|| Ok(poll(&mut [PollFd::new(client, PollFlags::IN)], Some(&timespec(LONG)))?));
    assert_eq!(ready, 1, "nobody wakes the program");
}

/// Repeats a call that is refused until the peer has read all. The program waits for the descriptor
/// when the service thread has sent all, and has taken the events that report this.
fn repeat_late<T>(
    client: &mut Stream,
    read_all: impl FnOnce(),
    mut call: impl FnMut(&mut Stream) -> io::Result<T>,
) -> T {
    client.set_nonblocking(true).unwrap();
    let _ = client.as_fd(); // the first call wakes the program
    let mut outcome = call(client);
    read_all();
    sees_it_asleep(service_thread());
    loop {
        match outcome {
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(client),
            outcome => return outcome.unwrap(),
        }
        outcome = call(client);
    }
}

fn a_refused_flush_is_told_of_visits(fixture: &Fixture) -> Outcome {
    let builder = || fixture.builder().keepalive(None);
    let (mut client, mut server) = fixture.streams_of(builder(), builder());
    let data = write_in_pieces(&mut client);
    let read_all = || assert!(read_exactly(&mut server, data.len()) == data);
    repeat_late(&mut client, read_all, Write::flush);
    Ok(())
}

/// Nobody slept.
fn visits_are_no_sleeps(fixture: &Fixture) -> Outcome {
    let (client, mut server, data) = with_unread(fixture);
    let before = client.stats().sleeps;
    thread::sleep(LATE);
    assert!(read_exactly(&mut server, data.len()) == data);
    assert_eq!(client.stats().sleeps, before);
    Ok(())
}

fn i18_the_service_thread_sleeps_once_all_is_sent(fixture: &Fixture) -> Outcome {
    let (client, mut server, data) = with_unread(fixture);
    thread::sleep(LATE);
    assert!(read_exactly(&mut server, data.len()) == data);
    sees_it_asleep(service_thread());
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
    sees_it_asleep(service_thread());
    Ok(())
}

/// The bytes of a child process that cannot be visited.
const DATA: usize = 10_000;

/// Without membarrier(2), which keeps visits and calls apart, the writes wait for the peer.
fn writes_wait_where_a_sandbox_forbids_visits(fixture: &Fixture) -> Outcome {
    let (listener, addr) = fixture.listener();
    let mut command = ChildPeer::command(WITHOUT_VISITS, addr);
    // SAFETY: the function makes two system calls, which are allowed between fork and exec.
    unsafe { command.pre_exec(forbid_membarrier) };
    let (_child, _) = ChildPeer::start_piped(command);
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(LONG)).unwrap();
    thread::sleep(LATE);
    assert!(read_exactly(&mut server, DATA) == bytes(5, DATA));
    Ok(())
}

/// The task of a child process. After its last write it makes no call.
const WITHOUT_VISITS: &str = "write without visits";

pub(crate) fn part_of_child(part: &str, fixture: &Fixture, addr: SocketAddr) -> bool {
    if part != WITHOUT_VISITS {
        return false;
    }
    assert!(membarrier_query().is_empty(), "the system allows membarrier");
    let mut stream = fixture.builder().connect(addr).unwrap();
    bytes(5, DATA).chunks(10).for_each(|piece| stream.write_all(piece).unwrap());
    thread::sleep(2 * LONG); // until the parent kills this process
    true
}

/// Has membarrier(2) fail in the calling process, and in the program that it executes.
fn forbid_membarrier() -> io::Result<()> {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let fails = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let mut filter = [
        // The first field of `seccomp_data` is the number of the system call.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_membarrier as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, fails),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter live for the calls.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Bounds the count, which a slow machine makes smaller.
fn i18_visits_to_a_peer_that_does_not_read_are_few(fixture: &Fixture) -> Outcome {
    drop(fixture.streams());
    sees_it_asleep(service_thread());
    let (mut client, mut server, data) = with_unread(fixture);
    let before = switches(service_thread());
    thread::sleep(Duration::from_secs(1));
    let visits = switches(service_thread()) - before;
    assert!(visits < 150, "{visits} in the first second");
    // A call that waits sends by itself.
    let reading = thread::scope(|scope| {
        let reading = scope.spawn(|| client.read(&mut [0; 8]).unwrap());
        sees_it_asleep(service_thread());
        assert!(read_exactly(&mut server, data.len()) == data);
        server.write_all(b"all").unwrap();
        reading.join().unwrap()
    });
    assert_eq!(reading, 3);
    Ok(())
}
