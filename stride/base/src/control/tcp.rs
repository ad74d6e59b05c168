//! Frames over TCP, and beats: each side says once a second that it is there.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{FrameTransport, LINGER_LIMIT, WORD_LIMIT};
use super::{Frame, FrameError, FrameKind, read_frame, write_frame};
use crate::interrupt;

/// A side says so often that it is there.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// A peer that has said nothing for so long is no more: its process is stopped, or the way to it is cut.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(8);

/// How often whoever waits looks up.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The beat of a side that has others to serve first.
const QUEUED: &[u8] = b"queued";

/// A connection, whose other half is a thread: that one reads, and beats.
#[derive(Debug)]
pub struct Tcp {
    shared: Arc<TcpShared>,
    frames: Receiver<Result<Frame, FrameError>>,
    /// Has been seen, but not taken.
    ahead: Option<Result<Frame, FrameError>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct TcpShared {
    stream: TcpStream,
    /// Is held while a frame is written: two are not mixed.
    writing: Mutex<()>,
    /// Whether the peer has to wait for others.
    keeps_waiting: AtomicBool,
    /// Whether the peer says the same of this side.
    is_kept_waiting: AtomicBool,
}

impl Tcp {
    /// Over this connection.
    ///
    /// # Errors
    ///
    /// There is no thread to be had.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(WORD_LIMIT))?;
        let shared = Arc::new(TcpShared {
            stream,
            writing: Mutex::new(()),
            keeps_waiting: AtomicBool::new(false),
            is_kept_waiting: AtomicBool::new(false),
        });
        let (sender, frames) = channel();
        let attended = Arc::clone(&shared);
        let thread = thread::Builder::new().name("control".to_owned()).spawn(move || {
            if let Err(error) = attended.attend(&sender) {
                // Nobody may be waiting for it any more.
                let _ = sender.send(Err(error));
            }
        })?;
        Ok(Self { shared, frames, ahead: None, thread: Some(thread) })
    }

    /// This side's address.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.shared.stream.local_addr()
    }

    /// The other side's.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        self.shared.stream.peer_addr()
    }

    /// Tells the peer whether it has to wait for others.
    pub fn keep_waiting(&self, keeps: bool) {
        if self.shared.keeps_waiting.swap(keeps, Ordering::Relaxed) != keeps {
            // A peer that is gone is noticed by whoever reads.
            let _ = self.shared.beat();
        }
    }

    /// The address by which the peer reaches this side, if the system still knows it.
    pub(super) fn local_ip(&self) -> IpAddr {
        let address = self.shared.stream.local_addr();
        address.map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip().to_canonical())
    }

    /// What has come, and has not been taken.
    pub(super) fn peek(&mut self) -> Option<&Result<Frame, FrameError>> {
        if self.ahead.is_none() {
            self.ahead = match self.frames.try_recv() {
                Ok(frame) => Some(frame),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(ended())),
            };
        }
        self.ahead.as_ref()
    }

    /// Waits until the other half has nothing to read any more, for a moment: a connection that is closed with something
    /// unread takes along what the peer has not read either.
    fn drain(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let deadline = Instant::now() + LINGER_LIMIT;
        let _ = self.shared.stream.shutdown(Shutdown::Write);
        loop {
            match self.frames.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.shared.stream.shutdown(Shutdown::Both);
                    break;
                }
            }
        }
        let _ = thread.join();
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.drain();
    }
}

impl FrameTransport for Tcp {
    fn write(&mut self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        self.shared.write(kind, payload)
    }

    fn read(&mut self, limit: Option<Duration>) -> Result<Frame, FrameError> {
        self.await_frame(limit, &mut || {})?;
        self.ahead.take().unwrap_or_else(|| Err(ended()))
    }

    fn await_frame(&mut self, limit: Option<Duration>, waiting: &mut dyn FnMut()) -> Result<(), FrameError> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut told = false;
        while self.ahead.is_none() {
            interrupt::check()?;
            let is_kept_waiting = self.shared.is_kept_waiting.load(Ordering::Relaxed);
            if is_kept_waiting && !told {
                told = true;
                waiting();
            }
            let left = deadline
                .map_or(PEER_CHECK_INTERVAL, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() && !is_kept_waiting {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            let pause = if left.is_zero() { PEER_CHECK_INTERVAL } else { left.min(PEER_CHECK_INTERVAL) };
            match self.frames.recv_timeout(pause) {
                Ok(frame) => self.ahead = Some(frame),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.ahead = Some(Err(ended())),
            }
        }
        Ok(())
    }

    fn linger(&mut self) -> io::Result<()> {
        self.drain();
        Ok(())
    }
}

impl TcpShared {
    fn write(&self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        // Whoever panicked while writing has left no state but the stream's.
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write_frame(&mut &self.stream, kind, payload)
    }

    fn beat(&self) -> io::Result<()> {
        self.write(FrameKind::Beat, if self.keeps_waiting.load(Ordering::Relaxed) { QUEUED } else { b"" })
    }

    /// Reads until the end, and beats meanwhile.
    fn attend(&self, frames: &Sender<Result<Frame, FrameError>>) -> Result<(), FrameError> {
        let (mut beat, mut heard) = (Instant::now() + BEAT, Instant::now());
        loop {
            let now = Instant::now();
            if now >= beat {
                beat = now + BEAT;
                // A peer that takes nothing says nothing either, or has closed its end.
                let _ = self.beat();
            }
            if !self.is_readable(beat.saturating_duration_since(now))? {
                match heard.elapsed() {
                    silence if silence > SILENCE_LIMIT => return Err(FrameError::Silence(SILENCE_LIMIT)),
                    _ => continue,
                }
            }
            let frame = read_frame(&mut DeadlineReader {
                stream: &self.stream,
                deadline: Instant::now() + WORD_LIMIT,
            })?;
            heard = Instant::now();
            match frame.kind {
                FrameKind::Beat => self.is_kept_waiting.store(frame.payload == QUEUED, Ordering::Relaxed),
                FrameKind::Message | FrameKind::Failure => {
                    self.is_kept_waiting.store(false, Ordering::Relaxed);
                    // When nobody takes frames any more, they are read all the same: see `drain`.
                    let _ = frames.send(Ok(frame));
                }
            }
        }
    }

    fn is_readable(&self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        let mut streams = [PollFd::new(&self.stream, PollFlags::IN)];
        match poll(&mut streams, Some(&limit)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// The end of the stream, which has been read before.
fn ended() -> FrameError {
    io::Error::from(io::ErrorKind::UnexpectedEof).into()
}

/// A stream whose reads, all together, end by a deadline.
struct DeadlineReader<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}
