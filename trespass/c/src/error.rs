//! Failures: `errno`, and the text of the calling thread's latest one.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::io::{self, ErrorKind};

/// Why a call failed.
pub(crate) struct CallFailure {
    errno: c_int,
    cause: FailureText,
}

/// The text, which is made when the program asks for it: a non-blocking call that would block costs
/// no formatting.
enum FailureText {
    Error(io::Error),
    Words(String),
}

impl CallFailure {
    pub(crate) fn new(errno: c_int, words: impl Into<String>) -> Self {
        Self { errno, cause: FailureText::Words(words.into()) }
    }

    pub(crate) fn errno(&self) -> c_int {
        self.errno
    }

    pub(crate) fn text(&self) -> CString {
        let text = match &self.cause {
            FailureText::Error(error) => error.to_string(),
            FailureText::Words(words) => words.clone(),
        };
        c_text(&text)
    }
}

impl From<io::Error> for CallFailure {
    fn from(error: io::Error) -> Self {
        Self { errno: errno_of(&error), cause: FailureText::Error(error) }
    }
}

impl From<trespass::ConfigError> for CallFailure {
    fn from(error: trespass::ConfigError) -> Self {
        io::Error::from(error).into()
    }
}

/// A text of trespass for C. None has a zero byte but what a peer or a variable brought in.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// The number of an error: the system's, or that of its kind.
///
/// `ENODATA` is the end of the messages, which has no number among those of sockets, because
/// a length of 0 is an empty message.
fn errno_of(error: &io::Error) -> c_int {
    if let Some(errno) = error.raw_os_error() {
        return errno;
    }
    match error.kind() {
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::UnexpectedEof => libc::ENODATA,
        ErrorKind::ConnectionReset => libc::ECONNRESET,
        ErrorKind::ConnectionAborted => libc::ECONNABORTED,
        ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        ErrorKind::BrokenPipe => libc::EPIPE,
        ErrorKind::NotConnected => libc::ENOTCONN,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::AddrInUse => libc::EADDRINUSE,
        ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        ErrorKind::NetworkDown => libc::ENETDOWN,
        ErrorKind::NetworkUnreachable => libc::ENETUNREACH,
        ErrorKind::HostUnreachable => libc::EHOSTUNREACH,
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::InvalidData => libc::EPROTO,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::Interrupted => libc::EINTR,
        _ => libc::EIO,
    }
}

/// The latest failure of a thread.
#[derive(Default)]
struct Latest {
    failure: Option<CallFailure>,
    /// Its text, once the program has asked for it.
    text: Option<CString>,
}

thread_local! {
    static LATEST: RefCell<Latest> = RefCell::new(Latest::default());
}

/// Reports a failure to the calling thread.
pub(crate) fn set(failure: CallFailure) {
    let errno = failure.errno;
    // A call from a destructor of the thread's end has no place for the text, but has `errno`.
    let _ = LATEST.try_with(|latest| *latest.borrow_mut() = Latest { failure: Some(failure), text: None });
    // SAFETY: the C library returns the address of the calling thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns the text of the calling thread's latest failure, which is empty before the first.
#[unsafe(no_mangle)]
pub extern "C" fn trespass_error() -> *const c_char {
    let text = LATEST.try_with(|latest| {
        let Latest { failure, text } = &mut *latest.borrow_mut();
        match failure {
            Some(failure) => text.get_or_insert_with(|| failure.text()).as_ptr(),
            None => c"".as_ptr(),
        }
    });
    text.unwrap_or(c"".as_ptr())
}

/// Returns the version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn trespass_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
