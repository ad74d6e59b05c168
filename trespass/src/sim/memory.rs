//! An endpoint's memory: blocks that a device may use, and the ranges that a peer's device may
//! READ.
//!
//! Each block knows its current owner. An access by another party is a fault. The memory keeps
//! faults until the simulation asks for them after each step, because a `Drop` cannot report one.

use crate::protocol::{Block, Blocks, Purpose, RemoteAddress, RemoteKeys};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// The content of a freed or fresh block, which makes stale reads visible.
const POISON: u8 = 0xdd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockOwner {
    /// The connection or the program, with all rights.
    Local,
    /// Posted for sending: the block may be read, but neither changed nor freed.
    Sending,
    /// Posted as a receive or as a READ's target: the block must not be accessed.
    Receiving,
}

/// A block's remote key, and the contents that it must keep while peers may READ them.
struct ExposedRange {
    rkey: u32,
    bytes: Arc<[u8]>,
}

#[derive(Default)]
struct MemoryState {
    uses: HashMap<u64, BlockOwner>,
    /// For each block that is in several frames: the number of those that are posted.
    shares: HashMap<u64, usize>,
    exposed: HashMap<u64, ExposedRange>,
    /// The blocks that an RTS announced and that no RFIN has answered.
    promised: HashSet<u64>,
    spare: HashMap<usize, Vec<Box<[u8]>>>,
    next: u64,
    bytes_out: usize,
    /// The part of `bytes_out` that was taken for sending.
    sending_out: usize,
    /// The bytes reserved for receiving.
    kept: usize,
    /// Peers cannot read blocks up to this size, because they are not registered for remote access.
    private: usize,
    /// The device cannot reach one block in `apart`; 0: it reaches all.
    apart: u64,
    /// The largest block for receiving, even if larger ones exist for sending.
    largest: Option<usize>,
    most_out: usize,
    max: usize,
    refusing: bool,
    refused: u64,
    faults: Vec<String>,
}

/// The memory of one end. Clones share it.
#[derive(Clone, Default)]
pub(super) struct SimMemory {
    state: Arc<Mutex<MemoryState>>,
}

/// One block. Its wire address is its number in the upper half, which is never reused.
pub(super) struct SimBlock {
    id: u64,
    bytes: Box<[u8]>,
    purpose: Purpose,
    memory: SimMemory,
}

impl SimMemory {
    /// Memory of at most `max` bytes in use at a time, of which `kept` bytes are reserved for
    /// receiving.
    pub(super) fn new(max: usize, kept: usize) -> Self {
        let memory = Self::default();
        (memory.state().max, memory.state().kept) = (max, kept);
        memory
    }

    /// Makes blocks up to this size unreadable for peers.
    pub(super) fn keep_private(&self, size: usize) {
        self.state().private = size;
    }

    /// Puts one block in `every` out of the device's reach.
    pub(super) fn keep_apart(&self, every: u64) {
        self.state().apart = every;
    }

    /// Limits the size of blocks for receiving, as if the rest of the memory were in pieces.
    pub(super) fn in_pieces(&self, largest: usize) {
        self.state().largest = Some(largest);
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A block of `size` bytes; `None` if the limits forbid it, or if the memory refuses all
    /// requests now.
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

    /// Starts or stops refusing all requests.
    pub(super) fn refuse(&self, refusing: bool) {
        self.state().refusing = refusing;
    }

    /// The number of refused requests.
    pub(super) fn refused(&self) -> u64 {
        self.state().refused
    }

    /// The bytes in use now, and the most at any time.
    pub(super) fn out(&self) -> (usize, usize) {
        let state = self.state();
        (state.bytes_out, state.most_out)
    }

    /// The first fault, if any.
    pub(super) fn fault(&self) -> Option<String> {
        self.state().faults.first().cloned()
    }

    /// Serves a READ of the peer's device. Only exposed ranges are readable, with their keys.
    pub(super) fn remote_read(&self, addr: u64, rkey: u32, len: usize) -> Result<Vec<u8>, String> {
        let state = self.state();
        let (id, start) = (addr >> 32, (addr & 0xffff_ffff) as usize);
        let exposed = state.exposed.get(&id).ok_or_else(|| {
            format!("READ of {len} bytes at {addr:#x}: the block is freed, given back or was never announced")
        })?;
        if exposed.rkey != rkey {
            return Err(format!("READ at {addr:#x} with key {rkey:#x}: its key is {:#x}", exposed.rkey));
        }
        let bytes = exposed.bytes.get(start..start + len).ok_or_else(|| {
            format!("READ of {len} bytes at {addr:#x}: the block has {}", exposed.bytes.len())
        })?;
        Ok(bytes.to_vec())
    }

    /// Notes that an RTS has announced the block at `addr` to the peer.
    pub(super) fn announce_source(&self, addr: u64) {
        self.state().promised.insert(addr >> 32);
    }

    /// Notes that the RFIN for the block at `addr` has come, or that the connection is gone.
    pub(super) fn release_source(&self, addr: u64) {
        self.state().promised.remove(&(addr >> 32));
    }

    /// Notes that the connection is gone, so no peer reads any block.
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

    /// Writes received bytes, as the device does.
    pub(super) fn device_write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Changes the owner of the block.
    pub(super) fn set_owner(&self, owner: BlockOwner) {
        self.memory.set_owner(self.id, owner);
    }
}

impl Block for SimBlock {
    fn is_reachable(&self, _: usize) -> bool {
        let apart = self.memory.state().apart;
        apart == 0 || !self.id.is_multiple_of(apart)
    }

    /// The bytes. It is a fault to read them while the block is posted to receive.
    fn bytes(&self) -> &[u8] {
        let mut state = self.memory.state();
        if state.uses[&self.id] == BlockOwner::Receiving {
            state.faults.push(format!("block {} is read while it is posted to receive", self.id));
        }
        drop(state);
        &self.bytes
    }

    /// The bytes. It is a fault to write them while the block is posted, or while a peer may read
    /// it.
    fn bytes_mut(&mut self) -> &mut [u8] {
        let mut state = self.memory.state();
        let owner = state.uses[&self.id];
        if owner != BlockOwner::Local {
            state.faults.push(format!("block {} is written to while it is {:?}", self.id, owner));
        }
        if state.promised.contains(&self.id) {
            state.faults.push(format!("block {} is written to before the peer's RFIN", self.id));
        }
        // The program owns a block that is not announced; a later RTS announces the new contents.
        state.exposed.remove(&self.id);
        drop(state);
        &mut self.bytes
    }

    /// The address and key by which a peer may read the block.
    fn remote(&self) -> Option<RemoteAddress> {
        let mut state = self.memory.state();
        if self.bytes.len() <= state.private {
            return None;
        }
        let rkey = (self.id as u32).wrapping_mul(0x9e37_79b9) | 1;
        state.exposed.entry(self.id).or_insert_with(|| ExposedRange { rkey, bytes: self.bytes[..].into() });
        // Each device has another key.
        let rkeys = RemoteKeys(std::array::from_fn(|device| rkey.wrapping_add(device as u32)));
        Some(RemoteAddress { addr: self.id << 32, rkeys })
    }
}

impl SimMemory {
    /// Changes the owner of block `id`, for a caller that does not have the block itself.
    pub(super) fn set_owner(&self, id: u64, owner: BlockOwner) {
        let mut state = self.state();
        let before = state.uses.insert(id, owner);
        if owner != BlockOwner::Local && before != Some(BlockOwner::Local) {
            state.faults.push(format!("block {id} is posted ({:?}) while it is {before:?}", owner));
        }
    }

    /// Notes that a frame with a part of block `id` is posted; other such frames may be posted,
    /// too.
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

    /// Notes that such a frame has completed.
    pub(super) fn release(&self, id: u64) {
        let mut state = self.state();
        let posted = state.shares.get_mut(&id).expect("what was posted");
        *posted -= 1;
        if *posted == 0 {
            state.shares.remove(&id);
            state.uses.insert(id, BlockOwner::Local);
        }
    }

    /// Whether block `id` is still posted for sending.
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
        let owner = state.uses.remove(&self.id);
        if owner != Some(BlockOwner::Local) {
            state.faults.push(format!("block {} is freed while it is {:?}", self.id, owner));
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
