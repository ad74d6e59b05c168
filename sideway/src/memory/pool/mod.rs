//! A pool of registered memory, whose slices are posted, completed and read without `unsafe` code.
//!
//! [`Pool`] explains why that is safe.

mod builder;
mod handle;
mod requests;
mod slice;
mod table;

use std::fmt;
use std::ptr::NonNull;

pub use builder::PoolBuilder;
use handle::Handle;
use rdma_mummy_sys::types::ibv_context;
pub use requests::PoolRequestError;
pub use slice::{OutOfSlice, Slice, Slices};
use table::PieceTable;
pub(crate) use table::{NO_REQUEST, PoolPiece, Position, place_of};

use super::RegisteredBuffer;
use crate::ibverbs::completion::{
    BasicWorkCompletion, ExtendedWorkCompletion, GenericWorkCompletion, WorkCompletionStatus,
};
use crate::ibverbs::queue_pair::ScatterGatherEntry;

/// Registered memory, divided into slices that are taken and posted, and that come back with their
/// completions. [The module](crate::memory#slices) shows how.
///
/// Clones refer to the same pool. The memory is deregistered and freed when the last handle and the
/// last slice are dropped.
///
/// A pool belongs to one thread, because nothing here is locked or atomic. Another thread can make
/// its pool with the same [builder](PoolBuilder).
///
/// # Why it is safe
///
/// Giving memory to a device is unsafe because the memory might be freed, or be used by Rust for
/// something else, while the device still has it. Here neither can happen, whatever a program, a
/// peer or a device does:
///
/// - The memory stays mapped until its registration has ended, and for ever if that fails
///   ([`RegisteredBuffer`]). It belongs to the pool and to every slice, so that no slice points to
///   unmapped memory. Work requests keep nothing alive. If the device still has some when the last
///   handle is dropped, their key is invalid, and the device rejects them, as for any region that
///   is [closed](crate::ibverbs::memory_region::MemoryRegion::close).
/// - No reference to any of its bytes exists, and no access that the compiler knows as a plain one
///   (`memory/bytes.rs`). So an unexpected write only changes the values that are read. It may come
///   from a peer that has the key, or from a request that the program wrongly took for completed,
///   by a wrong number or by [`Pool::abandon`].
/// - The table of pieces and their owners is private memory, and no number from outside is used
///   without a check. A number that is not the ticket of a piece with the device is detected
///   (`table.rs`), so that no piece ever has two owners.
/// - A slice is posted only in the region's own context, because elsewhere its address might belong
///   to another region.
/// - Libraries that overwrite an outstanding request when a queue is full (mlx5's extended pairs)
///   get no slices. On such devices a classic pair takes them, whose library checks first.
#[derive(Clone)]
pub struct Pool(pub(crate) Handle);

/// The pool itself, shared by its handles and slices.
pub(crate) struct Inner {
    table: PieceTable,
    lkey: u32,
    context: NonNull<ibv_context>,
    slices: usize,
    memory: RegisteredBuffer,
}

/// Access for the post guards.
impl Inner {
    #[inline]
    pub(crate) fn is_of(&self, context: *mut ibv_context) -> bool {
        self.context.as_ptr() == context
    }

    #[inline]
    pub(crate) fn entry(&self, piece: PoolPiece) -> ScatterGatherEntry {
        let addr = self.table.start(piece).addr() as u64;
        ScatterGatherEntry::new(self.lkey, addr, self.table.len(piece))
    }

    /// See [`PieceTable::depart`].
    #[inline]
    pub(crate) fn depart(&self, piece: PoolPiece, rest: Option<PoolPiece>, wr_id: u64, at: Position) -> u64 {
        self.table.depart(piece, rest, wr_id, at)
    }

    /// See [`PieceTable::chain`].
    #[inline]
    pub(crate) fn chain(&self, piece: PoolPiece, rest: Option<PoolPiece>) {
        self.table.chain(piece, rest);
    }

    /// See [`PieceTable::recall`].
    pub(crate) fn recall(&self, last: u32, count: u32, posted: u32) {
        self.table.recall(last, count, posted);
    }
}

impl Pool {
    /// Takes the whole smallest free slice; `None` if none is free. It still contains the bytes of
    /// its last use.
    #[inline]
    pub fn take(&self) -> Option<Slice> {
        Some(Slice::new(&self.0, self.0.table.take(0)?))
    }

    /// Takes the smallest free slice of at least `len` bytes, and sets its length to `len`; `None`
    /// if none is free.
    #[inline]
    pub fn take_len(&self, len: usize) -> Option<Slice> {
        let bytes = u32::try_from(len).ok()?;
        let piece = self.0.table.take(bytes)?;
        self.0.table.set_len(piece, bytes);
        Some(Slice::new(&self.0, piece))
    }

    /// Takes back the slices of a work request that has completed, successfully or not; a flush
    /// returns slices as well. `None` if the request had no slices of this pool, or if they are
    /// already back.
    ///
    /// It takes constant time for pools of any size.
    #[inline]
    pub fn reclaim(&self, completion: &impl PoolCompletion) -> Option<Returned> {
        let arrival = self.0.table.arrive(completion.wr_id())?;
        let byte_len = match arrival.is_receive && completion.status() == WorkCompletionStatus::Success {
            true => completion.byte_len(),
            false => None,
        };
        Some(Returned {
            wr_id: arrival.wr_id,
            byte_len,
            slice: Slice::new(&self.0, arrival.piece),
            rest: Slices::new(&self.0, arrival.rest),
        })
    }

    /// Takes back slices whose requests will never complete, because their queue pair is gone or
    /// was reset. It applies to all work requests for whose number `is_given_up` returns true, and
    /// returns their count. The number is the one that the program gave.
    ///
    /// If the device still executes such a request, it writes old messages over slices that are
    /// taken afterwards. It can do no other harm, so this is safe.
    pub fn abandon(&self, is_given_up: impl FnMut(u64) -> bool) -> usize {
        self.0.table.abandon(is_given_up)
    }

    /// The number of slices in the pool.
    pub fn slices(&self) -> usize {
        self.0.slices
    }

    /// The number of free slices. It counts them, so it takes linear time.
    pub fn free(&self) -> usize {
        self.0.table.free()
    }

    /// The number of work requests with slices that the device has, or that are in a list that is
    /// not posted yet. It counts them, so it takes linear time.
    pub fn in_flight(&self) -> usize {
        self.0.table.in_flight()
    }

    /// The memory of all slices, as one region.
    pub fn memory(&self) -> &RegisteredBuffer {
        &self.0.memory
    }

    /// The key for local work requests. Slices do not need it, because they contain it.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// The key for a peer's work requests, if the pool was made with the necessary
    /// [access](PoolBuilder::setup_access).
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.0.memory.rkey()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("slices", &self.slices())
            .field("free", &self.free())
            .field("in_flight", &self.in_flight())
            .field("memory", &self.0.memory)
            .finish()
    }
}

/// The slices of a completed work request. See [`Pool::reclaim`].
#[derive(Debug)]
pub struct Returned {
    /// The number that the program gave the work request.
    pub wr_id: u64,
    /// The number of bytes received. `None` if the request was not a receive, did not succeed, or
    /// if the completion queue was made without this field. The slice keeps its length.
    pub byte_len: Option<u32>,
    /// The slice, or the first one of several.
    pub slice: Slice,
    /// The other slices, if the request had several.
    pub rest: Slices,
}

/// A completion of any kind, or a program's copy of one. A wrong number is harmless, because it is
/// not a ticket of the pool.
pub trait PoolCompletion {
    /// The number by which the device knows the work request.
    fn wr_id(&self) -> u64;
    /// The status of the work request.
    fn status(&self) -> WorkCompletionStatus;
    /// The number of bytes received, if the queue has this field.
    fn byte_len(&self) -> Option<u32>;
}

macro_rules! impl_completion {
    ($($Completion:ident),*) => {$(
        impl PoolCompletion for $Completion<'_> {
            #[inline(always)]
            fn wr_id(&self) -> u64 {
                $Completion::wr_id(self)
            }

            #[inline(always)]
            fn status(&self) -> WorkCompletionStatus {
                $Completion::status(self)
            }

            #[inline(always)]
            fn byte_len(&self) -> Option<u32> {
                $Completion::byte_len(self)
            }
        }
    )*};
}

impl_completion!(BasicWorkCompletion, ExtendedWorkCompletion, GenericWorkCompletion);
