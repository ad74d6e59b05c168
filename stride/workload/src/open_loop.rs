//! Sends messages at a given rate, independent of completions (an open loop).
//!
//! A message's latency starts at its scheduled time, not when the queue had room: a stall delays
//! every message scheduled during it, as it would delay the requests of a service. The loop reads
//! the clock once per turn, and once for the completions that a turn finds.

use super::bandwidth::{CountedWindow, SendTotals};
use super::post::{SendPoster, Tag};
use super::schedule::Schedule;
use super::{Completions, MeasuredLoop, PhaseClock, Receiver, Sender, Watch};
use stride_base::buffers::Cycle;
use stride_base::error::Error;
use stride_base::statistics::LatencyRecorder;

/// Sends messages when they are due, by each queue pair in turn, and records their latencies.
#[derive(Debug)]
pub(super) struct OpenLoopRun<'a, 'link> {
    /// Messages per queue pair.
    pub(super) iterations: u64,
    /// The most outstanding messages.
    pub(super) depth: u32,
    /// Completions per poll.
    pub(super) batch: u32,
    pub(super) cycle: Cycle,
    /// The average interval between messages.
    pub(super) ticks: f64,
    /// Messages sent together.
    pub(super) burst: u32,
    pub(super) pace: &'a PhaseClock,
    pub(super) recorder: &'a mut LatencyRecorder,
    pub(super) watch: &'a mut Watch<'link>,
}

/// A queue pair's part.
#[derive(Debug)]
struct RatedPair<'a> {
    poster: Box<dyn SendPoster + 'a>,
    cycle: Cycle,
    posted: u64,
    completed: u64,
    /// The scheduled times of outstanding messages, indexed by message number modulo the length.
    meant: Box<[u64]>,
}

impl MeasuredLoop for OpenLoopRun<'_, '_> {
    type Outcome = SendTotals;

    fn run<C: Completions>(
        self,
        sender: Sender<'_, C>,
        _: Option<Receiver<'_, C>>,
    ) -> Result<SendTotals, Error> {
        let Self { iterations, depth, batch, cycle, ticks, burst, pace, recorder, watch } = self;
        let Sender { posters, completions, .. } = sender;
        let places = depth.next_power_of_two() as usize;
        let pair =
            |poster| RatedPair { poster, cycle, posted: 0, completed: 0, meant: vec![0; places].into() };
        let mut pairs: Vec<_> = posters.into_iter().map(pair).collect();
        let mut all = iterations.saturating_mul(pairs.len() as u64);
        let (mut posted, mut completed, mut turn) = (0, 0, 0);
        let mut through = vec![Tag::of_pair(0); batch as usize].into_boxed_slice();
        recorder.clear();
        let mut window = CountedWindow::new(pace, watch.now());
        let mut schedule = Schedule::new(watch.now(), ticks, burst);
        while completed < all {
            let now = watch.now();
            while posted < all && schedule.next() <= now && pairs[turn].has_room(depth) {
                pairs[turn].post(schedule.next())?;
                schedule.advance();
                posted += 1;
                turn = if turn + 1 == pairs.len() { 0 } else { turn + 1 };
            }
            let mut count = 0;
            completions.poll(batch, |tag| {
                through[count] = tag;
                count += 1;
                Ok(())
            })?;
            if count == 0 {
                watch.spin()?;
            } else {
                let (now, counts) = (watch.now(), window.counts());
                for tag in &through[..count] {
                    let Some(pair) = pairs.get_mut(tag.pair()) else { continue };
                    let meant = pair.complete(tag.number());
                    if counts {
                        recorder.record(now.saturating_sub(meant));
                    }
                }
                completed += count as u64;
                watch.passed(completed);
            }
            if window.follow(completed, watch) {
                all = posted;
            }
        }
        Ok(window.close(completed, watch.now()))
    }
}

impl RatedPair<'_> {
    #[inline(always)]
    fn has_room(&self, depth: u32) -> bool {
        self.posted - self.completed < u64::from(depth)
    }

    #[inline(always)]
    fn place(&self, number: u64) -> usize {
        number as usize & (self.meant.len() - 1)
    }

    #[inline(always)]
    fn post(&mut self, meant: u64) -> Result<(), Error> {
        let (number, place) = (self.posted, self.place(self.posted));
        self.meant[place] = meant;
        self.posted += 1;
        Ok(self.poster.post_one(number, self.cycle.advance())?)
    }

    /// Completes a message; returns its scheduled time.
    #[inline(always)]
    fn complete(&mut self, number: u64) -> u64 {
        self.completed = number + 1;
        self.meant[self.place(number)]
    }
}
