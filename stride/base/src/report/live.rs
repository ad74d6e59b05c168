//! Live progress of a message size.

use std::sync::Arc;
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::plan::{LatencyDefinition, Measure, TestPlan, TestPoint};
use crate::progress::TestProgress;
use crate::result::{Interval, SizeResult};

/// The interval between updates.
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Characters of a terminal's progress bar.
const PLACES: usize = 20;

/// The condition that ends a test.
#[derive(Clone, Copy, Debug)]
enum TestLength {
    Messages(u64),
    Time(Duration),
}

impl TestLength {
    /// The completed part of the test, from 0 to 1.
    fn part(self, (time, messages): (Duration, u64)) -> f64 {
        let part = match self {
            Self::Messages(all) => messages as f64 / all.max(1) as f64,
            Self::Time(all) => time.as_secs_f64() / all.as_secs_f64().max(1e-9),
        };
        part.min(1.0)
    }
}

/// The progress of a message size that is being measured.
#[derive(Debug)]
pub(super) struct LiveProgress {
    pub(super) progress: Arc<TestProgress>,
    /// The thread that wakes once a second; it is unparked when the size ends.
    pub(super) ticker: Option<Thread>,
    point: TestPoint,
    whole: TestLength,
    measure: Measure,
    began: Instant,
    /// The last update: its time, and the messages completed by then.
    seen: (Duration, u64),
    pub(super) intervals: Vec<Interval>,
}

impl LiveProgress {
    pub(super) fn new(point: TestPoint, test: &TestPlan, progress: Arc<TestProgress>) -> Self {
        Self {
            progress,
            ticker: None,
            point,
            whole: match test.duration {
                Some(seconds) => TestLength::Time(seconds.duration()),
                None => TestLength::Messages(test.messages_of(point)),
            },
            measure: test.measure,
            began: Instant::now(),
            seen: (Duration::ZERO, 0),
            intervals: Vec::new(),
        }
    }

    /// Ends an interval, and returns its line.
    pub(super) fn tick(&mut self, is_terminal: bool) -> String {
        let now = (self.began.elapsed(), self.progress.get());
        let before = std::mem::replace(&mut self.seen, now);
        let interval = self.interval(before, now);
        self.intervals.push(interval);
        let Interval { bw_gbps, msg_rate_mpps, .. } = interval;
        let figures = format!("{bw_gbps:.4} Gb/s, {:.0} ops/s", msg_rate_mpps * 1e6);
        if is_terminal {
            let part = self.whole.part(now);
            let places = (part * PLACES as f64) as usize;
            let (bar, rest) = ("#".repeat(places), ".".repeat(PLACES - places));
            let percent = part * 100.0;
            format!("{} [{bar}{rest}] {percent:.0} %, {figures}", self.point)
        } else {
            format!("{}, {:.0} s: {figures}", self.point, now.0.as_secs_f64())
        }
    }

    fn interval(&self, from: (Duration, u64), to: (Duration, u64)) -> Interval {
        let duration = to.0.saturating_sub(from.0).as_secs_f64().max(1e-9);
        let iterations = to.1.saturating_sub(from.1);
        let rate = iterations as f64 / duration;
        Interval {
            start_s: from.0.as_secs_f64(),
            duration_s: duration,
            iterations,
            bw_gbps: rate * self.point.size as f64 * 8.0 / 1e9,
            msg_rate_mpps: rate / 1e6,
        }
    }

    /// The partial result when the user interrupts the run; `None` if no message has completed.
    pub(super) fn interrupted(self) -> Option<SizeResult> {
        let all = self.interval((Duration::ZERO, 0), (self.began.elapsed(), self.progress.get()));
        let Interval { duration_s, iterations: iterations @ 1.., .. } = all else { return None };
        let us = duration_s * 1e6 / iterations as f64;
        let (bandwidth, average) = match self.measure {
            // Only the measuring thread knows when each of several requests in flight was sent.
            Measure::Bandwidth | Measure::Echo(_) => (true, None),
            Measure::Latency(LatencyDefinition::PingPong) => (false, Some(us / 2.0)),
            Measure::Latency(LatencyDefinition::Completion) => (false, Some(us)),
        };
        Some(SizeResult {
            msg_bytes: self.point.size,
            in_flight: self.point.in_flight,
            iterations,
            duration_s,
            bw_gbps: bandwidth.then_some(all.bw_gbps),
            msg_rate_mpps: bandwidth.then_some(all.msg_rate_mpps),
            qps: self.point.in_flight.map(|_| all.msg_rate_mpps * 1e6),
            lat_us_avg: average,
            interrupted: true,
            intervals: self.intervals,
            ..SizeResult::default()
        })
    }
}

/// The partial result as text.
pub(super) fn words(size: &SizeResult) -> String {
    let figures = match (size.bw_gbps, size.msg_rate_mpps, size.lat_us_avg) {
        (Some(bandwidth), Some(rate), _) => format!("{bandwidth:.4} Gb/s, {rate:.6} Mpps"),
        (.., Some(average)) => format!("{average:.3} us on average"),
        _ => "nothing".to_owned(),
    };
    let point = TestPoint { size: size.msg_bytes, in_flight: size.in_flight };
    format!("# interrupted after {} messages of {point}: {figures}", size.iterations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::RunPlan;

    fn live(flags: &str) -> LiveProgress {
        of_test(&format!("write {flags}"))
    }

    /// The last row of a test.
    fn of_test(test: &str) -> LiveProgress {
        let words = format!("stride-perf {test}");
        let test = RunPlan::new(cli::parse(words.split_whitespace()).unwrap()).unwrap().test;
        LiveProgress::new(test.cells().last().unwrap(), &test, Arc::new(TestProgress::of_threads(2)))
    }

    #[test]
    fn an_interval_is_what_came_since_the_last() {
        let mut live = live("bw -s 1250 -n 2000");
        let at = Duration::from_secs;
        let interval = live.interval((at(1), 500), (at(3), 1500));
        assert_eq!((interval.start_s, interval.duration_s, interval.iterations), (1.0, 2.0, 1000));
        assert!((interval.bw_gbps - 0.005).abs() < 1e-12 && (interval.msg_rate_mpps - 0.0005).abs() < 1e-12);
        live.progress.of(1).set(500);
        assert!(live.tick(true).starts_with("1250 bytes [#####...............] 25 %, "));
        live.progress.of(1).set(2000);
        assert!(live.tick(false).starts_with("1250 bytes, 0 s: "));
        let counts: Vec<_> = live.intervals.iter().map(|interval| interval.iterations).collect();
        assert_eq!(counts, [500, 1500]);
    }

    #[test]
    fn a_test_that_takes_a_time_is_over_with_it() {
        let second = Duration::from_secs(1);
        let whole = live("bw -D 4").whole;
        assert_eq!(
            [(second, 1), (4 * second, 9), (5 * second, 10)].map(|now| whole.part(now)),
            [0.25, 1.0, 1.0]
        );
        assert_eq!(live("bw -n 8 -q 2").whole.part((second, 4)), 0.25);
    }

    #[test]
    fn intervals_count_completed_messages() {
        assert_eq!(live("bw").interrupted(), None);
        let bandwidth = live("bw -s 64");
        bandwidth.progress.of(1).set(7);
        let size = bandwidth.interrupted().unwrap();
        assert!(size.interrupted && size.bw_gbps.is_some() && size.lat_us_avg.is_none(), "{size:?}");
        assert!(words(&size).starts_with("# interrupted after 7 messages of 64 bytes: "), "{size:?}");
        let latency = live("lat -s 64");
        latency.progress.of(1).set(7);
        let size = latency.interrupted().unwrap();
        assert!(size.bw_gbps.is_none() && size.lat_us_avg.is_some(), "{size:?}");
        let requests = of_test("msg grid -s 1M");
        requests.progress.of(1).set(512);
        let size = requests.interrupted().unwrap();
        assert!(
            size.in_flight == Some(256) && size.qps.unwrap() > 0.0 && size.lat_us_avg.is_none(),
            "{size:?}"
        );
        assert!(
            words(&size).starts_with("# interrupted after 512 messages of 1048576 bytes, 256 in flight: ")
        );
    }

    #[test]
    fn requests_are_as_many_as_those_of_their_size() {
        let mut live = of_test("msg grid -s 1M");
        live.progress.of(1).set(512);
        assert!(live.tick(true).starts_with("1048576 bytes, 256 in flight [##########..........] 50 %, "));
    }
}
