//! A build without RDMA: the owner's process performs all operations.

use super::connection::{OperationTime, Shared};
use super::error::WindowError;
use super::key::{Access, DeviceKey, WindowKey};
use super::memory::OfferedMemory;
use super::message::{Operation, Status};
use super::pieces::Piece;
use crate::Stream;
use crate::pool::Block;

pub(super) struct Devices;

#[derive(Default)]
pub(super) struct Registered(());

#[derive(Default)]
pub(super) struct RegisteredKeys {
    pub(super) base: u64,
    pub(super) atomics: u64,
    pub(super) devices: Vec<DeviceKey>,
}

/// No operation is performed by a device.
pub(super) enum DeviceTicket {}

pub(super) enum Begun {
    UnderWay(DeviceTicket),
    ByProcess,
}

pub(super) struct Repeat;

pub(super) enum TicketEnd {
    Done(Option<Block>),
    Failed(Option<Block>, Option<Repeat>),
    Unknown(Option<Block>),
}

pub(super) enum AtomicOutcome {
    Found(u64),
    Refused,
}

impl Registered {
    pub(super) fn is_empty(&self) -> bool {
        true
    }

    pub(super) fn keys(&self) -> RegisteredKeys {
        RegisteredKeys::default()
    }
}

impl DeviceTicket {
    pub(super) fn is_over(&self) -> bool {
        match *self {}
    }
}

impl Devices {
    pub(super) fn of(_: &Stream, _: bool) -> Self {
        Self
    }

    pub(super) fn abilities(&self) -> u32 {
        0
    }

    pub(super) fn set_peer(&self, _: u32) {}

    pub(super) fn register(&self, _: &OfferedMemory, _: Access) -> Registered {
        Registered::default()
    }

    pub(super) fn end(&self, memory: OfferedMemory, _: Registered) -> Result<Block, WindowError> {
        Ok(memory.into_block())
    }

    pub(super) fn serve(&self, _: Operation, _: &[u8]) -> (Status, Vec<u8>) {
        (Status::NoPath, vec![])
    }

    pub(super) fn is_revoked(&self, _: &WindowKey) -> bool {
        false
    }

    pub(super) fn note_revoked(&self, _: &WindowKey) {}

    pub(super) fn given_up(&self, _: u64) {}

    pub(super) fn settle(&self, _: &Shared, _: OperationTime) -> Result<(), WindowError> {
        Ok(())
    }

    pub(super) fn begin(
        &self,
        _: &Shared,
        _: &WindowKey,
        _: Operation,
        _: &Piece,
        _: &[u8],
        _: OperationTime,
    ) -> Result<Begun, WindowError> {
        Ok(Begun::ByProcess)
    }

    pub(super) fn begin_block(
        &self,
        _: &Shared,
        _: &WindowKey,
        _: Operation,
        _: (u64, usize),
        block: Block,
        _: impl Fn() -> OperationTime,
    ) -> Result<Result<DeviceTicket, Block>, (WindowError, Block)> {
        Ok(Err(block))
    }

    pub(super) fn atomic(
        &self,
        _: &Shared,
        _: &WindowKey,
        _: Operation,
        _: u64,
        _: impl Fn() -> OperationTime,
    ) -> Result<AtomicOutcome, WindowError> {
        Err(WindowError::NoPath)
    }

    pub(super) fn put_at_once(
        &self,
        _: &Shared,
        _: &WindowKey,
        _: u64,
        _: &[u8],
    ) -> Result<Option<Option<DeviceTicket>>, WindowError> {
        Ok(None)
    }

    pub(super) fn flush(&self, _: &Shared, _: OperationTime) -> Result<(), WindowError> {
        Ok(())
    }

    pub(super) fn end_at_once(&self, _: &Shared, ticket: &mut DeviceTicket) -> Option<Block> {
        match *ticket {}
    }

    pub(super) fn end_ticket(
        &self,
        _: &Shared,
        ticket: &mut DeviceTicket,
        _: OperationTime,
    ) -> Result<TicketEnd, WindowError> {
        match *ticket {}
    }
}
