//! Frames as messages of trespass.

use std::io;
use std::time::Duration;

use trespass::SeqPacket;

use super::link::FrameTransport;
use super::{FrameError, FrameKind, HEADER_LENGTH, MAX_PAYLOAD, read_frame, write_frame};
use crate::control::Frame;

/// The time that a peer has to take a frame.
const WORD_LIMIT: Duration = Duration::from_secs(5);

/// A connection of trespass, which carries frames before and after the measured messages.
#[derive(Debug)]
pub struct SeqPacketFrames {
    /// The connection that carries both.
    pub socket: SeqPacket,
    frame: Vec<u8>,
}

impl SeqPacketFrames {
    /// Wraps a connection.
    pub fn new(socket: SeqPacket) -> Self {
        Self { socket, frame: vec![0; HEADER_LENGTH + MAX_PAYLOAD] }
    }
}

impl FrameTransport for SeqPacketFrames {
    fn write(&mut self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, kind, payload)?;
        self.socket.set_write_timeout(Some(WORD_LIMIT))?;
        let sent = self.socket.send(&bytes);
        self.socket.set_write_timeout(None)?;
        sent
    }

    fn read(&mut self, limit: Option<Duration>) -> Result<Frame, FrameError> {
        self.socket.set_read_timeout(limit)?;
        let len = self.socket.recv(&mut self.frame)?;
        self.socket.set_read_timeout(None)?;
        read_frame(&mut &self.frame[..len])
    }

    /// Dropping the connection lingers.
    fn linger(&mut self) -> io::Result<()> {
        Ok(())
    }
}
