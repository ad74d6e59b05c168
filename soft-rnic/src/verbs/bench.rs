//! A fixture of queue pairs in one process, for tests of traffic.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::testing::{OpenedDevice, errno, table};
use crate::queue_pair::Qp;
use crate::queue_pair::c_object::qp_of;

pub(crate) const SIZE: usize = 8192;
pub(crate) const QKEY: u32 = 0x1234;

/// The capacities of the fixture's queue pairs.
pub(crate) const CAPACITIES: ibv_qp_cap =
    ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 16 };

/// A device with a protection domain, a completion queue and registered memory.
pub(crate) struct VerbsFixture {
    pub(crate) opened: OpenedDevice,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) memory: *mut [u64; SIZE / 8],
    pub(crate) mr: *mut ibv_mr,
}

pub(crate) type Attributes = (ibv_qp_attr, u32);

impl VerbsFixture {
    pub(crate) fn new(cqe: c_int) -> Self {
        let opened = OpenedDevice::new(0);
        let pd = opened.pd();
        let memory = Box::into_raw(Box::new([0; SIZE / 8]));
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: the context is open, and the memory lives until this is dropped.
        unsafe {
            let channel = (table().ibv_create_comp_channel)(opened.0);
            let cq = opened.cq(cqe, channel);
            let mr = verbs::ibv_reg_mr(table(), pd, memory.cast(), SIZE, access.0 as c_int);
            assert!(!mr.is_null());
            Self { opened, pd, channel, cq, memory, mr }
        }
    }

    pub(crate) fn at(&self, offset: usize) -> u64 {
        self.memory.expose_provenance() as u64 + offset as u64
    }

    pub(crate) fn qp(&self, qp_type: ibv_qp_type, srq: *mut ibv_srq) -> *mut ibv_qp {
        self.qp_of(self.pd, qp_type, srq)
    }

    /// Like `qp`, in another protection domain.
    pub(crate) fn qp_of(&self, pd: *mut ibv_pd, qp_type: ibv_qp_type, srq: *mut ibv_srq) -> *mut ibv_qp {
        let mut init = ibv_qp_init_attr {
            send_cq: self.cq,
            recv_cq: self.cq,
            srq,
            qp_type,
            cap: CAPACITIES,
            ..ibv_qp_init_attr::default()
        };
        // SAFETY: all objects are live.
        let qp = unsafe { (table().ibv_create_qp)(pd, &raw mut init) };
        assert!(!qp.is_null(), "errno {}", errno());
        qp
    }

    pub(crate) fn srq(&self, max_wr: u32) -> *mut ibv_srq {
        let attr = ibv_srq_attr { max_wr, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { attr, ..ibv_srq_init_attr::default() };
        // SAFETY: the domain is live.
        let srq = unsafe { (table().ibv_create_srq)(self.pd, &raw mut init) };
        assert!(!srq.is_null());
        srq
    }

    pub(crate) fn ah_attr(&self) -> ibv_ah_attr {
        let mut gid = ibv_gid::default();
        // SAFETY: the context is open.
        assert_eq!(unsafe { (table().ibv_query_gid)(self.opened.0, 1, 0, &raw mut gid) }, 0);
        let grh = ibv_global_route { dgid: gid, hop_limit: 7, ..ibv_global_route::default() };
        ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() }
    }

    pub(crate) fn init(&self, qp: *mut ibv_qp) {
        let access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        let mut attr = in_state(ibv_qp_state::IBV_QPS_INIT);
        (attr.0.port_num, attr.0.qkey, attr.0.qp_access_flags) = (1, QKEY, access.0);
        // SAFETY: the queue pair is live.
        let datagram = unsafe { (*qp).qp_type } == ibv_qp_type::IBV_QPT_UD;
        let last =
            if datagram { ibv_qp_attr_mask::IBV_QP_QKEY } else { ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS };
        let more = ibv_qp_attr_mask::IBV_QP_PORT | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX | last;
        assert_eq!(modify(qp, with(attr, more)), 0);
    }

    /// Moves a queue pair to RTR and RTS. An unconnected queue pair ignores the peer's number.
    pub(crate) fn ready(&self, qp: *mut ibv_qp, dest_qp_num: u32, change: impl Fn(&mut ibv_qp_attr)) {
        use ibv_qp_attr_mask as M;
        // SAFETY: the queue pair is live.
        let qp_type = unsafe { (*qp).qp_type };
        let (mut receive, mut send) =
            (in_state(ibv_qp_state::IBV_QPS_RTR), in_state(ibv_qp_state::IBV_QPS_RTS));
        for attr in [&mut receive.0, &mut send.0] {
            attr.ah_attr = self.ah_attr();
            attr.path_mtu = ibv_mtu::IBV_MTU_1024;
            attr.dest_qp_num = dest_qp_num;
            (attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (1, 1, 1);
            (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (1, 1, 7);
            change(attr);
        }
        let connected = M::IBV_QP_AV | M::IBV_QP_PATH_MTU | M::IBV_QP_DEST_QPN | M::IBV_QP_RQ_PSN;
        let (more, sending) = match qp_type {
            ibv_qp_type::IBV_QPT_UD => (M(0), M::IBV_QP_SQ_PSN),
            ibv_qp_type::IBV_QPT_UC => (connected, M::IBV_QP_SQ_PSN),
            ibv_qp_type::IBV_QPT_XRC_RECV => (
                connected | M::IBV_QP_MAX_DEST_RD_ATOMIC | M::IBV_QP_MIN_RNR_TIMER,
                M::IBV_QP_SQ_PSN | M::IBV_QP_TIMEOUT,
            ),
            ibv_qp_type::IBV_QPT_XRC_SEND => (
                connected,
                M::IBV_QP_SQ_PSN
                    | M::IBV_QP_TIMEOUT
                    | M::IBV_QP_RETRY_CNT
                    | M::IBV_QP_RNR_RETRY
                    | M::IBV_QP_MAX_QP_RD_ATOMIC,
            ),
            _ => (
                connected | M::IBV_QP_MAX_DEST_RD_ATOMIC | M::IBV_QP_MIN_RNR_TIMER,
                M::IBV_QP_SQ_PSN
                    | M::IBV_QP_TIMEOUT
                    | M::IBV_QP_RETRY_CNT
                    | M::IBV_QP_RNR_RETRY
                    | M::IBV_QP_MAX_QP_RD_ATOMIC,
            ),
        };
        assert_eq!(modify(qp, with(receive, more)), 0);
        assert_eq!(modify(qp, with(send, sending)), 0);
    }

    /// Two queue pairs, connected to each other.
    pub(crate) fn pair(&self, qp_type: ibv_qp_type) -> [*mut ibv_qp; 2] {
        let pair = [(); 2].map(|()| self.qp(qp_type, ptr::null_mut()));
        self.connect(pair);
        pair
    }

    pub(crate) fn connect(&self, [one, other]: [*mut ibv_qp; 2]) {
        self.init(one);
        self.init(other);
        self.ready(one, number(other), |_| {});
        self.ready(other, number(one), |_| {});
    }

    pub(crate) fn sge(&self, offset: usize, length: u32) -> ibv_sge {
        // SAFETY: the region is live.
        ibv_sge { addr: self.at(offset), length, lkey: unsafe { (*self.mr).lkey } }
    }

    /// A word of the registered memory.
    pub(crate) fn get(&self, word: usize) -> u64 {
        assert!(word < SIZE / 8);
        // SAFETY: within the memory, and nobody writes at the moment.
        unsafe { self.memory.cast::<u64>().add(word).read() }
    }

    pub(crate) fn set(&self, word: usize, value: u64) {
        assert!(word < SIZE / 8);
        // SAFETY: within the memory, and nobody reads or writes at the moment.
        unsafe { self.memory.cast::<u64>().add(word).write(value) };
    }

    /// Deregisters the region and registers its memory again, under another key.
    pub(crate) fn register_again(&mut self) {
        // SAFETY: the region is live, and no request uses its key any more.
        unsafe {
            let old = (*self.mr).lkey;
            assert_eq!((table().ibv_dereg_mr)(self.mr), 0);
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
            self.mr = verbs::ibv_reg_mr(table(), self.pd, self.memory.cast(), SIZE, access.0 as c_int);
            assert!(!self.mr.is_null());
            assert_ne!((*self.mr).lkey, old);
        }
    }

    pub(crate) fn receive(&self, qp: *mut ibv_qp, wr_id: u64, length: u32) -> c_int {
        self.receive_list(qp, wr_id, &mut [self.sge(SIZE / 2, length)])
    }

    pub(crate) fn receive_list(&self, qp: *mut ibv_qp, wr_id: u64, list: &mut [ibv_sge]) -> c_int {
        let num_sge = list.len() as c_int;
        let mut wr = ibv_recv_wr { wr_id, sg_list: list.as_mut_ptr(), num_sge, ..ibv_recv_wr::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live and the request valid.
        unsafe { verbs::ibv_post_recv(qp, &raw mut wr, &raw mut bad) }
    }

    pub(crate) fn receive_shared(&self, srq: *mut ibv_srq, wr_id: u64) -> c_int {
        let mut sge = self.sge(SIZE / 2, 64);
        let mut wr = ibv_recv_wr { wr_id, sg_list: &raw mut sge, num_sge: 1, ..ibv_recv_wr::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is live and the request valid.
        unsafe { verbs::ibv_post_srq_recv(srq, &raw mut wr, &raw mut bad) }
    }

    /// Posts a signaled request.
    pub(crate) fn send(
        &self,
        qp: *mut ibv_qp,
        wr_id: u64,
        length: u32,
        change: impl Fn(&mut ibv_send_wr),
    ) -> c_int {
        let mut sge = self.sge(0, length);
        let mut wr = ibv_send_wr {
            wr_id,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..ibv_send_wr::default()
        };
        change(&mut wr);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live and the request valid.
        unsafe { verbs::ibv_post_send(qp, &raw mut wr, &raw mut bad) }
    }

    pub(crate) fn poll(&self) -> Vec<ibv_wc> {
        let mut wc = [ibv_wc::default(); 32];
        // SAFETY: the queue is live, and the array has room for 32 completions.
        let count = unsafe { verbs::ibv_poll_cq(self.cq, 32, wc.as_mut_ptr()) };
        wc[..count as usize].to_vec()
    }

    /// Polls once, and returns the `wr_id` and status of each completion.
    pub(crate) fn results(&self) -> Vec<(u64, ibv_wc_status)> {
        self.poll().into_iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Polls until `count` completions have arrived, at most 20 seconds.
    pub(crate) fn wait_for(&self, count: usize) -> Vec<(u64, ibv_wc_status)> {
        let start = std::time::Instant::now();
        let mut results = Vec::new();
        while results.len() < count && start.elapsed().as_secs() < 20 {
            results.extend(self.results());
            std::thread::yield_now();
        }
        results
    }

    /// Takes and acknowledges an event of the completion queue. Returns whether one waited.
    pub(crate) fn fired(&self) -> bool {
        // SAFETY: the channel and the queue are live.
        unsafe {
            if !waits((*self.channel).fd) {
                return false;
            }
            let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
            let taken = (table().ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut cookie) == 0;
            assert!(taken || cfg!(miri), "the event has gone");
            if !taken {
                return false;
            }
            (table().ibv_ack_cq_events)(cq, 1);
            true
        }
    }

    /// Takes and acknowledges the next asynchronous event.
    pub(crate) fn event(&self) -> Option<ibv_event_type> {
        let mut event = ibv_async_event::default();
        // SAFETY: the context is open.
        unsafe {
            if !waits((*self.opened.0).async_fd) {
                return None;
            }
            let taken = (table().ibv_get_async_event)(self.opened.0, &raw mut event) == 0;
            assert!(taken || cfg!(miri), "the event has gone");
            if !taken {
                return None;
            }
            (table().ibv_ack_async_event)(&raw mut event);
        }
        Some(event.event_type)
    }

    /// The next asynchronous event, at most 20 seconds later. If the service thread raises it, it
    /// comes a moment after its completions.
    pub(crate) fn coming_event(&self) -> Option<ibv_event_type> {
        let start = std::time::Instant::now();
        loop {
            let event = self.event();
            if event.is_some() || start.elapsed().as_secs() >= 20 {
                return event;
            }
            std::thread::yield_now();
        }
    }
}

/// Whether an event waits. Under Miri no descriptor exists, and taking an event does not wait.
pub(crate) fn waits(fd: c_int) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one descriptor.
    cfg!(miri) || unsafe { libc::poll(&raw mut poll, 1, 0) } == 1
}

impl Drop for VerbsFixture {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: nothing uses the objects any more.
        unsafe {
            assert_eq!((table().ibv_dereg_mr)(self.mr), 0);
            assert_eq!((table().ibv_destroy_cq)(self.cq), 0);
            assert_eq!((table().ibv_destroy_comp_channel)(self.channel), 0);
            assert_eq!((table().ibv_dealloc_pd)(self.pd), 0);
            drop(Box::from_raw(self.memory));
        }
    }
}

pub(crate) fn in_state(state: ibv_qp_state) -> Attributes {
    let attr = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
    (attr, ibv_qp_attr_mask::IBV_QP_STATE.0)
}

pub(crate) fn with((attr, mask): Attributes, more: ibv_qp_attr_mask) -> Attributes {
    (attr, mask | more.0)
}

pub(crate) fn modify(qp: *mut ibv_qp, (mut attr, mask): Attributes) -> c_int {
    // SAFETY: the queue pair is live.
    unsafe { (table().ibv_modify_qp)(qp, &raw mut attr, mask as c_int) }
}

pub(crate) fn number(qp: *mut ibv_qp) -> u32 {
    // SAFETY: the queue pair is live.
    unsafe { (*qp).qp_num }
}

pub(crate) fn destroy(qp: *mut ibv_qp) {
    // SAFETY: the queue pair is live, and not used afterwards.
    assert_eq!(unsafe { (table().ibv_destroy_qp)(qp) }, 0);
}

/// The private state of a queue pair.
pub(crate) fn inner<'a>(qp: *mut ibv_qp) -> &'a Arc<Qp> {
    // SAFETY: the queue pair is live: tests destroy it at their end.
    unsafe { qp_of(qp) }
}

pub(crate) const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
pub(crate) const FLUSHED: ibv_wc_status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
