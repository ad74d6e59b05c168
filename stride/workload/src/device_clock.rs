//! Latency by the device's clock, which is read before the post; the completion's timestamp tells
//! when the device was done.
//!
//! A sample thus excludes the time until this program notices the completion.

use sideway::ibverbs::clock::ClockConverter;
use sideway::ibverbs::device_context::DeviceContext;

use super::latency::mark;
use super::{Completions, MeasuredLoop, PhaseClock, Receiver, Sender, TestPhase, Watch};
use stride_base::error::Error;
use stride_base::statistics::LatencyRecorder;

/// The clock of a device whose completions have timestamps.
#[derive(Debug)]
pub(super) struct DeviceClock {
    context: DeviceContext,
    converter: ClockConverter,
}

impl DeviceClock {
    /// Reads a device's clock parameters.
    ///
    /// # Errors
    ///
    /// The device has no readable clock.
    pub(super) fn of(context: &DeviceContext) -> Result<Self, Error> {
        Ok(Self { context: context.clone(), converter: ClockConverter::new(context).map_err(Error::Clock)? })
    }

    #[inline(always)]
    fn now(&self) -> Result<u64, Error> {
        Ok(self.context.query_raw_clock()?)
    }

    /// Nanoseconds between two timestamps; 0 if the second is slightly earlier, because two
    /// readings of the clock may differ.
    #[inline(always)]
    fn between(&self, earlier: u64, later: u64) -> u64 {
        let (on, back) = (self.converter.elapsed(earlier, later), self.converter.elapsed(later, earlier));
        if on <= back { u64::try_from(on.as_nanos()).unwrap_or(u64::MAX) } else { 0 }
    }
}

/// Sends one message at a time.
#[derive(Debug)]
pub(super) struct DeviceClockRun<'a, 'link> {
    /// The largest number of messages.
    pub(super) iterations: u64,
    pub(super) clock: &'a DeviceClock,
    pub(super) pace: &'a PhaseClock,
    /// Records nanoseconds.
    pub(super) recorder: &'a mut LatencyRecorder,
    pub(super) watch: &'a mut Watch<'link>,
}

impl MeasuredLoop for DeviceClockRun<'_, '_> {
    type Outcome = ();

    fn run<C: Completions>(self, sender: Sender<'_, C>, _: Option<Receiver<'_, C>>) -> Result<(), Error> {
        let Self { iterations, clock, pace, recorder, watch } = self;
        let Sender { mut posters, completions, .. } = sender;
        let Some(poster) = posters.first_mut() else { return Ok(()) };
        recorder.clear();
        for number in 1..=iterations {
            let phase = pace.phase();
            if phase == TestPhase::Over {
                break;
            }
            let start = clock.now()?;
            poster.post_marked(number, mark(number))?;
            watch.begin();
            let mut end = None;
            while completions.poll_timestamps(|time| end = Some(time))? == 0 {
                watch.idle(|sleeper| sleeper.rest(completions))?;
            }
            if let (TestPhase::Counted, Some(end)) = (phase, end) {
                recorder.record(clock.between(start, end));
            }
            watch.passed(number);
        }
        Ok(())
    }
}
