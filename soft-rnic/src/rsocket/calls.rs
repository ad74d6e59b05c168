//! The rsocket functions of librdmacm's table, as C calls them.

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

/// The most entries of an `iovec` array, as in the kernel.
const IOV_MAX: usize = 1024;

/// Puts the functions with a fixed number of arguments into the table.
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

/// Converts a result to the return value of a C function that sets `errno`.
fn finish(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|error| {
        errno::set(error);
        -1
    })
}

fn finish_length(result: Result<usize, c_int>) -> isize {
    match result {
        // A length fits, because no vector is longer than `isize::MAX`.
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

/// Reads a socket address of `length` bytes.
///
/// # Safety
///
/// - `address` is null, or readable for `length` bytes.
unsafe fn address(address: *const sockaddr, length: socklen_t) -> Result<std::net::SocketAddr, c_int> {
    if address.is_null() {
        return Err(libc::EFAULT);
    }
    if (length as usize) < size_of::<libc::sa_family_t>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller guarantees that `address` is readable for `length` bytes, which include
    // the family.
    let least = match c_int::from(unsafe { (&raw const (*address).sa_family).read_unaligned() }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return Err(libc::EAFNOSUPPORT),
    };
    if (length as usize) < least {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller guarantees that `address` is readable for `length` bytes, which suffice
    // for its family.
    unsafe { socket_address::read(address) }
}

/// Writes an address, cut off at the room that `length` names, and its full length to `length`.
///
/// # Safety
///
/// - `length` is null or valid, and `to` is null or writable for `*length` bytes.
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
    // SAFETY: `sockaddr_storage` has only integers, for which zero is valid, and `whole` is a
    // local. The caller guarantees that `length` is valid and `to` writable for `*length` bytes.
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
    // SAFETY: as bind(2), `rbind` requires that `name` is readable for `length` bytes.
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
            // SAFETY: as accept(2), `raccept` requires that `name` and `length` are null, or
            // writable.
            unsafe { tell_address(peer, name, length) }?;
        }
        Ok(table::enter(accepted))
    };
    finish(accept())
}

unsafe extern "C" fn rconnect(socket: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: as connect(2), `rconnect` requires that `name` is readable for `length` bytes.
    let connect = || table::get(socket)?.connect(unsafe { address(name, length) }?).map(|()| 0);
    finish(connect())
}

unsafe extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    finish(table::get(socket).and_then(|socket| socket.shut_down(how)).map(|()| 0))
}

/// `rclose`: frees the descriptor, even if it returns an error. If other calls still wait for the
/// rsocket, the last of them frees it.
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

/// Copies an `iovec` array.
///
/// # Safety
///
/// - `vector` is null, or has `count` readable entries.
unsafe fn pieces(vector: *const iovec, count: usize) -> Result<Vec<UserBuffer>, c_int> {
    if vector.is_null() && count != 0 {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller guarantees that `vector` has `count` readable entries.
    let piece_at = |place| unsafe { vector.add(place).read() };
    Ok((0..count).map(piece_at).map(|entry| piece(entry.iov_base, entry.iov_len)).collect())
}

/// Like [`pieces`], with the signed count of readv(2). Fails with `EINVAL` if the count is negative
/// or above [`IOV_MAX`].
///
/// # Safety
///
/// - `vector` is null, or has `count` readable entries.
unsafe fn counted_pieces(vector: *const iovec, count: c_int) -> Result<Vec<UserBuffer>, c_int> {
    let count = usize::try_from(count).ok().filter(|count| *count <= IOV_MAX).ok_or(libc::EINVAL)?;
    // SAFETY: the caller guarantees that `vector` is null, or has `count` readable entries.
    unsafe { pieces(vector, count) }
}

unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, length: usize, flags: c_int) -> isize {
    // SAFETY: as recv(2), `rrecv` requires that `buf` is writable for `length` bytes.
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
        // SAFETY: as recvfrom(2), `rrecvfrom` requires that the buffer, the address and the length
        // are writable.
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

/// The `iovec` array of a message.
///
/// # Safety
///
/// - `message` is null, or readable with its `iovec` array.
unsafe fn message_pieces(message: *const msghdr) -> Result<Vec<UserBuffer>, c_int> {
    if message.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller guarantees that `message` is readable with its `iovec` array.
    unsafe {
        #[allow(clippy::useless_conversion, reason = "`size_t` in glibc, `int` in musl")]
        let count = usize::try_from((*message).msg_iovlen).ok().filter(|count| *count <= IOV_MAX);
        pieces((*message).msg_iov, count.ok_or(libc::EMSGSIZE)?)
    }
}

unsafe extern "C" fn rrecvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> isize {
    let receive = || {
        // SAFETY: as recvmsg(2), `rrecvmsg` requires that the message is valid and its memory
        // writable.
        unsafe {
            let received = table::get(socket)?.receive(&message_pieces(message)?, flags)?;
            // A stream's messages have no address and no control data.
            ((*message).msg_namelen, (*message).msg_controllen, (*message).msg_flags) = (0, 0, 0);
            Ok(received)
        }
    };
    finish_length(receive())
}

unsafe extern "C" fn rsend(socket: c_int, buf: *const c_void, length: usize, flags: c_int) -> isize {
    // SAFETY: as send(2), `rsend` requires that `buf` is readable for `length` bytes.
    let send = || unsafe { table::get(socket)?.send(&[piece(buf, length)], flags) };
    finish_length(send())
}

/// `rsendto`: ignores the address, as TCP does, because the peer is known.
unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    length: usize,
    flags: c_int,
    _to: *const sockaddr,
    _to_length: socklen_t,
) -> isize {
    // SAFETY: as sendto(2), `rsendto` requires that `buf` is readable for `length` bytes.
    unsafe { rsend(socket, buf, length, flags) }
}

unsafe extern "C" fn rsendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> isize {
    let send = || {
        // SAFETY: as sendmsg(2), `rsendmsg` requires that the message is valid and its memory
        // readable.
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
    // SAFETY: as read(2), `rread` requires that `buf` is writable for `count` bytes.
    unsafe { rrecv(socket, buf, count, 0) }
}

unsafe extern "C" fn rreadv(socket: c_int, vector: *const iovec, count: c_int) -> isize {
    // SAFETY: as readv(2), `rreadv` requires a vector of `count` entries, whose memory is writable.
    let receive = || unsafe { table::get(socket)?.receive(&counted_pieces(vector, count)?, 0) };
    finish_length(receive())
}

unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: as write(2), `rwrite` requires that `buf` is readable for `count` bytes.
    unsafe { rsend(socket, buf, count, 0) }
}

unsafe extern "C" fn rwritev(socket: c_int, vector: *const iovec, count: c_int) -> isize {
    // SAFETY: as writev(2), `rwritev` requires a vector of `count` entries, whose memory is
    // readable.
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
            // `revents` is output only, so the caller may have left it uninitialized.
            // SAFETY: as poll(2), `rpoll` requires an array of `count` entries.
            unsafe { (&raw mut (*fds.add(place)).revents).write(0) };
        }
        // SAFETY: as poll(2), `rpoll` requires an array of `count` entries, which nobody else uses
        // during the call.
        let fds =
            unsafe { if count == 0 { &mut [][..] } else { std::slice::from_raw_parts_mut(fds, count) } };
        poll::poll(fds, poll::after_milliseconds(timeout)).map(|ready| ready as c_int)
    };
    finish(wait())
}

/// `rselect`: does not write the remaining time back to `timeout`.
unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let wait = || {
        // SAFETY: as select(2), `rselect` requires that the timeout and the sets are null or valid.
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
        // SAFETY: as getpeername(2), `rgetpeername` requires that `name` and `length` are writable.
        unsafe { tell_address(peer, name, length) }.map(|()| 0)
    };
    finish(get())
}

unsafe extern "C" fn rgetsockname(socket: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let get = || {
        let socket = table::get(socket)?;
        let state = socket.locked();
        let own = state.addresses()?.0.unwrap_or_else(|| state.unnamed());
        // SAFETY: as getsockname(2), `rgetsockname` requires that `name` and `length` are writable.
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
        // SAFETY: as setsockopt(2), `rsetsockopt` requires that `value` is readable for `length`
        // bytes. No option is longer than 64.
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
        // Process pending events first, because they may change the option's value (`SO_ERROR`).
        socket.ready(0, PollDepth::Thoroughly);
        let told = socket.locked().option(level, name)?;
        // SAFETY: as getsockopt(2), `rgetsockopt` requires that `value` and `length` are writable.
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

/// fcntl(2) for rsockets: `F_GETFL` and `F_SETFL` with `O_NONBLOCK`, `F_GETFD` and `F_SETFD`.
///
/// # Safety
///
/// - No requirements: the function accesses no memory through its arguments. It is `unsafe` because
///   C's function takes any number of arguments.
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
                // SAFETY: the descriptor belongs to the rsocket, and these commands access no
                // memory.
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

/// `riomap`: fails with `ENOTCONN` unless the rsocket is connected. Offsets are never negative.
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
        // SAFETY: `riomap` requires that the program leaves the memory to the device until it
        // unmaps it.
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

/// `riowrite`: returns a length, or -1 converted to `size_t`.
unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    // SAFETY: `riowrite` requires that `buf` is readable for `count` bytes.
    let write = || unsafe { table::get(socket)?.write_to(piece(buf, count), offset, flags) };
    finish_length(write()) as usize
}
