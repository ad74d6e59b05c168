//! Timers of ids: retransmission, TIMEWAIT, resolution timeouts.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{CmStateMachine, HandshakeState, IdState};
use crate::cm::types::{CmEventKind, EventDetails, IdNumber};

#[derive(Debug, Default)]
pub(super) struct IdTimers {
    times: BTreeSet<(Instant, IdNumber)>,
    /// The time at which the transport will call, if a call is pending.
    asked: Option<Instant>,
}

impl IdTimers {
    #[cfg(any(fuzzing, all(test, not(loom))))]
    pub(super) fn len(&self) -> usize {
        self.times.len()
    }
}

impl CmStateMachine {
    /// Sets the timer of an id, replacing its former one.
    pub(super) fn arm(&mut self, id: IdNumber, now: Instant, after: Duration) {
        self.disarm(id);
        let when = now + after;
        if let Some(state) = self.ids.get_mut(id.0) {
            state.deadline = Some(when);
            self.timers.times.insert((when, id));
            self.ask();
        }
    }

    pub(super) fn disarm(&mut self, id: IdNumber) {
        if let Some(when) = self.ids.get_mut(id.0).and_then(|id| id.deadline.take()) {
            self.timers.times.remove(&(when, id));
        }
    }

    /// Requests a call from the transport in time for the first timer. Requests are rare, because
    /// most timers are cancelled and the following ones are later.
    pub(super) fn ask(&mut self) {
        let first = self.timers.times.first().map(|(when, _)| *when);
        if let Some(first) = first.into_iter().chain(self.delayed.first()).min()
            && self.timers.asked.is_none_or(|asked| first < asked)
        {
            self.timers.asked = Some(first);
            self.transport.wake_at(first);
        }
    }

    /// Handles all timers that are due at `now`.
    pub(in crate::cm) fn expire(&mut self, now: Instant) {
        self.timers.asked = None;
        self.send_delayed(now);
        while let Some((when, id)) = self.timers.times.first().copied()
            && when <= now
        {
            self.timers.times.pop_first();
            if let Some(state) = self.ids.get_mut(id.0) {
                state.deadline = None;
                self.time_out(id, now);
            }
        }
        self.ask();
        self.run_inbox(now);
    }

    fn time_out(&mut self, number: IdNumber, now: Instant) {
        let Ok(id) = self.id_mut(number) else { return };
        if id.state == IdState::AddrQuery {
            id.state = IdState::Bound;
            return self.raise(number, CmEventKind::AddrError, -libc::ETIMEDOUT, EventDetails::Nothing);
        }
        let connection = &mut id.connection;
        if connection.unanswered.is_some() && connection.tries > 0 {
            connection.tries -= 1;
            return self.send_again(number, now);
        }
        connection.unanswered = None;
        let over = match connection.handshake {
            HandshakeState::ReqSent | HandshakeState::RepSent | HandshakeState::SidrReqSent => {
                CmEventKind::Unreachable
            }
            HandshakeState::DreqSent => {
                self.enter_timewait(number, now);
                return self.disconnected(number, -libc::ETIMEDOUT);
            }
            HandshakeState::Timewait => {
                self.end(number);
                let Ok(id) = self.id_mut(number) else { return };
                if id.state == IdState::Disconnect {
                    self.raise(number, CmEventKind::TimewaitExit, 0, EventDetails::Nothing);
                }
                return;
            }
            _ => return,
        };
        self.end(number);
        self.raise_connected(number, over, -libc::ETIMEDOUT);
    }
}
