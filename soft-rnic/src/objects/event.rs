//! Asynchronous events of a context.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_mummy_sys::types::{ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_event_type};

use super::completion::Cq;
use crate::platform::tokens::Tokens;
use crate::queue_pair::xrc::OpenedQp;
use crate::queue_pair::{Qp, Srq};

/// What an event is about.
#[derive(Clone)]
pub(crate) enum EventElement {
    Cq(Arc<Cq>),
    Qp(Arc<Qp>),
    /// A target that was opened again, to whoever opened it.
    Opened(Arc<OpenedQp>),
    Srq(Arc<Srq>),
    Port(u8),
    Device,
}

/// Something that happened.
#[derive(Clone)]
pub(crate) struct Event {
    pub(crate) kind: ibv_event_type,
    pub(crate) element: EventElement,
}

impl EventElement {
    /// Whether the program has destroyed the object, while another thread still had something to say about it.
    fn is_gone(&self) -> bool {
        match self {
            Self::Cq(cq) => cq.handle().is_null(),
            Self::Qp(qp) => qp.handle().is_null(),
            Self::Opened(opened) => opened.handle().is_null(),
            Self::Srq(srq) => srq.handle().is_null(),
            Self::Port(_) | Self::Device => false,
        }
    }

    /// Counts the event as handed out, and says what the program knows the object by; `None` if that is gone.
    fn deliver(&self) -> Option<ibv_async_event__bindgen_ty_1> {
        // The handle is looked at once: the object's destruction may take it away at any time, but comes by here for
        // its events, and waits for this one, before the object goes.
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

/// Events that wait to be taken.
pub(crate) struct AsyncEventQueue {
    events: Mutex<VecDeque<Event>>,
    tokens: Tokens,
}

/// An object that is raised about again and again, while nobody takes events, must not fill the memory.
const MOST: usize = 1 << 16;

impl AsyncEventQueue {
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self { events: Mutex::default(), tokens: Tokens::create()? })
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable while there are events.
    pub(crate) fn descriptor(&self) -> i32 {
        self.tokens.descriptor()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events().is_empty()
    }

    pub(crate) fn raise(&self, event: Event) {
        let mut events = self.events();
        // Under the lock: the object's destruction takes its handle away, and then comes here for its events.
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
    /// None is there (`EAGAIN`), or a signal came (`EINTR`).
    pub(crate) fn take(&self) -> io::Result<ibv_async_event> {
        loop {
            self.tokens.take()?;
            let mut events = self.events();
            // The event of this token may have gone with its object, or be about to; another has its own.
            let Some(Event { kind, element }) = events.pop_front() else { continue };
            // Under the lock, so that the object's destruction, which comes here next, waits for this event.
            if let Some(element) = element.deliver() {
                return Ok(ibv_async_event { element, event_type: kind });
            }
        }
    }

    /// The events of an object go with it. Its handle must have been taken away.
    pub(crate) fn forget(&self, is_of_object: impl Fn(&EventElement) -> bool) {
        let mut events = self.events();
        let before = events.len();
        events.retain(|event| !is_of_object(&event.element));
        self.tokens.take_back(before - events.len());
    }
}
