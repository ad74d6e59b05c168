//! The gather list of a request: checks local keys and finds pointers.

use rdma_mummy_sys::types::{ibv_access_flags, ibv_sge, ibv_wc_status};

use super::CopyError;
use super::payload::{Direction, LocalPiece, LocalPieces};
use crate::objects::region::{LocalMrDescriptor, RegionSlot};
use crate::platform::copy;
use crate::platform::mappings::Survey;
use crate::platform::vm::Vm;
use crate::queue_pair::Qp;
use crate::queue_pair::send_queue::{PayloadKind, PostedSend};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::{Hazard, HazardSlot};

/// Pieces whose keys were valid when they were looked up, and the generations to compare again.
#[derive(Default)]
pub(crate) struct GatherList<'a> {
    pub(crate) pieces: LocalPieces,
    /// The system must copy the pieces, because one of them is in an implicit region and may have no
    /// memory.
    pub(crate) by_system: Option<Vm>,
    generations:
        arrayvec::ArrayVec<(&'a RegionSlot, GenerationSnapshot), { crate::shared::segment::MAX_SGE }>,
}

impl GatherList<'_> {
    /// Pieces whose keys another list checks.
    pub(super) fn of(pieces: LocalPieces, by_system: Option<Vm>) -> Self {
        Self { pieces, by_system, ..Self::default() }
    }

    /// Whether all keys are still valid. Call it after the hazard was set and a full fence has
    /// followed.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.generations.iter().all(|(region, snapshot)| region.is_current(*snapshot))
    }

    /// Copies all bytes of the pieces to `to`, in any order.
    ///
    /// # Errors
    ///
    /// `OwnBadAddress` if a piece has no memory.
    ///
    /// # Safety
    ///
    /// The hazard is set, a full fence has followed, and the keys are valid. `to` has room for all
    /// pieces.
    #[inline]
    pub(crate) unsafe fn read_all(&self, mut to: *mut u8) -> Result<(), CopyError> {
        for piece in &self.pieces {
            // SAFETY: the caller guarantees both sides.
            unsafe { piece.read(self.by_system, to)? };
            to = to.wrapping_add(piece.len);
        }
        Ok(())
    }

    /// Whether a copy by the system failed because a piece has no memory, or none for this.
    #[cold]
    pub(super) fn lacks_memory(&self, own: Option<Vm>, direction: Direction) -> bool {
        self.pieces.iter().filter(|piece| piece.len > 0).any(|piece| {
            let forbids = Survey::of(piece.at.addr(), piece.len).is_ok_and(|survey| match direction {
                Direction::Write => !survey.readable,
                Direction::Read => !survey.writable,
            });
            // A mapping of a file may reach beyond the file's end.
            forbids || own.is_some_and(|vm| !vm.reaches_own(piece.at, piece.len))
        })
    }

    /// The sum of the lengths of all pieces.
    pub(crate) fn length(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len).sum()
    }
}

impl LocalPiece {
    /// Copies the piece to `to`, in any order.
    ///
    /// # Errors
    ///
    /// `OwnBadAddress` if the piece has no memory.
    ///
    /// # Safety
    ///
    /// The piece may be read, if necessary `by_system` alone, and `to` has room for it.
    #[inline]
    pub(crate) unsafe fn read(self, by_system: Option<Vm>, to: *mut u8) -> Result<(), CopyError> {
        let Some(vm) = by_system else {
            // SAFETY: the caller guarantees both sides.
            unsafe { copy::copy_unordered(to, self.at, self.len) };
            return Ok(());
        };
        // SAFETY: the caller guarantees the destination, and has offered the source.
        unsafe { vm.read_own(to, self.at, self.len) }.map_err(|_| CopyError::OwnBadAddress)
    }

    /// Fills the piece from `from`. The last bytes become visible last.
    ///
    /// # Errors
    ///
    /// `OwnBadAddress` if the piece has no memory.
    ///
    /// # Safety
    ///
    /// The piece may be written, if necessary `by_system` alone, and `from` has as many bytes.
    #[inline]
    pub(crate) unsafe fn write(self, by_system: Option<Vm>, from: *const u8) -> Result<(), CopyError> {
        let Some(vm) = by_system else {
            // SAFETY: the caller guarantees both sides.
            unsafe { copy::copy(self.at, from, self.len) };
            return Ok(());
        };
        // SAFETY: the caller guarantees the source, and has offered the destination.
        unsafe { vm.write_own(self.at, from, self.len) }.map_err(|_| CopyError::OwnBadAddress)
    }
}

impl Qp {
    /// Finds the pieces of a request and sets the local hazard for them, without a fence.
    #[inline]
    pub(crate) fn gather<'a>(
        &'a self,
        posted: &PostedSend<'_>,
        writes: bool,
        hazard: &HazardSlot,
        gather_list: &mut GatherList<'a>,
    ) -> Result<(), ibv_wc_status> {
        if posted.request.payload == PayloadKind::Inline {
            let len = posted.request.length as usize;
            if len > 0 {
                gather_list.pieces.push(LocalPiece { at: posted.inline.cast_mut(), len });
            }
            return Ok(());
        }
        self.gather_entries(posted.entries, self.pd.number(), u64::MAX, writes, hazard, gather_list)
    }

    /// Finds the pieces of a list of entries of the protection domain `pd`, up to `limit` bytes.
    /// Sets the local hazard for them, without a fence.
    #[inline]
    pub(crate) fn gather_entries<'a>(
        &'a self,
        entries: &[ibv_sge],
        pd: u32,
        limit: u64,
        writes: bool,
        hazard: &HazardSlot,
        gather_list: &mut GatherList<'a>,
    ) -> Result<(), ibv_wc_status> {
        let mut hazard_index = Hazard::NO_REGION;
        let mut left = limit;
        for entry in entries.iter().filter(|entry| entry.length > 0) {
            let length = u64::from(entry.length).min(left);
            if length == 0 {
                break;
            }
            left -= length;
            let found = self.rnic.regions().read(entry.lkey);
            let (region, snapshot, descriptor) = found.ok_or(ibv_wc_status::IBV_WC_LOC_PROT_ERR)?;
            let may_write = descriptor.access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 != 0;
            let at = descriptor
                .pointer(entry.addr, length)
                .or_else(|| descriptor.null_pointer(length, writes))
                .or_else(|| self.implicit_piece(&descriptor, entry.addr, length, gather_list));
            let (Some(at), true) = (at, descriptor.pd == pd && (may_write || !writes)) else {
                return Err(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
            };
            let index = entry.lkey >> 8;
            hazard_index = if hazard_index == Hazard::NO_REGION || hazard_index == index {
                index
            } else {
                Hazard::ANY_REGION
            };
            gather_list.pieces.push(LocalPiece { at, len: length as usize });
            gather_list.generations.push((region, snapshot));
        }
        if hazard_index != Hazard::NO_REGION {
            hazard.set(Hazard::new(self.number.index, hazard_index));
        }
        Ok(())
    }

    /// A piece of an implicit region, which the system must copy.
    #[cold]
    fn implicit_piece(
        &self,
        descriptor: &LocalMrDescriptor,
        address: u64,
        length: u64,
        gather_list: &mut GatherList<'_>,
    ) -> Option<*mut u8> {
        let at = descriptor.implicit_pointer(address, length)?;
        gather_list.by_system = Some(self.rnic.node().own_vm()?);
        Some(at)
    }
}
