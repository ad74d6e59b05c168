//! Messages over the operating system's TCP.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::phase_clock::PhaseClock;
use stride_base::control::{ControlError, ControlLink};
use stride_base::plan::{LatencyDefinition, Measure, TestPlan};
use stride_base::progress::ThreadProgress;
use stride_base::report::{BandwidthRow, LatencyRow, ResultRow};
use stride_base::result::Distribution;
use stride_base::statistics::{BandwidthSummary, LatencyRecorder, Timer};

/// How often a waiting side checks that the peer still lives.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The receiving side's confirmation that all messages have arrived.
const ANSWER: [u8; 1] = [1];

/// The first byte of a message; with `-D` the last message of a size has another one.
const MORE: u8 = 1;
const LAST: u8 = 0;

/// One side's end of the measured connection.
#[derive(Debug)]
pub struct TcpMessages<'a> {
    socket: TcpStream,
    memory: Vec<u8>,
    test: &'a TestPlan,
    timer: &'a Timer,
    recorder: LatencyRecorder,
}

impl<'a> TcpMessages<'a> {
    /// Uses a connection. For latency tests it disables Nagle's algorithm.
    ///
    /// # Errors
    ///
    /// The system refuses the option.
    pub fn new(socket: TcpStream, test: &'a TestPlan, timer: &'a Timer) -> io::Result<Self> {
        socket.set_nodelay(test.measure != Measure::Bandwidth)?;
        socket.set_read_timeout(Some(PEER_CHECK_INTERVAL))?;
        socket.set_write_timeout(Some(PEER_CHECK_INTERVAL))?;
        let largest = usize::try_from(test.sizes.largest()).unwrap_or(usize::MAX);
        // Nonzero, because memory of zeroes would map the system's single zero page, which fits
        // into the nearest cache.
        Ok(Self { socket, memory: vec![MORE; largest], test, timer, recorder: LatencyRecorder::new() })
    }

    /// The addresses of both ends, as text.
    pub fn description(&self) -> String {
        let name = |address: io::Result<std::net::SocketAddr>| {
            address.map_or("nowhere".to_owned(), |address| address.to_string())
        };
        let how = if self.test.measure == Measure::Bandwidth { "" } else { ", TCP_NODELAY" };
        format!("from {} to {}{how}", name(self.socket.local_addr()), name(self.socket.peer_addr()))
    }

    /// Runs the client's part: measures messages of this size, and reports completed ones to
    /// `progress`.
    ///
    /// # Errors
    ///
    /// The connection failed, or the peer ended.
    pub fn measure(
        &mut self,
        size: u64,
        progress: &ThreadProgress,
        link: &mut ControlLink,
    ) -> Result<ResultRow, ControlError> {
        PhaseClock::of(self.test.duration, |pace| match self.test.measure {
            Measure::Latency(_) => self.ping(size, pace, progress, link),
            Measure::Bandwidth | Measure::Echo(_) => self.stream(size, pace, progress, link),
        })
    }

    /// Runs the server's part: receives messages of this size, and answers each in a latency test,
    /// otherwise the last.
    ///
    /// # Errors
    ///
    /// The connection failed, or the peer ended.
    pub fn answer(&mut self, size: u64, link: &mut ControlLink) -> Result<(), ControlError> {
        let Self { socket, memory, test, .. } = self;
        let message = &mut memory[..size as usize];
        let answers_each = matches!(test.measure, Measure::Latency(_));
        for _ in 0..test.most_messages() {
            receive(socket, message, link)?;
            if answers_each {
                send(socket, message, link)?;
            }
            if test.duration.is_some() && message[0] == LAST {
                break;
            }
        }
        if answers_each { Ok(()) } else { send(socket, &ANSWER, link) }
    }

    /// The distribution of the last measurement's latencies, if it had any.
    pub fn distribution(&self) -> Option<Distribution> {
        matches!(self.test.measure, Measure::Latency(LatencyDefinition::PingPong))
            .then(|| self.recorder.distribution(self.timer.nanoseconds_per_tick() / 2.0))
    }

    fn stream(
        &mut self,
        size: u64,
        pace: &PhaseClock,
        progress: &ThreadProgress,
        link: &mut ControlLink,
    ) -> Result<ResultRow, ControlError> {
        let Self { socket, memory, test, timer, .. } = self;
        let (message, mut number) = (&mut memory[..size as usize], 0);
        message[0] = MORE;
        let start = timer.now();
        while number < test.most_messages() && message[0] == MORE {
            if pace.is_over() {
                message[0] = LAST;
            }
            send(socket, message, link)?;
            number += 1;
            progress.set(number);
        }
        receive(socket, &mut [0; ANSWER.len()], link)?;
        let ticks = timer.now() - start;
        let summary = BandwidthSummary::new(size, number, ticks, timer);
        Ok(ResultRow::Bandwidth(BandwidthRow::new(size, number, summary)))
    }

    fn ping(
        &mut self,
        size: u64,
        pace: &PhaseClock,
        progress: &ThreadProgress,
        link: &mut ControlLink,
    ) -> Result<ResultRow, ControlError> {
        let Self { socket, memory, test, timer, recorder } = self;
        let (message, mut number) = (&mut memory[..size as usize], 0);
        message[0] = MORE;
        recorder.clear();
        // The answer is an echo.
        while number < test.most_messages() && message[0] == MORE {
            if pace.is_over() {
                message[0] = LAST;
            }
            let start = timer.now();
            send(socket, message, link)?;
            receive(socket, message, link)?;
            recorder.record(timer.now() - start);
            number += 1;
            progress.set(number);
        }
        // A sample covers both directions.
        let summary = recorder.summary(timer.nanoseconds_per_tick() / 2.0);
        Ok(ResultRow::Latency(LatencyRow::new(size, number, summary)))
    }
}

fn send(socket: &mut TcpStream, mut bytes: &[u8], link: &mut ControlLink) -> Result<(), ControlError> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) => wait(error, link)?,
        }
    }
    Ok(())
}

fn receive(socket: &mut TcpStream, mut bytes: &mut [u8], link: &mut ControlLink) -> Result<(), ControlError> {
    while !bytes.is_empty() {
        match socket.read(bytes) {
            Ok(0) => return Err(gone(ErrorKind::UnexpectedEof.into(), link)),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) => wait(error, link)?,
        }
    }
    Ok(())
}

/// Checks after a timeout that the peer still lives.
#[cold]
fn wait(error: io::Error, link: &mut ControlLink) -> Result<(), ControlError> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => link.peer_status().map(drop),
        _ => Err(gone(error, link)),
    }
}

/// A peer that gave up has sent the reason over the control connection.
fn gone(error: io::Error, link: &mut ControlLink) -> ControlError {
    match link.receive() {
        Err(said @ ControlError::PeerFailed { .. }) => said,
        _ => link.lost(error),
    }
}
