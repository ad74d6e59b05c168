//! Descriptors and options.

use super::super::options::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
use super::*;

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn only_streams_of_the_internet_there_are() {
    let open = |domain, kind, protocol| {
        // SAFETY: the function takes only numbers.
        result(unsafe { (cm().rsocket)(domain, kind, protocol) }).map(TestSocket).map(drop)
    };
    assert_eq!(open(libc::AF_UNIX, libc::SOCK_STREAM, 0), Err(libc::EAFNOSUPPORT));
    assert_eq!(open(libc::AF_INET, libc::SOCK_DGRAM, 0), Err(libc::EOPNOTSUPP));
    assert_eq!(open(libc::AF_INET, libc::SOCK_RAW, 0), Err(libc::ESOCKTNOSUPPORT));
    assert_eq!(open(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_UDP), Err(libc::EPROTONOSUPPORT));
    assert_eq!(open(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_TCP), Ok(()));
}

/// Closed descriptors, and descriptors of other files.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn other_descriptors_are_refused() {
    let file = std::fs::File::open("/dev/null").expect("it is there");
    for number in [-1, 999_999, std::os::fd::AsRawFd::as_raw_fd(&file)] {
        let sock = mem::ManuallyDrop::new(TestSocket(number));
        let (null, none) = (std::ptr::null_mut::<libc::c_void>(), std::ptr::null_mut());
        assert_eq!(sock.bind(any(libc::AF_INET)), Err(libc::EBADF));
        assert_eq!(sock.connect(any(libc::AF_INET)), Err(libc::EBADF));
        assert_eq!((sock.listen(1), sock.accept().map(drop)), (Err(libc::EBADF), Err(libc::EBADF)));
        assert_eq!((sock.send(&[0], 0), sock.receive(&mut [0], 0)), (Err(libc::EBADF), Err(libc::EBADF)));
        assert_eq!((sock.shut_down(0), sock.control(libc::F_GETFL, 0)), (Err(libc::EBADF), Err(libc::EBADF)));
        assert_eq!((sock.name(true), sock.name(false)), (Err(libc::EBADF), Err(libc::EBADF)));
        assert_eq!(sock.get(libc::SOL_SOCKET, libc::SO_ERROR), Err(libc::EBADF));
        assert_eq!(sock.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1), Err(libc::EBADF));
        // SAFETY: the calls fail before they access memory.
        unsafe {
            assert_eq!(result((cm().rclose)(number)), Err(libc::EBADF));
            assert_eq!(((cm().riomap)(number, null, 1, libc::PROT_WRITE, 0, -1), errno()), (-1, libc::EBADF));
            assert_eq!(result((cm().riounmap)(number, null, 1)), Err(libc::EBADF));
            assert_eq!(((cm().riowrite)(number, null, 1, 0, 0), errno()), (usize::MAX, libc::EBADF));
            assert_eq!(outcome((cm().rreadv)(number, none, 0)), Err(libc::EBADF));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn options_are_kept() {
    let (socket, six) = (TestSocket::new(libc::AF_INET), TestSocket::new(libc::AF_INET6));
    for (level, name, value) in [
        (libc::SOL_SOCKET, libc::SO_REUSEADDR, 1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE, 1),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 7),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 8),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 9),
        (SOL_RDMA, RDMA_SQSIZE, 64),
        (SOL_RDMA, RDMA_RQSIZE, 32),
        (SOL_RDMA, RDMA_INLINE, 16),
        (SOL_RDMA, RDMA_IOMAPSIZE, 5),
        (libc::SOL_SOCKET, libc::SO_RCVBUF, 65536),
        (libc::SOL_SOCKET, libc::SO_SNDBUF, 65536),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG, 512),
    ] {
        assert_eq!(socket.set(level, name, value), Ok(0), "{level} {name}");
        assert_eq!(socket.get(level, name), Ok(value), "{level} {name}");
    }
    assert_eq!(socket.get(libc::SOL_SOCKET, libc::SO_TYPE), Ok(libc::SOCK_STREAM));
    assert_eq!(socket.get(libc::SOL_SOCKET, libc::SO_DOMAIN), Ok(libc::AF_INET));
    assert_eq!(socket.get(libc::SOL_SOCKET, libc::SO_PROTOCOL), Ok(libc::IPPROTO_TCP));
    assert_eq!(socket.get(libc::SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(0));
    assert_eq!(six.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1), Ok(0));
    assert_eq!(six.get(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY), Ok(1));
    assert_eq!(socket.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1), Err(libc::ENOPROTOOPT));
    assert_eq!(socket.set(libc::SOL_SOCKET, 12345, 1), Err(libc::ENOPROTOOPT));
    assert_eq!(socket.get(12345, 1), Err(libc::ENOPROTOOPT));
    assert_eq!(socket.set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 0), Err(libc::EINVAL));
    assert_eq!(socket.set(libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1), Err(libc::EINVAL));
    assert_eq!(socket.set(SOL_RDMA, RDMA_ROUTE, 1), Err(libc::EOPNOTSUPP));
    let value = 1;
    // SAFETY: the values are locals, and the calls access no more than the given length.
    unsafe {
        let value = (&raw const value).cast();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_KEEPALIVE);
        assert_eq!(result((cm().rsetsockopt)(socket.0, level, name, value, 3)), Err(libc::EINVAL));
        assert_eq!(result((cm().rsetsockopt)(socket.0, level, name, std::ptr::null(), 4)), Err(libc::EFAULT));
        assert_eq!(result((cm().rsetsockopt)(socket.0, level, libc::SO_LINGER, value, 4)), Err(libc::EINVAL));
        let linger = libc::linger { l_onoff: 1, l_linger: 3 };
        let set = (cm().rsetsockopt)(socket.0, level, libc::SO_LINGER, (&raw const linger).cast(), 8);
        assert_eq!(set, 0);
        let (mut told, mut length) = (libc::linger { l_onoff: 0, l_linger: 0 }, 8);
        let place = (&raw mut told).cast();
        assert_eq!((cm().rgetsockopt)(socket.0, level, libc::SO_LINGER, place, &raw mut length), 0);
        assert_eq!((told.l_onoff, told.l_linger, length), (1, 3, 8));
    }
    assert_eq!(socket.control(libc::F_GETFD, 0), Ok(libc::FD_CLOEXEC));
    assert_eq!(socket.control(libc::F_SETFD, 0), Ok(0));
    assert_eq!(socket.control(libc::F_GETFD, 0), Ok(0));
    assert_eq!(socket.control(libc::F_DUPFD, 0), Err(libc::EINVAL));
    // The table's function takes two or three arguments.
    let control = cm().rfcntl.expect("it is there");
    // SAFETY: the calls pass the arguments that C passes.
    unsafe {
        assert_eq!(control(socket.0, libc::F_SETFL, libc::O_NONBLOCK), 0);
        assert_eq!(control(socket.0, libc::F_GETFL), libc::O_RDWR | libc::O_NONBLOCK);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_connection_is_as_its_options_say() {
    let (one, other) = pair_with(|socket| {
        for (level, name, value) in [
            (SOL_RDMA, RDMA_RQSIZE, 32),
            (libc::SOL_SOCKET, libc::SO_RCVBUF, 65536),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        ] {
            assert_eq!(socket.set(level, name, value), Ok(0));
        }
    });
    for socket in [&one, &other] {
        assert_eq!(socket.get(libc::SOL_SOCKET, libc::SO_RCVBUF), Ok(65536));
        assert_eq!(socket.get(SOL_RDMA, RDMA_RQSIZE), Ok(32));
        assert_eq!(socket.get(libc::IPPROTO_TCP, libc::TCP_MAXSEG), Ok(2048));
        assert_eq!(socket.get(libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(1));
        assert_eq!(socket.set(SOL_RDMA, RDMA_RQSIZE, 64), Err(libc::EINVAL), "too late");
        assert_eq!(
            socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 20),
            Ok(0),
            "takes effect with the next connection"
        );
        assert_eq!(socket.get(libc::SOL_SOCKET, libc::SO_RCVBUF), Ok(65536));
    }
}
