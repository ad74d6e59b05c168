//! DC initiators: queue pairs whose requests each name their target.
//!
//! # Safety
//!
//! The unsafe code in this module relies on these invariants:
//!
//! - `operations` belongs to the pair, which [`DcSendQueue`] keeps alive through its `queue`; see
//!   the head of `operations.rs`.
//! - `wr_set_dc_addr` is not null, and neither is `wr_set_dc_addr_stream` with `streams`:
//!   [`DcInitiatorBuilder::build`] checks both when it makes the pair. A library that makes a pair
//!   with streams has a struct that is long enough for the latter.
//! - Every request in the list has its address: [`DcPostSendGuard`] appends none without, and sets
//!   the address right after the request's buffer. Libraries finish a request with the last of
//!   both.
//! - The address handle of a request lives until its list is posted or aborted: `setup_dc_address`
//!   borrows it for as long as the guard borrows its queue.

use std::mem::offset_of;
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::{
    ibv_ah, ibv_context, ibv_qp_init_attr_ex, mlx5dv_dc_type, mlx5dv_dci_streams, mlx5dv_qp_ex,
    mlx5dv_qp_init_attr, mlx5dv_qp_init_attr_mask as M,
};
use rdma_mummy_sys::{field, mlx5dv};

use super::operations::{self, DirectState, HasDirectState, Operations, Token};
use super::queue_pair::{dc_operations, incomplete};
use super::{DciStreams, DirectOperationFlags, DirectVerbs, QueuePairCreateFlags};
use crate::direct::{self, VendorList, WholePair, check};
use crate::error::Error;
use crate::ibverbs::Unsupported;
use crate::ibverbs::address_handle::AddressHandle;
use crate::ibverbs::queue_pair::{
    CreateQueuePairError, ExtendedPostSendGuard, ExtendedSendQueue, PostSendError, PostSendGuard, QueuePair,
    QueuePairBuilder, QueuePairControl, QueuePairType, ReceiveQueue, SendQueue, WorkRequestFlags,
    WorkRequestHandle, WorkRequestOperationType,
};

/// Describes a DC initiator. One builder can make any number of them.
///
/// An initiator has no receives. It can send, write, read and do atomics like a reliably connected
/// pair, but each request names its [target](WorkRequestHandle::setup_dc_address). An initiator is
/// connected to one target at a time: the device reconnects it before a request to another target.
/// It is brought up like a connected pair, without a peer: to INIT with `setup_pkey_index` and
/// `setup_port`, to RTR with `setup_path_mtu`, to RTS with the attributes of every reliable pair.
///
/// ```no_run
/// use sideway::ibverbs::address_handle::AddressHandle;
/// use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, QueuePairBuilder, WorkRequestFlags};
/// use sideway::mlx5::{DcInitiator, DirectVerbs};
///
/// # fn write(
/// #     mlx5: &DirectVerbs, description: &QueuePairBuilder, ah: &AddressHandle, dct_number: u32,
/// #     key: u64, rkey: u32, remote: u64,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let mut initiator: DcInitiator = mlx5.create_dc_initiator_builder(description).build()?;
///
/// // ... INIT, RTR, RTS ...
///
/// let mut guard = initiator.start_post_send();
/// guard
///     .construct_wr(1, WorkRequestFlags::Signaled)
///     .setup_dc_address(ah, dct_number, key)
///     .setup_write(rkey, remote);
/// guard.post()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct DcInitiatorBuilder {
    direct: DirectVerbs,
    description: QueuePairBuilder,
    flags: QueuePairCreateFlags,
    operations: DirectOperationFlags,
    streams: Option<DciStreams>,
}

impl DirectVerbs {
    /// Returns a builder for a DC initiator from a copy of a description, whose type and receive
    /// attributes are ignored.
    pub fn create_dc_initiator_builder(&self, description: &QueuePairBuilder) -> DcInitiatorBuilder {
        let mut description = description.clone();
        description
            .setup_qp_type(QueuePairType::ReliableConnection)
            .setup_max_recv_wr(0)
            .setup_max_recv_sge(0);
        direct::complete_in_one(&mut description);
        let flags = QueuePairCreateFlags::empty();
        let operations = DirectOperationFlags::empty();
        DcInitiatorBuilder { direct: self.clone(), description, flags, operations, streams: None }
    }
}

impl DcInitiatorBuilder {
    /// Sets the options.
    pub fn setup_create_flags(&mut self, flags: QueuePairCreateFlags) -> &mut Self {
        self.flags = flags;
        self
    }

    /// Sets the number of streams, up to [the device's
    /// limits](super::DeviceCapabilities::dci_streams). With several streams, requests to one
    /// target need not wait for those to another. A request that fails then affects its stream
    /// only, which can be [reset](DcSendQueue::reset_stream).
    pub fn setup_streams(&mut self, streams: DciStreams) -> &mut Self {
        self.streams = Some(streams);
        self
    }

    /// Sets the operations specific to mlx5 that the initiator will send, in addition to those of
    /// the description. An initiator can have [copies](DirectOperationFlags::Memcpy) and [raw
    /// requests](DirectOperationFlags::RawWqe).
    pub fn setup_direct_send_ops_flags(&mut self, operations: DirectOperationFlags) -> &mut Self {
        self.operations = operations;
        self
    }

    fn attributes(&self) -> mlx5dv_qp_init_attr {
        let mut own = self.direct.qp_attributes(self.flags, self.operations);
        own.comp_mask |= u64::from(M::MLX5DV_QP_INIT_ATTR_MASK_DC.0);
        own.dc_init_attr.dc_type = mlx5dv_dc_type::MLX5DV_DCTYPE_DCI;
        if let Some(DciStreams { log_num_concurrent, log_num_errored }) = self.streams {
            own.comp_mask |= u64::from(M::MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS.0);
            // The rest of the union stays zero.
            own.dc_init_attr.__bindgen_anon_1.dci_streams =
                mlx5dv_dci_streams { log_num_concurent: log_num_concurrent, log_num_errored };
        }
        own
    }

    /// Makes the initiator (`mlx5dv_create_qp`). It accepts no inline data, like all extended pairs
    /// of mlx5 in this crate.
    ///
    /// # Errors
    ///
    /// Fails with [`Unsupported`] or `EINVAL` if the device has no DC, or not these options or
    /// streams. Also fails if the library is too old, and as
    /// [`build_ex`](QueuePairBuilder::build_ex) does.
    ///
    /// # References
    ///
    /// `man mlx5dv_create_qp`, `man mlx5dv_wr_post`
    pub fn build(&self) -> Result<DcInitiator, CreateQueuePairError> {
        self.direct.is_mine(&self.description)?;
        let of_ex = self.direct.as_raw().mlx5dv_qp_ex_from_ibv_qp_ex();
        of_ex.map_err(|symbol| Unsupported::missing(self.direct.context(), "DC initiators", symbol))?;
        let max_memcpy = operations::max_memcpy(&self.direct, self.operations)?;
        let mut own = self.attributes();
        let mut create = |attr: &mut ibv_qp_init_attr_ex| {
            attr.srq = ptr::null_mut();
            let qp = self.direct.create_qp(attr, &mut own);
            attr.cap.max_recv_wr = 0;
            qp
        };
        let options = || format!("DC initiators with {:?} and {:?}", self.flags, self.streams);
        let function = self.direct.create_function(&options);
        let qp_type = QueuePairType::DcInitiator;
        let operations = dc_operations(self.description.send_ops_flags());
        // SAFETY: `create` makes a DC initiator of exactly the attributes that it gets, in the
        // description's context. Its requests also need an address, which `DcPostSendGuard`
        // supplies.
        let mut pair = unsafe {
            direct::create_queue_pair(&function, &self.description, qp_type, operations, &mut create)?
        };
        direct::set_overwrites_when_full(pair.split().0);
        // SAFETY: the library made the pair just now, with these operations.
        let operations = unsafe { Operations::of(&self.direct, &pair, self.operations, max_memcpy)? };
        let qp = operations.qp;
        let streams = self.streams.is_some();
        // SAFETY: the library made the pair just now, with these operations. The field is as old as
        // the function.
        let set = unsafe {
            field::read(qp.as_ptr(), offset_of!(mlx5dv_qp_ex, wr_set_dc_addr), |qp| &qp.wr_set_dc_addr)
        };
        if set.is_none() {
            return Err(incomplete("wr_set_dc_addr"));
        }
        let place = offset_of!(mlx5dv_qp_ex, wr_set_dc_addr_stream);
        // SAFETY: the library made the pair just now. A library that made a pair with streams has
        // the field.
        if streams && unsafe { field::read(qp.as_ptr(), place, |qp| &qp.wr_set_dc_addr_stream) }.is_none() {
            return Err(incomplete("wr_set_dc_addr_stream"));
        }
        let (queue, receive) = pair.into_split();
        Ok(DcInitiator {
            send: DcSendQueue { queue, direct: self.direct.clone(), operations, streams },
            receive,
        })
    }
}

/// A DC initiator. It posts like every pair, except that each request [names its
/// target](WorkRequestHandle::setup_dc_address). It receives nothing.
#[derive(Debug)]
pub struct DcInitiator {
    send: DcSendQueue,
    receive: ReceiveQueue,
}

// SAFETY: the halves come from the extended pair of which the value was made, and nothing else has
// them.
unsafe impl WholePair for DcInitiator {}

impl QueuePair for DcInitiator {
    type SendQueue = DcSendQueue;

    fn control(&self) -> &QueuePairControl {
        self.send.queue.control()
    }

    #[inline]
    fn split(&mut self) -> (&mut DcSendQueue, &mut ReceiveQueue) {
        (&mut self.send, &mut self.receive)
    }

    fn into_split(self) -> (DcSendQueue, ReceiveQueue) {
        (self.send, self.receive)
    }
}

/// The sending half of a [`DcInitiator`].
#[derive(Debug)]
pub struct DcSendQueue {
    queue: ExtendedSendQueue,
    direct: DirectVerbs,
    operations: Operations,
    streams: bool,
}

// SAFETY: `operations` refers to the queue's pair, and only the queue's owner uses it.
unsafe impl Send for DcSendQueue {}
// SAFETY: no method uses `operations` through `&self`.
unsafe impl Sync for DcSendQueue {}

impl DcSendQueue {
    /// Resets a stream after one of its requests failed while the initiator continued
    /// (`mlx5dv_dci_stream_id_reset`). First, all requests of the stream must have completed.
    ///
    /// # Errors
    ///
    /// Fails as [`Unsupported`] if the library is too old, or if the device has no streams. Also
    /// fails if the stream does not exist.
    ///
    /// # References
    ///
    /// `man mlx5dv_dci_stream_id_reset`
    pub fn reset_stream(&mut self, stream_id: u16) -> Result<(), Error> {
        const WHAT: &str = "streams of DC initiators";
        const VERB: &str = "mlx5dv_dci_stream_id_reset";
        let context = self.direct.context();
        let reset = self.direct.as_raw().mlx5dv_dci_stream_id_reset();
        let reset = reset.map_err(|symbol| Unsupported::missing(context, WHAT, symbol))?;
        let result = direct::with_lists_closed(&mut self.queue, |qp| {
            // SAFETY: `self` keeps the pair alive, which is a DC initiator of this library. No list
            // is open, and no other thread changes the pair.
            check(unsafe { reset(qp.as_ptr(), stream_id) })
        });
        result.map_err(|source| {
            Error::of_device(context, VERB, WHAT, source)
                .with("stream_id", stream_id)
                .of_queue_pair(self.queue.control().qp_number())
        })
    }
}

impl SendQueue for DcSendQueue {
    type Guard<'queue> = DcPostSendGuard<'queue>;

    #[inline]
    fn start_post_send(&mut self) -> DcPostSendGuard<'_> {
        let context = self.queue.control().context().as_raw().as_ptr();
        let (own, streams) = (DirectState::new(self.operations), self.streams);
        DcPostSendGuard { list: self.queue.start_post_send(), own, streams, context, to: None }
    }

    fn control(&self) -> &QueuePairControl {
        self.queue.control()
    }
}

/// The target of a request: address handle, number and key.
#[derive(Clone, Copy, Debug)]
struct Target {
    ah: NonNull<ibv_ah>,
    number: u32,
    access_key: u64,
    stream: Option<u16>,
}

/// A list of work requests that is being built for a [`DcInitiator`]. The notes at
/// [`ExtendedPostSendGuard`] apply to it too.
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct DcPostSendGuard<'queue> {
    list: ExtendedPostSendGuard<'queue>,
    own: DirectState,
    streams: bool,
    context: *mut ibv_context,
    /// The target of the request that is being built.
    to: Option<Target>,
}

impl<'queue> HasDirectState<'queue> for DcPostSendGuard<'queue> {
    #[inline]
    fn parts(&mut self, _: Token) -> (&mut ExtendedPostSendGuard<'queue>, &mut DirectState) {
        (&mut self.list, &mut self.own)
    }
}

impl<'guard, 'queue> WorkRequestHandle<'guard, DcPostSendGuard<'queue>> {
    /// Sets the target of the request (`mlx5dv_wr_set_dc_addr`). Every request of a DC initiator
    /// needs one.
    ///
    /// `dct_number` and `access_key` belong to a [`DcTarget`](super::DcTarget), and the address
    /// handle leads to its port. It is borrowed until the list is posted or dropped.
    ///
    /// # References
    ///
    /// `man mlx5dv_wr_post`
    #[inline]
    pub fn setup_dc_address(mut self, ah: &'queue AddressHandle, dct_number: u32, access_key: u64) -> Self {
        self.guard().to = Some(Target { ah: ah.as_raw(), number: dct_number, access_key, stream: None });
        self
    }

    /// Sets the target and a stream (`mlx5dv_wr_set_dc_addr_stream`); the device processes requests
    /// of one stream in order. The initiator must be [made with
    /// streams](DcInitiatorBuilder::setup_streams).
    ///
    /// # References
    ///
    /// `man mlx5dv_wr_post`
    #[inline]
    pub fn setup_dc_address_stream(
        mut self,
        ah: &'queue AddressHandle,
        dct_number: u32,
        access_key: u64,
        stream_id: u16,
    ) -> Self {
        let (ah, stream) = (ah.as_raw(), Some(stream_id));
        self.guard().to = Some(Target { ah, number: dct_number, access_key, stream });
        self
    }
}

// SAFETY: the list comes from the queue, and the guard posts or drops it. `append_with` sets the
// address, or refuses the request. A DC initiator has no operation without a buffer.
unsafe impl<'queue> VendorList<'queue> for DcPostSendGuard<'queue> {
    #[inline(always)]
    fn extended(&self) -> &ExtendedPostSendGuard<'queue> {
        &self.list
    }

    #[inline(always)]
    unsafe fn extended_mut(&mut self) -> &mut ExtendedPostSendGuard<'queue> {
        &mut self.list
    }

    /// Appends a request with its buffer, and sets its address.
    #[inline(always)]
    unsafe fn append_with(
        &mut self,
        operation: WorkRequestOperationType,
        append: impl FnOnce(&mut ExtendedPostSendGuard<'queue>),
    ) {
        let (Some(index), None) = (self.list.request_count(), self.own.refused) else { return };
        let Some(to) = self.to.take() else {
            self.own.refused = Some(PostSendError::MissingDestination { index, operation });
            return;
        };
        // SAFETY: the handle is borrowed, so it is alive (module head); every release's struct has
        // this field.
        if unsafe { (*to.ah.as_ptr()).context } != self.context {
            self.own.refused = Some(PostSendError::OtherContext { index });
            return;
        }
        if to.stream.is_some() && !self.streams {
            self.own.refused = Some(PostSendError::NoStreams { index });
            return;
        }
        append(&mut self.list);
        if self.list.request_count().is_none() {
            return;
        }
        let (qp, ah) = (self.own.qp(), to.ah.as_ptr());
        // SAFETY: the list is open, and the request in it waits for its address only (module head).
        unsafe {
            match to.stream {
                None => mlx5dv::mlx5dv_wr_set_dc_addr(qp, ah, to.number, to.access_key),
                Some(stream) => {
                    mlx5dv::mlx5dv_wr_set_dc_addr_stream(qp, ah, to.number, to.access_key, stream);
                }
            }
        }
    }
}

impl PostSendGuard for DcPostSendGuard<'_> {
    #[inline]
    fn construct_wr(&mut self, wr_id: u64, flags: WorkRequestFlags) -> WorkRequestHandle<'_, Self> {
        // Clears the target of a handle that was dropped.
        self.to = None;
        WorkRequestHandle::begin(self, wr_id, flags)
    }

    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        // An error drops the list, which aborts it.
        self.own.verdict(&self.list)?;
        self.list.post()
    }
}
