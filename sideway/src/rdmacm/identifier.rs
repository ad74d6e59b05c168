//! Identifiers (`rdma_cm_id`): the connection manager's object for a connection, a listener or a
//! datagram service.

use std::any::Any;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_mummy_sys::types::{ibv_context, ibv_qp_type, rdma_cm_id, rdma_ib_addr, rdma_port_space as P};
use rdma_mummy_sys::{Provider, RdmaCm};

use super::address::{Address, copy_storage};
use super::channel::{ChannelInner, EventChannel};
use super::event::EventType;
use super::identifier_state::IdentifierState;
use super::multicast::Membership;
use crate::error::{Error, ErrorKind};
use crate::ibverbs::address::Gid;
use crate::ibverbs::check;

c_enum! {
    /// The port space, which also determines the type of queue pairs (`rdma_port_space`). Unknown
    /// values are passed through.
    pub struct PortSpace(u32) {
        /// Datagrams with the Q_Key and partition of IP over InfiniBand, for multicast.
        IpOverInfiniBand = P::RDMA_PS_IPOIB.0,
        /// Reliable connections.
        Tcp = P::RDMA_PS_TCP.0,
        /// Datagrams.
        Udp = P::RDMA_PS_UDP.0,
        /// Native InfiniBand services.
        Ib = P::RDMA_PS_IB.0,
    }
}
display_as_debug!(PortSpace);

/// An identifier (`rdma_cm_id`) of a connection, a listener or a datagram service.
///
/// Clones refer to the same identifier. Dropping its last handle destroys it (`rdma_destroy_id`)
/// and ends its activity: a connection is closed, an unanswered request is rejected, a listener
/// stops. Events that were taken hold handles. Events that were not taken are discarded, and
/// requests among them are rejected.
///
/// Any thread may use it. Dropping the last handle never waits for the program, because events are
/// acknowledged when they are taken.
#[derive(Clone)]
pub struct Identifier(pub(super) Arc<Inner>);

/// The identifier and its Rust data. The C `context` is a weak reference to this, which is released
/// after the identifier is destroyed.
pub(super) struct Inner {
    id: NonNull<rdma_cm_id>,
    lib: &'static RdmaCm,
    port_space: PortSpace,
    datagram: bool,
    /// The [`IdentifierState`], written under the channel's lock, and read without it.
    state: AtomicU8,
    /// Whether leaving a group failed, so that pending events may point to memory that the library
    /// has freed. Its channel delivers no more events.
    stranded: AtomicBool,
    /// The mutex of its channel, for calls that need nothing else of the channel. The pointer is
    /// valid: the channel keeps its mutex alive, and [`RareFields`] keeps those of former channels.
    library: AtomicPtr<Mutex<()>>,
    /// Locked before the channel's own lock.
    channel: Mutex<Arc<ChannelInner>>,
    further: Mutex<Option<Box<RareFields>>>,
    user_data: AtomicU64,
}

// With both reference counts, small enough for malloc's bins without coalescing, because programs
// make and drop identifiers by the thousand.
const _: () = assert!(size_of::<Inner>() + 2 * size_of::<usize>() <= 88);

// SAFETY: calls of the library for an identifier, and reads of its C struct, run under its
// channel's lock.
unsafe impl Send for Inner {}
// SAFETY: calls of the library for an identifier, and reads of its C struct, run under its
// channel's lock.
unsafe impl Sync for Inner {}

/// Data that few identifiers have, allocated on demand to keep the others small.
#[derive(Default)]
pub(super) struct RareFields {
    /// The multicast groups that were joined and not left. Their memory must stay until the library
    /// has freed its memberships.
    #[allow(clippy::vec_box, reason = "their addresses are their names")]
    pub(super) groups: Vec<Box<Membership>>,
    /// The mutexes of the channels that it was moved from, because a thread may be about to lock
    /// one.
    former: Vec<Arc<Mutex<()>>>,
    user_context: Option<Arc<dyn Any + Send + Sync>>,
}

impl RareFields {
    /// Keeps the mutex of a channel that the identifier leaves, unless it is already kept.
    fn keep(&mut self, library: &Arc<Mutex<()>>) {
        if !self.former.iter().any(|known| Arc::ptr_eq(known, library)) {
            self.former.push(Arc::clone(library));
        }
    }
}

impl Inner {
    /// # Safety
    ///
    /// `id` was made just now with this channel's library, and nobody else knows it. The channel is
    /// locked, or no event of the identifier can have come yet.
    unsafe fn new(channel: &Arc<ChannelInner>, id: NonNull<rdma_cm_id>) -> Arc<Self> {
        // SAFETY: the caller guarantees that the identifier is alive and nobody else uses it; every
        // release's struct has these fields.
        let (space, qp_type) = unsafe { ((*id.as_ptr()).ps, (*id.as_ptr()).qp_type) };
        let inner = Arc::new(Self {
            id,
            lib: channel.lib(),
            port_space: PortSpace::from_raw(space.0),
            datagram: qp_type == ibv_qp_type::IBV_QPT_UD,
            state: AtomicU8::new(IdentifierState::Idle as u8),
            stranded: AtomicBool::new(false),
            library: AtomicPtr::new(Arc::as_ptr(channel.library()).cast_mut()),
            channel: Mutex::new(Arc::clone(channel)),
            further: Mutex::new(None),
            user_data: AtomicU64::new(0),
        });
        let own = Weak::into_raw(Arc::downgrade(&inner));
        // SAFETY: the caller guarantees (`# Safety`) that the identifier was made just now, so it
        // is alive and nobody else knows it. Every release's struct has this field.
        unsafe { (&raw mut (*id.as_ptr()).context).write(own.cast_mut().cast()) };
        inner
    }

    /// The owner of an identifier; `None` if its last handle is gone, or if it never had one.
    ///
    /// # Safety
    ///
    /// `id` must be null, or a live identifier whose context is set. Either [`new`](Self::new) set
    /// it, or the identifier inherited the context of another one, which must be alive.
    pub(super) unsafe fn of(id: *mut rdma_cm_id) -> Option<Arc<Self>> {
        let id = NonNull::new(id)?;
        // SAFETY: the caller guarantees that the identifier is alive; its context was written
        // before anybody else knew it.
        let own = unsafe { (&raw const (*id.as_ptr()).context).read() };
        if own.is_null() {
            return None;
        }
        // SAFETY: `new` made the weak reference, and only the end of the identifier releases it.
        // `ManuallyDrop` keeps this copy from releasing it.
        let own = ManuallyDrop::new(unsafe { Weak::from_raw(own.cast_const().cast::<Self>()) });
        own.upgrade().filter(|inner| inner.id == id)
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.datagram
    }

    pub(super) fn further(&self) -> MutexGuard<'_, Option<Box<RareFields>>> {
        self.further.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the state. The caller holds the channel's lock.
    fn set_state(&self, state: IdentifierState) {
        self.state.store(state as u8, Relaxed);
    }

    /// Records that pending events must not be taken any more. The caller holds the channel's lock.
    pub(super) fn strand(&self) {
        self.stranded.store(true, Relaxed);
    }

    /// Reads the C struct under the lock. The library may write into the struct during calls for
    /// the identifier and when an event of it is taken.
    fn read<T>(&self, what: impl FnOnce(Fields) -> T) -> T {
        let _lock = self.lock();
        // SAFETY: `self` keeps the identifier alive, and its channel is locked until this returns.
        what(unsafe { self.fields() })
    }

    /// # Safety
    ///
    /// The channel must be locked while the result is used, so that nobody writes to the
    /// identifier.
    unsafe fn fields(&self) -> Fields {
        Fields(self.id)
    }

    /// [Locks](ChannelInner::lock) its channel.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        loop {
            let library = self.library.load(Acquire);
            // SAFETY: the mutex belongs to `channel` or is among the `former` ones, which live as
            // long as the identifier.
            let lock = unsafe { &*library }.lock().unwrap_or_else(PoisonError::into_inner);
            // `migrate` holds the locks of both channels, so the pointer cannot change while this
            // lock is held.
            if self.library.load(Relaxed) == library {
                return lock;
            }
        }
    }

    #[inline]
    pub(super) fn channel(&self) -> MutexGuard<'_, Arc<ChannelInner>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The C struct, while nobody writes to it. Every release's struct has the fields, and they are
/// initialised.
struct Fields(NonNull<rdma_cm_id>);

impl Fields {
    fn verbs(&self) -> Option<NonNull<ibv_context>> {
        // SAFETY: the caller of `Inner::fields` guarantees a live identifier, to which nobody
        // writes.
        NonNull::new(unsafe { (&raw const (*self.0.as_ptr()).verbs).read() })
    }

    fn port_num(&self) -> u8 {
        // SAFETY: the caller of `Inner::fields` guarantees a live identifier, to which nobody
        // writes.
        unsafe { (&raw const (*self.0.as_ptr()).port_num).read() }
    }

    fn local(&self) -> Option<Address> {
        // SAFETY: the caller of `Inner::fields` guarantees a live identifier, to which nobody
        // writes.
        unsafe { copy_storage((&raw const (*self.0.as_ptr()).route.addr.__bindgen_anon_1).cast()) }.get()
    }

    fn peer(&self) -> Option<Address> {
        // SAFETY: the caller of `Inner::fields` guarantees a live identifier, to which nobody
        // writes.
        unsafe { copy_storage((&raw const (*self.0.as_ptr()).route.addr.__bindgen_anon_2).cast()) }.get()
    }

    fn infiniband(&self) -> rdma_ib_addr {
        // SAFETY: the caller of `Inner::fields` guarantees a live identifier, to which nobody
        // writes. All initialised bytes are a valid address.
        unsafe { (&raw const (*self.0.as_ptr()).route.addr.addr.ibaddr).read() }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (lib, id) = (self.lib, self.id.as_ptr());
        let further = self.further.get_mut().unwrap_or_else(PoisonError::into_inner);
        let groups = further.as_mut().map(|further| std::mem::take(&mut further.groups)).unwrap_or_default();
        let channel = self.channel.get_mut().unwrap_or_else(PoisonError::into_inner);
        // From leaving a group to the destruction, nobody may take an event, because it might point
        // to memory that leaving has freed. While the lock is held, no event is outstanding.
        let lock = (!groups.is_empty()).then(|| channel.lock());
        let mut stranded = false;
        for membership in &groups {
            // SAFETY: the identifier is alive, and its channel is locked.
            stranded |= unsafe { membership.leave(lib, id) }.is_err();
        }
        // SAFETY: the identifier is alive, and nobody writes the field after `new`.
        let own = unsafe { (&raw const (*id).context).read() };
        // A thread that has taken an event of it acknowledges the event before anything else, so
        // the wait is short.
        //
        // SAFETY: the identifier is alive, and its last handle is gone.
        match check(unsafe { (lib.rdma_destroy_id)(id) }) {
            // SAFETY: `new` made this reference, and no event names the identifier any more.
            Ok(()) => drop(unsafe { Weak::from_raw(own.cast_const().cast::<Self>()) }),
            Err(error) => {
                log::error!("rdma_destroy_id failed: {error}");
                if stranded {
                    channel.close();
                }
                drop(lock);
                // The library still has the identifier, so the channel that it depends on, and the
                // memory that it points to, must stay alive too.
                std::mem::forget(Arc::clone(channel));
            }
        }
    }
}

impl Identifier {
    pub(super) fn create(channel: &Arc<ChannelInner>, port_space: PortSpace) -> Result<Self, Error> {
        let mut id = ptr::null_mut();
        let _lock = channel.lock();
        // SAFETY: the channel is alive and locked, and the result is a local variable.
        let result = check(unsafe {
            (channel.lib().rdma_create_id)(
                channel.as_raw().as_ptr(),
                &raw mut id,
                ptr::null_mut(),
                P(port_space.raw()),
            )
        });
        let made =
            result.and_then(|()| NonNull::new(id).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODATA)));
        let id = made.map_err(|source| Error::os("rdma_create_id", source).with("port_space", port_space))?;
        // SAFETY: the library made the identifier just now, and no event of it can have come.
        Ok(Self(unsafe { Inner::new(channel, id) }))
    }

    /// Takes ownership of an identifier that came with an event.
    ///
    /// # Safety
    ///
    /// The library made it with the event, nobody else knows it, and the channel is locked.
    pub(super) unsafe fn adopt(channel: &Arc<ChannelInner>, id: NonNull<rdma_cm_id>) -> Self {
        // SAFETY: the caller guarantees (`# Safety`) that the library made it with the event,
        // nobody else knows it, and the channel is locked.
        Self(unsafe { Inner::new(channel, id) })
    }

    /// Updates the state for an event that was taken. The caller holds the channel's lock.
    pub(super) fn note_event(&self, event_type: EventType) {
        use IdentifierState as S;
        // SAFETY: the caller holds the channel's lock.
        let fields = unsafe { self.0.fields() };
        let state = match event_type {
            EventType::AddressResolved => S::AddressResolved,
            EventType::AddressError if fields.verbs().is_none() => S::Idle,
            EventType::AddressError => S::Bound,
            EventType::RouteResolved => S::RouteResolved,
            EventType::RouteError => S::AddressResolved,
            EventType::ConnectRequest => S::Requested,
            EventType::ConnectResponse => S::Responded,
            EventType::ConnectError | EventType::Unreachable => S::Failed,
            EventType::Rejected => S::Rejected,
            EventType::Established => S::Connected,
            EventType::Disconnected => S::Disconnected,
            EventType::TimewaitExit if self.state() == S::Connected => S::Disconnected,
            EventType::DeviceRemoval => S::DeviceRemoved,
            _ => return,
        };
        self.0.set_state(state);
    }

    /// Calls the library for the identifier under its channel's lock, and sets the state after
    /// success.
    ///
    /// The function gets the library and the live identifier. It must not wait for an event.
    pub(super) fn call(
        &self,
        then: Option<IdentifierState>,
        function: impl FnOnce(&RdmaCm, *mut rdma_cm_id) -> core::ffi::c_int,
    ) -> io::Result<()> {
        let _lock = self.0.lock();
        self.locked(then, function)
    }

    /// As [`call`](Self::call), for functions that need the identifier's device. Some releases of
    /// librdmacm dereference the device without checking that there is one.
    pub(super) fn call_with_device(
        &self,
        then: Option<IdentifierState>,
        function: impl FnOnce(&RdmaCm, *mut rdma_cm_id) -> core::ffi::c_int,
    ) -> Result<(), CallError> {
        let _lock = self.0.lock();
        // SAFETY: `lock` holds the channel's lock.
        self.device_in(&unsafe { self.0.fields() }).map_err(CallError::NoDevice)?;
        self.locked(then, function).map_err(CallError::Rdmacm)
    }

    fn locked(
        &self,
        then: Option<IdentifierState>,
        function: impl FnOnce(&RdmaCm, *mut rdma_cm_id) -> core::ffi::c_int,
    ) -> io::Result<()> {
        check(function(self.0.lib, self.0.id.as_ptr()))?;
        if let Some(state) = then {
            self.0.set_state(state);
        }
        Ok(())
    }

    /// Moves the identifier to another channel (`rdma_migrate_id`), which then gets its pending
    /// events.
    ///
    /// # Errors
    ///
    /// Fails if the channel belongs to another provider, or if the library reports an error.
    ///
    /// # References
    ///
    /// `man rdma_migrate_id`
    pub fn migrate(&self, channel: &EventChannel) -> Result<(), Error> {
        let mut mine = self.0.channel();
        if mine.provider() != channel.provider() {
            return Err(Error::not_called(
                "rdma_migrate_id",
                ErrorKind::OtherProvider,
                "identifier and channel are of different providers",
            ));
        }
        if self.0.stranded.load(Relaxed) {
            return Err(Error::os("rdma_migrate_id", io::Error::from_raw_os_error(libc::ENODEV)));
        }
        if Arc::ptr_eq(&mine, &channel.0) {
            return Ok(());
        }
        let left = {
            // Locked in the order of their addresses, so that two opposite moves cannot deadlock.
            let (first, second) = match Arc::as_ptr(&mine) < Arc::as_ptr(&channel.0) {
                true => (&*mine, &channel.0),
                false => (&channel.0, &*mine),
            };
            let (_first, _second) = (first.lock(), second.lock());
            let migrate = mine.lib().rdma_migrate_id;
            // Both channels are locked, so no event is outstanding, and the call does not wait for
            // one.
            //
            // SAFETY: identifier and channel are alive and use one library, and both channels are
            // locked.
            let result = unsafe { migrate(self.0.id.as_ptr(), channel.0.as_raw().as_ptr()) };
            check(result).map_err(|source| Error::os("rdma_migrate_id", source))?;
            self.0.further().get_or_insert_default().keep(mine.library());
            self.0.library.store(Arc::as_ptr(channel.0.library()).cast_mut(), Release);
            Arc::clone(&channel.0)
        };
        let left = std::mem::replace(&mut *mine, left);
        drop(mine);
        // Possibly the last reference, so it is dropped without a lock.
        drop(left);
        Ok(())
    }

    /// The channel that delivers its events.
    pub fn event_channel(&self) -> EventChannel {
        EventChannel(Arc::clone(&self.0.channel()))
    }

    pub(super) fn lib(&self) -> &'static RdmaCm {
        self.0.lib
    }

    /// The libraries that it uses.
    pub fn provider(&self) -> Provider {
        self.0.channel().provider()
    }

    /// The port space that was given at creation.
    pub fn port_space(&self) -> PortSpace {
        self.0.port_space
    }

    /// The progress, according to the events that were taken.
    pub fn state(&self) -> IdentifierState {
        // Only valid numbers are ever stored.
        IdentifierState::ALL
            .get(usize::from(self.0.state.load(Relaxed)))
            .copied()
            .unwrap_or(IdentifierState::Idle)
    }

    /// Stores a number for the program, usually an index into its own table.
    /// [`user_data`](Self::user_data) of the identifier in an event returns it. It takes the place
    /// of C's `context` without a pointer, and costs nothing.
    pub fn setup_user_data(&self, user_data: u64) {
        self.0.user_data.store(user_data, Relaxed);
    }

    /// The number that the program stored last, or 0. The identifier of a request starts with 0.
    pub fn user_data(&self) -> u64 {
        self.0.user_data.load(Relaxed)
    }

    /// Stores a value for the program, in place of the previous one.
    pub fn setup_context<C: Any + Send + Sync>(&self, context: C) {
        let context: Arc<dyn Any + Send + Sync> = Arc::new(context);
        // The previous value is dropped without the lock, because it may contain a handle of this
        // identifier.
        let had = self.0.further().get_or_insert_default().user_context.replace(context);
        drop(had);
    }

    /// The value that the program stored, if it has this type.
    pub fn get_context<C: Any + Send + Sync>(&self) -> Option<Arc<C>> {
        let context = self.0.further().as_ref()?.user_context.clone();
        context?.downcast().ok()
    }

    /// Removes the value that the program stored.
    ///
    /// A value that holds a handle of the identifier keeps the identifier alive until then.
    pub fn clear_context(&self) {
        let had = self.0.further().as_mut().and_then(|further| further.user_context.take());
        drop(had);
    }

    /// The local address (`rdma_get_local_addr`); `None` until it is bound.
    pub fn local_addr(&self) -> Option<Address> {
        self.0.read(|fields| fields.local())
    }

    /// The peer's address (`rdma_get_peer_addr`); `None` until it is known.
    pub fn peer_addr(&self) -> Option<Address> {
        self.0.read(|fields| fields.peer())
    }

    /// The local port (`rdma_get_src_port`). If it was bound to port 0, the system has chosen one.
    pub fn local_port(&self) -> Option<u16> {
        self.local_addr()?.port()
    }

    /// The peer's port (`rdma_get_dst_port`).
    pub fn peer_port(&self) -> Option<u16> {
        self.peer_addr()?.port()
    }

    /// The number of the device's port; `None` until it has a device.
    pub fn port(&self) -> Option<u8> {
        self.0.read(|fields| fields.verbs().map(|_| fields.port_num()))
    }

    /// The local GID, once it has a device (`rdma_ib_addr::sgid`).
    pub fn local_gid(&self) -> Option<Gid> {
        Some(self.0.read(|fields| fields.infiniband().sgid.into())).filter(|gid: &Gid| !gid.is_zero())
    }

    /// The peer's GID, once it is resolved (`rdma_ib_addr::dgid`).
    pub fn peer_gid(&self) -> Option<Gid> {
        Some(self.0.read(|fields| fields.infiniband().dgid.into())).filter(|gid: &Gid| !gid.is_zero())
    }

    /// The partition key, once it has a device (`rdma_ib_addr::pkey`).
    pub fn partition_key(&self) -> Option<u16> {
        Some(u16::from_be(self.0.read(|fields| fields.infiniband().pkey))).filter(|pkey| *pkey != 0)
    }

    /// The C object, for functions that this crate does not wrap. Using it is as unsafe as in C. Do
    /// not destroy it, and do not change its `context`. The caller must destroy a queue pair that
    /// `rdma_create_qp` makes.
    pub fn as_raw(&self) -> NonNull<rdma_cm_id> {
        self.0.id
    }

    /// The context of its device.
    pub(super) fn device(&self) -> Result<NonNull<ibv_context>, NoDevice> {
        self.0.read(|fields| self.device_in(&fields))
    }

    fn device_in(&self, fields: &Fields) -> Result<NonNull<ibv_context>, NoDevice> {
        fields.verbs().ok_or_else(|| self.no_device(fields))
    }

    /// The reason why it has no device.
    #[cold]
    fn no_device(&self, fields: &Fields) -> NoDevice {
        use IdentifierState as S;
        let (local, state) = (fields.local(), self.state());
        let any = local.as_ref().and_then(Address::ip).is_none_or(|address| address.ip().is_unspecified());
        match state {
            S::Idle | S::ResolvingAddress => NoDevice { local, state, lacks_guid: false },
            S::Bound | S::Listening if any => NoDevice { local, state, lacks_guid: false },
            _ => NoDevice { local, state, lacks_guid: true },
        }
    }
}

/// An identifier without a device.
pub(super) struct NoDevice {
    local: Option<Address>,
    state: IdentifierState,
    /// Whether the library reported success, but named no device. It finds a device by its node
    /// GUID, and treats 0 as no device.
    lacks_guid: bool,
}

impl NoDevice {
    #[cold]
    pub(super) fn error(self, verb: &'static str) -> Error {
        let (reason, remedy) = match self.lacks_guid {
            false => (
                "the identifier has no device yet",
                "bind it to the address of one, or resolve an address and take the event",
            ),
            true => (
                "librdmacm gave the identifier no device, because the device's node GUID is 0, which librdmacm \
                 takes for none",
                "give the device a GUID (`rdma dev`, the driver's settings; SoftRoCE takes it from the network \
                 interface's MAC address, so use one that has one), or open the device by its name",
            ),
        };
        Error::not_called(verb, ErrorKind::NoDevice, reason)
            .with("local", super::address::perhaps(&self.local))
            .with("state", self.state)
            .with("lacks_guid", self.lacks_guid)
            .remedy(remedy)
    }
}

/// The identifier's state does not allow the call.
#[cold]
pub(super) fn wrong_state(verb: &'static str, state: IdentifierState, source: io::Error) -> Error {
    let error = Error::os(verb, source).of_kind(ErrorKind::InvalidState);
    error.with("state", state).reason("the identifier's state does not allow it")
}

/// Why a call for an identifier did not succeed.
pub(super) enum CallError {
    NoDevice(NoDevice),
    Rdmacm(io::Error),
}

impl PartialEq for Identifier {
    /// Whether both refer to the same identifier.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Identifier {}

impl std::hash::Hash for Identifier {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identifier")
            .field("state", &self.state())
            .field("local_addr", &self.local_addr())
            .field("peer_addr", &self.peer_addr())
            .finish_non_exhaustive()
    }
}
