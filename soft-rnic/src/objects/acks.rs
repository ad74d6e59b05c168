//! Counts of the events that the program has not acknowledged. An object waits for them before it
//! goes.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Counts the unacknowledged events of one object.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    outstanding: Mutex<u64>,
    none_left: Condvar,
}

impl Acks {
    fn outstanding(&self) -> MutexGuard<'_, u64> {
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a delivered event.
    pub(crate) fn deliver(&self) {
        *self.outstanding() += 1;
    }

    /// Acknowledges events. More than were delivered count as all.
    pub(crate) fn acknowledge(&self, events: u32) {
        let mut outstanding = self.outstanding();
        *outstanding = outstanding.saturating_sub(events.into());
        if *outstanding == 0 {
            self.none_left.notify_all();
        }
    }

    /// Waits until every delivered event is acknowledged.
    pub(crate) fn wait(&self) {
        let mut outstanding = self.outstanding();
        while *outstanding != 0 {
            outstanding = self.none_left.wait(outstanding).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_with_the_last_acknowledgement() {
        let acks = Acks::default();
        acks.deliver();
        acks.deliver();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| acks.wait());
            acks.acknowledge(1);
            assert_eq!(*acks.outstanding(), 1);
            acks.acknowledge(7);
            waiter.join().unwrap();
        });
        acks.wait();
    }
}
