//! A connect that does not block.

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::task::Poll;

use trespass::{Connecting, Kind, SeqPacket, Stream};

use crate::address;
use crate::boundary::{call, text};
use crate::connection::{Connected, ConnectionHandle, kind};
use crate::error::Failure;
use crate::handle::{Handle, Tagged};
use crate::options::{self, COptions};

/// `trespass_connecting`.
pub type ConnectingHandle = Handle<OwnedConnect>;

/// A connect in progress.
#[derive(Debug)]
pub enum OwnedConnect {
    /// Of a stream.
    Stream(Connecting<Stream>),
    /// Of a connection for messages.
    Packets(Connecting<SeqPacket>),
}

impl Tagged for OwnedConnect {
    const TAG: u32 = u32::from_be_bytes(*b"TScn");
    const NAME: &'static str = "connecting";
}

impl OwnedConnect {
    fn poll(&mut self) -> Poll<std::io::Result<Connected>> {
        match self {
            Self::Stream(connecting) => connecting.poll().map_ok(Connected::from),
            Self::Packets(connecting) => connecting.poll().map_ok(Connected::from),
        }
    }
}

/// `trespass_connect_start`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_connect_start(
    address: *const c_char,
    kind: c_int,
    options: *const COptions,
) -> *mut ConnectingHandle {
    call(|| {
        let kind = self::kind(kind)?;
        // SAFETY: by the caller.
        let (address, config) = unsafe { (text("address", address)?, options::config(options)?) };
        let address = address::numeric(address)?;
        Ok(Handle::give(match kind {
            Kind::Stream => OwnedConnect::Stream(config.start_connect(address)?),
            Kind::SeqPacket => OwnedConnect::Packets(config.start_connect_seq_packet(address)?),
        }))
    })
}

/// `trespass_connect_fd`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_connect_fd(connecting: *const ConnectingHandle) -> c_int {
    call(|| {
        // SAFETY: by the caller.
        Ok(match &*unsafe { Handle::shared(connecting) }? {
            OwnedConnect::Stream(connecting) => connecting.as_raw_fd(),
            OwnedConnect::Packets(connecting) => connecting.as_raw_fd(),
        })
    })
}

/// `trespass_connect_finish`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_connect_finish(connecting: *mut ConnectingHandle) -> *mut ConnectionHandle {
    call(|| {
        // SAFETY: by the caller.
        match unsafe { Handle::exclusive(connecting) }?.poll() {
            Poll::Ready(connected) => Ok(Handle::give(connected?)),
            Poll::Pending => Err(Failure::new(libc::EAGAIN, "the connect is in progress")),
        }
    })
}

/// `trespass_connect_close`.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses it from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_connect_close(connecting: *mut ConnectingHandle) -> c_int {
    // SAFETY: by the caller.
    call(|| unsafe { Handle::take(connecting) }.map(drop))
}
