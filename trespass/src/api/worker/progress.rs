//! The worker's event loop: system events, completions, timers and dirty connections.

use std::cmp::Reverse;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Event;
use super::cell::WorkerCall;
use super::slots::{OpenSlot, SlotState, WORKER_CQ, WorkerInner};
use crate::session::lingering::DroppedConnection;
use crate::session::readiness::{Readiness, Until};

/// Rounds before a poll returns events, so that peers that never stop do not delay the program.
const MAX_ROUNDS: u32 = 16;
/// Closed connections that the service thread serves in a visit.
const MOST_VISITED: u32 = 16;
/// Polls of the completion queue before a spinning worker asks the system and the clock once.
const POLLS_PER_SYSTEM_CHECK: u32 = 64;

impl WorkerCall<'_> {
    pub(super) fn poll(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        let polled = self.poll_until(events, timeout);
        if self.exported.get()
            && let Until::Deadline(at) = self.until(Until::Event)
        {
            self.poller.wake_at(Some(at));
        }
        polled
    }

    fn poll_until(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        let mut limit = Until::from(timeout.and_then(|timeout| Instant::now().checked_add(timeout)));
        loop {
            if self.woken.swap(false, Ordering::AcqRel) {
                limit = Until::Now;
            }
            if self.spin(limit, events)? {
                self.woken.swap(false, Ordering::AcqRel);
                return Ok(());
            }
            let has_news = self.look(limit, events) || self.find_events(events);
            let until = if has_news || !self.dirty.is_empty() { Until::Now } else { self.until(limit) };
            self.sleep(until)?;
            if has_news || (self.dirty.is_empty() && limit.is_over()) {
                return Ok(());
            }
            if self.find_events(events) || limit.is_over() || self.woken.swap(false, Ordering::AcqRel) {
                return Ok(());
            }
        }
    }

    /// Delivers what has happened, and returns whether anything has. Completions make events only once
    /// nothing is found, because otherwise those of the program's answers would. A program that waits
    /// on the descriptor needs these events always.
    fn find_events(&mut self, events: &mut Vec<Event>) -> bool {
        let before = events.len();
        if !self.exported.get() {
            self.work_unarmed();
            self.deliver_events(events);
        }
        if events.len() == before {
            self.work();
            self.deliver_events(events);
        }
        self.found_several = events.len() > before + 1;
        events.len() > before
    }

    /// Takes the system's events, and sleeps if it may.
    fn sleep(&mut self, until: Until) -> io::Result<()> {
        self.end_visits();
        let waited = self.wait_for_events(until);
        if !matches!(until, Until::Now) {
            self.resume();
        }
        waited
    }

    /// Polls repeatedly before it arms the completion queue and sleeps, because both cost more than
    /// a short wait. Returns whether the poll is over.
    fn spin(&mut self, limit: Until, events: &mut Vec<Event>) -> io::Result<bool> {
        let (before, time) = (events.len(), self.config.worker_spin);
        // A program that waits on the descriptor needs the completion event.
        if time.is_zero() || self.exported.get() {
            return Ok(false);
        }
        let mut now = Instant::now();
        let (mut until, mut is_over) = (now + time, limit.has_passed_at(now));
        loop {
            let moved = self.poll_once()?;
            self.deliver_events(events);
            if events.len() > before {
                return Ok(true);
            }
            let asked = self.polls == 0;
            if is_over && (asked || !moved) {
                return Ok(true);
            }
            if moved {
                until = now + time;
            }
            if asked {
                self.resume();
                now = Instant::now();
                is_over = limit.has_passed_at(now) || self.woken.load(Ordering::Relaxed);
                if now >= until {
                    return Ok(is_over);
                }
            }
        }
    }
}

impl WorkerInner {
    /// Polls for about as long as a sleep and its wake-up take, if the last poll has found several
    /// events, because their peers then answer soon. Returns whether anything has happened.
    pub(crate) fn look(&mut self, limit: Until, events: &mut Vec<Event>) -> bool {
        let looks = std::mem::take(&mut self.found_several) && !self.exported.get();
        if !looks || limit.is_over() || !self.worker_cq.is_worth_a_look() {
            return false;
        }
        let before = events.len();
        for _ in 0..self.looks {
            let moved = self.poll_completions() | self.progress_dirty();
            self.deliver_events(events);
            if events.len() > before {
                self.found_several = true;
                return true;
            }
            // Rounds that move something take longer.
            if self.woken.load(Ordering::Relaxed) || moved && limit.is_over() {
                break;
            }
        }
        false
    }

    pub(super) fn until(&self, until: Until) -> Until {
        until.or(self.timers.peek().map(|Reverse((at, _))| *at)).or(self.worker_cq.next_deadline())
    }

    /// Polls once while spinning. Returns whether there was an event.
    fn poll_once(&mut self) -> io::Result<bool> {
        self.polls = (self.polls + 1) % POLLS_PER_SYSTEM_CHECK;
        if self.polls == 0 {
            self.wait_for_events(Until::Now)?;
        }
        Ok(self.poll_completions() | self.progress_dirty())
    }

    /// Takes the system's events, and sleeps if it may.
    pub(super) fn wait_for_events(&mut self, until: Until) -> io::Result<()> {
        let (slots, dirty, worker_cq) = (&mut self.slots, &mut self.dirty, &self.worker_cq);
        let woken = self.poller.wait(until, |event| {
            if event.token() == WORKER_CQ {
                return worker_cq.on_event();
            }
            let index = event.token().0;
            let Some(slot) = slots.get_mut(index) else { return };
            match &mut slot.state {
                SlotState::Open(OpenSlot { connection, .. }) | SlotState::Closing { connection, .. } => {
                    connection.on_event(event.into())
                }
                SlotState::Listening { may_accept, .. } => *may_accept = true,
                SlotState::Arriving { .. } | SlotState::Nothing => (),
            }
            if !std::mem::replace(&mut slot.dirty, true) {
                dirty.push(index as u32);
            }
        })?;
        if woken {
            for index in std::mem::take(&mut self.awaiting_memory) {
                self.slot(index).awaiting_memory = false;
                self.mark_dirty(index);
            }
        }
        let now = Instant::now();
        while let Some(Reverse((_, key))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now)
        {
            self.timers.pop();
            if self.has(key) {
                self.slot(key.index).due = None;
                self.mark_dirty(key.index);
            }
        }
        Ok(())
    }

    /// Takes completions and gives each connection with events a turn, until there are no more.
    fn work_unarmed(&mut self) {
        for _ in 0..MAX_ROUNDS {
            if !(self.poll_completions() | self.progress_dirty()) {
                return;
            }
        }
    }

    /// As [`work_unarmed`](Self::work_unarmed). Later completions make an event.
    pub(super) fn work(&mut self) {
        for _ in 0..MAX_ROUNDS {
            let moved = self.poll_completions() | self.progress_dirty();
            if !moved && !self.arm() {
                return;
            }
        }
        // Wakes a program that waits on the descriptor, because work remains.
        self.poller.wake();
    }

    /// Gives each completion to its connection. Returns whether there were any.
    fn poll_completions(&mut self) -> bool {
        let (slots, dirty) = (&mut self.slots, &mut self.dirty);
        let reaped = self.worker_cq.poll(|cq_slot, completed| {
            let Some(slot) = slots.get_mut(cq_slot as usize) else { return };
            match &mut slot.state {
                SlotState::Open(OpenSlot { connection, .. }) | SlotState::Closing { connection, .. } => {
                    connection.completed(completed)
                }
                SlotState::Arriving { handshake, .. } => handshake.completed(completed),
                SlotState::Listening { .. } | SlotState::Nothing => {
                    debug_assert!(false, "a slot without a connection completes nothing")
                }
            }
            if !std::mem::replace(&mut slot.dirty, true) {
                dirty.push(cq_slot);
            }
        });
        reaped.unwrap_or_else(|error| {
            self.completion_queue_failed(&error);
            true
        })
    }

    /// Arms the completion queue. Returns whether a completion may have arrived just before.
    fn arm(&mut self) -> bool {
        self.worker_cq.arm().unwrap_or_else(|error| {
            self.completion_queue_failed(&error);
            true
        })
    }

    /// Reports the failure of the worker's completion queue to each connection that uses it.
    pub(super) fn completion_queue_failed(&mut self, error: &io::Error) {
        tracing::error!(%error, "a worker's completion queue has failed");
        for index in 0..self.slots.len() as u32 {
            match &mut self.slot(index).state {
                SlotState::Open(OpenSlot { connection, .. }) | SlotState::Closing { connection, .. } => {
                    connection.completion_queue_failed(error)
                }
                SlotState::Arriving { handshake, .. } => handshake.completion_queue_failed(error),
                SlotState::Listening { .. } | SlotState::Nothing => continue,
            }
            self.mark_dirty(index);
        }
        // For a program that waits on the descriptor: the queue makes no more events.
        self.poller.wake();
    }

    /// Gives a turn to each connection with events. Returns whether there were any.
    fn progress_dirty(&mut self) -> bool {
        let mut dirty = std::mem::take(&mut self.dirty);
        let any = !dirty.is_empty();
        for index in dirty.drain(..) {
            self.slot(index).dirty = false;
            match &mut self.slot(index).state {
                SlotState::Nothing => (),
                SlotState::Listening { .. } => self.accept_pending(index),
                SlotState::Arriving { .. } => self.progress_handshake(index),
                SlotState::Open(_) => self.progress(index),
                SlotState::Closing { .. } => {
                    self.progress_closing(index);
                }
            }
        }
        // Turns may schedule further turns, which belong to the next round.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
        any
    }

    fn progress(&mut self, index: u32) {
        let key = self.key(index);
        let slot = &mut self.slots[index as usize];
        let SlotState::Open(OpenSlot { connection, awaits_drain, posted, .. }) = &mut slot.state else {
            return;
        };
        *posted = false;
        connection.progress();
        if *awaits_drain && connection.is_drained_or_failed() {
            *awaits_drain = false;
            self.pending_events.push_back(Event::Ready { key, tag: slot.tag, readiness: Readiness::NONE });
        }
        let sated = connection.may_sleep(self.poller.task_waker());
        if connection.awaits_memory() && !std::mem::replace(&mut slot.awaiting_memory, true) {
            self.awaiting_memory.push(index);
        }
        let deadline = connection.next_deadline();
        while let Some(completion) = connection.completion() {
            self.pending_events.push_back(Event::Completed { key, tag: slot.tag, completion });
        }
        if let Some(at) = deadline {
            self.schedule(index, at);
        }
        if !sated {
            self.mark_dirty(index);
        }
        self.mark_ready(index);
    }

    /// Schedules a turn at `at` or earlier. A slot has at most one timer: the turn of an earlier
    /// timer schedules again.
    pub(super) fn schedule(&mut self, index: u32, at: Instant) {
        let key = self.key(index);
        let slot = self.slot(index);
        if slot.due.is_none_or(|due| at < due) {
            slot.due = Some(at);
            self.timers.push(Reverse((at, key)));
        }
    }

    /// Sends for a closed connection, and removes it when its bytes are sent. Returns whether any were
    /// sent.
    pub(super) fn progress_closing(&mut self, index: u32) -> bool {
        let slot = &mut self.slots[index as usize];
        let SlotState::Closing { connection, until } = &mut slot.state else { return false };
        let before = connection.stats().bytes_sent;
        connection.progress();
        if !connection.has_failed() && !connection.has_ended() && Instant::now() >= *until {
            connection.abort();
        }
        let moved = connection.stats().bytes_sent > before;
        // It makes progress, too, when memory was short.
        let sated = connection.may_sleep(self.poller.task_waker());
        if connection.has_ended() {
            self.remove(index);
            return true;
        }
        if connection.awaits_memory() && !std::mem::replace(&mut slot.awaiting_memory, true) {
            self.awaiting_memory.push(index);
        }
        // After a failure the driver limits the time of a RESET.
        let until = (!connection.has_failed()).then_some(*until);
        let deadline = connection.next_deadline().into_iter().chain(until).min();
        if let Some(deadline) = deadline {
            self.schedule(index, deadline);
        }
        if !sated {
            self.mark_dirty(index);
        }
        moved
    }

    /// Whether closed connections have something to send, or queue pairs of theirs drain.
    pub(super) fn has_closed(&self) -> bool {
        self.closing > 0 || self.worker_cq.next_deadline().is_some()
    }

    /// Sends what closed connections have left, without the events of others. Returns whether something
    /// has moved, and `None` if no connection is closing.
    pub(super) fn send_for_closed(&mut self) -> Option<bool> {
        if !self.has_closed() {
            return None;
        }
        let mut moved = self.poll_completions();
        let all = self.slots.len() as u32;
        let mut visited = 0;
        for _ in 0..all {
            self.next_visited = (self.next_visited + 1) % all;
            if matches!(self.slot(self.next_visited).state, SlotState::Closing { .. }) {
                moved |= self.progress_closing(self.next_visited);
                visited += 1;
            }
            // A call waits for the end of the visit.
            if visited == MOST_VISITED {
                break;
            }
        }
        self.has_closed().then_some(moved)
    }

    /// Appends the events of connections.
    pub(super) fn deliver_events(&mut self, events: &mut Vec<Event>) {
        events.extend(self.pending_events.drain(..));
        let mut maybe_ready = std::mem::take(&mut self.maybe_ready);
        maybe_ready.retain(|index| {
            let key = self.key(*index);
            let slot = self.slot(*index);
            if let SlotState::Open(OpenSlot { connection, readiness_state, .. }) = &slot.state {
                let readiness = readiness_state.wanted(connection.readiness());
                if !readiness.is_none() {
                    events.push(Event::Ready { key, tag: slot.tag, readiness });
                    return true;
                }
            }
            slot.maybe_ready = false;
            false
        });
        self.maybe_ready = maybe_ready;
    }
}
