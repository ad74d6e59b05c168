//! Pieces of a pool's memory that the program has.

use std::fmt;
use std::mem::ManuallyDrop;

use super::handle::Handle;
use super::table::PoolPiece;
use crate::error::{ConsumeError, Error, ErrorKind};
use crate::memory::bytes::{self, Word};

/// A piece of a pool's memory that nobody else in the program has: to be filled, posted, or looked at.
///
/// It is not a slice of Rust's, and there is no way to one: a peer that knows the pool's key, or a device, may write to its
/// bytes at any time. They are copied in and out.
///
/// Dropping it gives it back to its pool; posting it (`setup_slice`) hands it to the device, and with the completion it comes back.
/// A slice that is leaked (`mem::forget`) is missing from its pool, and keeps the pool's memory for ever.
pub struct Slice {
    pool: Handle,
    /// Of the pool's table.
    piece: PoolPiece,
}

impl Slice {
    /// The piece is taken, and this the only handle of it.
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

    /// The piece is the caller's from now on.
    #[inline]
    pub(crate) fn into_piece(self) -> PoolPiece {
        let this = ManuallyDrop::new(self);
        // SAFETY: the slice's own drop does not run, so this is the only one of the pool's handle.
        drop(unsafe { std::ptr::read(&raw const this.pool) });
        this.piece
    }

    /// How many bytes it has: so many are posted.
    #[inline]
    pub fn len(&self) -> usize {
        self.pool.table.len(self.piece) as usize
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes it can have.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.pool.table.capacity(self.piece) as usize
    }

    /// Makes it shorter, or longer again. What was in it stays there.
    ///
    /// # Errors
    ///
    /// That is more than its [capacity](Self::capacity).
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<(), OutOfSlice> {
        let capacity = self.capacity();
        if len > capacity {
            return Err(OutOfSlice { offset: 0, len, limit: capacity });
        }
        self.pool.table.set_len(self.piece, len as u32);
        Ok(())
    }

    /// Where its first byte is. The memory stays mapped as long as the pool, or a slice of it, lives; reading and writing it are
    /// the caller's unsafe code, by volatile or atomic accesses where a peer may write.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pool.table.start(self.piece)
    }

    /// The same, as a peer names it that has the pool's [`rkey`](super::Pool::rkey).
    #[inline]
    pub fn addr(&self) -> u64 {
        self.as_ptr().addr() as u64
    }

    /// Where `len` bytes from `offset` on begin.
    #[inline]
    fn range(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfSlice> {
        let limit = self.len();
        if offset > limit || len > limit - offset {
            return Err(OutOfSlice { offset, len, limit });
        }
        // Within the piece, so this is what `add` would be.
        Ok(self.as_ptr().wrapping_add(offset))
    }

    /// Copies bytes into it, from its byte number `offset` on.
    ///
    /// # Errors
    ///
    /// It is shorter than that. Nothing is copied.
    #[inline]
    pub fn copy_from_slice(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfSlice> {
        let start = self.range(offset, bytes.len())?;
        // SAFETY: within the pool's memory, which is mapped as long as this is there, and to which nobody has a reference
        // (`memory/pool/mod.rs`).
        unsafe { bytes::copy_in(start, bytes) };
        Ok(())
    }

    /// Copies bytes out of it, from its byte number `offset` on. A peer that writes at the same time makes a mixture of them.
    ///
    /// # Errors
    ///
    /// It is shorter than that. Nothing is copied.
    #[inline]
    pub fn copy_to_slice(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfSlice> {
        let start = self.range(offset, bytes.len())?;
        // SAFETY: within the pool's memory, which is mapped as long as this is there, and to which
        // nobody has a reference (`memory/pool/mod.rs`).
        unsafe { bytes::copy_out(bytes, start) };
        Ok(())
    }

    /// Sets all of its bytes.
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: within the pool's memory, which is mapped as long as this is there, and to which
        // nobody has a reference (`memory/pool/mod.rs`).
        unsafe { bytes::fill(self.as_ptr(), byte, self.len()) };
    }

    /// Reads a number of one, two, four or eight bytes, in the processor's order. At an address that is a multiple of its size
    /// it is read as a whole, and what a peer wrote before it is there, too: so a program can wait for a peer's write. (Slices
    /// that are not split begin at a multiple of 64.)
    ///
    /// # Errors
    ///
    /// The slice is shorter than that.
    #[inline]
    pub fn read<W: Word>(&self, offset: usize) -> Result<W, OutOfSlice> {
        let start = self.range(offset, size_of::<W>())?;
        // SAFETY: within the pool's memory, which is mapped as long as this is there, and to which
        // nobody has a reference (`memory/pool/mod.rs`).
        Ok(unsafe { W::load(start) })
    }

    /// Writes a number, as [`read`](Self::read) reads it.
    ///
    /// # Errors
    ///
    /// The slice is shorter than that.
    #[inline]
    pub fn write<W: Word>(&mut self, offset: usize, value: W) -> Result<(), OutOfSlice> {
        let start = self.range(offset, size_of::<W>())?;
        // SAFETY: within the pool's memory, which is mapped as long as this is there, and to which
        // nobody has a reference (`memory/pool/mod.rs`).
        unsafe { value.store(start) };
        Ok(())
    }

    /// Splits it in two, the first of `mid` bytes. Each is posted and given back alone; the pool can give out the whole again
    /// when both are back.
    ///
    /// # Errors
    ///
    /// It is shorter than that, or the pool has no place for another [part](super::PoolBuilder::setup_parts). It comes back with
    /// the error.
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
    // Dropped by the drop, where there is one at all.
    ManuallyDrop<Option<Slice>>,
);

impl Slices {
    /// From a piece on, as they are chained; all of them are taken, and this the only handle of them.
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

/// A slice has not so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} are not all within the {limit} bytes of the slice")]
pub struct OutOfSlice {
    /// Where they begin.
    pub offset: usize,
    /// How many they are.
    pub len: usize,
    /// How many the slice has; where its length was to be set, how many it can have.
    pub limit: usize,
}

/// Gives back a slice that cannot be split.
#[cold]
fn refuse(object: Slice, reason: &'static str, more: impl FnOnce(Error) -> Error) -> ConsumeError<Slice> {
    let error = Error::not_called("Slice::split_at", ErrorKind::OutOfBounds, reason);
    ConsumeError { object, error: more(error) }
}
