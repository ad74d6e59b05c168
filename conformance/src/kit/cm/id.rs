//! Identifiers of the connection manager.

use std::ffi::c_void;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Provider, RdmaCm, rdmacm};

use super::super::handle::RawHandle;
use super::address::{SocketAddress, read};
use super::{Cm, CmChannel, EventCopy, Space, check, event, number};

/// A connection manager identifier.
#[derive(Clone, Debug)]
pub(crate) struct CmId(Arc<IdInner>);

#[derive(Debug)]
struct IdInner {
    raw: RawHandle<rdma_cm_id>,
    cm: Cm,
    /// `None` for a synchronous identifier.
    channel: Mutex<Option<CmChannel>>,
    /// Whether `rdma_create_ep` made its queue pair and completion queues.
    endpoint: bool,
    /// Whether it had a queue pair in a domain of the case. librdmacm remembers that domain as the
    /// identifier's until the identifier is destroyed.
    own_domain: AtomicBool,
}

impl Drop for IdInner {
    fn drop(&mut self) {
        let lib = self.cm.lib;
        // SAFETY: `RawHandle` checks that the identifier lives. Nothing that belongs to it does,
        // because each such object holds a reference to it.
        self.raw.drop(|id| unsafe {
            if self.endpoint {
                (lib.rdma_destroy_ep)(id);
                return 0;
            }
            number((lib.rdma_destroy_id)(id))
        });
    }
}

/// The parameters of connecting or accepting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) private_data: Vec<u8>,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

impl Param {
    /// For a queue pair with this number, which the identifier does not know.
    pub(crate) fn of(qp_num: u32) -> Self {
        Self {
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            qp_num,
            ..Self::default()
        }
    }

    /// For a queue pair that does not exist. Its number is unique among the cases, because the
    /// kernel tells connections apart by it.
    pub(crate) fn nowhere() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0x10_0000);
        Self::of(NUMBER.fetch_add(1, Ordering::SeqCst))
    }

    /// Sets the private data.
    pub(crate) fn with(mut self, private_data: &[u8]) -> Self {
        private_data.clone_into(&mut self.private_data);
        self
    }

    /// The C struct, which points into `self`.
    fn raw(&self) -> rdma_conn_param {
        let data = self.private_data.as_ptr().cast();
        rdma_conn_param {
            private_data: if self.private_data.is_empty() { std::ptr::null() } else { data },
            private_data_len: self.private_data.len().try_into().expect("private data of 255 bytes at most"),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: self.srq,
            qp_num: self.qp_num,
        }
    }
}

impl CmChannel {
    /// Creates an identifier on this channel.
    pub(crate) fn id(&self, space: Space, context: usize) -> Result<CmId, i32> {
        CmId::create(self.cm(), Some(self), space, context)
    }
}

impl Cm {
    /// Creates a synchronous identifier.
    pub(crate) fn synchronous_id(self, space: Space) -> Result<CmId, i32> {
        CmId::create(self, None, space, 0)
    }
}

impl CmId {
    fn create(cm: Cm, channel: Option<&CmChannel>, space: Space, context: usize) -> Result<Self, i32> {
        let mut raw = std::ptr::null_mut();
        let pointer = channel.map_or(std::ptr::null_mut(), CmChannel::raw);
        let context = std::ptr::without_provenance_mut(context);
        // SAFETY: the channel is null or lives, because the caller holds it. The result is a local
        // variable, and the library never dereferences the context.
        check(unsafe { (cm.lib.rdma_create_id)(pointer, &raw mut raw, context, space) })?;
        Ok(Self::of(cm, raw, channel, false))
    }

    /// Takes over an identifier that the library has just created.
    pub(super) fn of(cm: Cm, raw: *mut rdma_cm_id, channel: Option<&CmChannel>, endpoint: bool) -> Self {
        let raw = RawHandle::new("an identifier", raw).expect("the successful call returned an identifier");
        let channel = Mutex::new(channel.cloned());
        Self(Arc::new(IdInner { raw, cm, channel, endpoint, own_domain: AtomicBool::default() }))
    }

    pub(super) fn lib(&self) -> &'static RdmaCm {
        self.0.cm.lib
    }

    pub(super) fn cm(&self) -> Cm {
        self.0.cm
    }

    pub(in super::super) fn provider(&self) -> Provider {
        self.0.cm.provider
    }

    /// Panics if the library would use a domain that may be destroyed already.
    pub(super) fn may_use_the_library_s_domain(&self) {
        let gone = self.0.own_domain.load(Ordering::SeqCst);
        assert!(!gone, "librdmacm would take the domain of the pair before");
    }

    pub(super) fn has_had_a_domain(&self) {
        self.0.own_domain.store(true, Ordering::SeqCst);
    }

    pub(super) fn raw(&self) -> *mut rdma_cm_id {
        self.0.raw.get()
    }

    pub(crate) fn address(&self) -> usize {
        self.raw().addr()
    }

    /// Destroys it; its queue pair must be gone.
    pub(crate) fn destroy(&self) -> Result<(), i32> {
        assert!(!self.has_qp(), "man rdma_destroy_id: users must free any associated QP first");
        // SAFETY: `RawHandle` checks that the identifier lives.
        match self.0.raw.end(|id| number(unsafe { (self.lib().rdma_destroy_id)(id) })) {
            0 => Ok(()),
            error => Err(error),
        }
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), i32> {
        self.bind_raw(SocketAddress::of(address))
    }

    /// Binds to an address of an unknown family.
    pub(crate) fn bind_family(&self, family: u16) -> Result<(), i32> {
        self.bind_raw(SocketAddress::of_family(family))
    }

    fn bind_raw(&self, mut address: SocketAddress) -> Result<(), i32> {
        // SAFETY: `RawHandle` checks that the identifier lives, the address is a local variable.
        check(unsafe { (self.lib().rdma_bind_addr)(self.raw(), address.as_mut_ptr()) })
    }

    pub(crate) fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        milliseconds: i32,
    ) -> Result<(), i32> {
        let (mut source, mut destination) = (source.map(SocketAddress::of), SocketAddress::of(destination));
        let source = source.as_mut().map_or(std::ptr::null_mut(), SocketAddress::as_mut_ptr);
        let resolve = self.lib().rdma_resolve_addr;
        // SAFETY: `RawHandle` checks that the identifier lives; the addresses are local variables.
        check(unsafe { resolve(self.raw(), source, destination.as_mut_ptr(), milliseconds) })
    }

    pub(crate) fn resolve_route(&self, milliseconds: i32) -> Result<(), i32> {
        assert!(self.has_verbs(), "man rdma_resolve_route: users must have resolved an address first");
        // SAFETY: `RawHandle` checks that the identifier lives. It has a device (asserted above),
        // which librdmacm does not check.
        check(unsafe { (self.lib().rdma_resolve_route)(self.raw(), milliseconds) })
    }

    pub(crate) fn listen(&self, backlog: i32) -> Result<(), i32> {
        // SAFETY: `RawHandle` checks that the identifier lives.
        check(unsafe { (self.lib().rdma_listen)(self.raw(), backlog) })
    }

    pub(crate) fn connect(&self, param: Option<&Param>) -> Result<(), i32> {
        assert!(self.has_verbs(), "man rdma_connect: users must have resolved a route first");
        let mut raw = param.map(Param::raw);
        let pointer = raw.as_mut().map_or(std::ptr::null_mut(), |raw| &raw mut *raw);
        // SAFETY: `RawHandle` checks that the identifier lives. It has a device (asserted above).
        // The parameters and their data outlive the call.
        check(unsafe { (self.lib().rdma_connect)(self.raw(), pointer) })
    }

    pub(crate) fn accept(&self, param: Option<&Param>) -> Result<(), i32> {
        assert!(self.has_verbs() && (param.is_some() || self.has_qp()), "parameters name the queue pair");
        let mut raw = param.map(Param::raw);
        let pointer = raw.as_mut().map_or(std::ptr::null_mut(), |raw| &raw mut *raw);
        // SAFETY: `RawHandle` checks that the identifier lives. It has a device, and parameters or
        // a queue pair (asserted above). The parameters outlive the call.
        check(unsafe { (self.lib().rdma_accept)(self.raw(), pointer) })
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), i32> {
        let len = private_data.len().try_into().expect("private data of 255 bytes at most");
        // SAFETY: `RawHandle` checks that the identifier lives, the data live during the call.
        check(unsafe { (self.lib().rdma_reject)(self.raw(), private_data.as_ptr().cast(), len) })
    }

    /// Rejects because of the other side's options for enhanced connection establishment.
    pub(crate) fn reject_ece(&self, private_data: &[u8]) -> Result<(), i32> {
        let reject = self.lib().rdma_reject_ece().map_err(|_| libc::EOPNOTSUPP)?;
        let len = private_data.len().try_into().expect("private data of 255 bytes at most");
        // SAFETY: `RawHandle` checks that the identifier lives, the data live during the call.
        check(unsafe { reject(self.raw(), private_data.as_ptr().cast(), len) })
    }

    pub(crate) fn disconnect(&self) -> Result<(), i32> {
        // SAFETY: `RawHandle` checks that the identifier lives.
        check(unsafe { (self.lib().rdma_disconnect)(self.raw()) })
    }

    pub(crate) fn establish(&self) -> Result<(), i32> {
        let establish = self.lib().rdma_establish().map_err(|_| libc::EOPNOTSUPP)?;
        // SAFETY: `RawHandle` checks that the identifier lives.
        check(unsafe { establish(self.raw()) })
    }

    pub(crate) fn notify(&self, event: ibv_event_type) -> Result<(), i32> {
        // SAFETY: `RawHandle` checks that the identifier lives.
        check(unsafe { (self.lib().rdma_notify)(self.raw(), event) })
    }

    /// Writes an event of the program to the channel (`rdma_write_cm_event`).
    pub(crate) fn write_event(
        &self,
        event: rdma_cm_event_type,
        status: i32,
        argument: u64,
    ) -> Result<(), i32> {
        let write = self.lib().rdma_write_cm_event().map_err(|_| libc::EOPNOTSUPP)?;
        // SAFETY: `RawHandle` checks that the identifier lives.
        check(unsafe { write(self.raw(), event, status, argument) })
    }

    /// Moves the identifier to another channel, or to none.
    pub(crate) fn migrate(&self, channel: Option<&CmChannel>) -> Result<(), i32> {
        let pointer = channel.map_or(std::ptr::null_mut(), CmChannel::raw);
        // SAFETY: `RawHandle` checks that the identifier lives; so does the channel, unless it is
        // null.
        check(unsafe { (self.lib().rdma_migrate_id)(self.raw(), pointer) })?;
        *self.0.channel.lock().unwrap_or_else(PoisonError::into_inner) = channel.cloned();
        Ok(())
    }

    pub(crate) fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result<(), i32> {
        let mut value = value.to_vec();
        let (set, data) = (self.lib().rdma_set_option, value.as_mut_ptr().cast());
        // SAFETY: `RawHandle` checks that the identifier lives. The value is a local slice, passed
        // with its length.
        check(unsafe { set(self.raw(), level as i32, name as i32, data, value.len()) })
    }

    /// Joins a group as a full member.
    pub(crate) fn join(&self, group: SocketAddr, context: usize) -> Result<(), i32> {
        let mut group = SocketAddress::of(group);
        let (join, context) = (self.lib().rdma_join_multicast, std::ptr::without_provenance_mut(context));
        // SAFETY: `RawHandle` checks that the identifier lives. The address is a local variable,
        // and the library never dereferences the context.
        check(unsafe { join(self.raw(), group.as_mut_ptr(), context) })
    }

    /// Joins a group with these masks and flags.
    pub(crate) fn join_ex(
        &self,
        comp_mask: u32,
        join_flags: u32,
        group: SocketAddr,
        context: usize,
    ) -> Result<(), i32> {
        let mut group = SocketAddress::of(group);
        let mut attr = rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr: group.as_mut_ptr() };
        let (join, context) = (self.lib().rdma_join_multicast_ex, std::ptr::without_provenance_mut(context));
        // SAFETY: `RawHandle` checks that the identifier lives. Attributes and address are local
        // variables, and the library never dereferences the context.
        check(unsafe { join(self.raw(), &raw mut attr, context) })
    }

    pub(crate) fn leave(&self, group: SocketAddr) -> Result<(), i32> {
        let mut group = SocketAddress::of(group);
        // SAFETY: `RawHandle` checks that the identifier lives, the address is a local variable.
        check(unsafe { (self.lib().rdma_leave_multicast)(self.raw(), group.as_mut_ptr()) })
    }

    /// The attributes that bring its queue pair to a state, and their mask.
    pub(crate) fn qp_attr(&self, state: ibv_qp_state) -> Result<(ibv_qp_attr, u32), i32> {
        let init = self.lib().rdma_init_qp_attr().map_err(|_| libc::EOPNOTSUPP)?;
        let (mut attr, mut mask) = (ibv_qp_attr { qp_state: state, ..Default::default() }, 0);
        // SAFETY: `RawHandle` checks that the identifier lives, the results are local variables.
        check(unsafe { init(self.raw(), &raw mut attr, &raw mut mask) })?;
        Ok((attr, mask as u32))
    }

    pub(crate) fn set_local_ece(&self, mut ece: ibv_ece) -> Result<(), i32> {
        let set = self.lib().rdma_set_local_ece().map_err(|_| libc::EOPNOTSUPP)?;
        // SAFETY: `RawHandle` checks that the identifier lives, the options are local variables.
        check(unsafe { set(self.raw(), &raw mut ece) })
    }

    pub(crate) fn remote_ece(&self) -> Result<ibv_ece, i32> {
        let get = self.lib().rdma_get_remote_ece().map_err(|_| libc::EOPNOTSUPP)?;
        let mut ece = ibv_ece::default();
        // SAFETY: `RawHandle` checks that the identifier lives, the result is a local variable.
        check(unsafe { get(self.raw(), &raw mut ece) })?;
        Ok(ece)
    }

    /// The next request of a synchronous listener.
    pub(crate) fn get_request(&self) -> Result<Self, i32> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `RawHandle` checks that the identifier lives, the result is a local variable.
        check(unsafe { (self.lib().rdma_get_request)(self.raw(), &raw mut raw) })?;
        Ok(Self::of(self.0.cm, raw, None, true))
    }

    /// A copy of the event that a synchronous call left.
    pub(crate) fn event(&self) -> Option<EventCopy> {
        // SAFETY: `RawHandle` checks that the identifier lives. It has this field in every release.
        let raw = unsafe { (*self.raw()).event };
        // SAFETY: librdmacm acknowledges the event of a synchronous identifier in the next call at
        // the earliest.
        (!raw.is_null()).then(|| unsafe { event::read(self.0.cm, raw) })
    }

    /// The local address.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: `RawHandle` checks that the identifier lives; its addresses are part of it.
        unsafe { read(rdmacm::rdma_get_local_addr(self.raw())) }
    }

    /// The peer's address.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: `RawHandle` checks that the identifier lives; its addresses are part of it.
        unsafe { read(rdmacm::rdma_get_peer_addr(self.raw())) }
    }

    pub(crate) fn src_port(&self) -> u16 {
        // SAFETY: `RawHandle` checks that the identifier lives.
        u16::from_be(unsafe { (self.lib().rdma_get_src_port)(self.raw()) })
    }

    pub(crate) fn dst_port(&self) -> u16 {
        // SAFETY: `RawHandle` checks that the identifier lives.
        u16::from_be(unsafe { (self.lib().rdma_get_dst_port)(self.raw()) })
    }

    pub(crate) fn has_verbs(&self) -> bool {
        // SAFETY: `RawHandle` checks that the identifier lives. It has this field in every release.
        unsafe { !(*self.raw()).verbs.is_null() }
    }

    pub(crate) fn has_qp(&self) -> bool {
        // SAFETY: `RawHandle` checks that the identifier lives. It has this field in every release.
        unsafe { !(*self.raw()).qp.is_null() }
    }

    /// Its port space, queue pair type and device port.
    pub(crate) fn kind(&self) -> (Space, ibv_qp_type, u8) {
        // SAFETY: `RawHandle` checks that the identifier lives. It has these fields in every
        // release.
        unsafe { ((*self.raw()).ps, (*self.raw()).qp_type, (*self.raw()).port_num) }
    }

    /// The context that it was created with.
    pub(crate) fn context(&self) -> usize {
        // SAFETY: `RawHandle` checks that the identifier lives. It has this field in every release.
        let context: *mut c_void = unsafe { (*self.raw()).context };
        context.addr()
    }

    /// Whether its `channel` field names this channel.
    pub(crate) fn is_of(&self, channel: &CmChannel) -> bool {
        // SAFETY: `RawHandle` checks that the identifier lives. It has this field in every release.
        unsafe { (*self.raw()).channel == channel.raw() }
    }

    /// The GIDs of both sides.
    pub(crate) fn gids(&self) -> ([u8; 16], [u8; 16]) {
        // SAFETY: `RawHandle` checks that the identifier lives. It has these fields in every
        // release, and any bytes are a valid GID.
        unsafe {
            let route = &raw const (*self.raw()).route.addr.addr.ibaddr;
            ((*route).sgid.raw, (*route).dgid.raw)
        }
    }

    /// The first path of its route.
    pub(crate) fn path(&self) -> Option<ibv_sa_path_rec> {
        // SAFETY: `RawHandle` checks that the identifier lives. It has these fields in every
        // release.
        let (path, count) = unsafe { ((*self.raw()).route.path_rec, (*self.raw()).route.num_paths) };
        assert!(!path.is_null() || count == 0, "{count} paths at a null pointer");
        // SAFETY: the library returned at least one path (checked).
        (count > 0).then(|| unsafe { path.read() })
    }
}
