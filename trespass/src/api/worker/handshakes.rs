//! A worker's handshakes: of its listeners' clients, and of the connections that it makes.

use std::io::{self, ErrorKind};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::slots::{SlotState, WORKER_CQ, WorkerInner, token};
use super::{Event, Key};
use crate::session::admission::{NextPlace, SILENCE, Stall, first_stalled};
use crate::session::pending::PendingHandshake;
use crate::session::refusal::log_refused;

/// Handshakes at a time.
pub(super) const MAX_HANDSHAKES: usize = 1024;
/// When a listener that could not accept tries again.
const RETRY: Duration = Duration::from_secs(1);

impl WorkerInner {
    /// Accepts waiting clients while there are places.
    pub(super) fn accept_pending(&mut self, index: u32) {
        let (listener, tag) = (self.key(index), self.slot(index).tag);
        loop {
            if !matches!(self.slot(index).state, SlotState::Listening { may_accept: true, .. }) {
                return;
            }
            let Some(place) = self.next_place() else { break };
            let SlotState::Listening { acceptor, kind, may_accept } = &mut self.slot(index).state else {
                return;
            };
            let kind = *kind;
            let error = match acceptor.accept() {
                Ok(client) => {
                    if let NextPlace::Replaces(stalled) = place {
                        self.evict(stalled as u32);
                    }
                    let (key, peer) = (self.allocate_slot(), client.peer());
                    let cq_slot = self.worker_cq.slot(key.index);
                    let handshake = PendingHandshake::accepted(
                        client,
                        Some(kind),
                        &self.config,
                        &self.pool,
                        Some(cq_slot),
                    );
                    if let Err(error) = self.start_handshake(key, handshake, Some(listener)) {
                        tracing::debug!(%peer, %error, "cannot begin its handshake");
                    }
                    continue;
                }
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::ConnectionAborted | ErrorKind::Interrupted => (),
                ErrorKind::WouldBlock => *may_accept = false,
                // For example without free descriptors. It tries again after some time.
                _ => {
                    self.pending_events.push_back(Event::Failed { key: listener, tag, error });
                    return self.schedule(index, Instant::now() + RETRY);
                }
            }
        }
        // Continues when a handshake may be replaced.
        if let Some(at) = self.stalls().map(|(_, stall)| stall.over_at(SILENCE)).min() {
            self.schedule(index, at);
        }
    }

    /// The handshakes that others may replace, and from when on.
    fn stalls(&self) -> impl Iterator<Item = (u32, Stall)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| match &slot.state {
            SlotState::Arriving { handshake, listener: Some(_) } if !handshake.has_committed() => {
                Some((index as u32, handshake.stall()?))
            }
            _ => None,
        })
    }

    /// A free place, or that of a stalled handshake if all are taken.
    fn next_place(&mut self) -> Option<NextPlace> {
        loop {
            if self.handshakes < MAX_HANDSHAKES {
                return Some(NextPlace::Free);
            }
            let now = Instant::now();
            let stalled = first_stalled(self.stalls(), SILENCE, now)?;
            // Its next message may have arrived, and the event waits behind others.
            self.progress_handshake(stalled);
            if self.stalls().any(|(index, stall)| index == stalled && stall.over_at(SILENCE) <= now) {
                return Some(NextPlace::Replaces(stalled as usize));
            }
        }
    }

    /// Closes a handshake that makes room for another.
    fn evict(&mut self, index: u32) {
        let state = std::mem::replace(&mut self.slot(index).state, SlotState::Nothing);
        if let SlotState::Arriving { mut handshake, .. } = state {
            self.handshakes -= 1;
            if let Err(error) = handshake.deregister(self.poller.registry()) {
                tracing::error!(%error, "a socket stays in the set of its worker");
            }
            handshake.evict(&self.refusals);
        }
        self.free_slot(index);
    }

    /// Starts a handshake in a free slot.
    pub(super) fn start_handshake(
        &mut self,
        key: Key,
        handshake: io::Result<PendingHandshake>,
        listener: Option<Key>,
    ) -> io::Result<Key> {
        let registered = handshake.and_then(|mut handshake| {
            handshake.register(self.poller.registry(), token(key.index))?;
            Ok(handshake)
        });
        let mut handshake = match registered {
            Ok(handshake) => handshake,
            Err(error) => {
                self.free.push(key.index);
                return Err(error);
            }
        };
        let deadline = handshake.deadline(&self.config);
        self.slot(key.index).state = SlotState::Arriving { handshake: Box::new(handshake), listener };
        self.schedule(key.index, deadline);
        self.handshakes += 1;
        self.mark_dirty(key.index);
        Ok(key)
    }

    /// Continues a handshake, which may create the worker's completion queue with its first queue
    /// pair.
    pub(super) fn progress_handshake(&mut self, index: u32) {
        self.drive_handshake(index);
        if let Err(error) = self.worker_cq.register(self.poller.registry(), WORKER_CQ) {
            self.completion_queue_failed(&error);
        }
    }

    fn drive_handshake(&mut self, index: u32) {
        let key = self.key(index);
        let slot = &mut self.slots[index as usize];
        let SlotState::Arriving { handshake, listener } = &mut slot.state else { return };
        let (peer, listener) = (handshake.peer(), *listener);
        let (now, registry) = (Instant::now(), self.poller.registry());
        let Poll::Ready(result) = handshake.progress(&self.config, &self.pool, now, registry, token(index))
        else {
            // The probe's deadline is before the handshake's.
            let deadline = handshake.deadline(&self.config);
            return self.schedule(index, deadline);
        };
        self.handshakes -= 1;
        let own = slot.tag;
        let SlotState::Arriving { mut handshake, .. } =
            std::mem::replace(&mut slot.state, SlotState::Nothing)
        else {
            return;
        };
        let ended = handshake.deregister(self.poller.registry()).and(result);
        let opened = match (ended, listener) {
            (Err(error), Some(_)) => {
                handshake.refuse(&error, &self.refusals);
                return self.free_slot(index);
            }
            (ended, _) => ended
                .and_then(|()| handshake.finish(&self.config, &self.pool))
                .and_then(|connection| self.install(index, connection)),
        };
        match (opened, listener) {
            (Ok(()), Some(listener)) => {
                let tag = self.tag(listener).unwrap_or(own);
                self.slot(index).tag = tag;
                self.pending_events.push_back(Event::Accepted { listener, tag, key, peer });
            }
            (Ok(()), None) => self.pending_events.push_back(Event::Connected { key, tag: own }),
            (Err(error), listener) => {
                match listener {
                    Some(_) => log_refused(peer, &error),
                    None => self.pending_events.push_back(Event::Failed { key, tag: own, error }),
                }
                self.free_slot(index);
            }
        }
    }
}
