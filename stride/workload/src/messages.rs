//! Tests of trespass's messages, by its memory or by that of its pool.

use std::collections::VecDeque;
use std::io;

use trespass::{Block, SendRefused, SeqPacket};

use super::phase_clock::PhaseClock;
use super::sample_times::SampleTimes;
use stride_base::plan::{Api, Measure, TestOperation, TestPlan, TestPoint};
use stride_base::progress::{TestProgress, ThreadProgress};
use stride_base::report::{BandwidthRow, EchoRow, LatencyRow, ResultRow};
use stride_base::result::Distribution;
use stride_base::statistics::{BandwidthSummary, LatencyRecorder, Timer};

/// Unmeasured messages at the start of a test other than the grid: the first ones wait while the
/// pool obtains memory from the system and registers it.
const WARM_UP: u64 = 10;

/// One side of a test.
#[derive(Debug)]
pub struct Messages<'a> {
    pub(super) test: &'a TestPlan,
    pub(super) timer: &'a Timer,
    cork: bool,
    pub(super) recorder: LatencyRecorder,
}

/// The messages of a measurement, and its progress.
#[derive(Clone, Copy)]
pub(super) struct MessageLoad<'a> {
    pub(super) size: u64,
    /// The number of messages, or more than fit into the test's duration.
    pub(super) messages: u64,
    pub(super) pace: &'a PhaseClock,
    pub(super) progress: &'a ThreadProgress,
}

/// Sends and receives messages of one size.
struct MessageMover {
    size: usize,
    memory: MessageMemory,
    /// The number of messages is not known in advance: an empty message marks the end.
    takes_a_time: bool,
}

/// The memory of messages before sending and after arrival.
enum MessageMemory {
    /// The program's memory.
    Own { send: Vec<u8>, receive: Vec<u8> },
    /// Blocks of the pool, at most `most`.
    Pool { free: Vec<Block>, lent: usize, most: usize },
}

impl<'a> Messages<'a> {
    /// Prepares a side.
    pub fn new(test: &'a TestPlan, timer: &'a Timer) -> Self {
        Self { test, timer, cork: false, recorder: LatencyRecorder::new() }
    }

    /// Corks the stream, so that messages shorter than a frame are held back.
    pub fn corked(self, cork: bool) -> Self {
        Self { cork, ..self }
    }

    /// Runs the client's part: measures messages, and reports completed ones to `progress`.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn measure(
        &mut self,
        point: TestPoint,
        progress: &TestProgress,
        socket: &mut SeqPacket,
    ) -> io::Result<ResultRow> {
        let (size, messages, progress) = (point.size, self.test.messages_of(point), progress.of(0));
        PhaseClock::of(self.test.duration, |pace| {
            let load = MessageLoad { size, messages, pace, progress };
            match (self.test.measure, point.in_flight) {
                (Measure::Bandwidth, _) => self.stream(load, socket),
                (Measure::Latency(_), _) => self.ping_pong(load, socket),
                (Measure::Echo(_), in_flight) => self.ask(load, in_flight.unwrap_or(1), socket),
            }
        })
    }

    /// Runs the server's part: answers messages.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn answer(&mut self, point: TestPoint, socket: &mut SeqPacket) -> io::Result<()> {
        self.server(point, self.test.messages_of(point), socket)
    }

    /// The distribution of the last measurement's latencies, if this side measured any.
    pub fn distribution(&self) -> Option<Distribution> {
        (self.test.measure != Measure::Bandwidth)
            .then(|| self.recorder.distribution(self.sample_nanoseconds()))
    }

    /// Nanoseconds of latency per tick of a sample; a ping-pong's sample covers both directions.
    fn sample_nanoseconds(&self) -> f64 {
        let tick = self.timer.nanoseconds_per_tick();
        match self.test.measure {
            Measure::Latency(_) => tick / 2.0,
            Measure::Bandwidth | Measure::Echo(_) => tick,
        }
    }

    fn stream(&self, load: MessageLoad<'_>, socket: &mut SeqPacket) -> io::Result<ResultRow> {
        let MessageLoad { size, messages, pace, progress } = load;
        let (mut sender, mut sent) = (MessageMover::new(self.test, size, socket)?, 0);
        for _ in 0..WARM_UP {
            sender.send(socket)?;
        }
        sender.receive_answer(socket)?;
        socket.set_cork(self.cork)?;
        let start = self.timer.now();
        while sent < messages && !pace.is_over() {
            sender.send(socket)?;
            sent += 1;
            progress.set(sent);
        }
        sender.end(socket)?;
        sender.receive_answer(socket)?;
        let ticks = self.timer.now() - start;
        socket.set_cork(false)?;
        sender.settle(socket)?;
        Ok(ResultRow::Bandwidth(self.bandwidth(size, sent, ticks)))
    }

    fn ping_pong(&mut self, load: MessageLoad<'_>, socket: &mut SeqPacket) -> io::Result<ResultRow> {
        let (MessageLoad { size, messages, pace, progress }, timer) = (load, self.timer);
        let (mut sender, mut answered) = (MessageMover::new(self.test, size, socket)?, 0);
        let mut notes = SampleTimes::new();
        self.recorder.clear();
        for _ in 0..WARM_UP {
            sender.send(socket)?;
            sender.receive(socket)?;
        }
        while answered < messages && !pace.is_over() {
            let (start, ends) = notes.places(messages - answered);
            let before = answered;
            *start = timer.now();
            for end in ends {
                sender.send(socket)?;
                sender.receive(socket)?;
                *end = timer.now();
                answered += 1;
                progress.set(answered);
                if pace.is_over() {
                    break;
                }
            }
            notes.count((answered - before) as usize, &mut self.recorder);
        }
        sender.end(socket)?;
        sender.settle(socket)?;
        Ok(ResultRow::Latency(self.latency(size, answered)))
    }

    /// Sends while requests remain and the connection has room, and receives the answers. A
    /// request's time starts when the request whose place it takes was answered, so it includes the
    /// wait for room in the connection.
    fn ask(
        &mut self,
        load: MessageLoad<'_>,
        in_flight: u32,
        socket: &mut SeqPacket,
    ) -> io::Result<ResultRow> {
        let (MessageLoad { size, messages, pace, progress }, timer) = (load, self.timer);
        let mut sender = MessageMover::new(self.test, size, socket)?;
        self.recorder.clear();
        // The times at which the places of outstanding requests became free, and those of free
        // places.
        let (mut under_way, mut free) = (VecDeque::new(), VecDeque::new());
        let (mut unused, mut sent, mut answered) = (in_flight, 0, 0);
        let has_more = |sent: u64| sent < messages && !pace.is_over();
        socket.set_cork(in_flight > 1)?;
        let start = timer.now();
        while answered < sent || has_more(sent) {
            socket.set_nonblocking(true)?;
            while has_more(sent) && (unused > 0 || !free.is_empty()) && sender.try_send(socket)? {
                // Places that were never used come first, then the one that has been free for
                // longest.
                let since = if unused > 0 { start } else { free.pop_front().unwrap_or(start) };
                unused = unused.saturating_sub(1);
                under_way.push_back(since);
                sent += 1;
            }
            // Waits for the first answer, and takes further ones only if they have arrived.
            socket.set_nonblocking(false)?;
            while !under_way.is_empty() && sender.try_receive(socket)? {
                let now = timer.now();
                self.recorder.record(now - under_way.pop_front().unwrap_or(now));
                free.push_back(now);
                answered += 1;
                progress.set(answered);
                socket.set_nonblocking(true)?;
            }
        }
        let ticks = timer.now() - start;
        socket.set_nonblocking(false)?;
        sender.end(socket)?;
        socket.set_cork(false)?;
        sender.settle(socket)?;
        let requests = self.bandwidth(size, answered, ticks);
        Ok(ResultRow::Echo(EchoRow {
            in_flight,
            requests,
            answers: self.latency(size, answered),
            per_write: None,
        }))
    }

    pub(super) fn bandwidth(&self, size: u64, messages: u64, ticks: u64) -> BandwidthRow {
        BandwidthRow::new(size, messages, BandwidthSummary::new(size, messages, ticks, self.timer))
    }

    pub(super) fn latency(&self, size: u64, messages: u64) -> LatencyRow {
        LatencyRow::new(size, messages, self.recorder.summary(self.sample_nanoseconds()))
    }

    fn server(&self, point: TestPoint, most: u64, socket: &mut SeqPacket) -> io::Result<()> {
        let mut sender = MessageMover::new(self.test, point.size, socket)?;
        let answers = self.test.measure != Measure::Bandwidth;
        if !matches!(self.test.measure, Measure::Echo(_)) {
            sender.serve(WARM_UP, answers, socket)?;
        }
        // Requests that arrived together are answered together.
        socket.set_cork(point.in_flight.is_some_and(|in_flight| in_flight > 1))?;
        sender.serve(most, answers, socket)?;
        socket.set_cork(false)?;
        sender.settle(socket)
    }
}

impl MessageMover {
    /// Allocates the memory before the measurement.
    fn new(test: &TestPlan, size: u64, socket: &SeqPacket) -> io::Result<Self> {
        let size = size as usize;
        let memory = match test.operation {
            TestOperation::Messages(Api::Pool) => {
                let most =
                    if matches!(test.measure, Measure::Latency(_)) { 2 } else { test.depth() as usize };
                let mut free = Vec::with_capacity(most);
                free.push(socket.buffer(size)?);
                MessageMemory::Pool { free, lent: 0, most }
            }
            // Nonzero, because memory of zeroes would map the system's single zero page, which fits
            // into the nearest cache.
            _ => MessageMemory::Own { send: vec![1; size], receive: vec![0; size] },
        };
        Ok(Self { size, memory, takes_a_time: test.duration.is_some() })
    }

    #[inline]
    fn send(&mut self, socket: &mut SeqPacket) -> io::Result<()> {
        match &mut self.memory {
            MessageMemory::Own { send, .. } => socket.send(send),
            MessageMemory::Pool { free, lent, most } => {
                let block = Self::block(free, lent, *most, self.size, socket)?;
                socket.send_buf(block, self.size)?;
                *lent += 1;
                Ok(())
            }
        }
    }

    /// Receives up to `most` messages, and answers each of them or the last one.
    fn serve(&mut self, most: u64, answers: bool, socket: &mut SeqPacket) -> io::Result<()> {
        for _ in 0..most {
            if !self.receive_unless_over(socket)? {
                break;
            }
            if answers {
                self.send(socket)?;
            }
        }
        if answers { Ok(()) } else { socket.send(&[]) }
    }

    /// Sends a message if the connection has room and memory; returns whether it did.
    #[inline]
    fn try_send(&mut self, socket: &mut SeqPacket) -> io::Result<bool> {
        let sent = match &mut self.memory {
            MessageMemory::Own { send, .. } => socket.send(send),
            MessageMemory::Pool { free, lent, most } => {
                let Some(block) = Self::block_now(free, lent, *most, self.size, socket) else {
                    return Ok(false);
                };
                match socket.send_buf(block, self.size) {
                    Ok(_) => {
                        *lent += 1;
                        Ok(())
                    }
                    Err(SendRefused { error, block, .. }) => {
                        free.push(block);
                        Err(error)
                    }
                }
            }
        };
        done(sent)
    }

    /// Receives a message if one has arrived; returns whether it did.
    #[inline]
    fn try_receive(&mut self, socket: &mut SeqPacket) -> io::Result<bool> {
        done(self.receive(socket))
    }

    /// The block that came back last, which is in the caches, or a new one below the limit.
    fn block(
        free: &mut Vec<Block>,
        lent: &mut usize,
        most: usize,
        size: usize,
        socket: &mut SeqPacket,
    ) -> io::Result<Block> {
        if let Some(block) = Self::block_now(free, lent, most, size, socket) {
            return Ok(block);
        }
        let done = socket
            .next_completion()?
            .ok_or_else(|| io::Error::other("the pool has no block for a message"))?;
        *lent -= 1;
        Ok(done.block)
    }

    /// The same without waiting.
    fn block_now(
        free: &mut Vec<Block>,
        lent: &mut usize,
        most: usize,
        size: usize,
        socket: &mut SeqPacket,
    ) -> Option<Block> {
        while let Some(done) = socket.completion() {
            *lent -= 1;
            free.push(done.block);
        }
        if free.is_empty() && *lent < most {
            return socket.buffer(size).ok();
        }
        free.pop()
    }

    #[inline]
    fn receive(&mut self, socket: &mut SeqPacket) -> io::Result<()> {
        let len = self.take(socket)?;
        if len == self.size { Ok(()) } else { Err(other_size(len, self.size)) }
    }

    /// Receives a message; returns false at the end.
    #[inline]
    fn receive_unless_over(&mut self, socket: &mut SeqPacket) -> io::Result<bool> {
        match self.take(socket)? {
            len if len == self.size => Ok(true),
            0 if self.takes_a_time => Ok(false),
            len => Err(other_size(len, self.size)),
        }
    }

    #[inline]
    fn take(&mut self, socket: &mut SeqPacket) -> io::Result<usize> {
        Ok(match &mut self.memory {
            MessageMemory::Own { receive, .. } => socket.recv(receive)?,
            MessageMemory::Pool { .. } => socket.recv_buf()?.len(),
        })
    }

    /// Marks the end, if the peer does not know the number of messages.
    fn end(&mut self, socket: &mut SeqPacket) -> io::Result<()> {
        if self.takes_a_time { socket.send(&[]) } else { Ok(()) }
    }

    /// Waits for the confirmation that all messages have arrived.
    fn receive_answer(&mut self, socket: &mut SeqPacket) -> io::Result<()> {
        match socket.recv(&mut [])? {
            0 => Ok(()),
            len => Err(other_size(len, 0)),
        }
    }

    /// Waits until all blocks have come back.
    fn settle(&mut self, socket: &mut SeqPacket) -> io::Result<()> {
        while socket.next_completion()?.is_some() {}
        Ok(())
    }
}

/// Whether the call succeeded; false if it would have to wait.
fn done(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn other_size(len: usize, size: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message of {len} bytes in place of one of {size}"))
}
