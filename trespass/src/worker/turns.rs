//! What a worker does in its polls.

use std::cmp::Reverse;
use std::io;
use std::time::Instant;

use super::{DESK, Event, What, Worker};
use crate::readiness::Until;

/// How often everything may have a turn before the program hears of it: peers that never stop do not hold it up.
const ROUNDS: u32 = 16;
/// A worker that spins looks so often for completions before it asks the system, and the clock, once.
const LOOKS: u32 = 64;

impl Worker {
    pub(super) fn until(&self, patience: Until) -> Until {
        patience.or(self.timers.peek().map(|Reverse((at, _))| *at)).or(self.desk.next_deadline())
    }

    /// Looks for what there is to do, again and again, before the next completion is made an event and the thread sleeps: both cost more
    /// than what is waited for, where that comes soon. Whether the poll is over.
    pub(super) fn spin(&mut self, patience: Until, events: &mut Vec<Event>) -> io::Result<bool> {
        let (before, time) = (events.len(), self.config.worker_spin);
        // Who waits for the descriptor needs the next completion as an event.
        if time.is_zero() || self.bell.is_handed_out() {
            return Ok(false);
        }
        let mut now = Instant::now();
        let (mut until, mut is_over) = (now + time, patience.is_over_at(now));
        loop {
            let moved = self.look()?;
            self.tell(events);
            if events.len() > before {
                return Ok(true);
            }
            let asked = self.looks == 0;
            if is_over && (asked || !moved) {
                return Ok(true);
            }
            if moved {
                until = now + time;
            }
            if asked {
                now = Instant::now();
                is_over = patience.is_over_at(now);
                if now >= until {
                    return Ok(false);
                }
            }
        }
    }

    /// One look of a worker that spins. Whether anything had happened.
    fn look(&mut self) -> io::Result<bool> {
        self.looks = (self.looks + 1) % LOOKS;
        if self.looks == 0 {
            self.report(Until::Now)?;
        }
        Ok(self.reap() | self.give_turns())
    }

    /// Takes the system's events, and sleeps if it may.
    pub(super) fn report(&mut self, until: Until) -> io::Result<()> {
        let (slots, dirty, desk) = (&mut self.slots, &mut self.dirty, &self.desk);
        let rang = self.bell.wait(until, |event| {
            if event.token() == DESK {
                return desk.on_event();
            }
            let index = event.token().0;
            let Some(slot) = slots.get_mut(index) else { return };
            match &mut slot.what {
                What::Open { lane, .. } | What::Closing { lane, .. } => lane.on_event(event),
                What::Listening { may_accept, .. } => *may_accept = true,
                What::Arriving { .. } | What::Nothing => (),
            }
            if !std::mem::replace(&mut slot.dirty, true) {
                dirty.push(index as u32);
            }
        })?;
        if rang {
            for index in std::mem::take(&mut self.hungry) {
                self.slot(index).hungry = false;
                self.soil(index);
            }
        }
        let now = Instant::now();
        while let Some(Reverse((_, key))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now)
        {
            self.timers.pop();
            if self.has(key) {
                self.slot(key.index).due = None;
                self.soil(key.index);
            }
        }
        Ok(())
    }

    /// Takes what has completed, and gives everything that something happened to a turn, until nothing more does. What completes then is
    /// reported.
    pub(super) fn work(&mut self) {
        for _ in 0..ROUNDS {
            let moved = self.reap() | self.give_turns();
            if !moved && !self.arm() {
                return;
            }
        }
        // Who waits for the descriptor is to come back soon.
        self.bell.ring();
    }

    /// Hands what has completed to whose it is. Whether anything had.
    fn reap(&mut self) -> bool {
        let (slots, dirty) = (&mut self.slots, &mut self.dirty);
        let reaped = self.desk.reap(|seat, completed| {
            let Some(slot) = slots.get_mut(seat as usize) else { return };
            match &mut slot.what {
                What::Open { lane, .. } | What::Closing { lane, .. } => lane.completed(completed),
                What::Arriving { arrival, .. } => arrival.completed(completed),
                What::Listening { .. } | What::Nothing => debug_assert!(false, "who goes leaves its seat"),
            }
            if !std::mem::replace(&mut slot.dirty, true) {
                dirty.push(seat);
            }
        });
        reaped.unwrap_or_else(|error| {
            self.cut_off(&error);
            true
        })
    }

    /// Has the next completion be reported. Whether one may have come just before.
    fn arm(&mut self) -> bool {
        self.desk.arm().unwrap_or_else(|error| {
            self.cut_off(&error);
            true
        })
    }

    /// The desk is of no use any more, and whoever completes there neither.
    pub(super) fn cut_off(&mut self, error: &io::Error) {
        tracing::error!(%error, "a worker's completion queue has failed");
        for index in 0..self.slots.len() as u32 {
            match &mut self.slot(index).what {
                What::Open { lane, .. } | What::Closing { lane, .. } => lane.cut_off(error),
                What::Arriving { arrival, .. } => arrival.cut_off(error),
                What::Listening { .. } | What::Nothing => continue,
            }
            self.soil(index);
        }
    }

    /// Gives everything that something happened to a turn. Whether there was anything.
    fn give_turns(&mut self) -> bool {
        let mut dirty = std::mem::take(&mut self.dirty);
        let any = !dirty.is_empty();
        for index in dirty.drain(..) {
            self.slot(index).dirty = false;
            match &mut self.slot(index).what {
                What::Nothing => (),
                What::Listening { .. } => self.take_in(index),
                What::Arriving { .. } => self.go_on(index),
                What::Open { .. } => self.turn(index),
                What::Closing { .. } => self.wind_up(index),
            }
        }
        // Turns may have made others dirty; those wait for the next round.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
        any
    }

    fn turn(&mut self, index: u32) {
        let key = self.key(index);
        let slot = &mut self.slots[index as usize];
        let What::Open { lane, .. } = &mut slot.what else { return };
        lane.turn();
        let sated = lane.may_sleep(&self.bell);
        if lane.is_hungry() && !std::mem::replace(&mut slot.hungry, true) {
            self.hungry.push(index);
        }
        let deadline = lane.next_deadline();
        while let Some(completion) = lane.completion() {
            self.told.push_back(Event::Completed { key, tag: slot.tag, completion });
        }
        if let Some(at) = deadline {
            self.remind(index, at);
        }
        if !sated {
            self.soil(index);
        }
        self.heat(index);
    }

    /// Has it be given a turn at that time, or earlier: where there is a timer already, the turn that it brings says so again. So there
    /// is one for each slot, whoever makes however many events.
    pub(super) fn remind(&mut self, index: u32, at: Instant) {
        let key = self.key(index);
        let slot = self.slot(index);
        if slot.due.is_none_or(|due| at < due) {
            slot.due = Some(at);
            self.timers.push(Reverse((at, key)));
        }
    }

    /// Lets a closed connection go when it may.
    fn wind_up(&mut self, index: u32) {
        let What::Closing { lane, until } = &mut self.slot(index).what else { return };
        lane.turn();
        if !lane.is_over() {
            if Instant::now() < *until {
                return;
            }
            lane.abort();
        }
        self.remove(index);
    }

    /// Tells what there is to tell.
    pub(super) fn tell(&mut self, events: &mut Vec<Event>) {
        events.extend(self.told.drain(..));
        let mut hot = std::mem::take(&mut self.hot);
        hot.retain(|index| {
            let key = self.key(*index);
            let slot = self.slot(*index);
            if let What::Open { lane, lamp } = &slot.what {
                let readiness = lamp.wanted(lane.readiness());
                if !readiness.is_none() {
                    events.push(Event::Ready { key, tag: slot.tag, readiness });
                    return true;
                }
            }
            slot.hot = false;
            false
        });
        self.hot = hot;
    }
}
