//! Completion channels: a descriptor that is readable while a completion queue has an event.

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_mummy_sys::types::ibv_cq;

use super::completion::Cq;
use super::context::{Context, CountGuard};
use super::use_ref::{CountsUses, UseCount};
use crate::platform::tokens::Tokens;

/// A completion channel (`ibv_comp_channel`).
pub(crate) struct CompletionChannel {
    counted: CountGuard,
    tokens: Tokens,
    fired: Mutex<VecDeque<Arc<Cq>>>,
    users: UseCount,
}

impl CompletionChannel {
    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// The process has no free descriptor.
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

    /// The descriptor, which is readable while events wait. The program may make it non-blocking.
    pub(crate) fn descriptor(&self) -> i32 {
        self.tokens.descriptor()
    }

    /// Adds an event of a completion queue.
    pub(crate) fn fire(&self, cq: Arc<Cq>) {
        {
            let mut fired = self.fired();
            // Checked under the lock, because the destruction of a queue takes its handle away
            // before it removes its events here.
            if cq.handle().is_null() {
                return;
            }
            fired.push_back(cq);
        }
        self.tokens.give(1);
    }

    /// Reports that the device is gone: wakes every waiting thread, and later ones do not wait.
    pub(crate) fn fail(&self) {
        self.tokens.give(1);
    }

    /// Waits for an event, unless the descriptor is non-blocking, and returns the program's handle
    /// of the completion queue. The queue lives until the program acknowledges the event.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if no event waits, `EINTR` after a signal, `EIO` if the device is gone.
    pub(crate) fn take(&self) -> io::Result<NonNull<ibv_cq>> {
        loop {
            let gone = || self.context().has_failed().then(|| io::Error::from_raw_os_error(libc::EIO));
            gone().map_or(Ok(()), Err)?;
            self.tokens.take()?;
            if let Some(error) = gone() {
                // Keep the descriptor readable for the next waiter and for programs that only poll
                // it.
                self.tokens.give(1);
                return Err(error);
            }
            let mut fired = self.fired();
            // The event of this token may have gone with its queue; every other event has a token
            // too. If the event is still here, its queue may be under destruction, which takes the
            // handle away first. Therefore the handle is read once.
            let Some(cq) = fired.pop_front() else { continue };
            if let Some(handle) = NonNull::new(cq.handle()) {
                // Under the lock, so that the destruction of the queue, which takes this lock next,
                // waits for this event.
                cq.acks().deliver();
                return Ok(handle);
            }
        }
    }

    /// Removes the events of a completion queue whose handle was taken away.
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
