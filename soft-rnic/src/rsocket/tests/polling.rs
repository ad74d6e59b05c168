//! `rpoll` and `rselect` on rsockets and other descriptors.

use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

fn poll(fds: &mut [libc::pollfd], milliseconds: c_int) -> Result<c_int, c_int> {
    // SAFETY: the array has `fds.len()` entries.
    result(unsafe { (cm().rpoll)(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds) })
}

fn fd(fd: c_int, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: -1 }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn rsockets_and_pipes_are_waited_for_at_once() {
    let (one, other) = pair();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut fds = [fd(one.0, libc::POLLIN), fd(reader.as_raw_fd(), libc::POLLIN), fd(-1, libc::POLLIN)];
    let begin = Instant::now();
    assert_eq!(poll(&mut fds, 20), Ok(0));
    assert!(begin.elapsed() >= Duration::from_millis(20));
    assert_eq!(fds.map(|fd| fd.revents), [0; 3]);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            std::io::Write::write_all(&mut &writer, b"x").expect("a pipe");
        });
        assert_eq!(poll(&mut fds, PATIENCE_MS), Ok(1));
        assert_eq!(fds.map(|fd| fd.revents), [0, libc::POLLIN, 0]);
    });
    thread::scope(|scope| {
        fds[1].fd = -1;
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            assert_eq!(other.send(b"y", 0), Ok(1));
        });
        assert_eq!(poll(&mut fds, -1), Ok(1));
        assert_eq!(fds.map(|fd| fd.revents), [libc::POLLIN, 0, 0]);
    });
    fds[0].events = libc::POLLIN | libc::POLLOUT;
    fds[1].fd = reader.as_raw_fd();
    assert_eq!(poll(&mut fds, PATIENCE_MS), Ok(2));
    assert_eq!(fds.map(|fd| fd.revents), [libc::POLLIN | libc::POLLOUT, libc::POLLIN, 0]);
    let number = other.0;
    assert_eq!(other.close(), Ok(0));
    fds[2].fd = number;
    assert_eq!(poll(&mut fds, 0), Ok(3));
    assert_eq!(fds[2].revents, libc::POLLNVAL);
    assert_eq!(poll(&mut [], 1), Ok(0));
    // SAFETY: the call fails before it accesses memory.
    assert_eq!(result(unsafe { (cm().rpoll)(std::ptr::null_mut(), 1, 0) }), Err(libc::EFAULT));
}

/// If another thread processes the event that this one waits for, this one still wakes.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn nobody_sleeps_through_what_another_has_seen() {
    let (one, other) = pair();
    for _ in 0..50 {
        thread::scope(|scope| {
            // Each thread waits for a different event.
            let poller = scope.spawn(|| one.poll(libc::POLLIN, PATIENCE_MS));
            let looker = scope.spawn(|| {
                let mut byte = [0];
                while one.receive(&mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT) != Ok(1) {
                    thread::yield_now();
                }
            });
            let waiter = scope.spawn(|| one.receive(&mut [0], libc::MSG_PEEK));
            assert_eq!(other.send(b"z", 0), Ok(1));
            looker.join().expect("no panic");
            assert_eq!(poller.join().expect("no panic"), libc::POLLIN);
            assert_eq!(waiter.join().expect("no panic"), Ok(1));
        });
        assert_eq!(one.receive(&mut [0], 0), Ok(1));
    }
}

/// The processor time of this thread.
fn own_time() -> Duration {
    // SAFETY: the struct has only integers, for which zero is valid.
    let mut time: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: the time is written to a local.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A listener is never writable.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn poll_for_writing_sleeps_despite_pending_requests() {
    let (listener, address) = listener(libc::AF_INET);
    let clients = [(); 3].map(|()| {
        let client = TestSocket::new(libc::AF_INET);
        client.make_nonblocking();
        assert_eq!(client.connect(address), Err(libc::EINPROGRESS));
        client
    });
    // The clients' requests are sent when they poll. The listener's poll takes one of them; the
    // others stay pending.
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS as u64);
    while listener.poll(libc::POLLIN, 0) == 0 {
        clients.iter().for_each(|client| _ = client.poll(libc::POLLOUT, 10));
        assert!(Instant::now() < until, "nobody asks");
    }
    clients.iter().for_each(|client| _ = client.poll(libc::POLLOUT, 50));
    let (begin, before) = (Instant::now(), own_time());
    assert_eq!(listener.poll(libc::POLLOUT, 1000), 0);
    assert!(begin.elapsed() >= Duration::from_secs(1));
    let used = own_time() - before;
    assert!(
        used < Duration::from_millis(50),
        "a thread that slept for a second used {used:?} of processor time"
    );
    assert_eq!(listener.poll(libc::POLLIN | libc::POLLOUT, 0), libc::POLLIN);
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn sets_are_as_of_select() {
    let (one, other) = pair();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let last = [one.0, reader.as_raw_fd(), writer.as_raw_fd()].into_iter().max().unwrap_or(0) + 1;
    let select = |time_ms: i64| {
        // SAFETY: the sets are locals, and the descriptors below `FD_SETSIZE`.
        unsafe {
            let mut sets: [libc::fd_set; 3] = mem::zeroed();
            libc::FD_SET(one.0, &raw mut sets[0]);
            libc::FD_SET(reader.as_raw_fd(), &raw mut sets[0]);
            libc::FD_SET(writer.as_raw_fd(), &raw mut sets[1]);
            libc::FD_SET(one.0, &raw mut sets[2]);
            let mut time = libc::timeval { tv_sec: 0, tv_usec: time_ms * 1000 };
            let [read, write, except] = sets.each_mut().map(|set| &raw mut *set);
            let ready = result((cm().rselect)(last, read, write, except, &raw mut time));
            let has = |set, fd| libc::FD_ISSET(fd, set);
            (
                ready,
                has(read, one.0),
                has(read, reader.as_raw_fd()),
                has(write, writer.as_raw_fd()),
                has(except, one.0),
            )
        }
    };
    assert_eq!(select(0), (Ok(1), false, false, true, false));
    assert_eq!(other.send(b"z", 0), Ok(1));
    assert_ne!(one.poll(libc::POLLIN, PATIENCE_MS), 0);
    assert_eq!(select(100), (Ok(2), true, false, true, false));
    let null = std::ptr::null_mut();
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 1000 };
    // SAFETY: null means no set.
    unsafe {
        assert_eq!(result((cm().rselect)(0, null, null, null, &raw mut time)), Ok(0));
        assert_eq!(result((cm().rselect)(-1, null, null, null, &raw mut time)), Err(libc::EINVAL));
        assert_eq!(result((cm().rselect)(1025, null, null, null, &raw mut time)), Err(libc::EINVAL));
        time.tv_sec = -1;
        assert_eq!(result((cm().rselect)(0, null, null, null, &raw mut time)), Err(libc::EINVAL));
        let mut set: libc::fd_set = mem::zeroed();
        libc::FD_SET(1000, &raw mut set);
        assert_eq!(result((cm().rselect)(1001, &raw mut set, null, null, null.cast())), Err(libc::EBADF));
    }
}
