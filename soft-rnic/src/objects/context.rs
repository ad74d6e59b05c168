//! An open device.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_mummy_sys::types::{ibv_context, ibv_event_type, ibv_port_state};

use super::channel::CompletionChannel;
use super::device::Device;
use super::device_memory::Dm;
use super::event::{AsyncEventQueue, Event, EventElement};
use super::memory_region::Mr;
use super::protection_domain::Pd;
use super::rnic::Rnic;
use crate::faults::{self, Call, effects};
use crate::platform::command::CommandFile;

/// How many objects of a kind there are in a context.
#[derive(Debug, Default)]
pub(crate) struct ObjectCounts {
    pub(crate) pd: ObjectCount,
    pub(crate) td: ObjectCount,
    pub(crate) mr: ObjectCount,
    pub(crate) mw: ObjectCount,
    pub(crate) dm: ObjectCount,
    pub(crate) cq: ObjectCount,
    pub(crate) qp: ObjectCount,
    pub(crate) ah: ObjectCount,
    pub(crate) srq: ObjectCount,
    pub(crate) xrcd: ObjectCount,
    pub(crate) channel: ObjectCount,
}

/// A number with a limit.
#[derive(Debug, Default)]
pub(crate) struct ObjectCount(AtomicU32);

/// One of a kind has been counted in. To be counted out when its object goes.
#[derive(Debug)]
pub(crate) struct CountGuard {
    context: Arc<Context>,
    which: fn(&ObjectCounts) -> &ObjectCount,
    out: AtomicBool,
}

impl CountGuard {
    /// The context that counts.
    #[inline]
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Counts the object out, of which somebody may still have a reference.
    pub(crate) fn count_out(&self) {
        if !self.out.swap(true, Relaxed) {
            (self.which)(&self.context.counts).0.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.count_out();
    }
}

/// What the program opened a device as.
pub(crate) struct Context {
    rnic: Arc<Rnic>,
    device: &'static Device,
    events: AsyncEventQueue,
    counts: ObjectCounts,
    /// How often it is open: once, and once for each import.
    open: AtomicU32,
    /// Those that were made, for the day when the device goes.
    channels: Mutex<Vec<Weak<CompletionChannel>>>,
    closed: AtomicBool,
    /// What it is imported by.
    command: CommandFile,
    /// What can be imported by its number.
    domains: Mutex<Vec<Weak<Pd>>>,
    memory_regions: Mutex<Vec<Weak<Mr>>>,
    device_memories: Mutex<Vec<Weak<Dm>>>,
    /// Bytes of device memory that are allocated.
    device_memory: AtomicU64,
    /// The device has gone since.
    failed: AtomicBool,
    /// The C parts, which the verbs make: they stay as long as there is something that was made in any of them.
    handles: Mutex<Vec<AtomicPtr<ibv_context>>>,
    free_handle: unsafe fn(*mut ibv_context),
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("device", &self.device.name).finish_non_exhaustive()
    }
}

impl Context {
    /// Opens a device. `free_handle` frees the C part, when the context and all that was made in it are gone.
    ///
    /// # Errors
    ///
    /// The system has no memory or descriptors for it.
    pub(crate) fn open(
        device: &'static Device,
        free_handle: unsafe fn(*mut ibv_context),
    ) -> io::Result<Arc<Self>> {
        let (rnic, events, command) = (Rnic::acquire()?, AsyncEventQueue::create()?, CommandFile::create()?);
        let context = Arc::new(Self {
            rnic,
            device,
            events,
            counts: ObjectCounts::default(),
            open: AtomicU32::new(1),
            channels: Mutex::default(),
            closed: AtomicBool::new(false),
            command,
            domains: Mutex::default(),
            memory_regions: Mutex::default(),
            device_memories: Mutex::default(),
            device_memory: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            handles: Mutex::default(),
            free_handle,
        });
        context.rnic.enter_context(&context);
        Ok(context)
    }

    #[inline]
    pub(crate) fn rnic(&self) -> &Arc<Rnic> {
        &self.rnic
    }

    /// Fails with `EIO` in a forked child, which has no part in the device that its parent opened.
    pub(crate) fn check_process(&self) -> Result<(), c_int> {
        if self.rnic.node().is_forked() { Err(libc::EIO) } else { Ok(()) }
    }

    /// Whether a verb may do its work: always, but for rules of faults.
    ///
    /// # Errors
    ///
    /// As `errno`: what a rule says; `EIO` if the device has failed.
    #[inline]
    pub(crate) fn admit(&self, call: Call) -> Result<(), c_int> {
        if faults::active() { effects::admit(self, call) } else { Ok(()) }
    }

    /// The device is gone, and whoever waits for a channel of it hears of that; false if it was before.
    pub(crate) fn fail(&self) -> bool {
        let first = !self.failed.swap(true, Relaxed);
        if first {
            self.channels().iter().filter_map(Weak::upgrade).for_each(|channel| channel.fail());
        }
        first
    }

    fn channels(&self) -> MutexGuard<'_, Vec<Weak<CompletionChannel>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A channel was made.
    pub(crate) fn enter_channel(&self, channel: &Arc<CompletionChannel>) {
        let mut channels = self.channels();
        channels.retain(|channel| channel.strong_count() != 0);
        channels.push(Arc::downgrade(channel));
        // Under the lock, so that one of this and `fail` sees the other.
        if self.has_failed() {
            channel.fail();
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// Another C part, to be freed at the end.
    pub(crate) fn add_handle(&self, handle: *mut ibv_context) {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).push(AtomicPtr::new(handle));
    }

    pub(crate) fn command(&self) -> &CommandFile {
        &self.command
    }

    /// It was imported: it takes one more call to close it.
    pub(crate) fn open_again(&self) {
        self.open.fetch_add(1, Relaxed);
    }

    /// A domain can be imported from now on.
    pub(crate) fn enter_domain(&self, pd: &Arc<Pd>) {
        enter(&self.domains, pd);
    }

    /// The domain of a number, if it was not deallocated.
    pub(crate) fn find_domain(&self, number: u32) -> Option<Arc<Pd>> {
        find(&self.domains, |pd| pd.number() == number && !pd.is_gone())
    }

    /// A region can be imported from now on.
    pub(crate) fn enter_region(&self, mr: &Arc<Mr>) {
        enter(&self.memory_regions, mr);
    }

    /// The region of an index, if it was not deregistered.
    pub(crate) fn find_region(&self, index: u32) -> Option<Arc<Mr>> {
        find(&self.memory_regions, |mr| mr.index() == index && !mr.is_gone())
    }

    /// Device memory can be imported from now on.
    pub(crate) fn enter_device_memory(&self, dm: &Arc<Dm>) {
        enter(&self.device_memories, dm);
    }

    /// The device memory of a number, if it was not freed.
    pub(crate) fn find_device_memory(&self, number: u32) -> Option<Arc<Dm>> {
        find(&self.device_memories, |dm| dm.number() == number && !dm.is_gone())
    }

    /// Takes bytes of the device's memory.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there are not so many left.
    pub(crate) fn take_device_memory(&self, bytes: usize) -> Result<(), c_int> {
        let most = self.rnic.limits().max_dm_size;
        let take = |taken: u64| taken.checked_add(bytes as u64).filter(|taken| *taken <= most);
        self.device_memory.fetch_update(Relaxed, Relaxed, take).map(drop).map_err(|_| libc::ENOMEM)
    }

    /// Bytes that were taken are free again.
    pub(crate) fn return_device_memory(&self, bytes: usize) {
        self.device_memory.fetch_sub(bytes as u64, Relaxed);
    }

    /// Counts an object in.
    ///
    /// # Errors
    ///
    /// An errno: `ENOMEM` if there may not be another one, `EIO` in a forked child.
    pub(crate) fn count(
        self: &Arc<Self>,
        which: fn(&ObjectCounts) -> &ObjectCount,
        limit: u32,
    ) -> Result<CountGuard, c_int> {
        self.check_process()?;
        let count = &which(&self.counts).0;
        if count.fetch_add(1, Relaxed) >= limit {
            count.fetch_sub(1, Relaxed);
            return Err(libc::ENOMEM);
        }
        Ok(CountGuard { context: Arc::clone(self), which, out: AtomicBool::new(false) })
    }

    pub(crate) fn events(&self) -> &AsyncEventQueue {
        &self.events
    }

    /// An asynchronous event.
    pub(crate) fn raise(&self, event: Event) {
        self.events.raise(event);
    }

    /// A port went up or down: the program hears of it.
    pub(crate) fn raise_port(&self, port: u8, state: ibv_port_state) {
        let up = state == ibv_port_state::IBV_PORT_ACTIVE;
        let kind =
            if up { ibv_event_type::IBV_EVENT_PORT_ACTIVE } else { ibv_event_type::IBV_EVENT_PORT_ERR };
        self.raise(Event { kind, element: EventElement::Port(port) });
    }

    /// The program closes it. What was made in it and not destroyed keeps its memory, but peers lose their access: a real
    /// device's driver takes all of it away.
    pub(crate) fn close(self: Arc<Self>) {
        if self.open.fetch_sub(1, Relaxed) > 1 {
            return;
        }
        self.closed.store(true, Relaxed);
        // A forked child lets go of its copy, and nothing else.
        if self.check_process().is_err() {
            return;
        }
        let counts = &self.counts;
        let live = [
            &counts.qp,
            &counts.srq,
            &counts.xrcd,
            &counts.cq,
            &counts.mr,
            &counts.mw,
            &counts.dm,
            &counts.ah,
            &counts.pd,
            &counts.td,
            &counts.channel,
        ]
        .iter()
        .map(|count| count.0.load(Relaxed))
        .sum::<u32>();
        if live != 0 {
            log::warn!("{} was closed with {live} objects that were not destroyed", self.device.name);
            self.rnic
                .queue_pairs()
                .all()
                .iter()
                .filter(|qp| Arc::ptr_eq(&qp.context, &self))
                .for_each(|qp| qp.abandon());
            self.rnic.regions().revoke_all(&self);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.has_failed() {
            effects::failed_context_closed();
        }
        for handle in self.handles.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: the function was given for these handles, whose last user was this context.
            unsafe { (self.free_handle)(*handle.get_mut()) };
        }
    }
}

/// Notes an object, in place of one that has gone.
fn enter<T>(table: &Mutex<Vec<Weak<T>>>, object: &Arc<T>) {
    let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
    let object = Arc::downgrade(object);
    // Looking for a place costs as much as there are objects: only before the table would have to grow.
    if table.len() == table.capacity() {
        table.retain(|object| object.strong_count() > 0);
        // Far from full, so that it is not looked through again soon.
        let live = table.len();
        table.reserve(live + 8);
    }
    table.push(object);
}

fn find<T>(table: &Mutex<Vec<Weak<T>>>, is_it: impl Fn(&T) -> bool) -> Option<Arc<T>> {
    let table = table.lock().unwrap_or_else(PoisonError::into_inner);
    table.iter().filter_map(Weak::upgrade).find(|object| is_it(object))
}
