//! The tasks of a runtime that wait for a connection.
//!
//! A waker is code of the program, which may call the connection again. So a call collects whom to
//! wake, and wakes them after it has left the connection ([`DueTasks`]).
//!
//! Calls wake them directly for what they leave. A set of events would not do: a call takes its
//! events, also those that another task has not seen yet, and a condition that nobody waits for would
//! wake again and again.

use std::sync::Arc;

use crate::session::connection::Direction;
use crate::session::readiness::Readiness;

/// Wakes the tasks that wait for one of these directions.
pub(crate) trait WakeTasks: Send + Sync {
    fn wake(&self, readiness: Readiness);
}

/// The tasks of a connection, and what they were told.
#[cfg_attr(not(all(unix, feature = "tokio")), allow(dead_code, reason = "tasks are those of tokio"))]
pub(crate) struct WaitingTasks {
    tasks: Arc<dyn WakeTasks>,
    /// Readers were woken, and have made no call since.
    told_to_read: bool,
    /// A write was refused, and no task was woken for room since.
    refused_write: bool,
    /// What was sent when a task began to wait for that, by a flush or until all is delivered.
    waits_for_sends: Option<SentState>,
    /// The tasks of these directions are woken when the call ends.
    due: Readiness,
}

/// Tasks to wake when no call is in their connection any more.
#[must_use = "otherwise they sleep for ever"]
pub(crate) struct DueTasks {
    tasks: Arc<dyn WakeTasks>,
    readiness: Readiness,
}

impl DueTasks {
    pub(crate) fn wake(self) {
        self.tasks.wake(self.readiness);
    }
}

/// How far what was written has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentState {
    pub(crate) failed: bool,
    pub(crate) flushed: bool,
    pub(crate) delivered: bool,
}

impl WaitingTasks {
    #[cfg(all(unix, feature = "tokio"))]
    pub(crate) fn new(tasks: Arc<dyn WakeTasks>) -> Self {
        Self { tasks, told_to_read: false, refused_write: false, waits_for_sends: None, due: Readiness::NONE }
    }

    /// A call of a direction has ended. Its task tries again before it waits, so that it need not be
    /// told.
    pub(crate) fn after_call(&mut self, direction: Direction, ready: Readiness, sent: SentState) {
        if direction == Direction::Read {
            self.told_to_read = true;
            self.publish(ready, sent);
            self.told_to_read = false;
        } else {
            self.publish(ready, sent);
        }
    }

    /// A task waits for room.
    pub(crate) fn set_write_refused(&mut self) {
        self.refused_write = true;
    }

    /// A task waits until bytes are sent, which the calls of others may find.
    pub(crate) fn set_waits_for_sends(&mut self, sent: SentState) {
        self.waits_for_sends = Some(sent);
    }

    /// Whether a task waits for room, or until bytes are sent.
    pub(crate) fn has_writers(&self) -> bool {
        self.refused_write || self.waits_for_sends.is_some()
    }

    /// Notes whom to wake for what can be done, once for each condition. The set of events need not
    /// wake, so this is false.
    pub(crate) fn publish(&mut self, ready: Readiness, sent: SentState) -> bool {
        if self.waits_for_sends.take_if(|before| *before != sent).is_some() {
            self.due.writable = true;
        }
        let wanted = ready.and(Readiness { readable: !self.told_to_read, writable: self.refused_write });
        if !wanted.is_none() {
            self.told_to_read |= wanted.readable;
            self.refused_write &= !wanted.writable;
            self.add_due(wanted);
        }
        false
    }

    /// Notes that all are woken, because something has moved.
    pub(crate) fn wake_all(&mut self) {
        self.due = Readiness::BOTH;
    }

    fn add_due(&mut self, readiness: Readiness) {
        self.due.readable |= readiness.readable;
        self.due.writable |= readiness.writable;
    }

    /// Whether the call that is in the connection wakes tasks when it ends.
    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_none()
    }

    /// Takes those to wake, for a call or a visit that ends.
    pub(crate) fn take_due(&mut self) -> Option<DueTasks> {
        let readiness = std::mem::replace(&mut self.due, Readiness::NONE);
        (!readiness.is_none()).then(|| DueTasks { tasks: self.tasks.clone(), readiness })
    }
}
