//! The bandwidth loop: keeps the queues full until all messages have completed.

use std::sync::atomic::{AtomicU32, Ordering};

use sideway::ibverbs::queue_pair::{PostSendError, PreparedSendList};

use super::post::{ReceivePoster, ReceiveState, SendPoster, Tag};
use super::{Chain, Completions, MeasuredLoop, PhaseClock, Receiver, Sender, TestPhase, Watch};
use stride_base::error::Error;

/// The messages that a thread sent, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendTotals {
    /// All messages.
    pub(super) sent: u64,
    /// The messages that count.
    pub(super) counted: u64,
    /// The start of the counted part; without margins, the time before the first post.
    pub(super) begin: u64,
    /// The end of the counted part; without margins, the time after the last completion.
    pub(super) end: u64,
}

impl SendTotals {
    /// Combines with another thread's simultaneous sends: from the first post of either to the last
    /// completion of either.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            counted: self.counted + other.counted,
            begin: self.begin.min(other.begin),
            end: self.end.max(other.end),
        }
    }

    /// The duration of the counted part.
    pub(super) fn ticks(self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

/// Posts and completes all messages of each queue pair, and receives the peer's messages at the
/// same time.
#[derive(Debug)]
pub(super) struct BandwidthRun<'a, 'link> {
    /// The order of a queue pair's messages.
    pub(super) chain: Chain,
    /// Completions per poll.
    pub(super) batch: u32,
    /// Whether the peer sends messages at the same time.
    pub(super) takes: bool,
    pub(super) pace: &'a PhaseClock,
    pub(super) watch: &'a mut Watch<'link>,
}

impl MeasuredLoop for BandwidthRun<'_, '_> {
    type Outcome = SendTotals;

    fn run<C: Completions>(
        self,
        sender: Sender<'_, C>,
        receiver: Option<Receiver<'_, C>>,
    ) -> Result<SendTotals, Error> {
        let Sender { mut posters, completions, .. } = sender;
        let drain = receiver.filter(|_| self.takes).map(|receiver| Drain::new(receiver, self.batch));
        if self.chain.repeats()
            && let Some(lists) = Repeated::all(&mut posters, &self.chain)
        {
            let stream = SendStream::new(lists?, completions, self.chain, self.batch);
            return follow(stream, drain, self.pace, self.watch);
        }
        let stream = SendStream::new(posters, completions, self.chain, self.batch);
        follow(stream, drain, self.pace, self.watch)
    }
}

/// Sends all of a stream, and receives the peer's messages at the same time if it sends any.
fn follow<P: Posting, C: Completions>(
    stream: SendStream<'_, P, C>,
    drain: Option<Drain<'_, C>>,
    pace: &PhaseClock,
    watch: &mut Watch<'_>,
) -> Result<SendTotals, Error> {
    match drain {
        None => send_all(stream, pace, watch),
        Some(drain) => send_and_receive(stream, drain, pace, watch),
    }
}

#[inline(never)]
fn send_all<P: Posting, C: Completions>(
    mut stream: SendStream<'_, P, C>,
    pace: &PhaseClock,
    watch: &mut Watch<'_>,
) -> Result<SendTotals, Error> {
    let mut window = CountedWindow::new(pace, watch.now());
    while !stream.is_done() {
        match stream.turn()? {
            0 => watch.idle(|sleeper| sleeper.rest(stream.completions))?,
            _ => watch.passed(stream.completed()),
        }
        if window.follow(stream.completed(), watch) {
            stream.stop();
        }
    }
    Ok(window.close(stream.completed(), watch.now()))
}

#[inline(never)]
fn send_and_receive<P: Posting, C: Completions>(
    mut stream: SendStream<'_, P, C>,
    mut drain: Drain<'_, C>,
    pace: &PhaseClock,
    watch: &mut Watch<'_>,
) -> Result<SendTotals, Error> {
    let mut window = CountedWindow::new(pace, watch.now());
    while !stream.is_done() {
        match drain.turn()? + stream.turn()? {
            0 => watch.idle(|sleeper| sleeper.rest_by(stream.completions, drain.completions))?,
            _ => watch.passed(stream.completed()),
        }
        if window.follow(stream.completed(), watch) {
            stream.stop();
        }
    }
    Ok(window.close(stream.completed(), watch.now()))
}

/// The part of a stream that counts.
#[derive(Debug)]
pub(super) struct CountedWindow<'a> {
    pace: &'a PhaseClock,
    phase: TestPhase,
    /// Its start, and the messages completed by then.
    begin: (u64, u64),
    /// Its end, and the messages completed by then.
    end: Option<(u64, u64)>,
}

impl<'a> CountedWindow<'a> {
    pub(super) fn new(pace: &'a PhaseClock, now: u64) -> Self {
        Self { pace, phase: pace.phase(), begin: (now, 0), end: None }
    }

    /// Checks for a new phase after each turn, with `completed` messages so far; returns whether
    /// the test is over.
    #[inline(always)]
    pub(super) fn follow(&mut self, completed: u64, watch: &Watch<'_>) -> bool {
        self.pace.is_past(self.phase) && self.step(completed, watch.now())
    }

    /// Whether messages that complete now count.
    #[inline(always)]
    pub(super) fn counts(&self) -> bool {
        self.phase == TestPhase::Counted
    }

    #[cold]
    fn step(&mut self, completed: u64, now: u64) -> bool {
        self.phase = self.pace.phase();
        match self.phase {
            TestPhase::WarmUp => {}
            TestPhase::Counted => self.begin = (now, completed),
            // A phase may have passed between two checks.
            TestPhase::CoolDown | TestPhase::Over => self.end = self.end.or(Some((now, completed))),
        }
        self.phase == TestPhase::Over
    }

    /// The totals, with `completed` messages at the end.
    pub(super) fn close(&self, sent: u64, now: u64) -> SendTotals {
        let (end, completed) = self.end.unwrap_or((now, sent));
        let (begin, before) = self.begin;
        SendTotals { sent, counted: completed - before, begin, end }
    }
}

/// Receives all of the peer's remaining messages.
#[derive(Debug)]
pub(super) struct ReceiveRun<'a, 'link> {
    /// Whether the transport loses no message.
    pub(super) all_arrive: bool,
    /// The number of this side's threads that still measure: at 0 this loop ends, and another
    /// follows.
    pub(super) measuring: Option<&'a AtomicU32>,
    /// Completions per poll.
    pub(super) batch: u32,
    pub(super) watch: &'a mut Watch<'link>,
}

impl MeasuredLoop for ReceiveRun<'_, '_> {
    /// The number of messages received.
    type Outcome = u64;

    fn run<C: Completions>(self, _: Sender<'_, C>, receiver: Option<Receiver<'_, C>>) -> Result<u64, Error> {
        match receiver.map(|receiver| Drain::new(receiver, self.batch)) {
            Some(drain) => self.finish(drain),
            None => Ok(0),
        }
    }
}

impl ReceiveRun<'_, '_> {
    /// Receives all remaining messages. If some may be lost, it ends when the peer has sent all and
    /// no more arrive.
    fn finish<C: Completions>(self, mut drain: Drain<'_, C>) -> Result<u64, Error> {
        let Self { all_arrive, measuring, watch, batch: _ } = self;
        while drain.taken < drain.awaited {
            if drain.turn()? == 0 {
                watch.idle(|sleeper| sleeper.rest(drain.completions))?;
                let is_over = !all_arrive && watch.peer_is_done();
                // Joining the threads orders their work; the number orders nothing else.
                if is_over || measuring.is_some_and(|threads| threads.load(Ordering::Relaxed) == 0) {
                    break;
                }
            }
        }
        Ok(drain.taken)
    }
}

/// Posts a queue pair's messages, in either of two ways.
trait Posting {
    /// Posts the next list.
    fn post(&mut self, chain: &mut Chain) -> Result<(), PostSendError>;

    /// The number of completed messages after this completion, if it was `before` until now.
    fn completed(&self, before: u64, tag: Tag) -> u64;

    /// The number of messages posted before the first failed one of those not completed.
    fn failed(&self, before: u64, number: u64) -> u64;
}

/// Builds each list.
impl Posting for Box<dyn SendPoster + '_> {
    #[inline(always)]
    fn post(&mut self, chain: &mut Chain) -> Result<(), PostSendError> {
        self.post_list(chain)
    }

    /// A completion covers all messages before it, too.
    #[inline(always)]
    fn completed(&self, _: u64, tag: Tag) -> u64 {
        tag.number() + 1
    }

    fn failed(&self, _: u64, number: u64) -> u64 {
        number
    }
}

/// Posts one prepared list repeatedly, as perftest does: a request's number is its position in the
/// list.
#[derive(Debug)]
struct Repeated<'queue> {
    list: PreparedSendList<'queue>,
    length: u64,
    /// Messages per completion.
    interval: u64,
}

impl<'queue> Repeated<'queue> {
    /// Prepares a list for each queue pair, if the queues support that and the messages are alike.
    fn all(
        posters: &'queue mut [Box<dyn SendPoster + '_>],
        chain: &Chain,
    ) -> Option<Result<Vec<Self>, PostSendError>> {
        let (length, interval) = (u64::from(chain.list), chain.interval());
        let prepare = |poster: &'queue mut Box<dyn SendPoster + '_>| {
            let mut chain = chain.clone();
            let list = poster.prepare(chain.list, &mut || chain.next())?;
            Some(list.map(|list| Self { list, length, interval }))
        };
        posters.iter_mut().map(prepare).collect()
    }
}

impl Posting for Repeated<'_> {
    #[inline(always)]
    fn post(&mut self, chain: &mut Chain) -> Result<(), PostSendError> {
        chain.pass_list();
        self.list.post()
    }

    #[inline(always)]
    fn completed(&self, before: u64, _: Tag) -> u64 {
        before + self.interval
    }

    /// No interval is longer than the list, so the position identifies it.
    fn failed(&self, before: u64, place: u64) -> u64 {
        at_place(before, place, self.length)
    }
}

/// The first message, from `first` on, with this position in lists of this length.
fn at_place(first: u64, place: u64, length: u64) -> u64 {
    first + (place + length - first % length) % length
}

/// A queue pair's part of a stream.
#[derive(Debug)]
struct PairProgress<P> {
    posting: P,
    chain: Chain,
    completed: u64,
}

/// The messages that all queue pairs send, in turn.
#[derive(Debug)]
struct SendStream<'a, P, C> {
    pairs: Vec<PairProgress<P>>,
    completions: &'a mut C,
    batch: u32,
    /// All messages of all queue pairs, and those that have not completed.
    all: u64,
    left: u64,
}

impl<'a, P: Posting, C: Completions> SendStream<'a, P, C> {
    fn new(posting: Vec<P>, completions: &'a mut C, chain: Chain, batch: u32) -> Self {
        let all = chain.iterations * posting.len() as u64;
        let pair = |posting| PairProgress { posting, chain: chain.clone(), completed: 0 };
        Self { pairs: posting.into_iter().map(pair).collect(), completions, batch, all, left: all }
    }

    /// The number of completed messages.
    #[inline(always)]
    fn completed(&self) -> u64 {
        self.all - self.left
    }

    /// Stops posting, except for messages that complete those already posted.
    #[cold]
    fn stop(&mut self) {
        let completed = self.completed();
        self.pairs.iter_mut().for_each(|pair| pair.chain.stop());
        self.all = self.pairs.iter().map(|pair| pair.chain.iterations).sum();
        self.left = self.all - completed;
    }

    #[inline(always)]
    fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Fills the queues, and polls once; returns the number of completions.
    #[inline(always)]
    fn turn(&mut self) -> Result<u32, Error> {
        let Self { pairs, completions, batch, left, .. } = self;
        for PairProgress { posting, chain, completed } in &mut *pairs {
            let end = chain.end(*completed);
            while chain.posted < end {
                posting.post(chain)?;
            }
        }
        let taken = completions.poll(*batch, |tag: Tag| {
            if let Some(pair) = pairs.get_mut(tag.pair()) {
                let completed = pair.posting.completed(pair.completed, tag);
                *left = left.saturating_sub(completed - pair.completed);
                pair.completed = completed;
            }
            Ok(())
        });
        taken.map_err(|error| failed(pairs, error))
    }
}

/// Adds the failed message's number to the error.
#[cold]
fn failed<P: Posting>(pairs: &[PairProgress<P>], error: Error) -> Error {
    match error {
        Error::Completion(mut error) => {
            if let Some(pair) = pairs.get(error.pair) {
                error.wr_id = pair.posting.failed(pair.completed, error.wr_id);
            }
            Error::Completion(error)
        }
        other => other,
    }
}

/// The messages that all queue pairs receive; a shared queue counts as one.
#[derive(Debug)]
struct Drain<'a, C> {
    posters: Vec<ReceivePoster<'a>>,
    completions: &'a mut C,
    batch: u32,
    taken: u64,
    awaited: u64,
}

impl<'a, C: Completions> Drain<'a, C> {
    fn new(Receiver { posters, completions }: Receiver<'a, C>, batch: u32) -> Self {
        let sum = |of: fn(&ReceiveState) -> u64| posters.iter().map(|poster| of(poster.receives)).sum();
        let (taken, awaited) = (sum(|receives| receives.taken), sum(|receives| receives.awaited));
        Self { posters, completions, batch, taken, awaited }
    }

    /// Polls once, and posts a receive for each message; returns the number of completions.
    #[inline(always)]
    fn turn(&mut self) -> Result<u32, Error> {
        let Self { posters, completions, batch, taken, .. } = self;
        let now = completions.poll(*batch, |tag: Tag| match posters.get_mut(tag.pair()) {
            Some(poster) => Ok(poster.take()?),
            None => Ok(()),
        })?;
        *taken += u64::from(now);
        Ok(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_the_list_tells_which_message_failed() {
        assert_eq!((at_place(0, 0, 64), at_place(0, 63, 64)), (0, 63));
        assert_eq!((at_place(128, 5, 64), at_place(160, 5, 64), at_place(160, 32, 64)), (133, 197, 160));
    }

    #[test]
    fn threads_together_take_from_the_first_post_to_the_last_completion() {
        let one = SendTotals { sent: 10, counted: 8, begin: 100, end: 300 };
        let other = SendTotals { sent: 5, counted: 5, begin: 150, end: 400 };
        let both = SendTotals { sent: 15, counted: 13, begin: 100, end: 400 };
        assert_eq!((one.with(other), other.with(one), both.ticks()), (both, both, 300));
        assert_eq!(SendTotals { begin: 7, end: 6, ..one }.ticks(), 0);
    }
}
