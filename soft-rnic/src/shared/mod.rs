//! What lies in a control segment: memory that one process owns and others map.
//!
//! Every process has one segment. In it a peer finds the keys, queue pairs and receive queues of this process,
//! and there it leaves completions. Nothing in a segment is trusted: all of it is atomics, so that no value and
//! no race is undefined behaviour; every index and every offset that is read is checked before it is used; and what
//! the owner needs for its own safety (addresses, lengths, `wr_id`s) it keeps in private memory.
//!
//! There is no lock in a segment, so nobody has to be waited for who has died:
//!
//! - A [`Gate`](gate::Gate) is written by the owner alone: a version that closes while what it guards changes.
//! - A [`MarkCell`](mark::MarkCell) is written by one peer at a time: what it touches at this moment.
//! - A [`slot`](slot) of a receive queue changes hands by compare-and-swap and says who holds it.
//! - A [call](call::Turn) changes hands in the same way, and with it the receive that it is for.
//! - An [`IndexRing`](ring::IndexRing) has any number of producers and one consumer.
//! - [`Ready`](completion::CqEntry) bits are hints to look: set after the fact, taken before looking.

pub(crate) mod call;
pub(crate) mod completion;
pub(crate) mod entry;
pub(crate) mod gate;
pub(crate) mod mark;
pub(crate) mod ring;
pub(crate) mod segment;
pub(crate) mod slot;

#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) mod hostile;
#[cfg(all(test, loom))]
mod models;
