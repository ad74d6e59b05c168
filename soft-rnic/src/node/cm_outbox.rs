//! Messages between the connection managers of processes: outboxes, and what a peer may send.
//!
//! A sender writes into the peer's socket itself while nothing waits; the service thread connects, and
//! goes on where a socket was full. Other connection managers know a process by its first block.
//!
//! A message is delivered when the way back exists, if the sender can be reached soon. So an answer
//! never waits for a connection, and its writer may exit right after it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::attached_peer::AttachedPeer;
use super::mailbox::ServiceCommand;
use super::message::{Request, cm_message_packet};
use super::numbers::LAST_BLOCK;
use super::peer_process::PeerProcess;
use super::service::{EventSource, ServiceThread};
use super::{Node, NodeState};

/// So many bytes wait for one process, at most: when it is stopped, and its socket is full.
const ROOM: usize = 16 << 20;
/// What one CM message takes besides its bytes.
const EACH: usize = 64;
/// So long CM messages wait for somebody who is there and does not answer. That is how long a connection manager asks.
const WAIT: Duration = Duration::from_secs(64);
/// So many CM messages are held until there is a owner back.
const MAX_PENDING: usize = 256;
/// So many until it is known whose they are. They take as much as the room for an attached peer's calls.
const MAX_PENDING_UNKNOWN: usize = 4096;

/// CM messages to the owner of a block.
#[derive(Debug, Default)]
struct CmOutbox {
    /// Where they go. `None` if nobody has connected for them yet.
    process: Option<Arc<PeerProcess>>,
    /// Those that wait. If there are any, the service thread knows of it.
    queue: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Too many have waited. All are lost, until the service thread has told so.
    overflowed: bool,
    /// Since when somebody is wanted who does not answer.
    since: Option<Instant>,
}

/// What became of a CM message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enqueued {
    /// It is out, it waits with others, or it is lost with the peer.
    Handled,
    /// It is the first that waits.
    First,
}

impl CmOutbox {
    fn send(&mut self, packet: &[u8]) -> Enqueued {
        if self.overflowed {
            return Enqueued::Handled;
        }
        let first = self.queue.is_empty();
        if let Some(socket) = self.process.as_ref().filter(|_| first).and_then(|process| process.socket())
            && !must_wait(socket.send(packet))
        {
            return Enqueued::Handled;
        }
        if self.bytes + packet.len() + EACH > ROOM {
            self.clear();
            self.overflowed = true;
            return Enqueued::First;
        }
        self.bytes += packet.len() + EACH;
        self.queue.push_back(packet.into());
        if first { Enqueued::First } else { Enqueued::Handled }
    }

    /// Sends what waits, as far as there is room. True if nothing is left.
    fn flush(&mut self) -> bool {
        let Some(socket) = self.process.as_ref().and_then(|process| process.socket()) else { return true };
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
        let news = self.process.take().is_some() | !self.queue.is_empty() | self.overflowed;
        self.clear();
        (self.overflowed, self.since) = (false, None);
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

/// All CM messages that go out. There is nothing before the first.
#[derive(Debug, Default)]
pub(crate) struct CmOutboxes(OnceLock<Box<[Mutex<CmOutbox>]>>);

impl CmOutboxes {
    fn outbox(&self, block: u16) -> MutexGuard<'_, CmOutbox> {
        let all = self.0.get_or_init(|| (0..=LAST_BLOCK).map(|_| Mutex::default()).collect());
        all[usize::from(block.min(LAST_BLOCK))].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks whose CM messages go this owner.
    fn blocks_of(&self, wanted: impl Fn(&CmOutbox) -> bool) -> Vec<u16> {
        let all = self.0.get().into_iter().flatten().enumerate();
        all.filter(|(_, outbox)| wanted(&outbox.lock().unwrap_or_else(PoisonError::into_inner)))
            .map(|(block, _)| block as u16)
            .collect()
    }

    /// From now on, CM messages go this owner. True if all that have waited are out.
    fn attach(&self, block: u16, process: &Arc<PeerProcess>) -> bool {
        let mut outbox = self.outbox(block);
        (outbox.process, outbox.since) = (Some(Arc::clone(process)), None);
        outbox.flush()
    }

    fn process(&self, block: u16) -> Option<Arc<PeerProcess>> {
        self.outbox(block).process.clone()
    }

    /// Whether somebody is written to at this block.
    fn is_used(&self, block: u16) -> bool {
        self.0.get().is_some() && {
            let outbox = self.outbox(block);
            outbox.process.is_some() || !outbox.queue.is_empty() || outbox.overflowed
        }
    }

    /// Whether there are CM messages that wait for a connection.
    pub(crate) fn waits(&self, block: u16) -> bool {
        self.0.get().is_some() && !self.outbox(block).queue.is_empty()
    }
}

/// What is known of an attached peer's connection manager.
#[derive(Debug, Default)]
pub(crate) enum PeerCm {
    /// It has said nothing.
    #[default]
    Silent,
    /// It is to be answered at this block, to which there is no owner yet.
    Pending {
        block: u16,
        messages: Vec<Box<[u8]>>,
    },
    Active {
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
    /// handler. What is sent to one process comes in the order of the calls, and all of it, unless [`NodeHandler::cm_gone`] is called.
    ///
    /// [`own_block`](Self::own_block) must have been called before: the answer comes there.
    ///
    /// # Errors
    ///
    /// It is too long (`InvalidInput`), or nobody can be reached at all: there is no service thread, or the program has closed the
    /// device's descriptors.
    ///
    /// [`NodeHandler::cm_gone`]: super::NodeHandler::cm_gone
    pub(crate) fn send_cm(&self, block: u16, message: &[u8]) -> io::Result<()> {
        let from = self.own_block()?;
        self.ensure_service()?;
        let packet = cm_message_packet(from, message).ok_or(io::ErrorKind::InvalidInput)?;
        if self.state.cm_outboxes.outbox(block).send(&packet) == Enqueued::First {
            self.state.common.mailbox.post(ServiceCommand::FlushOutbox { block });
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
            self.state.common.mailbox.wake();
        }
        Ok(())
    }
}

impl NodeState {
    /// Nobody is to be expected at this block, who has been there.
    pub(crate) fn notify_cm_gone(&self, block: u16) {
        self.ports.forget(block);
        if let Some(handler) = self.handler() {
            handler.cm_gone(block);
        }
    }

    fn deliver_cm_message(&self, from: u16, message: &[u8]) {
        if let Some(handler) = self.handler() {
            handler.cm_message(from, message);
        }
    }

    /// CM messages to this block are not for anybody.
    pub(crate) fn fail_outbox(&self, block: u16) {
        if self.cm_outboxes.outbox(block).fail() {
            self.notify_cm_gone(block);
        }
    }

    /// All of them.
    pub(crate) fn fail_all_outboxes(&self) {
        for block in self.cm_outboxes.blocks_of(|outbox| outbox.process.is_some() || !outbox.queue.is_empty())
        {
            self.fail_outbox(block);
        }
    }
}

impl ServiceThread {
    /// There are CM messages for this block that nobody sends: nobody is linked to it, its socket is full, or there are too many.
    pub(crate) fn flush_outbox(&mut self, block: u16) {
        self.end_overflow(block);
        match self.state.directory.owner_of(block) {
            Some(process) => {
                if !self.state.cm_outboxes.attach(block, &process) {
                    self.await_room(&process, true);
                }
                self.release_pending(block, Some(&process));
            }
            None if self.state.directory.begin(block) => self.start_connect(block, Instant::now()),
            // It is being called: the answer comes here.
            None => {}
        }
    }

    fn end_overflow(&mut self, block: u16) {
        let Some(own) = self.state.blocks.first() else { return };
        {
            let mut outbox = self.state.cm_outboxes.outbox(block);
            if !outbox.overflowed {
                return;
            }
            outbox.overflowed = false;
            // What was sent before may have been heard.
            outbox.send(&Request::CmReset { from: own }.encode());
        }
        log::warn!(
            "the owner of block {block} does not listen: what the connection manager had to tell it is lost"
        );
        self.state.notify_cm_gone(block);
    }

    /// A block's owner is linked.
    pub(crate) fn owner_connected(&mut self, block: u16, process: &Arc<PeerProcess>) {
        self.silence_impostors(block, process);
        // CM messages that are heard are answered at once.
        let wanted = self.state.cm_outboxes.waits(block) || !self.pending_peers(block).is_empty();
        if wanted && !self.state.cm_outboxes.attach(block, process) {
            self.await_room(process, true);
        }
        self.release_pending(block, Some(process));
    }

    /// Whoever was heard as the owner of a block, when that could not be reached, and is another is not heard any more.
    fn silence_impostors(&mut self, block: u16, owner: &Arc<PeerProcess>) {
        let is_another = |peer: &AttachedPeer| {
            matches!(peer.cm, PeerCm::Active { block: of } if of == block)
                && !owner.is_of(&peer.process, peer.pid)
        };
        let others = self.attached_peers(is_another);
        for token in &others {
            if let Some(EventSource::AttachedPeer(peer)) = self.sources.get_mut(token) {
                peer.cm = PeerCm::Silent;
            }
        }
        if !others.is_empty() {
            log::debug!("a peer that said it has the block {block} is not its owner");
            self.state.notify_cm_gone(block);
        }
    }

    fn await_room(&self, process: &Arc<PeerProcess>, room: bool) {
        let Some((socket, token)) = process.socket().zip(process.token()) else { return };
        if process.await_room(room) {
            self.watch_writable(socket, token, room);
        }
    }

    /// There may be room in a socket that was full.
    pub(crate) fn flush_writable(&mut self, process: &Arc<PeerProcess>) {
        let is_its = |outbox: &CmOutbox| outbox.process.as_ref().is_some_and(|of| Arc::ptr_eq(of, process));
        let blocks = self.state.cm_outboxes.blocks_of(is_its);
        let left = blocks.iter().filter(|block| !self.state.cm_outboxes.outbox(**block).flush()).count();
        self.await_room(process, left > 0);
    }

    /// A block has no owner who could be reached.
    pub(crate) fn owner_unreachable(&mut self, block: u16) {
        self.state.fail_outbox(block);
        self.release_pending(block, None);
    }

    /// Somebody is there, and does not answer: is stopped, or busy. Says whether to call again.
    pub(crate) fn keep_waiting(&mut self, block: u16) -> bool {
        let waits = self.state.cm_outboxes.waits(block) && {
            let mut outbox = self.state.cm_outboxes.outbox(block);
            outbox.since.get_or_insert_with(Instant::now).elapsed() < WAIT
        };
        if !waits {
            self.state.fail_outbox(block);
        }
        // What it has sent itself waits no longer.
        self.release_pending(block, None);
        waits
    }

    /// The peer is dead. What it has said before is heard first.
    pub(crate) fn drop_outboxes(&mut self, process: &Arc<PeerProcess>) {
        let is_its = |outbox: &CmOutbox| outbox.process.as_ref().is_some_and(|of| Arc::ptr_eq(of, process));
        let blocks = self.state.cm_outboxes.blocks_of(is_its);
        let Some(block) = blocks.first().copied() else { return };
        for token in self.attached_peers(|peer| process.is_of(&peer.process, peer.pid)) {
            let Some(EventSource::AttachedPeer(mut peer)) = self.sources.remove(&token) else { continue };
            // It is answered no more, so nothing is held until it can be.
            self.release_one(&mut peer, Some(process));
            if matches!(peer.cm, PeerCm::Silent) {
                peer.cm = PeerCm::Active { block };
            }
            let ended = self.drain_connection(&mut peer);
            peer.cm = PeerCm::Silent;
            let kept = if ended {
                self.connection_ended(token, peer)
            } else {
                Some(EventSource::AttachedPeer(peer))
            };
            self.sources.extend(kept.map(|source| (token, source)));
        }
        for block in blocks {
            self.state.fail_outbox(block);
        }
    }

    fn attached_peers(&self, wanted: impl Fn(&AttachedPeer) -> bool) -> Vec<u64> {
        let found = self
            .sources
            .iter()
            .filter(|(_, source)| matches!(source, EventSource::AttachedPeer(peer) if wanted(peer)));
        found.map(|(token, _)| *token).collect()
    }

    /// A attached peer's connection manager says something. `false` if it cannot be the one who it says it is.
    pub(crate) fn receive_cm_message(&mut self, peer: &mut AttachedPeer, from: u16, message: &[u8]) -> bool {
        match &mut peer.cm {
            PeerCm::Active { block } if *block == from => {
                self.state.deliver_cm_message(from, message);
                self.busy_poll.start(Instant::now());
            }
            PeerCm::Pending { block, messages } if *block == from => {
                messages.push(message.into());
                if messages.len() >= MAX_PENDING {
                    self.release_one(peer, None);
                }
            }
            PeerCm::Silent => return self.receive_first_cm_message(peer, from, message),
            PeerCm::Active { .. } | PeerCm::Pending { .. } => return false,
        }
        true
    }

    fn receive_first_cm_message(&mut self, peer: &mut AttachedPeer, from: u16, message: &[u8]) -> bool {
        if self.state.blocks.has(from) {
            return false;
        }
        // The block may have been another's, who is dead.
        if let Some(process) =
            self.state.cm_outboxes.process(from).filter(|process| !process.is_of(&peer.process, peer.pid))
        {
            self.check_end(&process);
        }
        peer.cm = PeerCm::Pending { block: from, messages: vec![message.into()] };
        self.flush_outbox(from);
        let owner = self.state.directory.owner_of(from);
        if owner.is_some() || !self.state.directory.is_connecting(from) {
            self.release_one(peer, owner.as_ref());
        }
        !matches!(peer.cm, PeerCm::Silent)
    }

    /// The process that has a block, as the system says, if it is being called.
    fn connecting_pid(&self, block: u16) -> Option<u32> {
        self.sources.values().find_map(|source| match source {
            EventSource::PendingConnect(pending) => pending.pid_of(block),
            _ => None,
        })
    }

    fn is_heard(&self, block: u16) -> bool {
        !self.attached_peers(|peer| matches!(peer.cm, PeerCm::Active { block: of } if of == block)).is_empty()
    }

    fn pending_peers(&self, block: u16) -> Vec<u64> {
        self.attached_peers(|peer| matches!(peer.cm, PeerCm::Pending { block: of, .. } if of == block))
    }

    /// It is known how attached peers with this block are answered, or that they are not.
    fn release_pending(&mut self, block: u16, owner: Option<&Arc<PeerProcess>>) {
        for token in self.pending_peers(block) {
            let Some(EventSource::AttachedPeer(mut peer)) = self.sources.remove(&token) else { continue };
            self.release_one(&mut peer, owner);
            self.sources.insert(token, EventSource::AttachedPeer(peer));
        }
    }

    fn release_one(&mut self, peer: &mut AttachedPeer, owner: Option<&Arc<PeerProcess>>) {
        let PeerCm::Pending { block, mut messages } = core::mem::take(&mut peer.cm) else { return };
        // Whom this process writes to at the block, or hears from there, may be another: it is not heard before that is known.
        let may_be_another = || {
            (self.state.cm_outboxes.is_used(block) || self.is_heard(block))
                && self.connecting_pid(block) != Some(peer.pid)
        };
        if owner.is_none() && may_be_another() {
            if messages.len() >= MAX_PENDING_UNKNOWN {
                log::warn!("what a peer had to say that claims the block {block} is lost");
                messages.clear();
            }
            peer.cm = PeerCm::Pending { block, messages };
            return;
        }
        if owner.is_some_and(|process| !process.is_of(&peer.process, peer.pid)) {
            return log::debug!("a peer says that it has the block {block} of another");
        }
        peer.cm = PeerCm::Active { block };
        messages.iter().for_each(|message| self.state.deliver_cm_message(block, message));
    }

    /// A attached peer's connection manager has forgotten what it wanted to say.
    pub(crate) fn receive_cm_reset(&mut self, peer: &mut AttachedPeer, from: u16) -> bool {
        match &mut peer.cm {
            PeerCm::Active { block } if *block == from => self.state.notify_cm_gone(from),
            PeerCm::Pending { block, messages } if *block == from => messages.clear(),
            // It has said nothing that was heard.
            PeerCm::Silent => {}
            PeerCm::Active { .. } | PeerCm::Pending { .. } => return false,
        }
        true
    }

    /// Nothing more comes from an attached peer.
    pub(crate) fn end_peer_cm(&mut self, peer: &mut AttachedPeer) {
        if let PeerCm::Active { block } = core::mem::take(&mut peer.cm) {
            let _ = self.state.cm_outboxes.outbox(block).fail();
            self.state.notify_cm_gone(block);
            // Another who says that it has the block has waited for that.
            self.release_pending(block, None);
        }
    }
}
