//! Times that are counted later.

use stride_base::statistics::LatencyRecorder;

/// So many samples fit into a second-level cache beside what the device needs.
const ROOM: usize = 1 << 14;

/// Room for the times at which samples begin and end: noting one is one instruction, which counting the sample is not.
#[derive(Debug)]
pub(super) struct SampleTimes(Box<[u64]>);

impl SampleTimes {
    /// Without times. Its memory is there: what was never written to has no page yet.
    pub(super) fn new() -> Self {
        Self(vec![u64::MAX; ROOM + 1].into_boxed_slice())
    }

    /// A place for the beginning of the first sample, and places for the ends of so many, or of as many as there is
    /// room for. Where one ends, the next begins.
    pub(super) fn places(&mut self, wanted: u64) -> (&mut u64, &mut [u64]) {
        let count = usize::try_from(wanted).unwrap_or(usize::MAX).min(ROOM);
        let (start, ends) = self.0.split_first_mut().expect("there is room for one sample at least");
        (start, &mut ends[..count])
    }

    /// Counts so many samples.
    #[inline(never)]
    pub(super) fn count(&self, samples: usize, recorder: &mut LatencyRecorder) {
        // Two processors' clocks may differ a little.
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
