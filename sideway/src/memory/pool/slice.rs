//! Slices: pieces of a pool's memory that the program owns.

use std::fmt;
use std::mem::ManuallyDrop;

use super::handle::Handle;
use super::table::PoolPiece;
use crate::error::{ConsumeError, Error, ErrorKind};
use crate::memory::bytes::{self, Word, impl_accesses};

/// A piece of a pool's memory that nothing else in the program owns: it can be filled, posted or
/// read.
///
/// It is not a Rust slice and cannot be turned into one: a device, or a peer with the pool's key,
/// may write to its bytes at any time. The bytes are copied in and out.
///
/// Dropping it returns it to its pool. Posting it (`setup_slice`) passes it to the device, and the
/// completion returns it. A slice that is leaked (`mem::forget`) is missing from its pool, and
/// keeps the pool's memory allocated for ever.
pub struct Slice {
    pool: Handle,
    /// The piece in the pool's table.
    piece: PoolPiece,
}

impl Slice {
    /// A slice of a taken piece, which must have no other handle.
    #[inline]
    pub(super) fn new(pool: &Handle, piece: PoolPiece) -> Self {
        Self { pool: pool.clone(), piece }
    }

    #[inline]
    pub(crate) fn is_of(&self, pool: &Handle) -> bool {
        self.pool.is(pool)
    }

    #[inline]
    pub(crate) fn piece(&self) -> PoolPiece {
        self.piece
    }

    /// Gives up the slice, and leaves the piece to the caller.
    #[inline]
    pub(crate) fn into_piece(self) -> PoolPiece {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is `ManuallyDrop`, so the slice's own drop does not run, and this is the
        // only read of the handle.
        drop(unsafe { std::ptr::read(&raw const this.pool) });
        this.piece
    }

    /// The length in bytes, which is the number of bytes that are posted.
    #[inline]
    pub fn len(&self) -> usize {
        self.pool.table.len(self.piece) as usize
    }

    /// Whether the length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The maximum length in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.pool.table.capacity(self.piece) as usize
    }

    /// Sets the length, up to the capacity. The contents stay unchanged.
    ///
    /// # Errors
    ///
    /// Fails if `len` exceeds the [capacity](Self::capacity).
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<(), OutOfSlice> {
        let capacity = self.capacity();
        if len > capacity {
            return Err(OutOfSlice { offset: 0, len, limit: capacity });
        }
        self.pool.table.set_len(self.piece, len as u32);
        Ok(())
    }

    /// The address of the first byte. The memory stays mapped as long as the pool, or a slice of
    /// it, exists. Reading and writing it takes unsafe code, with volatile or atomic accesses if a
    /// peer may write.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pool.table.start(self.piece)
    }

    /// The address of the first byte for a peer that has the pool's [`rkey`](super::Pool::rkey).
    #[inline]
    pub fn addr(&self) -> u64 {
        self.as_ptr().addr() as u64
    }

    /// The address of `len` bytes from `offset` on, if they are in the slice: within the pool's memory,
    /// which stays mapped while this slice exists, and to which no reference exists
    /// (`memory/pool/mod.rs`).
    #[inline]
    fn range(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfSlice> {
        OutOfSlice::check(offset, len, self.len())?;
        // The address is within the piece, so the result equals that of `add`.
        Ok(self.as_ptr().wrapping_add(offset))
    }

    /// Splits the slice in two; the first part has `mid` bytes. Each part is posted and returned
    /// separately. The pool can hand out the whole again when all parts are back.
    ///
    /// # Errors
    ///
    /// Fails if the slice is shorter than `mid`, or if the pool has no room for another
    /// [part](super::PoolBuilder::setup_parts). The slice comes back with the error.
    pub fn split_at(self, mid: usize) -> Result<(Self, Self), ConsumeError<Self>> {
        let len = self.len();
        if mid > len {
            return Err(refuse(self, "the slice is shorter", |error| {
                error.with("mid", mid).with("len", len)
            }));
        }
        match self.pool.table.cut(self.piece, mid as u32) {
            Some(other) => {
                let other = Self::new(&self.pool, other);
                Ok((self, other))
            }
            None => Err(refuse(
                self,
                "the pool has no place for another part; make it with more (`setup_parts`)",
                |error| error.of_kind(ErrorKind::LimitExceeded),
            )),
        }
    }
}

impl_accesses!(Slice);

impl Drop for Slice {
    #[inline]
    fn drop(&mut self) {
        self.pool.table.give_back(self.piece);
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({:p}, {} of {} bytes)", self.as_ptr(), self.len(), self.capacity())
    }
}

/// Slices that were posted together, in their order.
#[derive(Debug)]
pub struct Slices(
    // The slice's drop is skipped at compile time unless there is a slice.
    ManuallyDrop<Option<Slice>>,
);

impl Slices {
    /// The slices from a piece on, along its chain. They must be taken, and have no other handle.
    #[inline]
    pub(super) fn new(pool: &Handle, first: Option<PoolPiece>) -> Self {
        Self(ManuallyDrop::new(first.map(|piece| Slice::new(pool, piece))))
    }
}

impl Slices {
    #[cold]
    fn drop_all(&mut self) {
        self.for_each(drop);
    }
}

impl Iterator for Slices {
    type Item = Slice;

    fn next(&mut self) -> Option<Slice> {
        let slice = self.0.take()?;
        *self.0 = slice.pool.table.behind(slice.piece).map(|piece| Slice::new(&slice.pool, piece));
        Some(slice)
    }
}

impl Drop for Slices {
    #[inline]
    fn drop(&mut self) {
        if self.0.is_some() {
            self.drop_all();
        }
    }
}

/// The bytes are not all within the slice or the buffer.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} are not all within the {limit} bytes of the memory")]
pub struct OutOfSlice {
    /// Where they begin.
    pub offset: usize,
    /// How many they are.
    pub len: usize,
    /// How many there are; where a slice's length was to be set, how many it can have.
    pub limit: usize,
}

debug_as_text!(OutOfSlice);

impl OutOfSlice {
    #[inline]
    pub(crate) fn check(offset: usize, len: usize, limit: usize) -> Result<(), Self> {
        match offset <= limit && len <= limit - offset {
            true => Ok(()),
            false => Err(Self { offset, len, limit }),
        }
    }
}

/// Gives back a slice that cannot be split.
#[cold]
fn refuse(object: Slice, reason: &'static str, more: impl FnOnce(Error) -> Error) -> ConsumeError<Slice> {
    let error = Error::not_called("Slice::split_at", ErrorKind::OutOfBounds, reason);
    ConsumeError { object, error: more(error) }
}
