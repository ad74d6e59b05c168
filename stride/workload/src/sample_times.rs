//! A buffer of times, from which samples are computed later.

use stride_base::statistics::LatencyRecorder;

/// Samples that fit into a second-level cache beside the device's data.
const ROOM: usize = 1 << 14;

/// Start and end times of samples. Storing one takes one instruction, but recording a sample takes
/// many.
#[derive(Debug)]
pub(super) struct SampleTimes(Box<[u64]>);

impl SampleTimes {
    /// An empty buffer with all pages present, because unwritten memory would cause page faults.
    pub(super) fn new() -> Self {
        Self(vec![u64::MAX; ROOM + 1].into_boxed_slice())
    }

    /// A place for the start of the first sample, and places for the ends of up to `wanted`
    /// samples. Each end is the start of the next sample.
    pub(super) fn places(&mut self, wanted: u64) -> (&mut u64, &mut [u64]) {
        let count = usize::try_from(wanted).unwrap_or(usize::MAX).min(ROOM);
        let (start, ends) = self.0.split_first_mut().expect("there is room for one sample at least");
        (start, &mut ends[..count])
    }

    /// Records the first `samples` samples.
    #[inline(never)]
    pub(super) fn count(&self, samples: usize, recorder: &mut LatencyRecorder) {
        // The clocks of two processors may differ slightly.
        let lengths = self.0[..=samples].windows(2).map(|times| times[1].saturating_sub(times[0]));
        lengths.for_each(|ticks| recorder.record(ticks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_counted_once() {
        let (mut notes, mut recorder) = (SampleTimes::new(), LatencyRecorder::new());
        let samples = 2 * ROOM as u64 + 5;
        let (mut sample, mut rounds) = (0, 0);
        while sample < samples {
            let (start, ends) = notes.places(samples - sample);
            *start = 1000;
            let (mut now, count) = (*start, ends.len());
            for end in ends {
                sample += 1;
                now += sample;
                *end = now;
            }
            notes.count(count, &mut recorder);
            rounds += 1;
        }
        assert_eq!((rounds, recorder.len()), (3, samples));
        let summary = recorder.summary(1000.0);
        assert_eq!(
            (summary.min, summary.max, summary.avg),
            (1.0, samples as f64, (samples + 1) as f64 / 2.0)
        );
    }

    #[test]
    fn a_clock_that_is_behind_is_no_long_sample() {
        let (mut notes, mut recorder) = (SampleTimes::new(), LatencyRecorder::new());
        let (start, ends) = notes.places(1);
        (*start, ends[0]) = (1000, 999);
        notes.count(1, &mut recorder);
        assert_eq!(recorder.summary(1.0).max, 0.0);
    }
}
