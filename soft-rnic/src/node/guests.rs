//! Those who come: accepting guests, and hearing them.

use std::collections::HashSet;
use std::io;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::heap::HeapRange;
use super::mail::Voice;
use super::message::{ProcessId, REQUEST, Reply, Request, ShareId, Welcome};
use super::seats::Taken;
use super::service::{Entry, Service, TURN};
use super::{CALL_CELL, State};
use crate::platform::process::{Lifeline, Process};
use crate::platform::socket::{MANY, Received, ReceivedMany, Room, Socket};
use crate::platform::user;
use crate::shared::hazard::{HazardSlot, LANES};
use crate::shared::segment::LAYOUT_VERSION;
use crate::status::STATUS_VERSION;
use crate::sync::{AcqRel, Relaxed, SeqCst};

/// Who has connected says hello within this time.
const HELLO: Duration = Duration::from_secs(1);
/// So many may be about to say hello.
const MAX_KNOCKS: usize = 128;
/// How long a process takes to die once it has closed its descriptors, usually.
const DYING: Duration = Duration::from_millis(200);
/// How often it is asked for one that nobody tells of.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// How long nobody is let in when there are too many, or no descriptors.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// Packets that the dead may have left: more than fit into a socket.
const REST: usize = 1 << 14;

/// Where a block's guests come in.
pub(crate) struct Listener {
    socket: Socket,
    ordinal: u8,
}

/// A process of this user, which has not said hello yet.
pub(crate) struct Knock {
    pub(crate) socket: Socket,
    pid: u32,
    ordinal: u8,
}

/// A process that maps the own segment.
pub(crate) struct Guest {
    socket: Socket,
    taken: Taken,
    calls: HeapRange,
    /// What it was given to map.
    given: HashSet<ShareId>,
    /// What it has to be told as soon as there is room.
    untold: Vec<ShareId>,
    waits_for_room: bool,
    /// It has said that it leaves.
    parted: bool,
    /// Who it is, as it says, and as the system says.
    pub(crate) process: ProcessId,
    pub(crate) pid: u32,
    pub(crate) voice: Voice,
}

/// A guest whose connection has ended without a word. If its process lives (it may have closed descriptors that it does not
/// know of), its hazards and its claims stay: it may be copying.
pub(crate) struct Silent {
    pub(crate) guest: Guest,
    process: Lifeline,
    /// Nobody tells when it ends.
    asked_for: bool,
    noted: bool,
}

impl Service {
    /// Lets guests in, of a block that was just taken.
    pub(crate) fn listen(&mut self, socket: Socket, ordinal: u8) {
        let token = self.new_token();
        self.resume(token, Listener { socket, ordinal });
    }

    pub(crate) fn resume(&mut self, token: u64, listener: Listener) {
        match self.heed(&listener.socket, token) {
            Ok(()) => {}
            Err(error) => {
                log::warn!("epoll_ctl: {error}; peers cannot connect for now");
                self.at(Instant::now() + PAUSE, token);
            }
        }
        self.entries.insert(token, Entry::Listener(listener));
    }

    pub(crate) fn accept(&mut self, token: u64, listener: Listener) -> Option<Entry> {
        for _ in 0..TURN {
            if self.entries.values().filter(|entry| matches!(entry, Entry::Knock(_))).count() >= MAX_KNOCKS {
                self.pause(token, &listener);
                break;
            }
            match listener.socket.accept() {
                Ok(socket) => self.open_door(socket, listener.ordinal),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // It went away again.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    log::warn!("a peer cannot connect: {error}");
                    self.pause(token, &listener);
                    break;
                }
            }
        }
        Some(Entry::Listener(listener))
    }

    fn pause(&mut self, token: u64, listener: &Listener) {
        self.ignore(&listener.socket);
        self.at(Instant::now() + PAUSE, token);
    }

    /// Nothing is sent to, or read from, a process of another user.
    fn open_door(&mut self, socket: Socket, ordinal: u8) {
        let Ok(who) = socket.credentials() else { return };
        if user::own() != Some(who.user) {
            log::debug!("process {} of user {} wanted to connect", who.pid, who.user);
            return;
        }
        let token = self.new_token();
        if let Err(error) = self.heed(&socket, token) {
            log::warn!("a peer cannot connect: {error}");
            return;
        }
        self.at(Instant::now() + HELLO, token);
        self.entries.insert(token, Entry::Knock(Knock { socket, pid: who.pid, ordinal }));
    }

    pub(crate) fn hear_knock(&mut self, knock: Knock) -> Option<Entry> {
        let mut buffer = [0; REQUEST];
        let request = match knock.socket.receive(&mut buffer) {
            Received::Packet(len, _) => Request::decode(&buffer[..len]),
            Received::Nothing => return Some(Entry::Knock(knock)),
            Received::End => None,
        };
        let guest = match request {
            Some(Request::Hello { version: LAYOUT_VERSION, process }) => {
                // Whoever calls may be in a group, and may have given up waiting for the answer.
                self.state.segment.header().newcomers.fetch_add(1, AcqRel);
                self.welcome(&knock).map(|(taken, calls)| (taken, calls, process))
            }
            Some(Request::Hello { version, .. }) => {
                log::warn!(
                    "process {} has version {version} of the software device's segment, not {LAYOUT_VERSION}",
                    knock.pid
                );
                let _ = knock.socket.send(&Reply::OtherVersion { version: LAYOUT_VERSION }.encode());
                None
            }
            Some(Request::Status { version }) => {
                self.tell_status(&knock, version);
                None
            }
            _ => None,
        };
        let Some((taken, calls, process)) = guest else {
            self.ignore(&knock.socket);
            return None;
        };
        let (given, untold, waits_for_room, parted) = (HashSet::new(), Vec::new(), false, false);
        Some(Entry::Guest(Guest {
            socket: knock.socket,
            taken,
            calls,
            given,
            untold,
            waits_for_room,
            parted,
            process,
            pid: knock.pid,
            voice: Voice::default(),
        }))
    }

    /// Tells somebody who is no guest, and gets nothing to map, what there is.
    fn tell_status(&self, knock: &Knock, version: u64) {
        let Some(handler) = self.state.handler() else { return };
        let reply = if version == STATUS_VERSION {
            Reply::Status { process: self.state.process, statistics: Box::new(handler.statistics()) }
        } else {
            Reply::OtherVersion { version: STATUS_VERSION }
        };
        if let Err(error) = knock.socket.send(&reply.encode()) {
            log::debug!("process {} gets no status: {error}", knock.pid);
        }
    }

    /// Gives a guest a number, room for its calls, and the segment.
    fn welcome(&mut self, knock: &Knock) -> Option<(Taken, HeapRange)> {
        let state = &*self.state;
        let file = state.segment.memory().file()?;
        let Some(taken) = state.seats.take(&state.segment, Process::find(knock.pid)) else {
            log::warn!("process {} cannot connect: there are as many peers as there can be", knock.pid);
            return None;
        };
        let give_back = || {
            state.seats.vacate(taken);
            state.seats.reuse(taken.link);
        };
        // Behind the calls there is a line to try out copying.
        let Ok(calls) = state.heap.alloc(LANES * CALL_CELL + 64) else {
            log::warn!("process {} cannot connect: no room in the heap for its calls", knock.pid);
            give_back();
            return None;
        };
        let probe = calls.offset + (LANES * CALL_CELL) as u64;
        let welcome = Welcome {
            process: state.process,
            link: taken.link,
            ordinal: knock.ordinal,
            call_area: calls.offset,
            probe,
            probe_address: state.segment.memory().base().addr().get() as u64 + probe,
            gids: state.identity.gids.clone(),
        };
        // Before the guest can call.
        self.set_call_area(taken.link, Some(calls.offset));
        if let Err(error) = knock.socket.send_with(&Reply::Welcome(welcome).encode(), file) {
            log::debug!("process {} went away while it connected: {error}", knock.pid);
            self.set_call_area(taken.link, None);
            self.state.heap.free(calls);
            give_back();
            return None;
        }
        Some((taken, calls))
    }

    fn set_call_area(&self, link: u16, area: Option<u64>) {
        let mut areas = self.state.call_areas.lock().unwrap_or_else(PoisonError::into_inner);
        if areas.len() <= usize::from(link) {
            areas.resize(usize::from(link) + 1, None);
        }
        areas[usize::from(link)] = area;
    }

    pub(crate) fn hear_guest(&mut self, token: u64, mut guest: Guest) -> Option<Entry> {
        if guest.waits_for_room {
            self.tell(token, &mut guest);
        }
        let ended = self.hear(&mut guest, TURN);
        let word = &self.state.segment.header().look_everywhere;
        if word.load(Relaxed) != 0
            && word.swap(0, SeqCst) != 0
            && let Some(handler) = self.state.handler()
        {
            handler.look_everywhere();
        }
        if ended { self.hear_end(token, guest) } else { Some(Entry::Guest(guest)) }
    }

    /// Reads so many packets at most, or a few more. True at the end of the connection.
    fn hear(&mut self, guest: &mut Guest, most: usize) -> bool {
        // What one says may lead to hearing another.
        let mut room = self.room.take().unwrap_or_else(Room::new);
        let mut ended = false;
        for _ in 0..most.div_ceil(MANY) {
            let count = match guest.socket.receive_many(&mut room) {
                ReceivedMany::Packets(count) => count,
                ReceivedMany::Nothing => break,
                ReceivedMany::End => {
                    ended = true;
                    break;
                }
            };
            for packet in (0..count).map(|index| room.packet(index)).take_while(|packet| !packet.is_empty()) {
                if !self.hear_packet(guest, packet) {
                    // It is not thrown out: as long as it lives, its hazards must be waited for.
                    log::debug!("the peer at link {} sends what makes no sense", guest.taken.link);
                }
            }
            if count < MANY {
                // There are no more, or those that are there wake the thread again.
                break;
            }
        }
        self.room = Some(room);
        ended
    }

    /// False if it makes no sense.
    fn hear_packet(&mut self, guest: &mut Guest, packet: &[u8]) -> bool {
        match Request::decode(packet) {
            Some(Request::Doorbell(doorbell)) => self.state.answer(guest.taken.link, doorbell),
            Some(Request::Share { share, write }) => self.give_share(guest, share, write),
            Some(Request::Goodbye) => guest.parted = true,
            Some(Request::Letter { from, letter }) => return self.hear_letter(guest, from, letter),
            Some(Request::Amnesia { from }) => return self.hear_amnesia(guest, from),
            Some(Request::Hello { .. } | Request::Status { .. }) | None => return false,
        }
        true
    }

    /// Reads what one who is dead has left. True at the end of the connection.
    pub(crate) fn hear_rest(&mut self, guest: &mut Guest) -> bool {
        self.hear(guest, REST)
    }

    /// The connection has ended: so has the guest, if it has said so, or its process is dead.
    pub(crate) fn hear_end(&mut self, token: u64, mut guest: Guest) -> Option<Entry> {
        self.hear_silence(&mut guest);
        let State { segment, seats, .. } = &*self.state;
        let has_left =
            guest.parted || segment.hazard_slot(guest.taken.link, 0).is_some_and(HazardSlot::has_left);
        let process = match Lifeline::of(&guest.socket, seats.process(guest.taken)) {
            Some(process) if !has_left && !process.is_cut() => process,
            // Of one who cannot be seen, the end of its connection is all that there is to go by.
            _ => {
                self.lose_guest(guest);
                return None;
            }
        };
        self.ignore(&guest.socket);
        let asked_for = match &process {
            Lifeline::File(file) => self.heed(file, token).is_err(),
            Lifeline::Number(_) => true,
        };
        // A process that is about to die closes its descriptors first.
        self.at(Instant::now() + if asked_for { ASK_AGAIN } else { DYING }, token);
        Some(Entry::Silent(Silent { guest, process, asked_for, noted: false }))
    }

    /// Looks whether one who has fallen silent is dead by now.
    pub(crate) fn look_after(&mut self, token: u64, mut silent: Silent) -> Option<Entry> {
        if silent.process.is_cut() {
            self.bury(silent);
            return None;
        }
        if !silent.noted {
            let process = self.state.seats.process(silent.guest.taken).map(Process::pid);
            log::warn!(
                "the peer at link {} (process {process:?}) lives, but has closed its connection: until it ends, what it was \
                 copying to or from cannot be taken back",
                silent.guest.taken.link
            );
            silent.noted = true;
        }
        if silent.asked_for {
            self.at(Instant::now() + ASK_AGAIN, token);
        }
        Some(Entry::Silent(silent))
    }

    fn bury(&mut self, silent: Silent) {
        if let Lifeline::File(file) = &silent.process {
            self.ignore(file);
        }
        self.lose_guest(silent.guest);
    }

    fn give_share(&self, guest: &mut Guest, share: ShareId, write: bool) {
        use std::os::fd::AsFd;
        let sent = match self.state.shares.offer(share, write) {
            Some(offer) => {
                guest.given.insert(share);
                let reply = Reply::Share { share, writable: offer.writable, place: offer.place };
                guest.socket.send_with(&reply.encode(), offer.file.as_fd())
            }
            None => guest.socket.send(&Reply::NoShare { share }.encode()),
        };
        if let Err(error) = sent {
            // It will ask again.
            log::debug!("the peer at link {} gets no answer: {error}", guest.taken.link);
        }
    }

    /// Tells those who have mapped the memory that it is gone.
    pub(crate) fn tell_guests(&mut self, share: ShareId) {
        let mut entries = core::mem::take(&mut self.entries);
        for (token, entry) in &mut entries {
            if let Entry::Guest(guest) = entry
                && guest.given.remove(&share)
            {
                guest.untold.push(share);
                self.tell(*token, guest);
            }
        }
        self.entries = entries;
    }

    /// Tells a guest what it has not been told, as far as there is room.
    fn tell(&self, token: u64, guest: &mut Guest) {
        while let Some(share) = guest.untold.last() {
            match guest.socket.send(&Reply::Gone { share: *share }.encode()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // If the guest has gone, its end will be heard.
                Ok(()) | Err(_) => guest.untold.pop(),
            };
        }
        if guest.waits_for_room == guest.untold.is_empty() {
            guest.waits_for_room = !guest.untold.is_empty();
            self.heed_room(&guest.socket, token, guest.waits_for_room);
        }
    }

    /// A guest is dead, although somebody still has its end of the connection.
    pub(crate) fn bury_guest(&mut self, link: u16, serial: u64) {
        let token = self.entries.iter().find_map(|(token, entry)| match entry {
            Entry::Guest(guest) | Entry::Silent(Silent { guest, .. }) => {
                (guest.taken == Taken { link, serial }).then_some(*token)
            }
            _ => None,
        });
        match token.and_then(|token| self.entries.remove(&token)) {
            Some(Entry::Guest(mut guest)) => {
                self.hear_rest(&mut guest);
                self.hear_silence(&mut guest);
                self.lose_guest(guest);
            }
            Some(Entry::Silent(silent)) => self.bury(silent),
            _ => {}
        }
    }

    fn lose_guest(&mut self, guest: Guest) {
        let Taken { link, .. } = guest.taken;
        log::debug!("the peer at link {link} is gone");
        self.ignore(&guest.socket);
        self.state.seats.vacate(guest.taken);
        if let Some(handler) = self.state.handler() {
            handler.link_gone(link);
        }
        self.set_call_area(link, None);
        self.state.heap.free(guest.calls);
        self.state.seats.reuse(link);
    }

    /// At the end.
    pub(crate) fn vacate(&mut self, guest: Guest) {
        self.state.seats.vacate(guest.taken);
        self.set_call_area(guest.taken.link, None);
    }
}
