//! Messages that the system moves: as many RDMA WRITEs, or RDMA READs, at the front of a queue as one call takes.
//!
//! The marks stand for all of them, and so do the looks at the gates. The system says how many bytes it has moved, and it moves
//! range after range: the messages that lie within those bytes are done. What comes of the one that does not, the long
//! way finds out, which begins it anew.

use std::sync::Arc;

use arrayvec::ArrayVec;
use rdma_mummy_sys::types::{ibv_access_flags, ibv_qp_type, ibv_wr_opcode};

use super::connected::MAX_MESSAGE;
use super::peer::Peer;
use super::short::shared_place;
use super::transfer::Direction;
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

/// Messages of a call at most.
const MESSAGES: usize = 64;
/// Ranges of a call at most, on either side.
const RANGES: usize = 256;

const _: () = assert!(RANGES <= vm::MAX_RANGES);

/// Whether the bytes of one WRITE can be ordered behind those of another within a call: as in `transfer.rs`.
const ORDERED: bool = cfg!(target_arch = "x86_64");

/// What one call is to move.
struct List<'a> {
    direction: Direction,
    local: ArrayVec<libc::iovec, RANGES>,
    remote: ArrayVec<libc::iovec, RANGES>,
    /// Where each message ends, in bytes from the beginning of the first.
    ends: ArrayVec<usize, MESSAGES>,
    sources: ArrayVec<(&'a Region, Pass), MESSAGES>,
    targets: ArrayVec<(&'a MrEntry, Pass), MESSAGES>,
    /// For the marks.
    local_region: u32,
    remote_region: u32,
}

impl List<'_> {
    fn holds(&self) -> bool {
        self.sources.iter().all(|(region, pass)| region.holds(*pass))
            && self.targets.iter().all(|(entry, pass)| entry.holds(*pass))
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
    ) -> usize {
        let (state, lane) = sending.parts();
        let Some(peer) = &state.peer else { return 0 };
        if peer.link.is_own() || !peer.established || !peer.link.alive() {
            return 0;
        }
        let Some(first) = queue.peek(0) else { return 0 };
        let direction = match first.request.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => Direction::Write,
            ibv_wr_opcode::IBV_WR_RDMA_READ if self.may_read(state, peer) => Direction::Read,
            _ => return 0,
        };
        let Some(vm) = peer.link.vm() else { return 0 };
        let mut list = List {
            direction,
            local: ArrayVec::new(),
            remote: ArrayVec::new(),
            ends: ArrayVec::new(),
            sources: ArrayVec::new(),
            targets: ArrayVec::new(),
            local_region: Mark::NO_REGION,
            remote_region: Mark::NO_REGION,
        };
        let together = if ORDERED || direction == Direction::Read { budget.min(MESSAGES as u32) } else { 1 };
        for distance in 0..together {
            let Some(posted) = queue.peek(distance) else { break };
            let same = posted.request.opcode == first.request.opcode;
            if !same || self.add_message(&mut list, &posted, peer, lane).is_none() {
                break;
            }
        }
        let done = self.move_ranges(&list, peer, lane, vm);
        drop(list);
        let lengths = (0..done as u32).filter_map(|distance| Some(queue.peek(distance)?.request.length));
        for length in lengths.clone() {
            peer.link.counters().add(lane, PathTaken::Vm, length as usize);
        }
        lengths.for_each(|length| state.advance_psn(length));
        done
    }

    fn may_read(&self, state: &Sending, peer: &Peer) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_RC
            && state.attributes.max_rd_atomic != 0
            && peer.card.max_dest_rd_atomic != 0
    }

    /// Adds a message, unless it is for another way, or there is no room.
    fn add_message<'a>(
        &'a self,
        list: &mut List<'a>,
        posted: &Posted<'_>,
        peer: &'a Peer,
        lane: &LaneGuard<'_>,
    ) -> Option<()> {
        let request = posted.request;
        let (needed, own_need) = match list.direction {
            Direction::Write => (ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0, 0),
            Direction::Read => {
                (ibv_access_flags::IBV_ACCESS_REMOTE_READ.0, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0)
            }
        };
        let length = request.length;
        if length == 0
            || length > MAX_MESSAGE
            || (list.direction == Direction::Write && length > peer.longest)
        {
            return None;
        }
        // Each entry is a range, and the ordered tail may split one.
        if list.local.remaining_capacity() < posted.entries.len() + 2 || list.remote.remaining_capacity() < 2
        {
            return None;
        }
        let index = request.rkey >> 8;
        let entry = peer.link.segment().region(index)?;
        let (pass, card) = entry.read()?;
        let good = pass.label() == request.rkey as u8
            && card.pd == peer.card.pd
            && peer.card.access & card.access & needed != 0
            && card.access & kind::OWNER_ONLY == 0
            && card.contains(request.remote_addr, length);
        // What is mapped here, or about to be, goes another way.
        if !good
            || (card.share != 0
                && shared_place(peer, lane, &card, request.remote_addr, length, list.direction).is_some())
        {
            return None;
        }
        let ranges = list.local.len();
        let mut add =
            |at: *mut u8, len: usize| list.local.push(libc::iovec { iov_base: at.cast(), iov_len: len });
        if request.payload == Payload::Inline {
            add(posted.inline.cast_mut(), length as usize);
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
                    list.local.truncate(ranges);
                    return None;
                }
                list.local_region = joined(list.local_region, local.lkey >> 8);
            }
        }
        let known =
            list.targets.last().is_some_and(|(last, seen)| core::ptr::eq(*last, entry) && *seen == pass);
        if !known && list.targets.try_push((entry, pass)).is_err() {
            list.local.truncate(ranges);
            return None;
        }
        list.remote_region = joined(list.remote_region, index);
        let there = card.address.wrapping_add(request.remote_addr.wrapping_sub(card.iova));
        self.add_target(list, there, length as usize);
        list.ends.push(list.ends.last().unwrap_or(&0) + length as usize);
        Some(())
    }

    /// The range at the peer, with the ordered tail behind the body. The system takes the ranges of the two sides as two streams
    /// of bytes: only this side has to be split.
    fn add_target(&self, list: &mut List<'_>, there: u64, len: usize) {
        let write = list.direction == Direction::Write;
        let tail = if write { copy::tail_len(there as usize, len) } else { 0 };
        if tail < len {
            list.remote.push(vm::remote(there, len - tail));
        }
        if tail > 0 {
            list.remote.push(vm::remote(there.wrapping_add((len - tail) as u64), tail));
        }
    }

    /// How many messages were moved.
    fn move_ranges(&self, list: &List<'_>, peer: &Peer, lane: &LaneGuard<'_>, vm: Vm) -> usize {
        if list.ends.is_empty() {
            return 0;
        }
        let marks = self.marks(peer, lane);
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
        drop(marks);
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
}
