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
    /// A request of the peer, which the caller performs before it waits again.
    Request(Request),
    /// Nothing, and the deadline has passed.
    TimeOver,
}

impl Mux<Stream> {
    /// Waits for what `look` finds, or a request of the peer. `look` gets the number of requests and
    /// messages that the peer has not ended, and makes no calls on the mux.
    pub(crate) fn wait_or_serve<T>(
        &self,
        until: Until,
        look: &mut dyn FnMut(u32) -> Option<T>,
    ) -> Result<FoundFirst<T>, MuxError> {
        self.first(until, &mut |state| look(state.engine.in_flight()).map(Ok))
    }

    /// Begins a request, as [`request`](Self::request) does.
    pub(crate) fn request_or_serve(
        &self,
        bytes: &mut Option<MuxBytes<'_>>,
        until: Until,
    ) -> Result<FoundFirst<PendingAnswer>, MuxError> {
        Ok(match self.first(until, &mut |state| state.request(bytes, None, false))? {
            FoundFirst::Own(id) => FoundFirst::Own(PendingAnswer::new(&self.shared, id, None)),
            FoundFirst::Request(request) => FoundFirst::Request(request),
            FoundFirst::TimeOver => FoundFirst::TimeOver,
        })
    }

    /// Waits for the answer to a request. A second call after a request of the peer goes on.
    pub(crate) fn answer_or_serve(
        &self,
        pending: &mut PendingAnswer,
        until: Until,
    ) -> Result<FoundFirst<Vec<u8>>, MuxError> {
        let (id, limit) = (pending.id, self.shared.core.max_message());
        let mut partial = std::mem::take(&mut pending.partial);
        let found = self.first(until, &mut |state| state.next_answer(id, &mut partial, limit));
        match pending.found(found, |found| matches!(found, FoundFirst::Own(false)))? {
            FoundFirst::Own(true) => Ok(FoundFirst::Own(partial)),
            FoundFirst::Own(false) => Err(MuxError::Unanswered),
            other => {
                pending.partial = partial;
                Ok(match other {
                    FoundFirst::Request(request) => FoundFirst::Request(request),
                    _ => FoundFirst::TimeOver,
                })
            }
        }
    }

    /// The number of the next request.
    pub(crate) fn next_number(&self) -> u64 {
        self.shared.core.with(|state| state.engine.next_number())
    }

    /// Waits until the peer has answered or ended all requests before this number.
    pub(crate) fn flush_or_serve(&self, before: u64, until: Until) -> Result<FoundFirst<()>, MuxError> {
        self.first(until, &mut |state| match &state.failure {
            Some(failure) => Some(Err(failure.clone())),
            None => state.engine.has_answers_before(before).then_some(Ok(())),
        })
    }

    fn first<T>(
        &self,
        until: Until,
        look: &mut dyn FnMut(&mut State) -> Option<Result<T, MuxError>>,
    ) -> Result<FoundFirst<T>, MuxError> {
        let found = self.shared.wait_for(until, |state| match look(state) {
            Some(own) => Some(own.map(FoundFirst::Own)),
            None => match state.next_arrival()? {
                Ok(Some(arrival)) => Some(Ok(FoundFirst::Request(Request::new(&self.shared, arrival)))),
                Ok(None) => Some(Err(MuxError::Closed)),
                Err(error) => Some(Err(error)),
            },
        })?;
        Ok(found.unwrap_or(FoundFirst::TimeOver))
    }
}
