//! Completion channels: a descriptor that is readable while a completion queue has an event.
//!
//! A peer that completes a receive may have the descriptor, too ([`peer_channels`]). Then it leaves
//! a note in the entry of the completion queue and writes to the descriptor. The program finds the
//! note when it takes its event. So each token in the descriptor belongs to an event in the list or
//! to a note. A peer that is stopped between the note and the write may leave a token too many,
//! because the service thread delivers the event meanwhile.
//!
//! [`peer_channels`]: crate::node::peer_channels

use core::num::NonZero;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_mummy_sys::types::ibv_cq;

use super::completion::Cq;
use super::context::{Context, CountGuard};
use super::use_ref::{CountsUses, UseCount};
use crate::platform::tokens::Tokens;

/// The most completion queues of a channel in which notes are looked for.
const MOST_NOTED: usize = 64;

/// A completion channel (`ibv_comp_channel`).
pub(crate) struct CompletionChannel {
    counted: CountGuard,
    tokens: Tokens,
    /// Unique in this process.
    number: NonZero<u64>,
    /// Whether a peer was given the descriptor.
    is_given: AtomicBool,
    events: Mutex<ChannelEvents>,
    users: UseCount,
}

#[derive(Default)]
struct ChannelEvents {
    fired: VecDeque<Arc<Cq>>,
    /// The queues in which peers may leave notes.
    noted: Vec<Weak<Cq>>,
}

fn next_number() -> NonZero<u64> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    NonZero::new(LAST.fetch_add(1, Relaxed) + 1).expect("as many channels cannot be created")
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
        let channel = Arc::new(Self {
            counted,
            tokens,
            number: next_number(),
            is_given: AtomicBool::new(false),
            events: Mutex::default(),
            users: UseCount::default(),
        });
        context.enter_channel(&channel);
        Ok(channel)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    fn events(&self) -> MutexGuard<'_, ChannelEvents> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for notes of peers in this queue from now on. Returns the channel's number, which the
    /// peers need for that; `None` if it has too many queues already.
    pub(super) fn look_for_notes(&self, cq: &Weak<Cq>) -> Option<NonZero<u64>> {
        let noted = &mut self.events().noted;
        (noted.len() < MOST_NOTED).then(|| noted.push(Weak::clone(cq)))?;
        Some(self.number)
    }

    /// The number and the descriptor, for a peer.
    pub(super) fn give(&self) -> Option<(NonZero<u64>, BorrowedFd<'_>)> {
        let file = self.tokens.file()?;
        self.is_given.store(true, Relaxed);
        Some((self.number, file))
    }

    /// The descriptor, which is readable while events wait. The program may make it non-blocking.
    pub(crate) fn descriptor(&self) -> i32 {
        self.tokens.descriptor()
    }

    /// Adds an event of a completion queue.
    pub(crate) fn fire(&self, cq: Arc<Cq>) {
        let mut events = self.events();
        // Checked under the lock, because the destruction of a queue takes its handle away before it
        // removes its events here.
        if cq.handle().is_null() {
            return;
        }
        events.fired.push_back(cq);
        // Under the lock, so that a token that is taken back is not the one of another event.
        self.tokens.give(1);
    }

    /// Adds the event of a queue whose peer has left a note and a token, if the program waits for
    /// it.
    pub(super) fn note_to_event(&self, cq: Arc<Cq>) {
        let mut events = self.events();
        // The token of a queue under destruction is taken back with its note.
        if cq.handle().is_null() {
            return;
        }
        if cq.take_awaited_note() {
            events.fired.push_back(cq);
        } else {
            self.tokens.take_back(cq.take_superfluous_note().into());
        }
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
            let mut events = self.events();
            // The event of this token may have gone with its queue; every other event has a token
            // too. If the event is still here, its queue may be under destruction, which takes the
            // handle away first. Therefore the handle is read once.
            let Some(cq) = self.next(&mut events) else { continue };
            if let Some(handle) = NonNull::new(cq.handle()) {
                // Under the lock, so that the destruction of the queue, which takes this lock next,
                // waits for this event.
                cq.acks().deliver();
                return Ok(handle);
            }
        }
    }

    /// The queue with the next event. The caller has read a token.
    fn next(&self, events: &mut ChannelEvents) -> Option<Arc<Cq>> {
        let ChannelEvents { fired, noted } = events;
        let queues = || noted.iter().filter_map(Weak::upgrade);
        fired.extend(queues().filter(|cq| cq.take_awaited_note()));
        let Some(next) = fired.pop_front() else {
            // The peer that has left the token has not marked its note yet.
            return queues().find(|cq| cq.take_any_note());
        };
        // A peer can mark a note without a token, which must not take away the token of another
        // event.
        if fired.is_empty() {
            self.tokens.take_back(queues().filter(|cq| cq.take_superfluous_note()).count());
        }
        Some(next)
    }

    /// Removes the events of a completion queue whose handle was taken away.
    pub(crate) fn forget(&self, cq: &Arc<Cq>) {
        let mut events = self.events();
        let before = events.fired.len();
        events.fired.retain(|fired| !Arc::ptr_eq(fired, cq));
        events.noted.retain(|noted| !core::ptr::eq(noted.as_ptr(), Arc::as_ptr(cq)));
        self.tokens.take_back(before - events.fired.len() + usize::from(cq.take_marked_note()));
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if *self.is_given.get_mut() {
            self.context().rnic().node().forget_channel(self.number);
        }
    }
}

impl CountsUses for CompletionChannel {
    fn users(&self) -> &UseCount {
        &self.users
    }
}
