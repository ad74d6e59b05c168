//! Attached peers: the processes that map this process's segment, from `accept` to their end.

use core::num::NonZero;
use std::collections::HashSet;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::CALL_CELL;
use super::cm_outbox::PeerCm;
use super::heap::HeapRange;
use super::message::{Doorbell, ExportId, PeerRequest, ProcessId, REQUEST, Reply, Welcome};
use super::peer_ids::PeerLease;
use super::service::{EventSource, PACKETS_PER_TURN, ServiceThread};
use crate::platform::event_counter;
use crate::platform::process::{Lifeline, Process};
use crate::platform::socket::{MANY, ReceiveBuffers, Received, ReceivedMany, Socket};
use crate::shared::hazard::{HazardPage, TRANSFER_SLOTS};
use crate::shared::segment::LAYOUT_VERSION;
use crate::status::STATUS_VERSION;
use crate::sync::{AcqRel, Relaxed, SeqCst};

/// A process that has connected must send its hello within this time.
const HELLO: Duration = Duration::from_secs(1);
/// The most connections that have not sent their hello yet.
const MAX_PENDING_PEERS: usize = 128;
/// How long a process usually takes to die after it has closed its descriptors.
const DYING: Duration = Duration::from_millis(200);
/// The interval between checks for a death that the system does not report.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// How long a listener pauses when too many peers are pending, or when descriptors run out.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// The most packets read from a dead peer's connection: more than fit into a socket.
const REST: usize = 1 << 14;

/// The socket on which the owner of a block accepts peers.
pub(crate) struct BlockListener {
    socket: Socket,
    ordinal: u8,
}

/// A connected process of this user that has not sent its hello yet.
pub(crate) struct PendingPeer {
    pub(crate) socket: Socket,
    pid: u32,
    ordinal: u8,
}

/// A process that maps this process's segment.
pub(crate) struct AttachedPeer {
    socket: Socket,
    lease: PeerLease,
    calls: HeapRange,
    /// The exported memory that the peer was given to map.
    given: HashSet<ExportId>,
    /// The completion channels whose descriptors the peer was told.
    given_channels: HashSet<NonZero<u64>>,
    /// What the peer is notified of as soon as its socket has room.
    unsent_notices: Vec<Reply>,
    waits_for_room: bool,
    /// The peer has sent its goodbye.
    said_goodbye: bool,
    /// The process, by the identity it sent and by the process number that the system gave.
    pub(crate) process: ProcessId,
    pub(crate) pid: u32,
    pub(crate) cm: PeerCm,
}

/// An attached peer whose connection has ended without a goodbye.
///
/// If the process lives, its hazards and claims stay, because it may still be copying: a process
/// may close descriptors that it does not know of.
pub(crate) struct DisconnectedPeer {
    pub(crate) peer: AttachedPeer,
    process: Lifeline,
    /// The system does not report the end of the process, so that this process must check for it.
    asked_for: bool,
    noted: bool,
}

impl ServiceThread {
    /// Accepts peers at a block that this process has just taken.
    pub(crate) fn listen(&mut self, socket: Socket, ordinal: u8) {
        let token = self.new_token();
        self.watch_listener(token, BlockListener { socket, ordinal });
    }

    pub(crate) fn watch_listener(&mut self, token: u64, listener: BlockListener) {
        match self.watch(&listener.socket, token) {
            Ok(()) => {}
            Err(error) => {
                log::warn!("epoll_ctl: {error}; peers cannot connect for now");
                self.set_deadline(Instant::now() + PAUSE, token);
            }
        }
        self.sources.insert(token, EventSource::BlockListener(listener));
    }

    pub(crate) fn accept_connections(&mut self, token: u64, listener: BlockListener) -> Option<EventSource> {
        for _ in 0..PACKETS_PER_TURN {
            if self.sources.values().filter(|source| matches!(source, EventSource::PendingPeer(_))).count()
                >= MAX_PENDING_PEERS
            {
                self.pause(token, &listener);
                break;
            }
            match listener.socket.accept() {
                Ok(socket) => self.admit(socket, listener.ordinal),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The peer disconnected before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    log::warn!("a peer cannot connect: {error}");
                    self.pause(token, &listener);
                    break;
                }
            }
        }
        Some(EventSource::BlockListener(listener))
    }

    fn pause(&mut self, token: u64, listener: &BlockListener) {
        self.unwatch(&listener.socket);
        self.set_deadline(Instant::now() + PAUSE, token);
    }

    /// Admits a connection of this user. To a process of another user nothing is sent, and nothing
    /// is read from it.
    fn admit(&mut self, mut socket: Socket, ordinal: u8) {
        let who = match socket.peer_of(self.state.user) {
            Ok(who) => who,
            Err(who) => return log::debug!("refused a connection of another user: {who:?}"),
        };
        let token = self.new_token();
        if let Err(error) = self.watch(&socket, token) {
            log::warn!("a peer cannot connect: {error}");
            return;
        }
        self.set_deadline(Instant::now() + HELLO, token);
        self.sources.insert(token, EventSource::PendingPeer(PendingPeer { socket, pid: who.pid, ordinal }));
    }

    pub(crate) fn receive_hello(&mut self, pending: PendingPeer) -> Option<EventSource> {
        let mut buffer = [0; REQUEST];
        let request = match pending.socket.receive(&mut buffer) {
            Received::Packet(len, _) => PeerRequest::decode(&buffer[..len]),
            Received::Nothing => return Some(EventSource::PendingPeer(pending)),
            Received::End => None,
        };
        let peer = match request {
            Some(PeerRequest::Hello { version: LAYOUT_VERSION, process }) => {
                // Each connecting process may be a member of a group, even if it gives up before
                // the welcome arrives.
                self.state.segment.shared_header().newcomers.fetch_add(1, AcqRel);
                self.welcome(&pending).map(|(lease, calls)| (lease, calls, process))
            }
            Some(PeerRequest::Hello { version, .. }) => {
                log::warn!(
                    "process {} uses segment version {version} of the software device, this process {LAYOUT_VERSION}: \
                     run the same version in both",
                    pending.pid
                );
                let _ = pending.socket.send(&Reply::OtherVersion { version: LAYOUT_VERSION }.encode());
                None
            }
            Some(PeerRequest::Status { version }) => {
                self.tell_status(&pending, version);
                None
            }
            _ => None,
        };
        let Some((lease, calls, process)) = peer else {
            self.unwatch(&pending.socket);
            return None;
        };
        let (given, given_channels, unsent_notices) = (HashSet::new(), HashSet::new(), Vec::new());
        let (waits_for_room, said_goodbye) = (false, false);
        Some(EventSource::AttachedPeer(AttachedPeer {
            socket: pending.socket,
            lease,
            calls,
            given,
            given_channels,
            unsent_notices,
            waits_for_room,
            said_goodbye,
            process,
            pid: pending.pid,
            cm: PeerCm::default(),
        }))
    }

    /// Sends the statistics to a process that asks for them without becoming a peer. It gets no
    /// memory to map.
    fn tell_status(&self, pending: &PendingPeer, version: u64) {
        let Some(handler) = self.state.handler() else { return };
        let reply = if version == STATUS_VERSION {
            Reply::Status { process: self.state.process, statistics: Box::new(handler.statistics()) }
        } else {
            Reply::OtherVersion { version: STATUS_VERSION }
        };
        if let Err(error) = pending.socket.send(&reply.encode()) {
            log::debug!("the status could not be sent to process {}: {error}", pending.pid);
        }
    }

    /// Gives a new peer an id, cells for its calls, and the segment.
    fn welcome(&mut self, pending: &PendingPeer) -> Option<(PeerLease, HeapRange)> {
        let state = &*self.state;
        let (hazards, page) = HazardPage::create()
            .inspect_err(|error| log::warn!("process {} cannot connect: {error}", pending.pid))
            .ok()?;
        let page = page?;
        let parts = [state.segment.owned().file()?, state.segment.shared().file()?, page.get().ok()?];
        let Some(lease) = state.peer_ids.assign(Process::find(pending.pid), Arc::new(hazards)) else {
            log::warn!("process {} cannot connect: the limit of peers is reached", pending.pid);
            return None;
        };
        let give_back = || {
            state.peer_ids.release(lease);
            state.peer_ids.reuse(lease.peer_id);
        };
        // Behind the cells lies one cache line for the probe of copying by the system.
        let Ok(calls) = state.heap.alloc(TRANSFER_SLOTS * CALL_CELL + 64) else {
            log::warn!("process {} cannot connect: no room in the heap for its calls", pending.pid);
            give_back();
            return None;
        };
        let probe = calls.offset + (TRANSFER_SLOTS * CALL_CELL) as u64;
        let welcome = Welcome {
            process: state.process,
            peer_id: lease.peer_id,
            ordinal: pending.ordinal,
            call_area: calls.offset,
            probe,
            probe_address: state.segment.heap(probe, 16).expect("it was just allocated").addr().get() as u64,
            identity_page: state.identity_page.address(),
            gids: state.identity.gids.clone(),
        };
        // Set this before the welcome, because the peer may call as soon as it has that.
        self.set_call_area(lease.peer_id, Some(calls.offset));
        let packet = Reply::Welcome(welcome).encode();
        if let Err(error) = pending.socket.send_with(&packet, &parts) {
            log::debug!("process {} disconnected during the handshake: {error}", pending.pid);
            self.set_call_area(lease.peer_id, None);
            self.state.heap.free(calls);
            give_back();
            return None;
        }
        Some((lease, calls))
    }

    fn set_call_area(&self, peer_id: u16, area: Option<u64>) {
        let mut areas = self.state.call_areas.lock().unwrap_or_else(PoisonError::into_inner);
        if areas.len() <= usize::from(peer_id) {
            areas.resize(usize::from(peer_id) + 1, None);
        }
        areas[usize::from(peer_id)] = area;
    }

    pub(crate) fn receive_from_peer(&mut self, token: u64, mut peer: AttachedPeer) -> Option<EventSource> {
        if peer.waits_for_room {
            self.send_notices(token, &mut peer);
        }
        let ended = self.receive_packets(&mut peer, PACKETS_PER_TURN);
        let word = &self.state.segment.shared_header().check_everything;
        if word.load(Relaxed) != 0
            && word.swap(0, SeqCst) != 0
            && let Some(handler) = self.state.handler()
        {
            handler.check_everything();
        }
        if ended { self.connection_ended(token, peer) } else { Some(EventSource::AttachedPeer(peer)) }
    }

    /// Reads at most `most` packets, rounded up to whole batches. True at the end of the
    /// connection.
    fn receive_packets(&mut self, peer: &mut AttachedPeer, most: usize) -> bool {
        // Take the buffer out of `self`, because the handling of a packet may read packets of
        // another peer.
        let mut room = self.room.take().unwrap_or_else(ReceiveBuffers::new);
        let mut ended = false;
        for _ in 0..most.div_ceil(MANY) {
            let count = match peer.socket.receive_many(&mut room) {
                ReceivedMany::Packets(count) => count,
                ReceivedMany::Nothing => break,
                ReceivedMany::End => {
                    ended = true;
                    break;
                }
            };
            for packet in (0..count).map(|index| room.packet(index)).take_while(|packet| !packet.is_empty()) {
                if !self.handle_packet(peer, packet) {
                    // The peer is not disconnected, because its hazards must be waited for as long
                    // as it lives.
                    log::debug!("the peer with id {} sent an invalid packet", peer.lease.peer_id);
                }
            }
            if count < MANY {
                // The socket is empty, or it still has packets, which wake the thread again.
                break;
            }
        }
        self.room = Some(room);
        ended
    }

    /// False if the packet makes no sense.
    fn handle_packet(&mut self, peer: &mut AttachedPeer, packet: &[u8]) -> bool {
        match PeerRequest::decode(packet) {
            Some(PeerRequest::Doorbell(doorbell)) => {
                self.state.answer(peer.lease.peer_id, doorbell);
                if let Doorbell::Cq(cq) = doorbell {
                    self.send_channel(peer, cq);
                }
            }
            Some(PeerRequest::MapExport { export, write }) => self.send_export(peer, export, write),
            Some(PeerRequest::Goodbye) => peer.said_goodbye = true,
            Some(PeerRequest::CmMessage { from, message }) => {
                return self.receive_cm_message(peer, from, message);
            }
            Some(PeerRequest::CmReset { from }) => return self.receive_cm_reset(peer, from),
            Some(PeerRequest::Hello { .. } | PeerRequest::Status { .. }) | None => return false,
        }
        true
    }

    /// Reads the packets that a dead peer has left. True at the end of the connection.
    pub(crate) fn drain_connection(&mut self, peer: &mut AttachedPeer) -> bool {
        self.receive_packets(peer, REST)
    }

    /// Handles the end of a connection. The peer is gone if it has said goodbye or if its process
    /// is dead.
    pub(crate) fn connection_ended(&mut self, token: u64, mut peer: AttachedPeer) -> Option<EventSource> {
        self.end_peer_cm(&mut peer);
        let peer_ids = &self.state.peer_ids;
        let has_left = peer.said_goodbye
            || peer_ids.hazards(peer.lease).is_some_and(|hazards| hazards.slots()[0].has_left());
        let process = match Lifeline::of(&peer.socket, peer_ids.process(peer.lease)) {
            Some(process) if !has_left && !process.is_cut() => process,
            // If the process cannot be seen, the end of its connection counts as its death.
            _ => {
                self.detach_peer(peer);
                return None;
            }
        };
        self.unwatch(&peer.socket);
        let asked_for = match &process {
            Lifeline::File(file) => self.watch(file, token).is_err(),
            Lifeline::Number(_) => true,
        };
        // A process that is about to die closes its descriptors first.
        self.set_deadline(Instant::now() + if asked_for { ASK_AGAIN } else { DYING }, token);
        Some(EventSource::DisconnectedPeer(DisconnectedPeer { peer, process, asked_for, noted: false }))
    }

    /// Checks whether a disconnected peer has died by now.
    pub(crate) fn check_disconnected(
        &mut self,
        token: u64,
        mut disconnected: DisconnectedPeer,
    ) -> Option<EventSource> {
        if disconnected.process.is_cut() {
            self.remove_disconnected(disconnected);
            return None;
        }
        if !disconnected.noted {
            let process = self.state.peer_ids.process(disconnected.peer.lease).map(Process::pid);
            log::warn!(
                "the peer with id {} (process {process:?}) has closed its connection but lives: memory that it may be copying \
                 cannot be released until it ends",
                disconnected.peer.lease.peer_id
            );
            disconnected.noted = true;
        }
        if disconnected.asked_for {
            self.set_deadline(Instant::now() + ASK_AGAIN, token);
        }
        Some(EventSource::DisconnectedPeer(disconnected))
    }

    fn remove_disconnected(&mut self, disconnected: DisconnectedPeer) {
        if let Lifeline::File(file) = &disconnected.process {
            self.unwatch(file);
        }
        self.detach_peer(disconnected.peer);
    }

    fn send_export(&self, peer: &mut AttachedPeer, export: ExportId, write: bool) {
        use std::os::fd::AsFd;
        let sent = match self.state.exports.open_for_peer(export, write) {
            Some(file) => {
                peer.given.insert(export);
                let reply = Reply::Export { export, writable: file.writable, range: file.range };
                peer.socket.send_with(&reply.encode(), &[file.file.as_fd()])
            }
            None => peer.socket.send(&Reply::NoExport { export }.encode()),
        };
        if let Err(error) = sent {
            // The peer will ask again.
            log::debug!("the answer to the peer with id {} could not be sent: {error}", peer.lease.peer_id);
        }
    }

    /// Names the descriptor of a completion queue's channel, once.
    fn send_channel(&self, peer: &mut AttachedPeer, cq: u32) {
        let Some(handler) = self.state.handler() else { return };
        handler.channel_of(cq, &mut |channel, file| {
            if peer.given_channels.contains(&channel) {
                return;
            }
            let Some(id) = event_counter::id(file) else { return };
            // If the socket has no room, the next doorbell finds some.
            if peer
                .socket
                .send(&Reply::Channel { channel, descriptor: file.as_raw_fd(), id }.encode())
                .is_ok()
            {
                peer.given_channels.insert(channel);
            }
        });
    }

    /// Notifies the peers that have mapped this memory that it is gone.
    pub(crate) fn notify_export_gone(&mut self, export: ExportId) {
        self.notify(&Reply::ExportGone { export }, |peer| peer.given.remove(&export));
    }

    /// Notifies the peers that have this channel's descriptor that the channel is destroyed.
    pub(crate) fn notify_channel_gone(&mut self, channel: NonZero<u64>) {
        self.notify(&Reply::ChannelGone { channel }, |peer| peer.given_channels.remove(&channel));
    }

    /// Sends a notice to the peers that it concerns.
    fn notify(&mut self, notice: &Reply, concerns: impl Fn(&mut AttachedPeer) -> bool) {
        let mut sources = core::mem::take(&mut self.sources);
        for (token, source) in &mut sources {
            if let EventSource::AttachedPeer(peer) = source
                && concerns(peer)
            {
                peer.unsent_notices.push(notice.clone());
                self.send_notices(*token, peer);
            }
        }
        self.sources = sources;
    }

    /// Sends the peer's pending notices as far as its socket has room.
    fn send_notices(&self, token: u64, peer: &mut AttachedPeer) {
        while let Some(notice) = peer.unsent_notices.last() {
            match peer.socket.send(&notice.encode()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // If the peer has gone, the end of its connection will report that.
                Ok(()) | Err(_) => peer.unsent_notices.pop(),
            };
        }
        if peer.waits_for_room == peer.unsent_notices.is_empty() {
            peer.waits_for_room = !peer.unsent_notices.is_empty();
            self.watch_writable(&peer.socket, token, peer.waits_for_room);
        }
    }

    /// Removes a peer that was proved dead although some process still holds its end of the
    /// connection.
    pub(crate) fn remove_dead_peer(&mut self, peer_id: u16, serial: u64) {
        let token = self.sources.iter().find_map(|(token, source)| match source {
            EventSource::AttachedPeer(peer)
            | EventSource::DisconnectedPeer(DisconnectedPeer { peer, .. }) => {
                (peer.lease == PeerLease { peer_id, serial }).then_some(*token)
            }
            _ => None,
        });
        match token.and_then(|token| self.sources.remove(&token)) {
            Some(EventSource::AttachedPeer(mut peer)) => {
                self.drain_connection(&mut peer);
                self.end_peer_cm(&mut peer);
                self.detach_peer(peer);
            }
            Some(EventSource::DisconnectedPeer(disconnected)) => self.remove_disconnected(disconnected),
            _ => {}
        }
    }

    fn detach_peer(&mut self, peer: AttachedPeer) {
        let PeerLease { peer_id, .. } = peer.lease;
        log::debug!("the peer with id {peer_id} is gone");
        self.unwatch(&peer.socket);
        self.state.peer_ids.release(peer.lease);
        if let Some(handler) = self.state.handler() {
            handler.peer_detached(peer_id);
        }
        self.set_call_area(peer_id, None);
        self.state.heap.free(peer.calls);
        self.state.peer_ids.reuse(peer_id);
    }

    /// Releases a peer's id when the service thread ends.
    pub(crate) fn vacate(&mut self, peer: AttachedPeer) {
        self.state.peer_ids.release(peer.lease);
        self.set_call_area(peer.lease.peer_id, None);
    }
}
