//! A virtual TCP connection between a client and a listener.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The latency of a byte.
const HOP: Duration = Duration::from_micros(100);
/// Bytes that a direction holds.
const CAPACITY: usize = 64 << 10;
/// The time that a system call of the listener takes.
const CALL: Duration = Duration::from_micros(2);

/// Virtual time.
pub(super) type Clock = Rc<Cell<Instant>>;

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireSide {
    Client,
    Listener,
}

/// What one side has sent.
#[derive(Default)]
struct Pipe {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    ended: Option<Instant>,
}

/// Both directions.
#[derive(Default)]
pub(super) struct Wire([Pipe; 2]);

/// The socket of one side.
pub(super) struct SimSocket {
    wire: Rc<RefCell<Wire>>,
    side: WireSide,
    clock: Clock,
    /// Bytes that still reach the wire. The others vanish, as if the program had not sent them.
    pub(super) sends: usize,
    /// System calls and their bytes.
    pub(super) calls: usize,
    pub(super) bytes: usize,
}

impl Wire {
    fn sent_by(&mut self, side: WireSide) -> &mut Pipe {
        &mut self.0[side as usize]
    }

    fn received_by(&mut self, side: WireSide) -> &mut Pipe {
        &mut self.0[1 - side as usize]
    }

    /// When the next bytes or the end arrive at a side after `seen`.
    pub(super) fn next_arrival(&self, side: WireSide, seen: Instant) -> Option<Instant> {
        let pipe = &self.0[1 - side as usize];
        let arrivals = pipe.chunks.iter().map(|(at, _)| *at).chain(pipe.ended);
        arrivals.filter(|at| *at > seen).min()
    }
}

impl SimSocket {
    pub(super) fn new(wire: &Rc<RefCell<Wire>>, side: WireSide, clock: &Clock) -> Self {
        Self { wire: wire.clone(), side, clock: clock.clone(), sends: usize::MAX, calls: 0, bytes: 0 }
    }

    fn call(&mut self) -> Instant {
        self.calls += 1;
        if self.side == WireSide::Listener {
            self.clock.set(self.clock.get() + CALL);
        }
        self.clock.get()
    }
}

impl Read for SimSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let now = self.call();
        let mut wire = self.wire.borrow_mut();
        let pipe = wire.received_by(self.side);
        match pipe.chunks.front_mut() {
            Some((at, chunk)) if *at <= now => {
                let len = chunk.len().min(buffer.len());
                buffer[..len].copy_from_slice(&chunk[..len]);
                chunk.drain(..len);
                if chunk.is_empty() {
                    pipe.chunks.pop_front();
                }
                self.bytes += len;
                Ok(len)
            }
            None if pipe.ended.is_some_and(|at| at <= now) => Ok(0),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for SimSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let now = self.call();
        let mut wire = self.wire.borrow_mut();
        if wire.received_by(self.side).ended.is_some_and(|at| at <= now) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let pipe = wire.sent_by(self.side);
        let held: usize = pipe.chunks.iter().map(|(_, chunk)| chunk.len()).sum();
        let len = bytes.len().min(CAPACITY - held);
        if len == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let sends = len.min(self.sends);
        self.sends -= sends;
        if sends > 0 {
            pipe.chunks.push_back((now + HOP, bytes[..sends].to_vec()));
        }
        self.bytes += len;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        let at = self.clock.get() + HOP;
        self.wire.borrow_mut().sent_by(self.side).ended = Some(at);
    }
}
