//! One end of the connection over which the two sides agree, whatever carries it.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::{ControlError, ControlMessage, Frame, FrameError, FrameKind, Tcp};
use crate::interrupt;

/// How long a peer may take to say its first word, and to take a message off our hands.
pub(super) const WORD_LIMIT: Duration = Duration::from_secs(5);

/// How long a peer may take for a step of the set-up, such as registering memory.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// How long a peer may take to read why this side gave up.
pub(super) const LINGER_LIMIT: Duration = Duration::from_millis(500);

/// What carries frames.
pub trait FrameTransport {
    /// Sends a frame.
    ///
    /// # Errors
    ///
    /// The peer does not take it, or is gone.
    fn write(&mut self, kind: FrameKind, payload: &[u8]) -> io::Result<()>;

    /// Receives a frame, within a time.
    ///
    /// # Errors
    ///
    /// There was none, or it is none.
    fn read(&mut self, limit: Option<Duration>) -> Result<Frame, FrameError>;

    /// Waits until there is a frame, within a time. A peer that has others to serve first may take longer: `waiting` is
    /// called then.
    ///
    /// # Errors
    ///
    /// There was none in time.
    fn await_frame(&mut self, _: Option<Duration>, _waiting: &mut dyn FnMut()) -> Result<(), FrameError> {
        Ok(())
    }

    /// Waits a moment for the peer to take what it was sent last.
    ///
    /// # Errors
    ///
    /// The peer is gone.
    fn linger(&mut self) -> io::Result<()>;
}

/// What a glance at a peer that is there shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerStatus {
    /// It says nothing.
    Quiet,
    /// It has sent a message, which nobody has taken.
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
    /// Over this, with a peer of this name.
    pub fn new(wire: W, peer: String) -> Self {
        Self { wire, peer, heard: false }
    }

    /// Who is at the other end, for people.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// What carries it.
    pub fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Sends a message.
    pub fn send(&mut self, message: &ControlMessage) -> Result<(), ControlError> {
        let payload = serde_json::to_vec(message).map_err(|error| self.malformed(error.to_string()))?;
        self.wire.write(FrameKind::Message, &payload).map_err(|error| self.write_failed(error))
    }

    /// Sends why this side gives up, as far as the peer still listens.
    pub fn fail(&mut self, reason: &str) {
        // The peer may be gone, and then nobody needs to be told.
        let _ = self.wire.write(FrameKind::Failure, reason.as_bytes()).and_then(|()| self.wire.linger());
    }

    /// Receives a message of the set-up.
    pub fn receive(&mut self) -> Result<ControlMessage, ControlError> {
        self.receive_within(Some(self.limit()))
    }

    /// Waits for the peer to have time for this side: `waiting` is called if it has others to serve first.
    pub fn await_turn(&mut self, mut waiting: impl FnMut()) -> Result<(), ControlError> {
        let limit = Some(self.limit());
        self.wire.await_frame(limit, &mut waiting).map_err(|error| self.read_failed(error, limit))
    }

    fn limit(&self) -> Duration {
        if self.heard { STEP_LIMIT } else { WORD_LIMIT }
    }

    /// Receives a message that comes when the peer has finished measuring.
    ///
    /// There is no time limit; a peer that dies meanwhile is noticed.
    pub fn receive_result(&mut self) -> Result<ControlMessage, ControlError> {
        self.receive_within(None)
    }

    /// Sends a message and receives the peer's.
    pub fn exchange(&mut self, message: &ControlMessage) -> Result<ControlMessage, ControlError> {
        self.send(message)?;
        self.receive()
    }

    /// The error for a message that is not the one that belongs here.
    pub fn unexpected(&self, message: &ControlMessage, expected: &str) -> ControlError {
        self.malformed(format!("`{}` in place of `{expected}`", message.name()))
    }

    /// The error for a connection that carries nothing any more.
    pub fn lost(&self, error: io::Error) -> ControlError {
        ControlError::lost(self.peer.clone(), error)
    }

    /// The error for a message with impossible content.
    pub fn malformed(&self, what: String) -> ControlError {
        ControlError::Malformed { peer: self.peer.clone(), what }
    }

    /// Waits a moment for the peer to take what it was sent last.
    pub(super) fn linger(&mut self) -> Result<(), ControlError> {
        self.wire.linger().map_err(|error| ControlError::lost(self.peer.clone(), error))
    }

    pub(super) fn receive_within(&mut self, limit: Option<Duration>) -> Result<ControlMessage, ControlError> {
        let frame = self.wire.read(limit).map_err(|error| self.read_failed(error, limit))?;
        self.heard = true;
        match frame.kind {
            // Where beats are, they do not come so far.
            FrameKind::Beat => Err(self.malformed("a beat in place of a message".to_owned())),
            FrameKind::Failure => Err(self.peer_failed(&frame.payload)),
            FrameKind::Message => match serde_json::from_slice(&frame.payload) {
                Ok(ControlMessage::Refused(refusal)) => {
                    Err(ControlError::RefusedByPeer { peer: self.peer.clone(), refusal })
                }
                read => read.map_err(|error| self.malformed(error.to_string())),
            },
        }
    }

    /// What the peer said is shown as one line of text, whatever it sent.
    fn peer_failed(&self, payload: &[u8]) -> ControlError {
        let text = String::from_utf8_lossy(payload);
        let reason = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1000).collect();
        ControlError::PeerFailed { peer: self.peer.clone(), reason }
    }

    /// Tells a peer of another version why nothing comes of it: it reads our version in the frame.
    fn read_failed(&mut self, error: FrameError, limit: Option<Duration>) -> ControlError {
        let error = ControlError::reading(&self.peer, error, limit);
        if matches!(error, ControlError::OtherVersion { .. }) {
            self.fail(&error.to_string());
        }
        error
    }

    /// A peer that gave up may have said so before its end of the stream was closed.
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

    /// The error for a peer whose message was lost.
    pub fn silent(&self) -> ControlError {
        ControlError::MessageLost { peer: self.peer.clone() }
    }

    /// The error for a peer that has nothing more to ask.
    pub fn peer_is_done(&self) -> ControlError {
        ControlError::PeerIsDone { peer: self.peer.clone() }
    }

    /// Looks whether the peer is there, and whether it has said something, without waiting.
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
