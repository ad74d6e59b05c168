//! Verbs helpers for these tests: raw objects without a drop, because the tests examine the result
//! and the time of destroying.

use std::ptr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Verbs, verbs};

pub(crate) const ALL: i32 = (ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0
    | ibv_access_flags::IBV_ACCESS_MW_BIND.0) as i32;
pub(crate) const QKEY: u32 = 0x1111;
const PAGE: usize = 4096;
/// The length of the file of [`TestMemory::folded`].
const FOLD: usize = 16 << 20;

pub(crate) fn lib() -> &'static Verbs {
    soft_rnic::provider().verbs()
}

/// Calls `look` until it returns a value; panics if it takes too long.
pub(crate) fn until<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < patience, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// An open context with a protection domain.
#[derive(Clone, Copy)]
pub(crate) struct TestDevice {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
}

impl TestDevice {
    pub(crate) fn open() -> Self {
        Self::try_open().expect("the device opens")
    }

    pub(crate) fn try_open() -> Result<Self, std::io::Error> {
        let error = std::io::Error::last_os_error;
        let mut count = 0;
        // SAFETY: the list is used before it is freed, and the context before it is closed.
        unsafe {
            let list = (lib().ibv_get_device_list)(&raw mut count);
            if list.is_null() {
                return Err(error());
            }
            let context = (lib().ibv_open_device)(*list);
            let failed = error();
            (lib().ibv_free_device_list)(list);
            if context.is_null() {
                return Err(failed);
            }
            let pd = (lib().ibv_alloc_pd)(context);
            if pd.is_null() { Err(error()) } else { Ok(Self { context, pd }) }
        }
    }

    /// Closes the domain and the context, which must have no objects left.
    pub(crate) fn close(self) {
        // SAFETY: both are live, and have no objects left.
        unsafe {
            assert_eq!((lib().ibv_dealloc_pd)(self.pd), 0, "ibv_dealloc_pd");
            assert_eq!((lib().ibv_close_device)(self.context), 0, "ibv_close_device");
        }
    }

    pub(crate) fn gid(self) -> ibv_gid {
        let mut gid = ibv_gid::default();
        // SAFETY: the context is live.
        assert_eq!(unsafe { (lib().ibv_query_gid)(self.context, 1, 0, &raw mut gid) }, 0);
        gid
    }

    pub(crate) fn gid_bytes(self) -> [u8; 16] {
        // SAFETY: a GID is sixteen bytes, whichever field of the union was written.
        unsafe { self.gid().raw }
    }

    pub(crate) fn channel(self) -> *mut ibv_comp_channel {
        // SAFETY: the context is live.
        let channel = unsafe { (lib().ibv_create_comp_channel)(self.context) };
        assert!(!channel.is_null(), "ibv_create_comp_channel: {}", std::io::Error::last_os_error());
        channel
    }

    pub(crate) fn cq(self, entries: i32, channel: *mut ibv_comp_channel) -> TestCq {
        // SAFETY: the context and the channel are live.
        let cq = unsafe { (lib().ibv_create_cq)(self.context, entries, ptr::null_mut(), channel, 0) };
        assert!(!cq.is_null(), "ibv_create_cq: {}", std::io::Error::last_os_error());
        TestCq(cq)
    }

    pub(crate) fn srq(self, receives: u32) -> *mut ibv_srq {
        let attr = ibv_srq_attr { max_wr: receives, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { attr, ..Default::default() };
        // SAFETY: the domain is live.
        let srq = unsafe { (lib().ibv_create_srq)(self.pd, &raw mut init) };
        assert!(!srq.is_null(), "ibv_create_srq: {}", std::io::Error::last_os_error());
        srq
    }

    pub(crate) fn qp(self, qp_type: ibv_qp_type, cq: TestCq, srq: *mut ibv_srq, depth: u32) -> TestQp {
        self.try_qp(qp_type, cq, srq, depth).expect("ibv_create_qp")
    }

    pub(crate) fn try_qp(
        self,
        qp_type: ibv_qp_type,
        cq: TestCq,
        srq: *mut ibv_srq,
        depth: u32,
    ) -> Result<TestQp, std::io::Error> {
        let mut init = ibv_qp_init_attr {
            send_cq: cq.0,
            recv_cq: cq.0,
            srq,
            qp_type,
            sq_sig_all: 1,
            cap: ibv_qp_cap {
                max_send_wr: depth,
                max_recv_wr: depth,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            ..Default::default()
        };
        // SAFETY: the domain and the queues are live.
        let qp = unsafe { (lib().ibv_create_qp)(self.pd, &raw mut init) };
        if qp.is_null() { Err(std::io::Error::last_os_error()) } else { Ok(TestQp(qp)) }
    }
}

/// A completion queue.
#[derive(Clone, Copy)]
pub(crate) struct TestCq(pub(crate) *mut ibv_cq);

impl TestCq {
    pub(crate) fn poll(self) -> Option<ibv_wc> {
        let mut wc = ibv_wc::default();
        // SAFETY: the queue is live.
        let count = unsafe { verbs::ibv_poll_cq(self.0, 1, &raw mut wc) };
        assert!(count >= 0, "ibv_poll_cq: {count}");
        (count == 1).then_some(wc)
    }

    pub(crate) fn one(self, what: &str, patience: Duration) -> ibv_wc {
        until(what, patience, || self.poll())
    }

    pub(crate) fn arm(self, solicited_only: bool) {
        // SAFETY: the queue is live.
        assert_eq!(unsafe { verbs::ibv_req_notify_cq(self.0, solicited_only.into()) }, 0);
    }

    pub(crate) fn destroy(self) {
        // SAFETY: the queue is live, and no queue pair uses it.
        assert_eq!(unsafe { (lib().ibv_destroy_cq)(self.0) }, 0, "ibv_destroy_cq");
    }
}

/// Waits for an event of a channel, and acknowledges it; returns `false` if none comes in time.
pub(crate) fn event(channel: *mut ibv_comp_channel, patience: Duration) -> bool {
    // SAFETY: the channel is live, and the acknowledged queue belongs to it.
    unsafe {
        let mut file = libc::pollfd { fd: (*channel).fd, events: libc::POLLIN, revents: 0 };
        if libc::poll(&raw mut file, 1, patience.as_millis() as i32) != 1 {
            return false;
        }
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!((lib().ibv_get_cq_event)(channel, &raw mut cq, &raw mut context), 0);
        (lib().ibv_ack_cq_events)(cq, 1);
        true
    }
}

/// The address of a side: its queue pair, and its memory with the remote key.
#[derive(Clone, Copy, Default)]
pub(crate) struct QpAddress {
    pub(crate) qpn: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

impl std::fmt::Display for QpAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}/{}", self.qpn, u128::from_be_bytes(self.gid), self.addr, self.rkey)
    }
}

impl FromStr for QpAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<u128> = text.split('/').filter_map(|field| field.parse().ok()).collect();
        let [qpn, gid, addr, rkey] = fields[..] else { return Err(format!("{text:?} is not an address")) };
        Ok(Self { qpn: qpn as u32, gid: gid.to_be_bytes(), addr: addr as u64, rkey: rkey as u32 })
    }
}

/// The timeout exponent and the retry count of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
}

impl Timing {
    /// The total time: all attempts.
    pub(crate) fn total(self) -> Duration {
        Duration::from_nanos(4096 << self.timeout) * (u32::from(self.retry_cnt) + 1)
    }
}

/// A queue pair.
#[derive(Clone, Copy)]
pub(crate) struct TestQp(pub(crate) *mut ibv_qp);

impl TestQp {
    pub(crate) fn number(self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.0).qp_num }
    }

    fn is_datagram(self) -> bool {
        // SAFETY: the queue pair is live.
        unsafe { (*self.0).qp_type == ibv_qp_type::IBV_QPT_UD }
    }

    fn modify_with(self, mut attr: ibv_qp_attr, mask: u32) -> i32 {
        // SAFETY: the queue pair is live.
        unsafe { (lib().ibv_modify_qp)(self.0, &raw mut attr, mask as i32) }
    }

    /// Moves to a state that needs no other attributes.
    pub(crate) fn modify(self, state: ibv_qp_state) -> i32 {
        let attr = ibv_qp_attr { qp_state: state, ..Default::default() };
        self.modify_with(attr, ibv_qp_attr_mask::IBV_QP_STATE.0)
    }

    pub(crate) fn init(self) {
        use ibv_qp_attr_mask as M;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: 1,
            qkey: QKEY,
            qp_access_flags: ALL as u32,
            ..Default::default()
        };
        let rights = if self.is_datagram() { M::IBV_QP_QKEY.0 } else { M::IBV_QP_ACCESS_FLAGS.0 };
        let mask = M::IBV_QP_STATE.0 | M::IBV_QP_PORT.0 | M::IBV_QP_PKEY_INDEX.0 | rights;
        assert_eq!(self.modify_with(attr, mask), 0, "to INIT");
    }

    /// Moves from INIT to RTS.
    pub(crate) fn connect(self, peer: &QpAddress, timing: Timing) {
        use ibv_qp_attr_mask as M;
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: peer.qpn,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 5,
            ..Default::default()
        };
        attr.ah_attr = route(peer.gid);
        let connected = M::IBV_QP_AV.0
            | M::IBV_QP_PATH_MTU.0
            | M::IBV_QP_DEST_QPN.0
            | M::IBV_QP_RQ_PSN.0
            | M::IBV_QP_MAX_DEST_RD_ATOMIC.0
            | M::IBV_QP_MIN_RNR_TIMER.0;
        let mask = M::IBV_QP_STATE.0 | if self.is_datagram() { 0 } else { connected };
        assert_eq!(self.modify_with(attr, mask), 0, "to RTR");
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: timing.timeout,
            retry_cnt: timing.retry_cnt,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..Default::default()
        };
        let reliable = M::IBV_QP_TIMEOUT.0
            | M::IBV_QP_RETRY_CNT.0
            | M::IBV_QP_RNR_RETRY.0
            | M::IBV_QP_MAX_QP_RD_ATOMIC.0;
        let mask = M::IBV_QP_STATE.0 | M::IBV_QP_SQ_PSN.0 | if self.is_datagram() { 0 } else { reliable };
        assert_eq!(self.modify_with(attr, mask), 0, "to RTS");
    }

    pub(crate) fn state(self) -> ibv_qp_state {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: the queue pair is live.
        let result = unsafe {
            (lib().ibv_query_qp)(
                self.0,
                &raw mut attr,
                ibv_qp_attr_mask::IBV_QP_STATE.0 as i32,
                &raw mut init,
            )
        };
        assert_eq!(result, 0, "ibv_query_qp");
        attr.qp_state
    }

    pub(crate) fn destroy(self) -> i32 {
        // SAFETY: the queue pair is live. If this succeeds, nobody uses it any more.
        unsafe { (lib().ibv_destroy_qp)(self.0) }
    }

    /// Posts a request; `to` names memory of the peer.
    pub(crate) fn post(
        self,
        id: u64,
        opcode: ibv_wr_opcode,
        sge: ibv_sge,
        to: &QpAddress,
        ah: *mut ibv_ah,
    ) -> i32 {
        self.post_with(id, opcode, ibv_send_flags::IBV_SEND_SIGNALED.0, sge, to, ah)
    }

    /// Posts a SEND with a solicited event; a datagram goes to the address handle.
    pub(crate) fn post_solicited(self, id: u64, sge: ibv_sge, to: &QpAddress, ah: *mut ibv_ah) -> i32 {
        let flags = ibv_send_flags::IBV_SEND_SIGNALED.0 | ibv_send_flags::IBV_SEND_SOLICITED.0;
        self.post_with(id, ibv_wr_opcode::IBV_WR_SEND, flags, sge, to, ah)
    }

    fn post_with(
        self,
        id: u64,
        opcode: ibv_wr_opcode,
        send_flags: u32,
        sge: ibv_sge,
        to: &QpAddress,
        ah: *mut ibv_ah,
    ) -> i32 {
        let mut list = [sge];
        let mut wr = ibv_send_wr {
            wr_id: id,
            sg_list: list.as_mut_ptr(),
            num_sge: 1,
            opcode,
            send_flags,
            ..Default::default()
        };
        match opcode {
            _ if self.is_datagram() => {
                wr.wr.ud =
                    ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn: to.qpn, remote_qkey: QKEY };
            }
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                wr.wr.atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                    remote_addr: to.addr,
                    compare_add: 1,
                    swap: 0,
                    rkey: to.rkey,
                };
            }
            _ => {
                wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: to.addr, rkey: to.rkey };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, and the request and its entry live during the call.
        unsafe { verbs::ibv_post_send(self.0, &raw mut wr, &raw mut bad) }
    }

    pub(crate) fn receive(self, id: u64, sge: ibv_sge) -> i32 {
        let mut list = [sge];
        let mut wr = ibv_recv_wr { wr_id: id, sg_list: list.as_mut_ptr(), num_sge: 1, ..Default::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, and the request and its entry live during the call.
        unsafe { verbs::ibv_post_recv(self.0, &raw mut wr, &raw mut bad) }
    }
}

pub(crate) fn route(gid: [u8; 16]) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
    attr.grh = ibv_global_route { dgid: ibv_gid { raw: gid }, hop_limit: 1, ..Default::default() };
    attr
}

pub(crate) fn post_shared(srq: *mut ibv_srq, id: u64, sge: ibv_sge) -> i32 {
    let mut list = [sge];
    let mut wr = ibv_recv_wr { wr_id: id, sg_list: list.as_mut_ptr(), num_sge: 1, ..Default::default() };
    let mut bad = ptr::null_mut();
    // SAFETY: the queue is live, and the request and its entry live during the call.
    unsafe { verbs::ibv_post_srq_recv(srq, &raw mut wr, &raw mut bad) }
}

/// Memory of whole pages. It is either private to the program, or device memory that peers can map.
#[derive(Clone, Copy)]
pub(crate) struct TestMemory {
    pub(crate) base: *mut u8,
    pub(crate) len: usize,
    buf: *mut ibv_buf,
}

impl TestMemory {
    /// Ordinary memory, which peers cannot map.
    pub(crate) fn private(len: usize) -> Self {
        Self { base: map(ptr::null_mut(), len), len, buf: ptr::null_mut() }
    }

    /// Memory that takes less room than its length: a small file, mapped one time after the other,
    /// and behind it a last part that is no such mapping. Peers cannot map it.
    pub(crate) fn folded(len: usize) -> Self {
        let memory = Self::private(len);
        let file =
            rustix::fs::memfd_create(c"folded", rustix::fs::MemfdFlags::CLOEXEC).expect("a memory file");
        rustix::fs::ftruncate(&file, FOLD as u64).expect("room");
        for at in (0..len.saturating_sub(FOLD)).step_by(FOLD) {
            let rights = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
            let flags = rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::FIXED;
            // SAFETY: this replaces a part of the mapping that was just made, which has no
            // references.
            let part = unsafe { rustix::mm::mmap(memory.base.add(at).cast(), FOLD, rights, flags, &file, 0) };
            part.expect("a mapping");
        }
        memory
    }

    /// Memory that peers can map.
    pub(crate) fn shareable(device: TestDevice, len: usize) -> Self {
        let mut buf = ptr::null_mut();
        let allocate = lib().ibv_alloc_buf().expect("the device supports it");
        // SAFETY: the domain is live.
        let base = unsafe { allocate(device.pd, len, &raw mut buf) };
        assert!(!base.is_null(), "ibv_alloc_buf: {}", std::io::Error::last_os_error());
        Self { base: base.cast(), len, buf }
    }

    pub(crate) fn is_shareable(self) -> bool {
        !self.buf.is_null()
    }

    /// Registers the memory with all access rights.
    pub(crate) fn register(self, device: TestDevice) -> *mut ibv_mr {
        // SAFETY: the domain and the memory are live.
        let mr = unsafe { verbs::ibv_reg_mr(lib(), device.pd, self.base.cast(), self.len, ALL) };
        assert!(!mr.is_null(), "ibv_reg_mr: {}", std::io::Error::last_os_error());
        mr
    }

    pub(crate) fn fill(self, byte: u8) {
        self.fill_part(0, self.len, byte);
    }

    pub(crate) fn fill_part(self, at: usize, len: usize, byte: u8) {
        assert!(at + len <= self.len);
        // SAFETY: the bytes lie within the memory, which has no references. A peer that writes at
        // the same time causes a mixture.
        unsafe { libc::memset(self.base.add(at).cast(), byte.into(), len) };
    }

    pub(crate) fn byte(self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: the byte lies within the memory, which has no references.
        unsafe { self.base.add(at).read_volatile() }
    }

    pub(crate) fn set(self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: the byte lies within the memory, which has no references.
        unsafe { self.base.add(at).write_volatile(byte) };
    }

    /// The offset and value of the first byte that differs from `byte`.
    pub(crate) fn differs(self, byte: u8) -> Option<(usize, u8)> {
        self.part_differs(0, self.len, byte)
    }

    /// The first byte of a part that differs from `byte`: its offset within the part, and its
    /// value.
    pub(crate) fn part_differs(self, at: usize, len: usize, byte: u8) -> Option<(usize, u8)> {
        assert!(at + len <= self.len);
        let mut copy = vec![0_u8; len];
        // SAFETY: the bytes lie within the memory, which has no references; `copy` is a local of
        // that length.
        unsafe { libc::memcpy(copy.as_mut_ptr().cast(), self.base.add(at).cast(), len) };
        copy.into_iter().enumerate().find(|(_, there)| *there != byte)
    }

    /// Unmaps private memory, and maps fresh memory at the same address. Shareable memory stays, so
    /// that the test sees later writes of a peer.
    pub(crate) fn map_anew(self) {
        if self.is_shareable() {
            return;
        }
        // SAFETY: this kit mapped the memory, and nobody holds a reference to it.
        assert_eq!(unsafe { libc::munmap(self.base.cast(), self.len) }, 0);
        assert_eq!(map(self.base, self.len), self.base);
    }

    pub(crate) fn sge(self, mr: *mut ibv_mr, at: usize, len: usize) -> ibv_sge {
        assert!(at + len <= self.len && u32::try_from(len).is_ok());
        // SAFETY: the region is live.
        ibv_sge { addr: self.base.addr() as u64 + at as u64, length: len as u32, lkey: unsafe { (*mr).lkey } }
    }

    pub(crate) fn free(self) {
        if self.is_shareable() {
            let free = lib().ibv_free_buf().expect("the device supports it");
            // SAFETY: the buffer is freed once.
            unsafe { free(self.buf) };
        } else {
            // SAFETY: this kit mapped the memory.
            unsafe { libc::munmap(self.base.cast(), self.len) };
        }
    }
}

fn map(at: *mut u8, len: usize) -> *mut u8 {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: the new mapping replaces no other.
    let base = unsafe {
        libc::mmap(at.cast(), len.next_multiple_of(PAGE), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(base, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    base.cast()
}

pub(crate) fn dereg(mr: *mut ibv_mr) -> i32 {
    // SAFETY: the region is live. If this succeeds, nobody uses it any more.
    match unsafe { (lib().ibv_dereg_mr)(mr) } {
        0 => 0,
        -1 => std::io::Error::last_os_error().raw_os_error().unwrap_or(-1),
        error => error,
    }
}

/// The remote key of a region.
pub(crate) fn rkey(mr: *mut ibv_mr) -> u32 {
    // SAFETY: the region is live.
    unsafe { (*mr).rkey }
}
