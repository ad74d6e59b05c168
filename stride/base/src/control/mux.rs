//! Frames as one-way messages of a mux.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use trespass::Stream;
use trespass::mux::{Arrived, Mux, MuxConfig, MuxError, Request};

use super::link::{ClosableTransport, FrameTransport, LINGER_LIMIT, LinkCloser, WORD_LIMIT};
use super::packets::{FlagCloser, next_wait};
use super::{Frame, FrameError, FrameKind, HEADER_LENGTH, MAX_PAYLOAD, read_frame, write_frame};

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

    /// Waits for a message, which is no longer than a frame.
    fn receive(&self, deadline: Option<Instant>) -> Result<Vec<u8>, FrameError> {
        let (mut message, mut bytes) = (None::<Request>, Vec::new());
        loop {
            let time = next_wait(&self.is_closed, deadline)?;
            // A peer may begin a message, and not go on.
            let arrived = match &mut message {
                Some(message) => message.next_part_within(&mut bytes, time),
                None => self.mux.next_request_within(time).and_then(|next| {
                    message = Some(next.ok_or(MuxError::Closed)?);
                    Ok(Arrived::Part)
                }),
            };
            match arrived {
                Err(MuxError::DeadlinePassed { .. }) => {}
                Err(error) => return Err(io::Error::from(error).into()),
                Ok(_) if bytes.len() > HEADER_LENGTH + MAX_PAYLOAD => {
                    return Err(FrameError::TooLong(bytes.len()));
                }
                Ok(Arrived::Part) => {}
                Ok(Arrived::Message | Arrived::End) => return Ok(bytes),
            }
        }
    }
}

impl FrameTransport for MuxFrames {
    fn write(&mut self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, kind, payload)?;
        Ok(self.mux.send_one_way_within(bytes, WORD_LIMIT)?)
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

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::sync::mpsc;
    use std::thread;

    use trespass::{Builder, Policy};

    use super::*;

    /// The hello of a mux, and the header of a one-way message of 10 bytes.
    const BEGUN: [&[u8]; 2] = [
        b"trespmux\x01\0\0\0\x01\0\0\0\0\0\x01\0\0\0\0\0",
        b"\x01\x07\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0\0\0\0\0",
    ];

    /// Frames over a connection to a peer that writes what it wants.
    fn frames() -> (MuxFrames, Stream) {
        let config = Builder::new().policy(Policy::TcpOnly).build().unwrap();
        let listener = config.bind("127.0.0.1:0").unwrap();
        let peer = config.connect(listener.local_addr().unwrap()).unwrap();
        (MuxFrames::over(listener.accept().unwrap().0, &MuxConfig::new()).unwrap(), peer)
    }

    /// The outcome of a call that must not wait for ever.
    fn ends<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || tell.send(call()));
        told.recv_timeout(Duration::from_secs(60)).expect("the call ends")
    }

    fn is_timeout(error: &FrameError) -> bool {
        matches!(error, FrameError::Io(error) if error.kind() == ErrorKind::TimedOut)
    }

    #[test]
    fn a_message_that_stops_ends_at_the_limit() {
        let (mut frames, mut peer) = frames();
        peer.write_all(&BEGUN.concat()).unwrap();
        let (error, mut frames) =
            ends(|| (frames.read(Some(Duration::from_millis(300))).unwrap_err(), frames));
        assert!(is_timeout(&error), "{error}");
        peer.write_all(b"x").unwrap();
        frames.closer().close();
        let error = ends(move || frames.read(None).unwrap_err());
        assert!(
            matches!(&error, FrameError::Io(error) if error.kind() == ErrorKind::ConnectionAborted),
            "{error}"
        );
    }

    #[test]
    fn a_message_longer_than_a_frame_is_refused() {
        let (mut frames, peer) = frames();
        let peer = Mux::over(peer, &MuxConfig::new()).unwrap();
        peer.send_one_way(vec![0; 1 << 20]).unwrap();
        let reading = thread::spawn(move || frames.read(None).unwrap_err());
        while !reading.is_finished() {
            // Moves the bytes of the message.
            let _ = peer.next_request_within(Duration::from_millis(1));
        }
        assert!(matches!(reading.join().unwrap(), FrameError::TooLong(_)));
    }

    #[test]
    fn a_peer_that_takes_nothing_holds_up_no_write() {
        let (mut frames, peer) = frames();
        let error = ends(move || frames.write(FrameKind::Failure, b"why").unwrap_err());
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        drop(peer);
    }
}
