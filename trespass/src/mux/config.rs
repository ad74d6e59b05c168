//! The limits of a mux.

use super::frame::{Capacity, MOST_REQUESTS, WINDOWS};

/// What one side of a [`Mux`](super::Mux) accepts from its peer. The peer keeps to it.
///
/// Of the requests of the peer, a mux holds at most [`max_requests`](Self::max_requests) times
/// [`window`](Self::window) bytes that the program has not taken: 64 MiB by default. Of the answers
/// it holds at most a window for each request that the program has in flight.
#[derive(Clone, Debug)]
#[must_use]
pub struct MuxConfig {
    pub(super) capacity: Capacity,
    pub(super) max_message: usize,
}

impl MuxConfig {
    /// The default limits.
    pub fn new() -> Self {
        Self { capacity: Capacity { requests: 256, window: 256 << 10 }, max_message: 64 << 20 }
    }

    /// The requests and one-way messages that the peer may have at a time, 1 to 1,048,576: more are
    /// set to the nearest. Default: 256.
    pub fn max_requests(mut self, requests: u32) -> Self {
        self.capacity.requests = requests.clamp(1, MOST_REQUESTS);
        self
    }

    /// The bytes of a request, or of the answers to one, that the peer may send before the program
    /// takes them, 4 KiB to 1 GiB: others are set to the nearest. Each frame counts 20 bytes more
    /// than its data. A longer message arrives while a call takes it. Default: 256 KiB.
    pub fn window(mut self, bytes: usize) -> Self {
        self.capacity.window = (bytes as u64).clamp(*WINDOWS.start(), *WINDOWS.end());
        self
    }

    /// The bytes of a message that a call takes in one piece. A longer one fails that call with
    /// [`MuxError::TooLong`](super::MuxError::TooLong), and its request is given up. Default: 64
    /// MiB.
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }
}

impl Default for MuxConfig {
    fn default() -> Self {
        Self::new()
    }
}
