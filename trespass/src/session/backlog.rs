//! The connections of a listener that are established and wait for the program to accept them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mio::Registry;

use crate::session::connection::Connection;
use crate::session::readiness::{Poller, Until};
use crate::wire::Kind;

/// The backlog, between the service thread and the threads that accept.
pub(crate) struct Backlog {
    state: Mutex<State>,
    arrived: Condvar,
    /// The descriptor for a program that waits for it.
    exported: ExportedSet,
    limit: usize,
    /// The process has too few descriptors for the backlog that the program wants.
    is_lowered: bool,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Connection>,
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

/// A set of the two kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kinds {
    stream: bool,
    seq_packet: bool,
}

/// A set that is readable while connections wait.
struct ExportedSet {
    #[cfg_attr(not(unix), allow(dead_code, reason = "it has the descriptor"))]
    registry: Registry,
    poller: Mutex<Poller>,
}

impl Kinds {
    fn of(&mut self, kind: Kind) -> &mut bool {
        match kind {
            Kind::Stream => &mut self.stream,
            Kind::SeqPacket => &mut self.seq_packet,
        }
    }

    /// Whether a connection of this kind may wait. Before the program has asked, any may.
    fn allow(mut self, kind: Kind) -> bool {
        self == Self::default() || *self.of(kind)
    }
}

/// Logs a connection that is dropped next.
fn reset_unwanted(connection: &Connection) {
    tracing::warn!(connection = %connection.info, "is reset: the program accepts the other kind, or nobody");
}

/// Of this many descriptors that the process may have, the waiting connections of a listener may
/// take one or two. The program needs the others.
const DESCRIPTORS_LEFT: usize = 8;

/// The number of descriptors that the process may have.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn descriptors() -> usize {
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
pub(crate) struct Taken {
    pub(crate) outcome: io::Result<Connection>,
    /// The service thread waits for the place that became free.
    pub(crate) frees_place: bool,
}

impl Backlog {
    /// A backlog of that many connections, as far as the process has descriptors for them.
    pub(crate) fn new(wanted: usize) -> io::Result<Self> {
        let limit = wanted.min(descriptors() / DESCRIPTORS_LEFT).max(1);
        let poller = Poller::new(1)?;
        let exported = ExportedSet { registry: poller.registry().try_clone()?, poller: Mutex::new(poller) };
        let is_lowered = limit < wanted;
        Ok(Self { state: Mutex::default(), arrived: Condvar::new(), exported, limit, is_lowered })
    }

    /// What a client is told while the backlog is full.
    pub(crate) fn busy_text(&self) -> String {
        busy_text(self.limit, self.is_lowered)
    }

    fn state(&self) -> MutexGuard<'_, State> {
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
            Kinds { stream: true, seq_packet: false } => Some(Kind::Stream),
            Kinds { stream: false, seq_packet: true } => Some(Kind::SeqPacket),
            _ => None,
        }
    }

    /// Adds a connection, unless the program has asked for the other kind since its handshake began.
    pub(crate) fn push(&self, connection: Connection) {
        let mut state = self.state();
        let unwanted = if state.is_closed || !state.wanted.allow(connection.info.kind) {
            Some(connection)
        } else {
            state.ready.push_back(connection);
            None
        };
        match unwanted {
            None => self.notify(state),
            Some(_) => drop(state),
        }
        unwanted.iter().for_each(reset_unwanted);
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
    fn notify(&self, state: MutexGuard<'_, State>) {
        if state.is_exported {
            self.exported.poller().wake();
        }
        // A thread that wakes up takes the lock at once.
        drop(state);
        self.arrived.notify_all();
    }

    /// Notes that the program accepts this kind. Its first call resets those of the other kind that
    /// came before. Returns whether the service thread waits for their places.
    pub(crate) fn ask_for(&self, kind: Kind) -> bool {
        let mut state = self.state();
        if std::mem::replace(state.wanted.of(kind), true) {
            return false;
        }
        let wanted = state.wanted;
        let (ready, unwanted): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut state.ready)
            .into_iter()
            .partition(|connection: &Connection| wanted.allow(connection.info.kind));
        state.ready = ready;
        let frees_place = !unwanted.is_empty() && std::mem::take(&mut state.is_awaited);
        drop(state);
        unwanted.iter().for_each(reset_unwanted);
        frees_place
    }

    /// Takes the next connection of this kind, and waits for one until then.
    pub(crate) fn take(&self, kind: Kind, until: Until) -> Taken {
        let mut state = self.state();
        loop {
            let at = state.ready.iter().position(|connection| connection.info.kind == kind);
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

    fn wait<'a>(&self, state: MutexGuard<'a, State>, until: Until) -> MutexGuard<'a, State> {
        match until.end() {
            None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Ends the wake-up of the program's descriptor, unless more can be accepted.
    fn take_wake_up(&self, state: &State) {
        if state.is_exported
            && state.ready.is_empty()
            && state.error.is_none()
            && let Err(error) = self.exported.poller().wait(Until::Now, |_| ())
        {
            tracing::debug!(%error, "the descriptor of a listener stays readable");
        }
    }

    /// The descriptor, which is readable when a connection can be accepted after
    /// [`export`](Self::export).
    #[cfg(unix)]
    pub(crate) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.exported.registry)
    }

    /// Makes the descriptor readable from now on. Without a program that has it, that would be a
    /// system call in vain for each connection.
    #[cfg(unix)]
    pub(crate) fn export(&self) {
        let mut state = self.state();
        let is_first = !std::mem::replace(&mut state.is_exported, true);
        if is_first && (!state.ready.is_empty() || state.error.is_some() || state.is_closed) {
            self.exported.poller().wake();
        }
    }
}

impl ExportedSet {
    fn poller(&self) -> MutexGuard<'_, Poller> {
        self.poller.lock().unwrap_or_else(PoisonError::into_inner)
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
