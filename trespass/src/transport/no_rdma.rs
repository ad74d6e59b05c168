//! Placeholders for the RDMA types of a worker and of a handshake, in a build without RDMA.

use std::io;
use std::time::Instant;

use mio::{Registry, Token};

use crate::handshake::NoPath;

/// A completion queue without queue pairs: it never has a completion.
#[derive(Clone, Default)]
pub(crate) struct WorkerCq(());

/// An entry of [`WorkerCq`], to which no completion ever goes.
#[derive(Clone)]
pub(crate) struct CqSlot;

/// Uninhabited, because no work request ever completes.
pub(crate) enum WorkCompletion {}

impl WorkerCq {
    pub(crate) fn is_worth_a_look(&self) -> bool {
        false
    }

    pub(crate) fn slot(&self, _: u32) -> CqSlot {
        CqSlot
    }

    pub(crate) fn register(&self, _: &Registry, _: Token) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn on_event(&self) {}

    pub(crate) fn poll(&self, _: impl FnMut(u32, WorkCompletion)) -> io::Result<bool> {
        Ok(false)
    }

    pub(crate) fn arm(&self) -> io::Result<bool> {
        Ok(false)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// The methods that the rest of the crate calls on a data path. They are never reached, because
/// `NoPath` has no values.
impl NoPath {
    pub(crate) fn watch(&mut self, _: &Registry, _: Token) -> io::Result<bool> {
        match *self {}
    }

    pub(crate) fn unwatch(&mut self, _: &Registry) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn completed(&mut self, _: WorkCompletion) {
        match *self {}
    }

    pub(crate) fn completion_queue_failed(&mut self, _: &io::Error) {
        match *self {}
    }
}
