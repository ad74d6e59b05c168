//! Completion channels: a descriptor that is readable while a completion queue has an event.
//!
//! A peer that completes a receive may have the descriptor, too ([`peer_channels`]). Then it leaves
//! a note in the entry of the completion queue and writes to the descriptor. The program finds the
//! note when it takes its event. So each event in the list and each note has a token in the
//! descriptor.
//!
//! A peer may be stopped between the note and the write. If the service thread delivers the event
//! then, the peer leaves a token too many later. A call that reads such a token gets an event of a
//! queue that may be empty. A peer that writes nonsense may leave a note without a token. Then the
//! channel makes the descriptor readable for the events in its list.
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
    /// Whether notes of peers have become events or have taken tokens back since the list was empty.
    /// A token may be missing then.
    is_doubtful: bool,
}

impl ChannelEvents {
    fn queues(&self) -> impl Iterator<Item = Arc<Cq>> {
        self.noted.iter().filter_map(Weak::upgrade)
    }
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
    pub(super) fn share(&self) -> Option<(NonZero<u64>, BorrowedFd<'_>)> {
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
        match cq.take_note() {
            None => {}
            Some(true) => {
                events.fired.push_back(cq);
                events.is_doubtful = true;
            }
            Some(false) => self.take_back(1, &mut events),
        }
    }

    /// Takes back the tokens of notes and of events that are no more.
    fn take_back(&self, tokens: usize, events: &mut ChannelEvents) {
        if tokens == 0 {
            return;
        }
        self.tokens.take_back(tokens);
        // If a note had no token, the one of another event, or the one of the failure, is gone.
        if self.context().has_failed() {
            self.tokens.give(1);
        }
        events.is_doubtful = true;
        self.keep_readable(events);
    }

    /// Makes the descriptor readable if events are left and their tokens may be missing.
    fn keep_readable(&self, events: &mut ChannelEvents) {
        events.is_doubtful &= !events.fired.is_empty();
        if events.is_doubtful && !self.tokens.is_readable() {
            self.tokens.give(1);
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
        self.take_marked(events).or_else(|| self.next_unmarked(events))
    }

    /// Makes marked notes events. Returns the first event.
    fn take_marked(&self, events: &mut ChannelEvents) -> Option<Arc<Cq>> {
        let mut superfluous = Vec::new();
        let ChannelEvents { fired, noted, is_doubtful } = &mut *events;
        for cq in noted.iter().filter_map(Weak::upgrade) {
            match cq.take_note() {
                None => {}
                Some(true) => {
                    fired.push_back(cq);
                    *is_doubtful = true;
                }
                Some(false) => superfluous.push(cq),
            }
        }
        let next = fired.pop_front().or_else(|| superfluous.pop());
        self.take_back(superfluous.len(), events);
        self.keep_readable(events);
        next
    }

    /// The queue whose event has no mark yet. The caller has read a token.
    #[cold]
    fn next_unmarked(&self, events: &mut ChannelEvents) -> Option<Arc<Cq>> {
        // Which of the peers has left the token is not known. The others may be stopped before they
        // leave theirs, or ring the doorbell, for which the service thread then finds no note.
        let mut unmarked: Vec<_> = events.queues().filter(|cq| cq.take_unmarked_note()).collect();
        // Or the peer has marked its note since the last look.
        if let Some(marked) = self.take_marked(events) {
            self.give(unmarked.len());
            events.fired.extend(unmarked);
            return Some(marked);
        }
        // Without a note, the token is one too many. A program that has seen it in the descriptor
        // expects an event, and would wait for the next one.
        let any = || events.queues().find(|cq| !cq.handle().is_null());
        let next = unmarked.pop().or_else(any);
        self.give(unmarked.len());
        events.fired.extend(unmarked);
        next
    }

    /// Leaves tokens for events.
    fn give(&self, tokens: usize) {
        if tokens > 0 {
            self.tokens.give(tokens as u64);
        }
    }

    /// Removes the events of a completion queue whose handle was taken away.
    pub(crate) fn forget(&self, cq: &Arc<Cq>) {
        let mut events = self.events();
        let before = events.fired.len();
        events.fired.retain(|fired| !Arc::ptr_eq(fired, cq));
        events.noted.retain(|noted| !core::ptr::eq(noted.as_ptr(), Arc::as_ptr(cq)));
        let gone = before - events.fired.len() + usize::from(cq.take_note().is_some());
        self.take_back(gone, &mut events);
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
