//! Identifiers: what a connection, a listener or a datagram service is to the connection manager.

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
use super::multicast::Membership;
use crate::error::{Error, ErrorKind};
use crate::ibverbs::address::Gid;
use crate::ibverbs::check;

c_enum! {
    /// What ports are numbered in, and what kind of queue pairs is served (`rdma_port_space`). Others pass through.
    pub struct PortSpace(u32) {
        /// Datagrams, with the queue key and partition of IP over InfiniBand: for multicast.
        IpOverInfiniBand = P::RDMA_PS_IPOIB.0,
        /// Reliable connections.
        Tcp = P::RDMA_PS_TCP.0,
        /// Datagrams.
        Udp = P::RDMA_PS_UDP.0,
        /// InfiniBand's own services.
        Ib = P::RDMA_PS_IB.0,
    }
}
display_as_debug!(PortSpace);

/// How far an identifier has come, as far as its events have been taken: what errors speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IdentifierState {
    /// It was made, and nothing else.
    Idle,
    /// It has a local address.
    Bound,
    /// It listens.
    Listening,
    /// The address is being resolved.
    ResolvingAddress,
    /// The address is resolved.
    AddressResolved,
    /// The route is being resolved.
    ResolvingRoute,
    /// The route is resolved.
    RouteResolved,
    /// It was made by a request, which is not answered.
    Requested,
    /// The connection is being made.
    Connecting,
    /// The peer has accepted, and the connection is to be [established](Identifier::establish).
    Responded,
    /// The connection is there, or the datagram service.
    Connected,
    /// The connection was rejected, here or there.
    Rejected,
    /// The connection was not made.
    Failed,
    /// The connection is no more.
    Disconnected,
    /// The device was taken away.
    DeviceRemoved,
}

impl IdentifierState {
    /// All of them, in order.
    const ALL: [Self; 15] = [
        Self::Idle,
        Self::Bound,
        Self::Listening,
        Self::ResolvingAddress,
        Self::AddressResolved,
        Self::ResolvingRoute,
        Self::RouteResolved,
        Self::Requested,
        Self::Connecting,
        Self::Responded,
        Self::Connected,
        Self::Rejected,
        Self::Failed,
        Self::Disconnected,
        Self::DeviceRemoved,
    ];
}

// What was stored as a number comes back as the same state.
const _: () = {
    let mut index = 0;
    while index < IdentifierState::ALL.len() {
        assert!(IdentifierState::ALL[index] as usize == index);
        index += 1;
    }
};

impl fmt::Display for IdentifierState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "not bound",
            Self::Bound => "bound",
            Self::Listening => "listening",
            Self::ResolvingAddress => "resolving its address",
            Self::AddressResolved => "without a route",
            Self::ResolvingRoute => "resolving its route",
            Self::RouteResolved => "ready to connect",
            Self::Requested => "requested by a peer",
            Self::Connecting => "connecting",
            Self::Responded => "waiting to be established",
            Self::Connected => "connected",
            Self::Rejected => "rejected",
            Self::Failed => "not connected, as that failed",
            Self::Disconnected => "disconnected",
            Self::DeviceRemoved => "without a device, as that was removed",
        })
    }
}

/// An identifier (`rdma_cm_id`): of a connection, of a listener, or of a datagram service.
///
/// A handle: clones stand for the same identifier, which goes (`rdma_destroy_id`) with its last handle. That ends whatever it
/// was doing: a connection is closed, a request that was not answered is rejected, a listener listens no more. Events that
/// were taken hold handles; events that were not are forgotten, and requests among them are rejected.
///
/// It may be used from any thread. Dropping the last handle never waits for the program: events are acknowledged as they are
/// taken.
#[derive(Clone)]
pub struct Identifier(pub(super) Arc<Inner>);

/// The identifier, and what is known of it. C's `context` is a weak reference to this, given back once the identifier is destroyed.
pub(super) struct Inner {
    id: NonNull<rdma_cm_id>,
    lib: &'static RdmaCm,
    port_space: PortSpace,
    datagram: bool,
    /// How far it has come, an [`IdentifierState`]: written under the channel's lock, and read by whoever likes.
    state: AtomicU8,
    /// The library has freed what events that wait may lead to: they stay where nobody takes them.
    stranded: AtomicBool,
    /// The lock of its channel, which those take who call the library for the identifier, and need no more of the channel. It lives: the
    /// channel has it, and of channels that the identifier was moved from, [`RareFields`].
    library: AtomicPtr<Mutex<()>>,
    /// Locked before the channel's own lock.
    channel: Mutex<Arc<ChannelInner>>,
    further: Mutex<Option<Box<RareFields>>>,
    user_data: AtomicU64,
}

// With both counts, small enough for the lists that glibc keeps without merging: programs make and drop identifiers by the thousand.
const _: () = assert!(size_of::<Inner>() + 2 * size_of::<usize>() <= 88);

// SAFETY: the library is called for an identifier under its channel's lock, and its C struct is read under it.
unsafe impl Send for Inner {}
// SAFETY: the library is called for an identifier under its channel's lock, and its C struct is
// read under it.
unsafe impl Sync for Inner {}

/// What few identifiers have: the others are as small as can be.
#[derive(Default)]
pub(super) struct RareFields {
    /// The multicast groups that were joined and not left: the library frees them only then.
    #[allow(clippy::vec_box, reason = "their addresses are their names")]
    pub(super) groups: Vec<Box<Membership>>,
    /// The locks of the channels that it was moved from: somebody may be about to take one.
    former: Vec<Arc<Mutex<()>>>,
    user_context: Option<Arc<dyn Any + Send + Sync>>,
}

impl RareFields {
    /// It is moved from the channel with this lock, perhaps once more.
    fn keep(&mut self, library: &Arc<Mutex<()>>) {
        if !self.former.iter().any(|known| Arc::ptr_eq(known, library)) {
            self.former.push(Arc::clone(library));
        }
    }
}

impl Inner {
    /// # Safety
    ///
    /// `id` was made just now, with the library of this channel, nobody else knows it, and the channel is locked or no event
    /// of it can have come.
    unsafe fn new(channel: &Arc<ChannelInner>, id: NonNull<rdma_cm_id>) -> Arc<Self> {
        // SAFETY: the identifier lives, and nobody writes to it; the fields are in every release's struct.
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
        // SAFETY: the identifier lives, and nobody writes to it; the fields are in every release's
        // struct; nobody else knows the identifier.
        unsafe { (&raw mut (*id.as_ptr()).context).write(own.cast_mut().cast()) };
        inner
    }

    /// Whose identifier it is; `None` if its last handle is gone, or it never had one.
    ///
    /// # Safety
    ///
    /// `id` is null, or an identifier that lives and was made by [`new`](Self::new), or inherited the context of one that was:
    /// then the latter lives.
    pub(super) unsafe fn of(id: *mut rdma_cm_id) -> Option<Arc<Self>> {
        let id = NonNull::new(id)?;
        // SAFETY: the identifier lives; its context is written before anybody else knows of it.
        let own = unsafe { (&raw const (*id.as_ptr()).context).read() };
        if own.is_null() {
            return None;
        }
        // SAFETY: the reference was made by `new`, and is given back only once the identifier is destroyed; this does not.
        let own = ManuallyDrop::new(unsafe { Weak::from_raw(own.cast_const().cast::<Self>()) });
        own.upgrade().filter(|inner| inner.id == id)
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.datagram
    }

    pub(super) fn further(&self) -> MutexGuard<'_, Option<Box<RareFields>>> {
        self.further.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has come so far; its channel is locked.
    fn set_state(&self, state: IdentifierState) {
        self.state.store(state as u8, Relaxed);
    }

    /// No event of it can be taken any more; its channel is locked.
    pub(super) fn strand(&self) {
        self.stranded.store(true, Relaxed);
    }

    /// Reads C's struct, which the library may write into whenever it is called for the identifier, or an event of it is taken.
    fn read<T>(&self, what: impl FnOnce(Fields) -> T) -> T {
        let _lock = self.lock();
        // SAFETY: the identifier lives, and its channel is locked until this returns.
        what(unsafe { self.fields() })
    }

    /// # Safety
    ///
    /// Nobody writes to the identifier while this is used: its channel is locked.
    unsafe fn fields(&self) -> Fields {
        Fields(self.id)
    }

    /// [Locks](ChannelInner::lock) its channel.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        loop {
            let library = self.library.load(Acquire);
            // SAFETY: the lock is that of `channel`, or among the `former`, which are only given up with the identifier.
            let lock = unsafe { &*library }.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever moves the identifier has both locks meanwhile.
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

/// C's struct, while nobody writes to it. The fields are in every release's struct, and initialised.
struct Fields(NonNull<rdma_cm_id>);

impl Fields {
    fn verbs(&self) -> Option<NonNull<ibv_context>> {
        // SAFETY: the identifier lives and nobody writes to it: its channel is locked where
        // `Inner::fields` makes this.
        NonNull::new(unsafe { (&raw const (*self.0.as_ptr()).verbs).read() })
    }

    fn port_num(&self) -> u8 {
        // SAFETY: the identifier lives and nobody writes to it: its channel is locked where
        // `Inner::fields` makes this.
        unsafe { (&raw const (*self.0.as_ptr()).port_num).read() }
    }

    fn local(&self) -> Option<Address> {
        // SAFETY: the identifier lives and nobody writes to it: its channel is locked where
        // `Inner::fields` makes this.
        unsafe { copy_storage((&raw const (*self.0.as_ptr()).route.addr.__bindgen_anon_1).cast()) }.get()
    }

    fn peer(&self) -> Option<Address> {
        // SAFETY: the identifier lives and nobody writes to it: its channel is locked where
        // `Inner::fields` makes this.
        unsafe { copy_storage((&raw const (*self.0.as_ptr()).route.addr.__bindgen_anon_2).cast()) }.get()
    }

    fn infiniband(&self) -> rdma_ib_addr {
        // SAFETY: the identifier lives and nobody writes to it: its channel is locked where
        // `Inner::fields` makes this; any initialised bytes are such an address.
        unsafe { (&raw const (*self.0.as_ptr()).route.addr.addr.ibaddr).read() }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (lib, id) = (self.lib, self.id.as_ptr());
        let further = self.further.get_mut().unwrap_or_else(PoisonError::into_inner);
        let groups = further.as_mut().map(|further| std::mem::take(&mut further.groups)).unwrap_or_default();
        let channel = self.channel.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Between leaving a group and the identifier's end nobody takes an event, which might lead to what leaving has freed. With
        // the lock, no event is outstanding.
        let lock = (!groups.is_empty()).then(|| channel.lock());
        let mut stranded = false;
        for membership in &groups {
            // SAFETY: the identifier lives, and its channel is locked.
            stranded |= unsafe { membership.leave(lib, id) }.is_err();
        }
        // SAFETY: the identifier lives, and nobody writes there after `new`.
        let own = unsafe { (&raw const (*id).context).read() };
        // Whoever has taken an event of it acknowledges it before anything else, so this does not wait for long.
        // SAFETY: the identifier lives, and its last handle is gone.
        match check(unsafe { (lib.rdma_destroy_id)(id) }) {
            // SAFETY: it is the reference that `new` made; no event names the identifier any more.
            Ok(()) => drop(unsafe { Weak::from_raw(own.cast_const().cast::<Self>()) }),
            Err(error) => {
                log::error!("rdma_destroy_id failed: {error}");
                if stranded {
                    channel.close();
                }
                drop(lock);
                // The identifier is still there, so what it depends on has to stay, and what it points to.
                std::mem::forget(Arc::clone(channel));
            }
        }
    }
}

impl Identifier {
    pub(super) fn create(channel: &Arc<ChannelInner>, port_space: PortSpace) -> Result<Self, Error> {
        let mut id = ptr::null_mut();
        let _lock = channel.lock();
        // SAFETY: the channel lives and is locked, and the place is this function's own.
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
        // SAFETY: it was made just now, and no event of it can have come.
        Ok(Self(unsafe { Inner::new(channel, id) }))
    }

    /// Takes over an identifier that came with an event.
    ///
    /// # Safety
    ///
    /// The library made it with the event, nobody else knows it, and the channel is locked.
    pub(super) unsafe fn adopt(channel: &Arc<ChannelInner>, id: NonNull<rdma_cm_id>) -> Self {
        // SAFETY: the caller guarantees (`# Safety`) that the library made it with the event,
        // nobody else knows it, and the channel is locked.
        Self(unsafe { Inner::new(channel, id) })
    }

    /// An event of it was taken; its channel is locked.
    pub(super) fn note_event(&self, event_type: EventType) {
        use IdentifierState as S;
        // SAFETY: its channel is locked.
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

    /// Calls the library for the identifier, alone; if that succeeds, the identifier is in this state then.
    ///
    /// The function gets the library and the identifier, which lives; it must not wait for an event.
    pub(super) fn call(
        &self,
        then: Option<IdentifierState>,
        function: impl FnOnce(&RdmaCm, *mut rdma_cm_id) -> core::ffi::c_int,
    ) -> io::Result<()> {
        let _lock = self.0.lock();
        self.locked(then, function)
    }

    /// As [`call`](Self::call), for functions that need the identifier's device, and of which some releases of librdmacm look at it
    /// without asking whether there is one.
    pub(super) fn call_with_device(
        &self,
        then: Option<IdentifierState>,
        function: impl FnOnce(&RdmaCm, *mut rdma_cm_id) -> core::ffi::c_int,
    ) -> Result<(), CallError> {
        let _lock = self.0.lock();
        // SAFETY: its channel is locked.
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

    /// Moves the identifier to another channel (`rdma_migrate_id`): events that were not taken come there.
    ///
    /// # Errors
    ///
    /// The channel is another provider's, or the library refuses.
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
            // Two that change places would each wait for the other's.
            let (first, second) = match Arc::as_ptr(&mine) < Arc::as_ptr(&channel.0) {
                true => (&*mine, &channel.0),
                false => (&channel.0, &*mine),
            };
            let (_first, _second) = (first.lock(), second.lock());
            let migrate = mine.lib().rdma_migrate_id;
            // Both channels are locked, so no event is outstanding, and this does not wait for one.
            // SAFETY: identifier and channel live, are of one library, and both channels are locked.
            let result = unsafe { migrate(self.0.id.as_ptr(), channel.0.as_raw().as_ptr()) };
            check(result).map_err(|source| Error::os("rdma_migrate_id", source))?;
            self.0.further().get_or_insert_default().keep(mine.library());
            self.0.library.store(Arc::as_ptr(channel.0.library()).cast_mut(), Release);
            Arc::clone(&channel.0)
        };
        let left = std::mem::replace(&mut *mine, left);
        drop(mine);
        // Perhaps the last reference: without a lock.
        drop(left);
        Ok(())
    }

    /// The channel that its events come from.
    pub fn event_channel(&self) -> EventChannel {
        EventChannel(Arc::clone(&self.0.channel()))
    }

    pub(super) fn lib(&self) -> &'static RdmaCm {
        self.0.lib
    }

    /// The libraries that it belongs to.
    pub fn provider(&self) -> Provider {
        self.0.channel().provider()
    }

    /// What its ports are numbered in.
    pub fn port_space(&self) -> PortSpace {
        self.0.port_space
    }

    /// How far it has come, as far as its events have been taken.
    pub fn state(&self) -> IdentifierState {
        // No other number is ever stored.
        IdentifierState::ALL
            .get(usize::from(self.0.state.load(Relaxed)))
            .copied()
            .unwrap_or(IdentifierState::Idle)
    }

    /// Gives it a number of the program's, as a rule where it has more about it: [`user_data`](Self::user_data) of the identifier in an event
    /// tells it. That is C's `context` where it need not be a pointer, and costs nothing.
    pub fn setup_user_data(&self, user_data: u64) {
        self.0.user_data.store(user_data, Relaxed);
    }

    /// The number that the program gave it last; 0 if it gave none. An identifier that came with a request has none.
    pub fn user_data(&self) -> u64 {
        self.0.user_data.load(Relaxed)
    }

    /// Gives it a value of the program's, in place of the one that it had.
    pub fn setup_context<C: Any + Send + Sync>(&self, context: C) {
        let context: Arc<dyn Any + Send + Sync> = Arc::new(context);
        // What it had is dropped without the lock: it may have a handle of this identifier in it.
        let had = self.0.further().get_or_insert_default().user_context.replace(context);
        drop(had);
    }

    /// The value that the program gave it, if it has one of this type.
    pub fn get_context<C: Any + Send + Sync>(&self) -> Option<Arc<C>> {
        let context = self.0.further().as_ref()?.user_context.clone();
        context?.downcast().ok()
    }

    /// Takes away the value that the program gave it.
    ///
    /// A value that holds a handle of the identifier keeps it alive until then.
    pub fn clear_context(&self) {
        let had = self.0.further().as_mut().and_then(|further| further.user_context.take());
        drop(had);
    }

    /// The local address (`rdma_get_local_addr`); `None` before it has one.
    pub fn local_addr(&self) -> Option<Address> {
        self.0.read(|fields| fields.local())
    }

    /// The peer's address (`rdma_get_peer_addr`); `None` before it has one.
    pub fn peer_addr(&self) -> Option<Address> {
        self.0.read(|fields| fields.peer())
    }

    /// The local port (`rdma_get_src_port`): one that the system chose, if it was bound to port 0.
    pub fn local_port(&self) -> Option<u16> {
        self.local_addr()?.port()
    }

    /// The peer's port (`rdma_get_dst_port`).
    pub fn peer_port(&self) -> Option<u16> {
        self.peer_addr()?.port()
    }

    /// The number of the device's port; `None` before there is a device.
    pub fn port(&self) -> Option<u8> {
        self.0.read(|fields| fields.verbs().map(|_| fields.port_num()))
    }

    /// The local GID, once there is a device (`rdma_ib_addr::sgid`).
    pub fn local_gid(&self) -> Option<Gid> {
        Some(self.0.read(|fields| fields.infiniband().sgid.into())).filter(|gid: &Gid| !gid.is_zero())
    }

    /// The peer's GID, once it is resolved (`rdma_ib_addr::dgid`).
    pub fn peer_gid(&self) -> Option<Gid> {
        Some(self.0.read(|fields| fields.infiniband().dgid.into())).filter(|gid: &Gid| !gid.is_zero())
    }

    /// The partition key, once there is a device (`rdma_ib_addr::pkey`).
    pub fn partition_key(&self) -> Option<u16> {
        Some(u16::from_be(self.0.read(|fields| fields.infiniband().pkey))).filter(|pkey| *pkey != 0)
    }

    /// The C object. Using it is as unsafe as in C: it must not be destroyed, its `context` is this crate's, and a queue pair that
    /// `rdma_create_qp` makes is the caller's to destroy.
    pub fn as_raw(&self) -> NonNull<rdma_cm_id> {
        self.0.id
    }

    /// Its device's context.
    pub(super) fn device(&self) -> Result<NonNull<ibv_context>, NoDevice> {
        self.0.read(|fields| self.device_in(&fields))
    }

    fn device_in(&self, fields: &Fields) -> Result<NonNull<ibv_context>, NoDevice> {
        fields.verbs().ok_or_else(|| self.no_device(fields))
    }

    /// Why it has no device.
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
    /// The library reported success, and named no device: it finds a device by its node GUID, and takes 0
    /// for none.
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
    /// The same identifier.
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
