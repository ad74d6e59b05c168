//! Work requests on borrowed memory, which all complete before a function returns.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::post::sealed::{Build, Step};
use super::slices::AttachPoolError;
use super::{PostRecvError, PostSendError, PostSendGuard, QueuePair, WorkRequestFlags};
use crate::ibverbs::AccessFlags;
use crate::ibverbs::completion::{GenericCompletionQueue, PollCompletionQueueError, WorkCompletionStatus};
use crate::ibverbs::memory_region::{RegisterMemoryRegionError, ScopedRegion};
use crate::memory::{OutOfSlice, RemotePlace};

/// How long a failed scope waits for flushed requests. The memory is deregistered after that in any
/// case.
const FLUSHED_WITHIN: Duration = Duration::from_secs(5);

/// Runs `with`, which posts work requests on memory that it borrows, and returns when all of them
/// have completed, as [`std::thread::scope`] returns when all threads have ended.
///
/// After an error, or a panic, of `with` the queue pair is [failed](QueuePair::fail), so that its
/// requests complete without the peer. Borrowed memory is deregistered before the function returns.
/// The device cannot access it after that, whatever has completed.
///
/// Both queues of the pair complete into `cq`, in which no other requests are under way:
/// completions of others are logged and lost. The function polls without sleeping.
///
/// ```
/// # #[cfg(feature = "soft")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use sideway::ibverbs::queue_pair::{WorkScopeError, scope};
/// use sideway::prelude::*;
///
/// # let context = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?.first()?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let mut cq = context.create_cq_builder().build_generic()?;
/// # let mut qp = pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic()?;
/// # let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite | AccessFlags::RemoteRead;
/// # let memory = pd.reg_buffer(Buffer::new(BufferKind::for_device(&context), 4096)?, access)?;
/// # let path = LocalPath::choose(&context, 1, None)?;
/// # let peer = Endpoint::new(&qp, &path, 1);
/// # connect(&mut qp, &path, &peer, &peer, &ConnectOptions::default())?;
/// # let remote = memory.remote();
/// let mut request = *b"to the peer, and back";
/// let mut answer = [0; 21];
/// scope(&mut qp, &mut cq, |scope| {
///     let request = scope.register(&mut request, AccessFlags::empty())?;
///     let answer = scope.register(&mut answer, AccessFlags::LocalWrite)?;
///     scope.write(request.all(), remote.at(0, 21)?)?;
///     scope.read(answer.all(), remote.at(0, 21)?)?;
///     scope.wait()?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })?;
/// assert_eq!(answer, request);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "soft"))]
/// # fn main() {}
/// ```
///
/// # Errors
///
/// Those of `with`. If it succeeds, a request of the scope that failed and that `with` has not
/// waited for.
///
/// # Aborts
///
/// As [`reg_mr_scoped`](crate::ibverbs::protection_domain::ProtectionDomain::reg_mr_scoped) does,
/// if the device does not release the memory.
pub fn scope<'env, Q, T, E>(
    qp: &'env mut Q,
    cq: &'env mut GenericCompletionQueue,
    with: impl for<'scope> FnOnce(&'scope WorkScope<'scope, 'env, Q>) -> Result<T, E>,
) -> Result<T, E>
where
    Q: QueuePair,
    E: From<WorkScopeError>,
{
    if !qp.control().completes_into(cq) {
        return Err(WorkScopeError::OtherQueue.into());
    }
    let scope = WorkScope {
        queues: RefCell::new(Queues { qp, cq, open: Vec::new() }),
        made: Cell::new(0),
        regions: RefCell::default(),
        scope: PhantomData,
        env: PhantomData,
    };
    let finish = Finish(&scope);
    let value = with(&scope)?;
    scope.wait()?;
    drop(finish);
    Ok(value)
}

/// Posts the requests of a [`scope`].
pub struct WorkScope<'scope, 'env: 'scope, Q> {
    queues: RefCell<Queues<'env, Q>>,
    /// The number of requests so far, which numbers them.
    made: Cell<u64>,
    /// Dropped with the scope, which deregisters them.
    regions: RefCell<Vec<ScopedRegion>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

struct Queues<'env, Q> {
    qp: &'env mut Q,
    cq: &'env mut GenericCompletionQueue,
    /// The numbers of requests that have not completed.
    open: Vec<u64>,
}

/// Borrowed memory that is registered for a [`scope`].
#[derive(Clone, Copy, Debug)]
pub struct WorkBuffer<'scope> {
    lkey: u32,
    addr: u64,
    len: usize,
    scope: PhantomData<&'scope mut &'scope ()>,
}

/// Bytes of a [`WorkBuffer`].
#[derive(Clone, Copy, Debug)]
pub struct WorkPart<'scope> {
    lkey: u32,
    addr: u64,
    len: u32,
    scope: PhantomData<&'scope mut &'scope ()>,
}

impl<'scope> WorkBuffer<'scope> {
    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no empty memory is registered")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// All bytes. Of 4 GiB or more, as many as a request moves.
    pub fn all(&self) -> WorkPart<'scope> {
        let len = u32::try_from(self.len).unwrap_or(u32::MAX);
        WorkPart { lkey: self.lkey, addr: self.addr, len, scope: PhantomData }
    }

    /// The bytes of this range.
    ///
    /// # Errors
    ///
    /// They are not all within the buffer, or more than a request moves.
    pub fn part(&self, range: Range<usize>) -> Result<WorkPart<'scope>, OutOfSlice> {
        let Range { start, end } = range;
        let outside = OutOfSlice { offset: start, len: end.saturating_sub(start), limit: self.len };
        let len = end.checked_sub(start).ok_or(outside)?;
        OutOfSlice::check(start, len, self.len)?;
        let len = u32::try_from(len).map_err(|_| outside)?;
        Ok(WorkPart { lkey: self.lkey, addr: self.addr + start as u64, len, scope: PhantomData })
    }
}

/// A request that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkDone {
    /// The request, as the call that posted it returned it.
    pub request: WorkNumber,
    /// The number of bytes received or read, if the queue has this field.
    pub byte_len: Option<u32>,
    /// The immediate data that came with it.
    pub imm_data: Option<u32>,
}

/// Names a request of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkNumber(u64);

/// A request of a [`scope`] failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum WorkScopeError {
    /// The memory cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterMemoryRegionError),
    /// The queue pair's library detects a full queue too late.
    #[error(transparent)]
    Queue(#[from] AttachPoolError),
    /// The send request was refused.
    #[error(transparent)]
    Send(#[from] PostSendError),
    /// The receive was refused.
    #[error(transparent)]
    Receive(#[from] PostRecvError),
    /// The bytes here and at the peer differ in number.
    #[error("the part has {part} bytes, and the peer's place {place}")]
    OtherLength {
        /// The number of bytes here.
        part: u32,
        /// The number of bytes at the peer.
        place: u32,
    },
    /// The completion queue cannot be polled.
    #[error(transparent)]
    Poll(#[from] PollCompletionQueueError),
    /// A request failed.
    #[error("request {} failed: {status}{}", .request.0, Hint(*.status))]
    Failed {
        /// The number that the call which posted it returned.
        request: WorkNumber,
        /// What the device reported.
        status: WorkCompletionStatus,
    },
    /// The pair completes into another queue.
    #[error(
        "the queue pair does not complete into this queue: pass the one that it was built with, for both directions"
    )]
    OtherQueue,
}

debug_as_text!(WorkScopeError);

struct Hint(WorkCompletionStatus);

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hint().map_or(Ok(()), |hint| write!(f, ": {hint}"))
    }
}

impl<'scope, 'env, Q: QueuePair> WorkScope<'scope, 'env, Q> {
    /// Registers borrowed memory until the scope ends.
    ///
    /// # Errors
    ///
    /// Those of
    /// [`reg_mr_scoped`](crate::ibverbs::protection_domain::ProtectionDomain::reg_mr_scoped).
    pub fn register(
        &'scope self,
        memory: &'env mut [u8],
        access: AccessFlags,
    ) -> Result<WorkBuffer<'scope>, WorkScopeError> {
        let len = memory.len();
        let region = {
            let queues = self.queues.borrow();
            // SAFETY: the region ends with `self.regions`, before `scope` returns or unwinds.
            // `memory` is borrowed for longer.
            unsafe { ScopedRegion::register(queues.qp.control().pd(), memory, access) }?
        };
        let (lkey, addr) = (region.region().lkey(), region.region().get_ptr().addr() as u64);
        self.regions.borrow_mut().push(region);
        Ok(WorkBuffer { lkey, addr, len, scope: PhantomData })
    }

    /// Posts a SEND.
    ///
    /// # Errors
    ///
    /// The queue is full.
    pub fn send(&'scope self, part: WorkPart<'scope>) -> Result<WorkNumber, WorkScopeError> {
        self.post(|guard, number| {
            let send = guard.construct_wr(number, WorkRequestFlags::Signaled).setup_send();
            // SAFETY: the bytes are registered and borrowed until the scope ends (`register`).
            unsafe { send.setup_sge(part.lkey, part.addr, part.len) };
        })
    }

    /// Posts an RDMA WRITE to the peer's memory.
    ///
    /// # Errors
    ///
    /// The lengths differ, or the queue is full.
    pub fn write(
        &'scope self,
        part: WorkPart<'scope>,
        place: RemotePlace,
    ) -> Result<WorkNumber, WorkScopeError> {
        check_length(part, place)?;
        self.post(|guard, number| {
            let write = guard.construct_wr(number, WorkRequestFlags::Signaled).setup_write_at(place);
            // SAFETY: the bytes are registered and borrowed until the scope ends (`register`).
            unsafe { write.setup_sge(part.lkey, part.addr, part.len) };
        })
    }

    /// Posts an RDMA READ of the peer's memory.
    ///
    /// # Errors
    ///
    /// The lengths differ, or the queue is full.
    pub fn read(
        &'scope self,
        part: WorkPart<'scope>,
        place: RemotePlace,
    ) -> Result<WorkNumber, WorkScopeError> {
        check_length(part, place)?;
        self.post(|guard, number| {
            let read = guard.construct_wr(number, WorkRequestFlags::Signaled).setup_read_at(place);
            // SAFETY: the bytes are registered and borrowed until the scope ends (`register`).
            unsafe { read.setup_sge(part.lkey, part.addr, part.len) };
        })
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// The queue is full.
    pub fn recv(&'scope self, part: WorkPart<'scope>) -> Result<WorkNumber, WorkScopeError> {
        let queues = &mut *self.queues.borrow_mut();
        let number = self.next_number();
        let mut receives = queues.qp.start_post_recv();
        // SAFETY: the bytes are registered and borrowed until the scope ends (`register`).
        unsafe { receives.construct_wr(number).setup_sge(part.lkey, part.addr, part.len) };
        receives.post()?;
        queues.open.push(number);
        Ok(WorkNumber(number))
    }

    /// Waits for the next completion. `None` if no request is open.
    ///
    /// # Errors
    ///
    /// The request failed.
    pub fn next(&'scope self) -> Result<Option<WorkDone>, WorkScopeError> {
        self.complete(None)
    }

    /// Waits until no request is open.
    ///
    /// # Errors
    ///
    /// A request failed. Others may be open.
    pub fn wait(&self) -> Result<(), WorkScopeError> {
        while self.complete(None)?.is_some() {}
        Ok(())
    }

    fn next_number(&self) -> u64 {
        self.made.set(self.made.get() + 1);
        self.made.get()
    }

    fn post(
        &self,
        build: impl FnOnce(&mut <Q::SendQueue as super::SendQueue>::Guard<'_>, u64),
    ) -> Result<WorkNumber, WorkScopeError> {
        let queues = &mut *self.queues.borrow_mut();
        let number = self.next_number();
        let mut guard = queues.qp.start_post_send();
        if guard.list_info(Step(())).overwrites_when_full {
            return Err(AttachPoolError::FullQueueUnnoticed.into());
        }
        build(&mut guard, number);
        guard.post()?;
        queues.open.push(number);
        Ok(WorkNumber(number))
    }

    /// Polls until a request completes, or until then.
    fn complete(&self, until: Option<Instant>) -> Result<Option<WorkDone>, WorkScopeError> {
        let Queues { cq, open, .. } = &mut *self.queues.borrow_mut();
        while !open.is_empty() {
            let mut poller = cq.start_poll()?;
            let Some(wc) = poller.next() else {
                poller.finish()?;
                if until.is_some_and(|until| Instant::now() >= until) {
                    break;
                }
                std::thread::yield_now();
                continue;
            };
            let request = WorkNumber(wc.wr_id());
            let Some(at) = open.iter().position(|number| *number == request.0) else {
                log::warn!("request {} is not of this scope: its completion is lost", request.0);
                continue;
            };
            open.swap_remove(at);
            let status = wc.status();
            if status != WorkCompletionStatus::Success {
                return Err(WorkScopeError::Failed { request, status });
            }
            return Ok(Some(WorkDone { request, byte_len: wc.byte_len(), imm_data: wc.imm_data() }));
        }
        Ok(None)
    }
}

fn check_length(part: WorkPart<'_>, place: RemotePlace) -> Result<(), WorkScopeError> {
    match part.len == place.len() {
        true => Ok(()),
        false => Err(WorkScopeError::OtherLength { part: part.len, place: place.len() }),
    }
}

impl<Q> fmt::Debug for WorkScope<'_, '_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkScope").field("requests", &self.made.get()).finish_non_exhaustive()
    }
}

/// Completes the requests of a scope that ends by an error or a panic.
struct Finish<'a, 'scope, 'env, Q: QueuePair>(&'a WorkScope<'scope, 'env, Q>);

impl<Q: QueuePair> Drop for Finish<'_, '_, '_, Q> {
    fn drop(&mut self) {
        // A panic may come from a call that has the queues.
        let failed = match self.0.queues.try_borrow_mut() {
            Ok(queues) if queues.open.is_empty() => return,
            Ok(mut queues) => queues.qp.fail(),
            Err(_) => return,
        };
        if let Err(error) = failed {
            log::error!("a scope cannot flush its requests: {error}");
        }
        let until = Instant::now() + FLUSHED_WITHIN;
        loop {
            match self.0.complete(Some(until)) {
                Ok(None) => break,
                Ok(Some(_)) | Err(WorkScopeError::Failed { .. }) => {}
                Err(error) => {
                    log::error!("a scope cannot wait for its requests: {error}");
                    break;
                }
            }
        }
        let open = self.0.queues.borrow().open.len();
        if open > 0 {
            log::error!("{open} requests have not completed within {FLUSHED_WITHIN:?} of the failure");
        }
    }
}
