//! Messages between the connection managers of processes: outboxes, and checks of a peer's
//! messages.
//!
//! While an outbox is empty, the sender itself writes into the peer's socket. The service thread
//! connects, and continues where a socket was full. Connection managers identify a process by its
//! first block.
//!
//! If the sender of a message can be reached soon, the message is delivered only when the
//! connection back to it exists. So an answer never waits for a connection, and its writer may exit
//! right after it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::attached_peer::AttachedPeer;
use super::mailbox::ServiceCommand;
use super::message::{PeerRequest, cm_message_packet};
use super::numbers::LAST_BLOCK;
use super::peer_process::PeerProcess;
use super::service::{EventSource, ServiceThread};
use super::{Node, NodeState};

/// The most bytes that wait for one process, such as a stopped process whose socket is full.
const ROOM: usize = 16 << 20;
/// Bytes that a CM message takes in memory beyond its contents.
const EACH: usize = 64;
/// How long CM messages wait for a process that does not answer. A connection manager retries its
/// requests for that long.
const WAIT: Duration = Duration::from_secs(64);
/// The most CM messages of one peer that are held until this process is connected to it.
const MAX_PENDING: usize = 256;
/// The most CM messages that are held while the owner of their block is unknown. They take as much
/// memory as an attached peer's call cells.
const MAX_PENDING_UNKNOWN: usize = 4096;

/// The CM messages to the owner of one block.
#[derive(Debug, Default)]
struct CmOutbox {
    /// The owner. `None` if nothing has connected to it for this outbox yet.
    process: Option<Arc<PeerProcess>>,
    /// The waiting messages. Whenever there are any, the service thread knows of them.
    queue: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Too many messages have waited. All further ones are dropped until the service thread has
    /// reported the loss.
    overflowed: bool,
    /// The time since when the service thread has tried to reach an owner that does not answer.
    since: Option<Instant>,
}

/// The result of sending a CM message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enqueued {
    /// It was sent, it waits behind others, or it was lost with the peer.
    Handled,
    /// It is the first that waits, so the caller must tell the service thread.
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

    /// Sends the waiting messages as far as the socket has room. True if none is left.
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

    /// Empties the outbox, because it has no owner. False if it was unused.
    fn fail(&mut self) -> bool {
        let news = self.process.take().is_some() | !self.queue.is_empty() | self.overflowed;
        self.clear();
        (self.overflowed, self.since) = (false, None);
        news
    }
}

/// Whether a packet must be sent again. If the peer is gone, the service thread finds that out by
/// itself.
fn must_wait(sent: io::Result<()>) -> bool {
    const SCARCE: [i32; 3] = [libc::ENOMEM, libc::ENOBUFS, libc::EINTR];
    sent.is_err_and(|error| {
        error.kind() == io::ErrorKind::WouldBlock
            || error.raw_os_error().is_some_and(|error| SCARCE.contains(&error))
    })
}

/// The outboxes for all blocks, allocated when the first message is sent.
#[derive(Debug, Default)]
pub(crate) struct CmOutboxes(OnceLock<Box<[Mutex<CmOutbox>]>>);

impl CmOutboxes {
    fn outbox(&self, block: u16) -> MutexGuard<'_, CmOutbox> {
        let all = self.0.get_or_init(|| (0..=LAST_BLOCK).map(|_| Mutex::default()).collect());
        all[usize::from(block.min(LAST_BLOCK))].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks whose outbox matches.
    fn blocks_of(&self, wanted: impl Fn(&CmOutbox) -> bool) -> Vec<u16> {
        let all = self.0.get().into_iter().flatten().enumerate();
        all.filter(|(_, outbox)| wanted(&outbox.lock().unwrap_or_else(PoisonError::into_inner)))
            .map(|(block, _)| block as u16)
            .collect()
    }

    /// Assigns the owner to an outbox, and sends it the waiting messages. True if all of them are
    /// out.
    fn attach(&self, block: u16, process: &Arc<PeerProcess>) -> bool {
        let mut outbox = self.outbox(block);
        (outbox.process, outbox.since) = (Some(Arc::clone(process)), None);
        outbox.flush()
    }

    fn process(&self, block: u16) -> Option<Arc<PeerProcess>> {
        self.outbox(block).process.clone()
    }

    /// Whether this process sends messages to this block.
    fn is_used(&self, block: u16) -> bool {
        self.0.get().is_some() && {
            let outbox = self.outbox(block);
            outbox.process.is_some() || !outbox.queue.is_empty() || outbox.overflowed
        }
    }

    /// Whether CM messages wait for a connection.
    pub(crate) fn waits(&self, block: u16) -> bool {
        self.0.get().is_some() && !self.outbox(block).queue.is_empty()
    }
}

/// The state of an attached peer's connection manager.
#[derive(Debug, Default)]
pub(crate) enum PeerCm {
    /// It has sent nothing.
    #[default]
    Silent,
    /// It wants its answers at this block, to whose owner this process is not connected yet.
    Pending {
        block: u16,
        messages: Vec<Box<[u8]>>,
    },
    Active {
        block: u16,
    },
}

impl Node {
    /// The block by which other connection managers know this process: its first. It is held from
    /// now on.
    ///
    /// # Errors
    ///
    /// The errors of [`new_qp_number`](Self::new_qp_number).
    pub(crate) fn own_block(&self) -> io::Result<u16> {
        if let Some(block) = self.state.blocks.first() {
            return Ok(block);
        }
        self.ensure_service()?;
        self.numbers.hold(|ordinal| self.take_block(ordinal))
    }

    /// Sends a message to the connection manager of the process that owns a block, which must not
    /// be this process. It never waits, and calls no handler. Messages to one process arrive in the
    /// order of the calls and without gaps, unless [`NodeHandler::cm_gone`] is called.
    ///
    /// [`own_block`](Self::own_block) must have been called before, because the answer arrives
    /// there.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the message is too long. Also fails if no process can be reached at all:
    /// the service thread cannot be started, or the program has closed the device's descriptors.
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

    /// Requests a call of the handler's `cm_timer` at this time or soon after, or at an earlier
    /// time that was requested before. Only one time is kept, so the handler must request its next
    /// call itself.
    ///
    /// # Errors
    ///
    /// If the service thread cannot be started.
    pub(crate) fn wake_cm_at(&self, when: Instant) -> io::Result<()> {
        self.ensure_service()?;
        if self.state.alarm.set(when) {
            self.state.common.mailbox.wake();
        }
        Ok(())
    }
}

impl NodeState {
    /// Reports that the owner of this block is gone.
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

    /// Drops the messages to this block, and reports its owner as gone if there were any.
    pub(crate) fn fail_outbox(&self, block: u16) {
        if self.cm_outboxes.outbox(block).fail() {
            self.notify_cm_gone(block);
        }
    }

    /// Fails the outboxes of all blocks.
    pub(crate) fn fail_all_outboxes(&self) {
        for block in self.cm_outboxes.blocks_of(|outbox| outbox.process.is_some() || !outbox.queue.is_empty())
        {
            self.fail_outbox(block);
        }
    }
}

impl ServiceThread {
    /// Handles messages that their senders could not send: the block's owner is not connected, its
    /// socket is full, or too many messages wait.
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
            // The connection is being made; its result is handled where it arrives.
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
            // The owner may have received messages before the loss.
            outbox.send(&PeerRequest::CmReset { from: own }.encode());
        }
        log::warn!(
            "the owner of block {block} does not read: the connection manager's messages to it are lost"
        );
        self.state.notify_cm_gone(block);
    }

    /// Handles a new connection to a block's owner.
    pub(crate) fn owner_connected(&mut self, block: u16, process: &Arc<PeerProcess>) {
        self.silence_impostors(block, process);
        // Attach the outbox even if it is empty while messages from the owner are held, because
        // their answers must not wait for a connection.
        let wanted = self.state.cm_outboxes.waits(block) || !self.pending_peers(block).is_empty();
        if wanted && !self.state.cm_outboxes.attach(block, process) {
            self.await_room(process, true);
        }
        self.release_pending(block, Some(process));
    }

    /// Ignores peers that sent messages as this block's owner while the real owner could not be
    /// reached.
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
            log::debug!("a peer that claims the block {block} is not its owner");
            self.state.notify_cm_gone(block);
        }
    }

    fn await_room(&self, process: &Arc<PeerProcess>, room: bool) {
        let Some((socket, token)) = process.socket().zip(process.token()) else { return };
        if process.await_room(room) {
            self.watch_writable(socket, token, room);
        }
    }

    /// Sends waiting messages after a full socket may have got room.
    pub(crate) fn flush_writable(&mut self, process: &Arc<PeerProcess>) {
        let is_its = |outbox: &CmOutbox| outbox.process.as_ref().is_some_and(|of| Arc::ptr_eq(of, process));
        let blocks = self.state.cm_outboxes.blocks_of(is_its);
        let left = blocks.iter().filter(|block| !self.state.cm_outboxes.outbox(**block).flush()).count();
        self.await_room(process, left > 0);
    }

    /// Handles a block whose owner cannot be reached.
    pub(crate) fn owner_unreachable(&mut self, block: u16) {
        self.state.fail_outbox(block);
        self.release_pending(block, None);
    }

    /// Handles an owner that does not answer, because it is stopped or busy. Returns whether to
    /// connect again.
    pub(crate) fn keep_waiting(&mut self, block: u16) -> bool {
        let waits = self.state.cm_outboxes.waits(block) && {
            let mut outbox = self.state.cm_outboxes.outbox(block);
            outbox.since.get_or_insert_with(Instant::now).elapsed() < WAIT
        };
        if !waits {
            self.state.fail_outbox(block);
        }
        // The owner's messages to this process are delivered without waiting for the connection
        // back.
        self.release_pending(block, None);
        waits
    }

    /// Handles the death of a peer. Its messages that have already arrived are delivered first.
    pub(crate) fn drop_outboxes(&mut self, process: &Arc<PeerProcess>) {
        let is_its = |outbox: &CmOutbox| outbox.process.as_ref().is_some_and(|of| Arc::ptr_eq(of, process));
        let blocks = self.state.cm_outboxes.blocks_of(is_its);
        let Some(block) = blocks.first().copied() else { return };
        for token in self.attached_peers(|peer| process.is_of(&peer.process, peer.pid)) {
            let Some(EventSource::AttachedPeer(mut peer)) = self.sources.remove(&token) else { continue };
            // Answers can no longer be sent, so messages are not held until they can be.
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

    /// Handles a message from a peer's connection manager. `false` if the peer cannot be the owner
    /// of the block it names.
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
        // The block may have belonged to another process that is dead.
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

    /// The process number of a block's owner, as the system reports it, while this process connects
    /// to it.
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

    /// Delivers or drops the held messages of the peers that claim this block. `owner` is the
    /// connected owner, or `None` if it cannot be reached.
    fn release_pending(&mut self, block: u16, owner: Option<&Arc<PeerProcess>>) {
        for token in self.pending_peers(block) {
            let Some(EventSource::AttachedPeer(mut peer)) = self.sources.remove(&token) else { continue };
            self.release_one(&mut peer, owner);
            self.sources.insert(token, EventSource::AttachedPeer(peer));
        }
    }

    fn release_one(&mut self, peer: &mut AttachedPeer, owner: Option<&Arc<PeerProcess>>) {
        let PeerCm::Pending { block, mut messages } = core::mem::take(&mut peer.cm) else { return };
        // This process may exchange messages with another owner of the block. Until that is known,
        // the peer's messages are held.
        let may_be_another = || {
            (self.state.cm_outboxes.is_used(block) || self.is_heard(block))
                && self.connecting_pid(block) != Some(peer.pid)
        };
        if owner.is_none() && may_be_another() {
            if messages.len() >= MAX_PENDING_UNKNOWN {
                log::warn!(
                    "the messages of a peer that claims the block {block} are lost: the owner is not known yet"
                );
                messages.clear();
            }
            peer.cm = PeerCm::Pending { block, messages };
            return;
        }
        if owner.is_some_and(|process| !process.is_of(&peer.process, peer.pid)) {
            return log::debug!("a peer claims the block {block} of another process");
        }
        peer.cm = PeerCm::Active { block };
        messages.iter().for_each(|message| self.state.deliver_cm_message(block, message));
    }

    /// Handles a peer's notice that it has dropped messages it wanted to send.
    pub(crate) fn receive_cm_reset(&mut self, peer: &mut AttachedPeer, from: u16) -> bool {
        match &mut peer.cm {
            PeerCm::Active { block } if *block == from => self.state.notify_cm_gone(from),
            PeerCm::Pending { block, messages } if *block == from => messages.clear(),
            // None of its messages was delivered, so none can be missing.
            PeerCm::Silent => {}
            PeerCm::Active { .. } | PeerCm::Pending { .. } => return false,
        }
        true
    }

    /// Ends the messages of an attached peer.
    pub(crate) fn end_peer_cm(&mut self, peer: &mut AttachedPeer) {
        if let PeerCm::Active { block } = core::mem::take(&mut peer.cm) {
            let _ = self.state.cm_outboxes.outbox(block).fail();
            self.state.notify_cm_gone(block);
            // Another peer that claims the block has waited for this one's end.
            self.release_pending(block, None);
        }
    }
}
