//! One connection of its own: what [`Stream`](crate::Stream) and [`SeqPacket`](crate::SeqPacket) are made of.
//!
//! Every call is the same: try; if that has to wait, look for completions for a while ([`Builder::spin`](crate::Builder::spin)); take a
//! turn and try again; then sleep until the system reports something, and so on. There is no thread but the program's. A writer that waits receives meanwhile, and a reader that waits sends.

use std::cell::Cell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use mio::Token;

use crate::lane::{Lane, Refused};
use crate::protocol::{CallError, Sink};
use crate::readiness::{Bell, Lamp, Readiness, Until};

/// The only connection's key in its set.
const CONNECTION: Token = Token(0);

/// What is said of a connection that was given up at its end.
pub(crate) const NOT_ALL_TAKEN: &str = "the peer did not take all within";

/// Between two looks at the clock, so many for completions.
const LOOKS: u32 = 16;

/// Which way a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// To the program.
    Read,
    /// From the program.
    Write,
}

/// What a call does until it need not wait.
trait Call<T> {
    /// Tries.
    fn attempt(&mut self, lane: &mut Lane) -> Result<T, Refused>;

    /// Looks for completions, and all that is to be done before if `all`.
    fn look(&mut self, lane: &mut Lane, all: bool) -> Looked<T> {
        if lane.look(all) { Looked::Moved } else { Looked::Nothing }
    }
}

/// What a look has found.
enum Looked<T> {
    Nothing,
    /// Something, so that it can be tried again.
    Moved,
    /// What the call waits for.
    Done(T),
}

impl<T, F: FnMut(&mut Lane) -> Result<T, Refused>> Call<T> for F {
    fn attempt(&mut self, lane: &mut Lane) -> Result<T, Refused> {
        self(lane)
    }
}

/// A call that fills a buffer, with whatever comes in one frame. `done` is what it returns then.
struct Filling<'a, T, F> {
    buffer: &'a mut [u8],
    attempt: F,
    done: fn(usize) -> T,
}

impl<T, F: FnMut(&mut Lane, &mut [u8]) -> Result<T, Refused>> Call<T> for Filling<'_, T, F> {
    fn attempt(&mut self, lane: &mut Lane) -> Result<T, Refused> {
        (self.attempt)(lane, self.buffer)
    }

    #[inline]
    fn look(&mut self, lane: &mut Lane, all: bool) -> Looked<T> {
        let mut sink = Sink::new(self.buffer);
        let moved = lane.look_for(all, &mut sink);
        match sink.taken() {
            Some(len) => Looked::Done((self.done)(len)),
            None if moved => Looked::Moved,
            None => Looked::Nothing,
        }
    }
}

/// How calls wait.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    nonblocking: Cell<bool>,
    read: Cell<Option<Duration>>,
    write: Cell<Option<Duration>>,
}

impl Patience {
    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.set(nonblocking);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.get()
    }

    pub(crate) fn set(&self, side: Side, timeout: Option<Duration>) -> io::Result<()> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a timeout of zero is none: set_nonblocking(true) makes calls that do not wait, and None waits for ever",
            ));
        }
        self.cell(side).set(timeout);
        Ok(())
    }

    pub(crate) fn get(&self, side: Side) -> Option<Duration> {
        self.cell(side).get()
    }

    /// How long a call that begins now waits.
    pub(crate) fn begin(&self, side: Side) -> Until {
        if self.nonblocking.get() {
            Until::Now
        } else {
            Until::Event.or(self.get(side).and_then(|timeout| Instant::now().checked_add(timeout)))
        }
    }

    fn cell(&self, side: Side) -> &Cell<Option<Duration>> {
        match side {
            Side::Read => &self.read,
            Side::Write => &self.write,
        }
    }
}

/// A connection, what reports its events, and how its calls wait.
pub(crate) struct Engine {
    pub(crate) lane: Lane,
    pub(crate) patience: Patience,
    pub(crate) linger: Cell<Duration>,
    bell: Bell,
    lamp: Lamp,
}

impl Engine {
    pub(crate) fn new(mut lane: Lane) -> io::Result<Self> {
        let bell = Bell::new(1)?;
        lane.register(&bell, CONNECTION)?;
        let linger = Cell::new(lane.linger());
        Ok(Self { lane, patience: Patience::default(), linger, bell, lamp: Lamp::default() })
    }

    /// Tries until it need not wait, or must not.
    pub(crate) fn call<T>(
        &mut self,
        side: Side,
        attempt: impl FnMut(&mut Lane) -> Result<T, Refused>,
    ) -> io::Result<T> {
        self.carry_out(side, attempt)
    }

    /// The same of a call that fills a buffer.
    pub(crate) fn fill<T>(
        &mut self,
        buffer: &mut [u8],
        attempt: impl FnMut(&mut Lane, &mut [u8]) -> Result<T, Refused>,
        done: fn(usize) -> T,
    ) -> io::Result<T> {
        self.carry_out(Side::Read, Filling { buffer, attempt, done })
    }

    fn carry_out<T>(&mut self, side: Side, mut call: impl Call<T>) -> io::Result<T> {
        let outcome = match call.attempt(&mut self.lane) {
            Err(Refused::Blocked) => self.wait_for(side, call),
            Err(Refused::Failed(error)) => Err(error),
            Ok(value) => {
                self.lane.post();
                Ok(value)
            }
        };
        // A program that is never told to wait still has to hear of it when the system takes more.
        let left_behind = outcome.is_ok() && self.patience.is_nonblocking() && !self.catch_up();
        if left_behind && matches!(self.sleep(Until::Now), Ok(true)) {
            self.lane.turn();
        }
        if side == Side::Write {
            let refused = matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            self.lamp.write_was(refused);
        }
        self.show();
        outcome
    }

    /// Whether all that was written is on its way. Over a device that is known without a system call, once what has completed is taken and
    /// what is wanted then is posted: as by a turn, for the program may go and wait for the descriptor.
    fn catch_up(&mut self) -> bool {
        if !self.lane.is_flushed() {
            while self.lane.look(true) {}
        }
        self.lane.is_flushed()
    }

    fn wait_for<T>(&mut self, side: Side, mut call: impl Call<T>) -> io::Result<T> {
        let patience = self.patience.begin(side);
        if side == Side::Read && !matches!(patience, Until::Now) && self.lane.connection.is_corked() {
            // Whoever waits for the peer writes nothing meanwhile, and may be waiting for the answer.
            self.lane.connection.flush();
        }
        let (since, mut slept) = (Instant::now(), false);
        let outcome = loop {
            let now = if slept { Instant::now() } else { since };
            if let Some(outcome) = self.spin(now, patience, &mut call) {
                break outcome;
            }
            self.lane.turn();
            match call.attempt(&mut self.lane) {
                Err(Refused::Blocked) => (),
                Err(Refused::Failed(error)) => break Err(error),
                Ok(value) => {
                    self.lane.post();
                    break Ok(value);
                }
            }
            slept = true;
            match self.sleep(patience) {
                Err(error) => break Err(error),
                Ok(false) if patience.is_over() => break Err(waited_enough(patience)),
                Ok(_) => (),
            }
        };
        if slept {
            self.lane.spin.slept(since.elapsed());
        } else {
            self.lane.spin.found();
        }
        outcome
    }

    /// Looks for completions for a while, before a turn has the next one make an event and the thread sleeps: both cost more than what is
    /// waited for, where that comes soon. What came of the call, if that is known then.
    fn spin<T>(
        &mut self,
        mut now: Instant,
        patience: Until,
        call: &mut impl Call<T>,
    ) -> Option<io::Result<T>> {
        let time = self.lane.spin.time();
        if time.is_zero() || matches!(patience, Until::Now) {
            return None;
        }
        let (mut until, mut all) = (now + time, true);
        while now < until && !patience.is_over_at(now) && !self.lane.is_late(now) {
            for _ in 0..LOOKS {
                let outcome = match call.look(&mut self.lane, all) {
                    Looked::Nothing => {
                        // No pause of the processor's here: it would be longer than the look.
                        all = false;
                        continue;
                    }
                    Looked::Moved => call.attempt(&mut self.lane),
                    Looked::Done(value) => Ok(value),
                };
                all = true;
                match outcome {
                    Err(Refused::Blocked) => until = now + time,
                    Err(Refused::Failed(error)) => return Some(Err(error)),
                    Ok(value) => {
                        self.lane.post();
                        return Some(Ok(value));
                    }
                }
            }
            now = Instant::now();
        }
        None
    }

    /// Sleeps until something happens. Whether something did.
    fn sleep(&mut self, patience: Until) -> io::Result<bool> {
        let awake = !self.lane.may_sleep(&self.bell);
        let until = if awake { Until::Now } else { patience.or(self.lane.next_deadline()) };
        let (lane, mut happened) = (&mut self.lane, awake);
        self.bell.wait(until, |event| {
            lane.on_event(event);
            happened = true;
        })?;
        self.lamp.silenced();
        Ok(happened)
    }

    /// Makes the program's descriptor show what a call would find.
    fn show(&mut self) {
        if !self.bell.is_handed_out() {
            return;
        }
        if self.lamp.show(self.lane.readiness()) {
            self.bell.ring();
        }
        self.bell.wake_at(self.lane.next_deadline());
    }

    /// How much a call had better move at a time, so that the peer has its part in it meanwhile. One that may be given up when its time is
    /// over moves all or nothing.
    pub(crate) fn piece(&self, side: Side) -> usize {
        let whole = self.patience.is_nonblocking() || self.patience.get(side).is_some();
        self.lane.piece.filter(|_| !whole).unwrap_or(usize::MAX)
    }

    /// After a write: what it took is on its way when it returns, if it may wait.
    pub(crate) fn sent<T>(&mut self, taken: T) -> io::Result<T> {
        // It was taken, so it counts; that time is up, or the connection broken, is for the next call to tell.
        let Self { patience, lane, .. } = self;
        // As a rule one look says that it is.
        if !(patience.is_nonblocking() || lane.is_flushed() || lane.look(false) && lane.is_flushed()) {
            if !self.lane.connection.is_corked() {
                self.lane.connection.flush();
            }
            if let Err(error) = self.see_off() {
                tracing::trace!(connection = %self.lane.about, %error, "taken, and not yet on its way");
            }
        }
        Ok(taken)
    }

    /// What a call would find now.
    pub(crate) fn readiness(&mut self) -> io::Result<Readiness> {
        loop {
            self.lane.turn();
            if !self.sleep(Until::Now)? {
                break;
            }
        }
        let ready = self.lane.readiness();
        self.lamp.write_was(!ready.writable);
        self.show();
        Ok(ready)
    }

    pub(crate) fn set_interest(&mut self, interest: Readiness) {
        self.lamp.set_interest(interest);
        self.show();
    }

    /// Something was changed that may have to be sent.
    pub(crate) fn changed(&mut self) {
        self.lane.post();
        self.show();
    }

    /// Holds back what does not fill a frame, or no longer does.
    pub(crate) fn cork(&mut self, corked: bool) -> io::Result<()> {
        self.call(Side::Write, |lane| {
            lane.connection.cork(corked);
            Ok(())
        })?;
        self.sent(())
    }

    /// A half was shut down. The program may never call again, so the end goes as far as it can.
    pub(crate) fn shut(&mut self) {
        self.lane.turn();
        self.show();
    }

    #[cfg(unix)]
    pub(crate) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.bell.hand_out()
    }

    /// Waits until all that was written is on its way.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.lane.connection.flush();
        self.see_off()
    }

    /// Waits until all is on its way but for what the program holds back.
    fn see_off(&mut self) -> io::Result<()> {
        self.call(Side::Write, |lane| {
            lane.post();
            match lane.connection.failure() {
                Some(cause) => {
                    let error = CallError::Failed(cause.clone());
                    Err(lane.refused(Side::Write, error))
                }
                None if lane.is_flushed() => Ok(()),
                None => Err(Refused::Blocked),
            }
        })
    }
}

/// As [`std::net`] fails where time is up: with one kind on Windows, and another elsewhere.
pub(crate) fn waited_enough(patience: Until) -> io::Error {
    match patience {
        Until::Deadline(_) if cfg!(windows) => io::ErrorKind::TimedOut.into(),
        _ => io::ErrorKind::WouldBlock.into(),
    }
}

impl Engine {
    /// Closes, and waits no longer than it lingers until what was written is on its way.
    fn close(&mut self) {
        let linger = self.linger.get();
        if linger.is_zero() {
            return self.lane.abort();
        }
        let patience = Until::Event.or(Instant::now().checked_add(linger));
        self.lane.close();
        loop {
            self.lane.turn();
            if self.lane.is_over() {
                return;
            }
            match self.sleep(patience) {
                Ok(happened) if happened || !patience.is_over() => (),
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(connection = %self.lane.about, %error, "cannot wait for its end");
                    break;
                }
            }
        }
        tracing::debug!(connection = %self.lane.about, "{NOT_ALL_TAKEN} {linger:?}");
        self.lane.abort();
    }
}

/// Owns an engine, and closes its connection at the end, unless that goes on elsewhere.
pub(crate) struct Owner(Option<Box<Engine>>);

impl Owner {
    pub(crate) fn new(lane: Lane) -> io::Result<Self> {
        Ok(Self(Some(Box::new(Engine::new(lane)?))))
    }

    /// Gives up the connection's own set: another one will report its events.
    pub(crate) fn into_lane(mut self) -> io::Result<Lane> {
        let Engine { mut lane, bell, linger, .. } = *self.0.take().expect(OWNED);
        lane.deregister(&bell)?;
        lane.set_linger(linger.get());
        Ok(lane)
    }
}

/// Only `into_lane` takes it, and ends its owner.
const OWNED: &str = "an owner has its engine as long as it lives";

impl Deref for Owner {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        self.0.as_ref().expect(OWNED)
    }
}

impl DerefMut for Owner {
    fn deref_mut(&mut self) -> &mut Engine {
        self.0.as_mut().expect(OWNED)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(engine) = &mut self.0 {
            engine.close();
        }
    }
}
