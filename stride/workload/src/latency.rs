//! The latency loops: one message at a time.

use sideway::ibverbs::queue_pair::{PreparedReceiveList, PreparedSendList};

use super::post::{PostItem, PostMarked, ReceivePoster, ReceiveState};
use super::{
    AnyCompletions, Completions, MeasuredLoop, PhaseClock, Receiver, SampleTimes, Sender, TestPhase, Watch,
};
use stride_base::buffers::Flag;
use stride_base::error::{CompletionError, Error};
use stride_base::statistics::LatencyRecorder;

/// The last byte of the receiving memory before the first message; no first message has this mark.
pub(super) const UNMARKED: u8 = 0;

/// Messages between two updates of the progress.
const PROGRESS_INTERVAL: usize = 32;

/// A side's part in each exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatencyPart {
    /// Sends, and waits for the answer to arrive. A sample is the time from one post to the next.
    Ping,
    /// Waits for a message to arrive, and answers it.
    Pong,
    /// Sends, and waits for the completion. A sample is the time from the post to the completion.
    Complete,
}

/// A latency test.
#[derive(Debug)]
pub(super) struct LatencyRun<'a, 'link> {
    pub(super) part: LatencyPart,
    /// The largest number of messages.
    pub(super) iterations: u64,
    pub(super) pace: &'a PhaseClock,
    pub(super) notes: &'a mut SampleTimes,
    pub(super) recorder: &'a mut LatencyRecorder,
    pub(super) watch: &'a mut Watch<'link>,
}

impl MeasuredLoop for LatencyRun<'_, '_> {
    type Outcome = ();

    fn run<C: Completions>(
        self,
        sender: Sender<'_, C>,
        receiver: Option<Receiver<'_, C>>,
    ) -> Result<(), Error> {
        let Self { part, iterations, pace, notes, recorder, watch } = self;
        let Sender { posters, completions, arrival } = sender;
        let Some(mut poster) = posters.into_iter().next() else { return Ok(()) };
        recorder.clear();
        let samples = Samples { iterations, pace, notes, recorder };
        let traits = poster.traits();
        // An inline request contains the mark, so it differs each time.
        if traits.is_marked {
            let completions = completions.any();
            return poster.run_marked(MarkedRun { part, completions, arrival, samples, watch });
        }
        let receiver = receiver
            .and_then(|Receiver { posters, completions }| Some((posters.into_iter().next()?, completions)));
        let receiver = receiver.filter(|_| traits.takes_receives);
        match poster.prepare(1, &mut || PostItem { number: 0, signaled: true, offset: 0 }) {
            Some(list) => run(part, RepeatedSend { list: list?, completions }, receiver, samples, watch),
            None => {
                let poster = &mut *poster;
                run(part, BuiltSend { poster, completions }, receiver, samples, watch)
            }
        }
    }
}

/// A latency test of messages that the peer notices by their last byte. The mark may be copied into
/// the request, so that each request is built.
pub(super) struct MarkedRun<'a, 'link> {
    part: LatencyPart,
    completions: AnyCompletions<'a>,
    arrival: Flag<'a>,
    samples: Samples<'a>,
    watch: &'a mut Watch<'link>,
}

impl MarkedRun<'_, '_> {
    /// Runs it with a post function.
    pub(super) fn with(self, poster: impl PostMarked) -> Result<(), Error> {
        let Self { part, completions, arrival, samples, watch } = self;
        match completions {
            AnyCompletions::Basic(completions) => {
                run_marked(part, BuiltSend { poster, completions }, arrival, samples, watch)
            }
            AnyCompletions::Extended(completions) => {
                run_marked(part, BuiltSend { poster, completions }, arrival, samples, watch)
            }
        }
    }
}

fn run_marked(
    part: LatencyPart,
    own: impl Exchange,
    arrival: Flag<'_>,
    samples: Samples<'_>,
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    match part {
        LatencyPart::Complete => complete(own, samples, watch),
        _ => meet(part, own, arrival, samples, watch),
    }
}

/// Runs a side's part for messages whose arrival a completion reports.
fn run<'a, C: Completions>(
    part: LatencyPart,
    own: impl Exchange,
    receiver: Option<(ReceivePoster<'a>, &'a mut C)>,
    samples: Samples<'_>,
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    if part == LatencyPart::Complete {
        return complete(own, samples, watch);
    }
    let Some((mut poster, completions)) = receiver else { unreachable!("nobody answers it") };
    if poster.receives.list > 1 {
        return meet(part, own, BuiltReceive { poster, completions }, samples, watch);
    }
    let (list, receives) = poster.prepare_one()?;
    meet(part, own, RepeatedReceive { list, receives, completions }, samples, watch)
}

/// Measures the time until a completion. A function, like [`meet`], so that the compiler allocates
/// registers for one loop at a time.
#[inline(never)]
fn complete(own: impl Exchange, samples: Samples<'_>, watch: &mut Watch<'_>) -> Result<(), Error> {
    samples.take(own, watch)
}

/// Runs the part of a side that asks or answers.
#[inline(never)]
fn meet(
    part: LatencyPart,
    own: impl Exchange,
    by: impl AwaitMessage,
    samples: Samples<'_>,
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    match part {
        LatencyPart::Pong => answer(own, by, samples.iterations, watch),
        _ => samples.take(PingPong { own, by }, watch),
    }
}

/// One measured exchange. A trait instead of a closure, because the compiler calls closures that
/// several loops use, and a call costs a message more instructions than the work itself.
trait Exchange {
    /// Performs exchange `number`, counted from 1.
    fn exchange(&mut self, number: u64, watch: &mut Watch<'_>) -> Result<(), Error>;
}

/// Waits for the peer's messages.
trait AwaitMessage {
    /// Waits until message `number` has arrived.
    fn wait(&mut self, number: u64, watch: &mut Watch<'_>) -> Result<(), Error>;
}

/// Sends a message, which is built each time, and waits for its completion.
struct BuiltSend<'a, P, C> {
    poster: P,
    completions: &'a mut C,
}

impl<P: PostMarked, C: Completions> Exchange for BuiltSend<'_, P, C> {
    #[inline(always)]
    fn exchange(&mut self, number: u64, watch: &mut Watch<'_>) -> Result<(), Error> {
        self.poster.post_marked(number, mark(number))?;
        complete_one(self.completions, watch)
    }
}

/// Sends a prepared message repeatedly, as perftest does; all messages are alike.
struct RepeatedSend<'a, C> {
    list: PreparedSendList<'a>,
    completions: &'a mut C,
}

impl<C: Completions> Exchange for RepeatedSend<'_, C> {
    #[inline(always)]
    fn exchange(&mut self, number: u64, watch: &mut Watch<'_>) -> Result<(), Error> {
        self.list.post()?;
        complete_one(self.completions, watch).map_err(|error| numbered(error, number))
    }
}

/// Adds the number of the failed message, which a prepared request does not carry.
#[cold]
fn numbered(error: Error, number: u64) -> Error {
    match error {
        Error::Completion(error) => Error::Completion(CompletionError { wr_id: number, ..error }),
        other => other,
    }
}

/// Answers messages until the end.
#[inline(always)]
fn answer(
    mut own: impl Exchange,
    mut by: impl AwaitMessage,
    messages: u64,
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    for number in 1..=messages {
        by.wait(number, watch)?;
        own.exchange(number, watch)?;
    }
    Ok(())
}

/// Sends a message, and waits for the peer's answer.
struct PingPong<O, A> {
    own: O,
    by: A,
}

impl<O: Exchange, A: AwaitMessage> Exchange for PingPong<O, A> {
    #[inline(always)]
    fn exchange(&mut self, number: u64, watch: &mut Watch<'_>) -> Result<(), Error> {
        self.own.exchange(number, watch)?;
        self.by.wait(number, watch)
    }
}

/// The last byte of an incoming message arrives after all others.
impl AwaitMessage for Flag<'_> {
    #[inline(always)]
    fn wait(&mut self, number: u64, watch: &mut Watch<'_>) -> Result<(), Error> {
        // No `watch.begin()`: the looks of this wait count with those of the last completion's.
        while self.load() != mark(number) {
            watch.spin()?;
        }
        Ok(())
    }
}

/// Waits for the completion of a receive, and posts another one, which is built each time.
struct BuiltReceive<'a, C> {
    poster: ReceivePoster<'a>,
    completions: &'a mut C,
}

impl<C: Completions> AwaitMessage for BuiltReceive<'_, C> {
    #[inline(always)]
    fn wait(&mut self, _: u64, watch: &mut Watch<'_>) -> Result<(), Error> {
        complete_one(self.completions, watch)?;
        Ok(self.poster.take()?)
    }
}

/// Waits for the completion of a receive, and posts a prepared one again.
struct RepeatedReceive<'a, C> {
    list: PreparedReceiveList<'a>,
    receives: &'a mut ReceiveState,
    completions: &'a mut C,
}

impl<C: Completions> AwaitMessage for RepeatedReceive<'_, C> {
    #[inline(always)]
    fn wait(&mut self, number: u64, watch: &mut Watch<'_>) -> Result<(), Error> {
        complete_one(self.completions, watch).map_err(|error| numbered(error, number))?;
        let receives = &mut *self.receives;
        receives.taken += 1;
        if receives.posted < receives.awaited {
            receives.posted += 1;
            self.list.post()?;
        }
        Ok(())
    }
}

/// The destination of samples.
struct Samples<'a> {
    iterations: u64,
    pace: &'a PhaseClock,
    notes: &'a mut SampleTimes,
    recorder: &'a mut LatencyRecorder,
}

impl Samples<'_> {
    /// Measures each exchange. Properties of the test are checked here, and not once per message.
    #[inline(always)]
    fn take(self, mut exchange: impl Exchange, watch: &mut Watch<'_>) -> Result<(), Error> {
        match watch.counter() {
            Some(counter) if self.pace.is_steady() => {
                self.each::<false>(&mut exchange, watch, |_| counter.read())
            }
            _ => {
                // Moved, so that the loop above can keep it in registers.
                let mut exchange = exchange;
                self.take_in_phases(&mut exchange, watch)
            }
        }
    }

    /// The same for tests with phases or without a counter: one loop for all exchanges.
    #[inline(never)]
    fn take_in_phases(self, exchange: &mut dyn Exchange, watch: &mut Watch<'_>) -> Result<(), Error> {
        self.each::<true>(exchange, watch, |watch| watch.now())
    }

    /// Reads the clock once per message. The loop only stores times; samples are counted when the
    /// buffer is full or another phase begins, outside of any sample. A test without phases can
    /// only end early, which is checked when samples are counted.
    #[inline(always)]
    fn each<const HAS_PHASES: bool>(
        self,
        exchange: &mut (impl Exchange + ?Sized),
        watch: &mut Watch<'_>,
        now: impl Fn(&Watch<'_>) -> u64,
    ) -> Result<(), Error> {
        let Self { iterations, pace, notes, recorder } = self;
        let mut number = 0;
        while number < iterations {
            let phase = pace.phase();
            if phase == TestPhase::Over {
                break;
            }
            let (start, ends) = notes.places(iterations - number);
            let before = number;
            *start = now(watch);
            'phase: for ends in ends.chunks_mut(PROGRESS_INTERVAL) {
                for end in ends {
                    number += 1;
                    exchange.exchange(number, watch)?;
                    *end = now(watch);
                    if HAS_PHASES {
                        watch.passed(number);
                        if pace.is_past(phase) {
                            break 'phase;
                        }
                    }
                }
                watch.passed(number);
            }
            if phase == TestPhase::Counted {
                notes.count((number - before) as usize, recorder);
            }
        }
        Ok(())
    }
}

/// Waits for the completion of the only outstanding message.
#[inline(always)]
fn complete_one(completions: &mut impl Completions, watch: &mut Watch<'_>) -> Result<(), Error> {
    watch.begin();
    while completions.poll(1, |_| Ok(()))? == 0 {
        watch.idle(|sleeper| sleeper.rest(completions))?;
    }
    Ok(())
}

/// The mark of a message, which differs from the previous one's, and for the first from
/// [`UNMARKED`].
#[inline]
pub(super) fn mark(number: u64) -> u8 {
    number as u8
}
