//! The events of a worker, on their way to the program.

use std::collections::VecDeque;
use std::ffi::{CString, c_char};
use std::ptr;

use trespass::Event;

use crate::connection::buffers::BufferHandle;
use crate::connection::buffers::CCompletion;
use crate::connection::flags_of;
use crate::error::CallFailure;

/// `trespass_event`: what happened to a connection or a listener. Its layout is final.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CEvent {
    /// `TRESPASS_EVENT_...`.
    pub event: u32,
    /// Which calls can make progress, or 0.
    pub ready: u32,
    /// The connection, or the listener that failed.
    pub key: u64,
    /// The listener that accepted the connection, or 0.
    pub listener: u64,
    /// The program's tag of the connection or the listener.
    pub tag: u64,
    /// The lent block that returned.
    pub completion: CCompletion,
    /// The number of the error, or 0.
    pub error: u64,
    /// The text of the error, until the next poll, or null.
    pub text: *const c_char,
    /// Zeros.
    pub reserved: [u64; 4],
}

/// `TRESPASS_EVENT_...`.
const ACCEPTED: u32 = 1;
const CONNECTED: u32 = 2;
const FAILED: u32 = 3;
const READY: u32 = 4;
const COMPLETED: u32 = 5;
/// An event of a later version, which this one has no number for.
const OTHER: u32 = 0;

const NO_COMPLETION: CCompletion =
    CCompletion { ticket: 0, buffer: ptr::null_mut::<BufferHandle>(), left: 0, sent: 0 };

const NOTHING: CEvent = CEvent {
    event: OTHER,
    ready: 0,
    key: 0,
    listener: 0,
    tag: 0,
    completion: NO_COMPLETION,
    error: 0,
    text: ptr::null(),
    reserved: [0; 4],
};

/// Events that a poll has found, and those that the program has taken since.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    found: Vec<Event>,
    waiting: VecDeque<Event>,
    /// The texts of the events that the latest poll gave.
    texts: Vec<CString>,
}

impl EventQueue {
    /// Frees the texts of the poll before.
    pub(super) fn forget_taken(&mut self) {
        self.texts.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Where the worker puts events.
    pub(super) fn buffer(&mut self) -> &mut Vec<Event> {
        &mut self.found
    }

    pub(super) fn begin(&mut self) {
        self.waiting.extend(self.found.drain(..));
    }

    /// Writes up to `count` events and returns how many.
    ///
    /// # Safety
    ///
    /// `to` has place for `count` events.
    pub(super) unsafe fn give(&mut self, to: *mut CEvent, count: usize) -> usize {
        let given = self.waiting.len().min(count);
        for (at, event) in self.waiting.drain(..given).enumerate() {
            let event = translate(event, &mut self.texts);
            // SAFETY: by the caller, because `at` is below `count`.
            unsafe { to.add(at).write(event) };
        }
        given
    }
}

fn translate(event: Event, texts: &mut Vec<CString>) -> CEvent {
    match event {
        Event::Accepted { listener, tag, key, .. } => {
            CEvent { event: ACCEPTED, key: key.to_bits(), listener: listener.to_bits(), tag, ..NOTHING }
        }
        Event::Connected { key, tag } => CEvent { event: CONNECTED, key: key.to_bits(), tag, ..NOTHING },
        Event::Failed { key, tag, error } => {
            let failure = CallFailure::from(error);
            let text = failure.text();
            // The bytes of a `CString` stay where they are when the list grows.
            let event = CEvent {
                event: FAILED,
                key: key.to_bits(),
                tag,
                error: failure.errno().unsigned_abs().into(),
                text: text.as_ptr(),
                ..NOTHING
            };
            texts.push(text);
            event
        }
        Event::Ready { key, tag, readiness } => {
            CEvent { event: READY, key: key.to_bits(), tag, ready: flags_of(readiness), ..NOTHING }
        }
        Event::Completed { key, tag, completion } => CEvent {
            event: COMPLETED,
            key: key.to_bits(),
            tag,
            completion: CCompletion::of(completion),
            ..NOTHING
        },
        _ => NOTHING,
    }
}
