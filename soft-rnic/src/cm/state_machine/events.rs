//! Event queues of channels.

use std::ffi::c_int;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::event_list::{EventList, IdEvents};
use super::{CmStateMachine, IdState};
use crate::cm::channel_notifier::ChannelNotifier;
use crate::cm::types::{CmEvent, CmEventKind, Ece, EventDetails, IdNumber, JoinNumber};

/// The number of an event channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cm) struct ChannelNumber(pub(super) u64);

/// The events of a channel.
pub(super) struct ChannelQueue {
    events: EventList,
    notifier: Arc<ChannelNotifier>,
    /// Ids that use the channel.
    pub(super) ids: usize,
}

impl ChannelQueue {
    fn push(&mut self, event: CmEvent, own: &mut IdEvents, pending_notifiers: &mut PendingNotifiers) {
        self.events.push(event, own);
        self.notifier.promise();
        if !pending_notifiers.iter().any(|notifier| Arc::ptr_eq(notifier, &self.notifier)) {
            if pending_notifiers.is_full() {
                pending_notifiers.remove(0).deliver();
            }
            pending_notifiers.push(Arc::clone(&self.notifier));
        }
    }

    /// Removes the matching events of an id, with their tokens.
    fn extract(&mut self, own: &mut IdEvents, is_meant: impl Fn(&CmEvent) -> bool) -> Vec<CmEvent> {
        let gone = self.events.extract(own, is_meant);
        if !gone.is_empty() {
            self.notifier.take_back(gone.len());
        }
        gone
    }
}

/// Notifiers to be called after the unlock. A call raises events on one or two channels; if it
/// raises them on more, some notifiers are called early.
pub(in crate::cm) type PendingNotifiers = ArrayVec<Arc<ChannelNotifier>, 4>;

impl CmStateMachine {
    pub(in crate::cm) fn open_queue(&mut self, notifier: Arc<ChannelNotifier>) -> ChannelNumber {
        ChannelNumber(self.queues.insert(ChannelQueue { events: EventList::new(), notifier, ids: 0 }))
    }

    /// The notifiers that the caller must call once the state machine is unlocked.
    pub(in crate::cm) fn take_notifiers(&mut self) -> PendingNotifiers {
        core::mem::take(&mut self.pending_notifiers)
    }

    /// Closes a channel, and destroys its ids.
    pub(in crate::cm) fn close_queue(&mut self, queue: ChannelNumber, now: std::time::Instant) {
        if self.queues.get(queue.0).is_some_and(|queue| queue.ids > 0) {
            let ids = self.ids.iter().filter(|(_, id)| id.queue == queue);
            let ids: Vec<_> = ids.map(|(number, _)| IdNumber(number)).collect();
            for id in ids {
                // A request's id may already have been destroyed with its listener.
                let _ = self.destroy(id, now);
            }
        }
        self.queues.remove(queue.0);
    }

    /// Raises an event, unless the id has no uid yet, because then the program does not know the
    /// id.
    pub(super) fn raise(&mut self, id: IdNumber, kind: CmEventKind, status: c_int, details: EventDetails) {
        self.raise_ece(id, kind, status, details, Ece::default());
    }

    pub(super) fn raise_ece(
        &mut self,
        id: IdNumber,
        kind: CmEventKind,
        status: c_int,
        details: EventDetails,
        ece: Ece,
    ) {
        let Ok(uid) = self.id(id).map(|id| id.uid) else { return };
        if uid != 0 {
            let event = CmEvent { id, uid, kind, status, details, ece, request: None, join: None };
            self.queue_event(event);
        }
    }

    /// See [`ConnectionManager::write`](crate::cm::ConnectionManager::write).
    pub(in crate::cm) fn write(
        &mut self,
        id: IdNumber,
        kind: CmEventKind,
        status: c_int,
        argument: u64,
    ) -> Result<(), c_int> {
        self.id(id)?;
        self.raise(id, kind, status, EventDetails::Argument(argument));
        Ok(())
    }

    /// Raises an event of a connection, if the program has not seen its end yet.
    pub(super) fn raise_connected(&mut self, id: IdNumber, kind: CmEventKind, status: c_int) {
        if self.id(id).is_ok_and(|id| id.state == IdState::Connect) {
            self.raise(id, kind, status, EventDetails::Nothing);
        }
    }

    pub(super) fn queue_event(&mut self, event: CmEvent) {
        let Some(id) = self.ids.get_mut(event.id.0) else { return };
        if let Some(queue) = self.queues.get_mut(id.queue.0) {
            queue.push(event, &mut id.waiting, &mut self.pending_notifiers);
        }
    }

    /// Takes the first event of a channel, and counts it for its id.
    pub(in crate::cm) fn take(&mut self, queue: ChannelNumber) -> Option<CmEvent> {
        let events = &mut self.queues.get_mut(queue.0)?.events;
        // The id exists, because removing an id or a membership also removes its events.
        let id = self.ids.get_mut(events.first()?.id.0)?;
        let mut event = events.pop(&mut id.waiting)?;
        id.reported += 1;
        if event.request.is_some() {
            id.backlog += 1;
        }
        event.uid = id.uid;
        if let Some((join, uid)) = &mut event.join
            && let Some(join) = self.joins.get_mut(join.0)
        {
            join.reported += 1;
            *uid = join.uid;
        }
        Some(event)
    }

    /// The ids of a listener's requests that the program has not taken.
    pub(in crate::cm) fn untaken_requests(&self, listener: IdNumber) -> Vec<IdNumber> {
        let Ok(id) = self.id(listener) else { return Vec::new() };
        let Some(queue) = self.queues.get(id.queue.0) else { return Vec::new() };
        queue.events.of(id.waiting).filter_map(|event| event.request).collect()
    }

    /// Drops the events of an id that the program has not taken.
    pub(super) fn forget_events(&mut self, number: IdNumber) {
        self.forget_those(number, |_| true);
    }

    fn forget_those(&mut self, number: IdNumber, are_meant: impl Fn(&CmEvent) -> bool) {
        let Some(id) = self.ids.get_mut(number.0) else { return };
        if let Some(queue) = self.queues.get_mut(id.queue.0) {
            queue.extract(&mut id.waiting, are_meant);
        }
    }

    /// See [`ConnectionManager::migrate`](crate::cm::ConnectionManager::migrate).
    pub(in crate::cm) fn migrate(&mut self, number: IdNumber, to: ChannelNumber) -> Result<u32, c_int> {
        self.queues.get(to.0).ok_or(libc::ENOENT)?;
        let id = self.id_mut(number)?;
        let (from, reported) = (id.queue, id.reported);
        if from == to {
            return Ok(reported);
        }
        let requests = self.untaken_requests(number);
        for moved in requests.into_iter().chain([number]) {
            if let Ok(id) = self.id_mut(moved) {
                id.queue = to;
                self.count_moved(from, to);
            }
        }
        let id = self.ids.get_mut(number.0).ok_or(libc::ENOENT)?;
        let moved = self.queues.get_mut(from.0).map(|old| old.extract(&mut id.waiting, |_| true));
        if let Some(new) = self.queues.get_mut(to.0) {
            let moved = moved.into_iter().flatten();
            moved.for_each(|event| new.push(event, &mut id.waiting, &mut self.pending_notifiers));
        }
        Ok(reported)
    }

    fn count_moved(&mut self, from: ChannelNumber, to: ChannelNumber) {
        if let Some(from) = self.queues.get_mut(from.0) {
            from.ids -= 1;
        }
        if let Some(to) = self.queues.get_mut(to.0) {
            to.ids += 1;
        }
    }

    /// Removes a membership and drops its waiting events. The result contains the number of its
    /// taken events.
    pub(super) fn forget_join(&mut self, join: JoinNumber) -> Option<super::multicast::McastJoin> {
        let gone = self.joins.remove(join.0)?;
        self.forget_those(gone.id, |event| event.join.is_some_and(|(of, _)| of == join));
        Some(gone)
    }

    /// How many entries of event queues were visited since the last call.
    #[cfg(all(test, not(loom)))]
    pub(in crate::cm) fn take_visits(&self) -> u64 {
        self.queues.iter().map(|(_, queue)| queue.events.take_visits()).sum()
    }
}
