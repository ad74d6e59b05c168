//! The numbers of a mux.

/// The numbers of a mux since its connection was made. Frames for each batch show how many share a
/// write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MuxStats {
    /// Requests and one-way messages of this side that the peer has not ended.
    pub in_flight: u32,
    /// Requests of the peer that have no end.
    pub serving: u32,
    /// Requests and one-way messages that this side has sent.
    pub requests: u64,
    /// Answers that this side has sent, one for each message.
    pub answers: u64,
    /// Requests that this side has given up, by a drop or a deadline.
    pub cancelled: u64,
    /// Requests of the peer that this side has refused.
    pub refused: u64,
    /// Frames that this side has sent.
    pub frames_sent: u64,
    /// Frames of the peer.
    pub frames_received: u64,
    /// Batches of frames, each of which is one write.
    pub batches: u64,
    /// Bytes of this side with the headers.
    pub bytes_sent: u64,
    /// Bytes of the peer with the headers.
    pub bytes_received: u64,
}
