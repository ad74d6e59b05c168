//! Those who are called: connecting to the owner of a block, and hearing it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::CALL_CELL;
use super::directory::Directory;
use super::link::Link;
use super::message::{Place, Reply, Request, ShareId, Welcome};
use super::service::{Entry, Service, TURN};
use super::views::Mapped;
use crate::platform::memory::{Memory, PeerFile};
use crate::platform::socket::{Received, Socket};
use crate::platform::user;
use crate::shared::hazard::LANES;
use crate::shared::segment::{LAYOUT_VERSION, LENGTH, Segment};
use crate::sync::Acquire;

/// Who was called answers within this time.
const ANSWER: Duration = Duration::from_secs(1);
/// When somebody has too many callers: how soon it is called again.
const BUSY: Duration = Duration::from_millis(2);
/// When nobody was there: how soon somebody looks again.
const NOBODY: Duration = Duration::from_millis(10);
/// When somebody was there who is of no use: another user, another version, no answer.
const USELESS: Duration = Duration::from_millis(100);

/// A process that was called, and has not answered.
pub(crate) struct Call {
    socket: Socket,
    block: u16,
    pid: u32,
}

impl Call {
    /// Who is called, if it is for this block.
    pub(crate) fn pid_of(&self, block: u16) -> Option<u32> {
        (self.block == block).then_some(self.pid)
    }
}

/// A process that is to be called again.
pub(crate) struct Redial {
    pub(crate) when: Instant,
    block: u16,
    why: Why,
}

enum Why {
    /// It had too many callers, since then.
    Busy { since: Instant },
    /// It has not answered, and there are letters for it.
    Letters,
}

impl Redial {
    /// At the end.
    pub(crate) fn give_up(&self, directory: &Directory) {
        if let Why::Busy { .. } = self.why {
            directory.absent(self.block, USELESS);
        }
    }
}

impl Service {
    /// Calls the owner of a block.
    pub(crate) fn call(&mut self, block: u16, since: Instant) {
        let failure = match Socket::connect(&self.state.socket_name(block)) {
            Ok(socket) => return self.say_hello(socket, block),
            Err(error) => error,
        };
        match failure.kind() {
            io::ErrorKind::WouldBlock if since.elapsed() < ANSWER => {
                let why = Why::Busy { since };
                self.redials.push(Redial { when: Instant::now() + BUSY, block, why });
            }
            io::ErrorKind::WouldBlock => self.unanswered(block),
            io::ErrorKind::ConnectionRefused => self.absent(block, NOBODY),
            _ => {
                log::warn!(
                    "the owner of the queue pairs {}... cannot be reached: {failure}",
                    u32::from(block) << 14
                );
                self.absent(block, USELESS);
            }
        }
    }

    pub(crate) fn redial(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.redials.extract_if(.., |redial| redial.when <= now).collect();
        for Redial { block, why, .. } in due {
            match why {
                Why::Busy { since } => self.call(block, since),
                Why::Letters if self.state.mail.waits(block) => self.forward(block),
                Why::Letters => {}
            }
        }
    }

    /// A block has no owner who is of use.
    fn absent(&mut self, block: u16, time: Duration) {
        self.state.directory.absent(block, time);
        self.no_way(block);
    }

    /// Its owner does not answer.
    fn unanswered(&mut self, block: u16) {
        log::debug!("the owner of block {block} does not answer");
        self.state.directory.absent(block, USELESS);
        if self.no_answer(block) {
            self.redials.push(Redial { when: Instant::now() + USELESS, block, why: Why::Letters });
        }
    }

    fn say_hello(&mut self, socket: Socket, block: u16) {
        let who = socket.credentials().ok().filter(|who| user::own() == Some(who.user));
        let hello = Request::Hello { version: LAYOUT_VERSION, process: self.state.process };
        let token = self.new_token();
        let said = who.is_some() && socket.send(&hello.encode()).is_ok() && self.heed(&socket, token).is_ok();
        let Some(who) = who.filter(|_| said) else {
            return self.absent(block, USELESS);
        };
        self.at(Instant::now() + ANSWER, token);
        self.entries.insert(token, Entry::Call(Call { socket, block, pid: who.pid }));
    }

    /// It is not one of ours.
    pub(crate) fn give_up(&mut self, call: &Call) {
        self.part(&call.socket);
        self.absent(call.block, USELESS);
    }

    /// It did not answer: it is stopped, or has too much to do.
    pub(crate) fn stop_waiting(&mut self, call: &Call) {
        self.part(&call.socket);
        self.unanswered(call.block);
    }

    pub(crate) fn forget_call(&self, call: &Call) {
        self.state.directory.absent(call.block, USELESS);
    }

    /// Ends a connection over which nothing was touched.
    fn part(&self, socket: &Socket) {
        self.ignore(socket);
        // Who has gone, or is about to refuse, need not be told.
        let _ = socket.send(&Request::Goodbye.encode());
    }

    pub(crate) fn hear_call(&mut self, token: u64, call: Call) -> Option<Entry> {
        let reply = match call.socket.receive_with(&mut self.buffer) {
            Received::Packet(len, file) => Reply::decode(&self.buffer[..len]).map(|reply| (reply, file)),
            Received::Nothing => return Some(Entry::Call(call)),
            Received::End => None,
        };
        let (welcome, file) = match reply {
            Some((Reply::Welcome(welcome), Some(file))) => (welcome, file),
            Some((Reply::OtherVersion { version }, _)) => {
                log::warn!(
                    "process {} has version {version} of the software device's segment, not {LAYOUT_VERSION}",
                    call.pid
                );
                self.give_up(&call);
                return None;
            }
            Some((Reply::Welcome(_), None)) => {
                log::warn!(
                    "process {} sent no segment, or this process has no file descriptor left for it",
                    call.pid
                );
                self.give_up(&call);
                return None;
            }
            _ => {
                self.give_up(&call);
                return None;
            }
        };
        self.connect(token, call, welcome, file)
    }

    fn connect(&mut self, token: u64, call: Call, welcome: Welcome, file: OwnedFd) -> Option<Entry> {
        let (block, ordinal) = (call.block, welcome.ordinal);
        if let Some(known) = self.state.directory.find(|link| link.is_of(&welcome.process, call.pid)) {
            // Another block of a process that is linked already.
            self.part(&call.socket);
            if known.blocks().set(ordinal, block) {
                self.state.directory.found(block, Arc::clone(&known));
                self.way_found(block, &known);
            } else {
                self.absent(block, USELESS);
            }
            return None;
        }
        let Some(segment) = open_segment(file, &welcome) else {
            log::warn!("process {} does not give a segment that can be mapped", call.pid);
            self.give_up(&call);
            return None;
        };
        let common = Arc::clone(&self.state.common);
        let link = Arc::new(Link::to_peer(call.socket, call.pid, segment, welcome, common, token));
        if !link.blocks().set(ordinal, block) {
            self.absent(block, USELESS);
            link.socket().into_iter().for_each(|socket| self.part(socket));
            return None;
        }
        log::debug!("linked to process {:?} as number {}", link.pid(), link.number());
        self.state.directory.found(block, Arc::clone(&link));
        self.way_found(block, &link);
        Some(Entry::Peer(link))
    }

    pub(crate) fn hear_peer(&mut self, link: Arc<Link>) -> Option<Entry> {
        if link.awaits_room() {
            self.go_on(&link);
        }
        for _ in 0..TURN {
            let received = link.socket()?.receive_with(&mut self.buffer);
            match received {
                Received::Packet(len, file) => match (Reply::decode(&self.buffer[..len]), file) {
                    (Some(Reply::Share { share, writable, place }), Some(file)) => {
                        self.map_share(&link, share, writable, place, file);
                    }
                    (Some(Reply::NoShare { .. }), None) => {}
                    (Some(Reply::Gone { share }), None) => {
                        let views = link.views()?;
                        if views.epoch(share.index) == Some(share.epoch) {
                            self.retired.extend(views.replace(share, None));
                        }
                    }
                    _ => log::debug!("process {:?} sends what makes no sense", link.pid()),
                },
                Received::Nothing => break,
                Received::End => {
                    self.lose_peer(&link);
                    return None;
                }
            }
        }
        Some(Entry::Peer(link))
    }

    fn map_share(&mut self, link: &Arc<Link>, share: ShareId, writable: bool, place: Place, file: OwnedFd) {
        let Some(views) = link.views().filter(|views| views.take_expected(share)) else { return };
        let Ok(len) = usize::try_from(place.len) else { return };
        let unsealed = self.state.common.settings.any_shm;
        let what = PeerFile { offset: place.offset, len, writable, unsealed };
        match Memory::of_peer(file, what) {
            Ok(memory) => {
                let mapped = Mapped { memory, epoch: share.epoch, writable, owner_base: place.base };
                self.retired.extend(views.replace(share, Some(mapped)));
            }
            Err(error) => log::debug!("memory of process {:?} cannot be mapped: {error}", link.pid()),
        }
    }

    /// Somebody saw signs that a peer is dead.
    pub(crate) fn check_peer(&mut self, link: &Arc<Link>) {
        if !link.alive() || !link.is_proved_dead() {
            return;
        }
        if link.token().and_then(|token| self.entries.remove(&token)).is_some() {
            self.lose_peer(link);
        }
    }

    /// Looks whether the connection to a peer has ended, which has not been heard yet.
    pub(crate) fn check_end(&mut self, link: &Arc<Link>) {
        let Some(token) = link.token() else { return };
        if let Some(Entry::Peer(link)) = self.entries.remove(&token) {
            let kept = self.hear_peer(link);
            self.entries.extend(kept.map(|entry| (token, entry)));
        }
    }

    fn lose_peer(&mut self, link: &Arc<Link>) {
        log::debug!("process {:?} is gone", link.pid());
        link.set_dead();
        link.socket().into_iter().for_each(|socket| self.ignore(socket));
        self.state.directory.forget(link);
        self.state.census.forget(link);
        self.lose_mail(link);
        let mut former = self.state.former.lock().unwrap_or_else(PoisonError::into_inner);
        former.add(&link.counters().sum());
        drop(former);
        if let Some(handler) = self.state.handler() {
            handler.peer_lost(link);
        }
    }
}

/// Maps a peer's segment, if it is one, and what the peer said about it is in it.
fn open_segment(file: OwnedFd, welcome: &Welcome) -> Option<Segment> {
    let what = PeerFile { offset: 0, len: LENGTH, writable: true, unsealed: false };
    let memory = Memory::of_peer(file, what)
        .inspect_err(|error| log::warn!("a peer's segment cannot be mapped: {error}"))
        .ok()?;
    let segment = Segment::of_peer(memory)?;
    let version = segment.header().layout_version.load(Acquire);
    segment.hazard_slot(welcome.link, 0)?;
    segment.heap(welcome.call_area, LANES * CALL_CELL)?;
    segment.heap(welcome.probe, 16)?;
    (version == LAYOUT_VERSION && welcome.call_area.is_multiple_of(64) && welcome.probe.is_multiple_of(8))
        .then_some(segment)
}
