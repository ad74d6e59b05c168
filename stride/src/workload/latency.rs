//! One message at a time.

use super::{CompletionPoller, Watch, Writer};
use crate::error::Error;
use crate::statistics::LatencyRecorder;

/// The last byte of the receiving memory before the first message: no first message is marked so.
pub(super) const UNMARKED: u8 = 0;

/// What a latency test runs on.
#[derive(Debug)]
pub(super) struct Run<'a> {
    writer: &'a mut Writer,
    poller: &'a mut CompletionPoller,
    recorder: &'a mut LatencyRecorder,
    arrival: u64,
}

impl<'a> Run<'a> {
    /// A run whose incoming messages end at the offset `arrival` of this side's memory.
    pub(super) fn new(
        writer: &'a mut Writer,
        poller: &'a mut CompletionPoller,
        recorder: &'a mut LatencyRecorder,
        arrival: u64,
    ) -> Self {
        recorder.clear();
        Self { writer, poller, recorder, arrival }
    }

    /// Sends, and waits for the answer to arrive in memory. A sample is the time from one post to the next.
    ///
    /// A sample is counted while the next message is under way, so that counting is not measured.
    pub(super) fn ping(&mut self, iterations: u64, watch: &mut Watch<'_>) -> Result<&LatencyRecorder, Error> {
        let mut sample = None;
        let mut start = watch.now();
        for number in 1..=iterations {
            self.writer.post_marked(number, mark(number))?;
            self.count(sample);
            self.complete_one(watch)?;
            self.wait_for(mark(number), watch)?;
            let now = watch.now();
            sample = Some(now.saturating_sub(start));
            start = now;
        }
        self.count(sample);
        Ok(self.recorder)
    }

    /// Waits for each message to arrive in memory, and answers it.
    pub(super) fn pong(&mut self, iterations: u64, watch: &mut Watch<'_>) -> Result<(), Error> {
        for number in 1..=iterations {
            self.wait_for(mark(number), watch)?;
            self.writer.post_marked(number, mark(number))?;
            self.complete_one(watch)?;
        }
        Ok(())
    }

    /// Sends, and waits for the completion. A sample is the time from the post to the completion.
    pub(super) fn complete(
        &mut self,
        iterations: u64,
        watch: &mut Watch<'_>,
    ) -> Result<&LatencyRecorder, Error> {
        let mut sample = None;
        let mut start = watch.now();
        for number in 1..=iterations {
            self.writer.post_marked(number, mark(number))?;
            self.count(sample);
            self.complete_one(watch)?;
            let now = watch.now();
            sample = Some(now.saturating_sub(start));
            start = now;
        }
        self.count(sample);
        Ok(self.recorder)
    }

    #[inline]
    fn count(&mut self, sample: Option<u64>) {
        if let Some(ticks) = sample {
            self.recorder.record(ticks);
        }
    }

    /// Waits for the completion of the one message that is under way.
    #[inline]
    fn complete_one(&mut self, watch: &mut Watch<'_>) -> Result<(), Error> {
        while self.poller.poll()? == 0 {
            watch.spin()?;
        }
        Ok(())
    }

    /// Waits until the last byte of the incoming message is there, which comes after all others.
    #[inline]
    fn wait_for(&self, mark: u8, watch: &mut Watch<'_>) -> Result<(), Error> {
        let arrival = self.writer.flag(self.arrival);
        while arrival.load() != mark {
            watch.spin()?;
        }
        Ok(())
    }
}

/// The mark of a message, which differs from the one before and from [`UNMARKED`] for the first.
#[inline]
fn mark(number: u64) -> u8 {
    number as u8
}
