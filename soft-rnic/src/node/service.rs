//! The service thread: an epoll loop over sockets, deadlines and the mailbox.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::NodeState;
use super::attached_peer::{AttachedPeer, BlockListener, DisconnectedPeer, PendingPeer};
use super::busy_poll::BusyPoll;
use super::connect::{ConnectRetry, PendingConnect};
use super::mailbox::ServiceCommand;
use super::mapped_memory::RetiredMapping;
use super::message::{REPLY, REQUEST};
use super::multicast_discovery::DiscoveryRun;
use super::peer_process::PeerProcess;
use super::port_lookup::PortLookup;
use super::ports::PortListener;
use crate::platform::fork::ForkSafeFd;
use crate::platform::socket::ReceiveBuffers;
use crate::platform::threads;

std::thread_local! {
    static IS_SERVICE: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

/// Whether this thread is a service thread, which must not wait for another process's service
/// thread.
pub(crate) fn is_service_thread() -> bool {
    IS_SERVICE.get()
}

/// The most packets that are read from one socket before others get their turn.
pub(crate) const PACKETS_PER_TURN: usize = 64;
/// Nanoseconds of a millisecond.
const MILLISECOND: i64 = 1_000_000;
/// The longest sleep, in seconds.
const LONG: i64 = 86_400;
const NONE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// The interval at which retired mappings are checked.
const LOOK_AFTER: Duration = Duration::from_millis(1);

/// A source of events. Each has a token, which is never reused.
pub(crate) enum EventSource {
    Mailbox,
    BlockListener(BlockListener),
    /// A connected process that has not sent its hello yet.
    PendingPeer(PendingPeer),
    AttachedPeer(AttachedPeer),
    DisconnectedPeer(DisconnectedPeer),
    /// A peer that has not sent its welcome yet.
    PendingConnect(PendingConnect),
    PeerProcess(Arc<PeerProcess>),
    /// The socket to which other processes connect to look up a port of this process.
    PortListener(Arc<PortListener>),
    /// A lookup of another process's port.
    PortLookup(PortLookup),
}

/// The thread's private state.
pub(crate) struct ServiceThread {
    pub(crate) state: Arc<NodeState>,
    epoll: Arc<ForkSafeFd>,
    pub(crate) sources: HashMap<u64, EventSource>,
    last_token: u64,
    deadlines: BinaryHeap<Reverse<(Instant, u64)>>,
    pub(crate) connect_retries: Vec<ConnectRetry>,
    pub(crate) discovery_run: Option<DiscoveryRun>,
    pub(crate) retired: Vec<RetiredMapping>,
    pub(crate) busy_poll: BusyPoll,
    pub(crate) buffer: Box<[u8]>,
    /// Receive buffer for packets of attached peers.
    pub(crate) room: Option<Box<ReceiveBuffers<REQUEST>>>,
}

/// Starts the thread.
///
/// # Errors
///
/// If the system has no descriptor or thread left.
pub(crate) fn spawn(state: Arc<NodeState>) -> io::Result<JoinHandle<()>> {
    let epoll = Arc::new(ForkSafeFd::open(|| epoll::create(epoll::CreateFlags::CLOEXEC))?);
    epoll::add(&*epoll, state.common.mailbox.wake_socket()?, EventData::new_u64(0), EventFlags::IN)?;
    let kept = Arc::clone(&state);
    let service = ServiceThread {
        state,
        epoll: Arc::clone(&epoll),
        sources: HashMap::from([(0, EventSource::Mailbox)]),
        last_token: 0,
        deadlines: BinaryHeap::new(),
        connect_retries: Vec::new(),
        discovery_run: None,
        retired: Vec::new(),
        busy_poll: BusyPoll::default(),
        buffer: vec![0; REPLY].into(),
        room: None,
    };
    let thread = threads::spawn("soft-rnic", || service.run());
    if thread.is_ok() {
        let _ = kept.epoll.set(epoll);
    }
    thread
}

impl ServiceThread {
    fn run(mut self) {
        IS_SERVICE.set(true);
        // Timers must be precise, because RNR timers begin at ten microseconds.
        let _ = rustix::thread::set_current_timer_slack(core::num::NonZero::new(1000));
        let mut events = Vec::with_capacity(PACKETS_PER_TURN);
        let mut orderly = false;
        while self.state.common.mailbox.check() {
            events.clear();
            let slept = self.sleep(&mut events);
            // During the sleep the program may have closed the device's descriptors, and opened
            // others under their numbers.
            if !self.state.common.mailbox.check() {
                break;
            }
            if let Err(error) = slept {
                log::error!("the service thread of the software device ends: epoll_wait: {error}");
                break;
            }
            for Event { data, .. } in events.iter().copied() {
                self.handle(data.u64());
            }
            if !self.run_commands() {
                orderly = true;
                break;
            }
            self.state.run_timers();
            self.run_deadlines();
            self.retry_connects();
            self.finish_discovery();
            let transfer_slots = &self.state.common.transfer_slots;
            self.retired.retain_mut(|retired| !retired.unmap(transfer_slots));
        }
        self.end(orderly);
    }

    /// Sleeps until an event or the next deadline. If that deadline is more than a millisecond
    /// away, wakes shortly before it.
    fn sleep(&mut self, events: &mut Vec<Event>) -> rustix::io::Result<()> {
        let mut now = Instant::now();
        let times = [
            self.state.timers.earliest(),
            self.state.alarm.time(),
            self.deadlines.peek().map(|Reverse((when, _))| *when),
            self.connect_retries.iter().map(|retry| retry.when).min(),
            (!self.retired.is_empty()).then(|| now + LOOK_AFTER),
        ];
        let first = times.into_iter().flatten().min();
        while self.busy_poll.is_active(now) {
            let is_due = first.is_some_and(|when| when <= now);
            if is_due || !self.state.common.mailbox.check() || self.wait_for_events(events, Some(&NONE))? {
                return Ok(());
            }
            std::thread::yield_now();
            let before = core::mem::replace(&mut now, Instant::now());
            self.busy_poll.yielded(now - before, now);
        }
        let mut timeout = first.map(|when| {
            let left = when.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match &mut timeout {
            None => {}
            // `epoll_wait` has a resolution of one millisecond.
            Some(time) if time.tv_sec > 0 || time.tv_nsec >= MILLISECOND => {
                time.tv_sec = time.tv_sec.min(LONG);
                time.tv_nsec -= time.tv_nsec % MILLISECOND;
            }
            Some(time) => {
                let _ = poll(&mut [PollFd::new(&*self.epoll, PollFlags::IN)], Some(time));
                *time = NONE;
            }
        }
        self.wait_for_events(events, timeout.as_ref()).map(drop)
    }

    /// Collects the events that have happened or happen within the timeout. False if none has.
    fn wait_for_events(
        &self,
        events: &mut Vec<Event>,
        timeout: Option<&Timespec>,
    ) -> rustix::io::Result<bool> {
        match epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(events), timeout) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn handle(&mut self, token: u64) {
        let Some(source) = self.sources.remove(&token) else { return };
        let kept = match source {
            EventSource::Mailbox => {
                self.state.common.mailbox.drain_wakes();
                Some(EventSource::Mailbox)
            }
            EventSource::BlockListener(listener) => self.accept_connections(token, listener),
            EventSource::PendingPeer(pending) => self.receive_hello(pending),
            EventSource::AttachedPeer(peer) => self.receive_from_peer(token, peer),
            EventSource::DisconnectedPeer(disconnected) => self.check_disconnected(token, disconnected),
            EventSource::PendingConnect(pending) => self.receive_welcome(token, pending),
            EventSource::PeerProcess(process) => self.receive_from_process(process),
            EventSource::PortListener(listener) => self.answer_port_lookups(token, listener),
            EventSource::PortLookup(lookup) => self.receive_lookup_reply(lookup),
        };
        if let Some(source) = kept {
            self.sources.insert(token, source);
        }
    }

    /// Runs the commands of other threads. False if one of them stops the thread.
    fn run_commands(&mut self) -> bool {
        for command in self.state.common.mailbox.take() {
            match command {
                ServiceCommand::Connect { block } => self.start_connect(block, Instant::now()),
                ServiceCommand::Listen { socket, ordinal } => self.listen(socket, ordinal),
                ServiceCommand::Ring(doorbell) => self.state.answer(0, doorbell),
                ServiceCommand::PeerDied { peer_id, serial } => self.remove_dead_peer(peer_id, serial),
                ServiceCommand::Suspect(process) => self.check_process(&process),
                ServiceCommand::ExportGone(export) => self.notify_export_gone(export),
                ServiceCommand::ChannelGone(channel) => self.notify_channel_gone(channel),
                ServiceCommand::FlushOutbox { block } => self.flush_outbox(block),
                ServiceCommand::ListenOnPort(listener) => self.add_port_listener(listener),
                ServiceCommand::StopListening { token } => drop(self.sources.remove(&token)),
                ServiceCommand::LookUpPort { port, waiter } => self.start_lookup(port, waiter),
                ServiceCommand::DiscoverProcesses { of } => self.start_discovery(of),
                ServiceCommand::Stop => return false,
            }
        }
        true
    }

    fn run_deadlines(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((when, token))) = self.deadlines.peek().copied()
            && when <= now
        {
            self.deadlines.pop();
            match self.sources.remove(&token) {
                Some(EventSource::BlockListener(listener)) => self.watch_listener(token, listener),
                Some(EventSource::PendingPeer(pending)) => self.unwatch(&pending.socket),
                Some(EventSource::PendingConnect(pending)) => self.connect_timed_out(&pending),
                Some(EventSource::PortListener(listener)) => self.watch_port_listener(token, listener),
                Some(EventSource::PortLookup(lookup)) => self.retry_lookup(token, lookup),
                Some(EventSource::DisconnectedPeer(disconnected)) => {
                    let kept = self.check_disconnected(token, disconnected);
                    self.sources.extend(kept.map(|source| (token, source)));
                }
                Some(source) => {
                    self.sources.insert(token, source);
                }
                None => {}
            }
        }
    }

    pub(crate) fn new_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    pub(crate) fn set_deadline(&mut self, when: Instant, token: u64) {
        self.deadlines.push(Reverse((when, token)));
    }

    /// Waits for a file to become readable.
    pub(crate) fn watch(&self, file: impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&*self.epoll, file, EventData::new_u64(token), EventFlags::IN)?)
    }

    /// Waits for a file to become readable and, with `room`, writable.
    pub(crate) fn watch_writable(&self, file: impl AsFd, token: u64, room: bool) {
        let flags = if room { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        if let Err(error) = epoll::modify(&*self.epoll, file, EventData::new_u64(token), flags) {
            log::warn!("epoll_ctl: {error}");
        }
    }

    /// Stops waiting for a file. Must precede closing it, because a forked child may keep it open.
    pub(crate) fn unwatch(&self, file: impl AsFd) {
        if let Err(error) = epoll::delete(&*self.epoll, file) {
            log::debug!("epoll_ctl: {error}");
        }
    }

    /// Ends all connections, without reporting lost peers, because nobody is left to need the
    /// report. `orderly` says that no transfer is under way.
    fn end(mut self, orderly: bool) {
        let lost = self.state.common.mailbox.is_lost();
        let sources = core::mem::take(&mut self.sources);
        for source in sources.into_values() {
            match source {
                EventSource::PeerProcess(process) => {
                    process.set_dead();
                    if orderly {
                        process.say_goodbye();
                    }
                    process.shut_down();
                    self.state.directory.forget(&process);
                }
                EventSource::PendingConnect(pending) if lost => self.forget_connect(&pending),
                EventSource::PendingConnect(pending) => self.give_up_connect(&pending),
                // These peers go on as far as they can without this thread.
                EventSource::AttachedPeer(mut peer) if lost => self.end_peer_cm(&mut peer),
                EventSource::DisconnectedPeer(_) if lost => {}
                EventSource::AttachedPeer(peer)
                | EventSource::DisconnectedPeer(DisconnectedPeer { peer, .. }) => self.vacate(peer),
                EventSource::PortLookup(lookup) if lost => self.abandon_lookup(&lookup),
                EventSource::Mailbox
                | EventSource::BlockListener(_)
                | EventSource::PendingPeer(_)
                | EventSource::PortListener(_)
                | EventSource::PortLookup(_) => {}
            }
        }
        for retry in &self.connect_retries {
            retry.give_up(&self.state.directory);
        }
        let transfer_slots = &self.state.common.transfer_slots;
        self.retired.retain_mut(|retired| !retired.unmap(transfer_slots));
        if !self.retired.is_empty() {
            log::error!("{} mappings of peers' memory are still in use and stay mapped", self.retired.len());
        }
        if lost {
            self.state.fail_all_outboxes();
            // Its descriptor number may now name another epoll instance, from which it cannot be
            // distinguished.
            core::mem::forget(self.epoll);
        }
    }
}
