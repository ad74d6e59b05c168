//! Calls that take requests of the peer while they wait, for callers that perform these themselves.

use super::core::State;
use super::error::MuxError;
use super::handles::{Mux, PendingAnswer, Request};
use super::payload::MuxBytes;
use crate::Stream;
use crate::session::readiness::Until;

/// What a call has found.
pub(crate) enum FoundFirst<T> {
    /// What it waits for.
    Own(T),
    /// A whole request of the peer, which the caller performs before it waits again.
    Request(Request, Vec<u8>),
    /// Nothing, and the deadline has passed.
    TimeOver,
}

/// How long a call waits, and whether it takes requests of the peer while it waits. A request that has
/// not wholly arrived is never taken, so that it holds up no call.
#[derive(Clone, Copy)]
pub(crate) struct Serving {
    pub(crate) until: Until,
    pub(crate) takes_requests: bool,
}

impl Mux<Stream> {
    /// Has all calls on this mux look again, because what they look for has changed.
    pub(crate) fn wake_all(&self) {
        // It fails in a forked child, and at the end of the process. No call waits there.
        if let Ok(mut caller) = self.shared.stream.0.shared() {
            caller.wake_all();
        }
    }

    /// Waits for what `look` finds, or a request of the peer. `look` gets the number of requests and
    /// messages that the peer has not ended, and makes no calls on the mux.
    pub(crate) fn wait_or_serve<T>(
        &self,
        serving: Serving,
        look: &mut dyn FnMut(u32) -> Option<T>,
    ) -> Result<FoundFirst<T>, MuxError> {
        self.first(serving, &mut |state| look(state.engine.in_flight()).map(Ok))
    }

    /// Begins a request, as [`request`](Self::request) does.
    pub(crate) fn request_or_serve(
        &self,
        bytes: &mut Option<MuxBytes<'_>>,
        serving: Serving,
    ) -> Result<FoundFirst<PendingAnswer>, MuxError> {
        Ok(match self.first(serving, &mut |state| state.request(bytes, None, false))? {
            FoundFirst::Own(id) => FoundFirst::Own(PendingAnswer::new(&self.shared, id, None)),
            FoundFirst::Request(request, bytes) => FoundFirst::Request(request, bytes),
            FoundFirst::TimeOver => FoundFirst::TimeOver,
        })
    }

    /// Waits for the answer to a request. A second call after a request of the peer goes on.
    pub(crate) fn answer_or_serve(
        &self,
        pending: &mut PendingAnswer,
        serving: Serving,
    ) -> Result<FoundFirst<Vec<u8>>, MuxError> {
        let (id, limit) = (pending.id, self.shared.core.max_message());
        let mut partial = std::mem::take(&mut pending.partial);
        let found = self.first(serving, &mut |state| state.next_answer(id, &mut partial, limit));
        match pending.found(found, |found| matches!(found, FoundFirst::Own(false)))? {
            FoundFirst::Own(true) => Ok(FoundFirst::Own(partial)),
            FoundFirst::Own(false) => Err(MuxError::Unanswered),
            other => {
                pending.partial = partial;
                Ok(match other {
                    FoundFirst::Request(request, bytes) => FoundFirst::Request(request, bytes),
                    _ => FoundFirst::TimeOver,
                })
            }
        }
    }

    /// The number of the next request.
    pub(crate) fn next_number(&self) -> u64 {
        self.shared.core.with(|state| state.engine.next_number())
    }

    /// Whether the peer has answered or ended all requests before this number, as far as calls know.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "all operations keep their order"))]
    pub(crate) fn has_answers_before(&self, before: u64) -> bool {
        self.shared.core.with(|state| state.engine.has_answers_before(before))
    }

    /// Waits until the peer has answered or ended all requests before this number.
    pub(crate) fn flush_or_serve(&self, before: u64, serving: Serving) -> Result<FoundFirst<()>, MuxError> {
        self.first(serving, &mut |state| match &state.failure {
            Some(failure) => Some(Err(failure.clone())),
            None => state.engine.has_answers_before(before).then_some(Ok(())),
        })
    }

    fn first<T>(
        &self,
        serving: Serving,
        look: &mut dyn FnMut(&mut State) -> Option<Result<T, MuxError>>,
    ) -> Result<FoundFirst<T>, MuxError> {
        let found = self.shared.wait_for(serving.until, |state| {
            if let Some(own) = look(state) {
                return Some(own.map(FoundFirst::Own));
            }
            if !serving.takes_requests {
                return None;
            }
            let arrived = state.next_whole_arrival()?;
            Some(
                arrived
                    .map(|(arrival, bytes)| FoundFirst::Request(Request::new(&self.shared, arrival), bytes)),
            )
        })?;
        Ok(found.unwrap_or(FoundFirst::TimeOver))
    }
}
