//! Moving payload between pieces of this process's memory and pieces of a peer's.

use arrayvec::ArrayVec;

use super::call::move_by_asking;
use super::{Broken, Way};
use crate::faults;
use crate::node::{PathTaken, VmError};
use crate::platform::{copy, vm};
use crate::queue_pair::Qp;
use crate::shared::segment::MAX_SGE;

/// A piece of this process's memory, which the holder of the lane's local mark may touch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) at: *mut u8,
    pub(crate) len: usize,
}

/// Pieces of one message on this side.
pub(crate) type Locals = ArrayVec<Local, MAX_SGE>;

/// A piece of the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) place: Place,
    pub(crate) len: usize,
    /// By which the owner finds it.
    pub(crate) key: u32,
    pub(crate) address: u64,
}

/// Pieces of one message on the peer's side.
pub(crate) type Remotes = ArrayVec<Remote, MAX_SGE>;

/// How a piece of a peer's memory is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// It is mapped here: the peer is this process, or shares it.
    Here(*mut u8),
    /// By the kernel, at this address of the peer.
    There(u64),
    /// A null region: bytes for it are lost.
    Nowhere,
    /// The owner has to do it.
    Ask,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Write,
    Read,
}

impl Qp {
    /// Moves a message, by whatever way there is.
    ///
    /// # Safety
    ///
    /// As [`move_message`].
    #[inline]
    pub(crate) unsafe fn carry(
        &self,
        way: Way<'_>,
        direction: Direction,
        remotes: &[Remote],
    ) -> Result<(), Broken> {
        // Nearly always: one piece to one that is mapped here.
        if let ([local], [Remote { place: Place::Here(there), .. }]) =
            (way.gathered.pieces.as_slice(), remotes)
            && !faults::active()
        {
            let (to, from) = match direction {
                Direction::Write => (*there, local.at.cast_const()),
                Direction::Read => (local.at, there.cast_const()),
            };
            // SAFETY: both may be touched, by the caller's promise, for the length of the local piece.
            unsafe { copy::copy(to, from, local.len) };
            way.count(way.mapped(), local.len);
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe {
            if faults::active() {
                self.carry_with_faults(way, direction, remotes)
            } else {
                self.carry_plainly(way, direction, remotes)
            }
        }?;
        way.count(path_taken(way, remotes), way.gathered.length());
        Ok(())
    }

    /// # Safety
    ///
    /// As [`move_message`].
    pub(super) unsafe fn carry_plainly(
        &self,
        way: Way<'_>,
        direction: Direction,
        remotes: &[Remote],
    ) -> Result<(), Broken> {
        // SAFETY: the caller's promise.
        unsafe {
            if remotes.iter().any(|remote| matches!(remote.place, Place::Ask)) {
                move_by_asking(way, direction, remotes)
            } else {
                move_message(way, direction, remotes)
            }
        }
    }
}

/// The path of the slowest piece.
fn path_taken(way: Way<'_>, remotes: &[Remote]) -> PathTaken {
    let has = |wanted: fn(&Place) -> bool| remotes.iter().any(|remote| wanted(&remote.place));
    if has(|place| matches!(place, Place::Ask)) {
        PathTaken::Call
    } else if has(|place| matches!(place, Place::There(_))) {
        PathTaken::Vm
    } else {
        way.mapped()
    }
}

/// Moves a message; both sides have pieces of the same length in all (the remote side may have more).
///
/// # Safety
///
/// Marks are published and were settled, so that the pieces on both sides may be touched; local pieces are written
/// if the direction is `Read`. `Place::Ask` is not among them.
unsafe fn move_message(way: Way<'_>, direction: Direction, remotes: &[Remote]) -> Result<(), Broken> {
    let locals = way.gathered.pieces.as_slice();
    let mut left: usize = locals.iter().map(|piece| piece.len).sum();
    let mut locals = Cursor::new(locals);
    let mut vm = Batch::default();
    for remote in remotes {
        let mut offset = 0;
        while offset < remote.len && left > 0 {
            let (at, available) = locals.front().ok_or(Broken::Address)?;
            let len = available.min(remote.len - offset);
            match remote.place {
                Place::Here(base) => {
                    vm.flush(way, direction)?;
                    let there = base.wrapping_add(offset);
                    let (to, from) = match direction {
                        Direction::Write => (there, at.cast_const()),
                        Direction::Read => (at, there.cast_const()),
                    };
                    // SAFETY: both are within pieces that the caller may touch.
                    unsafe {
                        if len == left {
                            copy::copy(to, from, len);
                        } else {
                            copy::copy_unordered(to, from, len);
                        }
                    }
                }
                Place::There(base) => {
                    let there = base.wrapping_add(offset as u64);
                    let ordered = len == left && direction == Direction::Write;
                    let tail = if ordered { copy::tail_len(there as usize, len) } else { 0 };
                    let body = len - tail;
                    if body > 0 {
                        vm.add(way, direction, at, there, body)?;
                    }
                    if tail > 0 {
                        vm.order(way, direction)?;
                        vm.add(way, direction, at.wrapping_add(body), there.wrapping_add(body as u64), tail)?;
                    }
                }
                Place::Nowhere => {}
                Place::Ask => return Err(Broken::Address),
            }
            locals.advance(len);
            offset += len;
            left -= len;
        }
    }
    vm.flush(way, direction)
}

/// Steps through pieces.
struct Cursor<'a> {
    pieces: &'a [Local],
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn new(pieces: &'a [Local]) -> Self {
        let mut cursor = Self { pieces, offset: 0 };
        cursor.advance(0);
        cursor
    }

    fn front(&self) -> Option<(*mut u8, usize)> {
        let piece = self.pieces.first()?;
        Some((piece.at.wrapping_add(self.offset), piece.len - self.offset))
    }

    fn advance(&mut self, len: usize) {
        self.offset += len;
        while let Some((first, rest)) = self.pieces.split_first() {
            if self.offset < first.len {
                break;
            }
            self.offset -= first.len;
            self.pieces = rest;
        }
    }
}

/// Pieces that one system call moves, in order.
#[derive(Default)]
pub(crate) struct Batch {
    local: ArrayVec<libc::iovec, BATCH>,
    remote: ArrayVec<libc::iovec, BATCH>,
    bytes: usize,
}

/// Pieces of a system call at most.
const BATCH: usize = 256;

const _: () = assert!(BATCH <= vm::MAX_RANGES);

impl Batch {
    /// Adds a piece; moves what there is first if it is full.
    fn add(
        &mut self,
        way: Way<'_>,
        direction: Direction,
        here: *mut u8,
        there: u64,
        len: usize,
    ) -> Result<(), Broken> {
        if self.local.is_full() {
            self.flush(way, direction)?;
        }
        self.local.push(vm::local(here, len));
        // One range of the peer's costs less than two; this side's keep the order.
        match self.remote.last_mut() {
            Some(last) if last.iov_base.addr().wrapping_add(last.iov_len) as u64 == there => {
                last.iov_len += len
            }
            _ => self.remote.push(vm::remote(there, len)),
        }
        self.bytes += len;
        Ok(())
    }

    /// What is added from now on is not seen before what was added so far.
    #[inline]
    fn order(&mut self, way: Way<'_>, direction: Direction) -> Result<(), Broken> {
        // The kernel copies range after range, and x86-64 does not reorder stores; elsewhere it takes a second call,
        // behind a barrier (docs/internals/soft-rnic-ordering.md).
        if vm::ORDERED {
            return Ok(());
        }
        self.flush(way, direction)?;
        core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
        Ok(())
    }

    fn flush(&mut self, way: Way<'_>, direction: Direction) -> Result<(), Broken> {
        if self.local.is_empty() {
            return Ok(());
        }
        let link = &way.peer.link;
        let vm = link.vm().ok_or(Broken::Path)?;
        // SAFETY: the caller of `move_message` may touch the local pieces; the remote ones are the kernel's concern.
        let result = unsafe {
            match direction {
                Direction::Write => vm.write(&self.local, &self.remote),
                Direction::Read => vm.read(&self.local, &self.remote),
            }
        };
        link.counters().add_call(way.lane);
        self.local.clear();
        self.remote.clear();
        let wanted = core::mem::take(&mut self.bytes);
        if let Err(VmError::Forbidden(error)) = result {
            link.forget_vm(error);
        }
        // Fewer bytes: the next range is not there.
        if result.map_err(Broken::from)? == wanted { Ok(()) } else { Err(Broken::Address) }
    }
}
