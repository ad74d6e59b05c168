//! A work request while it is built: flags, operation and destination.
//!
//! The handles pass it from step to step in registers. It is written into the queue as a whole,
//! when its buffer is set or its handle is dropped. So a queue never holds an incomplete request,
//! and the checks of a request run once.

use std::ptr::NonNull;

use rdma_mummy_sys::types::{
    ibv_ah, ibv_context, ibv_mw, ibv_mw_bind_info, ibv_mw_type, ibv_send_flags as F, ibv_wr_opcode as O,
};

use super::post_error::{Failure, PostSendError};
use super::{QueuePairType, SendOperationFlags};

c_flags! {
    /// Flags of a work request (`ibv_send_flags`).
    pub struct WorkRequestFlags(u32) {
        /// The request waits for all earlier READs and atomics.
        Fence = F::IBV_SEND_FENCE.0,
        /// The request produces a completion; without this flag only a failure does.
        Signaled = F::IBV_SEND_SIGNALED.0,
        /// The request raises an event at the peer, if the peer waits for solicited events.
        Solicited = F::IBV_SEND_SOLICITED.0,
        /// The device computes the checksums of the IP packet.
        IpChecksum = F::IBV_SEND_IP_CSUM.0,
    }
}

impl WorkRequestFlags {
    /// The flags for C, without those that depend on the buffer. With the inline flag, the library
    /// would read a buffer that only the device may read.
    #[inline]
    pub(super) const fn raw(self) -> u32 {
        self.bits() & !F::IBV_SEND_INLINE.0
    }
}

impl WorkRequestFlags {
    /// The flags for `ibv_bind_mw`, which accepts no others.
    pub(crate) const fn bind(self) -> u32 {
        self.bits() & (F::IBV_SEND_FENCE.0 | F::IBV_SEND_SIGNALED.0 | F::IBV_SEND_SOLICITED.0)
    }
}

c_enum! {
    /// The operation of a work request (`ibv_wr_opcode`).
    pub struct WorkRequestOperationType(u32) {
        /// RDMA WRITE.
        Write = O::IBV_WR_RDMA_WRITE.0,
        /// RDMA WRITE with immediate data.
        WriteWithImmediate = O::IBV_WR_RDMA_WRITE_WITH_IMM.0,
        /// SEND without immediate data (`IBV_WR_SEND`).
        Send = O::IBV_WR_SEND.0,
        /// SEND with immediate data.
        SendWithImmediate = O::IBV_WR_SEND_WITH_IMM.0,
        /// RDMA READ.
        Read = O::IBV_WR_RDMA_READ.0,
        /// Compare and swap of 8 bytes in remote memory (`IBV_WR_ATOMIC_CMP_AND_SWP`).
        AtomicCompareAndSwap = O::IBV_WR_ATOMIC_CMP_AND_SWP.0,
        /// Fetch and add of 8 bytes in remote memory (`IBV_WR_ATOMIC_FETCH_AND_ADD`).
        AtomicFetchAndAdd = O::IBV_WR_ATOMIC_FETCH_AND_ADD.0,
        /// Local invalidate: invalidates a local key.
        LocalInvalidate = O::IBV_WR_LOCAL_INV.0,
        /// Binds a memory window to a range of a region (`IBV_WR_BIND_MW`).
        BindMemoryWindow = O::IBV_WR_BIND_MW.0,
        /// SEND that invalidates a key of the peer.
        SendWithInvalidate = O::IBV_WR_SEND_WITH_INV.0,
        /// RDMA FLUSH: makes earlier writes visible or persistent (`IBV_WR_FLUSH`).
        Flush = O::IBV_WR_FLUSH.0,
        /// RDMA ATOMIC WRITE of 8 bytes (`IBV_WR_ATOMIC_WRITE`).
        AtomicWrite = O::IBV_WR_ATOMIC_WRITE.0,
    }
}

display_as_debug!(WorkRequestOperationType);

/// A work request without its buffer.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest {
    pub(super) wr_id: u64,
    pub(super) flags: WorkRequestFlags,
    pub(super) to: Destination,
    pub(super) operation: SendOperation,
}

impl SendRequest {
    /// The operation, without its arguments.
    #[inline(always)]
    pub(crate) fn kind(&self) -> WorkRequestOperationType {
        self.operation.kind()
    }
}

/// The destination of a work request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Destination {
    /// The peer that the pair is connected to.
    Peer,
    /// Any datagram queue pair.
    Address(Address),
    /// A shared receive queue at the other end, by its number.
    Queue(u32),
}

/// A [`Destination`] without its values.
#[derive(Clone, Copy, Debug)]
pub(super) enum DestinationKind {
    Peer,
    Address,
    Queue,
}

impl Destination {
    #[inline(always)]
    pub(super) const fn kind(&self) -> DestinationKind {
        match self {
            Self::Peer => DestinationKind::Peer,
            Self::Address(_) => DestinationKind::Address,
            Self::Queue(_) => DestinationKind::Queue,
        }
    }
}

/// The destination of a datagram. The handle lives until the list is posted, because
/// `setup_ud_address` borrows it for that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) ah: NonNull<ibv_ah>,
    pub(super) remote_qpn: u32,
    pub(super) remote_qkey: u32,
}

impl Address {
    /// Whether the handle belongs to this context, which libraries do not check.
    #[inline(always)]
    pub(super) fn is_of(&self, context: *mut ibv_context) -> bool {
        // SAFETY: the handle is borrowed while the list is built, so it is alive; every release's
        // struct has this field.
        unsafe { (*self.ah.as_ptr()).context == context }
    }
}

/// An operation with its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) enum SendOperation {
    Send,
    SendWithImmediate { imm_data: u32 },
    SendWithInvalidate { rkey: u32 },
    Write(Remote),
    WriteWithImmediate { remote: Remote, imm_data: u32 },
    Read(Remote),
    CompareAndSwap { remote: Remote, compare: u64, swap: u64 },
    FetchAndAdd { remote: Remote, add: u64 },
}

/// A range of the peer's memory: address and key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) rkey: u32,
    pub(super) addr: u64,
}

impl SendOperation {
    #[inline(always)]
    pub(super) const fn kind(&self) -> WorkRequestOperationType {
        ALL[self.index()].0
    }

    /// The operation's index in [`ALL`].
    #[inline(always)]
    pub(super) const fn index(&self) -> usize {
        match self {
            Self::Send => 0,
            Self::SendWithImmediate { .. } => 1,
            Self::Write(_) => 2,
            Self::WriteWithImmediate { .. } => 3,
            Self::Read(_) => 4,
            Self::CompareAndSwap { .. } => 5,
            Self::FetchAndAdd { .. } => 6,
            Self::SendWithInvalidate { .. } => 7,
        }
    }
}

/// Every operation, and the flag with which a queue pair must have been made to support it.
const ALL: [(WorkRequestOperationType, SendOperationFlags); 8] = [
    (WorkRequestOperationType::Send, SendOperationFlags::Send),
    (WorkRequestOperationType::SendWithImmediate, SendOperationFlags::SendWithImmediate),
    (WorkRequestOperationType::Write, SendOperationFlags::Write),
    (WorkRequestOperationType::WriteWithImmediate, SendOperationFlags::WriteWithImmediate),
    (WorkRequestOperationType::Read, SendOperationFlags::Read),
    (WorkRequestOperationType::AtomicCompareAndSwap, SendOperationFlags::AtomicCompareAndSwap),
    (WorkRequestOperationType::AtomicFetchAndAdd, SendOperationFlags::AtomicFetchAndAdd),
    (WorkRequestOperationType::SendWithInvalidate, SendOperationFlags::SendWithInvalidate),
];

/// A work request without a buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufferlessRequest {
    pub(super) wr_id: u64,
    pub(super) flags: WorkRequestFlags,
    pub(super) operation: BufferlessOperation,
}

/// An operation without a buffer, with its arguments. It is separate from [`SendOperation`], so
/// that operations with a buffer pay nothing for these.
#[derive(Clone, Copy, Debug)]
pub(super) enum BufferlessOperation {
    LocalInvalidate { rkey: u32 },
    Bind { mw: NonNull<ibv_mw>, rkey: u32, info: ibv_mw_bind_info },
    AtomicWrite { remote: Remote, value: u64 },
    Flush { remote: Remote, len: usize, placement: u8, selectivity: u8 },
}

impl BufferlessOperation {
    pub(super) const fn kind(&self) -> WorkRequestOperationType {
        match self {
            Self::LocalInvalidate { .. } => WorkRequestOperationType::LocalInvalidate,
            Self::Bind { .. } => WorkRequestOperationType::BindMemoryWindow,
            Self::AtomicWrite { .. } => WorkRequestOperationType::AtomicWrite,
            Self::Flush { .. } => WorkRequestOperationType::Flush,
        }
    }

    /// The flag with which a queue pair must have been made to support it.
    const fn flag(&self) -> SendOperationFlags {
        match self {
            Self::LocalInvalidate { .. } => SendOperationFlags::LocalInvalidate,
            Self::Bind { .. } => SendOperationFlags::BindMemoryWindow,
            Self::AtomicWrite { .. } => SendOperationFlags::AtomicWrite,
            Self::Flush { .. } => SendOperationFlags::Flush,
        }
    }

    /// Checks whether a queue pair of this context, with these operations, can execute it.
    ///
    /// # Safety
    ///
    /// The objects that the operation refers to must be alive.
    pub(super) unsafe fn check(
        &self,
        usable: SendOperationFlags,
        context: *mut ibv_context,
    ) -> Result<(), Failure> {
        if !usable.contains(self.flag()) {
            return Err(Failure::NotThere { operation: self.kind() });
        }
        if let Self::Bind { mw, info, .. } = self {
            // SAFETY: the caller guarantees that both are alive, and every release's structs have
            // these fields.
            let (of_window, of_region) = unsafe { ((*mw.as_ptr()).context, (*info.mr).context) };
            if of_window != context || of_region != context {
                return Err(Failure::OtherContext);
            }
            // SAFETY: the caller guarantees (`# Safety`) that the window is alive, and every
            // release's struct has this field.
            if unsafe { (*mw.as_ptr()).type_ } != ibv_mw_type::IBV_MW_TYPE_2 {
                return Err(Failure::WindowOfType1);
            }
        }
        Ok(())
    }
}

/// For each operation, the limit of inline data plus one, or 0 if the pair does not have the
/// operation. So one comparison decides whether a request is possible.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlineLimits([u32; ALL.len()]);

impl InlineLimits {
    const NOTHING: Self = Self([0; ALL.len()]);

    fn new(usable: SendOperationFlags, max_inline: u32) -> Self {
        Self(ALL.map(|(_, flag)| if usable.contains(flag) { max_inline.saturating_add(1) } else { 0 }))
    }

    /// Whether a request may have `inline` bytes of inline data. With `inline` 0: whether the pair
    /// has the operation.
    #[inline(always)]
    pub(super) fn has(&self, operation: &SendOperation, inline: usize) -> bool {
        inline < self.0[operation.index()] as usize
    }

    /// The entries of the first `COUNT` operations.
    pub(super) fn first<const COUNT: usize>(&self) -> [u32; COUNT] {
        core::array::from_fn(|index| self.0[index])
    }

    /// Disables inline data for these operations.
    pub(super) fn forbid_inline(&mut self, operations: SendOperationFlags) {
        for (room, (_, flag)) in self.0.iter_mut().zip(ALL) {
            if operations.contains(flag) {
                *room = (*room).min(1);
            }
        }
    }

    /// The operation's limit of inline data plus one, or 0.
    fn room(&self, operation: WorkRequestOperationType) -> usize {
        ALL.iter().position(|(known, _)| *known == operation).map_or(0, |n| self.0[n] as usize)
    }

    /// The error for a refused request: no such operation, no place in the queue, or too much
    /// inline data.
    fn error(&self, operation: WorkRequestOperationType, given: usize, at: ListPosition) -> PostSendError {
        let ListPosition { index, limit } = at;
        match self.room(operation) {
            room if limit == 0 || (room != 0 && index == limit) => {
                PostSendError::TooManyWorkRequests { limit }
            }
            0 => PostSendError::UnsupportedOperation { index, operation },
            room => PostSendError::InlineDataTooLong { index, given, limit: room - 1 },
        }
    }
}

/// Possible operations with an explicit destination, by kind. They are separate, so that requests
/// without one pay nothing for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DestinationLimits {
    pub(super) datagram: InlineLimits,
    pub(super) xrc: InlineLimits,
}

impl DestinationLimits {
    /// Divides a pair's operations into those to its peer and those with an explicit destination.
    pub(super) fn divide(
        qp_type: QueuePairType,
        usable: SendOperationFlags,
        max_inline: u32,
    ) -> (InlineLimits, Self) {
        let only = |is| if is { InlineLimits::new(usable, max_inline) } else { InlineLimits::NOTHING };
        let by_number = qp_type == QueuePairType::XrcSend;
        let elsewhere = Self { datagram: only(qp_type.is_datagram()), xrc: only(by_number) };
        match qp_type {
            _ if by_number || qp_type.is_datagram() => (InlineLimits::NOTHING, elsewhere),
            _ => (InlineLimits::new(usable, max_inline), elsewhere),
        }
    }

    /// The error for a list whose request at this position failed.
    #[cold]
    #[inline(never)]
    pub(super) fn error(&self, to_peer: &InlineLimits, failure: Failure, at: ListPosition) -> PostSendError {
        let index = at.index;
        let (operation, to, inline) = match failure {
            Failure::TooManyEntries { given, limit } => {
                return PostSendError::TooManyScatterGatherEntries { index, given, limit: limit as usize };
            }
            Failure::OtherContext => return PostSendError::OtherContext { index },
            Failure::NoInline { given, limit } => {
                return PostSendError::InlineDataTooLong { index, given, limit: limit as usize };
            }
            Failure::FullQueueUnnoticed => return PostSendError::FullQueueUnnoticed { index },
            Failure::WindowOfType1 => return PostSendError::WindowOfType1 { index },
            Failure::NotThere { operation } if at.limit != 0 => {
                return PostSendError::UnsupportedOperation { index, operation };
            }
            Failure::NotThere { .. } | Failure::NoPlace => {
                return PostSendError::TooManyWorkRequests { limit: at.limit };
            }
            Failure::Refused { operation, to, inline } => (operation, to, inline),
        };
        let here = match to {
            DestinationKind::Peer => to_peer,
            DestinationKind::Address => &self.datagram,
            DestinationKind::Queue => &self.xrc,
        };
        let there = [to_peer, &self.datagram, &self.xrc];
        if here.room(operation) > 0 || there.iter().all(|other| other.room(operation) == 0) {
            here.error(operation, inline, at)
        } else if to_peer.room(operation) > 0 {
            PostSendError::UnexpectedDestination { index, operation }
        } else {
            PostSendError::MissingDestination { index, operation }
        }
    }
}

/// A request's position in a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListPosition {
    /// Counts from 0.
    pub(super) index: usize,
    /// The number of requests that the queue holds.
    pub(super) limit: usize,
}
