//! Messages of trespass, by either of its interfaces.

use std::collections::VecDeque;
use std::io;

use trespass::{Block, SendRefused, SeqPacket};

use crate::control::{Link, Packets};
use crate::error::Error;
use crate::plan::{Api, Measure, Operation, TestPlan};
use crate::report::{BandwidthRow, EchoRow, LatencyRow, Row};
use crate::statistics::{BandwidthSummary, LatencyRecorder, Timer};

/// One side of a test.
#[derive(Debug)]
pub struct Messages<'a> {
    test: &'a TestPlan,
    timer: &'a Timer,
    recorder: LatencyRecorder,
}

/// Sends and receives messages of one size.
struct Sender {
    size: usize,
    memory: Memory,
}

/// Where messages lie before they are sent, and when they have arrived.
enum Memory {
    /// In the program's memory.
    Own { send: Vec<u8>, receive: Vec<u8> },
    /// In blocks, of which so many are used.
    Pool { free: Vec<Block>, lent: usize, most: usize },
}

impl<'a> Messages<'a> {
    /// A side that is ready to run.
    pub fn new(test: &'a TestPlan, timer: &'a Timer) -> Self {
        Self { test, timer, recorder: LatencyRecorder::new() }
    }

    /// Measures messages of this size, of requests so many under way: the client's part.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn measure(&mut self, size: u64, in_flight: u32, link: &mut Link<Packets>) -> Result<Row, Error> {
        let iterations = self.test.iterations_of(size, in_flight);
        let socket = &mut link.wire().socket;
        let done = match self.test.measure {
            Measure::Bandwidth => self.stream(size, iterations, socket),
            Measure::Latency(_) => self.ping_pong(size, iterations, socket),
            Measure::Echo(_) => self.ask(size, iterations, in_flight, socket),
        };
        done.map_err(|error| link.lost(error).into())
    }

    /// Answers messages of this size: the server's part.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn answer(&mut self, size: u64, in_flight: u32, link: &mut Link<Packets>) -> Result<(), Error> {
        let iterations = self.test.iterations_of(size, in_flight);
        let socket = &mut link.wire().socket;
        let done = self.server(size, iterations, socket);
        done.map_err(|error| link.lost(error).into())
    }

    fn stream(&self, size: u64, iterations: u64, socket: &mut SeqPacket) -> io::Result<Row> {
        let mut sender = Sender::new(self.test, size, socket)?;
        let start = self.timer.now();
        for _ in 0..iterations {
            sender.send(socket)?;
        }
        sender.receive_answer(socket)?;
        let ticks = self.timer.now() - start;
        sender.settle(socket)?;
        let summary = BandwidthSummary::new(size, iterations, ticks, self.timer);
        Ok(Row::Bandwidth(BandwidthRow::new(size, iterations, summary)))
    }

    fn ping_pong(&mut self, size: u64, iterations: u64, socket: &mut SeqPacket) -> io::Result<Row> {
        let timer = self.timer;
        let mut sender = Sender::new(self.test, size, socket)?;
        self.recorder.clear();
        for _ in 0..iterations {
            let start = timer.now();
            sender.send(socket)?;
            sender.receive(socket)?;
            self.recorder.record(timer.now() - start);
        }
        sender.settle(socket)?;
        let half = timer.nanoseconds_per_tick() / 2.0;
        Ok(Row::Latency(LatencyRow::new(size, iterations, self.recorder.summary(half))))
    }

    /// Sends whenever something is to be sent and there is room for it, and takes what answers there are. A request's time begins when the
    /// one whose place it takes was answered: that the connection does not take it yet is part of it.
    fn ask(&mut self, size: u64, iterations: u64, in_flight: u32, socket: &mut SeqPacket) -> io::Result<Row> {
        let timer = self.timer;
        let mut sender = Sender::new(self.test, size, socket)?;
        self.recorder.clear();
        // When the places of those under way became free, and those that are free.
        let (mut under_way, mut free) = (VecDeque::new(), VecDeque::new());
        let (mut unused, mut unsent, mut unanswered) = (in_flight, iterations, iterations);
        let start = timer.now();
        while unanswered > 0 {
            socket.set_nonblocking(true)?;
            while unsent > 0 && (unused > 0 || !free.is_empty()) && sender.try_send(socket)? {
                under_way.push_back(free.pop_front().unwrap_or_else(|| {
                    unused -= 1;
                    start
                }));
                unsent -= 1;
            }
            // The first answer is waited for, others are taken if they are there.
            socket.set_nonblocking(false)?;
            while !under_way.is_empty() && sender.try_receive(socket)? {
                let now = timer.now();
                self.recorder.record(now - under_way.pop_front().unwrap_or(now));
                free.push_back(now);
                unanswered -= 1;
                socket.set_nonblocking(true)?;
            }
        }
        let ticks = timer.now() - start;
        socket.set_nonblocking(false)?;
        sender.settle(socket)?;
        let rate = BandwidthSummary::new(size, iterations, ticks, timer);
        let nanoseconds = timer.nanoseconds_per_tick();
        Ok(Row::Echo(EchoRow {
            size,
            iterations,
            in_flight,
            gigabits_per_second: rate.gigabits_per_second,
            p90: self.recorder.percentile(0.90, nanoseconds),
            p99: self.recorder.percentile(0.99, nanoseconds),
            requests_per_second: rate.million_messages_per_second * 1e6,
        }))
    }

    fn server(&self, size: u64, iterations: u64, socket: &mut SeqPacket) -> io::Result<()> {
        let mut sender = Sender::new(self.test, size, socket)?;
        let answers = self.test.measure != Measure::Bandwidth;
        for _ in 0..iterations {
            sender.receive(socket)?;
            if answers {
                sender.send(socket)?;
            }
        }
        if !answers {
            socket.send(&[])?;
        }
        sender.settle(socket)
    }
}

impl Sender {
    /// Has its memory before anything is timed.
    fn new(test: &TestPlan, size: u64, socket: &SeqPacket) -> io::Result<Self> {
        let size = size as usize;
        let memory = match test.operation {
            Operation::Messages(Api::Pool) => {
                let most =
                    if matches!(test.measure, Measure::Latency(_)) { 2 } else { test.depth() as usize };
                let mut free = Vec::with_capacity(most);
                free.push(socket.buffer(size)?);
                Memory::Pool { free, lent: 0, most }
            }
            // Written: else all of it would be the system's one page of zeros, which the nearest cache holds.
            _ => Memory::Own { send: vec![1; size], receive: vec![0; size] },
        };
        Ok(Self { size, memory })
    }

    #[inline]
    fn send(&mut self, socket: &mut SeqPacket) -> io::Result<()> {
        match &mut self.memory {
            Memory::Own { send, .. } => socket.send(send),
            Memory::Pool { free, lent, most } => {
                let block = Self::block(free, lent, *most, self.size, socket)?;
                socket.send_buf(block, self.size)?;
                *lent += 1;
                Ok(())
            }
        }
    }

    /// Whether there was room, and memory, for one more.
    #[inline]
    fn try_send(&mut self, socket: &mut SeqPacket) -> io::Result<bool> {
        let sent = match &mut self.memory {
            Memory::Own { send, .. } => socket.send(send),
            Memory::Pool { free, lent, most } => {
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
        let len = match &mut self.memory {
            Memory::Own { receive, .. } => socket.recv(receive)?,
            Memory::Pool { .. } => socket.recv_buf()?.len(),
        };
        if len == self.size { Ok(()) } else { Err(other_size(len, self.size)) }
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
