//! Latency by the device's own clock: it is read before the post, and the completion says when the device was done.
//!
//! So what a sample leaves out is how long it takes this program to notice.

use sideway::ibverbs::clock::ClockConverter;
use sideway::ibverbs::device_context::DeviceContext;

use super::latency::mark;
use super::post::{Receiving, Sending};
use super::request::Request;
use super::{Completions, Job, Pace, Phase, Receiver, Sender, Watch};
use crate::error::Error;
use crate::statistics::LatencyRecorder;

/// The clock of a device whose completions have timestamps.
#[derive(Debug)]
pub(super) struct DeviceClock {
    context: DeviceContext,
    converter: ClockConverter,
}

impl DeviceClock {
    /// Of this device.
    ///
    /// # Errors
    ///
    /// It has none that can be read.
    pub(super) fn of(context: &DeviceContext) -> Result<Self, Error> {
        Ok(Self { context: context.clone(), converter: ClockConverter::new(context).map_err(Error::Clock)? })
    }

    #[inline(always)]
    fn now(&self) -> Result<u64, Error> {
        Ok(self.context.query_raw_clock()?)
    }

    /// Nanoseconds from one moment to a later one; none if it is an earlier one, by as much as the two readings of a clock
    /// may differ.
    #[inline(always)]
    fn between(&self, earlier: u64, later: u64) -> u64 {
        let (on, back) = (self.converter.elapsed(earlier, later), self.converter.elapsed(later, earlier));
        if on <= back { u64::try_from(on.as_nanos()).unwrap_or(u64::MAX) } else { 0 }
    }
}

/// Sends one message at a time.
#[derive(Debug)]
pub(super) struct Run<'a, 'link> {
    /// The most messages.
    pub(super) iterations: u64,
    pub(super) clock: &'a DeviceClock,
    pub(super) pace: &'a Pace,
    /// Takes nanoseconds.
    pub(super) recorder: &'a mut LatencyRecorder,
    pub(super) watch: &'a mut Watch<'link>,
}

impl Job for Run<'_, '_> {
    type Outcome = ();

    fn run<Q: Sending, C: Completions, R: Request>(
        self,
        sender: Sender<'_, Q, C, R>,
        _: Option<Receiver<'_, C, impl Receiving>>,
    ) -> Result<(), Error> {
        let Self { iterations, clock, pace, recorder, watch } = self;
        let Sender { mut outboxes, mut request, completions, .. } = sender;
        let Some(outbox) = outboxes.first_mut() else { return Ok(()) };
        recorder.clear();
        for number in 1..=iterations {
            let phase = pace.phase();
            if phase == Phase::Over {
                break;
            }
            let start = clock.now()?;
            outbox.post_marked(&mut request, number, mark(number))?;
            watch.begin();
            let mut end = None;
            while completions.poll_timestamps(|time| end = Some(time))? == 0 {
                watch.idle(|sleeper| sleeper.rest(completions))?;
            }
            if let (Phase::Counted, Some(end)) = (phase, end) {
                recorder.record(clock.between(start, end));
            }
            watch.passed(number);
        }
        Ok(())
    }
}
