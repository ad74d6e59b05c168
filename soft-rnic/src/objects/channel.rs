//! Completion channels: a descriptor that tells of completion queues with news.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_mummy_sys::types::ibv_cq;

use super::completion::Cq;
use super::context::{Context, Counted};
use super::held::{Used, Users};
use crate::platform::tokens::Tokens;

/// A completion channel.
pub(crate) struct Channel {
    counted: Counted,
    tokens: Tokens,
    fired: Mutex<VecDeque<Arc<Cq>>>,
    users: Users,
}

impl Channel {
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub(crate) fn create(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        let tokens = Tokens::create()?;
        let counted =
            context.count(|counts| &counts.channel, u32::MAX).map_err(io::Error::from_raw_os_error)?;
        Ok(Arc::new(Self { counted, tokens, fired: Mutex::default(), users: Users::default() }))
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
        self.tokens.give();
    }

    /// Waits for an event, unless the descriptor is non-blocking, and says what the program knows its queue by. The event is
    /// to be acknowledged.
    ///
    /// # Errors
    ///
    /// None is there (`EAGAIN`), or a signal came (`EINTR`).
    pub(crate) fn take(&self) -> io::Result<*mut ibv_cq> {
        loop {
            self.tokens.take()?;
            let mut fired = self.fired();
            // The event of this token may have gone with its queue, or may be about to; another has its own.
            let Some(cq) = fired.pop_front() else { continue };
            let handle = cq.handle();
            if !handle.is_null() {
                // Under the lock, so that the queue's destruction, which comes here first, waits for this event.
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

impl Used for Channel {
    fn users(&self) -> &Users {
        &self.users
    }
}
