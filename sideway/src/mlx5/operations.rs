//! Operations specific to mlx5: which ones a queue pair has, and those that need only memory.
//!
//! # Safety
//!
//! The unsafe code here and in `layout.rs` relies on these invariants:
//!
//! - `qp` of [`Operations`] is the result of `mlx5dv_qp_ex_from_ibv_qp_ex` for the pair, which the
//!   queue keeps alive.
//! - The operations in `has` are not null: [`Operations::of`] checks them when the pair is made.
//!   The struct has the fields that it reads, because a library refuses to make a pair with
//!   operations that it does not know.
//! - No flag stands for `wr_set_mkey_crypto`. It is as old as the data encryption keys, and every
//!   request that calls it has one.
//! - Nobody else builds a list of the pair, and one is open: the guard wraps an
//!   `ExtendedPostSendGuard`, of which there is only one.
//! - A request is appended as a whole: an operation and, for a key's configuration, the announced
//!   number of setters.

use std::mem::offset_of;
use std::ptr::NonNull;

use rdma_mummy_sys::types::{ibv_qp_ex, mlx5dv_qp_create_send_ops_flags as F, mlx5dv_qp_ex};
use rdma_mummy_sys::{field, mlx5dv};

use super::queue_pair::incomplete;
use super::{DirectVerbs, InterleavedEntry, MKeyFlags};
use crate::direct::{self, VendorList};
use crate::ibverbs::Unsupported;
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::queue_pair::CreateQueuePairError;
use crate::ibverbs::queue_pair::{
    ExtendedPostSendGuard, PostSendError, PostSendGuard, QueuePair, SendQueue, WorkRequestFlags,
    WorkRequestHandle,
};

c_flags! {
    /// Operations specific to mlx5 that a queue pair can send (`mlx5dv_qp_create_send_ops_flags`).
    pub struct DirectOperationFlags(u64) {
        /// [Interleaved memory behind a key](WorkRequestHandle::setup_mr_interleaved).
        MrInterleaved = F::MLX5DV_QP_EX_WITH_MR_INTERLEAVED.0,
        /// [A list of memory behind a key](WorkRequestHandle::setup_mr_list).
        MrList = F::MLX5DV_QP_EX_WITH_MR_LIST.0,
        /// [The full configuration of a key](WorkRequestHandle::setup_mkey_configure).
        MKeyConfigure = F::MLX5DV_QP_EX_WITH_MKEY_CONFIGURE.0,
        /// [Requests in the device's own format](WorkRequestHandle::setup_raw_wqe).
        RawWqe = F::MLX5DV_QP_EX_WITH_RAW_WQE.0,
        /// [Copies by the device](WorkRequestHandle::setup_memcpy).
        Memcpy = F::MLX5DV_QP_EX_WITH_MEMCPY.0,
    }
}

/// The mlx5 operations of a pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operations {
    pub(super) qp: NonNull<mlx5dv_qp_ex>,
    has: DirectOperationFlags,
    max_memcpy: usize,
}

/// The maximum number of bytes that the device copies in one request, or an error if it copies
/// none. It is queried before a pair is made.
pub(super) fn max_memcpy(
    direct: &DirectVerbs,
    asked: DirectOperationFlags,
) -> Result<usize, CreateQueuePairError> {
    if !asked.contains(DirectOperationFlags::Memcpy) {
        return Ok(0);
    }
    match direct.query_device()?.max_wr_memcpy_length() {
        None | Some(0) => {
            Err(Unsupported::new(direct.context(), "mlx5dv_wr_memcpy", "copies by the device").into())
        }
        Some(max) => Ok(max),
    }
}

impl Operations {
    /// The operations of a pair that was made with `asked`.
    ///
    /// # Safety
    ///
    /// `mlx5dv_create_qp` must have made the pair just now, with `asked` as its `send_ops_flags`.
    pub(super) unsafe fn of(
        direct: &DirectVerbs,
        pair: &impl QueuePair,
        asked: DirectOperationFlags,
        max_memcpy: usize,
    ) -> Result<Self, CreateQueuePairError> {
        let of_ex = direct.as_raw().mlx5dv_qp_ex_from_ibv_qp_ex();
        let of_ex = of_ex.map_err(|_| incomplete("mlx5dv_qp_ex_from_ibv_qp_ex"))?;
        let to_ex = direct.context().provider().verbs().ibv_qp_to_qp_ex();
        let to_ex = to_ex.map_err(|_| incomplete("ibv_qp_to_qp_ex"))?;
        // SAFETY: the pair is alive, and an extended one of mlx5, which `mlx5dv_create_qp`
        // guarantees.
        let qp = NonNull::new(unsafe { of_ex(to_ex(pair.control().as_raw().as_ptr())) });
        let qp = qp.ok_or_else(|| incomplete("mlx5dv_qp_ex_from_ibv_qp_ex"))?;
        macro_rules! look {
            ($($flag:ident: $($member:ident),+;)+) => {$(
                if asked.contains(DirectOperationFlags::$flag) {
                    $(
                        let place = offset_of!(mlx5dv_qp_ex, $member);
                        // SAFETY: the library made a pair with the operation, so its struct has the
                        // field.
                        let there = unsafe { field::read(qp.as_ptr(), place, |qp| &qp.$member) }.is_some();
                        if !there {
                            return Err(incomplete(stringify!($member)));
                        }
                    )+
                }
            )+};
        }
        look! {
            MrInterleaved: wr_mr_interleaved;
            MrList: wr_mr_list;
            MKeyConfigure: wr_mkey_configure, wr_set_mkey_access_flags, wr_set_mkey_layout_list,
                wr_set_mkey_layout_interleaved, wr_set_mkey_sig_block;
            RawWqe: wr_raw_wqe;
            Memcpy: wr_memcpy;
        }
        Ok(Self { qp, has: asked, max_memcpy })
    }
}

/// The state of a list with mlx5 requests.
#[derive(Debug)]
pub struct DirectState {
    operations: Operations,
    /// The number of queue places that its requests take beyond one each.
    further: usize,
    /// The first reason why the list cannot be posted.
    pub(super) refused: Option<PostSendError>,
}

impl DirectState {
    pub(super) fn new(operations: Operations) -> Self {
        Self { operations, further: 0, refused: None }
    }

    /// The C object in which the list is built.
    #[inline(always)]
    pub(super) fn qp(&self) -> *mut mlx5dv_qp_ex {
        self.operations.qp.as_ptr()
    }

    /// Fails if the list cannot be posted for a reason recorded here.
    pub(super) fn verdict(&self, list: &ExtendedPostSendGuard<'_>) -> Result<(), PostSendError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        match list.request_count() {
            Some(count) if self.further > 0 => within(list, count + self.further),
            // A list that failed, or that is too long without mlx5 requests, gets its error from
            // its own `post`.
            _ => Ok(()),
        }
    }
}

/// Checks that `requests` places fit into the queue.
fn within(list: &ExtendedPostSendGuard<'_>, requests: usize) -> Result<(), PostSendError> {
    let limit = list.queue().control().capability().max_send_wr as usize;
    if requests <= limit { Ok(()) } else { Err(PostSendError::TooManyWorkRequests { limit }) }
}

/// A token that only this crate can make. Without it, a bound of a generic function would make a
/// sealed trait's methods callable.
#[derive(Clone, Copy, Debug)]
pub struct Token(());

/// A list whose pair may have mlx5 operations.
pub trait HasDirectState<'queue>: VendorList<'queue> {
    fn parts(&mut self, token: Token) -> (&mut ExtendedPostSendGuard<'queue>, &mut DirectState);
}

/// A list of a queue pair that may have [mlx5 operations](DirectOperationFlags): a
/// [`DirectQueuePair`](super::DirectQueuePair), or a [`DcInitiator`](super::DcInitiator), which has
/// copies and raw requests.
#[diagnostic::on_unimplemented(
    message = "a list of this queue pair takes no requests of mlx5's own",
    note = "`mlx5::QueuePairBuilder::build_direct` makes a pair whose lists do"
)]
pub trait DirectGuard<'queue>: PostSendGuard + HasDirectState<'queue> {}

impl<'queue, G: PostSendGuard + HasDirectState<'queue>> DirectGuard<'queue> for G {}

/// The reason why a request is not appended.
pub(super) enum DirectRefusal {
    /// An object that it refers to belongs to another context.
    OtherContext,
    Of(DirectRequestError),
}

impl From<DirectRequestError> for DirectRefusal {
    fn from(reason: DirectRequestError) -> Self {
        Self::Of(reason)
    }
}

/// An mlx5 request that is to be appended.
pub(super) struct DirectRequest<'list, 'queue> {
    list: &'list mut ExtendedPostSendGuard<'queue>,
    own: &'list mut DirectState,
    wr_id: u64,
    flags: WorkRequestFlags,
}

impl<'list, 'queue> DirectRequest<'list, 'queue> {
    pub(super) fn of<G: DirectGuard<'queue>>(handle: WorkRequestHandle<'list, G>) -> Self {
        let (guard, wr_id, flags) = handle.into_parts();
        let (list, own) = guard.parts(Token(()));
        Self { list, own, wr_id, flags }
    }

    /// The context of the pair.
    pub(super) fn context(&self) -> &DeviceContext {
        self.list.queue().control().context()
    }

    pub(super) fn list(&self) -> &ExtendedPostSendGuard<'queue> {
        self.list
    }

    /// Appends the request. It does not if the list has failed, the pair lacks the operation,
    /// `check` finds an error, or the queue has no place.
    ///
    /// # Safety
    ///
    /// - If the pair has `operation` and `check` finds nothing, `append` appends one whole request,
    ///   which takes at most `places` places.
    /// - The queue has that many free places.
    pub(super) unsafe fn append(
        self,
        operation: DirectOperationFlags,
        places: usize,
        check: impl FnOnce(&Operations) -> Result<(), DirectRefusal>,
        append: impl FnOnce(*mut mlx5dv_qp_ex),
    ) {
        let operations = self.own.operations;
        let check = |index| {
            let missing = (!operations.has.contains(operation))
                .then_some(DirectRequestError::UnsupportedOperation { operation });
            let found = missing.map_or_else(|| check(&operations), |missing| Err(DirectRefusal::Of(missing)));
            found.map_err(|refusal| match refusal {
                DirectRefusal::Of(reason) => PostSendError::Direct { index, reason },
                DirectRefusal::OtherContext => PostSendError::OtherContext { index },
            })
        };
        // A library treats a layout behind a key as inline data. It ignores the flag for other
        // requests.
        let inline = operation.intersects(LAYOUTS);
        // SAFETY: the caller guarantees (`# Safety`) that `append` appends one whole request, and
        // that the queue has `places` free places. `check` refuses a pair without the operation.
        unsafe { self.append_with(places, inline, check, |_| append(operations.qp.as_ptr())) }
    }

    /// The same for an operation of libibverbs.
    ///
    /// # Safety
    ///
    /// The contract of [`append`](Self::append) applies.
    pub(super) unsafe fn append_with(
        self,
        places: usize,
        inline: bool,
        check: impl FnOnce(usize) -> Result<(), PostSendError>,
        append: impl FnOnce(*mut ibv_qp_ex),
    ) {
        let Self { list, own, wr_id, flags } = self;
        let (Some(index), None) = (list.request_count(), own.refused) else { return };
        if let Err(error) = check(index).and_then(|()| within(list, index + own.further + places)) {
            own.refused = Some(error);
            return;
        }
        own.further += places - 1;
        // SAFETY: the caller guarantees (`# Safety` of `append`) that `append` appends one whole
        // request of at most `places` places, and that the queue has as many.
        unsafe { direct::append_request(list, wr_id, flags, inline, append) };
    }
}

const LAYOUTS: DirectOperationFlags = DirectOperationFlags::MrInterleaved
    .union(DirectOperationFlags::MrList)
    .union(DirectOperationFlags::MKeyConfigure);

/// The size of one place in a send queue, in bytes. A request takes one or more.
const PLACE: usize = 64;

/// The maximum length of a request, which a control segment can state.
const LONGEST: usize = 0x3f * 16;

#[repr(align(64))]
struct Aligned([u8; LONGEST]);

/// The length in bytes that a request in the device's format states in its control segment, if it
/// is long enough to have one.
fn stated_length(wqe: &[u8]) -> Option<usize> {
    // The second word of the control segment contains the pair's number and, in its last six bits,
    // the length in units of 16 bytes.
    let word = wqe.get(4..8)?;
    Some(usize::from(word[3] & 0x3f) * 16)
}

impl<'guard, G> WorkRequestHandle<'guard, G> {
    /// Lets the device copy `length` bytes from `src_addr` to `dest_addr`, both in local registered
    /// memory (`mlx5dv_wr_memcpy`). One request copies at most
    /// [`max_wr_memcpy_length`](super::DeviceCapabilities::max_wr_memcpy_length) bytes. A later
    /// request that needs the copied bytes must be [fenced](WorkRequestFlags::Fence).
    ///
    /// It needs a reliably connected pair or a DC initiator that was made [for
    /// it](DirectOperationFlags::Memcpy). On an initiator, it needs no target. It completes as
    /// [`Driver3`](crate::ibverbs::completion::WorkCompletionOperationType::Driver3).
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// - Both ranges stay allocated and, if their keys are valid, registered. Nobody writes to
    ///   either, and no Rust reference to the bytes at `dest_addr` is used. This must hold from the
    ///   call of [`post`](PostSendGuard::post) on, unless its error says that this request was not
    ///   [posted](PostSendError::posted). It must hold until the completion of the request, or of a
    ///   later request of the same queue, has been polled, or until the memory has been
    ///   [deregistered](crate::ibverbs::memory_region::MemoryRegion::close).
    /// - The send queue has a free place for the request: fewer than
    ///   [`max_send_wr`](crate::ibverbs::queue_pair::QueuePairCapability::max_send_wr) are
    ///   outstanding.
    ///
    /// # Errors
    ///
    /// [`post`](PostSendGuard::post) reports them: [`DirectRequestError::UnsupportedOperation`],
    /// [`DirectRequestError::MemcpyLength`].
    ///
    /// # References
    ///
    /// `man mlx5dv_wr_post`
    pub unsafe fn setup_memcpy<'queue>(
        self,
        dest_lkey: u32,
        dest_addr: u64,
        src_lkey: u32,
        src_addr: u64,
        length: usize,
    ) where
        G: DirectGuard<'queue>,
    {
        let check = |of: &Operations| match length {
            given if (1..=of.max_memcpy).contains(&given) => Ok(()),
            given => Err(DirectRefusal::Of(DirectRequestError::MemcpyLength { given, limit: of.max_memcpy })),
        };
        // SAFETY: the closure appends one request, whose operation is not null (head of this file).
        // The caller guarantees (`# Safety`) the memory and a free place in the send queue.
        unsafe {
            DirectRequest::of(self).append(DirectOperationFlags::Memcpy, 1, check, |qp| {
                mlx5dv::mlx5dv_wr_memcpy(qp, dest_lkey, dest_addr, src_lkey, src_addr, length);
            });
        }
    }

    /// A request in the device's own format (`mlx5dv_wr_raw_wqe`), starting with its control
    /// segment. The library sets its index and its signature. Everything else is up to the program,
    /// including the flags: those of the handle are ignored. The request is copied now.
    ///
    /// It needs a pair that was made [for it](DirectOperationFlags::RawWqe), of any type. If the
    /// type needs an address, the request must contain it. If its control segment requests a
    /// completion, it completes as
    /// [`Driver2`](crate::ibverbs::completion::WorkCompletionOperationType::Driver2), with the
    /// handle's `wr_id`.
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// - It is a request that the device accepts from this pair, with the pair's number.
    /// - If this crate can make the same request, the contract of that function applies to the
    ///   memory that it names
    ///   ([`setup_sge`](crate::ibverbs::queue_pair::LocalBufferHandle::setup_sge),
    ///   [`setup_mr_list`](WorkRequestHandle::setup_mr_list),
    ///   [`setup_memcpy`](WorkRequestHandle::setup_memcpy)). Otherwise, until the device is done
    ///   with it, the memory stays allocated, nobody writes to it, and no Rust reference to bytes
    ///   that the device writes is used.
    /// - The send queue has a free place for each 64 bytes of it.
    ///
    /// # Errors
    ///
    /// [`post`](PostSendGuard::post) reports them: [`DirectRequestError::UnsupportedOperation`], or
    /// [`DirectRequestError::RawLength`] if the length differs from the one in the control segment.
    ///
    /// # References
    ///
    /// `man mlx5dv_wr_post`
    pub unsafe fn setup_raw_wqe<'queue>(self, wqe: &[u8])
    where
        G: DirectGuard<'queue>,
    {
        let check = |_: &Operations| match stated_length(wqe) {
            Some(stated) if stated == wqe.len() => Ok(()),
            stated => Err(DirectRefusal::Of(DirectRequestError::RawLength { given: wqe.len(), stated })),
        };
        let places = wqe.len().div_ceil(PLACE).max(1);
        // SAFETY: the closure appends one request, which the caller guarantees. The library reads
        // the stated number of bytes, which was checked to exist, and `append` has checked the
        // operation (module head).
        unsafe {
            DirectRequest::of(self).append(DirectOperationFlags::RawWqe, places, check, |qp| {
                // An aligned copy, because the library reads whole words.
                let mut aligned = Aligned([0; LONGEST]);
                aligned.0[..wqe.len()].copy_from_slice(wqe);
                mlx5dv::mlx5dv_wr_raw_wqe(qp, (&raw const aligned).cast());
            });
        }
    }
}

/// A request of mlx5's own cannot be posted.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectRequestError {
    /// The queue pair was not made for this operation.
    #[error("the queue pair was made without {operation:?}; name it in `setup_direct_send_ops_flags`")]
    UnsupportedOperation {
        /// The operation that the work request asked for.
        operation: DirectOperationFlags,
    },
    /// The device copies fewer bytes in one request, and at least one.
    #[error("a copy of {given} bytes; the device copies 1 to {limit} (max_wr_memcpy_length)")]
    MemcpyLength {
        /// The length or number that was given.
        given: usize,
        /// The largest number that the queue or object was made for.
        limit: usize,
    },
    /// A request in the device's own format that has another length than its control segment says.
    #[error("a raw request of {given} bytes, whose control segment says {}", StatedLength(*.stated))]
    RawLength {
        /// The length or number that was given.
        given: usize,
        /// How many it says; `None` if it has no control segment.
        stated: Option<usize>,
    },
    /// More pieces of memory than the key was made for.
    #[error("a layout of {given} entries; the memory key has room for {limit} (max_entries)")]
    TooManyEntries {
        /// How many there were; of an interleaved layout one more than pieces.
        given: usize,
        /// The largest number that the queue or object was made for.
        limit: u16,
    },
    /// A step of an interleaved layout that is longer than what is counted.
    #[error(
        "entry {entry} of an interleaved layout takes and skips {given} bytes; together there may be {}",
        InterleavedEntry::LONGEST
    )]
    InterleavedTooLong {
        /// The position of the entry in the list, from 0.
        entry: usize,
        /// How many bytes it takes and skips.
        given: u64,
    },
    /// The key was made without what is configured.
    #[error("the memory key was made without {missing:?}")]
    KeyWithout {
        /// The flags that the memory key would need.
        missing: MKeyFlags,
    },
    /// A signature in neither domain is none: leave it out, or reset what the key has.
    #[error("a signature in neither the memory's nor the wire's domain")]
    NoSignature,
}

debug_as_text!(DirectRequestError);

/// Displays an optional length.
struct StatedLength(Option<usize>);

impl std::fmt::Display for StatedLength {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(stated) => stated.fmt(f),
            None => f.write_str("nothing, as it is shorter than that"),
        }
    }
}

// The mlx5 variants must not make the result of posting larger.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<PostSendError>() == 32);
