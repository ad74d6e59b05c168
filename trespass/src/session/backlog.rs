//! The connections of a listener that are established and wait for the program to accept them.
//!
//! `models` runs the hand-over between the service thread and those that accept under loom.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex as StdMutex, MutexGuard as StdMutexGuard, PoisonError};
use std::time::Instant;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};

use mio::Registry;

use crate::session::connection::Connection;
use crate::session::readiness::{Poller, Until};
use crate::wire::Kind;

/// The backlog, between the service thread and the threads that accept.
pub(crate) struct Backlog<T = AcceptedClient, E = ExportedSet> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    /// The descriptor for a program that waits for it.
    exported: E,
    limit: usize,
    /// The process has too few descriptors for the backlog that the program wants.
    is_lowered: bool,
}

struct State<T> {
    ready: VecDeque<T>,
    /// The kinds that the program has asked for.
    wanted: Kinds,
    /// The system's error for the next call.
    error: Option<io::Error>,
    /// The service thread waits for a place.
    is_awaited: bool,
    /// Nobody comes any more.
    is_closed: bool,
    /// The program has the descriptor.
    is_exported: bool,
}

impl<T> Default for State<T> {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            wanted: Kinds::default(),
            error: None,
            is_awaited: false,
            is_closed: false,
            is_exported: false,
        }
    }
}

/// What a program accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    Stream,
    SeqPacket,
    /// Of TCP without the protocol.
    Plain,
}

impl From<Kind> for ClientKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Stream => Self::Stream,
            Kind::SeqPacket => Self::SeqPacket,
        }
    }
}

/// A client that waits to be accepted.
pub(crate) enum AcceptedClient {
    Connected(Box<Connection>),
    Plain(TcpStream, SocketAddr),
}

/// What waits in a backlog.
pub(crate) trait Waiting {
    fn kind(&self) -> ClientKind;

    /// It is dropped next, because nobody accepts it.
    fn is_unwanted(&self);
}

/// The descriptor of a listener.
pub(crate) trait Exported {
    /// Makes it readable, which is an edge, too.
    fn show(&self);

    /// Makes it not readable.
    fn hide(&self);
}

/// What the program has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kinds {
    stream: bool,
    seq_packet: bool,
    plain: bool,
}

/// A set that is readable while connections wait.
pub(crate) struct ExportedSet {
    #[cfg_attr(not(unix), allow(dead_code, reason = "it has the descriptor"))]
    registry: Registry,
    poller: StdMutex<Poller>,
}

impl Kinds {
    fn of(&mut self, kind: ClientKind) -> &mut bool {
        match kind {
            ClientKind::Stream => &mut self.stream,
            ClientKind::SeqPacket => &mut self.seq_packet,
            ClientKind::Plain => &mut self.plain,
        }
    }

    /// Whether a client of this kind may wait. Before the program has asked, any may.
    fn allow(mut self, kind: ClientKind) -> bool {
        self == Self::default() || *self.of(kind)
    }
}

impl Waiting for AcceptedClient {
    fn kind(&self) -> ClientKind {
        match self {
            Self::Connected(connection) => connection.info.kind.into(),
            Self::Plain(..) => ClientKind::Plain,
        }
    }

    fn is_unwanted(&self) {
        match self {
            Self::Connected(connection) => {
                tracing::warn!(connection = %connection.info, "is reset: the program accepts another kind, or nobody");
            }
            Self::Plain(_, peer) => {
                tracing::warn!(%peer, "a client of plain TCP is closed: the program accepts others, or nobody");
            }
        }
    }
}

/// How many descriptors the connections in a listener's backlog may have, its other clients, and
/// those that it has refused: an eighth of the process's each. The program needs the others.
pub(super) fn share_of_descriptors() -> usize {
    (descriptors() / 8).max(1)
}

/// The number of descriptors that the process may have.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn descriptors() -> usize {
    usize::MAX
}

/// What a client beyond a full backlog is told. By rdma_cm a rejection has room for 120 bytes.
pub(crate) fn busy_text(limit: usize, is_lowered: bool) -> String {
    let parameter = if is_lowered { "`ulimit -n`" } else { "`Builder::backlog`" };
    format!(
        "its backlog is full: {limit} connections wait for its program, which must accept sooner or raise {parameter}"
    )
}

/// The outcome of an attempt to take a connection.
pub(crate) struct Taken<T = AcceptedClient> {
    pub(crate) outcome: io::Result<T>,
    /// The service thread waits for the place that became free.
    pub(crate) frees_place: bool,
}

impl Backlog {
    /// A backlog of that many connections, as far as the process has descriptors for them.
    pub(crate) fn new(wanted: usize) -> io::Result<Self> {
        let limit = wanted.min(share_of_descriptors()).max(1);
        let poller = Poller::new(1)?;
        let exported =
            ExportedSet { registry: poller.registry().try_clone()?, poller: StdMutex::new(poller) };
        let is_lowered = limit < wanted;
        Ok(Self { state: Mutex::default(), arrived: Condvar::new(), exported, limit, is_lowered })
    }

    pub(crate) fn is_full(&self) -> bool {
        self.state().ready.len() >= self.limit
    }

    /// What a client is told while the backlog is full.
    pub(crate) fn busy_text(&self) -> String {
        busy_text(self.limit, self.is_lowered)
    }

    /// The descriptor, which is readable when a connection can be accepted after
    /// [`export`](Self::export).
    #[cfg(unix)]
    pub(crate) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.exported.registry)
    }
}

impl<T: Waiting, E: Exported> Backlog<T, E> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // No code that can panic runs while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of free places. If these many handshakes need all of them, the next connection
    /// that is taken wakes the service thread.
    pub(crate) fn places(&self, running: usize) -> usize {
        let mut state = self.state();
        let places = self.limit.saturating_sub(state.ready.len());
        state.is_awaited = running >= places;
        places
    }

    /// The kind that the program accepts, if it has asked for one only.
    pub(crate) fn only_kind(&self) -> Option<Kind> {
        match self.state().wanted {
            Kinds { stream: true, seq_packet: false, .. } => Some(Kind::Stream),
            Kinds { stream: false, seq_packet: true, .. } => Some(Kind::SeqPacket),
            _ => None,
        }
    }

    /// Adds a connection, unless the program has asked for the other kind since its handshake began.
    pub(crate) fn push(&self, connection: T) {
        let mut state = self.state();
        let unwanted = if state.is_closed || !state.wanted.allow(connection.kind()) {
            Some(connection)
        } else {
            state.ready.push_back(connection);
            None
        };
        match unwanted {
            None => self.notify(state),
            Some(_) => drop(state),
        }
        unwanted.iter().for_each(Waiting::is_unwanted);
    }

    /// Reports an error to the next call.
    pub(crate) fn fail(&self, error: io::Error) {
        let mut state = self.state();
        if state.error.is_none() {
            state.error = Some(error);
            self.notify(state);
        }
    }

    /// The system accepts again: an error before is no news any more.
    pub(crate) fn works(&self) {
        self.state().error = None;
    }

    /// Drops the connections that nobody has accepted.
    pub(crate) fn close(&self) {
        let unaccepted = {
            let mut state = self.state();
            state.is_closed = true;
            let unaccepted = std::mem::take(&mut state.ready);
            self.notify(state);
            unaccepted
        };
        drop(unaccepted);
    }

    /// Wakes those that wait for a change of the state.
    fn notify(&self, state: MutexGuard<'_, State<T>>) {
        if state.is_exported {
            self.exported.show();
        }
        // A thread that wakes up takes the lock at once.
        drop(state);
        self.arrived.notify_all();
    }

    /// Notes that the program accepts these kinds. Its first call resets those of the others that
    /// came before. Returns whether the service thread waits for their places.
    pub(crate) fn ask_for(&self, kinds: &[ClientKind]) -> bool {
        let mut state = self.state();
        let before = state.wanted;
        kinds.iter().for_each(|kind| *state.wanted.of(*kind) = true);
        let wanted = state.wanted;
        if wanted == before {
            return false;
        }
        let (ready, unwanted): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut state.ready).into_iter().partition(|client: &T| wanted.allow(client.kind()));
        state.ready = ready;
        let frees_place = !unwanted.is_empty() && std::mem::take(&mut state.is_awaited);
        drop(state);
        unwanted.iter().for_each(Waiting::is_unwanted);
        frees_place
    }

    /// Takes the next client of these kinds, and waits for one until then.
    pub(crate) fn take(&self, kinds: &[ClientKind], until: Until) -> Taken<T> {
        let mut state = self.state();
        loop {
            let at = state.ready.iter().position(|client| kinds.contains(&client.kind()));
            let found = at.and_then(|at| state.ready.remove(at)).map(Ok);
            let outcome = found.or_else(|| state.error.take().map(Err));
            let closed = || io::Error::other("the listener's service has ended; the log says why");
            let outcome = outcome.or_else(|| state.is_closed.then(|| Err(closed())));
            if outcome.is_some() || until.is_over() {
                self.take_wake_up(&state);
                let outcome = outcome.unwrap_or_else(|| Err(super::blocking::timed_out(until)));
                let frees_place = outcome.is_ok() && std::mem::take(&mut state.is_awaited);
                return Taken { outcome, frees_place };
            }
            state = self.wait(state, until);
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<T>>, until: Until) -> MutexGuard<'a, State<T>> {
        match until.end() {
            None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Ends the wake-up of the program's descriptor, unless more can be accepted.
    fn take_wake_up(&self, state: &State<T>) {
        if state.is_exported && state.ready.is_empty() && state.error.is_none() {
            self.exported.hide();
        }
    }

    /// Makes the descriptor readable from now on. Without a program that has it, that would be a
    /// system call in vain for each connection.
    #[cfg(unix)]
    pub(crate) fn export(&self) {
        let mut state = self.state();
        let is_first = !std::mem::replace(&mut state.is_exported, true);
        if is_first && (!state.ready.is_empty() || state.error.is_some() || state.is_closed) {
            self.exported.show();
        }
    }
}

impl ExportedSet {
    fn poller(&self) -> StdMutexGuard<'_, Poller> {
        self.poller.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exported for ExportedSet {
    fn show(&self) {
        self.poller().wake();
    }

    fn hide(&self) {
        if let Err(error) = self.poller().wait(Until::Now, |_| ()) {
            tracing::debug!(%error, "the descriptor of a listener stays readable");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{HandshakeMessage, REJECT_DATA, Reject, RejectReason};

    #[test]
    fn the_words_for_a_client_fit_a_rejection_by_rdma_cm() {
        for is_lowered in [false, true] {
            let text = busy_text(65535, is_lowered);
            let bytes = Reject::new(RejectReason::Busy, (0, 0), text.clone()).encode_within(REJECT_DATA);
            let Ok(HandshakeMessage::Reject(told)) = HandshakeMessage::decode(&bytes) else { panic!() };
            assert_eq!(told.text, text);
        }
    }

    #[test]
    fn the_words_name_what_limits_the_backlog() {
        let backlog = Backlog::new(3).unwrap();
        assert!(backlog.busy_text().ends_with("`Builder::backlog`"), "{}", backlog.busy_text());
        if cfg!(target_os = "linux") {
            let lowered = Backlog::new(usize::MAX).unwrap();
            assert!(lowered.busy_text().ends_with("`ulimit -n`"), "{}", lowered.busy_text());
        }
    }
}

/// The hand-over in every order that loom finds: `RUSTFLAGS='--cfg loom' cargo test --lib models::`.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread;

    use super::*;

    struct Arrival(ClientKind);

    impl Waiting for Arrival {
        fn kind(&self) -> ClientKind {
            self.0
        }

        fn is_unwanted(&self) {}
    }

    /// A descriptor that is readable or not.
    #[derive(Default)]
    struct Readable(AtomicBool);

    impl Exported for Readable {
        fn show(&self) {
            self.0.store(true, Ordering::SeqCst);
        }

        fn hide(&self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }

    fn backlog() -> Arc<Backlog<Arrival, Readable>> {
        let (state, arrived) = (Mutex::default(), Condvar::new());
        let exported = Readable::default();
        Arc::new(Backlog { state, arrived, exported, limit: 8, is_lowered: false })
    }

    fn accept(backlog: &Backlog<Arrival, Readable>, until: Until) -> bool {
        backlog.ask_for(&[ClientKind::Stream]);
        backlog.take(&[ClientKind::Stream], until).outcome.is_ok()
    }

    #[test]
    fn threads_that_accept_get_what_arrives() {
        loom::model(|| {
            let backlog = backlog();
            let accepting = [0; 2].map(|_| {
                let backlog = backlog.clone();
                thread::spawn(move || assert!(accept(&backlog, Until::Event)))
            });
            for _ in 0..2 {
                backlog.push(Arrival(ClientKind::Stream));
            }
            accepting.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    /// A call that finds nothing ends the wake-up of the descriptor while a connection arrives.
    #[test]
    fn the_descriptor_shows_what_waits() {
        loom::model(|| {
            let backlog = backlog();
            backlog.export();
            let service = {
                let backlog = backlog.clone();
                thread::spawn(move || (0..2).for_each(|_| backlog.push(Arrival(ClientKind::Stream))))
            };
            let mut accepted = (0..2).filter(|_| accept(&backlog, Until::Now)).count();
            service.join().unwrap();
            let waits = !backlog.state().ready.is_empty();
            assert_eq!(backlog.exported.0.load(Ordering::SeqCst), waits, "it shows one that has gone");
            while backlog.exported.0.load(Ordering::SeqCst) {
                accepted += usize::from(accept(&backlog, Until::Now));
            }
            assert_eq!(accepted, 2, "a connection waits, and the descriptor does not show it");
        });
    }

    #[test]
    fn the_end_of_a_listener_ends_an_accept() {
        loom::model(|| {
            let backlog = backlog();
            let accepting = {
                let backlog = backlog.clone();
                thread::spawn(move || assert!(!accept(&backlog, Until::Event)))
            };
            backlog.close();
            accepting.join().unwrap();
        });
    }
}
