//! Events for tasks of [tokio](https://docs.rs/tokio).
//!
//! Each type owns a channel of this crate and waits for its descriptor in the runtime where it was
//! made, which needs I/O (`enable_io`). No thread is added, and nothing polls in between.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! async fn write() -> Result<(), Box<dyn std::error::Error>> {
//!     use sideway::ibverbs::AccessFlags;
//!     use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
//!     use sideway::ibverbs::device::DeviceList;
//!     use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, WorkRequestFlags};
//!     use sideway::memory::{Buffer, BufferKind};
//!     use sideway::tokio::CompletionChannel;
//!
//!     let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//!     let context = list.first()?.open()?;
//!     let pd = context.alloc_pd()?;
//!     let channel = context.create_comp_channel()?;
//!     let mut cq = context.create_cq_builder().setup_comp_channel(&channel).build_generic()?;
//!     let mut channel = CompletionChannel::new(channel)?;
//!
//!     // A queue pair that is connected to itself, and writes from one half of its memory to the other.
//!     let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
//!     let memory = pd.reg_buffer(Buffer::new(BufferKind::for_device(&context), 128)?, access)?;
//!     let mut qp = pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic()?;
//!     let path = LocalPath::choose(&context, 1, None)?;
//!     let own = Endpoint::new(&qp, &path, 7);
//!     let options = ConnectOptions { access_flags: access, ..ConnectOptions::default() };
//!     connect(&mut qp, &path, &own, &own, &options)?;
//!     let address = memory.as_ptr().addr() as u64;
//!     let mut guard = qp.start_post_send();
//!     let write = guard.construct_wr(233, WorkRequestFlags::Signaled).setup_write(memory.rkey(), address + 64);
//!     // SAFETY: the memory outlives the queue pair, and nothing reads it.
//!     unsafe { write.setup_sge(memory.lkey(), address, 64) };
//!     guard.post()?;
//!
//!     let count = channel.completions(&mut cq, |wc| println!("{}: {}", wc.wr_id(), wc.status())).await?;
//!     assert_eq!(count, 1);
//! #   drop(qp);
//!     Ok(())
//! }
//! # #[cfg(feature = "soft")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(write()).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Cancel safety
//!
//! Every method is cancel safe: an event or a completion is taken only by a call that returns it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::task::coop::consume_budget;

use crate::error::Error;
use crate::ibverbs::completion::channel::{self, CompletionEvent};
use crate::ibverbs::completion::{GenericCompletionQueue, GenericPoller, GenericWorkCompletion, Notify};
use crate::ibverbs::event::{self, AsyncEvent};
use crate::rdmacm;

/// The completions that one call gives, so that other tasks have turns.
const MOST_AT_ONCE: usize = 256;

/// A completion channel whose events tasks await.
pub struct CompletionChannel(AsyncFd<channel::CompletionChannel>);

/// A device's asynchronous events, which tasks await.
pub struct AsyncEvents(AsyncFd<event::AsyncEvents>);

/// A channel of the connection manager whose events tasks await.
pub struct EventChannel(AsyncFd<rdmacm::EventChannel>);

/// Adds a descriptor to the runtime's set.
///
/// # Safety
///
/// It is open, and always the same, as long as the value exists, wherever it is moved.
unsafe fn register<T: AsRawFd>(channel: T) -> Result<AsyncFd<T>, Error> {
    // SAFETY: the caller guarantees it.
    let registered = unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) };
    registered.map_err(|error| Error::os("epoll_ctl", error.into()))
}

fn no_runtime(source: io::Error) -> Error {
    Error::os("epoll_wait", source)
}

macro_rules! channel {
    ($name:ident, $inner:ty) => {
        impl $name {
            /// Waits for the channel in the current runtime.
            ///
            /// # Errors
            ///
            /// The runtime cannot wait for the descriptor: the process has no memory for it, or the limit
            /// of `/proc/sys/fs/epoll/max_user_watches` is reached.
            ///
            /// # Panics
            ///
            /// The caller is in no runtime that has I/O.
            pub fn new(channel: $inner) -> Result<Self, Error> {
                // SAFETY: the channel owns its descriptor, which stays open until the channel is dropped.
                unsafe { register(channel) }.map(Self)
            }

            /// The channel, for its other calls. Do not wait by it.
            pub fn get_ref(&self) -> &$inner {
                self.0.get_ref()
            }

            /// Takes the channel out of the runtime.
            #[must_use]
            pub fn into_inner(self) -> $inner {
                self.0.into_inner()
            }
        }

        impl AsFd for $name {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0.get_ref().as_fd()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.get_ref().fmt(f)
            }
        }
    };
}

channel!(CompletionChannel, channel::CompletionChannel);
channel!(AsyncEvents, event::AsyncEvents);
channel!(EventChannel, rdmacm::EventChannel);

impl CompletionChannel {
    /// Waits for an event and takes it (`ibv_get_cq_event`). Only queues that are
    /// [armed](GenericCompletionQueue::arm) send one; [`completions`](Self::completions) arms. To end
    /// the wait, drop its future: a [closer](channel::ChannelCloser) does not wake a task.
    ///
    /// # Errors
    ///
    /// The device is gone, or the runtime has ended.
    ///
    /// # References
    ///
    /// `man ibv_get_cq_event`
    pub async fn event(&mut self) -> Result<CompletionEvent, Error> {
        loop {
            let mut ready = self.0.readable_mut().await.map_err(no_runtime)?;
            match ready.get_inner_mut().try_next()? {
                Some(event) => return Ok(event),
                None => ready.clear_ready(),
            }
        }
    }

    /// Calls a function with each completion of a queue, after a wait for the first. Returns how many
    /// there were, 256 at most.
    ///
    /// It polls the queue, arms it if it is empty (`ibv_req_notify_cq`), and polls again, because
    /// completions that came before make no event. Only then it waits. The queue was made with this
    /// channel; if others share the channel, their events are taken too.
    ///
    /// # Errors
    ///
    /// The queue overran, the device is gone, or the runtime has ended.
    ///
    /// # References
    ///
    /// `man ibv_req_notify_cq`, `man ibv_poll_cq`
    pub async fn completions(
        &mut self,
        cq: &mut GenericCompletionQueue,
        mut each: impl FnMut(GenericWorkCompletion<'_>),
    ) -> Result<usize, Error> {
        let mut drain = |mut poller: GenericPoller<'_>| -> Result<usize, Error> {
            let mut count = 0;
            while count < MOST_AT_ONCE
                && let Some(completion) = poller.next()
            {
                each(completion);
                count += 1;
            }
            // The completions were given away, so the next call reports a failure.
            if count == 0 {
                poller.finish()?;
            }
            Ok(count)
        };
        loop {
            // A task that always finds something lets others run.
            consume_budget().await;
            for arms in [false, true] {
                let poller = if arms { cq.arm(Notify::Any)? } else { cq.start_poll()? };
                match drain(poller)? {
                    0 => (),
                    count => return Ok(count),
                }
            }
            self.event().await?;
        }
    }
}

impl AsyncEvents {
    /// Waits for an event and takes it (`ibv_get_async_event`).
    ///
    /// # Errors
    ///
    /// The device is gone, or the runtime has ended.
    ///
    /// # References
    ///
    /// `man ibv_get_async_event`
    pub async fn event(&self) -> Result<AsyncEvent, Error> {
        loop {
            let mut ready = self.0.readable().await.map_err(no_runtime)?;
            match ready.get_inner().try_next()? {
                Some(event) => return Ok(event),
                None => ready.clear_ready(),
            }
        }
    }
}

impl EventChannel {
    /// Waits for an event and takes it (`rdma_get_cm_event`). To end the wait, drop its future:
    /// [`close`](rdmacm::EventChannel::close) does not wake a task.
    ///
    /// # Errors
    ///
    /// The channel was closed before, the device is gone, or the runtime has ended.
    ///
    /// # References
    ///
    /// `man rdma_get_cm_event`
    pub async fn event(&self) -> Result<rdmacm::Event, Error> {
        loop {
            let mut ready = self.0.readable().await.map_err(no_runtime)?;
            match ready.get_inner().try_get_cm_event()? {
                Some(event) => return Ok(event),
                None => ready.clear_ready(),
            }
        }
    }
}
