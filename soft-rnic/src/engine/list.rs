//! Messages that the system moves: as many RDMA READs, or RDMA WRITEs and SENDs, at the front of a queue as one call takes.
//!
//! The marks stand for all of them, and so do the looks at the gates. The system says how many bytes it has moved, and it moves
//! range after range: the messages that lie within those bytes are done. What comes of the one that does not, the long
//! way finds out, which begins it anew.
//!
//! SENDs claim their receives one after the other, before anything is moved, and finish them in this order afterwards. What is
//! claimed and not done goes back, the latest first, so that the next message takes the earliest. No WRITE follows a
//! SEND: who sees its bytes may take the SEND for complete.

use std::sync::Arc;

use arrayvec::ArrayVec;
use rdma_mummy_sys::types::{ibv_access_flags, ibv_qp_type, ibv_wc_status, ibv_wr_opcode};

use super::connected::MAX_MESSAGE;
use super::deliver::{Entries, Envelope, Taken, give_back, mapped};
use super::peer::Peer;
use super::transfer::Direction;
use super::{After, Marks};
use crate::node::{LaneGuard, PathTaken};
use crate::objects::region::Region;
use crate::platform::copy;
use crate::platform::vm::{self, Vm, VmError};
use crate::queue_pair::lane::Held;
use crate::queue_pair::send_queue::{Executor, Payload, Posted};
use crate::queue_pair::{Qp, Sending};
use crate::shared::entry::{MrEntry, kind};
use crate::shared::gate::Pass;
use crate::shared::mark::{Mark, settle};
use crate::shared::segment::MAX_SGE;
use crate::shared::slot::EAGER;

/// Messages of a call at most.
const MESSAGES: usize = 64;
/// Ranges of a call at most, on either side.
const RANGES: usize = 256;

const _: () = assert!(RANGES <= vm::MAX_RANGES);

/// What one call is to move.
struct List<'a> {
    direction: Direction,
    local: ArrayVec<libc::iovec, RANGES>,
    remote: ArrayVec<libc::iovec, RANGES>,
    /// Where each message ends, in bytes from the beginning of the first.
    ends: ArrayVec<usize, MESSAGES>,
    sources: ArrayVec<(&'a Region, Pass), MESSAGES>,
    targets: ArrayVec<(&'a MrEntry, Pass), MESSAGES>,
    /// The receives of the SENDs, which are the last of the messages.
    taken: ArrayVec<Taken<'a>, MESSAGES>,
    /// A receive went back.
    gave_back: bool,
    /// For the marks.
    local_region: u32,
    remote_region: u32,
}

impl<'a> List<'a> {
    /// Names a region of the peer, whose gate is to be looked at again; `None` if they are too many.
    fn name(&mut self, index: u32, entry: &'a MrEntry, pass: Pass) -> Option<()> {
        let known =
            self.targets.last().is_some_and(|(last, seen)| core::ptr::eq(*last, entry) && *seen == pass);
        if !known {
            self.targets.try_push((entry, pass)).ok()?;
        }
        self.remote_region = joined(self.remote_region, index);
        Some(())
    }

    /// The range at the peer, which may go on where the last one ends; and the ordered tail behind the body, by a range of its own
    /// on this side.
    fn add_target(&mut self, there: u64, len: usize) {
        match self.remote.last_mut() {
            Some(last) if last.iov_base.addr().wrapping_add(last.iov_len) as u64 == there => {
                last.iov_len += len
            }
            _ => self.remote.push(vm::remote(there, len)),
        }
        let Some(last) = self.local.last_mut().filter(|_| self.direction == Direction::Write) else { return };
        let tail = copy::tail_len(there as usize, len);
        // A last piece that is shorter comes last as it is.
        if let Some(body) = last.iov_len.checked_sub(tail).filter(|body| *body > 0) {
            last.iov_len = body;
            let at = last.iov_base.cast::<u8>().wrapping_add(body);
            self.local.push(vm::local(at, tail));
        }
    }

    fn holds(&self) -> bool {
        self.sources.iter().all(|(region, pass)| region.holds(*pass))
            && self.targets.iter().all(|(entry, pass)| entry.holds(*pass))
    }
}

fn is_send(opcode: ibv_wr_opcode) -> bool {
    matches!(opcode, ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM)
}

/// Whether the system moves such messages. Who polls for the last byte of a WRITE relies on the order within a call; a
/// SEND's bytes are there with its completion. (docs/internals/soft-rnic-ordering.md)
fn is_for_a_list(opcode: ibv_wr_opcode, peer: &Peer) -> bool {
    if is_send(opcode) {
        !peer.receives_apart.get()
    } else {
        opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE && vm::ORDERED
    }
}

/// The region that stands for one more.
fn joined(marked: u32, index: u32) -> u32 {
    if marked == Mark::NO_REGION || marked == index { index } else { Mark::ANY_REGION }
}

impl Qp {
    /// Moves what the system can move of the requests at the front, `budget` at most; how many are done. If none is, nothing
    /// has happened that may not happen again.
    #[inline(never)]
    pub(super) fn move_list(
        self: &Arc<Self>,
        sending: &mut Held<'_, Sending>,
        queue: &Executor<'_>,
        budget: u32,
        after: &mut After,
    ) -> usize {
        let (state, lane) = sending.parts();
        let Some(peer) = &state.peer else { return 0 };
        if peer.link.is_own() || !peer.established || !peer.link.alive() {
            return 0;
        }
        let Some(first) = queue.peek(0) else { return 0 };
        let direction = match first.request.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_READ if self.may_read(state, peer) => Direction::Read,
            opcode if is_for_a_list(opcode, peer) => Direction::Write,
            _ => return 0,
        };
        let Some(vm) = peer.link.vm() else { return 0 };
        let marks = self.marks(peer, lane);
        let mut list = List {
            direction,
            local: ArrayVec::new(),
            remote: ArrayVec::new(),
            ends: ArrayVec::new(),
            sources: ArrayVec::new(),
            targets: ArrayVec::new(),
            taken: ArrayVec::new(),
            gave_back: false,
            local_region: Mark::NO_REGION,
            remote_region: Mark::NO_REGION,
        };
        for distance in 0..budget.min(MESSAGES as u32) {
            let Some(posted) = queue.peek(distance) else { break };
            if self.add_message(&mut list, &posted, peer, lane, &marks, after).is_none() {
                break;
            }
        }
        let moved = self.move_ranges(&list, peer, lane, vm, &marks);
        let done = self.finish_list(&mut list, queue, moved, peer, after);
        drop((list, marks));
        let lengths = (0..done as u32).filter_map(|distance| Some(queue.peek(distance)?.request.length));
        for length in lengths.clone() {
            peer.link.counters().add(lane, PathTaken::Vm, length as usize);
        }
        lengths.for_each(|length| state.advance_psn(length));
        done
    }

    pub(super) fn may_read(&self, state: &Sending, peer: &Peer) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_RC
            && state.attributes.max_rd_atomic != 0
            && peer.card.max_dest_rd_atomic != 0
    }

    /// Adds a message, unless it is for another way, or there is no room.
    fn add_message<'a>(
        self: &'a Arc<Self>,
        list: &mut List<'a>,
        posted: &Posted<'_>,
        peer: &'a Peer,
        lane: &LaneGuard<'_>,
        marks: &Marks<'_>,
        after: &mut After,
    ) -> Option<()> {
        let length = posted.request.length;
        let opcode = posted.request.opcode;
        let fits = match list.direction {
            Direction::Read => opcode == ibv_wr_opcode::IBV_WR_RDMA_READ,
            Direction::Write if is_send(opcode) => length > EAGER as u64 && is_for_a_list(opcode, peer),
            Direction::Write => is_for_a_list(opcode, peer) && list.taken.is_empty(),
        };
        if !fits {
            return None;
        }
        if length == 0
            || length > MAX_MESSAGE
            || (list.direction == Direction::Write && length > peer.longest)
        {
            return None;
        }
        // Each entry is a range, or the inline data are, and the ordered tail may split one.
        if list.local.remaining_capacity() < posted.entries.len() + 2
            || list.remote.remaining_capacity() < MAX_SGE
        {
            return None;
        }
        let (locals, remotes) = (list.local.len(), list.remote.len());
        let added = self.add_local(list, posted).and_then(|()| {
            if is_send(opcode) {
                self.add_receive(list, posted, peer, lane, marks, after)
            } else {
                self.add_remote(list, posted, peer, lane)
            }
        });
        if added.is_none() {
            list.local.truncate(locals);
            list.remote.truncate(remotes);
            return None;
        }
        list.ends.push(list.ends.last().unwrap_or(&0) + length as usize);
        Some(())
    }

    /// The ranges at the peer that an RDMA operation names.
    fn add_remote<'a>(
        &'a self,
        list: &mut List<'a>,
        posted: &Posted<'_>,
        peer: &'a Peer,
        lane: &LaneGuard<'_>,
    ) -> Option<()> {
        let request = posted.request;
        let length = request.length;
        let needed = match list.direction {
            Direction::Write => ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
            Direction::Read => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        };
        let index = request.rkey >> 8;
        let entry = peer.link.segment().region(index)?;
        let (pass, card) = entry.read()?;
        let good = pass.label() == request.rkey as u8
            && card.pd == peer.card.pd
            && peer.card.access & card.access & needed.0 != 0
            && card.access & kind::OWNER_ONLY == 0
            && card.contains(request.remote_addr, length);
        let writes = list.direction == Direction::Write;
        // What is mapped here goes another way.
        if !good || mapped(peer, lane, &card, request.remote_addr, length, writes).is_some() {
            return None;
        }
        list.name(index, entry, pass)?;
        let there = card.address.wrapping_add(request.remote_addr.wrapping_sub(card.iova));
        list.add_target(there, length as usize);
        Some(())
    }

    /// The next receive, which is claimed, and the ranges of its entries.
    fn add_receive<'a>(
        &'a self,
        list: &mut List<'a>,
        posted: &Posted<'_>,
        peer: &'a Peer,
        lane: &LaneGuard<'_>,
        marks: &Marks<'_>,
        after: &mut After,
    ) -> Option<()> {
        if list.taken.is_empty() {
            // What is claimed is claimed under a mark.
            marks.remote.publish(Mark::new(peer.index, Mark::NO_REGION));
            if !peer.entry().holds(peer.pass) {
                return None;
            }
        }
        let taken = self.take_receive(peer, after).ok()?;
        let length = posted.request.length as usize;
        let room = taken.slot.header.room();
        let entries = Some(room).filter(|room| length <= room.bytes as usize);
        let entries = entries.and_then(|room| Entries::check(peer, &taken, room, length).ok());
        let added = entries.and_then(|entries| {
            for entry in &entries.pieces {
                let (address, length) = (entry.address, entry.length.into());
                if entry.card.access & (kind::NULL | kind::OWNER_ONLY) != 0
                    || mapped(peer, lane, &entry.card, address, length, true).is_some()
                {
                    peer.receives_apart.set(true);
                    return None;
                }
                let index = entry.lkey >> 8;
                list.name(index, peer.link.segment().region(index)?, entry.pass)?;
                let there = entry.card.address.wrapping_add(address.wrapping_sub(entry.card.iova));
                // The completion orders a SEND's bytes: no tail of them does.
                list.remote.push(vm::remote(there, entry.length as usize));
            }
            Some(())
        });
        if added.is_none() {
            give_back(peer, &taken);
            list.gave_back = true;
            return None;
        }
        list.taken.push(taken);
        Some(())
    }

    /// The pieces on this side.
    fn add_local<'a>(&'a self, list: &mut List<'a>, posted: &Posted<'_>) -> Option<()> {
        let own_need = match list.direction {
            Direction::Write => 0,
            Direction::Read => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
        };
        let mut add = |at: *const u8, len: usize| list.local.push(vm::local(at, len));
        if posted.request.payload == Payload::Inline {
            add(posted.inline, posted.request.length as usize);
        } else {
            for local in posted.entries.iter().filter(|entry| entry.length > 0) {
                let found = self.rnic.regions().read(local.lkey).and_then(|(region, pass, card)| {
                    let allowed = card.pd == self.pd.number() && card.access & own_need == own_need;
                    let at = card.pointer(local.addr, local.length.into()).filter(|_| allowed)?;
                    Some((region, pass, at))
                });
                let known = list.sources.last().map(|(region, pass)| (core::ptr::from_ref(*region), *pass));
                let added = found.is_some_and(|(region, pass, at)| {
                    add(at, local.length as usize);
                    known == Some((region, pass)) || list.sources.try_push((region, pass)).is_ok()
                });
                if !added {
                    return None;
                }
                list.local_region = joined(list.local_region, local.lkey >> 8);
            }
        }
        Some(())
    }

    /// How many messages were moved.
    fn move_ranges(
        &self,
        list: &List<'_>,
        peer: &Peer,
        lane: &LaneGuard<'_>,
        vm: Vm,
        marks: &Marks<'_>,
    ) -> usize {
        if list.ends.is_empty() {
            return 0;
        }
        if list.local_region != Mark::NO_REGION {
            marks.local.set(Mark::new(self.number.index, list.local_region));
        }
        marks.remote.set(Mark::new(peer.index, list.remote_region));
        settle();
        if !peer.entry().holds(peer.pass) || !list.holds() {
            return 0;
        }
        // SAFETY: the marks are settled and all gates hold: the local ranges may be touched, and are written only by READs, whose
        // keys allow it; the remote ones lie in the peer's regions.
        let moved = unsafe {
            match list.direction {
                Direction::Write => vm.write(&list.local, &list.remote),
                Direction::Read => vm.read(&list.local, &list.remote),
            }
        };
        peer.link.counters().add_call(lane);
        match moved {
            Ok(bytes) => list.ends.iter().take_while(|end| **end <= bytes).count(),
            Err(VmError::Forbidden(error)) => {
                peer.link.forget_vm(error);
                0
            }
            // The long way says what it means.
            Err(_) => 0,
        }
    }

    /// Finishes the receives of the messages that were moved, in order, and gives the others back. How many messages are done.
    fn finish_list(
        self: &Arc<Self>,
        list: &mut List<'_>,
        queue: &Executor<'_>,
        moved: usize,
        peer: &Peer,
        after: &mut After,
    ) -> usize {
        let writes = list.ends.len() - list.taken.len();
        let finish = |(distance, taken): (usize, &Taken<'_>)| {
            let Some(posted) = queue.peek(distance as u32) else { return false };
            let success = ibv_wc_status::IBV_WC_SUCCESS;
            self.finish(Envelope::default(), &posted, peer, taken, false, success, after).is_ok()
        };
        let finished = (writes..moved).zip(&list.taken).map(finish).take_while(|done| *done).count();
        for taken in list.taken.drain(finished..).rev() {
            give_back(peer, &taken);
            list.gave_back = true;
        }
        if list.gave_back {
            self.let_flush(peer, after);
        }
        moved.min(writes) + finished
    }
}
