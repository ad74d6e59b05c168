//! The order in which the tasks of the service thread have their turns. It makes no system call and
//! reads no clock, so that the simulator runs it in virtual time.

use std::time::Instant;

/// When a task has its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextTurn {
    /// When something has happened.
    Event,
    /// At an event, or at that time.
    At(Instant),
    /// Never: the task is complete.
    Never,
}

#[cfg(test)]
impl NextTurn {
    /// When it is due without an event.
    pub(crate) fn due(self) -> Option<Instant> {
        match self {
            Self::At(due) => Some(due),
            Self::Event | Self::Never => None,
        }
    }
}

impl From<Option<Instant>> for NextTurn {
    fn from(due: Option<Instant>) -> Self {
        due.map_or(Self::Event, Self::At)
    }
}

/// The places of tasks.
pub(crate) struct Schedule<T> {
    entries: Vec<Entry<T>>,
}

struct Entry<T> {
    /// `None` while the place is free.
    task: Option<T>,
    due: Option<Instant>,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<T: Clone> Schedule<T> {
    /// Gives a task a place, whose number it returns.
    pub(crate) fn add(&mut self, task: T) -> usize {
        let entry = Entry { task: Some(task), due: None };
        match self.entries.iter().position(|entry| entry.task.is_none()) {
            Some(free) => {
                self.entries[free] = entry;
                free
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        }
    }

    /// Gives the task of a place another value, and makes it due never.
    pub(crate) fn replace(&mut self, index: usize, task: T) {
        self.entries[index] = Entry { task: Some(task), due: None };
    }

    /// Frees a place.
    pub(crate) fn remove(&mut self, index: usize) {
        self.entries[index] = Entry { task: None, due: None };
    }

    /// The task of a place.
    pub(crate) fn task(&self, index: usize) -> Option<&T> {
        self.entries[index].task.as_ref()
    }

    /// Asks for a turn of the task at a place.
    pub(crate) fn wake(&mut self, index: usize, now: Instant) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.due = Some(now);
        }
    }

    /// Makes the task at a place due at no time.
    pub(crate) fn forget_due(&mut self, index: usize) {
        self.entries[index].due = None;
    }

    /// When the first task is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.entries.iter().filter_map(|entry| entry.due).min()
    }

    /// The tasks that have events or are due, in the order of their places. Each of them has one turn
    /// before any has another one.
    pub(crate) fn begin_round(&mut self, has_event: impl Fn(usize) -> bool, now: Instant) -> Vec<(usize, T)> {
        let mut with_turn = Vec::new();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if has_event(index) || entry.due.is_some_and(|due| due <= now) {
                // A wake-up during the turn asks for another one. A free place may have got a late
                // one.
                entry.due = None;
                with_turn.extend(entry.task.clone().map(|task| (index, task)));
            }
        }
        with_turn
    }

    /// Ends the turn of the task at a place.
    pub(crate) fn end_turn(&mut self, index: usize, next: NextTurn) {
        match next {
            NextTurn::Event => (),
            NextTurn::At(due) => {
                let entry = &mut self.entries[index];
                entry.due = entry.due.into_iter().chain([due]).min();
            }
            NextTurn::Never => self.remove(index),
        }
    }

    #[cfg(test)]
    pub(crate) fn due(&self, index: usize) -> Option<Instant> {
        self.entries[index].due
    }
}
