//! One message at a time.

use sideway::ibverbs::queue_pair::SendQueue;

use super::post::{Inbox, Receiving};
use super::request::Request;
use super::{Completions, Job, Notes, Pace, Phase, Receiver, Sender, Watch};
use crate::buffers::Flag;
use crate::error::Error;
use crate::statistics::LatencyRecorder;

/// The last byte of the receiving memory before the first message: no first message is marked so.
pub(super) const UNMARKED: u8 = 0;

/// What a side does, message by message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Sends, and waits for the answer to arrive. A sample is the time from one post to the next.
    Ping,
    /// Waits for a message to arrive, and answers it.
    Pong,
    /// Sends, and waits for the completion. A sample is the time from the post to the completion.
    Complete,
}

/// What a latency test runs on.
#[derive(Debug)]
pub(super) struct Run<'a, 'link> {
    pub(super) part: Part,
    /// The most messages.
    pub(super) iterations: u64,
    pub(super) pace: &'a Pace,
    pub(super) notes: &'a mut Notes,
    pub(super) recorder: &'a mut LatencyRecorder,
    pub(super) watch: &'a mut Watch<'link>,
}

impl Job for Run<'_, '_> {
    type Outcome = ();

    fn run<Q: SendQueue, C: Completions>(
        self,
        sender: Sender<'_, Q, C, impl Request>,
        receiver: Option<Receiver<'_, C, impl Receiving>>,
    ) -> Result<(), Error> {
        let Self { part, iterations, pace, notes, recorder, watch } = self;
        let Sender { mut outboxes, mut request, completions, arrival } = sender;
        let Some(outbox) = outboxes.first_mut() else { return Ok(()) };
        recorder.clear();
        let mut post = |number, watch: &mut Watch<'_>| {
            outbox.post_marked(&mut request, number, mark(number))?;
            complete_one(completions, watch)
        };
        let receiver = receiver.map(|Receiver { inboxes, completions }| (inboxes, completions));
        match (part, receiver) {
            (Part::Complete, _) => sample(iterations, pace, notes, recorder, watch, post),
            (Part::Ping, None) => sample(iterations, pace, notes, recorder, watch, |number, watch| {
                post(number, watch)?;
                wait_for(arrival, mark(number), watch)
            }),
            (Part::Ping, Some((mut inboxes, received))) => {
                sample(iterations, pace, notes, recorder, watch, |number, watch| {
                    post(number, watch)?;
                    take_one(&mut inboxes, received, watch)
                })
            }
            (Part::Pong, None) => (1..=iterations).try_for_each(|number| {
                wait_for(arrival, mark(number), watch)?;
                post(number, watch)
            }),
            (Part::Pong, Some((mut inboxes, received))) => (1..=iterations).try_for_each(|number| {
                take_one(&mut inboxes, received, watch)?;
                post(number, watch)
            }),
        }
    }
}

/// Takes the time of each message. The clock is read once a message. Times are only noted, and samples counted when
/// there is room for no more or another phase begins, which is part of none of them.
#[inline(always)]
fn sample<'link>(
    iterations: u64,
    pace: &Pace,
    notes: &mut Notes,
    recorder: &mut LatencyRecorder,
    watch: &mut Watch<'link>,
    mut message: impl FnMut(u64, &mut Watch<'link>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut number = 0;
    while number < iterations {
        let phase = pace.phase();
        if phase == Phase::Over {
            break;
        }
        let (start, ends) = notes.places(iterations - number);
        let before = number;
        *start = watch.now();
        for end in ends {
            number += 1;
            message(number, watch)?;
            *end = watch.now();
            watch.passed(number);
            if pace.is_past(phase) {
                break;
            }
        }
        if phase == Phase::Counted {
            notes.count((number - before) as usize, recorder);
        }
    }
    Ok(())
}

/// Waits for the completion of the one message that is under way.
#[inline(always)]
fn complete_one(completions: &mut impl Completions, watch: &mut Watch<'_>) -> Result<(), Error> {
    watch.begin();
    while completions.poll(1, |_| Ok(()))? == 0 {
        watch.idle(|sleeper| sleeper.rest(completions))?;
    }
    Ok(())
}

/// Waits for a message of the peer's to complete a receive, and posts another one.
#[inline(always)]
fn take_one(
    inboxes: &mut [Inbox<'_, impl Receiving>],
    completions: &mut impl Completions,
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    complete_one(completions, watch)?;
    match inboxes {
        [inbox] => Ok(inbox.take()?),
        _ => Ok(()),
    }
}

/// Waits until the last byte of the incoming message is there, which comes after all others.
#[inline(always)]
fn wait_for(arrival: Flag<'_>, mark: u8, watch: &mut Watch<'_>) -> Result<(), Error> {
    watch.begin();
    while arrival.load() != mark {
        watch.spin()?;
    }
    Ok(())
}

/// The mark of a message, which differs from the one before and from [`UNMARKED`] for the first.
#[inline]
pub(super) fn mark(number: u64) -> u8 {
    number as u8
}
