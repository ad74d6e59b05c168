//! Completion queues.
//!
//! Completions come from two sides. What this process completes itself (requests that it sent, and what is flushed) is
//! [pushed](Cq::push) to a queue with a lock. What peers complete, the receives, stays in the receive queues' slots in
//! the segment; polling asks the queue pairs whose ready bits are set ([`sources`]). Polling takes from both in turn.

mod local;
mod moderation;
mod poll;
mod progress;
pub(crate) mod sources;
#[cfg(test)]
mod tests;

use std::ffi::c_int;
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
use super::event::{Event, EventElement};
use super::use_ref::{CountsUses, UseCount, UseRef};
use crate::node::Node;
use crate::platform::clock;
use crate::queue_pair::Qp;
use crate::shared::completion::{Armed, CqEntry};
use crate::sync::{AtomicU32, Relaxed, SeqCst, fence};

/// Timers of completion queues whose events are held back; no queue pair has this number.
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
    /// By the device's clock; 0 is filled in where it is asked for.
    pub(crate) timestamp: u64,
}

/// How a completion queue is made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CqOptions {
    /// How many completions it has room for.
    pub(crate) capacity: u32,
    /// Completions carry the time.
    pub(crate) timestamps: bool,
    /// One thread at a time polls it, and needs no lock.
    pub(crate) single_threaded: bool,
    /// A full queue loses its oldest completions and says nothing.
    pub(crate) ignore_overrun: bool,
}

/// A completion queue.
pub(crate) struct Cq {
    /// The entry in the segment, which the context keeps.
    entry: NonNull<CqEntry>,
    own: LocalCompletions,
    sources: CompletionSources<Qp>,
    progress: ProgressList,
    poll: PollLock,
    capacity: AtomicU32,
    /// How many completions those who use it can have at a time: while there is room for as many, nobody counts.
    expected: AtomicU64,
    options: CqOptions,
    failed: AtomicBool,
    /// The program waits for an event that nobody has fired.
    awaited: AtomicBool,
    moderation: Moderation,
    channel: Option<UseRef<CompletionChannel>>,
    counted: CountGuard,
    node: Arc<Node>,
    index: u32,
    handle: AtomicPtr<ibv_cq>,
    acks: Acks,
    async_acks: Acks,
    users: UseCount,
    this: Weak<Self>,
}

// SAFETY: `entry` points to atomics in the segment, which lives as long as the context, which `counted` keeps. All
// else is `Send` and `Sync` by itself.
unsafe impl Send for Cq {}
// SAFETY: `entry` points to atomics in the segment, which lives as long as the context, which
// `counted` keeps. All else is `Send` and `Sync` by itself.
unsafe impl Sync for Cq {}

impl Cq {
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
        let entry =
            rnic.node().segment().completion_queue(index).expect("the table is as long as the segment's");
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
            awaited: AtomicBool::new(false),
            moderation: Moderation::default(),
            channel: channel.map(UseRef::new),
            counted,
            node: Arc::clone(rnic.node()),
            index,
            handle: AtomicPtr::default(),
            acks: Acks::default(),
            async_acks: Acks::default(),
            users: UseCount::default(),
            this: this.clone(),
        });
        rnic.completion_queues().put(index, Arc::clone(&cq));
        Ok(cq)
    }

    #[inline]
    fn entry(&self) -> &CqEntry {
        // SAFETY: the segment lives as long as the context, which `counted` keeps; the entry is atomics.
        unsafe { self.entry.as_ref() }
    }

    /// Whether this process is a forked child, which does not have the segment: nothing else may be called then.
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

    /// What the program knows it by.
    pub(crate) fn handle(&self) -> *mut ibv_cq {
        self.handle.load(Relaxed)
    }

    /// To be called when the C part is made, and by [`retire`](Self::retire).
    pub(crate) fn set_handle(&self, handle: *mut ibv_cq) {
        self.handle.store(handle, Relaxed);
    }

    /// Of completion events.
    pub(crate) fn acks(&self) -> &Acks {
        &self.acks
    }

    /// Of asynchronous events.
    pub(crate) fn async_acks(&self) -> &Acks {
        &self.async_acks
    }

    /// Adds a completion of this process. Error completions count as solicited.
    pub(crate) fn push(&self, mut cqe: Cqe, solicited: bool) {
        self.stamp(&mut cqe);
        let room = self.capacity.load(Relaxed) as usize;
        // Where nobody counts there are none that matter, and the counters are lines of other processors.
        let counts = !self.sources.is_empty() && self.entry().counts();
        let peers = if counts { self.entry().waiting() } else { 0 };
        if !self.own.push(cqe, room.saturating_sub(peers), self.options.ignore_overrun) {
            self.overrun();
            return;
        }
        if self.channel.is_some() {
            // Between the completion and the look at the arming; its counterpart is in `CqEntry::arm`.
            fence(SeqCst);
            if self.entry().disarm(solicited || cqe.status != ibv_wc_status::IBV_WC_SUCCESS.0) {
                self.notify();
            }
        }
    }

    /// Gives a completion its time, if the queue was made for that and it has none.
    #[inline]
    fn stamp(&self, cqe: &mut Cqe) {
        if self.options.timestamps && cqe.timestamp == 0 {
            cqe.timestamp = clock::now();
        }
    }

    /// So many more completions may come at a time. If that is more than there is room for, they are counted from now on.
    pub(crate) fn expect(&self, completions: u32) {
        self.expected.fetch_add(completions.into(), Relaxed);
        self.count_if_needed();
    }

    /// They do not come any more.
    pub(crate) fn expect_no_more(&self, completions: u32) {
        self.expected.fetch_sub(completions.into(), Relaxed);
    }

    fn count_if_needed(&self) {
        let capacity = self.capacity.load(Relaxed);
        if self.entry().counts() || self.expected.load(Relaxed) > capacity.into() {
            self.entry().set_capacity(Some(capacity));
        }
    }

    /// A queue pair begins to deliver its receive completions here; its number is for descriptors and for
    /// [`detach`](Self::detach).
    pub(crate) fn attach(&self, qp: &Arc<Qp>) -> u32 {
        self.sources.attach(qp)
    }

    pub(crate) fn detach(&self, source: u32) {
        self.sources.detach(source);
    }

    /// This process itself has a receive completion ready at a source: to be called once for each, after it is there.
    pub(crate) fn source_ready(&self, source: u32, solicited: bool) {
        // What is ready may have been made so by a store.
        fence(SeqCst);
        let announced = self.entry().announce(source, solicited);
        if announced.wake {
            self.notify();
        }
        if announced.overrun {
            self.overrun();
        }
    }

    /// A source may have something to poll that was not announced, or is not to be counted.
    pub(crate) fn look_at(&self, source: u32) {
        if self.entry().nudge(source) {
            self.notify();
        }
    }

    /// Completions of a source were announced, and will not be polled: it was reset, or destroyed.
    pub(crate) fn forget(&self, count: u32) {
        self.sources.forget(self.entry(), count.into());
    }

    /// A peer has rung: there is a completion that the program waits for, or one too many.
    pub(crate) fn look(&self) {
        if self.entry().take_fired() {
            self.notify();
        }
        if self.entry().is_overrun() {
            self.overrun();
        }
    }

    /// A peer has died, maybe with this queue's arming taken and nobody told.
    pub(crate) fn look_after_death(&self) {
        self.look();
        if self.awaited.load(Relaxed) && !self.entry().is_armed() {
            self.notify();
        }
    }

    /// Whether completions of this process itself wait to be polled.
    pub(crate) fn has_own(&self) -> bool {
        self.own.len() != 0
    }

    /// The arming was taken: tells the channel, now or later. As long as it was not told, every completion comes here.
    pub(crate) fn notify(&self) {
        match self.moderation.judge(|| self.waiting()) {
            EventTiming::Now => self.tell(),
            EventTiming::Later => {}
            EventTiming::Until(at) => self.node.wake_at(at, MODERATED),
        }
    }

    /// The program changes how long events are held back.
    pub(crate) fn moderate(&self, count: u16, micros: u16) {
        self.moderation.set(count, micros);
    }

    /// A timer of [`MODERATED`] has gone off.
    pub(crate) fn on_timer(&self) {
        if self.moderation.take_due(Instant::now()) {
            self.tell();
        }
    }

    fn tell(&self) {
        self.awaited.store(false, Relaxed);
        self.entry().told();
        if let (Some(channel), Some(this)) = (&self.channel, self.this.upgrade()) {
            channel.fire(this);
        }
    }

    /// Nothing comes any more: whoever waits for an event is told to look.
    pub(crate) fn wake(&self) {
        if self.awaited.load(Relaxed) {
            self.tell();
        }
    }

    /// The program wants to know of the next completion, or of the next solicited one.
    pub(crate) fn arm(&self, solicited_only: bool) {
        self.awaited.store(true, Relaxed);
        self.entry().arm(if solicited_only { Armed::Solicited } else { Armed::Any });
    }

    /// A rule of faults: as if it had been full. Nothing is completed here any more.
    pub(crate) fn break_down(&self) {
        self.capacity.store(0, Relaxed);
        self.entry().set_capacity(Some(0));
        self.overrun();
    }

    /// The queue was full: the program is told once.
    fn overrun(&self) {
        if self.options.ignore_overrun || self.failed.swap(true, Relaxed) {
            return;
        }
        log::warn!("completion queue {} of {} entries is overrun", self.index, self.capacity.load(Relaxed));
        if let Some(this) = self.this.upgrade() {
            self.context()
                .raise(Event { kind: ibv_event_type::IBV_EVENT_CQ_ERR, element: EventElement::Cq(this) });
        }
    }

    /// The completions of a queue pair that are not polled yet vanish: it was reset, or destroyed.
    pub(crate) fn purge(&self, qpn: u32) {
        self.own.purge(qpn);
    }

    /// A queue pair has work that waits to be executed: polling shall call its `progress`.
    pub(crate) fn wants_progress(&self, qp: &Arc<Qp>) {
        self.progress.add(qp);
    }

    /// A queue pair has no work that waits.
    pub(crate) fn no_progress(&self, qp: &Qp) {
        self.progress.remove(qp);
    }

    /// How many completions it holds.
    pub(crate) fn waiting(&self) -> usize {
        let received = if self.entry().counts() { self.entry().waiting() } else { self.sources.waiting() };
        self.own.len() + received
    }

    /// Makes it larger or smaller; false if it holds more completions than that.
    pub(crate) fn resize(&self, capacity: u32) -> bool {
        let fits = self.waiting() <= capacity as usize;
        if fits {
            self.capacity.store(capacity, Relaxed);
            self.count_if_needed();
        }
        fits
    }

    /// What is to be done before it goes: no event of it is delivered any more, and those that were are acknowledged.
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
