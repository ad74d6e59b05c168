//! Fault rules for CM messages: drop, delay, duplicate, reject.

use std::collections::VecDeque;
use std::time::Instant;

use super::{CmStateMachine, reason, sidr};
use crate::cm::message::{CmMad, MadBody};
use crate::cm::types::{Ece, PrivateData};
use crate::faults::{self, Action, CmMessage};

/// Delayed messages, by their due time and then in the order of sending.
#[derive(Debug, Default)]
pub(super) struct DelayedMads {
    messages: VecDeque<(Instant, u16, CmMad)>,
}

impl DelayedMads {
    pub(super) fn first(&self) -> Option<Instant> {
        self.messages.front().map(|(when, ..)| *when)
    }
}

/// The combined effect of all rules on a message.
#[derive(Default)]
struct MadFaults {
    lost: bool,
    rejected: Option<Option<u8>>,
    copies: u32,
    until: Option<Instant>,
}

impl CmStateMachine {
    /// Sends a message, subject to the rules. Each repetition of a message is matched separately.
    #[cold]
    pub(super) fn send_by_rules(&mut self, peer: u16, message: CmMad) {
        let faults_of = faults_of(message.body.kind());
        if faults_of.lost {
            return;
        }
        if let Some(reason) = faults_of.rejected {
            return self.reject_for_peer(peer, &message, reason);
        }
        for _ in 0..faults_of.copies {
            self.send_at(faults_of.until, peer, message.clone());
        }
        self.send_at(faults_of.until, peer, message);
    }

    fn send_at(&mut self, when: Option<Instant>, peer: u16, message: CmMad) {
        let Some(when) = when else { return self.deliver(peer, message) };
        let messages = &mut self.delayed.messages;
        messages.insert(messages.partition_point(|(other, ..)| *other <= when), (when, peer, message));
        self.ask();
    }

    /// Sends the messages that are due.
    pub(super) fn send_delayed(&mut self, now: Instant) {
        while self.delayed.first().is_some_and(|when| when <= now)
            && let Some((_, peer, message)) = self.delayed.messages.pop_front()
        {
            self.deliver(peer, message);
        }
    }

    /// Replaces a message by a rejection at both ends, each of which sees the other one reject.
    fn reject_for_peer(&mut self, peer: u16, message: &CmMad, why: Option<u8>) {
        let CmMad { from, to, ref body } = *message;
        if let MadBody::SidrReq { .. } = body {
            let (status, ece, data) = (why.unwrap_or(sidr::REJECT), Ece::default(), PrivateData::new());
            let body = MadBody::SidrRep { status, qp_num: 0, qkey: 0, ece, data };
            return self.inbox.push_back((peer, CmMad { from: to, to: from, body }));
        }
        let reason = why.unwrap_or(reason::CONSUMER_DEFINED);
        let body = MadBody::Rej { reason, data: PrivateData::new() };
        self.inbox.push_back((peer, CmMad { from: to, to: from, body: body.clone() }));
        self.deliver(peer, CmMad { from, to, body });
    }
}

fn faults_of(kind: CmMessage) -> MadFaults {
    let mut faults_of = MadFaults::default();
    let Some(rules) = faults::current() else { return faults_of };
    rules.on_message(kind, |rule, drawn| match rule.action() {
        Action::Drop(_) => faults_of.lost = true,
        Action::Reject(reason) => faults_of.rejected = Some(*reason),
        Action::Duplicate(copies) => faults_of.copies += copies,
        Action::Delay(least, most) => {
            faults_of.until = Some(Instant::now() + faults::drawn_between(*least, *most, drawn));
        }
        _ => {}
    });
    faults_of
}
