//! Frames between the thread that reads a connection and the thread that takes them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Frame, FrameError};

/// The bytes after which a queue takes no further frame. It is more than a peer sends before it
/// waits for an answer.
pub(super) const ROOM: usize = 256 * 1024;

/// A queue that holds [`ROOM`] and one frame at most, and then the end of the connection.
#[derive(Debug, Default)]
pub(super) struct FrameQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    frames: VecDeque<Frame>,
    bytes: usize,
    /// The reason why no more frames come, until it is taken.
    end: Option<FrameError>,
    has_ended: bool,
    /// Nobody takes frames any more.
    is_closed: bool,
}

impl FrameQueue {
    /// Adds a frame, and waits for room until `limit` is over. Returns a frame that has no room.
    pub(super) fn push(&self, frame: Frame, limit: Duration) -> Result<(), Frame> {
        let state = self.state();
        let waited =
            self.changed.wait_timeout_while(state, limit, |state| state.bytes >= ROOM && !state.is_closed);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return Ok(());
        }
        if state.bytes >= ROOM {
            return Err(frame);
        }
        state.bytes += cost(&frame);
        state.frames.push_back(frame);
        self.changed.notify_all();
        Ok(())
    }

    /// Adds the reason why no more frames come.
    pub(super) fn end(&self, error: FrameError) {
        let mut state = self.state();
        (state.end, state.has_ended) = (Some(error), true);
        self.changed.notify_all();
    }

    /// Takes the next frame, or the reason why none comes. `None` if neither arrives by `deadline`.
    pub(super) fn take(&self, deadline: Instant) -> Option<Result<Frame, FrameError>> {
        let limit = deadline.saturating_duration_since(Instant::now());
        let waited = self
            .changed
            .wait_timeout_while(self.state(), limit, |state| state.frames.is_empty() && !state.has_ended);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(frame) = state.frames.pop_front() {
            state.bytes -= cost(&frame);
            self.changed.notify_all();
            return Some(Ok(frame));
        }
        state.has_ended.then(|| Err(state.end.take().unwrap_or_else(ended)))
    }

    /// Drops what is there and what comes, because nobody takes it any more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.frames.clear();
        (state.bytes, state.is_closed) = (0, true);
        self.changed.notify_all();
    }

    /// Each change of the state is complete before anything can panic.
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.state().bytes
    }
}

/// The bytes that a frame takes in the queue.
fn cost(frame: &Frame) -> usize {
    size_of::<Frame>() + frame.payload.len()
}

/// The error for reading past the end of the stream.
fn ended() -> FrameError {
    io::Error::from(io::ErrorKind::UnexpectedEof).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::FrameKind;

    fn frame(len: usize) -> Frame {
        Frame { kind: FrameKind::Message, payload: vec![7; len] }
    }

    /// Adds frames until one has no room; returns their number.
    fn fill(queue: &FrameQueue, len: usize) -> usize {
        (0..1_000_000).take_while(|_| queue.push(frame(len), Duration::ZERO).is_ok()).count()
    }

    #[test]
    fn a_queue_holds_bounded_bytes_of_frames_of_any_length() {
        for len in [0, 1, 1000, 65536] {
            let queue = FrameQueue::default();
            let count = fill(&queue, len);
            assert!((ROOM..ROOM + cost(&frame(len))).contains(&queue.bytes()), "{len}: {}", queue.bytes());
            for _ in 0..count {
                assert_eq!(queue.take(Instant::now()).unwrap().unwrap(), frame(len));
            }
            assert_eq!((queue.bytes(), queue.take(Instant::now()).is_none()), (0, true));
        }
    }

    #[test]
    fn the_end_comes_after_the_frames_and_stays() {
        let queue = FrameQueue::default();
        queue.push(frame(3), Duration::ZERO).unwrap();
        queue.end(FrameError::Kind(9));
        assert_eq!(queue.take(Instant::now()).unwrap().unwrap(), frame(3));
        assert!(matches!(queue.take(Instant::now()), Some(Err(FrameError::Kind(9)))));
        assert!(matches!(queue.take(Instant::now()), Some(Err(FrameError::Io(_)))));
    }

    #[test]
    fn one_that_waits_for_room_is_woken() {
        let queue = FrameQueue::default();
        let long = Duration::from_secs(60);
        for close in [false, true] {
            fill(&queue, 1000);
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| queue.push(frame(5), long).is_ok());
                match close {
                    true => queue.close(),
                    false => drop(queue.take(Instant::now())),
                }
                assert!(waiting.join().unwrap());
            });
        }
        assert_eq!(queue.bytes(), 0, "a closed queue keeps nothing");
    }
}
