//! Sleeping until a completion event (`-e`) instead of polling.

use std::time::Duration;

use sideway::ibverbs::completion::CompletionChannel;

use super::Completions;
use stride_base::error::Error;

/// How often a sleeping side checks that the peer still lives.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Sleeps on the channel of a side's completion queues.
///
/// A queue that was found empty is armed and then polled again, because earlier completions raise
/// no event. If that finds nothing, the side sleeps until the event comes, or for a moment. Each
/// queue has at most one event outstanding.
#[derive(Debug)]
pub(super) struct Sleeper(pub(super) CompletionChannel);

impl Sleeper {
    /// Handles an empty queue: arms it, or sleeps.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub(super) fn rest(&mut self, queue: &mut impl Completions) -> Result<(), Error> {
        if !queue.arm()?
            && let Some(event) = self.0.wait_timeout(PEER_CHECK_INTERVAL)?
        {
            queue.wake(event);
        }
        Ok(())
    }

    /// Handles two queues, both of which were empty.
    ///
    /// # Errors
    ///
    /// The device failed.
    pub(super) fn rest_by(
        &mut self,
        one: &mut impl Completions,
        other: &mut impl Completions,
    ) -> Result<(), Error> {
        let is_new = [one.arm()?, other.arm()?];
        if is_new == [false; 2]
            && let Some(event) = self.0.wait_timeout(PEER_CHECK_INTERVAL)?
        {
            one.wake(event);
            other.wake(event);
        }
        Ok(())
    }
}
