//! Frames as one-way messages of a mux.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trespass::Stream;
use trespass::mux::{Mux, MuxConfig, MuxError};

use super::link::{ClosableTransport, FrameTransport, LINGER_LIMIT, LinkCloser};
use super::packets::{CHECK_INTERVAL, FlagCloser};
use super::{Frame, FrameError, FrameKind, read_frame, write_frame};
use crate::interrupt;

/// A mux, which carries frames before and after the measured requests.
#[derive(Debug)]
pub struct MuxFrames {
    /// The mux that carries both.
    pub mux: Mux,
    is_closed: Arc<AtomicBool>,
}

impl MuxFrames {
    /// Uses a new stream, whose peer does the same.
    ///
    /// # Errors
    ///
    /// The stream belongs to the parent of this process.
    pub fn over(stream: Stream, config: &MuxConfig) -> io::Result<Self> {
        Ok(Self { mux: Mux::over(stream, config)?, is_closed: Arc::default() })
    }

    /// Waits for a message.
    fn receive(&self, deadline: Option<Instant>) -> Result<Vec<u8>, FrameError> {
        loop {
            interrupt::check()?;
            if self.is_closed.load(Ordering::Relaxed) {
                return Err(io::Error::from(ErrorKind::ConnectionAborted).into());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(io::Error::from(ErrorKind::TimedOut).into());
            }
            match self.mux.next_request_within(left.unwrap_or(CHECK_INTERVAL).min(CHECK_INTERVAL)) {
                Err(MuxError::DeadlinePassed { .. }) => {}
                Err(error) => return Err(io::Error::from(error).into()),
                Ok(None) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(Some(mut request)) => return Ok(request.bytes().map_err(io::Error::from)?),
            }
        }
    }
}

impl FrameTransport for MuxFrames {
    fn write(&mut self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, kind, payload)?;
        Ok(self.mux.send_one_way(bytes)?)
    }

    fn read(&mut self, limit: Option<Duration>) -> Result<Frame, FrameError> {
        let bytes = self.receive(limit.map(|limit| Instant::now() + limit))?;
        read_frame(&mut &bytes[..])
    }

    fn linger(&mut self) -> io::Result<()> {
        self.mux.drain(Instant::now() + LINGER_LIMIT)
    }
}

impl ClosableTransport for MuxFrames {
    fn closer(&self) -> Box<dyn LinkCloser> {
        Box::new(FlagCloser(Arc::clone(&self.is_closed)))
    }
}
