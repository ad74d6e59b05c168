//! Workers: many connections on one thread.

pub mod calls;
pub mod events;

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::time::Duration;

use trespass::{Key, Worker, WorkerWaker};

pub use self::events::CEvent;
use self::events::EventQueue;
use crate::boundary::{call, result, text};
use crate::connection::{ConnectionHandle, Form, kind};
use crate::error::Failure;
use crate::handle::{Handle, Tagged};
use crate::options::{self, COptions};

/// `trespass_worker`.
pub type WorkerHandle = Handle<OwnedWorker>;

/// A worker of a C program, with the events that it has not taken yet.
#[derive(Debug)]
pub struct OwnedWorker {
    worker: Worker,
    queue: EventQueue,
}

impl Tagged for OwnedWorker {
    const TAG: u32 = u32::from_be_bytes(*b"TSwo");
    const NAME: &'static str = "worker";
}

/// `trespass_waker`.
pub type WakerHandle = Handle<OwnedWaker>;

/// A handle of a C program that ends the poll of a worker.
#[derive(Debug)]
pub struct OwnedWaker(WorkerWaker);

impl Tagged for OwnedWaker {
    const TAG: u32 = u32::from_be_bytes(*b"TSwk");
    const NAME: &'static str = "waker";
}

/// `trespass_worker_new`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_new(options: *const COptions) -> *mut WorkerHandle {
    call(|| {
        // SAFETY: by the caller.
        let worker = Worker::new(&unsafe { options::config(options) }?)?;
        Ok(Handle::give(OwnedWorker { worker, queue: EventQueue::default() }))
    })
}

/// `trespass_worker_close`.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses the worker from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_close(worker: *mut WorkerHandle) -> c_int {
    // SAFETY: by the caller.
    call(|| unsafe { Handle::take(worker) }.map(drop))
}

/// `trespass_worker_listen`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_listen(
    worker: *mut WorkerHandle,
    address: *const c_char,
    kind: c_int,
    key: *mut u64,
) -> c_int {
    // SAFETY: by the caller.
    call(|| unsafe {
        keyed(worker, key, |worker| Ok(worker.listen(text("address", address)?, self::kind(kind)?)?))
    })
}

/// `trespass_worker_connect`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_connect(
    worker: *mut WorkerHandle,
    address: *const c_char,
    kind: c_int,
    key: *mut u64,
) -> c_int {
    // SAFETY: by the caller.
    call(|| unsafe {
        keyed(worker, key, |worker| Ok(worker.connect(text("address", address)?, self::kind(kind)?)?))
    })
}

/// `trespass_worker_add`.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses the connection from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_add(
    worker: *mut WorkerHandle,
    connection: *mut ConnectionHandle,
    key: *mut u64,
) -> c_int {
    let add = |worker: &mut Worker| {
        // SAFETY: by the caller.
        unsafe { Handle::shared(connection) }?.form.check_whole("trespass_worker_add")?;
        // SAFETY: by the caller.
        match unsafe { Handle::take(connection) }?.form {
            Form::Stream(stream) => Ok(worker.add(stream)?),
            Form::Packets(packets) => Ok(worker.add_seq_packet(packets)?),
            half => Err(half.lacks("trespass_worker_add")),
        }
    };
    // SAFETY: by the caller.
    call(|| unsafe { keyed(worker, key, add) })
}

/// Makes a connection or a listener, and writes its key.
///
/// # Safety
///
/// That of the [crate](crate#safety).
unsafe fn keyed(
    worker: *mut WorkerHandle,
    key: *mut u64,
    make: impl FnOnce(&mut Worker) -> Result<Key, Failure>,
) -> Result<(), Failure> {
    let place = result("key", key)?;
    // SAFETY: by the caller.
    let made = make(&mut unsafe { Handle::exclusive(worker) }?.worker)?;
    // SAFETY: the place is not null, and writable by the caller.
    unsafe { place.write(made.to_bits()) };
    Ok(())
}

/// `trespass_worker_poll`.
///
/// # Safety
///
/// That of the [crate](crate#safety); `events` has place for `count` events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_poll(
    worker: *mut WorkerHandle,
    events: *mut CEvent,
    count: usize,
    milliseconds: c_int,
) -> isize {
    call(|| {
        let events = result("events", events)?;
        if count == 0 {
            return Err(Failure::new(libc::EINVAL, "count = 0 is refused: a poll needs place for an event"));
        }
        // SAFETY: by the caller.
        let mut owned = unsafe { Handle::exclusive(worker) }?;
        let OwnedWorker { worker, queue } = &mut *owned;
        queue.forget_taken();
        if queue.is_empty() {
            let timeout = u64::try_from(milliseconds).ok().map(Duration::from_millis);
            worker.poll(queue.buffer(), timeout)?;
            queue.begin();
        }
        // SAFETY: by the caller.
        Ok(unsafe { queue.give(events, count) })
    })
}

/// `trespass_worker_fd`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_fd(worker: *const WorkerHandle) -> c_int {
    // SAFETY: by the caller.
    call(|| Ok(unsafe { Handle::shared(worker) }?.worker.as_raw_fd()))
}

/// `trespass_worker_waker`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_waker(worker: *const WorkerHandle) -> *mut WakerHandle {
    // SAFETY: by the caller.
    call(|| Ok(Handle::give(OwnedWaker(unsafe { Handle::shared(worker) }?.worker.waker()))))
}

/// `trespass_waker_wake`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_waker_wake(waker: *const WakerHandle) -> c_int {
    call(|| {
        // SAFETY: by the caller.
        unsafe { Handle::shared(waker) }?.0.wake();
        Ok(())
    })
}

/// `trespass_waker_release`.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses the waker from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_waker_release(waker: *mut WakerHandle) -> c_int {
    // SAFETY: by the caller.
    call(|| unsafe { Handle::take(waker) }.map(drop))
}
