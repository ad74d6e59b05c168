//! Operations that are under way.

use std::collections::VecDeque;
use std::fmt;

use super::connection::{OperationTime, Shared, Windows};
use super::devices::{Begun, DeviceTicket, TicketEnd};
use super::error::WindowError;
use super::key::WindowKey;
use super::message::{self, MOST_BYTES, Operation, Status, WindowRequest};
use super::pieces::{Piece, Pieces};
use super::summary::Began;
use crate::mux::PendingAnswer;
use crate::pool::Block;
use crate::session::times::OperationKind;

/// The messages of one operation that are under way at a time.
const DEPTH: usize = 16;
/// The bytes of an operation that does not wait.
pub(super) const MOST_PENDING: usize = DEPTH * MOST_BYTES;

/// A put or a get, whose pieces are under way.
pub(super) struct Transfer {
    key: WindowKey,
    operation: Operation,
    pub(super) time: OperationTime,
    under_way: VecDeque<(Piece, UnderWay)>,
    /// All pieces have ended.
    is_over: bool,
}

/// A piece that the owner's process is to perform, or a device.
enum UnderWay {
    Message(WindowRequest, PendingAnswer),
    Device(DeviceTicket),
}

/// A piece that was performed, with what came for it.
pub(super) struct AnsweredPiece {
    piece: Piece,
    answer: PieceBytes,
}

enum PieceBytes {
    Message(Vec<u8>),
    /// The device has written them. There is no block if the device may still write, or has only read.
    Block(Option<Block>),
}

impl AnsweredPiece {
    /// Copies the bytes to their place in the buffer.
    pub(super) fn copy(&self, into: &mut [u8]) {
        let into = &mut into[self.piece.bytes.clone()];
        match &self.answer {
            PieceBytes::Message(answer) => into.copy_from_slice(&answer[message::ANSWER..]),
            PieceBytes::Block(Some(block)) => into.copy_from_slice(&block.bytes()[..into.len()]),
            PieceBytes::Block(None) => {}
        }
    }
}

impl Transfer {
    pub(super) fn new(key: &WindowKey, operation: Operation, time: OperationTime) -> Self {
        Self { key: key.clone(), operation, time, under_way: VecDeque::new(), is_over: false }
    }

    /// Whether another piece may be under way.
    pub(super) fn has_room(&self) -> bool {
        self.under_way.len() < DEPTH
    }

    /// Begins a piece. A put sends `bytes`, and a get has none.
    pub(super) fn begin(&mut self, shared: &Shared, piece: Piece, bytes: &[u8]) -> Result<(), WindowError> {
        let begun = shared.devices.begin(shared, &self.key, self.operation, &piece, bytes, self.time)?;
        let under_way = match begun {
            Begun::UnderWay(ticket) => UnderWay::Device(ticket),
            Begun::ByProcess => {
                let (request, pending) = self.by_process(shared, &piece, bytes)?;
                UnderWay::Message(request, pending)
            }
        };
        self.under_way.push_back((piece, under_way));
        Ok(())
    }

    /// Adds the only piece of a short operation, which a device has begun.
    pub(super) fn add(&mut self, pieces: &Pieces<'_>, ticket: DeviceTicket) {
        if let Some(piece) = pieces.clone().next() {
            self.under_way.push_back((piece, UnderWay::Device(ticket)));
        }
    }

    fn by_process(
        &self,
        shared: &Shared,
        piece: &Piece,
        bytes: &[u8],
    ) -> Result<(WindowRequest, PendingAnswer), WindowError> {
        if self.operation == Operation::Put {
            shared.devices.settle(shared, self.time)?;
        }
        let request = piece.request(&self.key, self.operation);
        let mut message = request.encode(bytes.len());
        message.extend_from_slice(bytes);
        let pending = shared.begin(message, self.time)?;
        Ok((request, pending))
    }

    /// Waits for the end of the oldest piece. `None` means that all have ended.
    pub(super) fn end(&mut self, shared: &Shared) -> Result<Option<AnsweredPiece>, WindowError> {
        let Some((piece, under_way)) = self.under_way.pop_front() else {
            self.is_over = true;
            return Ok(None);
        };
        let (request, pending) = match under_way {
            UnderWay::Message(request, pending) => (request, pending),
            UnderWay::Device(mut ticket) => {
                let (block, _repeat) = match shared.devices.end_ticket(shared, &mut ticket, self.time)? {
                    TicketEnd::Done(block) => {
                        return Ok(Some(AnsweredPiece { piece, answer: PieceBytes::Block(block) }));
                    }
                    TicketEnd::Failed(block, repeat) => (block, repeat),
                    TicketEnd::Unknown(_) => return Err(WindowError::OutcomeUnknown),
                };
                let again = match (self.operation, &block) {
                    (Operation::Put, None) => return Err(WindowError::OutcomeUnknown),
                    (Operation::Put, Some(block)) => &block.bytes()[..piece.bytes.len()],
                    _ => &[],
                };
                self.by_process(shared, &piece, again)?
            }
        };
        let answer = shared.answer(pending, self.time)?;
        let (status, bytes) = Status::decode(&answer)?;
        shared.result(status, Some(&self.key), &request)?;
        let expected = if self.operation == Operation::Get { piece.bytes.len() } else { 0 };
        if bytes.len() != expected {
            return Err(WindowError::Protocol { what: "an answer with other bytes than were asked for" });
        }
        Ok(Some(AnsweredPiece { piece, answer: PieceBytes::Message(answer) }))
    }

    /// Whether all pieces have ended, as far as calls know.
    pub(super) fn is_performed(&self) -> bool {
        self.under_way.iter().all(|(_, under_way)| match under_way {
            UnderWay::Message(_, pending) => pending.has_arrived(),
            UnderWay::Device(ticket) => ticket.is_over(),
        })
    }

    /// Begins all pieces of a short operation.
    pub(super) fn begin_all(
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
        write!(f, "PendingPut({} pieces)", self.transfer.under_way.len())
    }
}

impl Drop for PendingPut {
    fn drop(&mut self) {
        // `wait` leaves none, unless it fails.
        if !self.transfer.is_over {
            self.windows.0.give_up();
        }
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
        write!(f, "PendingGet({} bytes, {} pieces)", self.len, self.transfer.under_way.len())
    }
}
