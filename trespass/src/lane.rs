//! One connection, what moves it, and what its program may know of it. Who owns a lane sees to its turns: a
//! [`Stream`](crate::Stream) for one, or a [`Worker`](crate::Worker) for many.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;
use mio::event::Event as Report;

use crate::buffers::{Completion, Part, RecvBuf, Returns, Ticket};
use crate::builder::Config;
use crate::connect::lasting;
use crate::drivers::{Completed, Driver, Path, Way};
use crate::engine::Side;
use crate::handshake::{Agreed, Established, FallbackReason, Transport};
use crate::pool::{Block, Pool};
use crate::protocol::{self, Blocked, CallError, Cause, Connection, Event, Link, Setup, Sink};
use crate::readiness::{Bell, Readiness};
use crate::spin::Spin;
use crate::stats::{Stats, Summary};
use crate::wire::Kind;

/// Bytes that are copied before they are sent, in whole frames, where the peer reads nothing out of this side's memory.
const PIECE: usize = 16 << 10;

/// Why a call did nothing.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Not now.
    Blocked,
    /// Never.
    Failed(io::Error),
}

/// Which connection it is.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) kind: Kind,
    /// Why it is not RDMA that carries it, if it is not.
    pub(crate) fallback: Option<FallbackReason>,
}

impl About {
    pub(crate) fn transport(&self) -> Transport {
        if self.fallback.is_some() { Transport::Tcp } else { Transport::Rdma }
    }
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} - {}", self.transport(), self.local, self.peer)
    }
}

/// Blocks that were lent together: the protocol has a ticket for each of them, the program has the first.
struct Lot {
    tickets: Range<u64>,
    /// How many have not come back.
    left: usize,
}

/// A connection and what moves it.
pub(crate) struct Lane {
    /// Dropped first: until then a device may have memory of the connection.
    way: Way,
    pub(crate) connection: Connection<Block>,
    pub(crate) pool: Pool,
    pub(crate) about: About,
    /// What the peer's program wanted to be known.
    pub(crate) peer_user_data: Vec<u8>,
    pub(crate) returns: Arc<Returns>,
    completions: VecDeque<Completion>,
    /// What was lent several blocks at a time, oldest first.
    lots: VecDeque<Lot>,
    /// Blocks that have not come back yet.
    lent: usize,
    linger: Duration,
    /// How long a thread that waits looks for completions before it sleeps.
    pub(crate) spin: Spin,
    sndbuf: usize,
    /// What is copied goes in pieces of this size, so that the peer takes one while the next is copied.
    pub(crate) piece: Option<usize>,
    /// What the device knows, if there is one.
    domain: usize,
    /// When somebody last looked at the clock.
    clock: Instant,
    /// The peer has sent its last.
    heard_all: bool,
    /// A call was told that the connection has failed.
    told: bool,
    /// What calls wait for memory, and how often some had come back when that was last asked.
    short: [bool; 2],
    returns_seen: u64,
    sleeps: u64,
    pool_empty: u64,
    summary: Summary,
}

impl Lane {
    /// A connection whose handshake is done. The socket is non-blocking; `pool` is for one over TCP.
    pub(crate) fn new(
        socket: TcpStream,
        established: Established<Path>,
        config: &Config,
        pool: &Pool,
    ) -> io::Result<Self> {
        let (local, peer) = (socket.local_addr()?, socket.peer_addr()?);
        let (kind, agreed) = (established.agreed.kind, established.agreed);
        let ((way, pool), link, fallback) = match established.path {
            Ok(path) => (Way::over(path, socket)?, Link::Rc, None),
            Err(reason) => {
                ((Way::tcp(socket), lasting(pool, config)?.without_device()), Link::Tcp, Some(reason))
            }
        };
        Self::of(way, link, agreed, About { local, peer, kind, fallback }, config, pool)
    }

    /// One that the connection manager has made.
    #[cfg(feature = "rdma")]
    pub(crate) fn managed(
        managed: crate::drivers::rc::Managed<Pool>,
        line: crate::drivers::rc::Line,
        agreed: Agreed,
        (local, peer): (SocketAddr, SocketAddr),
        config: &Config,
    ) -> io::Result<Self> {
        let about = About { local, peer, kind: agreed.kind, fallback: None };
        let (way, pool) = Way::managed(managed, line);
        Self::of(way, Link::Rc, agreed, about, config, pool)
    }

    fn of(
        way: Way,
        link: Link,
        agreed: Agreed,
        about: About,
        config: &Config,
        pool: Pool,
    ) -> io::Result<Self> {
        let (gather, domain) = (way.gather(), pool.domain_id());
        let setup = Setup { gather, domain, ..agreed.setup(config, link) };
        about.tell(&way);
        let mut connection =
            Connection::new(&setup).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        // From now on there are deadlines.
        connection.tick(Instant::now());
        Ok(Self {
            connection,
            pool,
            about,
            peer_user_data: agreed.user_data,
            returns: Arc::default(),
            way,
            completions: VecDeque::new(),
            lots: VecDeque::new(),
            lent: 0,
            linger: config.linger,
            // What TCP brings, the system alone can say.
            spin: Spin::new(if link == Link::Rc { config.spin } else { Duration::ZERO }),
            sndbuf: config.sndbuf,
            piece: (link == Link::Rc).then(|| piece(&setup)),
            domain,
            clock: Instant::now(),
            heard_all: false,
            told: false,
            short: [false; 2],
            returns_seen: 0,
            sleeps: 0,
            pool_empty: 0,
            summary: Summary::new(config.trace_interval, Instant::now()),
        })
    }

    // What moves it.

    pub(crate) fn register(&mut self, bell: &Bell, token: Token) -> io::Result<()> {
        self.returns.look_after(bell.clapper());
        Driver::<Pool>::register(&mut self.way, bell.registry(), token)
    }

    pub(crate) fn deregister(&mut self, bell: &Bell) -> io::Result<()> {
        Driver::<Pool>::deregister(&mut self.way, bell.registry())
    }

    pub(crate) fn on_event(&mut self, event: &Report) {
        Driver::<Pool>::on_event(&mut self.way, event);
    }

    /// Something of it has completed at its worker's desk.
    pub(crate) fn completed(&mut self, completed: Completed) {
        self.way.completed(&mut self.connection, completed);
    }

    /// Its worker's desk is of no use any more.
    pub(crate) fn cut_off(&mut self, error: &io::Error) {
        self.way.cut_off(&mut self.connection, error);
    }

    /// Receives and sends until nothing moves.
    pub(crate) fn turn(&mut self) {
        let now = Instant::now();
        self.clock = now;
        self.collect();
        if self.connection.next_deadline().is_some_and(|deadline| now >= deadline) {
            // A program that has made no calls for long has not seen yet what came in time.
            while self.way.look(&mut self.connection, &mut self.pool, now, false, &mut Sink::default()) {}
            self.connection.tick(now);
        }
        self.way.turn(&mut self.connection, &mut self.pool, now);
        self.hear();
        if self.summary.is_due(now) {
            let stats = self.stats();
            self.summary.tell(now, stats, &self.about);
        }
    }

    /// Moves what the system need not report, then looks for completions: the second of them alone if not `all`. Whether anything did.
    pub(crate) fn look(&mut self, all: bool) -> bool {
        self.look_for(all, &mut Sink::default())
    }

    /// The same for a call that waits, whose `sink` takes what has come if that is what it waits for.
    #[inline]
    pub(crate) fn look_for(&mut self, all: bool, sink: &mut Sink<'_>) -> bool {
        let all = self.collect() || all;
        let now = if all { self.date() } else { self.clock };
        let moved = self.way.look(&mut self.connection, &mut self.pool, now, all, sink);
        if moved {
            self.hear();
        }
        moved
    }

    /// Whether a turn has something to do besides moving frames.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.next_deadline().is_some_and(|deadline| now >= deadline) || self.summary.is_due(now)
    }

    /// Sends what a call has left to be sent.
    #[inline]
    pub(crate) fn post(&mut self) {
        self.collect();
        // As a rule a call has left nothing.
        if !(self.connection.is_quiet() && Driver::<Pool>::is_idle(&self.way)) {
            let now = self.date();
            self.way.post(&mut self.connection, &mut self.pool, now);
        }
        self.hear();
    }

    /// Now, for what is to be sent. Where nothing is, or the time does not matter to it, nothing is dated, and the clock is not asked.
    #[inline]
    fn date(&mut self) -> Instant {
        if self.connection.is_timed() && !self.connection.is_quiet() {
            self.clock = Instant::now();
        }
        self.clock
    }

    /// What the program no longer holds. Whether there was any.
    fn collect(&mut self) -> bool {
        let charge = self.returns.take();
        if charge > 0 {
            self.connection.give_back(charge);
        }
        charge > 0
    }

    /// As a rule there is nothing to hear of.
    #[inline]
    fn hear(&mut self) {
        if self.connection.has_events() {
            self.hear_all();
        }
    }

    #[inline(never)]
    fn hear_all(&mut self) {
        while let Some(event) = self.connection.take_event() {
            match event {
                Event::Returned { ticket, block, sent } => {
                    self.lent -= 1;
                    block.returned();
                    let (ticket, left) = self.returned(ticket);
                    self.completions.push_back(Completion { ticket, block, sent, left });
                }
                Event::PeerClosed => self.heard_all = true,
                Event::Failed(cause) => tracing::debug!(connection = %self.about, %cause, "failed"),
                Event::Closed => tracing::trace!(connection = %self.about, "closed"),
            }
        }
    }

    /// The program's ticket of a block that has come back, and how many others that is still for.
    fn returned(&mut self, protocol::Ticket(number): protocol::Ticket) -> (Ticket, usize) {
        let behind = self.lots.partition_point(|lot| lot.tickets.start <= number);
        let lot = behind.checked_sub(1).and_then(|at| self.lots.get_mut(at));
        let Some(lot) = lot.filter(|lot| lot.tickets.contains(&number)) else { return (Ticket(number), 0) };
        lot.left -= 1;
        let told = (Ticket(lot.tickets.start), lot.left);
        while self.lots.front().is_some_and(|lot| lot.left == 0) {
            self.lots.pop_front();
        }
        told
    }

    /// Whether nothing is left to do before something happens; whatever that may be, it will ring.
    pub(crate) fn may_sleep(&mut self, bell: &Bell) -> bool {
        if Driver::<Pool>::is_starved(&self.way) {
            self.pool_empty += 1;
            self.pool.wake_when_free(bell.task());
            // One may have come back just before.
            self.turn();
        }
        if self.short != [false; 2] && self.pool.wake_when_more(bell.task(), &mut self.returns_seen) {
            // Some has come back since a call was refused: the next one may find it.
            self.short = [false; 2];
            return false;
        }
        if self.connection.slots_wanted() == 0 && !self.returns.ring_at_next() {
            return false;
        }
        self.sleeps += 1;
        true
    }

    /// Whether it waits for memory, or for the program to give some back.
    pub(crate) fn is_hungry(&self) -> bool {
        Driver::<Pool>::is_starved(&self.way)
            || self.short != [false; 2]
            || self.connection.slots_wanted() == 0
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let own = Driver::<Pool>::next_deadline(&self.way);
        own.into_iter().chain(self.connection.next_deadline()).min()
    }

    /// Whether all that was written is on its way.
    pub(crate) fn is_flushed(&self) -> bool {
        Driver::<Pool>::is_flushed(&self.way) && !self.connection.has_unsent()
    }

    #[cfg(all(test, feature = "rdma"))]
    pub(crate) fn way(&mut self) -> &mut Way {
        &mut self.way
    }

    // What its program may know.

    pub(crate) fn readiness(&self) -> Readiness {
        let [no_read, no_write] = self.short.map(|short| short && self.connection.failure().is_none());
        Readiness {
            readable: self.connection.readable() && !no_read,
            writable: self.connection.writable() && !no_write,
        }
    }

    pub(crate) fn completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// The same, where it may be waited for. `None`: nothing is lent.
    pub(crate) fn next_completion(&mut self) -> Result<Option<Completion>, Refused> {
        match self.completion() {
            None if self.lent > 0 => Err(Refused::Blocked),
            found => Ok(found),
        }
    }

    pub(crate) fn device(&self) -> Option<&str> {
        self.way.device()
    }

    pub(crate) fn stats(&self) -> Stats {
        let posts = Driver::<Pool>::system_calls(&self.way);
        Stats::count(self.connection.counters(), posts, self.sleeps, self.pool_empty)
    }

    pub(crate) fn linger(&self) -> Duration {
        self.linger
    }

    pub(crate) fn set_linger(&mut self, linger: Duration) {
        self.linger = linger;
    }

    /// What a call that failed tells, with the kind that `std::net` has for it.
    pub(crate) fn refused(&mut self, side: Side, error: CallError) -> Refused {
        let kind = match &error {
            CallError::Blocked(why) => {
                let short = *why == Blocked::Memory;
                self.pool_empty += u64::from(short);
                self.short[side as usize] = short;
                return Refused::Blocked;
            }
            CallError::Failed(cause) => {
                let kind = kind_of(cause);
                let lost = matches!(kind, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
                // Over TCP the first call hears of the reset, and whoever writes on writes to nobody.
                let again = std::mem::replace(&mut self.told, true);
                if side == Side::Write && lost && (again || self.heard_all) {
                    io::ErrorKind::BrokenPipe
                } else {
                    kind
                }
            }
            CallError::ShutDown => io::ErrorKind::BrokenPipe,
            _ => io::ErrorKind::InvalidInput,
        };
        Refused::Failed(io::Error::new(kind, error))
    }

    // The calls.

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Refused> {
        self.connection.read(buffer).map_err(|error| self.refused(Side::Read, error))
    }

    /// Of a call that may need memory.
    fn took<T>(&mut self, side: Side, result: Result<T, CallError>) -> Result<T, Refused> {
        self.short[side as usize] = false;
        result.map_err(|error| self.refused(side, error))
    }

    /// Sends what fits a frame at once, if that can be.
    fn send_at_once(&mut self, kind: protocol::Kind, slices: &[IoSlice<'_>]) -> bool {
        let [bytes] = slices else { return false };
        let sent = self.way.send_at_once(&mut self.connection, &mut self.pool, kind, bytes);
        self.short[Side::Write as usize] &= !sent;
        sent
    }

    /// As `write`, for one whose calls post what they have written.
    pub(crate) fn write_now(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Refused> {
        match slices {
            [bytes] if self.send_at_once(protocol::Kind::Stream, slices) => Ok(bytes.len()),
            _ => self.write(slices),
        }
    }

    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Refused> {
        let written = self.connection.write(slices, &mut self.pool);
        self.took(Side::Write, written)
    }

    /// What lies in one block. Nothing: the end.
    pub(crate) fn recv_chunk(&mut self) -> Result<RecvBuf, Refused> {
        let taken = self.connection.recv_chunk(&mut self.pool);
        let chunk = self.took(Side::Read, taken)?;
        let mut bytes = RecvBuf::new(&self.returns);
        chunk.into_iter().for_each(|chunk| bytes.push(chunk));
        Ok(bytes)
    }

    /// As `send`, for one whose calls post what they have written.
    pub(crate) fn send_now(&mut self, slices: &[IoSlice<'_>]) -> Result<(), Refused> {
        if self.send_at_once(protocol::Kind::SeqPacket, slices) { Ok(()) } else { self.send(slices) }
    }

    pub(crate) fn send(&mut self, slices: &[IoSlice<'_>]) -> Result<(), Refused> {
        let sent = self.connection.send(slices, &mut self.pool);
        self.took(Side::Write, sent)
    }

    pub(crate) fn send_part(&mut self, total: u64, slices: &[IoSlice<'_>]) -> Result<usize, Refused> {
        let sent = self.connection.send_part(total, slices, &mut self.pool);
        self.took(Side::Write, sent)
    }

    /// Takes the block only if it sends it.
    pub(crate) fn send_block(&mut self, block: &mut Option<Block>, len: usize) -> Result<Ticket, Refused> {
        let Some(lent) = block.take() else { return Err(Refused::Blocked) };
        if len > lent.len() {
            let words = format!("the first {len} bytes of a block of {}", lent.len());
            *block = Some(lent);
            return Err(Refused::Failed(io::Error::new(io::ErrorKind::InvalidInput, words)));
        }
        self.before_lending(&lent);
        match self.connection.send_block(lent, len) {
            Ok(ticket) => {
                self.lent += 1;
                Ok(Ticket(ticket.0))
            }
            Err((lent, error)) => {
                lent.returned();
                *block = Some(lent);
                Err(self.refused(Side::Write, error))
            }
        }
    }

    /// Takes the blocks out of the vector only if it sends them.
    pub(crate) fn send_blocks(&mut self, blocks: &mut Vec<(Block, usize)>) -> Result<Ticket, Refused> {
        if let Some((block, len)) = blocks.iter().find(|(block, len)| *len > block.len()) {
            let words = format!("the first {len} bytes of a block of {}", block.len());
            return Err(Refused::Failed(io::Error::new(io::ErrorKind::InvalidInput, words)));
        }
        let count = blocks.len();
        blocks.iter().for_each(|(block, _)| self.before_lending(block));
        match self.connection.send_blocks(blocks) {
            Ok(protocol::Ticket(first)) => {
                self.lent += count;
                if count > 1 {
                    self.lots.push_back(Lot { tickets: first..first + count as u64, left: count });
                }
                Ok(Ticket(first))
            }
            Err(error) => {
                blocks.iter().for_each(|(block, _)| block.returned());
                Err(self.refused(Side::Write, error))
            }
        }
    }

    /// What the program has made itself is registered while a device may need it.
    fn before_lending(&self, block: &Block) {
        if self.about.fallback.is_none() {
            block.lend(self.domain);
        }
    }

    pub(crate) fn recv(&mut self, buffer: &mut [u8]) -> Result<usize, Refused> {
        match self.connection.recv(buffer) {
            Ok(Some(len)) => Ok(len),
            Ok(None) => Err(no_more()),
            Err(error) => Err(self.refused(Side::Read, error)),
        }
    }

    /// As `recv`. `None`: the message fits `buffer`, and is to be received in parts: it is longer than the receive buffer, or than a piece, of
    /// which one is here.
    pub(crate) fn recv_or_begin(
        &mut self,
        buffer: &mut [u8],
        piece: usize,
    ) -> Result<Option<usize>, Refused> {
        match self.connection.recv(buffer) {
            Err(CallError::Blocked(_)) if self.connection.begins_with(piece, buffer.len()) => Ok(None),
            Ok(Some(len)) => Ok(Some(len)),
            Ok(None) => Err(no_more()),
            Err(CallError::AboveReceiveQuota { len, .. }) if len <= buffer.len() as u64 => Ok(None),
            Err(CallError::AboveReceiveQuota { len, .. }) => {
                Err(self.refused(Side::Read, CallError::BufferTooSmall { len, room: buffer.len() }))
            }
            Err(error) => Err(self.refused(Side::Read, error)),
        }
    }

    pub(crate) fn recv_part(&mut self, buffer: &mut [u8]) -> Result<Part, Refused> {
        match self.connection.recv_part(buffer) {
            Ok(Some(part)) => Ok(part.into()),
            Ok(None) => Err(no_more()),
            Err(error) => Err(self.refused(Side::Read, error)),
        }
    }

    /// What lies in one block of a message.
    pub(crate) fn recv_part_buf(&mut self) -> Result<(RecvBuf, Part), Refused> {
        let taken = self.connection.recv_chunk(&mut self.pool);
        let Some(chunk) = self.took(Side::Read, taken)? else { return Err(no_more()) };
        let part = Part { len: chunk.range.len(), last: chunk.last, total: chunk.total };
        let mut bytes = RecvBuf::new(&self.returns);
        bytes.push(chunk);
        Ok((bytes, part))
    }

    /// A whole message.
    pub(crate) fn recv_buf(&mut self) -> Result<RecvBuf, Refused> {
        if !self.connection.message_complete() {
            // Nothing can be taken whole, so this takes nothing, and says why.
            return match self.connection.recv(&mut []) {
                Ok(_) => Err(no_more()),
                Err(error) => Err(self.refused(Side::Read, error)),
            };
        }
        let mut message = RecvBuf::new(&self.returns);
        loop {
            let taken = self.connection.recv_chunk(&mut self.pool);
            // Only the first piece may need a block of its own.
            match self.took(Side::Read, taken)? {
                Some(chunk) => {
                    let last = chunk.last;
                    message.push(chunk);
                    if last {
                        return Ok(message);
                    }
                }
                None => return Err(no_more()),
            }
        }
    }

    pub(crate) fn sndbuf(&self) -> usize {
        self.sndbuf
    }

    // Its end.

    /// Lets what was written go, and takes nothing more.
    pub(crate) fn close(&mut self) {
        self.connection.shutdown_write();
        self.connection.shutdown_read();
    }

    /// Whether nothing of it is left to be waited for. Over TCP the system takes care of what it has taken; over RDMA the peer's device must
    /// have it.
    pub(crate) fn is_over(&self) -> bool {
        self.connection.failure().is_some() || self.connection.is_closed() || self.connection.is_delivered()
    }

    /// Ends it at once.
    pub(crate) fn abort(&mut self) {
        self.connection.abort();
        self.turn();
    }
}

impl About {
    /// The one line of each connection's set-up.
    fn tell(&self, way: &Way) {
        match &self.fallback {
            Some(reason) => tracing::info!(connection = %self, %reason, "no RDMA"),
            // In words it costs a query of the queue pair, which nobody makes who does not hear them.
            None if tracing::enabled!(tracing::Level::INFO) => {
                let by = way.describe().unwrap_or_default();
                tracing::info!(connection = %self, "RDMA activated: {by}");
            }
            None => (),
        }
    }
}

/// The peer has sent its last message.
fn no_more() -> Refused {
    Refused::Failed(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the peer has closed its end, and all its messages were received",
    ))
}

/// What the peer reads at a time, or a few frames.
fn piece(setup: &Setup) -> usize {
    if setup.read {
        return setup.stage;
    }
    // The first frame of a message has the length of all of it.
    (PIECE / setup.send_payload()).max(1) * setup.send_payload() - size_of::<u64>()
}

fn kind_of(cause: &Cause) -> io::ErrorKind {
    match cause {
        Cause::Protocol(_) | Cause::StrayCompletion { .. } => io::ErrorKind::InvalidData,
        Cause::PeerReset | Cause::PeerGone | Cause::Completion { .. } => io::ErrorKind::ConnectionReset,
        Cause::Aborted => io::ErrorKind::ConnectionAborted,
        Cause::Io { kind, .. } => *kind,
        Cause::Silent(_) | Cause::Linger(_) => io::ErrorKind::TimedOut,
    }
}
