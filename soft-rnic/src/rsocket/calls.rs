//! The rsocket functions, as C calls them.

use std::ffi::{c_int, c_long, c_void};
use std::sync::Arc;
use std::time::Duration;

use libc::{fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, sockaddr_storage, socklen_t, timeval};
use rdma_mummy_sys::RdmaCm;

use super::options::RsOptions;
use super::poll::{self, FdSets};
use super::queues::UserBuffer;
use super::socket::{PollDepth, RSocket};
use super::table;
use super::wait::Deadline;
use crate::cm::ConnectionManager;
use crate::platform::errno;
use crate::rdmacm::socket_address;

/// The most pieces of a vector, as the system has it.
const IOV_MAX: usize = 1024;

/// Puts those with a fixed number of arguments into the table.
pub(super) const fn add_to(table: RdmaCm) -> RdmaCm {
    RdmaCm {
        rsocket,
        rbind,
        rlisten,
        raccept,
        rconnect,
        rshutdown,
        rclose,
        rrecv,
        rrecvfrom,
        rrecvmsg,
        rsend,
        rsendto,
        rsendmsg,
        rread,
        rreadv,
        rwrite,
        rwritev,
        rpoll,
        rselect,
        rgetpeername,
        rgetsockname,
        rsetsockopt,
        rgetsockopt,
        riomap,
        riounmap,
        riowrite,
        ..table
    }
}

/// What a function returns that sets `errno`.
fn finish(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|error| {
        errno::set(error);
        -1
    })
}

fn finish_length(result: Result<usize, c_int>) -> isize {
    match result {
        // No vector is longer.
        Ok(length) => length as isize,
        Err(error) => {
            errno::set(error);
            -1
        }
    }
}

unsafe extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let create = || {
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return Err(libc::EAFNOSUPPORT);
        }
        let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        match kind & !flags {
            libc::SOCK_STREAM => {}
            libc::SOCK_DGRAM => return Err(libc::EOPNOTSUPP),
            _ => return Err(libc::ESOCKTNOSUPPORT),
        }
        if !matches!(protocol, 0 | libc::IPPROTO_TCP) {
            return Err(libc::EPROTONOSUPPORT);
        }
        let manager = ConnectionManager::acquire().map_err(|error| errno::refused("rsocket", &error))?;
        let is_nonblocking = flags & libc::SOCK_NONBLOCK != 0;
        let options = RsOptions::new(is_nonblocking);
        Ok(table::enter(Arc::new(RSocket::create(manager, domain, options)?)))
    };
    finish(create())
}

/// Reads an address of this length.
///
/// # Safety
///
/// - The address is readable, or null.
unsafe fn address(address: *const sockaddr, length: socklen_t) -> Result<std::net::SocketAddr, c_int> {
    if address.is_null() {
        return Err(libc::EFAULT);
    }
    if (length as usize) < size_of::<libc::sa_family_t>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the address is readable, or null, by the contract of `address`; the family is there.
    let least = match c_int::from(unsafe { (&raw const (*address).sa_family).read_unaligned() }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return Err(libc::EAFNOSUPPORT),
    };
    if (length as usize) < least {
        return Err(libc::EINVAL);
    }
    // SAFETY: the address is readable, or null, by the contract of `address`; it is as long as its
    // family says.
    unsafe { socket_address::read(address) }
}

/// Writes as much of an address as there is room for, and how long it is.
///
/// # Safety
///
/// - `length` is null or valid, and `to` null or writable for as long as that says.
unsafe fn tell_address(
    address: std::net::SocketAddr,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), c_int> {
    if to.is_null() || length.is_null() {
        return Err(libc::EFAULT);
    }
    let size =
        if address.is_ipv4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() };
    // SAFETY: integers; the place is a local, and the caller's promises.
    unsafe {
        let room = length.read() as usize;
        if room > i32::MAX as usize {
            return Err(libc::EINVAL);
        }
        let mut whole: sockaddr_storage = core::mem::zeroed();
        socket_address::write(address, &raw mut whole);
        to.cast::<u8>().copy_from_nonoverlapping((&raw const whole).cast(), room.min(size));
        length.write(size as socklen_t);
    }
    Ok(())
}

unsafe extern "C" fn rbind(socket: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: `name` is readable for `length` bytes, as bind(2) asks of its caller.
    let bind = || table::get(socket)?.bind(unsafe { address(name, length) }?).map(|()| 0);
    finish(bind())
}

unsafe extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    finish(table::get(socket).and_then(|socket| socket.listen(backlog)).map(|()| 0))
}

unsafe extern "C" fn raccept(socket: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let accept = || {
        let accepted = table::get(socket)?.accept()?;
        if !name.is_null() {
            let peer = accepted.locked().addresses()?.1;
            let peer = peer.unwrap_or_else(|| accepted.locked().unnamed());
            // SAFETY: `name` and `length` are null, or valid places, as accept(2) asks of its
            // caller.
            unsafe { tell_address(peer, name, length) }?;
        }
        Ok(table::enter(accepted))
    };
    finish(accept())
}

unsafe extern "C" fn rconnect(socket: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: `name` is readable for `length` bytes, as connect(2) asks of its caller.
    let connect = || table::get(socket)?.connect(unsafe { address(name, length) }?).map(|()| 0);
    finish(connect())
}

unsafe extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    finish(table::get(socket).and_then(|socket| socket.shut_down(how)).map(|()| 0))
}

/// The number is free when this returns, whatever it returns, or when the last call that waited for the rsocket does.
unsafe extern "C" fn rclose(number: c_int) -> c_int {
    let close = || {
        let socket = table::get(number)?;
        let closed = socket.close();
        table::leave(number, &socket);
        closed.map(|()| 0)
    };
    finish(close())
}

fn piece(base: *const c_void, length: usize) -> UserBuffer {
    UserBuffer { base: base.cast_mut().cast(), length }
}

/// Reads a vector.
///
/// # Safety
///
/// - So many pieces are readable, if that is no error.
unsafe fn pieces(vector: *const iovec, count: usize) -> Result<Vec<UserBuffer>, c_int> {
    if vector.is_null() && count != 0 {
        return Err(libc::EFAULT);
    }
    // SAFETY: so many pieces are readable, if that is no error, by the contract of `pieces`.
    let piece_at = |place| unsafe { vector.add(place).read() };
    Ok((0..count).map(piece_at).map(|entry| piece(entry.iov_base, entry.iov_len)).collect())
}

/// As [`pieces`], of readv(2).
///
/// # Safety
///
/// - As of [`pieces`].
unsafe fn counted_pieces(vector: *const iovec, count: c_int) -> Result<Vec<UserBuffer>, c_int> {
    let count = usize::try_from(count).ok().filter(|count| *count <= IOV_MAX).ok_or(libc::EINVAL)?;
    // SAFETY: so many pieces are readable, if that is no error, by the contract of `pieces`, which
    // `counted_pieces` shares.
    unsafe { pieces(vector, count) }
}

unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, length: usize, flags: c_int) -> isize {
    // SAFETY: `buf` is writable for `length` bytes, as recv(2) asks of its caller.
    let receive = || unsafe { table::get(socket)?.receive(&[piece(buf, length)], flags) };
    finish_length(receive())
}

unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> isize {
    let receive = || {
        // SAFETY: the caller's buffer and places.
        unsafe {
            let socket = table::get(socket)?;
            let received = socket.receive(&[piece(buf, length)], flags)?;
            if !from.is_null() {
                let peer = socket.locked().addresses()?.1;
                let peer = peer.unwrap_or_else(|| socket.locked().unnamed());
                tell_address(peer, from, from_length)?;
            }
            Ok(received)
        }
    };
    finish_length(receive())
}

/// The vector of a message.
///
/// # Safety
///
/// - The message is readable or null, and its vector.
unsafe fn message_pieces(message: *const msghdr) -> Result<Vec<UserBuffer>, c_int> {
    if message.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the message is readable or null, and its vector, by the contract of `message_pieces`.
    unsafe {
        #[allow(clippy::useless_conversion, reason = "a `size_t` in glibc, an `int` in musl")]
        let count = usize::try_from((*message).msg_iovlen).ok().filter(|count| *count <= IOV_MAX);
        pieces((*message).msg_iov, count.ok_or(libc::EMSGSIZE)?)
    }
}

unsafe extern "C" fn rrecvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> isize {
    let receive = || {
        // SAFETY: the message is valid and its memory writable, as recvmsg(2) asks of its caller.
        unsafe {
            let received = table::get(socket)?.receive(&message_pieces(message)?, flags)?;
            // A stream's messages have neither.
            ((*message).msg_namelen, (*message).msg_controllen, (*message).msg_flags) = (0, 0, 0);
            Ok(received)
        }
    };
    finish_length(receive())
}

unsafe extern "C" fn rsend(socket: c_int, buf: *const c_void, length: usize, flags: c_int) -> isize {
    // SAFETY: `buf` is readable for `length` bytes, as send(2) asks of its caller.
    let send = || unsafe { table::get(socket)?.send(&[piece(buf, length)], flags) };
    finish_length(send())
}

/// Where to is known: the address is not looked at, as TCP has it.
unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    length: usize,
    flags: c_int,
    _to: *const sockaddr,
    _to_length: socklen_t,
) -> isize {
    // SAFETY: `buf` is readable for `length` bytes, as sendto(2) asks of its caller.
    unsafe { rsend(socket, buf, length, flags) }
}

unsafe extern "C" fn rsendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> isize {
    let send = || {
        // SAFETY: the message is valid and its memory readable, as sendmsg(2) asks of its caller.
        unsafe {
            let pieces = message_pieces(message)?;
            if (*message).msg_controllen != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            table::get(socket)?.send(&pieces, flags)
        }
    };
    finish_length(send())
}

unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: `buf` is writable for `count` bytes, as read(2) asks of its caller.
    unsafe { rrecv(socket, buf, count, 0) }
}

unsafe extern "C" fn rreadv(socket: c_int, vector: *const iovec, count: c_int) -> isize {
    // SAFETY: the vector has `count` entries, whose memory is writable, as readv(2) asks of its
    // caller.
    let receive = || unsafe { table::get(socket)?.receive(&counted_pieces(vector, count)?, 0) };
    finish_length(receive())
}

unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: `buf` is readable for `count` bytes, as write(2) asks of its caller.
    unsafe { rsend(socket, buf, count, 0) }
}

unsafe extern "C" fn rwritev(socket: c_int, vector: *const iovec, count: c_int) -> isize {
    // SAFETY: the vector has `count` entries, whose memory is readable, as writev(2) asks of its
    // caller.
    let send = || unsafe { table::get(socket)?.send(&counted_pieces(vector, count)?, 0) };
    finish_length(send())
}

unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let wait = || {
        let count = c_int::try_from(count).map_err(|_| libc::EINVAL)? as usize;
        if fds.is_null() && count != 0 {
            return Err(libc::EFAULT);
        }
        for place in 0..count {
            // What the call only writes, the caller need not have written.
            // SAFETY: the array has as many entries as the caller says, as poll(2) asks of its
            // caller.
            unsafe { (&raw mut (*fds.add(place)).revents).write(0) };
        }
        // SAFETY: the caller's array, which is this call's until it returns.
        let fds =
            unsafe { if count == 0 { &mut [][..] } else { std::slice::from_raw_parts_mut(fds, count) } };
        poll::poll(fds, poll::after_milliseconds(timeout)).map(|ready| ready as c_int)
    };
    finish(wait())
}

/// What is left of the time is not written back.
unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let wait = || {
        // SAFETY: the caller's time is readable or null, and so are the sets.
        unsafe {
            let mut deadline = Deadline::NEVER;
            if let Some(timeout) = timeout.as_ref() {
                let seconds = u64::try_from(timeout.tv_sec).map_err(|_| libc::EINVAL)?;
                let micros = u64::try_from(timeout.tv_usec).map_err(|_| libc::EINVAL)?;
                let time = Duration::from_secs(seconds).checked_add(Duration::from_micros(micros));
                deadline = Deadline::after(time);
            }
            poll::select(nfds, &FdSets([readfds, writefds, exceptfds]), deadline)
        }
    };
    finish(wait())
}

unsafe extern "C" fn rgetpeername(socket: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let get = || {
        let socket = table::get(socket)?;
        let state = socket.locked();
        let peer = state.addresses()?.1.filter(|_| state.is_connected()).ok_or(libc::ENOTCONN)?;
        // SAFETY: `name` and `length` are valid places, as getpeername(2) asks of its caller.
        unsafe { tell_address(peer, name, length) }.map(|()| 0)
    };
    finish(get())
}

unsafe extern "C" fn rgetsockname(socket: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let get = || {
        let socket = table::get(socket)?;
        let state = socket.locked();
        let own = state.addresses()?.0.unwrap_or_else(|| state.unnamed());
        // SAFETY: `name` and `length` are valid places, as getsockname(2) asks of its caller.
        unsafe { tell_address(own, name, length) }.map(|()| 0)
    };
    finish(get())
}

unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let set = || {
        let socket = table::get(socket)?;
        if value.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller's value of this length. No option is longer.
        let value = unsafe { std::slice::from_raw_parts(value.cast(), (length as usize).min(64)) };
        socket.locked().set_option(level, name, value).map(|()| 0)
    };
    finish(set())
}

unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let get = || {
        let socket = table::get(socket)?;
        if value.is_null() || length.is_null() {
            return Err(libc::EFAULT);
        }
        // What has happened may be what is asked for.
        socket.ready(0, PollDepth::Thoroughly);
        let told = socket.locked().option(level, name)?;
        // SAFETY: `value` and `length` are valid places, as getsockopt(2) asks of its caller.
        unsafe {
            let bytes = told.bytes();
            let bytes = &bytes[..bytes.len().min(length.read() as usize)];
            value.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            length.write(bytes.len() as socklen_t);
        }
        Ok(0)
    };
    finish(get())
}

/// fcntl(2), of an rsocket: `F_GETFL` and `F_SETFL` with `O_NONBLOCK`, `F_GETFD` and `F_SETFD`.
///
/// # Safety
///
/// - There is none: it looks at nothing but its arguments. C's function takes any number of them.
pub unsafe extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int {
    let control = || {
        let file = table::get(socket)?;
        let mut state = file.locked();
        match command {
            libc::F_GETFL if state.options.is_nonblocking => Ok(libc::O_RDWR | libc::O_NONBLOCK),
            libc::F_GETFL => Ok(libc::O_RDWR),
            libc::F_SETFL => {
                state.options.is_nonblocking = argument as c_int & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            libc::F_GETFD | libc::F_SETFD => {
                // SAFETY: the descriptor is the rsocket's own, and these commands touch nothing else.
                match unsafe { libc::fcntl(file.number(), command, argument as c_int) } {
                    -1 => Err(errno::of(&std::io::Error::last_os_error())),
                    flags => Ok(flags),
                }
            }
            _ => Err(libc::EINVAL),
        }
    };
    finish(control())
}

/// Fails with `ENOTCONN`, or what the connection has come to. Offsets are never negative.
unsafe extern "C" fn riomap(
    socket: c_int,
    buf: *mut c_void,
    length: usize,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let map = || {
        let socket = table::get(socket)?;
        let is_remote = match prot {
            libc::PROT_NONE => false,
            libc::PROT_WRITE => true,
            _ => return Err(libc::EINVAL),
        };
        if buf.is_null() {
            return Err(libc::EFAULT);
        }
        if offset < -1 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's memory, until it is unmapped.
        unsafe { socket.map(piece(buf, length), is_remote, (offset != -1).then_some(offset)) }
    };
    map().unwrap_or_else(|error| {
        errno::set(error);
        -1
    })
}

unsafe extern "C" fn riounmap(socket: c_int, buf: *mut c_void, length: usize) -> c_int {
    finish(table::get(socket).and_then(|socket| socket.unmap(buf.addr(), length)).map(|()| 0))
}

/// Returns a length, or what -1 is as one.
unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    // SAFETY: `buf` is readable for `count` bytes, as pwrite(2) asks of its caller.
    let write = || unsafe { table::get(socket)?.write_to(piece(buf, count), offset, flags) };
    finish_length(write()) as usize
}
