//! Fault injection: executing requests while fault rules are in force.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::{ibv_event_type, ibv_port_state, ibv_qp_state, ibv_wc_status};

use super::gather::GatherList;
use super::payload::{Direction, LocalPiece, LocalPieces, RemotePiece, RemotePieces, RemotePlace};
use super::retry::RetryWait;
use super::{CopyError, Deferred, TransferCtx, WrOutcome};
use crate::faults::injected::{Hang, Injected, LossBudget, Tampering, reach};
use crate::faults::{self, Action, Opcode, RequestFacts, Step, effects};
use crate::platform::vm::Vm;
use crate::queue_pair::post::is_of_window;
use crate::queue_pair::send_queue::PostedSend;
use crate::queue_pair::transfer_slot_mutex::TransferSlotMutexGuard;
use crate::queue_pair::{Qp, Sending};

/// How often a held request checks whether other requests have passed it.
const LOOK: Duration = Duration::from_millis(1);
/// How far the timers of waiting requests are apart at least, so that short requests at a limited
/// rate do not have one each. A poll does not wait for the timer.
const TIMER_GAP: Duration = Duration::from_micros(50);
/// How many bytes at the end of a message become visible last.
const TAIL: usize = 8;
/// The RNR timer that is assumed for an unknown receiver: 0.64 ms.
const USUAL_RNR_TIMER: u8 = 12;

impl Qp {
    /// Like `execute_plainly`, with the active fault rules applied.
    #[cold]
    #[inline(never)]
    pub(super) fn execute_with_faults(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &PostedSend<'_>,
        deferred: &mut Deferred,
    ) -> WrOutcome {
        let set = faults::current();
        let generation = set.as_ref().map_or(0, |set| set.generation);
        let mut injected = match sending.fault.take() {
            Some(decided) if decided.generation == generation => decided,
            _ => Box::new(self.decide(posted)),
        };
        let outcome = match self.state() {
            _ if injected.hang.is_some() => {
                deferred.failed = self.state() == ibv_qp_state::IBV_QPS_ERR;
                self.hang(sending, &injected)
            }
            // A rule has ended the queue pair or its device.
            ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_SQD => {
                self.execute_injected(sending, posted, deferred, &mut injected)
            }
            ibv_qp_state::IBV_QPS_ERR => {
                deferred.failed = true;
                WrOutcome::Failed(ibv_wc_status::IBV_WC_WR_FLUSH_ERR)
            }
            _ => self.postpone(sending, None),
        };
        if matches!(outcome, WrOutcome::Retry(_)) {
            sending.fault = Some(injected);
        } else if let Some(set) = set {
            set.executed.fetch_add(1, Relaxed);
        }
        outcome
    }

    /// Decides which rules apply to a request. Effects that take place at once have happened when
    /// this returns.
    fn decide(self: &Arc<Self>, posted: &PostedSend<'_>) -> Injected {
        let mut injected = Injected::default();
        if let Some(set) = faults::current() {
            injected.generation = set.generation;
            let seen = self.seen(Opcode::of_request(posted.request.opcode), posted.request.length);
            set.on_work(&seen, |entry, drawn| {
                if !injected.take(entry, drawn, &set, &seen) {
                    self.apply_fault(entry.rule.action(), seen.port, false, drawn);
                }
            });
        }
        injected
    }

    pub(crate) fn seen(&self, opcode: Opcode, size: u64) -> RequestFacts {
        RequestFacts {
            device: self.context.device().number,
            port: self.port(),
            qpn: self.number.qpn,
            qp_type: self.qp_type,
            opcode,
            size,
        }
    }

    /// Applies a rule to a queue pair and to its completion queues, shared receive queue or device.
    pub(crate) fn apply_fault(self: &Arc<Self>, action: &Action, port: u8, receives: bool, drawn: u64) {
        match action {
            Action::QpFatal => {
                self.set_failed();
                self.raise(ibv_event_type::IBV_EVENT_QP_FATAL);
            }
            Action::CqOverrun if receives => self.recv_cq.break_down(),
            Action::CqOverrun => self.send_cq.break_down(),
            Action::SrqLimit => self.raise_srq_limit(),
            other => effects::happen(&self.rnic, self.context.device(), port, other, drawn),
        }
    }

    fn execute_injected(
        self: &Arc<Self>,
        sending: &mut TransferSlotMutexGuard<'_, Sending>,
        posted: &PostedSend<'_>,
        deferred: &mut Deferred,
        injected: &mut Injected,
    ) -> WrOutcome {
        let now = Instant::now();
        if let Some(until) = injected.waits(now) {
            return self.postpone(sending, Some(until.max(now + TIMER_GAP)));
        }
        if let Some(held) = injected.held {
            let passed = faults::current().is_none_or(|set| set.executed.load(Relaxed) >= held.executed);
            if !passed && now < held.until {
                return self.postpone(sending, Some(held.until.min(now + LOOK)));
            }
            injected.held = None;
        }
        // A request that goes to no peer cannot be lost on the way and meets no receiver.
        if is_of_window(posted.request.opcode) {
            return match injected.status {
                Some(ibv_wc_status::IBV_WC_SUCCESS) => WrOutcome::Done,
                Some(status) => WrOutcome::Failed(status),
                None => self.execute_plainly(sending, posted, deferred),
            };
        }
        // A lost or refused request is retried when its timer has expired, not when the program
        // polls.
        if let Some(wait) = sending.wait.filter(|wait| wait.consumes_retries() && !wait.is_over(now)) {
            let waits = injected.lost.is_some() || injected.not_ready.is_some() || !self.link_is_up();
            if waits {
                return WrOutcome::Retry(wait);
            }
        }
        let reliable = self.is_reliable();
        // When the last timer has expired, nothing more is sent.
        let gave_up = injected.lost.is_some() && sending.wait.is_some_and(RetryWait::is_last_answer);
        if gave_up || injected.lost.as_mut().is_some_and(LossBudget::take) || !self.link_is_up() {
            return if reliable { self.retry_unacknowledged(sending) } else { WrOutcome::Done };
        }
        if injected.not_ready.as_mut().is_some_and(LossBudget::take) {
            let timer = sending.peer.as_ref().map_or(USUAL_RNR_TIMER, |peer| peer.descriptor.min_rnr_timer);
            return if reliable { self.retry_rnr(sending, timer) } else { WrOutcome::Done };
        }
        match injected.status {
            Some(ibv_wc_status::IBV_WC_SUCCESS) => WrOutcome::Done,
            Some(status) => WrOutcome::Failed(status),
            None => injected.tampering.around(|| {
                if Tampering::current().may_use_fast_path()
                    && self.execute_fast(sending, posted, true, deferred)
                {
                    WrOutcome::Done
                } else {
                    self.execute_plainly(sending, posted, deferred)
                }
            }),
        }
    }

    /// Neither executes a request nor completes it, until the rules change.
    fn hang(&self, sending: &mut Sending, injected: &Injected) -> WrOutcome {
        let silent = injected.hang == Some(Hang::Silent);
        self.set_hung(injected.generation, silent);
        // If the rules have just changed, nobody may have seen that it is hung.
        let replaced = faults::generation() != injected.generation;
        self.postpone(sending, replaced.then(|| Instant::now() + LOOK))
    }

    fn postpone(&self, sending: &mut Sending, until: Option<Instant>) -> WrOutcome {
        let wait = RetryWait::until(until);
        sending.wait = Some(wait);
        WrOutcome::Retry(wait)
    }

    fn link_is_up(&self) -> bool {
        let port = self.context.device().port(self.port().into());
        port.is_none_or(|port| port.state() == ibv_port_state::IBV_PORT_ACTIVE)
    }

    /// Like `move_payload_plainly`, with the active fault rules applied.
    ///
    /// # Safety
    ///
    /// The same as for `move_payload`.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn move_payload_with_faults(
        &self,
        ctx: TransferCtx<'_>,
        direction: Direction,
        remotes: &[RemotePiece],
    ) -> Result<(), CopyError> {
        reach(Step::BeforeCopy);
        let tampering = Tampering::current();
        let length = ctx.gather_list.length();
        let writes = direction == Direction::Write;
        // SAFETY: this function has the contract of `move_payload`, so the local pieces of a WRITE
        // may be read.
        let mut changed = if writes { unsafe { changed(ctx.gather_list, tampering)? } } else { None };
        let by_system = ctx.gather_list.by_system.filter(|_| changed.is_none());
        let pieces = match &mut changed {
            Some(bytes) => LocalPieces::from_iter([LocalPiece { at: bytes.as_mut_ptr(), len: length }]),
            None => ctx.gather_list.pieces.clone(),
        };
        let cut = match tampering.split {
            _ if tampering.ends_at(Step::MidCopy) => length / 2,
            Some(_) => length.saturating_sub(TAIL),
            None => 0,
        };
        for (from, to) in [(0, cut), (cut, length)] {
            if from == cut && cut > 0 {
                reach(Step::MidCopy);
                std::thread::sleep(tampering.split.unwrap_or_default());
            }
            let gather_list = GatherList::of(part_of(&pieces, from, to), by_system);
            let remotes = remote_part(remotes, from);
            // SAFETY: parts of the caller's pieces, or bytes of the vector `changed`, under the
            // same hazards.
            unsafe {
                self.move_payload_plainly(
                    TransferCtx { gather_list: &gather_list, ..ctx },
                    direction,
                    &remotes,
                )?
            };
        }
        if !writes {
            for (at, mask) in tampering.flips(length) {
                let place = part_of(&pieces, at, at + 1);
                // SAFETY: a byte of a local piece of a READ, whose key allows writing (`gather`).
                unsafe { flip(place[0], by_system, mask)? };
            }
        }
        Ok(())
    }
}

/// The bytes of the pieces after the rules have flipped bits; `None` if no rule flips any.
///
/// # Safety
///
/// The pieces may be read.
unsafe fn changed(gather_list: &GatherList<'_>, tampering: Tampering) -> Result<Option<Vec<u8>>, CopyError> {
    if tampering.flip.is_none() {
        return Ok(None);
    }
    let mut bytes = vec![0; gather_list.length()];
    // SAFETY: the caller guarantees that the pieces may be read. The vector has room for them.
    unsafe { gather_list.read_all(bytes.as_mut_ptr())? };
    for (at, mask) in tampering.flips(bytes.len()) {
        bytes[at] ^= mask;
    }
    Ok(Some(bytes))
}

/// Flips the bits of `mask` in one byte.
///
/// # Safety
///
/// The byte may be read and written.
unsafe fn flip(place: LocalPiece, by_system: Option<Vm>, mask: u8) -> Result<(), CopyError> {
    let mut byte = 0;
    // SAFETY: the caller guarantees that the byte may be read and written. `byte` is local.
    unsafe {
        place.read(by_system, &raw mut byte)?;
        byte ^= mask;
        place.write(by_system, &raw const byte)
    }
}

/// The bytes `from..to` of the pieces.
fn part_of(pieces: &[LocalPiece], from: usize, to: usize) -> LocalPieces {
    let mut begin = 0;
    let mut part = LocalPieces::new();
    for piece in pieces {
        let (first, last) = (from.max(begin) - begin, to.min(begin + piece.len).saturating_sub(begin));
        if first < last {
            part.push(LocalPiece { at: piece.at.wrapping_add(first), len: last - first });
        }
        begin += piece.len;
    }
    part
}

/// The bytes of the pieces beginning with byte `from`.
fn remote_part(pieces: &[RemotePiece], mut from: usize) -> RemotePieces {
    let mut part = RemotePieces::new();
    for piece in pieces {
        let skipped = from.min(piece.len);
        from -= skipped;
        if skipped < piece.len {
            let place = match piece.place {
                RemotePlace::Mapped(at) => RemotePlace::Mapped(at.wrapping_add(skipped)),
                RemotePlace::ByKernel(at) => RemotePlace::ByKernel(at.wrapping_add(skipped as u64)),
                unmoved @ (RemotePlace::Null | RemotePlace::ByOwner) => unmoved,
            };
            let address = piece.address.wrapping_add(skipped as u64);
            part.push(RemotePiece { place, len: piece.len - skipped, key: piece.key, address });
        }
    }
    part
}
