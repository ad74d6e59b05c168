//! Requests and answers of a mux.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trespass::mux::{Mux, MuxError, Request};

use super::Messages;
use super::messages::{MessageLoad, other_size};
use super::phase_clock::PhaseClock;
use stride_base::plan::TestPoint;
use stride_base::progress::TestProgress;
use stride_base::report::{EchoRow, ResultRow};

/// The requests of a server that wait for the time of their answers, the oldest first.
struct DelayedAnswers {
    delay: Duration,
    waiting: VecDeque<(Instant, Request, Vec<u8>)>,
}

impl Messages<'_> {
    /// Runs the client's part over a mux: measures requests, and reports answered ones to
    /// `progress`.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub fn measure_requests(
        &mut self,
        point: TestPoint,
        progress: &TestProgress,
        mux: &Mux,
    ) -> io::Result<ResultRow> {
        let (size, messages, progress) = (point.size, self.test.messages_of(point), progress.of(0));
        PhaseClock::of(self.test.duration, |pace| {
            let load = MessageLoad { size, messages, pace, progress };
            self.request(load, point.in_flight.unwrap_or(1), mux)
        })
    }

    /// Keeps requests in flight, and takes their answers in order. A request's time starts when the
    /// request whose place it takes was answered.
    fn request(&mut self, load: MessageLoad<'_>, in_flight: u32, mux: &Mux) -> io::Result<ResultRow> {
        let (MessageLoad { size, messages, pace, progress }, timer) = (load, self.timer);
        // Nonzero, because memory of zeroes would map the system's single zero page, which fits
        // into the nearest cache.
        let bytes: Arc<[u8]> = vec![1; size as usize].into();
        let (mut under_way, mut free) = (VecDeque::new(), VecDeque::new());
        let (mut unused, mut sent, mut answered) = (in_flight, 0, 0);
        let has_more = |sent: u64| sent < messages && !pace.is_over();
        self.recorder.clear();
        mux.set_cork(in_flight > 1);
        let (start, before) = (timer.now(), mux.stats().batches);
        while answered < sent || has_more(sent) {
            while has_more(sent) && (unused > 0 || !free.is_empty()) {
                let since = if unused > 0 { start } else { free.pop_front().unwrap_or(start) };
                unused = unused.saturating_sub(1);
                under_way.push_back((since, mux.request(bytes.clone())?));
                sent += 1;
            }
            // Waits for the first answer, and takes further ones only if they have arrived.
            let mut next = under_way.pop_front();
            while let Some((since, answer)) = next {
                let answer = answer.wait()?;
                if answer.len() != size as usize {
                    return Err(other_size(answer.len(), size as usize));
                }
                let now = timer.now();
                self.recorder.record(now - since);
                free.push_back(now);
                answered += 1;
                progress.set(answered);
                let has_arrived = under_way.front().is_some_and(|(_, answer)| answer.has_arrived());
                next = if has_arrived { under_way.pop_front() } else { None };
            }
        }
        let (ticks, writes) = (timer.now() - start, mux.stats().batches - before);
        mux.set_cork(false);
        if self.test.duration.is_some() {
            mux.send_one_way(b"")?;
        }
        let requests = self.bandwidth(size, answered, ticks);
        let per_write = Some(answered as f64 / writes.max(1) as f64);
        Ok(ResultRow::Echo(EchoRow { in_flight, requests, answers: self.latency(size, answered), per_write }))
    }

    /// Runs the server's part over a mux: answers each request after `delay`. Answers to requests
    /// that arrived together share writes.
    ///
    /// # Errors
    ///
    /// The connection failed, or the client sent something else.
    pub fn answer_requests(&mut self, point: TestPoint, delay: Duration, mux: &Mux) -> io::Result<()> {
        let most = self.test.messages_of(point);
        let mut answers = DelayedAnswers { delay, waiting: VecDeque::new() };
        mux.set_cork(point.in_flight.is_some_and(|in_flight| in_flight > 1));
        let mut arrived = 0;
        while arrived < most {
            let Some(mut request) = answers.next_request(mux)? else { continue };
            if request.is_one_way() && self.test.duration.is_some() {
                break;
            }
            let bytes = request.bytes()?;
            if bytes.len() as u64 != point.size || request.is_one_way() {
                return Err(other_size(bytes.len(), point.size as usize));
            }
            arrived += 1;
            answers.give(request, bytes)?;
        }
        while let Some(left) = answers.give_due()? {
            if let Some(request) = arrived_within(left, mux)? {
                let text = format!("request {} is beyond the {most} of the test", request.id());
                return Err(io::Error::new(ErrorKind::InvalidData, text));
            }
        }
        mux.set_cork(false);
        Ok(())
    }
}

impl DelayedAnswers {
    /// Answers now, or later.
    fn give(&mut self, request: Request, bytes: Vec<u8>) -> io::Result<()> {
        if self.delay.is_zero() {
            return Ok(request.answer(bytes)?);
        }
        self.waiting.push_back((Instant::now() + self.delay, request, bytes));
        Ok(())
    }

    /// Gives the answers whose time has come. Returns how long the next one waits.
    fn give_due(&mut self) -> io::Result<Option<Duration>> {
        let now = Instant::now();
        while let Some((due, request, bytes)) = self.waiting.pop_front() {
            let left = due.saturating_duration_since(now);
            if !left.is_zero() {
                self.waiting.push_front((due, request, bytes));
                return Ok(Some(left));
            }
            request.answer(bytes)?;
        }
        Ok(None)
    }

    /// Waits for a request, until an answer is due.
    fn next_request(&mut self, mux: &Mux) -> io::Result<Option<Request>> {
        match self.give_due()? {
            Some(left) => arrived_within(left, mux),
            None => arrived(mux.next_request()).map(Some),
        }
    }
}

fn arrived_within(time: Duration, mux: &Mux) -> io::Result<Option<Request>> {
    match mux.next_request_within(time) {
        Err(MuxError::DeadlinePassed { .. }) => Ok(None),
        other => arrived(other).map(Some),
    }
}

fn arrived(request: Result<Option<Request>, MuxError>) -> io::Result<Request> {
    request?.ok_or_else(|| ErrorKind::UnexpectedEof.into())
}
