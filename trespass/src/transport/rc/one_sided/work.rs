//! One-sided operations as work requests.

use sideway::ibverbs::queue_pair::{PostSendGuard, WorkRequestHandle};

/// One-sided operations, in the verbs' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OneSidedOperation {
    Write,
    Read,
    FetchAdd { add: u64 },
    CompareSwap { expected: u64, new: u64 },
}

/// The memory of this side that a request uses.
pub(super) enum LocalMemory<'a> {
    /// A WRITE copies these bytes when it is posted.
    Inline(&'a [u8]),
    Registered {
        lkey: u32,
        address: u64,
        len: u32,
    },
}

/// A place in the peer's memory.
#[derive(Clone, Copy)]
pub(super) struct RemoteAddress {
    pub(super) rkey: u32,
    pub(super) address: u64,
}

impl OneSidedOperation {
    pub(super) fn is_write(self) -> bool {
        self == Self::Write
    }

    /// Fills in a request.
    ///
    /// # Safety
    ///
    /// Registered memory has `len` bytes at `address` until the request has completed. Until then nobody
    /// writes to it. If the operation is no WRITE, no reference to it is used either. The send queue has
    /// room for the request.
    #[inline(always)]
    pub(super) unsafe fn append<G: PostSendGuard>(
        self,
        work: WorkRequestHandle<'_, G>,
        RemoteAddress { rkey, address: remote }: RemoteAddress,
        local: LocalMemory<'_>,
    ) {
        let (lkey, address, len) = match local {
            LocalMemory::Inline(bytes) if self.is_write() => {
                return work.setup_write(rkey, remote).setup_inline_data(bytes);
            }
            // The device refuses key 0.
            LocalMemory::Inline(_) => (0, 0, 0),
            LocalMemory::Registered { lkey, address, len } => (lkey, address, len),
        };
        let result = match self {
            Self::Write => {
                // SAFETY: the caller keeps the memory, and writes to it from all others, until the WRITE
                // has completed.
                return unsafe { work.setup_write(rkey, remote).setup_sge(lkey, address, len) };
            }
            Self::Read => work.setup_read(rkey, remote),
            Self::FetchAdd { add } => work.setup_atomic_fetch_add(rkey, remote, add),
            Self::CompareSwap { expected, new } => {
                work.setup_atomic_compare_swap(rkey, remote, expected, new)
            }
        };
        // SAFETY: the caller keeps the memory, and all references from it, until the request that writes
        // to it has completed.
        unsafe { result.setup_sge(lkey, address, len) };
    }
}
