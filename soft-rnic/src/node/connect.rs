//! Connecting to the process that owns a block of queue pair numbers, and receiving from it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::CALL_CELL;
use super::directory::Directory;
use super::mapped_memory::PeerMapping;
use super::message::{ExportId, ExportRange, PeerRequest, Reply, Welcome};
use super::names::{self, Found};
use super::peer_process::PeerProcess;
use super::service::{EventSource, PACKETS_PER_TURN, ServiceThread};
use crate::platform::memory::{FileMapping, PeerFile};
use crate::platform::socket::{Credentials, Received, Socket};
use crate::shared::hazard::{HazardPage, TRANSFER_SLOTS};
use crate::shared::segment::{LAYOUT_VERSION, Segment};
use crate::sync::Acquire;

/// How long a process may take to answer a connection.
const ANSWER: Duration = Duration::from_secs(1);
/// How soon to connect again to a process whose backlog is full.
const BUSY: Duration = Duration::from_millis(2);
/// How long a block counts as absent after nothing listened there.
const NOBODY: Duration = Duration::from_millis(10);
/// How long a block counts as absent if its owner is of no use: another user, another version, no
/// answer.
const USELESS: Duration = Duration::from_millis(100);

/// A connection whose peer has not sent its welcome yet.
pub(crate) struct PendingConnect {
    socket: Socket,
    block: u16,
    pid: u32,
}

impl PendingConnect {
    /// The process number of the peer, if the connection is for this block.
    pub(crate) fn pid_of(&self, block: u16) -> Option<u32> {
        (self.block == block).then_some(self.pid)
    }
}

/// A connection attempt to be repeated.
pub(crate) struct ConnectRetry {
    pub(crate) when: Instant,
    block: u16,
    reason: RetryReason,
}

enum RetryReason {
    /// The peer's backlog has been full since then.
    Busy { since: Instant },
    /// The peer has not answered, and CM messages wait for it.
    CmMessages,
}

impl ConnectRetry {
    /// Called when the service thread ends.
    pub(crate) fn give_up(&self, directory: &Directory) {
        if let RetryReason::Busy { .. } = self.reason {
            directory.absent(self.block, USELESS);
        }
    }
}

impl ServiceThread {
    /// Connects to the owner of a block. `since` is the time of the first attempt.
    pub(crate) fn start_connect(&mut self, block: u16, since: Instant) {
        match names::owners(&self.state.thing_of(block), self.state.socket_user) {
            Ok(names) => self.connect_to_names(block, &names, since),
            Err(error) => self.connect_failed(block, &error),
        }
    }

    /// Connects to the owner of a block, which listens at one of these names.
    pub(crate) fn connect_to_names(&mut self, block: u16, names: &[Vec<u8>], since: Instant) {
        match names::connect(names, self.state.user) {
            Ok(Found::Owner(socket, who)) => self.say_hello(socket, who, block),
            Ok(Found::Busy) if since.elapsed() < ANSWER => {
                let reason = RetryReason::Busy { since };
                self.connect_retries.push(ConnectRetry { when: Instant::now() + BUSY, block, reason });
            }
            Ok(Found::Busy) => self.owner_unresponsive(block),
            Ok(Found::Nobody) => self.owner_absent(block, NOBODY),
            Err(error) => self.connect_failed(block, &error),
        }
    }

    fn connect_failed(&mut self, block: u16, error: &io::Error) {
        log::warn!("the owner of the queue pairs from {} cannot be reached: {error}", u32::from(block) << 14);
        self.owner_absent(block, USELESS);
    }

    pub(crate) fn retry_connects(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.connect_retries.extract_if(.., |retry| retry.when <= now).collect();
        for ConnectRetry { block, reason, .. } in due {
            match reason {
                RetryReason::Busy { since } => self.start_connect(block, since),
                RetryReason::CmMessages if self.state.cm_outboxes.waits(block) => self.flush_outbox(block),
                RetryReason::CmMessages => {}
            }
        }
    }

    /// Records that a block has no usable owner for `time`.
    fn owner_absent(&mut self, block: u16, time: Duration) {
        self.state.directory.absent(block, time);
        self.owner_unreachable(block);
    }

    /// Records that the owner does not answer.
    fn owner_unresponsive(&mut self, block: u16) {
        log::debug!("the owner of block {block} does not answer");
        self.state.directory.absent(block, USELESS);
        if self.keep_waiting(block) {
            self.connect_retries.push(ConnectRetry {
                when: Instant::now() + USELESS,
                block,
                reason: RetryReason::CmMessages,
            });
        }
    }

    fn say_hello(&mut self, socket: Socket, who: Credentials, block: u16) {
        socket.take_descriptors();
        let hello = PeerRequest::Hello { version: LAYOUT_VERSION, process: self.state.process };
        let token = self.new_token();
        if socket.send(&hello.encode()).is_err() || self.watch(&socket, token).is_err() {
            return self.owner_absent(block, USELESS);
        }
        self.set_deadline(Instant::now() + ANSWER, token);
        self.sources
            .insert(token, EventSource::PendingConnect(PendingConnect { socket, block, pid: who.pid }));
    }

    /// Gives up a connection whose peer is of no use.
    pub(crate) fn give_up_connect(&mut self, pending: &PendingConnect) {
        self.disconnect(&pending.socket);
        self.owner_absent(pending.block, USELESS);
    }

    /// Handles a peer that did not answer, because it is stopped or overloaded.
    pub(crate) fn connect_timed_out(&mut self, pending: &PendingConnect) {
        self.disconnect(&pending.socket);
        self.owner_unresponsive(pending.block);
    }

    pub(crate) fn forget_connect(&self, pending: &PendingConnect) {
        self.state.directory.absent(pending.block, USELESS);
    }

    /// Ends a connection through which no memory was accessed.
    fn disconnect(&self, socket: &Socket) {
        self.unwatch(socket);
        // A send error is harmless: the peer has gone, or is about to refuse.
        let _ = socket.send(&PeerRequest::Goodbye.encode());
    }

    pub(crate) fn receive_welcome(&mut self, token: u64, pending: PendingConnect) -> Option<EventSource> {
        let reply = match pending.socket.receive_with(&mut self.buffer) {
            Received::Packet(len, files) => Reply::decode(&self.buffer[..len]).map(|reply| (reply, files)),
            Received::Nothing => return Some(EventSource::PendingConnect(pending)),
            Received::End => None,
        };
        let (welcome, files) = match reply.map(|(reply, files)| (reply, files.into_inner())) {
            Some((Reply::Welcome(welcome), Ok(files))) => (welcome, files),
            Some((Reply::OtherVersion { version }, _)) => {
                log::warn!(
                    "process {} uses segment version {version} of the software device, this process {LAYOUT_VERSION}: \
                     run the same version in both",
                    pending.pid
                );
                self.give_up_connect(&pending);
                return None;
            }
            Some((Reply::Welcome(_), Err(_))) => {
                log::warn!(
                    "process {} sent no segment, or this process has no file descriptor left for it",
                    pending.pid
                );
                self.give_up_connect(&pending);
                return None;
            }
            _ => {
                self.give_up_connect(&pending);
                return None;
            }
        };
        self.attach(token, pending, welcome, files)
    }

    fn attach(
        &mut self,
        token: u64,
        pending: PendingConnect,
        welcome: Welcome,
        [owned, shared, hazards]: [OwnedFd; 3],
    ) -> Option<EventSource> {
        let (block, ordinal) = (pending.block, welcome.ordinal);
        if let Some(known) = self.state.directory.find(|process| process.is_of(&welcome.process, pending.pid))
        {
            // The block is another one of a process that is already connected.
            self.disconnect(&pending.socket);
            if known.blocks().set(ordinal, block) {
                self.state.directory.found(block, Arc::clone(&known));
                self.owner_connected(block, &known);
            } else {
                self.owner_absent(block, USELESS);
            }
            return None;
        }
        let segment = open_segment([owned, shared], &welcome);
        let Some((segment, hazards)) = segment.zip(HazardPage::of_owner(hazards).ok()) else {
            log::warn!("process {} sent a segment that cannot be mapped", pending.pid);
            self.give_up_connect(&pending);
            return None;
        };
        let common = Arc::clone(&self.state.common);
        let process = Arc::new(PeerProcess::to_peer(
            pending.socket,
            pending.pid,
            (segment, hazards),
            welcome,
            common,
            token,
        ));
        if !process.blocks().set(ordinal, block) {
            self.owner_absent(block, USELESS);
            process.socket().into_iter().for_each(|socket| self.disconnect(socket));
            return None;
        }
        log::debug!("connected to process {:?} as number {}", process.pid(), process.number());
        self.state.directory.found(block, Arc::clone(&process));
        self.owner_connected(block, &process);
        Some(EventSource::PeerProcess(process))
    }

    pub(crate) fn receive_from_process(&mut self, process: Arc<PeerProcess>) -> Option<EventSource> {
        if process.awaits_room() {
            self.flush_writable(&process);
        }
        for _ in 0..PACKETS_PER_TURN {
            let received = process.socket()?.receive_with(&mut self.buffer);
            match received {
                Received::Packet(len, mut files) => match (Reply::decode(&self.buffer[..len]), files.pop()) {
                    (Some(Reply::Export { export, writable, range }), Some(file)) => {
                        self.map_export(&process, export, writable, range, file);
                    }
                    (Some(Reply::NoExport { .. }), None) => {}
                    (Some(Reply::ExportGone { export }), None) => {
                        let mappings = process.mappings()?;
                        if mappings.epoch(export.index) == Some(export.epoch) {
                            self.retired.extend(mappings.replace(export, None));
                        }
                    }
                    (Some(Reply::Channel { channel, descriptor, id }), None) => {
                        process.take_channel(channel, descriptor, id);
                    }
                    (Some(Reply::ChannelGone { channel }), None) => process.channels()?.remove(channel),
                    _ => log::debug!("process {:?} sent an invalid packet", process.pid()),
                },
                Received::Nothing => break,
                Received::End => {
                    self.lose_process(&process);
                    return None;
                }
            }
        }
        Some(EventSource::PeerProcess(process))
    }

    fn map_export(
        &mut self,
        process: &Arc<PeerProcess>,
        export: ExportId,
        writable: bool,
        range: ExportRange,
        file: OwnedFd,
    ) {
        let Some(mappings) = process.mappings().filter(|mappings| mappings.take_expected(export)) else {
            return;
        };
        let Ok(len) = usize::try_from(range.len) else { return };
        let unsealed = self.state.common.settings.any_shm;
        let what = PeerFile { offset: range.offset, len, writable, unsealed };
        match FileMapping::of_peer(file, what) {
            Ok(memory) => {
                let mapped = PeerMapping { memory, epoch: export.epoch, writable, owner_base: range.base };
                self.retired.extend(mappings.replace(export, Some(mapped)));
            }
            Err(error) => log::debug!("memory of process {:?} cannot be mapped: {error}", process.pid()),
        }
    }

    /// Checks a peer that showed signs of death, such as a failed copy.
    pub(crate) fn check_process(&mut self, process: &Arc<PeerProcess>) {
        if !process.alive() || !process.is_proved_dead() {
            return;
        }
        if process.token().and_then(|token| self.sources.remove(&token)).is_some() {
            self.lose_process(process);
        }
    }

    /// Reads a peer's connection now, so that an end that has already happened is handled.
    pub(crate) fn check_end(&mut self, process: &Arc<PeerProcess>) {
        let Some(token) = process.token() else { return };
        if let Some(EventSource::PeerProcess(process)) = self.sources.remove(&token) {
            let kept = self.receive_from_process(process);
            self.sources.extend(kept.map(|source| (token, source)));
        }
    }

    fn lose_process(&mut self, process: &Arc<PeerProcess>) {
        log::debug!("process {:?} is gone", process.pid());
        process.set_dead();
        process.socket().into_iter().for_each(|socket| self.unwatch(socket));
        self.state.directory.forget(process);
        self.state.discovery.forget(process);
        self.drop_outboxes(process);
        let mut former = self.state.former.lock().unwrap_or_else(PoisonError::into_inner);
        former.add(&process.counters().sum());
        drop(former);
        if let Some(handler) = self.state.handler() {
            handler.peer_lost(process);
        }
    }
}

/// Maps both parts of a peer's segment. `None` if it is not a valid segment or does not contain the
/// places named in the welcome.
fn open_segment(parts: [OwnedFd; 2], welcome: &Welcome) -> Option<Segment> {
    let segment = Segment::of_peer(parts)
        .inspect_err(|error| log::warn!("a peer's segment cannot be mapped: {error}"))
        .ok()?;
    let version = segment.owner_header().layout_version.load(Acquire);
    segment.heap(welcome.call_area, TRANSFER_SLOTS * CALL_CELL)?;
    segment.heap(welcome.probe, 16)?;
    (version == LAYOUT_VERSION && welcome.call_area.is_multiple_of(64) && welcome.probe.is_multiple_of(8))
        .then_some(segment)
}
