//! Listeners.

use std::ffi::{c_char, c_int};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{sockaddr, socklen_t};
use trespass::{Kind, Listener};

use crate::address;
use crate::boundary::{call, flag, text};
use crate::connection::{ConnectionHandle, kind, limit};
use crate::error::Failure;
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

/// `trespass_listen`.
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
        // SAFETY: by the caller.
        let (address, config) = unsafe { (text("address", address)?, options::config(options)?) };
        Ok(Handle::give(OwnedListener(config.bind(address)?)))
    })
}

/// `trespass_listen_with`.
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
        // SAFETY: by the caller.
        let socket = TcpListener::from(unsafe { owned(socket) }?);
        // SAFETY: by the caller.
        let config = unsafe { options::config(options) }?;
        Ok(Handle::give(OwnedListener(config.listen_with(socket)?)))
    })
}

/// A descriptor that the program gives away.
///
/// # Safety
///
/// If it is open, nothing else uses or closes it from now on.
unsafe fn owned(descriptor: RawFd) -> Result<OwnedFd, Failure> {
    // SAFETY: it only asks for the flags.
    if descriptor < 0 || unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
        return Err(Failure::new(libc::EBADF, format!("descriptor {descriptor} is not open")));
    }
    // SAFETY: it is open, and the program gives it away.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// `trespass_accept`.
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
        // SAFETY: by the caller.
        let listener = unsafe { Handle::shared(listener) }?;
        Ok(Handle::give(match kind {
            Kind::Stream => listener.0.accept()?.0.into(),
            Kind::SeqPacket => listener.0.accept_seq_packet()?.0.into(),
        }))
    })
}

/// `trespass_listener_set_nonblocking`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listener_set_nonblocking(
    listener: *const ListenerHandle,
    nonblocking: c_int,
) -> c_int {
    // SAFETY: by the caller.
    call(|| Ok(unsafe { Handle::shared(listener) }?.0.set_nonblocking(flag(nonblocking))?))
}

/// `trespass_listener_set_timeout`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listener_set_timeout(
    listener: *const ListenerHandle,
    milliseconds: u64,
) -> c_int {
    // SAFETY: by the caller.
    call(|| Ok(unsafe { Handle::shared(listener) }?.0.set_accept_timeout(limit(milliseconds))?))
}

/// `trespass_listener_fd`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listener_fd(listener: *const ListenerHandle) -> c_int {
    // SAFETY: by the caller.
    call(|| Ok(unsafe { Handle::shared(listener) }?.0.as_raw_fd()))
}

/// `trespass_listener_port`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listener_port(listener: *const ListenerHandle) -> c_int {
    // SAFETY: by the caller.
    call(|| Ok(c_int::from(unsafe { Handle::shared(listener) }?.0.local_addr()?.port())))
}

/// `trespass_listener_addr`.
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
        // SAFETY: by the caller.
        let local = unsafe { Handle::shared(listener) }?.0.local_addr()?;
        // SAFETY: by the caller.
        unsafe { address::give(local, address, length) }
    })
}

/// `trespass_listener_close`.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses the listener from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_listener_close(listener: *mut ListenerHandle) -> c_int {
    // SAFETY: by the caller.
    call(|| unsafe { Handle::take(listener) }.map(drop))
}
