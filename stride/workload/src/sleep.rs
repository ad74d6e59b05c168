//! Sleeping until there is a completion (`-e`), in place of looking for one again and again.

use std::time::Duration;

use sideway::ibverbs::completion::CompletionChannel;

use super::Completions;
use stride_base::error::Error;

/// Whoever sleeps looks so often whether the peer is still there.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Sleeps where the completion queues of a side send their events.
///
/// A queue that was found empty is asked for an event, and is then polled again, as what came before makes none. When that finds
/// nothing either, the side sleeps until the event comes, or for a moment. No queue has more than one event under way.
#[derive(Debug)]
pub(super) struct Sleeper(pub(super) CompletionChannel);

impl Sleeper {
    /// Is called each time that a queue was found empty.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub(super) fn rest(&mut self, queue: &mut impl Completions) -> Result<(), Error> {
        if !queue.arm()?
            && let Some(event) = self.0.wait_timeout(PEER_CHECK_INTERVAL)?
        {
            queue.wake(event);
        }
        Ok(())
    }

    /// The same of two queues, both of which were.
    ///
    /// # Errors
    ///
    /// The same.
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
