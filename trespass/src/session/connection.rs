//! A connection: its protocol state machine, its transport and its pool. A
//! [`Stream`](crate::Stream) drives one, and a [`Worker`](crate::Worker) many. [`calls`] has the calls.

mod calls;

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use mio::{Registry, Token};

use crate::config::Config;
use crate::handshake::{Agreed, Established};
use crate::pool::{Block, Pool};
use crate::process::Descriptor;
use crate::protocol::{
    self, CallBuffer, CallError, ConnectionEvent, ConnectionSetup, FailureCause, LinkType, ProtocolMachine,
};
use crate::session::buffers::{Completion, ReturnedBytes, Ticket};
use crate::session::connection_info::ConnectionInfo;
use crate::session::control_keepalive::{self, KeptControl};
use crate::session::lingering::DroppedConnection;
use crate::session::readiness::{Poller, Readiness};
use crate::session::spin::AdaptiveSpin;
use crate::session::stats::{Stats, StatsSummary};
use crate::session::tasks::SentState;
use crate::session::times::OperationKind;
use crate::session::turns::Findings;
#[cfg(any(target_os = "linux", target_os = "android"))]
use crate::transport::Sources;
use crate::transport::pools::usable_pool;
use crate::transport::{Driver, PollScope, RdmaPath, SystemEvent, TransportDriver, WorkCompletion};

/// Bytes to copy before they are sent, in whole frames, if the peer does not READ.
const PIECE: usize = 16 << 10;
/// The same if the peer could READ them: less than half as many calls, with almost the same overlap.
const BURST: usize = 32 << 10;

/// The length of a message, which the first of its frames also carries.
const MESSAGE_PREFIX: usize = size_of::<u64>();

/// The direction of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the connection to the program.
    Read,
    /// From the program to the connection.
    Write,
}

/// Why a call did nothing.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It would block.
    Blocked,
    /// The connection has failed.
    Failed(io::Error),
}

/// Blocks that were lent in one call. The protocol has a ticket for each of them, and the program
/// has the first.
struct LentBatch {
    tickets: Range<u64>,
    /// Blocks that have not returned.
    left: usize,
}

/// The connections of this process, with those to come.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The connections of a process above which each begins with less: receives, and polling.
const MANY: usize = 64;

/// Whether this process has [`MANY`] connections, of which most are probably idle.
pub(crate) fn is_one_of_many() -> bool {
    count() >= MANY
}

/// The number of connections of this process. In a forked child it begins with the parent's.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Counts a connection, or a handshake.
pub(crate) struct Counted;

impl Counted {
    pub(crate) fn new() -> Self {
        COUNT.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection: the protocol, its transport and its pool.
pub(crate) struct Connection {
    /// Dropped first, because until then a device may use memory of the connection.
    driver: TransportDriver,
    pub(crate) protocol: ProtocolMachine<Block>,
    pub(crate) pool: Pool,
    pub(crate) info: ConnectionInfo,
    /// The bytes that the peer's program sent.
    pub(crate) peer_user_data: Vec<u8>,
    pub(crate) returns: Arc<ReturnedBytes>,
    completions: VecDeque<Completion>,
    /// The calls that lent several blocks, oldest first.
    lent_batches: VecDeque<LentBatch>,
    /// Lent blocks that have not returned.
    lent: usize,
    linger: Duration,
    exit_timeout: Duration,
    /// How long a waiting thread polls before it sleeps.
    pub(crate) spin: AdaptiveSpin,
    sndbuf: usize,
    /// The size of copied pieces, so that the peer takes one while the next is copied.
    pub(crate) piece: Option<usize>,
    /// The same for bytes that go in frames although the peer could READ them.
    burst: usize,
    /// Longer messages may be sent in parts.
    pub(crate) longest_whole: usize,
    /// The id of the device's protection domain, or 0.
    domain: usize,
    /// The time when the clock was last read.
    clock: Instant,
    /// The peer has closed its end.
    peer_finished: bool,
    /// A call has reported the failure.
    failure_reported: bool,
    /// The directions whose calls wait for memory, and the pool's count of returned blocks when it
    /// was last read.
    awaiting_memory: [bool; 2],
    returns_seen: u64,
    sleeps: u64,
    pool_empty: u64,
    summary: StatsSummary,
    _control: Option<KeptControl>,
    _counted: Counted,
}

impl Connection {
    /// The connection of a finished handshake. The socket is non-blocking. A TCP connection uses
    /// `pool`.
    pub(crate) fn new(
        socket: TcpStream,
        established: Established<RdmaPath>,
        config: &Config,
        pool: &Pool,
    ) -> io::Result<Self> {
        let (local, peer) = (socket.local_addr()?, socket.peer_addr().map_err(reset_at_the_end)?);
        let (kind, agreed) = (established.agreed.kind, established.agreed);
        let ((driver, pool), link, fallback) = match established.path {
            Ok(path) => (TransportDriver::over(path, socket, &agreed)?, LinkType::Rc, None),
            Err(reason) => (
                (TransportDriver::tcp(socket), usable_pool(pool, config)?.without_device()),
                LinkType::Tcp,
                Some(reason),
            ),
        };
        Self::of(driver, link, agreed, ConnectionInfo { local, peer, kind, fallback }, config, pool)
    }

    /// The connection of a finished rdma_cm handshake.
    #[cfg(feature = "rdma")]
    pub(crate) fn managed(
        managed: crate::transport::rc::CmQueuePair<Pool>,
        channel: crate::transport::rc::CmControl,
        agreed: Agreed,
        (local, peer): (std::net::SocketAddr, std::net::SocketAddr),
        config: &Config,
    ) -> io::Result<Self> {
        let info = ConnectionInfo { local, peer, kind: agreed.kind, fallback: None };
        let (driver, pool) = TransportDriver::managed(managed, channel);
        Self::of(driver, LinkType::Rc, agreed, info, config, pool)
    }

    fn of(
        driver: TransportDriver,
        link: LinkType,
        agreed: Agreed,
        info: ConnectionInfo,
        config: &Config,
        pool: Pool,
    ) -> io::Result<Self> {
        let (gather, domain) = (driver.gather(), pool.domain_id());
        let agreed_setup = agreed.setup(config, link);
        // A probe over a rail that has failed must not end the connection.
        let keepalive = agreed_setup.keepalive.filter(|_| !driver.has_own_probes());
        let setup = ConnectionSetup { gather, domain, keepalive, ..agreed_setup };
        info.log_setup(&driver);
        let control = control_keepalive::keep(&driver, &agreed, config.control_keepalive);
        let mut protocol = ProtocolMachine::new(&setup)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        // Starts the timers.
        protocol.tick(Instant::now());
        Ok(Self {
            protocol,
            pool,
            info,
            peer_user_data: agreed.user_data,
            returns: Arc::default(),
            driver,
            completions: VecDeque::new(),
            lent_batches: VecDeque::new(),
            lent: 0,
            linger: config.linger,
            exit_timeout: config.exit_timeout,
            // Polling shows nothing of a TCP socket without a system call.
            spin: AdaptiveSpin::new(
                if link == LinkType::Rc { config.spin } else { Duration::ZERO },
                is_one_of_many(),
            ),
            sndbuf: config.sndbuf,
            piece: (link == LinkType::Rc).then(|| piece(&setup)),
            burst: burst(&setup),
            longest_whole: burst(&setup).min(piece(&setup)).min(config.sndbuf),
            domain,
            clock: Instant::now(),
            peer_finished: false,
            failure_reported: false,
            awaiting_memory: [false; 2],
            returns_seen: 0,
            sleeps: 0,
            pool_empty: 0,
            summary: StatsSummary::new(config.trace_interval, Instant::now()),
            _control: control,
            _counted: Counted::new(),
        })
    }

    // The transport.

    pub(crate) fn register(&mut self, poller: &Poller, token: Token) -> io::Result<()> {
        self.returns.set_wake_handle(poller.wake_handle());
        Driver::<Pool>::register(&mut self.driver, poller.registry(), token)
    }

    /// Registers the descriptors elsewhere, for a connection that takes no more calls.
    pub(crate) fn register_at(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        Driver::<Pool>::register(&mut self.driver, registry, token)
    }

    /// Undoes [`register_at`](Self::register_at).
    pub(crate) fn deregister_from(&mut self, registry: &Registry) -> io::Result<()> {
        Driver::<Pool>::deregister(&mut self.driver, registry)
    }

    pub(crate) fn deregister(&mut self, poller: &Poller) -> io::Result<()> {
        Driver::<Pool>::deregister(&mut self.driver, poller.registry())
    }

    pub(crate) fn on_event(&mut self, event: SystemEvent) {
        Driver::<Pool>::on_event(&mut self.driver, event);
    }

    /// The descriptors that report room, first the one that reports arrivals, too.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn room_sources(&mut self) -> Vec<(std::os::fd::RawFd, mio::Interest)> {
        Driver::<Pool>::room_sources(&mut self.driver)
    }

    /// Adds the descriptors that a sleeping call waits for.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn sources(&mut self, sources: &mut Sources) {
        Driver::<Pool>::sources(&mut self.driver, sources);
    }

    /// Handles a completion from the worker's completion queue.
    pub(crate) fn completed(&mut self, completed: WorkCompletion) {
        self.driver.completed(&mut self.protocol, completed);
    }

    /// Handles the failure of the worker's completion queue.
    pub(crate) fn completion_queue_failed(&mut self, error: &io::Error) {
        self.driver.completion_queue_failed(&mut self.protocol, error);
    }

    /// Receives and sends until nothing moves.
    pub(crate) fn progress(&mut self) {
        let now = Instant::now();
        self.clock = now;
        self.collect_returns();
        if self.protocol.next_deadline().is_some_and(|deadline| now >= deadline) {
            // Takes what arrived in time before the timers run, because the program may not have
            // called for long.
            while self.driver.poll_once(
                &mut self.protocol,
                &mut self.pool,
                now,
                PollScope::ONCE,
                &mut CallBuffer::default(),
            ) {}
            self.protocol.tick(now);
        }
        self.driver.progress(&mut self.protocol, &mut self.pool, now);
        self.take_events();
        if self.summary.is_due(now) {
            let stats = self.stats();
            self.summary.log(now, stats, &self.info);
        }
    }

    /// Moves what needs no system event. Returns whether anything moved.
    pub(crate) fn poll_once(&mut self, scope: PollScope) -> bool {
        self.poll_into(scope, &mut CallBuffer::default())
    }

    /// Polls for a waiting call, whose `sink` may take the data directly.
    #[inline]
    pub(crate) fn poll_into(&mut self, scope: PollScope, sink: &mut CallBuffer<'_>) -> bool {
        let scope = if self.collect_returns() { PollScope::All } else { scope };
        let now = if scope == PollScope::All { self.read_clock() } else { self.clock };
        let moved = self.driver.poll_once(&mut self.protocol, &mut self.pool, now, scope, sink);
        if moved {
            self.take_events();
        }
        moved
    }

    /// See [`Driver::end_request_for_event`].
    pub(crate) fn end_request_for_event(&mut self) {
        self.driver.end_request_for_event(&mut self.protocol);
    }

    /// Whether a turn has work other than moving frames.
    pub(crate) fn has_work_due(&self, now: Instant) -> bool {
        self.next_deadline().is_some_and(|deadline| now >= deadline) || self.summary.is_due(now)
    }

    /// Sends what a call has queued. Usually it has queued nothing, so this check is inlined.
    #[inline(always)]
    pub(crate) fn post(&mut self) {
        let nothing = self.protocol.is_quiet()
            && Driver::<Pool>::is_idle(&self.driver)
            && self.returns.is_empty()
            && !self.protocol.has_events();
        if !nothing {
            self.post_all();
        }
    }

    #[inline(never)]
    fn post_all(&mut self) {
        self.collect_returns();
        if !(self.protocol.is_quiet() && Driver::<Pool>::is_idle(&self.driver)) {
            let now = self.read_clock();
            self.driver.post(&mut self.protocol, &mut self.pool, now);
        }
        self.take_events();
    }

    /// The time for pending work. Without any it does not read the clock.
    #[inline]
    fn read_clock(&mut self) -> Instant {
        if self.protocol.is_timed() && !self.protocol.is_quiet() {
            self.clock = Instant::now();
        }
        self.clock
    }

    /// Credits the buffers that the program has dropped. Returns whether there were any.
    fn collect_returns(&mut self) -> bool {
        let charge = self.returns.take();
        if charge > 0 {
            self.protocol.give_back(charge);
        }
        charge > 0
    }

    /// Usually there are no events.
    #[inline]
    fn take_events(&mut self) {
        if self.protocol.has_events() {
            self.take_all_events();
        }
    }

    #[inline(never)]
    fn take_all_events(&mut self) {
        while let Some(event) = self.protocol.take_event() {
            match event {
                ConnectionEvent::Returned { ticket, block, sent } => {
                    self.lent -= 1;
                    block.returned();
                    let (ticket, left) = self.returned(ticket);
                    self.completions.push_back(Completion { ticket, block, sent, left });
                }
                ConnectionEvent::PeerClosed => self.peer_finished = true,
                // The peer has closed in order, and no longer takes what comes after that.
                ConnectionEvent::Failed(FailureCause::PeerGone) if self.peer_finished => (),
                ConnectionEvent::Failed(cause) => tracing::debug!(connection = %self.info, %cause, "failed"),
                ConnectionEvent::Closed => tracing::trace!(connection = %self.info, "closed"),
            }
        }
    }

    /// The program's ticket of a returned block, and how many other blocks it still covers.
    fn returned(&mut self, protocol::Ticket(number): protocol::Ticket) -> (Ticket, usize) {
        let behind = self.lent_batches.partition_point(|batch| batch.tickets.start <= number);
        let batch = behind.checked_sub(1).and_then(|at| self.lent_batches.get_mut(at));
        let Some(batch) = batch.filter(|batch| batch.tickets.contains(&number)) else {
            return (Ticket(number), 0);
        };
        batch.left -= 1;
        let returned = (Ticket(batch.tickets.start), batch.left);
        while self.lent_batches.front().is_some_and(|batch| batch.left == 0) {
            self.lent_batches.pop_front();
        }
        returned
    }

    /// Whether nothing is left to do before an event, and every possible event wakes the sleeper, which
    /// this counts.
    pub(crate) fn may_sleep(&mut self, waker: &Waker) -> bool {
        let may_sleep = self.is_armed(waker);
        self.sleeps += u64::from(may_sleep);
        may_sleep
    }

    /// Whether nothing is left to do before an event, and every possible event wakes the waker.
    pub(crate) fn is_armed(&mut self, waker: &Waker) -> bool {
        if Driver::<Pool>::has_more(&self.driver) {
            return false;
        }
        if Driver::<Pool>::is_starved(&self.driver) {
            self.pool_empty += 1;
            self.pool.wake_when_free(waker);
            // A block may have returned just before.
            self.progress();
        }
        if self.awaiting_memory != [false; 2] && self.pool.wake_when_more(waker, &mut self.returns_seen) {
            // Blocks have returned since a call was refused, so the next call may succeed.
            self.awaiting_memory = [false; 2];
            return false;
        }
        self.protocol.slots_wanted() != 0 || self.returns.wake_at_next()
    }

    /// Whether a call waits for pool memory or for dropped buffers.
    pub(crate) fn awaits_memory(&self) -> bool {
        Driver::<Pool>::is_starved(&self.driver)
            || self.awaiting_memory != [false; 2]
            || self.protocol.slots_wanted() == 0
    }

    /// Whether another thread may wake a call of this one, because memory becomes free or the program
    /// drops received buffers.
    pub(crate) fn may_be_woken(&self) -> bool {
        let has_buffers = || Arc::strong_count(&self.returns) > 1;
        Driver::<Pool>::is_starved(&self.driver)
            || self.awaiting_memory != [false; 2]
            || self.protocol.slots_wanted() == 0 && has_buffers()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match (Driver::<Pool>::next_deadline(&self.driver), self.protocol.next_deadline()) {
            (Some(own), Some(other)) => Some(own.min(other)),
            (own, other) => own.or(other),
        }
    }

    /// Whether all written bytes are sent.
    pub(crate) fn is_flushed(&self) -> bool {
        Driver::<Pool>::is_flushed(&self.driver) && !self.protocol.has_unsent()
    }

    pub(crate) fn sent_state(&self) -> SentState {
        let failed = self.protocol.failure().is_some();
        SentState { failed, flushed: self.is_flushed(), delivered: self.is_delivered() }
    }

    /// The outcome of a write's wait for its bytes. The next call reports a failure.
    pub(crate) fn is_sent_or_failed(&self) -> Result<(), Refused> {
        if self.protocol.failure().is_some() || self.is_flushed() { Ok(()) } else { Err(Refused::Blocked) }
    }

    /// The outcome of a call that waits until the peer's side has all written bytes.
    pub(crate) fn is_drained(&mut self) -> Result<(), Refused> {
        let Some(cause) = self.protocol.failure() else {
            return if self.is_delivered() { Ok(()) } else { Err(Refused::Blocked) };
        };
        let is_gone = matches!(cause, FailureCause::PeerGone | FailureCause::Completion { .. });
        if self.peer_finished && is_gone && !self.protocol.left_undelivered() {
            // The peer has closed in order, and everything had arrived before.
            return Ok(());
        }
        let error = CallError::Failed(cause.clone());
        Err(self.refused(Direction::Write, error))
    }

    /// Whether [`is_drained`](Self::is_drained) would not block. The next call reports a failure.
    pub(crate) fn is_drained_or_failed(&self) -> bool {
        self.protocol.failure().is_some() || self.is_delivered()
    }

    /// Sets how often a limited turn over TCP reads, and how often it writes.
    #[cfg(all(test, not(loom), not(miri)))]
    pub(crate) fn set_most_calls(&mut self, most: u32) {
        self.driver.set_most_calls(most);
    }

    #[cfg(all(test, feature = "rdma"))]
    pub(crate) fn driver(&mut self) -> &mut TransportDriver {
        &mut self.driver
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let [no_read, no_write] =
            self.awaiting_memory.map(|awaiting_memory| awaiting_memory && self.protocol.failure().is_none());
        Readiness {
            readable: self.protocol.readable() && !no_read,
            writable: self.protocol.writable() && !no_write,
        }
    }

    /// Whether another part of the program can use it as a new one.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.protocol.is_at_rest() && self.lent == 0 && self.completions.is_empty()
    }

    pub(crate) fn completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// The next completion, for a call that may wait. `None` if no block is lent.
    pub(crate) fn next_completion(&mut self) -> Result<Option<Completion>, Refused> {
        match self.completion() {
            None if self.lent > 0 => Err(Refused::Blocked),
            found => Ok(found),
        }
    }

    pub(crate) fn device(&self) -> Option<&str> {
        self.driver.device()
    }

    pub(crate) fn stats(&self) -> Stats {
        let stats = Stats::count(self.protocol.counters(), self.system_calls(), self.sleeps, self.pool_empty);
        self.driver.count_rails(self.summary.count_calls(stats))
    }

    /// See [`StatsSummary::time_calls`]. The program's thread calls it, before the first call.
    pub(crate) fn time_calls(&mut self) {
        self.summary.time_calls();
    }

    /// Whether the program's calls are timed.
    pub(crate) fn is_timed(&self) -> bool {
        self.summary.is_timed()
    }

    /// The interval of the summary, if the program's calls are timed.
    pub(crate) fn timed_interval(&self) -> Option<Duration> {
        self.summary.timed_interval()
    }

    /// Runs a call of the program that does not wait, and records it if calls are timed: that which
    /// `bytes` returns for its result. `None` is a call that has moved nothing.
    #[inline]
    pub(crate) fn timed<T>(
        &mut self,
        direction: Direction,
        call: impl FnOnce(&mut Self) -> Result<T, Refused>,
        bytes: impl FnOnce(&T) -> Option<usize>,
    ) -> Result<T, Refused> {
        let began = self.is_timed().then(Instant::now);
        let outcome = call(self);
        if let (Some(began), Ok(value)) = (began, &outcome)
            && let Some(bytes) = bytes(value)
        {
            self.record_call(direction, began, bytes);
        }
        outcome
    }

    /// Records a call of the program that has moved bytes.
    #[cold]
    pub(crate) fn record_call(&mut self, direction: Direction, began: Instant, bytes: usize) {
        let kind = match direction {
            Direction::Read => OperationKind::Receive,
            Direction::Write => OperationKind::Send,
        };
        self.summary.record(kind, bytes, began.elapsed());
    }

    /// See [`TransportDriver::one_sided_ports`].
    #[cfg(feature = "rdma")]
    pub(crate) fn one_sided_ports(&self) -> Option<crate::transport::rc::one_sided::OneSidedPorts> {
        self.driver.one_sided_ports()
    }

    /// See [`Driver::system_calls`].
    pub(crate) fn system_calls(&self) -> u64 {
        Driver::<Pool>::system_calls(&self.driver)
    }

    /// What calls may wait for.
    pub(crate) fn findings(&self) -> Findings {
        Findings {
            has_failed: self.protocol.failure().is_some(),
            frames_received: self.protocol.counters().frames_received,
            queued: self.protocol.queued(),
            lent: self.lent,
            is_flushed: self.is_flushed(),
            is_delivered: self.is_delivered(),
            returned: self.completions.len(),
        }
    }

    /// See [`Builder::exit_timeout`](crate::Builder::exit_timeout).
    pub(crate) fn exit_timeout(&self) -> Duration {
        self.exit_timeout
    }

    pub(crate) fn linger(&self) -> Duration {
        self.linger
    }

    pub(crate) fn set_linger(&mut self, linger: Duration) {
        self.linger = linger;
    }

    pub(crate) fn sndbuf(&self) -> usize {
        self.sndbuf
    }

    /// Whether the peer's device or this side's kernel has all bytes.
    pub(crate) fn is_delivered(&self) -> bool {
        self.protocol.is_delivered()
    }

    /// Whether it shares no completion queue with others.
    pub(crate) fn is_alone(&self) -> bool {
        self.driver.is_alone()
    }

    /// Its TCP socket.
    pub(crate) fn socket(&self) -> Option<Descriptor> {
        self.driver.socket()
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.driver.is_tcp()
    }

    /// Whether bytes are left that the system or the device has not taken. A software device may not
    /// have sent all that it has taken.
    pub(crate) fn has_unposted(&self) -> bool {
        self.protocol.has_unsent() || !Driver::<Pool>::is_idle(&self.driver)
    }

    /// Whether a turn ends although the peer goes on sending.
    pub(crate) fn limit_turns(&mut self, limited: bool) {
        Driver::<Pool>::limit_turns(&mut self.driver, limited);
    }
}

impl DroppedConnection for Connection {
    fn limit_turns(&mut self) {
        Connection::limit_turns(self, true);
    }

    fn progress(&mut self) {
        Connection::progress(self);
    }

    fn may_sleep(&mut self, waker: &Waker) -> bool {
        Connection::may_sleep(self, waker)
    }

    fn next_deadline(&self) -> Option<Instant> {
        Connection::next_deadline(self)
    }

    fn has_unread(&self) -> bool {
        self.protocol.has_unread()
    }

    fn close(&mut self) {
        self.protocol.finish();
    }

    fn abort(&mut self) {
        self.protocol.abort();
        self.progress();
    }

    fn half_close(&mut self) {
        self.driver.half_close();
    }

    fn is_tcp(&self) -> bool {
        self.driver.is_tcp()
    }

    fn has_failed(&self) -> bool {
        self.protocol.failure().is_some()
    }

    fn has_told_peer(&self) -> bool {
        self.driver.has_told_peer()
    }

    fn is_closed(&self) -> bool {
        self.protocol.is_closed()
    }

    fn is_delivered(&self) -> bool {
        Connection::is_delivered(self)
    }

    fn bytes_received(&self) -> u64 {
        let counters = self.protocol.counters();
        counters.bytes_received + counters.bytes_read
    }
}

/// The error of a socket that has lost its peer between the handshake and its first use.
fn reset_at_the_end(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotConnected => io::Error::new(
            io::ErrorKind::ConnectionReset,
            "the peer has reset the connection at the end of the handshake: its log may have the reason",
        ),
        _ => error,
    }
}

/// The size of a READ, or of a few frames.
fn piece(setup: &ConnectionSetup) -> usize {
    if setup.read {
        return setup.stage;
    }
    frames(setup, PIECE) - MESSAGE_PREFIX
}

/// The size of a few frames.
fn burst(setup: &ConnectionSetup) -> usize {
    frames(setup, if setup.read { BURST } else { PIECE })
}

/// The payload of whole frames: up to `len` bytes, and at least one frame.
fn frames(setup: &ConnectionSetup, len: usize) -> usize {
    (len / setup.send_payload()).max(1) * setup.send_payload()
}
