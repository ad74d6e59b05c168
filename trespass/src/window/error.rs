//! Why an operation on a window, or a key, was refused.

use std::io;
use std::time::Duration;

use super::key::Access;
use super::offered::Protection;
use crate::mux::MuxError;

/// Why bytes are not a key that this version can use.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A key has another length.
    #[error("{len} bytes are too few or too many for the key of a window: a part may be missing")]
    Length {
        /// The number of bytes.
        len: usize,
    },
    /// The bytes begin with something else.
    #[error("the bytes are not the key of a window")]
    NoKey,
    /// The key comes from a version of this crate that writes other keys.
    #[error("the key has version {version}, and this side knows {known}: use the same version of trespass")]
    Version {
        /// The version of the key.
        version: u16,
        /// The version that this side knows.
        known: u16,
    },
    /// The memory is of a kind that this version does not know.
    #[error("the memory has the kind {kind}, which this side does not know: use a later version of trespass")]
    Kind {
        /// The kind in the key.
        kind: u8,
    },
    /// The checksum belongs to other bytes.
    #[error("the key is damaged: its checksum is that of other bytes")]
    Damaged,
    /// No memory has this address and length.
    #[error("the key names {len} bytes at {base:#x}, where no memory can be")]
    Range {
        /// The address.
        base: u64,
        /// The length.
        len: u64,
    },
    /// The window belongs to a process other than the peer.
    #[error("the window belongs to a process that is not the peer of this connection")]
    OtherOwner,
    /// The window was offered over another connection to the same process.
    #[error(
        "the window was offered over connection {offered} of its process, and this is connection {used}: \
         have it offered again"
    )]
    OtherConnection {
        /// The connection of the offer, counted in the owner's process.
        offered: u64,
        /// This connection.
        used: u64,
    },
}

/// Why an operation on a window failed. It converts into an [`io::Error`] of its
/// [kind](Self::kind).
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The key cannot be used over this connection.
    #[error("the key cannot be used: {0}")]
    Key(#[from] KeyError),
    /// The owner has revoked the window, or its lifetime is over.
    #[error("window {region} of generation {generation} was revoked by its owner, or its lifetime is over")]
    Revoked {
        /// The window's number.
        region: u32,
        /// The generation of the key.
        generation: u32,
    },
    /// The owner has never offered such a window over this connection.
    #[error("the owner has offered no window {region} of generation {generation} over this connection")]
    Unknown {
        /// The window's number.
        region: u32,
        /// The generation of the key.
        generation: u32,
    },
    /// The range is not within the window.
    #[error("{len} bytes at offset {offset} are not within the {window} bytes of the window")]
    Range {
        /// The offset of the operation.
        offset: u64,
        /// Its length.
        len: u64,
        /// The window's length.
        window: u64,
    },
    /// The window was not offered for this operation.
    #[error("the window was offered for {offered}, and the operation needs {needed}")]
    Access {
        /// The operations that the owner allows.
        offered: Access,
        /// The one that was asked for.
        needed: Access,
    },
    /// An atomic operation needs an address that is a multiple of 8.
    #[error("an atomic operation needs an address that is a multiple of 8, and offset {offset} has none")]
    Misaligned {
        /// The offset of the operation.
        offset: u64,
    },
    /// The pieces of a vectored or strided operation do not match its bytes.
    #[error("the pieces have {pieces} bytes, and the buffer has {bytes}")]
    Pieces {
        /// The bytes of all pieces.
        pieces: u64,
        /// The bytes of the buffer.
        bytes: u64,
    },
    /// A message, or an operation that does not wait, is longer than it may be.
    #[error("{len} bytes at once: at most {most} are allowed, so use several")]
    TooLong {
        /// The length of the operation.
        len: usize,
        /// The longest one.
        most: usize,
    },
    /// The peer's program takes no notifications or messages.
    #[error(
        "the peer's program has not taken {waiting} notifications, or as many bytes of messages: try \
         again later"
    )]
    Full {
        /// The notifications that wait, or the bytes of messages.
        waiting: u64,
    },
    /// The time of the call has passed. Whether an operation was performed is not known.
    #[error("nothing came within {after:?}: whether an operation was performed is not known")]
    TimedOut {
        /// The time that the call had.
        after: Duration,
    },
    /// A window needs at least a byte, and at most those of its block.
    #[error("a window of {len} bytes of a block of {block}: it needs at least one, and at most all of them")]
    Length {
        /// The length of the window.
        len: usize,
        /// The length of the block.
        block: usize,
    },
    /// The window is protected in another way than the program requires.
    #[error("the window would be protected by {got:?}, and {required:?} is required: {why}")]
    Protection {
        /// What [`WindowConfig::protection`](super::WindowConfig::protection) requires.
        required: Protection,
        /// What there is.
        got: Protection,
        /// Why there is no other.
        why: &'static str,
    },
    /// A device has not ended the registration of a revoked window. The connection keeps the memory
    /// until it does.
    #[error("a device may still reach the revoked window: the connection keeps its memory until it cannot")]
    StillRegistered,
    /// A device of the owner performs the atomic operations of this window. Those of the processor are
    /// not atomic among them.
    #[error(
        "a device of the owner performs the atomic operations of this window, which do not mix with \
         those of a processor: offer it with WindowConfig::protection(Protection::Process), or for \
         other operations"
    )]
    AtomicsOfDevice,
    /// A device of the owner cannot be reached now, and nothing was performed: the one that performs the
    /// window's atomic operations, or one that still serves a queue pair that has failed.
    #[error(
        "a device of the owner cannot be reached now, and nothing was performed: try again, or have the \
         window offered again"
    )]
    NoPath,
    /// A device or a path has failed. Whether the operation was performed is not known.
    #[error("a device or a path failed: whether the operation was performed is not known")]
    OutcomeUnknown,
    /// The connection has as many windows as it can have.
    #[error("the connection has {most} windows: revoke one before the next is offered")]
    TooMany {
        /// The largest number.
        most: usize,
    },
    /// The connection has failed, or the peer has closed it. Whether operations without an answer were
    /// performed is not known.
    #[error("{0}")]
    Connection(#[from] MuxError),
    /// The peer sent what no side with windows sends.
    #[error("the peer breaks the protocol of windows: {what}")]
    Protocol {
        /// What it sent.
        what: &'static str,
    },
}

debug_as_text!(KeyError, WindowError);

impl WindowError {
    /// The kind of the error as an [`io::Error`].
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Key(_) | Self::Range { .. } | Self::Misaligned { .. } => io::ErrorKind::InvalidInput,
            Self::Pieces { .. } | Self::Length { .. } | Self::TooLong { .. } => io::ErrorKind::InvalidInput,
            Self::Revoked { .. } | Self::Unknown { .. } => io::ErrorKind::NotFound,
            Self::Access { .. } => io::ErrorKind::PermissionDenied,
            Self::Full { .. } | Self::TooMany { .. } => io::ErrorKind::ResourceBusy,
            Self::Protection { .. } | Self::AtomicsOfDevice => io::ErrorKind::Unsupported,
            Self::StillRegistered => io::ErrorKind::ResourceBusy,
            Self::NoPath => io::ErrorKind::HostUnreachable,
            Self::OutcomeUnknown => io::ErrorKind::ConnectionAborted,
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::Connection(error) => error.kind(),
            Self::Protocol { .. } => io::ErrorKind::InvalidData,
        }
    }
}

impl From<WindowError> for io::Error {
    fn from(error: WindowError) -> Self {
        Self::new(error.kind(), error)
    }
}
