//! Operations of whole blocks, which a device reads and writes in place.

use std::fmt;

use super::connection::{Shared, Windows};
use super::devices::{DeviceTicket, TicketEnd};
use super::error::WindowError;
use super::key::WindowKey;
use super::message::Operation;
use super::pending::{MOST_PENDING, Transfer};
use super::pieces::Pieces;
use super::summary::Began;
use crate::pool::Block;
use crate::session::times::OperationKind;

impl Windows {
    /// Copies the first `len` bytes of a block to an offset of the peer's window. A device reads them in
    /// place: nothing is copied on this side. The block comes back.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put), and [`Length`](WindowError::Length), with the block. While a device
    /// may still access the block, for example after [`TimedOut`](WindowError::TimedOut), the
    /// connection keeps it. It then goes to its pool, or is freed.
    pub fn put_block(
        &self,
        key: &WindowKey,
        offset: u64,
        block: Block,
        len: usize,
    ) -> Result<Block, (WindowError, Option<Block>)> {
        PendingBlock::begin(self, key, Operation::Put, (offset, len), block)?.wait()
    }

    /// Copies `len` bytes from an offset of the peer's window to the start of a block. A device writes
    /// them in place.
    ///
    /// # Errors
    ///
    /// Those of [`put_block`](Self::put_block). The block may then have some of the bytes.
    pub fn get_block(
        &self,
        key: &WindowKey,
        offset: u64,
        block: Block,
        len: usize,
    ) -> Result<Block, (WindowError, Option<Block>)> {
        PendingBlock::begin(self, key, Operation::Get, (offset, len), block)?.wait()
    }

    /// Begins a [`put_block`](Self::put_block), which [`PendingBlock::wait`] ends. If the owner's process
    /// performs it, and it has more than 4 MiB, it begins only then.
    ///
    /// # Errors
    ///
    /// Those of [`put_block`](Self::put_block).
    pub fn start_put_block(
        &self,
        key: &WindowKey,
        offset: u64,
        block: Block,
        len: usize,
    ) -> Result<PendingBlock, (WindowError, Option<Block>)> {
        PendingBlock::begin(self, key, Operation::Put, (offset, len), block)
    }

    /// Begins a [`get_block`](Self::get_block), which [`PendingBlock::wait`] ends. If the owner's process
    /// performs it, and it has more than 4 MiB, it begins only then.
    ///
    /// # Errors
    ///
    /// Those of [`put_block`](Self::put_block).
    pub fn start_get_block(
        &self,
        key: &WindowKey,
        offset: u64,
        block: Block,
        len: usize,
    ) -> Result<PendingBlock, (WindowError, Option<Block>)> {
        PendingBlock::begin(self, key, Operation::Get, (offset, len), block)
    }
}

/// A put or a get of a whole block that is under way. If it is dropped, it may or may not be performed,
/// and the block goes to its pool, or is freed, when no device accesses it any more.
pub struct PendingBlock {
    windows: Windows,
    key: WindowKey,
    operation: Operation,
    offset: u64,
    len: usize,
    under_way: BlockUnderWay,
    began: Began,
}

enum BlockUnderWay {
    Device(DeviceTicket),
    /// The owner's process performs it.
    ByProcess(Transfer, Block),
    /// It is too long to be begun before it is waited for.
    Waits(Block),
}

impl PendingBlock {
    pub(super) fn begin(
        windows: &Windows,
        key: &WindowKey,
        operation: Operation,
        (offset, len): (u64, usize),
        block: Block,
    ) -> Result<Self, (WindowError, Option<Block>)> {
        let shared = &windows.0;
        let began = shared.summary.begin();
        if len > block.len() {
            return Err((WindowError::Length { len, block: block.len() }, Some(block)));
        }
        if let Err(error) = shared.check_range(key, operation, &Pieces::of_one(offset, len)) {
            return Err((error, Some(block)));
        }
        let begun = match len {
            0 => Ok(Err(block)),
            _ => shared.devices.begin_block(shared, key, operation, (offset, len), block, || shared.time()),
        };
        let under_way = match begun {
            Ok(Ok(ticket)) => BlockUnderWay::Device(ticket),
            Ok(Err(block)) if len > MOST_PENDING => BlockUnderWay::Waits(block),
            Ok(Err(block)) => {
                let bytes = if operation == Operation::Put { &block.bytes()[..len] } else { &[] };
                match Transfer::begin_all(windows, key, operation, offset, len, bytes) {
                    Ok(transfer) => BlockUnderWay::ByProcess(transfer, block),
                    Err(error) => return Err((error, Some(block))),
                }
            }
            Err((error, block)) => return Err((error, Some(block))),
        };
        let (windows, key) = (windows.clone(), key.clone());
        Ok(Self { windows, key, operation, offset, len, under_way, began })
    }

    /// Whether it has ended, as far as calls on the connection know.
    #[must_use]
    pub fn is_performed(&self) -> bool {
        match &self.under_way {
            BlockUnderWay::Device(ticket) => ticket.is_over(),
            BlockUnderWay::ByProcess(transfer, _) => transfer.is_performed(),
            BlockUnderWay::Waits(_) => false,
        }
    }

    /// Waits until it is performed, and returns the block.
    ///
    /// # Errors
    ///
    /// Those of [`Windows::put_block`]. The time of an operation begins with this call.
    pub fn wait(self) -> Result<Block, (WindowError, Option<Block>)> {
        let Self { windows, key, operation, offset, len, under_way, began } = self;
        let block = Self::end(&windows.0, &key, operation, (offset, len), under_way)?;
        let kind = if operation == Operation::Get { OperationKind::Get } else { OperationKind::Put };
        windows.0.summary.end(began, kind, len);
        Ok(block)
    }

    fn end(
        shared: &Shared,
        key: &WindowKey,
        operation: Operation,
        (offset, len): (u64, usize),
        under_way: BlockUnderWay,
    ) -> Result<Block, (WindowError, Option<Block>)> {
        let (mut block, _repeat) = match under_way {
            BlockUnderWay::Waits(block) => (block, None),
            BlockUnderWay::ByProcess(mut transfer, mut block) => {
                transfer.time = shared.time();
                loop {
                    match transfer.end(shared) {
                        Ok(Some(answered)) if operation == Operation::Get => answered.copy(block.bytes_mut()),
                        Ok(Some(_)) => {}
                        Ok(None) => return Ok(block),
                        Err(error) => return Err((error, Some(block))),
                    }
                }
            }
            BlockUnderWay::Device(mut ticket) => {
                if let Some(block) = shared.devices.end_at_once(shared, &mut ticket) {
                    return Ok(block);
                }
                match shared.devices.end_ticket(shared, &mut ticket, shared.time()) {
                    Ok(TicketEnd::Done(Some(block))) => return Ok(block),
                    Ok(TicketEnd::Failed(Some(block), repeat)) => (block, repeat),
                    Ok(TicketEnd::Unknown(block)) => return Err((WindowError::OutcomeUnknown, block)),
                    Ok(_) => return Err((WindowError::OutcomeUnknown, None)),
                    Err(error) => return Err((error, None)),
                }
            }
        };
        let pieces = Pieces::of_one(offset, len);
        let done = match operation {
            Operation::Put => shared.put(key, pieces, &block.bytes()[..len], shared.time()),
            _ => shared.get(key, pieces, &mut block.bytes_mut()[..len]),
        };
        match done {
            Ok(()) => Ok(block),
            Err(error) => Err((error, Some(block))),
        }
    }
}

impl fmt::Debug for PendingBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingBlock({:?} of {} bytes)", self.operation, self.len)
    }
}
