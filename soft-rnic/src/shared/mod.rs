//! The shared-memory protocol: hazard pointers with sequence words, over a segment that one process
//! owns and its peers map.
//!
//! Every process has one segment. It holds the memory keys, queue pairs, receive queues and
//! completion queues of its owner; peers write completions, hazards and claims there. What the owner
//! alone writes lies in a part that peers map read-only, so that no process can send another one's
//! bytes elsewhere. A process trusts nothing in a segment. All of it is atomics, so that no value
//! and no race is undefined behaviour. The code checks every index and every offset before use. The
//! owner keeps the values that its safety depends on (addresses, lengths, `wr_id`s) in private
//! memory.
//!
//! A segment holds no lock, because its holder might be dead:
//!
//! - A [`Generation`](generation::Generation) is a sequence word: its owner makes it invalid while
//!   the descriptor that it guards changes. The owner alone writes it.
//! - A [`HazardSlot`](hazard::HazardSlot) is a hazard pointer: one transfer slot of one peer names
//!   there the queue pair and the region that it touches now.
//! - A [`slot`](slot) of a receive queue changes hands by compare-and-swap and names its holder.
//! - A [remote procedure call](rpc::CallState) changes hands in the same way, together with its
//!   receive.
//! - An [`IndexRing`](ring::IndexRing) has many producers and one consumer.
//! - [Ready bits](completion::CqEntry) are hints: a peer sets them after a completion, and the
//!   owner takes them before it looks for completions.

pub(crate) mod completion;
pub(crate) mod entry;
pub(crate) mod generation;
pub(crate) mod hazard;
pub(crate) mod part;
pub(crate) mod progress;
pub(crate) mod ring;
pub(crate) mod rpc;
pub(crate) mod segment;
pub(crate) mod slot;

#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) mod hostile;
#[cfg(all(test, loom))]
mod models;
