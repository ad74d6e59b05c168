//! The verbs objects of a stream: queue pair, completion queue, registered buffers.
//!
//! The buffers are memory that the device allocates (`ibv_alloc_buf`), so that the peer copies into
//! it directly. They are cut into *slots*: each slot is used either for sending or for receiving.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Verbs, verbs};

use super::message::{ImmData, RemoteMapping};
use crate::cm::{ConnectionManager, IdNumber};
use crate::platform::errno;
use crate::rdmacm::device::DefaultPd;

/// The number of outstanding messages without a slot.
const WITHOUT_SLOT: u32 = 32;

/// Flags in `wr_id`: the request is a receive; the request has no slot.
const IS_RECEIVE: u64 = 1 << 63;
const NO_SLOT: u64 = 1 << 62;

/// The number and length of the slots, and the inline limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferShape {
    pub(super) send_slots: u16,
    pub(super) send_length: u32,
    pub(super) receive_slots: u16,
    pub(super) receive_length: u32,
    pub(super) inline: u32,
}

/// A finished request.
pub(super) enum RsCompletion {
    /// A received message. Its length is within the slot, unless `bits` is 0, which marks an
    /// invalid message.
    Received {
        slot: u16,
        length: u32,
        bits: u32,
    },
    Sent(Option<u16>),
    /// The queue pair has failed.
    Failed,
}

/// A range of the program's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserBuffer {
    pub(super) base: *mut u8,
    pub(super) length: usize,
}

/// The memory region of a program's mapping, which the peer may write to.
pub(super) struct UserMr(*mut ibv_mr);

// SAFETY: any thread may use libibverbs' objects.
unsafe impl Send for UserMr {}

/// The verbs objects. Each pointer is null until its object exists.
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

// SAFETY: any thread may use libibverbs' objects; only the device and the owner of this value
// access the memory.
unsafe impl Send for RsQueues {}

fn lib() -> &'static Verbs {
    const VERBS: Verbs = crate::verbs::table();
    &VERBS
}

fn check(number: c_int) -> Result<(), c_int> {
    if number == 0 { Ok(()) } else { Err(number) }
}

/// Converts a pointer that a verb returned; if it is null, the error is in `errno`.
fn made<T>(pointer: *mut T) -> Result<*mut T, c_int> {
    if pointer.is_null() { Err(errno::of(&std::io::Error::last_os_error())) } else { Ok(pointer) }
}

impl RsQueues {
    /// Makes the objects. [`start`](Self::start) then posts all receives.
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
        // SAFETY: `domain` keeps its context and protection domain alive, and `drop` destroys these
        // objects before it.
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
        // SAFETY: `domain` is alive, and the buffer lives as long as its region.
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
        // SAFETY: the queue pair is live as long as `self`.
        unsafe { (*self.qp).qp_num }
    }

    /// The completion channel's descriptor. It is readable if completions came after
    /// [`arm`](Self::arm).
    pub(super) fn descriptor(&self) -> c_int {
        // SAFETY: the channel is live as long as `self`.
        unsafe { (*self.channel).fd }
    }

    /// Moves the queue pair to INIT, and posts all receives.
    pub(super) fn start(&mut self, manager: &ConnectionManager, id: IdNumber) -> Result<(), c_int> {
        self.modify(manager, id, ibv_qp_state::IBV_QPS_INIT)?;
        (0..self.shape.receive_slots).try_for_each(|slot| self.receive(slot))
    }

    /// Moves the queue pair to RTR and RTS.
    pub(super) fn connect(&mut self, manager: &ConnectionManager, id: IdNumber) -> Result<(), c_int> {
        use ibv_qp_state as S;
        [S::IBV_QPS_INIT, S::IBV_QPS_RTR, S::IBV_QPS_RTS]
            .into_iter()
            .try_for_each(|state| self.modify(manager, id, state))
    }

    fn modify(&mut self, manager: &ConnectionManager, id: IdNumber, to: ibv_qp_state) -> Result<(), c_int> {
        let mut attr = ibv_qp_attr { qp_state: to, ..ibv_qp_attr::default() };
        let mask = manager.init_qp_attr(id, &mut attr)?;
        // SAFETY: the queue pair is live as long as `self`.
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

    /// The address of a send slot.
    pub(super) fn send_slot(&self, slot: u16) -> *mut u8 {
        assert!(slot < self.shape.send_slots);
        let length = self.shape.send_length as usize;
        self.slot(usize::from(slot) * length, length)
    }

    /// The address of a receive slot.
    pub(super) fn receive_slot(&self, slot: u16) -> *mut u8 {
        assert!(slot < self.shape.receive_slots);
        let sends = usize::from(self.shape.send_slots) * self.shape.send_length as usize;
        let length = self.shape.receive_length as usize;
        self.slot(sends + usize::from(slot) * length, length)
    }

    fn entry(&self, address: *mut u8, length: u32) -> ibv_sge {
        // SAFETY: the region is live as long as `self`.
        ibv_sge { addr: address.expose_provenance() as u64, length, lkey: unsafe { (*self.mr).lkey } }
    }

    /// Posts a receive slot.
    pub(super) fn receive(&mut self, slot: u16) -> Result<(), c_int> {
        let mut entry = self.entry(self.receive_slot(slot), self.shape.receive_length);
        let wr_id = IS_RECEIVE | u64::from(slot);
        let mut wr = ibv_recv_wr { wr_id, sg_list: &raw mut entry, num_sge: 1, ..ibv_recv_wr::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, the list is a local, and nobody uses the slot until the
        // receive completes.
        check(unsafe { verbs::ibv_post_recv(self.qp, &raw mut wr, &raw mut bad) })
    }

    /// Whether the send queue has room for another request.
    pub(super) fn has_room(&self) -> bool {
        self.under_way < self.most_sends()
    }

    /// Sends a message with the first bytes of a slot, or an empty one. The device owns the slot
    /// until the send completes.
    pub(super) fn send(&mut self, note: ImmData, bytes: Option<(u16, u32)>) -> Result<(), c_int> {
        let mut wr = ibv_send_wr { opcode: ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, ..ibv_send_wr::default() };
        wr.__bindgen_anon_1.imm_data = note.encode().to_be();
        self.post(wr, bytes)
    }

    /// Writes the first bytes of a slot to mapped memory of the peer. The device owns the slot
    /// until the write completes.
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

    /// Posts a send request with the first bytes of a slot, or without data.
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
        // SAFETY: the queue pair is live, the list is a local, and nobody uses the slot until the
        // request completes.
        check(unsafe { verbs::ibv_post_send(self.qp, &raw mut wr, &raw mut bad) })?;
        self.under_way += 1;
        Ok(())
    }

    /// Polls the completion queue; returns the number of results, up to the length of `done`.
    pub(super) fn poll(&mut self, done: &mut [Option<RsCompletion>; 32]) -> usize {
        let mut completions = [ibv_wc::default(); 32];
        // SAFETY: the completion queue is live, and the array has `completions.len()` entries.
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
                    // SAFETY: the union holds integers only. Without immediate data the bits are
                    // meaningless, and are discarded below.
                    let bits = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
                    // A peer's RDMA write with immediate also consumes a receive and has immediate
                    // data, but may exceed the slot.
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

    /// Whether send requests are outstanding.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way != 0
    }

    /// Requests a notification, so that the next completion makes the descriptor readable. The
    /// caller must poll again afterwards, because completions may have come before.
    pub(super) fn arm(&mut self) {
        if !self.is_armed {
            // SAFETY: the completion queue is live as long as `self`.
            let error = unsafe { verbs::ibv_req_notify_cq(self.cq, 0) };
            if error != 0 {
                log::warn!("the completion queue of an rsocket could not be armed: error {error}");
            }
            self.is_armed = error == 0;
        }
    }

    /// Takes the event that made the descriptor readable; returns whether one existed. If so, other
    /// sleepers must arm again.
    pub(super) fn disarm(&mut self) -> bool {
        if !self.is_armed {
            return false;
        }
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // The channel may be empty; that must not change the program's `errno`.
        let before = errno::of(&std::io::Error::last_os_error());
        // SAFETY: the channel is live and non-blocking. `self.cq` is its only completion queue, and
        // lives until the event is acknowledged.
        unsafe {
            if (lib().ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) == 0 {
                self.is_armed = false;
                (lib().ibv_ack_cq_events)(cq, 1);
            }
        }
        errno::set(before);
        !self.is_armed
    }

    /// Registers memory of the program, for the peer to write to if `is_remote`.
    ///
    /// # Safety
    ///
    /// - The program leaves the range to the device until the region is deregistered.
    pub(super) unsafe fn register(&self, piece: UserBuffer, is_remote: bool) -> Result<(UserMr, u32), c_int> {
        let mut access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        if is_remote {
            access |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        }
        // SAFETY: `domain` is alive; the caller guarantees that the device may use the range.
        unsafe {
            let register = lib().ibv_reg_mr;
            let mr = made(register(self.domain.pd(), piece.base.cast(), piece.length, access.0 as c_int))?;
            Ok((UserMr(mr), (*mr).rkey))
        }
    }

    /// Deregisters a region. After an error the device still has the memory.
    pub(super) fn deregister(&self, region: &UserMr) -> Result<(), c_int> {
        // SAFETY: the region is live, because its owner drops it once this succeeds.
        check(unsafe { (lib().ibv_dereg_mr)(region.0) })
    }
}

impl Drop for RsQueues {
    fn drop(&mut self) {
        // An object that cannot be destroyed keeps the objects that it uses.
        let gone = |object: &str, error: c_int| {
            if error != 0 {
                log::warn!("the {object} of an rsocket could not be destroyed: error {error}");
            }
            error == 0
        };
        // SAFETY: `create` made each non-null object. Each is destroyed once, before the objects
        // that it uses.
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
