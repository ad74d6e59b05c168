//! Frames as messages of trespass.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trespass::SeqPacket;

use super::link::{ClosableTransport, FrameTransport, LinkCloser, WORD_LIMIT};
use super::{Frame, FrameError, FrameKind, HEADER_LENGTH, MAX_PAYLOAD, read_frame, write_frame};
use crate::interrupt;

/// How often a waiting side checks for signals, and whether another thread has ended the connection.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A connection of trespass, which carries frames before and after the measured messages.
#[derive(Debug)]
pub struct SeqPacketFrames {
    /// The connection that carries both.
    pub socket: SeqPacket,
    frame: Vec<u8>,
    is_closed: Arc<AtomicBool>,
}

/// Ends the wait for a frame from another thread.
#[derive(Debug)]
pub(super) struct FlagCloser(pub(super) Arc<AtomicBool>);

impl LinkCloser for FlagCloser {
    fn close(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl SeqPacketFrames {
    /// Wraps a connection.
    pub fn new(socket: SeqPacket) -> Self {
        Self { socket, frame: vec![0; HEADER_LENGTH + MAX_PAYLOAD], is_closed: Arc::default() }
    }

    /// Waits for a message. Returns its length.
    fn receive(&mut self, deadline: Option<Instant>) -> Result<usize, FrameError> {
        loop {
            self.socket.set_read_timeout(Some(next_wait(&self.is_closed, deadline)?))?;
            match self.socket.recv(&mut self.frame) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                received => return Ok(received?),
            }
        }
    }
}

/// The time until a waiting side checks again.
///
/// # Errors
///
/// A signal, another thread has ended the connection, or the deadline has passed.
pub(super) fn next_wait(is_closed: &AtomicBool, deadline: Option<Instant>) -> Result<Duration, FrameError> {
    interrupt::check()?;
    if is_closed.load(Ordering::Relaxed) {
        return Err(io::Error::from(ErrorKind::ConnectionAborted).into());
    }
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if left.is_some_and(|left| left.is_zero()) {
        return Err(io::Error::from(ErrorKind::TimedOut).into());
    }
    Ok(left.unwrap_or(CHECK_INTERVAL).min(CHECK_INTERVAL))
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
        let len = self.receive(limit.map(|limit| Instant::now() + limit))?;
        self.socket.set_read_timeout(None)?;
        read_frame(&mut &self.frame[..len])
    }

    /// Dropping the connection lingers.
    fn linger(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ClosableTransport for SeqPacketFrames {
    fn closer(&self) -> Box<dyn LinkCloser> {
        Box::new(FlagCloser(Arc::clone(&self.is_closed)))
    }
}
