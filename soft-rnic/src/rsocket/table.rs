//! The table of rsockets by descriptor.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::socket::RSocket;

type Table = HashMap<RawFd, Arc<RSocket>>;

fn table() -> MutexGuard<'static, Table> {
    static TABLE: OnceLock<Mutex<Table>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a new rsocket to the program: its number.
pub(super) fn enter(socket: Arc<RSocket>) -> RawFd {
    let number = socket.number();
    let former = table().insert(number, socket);
    if let Some(former) = former {
        // It was a parent's, whose device this process has no part in; or the program has closed the descriptor itself.
        if former.process.is_current() {
            log::warn!("descriptor {number} of an rsocket was closed by the program; rclose is for that");
            former.abandon();
        }
        // Its number is the new one's.
        core::mem::forget(former);
    }
    number
}

/// The rsocket of a number, if it is one. A parent's are none.
pub(super) fn find(number: RawFd) -> Option<Arc<RSocket>> {
    table().get(&number).filter(|socket| socket.process.is_current()).cloned()
}

/// # Errors
///
/// It is none (`EBADF`).
pub(super) fn get(number: RawFd) -> Result<Arc<RSocket>, c_int> {
    find(number).ok_or(libc::EBADF)
}

/// The program knows it no more.
pub(super) fn leave(number: RawFd, socket: &Arc<RSocket>) {
    let mut table = table();
    if table.get(&number).is_some_and(|there| Arc::ptr_eq(there, socket)) {
        table.remove(&number);
    }
}
