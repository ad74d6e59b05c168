//! Building lists of work requests to send.

use std::io::IoSlice;
use std::mem::ManuallyDrop;

use rdma_mummy_sys::types::{ibv_context, ibv_sge};
use sealed::Step;

use super::work_request::{
    Address, BufferlessOperation, BufferlessRequest, Destination, Remote, SendOperation, SendRequest,
};
use super::{PostSendError, WorkRequestFlags};
use crate::ibverbs::address_handle::AddressHandle;
use crate::ibverbs::memory_window::{MemoryWindow, MemoryWindowBindInfo};

c_flags! {
    /// Where a flush brings what was written (`ibv_placement_type`).
    pub struct FlushPlacement(u32) {
        /// To where everybody sees it.
        Global = rdma_mummy_sys::types::ibv_placement_type::IBV_FLUSH_GLOBAL.0,
        /// To where it outlives a loss of power.
        Persistent = rdma_mummy_sys::types::ibv_placement_type::IBV_FLUSH_PERSISTENT.0,
    }
}

c_enum! {
    /// How much a flush is about (`ibv_selectivity_level`).
    pub struct FlushSelectivity(u32) {
        /// The range that it names.
        Range = rdma_mummy_sys::types::ibv_selectivity_level::IBV_FLUSH_RANGE.0,
        /// All of the region.
        MemoryRegion = rdma_mummy_sys::types::ibv_selectivity_level::IBV_FLUSH_MR.0,
    }
}

display_as_debug!(FlushSelectivity);

/// Local memory that a work request reads or writes (`ibv_sge`).
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct ScatterGatherEntry(pub(super) ibv_sge);

impl ScatterGatherEntry {
    /// `length` bytes from `addr`, in the region that `lkey` names. Making one is safe; giving it to a
    /// device is not.
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

/// What a guard is made of, for the handles only.
pub(super) mod sealed {
    use super::{BufferlessRequest, IoSlice, ScatterGatherEntry, SendRequest, ibv_context};

    /// What a step is called with. Only this crate can make one: a bound of a generic function reaches the
    /// methods of a supertrait even where the trait itself cannot be named.
    #[derive(Clone, Copy, Debug)]
    pub struct Step(pub(in super::super) ());

    /// What a list is built for, and how far it has come.
    #[derive(Clone, Copy, Debug)]
    pub struct ListInfo {
        pub(in super::super) context: *mut ibv_context,
        /// How many requests it has.
        pub(in super::super) count: usize,
        /// Requests are written where the device reads them.
        pub(in super::super) in_place: bool,
        /// The library notices a full queue only after it has begun to write (`Quirks`).
        pub(in super::super) overwrites_when_full: bool,
    }

    /// The ways to append a work request, by its buffer. One that cannot be appended makes the list fail as a whole
    /// when it is posted.
    pub trait Build {
        fn list_info(&self, step: Step) -> ListInfo;
        /// Without a buffer.
        fn append(&mut self, step: Step, request: SendRequest);
        /// # Safety
        ///
        /// As [`super::LocalBufferHandle::setup_sge`].
        unsafe fn append_sge(&mut self, step: Step, request: SendRequest, entry: ScatterGatherEntry);
        /// # Safety
        ///
        /// As [`super::LocalBufferHandle::setup_sge`], for every entry.
        unsafe fn append_sge_list(&mut self, step: Step, request: SendRequest, list: &[ScatterGatherEntry]);
        fn append_inline(&mut self, step: Step, request: SendRequest, data: &[u8]);
        fn append_inline_list(&mut self, step: Step, request: SendRequest, list: &[IoSlice<'_>]);
        /// # Safety
        ///
        /// What it names lives until the list has been posted or forgotten.
        unsafe fn append_bufferless(&mut self, step: Step, request: BufferlessRequest);
    }
}

/// A list of work requests that is being built (`ibv_wr_start` to `ibv_wr_complete`, or an array for `ibv_post_send`). Dropping
/// it instead of posting it forgets the list (`ibv_wr_abort`).
pub trait PostSendGuard: sealed::Build + Sized {
    /// Begins the next work request. `wr_id` comes back with its completion.
    ///
    /// A request takes part in the list once its operation is set up; with no buffer it moves no bytes. (An extended pair of mlx5
    /// wants one, which may be an empty [list](LocalBufferHandle::setup_sge_list):
    /// [`FullQueueUnnoticed`](PostSendError::FullQueueUnnoticed) says why.)
    #[inline]
    fn construct_wr(&mut self, wr_id: u64, flags: WorkRequestFlags) -> WorkRequestHandle<'_, Self> {
        WorkRequestHandle { guard: self, wr_id, flags, to: Destination::Peer }
    }

    /// Gives the list to the device. An empty list does nothing.
    ///
    /// # Errors
    ///
    /// [`PostSendError`] says which work request was wrong, and how many before it were posted.
    fn post(self) -> Result<(), PostSendError>;
}

/// A list that is built while its queue is borrowed for `'queue`: what its work requests name by reference is borrowed for as
/// long, which is longer than the list can be posted.
///
/// Every guard of a [`SendQueue`](super::SendQueue) is one.
pub trait Borrows<'queue>: PostSendGuard {}

/// A work request whose operation is to be chosen.
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

    /// Where a datagram goes (`ibv_wr_set_ud_addr`): every send of a datagram pair needs that, and others have none.
    ///
    /// `remote_qkey` has to be that of the pair `remote_qpn`, or the datagram is dropped; one with its highest bit set stands
    /// for the sending pair's own.
    ///
    /// The address handle is borrowed until the list is posted or forgotten. Keep it until the send has completed, too: see
    /// [`AddressHandle`].
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

    /// Which shared receive queue at the other end the request is for (`ibv_wr_set_xrc_srqn`): every request of an
    /// [`XrcSend`](super::QueuePairType::XrcSend) pair needs that, and others have none. The number is the queue's
    /// [`srqn`](crate::ibverbs::srq::SharedReceiveQueue::srqn), as the peer tells it.
    ///
    /// Of a request that takes no receive the queue says which protection domain the peer's memory is in.
    ///
    /// # References
    ///
    /// `man ibv_wr_post`, `man ibv_post_send`
    #[inline]
    pub fn setup_xrc_srqn(self, remote_srqn: u32) -> Self {
        Self { to: Destination::Queue(remote_srqn), ..self }
    }

    /// SEND (`ibv_wr_send`): into the peer's next receive buffer.
    #[inline]
    pub fn setup_send(self) -> LocalBufferHandle<'guard, G> {
        self.setup(SendOperation::Send)
    }

    /// SEND, with 32 bits that come with the peer's completion (`ibv_wr_send_imm`).
    #[inline]
    pub fn setup_send_imm(self, imm_data: u32) -> LocalBufferHandle<'guard, G> {
        self.setup(SendOperation::SendWithImmediate { imm_data })
    }

    /// SEND that takes a key away from this side (`ibv_wr_send_inv`), before the peer's receive completes: that of one of the peer's memory windows
    /// of type 2, as [`MemoryWindow`] says. The completion there
    /// [names it](crate::ibverbs::completion::BasicWorkCompletion::invalidated_rkey).
    ///
    /// A key that is no such window's ends the peer's receive with an error, and the connection with it.
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
        // SAFETY: what is named by reference is borrowed for as long as the guard's queue (`Borrows`).
        unsafe { self.guard.append_bufferless(Step(()), bare) };
    }

    /// Takes the key of a memory window of type 2 of this side away from peers (`ibv_wr_local_inv`). When it has completed, no peer
    /// reaches the window's memory by it, and the window can be bound again.
    ///
    /// A key that is no such window's fails ([`LocalQueuePairOperationError`]), and the connection with it.
    ///
    /// [`LocalQueuePairOperationError`]: crate::ibverbs::completion::WorkCompletionStatus::LocalQueuePairOperationError
    ///
    /// # References
    ///
    /// `man ibv_post_send`, `man ibv_wr_post` (`ibv_wr_local_inv`)
    pub fn setup_local_inv(self, invalidate_rkey: u32) {
        self.setup_bare(BufferlessOperation::LocalInvalidate { rkey: invalidate_rkey });
    }

    /// Binds a memory window of type 2 to a part of a region (`ibv_wr_bind_mw`), under the key `rkey`, which differs from the window's last one in its
    /// low eight bits ([`next_rkey`](MemoryWindow::next_rkey)). What is posted behind it finds it bound.
    ///
    /// The window counts `rkey` as its own from now on. If the list is not posted after all, say so by
    /// [`set_rkey`](MemoryWindow::set_rkey).
    ///
    /// A window that is bound already, a region that does not allow it, or a range beyond it fails
    /// ([`MemoryWindowBindError`]), and the connection with it.
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

    /// Atomic write (`ibv_wr_atomic_write`): the 8 bytes at `remote_addr`, which is aligned to 8 bytes, become `value` at once. A classic pair sends the value
    /// inline, so it has to be made for 8 bytes of inline data.
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

    /// Flush (`ibv_wr_flush`): completes when what was written before to these `len` bytes of the peer's memory, or to all of the region, is
    /// where `placement` says. The region and the peer's queue pair have to allow it
    /// ([`FlushGlobal`](crate::ibverbs::AccessFlags::FlushGlobal), [`FlushPersistent`](crate::ibverbs::AccessFlags::FlushPersistent)).
    /// Classic pairs have no such request.
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

    /// RDMA WRITE (`ibv_wr_rdma_write`): to the peer's memory at `remote_addr`, in the region that `rkey` names.
    #[inline]
    pub fn setup_write(self, rkey: u32, remote_addr: u64) -> LocalBufferHandle<'guard, G> {
        self.setup(SendOperation::Write(Remote { rkey, addr: remote_addr }))
    }

    /// RDMA WRITE, with 32 bits that complete one of the peer's receives (`ibv_wr_rdma_write_imm`).
    #[inline]
    pub fn setup_write_imm(self, rkey: u32, remote_addr: u64, imm_data: u32) -> LocalBufferHandle<'guard, G> {
        self.setup(SendOperation::WriteWithImmediate { remote: Remote { rkey, addr: remote_addr }, imm_data })
    }

    /// RDMA READ (`ibv_wr_rdma_read`): from the peer's memory into the local buffer.
    #[inline]
    pub fn setup_read(self, rkey: u32, remote_addr: u64) -> ReadBufferHandle<'guard, G> {
        ReadBufferHandle(self.setup(SendOperation::Read(Remote { rkey, addr: remote_addr })))
    }

    /// Compare and swap (`ibv_wr_atomic_cmp_swp`): the 8 bytes at `remote_addr` become `swap` if they are `compare`; their
    /// old value goes into the local buffer of 8 bytes. Addresses are aligned to 8 bytes.
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

    /// Fetch and add (`ibv_wr_atomic_fetch_add`): `add` is added to the 8 bytes at `remote_addr`; their old value goes into
    /// the local buffer of 8 bytes. Addresses are aligned to 8 bytes.
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

/// What the plug-ins of direct verbs need of a request.
#[cfg(feature = "mlx5")]
impl<'guard, G> WorkRequestHandle<'guard, G> {
    pub(crate) fn begin(guard: &'guard mut G, wr_id: u64, flags: WorkRequestFlags) -> Self {
        Self { guard, wr_id, flags, to: Destination::Peer }
    }

    #[inline(always)]
    pub(crate) fn guard(&mut self) -> &mut G {
        self.guard
    }

    pub(crate) fn into_parts(self) -> (&'guard mut G, u64, WorkRequestFlags) {
        (self.guard, self.wr_id, self.flags)
    }
}

/// A datagram, whose kind is to be chosen.
#[must_use = "a work request takes part only once its operation is set up"]
#[derive(Debug)]
pub struct DatagramHandle<'guard, G>(WorkRequestHandle<'guard, G>);

impl<'guard, G: PostSendGuard> DatagramHandle<'guard, G> {
    /// The request, for a plug-in whose datagrams have more kinds.
    #[cfg(feature = "efa")]
    #[inline(always)]
    pub(crate) fn request(self) -> WorkRequestHandle<'guard, G> {
        self.0
    }

    /// SEND: into the next receive buffer of the pair that it goes to, behind
    /// [40 bytes](crate::ibverbs::address_handle::GlobalRoutingHeader) for a header.
    #[inline]
    pub fn setup_send(self) -> LocalBufferHandle<'guard, G> {
        self.0.setup_send()
    }

    /// SEND, with 32 bits that come with the peer's completion.
    #[inline]
    pub fn setup_send_imm(self, imm_data: u32) -> LocalBufferHandle<'guard, G> {
        self.0.setup_send_imm(imm_data)
    }
}

/// A work request that fills its local buffer (READ, atomics), which is to be chosen. Without one it moves no
/// bytes. There is no inline data here: a copy in the request is nothing that could be filled.
#[derive(Debug)]
pub struct ReadBufferHandle<'guard, G: PostSendGuard>(pub(super) LocalBufferHandle<'guard, G>);

impl<G: PostSendGuard> ReadBufferHandle<'_, G> {
    /// One piece of registered memory.
    ///
    /// # Safety
    ///
    /// As [`LocalBufferHandle::setup_sge`]; and until then no Rust reference to the memory is used.
    #[inline]
    pub unsafe fn setup_sge(self, lkey: u32, addr: u64, length: u32) {
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe { self.0.setup_sge(lkey, addr, length) };
    }

    /// Several pieces of registered memory, filled one after the other.
    ///
    /// # Safety
    ///
    /// As [`setup_sge`](Self::setup_sge), for every piece. The list itself is copied.
    #[inline]
    pub unsafe fn setup_sge_list(self, list: &[ScatterGatherEntry]) {
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe { self.0.setup_sge_list(list) };
    }
}

/// A work request whose local buffer is to be chosen. Without one it moves no bytes.
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
    /// One piece of registered memory (`ibv_wr_set_sge`).
    ///
    /// # Safety
    ///
    /// From the call of [`post`](PostSendGuard::post), unless its error says that this request was not
    /// [posted](PostSendError::posted), until the request's completion has been polled, or that of a later
    /// request of the same queue, or the memory has been [deregistered](crate::ibverbs::memory_region::MemoryRegion::close):
    ///
    /// - the memory stays allocated and, as far as `lkey` is right, registered;
    /// - nobody writes to it; and if the request writes to it (READ, atomics), no Rust reference to it
    ///   is used;
    /// - and if the request writes to it and the pair is one of mlx5 that may put small answers into the completion, the memory is
    ///   this process's at `addr`: the library copies them there. It is not in regions of
    ///   [dma-bufs](crate::ibverbs::protection_domain::ProtectionDomain::reg_dmabuf_mr), of
    ///   [device memory](crate::ibverbs::protection_domain::ProtectionDomain::reg_dm_mr), and with
    ///   [addresses of their own](crate::ibverbs::protection_domain::ProtectionDomain::reg_mr_iova), nor behind memory keys of
    ///   mlx5 (`mlx5::MKey`), whose addresses begin at 0. A pair does not, if it
    ///   was made with `mlx5::QueuePairCreateFlags::DisableScatterToCqe` (feature `mlx5`), or with `MLX5_SCATTER_TO_CQE=0` in the
    ///   environment.
    ///
    /// And on an extended pair, the send queue has a place for the request: fewer than
    /// [`max_send_wr`](super::QueuePairCapability::max_send_wr) are outstanding (see
    /// [`ExtendedPostSendGuard`](super::ExtendedPostSendGuard)).
    ///
    /// A wrong `lkey`, or an address outside of its region, is not a matter of safety otherwise: the device refuses.
    #[inline]
    pub unsafe fn setup_sge(self, lkey: u32, addr: u64, length: u32) {
        let mut this = ManuallyDrop::new(self);
        let Self { guard, request } = &mut *this;
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe { guard.append_sge(Step(()), *request, ScatterGatherEntry::new(lkey, addr, length)) };
    }

    /// Several pieces of registered memory, one after the other.
    ///
    /// # Safety
    ///
    /// As [`setup_sge`](Self::setup_sge), for every piece; and of an empty list, too, that there is a place for the request. The list
    /// itself is copied.
    #[inline]
    pub unsafe fn setup_sge_list(self, list: &[ScatterGatherEntry]) {
        let mut this = ManuallyDrop::new(self);
        let Self { guard, request } = &mut *this;
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe { guard.append_sge_list(Step(()), *request, list) };
    }

    /// Bytes that are copied into the work request now (`ibv_wr_set_inline_data`); no memory needs to be registered. At most as many
    /// as the queue pair was made for.
    #[inline]
    pub fn setup_inline_data(self, data: &[u8]) {
        let mut this = ManuallyDrop::new(self);
        let Self { guard, request } = &mut *this;
        guard.append_inline(Step(()), *request, data);
    }

    /// Several pieces that are copied into the work request now, one after the other (`ibv_wr_set_inline_data_list`).
    #[inline]
    pub fn setup_inline_data_list(self, list: &[IoSlice<'_>]) {
        let mut this = ManuallyDrop::new(self);
        let Self { guard, request } = &mut *this;
        guard.append_inline_list(Step(()), *request, list);
    }
}
