//! What may be done with registered memory.

use rdma_mummy_sys::types::ibv_access_flags as C;

c_flags! {
    /// Permissions of a memory region, and of the remote side of a queue pair (`ibv_access_flags`).
    ///
    /// Reading by the local side is always allowed.
    pub struct AccessFlags(u32) {
        /// The local device may write (needed to receive, and with `RemoteWrite` or `RemoteAtomic`).
        LocalWrite = C::IBV_ACCESS_LOCAL_WRITE.0,
        /// A peer may write with RDMA WRITE.
        RemoteWrite = C::IBV_ACCESS_REMOTE_WRITE.0,
        /// A peer may read with RDMA READ.
        RemoteRead = C::IBV_ACCESS_REMOTE_READ.0,
        /// A peer may use compare-and-swap and fetch-and-add.
        RemoteAtomic = C::IBV_ACCESS_REMOTE_ATOMIC.0,
        /// Memory windows may be bound to the region.
        MemoryWindowBind = C::IBV_ACCESS_MW_BIND.0,
        /// Addresses of the region begin at zero.
        ZeroBased = C::IBV_ACCESS_ZERO_BASED.0,
        /// Pages are not pinned but faulted in by the device.
        OnDemand = C::IBV_ACCESS_ON_DEMAND.0,
        /// The memory lies on huge pages.
        HugeTlb = C::IBV_ACCESS_HUGETLB.0,
        /// A peer may flush to global visibility.
        FlushGlobal = C::IBV_ACCESS_FLUSH_GLOBAL.0,
        /// A peer may flush to persistence.
        FlushPersistent = C::IBV_ACCESS_FLUSH_PERSISTENT.0,
        /// The device may reorder its writes on the bus; a hint that old devices ignore.
        RelaxedOrdering = C::IBV_ACCESS_RELAXED_ORDERING.0,
    }
}
