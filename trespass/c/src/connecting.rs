//! A connect that does not block.

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::task::Poll;

use trespass::{Connecting, Kind, SeqPacket, Stream};

use crate::address;
use crate::boundary::{call, text};
use crate::connection::{Connected, ConnectionHandle, kind};
use crate::error::CallFailure;
use crate::handle::{Handle, Tagged};
use crate::options::{self, COptions};

/// `trespass_connecting`.
pub type ConnectingHandle = Handle<OwnedConnect>;

/// A connect in progress.
#[derive(Debug)]
pub enum OwnedConnect {
    /// It becomes a connection that carries bytes.
    Stream(Connecting<Stream>),
    /// It becomes a connection that carries messages.
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

/// Begins to connect to `IP:PORT`, which is no name, and does not wait.
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
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (address, config) = unsafe { (text("address", address)?, options::config(options)?) };
        let address = address::numeric(address)?;
        Ok(Handle::give(match kind {
            Kind::Stream => OwnedConnect::Stream(config.start_connect(address)?),
            Kind::SeqPacket => OwnedConnect::Packets(config.start_connect_seq_packet(address)?),
        }))
    })
}

/// The descriptor to wait for until it is readable.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_connect_fd(connecting: *const ConnectingHandle) -> c_int {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        Ok(match &*unsafe { Handle::shared(connecting) }? {
            OwnedConnect::Stream(connecting) => connecting.as_raw_fd(),
            OwnedConnect::Packets(connecting) => connecting.as_raw_fd(),
        })
    })
}

/// Continues, and returns the connection once it is made.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_connect_finish(connecting: *mut ConnectingHandle) -> *mut ConnectionHandle {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        match unsafe { Handle::exclusive(connecting) }?.poll() {
            Poll::Ready(connected) => Ok(Handle::give(connected?)),
            Poll::Pending => Err(CallFailure::new(libc::EAGAIN, "the connect is in progress")),
        }
    })
}

/// Ends the handle.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses it from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_connect_close(connecting: *mut ConnectingHandle) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| unsafe { Handle::take(connecting) }.map(drop))
}
