//! Random traffic in both directions over one connection, until both ends have everything or the
//! connection breaks.
//!
//! Each end verifies every byte on arrival: delivered data is at each moment a prefix of the data
//! sent. An end sleeps on the connection's descriptor alone, so that a lost wake-up ends the case.
//! Every lent block must return exactly once.

use std::collections::HashSet;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::marker::PhantomData;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_harness::fill;
use trespass::{Completion, Readiness, SeqPacket, Stream, Ticket};

use super::fixture::{below, random};

/// The data that one end sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrafficPlan {
    pub(crate) seed: u64,
    /// The number of messages, or of writes to a stream.
    pub(crate) count: usize,
    /// The size of the longest message.
    pub(crate) most: usize,
}

impl TrafficPlan {
    fn message(&self, at: usize) -> Vec<u8> {
        let mut random = random(self.seed.wrapping_mul(1_000_003) + at as u64);
        let most = [40, 300, 9000, 70_000, 400_000][below(&mut random, 5)].min(self.most);
        let mut bytes = vec![0; below(&mut random, most)];
        fill(self.seed + at as u64, 0, &mut bytes);
        bytes
    }

    /// All messages concatenated.
    fn stream(&self) -> Vec<u8> {
        (0..self.count).flat_map(|at| self.message(at)).collect()
    }
}

/// The outcome for one end.
#[derive(Debug)]
pub(crate) struct TrafficResult<E> {
    /// The end was closed.
    pub(crate) _end: PhantomData<E>,
    /// `None` if all data was sent and received.
    pub(crate) error: Option<io::Error>,
    /// The number of messages or bytes received.
    pub(crate) got: usize,
    /// The number of lent blocks that returned.
    pub(crate) lent: usize,
    pub(crate) stats: trespass::Stats,
}

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimits {
    /// The limit of the whole exchange.
    pub(crate) limit: Duration,
    /// The limit of one sleep, after which the end makes its calls anyway. Calls notice a silent
    /// peer, which no descriptor reports. If this equals the limit, every wake-up must arrive.
    pub(crate) nap: Duration,
}

impl WaitLimits {
    /// Sleeps until a call may make progress.
    fn sleep(self, end: &impl AsFd, begin: Instant, what: &dyn Fn() -> String) {
        let mut fds = [PollFd::new(end, PollFlags::IN)];
        let timeout = Timespec::try_from(self.nap).expect("a time");
        let ready = poll(&mut fds, Some(&timeout)).expect("it can be polled");
        assert!(ready == 1 || begin.elapsed() < self.limit, "asleep: {}", what());
    }
}

struct TrafficPeer {
    end: SeqPacket,
    out: TrafficPlan,
    into: TrafficPlan,
    sent: usize,
    got: usize,
    /// The next message, if it was refused before.
    next: Option<Vec<u8>>,
    lent: HashSet<Ticket>,
    came_back: usize,
    has_ended: bool,
    buffer: Vec<u8>,
}

impl TrafficPeer {
    /// Runs until every call would block. Returns whether all data was sent and received.
    fn go_on(&mut self) -> io::Result<bool> {
        self.give()?;
        self.take()?;
        while let Some(completion) = self.end.completion() {
            self.back(&completion);
        }
        Ok(self.sent == self.out.count && self.has_ended)
    }

    fn give(&mut self) -> io::Result<()> {
        while self.sent < self.out.count {
            let message = self.next.take().unwrap_or_else(|| self.out.message(self.sent));
            match self.give_one(&message) {
                Ok(()) => self.sent += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.next = Some(message);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            if self.sent == self.out.count {
                self.end.shutdown(Shutdown::Write)?;
            }
        }
        Ok(())
    }

    /// Sends in each of the three ways in turn.
    fn give_one(&mut self, message: &[u8]) -> io::Result<()> {
        match self.sent % 3 {
            0 => self.end.send(message),
            1 => {
                let (head, body) = message.split_at(message.len().min(9));
                self.end.send_vectored(&[IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(body)])
            }
            _ => {
                let mut block = self.end.buffer(message.len().max(1))?;
                block.bytes_mut()[..message.len()].copy_from_slice(message);
                let ticket = self.end.send_buf(block, message.len()).map_err(|refused| refused.error)?;
                assert!(self.lent.insert(ticket), "{ticket:?} was given twice");
                Ok(())
            }
        }
    }

    fn take(&mut self) -> io::Result<()> {
        while !self.has_ended {
            let taken = if self.got.is_multiple_of(2) {
                self.end.recv(&mut self.buffer).map(|len| self.buffer[..len].to_vec())
            } else {
                self.end.recv_buf().map(|message| message.to_vec())
            };
            match taken {
                Ok(message) => {
                    let expected = self.into.message(self.got);
                    assert!(
                        message == expected,
                        "message {} of {} bytes, and not {}{}",
                        self.got,
                        message.len(),
                        expected.len(),
                        difference(&message, &expected)
                    );
                    self.got += 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    assert_eq!(self.got, self.into.count, "an orderly end before the last message");
                    self.has_ended = true;
                    self.end.set_interest(Readiness::WRITE);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn back(&mut self, completion: &Completion) {
        assert!(self.lent.remove(&completion.ticket), "{:?} came back twice", completion.ticket);
        self.came_back += 1;
    }

    fn run(mut self, patience: WaitLimits) -> TrafficResult<SeqPacket> {
        let begin = Instant::now();
        self.end.set_nonblocking(true).unwrap();
        let error = loop {
            match self.go_on() {
                Ok(true) => break None,
                Ok(false) => patience.sleep(&self.end, begin, &|| {
                    let Self { sent, out, got, into, .. } = &self;
                    format!("{sent} of {} messages sent and {got} of {} received", out.count, into.count)
                }),
                Err(error) => break Some(error),
            }
        };
        self.end.set_nonblocking(false).unwrap();
        self.end.set_write_timeout(Some(patience.limit)).unwrap();
        while let Some(completion) = self.end.next_completion().expect("what was lent comes back in time") {
            self.back(&completion);
        }
        assert!(self.lent.is_empty(), "{:?} never came back", self.lent);
        // Written data may still be in the buffers; closing waits until it has been sent.
        self.end.set_linger(Some(patience.limit)).unwrap();
        let stats = self.end.stats();
        TrafficResult { _end: closed(self.end), error, got: self.got, lent: self.came_back, stats }
    }
}

/// Messages: sends those of one plan and receives those of the other.
pub(crate) fn messages(
    end: SeqPacket,
    out: TrafficPlan,
    into: TrafficPlan,
    patience: WaitLimits,
) -> TrafficResult<SeqPacket> {
    let (next, lent, buffer) = (None, HashSet::new(), vec![0; 400_000]);
    let talker =
        TrafficPeer { end, out, into, sent: 0, got: 0, next, lent, came_back: 0, has_ended: false, buffer };
    talker.run(patience)
}

/// Bytes of a stream, written and read in pieces of random sizes.
pub(crate) fn bytes(
    mut end: Stream,
    out: TrafficPlan,
    into: TrafficPlan,
    patience: WaitLimits,
) -> TrafficResult<Stream> {
    let (begin, given, expected) = (Instant::now(), out.stream(), into.stream());
    let (mut random, mut buffer) = (random(out.seed), vec![0; 100_000]);
    let (mut sent, mut got, mut told_end, mut has_ended) = (0, 0, false, false);
    end.set_nonblocking(true).unwrap();
    let mut go_on = |end: &mut Stream, got: &mut usize| -> io::Result<bool> {
        while sent < given.len() {
            let piece = &given[sent..given.len().min(sent + 1 + below(&mut random, out.most))];
            match end.write(piece) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if sent == given.len() && !std::mem::replace(&mut told_end, true) {
            end.shutdown(Shutdown::Write)?;
        }
        while !has_ended {
            let room = 1 + below(&mut random, buffer.len());
            match end.read(&mut buffer[..room]) {
                Ok(0) => {
                    assert_eq!(*got, expected.len(), "an orderly end before the last byte");
                    has_ended = true;
                    end.set_interest(Readiness::WRITE);
                }
                Ok(count) => {
                    let (came, sent) = (&buffer[..count], &expected[*got..expected.len().min(*got + count)]);
                    assert!(came == sent, "{count} bytes at {got}{}", difference(came, sent));
                    *got += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(told_end && has_ended)
    };
    let error = loop {
        match go_on(&mut end, &mut got) {
            Ok(true) => break None,
            Ok(false) => {
                patience.sleep(&end, begin, &|| format!("{got} of {} bytes received", expected.len()));
            }
            Err(error) => break Some(error),
        }
    };
    end.set_linger(Some(patience.limit)).unwrap();
    let stats = end.stats();
    TrafficResult { _end: closed(end), error, got, lent: 0, stats }
}

/// Where received bytes differ from those sent, and at which offset the received ones were sent.
fn difference(came: &[u8], sent: &[u8]) -> String {
    const KEY: usize = 32;
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (0..came.len().min(sent.len())).filter(|&at| came[at] != sent[at]) {
        match runs.last_mut() {
            // One byte in 256 is equal by chance.
            Some((_, end)) if at < *end + 8 => *end = at + 1,
            _ => runs.push((at, at + 1)),
        }
    }
    let whence = |from: usize| {
        let key = came.get(from..from + KEY)?;
        sent.windows(KEY).position(|window| window == key)
    };
    let tell = |&(from, to): &(usize, usize)| match whence(from) {
        Some(at) => format!("; others from byte {from} to {to}, which begin as those from {at} on"),
        None => format!("; others from byte {from} to {to}"),
    };
    runs.iter().map(tell).collect()
}

/// Runs both ends of a connection at once, each in a thread.
pub(crate) fn both<E: Send, O: Send>(
    [client, server]: [E; 2],
    [to_server, to_client]: [TrafficPlan; 2],
    talk: impl Fn(E, TrafficPlan, TrafficPlan) -> O + Sync,
) -> [O; 2] {
    thread::scope(|scope| {
        let there = scope.spawn(|| talk(server, to_client, to_server));
        let here = talk(client, to_server, to_client);
        [here, there.join().expect("the other end's thread has failed")]
    })
}

fn closed<E>(end: E) -> PhantomData<E> {
    drop(end);
    PhantomData
}

/// Whether this is an error of a failed connection.
pub(crate) fn is_failure(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData, TimedOut};
    matches!(error.kind(), ConnectionReset | BrokenPipe | ConnectionAborted | TimedOut | InvalidData)
}
