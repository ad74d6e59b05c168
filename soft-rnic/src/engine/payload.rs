//! Payload: copies between this process's memory and a peer's, by mapping, kernel or owner.

use arrayvec::ArrayVec;

use super::rpc::copy_by_rpc;
use super::{CopyError, TransferCtx};
use crate::faults;
use crate::node::{PayloadPath, VmError};
use crate::objects::region::LocalMrDescriptor;
use crate::platform::{copy, vm};
use crate::queue_pair::Qp;
use crate::shared::segment::MAX_SGE;

/// A piece of this process's memory, which the holder of the transfer slot's local hazard may
/// touch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalPiece {
    pub(crate) at: *mut u8,
    pub(crate) len: usize,
}

/// The pieces of one message on this side.
pub(crate) type LocalPieces = ArrayVec<LocalPiece, MAX_SGE>;

/// A piece of the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemotePiece {
    pub(crate) place: RemotePlace,
    pub(crate) len: usize,
    /// The key by which the owner finds its region.
    pub(crate) key: u32,
    pub(crate) address: u64,
}

/// The pieces of one message on the peer's side.
pub(crate) type RemotePieces = ArrayVec<RemotePiece, MAX_SGE>;

/// How a piece of a peer's memory is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RemotePlace {
    /// Mapped here, because the peer is this process or shares the memory.
    Mapped(*mut u8),
    /// Reached by the kernel, at this address in the peer.
    ByKernel(u64),
    /// A null region, which discards bytes.
    Null,
    /// Reached by its owner only, which must be asked.
    ByOwner,
}

impl RemotePlace {
    /// The place of a range of a region of this process; `None` if it exceeds the region.
    #[inline]
    pub(crate) fn own(region: &LocalMrDescriptor, address: u64, length: u64) -> Option<Self> {
        let mapped = region.pointer(address, length).map(Self::Mapped);
        // Only the system can find out whether a range of an implicit region has memory.
        mapped.or_else(|| region.implicit_pointer(address, length).map(|_| Self::ByKernel(address)))
    }
}

/// Whether a transfer writes to the peer or reads from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Write,
    Read,
}

impl Qp {
    /// Moves a message by the fastest path available.
    ///
    /// # Safety
    ///
    /// Hazards are published and a full fence has followed, so that the pieces on both sides may be
    /// touched. Local pieces may be written if the direction is `Read`.
    #[inline]
    pub(crate) unsafe fn move_payload(
        &self,
        ctx: TransferCtx<'_>,
        direction: Direction,
        remotes: &[RemotePiece],
    ) -> Result<(), CopyError> {
        // The common case: one piece, and one mapped piece at the peer.
        if let ([local], [RemotePiece { place: RemotePlace::Mapped(there), .. }]) =
            (ctx.gather_list.pieces.as_slice(), remotes)
            && !faults::active()
            && ctx.gather_list.by_system.is_none()
        {
            let (to, from) = match direction {
                Direction::Write => (*there, local.at.cast_const()),
                Direction::Read => (local.at, there.cast_const()),
            };
            // SAFETY: the caller guarantees that both pieces may be touched for the length of the
            // local one.
            unsafe { copy::copy(to, from, local.len) };
            ctx.count(ctx.mapped(), local.len);
            return Ok(());
        }
        // SAFETY: the contract of this function, which both callees share: after published hazards
        // and a full fence, the pieces may be touched.
        unsafe {
            if faults::active() {
                self.move_payload_with_faults(ctx, direction, remotes)
            } else {
                self.move_payload_plainly(ctx, direction, remotes)
            }
        }?;
        ctx.count(path_taken(ctx, remotes), ctx.gather_list.length());
        Ok(())
    }

    /// Moves a message without fault injection.
    ///
    /// # Safety
    ///
    /// The same as for [`move_payload`](Self::move_payload).
    pub(super) unsafe fn move_payload_plainly(
        &self,
        ctx: TransferCtx<'_>,
        direction: Direction,
        remotes: &[RemotePiece],
    ) -> Result<(), CopyError> {
        // SAFETY: the contract of this function: after published hazards and a full fence, the
        // pieces may be touched. `copy_pieces` gets no `RemotePlace::ByOwner`.
        let copied = unsafe {
            if remotes.iter().any(|remote| matches!(remote.place, RemotePlace::ByOwner)) {
                copy_by_rpc(ctx, direction, remotes)
            } else {
                copy_pieces(ctx, direction, remotes)
            }
        };
        match copied {
            // The system does not say on which side memory is missing. If a local address is beyond
            // those of programs, which only an implicit region permits, it looks like a peer that
            // has gone.
            Err(error @ (CopyError::BadAddress | CopyError::PeerGone))
                if (error == CopyError::BadAddress || ctx.gather_list.by_system.is_some())
                    && ctx.gather_list.lacks_memory(ctx.rnic.node().own_vm(), direction) =>
            {
                Err(CopyError::OwnBadAddress)
            }
            copied => copied,
        }
    }
}

/// The path of the slowest piece.
fn path_taken(ctx: TransferCtx<'_>, remotes: &[RemotePiece]) -> PayloadPath {
    let has = |wanted: fn(&RemotePlace) -> bool| remotes.iter().any(|remote| wanted(&remote.place));
    if has(|place| matches!(place, RemotePlace::ByOwner)) {
        PayloadPath::Call
    } else if has(|place| matches!(place, RemotePlace::ByKernel(_))) {
        PayloadPath::Vm
    } else {
        ctx.mapped()
    }
}

/// Moves a message. The pieces on both sides have the same total length, or the remote side has
/// more.
///
/// # Safety
///
/// Hazards are published and a full fence has followed, so that the pieces on both sides may be
/// touched. Local pieces may be written if the direction is `Read`. No remote piece is
/// `RemotePlace::ByOwner`.
unsafe fn copy_pieces(
    ctx: TransferCtx<'_>,
    direction: Direction,
    remotes: &[RemotePiece],
) -> Result<(), CopyError> {
    let locals = ctx.gather_list.pieces.as_slice();
    let mut left: usize = locals.iter().map(|piece| piece.len).sum();
    let mut locals = PieceCursor::new(locals);
    let mut vm = VmBatch::default();
    for remote in remotes {
        let mut offset = 0;
        while offset < remote.len && left > 0 {
            let (at, available) = locals.front().ok_or(CopyError::BadAddress)?;
            let len = available.min(remote.len - offset);
            match remote.place {
                RemotePlace::Mapped(base) => {
                    vm.flush(ctx, direction)?;
                    let piece = LocalPiece { at, len };
                    // SAFETY: both ranges are within pieces that the caller may touch.
                    unsafe { copy_mapped(ctx, direction, piece, base.wrapping_add(offset), len == left)? };
                }
                RemotePlace::ByKernel(base) => {
                    let there = base.wrapping_add(offset as u64);
                    let ordered = len == left && direction == Direction::Write;
                    let tail = if ordered { copy::tail_len(there as usize, len) } else { 0 };
                    let body = len - tail;
                    if body > 0 {
                        vm.add(ctx, direction, at, there, body)?;
                    }
                    if tail > 0 {
                        vm.order(ctx, direction)?;
                        vm.add(ctx, direction, at.wrapping_add(body), there.wrapping_add(body as u64), tail)?;
                    }
                }
                RemotePlace::Null => {}
                RemotePlace::ByOwner => return Err(CopyError::BadAddress),
            }
            locals.advance(len);
            offset += len;
            left -= len;
        }
    }
    vm.flush(ctx, direction)
}

/// Copies a part of a message to or from memory that is mapped here, in order if it is the last.
///
/// # Safety
///
/// The piece and as many bytes `there` may be touched.
unsafe fn copy_mapped(
    ctx: TransferCtx<'_>,
    direction: Direction,
    piece: LocalPiece,
    there: *mut u8,
    last: bool,
) -> Result<(), CopyError> {
    let by_system = ctx.gather_list.by_system;
    let (to, from) = match direction {
        Direction::Write => (there, piece.at.cast_const()),
        Direction::Read => (piece.at, there.cast_const()),
    };
    // SAFETY: the caller guarantees both sides.
    unsafe {
        match direction {
            Direction::Write if by_system.is_some() => return piece.read(by_system, to),
            Direction::Read if by_system.is_some() => return piece.write(by_system, from),
            _ if last => copy::copy(to, from, piece.len),
            _ => copy::copy_unordered(to, from, piece.len),
        }
    }
    Ok(())
}

/// A position in a list of pieces.
struct PieceCursor<'a> {
    pieces: &'a [LocalPiece],
    offset: usize,
}

impl<'a> PieceCursor<'a> {
    fn new(pieces: &'a [LocalPiece]) -> Self {
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

/// Ranges that one system call moves, in order.
#[derive(Default)]
pub(crate) struct VmBatch {
    local: ArrayVec<libc::iovec, VM_BATCH>,
    remote: ArrayVec<libc::iovec, VM_BATCH>,
    bytes: usize,
}

/// The most ranges of one system call.
const VM_BATCH: usize = 256;

const _: () = assert!(VM_BATCH <= vm::MAX_RANGES);

impl VmBatch {
    /// Adds a range. Whenever the batch is full, first moves the ranges that it has.
    fn add(
        &mut self,
        ctx: TransferCtx<'_>,
        direction: Direction,
        here: *mut u8,
        there: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        let mut done = 0;
        while done < len {
            if self.local.is_full() || self.bytes == vm::MAX_BYTES {
                self.flush(ctx, direction)?;
            }
            let part = (len - done).min(vm::MAX_BYTES - self.bytes);
            self.push(here.wrapping_add(done), there.wrapping_add(done as u64), part);
            done += part;
        }
        Ok(())
    }

    fn push(&mut self, here: *mut u8, there: u64, len: usize) {
        self.local.push(vm::local(here, len));
        // One remote range costs less than two. The local ranges keep the order.
        match self.remote.last_mut() {
            Some(last) if last.iov_base.addr().wrapping_add(last.iov_len) as u64 == there => {
                last.iov_len += len
            }
            _ => self.remote.push(vm::remote(there, len)),
        }
        self.bytes += len;
    }

    /// Makes the ranges that are added from now on visible after those added so far.
    #[inline]
    fn order(&mut self, ctx: TransferCtx<'_>, direction: Direction) -> Result<(), CopyError> {
        // The kernel copies range after range, and x86-64 does not reorder stores. Other processors
        // need a second call behind a barrier (docs/internals/soft-rnic-ordering.md).
        if vm::ORDERED {
            return Ok(());
        }
        self.flush(ctx, direction)?;
        core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
        Ok(())
    }

    fn flush(&mut self, ctx: TransferCtx<'_>, direction: Direction) -> Result<(), CopyError> {
        if self.local.is_empty() {
            return Ok(());
        }
        let process = &ctx.peer.process;
        let vm = process.vm().ok_or(CopyError::PathLost)?;
        // SAFETY: the caller of `copy_pieces` may touch the local pieces. The kernel checks the
        // remote ranges.
        let result = unsafe {
            match direction {
                Direction::Write => vm.write(&self.local, &self.remote),
                Direction::Read => vm.read(&self.local, &self.remote),
            }
        };
        process.counters().add_call(ctx.transfer_slot);
        self.local.clear();
        self.remote.clear();
        let wanted = core::mem::take(&mut self.bytes);
        match result {
            // This process has no other path.
            Err(VmError::Forbidden(_)) if process.is_own() => return Err(CopyError::BadAddress),
            Err(VmError::Forbidden(error)) => process.disable_vm(error),
            _ => {}
        }
        // A short count means that the next range is not mapped in the peer.
        if result.map_err(CopyError::from)? == wanted { Ok(()) } else { Err(CopyError::BadAddress) }
    }
}
