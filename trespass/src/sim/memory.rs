//! An endpoint's memory: blocks that a device can be given, and the ranges that a peer's device may
//! READ.
//!
//! A block knows who may touch it now. Whoever touches it out of turn is a fault, which is kept (a
//! `Drop` cannot say it) until the simulation asks after each step.

use crate::protocol::{Block, Blocks, Purpose, RemoteAddress};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// What a freed or fresh block holds, so that stale reading shows.
const POISON: u8 = 0xdd;

/// Who may touch a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockOwner {
    /// The connection or the program: anything.
    Local,
    /// Posted to be sent: it may be read, neither changed nor freed.
    Sending,
    /// Posted to be received into or to be the target of a READ: it may not be touched at all.
    Receiving,
}

/// What others may READ of a block, and since when it may not change.
struct ExposedRange {
    rkey: u32,
    bytes: Arc<[u8]>,
}

#[derive(Default)]
struct MemoryState {
    uses: HashMap<u64, BlockOwner>,
    /// Of blocks that are in several frames: how many of those are posted.
    shares: HashMap<u64, usize>,
    exposed: HashMap<u64, ExposedRange>,
    /// Of blocks that an RTS told of and whose RFIN has not come.
    promised: HashSet<u64>,
    spare: HashMap<usize, Vec<Box<[u8]>>>,
    next: u64,
    bytes_out: usize,
    /// Of them, what was taken to be sent.
    sending_out: usize,
    /// What is only for receiving.
    kept: usize,
    /// Blocks up to this size can be read by no peer, as they are not registered for that.
    private: usize,
    /// Every so-manieth block is out of the device's reach; 0: none is.
    apart: u64,
    /// No block for receiving is larger, though others may be.
    largest: Option<usize>,
    most_out: usize,
    max: usize,
    refusing: bool,
    refused: u64,
    faults: Vec<String>,
}

/// The memory of one end. Clones are the same memory.
#[derive(Clone, Default)]
pub(super) struct SimMemory {
    state: Arc<Mutex<MemoryState>>,
}

/// One block. Its address on the wire is its number in the upper half, never used twice.
pub(super) struct SimBlock {
    id: u64,
    bytes: Box<[u8]>,
    purpose: Purpose,
    memory: SimMemory,
}

impl SimMemory {
    /// Memory that gives out at most `max` bytes at a time, of which nothing but receiving gets `kept`.
    pub(super) fn new(max: usize, kept: usize) -> Self {
        let memory = Self::default();
        (memory.state().max, memory.state().kept) = (max, kept);
        memory
    }

    /// Has blocks up to this size be read by no peer.
    pub(super) fn keep_private(&self, size: usize) {
        self.state().private = size;
    }

    /// Has every so-manieth block be out of the device's reach.
    pub(super) fn keep_apart(&self, every: u64) {
        self.state().apart = every;
    }

    /// Gives nothing larger for receiving, as if all else were in pieces.
    pub(super) fn in_pieces(&self, largest: usize) {
        self.state().largest = Some(largest);
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A block of `size` bytes, if the limit allows and it does not refuse just now.
    pub(super) fn block(&self, size: usize, purpose: Purpose) -> Option<SimBlock> {
        let mut state = self.state();
        let sends = purpose == Purpose::Send;
        let too_much = sends && state.sending_out + size + state.kept > state.max;
        let too_large = !sends && state.largest.is_some_and(|largest| size > largest);
        if state.refusing || too_much || too_large || state.bytes_out + size > state.max {
            state.refused += 1;
            return None;
        }
        state.next += 1;
        state.bytes_out += size;
        state.sending_out += if sends { size } else { 0 };
        state.most_out = state.most_out.max(state.bytes_out);
        let id = state.next;
        state.uses.insert(id, BlockOwner::Local);
        let spare = state.spare.get_mut(&size).and_then(Vec::pop);
        let bytes = spare.unwrap_or_else(|| vec![POISON; size].into_boxed_slice());
        Some(SimBlock { id, bytes, purpose, memory: self.clone() })
    }

    /// Refuses every block from now on, or no longer.
    pub(super) fn refuse(&self, refusing: bool) {
        self.state().refusing = refusing;
    }

    /// How often a block was refused.
    pub(super) fn refused(&self) -> u64 {
        self.state().refused
    }

    /// Bytes given out now, and the most that ever were.
    pub(super) fn out(&self) -> (usize, usize) {
        let state = self.state();
        (state.bytes_out, state.most_out)
    }

    /// The first fault, if there was one.
    pub(super) fn fault(&self) -> Option<String> {
        self.state().faults.first().cloned()
    }

    /// A peer's device reads `len` bytes at `addr`: only what is exposed now, with its key.
    pub(super) fn remote_read(&self, addr: u64, rkey: u32, len: usize) -> Result<Vec<u8>, String> {
        let state = self.state();
        let (id, start) = (addr >> 32, (addr & 0xffff_ffff) as usize);
        let exposed = state.exposed.get(&id).ok_or_else(|| {
            format!("READ of {len} bytes at {addr:#x}: that block is freed, given back or was never told of")
        })?;
        if exposed.rkey != rkey {
            return Err(format!("READ at {addr:#x} with key {rkey:#x}: its key is {:#x}", exposed.rkey));
        }
        let bytes = exposed.bytes.get(start..start + len).ok_or_else(|| {
            format!("READ of {len} bytes at {addr:#x}: the block has {}", exposed.bytes.len())
        })?;
        Ok(bytes.to_vec())
    }

    /// An RTS has told the peer of the block at `addr`.
    pub(super) fn announce_source(&self, addr: u64) {
        self.state().promised.insert(addr >> 32);
    }

    /// The RFIN for the block at `addr` has come, or the connection is no more.
    pub(super) fn release_source(&self, addr: u64) {
        self.state().promised.remove(&(addr >> 32));
    }

    /// The connection is no more: nobody reads here.
    pub(super) fn release_all_sources(&self) {
        self.state().promised.clear();
    }
}

impl SimBlock {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The device writes what it received.
    pub(super) fn device_write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The device or the connection has it from now on.
    pub(super) fn set_owner(&self, r#use: BlockOwner) {
        self.memory.set_owner(self.id, r#use);
    }
}

impl Block for SimBlock {
    fn is_reachable(&self, _: usize) -> bool {
        let apart = self.memory.state().apart;
        apart == 0 || !self.id.is_multiple_of(apart)
    }

    /// A fault while it is posted to receive.
    fn bytes(&self) -> &[u8] {
        let mut state = self.memory.state();
        if state.uses[&self.id] == BlockOwner::Receiving {
            state.faults.push(format!("block {} is read while it is posted to receive", self.id));
        }
        drop(state);
        &self.bytes
    }

    /// A fault while it is posted or a peer may read it.
    fn bytes_mut(&mut self) -> &mut [u8] {
        let mut state = self.memory.state();
        let r#use = state.uses[&self.id];
        if r#use != BlockOwner::Local {
            state.faults.push(format!("block {} is written to while it is {:?}", self.id, r#use));
        }
        if state.promised.contains(&self.id) {
            state.faults.push(format!("block {} is written to before the peer's RFIN", self.id));
        }
        // What is not promised is the program's again: a later RTS tells of the new contents.
        state.exposed.remove(&self.id);
        drop(state);
        &mut self.bytes
    }

    /// Where a peer reads it, if it may: its address and key.
    fn remote(&self) -> Option<RemoteAddress> {
        let mut state = self.memory.state();
        if self.bytes.len() <= state.private {
            return None;
        }
        let rkey = (self.id as u32).wrapping_mul(0x9e37_79b9) | 1;
        state.exposed.entry(self.id).or_insert_with(|| ExposedRange { rkey, bytes: self.bytes[..].into() });
        Some(RemoteAddress { addr: self.id << 32, rkey })
    }
}

impl SimMemory {
    /// Says who has block `id` from now on: for a block that its owner does not show.
    pub(super) fn set_owner(&self, id: u64, r#use: BlockOwner) {
        let mut state = self.state();
        let before = state.uses.insert(id, r#use);
        if r#use != BlockOwner::Local && before != Some(BlockOwner::Local) {
            state.faults.push(format!("block {id} is posted ({:?}) while it is {before:?}", r#use));
        }
    }

    /// A frame is posted that has a part of block `id`; others may be.
    pub(super) fn share(&self, id: u64) {
        let mut state = self.state();
        let before = state.uses.insert(id, BlockOwner::Sending);
        let posted = state.shares.entry(id).or_default();
        *posted += 1;
        let others = *posted > 1;
        if before != Some(if others { BlockOwner::Sending } else { BlockOwner::Local }) {
            state.faults.push(format!("a part of block {id} is posted while it is {before:?}"));
        }
    }

    /// Such a frame has completed.
    pub(super) fn release(&self, id: u64) {
        let mut state = self.state();
        let posted = state.shares.get_mut(&id).expect("what was posted");
        *posted -= 1;
        if *posted == 0 {
            state.shares.remove(&id);
            state.uses.insert(id, BlockOwner::Local);
        }
    }

    /// Whether block `id` is where it was posted to be sent from.
    pub(super) fn is_sending(&self, id: u64) -> bool {
        self.state().uses.get(&id) == Some(&BlockOwner::Sending)
    }
}

impl Blocks for SimMemory {
    type Block = SimBlock;

    fn take(&mut self, size: usize, purpose: Purpose) -> Option<SimBlock> {
        self.block(size, purpose)
    }
}

impl std::fmt::Debug for SimBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "block {} of {} bytes", self.id, self.bytes.len())
    }
}

impl Drop for SimBlock {
    fn drop(&mut self) {
        let mut state = self.memory.state();
        let r#use = state.uses.remove(&self.id);
        if r#use != Some(BlockOwner::Local) {
            state.faults.push(format!("block {} is freed while it is {:?}", self.id, r#use));
        }
        if state.promised.contains(&self.id) {
            state.faults.push(format!("block {} is freed before the peer's RFIN", self.id));
        }
        state.exposed.remove(&self.id);
        state.bytes_out -= self.bytes.len();
        state.sending_out -= if self.purpose == Purpose::Send { self.bytes.len() } else { 0 };
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.fill(POISON);
        state.spare.entry(bytes.len()).or_default().push(bytes);
    }
}
