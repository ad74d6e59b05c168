//! The error of most operations: which C function failed, on what, with which arguments, and why.
//!
//! Some operations have a specific error type, because programs branch on the details: posting,
//! polling, modifying and creating queue pairs, registering memory, connecting. All others return
//! [`Error`]. It has a [kind](Error::kind), an [error number](Error::errno) and named
//! [arguments](Error::argument).
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use sideway::ibverbs::device::DeviceList;
//! use sideway::ErrorKind;
//!
//! # let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! # let context = list.first()?.open()?;
//! let error = context.query_port(7).unwrap_err();
//! assert_eq!((error.verb(), error.kind()), ("ibv_query_port", ErrorKind::Os));
//! assert_eq!(error.argument("port_num"), Some("7"));
//! println!("{error}");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::borrow::Cow;
use std::fmt;
use std::io;

use crate::ibverbs::Unsupported;
use crate::ibverbs::completion::PollCompletionQueueError;
use crate::ibverbs::device_context::DeviceContext;
use crate::limits::OpenFiles;

/// A failed operation: the C function, its object and arguments, and why it failed.
///
/// It is one pointer wide, and allocates when it is created. The errors of posting and polling
/// allocate nothing.
pub struct Error(Box<ErrorParts>);

struct ErrorParts {
    verb: &'static str,
    kind: ErrorKind,
    object: Cow<'static, str>,
    arguments: Vec<(&'static str, String)>,
    reason: Cow<'static, str>,
    remedy: Cow<'static, str>,
    cause: Cause,
}

enum Cause {
    /// The operation found the fault before it called the C function.
    NotCalled,
    Os(io::Error),
    Unsupported(Unsupported),
    /// Another error, whose text stands for this one's.
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// The kind of an [`Error`], for programs that branch on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The C function failed with an error number that has no kind below: see [`Error::errno`].
    Os,
    /// The device or its library lacks the operation: see [`Error::unsupported`]. A retry cannot
    /// succeed.
    Unsupported,
    /// A provider's library could not be loaded: the source is a
    /// [`ProviderError`](crate::ProviderError) or a [`LoadError`](crate::sys::LoadError).
    Library,
    /// Two objects were made from different contexts.
    OtherContext,
    /// Two objects belong to different protection domains.
    OtherDomain,
    /// Two objects belong to different providers.
    OtherProvider,
    /// An argument that the operation cannot take.
    InvalidArgument,
    /// A range that is not in its object.
    OutOfBounds,
    /// More than the object, the device or the C interface can hold.
    LimitExceeded,
    /// Memory for the object could not be allocated.
    OutOfMemory,
    /// The object that was asked for does not exist.
    NotFound,
    /// The object exists already.
    AlreadyExists,
    /// The object is in a state that does not allow the operation.
    InvalidState,
    /// There is no RDMA device, or the connection-manager identifier has none.
    NoDevice,
    /// The device failed or was removed.
    DeviceGone,
    /// Another program, or another object, has the address and port.
    AddressInUse,
    /// No RDMA device of this machine has the address.
    AddressNotLocal,
    /// The library does not know the address family.
    AddressFamily,
    /// No route to the destination was found.
    NoRoute,
    /// The channel was closed by this program.
    Closed,
    /// The completion queue was made without a channel.
    NoChannel,
    /// The send queue is full.
    QueueFull,
    /// Private data is longer than the message that carries it.
    PrivateDataTooLong,
    /// Another operation of this crate failed within this one: see the source.
    Nested,
    /// An environment variable that chooses or configures devices is invalid: the source is a
    /// [`ProviderError`](crate::ProviderError), or the software device's error, and its text names
    /// the variable, its value and what is allowed.
    Configuration,
}

impl Error {
    /// The C function `verb` failed with an error number; the kind is [`ErrorKind::Os`].
    ///
    /// These constructors are public for crates that add verbs, such as those of
    /// [`direct`](crate::direct).
    #[cold]
    pub fn os(verb: &'static str, source: io::Error) -> Self {
        Self::new(verb, ErrorKind::Os, Cause::Os(source))
    }

    /// The C function failed with the number in `errno`.
    #[cold]
    pub(crate) fn last_os(verb: &'static str) -> Self {
        Self::os(verb, io::Error::last_os_error())
    }

    /// The operation found a fault, and did not call the C function.
    #[cold]
    pub(crate) fn not_called(
        verb: &'static str,
        kind: ErrorKind,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(verb, kind, Cause::NotCalled).reason(reason)
    }

    /// Another error explains the failure.
    #[cold]
    pub(crate) fn caused(
        verb: &'static str,
        kind: ErrorKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::new(verb, kind, Cause::Other(source.into()))
    }

    /// The C function `verb` failed for this device. If the error number says that the device lacks
    /// the capability, the error is [`Unsupported`], otherwise [`os`](Self::os).
    #[cold]
    pub fn of_device(
        context: &DeviceContext,
        verb: &'static str,
        capability: impl Into<Cow<'static, str>>,
        source: io::Error,
    ) -> Self {
        if Unsupported::is_meant_by(&source) {
            return Unsupported::new(context, verb, capability).into();
        }
        Self::os(verb, source)
    }

    /// The C function failed independently of a device; the system may lack the capability.
    #[cold]
    pub(crate) fn of_system(verb: &'static str, capability: &'static str, source: io::Error) -> Self {
        if Unsupported::is_meant_by(&source) {
            return Unsupported::of_call(verb, capability).into();
        }
        Self::os(verb, source)
    }

    /// The device failed or was removed.
    #[cold]
    pub(crate) fn device_gone(verb: &'static str, context: &DeviceContext, source: io::Error) -> Self {
        let error = Self::os(verb, source).of_kind(ErrorKind::DeviceGone);
        error.of(format!("device {}", context.name())).reason("the device is gone")
    }

    /// Objects of different contexts were given to `verb`, which was not called.
    #[cold]
    pub fn other_context(verb: &'static str, reason: &'static str) -> Self {
        Self::not_called(verb, ErrorKind::OtherContext, reason)
    }

    fn new(verb: &'static str, kind: ErrorKind, cause: Cause) -> Self {
        let (object, reason, remedy) = Default::default();
        Self(Box::new(ErrorParts { verb, kind, object, arguments: Vec::new(), reason, remedy, cause }))
    }

    /// Sets the kind, where the number alone does not say it.
    pub(crate) fn of_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Names the object: "queue pair 0x11".
    #[must_use]
    pub fn of(mut self, object: impl Into<Cow<'static, str>>) -> Self {
        self.0.object = object.into();
        self
    }

    /// Names a queue pair as the object.
    #[must_use]
    pub fn of_queue_pair(self, qp_num: u32) -> Self {
        self.of(format!("queue pair {qp_num:#x}"))
    }

    /// Adds an argument, printed by `Display`.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.arguments.push((name, value.to_string()));
        self
    }

    /// Adds an argument, printed by `Debug`.
    #[must_use]
    pub fn debug(self, name: &'static str, value: impl fmt::Debug) -> Self {
        self.with(name, format_args!("{value:?}"))
    }

    /// Says why, in words.
    pub(crate) fn reason(mut self, reason: impl Into<Cow<'static, str>>) -> Self {
        self.0.reason = reason.into();
        self
    }

    /// Says what follows from it, or what to do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.0.remedy = remedy.into();
        self
    }

    /// The C function that failed, or that was not called because of the fault.
    pub fn verb(&self) -> &'static str {
        self.0.verb
    }

    /// The kind, to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The error number of the C function; `None` if it was not called or gave none.
    pub fn errno(&self) -> Option<i32> {
        self.os_error()?.raw_os_error()
    }

    /// The error of the C function as the system describes it.
    pub fn os_error(&self) -> Option<&io::Error> {
        match &self.0.cause {
            Cause::Os(source) => Some(source),
            _ => None,
        }
    }

    /// The missing capability, if the device or its library lacks one.
    pub fn unsupported(&self) -> Option<&Unsupported> {
        match &self.0.cause {
            Cause::Unsupported(unsupported) => Some(unsupported),
            _ => None,
        }
    }

    /// The object of the operation, such as `device mlx5_0` or `queue pair 0x11`.
    pub fn object(&self) -> Option<&str> {
        (!self.0.object.is_empty()).then_some(&*self.0.object)
    }

    /// The arguments of the operation, by name.
    pub fn arguments(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.arguments.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// The argument called `name`.
    pub fn argument(&self, name: &str) -> Option<&str> {
        self.arguments().find(|argument| argument.0 == name).map(|argument| argument.1)
    }
}

impl From<Unsupported> for Error {
    fn from(unsupported: Unsupported) -> Self {
        let object = match unsupported.device.as_str() {
            "" => String::new(),
            device => format!("device {device}"),
        };
        Self::new(unsupported.verb, ErrorKind::Unsupported, Cause::Unsupported(unsupported)).of(object)
    }
}

impl From<PollCompletionQueueError> for Error {
    fn from(error: PollCompletionQueueError) -> Self {
        Self::caused(error.verb, ErrorKind::Nested, error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorParts { verb, object, arguments, reason, remedy, cause, .. } = &*self.0;
        match cause {
            Cause::Unsupported(unsupported) => write!(f, "{unsupported}")?,
            Cause::Other(other) if reason.is_empty() => write!(f, "{other}")?,
            Cause::Other(other) => write!(f, "{verb} was not called for {object}: {reason}: {other}")?,
            Cause::NotCalled | Cause::Os(_) => {
                let called = matches!(cause, Cause::Os(_));
                write!(f, "{verb} {}", if called { "failed" } else { "was not called" })?;
                if !object.is_empty() {
                    write!(f, " for {object}")?;
                }
                for (n, (name, value)) in arguments.iter().enumerate() {
                    write!(f, "{}{name} {value}", if n == 0 { " (" } else { ", " })?;
                }
                f.write_str(if arguments.is_empty() { ": " } else { "): " })?;
                match cause {
                    Cause::Os(source) if reason.is_empty() => write!(f, "{source}{}", OpenFiles(source))?,
                    Cause::Os(source) => write!(f, "{reason} ({source}){}", OpenFiles(source))?,
                    _ => f.write_str(reason)?,
                }
            }
        }
        match cause {
            Cause::NotCalled | Cause::Os(_) if !remedy.is_empty() => write!(f, "; {remedy}"),
            _ => Ok(()),
        }
    }
}

/// `{:?}` prints the text of `Display`, because a `main` that returns an error prints its `Debug`,
/// and so do `unwrap` and `expect`. `{:#?}` prints the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        let mut output = f.debug_struct("Error");
        output.field("verb", &self.0.verb).field("kind", &self.0.kind);
        if let Some(object) = self.object() {
            output.field("object", &object);
        }
        for (name, value) in &self.0.arguments {
            output.field(name, &format_args!("{value}"));
        }
        if !self.0.reason.is_empty() {
            output.field("reason", &self.0.reason);
        }
        if !self.0.remedy.is_empty() {
            output.field("remedy", &self.0.remedy);
        }
        match &self.0.cause {
            Cause::NotCalled => {}
            Cause::Os(source) => drop(output.field("source", source)),
            Cause::Unsupported(source) => drop(output.field("source", source)),
            Cause::Other(source) => drop(output.field("source", source)),
        }
        output.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.cause {
            Cause::NotCalled => None,
            Cause::Os(source) => Some(source),
            Cause::Unsupported(source) => Some(source),
            Cause::Other(source) => Some(&**source),
        }
    }
}

/// An operation that consumes its object failed, and gives the object back: closing, detaching or
/// splitting.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct ConsumeError<T: fmt::Debug> {
    /// The object, which can be used as before.
    pub object: T,
    /// Why the operation failed.
    #[source]
    pub error: Error,
}

impl<T: fmt::Debug> fmt::Debug for ConsumeError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn the_text_names_verb_object_arguments_cause_and_remedy() {
        let error = Error::os("ibv_do", io::Error::from_raw_os_error(libc::EINVAL))
            .of("queue pair 0x11")
            .with("length", 7)
            .with("index", 1)
            .reason("it is too long")
            .remedy("use less");
        let text = "ibv_do failed for queue pair 0x11 (length 7, index 1): it is too long (Invalid argument \
                    (os error 22)); use less";
        assert_eq!(error.to_string(), text);
        assert_eq!((error.errno(), error.object()), (Some(libc::EINVAL), Some("queue pair 0x11")));
        assert_eq!((error.argument("index"), error.argument("size")), (Some("1"), None));
        assert!(error.source().is_some_and(|source| source.is::<io::Error>()));
        let error = Error::other_context("ibv_do", "the flow is of another context");
        assert_eq!(error.to_string(), "ibv_do was not called: the flow is of another context");
        assert!((error.errno(), error.object()) == (None, None) && error.source().is_none());
    }

    #[test]
    fn a_missing_capability_keeps_its_text() {
        let error = Error::from(Unsupported::of("soft0".into(), "ibv_do", "doing"));
        assert_eq!(error.to_string(), "device soft0 has no doing (ibv_do)");
        assert_eq!((error.kind(), error.verb()), (ErrorKind::Unsupported, "ibv_do"));
        assert_eq!(error.unsupported().map(|unsupported| &*unsupported.device), Some("soft0"));
    }

    #[test]
    fn a_main_that_returns_an_error_prints_its_text() {
        let error = Error::os("ibv_do", io::Error::from_raw_os_error(libc::EINVAL)).remedy("use less");
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(format!("{error:?}").ends_with("; use less"), "{error}");
        let fields = format!("{error:#?}");
        for field in ["verb: \"ibv_do\"", "kind: Os", "remedy: \"use less\"", "code: 22"] {
            assert!(fields.contains(field), "no {field} in {fields}");
        }
        let consumed = ConsumeError { object: (), error };
        assert_eq!(format!("{consumed:?}"), consumed.to_string());
        let kept = crate::provider::ProviderError::Unknown("rxe".into());
        assert_eq!(format!("{kept:?}"), kept.to_string());
    }

    #[test]
    fn an_error_is_one_pointer_wide() {
        assert_eq!(size_of::<Result<(), Error>>(), size_of::<usize>());
    }
}
