//! The typed builder for send lists: operation, then buffer, then `post`.

use std::io::IoSlice;
use std::mem::ManuallyDrop;

use rdma_mummy_sys::types::{ibv_context, ibv_sge};
use sealed::Step;

use super::work_request::{
    Address, BufferlessOperation, BufferlessRequest, Destination, Remote, SendOperation, SendRequest,
};
use super::{PostSendError, WorkRequestFlags};
use crate::direct::VendorList;
use crate::ibverbs::address_handle::AddressHandle;
use crate::ibverbs::memory_window::{MemoryWindow, MemoryWindowBindInfo};
use crate::memory::RemotePlace;

c_flags! {
    /// The placement that a flush guarantees (`ibv_placement_type`).
    pub struct FlushPlacement(u32) {
        /// The data is globally visible.
        Global = rdma_mummy_sys::types::ibv_placement_type::IBV_FLUSH_GLOBAL.0,
        /// The data survives a power loss.
        Persistent = rdma_mummy_sys::types::ibv_placement_type::IBV_FLUSH_PERSISTENT.0,
    }
}

c_enum! {
    /// The memory that a flush covers (`ibv_selectivity_level`).
    pub struct FlushSelectivity(u32) {
        /// The range that the request names.
        Range = rdma_mummy_sys::types::ibv_selectivity_level::IBV_FLUSH_RANGE.0,
        /// The whole region.
        MemoryRegion = rdma_mummy_sys::types::ibv_selectivity_level::IBV_FLUSH_MR.0,
    }
}

display_as_debug!(FlushSelectivity);

/// A scatter/gather entry: local memory that a work request reads or writes (`ibv_sge`).
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct ScatterGatherEntry(pub(super) ibv_sge);

impl ScatterGatherEntry {
    /// `length` bytes from `addr`, in the region with the key `lkey`. Making an entry is safe;
    /// giving it to a device is not.
    #[inline]
    pub const fn new(lkey: u32, addr: u64, length: u32) -> Self {
        Self(ibv_sge { addr, length, lkey })
    }
}

impl std::fmt::Debug for ScatterGatherEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ibv_sge { addr, length, lkey } = self.0;
        write!(f, "ScatterGatherEntry {{ addr: {addr:#x}, length: {length}, lkey: {lkey:#x} }}")
    }
}

/// The traits behind guards, callable by the handles only.
pub(super) mod sealed {
    use super::{BufferlessRequest, IoSlice, ScatterGatherEntry, SendRequest, ibv_context};

    /// A token that every `Build` method requires, and that only this crate can make. Without it, a
    /// bound of a generic function would make the methods of this supertrait callable, although the
    /// trait cannot be named.
    #[derive(Clone, Copy, Debug)]
    pub struct Step(pub(in super::super) ());

    /// The queue of a list and the list's progress.
    #[derive(Clone, Copy, Debug)]
    pub struct ListInfo {
        pub(in super::super) context: *mut ibv_context,
        /// The number of requests in the list.
        pub(in super::super) count: usize,
        /// Whether requests are written where the device reads them.
        pub(in super::super) in_place: bool,
        /// Whether the library detects a full queue only after it has started to write (`Quirks`).
        pub(in super::super) overwrites_when_full: bool,
    }

    /// Appends work requests, with one method for each kind of buffer. A request that cannot be
    /// appended makes the whole list fail when it is posted.
    pub trait Build {
        fn list_info(&self, step: Step) -> ListInfo;
        /// Appends a request without a buffer.
        fn append(&mut self, step: Step, request: SendRequest);
        /// # Safety
        ///
        /// The contract of [`super::LocalBufferHandle::setup_sge`] applies.
        unsafe fn append_sge(&mut self, step: Step, request: SendRequest, entry: ScatterGatherEntry);
        /// # Safety
        ///
        /// The contract of [`super::LocalBufferHandle::setup_sge`] applies to every entry.
        unsafe fn append_sge_list(&mut self, step: Step, request: SendRequest, list: &[ScatterGatherEntry]);
        fn append_inline(&mut self, step: Step, request: SendRequest, data: &[u8]);
        fn append_inline_list(&mut self, step: Step, request: SendRequest, list: &[IoSlice<'_>]);
        /// # Safety
        ///
        /// The objects that the request refers to must live until the list has been posted or
        /// dropped.
        unsafe fn append_bufferless(&mut self, step: Step, request: BufferlessRequest);
    }
}

/// A list of work requests that is being built (`ibv_wr_start` to `ibv_wr_complete`, or an array
/// for `ibv_post_send`). Dropping it discards the list (`ibv_wr_abort`).
pub trait PostSendGuard: sealed::Build + Sized {
    /// Starts the next work request. Its completion returns `wr_id`.
    ///
    /// The request joins the list once its operation is set up. Without a buffer it moves no bytes.
    /// On mlx5, an extended pair requires a buffer, which may be an empty
    /// [list](LocalBufferHandle::setup_sge_list); see
    /// [`FullQueueUnnoticed`](PostSendError::FullQueueUnnoticed).
    #[inline]
    fn construct_wr(&mut self, wr_id: u64, flags: WorkRequestFlags) -> WorkRequestHandle<'_, Self> {
        WorkRequestHandle::start(self, wr_id, flags)
    }

    /// Posts the list to the device. An empty list has no effect.
    ///
    /// # Errors
    ///
    /// [`PostSendError`] says which work request was wrong, and how many before it were posted.
    fn post(self) -> Result<(), PostSendError>;
}

/// A guard whose queue is borrowed for `'queue`. The objects that its requests refer to are
/// borrowed for the same time, which is longer than the list can be posted.
///
/// Every guard of a [`SendQueue`](super::SendQueue) implements it. Other crates cannot implement it:
/// a list of theirs is a [`VendorList`], and so it is one.
pub trait Borrows<'queue>: PostSendGuard {}

/// The contract of `VendorList` says that the extended list, which is posted, borrows its queue for
/// `'queue`. This implementation excludes others for such lists, and only this crate can make guards
/// of other kinds.
impl<'queue, L: PostSendGuard + VendorList<'queue>> Borrows<'queue> for L {}

/// A work request without an operation yet.
#[must_use = "a work request takes part only once its operation is set up"]
#[derive(Debug)]
pub struct WorkRequestHandle<'guard, G> {
    guard: &'guard mut G,
    wr_id: u64,
    flags: WorkRequestFlags,
    to: Destination,
}

impl<'guard, G: PostSendGuard> WorkRequestHandle<'guard, G> {
    #[inline(always)]
    fn setup(self, operation: SendOperation) -> LocalBufferHandle<'guard, G> {
        let request = SendRequest { wr_id: self.wr_id, flags: self.flags, to: self.to, operation };
        LocalBufferHandle { guard: self.guard, request }
    }

    /// Sets the destination of a datagram (`ibv_wr_set_ud_addr`). Every send of a datagram pair
    /// needs one; other pairs have none.
    ///
    /// `remote_qkey` must be the Q_Key of the pair `remote_qpn`, or else the datagram is dropped. A
    /// value with the highest bit set stands for the sending pair's own Q_Key.
    ///
    /// The address handle is borrowed until the list is posted or dropped. Keep it until the send
    /// has completed, too: see [`AddressHandle`].
    ///
    /// # References
    ///
    /// `man ibv_wr_post`, `man ibv_post_send`
    #[inline]
    pub fn setup_ud_address<'queue>(
        self,
        ah: &'queue AddressHandle,
        remote_qpn: u32,
        remote_qkey: u32,
    ) -> DatagramHandle<'guard, G>
    where
        G: Borrows<'queue>,
    {
        let to = Destination::Address(Address { ah: ah.as_raw(), remote_qpn, remote_qkey });
        DatagramHandle(Self { to, ..self })
    }

    /// Sets the shared receive queue at the other end (`ibv_wr_set_xrc_srqn`). Every request of an
    /// [`XrcSend`](super::QueuePairType::XrcSend) pair needs one; other pairs have none. The number
    /// is the queue's [`srqn`](crate::ibverbs::srq::SharedReceiveQueue::srqn), which the peer sends
    /// beforehand.
    ///
    /// For a request that consumes no receive, the queue determines the protection domain of the
    /// peer's memory.
    ///
    /// # References
    ///
    /// `man ibv_wr_post`, `man ibv_post_send`
    #[inline]
    pub fn setup_xrc_srqn(self, remote_srqn: u32) -> Self {
        Self { to: Destination::Queue(remote_srqn), ..self }
    }

    /// SEND (`ibv_wr_send`) into the peer's next receive buffer.
    #[inline]
    pub fn setup_send(self) -> LocalBufferHandle<'guard, G> {
        self.setup(SendOperation::Send)
    }

    /// SEND with 32 bits of immediate data in the peer's completion (`ibv_wr_send_imm`).
    #[inline]
    pub fn setup_send_imm(self, imm_data: u32) -> LocalBufferHandle<'guard, G> {
        self.setup(SendOperation::SendWithImmediate { imm_data })
    }

    /// SEND that invalidates a key of the peer before its receive completes (`ibv_wr_send_inv`).
    /// The key belongs to one of the peer's memory windows of type 2, see [`MemoryWindow`]. The
    /// peer's completion [reports
    /// it](crate::ibverbs::completion::BasicWorkCompletion::invalidated_rkey).
    ///
    /// With any other key, the peer's receive ends with an error, and the connection fails.
    ///
    /// # References
    ///
    /// `man ibv_post_send` (`IBV_WR_SEND_WITH_INV`), `man ibv_wr_post` (`ibv_wr_send_inv`)
    #[inline]
    pub fn setup_send_inv(self, invalidate_rkey: u32) -> LocalBufferHandle<'guard, G> {
        self.setup(SendOperation::SendWithInvalidate { rkey: invalidate_rkey })
    }

    fn setup_bare(self, operation: BufferlessOperation) {
        let bare = BufferlessRequest { wr_id: self.wr_id, flags: self.flags, operation };
        // SAFETY: objects that the request refers to are borrowed for as long as the guard's queue
        // (`Borrows`).
        unsafe { self.guard.append_bufferless(Step(()), bare) };
    }

    /// Invalidates the key of a local memory window of type 2 (`ibv_wr_local_inv`). After
    /// completion, no peer can access the window's memory by it, and the window can be bound again.
    ///
    /// With any other key, the request fails ([`LocalQueuePairOperationError`]), and so does the
    /// connection.
    ///
    /// [`LocalQueuePairOperationError`]: crate::ibverbs::completion::WorkCompletionStatus::LocalQueuePairOperationError
    ///
    /// # References
    ///
    /// `man ibv_post_send`, `man ibv_wr_post` (`ibv_wr_local_inv`)
    pub fn setup_local_inv(self, invalidate_rkey: u32) {
        self.setup_bare(BufferlessOperation::LocalInvalidate { rkey: invalidate_rkey });
    }

    /// Binds a memory window of type 2 to a part of a region (`ibv_wr_bind_mw`). The new key `rkey`
    /// must differ from the window's last one in its low eight bits
    /// ([`next_rkey`](MemoryWindow::next_rkey)). Requests posted after it find the window bound.
    ///
    /// The window has the key `rkey` from now on. If the list is not posted after all, restore the
    /// key with [`set_rkey`](MemoryWindow::set_rkey).
    ///
    /// The request fails ([`MemoryWindowBindError`]), and so does the connection, if the window is
    /// already bound, if the region does not allow it, or if the region is too short.
    ///
    /// [`MemoryWindowBindError`]: crate::ibverbs::completion::WorkCompletionStatus::MemoryWindowBindError
    ///
    /// # References
    ///
    /// `man ibv_post_send` (`IBV_WR_BIND_MW`), `man ibv_wr_post` (`ibv_wr_bind_mw`)
    pub fn setup_bind_mw<'queue>(
        self,
        window: &'queue mut MemoryWindow,
        rkey: u32,
        info: MemoryWindowBindInfo<'queue>,
    ) where
        G: Borrows<'queue>,
    {
        let mw = window.begin_binding(rkey);
        self.setup_bare(BufferlessOperation::Bind { mw, rkey, info: info.raw() });
    }

    /// Atomic write (`ibv_wr_atomic_write`): writes `value` to the 8 bytes at `remote_addr`, which
    /// is aligned to 8 bytes, all at once. A classic pair sends the value inline, so it must be
    /// made for 8 bytes of inline data.
    ///
    /// # References
    ///
    /// `man ibv_wr_post`
    pub fn setup_atomic_write(self, rkey: u32, remote_addr: u64, value: u64) {
        self.setup_bare(BufferlessOperation::AtomicWrite {
            remote: Remote { rkey, addr: remote_addr },
            value,
        });
    }

    /// Flush (`ibv_wr_flush`): completes when earlier writes to these `len` bytes of the peer's
    /// memory, or to the whole region, have reached `placement`.
    ///
    /// The region and the peer's queue pair must allow it
    /// ([`FlushGlobal`](crate::ibverbs::AccessFlags::FlushGlobal),
    /// [`FlushPersistent`](crate::ibverbs::AccessFlags::FlushPersistent)). Classic pairs do not
    /// support it.
    ///
    /// # References
    ///
    /// `man ibv_wr_post`
    pub fn setup_flush(
        self,
        rkey: u32,
        remote_addr: u64,
        len: usize,
        placement: FlushPlacement,
        selectivity: FlushSelectivity,
    ) {
        self.setup_bare(BufferlessOperation::Flush {
            remote: Remote { rkey, addr: remote_addr },
            len,
            placement: placement.bits() as u8,
            selectivity: selectivity.raw() as u8,
        });
    }

    /// RDMA WRITE (`ibv_wr_rdma_write`) to the peer's memory at `remote_addr`, in the region with
    /// the key `rkey`.
    #[inline]
    pub fn setup_write(self, rkey: u32, remote_addr: u64) -> LocalBufferHandle<'guard, G> {
        self.setup(SendOperation::Write(Remote { rkey, addr: remote_addr }))
    }

    /// RDMA WRITE to a [checked](crate::memory::RemoteMemory::at) place of the peer's memory
    /// (`ibv_wr_rdma_write`). The local buffer may be shorter than the place. If it is longer, the
    /// peer's device checks the rest against the region.
    #[inline]
    pub fn setup_write_at(self, place: RemotePlace) -> LocalBufferHandle<'guard, G> {
        self.setup_write(place.rkey(), place.addr())
    }

    /// RDMA READ from a [checked](crate::memory::RemoteMemory::at) place of the peer's memory
    /// (`ibv_wr_rdma_read`). As for [`setup_write_at`](Self::setup_write_at), the local buffer decides
    /// how many bytes.
    #[inline]
    pub fn setup_read_at(self, place: RemotePlace) -> ReadBufferHandle<'guard, G> {
        self.setup_read(place.rkey(), place.addr())
    }

    /// RDMA WRITE with 32 bits of immediate data, which completes one of the peer's receives
    /// (`ibv_wr_rdma_write_imm`).
    #[inline]
    pub fn setup_write_imm(self, rkey: u32, remote_addr: u64, imm_data: u32) -> LocalBufferHandle<'guard, G> {
        self.setup(SendOperation::WriteWithImmediate { remote: Remote { rkey, addr: remote_addr }, imm_data })
    }

    /// RDMA READ (`ibv_wr_rdma_read`) from the peer's memory into the local buffer.
    #[inline]
    pub fn setup_read(self, rkey: u32, remote_addr: u64) -> ReadBufferHandle<'guard, G> {
        ReadBufferHandle(self.setup(SendOperation::Read(Remote { rkey, addr: remote_addr })))
    }

    /// Compare and swap (`ibv_wr_atomic_cmp_swp`): the 8 bytes at `remote_addr` become `swap` if
    /// they equal `compare`. Their old value goes into the local buffer of 8 bytes. Addresses are
    /// aligned to 8 bytes.
    #[inline]
    pub fn setup_atomic_compare_swap(
        self,
        rkey: u32,
        remote_addr: u64,
        compare: u64,
        swap: u64,
    ) -> ReadBufferHandle<'guard, G> {
        ReadBufferHandle(self.setup(SendOperation::CompareAndSwap {
            remote: Remote { rkey, addr: remote_addr },
            compare,
            swap,
        }))
    }

    /// Fetch and add (`ibv_wr_atomic_fetch_add`): adds `add` to the 8 bytes at `remote_addr`. Their
    /// old value goes into the local buffer of 8 bytes. Addresses are aligned to 8 bytes.
    #[inline]
    pub fn setup_atomic_fetch_add(
        self,
        rkey: u32,
        remote_addr: u64,
        add: u64,
    ) -> ReadBufferHandle<'guard, G> {
        ReadBufferHandle(
            self.setup(SendOperation::FetchAndAdd { remote: Remote { rkey, addr: remote_addr }, add }),
        )
    }
}

/// Access for [`direct`](crate::direct), which restricts it to vendors' lists.
impl<'guard, G> WorkRequestHandle<'guard, G> {
    #[inline(always)]
    pub(crate) fn start(guard: &'guard mut G, wr_id: u64, flags: WorkRequestFlags) -> Self {
        Self { guard, wr_id, flags, to: Destination::Peer }
    }

    #[inline(always)]
    pub(crate) fn list(&mut self) -> &mut G {
        self.guard
    }

    #[inline(always)]
    pub(crate) fn parts(self) -> (&'guard mut G, u64, WorkRequestFlags) {
        (self.guard, self.wr_id, self.flags)
    }
}

/// A datagram without an operation yet.
#[must_use = "a work request takes part only once its operation is set up"]
#[derive(Debug)]
pub struct DatagramHandle<'guard, G>(WorkRequestHandle<'guard, G>);

impl<'guard, G: PostSendGuard> DatagramHandle<'guard, G> {
    /// The request with its address, for the [crate of a vendor](crate::direct) whose datagrams
    /// support more operations. On other pairs the list fails with these operations.
    #[inline(always)]
    pub fn into_request(self) -> WorkRequestHandle<'guard, G> {
        self.0
    }

    /// SEND into the next receive buffer of the destination, behind [40
    /// bytes](crate::ibverbs::address_handle::GlobalRoutingHeader) for a header.
    #[inline]
    pub fn setup_send(self) -> LocalBufferHandle<'guard, G> {
        self.0.setup_send()
    }

    /// SEND with 32 bits of immediate data in the receiver's completion.
    #[inline]
    pub fn setup_send_imm(self, imm_data: u32) -> LocalBufferHandle<'guard, G> {
        self.0.setup_send_imm(imm_data)
    }
}

/// A work request that writes into its local buffer (READ, atomics), without a buffer yet. Without
/// one it moves no bytes. It cannot have inline data, because the result needs memory to go to.
#[derive(Debug)]
pub struct ReadBufferHandle<'guard, G: PostSendGuard>(pub(super) LocalBufferHandle<'guard, G>);

impl<G: PostSendGuard> ReadBufferHandle<'_, G> {
    /// Sets one piece of registered memory as the buffer.
    ///
    /// # Safety
    ///
    /// The contract of [`LocalBufferHandle::setup_sge`] applies. In addition, no Rust reference to
    /// the memory may be used until the request has completed.
    #[inline]
    pub unsafe fn setup_sge(self, lkey: u32, addr: u64, length: u32) {
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe { self.0.setup_sge(lkey, addr, length) };
    }

    /// Sets several pieces of registered memory, filled one after the other.
    ///
    /// # Safety
    ///
    /// The contract of [`setup_sge`](Self::setup_sge) applies to every piece. The list itself is
    /// copied.
    #[inline]
    pub unsafe fn setup_sge_list(self, list: &[ScatterGatherEntry]) {
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe { self.0.setup_sge_list(list) };
    }
}

/// A work request without a local buffer yet. Without one it moves no bytes.
#[derive(Debug)]
pub struct LocalBufferHandle<'guard, G: PostSendGuard> {
    pub(super) guard: &'guard mut G,
    pub(super) request: SendRequest,
}

impl<G: PostSendGuard> Drop for LocalBufferHandle<'_, G> {
    #[inline]
    fn drop(&mut self) {
        self.guard.append(Step(()), self.request);
    }
}

impl<G: PostSendGuard> LocalBufferHandle<'_, G> {
    /// Sets one piece of registered memory as the buffer (`ibv_wr_set_sge`).
    ///
    /// # Safety
    ///
    /// The following must hold from the call of [`post`](PostSendGuard::post) on, unless its error
    /// says that this request was not [posted](PostSendError::posted). It must hold until the
    /// completion of the request, or of a later request of the same queue, has been polled, or
    /// until the memory has been
    /// [deregistered](crate::ibverbs::memory_region::MemoryRegion::close).
    ///
    /// - The memory stays allocated and, if `lkey` is valid, registered.
    /// - Nobody writes to it. If the request writes to it (READ, atomics), no Rust reference to it
    ///   is used.
    /// - Some pairs of mlx5 put small results into the completion. If the request writes to the
    ///   memory and the pair is such a pair, the memory is mapped in this process at `addr`,
    ///   because the library copies the results there. This excludes regions of
    ///   [dma-bufs](crate::ibverbs::protection_domain::ProtectionDomain::reg_dmabuf_mr), of [device
    ///   memory](crate::ibverbs::protection_domain::ProtectionDomain::reg_dm_mr), and with [other
    ///   addresses](crate::ibverbs::protection_domain::ProtectionDomain::reg_mr_iova). It also
    ///   excludes memory keys of mlx5 (`mlx5::MKey`), whose addresses begin at 0. A pair never does
    ///   this if it was made with `mlx5::QueuePairCreateFlags::DisableScatterToCqe` (feature
    ///   `mlx5`), or with `MLX5_SCATTER_TO_CQE=0` in the environment.
    ///
    /// On an extended pair, the send queue must have a free place for the request: fewer than
    /// [`max_send_wr`](super::QueuePairCapability::max_send_wr) are outstanding (see
    /// [`ExtendedPostSendGuard`](super::ExtendedPostSendGuard)).
    ///
    /// A wrong `lkey`, or an address outside of its region, is not a safety problem otherwise: the
    /// device rejects it.
    #[inline]
    pub unsafe fn setup_sge(self, lkey: u32, addr: u64, length: u32) {
        let mut this = ManuallyDrop::new(self);
        let Self { guard, request } = &mut *this;
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe { guard.append_sge(Step(()), *request, ScatterGatherEntry::new(lkey, addr, length)) };
    }

    /// Sets several pieces of registered memory, used one after the other.
    ///
    /// # Safety
    ///
    /// The contract of [`setup_sge`](Self::setup_sge) applies to every piece. The free place for
    /// the request is needed for an empty list, too. The list itself is copied.
    #[inline]
    pub unsafe fn setup_sge_list(self, list: &[ScatterGatherEntry]) {
        let mut this = ManuallyDrop::new(self);
        let Self { guard, request } = &mut *this;
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe { guard.append_sge_list(Step(()), *request, list) };
    }

    /// Copies bytes into the work request now (`ibv_wr_set_inline_data`). The memory needs no
    /// registration. The length is limited by the queue pair's `max_inline_data`.
    #[inline]
    pub fn setup_inline_data(self, data: &[u8]) {
        let mut this = ManuallyDrop::new(self);
        let Self { guard, request } = &mut *this;
        guard.append_inline(Step(()), *request, data);
    }

    /// Copies several pieces into the work request now, one after the other
    /// (`ibv_wr_set_inline_data_list`).
    #[inline]
    pub fn setup_inline_data_list(self, list: &[IoSlice<'_>]) {
        let mut this = ManuallyDrop::new(self);
        let Self { guard, request } = &mut *this;
        guard.append_inline_list(Step(()), *request, list);
    }
}
