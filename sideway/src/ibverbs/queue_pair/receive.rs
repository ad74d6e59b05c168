//! Receive lists: `ibv_recv_wr`, posted with `ibv_post_recv` or, to a shared receive queue, with
//! `ibv_post_srq_recv`.
//!
//! Both kinds of queue pairs receive the same way. As in the classic sending half, the list is
//! built in memory that the queue owns.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of};
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::{ibv_qp, ibv_recv_wr, ibv_sge, ibv_srq};

use super::post::sealed::ListInfo;
use super::post_error::{AtIndex, Errno};
use super::{CreateQueuePairError, QueuePairControl, ScatterGatherEntry, Shared};

/// The receiving half of a queue pair.
pub struct ReceiveQueue {
    control: QueuePairControl,
    list: ReceiveList,
}

/// The memory for the receives of a list, and the queue to which they are posted.
pub(crate) struct ReceiveList {
    /// The queue pair or shared receive queue, as the first argument of `verb`.
    object: NonNull<c_void>,
    verb: PostReceives<c_void>,
    /// Whether the pair takes its receives from a shared queue, so that posting to it is an error.
    is_elsewhere: bool,
    max_requests: u32,
    max_entries: u32,
    /// The requests, followed by the entries of each.
    memory: Box<[MaybeUninit<Unit>]>,
}

/// The unit of allocation, which sets the memory's alignment.
type Unit = u64;

const _: () =
    assert!(align_of::<ibv_recv_wr>() <= align_of::<Unit>() && align_of::<ibv_sge>() <= align_of::<Unit>());
const _: () = assert!(size_of::<ibv_recv_wr>().is_multiple_of(size_of::<Unit>()));
const _: () = assert!(size_of::<ibv_sge>().is_multiple_of(size_of::<Unit>()));

/// The signature of `ibv_post_recv` and `ibv_post_srq_recv`.
type PostReceives<T> = unsafe extern "C" fn(*mut T, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// There is no memory for as many places.
pub(crate) struct NoRoom {
    pub(crate) places: u64,
    pub(crate) bytes_each: usize,
}

// SAFETY: the pointers into the memory are used only while a list is built, by the thread that has
// the queue. Libraries allow posts to `object` from any thread.
unsafe impl Send for ReceiveList {}
// SAFETY: no method accesses the memory through `&self`.
unsafe impl Sync for ReceiveList {}

impl std::fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveQueue").field("control", &self.control).finish_non_exhaustive()
    }
}

impl ReceiveQueue {
    pub(super) fn new(inner: Shared) -> Result<Self, CreateQueuePairError> {
        // SAFETY: `inner` keeps the pair and so its context alive, and every release's context
        // struct has this operation.
        let Some(verb) = (unsafe { (*inner.context().as_raw().as_ptr()).ops.post_recv }) else {
            return Err(CreateQueuePairError::Incomplete { operation: "post_recv" });
        };
        let control = QueuePairControl(inner);
        let list = ReceiveList::of_pair(&control, verb)?;
        Ok(Self { control, list })
    }

    /// Starts a list of receives.
    #[inline]
    pub fn start_post_recv(&mut self) -> PostRecvGuard<'_> {
        self.list.start()
    }

    /// The control side: attributes and state.
    pub fn control(&self) -> &QueuePairControl {
        &self.control
    }
}

impl ReceiveList {
    fn of_pair(pair: &QueuePairControl, verb: PostReceives<ibv_qp>) -> Result<Self, NoRoom> {
        let is_elsewhere = pair.srq().is_some();
        let (wr, sge) = match is_elsewhere {
            true => (0, 0),
            false => (pair.capability().max_recv_wr, pair.capability().max_recv_sge),
        };
        // SAFETY: the two types differ only in the target of the first pointer, and `object` points
        // to an `ibv_qp`.
        let verb = unsafe { core::mem::transmute::<PostReceives<ibv_qp>, PostReceives<c_void>>(verb) };
        Ok(Self { is_elsewhere, ..Self::new(pair.as_raw().cast(), verb, wr, sge)? })
    }

    /// The list of a shared receive queue. The caller keeps the queue alive, and is the only one
    /// that posts to it.
    pub(crate) fn of_shared(
        srq: NonNull<ibv_srq>,
        verb: PostReceives<ibv_srq>,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Self, NoRoom> {
        // SAFETY: the two types differ only in the target of the first pointer, and `object` points
        // to an `ibv_srq`.
        let verb = unsafe { core::mem::transmute::<PostReceives<ibv_srq>, PostReceives<c_void>>(verb) };
        Self::new(srq.cast(), verb, max_wr, max_sge)
    }

    fn new(
        object: NonNull<c_void>,
        verb: PostReceives<c_void>,
        max_requests: u32,
        max_entries: u32,
    ) -> Result<Self, NoRoom> {
        const REQUEST: u64 = (size_of::<ibv_recv_wr>() / size_of::<Unit>()) as u64;
        const ENTRY: u64 = (size_of::<ibv_sge>() / size_of::<Unit>()) as u64;
        let units = REQUEST + ENTRY * u64::from(max_entries);
        let Ok(units) = u32::try_from(units) else {
            return Err(NoRoom { places: units, bytes_each: size_of::<Unit>() });
        };
        // One allocation for both, because it is part of the cost of each connection.
        let memory = array(max_requests, units)?;
        Ok(Self { object, verb, is_elsewhere: false, max_requests, max_entries, memory })
    }

    /// Replaces the memory after the queue was resized.
    pub(crate) fn resize(&mut self, max_requests: u32, max_entries: u32) -> Result<(), NoRoom> {
        *self = Self::new(self.object, self.verb, max_requests, max_entries)?;
        Ok(())
    }

    pub(crate) fn max_entries(&self) -> u32 {
        self.max_entries
    }

    /// Starts a list.
    #[inline]
    pub(crate) fn start(&mut self) -> PostRecvGuard<'_> {
        let requests: *mut ibv_recv_wr = self.memory.as_mut_ptr().cast();
        PostRecvGuard {
            requests,
            // In an empty queue both pointers dangle and are never read.
            entries: requests.wrapping_add(self.max_requests as usize).cast(),
            object: self.object,
            verb: self.verb,
            is_elsewhere: self.is_elsewhere,
            max_requests: self.max_requests,
            max_entries: self.max_entries,
            count: 0,
            failure: None,
            queue: PhantomData,
        }
    }
}

// `about` reads the context as the first field.
const _: () = assert!(offset_of!(ibv_qp, context) == 0 && offset_of!(ibv_srq, context) == 0);

/// A list of receives that is being built. Dropping it discards the list.
///
/// The first `count` requests of the array are written, each linked to the next, with `sg_list` and
/// `num_sge` within the array of entries.
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub struct PostRecvGuard<'queue> {
    requests: *mut ibv_recv_wr,
    entries: *mut ibv_sge,
    object: NonNull<c_void>,
    verb: PostReceives<c_void>,
    is_elsewhere: bool,
    max_requests: u32,
    max_entries: u32,
    count: u32,
    failure: Option<PostRecvError>,
    /// Borrows the queue, which keeps the object alive.
    queue: PhantomData<&'queue mut ReceiveList>,
}

impl<'queue> PostRecvGuard<'queue> {
    /// Appends a receive. Its completion returns `wr_id`. Without a buffer it receives no bytes.
    #[inline]
    pub fn construct_wr(&mut self, wr_id: u64) -> RecvWorkRequestHandle<'_, 'queue> {
        let request = if self.count < self.max_requests {
            let index = self.count as usize;
            self.count += 1;
            // SAFETY: `index` is below the array's length, and the request before it is written.
            unsafe {
                let request = self.requests.add(index);
                (*request).wr_id = wr_id;
                (*request).next = ptr::null_mut();
                (*request).sg_list = self.entries.add(index * self.max_entries as usize);
                (*request).num_sge = 0;
                if index > 0 {
                    (*request.sub(1)).next = request;
                }
                Some(request)
            }
        } else {
            self.refuse();
            None
        };
        RecvWorkRequestHandle { guard: self, request }
    }

    /// Posts the list to the device. An empty list has no effect.
    ///
    /// # Errors
    ///
    /// [`PostRecvError`] says which receive was wrong; those before it were posted.
    #[inline]
    pub fn post(self) -> Result<(), PostRecvError> {
        self.finish()?.post()
    }

    /// Prepares the list for repeated posting, so that the cost of building it is paid once.
    ///
    /// # Errors
    ///
    /// Fails as [`post`](Self::post) does, for errors that are found before the device gets a
    /// receive.
    ///
    /// # Safety
    ///
    /// The contract of [`setup_sge`](RecvWorkRequestHandle::setup_sge) for each receive's buffer
    /// must hold each time that the list is posted: from the call of [`PreparedReceiveList::post`]
    /// until the completion.
    #[inline]
    pub unsafe fn prepare(self) -> Result<PreparedReceiveList<'queue>, PostRecvError> {
        self.finish()
    }

    #[inline(always)]
    fn finish(self) -> Result<PreparedReceiveList<'queue>, PostRecvError> {
        let Self { requests, object, verb, count, failure, queue, .. } = self;
        match failure {
            Some(failure) => Err(failure),
            None => Ok(PreparedReceiveList { requests, object, verb, count, queue }),
        }
    }

    pub(super) fn list_info(&self) -> ListInfo {
        // SAFETY: the object is a queue pair or a shared receive queue, which the borrow keeps
        // alive; both start with their context.
        let context = unsafe { self.object.cast().read() };
        let count = self.count as usize;
        ListInfo { context, count, in_place: false, overwrites_when_full: false }
    }

    /// Records that no place is left for another receive.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self) {
        self.fail(match self.is_elsewhere {
            true => PostRecvError::SharedReceiveQueue,
            false => PostRecvError::TooManyWorkRequests { limit: self.max_requests as usize },
        });
    }

    /// Records a failure, so that posting the list fails. The first failure counts.
    #[inline]
    fn fail(&mut self, failure: PostRecvError) {
        self.failure = first(self.failure, failure);
    }
}

/// A list of receives that can be posted repeatedly ([`PostRecvGuard::prepare`]).
///
/// It lies in the queue's memory, so it borrows the queue, which can have no other list at the same
/// time. The receives have the same numbers (`wr_id`) each time.
#[must_use = "a list that is not posted does nothing"]
#[derive(Debug)]
pub struct PreparedReceiveList<'queue> {
    requests: *mut ibv_recv_wr,
    object: NonNull<c_void>,
    verb: PostReceives<c_void>,
    count: u32,
    /// Borrows the queue, which keeps the object alive.
    queue: PhantomData<&'queue mut ReceiveList>,
}

impl PreparedReceiveList<'_> {
    /// Posts the list once more (`ibv_post_recv`, `ibv_post_srq_recv`). An empty list has no
    /// effect.
    ///
    /// # Errors
    ///
    /// Fails as [`PostRecvGuard::post`] does. The list stays complete: the next call posts all of
    /// it again, including the receives that were not posted this time.
    #[inline]
    pub fn post(&mut self) -> Result<(), PostRecvError> {
        if self.count == 0 {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the borrow keeps the object alive, and it is of the type that `verb` takes. The
        // queue is borrowed mutably, and its first `count` requests are linked and only read by
        // libraries. The caller of `prepare` keeps the buffers.
        let result = unsafe { (self.verb)(self.object.as_ptr(), self.requests, &raw mut bad) };
        if result == 0 { Ok(()) } else { Err(self.failed(result, bad)) }
    }

    #[cold]
    fn failed(&self, result: c_int, bad: *mut ibv_recv_wr) -> PostRecvError {
        let index = index_of(bad.addr(), self.requests.addr(), size_of::<ibv_recv_wr>(), self.count);
        PostRecvError::from_errno(result, index)
    }
}

/// A receive without a buffer yet. Without one it receives no bytes.
#[derive(Debug)]
pub struct RecvWorkRequestHandle<'guard, 'queue> {
    guard: &'guard mut PostRecvGuard<'queue>,
    request: Option<*mut ibv_recv_wr>,
}

impl RecvWorkRequestHandle<'_, '_> {
    /// Sets one piece of registered memory as the buffer.
    ///
    /// # Safety
    ///
    /// The following must hold from the call of [`post`](PostRecvGuard::post) on, unless its error
    /// says that this receive was not posted. It must hold until the receive's completion has been
    /// polled, or until the memory has been
    /// [deregistered](crate::ibverbs::memory_region::MemoryRegion::close).
    ///
    /// - The memory stays allocated and, if `lkey` is valid, registered. No Rust reference to it is
    ///   used.
    /// - If the queue is one of mlx5 that may put small messages into the completion, the memory is
    ///   mapped in this process at `addr`.
    ///   [`LocalBufferHandle::setup_sge`](super::LocalBufferHandle::setup_sge) describes this for
    ///   results, with the remedy.
    #[inline]
    pub unsafe fn setup_sge(self, lkey: u32, addr: u64, length: u32) {
        // SAFETY: the caller keeps this function's contract, which is the same as the called
        // function's.
        unsafe { self.setup_sge_list(&[ScatterGatherEntry::new(lkey, addr, length)]) };
    }

    /// Sets several pieces of registered memory, filled one after the other.
    ///
    /// # Safety
    ///
    /// The contract of [`setup_sge`](Self::setup_sge) applies to every piece. The list itself is
    /// copied.
    #[inline]
    pub unsafe fn setup_sge_list(self, list: &[ScatterGatherEntry]) {
        let Some(request) = self.request else { return };
        if list.len() > self.guard.max_entries as usize {
            let (index, limit) = (self.guard.count as usize - 1, self.guard.max_entries as usize);
            let given = list.len();
            return self.guard.fail(PostRecvError::TooManyScatterGatherEntries { index, given, limit });
        }
        // SAFETY: the request is in the array, and its `sg_list` has room for `max_entries`, which
        // the check above compared. `ScatterGatherEntry` is transparent over `ibv_sge`.
        unsafe {
            ptr::copy_nonoverlapping(list.as_ptr().cast(), (*request).sg_list, list.len());
            (*request).num_sge = list.len() as c_int;
        }
    }
}

/// A list of receives could not be posted.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostRecvError {
    /// The queue pair takes its receives from a shared receive queue.
    #[error("the queue pair takes its receives from a shared receive queue: post them there")]
    SharedReceiveQueue,
    /// The slice is of another pool than the list's.
    #[error("receive {index}: a slice of another pool than the one that the list was attached to")]
    ForeignSlice {
        /// Which receive of the list, from 0.
        index: usize,
    },
    /// The list is longer than the receive queue.
    #[error("more than {limit} receives in one list: the receive queue (max_recv_wr, max_wr) holds no more")]
    TooManyWorkRequests {
        /// How many the queue holds.
        limit: usize,
    },
    /// More pieces of memory than the queue was made for.
    #[error(
        "receive {index}: {given} scatter/gather entries; the queue's limit (max_recv_sge, max_sge) is {limit}"
    )]
    TooManyScatterGatherEntries {
        /// Which receive of the list, from 0.
        index: usize,
        /// The number that the work request has.
        given: usize,
        /// The largest number that the queue or object was made for.
        limit: usize,
    },
    /// The queue is full (`ENOMEM`; from some libraries `ENOSPC`).
    #[error("the receive queue is full ({}){}", Errno(*.errno), AtIndex(*.index))]
    NotEnoughResources {
        /// The first receive that was not posted; those before it were.
        index: Option<usize>,
        /// The library's error number.
        errno: i32,
    },
    /// A receive is not valid (`EINVAL`), or the queue pair is in the reset state.
    #[error(
        "invalid receive, or the queue pair is in Reset: connect it first, or `modify` it to Init ({}){}",
        Errno(*.errno),
        AtIndex(*.index)
    )]
    InvalidWorkRequest {
        /// The first receive that was not posted; those before it were.
        index: Option<usize>,
        /// The library's error number.
        errno: i32,
    },
    /// The library refused with an error number that has no variant of its own.
    #[error("posting receives failed: {}{}", Errno(*.errno), AtIndex(*.index))]
    Ibverbs {
        /// The first receive that was not posted; those before it were.
        index: Option<usize>,
        /// The library's error number.
        errno: i32,
    },
}

debug_as_text!(PostRecvError);

/// Keeps the first failure, which is the one to report.
#[cold]
fn first(before: Option<PostRecvError>, now: PostRecvError) -> Option<PostRecvError> {
    before.or(Some(now))
}

impl PostRecvError {
    #[cold]
    fn from_errno(result: c_int, index: Option<usize>) -> Self {
        match crate::ibverbs::os_error(result).raw_os_error().unwrap_or(result) {
            errno @ (libc::ENOMEM | libc::ENOSPC) => Self::NotEnoughResources { index, errno },
            errno @ libc::EINVAL => Self::InvalidWorkRequest { index, errno },
            errno => Self::Ibverbs { index, errno },
        }
    }

    /// The index, from 0, of the first receive that was wrong or not posted, if known.
    pub fn bad_work_request(&self) -> Option<usize> {
        match self {
            Self::TooManyScatterGatherEntries { index, .. } | Self::ForeignSlice { index } => Some(*index),
            Self::SharedReceiveQueue => Some(0),
            Self::TooManyWorkRequests { limit } => Some(*limit),
            Self::NotEnoughResources { index, .. }
            | Self::InvalidWorkRequest { index, .. }
            | Self::Ibverbs { index, .. } => *index,
        }
    }

    /// The number of the list's receives that were posted nevertheless. It is 0 if the list was
    /// rejected before it reached the device, and the index of the bad receive if the device
    /// reports it. `None` if the device does not report it.
    pub fn posted(&self) -> Option<usize> {
        match self {
            Self::NotEnoughResources { index, .. }
            | Self::InvalidWorkRequest { index, .. }
            | Self::Ibverbs { index, .. } => *index,
            _ => Some(0),
        }
    }
}

/// An array of `count * each` uninitialised elements, whose pages are not touched until they are
/// needed. The device's numbers are not trusted: more elements than fit into memory are an error.
pub(super) fn array<T>(count: u32, each: u32) -> Result<Box<[MaybeUninit<T>]>, NoRoom> {
    let places = u64::from(count) * u64::from(each);
    let too_large = || NoRoom { places, bytes_each: size_of::<T>() };
    let places = usize::try_from(places).map_err(|_| too_large())?;
    let mut array: Vec<MaybeUninit<T>> = Vec::new();
    array.try_reserve_exact(places).map_err(|_| too_large())?;
    // SAFETY: the vector has this capacity, and a `MaybeUninit` is valid without initialisation.
    unsafe { array.set_len(places) };
    Ok(array.into_boxed_slice())
}

/// The index of the request at which the library stopped, among `count` requests that are `stride`
/// bytes apart.
#[cold]
pub(super) fn index_of(bad: usize, first: usize, stride: usize, count: u32) -> Option<usize> {
    let offset = bad.checked_sub(first)?;
    let index = offset / stride;
    (offset.is_multiple_of(stride) && index < count as usize).then_some(index)
}
