//! Messages of trespass, by either of its interfaces.

use std::io;

use trespass::{Block, SeqPacket};

use crate::control::{Link, Packets};
use crate::error::Error;
use crate::plan::{Api, Measure, Operation, TestPlan};
use crate::report::{BandwidthRow, LatencyRow, Row};
use crate::result::Distribution;
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

    /// Measures messages of this size: the client's part.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn measure(&mut self, size: u64, link: &mut Link<Packets>) -> Result<Row, Error> {
        let socket = &mut link.wire().socket;
        let done = self.client(size, socket);
        done.map_err(|error| link.lost(error).into())
    }

    /// Answers messages of this size: the server's part.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn answer(&mut self, size: u64, link: &mut Link<Packets>) -> Result<(), Error> {
        let socket = &mut link.wire().socket;
        let done = self.server(size, socket);
        done.map_err(|error| link.lost(error).into())
    }

    /// The latencies that were measured last, if this side measures any.
    pub fn distribution(&self) -> Option<Distribution> {
        let half = self.timer.nanoseconds_per_tick() / 2.0;
        (self.test.measure != Measure::Bandwidth).then(|| self.recorder.distribution(half))
    }

    fn client(&mut self, size: u64, socket: &mut SeqPacket) -> io::Result<Row> {
        let (iterations, timer) = (self.test.iterations, self.timer);
        let mut sender = Sender::new(self.test, size, socket)?;
        if self.test.measure == Measure::Bandwidth {
            let start = timer.now();
            for _ in 0..iterations {
                sender.send(socket)?;
            }
            sender.receive_answer(socket)?;
            let ticks = timer.now() - start;
            sender.settle(socket)?;
            let summary = BandwidthSummary::new(size, iterations, ticks, timer);
            return Ok(Row::Bandwidth(BandwidthRow::new(size, iterations, summary)));
        }
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

    fn server(&mut self, size: u64, socket: &mut SeqPacket) -> io::Result<()> {
        let mut sender = Sender::new(self.test, size, socket)?;
        let answers = self.test.measure != Measure::Bandwidth;
        for _ in 0..self.test.iterations {
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
                let most = if test.measure == Measure::Bandwidth { test.depth() as usize } else { 2 };
                let mut free = Vec::with_capacity(most);
                free.push(socket.buffer(size)?);
                Memory::Pool { free, lent: 0, most }
            }
            _ => Memory::Own { send: vec![0; size], receive: vec![0; size] },
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

    /// The block that came back last, which the caches have; a new one as long as there may be more.
    fn block(
        free: &mut Vec<Block>,
        lent: &mut usize,
        most: usize,
        size: usize,
        socket: &mut SeqPacket,
    ) -> io::Result<Block> {
        while let Some(done) = socket.completion() {
            *lent -= 1;
            free.push(done.block);
        }
        if let Some(block) = free.pop() {
            return Ok(block);
        }
        if *lent < most
            && let Ok(block) = socket.buffer(size)
        {
            return Ok(block);
        }
        let done = socket
            .next_completion()?
            .ok_or_else(|| io::Error::other("the pool has no block for a message"))?;
        *lent -= 1;
        Ok(done.block)
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

fn other_size(len: usize, size: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message of {len} bytes in place of one of {size}"))
}
