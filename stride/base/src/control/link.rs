//! One end of the control connection, over any transport.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::{ControlError, ControlMessage, Frame, FrameError, FrameKind, Tcp};
use crate::interrupt;

/// The time that a peer has to send its first message, and to take a message from this side.
pub(super) const WORD_LIMIT: Duration = Duration::from_secs(5);

/// The time that a peer has for a step of the set-up, such as registering memory.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// The time that a peer has to read why this side gave up.
pub(super) const LINGER_LIMIT: Duration = Duration::from_millis(500);

/// Carries the control frames between two sides.
pub trait FrameTransport {
    /// Sends a frame.
    ///
    /// # Errors
    ///
    /// The peer does not take it in time, or the connection ended.
    fn write(&mut self, kind: FrameKind, payload: &[u8]) -> io::Result<()>;

    /// Receives a frame, within `limit` if that is given.
    ///
    /// # Errors
    ///
    /// No frame arrived in time, or the bytes are no valid frame.
    fn read(&mut self, limit: Option<Duration>) -> Result<Frame, FrameError>;

    /// Waits until a frame has arrived, within `limit` if that is given. A peer that serves others
    /// first may take longer; the transport then calls `waiting`.
    ///
    /// # Errors
    ///
    /// No frame arrived in time.
    fn await_frame(&mut self, _: Option<Duration>, _waiting: &mut dyn FnMut()) -> Result<(), FrameError> {
        Ok(())
    }

    /// The peer has made every step of its set-up, so that no limit for hurry applies any more.
    fn set_up_is_complete(&mut self) {}

    /// Waits briefly for the peer to take the last frame.
    ///
    /// # Errors
    ///
    /// The connection ended.
    fn linger(&mut self) -> io::Result<()>;
}

/// A transport that another thread can end.
pub trait ClosableTransport: FrameTransport + Send {
    /// What ends the connection.
    fn closer(&self) -> Box<dyn LinkCloser>;
}

/// Ends a connection from another thread.
pub trait LinkCloser: fmt::Debug + Send {
    /// Ends the connection, so that a thread that waits for its peer goes on.
    fn close(&self);
}

/// The state of a live peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerStatus {
    /// It has sent nothing new.
    Quiet,
    /// It has sent a message that this side has not received yet.
    MessageWaiting,
}

/// One end of the control connection.
#[derive(Debug)]
pub struct ControlLink<W = Tcp> {
    wire: W,
    peer: String,
    heard: bool,
}

impl<W: FrameTransport> ControlLink<W> {
    /// Uses a transport to the peer of this name.
    pub fn new(wire: W, peer: String) -> Self {
        Self { wire, peer, heard: false }
    }

    /// The peer's name for messages to the user.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The transport below.
    pub fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Sends a message.
    pub fn send(&mut self, message: &ControlMessage) -> Result<(), ControlError> {
        let payload = message.to_json().map_err(|error| self.malformed(error.to_string()))?;
        self.wire.write(FrameKind::Message, &payload).map_err(|error| self.write_failed(error))
    }

    /// Sends the reason why this side gives up, if the peer still reads.
    pub fn fail(&mut self, reason: &str) {
        // A failure is ignored, because a peer that has gone needs no reason.
        let _ = self.wire.write(FrameKind::Failure, reason.as_bytes()).and_then(|()| self.wire.linger());
    }

    /// Receives a message of the set-up.
    pub fn receive(&mut self) -> Result<ControlMessage, ControlError> {
        self.receive_within(Some(self.limit()))
    }

    /// Waits until the peer has time for this side; calls `waiting` if it serves others first.
    pub fn await_turn(&mut self, mut waiting: impl FnMut()) -> Result<(), ControlError> {
        let limit = Some(self.limit());
        self.wire.await_frame(limit, &mut waiting).map_err(|error| self.read_failed(error, limit))
    }

    fn limit(&self) -> Duration {
        if self.heard { STEP_LIMIT } else { WORD_LIMIT }
    }

    /// Receives a message that the peer sends when it has finished measuring.
    ///
    /// The wait has no time limit, but ends if the peer dies.
    pub fn receive_result(&mut self) -> Result<ControlMessage, ControlError> {
        self.receive_within(None)
    }

    /// Sends a message and receives the peer's.
    pub fn exchange(&mut self, message: &ControlMessage) -> Result<ControlMessage, ControlError> {
        self.send(message)?;
        self.receive()
    }

    /// The error for a message out of order.
    pub fn unexpected(&self, message: &ControlMessage, expected: &str) -> ControlError {
        self.malformed(format!("`{}` in place of `{expected}`", message.name()))
    }

    /// The error for a broken connection.
    pub fn lost(&self, error: io::Error) -> ControlError {
        ControlError::lost(self.peer.clone(), error)
    }

    /// The error for a message with invalid content.
    pub fn malformed(&self, what: String) -> ControlError {
        ControlError::Malformed { peer: self.peer.clone(), what }
    }

    /// Waits briefly for the peer to take the last message.
    pub(super) fn linger(&mut self) -> Result<(), ControlError> {
        self.wire.linger().map_err(|error| ControlError::lost(self.peer.clone(), error))
    }

    pub(super) fn receive_within(&mut self, limit: Option<Duration>) -> Result<ControlMessage, ControlError> {
        let frame = self.wire.read(limit).map_err(|error| self.read_failed(error, limit))?;
        self.heard = true;
        match frame.kind {
            // A transport with beats consumes them itself.
            FrameKind::Beat => Err(self.malformed("a beat in place of a message".to_owned())),
            FrameKind::Failure => Err(self.peer_failed(&frame.payload)),
            FrameKind::Message => match ControlMessage::from_json(&frame.payload) {
                Ok(ControlMessage::Refused(refusal)) => {
                    Err(ControlError::RefusedByPeer { peer: self.peer.clone(), refusal })
                }
                Ok(message) => {
                    if matches!(message, ControlMessage::Begin { .. }) {
                        self.wire.set_up_is_complete();
                    }
                    Ok(message)
                }
                Err(error) => Err(self.malformed(error.to_string())),
            },
        }
    }

    /// Makes one printable line of the peer's text, whatever the peer sent.
    fn peer_failed(&self, payload: &[u8]) -> ControlError {
        let text = String::from_utf8_lossy(payload);
        let reason = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1000).collect();
        ControlError::PeerFailed { peer: self.peer.clone(), reason }
    }

    /// Answers a peer of another version with a failure, whose frame shows it this side's version.
    fn read_failed(&mut self, error: FrameError, limit: Option<Duration>) -> ControlError {
        let error = ControlError::reading(&self.peer, error, limit);
        if matches!(error, ControlError::OtherVersion { .. }) {
            self.fail(&error.to_string());
        }
        error
    }

    /// A peer that gave up may have sent its reason before it closed the stream.
    fn write_failed(&mut self, error: io::Error) -> ControlError {
        match self.receive_within(Some(WORD_LIMIT)) {
            Err(
                said @ (ControlError::PeerFailed { .. }
                | ControlError::RefusedByPeer { .. }
                | ControlError::OtherVersion { .. }),
            ) => said,
            _ => ControlError::lost(self.peer.clone(), error),
        }
    }
}

impl ControlLink {
    /// The address by which the peer reaches this side.
    pub fn local_ip(&self) -> IpAddr {
        self.wire.local_ip()
    }

    /// The time that the peer has at the moment for a step that it may make within `limit`: less
    /// while others wait for its place.
    pub fn limit_now(&self, limit: Duration) -> Duration {
        self.wire.limit_now(limit)
    }

    /// The error for a message that was lost on the way.
    pub fn silent(&self) -> ControlError {
        ControlError::MessageLost { peer: self.peer.clone() }
    }

    /// The error for a peer that has nothing more to ask.
    pub fn peer_is_done(&self) -> ControlError {
        ControlError::PeerIsDone { peer: self.peer.clone() }
    }

    /// Checks without waiting whether the peer lives, and whether it has sent a message.
    pub fn peer_status(&mut self) -> Result<PeerStatus, ControlError> {
        interrupt::check()?;
        match self.wire.peek() {
            None => Ok(PeerStatus::Quiet),
            Some(Ok(Frame { kind: FrameKind::Message, .. })) => Ok(PeerStatus::MessageWaiting),
            Some(_) => match self.receive() {
                Ok(message) => Err(self.unexpected(&message, "failure")),
                Err(error) => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests;
