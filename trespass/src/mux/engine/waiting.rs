//! The wakers of tasks that wait for something of the whole connection.

use std::collections::BTreeMap;
use std::task::Waker;

use super::Engine;

/// What a task waits for.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum WaitCause {
    /// Room for a request, or for a message that has no answer.
    Room { one_way: bool },
    /// A request of the peer.
    Arrival,
    /// All messages are sent.
    Sent,
    /// Something of the answers to a request of this side.
    Answer(u64),
    /// Something of a request of the peer.
    Change(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitList {
    /// The peer accepts no further request.
    Slot,
    /// Too much is queued.
    Queue,
    Sent,
    Arrival,
}

/// The place of one wait. Its number stays, so that those that have waited longest are woken first.
#[derive(Debug, Default)]
pub(in super::super) struct WaitPlace(Option<(WaitList, u64)>);

#[derive(Debug, Default)]
pub(super) struct WaitLists {
    next: u64,
    lists: [BTreeMap<u64, Waker>; 4],
}

impl Engine {
    /// Wakes a task once there may be what it waits for.
    pub(in super::super) fn wait(&mut self, cause: WaitCause, place: &mut WaitPlace, waker: &Waker) {
        let list = match cause {
            WaitCause::Answer(id) => return self.wake_at_answer(id, waker),
            WaitCause::Change(id) => return self.wake_at_change(id, waker),
            WaitCause::Room { one_way: true } if self.can_request() => WaitList::Queue,
            WaitCause::Room { .. } => WaitList::Slot,
            WaitCause::Arrival => WaitList::Arrival,
            WaitCause::Sent => WaitList::Sent,
        };
        let number = match place.0 {
            Some((_, number)) => number,
            None => {
                self.waiting.next += 1;
                self.waiting.next
            }
        };
        if place.0.is_some_and(|(former, _)| former != list) {
            let former = self.stop_waiting(place);
            self.unused.extend(former);
        }
        place.0 = Some((list, number));
        self.unused.extend(self.waiting.lists[list as usize].insert(number, waker.clone()));
    }

    /// Ends a wait. Drop its waker without a lock: it may run code of the program.
    pub(in super::super) fn stop_waiting(&mut self, place: &mut WaitPlace) -> Option<Waker> {
        let (list, number) = place.0.take()?;
        self.waiting.lists[list as usize].remove(&number)
    }

    pub(super) fn wake_list(&mut self, list: WaitList) {
        self.woken.extend(std::mem::take(&mut self.waiting.lists[list as usize]).into_values());
    }

    /// Wakes those for whom there is room in the queue, and those that wait until all is sent.
    pub(super) fn wake_senders(&mut self) {
        if self.waits(WaitList::Queue) && self.has_queue_room() {
            self.wake_list(WaitList::Queue);
        }
        if self.waits(WaitList::Sent) && self.is_sent() {
            self.wake_list(WaitList::Sent);
        }
    }

    pub(super) fn waits(&self, list: WaitList) -> bool {
        !self.waiting.lists[list as usize].is_empty()
    }

    /// Wakes all that wait for something of the whole connection.
    pub(super) fn wake_lists(&mut self) {
        [WaitList::Slot, WaitList::Queue, WaitList::Sent, WaitList::Arrival]
            .into_iter()
            .for_each(|list| self.wake_list(list));
    }

    #[cfg(test)]
    pub(super) fn waiters(&self) -> usize {
        self.waiting.lists.iter().map(BTreeMap::len).sum()
    }
}

impl WaitPlace {
    /// Whether a waker may be there.
    pub(in super::super) fn is_taken(&self) -> bool {
        self.0.is_some()
    }
}
