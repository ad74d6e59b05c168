//! Two connected queue pairs in this process, over the provider's table, and the operations of the
//! tests on them.
//!
//! # Safety
//!
//! All unsafe code of the test is here. A [`FaultEndpoint`] owns its objects from its creation to
//! its drop, and nobody else destroys them. Requests are built on the stack and posted by value.
//! The device accesses only `memory`, which outlives the objects.

use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Provider, Verbs, verbs};
use soft_rnic::{Config, Mode, faults};

/// The time limit for a wait.
const PATIENCE: Duration = Duration::from_secs(10);
/// Set in a run that defers the execution of requests after posting.
pub(crate) const DEFERRED: &str = "SOFT_RNIC_FAULTS_TEST_DEFERRED";
/// The size of an endpoint's memory in bytes.
pub(crate) const ROOM: usize = 1 << 16;

/// The verbs table with the test devices; in a child process the environment configures it.
pub(crate) fn table() -> &'static Verbs {
    provider().verbs()
}

/// The provider: the verbs table with the connection manager.
pub(crate) fn provider() -> Provider {
    if std::env::var_os(super::children::MARK).is_some() {
        return soft_rnic::provider();
    }
    let mut config = Config::default();
    (config.devices, config.ports) = (2, 2);
    config.time_scale = 0.01;
    if std::env::var_os(DEFERRED).is_some() {
        config.mode = Mode::Deferred;
    }
    config.fabric = format!("faults-{}", std::process::id());
    soft_rnic::provider_with(config).expect("the devices can be configured")
}

/// Serializes the tests, because rules apply to the whole process. Each test begins and ends
/// without rules.
pub(crate) struct RulesLock(#[allow(dead_code)] MutexGuard<'static, ()>);

pub(crate) fn turn() -> RulesLock {
    static TURN: Mutex<()> = Mutex::new(());
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    faults::clear();
    RulesLock(guard)
}

impl Drop for RulesLock {
    fn drop(&mut self) {
        faults::clear();
    }
}

/// Puts rules in force.
pub(crate) fn rules(text: &str) {
    faults::set(faults::parse(text).unwrap(), 1).unwrap();
}

/// The number of times that each rule has acted.
pub(crate) fn fired() -> Vec<u64> {
    faults::report().iter().map(|report| report.fired).collect()
}

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Calls `ask` until it returns a value.
pub(crate) fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "nothing happened for {PATIENCE:?}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Repeats a check with longer and longer times until it sees the state that lasts for that time.
/// On a busy machine the shortest may not suffice.
pub(crate) fn seen_while_it_lasts(mut is_seen: impl FnMut(Duration) -> bool) {
    let seen = (0..5).any(|power| is_seen(Duration::from_millis(100 << (2 * power))));
    assert!(seen, "the state was not seen, although it lasted for 25 seconds");
}

/// Opens a device; the error is `errno`.
pub(crate) fn open(device: usize) -> Result<*mut ibv_context, i32> {
    let lib = table();
    let mut count = 0;
    // SAFETY: the list has `count` devices, and is freed once.
    unsafe {
        let list = verbs::ibv_get_device_list(lib, &raw mut count);
        assert!(device < count as usize);
        let context = (lib.ibv_open_device)(*list.add(device));
        let error = errno();
        (lib.ibv_free_device_list)(list);
        if context.is_null() { Err(error) } else { Ok(context) }
    }
}

/// The next asynchronous event of an open context; waits for it.
pub(crate) fn event_of(context: *mut ibv_context) -> ibv_event_type {
    let mut event = ibv_async_event { element: Default::default(), event_type: ibv_event_type(0) };
    // SAFETY: the context is open, and owns the descriptor.
    unsafe {
        let mut poll = libc::pollfd { fd: (*context).async_fd, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&raw mut poll, 1, PATIENCE.as_millis() as i32), 1, "no event");
        assert_eq!((table().ibv_get_async_event)(context, &raw mut event), 0);
        (table().ibv_ack_async_event)(&raw mut event);
    }
    event.event_type
}

/// One end of a connection, with its queues and memory.
pub(crate) struct FaultEndpoint {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) mr: *mut ibv_mr,
    /// For an XRC target: its domain, and the number of its shared receive queue.
    xrcd: *mut ibv_xrcd,
    srqn: u32,
    /// For an XRC initiator: the number of the shared receive queue that requests name.
    to_queue: Cell<u32>,
    memory: Box<[UnsafeCell<u8>]>,
    /// The device has failed, so no object can be destroyed.
    pub(crate) lost: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct EndpointOptions {
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) device: usize,
    pub(crate) shared: bool,
    pub(crate) timeout: u8,
    pub(crate) rnr_retry: u8,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self { qp_type: ibv_qp_type::IBV_QPT_RC, device: 0, shared: false, timeout: 10, rnr_retry: 3 }
    }
}

impl FaultEndpoint {
    pub(crate) fn new(options: EndpointOptions) -> Self {
        let lib = table();
        let context = open(options.device).unwrap();
        let memory: Box<[_]> = (0..ROOM).map(|_| UnsafeCell::new(0)).collect();
        // SAFETY: each object is made from live ones.
        unsafe {
            let pd = (lib.ibv_alloc_pd)(context);
            let cq = (lib.ibv_create_cq)(context, 256, ptr::null_mut(), ptr::null_mut(), 0);
            let xrc = (options.qp_type == ibv_qp_type::IBV_QPT_XRC_RECV).then(|| xrc_queue(context, pd, cq));
            let (xrcd, xrc_srq, srqn) = xrc.unwrap_or((ptr::null_mut(), ptr::null_mut(), 0));
            let srq = if options.shared {
                let attr = ibv_srq_attr { max_wr: 16, max_sge: 1, ..Default::default() };
                let mut init = ibv_srq_init_attr { attr, ..Default::default() };
                (lib.ibv_create_srq)(pd, &raw mut init)
            } else {
                xrc_srq
            };
            let cap = ibv_qp_cap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 1,
                max_recv_sge: 1,
                ..Default::default()
            };
            let mut init = ibv_qp_init_attr {
                send_cq: cq,
                recv_cq: cq,
                srq,
                cap,
                qp_type: options.qp_type,
                sq_sig_all: 1,
                ..Default::default()
            };
            let qp = if xrc.is_some() {
                xrc_target(context, xrcd)
            } else {
                (lib.ibv_create_qp)(pd, &raw mut init)
            };
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_READ
                | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
            let mr = (lib.ibv_reg_mr)(pd, memory.as_ptr().cast_mut().cast(), ROOM, access.0 as i32);
            for pointer in [pd.cast::<u8>(), cq.cast(), qp.cast(), mr.cast()] {
                assert!(!pointer.is_null(), "errno {}", errno());
            }
            let to_queue = Cell::new(0);
            Self { context, pd, cq, srq, qp, mr, xrcd, srqn, to_queue, memory, lost: false }
        }
    }

    pub(crate) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.qp).qp_num }
    }

    pub(crate) fn modify(&self, attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> i32 {
        let mut attr = attr;
        // SAFETY: the queue pair is live.
        unsafe { (table().ibv_modify_qp)(self.qp, &raw mut attr, mask.0 as i32) }
    }

    /// Connects the queue pair to another one of this process.
    fn connect(&self, to: &Self, options: EndpointOptions) {
        self.to_queue.set(to.srqn);
        self.connect_to(to.qpn(), options);
    }

    /// Connects the queue pair to one with this number, on the same device, in any process.
    pub(crate) fn connect_to(&self, qpn: u32, options: EndpointOptions) {
        use ibv_qp_attr_mask as M;
        let reliable = options.qp_type != ibv_qp_type::IBV_QPT_UC;
        let responds = reliable && options.qp_type != ibv_qp_type::IBV_QPT_XRC_SEND;
        let requests = reliable && options.qp_type != ibv_qp_type::IBV_QPT_XRC_RECV;
        let attr = |qp_state| ibv_qp_attr { qp_state, ..Default::default() };
        let mut init = attr(ibv_qp_state::IBV_QPS_INIT);
        init.port_num = 1;
        init.qp_access_flags = if reliable { 0xf } else { 3 };
        assert_eq!(
            self.modify(
                init,
                M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | M::IBV_QP_ACCESS_FLAGS
            ),
            0
        );
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open.
        assert_eq!(unsafe { (table().ibv_query_gid)(self.context, 1, 0, &raw mut gid) }, 0);
        let mut rtr = attr(ibv_qp_state::IBV_QPS_RTR);
        rtr.ah_attr = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
        rtr.ah_attr.grh.dgid = gid;
        (rtr.path_mtu, rtr.dest_qp_num) = (ibv_mtu::IBV_MTU_1024, qpn);
        (rtr.max_dest_rd_atomic, rtr.min_rnr_timer) = (4, 12);
        let mut mask =
            M::IBV_QP_STATE | M::IBV_QP_AV | M::IBV_QP_PATH_MTU | M::IBV_QP_DEST_QPN | M::IBV_QP_RQ_PSN;
        if responds {
            mask = mask | M::IBV_QP_MAX_DEST_RD_ATOMIC | M::IBV_QP_MIN_RNR_TIMER;
        }
        assert_eq!(self.modify(rtr, mask), 0);
        let mut rts = attr(ibv_qp_state::IBV_QPS_RTS);
        (rts.timeout, rts.retry_cnt, rts.max_rd_atomic) = (options.timeout, 3, 4);
        rts.rnr_retry = options.rnr_retry;
        let mut mask = M::IBV_QP_STATE | M::IBV_QP_SQ_PSN;
        if reliable {
            mask |= M::IBV_QP_TIMEOUT;
        }
        if requests {
            mask = mask | M::IBV_QP_RETRY_CNT | M::IBV_QP_RNR_RETRY | M::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        assert_eq!(self.modify(rts, mask), 0);
    }

    /// The start of the memory.
    fn base(&self) -> *mut u8 {
        self.memory.as_ptr().cast_mut().cast()
    }

    pub(crate) fn write_bytes(&self, bytes: &[u8]) {
        assert!(bytes.len() <= ROOM);
        // SAFETY: the bytes lie within the memory, which has no references except through cells.
        unsafe { self.base().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn bytes(&self, length: usize) -> Vec<u8> {
        assert!(length <= ROOM);
        // SAFETY: the bytes lie within the memory, which has no references except through cells. A
        // device may write at the same time, so each byte is read volatile.
        (0..length).map(|at| unsafe { self.base().add(at).read_volatile() }).collect()
    }

    fn entry(&self, length: usize) -> ibv_sge {
        // SAFETY: the region is live.
        ibv_sge { addr: self.base().addr() as u64, length: length as u32, lkey: unsafe { (*self.mr).lkey } }
    }

    /// Posts a request for the first `length` bytes of both memories; the error is `errno`.
    pub(crate) fn post(
        &self,
        to: &Self,
        wr_id: u64,
        opcode: ibv_wr_opcode,
        length: usize,
    ) -> Result<(), i32> {
        self.post_to(to.place(), wr_id, opcode, length)
    }

    /// The address and the remote key of the memory.
    pub(crate) fn place(&self) -> (u64, u32) {
        // SAFETY: the region is live.
        (self.base().addr() as u64, unsafe { (*self.mr).rkey })
    }

    /// Posts a request between the start of this memory and a remote address; the error is `errno`.
    pub(crate) fn post_to(
        &self,
        place: (u64, u32),
        wr_id: u64,
        opcode: ibv_wr_opcode,
        length: usize,
    ) -> Result<(), i32> {
        let (remote_addr, rkey) = place;
        let mut entry = self.entry(length);
        let mut wr = ibv_send_wr { wr_id, sg_list: &raw mut entry, num_sge: 1, opcode, ..Default::default() };
        if opcode.0 >= ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP.0 {
            wr.wr.atomic.remote_addr = remote_addr;
            wr.wr.atomic.rkey = rkey;
            wr.wr.atomic.compare_add = 1;
        } else {
            wr.wr.rdma.remote_addr = remote_addr;
            wr.wr.rdma.rkey = rkey;
        }
        wr.qp_type.xrc.remote_srqn = self.to_queue.get();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, and the list valid.
        match unsafe { verbs::ibv_post_send(self.qp, &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            error => Err(error),
        }
    }

    pub(crate) fn send(&self, to: &Self, wr_id: u64, length: usize) {
        self.post(to, wr_id, ibv_wr_opcode::IBV_WR_SEND, length).unwrap();
    }

    pub(crate) fn write(&self, to: &Self, wr_id: u64, length: usize) {
        self.post(to, wr_id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, length).unwrap();
    }

    pub(crate) fn receive(&self, wr_id: u64) -> Result<(), i32> {
        let mut entry = self.entry(ROOM);
        let mut wr = ibv_recv_wr { wr_id, sg_list: &raw mut entry, num_sge: 1, ..Default::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is live, and the list valid.
        let error = unsafe {
            if self.srq.is_null() {
                verbs::ibv_post_recv(self.qp, &raw mut wr, &raw mut bad)
            } else {
                verbs::ibv_post_srq_recv(self.srq, &raw mut wr, &raw mut bad)
            }
        };
        if error == 0 { Ok(()) } else { Err(error) }
    }

    /// Polls for a completion: its number and status; the error is `errno`.
    pub(crate) fn poll(&self) -> Result<Option<(u64, ibv_wc_status)>, i32> {
        let mut wc = ibv_wc::default();
        // SAFETY: the queue is live, and the array has one entry.
        match unsafe { verbs::ibv_poll_cq(self.cq, 1, &raw mut wc) } {
            0 => Ok(None),
            1 => Ok(Some((wc.wr_id, wc.status))),
            _ => Err(errno()),
        }
    }

    /// The number and status of the next completion; waits for it.
    pub(crate) fn next(&self) -> (u64, ibv_wc_status) {
        until(|| self.poll().unwrap())
    }

    /// The next asynchronous event, acknowledged.
    pub(crate) fn event(&self) -> ibv_event_type {
        event_of(self.context)
    }

    /// The next asynchronous event, acknowledged, if there is one.
    pub(crate) fn event_if_any(&self) -> Option<ibv_event_type> {
        // SAFETY: the context is open, and owns the descriptor.
        let ready = unsafe {
            let mut poll = libc::pollfd { fd: (*self.context).async_fd, events: libc::POLLIN, revents: 0 };
            libc::poll(&raw mut poll, 1, 0)
        };
        (ready == 1).then(|| self.event())
    }

    /// Moves the queue pair to the error state; returns the result.
    pub(crate) fn fail(&self) -> i32 {
        let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        self.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE)
    }

    pub(crate) fn port(&self) -> ibv_port_attr {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open.
        assert_eq!(unsafe { verbs::ibv_query_port(table(), self.context, 1, &raw mut attr) }, 0);
        attr
    }

    pub(crate) fn device(&self) -> ibv_device_attr {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the context is open.
        assert_eq!(unsafe { (table().ibv_query_device)(self.context, &raw mut attr) }, 0);
        attr
    }

    pub(crate) fn state(&self) -> ibv_qp_state {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: the queue pair is live.
        assert_eq!(unsafe { (table().ibv_query_qp)(self.qp, &raw mut attr, 1, &raw mut init) }, 0);
        attr.qp_state
    }

    /// Makes an XRC call that should fail. Returns its `errno`, or 0 if it succeeded; the object
    /// that it made then leaks.
    pub(crate) fn call_of_xrc(&self, call: &str) -> i32 {
        use ibv_qp_open_attr_mask as M;
        let mut open = ibv_qp_open_attr {
            comp_mask: M::IBV_QP_OPEN_ATTR_NUM.0 | M::IBV_QP_OPEN_ATTR_XRCD.0 | M::IBV_QP_OPEN_ATTR_TYPE.0,
            qp_num: self.qpn(),
            xrcd: self.xrcd,
            qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
            ..Default::default()
        };
        // SAFETY: `self` owns the objects, which live until `destroy`; a test calls this before it.
        let failed = unsafe {
            match call {
                "open_xrcd" => open_domain(self.context).is_null(),
                "create_srq" => make_queue(self.context, self.pd, self.cq, self.xrcd).is_null(),
                "create_qp" => xrc_target(self.context, self.xrcd).is_null(),
                "open_qp" => verbs::ibv_open_qp(self.context, &raw mut open).is_null(),
                "close_xrcd" => verbs::ibv_close_xrcd(self.xrcd) != 0,
                _ => panic!("{call} is not an XRC call"),
            }
        };
        if failed { errno() } else { 0 }
    }

    /// Destroys all objects; returns each result.
    pub(crate) fn destroy(&self) -> Vec<i32> {
        let lib = table();
        // SAFETY: the order respects the dependencies; each object is destroyed once, or again if
        // the first call failed.
        unsafe {
            let mut results = vec![(lib.ibv_destroy_qp)(self.qp)];
            if !self.srq.is_null() {
                results.push((lib.ibv_destroy_srq)(self.srq));
            }
            if !self.xrcd.is_null() {
                results.push(verbs::ibv_close_xrcd(self.xrcd));
            }
            results.extend([
                (lib.ibv_dereg_mr)(self.mr),
                (lib.ibv_destroy_cq)(self.cq),
                (lib.ibv_dealloc_pd)(self.pd),
            ]);
            results
        }
    }
}

/// Makes a domain without a file, and a shared receive queue in it; returns both and the queue's
/// number.
///
/// # Safety
///
/// All objects are live, and belong to the context.
unsafe fn xrc_queue(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
) -> (*mut ibv_xrcd, *mut ibv_srq, u32) {
    // SAFETY: the caller guarantees that the objects are live and belong to the context; the new
    // objects are live, too.
    unsafe {
        let xrcd = open_domain(context);
        assert!(!xrcd.is_null(), "errno {}", errno());
        let srq = make_queue(context, pd, cq, xrcd);
        assert!(!srq.is_null(), "errno {}", errno());
        let mut number = 0;
        assert_eq!(verbs::ibv_get_srq_num(srq, &raw mut number), 0);
        (xrcd, srq, number)
    }
}

/// # Safety
///
/// The context is live.
unsafe fn open_domain(context: *mut ibv_context) -> *mut ibv_xrcd {
    let mask = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0
        | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0;
    let mut open = ibv_xrcd_init_attr { comp_mask: mask, fd: -1, oflags: libc::O_CREAT };
    // SAFETY: the caller guarantees that the context is live.
    unsafe { verbs::ibv_open_xrcd(context, &raw mut open) }
}

/// # Safety
///
/// All objects are live, and belong to the context.
unsafe fn make_queue(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    xrcd: *mut ibv_xrcd,
) -> *mut ibv_srq {
    use ibv_srq_init_attr_mask as M;
    let parts = M::IBV_SRQ_INIT_ATTR_PD.0 | M::IBV_SRQ_INIT_ATTR_XRCD.0 | M::IBV_SRQ_INIT_ATTR_CQ.0;
    let mut init = ibv_srq_init_attr_ex {
        attr: ibv_srq_attr { max_wr: 16, max_sge: 1, srq_limit: 0 },
        comp_mask: M::IBV_SRQ_INIT_ATTR_TYPE.0 | parts,
        srq_type: ibv_srq_type::IBV_SRQT_XRC,
        pd,
        xrcd,
        cq,
        ..Default::default()
    };
    // SAFETY: the caller guarantees that all objects are live and belong to the context.
    unsafe { verbs::ibv_create_srq_ex(table(), context, &raw mut init) }
}

/// # Safety
///
/// Both objects are live.
unsafe fn xrc_target(context: *mut ibv_context, xrcd: *mut ibv_xrcd) -> *mut ibv_qp {
    let mut init = ibv_qp_init_attr_ex {
        qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
        comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0,
        xrcd,
        ..Default::default()
    };
    // SAFETY: the caller guarantees that both objects are live.
    unsafe { verbs::ibv_create_qp_ex(table(), context, &raw mut init) }
}

impl Drop for FaultEndpoint {
    fn drop(&mut self) {
        faults::clear();
        if !self.lost {
            let results = self.destroy();
            if !std::thread::panicking() {
                assert!(results.iter().all(|result| *result == 0), "{results:?}");
            }
        } else {
            // Leak the memory, because the device may still write to it.
            std::mem::forget(std::mem::take(&mut self.memory));
        }
        // SAFETY: the context is open, and is closed once.
        unsafe { (table().ibv_close_device)(self.context) };
    }
}

/// Two connected endpoints.
pub(crate) fn pair_with(options: EndpointOptions) -> (FaultEndpoint, FaultEndpoint) {
    let (a, b) = (FaultEndpoint::new(options), FaultEndpoint::new(options));
    a.connect(&b, options);
    b.connect(&a, options);
    (a, b)
}

pub(crate) fn pair() -> (FaultEndpoint, FaultEndpoint) {
    pair_with(EndpointOptions::default())
}

/// An XRC initiator, and the endpoint with its target and shared receive queue.
pub(crate) fn xrc_pair() -> (FaultEndpoint, FaultEndpoint) {
    let [from, to] = [ibv_qp_type::IBV_QPT_XRC_SEND, ibv_qp_type::IBV_QPT_XRC_RECV]
        .map(|qp_type| EndpointOptions { qp_type, ..EndpointOptions::default() });
    let (a, b) = (FaultEndpoint::new(from), FaultEndpoint::new(to));
    a.connect(&b, from);
    b.connect(&a, to);
    (a, b)
}
