//! How a worker's connections come about: handshakes, those of its listeners' clients and its own.

use std::io::{self, ErrorKind};
use std::task::Poll;
use std::time::Instant;

use super::{DESK, Event, Key, What, Worker, token};
use crate::arrivals::Arrival;

/// Handshakes that may be under way at a time.
const ARRIVALS: usize = 1024;

impl Worker {
    /// Accepts whoever waits, as long as there is room.
    pub(super) fn take_in(&mut self, index: u32) {
        let (listener, tag) = (self.key(index), self.slot(index).tag);
        while self.arrivals < ARRIVALS || self.make_room() {
            let What::Listening { door, kind, may_accept } = &mut self.slot(index).what else { return };
            if !*may_accept {
                return;
            }
            let kind = *kind;
            let error = match door.accept() {
                Ok(visitor) => {
                    let (key, peer) = (self.vacancy(), visitor.peer());
                    let seat = self.desk.seat(key.index);
                    let arrival = Arrival::accepted(visitor, kind, &self.config, &self.pool, Some(seat));
                    if let Err(error) = self.arrive(key, arrival, Some(listener)) {
                        tracing::debug!(%peer, %error, "cannot begin its handshake");
                    }
                    continue;
                }
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::ConnectionAborted | ErrorKind::Interrupted => (),
                ErrorKind::WouldBlock => *may_accept = false,
                // Such as want of descriptors: tried again with the next client, or when one has gone.
                _ => {
                    *may_accept = false;
                    self.told.push_back(Event::Failed { key: listener, tag, error });
                }
            }
        }
        // It goes on when the slowest has had its chance.
        if let Some(at) = self.slowest().map(|(_, at)| at) {
            self.remind(index, at);
        }
    }

    pub(super) fn slowest(&self) -> Option<(u32, Instant)> {
        let arriving = self.slots.iter().enumerate().filter_map(|(index, slot)| match &slot.what {
            What::Arriving { arrival, listener: Some(_) } => Some((index as u32, arrival.chance())),
            _ => None,
        });
        arriving.min_by_key(|(_, chance)| *chance)
    }

    fn make_room(&mut self) -> bool {
        match self.slowest() {
            Some((index, chance)) if chance <= Instant::now() => {
                self.remove(index);
                true
            }
            _ => false,
        }
    }

    /// Has a handshake go on in a slot that is free.
    pub(super) fn arrive(
        &mut self,
        key: Key,
        arrival: io::Result<Arrival>,
        listener: Option<Key>,
    ) -> io::Result<Key> {
        let registered = arrival.and_then(|mut arrival| {
            arrival.register(self.bell.registry(), token(key.index))?;
            Ok(arrival)
        });
        let mut arrival = match registered {
            Ok(arrival) => arrival,
            Err(error) => {
                self.free.push(key.index);
                return Err(error);
            }
        };
        let deadline = arrival.deadline(&self.config);
        self.slot(key.index).what = What::Arriving { arrival: Box::new(arrival), listener };
        self.remind(key.index, deadline);
        self.arrivals += 1;
        self.soil(key.index);
        Ok(key)
    }

    /// Goes on with a handshake. It may have made the first queue pair, and with it the desk.
    pub(super) fn go_on(&mut self, index: u32) {
        self.shake(index);
        if let Err(error) = self.desk.register(self.bell.registry(), DESK) {
            self.cut_off(&error);
        }
    }

    fn shake(&mut self, index: u32) {
        let key = self.key(index);
        let slot = &mut self.slots[index as usize];
        let What::Arriving { arrival, listener } = &mut slot.what else { return };
        let (peer, listener) = (arrival.peer(), *listener);
        let (now, registry) = (Instant::now(), self.bell.registry());
        let Poll::Ready(result) = arrival.progress(&self.config, &self.pool, now, registry, token(index))
        else {
            // The time to try the path is shorter than that for everything.
            let deadline = arrival.deadline(&self.config);
            return self.remind(index, deadline);
        };
        self.arrivals -= 1;
        let own = slot.tag;
        let What::Arriving { mut arrival, .. } = std::mem::replace(&mut slot.what, What::Nothing) else {
            return;
        };
        let opened = arrival
            .deregister(self.bell.registry())
            .and(result)
            .and_then(|()| arrival.finish(&self.config, &self.pool))
            .and_then(|lane| self.put(index, lane));
        match (opened, listener) {
            (Ok(()), Some(listener)) => {
                let tag = self.tag(listener).unwrap_or(own);
                self.slot(index).tag = tag;
                self.told.push_back(Event::Accepted { listener, tag, key, peer });
            }
            (Ok(()), None) => self.told.push_back(Event::Connected { key, tag: own }),
            (Err(error), listener) => {
                match listener {
                    Some(_) => tracing::info!(%peer, %error, "a client is not accepted"),
                    None => self.told.push_back(Event::Failed { key, tag: own, error }),
                }
                self.vacate(index);
            }
        }
    }
}
