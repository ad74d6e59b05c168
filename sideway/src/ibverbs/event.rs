//! Asynchronous events: failures and changes that a device reports on its own initiative
//! (`ibv_get_async_event`).
//!
//! Examples are a queue pair that failed, a completion queue that overran, a port that went down,
//! and a device that was removed. An event is a plain value here. The crate copies the affected
//! object's id, and acknowledges the event (`ibv_ack_async_event`) before the program sees it. So
//! no destructor waits for an acknowledgement, and objects can be dropped at any time.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use sideway::ibverbs::device::DeviceList;
//! use sideway::ibverbs::event::{AsyncElement, AsyncEventType};
//!
//! let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! let context = list.first()?.open()?;
//! let events = context.async_events()?;
//! while let Some(event) = events.wait_timeout(Duration::from_millis(1))? {
//!     match (event.event_type(), event.element()) {
//!         (AsyncEventType::PortError, AsyncElement::Port(port)) => println!("port {port} is down"),
//!         (AsyncEventType::DeviceFatal, _) => break,
//!         (kind, AsyncElement::QueuePair { qp_num }) => println!("queue pair {qp_num:#x}: {kind}"),
//!         (kind, element) => println!("{kind}: {element:?}"),
//!     }
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rdma_mummy_sys::types::{ibv_async_event, ibv_event_type as E};

use super::completion::CompletionQueueId;
use super::device_context::DeviceContext;
use super::readiness::{self, Deadline};
use super::srq::SharedReceiveQueueId;
use crate::error::Error;

c_enum! {
    /// The type of an event (`ibv_event_type`). Types that this crate does not know are passed
    /// through.
    pub struct AsyncEventType(u32) {
        /// A completion queue overran and is unusable.
        CompletionQueueError = E::IBV_EVENT_CQ_ERR.0,
        /// A queue pair failed and is in the error state.
        QueuePairFatal = E::IBV_EVENT_QP_FATAL.0,
        /// A peer's request to a queue pair was invalid; it is in the error state.
        QueuePairRequestError = E::IBV_EVENT_QP_REQ_ERR.0,
        /// A peer's request violated the access rights of local memory; the queue pair is in the
        /// error state.
        QueuePairAccessError = E::IBV_EVENT_QP_ACCESS_ERR.0,
        /// A queue pair that can receive but not yet send got its first message.
        CommunicationEstablished = E::IBV_EVENT_COMM_EST.0,
        /// The send queue is drained, after the program asked for it.
        SendQueueDrained = E::IBV_EVENT_SQ_DRAINED.0,
        /// The connection now uses its alternate path.
        PathMigrated = E::IBV_EVENT_PATH_MIG.0,
        /// The connection could not move to its alternate path.
        PathMigrationError = E::IBV_EVENT_PATH_MIG_ERR.0,
        /// The device is gone, or unusable until a reset.
        DeviceFatal = E::IBV_EVENT_DEVICE_FATAL.0,
        /// A port's link came up.
        PortActive = E::IBV_EVENT_PORT_ACTIVE.0,
        /// A port's link went down.
        PortError = E::IBV_EVENT_PORT_ERR.0,
        /// A port's LID has changed.
        LidChange = E::IBV_EVENT_LID_CHANGE.0,
        /// A port's table of partition keys has changed.
        PkeyChange = E::IBV_EVENT_PKEY_CHANGE.0,
        /// A port has another subnet manager.
        SubnetManagerChange = E::IBV_EVENT_SM_CHANGE.0,
        /// A shared receive queue failed.
        SharedReceiveQueueError = E::IBV_EVENT_SRQ_ERR.0,
        /// A shared receive queue holds fewer requests than its limit.
        SharedReceiveQueueLimitReached = E::IBV_EVENT_SRQ_LIMIT_REACHED.0,
        /// A queue pair in the error state will take no more requests from its shared receive
        /// queue.
        QueuePairLastWqeReached = E::IBV_EVENT_QP_LAST_WQE_REACHED.0,
        /// The subnet manager asks clients to renew their subscriptions.
        ClientReregister = E::IBV_EVENT_CLIENT_REREGISTER.0,
        /// A port's table of GIDs has changed.
        GidChange = E::IBV_EVENT_GID_CHANGE.0,
        /// A work queue failed.
        WorkQueueFatal = E::IBV_EVENT_WQ_FATAL.0,
        /// The speed of a port changed while its link stayed up.
        DeviceSpeedChange = E::IBV_EVENT_DEVICE_SPEED_CHANGE.0,
    }
}
display_as_debug!(AsyncEventType);

impl AsyncEventType {
    /// The member of the C union that is set for this type.
    fn kind(self) -> ElementKind {
        match self {
            Self::CompletionQueueError => ElementKind::CompletionQueue,
            Self::QueuePairFatal
            | Self::QueuePairRequestError
            | Self::QueuePairAccessError
            | Self::CommunicationEstablished
            | Self::SendQueueDrained
            | Self::PathMigrated
            | Self::PathMigrationError
            | Self::QueuePairLastWqeReached => ElementKind::QueuePair,
            Self::SharedReceiveQueueError | Self::SharedReceiveQueueLimitReached => {
                ElementKind::SharedReceiveQueue
            }
            Self::WorkQueueFatal => ElementKind::WorkQueue,
            Self::PortActive
            | Self::PortError
            | Self::LidChange
            | Self::PkeyChange
            | Self::SubnetManagerChange
            | Self::ClientReregister
            | Self::GidChange => ElementKind::Port,
            // The manual page names no port for a change of speed.
            Self::DeviceFatal | Self::DeviceSpeedChange => ElementKind::Device,
            _ => ElementKind::Unknown,
        }
    }
}

enum ElementKind {
    CompletionQueue,
    QueuePair,
    SharedReceiveQueue,
    WorkQueue,
    Port,
    Device,
    Unknown,
}

/// The object that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncElement {
    /// A completion queue ([`CompletionQueue::id`](super::completion::CompletionQueue::id)).
    CompletionQueue(CompletionQueueId),
    /// A queue pair, by its number.
    QueuePair {
        /// The queue pair number.
        qp_num: u32,
    },
    /// A shared receive queue ([`SharedReceiveQueue::id`](super::srq::SharedReceiveQueue::id)).
    SharedReceiveQueue(SharedReceiveQueueId),
    /// A work queue, by its number.
    WorkQueue {
        /// The work queue number.
        wq_num: u32,
    },
    /// A port, counted from 1.
    Port(u8),
    /// The device as a whole, not one of its objects.
    Device,
    /// The event's type is unknown, and so is its object.
    Unknown,
}

/// An event, already acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    event_type: AsyncEventType,
    element: AsyncElement,
}

impl AsyncEvent {
    /// The kind of event (`event_type` in C).
    pub fn event_type(&self) -> AsyncEventType {
        self.event_type
    }

    /// The object that the event is about.
    pub fn element(&self) -> AsyncElement {
        self.element
    }

    /// # Safety
    ///
    /// The library returned the event, and it is not acknowledged yet, so that the object that it
    /// names is alive.
    unsafe fn copy(raw: &ibv_async_event) -> Self {
        let event_type = AsyncEventType::from_raw(raw.event_type.0);
        // SAFETY: the event's type says which member is set. The caller guarantees that the event
        // is not acknowledged, so the object is alive. Every release's structs have these fields.
        let element = unsafe {
            match event_type.kind() {
                ElementKind::CompletionQueue => AsyncElement::CompletionQueue(CompletionQueueId::of_context(
                    (&raw const (*raw.element.cq).cq_context).read(),
                )),
                ElementKind::QueuePair => {
                    AsyncElement::QueuePair { qp_num: (&raw const (*raw.element.qp).qp_num).read() }
                }
                ElementKind::SharedReceiveQueue => AsyncElement::SharedReceiveQueue(
                    SharedReceiveQueueId::of_context((&raw const (*raw.element.srq).srq_context).read()),
                ),
                ElementKind::WorkQueue => {
                    AsyncElement::WorkQueue { wq_num: (&raw const (*raw.element.wq).wq_num).read() }
                }
                // Port numbers fit into one byte.
                ElementKind::Port => AsyncElement::Port(raw.element.port_num as u8),
                ElementKind::Device => AsyncElement::Device,
                ElementKind::Unknown => AsyncElement::Unknown,
            }
        };
        Self { event_type, element }
    }
}

/// The asynchronous events of a context.
///
/// Each event is delivered once, to the first caller that takes it. Several threads may use this at
/// a time. The context's event descriptor is made non-blocking.
#[derive(Clone, Debug)]
pub struct AsyncEvents {
    context: DeviceContext,
}

impl DeviceContext {
    /// Returns the context's asynchronous events.
    ///
    /// # Errors
    ///
    /// Fails if the library has no descriptor for them.
    pub fn async_events(&self) -> Result<AsyncEvents, Error> {
        let events = AsyncEvents { context: self.clone() };
        // Non-blocking, so that a wait can end by a timeout, and so that only one of two waiting
        // threads takes an event while the other does not block in a read.
        let made = match events.descriptor() {
            Some(fd) => readiness::set_nonblocking(fd, true),
            None => Err(io::Error::from_raw_os_error(libc::EBADF)),
        };
        made.map_err(|source| Error::os("fcntl", source))?;
        Ok(events)
    }
}

impl AsyncEvents {
    /// The context to which the events belong.
    pub fn context(&self) -> &DeviceContext {
        &self.context
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: `self` keeps the context and so its descriptor open; every release's struct has
        // this field.
        unsafe { readiness::descriptor((*self.context.as_raw().as_ptr()).async_fd) }
    }

    /// Takes an event if one is pending (`ibv_get_async_event`), without sleeping.
    ///
    /// # Errors
    ///
    /// Fails if the device is gone and its last event was taken.
    ///
    /// # References
    ///
    /// `man ibv_get_async_event`
    pub fn try_next(&self) -> Result<Option<AsyncEvent>, Error> {
        let verbs = self.context.provider().verbs();
        loop {
            let mut raw = ibv_async_event::default();
            // SAFETY: `self` keeps the context open, and the event is a local variable.
            let result = unsafe { (verbs.ibv_get_async_event)(self.context.as_raw().as_ptr(), &raw mut raw) };
            if result == 0 {
                // SAFETY: the library returned the event just now. It is acknowledged once, and not
                // used after that.
                let event = unsafe {
                    let event = AsyncEvent::copy(&raw);
                    (verbs.ibv_ack_async_event)(&raw mut raw);
                    event
                };
                return Ok(Some(event));
            }
            let source = io::Error::last_os_error();
            match source.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                io::ErrorKind::Interrupted => {}
                _ if readiness::is_device_gone(&source) => {
                    return Err(Error::device_gone("ibv_get_async_event", &self.context, source));
                }
                _ => return Err(Error::os("ibv_get_async_event", source)),
            }
        }
    }

    /// Sleeps until an event comes, and takes it.
    ///
    /// # Errors
    ///
    /// Fails as [`try_next`](Self::try_next) does.
    pub fn wait(&self) -> Result<AsyncEvent, Error> {
        loop {
            // A wait without a deadline ends only with an event or an error.
            if let Some(event) = self.wait_until(Deadline::NEVER)? {
                return Ok(event);
            }
        }
    }

    /// Sleeps until an event comes or `timeout` is over, and takes the event. Returns `None` after
    /// the timeout. Signals do not end the wait.
    ///
    /// # Errors
    ///
    /// Fails as [`try_next`](Self::try_next) does.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<AsyncEvent>, Error> {
        self.wait_until(Deadline::after(timeout))
    }

    fn wait_until(&self, deadline: Deadline) -> Result<Option<AsyncEvent>, Error> {
        loop {
            // Tried before the sleep because a device that is gone does not make the descriptor
            // readable any more.
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            let ready = readiness::wait(&[self.as_fd()], deadline);
            if !ready.map_err(|source| Error::os("poll", source))? {
                return Ok(None);
            }
        }
    }
}

impl AsFd for AsyncEvents {
    /// Readable while events are pending. Only poll this descriptor; do not read it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor().expect("`async_events` has seen that there is one, and it never changes")
    }
}

impl AsRawFd for AsyncEvents {
    /// The number of the descriptor of [`as_fd`](AsFd::as_fd), for event loops that take numbers.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
