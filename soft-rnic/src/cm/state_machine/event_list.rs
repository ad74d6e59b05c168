//! An event queue: a linked list of all events of a channel in order of arrival. A second chain
//! links the events of each id, so that they are found without visits to other ids' events.

use crate::cm::types::CmEvent;

/// The index of no entry.
const NONE: u32 = u32::MAX;

/// The events of a channel. Entries are reused. Each is linked to its neighbours, and to the next
/// event of the same id.
#[derive(Debug)]
pub(super) struct EventList {
    places: Vec<EventNode>,
    free: u32,
    first: u32,
    last: u32,
    /// How many entries have been visited.
    #[cfg(test)]
    visits: core::cell::Cell<u64>,
}

#[derive(Debug)]
struct EventNode {
    /// `None` in a free entry, whose `behind` is the next free entry.
    event: Option<CmEvent>,
    before: u32,
    behind: u32,
    next_own: u32,
}

/// The events of one id in a channel's queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdEvents {
    first: u32,
    last: u32,
}

impl IdEvents {
    pub(super) const NONE: Self = Self { first: NONE, last: NONE };
}

impl EventList {
    pub(super) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: NONE,
            first: NONE,
            last: NONE,
            #[cfg(test)]
            visits: core::cell::Cell::default(),
        }
    }

    fn place(&self, at: u32) -> Option<&EventNode> {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        self.places.get(at as usize)
    }

    fn place_mut(&mut self, at: u32) -> Option<&mut EventNode> {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        self.places.get_mut(at as usize)
    }

    /// Appends an event. `own` is the list of its id's events.
    pub(super) fn push(&mut self, event: CmEvent, own: &mut IdEvents) {
        let (before, free) = (self.last, self.free);
        let place = EventNode { event: Some(event), before, behind: NONE, next_own: NONE };
        let at = if let Some(vacant) = self.place_mut(free) {
            self.free = core::mem::replace(vacant, place).behind;
            free
        } else {
            self.places.push(place);
            self.places.len() as u32 - 1
        };
        match self.place_mut(before) {
            Some(before) => before.behind = at,
            None => self.first = at,
        }
        self.last = at;
        match self.place_mut(own.last) {
            Some(last) => last.next_own = at,
            None => own.first = at,
        }
        own.last = at;
    }

    /// The first event.
    pub(super) fn first(&self) -> Option<&CmEvent> {
        self.place(self.first)?.event.as_ref()
    }

    /// Takes the first event. `own` is the list of its id's events, of which it must also be the
    /// first.
    pub(super) fn pop(&mut self, own: &mut IdEvents) -> Option<CmEvent> {
        let (event, next_own) = self.vacate(self.first)?;
        own.first = next_own;
        if next_own == NONE {
            own.last = NONE;
        }
        Some(event)
    }

    /// An id's events, the oldest first.
    pub(super) fn of(&self, own: IdEvents) -> impl Iterator<Item = &CmEvent> {
        let mut at = own.first;
        core::iter::from_fn(move || {
            let place = self.place(at)?;
            at = place.next_own;
            place.event.as_ref()
        })
    }

    /// Takes the matching events of an id, the oldest first.
    pub(super) fn extract(
        &mut self,
        own: &mut IdEvents,
        is_meant: impl Fn(&CmEvent) -> bool,
    ) -> Vec<CmEvent> {
        let (mut at, mut taken, mut left) = (own.first, Vec::new(), IdEvents::NONE);
        while let Some(place) = self.place_mut(at) {
            let here = core::mem::replace(&mut at, place.next_own);
            if place.event.as_ref().is_some_and(&is_meant) {
                taken.extend(self.vacate(here).map(|(event, _)| event));
                continue;
            }
            place.next_own = NONE;
            match self.place_mut(left.last) {
                Some(last) => last.next_own = here,
                None => left.first = here,
            }
            left.last = here;
        }
        *own = left;
        taken
    }

    /// Removes an entry, and returns its event and the id's next entry.
    fn vacate(&mut self, at: u32) -> Option<(CmEvent, u32)> {
        let free = self.free;
        let place = self.place_mut(at)?;
        let event = place.event.take()?;
        let (before, behind, next_own) = (place.before, place.behind, place.next_own);
        place.behind = free;
        self.free = at;
        match self.place_mut(before) {
            Some(before) => before.behind = behind,
            None => self.first = behind,
        }
        match self.place_mut(behind) {
            Some(behind) => behind.before = before,
            None => self.last = before,
        }
        Some((event, next_own))
    }

    /// The number of entries visited since the last call.
    #[cfg(test)]
    pub(super) fn take_visits(&self) -> u64 {
        self.visits.take()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::cm::types::{CmEventKind, Ece, EventDetails, IdNumber};

    fn event(id: u64, status: i32) -> CmEvent {
        let (details, ece) = (EventDetails::Nothing, Ece::default());
        let (kind, id) = (CmEventKind::User, IdNumber(id));
        CmEvent { id, uid: 1, kind, status, details, ece, request: None, join: None }
    }

    /// The linked list behaves like a queue that is searched linearly.
    #[test]
    fn an_event_list_is_a_queue() {
        const IDS: usize = 5;
        let (mut line, mut owns, mut queue) = (EventList::new(), [IdEvents::NONE; IDS], VecDeque::new());
        let mut random = 1u64;
        for round in 0..if cfg!(miri) { 40 } else { 20_000 } {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = (random >> 33) as usize % IDS;
            match random >> 40 & 7 {
                0..4 => {
                    line.push(event(id as u64, round), &mut owns[id]);
                    queue.push_back((id, round));
                }
                4 | 5 => {
                    let first = line.first().map(|event| event.id.0 as usize);
                    let taken = first.and_then(|id| line.pop(&mut owns[id]));
                    assert_eq!(taken.map(|event| (event.id.0 as usize, event.status)), queue.pop_front());
                }
                6 => {
                    let is_even = |status: i32| status % 2 == 0;
                    let taken = line.extract(&mut owns[id], |event| is_even(event.status));
                    let meant = |(of, status): &(usize, i32)| *of == id && is_even(*status);
                    let wanted: Vec<_> = queue.iter().copied().filter(meant).collect();
                    assert_eq!(taken.iter().map(|event| (id, event.status)).collect::<Vec<_>>(), wanted);
                    queue.retain(|entry| !meant(entry));
                }
                _ => {
                    assert_eq!(line.extract(&mut owns[id], |_| true).len(), count(&queue, id));
                    queue.retain(|(of, _)| *of != id);
                }
            }
            for (id, own) in owns.iter().enumerate() {
                let found = line.of(*own).map(|event| (event.id.0 as usize, event.status));
                assert!(found.eq(queue.iter().copied().filter(|(of, _)| *of == id)));
                assert_eq!(own.first == NONE, count(&queue, id) == 0);
            }
        }
        // Entries are reused.
        assert!(line.places.len() < 10_000, "{} places", line.places.len());
    }

    fn count(queue: &VecDeque<(usize, i32)>, id: usize) -> usize {
        queue.iter().filter(|(of, _)| *of == id).count()
    }
}
