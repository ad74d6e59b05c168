//! The calls of streams.

use std::ffi::{c_int, c_void};
use std::io::{Read, Write};

use libc::iovec;
use trespass::Stream;

use super::{ConnectionHandle, Form};
use crate::boundary::{bytes, bytes_mut, call, gathered, scattered};
use crate::error::CallFailure;
use crate::handle::Handle;

impl Form {
    fn reading(&self, call: &str) -> Result<&Stream, CallFailure> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Reader(half) => Ok(half.as_ref()),
            other => Err(other.lacks(call)),
        }
    }

    fn writing(&self, call: &str) -> Result<&Stream, CallFailure> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Writer(half) => Ok(half.as_ref()),
            other => Err(other.lacks(call)),
        }
    }
}

/// Reads up to `length` bytes.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_read(
    connection: *const ConnectionHandle,
    buffer: *mut c_void,
    length: usize,
) -> isize {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (connected, buffer) =
            unsafe { (Handle::shared(connection)?, bytes_mut("buffer", buffer, length)?) };
        Ok(connected.form.reading("trespass_read")?.read(buffer)?)
    })
}

/// Reads into up to 1024 buffers.
///
/// # Safety
///
/// That of the [crate](crate#safety), for each of the buffers; none overlaps another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_readv(
    connection: *const ConnectionHandle,
    buffers: *const iovec,
    count: c_int,
) -> isize {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (connected, mut buffers) = unsafe { (Handle::shared(connection)?, scattered(buffers, count)?) };
        Ok(connected.form.reading("trespass_readv")?.read_vectored(&mut buffers)?)
    })
}

/// Reads and leaves the bytes to be read again.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_peek(
    connection: *const ConnectionHandle,
    buffer: *mut c_void,
    length: usize,
) -> isize {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (connected, buffer) =
            unsafe { (Handle::shared(connection)?, bytes_mut("buffer", buffer, length)?) };
        Ok(connected.form.reading("trespass_peek")?.peek(buffer)?)
    })
}

/// Writes up to `length` bytes.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_write(
    connection: *const ConnectionHandle,
    buffer: *const c_void,
    length: usize,
) -> isize {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (connected, bytes) = unsafe { (Handle::shared(connection)?, bytes("buffer", buffer, length)?) };
        Ok(connected.form.writing("trespass_write")?.write(bytes)?)
    })
}

/// Writes from up to 1024 buffers.
///
/// # Safety
///
/// That of the [crate](crate#safety), for each of the buffers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_writev(
    connection: *const ConnectionHandle,
    buffers: *const iovec,
    count: c_int,
) -> isize {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (connected, buffers) = unsafe { (Handle::shared(connection)?, gathered(buffers, count)?) };
        Ok(connected.form.writing("trespass_writev")?.write_vectored(&buffers)?)
    })
}

/// Sends what `trespass_set_cork` has held back, and what the peer has room for.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_flush(connection: *const ConnectionHandle) -> c_int {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let connected = unsafe { Handle::shared(connection) }?;
        Ok(connected.form.writing("trespass_flush")?.flush()?)
    })
}
