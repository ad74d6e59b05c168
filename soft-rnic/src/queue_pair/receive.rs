//! The receive side: posting receives, and turning finished ones into completions.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_mummy_sys::types::{
    ibv_access_flags, ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_sge, ibv_wc_flags, ibv_wc_opcode,
    ibv_wc_status,
};

use super::Qp;
use super::grh::GrhFields;
use super::receive_queue::{FinishedRecv, ReceiveQueue};
use crate::engine::gather::GatherList;
use crate::engine::payload::LocalPiece;
use crate::engine::send::GRH;
use crate::faults::{self, Action, Opcode};
use crate::node::PeerProcess;
use crate::objects::completion::Cqe;
use crate::objects::completion::sources::SourcePoll;
use crate::objects::lid;
use crate::platform::copy;
use crate::shared::entry::gid_of;
use crate::shared::hazard::{Hazard, full_fence};
use crate::shared::slot::{Claim, Delivery, EAGER, SlotHeader};

/// What a completion says of a datagram's packet.
#[derive(Clone, Copy, Debug, Default)]
struct PacketOrigin {
    service_level: u8,
    slid: u16,
}

/// The most cache lines of a message to prefetch: as many as a processor fetches at a time.
const FETCHED: usize = 16;

impl Qp {
    /// Executes `ibv_post_recv`.
    ///
    /// # Errors
    ///
    /// An errno, with the request that was refused: `EINVAL` in the wrong state, with a shared
    /// receive queue, or for too many entries; `ENOMEM` if the queue is full.
    ///
    /// # Safety
    ///
    /// `wr` is a valid list of requests.
    pub(crate) unsafe fn post_receives(
        self: &Arc<Self>,
        mut wr: *mut ibv_recv_wr,
    ) -> Result<(), (i32, *mut ibv_recv_wr)> {
        self.context.check_process().map_err(|error| (error, wr))?;
        let Some(queue) = self.receiving.own() else { return Err((libc::EINVAL, wr)) };
        if self.is_xrc() {
            return Err((libc::EINVAL, wr));
        }
        if self.state() == ibv_qp_state::IBV_QPS_RESET {
            return Err((self.refusal(), wr));
        }
        let mut queue = queue.lock();
        let mut posted = 0;
        let mut result = Ok(());
        while !wr.is_null() {
            // SAFETY: the caller guarantees a valid list of requests.
            if let Err(error) = unsafe { queue.post(wr) } {
                result = Err((error, wr));
                break;
            }
            posted += 1;
            // SAFETY: the caller guarantees a valid list of requests.
            wr = unsafe { (*wr).next };
        }
        drop(queue);
        if self.is_flushing() {
            self.announce_flushed(posted);
        }
        result
    }

    /// Hands at most `room` receive completions to `sink`. One thread at a time calls it, under the
    /// poll lock of the completion queue.
    pub(crate) fn poll_receives(self: &Arc<Self>, room: usize, sink: &mut impl FnMut(Cqe)) -> SourcePoll {
        let mut next = None;
        for _ in 0..room {
            match self.next_receive(&mut next) {
                Some((cqe, failed)) => {
                    let through = cqe.qp_num;
                    sink(cqe);
                    if failed {
                        self.fail_pair(through);
                    }
                }
                None => return SourcePoll { more: self.is_flushing() && self.is_behind_requests(), next },
            }
        }
        // If the next message has not arrived yet, its sender will find that the ready bit was
        // taken.
        // SAFETY: a slot of the receive queue, in the segment of this process.
        let there = next.is_none_or(|slot| unsafe { slot.as_ref() }.is_done());
        SourcePoll { more: there || self.is_flushing(), next }
    }

    /// Fails the queue pair by which a failed receive arrived. A target in another process was told
    /// by the sender, unless the failure was found here.
    #[cold]
    fn fail_pair(self: &Arc<Self>, through: u32) {
        if !self.receives_for_others() {
            self.fail();
        } else if let Some(target) = self.pair_of(through).filter(|pair| pair.is_target()) {
            target.fail();
        }
    }

    /// How many completions a poll would find.
    pub(crate) fn receives_waiting(&self) -> usize {
        let mut pending = Vec::new();
        self.pending_arrivals(&mut pending);
        let (posted, done) = self.receiving.own().map_or((0, 0), |queue| queue.lock().count());
        let come = if self.receiving.arrivals.is_some() { pending.len() } else { done as usize };
        come + if self.is_flushing() { posted as usize } else { 0 }
    }

    /// Applies fault rules to a receive. Returns its status, and whether a rule has failed the
    /// queue pair.
    #[cold]
    #[inline(never)]
    fn alter_receive(
        self: &Arc<Self>,
        status: ibv_wc_status,
        size: u64,
        through: u32,
    ) -> (ibv_wc_status, bool) {
        let (mut altered, mut failed) = (status, false);
        if let Some(set) = faults::current() {
            let seen = self.seen_by(Opcode::Recv, size, through);
            set.on_work(&seen, |entry, drawn| match entry.rule.action() {
                Action::Status(status) => altered = *status,
                Action::QpFatal => {
                    self.pair_of(through)
                        .into_iter()
                        .for_each(|pair| pair.apply_fault(&Action::QpFatal, seen.port, true, drawn));
                    failed = true;
                }
                action => self.apply_fault(action, seen.port, true, drawn),
            });
        }
        (altered, failed)
    }

    /// Whether completions of requests wait in the same completion queue. The failed request must
    /// come before the receives that are flushed because of it.
    fn is_behind_requests(&self) -> bool {
        Arc::ptr_eq(self.send_cq.get(), self.recv_cq.get()) && self.recv_cq.has_own()
    }

    /// The next receive completion, and whether it fails the queue pair. Sets `next` to the slot
    /// where the following message will arrive.
    fn next_receive(self: &Arc<Self>, next: &mut Option<NonNull<SlotHeader>>) -> Option<(Cqe, bool)> {
        let reported = match &self.receiving.arrivals {
            Some(arrivals) => arrivals.take(|slot| self.take_arrival(slot)),
            None => self.take_oldest(next),
        };
        if reported.is_some() || !self.is_flushing() || self.is_behind_requests() {
            return reported;
        }
        let taken_back = self.receiving.own()?.lock().take_back();
        taken_back.map(|wr_id| (self.flushed(wr_id), false))
    }

    /// The next completion of a queue whose receives are filled in order.
    #[inline]
    fn take_oldest(self: &Arc<Self>, next: &mut Option<NonNull<SlotHeader>>) -> Option<(Cqe, bool)> {
        let mut queue = self.receiving.queue();
        let received = queue.oldest()?;
        let reported = self.report(&queue, &received, self.number.qpn);
        queue.consume(received.slot);
        *next = Some(queue.next_message());
        Some(reported)
    }

    /// The completion of a receive that a peer has announced. `None` for a slot that holds no
    /// finished receive of this queue pair, which is the peer's mistake.
    fn take_arrival(self: &Arc<Self>, slot: u32) -> Option<(Cqe, bool)> {
        let mut queue = self.receiving.queue();
        let received = self.arrival(&queue, slot)?;
        let others = self.receives_for_others();
        let through = if others { queue.source(slot)[0] as u32 & 0xff_ffff } else { self.number.qpn };
        let reported = self.report(&queue, &received, through);
        queue.consume(slot);
        Some(reported)
    }

    /// Whether unclaimed receives are flushed: in the error state.
    fn is_flushing(&self) -> bool {
        self.state() == ibv_qp_state::IBV_QPS_ERR && !self.is_silent()
    }

    fn flushed(&self, wr_id: u64) -> Cqe {
        Cqe {
            wr_id,
            status: ibv_wc_status::IBV_WC_WR_FLUSH_ERR.0,
            opcode: ibv_wc_opcode::IBV_WC_RECV.0,
            qp_num: self.number.qpn,
            ..Cqe::default()
        }
    }

    /// Turns a finished receive into its completion, after scattering the bytes that arrived in the
    /// slot. `through` is the queue pair by which it arrived.
    fn report(self: &Arc<Self>, queue: &ReceiveQueue, received: &FinishedRecv, through: u32) -> (Cqe, bool) {
        let delivery = &received.delivery;
        let datagram = self.qp_type == ibv_qp_type::IBV_QPT_UD;
        let header = if datagram { GRH } else { 0 };
        let with_data = delivery.opcode == 0;
        let told = u64::from(delivery.byte_len);
        let byte_len = if with_data { told.min(received.room) } else { told };
        let (mut status, mut origin) = (status_of(delivery.status), PacketOrigin::default());
        if status == ibv_wc_status::IBV_WC_SUCCESS && with_data && (delivery.eager || datagram) {
            match self.scatter(queue, received, header, byte_len) {
                Ok(found) => origin = found,
                Err(failed) => status = failed,
            }
        }
        if with_data && !delivery.eager {
            Self::fetch_first(queue.entries(received.slot), byte_len);
        }
        let invalidates = u32::from(delivery.wc_flags) & ibv_wc_flags::IBV_WC_WITH_INV.0 != 0;
        if invalidates && !datagram && status == ibv_wc_status::IBV_WC_SUCCESS {
            status = self.confirm_invalidated(delivery.imm_data, status);
        }
        let ended;
        (status, ended) =
            if faults::active() { self.alter_receive(status, byte_len, through) } else { (status, false) };
        let failed = status != ibv_wc_status::IBV_WC_SUCCESS;
        let mut allowed = ibv_wc_flags::IBV_WC_WITH_IMM.0;
        allowed |= if datagram { ibv_wc_flags::IBV_WC_GRH.0 } else { ibv_wc_flags::IBV_WC_WITH_INV.0 };
        let opcode =
            if with_data { ibv_wc_opcode::IBV_WC_RECV } else { ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM };
        let cqe = Cqe {
            wr_id: received.wr_id,
            status: status.0,
            opcode: opcode.0,
            byte_len: byte_len as u32,
            imm_data: delivery.imm_data,
            qp_num: through,
            src_qp: delivery.src_qp & 0xff_ffff,
            wc_flags: u32::from(delivery.wc_flags) & allowed,
            sl: origin.service_level,
            slid: origin.slid,
            ..Cqe::default()
        };
        (cqe, ended || failed && !datagram)
    }

    /// Prefetches the beginning of a message, which the program reads next. It is in memory or in
    /// the cache of the sender's processor.
    #[inline]
    fn fetch_first(entries: &[ibv_sge], byte_len: u64) {
        let Some(entry) = entries.first() else { return };
        let bytes = byte_len.min(entry.length.into()) as usize;
        let at = core::ptr::without_provenance(entry.addr as usize);
        copy::fetch_to_read(at, bytes.div_ceil(copy::LINE).min(FETCHED));
    }

    /// Copies the bytes that arrived in the slot to the receive's entries, under this process's
    /// keys. Returns what the completion says of a datagram's packet.
    fn scatter(
        &self,
        queue: &ReceiveQueue,
        received: &FinishedRecv,
        header: usize,
        byte_len: u64,
    ) -> Result<PacketOrigin, ibv_wc_status> {
        let mut origin = PacketOrigin::default();
        if header == 0 && self.scatter_fast(queue, received, byte_len) {
            return Ok(origin);
        }
        let transfer_slot = self.rnic.node().transfer_slot(self.number.index as usize);
        let hazard = self.rnic.node().local_hazard(transfer_slot.index());
        let mut gather_list = GatherList::default();
        let pd = self.domain_of_receives();
        let entries = queue.entries(received.slot);
        let mut result =
            self.gather_entries(entries, pd, byte_len, true, hazard, &mut gather_list).and_then(|()| {
                full_fence();
                if gather_list.is_current() { Ok(()) } else { Err(ibv_wc_status::IBV_WC_LOC_PROT_ERR) }
            });
        if result.is_ok() {
            let mut grh = [0; GRH];
            if header > 0 {
                (grh, origin) = self.origin(queue.source(received.slot), &received.delivery, byte_len);
            }
            let payload = (byte_len as usize).saturating_sub(header).min(EAGER);
            let eager = if received.delivery.eager { payload } else { 0 };
            let parts = [
                LocalPiece { at: grh.as_mut_ptr(), len: header.min(byte_len as usize) },
                LocalPiece { at: queue.eager(received.slot).cast_mut(), len: eager },
            ];
            // SAFETY: the keys of the destination are valid under a published hazard. The sources
            // are the header and the eager bytes of a slot that the owner holds.
            result = unsafe { scatter_parts(&gather_list, &parts) };
        }
        hazard.clear();
        result.map(|()| origin)
    }

    /// The same for a receive with one entry, as nearly all have. If it returns false, nothing has
    /// happened, and `scatter` must decide.
    #[inline]
    fn scatter_fast(&self, queue: &ReceiveQueue, received: &FinishedRecv, byte_len: u64) -> bool {
        let [entry] = queue.entries(received.slot) else { return false };
        let Some((region, snapshot, descriptor)) = self.rnic.regions().read(entry.lkey) else { return false };
        let pd = self.domain_of_receives();
        let allowed =
            descriptor.pd == pd && descriptor.access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 != 0;
        let fits = byte_len <= u64::from(entry.length).min(EAGER as u64);
        let Some(at) = descriptor.pointer(entry.addr, byte_len).filter(|_| allowed && fits) else {
            return false;
        };
        let transfer_slot = self.rnic.node().transfer_slot(self.number.index as usize);
        let hazard = self.rnic.node().local_hazard(transfer_slot.index());
        hazard.publish(Hazard::new(self.number.index, entry.lkey >> 8));
        let holds = region.is_current(snapshot);
        if holds {
            // SAFETY: the key of the destination is valid under a published hazard. The source is
            // the eager bytes of a slot that the owner holds.
            unsafe { copy::copy_unordered(at, queue.eager(received.slot), byte_len as usize) };
        }
        hazard.clear();
        holds
    }

    #[inline]
    pub(crate) fn domain_of_receives(&self) -> u32 {
        self.receiving.shared().map_or_else(|| self.pd.number(), |srq| srq.pd().number())
    }

    /// The bytes before a datagram's payload, and what its completion says of the packet.
    fn origin(&self, source: [u64; 3], delivery: &Delivery, byte_len: u64) -> ([u8; GRH], PacketOrigin) {
        let device = self.context.device();
        let fields = self.route(source, byte_len);
        let (grh, service_level) = fields.header(device.link);
        let slid = if device.is_infiniband() { lid::of_gid(fields.source) } else { 0 };
        // The bytes mean nothing if the packet has no such header.
        let has_grh = u32::from(delivery.wc_flags) & ibv_wc_flags::IBV_WC_GRH.0 != 0;
        (if has_grh { grh } else { [0; GRH] }, PacketOrigin { service_level, slid })
    }

    /// The fields of a datagram's global route header.
    fn route(&self, source: [u64; 3], byte_len: u64) -> GrhFields {
        let [low, high, to] = source;
        let port = self.context.device().port(self.published.lock().descriptor.port.into());
        let own = || port.and_then(|port| port.gid(usize::from((to >> 40) as u8))).map(|gid| gid.raw);
        let reached = match (to >> 48).checked_sub(1) {
            None => own(),
            Some(entry) => self.rnic.groups().gid(entry as u32),
        };
        GrhFields {
            source: gid_of([low, high]),
            destination: reached.unwrap_or_default(),
            traffic_class: to as u8,
            hop_limit: (to >> 8) as u8,
            flow_label: (to >> 16) as u32 & 0xf_ffff,
            payload: (byte_len as u16).saturating_sub(GRH as u16),
            service_level: (to >> 36) as u8 & 0xf,
        }
    }

    /// Lets polls take back the receives that nobody has claimed.
    pub(super) fn flush_receives(&self) {
        if let Some(queue) = self.receiving.own() {
            // Finished receives were announced. Claimed ones will be announced or come back.
            let (posted, _) = queue.lock().count();
            self.announce_flushed(posted);
        }
    }

    fn announce_flushed(&self, count: u32) {
        for _ in 0..count {
            self.recv_cq.source_ready(self.source(), true);
        }
    }

    /// Discards all posted and finished receives. No peer touches the queue any more.
    pub(super) fn forget_receives(&self) {
        self.windows.forget_unreported();
        if let Some(arrivals) = &self.receiving.arrivals {
            // Finished receives that were not polled are lost, and their slots are used up.
            while arrivals.take(|slot| self.drop_arrival(slot)).is_some() {}
            arrivals.clear();
        }
        if let Some(queue) = self.receiving.own() {
            let mut queue = queue.lock();
            let (posted, done) = queue.count();
            let flushed = if self.flushed.swap(0, Ordering::AcqRel) != 0 { posted } else { 0 };
            queue.clear();
            self.recv_cq.forget(done + flushed);
        }
    }

    fn arrival(&self, queue: &ReceiveQueue, slot: u32) -> Option<FinishedRecv> {
        let own = self.receiving.own().is_some();
        queue.at(slot).filter(|received| own || received.delivery.queue_pair == self.number.index)
    }

    fn drop_arrival(&self, slot: u32) -> Option<()> {
        let mut queue = self.receiving.queue();
        self.arrival(&queue, slot)?;
        queue.consume(slot);
        self.recv_cq.forget(1);
        Some(())
    }

    /// Recovers the slots of a dead peer: posts those again that it had claimed.
    pub(crate) fn peer_detached(self: &Arc<Self>, peer_id: u16) {
        let progress = self.progress_words();
        let mut told = Vec::new();
        self.pending_arrivals(&mut told);
        let left = self.receiving.own().is_some_and(|queue| {
            // Every receive that it had finished is complete, whether it was announced or not. The
            // first one that it had claimed but not finished is the next for a message.
            let arrivals = self.receiving.arrivals.as_ref();
            let complete = |slot| arrivals.is_none_or(|arrivals| told.contains(&slot) || arrivals.push(slot));
            let mut next = None;
            let recovering = |slot| *next.get_or_insert_with(|| progress.set_cursor(slot));
            queue.lock().recover(peer_id, complete, recovering)
        });
        if left || !told.is_empty() {
            self.recv_cq.look_at(self.source());
        }
    }

    /// Posts a receive again that a peer has left to its owner. The next message takes it.
    pub(crate) fn repost_slot(self: &Arc<Self>, slot: u32, claim: Claim) {
        let Some(queue) = self.receiving.own() else { return };
        let progress = self.progress_words();
        if queue.lock().repost_slot(slot, claim, || progress.set_cursor(slot)) && self.is_flushing() {
            // The flush had stopped at this slot.
            self.recv_cq.look_at(self.source());
        }
    }

    /// Adds the numbers of slots that peers have announced and no poll has taken.
    fn pending_arrivals(&self, pending: &mut Vec<u32>) {
        if let Some(arrivals) = &self.receiving.arrivals {
            arrivals.pending(pending);
        }
    }

    /// The same, if the queue pair uses a shared receive queue.
    pub(super) fn pending_shared(&self, pending: &mut Vec<u32>) {
        if self.receiving.shared().is_some() {
            self.pending_arrivals(pending);
        }
    }

    /// Retries the requests of this queue pair if they go to a dead peer.
    pub(crate) fn peer_lost(self: &Arc<Self>, process: &Arc<PeerProcess>) {
        let concerned =
            self.sending.lock().peer.as_ref().is_some_and(|peer| Arc::ptr_eq(&peer.process, process));
        if concerned {
            self.run(u32::MAX);
        }
    }
}

/// The status that a peer reports, if a receive can have it.
fn status_of(told: u8) -> ibv_wc_status {
    [
        ibv_wc_status::IBV_WC_SUCCESS,
        ibv_wc_status::IBV_WC_LOC_LEN_ERR,
        ibv_wc_status::IBV_WC_LOC_PROT_ERR,
        ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
        ibv_wc_status::IBV_WC_LOC_ACCESS_ERR,
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
    ]
    .into_iter()
    .find(|status| status.0 == u32::from(told))
    .unwrap_or(ibv_wc_status::IBV_WC_GENERAL_ERR)
}

/// Copies parts, one after the other, into pieces.
///
/// # Errors
///
/// The receive's status if a piece has no memory.
///
/// # Safety
///
/// All pieces may be written and all parts read.
unsafe fn scatter_parts(gather_list: &GatherList<'_>, parts: &[LocalPiece]) -> Result<(), ibv_wc_status> {
    let mut pieces = gather_list.pieces.iter().copied();
    let mut to = pieces.next();
    for part in parts {
        let mut done = 0;
        while done < part.len {
            let Some(piece) = &mut to else { return Ok(()) };
            let len = piece.len.min(part.len - done);
            // SAFETY: the caller guarantees that the piece may be written and the part read; both
            // have `len` bytes from here on.
            unsafe {
                LocalPiece { at: piece.at, len }.write(gather_list.by_system, part.at.wrapping_add(done))
            }
            .map_err(|_| ibv_wc_status::IBV_WC_LOC_PROT_ERR)?;
            done += len;
            *piece = LocalPiece { at: piece.at.wrapping_add(len), len: piece.len - len };
            if piece.len == 0 {
                to = pieces.next();
            }
        }
    }
    Ok(())
}
