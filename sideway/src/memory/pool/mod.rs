//! A pool of registered memory: posted, completed and looked at by code without `unsafe`.
//!
//! Why that is safe is written at [`Pool`].

mod builder;
mod handle;
mod slice;
mod table;

use std::fmt;
use std::ptr::NonNull;

pub use builder::PoolBuilder;
use handle::Handle;
use rdma_mummy_sys::types::ibv_context;
pub use slice::{OutOfSlice, Slice, Slices};
use table::PieceTable;
pub(crate) use table::{NO_REQUEST, PoolPiece, Position, place_of};

use super::RegisteredBuffer;
use crate::ibverbs::completion::{
    BasicWorkCompletion, ExtendedWorkCompletion, GenericWorkCompletion, WorkCompletionStatus,
};
use crate::ibverbs::queue_pair::ScatterGatherEntry;

/// Registered memory in slices, which are taken, posted, and come back with their completions: see
/// [the module](crate::memory#slices) for how.
///
/// A handle: clones stand for the same pool. The memory is deregistered and freed after the last handle and the last slice have
/// gone.
///
/// It belongs to one thread, as nothing here is locked or atomic; another thread makes a pool of its own, of the same
/// [description](PoolBuilder).
///
/// # Why it is safe
///
/// What makes giving memory to a device unsafe is that the memory may be freed, or be something else to Rust, while the device
/// still has it. Neither can be so here, whatever a program, a peer or a device does:
///
/// - The memory is mapped until its registration has ended, and for ever if that fails ([`RegisteredBuffer`]). It belongs to the
///   pool and to every slice, so that no slice reaches memory that is not there. Work requests keep nothing: those that the
///   device still has when the last handle goes name a key that is no more, and are refused by the device, as of any region that is
///   [closed](crate::ibverbs::memory_region::MemoryRegion::close).
/// - There is no reference to any of its bytes, and no access that the compiler knows of as a plain one (`memory/bytes.rs`).
///   So a write that the program does not expect (of a peer that has the key; of a device that has not completed what the
///   program took for completed, by a wrong number or by [`Pool::abandon`]) changes what is read, and can do no more than that.
/// - The table that says which piece is whose is private memory, and is led by no number from outside: what is no ticket of
///   a piece that is with the device is found out (`table.rs`), so that no piece is ever in two hands.
/// - A slice is posted in the region's own context only: elsewhere its address might be another region's.
/// - Libraries that write over an outstanding request when a queue is full (mlx5's extended pairs) get no slices: these go by a
///   classic pair, whose library looks first.
#[derive(Clone)]
pub struct Pool(pub(crate) Handle);

/// The pool itself, for as long as a handle or a slice needs it.
pub(crate) struct Inner {
    table: PieceTable,
    lkey: u32,
    context: NonNull<ibv_context>,
    slices: usize,
    memory: RegisteredBuffer,
}

/// What the seam of the guards needs.
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

    /// As [`PieceTable::depart`].
    #[inline]
    pub(crate) fn depart(&self, piece: PoolPiece, rest: Option<PoolPiece>, wr_id: u64, at: Position) -> u64 {
        self.table.depart(piece, rest, wr_id, at)
    }

    /// As [`PieceTable::chain`].
    #[inline]
    pub(crate) fn chain(&self, piece: PoolPiece, rest: Option<PoolPiece>) {
        self.table.chain(piece, rest);
    }

    /// As [`PieceTable::recall`].
    pub(crate) fn recall(&self, last: u32, count: u32, posted: u32) {
        self.table.recall(last, count, posted);
    }
}

impl Pool {
    /// Takes the smallest slice that is free, all of it; `None` if there is none. Its bytes are as its last user left them.
    #[inline]
    pub fn take(&self) -> Option<Slice> {
        Some(Slice::new(&self.0, self.0.table.take(0)?))
    }

    /// Takes the smallest free slice of at least so many bytes, and makes it as long; `None` if there is none.
    #[inline]
    pub fn take_len(&self, len: usize) -> Option<Slice> {
        let bytes = u32::try_from(len).ok()?;
        let piece = self.0.table.take(bytes)?;
        self.0.table.set_len(piece, bytes);
        Some(Slice::new(&self.0, piece))
    }

    /// Takes back what a work request was posted with, now that it has completed, whether well or not: a flush gives slices
    /// back as well. `None` if it was not posted with slices of this pool, or they are back already.
    ///
    /// It takes the same time for a pool of any size.
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

    /// Takes back what will never complete, because its queue pair is gone or has been reset: all work requests whose number
    /// (the one that the program gave) is given up. How many there were.
    ///
    /// What the device has all the same, it goes on to use: then slices that are taken next are written over by old messages.
    /// That does no more harm than that, so this is safe.
    pub fn abandon(&self, is_given_up: impl FnMut(u64) -> bool) -> usize {
        self.0.table.abandon(is_given_up)
    }

    /// How many slices there are.
    pub fn slices(&self) -> usize {
        self.0.slices
    }

    /// How many slices are free. It counts them.
    pub fn free(&self) -> usize {
        self.0.table.free()
    }

    /// How many work requests with slices the device has, or a list that is not posted yet. It counts them.
    pub fn in_flight(&self) -> usize {
        self.0.table.in_flight()
    }

    /// The memory of all slices, as one region.
    pub fn memory(&self) -> &RegisteredBuffer {
        &self.0.memory
    }

    /// The key for local work requests. Slices need none: they know it.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// The key for a peer's work requests, if the pool was made with such [access](PoolBuilder::setup_access).
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

/// What a work request was posted with, after its completion. See [`Pool::reclaim`].
#[derive(Debug)]
pub struct Returned {
    /// The number that the program gave the work request.
    pub wr_id: u64,
    /// How many bytes were received; `None` of what is no receive or did not succeed, or if the completion queue was not made
    /// with this field. The slice is as long as it was.
    pub byte_len: Option<u32>,
    /// The slice, or the first one.
    pub slice: Slice,
    /// The others, if it was posted with several.
    pub rest: Slices,
}

/// A completion of any flavour, or a program's own copy of one: a wrong number does no harm, it is no ticket of the pool.
pub trait PoolCompletion {
    /// The number that the device knows the work request by.
    fn wr_id(&self) -> u64;
    /// How it ended.
    fn status(&self) -> WorkCompletionStatus;
    /// How many bytes were received, where the queue has that field.
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
