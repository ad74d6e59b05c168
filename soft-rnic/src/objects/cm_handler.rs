//! The connection manager, as the device sees it: a handler that the layer above sets.

use std::any::Any;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::node::PortOwner;
use crate::status::Identifiers;

/// What the service thread and fault rules tell the connection manager.
pub(crate) trait CmHandler: Any + Send + Sync {
    /// The process that has this block has sent a message.
    fn message(&self, from: u16, message: &[u8]);
    /// The process that had this block is gone.
    fn gone(&self, block: u16);
    /// The lookup with this token has ended.
    fn port_owner(&self, token: u64, owner: PortOwner);
    /// A device is gone.
    fn device_removed(&self, device: u8);
    /// The counts of identifiers, for statistics.
    fn identifiers(&self) -> Identifiers;
    /// The time that the node was asked for has come.
    fn timer(&self);
}

/// The handler, while it lives. A forked child's device has another slot, because the service thread
/// may have been calling the handler at the time of the fork.
#[derive(Default)]
pub(crate) struct CmHandlerSlot(Mutex<Option<Weak<dyn CmHandler>>>);

impl CmHandlerSlot {
    fn lock(&self) -> MutexGuard<'_, Option<Weak<dyn CmHandler>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handler that is set, or a new one, which is set.
    ///
    /// # Errors
    ///
    /// As `make`.
    pub(crate) fn acquire<H: CmHandler>(&self, make: impl FnOnce() -> io::Result<H>) -> io::Result<Arc<H>> {
        let mut current = self.lock();
        if let Some(handler) = current.as_ref().and_then(Weak::upgrade) {
            let handler: Arc<dyn Any + Send + Sync> = handler;
            if let Ok(handler) = handler.downcast() {
                return Ok(handler);
            }
        }
        let handler = Arc::new(make()?);
        let weak: Weak<H> = Arc::downgrade(&handler);
        *current = Some(weak);
        Ok(handler)
    }

    /// The handler, if one is set and lives. It is called without the lock.
    pub(crate) fn get(&self) -> Option<Arc<dyn CmHandler>> {
        self.lock().as_ref().and_then(Weak::upgrade)
    }
}
