//! Operations that are under way.

use std::collections::VecDeque;
use std::fmt;

use super::connection::{OperationTime, Shared, Windows};
use super::error::WindowError;
use super::key::WindowKey;
use super::message::{self, MOST_BYTES, Operation, Status, WindowRequest};
use super::pieces::{Piece, Pieces};
use super::summary::Began;
use crate::mux::PendingAnswer;
use crate::session::times::OperationKind;

/// The messages of one operation that are under way at a time.
const DEPTH: usize = 16;
/// The bytes of an operation that does not wait.
pub(super) const MOST_PENDING: usize = DEPTH * MOST_BYTES;

/// A put or a get, whose pieces are under way.
pub(super) struct Transfer {
    key: WindowKey,
    operation: Operation,
    time: OperationTime,
    under_way: VecDeque<(Piece, WindowRequest, PendingAnswer)>,
}

/// What the owner has sent for one message, and the place of its bytes.
pub(super) struct AnsweredPiece {
    piece: Piece,
    answer: Vec<u8>,
}

impl AnsweredPiece {
    /// Copies the bytes to their place in the buffer.
    pub(super) fn copy(&self, into: &mut [u8]) {
        into[self.piece.bytes.clone()].copy_from_slice(&self.answer[message::ANSWER..]);
    }
}

impl Transfer {
    pub(super) fn new(key: &WindowKey, operation: Operation, time: OperationTime) -> Self {
        Self { key: key.clone(), operation, time, under_way: VecDeque::new() }
    }

    /// Whether another piece may be under way.
    pub(super) fn has_room(&self) -> bool {
        self.under_way.len() < DEPTH
    }

    /// Begins a piece. A put sends `bytes`, and a get has none.
    pub(super) fn begin(&mut self, shared: &Shared, piece: Piece, bytes: &[u8]) -> Result<(), WindowError> {
        let request = piece.request(&self.key, self.operation);
        let mut message = request.encode(bytes.len());
        message.extend_from_slice(bytes);
        let pending = shared.begin(message, self.time)?;
        self.under_way.push_back((piece, request, pending));
        Ok(())
    }

    /// Waits for the answer to the oldest piece. `None` means that all have theirs.
    pub(super) fn end(&mut self, shared: &Shared) -> Result<Option<AnsweredPiece>, WindowError> {
        let Some((piece, request, pending)) = self.under_way.pop_front() else { return Ok(None) };
        let answer = shared.answer(pending, self.time)?;
        let (status, bytes) = Status::decode(&answer)?;
        status.result(Some(&self.key), &request)?;
        let expected = if self.operation == Operation::Get { piece.bytes.len() } else { 0 };
        if bytes.len() != expected {
            return Err(WindowError::Protocol { what: "an answer with other bytes than were asked for" });
        }
        Ok(Some(AnsweredPiece { piece, answer }))
    }

    /// Whether all pieces have answers, as far as calls know.
    fn is_performed(&self) -> bool {
        self.under_way.iter().all(|(_, _, pending)| pending.has_arrived())
    }

    /// Begins all pieces of a short operation.
    fn begin_all(
        windows: &Windows,
        key: &WindowKey,
        operation: Operation,
        offset: u64,
        len: usize,
        bytes: &[u8],
    ) -> Result<Self, WindowError> {
        if len > MOST_PENDING {
            return Err(WindowError::TooLong { len, most: MOST_PENDING });
        }
        let pieces = Pieces::of_one(offset, len);
        let mut transfer = windows.0.transfer(key, operation, &pieces, windows.0.time())?;
        for piece in pieces {
            let bytes = bytes.get(piece.bytes.clone()).unwrap_or_default();
            transfer.begin(&windows.0, piece, bytes)?;
        }
        Ok(transfer)
    }
}

/// A put that is under way. If it is dropped, it may or may not be performed.
pub struct PendingPut {
    windows: Windows,
    transfer: Transfer,
    began: Began,
    len: usize,
}

impl PendingPut {
    pub(super) fn begin(
        windows: &Windows,
        key: &WindowKey,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Self, WindowError> {
        let (began, len) = (windows.0.summary.begin(), bytes.len());
        let transfer = Transfer::begin_all(windows, key, Operation::Put, offset, len, bytes)?;
        Ok(Self { windows: windows.clone(), transfer, began, len })
    }

    /// Whether the owner has performed or refused it, as far as calls on the connection know.
    #[must_use]
    pub fn is_performed(&self) -> bool {
        self.transfer.is_performed()
    }

    /// Waits until the owner has performed it.
    ///
    /// # Errors
    ///
    /// Those of [`Windows::put`]. The time of an operation begins with this call.
    pub fn wait(mut self) -> Result<(), WindowError> {
        self.transfer.time = self.windows.0.time();
        while self.transfer.end(&self.windows.0)?.is_some() {}
        self.windows.0.summary.end(self.began, OperationKind::Put, self.len);
        Ok(())
    }
}

impl fmt::Debug for PendingPut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingPut({} messages)", self.transfer.under_way.len())
    }
}

/// A get that is under way. A drop gives it up.
pub struct PendingGet {
    windows: Windows,
    transfer: Transfer,
    began: Began,
    len: usize,
}

impl PendingGet {
    pub(super) fn begin(
        windows: &Windows,
        key: &WindowKey,
        offset: u64,
        len: usize,
    ) -> Result<Self, WindowError> {
        let began = windows.0.summary.begin();
        let transfer = Transfer::begin_all(windows, key, Operation::Get, offset, len, &[])?;
        Ok(Self { windows: windows.clone(), transfer, began, len })
    }

    /// The number of bytes that it gets.
    #[expect(clippy::len_without_is_empty, reason = "no collection")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the owner has performed or refused it, as far as calls on the connection know.
    #[must_use]
    pub fn is_performed(&self) -> bool {
        self.transfer.is_performed()
    }

    /// Waits for the bytes, and copies them to the start of the buffer.
    ///
    /// # Errors
    ///
    /// Those of [`Windows::get`]. The time of an operation begins with this call.
    ///
    /// # Panics
    ///
    /// The buffer is shorter than [`len`](Self::len).
    pub fn wait_into(mut self, into: &mut [u8]) -> Result<(), WindowError> {
        self.transfer.time = self.windows.0.time();
        while let Some(answered) = self.transfer.end(&self.windows.0)? {
            answered.copy(into);
        }
        self.windows.0.summary.end(self.began, OperationKind::Get, self.len);
        Ok(())
    }

    /// Waits for the bytes.
    ///
    /// # Errors
    ///
    /// Those of [`wait_into`](Self::wait_into).
    pub fn wait(self) -> Result<Vec<u8>, WindowError> {
        let mut bytes = vec![0; self.len];
        self.wait_into(&mut bytes)?;
        Ok(bytes)
    }
}

impl fmt::Debug for PendingGet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingGet({} bytes, {} messages)", self.len, self.transfer.under_way.len())
    }
}
