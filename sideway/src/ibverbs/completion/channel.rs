//! Completion channels: sleeping until one of many completion queues has something to poll.
//!
//! A queue that is made with a channel ([`setup_comp_channel`](super::CompletionQueueBuilder::setup_comp_channel)) sends
//! one event through it each time that it is [armed](super::GenericCompletionQueue::arm) and a completion comes. Arming
//! gives a poller, because what came before the request makes no event: who drains it, and then waits, misses nothing.
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
//! let mut cq = context.create_cq_builder().setup_comp_channel(&channel).setup_cq_context(7).build_generic()?;
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
//! # What it costs
//!
//! [`wait`](CompletionChannel::wait) is one system call, a read, for each event; arming is what the device makes of it
//! (a write to a doorbell, or a system call where the kernel does it). A wait that can end otherwise, by a timeout or
//! a [`ChannelCloser`], has to ask first (`poll`): two system calls. In an event loop that has the channel's descriptor
//! ([`AsFd`]) the loop asks, and [`try_next`](CompletionChannel::try_next) is the read.
//!
//! # Acknowledgements
//!
//! Each event has to be acknowledged before its queue can be destroyed (`ibv_ack_cq_events`), which takes a lock. The
//! channel does it for many events at once, and the drop of a queue for what is left.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_mummy_sys::types::{ibv_comp_channel, ibv_cq};
use rustix::event::{EventfdFlags, eventfd};

use super::CompletionQueueId;
use crate::error::{Error, ErrorKind};
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::readiness::{self, Deadline};

/// A completion channel (`ibv_comp_channel`): the events of many completion queues.
///
/// It is taken from through `&mut`, so by one thread at a time; it may move between threads, and its queues may be
/// polled, armed and dropped on others. It goes (`ibv_destroy_comp_channel`) with its last queue.
pub struct CompletionChannel {
    shared: Arc<ChannelInner>,
    /// Whether its descriptor is known to block, or not to.
    nonblocking: Option<bool>,
    closing: Option<Arc<Closing>>,
}

/// What the channel's handle and its queues share: the channel itself.
pub(crate) struct ChannelInner {
    channel: NonNull<ibv_comp_channel>,
    context: DeviceContext,
    members: Mutex<ChannelQueues>,
}

/// The queues of a channel.
struct ChannelQueues {
    /// By their id, which their events carry: so an event never leads to a queue that is no more.
    queues: HashMap<CompletionQueueId, ChannelQueue>,
    /// How many events of a queue are acknowledged at a time.
    batch: u32,
}

struct ChannelQueue {
    cq: NonNull<ibv_cq>,
    cq_context: u64,
    unacknowledged: u32,
    /// It is being destroyed, which waits for acknowledgements: they are not put off any more.
    leaves: bool,
}

// SAFETY: a channel may be used from any thread, also by several; `cq` of a member is only given to
// `ibv_ack_cq_events`, under the lock, while the queue lives.
unsafe impl Send for ChannelInner {}
// SAFETY: a channel may be used from any thread, also by several; `cq` of a member is only given to
// `ibv_ack_cq_events`, under the lock, while the queue lives.
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
        // SAFETY: the channel lives, so its descriptor is open; `create` has seen that it is one.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    /// A queue was made with this channel; no event of it can have come yet.
    pub(super) fn enter(&self, id: CompletionQueueId, cq: NonNull<ibv_cq>, cq_context: u64) {
        let member = ChannelQueue { cq, cq_context, unacknowledged: 0, leaves: false };
        self.members().queues.insert(id, member);
    }

    /// A queue is about to be destroyed: what was put off is acknowledged now, and nothing is put off any more.
    pub(super) fn prepare_to_leave(&self, id: CompletionQueueId) {
        let mut members = self.members();
        if let Some(member) = members.queues.get_mut(&id) {
            member.leaves = true;
            let events = std::mem::take(&mut member.unacknowledged);
            self.acknowledge(member.cq.as_ptr(), events);
        }
    }

    /// A queue has been destroyed.
    pub(super) fn leave(&self, id: CompletionQueueId) {
        self.members().queues.remove(&id);
    }

    fn acknowledge(&self, cq: *mut ibv_cq, events: u32) {
        if events != 0 {
            // SAFETY: the library gave out so many events of this queue, whose destruction waits until they are
            // acknowledged; so it lives.
            unsafe { (self.context.provider().verbs().ibv_ack_cq_events)(cq, events) };
        }
    }

    /// Takes an event, and sees to its acknowledgement; `None` if it is of a queue that is on its way out, or of one
    /// that was not made here.
    fn take(&self) -> io::Result<Option<CompletionEvent>> {
        let (mut cq, mut cq_context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel lives, and the results are this function's own.
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
        // SAFETY: the channel lives, and its handle and all its queues, which held this, are gone.
        let result =
            unsafe { (self.context.provider().verbs().ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        if let Err(error) = crate::ibverbs::check(result) {
            log::error!("ibv_destroy_comp_channel failed: {error}");
            // The channel is still there, so what it depends on has to stay.
            std::mem::forget(self.context.clone());
        }
    }
}

impl DeviceContext {
    /// Makes a channel for the events of completion queues (`ibv_create_comp_channel`).
    ///
    /// # Errors
    ///
    /// The process has no descriptor left, or the device is gone.
    ///
    /// # References
    ///
    /// `man ibv_create_comp_channel`
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, Error> {
        let verbs = self.provider().verbs();
        // SAFETY: the context is open.
        let channel = unsafe { (verbs.ibv_create_comp_channel)(self.as_raw().as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| no_channel(io::Error::last_os_error()))?;
        let members =
            Mutex::new(ChannelQueues { queues: HashMap::new(), batch: CompletionChannel::DEFAULT_ACK_BATCH });
        let shared = Arc::new(ChannelInner { channel, context: self.clone(), members });
        // SAFETY: the channel lives, and has this field in every release.
        if unsafe { (*channel.as_ptr()).fd } < 0 {
            return Err(no_channel(io::Error::from_raw_os_error(libc::EBADF)));
        }
        Ok(CompletionChannel { shared, nonblocking: None, closing: None })
    }
}

impl CompletionChannel {
    /// How many events of a queue are acknowledged at a time, unless
    /// [`set_ack_batch`](Self::set_ack_batch) says otherwise.
    pub const DEFAULT_ACK_BATCH: u32 = 64;

    /// The C object. Using it is as unsafe as in C, and it must not be destroyed.
    pub fn as_raw(&self) -> NonNull<ibv_comp_channel> {
        self.shared.channel
    }

    /// The context that it was made from.
    pub fn context(&self) -> &DeviceContext {
        &self.shared.context
    }

    pub(super) fn shared(&self) -> Arc<ChannelInner> {
        Arc::clone(&self.shared)
    }

    /// How many events of a queue are acknowledged at a time; at least one.
    pub fn set_ack_batch(&mut self, events: u32) {
        self.shared.members().batch = events.max(1);
    }

    /// Something that ends waits of this channel from another thread. From then on every [`wait`](Self::wait) asks
    /// before it sleeps, which costs one system call more.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
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

    /// Sleeps until there is an event, and takes it (`ibv_get_cq_event`): one system call, unless there is a
    /// [`closer`](Self::closer).
    ///
    /// # Errors
    ///
    /// The channel was closed, or the device is gone.
    ///
    /// # References
    ///
    /// `man ibv_get_cq_event`
    pub fn wait(&mut self) -> Result<CompletionEvent, Error> {
        if self.closing.is_none() {
            return self.wait_in_read();
        }
        // Without a deadline there is an event, or an error.
        self.wait_until(Deadline::NEVER)?.ok_or_else(closed)
    }

    /// Sleeps until there is an event, at most so long, and takes it (`poll`, `ibv_get_cq_event`); `None` if the time
    /// is over. Signals do not end it.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    ///
    /// # References
    ///
    /// `man ibv_get_cq_event`
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<CompletionEvent>, Error> {
        self.wait_until(Deadline::after(timeout))
    }

    /// Takes an event if there is one (`ibv_get_cq_event`), without sleeping: one system call.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    ///
    /// # References
    ///
    /// `man ibv_get_cq_event`
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
            // An event of a queue that goes; or somebody else has changed the descriptor.
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
            // What was announced may have gone with its queue.
            if let Some(event) = self.take()? {
                return Ok(Some(event));
            }
        }
    }

    fn take(&self) -> Result<Option<CompletionEvent>, Error> {
        loop {
            match self.shared.take() {
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
    /// Readable while there are events. Do not read it, only ask.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.descriptor()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// A completion queue that was armed has something to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionEvent {
    id: CompletionQueueId,
    cq_context: u64,
}

impl CompletionEvent {
    /// The queue.
    pub fn cq(&self) -> CompletionQueueId {
        self.id
    }

    /// What the program gave the queue
    /// ([`setup_cq_context`](super::CompletionQueueBuilder::setup_cq_context)): an index, usually.
    pub fn cq_context(&self) -> u64 {
        self.cq_context
    }
}

#[derive(Debug)]
struct Closing {
    closed: AtomicBool,
    /// Readable from the closing on.
    waker: OwnedFd,
}

/// Ends the waits of a [`CompletionChannel`] from any thread: those that sleep and those to come.
#[derive(Clone, Debug)]
pub struct ChannelCloser(Arc<Closing>);

impl ChannelCloser {
    /// Closes the channel for good: every wait of it ends with [`ErrorKind::Closed`].
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        // The counter cannot overflow: it is only written here, and a full one is readable.
        let _ = rustix::io::write(&self.0.waker, &1u64.to_ne_bytes());
    }
}

#[cold]
fn no_channel(source: io::Error) -> Error {
    Error::os("ibv_create_comp_channel", source).remedy("see the limit of open files (`ulimit -n`)")
}

#[cold]
fn closed() -> Error {
    Error::not_called("ibv_get_cq_event", ErrorKind::Closed, "the completion channel was closed")
}
