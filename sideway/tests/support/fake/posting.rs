//! Fake posting, classic and extended.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use sideway::sys::types::*;

use super::completion::Cq;
use super::queue_pair::{Driver, Qp, View};
use super::{BadRequest, FakeWorld};

/// The open list of work requests of an extended pair.
pub(super) struct List {
    open: bool,
    /// Whether the last request waits for its buffer.
    waiting: bool,
    requests: Vec<ibv_wc>,
    unsignaled: u64,
    /// The destinations of its datagrams: handle, number and Q_Key.
    datagrams: Vec<(usize, u32, u32)>,
    /// The shared receive queues of its requests, on an extended reliable connection.
    queues: Vec<u32>,
    /// Whether the last request waits for its destination.
    nowhere: bool,
    /// The number of setters for which the last request waits.
    setters: u8,
}

/// More requests than any test posts at once.
const CAPACITY: usize = 4096;

impl List {
    pub(super) fn new() -> Self {
        Self {
            open: false,
            waiting: false,
            requests: Vec::with_capacity(CAPACITY),
            unsignaled: 0,
            datagrams: Vec::new(),
            queues: Vec::new(),
            nowhere: false,
            setters: 0,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    fn reset(&mut self, open: bool) {
        self.open = open;
        self.waiting = false;
        self.requests.clear();
        self.unsignaled = 0;
        self.datagrams.clear();
        self.queues.clear();
        self.nowhere = false;
        self.setters = 0;
    }
}

fn completion(wr_id: u64, opcode: ibv_wc_opcode, qp_num: u32) -> ibv_wc {
    ibv_wc { wr_id, opcode, qp_num, byte_len: 7, ..ibv_wc::default() }
}

/// The completion opcode of a request.
fn completed(opcode: ibv_wr_opcode) -> ibv_wc_opcode {
    use ibv_wc_opcode as C;
    use ibv_wr_opcode as R;
    match opcode {
        R::IBV_WR_RDMA_WRITE | R::IBV_WR_RDMA_WRITE_WITH_IMM => C::IBV_WC_RDMA_WRITE,
        R::IBV_WR_RDMA_READ => C::IBV_WC_RDMA_READ,
        R::IBV_WR_ATOMIC_CMP_AND_SWP => C::IBV_WC_COMP_SWAP,
        R::IBV_WR_ATOMIC_FETCH_AND_ADD => C::IBV_WC_FETCH_ADD,
        R::IBV_WR_LOCAL_INV => C::IBV_WC_LOCAL_INV,
        _ => C::IBV_WC_SEND,
    }
}

fn is_datagram(qp: *mut ibv_qp) -> bool {
    // SAFETY: the caller passes a live pair, as C requires.
    unsafe { (*qp).qp_type == ibv_qp_type::IBV_QPT_UD || (*qp.cast::<Qp>()).driver == Driver::Srd }
}

/// Whether its requests name a shared receive queue at the other end.
fn goes_by_number(qp: *mut ibv_qp) -> bool {
    // SAFETY: the caller passes a live pair, as C requires.
    unsafe { (*qp).qp_type == ibv_qp_type::IBV_QPT_XRC_SEND }
}

fn is_signaled(flags: u32) -> bool {
    flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0
}

/// The request at which the library reports that the list stopped.
unsafe fn bad<T>(first: *mut T, next: impl Fn(&T) -> *mut T, bad: BadRequest) -> *mut T {
    match bad {
        BadRequest::Index(index) => {
            let mut request = first;
            for further in (0..index).rev() {
                // SAFETY: the caller passes a valid list, which contains this request.
                let next = next(unsafe { &*request });
                if next.is_null() {
                    // Beyond the end of the list.
                    return request.wrapping_add(1 + further);
                }
                request = next;
            }
            request
        }
        BadRequest::Unset => ptr::null_mut(),
        BadRequest::Address(address) => ptr::without_provenance_mut(address),
    }
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, cap, send_cq, number, .. } = unsafe { Qp::of(qp) };
    world.check(!first.is_null(), "ibv_post_send without a request");
    let end = match world.lies.post_send {
        Some((_, BadRequest::Index(index))) => index,
        Some(_) => 0,
        None => usize::MAX,
    };
    let mut request = first;
    let mut index = 0;
    while !request.is_null() && index < end {
        // SAFETY: the caller passes a valid list, as C requires.
        let wr = unsafe { *request };
        world.check(wr.num_sge >= 0 && wr.num_sge as u32 <= cap.max_send_sge.max(1), "too many entries");
        // SAFETY: the request has `num_sge` entries, as C requires.
        unsafe { read_entries(world, &wr, cap) };
        if is_datagram(qp) {
            // SAFETY: every request of a datagram pair has its address set.
            let to = unsafe { wr.wr.ud };
            world.goes_to(to.ah.addr(), to.remote_qpn, to.remote_qkey);
        }
        if goes_by_number(qp) {
            // SAFETY: every request of an XRC pair has its queue number set.
            world.goes_to_queue(unsafe { wr.qp_type.xrc.remote_srqn });
        }
        world.posted.fetch_add(1, Relaxed);
        if is_signaled(wr.send_flags) {
            // SAFETY: a pair's queues outlive it, as C requires.
            unsafe { Cq::of(send_cq).1.push(completion(wr.wr_id, completed(wr.opcode), number)) };
        }
        request = wr.next;
        index += 1;
    }
    match world.lies.post_send {
        Some((result, at)) => {
            // SAFETY: the caller passes a valid pointer for the result, as C requires.
            unsafe { bad_wr.write(bad(first, |request| request.next, at)) };
            result
        }
        None => 0,
    }
}

/// Reads the parts of a request's buffers that a library would read.
unsafe fn read_entries(world: &FakeWorld, wr: &ibv_send_wr, cap: ibv_qp_cap) {
    let inline = wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0;
    let mut total = 0;
    for n in 0..wr.num_sge as usize {
        // SAFETY: the caller's list has this number of entries, as C requires.
        let sge = unsafe { wr.sg_list.add(n).read() };
        if inline {
            total += sge.length;
            let start: *const u8 = ptr::with_exposed_provenance(sge.addr as usize);
            // SAFETY: inline data is memory of the program.
            let bytes = unsafe { std::slice::from_raw_parts(start, sge.length as usize) };
            world.inline_bytes.fetch_add(bytes.iter().map(|b| u64::from(*b != 0)).sum(), Relaxed);
        }
    }
    world.check(total <= cap.max_inline_data, "more inline data than the queue pair takes");
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, cap, recv_cq, number, .. } = unsafe { Qp::of(qp) };
    world.check(!first.is_null(), "ibv_post_recv without a request");
    if let Some((result, at)) = world.lies.post_recv {
        // SAFETY: the caller passes a valid pointer for the result, as C requires.
        unsafe { bad_wr.write(bad(first, |request| request.next, at)) };
        return result;
    }
    let mut request = first;
    while !request.is_null() {
        // SAFETY: the caller passes a valid list, as C requires.
        let wr = unsafe { *request };
        world.check(wr.num_sge >= 0 && wr.num_sge as u32 <= cap.max_recv_sge, "too many entries");
        for n in 0..wr.num_sge as usize {
            // SAFETY: the request has `num_sge` entries, as C requires.
            let _ = unsafe { wr.sg_list.add(n).read() };
        }
        world.received.fetch_add(1, Relaxed);
        // SAFETY: a pair's queues outlive it, as C requires.
        unsafe { Cq::of(recv_cq).1.push(completion(wr.wr_id, ibv_wc_opcode::IBV_WC_RECV, number)) };
        request = wr.next;
    }
    0
}

/// Sets the operations of an extended pair. Like drivers, it sets only the requested ones.
pub(super) unsafe fn install(qp: *mut ibv_qp_ex, asked: u64, world: &FakeWorld) {
    macro_rules! set {
        ($($member:ident),*) => {$(
            if world.has(stringify!($member)) {
                // SAFETY: the caller passes a live pair.
                unsafe { (*qp).$member = Some($member) };
            }
        )*};
    }
    set!(wr_start, wr_complete, wr_abort, wr_set_sge, wr_set_sge_list);
    set!(wr_set_inline_data, wr_set_inline_data_list, wr_set_ud_addr, wr_set_xrc_srqn);
    macro_rules! set_asked {
        ($($flag:ident => $member:ident),*) => {
            $(if asked & u64::from(ibv_qp_create_send_ops_flags::$flag.0) != 0 { set!($member); })*
        };
    }
    set_asked!(
        IBV_QP_EX_WITH_RDMA_WRITE => wr_rdma_write,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM => wr_rdma_write_imm,
        IBV_QP_EX_WITH_SEND => wr_send,
        IBV_QP_EX_WITH_SEND_WITH_IMM => wr_send_imm,
        IBV_QP_EX_WITH_RDMA_READ => wr_rdma_read,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP => wr_atomic_cmp_swp,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD => wr_atomic_fetch_add,
        IBV_QP_EX_WITH_LOCAL_INV => wr_local_inv
    );
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, mut list, .. } = unsafe { Qp::of(qp.cast()) };
    world.check(!list.open, "ibv_wr_start while a list is open");
    list.reset(true);
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, mut list, send_cq, .. } = unsafe { Qp::of(qp.cast()) };
    world.check(list.open, "ibv_wr_complete without an open list");
    world.check(!list.waiting, "ibv_wr_complete with a request that has no buffer");
    world.check(!list.nowhere, "ibv_wr_complete with a request that does not say where it goes");
    world.check(list.setters == 0, "ibv_wr_complete with a request that has fewer setters than announced");
    for (ah, number, key) in &list.datagrams {
        world.goes_to(*ah, *number, *key);
    }
    list.queues.iter().for_each(|number| world.goes_to_queue(*number));
    if world.lies.wr_complete == 0 {
        world.posted.fetch_add(list.requests.len() as u64 + list.unsignaled, Relaxed);
        for wc in &list.requests {
            // SAFETY: a pair's queues outlive it, as C requires.
            unsafe { Cq::of(send_cq).1.push(*wc) };
        }
    }
    list.reset(false);
    world.lies.wr_complete
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, mut list, .. } = unsafe { Qp::of(qp.cast()) };
    world.check(list.open, "ibv_wr_abort without an open list");
    world.aborted.fetch_add(1, Relaxed);
    list.reset(false);
}

unsafe fn operation(qp: *mut ibv_qp_ex, opcode: ibv_wr_opcode) {
    // SAFETY: the caller passes a live pair, and writes these fields before an operation.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, mut list, number, driver, .. } = unsafe { Qp::of(qp.cast()) };
    world.check(list.open, "an operation without an open list");
    world.check(!list.waiting, "an operation before the last one had its buffer");
    world.check(!list.nowhere, "an operation before the last one had its address");
    world.check(list.setters == 0, "an operation before the last one had its setters");
    list.nowhere = is_datagram(qp.cast()) || goes_by_number(qp.cast()) || driver == Driver::DcInitiator;
    world.check(flags & ibv_send_flags::IBV_SEND_INLINE.0 == 0, "IBV_SEND_INLINE on an extended pair");
    list.waiting = true;
    match is_signaled(flags) {
        true if list.requests.len() < CAPACITY => {
            list.requests.push(completion(wr_id, completed(opcode), number));
        }
        _ => list.unsignaled += 1,
    }
}

/// Appends an mlx5 operation, which waits only for its setters. Returns whether it had the inline
/// flag.
#[cfg(all(feature = "mlx5", feature = "efa"))]
pub(super) unsafe fn own_operation(qp: *mut ibv_qp, opcode: ibv_wc_opcode, setters: u8) -> bool {
    let ex: *mut ibv_qp_ex = qp.cast();
    // SAFETY: the caller passes a live pair, and writes these fields before an operation.
    let (wr_id, flags) = unsafe { ((*ex).wr_id, (*ex).wr_flags) };
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, mut list, number, .. } = unsafe { Qp::of(qp) };
    world.check(list.open, "an operation without an open list");
    world.check(
        !list.waiting && !list.nowhere && list.setters == 0,
        "an operation before the last one was whole",
    );
    list.setters = setters;
    match is_signaled(flags) {
        true if list.requests.len() < CAPACITY => list.requests.push(completion(wr_id, opcode, number)),
        _ => list.unsignaled += 1,
    }
    flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0
}

/// Records a setter of the last operation.
#[cfg(all(feature = "mlx5", feature = "efa"))]
pub(super) unsafe fn own_setter(qp: *mut ibv_qp) {
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, mut list, .. } = unsafe { Qp::of(qp) };
    world.check(list.open && list.setters > 0, "a setter for no request");
    list.setters = list.setters.saturating_sub(1);
}

macro_rules! operations {
    ($($name:ident($($arg:ty),*) = $opcode:ident;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, _: $arg)*) {
            // SAFETY: the caller keeps the contract of the C function: the pair is alive.
            unsafe { operation(qp, ibv_wr_opcode::$opcode) };
        }
    )*};
}

operations! {
    wr_send() = IBV_WR_SEND;
    wr_send_imm(__be32) = IBV_WR_SEND_WITH_IMM;
    wr_rdma_write(u32, u64) = IBV_WR_RDMA_WRITE;
    wr_rdma_write_imm(u32, u64, __be32) = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr_rdma_read(u32, u64) = IBV_WR_RDMA_READ;
    wr_atomic_cmp_swp(u32, u64, u64, u64) = IBV_WR_ATOMIC_CMP_AND_SWP;
    wr_atomic_fetch_add(u32, u64, u64) = IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/// Local invalidate, which has no buffer.
unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, key: u32) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe { operation(qp, ibv_wr_opcode::IBV_WR_LOCAL_INV) };
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, mut list, .. } = unsafe { Qp::of(qp.cast()) };
    list.waiting = false;
    world.invalidated.lock().unwrap().push(key);
}

/// Records the buffer of the last request.
unsafe fn buffer(qp: *mut ibv_qp_ex, entries: usize, inline: usize) {
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, cap, mut list, .. } = unsafe { Qp::of(qp.cast()) };
    world.check(list.open, "a buffer without an open list");
    world.check(list.waiting, "a buffer for no request");
    world.check(entries <= cap.max_send_sge as usize, "more entries than the queue pair takes");
    world.check(inline <= cap.max_inline_data as usize, "more inline data than the queue pair takes");
    world.inline_bytes.fetch_add(inline as u64, Relaxed);
    list.waiting = false;
}

/// Gives the last request the bytes of these pieces, and records them for a test that asks for them.
unsafe fn inline_buffer<'bytes>(qp: *mut ibv_qp_ex, pieces: impl Iterator<Item = &'bytes [u8]> + Clone) {
    // SAFETY: the caller passes a live pair, as C requires.
    let world = unsafe {
        buffer(qp, 0, pieces.clone().map(<[u8]>::len).sum());
        Qp::of(qp.cast()).world
    };
    if let Some(recorded) = &mut *world.inline_data.lock().unwrap() {
        recorded.push(pieces.flatten().copied().collect());
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, mut list, .. } = unsafe { Qp::of(qp.cast()) };
    world.check(list.open && list.nowhere && is_datagram(qp.cast()), "an address for no datagram");
    list.nowhere = false;
    list.datagrams.push((ah.addr(), remote_qpn, remote_qkey));
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, mut list, .. } = unsafe { Qp::of(qp.cast()) };
    world.check(list.open && list.nowhere && goes_by_number(qp.cast()), "a queue's number for no request");
    list.nowhere = false;
    list.queues.push(remote_srqn);
}

/// Records the target of the last request of a DC initiator.
#[cfg(all(feature = "mlx5", feature = "efa"))]
pub(super) unsafe fn set_dc_addr(qp: *mut ibv_qp, ah: *mut ibv_ah, to: super::direct::DcAddress) {
    // SAFETY: the caller passes a live pair, as C requires.
    let View { world, mut list, driver, .. } = unsafe { Qp::of(qp) };
    world.check(list.open && list.nowhere && driver == Driver::DcInitiator, "a target for no request");
    list.nowhere = false;
    list.datagrams.push((ah.addr(), to.number, 0));
    world.direct.addresses.lock().unwrap().push(to);
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, _: u32, _: u64, _: u32) {
    // SAFETY: the caller keeps the contract of the C function: live objects and valid pointers.
    unsafe { buffer(qp, 1, 0) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller keeps the contract of the C function: the pair is alive, and the list has
    // this many entries.
    unsafe {
        for n in 0..count {
            let _ = list.add(n).read();
        }
        buffer(qp, count, 0);
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller keeps the contract of the C function: the pair is alive, and the bytes are
    // readable.
    unsafe {
        let bytes = std::slice::from_raw_parts(addr.cast::<u8>(), length);
        inline_buffer(qp, std::iter::once(bytes));
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    let pieces = (0..count).map(|n| {
        // SAFETY: the caller keeps the contract of the C function: the list has this many pieces,
        // whose bytes are readable.
        unsafe {
            let piece = list.add(n).read();
            std::slice::from_raw_parts(piece.addr.cast::<u8>(), piece.length)
        }
    });
    // SAFETY: the caller keeps the contract of the C function: the pair is alive.
    unsafe { inline_buffer(qp, pieces) };
}
