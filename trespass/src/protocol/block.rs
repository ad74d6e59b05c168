//! Memory that frames lie in, as the protocol sees it.

/// A piece of memory that belongs to one owner at a time. What is only to be sent several may look at: then nobody writes to it.
///
/// The protocol holds a block only while neither device nor peer writes to it: a driver hands it in when a
/// receive or a READ has completed, and gets it back as part of a [`TransmitItem`](super::Transmit). Moving the handle does not move the
/// memory. Dropping it gives the memory back to where it came from.
pub(crate) trait Block: Send + Sync {
    /// All of its memory; its length is the block's size.
    fn bytes(&self) -> &[u8];

    /// All of its memory, to write to.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Copies bytes that a peer is to READ to this place of it.
    fn stage(&mut self, at: usize, bytes: &[u8]) {
        self.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Whether a device can take it from where it lies, if it knows what is registered in this domain. What it cannot is copied; over TCP
    /// there is no device.
    fn is_reachable(&self, _domain: usize) -> bool {
        true
    }

    /// Where a peer can READ the first byte of it, if it can.
    fn remote(&self) -> Option<RemoteAddress> {
        None
    }
}

/// What a block is taken for.
///
/// What is sent must never use up what receiving needs: two sides whose memory is full of what they send would wait for each other,
/// each for a block to receive into. So receiving has a part of the memory that nothing else gets ([`ConnectionSetup::receive_slots`] and
/// [`ConnectionSetup::receive_staged`](super::ConnectionSetup::receive_staged) say how much), and who sends has to wait earlier.
///
/// [`ConnectionSetup::receive_slots`]: super::ConnectionSetup::receive_slots
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The program's, or for what it sends. It may be long until it comes back: until the peer's program reads.
    Send,
    /// For what arrives; also for the few things that have to go out for others to come back.
    Receive,
    /// A receive that is posted as long as its connection is there, for connections that are being made.
    #[cfg_attr(not(feature = "rdma"), expect(dead_code, reason = "no receives are posted without RDMA"))]
    Stand,
}

/// Where blocks come from.
pub(crate) trait Blocks {
    /// What it gives.
    type Block: Block;

    /// A block of at least `size` bytes. `None`: there is none now; whoever asked waits (back-pressure), nothing fails.
    fn take(&mut self, size: usize, purpose: Purpose) -> Option<Self::Block>;

    /// A copy of a block that a device never gives back, for whoever has lent it. There should always be one.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nothing is lost without a device"))]
    fn replace(&mut self, lost: &Self::Block) -> Option<Self::Block> {
        let mut copy = self.take(lost.bytes().len(), Purpose::Send)?;
        copy.bytes_mut()[..lost.bytes().len()].copy_from_slice(lost.bytes());
        Some(copy)
    }
}

/// The address and key under which a peer READs a block's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemoteAddress {
    /// Address in the owner's memory.
    pub(crate) addr: u64,
    /// Key of the region.
    pub(crate) rkey: u32,
}

/// A range of the peer's memory, as an RTS tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// First byte.
    pub(crate) addr: u64,
    /// Number of bytes.
    pub(crate) len: u32,
    /// Key of the region.
    pub(crate) rkey: u32,
}

/// Blocks for tests: a bounded count of vectors, counted while out.
#[cfg(test)]
pub(crate) mod testing {
    use super::{Block, Blocks, Purpose, RemoteAddress};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// A vector that tells its source when it is dropped.
    #[derive(Debug)]
    pub(crate) struct VecBlock {
        bytes: Vec<u8>,
        apart: bool,
        addr: u64,
        out: Arc<AtomicUsize>,
    }

    impl Drop for VecBlock {
        fn drop(&mut self) {
            self.out.fetch_sub(1, Ordering::Relaxed);
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
            Some(RemoteAddress { addr: self.addr, rkey: 7 })
        }
    }

    static NEXT_ADDR: AtomicU64 = AtomicU64::new(0x1_0000_0000);

    /// Gives vectors, at most `most` at a time.
    pub(crate) struct VecBlocks {
        pub(crate) most: usize,
        /// What it gives is out of the device's reach.
        pub(crate) apart: bool,
        /// How many it gave.
        pub(crate) taken: usize,
        out: Arc<AtomicUsize>,
    }

    impl VecBlocks {
        pub(crate) fn new(most: usize) -> Self {
            VecBlocks { most, apart: false, taken: 0, out: Arc::default() }
        }

        /// How many are alive.
        pub(crate) fn out(&self) -> usize {
            self.out.load(Ordering::Relaxed)
        }
    }

    impl Blocks for VecBlocks {
        type Block = VecBlock;

        fn take(&mut self, size: usize, _: Purpose) -> Option<VecBlock> {
            if self.out() >= self.most {
                return None;
            }
            self.taken += 1;
            self.out.fetch_add(1, Ordering::Relaxed);
            let addr = NEXT_ADDR.fetch_add(1 << 24, Ordering::Relaxed);
            Some(VecBlock { bytes: vec![0; size], apart: self.apart, addr, out: Arc::clone(&self.out) })
        }
    }
}
