//! The table of rsockets by descriptor.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::socket::RSocket;

type SocketTable = HashMap<RawFd, Arc<RSocket>>;

fn table() -> MutexGuard<'static, SocketTable> {
    static TABLE: OnceLock<Mutex<SocketTable>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a new rsocket to the table; returns its number.
pub(super) fn enter(socket: Arc<RSocket>) -> RawFd {
    let number = socket.number();
    let former = table().insert(number, socket);
    if let Some(former) = former {
        // Either the former socket belongs to the parent process, whose device this process must
        // not use, or the program has closed the descriptor without `rclose`.
        if former.process.is_current() {
            log::warn!("the program closed descriptor {number} of an rsocket; use rclose instead of close");
            former.abandon();
        }
        // Dropping it would close its descriptor, whose number now belongs to the new rsocket.
        core::mem::forget(former);
    }
    number
}

/// The rsocket with this number. A parent process's rsockets are not found.
pub(super) fn find(number: RawFd) -> Option<Arc<RSocket>> {
    table().get(&number).filter(|socket| socket.process.is_current()).cloned()
}

/// # Errors
///
/// `EBADF` if the number is not an rsocket's.
pub(super) fn get(number: RawFd) -> Result<Arc<RSocket>, c_int> {
    find(number).ok_or(libc::EBADF)
}

/// Removes the rsocket, unless its number already belongs to another one.
pub(super) fn leave(number: RawFd, socket: &Arc<RSocket>) {
    let mut table = table();
    if table.get(&number).is_some_and(|there| Arc::ptr_eq(there, socket)) {
        table.remove(&number);
    }
}
