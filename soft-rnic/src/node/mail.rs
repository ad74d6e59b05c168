//! Letters: what the connection managers of processes say to each other.
//!
//! They go over the links. Who writes one puts it into the link's socket itself, as long as nothing waits: the service thread is
//! asked only to connect, and to go on where a socket was full. A process is known to others' connection managers by its first
//! block.
//!
//! A letter is heard when the way back is there, if the sender can be reached soon: so an answer never waits for a connection, and
//! its writer may end right after it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::guests::Guest;
use super::link::Link;
use super::mailbox::Command;
use super::message::{Request, letter_packet};
use super::numbers::LAST_BLOCK;
use super::service::{Entry, Service};
use super::{Node, State};

/// So many bytes wait for one process, at most: when it is stopped, and its socket is full.
const ROOM: usize = 16 << 20;
/// What one letter takes besides its bytes.
const EACH: usize = 64;
/// So long letters wait for somebody who is there and does not answer. That is how long a connection manager asks.
const WAIT: Duration = Duration::from_secs(64);
/// So many letters are held until there is a way back.
const HELD: usize = 256;
/// So many until it is known whose they are. They take as much as the room for a guest's calls.
const MOST_HELD: usize = 4096;

/// Letters to the owner of a block.
#[derive(Debug, Default)]
struct Outbox {
    /// Where they go. `None` if nobody has connected for them yet.
    link: Option<Arc<Link>>,
    /// Those that wait. If there are any, the service thread knows of it.
    queue: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Too many have waited. All are lost, until the service thread has told so.
    overflown: bool,
    /// Since when somebody is wanted who does not answer.
    since: Option<Instant>,
}

/// What became of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// It is out, it waits with others, or it is lost with the peer.
    Seen,
    /// It is the first that waits.
    Waits,
}

impl Outbox {
    fn send(&mut self, packet: &[u8]) -> Sent {
        if self.overflown {
            return Sent::Seen;
        }
        let first = self.queue.is_empty();
        if let Some(socket) = self.link.as_ref().filter(|_| first).and_then(|link| link.socket())
            && !must_wait(socket.send(packet))
        {
            return Sent::Seen;
        }
        if self.bytes + packet.len() + EACH > ROOM {
            self.clear();
            self.overflown = true;
            return Sent::Waits;
        }
        self.bytes += packet.len() + EACH;
        self.queue.push_back(packet.into());
        if first { Sent::Waits } else { Sent::Seen }
    }

    /// Sends what waits, as far as there is room. True if nothing is left.
    fn flush(&mut self) -> bool {
        let Some(socket) = self.link.as_ref().and_then(|link| link.socket()) else { return true };
        while let Some(packet) = self.queue.front() {
            if must_wait(socket.send(packet)) {
                return false;
            }
            self.bytes -= packet.len() + EACH;
            self.queue.pop_front();
        }
        true
    }

    fn clear(&mut self) {
        self.queue.clear();
        self.bytes = 0;
    }

    /// Nobody is there. False if that is no news.
    fn fail(&mut self) -> bool {
        let news = self.link.take().is_some() | !self.queue.is_empty() | self.overflown;
        self.clear();
        (self.overflown, self.since) = (false, None);
        news
    }
}

/// Whether a packet is to be sent again. Of a peer that is gone the service thread hears by itself.
fn must_wait(sent: io::Result<()>) -> bool {
    const SCARCE: [i32; 3] = [libc::ENOMEM, libc::ENOBUFS, libc::EINTR];
    sent.is_err_and(|error| {
        error.kind() == io::ErrorKind::WouldBlock
            || error.raw_os_error().is_some_and(|error| SCARCE.contains(&error))
    })
}

/// All letters that go out. There is nothing before the first.
#[derive(Debug, Default)]
pub(crate) struct Mail(OnceLock<Box<[Mutex<Outbox>]>>);

impl Mail {
    fn outbox(&self, block: u16) -> MutexGuard<'_, Outbox> {
        let all = self.0.get_or_init(|| (0..=LAST_BLOCK).map(|_| Mutex::default()).collect());
        all[usize::from(block.min(LAST_BLOCK))].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks whose letters go this way.
    fn blocks_of(&self, wanted: impl Fn(&Outbox) -> bool) -> Vec<u16> {
        let all = self.0.get().into_iter().flatten().enumerate();
        all.filter(|(_, outbox)| wanted(&outbox.lock().unwrap_or_else(PoisonError::into_inner)))
            .map(|(block, _)| block as u16)
            .collect()
    }

    /// From now on, letters go this way. True if all that have waited are out.
    fn attach(&self, block: u16, link: &Arc<Link>) -> bool {
        let mut outbox = self.outbox(block);
        (outbox.link, outbox.since) = (Some(Arc::clone(link)), None);
        outbox.flush()
    }

    fn link(&self, block: u16) -> Option<Arc<Link>> {
        self.outbox(block).link.clone()
    }

    /// Whether somebody is written to at this block.
    fn is_used(&self, block: u16) -> bool {
        self.0.get().is_some() && {
            let outbox = self.outbox(block);
            outbox.link.is_some() || !outbox.queue.is_empty() || outbox.overflown
        }
    }

    /// Whether there are letters that wait for a connection.
    pub(crate) fn waits(&self, block: u16) -> bool {
        self.0.get().is_some() && !self.outbox(block).queue.is_empty()
    }
}

/// What is known of a guest's connection manager.
#[derive(Debug, Default)]
pub(crate) enum Voice {
    /// It has said nothing.
    #[default]
    Unheard,
    /// It is to be answered at this block, to which there is no way yet.
    Held {
        block: u16,
        letters: Vec<Box<[u8]>>,
    },
    Heard {
        block: u16,
    },
}

impl Node {
    /// The block by which this process is known to others' connection managers: its first. It is held from now on.
    ///
    /// # Errors
    ///
    /// As [`new_qp_number`](Self::new_qp_number).
    pub(crate) fn own_block(&self) -> io::Result<u16> {
        if let Some(block) = self.state.blocks.first() {
            return Ok(block);
        }
        self.ensure_service()?;
        self.numbers.hold(|ordinal| self.take_block(ordinal))
    }

    /// Sends a message to the connection manager of the process that has a block of another process. It never waits, and calls no
    /// handler. What is sent to one process comes in the order of the calls, and all of it, unless [`Handler::cm_gone`] is called.
    ///
    /// [`own_block`](Self::own_block) must have been called before: the answer comes there.
    ///
    /// # Errors
    ///
    /// It is too long (`InvalidInput`), or nobody can be reached at all: there is no service thread, or the program has closed the
    /// device's descriptors.
    ///
    /// [`Handler::cm_gone`]: super::Handler::cm_gone
    pub(crate) fn send_cm(&self, block: u16, letter: &[u8]) -> io::Result<()> {
        let from = self.own_block()?;
        self.ensure_service()?;
        let packet = letter_packet(from, letter).ok_or(io::ErrorKind::InvalidInput)?;
        if self.state.mail.outbox(block).send(&packet) == Sent::Waits {
            self.state.common.mailbox.post(Command::Mail { block });
        }
        Ok(())
    }

    /// Has the handler's `cm_timer` called at this time, or soon after; earlier if it was to be called earlier. One time is kept: who
    /// is called asks again for the next.
    ///
    /// # Errors
    ///
    /// The service thread cannot be had.
    pub(crate) fn wake_cm_at(&self, when: Instant) -> io::Result<()> {
        self.ensure_service()?;
        if self.state.alarm.set(when) {
            self.state.common.mailbox.ring();
        }
        Ok(())
    }
}

impl State {
    /// Nobody is to be expected at this block, who has been there.
    pub(crate) fn tell_gone(&self, block: u16) {
        self.ports.forget(block);
        if let Some(handler) = self.handler() {
            handler.cm_gone(block);
        }
    }

    fn tell_letter(&self, from: u16, letter: &[u8]) {
        if let Some(handler) = self.handler() {
            handler.cm_message(from, letter);
        }
    }

    /// Letters to this block are not for anybody.
    pub(crate) fn fail_mail(&self, block: u16) {
        if self.mail.outbox(block).fail() {
            self.tell_gone(block);
        }
    }

    /// All of them.
    pub(crate) fn fail_all_mail(&self) {
        for block in self.mail.blocks_of(|outbox| outbox.link.is_some() || !outbox.queue.is_empty()) {
            self.fail_mail(block);
        }
    }
}

impl Service {
    /// There are letters for this block that nobody sends: nobody is linked to it, its socket is full, or there are too many.
    pub(crate) fn forward(&mut self, block: u16) {
        self.end_overflow(block);
        match self.state.directory.linked_block(block) {
            Some(link) => {
                if !self.state.mail.attach(block, &link) {
                    self.await_room(&link, true);
                }
                self.release(block, Some(&link));
            }
            None if self.state.directory.begin(block) => self.call(block, Instant::now()),
            // It is being called: the answer comes here.
            None => {}
        }
    }

    fn end_overflow(&mut self, block: u16) {
        let Some(own) = self.state.blocks.first() else { return };
        {
            let mut outbox = self.state.mail.outbox(block);
            if !outbox.overflown {
                return;
            }
            outbox.overflown = false;
            // What was sent before may have been heard.
            outbox.send(&Request::Amnesia { from: own }.encode());
        }
        log::warn!(
            "the owner of block {block} does not listen: what the connection manager had to tell it is lost"
        );
        self.state.tell_gone(block);
    }

    /// A block's owner is linked.
    pub(crate) fn way_found(&mut self, block: u16, link: &Arc<Link>) {
        self.unmask(block, link);
        // Letters that are heard are answered at once.
        let wanted = self.state.mail.waits(block) || !self.held(block).is_empty();
        if wanted && !self.state.mail.attach(block, link) {
            self.await_room(link, true);
        }
        self.release(block, Some(link));
    }

    /// Whoever was heard as the owner of a block, when that could not be reached, and is another is not heard any more.
    fn unmask(&mut self, block: u16, owner: &Arc<Link>) {
        let is_another = |guest: &Guest| {
            matches!(guest.voice, Voice::Heard { block: of } if of == block)
                && !owner.is_of(&guest.process, guest.pid)
        };
        let others = self.guests(is_another);
        for token in &others {
            if let Some(Entry::Guest(guest)) = self.entries.get_mut(token) {
                guest.voice = Voice::Unheard;
            }
        }
        if !others.is_empty() {
            log::debug!("a peer that said it has the block {block} is not its owner");
            self.state.tell_gone(block);
        }
    }

    fn await_room(&self, link: &Arc<Link>, room: bool) {
        let Some((socket, token)) = link.socket().zip(link.token()) else { return };
        if link.await_room(room) {
            self.heed_room(socket, token, room);
        }
    }

    /// There may be room in a socket that was full.
    pub(crate) fn go_on(&mut self, link: &Arc<Link>) {
        let is_its = |outbox: &Outbox| outbox.link.as_ref().is_some_and(|of| Arc::ptr_eq(of, link));
        let blocks = self.state.mail.blocks_of(is_its);
        let left = blocks.iter().filter(|block| !self.state.mail.outbox(**block).flush()).count();
        self.await_room(link, left > 0);
    }

    /// A block has no owner who could be reached.
    pub(crate) fn no_way(&mut self, block: u16) {
        self.state.fail_mail(block);
        self.release(block, None);
    }

    /// Somebody is there, and does not answer: is stopped, or busy. Says whether to call again.
    pub(crate) fn no_answer(&mut self, block: u16) -> bool {
        let waits = self.state.mail.waits(block) && {
            let mut outbox = self.state.mail.outbox(block);
            outbox.since.get_or_insert_with(Instant::now).elapsed() < WAIT
        };
        if !waits {
            self.state.fail_mail(block);
        }
        // What it has sent itself waits no longer.
        self.release(block, None);
        waits
    }

    /// The peer is dead. What it has said before is heard first.
    pub(crate) fn lose_mail(&mut self, link: &Arc<Link>) {
        let is_its = |outbox: &Outbox| outbox.link.as_ref().is_some_and(|of| Arc::ptr_eq(of, link));
        let blocks = self.state.mail.blocks_of(is_its);
        let Some(block) = blocks.first().copied() else { return };
        for token in self.guests(|guest| link.is_of(&guest.process, guest.pid)) {
            let Some(Entry::Guest(mut guest)) = self.entries.remove(&token) else { continue };
            // It is answered no more, so nothing is held until it can be.
            self.release_one(&mut guest, Some(link));
            if matches!(guest.voice, Voice::Unheard) {
                guest.voice = Voice::Heard { block };
            }
            let ended = self.hear_rest(&mut guest);
            guest.voice = Voice::Unheard;
            let kept = if ended { self.hear_end(token, guest) } else { Some(Entry::Guest(guest)) };
            self.entries.extend(kept.map(|entry| (token, entry)));
        }
        for block in blocks {
            self.state.fail_mail(block);
        }
    }

    fn guests(&self, wanted: impl Fn(&Guest) -> bool) -> Vec<u64> {
        let found =
            self.entries.iter().filter(|(_, entry)| matches!(entry, Entry::Guest(guest) if wanted(guest)));
        found.map(|(token, _)| *token).collect()
    }

    /// A guest's connection manager says something. `false` if it cannot be the one who it says it is.
    pub(crate) fn hear_letter(&mut self, guest: &mut Guest, from: u16, letter: &[u8]) -> bool {
        match &mut guest.voice {
            Voice::Heard { block } if *block == from => {
                self.state.tell_letter(from, letter);
                self.vigil.begin(Instant::now());
            }
            Voice::Held { block, letters } if *block == from => {
                letters.push(letter.into());
                if letters.len() >= HELD {
                    self.release_one(guest, None);
                }
            }
            Voice::Unheard => return self.hear_first(guest, from, letter),
            Voice::Heard { .. } | Voice::Held { .. } => return false,
        }
        true
    }

    fn hear_first(&mut self, guest: &mut Guest, from: u16, letter: &[u8]) -> bool {
        if self.state.blocks.has(from) {
            return false;
        }
        // The block may have been another's, who is dead.
        if let Some(link) = self.state.mail.link(from).filter(|link| !link.is_of(&guest.process, guest.pid)) {
            self.check_end(&link);
        }
        guest.voice = Voice::Held { block: from, letters: vec![letter.into()] };
        self.forward(from);
        let way = self.state.directory.linked_block(from);
        if way.is_some() || !self.state.directory.is_asked(from) {
            self.release_one(guest, way.as_ref());
        }
        !matches!(guest.voice, Voice::Unheard)
    }

    /// The process that has a block, as the system says, if it is being called.
    fn callee(&self, block: u16) -> Option<u32> {
        self.entries.values().find_map(|entry| match entry {
            Entry::Call(call) => call.pid_of(block),
            _ => None,
        })
    }

    fn is_heard(&self, block: u16) -> bool {
        !self.guests(|guest| matches!(guest.voice, Voice::Heard { block: of } if of == block)).is_empty()
    }

    fn held(&self, block: u16) -> Vec<u64> {
        self.guests(|guest| matches!(guest.voice, Voice::Held { block: of, .. } if of == block))
    }

    /// It is known how guests with this block are answered, or that they are not.
    fn release(&mut self, block: u16, way: Option<&Arc<Link>>) {
        for token in self.held(block) {
            let Some(Entry::Guest(mut guest)) = self.entries.remove(&token) else { continue };
            self.release_one(&mut guest, way);
            self.entries.insert(token, Entry::Guest(guest));
        }
    }

    fn release_one(&mut self, guest: &mut Guest, way: Option<&Arc<Link>>) {
        let Voice::Held { block, mut letters } = core::mem::take(&mut guest.voice) else { return };
        // Whom this process writes to at the block, or hears from there, may be another: it is not heard before that is known.
        let may_be_another = || {
            (self.state.mail.is_used(block) || self.is_heard(block)) && self.callee(block) != Some(guest.pid)
        };
        if way.is_none() && may_be_another() {
            if letters.len() >= MOST_HELD {
                log::warn!("what a peer had to say that claims the block {block} is lost");
                letters.clear();
            }
            guest.voice = Voice::Held { block, letters };
            return;
        }
        if way.is_some_and(|link| !link.is_of(&guest.process, guest.pid)) {
            return log::debug!("a peer says that it has the block {block} of another");
        }
        guest.voice = Voice::Heard { block };
        letters.iter().for_each(|letter| self.state.tell_letter(block, letter));
    }

    /// A guest's connection manager has forgotten what it wanted to say.
    pub(crate) fn hear_amnesia(&mut self, guest: &mut Guest, from: u16) -> bool {
        match &mut guest.voice {
            Voice::Heard { block } if *block == from => self.state.tell_gone(from),
            Voice::Held { block, letters } if *block == from => letters.clear(),
            // It has said nothing that was heard.
            Voice::Unheard => {}
            Voice::Heard { .. } | Voice::Held { .. } => return false,
        }
        true
    }

    /// Nothing more comes from a guest.
    pub(crate) fn hear_silence(&mut self, guest: &mut Guest) {
        if let Voice::Heard { block } = core::mem::take(&mut guest.voice) {
            let _ = self.state.mail.outbox(block).fail();
            self.state.tell_gone(block);
            // Another who says that it has the block has waited for that.
            self.release(block, None);
        }
    }
}
