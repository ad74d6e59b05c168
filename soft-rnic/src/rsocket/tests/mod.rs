//! Tests that call the rsocket functions as C programs do.

mod bytes;
mod calls;
mod connections;
mod hostile;
mod mappings;
mod polling;

use std::ffi::{c_int, c_long};
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{sockaddr, sockaddr_storage, socklen_t};
use rdma_mummy_sys::RdmaCm;

use crate::rdmacm::socket_address;
use crate::verbs::testing::{errno, table as verbs_table};

/// The time limit for an event that must come.
const PATIENCE_MS: c_int = 20_000;

fn cm() -> &'static RdmaCm {
    const TABLE: RdmaCm = crate::rdmacm::table();
    verbs_table();
    &TABLE
}

/// A call's result, or its error number.
fn outcome(result: isize) -> Result<usize, c_int> {
    usize::try_from(result).map_err(|_| errno())
}

fn result(result: c_int) -> Result<c_int, c_int> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

fn c_address(address: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: the struct has only integers, for which zero is valid.
    let mut c = unsafe { mem::zeroed() };
    // SAFETY: the address is written to a local.
    unsafe { socket_address::write(address, &raw mut c) };
    let length =
        if address.is_ipv4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() };
    (c, length as socklen_t)
}

/// An rsocket, closed on drop.
#[derive(Debug)]
struct TestSocket(c_int);

impl TestSocket {
    fn new(domain: c_int) -> Self {
        // SAFETY: the function takes only numbers.
        Self(result(unsafe { (cm().rsocket)(domain, libc::SOCK_STREAM, 0) }).expect("an rsocket"))
    }

    fn bind(&self, address: SocketAddr) -> Result<c_int, c_int> {
        let (c, length) = c_address(address);
        // SAFETY: the address is a local.
        result(unsafe { (cm().rbind)(self.0, (&raw const c).cast(), length) })
    }

    fn connect(&self, address: SocketAddr) -> Result<c_int, c_int> {
        let (c, length) = c_address(address);
        // SAFETY: the address is a local.
        result(unsafe { (cm().rconnect)(self.0, (&raw const c).cast(), length) })
    }

    fn listen(&self, backlog: c_int) -> Result<c_int, c_int> {
        // SAFETY: the function takes only numbers.
        result(unsafe { (cm().rlisten)(self.0, backlog) })
    }

    fn accept(&self) -> Result<Self, c_int> {
        // SAFETY: null pointers mean that the address is not wanted.
        result(unsafe { (cm().raccept)(self.0, std::ptr::null_mut(), std::ptr::null_mut()) }).map(Self)
    }

    fn send(&self, bytes: &[u8], flags: c_int) -> Result<usize, c_int> {
        // SAFETY: `bytes` is readable for its length.
        outcome(unsafe { (cm().rsend)(self.0, bytes.as_ptr().cast(), bytes.len(), flags) })
    }

    fn receive(&self, bytes: &mut [u8], flags: c_int) -> Result<usize, c_int> {
        // SAFETY: `bytes` is writable for its length.
        outcome(unsafe { (cm().rrecv)(self.0, bytes.as_mut_ptr().cast(), bytes.len(), flags) })
    }

    fn shut_down(&self, how: c_int) -> Result<c_int, c_int> {
        // SAFETY: the function takes only numbers.
        result(unsafe { (cm().rshutdown)(self.0, how) })
    }

    fn close(self) -> Result<c_int, c_int> {
        let number = self.0;
        mem::forget(self);
        // SAFETY: the function takes only a number.
        result(unsafe { (cm().rclose)(number) })
    }

    /// The local address, or the peer's.
    fn name(&self, is_peer: bool) -> Result<SocketAddr, c_int> {
        // SAFETY: the struct has only integers, for which zero is valid.
        let mut c: sockaddr_storage = unsafe { mem::zeroed() };
        let mut length = size_of_val(&c) as socklen_t;
        let get = if is_peer { cm().rgetpeername } else { cm().rgetsockname };
        // SAFETY: the arguments point to locals.
        unsafe {
            result(get(self.0, (&raw mut c).cast::<sockaddr>(), &raw mut length))?;
            Ok(socket_address::read((&raw const c).cast()).expect("an address"))
        }
    }

    fn set(&self, level: c_int, name: c_int, value: c_int) -> Result<c_int, c_int> {
        let value = &raw const value;
        // SAFETY: the value is a local.
        result(unsafe { (cm().rsetsockopt)(self.0, level, name, value.cast(), 4) })
    }

    fn get(&self, level: c_int, name: c_int) -> Result<c_int, c_int> {
        let (mut value, mut length) = (0, 4);
        // SAFETY: the arguments point to locals.
        result(unsafe { (cm().rgetsockopt)(self.0, level, name, (&raw mut value).cast(), &raw mut length) })?;
        assert_eq!(length, 4);
        Ok(value)
    }

    fn control(&self, command: c_int, argument: c_int) -> Result<c_int, c_int> {
        // SAFETY: the function takes only numbers.
        result(unsafe { super::rfcntl(self.0, command, c_long::from(argument)) })
    }

    fn make_nonblocking(&self) {
        assert_eq!(self.control(libc::F_SETFL, libc::O_NONBLOCK), Ok(0));
    }

    /// The ready events among `events`, within this time.
    fn poll(&self, events: i16, milliseconds: c_int) -> i16 {
        let mut fd = libc::pollfd { fd: self.0, events, revents: 0 };
        // SAFETY: the array has one entry.
        let ready = result(unsafe { (cm().rpoll)(&raw mut fd, 1, milliseconds) }).expect("rpoll succeeds");
        assert_eq!(ready, c_int::from(fd.revents != 0));
        fd.revents
    }
}

impl Drop for TestSocket {
    fn drop(&mut self) {
        // SAFETY: the function takes only a number.
        let closed = unsafe { (cm().rclose)(self.0) };
        assert!(closed == 0 || std::thread::panicking());
    }
}

fn any(domain: c_int) -> SocketAddr {
    let ip: IpAddr =
        if domain == libc::AF_INET { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    (ip, 0).into()
}

/// A listener on a free port.
fn listener(domain: c_int) -> (TestSocket, SocketAddr) {
    let listener = TestSocket::new(domain);
    listener.bind(any(domain)).expect("a free port");
    listener.listen(16).expect("it can listen");
    let address = listener.name(false).expect("it has one");
    (listener, address)
}

/// Both ends of a connection, after `prepare` has set up each of them.
fn pair_with(prepare: impl Fn(&TestSocket)) -> (TestSocket, TestSocket) {
    let (listener, address) = listener(libc::AF_INET);
    prepare(&listener);
    let active = TestSocket::new(libc::AF_INET);
    prepare(&active);
    let passive = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept());
        active.connect(address).expect("the listener exists");
        accepted.join().expect("no panic").expect("a connection")
    });
    (active, passive)
}

fn pair() -> (TestSocket, TestSocket) {
    pair_with(|_| ())
}
