//! Errors of posting lists of work requests.

use std::io;

use super::work_request::{DestinationKind, SendRequest};
use super::{QueuePairControl, QueuePairState, WorkRequestOperationType};

/// The reason why a list cannot be posted, found while it was built.
///
/// It holds only what is known at that point. To find out more would take a call, and a loop with a
/// call keeps less in registers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    /// The pair does not have the operation, the queue has no place for it, or the inline data is
    /// too long.
    Refused {
        operation: WorkRequestOperationType,
        to: DestinationKind,
        inline: usize,
    },
    TooManyEntries {
        given: usize,
        limit: u32,
    },
    /// An object that the request refers to belongs to another context.
    OtherContext,
    /// A work request can bind only windows of type 2.
    WindowOfType1,
    /// The pair does not have this operation without a buffer, or the queue has no place for it.
    NotThere {
        operation: WorkRequestOperationType,
    },
    /// The queue has no place for a request without a buffer.
    NoPlace,
    /// The library detects a full queue too late, so that safe code must not append requests.
    FullQueueUnnoticed,
    /// The value of an atomic write exceeds the pair's inline data.
    NoInline {
        given: usize,
        limit: u32,
    },
}

impl Failure {
    #[inline(always)]
    pub(super) const fn of(request: &SendRequest, inline: usize) -> Self {
        Self::Refused { operation: request.operation.kind(), to: request.to.kind(), inline }
    }
}

/// A list of work requests could not be posted.
///
/// It owns nothing, so that a result of posting costs no more than its comparison.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostSendError {
    /// The queue pair was not made for this operation, or its type does not have it.
    #[error(
        "work request {index}: the queue pair cannot {operation}; name it in `setup_send_ops_flags`, and check \
         that the queue pair's type has it"
    )]
    UnsupportedOperation {
        /// Which work request of the list, from 0.
        index: usize,
        /// The operation that the work request asked for.
        operation: WorkRequestOperationType,
    },
    /// The queue pair's peer is not enough to say where the request goes, and the request does not,
    /// or otherwise than this type needs.
    #[error(
        "work request {index}: a {operation} of this queue pair needs a destination; name it before the operation \
         (`setup_ud_address` of a datagram, `setup_xrc_srqn` of an extended reliable connection, or that of its type)"
    )]
    MissingDestination {
        /// Which work request of the list, from 0.
        index: usize,
        /// The operation that the work request asked for.
        operation: WorkRequestOperationType,
    },
    /// The request says where it goes, and the queue pair's type does not have such destinations.
    #[error(
        "work request {index}: a {operation} of this queue pair goes to its peer; it takes no other destination"
    )]
    UnexpectedDestination {
        /// Which work request of the list, from 0.
        index: usize,
        /// The operation that the work request asked for.
        operation: WorkRequestOperationType,
    },
    /// What the request names, an address handle, or a memory window or its region, belongs to
    /// another open device than the queue pair.
    #[error("work request {index}: what it names was made from another context than the queue pair")]
    OtherContext {
        /// Which work request of the list, from 0.
        index: usize,
    },
    /// The memory window is of type 1.
    #[error("work request {index}: a memory window of type 1 is bound by `MemoryWindow::bind`")]
    WindowOfType1 {
        /// Which work request of the list, from 0.
        index: usize,
    },
    /// The request has no buffer, and the queue pair's library finds out that its queue is full
    /// only after it has begun to write over an outstanding request, so that safe code must not
    /// fill it: an extended pair of mlx5.
    #[error(
        "work request {index} has no buffer: extended queue pairs of this device do not notice in time that they are full; \
         promise a place for it (`setup_sge_list` of an empty list, which is unsafe), or post it to a classic one \
         (`QueuePairBuilder::build`)"
    )]
    FullQueueUnnoticed {
        /// Which work request of the list, from 0.
        index: usize,
    },
    /// The request names a stream, and the DC initiator was made without streams.
    #[cfg(feature = "mlx5")]
    #[error("work request {index} names a stream; the DC initiator was made without (`setup_streams`)")]
    NoStreams {
        /// Which work request of the list, from 0.
        index: usize,
    },
    /// The slice is of another pool than the list's.
    #[error("work request {index}: a slice of another pool than the one that the list was attached to")]
    ForeignSlice {
        /// Which work request of the list, from 0.
        index: usize,
    },
    /// The list is longer than the send queue.
    #[error("more than {limit} work requests in one list: the send queue (max_send_wr) holds no more")]
    TooManyWorkRequests {
        /// How many the queue holds.
        limit: usize,
    },
    /// More pieces of memory than the queue pair was made for.
    #[error(
        "work request {index}: {given} scatter/gather entries; the queue pair's limit (max_send_sge) is {limit}"
    )]
    TooManyScatterGatherEntries {
        /// Which work request of the list, from 0.
        index: usize,
        /// The number that the work request has.
        given: usize,
        /// The largest number that the queue or object was made for.
        limit: usize,
    },
    /// More inline data than the queue pair was made for.
    #[error(
        "work request {index}: {given} bytes of inline data; the queue pair's limit (max_inline_data) is {limit}"
    )]
    InlineDataTooLong {
        /// Which work request of the list, from 0.
        index: usize,
        /// How many bytes there were.
        given: usize,
        /// The largest number that the queue or object was made for.
        limit: usize,
    },
    /// The queue is full (`ENOMEM`; from some libraries `ENOSPC`): poll completions, then post
    /// again.
    #[error("the send queue is full ({}){}", Errno(*.errno), AtIndex(*.index))]
    NotEnoughResources {
        /// The first work request that was not posted, where the device says; those before it were.
        index: Option<usize>,
        /// The library's error number.
        errno: i32,
    },
    /// A work request is not valid (`EINVAL`), or the queue pair is not in a state to send.
    #[error("invalid work request, or the queue pair is not ready to send ({}){}", Errno(*.errno), AtIndex(*.index))]
    InvalidWorkRequest {
        /// The first work request that was not posted, where the device says; those before it were.
        index: Option<usize>,
        /// The library's error number.
        errno: i32,
    },
    /// The library refused with an error number that has no variant of its own.
    #[error("posting failed: {}{}", Errno(*.errno), AtIndex(*.index))]
    Ibverbs {
        /// The first work request that was not posted, where the device says; those before it were.
        index: Option<usize>,
        /// The library's error number.
        errno: i32,
    },
    /// The request is one of mlx5's own, and cannot be posted.
    #[cfg(feature = "mlx5")]
    #[error("work request {index}: {reason}")]
    Direct {
        /// Which work request of the list, from 0.
        index: usize,
        /// The fault in the request of mlx5's own.
        reason: crate::mlx5::DirectRequestError,
    },
    /// The queue pair is not in a state to send (`EINVAL`).
    #[error(
        "the queue pair is in {state}: connect it first (`connect`, or `modify` it to ReadyToSend) ({}){}",
        Errno(*.errno),
        AtIndex(*.index)
    )]
    NotConnected {
        /// The queue pair's state: `Reset`, `Init` or `ReadyToReceive`.
        state: QueuePairState,
        /// The first work request that was not posted, where the device says; those before it were.
        index: Option<usize>,
        /// The library's error number.
        errno: i32,
    },
    /// A request of another vendor's [direct verbs](crate::direct) cannot be posted. Nothing of the
    /// list was posted.
    #[error("work request {index}: {reason}")]
    OfVendor {
        /// Which work request of the list, from 0.
        index: usize,
        /// The fault and the remedy, in the words of the vendor's crate.
        reason: &'static str,
    },
}

debug_as_text!(PostSendError);

/// Displays an error number in words.
pub(super) struct Errno(pub(super) i32);

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// Displays the position at which posting stopped.
pub(super) struct AtIndex(pub(super) Option<usize>);

impl std::fmt::Display for AtIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(index) => write!(f, " at work request {index}; those before it were posted"),
            None => f.write_str("; the device does not say how much of the list was posted"),
        }
    }
}

impl PostSendError {
    #[cold]
    pub(super) fn from_errno(
        result: core::ffi::c_int,
        index: Option<usize>,
        control: &QueuePairControl,
    ) -> Self {
        use QueuePairState as Q;
        match crate::ibverbs::os_error(result).raw_os_error().unwrap_or(result) {
            errno @ (libc::ENOMEM | libc::ENOSPC) => Self::NotEnoughResources { index, errno },
            errno @ libc::EINVAL => match control.state() {
                Ok(state @ (Q::Reset | Q::Init | Q::ReadyToReceive)) => {
                    Self::NotConnected { state, index, errno }
                }
                _ => Self::InvalidWorkRequest { index, errno },
            },
            errno => Self::Ibverbs { index, errno },
        }
    }

    /// The index, from 0, of the first work request that was wrong or not posted, if known.
    pub fn bad_work_request(&self) -> Option<usize> {
        match self {
            #[cfg(feature = "mlx5")]
            Self::NoStreams { index } | Self::Direct { index, .. } => Some(*index),
            Self::UnsupportedOperation { index, .. }
            | Self::MissingDestination { index, .. }
            | Self::UnexpectedDestination { index, .. }
            | Self::OtherContext { index }
            | Self::WindowOfType1 { index }
            | Self::FullQueueUnnoticed { index }
            | Self::ForeignSlice { index }
            | Self::OfVendor { index, .. }
            | Self::TooManyScatterGatherEntries { index, .. }
            | Self::InlineDataTooLong { index, .. } => Some(*index),
            Self::TooManyWorkRequests { limit } => Some(*limit),
            Self::NotEnoughResources { index, .. }
            | Self::NotConnected { index, .. }
            | Self::InvalidWorkRequest { index, .. }
            | Self::Ibverbs { index, .. } => *index,
        }
    }

    /// The number of the list's work requests that were posted nevertheless. It is 0 if the list
    /// was rejected before it reached the device, and the index of the bad request if the device
    /// reports it. `None` if the device does not report it.
    pub fn posted(&self) -> Option<usize> {
        match self {
            Self::NotEnoughResources { index, .. }
            | Self::NotConnected { index, .. }
            | Self::InvalidWorkRequest { index, .. }
            | Self::Ibverbs { index, .. } => *index,
            _ => Some(0),
        }
    }

    /// Whether the queue was full, so that posting may succeed after polling completions.
    pub fn is_queue_full(&self) -> bool {
        matches!(self, Self::NotEnoughResources { .. })
    }
}
