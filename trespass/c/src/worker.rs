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
use crate::error::CallFailure;
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

/// Makes a worker.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_new(options: *const COptions) -> *mut WorkerHandle {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let worker = Worker::new(&unsafe { options::config(options) }?)?;
        Ok(Handle::give(OwnedWorker { worker, queue: EventQueue::default() }))
    })
}

/// Closes the connections, and does not wait for their peers.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses the worker from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_close(worker: *mut WorkerHandle) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| unsafe { Handle::take(worker) }.map(drop))
}

/// Listens at `HOST:PORT`.
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
    // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
    call(|| unsafe {
        keyed(worker, key, |worker| Ok(worker.listen(text("address", address)?, self::kind(kind)?)?))
    })
}

/// Begins to connect to `HOST:PORT`, whose name it resolves first.
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
    // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
    call(|| unsafe {
        keyed(worker, key, |worker| Ok(worker.connect(text("address", address)?, self::kind(kind)?)?))
    })
}

/// Moves a connection into the worker, which ends its handle, also if the system cannot register
/// it.
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
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        unsafe { Handle::shared(connection) }?.form.check_whole("trespass_worker_add")?;
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        match unsafe { Handle::take(connection) }?.form {
            Form::Stream(stream) => Ok(worker.add(stream)?),
            Form::Packets(packets) => Ok(worker.add_seq_packet(packets)?),
            half => Err(half.lacks("trespass_worker_add")),
        }
    };
    // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
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
    make: impl FnOnce(&mut Worker) -> Result<Key, CallFailure>,
) -> Result<(), CallFailure> {
    let place = result("key", key)?;
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    let made = make(&mut unsafe { Handle::exclusive(worker) }?.worker)?;
    // SAFETY: the place is not null, and writable by the caller.
    unsafe { place.write(made.to_bits()) };
    Ok(())
}

/// Does all pending work, and returns up to `count` events.
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
            return Err(CallFailure::new(
                libc::EINVAL,
                "count = 0 is refused: a poll needs place for an event",
            ));
        }
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let mut owned = unsafe { Handle::exclusive(worker) }?;
        let OwnedWorker { worker, queue } = &mut *owned;
        queue.forget_taken();
        if queue.is_empty() {
            let timeout = u64::try_from(milliseconds).ok().map(Duration::from_millis);
            worker.poll(queue.buffer(), timeout)?;
            queue.begin();
        }
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        Ok(unsafe { queue.give(events, count) })
    })
}

/// The descriptor to wait for until it is readable: then a poll has work.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_fd(worker: *const WorkerHandle) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| Ok(unsafe { Handle::shared(worker) }?.worker.as_raw_fd()))
}

/// Returns a handle that ends the polls of the worker.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_worker_waker(worker: *const WorkerHandle) -> *mut WakerHandle {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| Ok(Handle::give(OwnedWaker(unsafe { Handle::shared(worker) }?.worker.waker()))))
}

/// Has the poll in progress, or the next one, return at once, from any thread.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_waker_wake(waker: *const WakerHandle) -> c_int {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        unsafe { Handle::shared(waker) }?.0.wake();
        Ok(())
    })
}

/// Ends the handle.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses the waker from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_waker_release(waker: *mut WakerHandle) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| unsafe { Handle::take(waker) }.map(drop))
}
