//! Event channels: where the events of many identifiers come out.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rdma_mummy_sys::types::{rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_event_channel};
use rdma_mummy_sys::{Provider, RdmaCm};
use rustix::event::{EventfdFlags, eventfd};

use super::event::{Event, EventContents};
use super::identifier::{Identifier, IdentifierState, Inner, PortSpace};
use super::multicast::Membership;
use crate::error::{Error, ErrorKind};
use crate::ibverbs::check;
use crate::ibverbs::readiness::{self, Deadline};
use crate::provider::default_provider;

/// An event channel (`rdma_event_channel`): the events of many identifiers.
///
/// A handle: clones stand for the same channel, which goes (`rdma_destroy_event_channel`) with its last handle and its last
/// identifier. It may be used from several threads at a time: each event is given out once, to whoever asks first. Its
/// descriptor is made non-blocking.
#[derive(Clone)]
pub struct EventChannel(pub(super) Arc<ChannelInner>);

/// What the channel's handles and its identifiers share: the channel itself.
pub(super) struct ChannelInner {
    channel: NonNull<rdma_event_channel>,
    provider: Provider,
    lib: &'static RdmaCm,
    /// Held by whoever calls the library for the channel or for an identifier of it: see [`lock`](Self::lock). An identifier that was moved
    /// away may still look at it.
    library: Arc<Mutex<()>>,
    /// No more events are given out.
    closed: AtomicBool,
    /// Wakes those who sleep; made by the first of them.
    waker: OnceLock<OwnedFd>,
}

// SAFETY: the library is only called for the channel and its identifiers under the channel's lock.
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

    /// Until this is dropped, nobody else takes an event, or calls the library for an identifier of this channel.
    ///
    /// The library writes into an identifier (its addresses, its device) both when a function is called for it and when an
    /// event of it is taken, whoever takes it; and an event that was taken is acknowledged before the lock is given back, so that
    /// whoever holds the lock finds none outstanding. Nothing under it sleeps: the channel is non-blocking. Destroying an
    /// identifier does sleep until its events are acknowledged, and goes without the lock.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What [`lock`](Self::lock) locks.
    pub(super) fn library(&self) -> &Arc<Mutex<()>> {
        &self.library
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives, so its descriptor is open; `EventChannel::create` has seen that it is one.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// What wakes a sleeper when the channel is closed.
    fn waker(&self) -> Result<BorrowedFd<'_>, Error> {
        let waker = match self.waker.get() {
            Some(waker) => waker,
            None => {
                let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                    .map_err(|error| Error::os("eventfd", error.into()))?;
                // Of two who make one at once, one's is closed again.
                self.waker.get_or_init(|| made)
            }
        };
        // Either this finds the channel closed, or whoever closes it finds the bell.
        fence(Ordering::SeqCst);
        self.check_open()?;
        Ok(waker.as_fd())
    }

    /// Takes an event, if there is one: whose it is, and who listened; the rest is in `contents` then. `Ok(None)` is one of an identifier
    /// whose last handle is gone.
    #[inline]
    fn take(
        self: &Arc<Self>,
        contents: &mut EventContents,
    ) -> io::Result<Option<(Identifier, Option<Identifier>)>> {
        let taken = {
            let _lock = self.lock();
            let mut raw = ptr::null_mut();
            // SAFETY: the channel lives and is locked, and the place is this function's own.
            check(unsafe { (self.lib.rdma_get_cm_event)(self.channel.as_ptr(), &raw mut raw) })?;
            let raw = NonNull::new(raw).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODATA))?;
            // SAFETY: the event was got just now, and the channel is locked.
            let taken = unsafe { self.translate(raw, contents) };
            // SAFETY: this is its one acknowledgement, and it is not used after that.
            if let Err(error) = check(unsafe { (self.lib.rdma_ack_cm_event)(raw.as_ptr()) }) {
                log::error!("rdma_ack_cm_event failed: {error}");
            }
            if let TakenEvent::Left(id, membership) = &taken {
                // SAFETY: the identifier lives, and the channel is locked. A failure is logged; nobody waits for it.
                let _ = unsafe { self.leave(id, membership) };
            }
            taken
        };
        // Identifiers are dropped here at the earliest: that waits until their events are acknowledged.
        match taken {
            TakenEvent::Event(id, listener) => Ok(Some((id, listener))),
            TakenEvent::Orphan(id) => {
                // SAFETY: the library made it with the event, nobody else knows it, and the event is acknowledged.
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
    /// The identifier is of this channel, which is locked.
    pub(super) unsafe fn leave(&self, id: &Identifier, membership: &Membership) -> io::Result<()> {
        // SAFETY: the identifier lives, and its channel is locked.
        let left = unsafe { membership.leave(self.lib, id.as_raw().as_ptr()) };
        // A device that was taken away is such a reason, and no events come any more; but of those that wait, nobody can say.
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

    /// As [`EventChannel::close`].
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if let Some(waker) = self.waker.get() {
            // The counter cannot overflow: a full one is readable, and that is all that matters.
            let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
        }
    }

    /// Copies an event, and finds its identifier.
    ///
    /// # Safety
    ///
    /// The event was got from this channel and is not acknowledged: so what it names lives. The channel is locked.
    #[inline]
    unsafe fn translate(
        self: &Arc<Self>,
        raw: NonNull<rdma_cm_event>,
        contents: &mut EventContents,
    ) -> TakenEvent {
        let raw = raw.as_ptr();
        // SAFETY: the event lives, nobody writes to it, and these fields are integers and pointers.
        let (event, id, listener) = unsafe { ((*raw).event, (*raw).id, (*raw).listen_id) };
        let is_request = event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST && !listener.is_null();
        // SAFETY: the identifier lives: the library destroys it only after the acknowledgement.
        let Some(owner) = (unsafe { Inner::of(if is_request { listener } else { id }) }) else {
            if is_request && !id.is_null() {
                // What it inherited from the one who listened would lead further events of it nowhere.
                // SAFETY: the new identifier lives, and nobody else knows it.
                unsafe { (&raw mut (*id).context).write(ptr::null_mut()) };
                return TakenEvent::Orphan(id);
            }
            return TakenEvent::Discarded;
        };
        // SAFETY: the event is not acknowledged, and is of this identifier, whose kind the new one inherits.
        unsafe { contents.copy(raw, owner.is_datagram()) };
        let owner = Identifier(owner);
        if let Some(left) = owner.note_answer(contents) {
            return TakenEvent::Left(owner, left);
        }
        let Some(new) = NonNull::new(id).filter(|_| is_request) else {
            owner.note_event(contents.event_type);
            return TakenEvent::Event(owner, None);
        };
        // SAFETY: the library made it with the event, nobody else knows it, and the channel is locked.
        let id = unsafe { Identifier::adopt(self, new) };
        id.note_event(contents.event_type);
        TakenEvent::Event(id, Some(owner))
    }
}

/// What became of an event.
enum TakenEvent {
    /// Somebody's, and who listened.
    Event(Identifier, Option<Identifier>),
    /// A request to somebody who does not listen any more: its identifier.
    Orphan(*mut rdma_cm_id),
    /// Of a multicast group that its identifier is to leave now.
    Left(Identifier, Box<Membership>),
    /// Of an identifier that is being destroyed.
    Discarded,
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: the channel lives, and its handles and all its identifiers, which held this, are gone.
        unsafe { (self.lib.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

impl EventChannel {
    /// A channel of the [default provider](default_provider) (`rdma_create_event_channel`).
    ///
    /// # Errors
    ///
    /// There is no provider, it has no librdmacm, or the system has no connection manager: its module `rdma_ucm` is not loaded,
    /// or there is no RDMA device.
    ///
    /// # References
    ///
    /// `man rdma_create_event_channel`
    pub fn new() -> Result<Self, Error> {
        let provider = default_provider();
        Self::from_provider(provider.map_err(|error| Error::caused(CREATE, ErrorKind::Library, error))?)
    }

    /// A channel of this provider.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn from_provider(provider: Provider) -> Result<Self, Error> {
        let lib =
            provider.rdmacm().map_err(|error| Error::caused(CREATE, ErrorKind::Library, error.clone()))?;
        // SAFETY: there is no condition.
        let channel = unsafe { (lib.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(|| no_channel(io::Error::last_os_error()))?;
        let (library, closed, waker) = (Arc::default(), AtomicBool::new(false), OnceLock::new());
        let inner = Arc::new(ChannelInner { channel, provider, lib, library, closed, waker });
        // SAFETY: the channel lives, and has this field in every release.
        let fd = unsafe { readiness::descriptor((*channel.as_ptr()).fd) };
        // So that a wait can end by a timeout, and nobody sleeps while he holds the lock.
        let made = match fd {
            Some(fd) => readiness::set_nonblocking(fd, true),
            None => Err(io::Error::from_raw_os_error(libc::EBADF)),
        };
        made.map_err(no_channel)?;
        Ok(Self(inner))
    }

    /// An identifier of this channel (`rdma_create_id`).
    ///
    /// # Errors
    ///
    /// The port space is unknown, or there are too many identifiers.
    ///
    /// # References
    ///
    /// `man rdma_create_id`
    pub fn create_id(&self, port_space: PortSpace) -> Result<Identifier, Error> {
        Identifier::create(&self.0, port_space)
    }

    /// Sleeps until there is an event, and takes it (`rdma_get_cm_event`). Signals do not end it.
    ///
    /// The event is acknowledged (`rdma_ack_cm_event`) before this returns. One of an identifier whose last handle is gone is
    /// passed over, and a request to a listener that is gone is rejected.
    ///
    /// # Errors
    ///
    /// The channel is [closed](Self::close), or the library refuses.
    ///
    /// # References
    ///
    /// `man rdma_get_cm_event`
    pub fn get_cm_event(&self) -> Result<Event, Error> {
        loop {
            // Without a deadline there is an event or an error.
            if let Some(event) = self.wait_until(Deadline::NEVER)? {
                return Ok(event);
            }
        }
    }

    /// Sleeps until there is an event, at most so long, and takes it; `None` if the time is over. Signals do not end it.
    ///
    /// # Errors
    ///
    /// As [`get_cm_event`](Self::get_cm_event).
    pub fn get_cm_event_timeout(&self, timeout: Duration) -> Result<Option<Event>, Error> {
        self.wait_until(Deadline::after(timeout))
    }

    /// Takes an event if there is one, without sleeping.
    ///
    /// # Errors
    ///
    /// As [`get_cm_event`](Self::get_cm_event).
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

    /// Gives out no more events: whoever waits for one, or asks, is told so. Identifiers stay as they are.
    pub fn close(&self) {
        self.0.close();
    }

    /// The libraries that the channel, and every identifier of it, belongs to.
    pub fn provider(&self) -> Provider {
        self.0.provider
    }

    /// The C object. Using it is as unsafe as in C, and it must not be destroyed.
    pub fn as_raw(&self) -> NonNull<rdma_event_channel> {
        self.0.channel
    }
}

impl AsFd for EventChannel {
    /// Readable while there are events. Do not read it, only ask; after [`close`](Self::close) it says nothing new.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
}

impl PartialEq for EventChannel {
    /// The same channel.
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
