//! The threads of a side. Each has separate queue pairs, a completion queue and memory, and runs
//! the same loops.
//!
//! Without `--threads` the caller's thread is the only one. The results of several threads become
//! one figure: messages and samples are added, and the time runs from the first post of any thread
//! to the last completion of any.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::thread;

use super::bandwidth::SendTotals;
use super::{CmConnector, MessageCounts, PeerWatch, PhaseClock, UnconnectedSide, Watch, Workload};
use stride_base::buffers::BufferLayout;
use stride_base::control::Resources;
use stride_base::device::LocalDevice;
use stride_base::error::Error;
use stride_base::placement::{PlacementError, pin, processor_time};
use stride_base::plan::{LatencyDefinition, Measure, SideTasks, TestPlan};
use stride_base::progress::TestProgress;
use stride_base::report::{BandwidthRow, LatencyRow, Measured, RatedRow, ResultRow};
use stride_base::result::Distribution;
use stride_base::statistics::{BandwidthSummary, LatencyRecorder, Timer};

/// The threads of a side whose queue pairs are not connected yet.
#[derive(Debug)]
pub struct UnconnectedSides<'a> {
    sides: Vec<UnconnectedSide<'a>>,
    processors: Vec<usize>,
}

impl<'a> UnconnectedSides<'a> {
    /// Creates the objects that the test needs, for threads pinned to these processors, or
    /// unpinned; the threads alternate between the devices.
    ///
    /// # Errors
    ///
    /// A device lacks a resource.
    pub fn new(devices: &'a [LocalDevice], test: &TestPlan, processors: &[usize]) -> Result<Self, Error> {
        let shares = (0..test.thread_count()).map(|thread| test.share(thread)).collect();
        let sides = together(processors, shares, |index, share| {
            UnconnectedSide::new(&devices[index % devices.len()], &share)
        })?;
        Ok(Self { sides, processors: processors.to_vec() })
    }

    /// The layout of messages in each thread's memory.
    pub fn layout(&self) -> BufferLayout {
        self.sides[0].layout()
    }

    /// The information that the peer needs about each queue pair.
    pub fn resources(&self) -> Vec<Resources> {
        self.sides.iter().flat_map(UnconnectedSide::resources).collect()
    }

    /// Connects each queue pair to one of the peer's, by rdma_cm if a connector is given: the plan
    /// guarantees a single thread then.
    ///
    /// # Errors
    ///
    /// The peer cannot be reached.
    pub fn connect(
        self,
        remotes: &[Resources],
        test: &TestPlan,
        timer: &Timer,
        mut manager: Option<CmConnector<'_>>,
    ) -> Result<MeasuringThreads, Error> {
        let mut remotes = remotes;
        let mut parts = Vec::new();
        for (index, side) in (0..).zip(self.sides) {
            let share = test.share(index);
            let (own, others) = remotes.split_at(share.queue_pairs as usize);
            parts.push((side, own, share, manager.take()));
            remotes = others;
        }
        type Part<'a> = (UnconnectedSide<'a>, &'a [Resources], TestPlan, Option<CmConnector<'a>>);
        let connect =
            |_, (side, own, share, manager): Part<'_>| side.connect(own, &share, test.queue_pairs, manager);
        let members = together(&self.processors, parts, connect)?;
        let path = members[0].description();
        let threads = match (test.threads, &self.processors[..]) {
            (None, _) => String::new(),
            (Some(_), []) => ", threads on any processor".to_owned(),
            (Some(_), [one]) => format!(", on processor {one}"),
            (Some(_), many) => {
                let many: Vec<_> = many.iter().map(usize::to_string).collect();
                format!(", on processors {}", many.join(", "))
            }
        };
        let description = format!("{test}{threads}, {path}");
        let (test, timer, recorder) = (test.clone(), timer.clone(), LatencyRecorder::new());
        Ok(MeasuringThreads { members, processors: self.processors, description, test, timer, recorder })
    }
}

/// The threads of a side that is ready to run.
#[derive(Debug)]
pub struct MeasuringThreads {
    members: Vec<Workload>,
    processors: Vec<usize>,
    description: String,
    test: TestPlan,
    timer: Timer,
    recorder: LatencyRecorder,
}

impl MeasuringThreads {
    /// The test and the connection, in one line.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Changes the length of the test, whose other parameters are the same.
    pub fn set_length(&mut self, test: &TestPlan) {
        self.test = test.clone();
        self.members.iter_mut().for_each(|member| member.set_length(test));
    }

    /// Prepares messages of this size and this side's tasks, before either side begins to measure.
    ///
    /// # Errors
    ///
    /// The device refuses a receive.
    pub fn prepare(&mut self, size: u64, parts: SideTasks) -> Result<(), Error> {
        self.members.iter_mut().try_for_each(|member| member.prepare(size, parts))
    }

    /// Measures messages of this size. The client calls it, and the server too if both measure.
    ///
    /// # Errors
    ///
    /// A message failed, or the peer ended.
    pub fn measure(
        &mut self,
        size: u64,
        peer: &PeerWatch<'_>,
        progress: &TestProgress,
    ) -> Result<Measured, Error> {
        PhaseClock::of(self.test.duration, |pace| self.measure_at(pace, size, peer, progress))
    }

    fn measure_at(
        &mut self,
        pace: &PhaseClock,
        size: u64,
        peer: &PeerWatch<'_>,
        progress: &TestProgress,
    ) -> Result<Measured, Error> {
        let (measuring, timer) = (AtomicU32::new(self.test.thread_count()), self.timer.clone());
        let tallies = self.all(|index, member| {
            let mut watch = Watch::new(peer, &timer).counting(progress.of(index));
            let before = processor_time();
            let measured = member.measure(pace, size, &mut watch);
            let processor = processor_time() - before;
            if measured.is_err() {
                // After a failure the figures of other threads do not matter.
                pace.end();
            }
            measuring.fetch_sub(1, Ordering::Relaxed);
            let tally = measured?;
            // The peer's threads may wait for this one to receive their messages, and other threads
            // of this side for the peer's.
            member.keep_taking(&measuring, &mut watch)?;
            Ok((tally, processor))
        })?;
        let processor: u64 = tallies.iter().map(|(_, processor)| processor).sum();
        let tally = tallies
            .into_iter()
            .map(|(tally, _)| tally)
            .reduce(SendTotals::with)
            .expect("a side has a thread");
        let cpu_ns_per_msg = (tally.sent > 0).then(|| processor as f64 / tally.sent as f64);
        Ok(Measured { row: self.row(size, tally), cpu_ns_per_msg })
    }

    fn row(&mut self, size: u64, tally: SendTotals) -> ResultRow {
        let summary = BandwidthSummary::new(size, tally.counted, tally.ticks(), &self.timer);
        let bandwidth = BandwidthRow::new(size, tally.counted, summary);
        let Some(definition) = self.test.latency_definition() else { return ResultRow::Bandwidth(bandwidth) };
        self.recorder.clear();
        self.members.iter().for_each(|member| self.recorder.add(member.recorder()));
        let summary = self.recorder.summary(self.sample_nanoseconds(definition));
        let latency = LatencyRow::new(size, self.recorder.len(), summary);
        match self.test.measure {
            Measure::Latency(_) => ResultRow::Latency(latency),
            _ => ResultRow::Rated(RatedRow { messages: bandwidth, latency }),
        }
    }

    /// The distribution of the last measurement's latencies, if this side measured any.
    pub fn distribution(&self) -> Option<Distribution> {
        let definition = self.test.latency_definition()?;
        Some(self.recorder.distribution(self.sample_nanoseconds(definition)))
    }

    /// Nanoseconds of latency per tick of a sample.
    fn sample_nanoseconds(&self, definition: LatencyDefinition) -> f64 {
        let tick = self.timer.nanoseconds_per_tick();
        match definition {
            // The device clock's samples are nanoseconds.
            _ if self.test.device_clock => 1.0,
            LatencyDefinition::PingPong => tick / 2.0,
            LatencyDefinition::Completion => tick,
        }
    }

    /// Runs the server's part: answers messages, or receives them.
    ///
    /// # Errors
    ///
    /// A message failed, or the peer ended.
    pub fn answer(&mut self, peer: &PeerWatch<'_>) -> Result<(), Error> {
        if !self.test.both_sides_work() {
            return Ok(());
        }
        let timer = self.timer.clone();
        self.all(|_, member| member.answer(&mut Watch::new(peer, &timer))).map(drop)
    }

    /// The numbers of messages of this size after the measurement. It also validates their bytes,
    /// if the test asks for that.
    ///
    /// # Errors
    ///
    /// The bytes differ.
    pub fn arrived(&self, size: u64) -> Result<MessageCounts, Error> {
        self.members.iter().try_fold(MessageCounts { sent: 0, taken: 0 }, |sum, member| {
            let MessageCounts { sent, taken } = member.arrived(size)?;
            Ok(MessageCounts { sent: sum.sent + sent, taken: sum.taken + taken })
        })
    }

    /// Runs `work` on every thread at the same time; returns the first thread's error if several
    /// fail.
    fn all<T: Send>(
        &mut self,
        work: impl Fn(usize, &mut Workload) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>, Error> {
        together(&self.processors, self.members.iter_mut().collect(), work)
    }
}

/// Runs `work` for each member on a separate thread at the same time, pinned to these processors or
/// unpinned. A single member without a processor runs here. If several fail, the first one's error
/// is returned.
///
/// Objects that are created this way lie apart, because allocators have an arena for each thread.
/// Data that two threads write during a measurement must not share a cache line.
fn together<M: Send, T: Send>(
    processors: &[usize],
    mut members: Vec<M>,
    work: impl Fn(usize, M) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    if members.len() == 1 && processors.is_empty() {
        return members.pop().map(|member| work(0, member)).into_iter().collect();
    }
    let (gate, work) = (&StartBarrier::new(), &work);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, member) in members.into_iter().enumerate() {
            let name = thread::Builder::new().name(format!("measure-{index}"));
            let begun = name.spawn_scoped(scope, move || {
                let pinned = processors.get(index).map_or(Ok(()), |processor| pin(*processor));
                let goes = gate.wait();
                pinned?;
                if goes { work(index, member).map(Some) } else { Ok(None) }
            });
            match begun {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    gate.close();
                    return Err(PlacementError::Spawn(error).into());
                }
            }
        }
        gate.open(threads.len() as u32);
        let done = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        done.filter_map(Result::transpose).collect()
    })
}

/// A barrier that makes all threads begin at the same time.
#[derive(Debug)]
struct StartBarrier {
    waiting: AtomicU32,
    state: AtomicU8,
}

impl StartBarrier {
    const SHUT: u8 = 0;
    const OPEN: u8 = 1;
    const CLOSED: u8 = 2;

    fn new() -> Self {
        Self { waiting: AtomicU32::new(0), state: AtomicU8::new(Self::SHUT) }
    }

    /// Waits until the barrier opens; returns false if it closed for good.
    fn wait(&self) -> bool {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        loop {
            match self.state.load(Ordering::Relaxed) {
                // Yields, because other threads may need this processor to reach the barrier.
                Self::SHUT => thread::yield_now(),
                state => return state == Self::OPEN,
            }
        }
    }

    /// Opens the barrier when `threads` threads have arrived. It orders no data, because the
    /// threads got theirs before.
    fn open(&self, threads: u32) {
        while self.waiting.load(Ordering::Relaxed) < threads {
            thread::yield_now();
        }
        self.state.store(Self::OPEN, Ordering::Relaxed);
    }

    fn close(&self) {
        self.state.store(Self::CLOSED, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn nobody_is_through_before_all_are_there() {
        let (gate, through) = (StartBarrier::new(), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    assert!(gate.wait());
                    through.fetch_add(1, Ordering::Relaxed);
                });
            }
            while gate.waiting.load(Ordering::Relaxed) < 3 {
                thread::yield_now();
            }
            assert_eq!(through.load(Ordering::Relaxed), 0);
            gate.open(3);
        });
        assert_eq!(through.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_closed_gate_keeps_nobody() {
        let gate = StartBarrier::new();
        gate.close();
        assert!(!gate.wait());
    }
}
