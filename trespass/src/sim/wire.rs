//! A virtual TCP connection between a peer and the service thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::transport::tcp::Socket;

/// The latency of a byte.
const HOP: Duration = Duration::from_micros(100);
/// Bytes that a direction holds.
pub(super) const CAPACITY: usize = 64 << 10;
/// The time that a system call of the service thread takes, and each of its bytes.
const CALL: Duration = Duration::from_micros(2);
const BYTE: Duration = Duration::from_nanos(3);

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
    /// The sender has closed its socket.
    gone: Option<Instant>,
    /// A side that goes on sending has always more: the next bytes.
    endless: Option<Box<dyn FnMut() -> Vec<u8>>>,
    /// The reader takes all bytes at once, whatever else happens.
    is_drained: bool,
    /// The writer has found no room, and then the reader has made some.
    is_full: bool,
    room_at: Option<Instant>,
}

impl Pipe {
    fn room(&self) -> usize {
        let held: usize = self.chunks.iter().map(|(_, chunk)| chunk.len()).sum();
        CAPACITY.saturating_sub(held)
    }

    /// The bytes that have come first.
    fn first(&mut self, now: Instant) -> Option<&mut Vec<u8>> {
        if self.chunks.is_empty()
            && let Some(next) = &mut self.endless
        {
            self.chunks.push_back((now, next()));
        }
        self.chunks.front_mut().filter(|(at, _)| *at <= now).map(|(_, chunk)| chunk)
    }

    /// Moves bytes that have come into a buffer. Returns their number.
    fn take(&mut self, now: Instant, buffer: &mut [u8]) -> usize {
        let mut taken = 0;
        while taken < buffer.len()
            && let Some(chunk) = self.first(now)
        {
            let len = chunk.len().min(buffer.len() - taken);
            buffer[taken..taken + len].copy_from_slice(&chunk[..len]);
            chunk.drain(..len);
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
            taken += len;
        }
        taken
    }
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
    /// Bytes that it still reads.
    pub(super) reads: usize,
    pub(super) account: Rc<SocketAccount>,
}

/// The work of a socket, which the simulation knows, too.
#[derive(Debug)]
pub(super) struct SocketAccount {
    work: Cell<SocketWork>,
    /// The most system calls of each kind before the next reset.
    most: Cell<usize>,
}

/// System calls, and the bytes that they have moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SocketWork {
    pub(super) reads: usize,
    pub(super) writes: usize,
    pub(super) bytes: usize,
}

impl Default for SocketAccount {
    fn default() -> Self {
        Self { work: Cell::default(), most: Cell::new(usize::MAX) }
    }
}

impl SocketAccount {
    pub(super) fn work(&self) -> SocketWork {
        self.work.get()
    }

    /// The number of system calls.
    pub(super) fn calls(&self) -> usize {
        self.work.get().reads + self.work.get().writes
    }

    /// The number of bytes.
    pub(super) fn bytes(&self) -> usize {
        self.work.get().bytes
    }

    /// Counts from 0 again. Beyond `most` reads, or writes, the test fails, because they might never end.
    pub(super) fn reset(&self, most: usize) {
        self.work.set(SocketWork::default());
        self.most.set(most);
    }

    fn add(&self, more: SocketWork) {
        let SocketWork { reads, writes, bytes } = self.work.get();
        let work =
            SocketWork { reads: reads + more.reads, writes: writes + more.writes, bytes: bytes + more.bytes };
        assert!(work.reads.max(work.writes) <= self.most.get(), "a turn has no end: {work:?}");
        self.work.set(work);
    }
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
        let endless = pipe.endless.as_ref().map(|_| seen + HOP);
        arrivals.filter(|at| *at > seen).chain(endless).min()
    }

    /// The same, or when a side that found no room finds some.
    pub(super) fn next_event(&self, side: WireSide, seen: Instant) -> Option<Instant> {
        let room = self.0[side as usize].room_at.filter(|at| *at > seen);
        self.next_arrival(side, seen).into_iter().chain(room).min()
    }

    /// Whether the end of what the other side sends has arrived.
    pub(super) fn has_ended(&self, side: WireSide, now: Instant) -> bool {
        self.0[1 - side as usize].ended.is_some_and(|at| at <= now)
    }

    /// Has a side go on sending, whenever the other one reads.
    pub(super) fn send_endlessly(&mut self, side: WireSide, next: impl FnMut() -> Vec<u8> + 'static) {
        self.sent_by(side).endless = Some(Box::new(next));
    }

    /// Has a side read all that comes, whenever the other one writes.
    pub(super) fn drain(&mut self, side: WireSide) {
        self.received_by(side).is_drained = true;
    }
}

impl SimSocket {
    pub(super) fn new(wire: &Rc<RefCell<Wire>>, side: WireSide, clock: &Clock) -> Self {
        let (wire, clock) = (wire.clone(), clock.clone());
        Self { wire, side, clock, sends: usize::MAX, reads: usize::MAX, account: Rc::default() }
    }

    /// Whether the other side has ended, and nothing is left to read.
    pub(super) fn has_ended(&mut self) -> bool {
        let now = self.call(true);
        let mut wire = self.wire.borrow_mut();
        wire.has_ended(self.side, now) && wire.received_by(self.side).first(now).is_none()
    }

    /// A system call. Returns when it looks.
    fn call(&self, read: bool) -> Instant {
        let (reads, writes) = (usize::from(read), usize::from(!read));
        self.account.add(SocketWork { reads, writes, bytes: 0 });
        self.pass(CALL)
    }

    fn moved(&self, bytes: usize) {
        self.account.add(SocketWork { bytes, ..SocketWork::default() });
        self.pass(BYTE * bytes as u32);
    }

    /// Time passes while the service thread works.
    fn pass(&self, time: Duration) -> Instant {
        if self.side == WireSide::Listener {
            self.clock.set(self.clock.get() + time);
        }
        self.clock.get()
    }
}

impl Read for SimSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let now = self.call(true);
        let wire = &mut *self.wire.borrow_mut();
        let pipe = wire.received_by(self.side);
        let mut taken = 0;
        for slice in slices {
            let most = slice.len().min(self.reads - taken);
            taken += pipe.take(now, &mut slice[..most]);
        }
        if taken == 0 {
            let has_ended = pipe.chunks.is_empty() && pipe.ended.is_some_and(|at| at <= now);
            return if has_ended { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        if std::mem::take(&mut pipe.is_full) {
            pipe.room_at = Some(now + HOP);
        }
        self.reads -= if self.reads == usize::MAX { 0 } else { taken };
        self.moved(taken);
        Ok(taken)
    }
}

impl Write for SimSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(bytes)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket for SimSocket {
    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let now = self.call(false);
        let wire = &mut *self.wire.borrow_mut();
        if wire.received_by(self.side).gone.is_some_and(|at| at <= now) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let pipe = wire.sent_by(self.side);
        let asked = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let len = if pipe.is_drained { asked } else { asked.min(pipe.room()) };
        pipe.is_full |= len < asked;
        if len == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let arrives = if pipe.is_drained { 0 } else { len.min(self.sends) };
        let mut bytes = Vec::with_capacity(arrives);
        for slice in slices {
            bytes.extend_from_slice(&slice[..slice.len().min(arrives - bytes.len())]);
        }
        self.sends -= if self.sends == usize::MAX { 0 } else { arrives };
        if !bytes.is_empty() {
            pipe.chunks.push_back((now + HOP, bytes));
        }
        self.moved(len);
        Ok(len)
    }

    fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        let at = self.call(false) + HOP;
        if how != Shutdown::Read {
            self.wire.borrow_mut().sent_by(self.side).ended.get_or_insert(at);
        }
        Ok(())
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        let at = self.clock.get() + HOP;
        let wire = &mut *self.wire.borrow_mut();
        let pipe = wire.sent_by(self.side);
        pipe.ended.get_or_insert(at);
        pipe.gone = Some(at);
    }
}
