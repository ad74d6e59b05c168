//! The verbs objects of a stream: queue pair, completion queue, registered buffers.
//!
//! That memory is the device's own (`ibv_alloc_buf`), so that the other side copies into it directly. It is cut into
//! *slots*, of which each is either sent from or received into.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Verbs, verbs};

use super::message::{ImmData, RemoteMapping};
use crate::cm::{ConnectionManager, IdNumber};
use crate::platform::errno;
use crate::rdmacm::device::DefaultPd;

/// Messages that are under way besides those that have a slot.
const WITHOUT_SLOT: u32 = 32;

/// In `wr_id`: a receive; a request without a slot.
const IS_RECEIVE: u64 = 1 << 63;
const NO_SLOT: u64 = 1 << 62;

/// How many slots there are, and how long they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferShape {
    pub(super) send_slots: u16,
    pub(super) send_length: u32,
    pub(super) receive_slots: u16,
    pub(super) receive_length: u32,
    pub(super) inline: u32,
}

/// Something that is over.
pub(super) enum RsCompletion {
    /// A message: no longer than the slot, unless its bits say that it is none (0).
    Received {
        slot: u16,
        length: u32,
        bits: u32,
    },
    Sent(Option<u16>),
    /// The queue pair can do no more.
    Failed,
}

/// A range of a program's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserBuffer {
    pub(super) base: *mut u8,
    pub(super) length: usize,
}

/// Memory of the program that the other side may write to.
pub(super) struct UserMr(*mut ibv_mr);

// SAFETY: libibverbs' objects may be used by any thread.
unsafe impl Send for UserMr {}

/// The objects. Pointers are null until they are made.
pub(super) struct RsQueues {
    domain: Arc<DefaultPd>,
    shape: BufferShape,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    buf: *mut ibv_buf,
    base: *mut u8,
    mr: *mut ibv_mr,
    is_armed: bool,
    under_way: u32,
}

// SAFETY: libibverbs' objects may be used by any thread, and the memory is used by the device and by who has this.
unsafe impl Send for RsQueues {}

fn lib() -> &'static Verbs {
    const VERBS: Verbs = crate::verbs::table();
    &VERBS
}

fn check(number: c_int) -> Result<(), c_int> {
    if number == 0 { Ok(()) } else { Err(number) }
}

/// The error is in `errno` if it is null.
fn made<T>(pointer: *mut T) -> Result<*mut T, c_int> {
    if pointer.is_null() { Err(errno::of(&std::io::Error::last_os_error())) } else { Ok(pointer) }
}

impl RsQueues {
    /// Makes them, with all receives posted as soon as the queue pair may have them: see [`start`](Self::start).
    pub(super) fn create(domain: Arc<DefaultPd>, shape: BufferShape) -> Result<Self, c_int> {
        let mut queues = Self {
            domain,
            shape,
            channel: ptr::null_mut(),
            cq: ptr::null_mut(),
            qp: ptr::null_mut(),
            buf: ptr::null_mut(),
            base: ptr::null_mut(),
            mr: ptr::null_mut(),
            is_armed: false,
            under_way: 0,
        };
        queues.make_queue_pair()?;
        queues.make_memory()?;
        Ok(queues)
    }

    fn make_queue_pair(&mut self) -> Result<(), c_int> {
        let (sends, receives) = (self.most_sends(), u32::from(self.shape.receive_slots));
        let length = c_int::try_from(sends + receives).map_err(|_| libc::EINVAL)?;
        // SAFETY: the domain's context and protection domain live as long as it; what is made here goes before (`drop`).
        unsafe {
            self.channel = made((lib().ibv_create_comp_channel)(self.domain.context()))?;
            super::wait::make_nonblocking((*self.channel).fd)?;
            let cq = (lib().ibv_create_cq)(self.domain.context(), length, ptr::null_mut(), self.channel, 0);
            self.cq = made(cq)?;
            let mut attr = ibv_qp_init_attr {
                send_cq: self.cq,
                recv_cq: self.cq,
                qp_type: ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 1,
                ..ibv_qp_init_attr::default()
            };
            attr.cap.max_send_wr = sends;
            attr.cap.max_recv_wr = receives;
            attr.cap.max_send_sge = 1;
            attr.cap.max_recv_sge = 1;
            attr.cap.max_inline_data = self.shape.inline;
            self.qp = made((lib().ibv_create_qp)(self.domain.pd(), &raw mut attr))?;
        }
        Ok(())
    }

    fn make_memory(&mut self) -> Result<(), c_int> {
        let BufferShape { send_slots, send_length, receive_slots, receive_length, .. } = self.shape;
        let bytes = |slots: u16, length: u32| usize::from(slots) * length as usize;
        let size = bytes(send_slots, send_length) + bytes(receive_slots, receive_length);
        let (allocate, register) = lib().ibv_alloc_buf.zip(lib().ibv_reg_buf_mr).ok_or(libc::EOPNOTSUPP)?;
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as c_int;
        // SAFETY: the domain lives, and the memory as long as its region.
        unsafe {
            self.base = made(allocate(self.domain.pd(), size, &raw mut self.buf))?.cast();
            self.mr = made(register(self.domain.pd(), self.buf, self.base.cast(), size, access))?;
        }
        Ok(())
    }

    fn most_sends(&self) -> u32 {
        u32::from(self.shape.send_slots) + WITHOUT_SLOT
    }

    pub(super) fn shape(&self) -> BufferShape {
        self.shape
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.qp).qp_num }
    }

    /// Readable when completions came after [`arm`](Self::arm).
    pub(super) fn descriptor(&self) -> c_int {
        // SAFETY: the channel is live.
        unsafe { (*self.channel).fd }
    }

    /// Takes the queue pair to INIT, and posts all receives.
    pub(super) fn start(&mut self, manager: &ConnectionManager, id: IdNumber) -> Result<(), c_int> {
        self.modify(manager, id, ibv_qp_state::IBV_QPS_INIT)?;
        (0..self.shape.receive_slots).try_for_each(|slot| self.receive(slot))
    }

    /// Takes the queue pair to where it sends and receives.
    pub(super) fn connect(&mut self, manager: &ConnectionManager, id: IdNumber) -> Result<(), c_int> {
        use ibv_qp_state as S;
        [S::IBV_QPS_INIT, S::IBV_QPS_RTR, S::IBV_QPS_RTS]
            .into_iter()
            .try_for_each(|state| self.modify(manager, id, state))
    }

    fn modify(&mut self, manager: &ConnectionManager, id: IdNumber, to: ibv_qp_state) -> Result<(), c_int> {
        let mut attr = ibv_qp_attr { qp_state: to, ..ibv_qp_attr::default() };
        let mask = manager.init_qp_attr(id, &mut attr)?;
        // SAFETY: the queue pair is live.
        check(unsafe { (lib().ibv_modify_qp)(self.qp, &raw mut attr, mask) })
    }

    fn slot(&self, at: usize, length: usize) -> *mut u8 {
        debug_assert!(
            at + length
                <= usize::from(self.shape.send_slots) * self.shape.send_length as usize
                    + usize::from(self.shape.receive_slots) * self.shape.receive_length as usize
        );
        self.base.wrapping_add(at)
    }

    /// Where a slot to send from begins.
    pub(super) fn send_slot(&self, slot: u16) -> *mut u8 {
        assert!(slot < self.shape.send_slots);
        let length = self.shape.send_length as usize;
        self.slot(usize::from(slot) * length, length)
    }

    /// Where a slot to receive into begins.
    pub(super) fn receive_slot(&self, slot: u16) -> *mut u8 {
        assert!(slot < self.shape.receive_slots);
        let sends = usize::from(self.shape.send_slots) * self.shape.send_length as usize;
        let length = self.shape.receive_length as usize;
        self.slot(sends + usize::from(slot) * length, length)
    }

    fn entry(&self, address: *mut u8, length: u32) -> ibv_sge {
        // SAFETY: the region is live.
        ibv_sge { addr: address.expose_provenance() as u64, length, lkey: unsafe { (*self.mr).lkey } }
    }

    /// Posts a slot to receive into.
    pub(super) fn receive(&mut self, slot: u16) -> Result<(), c_int> {
        let mut entry = self.entry(self.receive_slot(slot), self.shape.receive_length);
        let wr_id = IS_RECEIVE | u64::from(slot);
        let mut wr = ibv_recv_wr { wr_id, sg_list: &raw mut entry, num_sge: 1, ..ibv_recv_wr::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, the list a local, and the slot nobody's until the receive is done.
        check(unsafe { verbs::ibv_post_recv(self.qp, &raw mut wr, &raw mut bad) })
    }

    /// Whether another request may be posted.
    pub(super) fn has_room(&self) -> bool {
        self.under_way < self.most_sends()
    }

    /// Sends a message: the first bytes of a slot, which then is the device's, or none.
    pub(super) fn send(&mut self, note: ImmData, bytes: Option<(u16, u32)>) -> Result<(), c_int> {
        let mut wr = ibv_send_wr { opcode: ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, ..ibv_send_wr::default() };
        wr.__bindgen_anon_1.imm_data = note.encode().to_be();
        self.post(wr, bytes)
    }

    /// Writes the first bytes of a slot to where the other side said it may; the slot then is the device's.
    pub(super) fn write(
        &mut self,
        slot: u16,
        length: u32,
        to: &RemoteMapping,
        address: u64,
    ) -> Result<(), c_int> {
        let mut wr = ibv_send_wr { opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE, ..ibv_send_wr::default() };
        wr.wr.rdma.remote_addr = address;
        wr.wr.rdma.rkey = to.rkey;
        self.post(wr, Some((slot, length)))
    }

    /// Posts a request: with the first bytes of a slot, or none.
    pub(super) fn post(&mut self, mut wr: ibv_send_wr, bytes: Option<(u16, u32)>) -> Result<(), c_int> {
        let mut entry = bytes.map_or_else(ibv_sge::default, |(slot, length)| {
            assert!(length <= self.shape.send_length);
            self.entry(self.send_slot(slot), length)
        });
        wr.wr_id = bytes.map_or(NO_SLOT, |(slot, _)| slot.into());
        if bytes.is_some() {
            (wr.sg_list, wr.num_sge) = (&raw mut entry, 1);
            if entry.length <= self.shape.inline {
                wr.send_flags = ibv_send_flags::IBV_SEND_INLINE.0;
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, the list a local, and the slot is nobody's until this is done.
        check(unsafe { verbs::ibv_post_send(self.qp, &raw mut wr, &raw mut bad) })?;
        self.under_way += 1;
        Ok(())
    }

    /// What is done; at most so many as the place takes.
    pub(super) fn poll(&mut self, done: &mut [Option<RsCompletion>; 32]) -> usize {
        let mut completions = [ibv_wc::default(); 32];
        // SAFETY: the queue is live, and the place long enough.
        let count =
            unsafe { verbs::ibv_poll_cq(self.cq, completions.len() as c_int, completions.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            done[0] = Some(RsCompletion::Failed);
            return 1;
        };
        for (wc, done) in completions[..count].iter().zip(&mut *done) {
            let slot = wc.wr_id as u16;
            let is_receive = wc.wr_id & IS_RECEIVE != 0;
            self.under_way -= u32::from(!is_receive);
            *done = Some(match wc.status {
                ibv_wc_status::IBV_WC_SUCCESS if is_receive => {
                    // SAFETY: every message has immediate data; of others these bits are none that mean anything.
                    let bits = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
                    // A write of the other side, too, takes a receive and has immediate data, and its length is no slot's.
                    let is_message = wc.opcode == ibv_wc_opcode::IBV_WC_RECV
                        && wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0
                        && wc.byte_len <= self.shape.receive_length;
                    RsCompletion::Received {
                        slot,
                        length: wc.byte_len,
                        bits: if is_message { bits } else { 0 },
                    }
                }
                ibv_wc_status::IBV_WC_SUCCESS => {
                    RsCompletion::Sent((wc.wr_id & NO_SLOT == 0).then_some(slot))
                }
                _ => RsCompletion::Failed,
            });
        }
        count
    }

    /// Whether there are requests that are not done.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way != 0
    }

    /// Asks for the descriptor to become readable with the next completion. Completions may have come before: look
    /// again.
    pub(super) fn arm(&mut self) {
        if !self.is_armed {
            // SAFETY: the queue is live.
            let error = unsafe { verbs::ibv_req_notify_cq(self.cq, 0) };
            if error != 0 {
                log::warn!("a completion queue does not tell of completions: error {error}");
            }
            self.is_armed = error == 0;
        }
    }

    /// Takes the event that made the descriptor readable. Whether there was one: others who sleep have to arm it again.
    pub(super) fn disarm(&mut self) -> bool {
        if !self.is_armed {
            return false;
        }
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // There need be none: the program's error number is none of that.
        let before = errno::of(&std::io::Error::last_os_error());
        // SAFETY: the channel is live and non-blocking; its only queue is this one, which lives until the event is acknowledged.
        unsafe {
            if (lib().ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) == 0 {
                self.is_armed = false;
                (lib().ibv_ack_cq_events)(cq, 1);
            }
        }
        errno::set(before);
        !self.is_armed
    }

    /// Registers memory of the program's for the other side to write to, or for nobody's use but its own.
    ///
    /// # Safety
    ///
    /// - The range is the device's to use until the region is given up.
    pub(super) unsafe fn register(&self, piece: UserBuffer, is_remote: bool) -> Result<(UserMr, u32), c_int> {
        let mut access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        if is_remote {
            access |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        }
        // SAFETY: the domain is live, and the caller's promise.
        unsafe {
            let register = lib().ibv_reg_mr;
            let mr = made(register(self.domain.pd(), piece.base.cast(), piece.length, access.0 as c_int))?;
            Ok((UserMr(mr), (*mr).rkey))
        }
    }

    /// Takes memory back. An error: the device could not let go of it, and still has it.
    pub(super) fn deregister(&self, region: &UserMr) -> Result<(), c_int> {
        // SAFETY: the region is live: who has it gives it up when this succeeds.
        check(unsafe { (lib().ibv_dereg_mr)(region.0) })
    }
}

impl Drop for RsQueues {
    fn drop(&mut self) {
        // What could not be destroyed keeps what it uses.
        let gone = |object: &str, error: c_int| {
            if error != 0 {
                log::warn!("the {object} of an rsocket could not be destroyed: error {error}");
            }
            error == 0
        };
        // SAFETY: what is not null was made by `create`, and is destroyed once, before what it uses.
        unsafe {
            let mut free = self.qp.is_null() || gone("queue pair", (lib().ibv_destroy_qp)(self.qp));
            let queues_are_free = free;
            free &= self.mr.is_null() || gone("memory region", (lib().ibv_dereg_mr)(self.mr));
            if let Some(release) = lib().ibv_free_buf.filter(|_| free && !self.buf.is_null()) {
                release(self.buf);
            }
            if queues_are_free
                && (self.cq.is_null() || gone("completion queue", (lib().ibv_destroy_cq)(self.cq)))
                && !self.channel.is_null()
            {
                gone("completion channel", (lib().ibv_destroy_comp_channel)(self.channel));
            }
        }
    }
}
