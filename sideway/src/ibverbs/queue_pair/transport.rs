//! Queue pairs whose transport the compiler knows: an operation that it lacks does not compile.
//!
//! [`build_typed`](super::QueuePairBuilder::build_typed) makes one. It is a [`QueuePair`], so that
//! functions that take any queue pair take it, too: [`connect`](crate::ibverbs::connect::connect),
//! for instance. Its guard's [`construct_wr`](TypedPostSendGuard::construct_wr) returns a request
//! that has the operations of the transport. The types are wrappers without further fields, so that
//! the compiler makes the same code as for the pair inside.
//!
//! Where a function takes any guard, its requests have all operations, and one that the transport
//! lacks fails when it is posted. So do requests of a list that is attached to a
//! [pool](crate::memory::Pool), and those that [`DatagramHandle::into_request`] returns.
//!
//! | operation | [`Rc`] | [`Uc`] | [`Ud`] |
//! | --- | --- | --- | --- |
//! | SEND | yes | yes | to an address |
//! | RDMA WRITE, operations of memory windows | yes | yes | |
//! | RDMA READ, atomics, flush | yes | | |
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use sideway::ibverbs::AccessFlags;
//! # use sideway::ibverbs::completion::WorkCompletionStatus;
//! use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
//! # use sideway::ibverbs::device::DeviceList;
//! use sideway::ibverbs::queue_pair::transport::Rc;
//! use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, WorkRequestFlags};
//! # use sideway::memory::{Buffer, BufferKind};
//! # let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! # let context = list.first()?.open()?;
//! # let path = LocalPath::choose(&context, 1, None)?;
//! # let mut cq = context.create_cq_builder().build_generic()?;
//! # let pd = context.alloc_pd()?;
//! # let access = AccessFlags::LocalWrite | AccessFlags::RemoteRead;
//! # let memory = pd.reg_buffer(Buffer::new(BufferKind::Private, 4096)?, access)?;
//! # let mut builder = pd.create_qp_builder();
//! # builder.setup_send_cq(&cq).setup_recv_cq(&cq);
//! # let options = ConnectOptions { access_flags: access, ..ConnectOptions::default() };
//!
//! let mut qp = builder.build_typed::<Rc>()?;
//! // To itself; a real peer would send its endpoint, address and key.
//! let endpoint = Endpoint::new(&qp, &path, 1);
//! connect(&mut qp, &path, &endpoint, &endpoint, &options)?;
//! let (rkey, remote_addr) = (memory.rkey(), memory.as_ptr() as u64);
//!
//! let mut guard = qp.start_post_send();
//! let read = guard.construct_wr(1, WorkRequestFlags::Signaled).setup_read(rkey, remote_addr);
//! // SAFETY: the buffer outlives the queue pair, and nobody looks at it until the read completed.
//! unsafe { read.setup_sge(memory.lkey(), memory.as_ptr() as u64 + 2048, 64) };
//! guard.post()?;
//! # let (mut done, start) = (None, std::time::Instant::now());
//! # while done.is_none() && start.elapsed().as_secs() < 20 {
//! #     done = cq.start_poll()?.next().map(|wc| (wc.wr_id(), wc.status()));
//! # }
//! # assert_eq!(done, Some((1, WorkCompletionStatus::Success)));
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```
//!
//! The same read of an unreliable connection does not compile:
//!
//! ```compile_fail,E0277
//! # use sideway::ibverbs::queue_pair::transport::{TypedQueuePair, Uc};
//! # use sideway::ibverbs::queue_pair::{QueuePair, WorkRequestFlags};
//! fn read(qp: &mut TypedQueuePair<Uc>) {
//!     let mut guard = qp.start_post_send();
//!     guard.construct_wr(1, WorkRequestFlags::Signaled).setup_read(0x1234, 0x5678);
//! }
//! ```

use std::fmt;
use std::io::IoSlice;
use std::marker::PhantomData;

use super::post::sealed::{Build, ListInfo, Step};
use super::work_request::{BufferlessRequest, SendRequest};
use super::{
    Borrows, DatagramHandle, FlushPlacement, FlushSelectivity, GenericSendQueue, Halves, LocalBufferHandle,
    PostSendError, PostSendGuard, QueuePair, QueuePairControl, QueuePairType, ReadBufferHandle, ReceiveQueue,
    ScatterGatherEntry, SendQueue, WorkRequestFlags, WorkRequestHandle,
};
use crate::error::{ConsumeError, Error, ErrorKind};
use crate::ibverbs::address_handle::AddressHandle;
use crate::ibverbs::memory_window::{MemoryWindow, MemoryWindowBindInfo};
use crate::memory::RemotePlace;

mod sealed {
    pub trait Sealed {}
}

/// A transport that is known when the program is compiled.
pub trait QueuePairTransport: sealed::Sealed {
    /// The type of its queue pairs.
    const QP_TYPE: QueuePairType;
}

/// A transport whose requests go to the peer of the queue pair: SEND and RDMA WRITE.
#[diagnostic::on_unimplemented(
    message = "the transport `{Self}` has no connections",
    note = "a datagram names its destination first: `setup_ud_address`, then `setup_send`"
)]
pub trait Connected: QueuePairTransport {}

/// A transport with acknowledged requests: RDMA READ, atomics and flush.
#[diagnostic::on_unimplemented(
    message = "the transport `{Self}` has no RDMA READ, atomics or flush",
    note = "reliable connections (`Rc`) have them"
)]
pub trait Reliable: Connected {}

/// A transport whose requests name their destination.
#[diagnostic::on_unimplemented(
    message = "the requests of the transport `{Self}` go to the queue pair's peer",
    note = "only datagrams (`Ud`) name their destination"
)]
pub trait Datagram: QueuePairTransport {}

/// Reliable connections.
#[derive(Debug)]
pub enum Rc {}

/// Unreliable connections.
#[derive(Debug)]
pub enum Uc {}

/// Unreliable datagrams.
#[derive(Debug)]
pub enum Ud {}

macro_rules! impl_transport {
    ($($Transport:ident: $QP_TYPE:ident;)*) => {$(
        impl sealed::Sealed for $Transport {}

        impl QueuePairTransport for $Transport {
            const QP_TYPE: QueuePairType = QueuePairType::$QP_TYPE;
        }
    )*};
}

impl_transport! {
    Rc: ReliableConnection;
    Uc: UnreliableConnection;
    Ud: UnreliableDatagram;
}

impl Connected for Rc {}
impl Connected for Uc {}
impl Reliable for Rc {}
impl Datagram for Ud {}

/// A marker of a transport, which is never a value.
type Marker<T> = PhantomData<fn() -> T>;

/// A queue pair of the transport `T`.
#[derive(Debug)]
pub struct TypedQueuePair<T, S = GenericSendQueue> {
    halves: Halves<TypedSendQueue<T, S>>,
}

impl<T: QueuePairTransport, S: SendQueue> TypedQueuePair<T, S> {
    /// Takes a queue pair of this transport, for example one of
    /// [`build_ex`](super::QueuePairBuilder::build_ex).
    ///
    /// # Errors
    ///
    /// Gives the pair back if it is of another type.
    pub fn new<Q: QueuePair<SendQueue = S> + fmt::Debug>(pair: Q) -> Result<Self, ConsumeError<Q>> {
        let qp_type = pair.qp_type();
        if qp_type == T::QP_TYPE {
            return Ok(Self::of(pair));
        }
        let reason = "the queue pair is of another type than the transport";
        let error = Error::not_called("TypedQueuePair::new", ErrorKind::InvalidArgument, reason);
        Err(ConsumeError {
            object: pair,
            error: error.with("qp_type", qp_type).with("transport", T::QP_TYPE),
        })
    }

    /// `pair` must be of this transport.
    pub(super) fn of(pair: impl QueuePair<SendQueue = S>) -> Self {
        let (queue, receive) = pair.into_split();
        Self { halves: Halves { send: TypedSendQueue { queue, transport: PhantomData }, receive } }
    }
}

// SAFETY: the value has both halves of the pair that it was made from, and nothing else has them.
unsafe impl<T, S> crate::direct::WholePair for TypedQueuePair<T, S> {}

impl<T: QueuePairTransport, S: SendQueue> QueuePair for TypedQueuePair<T, S> {
    type SendQueue = TypedSendQueue<T, S>;

    fn control(&self) -> &QueuePairControl {
        self.halves.send.control()
    }

    #[inline]
    fn split(&mut self) -> (&mut TypedSendQueue<T, S>, &mut ReceiveQueue) {
        (&mut self.halves.send, &mut self.halves.receive)
    }

    fn into_split(self) -> (TypedSendQueue<T, S>, ReceiveQueue) {
        (self.halves.send, self.halves.receive)
    }
}

/// The sending half of a [`TypedQueuePair`].
#[derive(Debug)]
pub struct TypedSendQueue<T, S = GenericSendQueue> {
    queue: S,
    transport: Marker<T>,
}

impl<T: QueuePairTransport, S: SendQueue> SendQueue for TypedSendQueue<T, S> {
    type Guard<'queue>
        = TypedPostSendGuard<T, S::Guard<'queue>>
    where
        Self: 'queue;

    #[inline]
    fn start_post_send(&mut self) -> TypedPostSendGuard<T, S::Guard<'_>> {
        TypedPostSendGuard { guard: self.queue.start_post_send(), transport: PhantomData }
    }

    fn control(&self) -> &QueuePairControl {
        self.queue.control()
    }
}

/// A list of work requests that is being built for a [`TypedQueuePair`].
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct TypedPostSendGuard<T, G> {
    guard: G,
    transport: Marker<T>,
}

impl<T: QueuePairTransport, G: PostSendGuard> TypedPostSendGuard<T, G> {
    /// Starts the next work request, as [`PostSendGuard::construct_wr`] does. The request has the
    /// operations of the transport.
    #[inline]
    pub fn construct_wr(&mut self, wr_id: u64, flags: WorkRequestFlags) -> TypedRequestHandle<'_, T, G> {
        TypedRequestHandle { request: self.guard.construct_wr(wr_id, flags), transport: PhantomData }
    }
}

impl<T: QueuePairTransport, G: PostSendGuard> PostSendGuard for TypedPostSendGuard<T, G> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        self.guard.post()
    }
}

impl<'queue, T: QueuePairTransport, G: Borrows<'queue>> Borrows<'queue> for TypedPostSendGuard<T, G> {}

impl<T: QueuePairTransport, G: PostSendGuard> Build for TypedPostSendGuard<T, G> {
    #[inline]
    fn list_info(&self, step: Step) -> ListInfo {
        self.guard.list_info(step)
    }

    #[inline]
    fn append(&mut self, step: Step, request: SendRequest) {
        self.guard.append(step, request);
    }

    #[inline]
    unsafe fn append_sge(&mut self, step: Step, request: SendRequest, entry: ScatterGatherEntry) {
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe { self.guard.append_sge(step, request, entry) };
    }

    #[inline]
    unsafe fn append_sge_list(&mut self, step: Step, request: SendRequest, list: &[ScatterGatherEntry]) {
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe { self.guard.append_sge_list(step, request, list) };
    }

    #[inline]
    fn append_inline(&mut self, step: Step, request: SendRequest, data: &[u8]) {
        self.guard.append_inline(step, request, data);
    }

    #[inline]
    fn append_inline_list(&mut self, step: Step, request: SendRequest, list: &[IoSlice<'_>]) {
        self.guard.append_inline_list(step, request, list);
    }

    unsafe fn append_bufferless(&mut self, step: Step, request: BufferlessRequest) {
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe { self.guard.append_bufferless(step, request) };
    }
}

/// A work request of the transport `T`, without an operation yet.
///
/// It has the operations of [`WorkRequestHandle`] that the transport supports.
#[must_use = "a work request takes part only once its operation is set up"]
#[derive(Debug)]
pub struct TypedRequestHandle<'guard, T, G> {
    request: WorkRequestHandle<'guard, G>,
    transport: Marker<T>,
}

/// Defines operations of the transports that implement a trait. They call those of the same names.
macro_rules! operations {
    ($Trait:ident: $(fn $name:ident($($argument:ident: $Type:ty),*) -> $Handle:ty;)*) => {$(
        #[doc = concat!("As [`WorkRequestHandle::", stringify!($name), "`].")]
        #[inline]
        pub fn $name(self, $($argument: $Type),*) -> $Handle
        where
            T: $Trait,
        {
            self.request.$name($($argument),*)
        }
    )*};
}

/// The bounds are on the methods, not on this block, because only then does the compiler print the
/// traits' notes.
impl<'guard, T: QueuePairTransport, G: PostSendGuard> TypedRequestHandle<'guard, T, G> {
    operations! { Connected:
        fn setup_send() -> LocalBufferHandle<'guard, G>;
        fn setup_send_imm(imm_data: u32) -> LocalBufferHandle<'guard, G>;
        fn setup_send_inv(invalidate_rkey: u32) -> LocalBufferHandle<'guard, G>;
        fn setup_write(rkey: u32, remote_addr: u64) -> LocalBufferHandle<'guard, G>;
        fn setup_write_at(place: RemotePlace) -> LocalBufferHandle<'guard, G>;
        fn setup_write_imm(rkey: u32, remote_addr: u64, imm_data: u32) -> LocalBufferHandle<'guard, G>;
        fn setup_local_inv(invalidate_rkey: u32) -> ();
    }

    operations! { Reliable:
        fn setup_read(rkey: u32, remote_addr: u64) -> ReadBufferHandle<'guard, G>;
        fn setup_read_at(place: RemotePlace) -> ReadBufferHandle<'guard, G>;
        fn setup_atomic_compare_swap(rkey: u32, remote_addr: u64, compare: u64, swap: u64)
            -> ReadBufferHandle<'guard, G>;
        fn setup_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) -> ReadBufferHandle<'guard, G>;
        fn setup_atomic_write(rkey: u32, remote_addr: u64, value: u64) -> ();
        fn setup_flush(rkey: u32, remote_addr: u64, len: usize, placement: FlushPlacement,
            selectivity: FlushSelectivity) -> ();
    }

    /// As [`WorkRequestHandle::setup_bind_mw`].
    pub fn setup_bind_mw<'queue>(
        self,
        window: &'queue mut MemoryWindow,
        rkey: u32,
        info: MemoryWindowBindInfo<'queue>,
    ) where
        T: Connected,
        G: Borrows<'queue>,
    {
        self.request.setup_bind_mw(window, rkey, info);
    }

    /// As [`WorkRequestHandle::setup_ud_address`].
    #[inline]
    pub fn setup_ud_address<'queue>(
        self,
        ah: &'queue AddressHandle,
        remote_qpn: u32,
        remote_qkey: u32,
    ) -> DatagramHandle<'guard, G>
    where
        T: Datagram,
        G: Borrows<'queue>,
    {
        self.request.setup_ud_address(ah, remote_qpn, remote_qkey)
    }
}
