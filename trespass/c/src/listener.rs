//! Listeners.

use std::ffi::{c_char, c_int};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{sockaddr, socklen_t};
use trespass::{Kind, Listener};

use crate::address;
use crate::boundary::{call, flag, text};
use crate::connection::{ConnectionHandle, kind, limit};
use crate::error::CallFailure;
use crate::handle::{Handle, Tagged};
use crate::options::{self, COptions};

/// `trespass_listener`.
pub type ListenerHandle = Handle<OwnedListener>;

/// A listener of a C program.
#[derive(Debug)]
pub struct OwnedListener(Listener);

impl Tagged for OwnedListener {
    const TAG: u32 = u32::from_be_bytes(*b"TSli");
    const NAME: &'static str = "listener";
}

/// Listens at `HOST:PORT`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listen(
    address: *const c_char,
    options: *const COptions,
) -> *mut ListenerHandle {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (address, config) = unsafe { (text("address", address)?, options::config(options)?) };
        Ok(Handle::give(OwnedListener(config.bind(address)?)))
    })
}

/// Listens with a TCP socket that already listens.
///
/// # Safety
///
/// That of the [crate](crate#safety), and the program gives the socket away: nothing else uses or
/// closes the descriptor, unless the call fails with `EBADF`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listen_with(
    socket: c_int,
    options: *const COptions,
) -> *mut ListenerHandle {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let socket = TcpListener::from(unsafe { owned(socket) }?);
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let config = unsafe { options::config(options) }?;
        Ok(Handle::give(OwnedListener(config.listen_with(socket)?)))
    })
}

/// A descriptor that the program gives away.
///
/// # Safety
///
/// If it is open, nothing else uses or closes it from now on.
unsafe fn owned(descriptor: RawFd) -> Result<OwnedFd, CallFailure> {
    // SAFETY: it only asks for the flags.
    if descriptor < 0 || unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
        return Err(CallFailure::new(libc::EBADF, format!("descriptor {descriptor} is not open")));
    }
    // SAFETY: it is open, and the program gives it away.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Accepts a connection of a kind.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_accept(
    listener: *const ListenerHandle,
    kind: c_int,
) -> *mut ConnectionHandle {
    call(|| {
        let kind = self::kind(kind)?;
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let listener = unsafe { Handle::shared(listener) }?;
        Ok(Handle::give(match kind {
            Kind::Stream => listener.0.accept()?.0.into(),
            Kind::SeqPacket => listener.0.accept_seq_packet()?.0.into(),
        }))
    })
}

/// Sets whether `trespass_accept` fails with `EAGAIN` instead of waiting.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listener_set_nonblocking(
    listener: *const ListenerHandle,
    nonblocking: c_int,
) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| Ok(unsafe { Handle::shared(listener) }?.0.set_nonblocking(flag(nonblocking))?))
}

/// Sets how long `trespass_accept` waits.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listener_set_timeout(
    listener: *const ListenerHandle,
    milliseconds: u64,
) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| Ok(unsafe { Handle::shared(listener) }?.0.set_accept_timeout(limit(milliseconds))?))
}

/// The descriptor to wait for until it is readable.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listener_fd(listener: *const ListenerHandle) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| Ok(unsafe { Handle::shared(listener) }?.0.as_raw_fd()))
}

/// The port.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listener_port(listener: *const ListenerHandle) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| Ok(c_int::from(unsafe { Handle::shared(listener) }?.0.local_addr()?.port())))
}

/// Writes the address as getsockname(2) does.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listener_addr(
    listener: *const ListenerHandle,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let local = unsafe { Handle::shared(listener) }?.0.local_addr()?;
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        unsafe { address::give(local, address, length) }
    })
}

/// Closes the listener.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses the listener from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listener_close(listener: *mut ListenerHandle) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| unsafe { Handle::take(listener) }.map(drop))
}
