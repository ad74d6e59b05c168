//! How often a task looks for arrivals before it waits for an event.
//!
//! To wait costs system calls: the reader requests an event and takes it, and the peer makes it. If
//! many tasks of a runtime have connections, what one reads next has often come when the others have
//! run. So a read that finds nothing lets them run and looks again, while the reads of others find
//! something. A connection that is alone in its thread waits at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// The most looks of a connection before it waits.
const MOST: u32 = 8;

thread_local! {
    /// The reads of all connections on this thread that have found something.
    static FINDS: Cell<u32> = const { Cell::new(0) };
}

/// The looks of a connection. They are advice: any value is correct, and several tasks may change them.
pub(super) struct Looks {
    /// Looks show what arrives.
    are_useful: bool,
    left: AtomicU32,
    /// The finds of the thread when the connection last found something, or looked.
    seen: AtomicU32,
}

impl Looks {
    /// `are_useful`: arrivals show without a system call.
    pub(super) fn new(are_useful: bool) -> Self {
        Self { are_useful, left: AtomicU32::new(0), seen: AtomicU32::new(FINDS.get()) }
    }

    fn others_found(&self) -> bool {
        self.seen.load(Ordering::Relaxed) != FINDS.get()
    }

    /// Takes a look. False if the task must wait for an event.
    pub(super) fn take(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        let takes = left == MOST || left > 0 && self.others_found();
        self.left.store(if takes { left - 1 } else { 0 }, Ordering::Relaxed);
        takes
    }

    /// The last look found nothing.
    pub(super) fn found_nothing(&self) {
        self.seen.store(FINDS.get(), Ordering::Relaxed);
    }

    /// A read has found something.
    pub(super) fn found(&self) {
        if !self.are_useful {
            return;
        }
        self.left.store(if self.others_found() { MOST } else { 0 }, Ordering::Relaxed);
        FINDS.set(FINDS.get().wrapping_add(1));
        self.found_nothing();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The looks that find nothing until the connection waits. Calls `after_each` after each of them.
    fn look(looks: &Looks, after_each: impl Fn()) -> u32 {
        let mut count = 0;
        while looks.take() {
            looks.found_nothing();
            after_each();
            count += 1;
        }
        count
    }

    #[test]
    fn a_connection_looks_while_others_find_something() {
        let [one, other] = [(); 2].map(|()| Looks::new(true));
        assert_eq!(look(&one, || ()), 0, "before the first read");
        one.found();
        assert_eq!(look(&one, || other.found()), 0, "it was alone");
        one.found();
        assert_eq!(look(&one, || ()), 0, "still alone");
        other.found();
        one.found();
        assert_eq!(look(&one, || ()), 1, "then nothing happens");
        other.found();
        one.found();
        assert_eq!(look(&one, || other.found()), MOST);
        one.found();
        assert_eq!(look(&one, || ()), 1, "others found something while it waited");
    }

    #[test]
    fn none_are_made_where_they_show_nothing() {
        let [one, other] = [false, true].map(Looks::new);
        for _ in 0..2 {
            one.found();
            other.found();
        }
        assert_eq!(look(&one, || other.found()), 0);
    }
}
