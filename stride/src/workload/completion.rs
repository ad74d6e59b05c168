//! Taking completions.

use sideway::ibverbs::completion::{
    GenericCompletionQueue, GenericWorkCompletion, WorkCompletionOperationType, WorkCompletionStatus,
};

use crate::error::Error;

/// A message was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a message failed: {status} (status {}, opcode {opcode}, wr_id {wr_id}, vendor error {vendor_err:#x}); {}",
    .status.raw(),
    .status.hint().unwrap_or("no usual cause is known")
)]
pub struct CompletionError {
    /// How it ended.
    pub status: WorkCompletionStatus,
    /// What it was: the device does not say, after an error, but only one kind is posted.
    pub opcode: WorkCompletionOperationType,
    /// Its number: how many messages of this size were posted before it.
    pub wr_id: u64,
    /// The vendor's own error number.
    pub vendor_err: u32,
}

impl CompletionError {
    #[cold]
    fn new(wc: &GenericWorkCompletion<'_>) -> Self {
        let opcode = WorkCompletionOperationType::RdmaWrite;
        Self { status: wc.status(), opcode, wr_id: wc.wr_id(), vendor_err: wc.vendor_err() }
    }
}

/// Takes completions from a queue of its own.
#[derive(Debug)]
pub(super) struct CompletionPoller {
    queue: GenericCompletionQueue,
    batch: u32,
}

impl CompletionPoller {
    /// A poller of this queue, which was made to fetch as many completions at a time.
    pub(super) fn new(queue: GenericCompletionQueue, batch: u32) -> Self {
        Self { queue, batch }
    }

    /// Takes what is there, up to a batch of completions; how many that were.
    ///
    /// # Errors
    ///
    /// The queue failed, or a message did.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<u32, Error> {
        let mut poller = self.queue.start_poll()?;
        for taken in 0..self.batch {
            let Some(wc) = poller.next() else {
                poller.finish()?;
                return Ok(taken);
            };
            if wc.status() != WorkCompletionStatus::Success {
                return Err(CompletionError::new(&wc).into());
            }
        }
        Ok(self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_all_that_is_known_in_one_line() {
        let error = CompletionError {
            status: WorkCompletionStatus::TransportRetryCounterExceeded,
            opcode: WorkCompletionOperationType::RdmaWrite,
            wr_id: 42,
            vendor_err: 0x81,
        };
        let text = error.to_string();
        assert!(
            text.starts_with(
                "a message failed: transport retry counter exceeded (status 12, opcode rdma write, wr_id 42, \
                 vendor error 0x81); the peer does not acknowledge"
            ),
            "{text}"
        );
        assert_eq!(Error::from(error).one_line(), text);
    }
}
