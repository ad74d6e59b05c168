//! An engine that threads or tasks share, and what moves its bytes.
//!
//! Calls change the engine under a short lock. Whoever has the connection's turn moves bytes by
//! [`Core::pump`]: it fills a batch, writes it, and fills the next one with all that was queued in
//! between. So small frames that come during a write share the next one.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use super::config::MuxConfig;
use super::engine::requesting::Found;
use super::engine::{AnswerRoom, Arrival, CHUNK, Engine, Taken};
use super::error::MuxError;
use super::frame::Ending;
use super::handles::TimeLimit;
use super::payload::MuxBytes;

/// Bytes that one read takes at most.
const INPUT: usize = 64 << 10;
/// Reads of one [`Core::pump`], so that its caller looks for what it waits for.
const MOST_READS: usize = 2;
/// Queued bytes that are sent although the mux is corked.
const CORKED: usize = 4 * CHUNK;

/// A connection that does not wait. `None` means that it would.
pub(super) trait Wire {
    /// Reads some bytes. 0 is the end.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>>;
    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>>;
}

/// What a call has appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Bytes of a message, whose end has not arrived.
    Part,
    /// The rest of a message, perhaps of 0 bytes.
    Message,
    /// Nothing: no message follows.
    End,
}

/// An engine, and why it is of no further use.
pub(super) struct State {
    pub(super) engine: Engine,
    pub(super) failure: Option<MuxError>,
    /// The peer knows that nothing follows.
    is_shut_down: bool,
    corked: bool,
    /// The task that moves bytes, and waits.
    #[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
    pub(super) driver: Option<Waker>,
}

/// The bytes on their way in and out.
struct Buffers {
    batch: Vec<u8>,
    sent: usize,
    /// The connection has taken only a part of the batch.
    is_full: bool,
    input: Box<[u8]>,
}

pub(super) struct Core {
    state: Mutex<State>,
    buffers: Mutex<Buffers>,
    max_message: usize,
}

impl Core {
    pub(super) fn new(config: &MuxConfig) -> Self {
        let engine = Engine::new(config.capacity);
        let state = State {
            engine,
            failure: None,
            is_shut_down: false,
            corked: false,
            #[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
            driver: None,
        };
        let input = vec![0; INPUT].into_boxed_slice();
        let buffers = Buffers { batch: Vec::new(), sent: 0, is_full: false, input };
        Self { state: Mutex::new(state), buffers: Mutex::new(buffers), max_message: config.max_message }
    }

    /// Uses the state, and then wakes those for whom it has changed.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let done = act(&mut state);
        Self::unlock(state);
        done
    }

    /// Wakes those for whom the state has changed. They may call the mux, so that nothing is locked.
    fn wake(&self) {
        Self::unlock(self.lock());
    }

    fn unlock(mut state: MutexGuard<'_, State>) {
        let (woken, unused) = (state.engine.take_woken(), state.engine.take_unused());
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        drop(unused);
    }

    /// No call of the program runs while it is locked.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the use of the connection. The first reason counts.
    pub(super) fn fail(&self, error: MuxError) {
        self.lock().fail(error);
        self.wake();
    }

    /// Whether the peer has broken the protocol, and was not told.
    pub(super) fn must_shut_down(&self) -> bool {
        let mut state = self.lock();
        let is_violation = matches!(state.failure, Some(MuxError::Protocol(_)));
        is_violation && !std::mem::replace(&mut state.is_shut_down, true)
    }

    /// Holds frames back, or no more.
    pub(super) fn cork(&self, corked: bool) {
        self.lock().corked = corked;
    }

    /// Whether a call that has queued something should send it.
    pub(super) fn wants_to_send(&self) -> bool {
        let state = self.lock();
        state.failure.is_none()
            && state.engine.has_output()
            && (!state.corked || state.engine.queued() >= CORKED)
    }

    /// Whether the next [`write`](Self::write) would not wait, and have something.
    pub(super) fn can_write(&self) -> bool {
        let is_full = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).is_full;
        !is_full && self.with(|state| state.failure.is_none() && state.engine.has_output())
    }

    /// Whether the connection has taken all.
    pub(super) fn is_sent(&self) -> bool {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.sent == buffers.batch.len() && self.lock().engine.is_sent()
    }

    /// Writes and reads while neither waits, for a while. Returns whether anything has moved.
    pub(super) fn pump(&self, wire: &mut dyn Wire) -> bool {
        let wrote = self.write(wire);
        let read = self.read(wire);
        wrote || read
    }

    /// Writes all that there is room for.
    pub(super) fn write(&self, wire: &mut dyn Wire) -> bool {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = self.write_from(&mut buffers, wire);
        drop(buffers);
        self.wake();
        moved
    }

    fn write_from(&self, buffers: &mut Buffers, wire: &mut dyn Wire) -> bool {
        let mut moved = false;
        loop {
            if buffers.sent == buffers.batch.len() {
                buffers.batch.clear();
                (buffers.sent, buffers.is_full) = (0, false);
                let mut state = self.lock();
                if state.failure.is_none() {
                    state.engine.next_batch(&mut buffers.batch);
                }
                if buffers.batch.is_empty() {
                    return moved;
                }
            }
            match wire.write(&buffers.batch[buffers.sent..]) {
                Ok(Some(count)) => (buffers.sent, moved) = (buffers.sent + count, true),
                Ok(None) => {
                    buffers.is_full = true;
                    return moved;
                }
                Err(error) => {
                    self.lock().fail(MuxError::of_connection(&error));
                    return true;
                }
            }
        }
    }

    fn read(&self, wire: &mut dyn Wire) -> bool {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = self.read_into(&mut buffers.input, wire);
        drop(buffers);
        self.wake();
        moved
    }

    fn read_into(&self, input: &mut [u8], wire: &mut dyn Wire) -> bool {
        let mut moved = false;
        for _ in 0..MOST_READS {
            let error = match wire.read(input) {
                Ok(None) => break,
                Ok(Some(0)) => MuxError::Closed,
                Ok(Some(count)) => {
                    moved = true;
                    match self.lock().engine.receive(&input[..count], Instant::now()) {
                        Ok(()) => continue,
                        Err(violation) => violation.into(),
                    }
                }
                Err(error) => MuxError::of_connection(&error),
            };
            self.lock().fail(error);
            break;
        }
        moved
    }

    pub(super) fn max_message(&self) -> usize {
        self.max_message
    }
}

impl State {
    /// Ends the use of the connection. The first reason counts.
    fn fail(&mut self, error: MuxError) {
        if self.failure.is_none() {
            tracing::debug!(%error, "a mux has ended");
            self.failure = Some(error);
            self.engine.wake_all();
        }
    }

    /// Has the task look for what was queued.
    #[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
    pub(super) fn wake_driver(&mut self) {
        self.engine.wake(self.driver.take());
    }

    /// Begins a request, once the peer accepts one more. Empties `bytes` then.
    pub(super) fn request(
        &mut self,
        bytes: &mut Option<MuxBytes<'_>>,
        deadline: Option<TimeLimit>,
        one_way: bool,
    ) -> Option<Result<u64, MuxError>> {
        if let Some(failure) = &self.failure {
            return Some(Err(failure.clone()));
        }
        if !self.engine.can_request() || one_way && !self.engine.has_queue_room() {
            return None;
        }
        // What a wait for room has left.
        let time = deadline.map(|deadline| deadline.at.saturating_duration_since(Instant::now()));
        self.engine.request(bytes.take()?, time, one_way).map(Ok)
    }

    /// Appends what has arrived of the answers to a request.
    pub(super) fn next_part(&mut self, id: u64, into: &mut Vec<u8>) -> Option<Result<Arrived, MuxError>> {
        Some(match self.engine.take_answer(id, into) {
            Found::Part => Ok(Arrived::Part),
            Found::Message => Ok(Arrived::Message),
            Found::End(Ending::Done) => Ok(Arrived::End),
            Found::End(Ending::Refused) => Err(MuxError::Refused),
            Found::End(Ending::Unanswered) => Err(MuxError::Unanswered),
            Found::End(Ending::Cancelled) => Err(MuxError::Cancelled),
            Found::Nothing => Err(self.failure.clone()?),
        })
    }

    /// Appends what has arrived of an answer, until it is whole. Returns whether there was one.
    pub(super) fn next_answer(
        &mut self,
        id: u64,
        into: &mut Vec<u8>,
        limit: usize,
    ) -> Option<Result<bool, MuxError>> {
        loop {
            if self.failure.is_none() && !self.engine.must_take_answer(id) {
                return None;
            }
            let arrived = self.next_part(id, into)?;
            if into.len() > limit {
                return Some(Err(MuxError::TooLong { limit }));
            }
            match arrived {
                Ok(Arrived::Part) => (),
                other => return Some(other.map(|arrived| arrived == Arrived::Message)),
            }
        }
    }

    /// The next request of the peer. `None` inside means that none will come.
    pub(super) fn next_arrival(&mut self) -> Option<Result<Option<Arrival>, MuxError>> {
        match (self.engine.next_arrival(), &self.failure) {
            (Some(arrival), _) => Some(Ok(Some(arrival))),
            (None, Some(MuxError::Closed)) => Some(Ok(None)),
            (None, Some(failure)) => Some(Err(failure.clone())),
            (None, None) => None,
        }
    }

    /// The next request of the peer that has wholly arrived, with its bytes.
    pub(super) fn next_whole_arrival(&mut self) -> Option<Result<(Arrival, Vec<u8>), MuxError>> {
        let Some(arrival) = self.engine.next_whole_arrival() else { return self.failure.clone().map(Err) };
        let mut bytes = Vec::new();
        self.engine.take_body(arrival.id, &mut bytes);
        Some(Ok((arrival, bytes)))
    }

    /// Appends what has arrived of a request.
    pub(super) fn next_body_part(
        &mut self,
        id: u64,
        into: &mut Vec<u8>,
    ) -> Option<Result<Arrived, MuxError>> {
        Some(match self.engine.take_body(id, into) {
            Some(Taken::Part) => Ok(Arrived::Part),
            Some(Taken::Message) => Ok(Arrived::Message),
            Some(Taken::End) => Ok(Arrived::End),
            Some(Taken::Nothing) => Err(self.failure.clone()?),
            None => Err(MuxError::Cancelled),
        })
    }

    /// Appends what has arrived of a request, until it is whole.
    pub(super) fn next_body(
        &mut self,
        id: u64,
        into: &mut Vec<u8>,
        limit: usize,
    ) -> Option<Result<(), MuxError>> {
        while into.len() <= limit {
            if self.failure.is_none() && !self.engine.must_take_body(id) {
                return None;
            }
            match self.next_body_part(id, into)? {
                Ok(Arrived::Part) => (),
                Ok(_) if into.len() <= limit => return Some(Ok(())),
                Ok(_) => break,
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Err(MuxError::TooLong { limit }))
    }

    /// Sends an answer, once the one before is sent. Empties `bytes` then.
    pub(super) fn answer(
        &mut self,
        id: u64,
        bytes: &mut Option<MuxBytes<'_>>,
        is_last: bool,
    ) -> Option<Result<(), MuxError>> {
        if let Some(failure) = &self.failure {
            return Some(Err(failure.clone()));
        }
        match self.engine.answer_room(id) {
            AnswerRoom::Full => None,
            AnswerRoom::Cancelled => Some(Err(MuxError::Cancelled)),
            AnswerRoom::Room => {
                self.engine.answer(id, bytes.take()?, is_last);
                Some(Ok(()))
            }
        }
    }

    /// Ends the answers to a request, once the last one is sent.
    pub(super) fn end_answers(&mut self, id: u64) -> Option<Result<(), MuxError>> {
        if let Some(failure) = &self.failure {
            return Some(Err(failure.clone()));
        }
        match self.engine.answer_room(id) {
            AnswerRoom::Full => None,
            AnswerRoom::Cancelled => Some(Err(MuxError::Cancelled)),
            AnswerRoom::Room => {
                self.engine.end_answers(id);
                Some(Ok(()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::frame::{Capacity, HEADER, HELLO, LAST, MESSAGE_END, MuxHeader, Purpose};
    use super::*;

    #[test]
    fn a_peer_gets_the_time_that_a_wait_has_left() {
        let core = Core::new(&MuxConfig::new());
        let after = Duration::from_secs(60);
        let limit = TimeLimit { at: Instant::now() + Duration::from_secs(1), after };
        let (mut batch, hello) = (Vec::new(), Capacity { requests: 1, window: 4096 }.encode());
        core.with(|state| {
            state.engine.receive(&hello, Instant::now()).unwrap();
            state.request(&mut Some(b"?".into()), Some(limit), false).unwrap().unwrap();
            state.engine.next_batch(&mut batch);
        });
        let value = u32::from_le_bytes(batch[HELLO + 4..HELLO + 8].try_into().unwrap());
        assert!((1..=1000).contains(&value), "{value} ms");
    }

    #[test]
    fn messages_without_an_answer_wait_while_others_are_not_sent() {
        let core = Core::new(&MuxConfig::new());
        core.with(|state| {
            state.engine.receive(&Capacity { requests: 100, window: 4096 }.encode(), Instant::now()).unwrap();
            let message = vec![0; 1 << 20];
            for _ in 0..4 {
                assert!(state.request(&mut Some(message.clone().into()), None, true).is_some());
            }
            let mut bytes = Some(message.into());
            assert!(state.request(&mut bytes, None, true).is_none() && bytes.is_some());
            assert!(state.request(&mut bytes, None, false).is_some(), "others have a bound of their own");
        });
    }

    /// Otherwise the peer decides how much memory a call takes.
    #[test]
    fn a_call_takes_no_more_of_a_request_than_its_limit() {
        let core = Core::new(&MuxConfig::new());
        core.with(|state| {
            state.engine.receive(&Capacity { requests: 1, window: 4096 }.encode(), Instant::now()).unwrap();
            let id = 0;
            let mut begin = MuxHeader::data(Purpose::Request, 0, id, 100_000).encode().to_vec();
            begin.resize(begin.len() + 100_000, 7);
            state.engine.receive(&begin, Instant::now()).unwrap();
            let mut rest = MuxHeader::data(Purpose::RequestData, 0, id, 100_000).encode().to_vec();
            rest.resize(rest.len() + 100_000, 7);
            state.engine.receive(&rest, Instant::now()).unwrap();
            let mut bytes = Vec::new();
            let found = state.next_body(id, &mut bytes, 150_000);
            assert!(matches!(found, Some(Err(MuxError::TooLong { limit: 150_000 }))), "{found:?}");
        });
    }

    #[test]
    fn a_call_for_a_whole_message_fails_with_the_connection() {
        let core = Core::new(&MuxConfig::new());
        let mut bytes = Vec::new();
        core.with(|state| {
            state.engine.receive(&Capacity { requests: 1, window: 4096 }.encode(), Instant::now()).unwrap();
            let begin = MuxHeader::data(Purpose::Request, 0, 0, 100).encode();
            state.engine.receive(&begin, Instant::now()).unwrap();
            let own = state.request(&mut Some(b"?".into()), None, false).unwrap().unwrap();
            assert!(state.next_body(0, &mut bytes, 1000).is_none());
            assert!(state.next_answer(own, &mut bytes, 1000).is_none());
            state.fail(MuxError::Closed);
            assert!(matches!(state.next_body(0, &mut bytes, 1000), Some(Err(MuxError::Closed))));
            assert!(matches!(state.next_answer(own, &mut bytes, 1000), Some(Err(MuxError::Closed))));
        });
    }

    #[test]
    fn the_end_of_the_answers_waits_for_the_last_one() {
        let core = Core::new(&MuxConfig::new());
        core.with(|state| {
            state.engine.receive(&Capacity { requests: 1, window: 4096 }.encode(), Instant::now()).unwrap();
            let request = MuxHeader::data(Purpose::Request, LAST | MESSAGE_END, 0, 0).encode();
            state.engine.receive(&request, Instant::now()).unwrap();
            let answer = vec![0; 5000];
            assert!(state.answer(0, &mut Some(answer.into()), false).unwrap().is_ok());
            assert!(state.end_answers(0).is_none(), "the window has no room for it");
        });
    }

    /// A wire that takes some bytes.
    struct Narrow(usize);

    impl Wire for Narrow {
        fn read(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
            Ok(None)
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
            let count = bytes.len().min(self.0);
            self.0 -= count;
            Ok((count > 0).then_some(count))
        }
    }

    #[test]
    fn bytes_that_the_connection_has_not_taken_are_not_sent() {
        let core = Core::new(&MuxConfig::new());
        core.pump(&mut Narrow(HELLO - 1));
        assert!(!core.is_sent() && !core.can_write(), "the connection is full");
        core.pump(&mut Narrow(1));
        assert!(core.is_sent());
    }

    #[test]
    fn nothing_is_sent_after_a_failure() {
        let core = Core::new(&MuxConfig::new());
        core.fail(MuxError::Closed);
        let mut wire = Narrow(HELLO);
        core.pump(&mut wire);
        assert_eq!(wire.0, HELLO);
    }

    #[test]
    fn a_corked_mux_sends_once_64_kib_are_queued() {
        let core = Core::new(&MuxConfig::new());
        let hello = Capacity { requests: 100, window: 4096 }.encode();
        core.with(|state| state.engine.receive(&hello, Instant::now())).unwrap();
        core.pump(&mut Narrow(HELLO));
        core.cork(true);
        let request = vec![0; 1024 - HEADER];
        for sent in 0..64 {
            assert!(!core.wants_to_send(), "{sent} KiB are queued");
            core.with(|state| state.request(&mut Some((&request).into()), None, false)).unwrap().unwrap();
        }
        assert!(core.wants_to_send());
        let mut wire = Narrow(usize::MAX);
        core.pump(&mut wire);
        assert_eq!((usize::MAX - wire.0, core.wants_to_send()), (64 << 10, false));
    }

    /// A wire that takes all, and brings the hello of a peer.
    #[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
    struct FirstBytes(Option<[u8; HELLO]>);

    #[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
    impl Wire for FirstBytes {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
            Ok(self.0.take().map(|hello| {
                buffer[..HELLO].copy_from_slice(&hello);
                HELLO
            }))
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
            Ok(Some(bytes.len()))
        }
    }

    #[test]
    #[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
    fn a_waker_calls_the_mux_that_wakes_it() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU32, Ordering};

        use super::super::engine::{WaitCause, WaitPlace};

        struct Calling(Arc<Core>, AtomicU32);

        impl std::task::Wake for Calling {
            fn wake(self: Arc<Self>) {
                // The calls that lock both the state and the bytes.
                assert!(self.0.is_sent() && !self.0.can_write());
                self.0.pump(&mut FirstBytes(None));
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }

        let core = Arc::new(Core::new(&MuxConfig::new()));
        let calling = Arc::new(Calling(core.clone(), AtomicU32::new(0)));
        let (waker, mut places) = (calling.clone().into(), [WaitPlace::default(), WaitPlace::default()]);
        core.with(|state| {
            state.engine.wait(WaitCause::Sent, &mut places[0], &waker);
            state.engine.wait(WaitCause::Room { one_way: false }, &mut places[1], &waker);
        });
        let hello = Capacity { requests: 1, window: 4096 }.encode();
        core.pump(&mut FirstBytes(Some(hello)));
        assert_eq!(calling.1.load(Ordering::Relaxed), 2, "one is sent, and one may request");
    }

    #[test]
    #[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
    fn wakers_are_dropped_without_a_lock() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU32, Ordering};

        use super::super::engine::{WaitCause, WaitPlace};
        use super::super::frame::{LAST, MESSAGE_END, MuxHeader, Purpose};

        /// The last owner of a task whose future has handles of the mux.
        struct Owner(Arc<Core>, Arc<AtomicU32>);

        impl std::task::Wake for Owner {
            fn wake(self: Arc<Self>) {}
        }

        impl Drop for Owner {
            fn drop(&mut self) {
                if self.0.state.try_lock().is_ok() {
                    self.1.fetch_add(1, Ordering::Relaxed);
                }
            }
        }

        let (core, free) = (Arc::new(Core::new(&MuxConfig::new())), Arc::new(AtomicU32::new(0)));
        let owner = || Waker::from(Arc::new(Owner(core.clone(), free.clone())));
        let mut bytes = Capacity { requests: 1, window: 4096 }.encode().to_vec();
        let begin = MuxHeader::control(Purpose::Request, 0, 0);
        bytes.extend(MuxHeader { flags: LAST | MESSAGE_END, ..begin }.encode());
        core.with(|state| state.engine.receive(&bytes, Instant::now())).unwrap();
        core.with(State::next_arrival).unwrap().unwrap();
        core.with(|state| state.request(&mut Some(b"?".into()), None, false)).unwrap().unwrap();
        let mut place = WaitPlace::default();
        let mut wait = |cause: WaitCause| {
            let waker = owner();
            core.with(|state| {
                state.engine.wait(cause, &mut place, &waker);
                // The engine has the last reference, once the lock is free.
                waker
            });
        };
        for cause in [WaitCause::Answer(0), WaitCause::Change(0), WaitCause::Sent, WaitCause::Arrival] {
            wait(cause);
            wait(cause);
        }
        // Both of the first two, and all but the last of a place.
        let replaced = free.load(Ordering::Relaxed);
        assert_eq!(replaced, 5, "those that others have replaced");
        core.with(|state| state.engine.cancel(0));
        core.with(|state| state.engine.release(0));
        assert_eq!(free.load(Ordering::Relaxed), 7, "those of requests that were given up");
    }
}
