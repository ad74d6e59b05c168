//! Connection manager helpers for these tests: raw ids without a drop, because the tests examine
//! the results of destroying.

use std::ffi::c_void;
use std::net::Ipv4Addr;
use std::ptr;
use std::time::{Duration, Instant};

use rdma_mummy_sys::RdmaCm;
pub(crate) use rdma_mummy_sys::types::rdma_cm_event_type as Kind;
use rdma_mummy_sys::types::*;

use crate::kit::lib;
use crate::soak::Resources;

/// The time limit for an event that must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);
/// The longest private data of a rejection, in bytes.
const REJECTION: usize = 148;

pub(crate) fn cm() -> &'static RdmaCm {
    soft_rnic::provider().rdmacm().expect("the software device has a connection manager")
}

fn address(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    }
}

/// A call's result, or its error number.
pub(crate) fn outcome(result: i32) -> Result<(), i32> {
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) }
}

/// Expects that a call succeeds.
#[track_caller]
pub(crate) fn good(result: i32) {
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(pub(crate) *mut rdma_cm_id);

/// An event, copied and acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    pub(crate) status: i32,
    pub(crate) id: Id,
    pub(crate) data: Vec<u8>,
}

/// An event channel.
#[derive(Clone, Copy)]
pub(crate) struct CmChannel(*mut rdma_event_channel);

impl CmChannel {
    pub(crate) fn new() -> Self {
        // SAFETY: the function has no preconditions.
        let channel = unsafe { (cm().rdma_create_event_channel)() };
        assert!(!channel.is_null(), "rdma_create_event_channel: {}", std::io::Error::last_os_error());
        // Events that the library handles internally also make the descriptor readable, so taking
        // one must not block.
        // SAFETY: the channel is live.
        assert_eq!(unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        Self(channel)
    }

    pub(crate) fn destroy(self) {
        // SAFETY: the channel is live, and its ids are destroyed.
        unsafe { (cm().rdma_destroy_event_channel)(self.0) };
    }

    #[track_caller]
    pub(crate) fn id(self) -> Id {
        self.try_id().unwrap_or_else(|error| panic!("rdma_create_id: error {error}"))
    }

    pub(crate) fn try_id(self) -> Result<Id, i32> {
        let mut id = ptr::null_mut();
        // SAFETY: `new` made the channel, which lives until `destroy`; nobody uses it afterwards.
        outcome(unsafe {
            (cm().rdma_create_id)(self.0, &raw mut id, ptr::null_mut(), rdma_port_space::RDMA_PS_TCP)
        })
        .map(|()| Id(id))
    }

    /// The next event, if one comes in time.
    pub(crate) fn event(self, time: Duration) -> Option<Event> {
        let deadline = Instant::now() + time;
        let mut event = ptr::null_mut();
        // SAFETY: `new` made the channel, which lives until `destroy`; nobody uses it afterwards.
        while let Err(error) = outcome(unsafe { (cm().rdma_get_cm_event)(self.0, &raw mut event) }) {
            assert_eq!(error, libc::EAGAIN, "rdma_get_cm_event");
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            // SAFETY: `new` made the channel, which lives until `destroy`; nobody uses it
            // afterwards.
            let mut file = libc::pollfd { fd: unsafe { (*self.0).fd }, events: libc::POLLIN, revents: 0 };
            // SAFETY: the array has one descriptor.
            unsafe { libc::poll(&raw mut file, 1, left.as_millis() as i32 + 1) };
        }
        // SAFETY: the event is acknowledged once, after its contents are copied.
        unsafe {
            let rdma_cm_event { id, event: kind, status, param, .. } = *event;
            let conn = param.conn;
            let data = if conn.private_data.is_null() {
                Vec::new()
            } else {
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into())
                    .to_vec()
            };
            good((cm().rdma_ack_cm_event)(event));
            Some(Event { kind, status, id: Id(id), data })
        }
    }

    /// The next event, which must have this kind.
    #[track_caller]
    pub(crate) fn expect(self, kind: Kind) -> Event {
        let event = self.event(PATIENCE).unwrap_or_else(|| panic!("{kind:?} does not come"));
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }
}

impl Id {
    pub(crate) fn listen(self, port: u16, backlog: i32) -> u16 {
        let mut address = address(port);
        // SAFETY: the id and the address are live.
        unsafe {
            good((cm().rdma_bind_addr)(self.0, (&raw mut address).cast()));
            good((cm().rdma_listen)(self.0, backlog));
            u16::from_be((cm().rdma_get_src_port)(self.0))
        }
    }

    /// The local port and the remote port.
    pub(crate) fn ports(self) -> (u16, u16) {
        // SAFETY: an `Id` names a live id until `destroy`, and nobody uses it afterwards.
        unsafe {
            (u16::from_be((cm().rdma_get_src_port)(self.0)), u16::from_be((cm().rdma_get_dst_port)(self.0)))
        }
    }

    pub(crate) fn resolve_addr(self, port: u16) -> Result<(), i32> {
        let mut address = address(port);
        // SAFETY: the id and the address are live.
        outcome(unsafe { (cm().rdma_resolve_addr)(self.0, ptr::null_mut(), (&raw mut address).cast(), 2000) })
    }

    pub(crate) fn resolve_route(self) -> Result<(), i32> {
        // SAFETY: an `Id` names a live id until `destroy`, and nobody uses it afterwards.
        outcome(unsafe { (cm().rdma_resolve_route)(self.0, 2000) })
    }

    /// Makes a queue pair, with completion queues that the id owns.
    pub(crate) fn make_qp(self) -> Result<(), i32> {
        let mut attr = ibv_qp_init_attr {
            cap: ibv_qp_cap {
                max_send_wr: 2,
                max_recv_wr: 2,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        // SAFETY: an `Id` names a live id until `destroy`, and nobody uses it afterwards; `attr` is
        // a local.
        outcome(unsafe { (cm().rdma_create_qp)(self.0, ptr::null_mut(), &raw mut attr) })
    }

    pub(crate) fn has_qp(self) -> bool {
        // SAFETY: an `Id` names a live id until `destroy`, and nobody uses it afterwards.
        unsafe { !(*self.0).qp.is_null() }
    }

    pub(crate) fn connect(self, data: &[u8]) -> Result<(), i32> {
        let mut param = self.param(data);
        // SAFETY: the id and the parameters are live.
        outcome(unsafe { (cm().rdma_connect)(self.0, &raw mut param) })
    }

    pub(crate) fn accept(self, data: &[u8]) -> Result<(), i32> {
        let mut param = self.param(data);
        // SAFETY: the id and the parameters are live.
        outcome(unsafe { (cm().rdma_accept)(self.0, &raw mut param) })
    }

    /// `rdma_establish`, for an id whose queue pair the library does not manage.
    pub(crate) fn establish(self) -> Result<(), i32> {
        let establish = cm().rdma_establish.expect("it is there");
        // SAFETY: an `Id` names a live id until `destroy`, and nobody uses it afterwards.
        outcome(unsafe { establish(self.0) })
    }

    pub(crate) fn reject(self, data: &[u8]) -> Result<(), i32> {
        assert!(data.len() <= REJECTION);
        // SAFETY: the id and the data are live.
        outcome(unsafe { (cm().rdma_reject)(self.0, data.as_ptr().cast::<c_void>(), data.len() as u8) })
    }

    pub(crate) fn disconnect(self) -> Result<(), i32> {
        // SAFETY: an `Id` names a live id until `destroy`, and nobody uses it afterwards.
        outcome(unsafe { (cm().rdma_disconnect)(self.0) })
    }

    /// Destroys the id and its queue pair.
    pub(crate) fn destroy(self) {
        // SAFETY: the id is live, and nobody uses it afterwards.
        unsafe {
            if self.has_qp() {
                (cm().rdma_destroy_qp)(self.0);
            }
        }
        self.try_destroy().unwrap_or_else(|error| panic!("rdma_destroy_id: error {error}"));
    }

    /// Destroys the id without its queue pair. If this succeeds, nobody may use it afterwards.
    pub(crate) fn try_destroy(self) -> Result<(), i32> {
        // SAFETY: the id is live.
        outcome(unsafe { (cm().rdma_destroy_id)(self.0) })
    }

    fn param(self, data: &[u8]) -> rdma_conn_param {
        rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: data.len() as u8,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            // The id has no queue pair. A number could belong to another connection, because a
            // queue pair has one connection at a time.
            qp_num: 0,
            ..rdma_conn_param::default()
        }
    }
}

/// The resources of a process that connections might leak.
#[derive(Clone, Debug)]
pub(crate) struct CmCounts {
    resources: Resources,
    queue_pairs: u32,
    completion_queues: u32,
    regions: u32,
    contexts: u32,
    identifiers: [u32; 3],
}

impl CmCounts {
    pub(crate) fn now() -> Self {
        let statistics = soft_rnic::statistics();
        let of = |count: fn(&soft_rnic::status::Statistics) -> u32| statistics.as_ref().map_or(0, count);
        Self {
            resources: Resources::now(),
            queue_pairs: of(|all| all.queue_pairs.iter().map(|kind| kind.count).sum()),
            completion_queues: of(|all| all.completion_queues),
            regions: of(|all| all.regions.count),
            contexts: of(|all| all.devices.iter().map(|device| device.contexts).sum()),
            identifiers: statistics.as_ref().map_or([0; 3], |all| {
                let soft_rnic::status::Identifiers { count, listening, connected, .. } = all.identifiers;
                [count, listening, connected]
            }),
        }
    }

    /// Waits until no count exceeds its earlier value, because the ends of peers are noticed in the
    /// background.
    #[track_caller]
    pub(crate) fn expect_no_more(&self) {
        let objects = |counts: &Self| {
            let Self { queue_pairs, completion_queues, regions, contexts, identifiers, .. } = *counts;
            [queue_pairs, completion_queues, regions, contexts].into_iter().chain(identifiers)
        };
        let is_no_more = |now: &Self| {
            now.resources.are_no_more_than(&self.resources)
                && objects(now).zip(objects(self)).all(|(now, then)| now <= then)
        };
        let begin = Instant::now();
        while !is_no_more(&Self::now()) {
            assert!(begin.elapsed() < PATIENCE, "{:?} is left, not {self:?}", Self::now());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Makes the objects that stay after a process's first connection: contexts, and the first port
/// group.
pub(crate) fn warm_up() {
    let _ = lib();
    let channel = CmChannel::new();
    let listener = channel.id();
    let port = listener.listen(0, 1);
    let active = channel.id();
    good_way(channel, active, port);
    active.make_qp().expect("a queue pair");
    active.connect(b"").expect("it can ask");
    let passive = channel.expect(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).id;
    passive.reject(b"").expect("the request can be rejected");
    channel.expect(Kind::RDMA_CM_EVENT_REJECTED);
    [passive, active, listener].into_iter().for_each(Id::destroy);
    channel.destroy();
}

/// Resolves the address and the route.
#[track_caller]
pub(crate) fn good_way(channel: CmChannel, id: Id, port: u16) {
    id.resolve_addr(port).expect("the address belongs to this host");
    channel.expect(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    id.resolve_route().expect("its address is known");
    channel.expect(Kind::RDMA_CM_EVENT_ROUTE_RESOLVED);
}
