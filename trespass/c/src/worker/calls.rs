//! The calls on a worker's connections. None of them waits.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io::IoSlice;

use libc::{iovec, sockaddr, socklen_t};
use trespass::{Key, SendRefused};

use super::WorkerHandle;
use crate::address;
use crate::boundary::{bytes, bytes_mut, call, flag, gathered};
use crate::connection::buffers::{BufferHandle, OwnedData, ReceivedHandle, Refusal, lend};
use crate::connection::{directions, name_of, readiness_of};
use crate::handle::Handle;

/// Defines functions with a worker, which no other thread may use at the same time, and a key.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($worker:ident, $key:ident $(, $argument:ident: $type:ty)*) -> $c:ty { $body:expr }
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// That of the [crate](crate#safety).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(worker: *mut WorkerHandle, key: u64 $(, $argument: $type)*) -> $c {
            call(|| {
                // SAFETY: the program passes an open handle and valid memory (`crate`).
                let mut owned = unsafe { Handle::exclusive(worker) }?;
                let $worker = &mut owned.worker;
                let $key = Key::from_bits(key);
                $body
            })
        }
    )*};
}

calls! {
    /// `trespass_read` without waiting, for a connection of a worker.
    fn trespass_worker_read(worker, key, buffer: *mut c_void, length: usize) -> isize {{
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        let buffer = unsafe { bytes_mut("buffer", buffer, length) }?;
        Ok(worker.read(key, buffer)?)
    }}

    /// `trespass_write` without waiting, for a connection of a worker.
    fn trespass_worker_write(worker, key, buffer: *const c_void, length: usize) -> isize {{
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        let bytes = unsafe { bytes("buffer", buffer, length) }?;
        Ok(worker.write(key, bytes)?)
    }}

    /// `trespass_writev` without waiting, for a connection of a worker.
    fn trespass_worker_writev(worker, key, buffers: *const iovec, count: c_int) -> isize {{
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        let buffers = unsafe { gathered(buffers, count) }?;
        Ok(worker.write_vectored(key, &buffers)?)
    }}

    /// `trespass_send` without waiting, for a connection of a worker.
    fn trespass_worker_send(worker, key, message: *const c_void, length: usize) -> c_int {{
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        let message = unsafe { bytes("message", message, length) }?;
        Ok(worker.send_vectored(key, &[IoSlice::new(message)])?)
    }}

    /// `trespass_recv` without waiting, for a connection of a worker.
    fn trespass_worker_recv(worker, key, buffer: *mut c_void, length: usize) -> isize {{
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        let buffer = unsafe { bytes_mut("buffer", buffer, length) }?;
        Ok(worker.recv(key, buffer)?)
    }}

    /// `trespass_recv_buffer` without waiting, for a connection of a worker.
    fn trespass_worker_recv_buffer(worker, key) -> *mut ReceivedHandle {
        Ok(Handle::give(OwnedData(worker.recv_buf(key)?)))
    }

    /// `trespass_send_buffer` without waiting, for a connection of a worker.
    fn trespass_worker_send_buffer(
        worker, key, buffer: *mut BufferHandle, length: usize, ticket: *mut u64
    ) -> c_int {{
        let send = |block| {
            worker.send_buf(key, block, length).map_err(|refused: SendRefused| Refusal::from(refused))
        };
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        unsafe { lend(buffer, ticket, send) }
    }}

    /// `trespass_shutdown` without waiting, for a connection of a worker.
    fn trespass_worker_shutdown(worker, key, how: c_int) -> c_int {
        Ok(worker.shutdown(key, directions(how)?)?)
    }

    /// Closes a connection or a listener, and ends its key.
    fn trespass_worker_close_key(worker, key) -> c_int {{
        worker.close(key);
        Ok(())
    }}

    /// `trespass_set_cork` without waiting, for a connection of a worker.
    fn trespass_worker_set_cork(worker, key, corked: c_int) -> c_int {
        Ok(worker.set_cork(key, flag(corked))?)
    }

    /// `trespass_set_interest` without waiting, for a connection of a worker.
    fn trespass_worker_set_interest(worker, key, flags: c_uint) -> c_int {
        Ok(worker.set_interest(key, readiness_of(flags)?)?)
    }

    /// Sets the program's number of a connection or a listener, which all of its events carry.
    fn trespass_worker_set_tag(worker, key, tag: u64) -> c_int {
        Ok(worker.set_tag(key, tag)?)
    }

    /// `trespass_transport` without waiting, for a connection of a worker.
    fn trespass_worker_transport(worker, key) -> *const c_char {
        Ok(name_of(worker.transport(key)?))
    }

    /// `trespass_local_addr` without waiting, for a connection of a worker.
    fn trespass_worker_local_addr(worker, key, address: *mut sockaddr, length: *mut socklen_t) -> c_int {{
        let local = worker.local_addr(key)?;
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        unsafe { address::give(local, address, length) }
    }}

    /// `trespass_peer_addr` without waiting, for a connection of a worker.
    fn trespass_worker_peer_addr(worker, key, address: *mut sockaddr, length: *mut socklen_t) -> c_int {{
        let peer = worker.peer_addr(key)?;
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        unsafe { address::give(peer, address, length) }
    }}
}

/// Takes a buffer of at least `length` bytes from the worker's pool.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_buffer_new(
    worker: *const WorkerHandle,
    length: usize,
) -> *mut BufferHandle {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let block = unsafe { Handle::shared(worker) }?.worker.buffer(length)?;
        Ok(Handle::give(block.into()))
    })
}
