//! Asynchronous events of a context.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_mummy_sys::types::{ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_event_type};

use super::completion::Cq;
use crate::platform::tokens::Tokens;
use crate::queue_pair::xrc::OpenedQp;
use crate::queue_pair::{Qp, Srq};

/// The object that an event concerns.
#[derive(Clone)]
pub(crate) enum EventElement {
    Cq(Arc<Cq>),
    Qp(Arc<Qp>),
    /// An XRC target that was opened by another handle, which gets the event.
    Opened(Arc<OpenedQp>),
    Srq(Arc<Srq>),
    Port(u8),
    Device,
}

/// An asynchronous event.
#[derive(Clone)]
pub(crate) struct AsyncEvent {
    pub(crate) kind: ibv_event_type,
    pub(crate) element: EventElement,
}

impl EventElement {
    /// Whether the program has destroyed the object while another thread was about to report an
    /// event.
    fn is_gone(&self) -> bool {
        match self {
            Self::Cq(cq) => cq.handle().is_null(),
            Self::Qp(qp) => qp.handle().is_null(),
            Self::Opened(opened) => opened.handle().is_null(),
            Self::Srq(srq) => srq.handle().is_null(),
            Self::Port(_) | Self::Device => false,
        }
    }

    /// Counts the event as delivered, and returns the program's handle of the object; `None` if the
    /// object is gone.
    fn deliver(&self) -> Option<ibv_async_event__bindgen_ty_1> {
        // Read the handle once, because the destruction of the object may clear it at any time. The
        // destruction then removes the object's events here, and waits for this one before the
        // object goes.
        let (element, acks) = match self {
            Self::Cq(queue) => {
                let cq = queue.handle();
                ((!cq.is_null()).then_some(ibv_async_event__bindgen_ty_1 { cq })?, Some(queue.async_acks()))
            }
            Self::Qp(pair) => {
                let qp = pair.handle();
                ((!qp.is_null()).then_some(ibv_async_event__bindgen_ty_1 { qp })?, Some(pair.acks()))
            }
            Self::Opened(opened) => {
                let qp = opened.handle();
                ((!qp.is_null()).then_some(ibv_async_event__bindgen_ty_1 { qp })?, Some(opened.acks()))
            }
            Self::Srq(queue) => {
                let srq = queue.handle();
                ((!srq.is_null()).then_some(ibv_async_event__bindgen_ty_1 { srq })?, Some(queue.acks()))
            }
            Self::Port(number) => (ibv_async_event__bindgen_ty_1 { port_num: (*number).into() }, None),
            Self::Device => (ibv_async_event__bindgen_ty_1 { port_num: 0 }, None),
        };
        if let Some(acks) = acks {
            acks.deliver();
        }
        Some(element)
    }
}

/// Events that the program has not taken yet.
pub(crate) struct AsyncEventQueue {
    events: Mutex<VecDeque<AsyncEvent>>,
    tokens: Tokens,
}

/// The most events that wait, so that a program that never takes events does not run out of memory.
const MOST: usize = 1 << 16;

impl AsyncEventQueue {
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self { events: Mutex::default(), tokens: Tokens::create()? })
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<AsyncEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptor, which is readable while events wait.
    pub(crate) fn descriptor(&self) -> i32 {
        self.tokens.descriptor()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events().is_empty()
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        let mut events = self.events();
        // Checked under the lock, because the destruction of the object clears its handle before it
        // removes its events here.
        if event.element.is_gone() {
            return;
        }
        if events.len() == MOST {
            log::error!("an asynchronous event of kind {} is lost: {MOST} wait to be taken", event.kind.0);
            return;
        }
        events.push_back(event);
        drop(events);
        self.tokens.give(1);
    }

    /// Waits for an event, unless the descriptor is non-blocking.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if no event waits, `EINTR` after a signal.
    pub(crate) fn take(&self) -> io::Result<ibv_async_event> {
        loop {
            self.tokens.take()?;
            let mut events = self.events();
            // The event of this token may have gone with its object, or be about to. Every other
            // event has a token too.
            let Some(AsyncEvent { kind, element }) = events.pop_front() else { continue };
            // Under the lock, so that the destruction of the object, which takes this lock next,
            // waits for this event.
            if let Some(element) = element.deliver() {
                return Ok(ibv_async_event { element, event_type: kind });
            }
        }
    }

    /// Removes the events of an object whose handle was taken away.
    pub(crate) fn forget(&self, is_of_object: impl Fn(&EventElement) -> bool) {
        let mut events = self.events();
        let before = events.len();
        events.retain(|event| !is_of_object(&event.element));
        self.tokens.take_back(before - events.len());
    }
}
