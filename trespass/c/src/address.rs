//! Addresses: text from C, and `sockaddr` to C.

use std::net::SocketAddr;

use libc::{sockaddr, socklen_t};
use socket2::SockAddr;

use crate::boundary::null;
use crate::error::CallFailure;

/// Writes an address as `getsockname` does: as many bytes as fit, and the length that it has.
///
/// # Safety
///
/// `length` is null or points to the length of the place at `to`, which is null or has that many
/// writable bytes.
pub(crate) unsafe fn give(
    address: SocketAddr,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), CallFailure> {
    if to.is_null() {
        return Err(null("address"));
    }
    if length.is_null() {
        return Err(null("length"));
    }
    let address = SockAddr::from(address);
    // SAFETY: by the caller; the pointer is not null.
    let room = unsafe { length.read() };
    let copied = room.min(address.len()) as usize;
    // SAFETY: the source has `address.len()` bytes, and by the caller the destination has `room`.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(address.as_ptr().cast(), copied) };
    // SAFETY: by the caller; the pointer is not null.
    unsafe { length.write(address.len()) };
    Ok(())
}

/// An address without a name, `IP:PORT`, which no call to a name server delays.
pub(crate) fn numeric(address: &str) -> Result<SocketAddr, CallFailure> {
    address.parse().map_err(|_| {
        let words = format!("`{address}` is not `IP:PORT`: resolve the name first, because that may block");
        CallFailure::new(libc::EINVAL, words)
    })
}
