//! One message at a time.

use sideway::ibverbs::queue_pair::SendQueue;

use super::{Completions, Job, Notes, Payload, Watch, Writer};
use crate::buffers::Flag;
use crate::error::Error;
use crate::statistics::LatencyRecorder;

/// The last byte of the receiving memory before the first message: no first message is marked so.
pub(super) const UNMARKED: u8 = 0;

/// What a side does, message by message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Sends, and waits for the answer to arrive in memory. A sample is the time from one post to the next.
    Ping,
    /// Waits for a message to arrive in memory, and answers it.
    Pong,
    /// Sends, and waits for the completion. A sample is the time from the post to the completion.
    Complete,
}

/// What a latency test runs on.
#[derive(Debug)]
pub(super) struct Run<'a, 'link> {
    pub(super) part: Part,
    pub(super) iterations: u64,
    /// Where incoming messages end in this side's memory.
    pub(super) arrival: u64,
    pub(super) notes: &'a mut Notes,
    pub(super) recorder: &'a mut LatencyRecorder,
    pub(super) watch: &'a mut Watch<'link>,
}

impl Job for Run<'_, '_> {
    /// How many messages that were.
    fn run(
        self,
        mut writer: Writer<'_, impl SendQueue, impl Payload>,
        completions: &mut impl Completions,
    ) -> Result<u64, Error> {
        let Self { part, iterations, arrival, notes, recorder, watch } = self;
        let arrival = writer.flag(arrival);
        recorder.clear();
        match part {
            Part::Ping => sample(iterations, notes, recorder, watch, |number, watch| {
                writer.post_marked(number, mark(number))?;
                complete_one(completions, watch)?;
                wait_for(arrival, mark(number), watch)
            }),
            Part::Complete => sample(iterations, notes, recorder, watch, |number, watch| {
                writer.post_marked(number, mark(number))?;
                complete_one(completions, watch)
            }),
            Part::Pong => (1..=iterations).try_for_each(|number| {
                wait_for(arrival, mark(number), watch)?;
                writer.post_marked(number, mark(number))?;
                complete_one(completions, watch)
            }),
        }?;
        Ok(iterations)
    }
}

/// Takes the time of each message. The clock is read once a message. Times are only noted, and samples counted when
/// there is room for no more, which is part of none of them.
#[inline(always)]
fn sample<'link>(
    iterations: u64,
    notes: &mut Notes,
    recorder: &mut LatencyRecorder,
    watch: &mut Watch<'link>,
    mut message: impl FnMut(u64, &mut Watch<'link>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut number = 0;
    while number < iterations {
        let (start, ends) = notes.places(iterations - number);
        let count = ends.len();
        *start = watch.now();
        for end in ends {
            number += 1;
            message(number, watch)?;
            *end = watch.now();
        }
        notes.count(count, recorder);
    }
    Ok(())
}

/// Waits for the completion of the one message that is under way.
#[inline(always)]
fn complete_one(completions: &mut impl Completions, watch: &mut Watch<'_>) -> Result<(), Error> {
    while completions.poll(1)? == 0 {
        watch.spin()?;
    }
    Ok(())
}

/// Waits until the last byte of the incoming message is there, which comes after all others.
#[inline(always)]
fn wait_for(arrival: Flag<'_>, mark: u8, watch: &mut Watch<'_>) -> Result<(), Error> {
    while arrival.load() != mark {
        watch.spin()?;
    }
    Ok(())
}

/// The mark of a message, which differs from the one before and from [`UNMARKED`] for the first.
#[inline]
fn mark(number: u64) -> u8 {
    number as u8
}
