//! Frames over TCP with beats: each side sends a sign of life once a second.

use std::convert::Infallible;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{ClosableTransport, FrameTransport, LINGER_LIMIT, LinkCloser, WORD_LIMIT};
use super::queue::FrameQueue;
use super::{Frame, FrameError, FrameKind, read_frame, write_frame};
use crate::interrupt;

/// The interval between beats.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// The silence after which a peer counts as dead: its process is stopped, or the network is cut.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(8);

/// How often a waiting side checks for signals.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The beat of a side that serves others first.
const QUEUED: &[u8] = b"queued";

/// A connection with a helper thread that reads and sends beats.
#[derive(Debug)]
pub struct Tcp {
    shared: Arc<TcpShared>,
    /// A frame that was peeked at and not taken.
    ahead: Option<Result<Frame, FrameError>>,
    thread: Option<JoinHandle<()>>,
    /// Those that wait for the peer's place, until its set-up is complete.
    others: Option<Others>,
}

/// Those that wait for a peer's place.
#[derive(Debug)]
struct Others {
    waiting: Arc<AtomicU32>,
    /// The time that the peer has for a step while others wait.
    step_limit: Duration,
}

/// Ends a connection from another thread.
#[derive(Debug)]
struct TcpCloser(Arc<TcpShared>);

impl LinkCloser for TcpCloser {
    /// Both sides read the connection's end.
    fn close(&self) {
        // A failure is ignored, because the connection may have ended before.
        let _ = self.0.stream.shutdown(Shutdown::Both);
    }
}

#[derive(Debug)]
struct TcpShared {
    stream: TcpStream,
    /// Frames that have been read and not taken.
    frames: FrameQueue,
    /// Held while a frame is written, so that frames do not interleave.
    writing: Mutex<()>,
    /// Whether this side makes the peer wait for others.
    keeps_waiting: AtomicBool,
    /// Whether the peer makes this side wait for others.
    is_kept_waiting: AtomicBool,
}

impl Tcp {
    /// Starts the helper thread for a connection.
    ///
    /// # Errors
    ///
    /// The system cannot create a thread.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(WORD_LIMIT))?;
        let shared = Arc::new(TcpShared {
            stream,
            frames: FrameQueue::default(),
            writing: Mutex::new(()),
            keeps_waiting: AtomicBool::new(false),
            is_kept_waiting: AtomicBool::new(false),
        });
        let attended = Arc::clone(&shared);
        let thread = thread::Builder::new().name("control".to_owned()).spawn(move || {
            let Err(error) = attended.attend();
            attended.frames.end(error);
        })?;
        Ok(Self { shared, ahead: None, thread: Some(thread), others: None })
    }

    /// Gives the peer less time for each step of its set-up while this counter is above 0: the
    /// number of those that wait for its place. The limit ends with the set-up.
    pub fn give_way_to(&mut self, waiting: Arc<AtomicU32>, step_limit: Duration) {
        self.others = Some(Others { waiting, step_limit });
    }

    /// The time that the peer has at the moment for a step that it may make within `limit`.
    pub(super) fn limit_now(&self, limit: Duration) -> Duration {
        match &self.others {
            Some(others) if others.waiting.load(Ordering::Relaxed) > 0 => limit.min(others.step_limit),
            _ => limit,
        }
    }

    /// Waits for a frame. While the peer serves others first, the time limit does not run, if that
    /// is given as `queued`, which is called once.
    fn wait(
        &mut self,
        limit: Option<Duration>,
        mut queued: Option<&mut dyn FnMut()>,
    ) -> Result<(), FrameError> {
        let mut begun = Instant::now();
        let mut was_reported = false;
        while self.ahead.is_none() {
            interrupt::check()?;
            let now = Instant::now();
            if let Some(queued) = &mut queued
                && self.shared.is_kept_waiting.load(Ordering::Relaxed)
            {
                // The peer has all of its time once this side's turn has come.
                begun = now;
                if !was_reported {
                    was_reported = true;
                    queued();
                }
            }
            let left = match limit {
                None => PEER_CHECK_INTERVAL,
                Some(limit) => {
                    let at_present = self.limit_now(limit);
                    let left = (begun + at_present).saturating_duration_since(now);
                    if left.is_zero() && at_present < limit {
                        return Err(FrameError::GaveWay(at_present));
                    }
                    left
                }
            };
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.ahead = self.shared.frames.take(now + left.min(PEER_CHECK_INTERVAL));
        }
        Ok(())
    }

    /// This side's address.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.shared.stream.local_addr()
    }

    /// The peer's IP address and TCP port.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        self.shared.stream.peer_addr()
    }

    /// Tells the peer whether it must wait for others.
    pub fn keep_waiting(&self, keeps: bool) {
        if self.shared.keeps_waiting.swap(keeps, Ordering::Relaxed) != keeps {
            // A failure is ignored, because the reading thread notices a peer that has gone.
            let _ = self.shared.beat();
        }
    }

    /// The address by which the peer reaches this side, if the system still knows it.
    pub(super) fn local_ip(&self) -> IpAddr {
        let address = self.shared.stream.local_addr();
        address.map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip().to_canonical())
    }

    /// The next frame, without taking it.
    pub(super) fn peek(&mut self) -> Option<&Result<Frame, FrameError>> {
        if self.ahead.is_none() {
            self.ahead = self.shared.frames.take(Instant::now());
        }
        self.ahead.as_ref()
    }

    /// Waits briefly until the helper thread has read everything: closing a connection with unread
    /// data would discard data that the peer has not read.
    fn drain(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let deadline = Instant::now() + LINGER_LIMIT;
        let _ = self.shared.stream.shutdown(Shutdown::Write);
        loop {
            match self.shared.frames.take(deadline) {
                Some(Ok(_)) if Instant::now() < deadline => {}
                Some(Err(_)) => break,
                _ => {
                    let _ = self.shared.stream.shutdown(Shutdown::Both);
                    break;
                }
            }
        }
        self.shared.frames.close();
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
        self.wait(limit, None)?;
        self.ahead.take().expect("a frame has been awaited")
    }

    fn await_frame(&mut self, limit: Option<Duration>, queued: &mut dyn FnMut()) -> Result<(), FrameError> {
        self.wait(limit, Some(queued))
    }

    fn set_up_is_complete(&mut self) {
        self.others = None;
    }

    fn linger(&mut self) -> io::Result<()> {
        self.drain();
        Ok(())
    }
}

impl ClosableTransport for Tcp {
    fn closer(&self) -> Box<dyn LinkCloser> {
        Box::new(TcpCloser(Arc::clone(&self.shared)))
    }
}

impl TcpShared {
    fn write(&self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        // A thread that panicked while writing left no inconsistent state but the stream's.
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write_frame(&mut &self.stream, kind, payload)
    }

    fn beat(&self) -> io::Result<()> {
        self.write(FrameKind::Beat, if self.keeps_waiting.load(Ordering::Relaxed) { QUEUED } else { b"" })
    }

    /// Reads frames until the end, and sends beats. While the queue is full, it reads nothing, so
    /// that the peer cannot send more.
    fn attend(&self) -> Result<Infallible, FrameError> {
        let (mut beat, mut heard) = (Instant::now() + BEAT, Instant::now());
        let mut held = None;
        loop {
            let now = Instant::now();
            if now >= beat {
                beat = now + BEAT;
                match self.beat() {
                    // Without reading, this alone shows that the connection has ended.
                    Err(error) if held.is_some() && error.kind() != io::ErrorKind::WouldBlock => {
                        return Err(error.into());
                    }
                    // A failure is ignored: a peer that reads nothing also sends nothing, or has
                    // closed its end.
                    _ => {}
                }
            }
            let left = beat.saturating_duration_since(now);
            if let Some(frame) = held.take() {
                held = self.frames.push(frame, left).err();
                // Beats of the peer are behind the frames that are not read.
                heard = Instant::now();
                continue;
            }
            if !self.is_readable(left)? {
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
                    held = Some(frame);
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

/// A stream whose reads together end by a deadline.
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
