//! The bytes that keep the TCP connections of connections over RDMA. After the handshake nothing
//! else moves on them, and proxies, firewalls and address translators end a silent connection.
//!
//! One task of the service thread serves all connections of the process. It sleeps until the first
//! is due. Then it discards what their peers have sent, and sends each a byte. The program's threads
//! neither send nor read here, because an idle program makes no calls, and a busy one would pay for
//! the system calls.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::event::Event;

use crate::handshake::Agreed;
use crate::process::Process;
use crate::session::service::{self, NextTurn, Place, ServiceTask, Task};
use crate::transport::{CONTROL_BYTES, TransportDriver};
use crate::wire::Features;

/// How early a byte may go, so that one wake-up serves many connections. Shorter intervals have a
/// quarter of theirs.
const EARLY: Duration = Duration::from_secs(1);

/// Sockets that a turn serves. The next turn follows at once, after those of other tasks.
const SOCKETS_A_TURN: usize = 64;

/// Bytes that a read discards.
const WASTE: usize = 4 << 10;

/// Sends a byte at that interval on the control connection of `driver`, if it has one and both sides
/// know the feature.
pub(super) fn keep(
    driver: &TransportDriver,
    agreed: &Agreed,
    interval: Option<Duration>,
) -> Option<KeptControl> {
    let interval = interval.filter(|_| agreed.features.has(Features::KEEP))?;
    let socket = driver.control_socket()?;
    match service::control_sockets().and_then(|sockets| sockets.add(socket, interval)) {
        Ok(kept) => Some(kept),
        Err(error) => {
            tracing::warn!(%error, "a proxy may end this connection: no thread can keep it");
            None
        }
    }
}

/// The sockets that a process keeps.
pub(super) struct ControlSockets {
    process: Process,
    state: Mutex<State>,
}

struct State {
    schedule: Schedule<TcpStream>,
    /// Started with the first socket.
    task: Option<ServiceTask<SendsBytes>>,
}

impl ControlSockets {
    pub(super) fn new() -> Self {
        let state = State { schedule: Schedule::new(), task: None };
        Self { process: Process::current(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs while it is locked, and no system call but a wake-up.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&'static self, socket: Arc<TcpStream>, interval: Duration) -> io::Result<KeptControl> {
        let mut state = self.state();
        if state.task.is_none() {
            state.task = Some(ServiceTask::start(|_| Ok(SendsBytes(self)))?);
        }
        let (at, is_first) = state.schedule.add(socket, interval, Instant::now());
        if is_first && let Some(task) = &state.task {
            task.wake();
        }
        Ok(KeptControl { sockets: self, at })
    }
}

/// Ends the keeping of a socket.
pub(super) struct KeptControl {
    sockets: &'static ControlSockets,
    at: usize,
}

impl Drop for KeptControl {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if self.sockets.process.is_current() {
            let socket = self.sockets.state().schedule.remove(self.at);
            // Closed without the lock.
            drop(socket);
        }
    }
}

/// The task of the service thread.
struct SendsBytes(&'static ControlSockets);

impl Task for SendsBytes {
    fn turn(&mut self, _: &Place, _: &[&Event], now: Instant) -> NextTurn {
        let (due, next) = {
            let schedule = &mut self.0.state().schedule;
            (schedule.take_due(now), schedule.next)
        };
        for (at, socket) in due {
            if !exchange(&*socket, &*socket) {
                self.0.state().schedule.stop(at, &socket);
            }
        }
        next.into()
    }

    fn failed(&mut self, _: &Place) {}
}

/// Discards what the peer has sent, and sends a byte, on a non-blocking socket. Returns whether it is
/// to be served again. The connection finds the end of its socket by its own events.
fn exchange(mut from: impl Read, mut to: impl Write) -> bool {
    for _ in 0..CONTROL_BYTES / WASTE {
        match from.read(&mut [0; WASTE]) {
            Ok(0) => return false,
            Ok(WASTE) => {}
            Err(error) if !is_temporary(&error) => return false,
            Ok(_) | Err(_) => return to.write(&[0]).map_or_else(|error| is_temporary(&error), |_| true),
        }
    }
    tracing::warn!(
        "a peer floods its control connection, which is not served any more: nobody keeps it from a proxy's limit"
    );
    false
}

/// A full send buffer is the peer's fault, and the bytes in it do the same.
fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The times of the sockets' next bytes.
struct Schedule<S> {
    entries: Vec<Option<Entry<S>>>,
    /// The indices of entries without an owner.
    free: Vec<usize>,
    /// When the next turn is due.
    next: Option<Instant>,
}

struct Entry<S> {
    socket: Arc<S>,
    interval: Duration,
    due: Instant,
}

impl<S> Entry<S> {
    fn is_due(&self, now: Instant) -> bool {
        self.due.saturating_duration_since(now) <= EARLY.min(self.interval / 4)
    }
}

impl<S> Schedule<S> {
    fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), next: None }
    }

    /// Returns the index of the new entry, and whether it is due before all others.
    fn add(&mut self, socket: Arc<S>, interval: Duration, now: Instant) -> (usize, bool) {
        let due = now + interval;
        let at = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[at] = Some(Entry { socket, interval, due });
        let is_first = self.next.is_none_or(|next| due < next);
        if is_first {
            self.next = Some(due);
        }
        (at, is_first)
    }

    fn remove(&mut self, at: usize) -> Option<Arc<S>> {
        self.free.push(at);
        self.entries[at].take().map(|entry| entry.socket)
    }

    /// Serves a socket no more. Its owner may have removed it, and another one may have the index.
    fn stop(&mut self, at: usize, socket: &Arc<S>) {
        let entry = &mut self.entries[at];
        if entry.as_ref().is_some_and(|entry| Arc::ptr_eq(&entry.socket, socket)) {
            *entry = None;
        }
    }

    /// The sockets that are due, with their indices, as far as a turn serves them.
    fn take_due(&mut self, now: Instant) -> Vec<(usize, Arc<S>)> {
        let mut due = Vec::new();
        self.next = None;
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let Some(entry) = entry else { continue };
            if entry.is_due(now) && due.len() < SOCKETS_A_TURN {
                due.push((at, entry.socket.clone()));
                entry.due = now + entry.interval;
            }
            let turn = if entry.is_due(now) { now } else { entry.due };
            self.next = Some(self.next.map_or(turn, |next| next.min(turn)));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(25);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Runs the schedule until a time after its start. Returns each time at which it wakes, and how
    /// often each index was served.
    fn run(schedule: &mut Schedule<()>, start: Instant, until: Duration) -> (Vec<Duration>, Vec<u32>) {
        let (mut wakes, mut served) = (Vec::new(), vec![0; schedule.entries.len()]);
        while let Some(next) = schedule.next.filter(|next| *next <= start + until) {
            if wakes.last() != Some(&(next - start)) {
                wakes.push(next - start);
            }
            let due = schedule.take_due(next);
            assert!((1..=SOCKETS_A_TURN).contains(&due.len()), "a turn has work, and no more");
            due.iter().for_each(|(at, _)| served[*at] += 1);
        }
        (wakes, served)
    }

    /// A thousand connections that begin at any time wake the thread at most once a second, and each
    /// has its byte in time.
    #[test]
    fn one_wake_up_a_second_serves_all() {
        let (mut schedule, start) = (Schedule::new(), Instant::now());
        for at in 0..1000 {
            schedule.add(Arc::new(()), INTERVAL, start + millis(at * 37 % 25_000));
        }
        let hour = Duration::from_secs(3600);
        let (wakes, served) = run(&mut schedule, start, hour);
        assert!(wakes.windows(2).all(|pair| pair[1] - pair[0] > EARLY), "{wakes:?}");
        // 24 to 25 s apart, the first after up to 50 s.
        assert!(served.iter().all(|count| (142..=150).contains(count)), "{served:?}");
        assert!(wakes.len() <= 3600, "{}", wakes.len());
    }

    #[test]
    fn nothing_is_due_without_a_socket() {
        let (mut schedule, now) = (Schedule::new(), Instant::now());
        let (at, is_first) = schedule.add(Arc::new(()), INTERVAL, now);
        assert!(is_first && schedule.next == Some(now + INTERVAL));
        assert!(schedule.remove(at).is_some());
        assert!(schedule.take_due(now + INTERVAL).is_empty() && schedule.next.is_none());
    }

    #[test]
    fn an_earlier_socket_changes_the_next_turn() {
        let (mut schedule, now) = (Schedule::new(), Instant::now());
        schedule.add(Arc::new(()), INTERVAL, now);
        assert_eq!(schedule.add(Arc::new(()), INTERVAL, now + EARLY), (1, false));
        assert_eq!(schedule.add(Arc::new(()), millis(100), now + EARLY), (2, true));
        assert_eq!(schedule.next, Some(now + EARLY + millis(100)));
        let (wakes, _) = run(&mut schedule, now, INTERVAL);
        assert!(wakes.windows(2).all(|pair| pair[1] - pair[0] >= millis(75)), "{wakes:?}");
    }

    /// A thread that serves a socket may end it after its owner has, when the index is another's.
    #[test]
    fn a_late_end_concerns_no_other_socket() {
        let (mut schedule, now) = (Schedule::new(), Instant::now());
        let (one, other) = (Arc::new(()), Arc::new(()));
        let (at, _) = schedule.add(one.clone(), INTERVAL, now);
        schedule.remove(at);
        assert_eq!(schedule.add(other.clone(), INTERVAL, now).0, at);
        schedule.stop(at, &one);
        assert!(schedule.entries[at].is_some());
        schedule.stop(at, &other);
        assert!(schedule.entries[at].is_none() && schedule.free.is_empty(), "its owner still has the index");
    }

    /// A peer's bytes, and its end or an error behind them.
    struct Peer {
        sent: usize,
        then: Option<ErrorKind>,
        reads: usize,
    }

    impl Read for Peer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.reads += 1;
            let count = self.sent.min(buffer.len());
            self.sent -= count;
            match self.then {
                Some(error) if count == 0 => Err(error.into()),
                _ => Ok(count),
            }
        }
    }

    /// How many bytes stay, how many reads it takes, whether a byte goes out, and whether it goes on.
    fn exchanged(sent: usize, then: Option<ErrorKind>) -> (usize, usize, usize, bool) {
        let (mut peer, mut byte) = (Peer { sent, then, reads: 0 }, Vec::new());
        let goes_on = exchange(&mut peer, &mut byte);
        (peer.sent, peer.reads, byte.len(), goes_on)
    }

    #[test]
    fn a_peer_s_bytes_are_discarded_within_a_limit() {
        let nothing_more = Some(ErrorKind::WouldBlock);
        assert_eq!(exchanged(0, nothing_more), (0, 1, 1, true));
        assert_eq!(exchanged(1, nothing_more), (0, 1, 1, true));
        assert_eq!(exchanged(WASTE, nothing_more), (0, 2, 1, true));
        assert_eq!(exchanged(CONTROL_BYTES - 1, nothing_more), (0, 16, 1, true));
        // From here on it breaks the protocol, and its bytes stay.
        assert_eq!(exchanged(CONTROL_BYTES, nothing_more), (0, 16, 0, false));
        assert_eq!(exchanged(100 * CONTROL_BYTES, nothing_more), (99 * CONTROL_BYTES, 16, 0, false));
    }

    #[test]
    fn nothing_is_sent_to_a_peer_that_has_gone() {
        assert_eq!(exchanged(0, None), (0, 1, 0, false));
        assert_eq!(exchanged(WASTE, Some(ErrorKind::ConnectionReset)), (0, 2, 0, false));
    }
}
