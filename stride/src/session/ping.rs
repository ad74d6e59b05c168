//! One round trip a second over the chosen device: whether the peer answers, and how fast.
//!
//! For the server it is an ordinary test of sends that repeats one size. Each line is the median of
//! many round trips, because the first ones find cold caches on both sides.

use std::thread;
use std::time::{Duration, Instant};

use super::pairs::PairsSession;
use super::{roles, secret, steps};
use crate::cli::{OutputArgs, PingArgs};
use crate::control::{ControlLink, ControlMessage};
use crate::device::{self, LocalDevice};
use crate::error::{Error, LONGEST_PING_INTERVAL, PingError};
use crate::interrupt;
use crate::placement::{Neighbours, Processors};
use crate::plan::{RunPlan, SideRole};
use crate::report::{Output, ResultRow};
use crate::statistics::Timer;
use crate::workload::{PeerWatch, TestProgress};

/// How often a waiting side checks for signals.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Pings the server for the given number of times, or until the user interrupts it.
///
/// # Errors
///
/// The server does not answer any more, or the user interrupted the run.
pub fn ping(args: &PingArgs, files: &OutputArgs, output: &mut Output) -> Result<(), Error> {
    if let Some(flag) = files.first_flag() {
        return Err(PingError::NoResults { flag }.into());
    }
    if !(0.0..=LONGEST_PING_INTERVAL).contains(&args.interval) {
        return Err(PingError::Interval { given: args.interval }.into());
    }
    let plan = RunPlan::of_ping(args)?;
    let device = LocalDevice::open(device::provider(output)?, &plan.local)?;
    plan.test.check(&device.limits)?;
    output.device(&device);
    let secret = secret::find(&plan.local, output)?;
    let devices = std::slice::from_ref(&device);
    let session = PairsSession {
        devices,
        test: &plan.test,
        secret: secret.as_ref(),
        timer: Timer::new(),
        processors: Processors::near(&[device.numa_node]),
        neighbours: if plan.role == SideRole::Loopback { Neighbours::Peer } else { Neighbours::None },
    };
    let pause = Duration::from_secs_f64(args.interval);
    roles::play(
        &plan,
        session.secret,
        output,
        |link, greeting, output| session.server(link, greeting, output),
        |link, output| {
            steps::request(link, session.test, session.secret, output)?;
            let mut seen = RoundTripStats::default();
            let done = reach(&session, &device, (pause, &mut seen), link, output);
            if seen.count > 0 {
                output.table_line(&seen.to_string())?;
            }
            done
        },
    )
}

fn reach(
    session: &PairsSession<'_>,
    device: &LocalDevice,
    (pause, seen): (Duration, &mut RoundTripStats),
    link: &mut ControlLink,
    output: &mut Output,
) -> Result<(), Error> {
    let test = session.test;
    let parts = test.parts(true);
    let (mut threads, progress) = (session.set_up(test, true, link)?, TestProgress::of_threads(1));
    output.connection(&test.connection.to_string(), threads.description());
    let (peer, over) = (link.peer().to_owned(), &device.limits.device);
    let kind = if device.is_soft { ", a software device" } else { "" };
    output.table_line(&format!(
        "# ping {peer} over {over}{kind}: the median of {} round trips of a send and its answer, in us",
        test.iterations
    ))?;
    for (index, point) in test.cells().enumerate() {
        if index > 0 {
            wait_until(Instant::now() + pause, link)?;
        }
        threads.prepare(point.size, parts)?;
        steps::begin(link, point.size)?;
        let measured = threads.measure(point.size, &PeerWatch::new(link), &progress)?;
        link.send(&ControlMessage::Row(measured))?;
        if let ResultRow::Latency(row) = measured.row {
            // The row shows half of a round trip.
            let us = 2.0 * row.p50;
            seen.add(us);
            output.table_line(&format!(
                "{} bytes from {peer}: seq={} rtt={us:.3} us",
                point.size,
                index + 1
            ))?;
        }
    }
    steps::finish(link)
}

/// Waits until the next ping, unless the user interrupts it or the peer ends.
fn wait_until(next: Instant, link: &mut ControlLink) -> Result<(), Error> {
    loop {
        interrupt::check()?;
        link.peer_status()?;
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(PEER_CHECK_INTERVAL));
    }
}

/// Statistics of the round trips.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RoundTripStats {
    count: u32,
    min: f64,
    max: f64,
    sum: f64,
    squares: f64,
}

impl RoundTripStats {
    fn add(&mut self, us: f64) {
        self.min = if self.count == 0 { us } else { self.min.min(us) };
        self.max = self.max.max(us);
        self.sum += us;
        self.squares += us * us;
        self.count += 1;
    }
}

impl std::fmt::Display for RoundTripStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, min, max, sum, squares } = self;
        let average = sum / f64::from(*count);
        let deviation = (squares / f64::from(*count) - average * average).max(0.0).sqrt();
        write!(f, "# {count} round trips: min/avg/max/stdev {min:.3}/{average:.3}/{max:.3}/{deviation:.3} us")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_of_all() {
        let mut seen = RoundTripStats::default();
        [3.0, 1.0, 5.0].into_iter().for_each(|us| seen.add(us));
        assert_eq!(seen.to_string(), "# 3 round trips: min/avg/max/stdev 1.000/3.000/5.000/1.633 us");
        let mut one = RoundTripStats::default();
        one.add(7.5);
        assert_eq!(one.to_string(), "# 1 round trips: min/avg/max/stdev 7.500/7.500/7.500/0.000 us");
    }
}
