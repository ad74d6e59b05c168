//! Connections, whole or a half, and the calls that all of them have.

/// A call that `Stream` and `SeqPacket` have under one name.
macro_rules! of_both {
    ($form:expr, $whole:ident => $call:expr) => {
        match $form.whole() {
            Whole::Stream($whole) => $call,
            Whole::Packets($whole) => $call,
        }
    };
}

pub mod buffers;
pub mod bytes;
pub mod messages;

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use libc::{sockaddr, socklen_t};
use trespass::{Kind, ReadHalf, Readiness, RecvHalf, SendHalf, SeqPacket, Stream, Transport, WriteHalf};

use crate::boundary::{call, flag, result, text};
use crate::error::{self, CallFailure, c_text};
use crate::handle::{Handle, Tagged};
use crate::options::COptions;
use crate::{address, options};

/// `trespass_connection`.
pub type ConnectionHandle = Handle<Connected>;

/// A connection of a C program.
#[derive(Debug)]
pub struct Connected {
    pub(crate) form: Form,
    /// Texts that the program has asked for. They stay until it closes the connection.
    fallback: OnceLock<Option<CString>>,
    device: OnceLock<Option<CString>>,
}

/// What a handle owns.
#[derive(Debug)]
pub(crate) enum Form {
    Stream(Stream),
    Packets(SeqPacket),
    Reader(ReadHalf),
    Writer(WriteHalf),
    Receiver(RecvHalf),
    Sender(SendHalf),
}

/// The connection that a form is, or is a half of, for the calls that take `&self`.
enum Whole<'a> {
    Stream(&'a Stream),
    Packets(&'a SeqPacket),
}

impl Tagged for Connected {
    const TAG: u32 = u32::from_be_bytes(*b"TSco");
    const NAME: &'static str = "connection";
}

impl From<Form> for Connected {
    fn from(form: Form) -> Self {
        Self { form, fallback: OnceLock::new(), device: OnceLock::new() }
    }
}

impl From<Stream> for Connected {
    fn from(stream: Stream) -> Self {
        Form::Stream(stream).into()
    }
}

impl From<SeqPacket> for Connected {
    fn from(packets: SeqPacket) -> Self {
        Form::Packets(packets).into()
    }
}

impl Form {
    fn whole(&self) -> Whole<'_> {
        match self {
            Self::Stream(stream) => Whole::Stream(stream),
            Self::Packets(packets) => Whole::Packets(packets),
            Self::Reader(half) => Whole::Stream(half.as_ref()),
            Self::Writer(half) => Whole::Stream(half.as_ref()),
            Self::Receiver(half) => Whole::Packets(half.as_ref()),
            Self::Sender(half) => Whole::Packets(half.as_ref()),
        }
    }

    /// Refuses a half, which keeps its handle.
    pub(crate) fn check_whole(&self, call: &str) -> Result<(), CallFailure> {
        match self {
            Self::Stream(_) | Self::Packets(_) => Ok(()),
            half => Err(half.lacks(call)),
        }
    }

    /// The error of a call that this form does not have.
    pub(crate) fn lacks(&self, call: &str) -> CallFailure {
        let what = match self {
            Self::Stream(_) => "carries bytes: use trespass_read and trespass_write",
            Self::Packets(_) => "carries messages: use trespass_send and trespass_recv",
            Self::Reader(_) => "is the half that reads bytes",
            Self::Writer(_) => "is the half that writes bytes",
            Self::Receiver(_) => "is the half that receives messages",
            Self::Sender(_) => "is the half that sends messages",
        };
        CallFailure::new(libc::EOPNOTSUPP, format!("{call} is refused: this connection {what}"))
    }
}

/// The kind of connection that C asks for.
pub(crate) fn kind(kind: c_int) -> Result<Kind, CallFailure> {
    match kind {
        1 => Ok(Kind::Stream),
        2 => Ok(Kind::SeqPacket),
        other => {
            let words = format!("kind = {other} is refused: use TRESPASS_STREAM or TRESPASS_SEQPACKET");
            Err(CallFailure::new(libc::EINVAL, words))
        }
    }
}

/// The directions that C asks for, in the numbers of `sys/socket.h`.
pub(crate) fn directions(how: c_int) -> Result<Shutdown, CallFailure> {
    match how {
        libc::SHUT_RD => Ok(Shutdown::Read),
        libc::SHUT_WR => Ok(Shutdown::Write),
        libc::SHUT_RDWR => Ok(Shutdown::Both),
        other => {
            let words = format!("how = {other} is refused: use SHUT_RD, SHUT_WR or SHUT_RDWR");
            Err(CallFailure::new(libc::EINVAL, words))
        }
    }
}

/// `TRESPASS_READABLE` and `TRESPASS_WRITABLE`.
const READABLE: c_uint = 1;
const WRITABLE: c_uint = 2;

pub(crate) fn readiness_of(flags: c_uint) -> Result<Readiness, CallFailure> {
    if flags & !(READABLE | WRITABLE) != 0 {
        let words = format!("{flags:#x} is refused: use TRESPASS_READABLE and TRESPASS_WRITABLE");
        return Err(CallFailure::new(libc::EINVAL, words));
    }
    Ok(match (flags & READABLE != 0, flags & WRITABLE != 0) {
        (false, false) => Readiness::NONE,
        (true, false) => Readiness::READ,
        (false, true) => Readiness::WRITE,
        (true, true) => Readiness::BOTH,
    })
}

pub(crate) fn flags_of(readiness: Readiness) -> c_uint {
    READABLE * c_uint::from(readiness.readable) + WRITABLE * c_uint::from(readiness.writable)
}

/// A time limit that C gives in milliseconds, where 0 is none.
pub(crate) fn limit(milliseconds: u64) -> Option<Duration> {
    (milliseconds != 0).then(|| Duration::from_millis(milliseconds))
}

pub(crate) fn name_of(transport: Transport) -> *const c_char {
    match transport {
        Transport::Rdma => c"RDMA".as_ptr(),
        Transport::Tcp => c"TCP".as_ptr(),
        _ => c"another transport".as_ptr(),
    }
}

/// Connects to `HOST:PORT`.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_connect(
    address: *const c_char,
    kind: c_int,
    options: *const COptions,
) -> *mut ConnectionHandle {
    call(|| {
        let kind = self::kind(kind)?;
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        let (address, config) = unsafe { (text("address", address)?, options::config(options)?) };
        let connected = match kind {
            Kind::Stream => config.connect(address)?.into(),
            Kind::SeqPacket => config.connect_seq_packet(address)?.into(),
        };
        Ok(Handle::give(connected))
    })
}

/// Closes the connection, or this half of it, and does not wait.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses the connection from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_close(connection: *mut ConnectionHandle) -> c_int {
    // SAFETY: the program passes an open handle and valid memory (`crate`).
    call(|| unsafe { Handle::take(connection) }.map(drop))
}

/// Splits a connection into two for two threads, and ends its handle.
///
/// # Safety
///
/// That of the [crate](crate#safety), and no thread uses the connection from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_split(
    connection: *mut ConnectionHandle,
    receiving: *mut *mut ConnectionHandle,
    sending: *mut *mut ConnectionHandle,
) -> c_int {
    call(|| {
        let (receiving, sending) = (result("receiving", receiving)?, result("sending", sending)?);
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        unsafe { Handle::shared(connection) }?.form.check_whole("trespass_split")?;
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let (receiver, sender) = match unsafe { Handle::take(connection) }?.form {
            Form::Stream(stream) => {
                let (reader, writer) = stream.split();
                (Form::Reader(reader), Form::Writer(writer))
            }
            Form::Packets(packets) => {
                let (receiver, sender) = packets.split();
                (Form::Receiver(receiver), Form::Sender(sender))
            }
            half => return Err(half.lacks("trespass_split")),
        };
        // SAFETY: the places are not null, and writable by the caller.
        unsafe {
            receiving.write(Handle::give(receiver.into()));
            sending.write(Handle::give(sender.into()));
        }
        Ok(())
    })
}

/// Defines functions that borrow a connection, which other threads may use at the same time.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($form:ident $(, $argument:ident: $type:ty)*) -> $c:ty { $body:expr }
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// That of the [crate](crate#safety).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(connection: *const ConnectionHandle $(, $argument: $type)*) -> $c {
            call(|| {
                // SAFETY: the program passes an open handle and valid memory (`crate`).
                let connected = unsafe { Handle::shared(connection) }?;
                let $form = &connected.form;
                $body
            })
        }
    )*};
}

calls! {
    /// Closes one direction or both.
    fn trespass_shutdown(form, how: c_int) -> c_int {{
        let how = directions(how)?;
        Ok(of_both!(form, whole => whole.shutdown(how))?)
    }}

    /// Waits until no written byte needs this process any more, in non-blocking mode, too, up
    /// to a number of milliseconds.
    fn trespass_drain(form, milliseconds: u64) -> c_int {{
        let deadline = deadline(milliseconds);
        Ok(of_both!(form, whole => whole.drain(deadline))?)
    }}

    /// Sets whether calls fail with `EAGAIN` instead of waiting.
    fn trespass_set_nonblocking(form, nonblocking: c_int) -> c_int {
        Ok(of_both!(form, whole => whole.set_nonblocking(flag(nonblocking)))?)
    }

    /// Sets how long a call waits for data, in milliseconds.
    fn trespass_set_read_timeout(form, milliseconds: u64) -> c_int {
        Ok(of_both!(form, whole => whole.set_read_timeout(limit(milliseconds)))?)
    }

    /// Sets how long a call waits for room in the send buffer.
    fn trespass_set_write_timeout(form, milliseconds: u64) -> c_int {
        Ok(of_both!(form, whole => whole.set_write_timeout(limit(milliseconds)))?)
    }

    /// Sets how long written bytes are still sent after `trespass_close`, in milliseconds.
    fn trespass_set_linger(form, milliseconds: i64) -> c_int {{
        let linger = u64::try_from(milliseconds).ok().map(Duration::from_millis);
        Ok(of_both!(form, whole => whole.set_linger(linger))?)
    }}

    /// Sets whether partial frames are held back, as TCP_CORK does, for 200 ms at most.
    fn trespass_set_cork(form, corked: c_int) -> c_int {
        Ok(of_both!(form, whole => whole.set_cork(flag(corked)))?)
    }

    /// Receives what has arrived, sends what is pending, and returns `TRESPASS_READABLE` and
    /// `TRESPASS_WRITABLE`, or 0.
    fn trespass_readiness(form) -> c_int {{
        let readiness = of_both!(form, whole => whole.readiness())?;
        Ok(flags_of(readiness) as c_int)
    }}

    /// Sets which of them wake `trespass_fd`.
    fn trespass_set_interest(form, flags: c_uint) -> c_int {{
        let readiness = readiness_of(flags)?;
        of_both!(form, whole => whole.set_interest(readiness));
        Ok(())
    }}

    /// Returns the descriptor to wait for until it is readable.
    fn trespass_fd(form) -> c_int {
        Ok(of_both!(form, whole => whole.as_raw_fd()))
    }

    /// Another descriptor, to wait for until it is writable.
    fn trespass_writable_fd(form) -> c_int {
        Ok(of_both!(form, whole => whole.writable_fd())?.as_raw_fd())
    }

    /// Returns the error of the connection that no call has returned yet, as SO_ERROR does.
    fn trespass_take_error(form) -> c_int {{
        let Some(error) = of_both!(form, whole => whole.take_error())? else { return Ok(0) };
        let failure = CallFailure::from(error);
        let errno = failure.errno();
        error::set(failure);
        Ok(errno)
    }}

    /// Writes the local address as `getsockname` does.
    fn trespass_local_addr(form, address: *mut sockaddr, length: *mut socklen_t) -> c_int {{
        let local = of_both!(form, whole => whole.local_addr())?;
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        unsafe { address::give(local, address, length) }
    }}

    /// Writes the peer's address as `getpeername` does.
    fn trespass_peer_addr(form, address: *mut sockaddr, length: *mut socklen_t) -> c_int {{
        let peer = of_both!(form, whole => whole.peer_addr())?;
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        unsafe { address::give(peer, address, length) }
    }}

    /// Names the transport, RDMA or TCP.
    fn trespass_transport(form) -> *const c_char {
        Ok(name_of(of_both!(form, whole => whole.transport())))
    }

    /// Returns the bytes of the peer's `user_data` of the options, and their number.
    fn trespass_peer_user_data(form, length: *mut usize) -> *const c_void {{
        let length = result("length", length)?;
        let bytes = of_both!(form, whole => whole.peer_user_data());
        // SAFETY: the place is not null, and writable by the caller.
        unsafe { length.write(bytes.len()) };
        // The bytes stay where they are until the connection is dropped.
        Ok(bytes.as_ptr().cast::<c_void>())
    }}
}

/// Returns why the connection uses TCP instead of RDMA: what happened, on which side, and what to
/// do.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_fallback_reason(connection: *const ConnectionHandle) -> *const c_char {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let connected = unsafe { Handle::shared(connection) }?;
        let reason = || of_both!(connected.form, whole => whole.fallback_reason().map(|reason| c_text(&reason.to_string())));
        Ok(pointer(connected.fallback.get_or_init(reason)))
    })
}

/// Returns the name of the RDMA device.
///
/// # Safety
///
/// That of the [crate](crate#safety).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trespass_device(connection: *const ConnectionHandle) -> *const c_char {
    call(|| {
        // SAFETY: the program passes an open handle and valid memory (`crate`).
        let connected = unsafe { Handle::shared(connection) }?;
        let device = || of_both!(connected.form, whole => whole.device().map(c_text));
        Ok(pointer(connected.device.get_or_init(device)))
    })
}

/// The text stays where it is until its owner is dropped.
fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

/// The time until which a call may take. One that is too far away is a century from now.
fn deadline(milliseconds: u64) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + Duration::from_millis(milliseconds).min(CENTURY)
}
