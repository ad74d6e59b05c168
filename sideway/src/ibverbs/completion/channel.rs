//! Completion channels: sleep until one of many completion queues has completions to poll.
//!
//! A queue that is made with a channel
//! ([`setup_comp_channel`](super::CompletionQueueBuilder::setup_comp_channel)) sends one event for
//! each time that it is [armed](super::GenericCompletionQueue::arm), with the next completion.
//! Completions that came before the arming make no event, which is why arming returns a poller. A
//! program that drains the poller and then waits misses nothing.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use sideway::ibverbs::completion::Notify;
//! use sideway::ibverbs::device::DeviceList;
//!
//! let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! let context = list.first()?.open()?;
//! let mut channel = context.create_comp_channel()?;
//! let mut builder = context.create_cq_builder();
//! let mut cq = builder.setup_comp_channel(&channel).setup_cq_context(7).build_generic()?;
//!
//! loop {
//!     let mut poller = cq.arm(Notify::Any)?;
//!     while let Some(wc) = poller.next() {
//!         println!("wr_id: {}, status: {}", wc.wr_id(), wc.status());
//!     }
//!     poller.finish()?;
//!     match channel.wait_timeout(Duration::from_millis(1))? {
//!         Some(event) => assert_eq!(event.cq_context(), 7),
//!         None => break,
//!     }
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```
//!
//! # Cost
//!
//! [`wait`](CompletionChannel::wait) takes one system call, a read, for each event. The cost of
//! arming depends on the device: a doorbell write, or a system call if the kernel does it. A wait
//! that a timeout or a [`ChannelCloser`] can end needs two system calls, because it calls `poll`
//! first. An event loop polls the channel's descriptor ([`AsFd`]) itself; then only the read of
//! [`try_next`](CompletionChannel::try_next) is left.
//!
//! # Acknowledgements
//!
//! Each event must be acknowledged before its queue can be destroyed (`ibv_ack_cq_events`), which
//! takes a lock. The channel acknowledges many events at once, and the drop of a queue acknowledges
//! the rest.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_mummy_sys::types::{ibv_comp_channel, ibv_cq};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::CompletionQueueId;
use crate::error::{Error, ErrorKind};
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::readiness::{self, Deadline};

/// A completion channel (`ibv_comp_channel`): the events of many completion queues.
///
/// Taking an event needs `&mut`, so one thread at a time does it. The channel may move between
/// threads, and other threads may poll, arm and drop its queues. It is destroyed
/// (`ibv_destroy_comp_channel`) when it and its last queue are dropped.
pub struct CompletionChannel {
    shared: Arc<ChannelInner>,
    /// The descriptor's blocking mode as last set here; `None` if unknown.
    nonblocking: Option<bool>,
    closing: Option<Arc<Closing>>,
}

/// The channel itself, shared by its handle and its queues.
pub(crate) struct ChannelInner {
    channel: NonNull<ibv_comp_channel>,
    context: DeviceContext,
    members: Mutex<ChannelQueues>,
}

/// The queues that use a channel.
struct ChannelQueues {
    /// Keyed by the id that events carry, so that a late event never leads to a queue that was
    /// destroyed.
    queues: HashMap<CompletionQueueId, ChannelQueue>,
    /// The number of a queue's events that are acknowledged at a time.
    batch: u32,
}

struct ChannelQueue {
    cq: NonNull<ibv_cq>,
    cq_context: u64,
    unacknowledged: u32,
    /// The queue is being destroyed, which waits for acknowledgements, so they must not be deferred
    /// any more.
    leaves: bool,
}

// SAFETY: libibverbs allows a channel to be used from several threads. A member's `cq` is given
// only to `ibv_ack_cq_events`, under the lock, while the queue lives.
unsafe impl Send for ChannelInner {}
// SAFETY: the same holds for shared references: `members` is behind a lock, and the C channel
// allows several threads.
unsafe impl Sync for ChannelInner {}

impl ChannelInner {
    fn members(&self) -> MutexGuard<'_, ChannelQueues> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn as_raw(&self) -> NonNull<ibv_comp_channel> {
        self.channel
    }

    pub(super) fn context(&self) -> &DeviceContext {
        &self.context
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: `self` keeps the channel alive, so its descriptor is open; `create_comp_channel`
        // checked that it is not negative.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    /// Registers a queue that was made with this channel. No event of it can have come yet.
    pub(super) fn enter(&self, id: CompletionQueueId, cq: NonNull<ibv_cq>, cq_context: u64) {
        let member = ChannelQueue { cq, cq_context, unacknowledged: 0, leaves: false };
        self.members().queues.insert(id, member);
    }

    /// Prepares for the destruction of a queue: acknowledges its deferred events, and defers none
    /// from now on.
    pub(super) fn prepare_to_leave(&self, id: CompletionQueueId) {
        let mut members = self.members();
        if let Some(member) = members.queues.get_mut(&id) {
            member.leaves = true;
            let events = std::mem::take(&mut member.unacknowledged);
            self.acknowledge(member.cq.as_ptr(), events);
        }
    }

    /// Removes a queue that was destroyed.
    pub(super) fn leave(&self, id: CompletionQueueId) {
        self.members().queues.remove(&id);
    }

    fn acknowledge(&self, cq: *mut ibv_cq, events: u32) {
        if events != 0 {
            // SAFETY: the library delivered `events` events of this queue that are not
            // acknowledged. The queue's destruction waits for the acknowledgements, so the queue is
            // alive.
            unsafe { (self.context.provider().verbs().ibv_ack_cq_events)(cq, events) };
        }
    }

    /// Takes an event and counts it for acknowledgement. `None` if its queue is being destroyed, or
    /// was not made by this crate.
    fn take(&self) -> io::Result<Option<CompletionEvent>> {
        let (mut cq, mut cq_context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: `self` keeps the channel alive, and the two results are local variables.
        let result = unsafe {
            (self.context.provider().verbs().ibv_get_cq_event)(
                self.channel.as_ptr(),
                &raw mut cq,
                &raw mut cq_context,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let id = CompletionQueueId::of_context(cq_context);
        let mut members = self.members();
        let batch = members.batch;
        let Some(member) = members.queues.get_mut(&id).filter(|member| !member.leaves) else {
            self.acknowledge(cq, 1);
            return Ok(None);
        };
        member.unacknowledged += 1;
        if member.unacknowledged >= batch {
            let events = std::mem::take(&mut member.unacknowledged);
            self.acknowledge(member.cq.as_ptr(), events);
        }
        Ok(Some(CompletionEvent { id, cq_context: member.cq_context }))
    }
}

impl fmt::Debug for ChannelInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: the channel is alive until here. Its handle and all its queues held this object
        // and are gone.
        let result =
            unsafe { (self.context.provider().verbs().ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        if let Err(error) = crate::ibverbs::check(result) {
            log::error!("ibv_destroy_comp_channel failed: {error}");
            // The library still has the channel, so the context that it depends on must stay alive
            // too.
            std::mem::forget(self.context.clone());
        }
    }
}

impl DeviceContext {
    /// Makes a channel for the events of completion queues (`ibv_create_comp_channel`).
    ///
    /// # Errors
    ///
    /// Fails if the process has no file descriptor left, or if the device is gone.
    ///
    /// # References
    ///
    /// `man ibv_create_comp_channel`
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, Error> {
        let verbs = self.provider().verbs();
        // SAFETY: `self` keeps the context open.
        let channel = unsafe { (verbs.ibv_create_comp_channel)(self.as_raw().as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| no_channel(io::Error::last_os_error()))?;
        let members =
            Mutex::new(ChannelQueues { queues: HashMap::new(), batch: CompletionChannel::DEFAULT_ACK_BATCH });
        let shared = Arc::new(ChannelInner { channel, context: self.clone(), members });
        // SAFETY: the library made the channel just now, and every release's struct has this field.
        if unsafe { (*channel.as_ptr()).fd } < 0 {
            return Err(no_channel(io::Error::from_raw_os_error(libc::EBADF)));
        }
        Ok(CompletionChannel { shared, nonblocking: None, closing: None })
    }
}

impl CompletionChannel {
    /// The number of a queue's events that are acknowledged at a time, unless
    /// [`set_ack_batch`](Self::set_ack_batch) changes it.
    pub const DEFAULT_ACK_BATCH: u32 = 64;

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    pub fn as_raw(&self) -> NonNull<ibv_comp_channel> {
        self.shared.channel
    }

    /// The device context in which it was made.
    pub fn context(&self) -> &DeviceContext {
        &self.shared.context
    }

    pub(super) fn shared(&self) -> Arc<ChannelInner> {
        Arc::clone(&self.shared)
    }

    /// Sets how many of a queue's events are acknowledged at a time; at least one.
    pub fn set_ack_batch(&mut self, events: u32) {
        self.shared.members().batch = events.max(1);
    }

    /// Returns an object that ends this channel's waits from another thread. From then on, every
    /// [`wait`](Self::wait) calls `poll` first, which costs one more system call.
    ///
    /// # Errors
    ///
    /// Fails if the process has no file descriptor left.
    pub fn closer(&mut self) -> io::Result<ChannelCloser> {
        let closing = match &mut self.closing {
            Some(closing) => closing,
            none => {
                let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                none.insert(Arc::new(Closing { closed: AtomicBool::new(false), waker }))
            }
        };
        Ok(ChannelCloser(Arc::clone(closing)))
    }

    /// Sleeps until an event comes, and takes it (`ibv_get_cq_event`). This is one system call, or
    /// two after [`closer`](Self::closer).
    ///
    /// # Errors
    ///
    /// Fails if the channel was closed, or if the device is gone.
    ///
    /// # References
    ///
    /// `man ibv_get_cq_event`
    pub fn wait(&mut self) -> Result<CompletionEvent, Error> {
        if self.closing.is_none() {
            return self.wait_in_read();
        }
        // A wait without a deadline ends only with an event or an error.
        self.wait_until(Deadline::NEVER)?.ok_or_else(closed)
    }

    /// Sleeps until an event comes or `timeout` is over, and takes the event (`poll`,
    /// `ibv_get_cq_event`). Returns `None` after the timeout. Signals do not end the wait.
    ///
    /// # Errors
    ///
    /// Fails as [`wait`](Self::wait) does.
    ///
    /// # References
    ///
    /// `man ibv_get_cq_event`
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<CompletionEvent>, Error> {
        self.wait_until(Deadline::after(timeout))
    }

    /// Sleeps until an event comes, one of `others` is readable, closed or failed, or `timeout` is over
    /// (`poll`, `ibv_get_cq_event`). `None` means no timeout. So a program watches, for example, the TCP
    /// connection of its peer, because a dead peer sends no completions.
    ///
    /// ```
    /// # #[cfg(feature = "soft")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::net::{TcpListener, TcpStream};
    /// use std::os::fd::AsFd;
    ///
    /// # let context = sideway::DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?
    /// #     .first()?.open()?;
    /// let mut channel = context.create_comp_channel()?;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let peer = TcpStream::connect(listener.local_addr()?)?;
    /// let (here, _) = listener.accept()?;
    /// drop(peer);
    ///
    /// let woken = channel.wait_with(&[here.as_fd()], None)?;
    /// assert_eq!((woken.event, woken.descriptor), (None, Some(0)));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "soft"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// Fails as [`wait`](Self::wait) does.
    ///
    /// # References
    ///
    /// `man ibv_get_cq_event`
    pub fn wait_with(
        &mut self,
        others: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> Result<ChannelWakeup, Error> {
        let deadline = timeout.map_or(Deadline::NEVER, Deadline::after);
        self.set_nonblocking(true)?;
        loop {
            self.check_open()?;
            let descriptor = {
                let channel = self.shared.descriptor();
                let waker = self.closing.as_ref().map_or(channel, |closing| closing.waker.as_fd());
                let own = [&channel, &waker];
                let entries = own.into_iter().chain(others).map(|fd| PollFd::new(fd, PollFlags::IN));
                let mut entries: Vec<_> = entries.collect();
                let woken = readiness::wait_all(&mut entries, deadline);
                if !woken.map_err(|source| Error::os("poll", source))? {
                    return Ok(ChannelWakeup { event: None, descriptor: None });
                }
                entries[own.len()..].iter().position(|entry| !entry.revents().is_empty())
            };
            self.check_open()?;
            // The event that `poll` announced may be gone with its queue.
            let event = self.take()?;
            if event.is_some() || descriptor.is_some() {
                return Ok(ChannelWakeup { event, descriptor });
            }
        }
    }

    /// Takes an event if one is pending (`ibv_get_cq_event`), without sleeping: one system call.
    ///
    /// # Errors
    ///
    /// Fails as [`wait`](Self::wait) does.
    ///
    /// # References
    ///
    /// `man ibv_get_cq_event`
    #[doc(alias = "set_nonblocking")]
    pub fn try_next(&mut self) -> Result<Option<CompletionEvent>, Error> {
        self.check_open()?;
        self.set_nonblocking(true)?;
        self.take()
    }

    fn wait_in_read(&mut self) -> Result<CompletionEvent, Error> {
        loop {
            self.set_nonblocking(false)?;
            if let Some(event) = self.take()? {
                return Ok(event);
            }
            // Either the event's queue is being destroyed, or someone else made the descriptor
            // non-blocking.
            self.nonblocking = None;
        }
    }

    fn wait_until(&mut self, deadline: Deadline) -> Result<Option<CompletionEvent>, Error> {
        self.set_nonblocking(true)?;
        loop {
            self.check_open()?;
            let ready = {
                let channel = self.shared.descriptor();
                let waker = self.closing.as_ref().map_or(channel, |closing| closing.waker.as_fd());
                let fds = [channel, waker];
                readiness::wait(&fds[..1 + usize::from(self.closing.is_some())], deadline)
            };
            if !ready.map_err(|source| Error::os("poll", source))? {
                return Ok(None);
            }
            self.check_open()?;
            // The event that `poll` announced may be gone with its queue.
            if let Some(event) = self.take()? {
                return Ok(Some(event));
            }
        }
    }

    fn take(&self) -> Result<Option<CompletionEvent>, Error> {
        loop {
            match self.shared.take() {
                // Another event may be pending, which would make no new edge.
                Ok(None) if self.nonblocking == Some(true) => {}
                Ok(event) => return Ok(event),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(source) if readiness::is_device_gone(&source) => {
                    return Err(Error::device_gone("ibv_get_cq_event", &self.shared.context, source));
                }
                Err(source) => return Err(Error::os("ibv_get_cq_event", source)),
            }
        }
    }

    fn check_open(&self) -> Result<(), Error> {
        match &self.closing {
            Some(closing) if closing.closed.load(Ordering::Acquire) => Err(closed()),
            _ => Ok(()),
        }
    }

    fn set_nonblocking(&mut self, nonblocking: bool) -> Result<(), Error> {
        if self.nonblocking != Some(nonblocking) {
            readiness::set_nonblocking(self.shared.descriptor(), nonblocking)
                .map_err(|source| Error::os("fcntl", source))?;
            self.nonblocking = Some(nonblocking);
        }
        Ok(())
    }
}

impl AsFd for CompletionChannel {
    /// Readable while events are pending. Only poll this descriptor; do not read it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.descriptor()
    }
}

impl AsRawFd for CompletionChannel {
    /// The number of the descriptor of [`as_fd`](AsFd::as_fd), for event loops that take numbers.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// A completion queue that was armed has completions to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionEvent {
    id: CompletionQueueId,
    cq_context: u64,
}

impl CompletionEvent {
    /// The queue that sent the event.
    pub fn cq(&self) -> CompletionQueueId {
        self.id
    }

    /// The value that the program gave the queue
    /// ([`setup_cq_context`](super::CompletionQueueBuilder::setup_cq_context)), usually an index.
    pub fn cq_context(&self) -> u64 {
        self.cq_context
    }
}

/// What ended a [wait](CompletionChannel::wait_with); neither after a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelWakeup {
    /// An event of the channel.
    pub event: Option<CompletionEvent>,
    /// The index of the first of the program's descriptors that is ready.
    pub descriptor: Option<usize>,
}

#[derive(Debug)]
struct Closing {
    closed: AtomicBool,
    /// An eventfd that is readable once the channel is closed.
    waker: OwnedFd,
}

/// Ends the waits of a [`CompletionChannel`] from any thread: the waits in progress and all later
/// ones.
#[derive(Clone, Debug)]
pub struct ChannelCloser(Arc<Closing>);

impl ChannelCloser {
    /// Closes the channel for good: every wait ends with [`ErrorKind::Closed`].
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        // The write cannot overflow the counter: only this line writes, and a full counter is
        // readable too.
        let _ = rustix::io::write(&self.0.waker, &1u64.to_ne_bytes());
    }
}

#[cold]
fn no_channel(source: io::Error) -> Error {
    Error::os("ibv_create_comp_channel", source)
}

#[cold]
fn closed() -> Error {
    Error::not_called("ibv_get_cq_event", ErrorKind::Closed, "the completion channel was closed")
}
