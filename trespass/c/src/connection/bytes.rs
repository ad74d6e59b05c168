//! The calls of streams.

use std::ffi::{c_int, c_void};
use std::io::{Read, Write};

use libc::iovec;
use trespass::Stream;

use super::{ConnectionHandle, Form};
use crate::boundary::{bytes, bytes_mut, call, gathered, scattered};
use crate::error::Failure;
use crate::handle::Handle;

impl Form {
    fn reading(&self, call: &str) -> Result<&Stream, Failure> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Reader(half) => Ok(half.as_ref()),
            other => Err(other.lacks(call)),
        }
    }

    fn writing(&self, call: &str) -> Result<&Stream, Failure> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Writer(half) => Ok(half.as_ref()),
            other => Err(other.lacks(call)),
        }
    }
}

/// `trespass_read`.
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
        // SAFETY: by the caller.
        let (connected, buffer) =
            unsafe { (Handle::shared(connection)?, bytes_mut("buffer", buffer, length)?) };
        Ok(connected.form.reading("trespass_read")?.read(buffer)?)
    })
}

/// `trespass_readv`.
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
        // SAFETY: by the caller.
        let (connected, mut buffers) = unsafe { (Handle::shared(connection)?, scattered(buffers, count)?) };
        Ok(connected.form.reading("trespass_readv")?.read_vectored(&mut buffers)?)
    })
}

/// `trespass_peek`.
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
        // SAFETY: by the caller.
        let (connected, buffer) =
            unsafe { (Handle::shared(connection)?, bytes_mut("buffer", buffer, length)?) };
        Ok(connected.form.reading("trespass_peek")?.peek(buffer)?)
    })
}

/// `trespass_write`.
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
        // SAFETY: by the caller.
        let (connected, bytes) = unsafe { (Handle::shared(connection)?, bytes("buffer", buffer, length)?) };
        Ok(connected.form.writing("trespass_write")?.write(bytes)?)
    })
}

/// `trespass_writev`.
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
        // SAFETY: by the caller.
        let (connected, buffers) = unsafe { (Handle::shared(connection)?, gathered(buffers, count)?) };
        Ok(connected.form.writing("trespass_writev")?.write_vectored(&buffers)?)
    })
}

/// `trespass_flush`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_flush(connection: *const ConnectionHandle) -> c_int {
    call(|| {
        // SAFETY: by the caller.
        let connected = unsafe { Handle::shared(connection) }?;
        Ok(connected.form.writing("trespass_flush")?.flush()?)
    })
}
