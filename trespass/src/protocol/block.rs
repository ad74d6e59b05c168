//! The memory of frames as the protocol sees it: blocks, and the sources of blocks.

/// A piece of memory with one owner at a time. Several owners may share a block that is only sent;
/// no one writes to it then.
///
/// The protocol holds a block only while neither device nor peer writes to it: a driver hands it in
/// when a receive or a READ has completed, and gets it back as part of a
/// [`TransmitItem`](super::TransmitItem). Moving the handle does not move the memory. Dropping it
/// returns the memory to its pool.
pub(crate) trait Block: Send + Sync {
    /// The whole block; its length is the block's size.
    fn bytes(&self) -> &[u8];

    /// The whole block, for writing.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Copies bytes that a peer will READ into the block at offset `at`.
    fn stage(&mut self, at: usize, bytes: &[u8]) {
        self.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Whether a device can send it without a copy, if the device uses the regions registered in
    /// this domain. Other blocks are copied; over TCP every block is reachable.
    fn is_reachable(&self, _domain: usize) -> bool {
        true
    }

    /// The remote address of its first byte, if a peer can READ it.
    fn remote(&self) -> Option<RemoteAddress> {
        None
    }
}

/// The use of a block.
///
/// Sent data must never use up the memory that receiving needs. Otherwise two sides whose memory is
/// full of sent data would each wait for a block to receive into. A part of the memory is therefore
/// reserved for receiving ([`ConnectionSetup::receive_slots`] and
/// [`ConnectionSetup::receive_staged`](super::ConnectionSetup::receive_staged) give its size), and
/// senders wait earlier.
///
/// [`ConnectionSetup::receive_slots`]: super::ConnectionSetup::receive_slots
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The program's block, or data to send. It may take long to return, because the peer's program
    /// must read first.
    Send,
    /// A block for arriving data, or for the few frames that must be sent so that others return.
    Receive,
    /// A receive that stays posted for the life of its connection, for connections that are being
    /// set up.
    #[cfg_attr(not(feature = "rdma"), expect(dead_code, reason = "no receives are posted without RDMA"))]
    Stand,
}

/// A source of blocks.
pub(crate) trait Blocks {
    /// The type of the blocks.
    type Block: Block;

    /// Takes a block of at least `size` bytes. `None` means that none is free now: the caller waits
    /// (back-pressure), and nothing fails.
    fn take(&mut self, size: usize, purpose: Purpose) -> Option<Self::Block>;

    /// The largest size up to `size` of which a block is at least half full, so that a block that
    /// stays as it is wastes no more memory than it uses. `size` if all larger blocks are too large.
    fn dense_size(&self, size: usize) -> usize {
        size
    }

    /// Copies a block that a device never returns, for the program that lent it. A copy should
    /// always be available.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nothing is lost without a device"))]
    fn replace(&mut self, lost: &Self::Block) -> Option<Self::Block> {
        let mut copy = self.take(lost.bytes().len(), Purpose::Send)?;
        copy.bytes_mut()[..lost.bytes().len()].copy_from_slice(lost.bytes());
        Some(copy)
    }

    /// The most bytes of memory, if they are limited.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "only reasons against RDMA name it"))]
    fn most(&self) -> Option<usize> {
        None
    }

    /// Whether the device refuses the registration of more memory.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nothing is registered without a device"))]
    fn is_refused(&self) -> bool {
        false
    }
}

/// The most devices that one side of a connection uses.
pub(crate) const DEVICES_MAX: usize = 8;

/// The remote keys of one memory, for each of its owner's devices. A device in which the memory is
/// not registered has key 0, which it rejects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RemoteKeys(pub(crate) [u32; DEVICES_MAX]);

impl RemoteKeys {
    /// The key of the only device.
    pub(crate) const fn one(key: u32) -> Self {
        let mut keys = [0; DEVICES_MAX];
        keys[0] = key;
        Self(keys)
    }

    /// The key for the owner's device of this index.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "TCP uses no keys"))]
    pub(crate) fn of(&self, device: usize) -> u32 {
        self.0[device]
    }
}

/// The address and keys under which a peer READs a block's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemoteAddress {
    /// Address in the owner's memory.
    pub(crate) addr: u64,
    /// Remote keys of the region.
    pub(crate) rkeys: RemoteKeys,
}

/// A range of the peer's memory, from an RTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Address of the first byte.
    pub(crate) addr: u64,
    /// Number of bytes.
    pub(crate) len: u32,
    /// Remote keys of the region.
    pub(crate) rkeys: RemoteKeys,
}

/// Blocks for tests: a bounded number of vectors, counted while in use.
#[cfg(test)]
pub(crate) mod testing {
    use super::{Block, Blocks, Purpose, RemoteAddress, RemoteKeys};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// A vector that tells its source when it is dropped.
    #[derive(Debug)]
    pub(crate) struct VecBlock {
        bytes: Vec<u8>,
        apart: bool,
        addr: u64,
        out: Arc<BlocksOut>,
    }

    /// The blocks in use: how many, and their bytes.
    #[derive(Debug, Default)]
    struct BlocksOut {
        count: AtomicUsize,
        bytes: AtomicUsize,
    }

    impl Drop for VecBlock {
        fn drop(&mut self) {
            self.out.count.fetch_sub(1, Ordering::Relaxed);
            self.out.bytes.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        }
    }

    impl Block for VecBlock {
        fn bytes(&self) -> &[u8] {
            &self.bytes
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.bytes
        }

        fn is_reachable(&self, _: usize) -> bool {
            !self.apart
        }

        fn remote(&self) -> Option<RemoteAddress> {
            Some(RemoteAddress { addr: self.addr, rkeys: RemoteKeys::one(7) })
        }
    }

    static NEXT_ADDR: AtomicU64 = AtomicU64::new(0x1_0000_0000);

    /// Creates vectors, at most `most` at a time.
    pub(crate) struct VecBlocks {
        pub(crate) most: usize,
        /// Whether its blocks are unreachable for the device.
        pub(crate) apart: bool,
        /// The number of blocks taken.
        pub(crate) taken: usize,
        /// The sizes of blocks, smallest first; without any, a block has the size that is asked for.
        pub(crate) sizes: &'static [usize],
        out: Arc<BlocksOut>,
    }

    impl VecBlocks {
        pub(crate) fn new(most: usize) -> Self {
            VecBlocks { most, apart: false, taken: 0, sizes: &[], out: Arc::default() }
        }

        /// The number of blocks in use.
        pub(crate) fn out(&self) -> usize {
            self.out.count.load(Ordering::Relaxed)
        }

        /// The bytes of the blocks in use.
        pub(crate) fn bytes_out(&self) -> usize {
            self.out.bytes.load(Ordering::Relaxed)
        }
    }

    impl Blocks for VecBlocks {
        type Block = VecBlock;

        fn dense_size(&self, size: usize) -> usize {
            let at = self.sizes.partition_point(|smaller| *smaller < size);
            match (at.checked_sub(1).map(|at| self.sizes[at]), self.sizes.get(at)) {
                (Some(smaller), Some(block)) if 2 * size < *block => smaller,
                _ => size,
            }
        }

        fn take(&mut self, size: usize, _: Purpose) -> Option<VecBlock> {
            if self.out() >= self.most {
                return None;
            }
            self.taken += 1;
            let size = self.sizes.iter().find(|larger| size <= **larger).map_or(size, |larger| *larger);
            self.out.count.fetch_add(1, Ordering::Relaxed);
            self.out.bytes.fetch_add(size, Ordering::Relaxed);
            let addr = NEXT_ADDR.fetch_add(1 << 24, Ordering::Relaxed);
            Some(VecBlock { bytes: vec![0; size], apart: self.apart, addr, out: Arc::clone(&self.out) })
        }
    }
}
