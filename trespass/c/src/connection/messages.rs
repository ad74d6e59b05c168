//! The calls of connections for messages. Each is alone on its handle, because a message that is
//! transferred in parts must not be mixed with another.

use std::ffi::{c_int, c_void};
use std::io::IoSlice;

use libc::iovec;
use trespass::{Part, Progress};

use super::{ConnectionHandle, Form};
use crate::boundary::{bytes, bytes_mut, call, gathered, result};
use crate::error::CallFailure;
use crate::handle::Handle;

/// `trespass_part`: a received part of a message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CPart {
    /// Bytes in this part.
    pub length: usize,
    /// 1 if the message ends with this part.
    pub last: u64,
    /// Bytes in the whole message.
    pub total: u64,
}

impl From<Part> for CPart {
    fn from(part: Part) -> Self {
        Self { length: part.len, last: part.last.into(), total: part.total }
    }
}

/// `trespass_progress`: how much of a message was transferred.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CProgress {
    /// Bytes of the message that were transferred.
    pub done: u64,
    /// Bytes in the whole message.
    pub total: u64,
}

impl Form {
    fn send(&mut self, slices: &[IoSlice<'_>]) -> Result<(), CallFailure> {
        match self {
            Self::Packets(packets) => Ok(packets.send_vectored(slices)?),
            Self::Sender(half) => Ok(half.send_vectored(slices)?),
            other => Err(other.lacks("trespass_send")),
        }
    }

    fn send_part(&mut self, total: u64, part: &[u8]) -> Result<usize, CallFailure> {
        match self {
            Self::Packets(packets) => Ok(packets.send_part(total, part)?),
            Self::Sender(half) => Ok(half.send_part(total, part)?),
            other => Err(other.lacks("trespass_send_part")),
        }
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize, CallFailure> {
        match self {
            Self::Packets(packets) => Ok(packets.recv(buffer)?),
            Self::Receiver(half) => Ok(half.recv(buffer)?),
            other => Err(other.lacks("trespass_recv")),
        }
    }

    fn recv_part(&mut self, buffer: &mut [u8]) -> Result<Part, CallFailure> {
        match self {
            Self::Packets(packets) => Ok(packets.recv_part(buffer)?),
            Self::Receiver(half) => Ok(half.recv_part(buffer)?),
            other => Err(other.lacks("trespass_recv_part")),
        }
    }

    /// The progress of a message: being received, or sent.
    fn progress(&self, received: bool) -> Result<Option<Progress>, CallFailure> {
        let packets = match self {
            Self::Packets(packets) => packets,
            Self::Receiver(half) if received => half.as_ref(),
            Self::Sender(half) if !received => half.as_ref(),
            other => return Err(other.lacks("the progress of a message")),
        };
        Ok(if received { packets.receiving() } else { packets.sending() })
    }
}

/// Sends a message whole.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_send(
    connection: *mut ConnectionHandle,
    message: *const c_void,
    length: usize,
) -> c_int {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (mut connected, message) =
            unsafe { (Handle::exclusive(connection)?, bytes("message", message, length)?) };
        connected.form.send(&[IoSlice::new(message)])
    })
}

/// Sends one message from up to 1024 buffers.
///
/// # Safety
///
/// That of the [crate](crate#safety), for each of the buffers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_sendv(
    connection: *mut ConnectionHandle,
    buffers: *const iovec,
    count: c_int,
) -> c_int {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (mut connected, buffers) = unsafe { (Handle::exclusive(connection)?, gathered(buffers, count)?) };
        connected.form.send(&buffers)
    })
}

/// Sends the next bytes of a message of `total` bytes, and returns how many were taken.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_send_part(
    connection: *mut ConnectionHandle,
    total: u64,
    part: *const c_void,
    length: usize,
) -> isize {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (mut connected, part) = unsafe { (Handle::exclusive(connection)?, bytes("part", part, length)?) };
        connected.form.send_part(total, part)
    })
}

/// Receives a message and returns its length, which may be 0.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_recv(
    connection: *mut ConnectionHandle,
    buffer: *mut c_void,
    length: usize,
) -> isize {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (mut connected, buffer) =
            unsafe { (Handle::exclusive(connection)?, bytes_mut("buffer", buffer, length)?) };
        connected.form.recv(buffer)
    })
}

/// Receives the arrived bytes of a message, or its next ones.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_recv_part(
    connection: *mut ConnectionHandle,
    buffer: *mut c_void,
    length: usize,
    part: *mut CPart,
) -> c_int {
    call(|| {
        let place = result("part", part)?;
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (mut connected, buffer) =
            unsafe { (Handle::exclusive(connection)?, bytes_mut("buffer", buffer, length)?) };
        let part = connected.form.recv_part(buffer)?;
        // SAFETY: the place is not null, and writable by the caller.
        unsafe { place.write(part.into()) };
        Ok(())
    })
}

/// Returns 1 and the progress of a message that `trespass_send_part`, or a `trespass_send` with a
/// timeout, has begun to send.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_sending(
    connection: *const ConnectionHandle,
    progress: *mut CProgress,
) -> c_int {
    // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
    call(|| unsafe { give_progress(connection, progress, false) })
}

/// Returns the progress of a message that is being received.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_receiving(
    connection: *const ConnectionHandle,
    progress: *mut CProgress,
) -> c_int {
    // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
    call(|| unsafe { give_progress(connection, progress, true) })
}

/// Writes the progress of a message and returns 1, or 0 between two messages.
///
/// # Safety
///
/// That of the [crate](crate#safety).
unsafe fn give_progress(
    connection: *const ConnectionHandle,
    progress: *mut CProgress,
    received: bool,
) -> Result<c_int, CallFailure> {
    let place = result("progress", progress)?;
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    let progress = unsafe { Handle::shared(connection) }?.form.progress(received)?;
    let Some(progress) = progress else { return Ok(0) };
    // SAFETY: the place is not null, and writable by the caller.
    unsafe { place.write(CProgress { done: progress.done, total: progress.total }) };
    Ok(1)
}
