//! Memory that the peer writes to.

use super::super::options::{RDMA_IOMAPSIZE, SOL_RDMA};
use super::*;

fn map(socket: &TestSocket, memory: &mut [u8], prot: c_int, offset: i64) -> Result<i64, c_int> {
    let (base, length) = (memory.as_mut_ptr().cast(), memory.len());
    // SAFETY: the memory outlives the mapping, because the test unmaps it or closes the rsocket
    // first.
    match unsafe { (cm().riomap)(socket.0, base, length, prot, 0, offset) } {
        -1 => Err(errno()),
        offset => Ok(offset),
    }
}

fn unmap(socket: &TestSocket, memory: &mut [u8]) -> Result<c_int, c_int> {
    // SAFETY: the function does not access the memory.
    result(unsafe { (cm().riounmap)(socket.0, memory.as_mut_ptr().cast(), memory.len()) })
}

fn write(socket: &TestSocket, bytes: &[u8], offset: i64) -> Result<usize, c_int> {
    // SAFETY: `bytes` is readable for its length.
    match unsafe { (cm().riowrite)(socket.0, bytes.as_ptr().cast(), bytes.len(), offset, 0) } {
        usize::MAX => Err(errno()),
        length => Ok(length),
    }
}

fn mapping_pair() -> (TestSocket, TestSocket) {
    pair_with(|socket| assert_eq!(socket.set(SOL_RDMA, RDMA_IOMAPSIZE, 2), Ok(0)))
}

/// Sends a message, and waits until the peer has received it and all announcements before it.
fn tell(from: &TestSocket, to: &TestSocket) {
    assert_eq!(from.send(b"!", 0), Ok(1));
    assert_eq!(to.receive(&mut [0], 0), Ok(1));
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn memory_is_written_to_before_the_next_message() {
    let mut memory = vec![0; 1_000_000];
    let mut second = vec![0; 4096];
    let (one, other) = mapping_pair();
    assert_eq!(map(&one, &mut memory, libc::PROT_WRITE, 5000), Ok(5000));
    assert_eq!(map(&one, &mut second, libc::PROT_WRITE, -1), Ok(second.as_ptr() as i64));
    tell(&one, &other);
    let bytes: Vec<u8> = (0..600_000_u32).map(|n| (n >> 3) as u8).collect();
    assert_eq!(write(&other, &bytes, 5000 + 1000), Ok(bytes.len()));
    assert_eq!(write(&other, b"end", second.as_ptr() as i64 + 4093), Ok(3));
    tell(&other, &one);
    assert!(memory[..1000].iter().chain(&memory[601_000..]).all(|byte| *byte == 0));
    assert!(memory[1000..601_000] == bytes[..]);
    assert_eq!(&second[4093..], b"end");
    // Writes outside the mapping are refused.
    for (offset, length) in [(4999, 1), (1_005_000, 1), (1_004_999, 2), (0, 1)] {
        assert_eq!(write(&other, &bytes[..length], offset), Err(libc::EINVAL), "{offset} {length}");
    }
    assert_eq!(write(&other, &bytes[..1], -1), Err(libc::EINVAL));
    assert_eq!(unmap(&one, &mut memory), Ok(0));
    assert_eq!(unmap(&one, &mut memory), Err(libc::EINVAL), "once");
    tell(&one, &other);
    assert_eq!(write(&other, &bytes[..1], 5000), Err(libc::EINVAL));
    tell(&other, &one);
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn mappings_that_cannot_be_are_refused() {
    let (mut memory, mut more, mut most) = (vec![0; 100], vec![0; 100], vec![0; 100]);
    let (one, other) = mapping_pair();
    let fresh = TestSocket::new(libc::AF_INET);
    assert_eq!(map(&fresh, &mut memory, libc::PROT_WRITE, -1), Err(libc::ENOTCONN));
    assert_eq!(write(&fresh, &memory, 0), Err(libc::ENOTCONN));
    assert_eq!(map(&one, &mut memory, libc::PROT_WRITE | libc::PROT_EXEC, -1), Err(libc::EINVAL));
    assert_eq!(map(&one, &mut memory, libc::PROT_WRITE, -2), Err(libc::EINVAL));
    assert_eq!(map(&one, &mut memory, libc::PROT_WRITE, i64::MAX), Err(libc::EINVAL));
    assert_eq!(map(&one, &mut [], libc::PROT_WRITE, 0), Err(libc::EINVAL));
    assert_eq!(map(&one, &mut memory, libc::PROT_WRITE, 50), Ok(50));
    assert_eq!(map(&one, &mut more, libc::PROT_WRITE, 149), Err(libc::EINVAL), "there is one");
    assert_eq!(map(&one, &mut more, libc::PROT_WRITE, 150), Ok(150));
    assert_eq!(map(&one, &mut most, libc::PROT_WRITE, 250), Err(libc::ENOMEM), "two at most");
    assert_eq!(map(&one, &mut most, libc::PROT_NONE, -1), Ok(most.as_ptr() as i64), "mapped for local use");
    tell(&one, &other);
    assert_eq!(write(&other, &[1; 200], 50), Err(libc::EINVAL), "in one mapping");
    assert_eq!(write(&other, &[1; 100], 150), Ok(100));
    tell(&other, &one);
    assert_eq!((memory[99], more), (0, vec![1; 100]));
    let (plain, _peer) = pair();
    assert_eq!(
        map(&plain, &mut memory, libc::PROT_WRITE, -1),
        Err(libc::ENOMEM),
        "the peer accepts no mappings"
    );
}

/// A program that maps and unmaps in a loop must wait at last if the peer does not read.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn mapping_waits_while_the_peer_does_not_read() {
    let mut memory = vec![0; 100];
    let (one, other) = mapping_pair();
    one.make_nonblocking();
    let mut tries = 0;
    let refused = loop {
        match map(&one, &mut memory, libc::PROT_WRITE, 0) {
            Ok(_) => assert_eq!(unmap(&one, &mut memory), Ok(0)),
            Err(error) => break error,
        }
        tries += 1;
        assert!(tries < 10_000, "the mappings are never refused");
    };
    assert_eq!(refused, libc::EAGAIN);
    // Any call of the peer receives its messages.
    assert_eq!(other.poll(libc::POLLIN, 0), 0);
    assert_eq!(one.poll(libc::POLLOUT, PATIENCE_MS), libc::POLLOUT);
    assert_eq!(map(&one, &mut memory, libc::PROT_WRITE, 0), Ok(0));
    assert_eq!(one.send(b"!", 0), Ok(1));
    assert_eq!(other.receive(&mut [0], 0), Ok(1));
    assert_eq!(write(&other, &[5; 100], 0), Ok(100));
    tell(&other, &one);
    assert_eq!(memory, [5; 100]);
}
