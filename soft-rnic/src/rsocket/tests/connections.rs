//! Beginnings and ends of connections.

use super::*;

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn both_ends_know_each_other() {
    for domain in [libc::AF_INET, libc::AF_INET6] {
        let (listener, address) = listener(domain);
        assert_eq!(listener.name(true), Err(libc::ENOTCONN));
        let active = TestSocket::new(domain);
        assert_eq!(active.name(false).map(|name| name.port()), Ok(0));
        std::thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                // SAFETY: the struct has only integers, for which zero is valid.
                let mut c: sockaddr_storage = unsafe { mem::zeroed() };
                let mut length = size_of_val(&c) as socklen_t;
                // SAFETY: the arguments point to locals.
                let accepted = unsafe { (cm().raccept)(listener.0, (&raw mut c).cast(), &raw mut length) };
                let accepted = TestSocket(result(accepted).expect("a connection"));
                assert_eq!(length, c_address(address).1);
                // SAFETY: `raccept` has written the address.
                let from = unsafe { socket_address::read((&raw const c).cast()) };
                assert_eq!(from, accepted.name(true));
                accepted
            });
            assert_eq!(active.connect(address), Ok(0));
            let passive = accepted.join().expect("no panic");
            assert_eq!((active.name(true), passive.name(false)), (Ok(address), Ok(address)));
            assert_eq!(active.name(false), passive.name(true));
            assert_eq!(active.connect(address), Err(libc::EISCONN));
            assert_eq!(active.listen(1), Err(libc::EINVAL));
            assert_eq!(active.accept().map(drop), Err(libc::EINVAL));
        });
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_connection_that_nobody_waits_for_comes_about() {
    let (listener, address) = listener(libc::AF_INET);
    listener.make_nonblocking();
    assert_eq!(listener.accept().map(drop), Err(libc::EAGAIN));
    assert_eq!(listener.poll(libc::POLLIN, 0), 0);
    let active = TestSocket::new(libc::AF_INET);
    active.make_nonblocking();
    assert_eq!(active.connect(address), Err(libc::EINPROGRESS));
    assert_eq!(active.connect(address), Err(libc::EALREADY));
    assert_eq!(active.receive(&mut [0], 0), Err(libc::EAGAIN));
    assert_eq!(active.send(&[0], 0), Err(libc::EAGAIN));
    assert_eq!(active.poll(libc::POLLOUT, 0), 0);
    assert_eq!(listener.poll(libc::POLLIN, PATIENCE_MS), libc::POLLIN);
    let passive = listener.accept().expect("a connection");
    assert_eq!(passive.control(libc::F_GETFL, 0), Ok(libc::O_RDWR), "blocking, as accept(2) specifies");
    assert_eq!(active.poll(libc::POLLOUT, PATIENCE_MS), libc::POLLOUT);
    assert_eq!(active.get(libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
    assert_eq!(active.connect(address), Err(libc::EISCONN));
    assert_eq!(active.send(b"x", 0), Ok(1));
    let mut byte = [0];
    assert_eq!((passive.receive(&mut byte, 0), byte), (Ok(1), *b"x"));
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn without_a_listener_it_is_refused() {
    let (listener, address) = listener(libc::AF_INET);
    assert_eq!(listener.close(), Ok(0));
    let active = TestSocket::new(libc::AF_INET);
    assert_eq!(active.connect(address), Err(libc::ECONNREFUSED));
    assert_eq!(active.get(libc::SOL_SOCKET, libc::SO_ERROR), Ok(0), "it was told");
    active.make_nonblocking();
    match active.connect(address) {
        Err(libc::EINPROGRESS) => {
            let ready = active.poll(libc::POLLOUT, PATIENCE_MS);
            assert_eq!(ready & libc::POLLERR, libc::POLLERR);
            assert_eq!(active.get(libc::SOL_SOCKET, libc::SO_ERROR), Ok(libc::ECONNREFUSED));
        }
        other => assert_eq!(other, Err(libc::ECONNREFUSED)),
    }
    // The same rsocket can connect to another listener.
    let (listener, address) = super::listener(libc::AF_INET);
    assert_eq!(active.control(libc::F_SETFL, 0), Ok(0));
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept().map(drop));
        assert_eq!(active.connect(address), Ok(0));
        assert_eq!(accepted.join().expect("no panic"), Ok(()));
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn addresses_are_checked() {
    let (_listener, address) = listener(libc::AF_INET);
    let other = TestSocket::new(libc::AF_INET);
    assert_eq!(other.bind(address), Err(libc::EADDRINUSE));
    assert_eq!(other.bind((Ipv4Addr::UNSPECIFIED, address.port()).into()), Err(libc::EADDRINUSE));
    assert_eq!(other.bind((Ipv4Addr::new(192, 0, 2, 1), 0).into()), Err(libc::EADDRNOTAVAIL));
    assert_eq!(other.bind((Ipv6Addr::LOCALHOST, 0).into()), Err(libc::EAFNOSUPPORT));
    assert_eq!(other.connect((Ipv6Addr::LOCALHOST, 1).into()), Err(libc::EAFNOSUPPORT));
    assert_eq!(other.bind(any(libc::AF_INET)), Ok(0));
    assert_eq!(other.bind(any(libc::AF_INET)), Err(libc::EINVAL), "it is bound already");
    // An unbound rsocket can listen, too.
    let free = TestSocket::new(libc::AF_INET);
    assert_eq!(free.listen(1), Ok(0));
    assert_eq!(free.listen(2), Ok(0));
    assert_ne!(free.name(false).map(|name| name.port()), Ok(0));
    assert_eq!(free.connect(address), Err(libc::EISCONN));
    assert_eq!(free.get(libc::SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(1));
    let (c, length) = c_address(address);
    // SAFETY: the address is a local, and the calls access no more than the given length.
    unsafe {
        let c = (&raw const c).cast();
        assert_eq!(result((cm().rbind)(free.0, c, length - 1)), Err(libc::EINVAL));
        assert_eq!(result((cm().rbind)(free.0, c, 1)), Err(libc::EINVAL));
        assert_eq!(result((cm().rbind)(free.0, std::ptr::null(), length)), Err(libc::EFAULT));
        let unix = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
        let unix = (&raw const unix).cast();
        assert_eq!(result((cm().rconnect)(free.0, unix, 110)), Err(libc::EAFNOSUPPORT));
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_stream_ends_behind_its_last_byte() {
    let (one, other) = pair();
    let sent: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    assert_eq!(one.send(&sent, 0), Ok(sent.len()));
    assert_eq!(one.shut_down(libc::SHUT_WR), Ok(0));
    assert_eq!(one.send(b"x", 0), Err(libc::EPIPE));
    let mut got = vec![0; sent.len() + 1];
    assert_eq!(other.receive(&mut got, libc::MSG_WAITALL), Ok(sent.len()));
    assert_eq!(got[..sent.len()], sent);
    assert_eq!(other.receive(&mut got, 0), Ok(0));
    assert_eq!(other.poll(libc::POLLIN | libc::POLLRDHUP, 0), libc::POLLIN | libc::POLLRDHUP);
    // The other direction still works.
    assert_eq!(other.send(b"still", 0), Ok(5));
    assert_eq!(other.close(), Ok(0));
    assert_eq!(one.receive(&mut got, libc::MSG_WAITALL), Ok(5));
    assert_eq!(one.receive(&mut got, 0), Ok(0));
    assert_ne!(one.poll(0, PATIENCE_MS) & libc::POLLHUP, 0, "both directions have ended");
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn writing_to_a_closed_end_fails() {
    let (one, other) = pair();
    assert_eq!(other.close(), Ok(0));
    assert_eq!(one.receive(&mut [0], 0), Ok(0));
    // As with TCP, bytes in flight are lost silently.
    let mut error = None;
    let mut tries = 0;
    while error.is_none() {
        error = one.send(&[0; 4096], 0).err();
        tries += 1;
        assert!(tries < 1000, "the stream takes more than its buffers hold");
    }
    assert_eq!(error, Some(libc::EPIPE));
    assert_eq!(one.send(b"x", 0), Err(libc::EPIPE));
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn an_end_without_a_word_is_a_reset() {
    let (one, other) = pair();
    assert_eq!(other.send(b"last", 0), Ok(4));
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the value is a local.
    let set = unsafe {
        (cm().rsetsockopt)(other.0, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), 8)
    };
    assert_eq!(set, 0);
    assert_eq!(other.close(), Ok(0));
    let mut bytes = [0; 8];
    assert_eq!(one.receive(&mut bytes, libc::MSG_WAITALL), Ok(4), "what came before");
    assert_ne!(one.poll(libc::POLLIN, PATIENCE_MS) & libc::POLLHUP, 0);
    assert_eq!(one.receive(&mut bytes, 0), Err(libc::ECONNRESET));
    assert_eq!(one.receive(&mut bytes, 0), Ok(0), "it was told");
    assert_eq!(one.send(&bytes, 0), Err(libc::EPIPE));
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn shutting_down_wakes_and_ends() {
    let (one, other) = pair();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| one.receive(&mut [0], 0));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(one.shut_down(libc::SHUT_RDWR), Ok(0));
        assert_eq!(reader.join().expect("no panic"), Ok(0));
    });
    assert_eq!(other.receive(&mut [0], 0), Ok(0));
    assert_eq!(one.shut_down(9), Err(libc::EINVAL));
    let fresh = TestSocket::new(libc::AF_INET);
    assert_eq!(fresh.shut_down(libc::SHUT_WR), Err(libc::ENOTCONN));
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn closing_wakes_who_waits() {
    let (listener, _) = listener(libc::AF_INET);
    let (one, _other) = pair();
    std::thread::scope(|scope| {
        let numbers = [listener.0, one.0];
        let accepting = scope.spawn(move || {
            // SAFETY: null pointers mean that the address is not wanted.
            result(unsafe { (cm().raccept)(numbers[0], std::ptr::null_mut(), std::ptr::null_mut()) })
        });
        let reading = scope.spawn(move || {
            let mut byte = 0_u8;
            // SAFETY: the buffer is a local.
            outcome(unsafe { (cm().rrecv)(numbers[1], (&raw mut byte).cast(), 1, 0) })
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(listener.close(), Ok(0));
        assert_eq!(one.close(), Ok(0));
        // Either call may also fail because it had not begun to wait yet.
        let ended = [accepting.join().expect("no panic").err(), reading.join().expect("no panic").err()];
        assert!(ended.iter().all(|error| matches!(error, Some(libc::EBADF | libc::EINVAL))), "{ended:?}");
    });
}

/// A listener rejects a request from a peer that is not an rsocket, and goes on to serve others.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn strangers_are_rejected() {
    use crate::cm::{CmEventKind, ConnParams, ConnectionManager, Ece, PortSpace};
    use rdma_mummy_sys::types::ibv_qp_type;
    let (listener, address) = listener(libc::AF_INET);
    let manager = ConnectionManager::acquire().expect("a device exists");
    let channel = manager.channel().expect("there are descriptors");
    let id = manager.create(&channel, 1, PortSpace::Tcp, ibv_qp_type::IBV_QPT_RC).expect("an id");
    let patience = std::time::Duration::from_secs(1);
    manager.resolve_addr(id, None, address, patience).expect("it is here");
    assert_eq!(channel.take().expect("an event").kind, CmEventKind::AddrResolved);
    manager.resolve_route(id).expect("it is known");
    assert_eq!(channel.take().expect("an event").kind, CmEventKind::RouteResolved);
    manager.connect(id, &ConnParams { qp_num: 77, ..ConnParams::default() }, Ece::default()).expect("asked");
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept());
        assert_eq!(channel.take().expect("an event").kind, CmEventKind::Rejected);
        let active = TestSocket::new(libc::AF_INET);
        assert_eq!(active.connect(address), Ok(0));
        accepted.join().expect("no panic").expect("the other one");
    });
    manager.destroy(id).expect("it is there");
}
