//! All sent bytes arrive, in order.

use std::thread;

use super::*;

/// A reproducible pseudorandom generator.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % below) as usize
    }
}

/// The byte at a position of a stream.
fn byte(seed: u64, at: usize) -> u8 {
    let at = at as u64;
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ (seed as u8) ^ (at >> 16) as u8
}

/// Cuts a buffer into pieces of random lengths, some of them empty.
fn cut(buffer: *mut u8, length: usize, random: &mut Random) -> Vec<libc::iovec> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < length && pieces.len() < 15 {
        let piece = random.next((length - at) as u64 + 1);
        pieces.push(libc::iovec { iov_base: buffer.wrapping_add(at).cast(), iov_len: piece });
        at += piece;
    }
    pieces.push(libc::iovec { iov_base: buffer.wrapping_add(at).cast(), iov_len: length - at });
    pieces
}

/// Sends `total` bytes in requests of random lengths and kinds.
fn write(socket: &TestSocket, seed: u64, total: usize) {
    let mut random = Random(seed);
    let mut sent = 0;
    while sent < total {
        let most = if random.next(4) == 0 { 200_000 } else { 600 };
        let length = (random.next(most) + 1).min(total - sent);
        let mut bytes: Vec<u8> = (sent..sent + length).map(|at| byte(seed, at)).collect();
        let pieces = cut(bytes.as_mut_ptr(), length, &mut random);
        // SAFETY: the pieces lie within `bytes`.
        let done = outcome(unsafe {
            match random.next(4) {
                0 => (cm().rwritev)(socket.0, pieces.as_ptr(), pieces.len() as c_int),
                1 => {
                    let mut message: libc::msghdr = mem::zeroed();
                    (message.msg_iov, message.msg_iovlen) = (pieces.as_ptr().cast_mut(), pieces.len());
                    (cm().rsendmsg)(socket.0, &raw const message, 0)
                }
                2 => (cm().rwrite)(socket.0, bytes.as_ptr().cast(), length),
                _ => (cm().rsendto)(socket.0, bytes.as_ptr().cast(), length, 0, std::ptr::null(), 0),
            }
        });
        match done {
            Ok(done) => sent += done,
            Err(libc::EAGAIN) => {
                assert_ne!(socket.poll(libc::POLLOUT, PATIENCE_MS), 0);
            }
            Err(error) => panic!("error {error} after {sent} bytes"),
        }
    }
    assert_eq!(socket.shut_down(libc::SHUT_WR), Ok(0));
}

/// Reads until the stream ends, and checks that it ends after `total` bytes.
fn read(socket: &TestSocket, seed: u64, total: usize) {
    let mut random = Random(seed ^ 0xabcd);
    let mut bytes = vec![0; 300_000];
    let mut got = 0;
    loop {
        let most = if random.next(4) == 0 { bytes.len() as u64 } else { 600 };
        let length = random.next(most) + 1;
        let pieces = cut(bytes.as_mut_ptr(), length, &mut random);
        // SAFETY: the pieces lie within the buffer.
        let done = outcome(unsafe {
            match random.next(5) {
                0 => (cm().rreadv)(socket.0, pieces.as_ptr(), pieces.len() as c_int),
                1 => {
                    let mut message: libc::msghdr = mem::zeroed();
                    (message.msg_iov, message.msg_iovlen) = (pieces.as_ptr().cast_mut(), pieces.len());
                    (cm().rrecvmsg)(socket.0, &raw mut message, 0)
                }
                2 => (cm().rread)(socket.0, bytes.as_mut_ptr().cast(), length),
                3 => (cm().rrecv)(socket.0, bytes.as_mut_ptr().cast(), length, libc::MSG_WAITALL),
                _ => {
                    let (none, no_length) = (std::ptr::null_mut(), std::ptr::null_mut());
                    (cm().rrecvfrom)(socket.0, bytes.as_mut_ptr().cast(), length, 0, none, no_length)
                }
            }
        });
        match done {
            Ok(0) => break,
            Ok(done) => {
                let wrong = (0..done).find(|at| bytes[*at] != byte(seed, got + at));
                assert_eq!(wrong.map(|at| at + got), None, "of {total} bytes");
                got += done;
            }
            Err(libc::EAGAIN) => {
                assert_ne!(socket.poll(libc::POLLIN, PATIENCE_MS), 0);
            }
            Err(error) => panic!("error {error} after {got} bytes"),
        }
    }
    assert_eq!(got, total);
}

fn both_ways(prepare: impl Fn(&TestSocket), is_nonblocking: bool, total: usize) {
    let (one, other) = pair_with(prepare);
    if is_nonblocking {
        one.make_nonblocking();
        other.make_nonblocking();
    }
    thread::scope(|scope| {
        scope.spawn(|| write(&one, 1, total));
        scope.spawn(|| write(&other, 2, total));
        scope.spawn(|| read(&one, 2, total));
        scope.spawn(|| read(&other, 1, total));
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn both_directions_at_once() {
    both_ways(|_| (), false, 6_000_000);
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn both_directions_without_waiting_in_a_call() {
    both_ways(|_| (), true, 4_000_000);
}

/// With the fewest and shortest messages, progress depends on the credits.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn both_directions_with_little_room() {
    let prepare = |socket: &TestSocket| {
        for (level, name, value) in [
            (libc::SOL_SOCKET, libc::SO_RCVBUF, 1),
            (libc::SOL_SOCKET, libc::SO_SNDBUF, 1),
            (super::super::options::SOL_RDMA, super::super::options::RDMA_SQSIZE, 1),
            (super::super::options::SOL_RDMA, super::super::options::RDMA_RQSIZE, 1),
        ] {
            assert_eq!(socket.set(level, name, value), Ok(0));
        }
    };
    both_ways(prepare, false, 600_000);
    both_ways(prepare, true, 300_000);
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_look_ahead_takes_nothing() {
    let (one, other) = pair();
    assert_eq!(one.send(b"first", 0), Ok(5));
    assert_eq!(one.send(b"second", 0), Ok(6));
    let mut bytes = [0; 11];
    assert_eq!(other.receive(&mut bytes, libc::MSG_WAITALL | libc::MSG_PEEK).map(|n| n >= 5), Ok(true));
    assert_ne!(other.poll(libc::POLLIN, PATIENCE_MS), 0);
    while other.receive(&mut bytes, libc::MSG_PEEK) != Ok(11) {
        thread::yield_now(); // The second message is in flight.
    }
    assert_eq!(&bytes, b"firstsecond");
    let mut part = [0; 3];
    assert_eq!((other.receive(&mut part, 0), &part), (Ok(3), b"fir"));
    assert_eq!(other.receive(&mut bytes, libc::MSG_PEEK), Ok(8));
    assert_eq!(&bytes[..8], b"stsecond");
    assert_eq!(other.receive(&mut bytes[..8], libc::MSG_WAITALL), Ok(8));
    assert_eq!(&bytes[..8], b"stsecond");
    assert_eq!(other.receive(&mut bytes, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    assert_eq!(other.receive(&mut [], 0), Ok(0));
    assert_eq!(other.send(&[], 0), Ok(0));
}

/// Two sides that only write stop when the room is used up, and continue once one of them reads.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_reader_frees_a_writer() {
    let (one, other) = pair();
    let bytes = vec![7; 100_000];
    let fill = |socket: &TestSocket| {
        let mut total = 0;
        while let Ok(sent) = socket.send(&bytes, libc::MSG_DONTWAIT) {
            total += sent;
            assert!(total < 100_000_000, "the stream never ends");
        }
        assert_eq!(errno(), libc::EAGAIN);
        assert_eq!(socket.poll(libc::POLLOUT, 0), 0);
        total
    };
    let (mut there, back) = (fill(&one), fill(&other));
    assert!(there > 0 && back > 0);
    let mut place = vec![0; there];
    assert_eq!(other.receive(&mut place, libc::MSG_WAITALL), Ok(there));
    assert_eq!(one.poll(libc::POLLOUT, PATIENCE_MS), libc::POLLOUT);
    there = fill(&one);
    assert!(there > 0);
    assert_eq!(other.receive(&mut place[..there], libc::MSG_WAITALL), Ok(there));
    let mut place = vec![0; back];
    assert_eq!(one.receive(&mut place, libc::MSG_WAITALL), Ok(back));
    assert_eq!(other.poll(libc::POLLOUT, PATIENCE_MS), libc::POLLOUT);
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn invalid_sends_and_receives_are_refused() {
    let (one, other) = pair();
    let byte = [0_u8; 1];
    // SAFETY: the refused calls access no memory.
    unsafe {
        let null = std::ptr::null_mut();
        assert_eq!(outcome((cm().rsend)(one.0, null, 1, 0)), Err(libc::EFAULT));
        assert_eq!(outcome((cm().rrecv)(one.0, null, 1, 0)), Err(libc::EFAULT));
        assert_eq!(outcome((cm().rwrite)(one.0, byte.as_ptr().cast(), usize::MAX)), Err(libc::EINVAL));
        assert_eq!(outcome((cm().rwritev)(one.0, std::ptr::null(), 1)), Err(libc::EFAULT));
        assert_eq!(outcome((cm().rwritev)(one.0, std::ptr::null(), -1)), Err(libc::EINVAL));
        assert_eq!(outcome((cm().rreadv)(one.0, std::ptr::null(), 1025)), Err(libc::EINVAL));
        assert_eq!(outcome((cm().rsendmsg)(one.0, std::ptr::null(), 0)), Err(libc::EFAULT));
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iovlen = 1025;
        assert_eq!(outcome((cm().rrecvmsg)(one.0, &raw mut message, 0)), Err(libc::EMSGSIZE));
        message.msg_iovlen = 0;
        message.msg_controllen = 8;
        assert_eq!(outcome((cm().rsendmsg)(one.0, &raw const message, 0)), Err(libc::EOPNOTSUPP));
        let huge = libc::iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: usize::MAX };
        assert_eq!(outcome((cm().rwritev)(one.0, [huge, huge].as_ptr(), 2)), Err(libc::EINVAL));
    }
    assert_eq!(one.send(&byte, libc::MSG_OOB), Err(libc::EOPNOTSUPP));
    assert_eq!(other.receive(&mut [0], libc::MSG_OOB), Err(libc::EOPNOTSUPP));
    let fresh = TestSocket::new(libc::AF_INET);
    assert_eq!(fresh.send(&byte, 0), Err(libc::ENOTCONN));
    assert_eq!(fresh.receive(&mut [0], 0), Err(libc::ENOTCONN));
    assert_eq!(one.send(&byte, libc::MSG_NOSIGNAL | libc::MSG_MORE), Ok(1), "the connection still works");
    assert_eq!(other.receive(&mut [0], 0), Ok(1));
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_time_limit_holds() {
    let (one, other) = pair();
    let time = libc::timeval { tv_sec: 0, tv_usec: 30_000 };
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        // SAFETY: the value is a local.
        let set = unsafe { (cm().rsetsockopt)(one.0, libc::SOL_SOCKET, name, (&raw const time).cast(), 16) };
        assert_eq!(set, 0);
    }
    assert_eq!(one.receive(&mut [0], 0), Err(libc::EAGAIN));
    let bytes = vec![0; 50_000_000];
    let sent = one.send(&bytes, 0).expect("some of it");
    assert!(sent < bytes.len());
    assert_eq!(one.send(&bytes, 0), Err(libc::EAGAIN));
    assert_eq!(other.receive(&mut vec![0; sent], libc::MSG_WAITALL), Ok(sent));
}
