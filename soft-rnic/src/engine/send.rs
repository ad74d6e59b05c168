//! SEND, and every other message that consumes a receive: RDMA WRITE with immediate data, datagrams.

use std::sync::Arc;

use rdma_mummy_sys::types::{
    ibv_access_flags, ibv_qp_type, ibv_send_flags, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

use super::connected::{Nak, TransferError};
use super::fast_path::mapped_pointer;
use super::payload::{Direction, RemotePiece, RemotePieces, RemotePlace};
use super::peer::PeerQp;
use super::rpc::abandon_to_owner;
use super::validate::revalidate;
use super::{CopyError, Deferred, TransferCtx, WrOutcome};
use crate::faults::injected::{reach, skips_fast_path};
use crate::faults::{self, Step};
use crate::node::{Doorbell, PayloadPath, PeerProcess, TransferSlotGuard};
use crate::platform::copy;
use crate::queue_pair::Qp;
use crate::queue_pair::send_queue::PostedSend;
use crate::shared::completion::{CqEntry, Fired};
use crate::shared::entry::{MrDescriptor, MrEntry, kind};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::{Hazard, full_fence};
use crate::shared::progress::notice;
use crate::shared::segment::{MAX_SGE, RecvOffer, RecvSlot, Slots};
use crate::shared::slot::{Claim, Delivery, EAGER, RecvCapacity, SgeEntry, claim_first};
use crate::sync::Relaxed;

const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;

/// The length of the global route header, which precedes the payload of a datagram.
pub(crate) const GRH: usize = 40;

/// A receive that this process has claimed, and what it needs to give it back.
pub(super) struct ClaimedRecv<'a> {
    pub(super) slot: RecvSlot<'a>,
    pub(super) offer: RecvOffer<'a>,
    claim: Claim,
    index: u32,
}

/// What the receiver learns in addition to the payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecvMeta {
    pub(crate) header: usize,
    /// Whether the packets have a global route header. The receive keeps 40 bytes for it in any case.
    pub(crate) has_grh: bool,
    /// Whether `source` is valid.
    pub(crate) has_source: bool,
    pub(crate) source: [u64; 3],
}

/// Copies a message to memory that the peer's program will read. The bytes of a SEND have no order
/// before its completion.
///
/// # Safety
///
/// The hazards are set and a full fence has followed. All pieces may be read, and `there` has room
/// for them.
unsafe fn stream(ctx: TransferCtx<'_>, mut there: *mut u8) {
    for piece in &ctx.gather_list.pieces {
        // SAFETY: the contract of `stream`: all pieces may be read, and `there` has room for them.
        unsafe { copy::copy_streamed(there, piece.at, piece.len) };
        there = there.wrapping_add(piece.len);
    }
}

impl Qp {
    /// Delivers a message and publishes the hazards for it.
    pub(crate) fn send(
        self: &Arc<Self>,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
        deferred: &mut Deferred,
    ) -> Result<WrOutcome, TransferError> {
        self.send_with_meta(RecvMeta::default(), posted, ctx, deferred)
    }

    /// Like [`send`](Self::send), with `meta` for the receiver.
    pub(crate) fn send_with_meta(
        self: &Arc<Self>,
        meta: RecvMeta,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
        deferred: &mut Deferred,
    ) -> Result<WrOutcome, TransferError> {
        let TransferCtx { peer, gather_list, hazards, .. } = ctx;
        reach(Step::BeforeMark);
        hazards.remote.set(Hazard::new(peer.hazard_index, Hazard::NO_REGION));
        revalidate(peer, || true, || gather_list.is_current())?;
        reach(Step::BeforeClaim);
        let claimed = self.claim_receive(peer, deferred).or_else(|error| {
            // A queue pair that has left RTS has taken its receives back, and answers nothing.
            revalidate(peer, || true, || gather_list.is_current()).and(Err(error))
        })?;
        reach(Step::Claimed);
        let filled = if is_write(posted) {
            self.write_before_imm(posted, ctx)
        } else {
            let filled = self.scatter_payload(meta, posted, ctx, &claimed);
            filled.and_then(|eager| self.invalidate_at_peer(posted, ctx).map(|()| eager))
        };
        match filled {
            Ok(eager) => self.complete_receive(
                meta,
                posted,
                peer,
                &claimed,
                eager,
                ibv_wc_status::IBV_WC_SUCCESS,
                deferred,
            ),
            Err(error) => self.fail_receive(meta, posted, ctx, &claimed, error, deferred),
        }
    }

    /// Claims the receive that the message consumes.
    pub(super) fn claim_receive<'a>(
        &self,
        peer: &'a PeerQp,
        deferred: &mut Deferred,
    ) -> Result<ClaimedRecv<'a>, TransferError> {
        let descriptor = &peer.descriptor;
        let slots = peer.slots.as_ref().ok_or(TransferError::Nak(Nak::RemoteOperation))?;
        if let Some(srq) = descriptor.srq.checked_sub(1) {
            return self.claim_shared_receive(peer, slots, srq, deferred);
        }
        // A connected queue pair has one sender, which takes the slots in order. Datagrams come
        // from many senders.
        let datagram = u32::from(descriptor.qp_type) == ibv_qp_type::IBV_QPT_UD.0;
        let among = if datagram { slots.count() } else { 1 };
        let claimed = claim_first_posted(peer, slots, peer.progress_words().cursor(), among)?;
        peer.progress_words().set_cursor(slots.next(claimed.index));
        Ok(claimed)
    }

    fn claim_shared_receive<'a>(
        &self,
        peer: &'a PeerQp,
        slots: &Slots,
        srq: u32,
        deferred: &mut Deferred,
    ) -> Result<ClaimedRecv<'a>, TransferError> {
        let counters = peer.process.segment().counters(srq);
        let counters = counters.ok_or(TransferError::Nak(Nak::RemoteOperation))?;
        if !counters.has_available() {
            return Err(TransferError::NoReceivePosted);
        }
        let claimed = claim_first_posted(peer, slots, counters.hint(), slots.count())?;
        counters.set_hint(slots.next(claimed.index));
        if counters.take_available() {
            deferred.ring(&peer.process, Doorbell::Srq(srq));
        }
        Ok(claimed)
    }

    /// Puts the payload where the receive says. Returns true if it lies in the slot and the owner
    /// must scatter it.
    fn scatter_payload(
        &self,
        meta: RecvMeta,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
        claimed: &ClaimedRecv<'_>,
    ) -> Result<bool, TransferError> {
        let TransferCtx { peer, gather_list, hazards, .. } = ctx;
        let length = posted.request.length as usize;
        let mut entries = RecvSges::default();
        entries.check(peer, claimed, length + meta.header)?;
        let eager = length <= EAGER && !entries.may_lack_memory() && !(faults::active() && skips_fast_path());
        if eager {
            reach(Step::BeforeCopy);
            // SAFETY: local pieces under a published hazard. Together they are at most as long as
            // the eager bytes, which belong to the holder of the claim.
            unsafe { gather_list.read_all(claimed.slot.eager.as_ptr())? };
            let path = if peer.process.is_own() { PayloadPath::Own } else { PayloadPath::Slot };
            ctx.count(path, length);
            return Ok(true);
        }
        if peer.process.is_own() {
            // The hazard covers both source and destination.
            hazards.local.set(Hazard::new(peer.hazard_index, Hazard::ANY_REGION));
        }
        hazards.remote.set(Hazard::new(peer.hazard_index, entries.hazard_region()));
        revalidate(peer, || entries.are_current(&peer.process), || true)?;
        let remotes = self.remote_pieces(ctx, &entries, meta.header)?;
        peer.kernel_cannot_copy
            .set(!remotes.iter().any(|remote| matches!(remote.place, RemotePlace::ByKernel(_))));
        if let [RemotePiece { place: RemotePlace::Mapped(there), .. }] = remotes.as_slice()
            && length >= copy::STREAMED
            && !faults::active()
            && gather_list.by_system.is_none()
        {
            // SAFETY: the hazards are set and `revalidate` has compared all snapshots. The entry
            // has room for the message.
            unsafe { stream(ctx, *there) };
            ctx.count(ctx.mapped(), length);
            return Ok(false);
        }
        // SAFETY: the hazards are set and a full fence has followed. Local and remote keys are
        // valid.
        match unsafe { self.move_payload(ctx, Direction::Write, &remotes) } {
            Ok(()) => Ok(false),
            // The memory of the receive is missing, which ends the receive.
            Err(CopyError::BadAddress) => Err(TransferError::Nak(Nak::RemoteOperation)),
            Err(error) => Err(error.into()),
        }
    }

    /// The remote pieces of the entries after the first `skip` bytes. The hazards are set and a
    /// full fence has followed.
    fn remote_pieces(
        &self,
        ctx: TransferCtx<'_>,
        entries: &RecvSges,
        mut skip: usize,
    ) -> Result<RemotePieces, TransferError> {
        let mut remotes = RemotePieces::new();
        for entry in &entries.pieces {
            let skipped = skip.min(entry.length as usize);
            skip -= skipped;
            let (address, len) =
                (entry.address.wrapping_add(skipped as u64), entry.length as usize - skipped);
            if len > 0 {
                let place = self.locate(ctx, entry.lkey, &entry.descriptor, address, len as u64, true);
                let place = place.ok_or(TransferError::Nak(Nak::RemoteOperation))?;
                remotes.push(RemotePiece { place, len, key: entry.lkey, address });
            }
        }
        Ok(remotes)
    }

    /// Completes a claimed receive and announces it to its completion queue.
    #[allow(clippy::too_many_arguments)] // The parts of a message.
    pub(super) fn complete_receive(
        &self,
        meta: RecvMeta,
        posted: &PostedSend<'_>,
        peer: &PeerQp,
        claimed: &ClaimedRecv<'_>,
        eager: bool,
        status: ibv_wc_status,
        deferred: &mut Deferred,
    ) -> Result<WrOutcome, TransferError> {
        let request = posted.request;
        let with_imm = matches!(
            request.opcode,
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        );
        let opcode = if is_write(posted) {
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
        } else {
            ibv_wc_opcode::IBV_WC_RECV
        };
        let mut wc_flags = 0;
        if with_imm {
            wc_flags |= ibv_wc_flags::IBV_WC_WITH_IMM.0;
        }
        if request.opcode == ibv_wr_opcode::IBV_WR_SEND_WITH_INV {
            wc_flags |= ibv_wc_flags::IBV_WC_WITH_INV.0;
        }
        if meta.has_grh {
            wc_flags |= ibv_wc_flags::IBV_WC_GRH.0;
        }
        let delivery = Delivery {
            status: status.0 as u8,
            opcode: (opcode.0 - ibv_wc_opcode::IBV_WC_RECV.0) as u8,
            wc_flags: wc_flags as u8,
            eager,
            byte_len: (request.length as usize + meta.header) as u32,
            imm_data: request.imm_data,
            src_qp: self.number.qpn,
            queue_pair: peer.index,
        };
        if meta.has_source {
            for (word, value) in claimed.slot.source.iter().zip(meta.source) {
                word.store(value, Relaxed);
            }
        }
        reach(Step::BeforeFinish);
        if !claimed.slot.header.finish(claimed.claim, &delivery) {
            return Err(TransferError::Copy(CopyError::PeerGone));
        }
        reach(Step::BeforeAnnounce);
        let segment = peer.process.segment();
        let descriptor = &peer.descriptor;
        if descriptor.ring_words != 0 {
            let pushed = segment
                .ring(descriptor.ring_offset, descriptor.ring_words)
                .is_some_and(|ring| ring.push(claimed.index));
            if !pushed {
                return Err(TransferError::Nak(Nak::RemoteOperation));
            }
        }
        let failed = status != ibv_wc_status::IBV_WC_SUCCESS;
        self.announce_completion(peer, failed || request.has(ibv_send_flags::IBV_SEND_SOLICITED), deferred);
        Ok(WrOutcome::Done)
    }

    /// Announces a completion to the receive completion queue, and wakes its owner if it is armed.
    #[inline]
    pub(super) fn announce_completion(&self, peer: &PeerQp, solicited: bool, deferred: &mut Deferred) {
        let descriptor = &peer.descriptor;
        let Some(entry) = peer.process.segment().completion_queue(descriptor.recv_cq) else { return };
        let announced = entry.announce(descriptor.source, solicited);
        reach(Step::BeforeDoorbell);
        if announced.wake {
            self.wake_owner(entry, peer, deferred);
        } else if announced.overrun {
            deferred.ring(&peer.process, Doorbell::Cq(descriptor.recv_cq));
        }
    }

    /// Handles a message that was not delivered. The receive goes back, unless it is at fault
    /// itself or its owner still works on it.
    fn fail_receive(
        &self,
        meta: RecvMeta,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
        claimed: &ClaimedRecv<'_>,
        error: TransferError,
        deferred: &mut Deferred,
    ) -> Result<WrOutcome, TransferError> {
        let peer = ctx.peer;
        if error == TransferError::Copy(CopyError::OwnerBusy)
            && abandon_to_owner(ctx, claimed.index, claimed.claim)
        {
            return Err(error);
        }
        let reliable = self.is_reliable();
        let status = match error {
            TransferError::Nak(Nak::InvalidRequest) if !is_write(posted) => ibv_wc_status::IBV_WC_LOC_LEN_ERR,
            TransferError::Nak(Nak::RemoteOperation) => ibv_wc_status::IBV_WC_LOC_PROT_ERR,
            TransferError::Nak(Nak::Invalidation) => ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
            _ => ibv_wc_status::IBV_WC_SUCCESS,
        };
        if !reliable && error == TransferError::Nak(Nak::RemoteOperation) {
            // The receive is at fault, and would be for the next message, too.
            return self.complete_receive(meta, posted, peer, claimed, false, status, deferred);
        }
        if reliable && status != ibv_wc_status::IBV_WC_SUCCESS {
            peer.progress_words().leave_notice(notice::RECEIVE_ERROR);
            deferred.notice(&peer.process, peer.index);
            self.complete_receive(meta, posted, peer, claimed, false, status, deferred)?;
            // The error completion informs the responder. A notice would raise an event, which is
            // for requests that end no receive.
            return Ok(WrOutcome::Failed(if status == ibv_wc_status::IBV_WC_LOC_LEN_ERR {
                ibv_wc_status::IBV_WC_REM_INV_REQ_ERR
            } else {
                ibv_wc_status::IBV_WC_REM_OP_ERR
            }));
        }
        unclaim_receive(peer, claimed);
        self.resume_flush(peer, deferred);
        Err(error)
    }

    /// Wakes an owner whose flush stopped at a claimed receive, after receives were given back.
    pub(super) fn resume_flush(&self, peer: &PeerQp, deferred: &mut Deferred) {
        // Pairs with the fence of the owner: either the owner sees the slot that was given back, or
        // this side sees the state that the owner has set.
        full_fence();
        if !peer.entry().is_current(peer.snapshot)
            && let Some(entry) = peer.process.segment().completion_queue(peer.descriptor.recv_cq)
            && entry.nudge(peer.descriptor.source)
        {
            self.wake_owner(entry, peer, deferred);
        }
    }

    /// Wakes the owner of a completion queue whose arming this announcement has consumed.
    #[cold]
    fn wake_owner(&self, entry: &CqEntry, peer: &PeerQp, deferred: &mut Deferred) {
        let wakes = || peer.process.channels()?.wake(entry.channel()?).then_some(());
        match entry.fire() {
            // The arming stays taken until the owner takes the note. Otherwise a peer that is stopped
            // here could end a later arming, whose taker may be stopped before it leaves a note.
            Fired::Woken => {}
            Fired::First(note) if wakes().is_some() => entry.woken(note),
            Fired::First(_) | Fired::Again => {
                deferred.ring(&peer.process, Doorbell::Cq(peer.descriptor.recv_cq));
                entry.told();
            }
        }
    }

    /// How a range of a peer's region is reached. The hazards are set, a full fence has followed
    /// and the descriptor is current.
    pub(crate) fn locate(
        &self,
        ctx: TransferCtx<'_>,
        key: u32,
        descriptor: &MrDescriptor,
        address: u64,
        length: u64,
        writes: bool,
    ) -> Option<RemotePlace> {
        let process = &ctx.peer.process;
        if process.is_own() {
            // For this process the pointer comes from the private tables, because peers can write
            // into the segment.
            let (region, snapshot, own) = self.rnic.regions().read(key)?;
            let allowed =
                own.pd == descriptor.pd && own.access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 != 0;
            let allowed = allowed && region.is_current(snapshot);
            if own.access & kind::NULL != 0 {
                return allowed.then_some(RemotePlace::Null);
            }
            return RemotePlace::own(&own, address, length).filter(|_| allowed);
        }
        if descriptor.is_null() {
            return Some(RemotePlace::Null);
        }
        if let Some(at) = map_for(ctx.peer, ctx.transfer_slot, descriptor, address, length, writes) {
            return Some(RemotePlace::Mapped(at));
        }
        let there = descriptor.address.wrapping_add(address.wrapping_sub(descriptor.iova));
        let by_system = descriptor.access & kind::OWNER_ONLY == 0 && process.vm().is_some();
        Some(if by_system { RemotePlace::ByKernel(there) } else { RemotePlace::ByOwner })
    }
}

/// Claims the first posted receive among `among` slots, beginning at `first`.
#[inline(always)]
fn claim_first_posted<'a>(
    peer: &'a PeerQp,
    slots: &Slots,
    first: u32,
    among: u32,
) -> Result<ClaimedRecv<'a>, TransferError> {
    let segment = peer.process.segment();
    let first = first % slots.count();
    let index = |step| (first + step) % slots.count();
    let header = |step| segment.slot(slots, index(step)).map(|slot| slot.header);
    let (step, claim) =
        claim_first(among, peer.process.number(), header).ok_or(TransferError::NoReceivePosted)?;
    let index = index(step);
    let bad = TransferError::Nak(Nak::RemoteOperation);
    let (slot, offer) = (segment.slot(slots, index).ok_or(bad)?, segment.offer(slots, index).ok_or(bad)?);
    Ok(ClaimedRecv { slot, offer, claim, index })
}

/// The pointer to a range of a peer's region that is mapped here, if the region allows the access.
#[inline]
pub(super) fn map_for(
    peer: &PeerQp,
    transfer_slot: &TransferSlotGuard<'_>,
    descriptor: &MrDescriptor,
    address: u64,
    length: u64,
    writes: bool,
) -> Option<*mut u8> {
    if descriptor.export == 0
        || (writes && descriptor.access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 == 0)
    {
        return None;
    }
    let direction = if writes { Direction::Write } else { Direction::Read };
    mapped_pointer(peer, transfer_slot, descriptor, address, length, direction)
}

/// Gives a claimed receive back, so that the next message takes it.
pub(super) fn unclaim_receive(peer: &PeerQp, claimed: &ClaimedRecv<'_>) {
    match peer.descriptor.srq.checked_sub(1) {
        // Add it to the count before it can be claimed. The hint makes it the next to be claimed,
        // so that a retry takes the same receive.
        Some(srq) => peer.process.segment().counters(srq).into_iter().for_each(|counters| {
            counters.add_available(1);
            counters.set_hint(claimed.index);
        }),
        None => peer.progress_words().set_cursor(claimed.index),
    }
    claimed.slot.header.unclaim(claimed.claim);
}

/// An RDMA WRITE with immediate data consumes a receive but does not use its memory.
fn is_write(posted: &PostedSend<'_>) -> bool {
    posted.request.opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
}

/// A scatter entry whose key was looked up.
pub(super) struct RecvSge {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
    pub(super) snapshot: GenerationSnapshot,
    pub(super) descriptor: MrDescriptor,
}

/// The entries of a receive that a message fills.
#[derive(Default)]
pub(super) struct RecvSges {
    pub(super) pieces: arrayvec::ArrayVec<RecvSge, MAX_SGE>,
}

impl RecvSges {
    /// Reads the entries that `length` bytes fill, and looks up their keys. All values come from
    /// the peer, so an invalid one fails the receive and has no other effect. The owner's offer must
    /// be that of the claimed receive, because any process can change the slot.
    ///
    /// The list is an argument, because to return it would copy kilobytes.
    pub(super) fn check(
        &mut self,
        peer: &PeerQp,
        claimed: &ClaimedRecv<'_>,
        length: usize,
    ) -> Result<(), TransferError> {
        let mut left = length;
        let bad = TransferError::Nak(Nak::RemoteOperation);
        let offered = claimed.offer.header.read(claimed.claim).ok_or(bad)?;
        let room = offered.room();
        if length > room.bytes as usize {
            return Err(TransferError::Nak(Nak::InvalidRequest));
        }
        for sge in claimed.offer.entries.iter().take(room.entries as usize) {
            if left == 0 {
                break;
            }
            let (address, length, lkey) = sge.load();
            let length = length.min(left.try_into().unwrap_or(u32::MAX));
            if length == 0 {
                continue;
            }
            let (snapshot, descriptor) =
                region_entry(&peer.process, lkey).and_then(MrEntry::read).ok_or(bad)?;
            let good = snapshot.label() == lkey as u8
                && descriptor.pd == peer.receive_pd
                && descriptor.access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 != 0
                && (descriptor.contains(address, length.into()) || descriptor.is_null());
            if !good {
                return Err(bad);
            }
            left -= length as usize;
            self.pieces.push(RecvSge { address, length, lkey, snapshot, descriptor });
        }
        if left == 0 && claimed.offer.header.is_current(offered) { Ok(()) } else { Err(bad) }
    }

    /// Whether only a copy finds out that memory is missing.
    fn may_lack_memory(&self) -> bool {
        self.pieces.iter().any(|entry| entry.descriptor.access & kind::IMPLICIT != 0)
    }

    fn hazard_region(&self) -> u32 {
        match self.pieces.as_slice() {
            [] => Hazard::NO_REGION,
            [only] => only.lkey >> 8,
            _ => Hazard::ANY_REGION,
        }
    }

    fn are_current(&self, process: &PeerProcess) -> bool {
        self.pieces.iter().all(|entry| {
            region_entry(process, entry.lkey).is_some_and(|region| region.is_current(entry.snapshot))
        })
    }
}

/// Whether the entries of a receive are valid for `length` bytes in the protection domain of the
/// queue pair. This check informs the sender; the owner checks again when it scatters the bytes.
/// The first entry is usually enough, and lies beside the slot's state.
#[inline]
pub(super) fn sges_are_valid<'a>(
    peer: &PeerQp,
    first: &'a SgeEntry,
    offer: impl Fn() -> Option<RecvOffer<'a>>,
    room: RecvCapacity,
    length: usize,
) -> bool {
    let mut left = length as u64;
    for number in 0..room.entries as usize {
        if left == 0 {
            break;
        }
        let entry = if number == 0 {
            first
        } else if let Some(entry) = offer().and_then(|offer| offer.entries.get(number)) {
            entry
        } else {
            return false;
        };
        let (address, length, lkey) = entry.load();
        let length = u64::from(length).min(left);
        if length > 0 && !lkey_is_valid(peer, lkey, address, length) {
            return false;
        }
        left -= length;
    }
    left == 0
}

#[inline]
fn lkey_is_valid(peer: &PeerQp, lkey: u32, address: u64, length: u64) -> bool {
    let found = region_entry(&peer.process, lkey).and_then(MrEntry::read);
    found.is_some_and(|(snapshot, descriptor)| {
        snapshot.label() == lkey as u8
            && descriptor.pd == peer.descriptor.pd
            // The kernel must fill memory that may be missing, so that the sender learns of it.
            && descriptor.access & (LOCAL_WRITE | kind::IMPLICIT) == LOCAL_WRITE
            && descriptor.contains(address, length)
    })
}

fn region_entry(process: &PeerProcess, key: u32) -> Option<&MrEntry> {
    process.segment().region(key >> 8)
}
