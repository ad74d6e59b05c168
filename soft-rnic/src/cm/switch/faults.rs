//! Fault injection: applying fault rules to outgoing messages.

use std::collections::BTreeMap;
use std::time::Instant;

use super::{Switch, reason, sidr};
use crate::cm::message::{Body, Message};
use crate::cm::types::{Data, Ece};
use crate::faults::{self, Action, CmMessage};

/// Delayed messages, by their due time and then in the order of sending.
#[derive(Debug, Default)]
pub(super) struct Delayed {
    messages: BTreeMap<(Instant, u64), (u16, Message)>,
    count: u64,
}

impl Delayed {
    pub(super) fn first(&self) -> Option<Instant> {
        self.messages.first_key_value().map(|((when, _), _)| *when)
    }
}

/// The combined effect of all rules on a message.
#[derive(Default)]
struct Fate {
    lost: bool,
    rejected: Option<Option<u8>>,
    copies: u32,
    until: Option<Instant>,
}

impl Switch {
    /// Sends a message, subject to the rules. Each repetition of a message is matched separately.
    #[cold]
    pub(super) fn send_by_rules(&mut self, peer: u16, message: Message) {
        let fate = fate(message.body.kind());
        if fate.lost {
            return;
        }
        if let Some(reason) = fate.rejected {
            return self.reject_for_peer(peer, &message, reason);
        }
        for _ in 0..fate.copies {
            self.send_at(fate.until, peer, message.clone());
        }
        self.send_at(fate.until, peer, message);
    }

    fn send_at(&mut self, when: Option<Instant>, peer: u16, message: Message) {
        let Some(when) = when else { return self.deliver(peer, message) };
        self.delayed.count += 1;
        self.delayed.messages.insert((when, self.delayed.count), (peer, message));
        self.ask();
    }

    /// Sends the messages that are due.
    pub(super) fn send_delayed(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.messages.first_entry()
            && entry.key().0 <= now
        {
            let (peer, message) = entry.remove();
            self.deliver(peer, message);
        }
    }

    /// Replaces a message by a rejection at both ends, each of which sees the other one reject.
    fn reject_for_peer(&mut self, peer: u16, message: &Message, why: Option<u8>) {
        let Message { from, to, ref body } = *message;
        if let Body::SidrReq { .. } = body {
            let (status, ece, data) = (why.unwrap_or(sidr::REJECT), Ece::default(), Data::new());
            let body = Body::SidrRep { status, qp_num: 0, qkey: 0, ece, data };
            return self.inbox.push_back((peer, Message { from: to, to: from, body }));
        }
        let reason = why.unwrap_or(reason::CONSUMER_DEFINED);
        let body = Body::Rej { reason, data: Data::new() };
        self.inbox.push_back((peer, Message { from: to, to: from, body: body.clone() }));
        self.deliver(peer, Message { from, to, body });
    }
}

fn fate(kind: CmMessage) -> Fate {
    let mut fate = Fate::default();
    let Some(rules) = faults::current() else { return fate };
    rules.on_message(kind, |rule, drawn| match rule.action() {
        Action::Drop(_) => fate.lost = true,
        Action::Reject(reason) => fate.rejected = Some(*reason),
        Action::Duplicate(copies) => fate.copies += copies,
        Action::Delay(least, most) => {
            fate.until = Some(Instant::now() + faults::drawn_between(*least, *most, drawn));
        }
        _ => {}
    });
    fate
}
