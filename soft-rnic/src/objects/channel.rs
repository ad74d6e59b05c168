//! Completion channels: a descriptor that tells of completion queues with news.

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_mummy_sys::types::ibv_cq;

use super::completion::Cq;
use super::context::{Context, CountGuard};
use super::use_ref::{CountsUses, UseCount};
use crate::platform::tokens::Tokens;

/// A completion channel.
pub(crate) struct CompletionChannel {
    counted: CountGuard,
    tokens: Tokens,
    fired: Mutex<VecDeque<Arc<Cq>>>,
    users: UseCount,
}

impl CompletionChannel {
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub(crate) fn create(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        let tokens = Tokens::create()?;
        let counted =
            context.count(|counts| &counts.channel, u32::MAX).map_err(io::Error::from_raw_os_error)?;
        let channel = Arc::new(Self { counted, tokens, fired: Mutex::default(), users: UseCount::default() });
        context.enter_channel(&channel);
        Ok(channel)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    fn fired(&self) -> MutexGuard<'_, VecDeque<Arc<Cq>>> {
        self.fired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable while there are events; the program may make it non-blocking.
    pub(crate) fn descriptor(&self) -> i32 {
        self.tokens.descriptor()
    }

    /// A completion queue has what was asked for.
    pub(crate) fn fire(&self, cq: Arc<Cq>) {
        {
            let mut fired = self.fired();
            // Under the lock: the queue's destruction takes its handle away, and then comes here.
            if cq.handle().is_null() {
                return;
            }
            fired.push_back(cq);
        }
        self.tokens.give(1);
    }

    /// The device is gone: whoever waits finds out, and nobody waits any more.
    pub(crate) fn fail(&self) {
        self.tokens.give(1);
    }

    /// Waits for an event, unless the descriptor is non-blocking: what the program knows its queue by. The event is to
    /// be acknowledged; the queue lives until then.
    ///
    /// # Errors
    ///
    /// None is there (`EAGAIN`), a signal came (`EINTR`), or the device is gone (`EIO`).
    pub(crate) fn take(&self) -> io::Result<NonNull<ibv_cq>> {
        loop {
            let gone = || self.context().has_failed().then(|| io::Error::from_raw_os_error(libc::EIO));
            gone().map_or(Ok(()), Err)?;
            self.tokens.take()?;
            if let Some(error) = gone() {
                // For the next who waits, and for those who only ask.
                self.tokens.give(1);
                return Err(error);
            }
            let mut fired = self.fired();
            // The event of this token may have gone with its queue; another has its own. Or it is still here, and its
            // queue is on its way out: the handle, which is taken away first, is looked at once.
            let Some(cq) = fired.pop_front() else { continue };
            if let Some(handle) = NonNull::new(cq.handle()) {
                // Under the lock, so that the queue's destruction, which comes here next, waits for this event.
                cq.acks().deliver();
                return Ok(handle);
            }
        }
    }

    /// The events of a completion queue go with it. Its handle must have been taken away.
    pub(crate) fn forget(&self, cq: &Arc<Cq>) {
        let mut fired = self.fired();
        let before = fired.len();
        fired.retain(|fired| !Arc::ptr_eq(fired, cq));
        self.tokens.take_back(before - fired.len());
    }
}

impl CountsUses for CompletionChannel {
    fn users(&self) -> &UseCount {
        &self.users
    }
}
