//! Messages that take a receive of the peer: SEND, RDMA WRITE with immediate data, datagrams.

use std::sync::Arc;

use rdma_mummy_sys::types::{
    ibv_access_flags, ibv_qp_type, ibv_send_flags, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

use super::call::leave_to_owner;
use super::connected::{Refused, Stop};
use super::peer::Peer;
use super::short::mapped_pointer;
use super::transfer::{Direction, Place, Remote, Remotes};
use super::{After, Broken, Outcome, Way};
use crate::faults::injected::{reach, takes_the_long_way};
use crate::faults::{self, Step};
use crate::node::{Doorbell, PayloadPath, PeerProcess, TransferSlotGuard};
use crate::platform::copy;
use crate::queue_pair::Qp;
use crate::queue_pair::send_queue::Posted;
use crate::shared::completion::CqEntry;
use crate::shared::entry::{MrDescriptor, MrEntry, kind, notice};
use crate::shared::generation::GenerationSnapshot;
use crate::shared::hazard::{Hazard, full_fence};
use crate::shared::segment::{MAX_SGE, Slot, Slots};
use crate::shared::slot::{Claim, Delivery, EAGER, Room, claim_first};
use crate::sync::Relaxed;

/// Bytes before a datagram's payload: the global route header.
pub(crate) const GRH: usize = 40;

/// A slot that this process holds, and how to give it back.
pub(super) struct Taken<'a> {
    pub(super) slot: Slot<'a>,
    claim: Claim,
    index: u32,
    /// The domain whose keys the receive may use.
    pd: u32,
}

/// What the receiver is told beside the payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Envelope {
    pub(crate) header: usize,
    /// Whether `source` says anything.
    pub(crate) told: bool,
    pub(crate) source: [u64; 3],
}

/// Moves a message to where the peer's program is going to read it. A SEND's bytes are there with its completion, in no order before that.
///
/// # Safety
///
/// The hazards are set and a full fence has followed; all pieces may be read, and there is room for them.
unsafe fn stream(way: Way<'_>, mut there: *mut u8) {
    for piece in &way.gathered.pieces {
        // SAFETY: the caller's promise.
        unsafe { copy::copy_streamed(there, piece.at, piece.len) };
        there = there.wrapping_add(piece.len);
    }
}

impl Qp {
    /// Delivers a message. The hazards are published here.
    pub(crate) fn deliver(
        self: &Arc<Self>,
        posted: &Posted<'_>,
        way: Way<'_>,
        after: &mut After,
    ) -> Result<Outcome, Stop> {
        self.deliver_in(Envelope::default(), posted, way, after)
    }

    /// The same with an envelope.
    pub(crate) fn deliver_in(
        self: &Arc<Self>,
        envelope: Envelope,
        posted: &Posted<'_>,
        way: Way<'_>,
        after: &mut After,
    ) -> Result<Outcome, Stop> {
        let Way { peer, gathered, hazards, .. } = way;
        reach(Step::BeforeMark);
        hazards.remote.publish(Hazard::new(peer.hazard_index, Hazard::NO_REGION));
        if !peer.entry().is_current(peer.snapshot) {
            return Err(Stop::Changed);
        }
        if !gathered.is_current() {
            return Err(Stop::Local(ibv_wc_status::IBV_WC_LOC_PROT_ERR));
        }
        reach(Step::BeforeClaim);
        let taken = self.take_receive(peer, after)?;
        reach(Step::Claimed);
        let filled = if is_write(posted) {
            self.write_for(posted, way)
        } else {
            let filled = self.fill(envelope, posted, way, &taken);
            filled.and_then(|eager| self.invalidate_at_peer(posted, way).map(|()| eager))
        };
        match filled {
            Ok(eager) => {
                self.finish(envelope, posted, peer, &taken, eager, ibv_wc_status::IBV_WC_SUCCESS, after)
            }
            Err(stop) => self.give_up(envelope, posted, way, &taken, stop, after),
        }
    }

    /// Claims the receive that the message goes to.
    pub(super) fn take_receive<'a>(&self, peer: &'a Peer, after: &mut After) -> Result<Taken<'a>, Stop> {
        let descriptor = &peer.descriptor;
        if let Some(srq) = descriptor.srq.checked_sub(1) {
            return self.take_shared_receive(peer, srq, after);
        }
        let slots = peer.slots.as_ref().ok_or(Stop::Refused(Refused::Operation))?;
        // A connected queue pair has one sender, who takes slot after slot; datagrams come from many.
        let datagram = u32::from(descriptor.qp_type) == ibv_qp_type::IBV_QPT_UD.0;
        let among = if datagram { slots.count() } else { 1 };
        let taken = take_first(peer, slots, peer.entry().cursor(), among, descriptor.pd)?;
        peer.entry().set_cursor(slots.next(taken.index));
        Ok(taken)
    }

    fn take_shared_receive<'a>(
        &self,
        peer: &'a Peer,
        srq: u32,
        after: &mut After,
    ) -> Result<Taken<'a>, Stop> {
        let segment = peer.process.segment();
        let entry = segment.shared_queue(srq).ok_or(Stop::Refused(Refused::Operation))?;
        let (_, descriptor) = entry.read().ok_or(Stop::Refused(Refused::Operation))?;
        let slots = descriptor.slots.check().ok_or(Stop::Refused(Refused::Operation))?;
        if !entry.has_available() {
            return Err(Stop::NoReceive);
        }
        let taken = take_first(peer, &slots, entry.hint(), slots.count(), descriptor.pd)?;
        entry.set_hint(slots.next(taken.index));
        if entry.take_available() {
            after.ring(&peer.process, Doorbell::Srq(srq));
        }
        Ok(taken)
    }

    /// Puts the payload where the receive says; true if it lies in the slot, for the owner to scatter.
    fn fill(
        &self,
        envelope: Envelope,
        posted: &Posted<'_>,
        way: Way<'_>,
        taken: &Taken<'_>,
    ) -> Result<bool, Stop> {
        let Way { peer, gathered, hazards, .. } = way;
        let length = posted.request.length as usize;
        let room = taken.slot.header.room();
        if length + envelope.header > room.bytes as usize {
            return Err(Stop::Refused(Refused::Invalid));
        }
        let entries = Entries::check(peer, taken, room, length + envelope.header)?;
        let eager = length <= EAGER && !(faults::active() && takes_the_long_way());
        if eager {
            reach(Step::BeforeCopy);
            let mut at = taken.slot.eager.as_ptr();
            for piece in &gathered.pieces {
                // SAFETY: local pieces under a published hazard; together they are no longer than the eager bytes, which
                // belong to the holder of the claim.
                unsafe { copy::copy_unordered(at, piece.at, piece.len) };
                at = at.wrapping_add(piece.len);
            }
            let path = if peer.process.is_own() { PayloadPath::Own } else { PayloadPath::Slot };
            way.count(path, length);
            return Ok(true);
        }
        if peer.process.is_own() {
            // Source and destination: the hazard stands for both.
            hazards.local.set(Hazard::new(peer.hazard_index, Hazard::ANY_REGION));
        }
        hazards.remote.set(Hazard::new(peer.hazard_index, entries.hazard_region()));
        full_fence();
        if !entries.are_current(&peer.process) || !peer.entry().is_current(peer.snapshot) {
            return Err(Stop::Changed);
        }
        let remotes = self.places(way, &entries, envelope.header)?;
        peer.receives_apart.set(!remotes.iter().any(|remote| matches!(remote.place, Place::There(_))));
        if let [Remote { place: Place::Here(there), .. }] = remotes.as_slice()
            && length >= copy::STREAMED
            && !faults::active()
        {
            // SAFETY: as for `carry`; the entry has room for the message.
            unsafe { stream(way, *there) };
            way.count(way.mapped(), length);
            return Ok(false);
        }
        // SAFETY: the hazards are set and a full fence has followed; local and remote keys hold.
        unsafe { self.carry(way, Direction::Write, &remotes) }.map_err(Stop::Broken)?;
        Ok(false)
    }

    /// How each entry is reached, after the first `skip` bytes. The hazards are set and a full fence has followed.
    fn places(&self, way: Way<'_>, entries: &Entries, mut skip: usize) -> Result<Remotes, Stop> {
        let mut remotes = Remotes::new();
        for entry in &entries.pieces {
            let skipped = skip.min(entry.length as usize);
            skip -= skipped;
            let (address, len) =
                (entry.address.wrapping_add(skipped as u64), entry.length as usize - skipped);
            if len > 0 {
                let place = self.place(way, entry.lkey, &entry.descriptor, address, len as u64, true);
                let place = place.ok_or(Stop::Refused(Refused::Operation))?;
                remotes.push(Remote { place, len, key: entry.lkey, address });
            }
        }
        Ok(remotes)
    }

    /// The receive is complete.
    #[allow(clippy::too_many_arguments)] // What a message consists of.
    pub(super) fn finish(
        &self,
        envelope: Envelope,
        posted: &Posted<'_>,
        peer: &Peer,
        taken: &Taken<'_>,
        eager: bool,
        status: ibv_wc_status,
        after: &mut After,
    ) -> Result<Outcome, Stop> {
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
        if envelope.header > 0 {
            wc_flags |= ibv_wc_flags::IBV_WC_GRH.0;
        }
        let delivery = Delivery {
            status: status.0 as u8,
            opcode: (opcode.0 - ibv_wc_opcode::IBV_WC_RECV.0) as u8,
            wc_flags: wc_flags as u8,
            eager,
            byte_len: (request.length as usize + envelope.header) as u32,
            imm_data: request.imm_data,
            src_qp: self.number.qpn,
            queue_pair: peer.index,
        };
        if envelope.told {
            for (word, value) in taken.slot.source.iter().zip(envelope.source) {
                word.store(value, Relaxed);
            }
        }
        reach(Step::BeforeFinish);
        if !taken.slot.header.finish(taken.claim, &delivery) {
            return Err(Stop::Broken(Broken::Gone));
        }
        reach(Step::BeforeAnnounce);
        let segment = peer.process.segment();
        let descriptor = &peer.descriptor;
        if descriptor.ring_words != 0 {
            let pushed = segment
                .ring(descriptor.ring_offset, descriptor.ring_words)
                .is_some_and(|ring| ring.push(taken.index));
            if !pushed {
                return Err(Stop::Refused(Refused::Operation));
            }
        }
        let failed = status != ibv_wc_status::IBV_WC_SUCCESS;
        self.announce(peer, failed || request.has(ibv_send_flags::IBV_SEND_SOLICITED), after);
        Ok(Outcome::Done)
    }

    /// Tells the receive's completion queue that there is something.
    #[inline]
    pub(super) fn announce(&self, peer: &Peer, solicited: bool, after: &mut After) {
        let descriptor = &peer.descriptor;
        let Some(entry) = peer.process.segment().completion_queue(descriptor.recv_cq) else { return };
        let announced = entry.announce(descriptor.source, solicited);
        reach(Step::BeforeDoorbell);
        if announced.wake {
            self.wake(entry, peer, after);
        } else if announced.overrun {
            after.ring(&peer.process, Doorbell::Cq(descriptor.recv_cq));
        }
    }

    /// The message did not get there. What was claimed goes back, unless the receive itself is at fault, or its owner is at it.
    fn give_up(
        &self,
        envelope: Envelope,
        posted: &Posted<'_>,
        way: Way<'_>,
        taken: &Taken<'_>,
        stop: Stop,
        after: &mut After,
    ) -> Result<Outcome, Stop> {
        let peer = way.peer;
        if stop == Stop::Broken(Broken::Begun) && leave_to_owner(way, taken.index, taken.claim) {
            return Err(stop);
        }
        let reliable = self.is_reliable();
        let status = match stop {
            Stop::Refused(Refused::Invalid) if !is_write(posted) => ibv_wc_status::IBV_WC_LOC_LEN_ERR,
            Stop::Refused(Refused::Operation) => ibv_wc_status::IBV_WC_LOC_PROT_ERR,
            Stop::Refused(Refused::Invalidation) => ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
            _ => ibv_wc_status::IBV_WC_SUCCESS,
        };
        if reliable && status != ibv_wc_status::IBV_WC_SUCCESS {
            peer.entry().leave_notice(notice::RECEIVE_ERROR);
            after.notice(&peer.process, peer.index);
            self.finish(envelope, posted, peer, taken, false, status, after)?;
            // The completion tells the responder: an event is for requests that end none.
            return Ok(Outcome::Failed(if status == ibv_wc_status::IBV_WC_LOC_LEN_ERR {
                ibv_wc_status::IBV_WC_REM_INV_REQ_ERR
            } else {
                ibv_wc_status::IBV_WC_REM_OP_ERR
            }));
        }
        give_back(peer, taken);
        self.let_flush(peer, after);
        Err(stop)
    }

    /// Receives were given back. An owner that flushes has stopped at them.
    pub(super) fn let_flush(&self, peer: &Peer, after: &mut After) {
        // Of the state that the owner has set and the slot that it has looked at, one of both sees the other.
        full_fence();
        if !peer.entry().is_current(peer.snapshot)
            && let Some(entry) = peer.process.segment().completion_queue(peer.descriptor.recv_cq)
            && entry.nudge(peer.descriptor.source)
        {
            self.wake(entry, peer, after);
        }
    }

    /// Has the owner of a completion queue woken, whose arming was taken.
    #[cold]
    fn wake(&self, entry: &CqEntry, peer: &Peer, after: &mut After) {
        entry.fire();
        after.ring(&peer.process, Doorbell::Cq(peer.descriptor.recv_cq));
        entry.told();
    }

    /// How a range of a peer's region is reached. The hazards are set, a full fence has followed and the descriptor is current.
    pub(crate) fn place(
        &self,
        way: Way<'_>,
        key: u32,
        descriptor: &MrDescriptor,
        address: u64,
        length: u64,
        writes: bool,
    ) -> Option<Place> {
        let process = &way.peer.process;
        if process.is_own() {
            // The pointer that the program registered, by the private tables: peers can write into the segment.
            let (region, snapshot, own) = self.rnic.regions().read(key)?;
            let allowed =
                own.pd == descriptor.pd && own.access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 != 0;
            if own.access & kind::NULL != 0 {
                return (allowed && region.is_current(snapshot)).then_some(Place::Nowhere);
            }
            let at = own.pointer(address, length).filter(|_| allowed && region.is_current(snapshot));
            return at.map(Place::Here);
        }
        if descriptor.is_null() {
            return Some(Place::Nowhere);
        }
        if let Some(at) = mapped(way.peer, way.transfer_slot, descriptor, address, length, writes) {
            return Some(Place::Here(at));
        }
        let there = descriptor.address.wrapping_add(address.wrapping_sub(descriptor.iova));
        let by_system = descriptor.access & kind::OWNER_ONLY == 0 && process.vm().is_some();
        Some(if by_system { Place::There(there) } else { Place::Ask })
    }
}

/// Claims the first receive that is posted among so many slots from this one on.
#[inline]
fn take_first<'a>(peer: &'a Peer, slots: &Slots, first: u32, among: u32, pd: u32) -> Result<Taken<'a>, Stop> {
    let segment = peer.process.segment();
    let first = first % slots.count();
    let index = |step| (first + step) % slots.count();
    let header = |step| segment.slot(slots, index(step)).map(|slot| slot.header);
    let (step, claim) = claim_first(among, peer.process.number(), header).ok_or(Stop::NoReceive)?;
    let index = index(step);
    let slot = segment.slot(slots, index).ok_or(Stop::Refused(Refused::Operation))?;
    Ok(Taken { slot, claim, index, pd })
}

/// Where a range of a peer's region is mapped here, with the rights that are needed.
#[inline]
pub(super) fn mapped(
    peer: &Peer,
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

/// A claimed receive goes back: the next message takes it.
pub(super) fn give_back(peer: &Peer, taken: &Taken<'_>) {
    match peer.descriptor.srq.checked_sub(1) {
        // Counted before it can be claimed; and the next to be claimed, so that another try finds what it has asked for.
        Some(srq) => peer.process.segment().shared_queue(srq).into_iter().for_each(|entry| {
            entry.add_available(1);
            entry.set_hint(taken.index);
        }),
        None => peer.entry().set_cursor(taken.index),
    }
    taken.slot.header.unclaim(taken.claim);
}

/// RDMA WRITE with immediate data takes a receive, but does not use its memory.
fn is_write(posted: &Posted<'_>) -> bool {
    posted.request.opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
}

/// A scatter entry whose key was looked up.
pub(super) struct Entry {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
    pub(super) snapshot: GenerationSnapshot,
    pub(super) descriptor: MrDescriptor,
}

/// The entries of a receive that a message fills.
pub(super) struct Entries {
    pub(super) pieces: arrayvec::ArrayVec<Entry, MAX_SGE>,
}

impl Entries {
    /// Reads the entries that `length` bytes fill, and looks their keys up. All of it comes from the peer: what is
    /// wrong makes the receive fail, nothing else.
    pub(super) fn check(peer: &Peer, taken: &Taken<'_>, room: Room, length: usize) -> Result<Self, Stop> {
        let mut pieces = arrayvec::ArrayVec::new();
        let mut left = length;
        let bad = Stop::Refused(Refused::Operation);
        for slot_entry in taken.slot.entries().take((room.entries as usize).min(MAX_SGE)) {
            if left == 0 {
                break;
            }
            let (address, lkey) = (slot_entry.address.load(Relaxed), slot_entry.lkey.load(Relaxed));
            let length = slot_entry.length.load(Relaxed).min(left.try_into().unwrap_or(u32::MAX));
            if length == 0 {
                continue;
            }
            let (snapshot, descriptor) = region(&peer.process, lkey).and_then(MrEntry::read).ok_or(bad)?;
            let good = snapshot.label() == lkey as u8
                && descriptor.pd == taken.pd
                && descriptor.access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 != 0
                && (descriptor.contains(address, length.into()) || descriptor.is_null());
            if !good {
                return Err(bad);
            }
            left -= length as usize;
            pieces.push(Entry { address, length, lkey, snapshot, descriptor });
        }
        if left == 0 { Ok(Self { pieces }) } else { Err(bad) }
    }

    fn hazard_region(&self) -> u32 {
        match self.pieces.as_slice() {
            [] => Hazard::NO_REGION,
            [only] => only.lkey >> 8,
            _ => Hazard::ANY_REGION,
        }
    }

    fn are_current(&self, process: &PeerProcess) -> bool {
        self.pieces
            .iter()
            .all(|entry| region(process, entry.lkey).is_some_and(|region| region.is_current(entry.snapshot)))
    }
}

/// Whether the entries of a receive of the queue pair's own domain are good for so many bytes. The owner, who puts the bytes
/// there, looks for itself: this tells the sender.
#[inline]
pub(super) fn entries_are_good(peer: &Peer, slot: &Slot<'_>, room: Room, length: usize) -> bool {
    let mut left = length as u64;
    for number in 0..(room.entries as usize).min(MAX_SGE) {
        if left == 0 {
            break;
        }
        let Some(entry) = slot.entry(number) else { return false };
        let (address, lkey) = (entry.address.load(Relaxed), entry.lkey.load(Relaxed));
        let length = u64::from(entry.length.load(Relaxed)).min(left);
        if length > 0 && !key_is_good(peer, lkey, address, length) {
            return false;
        }
        left -= length;
    }
    left == 0
}

#[inline]
fn key_is_good(peer: &Peer, lkey: u32, address: u64, length: u64) -> bool {
    let found = region(&peer.process, lkey).and_then(MrEntry::read);
    found.is_some_and(|(snapshot, descriptor)| {
        snapshot.label() == lkey as u8
            && descriptor.pd == peer.descriptor.pd
            && descriptor.access & ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 != 0
            && descriptor.contains(address, length)
    })
}

fn region(process: &PeerProcess, key: u32) -> Option<&MrEntry> {
    process.segment().region(key >> 8)
}
