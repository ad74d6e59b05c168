//! Polling of completions.

use sideway::ibverbs::completion::{
    BasicCompletionQueue, CompletionEvent, CompletionQueue, ExtendedCompletionQueue, Notify,
    WorkCompletionOperationType, WorkCompletionStatus,
};

use super::post::Tag;
use stride_base::error::{CompletionError, Error};
use stride_base::plan::Mix;

/// A completion queue of either flavour.
pub(super) trait Completions {
    /// Polls up to `batch` completions and calls `each` for every one; returns their number.
    ///
    /// # Errors
    ///
    /// The queue or a message failed, or `each` did.
    fn poll(&mut self, batch: u32, each: impl FnMut(Tag) -> Result<(), Error>) -> Result<u32, Error>;

    /// Polls one completion, and passes the device's timestamp to `time` if the completion has one;
    /// returns the number of completions.
    ///
    /// # Errors
    ///
    /// The queue or the message failed.
    fn poll_timestamps(&mut self, time: impl FnMut(u64)) -> Result<u32, Error>;

    /// Arms the queue, unless it is armed; returns whether it was armed now.
    ///
    /// # Errors
    ///
    /// The queue has no channel, or its device failed.
    fn arm(&mut self) -> Result<bool, Error>;

    /// Handles an event, which may belong to another queue.
    fn wake(&mut self, event: CompletionEvent);

    /// The queue by its flavour.
    fn any(&mut self) -> AnyCompletions<'_>;
}

/// A completion queue, by its flavour.
pub(super) enum AnyCompletions<'a> {
    Basic(&'a mut TypedCompletionQueue<BasicCompletionQueue>),
    Extended(&'a mut TypedCompletionQueue<ExtendedCompletionQueue>),
}

/// A completion queue for work requests of one kind.
#[derive(Debug)]
pub(super) struct TypedCompletionQueue<C> {
    pub(super) queue: C,
    pub(super) opcode: WorkCompletionOperationType,
    /// Tells reads from writes in a mix.
    pub(super) mix: Option<Mix>,
    /// The queue is armed, and its event has not arrived.
    pub(super) is_armed: bool,
}

impl<C> TypedCompletionQueue<C> {
    pub(super) fn new(queue: C, opcode: WorkCompletionOperationType, mix: Option<Mix>) -> Self {
        Self { queue, opcode, mix, is_armed: false }
    }
}

/// A macro, because the pollers of both flavours have the same methods but no common trait.
macro_rules! impl_completions {
    ($Queue:ty, $Flavour:ident) => {
        impl Completions for TypedCompletionQueue<$Queue> {
            #[inline(always)]
            fn poll(
                &mut self,
                batch: u32,
                mut each: impl FnMut(Tag) -> Result<(), Error>,
            ) -> Result<u32, Error> {
                let mut poller = self.queue.start_poll()?;
                for taken in 0..batch {
                    let Some(wc) = poller.next() else {
                        poller.finish()?;
                        return Ok(taken);
                    };
                    if wc.status() != WorkCompletionStatus::Success {
                        return Err(failed(
                            wc.status(),
                            (self.opcode, self.mix),
                            wc.wr_id(),
                            wc.vendor_err(),
                        ));
                    }
                    each(Tag(wc.wr_id()))?;
                }
                Ok(batch)
            }

            #[inline(always)]
            fn poll_timestamps(&mut self, mut time: impl FnMut(u64)) -> Result<u32, Error> {
                let mut poller = self.queue.start_poll()?;
                let Some(wc) = poller.next() else {
                    poller.finish()?;
                    return Ok(0);
                };
                if wc.status() != WorkCompletionStatus::Success {
                    return Err(failed(wc.status(), (self.opcode, self.mix), wc.wr_id(), wc.vendor_err()));
                }
                wc.completion_timestamp().into_iter().for_each(&mut time);
                Ok(1)
            }

            fn arm(&mut self) -> Result<bool, Error> {
                if self.is_armed {
                    return Ok(false);
                }
                // The caller polls again before it sleeps.
                self.queue.arm(Notify::Any)?.finish()?;
                self.is_armed = true;
                Ok(true)
            }

            fn wake(&mut self, event: CompletionEvent) {
                if event.cq() == self.queue.id() {
                    self.is_armed = false;
                }
            }

            fn any(&mut self) -> AnyCompletions<'_> {
                AnyCompletions::$Flavour(self)
            }
        }
    };
}

impl_completions!(BasicCompletionQueue, Basic);
impl_completions!(ExtendedCompletionQueue, Extended);

#[cold]
fn failed(
    status: WorkCompletionStatus,
    (opcode, mix): (WorkCompletionOperationType, Option<Mix>),
    wr_id: u64,
    vendor_err: u32,
) -> Error {
    let (wr_id, pair) = (Tag(wr_id).number(), Tag(wr_id).pair());
    let is_read = mix.is_some_and(|mix| mix.is_read(wr_id));
    let opcode = if is_read { WorkCompletionOperationType::RdmaRead } else { opcode };
    CompletionError { status, opcode, wr_id, vendor_err, pair }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_all_that_is_known_in_one_line() {
        let status = WorkCompletionStatus::TransportRetryCounterExceeded;
        let error = failed(status, (WorkCompletionOperationType::RdmaWrite, None), 42, 0x81);
        let text = error.to_string();
        assert!(
            text.starts_with(
                "a message failed: transport retry counter exceeded (status 12, opcode rdma write, wr_id 42, \
                 vendor error 0x81); the peer does not acknowledge"
            ),
            "{text}"
        );
        assert_eq!(error.one_line(), text);
    }
}
