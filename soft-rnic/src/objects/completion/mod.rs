//! Completion queues.
//!
//! Completions come from two sides. Those of this process (its send requests, and flushed requests)
//! are [pushed](Cq::push) to a queue with a lock. Receives, which peers complete, stay in the slots
//! of the receive queues in the segment. Polling asks the queue pairs whose ready bits are set
//! ([`sources`]). Polling alternates between the two.

mod local;
mod moderation;
mod poll;
mod progress;
pub(crate) mod sources;
#[cfg(test)]
mod tests;

use core::num::NonZero;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::Instant;

use rdma_mummy_sys::types::{ibv_cq, ibv_event_type, ibv_wc_status};

use self::local::LocalCompletions;
use self::moderation::{EventTiming, Moderation};
pub(crate) use self::poll::PollGuard;
use self::poll::PollLock;
use self::progress::ProgressList;
use self::sources::CompletionSources;
use super::acks::Acks;
use super::channel::CompletionChannel;
use super::context::{Context, CountGuard};
use super::event::{AsyncEvent, EventElement};
use super::use_ref::{CountsUses, UseCount, UseRef};
use crate::node::Node;
use crate::platform::clock;
use crate::queue_pair::Qp;
use crate::shared::completion::{Armed, CqEntry};
use crate::sync::{AcqRel, AtomicU32, Relaxed, SeqCst, fence};

/// The number that timers of moderated completion queues have. No queue pair has this number.
pub(crate) const MODERATED: u32 = u32::MAX - 1;

/// A work completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cqe {
    pub(crate) wr_id: u64,
    /// `ibv_wc_status`.
    pub(crate) status: u32,
    /// `ibv_wc_opcode`.
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// As on the wire: big-endian.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    /// `ibv_wc_flags`.
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
    pub(crate) slid: u16,
    /// In ticks of the device's clock. 0 until the queue fills it in, if the queue has timestamps.
    pub(crate) timestamp: u64,
}

/// The options that a completion queue is created with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CqOptions {
    /// How many completions it has room for.
    pub(crate) capacity: u32,
    /// Whether completions carry a timestamp.
    pub(crate) timestamps: bool,
    /// Whether the program promises to poll from one thread at a time, so that no lock is needed.
    pub(crate) single_threaded: bool,
    /// Whether a full queue discards its oldest completions silently.
    pub(crate) ignore_overrun: bool,
}

/// A completion queue (`ibv_cq`).
pub(crate) struct Cq {
    /// The entry in the segment, which the context keeps mapped.
    entry: NonNull<CqEntry>,
    own: LocalCompletions,
    sources: CompletionSources<Qp>,
    progress: ProgressList,
    poll: PollLock,
    capacity: AtomicU32,
    /// How many completions its users can have outstanding. While the capacity covers them,
    /// completions are not counted.
    expected: AtomicU64,
    options: CqOptions,
    failed: AtomicBool,
    /// Whether `expected` has exceeded the capacity, so that completions are counted. Peers have a
    /// copy in the entry, which is not believed.
    counting: AtomicBool,
    /// The event that the program waits for and that was not delivered yet, as [`Armed`]. Peers
    /// have a copy in the entry, which is not believed for completions of this process.
    awaited: AtomicU32,
    moderation: Moderation,
    channel: Option<UseRef<CompletionChannel>>,
    /// The channel's number, if peers may wake the program through it.
    channel_number: Option<NonZero<u64>>,
    counted: CountGuard,
    node: Arc<Node>,
    index: u32,
    handle: AtomicPtr<ibv_cq>,
    acks: Acks,
    async_acks: Acks,
    users: UseCount,
    this: Weak<Self>,
}

// SAFETY: `entry` points to atomics in the segment. The segment lives as long as the context, which
// `counted` keeps. All other fields are `Send` and `Sync`.
unsafe impl Send for Cq {}
// SAFETY: `entry` points to atomics in the segment. The segment lives as long as the context, which
// `counted` keeps. All other fields are `Send` and `Sync`.
unsafe impl Sync for Cq {}

impl Cq {
    /// Creates a completion queue, which announces events to `channel` if given.
    ///
    /// # Errors
    ///
    /// As [`Context::count`].
    pub(crate) fn new(
        context: &Arc<Context>,
        channel: Option<&Arc<CompletionChannel>>,
        options: CqOptions,
    ) -> Result<Arc<Self>, c_int> {
        let rnic = context.rnic();
        let counted = context.count(|counts| &counts.cq, rnic.limits().max_cq)?;
        let index = rnic.completion_queues().reserve().ok_or(libc::ENOMEM)?;
        let segment = rnic.node().segment();
        if !segment.ensure_completion_queue(index) {
            rnic.completion_queues().release(index);
            return Err(libc::ENOMEM);
        }
        let entry = segment.completion_queue(index).expect("the segment has an entry for every index");
        entry.reset(None);
        let cq = Arc::new_cyclic(|this| Self {
            entry: NonNull::from(entry),
            own: LocalCompletions::new(options.capacity),
            sources: CompletionSources::default(),
            progress: ProgressList::default(),
            poll: PollLock::new(options.single_threaded),
            capacity: AtomicU32::new(options.capacity),
            expected: AtomicU64::new(0),
            options,
            failed: AtomicBool::new(false),
            counting: AtomicBool::new(false),
            awaited: AtomicU32::new(Armed::No as u32),
            moderation: Moderation::default(),
            channel: channel.map(UseRef::new),
            channel_number: channel.and_then(|channel| channel.look_for_notes(this)),
            counted,
            node: Arc::clone(rnic.node()),
            index,
            handle: AtomicPtr::default(),
            acks: Acks::default(),
            async_acks: Acks::default(),
            users: UseCount::default(),
            this: this.clone(),
        });
        cq.set_entry_channel();
        rnic.completion_queues().put(index, Arc::clone(&cq));
        Ok(cq)
    }

    #[inline]
    fn entry(&self) -> &CqEntry {
        // SAFETY: the segment lives as long as the context, which `counted` keeps. The entry
        // consists of atomics.
        unsafe { self.entry.as_ref() }
    }

    /// Whether this process is a forked child, which does not have the segment. Then no other
    /// method may be called.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.node.is_forked()
    }

    /// Its index in the segment, for descriptors.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    /// The program's pointer to it; null once it is being destroyed.
    pub(crate) fn handle(&self) -> *mut ibv_cq {
        self.handle.load(Relaxed)
    }

    /// Sets the program's pointer, once the C part exists. [`retire`](Self::retire) clears it.
    pub(crate) fn set_handle(&self, handle: *mut ibv_cq) {
        self.handle.store(handle, Relaxed);
    }

    /// The acknowledgements of completion events.
    pub(crate) fn acks(&self) -> &Acks {
        &self.acks
    }

    /// The acknowledgements of asynchronous events.
    pub(crate) fn async_acks(&self) -> &Acks {
        &self.async_acks
    }

    /// Adds a completion of this process. Error completions count as solicited. What peers write to
    /// the entry neither loses the completion nor the event that it causes.
    pub(crate) fn push(&self, mut cqe: Cqe, solicited: bool) {
        self.stamp(&mut cqe);
        let room = self.capacity.load(Relaxed) as usize;
        if !self.own.push(cqe, room, self.options.ignore_overrun) {
            self.overrun();
            return;
        }
        // If peers' completions are not counted, all fit. Then do not read the counters, whose
        // cache lines other processors write.
        if self.is_counting() && self.own.len() + self.entry().waiting() > room {
            self.overrun();
        }
        if self.channel.is_some() {
            // Orders the completion before the look at the arming; pairs with the fence in
            // `CqEntry::arm`.
            fence(SeqCst);
            if self.is_awaited(solicited || cqe.status != ibv_wc_status::IBV_WC_SUCCESS.0) {
                self.notify();
            }
        }
    }

    /// Whether completions of peers are counted, because they could overrun the queue.
    #[inline]
    fn is_counting(&self) -> bool {
        self.counting.load(Relaxed)
    }

    /// Whether the program waits for an event that such a completion causes.
    #[inline]
    fn is_awaited(&self, solicited: bool) -> bool {
        let awaited = self.awaited.load(Relaxed);
        awaited == Armed::Any as u32 || (awaited == Armed::Solicited as u32 && solicited)
    }

    /// Sets the timestamp, if the queue has timestamps and the completion has none yet.
    #[inline]
    fn stamp(&self, cqe: &mut Cqe) {
        if self.options.timestamps && cqe.timestamp == 0 {
            cqe.timestamp = clock::now();
        }
    }

    /// Allows for more outstanding completions. If they exceed the capacity, completions are
    /// counted from now on.
    pub(crate) fn expect(&self, completions: u32) {
        self.expected.fetch_add(completions.into(), Relaxed);
        self.count_if_needed();
    }

    /// Takes back [`expect`](Self::expect).
    pub(crate) fn expect_no_more(&self, completions: u32) {
        self.expected.fetch_sub(completions.into(), Relaxed);
    }

    fn count_if_needed(&self) {
        let capacity = self.capacity.load(Relaxed);
        if self.is_counting() || self.expected.load(Relaxed) > capacity.into() {
            self.counting.store(true, Relaxed);
            self.entry().set_capacity(Some(capacity));
        }
    }

    /// Adds a queue pair that delivers its receive completions here. Returns its source number, for
    /// descriptors and for [`detach`](Self::detach).
    pub(crate) fn attach(&self, qp: &Arc<Qp>) -> u32 {
        self.sources.attach(qp)
    }

    pub(crate) fn detach(&self, source: u32) {
        self.sources.detach(source);
    }

    /// Announces a receive completion that this process itself has put into a source. Call it once
    /// for each, after it is in place.
    pub(crate) fn source_ready(&self, source: u32, solicited: bool) {
        // Orders a plain store that made the completion visible before the announcement.
        fence(SeqCst);
        let announced = self.entry().announce(source, solicited);
        if announced.wake || self.is_awaited(solicited) {
            self.notify();
        }
        if announced.overrun && self.is_counting() {
            self.overrun();
        }
    }

    /// Makes the next poll look at a source whose completions were not announced or must not be
    /// counted.
    pub(crate) fn look_at(&self, source: u32) {
        if self.entry().nudge(source) || self.is_awaited(true) {
            self.notify();
        }
    }

    /// Discards announced completions of a source that was reset or destroyed.
    pub(crate) fn forget(&self, count: u32) {
        if self.is_counting() {
            self.sources.forget(self.entry(), count.into());
        }
    }

    /// A peer has rung the doorbell: the queue has a completion that the program waits for, or is
    /// overrun.
    pub(crate) fn look(&self) {
        if self.entry().take_noted() {
            self.notify();
        }
        if self.is_counting() && self.entry().is_overrun() {
            self.overrun();
        }
    }

    /// Takes the note of a peer that has left a token. `Some(false)` if the program waits for no
    /// event: a completion of this process has caused it already, while the peer found the queue
    /// armed.
    pub(super) fn take_note(&self) -> Option<bool> {
        self.entry().take_woken().then(|| self.end_wait())
    }

    /// Takes the note of a peer that may have left a token, but has not marked its note.
    pub(super) fn take_unmarked_note(&self) -> bool {
        let taken = self.entry().take_noted();
        if taken {
            self.end_wait();
        }
        taken
    }

    /// A peer has died. It may have consumed the arming without ringing the doorbell.
    pub(crate) fn on_peer_death(&self) {
        self.look();
        if self.is_awaited(true) && !self.entry().is_armed() {
            self.notify();
        }
    }

    /// Whether completions of this process itself wait to be polled.
    pub(crate) fn has_own(&self) -> bool {
        self.own.len() != 0
    }

    /// The arming was consumed: delivers an event now or later. Until that event is delivered,
    /// every completion calls this.
    pub(crate) fn notify(&self) {
        match self.moderation.judge(|| self.waiting()) {
            EventTiming::Now => self.tell(),
            EventTiming::Later => {}
            EventTiming::Until(at) => self.node.wake_at(at, MODERATED),
        }
    }

    /// Changes how long events are held back.
    pub(crate) fn moderate(&self, count: u16, micros: u16) {
        self.moderation.set(count, micros);
        self.set_entry_channel();
    }

    /// Lets peers wake the program through its channel, unless events are held back, which is for
    /// the service thread to do.
    fn set_entry_channel(&self) {
        let number = self.channel_number.filter(|_| !self.moderation.is_on());
        self.entry().set_channel(number);
    }

    /// The descriptor of its channel, for a peer that has rung the doorbell.
    pub(crate) fn give_channel(&self) -> Option<(NonZero<u64>, BorrowedFd<'_>)> {
        self.channel_number?;
        self.channel.as_ref()?.share()
    }

    /// A timer with the number [`MODERATED`] has expired.
    pub(crate) fn on_timer(&self) {
        if self.moderation.take_due(Instant::now()) {
            self.tell();
        }
    }

    /// Delivers the event that the program waits for, if any.
    fn tell(&self) {
        if self.end_wait()
            && let (Some(channel), Some(this)) = (&self.channel, self.this.upgrade())
        {
            channel.fire(this);
        }
    }

    /// Whether the program has waited for an event. It does no longer.
    fn end_wait(&self) -> bool {
        // With the swap in `arm`: if another thread arms after this, the peer that takes its arming
        // does not find a note that this thread has taken before.
        let awaited = self.awaited.swap(Armed::No as u32, AcqRel);
        self.entry().told();
        awaited != Armed::No as u32
    }

    /// No more completions will arrive: delivers an event if the program waits for one.
    pub(crate) fn wake(&self) {
        if self.is_awaited(true) {
            self.tell();
        }
    }

    /// Requests an event for the next completion, or for the next solicited one
    /// (`ibv_req_notify_cq`).
    pub(crate) fn arm(&self, solicited_only: bool) {
        if self.entry().is_fired() {
            self.end_former_wait();
        }
        let armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        // A program that waits for any completion goes on to do so.
        if !solicited_only || self.awaited.load(Relaxed) != Armed::Any as u32 {
            self.awaited.swap(armed as u32, AcqRel);
        }
        self.entry().arm(armed);
    }

    /// Makes the note of a peer an event of the channel, so that a later note belongs to a later
    /// request.
    #[cold]
    fn end_former_wait(&self) {
        // In this order, because a peer may mark its note between the two looks.
        if self.entry().take_noted() {
            self.notify();
        } else if let (Some(channel), Some(this)) = (&self.channel, self.this.upgrade()) {
            channel.note_to_event(this);
        }
    }

    /// A fault rule overruns the queue. It accepts no completions any more.
    pub(crate) fn break_down(&self) {
        self.capacity.store(0, Relaxed);
        self.counting.store(true, Relaxed);
        self.entry().set_capacity(Some(0));
        self.overrun();
    }

    /// Reports the overrun to the program, once.
    fn overrun(&self) {
        if self.options.ignore_overrun || self.failed.swap(true, Relaxed) {
            return;
        }
        log::warn!("completion queue {} of {} entries is overrun", self.index, self.capacity.load(Relaxed));
        if let Some(this) = self.this.upgrade() {
            self.context().raise(AsyncEvent {
                kind: ibv_event_type::IBV_EVENT_CQ_ERR,
                element: EventElement::Cq(this),
            });
        }
    }

    /// Removes the completions of a queue pair that was reset or destroyed.
    pub(crate) fn purge(&self, qpn: u32) {
        self.own.purge(qpn);
    }

    /// Registers a queue pair with pending requests: polling calls its `progress`.
    pub(crate) fn wants_progress(&self, qp: &Arc<Qp>) {
        self.progress.add(qp);
    }

    /// The queue pair has no pending requests any more.
    pub(crate) fn no_progress(&self, qp: &Qp) {
        self.progress.remove(qp);
    }

    /// How many completions wait to be polled.
    pub(crate) fn waiting(&self) -> usize {
        let received = if self.is_counting() { self.entry().waiting() } else { self.sources.waiting() };
        self.own.len() + received
    }

    /// Changes the capacity; false if more completions than that wait.
    pub(crate) fn resize(&self, capacity: u32) -> bool {
        let fits = self.waiting() <= capacity as usize;
        if fits {
            self.capacity.store(capacity, Relaxed);
            self.count_if_needed();
        }
        fits
    }

    /// Prepares the destruction: delivers no more events of the queue, and waits until the
    /// delivered ones are acknowledged.
    pub(crate) fn retire(self: &Arc<Self>) {
        let is_this =
            |element: &EventElement| matches!(element, EventElement::Cq(cq) if Arc::ptr_eq(cq, self));
        self.context().rnic().completion_queues().take(self.index);
        self.set_handle(std::ptr::null_mut());
        if let Some(channel) = &self.channel {
            channel.forget(self);
            channel.release();
        }
        self.context().events().forget(is_this);
        self.acks.wait();
        self.async_acks.wait();
        self.counted.count_out();
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.context().rnic().completion_queues().release(self.index);
    }
}

impl CountsUses for Cq {
    fn users(&self) -> &UseCount {
        &self.users
    }
}
