//! Event channels (`rdma_event_channel`): the queue of events of many identifiers.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rdma_mummy_sys::types::{rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_event_channel};
use rdma_mummy_sys::{Provider, RdmaCm};
use rustix::event::{EventfdFlags, eventfd};

use super::event::{Event, EventContents};
use super::identifier::{Identifier, Inner, PortSpace};
use super::identifier_state::IdentifierState;
use super::multicast::Membership;
use crate::error::{Error, ErrorKind};
use crate::ibverbs::check;
use crate::ibverbs::readiness::{self, Deadline};
use crate::provider::{default_provider_for, invalid_configuration};

/// An event channel (`rdma_event_channel`): the events of many identifiers.
///
/// Clones refer to the same channel. It is destroyed (`rdma_destroy_event_channel`) when its last
/// handle and its last identifier are dropped. Several threads may use it at a time: each event is
/// delivered once, to the first caller that takes it. The channel's descriptor is made
/// non-blocking.
#[derive(Clone)]
pub struct EventChannel(pub(super) Arc<ChannelInner>);

/// The channel itself, shared by its handles and its identifiers.
pub(super) struct ChannelInner {
    channel: NonNull<rdma_event_channel>,
    provider: Provider,
    lib: &'static RdmaCm,
    /// Held during every call of the library for the channel or for one of its identifiers: see
    /// [`lock`](Self::lock). An identifier that was moved away may still read it.
    library: Arc<Mutex<()>>,
    /// Whether the channel delivers no more events.
    closed: AtomicBool,
    /// An eventfd that wakes sleeping threads; the first of them makes it.
    waker: OnceLock<OwnedFd>,
}

// SAFETY: every call of the library for the channel and its identifiers runs under the channel's
// lock.
unsafe impl Send for ChannelInner {}
// SAFETY: the library is only called for the channel and its identifiers under the channel's lock.
unsafe impl Sync for ChannelInner {}

impl ChannelInner {
    pub(super) fn as_raw(&self) -> NonNull<rdma_event_channel> {
        self.channel
    }

    pub(super) fn provider(&self) -> Provider {
        self.provider
    }

    pub(super) fn lib(&self) -> &'static RdmaCm {
        self.lib
    }

    /// Locks the library for this channel: until the guard is dropped, no other thread takes an
    /// event, or calls the library for an identifier of the channel.
    ///
    /// The library writes into an identifier (its addresses, its device) in two cases: when a
    /// function is called for it, and when any thread takes an event of it. An event is
    /// acknowledged before the lock is released, so that the holder of the lock finds no event
    /// outstanding. Nothing sleeps under the lock, because the channel is non-blocking. Destroying
    /// an identifier does sleep until its events are acknowledged, and runs without the lock.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mutex behind [`lock`](Self::lock).
    pub(super) fn library(&self) -> &Arc<Mutex<()>> {
        &self.library
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: `self` keeps the channel alive, so its descriptor is open; `EventChannel::create`
        // checked that it is not negative.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// The eventfd that wakes a sleeping thread when the channel is closed.
    fn waker(&self) -> Result<BorrowedFd<'_>, Error> {
        let waker = match self.waker.get() {
            Some(waker) => waker,
            None => {
                let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                    .map_err(|error| Error::os("eventfd", error.into()))?;
                // If two threads make one at once, one of the two eventfds is closed again.
                self.waker.get_or_init(|| made)
            }
        };
        // Pairs with the fence in `close`: either this thread sees the channel closed, or the
        // closing thread sees the eventfd.
        fence(Ordering::SeqCst);
        self.check_open()?;
        Ok(waker.as_fd())
    }

    /// Takes an event, if one is pending. Returns its identifier and, for a request, the listener;
    /// the rest goes into `contents`. `Ok(None)` means that the event was consumed here, because
    /// its identifier's last handle is gone or it left a group.
    #[inline]
    fn take(
        self: &Arc<Self>,
        contents: &mut EventContents,
    ) -> io::Result<Option<(Identifier, Option<Identifier>)>> {
        let taken = {
            let _lock = self.lock();
            let mut raw = ptr::null_mut();
            // SAFETY: `self` keeps the channel alive, it is locked, and `raw` is a local variable.
            check(unsafe { (self.lib.rdma_get_cm_event)(self.channel.as_ptr(), &raw mut raw) })?;
            let raw = NonNull::new(raw).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODATA))?;
            // SAFETY: the library returned the event just now, and the channel is locked.
            let taken = unsafe { self.translate(raw, contents) };
            // SAFETY: this is the event's only acknowledgement, and the event is not used after it.
            if let Err(error) = check(unsafe { (self.lib.rdma_ack_cm_event)(raw.as_ptr()) }) {
                log::error!("rdma_ack_cm_event failed: {error}");
            }
            if let TakenEvent::Left(id, membership) = &taken {
                // SAFETY: the identifier belongs to this channel, which is locked. A failure is
                // logged, because no caller waits for the result.
                let _ = unsafe { self.leave(id, membership) };
            }
            taken
        };
        // Identifiers must not be dropped before this point, because their drop waits until their
        // events are acknowledged.
        match taken {
            TakenEvent::Event(id, listener) => Ok(Some((id, listener))),
            TakenEvent::Orphan(id) => {
                // SAFETY: the library made the identifier with the event, nobody else knows it, and
                // the event is acknowledged.
                if let Err(error) = check(unsafe { (self.lib.rdma_destroy_id)(id) }) {
                    log::error!("rdma_destroy_id failed for a request that nobody takes: {error}");
                }
                Ok(None)
            }
            TakenEvent::Left(..) | TakenEvent::Discarded => Ok(None),
        }
    }

    /// Leaves a multicast group whose join was answered.
    ///
    /// # Safety
    ///
    /// The identifier must belong to this channel, and the channel must be locked.
    pub(super) unsafe fn leave(&self, id: &Identifier, membership: &Membership) -> io::Result<()> {
        // SAFETY: the caller guarantees that the identifier belongs to this channel, which is
        // locked; `id` keeps it alive.
        let left = unsafe { membership.leave(self.lib, id.as_raw().as_ptr()) };
        // A removed device explains the failure, and no events come any more. Otherwise the events
        // that wait may belong to the group, and nobody can tell which of them do.
        let waits = || readiness::wait(&[self.descriptor()], Deadline::after(Duration::ZERO)).unwrap_or(true);
        if left.is_err() && id.state() != IdentifierState::DeviceRemoved && waits() {
            log::error!(
                "no more events are taken from a channel with an identifier that cannot leave a group"
            );
            id.0.strand();
            self.close();
        }
        left
    }

    /// See [`EventChannel::close`].
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if let Some(waker) = self.waker.get() {
            // The counter cannot overflow in a harmful way: a full one is readable too.
            let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
        }
    }

    /// Copies an event, and finds its identifier.
    ///
    /// # Safety
    ///
    /// The library must have returned the event from this channel, and it must not be acknowledged
    /// yet, so that the objects that it names are alive. The channel must be locked.
    #[inline]
    unsafe fn translate(
        self: &Arc<Self>,
        raw: NonNull<rdma_cm_event>,
        contents: &mut EventContents,
    ) -> TakenEvent {
        let raw = raw.as_ptr();
        // SAFETY: the caller guarantees a live event, to which nobody writes. These fields are
        // integers and pointers.
        let (event, id, listener) = unsafe { ((*raw).event, (*raw).id, (*raw).listen_id) };
        let is_request = event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST && !listener.is_null();
        // SAFETY: the library destroys the identifier only after the acknowledgement, so it is
        // alive.
        let Some(owner) = (unsafe { Inner::of(if is_request { listener } else { id }) }) else {
            if is_request && !id.is_null() {
                // The new identifier inherited the listener's context, which must not be used for
                // its later events.
                //
                // SAFETY: the new identifier is alive, and nobody else knows it.
                unsafe { (&raw mut (*id).context).write(ptr::null_mut()) };
                return TakenEvent::Orphan(id);
            }
            return TakenEvent::Discarded;
        };
        // SAFETY: the event is not acknowledged, and it belongs to this identifier. A new
        // identifier has the same kind as its listener.
        unsafe { contents.copy(raw, owner.is_datagram()) };
        let owner = Identifier(owner);
        if let Some(left) = owner.note_answer(contents) {
            return TakenEvent::Left(owner, left);
        }
        let Some(new) = NonNull::new(id).filter(|_| is_request) else {
            owner.note_event(contents.event_type);
            return TakenEvent::Event(owner, None);
        };
        // SAFETY: the library made the identifier with the event, nobody else knows it, and the
        // channel is locked.
        let id = unsafe { Identifier::adopt(self, new) };
        id.note_event(contents.event_type);
        TakenEvent::Event(id, Some(owner))
    }
}

/// The result of taking an event.
enum TakenEvent {
    /// An event for the program: its identifier, and the listener of a request.
    Event(Identifier, Option<Identifier>),
    /// A request to a listener that is gone: the new identifier.
    Orphan(*mut rdma_cm_id),
    /// An answered join of a multicast group that the program has already left.
    Left(Identifier, Box<Membership>),
    /// An event of an identifier that is being destroyed.
    Discarded,
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: the channel is alive until here. Its handles and all its identifiers held this
        // object and are gone.
        unsafe { (self.lib.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

impl EventChannel {
    /// Makes a channel of the [default provider](crate::default_provider)
    /// (`rdma_create_event_channel`).
    ///
    /// # Errors
    ///
    /// Fails if there is no provider, or if it has no librdmacm. Also fails if the system has no
    /// connection manager: the kernel module `rdma_ucm` is not loaded, or no RDMA device exists.
    ///
    /// # References
    ///
    /// `man rdma_create_event_channel`
    pub fn new() -> Result<Self, Error> {
        Self::from_provider(default_provider_for(CREATE)?)
    }

    /// Makes a channel of `provider`.
    ///
    /// # Errors
    ///
    /// Fails as [`new`](Self::new) does.
    pub fn from_provider(provider: Provider) -> Result<Self, Error> {
        let lib =
            provider.rdmacm().map_err(|error| Error::caused(CREATE, ErrorKind::Library, error.clone()))?;
        // SAFETY: the function has no preconditions.
        let channel = unsafe { (lib.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(|| {
            let source = io::Error::last_os_error();
            invalid_configuration(CREATE, provider).unwrap_or_else(|| no_channel(source))
        })?;
        let (library, closed, waker) = (Arc::default(), AtomicBool::new(false), OnceLock::new());
        let inner = Arc::new(ChannelInner { channel, provider, lib, library, closed, waker });
        // SAFETY: the library made the channel just now, and every release's struct has this field.
        let fd = unsafe { readiness::descriptor((*channel.as_ptr()).fd) };
        // Non-blocking, so that a wait can end by a timeout, and so that no thread sleeps while it
        // holds the lock.
        let made = match fd {
            Some(fd) => readiness::set_nonblocking(fd, true),
            None => Err(io::Error::from_raw_os_error(libc::EBADF)),
        };
        made.map_err(no_channel)?;
        Ok(Self(inner))
    }

    /// Makes an identifier of this channel (`rdma_create_id`).
    ///
    /// # Errors
    ///
    /// Fails if the port space is unknown, or if too many identifiers exist.
    ///
    /// # References
    ///
    /// `man rdma_create_id`
    pub fn create_id(&self, port_space: PortSpace) -> Result<Identifier, Error> {
        Identifier::create(&self.0, port_space)
    }

    /// Sleeps until an event comes, and takes it (`rdma_get_cm_event`). Signals do not end the
    /// wait.
    ///
    /// The event is acknowledged (`rdma_ack_cm_event`) before this returns. An event of an
    /// identifier whose last handle is gone is skipped. A request to a listener that is gone is
    /// rejected.
    ///
    /// # Errors
    ///
    /// Fails if the channel is [closed](Self::close), or if the library reports an error.
    ///
    /// # References
    ///
    /// `man rdma_get_cm_event`
    pub fn get_cm_event(&self) -> Result<Event, Error> {
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
    /// Fails as [`get_cm_event`](Self::get_cm_event) does.
    pub fn get_cm_event_timeout(&self, timeout: Duration) -> Result<Option<Event>, Error> {
        self.wait_until(Deadline::after(timeout))
    }

    /// Takes an event if one is pending, without sleeping.
    ///
    /// # Errors
    ///
    /// Fails as [`get_cm_event`](Self::get_cm_event) does.
    #[doc(alias = "set_nonblocking")]
    pub fn try_get_cm_event(&self) -> Result<Option<Event>, Error> {
        self.0.check_open()?;
        loop {
            let mut contents = EventContents::none();
            match self.0.take(&mut contents) {
                Ok(Some((id, listener))) => return Ok(Some(Event { contents, id, listener })),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::os("rdma_get_cm_event", source)),
            }
        }
    }

    fn wait_until(&self, deadline: Deadline) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.try_get_cm_event()? {
                return Ok(Some(event));
            }
            let waker = self.0.waker()?;
            let ready = readiness::wait(&[self.as_fd(), waker], deadline);
            if !ready.map_err(|source| Error::os("poll", source))? {
                return Ok(None);
            }
        }
    }

    /// Stops the delivery of events: current and later waits fail with [`ErrorKind::Closed`].
    /// Identifiers keep working.
    pub fn close(&self) {
        self.0.close();
    }

    /// The libraries that the channel and its identifiers use.
    pub fn provider(&self) -> Provider {
        self.0.provider
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    pub fn as_raw(&self) -> NonNull<rdma_event_channel> {
        self.0.channel
    }
}

impl AsFd for EventChannel {
    /// Readable while events are pending. Only poll this descriptor; do not read it. After
    /// [`close`](Self::close) its state has no meaning.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
}

impl AsRawFd for EventChannel {
    /// The number of the descriptor of [`as_fd`](AsFd::as_fd), for event loops that take numbers.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl PartialEq for EventChannel {
    /// Whether both refer to the same channel.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for EventChannel {}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").field("provider", &self.0.provider).finish_non_exhaustive()
    }
}

const CREATE: &str = "rdma_create_event_channel";

#[cold]
fn no_channel(source: io::Error) -> Error {
    Error::os(CREATE, source).remedy(
        "it needs an RDMA device, the module rdma_ucm (`modprobe rdma_ucm`), permission for \
         /dev/infiniband/rdma_cm, and a free descriptor (`ulimit -n`)",
    )
}

#[cold]
fn closed() -> Error {
    Error::not_called("rdma_get_cm_event", ErrorKind::Closed, "the event channel was closed")
}

/// The error of [`EventChannel::get_cm_event`].
pub type GetEventError = Error;
