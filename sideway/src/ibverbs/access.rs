//! Access rights of registered memory, and of the responder side of a queue pair.

use rdma_mummy_sys::types::ibv_access_flags as C;

c_flags! {
    /// Permissions of a memory region, and of a queue pair as a responder (`ibv_access_flags`).
    ///
    /// The local device may always read.
    pub struct AccessFlags(u32) {
        /// The local device may write. Receives need it, and so do `RemoteWrite` and
        /// `RemoteAtomic`.
        LocalWrite = C::IBV_ACCESS_LOCAL_WRITE.0,
        /// A peer may write with RDMA WRITE.
        RemoteWrite = C::IBV_ACCESS_REMOTE_WRITE.0,
        /// A peer may read with RDMA READ.
        RemoteRead = C::IBV_ACCESS_REMOTE_READ.0,
        /// A peer may use compare-and-swap and fetch-and-add.
        RemoteAtomic = C::IBV_ACCESS_REMOTE_ATOMIC.0,
        /// Memory windows may be bound to the region.
        MemoryWindowBind = C::IBV_ACCESS_MW_BIND.0,
        /// The region's addresses start at zero: work requests give offsets instead of virtual
        /// addresses.
        ZeroBased = C::IBV_ACCESS_ZERO_BASED.0,
        /// On-demand paging: pages are not pinned, and the device faults them in.
        OnDemand = C::IBV_ACCESS_ON_DEMAND.0,
        /// The memory lies on huge pages, so that the device needs fewer translation entries. Safe
        /// registrations accept it only for a [`Buffer`](crate::memory::Buffer) on huge pages.
        HugeTlb = C::IBV_ACCESS_HUGETLB.0,
        /// A peer may flush to global visibility.
        FlushGlobal = C::IBV_ACCESS_FLUSH_GLOBAL.0,
        /// A peer may flush to persistence.
        FlushPersistent = C::IBV_ACCESS_FLUSH_PERSISTENT.0,
        /// The device may reorder its writes on the bus. This is a hint, which older devices
        /// ignore.
        RelaxedOrdering = C::IBV_ACCESS_RELAXED_ORDERING.0,
    }
}
