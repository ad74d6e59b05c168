//! `riomap` and `riowrite`: memory that the peer writes to directly.

use std::ffi::c_int;

use super::message::{RemoteMapping, RsMessageKind};
use super::queues::{UserBuffer, UserMr};
use super::socket::{Blocking, RSocket, RsPhase, RsState};
use super::stream::UserBuffers;
use super::wait::Deadline;

/// Memory that the program has mapped.
pub(super) struct IoMapping {
    region: UserMr,
    base: usize,
    length: usize,
    /// The offset by which the peer addresses the memory; `None` if the peer may not write to it.
    offset: Option<u64>,
}

impl IoMapping {
    fn overlaps(&self, offset: u64, length: u64) -> bool {
        self.offset.is_some_and(|own| offset < own + self.length as u64 && own < offset + length)
    }
}

impl RSocket {
    /// Maps memory, announces it to the peer if `is_remote`, and returns its offset. The default
    /// offset is the memory's address. Waits while too many earlier announcements are unsent.
    ///
    /// # Safety
    ///
    /// - The program leaves the range to the device until it is unmapped or the rsocket is closed.
    pub(super) unsafe fn map(
        &self,
        piece: UserBuffer,
        is_remote: bool,
        offset: Option<i64>,
    ) -> Result<i64, c_int> {
        let chosen = offset.unwrap_or(piece.base.addr() as i64);
        let start = u64::try_from(chosen).map_err(|_| libc::EINVAL)?;
        let length = piece.length as u64;
        if length == 0 || start.checked_add(length).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(libc::EINVAL);
        }
        let deadline = Deadline::after(self.locked().options.send_timeout);
        let offset = is_remote.then_some(start);
        // SAFETY: the caller guarantees that the device may use the range until it is unmapped or
        // the rsocket is closed.
        self.attempt(Blocking::Usually, deadline, |state| unsafe { state.map(piece, offset) })?;
        Ok(chosen)
    }

    /// Unmaps memory, so that the peer can no longer write to it.
    pub(super) fn unmap(&self, base: usize, length: usize) -> Result<(), c_int> {
        let mut state = self.locked();
        let state = &mut *state;
        let place = state.mapped.iter().position(|mapped| (mapped.base, mapped.length) == (base, length));
        let (place, stream) = place.zip(state.stream.as_mut()).ok_or(libc::EINVAL)?;
        if let Some(offset) = state.mapped[place].offset.take() {
            stream.tell(RsMessageKind::Unmap, &offset.to_le_bytes());
        }
        // If this fails, the mapping stays, so that the program may try again.
        stream.queues.deregister(&state.mapped[place].region)?;
        state.mapped.swap_remove(place);
        Ok(())
    }

    /// Writes to memory that the peer has mapped at this offset. The bytes arrive before anything
    /// sent later.
    ///
    /// # Safety
    ///
    /// - The piece is readable.
    pub(super) unsafe fn write_to(
        &self,
        piece: UserBuffer,
        offset: i64,
        flags: c_int,
    ) -> Result<usize, c_int> {
        let start = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
        if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let wait = if flags & libc::MSG_DONTWAIT != 0 { Blocking::Never } else { Blocking::Usually };
        let pieces = [piece];
        let mut pieces = UserBuffers::new(&pieces)?;
        let deadline = Deadline::after(self.locked().options.send_timeout);
        let mut total = 0;
        let written = self.attempt(wait, deadline, |state| {
            let stream = match state.live_stream() {
                Ok(stream) => stream,
                Err(error) => return error.map(Err),
            };
            let at = start + total as u64;
            let Some(to) = stream.mapping(at, pieces.left() as u64) else { return Some(Err(libc::EINVAL)) };
            // SAFETY: the caller guarantees that the piece is readable.
            total += unsafe { stream.write_to(&to, at, &mut pieces) };
            (pieces.left() == 0).then_some(Ok(()))
        });
        if total > 0 { Ok(total) } else { written.map(|()| 0) }
    }
}

impl RsState {
    /// Attempts to map once. Returns `None` if the caller must wait, because too many announcements
    /// are unsent.
    ///
    /// # Safety
    ///
    /// - As for [`RSocket::map`].
    unsafe fn map(&mut self, piece: UserBuffer, offset: Option<u64>) -> Option<Result<(), c_int>> {
        let is_connected = matches!(self.phase, RsPhase::Answering | RsPhase::Connected);
        let Some(stream) = self.stream.as_mut().filter(|_| is_connected) else {
            return Some(Err(libc::ENOTCONN));
        };
        let (base, length) = (piece.base.addr(), piece.length);
        if let Some(start) = offset {
            let remote = self.mapped.iter().filter(|mapped| mapped.offset.is_some()).count();
            if self.mapped.iter().any(|mapped| mapped.overlaps(start, length as u64)) {
                return Some(Err(libc::EINVAL));
            }
            if remote >= stream.their_mappings.into() {
                return Some(Err(libc::ENOMEM));
            }
            if stream.has_much_to_tell() {
                return None;
            }
        }
        // SAFETY: the caller guarantees that the device may use the range until it is unmapped or
        // the rsocket is closed.
        let (region, rkey) = match unsafe { stream.queues.register(piece, offset.is_some()) } {
            Ok(registered) => registered,
            Err(error) => return Some(Err(error)),
        };
        self.mapped.push(IoMapping { region, base, length, offset });
        if let Some(offset) = offset {
            let mapping = RemoteMapping { offset, length: length as u64, address: base as u64, rkey };
            stream.tell(RsMessageKind::Map, &mapping.encode());
        }
        Some(Ok(()))
    }

    /// The stream if it is writable. The error is `None` while the connection is being made.
    fn live_stream(&mut self) -> Result<&mut super::stream::RsStream, Option<c_int>> {
        match self.phase {
            RsPhase::Connected if self.writes_no_more => Err(Some(libc::EPIPE)),
            RsPhase::Connected => self.stream.as_mut().ok_or(Some(libc::ENOTCONN)),
            RsPhase::Over => Err(Some(match core::mem::take(&mut self.error) {
                0 => libc::EPIPE,
                error => error,
            })),
            RsPhase::Resolving | RsPhase::Routing | RsPhase::Asking | RsPhase::Answering => Err(None),
            RsPhase::Idle | RsPhase::Listening | RsPhase::Closed => Err(Some(libc::ENOTCONN)),
        }
    }

    /// Unmaps all memory at the end of the connection.
    pub(super) fn unmap_all(&mut self) {
        let Some(stream) = &self.stream else { return };
        for mapped in self.mapped.drain(..) {
            if let Err(error) = stream.queues.deregister(&mapped.region) {
                log::warn!(
                    "{} bytes at {:#x} of an rsocket's mapping could not be deregistered: error {error}",
                    mapped.length,
                    mapped.base
                );
            }
        }
    }
}
