//! Messages of trespass, by either of its interfaces.

use std::collections::VecDeque;
use std::io;

use trespass::{Block, SendRefused, SeqPacket};

use super::phase_clock::PhaseClock;
use super::sample_times::SampleTimes;
use stride_base::control::{ControlLink, SeqPacketFrames};
use stride_base::error::Error;
use stride_base::plan::{Api, Measure, TestOperation, TestPlan, TestPoint};
use stride_base::progress::{TestProgress, ThreadProgress};
use stride_base::report::{BandwidthRow, EchoRow, LatencyRow, ResultRow};
use stride_base::result::Distribution;
use stride_base::statistics::{BandwidthSummary, LatencyRecorder, Timer};

/// Messages before those that are measured, of a test that is no grid: the first ones wait for memory that the pool has yet to take from the
/// system, and to register.
const WARM_UP: u64 = 10;

/// One side of a test.
#[derive(Debug)]
pub struct Messages<'a> {
    test: &'a TestPlan,
    timer: &'a Timer,
    cork: bool,
    recorder: LatencyRecorder,
}

/// What is measured, and who sees how far it is.
#[derive(Clone, Copy)]
struct MessageLoad<'a> {
    size: u64,
    /// So many, or until the time is up.
    messages: u64,
    pace: &'a PhaseClock,
    progress: &'a ThreadProgress,
}

/// Sends and receives messages of one size.
struct MessageMover {
    size: usize,
    memory: MessageMemory,
    /// How many there are is not known before: an empty message says that there are no more.
    takes_a_time: bool,
}

/// Where messages lie before they are sent, and when they have arrived.
enum MessageMemory {
    /// In the program's memory.
    Own { send: Vec<u8>, receive: Vec<u8> },
    /// In blocks, of which so many are used.
    Pool { free: Vec<Block>, lent: usize, most: usize },
}

impl<'a> Messages<'a> {
    /// A side that is ready to run.
    pub fn new(test: &'a TestPlan, timer: &'a Timer) -> Self {
        Self { test, timer, cork: false, recorder: LatencyRecorder::new() }
    }

    /// Has what does not fill a frame held back in a stream of messages.
    pub fn corked(self, cork: bool) -> Self {
        Self { cork, ..self }
    }

    /// Measures these messages, and says to `progress` how many are through: the client's part.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn measure(
        &mut self,
        point: TestPoint,
        progress: &TestProgress,
        link: &mut ControlLink<SeqPacketFrames>,
    ) -> Result<ResultRow, Error> {
        let (size, messages, progress) = (point.size, self.test.messages_of(point), progress.of(0));
        let socket = &mut link.wire().socket;
        let done = PhaseClock::of(self.test.duration, |pace| {
            let load = MessageLoad { size, messages, pace, progress };
            match (self.test.measure, point.in_flight) {
                (Measure::Bandwidth, _) => self.stream(load, socket),
                (Measure::Latency(_), _) => self.ping_pong(load, socket),
                (Measure::Echo(_), in_flight) => self.ask(load, in_flight.unwrap_or(1), socket),
            }
        });
        done.map_err(|error| link.lost(error).into())
    }

    /// Answers these messages: the server's part.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn answer(&mut self, point: TestPoint, link: &mut ControlLink<SeqPacketFrames>) -> Result<(), Error> {
        let messages = self.test.messages_of(point);
        let socket = &mut link.wire().socket;
        let done = self.server(point, messages, socket);
        done.map_err(|error| link.lost(error).into())
    }

    /// The latencies that were measured last, if this side measures any.
    pub fn distribution(&self) -> Option<Distribution> {
        (self.test.measure != Measure::Bandwidth)
            .then(|| self.recorder.distribution(self.sample_nanoseconds()))
    }

    /// How many nanoseconds of latency a tick of a sample stands for: a ping-pong's is of both ways.
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

    /// Sends whenever something is to be sent and there is room for it, and takes what answers there are. A request's time begins when the
    /// one whose place it takes was answered: that the connection does not take it yet is part of it.
    fn ask(
        &mut self,
        load: MessageLoad<'_>,
        in_flight: u32,
        socket: &mut SeqPacket,
    ) -> io::Result<ResultRow> {
        let (MessageLoad { size, messages, pace, progress }, timer) = (load, self.timer);
        let mut sender = MessageMover::new(self.test, size, socket)?;
        self.recorder.clear();
        // When the places of those under way became free, and those that are free.
        let (mut under_way, mut free) = (VecDeque::new(), VecDeque::new());
        let (mut unused, mut sent, mut answered) = (in_flight, 0, 0);
        let has_more = |sent: u64| sent < messages && !pace.is_over();
        socket.set_cork(in_flight > 1)?;
        let start = timer.now();
        while answered < sent || has_more(sent) {
            socket.set_nonblocking(true)?;
            while has_more(sent) && (unused > 0 || !free.is_empty()) && sender.try_send(socket)? {
                // The place that has been free for longest: first those that always were.
                let since = if unused > 0 { start } else { free.pop_front().unwrap_or(start) };
                unused = unused.saturating_sub(1);
                under_way.push_back(since);
                sent += 1;
            }
            // The first answer is waited for, others are taken if they are there.
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
        Ok(ResultRow::Echo(EchoRow { in_flight, requests, answers: self.latency(size, answered) }))
    }

    fn bandwidth(&self, size: u64, messages: u64, ticks: u64) -> BandwidthRow {
        BandwidthRow::new(size, messages, BandwidthSummary::new(size, messages, ticks, self.timer))
    }

    fn latency(&self, size: u64, messages: u64) -> LatencyRow {
        LatencyRow::new(size, messages, self.recorder.summary(self.sample_nanoseconds()))
    }

    fn server(&self, point: TestPoint, most: u64, socket: &mut SeqPacket) -> io::Result<()> {
        let mut sender = MessageMover::new(self.test, point.size, socket)?;
        let answers = self.test.measure != Measure::Bandwidth;
        if !matches!(self.test.measure, Measure::Echo(_)) {
            sender.serve(WARM_UP, answers, socket)?;
        }
        // What has come together is answered together.
        socket.set_cork(point.in_flight.is_some_and(|in_flight| in_flight > 1))?;
        sender.serve(most, answers, socket)?;
        socket.set_cork(false)?;
        sender.settle(socket)
    }
}

impl MessageMover {
    /// Has its memory before anything is timed.
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
            // Written: else all of it would be the system's one page of zeros, which the nearest cache holds.
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

    /// Takes so many, and answers each, or all of them.
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

    /// Whether there was room, and memory, for one more.
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

    /// Whether one was there.
    #[inline]
    fn try_receive(&mut self, socket: &mut SeqPacket) -> io::Result<bool> {
        done(self.receive(socket))
    }

    /// The block that came back last, which the caches have; a new one as long as there may be more.
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

    /// The same, if it need not be waited for.
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

    /// Whether there was one: there may be no more.
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

    /// Says that there are no more, if that is not known.
    fn end(&mut self, socket: &mut SeqPacket) -> io::Result<()> {
        if self.takes_a_time { socket.send(&[]) } else { Ok(()) }
    }

    /// That all have arrived.
    fn receive_answer(&mut self, socket: &mut SeqPacket) -> io::Result<()> {
        match socket.recv(&mut [])? {
            0 => Ok(()),
            len => Err(other_size(len, 0)),
        }
    }

    /// Takes all blocks back.
    fn settle(&mut self, socket: &mut SeqPacket) -> io::Result<()> {
        while socket.next_completion()?.is_some() {}
        Ok(())
    }
}

/// Whether it was done: what would have to wait was not.
fn done(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

fn other_size(len: usize, size: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message of {len} bytes in place of one of {size}"))
}
